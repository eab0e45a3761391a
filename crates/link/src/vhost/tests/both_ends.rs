//! Front end and back end against each other.

use super::*;
use crate::vhost::queues::BURST_PACKETS;

#[test]
fn frames_of_any_length_cross_both_ways() {
    let mut wire = Wire::new(1, |_| {});
    let lens = [14, 15, 59, 60, 61, 1513, 1514, 1515, 4083, 4084, 4085, 4096, 9014, 40_000, 65_549];
    let frames: Vec<Vec<u8>> = lens.iter().zip(0..).map(|(&len, number)| frame(number, len)).collect();
    for to_guest in [true, false] {
        let burst = frames.iter().map(|bytes| Packet::with_data(&wire.mem, bytes).unwrap_or_else(|_| long(bytes)));
        let burst = burst.collect();
        let got = wire.carry(to_guest, burst);
        assert_eq!(bytes_of(&got), frames, "to the guest: {to_guest}");
        assert!(got.iter().all(|packet| packet.meta.csum == Csum::None && packet.meta.cut == Cut::Whole));
    }
    let bytes: u64 = lens.iter().map(|&len| len as u64).sum();
    assert_eq!((wire.back.stats().rx_bytes, wire.back.stats().tx_bytes), (bytes, bytes));
    assert_eq!(wire.back.guest().copied, 2 * bytes);
}

#[test]
fn frames_in_every_shape_arrive_as_one() {
    let mut wire = Wire::new(1, |_| {});
    let bytes = frame(7, 300);
    for to_guest in [true, false] {
        for (shape, packet) in geometry::all(&Memory::heap(), &bytes, &[14, 34]) {
            let got = wire.carry(to_guest, vec![packet]);
            assert_eq!(bytes_of(&got), std::slice::from_ref(&bytes), "{shape}");
        }
    }
}

#[test]
fn fat_frames_stay_fat_both_ways() {
    let mut wire = Wire::new(1, |_| {});
    for to_guest in [true, false] {
        for payload in [1449, 2896, 30_000, 65_000] {
            let packet = fat(&wire.mem, payload);
            let (bytes, meta) = (packet.to_vec(), packet.meta.clone());
            let got = wire.carry(to_guest, vec![packet]);
            assert_eq!(got.len(), 1, "{:?}", wire.back.stats());
            assert_eq!(got[0].to_vec(), bytes);
            assert_eq!((got[0].meta.csum, got[0].meta.cut), (meta.csum, meta.cut));
        }
    }
}

#[test]
fn vlan_tag_in_auxdata_is_put_in_its_place() {
    let mut wire = Wire::new(1, |_| {});
    for to_guest in [true, false] {
        let mut packet = fat(&wire.mem, 5000);
        packet.meta.vlan = Some(7);
        let plain = packet.to_vec();
        let got = wire.carry(to_guest, vec![packet]);
        let want = [&plain[..12], &EtherType::VLAN.0.to_be_bytes(), &[0, 7], &plain[12..]].concat();
        assert_eq!(got[0].to_vec(), want);
        assert_eq!(got[0].meta.csum, Csum::Partial { start: 38, offset: 16 });
    }
}

#[test]
fn frames_in_one_buffer_are_sent_one_by_one() {
    let mut wire = Wire::new(1, |config| config.ring_size = 4);
    for to_guest in [true, false] {
        let together: Vec<u8> = (0..9).flat_map(|number| frame(number, 100)).collect();
        let mut packet = Packet::with_data(&wire.mem, &together).unwrap();
        packet.meta.cut = Cut::Frames(packet::Frames { size: 100, stride: 100, count: 9 });
        let got = wire.carry(to_guest, vec![packet]);
        assert_eq!(bytes_of(&got), (0..9).map(|number| frame(number, 100)).collect::<Vec<_>>());
        let stats = if to_guest { wire.back.stats() } else { wire.front.stats() };
        assert_eq!((stats.tx_packets, stats.tx_wire_packets, stats.tx_bytes), (1, 9, 900));
    }
}

#[test]
fn indices_wrap_without_a_loss() {
    for event_index in [true, false] {
        let off = if event_index { 0 } else { 1 << 29 };
        let mut wire = Wire::without(off, 1, |config| config.ring_size = 32);
        let mut number = 0;
        while number < 70_000 {
            let numbers = number..number + 50;
            let burst = numbers.clone().map(|number| Packet::with_data(&wire.mem, &frame(number, 64)).unwrap());
            let burst = burst.collect();
            let got = wire.carry(number % 100 == 0, burst);
            let want: Vec<Vec<u8>> = numbers.map(|number| frame(number, 64)).collect();
            assert_eq!(bytes_of(&got), want);
            number += 50;
        }
        assert!(wire.back.guest().queues.iter().all(|queue| queue.chains == 35_000));
    }
}

#[test]
fn features_not_negotiated_are_not_used() {
    const MRG_RXBUF: u64 = 1 << 15;
    const CSUM: u64 = 1 << 0;
    const GUEST_CSUM: u64 = 1 << 1;
    const GUEST_TSO4: u64 = 1 << 7;
    const VERSION_1: u64 = 1 << 32;
    let of = |off| {
        let wire = Wire::without(off, 1, |_| {});
        let brief = |features: Features| (features.csum != offload::CsumOffload::None, features.tso4, features.uso);
        (brief(wire.back.features()), brief(wire.front.features()))
    };
    let (all, none) = ((true, true, true), (false, false, false));
    assert_eq!(of(0), (all, all));
    assert_eq!(of(GUEST_CSUM), (none, all));
    assert_eq!(of(CSUM), (all, none));
    assert_eq!(of(GUEST_TSO4), ((true, false, true), all));
    assert_eq!(of(MRG_RXBUF), ((true, false, false), all));
    // Frames that were not fitted to the features are dropped, and counted.
    for off in [GUEST_CSUM, GUEST_TSO4, MRG_RXBUF, VERSION_1 | MRG_RXBUF] {
        let mut wire = Wire::without(off, 1, |_| {});
        let plain = frame(1, 1000);
        let burst = vec![fat(&wire.mem, 3000), Packet::with_data(&wire.mem, &plain).unwrap()];
        let got = wire.carry(true, burst);
        assert_eq!(bytes_of(&got), std::slice::from_ref(&plain), "without {off:#x}");
        assert_eq!(wire.back.stats().dropped_for(DropReason::TxError), 1);
        let packet = Packet::with_data(&wire.mem, &plain).unwrap();
        assert_eq!(bytes_of(&wire.carry(false, vec![packet])), [plain]);
    }
}

#[test]
fn back_end_without_offloads_offers_none() {
    let back = open(&VhostConfig { offloads: false, ..VhostConfig::new("vm0", &path(), MAC) }).unwrap();
    let front = front::open(&front_of(&back)).unwrap();
    let mut wire = Wire { back, front, mem: Memory::heap() };
    wire.connect();
    assert_eq!(wire.back.features(), Features { frames: true, ..Offloads::EMPTY.features() });
    assert_eq!(wire.front.features(), wire.back.features());
    assert_eq!(wire.back.offloads()[0].why.as_deref(), Some(BY_CONFIGURATION));
}

#[test]
fn guest_without_buffers_makes_the_link_busy() {
    let mut wire = Wire::new(1, |config| config.ring_size = 8);
    let mut burst: Vec<Packet> = (0..20).map(|n| Packet::with_data(&wire.mem, &frame(n, 100)).unwrap()).collect();
    assert_eq!((wire.back.send(&mut burst).unwrap(), burst.len()), (Sent::Busy, 12));
    assert_eq!(wire.back.guest().queues[0].full, 1);
    let mut got = Vec::new();
    wire.front.recv(&wire.mem, &mut got).unwrap();
    assert_eq!(got.len(), 8);
    // The guest has kicked, so the link's descriptor is readable.
    assert!(is_readable(&wire.back));
    got.extend(wire.carry(true, burst));
    assert_eq!(bytes_of(&got), (0..20).map(|n| frame(n, 100)).collect::<Vec<_>>());
}

#[test]
fn frame_longer_than_the_whole_ring_is_dropped() {
    let mut wire = Wire::new(1, |config| config.ring_size = 8);
    let burst = vec![fat(&wire.mem, 60_000), fat(&wire.mem, 20_000)];
    let got = wire.carry(true, burst);
    assert_eq!((got.len(), wire.back.stats().dropped_for(DropReason::PacketTooBig)), (1, 1));
}

#[test]
fn sleeping_threads_lose_no_wake_up() {
    for event_index in [true, false] {
        let off = if event_index { 0 } else { 1 << 29 };
        let Wire { mut back, mut front, .. } = Wire::without(off, 1, |config| config.ring_size = 16);
        let count = 20_000_u32;
        let echo = std::thread::spawn(move || {
            let mem = Memory::heap();
            let mut burst = Vec::new();
            let mut echoed = 0;
            while echoed < count {
                front.recv(&mem, &mut burst).unwrap();
                let before = burst.len();
                let sent = front.send(&mut burst).unwrap();
                echoed += (before - burst.len()) as u32;
                if (before == 0 || sent == Sent::Busy) && echoed < count {
                    wait(&front);
                }
            }
            front
        });
        let mem = Memory::heap();
        let (mut sent, mut got) = (0, Vec::new());
        let mut received = 0_u32;
        let mut burst = Vec::new();
        while received < count {
            // Limits the frames in flight so that the echo never stalls.
            while sent < count && sent - received < 40 && burst.len() < 20 {
                burst.push(Packet::with_data(&mem, &frame(sent, 60 + (sent % 1000) as usize)).unwrap());
                sent += 1;
            }
            let _ = back.send(&mut burst).unwrap();
            back.recv(&mem, &mut got).unwrap();
            if got.is_empty() {
                wait(&back);
            }
            for packet in got.drain(..) {
                assert_eq!(packet.to_vec(), frame(received, 60 + (received % 1000) as usize));
                received += 1;
            }
        }
        echo.join().unwrap();
    }
}

#[test]
fn idle_guest_does_not_wake_the_link() {
    let mut wire = Wire::new(1, |_| {});
    let mut none = Vec::new();
    for _ in 0..3 {
        wire.back.recv(&wire.mem, &mut none).unwrap();
        wire.front.recv(&wire.mem, &mut none).unwrap();
    }
    assert!(!is_readable(&wire.back) && !is_readable(&wire.front));
    // A burst that ends before the ring is empty makes the link readable again.
    let burst: Vec<Packet> = (0..200).map(|n| Packet::with_data(&wire.mem, &frame(n, 100)).unwrap()).collect();
    let mut burst = burst;
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    let mut got = Vec::new();
    while is_readable(&wire.back) {
        wire.back.recv(&wire.mem, &mut got).unwrap();
    }
    assert_eq!(got.len(), 200);
}

#[test]
fn each_flow_stays_in_its_queue() {
    let mut wire = Wire::new(4, |_| {});
    assert_eq!(wire.back.guest().queues.iter().filter(|queue| queue.running).count(), 8);
    for to_guest in [true, false] {
        let mut burst = Vec::new();
        for number in 0..64_u8 {
            let packet = fat(&wire.mem, 2000);
            let mut bytes = packet.to_vec();
            // Another source port.
            bytes[35] = number;
            let mut other = Packet::with_data(&wire.mem, &bytes).unwrap();
            other.meta = packet.meta.clone();
            burst.push(other);
        }
        let mut want = bytes_of(&burst);
        let mut got = bytes_of(&wire.carry(to_guest, burst));
        want.sort();
        got.sort();
        assert_eq!(got, want);
    }
    let used = wire.back.guest().queues.iter().filter(|queue| queue.chains > 0).count();
    assert_eq!(used, 8, "{:?}", wire.back.guest());
}

#[test]
fn busy_queue_pair_starves_no_other() {
    for to_guest in [true, false] {
        let mut wire = Wire::new(2, |_| {});
        let packets = |mem: &Memory, port: u8, count: usize| -> Vec<Packet> {
            let each = (0..count).map(|_| {
                let packet = fat(mem, 2000);
                let mut bytes = packet.to_vec();
                bytes[35] = port;
                let mut other = Packet::with_data(mem, &bytes).unwrap();
                other.meta = packet.meta.clone();
                other
            });
            each.collect()
        };
        let chains =
            |wire: &Wire| [0, 1].map(|pair| wire.back.guest().queues[2 * pair + usize::from(!to_guest)].chains);
        let mut port_of = |pair: usize| {
            (0..64).find(|&port| {
                let before = chains(&wire);
                let burst = packets(&wire.mem, port, 1);
                wire.carry(to_guest, burst);
                chains(&wire)[pair] > before[pair]
            })
        };
        let (busy, quiet) = (port_of(0).unwrap(), port_of(1).unwrap());
        let Wire { back, front, mem } = &mut wire;
        let (from, to): (&mut dyn Link, &mut dyn Link) = if to_guest { (back, front) } else { (front, back) };
        let mut burst = packets(mem, busy, 2 * BURST_PACKETS);
        burst.append(&mut packets(mem, quiet, 1));
        assert_eq!(from.send(&mut burst).unwrap(), Sent::All);
        let mut got = Vec::new();
        for _ in 0..2 {
            to.recv(mem, &mut got).unwrap();
            assert_eq!(from.send(&mut packets(mem, busy, BURST_PACKETS)).unwrap(), Sent::All);
        }
        assert!(
            bytes_of(&got).iter().any(|bytes| bytes[35] == quiet),
            "to the guest {to_guest}: {} packets",
            got.len()
        );
    }
}

#[test]
fn front_end_reconnects_and_traffic_resumes() {
    let Wire { mut back, mut front, mem } = Wire::new(1, |_| {});
    for round in 1..4 {
        let config = front_of(&back);
        drop(front);
        front = open_requesting(&config, Bits::requested(true, false)).unwrap();
        let mut none = Vec::new();
        let mut errors = Vec::new();
        until(|| {
            errors.extend(back.recv(&mem, &mut none).err().map(|err| err.to_string()));
            front.recv(&mem, &mut none).unwrap();
            back.guest().connections == 1 + round && back.guest().running && front.guest().running
        });
        assert_eq!(errors, ["vm0: vhost-user: the guest has shut down, or its front end has disconnected"]);
        assert_eq!(back.guest().violations, 0);
        refit(&mut back);
        let packet = Packet::with_data(&mem, &frame(1, 100)).unwrap();
        assert_eq!(back.send(&mut vec![packet]).unwrap(), Sent::All);
        let mut got = Vec::new();
        front.recv(&mem, &mut got).unwrap();
        assert_eq!(got.len(), 1);
    }
}

#[test]
fn back_end_reopened_is_reconnected_to() {
    let mut wire = Wire::new(1, |_| {});
    let socket = wire.back.socket.clone();
    drop(wire.back);
    let mut none = Vec::new();
    let mut errors = Vec::new();
    until(|| {
        errors.extend(wire.front.recv(&wire.mem, &mut none).err().map(|err| err.to_string()));
        !errors.is_empty()
    });
    assert_eq!(errors, ["u0: vhost-user: the back end is gone"]);
    // Without one, packets are dropped.
    refit(&mut wire.front);
    let mut burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.front.send(&mut burst).unwrap(), Sent::All);
    assert_eq!(wire.front.stats().dropped_for(DropReason::LinkDown), 1);
    wire.back = open(&VhostConfig::new("vm0", &socket, MAC)).unwrap();
    wire.connect();
    let burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.carry(true, burst).len(), 1);
}

#[test]
fn second_front_end_waits_until_the_first_is_gone() {
    let mut wire = Wire::new(1, |_| {});
    let mut second = front::open(&front_of(&wire.back)).unwrap();
    let mut none = Vec::new();
    for _ in 0..50 {
        wire.back.recv(&wire.mem, &mut none).unwrap();
        second.recv(&wire.mem, &mut none).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!second.guest().running && !is_readable(&wire.back));
    let burst = vec![Packet::with_data(&wire.mem, &frame(1, 100)).unwrap()];
    assert_eq!(wire.carry(true, burst).len(), 1);
    drop(std::mem::replace(&mut wire.front, second));
    until(|| wire.back.recv(&wire.mem, &mut none).is_err());
    wire.connect();
}

//! Transmission: flags and bytes passed to the hypervisor, and refused packets.

use ibmveth::{
    AdapterConfig, AdapterPlace, Attributes, Firmware, FrameFlags, PoolConfig, Refusal, Style, TxError, TxOffloads,
};
use packet::{Csum, Cut, Gso, GsoKind, Packet};

use crate::common::*;

const CSUM: FrameFlags = FrameFlags::NO_CSUM.with(FrameFlags::CSUM_GOOD);

/// A sending guest, and a receiver without a driver that has negotiated all offloads.
fn world(config: AdapterConfig) -> (World, Raw) {
    let mut world = World::new(Firmware::CURRENT);
    world.add(AdapterPlace::guest(mac(1)), config);
    world.set(0, TxOffloads::ALL).unwrap();
    let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::SETTABLE);
    (world, raw)
}

#[test]
fn partial_tcp_goes_with_its_checksum_zeroed() {
    for flow in flows() {
        let (mut world, mut raw) = world(config());
        let pkt = framed(&world.mem, flow.fat_tcp(&world.mem, 1, 1000, MSS), mac(9), mac(1), None);
        let mut want = pkt.to_vec();
        let check = 14 + flow.version().header_len() + 16;
        want[check..check + 2].fill(0);
        world.send(0, pkt).unwrap();
        let (entry, bytes) = raw.receive(&mut world).unwrap();
        assert_eq!((entry.flags(), entry.offset()), (CSUM, 8));
        assert!(bytes[8..] == want);
    }
}

#[test]
fn finished_tcp_goes_without_flags() {
    for flow in flows() {
        let (mut world, mut raw) = world(config());
        let pkt = plain(&world.mem, &flow.tcp(1, 1000), mac(9), mac(1));
        let want = pkt.to_vec();
        world.send(0, pkt).unwrap();
        let (entry, bytes) = raw.receive(&mut world).unwrap();
        assert_eq!(entry.flags(), FrameFlags::NONE);
        assert!(bytes[8..] == want);
    }
}

#[test]
fn udp_checksum_is_made_in_software() {
    for flow in flows() {
        let (mut world, mut raw) = world(config());
        let pkt = framed(&world.mem, flow.fat_udp(&world.mem, 1000, MSS), mac(9), mac(1), None);
        world.send(0, pkt).unwrap();
        let (entry, bytes) = raw.receive(&mut world).unwrap();
        assert_eq!(entry.flags(), FrameFlags::NONE);
        assert!(bytes[8 + 14..] == flow.udp(1000));
    }
}

#[test]
fn new_style_has_its_mss_in_the_call() {
    for flow in flows() {
        let (mut world, mut raw) = world(config());
        let pkt = fat(&world.mem, &flow, 5000, 9, 1);
        let mut want = pkt.to_vec();
        let check = 14 + flow.version().header_len() + 16;
        want[check..check + 2].fill(0);
        world.send(0, pkt).unwrap();
        let (entry, bytes) = raw.receive(&mut world).unwrap();
        assert_eq!((entry.flags(), entry.offset()), (CSUM.with(FrameFlags::LARGE), 16));
        assert_eq!(bytes[8..16], u64::from(MSS).to_be_bytes());
        assert!(bytes[16..] == want);
        assert_eq!(world.adapters[0].stats().tx_large_packets, 1);
    }
}

#[test]
fn old_style_has_its_mss_in_the_tcp_checksum() {
    let [v4, _] = flows();
    let (mut world, mut raw) = world(AdapterConfig { style: Style::Old, ..config() });
    let pkt = fat(&world.mem, &v4, 5000, 9, 1);
    let mut want = pkt.to_vec();
    want[24..26].fill(0xff);
    want[50..52].copy_from_slice(&MSS.to_be_bytes());
    world.send(0, pkt).unwrap();
    let (entry, bytes) = raw.receive(&mut world).unwrap();
    assert_eq!((entry.flags(), entry.offset()), (CSUM, 8));
    assert!(bytes[8..] == want);
}

#[test]
fn mss_below_224_is_cut_in_software() {
    for flow in flows() {
        for (mss, frames) in [(223, 5), (224, 1)] {
            let (mut world, mut raw) = world(config());
            let pkt = framed(&world.mem, flow.fat_tcp(&world.mem, 1, 1000, mss), mac(9), mac(1), None);
            world.send(0, pkt).unwrap();
            let got = std::iter::from_fn(|| raw.receive(&mut world)).count();
            assert_eq!((got, world.adapters[0].counters().tx_cut), (frames, u64::from(frames > 1)), "{mss}");
        }
    }
}

#[test]
fn own_address_as_destination_is_refused() {
    let (mut world, _) = world(config());
    let pkt = plain(&world.mem, &flows()[0].tcp(1, 10), mac(1), mac(1));
    assert_eq!(world.send(0, pkt), Err(TxError::OwnAddress));
    assert_eq!((world.adapters[0].counters().tx_dropped, world.lan.counters().calls), (1, 0));
}

#[test]
fn frame_longer_than_a_transmit_buffer_is_refused() {
    for (len, want) in [(65_536, Ok(())), (65_537, Err(TxError::TooLong))] {
        let (mut world, _) = world(config());
        let mut bytes = [&mac(9).0[..], &mac(1).0, &[0x88, 0xb5]].concat();
        bytes.resize(len, 0);
        let pkt = Packet::with_data(&world.mem, &bytes).unwrap();
        assert_eq!(world.send(0, pkt), want);
        let mut short = Packet::with_data(&world.mem, &bytes[..13]).unwrap();
        short.meta.cut = Cut::Whole;
        assert_eq!(world.send(0, short), Err(TxError::Truncated));
    }
}

#[test]
fn closed_adapter_and_unknown_queue_send_nothing() {
    let (mut world, _) = world(config());
    let frame = |world: &World| plain(&world.mem, &flows()[0].tcp(1, 10), mac(9), mac(1));
    let pkt = frame(&world);
    assert_eq!(world.adapters[0].transmit(&mut world.lan, 1, pkt), Err(TxError::NoQueue));
    let pkt = frame(&world);
    world.adapters[0].close(&mut world.lan);
    assert_eq!(world.send(0, pkt), Err(TxError::Closed));
}

#[test]
fn each_transmit_queue_has_a_buffer_of_its_own() {
    let (mut world, mut raw) = world(AdapterConfig { tx_queues: 16, ..config() });
    for queue in 0..8 {
        let pkt = plain(&world.mem, &flows()[0].tcp(queue as u32, 100), mac(9), mac(1));
        let want = pkt.to_vec();
        world.adapters[0].transmit(&mut world.lan, queue * 2 + 1, pkt).unwrap();
        assert!(raw.receive(&mut world).unwrap().1[8..] == want);
    }
    for tx_queues in [0, 17] {
        let unit = world.lan.add_adapter(AdapterPlace::guest(mac(7))).unwrap();
        let probed = ibmveth::Adapter::probe(&mut world.lan, unit, AdapterConfig { tx_queues, ..config() });
        assert_eq!(probed.map(drop), Err(ibmveth::SettingError::Range(tx_queues)));
    }
}

#[test]
fn gso_packet_that_is_none_is_refused_by_name() {
    let (mut world, _) = world(config());
    let mut pkt = plain(&world.mem, &flows()[0].udp(1000), mac(9), mac(1));
    pkt.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 500, segs: 2, ecn: false, fixed_id: false });
    assert_eq!(world.send(0, pkt), Err(TxError::Offload(base::DropReason::CannotSegment)));
}

#[test]
fn busy_is_repeated_1024_times_and_then_a_drop() {
    // The hypervisor serves one adapter per call: 1024 repetitions reach 1025 of them.
    let one = [PoolConfig { active: true, count: 1, size: 2048 }; 5];
    for (others, is_sent) in [(1025, true), (1026, false)] {
        let mut world = World::new(Firmware { copies_per_call: 1, ..Firmware::CURRENT });
        world.add(AdapterPlace::guest(mac(1)), config());
        for at in 0..others {
            let [high, low] = u16::to_be_bytes(at);
            let place = AdapterPlace::guest(wire::MacAddr([2, 0, 0, 1, high, low]));
            let unit = world.lan.add_adapter(place.clone()).unwrap();
            let config = AdapterConfig { pools: one, ..config() };
            let mut adapter = ibmveth::Adapter::probe(&mut world.lan, unit, config).unwrap();
            adapter.open(&mut world.lan).unwrap();
        }
        let pkt = plain(&world.mem, &flows()[0].udp(10), wire::MacAddr::BROADCAST, mac(1));
        let want = if is_sent { Ok(()) } else { Err(TxError::Refused(Refusal::Busy)) };
        assert_eq!(world.send(0, pkt), want);
        let adapter = &world.adapters[0];
        assert_eq!((adapter.counters().tx_retries, adapter.stats().tx_send_failed), (1024, u64::from(!is_sent)));
        assert_eq!((adapter.counters().tx_dropped, world.lan.counters().copies), (u64::from(!is_sent), 1025));
    }
}

#[test]
fn fat_packet_that_is_not_sound_is_cut_in_software() {
    for flow in flows() {
        for is_stale in [true, false] {
            let (mut world, mut raw) = world(config());
            let mut pkt = fat(&world.mem, &flow, 5000, 9, 1);
            if is_stale {
                // The length of a fat packet is its real one, whatever its header contains.
                let at = if flow.src.is_ipv4() { 14 + 2 } else { 14 + 4 };
                pkt.head_mut().unwrap()[at..at + 2].copy_from_slice(&100u16.to_be_bytes());
            } else {
                pkt.meta.csum = Csum::None;
            }
            world.send(0, pkt).unwrap();
            let got: Vec<_> = std::iter::from_fn(|| raw.receive(&mut world)).collect();
            assert_eq!((got.len(), world.adapters[0].counters().tx_cut), (4, 1), "{}", flow.src);
            assert!(got.iter().all(|(entry, _)| !entry.flags().contains(FrameFlags::LARGE)));
        }
    }
}

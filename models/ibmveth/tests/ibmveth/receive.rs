//! Reception: source of the MSS, restored checksums, and copies.

use ibmveth::{AdapterPlace, Attributes, FrameFlags};
use packet::{Csum, Cut, Gso, GsoKind, Packet};
use sim::Flow;
use wire::{EtherType, eth};

use crate::common::*;

const CSUM: FrameFlags = FrameFlags::NO_CSUM.with(FrameFlags::CSUM_GOOD);

/// A guest, and a sender without a driver that has negotiated all offloads.
fn world() -> (World, Raw) {
    let mut world = World::pair();
    let raw = Raw::new(&mut world, AdapterPlace::guest(mac(9)), Attributes::SETTABLE);
    (world, raw)
}

/// A frame of `flow` to the first guest, with `len` bytes of payload, a correct IP checksum, and this TCP checksum.
fn frame(flow: &Flow, len: usize, check: Option<u16>) -> Vec<u8> {
    let mut ip = flow.tcp(1, len);
    let l4 = flow.version().header_len();
    if let Some(check) = check {
        ip[l4 + 16..l4 + 18].copy_from_slice(&check.to_be_bytes());
    }
    let ethertype = if flow.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    [eth::EthHeader::new(mac(1), mac(9), ethertype).as_bytes(), &ip].concat()
}

fn marked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0xff);
    frame
}

/// Metadata of a received frame, and its TCP checksum field less the sum of the pseudo-header.
fn state(pkt: &Packet) -> (Csum, Cut) {
    (pkt.meta.csum, pkt.meta.cut)
}

fn gso(flow: &Flow, size: u16, segs: u16) -> Cut {
    let kind = if flow.src.is_ipv4() { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    Cut::Gso(Gso { kind, size, segs, ecn: false, fixed_id: false })
}

fn partial(flow: &Flow) -> Csum {
    Csum::Partial { start: (14 + flow.version().header_len()) as u16, offset: 16 }
}

#[test]
fn mss_is_at_byte_eight_of_a_flagged_frame() {
    for flow in flows() {
        let (mut world, raw) = world();
        let bytes = frame(&flow, 5000, Some(0));
        raw.send(&mut world, &bytes, CSUM.with(FrameFlags::LARGE), 1000).unwrap();
        let packets = world.receive(0);
        assert_eq!(state(&packets[0]), (partial(&flow), gso(&flow, 1000, 5)));
        assert_eq!(world.adapters[0].stats().rx_large_packets, 1);
        let frames = finished(&world.mem, packets);
        assert_eq!(frames.len(), 5);
        let got: Vec<u8> = frames.iter().flat_map(|frame| payload(&world.mem, frame, "flagged")).collect();
        assert_eq!(got, (1..5001).map(sim::stream_byte).collect::<Vec<_>>());
    }
}

#[test]
fn mss_is_in_the_tcp_checksum_of_a_marked_frame() {
    let [v4, _] = flows();
    let (mut world, raw) = world();
    // Also for a frame no longer than the MTU.
    for (len, segs) in [(5000, 5), (1200, 2)] {
        let bytes = marked(frame(&v4, len, Some(1000)));
        raw.send(&mut world, &bytes, CSUM, 0).unwrap();
        let packets = world.receive(0);
        assert_eq!(state(&packets[0]), (partial(&v4), gso(&v4, 1000, segs)));
        assert_ne!(packets[0].to_vec()[24..26], [0xff, 0xff], "the IP checksum is built again");
        for frame in finished(&world.mem, packets) {
            payload(&world.mem, &frame, "marked");
        }
    }
    assert_eq!(world.adapters[0].stats().rx_large_packets, 2);
}

#[test]
fn long_frame_without_checksum_has_its_mss_there() {
    for flow in flows() {
        let (mut world, raw) = world();
        let bytes = frame(&flow, 5000, Some(1000));
        raw.send(&mut world, &bytes, CSUM, 0).unwrap();
        assert_eq!(state(&world.receive(0)[0]), (partial(&flow), gso(&flow, 1000, 5)), "{}", flow.src);
        // A frame of the MTU is not long, and 0 is not a valid MSS.
        let len = 1500 - flow.tcp_headers();
        let at_mtu = frame(&flow, len, Some(1000));
        raw.send(&mut world, &at_mtu, CSUM, 0).unwrap();
        assert_eq!(state(&world.receive(0)[0]), (partial(&flow), Cut::Whole));
        let bytes = frame(&flow, 5000, Some(0));
        raw.send(&mut world, &bytes, CSUM, 0).unwrap();
        assert_eq!(state(&world.receive(0)[0]), (partial(&flow), Cut::Whole));
        assert_eq!(world.adapters[0].stats().rx_large_packets, 2);
    }
}

#[test]
fn long_frame_with_its_checksum_is_taken_for_a_long_one() {
    for flow in flows() {
        let (mut world, raw) = world();
        let bytes = frame(&flow, 5000, None);
        raw.send(&mut world, &bytes, FrameFlags::NONE, 0).unwrap();
        let packets = world.receive(0);
        assert_eq!(state(&packets[0]), (Csum::None, Cut::Whole));
        assert_eq!((packets[0].to_vec() == bytes, world.adapters[0].stats().rx_large_packets), (true, 1));
    }
}

#[test]
fn good_checksum_is_not_verified_again() {
    for flow in flows() {
        let (mut world, raw) = world();
        let bytes = frame(&flow, 1000, None);
        raw.send(&mut world, &bytes, FrameFlags::CSUM_GOOD, 0).unwrap();
        let packets = world.receive(0);
        assert_eq!((state(&packets[0]), packets[0].to_vec() == bytes), ((Csum::Unnecessary, Cut::Whole), true));
    }
}

#[test]
fn zeroed_checksum_becomes_partial_with_the_pseudo_header() {
    for flow in flows() {
        for flags in [CSUM, FrameFlags::CSUM_GOOD] {
            let (mut world, raw) = world();
            let bytes = frame(&flow, 1000, Some(0));
            raw.send(&mut world, &bytes, flags, 0).unwrap();
            let packets = world.receive(0);
            assert_eq!(state(&packets[0]), (partial(&flow), Cut::Whole));
            let frames = finished(&world.mem, packets);
            assert_eq!(frames, [frame(&flow, 1000, None)], "what leaves is what the sender would have sent");
        }
    }
}

#[test]
fn padding_is_no_part_of_the_checksum() {
    for flow in flows() {
        let (mut world, raw) = world();
        let mut bytes = frame(&flow, 1, Some(0));
        bytes.extend([0xaa; 40]);
        raw.send(&mut world, &bytes, CSUM, 0).unwrap();
        let packets = world.receive(0);
        assert_eq!(finished(&world.mem, packets), [frame(&flow, 1, None)]);
    }
}

#[test]
fn mark_is_taken_off_without_good_checksum_too() {
    let [v4, _] = flows();
    let (mut world, raw) = world();
    let bytes = marked(frame(&v4, 5000, Some(1000)));
    raw.send(&mut world, &bytes, FrameFlags::NONE, 0).unwrap();
    let packets = world.receive(0);
    assert_eq!(state(&packets[0]), (partial(&v4), gso(&v4, 1000, 5)));
    assert_eq!(wire::checksum::fold(wire::checksum::sum(&packets[0].to_vec()[14..34])), 0xffff);
}

#[test]
fn udp_and_fragments_are_left_as_they_are() {
    let [v4, v6] = flows();
    for flow in [v4, v6] {
        let (mut world, raw) = world();
        let ethertype = if flow.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let mut bytes = [eth::EthHeader::new(mac(1), mac(9), ethertype).as_bytes(), &flow.udp(5000)].concat();
        raw.send(&mut world, &bytes, CSUM.with(FrameFlags::LARGE), 1000).unwrap();
        if flow.src.is_ipv4() {
            bytes = frame(&flow, 5000, Some(0));
            bytes[20] = 0x20;
            raw.send(&mut world, &bytes, CSUM, 0).unwrap();
        }
        for pkt in world.receive(0) {
            assert_eq!(state(&pkt), (Csum::Unnecessary, Cut::Whole));
        }
    }
}

#[test]
fn tagged_frame_keeps_its_offloads() {
    let mut world = World::new(ibmveth::Firmware::CURRENT);
    for last in 1..=2 {
        world.add(AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(last)) }, config());
    }
    for flow in flows() {
        let mut pkt = fat(&world.mem, &flow, 9000, 2, 1);
        pkt.meta.vlan = Some(5);
        world.fit_and_send(0, pkt);
        // A tagged frame of full length is not long.
        let len = 1500 - flow.tcp_headers();
        let mut pkt = plain(&world.mem, &flow.tcp(1, len), mac(2), mac(1));
        pkt.meta.vlan = Some(5);
        world.fit_and_send(0, pkt);
        let packets = world.receive(1);
        assert_eq!(packets.len(), 2, "uncut");
        assert_eq!(packets[0].meta.cut, gso(&flow, MSS, 7));
        assert_eq!((packets[1].len(), packets[1].meta.cut), (1518, Cut::Whole));
    }
    assert_eq!(world.adapters[1].stats().rx_large_packets, 2);
}

#[test]
fn cwr_goes_to_the_first_segment_alone() {
    let [v4, _] = flows();
    let (mut world, raw) = world();
    let mut bytes = frame(&v4, 3000, Some(0));
    bytes[14 + 20 + 13] |= 0x80;
    raw.send(&mut world, &bytes, CSUM.with(FrameFlags::LARGE), 1000).unwrap();
    let packets = world.receive(0);
    assert!(packets[0].meta.cut.gso().unwrap().ecn);
    let flags = finished(&world.mem, packets).iter().map(|frame| frame[14 + 20 + 13] & 0x80).collect::<Vec<_>>();
    assert_eq!(flags, [0x80, 0, 0]);
}

#[test]
fn small_frame_is_copied_and_its_buffer_posted_again() {
    let mut world = World::pair();
    let [v4, _] = flows();
    for (len, is_copied) in [(127, true), (128, false)] {
        let before = world.adapters[1].stats().replenish_add_buff_success;
        let copies = world.adapters[1].counters().copied.copies;
        let mut held = Vec::new();
        for _ in 0..20 {
            let pkt = plain(&world.mem, &v4.udp(len - 14 - 28), mac(2), mac(1));
            world.send(0, pkt).unwrap();
            world.adapters[1].poll(&mut world.lan, &world.mem, 1, &mut held);
            if is_copied {
                assert_eq!(world.adapters[1].available(0), 16);
            }
        }
        assert!(held.iter().all(|pkt| pkt.len() == len));
        assert_eq!(world.adapters[1].stats().replenish_add_buff_success == before, is_copied);
        assert_eq!(world.adapters[1].counters().copied.copies - copies, if is_copied { 20 } else { 0 });
    }
}

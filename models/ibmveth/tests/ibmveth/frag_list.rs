//! Fat packets in several buffers: none is dropped in any mode, and copies are counted.

use ibmveth::{AdapterConfig, AdapterPlace, Firmware, FragListMode, PoolConfig, TxOffloads};
use packet::{Memory, Packet, geometry};
use sim::Flow;
use wire::Protocol;

use crate::common::*;

const MODES: [FragListMode; 3] = [FragListMode::Cut, FragListMode::Linearize, FragListMode::InPlace];

fn world(mode: FragListMode, descriptors: usize) -> World {
    let mut world = World::new(Firmware { descriptors, ..Firmware::CURRENT });
    world.add(AdapterPlace::trunk(mac(1), 1, vec![5]), AdapterConfig { frag_list: mode, ..config() });
    // Room for the segments of a segmented packet.
    let receiver = AdapterConfig { pools: POOLS.map(|pool| PoolConfig { count: 64, ..pool }), ..config() };
    world.add(AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(2)) }, receiver);
    for at in 0..2 {
        world.set(at, TxOffloads::ALL).unwrap();
    }
    world
}

/// A fat packet of `len` bytes of payload with a frag list of segments, as GRO leaves it.
fn frag_list(mem: &Memory, flow: &Flow, len: usize) -> Packet {
    let whole = fat(mem, flow, len, 2, 1);
    let bytes = whole.to_vec();
    let front = 14 + flow.tcp_headers() + usize::from(MSS);
    let mut pkt = Packet::with_data(mem, &bytes[..front]).unwrap();
    for piece in bytes[front..].chunks(MSS.into()) {
        pkt.push_child(Packet::with_data(mem, piece).unwrap());
    }
    pkt.meta = whole.meta;
    pkt
}

/// Jumbo IP packets of at most 9000 bytes whose payload does not begin behind a plain TCP header.
fn jumbo_packets() -> Vec<(&'static str, Vec<u8>)> {
    let [v4, v6] = flows();
    let mut fragment = v4.raw(Protocol::UDP, &stream(8976));
    // The more-fragments flag.
    fragment[6] |= 0x20;
    fragment[10..12].fill(0);
    let check = wire::checksum::finish(wire::checksum::sum(&fragment[..20]));
    fragment[10..12].copy_from_slice(&check.to_be_bytes());
    // TCP behind destination options that are all padding.
    let mut extended = v6.tcp(1, 8900);
    extended[6] = 60;
    let len = u16::from_be_bytes([extended[4], extended[5]]) + 8;
    extended[4..6].copy_from_slice(&len.to_be_bytes());
    extended.splice(40..40, [Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0]);
    vec![
        ("UDP, v4", v4.udp(8972)),
        ("UDP, v6", v6.udp(8952)),
        ("ESP, v4", v4.raw(Protocol::ESP, &stream(8980))),
        ("ESP, v6", v6.raw(Protocol::ESP, &stream(8960))),
        ("a fragment", fragment),
        ("TCP behind an extension header", extended),
    ]
}

fn stream(len: usize) -> Vec<u8> {
    (1..=len as u32).map(sim::stream_byte).collect()
}

#[test]
fn frag_list_is_never_a_reason_to_drop() {
    for mode in MODES {
        for descriptors in [1, 2, 3, 6, 64] {
            for flow in flows() {
                for len in [3000, 9000, 60_000] {
                    let mut world = world(mode, descriptors);
                    let case = format!("{mode:?}, {descriptors} descriptors, {len} bytes, {}", flow.src);
                    let pkt = frag_list(&world.mem, &flow, len);
                    world.fit_and_send(0, pkt);
                    let counters = world.adapters[0].counters();
                    assert_eq!((counters.tx_dropped, world.lan.counters().no_buffer), (0, 0), "{case}");
                    let frames = world.receive_finished(1);
                    let got: Vec<u8> = frames.iter().flat_map(|frame| payload(&world.mem, frame, &case)).collect();
                    assert!(got == stream(len), "{case}");
                }
            }
        }
    }
}

#[test]
fn jumbo_frame_in_pieces_that_is_not_tcp_arrives() {
    for (kind, ip) in jumbo_packets() {
        for mode in MODES {
            for descriptors in [1, 2, 3, 6, 64] {
                for tag in [None, Some(5)] {
                    let case = format!("{kind}, {mode:?}, {descriptors} descriptors, tag {tag:?}");
                    let mut world = world(mode, descriptors);
                    for at in 0..2 {
                        world.adapters[at].set_mtu(&mut world.lan, 9000).unwrap();
                    }
                    let frame = framed(&world.mem, Packet::with_data(&world.mem, &ip).unwrap(), mac(2), mac(1), tag);
                    let bytes = frame.to_vec();
                    let mut pieces = bytes.chunks(1500);
                    let mut pkt = Packet::with_data(&world.mem, pieces.next().unwrap()).unwrap();
                    pieces.for_each(|piece| pkt.push_child(Packet::with_data(&world.mem, piece).unwrap()));
                    world.fit_and_send(0, pkt);
                    let counters = world.adapters[0].counters();
                    let is_in_place = mode == FragListMode::InPlace && descriptors >= 3;
                    let got = (counters.tx_dropped, counters.tx_packets, counters.tx_in_place);
                    assert_eq!(got, (0, 1, is_in_place.into()), "{case}");
                    let got = world.receive(1);
                    assert!(got.len() == 1 && got[0].to_vec() == bytes, "{case}");
                }
            }
        }
    }
}

#[test]
fn each_treatment_is_counted() {
    let [flow, _] = flows();
    let len = 14 + flow.tcp_headers() + 9800;
    // Mode, descriptors, frames to the hypervisor, segmented, linearized, in place, bytes that the adapter copied.
    let cases = [
        (FragListMode::Cut, 6, 7, 1, 0, 0, 9800 + 7 * (len - 9800)),
        (FragListMode::Linearize, 6, 1, 0, 1, 0, len),
        (FragListMode::InPlace, 64, 1, 0, 0, 1, len - 9800),
        // The first four of seven fragments are described; the last three are copied to behind the headers.
        (FragListMode::InPlace, 6, 1, 0, 0, 1, len - 4 * 1400),
        (FragListMode::InPlace, 8, 1, 0, 0, 1, len - 9800),
        (FragListMode::InPlace, 2, 1, 0, 1, 0, len),
    ];
    for (mode, descriptors, calls, cut, linearized, in_place, bytes) in cases {
        let mut world = world(mode, descriptors);
        let pkt = frag_list(&world.mem, &flow, 9800);
        world.send(0, pkt).unwrap();
        let counters = world.adapters[0].counters();
        let got = (counters.tx_packets, counters.tx_cut, counters.tx_in_place, counters.copied.bytes);
        assert_eq!(got, (calls, cut, in_place, bytes as u64), "{mode:?} {descriptors}");
        // Segments of a segmented packet consist of several buffers themselves.
        let own = if cut == 1 { counters.tx_packets } else { linearized };
        assert!(counters.tx_linearized <= own && counters.tx_linearized >= linearized, "{mode:?} {descriptors}");
        assert_eq!(world.receive(1).len(), if cut == 1 { 7 } else { 1 });
    }
}

#[test]
fn every_geometry_is_sent_alike() {
    for mode in MODES {
        for flow in flows() {
            for len in [1000, 5000] {
                let mut world = world(mode, 6);
                let whole = fat(&world.mem, &flow, len, 2, 1);
                let l4 = 14 + flow.version().header_len();
                let cuts = [0, 1, 12, 14, l4, l4 + 16, l4 + 17, l4 + 32, 200];
                for (name, mut pkt) in geometry::all(&world.mem, &whole.to_vec(), &cuts) {
                    let case = format!("{mode:?}, {name}, {}", flow.src);
                    pkt.meta = whole.meta.clone();
                    world.send(0, pkt).unwrap_or_else(|why| panic!("{case}: {why}"));
                    let frames = world.receive_finished(1);
                    let got: Vec<u8> = frames.iter().flat_map(|frame| payload(&world.mem, frame, &case)).collect();
                    assert!(got == stream(len), "{case}");
                }
            }
        }
    }
}

#[test]
fn shared_pages_are_not_written_in_place() {
    let [flow, _] = flows();
    let mut world = world(FragListMode::InPlace, 64);
    let mut pkt = frag_list(&world.mem, &flow, 9800);
    let kept = pkt.clone_shared();
    let before = kept.to_vec();
    world.send(0, pkt).unwrap();
    assert_eq!((kept.to_vec() == before, world.adapters[0].counters().tx_in_place), (true, 1));
    assert_eq!(world.receive(1).len(), 1);
}

#[test]
fn pieces_that_cannot_be_mapped_are_copied_and_counted() {
    let [flow, _] = flows();
    // Regions for the receive buffers and the transmit buffer, and two more.
    let mut world = World::new(Firmware { descriptors: 64, io_regions: 16 * 3 + 1 + 2, ..Firmware::CURRENT });
    world.add(
        AdapterPlace::trunk(mac(1), 1, Vec::new()),
        AdapterConfig { frag_list: FragListMode::InPlace, ..config() },
    );
    world.add(AdapterPlace::guest(mac(2)), config());
    let pkt = frag_list(&world.mem, &flow, 9800);
    world.send(0, pkt).unwrap();
    let adapter = &world.adapters[0];
    assert_eq!(
        (adapter.stats().tx_map_failed, adapter.counters().tx_in_place, adapter.counters().tx_dropped),
        (1, 0, 0)
    );
    assert_eq!(world.receive(1).len(), 1);
}

#[test]
fn frag_lists_are_taken_by_an_active_trunk_alone() {
    let mut world = World::pair();
    world.add(AdapterPlace::trunk(mac(3), 1, Vec::new()), config());
    assert_eq!([0, 1, 2].map(|at| world.adapters[at].features().frag_list), [false, false, true]);
}

//! Old and new adapters in all pairs, for every negotiation: each frame arrives complete, with correct checksums.

use ibmveth::{AdapterConfig, AdapterPlace, Attributes, Firmware, Style, TxOffloads};
use offload::checksum;
use packet::Packet;
use sim::Flow;

use crate::common::*;

/// Every valid set of offloads.
pub(crate) fn offloads() -> Vec<TxOffloads> {
    let mut all = vec![TxOffloads::NONE, TxOffloads { rx_csum: true, ..TxOffloads::NONE }, TxOffloads::CSUM];
    for (tso4, tso6) in [(true, false), (false, true), (true, true)] {
        all.push(TxOffloads { tso4, tso6, ..TxOffloads::CSUM });
    }
    all
}

/// Hypervisors with all features, and with one missing.
fn firmwares() -> Vec<(&'static str, Firmware)> {
    let without = |bits: Attributes| Firmware { attributes: Some(Attributes::ALL & !bits), ..Firmware::CURRENT };
    vec![
        ("all", Firmware::CURRENT),
        ("no IPv4 checksums", without(Attributes::IPV4_TCP_CSUM)),
        ("no IPv6 checksums", without(Attributes::IPV6_TCP_CSUM)),
        ("no padded checksums", without(Attributes::PADDED_CSUM)),
        ("no large send", without(Attributes::LARGE_SEND_SUPPORT)),
        ("no word", Firmware { attributes: None, ..Firmware::CURRENT }),
    ]
}

#[derive(Clone, Copy, Debug)]
enum Load {
    FatTcp,
    PartialTcp,
    PlainTcp,
    PartialUdp,
    SmallTcp,
}

const LOADS: [Load; 5] = [Load::FatTcp, Load::PartialTcp, Load::PlainTcp, Load::PartialUdp, Load::SmallTcp];

fn load(world: &World, flow: &Flow, load: Load) -> (Packet, Vec<u8>) {
    let mem = &world.mem;
    let stream = |len: usize| (0..len as u32).map(sim_byte).collect::<Vec<u8>>();
    match load {
        Load::FatTcp => (flow.fat_tcp(mem, 1, 9000, MSS), stream(9000)),
        Load::PartialTcp => (flow.fat_tcp(mem, 1, 1000, MSS), stream(1000)),
        Load::PlainTcp => (Packet::with_data(mem, &flow.tcp(1, 1000)).unwrap(), stream(1000)),
        Load::PartialUdp => (flow.fat_udp(mem, 1000, MSS), (0..1000).map(sim::stream_byte).collect()),
        Load::SmallTcp => (flow.fat_tcp(mem, 1, 1, MSS), stream(1)),
    }
}

/// Byte of the TCP stream, which begins at sequence number 1.
fn sim_byte(at: u32) -> u8 {
    sim::stream_byte(at + 1)
}

#[test]
fn every_agreement_carries_every_frame_whole() {
    let mut cases = 0;
    for (name, firmware) in firmwares() {
        for (style, other) in
            [(Style::New, Style::New), (Style::New, Style::Old), (Style::Old, Style::New), (Style::Old, Style::Old)]
        {
            for sender in offloads() {
                for receiver in offloads() {
                    let mut world = World::new(firmware);
                    for (last, style) in [(1, style), (2, other)] {
                        let place = AdapterPlace { vlans: vec![5], ..AdapterPlace::guest(mac(last)) };
                        world.add(place, AdapterConfig { style, ..config() });
                    }
                    // The adapter continues without offloads that the hypervisor refuses.
                    let _ = world.set(0, sender);
                    let _ = world.set(1, receiver);
                    for flow in flows() {
                        for kind in LOADS {
                            for vid in [None, Some(5)] {
                                let case = format!(
                                    "{name}, {style:?} to {other:?}, {sender:?} to {receiver:?}, {kind:?}, {vid:?}, {}",
                                    flow.src
                                );
                                let (pkt, want) = load(&world, &flow, kind);
                                cross(&mut world, pkt, vid, &want, &case);
                                cases += 1;
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(cases, 6 * 4 * 36 * 2 * 5 * 2);
}

fn cross(world: &mut World, pkt: Packet, vid: Option<u16>, want: &[u8], case: &str) {
    let mut pkt = framed(&world.mem, pkt, mac(2), mac(1), None);
    pkt.meta.vlan = vid;
    world.fit_and_send(0, pkt);
    let frames = world.receive_finished(1);
    let mut got = Vec::new();
    for frame in &frames {
        assert_eq!((&frame[..6], &frame[6..12]), (&mac(2).0[..], &mac(1).0[..]), "{case}");
        assert_eq!(frame[12..14] == [0x81, 0], vid.is_some(), "{case}");
        if let Some(vid) = vid {
            assert_eq!(frame[14..16], vid.to_be_bytes(), "{case}");
        }
        assert!(frame.len() <= 1518, "{case}: {}", frame.len());
        got.extend(payload(&world.mem, frame, case));
    }
    assert!(got == want, "{case}: payload of {} bytes in {} frames", got.len(), frames.len());
}

#[test]
fn fat_frame_crosses_uncut_if_both_agree() {
    for flow in flows() {
        for (style, other, crosses) in [
            (Style::New, Style::New, true),
            (Style::New, Style::Old, false),
            (Style::Old, Style::New, true),
            (Style::Old, Style::Old, true),
        ] {
            let mut world = World::new(Firmware::CURRENT);
            for (last, style) in [(1, style), (2, other)] {
                let at = world.add(AdapterPlace::guest(mac(last)), AdapterConfig { style, ..config() });
                world.set(at, TxOffloads::ALL).unwrap();
            }
            let pkt = fat(&world.mem, &flow, 9000, 2, 1);
            world.fit_and_send(0, pkt);
            let packets = world.receive(1);
            // The old style does not support IPv6.
            let is_fat = crosses && (flow.src.is_ipv4() || style == Style::New);
            assert_eq!(packets.len(), if is_fat { 1 } else { 7 }, "{style:?} to {other:?}, {}", flow.src);
            if is_fat {
                let gso = packets[0].meta.cut.gso().unwrap();
                assert_eq!((gso.size, gso.segs), (MSS, 7));
                assert_eq!(world.adapters[1].stats().rx_large_packets, 1);
                assert_eq!(world.adapters[0].stats().tx_large_packets, 1);
            }
        }
    }
}

#[test]
fn old_style_writes_its_marks_and_v4_alone() {
    let mut world = World::new(Firmware::CURRENT);
    for last in 1..=2 {
        world.add(AdapterPlace::guest(mac(last)), AdapterConfig { style: Style::Old, ..config() });
    }
    // Off by default, as the old style requires support by every partition.
    assert!(!world.adapters[0].features().tso4 && !world.adapters[0].features().tso6);
    world.set(0, TxOffloads::ALL).unwrap();
    assert!(world.adapters[0].features().tso4 && !world.adapters[0].features().tso6);
    assert_eq!(world.adapters[0].stats().fw_enabled_large_send, 0);
    let [v4, v6] = flows();
    let pkt = fat(&world.mem, &v4, 9000, 2, 1);
    world.send(0, pkt).unwrap();
    let pkt = fat(&world.mem, &v6, 9000, 2, 1);
    world.send(0, pkt).unwrap();
    let (large, cut) = (world.adapters[0].stats().tx_large_packets, world.adapters[0].counters().tx_cut);
    assert_eq!((large, cut), (1, 1));
    let packets = world.receive(1);
    assert_eq!(packets.len(), 1 + 7);
    let ip = Packet::with_data(&world.mem, &packets[0].to_vec()[14..]).unwrap();
    assert_eq!(wire::checksum::fold(wire::checksum::sum(&ip.head()[..20])), 0xffff, "the mark is gone");
    let frames = finished(&world.mem, packets);
    for frame in frames {
        let mut pkt = Packet::with_data(&world.mem, &frame[14..]).unwrap();
        let info = offload::ip_headers(&world.mem, &mut pkt).unwrap();
        assert!(checksum::verify(&pkt, &info));
    }
}

//! Captures of the wire, and of fat packets in the datapath.

use datapath::{PortConfig, TapPoints, Tapped};
use offload::Features;
use packet::{CopyReason, Packet};
use sim::{Node, PortOptions};
use wire::{EtherType, eth};

use crate::common::*;
use crate::gateways::{TUNNELS, Tunnel, tunnelled};

const BOTH: TapPoints = TapPoints { wire: true, fat: true };

fn seen(node: &mut Node) -> Vec<(u32, &'static str, &'static str, Vec<u8>)> {
    let words = |Tapped { link, fat, outbound, bytes }| {
        (link.0, if fat { "fat" } else { "wire" }, if outbound { "out" } else { "in" }, bytes)
    };
    node.datapath.take_tapped().map(words).collect()
}

#[test]
fn capture_sees_packets_before_and_after_gro_and_gso() {
    let [flow, _] = flows();
    let mut node = router_with(PortOptions::BARE, PortOptions::BARE.features(Features::NONE));
    for link in [INSIDE, OUTSIDE] {
        node.datapath.set_tap(link, BOTH);
    }
    let segments: Vec<_> = (0..3).map(|at| flow.tcp(1 + 1000 * at, 1000)).collect();
    let burst = segments.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
    node.rx(NOW, INSIDE, burst);
    let seen = seen(&mut node);
    let places: Vec<_> = seen.iter().map(|(link, kind, way, bytes)| (*link, *kind, *way, bytes.len())).collect();
    let (one, fat) = (1052, 3052);
    assert_eq!(
        places,
        [
            (1, "wire", "in", one),
            (1, "wire", "in", one),
            (1, "wire", "in", one),
            (1, "fat", "in", fat),
            (2, "fat", "out", fat),
            (2, "wire", "out", one),
            (2, "wire", "out", one),
            (2, "wire", "out", one),
        ]
    );
    for (at, segment) in segments.iter().enumerate() {
        assert!(seen[at].3 == *segment, "segment {at} as it came");
        assert!(seen[5 + at].3 == node.datapath.take_tx(OUTSIDE).unwrap()[at].to_vec(), "segment {at} as it goes");
    }
}

#[test]
fn capture_sees_its_own_link_and_tap_only() {
    let [flow, _] = flows();
    for (link, tap, want) in [
        (INSIDE, TapPoints { wire: true, fat: false }, vec![(1, "wire", "in")]),
        (INSIDE, TapPoints { wire: false, fat: true }, vec![(1, "fat", "in")]),
        (OUTSIDE, TapPoints { wire: true, fat: false }, vec![(2, "wire", "out")]),
        (OUTSIDE, TapPoints { wire: false, fat: true }, vec![(2, "fat", "out")]),
        (OUTSIDE, TapPoints::default(), vec![]),
    ] {
        let mut node = router();
        node.datapath.set_tap(link, tap);
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        let places: Vec<_> = seen(&mut node).into_iter().map(|(link, kind, way, _)| (link, kind, way)).collect();
        assert_eq!(places, want);
        let copied = node.mem.copies().get(CopyReason::Tap).copies;
        assert_eq!(copied, want.len() as u64, "a copy for each captured packet, and none without a capture");
    }
}

#[test]
fn ethernet_capture_sees_wire_frames_and_fat_ip_packets() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    node.datapath.set_tap(INSIDE, BOTH);
    let [flow, _] = flows();
    let packet = flow.udp(10);
    let frame = [eth::EthHeader::new(mac(1), mac(11), EtherType::IPV4).as_bytes(), &packet].concat();
    node.rx_bytes(NOW, INSIDE, &frame);
    let seen = seen(&mut node);
    assert_eq!(seen, [(1, "wire", "in", frame), (1, "fat", "in", packet)]);
}

#[test]
fn capture_behind_tunnel_sees_esp_then_decrypted_packet() {
    let [flow, _] = flows();
    let mut world = tunnelled(TUNNELS[1], 1);
    let fat = flow.fat_tcp(&world.nodes[0].mem, 1, 10 * 1300, 1300);
    world.nodes[0].rx(NOW, INSIDE, vec![fat]);
    let train = world.nodes[0].tx(OUTSIDE);
    let far = &mut world.nodes[1];
    far.datapath.set_tap(OUTSIDE, BOTH);
    far.rx(NOW, OUTSIDE, train);
    let seen: Vec<_> = seen(far).into_iter().map(|(_, kind, _, bytes)| (kind, info_of(&bytes))).collect();
    let (wire, fat) = seen.split_at(10);
    // The train is captured in the datagrams that the wire has.
    assert!(wire.iter().all(|(kind, info)| (*kind, info.protocol) == ("wire", wire::Protocol::UDP)), "{seen:?}");
    assert!(wire.iter().all(|(_, info)| info.total_len <= 1500), "{seen:?}");
    // IP input takes the train, and then the decrypted super-packet, as Linux's taps see both.
    let protocols: Vec<_> = fat.iter().map(|(kind, info)| (*kind, info.protocol)).collect();
    assert_eq!(protocols, [("fat", wire::Protocol::UDP), ("fat", wire::Protocol::TCP)], "{seen:?}");
}

/// Output of a gateway for these frames: number of packets to its guest, the bytes of each segment, and the capture of its outer
/// link.
fn opened(tunnel: Tunnel, gro: bool, tap: TapPoints, frames: &[Vec<u8>]) -> (usize, Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut far = tunnelled(tunnel, 1).nodes.remove(1);
    let config = far.datapath.ports.get(OUTSIDE).unwrap().config.clone();
    far.datapath.set_port(OUTSIDE, PortConfig { gro, esp_gro: gro, ..config });
    far.datapath.set_tap(OUTSIDE, tap);
    let burst = frames.iter().map(|frame| Packet::with_data(&far.mem, frame).unwrap()).collect();
    far.rx(NOW, OUTSIDE, burst);
    let got = far.tx(INSIDE);
    let (packets, mut segments) = (got.len(), Vec::new());
    got.into_iter().for_each(|pkt| offload::fit(&far.mem, &Features::NONE, pkt, 0, &mut segments).unwrap());
    let seen = seen(&mut far);
    assert!(seen.iter().all(|(link, kind, way, _)| (*link, *kind, *way) == (OUTSIDE.0, "wire", "in")), "{tunnel:?}");
    assert_eq!(far.drops(), [], "{tunnel:?}, gro {gro}, {tap:?}");
    (packets, segments.iter().map(Packet::to_vec).collect(), seen.into_iter().map(|(.., bytes)| bytes).collect())
}

#[test]
fn esp_with_and_without_gro_delivers_and_captures_the_same() {
    const WIRE: TapPoints = TapPoints { wire: true, fat: false };
    for tunnel in TUNNELS {
        for flow in flows() {
            let mut near = tunnelled(tunnel, 1).nodes.remove(0);
            let mss = tunnel.mss(&flow);
            let inside =
                [flow.fat_tcp(&near.mem, 1, 30 * usize::from(mss), mss), flow.fat_udp(&near.mem, 10 * 1000, 1000)];
            near.rx(NOW, INSIDE, inside.into());
            let mut frames = Vec::new();
            near.tx(OUTSIDE).into_iter().for_each(|pkt| {
                offload::fit(&near.mem, &Features::NONE, pkt, 0, &mut frames).unwrap();
            });
            let frames: Vec<_> = frames.iter().map(Packet::to_vec).collect();
            let (packets, bytes, seen) = opened(tunnel, false, WIRE, &frames);
            assert_eq!((packets, bytes.len(), frames.len()), (40, 40, 40), "{tunnel:?}");
            assert!(seen == frames, "{tunnel:?}: what came, in order");
            for (gro, tap) in [(false, TapPoints::default()), (true, TapPoints::default()), (true, WIRE)] {
                let (packets, got, seen) = opened(tunnel, gro, tap, &frames);
                assert_eq!(packets, if gro { 2 } else { 40 }, "{tunnel:?} {flow:?}");
                assert!(got == bytes, "{tunnel:?} {flow:?}, gro {gro}, {tap:?}");
                assert!(if tap == WIRE { seen == frames } else { seen.is_empty() }, "{tunnel:?} {flow:?}, gro {gro}");
            }
        }
    }
}

#[test]
fn unread_capture_is_bounded() {
    let [flow, _] = flows();
    let mut node = router();
    node.datapath.set_tap(INSIDE, BOTH);
    node.datapath.set_tap(OUTSIDE, BOTH);
    for _ in 0..2000 {
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
    }
    assert_eq!(node.datapath.take_tapped().count(), 4096);
    assert_eq!(node.datapath.take_tx(OUTSIDE).unwrap().len(), 2000, "the packets themselves are not lost");
}

#[test]
fn esp_gro_and_gro_are_switched_apart() {
    for tunnel in TUNNELS {
        let [flow, _] = flows();
        let mut near = tunnelled(tunnel, 1).nodes.remove(0);
        let mss = tunnel.mss(&flow);
        near.rx(NOW, INSIDE, vec![flow.fat_tcp(&near.mem, 1, 30 * usize::from(mss), mss)]);
        let mut frames = Vec::new();
        near.tx(OUTSIDE).into_iter().for_each(|pkt| {
            offload::fit(&near.mem, &Features::NONE, pkt, 0, &mut frames).unwrap();
        });
        let frames: Vec<_> = frames.iter().map(Packet::to_vec).collect();
        let receive = |gro, esp_gro| {
            let mut far = tunnelled(tunnel, 1).nodes.remove(1);
            let config = far.datapath.ports.get(OUTSIDE).unwrap().config.clone();
            far.datapath.set_port(OUTSIDE, PortConfig { gro, esp_gro, ..config });
            far.rx(NOW, OUTSIDE, frames.iter().map(|frame| Packet::with_data(&far.mem, frame).unwrap()).collect());
            let before_ip = far.datapath.ports.get(OUTSIDE).unwrap().fat.rx_esp_gro_packets;
            let got = far.tx(INSIDE);
            let (packets, mut segments) = (got.len(), Vec::new());
            got.into_iter().for_each(|pkt| offload::fit(&far.mem, &Features::NONE, pkt, 0, &mut segments).unwrap());
            let bytes: Vec<_> = segments.iter().map(Packet::to_vec).collect();
            assert_eq!((far.drops(), bytes.len()), (vec![], 30), "{tunnel:?}, gro {gro}, esp {esp_gro}");
            (packets, before_ip, bytes)
        };
        let (packets, before_ip, bytes) = receive(false, false);
        assert_eq!((packets, before_ip), (30, 0), "{tunnel:?}: one by one, by way of IP input");
        for (gro, esp_gro) in [(true, false), (false, true), (true, true)] {
            let (packets, before_ip, same) = receive(gro, esp_gro);
            assert_eq!(same, bytes, "{tunnel:?}, gro {gro}, esp {esp_gro}");
            assert_eq!(packets, if gro { 1 } else { 30 }, "{tunnel:?}, gro {gro}, esp {esp_gro}");
            // The first packet of a flow takes the slow path, and so does all ESP in UDP.
            let want = if esp_gro && !tunnel.udp { 29 } else { 0 };
            assert_eq!(before_ip, want, "{tunnel:?}, gro {gro}, esp {esp_gro}");
        }
    }
}

//! Fat packets inside tunnels that the node does not terminate (VXLAN, GRE): segmented at input.

use std::time::Duration;

use base::DropReason;
use datapath::TapPoints;
use offload::{Features, gso};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, Pool};
use sim::{Flow, PortOptions, stream_byte};
use wire::{Protocol, Version, eth, udp};

use crate::common::*;
use crate::gateways::{TUNNELS, tunnelled};

/// Payload bytes of each segment, and of all.
const SIZE: usize = 1000;
const LEN: usize = 4500;

const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 5, 0];

/// Flows inside of the tunnel.
fn inner_flows() -> [Flow; 2] {
    [Flow::new("172.31.0.1", "172.31.0.2"), Flow::new("fd00:31::1", "fd00:31::2")]
}

/// An IP packet of `inner` in VXLAN of `outer`, with or without a check of the outer UDP.
fn in_vxlan(outer: &Flow, is_checked: bool, inner: &[u8]) -> Vec<u8> {
    let ethertype: &[u8] = if inner[0] >> 4 == 6 { &[0x86, 0xdd] } else { &[8, 0] };
    let mut bytes = outer.udp_with(&[&VXLAN, &[2; 12][..], ethertype, inner].concat());
    if !is_checked {
        let at = outer.version().header_len() + udp::CHECK_AT;
        bytes[at..at + 2].fill(0);
    }
    bytes
}

/// Marks `bytes` as a fat packet whose inner packet, at `at`, is to be segmented.
fn fat(mem: &Memory, bytes: &[u8], inner: &Flow, at: usize) -> Packet {
    let mut pkt = Packet::with_data(mem, bytes).unwrap();
    let kind = if inner.version() == Version::V4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 };
    let segs = LEN.div_ceil(SIZE) as u16;
    pkt.meta.csum = Csum::Partial { start: (at + inner.version().header_len()) as u16, offset: 16 };
    pkt.meta.cut = Cut::Gso(Gso { kind, size: SIZE as u16, segs, ecn: false, fixed_id: false });
    pkt
}

fn fat_in_vxlan(mem: &Memory, outer: &Flow, is_checked: bool, inner: &Flow) -> Packet {
    let super_packet = inner.fat_tcp(mem, 0, LEN, SIZE as u16).to_vec();
    let bytes = in_vxlan(outer, is_checked, &super_packet);
    fat(mem, &bytes, inner, bytes.len() - super_packet.len())
}

/// The expected datagrams, with a hop limit lowered by `hops`.
fn want(outer: &Flow, is_checked: bool, inner: &Flow, hops: u8) -> Vec<Vec<u8>> {
    let count = |bytes: Vec<u8>, at: usize| match bytes[0] >> 4 {
        4 => edit_v4(&bytes, |header| header.set_id(header.id() + at as u16)),
        _ => bytes,
    };
    let segment = |at: usize| count(inner.tcp((at * SIZE) as u32, SIZE.min(LEN - at * SIZE)), at);
    let outer = Flow { ttl: outer.ttl - hops, ..*outer };
    (0..LEN.div_ceil(SIZE)).map(|at| count(in_vxlan(&outer, is_checked, &segment(at)), at)).collect()
}

/// Packets as the wire has them: GRO makes a train of datagrams with a check.
fn cut(mem: &Memory, packets: Vec<Packet>) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for pkt in packets {
        if pkt.meta.cut.gso().is_some() {
            gso::segment(mem, &Features::NONE, pkt, 0, &mut out).unwrap();
        } else {
            out.push(pkt);
        }
    }
    out.iter().map(Packet::to_vec).collect()
}

#[test]
fn vxlan_super_packet_is_forwarded_in_its_segments() {
    for (outer, inner) in flows().into_iter().flat_map(|outer| inner_flows().map(|inner| (outer, inner))) {
        for is_checked in [false, true] {
            let mut node = router();
            let pkt = fat_in_vxlan(&node.mem, &outer, is_checked, &inner);
            node.rx(NOW, INSIDE, vec![pkt]);
            let out = node.tx(OUTSIDE);
            let got = cut(&node.mem, out);
            assert_eq!(got, want(&outer, is_checked, &inner, 1), "{outer:?} {inner:?} {is_checked}");
            assert_eq!(node.drops(), []);
        }
    }
}

#[test]
fn vxlan_super_packet_goes_through_an_esp_tunnel() {
    for tunnel in TUNNELS {
        for (outer, inner) in flows().into_iter().zip(inner_flows()) {
            for is_checked in [false, true] {
                let mut world = tunnelled(tunnel, 1);
                let pkt = fat_in_vxlan(&world.hosts[0].mem, &outer, is_checked, &inner);
                world.hosts[0].send(pkt);
                world.run(Duration::from_secs(1));
                let received = world.hosts[1].take();
                let got = cut(&world.hosts[1].mem, received);
                assert_eq!(got, want(&outer, is_checked, &inner, 2), "{tunnel:?} {outer:?} {is_checked}");
                assert_eq!((world.nodes[0].drops(), world.nodes[1].drops()), (vec![], vec![]), "{tunnel:?}");
            }
        }
    }
}

#[test]
fn vxlan_segments_beyond_the_mtu_are_answered_one_by_one() {
    let ([outer, _], [inner, _]) = (flows(), inner_flows());
    let mut node = router_with(PortOptions::BARE.mtu(9000), PortOptions::BARE.mtu(1000));
    let pkt = fat_in_vxlan(&node.mem, &outer, false, &inner);
    node.rx(NOW, INSIDE, vec![pkt]);
    // The last one is half as long.
    let out = node.tx(OUTSIDE);
    assert_eq!(cut(&node.mem, out), want(&outer, false, &inner, 1)[4..]);
    assert_eq!(node.drops(), [(1, DropReason::PacketTooBig, 4)]);
    assert_eq!(told(&node.tx(INSIDE)[0]).message, Message::V4(wire::icmp::IcmpMessage::FragNeeded { mtu: 1000 }));
}

#[test]
fn gre_super_packet_with_sequence_numbers_is_dropped_by_name() {
    let ([outer, _], [inner, _]) = (flows(), inner_flows());
    let cases: [(&[u8], bool); 4] = [
        (&[0, 0, 8, 0], true),
        (&[0x20, 0, 8, 0, 0, 0, 0, 1], true),
        (&[0x10, 0, 8, 0, 0, 0, 0, 1], false),
        (&[0x80, 0, 8, 0, 0, 0, 0, 0], false),
    ];
    for (gre, passes) in cases {
        let mut node = router();
        let super_packet = inner.fat_tcp(&node.mem, 0, LEN, SIZE as u16).to_vec();
        let bytes = outer.raw(Protocol::GRE, &[gre, &super_packet].concat());
        let pkt = fat(&node.mem, &bytes, &inner, bytes.len() - super_packet.len());
        node.rx(NOW, INSIDE, vec![pkt]);
        assert_eq!(node.tx(OUTSIDE).len(), if passes { LEN.div_ceil(SIZE) } else { 0 }, "{gre:?}");
        let drops = if passes { vec![] } else { vec![(1, DropReason::GsoEncapsulation, 1)] };
        assert_eq!(node.drops(), drops, "{gre:?}");
    }
}

#[test]
fn burst_of_many_tunnel_segments_is_passed_on_as_it_is_cut() {
    let ([outer, _], [inner, _]) = (flows(), inner_flows());
    const SEGMENTS: usize = 2000;
    let mut node = router();
    // Memory for the packets queued at a link, and for the segments of one packet, but not of the burst.
    node.mem = Memory::new(Pool::bounded(Memory::SMALL, 4 * SEGMENTS), Pool::heap(Memory::LARGE));
    let made = Memory::heap();
    let super_packet = inner.fat_tcp(&made, 0, SEGMENTS, SIZE as u16).to_vec();
    let bytes = in_vxlan(&outer, false, &super_packet);
    let burst = (0..8).map(|_| {
        let mut pkt = fat(&made, &bytes, &inner, bytes.len() - super_packet.len());
        let kind = GsoKind::TcpV4;
        pkt.meta.cut = Cut::Gso(Gso { kind, size: 1, segs: SEGMENTS as u16, ecn: false, fixed_id: false });
        pkt
    });
    node.rx(NOW, INSIDE, burst.collect());
    let sent = node.tx(OUTSIDE).len();
    assert!(sent >= SEGMENTS, "{sent}");
    assert_eq!(node.drops(), [(1, DropReason::TxQueueFull, (8 * SEGMENTS - sent) as u64)]);
}

#[test]
fn capture_of_vxlan_super_packet_shows_its_segments() {
    let ([outer, _], [inner, _]) = (flows(), inner_flows());
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    node.datapath.set_tap(INSIDE, TapPoints { wire: true, fat: true });
    let mut pkt = fat_in_vxlan(&node.mem, &outer, false, &inner);
    let header = eth::EthHeader::new(mac(1), mac(9), wire::EtherType::IPV4);
    let mem = Memory::heap();
    pkt.push(&mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    node.rx(NOW, INSIDE, vec![pkt]);
    let seen: Vec<_> = node.datapath.take_tapped().map(|tapped| (tapped.fat, tapped.bytes)).collect();
    let want = want(&outer, false, &inner, 0);
    let on_wire: Vec<_> = want.iter().map(|bytes| (false, [header.as_bytes(), bytes].concat())).collect();
    assert_eq!(seen[..5], on_wire);
    assert_eq!(seen[5..], want.into_iter().map(|bytes| (true, bytes)).collect::<Vec<_>>());
    assert_eq!(seen[0].1.last(), Some(&stream_byte(SIZE as u32 - 1)));
}

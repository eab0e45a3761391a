//! Ethernet headers of received frames: groups, and tags without a VLAN.

use base::{DropReason, Mib, PortId};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use sim::{Flow, Node, PortOptions};
use wire::{EtherType, MacAddr, Protocol, Version, eth, tcp, udp, vlan};

use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;

const ALL_NODES: MacAddr = MacAddr([0x33, 0x33, 0, 0, 0, 1]);

/// Tag control information of priority 5 and this VLAN.
fn tci(vid: u16) -> vlan::Tci {
    vlan::Tci::new(vid, 5).unwrap()
}

/// A frame to `to` around an IP packet, behind tags of these types and VLANs.
fn frame(to: MacAddr, tags: &[(EtherType, u16)], ip: &[u8]) -> Vec<u8> {
    let ethertype = if Version::of(ip) == Ok(Version::V4) { EtherType::IPV4 } else { EtherType::IPV6 };
    let types: Vec<EtherType> = tags.iter().map(|tag| tag.0).chain([ethertype]).collect();
    let mut bytes = eth::EthHeader::new(to, mac(9), types[0]).as_bytes().to_vec();
    for (tag, next) in tags.iter().zip(&types[1..]) {
        bytes.extend_from_slice(vlan::VlanHeader::new(tci(tag.1), *next).as_bytes());
    }
    [bytes, ip.to_vec()].concat()
}

/// The router with an Ethernet inner link, and neighbour entries of the hosts there.
fn ethernet_router() -> Node {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    for host in flows().map(|flow| flow.src) {
        let Node { datapath, mem, .. } = &mut node;
        datapath.set_neighbour(NOW, mem, INSIDE, host, fib::Known::Permanent(mac(9)), 0);
    }
    node
}

/// Frames that the node sends by either link.
fn sent(node: &mut Node) -> usize {
    node.tx(INSIDE).len() + node.tx(OUTSIDE).len()
}

#[test]
fn group_frame_around_unicast_packet_is_not_answered() {
    let to_us = [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")];
    let lost = [Flow::new("10.1.0.1", "198.51.100.9"), Flow::new("fd00:1::1", "fd00:9::1")];
    for (at, flow) in flows().into_iter().enumerate() {
        let ended = Flow { ttl: 1, ..flow };
        let cases = [
            ("forwarding", flow.udp(10), DropReason::EthNotForUs),
            ("hop limit", ended.udp(10), DropReason::EthNotForUs),
            ("too big", flow.udp(1600), DropReason::EthNotForUs),
            ("no route", lost[at].udp(10), DropReason::NoRoute),
            ("UDP", to_us[at].udp(10), DropReason::UdpNoPort),
            ("TCP", to_us[at].tcp(1, 0), DropReason::TcpNoPort),
            ("protocol", to_us[at].raw(Protocol(253), &[0; 8]), DropReason::ProtocolUnknown),
        ];
        for (name, bytes, reason) in cases {
            for to in [MacAddr::BROADCAST, MacAddr::multicast_v4([224, 0, 0, 5].into()), ALL_NODES] {
                let mut node = ethernet_router();
                node.rx_bytes(NOW, INSIDE, &frame(to, &[], &bytes));
                assert_eq!((node.drops(), sent(&mut node)), (vec![(1, reason, 1)], 0), "{name} {to}");
                assert_eq!(node.datapath.counters.get(Mib::TcpInSegs), 0, "{name} {to}");
            }
            let mut node = ethernet_router();
            node.rx_bytes(NOW, INSIDE, &frame(mac(1), &[], &bytes));
            assert_eq!(sent(&mut node), 1, "{name} to the node alone");
        }
    }
}

#[test]
fn gro_does_not_merge_group_and_unicast_frames() {
    let [flow, _] = flows();
    let mut node = ethernet_router();
    let burst = [mac(1), mac(1), MacAddr::BROADCAST, mac(1)].into_iter().enumerate();
    let burst = burst
        .map(|(at, to)| Packet::with_data(&node.mem, &frame(to, &[], &flow.tcp(1 + 1000 * at as u32, 1000))).unwrap());
    let burst = burst.collect();
    node.rx(NOW, INSIDE, burst);
    assert_eq!(node.drops(), [(1, DropReason::EthNotForUs, 1)]);
    let lens: Vec<usize> = node.tx(OUTSIDE).iter().map(|pkt| pkt.len() - flow.tcp_headers()).collect();
    assert_eq!(lens, [2000, 1000]);
}

#[test]
fn group_frames_with_fragments_are_not_answered() {
    for (src, dst) in [("10.1.0.1", "10.1.0.254"), ("fd00:1::1", "fd00:1::254")] {
        for (to, answers) in [(MacAddr::BROADCAST, 0), (mac(1), 1)] {
            let bytes = Flow { dont_fragment: false, ..Flow::new(src, dst) }.udp(3000);
            let mut node = ethernet_router();
            let mem = Memory::heap();
            for fragment in fragments(&mem, &bytes, 1500) {
                node.rx_bytes(NOW, INSIDE, &frame(to, &[], &fragment.to_vec()));
            }
            assert_eq!(node.drops(), [(1, DropReason::UdpNoPort, 1)], "{src} {to}");
            assert_eq!(sent(&mut node), answers, "{src} {to}");
        }
    }
}

/// A gateway with an Ethernet outer link, and `packets` as encrypted by the other gateway.
fn opener(tunnel: Tunnel, packets: &[Vec<u8>]) -> (Node, Vec<Vec<u8>>) {
    let mut world = tunnelled(tunnel, 1);
    packets.iter().for_each(|bytes| world.nodes[0].rx_bytes(NOW, INSIDE, bytes));
    let sealed = world.nodes[0].tx(OUTSIDE).iter().map(Packet::to_vec).collect();
    let mut node = world.nodes.swap_remove(1);
    node.port(OUTSIDE.0, PortOptions::ethernet(2), &[]);
    (node, sealed)
}

#[test]
fn group_frame_around_esp_is_remembered_inside() {
    for tunnel in TUNNELS {
        for (at, flow) in flows().into_iter().enumerate() {
            let to_us = [Flow::new("10.1.0.1", "10.2.0.254"), Flow::new("fd00:1::1", "fd00:2::254")][at];
            let (mut node, sealed) = opener(tunnel, &[flow.udp(10), to_us.udp(10), to_us.tcp(1, 0)]);
            for bytes in &sealed {
                node.rx_bytes(NOW, OUTSIDE, &frame(MacAddr::BROADCAST, &[], bytes));
            }
            let want = [DropReason::EthNotForUs, DropReason::UdpNoPort, DropReason::TcpNoPort];
            assert_eq!(node.drops(), want.map(|reason| (2, reason, 1)), "{tunnel:?}");
            assert_eq!(sent(&mut node), 0, "{tunnel:?}");
        }
    }
}

/// A packet to a group, forged or not, does not change how packets behind it are classified.
#[test]
fn esp_after_a_group_frame_of_its_sa_is_forwarded() {
    for tunnel in TUNNELS {
        let [flow, _] = flows();
        let packets: Vec<_> = (0..6).map(|at| flow.tcp(1 + 1000 * at, 1000)).collect();
        let (mut node, sealed) = opener(tunnel, &packets);
        let to = [MacAddr::BROADCAST, mac(2), mac(2), MacAddr::BROADCAST, mac(2), mac(2)];
        let burst = sealed.iter().zip(to).map(|(bytes, to)| {
            let mut bytes = frame(to, &[], bytes);
            if to == MacAddr::BROADCAST {
                *bytes.last_mut().unwrap() ^= 1;
            }
            Packet::with_data(&node.mem, &bytes).unwrap()
        });
        let burst = burst.collect();
        node.rx(NOW, OUTSIDE, burst);
        assert_eq!(node.drops(), [(2, DropReason::EspIcv, 2)], "{tunnel:?}");
        let mut received = Received::default();
        node.tx(INSIDE).iter().for_each(|pkt| received.take(&Flow { ttl: 63, ..flow }, pkt));
        assert_eq!(received.bytes, 4000, "{tunnel:?}");
    }
}

#[test]
fn priority_tag_counts_as_no_tag() {
    use EtherType as Type;
    let [flow, _] = flows();
    /// Tag in metadata, tags in the bytes, and whether the frame passes.
    type Case = (Option<u16>, &'static [(Type, u16)], bool);
    let cases: [Case; 12] = [
        (None, &[(Type::VLAN, 0)], true),
        (None, &[(Type::SERVICE_VLAN, 0)], true),
        (None, &[(Type::VLAN, 0), (Type::VLAN, 0)], true),
        (None, &[(Type::SERVICE_VLAN, 0), (Type::VLAN, 0), (Type::VLAN, 0)], true),
        (None, &[(Type::VLAN, 5)], false),
        (None, &[(Type::SERVICE_VLAN, 5)], false),
        (None, &[(Type::VLAN, 0), (Type::VLAN, 7)], false),
        (None, &[(Type::SERVICE_VLAN, 5), (Type::VLAN, 0)], false),
        (Some(0), &[], true),
        (Some(0), &[(Type::VLAN, 0)], true),
        (Some(0), &[(Type::VLAN, 7)], false),
        (Some(7), &[], false),
    ];
    for (beside, tags, passes) in cases {
        let mut node = ethernet_router();
        let mut pkt = Packet::with_data(&node.mem, &frame(mac(1), tags, &flow.udp(100))).unwrap();
        pkt.meta.vlan = beside.map(|vid| tci(vid).0);
        node.rx(NOW, INSIDE, vec![pkt]);
        let sent = node.tx(OUTSIDE);
        assert_eq!(sent.len(), usize::from(passes), "{beside:?} {tags:?}");
        if passes {
            assert_eq!(sent[0].to_vec(), Flow { ttl: 63, ..flow }.udp(100), "{beside:?} {tags:?}");
            assert_eq!(sent[0].meta.vlan, None, "{beside:?} {tags:?}");
        } else {
            assert_eq!(node.drops(), [(1, DropReason::EthNotForUs, 1)], "{beside:?} {tags:?}");
        }
    }
    let mut node = ethernet_router();
    node.rx_bytes(NOW, INSIDE, &frame(mac(1), &[(Type::VLAN, 0)], &[0x45])[..17]);
    assert_eq!(node.drops(), [(1, DropReason::EthTruncated, 1)]);
}

#[test]
fn offloads_behind_a_priority_tag_stay_right() {
    let tags = [(EtherType::VLAN, 0)];
    let front = eth::EthHeader::LEN + vlan::VlanHeader::LEN;
    for flow in flows() {
        let (v4, l4) = (flow.version() == Version::V4, flow.version().header_len());
        let tcp_check = tcp::CHECK_AT as u16;
        let kinds = [if v4 { GsoKind::TcpV4 } else { GsoKind::TcpV6 }, GsoKind::Udp];
        for (kind, check_at) in kinds.into_iter().zip([tcp_check, udp::CHECK_AT as u16]) {
            let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE.features(offload::Features::NONE));
            let bare = if kind == GsoKind::Udp {
                flow.fat_udp(&node.mem, 5000, 1000)
            } else {
                flow.fat_tcp(&node.mem, 1, 5000, 1000)
            };
            let mut pkt = Packet::with_data(&node.mem, &frame(mac(1), &tags, &bare.to_vec())).unwrap();
            pkt.meta.csum = Csum::Partial { start: (front + l4) as u16, offset: check_at };
            pkt.meta.cut = Cut::Gso(Gso { kind, size: 1000, segs: 5, ecn: false, fixed_id: false });
            node.rx(NOW, INSIDE, vec![pkt]);
            let sent = node.tx(OUTSIDE);
            assert_eq!((sent.len(), node.drops()), (5, vec![]), "{kind:?}");
            for pkt in &sent {
                assert!(offload::checksum::verify(pkt, &info(pkt)), "{kind:?}");
            }
        }
    }
}

#[test]
fn gro_merges_tagged_and_untagged_segments() {
    let [flow, _] = flows();
    let mut node = ethernet_router();
    let burst = [&[][..], &[(EtherType::VLAN, 0)], &[]].into_iter().enumerate();
    let burst = burst.map(|(at, tags)| frame(mac(1), tags, &flow.tcp(1 + 1000 * at as u32, 1000))).collect::<Vec<_>>();
    let burst = burst.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
    node.rx(NOW, PortId(1), burst);
    assert_eq!(only(node.tx(OUTSIDE)).meta.cut.segs(), 3);
}

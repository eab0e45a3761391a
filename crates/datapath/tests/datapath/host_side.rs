//! Host side: packets for sockets are delivered by the device of their link, and packets of sockets are output of the
//! node.

use base::{DropReason, Mib, PortId};
use datapath::{PortConfig, host_port};
use fib::Known;
use offload::Features;
use packet::{Csum, Cut, GsoKind, Packet};
use sim::{AddAddress as _, Flow, Node, PortOptions};
use wire::eth::{self, EtherType};
use wire::{MacAddr, Protocol, icmp, icmpv6, ipv4};
use xfrm::{Action, Dir, PolicyConfig, Selector};

use crate::common::*;
use crate::fragments::{fragments, whole};
use crate::path_mtu::too_big;

/// Adds devices of the host side to both links of [`router`].
pub(crate) fn add_devices(node: &mut Node) {
    add_devices_to(node, &[INSIDE, OUTSIDE]);
}

pub(crate) fn add_devices_to(node: &mut Node, links: &[PortId]) {
    for &link in links {
        let mac = node.datapath.ports.get(link).unwrap().config.mac;
        let config = PortConfig {
            name: format!("host{}", link.0),
            mac,
            mtu: 65_521,
            features: Features::ALL,
            gro: false,
            esp_gro: false,
        };
        node.datapath.set_host_port(link, Some(config));
    }
}

fn router_with_host_side() -> Node {
    let mut node = router();
    add_devices(&mut node);
    node
}

/// Packets queued for the device of a link.
pub(crate) fn up(node: &mut Node, link: PortId) -> Vec<Packet> {
    node.datapath.take_tx(host_port(link)).map(std::mem::take).unwrap_or_default()
}

pub(crate) fn down(node: &mut Node, link: PortId, pkt: Packet) {
    node.datapath.handle_rx(NOW, &node.mem, host_port(link), &mut vec![pkt]);
}

pub(crate) fn down_bytes(node: &mut Node, link: PortId, bytes: &[u8]) {
    let pkt = Packet::with_data(&node.mem, bytes).unwrap();
    down(node, link, pkt);
}

/// Flows from a host inside to the node.
fn to_us() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")]
}

/// Flows from the node to a host outside.
fn from_us() -> [Flow; 2] {
    [Flow::new("10.2.0.254", "10.2.0.1"), Flow::new("fd00:2::254", "fd00:2::1")]
}

fn frame(dst: MacAddr, src: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(dst, src, ethertype).as_bytes(), payload].concat()
}

#[test]
fn local_packet_is_delivered_without_a_reply() {
    for flow in to_us() {
        for bytes in [flow.udp(100), flow.tcp(7, 10), flow.ping(1, 56), flow.raw(Protocol(47), &[0; 8])] {
            let mut node = router_with_host_side();
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert_eq!(only(up(&mut node, INSIDE)).to_vec(), bytes);
            assert!(up(&mut node, OUTSIDE).is_empty() && node.tx(INSIDE).is_empty());
            assert_eq!(node.drops(), []);
            // Without a device the node answers again.
            node.datapath.set_host_port(INSIDE, None);
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert_eq!(node.tx(INSIDE).len(), 1, "{flow:?}");
        }
    }
}

#[test]
fn fragments_go_up_as_one_packet() {
    for flow in to_us() {
        let mut node = router_with_host_side();
        let whole = flow.udp(20_000);
        let mut fragments = Vec::new();
        let pkt = Packet::with_data(&node.mem, &whole).unwrap();
        match flow.version() {
            wire::Version::V4 => reassembly::fragment(&node.mem, pkt, 1500, &mut fragments).unwrap(),
            wire::Version::V6 => reassembly::fragment_v6(&node.mem, pkt, 1500, 9, &mut fragments).unwrap(),
        }
        assert!(fragments.len() > 10);
        node.rx(NOW, INSIDE, fragments);
        let got = only(up(&mut node, INSIDE)).to_vec();
        let at = flow.version().header_len();
        assert!(got.len() == whole.len() && got[at..] == whole[at..], "{flow:?}");
    }
}

#[test]
fn ethernet_up_is_framed_for_the_device() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let [flow, _] = to_us();
    node.rx_bytes(NOW, INSIDE, &frame(mac(1), mac(9), EtherType::IPV4, &flow.udp(10)));
    let got = only(up(&mut node, INSIDE)).to_vec();
    let header = eth::EthHeader::ref_from(&got).unwrap();
    assert_eq!((header.dst(), header.ethertype()), (mac(1), EtherType::IPV4));
    assert_ne!(header.src(), mac(1), "Linux drops frames from its own address");
    assert_eq!(got[eth::EthHeader::LEN..], flow.udp(10));
    // A group keeps its address.
    let group = Flow::new("10.1.0.1", "224.0.0.5");
    let to = MacAddr([1, 0, 0x5e, 0, 0, 5]);
    node.rx_bytes(NOW, INSIDE, &frame(to, mac(9), EtherType::IPV4, &group.raw(Protocol(89), &[0; 24])));
    let got = only(up(&mut node, INSIDE)).to_vec();
    assert_eq!(eth::EthHeader::ref_from(&got).unwrap().dst(), to);
}

#[test]
fn arp_goes_up_as_a_copy_and_is_answered() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(mac(9).0);
    arp.extend([10, 1, 0, 1, 0, 0, 0, 0, 0, 0, 10, 1, 0, 254]);
    let request = frame(MacAddr::BROADCAST, mac(9), EtherType::ARP, &arp);
    node.rx_bytes(NOW, INSIDE, &request);
    assert_eq!(only(up(&mut node, INSIDE)).to_vec(), request);
    assert_eq!(node.tx(INSIDE).len(), 1, "the node answers");
}

#[test]
fn router_advertisement_goes_up_as_a_copy() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let flow = Flow::new("fe80::9", "ff02::1");
    let mut message = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    let addresses = ["fe80::9", "ff02::1"].map(|addr| addr.parse().unwrap());
    icmpv6::fill_check(&mut message, addresses[0], addresses[1]).unwrap();
    let mut packet = flow.raw(Protocol::ICMPV6, &message);
    wire::ipv6::Ipv6Header::mut_from(&mut packet).unwrap().set_hop_limit(255);
    let all_nodes = MacAddr([0x33, 0x33, 0, 0, 0, 1]);
    node.rx_bytes(NOW, INSIDE, &frame(all_nodes, mac(9), EtherType::IPV6, &packet));
    let got = only(up(&mut node, INSIDE)).to_vec();
    assert_eq!(eth::EthHeader::ref_from(&got).unwrap().dst(), all_nodes);
    assert_eq!(got[eth::EthHeader::LEN..], packet);
}

#[test]
fn dhcp_answer_goes_up_while_link_has_no_address() {
    let mut node = Node::new();
    node.port(INSIDE.0, PortOptions::ethernet(1), &[]);
    node.port(OUTSIDE.0, PortOptions::ethernet(2), &["10.2.0.254/24"]);
    add_devices(&mut node);
    let answer = Flow { sport: 67, dport: 68, ..Flow::new("10.1.0.1", "10.1.0.77") }.udp(300);
    let framed = frame(mac(1), mac(9), EtherType::IPV4, &answer);
    node.rx_bytes(NOW, INSIDE, &framed);
    assert_eq!(only(up(&mut node, INSIDE)).to_vec()[eth::EthHeader::LEN..], answer);
    // A packet that a route forwards or drops is not delivered to the host side.
    let behind = Flow { sport: 67, dport: 68, ..Flow::new("10.1.0.1", "10.2.0.7") }.udp(300);
    node.rx_bytes(NOW, INSIDE, &frame(mac(1), mac(9), EtherType::IPV4, &behind));
    assert!(up(&mut node, INSIDE).is_empty());
    node.route_of("10.1.0.77/32", fib::RouteKind::Prohibit);
    node.rx_bytes(NOW, INSIDE, &framed);
    assert!(up(&mut node, INSIDE).is_empty());
    // Nor is a packet to another address, on a link with an address.
    node.datapath.fib.add_address(INSIDE, "192.0.2.1/24".parse().unwrap());
    node.rx_bytes(
        NOW,
        INSIDE,
        &frame(
            mac(1),
            mac(9),
            EtherType::IPV4,
            &Flow { sport: 67, dport: 68, ..Flow::new("10.1.0.1", "10.1.0.78") }.udp(300),
        ),
    );
    assert!(up(&mut node, INSIDE).is_empty());
}

#[test]
fn tagged_ip_does_not_bypass_policies() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let any = "10.0.0.0/8".parse().unwrap();
    let policy = PolicyConfig { action: Action::Block, ..PolicyConfig::new(Dir::In, Selector::new(any, any)) };
    node.datapath.ipsec.add_policy(policy).unwrap();
    let [flow, _] = to_us();
    let tag = |kind: u16, inner: &[u8]| [&kind.to_be_bytes()[..], &[0, 0], inner].concat();
    let ip = [&0x0800_u16.to_be_bytes()[..], &flow.tcp(1, 10)].concat();
    for inner in [tag(0x8100, &ip), tag(0x8100, &tag(0x8100, &ip)), tag(0x88a8, &ip), ip.clone()] {
        let bytes = [&mac(1).0[..], &mac(9).0, &inner].concat();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert!(up(&mut node, INSIDE).is_empty(), "{bytes:02x?}");
    }
}

#[test]
fn frame_without_ip_goes_up_and_is_no_drop() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let lldp = frame(MacAddr([1, 0x80, 0xc2, 0, 0, 0x0e]), mac(9), EtherType(0x88cc), &[0; 40]);
    node.rx_bytes(NOW, INSIDE, &lldp);
    assert_eq!(only(up(&mut node, INSIDE)).to_vec(), lldp);
    assert_eq!(node.drops(), []);
}

#[test]
fn packets_waiting_for_device_that_goes_are_counted() {
    let [flow, _] = to_us();
    let mut node = router_with_host_side();
    node.rx_bytes(NOW, INSIDE, &flow.udp(10));
    node.datapath.set_host_port(INSIDE, None);
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::LinkDown, 1)]);
}

#[test]
fn socket_without_route_gets_an_error() {
    let mut node = router_with_host_side();
    down_bytes(&mut node, INSIDE, &Flow::new("10.1.0.254", "203.0.113.1").udp(10));
    let ParsedIcmp { message, .. } = parse_icmp(&only(up(&mut node, INSIDE)));
    assert!(matches!(message, Message::V4(icmp::IcmpMessage::Unreachable(_))), "{message:?}");
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
}

#[test]
fn socket_packet_is_output_by_the_nodes_routes() {
    for flow in from_us() {
        let mut node = router_with_host_side();
        // The node's routes apply, for packets from any device.
        down_bytes(&mut node, INSIDE, &flow.udp(100));
        let sent = only(node.tx(OUTSIDE)).to_vec();
        assert_eq!(sent, flow.udp(100), "neither its TTL nor anything else is changed");
        let requests = if flow.version() == wire::Version::V4 { Mib::IpOutRequests } else { Mib::Ip6OutRequests };
        assert_eq!(node.datapath.counters.get(requests), 1);
        assert_eq!(node.drops(), []);
    }
}

#[test]
fn long_datagram_is_fragmented_if_it_may_be() {
    for flow in from_us() {
        let mut node = router_with_host_side();
        let mut bytes = flow.udp(65_000);
        if flow.version() == wire::Version::V4 {
            bytes = edit_v4(&bytes, |header| header.set_dont_fragment(false));
        }
        down_bytes(&mut node, INSIDE, &bytes);
        let sent = node.tx(OUTSIDE);
        assert!(sent.len() > 40 && sent.iter().all(|pkt| pkt.len() <= 1500), "{} packets", sent.len());
        assert_eq!(node.drops(), []);
    }
}

#[test]
fn first_long_datagram_waits_whole_for_its_neighbour() {
    for flow in from_us() {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
        add_devices(&mut node);
        let mut bytes = flow.udp(65_400);
        if flow.version() == wire::Version::V4 {
            bytes = edit_v4(&bytes, |header| header.set_dont_fragment(false));
        }
        let ethertype = if flow.version() == wire::Version::V4 { EtherType::IPV4 } else { EtherType::IPV6 };
        down_bytes(&mut node, OUTSIDE, &frame(mac(2), mac(2), ethertype, &bytes));
        assert_eq!(node.tx(OUTSIDE).len(), 1, "the solicitation");
        let sim::Node { datapath, mem, .. } = &mut node;
        datapath.set_neighbour(NOW, mem, OUTSIDE, flow.dst, fib::Known::Reachable(mac(9)), 0);
        let sent = node.tx(OUTSIDE);
        assert!(sent.len() > 44, "{} fragments", sent.len());
        assert_eq!(node.drops(), []);
    }
}

#[test]
fn datagram_cut_for_the_device_is_fragmented_for_the_path() {
    for flow in from_us() {
        let cut = |node: &Node, bytes: &[u8]| {
            let mut fragments = Vec::new();
            let pkt = Packet::with_data(&node.mem, bytes).unwrap();
            match flow.version() {
                wire::Version::V4 => reassembly::fragment(&node.mem, pkt, 3000, &mut fragments).unwrap(),
                wire::Version::V6 => reassembly::fragment_v6(&node.mem, pkt, 3000, 7, &mut fragments).unwrap(),
            }
            fragments
        };
        let mut bytes = flow.udp(5000);
        if flow.version() == wire::Version::V4 {
            bytes = edit_v4(&bytes, |header| header.set_dont_fragment(false));
        }
        let mut node = router_with_host_side();
        down_bytes(&mut node, INSIDE, &bytes);
        let whole: Vec<_> =
            node.tx(OUTSIDE).iter().map(|pkt| (pkt.len(), info(pkt).fragment.unwrap().offset)).collect();
        let mut fragments = cut(&node, &bytes);
        assert_eq!(fragments.len(), 2);
        fragments.reverse();
        for fragment in fragments {
            down(&mut node, INSIDE, fragment);
        }
        let sent = node.tx(OUTSIDE);
        let of_sent: Vec<_> = sent.iter().map(|pkt| (pkt.len(), info(pkt).fragment.unwrap().offset)).collect();
        assert_eq!(of_sent, whole);
        let id = info(&sent[0]).fragment.unwrap().id;
        assert!(sent.iter().all(|pkt| info(pkt).fragment.unwrap().id == id));
        assert_eq!(node.drops(), []);
        // A datagram that is never whole is not sent.
        let fragment = cut(&node, &bytes).remove(0);
        down(&mut node, INSIDE, fragment);
        assert!(node.tx(OUTSIDE).is_empty());
    }
}

#[test]
fn datagram_cut_for_its_path_keeps_the_fragment_size() {
    // The kernel knows of a narrower path, or a program has set a limit. No path of IPv6 is narrower than 1280 bytes.
    for (cut, [v4, v6]) in [(1300, [1300, 1300]), (600, [600, 1280])] {
        for (flow, want) in from_us().into_iter().zip([v4, v6]) {
            let mut node = router_with_host_side();
            let mut bytes = flow.udp(1400);
            if flow.version() == wire::Version::V4 {
                bytes = edit_v4(&bytes, |header| header.set_dont_fragment(false));
            }
            let pieces = fragments(&node.mem, &bytes, cut);
            for fragment in pieces {
                down(&mut node, INSIDE, fragment);
            }
            let sent = node.tx(OUTSIDE);
            let longest = sent.iter().map(Packet::len).max().unwrap();
            assert!(longest <= want && longest > want - 8, "{flow:?}: {longest} of {want}");
            let at = flow.version().header_len();
            assert_eq!((&whole(sent, 1500)[at..], node.drops()), (&bytes[at..], vec![]));
            // The next datagram is whole, and leaves so.
            down_bytes(&mut node, INSIDE, &bytes);
            assert_eq!(node.tx(OUTSIDE).len(), 1);
        }
    }
}

#[test]
fn packet_too_big_about_socket_udp_is_learnt() {
    for flow in from_us() {
        let is_v6 = flow.version() == wire::Version::V6;
        let mut bytes = flow.udp(1400);
        if !is_v6 {
            bytes = edit_v4(&bytes, |header| header.set_dont_fragment(true));
        }
        let src = flow.src.to_string();
        let message = |bytes: &[u8]| too_big(is_v6, 1300, &src, &bytes[..100]);
        let mut node = router_with_host_side();
        // No socket has sent this one.
        node.rx_bytes(NOW, OUTSIDE, &message(&bytes));
        for told in [false, true] {
            if told {
                node.rx_bytes(NOW, OUTSIDE, &message(&Flow { sport: 9, ..flow }.udp(1400)));
                node.rx_bytes(NOW, OUTSIDE, &message(&bytes));
            }
            // A socket is told in any case.
            assert_eq!(up(&mut node, OUTSIDE).len(), if told { 2 } else { 1 });
            down_bytes(&mut node, OUTSIDE, &bytes);
            let sent = node.tx(OUTSIDE);
            assert!(sent.iter().all(|pkt| pkt.len() <= if told { 1300 } else { 1500 }), "{flow:?}");
            assert_eq!(
                sent.len(),
                if !told {
                    1
                } else if is_v6 {
                    2
                } else {
                    0
                }
            );
        }
        let errors = up(&mut node, OUTSIDE);
        if is_v6 {
            assert!(errors.is_empty());
        } else {
            let ParsedIcmp { message, .. } = parse_icmp(&only(errors));
            assert_eq!(message, Message::V4(icmp::IcmpMessage::FragNeeded { mtu: 1300 }));
        }
    }
}

#[test]
fn path_beyond_a_tunnel_narrows_packets_of_sockets() {
    let mut node = router_with_host_side();
    node.route("10.3.0.0/16", Some("10.2.0.1"), OUTSIDE);
    let sas = [sim::esp("10.2.0.254", "10.2.0.1", 7, xfrm::Mode::Tunnel, false)];
    node.datapath.ipsec.add_sa(&sas[0], sim::unique_mask()).unwrap();
    node.datapath.ipsec.add_policy(sim::policy(Dir::Out, "10.1.0.0/16", "10.3.0.0/16", &sas)).unwrap();
    let flow = Flow::new("10.1.0.254", "10.3.0.1");
    let bytes = edit_v4(&flow.udp(1320), |header| header.set_dont_fragment(true));
    down_bytes(&mut node, INSIDE, &bytes);
    assert_eq!(node.tx(OUTSIDE).len(), 1);
    node.rx_bytes(NOW, OUTSIDE, &too_big(false, 1300, "10.1.0.254", &bytes[..100]));
    assert_eq!(up(&mut node, OUTSIDE).len(), 1);
    down_bytes(&mut node, INSIDE, &bytes);
    let ParsedIcmp { message, .. } = parse_icmp(&only(up(&mut node, INSIDE)));
    assert_eq!(message, Message::V4(icmp::IcmpMessage::FragNeeded { mtu: 1300 }));
    // The routers of the path tell other senders.
    node.rx_bytes(
        NOW,
        INSIDE,
        &edit_v4(&Flow::new("10.1.0.1", "10.3.0.1").udp(1320), |header| {
            header.set_dont_fragment(true);
        }),
    );
    assert_eq!(node.tx(OUTSIDE).len(), 1);
}

/// A frame to the router's inner link, and how the device of the host side shows it.
fn delivered(node: &mut Node, to: MacAddr, packet: &[u8]) -> Vec<MacAddr> {
    let ethertype = if packet[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
    node.rx_bytes(NOW, INSIDE, &frame(to, mac(9), ethertype, packet));
    up(node, INSIDE).iter().map(|pkt| eth::EthHeader::ref_from(pkt.head()).unwrap().dst()).collect()
}

#[test]
fn ping_to_a_role_of_routers_is_answered_by_the_node() {
    let solicited = |addr: &str| wire::nd::solicited_node(addr.parse().unwrap()).to_string();
    let cases = [
        ("fd00:1::".to_owned(), true),
        ("fd00:2::".to_owned(), true),
        ("fe80::".to_owned(), true),
        ("ff02::2".to_owned(), true),
        ("ff05::2".to_owned(), true),
        (solicited("fd00:1::"), true),
        ("ff02::1".to_owned(), false),
        (solicited("fd00:1::254"), false),
        ("fd00:1::254".to_owned(), false),
    ];
    for (dst, by_node) in cases {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
        add_devices(&mut node);
        assert!(node.datapath.set_watched(INSIDE, true));
        let Node { datapath, mem, .. } = &mut node;
        datapath.set_neighbour(NOW, mem, INSIDE, "fd00:1::1".parse().unwrap(), fib::Known::Permanent(mac(9)), 0);
        let to = match dst.parse().unwrap() {
            group @ std::net::Ipv6Addr { .. } if group.is_multicast() => MacAddr::multicast_v6(group),
            _ => mac(1),
        };
        let flow = Flow::new("fd00:1::1", &dst);
        let up = delivered(&mut node, to, &flow.ping(1, 8));
        // A promiscuous packet socket sees the frame, and the answer, once each.
        let no_station = MacAddr([2, 0xfa, 0x70, 0, 0, 1]);
        assert_eq!(up, if by_node { vec![no_station; 2] } else { vec![to] }, "{dst}");
        assert_eq!(node.tx(INSIDE).len(), usize::from(by_node), "{dst}");
        // Sockets join groups, and get datagrams; no socket has an address of routers.
        let is_anycast = !to.is_multicast() && by_node;
        let up = delivered(&mut node, to, &flow.udp(9));
        assert_eq!(up.contains(&to), !is_anycast, "{dst}");
        assert_eq!(node.tx(INSIDE).len(), usize::from(is_anycast), "a port unreachable: {dst}");
    }
}

#[test]
fn unicast_in_a_group_frame_goes_up_as_a_broadcast() {
    let groups = [MacAddr::BROADCAST, MacAddr([1, 0, 0x5e, 0, 0, 1]), MacAddr([0x33, 0x33, 0, 0, 0, 1])];
    for flow in to_us() {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
        add_devices(&mut node);
        for bytes in [flow.udp(9), flow.tcp(1, 9)] {
            for to in groups {
                assert_eq!(delivered(&mut node, to, &bytes), [MacAddr::BROADCAST]);
            }
            assert_eq!(delivered(&mut node, mac(1), &bytes), [mac(1)]);
        }
        // Fragments keep the kind of their frames.
        let mut sizes = Vec::new();
        for fragment in fragments(&node.mem, &flow.udp(2000), 1500) {
            sizes.push(delivered(&mut node, MacAddr::BROADCAST, &fragment.to_vec()));
        }
        assert_eq!(sizes, [vec![], vec![MacAddr::BROADCAST]]);
        assert!(node.tx(INSIDE).is_empty() && node.drops().is_empty());
    }
}

#[test]
fn tcp_in_a_group_frame_is_not_shown_without_stations() {
    for (to, is_up) in [(mac(1), true), (MacAddr::BROADCAST, false)] {
        let mut node = Node::new();
        let red = node.vrf(9, 10, &[1]);
        node.datapath.set_vrf_port(NOW, red, Some(("red".to_owned(), 65_575)));
        node.port(1, PortOptions::ethernet(1), &["10.1.0.254/24"]);
        add_devices_to(&mut node, &[PortId(1), PortId(9)]);
        // The socket is bound to the VRF, whose device has no link-layer addresses.
        let flow = Flow::new("10.1.0.1", "10.1.0.254");
        down_bytes(&mut node, PortId(9), &flow.reversed().tcp(1, 10));
        node.rx_bytes(NOW, PortId(1), &frame(to, mac(9), EtherType::IPV4, &flow.tcp(1, 10)));
        assert_eq!(up(&mut node, PortId(9)).len(), usize::from(is_up));
        assert!(up(&mut node, PortId(1)).is_empty());
    }
}

#[test]
fn ping_in_a_vrf_is_answered_by_the_node() {
    for (red, answered) in [(false, false), (true, true)] {
        let mut node = Node::new();
        if red {
            node.vrf(9, 10, &[1]);
        }
        node.port(1, PortOptions::BARE, &["10.1.0.254/24"]);
        add_devices_to(&mut node, &[PortId(1)]);
        node.rx_bytes(NOW, PortId(1), &Flow::new("10.1.0.1", "10.1.0.254").ping(1, 10));
        let (sent, up) = (node.tx(PortId(1)).len(), up(&mut node, PortId(1)).len());
        assert_eq!((sent, up), if answered { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn port_of_a_key_manager_comes_before_sockets() {
    for has_manager in [false, true] {
        let mut node = router_with_host_side();
        if has_manager {
            node.datapath.set_ike(vec![(INSIDE, datapath::IkeAt::Node)]);
        }
        let flow = Flow { dport: 500, ..to_us()[0] };
        node.rx_bytes(NOW, INSIDE, &flow.udp(100));
        let taken = node.datapath.take_ike().count();
        assert_eq!((taken, up(&mut node, INSIDE).len()), if has_manager { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn port_of_esp_in_udp_takes_what_stands_behind_the_marker() {
    use DropReason::{EncapIgnored, EspNoState};
    let ports = [(500, 4500), (4500, 500)].map(|(sport, dport)| Flow { sport, dport, ..to_us()[0] });
    let [to_encap, to_ike] = ports;
    for (flow, payload, want) in [
        (&to_encap, &[0, 0, 0, 0, 9][..], None),
        (&to_encap, &[0, 0, 0, 9, 0, 0, 0, 1, 7, 7], Some(EspNoState)),
        (&to_encap, &[0xff], Some(EncapIgnored)),
        (&to_encap, &[], Some(EncapIgnored)),
        (&to_ike, &[0, 0, 0, 9, 0, 0, 0, 1, 7, 7], None),
    ] {
        let mut node = router_with_host_side();
        node.rx_bytes(NOW, INSIDE, &flow.udp_with(payload));
        let drops: Vec<_> = node.drops().into_iter().map(|(_, reason, _)| reason).collect();
        assert_eq!(
            (up(&mut node, INSIDE).len(), drops),
            (usize::from(want.is_none()), Vec::from_iter(want)),
            "{payload:?}"
        );
    }
}

#[test]
fn ike_without_a_checksum_over_ipv6_gets_one() {
    let mut node = router_with_host_side();
    let flow = Flow { sport: 500, dport: 500, ..to_us()[1] };
    let mut bytes = flow.udp(100);
    let want = bytes.clone();
    bytes[46..48].fill(0);
    let mut pkt = Packet::with_data(&node.mem, &bytes).unwrap();
    pkt.meta.csum = Csum::Unnecessary;
    node.rx(NOW, INSIDE, vec![pkt]);
    let mut pkt = only(up(&mut node, INSIDE));
    assert!(matches!(pkt.meta.csum, Csum::Partial { start: 40, .. }));
    offload::checksum::complete(&node.mem, &mut pkt, 0).unwrap();
    assert_eq!(pkt.to_vec(), want);
}

#[test]
fn socket_with_dont_fragment_gets_the_error() {
    let [flow, _] = from_us();
    let mut node = router_with_host_side();
    let bytes = edit_v4(&flow.udp(3000), |header| header.set_dont_fragment(true));
    down_bytes(&mut node, INSIDE, &bytes);
    assert!(node.tx(OUTSIDE).is_empty());
    // By the input device of the packet.
    let ParsedIcmp { dst, message, quote, .. } = parse_icmp(&only(up(&mut node, INSIDE)));
    assert_eq!((dst, message), (flow.src.to_string(), Message::V4(icmp::IcmpMessage::FragNeeded { mtu: 1500 })));
    assert_eq!(quote[..20], bytes[..20]);
    assert_eq!(node.drops(), [(0, DropReason::PacketTooBig, 1)]);
}

#[test]
fn error_about_socket_packet_stays_in_its_vrf() {
    let mut node = Node::new();
    for (id, red) in [(1, false), (2, false), (3, true), (4, true)] {
        let address = if id % 2 == 1 { "10.1.0.254/24" } else { "10.2.0.254/24" };
        if red {
            node.vrf(9, 10, &[id]);
        }
        node.port(id, PortOptions::BARE, &[address]);
    }
    add_devices_to(&mut node, &[1, 3].map(PortId));
    let flow = Flow::new("10.1.0.254", "10.2.0.1");
    down_bytes(&mut node, PortId(3), &edit_v4(&flow.udp(3000), |header| header.set_dont_fragment(true)));
    assert_eq!((up(&mut node, PortId(1)).len(), up(&mut node, PortId(3)).len()), (0, 1));
}

#[test]
fn tcp_segments_are_cut_to_the_path() {
    for flow in from_us() {
        let mut node = router_with_host_side();
        // A packet as a socket sends it by a device of MTU 65 521.
        let pkt = flow.fat_tcp(&node.mem, 1, 60_000, 32_000);
        down(&mut node, INSIDE, pkt);
        let sent = only(node.tx(OUTSIDE));
        let headers = flow.version().header_len() + TCP_LEN;
        let Cut::Gso(gso) = sent.meta.cut else { panic!("{:?}", sent.meta) };
        assert_eq!(
            (usize::from(gso.size), usize::from(gso.segs)),
            (1500 - headers, 60_000_usize.div_ceil(1500 - headers))
        );
        // A segment of one piece is cut as well.
        down_bytes(&mut node, INSIDE, &flow.tcp(1, 4000));
        let sent = only(node.tx(OUTSIDE));
        let Cut::Gso(gso) = sent.meta.cut else { panic!("{:?}", sent.meta) };
        assert_eq!(matches!(gso.kind, GsoKind::TcpV4), flow.version() == wire::Version::V4);
        assert_eq!(node.drops(), []);
    }
}

#[test]
fn tcp_over_ipv4_goes_out_with_dont_fragment() {
    let [flow, _] = from_us();
    let mut node = router_with_host_side();
    let bytes = edit_v4(&flow.tcp(1, 10), |header| header.set_dont_fragment(false));
    down_bytes(&mut node, INSIDE, &bytes);
    assert!(info(&only(node.tx(OUTSIDE))).dont_fragment);
}

#[test]
fn mss_of_syn_is_lowered_to_the_path() {
    for flow in from_us() {
        let most = 1500 - flow.version().header_len() as u16 - 20;
        for is_odd in [false, true] {
            for (mss, want) in [(65_481, most), (most + 1, most), (most, most), (536, 536)] {
                let mut node = router_with_host_side();
                down_bytes(&mut node, INSIDE, &syn(&flow, mss, is_odd));
                let sent = only(node.tx(OUTSIDE)).to_vec();
                assert_eq!(sent, syn(&flow, want, is_odd), "{flow:?} {mss} {is_odd}");
            }
        }
        // TCP-AO signs options.
        let mut signed = syn(&flow, 65_481, false);
        let at = flow.version().header_len() + TCP_LEN;
        signed[at..at + 8].copy_from_slice(&[2, 4, 0xff, 0xc9, 29, 4, 1, 1]);
        let mut node = router_with_host_side();
        down_bytes(&mut node, INSIDE, &signed);
        assert_eq!(only(node.tx(OUTSIDE)).to_vec()[at..at + 8], signed[at..at + 8]);
    }
}

#[test]
fn frame_to_other_station_leaves_as_it_is() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let [flow, _] = from_us();
    let frames = [
        frame(mac(77), mac(2), EtherType::IPV4, &flow.udp(10)),
        frame(MacAddr::BROADCAST, mac(2), EtherType::IPV4, &flow.udp(10)),
        frame(MacAddr::BROADCAST, mac(2), EtherType::ARP, &[0; 28]),
        frame(MacAddr([1, 0x80, 0xc2, 0, 0, 0x0e]), mac(2), EtherType(0x88cc), &[0; 40]),
    ];
    for bytes in frames {
        down_bytes(&mut node, OUTSIDE, &bytes);
        assert_eq!(only(node.tx(OUTSIDE)).to_vec(), bytes);
        assert!(node.tx(INSIDE).is_empty());
    }
    down_bytes(&mut node, OUTSIDE, &frame(mac(77), mac(2), EtherType::IPV4, &flow.udp(2000)));
    assert!(node.tx(OUTSIDE).is_empty());
    assert_eq!(node.drops(), [(0, DropReason::PacketTooBig, 1)]);
}

#[test]
fn mss_of_syn_for_a_socket_is_lowered_to_the_path_back() {
    for flow in from_us().map(Flow::reversed) {
        let most = 1500 - flow.version().header_len() as u16 - 20;
        for (mss, want) in [(8960, most), (most, most), (536, 536)] {
            let mut node = router_with_host_side();
            node.rx_bytes(NOW, OUTSIDE, &syn(&flow, mss, false));
            assert_eq!(only(up(&mut node, OUTSIDE)).to_vec(), syn(&flow, want, false), "{flow:?} {mss}");
        }
        // Without a device the node's own answer does not depend on it.
        let mut node = router();
        node.rx_bytes(NOW, OUTSIDE, &syn(&flow, 8960, false));
        assert_eq!(node.tx(OUTSIDE).len(), 1);
    }
}

#[test]
fn broadcast_of_socket_goes_to_every_station_of_its_link() {
    // The kernel's device resolves no neighbours, so its frames are to itself; Don't Fragment is by the device's own MTU.
    for (src, dst) in [("10.2.0.254", "10.2.0.255"), ("10.2.0.254", "255.255.255.255"), ("0.0.0.0", "255.255.255.255")]
    {
        for (len, pieces) in [(100, 1), (1472, 1), (1473, 2), (4000, 3)] {
            let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
            add_devices(&mut node);
            let datagram = Flow::new(src, dst).udp(len);
            down_bytes(&mut node, OUTSIDE, &frame(mac(2), mac(2), EtherType::IPV4, &datagram));
            let sent = node.tx(OUTSIDE);
            assert_eq!((sent.len(), node.drops()), (pieces, vec![]), "{len} bytes to {dst}");
            for pkt in &sent {
                let header = eth::EthHeader::ref_from(pkt.head()).unwrap();
                assert_eq!((header.dst(), header.src(), pkt.len() <= 1514), (MacAddr::BROADCAST, mac(2), true));
                let ip = info_of(&pkt.to_vec()[14..]);
                assert_eq!((ip.dst.to_string(), ip.dont_fragment), (dst.to_owned(), pieces == 1), "{len} bytes");
            }
            assert!(node.tx(INSIDE).is_empty());
        }
    }
}

#[test]
fn group_of_socket_is_fragmented_for_the_link() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let to = MacAddr([1, 0, 0x5e, 0, 0, 5]);
    let datagram = Flow::new("10.2.0.254", "224.0.0.5").udp(4000);
    down_bytes(&mut node, OUTSIDE, &frame(to, mac(2), EtherType::IPV4, &datagram));
    let sent = node.tx(OUTSIDE);
    assert_eq!((sent.len(), node.drops()), (3, vec![]));
    assert!(sent.iter().all(|pkt| eth::EthHeader::ref_from(pkt.head()).unwrap().dst() == to));
}

#[test]
fn broadcast_of_another_links_subnet_is_no_broadcast() {
    let ethernet = || {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
        add_devices(&mut node);
        node
    };
    let bytes = frame(mac(2), mac(2), EtherType::IPV4, &Flow::new("10.2.0.254", "10.1.0.255").udp(100));
    // The socket is bound to the outer link.
    let mut node = ethernet();
    down_bytes(&mut node, OUTSIDE, &bytes);
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
    assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty());
    // By a route of that link it is unicast there, as on Linux.
    let mut node = ethernet();
    node.route("0.0.0.0/0", Some("10.2.0.1"), OUTSIDE);
    let Node { datapath, mem, .. } = &mut node;
    datapath.set_neighbour(NOW, mem, OUTSIDE, "10.2.0.1".parse().unwrap(), Known::Permanent(mac(9)), 0);
    down_bytes(&mut node, OUTSIDE, &bytes);
    assert_eq!(eth::EthHeader::ref_from(only(node.tx(OUTSIDE)).head()).unwrap().dst(), mac(9));
    // Two links of one subnet: each has its own broadcast.
    let mut node = ethernet();
    node.datapath.fib.add_address(OUTSIDE, "10.1.0.253/24".parse().unwrap());
    down_bytes(&mut node, OUTSIDE, &bytes);
    assert_eq!((node.tx(OUTSIDE).len(), node.tx(INSIDE).len()), (1, 0));
}

#[test]
fn answer_of_the_node_is_never_a_broadcast() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    let forged = Flow { ttl: 1, ..Flow::new("10.2.0.255", "10.2.0.1") };
    for bytes in [forged.udp(10), Flow { dst: "10.1.0.254".parse().unwrap(), ttl: 64, ..forged }.ping(1, 8)] {
        node.rx_bytes(NOW, INSIDE, &frame(mac(1), mac(9), EtherType::IPV4, &bytes));
        assert!(node.tx(OUTSIDE).is_empty() && node.tx(INSIDE).is_empty());
    }
}

#[test]
fn frame_of_a_packet_socket_is_no_longer_than_the_link_allows() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let datagram = Flow { dont_fragment: false, ..Flow::new("10.2.0.254", "10.2.0.255") };
    for (len, ethertype, sent) in [(1472, EtherType::IPV4, 1), (1473, EtherType::IPV4, 0), (1473, EtherType(0x88cc), 0)]
    {
        let bytes = frame(MacAddr::BROADCAST, mac(2), ethertype, &datagram.udp(len));
        down_bytes(&mut node, OUTSIDE, &bytes);
        assert_eq!(node.tx(OUTSIDE).len(), sent, "{len}");
    }
    assert_eq!(node.drops(), [(0, DropReason::PacketTooBig, 2)]);
}

#[test]
fn multicast_of_socket_leaves_by_its_device() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let flow = Flow::new("10.2.0.254", "224.0.0.5");
    let to = MacAddr([1, 0, 0x5e, 0, 0, 5]);
    let hello = frame(to, mac(2), EtherType::IPV4, &flow.raw(Protocol(89), &[0; 44]));
    down_bytes(&mut node, OUTSIDE, &hello);
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), hello);
    assert!(node.tx(INSIDE).is_empty());
}

#[test]
fn policies_are_checked_without_ports_beyond_them() {
    let mut node = router_with_host_side();
    let any = "10.0.0.0/8".parse().unwrap();
    for dir in [Dir::Out, Dir::In] {
        let policy = PolicyConfig { action: Action::Block, ..PolicyConfig::new(dir, Selector::new(any, any)) };
        node.datapath.ipsec.add_policy(policy).unwrap();
    }
    let ([from, _], [to, _]) = (from_us(), to_us());
    node.datapath.set_bypass_ports(vec![1500]);
    let cases = [
        (5000, 5000, false, false),
        (500, 500, true, true),
        (5000, 500, false, true),
        (4500, 5000, true, false),
        (1500, 5000, true, false),
        (5000, 1500, false, true),
    ];
    for (sport, dport, leaves, arrives) in cases {
        down_bytes(&mut node, INSIDE, &Flow { sport, dport, ..from }.udp(100));
        assert_eq!(node.tx(OUTSIDE).len(), usize::from(leaves), "{sport} to {dport} down");
        node.rx_bytes(NOW, INSIDE, &Flow { sport, dport, ..to }.udp(100));
        assert_eq!(up(&mut node, INSIDE).len(), usize::from(arrives), "{sport} to {dport} up");
    }
}

#[test]
fn malformed_packets_of_sockets_are_counted_drops() {
    let [flow, _] = from_us();
    let good = flow.udp(100);
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    let whole = frame(mac(2), mac(2), EtherType::IPV4, &good);
    for len in 0..whole.len() {
        down_bytes(&mut node, OUTSIDE, &whole[..len]);
    }
    let dropped: u64 = node.drops().iter().map(|&(_, _, n)| n).sum();
    assert_eq!(dropped, whole.len() as u64, "{:?}", node.drops());
    // Each bit in turn: nothing panics, and nothing is lost.
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x11;
        down_bytes(&mut node, OUTSIDE, &bytes);
    }
    // A packet to the node itself is not expected from the host side: its socket gets a no-route error.
    up(&mut node, OUTSIDE);
    up(&mut node, INSIDE);
    let own = Flow::new("10.2.0.254", "10.1.0.254");
    down_bytes(&mut node, OUTSIDE, &frame(mac(2), mac(2), EtherType::IPV4, &own.udp(1)));
    let error = only(up(&mut node, OUTSIDE)).to_vec();
    assert_eq!(info_of(&error[eth::EthHeader::LEN..]).protocol, Protocol::ICMP);
}

#[test]
fn established_flow_goes_up_without_a_route_lookup() {
    for flow in to_us() {
        let mut node = router_with_host_side();
        let answer = Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..flow };
        let hits = |node: &Node| (node.datapath.demux_counts.hits, node.datapath.demux_counts.misses);
        // Packets from outside add no flow.
        node.rx_bytes(NOW, INSIDE, &flow.tcp(1, 10));
        assert_eq!((node.datapath.established().len(), hits(&node)), (0, (0, 0)));
        down_bytes(&mut node, INSIDE, &answer.tcp(1, 10));
        assert_eq!(node.datapath.established().len(), 1);
        // The first packet needs a route lookup, the others do not.
        for n in 0..5 {
            node.rx_bytes(NOW, INSIDE, &flow.tcp(11 + n, 10));
        }
        assert_eq!((up(&mut node, INSIDE).len(), hits(&node)), (6, (4, 1)));
        // A changed route applies at once: the address is no longer the node's.
        let host = base::Prefix::host(flow.dst);
        let routes = [base::TableId::LOCAL, base::TableId::MAIN];
        for table in routes {
            node.datapath
                .fib
                .remove(table, &fib::Route { prefix: host, kind: fib::RouteKind::Local { dev: INSIDE }, metric: 0 });
        }
        node.rx_bytes(NOW, INSIDE, &flow.tcp(99, 10));
        assert_eq!(hits(&node), (4, 2));
        assert!(up(&mut node, INSIDE).is_empty());
    }
}

#[test]
fn early_demux_switched_off_looks_up_routes() {
    let [flow, _] = to_us();
    let answer = Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..flow };
    for (ip, tcp) in [(false, true), (true, false)] {
        let mut node = router_with_host_side();
        node.datapath.early_demux = datapath::EarlyDemux { ip, tcp, udp: true };
        down_bytes(&mut node, INSIDE, &answer.tcp(1, 10));
        for n in 0..3 {
            node.rx_bytes(NOW, INSIDE, &flow.tcp(n, 10));
        }
        assert_eq!((up(&mut node, INSIDE).len(), node.datapath.demux_counts.hits), (3, 0));
    }
}

#[test]
fn early_demux_does_not_skip_a_policy() {
    let [flow, _] = to_us();
    let answer = Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..flow };
    let mut node = router_with_host_side();
    down_bytes(&mut node, INSIDE, &answer.tcp(1, 10));
    node.rx_bytes(NOW, INSIDE, &flow.tcp(1, 10));
    node.rx_bytes(NOW, INSIDE, &flow.tcp(11, 10));
    assert_eq!((up(&mut node, INSIDE).len(), node.datapath.demux_counts.hits), (2, 1));
    let any = "10.0.0.0/8".parse().unwrap();
    let policy = PolicyConfig { action: Action::Block, ..PolicyConfig::new(Dir::In, Selector::new(any, any)) };
    node.datapath.ipsec.add_policy(policy).unwrap();
    node.rx_bytes(NOW, INSIDE, &flow.tcp(21, 10));
    assert!(up(&mut node, INSIDE).is_empty());
    assert_eq!(node.drops(), [(INSIDE.0, DropReason::PolicyBlock, 1)]);
}

#[test]
fn packet_too_big_about_socket_tcp_lowers_the_cut() {
    let [flow, _] = from_us();
    let mut node = router_with_host_side();
    let too_big = |quoted: &[u8]| {
        let mut message = vec![3, 4, 0, 0, 0, 0, 1300_u16.to_be_bytes()[0], 1300_u16.to_be_bytes()[1]];
        message.extend_from_slice(&quoted[..60]);
        let check = wire::checksum::finish(wire::checksum::sum(&message));
        message[2..4].copy_from_slice(&check.to_be_bytes());
        Flow::new("10.2.0.99", "10.2.0.254").raw(Protocol::ICMP, &message)
    };
    let size = |node: &mut Node| {
        let pkt = flow.fat_tcp(&node.mem, 1, 20_000, 10_000);
        down(node, INSIDE, pkt);
        let Cut::Gso(gso) = only(node.tx(OUTSIDE)).meta.cut else { panic!("not fat") };
        usize::from(gso.size) + ipv4::Ipv4Header::LEN + TCP_LEN
    };
    assert_eq!(size(&mut node), 1500);
    // A message about an unknown flow changes no MTU, but is delivered.
    node.rx_bytes(NOW, OUTSIDE, &too_big(&Flow { sport: 9, ..flow }.tcp(1, 100)));
    assert_eq!((size(&mut node), up(&mut node, OUTSIDE).len()), (1500, 1));
    // A message with a wrong checksum changes no MTU either.
    let mut bad = too_big(&flow.tcp(1, 100));
    *bad.last_mut().unwrap() ^= 1;
    node.rx_bytes(NOW, OUTSIDE, &bad);
    assert_eq!((size(&mut node), up(&mut node, OUTSIDE).len()), (1500, 1));
    node.rx_bytes(NOW, OUTSIDE, &too_big(&flow.tcp(1, 100)));
    assert_eq!((size(&mut node), up(&mut node, OUTSIDE).len()), (1300, 1));
}

#[test]
fn unfinished_checksum_of_socket_is_made_for_the_link() {
    let [flow, _] = from_us();
    let mut node = router_with(PortOptions::BARE, PortOptions::BARE.features(Features::NONE));
    add_devices(&mut node);
    let bytes = flow.udp(100);
    let mut pkt = Packet::with_data(&node.mem, &bytes).unwrap();
    let seed = wire::checksum::fold(wire::checksum::pseudo_v4(
        "10.2.0.254".parse().unwrap(),
        "10.2.0.1".parse().unwrap(),
        Protocol::UDP,
        bytes.len() - ipv4::Ipv4Header::LEN,
    ));
    pkt.writable_head(&node.mem).unwrap()[26..28].copy_from_slice(&seed.to_be_bytes());
    pkt.meta.csum = Csum::Partial { start: 20, offset: 6 };
    down(&mut node, INSIDE, pkt);
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), bytes);
}

/// A router with Ethernet links and host-side devices; a packet socket on the outer link's device is promiscuous.
fn watched_router() -> Node {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    add_devices(&mut node);
    assert!(node.datapath.set_watched(OUTSIDE, true));
    node
}

/// Frames for the device of the outer link: whether each is for no station, and its payload.
fn shown(node: &mut Node) -> Vec<(bool, Vec<u8>)> {
    let frames = up(node, OUTSIDE).into_iter().map(|frame| frame.to_vec());
    frames.map(|frame| (frame[..6] == [2, 0xfa, 0x70, 0, 0, 1], frame[14..].to_vec())).collect()
}

#[test]
fn received_frame_is_shown_to_packet_sockets_once() {
    let to_us = Flow::new("10.2.0.1", "10.2.0.254");
    let through = Flow::new("10.2.0.1", "10.1.0.1");
    let fragment =
        edit_v4(&to_us.udp(64), |header| header.set_fragment(wire::FragOffset::from_bytes(0).unwrap(), true));
    let advert = {
        let ask = Flow::new("fd00:2::1", "fd00:2::254");
        solicitation(&ask, mac(9))
    };
    for (to, bytes, is_copy) in [
        (mac(2), to_us.udp(10), false),
        (mac(2), through.udp(10), true),
        (mac(77), to_us.udp(10), true),
        (mac(2), to_us.raw(Protocol::ESP, &[7; 40]), true),
        (mac(2), fragment, true),
        (MacAddr([0x33, 0x33, 0xff, 0, 2, 0x54]), advert, true),
        (mac(2), vec![0x45, 0], true),
    ] {
        let ethertype = if bytes[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
        let received = frame(to, mac(9), ethertype, &bytes);
        let mut node = watched_router();
        node.rx_bytes(NOW, OUTSIDE, &received);
        // Packets that the node sends about it are copied as well.
        let seen: Vec<_> = shown(&mut node).into_iter().filter(|(_, shown)| shown == &bytes).collect();
        assert_eq!(seen, [(is_copy, bytes.clone())]);
        // Without a promiscuous socket.
        assert!(!node.datapath.set_watched(OUTSIDE, false));
        node.rx_bytes(NOW, OUTSIDE, &received);
        assert_eq!(shown(&mut node).len(), usize::from(!is_copy), "{bytes:?}");
    }
    let mut node = watched_router();
    node.rx_bytes(NOW, OUTSIDE, &frame(MacAddr::BROADCAST, mac(9), EtherType::ARP, &[0; 28]));
    assert_eq!(shown(&mut node), [(false, vec![0; 28])]);
}

#[test]
fn each_fragment_of_a_burst_is_shown_to_packet_sockets() {
    let mut node = watched_router();
    let mut fragments = Vec::new();
    let whole = edit_v4(&Flow::new("10.2.0.1", "10.2.0.254").udp(6000), |header| header.set_dont_fragment(false));
    reassembly::fragment(&node.mem, Packet::with_data(&node.mem, &whole).unwrap(), 1500, &mut fragments).unwrap();
    let count = fragments.len();
    let frames = fragments.iter().map(|it| frame(mac(2), mac(9), EtherType::IPV4, &it.to_vec()));
    let burst = frames.map(|bytes| Packet::with_data(&node.mem, &bytes).unwrap()).collect();
    node.rx(NOW, OUTSIDE, burst);
    let shown = shown(&mut node);
    assert_eq!(shown.iter().filter(|(is_copy, _)| *is_copy).count(), count);
    assert_eq!(shown.last(), Some(&(false, whole)));
}

#[test]
fn sent_frame_is_shown_unless_a_socket_has_sent_it() {
    let mut node = watched_router();
    let hello = frame(mac(77), mac(2), EtherType::IPV4, &from_us()[0].udp(10));
    down_bytes(&mut node, OUTSIDE, &hello);
    assert_eq!(node.tx(OUTSIDE).len(), 1);
    assert_eq!(shown(&mut node), []);
    // The node resolves the next hop itself.
    node.rx_bytes(NOW, INSIDE, &frame(mac(1), mac(9), EtherType::IPV4, &flows()[0].udp(10)));
    let sent = only(node.tx(OUTSIDE)).to_vec();
    assert_eq!(shown(&mut node), [(true, sent[14..].to_vec())]);
}

#[test]
fn link_without_stations_is_not_watched() {
    let mut node = router_with_host_side();
    assert!(!node.datapath.set_watched(OUTSIDE, true));
    node.rx_bytes(NOW, OUTSIDE, &Flow::new("10.2.0.1", "10.1.0.1").udp(10));
    assert!(up(&mut node, OUTSIDE).is_empty());
}

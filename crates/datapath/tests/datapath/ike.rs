//! IKE on the port of ESP in UDP, from and to an IKE daemon.

use std::net::SocketAddr;

use base::{DropReason, Mib};
use datapath::{IkeAt, IkeMessage};
use packet::{Cut, Gso, GsoKind, Packet};
use sim::{Flow, Node, esp, unique_mask};
use wire::udp;
use xfrm::{Action, Dir, Mode};

use crate::common::*;

/// The node's end and the peer's, of either family.
const ENDS: [[&str; 2]; 2] = [["10.2.0.254:4500", "10.2.0.1:61000"], ["[fd00:2::254]:4500", "[fd00:2::1]:61000"]];

fn ends(v6: bool) -> [SocketAddr; 2] {
    ENDS[usize::from(v6)].map(|end| end.parse().unwrap())
}

/// A router with IKE at its outer link, whose policies block all other packets.
fn node(v6: bool) -> Node {
    let mut node = router();
    node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Port(ends(v6)[0]))]);
    node.datapath.ipsec.set_default_policy(Dir::In, Action::Block);
    node.datapath.ipsec.set_default_policy(Dir::Out, Action::Block);
    node
}

/// A finished packet from the peer with that payload.
fn from_peer(v6: bool, payload: &[u8]) -> Vec<u8> {
    between(ends(v6), payload)
}

/// A finished packet from the second end to the first.
fn between([local, peer]: [SocketAddr; 2], payload: &[u8]) -> Vec<u8> {
    let flow =
        Flow { sport: peer.port(), dport: local.port(), ..Flow::new(&peer.ip().to_string(), &local.ip().to_string()) };
    let mut bytes = flow.udp(payload.len());
    let at = bytes.len() - payload.len();
    bytes[at..].copy_from_slice(payload);
    let udp_at = at - udp::UdpHeader::LEN;
    bytes[udp_at + udp::CHECK_AT..at].fill(0);
    let len = bytes.len() - udp_at;
    let pseudo = match (flow.src, flow.dst) {
        (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
            wire::checksum::pseudo_v4(src, dst, wire::Protocol::UDP, len)
        }
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            wire::checksum::pseudo_v6(src, dst, wire::Protocol::UDP, len)
        }
        _ => unreachable!(),
    };
    let sum = wire::checksum::add(pseudo, wire::checksum::sum(&bytes[udp_at..]));
    bytes[udp_at + udp::CHECK_AT..at].copy_from_slice(&wire::checksum::finish_udp(sum).to_be_bytes());
    bytes
}

#[test]
fn ike_message_is_taken_out_with_or_without_an_sa() {
    for v6 in [false, true] {
        for with_sa in [false, true] {
            let mut node = node(v6);
            let [local, peer] = ends(v6);
            if with_sa {
                let sa = esp(&peer.ip().to_string(), &local.ip().to_string(), 7, Mode::Tunnel, true);
                node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
            }
            node.rx_bytes(NOW, OUTSIDE, &from_peer(v6, b"\0\0\0\0hello"));
            let got: Vec<_> = node.datapath.take_ike().collect();
            assert_eq!(got, [IkeMessage { local, peer, bytes: b"hello".to_vec() }], "v6 {v6}, with an SA {with_sa}");
            node.rx_bytes(NOW, OUTSIDE, &from_peer(v6, &[0xff]));
            assert_eq!((node.datapath.take_ike().count(), node.drops()), (0, vec![]), "a keepalive is no message");
            // Datagrams of neither kind are dropped, and so is IKE on a link without an IKE port.
            for payload in [&b"\0\0\0\0"[..], b"\x01\0\0\0hello", b""] {
                node.rx_bytes(NOW, OUTSIDE, &from_peer(v6, payload));
            }
            node.rx_bytes(NOW, INSIDE, &from_peer(v6, b"\0\0\0\0hello"));
            assert_eq!((node.datapath.take_ike().count(), node.tx(OUTSIDE).len()), (0, 0));
            let drops: u64 = node.drops().iter().map(|drop| drop.2).sum();
            assert_eq!(drops, 4, "{:?}", node.drops());
            let mut wrong = from_peer(v6, b"\0\0\0\0hello");
            *wrong.last_mut().unwrap() ^= 1;
            node.rx_bytes(NOW, OUTSIDE, &wrong);
            assert_eq!(node.datapath.take_ike().count(), 0);
            assert!(node.drops().contains(&(2, DropReason::ChecksumWrong, 1)), "{:?}", node.drops());
            assert_eq!(node.pages_in_use(), 0);
        }
    }
}

/// A router with an SA for ESP in UDP to its end, with IKE there, or with both.
fn with_open_port(v6: bool, has_ike: bool, has_sa: bool) -> Node {
    let [local, peer] = ends(v6);
    let mut node = router();
    if has_ike {
        node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Port(local))]);
    }
    if has_sa {
        let sa = esp(&peer.ip().to_string(), &local.ip().to_string(), 7, Mode::Tunnel, true);
        node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    }
    node
}

#[test]
fn open_port_answers_only_with_counters() {
    use DropReason::{EncapIgnored, EspNoState};
    let unknown_spi = [&[0x12; 4][..], &[0; 60]].concat();
    for (v6, has_ike, has_sa) in [false, true].into_iter().flat_map(|v6| {
        [(true, false), (false, true), (true, true)].into_iter().map(move |(has_ike, has_sa)| (v6, has_ike, has_sa))
    }) {
        for (payload, dropped) in [
            (&[0xff][..], None),
            (b"", Some(EncapIgnored)),
            (b"\0\0", Some(EncapIgnored)),
            (b"\0\0\0\0", Some(EncapIgnored)),
            (b"\x01\0\0\x07\0\0\0\x01", Some(EncapIgnored)),
            (b"\x01\0\0\x07\0\0\0\x01x", Some(EspNoState)),
            (&unknown_spi, Some(EspNoState)),
            (b"\0\0\0\0IKE", (!has_ike).then_some(EncapIgnored)),
        ] {
            let mut node = with_open_port(v6, has_ike, has_sa);
            node.rx_bytes(NOW, OUTSIDE, &from_peer(v6, payload));
            let what = format!("{payload:02x?}, v6 {v6}, IKE {has_ike}, SA {has_sa}");
            assert_eq!(node.tx(OUTSIDE).len(), 0, "{what}");
            assert_eq!(node.drops(), Vec::from_iter(dropped.map(|reason| (OUTSIDE.0, reason, 1))), "{what}");
            let no_states = node.datapath.counters.get(Mib::XfrmInNoStates);
            assert_eq!(no_states, u64::from(dropped == Some(EspNoState)), "{what}");
            let closed = [Mib::UdpNoPorts, Mib::Udp6NoPorts].map(|mib| node.datapath.counters.get(mib));
            assert_eq!(closed, [0, 0], "{what}");
            let mibs = match v6 {
                false => [Mib::IpInReceives, Mib::IpInDelivers, Mib::UdpInDatagrams],
                true => [Mib::Ip6InReceives, Mib::Ip6InDelivers, Mib::Udp6InDatagrams],
            };
            let [receives, delivers, datagrams] = mibs.map(|mib| node.datapath.counters.get(mib));
            assert_eq!((receives, delivers), (1, 1), "{what}");
            assert!(datagrams == 1 || dropped == Some(EspNoState), "{what}");
        }
        let mut node = with_open_port(v6, has_ike, has_sa);
        node.rx_bytes(NOW, OUTSIDE, &between(with_ports(ends(v6), [4501, 4500]), b"hello"));
        assert_eq!((node.tx(OUTSIDE).len(), node.drops()), (1, vec![(OUTSIDE.0, DropReason::UdpNoPort, 1)]));
    }
}

#[test]
fn ike_port_refuses_impossible_udp_lengths() {
    for (v6, len, padding, taken) in [
        (false, 7, 0, false),
        (false, 14, 0, false),
        (false, u16::MAX, 0, false),
        (false, 13, 3, true),
        (true, 7, 0, false),
        (true, 14, 0, false),
    ] {
        let mut node = router();
        node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Node)]);
        let mut bytes = between(with_ports(ends(v6), [500, 500]), &[&b"hello"[..], &vec![0; padding]].concat());
        let udp_at = bytes.len() - padding - 13;
        bytes[udp_at + 4..udp_at + 6].copy_from_slice(&u16::to_be_bytes(len));
        if !v6 {
            bytes[udp_at + udp::CHECK_AT..udp_at + 8].fill(0);
        }
        node.rx_bytes(NOW, OUTSIDE, &bytes);
        let got: Vec<_> = node.datapath.take_ike().map(|message| message.bytes).collect();
        let want = if taken { vec![b"hello".to_vec()] } else { vec![] };
        let errors = node.datapath.counters.get(if v6 { Mib::Udp6InErrors } else { Mib::UdpInErrors });
        assert_eq!((got, errors), (want, u64::from(!taken)), "v6 {v6}, UDP length {len}");
        assert_eq!(node.tx(OUTSIDE).len(), 0, "v6 {v6}, UDP length {len}");
    }
}

#[test]
fn ike_port_without_marker_ignores_empty_datagram() {
    for v6 in [false, true] {
        let mut node = router();
        node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Node)]);
        node.rx_bytes(NOW, OUTSIDE, &between(with_ports(ends(v6), [500, 500]), b""));
        assert_eq!((node.datapath.take_ike().count(), node.tx(OUTSIDE).len()), (0, 0));
        assert_eq!(node.drops(), [(OUTSIDE.0, DropReason::EncapIgnored, 1)]);
    }
}

#[test]
fn train_to_ike_port_is_judged_datagram_by_datagram() {
    let mut node = with_open_port(false, true, false);
    let mut pkt =
        Packet::with_data(&node.mem, &from_peer(false, b"\x01\0\0\x07\0\0\0\x01x\0\0\0\0hello\0\0\0\0")).unwrap();
    pkt.meta.cut = Cut::Gso(Gso { size: 9, kind: GsoKind::Udp, segs: 3, ecn: false, fixed_id: false });
    pkt.meta.csum = packet::Csum::Unnecessary;
    node.rx(NOW, OUTSIDE, vec![pkt]);
    let got: Vec<_> = node.datapath.take_ike().map(|message| message.bytes).collect();
    assert_eq!((got, node.tx(OUTSIDE).len()), (vec![b"hello".to_vec()], 0));
    let want = [DropReason::EncapIgnored, DropReason::EspNoState].map(|reason| (OUTSIDE.0, reason, 1));
    assert_eq!(node.drops(), want);
}

/// The node's end and the peer's, with other ports.
fn with_ports([local, peer]: [SocketAddr; 2], ports: [u16; 2]) -> [SocketAddr; 2] {
    [SocketAddr::new(local.ip(), ports[0]), SocketAddr::new(peer.ip(), ports[1])]
}

#[test]
fn node_with_exclusive_addresses_has_both_ike_ports() {
    for v6 in [false, true] {
        let mut node = node(v6);
        node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Node)]);
        let outer = ends(v6);
        for (port, payload) in [(500, &b"hello"[..]), (4500, b"\0\0\0\0hello")] {
            let [local, peer] = with_ports(outer, [port, port]);
            assert!(node.datapath.has_ike(local));
            node.rx_bytes(NOW, OUTSIDE, &between([local, peer], payload));
            let got: Vec<_> = node.datapath.take_ike().collect();
            assert_eq!(got, [IkeMessage { local, peer, bytes: b"hello".to_vec() }]);
            node.datapath.send_ike(NOW, &node.mem, &got[0]);
            let pkt = only(node.tx(OUTSIDE));
            let info = info(&pkt);
            assert_eq!((info.src, info.dst), (local.ip(), peer.ip()));
            assert_eq!(info.payload(&pkt.to_vec())[8..], *payload, "port {port}");
        }
        assert_eq!(node.drops(), [], "v6 {v6}");
        // A keepalive on the port of ESP in UDP is dropped; on the other port it is a malformed message.
        node.rx_bytes(NOW, OUTSIDE, &between(with_ports(outer, [4500, 4500]), &[0xff]));
        assert_eq!((node.datapath.take_ike().count(), node.drops()), (0, vec![]));
        let other = with_ports(outer, [501, 500]);
        node.rx_bytes(NOW, OUTSIDE, &between(other, b"hello"));
        node.rx_bytes(NOW, INSIDE, &between(with_ports(outer, [500, 500]), b"hello"));
        assert_eq!(node.datapath.take_ike().count(), 0, "another port, and another link");
        let [local, peer] = with_ports(outer, [500, 500]);
        let foreign = IkeMessage { local: peer, peer: local, bytes: vec![1] };
        let wrong_port = IkeMessage { local: other[0], peer, bytes: vec![1] };
        for (message, count) in [(foreign, 1), (wrong_port, 2)] {
            node.datapath.send_ike(NOW, &node.mem, &message);
            assert!(node.drops().contains(&(0, DropReason::IkeUnsendable, count)), "{message:?}");
        }
    }
}

#[test]
fn ike_port_query_matches_configured_ports() {
    let mut node = node(false);
    let has = |node: &Node, at: &str| node.datapath.has_ike(at.parse().unwrap());
    assert!(has(&node, "10.2.0.254:4500") && has(&node, "0.0.0.0:4500"));
    for other in ["10.2.0.253:4500", "0.0.0.0:500", "10.2.0.254:500", "[::]:4500"] {
        assert!(!has(&node, other), "{other}");
    }
    node.datapath.set_ike(vec![(OUTSIDE, IkeAt::Node)]);
    assert!(has(&node, "0.0.0.0:500") && has(&node, "[::]:4500") && !has(&node, "0.0.0.0:501"));
}

#[test]
fn removed_link_leaves_no_ike_port_to_its_number() {
    for at in [IkeAt::Node, IkeAt::Port(ends(false)[0])] {
        let mut node = node(false);
        node.datapath.set_ike(vec![(INSIDE, IkeAt::Node), (OUTSIDE, at)]);
        node.datapath.remove_port(NOW, &node.mem, OUTSIDE);
        node.datapath.remove_port(NOW, &node.mem, INSIDE);
        assert!(!node.datapath.has_ike(ends(false)[0]));
    }
}

#[test]
fn messages_that_came_as_a_train_are_taken_one_by_one() {
    let mut node = node(false);
    let bytes = from_peer(false, b"\0\0\0\0one\0\0\0\0two\0\0\0\0x");
    let mut pkt = Packet::with_data(&node.mem, &bytes).unwrap();
    pkt.meta.cut = Cut::Gso(Gso { size: 7, kind: GsoKind::Udp, segs: 3, ecn: false, fixed_id: false });
    pkt.meta.csum = packet::Csum::Unnecessary;
    node.rx(NOW, OUTSIDE, vec![pkt]);
    let got: Vec<_> = node.datapath.take_ike().map(|message| message.bytes).collect();
    assert_eq!(got, [&b"one"[..], b"two", b"x"]);
}

#[test]
fn untaken_ike_messages_are_bounded_and_counted() {
    let mut node = node(false);
    let payload = [&[0; 4][..], &[7; 1024]].concat();
    for _ in 0..1030 {
        node.rx_bytes(NOW, OUTSIDE, &from_peer(false, &payload));
    }
    assert_eq!(node.drops(), [(2, DropReason::IkeQueueFull, 6)]);
    assert_eq!(node.datapath.take_ike().count(), 1024);
    node.rx_bytes(NOW, OUTSIDE, &from_peer(false, &payload));
    assert_eq!(node.datapath.take_ike().count(), 1);
}

#[test]
fn message_leaves_from_its_port_with_the_marker() {
    for v6 in [false, true] {
        let mut node = node(v6);
        let [local, peer] = ends(v6);
        for len in [1, 1000, 3000] {
            let message = IkeMessage { local, peer, bytes: vec![7; len] };
            node.datapath.send_ike(NOW, &node.mem, &message);
            let sent = node.tx(OUTSIDE);
            if len > 1500 {
                assert_eq!(sent.len(), 3, "a long one in fragments");
                continue;
            }
            let pkt = only(sent);
            let (bytes, info) = (pkt.to_vec(), info(&pkt));
            assert_eq!((info.src, info.dst), (local.ip(), peer.ip()));
            let body = info.payload(&bytes);
            let header = udp::UdpHeader::ref_from(body).unwrap();
            assert_eq!((header.sport(), header.dport()), (local.port(), peer.port()));
            assert!(header.check() != 0 && offload::checksum::verify(&pkt, &info));
            assert_eq!(body[8..], [vec![0; 4], vec![7; len]].concat());
        }
        let sent = if v6 { Mib::Ip6OutRequests } else { Mib::IpOutRequests };
        assert_eq!((node.datapath.counters.get(sent), node.drops()), (3, vec![]));
        let [other, elsewhere] = ends(!v6);
        let wrong = [
            IkeMessage { local: SocketAddr::new(local.ip(), 4501), peer, bytes: vec![1] },
            IkeMessage { local: other, peer: elsewhere, bytes: vec![1] },
            IkeMessage { local, peer: elsewhere, bytes: vec![1] },
            IkeMessage { local, peer: SocketAddr::new(peer.ip(), 0), bytes: vec![1] },
        ];
        for (message, count) in wrong.iter().zip(1..) {
            node.datapath.send_ike(NOW, &node.mem, message);
            assert_eq!(node.drops(), [(0, DropReason::IkeUnsendable, count)], "{message:?}");
        }
        let long = IkeMessage { local, peer, bytes: vec![1; 65_530] };
        node.datapath.send_ike(NOW, &node.mem, &long);
        assert_eq!(node.tx(OUTSIDE).len(), 0);
        assert_eq!(node.drops(), [(0, DropReason::PacketTooBig, 1), (0, DropReason::IkeUnsendable, 4)]);
    }
}

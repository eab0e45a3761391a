//! Sockets and VRFs: packets are delivered by the device that the socket is bound to, and are refused where Linux
//! refuses them.

use std::time::Duration;

use base::{DropReason, Mib, PortId, TableId};
use datapath::{L3mdevAccept, SocketBinding, SocketQuestion};
use fib::{Route, RouteKind};
use qdisc::Options;
use sim::{Flow, Node, PortOptions};
use wire::eth::EthHeader;
use wire::{MacAddr, Protocol};

use crate::common::*;
use crate::host_side::{add_devices_to, down_bytes, up};

const RED: PortId = PortId(11);
const PLAIN: PortId = PortId(5);

/// A node with sockets, whose inner link is in a VRF and another in none.
fn node() -> Node {
    let mut node = Node::new();
    node.vrf(RED.0, 10, &[INSIDE.0]);
    node.datapath.set_vrf_port(NOW, RED, Some(("red".to_owned(), 65_575)));
    node.port(INSIDE.0, PortOptions::BARE, &["10.1.0.254/24", "fd00:1::254/64"]);
    node.port(PLAIN.0, PortOptions::BARE, &["10.5.0.254/24", "fd00:5::254/64"]);
    add_devices_to(&mut node, &[INSIDE, PLAIN, RED]);
    node.datapath.enable_socket_lookups(true);
    node
}

fn to_us() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")]
}

fn back(flow: &Flow) -> Flow {
    Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow }
}

/// Answers every question, and returns the questions.
fn answer(node: &mut Node, binding: SocketBinding) -> Vec<SocketQuestion> {
    answer_at(NOW, node, binding)
}

fn answer_at(now: base::Instant, node: &mut Node, binding: SocketBinding) -> Vec<SocketQuestion> {
    let mut questions = Vec::new();
    while let Some(question) = node.datapath.socket_question() {
        questions.push(question);
        node.datapath.answer_socket_question(now, &node.mem, binding);
    }
    questions
}

fn up_by(node: &mut Node) -> [usize; 3] {
    [INSIDE, PLAIN, RED].map(|link| up(node, link).len())
}

#[test]
fn first_packet_waits_for_the_answer_and_goes_up_as_it_says() {
    for flow in to_us() {
        for bytes in [flow.udp(10), flow.tcp(1, 10)] {
            for (binding, want) in [(SocketBinding::Link, [2, 0, 0]), (SocketBinding::Vrf, [0, 0, 2])] {
                let mut node = node();
                node.rx_bytes(NOW, INSIDE, &bytes);
                node.rx_bytes(NOW, INSIDE, &bytes);
                assert_eq!(up_by(&mut node), [0, 0, 0], "nothing goes up yet");
                let questions = answer(&mut node, binding);
                assert_eq!(questions.len(), 1, "the second is about the same");
                assert_eq!((questions[0].link, questions[0].vrf, questions[0].flow.dst), (INSIDE, RED, flow.dst));
                assert_eq!((up_by(&mut node), node.drops()), (want, vec![]));
                // The answer is cached for a second, also for other peers of the same port.
                let other = Flow { sport: 7777, ..flow };
                node.rx_bytes(NOW, INSIDE, &if bytes == flow.udp(10) { other.udp(10) } else { other.tcp(1, 10) });
                assert_eq!(answer(&mut node, SocketBinding::NoSocket), []);
                assert_eq!(up_by(&mut node).iter().sum::<usize>(), 1);
                node.rx_bytes(NOW + Duration::from_secs(1), INSIDE, &bytes);
                assert_eq!(answer(&mut node, binding).len(), 1);
            }
        }
    }
}

#[test]
fn packet_of_no_socket_or_an_unbound_one_is_refused() {
    for flow in to_us() {
        let v4 = flow.src.is_ipv4();
        for binding in [SocketBinding::NoSocket, SocketBinding::Unbound] {
            let mut node = node();
            node.rx_bytes(NOW, INSIDE, &flow.udp(10));
            node.rx_bytes(NOW, INSIDE, &flow.tcp(1, 10));
            assert_eq!(answer(&mut node, binding).len(), 2);
            assert_eq!(up_by(&mut node), [0, 0, 0]);
            let sent: Vec<Protocol> = node.tx(INSIDE).iter().map(|pkt| info(pkt).protocol).collect();
            assert_eq!(sent, [if v4 { Protocol::ICMP } else { Protocol::ICMPV6 }, Protocol::TCP]);
            let want = [(INSIDE.0, DropReason::UdpNoPort, 1), (INSIDE.0, DropReason::TcpNoPort, 1)];
            assert!(want.iter().all(|drop| node.drops().contains(drop)), "{:?}", node.drops());
            let mib = if v4 { Mib::UdpNoPorts } else { Mib::Udp6NoPorts };
            assert_eq!(node.datapath.counters.get(mib), 1);
        }
    }
}

#[test]
fn unbound_socket_that_accepts_answers_in_the_vrf() {
    for flow in to_us() {
        for is_tcp in [false, true] {
            let packet = |flow: &Flow| if is_tcp { flow.tcp(1, 10) } else { flow.udp(10) };
            let mut node = node();
            node.datapath.set_l3mdev_accept(L3mdevAccept { tcp: is_tcp, udp: !is_tcp });
            node.rx_bytes(NOW, INSIDE, &packet(&flow));
            assert_eq!(answer(&mut node, SocketBinding::Unbound).len(), 1);
            assert_eq!(up_by(&mut node), [1, 0, 0]);
            // The kernel of the host side routes the reply by its main table.
            down_bytes(&mut node, PLAIN, &packet(&back(&flow)));
            assert_eq!(node.tx(INSIDE).len(), 1, "it leaves in the VRF");
            assert_eq!(node.drops(), []);
            // A packet of another flow is not accepted.
            down_bytes(&mut node, PLAIN, &packet(&Flow { dport: 9, ..back(&flow) }));
            assert_eq!((node.tx(INSIDE).len(), node.drops()), (0, vec![(0, DropReason::SocketVrfUnknown, 1)]));
            assert_eq!(up_by(&mut node).iter().sum::<usize>(), 1, "its socket gets an error");
            // The other protocol does not accept.
            node.rx_bytes(NOW, INSIDE, &if is_tcp { flow.udp(10) } else { flow.tcp(1, 10) });
            answer(&mut node, SocketBinding::Unbound);
            assert_eq!(up_by(&mut node), [0, 0, 0]);
        }
    }
}

/// A node as [`node`], with a second VRF whose link has the same addresses; sockets without a device get packets of both VRFs.
fn two_vrfs() -> Node {
    let mut node = node();
    node.vrf(BLUE.0, 20, &[BLUE_INSIDE.0]);
    node.datapath.set_vrf_port(NOW, BLUE, Some(("blue".to_owned(), 65_575)));
    node.port(BLUE_INSIDE.0, PortOptions::BARE, &["10.1.0.254/24", "fd00:1::254/64"]);
    add_devices_to(&mut node, &[BLUE_INSIDE, BLUE]);
    node.datapath.set_l3mdev_accept(L3mdevAccept { tcp: true, udp: true });
    node
}

const BLUE: PortId = PortId(12);
const BLUE_INSIDE: PortId = PortId(6);

/// Receives a packet, and answers the question about it. Returns whether it went up.
fn goes_up(node: &mut Node, now: base::Instant, link: PortId, bytes: &[u8], binding: SocketBinding) -> bool {
    node.rx_bytes(now, link, bytes);
    answer_at(now, node, binding);
    [INSIDE, PLAIN, RED, BLUE_INSIDE, BLUE].iter().map(|&link| up(node, link).len()).sum::<usize>() > 0
}

#[test]
fn flow_of_an_unbound_socket_is_closed_to_other_domains() {
    for flow in to_us() {
        let mut node = two_vrfs();
        // The main table's own link has the address as well.
        node.port(PLAIN.0, PortOptions::BARE, &["10.1.0.254/24", "fd00:1::254/64"]);
        add_devices_to(&mut node, &[PLAIN]);
        let segment = flow.tcp(1, 10);
        assert!(goes_up(&mut node, NOW, INSIDE, &segment, SocketBinding::Unbound));
        // Neither a segment nor a SYN nor a RST of another domain reaches the socket, which that kernel would take it for.
        for link in [BLUE_INSIDE, PLAIN] {
            for flags in [wire::tcp::Flags::ACK, wire::tcp::Flags::SYN, wire::tcp::Flags::RST] {
                let other = flow.tcp_flags(1, flags);
                assert!(!goes_up(&mut node, NOW, link, &other, SocketBinding::Connected), "{link:?} {flags:?}");
            }
            assert!(node.drops().contains(&(link.0, DropReason::SocketOtherVrf, 3)), "{:?}", node.drops());
        }
        assert!(goes_up(&mut node, NOW, INSIDE, &segment, SocketBinding::Connected));
        down_bytes(&mut node, PLAIN, &back(&flow).tcp(1, 10));
        assert_eq!([INSIDE, BLUE_INSIDE, PLAIN].map(|link| node.tx(link).len()), [1, 0, 0]);
        // The connection is over: the next one may be of the other VRF.
        assert!(goes_up(
            &mut node,
            NOW,
            BLUE_INSIDE,
            &flow.tcp_flags(1, wire::tcp::Flags::SYN),
            SocketBinding::Unbound
        ));
        down_bytes(&mut node, PLAIN, &back(&flow).tcp(1, 10));
        assert_eq!([INSIDE, BLUE_INSIDE, PLAIN].map(|link| node.tx(link).len()), [0, 1, 0]);
    }
}

#[test]
fn datagrams_of_two_vrfs_with_equal_ends_stay_apart() {
    for flow in to_us() {
        let mut node = two_vrfs();
        assert!(goes_up(&mut node, NOW, INSIDE, &flow.udp(10), SocketBinding::Unbound));
        assert!(!goes_up(&mut node, NOW, BLUE_INSIDE, &flow.udp(10), SocketBinding::Unbound));
        assert_eq!(node.drops(), [(BLUE_INSIDE.0, DropReason::SocketOtherVrf, 1)]);
        down_bytes(&mut node, PLAIN, &back(&flow).udp(10));
        assert_eq!([INSIDE, BLUE_INSIDE].map(|link| node.tx(link).len()), [1, 0]);
        // Another port of the other VRF's host is a flow of its own.
        let other = Flow { sport: 7777, ..flow };
        assert!(goes_up(&mut node, NOW, BLUE_INSIDE, &other.udp(10), SocketBinding::Unbound));
        down_bytes(&mut node, PLAIN, &back(&other).udp(10));
        assert_eq!([INSIDE, BLUE_INSIDE].map(|link| node.tx(link).len()), [0, 1]);
        // The flow ends when it has been idle in both directions.
        let later = NOW + Duration::from_secs(120);
        assert!(goes_up(&mut node, later, BLUE_INSIDE, &flow.udp(10), SocketBinding::Unbound));
    }
}

#[test]
fn unknown_flow_of_a_connected_socket_needs_one_owner() {
    for flow in to_us() {
        // As after a restart of the gateway: the connection is older than the table of flows.
        let segment = flow.tcp(1, 10);
        let mut alone = node();
        alone.datapath.set_l3mdev_accept(L3mdevAccept { tcp: true, udp: true });
        assert!(goes_up(&mut alone, NOW, INSIDE, &segment, SocketBinding::Connected), "one domain has the address");
        let mut node = two_vrfs();
        for link in [INSIDE, BLUE_INSIDE] {
            assert!(!goes_up(&mut node, NOW, link, &segment, SocketBinding::Connected), "{link:?}");
        }
        // The known answer about the server is not one about this flow.
        let other = Flow { sport: 7777, ..flow };
        assert!(goes_up(&mut node, NOW, INSIDE, &other.tcp(1, 10), SocketBinding::Unbound));
        assert!(!goes_up(&mut node, NOW, BLUE_INSIDE, &other.tcp(1, 10), SocketBinding::Connected));
        assert!(!goes_up(&mut node, NOW, BLUE_INSIDE, &segment, SocketBinding::Connected));
        down_bytes(&mut node, PLAIN, &back(&flow).tcp(1, 10));
        assert_eq!([INSIDE, BLUE_INSIDE, PLAIN].map(|link| node.tx(link).len()), [0, 0, 0]);
        assert!(node.drops().contains(&(0, DropReason::SocketVrfUnknown, 1)), "{:?}", node.drops());
    }
}

#[test]
fn error_of_another_vrf_about_a_flow_reaches_no_socket() {
    for flow in to_us() {
        let mut node = two_vrfs();
        assert!(goes_up(&mut node, NOW, INSIDE, &flow.udp(10), SocketBinding::Unbound));
        let mut peer = Node::new();
        peer.port(1, PortOptions::BARE, &[if flow.src.is_ipv4() { "10.1.0.1/24" } else { "fd00:1::1/64" }]);
        peer.rx_bytes(NOW, PortId(1), &back(&flow).udp(10));
        let error = only(peer.tx(PortId(1))).to_vec();
        assert!(!goes_up(&mut node, NOW, BLUE_INSIDE, &error, SocketBinding::Unbound));
        assert_eq!(node.drops(), [(BLUE_INSIDE.0, DropReason::SocketOtherVrf, 1)]);
        assert!(goes_up(&mut node, NOW, INSIDE, &error, SocketBinding::Unbound));
    }
}

#[test]
fn socket_bound_after_a_flow_began_gets_its_packets() {
    for flow in to_us() {
        let mut node = two_vrfs();
        assert!(goes_up(&mut node, NOW, INSIDE, &flow.udp(10), SocketBinding::Unbound));
        let later = NOW + Duration::from_secs(1);
        node.rx_bytes(later, INSIDE, &flow.udp(10));
        assert_eq!(answer(&mut node, SocketBinding::Vrf).len(), 1);
        assert_eq!(up_by(&mut node), [0, 0, 1]);
    }
}

/// An echo request with that identifier.
fn echo(flow: &Flow, id: u16) -> Vec<u8> {
    Flow { sport: id, ..*flow }.ping(1, 8)
}

/// An echo reply with that identifier.
fn echo_reply(flow: &Flow, id: u16) -> Vec<u8> {
    let (v4, at) = (flow.src.is_ipv4(), flow.version().header_len());
    let mut bytes = echo(flow, id);
    // Another type, and the checksum moved along.
    let step: u16 = if v4 { 8 << 8 } else { 0 };
    bytes[at] = if v4 { 0 } else { 129 };
    let sum = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
    let sum = if v4 { sum.checked_add(step).unwrap_or(sum.wrapping_add(step) + 1) } else { sum - 0x100 };
    bytes[at + 2..at + 4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn pings_of_one_peer_by_two_devices_get_their_own_replies() {
    for flow in to_us() {
        let sent = back(&flow);
        for replies in [[(1, RED), (2, INSIDE)], [(2, INSIDE), (1, RED)]] {
            let mut node = node();
            for (id, by) in [(1, RED), (2, INSIDE)] {
                down_bytes(&mut node, by, &echo(&sent, id));
            }
            assert_eq!(node.tx(INSIDE).len(), 2);
            for (id, by) in replies {
                let reply = echo_reply(&flow, id);
                node.rx_bytes(NOW, INSIDE, &reply);
                assert_eq!(only(up(&mut node, by)).to_vec(), reply, "{id}");
            }
            assert_eq!((up_by(&mut node), node.drops()), ([0, 0, 0], vec![]));
        }
    }
}

#[test]
fn replies_to_pings_from_outside_fill_no_table() {
    for flow in to_us() {
        let mut node = node();
        for id in 0..100 {
            down_bytes(&mut node, RED, &echo_reply(&back(&flow), id));
        }
        // All of them are one flow of the two addresses.
        assert_eq!(node.datapath.established().len(), 1);
    }
}

#[test]
fn answers_go_up_by_the_device_that_the_socket_sent_by() {
    for flow in to_us() {
        let sent = back(&flow);
        for by in [RED, INSIDE] {
            let mut node = node();
            for (out, reply) in [
                (sent.udp(10), flow.udp(10)),
                (sent.tcp(1, 10), flow.tcp(1, 10)),
                (echo(&sent, 7), echo_reply(&flow, 7)),
            ] {
                down_bytes(&mut node, by, &out);
                assert_eq!(node.tx(INSIDE).len(), 1);
                node.rx_bytes(NOW, INSIDE, &reply);
                assert_eq!(node.datapath.socket_question(), None);
                assert_eq!(only(up(&mut node, by)).to_vec(), reply);
            }
            assert_eq!(up_by(&mut node), [0, 0, 0]);
            assert_eq!(node.drops(), []);
        }
    }
}

#[test]
fn errors_go_up_by_the_device_of_the_flow_that_they_quote() {
    for flow in to_us() {
        let v4 = flow.src.is_ipv4();
        let mut node = node();
        let sent = back(&flow);
        down_bytes(&mut node, RED, &sent.udp(10));
        let quoted = only(node.tx(INSIDE)).to_vec();
        let mut other = Node::new();
        other.port(1, PortOptions::BARE, &[if v4 { "10.1.0.1/24" } else { "fd00:1::1/64" }]);
        other.rx_bytes(NOW, PortId(1), &quoted);
        let error = only(other.tx(PortId(1))).to_vec();
        node.rx_bytes(NOW, INSIDE, &error);
        assert_eq!(up_by(&mut node), [0, 0, 1], "port unreachable, from the peer");
        // The node's own error about a packet of the socket.
        let far = if v4 { "10.77.0.1" } else { "fd00:77::1" }.parse().unwrap();
        down_bytes(&mut node, RED, &Flow { dst: far, ..sent }.udp(10));
        assert_eq!(up_by(&mut node), [0, 0, 1], "no route, from the node");
    }
}

#[test]
fn port_scan_causes_bounded_socket_lookups() {
    let mut node = node();
    let flow = to_us()[0];
    let mut questions = 0;
    for dport in 0..3000 {
        node.rx_bytes(NOW, INSIDE, &Flow { dport, ..flow }.udp(10));
        questions += answer(&mut node, SocketBinding::NoSocket).len();
    }
    assert_eq!(questions, 1000);
    assert!(node.drops().contains(&(INSIDE.0, DropReason::SocketUnknown, 2000)), "{:?}", node.drops());
    // The number of waiting packets is bounded, too.
    let later = NOW + Duration::from_secs(1);
    for dport in 3000..6000 {
        node.rx_bytes(later, INSIDE, &Flow { dport, ..flow }.udp(10));
    }
    assert_eq!(answer(&mut node, SocketBinding::NoSocket).len(), 1000);
}

#[test]
fn node_without_answers_delivers_by_the_link() {
    let mut node = node();
    node.datapath.enable_socket_lookups(false);
    node.rx_bytes(NOW, INSIDE, &to_us()[0].udp(10));
    assert_eq!((node.datapath.socket_question(), up_by(&mut node)), (None, [1, 0, 0]));
    // A link outside any VRF causes no question.
    let mut node = self::node();
    node.rx_bytes(NOW, PLAIN, &Flow::new("10.5.0.1", "10.5.0.254").udp(10));
    assert_eq!((node.datapath.socket_question(), up_by(&mut node)), (None, [0, 1, 0]));
}

#[test]
fn broadcast_of_a_socket_of_the_vrf_follows_its_table() {
    for is_shaped in [false, true] {
        let mut node = Node::new();
        node.vrf(RED.0, 10, &[INSIDE.0]);
        node.datapath.set_vrf_port(NOW, RED, Some(("red".to_owned(), 65_575)));
        node.port(INSIDE.0, PortOptions::ethernet(1), &["10.1.0.254/24"]);
        node.port(PLAIN.0, PortOptions::ethernet(5), &["10.5.0.254/24"]);
        add_devices_to(&mut node, &[INSIDE, PLAIN, RED]);
        if is_shaped {
            node.datapath.set_qdisc(NOW, &node.mem, RED, Some(Options::Pfifo { limit: 1000 })).unwrap();
        }
        let limited = Flow::new("10.1.0.254", "255.255.255.255").udp(100);
        // Without a route in the VRF there is no link for the limited broadcast address.
        down_bytes(&mut node, RED, &limited);
        assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
        let prefix = "0.0.0.0/0".parse().unwrap();
        let kind = RouteKind::Unicast { via: None, dev: INSIDE };
        node.datapath.fib.add(TableId(10), Route { prefix, kind, metric: 0 }).unwrap();
        for bytes in [limited, Flow::new("10.1.0.254", "10.1.0.255").udp(4000)] {
            down_bytes(&mut node, RED, &bytes);
            let sent = node.tx(INSIDE);
            assert!(!sent.is_empty() && node.tx(PLAIN).is_empty());
            assert!(sent.iter().all(|pkt| EthHeader::ref_from(pkt.head()).unwrap().dst() == MacAddr::BROADCAST));
        }
        assert_eq!(node.drops().len(), 1);
    }
}

//! Device of a VRF: hooks, lookups, counters and captures of each kind of packet, with and without a queueing
//! discipline.

use std::net::IpAddr;
use std::time::Duration;

use base::{DropReason, Instant, Mib, PortId, TableId};
use datapath::{HookPoint, Step, TapPoints, TraceFilter, Traffic};
use fib::{Route, RouteKind, Vrf};
use packet::Packet;
use qdisc::{Depth, LinkLayer, Options, RateSpec, Stats, Tbf};
use sim::{Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::eth::{self, EtherType};
use wire::{MacAddr, Protocol, icmpv6, nd};
use xfrm::{Dir, Mode};

use crate::common::*;
use crate::host_side::{add_devices_to, down, down_bytes, up};

const RED: PortId = PortId(11);
const BLUE: PortId = PortId(12);
const TABLE: TableId = TableId(10);

/// A router whose links are in a VRF, with sockets.
fn red_router(outside: PortOptions) -> Node {
    let mut node = Node::new();
    node.vrf(RED.0, TABLE.0, &[INSIDE.0, OUTSIDE.0]);
    node.datapath.set_vrf_port(NOW, RED, Some(("red".to_owned(), 65_575)));
    node.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.1.0.254/24", "fd00:1::254/64"]);
    node.port(OUTSIDE.0, outside, &["10.2.0.254/24", "fd00:2::254/64"]);
    add_devices_to(&mut node, &[INSIDE, OUTSIDE, RED]);
    node
}

const FIFO: Options = Options::Pfifo { limit: 1000 };

/// 8 Mbit/s, ten kilobytes at once.
fn tbf() -> Options {
    let rate = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };
    Options::Tbf(Tbf { limit: 50_000, rate, burst: Depth::Bytes(10_000), peak: None })
}

fn shape(node: &mut Node, options: Option<Options>) {
    node.datapath.set_qdisc(NOW, &node.mem, RED, options).unwrap();
}

fn traffic(node: &Node) -> Traffic {
    node.datapath.ports.get(RED).unwrap().traffic
}

/// Steps at the VRF's device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Seen {
    /// Pre-routing.
    Pre(PortId),
    /// Local in.
    In(PortId),
    /// Local out.
    Out(PortId),
    /// Post-routing.
    Post(PortId),
    /// A look-up in the domain of the VRF.
    Lookup,
    /// In the queue of a device.
    Queued(PortId),
    /// Passed to a device of the host side.
    Up(PortId),
}

use Seen::{In, Lookup, Out, Post, Pre, Queued, Up};

fn seen(node: &mut Node) -> Vec<Seen> {
    let steps = node.datapath.take_trace().filter_map(|step| match step.step {
        Step::Hook { point, dev } => Some(match point {
            HookPoint::PreRouting => Pre(dev),
            HookPoint::LocalIn => In(dev),
            HookPoint::LocalOut => Out(dev),
            HookPoint::PostRouting => Post(dev),
            HookPoint::Forward => panic!("nothing is forwarded"),
        }),
        Step::Route { domain, .. } => {
            assert_eq!(domain.vrf_device(), Some(RED));
            Some(Lookup)
        }
        Step::Queued { dev } => Some(Queued(dev)),
        Step::Up { dev } => Some(Up(dev)),
        _ => None,
    });
    steps.collect()
}

/// Packets that pass the VRF's device: received and sent.
fn passed(node: &Node) -> [u64; 2] {
    let Traffic { rx_packets, tx_packets, tx_errors, .. } = traffic(node);
    assert_eq!(tx_errors, 0);
    [rx_packets, tx_packets]
}

/// Runs a packet through a traced node. Returns its steps, the number of passes of the VRF's device in and out, and the
/// number of captures there.
fn trace(node: &mut Node, run: impl FnOnce(&mut Node)) -> (Vec<Seen>, [u64; 2]) {
    node.datapath.set_tap(RED, TapPoints { wire: false, fat: true });
    node.datapath.set_trace(Some(TraceFilter::default()), 9);
    let before = passed(node);
    run(node);
    let after = passed(node);
    let passed = [0, 1].map(|way| after[way] - before[way]);
    let taps: Vec<bool> = node.datapath.take_tapped().filter(|tap| tap.link == RED).map(|tap| tap.outbound).collect();
    for (way, outbound) in [false, true].into_iter().enumerate() {
        assert_eq!(taps.iter().filter(|&&it| it == outbound).count() as u64, passed[way], "a copy of each");
    }
    (seen(node), passed)
}

#[test]
fn socket_packets_pass_hooks_lookups_and_taps_as_listed() {
    for flow in [Flow::new("10.2.0.254", "10.2.0.1"), Flow::new("fd00:2::254", "fd00:2::1")] {
        for is_queued in [false, true] {
            let mut node = red_router(PortOptions::BARE);
            shape(&mut node, is_queued.then_some(FIFO));
            for by in [RED, OUTSIDE] {
                let got = trace(&mut node, |node| down_bytes(node, by, &flow.udp(100)));
                let mut want = vec![Lookup, Out(RED), Post(RED)];
                if is_queued {
                    want.extend([Queued(RED), Lookup]);
                }
                want.extend([Out(OUTSIDE), Post(OUTSIDE), Queued(OUTSIDE)]);
                assert_eq!(got, (want, [0, 1]), "by {by:?}");
                assert_eq!(only(node.tx(OUTSIDE)).to_vec(), flow.udp(100));
            }
            assert_eq!(node.drops(), []);
        }
    }
}

#[test]
fn answers_pass_the_device_as_packets_of_sockets_do() {
    for flow in [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")] {
        for is_queued in [false, true] {
            let mut node = red_router(PortOptions::BARE);
            shape(&mut node, is_queued.then_some(FIFO));
            let got = trace(&mut node, |node| node.rx_bytes(NOW, INSIDE, &flow.ping(1, 8)));
            let mut want = vec![Pre(INSIDE), Pre(RED), Lookup, In(INSIDE), Lookup, Out(RED), Post(RED)];
            if is_queued {
                want.extend([Queued(RED), Lookup]);
            }
            want.extend([Out(INSIDE), Post(INSIDE), Queued(INSIDE)]);
            assert_eq!(got, (want, [1, 1]));
        }
    }
}

#[test]
fn packet_to_own_address_comes_back_by_the_device() {
    for own in ["10.1.0.254", "fd00:1::254"] {
        for is_queued in [false, true] {
            let flow = Flow::new(own, own);
            let mut node = red_router(PortOptions::BARE);
            shape(&mut node, is_queued.then_some(FIFO));
            let got = trace(&mut node, |node| down_bytes(node, RED, &flow.udp(100)));
            assert_eq!(got, (vec![Lookup, Out(RED), Post(RED), Pre(RED), In(RED), Up(RED)], [0, 1]));
            assert_eq!(only(up(&mut node, RED)).to_vec(), flow.udp(100));
            // A ping of the node to itself is answered by the node.
            down_bytes(&mut node, RED, &flow.ping(3, 8));
            assert_eq!(parse_icmp(&only(up(&mut node, RED))).src, own);
            assert_eq!(node.drops(), []);
        }
    }
    // A device that is down sends nothing, and an address of another domain is not this one's.
    let mut node = red_router(PortOptions::BARE);
    node.port(5, PortOptions::BARE, &["10.5.0.254/24"]);
    down_bytes(&mut node, RED, &Flow::new("10.1.0.254", "10.5.0.254").udp(1));
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
    node.datapath.fib.set_vrf(RED, Some(Vrf { table: TABLE, up: false }));
    down_bytes(&mut node, RED, &Flow::new("10.1.0.254", "10.1.0.254").udp(1));
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 2)]);
}

#[test]
fn groups_and_link_local_addresses_pass_by_the_device() {
    for is_queued in [false, true] {
        let mut node = red_router(PortOptions::ethernet(2));
        shape(&mut node, is_queued.then_some(FIFO));
        let own = mac(2).link_local().to_string();
        for (flow, is_group) in [
            (Flow::new("10.2.0.254", "224.0.0.9"), true),
            (Flow::new("fd00:2::254", "ff02::9"), true),
            (Flow::new(&own, "fe80::9"), false),
        ] {
            let (to, ethertype) = match flow.dst {
                IpAddr::V4(group) => (MacAddr::multicast_v4(group), EtherType::IPV4),
                IpAddr::V6(group) if is_group => (MacAddr::multicast_v6(group), EtherType::IPV6),
                IpAddr::V6(_) => (mac(2), EtherType::IPV6),
            };
            let frame = [eth::EthHeader::new(to, mac(2), ethertype).as_bytes(), &flow.udp(10)].concat();
            let (got, passed) = trace(&mut node, |node| down_bytes(node, OUTSIDE, &frame));
            assert!(!got.iter().any(|seen| matches!(seen, Out(RED) | Post(RED) | Queued(RED))), "{got:?}");
            assert!(got.contains(&Out(OUTSIDE)), "{got:?}");
            assert_eq!(passed, [0, 0]);
        }
        // Received: the link's hooks alone.
        let mut node = red_router(PortOptions::BARE);
        for dst in ["224.0.0.1", "ff02::1"] {
            let src = if dst.contains(':') { "fd00:2::1" } else { "10.2.0.1" };
            let (got, passed) = trace(&mut node, |node| node.rx_bytes(NOW, OUTSIDE, &Flow::new(src, dst).udp(10)));
            assert_eq!((&got[..2], passed), (&[Pre(OUTSIDE), Lookup][..], [0, 0]));
        }
    }
}

#[test]
fn neighbour_discovery_keeps_its_link() {
    let mut node = red_router(PortOptions::ethernet(2));
    for dst in ["fd00:2::254", "ff02::1:ff00:254"] {
        let ask = Flow { ttl: 255, ..Flow::new("fd00:2::1", dst) };
        let (IpAddr::V6(from), IpAddr::V6(to)) = (ask.src, ask.dst) else { panic!("{ask:?}") };
        let target = "fd00:2::254".parse().unwrap();
        let mut message = nd::Neighbour::solicit(target).as_bytes().to_vec();
        message.extend_from_slice(nd::LinkAddr::source(mac(9)).as_bytes());
        icmpv6::fill_check(&mut message, from, to).unwrap();
        let station = if to.is_multicast() { MacAddr::multicast_v6(to) } else { mac(2) };
        let header = eth::EthHeader::new(station, mac(9), EtherType::IPV6);
        let frame = [header.as_bytes(), &ask.raw(Protocol::ICMPV6, &message)].concat();
        let (got, passed) = trace(&mut node, |node| node.rx_bytes(NOW, OUTSIDE, &frame));
        assert_eq!((&got[..2], passed), (&[Pre(OUTSIDE), Pre(RED)][..], [0, 0]), "{dst}");
        assert!(got.contains(&In(OUTSIDE)), "{got:?}");
    }
}

#[test]
fn outer_packets_of_esp_pass_by_the_device() {
    for (end, peer) in [("10.2.0.254", "10.2.0.1"), ("fd00:2::254", "fd00:2::1")] {
        for is_queued in [false, true] {
            let mut node = red_router(PortOptions::BARE);
            shape(&mut node, is_queued.then_some(FIFO));
            let sa = esp(end, peer, 1, Mode::Tunnel, false);
            let len = if end.contains(':') { 128 } else { 32 };
            let ends = [end, peer].map(|end| format!("{end}/{len}"));
            let protecting = policy(Dir::Out, &ends[0], &ends[1], std::slice::from_ref(&sa));
            node.datapath.ipsec.add_policy(protecting).unwrap();
            node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
            let (got, passed) = trace(&mut node, |node| down_bytes(node, RED, &Flow::new(end, peer).udp(100)));
            let mut want = vec![Lookup, Out(RED), Post(RED)];
            if is_queued {
                want.extend([Queued(RED), Lookup]);
            }
            want.extend([Out(OUTSIDE), Post(OUTSIDE), Queued(OUTSIDE)]);
            assert_eq!((got, passed), (want, [0, 1]), "the inner packet passes, the outer one does not");
            assert_eq!(info(&only(node.tx(OUTSIDE))).protocol, Protocol::ESP);
        }
    }
}

#[test]
fn queue_of_the_device_shapes_and_counts() {
    let flow = Flow::new("10.2.0.254", "10.2.0.1");
    let mut node = red_router(PortOptions::BARE);
    shape(&mut node, Some(tbf()));
    for seq in [1, 4201, 8401] {
        let fat = flow.fat_tcp(&node.mem, seq, 4200, 1400);
        down(&mut node, RED, fat);
    }
    let stats = |node: &Node| node.datapath.qdisc_stats(RED).unwrap();
    // Three segments of 1440 bytes each, whole: 4320 of 10 000 tokens, twice.
    let lens = |node: &mut Node| node.tx(OUTSIDE).iter().map(Packet::len).collect::<Vec<_>>();
    let fat_len = flow.fat_tcp(&node.mem, 1, 4200, 1400).len();
    assert_eq!(lens(&mut node), [fat_len; 2]);
    assert_eq!((stats(&node).qlen, traffic(&node).tx_packets), (1, 2));
    let due = node.datapath.poll_timeout().unwrap();
    assert!(due > NOW);
    node.timeout(due);
    assert_eq!(lens(&mut node), [fat_len]);
    assert_eq!((stats(&node).qlen, stats(&node).backlog, traffic(&node).tx_packets), (0, 0, 3));
}

#[test]
fn packets_whose_route_goes_while_they_wait_are_errors() {
    for flow in [Flow::new("10.2.0.254", "10.77.0.1"), Flow::new("fd00:2::254", "fd00:77::1")] {
        let v4 = flow.src.is_ipv4();
        let mut node = red_router(PortOptions::BARE);
        shape(&mut node, Some(tbf()));
        let prefix = if v4 { "10.77.0.0/16" } else { "fd00:77::/64" }.parse().unwrap();
        let route = Route { prefix, kind: RouteKind::Unicast { via: None, dev: OUTSIDE }, metric: 1024 };
        node.datapath.fib.add(TABLE, route).unwrap();
        for _ in 0..8 {
            down_bytes(&mut node, RED, &flow.udp(1400));
        }
        assert_eq!(node.tx(OUTSIDE).len(), 7 - usize::from(!v4));
        assert!(node.datapath.fib.remove(TABLE, &route));
        node.timeout(node.datapath.poll_timeout().unwrap());
        assert_eq!((node.tx(OUTSIDE).len(), traffic(&node).tx_errors), (0, 1));
        let mib = if v4 { Mib::IpOutNoRoutes } else { Mib::Ip6OutNoRoutes };
        assert_eq!(node.datapath.counters.get(mib), 1);
        assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1)]);
        // The socket gets an error.
        assert_eq!(up(&mut node, OUTSIDE).len() + up(&mut node, RED).len(), 1);
    }
}

#[test]
fn discipline_added_and_removed_in_mid_flow_loses_what_waits() {
    let flow = Flow::new("10.2.0.254", "10.2.0.1");
    let mut node = red_router(PortOptions::BARE);
    let mut sent = 0;
    let mut send = |node: &mut Node, n: usize| {
        for _ in 0..n {
            down_bytes(node, RED, &flow.udp(1400));
            sent += 1;
        }
    };
    send(&mut node, 3);
    shape(&mut node, Some(tbf()));
    send(&mut node, 9);
    let Stats { qlen, .. } = node.datapath.qdisc_stats(RED).unwrap();
    assert_eq!(qlen, 2);
    shape(&mut node, None);
    send(&mut node, 3);
    assert_eq!(node.tx(OUTSIDE).len() as u32 + qlen, sent);
    assert_eq!(node.drops(), [(0, DropReason::QdiscRemoved, qlen.into())]);
    // The same for a device that is set down, or removed.
    for is_removed in [false, true] {
        let mut node = red_router(PortOptions::BARE);
        shape(&mut node, Some(tbf()));
        for _ in 0..9 {
            down_bytes(&mut node, RED, &flow.udp(1400));
        }
        if is_removed {
            node.datapath.set_vrf_port(NOW, RED, None);
        } else {
            node.datapath.fib.set_vrf(RED, Some(Vrf { table: TABLE, up: false }));
            node.datapath.set_vrf_port(NOW, RED, Some(("red".to_owned(), 65_575)));
        }
        assert_eq!(node.drops(), [(0, DropReason::LinkDown, 2)]);
        node.timeout(NOW + Duration::from_secs(9));
        assert_eq!(node.tx(OUTSIDE).len(), 7);
    }
}

#[test]
fn link_scope_means_nothing_on_the_device() {
    let mut node = red_router(PortOptions::BARE);
    for dst in ["fe80::9", "ff02::9"] {
        down_bytes(&mut node, RED, &Flow::new("fd00:2::254", dst).udp(10));
    }
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 2)]);
    let errors: Vec<_> = up(&mut node, OUTSIDE).iter().chain(&up(&mut node, RED)).map(parse_icmp).collect();
    assert_eq!(errors.len(), 1, "a socket gets an error, but not about a group: {errors:?}");
    // The routes of the VRF have the links of IPv4 groups.
    let group = Flow::new("10.2.0.254", "224.0.0.9");
    down_bytes(&mut node, RED, &group.udp(10));
    assert_eq!(node.drops(), [(0, DropReason::NoRoute, 3)]);
    let prefix = "224.0.0.0/4".parse().unwrap();
    let route = Route { prefix, kind: RouteKind::Unicast { via: None, dev: OUTSIDE }, metric: 0 };
    node.datapath.fib.add(TABLE, route).unwrap();
    let (got, passed) = trace(&mut node, |node| down_bytes(node, RED, &group.udp(10)));
    assert_eq!((got, passed), (vec![Out(OUTSIDE), Post(OUTSIDE), Queued(OUTSIDE)], [0, 0]));
}

#[test]
fn two_vrfs_have_a_discipline_each() {
    let mut node = Node::new();
    node.vrf(RED.0, 10, &[1]);
    node.vrf(BLUE.0, 20, &[2]);
    for (link, vrf, name) in [(1, RED, "red"), (2, BLUE, "blue")] {
        node.datapath.set_vrf_port(NOW, vrf, Some((name.to_owned(), 65_575)));
        node.port(link, PortOptions::BARE, &["10.1.0.254/24"]);
    }
    add_devices_to(&mut node, &[RED, BLUE]);
    shape(&mut node, Some(tbf()));
    let flow = Flow::new("10.1.0.254", "10.1.0.1");
    for by in [RED, BLUE] {
        (0..9).for_each(|_| down_bytes(&mut node, by, &flow.udp(1400)));
    }
    assert_eq!([1, 2].map(|link| node.tx(PortId(link)).len()), [7, 9]);
    let late: Instant = NOW + Duration::from_secs(1);
    node.timeout(late);
    assert_eq!([1, 2].map(|link| node.tx(PortId(link)).len()), [2, 0]);
}

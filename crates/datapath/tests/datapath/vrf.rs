//! VRFs: equal addresses in two VRFs of one node are independent.

use base::{Domain, DropReason, Mib, PortId, Prefix, TableId};
use fib::{Fib, Route, RouteKind, Rule, Vrf};
use packet::{Memory, Packet};
use sim::{Flow, Node, PortOptions, esp, policy, unique_mask};
use wire::{Protocol, Version, icmp, icmpv6};
use xfrm::{Action, Dir, Mode, PolicyConfig, Selector};

use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;
use crate::path_mtu::too_big;

/// Two VRFs, each with a link inside and one outside, which have the addresses of [`router`]'s links; and one link
/// outside of both.
const RED: u32 = 11;
const BLUE: u32 = 12;
const IN: [PortId; 2] = [PortId(1), PortId(3)];
const OUT: [PortId; 2] = [PortId(2), PortId(4)];
const NEITHER: PortId = PortId(5);

fn two_vrfs() -> Node {
    let mut node = Node::new();
    node.vrf(RED, 10, &[1, 2]);
    node.vrf(BLUE, 20, &[3, 4]);
    for vrf in 0..2 {
        node.port(IN[vrf].0, PortOptions::BARE.mtu(9000), &["10.1.0.254/24", "fd00:1::254/64"]);
        node.port(OUT[vrf].0, PortOptions::BARE, &["10.2.0.254/24", "fd00:2::254/64"]);
    }
    node.port(NEITHER.0, PortOptions::BARE, &["10.3.0.254/24", "fd00:3::254/64"]);
    node
}

/// Links with packets in their transmit queue, and the packets.
fn sent(node: &mut Node) -> Vec<(PortId, Vec<Packet>)> {
    let all = [IN[0], OUT[0], IN[1], OUT[1], NEITHER].map(|link| (link, node.tx(link)));
    all.into_iter().filter(|(_, packets)| !packets.is_empty()).collect()
}

#[test]
fn packets_go_on_in_the_vrf_that_they_came_by() {
    for flow in flows() {
        let mut node = two_vrfs();
        for vrf in [0, 1, 1, 0] {
            node.rx_bytes(NOW, IN[vrf], &flow.udp(100 + vrf));
            let [(link, ref packets)] = sent(&mut node)[..] else { panic!("one link") };
            assert_eq!((link, packets.len()), (OUT[vrf], 1));
            assert_eq!(packets[0].to_vec(), Flow { ttl: 63, ..flow }.udp(100 + vrf));
        }
        assert_eq!(node.drops(), []);
        // A link outside both VRFs does not use their routes.
        node.rx_bytes(NOW, NEITHER, &flow.udp(1));
        assert_eq!(node.drops(), [(0, DropReason::NoRoute, 1), (NEITHER.0, DropReason::NoRoute, 1)]);
    }
}

#[test]
fn vrf_lookup_falls_through_to_the_main_table() {
    for (far, own) in [("10.3.0.1", "10.3.0.254"), ("fd00:3::1", "fd00:3::254")] {
        let near = if far.contains(':') { "fd00:1::1" } else { "10.1.0.1" };
        let mut node = two_vrfs();
        node.rx_bytes(NOW, IN[0], &Flow::new(near, far).udp(1));
        assert_eq!(only(node.tx(NEITHER)).len(), Flow::new(near, far).udp(1).len());
        // Answered in the VRF of the request, though another domain has the address.
        node.rx_bytes(NOW, IN[1], &Flow::new(near, own).ping(1, 8));
        let [(IN_BLUE, ref replies)] = sent(&mut node)[..] else { panic!("by blue alone") };
        assert_eq!(parse_icmp(&replies[0]).src, own);
        // Unless the rule of the local table comes after that of the VRF, and the VRF has a route.
        let v4 = !far.contains(':');
        let rules = vec![Rule::ask_vrf(), Rule::ask(TableId::LOCAL), Rule::ask(TableId::MAIN)];
        node.datapath.fib.set_rules(v4, rules);
        let prefix = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
        let unreachable = Route { prefix, kind: RouteKind::Unreachable, metric: u32::MAX };
        node.datapath.fib.add(TableId(20), unreachable).unwrap();
        node.rx_bytes(NOW, IN[1], &Flow::new(near, own).ping(1, 8));
        node.rx_bytes(NOW, IN[1], &Flow::new(near, far).udp(1));
        assert_eq!(node.drops(), [(IN[1].0, DropReason::RouteUnreachable, 2)]);
    }
}

const IN_BLUE: PortId = IN[1];

#[test]
fn fragments_are_reassembled_per_vrf() {
    for flow in [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")] {
        let mut node = two_vrfs();
        let mem = Memory::heap();
        let data = [[0xaa; 4000], [0xbb; 4000]];
        // Both have the same identification.
        let mut pieces = data.map(|data| fragments(&mem, &flow.ping_with(3, &data), 1500));
        assert_eq!(pieces[0].len(), 3);
        while !pieces[0].is_empty() {
            for (link, pieces) in IN.into_iter().zip(&mut pieces) {
                node.rx(NOW, link, vec![pieces.remove(0)]);
            }
        }
        for (link, data) in IN.into_iter().zip(data) {
            let reply = parse_icmp(&only(node.tx(link)));
            assert_eq!((reply.src, reply.quote), (flow.dst.to_string(), data.to_vec()), "by {link:?}");
        }
        // The same in bursts, as trains.
        let [mut one, mut other] = data.map(|data| fragments(&mem, &flow.ping_with(4, &data), 1500));
        let last = one.pop();
        node.rx(NOW, IN[0], one);
        node.rx(NOW, IN[1], vec![other.remove(0)]);
        node.rx(NOW, IN[1], other);
        assert_eq!(parse_icmp(&only(node.tx(IN[1]))).quote, data[1]);
        node.rx(NOW, IN[0], last.into_iter().collect());
        assert_eq!(parse_icmp(&only(node.tx(IN[0]))).quote, data[0]);
        assert_eq!((node.drops(), node.tx(IN[1]).len()), (vec![], 0));
    }
}

#[test]
fn icmp_errors_are_sent_in_the_input_vrf() {
    for flow in flows() {
        for inside in IN {
            let mut node = two_vrfs();
            let v4 = flow.version() == Version::V4;
            node.rx_bytes(NOW, inside, &Flow { ttl: 1, ..flow }.udp(10));
            node.rx_bytes(NOW, inside, &Flow { dont_fragment: true, ..flow }.udp(4000));
            let [(link, ref packets)] = sent(&mut node)[..] else { panic!("by one link") };
            let all: Vec<_> = packets.iter().map(parse_icmp).collect();
            let own = if v4 { "10.1.0.254" } else { "fd00:1::254" };
            assert!(link == inside && all.iter().all(|it| it.src == own && it.dst == flow.src.to_string()), "{all:?}");
            let want = match v4 {
                true => [
                    Message::V4(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL)),
                    Message::V4(icmp::IcmpMessage::FragNeeded { mtu: 1500 }),
                ],
                false => [
                    Message::V6(icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::HOP_LIMIT)),
                    Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu: 1500 }),
                ],
            };
            assert_eq!([all[0].message, all[1].message], want);
        }
    }
}

#[test]
fn route_by_a_vrf_device_enters_it_and_by_a_link_leaves_it() {
    for [flow, back] in [
        [Flow::new("10.3.0.1", "10.2.0.1"), Flow::new("10.2.0.1", "10.3.0.1")],
        [Flow::new("fd00:3::1", "fd00:2::1"), Flow::new("fd00:2::1", "fd00:3::1")],
    ] {
        let mut node = two_vrfs();
        let net = if flow.src.is_ipv4() { "10.2.0.0/24" } else { "fd00:2::/64" };
        node.route(net, None, PortId(BLUE));
        node.rx_bytes(NOW, NEITHER, &flow.udp(10));
        assert_eq!(only(node.tx(OUT[1])).to_vec(), Flow { ttl: 63, ..flow }.udp(10));
        // The reply is routed by the main table.
        node.rx_bytes(NOW, OUT[1], &back.udp(10));
        assert_eq!(only(node.tx(NEITHER)).to_vec(), Flow { ttl: 63, ..back }.udp(10));
        // An error about a dropped packet goes back by its input link.
        node.rx_bytes(NOW, NEITHER, &Flow { ttl: 1, ..flow }.udp(10));
        assert_eq!(parse_icmp(&only(node.tx(NEITHER))).dst, flow.src.to_string());
        // An address there is this node's, too.
        let own = if flow.src.is_ipv4() { "10.2.0.254" } else { "fd00:2::254" };
        node.rx_bytes(NOW, NEITHER, &Flow::new(&flow.src.to_string(), own).ping(1, 8));
        assert_eq!(parse_icmp(&only(node.tx(NEITHER))).src, own);
        // From one VRF by a link of the other; and in a loop.
        let via = |dev| Route { prefix: net.parse().unwrap(), kind: RouteKind::Unicast { via: None, dev }, metric: 0 };
        let add = |fib: &mut Fib, table, dev| {
            fib.insert(TableId(table), via(dev), true);
            let route = Route { metric: if flow.src.is_ipv4() { 0 } else { 256 }, ..via(OUT[table as usize / 10 - 1]) };
            assert!(fib.remove(TableId(table), &route));
        };
        add(&mut node.datapath.fib, 10, OUT[1]);
        node.rx_bytes(NOW, IN[0], &Flow { dst: flow.dst, ..flows()[usize::from(flow.src.is_ipv6())] }.udp(10));
        assert_eq!(node.tx(OUT[1]).len(), 1);
        assert!(node.datapath.fib.remove(TableId(10), &via(OUT[1])));
        node.datapath.fib.insert(TableId(10), via(PortId(BLUE)), true);
        add(&mut node.datapath.fib, 20, PortId(RED));
        let drops = node.drops().len();
        node.rx_bytes(NOW, NEITHER, &flow.udp(10));
        assert_eq!((node.drops().len(), sent(&mut node).len()), (drops + 1, 1), "answered unreachable");
    }
}

#[test]
fn down_vrf_forwards_but_does_not_answer() {
    for flow in flows() {
        let mut node = two_vrfs();
        node.datapath.fib.set_vrf(PortId(RED), Some(Vrf { table: TableId(10), up: false }));
        node.rx_bytes(NOW, IN[0], &flow.udp(10));
        assert_eq!(node.tx(OUT[0]).len(), 1);
        let own = if flow.src.is_ipv4() { "10.1.0.254" } else { "fd00:1::254" };
        node.rx_bytes(NOW, IN[0], &Flow::new(&flow.src.to_string(), own).ping(1, 8));
        assert_eq!((sent(&mut node).len(), node.drops()), (0, vec![(0, DropReason::LinkDown, 1)]));
    }
}

#[test]
fn arp_is_answered_in_the_vrf_of_the_address_only() {
    let mut node = Node::new();
    node.vrf(RED, 10, &[1]);
    node.vrf(BLUE, 20, &[2]);
    node.port(1, PortOptions::ethernet(1), &["10.1.0.254/24", "fd00:1::254/64"]);
    node.port(2, PortOptions::ethernet(2), &["10.1.0.253/24", "fd00:1::253/64"]);
    let ask = |link: u8, target: [u8; 4]| {
        let mut frame = [[0xff; 6], mac(9).0, [8, 6, 0, 1, 8, 0], [6, 4, 0, 1, 2, 0]].concat();
        frame.extend([0, 0, 0, 9, 10, 1, 0, 9, 0, 0, 0, 0, 0, 0]);
        frame.extend(target);
        (PortId(link.into()), frame)
    };
    for (own, its) in [([10, 1, 0, 254], 1), ([10, 1, 0, 253], 2)] {
        for link in [1, 2] {
            let (port, frame) = ask(link, own);
            node.rx_bytes(NOW, port, &frame);
            assert_eq!(node.tx(port).len(), usize::from(link == its), "{own:?} by {link}");
        }
    }
}

/// Moves every link of a node, and all routes, into a VRF.
fn into_vrf(node: &mut Node) {
    let fib = &mut node.datapath.fib;
    let routes: Vec<_> = fib.routes().map(|(table, route)| (table, *route)).collect();
    for (table, route) in routes {
        assert!(fib.remove(table, &route));
        fib.insert(TableId(10), route, false);
    }
    node.vrf(RED, 10, &[INSIDE.0, OUTSIDE.0]);
}

#[test]
fn tunnel_of_links_in_a_vrf_is_routed_and_narrowed_there() {
    for tunnel in TUNNELS {
        let [flow, _] = flows();
        let mut world = tunnelled(tunnel, 1);
        world.nodes.iter_mut().for_each(into_vrf);
        world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(1000));
        let sealed = only(world.nodes[0].tx(OUTSIDE)).to_vec();
        world.nodes[1].rx_bytes(NOW, OUTSIDE, &sealed);
        let mut want = flow;
        want.ttl -= 2;
        assert_eq!(only(world.nodes[1].tx(INSIDE)).to_vec(), want.udp(1000), "{tunnel:?}");
        let [here, there] = ENDS[usize::from(tunnel.v6)];
        let spi_end = if tunnel.v6 { 44 } else { 24 } + if tunnel.udp { 8 } else { 0 };
        let node = &mut world.nodes[0];
        node.rx_bytes(NOW, OUTSIDE, &too_big(tunnel.v6, 1300, here, &sealed[..spi_end]));
        let known: Vec<_> = node.datapath.fib.path_mtus(NOW).map(|(to, known)| (to, known.mtu)).collect();
        assert_eq!(known, [((Domain::vrf(PortId(RED)), there.parse().unwrap()), 1300)], "{tunnel:?}");
        node.rx_bytes(NOW, INSIDE, &Flow { dont_fragment: true, ..flow }.udp(1400));
        let Message::V4(icmp::IcmpMessage::FragNeeded { mtu }) = parse_icmp(&only(node.tx(INSIDE))).message else {
            panic!()
        };
        assert!((1200..1300).contains(&mtu), "{tunnel:?} {mtu}");
    }
}

#[test]
fn reply_that_waits_for_its_sa_leaves_in_its_vrf() {
    let mut node = Node::new();
    node.vrf(RED, 10, &[INSIDE.0]);
    node.port(INSIDE.0, PortOptions::BARE, &["10.1.0.254/24"]);
    let sa = esp("10.1.0.254", "10.1.0.1", 1, Mode::Transport, false);
    node.datapath
        .ipsec
        .add_policy(policy(Dir::Out, "10.1.0.254/32", "10.1.0.1/32", std::slice::from_ref(&sa)))
        .unwrap();
    node.datapath.ipsec.set_larval_drop(false);
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.1.0.254").ping(1, 8));
    assert_eq!((node.datapath.ipsec.held(), node.drops()), (1, vec![]));
    node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    while node.datapath.ipsec.held() > 0 {
        node.timeout(node.datapath.poll_timeout().unwrap());
    }
    assert_eq!((node.tx(INSIDE).len(), node.drops()), (1, vec![]));
}

/// A policy that blocks all packets of one family by `dev`.
fn block(dir: Dir, v4: bool, dev: PortId) -> PolicyConfig {
    let any = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
    let selector = Selector { dev: Some(dev), ..Selector::new(any, any) };
    PolicyConfig { action: Action::Block, ..PolicyConfig::new(dir, selector) }
}

#[test]
fn policy_dev_matches_the_link_and_its_vrf_and_no_other() {
    const LO: PortId = PortId::LOOPBACK;
    // Links apart from `lo`, whose number is that of the first link of other tests.
    const NEAR: [PortId; 3] = [PortId(21), PortId(23), PortId(25)];
    const FAR: [PortId; 3] = [PortId(22), PortId(24), PortId(26)];
    const VRFS: [Option<PortId>; 3] = [Some(PortId(RED)), Some(PortId(BLUE)), None];
    for flow in flows() {
        let v4 = flow.src.is_ipv4();
        let own = if v4 { "10.1.0.254" } else { "fd00:1::254" };
        let ping = Flow::new(&flow.src.to_string(), own).ping(1, 8);
        for (dir, dev) in [Dir::Out, Dir::Fwd, Dir::In].into_iter().flat_map(|dir| {
            NEAR.into_iter().chain(FAR).chain(VRFS.into_iter().flatten()).chain([LO]).map(move |dev| (dir, dev))
        }) {
            for domain in 0..3 {
                // One domain for each node: equal addresses outside all VRFs would answer in each.
                let (near, far, vrf) = (NEAR[domain], FAR[domain], VRFS[domain]);
                let mut node = Node::new();
                if let Some(vrf) = vrf {
                    node.vrf(vrf.0, 10, &[near.0, far.0]);
                }
                node.port(near.0, PortOptions::BARE, &["10.1.0.254/24", "fd00:1::254/64"]);
                node.port(far.0, PortOptions::BARE, &["10.2.0.254/24", "fd00:2::254/64"]);
                node.datapath.ipsec.add_policy(block(dir, v4, dev)).unwrap();
                node.rx_bytes(NOW, near, &flow.udp(100));
                node.rx_bytes(NOW, near, &ping);
                let (forwarded, answered) = match dir {
                    Dir::Out => ((dev == far || Some(dev) == vrf), (dev == near || Some(dev) == vrf)),
                    Dir::Fwd => ((dev == far || Some(dev) == vrf), false),
                    Dir::In => (false, [near, vrf.unwrap_or(LO)].contains(&dev)),
                };
                let case = format!("{dir:?} {dev:?} in domain {vrf:?}, {}", flow.src);
                assert_eq!(node.tx(far).is_empty(), forwarded, "forwarded: {case}");
                assert_eq!(node.tx(near).is_empty(), answered, "answered: {case}");
                let mib = if dir == Dir::Out { Mib::XfrmOutPolBlock } else { Mib::XfrmInPolBlock };
                let want = u64::from(forwarded) + u64::from(answered);
                assert_eq!(node.datapath.counters.get(mib), want, "{case}");
            }
        }
    }
}

#[test]
fn policy_by_vrf_follows_a_link_that_changes_its_master() {
    let [flow, _] = flows();
    let mut node = two_vrfs();
    node.datapath.ipsec.add_policy(block(Dir::Out, true, PortId(RED))).unwrap();
    let [red, blue] = [RED, BLUE].map(|device| Domain::vrf(PortId(device)));
    let mut passes = |domain: Domain| {
        node.datapath.fib.set_domain(OUT[1], domain);
        node.rx_bytes(NOW, IN[1], &flow.udp(100));
        node.tx(OUT[1]).len()
    };
    // The same flow each time: flow cache entries are per domain.
    assert_eq!([blue, red, Domain::DEFAULT, red, blue].map(&mut passes), [1, 0, 1, 0, 1]);
}

#[test]
fn sa_selector_by_vrf_protects_packets_of_its_links() {
    let ping = Flow::new("10.1.0.1", "10.1.0.254").ping(1, 8);
    for (dev, fits) in [(RED, true), (INSIDE.0, true), (BLUE, false), (OUTSIDE.0, false)] {
        let mut node = Node::new();
        node.vrf(RED, 10, &[INSIDE.0]);
        node.port(INSIDE.0, PortOptions::BARE, &["10.1.0.254/24"]);
        let sa = esp("10.1.0.254", "10.1.0.1", 1, Mode::Transport, false);
        let out = policy(Dir::Out, "10.1.0.254/32", "10.1.0.1/32", std::slice::from_ref(&sa));
        node.datapath.ipsec.add_policy(out).unwrap();
        let selector = Selector { dev: Some(PortId(dev)), ..Selector::new(Prefix::ANY_V4, Prefix::ANY_V4) };
        node.datapath.ipsec.add_sa(&xfrm::SaConfig { selector: Some(selector), ..sa }, unique_mask()).unwrap();
        node.rx_bytes(NOW, INSIDE, &ping);
        let sent: Vec<_> = node.tx(INSIDE).iter().map(|pkt| info(pkt).protocol).collect();
        assert_eq!(sent, if fits { vec![Protocol::ESP] } else { vec![] }, "dev {dev}");
        assert_eq!(node.datapath.counters.get(Mib::XfrmOutNoStates), u64::from(!fits), "dev {dev}");
    }
}

//! Routes of links' addresses, and lookups compared with a linear scan.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Domain, DropReason, IfAddr, PortId, Prefix, RouteFlow, TableId};
use fib::{Decision, Fib, IlaHop, IlaRoute, NextHop, Route, RouteExists, RouteKind, Rule, Vrf};
use proptest::prelude::*;
use sim::AddAddress as _;

const LAN: PortId = PortId(1);
const WAN: PortId = PortId(2);

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn via(to: &str, gateway: &str, dev: PortId, metric: u32) -> Route {
    Route { prefix: prefix(to), kind: RouteKind::Unicast { via: Some(ip(gateway)), dev }, metric }
}

fn special(to: &str, kind: RouteKind) -> Route {
    Route { prefix: prefix(to), kind, metric: 0 }
}

/// A gateway between a LAN and a WAN, of both families.
fn gateway() -> Fib {
    let mut fib = Fib::default();
    for (dev, addr) in [
        (LAN, "10.1.0.254/24"),
        (LAN, "fd00:1::1/64"),
        (LAN, "fe80::1/64"),
        (WAN, "192.0.2.1/31"),
        (WAN, "198.51.100.7/32"),
        (WAN, "fd00:2::1/128"),
        (WAN, "fe80::2/64"),
    ] {
        fib.add_address(dev, addr.parse::<IfAddr>().unwrap());
    }
    for route in [
        via("0.0.0.0/0", "192.0.2.0", WAN, 0),
        via("0.0.0.0/0", "10.1.0.1", LAN, 100),
        via("::/0", "fe80::99", WAN, 0),
        via("10.2.0.0/16", "192.0.2.0", WAN, 0),
        special("10.2.3.0/24", RouteKind::Unreachable),
        special("10.2.4.0/24", RouteKind::Blackhole),
        special("10.2.5.0/24", RouteKind::Prohibit),
    ] {
        fib.add(TableId::MAIN, route).unwrap();
    }
    fib
}

#[test]
fn the_addresses_of_links_become_routes() {
    let shown: Vec<_> = gateway()
        .routes()
        .filter(|(_, route)| route.kind.via().is_none() && route.kind.dev().is_some())
        .map(|(table, route)| {
            let dev = route.kind.dev().unwrap().0;
            format!("{} {} dev {dev} table {table} metric {}", route.kind.word(), route.prefix, route.metric)
        })
        .collect();
    let want = [
        "local 10.1.0.254/32 dev 1 table local metric 0",
        "broadcast 10.1.0.255/32 dev 1 table local metric 0",
        "local 192.0.2.1/32 dev 2 table local metric 0",
        "local 198.51.100.7/32 dev 2 table local metric 0",
        "anycast fd00:1::/128 dev 1 table local metric 0",
        "local fd00:1::1/128 dev 1 table local metric 0",
        "local fd00:2::1/128 dev 2 table local metric 0",
        "anycast fe80::/128 dev 1 table local metric 0",
        "anycast fe80::/128 dev 2 table local metric 0",
        "local fe80::1/128 dev 1 table local metric 0",
        "local fe80::2/128 dev 2 table local metric 0",
        "unicast 10.1.0.0/24 dev 1 table main metric 0",
        "unicast 192.0.2.0/31 dev 2 table main metric 0",
        "unicast fd00:1::/64 dev 1 table main metric 256",
        "unicast fe80::/64 dev 1 table main metric 256",
        "unicast fe80::/64 dev 2 table main metric 256",
    ];
    assert_eq!(shown, want);
}

#[test]
fn a_destination_is_decided_as_its_longest_prefix_says() {
    let forward = |dev, next_hop| Decision::Forward { dev, next_hop: ip(next_hop) };
    let cases = [
        ("10.1.0.254", None, Decision::Local { dev: LAN }),
        ("10.1.0.255", None, Decision::Broadcast { dev: Some(LAN) }),
        ("255.255.255.255", None, Decision::Broadcast { dev: None }),
        ("224.0.0.1", None, Decision::Multicast),
        ("239.255.255.255", None, Decision::Multicast),
        ("ff02::1", None, Decision::Multicast),
        ("10.1.0.7", None, forward(LAN, "10.1.0.7")),
        ("10.1.0.0", None, forward(LAN, "10.1.0.0")),
        ("192.0.2.0", None, forward(WAN, "192.0.2.0")),
        ("10.2.0.1", None, forward(WAN, "192.0.2.0")),
        ("10.2.3.1", None, Decision::Drop(DropReason::RouteUnreachable)),
        ("10.2.4.1", None, Decision::Drop(DropReason::RouteBlackhole)),
        ("10.2.5.1", None, Decision::Drop(DropReason::RouteProhibit)),
        ("8.8.8.8", None, forward(WAN, "192.0.2.0")),
        ("8.8.8.8", Some(LAN), forward(LAN, "10.1.0.1")),
        ("8.8.8.8", Some(PortId(9)), Decision::Drop(DropReason::NoRoute)),
        ("10.2.3.1", Some(LAN), Decision::Drop(DropReason::RouteUnreachable)),
        ("10.2.0.1", Some(LAN), forward(LAN, "10.1.0.1")),
        ("10.1.0.254", Some(WAN), forward(WAN, "192.0.2.0")),
        ("fd00:1::1", None, Decision::Local { dev: LAN }),
        ("fd00:1::2", None, forward(LAN, "fd00:1::2")),
        ("fd00:3::1", None, forward(WAN, "fe80::99")),
        ("fe80::77", Some(WAN), forward(WAN, "fe80::77")),
        ("fe80::77", Some(LAN), forward(LAN, "fe80::77")),
    ];
    let fib = gateway();
    for (dst, oif, want) in cases {
        assert_eq!(fib.decide(Domain::DEFAULT, ip(dst), oif), want, "{dst} by {oif:?}");
    }
    assert_eq!(Fib::default().decide(Domain::DEFAULT, ip("10.0.0.1"), None), Decision::Drop(DropReason::NoRoute));
}

#[test]
fn an_address_of_our_own_wins_over_every_route() {
    let mut fib = gateway();
    fib.add(TableId::MAIN, via("10.1.0.254/32", "192.0.2.0", WAN, 0)).unwrap();
    assert!(fib.is_local(Domain::DEFAULT, ip("10.1.0.254")));
    assert!(!fib.is_local(Domain::DEFAULT, ip("10.1.0.253")));
    assert!(fib.has_address(LAN, ip("10.1.0.254")) && !fib.has_address(WAN, ip("10.1.0.254")));
}

/// Removes every route on a link.
fn remove_routes_by(fib: &mut Fib, dev: PortId) {
    let by_dev = |(_, route): &(TableId, Route)| route.kind.dev() == Some(dev);
    let gone: Vec<(TableId, Route)> = fib.routes().map(|(table, route)| (table, *route)).filter(by_dev).collect();
    for (table, route) in gone {
        assert!(fib.remove(table, &route), "{route:?}");
    }
}

#[test]
fn smallest_metric_wins_and_other_routes_are_kept() {
    let mut fib = Fib::default();
    for (gateway, dev, metric) in [("10.0.0.1", LAN, 50), ("10.0.0.2", WAN, 10), ("10.0.0.3", LAN, 100)] {
        fib.add(TableId::MAIN, via("10.9.0.0/16", gateway, dev, metric)).unwrap();
    }
    let next_hop = |fib: &Fib| fib.lookup(Domain::DEFAULT, ip("10.9.1.1"), None).and_then(|route| route.kind.via());
    assert_eq!(next_hop(&fib), Some(ip("10.0.0.2")));
    remove_routes_by(&mut fib, WAN);
    assert_eq!(next_hop(&fib), Some(ip("10.0.0.1")));
    remove_routes_by(&mut fib, LAN);
    assert_eq!(next_hop(&fib), None);
    assert_eq!(fib.routes().count(), 0);
}

#[test]
fn route_of_same_prefix_and_metric_is_refused() {
    let mut fib = gateway();
    let before = fib.generation();
    let refused = fib.add(TableId::MAIN, via("10.1.0.0/24", "192.0.2.0", WAN, 0));
    let want = RouteExists { prefix: prefix("10.1.0.0/24"), metric: 0, table: TableId::MAIN };
    assert_eq!(refused, Err(want));
    assert_eq!(want.to_string(), "Route to 10.1.0.0/24 metric 0 exists in table main");
    assert_eq!(fib.generation(), before);
    // IPv6 has different metrics: 256 for connected routes, 1024 by default.
    assert_eq!(fib.add(TableId::MAIN, via("fd00:1::/64", "fe80::99", WAN, 0)), Ok(()));
    assert_eq!(
        fib.decide(Domain::DEFAULT, ip("fd00:1::2"), None),
        Decision::Forward { dev: LAN, next_hop: ip("fd00:1::2") }
    );
    assert!(fib.add(TableId::MAIN, via("fd00:1::/64", "fe80::98", WAN, 1024)).is_err());
}

#[test]
fn table_without_a_name_is_looked_up_by_number() {
    let mut fib = Fib::default();
    fib.add(TableId(10), via("10.0.0.0/8", "192.0.2.9", WAN, 0)).unwrap();
    assert_eq!(fib.lookup(Domain::DEFAULT, ip("10.0.0.1"), None), None);
    let found = fib.lookup_in(TableId(10), ip("10.0.0.1"), None).and_then(|route| route.kind.via());
    assert_eq!(found, Some(ip("192.0.2.9")));
    assert_eq!(fib.lookup_in(TableId(11), ip("10.0.0.1"), None), None);
}

#[test]
fn every_change_has_a_generation_of_its_own() {
    let mut fib = Fib::default();
    let mut seen = vec![fib.generation()];
    let mut note = |fib: &Fib| {
        assert!(!seen.contains(&fib.generation()), "{seen:?}");
        seen.push(fib.generation());
    };
    fib.add_address(LAN, "10.0.0.1/8".parse().unwrap());
    note(&fib);
    fib.add(TableId::MAIN, via("0.0.0.0/0", "10.0.0.2", LAN, 0)).unwrap();
    note(&fib);
    assert!(fib.remove(TableId::MAIN, &via("0.0.0.0/0", "10.0.0.2", LAN, 0)));
    note(&fib);
    fib.replace(gateway());
    note(&fib);
    fib.replace(Fib::default());
    note(&fib);
    assert_eq!(fib.decide(Domain::DEFAULT, ip("10.1.0.7"), None), Decision::Drop(DropReason::NoRoute));
}

#[test]
fn source_address_suits_the_destination() {
    let mut fib = gateway();
    fib.add_address(LAN, "172.16.0.1/12".parse().unwrap());
    let cases = [
        (LAN, "10.1.0.7", Some("10.1.0.254")),
        (LAN, "172.16.5.5", Some("172.16.0.1")),
        (LAN, "8.8.8.8", Some("10.1.0.254")),
        (WAN, "192.0.2.0", Some("192.0.2.1")),
        (WAN, "10.1.0.7", Some("192.0.2.1")),
        (PortId(3), "10.1.0.7", Some("10.1.0.254")),
        (LAN, "fe80::77", Some("fe80::1")),
        (WAN, "fe80::77", Some("fe80::2")),
        (WAN, "fd00:9::1", Some("fd00:2::1")),
        (PortId(3), "fd00:9::1", Some("fd00:1::1")),
        (PortId(3), "fe80::77", Some("fd00:1::1")),
    ];
    for (dev, dst, want) in cases {
        assert_eq!(fib.source(dev, ip(dst)), want.map(ip), "{dst} by {dev:?}");
    }
    assert_eq!(Fib::default().source(LAN, ip("10.0.0.1")), None);
}

/// Addresses and prefixes that often share their first bits.
fn any_addr() -> impl Strategy<Value = IpAddr> {
    let v4 = (0u32..64, 0u32..4).prop_map(|(high, low)| IpAddr::V4(Ipv4Addr::from_bits(high << 26 | low)));
    let v6 = (0u128..64, 0u128..4).prop_map(|(high, low)| IpAddr::V6(Ipv6Addr::from_bits(high << 122 | low)));
    prop_oneof![v4, v6]
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    let len = prop_oneof![0u8..=8, Just(30), Just(31), Just(32), Just(127), Just(128)];
    (any_addr(), len).prop_map(|(addr, len)| {
        let len = if addr.is_ipv4() { len.min(32) } else { len };
        Prefix::containing(addr, len).unwrap()
    })
}

fn any_route() -> impl Strategy<Value = Route> {
    let kind = prop_oneof![
        (1u32..4, any_addr()).prop_map(|(dev, via)| RouteKind::Unicast { via: Some(via), dev: PortId(dev) }),
        Just(RouteKind::Blackhole),
    ];
    (any_prefix(), kind, 1u32..4).prop_map(|(prefix, kind, metric)| Route { prefix, kind, metric })
}

proptest! {
    #[test]
    fn a_lookup_finds_what_a_linear_scan_finds(
        routes in prop::collection::vec(any_route(), 0..60),
        dsts in prop::collection::vec(any_addr(), 1..40),
        gone in prop::option::of(1u32..4),
    ) {
        let mut fib = Fib::default();
        let mut kept: Vec<Route> = Vec::new();
        for route in routes {
            if fib.add(TableId::MAIN, route).is_ok() {
                kept.push(route);
            } else {
                prop_assert!(kept.iter().any(|old| (old.prefix, old.metric) == (route.prefix, route.metric)));
            }
        }
        if let Some(gone) = gone {
            remove_routes_by(&mut fib, PortId(gone));
            kept.retain(|route| route.kind.dev() != Some(PortId(gone)));
        }
        prop_assert_eq!(fib.routes().count(), kept.len());
        for dst in dsts {
            for oif in [None, Some(PortId(1)), Some(PortId(2))] {
                let fits = |route: &&Route| oif.is_none() || route.kind.dev().is_none() || route.kind.dev() == oif;
                let matching = kept.iter().filter(fits).filter(|route| route.prefix.contains(dst));
                let want = matching.max_by_key(|route| (route.prefix.len(), u32::MAX - route.metric));
                prop_assert_eq!(fib.lookup(Domain::DEFAULT, dst, oif), want, "{} by {:?}", dst, oif);
            }
        }
    }
}

#[test]
fn path_mtu_ends_with_its_route() {
    let (now, dst) = (base::Instant::ZERO, "192.0.2.2".parse().unwrap());
    let mut fib = Fib::default();
    fib.add_address(PortId(1), "192.0.2.1/24".parse().unwrap());
    assert!(fib.lower_path_mtu(now, Domain::DEFAULT, dst, 1280, 1500));
    assert_eq!((fib.path_mtu(now, Domain::DEFAULT, dst), fib.path_mtus(now).count()), (Some(1280), 1));
    let route = Route { prefix: Prefix::ANY_V4, kind: RouteKind::Unicast { via: None, dev: PortId(2) }, metric: 0 };
    fib.add(TableId::MAIN, route).unwrap();
    assert_eq!(fib.path_mtu(now, Domain::DEFAULT, dst), None);
}

const RED_DEV: PortId = PortId(7);
const BLUE_DEV: PortId = PortId(8);
const RED: Domain = Domain::vrf(RED_DEV);
const BLUE: Domain = Domain::vrf(BLUE_DEV);

/// LAN in one VRF and WAN in the other, with equal addresses, and a link outside.
fn vrfs() -> Fib {
    let mut fib = Fib::default();
    for (vrf, table, slave) in [(RED_DEV, 10, LAN), (BLUE_DEV, 20, WAN)] {
        fib.set_vrf(vrf, Some(Vrf { table: TableId(table), up: true }));
        fib.set_domain(slave, Domain::vrf(vrf));
    }
    for v4 in [true, false] {
        let mut rules = Rule::first(v4);
        rules.insert(1, Rule::ask_vrf());
        fib.set_rules(v4, rules);
    }
    for (dev, addr) in [
        (LAN, "10.1.0.254/24"),
        (WAN, "10.1.0.254/24"),
        (LAN, "fd00:1::1/64"),
        (WAN, "fd00:1::1/64"),
        (PortId(3), "10.3.0.1/24"),
    ] {
        fib.add_address(dev, addr.parse::<IfAddr>().unwrap());
    }
    fib
}

#[test]
fn each_domain_has_its_own_table() {
    let mut fib = vrfs();
    let forward = |dev, next_hop| Decision::Forward { dev, next_hop: ip(next_hop) };
    let none = Decision::Drop(DropReason::NoRoute);
    for (dst, of_red, of_blue, of_none) in [
        ("10.1.0.254", Decision::Local { dev: LAN }, Decision::Local { dev: WAN }, none),
        ("10.1.0.7", forward(LAN, "10.1.0.7"), forward(WAN, "10.1.0.7"), none),
        ("10.1.0.255", Decision::Broadcast { dev: Some(LAN) }, Decision::Broadcast { dev: Some(WAN) }, none),
        ("fd00:1::1", Decision::Local { dev: LAN }, Decision::Local { dev: WAN }, none),
        ("fd00:1::2", forward(LAN, "fd00:1::2"), forward(WAN, "fd00:1::2"), none),
        // If a VRF's table has no route, the next rules apply.
        ("10.3.0.9", forward(PortId(3), "10.3.0.9"), forward(PortId(3), "10.3.0.9"), forward(PortId(3), "10.3.0.9")),
    ] {
        let got = [RED, BLUE, Domain::DEFAULT].map(|domain| fib.decide(domain, ip(dst), None));
        assert_eq!(got, [of_red, of_blue, of_none], "{dst}");
    }
    let of = |fib: &Fib, links: [PortId; 4]| links.map(|link| fib.domain(link));
    assert_eq!(of(&fib, [LAN, WAN, RED_DEV, PortId(3)]), [RED, BLUE, RED, Domain::DEFAULT]);
    assert_eq!(fib.domain_of(ip("10.1.0.254")), RED);
    // The links of a removed VRF are in the default domain; the client removes its routes.
    let generation = fib.generation();
    fib.set_vrf(RED_DEV, None);
    assert!(fib.generation() != generation && !fib.may_send(RED));
    assert_eq!(of(&fib, [LAN, WAN, RED_DEV, BLUE_DEV]), [Domain::DEFAULT, BLUE, Domain::DEFAULT, BLUE]);
    assert_eq!(fib.decide(RED, ip("10.1.0.7"), None), none);
    fib.set_domain(WAN, Domain::DEFAULT);
    assert_eq!(fib.domain(WAN), Domain::DEFAULT);
}

#[test]
fn an_own_packet_in_a_vrf_comes_from_that_vrf() {
    let mut fib = vrfs();
    let source = |fib: &Fib, dev| fib.source(dev, ip("8.8.8.8"));
    assert_eq!((source(&fib, LAN), source(&fib, PortId(3))), (Some(ip("10.1.0.254")), Some(ip("10.3.0.1"))));
    // The source on a link without addresses is an address of its domain, preferably of the VRF's device.
    let bare = PortId(4);
    assert_eq!(source(&fib, bare), Some(ip("10.3.0.1")));
    fib.set_domain(bare, BLUE);
    assert_eq!(source(&fib, bare), Some(ip("10.1.0.254")));
    fib.add_address(BLUE_DEV, "192.0.2.8/32".parse().unwrap());
    assert_eq!((source(&fib, bare), source(&fib, WAN)), (Some(ip("192.0.2.8")), Some(ip("10.1.0.254"))));
}

#[test]
fn path_mtu_is_known_in_its_domain_alone() {
    let (mut fib, now, dst) = (vrfs(), base::Instant::ZERO, ip("192.0.2.9"));
    assert!(fib.lower_path_mtu(now, RED, dst, 1280, 1500));
    assert_eq!([RED, BLUE, Domain::DEFAULT].map(|domain| fib.path_mtu(now, domain, dst)), [Some(1280), None, None]);
}

#[test]
fn encapsulation_is_resolved_where_it_is_decided() {
    let mut fib = Fib::default();
    let place = ila::Locator(0xfd00_0002_0000_0000);
    let by = |hook_type| ila::RouteEncap {
        locator: place,
        csum_mode: ila::CsumMode::NoAction,
        ident_type: ila::IdentType::Luid,
        hook_type,
    };
    let [output, input] = [ila::HookType::Output, ila::HookType::Input].map(by);
    fib.add_address(LAN, "fd00:1::254/64".parse().unwrap());
    fib.add_address(WAN, "fd00:2::254/64".parse().unwrap());
    let unicast = |via: Option<&str>, dev| IlaRoute::Unicast { via: via.map(ip), dev };
    for (to, encap, route) in [
        ("3333:0:0:1::/64", output, unicast(None, WAN)),
        ("3333:0:0:2::/64", output, unicast(Some("fd00:1::9"), LAN)),
        ("3333:0:0:3::/64", output, unicast(None, LAN)),
        ("3333:0:0:4::/64", output, IlaRoute::Local { dev: LAN }),
        ("3333:0:0:5::/64", input, IlaRoute::Local { dev: LAN }),
        ("3333:0:0:6::/64", input, unicast(None, WAN)),
    ] {
        let kind = RouteKind::Ila { encap, to: route };
        assert!(kind.dev().is_some(), "{to}");
        assert_eq!(kind.via().is_some(), to == "3333:0:0:2::/64");
        fib.add(TableId::MAIN, Route { prefix: to.parse().unwrap(), kind, metric: 0 }).unwrap();
    }
    let forward =
        |encap, dev, next_hop: &str| Decision::Ila { encap, to: IlaHop::Forward { dev, next_hop: ip(next_hop) } };
    for (dst, want) in [
        ("3333:0:0:1::7", forward(output, WAN, "fd00:2::7")),
        ("3333:0:0:1::254", Decision::Drop(DropReason::IlaUnreachable)),
        ("3333:0:0:2::7", forward(output, LAN, "fd00:1::9")),
        ("3333:0:0:3::7", Decision::Drop(DropReason::IlaUnreachable)),
        ("3333:0:0:4::7", Decision::Local { dev: LAN }),
        ("3333:0:0:5::7", Decision::Ila { encap: input, to: IlaHop::Local }),
        ("3333:0:0:6::7", forward(input, WAN, "fd00:2::7")),
    ] {
        assert_eq!(fib.decide(Domain::DEFAULT, ip(dst), None), want, "{dst}");
    }
    assert!(!fib.is_local(Domain::DEFAULT, ip("3333:0:0:5::7")), "the node has the address behind the translation");
    // A change of the route to the translated destination applies at once.
    remove_routes_by(&mut fib, WAN);
    assert_eq!(fib.decide(Domain::DEFAULT, ip("3333:0:0:1::7"), None), Decision::Drop(DropReason::NoRoute));
}

#[test]
fn flow_has_one_path_and_flows_have_all() {
    let mut fib = gateway();
    let hops = [(LAN, "10.1.0.1", 1), (WAN, "192.0.2.0", 3)].map(|(dev, via, weight)| NextHop {
        dev,
        via: Some(ip(via)),
        weight,
    });
    let paths = fib.paths(&hops);
    assert_eq!(fib.paths(&hops), paths, "equal sets are one");
    let route = special("10.9.0.0/16", RouteKind::Paths(paths));
    fib.add(TableId::MAIN, route).unwrap();
    let flow = |n: u8| RouteFlow { src: Some([192, 0, 2, n].into()), ..RouteFlow::to(Domain::DEFAULT, ip("10.9.1.1")) };
    let dev = |fib: &Fib, n: u8, oif: Option<PortId>| match fib.decide_flow(&flow(n), oif) {
        Decision::Forward { dev, next_hop } => {
            assert_eq!(next_hop, ip(if dev == LAN { "10.1.0.1" } else { "192.0.2.0" }));
            dev
        }
        other => panic!("{other:?}"),
    };
    let by_lan = (0..200).filter(|&n| dev(&fib, n, None) == LAN).count();
    assert!((25..80).contains(&by_lan), "{by_lan} of 200");
    for n in 0..200 {
        assert_eq!(dev(&fib, n, None), dev(&fib, n, None));
        assert_eq!([dev(&fib, n, Some(LAN)), dev(&fib, n, Some(WAN))], [LAN, WAN]);
    }
    assert_eq!(fib.decide_paths(&flow(1), None), Decision::Paths(paths));
    // A clone, as each worker has one, chooses alike.
    let clone = fib.clone();
    assert!((0..200).all(|n| dev(&fib, n, None) == dev(&clone, n, None)));
    // A set goes with its last route.
    let second = Route { prefix: prefix("10.10.0.0/16"), ..route };
    fib.add(TableId::MAIN, second).unwrap();
    assert!(fib.remove(TableId::MAIN, &route) && fib.paths_of(&hops) == Some(paths));
    assert!(fib.exchange(TableId::MAIN, &second, special("10.10.0.0/16", RouteKind::Blackhole)));
    assert_eq!((fib.paths_of(&hops), fib.next_hops(paths)), (None, &[][..]));
}

#[test]
fn paths_into_a_vrf_are_decided_there() {
    let (red, blue) = (PortId(10), PortId(11));
    let mut fib = gateway();
    for (device, table) in [(red, TableId(10)), (blue, TableId(11))] {
        fib.set_vrf(device, Some(Vrf { table, up: true }));
        fib.set_rules(true, [vec![Rule::ask_vrf()], Rule::first(true)].concat());
    }
    let hop = |dev| NextHop { dev, via: None, weight: 1 };
    let paths = fib.paths(&[hop(red), hop(blue)]);
    fib.add(TableId::MAIN, special("10.9.0.0/16", RouteKind::Paths(paths))).unwrap();
    fib.add(TableId(10), via("10.9.0.0/16", "10.1.0.1", LAN, 0)).unwrap();
    fib.add(TableId(11), special("0.0.0.0/0", RouteKind::Unreachable)).unwrap();
    let decide = |fib: &Fib, n: u8| fib.decide_flow(&RouteFlow::to(Domain::DEFAULT, [10, 9, 0, n].into()), None);
    let decisions: Vec<Decision> = (0..64).map(|n| decide(&fib, n)).collect();
    let red_ones = decisions.iter().filter(|it| matches!(it, Decision::Forward { dev: LAN, .. })).count();
    let blue_ones = decisions.iter().filter(|it| **it == Decision::Drop(DropReason::RouteUnreachable)).count();
    assert!(red_ones > 10 && blue_ones > 10 && red_ones + blue_ones == 64, "{red_ones} {blue_ones}");
    // VRFs that lead into each other end somewhere.
    for (table, dev) in [(TableId(10), blue), (TableId(11), red)] {
        let again = fib.paths(&[hop(dev), NextHop { weight: 2, ..hop(dev) }]);
        fib.insert(table, special("10.9.0.0/16", RouteKind::Paths(again)), true);
    }
    assert!((0..64).all(|n| decide(&fib, n) == Decision::Drop(DropReason::NoRoute)));
}

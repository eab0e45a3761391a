//! The node's own addresses: received packets from them are dropped, and errors are sent from them, unless the host
//! shares them.

use base::{DropReason, Mib, PortId, TableId};
use datapath::HostRole;
use fib::{Known, Route, RouteKind};
use packet::Memory;
use sim::{Flow, Node, PortOptions};

use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;

/// Third links.
const THIRD: PortId = PortId(3);

#[test]
fn own_ipv4_source_is_martian() {
    for src in ["10.1.0.254", "10.2.0.254"] {
        for dst in ["10.2.0.1", "10.1.0.254", "10.2.0.254", "10.1.0.255", "255.255.255.255", "224.0.0.5"] {
            let flow = Flow::new(src, dst);
            for bytes in [flow.ping(1, 8), flow.udp(10), flow.tcp(1, 0)] {
                let mut node = router();
                node.rx_bytes(NOW, INSIDE, &bytes);
                let want = (vec![(1, DropReason::IpSourceInvalid, 1)], counters([(Mib::IpInReceives, 1)]));
                assert_eq!((node.drops(), node.datapath.counters.clone()), want, "{src} to {dst}");
                assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty(), "{src} to {dst}");
            }
        }
    }
    // Linux checks IPv4 only.
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &Flow::new("fd00:1::254", "fd00:2::1").udp(10));
    assert_eq!((node.drops(), node.tx(OUTSIDE).len()), (vec![], 1));
}

#[test]
fn own_ipv4_source_is_not_sealed() {
    for tunnel in TUNNELS {
        let mut world = tunnelled(tunnel, 1);
        let node = &mut world.nodes[0];
        node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.254", "10.2.0.1").udp(10));
        assert_eq!(node.drops(), [(1, DropReason::IpSourceInvalid, 1)], "{tunnel:?}");
        assert!(node.tx(OUTSIDE).is_empty(), "{tunnel:?}");
    }
}

#[test]
fn esp_from_an_own_address_is_martian() {
    for tunnel in TUNNELS.into_iter().filter(|tunnel| !tunnel.v6) {
        let mut world = tunnelled(tunnel, 1);
        let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
        near.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.2.0.1").udp(10));
        let sealed = only(near.tx(OUTSIDE)).to_vec();
        let bytes = edit_v4(&sealed, |header| header.set_src(ENDS[0][1].parse().unwrap()));
        far.rx_bytes(NOW, OUTSIDE, &bytes);
        assert_eq!(far.drops(), [(OUTSIDE.0, DropReason::IpSourceInvalid, 1)], "{tunnel:?}");
        let want = counters([(Mib::IpInReceives, 1)]);
        assert_eq!((far.datapath.counters.clone(), far.tx(INSIDE).len()), (want, 0), "{tunnel:?}");
        far.rx_bytes(NOW, OUTSIDE, &sealed);
        assert_eq!(far.tx(INSIDE).len(), 1, "{tunnel:?}");
    }
}

#[test]
fn fragments_from_an_own_address_are_not_held() {
    let flow = Flow { dont_fragment: false, ..Flow::new("10.1.0.254", "10.1.0.254") };
    let mut node = router();
    let mem = Memory::heap();
    node.rx(NOW, INSIDE, fragments(&mem, &flow.udp(5000), 1500));
    assert_eq!(node.drops(), [(1, DropReason::IpSourceInvalid, 4)]);
    assert_eq!(node.pages_in_use(), 0);
}

#[test]
fn host_may_send_from_the_address_of_a_udp_link() {
    use HostRole::{None, Peer, SharesAddress};
    // (role at the inner link, at the outer link, source, input link, whether the packet passes)
    let cases = [
        (Peer, SharesAddress, "10.2.0.254", INSIDE, true),
        (Peer, SharesAddress, "10.1.0.254", INSIDE, false),
        (Peer, SharesAddress, "10.2.0.254", OUTSIDE, false),
        (Peer, None, "10.2.0.254", INSIDE, false),
        (None, SharesAddress, "10.2.0.254", INSIDE, false),
    ];
    for (inner, outer, src, link, passes) in cases {
        let mut node = router();
        node.datapath.set_host_role(INSIDE, inner);
        node.datapath.set_host_role(OUTSIDE, outer);
        node.port(THIRD.0, PortOptions::BARE, &["10.3.0.254/24"]);
        node.rx_bytes(NOW, link, &Flow::new(src, "10.3.0.1").udp(10));
        assert_eq!(node.tx(THIRD).len(), usize::from(passes), "{inner:?} {outer:?} {src} {link:?}");
    }
}

#[test]
fn address_of_another_vrf_is_not_own() {
    let mut node = Node::new();
    node.vrf(8, 200, &[3]);
    node.vrf(9, 100, &[1, 2]);
    node.port(1, PortOptions::BARE, &["10.1.0.254/24"]);
    node.port(2, PortOptions::BARE, &["10.2.0.254/24"]);
    node.port(3, PortOptions::BARE, &["10.3.0.254/24"]);
    // A route into the other VRF does not make that VRF's addresses local.
    let prefix = "10.3.0.0/24".parse().unwrap();
    let kind = RouteKind::Unicast { via: None, dev: PortId(8) };
    node.datapath.fib.add(TableId(100), Route { prefix, kind, metric: 0 }).unwrap();
    for (src, sent) in [("10.3.0.254", 1), ("10.2.0.254", 0), ("10.1.0.9", 1)] {
        node.rx_bytes(NOW, INSIDE, &Flow::new(src, "10.2.0.1").udp(10));
        assert_eq!(node.tx(OUTSIDE).len(), sent, "{src}");
    }
}

/// Source of the *time exceeded* error, by the inner link, about a packet of this flow.
fn source_of_error(node: &mut Node, flow: Flow) -> String {
    node.rx_bytes(NOW, INSIDE, &Flow { ttl: 1, ..flow }.udp(10));
    assert_eq!(node.drops().last(), Some(&(1, DropReason::TtlExceeded, 1)));
    parse_icmp(&only(node.tx(INSIDE))).src
}

#[test]
fn error_to_the_host_comes_from_no_address_of_its_own() {
    let [v4, v6] = flows();
    for (inner, want) in
        [(&[][..], ["192.0.0.8", "fd00:2::1"]), (&["10.1.0.254/24", "fd00:1::254/64"], ["10.1.0.254", "fd00:1::254"])]
    {
        let gateway = || {
            let mut node = Node::new();
            node.port(INSIDE.0, PortOptions::BARE, inner);
            node.port(OUTSIDE.0, PortOptions::BARE, &["192.0.2.1/32", "2001:db8::1/128"]);
            node.datapath.set_host_role(INSIDE, HostRole::Peer);
            node.datapath.set_host_role(OUTSIDE, HostRole::SharesAddress);
            for (net, link) in
                [("10.1.0.0/16", INSIDE), ("fd00:1::/48", INSIDE), ("10.2.0.0/16", OUTSIDE), ("fd00:2::/48", OUTSIDE)]
            {
                node.route(net, None, link);
            }
            node
        };
        assert_eq!([v4, v6].map(|flow| source_of_error(&mut gateway(), flow)), want);
        // The host has no role at the third link.
        let with_third = |flow| {
            let mut node = gateway();
            node.port(THIRD.0, PortOptions::BARE, &["10.3.0.254/24", "fd00:3::254/64"]);
            source_of_error(&mut node, flow)
        };
        let want = if inner.is_empty() { ["10.3.0.254", "fd00:3::254"] } else { want };
        assert_eq!([v4, v6].map(with_third), want);
    }
}

#[test]
fn error_of_a_node_without_addresses_is_sent() {
    let [v4, v6] = flows();
    let mut node = Node::new();
    node.port(INSIDE.0, PortOptions::ethernet(1), &[]);
    for (flow, net, want) in
        [(v4, "10.1.0.0/24", "192.0.0.8".to_owned()), (v6, "fd00:1::/64", mac(1).link_local().to_string())]
    {
        node.route(net, None, INSIDE);
        let Node { datapath, mem, .. } = &mut node;
        datapath.set_neighbour(NOW, mem, INSIDE, flow.src, Known::Permanent(mac(9)), 0);
        let ended = Flow::new(&flow.src.to_string(), if flow.src.is_ipv4() { "198.51.100.1" } else { "fd00:9::1" });
        let frame = [
            wire::eth::EthHeader::new(
                mac(1),
                mac(9),
                if flow.src.is_ipv4() { wire::EtherType::IPV4 } else { wire::EtherType::IPV6 },
            )
            .as_bytes(),
            &ended.udp(10),
        ]
        .concat();
        node.rx_bytes(NOW, INSIDE, &frame);
        let mut answer = only(node.tx(INSIDE));
        answer.pull(wire::eth::EthHeader::LEN);
        assert_eq!(parse_icmp(&answer).src, want);
    }
}

#[test]
fn icmpv6_error_is_from_the_link_that_the_packet_came_by() {
    // Packets by the third link; the way back to their senders is the inner one.
    for (flow, want) in flows().into_iter().zip(["10.1.0.254", "fd00:3::254"]) {
        let mut node = router();
        node.port(THIRD.0, PortOptions::BARE, &["10.3.0.254/24", "fd00:3::254/64"]);
        let expired = Flow { ttl: 1, ..flow };
        node.rx_bytes(NOW, THIRD, &expired.udp(10));
        assert_eq!(parse_icmp(&only(node.tx(INSIDE))).src, want);
        // A link without addresses: those of the others.
        let mut node = router();
        node.port(THIRD.0, PortOptions::BARE, &[]);
        node.rx_bytes(NOW, THIRD, &expired.udp(10));
        let near = if flow.src.is_ipv4() { "10.1.0.254" } else { "fd00:1::254" };
        assert_eq!(parse_icmp(&only(node.tx(INSIDE))).src, near);
    }
}

//= test RFC 6864 §4.3 unique-id
#[test]
fn own_ipv4_packet_without_df_has_an_identification() {
    let mut node = router();
    let [flow, _] = flows();
    let to_us = Flow { dst: "10.1.0.254".parse().unwrap(), ..flow };
    let mut ids = std::collections::BTreeSet::new();
    for _ in 0..3 {
        for bytes in [Flow { ttl: 1, ..flow }.udp(10), to_us.ping(1, 8)] {
            node.rx_bytes(NOW, INSIDE, &bytes);
            let answer = info(&only(node.tx(INSIDE)));
            assert!(!answer.dont_fragment, "as Linux's ICMP socket: routers may fragment it");
            ids.insert(answer.id);
        }
    }
    assert_eq!(ids.len(), 6, "{ids:?}");
    // An atomic packet needs none (RFC 6864 §4.1).
    node.rx_bytes(NOW, INSIDE, &to_us.tcp(1, 0));
    let reset = info(&only(node.tx(INSIDE)));
    assert_eq!((reset.dont_fragment, reset.id), (true, 0));
}

#[test]
fn zero_net_is_unicast_but_for_its_first_address() {
    let mut node = Node::new();
    node.port(INSIDE.0, PortOptions::BARE, &["0.1.0.254/24"]);
    node.port(OUTSIDE.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.route("0.0.0.0/8", Some("10.2.0.1"), OUTSIDE);
    let there_and_back = [("0.1.0.1", "10.2.0.1", INSIDE, OUTSIDE), ("10.2.0.1", "0.1.0.1", OUTSIDE, INSIDE)];
    for (src, dst, from, to) in there_and_back {
        node.rx_bytes(NOW, from, &Flow::new(src, dst).udp(10));
        assert_eq!(node.tx(to).len(), 1, "{src} to {dst}");
    }
    // A route into it, an own address in it, and an error from there.
    node.rx_bytes(NOW, INSIDE, &Flow::new("0.1.0.1", "0.9.9.9").udp(10));
    assert_eq!(node.tx(OUTSIDE).len(), 1);
    node.rx_bytes(NOW, INSIDE, &Flow::new("0.1.0.1", "0.1.0.254").ping(1, 8));
    assert_eq!(parse_icmp(&only(node.tx(INSIDE))).src, "0.1.0.254");
    assert_eq!(source_of_error(&mut node, Flow::new("0.1.0.1", "10.2.0.1")), "0.1.0.254");
    for (src, dst, reason) in [
        ("0.0.0.0", "10.2.0.1", DropReason::IpSourceInvalid),
        ("0.1.0.1", "0.0.0.0", DropReason::IpDestinationInvalid),
        ("127.0.0.1", "10.2.0.1", DropReason::IpSourceInvalid),
    ] {
        node.rx_bytes(NOW, INSIDE, &Flow::new(src, dst).udp(10));
        assert!(node.drops().contains(&(1, reason, 1)) || node.drops().contains(&(1, reason, 2)), "{src} to {dst}");
    }
}

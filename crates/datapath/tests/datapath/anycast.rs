//! The anycast address of the routers on a subnet (RFC 4291 §2.6.1), and the groups that go with addresses.

use base::DropReason;
use sim::{Flow, Node, PortOptions};
use wire::nd::{Nd, solicited_node};
use wire::{MacAddr, eth, icmpv6};

use crate::common::*;
use crate::fragments::fragments;

/// The router's inner link, without other hosts' addresses, and a host there.
const ROUTERS: &str = "fd00:1::";
const HOST: &str = "fd00:1::1";

/// Type of the answer to a ping.
fn is_echo_reply(told: &Told) -> bool {
    matches!(told.message, Message::V6(icmpv6::Icmpv6Message::EchoReply { .. }))
}

#[test]
fn anycast_ping_is_answered_from_address_of_the_link() {
    let mut node = router();
    let ping = Flow::new(HOST, ROUTERS).ping(9, 3000);
    for packets in [vec![packet::Packet::with_data(&node.mem, &ping).unwrap()], fragments(&node.mem, &ping, 1500)] {
        node.rx(NOW, INSIDE, packets);
        let told = told(&only(node.tx(INSIDE)));
        assert!(is_echo_reply(&told), "{told:?}");
        assert_eq!((told.src.as_str(), told.dst.as_str(), node.drops()), ("fd00:1::254", HOST, vec![]));
    }
    // The anycast address of another subnet, by the router's inner link.
    node.rx_bytes(NOW, INSIDE, &Flow::new(HOST, "fd00:2::").ping(9, 8));
    assert!(is_echo_reply(&told(&only(node.tx(INSIDE)))));
}

#[test]
fn udp_to_an_anycast_address_is_refused_from_that_address() {
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &Flow::new(HOST, ROUTERS).udp(9));
    let told = told(&only(node.tx(INSIDE)));
    let port = icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::PORT);
    assert_eq!((told.src.as_str(), told.message), (ROUTERS, Message::V6(port)));
    // Another router may have that connection (Linux `tcp_v6_send_reset`).
    node.rx_bytes(NOW, INSIDE, &Flow::new(HOST, ROUTERS).tcp(1, 9));
    assert!(node.tx(INSIDE).is_empty());
    assert_eq!(node.drops(), [(1, DropReason::UdpNoPort, 1), (1, DropReason::TcpNoPort, 1)]);
}

#[test]
fn subnets_of_two_addresses_or_one_have_no_anycast_address() {
    let mut node = Node::new();
    node.port(1, PortOptions::BARE, &["fd00:1::3/127", "fd00:9::/128"]);
    node.port(2, PortOptions::BARE, &["fd00:2::254/64"]);
    node.rx_bytes(NOW, OUTSIDE, &Flow::new("fd00:2::1", "fd00:1::2").ping(9, 8));
    assert_eq!(only(node.tx(INSIDE)).len(), 56, "it is a neighbour's");
    // The first address itself may be a host's.
    node.rx_bytes(NOW, OUTSIDE, &Flow::new("fd00:2::1", "fd00:9::").ping(9, 8));
    assert_eq!(told(&only(node.tx(OUTSIDE))).src, "fd00:9::");
}

/// Advertisement of an Ethernet router to a host that solicits `target`: source, target and the override flag.
fn advertised(host: &str, target: &str) -> Option<(String, String, bool)> {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    let ask = Flow::new(host, target);
    let header = eth::EthHeader::new(mac(1), mac(11), wire::EtherType::IPV6);
    node.rx_bytes(NOW, INSIDE, &[header.as_bytes(), &solicitation(&ask, mac(11))].concat());
    let frames = node.tx(INSIDE);
    let bytes = frames.first()?.to_vec();
    let info = info_of(&bytes[14..]);
    let (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) = (info.src, info.dst) else { panic!("{info:?}") };
    let message = Nd::parse(info.payload(&bytes[14..]), src, dst, 255).unwrap();
    let Some(Nd::NeighbourAdvert { target, flags, options }) = message else { panic!("{message:?}") };
    assert_eq!(options.target_link_addr(), Some(mac(1)));
    Some((src.to_string(), target.to_string(), flags.overriding))
}

#[test]
fn anycast_address_is_advertised_without_overriding() {
    let link_local = mac(1).link_local().to_string();
    let own = |target: &str, src: &str, overrides| Some((src.to_owned(), target.to_owned(), overrides));
    assert_eq!(advertised(HOST, "fd00:1::254"), own("fd00:1::254", "fd00:1::254", true));
    assert_eq!(advertised(HOST, ROUTERS), own(ROUTERS, "fd00:1::254", false));
    assert_eq!(advertised("fe80::9", ROUTERS), own(ROUTERS, &link_local, false));
    assert_eq!(advertised("fe80::9", "fe80::"), own("fe80::", &link_local, false));
    assert_eq!(advertised(HOST, "fd00:2::"), None, "it is on another link");
}

#[test]
fn ping_to_the_group_of_an_own_address_is_answered() {
    let groups = |addr: &str| solicited_node(addr.parse().unwrap()).to_string();
    let link_local = mac(1).link_local();
    let cases = [
        (groups("fd00:1::254"), true),
        (groups(ROUTERS), true),
        (solicited_node(link_local).to_string(), true),
        (groups("fd00:1::77"), false),
    ];
    for (group, answered) in cases {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        let Node { datapath, mem, .. } = &mut node;
        datapath.set_neighbour(NOW, mem, INSIDE, HOST.parse().unwrap(), fib::Known::Permanent(mac(9)), 0);
        let to = MacAddr::multicast_v6(group.parse().unwrap());
        let header = eth::EthHeader::new(to, mac(9), wire::EtherType::IPV6);
        let ping = Flow::new(HOST, &group).ping(1, 8);
        node.rx_bytes(NOW, INSIDE, &[header.as_bytes(), &ping].concat());
        assert_eq!(node.tx(INSIDE).len(), usize::from(answered), "{group}");
    }
}

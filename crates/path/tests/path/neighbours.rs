//! Ethernet links: who is asked, what waits meanwhile, and what becomes of it when nobody answers.

use std::time::Duration;

use base::{DropReason, Instant, LinkId, Mib};
use sim::{End, Flow, Host, Medium, Node, PortOptions, Wire, World};
use wire::{Version, icmp, icmpv6};

use crate::common::*;

/// Hosts 0 and 1 on either side of a router with Ethernet links.
fn ethernet_world() -> World {
    let mut world = World::new(1);
    world.add_node(router_with(PortOptions::ethernet(1), PortOptions::ethernet(2)));
    world.add_host(Host::ethernet(mac(11), &["10.1.0.1", "fd00:1::1"], mac(1)));
    world.add_host(Host::ethernet(mac(12), &["10.2.0.1", "fd00:2::1"], mac(2)));
    let cable = Wire::new(Medium::Cable, 1500);
    world.join(cable, End::Host(0), End::Port(0, INSIDE));
    world.join(cable, End::Port(0, OUTSIDE), End::Host(1));
    world
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn hosts_find_the_router_and_each_other() {
    let mut world = ethernet_world();
    for flow in flows() {
        let router = if flow.src.is_ipv4() { "10.1.0.254" } else { "fd00:1::254" };
        for to in [router, &flow.dst.to_string()] {
            world.hosts[0].send_bytes(&Flow::new(&flow.src.to_string(), to).ping(3, 100));
            world.run(SECOND);
            let reply = told(&only(world.hosts[0].take()));
            assert_eq!((reply.src.as_str(), reply.quote.len()), (to, 100));
        }
    }
    let node = &world.nodes[0];
    assert_eq!(node.drops(), []);
    let known: Vec<_> = node.path.neighbours.iter().filter_map(|it| Some((it.addr.to_string(), it.mac?))).collect();
    for (addr, mac) in [("10.1.0.1", mac(11)), ("fd00:1::1", mac(11)), ("10.2.0.1", mac(12)), ("fd00:2::1", mac(12))] {
        assert!(known.contains(&(addr.to_owned(), mac)), "{addr} in {known:?}");
    }
    let asked =
        [Mib::Icmp6OutNeighborSolicits, Mib::Icmp6InNeighborAdvertisements].map(|it| node.path.counters.get(it));
    assert_eq!(asked, [2, 2]);
}

#[test]
fn packets_wait_in_order_until_their_next_hop_is_known_and_stay_fat() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.nodes[0].path.refit(&packet::Memory::heap(), OUTSIDE, offload::Features::ALL);
    let fat = flow.fat_tcp(&world.nodes[0].mem, 1, 14_000, 1400);
    let burst = vec![fat];
    world.nodes[0].rx(Instant::ZERO, LinkId(1), frames_of(burst));
    assert_eq!((world.nodes[0].waiting(), world.nodes[0].path.forwarded.packets), (1, 1));
    world.nodes[0].rx(Instant::ZERO, LinkId(1), frames_of(vec![plain(&flow.udp(10)), plain(&flow.udp(20))]));
    assert_eq!(world.nodes[0].waiting(), 3);
    world.run(SECOND);
    let got: Vec<_> = world.hosts[1].take().iter().map(packet::Packet::len).collect();
    assert_eq!(got, [[1452; 10].as_slice(), &[38, 48]].concat());
    assert_eq!((world.nodes[0].waiting(), world.nodes[0].drops()), (0, vec![]));
}

fn plain(bytes: &[u8]) -> packet::Packet {
    packet::Packet::with_data(&packet::Memory::heap(), bytes).unwrap()
}

/// A datagram as it was sent on, which is what errors quote.
fn sent(flow: &Flow, len: usize) -> Vec<u8> {
    Flow { ttl: 63, ..*flow }.udp(len)
}

/// Puts an Ethernet header for the router's inner port in front.
fn frames_of(packets: Vec<packet::Packet>) -> Vec<packet::Packet> {
    let mem = packet::Memory::heap();
    let header = wire::eth::Header::new(mac(1), mac(11), wire::EtherType::IPV4);
    let framed = packets.into_iter().map(|mut pkt| {
        pkt.push(&mem, 14).unwrap().copy_from_slice(header.as_bytes());
        pkt
    });
    framed.collect()
}

#[test]
fn who_does_not_answer_is_asked_three_times_and_the_senders_are_told() {
    for flow in flows() {
        let mut world = ethernet_world();
        world.hosts[1].answers = false;
        for len in [10, 20] {
            world.hosts[0].send_bytes(&flow.udp(len));
        }
        world.run(Duration::from_millis(2900));
        assert_eq!((world.nodes[0].waiting(), world.hosts[0].take().len()), (2, 0));
        world.run(SECOND);
        let unreachable = match flow.version() {
            Version::V4 => Message::V4(icmp::Message::Unreachable(icmp::Unreachable::HOST)),
            Version::V6 => Message::V6(icmpv6::Message::Unreachable(icmpv6::Unreachable::ADDRESS)),
        };
        let told: Vec<_> = world.hosts[0].take().iter().map(told).collect();
        assert_eq!(told.iter().map(|told| told.message).collect::<Vec<_>>(), [unreachable; 2]);
        assert_eq!(
            told.iter().map(|told| told.quote.clone()).collect::<Vec<_>>(),
            [10, 20].map(|len| sent(&flow, len))
        );
        let node = &world.nodes[0];
        assert_eq!((node.waiting(), node.drops()), (0, vec![(1, DropReason::NeighbourFailed, 2)]));
        assert_eq!(world.stats[1].frames, 3, "requests on the outer wire");
        world.hosts[0].send_bytes(&flow.udp(30));
        world.run(SECOND);
        assert_eq!(world.stats[1].frames, 4, "the next packet has it asked anew");
    }
}

#[test]
fn only_so_many_packets_wait_for_one_neighbour() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.hosts[1].answers = false;
    for sport in 0..40 {
        world.hosts[0].send_bytes(&Flow { sport, ..flow }.udp(10));
    }
    world.run(SECOND);
    assert_eq!(world.nodes[0].waiting(), 32);
    assert_eq!(world.nodes[0].drops(), [(1, DropReason::NeighbourQueueFull, 8)]);
    world.hosts[1].answers = true;
    world.run(SECOND);
    assert_eq!((world.nodes[0].waiting(), world.hosts[1].take().len()), (0, 32));
}

#[test]
fn a_link_that_goes_down_forgets_its_neighbours_and_drops_what_waited() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.hosts[1].answers = false;
    world.hosts[0].send_bytes(&flow.udp(10));
    world.run(Duration::from_millis(10));
    let now = world.now();
    let Node { path, mem, .. } = &mut world.nodes[0];
    path.set_up(now, mem, OUTSIDE, false);
    assert_eq!(world.nodes[0].drops(), [(1, DropReason::NeighbourFailed, 1)]);
    let links: Vec<_> = world.nodes[0].path.neighbours.iter().map(|it| (it.link, it.addr)).collect();
    assert_eq!(links, [(INSIDE, flow.src)], "the sender, who is to be told");
}

#[test]
fn a_router_answers_for_its_own_addresses_alone() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    let ask = |target: &str| {
        let request = wire::arp::Header::request((mac(11), [10, 1, 0, 1].into()), target.parse().unwrap());
        let header = wire::eth::Header::new(wire::MacAddr::BROADCAST, mac(11), wire::EtherType::ARP);
        [header.as_bytes(), request.as_bytes()].concat()
    };
    for (target, answered) in [("10.1.0.254", true), ("10.1.0.7", false), ("10.2.0.1", false)] {
        node.rx_bytes(NOW, INSIDE, &ask(target));
        let answers = node.tx(INSIDE);
        assert_eq!(answers.len(), usize::from(answered), "{target}");
        if let Some(answer) = answers.first() {
            let reply = wire::arp::Header::parse(&answer.head()[14..]).unwrap();
            assert_eq!((reply.sender_mac(), reply.sender_ip().to_string().as_str()), (mac(1), target));
        }
    }
    node.rx_bytes(NOW, INSIDE, &ask("10.1.0.254")[..30]);
    assert_eq!(node.drops(), [(1, DropReason::ArpMalformed, 1)]);
}

#[test]
fn discovery_is_for_the_link_and_its_malformed_messages_are_counted() {
    let source = "fe80::1".parse().unwrap();
    let target: std::net::Ipv6Addr = "fd00:1::254".parse().unwrap();
    let solicit = |hop_limit, target| {
        let mut message = wire::nd::Neighbour::solicit(target).as_bytes().to_vec();
        message.extend_from_slice(wire::nd::LinkAddr::source(mac(11)).as_bytes());
        wire::icmpv6::fill_check(&mut message, source, target).unwrap();
        let mut header = wire::ipv6::Header::new(source, target, wire::Protocol::ICMPV6, message.len() as u16);
        header.set_hop_limit(hop_limit);
        let eth = wire::eth::Header::new(mac(1), mac(11), wire::EtherType::IPV6);
        [eth.as_bytes(), header.as_bytes(), &message].concat()
    };
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    node.rx_bytes(NOW, INSIDE, &solicit(255, target));
    only(node.tx(INSIDE));
    node.rx_bytes(NOW, INSIDE, &solicit(255, mac(1).link_local()));
    only(node.tx(INSIDE));
    assert_eq!(node.drops(), []);
    node.rx_bytes(NOW, INSIDE, &solicit(254, target));
    assert_eq!(node.drops(), [(1, DropReason::NeighbourMalformed, 1)]);
    let bare = &solicit(255, "fd00:2::254".parse().unwrap())[14..];
    node.rx_bytes(NOW, OUTSIDE, bare);
    assert!(node.tx(OUTSIDE).is_empty(), "there is no discovery on a bare link");
    assert_eq!(node.drops(), [(1, DropReason::NeighbourMalformed, 1), (2, DropReason::IcmpIgnored, 1)]);
}

#[test]
fn discovery_in_fragments_is_ignored() {
    let (source, target) = ("fe80::1".parse().unwrap(), "fd00:1::254".parse().unwrap());
    let mut message = wire::nd::Neighbour::solicit(target).as_bytes().to_vec();
    message.extend_from_slice(wire::nd::LinkAddr::source(mac(11)).as_bytes());
    wire::icmpv6::fill_check(&mut message, source, target).unwrap();
    let part = |at: usize, more, bytes: &[u8]| {
        let mut header = wire::ipv6::Header::new(source, target, wire::Protocol::FRAGMENT, 8 + bytes.len() as u16);
        header.set_hop_limit(255);
        let info = wire::FragInfo { offset: wire::FragOffset::from_bytes(at).unwrap(), more, id: 7 };
        let mut fragment = vec![0; wire::frag::Header::LEN];
        wire::frag::Header::new(wire::Protocol::ICMPV6, info).write(&mut fragment).unwrap();
        let eth = wire::eth::Header::new(mac(1), mac(11), wire::EtherType::IPV6);
        [eth.as_bytes(), header.as_bytes(), &fragment, bytes].concat()
    };
    let (front, back) = message.split_at(24);
    for frames in [vec![part(0, true, front), part(24, false, back)], vec![part(0, false, &message)]] {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        frames.iter().for_each(|frame| node.rx_bytes(NOW, INSIDE, frame));
        assert!(node.tx(INSIDE).is_empty(), "nobody is answered");
        assert_eq!(node.drops(), [(1, DropReason::NeighbourMalformed, 1)]);
        assert_eq!(node.path.counters.get(base::Mib::Ip6ReasmOKs), 1);
    }
}

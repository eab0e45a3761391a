//! Ethernet links: solicitations, packets held for a neighbour, and their drops when no neighbour answers.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::{DropReason, Instant, Mib, PortId};
use ipsec::crypto::Pool;
use packet::{Memory, Packet};
use sim::{End, Flow, Host, Medium, Node, PortOptions, Wire, World, esp, link_pair};
use wire::{EtherType, FragOffset, MacAddr, Version, arp, eth, icmp, icmpv6};
use xfrm::Mode;

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
            let reply = parse_icmp(&only(world.hosts[0].take()));
            assert_eq!((reply.src.as_str(), reply.quote.len()), (to, 100));
        }
    }
    let node = &world.nodes[0];
    assert_eq!(node.drops(), []);
    let known: Vec<_> = node.datapath.neighbours.iter().filter_map(|it| Some((it.addr.to_string(), it.mac?))).collect();
    for (addr, mac) in [("10.1.0.1", mac(11)), ("fd00:1::1", mac(11)), ("10.2.0.1", mac(12)), ("fd00:2::1", mac(12))] {
        assert!(known.contains(&(addr.to_owned(), mac)), "{addr} in {known:?}");
    }
    let sent_and_received =
        [Mib::Icmp6OutNeighborSolicits, Mib::Icmp6InNeighborAdvertisements].map(|it| node.datapath.counters.get(it));
    assert_eq!(sent_and_received, [2, 2]);
}

#[test]
fn packets_held_for_a_neighbour_stay_fat_and_in_order() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.nodes[0].datapath.refit(NOW, &packet::Memory::heap(), OUTSIDE, offload::Features::ALL);
    let fat = flow.fat_tcp(&world.nodes[0].mem, 1, 14_000, 1400);
    let burst = vec![fat];
    world.nodes[0].rx(Instant::ZERO, PortId(1), frames_of(burst));
    assert_eq!((world.nodes[0].waiting(), world.nodes[0].datapath.forwarded.packets), (1, 1));
    world.nodes[0].rx(Instant::ZERO, PortId(1), frames_of(vec![plain(&flow.udp(10)), plain(&flow.udp(20))]));
    assert_eq!(world.nodes[0].waiting(), 3);
    world.run(SECOND);
    let got: Vec<_> = world.hosts[1].take().iter().map(packet::Packet::len).collect();
    assert_eq!(got, [[1452; 10].as_slice(), &[38, 48]].concat());
    assert_eq!((world.nodes[0].waiting(), world.nodes[0].drops()), (0, vec![]));
}

#[test]
fn ipv4_route_over_ipv6_neighbour_uses_discovery() {
    let mut world = ethernet_world();
    world.nodes[0].route("10.9.0.0/16", Some("fd00:2::1"), OUTSIDE);
    let flow = Flow::new("10.1.0.1", "10.9.0.1");
    world.hosts[0].send_bytes(&flow.udp(100));
    world.run(SECOND);
    let node = &world.nodes[0];
    let known: Vec<_> = node.datapath.neighbours.iter().filter(|it| it.link == OUTSIDE).collect();
    assert_eq!(
        known.iter().map(|it| (it.addr.to_string(), it.mac)).collect::<Vec<_>>(),
        [("fd00:2::1".to_owned(), Some(mac(12)))]
    );
    assert_eq!((node.drops(), node.datapath.forwarded.packets), (vec![], 1));
    // The frame carries IPv4, and the host has no such address, so the test checks the frame on the wire.
    world.nodes[0].rx_bytes(
        NOW,
        INSIDE,
        &[eth::EthHeader::new(mac(1), mac(11), EtherType::IPV4).as_bytes(), &flow.udp(100)[..]].concat(),
    );
    let frame = only(world.nodes[0].tx(OUTSIDE));
    let header = eth::EthHeader::ref_from(frame.head()).unwrap();
    assert_eq!((header.dst(), header.ethertype()), (mac(12), EtherType::IPV4));
}

/// Number of solicitations queued at a port: broadcasts, or multicasts of IPv6.
fn solicitations(node: &mut Node, link: PortId) -> usize {
    let frames = node.tx(link);
    let is_solicitation = |pkt: &&packet::Packet| {
        let header = eth::EthHeader::ref_from(pkt.head()).unwrap();
        header.ethertype() == EtherType::ARP && header.dst() == MacAddr::BROADCAST
            || header.ethertype() == EtherType::IPV6 && header.dst().is_multicast()
    };
    frames.iter().filter(is_solicitation).count()
}

#[test]
fn next_hop_of_packet_held_by_gro_is_solicited_in_same_turn() {
    for flow in flows() {
        let mut packets = vec![flow.udp(10), flow.tcp(1, 10), flow.ping(1, 10)];
        if flow.version() == Version::V4 {
            packets.push(edit_v4(&flow.udp(16), |header| {
                header.set_fragment(FragOffset::from_bytes(0).unwrap(), true);
            }));
        }
        for bytes in packets {
            let mut node = router_with(PortOptions::BARE, PortOptions::ethernet(2));
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert_eq!((solicitations(&mut node, OUTSIDE), node.waiting()), (1, 1), "{bytes:02x?}");
        }
    }
}

#[test]
fn sender_of_packet_held_by_gro_is_solicited_for_its_error() {
    for flow in flows() {
        let expired = Flow { ttl: 1, ..flow }.udp(10);
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        let ethertype = if flow.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
        let header = eth::EthHeader::new(mac(1), mac(11), ethertype);
        node.rx_bytes(NOW, INSIDE, &[header.as_bytes(), &expired].concat());
        assert_eq!((solicitations(&mut node, INSIDE), node.waiting()), (1, 1), "{flow:?}");
    }
}

#[test]
fn tunnel_end_is_solicited_in_the_turn_that_needs_it() {
    let one = std::num::NonZeroUsize::MIN;
    for threads in [false, true] {
        for (net, ends) in [
            (["10.1.0.0/16", "10.2.0.0/24"], ["10.2.0.254", "10.2.0.1"]),
            (["fd00:1::/32", "fd00:2::/64"], ["fd00:2::254", "fd00:2::1"]),
        ] {
            let flow = Flow::new(if ends[0].contains(':') { "fd00:1::1" } else { "10.1.0.1" }, ends[1]);
            let mut node = router_with(PortOptions::BARE, PortOptions::ethernet(2));
            if threads {
                node.datapath.ipsec.set_crypto(Some(Box::new(Pool::new(one, |_| {}).unwrap())));
            }
            link_pair(&mut node, &mut Node::new(), (net[0], net[1]), &[esp(ends[0], ends[1], 7, Mode::Tunnel, true)]);
            for bytes in [flow.udp(10), flow.tcp(1, 10), flow.ping(1, 10)] {
                node.datapath.neighbours = fib::Neighbours::default();
                node.rx_bytes(NOW, INSIDE, &bytes);
                assert_eq!((solicitations(&mut node, OUTSIDE), node.waiting()), (1, 1), "{ends:?}, threads {threads}");
            }
        }
    }
}

fn plain(bytes: &[u8]) -> packet::Packet {
    packet::Packet::with_data(&packet::Memory::heap(), bytes).unwrap()
}

/// A datagram as forwarded, the form that errors quote.
fn sent(flow: &Flow, len: usize) -> Vec<u8> {
    Flow { ttl: 63, ..*flow }.udp(len)
}

/// Puts an Ethernet header for the router's inner port in front.
fn frames_of(packets: Vec<packet::Packet>) -> Vec<packet::Packet> {
    let mem = packet::Memory::heap();
    let header = wire::eth::EthHeader::new(mac(1), mac(11), wire::EtherType::IPV4);
    let framed = packets.into_iter().map(|mut pkt| {
        pkt.push(&mem, 14).unwrap().copy_from_slice(header.as_bytes());
        pkt
    });
    framed.collect()
}

#[test]
fn silent_neighbour_is_solicited_three_times_then_reported() {
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
            Version::V4 => Message::V4(icmp::IcmpMessage::Unreachable(icmp::IcmpUnreachable::HOST)),
            Version::V6 => Message::V6(icmpv6::Icmpv6Message::Unreachable(icmpv6::Icmpv6Unreachable::ADDRESS)),
        };
        let replies: Vec<_> = world.hosts[0].take().iter().map(parse_icmp).collect();
        assert_eq!(replies.iter().map(|reply| reply.message).collect::<Vec<_>>(), [unreachable; 2]);
        assert_eq!(
            replies.iter().map(|reply| reply.quote.clone()).collect::<Vec<_>>(),
            [10, 20].map(|len| sent(&flow, len))
        );
        let node = &world.nodes[0];
        assert_eq!((node.waiting(), node.drops()), (0, vec![(1, DropReason::NeighbourFailed, 2)]));
        assert_eq!(world.stats[1].frames, 3, "requests on the outer wire");
        world.hosts[0].send_bytes(&flow.udp(30));
        world.run(SECOND);
        assert_eq!(world.stats[1].frames, 4, "the next packet causes a new solicitation");
    }
}

#[test]
fn packets_held_for_a_neighbour_are_bounded() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.hosts[1].answers = false;
    for sport in 0..110 {
        world.hosts[0].send_bytes(&Flow { sport, ..flow }.udp(10));
    }
    world.run(SECOND);
    let waiting = world.nodes[0].waiting();
    assert!((50..=101).contains(&waiting), "{waiting} packets, or 208 KiB of them");
    assert_eq!(world.nodes[0].drops(), [(1, DropReason::NeighbourQueueFull, 110 - waiting as u64)]);
    world.hosts[1].answers = true;
    world.run(SECOND);
    assert_eq!((world.nodes[0].waiting(), world.hosts[1].take().len()), (0, waiting));
}

#[test]
fn link_down_flushes_neighbours_and_held_packets() {
    let [flow, _] = flows();
    let mut world = ethernet_world();
    world.hosts[1].answers = false;
    world.hosts[0].send_bytes(&flow.udp(10));
    world.run(Duration::from_millis(10));
    let now = world.now();
    let Node { datapath, mem, .. } = &mut world.nodes[0];
    datapath.set_up(now, mem, OUTSIDE, false);
    assert_eq!(world.nodes[0].drops(), [(1, DropReason::NeighbourFailed, 1)]);
    let links: Vec<_> = world.nodes[0].datapath.neighbours.iter().map(|it| (it.link, it.addr)).collect();
    assert_eq!(links, [(INSIDE, flow.src)], "the sender of the dropped packet");
}

#[test]
fn router_answers_for_its_own_addresses_only() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::ethernet(2));
    let ask = |target: &str| {
        let request = wire::arp::ArpHeader::request((mac(11), [10, 1, 0, 1].into()), target.parse().unwrap());
        let header = wire::eth::EthHeader::new(wire::MacAddr::BROADCAST, mac(11), wire::EtherType::ARP);
        [header.as_bytes(), request.as_bytes()].concat()
    };
    for (target, answered) in [("10.1.0.254", true), ("10.1.0.7", false), ("10.2.0.1", false)] {
        node.rx_bytes(NOW, INSIDE, &ask(target));
        let answers = node.tx(INSIDE);
        assert_eq!(answers.len(), usize::from(answered), "{target}");
        if let Some(answer) = answers.first() {
            let reply = wire::arp::ArpHeader::parse(&answer.head()[14..]).unwrap();
            assert_eq!((reply.sender_mac(), reply.sender_ip().to_string().as_str()), (mac(1), target));
        }
    }
    node.rx_bytes(NOW, INSIDE, &ask("10.1.0.254")[..30]);
    assert_eq!(node.drops(), [(1, DropReason::ArpMalformed, 1)]);
}

#[test]
fn discovery_needs_ethernet_and_hop_limit_255() {
    let source = "fe80::1".parse().unwrap();
    let target: std::net::Ipv6Addr = "fd00:1::254".parse().unwrap();
    let solicit = |hop_limit, target| {
        let mut message = wire::nd::Neighbour::solicit(target).as_bytes().to_vec();
        message.extend_from_slice(wire::nd::LinkAddr::source(mac(11)).as_bytes());
        wire::icmpv6::fill_check(&mut message, source, target).unwrap();
        let mut header = wire::ipv6::Ipv6Header::new(source, target, wire::Protocol::ICMPV6, message.len() as u16);
        header.set_hop_limit(hop_limit);
        let eth = wire::eth::EthHeader::new(mac(1), mac(11), wire::EtherType::IPV6);
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
        let mut header = wire::ipv6::Ipv6Header::new(source, target, wire::Protocol::FRAGMENT, 8 + bytes.len() as u16);
        header.set_hop_limit(255);
        let info = wire::FragInfo { offset: wire::FragOffset::from_bytes(at).unwrap(), more, id: 7 };
        let mut fragment = vec![0; wire::frag::FragHeader::LEN];
        wire::frag::FragHeader::new(wire::Protocol::ICMPV6, info).write(&mut fragment).unwrap();
        let eth = wire::eth::EthHeader::new(mac(1), mac(11), wire::EtherType::IPV6);
        [eth.as_bytes(), header.as_bytes(), &fragment, bytes].concat()
    };
    let (front, back) = message.split_at(24);
    for frames in [vec![part(0, true, front), part(24, false, back)], vec![part(0, false, &message)]] {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        frames.iter().for_each(|frame| node.rx_bytes(NOW, INSIDE, frame));
        assert!(node.tx(INSIDE).is_empty(), "no station is answered");
        assert_eq!(node.drops(), [(1, DropReason::NeighbourMalformed, 1)]);
        assert_eq!(node.datapath.counters.get(base::Mib::Ip6ReasmOKs), 1);
    }
}

/// The `n`th of many addresses in fd00:NET::/64.
fn stranger_v6(net: u16, n: u64) -> IpAddr {
    let prefix = (0xfd00_0000 | u128::from(net)) << 96;
    Ipv6Addr::from(prefix | u128::from(0x1_0000_0000 + n)).into()
}

/// An IPv6 packet in a frame for the router's inner port.
fn framed_v6(bytes: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(mac(1), mac(66), EtherType::IPV6).as_bytes(), bytes].concat()
}

/// A solicitation of the router by the `n`th stranger on its inner link.
fn hostile_solicitation(n: u64) -> Vec<u8> {
    let ask = Flow { src: stranger_v6(1, n), ..Flow::new("fd00:1::66", "fd00:1::254") };
    framed_v6(&solicitation(&ask, mac(66)))
}

/// A datagram for the `n`th address of the outer link, where no host has it.
fn scan(n: u64) -> Vec<u8> {
    let flow = Flow { dst: stranger_v6(2, n), ..Flow::new("fd00:1::66", "fd00:2::1") };
    framed_v6(&flow.udp(8))
}

/// An ARP request for the router by the `n`th stranger on its inner link, which is 10.1.0.0/16 then.
fn hostile_arp(n: u64) -> Vec<u8> {
    let sender = [10, 1, 1 + (n / 256 % 255) as u8, n as u8].into();
    let request = arp::ArpHeader::request((mac(66), sender), [10, 1, 0, 254].into());
    [eth::EthHeader::new(MacAddr::BROADCAST, mac(66), EtherType::ARP).as_bytes(), request.as_bytes()].concat()
}

/// State after a flood.
struct Flooded {
    world: World,
    /// Solicitations that the router sent during the flood.
    solicitations: u64,
    /// Entries that were added, changed or evicted during the flood, as in notifications.
    changes: usize,
}

/// Lets two hosts ping each other through a router every 50 ms for `secs`, while the router's inner link receives a
/// burst of 64 hostile frames every 5 ms (12 800 a second), and checks that each ping is answered.
fn flood(secs: u32, hostile: impl Fn(u64) -> Vec<u8>) -> Flooded {
    let mut world = ethernet_world();
    let mem = Memory::heap();
    let [_, ping] = flows();
    world.hosts[0].send_bytes(&ping.ping(0, 10));
    world.run(SECOND);
    assert_eq!(world.hosts[0].take().len(), 1, "the flow is there before the flood");
    let sent = |world: &World| world.nodes[0].datapath.counters.get(Mib::Icmp6OutNeighborSolicits);
    let before = sent(&world);
    world.nodes[0].datapath.neighbours.watch(true);
    let mut changes = 0;
    for turn in 0..secs * 200 {
        if turn % 10 == 0 {
            world.hosts[0].send_bytes(&ping.ping(turn as u16, 10));
        }
        let first = u64::from(turn) * 64;
        let burst = (first..first + 64).map(|n| Packet::with_data(&mem, &hostile(n)).unwrap()).collect();
        let now = world.now();
        world.nodes[0].rx(now, INSIDE, burst);
        world.run(Duration::from_millis(5));
        let changed = world.nodes[0].datapath.neighbours.take_changed();
        assert!(!changed.is_truncated, "no event is lost");
        changes += changed.entries.len();
        if turn % 10 == 9 {
            assert_eq!(world.hosts[0].take().len(), 1, "the answer to the ping of turn {turn}");
        }
        world.hosts[1].take();
    }
    world.nodes[0].datapath.neighbours.check_invariants();
    Flooded { solicitations: sent(&world) - before, changes, world }
}

/// Entries of the router by link and family: inner IPv4, inner IPv6, outer IPv6.
fn entries(world: &World) -> [usize; 3] {
    [(INSIDE, true), (INSIDE, false), (OUTSIDE, false)].map(|(link, v4)| {
        let neighbours = world.nodes[0].datapath.neighbours.iter();
        neighbours.filter(|it| it.link == link && it.addr.is_ipv4() == v4).count()
    })
}

/// 40 s are longer than a neighbour stays reachable: the good neighbours are probed in this time.
const LONG: u32 = 40;

#[test]
fn solicitation_flood_costs_a_good_flow_nothing() {
    let flooded = flood(LONG, hostile_solicitation);
    // 10 000 solicitations are answered in a second.
    let sent = u64::from(LONG) * 12_800;
    let refused = sent - 10_000 * (u64::from(LONG) + 1);
    let drops = flooded.world.nodes[0].drops();
    assert!(matches!(drops[..], [(1, DropReason::NeighbourRateLimited, n)] if n.abs_diff(refused) < 200), "{drops:?}");
    assert_eq!(entries(&flooded.world), [0, 1024, 1]);
    assert!(flooded.solicitations <= 4, "both good neighbours are probed, and no other: {}", flooded.solicitations);
    // 256 entries a second, each created once and evicted once; a few entries of the good flow.
    let most = 2 * 256 * (LONG as usize + 1) + 20;
    assert!(flooded.changes <= most, "{} changes", flooded.changes);
}

#[test]
fn scan_of_a_subnet_costs_a_good_flow_nothing() {
    let flooded = flood(LONG, scan);
    let node = &flooded.world.nodes[0];
    // The scanner gets some ICMPv6 unreachable errors, at an address that does not answer either.
    let mut reasons: Vec<_> = node.drops().iter().map(|&(_, reason, _)| reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let want = [DropReason::NeighbourFailed, DropReason::NeighbourRateLimited, DropReason::IcmpRateLimited];
    assert_eq!(reasons, want);
    assert!(entries(&flooded.world)[2] <= 1024);
    // 256 resolutions a second, of three solicitations each.
    let most = 3 * 256 * (u64::from(LONG) + 1) + 20;
    assert!(flooded.solicitations <= most, "{} solicitations", flooded.solicitations);
    assert!(node.waiting() <= 3 * 256 + 1, "{} packets wait", node.waiting());
}

#[test]
fn arp_flood_costs_a_good_flow_nothing() {
    let flooded = flood(5, hostile_arp);
    let reasons: Vec<_> = flooded.world.nodes[0].drops().iter().map(|&(link, reason, _)| (link, reason)).collect();
    assert_eq!(reasons, [(INSIDE.0, DropReason::NeighbourRateLimited)]);
    assert_eq!(entries(&flooded.world)[0], 1024);
    assert!(flooded.changes <= 2 * 256 * 6 + 20, "{} changes", flooded.changes);
}

#[test]
fn new_neighbour_is_found_while_strangers_solicit() {
    let mut world = ethernet_world();
    let [_, flow] = flows();
    let now = world.now();
    for n in 0..20_000 {
        world.nodes[0].rx_bytes(now, INSIDE, &hostile_solicitation(n));
        world.nodes[0].tx(INSIDE);
    }
    // Neither the soliciting host nor the solicited one is known yet.
    world.hosts[0].send_bytes(&flow.ping(1, 10));
    world.run(SECOND);
    assert_eq!(world.hosts[0].take().len(), 1);
}

#[test]
fn confirmed_neighbour_is_answered_while_strangers_solicit() {
    let mut world = ethernet_world();
    let [_, flow] = flows();
    world.hosts[0].send_bytes(&flow.ping(1, 10));
    world.run(SECOND);
    let now = world.now();
    let node = &mut world.nodes[0];
    let ask = Flow { dst: "fd00:1::254".parse().unwrap(), ..flow };
    let probe =
        [eth::EthHeader::new(mac(1), mac(11), EtherType::IPV6).as_bytes(), &solicitation(&ask, mac(11))].concat();
    let mut answers = 0;
    for n in 0..20_000 {
        node.rx_bytes(now, INSIDE, &hostile_solicitation(n));
        answers += node.tx(INSIDE).len();
    }
    assert_eq!(answers, 10_000);
    node.rx_bytes(now, INSIDE, &probe);
    assert_eq!(node.tx(INSIDE).len(), 1);
    // A station that uses its address is not answered more often than others either.
    for _ in 0..100 {
        node.rx_bytes(now, INSIDE, &probe);
    }
    assert_eq!(node.tx(INSIDE).len(), 0);
    node.rx_bytes(now + Duration::from_millis(100), INSIDE, &probe);
    assert_eq!(node.tx(INSIDE).len(), 1);
}

#[test]
fn arp_requests_to_others_make_no_entry() {
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    for n in 0..1000 {
        let mut frame = hostile_arp(n);
        // The target, 10.1.0.254, becomes 10.1.0.253.
        frame[eth::EthHeader::LEN + 27] = 253;
        node.rx_bytes(NOW, INSIDE, &frame);
    }
    assert!(node.datapath.neighbours.is_empty() && node.tx(INSIDE).is_empty());
}

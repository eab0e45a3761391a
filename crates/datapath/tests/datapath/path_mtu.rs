//! A path between two gateways whose MTU falls, and forged ICMP messages about it.

use std::time::Duration;

use base::{DropReason, Mib};
use datapath::PortConfig;
use packet::{Packet, PktType};
use sim::{End, Flow, Host, Medium, Node, PortOptions, Wire, World, esp, policy, unique_mask};
use wire::{Protocol, icmp, icmpv6};
use xfrm::{Action, Dir, Mode, PolicyConfig, SaConfig, Selector};

use crate::common::*;
use crate::gateways::{Received, Tunnel, overhead};
use crate::host_side::{add_devices_to, up};

/// The router between the gateways, by its number in the world, and its links towards them.
const ROUTER: usize = 2;
const NEAR: base::PortId = base::PortId(1);
const FAR: base::PortId = base::PortId(2);

/// The wire from the router to the second gateway.
const FAR_WIRE: usize = 1;

/// The gateways' addresses of either family.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "198.51.100.1"], ["2001:db8:1::1", "2001:db8:2::1"]];

/// Addresses of a forger of messages, somewhere on the path.
const STRANGERS: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];

const STEP: Duration = Duration::from_millis(1);

/// Every kind of tunnel, by outer family and UDP.
fn tunnels() -> impl Iterator<Item = Tunnel> {
    [false, true].into_iter().flat_map(|v6| [false, true].map(|udp| Tunnel { v6, udp, nested: false }))
}

fn sas(tunnel: Tunnel, from: usize) -> Vec<SaConfig> {
    let ends = ENDS[usize::from(tunnel.v6)];
    vec![esp(ends[from], ends[1 - from], 0x1000 + from as u32, Mode::Tunnel, tunnel.udp)]
}

/// Gateways 0 and 1 with a guest behind each, a tunnel between them, and a router on its path.
fn world(tunnel: Tunnel) -> World {
    let mut world = World::new(1);
    let [v4, v6] = ENDS;
    for (at, (v4, v6)) in v4.into_iter().zip(v6).enumerate() {
        let (mut node, net) = (Node::new(), at + 1);
        let inner = [format!("10.{net}.0.254/16"), format!("fd00:{net}::254/32")];
        node.port(INSIDE.0, PortOptions::BARE.mtu(9000), &inner.each_ref().map(String::as_str));
        let outer = [format!("{v4}/24"), format!("{v6}/64")];
        node.port(OUTSIDE.0, PortOptions::BARE, &outer.each_ref().map(String::as_str));
        node.route("0.0.0.0/0", None, OUTSIDE);
        node.route("::/0", None, OUTSIDE);
        world.add_node(node);
    }
    let mut router = Node::new();
    router.port(NEAR.0, PortOptions::BARE, &["192.0.2.254/24", "2001:db8:1::254/64"]);
    router.port(FAR.0, PortOptions::BARE, &["198.51.100.254/24", "2001:db8:2::254/64"]);
    world.add_node(router);
    let medium = if tunnel.udp { Medium::UdpSocket } else { Medium::Cable };
    for (at, link) in [NEAR, FAR].into_iter().enumerate() {
        world.join(Wire::new(medium, 1500), End::Port(ROUTER, link), End::Port(at, OUTSIDE));
    }
    for at in 0..2 {
        let host = world.add_host(Host::guest());
        world.join(Wire::new(Medium::Guest, 0), End::Port(at, INSIDE), End::Host(host));
    }
    let [a, b, _] = &mut world.nodes[..] else { panic!("three nodes") };
    for nets in [["10.1.0.0/16", "10.2.0.0/16"], ["fd00:1::/32", "fd00:2::/32"]] {
        protect(a, b, tunnel, nets, 0);
        protect(b, a, tunnel, nets, 1);
    }
    world
}

/// Makes `near` protect packets from its own network to that of `far`.
fn protect(near: &mut Node, far: &mut Node, tunnel: Tunnel, nets: [&str; 2], from: usize) {
    let (sas, src, dst) = (sas(tunnel, from), nets[from], nets[1 - from]);
    for node in [&mut *near, &mut *far] {
        if node.datapath.ipsec.sad().by_spi(sas[0].dst, sas[0].spi, 0).is_none() {
            node.datapath.ipsec.add_sa(&sas[0], unique_mask()).unwrap();
        }
    }
    near.datapath.ipsec.add_policy(policy(Dir::Out, src, dst, &sas)).unwrap();
    for dir in [Dir::In, Dir::Fwd] {
        far.datapath.ipsec.add_policy(policy(dir, src, dst, &sas)).unwrap();
    }
}

/// Sets the MTU of the last wire to the second gateway.
fn shrink(world: &mut World, tunnel: Tunnel, mtu: usize) {
    let port = world.nodes[ROUTER].datapath.ports.get(FAR).unwrap().config.clone();
    world.nodes[ROUTER].datapath.set_port(FAR, PortConfig { mtu, ..port });
    world.set_wire(FAR_WIRE, Wire::new(if tunnel.udp { Medium::UdpSocket } else { Medium::Cable }, mtu));
}

/// The MTU in a message, which must be a *packet too big* message.
fn reported_mtu(pkt: &packet::Packet) -> usize {
    match parse_icmp(pkt).message {
        Message::V4(icmp::IcmpMessage::FragNeeded { mtu }) => mtu.into(),
        Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu }) => mtu as usize,
        other => panic!("{other:?}"),
    }
}

/// A sender that retransmits lost segments, and lowers its segment size after a *packet too big* message.
struct Sender {
    flow: Flow,
    mss: usize,
    received: Received,
    /// Every MTU that was reported to the sender.
    errors: Vec<usize>,
}

impl Sender {
    fn new(flow: Flow, mtu: usize) -> Self {
        Self { flow, mss: mtu - flow.tcp_headers(), received: Received::default(), errors: Vec::new() }
    }

    /// Sends 30 segments from the first missing byte on, and handles the answers. Returns the number of bytes received.
    fn turn(&mut self, world: &mut World) -> usize {
        let before = self.received.bytes;
        let pkt = self.flow.fat_tcp(&world.hosts[0].mem, before as u32, 30 * self.mss, self.mss as u16);
        world.hosts[0].send(pkt);
        world.run(STEP);
        for pkt in world.hosts[0].take() {
            let mtu = reported_mtu(&pkt);
            self.errors.push(mtu);
            self.mss = mtu - self.flow.tcp_headers();
        }
        world.hosts[1].take().iter().for_each(|pkt| self.received.take(&self.flow, pkt));
        self.received.bytes - before
    }
}

#[test]
fn tcp_inside_goes_on_when_the_outer_path_shrinks() {
    // MTU reported to a guest at 1280 bytes outside; never below IPv6's minimum.
    for (tunnel, [v4, v6]) in tunnels().zip([[1226, 1280], [1218, 1280], [1206, 1280], [1198, 1280]]) {
        for (flow, want) in flows().into_iter().zip([v4, v6]) {
            let mut world = world(tunnel);
            let at_first = overhead(&sas(tunnel, 0)[0]).inner_mtu(1500);
            let mut sender = Sender::new(flow, at_first);
            for _ in 0..5 {
                assert_eq!(sender.turn(&mut world), 30 * sender.mss, "{tunnel:?} {flow:?}");
            }
            shrink(&mut world, tunnel, 1280);
            let turns: Vec<bool> = (0..10).map(|_| sender.turn(&mut world) == 30 * sender.mss).collect();
            // The first flight lowers the path MTU of the gateway, the next one that of the guest.
            assert_eq!(turns.iter().position(|&whole| whole), Some(2), "{tunnel:?} {flow:?}: {turns:?}");
            assert!(turns[2..].iter().all(|&whole| whole), "{tunnel:?} {flow:?}: {turns:?}");
            assert_eq!(sender.errors, [want], "{tunnel:?} {flow:?}");
            let [near, far, _] = &world.nodes[..] else { panic!("three nodes") };
            assert!(near.datapath.path_mtus_learnt > 0 && near.drops() == [(1, DropReason::PacketTooBig, 1)]);
            assert_eq!(far.drops(), [], "{tunnel:?} {flow:?}");
            assert!(world.nodes.iter().all(|node| node.pages_in_use() == 0), "{tunnel:?} {flow:?}");
        }
    }
}

#[test]
fn a_path_that_has_grown_again_is_used_after_ten_minutes() {
    for tunnel in tunnels() {
        let [flow, _] = flows();
        let mut world = world(tunnel);
        shrink(&mut world, tunnel, 1280);
        let mut sender = Sender::new(flow, overhead(&sas(tunnel, 0)[0]).inner_mtu(1500));
        for _ in 0..3 {
            sender.turn(&mut world);
        }
        assert_eq!(sender.errors.len(), 1);
        shrink(&mut world, tunnel, 1500);
        let whole = overhead(&sas(tunnel, 0)[0]).inner_mtu(1500) - flow.tcp_headers();
        for (wait, arrives) in [(Duration::from_secs(599), false), (Duration::from_secs(1), true)] {
            world.run(wait);
            sender.mss = whole;
            assert_eq!(sender.turn(&mut world) > 0, arrives, "{tunnel:?} after {wait:?}");
        }
    }
}

#[test]
fn path_of_the_outer_tunnel_narrows_the_inner_one() {
    // To the gateway of a site by a tunnel through a hub; the hub's path to that gateway has a small MTU.
    let (hub, site) = ("198.51.100.7", ENDS[0][1]);
    for (tfcpad, tunnelled) in [(0, true), (9000, true), (0, false)] {
        let mut node = Node::new();
        node.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.1.0.254/16"]);
        node.port(OUTSIDE.0, PortOptions::BARE, &[&format!("{}/24", ENDS[0][0])]);
        node.route("0.0.0.0/0", None, OUTSIDE);
        let inner = SaConfig { tfcpad, ..esp(ENDS[0][0], site, 0x3000, Mode::Tunnel, false) };
        let (end, mode) = if tunnelled { (hub, Mode::Tunnel) } else { (site, Mode::Transport) };
        let sas = [inner, esp(ENDS[0][0], end, 0x1000, mode, false)];
        for sa in &sas {
            node.datapath.ipsec.add_sa(sa, unique_mask()).unwrap();
        }
        node.datapath.ipsec.add_policy(policy(Dir::Out, "10.1.0.0/16", "10.2.0.0/16", &sas)).unwrap();
        let [flow, _] = flows();
        let df = |len: usize| edit_v4(&flow.udp(len), |header| header.set_dont_fragment(true));
        let outer = |mtu| overhead(&sas[1]).inner_mtu(mtu);
        let at_first = overhead(&sas[0]).inner_mtu(outer(1500));
        node.rx_bytes(NOW, INSIDE, &df(at_first - 28));
        assert_eq!(only(node.tx(OUTSIDE)).len().div_ceil(8), 1500_usize.div_ceil(8), "it just fits");
        // The hub, and the router behind it, quote the inner ESP.
        let quote = Flow::new(ENDS[0][0], site).raw(Protocol::ESP, &[0, 0, 0x30, 0, 0, 0, 0, 1]);
        node.rx_bytes(NOW, OUTSIDE, &too_big(false, 1300, ENDS[0][0], &quote));
        assert_eq!(node.drops(), []);
        let want = overhead(&sas[0]).inner_mtu(if tunnelled { 1300.min(outer(1500)) } else { outer(1300) });
        for (len, fits) in [(want - 27, false), (want - 28, true)] {
            node.rx_bytes(NOW, INSIDE, &df(len));
            let sent = node.tx(OUTSIDE);
            assert_eq!(sent.len(), usize::from(fits), "{len} of {want}, {tfcpad}");
            if let [sealed] = &sent[..] {
                // As long as the path allows: the hub sends 1300 of up to 1356 bytes.
                let most = if tunnelled { 1356 } else { 1300 };
                assert!(sealed.len() <= most && sealed.len() > most - 8, "{} of {most}, {tfcpad}", sealed.len());
            }
            let errors: Vec<_> = node.tx(INSIDE).iter().map(reported_mtu).collect();
            let want: &[_] = if fits { &[] } else { &[want] };
            assert_eq!(errors, want, "{len}, {tfcpad}");
        }
    }
}

/// *Packet too big* message from a forger.
pub(crate) fn too_big(v6: bool, mtu: u16, to: &str, quote: &[u8]) -> Vec<u8> {
    too_big_from(STRANGERS[usize::from(v6)], mtu, to, quote)
}

fn too_big_from(src: &str, mtu: u16, to: &str, quote: &[u8]) -> Vec<u8> {
    let flow = Flow::new(src, to);
    let v6 = flow.src.is_ipv6();
    let mut message = vec![0; icmp::IcmpHeader::LEN];
    if v6 {
        icmpv6::Icmpv6Header::new(icmpv6::Icmpv6Message::PacketTooBig { mtu: mtu.into() }).write(&mut message).unwrap();
    } else {
        icmp::IcmpHeader::new(icmp::IcmpMessage::FragNeeded { mtu }).write(&mut message).unwrap();
    }
    message.extend_from_slice(quote);
    match (flow.src, flow.dst) {
        (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
            icmpv6::fill_check(&mut message, src, dst).unwrap();
            flow.raw(Protocol::ICMPV6, &message)
        }
        _ => {
            icmp::fill_check(&mut message).unwrap();
            flow.raw(Protocol::ICMP, &message)
        }
    }
}

#[test]
fn report_of_a_link_is_no_packet_of_the_network() {
    for (tunnel, has_host_side) in tunnels().flat_map(|tunnel| [(tunnel, false), (tunnel, true)]) {
        let [flow, _] = flows();
        let mut world = world(tunnel);
        let node = &mut world.nodes[0];
        if has_host_side {
            add_devices_to(node, &[OUTSIDE]);
        }
        // A policy for packets of the network does not apply.
        let any = if tunnel.v6 { "2001:db8::/32" } else { "192.0.2.0/24" }.parse().unwrap();
        let block = PolicyConfig { action: Action::Block, ..PolicyConfig::new(Dir::In, Selector::new(any, any)) };
        node.datapath.ipsec.add_policy(block).unwrap();
        node.rx_bytes(NOW, INSIDE, &flow.udp(1000));
        let sent = only(node.tx(OUTSIDE)).to_vec();
        let [here, there] = ENDS[usize::from(tunnel.v6)];
        let report = too_big_from(here, 1300, here, &sent[..80]);
        let refused = if tunnel.v6 { DropReason::PolicyBlock } else { DropReason::IpSourceInvalid };
        node.rx_bytes(NOW, OUTSIDE, &report);
        assert_eq!(node.drops(), [(OUTSIDE.0, refused, 1)], "{tunnel:?}: from the network");
        let before = node.datapath.counters.clone();
        let mut own = Packet::with_data(&node.mem, &report).unwrap();
        own.meta.pkt_type = PktType::Loopback;
        node.rx(NOW, OUTSIDE, vec![own]);
        let known: Vec<_> =
            node.datapath.fib.path_mtus(NOW).map(|((_, dst), known)| (dst.to_string(), known.mtu)).collect();
        assert_eq!(known, [(there.to_owned(), 1300)], "{tunnel:?}");
        assert_eq!((node.drops().len(), &node.datapath.counters), (1, &before), "{tunnel:?}");
        let told: Vec<_> = up(node, OUTSIDE).iter().map(Packet::to_vec).collect();
        assert_eq!(told, if has_host_side { vec![report] } else { vec![] }, "{tunnel:?}");
    }
}

//= test RFC 4301 §8.2.1 icmp-names-an-sa
#[test]
fn error_that_quotes_no_own_packet_changes_nothing() {
    for tunnel in tunnels() {
        let (v6, udp) = (usize::from(tunnel.v6), tunnel.udp);
        let [flow, _] = flows();
        let mut world = world(tunnel);
        let [here, there] = ENDS[v6];
        let node = &mut world.nodes[0];
        node.rx_bytes(NOW, INSIDE, &flow.udp(1000));
        let sent = only(node.tx(OUTSIDE)).to_vec();
        let spi_at = if tunnel.v6 { 40 } else { 20 } + if udp { 8 } else { 0 };
        let quote = &sent[..spi_at + 8];
        let with = |at: usize, byte: u8| {
            let mut quote = quote.to_vec();
            quote[at] ^= byte;
            quote
        };
        let dst_at = if tunnel.v6 { 39 } else { 19 };
        let src_at = dst_at - if tunnel.v6 { 16 } else { 4 };
        let protocol_at = if tunnel.v6 { 6 } else { 9 };
        let mut forged = vec![
            with(spi_at + 3, 1),
            with(spi_at, 0x80),
            with(dst_at, 4),
            with(src_at, 4),
            with(protocol_at, Protocol::TCP.0 ^ if udp { Protocol::UDP.0 } else { Protocol::ESP.0 }),
            with(0, 0x10),
            quote[..spi_at + 3].to_vec(),
            quote[..10].to_vec(),
            vec![],
        ];
        if udp {
            forged.extend([with(spi_at - 8, 1), with(spi_at - 5, 1)]);
        }
        // Packets of an inbound SA are sent by the other end.
        let mut other_way = quote.to_vec();
        let backwards = esp(there, here, 0x1001, Mode::Tunnel, udp);
        other_way[spi_at..spi_at + 4].copy_from_slice(&backwards.spi.0.to_be_bytes());
        forged.push(other_way);
        for quote in &forged {
            node.rx_bytes(NOW, OUTSIDE, &too_big(tunnel.v6, 600, here, quote));
        }
        assert_eq!(node.datapath.fib.path_mtus(NOW).count(), 0, "{tunnel:?}");
        assert_eq!(node.drops(), [(2, DropReason::IcmpQuote, forged.len() as u64)], "{tunnel:?}");
        let counted = if tunnel.v6 { Mib::Icmp6InPktTooBigs } else { Mib::IcmpInDestUnreachs };
        assert_eq!(node.datapath.counters.get(counted), forged.len() as u64);
        // The same message with a genuine quote is accepted.
        node.rx_bytes(NOW, OUTSIDE, &too_big(tunnel.v6, 600, here, quote));
        let known: Vec<_> =
            node.datapath.fib.path_mtus(NOW).map(|((_, dst), known)| (dst.to_string(), known.mtu)).collect();
        assert_eq!(known, [(there.to_owned(), if tunnel.v6 { 1280 } else { 600 })], "{tunnel:?}");
        // A message with a larger MTU changes nothing.
        node.rx_bytes(NOW, OUTSIDE, &too_big(tunnel.v6, 1499, here, quote));
        assert_eq!(node.drops().last(), Some(&(2, DropReason::IcmpQuote, forged.len() as u64)));
        assert_eq!(node.drops()[0], (2, DropReason::IcmpIgnored, 1), "{tunnel:?}");
    }
}

#[test]
fn flood_of_forged_messages_stops_no_flow() {
    for tunnel in tunnels() {
        let [flow, _] = flows();
        let mut world = world(tunnel);
        let mut sender = Sender::new(flow, overhead(&sas(tunnel, 0)[0]).inner_mtu(1500));
        let [here, there] = ENDS[usize::from(tunnel.v6)];
        let packet = Flow::new(here, there).raw(Protocol::ESP, &[0; 16]);
        for turn in 0..20_u32 {
            for n in 0..50 {
                let mut quote = packet.clone();
                let spi_at = quote.len() - 16;
                quote[spi_at..spi_at + 4].copy_from_slice(&(turn * 5000 + n).wrapping_mul(0x9e37_79b9).to_be_bytes());
                world.nodes[0].rx_bytes(NOW, OUTSIDE, &too_big(tunnel.v6, 1280, here, &quote));
            }
            assert_eq!(sender.turn(&mut world), 30 * sender.mss, "{tunnel:?}");
        }
        assert_eq!(world.nodes[0].drops(), [(2, DropReason::IcmpQuote, 1000)], "{tunnel:?}");
        assert!(sender.errors.is_empty());
    }
}

#[test]
fn other_errors_about_esp_are_ignored() {
    let [flow, _] = flows();
    let mut world = world(Tunnel { v6: false, udp: false, nested: false });
    let node = &mut world.nodes[0];
    node.rx_bytes(NOW, INSIDE, &flow.udp(1000));
    let sent = only(node.tx(OUTSIDE)).to_vec();
    for (kind, code) in [(3, 0), (3, 1), (3, 13), (4, 0), (5, 1), (11, 0), (12, 0)] {
        let forger = Flow::new(STRANGERS[0], ENDS[0][0]);
        let mut message = vec![kind, code, 0, 0, 0, 0, 2, 0];
        message.extend_from_slice(&sent[..28]);
        icmp::fill_check(&mut message).unwrap();
        node.rx_bytes(NOW, OUTSIDE, &forger.raw(Protocol::ICMP, &message));
    }
    assert_eq!(node.drops(), [(2, DropReason::IcmpIgnored, 7)]);
    assert_eq!((node.datapath.fib.path_mtus(NOW).count(), node.tx(OUTSIDE).len()), (0, 0));
}

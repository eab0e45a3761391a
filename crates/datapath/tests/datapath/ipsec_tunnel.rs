//! Fat packets through ESP between two gateways: looked up once, segmented on the wire, coalesced before IP input.

use std::time::Duration;

use base::{DropReason, Mib};
use packet::Packet;
use sim::{Flow, Rng, esp, link_pair, policy};
use wire::{Version, icmp, icmpv6};
use xfrm::Mode;

use crate::common::*;
use crate::forward::{mixed_datagrams, on_wire, set_gro};
use crate::gateways::*;

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn fat_packet_leaves_the_tunnel_unchanged() {
    let nested = [false, true].map(|udp| Tunnel { v6: false, udp, nested: true });
    for tunnel in TUNNELS.into_iter().chain(nested) {
        for flow in flows() {
            let mut world = tunnelled(tunnel, 1);
            let mss = tunnel.mss(&flow);
            let segments = 65_000 / usize::from(mss);
            let pkt = flow.fat_tcp(&world.hosts[0].mem, 1, segments * usize::from(mss), mss);
            let sent = pkt.to_vec();
            world.hosts[0].send(pkt);
            world.run(SECOND);
            let got = world.hosts[1].take();
            // As many segments as page slots and a head hold, all in order.
            assert_eq!(got.len(), segments.div_ceil(48), "{tunnel:?}");
            let mut received = Received::default();
            for pkt in &got {
                received.take(&flow, pkt);
                assert_eq!(info(pkt).ttl, 62, "{tunnel:?}");
            }
            assert_eq!(received.bytes, segments * usize::from(mss), "{tunnel:?}");
            let segs = |pkt: &packet::Packet| pkt.meta.cut.gso().map_or(1, |gso| usize::from(gso.segs));
            assert_eq!(got.iter().map(segs).sum::<usize>(), segments, "{tunnel:?}");
            assert!(segments > 48 || got[0].len() == sent.len(), "{tunnel:?}");
            assert_eq!(world.stats[WIRE].frames, segments as u64, "{tunnel:?}");
            let forwarded: Vec<_> = world.nodes.iter().map(|node| node.datapath.forwarded.packets).collect();
            assert_eq!(forwarded, [1, got.len() as u64], "{tunnel:?}");
            assert_eq!((world.nodes[0].drops(), world.nodes[1].drops()), (vec![], vec![]), "{tunnel:?}");
            check_counters(&world, tunnel, &flow, (segments as u64, got.len() as u64));
        }
    }
}

/// Checks the counters of both ends for one fat packet of `segments` segments that came out as `packets` packets.
fn check_counters(world: &sim::World, tunnel: Tunnel, flow: &Flow, (segments, packets): (u64, u64)) {
    let [received, forwarded] = match flow.version() {
        Version::V4 => [Mib::IpInReceives, Mib::IpForwDatagrams],
        Version::V6 => [Mib::Ip6InReceives, Mib::Ip6OutForwDatagrams],
    };
    let [outer_received, outer_sent, outer_delivered] = match tunnel.v6 {
        false => [Mib::IpInReceives, Mib::IpOutRequests, Mib::IpInDelivers],
        true => [Mib::Ip6InReceives, Mib::Ip6OutRequests, Mib::Ip6InDelivers],
    };
    // A train is one packet. More than 64 KiB outside takes two trains, and ESP in ESP makes none.
    let trains = if tunnel.udp && !tunnel.nested { 2 } else { segments };
    let near = &world.nodes[0].datapath.counters;
    assert_eq!(near, &counters([(received, 1), (forwarded, 1), (outer_sent, trains)]), "{tunnel:?} {flow:?}");
    let far = &world.nodes[1].datapath.counters;
    // UDP GRO of the socket coalesces consecutive datagrams of one size, whatever their sender.
    let outside = match tunnel {
        Tunnel { udp: true, nested: true, .. } => far.get(outer_delivered) - segments,
        _ => trains,
    };
    assert!(outside <= trains, "{tunnel:?} {far:?}");
    let delivered = if tunnel.nested { outside + segments } else { outside };
    let want = counters([(outer_received, delivered), (outer_delivered, delivered), (forwarded, packets)]);
    let want = want.clone().with(received, want.get(received) + packets);
    assert_eq!(far, &want, "{tunnel:?} {flow:?}");
}

#[test]
fn train_of_datagrams_passes_a_tunnel_as_one_packet() {
    for tunnel in TUNNELS {
        for flow in flows() {
            let mut world = tunnelled(tunnel, 1);
            let pkt = flow.fat_udp(&world.hosts[0].mem, 20 * 1300, 1300);
            world.hosts[0].send(pkt);
            world.run(SECOND);
            let got = only(world.hosts[1].take());
            assert_eq!(got.meta.cut.gso().map(|gso| (gso.size, gso.segs)), Some((1300, 20)), "{tunnel:?}");
            let payload: Vec<u8> = (0..20 * 1300).map(sim::stream_byte).collect();
            assert!(got.to_vec().ends_with(&payload), "{tunnel:?}");
        }
    }
}

#[test]
fn pings_of_every_size_go_there_and_back() {
    for tunnel in TUNNELS {
        for flow in flows() {
            let mut world = tunnelled(tunnel, 1);
            let far = if flow.src.is_ipv4() { "10.2.0.254" } else { "fd00:2::254" };
            let flow = Flow::new(&flow.src.to_string(), far);
            for len in [0, 1, 2, 3, 56, 1000, 1370] {
                world.hosts[0].send_bytes(&flow.ping(7, len));
                world.run(SECOND);
                let reply = told(&only(world.hosts[0].take()));
                assert_eq!((reply.src.as_str(), reply.quote.len()), (far, len), "{tunnel:?}");
            }
            assert_eq!(world.nodes[0].drops().len() + world.nodes[1].drops().len(), 0, "{tunnel:?}");
        }
    }
}

#[test]
fn transport_mode_protects_packets_between_the_gateways() {
    for v6 in [false, true] {
        for udp in [false, true] {
            let ends = ENDS[usize::from(v6)];
            let mut world = gateways(if udp { sim::Medium::UdpSocket } else { sim::Medium::Cable }, 1);
            let [a, b] = &mut world.nodes[..] else { panic!("two gateways") };
            let sa = |from: usize| [esp(ends[from], ends[1 - from], 0x2000 + from as u32, Mode::Transport, udp)];
            link_pair(a, b, (ends[0], ends[1]), &sa(0));
            link_pair(b, a, (ends[1], ends[0]), &sa(1));
            // The guest sends from the address of the outer link, as the host behind a TUN device may if it has that too.
            let flow = Flow::new(ends[0], ends[1]);
            world.hosts[0].send_bytes(&flow.ping(1, 1000));
            world.run(SECOND);
            assert_eq!(world.nodes[1].drops(), [], "v6 {v6}, udp {udp}");
            let [echos, replies] = match flow.version() {
                Version::V4 => [Mib::IcmpInEchos, Mib::IcmpInEchoReps],
                Version::V6 => [Mib::Icmp6InEchos, Mib::Icmp6InEchoReplies],
            };
            assert_eq!(world.nodes[1].datapath.counters.get(echos), 1);
            assert_eq!(world.nodes[0].datapath.counters.get(replies), 1);
            assert_eq!(world.nodes[0].drops(), [(2, DropReason::IcmpIgnored, 1)], "no request was sent");
            let mss = 1300;
            let pkt = flow.fat_tcp(&world.hosts[0].mem, 1, 40 * mss, mss as u16);
            world.hosts[0].send(pkt);
            world.run(SECOND);
            // In a train there is no room for 40 bytes of IPv6 header where ESP's were: it takes a slot of its own.
            let packets = if v6 && udp { 2 } else { 1 };
            assert_eq!(world.nodes[1].drops(), [(2, DropReason::TcpNoPort, packets)], "v6 {v6}, udp {udp}");
        }
    }
}

//= test RFC 4301 §8.2.1 inner-mtu
#[test]
fn packet_too_long_for_the_tunnel_gets_the_inner_mtu() {
    let mtus = [1446, 1438, 1426, 1418];
    for (tunnel, mtu) in TUNNELS.into_iter().zip(mtus) {
        for flow in flows() {
            let v4 = flow.src.is_ipv4();
            let headers = flow.version().header_len() + 8;
            let mut world = tunnelled(tunnel, 1);
            world.hosts[0].send_bytes(&flow.udp(mtu - headers));
            let mss = tunnel.mss(&flow);
            let fits = flow.fat_tcp(&world.hosts[0].mem, 1, 3 * usize::from(mss), mss);
            world.hosts[0].send(fits);
            world.run(SECOND);
            assert_eq!((world.hosts[0].take().len(), world.hosts[1].take().len()), (0, 2), "{tunnel:?}");
            world.hosts[0].send_bytes(&flow.udp(mtu + 1 - headers));
            let fat = flow.fat_tcp(&world.hosts[0].mem, 1, 30 * usize::from(mss), mss + 1);
            world.hosts[0].send(fat);
            world.run(SECOND);
            let want = if v4 {
                Message::V4(icmp::IcmpMessage::FragNeeded { mtu: mtu as u16 })
            } else {
                Message::V6(icmpv6::Icmpv6Message::PacketTooBig { mtu: mtu as u32 })
            };
            let told: Vec<_> = world.hosts[0].take().iter().map(|pkt| told(pkt).message).collect();
            assert_eq!((told, world.hosts[1].take().len()), (vec![want; 2], 0), "{tunnel:?}");
            assert_eq!(world.nodes[0].drops(), [(1, DropReason::PacketTooBig, 2)], "{tunnel:?}");
        }
    }
}

#[test]
fn gro_does_not_change_which_datagrams_a_tunnel_takes() {
    for (nth, tunnel) in TUNNELS.into_iter().enumerate() {
        for seed in 0..60 {
            let mut rng = Rng::new(seed);
            let datagrams = mixed_datagrams(&mut rng, &flows()[(seed as usize + nth) % 2]);
            let inside = [true, false].map(|gro| {
                let mut world = tunnelled(tunnel, 1);
                let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
                let wan = near.datapath.ports.get(OUTSIDE).unwrap().config.clone();
                near.datapath.set_port(OUTSIDE, datapath::PortConfig { mtu: 1450, ..wan });
                set_gro(near, INSIDE, gro);
                let burst = datagrams.iter().map(|bytes| Packet::with_data(&near.mem, bytes).unwrap()).collect();
                near.rx(NOW, INSIDE, burst);
                on_wire(near, OUTSIDE).iter().for_each(|frame| far.rx_bytes(NOW, OUTSIDE, frame));
                assert_eq!(far.drops(), [], "{tunnel:?}, seed {seed}");
                on_wire(far, INSIDE)
            });
            assert!(inside[0] == inside[1], "{tunnel:?}, seed {seed}");
        }
    }
}

#[test]
fn packet_without_df_is_fragmented_before_esp() {
    for tunnel in TUNNELS {
        let [flow, _] = flows();
        let flow = Flow { dont_fragment: false, ..flow };
        let mut world = tunnelled(tunnel, 1);
        world.hosts[0].send_bytes(&flow.udp(3000));
        let fat = flow.fat_tcp(&world.hosts[0].mem, 1, 8000, 2000);
        world.hosts[0].send(fat);
        world.run(SECOND);
        let got = world.hosts[1].take();
        assert_eq!(got.len(), 3 + 8, "{tunnel:?}");
        assert!(got.iter().all(|pkt| info(pkt).fragment.is_some()), "{tunnel:?}");
        assert_eq!(world.stats[WIRE].frames, 11, "none is fragmented outside: {tunnel:?}");
        assert_eq!((world.nodes[0].drops(), world.nodes[1].drops()), (vec![], vec![]));
    }
}

#[test]
fn ipv6_packet_of_1280_bytes_is_fragmented_outside_esp() {
    // Over 1280 bytes of link no tunnel has the 1280 that IPv6 may count on (RFC 8200 §5).
    for udp in [false, true] {
        let [_, flow] = flows();
        let mut world = tunnelled(Tunnel { v6: false, udp, nested: false }, 1);
        let wan = world.nodes[0].datapath.ports.get(OUTSIDE).unwrap().config.clone();
        world.nodes[0].datapath.set_port(OUTSIDE, datapath::PortConfig { mtu: 1280, ..wan });
        world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(1232));
        let fat = flow.fat_tcp(&world.nodes[0].mem, 1, 4 * 1208, 1208);
        world.nodes[0].rx(NOW, INSIDE, vec![fat]);
        let sent = world.nodes[0].tx(OUTSIDE);
        assert_eq!(sent.len(), 2 * 5, "udp {udp}: {sent:?}");
        for pkt in &sent {
            assert!(pkt.len() <= 1280 && info(pkt).fragment.is_some(), "udp {udp}: {pkt:?}");
        }
        assert_eq!(world.nodes[0].drops(), []);
    }
}

#[test]
fn socket_fragments_its_own_long_datagrams() {
    for v6 in [false, true] {
        let [_, flow] = flows();
        let mut world = tunnelled(Tunnel { v6, udp: true, nested: false }, 1);
        let wan = world.nodes[0].datapath.ports.get(OUTSIDE).unwrap().config.clone();
        let features = offload::Features { ufo: true, ..wan.features };
        world.nodes[0].datapath.set_port(OUTSIDE, datapath::PortConfig { mtu: 1280, features, ..wan });
        world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(1232));
        let fat = flow.fat_tcp(&world.nodes[0].mem, 1, 4 * 1208, 1208);
        world.nodes[0].rx(NOW, INSIDE, vec![fat]);
        let sent = world.nodes[0].tx(OUTSIDE);
        assert_eq!(sent.len(), 5, "v6 {v6}: {sent:?}");
        for pkt in &sent {
            let info = info(pkt);
            assert!(pkt.len() > 1280 && info.fragment.is_none() && pkt.meta.cut == packet::Cut::Fragment, "{pkt:?}");
            assert_eq!((info.protocol, info.dont_fragment), (wire::Protocol::UDP, v6));
        }
        // The kernel at the other end puts them together.
        for mut pkt in sent {
            pkt.meta.cut = packet::Cut::Whole;
            let bytes = pkt.to_vec();
            world.nodes[1].rx_bytes(NOW, OUTSIDE, &bytes);
        }
        assert_eq!((world.nodes[1].tx(INSIDE).len(), world.nodes[1].drops()), (5, vec![]), "v6 {v6}");
        assert_eq!(world.nodes[0].drops(), []);
    }
}

#[test]
fn socket_fragments_only_datagrams_that_are_too_long() {
    for v6 in [false, true] {
        let [_, flow] = flows();
        let mut world = tunnelled(Tunnel { v6, udp: true, nested: false }, 1);
        let node = &mut world.nodes[0];
        let wan = node.datapath.ports.get(OUTSIDE).unwrap().config.clone();
        let features = offload::Features { ufo: true, ..wan.features };
        node.datapath.set_port(OUTSIDE, datapath::PortConfig { mtu: 1280, features, ..wan });
        let fat = flow.fat_tcp(&node.mem, 1, 2 * 1208 + 100, 1208);
        node.rx(NOW, INSIDE, vec![fat]);
        let cuts: Vec<_> = node.tx(OUTSIDE).iter().map(|pkt| pkt.meta.cut).collect();
        use packet::Cut::{Fragment, Whole};
        assert_eq!((cuts, node.drops()), (vec![Fragment, Fragment, Whole], vec![]), "v6 {v6}");
    }
}

#[test]
fn bypass_policy_passes_packets_in_clear() {
    let [flow, _] = flows();
    let mut world = tunnelled(TUNNELS[0], 1);
    let mut clear = policy(xfrm::Dir::Out, "10.1.0.1/32", "10.2.0.0/16", &[]);
    clear.priority = 0;
    clear.selector.dport = xfrm::PortMask::exactly(22);
    let sas = TUNNELS[0].sas(0);
    world.nodes[0].datapath.ipsec.remove_policy(&policy(xfrm::Dir::Out, "10.1.0.0/16", "10.2.0.0/16", &sas).key());
    world.nodes[0].datapath.ipsec.add_policy(clear).unwrap();
    let mut rest = policy(xfrm::Dir::Out, "10.1.0.0/16", "10.2.0.0/16", &sas);
    rest.priority = 9;
    world.nodes[0].datapath.ipsec.add_policy(rest).unwrap();
    for (dport, protocol) in [(22, wire::Protocol::UDP), (23, wire::Protocol::ESP)] {
        world.nodes[0].rx_bytes(NOW, INSIDE, &Flow { dport, ..flow }.udp(10));
        assert_eq!(info(&only(world.nodes[0].tx(OUTSIDE))).protocol, protocol);
    }
}

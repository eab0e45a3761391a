//! Packets that IPsec drops at a gateway, and their counters.

use base::{Counters, DropReason, Mib};
use packet::Packet;
use sim::{Flow, Node, esp, policy};
use wire::{FragOffset, Protocol, icmp, icmpv6};
use xfrm::{Action, Dir, Mode};

use crate::common::*;
use crate::gateways::*;

/// Runs a packet through the receiving gateway, and returns its drop and the changed counters.
fn refused(node: &mut Node, link: base::PortId, bytes: &[u8]) -> (Vec<(u32, DropReason, u64)>, Counters) {
    node.rx_bytes(NOW, link, bytes);
    assert!(node.tx(INSIDE).is_empty(), "nothing goes on");
    (node.drops(), node.datapath.counters.clone())
}

/// ESP packet that the near gateway of a tunnel sends for one datagram.
fn sealed(tunnel: Tunnel, flow: &Flow) -> Vec<u8> {
    let mut world = tunnelled(tunnel, 1);
    world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(100));
    only(world.nodes[0].tx(OUTSIDE)).to_vec()
}

//= test RFC 4301 §5.2 clear-where-protected
#[test]
fn clear_packet_where_a_policy_requires_esp_is_dropped() {
    let [through, _] = flows();
    let to_us = Flow { dst: "10.2.0.254".parse().unwrap(), ..through };
    for (flow, delivered) in [(through, 0), (to_us, 0)] {
        let mut world = tunnelled(TUNNELS[0], 1);
        let got = refused(&mut world.nodes[1], OUTSIDE, &flow.udp(10));
        let want = counters([(Mib::IpInReceives, 1), (Mib::XfrmInTmplMismatch, 1), (Mib::IpInDelivers, delivered)]);
        assert_eq!(got, (vec![(2, DropReason::PolicyMismatch, 1)], want));
        assert!(world.nodes[1].tx(OUTSIDE).is_empty());
    }
}

#[test]
fn decrypted_packet_needs_an_input_policy() {
    let [flow, _] = flows();
    let esp = sealed(TUNNELS[0], &flow);
    let mut world = tunnelled(TUNNELS[0], 1);
    let fwd = policy(Dir::Fwd, "10.1.0.0/16", "10.2.0.0/16", &[]).key();
    world.nodes[1].datapath.ipsec.remove_policy(&fwd).unwrap();
    let got = refused(&mut world.nodes[1], OUTSIDE, &esp);
    let want = counters([(Mib::IpInReceives, 2), (Mib::IpInDelivers, 1), (Mib::XfrmInNoPols, 1)]);
    assert_eq!(got, (vec![(2, DropReason::PolicyMismatch, 1)], want));
}

#[test]
fn blocked_packet_neither_leaves_nor_enters() {
    let [flow, _] = flows();
    for (dir, mib) in [(Dir::Out, Mib::XfrmOutPolBlock), (Dir::Fwd, Mib::XfrmInPolBlock)] {
        let mut node = router();
        let mut block = policy(dir, "10.1.0.0/16", "10.2.0.0/16", &[]);
        block.action = Action::Block;
        node.datapath.ipsec.add_policy(block).unwrap();
        let (drops, counted) = refused(&mut node, INSIDE, &flow.udp(10));
        let want = counters([(Mib::IpInReceives, 1), (mib, 1)]);
        assert_eq!((drops, counted), (vec![(1, DropReason::PolicyBlock, 1)], want));
        assert!(node.tx(OUTSIDE).is_empty());
    }
}

//= test RFC 4301 §7 later-fragments
#[test]
fn later_fragment_in_clear_under_a_port_policy_is_dropped() {
    let [flow, _] = flows();
    let fragment = |flow: Flow, at: usize| {
        edit_v4(&flow.udp(800), |header| header.set_fragment(FragOffset::from_bytes(at).unwrap(), true))
    };
    let some_ports = |dir, action| {
        let sas = TUNNELS[0].sas(0);
        let mut some = policy(dir, "10.1.0.0/16", "10.2.0.0/16", if action == Action::Block { &[] } else { &sas[..] });
        some.selector.protocol = Some(Protocol::UDP);
        some.selector.dport = xfrm::PortMask::exactly(53);
        some.action = action;
        some
    };
    let cases = [
        (Dir::Out, Mib::XfrmOutPolError, DropReason::PolicyClear),
        (Dir::Fwd, Mib::XfrmInTmplMismatch, DropReason::PolicyMismatch),
    ];
    for (dir, mib, reason) in cases {
        for action in [Action::Allow, Action::Block] {
            let mut node = router();
            node.datapath.ipsec.add_policy(some_ports(dir, action)).unwrap();
            // The first fragment is for another port.
            node.rx_bytes(NOW, INSIDE, &fragment(flow, 0));
            assert_eq!((node.tx(OUTSIDE).len(), node.drops()), (1, vec![]), "{dir:?} {action:?}");
            let (drops, counted) = refused(&mut node, INSIDE, &fragment(flow, 808));
            assert!(node.tx(OUTSIDE).is_empty());
            let want = counters([(Mib::IpInReceives, 2), (Mib::IpForwDatagrams, 1), (mib, 1)]);
            assert_eq!((drops, counted), (vec![(1, reason, 1)], want), "{dir:?} {action:?}");
            // A packet that matches no policy, or first a policy for all ports, is forwarded.
            node.rx_bytes(NOW, INSIDE, &fragment(Flow { src: "10.3.0.1".parse().unwrap(), ..flow }, 808));
            assert_eq!(node.tx(OUTSIDE).len(), 1);
        }
        let mut node = router();
        node.datapath.ipsec.add_policy(policy(dir, "10.1.0.0/16", "10.2.0.0/16", &[])).unwrap();
        node.datapath.ipsec.add_policy(some_ports(dir, Action::Block)).unwrap();
        node.rx_bytes(NOW, INSIDE, &fragment(flow, 808));
        assert_eq!((node.tx(OUTSIDE).len(), node.drops()), (1, vec![]), "{dir:?}");
    }
}

#[test]
fn error_about_a_decrypted_packet_returns_by_the_tunnel_only() {
    for (flow, of_node, nets) in [
        (flows()[0], "10.2.0.254", ["10.2.0.0/16", "10.1.0.0/16"]),
        (flows()[1], "fd00:2::254", ["fd00:2::/32", "fd00:1::/32"]),
    ] {
        let exceeded = match flow.src.is_ipv4() {
            true => Message::V4(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL)),
            false => Message::V6(icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::HOP_LIMIT)),
        };
        let mut world = tunnelled(TUNNELS[0], 1);
        let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
        let last_hop = Flow { ttl: 2, ..flow }.udp(100);
        near.rx_bytes(NOW, INSIDE, &last_hop);
        far.rx(NOW, OUTSIDE, near.tx(OUTSIDE));
        let answer = only(far.tx(OUTSIDE)).to_vec();
        assert_eq!(info_of(&answer).protocol, Protocol::ESP);
        near.rx_bytes(NOW, OUTSIDE, &answer);
        let reply = parse_icmp(&only(near.tx(INSIDE)));
        assert_eq!((&reply.src[..], reply.message), (of_node, exceeded));
        // An error in clear would disclose the quoted packet.
        far.datapath.ipsec.remove_policy(&policy(Dir::Out, nets[0], nets[1], &[]).key()).unwrap();
        near.rx_bytes(NOW, INSIDE, &last_hop);
        far.rx(NOW, OUTSIDE, near.tx(OUTSIDE));
        assert!(far.tx(OUTSIDE).is_empty());
        let want = [(0, DropReason::PolicyClear, 1), (2, DropReason::TtlExceeded, 2)];
        assert_eq!(far.drops(), want);
        assert_eq!(far.datapath.counters.get(Mib::XfrmOutPolError), 1);
    }
}

//= test RFC 4301 §5.1 protect-without-sa
#[test]
fn policy_without_its_sa_sends_nothing() {
    let [flow, _] = flows();
    let mut node = router();
    let sa = esp("10.2.0.254", "10.2.0.9", 0x1000, Mode::Tunnel, false);
    node.datapath.ipsec.add_policy(policy(Dir::Out, "10.1.0.0/16", "10.2.0.0/16", &[sa])).unwrap();
    let got = refused(&mut node, INSIDE, &flow.udp(10));
    let want = counters([(Mib::IpInReceives, 1), (Mib::XfrmOutNoStates, 1)]);
    assert_eq!(got, (vec![(1, DropReason::PolicyNoState, 1)], want));
    assert!(node.tx(OUTSIDE).is_empty());
}

#[test]
fn tunnel_without_a_route_to_its_end_sends_nothing() {
    for dst in ["198.51.100.1", "2001:db8:9::1"] {
        let [flow, _] = flows();
        let mut node = router();
        let src = if dst.contains(':') { "fd00:2::254" } else { "10.2.0.254" };
        let sa = [esp(src, dst, 0x1000, Mode::Tunnel, false)];
        node.datapath.ipsec.add_sa(&sa[0], 1).unwrap();
        node.datapath.ipsec.add_policy(policy(Dir::Out, "10.1.0.0/16", "10.2.0.0/16", &sa)).unwrap();
        let got = refused(&mut node, INSIDE, &flow.udp(10));
        let want = counters([(Mib::IpInReceives, 1), (Mib::XfrmOutBundleGenError, 1)]);
        assert_eq!(got, (vec![(1, DropReason::NoRoute, 1)], want), "{dst}");
    }
}

//= test RFC 4303 §3.4.2 unknown-sa
#[test]
fn forged_replayed_and_unknown_esp_have_counters() {
    let [flow, _] = flows();
    for tunnel in TUNNELS {
        let good = sealed(tunnel, &flow);
        let front = if tunnel.v6 { 40 } else { 20 } + if tunnel.udp { 8 } else { 0 };
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        };
        let cases = [
            ("another SPI", changed(front + 3), DropReason::EspNoState, Mib::XfrmInNoStates),
            ("another sequence number", changed(front + 6), DropReason::EspIcv, Mib::XfrmInStateProtoError),
            ("another payload", changed(front + 40), DropReason::EspIcv, Mib::XfrmInStateProtoError),
            ("another ICV", changed(good.len() - 1), DropReason::EspIcv, Mib::XfrmInStateProtoError),
        ];
        let [receives, delivers] =
            if tunnel.v6 { [Mib::Ip6InReceives, Mib::Ip6InDelivers] } else { [Mib::IpInReceives, Mib::IpInDelivers] };
        for (name, bytes, reason, mib) in cases {
            let mut world = tunnelled(tunnel, 1);
            let got = refused(&mut world.nodes[1], OUTSIDE, &bytes);
            let want = counters([(receives, 1), (delivers, 1), (mib, 1)]);
            assert_eq!(got, (vec![(2, reason, 1)], want), "{name} {tunnel:?}");
        }
        let mut world = tunnelled(tunnel, 1);
        world.nodes[1].rx_bytes(NOW, OUTSIDE, &good);
        only(world.nodes[1].tx(INSIDE));
        let (drops, counted) = refused(&mut world.nodes[1], OUTSIDE, &good);
        assert_eq!((drops, counted.get(Mib::XfrmInStateSeqError)), (vec![(2, DropReason::EspReplay, 1)], 1));
    }
}

#[test]
fn forged_segment_of_a_train_is_dropped_alone() {
    let [flow, _] = flows();
    let tunnel = TUNNELS[1];
    let mut world = tunnelled(tunnel, 1);
    let fat = flow.fat_tcp(&world.nodes[0].mem, 0, 20 * 1000, 1000);
    world.nodes[0].rx(NOW, INSIDE, vec![fat]);
    let train = only(world.nodes[0].tx(OUTSIDE));
    let (mut bytes, gso) = (train.to_vec(), train.meta.cut.gso().copied().unwrap());
    bytes[28 + 7 * usize::from(gso.size) + 100] ^= 1;
    let mut pkt = Packet::with_data(&world.nodes[1].mem, &bytes).unwrap();
    pkt.meta.cut = train.meta.cut;
    world.nodes[1].rx(NOW, OUTSIDE, vec![pkt]);
    let mut received = Received::default();
    let got = world.nodes[1].tx(INSIDE);
    assert_eq!(got.len(), 2, "what is before it and what is behind");
    got.iter().for_each(|pkt| received.take(&flow, pkt));
    assert_eq!(received.bytes, 19 * 1000);
    assert_eq!(world.nodes[1].drops(), [(2, DropReason::EspIcv, 1)]);
    assert_eq!(world.nodes[1].datapath.counters.get(Mib::XfrmInStateProtoError), 1);
}

#[test]
fn esp_to_another_node_is_forwarded_unopened() {
    let mut node = router();
    let sa = esp("10.1.0.1", "10.1.0.254", 0x1000, Mode::Tunnel, false);
    node.datapath.ipsec.add_sa(&sa, 1).unwrap();
    let [flow, _] = flows();
    node.rx_bytes(NOW, INSIDE, &flow.raw(Protocol::ESP, &[0; 64]));
    assert_eq!(info(&only(node.tx(OUTSIDE))).protocol, Protocol::ESP);
    assert_eq!(node.drops(), []);
}

#[test]
fn esp_to_an_address_that_is_no_longer_ours_is_not_opened() {
    let [flow, _] = flows();
    let mut world = tunnelled(TUNNELS[0], 1);
    for _ in 0..2 {
        world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(100));
    }
    let [first, second] = [0, 1].map(|at| world.nodes[0].datapath.take_tx(OUTSIDE).unwrap()[at].to_vec());
    let far = &mut world.nodes[1];
    far.rx_bytes(NOW, OUTSIDE, &first);
    only(far.tx(INSIDE));
    far.datapath.fib.replace(fib::Fib::default());
    far.rx_bytes(NOW, OUTSIDE, &second);
    // The ICMP error is dropped as well: there is no route back to the sender.
    assert_eq!(far.drops(), [(0, DropReason::NoRoute, 1), (2, DropReason::NoRoute, 1)]);
}

#[test]
fn other_datagram_to_the_esp_in_udp_port_is_not_esp() {
    let flow = Flow { sport: 4500, dport: 4500, ..Flow::new(ENDS[0][0], ENDS[0][1]) };
    let datagram = |payload: &[u8]| {
        let udp = wire::udp::UdpHeader::new(4500, 4500, (8 + payload.len()) as u16);
        flow.raw(Protocol::UDP, &[udp.as_bytes(), payload].concat())
    };
    let mut world = tunnelled(TUNNELS[1], 1);
    let node = &mut world.nodes[1];
    node.rx_bytes(NOW, OUTSIDE, &datagram(&[0xff]));
    assert_eq!((node.drops(), node.tx(OUTSIDE).len()), (vec![], 0), "a keepalive is consumed");
    node.rx_bytes(NOW, OUTSIDE, &datagram(&[0, 0, 0, 0, 1, 2, 3, 4, 5]));
    assert_eq!(node.drops(), [(2, DropReason::EncapIgnored, 1)], "no link has IKE");
    assert_eq!(node.tx(OUTSIDE).len(), 0, "the port is open");
}

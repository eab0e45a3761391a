//! Fragments for the node itself: ESP that was fragmented after encryption, and pings of any size.

use std::time::Duration;

use base::{DropReason, Mib, PortId};
use packet::{Cut, Memory, Packet};
use sim::{Flow, Node, PortOptions};
use wire::{FragOffset, Protocol, Version, icmp, icmpv6};

use crate::common::*;
use crate::gateways::*;

/// The packet that begins with `bytes`' header, in fragments of at most `mtu` bytes, the last one first.
pub(crate) fn fragments(mem: &Memory, bytes: &[u8], mtu: usize) -> Vec<Packet> {
    let packet = Packet::with_data(mem, bytes).unwrap();
    let mut out = Vec::new();
    match info_of(bytes).version() {
        Version::V4 => reassembly::fragment(mem, packet, mtu, &mut out).unwrap(),
        Version::V6 => reassembly::fragment_v6(mem, packet, mtu, 7, &mut out).unwrap(),
    }
    out.reverse();
    out
}

/// Payload of fragments that a node has sent, reassembled by another node.
pub(crate) fn whole(sent: Vec<Packet>, mtu: usize) -> Vec<u8> {
    let (mem, mut counters) = (Memory::heap(), base::Counters::ZERO);
    let mut reassembly = reassembly::Reassembly::default();
    for pkt in sent {
        assert!(pkt.len() <= mtu && pkt.meta.cut == Cut::Fragment, "{pkt:?}");
        let info = info(&pkt);
        let verdict =
            reassembly.handle_fragment(NOW, &mem, reassembly::ReassemblyContext::LOCAL, pkt, &info, &mut counters);
        if let reassembly::Verdict::Whole { pkt, .. } = verdict {
            return pkt.to_vec();
        }
    }
    panic!("not whole: {counters:?}");
}

fn rx(node: &mut Node, link: PortId, packets: Vec<Packet>) {
    node.rx(NOW, link, packets);
    assert_eq!(node.drops(), []);
}

//= test RFC 4303 §3.4.1 reassembly-first
#[test]
fn esp_that_was_fragmented_outside_is_opened() {
    let [flow, _] = flows();
    let flow = Flow { dont_fragment: false, ..flow };
    for tunnel in TUNNELS {
        let mut world = tunnelled(tunnel, 1);
        let bytes = flow.udp(1000);
        rx(&mut world.nodes[0], INSIDE, vec![Packet::with_data(&Memory::heap(), &bytes).unwrap()]);
        let sealed = only(world.nodes[0].tx(OUTSIDE)).to_vec();
        let mem = Memory::heap();
        rx(&mut world.nodes[1], OUTSIDE, fragments(&mem, &sealed, 600));
        // Forwarded twice, once by each gateway.
        let mut want = flow;
        want.ttl -= 2;
        assert_eq!(only(world.nodes[1].tx(INSIDE)).to_vec(), want.udp(1000), "{tunnel:?}");
        let moved = &world.nodes[1].datapath.counters;
        let mibs = match tunnel.v6 {
            false => [Mib::IpReasmReqds, Mib::IpReasmOKs, Mib::IpInDelivers],
            true => [Mib::Ip6ReasmReqds, Mib::Ip6ReasmOKs, Mib::Ip6InDelivers],
        };
        assert_eq!(mibs.map(|mib| moved.get(mib)), [2, 1, 1], "{tunnel:?} {moved:?}");
    }
}

#[test]
fn fragment_flood_is_evicted_for_a_ping_and_counted_by_link() {
    for (src, dst) in [("10.2.0.9", "10.2.0.254"), ("fd00:2::9", "fd00:2::254")] {
        let mut node = router();
        let mem = Memory::heap();
        // More than all memory holds, each the last fragment of a datagram of its own.
        for n in 0..3000_u16 {
            let flow = Flow { sport: n, ..Flow::new(src, dst) };
            let mut bytes = flow.ping(n, 1400);
            if flow.version() == Version::V4 {
                bytes = edit_v4(&bytes, |header| header.set_id(n));
            }
            let packet = Packet::with_data(&mem, &bytes).unwrap();
            let mut out = Vec::new();
            match flow.version() {
                Version::V4 => reassembly::fragment(&mem, packet, 800, &mut out).unwrap(),
                Version::V6 => reassembly::fragment_v6(&mem, packet, 800, n.into(), &mut out).unwrap(),
            }
            node.rx(NOW, OUTSIDE, out.split_off(1));
        }
        let good = Flow::new(&src.replace('9', "1"), dst);
        node.rx(NOW, OUTSIDE, fragments(&mem, &good.ping(3, 20_000), 1500));
        assert!(node.tx(OUTSIDE).len() > 13, "{src}: the reply, in fragments");
        let [(link, reason, count)] = node.drops()[..] else { panic!("{:?}", node.drops()) };
        assert_eq!((link, reason), (OUTSIDE.0, DropReason::FragmentEvicted));
        assert!((500..3000).contains(&count), "{count}");
    }
}

#[test]
fn a_ping_in_fragments_is_answered_in_fragments() {
    for flow in [Flow::new("10.2.0.1", "10.2.0.254"), Flow::new("fd00:2::1", "fd00:2::254")] {
        for len in [1473, 20_000, 65_000] {
            let mut node = router();
            let (mem, bytes) = (Memory::heap(), flow.ping(3, len));
            rx(&mut node, OUTSIDE, fragments(&mem, &bytes, 1500));
            let reply = Packet::with_data(&mem, &whole(node.tx(OUTSIDE), 1500)).unwrap();
            let ParsedIcmp { src, message, quote, .. } = parse_icmp(&reply);
            let (id, seq) = (flow.sport, 3);
            let want = match flow.version() {
                Version::V4 => Message::V4(icmp::IcmpMessage::EchoReply { id, seq }),
                Version::V6 => Message::V6(icmpv6::Icmpv6Message::EchoReply { id, seq }),
            };
            assert_eq!((src, message), (flow.dst.to_string(), want));
            assert!(quote == bytes[flow.version().header_len() + 8..], "{len}");
        }
    }
}

#[test]
fn reassembled_packet_keeps_its_order_among_whole_ones() {
    for flow in [Flow::new("10.2.0.1", "10.2.0.254"), Flow::new("fd00:2::1", "fd00:2::254")] {
        let (mut node, mem) = (router(), Memory::heap());
        let mut burst = Vec::new();
        for seq in 1..=4 {
            let bytes = flow.ping(seq, if seq % 2 == 0 { 1480 } else { 100 });
            let mut pieces = fragments(&mem, &bytes, 1500);
            pieces.reverse();
            burst.append(&mut pieces);
        }
        assert_eq!(burst.len(), 6);
        rx(&mut node, OUTSIDE, burst);
        let seqs: Vec<u16> = node
            .tx(OUTSIDE)
            .iter()
            .filter(|pkt| info(pkt).has_transport())
            .map(|pkt| {
                let message = pkt.to_vec().split_off(info(pkt).header_len);
                u16::from_be_bytes([message[6], message[7]])
            })
            .collect();
        assert_eq!(seqs, [1, 2, 3, 4], "{}", flow.src);
    }
}

#[test]
fn answers_in_fragments_have_identifications_of_their_own() {
    let flow = Flow::new("10.2.0.1", "10.2.0.254");
    let (mem, mut node) = (Memory::heap(), router());
    let ids: Vec<u16> = (0..8)
        .map(|seq| {
            rx(&mut node, OUTSIDE, fragments(&mem, &flow.ping(seq, 3000), 1500));
            let sent = node.tx(OUTSIDE);
            assert!(sent.iter().all(|pkt| info(pkt).id == info(&sent[0]).id));
            info(&sent[0]).id
        })
        .collect();
    assert!(ids.windows(2).any(|pair| pair[0] != pair[1]), "{ids:?}");
}

#[test]
fn reassembly_timeout_is_answered_and_transit_is_forwarded() {
    let fragment = |flow: Flow, at, more| {
        edit_v4(&flow.udp(800), |header| header.set_fragment(FragOffset::from_bytes(at).unwrap(), more))
    };
    let to_us = Flow::new("10.1.0.1", "10.1.0.254");
    let [through, _] = flows();
    let mut node = router();
    for at in [0, 808] {
        node.rx_bytes(NOW, INSIDE, &fragment(to_us, at, true));
        node.rx_bytes(NOW, INSIDE, &fragment(through, at, true));
    }
    let sent = node.tx(OUTSIDE);
    assert_eq!((sent.len(), node.drops()), (2, vec![]));
    assert!(sent.iter().all(|pkt| pkt.meta.cut == Cut::Fragment && info(pkt).fragment.is_some()));
    drop(sent);
    assert_eq!(node.datapath.poll_timeout(), Some(NOW + Duration::from_secs(30)));
    node.timeout(NOW + Duration::from_secs(30));
    assert_eq!(node.drops(), [(1, DropReason::FragmentTimeout, 2)]);
    let ParsedIcmp { message, .. } = parse_icmp(&only(node.tx(INSIDE)));
    assert_eq!(message, Message::V4(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::REASSEMBLY)));
    assert_eq!(
        node.datapath.counters,
        counters([
            (Mib::IpInReceives, 4),
            (Mib::IpForwDatagrams, 2),
            (Mib::IpReasmReqds, 2),
            (Mib::IpReasmFails, 1),
            (Mib::IpReasmTimeout, 1),
            (Mib::IcmpOutMsgs, 1),
            (Mib::IcmpOutTimeExcds, 1),
            (Mib::IpOutRequests, 1),
        ])
    );
    assert_eq!((node.datapath.poll_timeout(), node.pages_in_use()), (None, 0));
}

//= test RFC 8200 §4.5 timeout
#[test]
fn ipv6_first_fragment_alone_is_answered_after_60_s() {
    let mem = Memory::heap();
    let flow = Flow::new("fd00:1::1", "fd00:1::254");
    // The last one comes first.
    for (keeps_first, answers) in [(true, 1), (false, 0)] {
        let mut all = fragments(&mem, &flow.udp(400), 152);
        let fragment = if keeps_first { all.pop().unwrap() } else { all.swap_remove(0) };
        let (mut node, bytes) = (router(), fragment.to_vec());
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.datapath.poll_timeout(), Some(NOW + Duration::from_secs(60)));
        node.timeout(NOW + Duration::from_secs(60));
        assert_eq!(node.drops(), [(1, DropReason::FragmentTimeout, 1)]);
        let sent = node.tx(INSIDE);
        assert_eq!(sent.len(), answers);
        for ParsedIcmp { message, quote, .. } in sent.iter().map(parse_icmp) {
            let want = icmpv6::Icmpv6Message::TimeExceeded(icmpv6::Icmpv6Exceeded::REASSEMBLY);
            assert_eq!((message, quote), (Message::V6(want), bytes.clone()));
        }
    }
}

#[test]
fn reassembly_timeout_of_a_broadcast_is_not_answered() {
    for (dst, errors) in [("10.1.0.254", 1), ("10.1.0.255", 0), ("255.255.255.255", 0), ("224.0.0.1", 0)] {
        let mut node = router();
        let bytes = Flow::new("10.1.0.1", dst).udp(800);
        node.rx_bytes(NOW, INSIDE, &edit_v4(&bytes, |header| header.set_fragment(FragOffset::ZERO, true)));
        assert_eq!(node.datapath.reassembly().queues(), 1, "{dst}");
        node.timeout(NOW + Duration::from_secs(30));
        assert_eq!(node.drops(), [(1, DropReason::FragmentTimeout, 1)], "{dst}");
        assert_eq!(node.tx(INSIDE).len(), errors, "{dst}");
    }
}

#[test]
fn reassembly_limits_change_while_fragments_are_held() {
    let to_us = Flow::new("10.1.0.1", "10.1.0.254");
    let first = edit_v4(&to_us.udp(800), |header| header.set_fragment(FragOffset::ZERO, true));
    let usage = |node: &Node| node.datapath.reassembly().usage(Version::V4);
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &first);
    assert_eq!((usage(&node).queues, node.pages_in_use()), (1, 1));
    let mut config = reassembly::Config::default();
    config.v4.timeout = Duration::from_secs(3);
    node.datapath.set_reassembly(config);
    assert_eq!(node.datapath.poll_timeout(), Some(NOW + Duration::from_secs(3)));
    config.v4.high_thresh = 0;
    node.datapath.set_reassembly(config);
    assert_eq!((usage(&node), node.pages_in_use()), (reassembly::Usage::default(), 0));
    assert_eq!(node.drops(), [(1, DropReason::FragmentEvicted, 1)]);
    assert_eq!(node.datapath.counters.get(Mib::IpReasmFails), 1);
    node.rx_bytes(NOW, INSIDE, &first);
    assert_eq!(node.datapath.counters.get(Mib::IpReasmFails), 2);
    assert_eq!(node.datapath.poll_timeout(), None);
}

//= test RFC 8200 §4.5 multiple-of-8
#[test]
fn a_fragment_that_breaks_the_rules_of_ipv6_is_answered() {
    let flow = Flow::new("fd00:1::1", "fd00:1::254");
    let mut node = router();
    let mem = Memory::heap();
    // The first one, 103 bytes of payload, which is no multiple of 8 (RFC 8200 §4.5).
    let mut bytes = fragments(&mem, &flow.udp(400), 152).pop().unwrap().to_vec();
    bytes.truncate(40 + 8 + 103);
    bytes[4..6].copy_from_slice(&111_u16.to_be_bytes());
    node.rx_bytes(NOW, INSIDE, &bytes);
    assert_eq!(node.drops(), [(1, DropReason::FragmentLength, 1)]);
    let ParsedIcmp { message, .. } = parse_icmp(&only(node.tx(INSIDE)));
    let want = icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::FIELD, pointer: 4 };
    assert_eq!(message, Message::V6(want));
}

//= test RFC 8200 §4.5 header-chain
#[test]
fn a_first_fragment_without_its_upper_layer_header_is_answered() {
    let flow = Flow::new("fd00:1::1", "fd00:1::254");
    let (mem, mut node) = (Memory::heap(), router());
    // A fragment header with a destination options header next, and nothing behind it.
    let mut bytes = fragments(&mem, &flow.udp(400), 152).pop().unwrap().to_vec();
    bytes.truncate(40 + 8);
    bytes[40] = Protocol::DEST_OPTS.0;
    bytes[4..6].copy_from_slice(&8_u16.to_be_bytes());
    node.rx_bytes(NOW, INSIDE, &bytes);
    assert_eq!(node.drops(), [(1, DropReason::FragmentHeaderChain, 1)]);
    let ParsedIcmp { message, quote, .. } = parse_icmp(&only(node.tx(INSIDE)));
    let want = icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::HEADER_CHAIN, pointer: 0 };
    assert_eq!((message, quote), (Message::V6(want), bytes.clone()));
    // An Ethernet frame has 46 bytes at least; padding may be anything.
    node.rx_bytes(NOW, INSIDE, &[&bytes[..], &[0xee; 16]].concat());
    assert_eq!(parse_icmp(&only(node.tx(INSIDE))).quote, bytes);
}

#[test]
fn hop_by_hop_options_behind_fragment_header_are_refused() {
    let flow = Flow::new("fd00:1::1", "fd00:1::254");
    let udp = flow.udp(400);
    // Whole, with a fragment header, options, and the fragment header of a waiting fragment.
    let mut bytes = udp.clone();
    bytes[6] = Protocol::FRAGMENT.0;
    let hop_by_hop = [Protocol::HOP_BY_HOP.0, 0, 0, 0, 0, 0, 0, 1, Protocol::FRAGMENT.0, 0, 1, 4, 0, 0, 0, 0];
    bytes.splice(40..40, hop_by_hop.into_iter().chain([Protocol::UDP.0, 0, 0, 1, 0, 0, 0, 9]));
    let len = (bytes.len() - 40) as u16;
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    let halves = || {
        let mut first = bytes[..48 + 64].to_vec();
        first[4..6].copy_from_slice(&[0, 72]);
        first[43] = 1;
        let mut second = [&bytes[..48], &bytes[48 + 64..]].concat();
        let len = (second.len() - 40) as u16;
        second[4..6].copy_from_slice(&len.to_be_bytes());
        second[43] = 64;
        vec![first, second]
    };
    for (packets, pointer) in [(vec![bytes.clone()], 40), (halves(), 6)] {
        let mut node = router();
        packets.iter().for_each(|bytes| node.rx_bytes(NOW, INSIDE, bytes));
        assert_eq!(node.drops(), [(1, DropReason::ProtocolUnknown, 1)]);
        let ParsedIcmp { message, .. } = parse_icmp(&only(node.tx(INSIDE)));
        let want = icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::NEXT_HEADER, pointer };
        assert_eq!(message, Message::V6(want));
        let port = &node.datapath.ports.get(INSIDE).unwrap().counters;
        for moved in [port, &node.datapath.counters] {
            assert_eq!([Mib::Ip6InUnknownProtos, Mib::Ip6InHdrErrors].map(|mib| moved.get(mib)), [1, 0]);
        }
        assert_eq!((node.datapath.reassembly().queues(), node.pages_in_use()), (0, 0));

        let mut node = router();
        node.datapath.ipsec.set_default_policy(xfrm::Dir::In, xfrm::Action::Block);
        packets.iter().for_each(|bytes| node.rx_bytes(NOW, INSIDE, bytes));
        assert_eq!((node.tx(INSIDE).len(), node.datapath.counters.get(Mib::Ip6InUnknownProtos)), (0, 0));
        assert_eq!(node.drops(), [(1, DropReason::PolicyMismatch, 1)]);
    }
}

#[test]
fn esp_behind_an_atomic_fragment_header_is_opened() {
    let [_, flow] = flows();
    let tunnel = Tunnel { v6: true, udp: false, nested: false };
    let mut world = tunnelled(tunnel, 1);
    world.nodes[0].rx_bytes(NOW, INSIDE, &flow.udp(100));
    let mut bytes = only(world.nodes[0].tx(OUTSIDE)).to_vec();
    bytes.splice(40..40, [Protocol::ESP.0, 0, 0, 0, 0, 0, 0, 7]);
    bytes[6] = Protocol::FRAGMENT.0;
    let len = (bytes.len() - 40) as u16;
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    world.nodes[1].rx_bytes(NOW, OUTSIDE, &bytes);
    assert_eq!((world.nodes[1].tx(INSIDE).len(), world.nodes[1].drops()), (1, vec![]));
}

#[test]
fn link_set_to_reassemble_gets_whole_datagrams() {
    for flow in flows() {
        let whole = match flow.version() {
            Version::V4 => edit_v4(&flow.udp(20_000), |header| header.set_dont_fragment(false)),
            Version::V6 => flow.udp(20_000),
        };
        for defragments in [false, true] {
            let mut node = router_with(PortOptions::BARE, PortOptions::BARE.mtu(1400));
            node.datapath.set_defrag(if defragments { vec![OUTSIDE] } else { vec![] });
            let fragments = fragments(&node.mem, &whole, 1280);
            let count = fragments.len();
            node.rx(NOW, INSIDE, fragments);
            let sent = node.tx(OUTSIDE);
            assert_eq!(sent.len(), if defragments { 1 } else { count });
            if defragments {
                let at = flow.version().header_len();
                assert_eq!(sent[0].to_vec()[at..], whole[at..]);
            }
            // A datagram that was received whole is sent whole.
            let long = flow.udp(1440);
            let long = match flow.version() {
                Version::V4 => edit_v4(&long, |header| header.set_dont_fragment(true)),
                Version::V6 => long,
            };
            node.rx_bytes(NOW, INSIDE, &long);
            assert_eq!(node.tx(OUTSIDE).len(), usize::from(defragments));
        }
    }
}

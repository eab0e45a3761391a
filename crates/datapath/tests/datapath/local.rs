//! Packets for the node itself: pings are answered, other packets are dropped with a reason.

use base::{DropReason, Mib};
use packet::{Memory, Packet, geometry};
use sim::Flow;
use wire::{Protocol, Version, icmp, icmpv6, tcp};

use crate::common::*;

/// Flows to that router's own inner addresses.
fn to_us() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.1.0.254"), Flow::new("fd00:1::1", "fd00:1::254")]
}

#[test]
fn a_ping_is_answered_in_every_geometry() {
    for flow in to_us() {
        for len in [0, 1, 56, 1472, 3000] {
            let bytes = flow.ping(9, len);
            let mem = Memory::heap();
            for (shape, pkt) in geometry::all(&mem, &bytes, &[20, 28, 40, 48]) {
                let mut node = router();
                node.rx(NOW, INSIDE, vec![pkt]);
                assert_eq!(node.drops(), [], "{len} {shape}");
                let reply = only(node.tx(INSIDE));
                let header_len = flow.version().header_len();
                let ParsedIcmp { src, dst, message, quote } = parse_icmp(&reply);
                assert_eq!((src, dst), (flow.dst.to_string(), flow.src.to_string()), "{shape}");
                assert!(quote == bytes[header_len + 8..], "{len} {shape}");
                let (id, seq) = (flow.sport, 9);
                let (want, counted) = match flow.version() {
                    Version::V4 => (
                        Message::V4(icmp::IcmpMessage::EchoReply { id, seq }),
                        counters([
                            (Mib::IpInReceives, 1),
                            (Mib::IpInDelivers, 1),
                            (Mib::IcmpInMsgs, 1),
                            (Mib::IcmpInEchos, 1),
                            (Mib::IcmpOutMsgs, 1),
                            (Mib::IcmpOutEchoReps, 1),
                            (Mib::IpOutRequests, 1),
                        ]),
                    ),
                    Version::V6 => (
                        Message::V6(icmpv6::Icmpv6Message::EchoReply { id, seq }),
                        counters([
                            (Mib::Ip6InReceives, 1),
                            (Mib::Ip6InDelivers, 1),
                            (Mib::Icmp6InMsgs, 1),
                            (Mib::Icmp6InEchos, 1),
                            (Mib::Icmp6OutMsgs, 1),
                            (Mib::Icmp6OutEchoReplies, 1),
                            (Mib::Ip6OutRequests, 1),
                        ]),
                    ),
                };
                assert_eq!(message, want, "{len} {shape}");
                assert_eq!((&node.datapath.counters, node.drops()), (&counted, vec![]), "{len} {shape}");
            }
        }
    }
}

#[test]
fn a_long_answer_is_fragmented_over_ipv4() {
    let mut node = router();
    node.rx_bytes(NOW, OUTSIDE, &Flow::new("10.2.0.1", "10.2.0.254").ping(1, 4000));
    let sent = node.tx(OUTSIDE);
    assert_eq!(sent.iter().map(Packet::len).collect::<Vec<_>>(), [1500, 1500, 1068]);
    assert_eq!((node.datapath.counters.get(Mib::IpFragOKs), node.datapath.counters.get(Mib::IpFragCreates)), (1, 3));
}

#[test]
fn packet_of_an_unhandled_protocol_is_refused_by_name() {
    use icmp::{IcmpMessage::Unreachable as V4, IcmpUnreachable as Code4};
    let [v4, v6] = to_us();
    let next_header = icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::NEXT_HEADER, pointer: 6 };
    let gre = Protocol(47);
    let no_port = DropReason::UdpNoPort;
    let unknown = DropReason::ProtocolUnknown;
    let cases = [
        ("UDP", v4.udp(9), no_port, Mib::UdpNoPorts, Message::V4(V4(Code4::PORT))),
        ("UDP over IPv6", v6.udp(9), no_port, Mib::Udp6NoPorts, unreachable_v6(icmpv6::Icmpv6Unreachable::PORT)),
        ("GRE over IPv6", v6.raw(gre, &[0; 9]), unknown, Mib::Ip6InUnknownProtos, Message::V6(next_header)),
        ("OSPF", v4.raw(Protocol(89), &[0; 9]), unknown, Mib::IpInUnknownProtos, Message::V4(V4(Code4::PROTOCOL))),
        ("ICMPv6 over IPv4", v4.raw(Protocol::ICMPV6, &[128; 9]), unknown, Mib::IpInUnknownProtos, {
            Message::V4(V4(Code4::PROTOCOL))
        }),
    ];
    for (name, bytes, reason, mib, message) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        let error = parse_icmp(&only(node.tx(INSIDE)));
        assert_eq!((error.message, error.quote), (message, bytes), "{name}");
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert_eq!(node.datapath.counters.get(mib), 1, "{name}");
    }
}

/// Flags, sequence and acknowledgment number of a segment.
fn reset_of(pkt: &Packet, flow: &Flow) -> (tcp::Flags, u32, u32) {
    let bytes = pkt.to_vec();
    let info = info_of(&bytes);
    assert_eq!((info.protocol, info.src, info.dst), (Protocol::TCP, flow.dst, flow.src));
    assert!(offload::checksum::verify(pkt, &info));
    let segment = tcp::Tcp::parse(info.payload(&bytes)).unwrap();
    let it = segment.header();
    assert_eq!((it.sport(), it.dport(), segment.payload_len()), (flow.dport, flow.sport, 0));
    (it.flags(), it.seq(), it.ack())
}

#[test]
fn segment_to_a_closed_port_is_reset() {
    for flow in to_us() {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &flow.tcp(5, 9));
        assert_eq!(reset_of(&only(node.tx(INSIDE)), &flow), (tcp::Flags::RST, 1, 0));
        let fat = flow.fat_tcp(&node.mem, 5, 12_000, 1200);
        node.rx(NOW, INSIDE, vec![fat]);
        assert_eq!(reset_of(&only(node.tx(INSIDE)), &flow), (tcp::Flags::RST, 1, 0));
        assert_eq!(node.drops(), [(1, DropReason::TcpNoPort, 2)]);
        let of_tcp = [Mib::TcpInSegs, Mib::TcpOutSegs, Mib::TcpOutRsts, Mib::TcpInErrs]
            .map(|mib| node.datapath.counters.get(mib));
        assert_eq!(of_tcp, [2, 2, 2, 0]);
        // Every segment is answered: ICMP's rate limits do not apply.
        (0..2000).for_each(|_| node.rx_bytes(NOW, INSIDE, &flow.tcp(5, 9)));
        assert_eq!(node.tx(INSIDE).len(), 2000);
    }
}

#[test]
fn a_reset_or_a_wrong_segment_is_not_answered() {
    type Edit = fn(&mut [u8]);
    for flow in to_us() {
        let at = flow.version().header_len();
        let edits: [(Edit, DropReason, [u64; 3]); 4] = [
            (|it| it[21] ^= 0x10, DropReason::ChecksumWrong, [1, 1, 1]),
            (|it| it[12] = 0x40, DropReason::TransportHeader, [1, 1, 0]),
            (|it| it[12] = 0xf0, DropReason::TransportHeader, [1, 0, 0]),
            // A reset with a valid checksum.
            (
                |it| {
                    it[13] |= 4;
                    let check = u16::from_be_bytes([it[16], it[17]]);
                    let check = wire::checksum::replace2(check, 0x8010, 0x8014);
                    it[16..18].copy_from_slice(&check.to_be_bytes());
                },
                DropReason::TcpNoPort,
                [1, 0, 0],
            ),
        ];
        for (n, (edit, reason, counted)) in edits.into_iter().enumerate() {
            let mut bytes = flow.tcp(1, 9);
            edit(&mut bytes[at..]);
            let mut node = router();
            node.rx_bytes(NOW, INSIDE, &bytes);
            assert!(node.tx(INSIDE).is_empty(), "{n}");
            assert_eq!(node.drops(), [(1, reason, 1)], "{n}");
            let of_tcp =
                [Mib::TcpInSegs, Mib::TcpInErrs, Mib::TcpInCsumErrors].map(|mib| node.datapath.counters.get(mib));
            assert_eq!((of_tcp, node.datapath.counters.get(Mib::TcpOutRsts)), (counted, 0), "{n}");
        }
    }
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.1.0.255").tcp(1, 9));
    assert!(node.tx(INSIDE).is_empty());
    assert_eq!(node.drops(), [(1, DropReason::TcpNoPort, 1)]);
}

const fn unreachable_v6(code: icmpv6::Icmpv6Unreachable) -> Message {
    Message::V6(icmpv6::Icmpv6Message::Unreachable(code))
}

#[test]
fn train_of_datagrams_to_a_closed_port_is_answered_once() {
    let [flow, _] = to_us();
    let mut node = router();
    let pkt = flow.fat_udp(&node.mem, 12_000, 1200);
    node.rx(NOW, INSIDE, vec![pkt]);
    only(node.tx(INSIDE));
    assert_eq!(node.drops(), [(1, DropReason::UdpNoPort, 1)]);
}

#[test]
fn icmp_messages_without_a_request_are_ignored() {
    let [v4, v6] = to_us();
    let echo_reply = |flow: &Flow| {
        let mut bytes = flow.ping(1, 8);
        let at = flow.version().header_len();
        bytes[at] = if flow.src.is_ipv4() { 0 } else { 129 };
        // The checksum changes by the difference of the types, which are in the high half of their word.
        let check = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
        let old = if flow.src.is_ipv4() { 0x0800 } else { 0x8000 };
        let new = u16::from(bytes[at]) << 8;
        bytes[at + 2..at + 4].copy_from_slice(&wire::checksum::replace2(check, old, new).to_be_bytes());
        bytes
    };
    let wrong = |flow: &Flow| {
        let mut bytes = flow.ping(1, 8);
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let ignored = DropReason::IcmpIgnored;
    let cases = [
        ("an answer", echo_reply(&v4), ignored, Mib::IcmpInEchoReps),
        ("an ICMPv6 answer", echo_reply(&v6), ignored, Mib::Icmp6InEchoReplies),
        ("a wrong bit", wrong(&v4), DropReason::ChecksumWrong, Mib::IcmpInCsumErrors),
        ("a wrong bit in ICMPv6", wrong(&v6), DropReason::ChecksumWrong, Mib::Icmp6InCsumErrors),
        ("a ping to the subnet", Flow::new("10.1.0.1", "10.1.0.255").ping(1, 8), ignored, Mib::IcmpInEchos),
        (
            "a ping to the broadcast address",
            Flow::new("10.1.0.1", "255.255.255.255").ping(1, 8),
            ignored,
            Mib::IcmpInEchos,
        ),
        ("a ping to a group", Flow::new("fd00:1::1", "ff02::5").ping(1, 8), ignored, Mib::Icmp6InEchos),
    ];
    for (name, bytes, reason, mib) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert_eq!(node.datapath.counters.get(mib), 1, "{name}: {:?}", node.datapath.counters);
        assert!(node.tx(INSIDE).is_empty(), "{name}");
    }
}

/// An IPv6 packet with an ICMPv6 message behind a router alert, as MLD has it.
fn mld(kind: u8, len: usize, hop_limit: u8, source: &str) -> Vec<u8> {
    let (src, dst) = (source.parse().unwrap(), "ff02::16".parse().unwrap());
    let mut message = vec![0; len];
    message[0] = kind;
    wire::icmpv6::fill_check(&mut message, src, dst).unwrap();
    let hop_by_hop = [58, 0, 5, 2, 0, 0, 1, 0];
    let mut header = wire::ipv6::Ipv6Header::new(src, dst, wire::Protocol(0), (8 + len) as u16);
    header.set_hop_limit(hop_limit);
    [header.as_bytes(), &hop_by_hop, &message].concat()
}

fn igmp(len: usize, ttl: u8, is_right: bool) -> Vec<u8> {
    let mut message = vec![0; len];
    message[0] = 0x11;
    if len >= 4 {
        let check = wire::checksum::finish(wire::checksum::sum(&message)) ^ u16::from(!is_right);
        message[2..4].copy_from_slice(&check.to_be_bytes());
    }
    let (src, dst) = ("10.1.0.1".parse().unwrap(), "224.0.0.1".parse().unwrap());
    let mut header = wire::ipv4::Ipv4Header::new(src, dst, wire::Protocol(2), 20 + len as u16);
    header.set_ttl(ttl);
    header.fill_check();
    [header.as_bytes(), &message].concat()
}

#[test]
fn valid_multicast_of_others_is_no_drop() {
    let router_solicit = {
        let (src, dst) = ("fe80::1".parse().unwrap(), "ff02::2".parse().unwrap());
        let mut message = vec![133, 0, 0, 0, 0, 0, 0, 0];
        wire::icmpv6::fill_check(&mut message, src, dst).unwrap();
        let mut header = wire::ipv6::Ipv6Header::new(src, dst, wire::Protocol::ICMPV6, 8);
        header.set_hop_limit(255);
        [header.as_bytes(), &message].concat()
    };
    let mut forwarded_solicit = router_solicit.clone();
    forwarded_solicit[7] = 254;
    let mdns = |to: &str, from: &str| Flow::new(from, to).udp(40);
    let (ignored, malformed) = (DropReason::IcmpIgnored, DropReason::NeighbourMalformed);
    let cases = [
        ("a router solicitation", router_solicit, None),
        ("one that was forwarded", forwarded_solicit, Some(malformed)),
        ("a query", mld(130, 24, 1, "fe80::1"), None),
        ("a report of MLDv2", mld(143, 8, 1, "::"), None),
        ("a short query", mld(130, 23, 1, "fe80::1"), Some(ignored)),
        ("a query from afar", mld(130, 24, 1, "2001:db8::1"), Some(ignored)),
        ("a query that was forwarded", mld(130, 24, 2, "fe80::1"), Some(ignored)),
        ("another type", mld(200, 24, 1, "fe80::1"), Some(ignored)),
        ("an IGMP query", igmp(8, 1, true), None),
        ("a short one", igmp(7, 1, true), Some(DropReason::ProtocolUnknown)),
        ("one with a wrong checksum", igmp(8, 1, false), Some(DropReason::ProtocolUnknown)),
        ("one that was forwarded", igmp(8, 2, true), Some(DropReason::ProtocolUnknown)),
        ("mDNS", mdns("224.0.0.251", "10.1.0.1"), None),
        ("mDNS by IPv6", mdns("ff02::fb", "fe80::1"), None),
        ("a broadcast", mdns("255.255.255.255", "10.1.0.1"), None),
        ("a unicast datagram", mdns("10.1.0.254", "10.1.0.1"), Some(DropReason::UdpNoPort)),
    ];
    for (name, bytes, reason) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        let want: Vec<_> = reason.into_iter().map(|reason| (1, reason, 1)).collect();
        assert_eq!(node.drops(), want, "{name}");
    }
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, &mdns("224.0.0.251", "10.1.0.1"));
    let counted = [Mib::UdpIgnoredMulti, Mib::UdpNoPorts].map(|mib| node.datapath.counters.get(mib));
    assert_eq!(counted, [1, 0]);
}

#[test]
fn a_datagram_with_a_wrong_checksum_is_not_answered() {
    for flow in to_us() {
        let mut bytes = flow.udp(100);
        bytes[70] ^= 0x10;
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.drops(), [(1, DropReason::ChecksumWrong, 1)]);
        assert!(node.tx(INSIDE).is_empty());
        let [errors, csum] = match flow.version() {
            Version::V4 => [Mib::UdpInErrors, Mib::UdpInCsumErrors],
            Version::V6 => [Mib::Udp6InErrors, Mib::Udp6InCsumErrors],
        };
        assert_eq!((node.datapath.counters.get(errors), node.datapath.counters.get(csum)), (1, 1));
    }
}

#[test]
fn malformed_datagram_is_dropped_silently_and_counted() {
    // (bytes of UDP, its length field, whether it has no checksum, whether the datagram is valid)
    let cases = [
        (0, None, false, false),
        (4, None, false, false),
        (7, None, false, false),
        (108, Some(7), false, false),
        (108, Some(109), false, false),
        (108, Some(0xffff), true, false),
        (108, None, false, true),
    ];
    for flow in to_us() {
        let (v4, at) = (flow.version() == Version::V4, flow.version().header_len());
        for (left, len, unsummed, good) in cases {
            let mut datagram = flow.udp(100)[at..].to_vec();
            datagram.truncate(left);
            if let Some(len) = len {
                datagram[4..6].copy_from_slice(&u16::to_be_bytes(len));
            }
            if unsummed {
                datagram[6..8].fill(0);
            }
            let mut node = router();
            node.rx_bytes(NOW, INSIDE, &flow.raw(Protocol::UDP, &datagram));
            let [no_ports, errors, sums] = if v4 {
                [Mib::UdpNoPorts, Mib::UdpInErrors, Mib::UdpInCsumErrors]
            } else {
                [Mib::Udp6NoPorts, Mib::Udp6InErrors, Mib::Udp6InCsumErrors]
            };
            let reason = if good { DropReason::UdpNoPort } else { DropReason::TransportHeader };
            assert_eq!(node.drops(), [(1, reason, 1)], "{left} {len:?}");
            let counted = [no_ports, errors, sums].map(|mib| node.datapath.counters.get(mib));
            assert_eq!(counted, [u64::from(good), u64::from(!good), 0], "{left} {len:?}");
            assert_eq!(node.tx(INSIDE).len(), usize::from(good), "{left} {len:?}");
        }
        // Bytes behind the datagram are not in the checksum.
        let longer = [&flow.udp(100)[at..], &[7; 5]].concat();
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &flow.raw(Protocol::UDP, &longer));
        assert_eq!(node.drops(), [(1, DropReason::UdpNoPort, 1)]);
    }
}

#[test]
fn ping_to_all_nodes_or_routers_is_answered() {
    for group in ["ff02::1", "ff02::2", "ff05::2"] {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &Flow::new("fd00:1::1", group).ping(1, 8));
        let ParsedIcmp { src, dst, message, .. } = parse_icmp(&only(node.tx(INSIDE)));
        assert_eq!((src.as_str(), dst.as_str()), ("fd00:1::254", "fd00:1::1"), "{group}");
        assert!(matches!(message, Message::V6(icmpv6::Icmpv6Message::EchoReply { .. })), "{group}");
        assert_eq!(node.drops(), [], "{group}");
    }
}

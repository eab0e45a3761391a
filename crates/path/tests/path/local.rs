//! Packets for the node itself: pings are answered, all else ends here with its reason.

use base::{DropReason, Mib};
use packet::{Memory, Packet, geometry};
use sim::Flow;
use wire::{Protocol, Version, icmp, icmpv6};

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
                let Told { src, dst, message, quote } = told(&reply);
                assert_eq!((src, dst), (flow.dst.to_string(), flow.src.to_string()), "{shape}");
                assert!(quote == bytes[header_len + 8..], "{len} {shape}");
                let (id, seq) = (flow.sport, 9);
                let (want, counted) = match flow.version() {
                    Version::V4 => (
                        Message::V4(icmp::Message::EchoReply { id, seq }),
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
                        Message::V6(icmpv6::Message::EchoReply { id, seq }),
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
                assert_eq!((&node.path.counters, node.drops()), (&counted, vec![]), "{len} {shape}");
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
    assert_eq!((node.path.counters.get(Mib::IpFragOKs), node.path.counters.get(Mib::IpFragCreates)), (1, 3));
}

#[test]
fn what_nobody_here_wants_is_refused_by_name() {
    use icmp::{Message::Unreachable as V4, Unreachable as Code4};
    let [v4, v6] = to_us();
    let next_header = icmpv6::Message::ParamProblem { code: icmpv6::Problem::NEXT_HEADER, pointer: 6 };
    let no_port = DropReason::UdpNoPort;
    let unknown = DropReason::ProtocolUnknown;
    let cases = [
        ("UDP", v4.udp(9), no_port, Mib::UdpNoPorts, Message::V4(V4(Code4::PORT))),
        ("UDP over IPv6", v6.udp(9), no_port, Mib::Udp6NoPorts, unreachable_v6(icmpv6::Unreachable::PORT)),
        ("TCP", v4.tcp(1, 9), unknown, Mib::IpInUnknownProtos, Message::V4(V4(Code4::PROTOCOL))),
        ("TCP over IPv6", v6.tcp(1, 9), unknown, Mib::Ip6InUnknownProtos, Message::V6(next_header)),
        ("OSPF", v4.raw(Protocol(89), &[0; 9]), unknown, Mib::IpInUnknownProtos, Message::V4(V4(Code4::PROTOCOL))),
        ("ICMPv6 over IPv4", v4.raw(Protocol::ICMPV6, &[128; 9]), unknown, Mib::IpInUnknownProtos, {
            Message::V4(V4(Code4::PROTOCOL))
        }),
    ];
    for (name, bytes, reason, mib, message) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        let told = told(&only(node.tx(INSIDE)));
        assert_eq!((told.message, told.quote), (message, bytes), "{name}");
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert_eq!(node.path.counters.get(mib), 1, "{name}");
    }
}

const fn unreachable_v6(code: icmpv6::Unreachable) -> Message {
    Message::V6(icmpv6::Message::Unreachable(code))
}

#[test]
fn a_train_of_datagrams_that_nobody_wants_is_answered_once() {
    let [flow, _] = to_us();
    let mut node = router();
    let pkt = flow.fat_udp(&node.mem, 12_000, 1200);
    node.rx(NOW, INSIDE, vec![pkt]);
    only(node.tx(INSIDE));
    assert_eq!(node.drops(), [(1, DropReason::UdpNoPort, 1)]);
}

#[test]
fn messages_that_ask_for_nothing_end_here() {
    let [v4, v6] = to_us();
    let echo_reply = |flow: &Flow| {
        let mut bytes = flow.ping(1, 8);
        let at = flow.version().header_len();
        bytes[at] = if flow.src.is_ipv4() { 0 } else { 129 };
        // The checksum takes the difference of the types, which are in the high half of their word.
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
        ("a ping to everybody", Flow::new("10.1.0.1", "255.255.255.255").ping(1, 8), ignored, Mib::IcmpInEchos),
        ("a ping to all nodes", Flow::new("fd00:1::1", "ff02::1").ping(1, 8), ignored, Mib::Icmp6InEchos),
    ];
    for (name, bytes, reason, mib) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert_eq!(node.path.counters.get(mib), 1, "{name}: {:?}", node.path.counters);
        assert!(node.tx(INSIDE).is_empty(), "{name}");
    }
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
        assert_eq!((node.path.counters.get(errors), node.path.counters.get(csum)), (1, 1));
    }
}

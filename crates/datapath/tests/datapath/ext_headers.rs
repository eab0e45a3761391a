//! IPv6 extension headers in front of a ping, with the results of a Linux kernel.

use base::{DropReason, Mib};
use packet::Memory;
use sim::Flow;
use wire::{Protocol, icmpv6, ipv6};

use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;

const PING: u8 = 58;
const DEST_OPTS: u8 = 60;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;

/// A ping of this flow behind extension headers; the first one is of type `first`.
fn behind(flow: &Flow, first: u8, headers: &[u8]) -> Vec<u8> {
    let ping = flow.ping(9, 8);
    let mut bytes = [&ping[..40], headers, &ping[40..]].concat();
    bytes[4..6].copy_from_slice(&((headers.len() + ping.len() - 40) as u16).to_be_bytes());
    bytes[ipv6::NEXT_HEADER_AT] = first;
    bytes
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The packet is answered, or forwarded.
    Passes,
    /// The packet is dropped.
    Silent,
    /// The packet is dropped, with an error to its sender.
    ParamProblem(icmpv6::Problem, u32),
}

fn check(bytes: &[u8], want: Outcome, passed_by: base::PortId) {
    let mut node = router();
    node.rx_bytes(NOW, INSIDE, bytes);
    let name = format!("{:02x?}", &bytes[40..56.min(bytes.len())]);
    let passes = want == Outcome::Passes;
    assert_eq!(node.datapath.counters.get(Mib::Ip6InHdrErrors), u64::from(!passes), "{name}");
    let drops = if passes { vec![] } else { vec![(1, DropReason::Ipv6Header, 1)] };
    assert_eq!(node.drops(), drops, "{name}");
    match want {
        Outcome::Passes => assert_eq!(node.tx(passed_by).len(), 1, "{name}"),
        Outcome::Silent => assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty(), "{name}"),
        Outcome::ParamProblem(code, pointer) => {
            let reply = parse_icmp(&only(node.tx(INSIDE)));
            assert_eq!(reply.message, Message::V6(icmpv6::Icmpv6Message::ParamProblem { code, pointer }), "{name}");
            assert_eq!(reply.quote, bytes, "{name}");
        }
    }
}

/// Options, and the result for a packet with them.
fn options() -> [(&'static [u8], Outcome); 13] {
    use Outcome::{ParamProblem, Passes, Silent};
    const OPTION: icmpv6::Problem = icmpv6::Problem::OPTION;
    [
        (&[PING, 0, 0x1e, 4, 1, 2, 3, 4], Passes),
        (&[PING, 0, 0x5e, 4, 1, 2, 3, 4], Silent),
        (&[PING, 0, 0x9e, 4, 1, 2, 3, 4], ParamProblem(OPTION, 42)),
        (&[PING, 0, 0xde, 4, 1, 2, 3, 4], ParamProblem(OPTION, 42)),
        (&[PING, 0, 1, 0, 0x9e, 2, 1, 2], ParamProblem(OPTION, 44)),
        (&[PING, 0, 0x1e, 9, 1, 2, 3, 4], Silent), // longer than the header
        (&[PING, 0, 1, 3, 0, 0, 0, 0x1e], Silent), // no length
        (&[PING, 0, 0, 0, 0, 0, 0, 0], Passes),
        (&[PING, 0, 1, 4, 0, 1, 0, 0], Silent), // padding that is not zero
        (&[PING, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Silent),
        (&[PING, 1, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0], Silent),
        (&[PING, 0, 0xc9, 4, 0, 1, 0, 0], ParamProblem(OPTION, 42)),
        (&[PING, 0, 5, 2, 0, 0, 1, 0], Passes),
    ]
}

//= test RFC 8200 §4.2 unknown-options
#[test]
fn options_are_treated_as_their_types_say() {
    let to_us = Flow::new("fd00:1::1", "fd00:1::254");
    let [_, transit] = flows();
    for (header, want) in options() {
        check(&behind(&to_us, HOP_BY_HOP, header), want, INSIDE);
        check(&behind(&to_us, DEST_OPTS, header), want, INSIDE);
        check(&behind(&transit, HOP_BY_HOP, header), want, OUTSIDE);
        check(&behind(&transit, DEST_OPTS, header), Outcome::Passes, OUTSIDE);
    }
    let jumbo = [PING, 0, 0xc2, 4, 0, 1, 0, 0];
    check(&behind(&to_us, HOP_BY_HOP, &jumbo), Outcome::ParamProblem(icmpv6::Problem::FIELD, 42), INSIDE);
    check(&behind(&to_us, DEST_OPTS, &jumbo), Outcome::ParamProblem(icmpv6::Problem::OPTION, 42), INSIDE);
    // Nine options to be skipped are above the limit.
    let many: Vec<u8> = [PING, 2].into_iter().chain([0x1e, 0].repeat(9)).chain([1, 2, 0, 0]).collect();
    check(&behind(&to_us, DEST_OPTS, &many), Outcome::Silent, INSIDE);
}

//= test RFC 8200 §4.2 unknown-options
#[test]
fn option_in_a_group_packet_is_reported_by_its_type() {
    let group = Flow::new("fd00:1::1", "ff02::1");
    for kind in [HOP_BY_HOP, DEST_OPTS] {
        let reply = Outcome::ParamProblem(icmpv6::Problem::OPTION, 42);
        check(&behind(&group, kind, &[PING, 0, 0x9e, 4, 1, 2, 3, 4]), reply, INSIDE);
        check(&behind(&group, kind, &[PING, 0, 0xde, 4, 1, 2, 3, 4]), Outcome::Silent, INSIDE);
    }
}

//= test RFC 8200 §4.4 segments-left
#[test]
fn routing_header_with_segments_left_is_refused() {
    let to_us = Flow::new("fd00:1::1", "fd00:1::254");
    let [_, transit] = flows();
    for kind in [0, 1, 2, 3, 4, 253] {
        for left in [0, 1, 2] {
            let header = [&[PING, 2, kind, left, 0, 0, 0, 0][..], &[0xfd; 16]].concat();
            let want = if left == 0 { Outcome::Passes } else { Outcome::ParamProblem(icmpv6::Problem::FIELD, 42) };
            check(&behind(&to_us, ROUTING, &header), want, INSIDE);
            check(&behind(&transit, ROUTING, &header), Outcome::Passes, OUTSIDE);
            let behind_options = [&[ROUTING, 0, 1, 4, 0, 0, 0, 0][..], &header].concat();
            let want = if left == 0 { Outcome::Passes } else { Outcome::ParamProblem(icmpv6::Problem::FIELD, 50) };
            check(&behind(&to_us, DEST_OPTS, &behind_options), want, INSIDE);
        }
    }
}

#[test]
fn option_behind_a_fragment_header_is_seen_when_whole() {
    let to_us = Flow::new("fd00:1::1", "fd00:1::254");
    let mut ping = to_us.ping(9, 3000);
    let header = [PING, 0, 0x9e, 4, 1, 2, 3, 4];
    ping.splice(40..40, header);
    ping[ipv6::NEXT_HEADER_AT] = DEST_OPTS;
    let len = (ping.len() - 40) as u16;
    ping[4..6].copy_from_slice(&len.to_be_bytes());
    let mut node = router();
    node.rx(NOW, INSIDE, fragments(&Memory::heap(), &ping, 1500));
    assert_eq!(node.drops(), [(1, DropReason::Ipv6Header, 1)]);
    let problem = icmpv6::Icmpv6Message::ParamProblem { code: icmpv6::Problem::OPTION, pointer: 42 };
    assert_eq!(parse_icmp(&only(node.tx(INSIDE))).message, Message::V6(problem));
}

//= test RFC 8200 §4.7 no-next-header
#[test]
fn packet_with_no_next_header_ends_silently() {
    let to_us = Flow::new("fd00:1::1", "fd00:1::254");
    for payload in [&[][..], b"abcdefgh"] {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &to_us.raw(Protocol::NO_NEXT, payload));
        assert!(node.tx(INSIDE).is_empty());
        assert_eq!(node.drops(), [(1, DropReason::ProtocolUnknown, 1)]);
        assert_eq!(node.datapath.counters, counters([(Mib::Ip6InReceives, 1), (Mib::Ip6InDelivers, 1)]));
    }
}

#[test]
fn options_in_front_of_esp_are_treated_as_before_a_ping() {
    for tunnel in TUNNELS.into_iter().filter(|tunnel| tunnel.v6) {
        for kind in [HOP_BY_HOP, DEST_OPTS] {
            for (option, dropped) in [(&[0x1e, 4, 1, 2, 3, 4], false), (&[0x9e, 4, 1, 2, 3, 4], true)] {
                let mut world = tunnelled(tunnel, 1);
                let [near, far] = &mut world.nodes[..] else { panic!("two gateways") };
                near.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", "10.2.0.1").udp(10));
                let sealed = only(near.tx(OUTSIDE)).to_vec();
                let header = [&[sealed[ipv6::NEXT_HEADER_AT], 0], &option[..]].concat();
                let mut bytes = [&sealed[..40], &header, &sealed[40..]].concat();
                let payload_len = (bytes.len() - 40) as u16;
                bytes[4..6].copy_from_slice(&payload_len.to_be_bytes());
                bytes[ipv6::NEXT_HEADER_AT] = kind;
                far.rx_bytes(NOW, OUTSIDE, &bytes);
                let drops = if dropped { vec![(OUTSIDE.0, DropReason::Ipv6Header, 1)] } else { vec![] };
                assert_eq!(far.drops(), drops, "{tunnel:?}, header {kind}");
                assert_eq!(far.tx(INSIDE).len(), usize::from(!dropped), "{tunnel:?}, header {kind}");
                assert_eq!(far.tx(OUTSIDE).len(), usize::from(dropped), "{tunnel:?}, header {kind}");
            }
        }
    }
}

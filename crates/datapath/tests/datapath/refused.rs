//! Packets that are dropped by routes, or that may not be sent.

use std::net::Ipv6Addr;
use std::time::Duration;

use base::{DropReason, Mib};
use fib::RouteKind;
use sim::{Flow, Node, PortOptions};
use wire::{EtherType, FragOffset, MacAddr, Protocol, eth, icmp, icmpv6};

use crate::common::*;

#[test]
fn each_kind_of_route_has_its_answer() {
    use icmp::{IcmpMessage::Unreachable as V4, IcmpUnreachable as Code4};
    use icmpv6::{Icmpv6Message::Unreachable as V6, Icmpv6Unreachable as Code6};
    let cases = [
        (None, DropReason::NoRoute, Some(V4(Code4::NET)), Some(V6(Code6::NO_ROUTE))),
        (Some(RouteKind::Blackhole), DropReason::RouteBlackhole, None, None),
        (Some(RouteKind::Unreachable), DropReason::RouteUnreachable, Some(V4(Code4::HOST)), Some(V6(Code6::NO_ROUTE))),
        (
            Some(RouteKind::Prohibit),
            DropReason::RouteProhibit,
            Some(V4(Code4::PROHIBITED)),
            Some(V6(Code6::PROHIBITED)),
        ),
    ];
    for (kind, reason, v4, v6) in cases {
        let wants = [v4.map(Message::V4), v6.map(Message::V6)];
        let to = [("10.9.0.1", "10.9.0.0/16"), ("fd00:9::1", "fd00:9::/32")];
        for ((flow, (dst, prefix)), want) in flows().into_iter().zip(to).zip(wants) {
            let mut node = router();
            if let Some(kind) = kind {
                node.route_of(prefix, kind);
            }
            let flow = Flow::new(&flow.src.to_string(), dst);
            node.rx_bytes(NOW, INSIDE, &flow.udp(10));
            assert_eq!(node.drops(), [(1, reason, 1)]);
            let answer = node.tx(INSIDE).first().map(|pkt| parse_icmp(pkt).message);
            assert_eq!(answer, want, "{reason:?} {dst}");
            assert!(node.tx(OUTSIDE).is_empty());
        }
    }
}

#[test]
fn icmp_rate_limit_exempts_path_mtu_errors() {
    for flow in flows() {
        let mut node = router();
        for _ in 0..20 {
            node.rx_bytes(NOW, INSIDE, &Flow { ttl: 1, ..flow }.udp(10));
        }
        assert_eq!(node.tx(INSIDE).len(), 6);
        assert_eq!(node.drops(), [(0, DropReason::IcmpRateLimited, 14), (1, DropReason::TtlExceeded, 20)]);
        let v4 = flow.src.is_ipv4();
        let limited = if v4 { Mib::IcmpOutRateLimitHost } else { Mib::Icmp6OutRateLimitHost };
        assert_eq!(node.datapath.counters.get(limited), 14);
        for _ in 0..20 {
            node.rx_bytes(NOW, INSIDE, &flow.udp(1600));
        }
        assert_eq!(node.tx(INSIDE).len(), 20);
        node.rx_bytes(NOW + Duration::from_secs(1), INSIDE, &Flow { ttl: 1, ..flow }.udp(10));
        assert_eq!(node.tx(INSIDE).len(), 1, "one more each second");
    }
}

#[test]
fn errors_later_fragments_and_groups_get_no_icmp_error() {
    let [v4, v6] = flows();
    let ended = |flow: Flow| Flow { ttl: 1, ..flow };
    let mut error = [0; 16];
    icmp::IcmpHeader::new(icmp::IcmpMessage::TimeExceeded(icmp::IcmpExceeded::TTL)).write(&mut error).unwrap();
    let mut error_v6 = [0; 16];
    let too_big = icmpv6::Icmpv6Message::PacketTooBig { mtu: 1280 };
    icmpv6::Icmpv6Header::new(too_big).write(&mut error_v6).unwrap();
    let later = |header: &mut wire::ipv4::Ipv4Header| header.set_fragment(FragOffset::from_bytes(80).unwrap(), false);
    let cases = [
        ("an ICMP error", ended(v4).raw(Protocol::ICMP, &error), DropReason::TtlExceeded),
        ("an ICMPv6 error", ended(v6).raw(Protocol::ICMPV6, &error_v6), DropReason::TtlExceeded),
        ("a later fragment", edit_v4(&ended(v4).udp(100), later), DropReason::TtlExceeded),
        ("a group", Flow::new("10.1.0.1", "224.0.0.5").raw(Protocol(99), &[0; 8]), DropReason::ProtocolUnknown),
        ("an IPv6 group", Flow::new("fd00:1::1", "ff02::5").raw(Protocol(99), &[0; 8]), DropReason::ProtocolUnknown),
    ];
    for (name, bytes, reason) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty(), "{name}");
    }
    for to in ["10.1.0.255", "255.255.255.255", "224.0.0.5"] {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &Flow::new("10.1.0.1", to).udp(10));
        assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty() && node.drops().is_empty(), "{to}");
        assert_eq!(node.datapath.counters.get(Mib::UdpIgnoredMulti), 1, "{to}");
    }
}

#[test]
fn invalid_source_or_destination_is_dropped() {
    let cases = [
        ("224.0.0.1", "10.2.0.1", DropReason::IpSourceInvalid),
        ("255.255.255.255", "10.2.0.1", DropReason::IpSourceInvalid),
        ("127.0.0.1", "10.2.0.1", DropReason::IpSourceInvalid),
        ("0.0.0.0", "10.2.0.1", DropReason::IpSourceInvalid),
        ("10.1.0.1", "127.0.0.1", DropReason::IpDestinationInvalid),
        ("10.1.0.1", "0.0.0.0", DropReason::IpDestinationInvalid),
        ("ff02::1", "fd00:2::1", DropReason::IpSourceInvalid),
        ("::1", "fd00:2::1", DropReason::IpSourceInvalid),
        ("::", "fd00:2::1", DropReason::IpSourceInvalid),
        ("fd00:1::1", "::1", DropReason::IpDestinationInvalid),
        ("fd00:1::1", "::", DropReason::IpDestinationInvalid),
        ("fe80::1", "fd00:2::1", DropReason::IpSourceInvalid),
    ];
    for (src, dst, reason) in cases {
        let flow = Flow::new(src, dst);
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &flow.udp(10));
        let v4 = flow.src.is_ipv4();
        let want = match v4 {
            true => counters([(Mib::IpInReceives, 1), (Mib::IpInAddrErrors, 1)]),
            false => counters([(Mib::Ip6InReceives, 1), (Mib::Ip6InAddrErrors, 1)]),
        };
        assert_eq!((node.drops(), &node.datapath.counters), (vec![(1, reason, 1)], &want), "{src} to {dst}");
        assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty(), "{src} to {dst}");
    }
}

#[test]
fn a_link_local_destination_is_on_its_own_link_alone() {
    let mut node = router();
    node.route("fe80::/64", None, OUTSIDE);
    node.rx_bytes(NOW, INSIDE, &Flow::new("fd00:1::1", "fe80::9").udp(10));
    assert!(node.tx(OUTSIDE).is_empty());
    assert_eq!(node.drops().len(), 1);
}

#[test]
fn malformed_packets_are_counted_as_linux_does() {
    let [v4, v6] = flows();
    let (v4, v6) = (v4.udp(100), v6.udp(100));
    let with = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        bytes
    };
    let cases = [
        ("a wrong IPv4 checksum", with(&v4, 10, 0), DropReason::Ipv4Checksum, Mib::IpInHdrErrors),
        ("the same in IpExt", with(&v4, 10, 0), DropReason::Ipv4Checksum, Mib::IpExtInCsumErrors),
        ("a header of 16 bytes", with(&v4, 0, 0x44), DropReason::Ipv4Header, Mib::IpInHdrErrors),
        ("truncated", v4[..100].to_vec(), DropReason::IpTruncated, Mib::IpExtInTruncatedPkts),
        ("IPv6 truncated", v6[..100].to_vec(), DropReason::IpTruncated, Mib::Ip6InTruncatedPkts),
    ];
    for (name, bytes, reason, mib) in cases {
        let mut node = router();
        node.rx_bytes(NOW, INSIDE, &bytes);
        assert_eq!(node.drops(), [(1, reason, 1)], "{name}");
        assert_eq!(node.datapath.counters.get(mib), 1, "{name}: {:?}", node.datapath.counters);
        assert!(node.tx(INSIDE).is_empty() && node.tx(OUTSIDE).is_empty(), "{name}");
    }
}

fn frame(to: MacAddr, ethertype: EtherType, packet: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(to, mac(9), ethertype).as_bytes(), packet].concat()
}

#[test]
fn truncated_header_chain_of_unicast_is_answered() {
    let link_local = mac(1).link_local();
    // A fragment header with the next header *destination options*, and no bytes behind it.
    let chain = |dst: Ipv6Addr| {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 8, Protocol::FRAGMENT.0, 64];
        bytes.extend("fe80::99".parse::<Ipv6Addr>().unwrap().octets());
        bytes.extend(dst.octets());
        bytes.extend([Protocol::DEST_OPTS.0, 0, 0, 1, 0, 0, 0, 7]);
        bytes
    };
    let cases =
        [(mac(1), EtherType::IPV6, 1, 1), (MacAddr::BROADCAST, EtherType::IPV6, 1, 0), (mac(1), EtherType::IPV4, 0, 0)];
    for (to, ethertype, looked_at, answered) in cases {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        node.rx_bytes(NOW, INSIDE, &frame(to, ethertype, &chain(link_local)));
        assert_eq!(node.drops().len(), 1);
        assert_eq!(node.datapath.counters.get(Mib::Ip6ReasmReqds), looked_at, "{to} {ethertype:?}");
        // The error is queued until the sender's link-layer address is resolved.
        assert_eq!(node.tx(INSIDE).len(), answered, "{to} {ethertype:?}");
    }
}

#[test]
fn frame_not_for_this_station_is_not_forwarded() {
    let [v4, v6] = flows();
    let (v4, v6, ping) = (v4.udp(10), v6.udp(10), Flow::new("10.1.0.1", "10.1.0.254").ping(1, 8));
    let lost = Flow::new("10.1.0.1", "198.51.100.255").udp(10);
    let [not_for_us, no_route] = [DropReason::EthNotForUs, DropReason::NoRoute].map(Some);
    let cases = [
        ("for us", frame(mac(1), EtherType::IPV4, &v4), None),
        ("IPv6 for us", frame(mac(1), EtherType::IPV6, &v6), None),
        ("a broadcast frame", frame(MacAddr::BROADCAST, EtherType::IPV4, &v4), not_for_us),
        ("a broadcast frame, without a route", frame(MacAddr::BROADCAST, EtherType::IPV4, &lost), no_route),
        ("for a group", frame(MacAddr::multicast_v4([224, 0, 0, 1].into()), EtherType::IPV4, &v4), not_for_us),
        ("IPv6 for a group", frame(MacAddr([0x33, 0x33, 0, 0, 0, 1]), EtherType::IPV6, &v6), not_for_us),
        ("for another", frame(mac(7), EtherType::IPV4, &v4), not_for_us),
        ("IPv6 with the EtherType of IPv4", frame(mac(1), EtherType::IPV4, &v6), not_for_us),
        ("another protocol", frame(mac(1), EtherType(0x88cc), &v4), not_for_us),
        ("tagged", frame(mac(1), EtherType::VLAN, &v4), not_for_us),
        ("short", frame(mac(1), EtherType::IPV4, &[])[..13].to_vec(), Some(DropReason::EthTruncated)),
        ("our address, in a broadcast frame", frame(MacAddr::BROADCAST, EtherType::IPV4, &ping), None),
    ];
    for (name, bytes, want) in cases {
        let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
        node.rx_bytes(NOW, INSIDE, &bytes);
        let drops: Vec<_> = want.into_iter().map(|reason| (1, reason, 1)).collect();
        assert_eq!(node.drops(), drops, "{name}");
        let sent = node.tx(OUTSIDE).len() + node.tx(INSIDE).len();
        assert_eq!(sent > 0, want.is_none(), "{name}");
    }
}

#[test]
fn padding_behind_a_short_packet_does_not_go_on() {
    let [flow, _] = flows();
    let mut node = router_with(PortOptions::ethernet(1), PortOptions::BARE);
    let mut bytes = frame(mac(1), EtherType::IPV4, &flow.udp(1));
    bytes.resize(60, 0xaa);
    node.rx_bytes(NOW, INSIDE, &bytes);
    assert_eq!(only(node.tx(OUTSIDE)).to_vec(), Flow { ttl: 63, ..flow }.udp(1));
}

#[test]
fn packet_by_a_missing_link_is_dropped() {
    let [flow, _] = flows();
    let mut node = Node::new();
    node.rx_bytes(NOW, INSIDE, &flow.udp(1));
    assert_eq!(node.drops(), [(1, DropReason::LinkDown, 1)]);
}

#[test]
fn misplaced_partial_checksum_is_refused() {
    for flow in flows() {
        let l4 = flow.version().header_len() as u16;
        let cases = [
            (l4, 6, true),
            (l4, 16, false),    // TCP's offset, in UDP
            (l4, 2, false),     // the destination port
            (l4 - 4, 2, false), // the destination address
            (0, l4 + 6, false),
            (l4 + 2, 4, false),
            (l4, u16::MAX, false),
        ];
        for (start, offset, passes) in cases {
            let mut node = router();
            let mut pkt = packet::Packet::with_data(&node.mem, &flow.udp(100)).unwrap();
            pkt.meta.csum = packet::Csum::Partial { start, offset };
            node.rx(NOW, INSIDE, vec![pkt]);
            assert_eq!(node.tx(OUTSIDE).len(), usize::from(passes), "{start} and {offset}");
            let drops = if passes { vec![] } else { vec![(1, DropReason::VirtioHeader, 1)] };
            assert_eq!(node.drops(), drops, "{start} and {offset}");
        }
    }
}

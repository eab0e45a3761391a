//! A router between two bare links, and parsers of the packets that it sends.

use std::net::IpAddr;

use base::{Counters, Instant, Mib, PortId};
use packet::Packet;
use sim::{Flow, Node, PortOptions};
use wire::ip::Info;
use wire::ipv4::Ipv4;
use wire::{MacAddr, Protocol, Version, icmp, icmpv6, ipv6, nd, tcp};

pub(crate) const NOW: Instant = Instant::from_nanos(1_000_000_000);

/// The inner and the outer link of [`router`].
pub(crate) const INSIDE: PortId = PortId(1);
pub(crate) const OUTSIDE: PortId = PortId(2);

/// A router between 10.1.0.0/24 with fd00:1::/64, of MTU 9000, and 10.2.0.0/24 with fd00:2::/64, of MTU 1500.
pub(crate) fn router() -> Node {
    router_with(PortOptions::BARE.mtu(9000), PortOptions::BARE)
}

pub(crate) fn router_with(inside: PortOptions, outside: PortOptions) -> Node {
    let mut node = Node::new();
    node.port(INSIDE.0, inside, &["10.1.0.254/24", "fd00:1::254/64"]);
    node.port(OUTSIDE.0, outside, &["10.2.0.254/24", "fd00:2::254/64"]);
    node
}

/// Flows through that router, one for each family.
pub(crate) fn flows() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")]
}

/// The MAC address that ends in `last`.
pub(crate) const fn mac(last: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, last])
}

/// These counters and no others.
pub(crate) fn counters<const N: usize>(counts: [(Mib, u64); N]) -> Counters {
    counts.into_iter().fold(Counters::ZERO, |counters, (mib, n)| counters.with(mib, n))
}

/// The headers of a packet; IPv4's checksum is checked.
pub(crate) fn info(pkt: &Packet) -> Info {
    info_of(&pkt.to_vec())
}

pub(crate) fn info_of(bytes: &[u8]) -> Info {
    let info = Info::parse(bytes, bytes.len()).unwrap();
    assert_eq!(info.total_len, bytes.len());
    if info.version() == Version::V4 {
        assert!(Ipv4::parse(bytes).unwrap().check_ok(), "{bytes:02x?}");
    }
    info
}

/// A parsed ICMP or ICMPv6 message, and the packet that it quotes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ParsedIcmp {
    pub(crate) src: String,
    pub(crate) dst: String,
    pub(crate) message: Message,
    pub(crate) quote: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Message {
    V4(icmp::IcmpMessage),
    V6(icmpv6::Icmpv6Message),
}

/// Reads an ICMP or ICMPv6 message, whose checksum must be right.
pub(crate) fn parse_icmp(pkt: &Packet) -> ParsedIcmp {
    let bytes = pkt.to_vec();
    let info = info_of(&bytes);
    let body = info.payload(&bytes);
    let message = match info.protocol {
        Protocol::ICMP => {
            assert!(icmp::Icmp::parse(body).unwrap().check_ok());
            Message::V4(icmp::IcmpHeader::ref_from(body).unwrap().message().unwrap())
        }
        Protocol::ICMPV6 => {
            assert!(host::icmp::check_ok(pkt, &info));
            Message::V6(icmpv6::Icmpv6Header::ref_from(body).unwrap().message().unwrap())
        }
        other => panic!("{other} is no ICMP"),
    };
    ParsedIcmp { src: info.src.to_string(), dst: info.dst.to_string(), message, quote: body[8..].to_vec() }
}

/// The one packet of a list.
pub(crate) fn only(mut packets: Vec<Packet>) -> Packet {
    assert_eq!(packets.len(), 1, "{packets:#?}");
    packets.remove(0)
}

/// `bytes` with a changed IPv4 header and a new checksum.
pub(crate) fn edit_v4(bytes: &[u8], edit: impl FnOnce(&mut wire::ipv4::Ipv4Header)) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    edit(wire::ipv4::Ipv4Header::mut_from(&mut bytes).unwrap());
    wire::ipv4::fill_check(&mut bytes).unwrap();
    bytes
}

/// Solicitation of an IPv6 flow's destination by its source, at `mac`.
pub(crate) fn solicitation(ask: &Flow, mac: MacAddr) -> Vec<u8> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (ask.src, ask.dst) else { panic!("{ask:?}") };
    let mut message = nd::Neighbour::solicit(dst).as_bytes().to_vec();
    message.extend_from_slice(nd::LinkAddr::source(mac).as_bytes());
    icmpv6::fill_check(&mut message, src, dst).unwrap();
    let mut solicit = ask.raw(Protocol::ICMPV6, &message);
    ipv6::Ipv6Header::mut_from(&mut solicit).unwrap().set_hop_limit(255);
    solicit
}

/// Length of the TCP headers of [`Flow::tcp`], timestamps included.
pub(crate) const TCP_LEN: usize = 32;

/// A SYN with that MSS behind two padding options, or with the MSS at an odd offset, and a valid checksum.
pub(crate) fn syn(flow: &Flow, mss: u16, is_odd: bool) -> Vec<u8> {
    let mut options = if is_odd { vec![1] } else { vec![1, 1] };
    options.extend([2, 4]);
    options.extend(mss.to_be_bytes());
    options.resize(8, 0);
    let mut bytes = flow.tcp_with(1, &options);
    let at = flow.version().header_len();
    // The options were payload behind timestamps: a longer header, and SYN.
    bytes[at + 12] = 10 << 4;
    bytes[at + 13] = 2;
    bytes[at + tcp::CHECK_AT..at + tcp::CHECK_AT + 2].fill(0);
    let info = info_of(&bytes);
    let check = wire::checksum::finish(wire::checksum::add(
        match (info.src, info.dst) {
            (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) => {
                wire::checksum::pseudo_v4(src, dst, Protocol::TCP, bytes.len() - at)
            }
            (std::net::IpAddr::V6(src), std::net::IpAddr::V6(dst)) => {
                wire::checksum::pseudo_v6(src, dst, Protocol::TCP, bytes.len() - at)
            }
            _ => unreachable!("one header has both"),
        },
        wire::checksum::sum(&bytes[at..]),
    ));
    bytes[at + tcp::CHECK_AT..at + tcp::CHECK_AT + 2].copy_from_slice(&check.to_be_bytes());
    bytes
}

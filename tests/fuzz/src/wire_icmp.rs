//! An ICMP, ICMPv6 or neighbour discovery message, and the packet quoted in an error.

use std::net::Ipv6Addr;
use wire::{icmp, icmpv6, ipv4, ipv6, nd, tcp};

use crate::structured::structured;

/// Runs one input.
pub fn target(input: &[u8]) {
    let Some((src, dst, hop_limit, message)) = structured::<(u128, u128, u8, &[u8])>(input) else { return };
    let (src, dst) = (Ipv6Addr::from_bits(src), Ipv6Addr::from_bits(dst));
    if let Ok(icmp) = icmp::Icmp::parse(message) {
        if let Some(message) = icmp.header().message() {
            assert_eq!(icmp::IcmpHeader::new(message).message(), Some(message));
        }
        if icmp.header().is_error() {
            quoted(icmp.payload());
        }
        let mut repaired = message.to_vec();
        icmp::fill_check(&mut repaired).expect("just parsed");
        assert!(icmp::Icmp::parse(&repaired).expect("just parsed").check_ok());
    }
    if let Ok(icmp) = icmpv6::Icmpv6::parse(message) {
        if let Some(message) = icmp.header().message() {
            assert_eq!(icmpv6::Icmpv6Header::new(message).message(), Some(message));
        }
        if icmp.header().is_error() {
            quoted(icmp.payload());
        }
        let mut repaired = message.to_vec();
        icmpv6::fill_check(&mut repaired, src, dst).expect("just parsed");
        assert!(icmpv6::Icmpv6::parse(&repaired).expect("just parsed").check_ok(src, dst));
    }
    for hop_limit in [hop_limit, nd::HOP_LIMIT] {
        discovery(message, src, dst, hop_limit);
    }
}

/// An error quotes the start of a packet, so the packet's lengths may exceed the quote.
fn quoted(packet: &[u8]) {
    if let Ok(ip) = ipv4::Ipv4::parse_head(packet, usize::MAX) {
        assert!(ip.payload().len() <= ip.payload_len());
        let _ = tcp::Tcp::parse_head(ip.payload(), ip.payload_len()).map(|tcp| tcp.options().count());
    }
    if let Ok(ip) = ipv6::Ipv6::parse_head(packet, usize::MAX)
        && let Ok(chain) = ip.chain()
    {
        assert!(chain.offset <= packet.len() && chain.offset <= ip.total_len());
    }
}

fn discovery(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8) {
    let Ok(Some(nd)) = nd::Nd::parse(message, src, dst, hop_limit) else { return };
    assert_eq!(hop_limit, nd::HOP_LIMIT);
    let options = match nd {
        nd::Nd::RouterSolicit { options } => options,
        nd::Nd::RouterAdvert { options, .. } => {
            assert!(src.is_unicast_link_local());
            options
        }
        nd::Nd::NeighbourSolicit { target, options } => {
            assert!(!target.is_multicast() && (!src.is_unspecified() || options.source_link_addr().is_none()));
            options
        }
        nd::Nd::NeighbourAdvert { target, options, .. } => {
            assert!(!target.is_multicast());
            options
        }
    };
    assert!(options.count() <= message.len() / 8);
}

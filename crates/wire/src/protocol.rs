//! Upper-layer protocol numbers.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol number: IPv4's protocol and IPv6's next header, from one registry (IANA protocol-numbers).
#[derive(
    Clone, Copy, Eq, FromBytes, Hash, Immutable, IntoBytes, KnownLayout, Ord, PartialEq, PartialOrd, Unaligned,
)]
#[repr(transparent)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options (RFC 8200 §4.3). Unused in IPv4.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: Self = Self(1);
    /// IPv4 packet as payload (RFC 2003).
    pub const IPIP: Self = Self(4);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// DCCP (RFC 4340).
    pub const DCCP: Self = Self(33);
    /// IPv6 packet as payload (RFC 2473).
    pub const IPV6: Self = Self(41);
    /// IPv6 routing header (RFC 8200 §4.4).
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header (RFC 8200 §4.5).
    pub const FRAGMENT: Self = Self(44);
    /// GRE (RFC 2784).
    pub const GRE: Self = Self(47);
    /// ESP (RFC 4303).
    pub const ESP: Self = Self(50);
    /// AH (RFC 4302).
    pub const AH: Self = Self(51);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);
    /// IPv6 no next header (RFC 8200 §4.7); in ESP, a dummy packet (RFC 4303 §2.6).
    pub const NO_NEXT: Self = Self(59);
    /// IPv6 destination options (RFC 8200 §4.6).
    pub const DEST_OPTS: Self = Self(60);
    /// SCTP (RFC 9260).
    pub const SCTP: Self = Self(132);
    /// IPv6 mobility header (RFC 6275 §6.1).
    pub const MH: Self = Self(135);
    /// UDP-Lite (RFC 3828).
    pub const UDPLITE: Self = Self(136);

    /// Name in lower case, as in `/etc/protocols`; `None` for other protocols.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::HOP_BY_HOP => "hopopt",
            Self::ICMP => "icmp",
            Self::IPIP => "ipencap",
            Self::TCP => "tcp",
            Self::UDP => "udp",
            Self::DCCP => "dccp",
            Self::IPV6 => "ipv6",
            Self::ROUTING => "ipv6-route",
            Self::FRAGMENT => "ipv6-frag",
            Self::GRE => "gre",
            Self::ESP => "esp",
            Self::AH => "ah",
            Self::ICMPV6 => "ipv6-icmp",
            Self::NO_NEXT => "ipv6-nonxt",
            Self::DEST_OPTS => "ipv6-opts",
            Self::SCTP => "sctp",
            Self::MH => "mobility-header",
            Self::UDPLITE => "udplite",
            _ => return None,
        })
    }
}

impl fmt::Display for Protocol {
    /// The name, or the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => fmt::Display::fmt(&self.0, f),
        }
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_without_a_name_shows_its_number() {
        assert_eq!(format!("{} {} {:?}", Protocol::ESP, Protocol(253), Protocol::ICMPV6), "esp 253 ipv6-icmp");
    }
}

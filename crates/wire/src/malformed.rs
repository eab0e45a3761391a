//! Violations of header formats.

use std::fmt;

use base::DropReason;

macro_rules! malformed {
    ($($(#[doc = $doc:literal])+ $name:ident => $reason:ident, $text:literal;)*) => {
        /// Wire rule that a header violates. Maps to the [`DropReason`] of the packet.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Malformed { $($(#[doc = $doc])+ $name,)* }

        impl Malformed {
            /// Every variant.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
        }

        impl From<Malformed> for DropReason {
            fn from(why: Malformed) -> Self {
                match why { $(Malformed::$name => Self::$reason,)* }
            }
        }

        impl fmt::Display for Malformed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$name => $text,)* })
            }
        }
    };
}

malformed! {
    /// Fewer than the 14 bytes of an Ethernet header.
    EthShort => EthTruncated, "Ethernet header truncated";
    /// Fewer than the 4 bytes of an 802.1Q tag.
    VlanShort => EthTruncated, "VLAN tag truncated";
    /// Fewer than the 28 bytes of ARP for IPv4 over Ethernet.
    ArpShort => ArpMalformed, "ARP packet truncated";
    /// Not Ethernet and IPv4, or wrong address lengths (RFC 826).
    ArpFormat => ArpMalformed, "ARP for other than IPv4 over Ethernet";
    /// No bytes, or a version that is neither 4 nor 6.
    IpVersion => Ipv4Header, "IP version neither 4 nor 6";
    /// The length in the IP header exceeds the packet.
    IpTruncated => IpTruncated, "packet shorter than its IP header says";
    /// The headers extend beyond the linear head, and have to be pulled into it first.
    OutsideHead => IpTruncated, "headers continue outside the linear head";
    /// Fewer bytes than an IPv4 header.
    Ipv4Short => Ipv4Header, "IPv4 header truncated";
    /// The version of an IPv4 header is not 4.
    Ipv4Version => Ipv4Header, "version of IPv4 header is not 4";
    /// IHL below five words (RFC 791 §3.1).
    Ipv4HeaderLen => Ipv4Header, "IPv4 header length below 20";
    /// The total length is less than the header length.
    Ipv4TotalLen => Ipv4Header, "IPv4 total length below header length";
    /// The header checksum does not match (RFC 1812 §5.2.2).
    Ipv4Checksum => Ipv4Checksum, "IPv4 header checksum wrong";
    /// An option with a length below 2, or past the header.
    Ipv4Option => Ipv4Options, "IPv4 option with impossible length";
    /// Fewer than the 40 bytes of an IPv6 header.
    Ipv6Short => Ipv6Header, "IPv6 header truncated";
    /// The version of an IPv6 header is not 6.
    Ipv6Version => Ipv6Header, "version of IPv6 header is not 6";
    /// An extension header runs past the packet.
    Ipv6Extension => Ipv6Header, "IPv6 extension header runs past the packet";
    /// Too many extension headers.
    Ipv6ExtensionCount => Ipv6Header, "too many IPv6 extension headers";
    /// An option that runs past its extension header (RFC 8200 §4.2).
    Ipv6Option => Ipv6Header, "IPv6 option runs past its header";
    /// Fewer than the 8 bytes of an IPv6 fragment header.
    FragShort => Ipv6Header, "fragment header truncated";
    /// Fewer than the 8 bytes of a UDP header.
    UdpShort => TransportHeader, "UDP header truncated";
    /// A UDP length below 8, or above the IP payload's.
    UdpLength => TransportHeader, "UDP length wrong";
    /// Fewer bytes than a TCP header.
    TcpShort => TransportHeader, "TCP header truncated";
    /// A data offset below five words (RFC 9293 §3.1).
    TcpDataOffset => TransportHeader, "TCP data offset below 20";
    /// An option with a length below 2, wrong for its kind, or past the header.
    TcpOption => TransportHeader, "TCP option with impossible length";
    /// Fewer bytes than the tunnel's header.
    TunnelShort => GsoEncapsulation, "tunnel header truncated";
    /// Not IP in IP, GRE, VXLAN or Geneve with an inner IP packet.
    TunnelUnknown => GsoEncapsulation, "no tunnel header that can be followed";
    /// Fewer than the 8 bytes of an ICMP header.
    IcmpShort => IcmpIgnored, "ICMP header truncated";
    /// Fewer than the 8 bytes of an ICMPv6 header.
    Icmpv6Short => IcmpIgnored, "ICMPv6 header truncated";
    /// A neighbour discovery message shorter than its type requires.
    NdShort => NeighbourMalformed, "neighbour discovery message truncated";
    /// A neighbour discovery option of length zero, or past the message (RFC 4861 §4.6).
    NdOption => NeighbourMalformed, "neighbour discovery option with impossible length";
    /// A neighbour discovery message that its receiver has to ignore (RFC 4861 §6.1, §7.1).
    NdInvalid => NeighbourMalformed, "neighbour discovery message with forbidden contents";
    /// Shorter than SPI and sequence number, or than the ESP trailer.
    EspShort => EspTruncated, "ESP truncated";
    /// More padding than payload (RFC 4303 §2.4).
    EspPadding => EspFormat, "ESP pad length beyond the payload";
}

impl std::error::Error for Malformed {}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_fault_says_what_it_is() {
        let texts: HashSet<_> = Malformed::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), Malformed::ALL.len());
    }

    #[test]
    fn a_fault_is_counted_under_the_layer_that_it_is_in() {
        let cases = [
            (Malformed::EthShort, DropReason::EthTruncated),
            (Malformed::ArpFormat, DropReason::ArpMalformed),
            (Malformed::Ipv4Checksum, DropReason::Ipv4Checksum),
            (Malformed::Ipv4Option, DropReason::Ipv4Options),
            (Malformed::Ipv6Extension, DropReason::Ipv6Header),
            (Malformed::IpTruncated, DropReason::IpTruncated),
            (Malformed::UdpLength, DropReason::TransportHeader),
            (Malformed::NdOption, DropReason::NeighbourMalformed),
            (Malformed::EspPadding, DropReason::EspFormat),
        ];
        for (why, want) in cases {
            assert_eq!(DropReason::from(why), want, "{why}");
        }
    }
}

//! Summary of an IP packet for the data path, from one parse.

use std::fmt;
use std::net::IpAddr;

use crate::ipv4::{self, Ipv4};
use crate::ipv6::{self, Ipv6};
use crate::{Ecn, FragInfo, Malformed, Protocol};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Version {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Version {
    /// The version of the packet in `head`.
    ///
    /// # Errors
    /// [`Malformed::IpVersion`] for other versions and for an empty head.
    #[inline]
    pub fn of(head: &[u8]) -> Result<Self, Malformed> {
        match head.first().map(|byte| byte >> 4) {
            Some(4) => Ok(Self::V4),
            Some(6) => Ok(Self::V6),
            _ => Err(Malformed::IpVersion),
        }
    }

    /// The version of `addr`.
    pub const fn of_addr(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Length of this version's header without options or extension headers.
    pub const fn header_len(self) -> usize {
        match self {
            Self::V4 => ipv4::Ipv4Header::LEN,
            Self::V6 => ipv6::Ipv6Header::LEN,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A summary of one IP packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Info {
    /// Source.
    pub src: IpAddr,
    /// Destination.
    pub dst: IpAddr,
    /// Protocol behind `header_len` bytes of headers. In a fragment after the first, the protocol of the first
    /// fragment.
    pub protocol: Protocol,
    /// TTL or hop limit.
    pub ttl: u8,
    /// TOS or traffic class.
    pub tos: u8,
    /// The DF flag. Always set for IPv6, as routers never fragment IPv6 packets.
    pub dont_fragment: bool,
    /// Whether the header consists of its 20 or 40 fixed bytes, without options or extension headers.
    pub plain: bool,
    /// Length of the IP headers, options and extension headers included: the offset of the upper layer.
    pub header_len: usize,
    /// Offset of the byte that names `protocol`.
    pub next_header_at: usize,
    /// Length of the packet according to its header; at most the available bytes.
    pub total_len: usize,
    /// Position in its datagram, if the packet is a fragment. In IPv6 also for an atomic fragment.
    pub fragment: Option<FragInfo>,
    /// The IPv4 identification, 0 in IPv6.
    pub id: u16,
    /// The IPv6 flow label, 0 in IPv4.
    pub flow_label: u32,
}

/// Protocol directly behind the IP header of a packet without IPv4 options: the upper layer, or the first extension
/// header of IPv6.
#[inline]
pub fn plain_protocol(packet: &[u8]) -> Option<Protocol> {
    let at = match packet.first()? {
        0x45 => ipv4::PROTOCOL_AT,
        0x60..=0x6f => ipv6::NEXT_HEADER_AT,
        _ => return None,
    };
    packet.get(at).copied().map(Protocol)
}

/// Tells whether a packet begins with an IP header without options or extension headers, followed by TCP.
#[inline]
pub fn is_plain_tcp(packet: &[u8]) -> bool {
    plain_protocol(packet) == Some(Protocol::TCP)
}

impl Info {
    /// Parses a packet of `packet_len` bytes, whose headers are in `head`. Checks version, lengths, the IPv4 header
    /// checksum (RFC 1812 §5.2.2) and the chain of IPv6 extension headers.
    ///
    /// # Errors
    /// The first broken rule; [`Malformed::OutsideHead`] if some headers are not in `head`.
    #[inline]
    pub fn parse(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        match Version::of(head)? {
            Version::V4 => Self::parse_v4(head, packet_len),
            Version::V6 => Self::parse_v6(head, packet_len),
        }
    }

    #[inline]
    fn parse_v4(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        let packet = Ipv4::parse_head(head, packet_len).map_err(|why| outside(why, head, packet_len))?;
        if !packet.check_ok() {
            return Err(Malformed::Ipv4Checksum);
        }
        let header = packet.header();
        Ok(Self {
            src: IpAddr::V4(header.src()),
            dst: IpAddr::V4(header.dst()),
            protocol: header.protocol(),
            ttl: header.ttl(),
            tos: header.tos(),
            dont_fragment: header.dont_fragment(),
            plain: packet.header_len() == ipv4::Ipv4Header::LEN,
            header_len: packet.header_len(),
            next_header_at: ipv4::PROTOCOL_AT,
            total_len: packet.total_len(),
            fragment: header.fragment(),
            id: header.id(),
            flow_label: 0,
        })
    }

    #[inline]
    fn parse_v6(head: &[u8], packet_len: usize) -> Result<Self, Malformed> {
        let packet = Ipv6::parse_head(head, packet_len).map_err(|why| outside(why, head, packet_len))?;
        let chain = packet.chain()?;
        let header = packet.header();
        Ok(Self {
            src: IpAddr::V6(header.src()),
            dst: IpAddr::V6(header.dst()),
            protocol: chain.protocol,
            ttl: header.hop_limit(),
            tos: header.traffic_class(),
            dont_fragment: true,
            plain: chain.offset == ipv6::Ipv6Header::LEN,
            header_len: chain.offset,
            next_header_at: chain.next_header_at,
            total_len: packet.total_len(),
            fragment: chain.fragment.map(|fragment| fragment.info),
            id: 0,
            flow_label: header.flow_label(),
        })
    }

    /// IPv4 or IPv6.
    #[inline]
    pub const fn version(&self) -> Version {
        Version::of_addr(self.src)
    }

    /// DSCP, 6 bits (RFC 2474).
    pub const fn dscp(&self) -> u8 {
        self.tos >> 2
    }

    /// ECN.
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.tos)
    }

    /// Bytes behind the IP headers.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.total_len.saturating_sub(self.header_len)
    }

    /// Tells whether the packet has the upper-layer header; false for a fragment after the first.
    #[inline]
    pub const fn has_transport(&self) -> bool {
        match self.fragment {
            Some(fragment) => fragment.is_first(),
            None => true,
        }
    }

    /// Bytes of the upper layer in `head`, the packet's own head.
    #[inline]
    pub fn payload<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        head.get(self.header_len..self.total_len.min(head.len())).unwrap_or_default()
    }
}

/// Error for a truncated header: `OutsideHead` if the packet still has the missing bytes, which can be pulled into the
/// head.
#[cold]
fn outside(why: Malformed, head: &[u8], packet_len: usize) -> Malformed {
    match why {
        Malformed::Ipv4Short | Malformed::Ipv6Short if head.len() < packet_len => Malformed::OutsideHead,
        why => why,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;
    use crate::{FragOffset, ext, frag};

    const V4: (Ipv4Addr, Ipv4Addr) = (Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2));
    const V6: (Ipv6Addr, Ipv6Addr) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);

    #[test]
    fn an_ipv4_packet_is_summed_up() {
        let mut header = ipv4::Ipv4Header::new(V4.0, V4.1, Protocol::TCP, 65_535);
        header.set_tos(0xb9);
        header.set_id(0x1234);
        header.set_dont_fragment(true);
        header.fill_check();
        let want = Info {
            src: IpAddr::V4(V4.0),
            dst: IpAddr::V4(V4.1),
            protocol: Protocol::TCP,
            ttl: 64,
            tos: 0xb9,
            dont_fragment: true,
            plain: true,
            header_len: 20,
            next_header_at: 9,
            total_len: 65_535,
            fragment: None,
            id: 0x1234,
            flow_label: 0,
        };
        assert_eq!(Info::parse(header.as_bytes(), 65_535), Ok(want));
        assert_eq!((want.version(), want.dscp(), want.ecn(), want.payload_len()), (Version::V4, 46, Ecn::Ect1, 65_515));
    }

    #[test]
    fn an_ipv6_packet_is_summed_up() {
        let mut header = ipv6::Ipv6Header::new(V6.0, V6.1, Protocol::DEST_OPTS, 65_535);
        header.set_traffic_class(3);
        header.set_flow_label(0xabcde);
        header.set_hop_limit(1);
        let info = FragInfo { offset: FragOffset::from_bytes(1232).unwrap(), more: false, id: 0xdead_beef };
        let dest_opts = [44, 0, 1, 4, 0, 0, 0, 0];
        let head = [header.as_bytes(), &dest_opts, frag::FragHeader::new(Protocol::UDP, info).as_bytes()].concat();
        let want = Info {
            src: IpAddr::V6(V6.0),
            dst: IpAddr::V6(V6.1),
            protocol: Protocol::UDP,
            ttl: 1,
            tos: 3,
            dont_fragment: true,
            plain: false,
            header_len: 56,
            next_header_at: 48,
            total_len: 65_575,
            fragment: Some(info),
            id: 0,
            flow_label: 0xabcde,
        };
        assert_eq!(Info::parse(&head, 65_575), Ok(want));
        assert_eq!((want.version(), want.ecn(), want.has_transport()), (Version::V6, Ecn::Ce, false));
    }

    #[test]
    fn header_outside_the_head_differs_from_a_missing_one() {
        let mut v4 = ipv4::Ipv4Header::new(V4.0, V4.1, Protocol::TCP, 24);
        v4.set_header_len(24);
        let mut v4 = [v4.as_bytes(), &[1, 1, 1, 0]].concat();
        ipv4::fill_check(&mut v4).unwrap();
        let ext = [ext::ExtHeader::new(Protocol::NO_NEXT, 8).unwrap().as_bytes(), &[0; 6]].concat();
        let v6 = [ipv6::Ipv6Header::new(V6.0, V6.1, Protocol::DEST_OPTS, 8).as_bytes(), &ext].concat();
        let cases = [
            (&v4, 24, 24, Ok(24)),
            (&v4, 23, 24, Err(Malformed::OutsideHead)),
            (&v4, 19, 24, Err(Malformed::OutsideHead)),
            (&v4, 19, 19, Err(Malformed::Ipv4Short)),
            (&v4, 0, 24, Err(Malformed::IpVersion)),
            (&v6, 48, 48, Ok(48)),
            (&v6, 47, 48, Err(Malformed::OutsideHead)),
            (&v6, 39, 48, Err(Malformed::OutsideHead)),
            (&v6, 39, 39, Err(Malformed::Ipv6Short)),
            (&v6, 47, 47, Err(Malformed::IpTruncated)),
        ];
        for (bytes, head_len, packet_len, want) in cases {
            let got = Info::parse(&bytes[..head_len], packet_len).map(|info| info.header_len);
            assert_eq!(got, want, "{head_len} of {packet_len} bytes there");
        }
    }

    #[test]
    fn a_wrong_header_checksum_is_refused() {
        let mut header = ipv4::Ipv4Header::new(V4.0, V4.1, Protocol::TCP, 20);
        header.fill_check();
        assert!(Info::parse(header.as_bytes(), 20).is_ok());
        header.set_ttl(63);
        assert_eq!(Info::parse(header.as_bytes(), 20), Err(Malformed::Ipv4Checksum));
    }

    #[test]
    fn only_versions_4_and_6_are_ip() {
        for version in 0..16u8 {
            let want = match version {
                4 => Ok(Version::V4),
                6 => Ok(Version::V6),
                _ => Err(Malformed::IpVersion),
            };
            assert_eq!(Version::of(&[version << 4]), want, "{version}");
        }
    }

    #[test]
    fn ecn_keeps_out_of_dscp() {
        for tos in 0..=u8::MAX {
            for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let got = ecn.in_tos(tos);
                assert_eq!((got >> 2, Ecn::from_tos(got)), (tos >> 2, ecn));
            }
        }
    }
}

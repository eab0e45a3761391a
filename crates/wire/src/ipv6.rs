//! The IPv6 header (RFC 8200 §3). Extension headers are in [`crate::ext`].

use std::net::Ipv6Addr;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Ecn, Malformed, Protocol};

pub use crate::ext::{Chain, MAX_EXTENSIONS};

/// Offset of the next-header field.
pub const NEXT_HEADER_AT: usize = 6;

/// Minimum MTU of an IPv6 link (RFC 8200 §5).
pub const MIN_MTU: usize = 1280;

/// The fixed 40 bytes of an IPv6 header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct Ipv6Header {
    version_class_flow: U32,
    payload_len: U16,
    next_header: Protocol,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

header!(Ipv6Header, 40, Malformed::Ipv6Short);

impl Ipv6Header {
    /// A header with hop limit 64, traffic class and flow label zero. `payload_len` counts all bytes behind the header.
    pub const fn new(src: Ipv6Addr, dst: Ipv6Addr, next_header: Protocol, payload_len: u16) -> Self {
        Self {
            version_class_flow: U32::new(6 << 28),
            payload_len: U16::new(payload_len),
            next_header,
            hop_limit: 64,
            src: src.octets(),
            dst: dst.octets(),
        }
    }

    /// The version field, which is 6 after a `parse`.
    #[inline]
    pub const fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// DSCP and ECN in one byte.
    #[inline]
    pub const fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// DSCP, 6 bits (RFC 2474).
    pub const fn dscp(&self) -> u8 {
        self.traffic_class() >> 2
    }

    /// ECN, 2 bits (RFC 3168).
    pub const fn ecn(&self) -> Ecn {
        Ecn::from_tos(self.traffic_class())
    }

    /// Changes DSCP and ECN.
    pub const fn set_traffic_class(&mut self, class: u8) {
        self.version_class_flow = U32::new(self.version_class_flow.get() & !(0xff << 20) | (class as u32) << 20);
    }

    /// The flow label, 20 bits (RFC 6437).
    #[inline]
    pub const fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & 0xf_ffff
    }

    /// Changes the flow label; only the lower 20 bits count.
    pub const fn set_flow_label(&mut self, label: u32) {
        self.version_class_flow = U32::new(self.version_class_flow.get() & !0xf_ffff | label & 0xf_ffff);
    }

    /// Length of the bytes behind this header, extension headers included, from the payload length field.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.payload_len.get() as usize
    }

    /// Changes the payload length.
    pub const fn set_payload_len(&mut self, len: u16) {
        self.payload_len = U16::new(len);
    }

    /// Protocol of the next header.
    #[inline]
    pub const fn next_header(&self) -> Protocol {
        self.next_header
    }

    /// Hop limit.
    #[inline]
    pub const fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// Changes the hop limit.
    pub const fn set_hop_limit(&mut self, hop_limit: u8) {
        self.hop_limit = hop_limit;
    }

    /// Decrements the hop limit. Returns the new value; zero stays zero.
    #[inline]
    pub const fn decrement_hop_limit(&mut self) -> u8 {
        self.hop_limit = self.hop_limit.saturating_sub(1);
        self.hop_limit
    }

    /// Source.
    #[inline]
    pub const fn src(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.src)
    }

    /// Destination.
    #[inline]
    pub const fn dst(&self) -> Ipv6Addr {
        Ipv6Addr::from_octets(self.dst)
    }

    /// Changes the source, without checksums.
    pub const fn set_src(&mut self, src: Ipv6Addr) {
        self.src = src.octets();
    }

    /// Changes the destination, without checksums.
    pub const fn set_dst(&mut self, dst: Ipv6Addr) {
        self.dst = dst.octets();
    }
}

/// An IPv6 packet with valid version and length. Extension headers are walked on request.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a> {
    header: &'a Ipv6Header,
    /// First bytes of the packet.
    pub(crate) head: &'a [u8],
}

impl<'a> Ipv6<'a> {
    /// Parses a packet that is completely in `packet`; bytes beyond its payload length are not part of it.
    ///
    /// # Errors
    /// A wrong version or length.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_head(packet, packet.len())
    }

    /// Parses a packet of `packet_len` bytes, whose first bytes are in `head`. For a quote in an ICMPv6 error, which is
    /// truncated, `packet_len` is `usize::MAX`.
    ///
    /// # Errors
    /// A wrong version or length.
    #[inline]
    pub fn parse_head(head: &'a [u8], packet_len: usize) -> Result<Self, Malformed> {
        let header = Ipv6Header::ref_from(head)?;
        if header.version() != 6 {
            return Err(Malformed::Ipv6Version);
        }
        let total_len = Ipv6Header::LEN + header.payload_len();
        if total_len > packet_len {
            return Err(Malformed::IpTruncated);
        }
        Ok(Self { header, head: &head[..head.len().min(total_len)] })
    }

    /// The header.
    #[inline]
    pub const fn header(&self) -> &'a Ipv6Header {
        self.header
    }

    /// Length of header and payload, 40 to 65 575.
    #[inline]
    pub const fn total_len(&self) -> usize {
        Ipv6Header::LEN + self.header.payload_len()
    }

    /// Bytes of the payload in the head, from the first extension header on.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        &self.head[Ipv6Header::LEN..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    const THERE: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);

    #[test]
    fn class_and_label_share_a_word_with_the_version() {
        let mut header = Ipv6Header::new(HERE, THERE, Protocol::UDP, 8);
        header.set_flow_label(0xfff_abcd);
        header.set_traffic_class(0xb9);
        assert_eq!(header.as_bytes()[..8], [0x6b, 0x9f, 0xab, 0xcd, 0, 8, 17, 64]);
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0xb9, 0xf_abcd));
        assert_eq!((header.dscp(), header.ecn()), (46, Ecn::Ect1));
        header.set_traffic_class(0);
        assert_eq!((header.version(), header.traffic_class(), header.flow_label()), (6, 0, 0xf_abcd));
    }

    #[test]
    fn a_packet_is_as_long_as_it_says() {
        let mut bytes = Ipv6Header::new(HERE, THERE, Protocol::NO_NEXT, 3).as_bytes().to_vec();
        bytes.extend([1, 2, 3, 4]);
        assert_eq!(Ipv6::parse(&bytes).unwrap().payload(), [1, 2, 3]);
        assert_eq!(Ipv6::parse(&bytes[..43]).unwrap().payload(), [1, 2, 3]);
        assert_eq!(Ipv6::parse(&bytes[..42]).err(), Some(Malformed::IpTruncated));
        assert_eq!(Ipv6::parse(&bytes[..39]).err(), Some(Malformed::Ipv6Short));
        assert_eq!(Ipv6::parse_head(&bytes[..41], 43).unwrap().payload(), [1]);
        bytes[0] = 0x50;
        assert_eq!(Ipv6::parse(&bytes).err(), Some(Malformed::Ipv6Version));
    }

    #[test]
    fn the_longest_super_packet_is_65_575_bytes() {
        let header = Ipv6Header::new(HERE, THERE, Protocol::TCP, u16::MAX);
        assert_eq!(Ipv6::parse_head(header.as_bytes(), 65_575).unwrap().total_len(), 65_575);
        assert_eq!(Ipv6::parse_head(header.as_bytes(), 65_574).err(), Some(Malformed::IpTruncated));
    }

    #[test]
    fn a_hop_limit_stops_at_zero() {
        let mut header = Ipv6Header::new(HERE, THERE, Protocol::UDP, 8);
        header.set_hop_limit(1);
        assert_eq!((header.decrement_hop_limit(), header.decrement_hop_limit()), (0, 0));
    }
}

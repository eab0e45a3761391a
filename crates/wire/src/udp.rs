//! UDP (RFC 768).

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

/// Offset of the checksum: `csum_offset` of a partial checksum.
pub const CHECK_AT: usize = 6;

/// Offset of the length in a UDP header.
pub const LEN_AT: usize = 4;

/// UDP header: ports, length, checksum.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct UdpHeader {
    sport: U16,
    dport: U16,
    len: U16,
    check: U16,
}

header!(UdpHeader, 8, Malformed::UdpShort);

impl UdpHeader {
    /// A header without a checksum, for a datagram of `len` bytes including the header.
    pub const fn new(sport: u16, dport: u16, len: u16) -> Self {
        Self { sport: U16::new(sport), dport: U16::new(dport), len: U16::new(len), check: U16::ZERO }
    }

    /// Source port.
    #[inline]
    pub const fn sport(&self) -> u16 {
        self.sport.get()
    }

    /// Destination port.
    #[inline]
    pub const fn dport(&self) -> u16 {
        self.dport.get()
    }

    /// Length of header and payload, from the header. Named as in RFC 768, not the length of a slice.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "a field of the wire")]
    pub const fn len(&self) -> usize {
        self.len.get() as usize
    }

    /// Changes the length.
    pub const fn set_len(&mut self, len: u16) {
        self.len = U16::new(len);
    }

    /// The checksum as stored; 0 is none, which IPv6 permits only for tunnels (RFC 6935).
    #[inline]
    pub const fn check(&self) -> u16 {
        self.check.get()
    }

    /// Changes the checksum.
    pub const fn set_check(&mut self, check: u16) {
        self.check = U16::new(check);
    }
}

/// A datagram with a valid length.
#[derive(Clone, Copy, Debug)]
pub struct Udp<'a> {
    header: &'a UdpHeader,
    payload: &'a [u8],
}

impl<'a> Udp<'a> {
    /// Parses a datagram that is completely in `bytes`; bytes beyond its length are not part of it.
    ///
    /// # Errors
    /// [`Malformed::UdpShort`], [`Malformed::UdpLength`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_head(bytes, bytes.len())
    }

    /// Parses a datagram, whose first bytes are in `head`, in an IP payload of `ip_payload_len` bytes.
    ///
    /// # Errors
    /// As [`Udp::parse`]; [`Malformed::OutsideHead`] if the datagram's header is complete in the packet but not in
    /// `head`.
    #[inline]
    pub fn parse_head(head: &'a [u8], ip_payload_len: usize) -> Result<Self, Malformed> {
        let short = if head.len() < ip_payload_len { Malformed::OutsideHead } else { Malformed::UdpShort };
        let (header, rest) = UdpHeader::split_from(head).map_err(|_| short)?;
        if header.len() < UdpHeader::LEN || header.len() > ip_payload_len {
            return Err(Malformed::UdpLength);
        }
        let payload = &rest[..rest.len().min(header.len() - UdpHeader::LEN)];
        Ok(Self { header, payload })
    }

    /// The header.
    #[inline]
    pub const fn header(&self) -> &'a UdpHeader {
        self.header
    }

    /// Bytes of the payload in the head.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Length of the payload, inside or outside the head.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.header.len() - UdpHeader::LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_covers_the_header_and_stays_within_ip() {
        let cases = [
            (7, 9, Err(Malformed::UdpLength)),
            (8, 9, Ok(0)),
            (9, 9, Ok(1)),
            (10, 9, Err(Malformed::UdpLength)),
            (0, 9, Err(Malformed::UdpLength)),
            (u16::MAX, 65_535, Ok(65_527)),
        ];
        for (len, ip_payload_len, want) in cases {
            let mut bytes = UdpHeader::new(53, 1024, len).as_bytes().to_vec();
            bytes.push(0xaa);
            let got = Udp::parse_head(&bytes, ip_payload_len).map(|udp| udp.payload_len());
            assert_eq!(got, want, "length {len} in {ip_payload_len}");
        }
        assert_eq!(Udp::parse(&[0; 7]).err(), Some(Malformed::UdpShort));
        assert_eq!(Udp::parse_head(&[0; 7], 8).err(), Some(Malformed::OutsideHead));
    }

    #[test]
    fn a_datagram_ends_where_it_says() {
        let header = UdpHeader::new(0x0102, 0x0304, 10);
        let bytes = [header.as_bytes(), &[1, 2, 3]].concat();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 0, 10, 0, 0]);
        assert_eq!(Udp::parse(&bytes).unwrap().payload(), [1, 2]);
    }
}

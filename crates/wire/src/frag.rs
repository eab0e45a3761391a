//! Fragment position and the IPv6 fragment header (RFC 791 §3.1, RFC 8200 §4.5).

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Protocol};

/// A fragment offset, in 8-octet blocks as on the wire (RFC 791 §3.1, RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct FragOffset(u16);

impl FragOffset {
    /// The offset of the first fragment.
    pub const ZERO: Self = Self(0);
    /// The largest offset: 13 bits.
    pub const MAX: Self = Self(0x1fff);

    /// The offset of `bytes` bytes; `None` if `bytes` is not a multiple of 8, or above 65 528.
    pub const fn from_bytes(bytes: usize) -> Option<Self> {
        if !bytes.is_multiple_of(8) || bytes > Self::MAX.bytes() { None } else { Some(Self((bytes / 8) as u16)) }
    }

    /// The offset in bytes, at most 65 528.
    pub const fn bytes(self) -> usize {
        self.0 as usize * 8
    }

    /// The offset in blocks, at most 8191.
    pub const fn blocks(self) -> u16 {
        self.0
    }

    /// The lower 13 bits of the IPv4 field.
    pub(crate) const fn from_low_bits(field: u16) -> Self {
        Self(field & Self::MAX.0)
    }
}

/// Position of a fragment in its datagram, and the datagram's identification.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FragInfo {
    /// Start of the fragment's payload in the datagram's payload.
    pub offset: FragOffset,
    /// The more-fragments flag.
    pub more: bool,
    /// The datagram's identification, 16 bits in IPv4 and 32 in IPv6.
    pub id: u32,
}

impl FragInfo {
    /// Tells whether this is the first fragment, which has the upper-layer header.
    pub const fn is_first(self) -> bool {
        self.offset.0 == 0
    }

    /// Tells whether this is an atomic fragment: a complete datagram with an IPv6 fragment header (RFC 6946).
    pub const fn is_atomic(self) -> bool {
        self.is_first() && !self.more
    }
}

/// The IPv6 fragment header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct FragHeader {
    next_header: Protocol,
    reserved: u8,
    offset_more: U16,
    id: U32,
}

header!(FragHeader, 8, Malformed::FragShort);

impl FragHeader {
    /// A fragment header; `next_header` names the first header of the fragmentable part.
    pub const fn new(next_header: Protocol, info: FragInfo) -> Self {
        let field = info.offset.0 << 3 | info.more as u16;
        Self { next_header, reserved: 0, offset_more: U16::new(field), id: U32::new(info.id) }
    }

    /// Protocol at the start of the fragmentable part; meaningless in fragments after the first.
    pub const fn next_header(&self) -> Protocol {
        self.next_header
    }

    /// Position of the fragment in its datagram.
    pub const fn info(&self) -> FragInfo {
        let field = self.offset_more.get();
        FragInfo { offset: FragOffset(field >> 3), more: field & 1 == 1, id: self.id.get() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offset_is_a_whole_number_of_blocks_in_13_bits() {
        let cases = [(0, Some(0)), (7, None), (8, Some(1)), (65_528, Some(8191)), (65_529, None), (65_536, None)];
        for (bytes, blocks) in cases {
            assert_eq!(FragOffset::from_bytes(bytes).map(FragOffset::blocks), blocks, "{bytes} bytes");
        }
    }

    #[test]
    fn reserved_bits_of_a_fragment_header_are_ignored() {
        let info = FragInfo { offset: FragOffset::from_bytes(1448).unwrap(), more: true, id: 0x0102_0304 };
        let header = FragHeader::new(Protocol::UDP, info);
        assert_eq!(header.as_bytes(), [17, 0, 0x05, 0xa9, 1, 2, 3, 4]);
        let noisy = [17, 0xff, 0x05, 0xaf, 1, 2, 3, 4];
        assert_eq!(FragHeader::ref_from(&noisy).unwrap().info(), info);
        assert_eq!(FragHeader::ref_from(&noisy[..7]), Err(Malformed::FragShort));
    }

    #[test]
    fn only_a_lone_first_fragment_is_atomic() {
        let cases = [(0, false, true, true), (0, true, true, false), (8, false, false, false), (8, true, false, false)];
        for (bytes, more, first, atomic) in cases {
            let info = FragInfo { offset: FragOffset::from_bytes(bytes).unwrap(), more, id: 1 };
            assert_eq!((info.is_first(), info.is_atomic()), (first, atomic), "{info:?}");
        }
    }
}

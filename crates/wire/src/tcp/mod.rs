//! TCP segments and their options (RFC 9293 §3.1, RFC 7323, RFC 2018).

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Malformed;

mod options;

pub use options::{TcpOption, TcpOptions};

/// Offset of the checksum: `csum_offset` of a partial checksum.
pub const CHECK_AT: usize = 16;

/// Offset of the sequence number in a TCP header.
pub const SEQ_AT: usize = 4;

/// Offset of the two bytes in a TCP header that end with the flags.
pub const FLAGS_AT: usize = 12;

/// Maximum of the data offset: 15 words.
pub const MAX_HEADER_LEN: usize = 60;

/// The twelve bits behind the data offset, with the reserved bits, so that a rewrite preserves them.
#[derive(Clone, Copy, Default, Eq, Hash, PartialEq)]
pub struct Flags(u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// No more data from the sender.
    pub const FIN: Self = Self(0x001);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x002);
    /// Reset the connection.
    pub const RST: Self = Self(0x004);
    /// Push.
    pub const PSH: Self = Self(0x008);
    /// The acknowledgment number is valid.
    pub const ACK: Self = Self(0x010);
    /// The urgent pointer is valid.
    pub const URG: Self = Self(0x020);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x040);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x080);
    /// Accurate ECN.
    pub const AE: Self = Self(0x100);

    /// The flags of the lower twelve bits of `bits`.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x0fff)
    }

    /// Twelve bits as on the wire.
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Tells whether all flags of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Tells whether any flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl BitAnd for Flags {
    type Output = Self;

    fn bitand(self, rhs: Self) -> Self {
        Self(self.0 & rhs.0)
    }
}

impl Not for Flags {
    type Output = Self;

    fn not(self) -> Self {
        Self::from_bits(!self.0)
    }
}

impl fmt::Debug for Flags {
    /// Formats the flags as tcpdump does: `[P.]`, an unnamed bit as its number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (bit, letter) in "FSRP.UEWe".chars().enumerate() {
            if self.0 >> bit & 1 == 1 {
                write!(f, "{letter}")?;
            }
        }
        match self.0 & 0xe00 {
            0 => f.write_str("]"),
            reserved => write!(f, "+{reserved:#x}]"),
        }
    }
}

/// The fixed 20 bytes of a TCP header.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct TcpHeader {
    sport: U16,
    dport: U16,
    seq: U32,
    ack: U32,
    offset_flags: U16,
    window: U16,
    check: U16,
    urgent: U16,
}

header!(TcpHeader, 20, Malformed::TcpShort);

impl TcpHeader {
    /// A header without options, flags or checksum.
    pub const fn new(sport: u16, dport: u16, seq: u32, ack: u32) -> Self {
        Self {
            sport: U16::new(sport),
            dport: U16::new(dport),
            seq: U32::new(seq),
            ack: U32::new(ack),
            offset_flags: U16::new(5 << 12),
            window: U16::new(u16::MAX),
            check: U16::ZERO,
            urgent: U16::ZERO,
        }
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

    /// Sequence number of the first byte of payload.
    #[inline]
    pub const fn seq(&self) -> u32 {
        self.seq.get()
    }

    /// Changes the sequence number.
    pub const fn set_seq(&mut self, seq: u32) {
        self.seq = U32::new(seq);
    }

    /// Acknowledgment number.
    #[inline]
    pub const fn ack(&self) -> u32 {
        self.ack.get()
    }

    /// The header's length in bytes with options, from the data offset: 0 to 60, and 20 to 60 after a `parse`.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.offset_flags.get() >> 12) as usize * 4
    }

    /// Sets the data offset from a length in bytes with options; an incomplete last word does not count.
    ///
    /// # Panics
    /// If `len` is not within 20 to 60.
    pub const fn set_header_len(&mut self, len: usize) {
        assert!(len >= Self::LEN && len <= MAX_HEADER_LEN, "no TCP header has this length");
        self.offset_flags = U16::new(self.offset_flags.get() & 0x0fff | ((len / 4) as u16) << 12);
    }

    /// The flags.
    #[inline]
    pub const fn flags(&self) -> Flags {
        Flags::from_bits(self.offset_flags.get())
    }

    /// Changes the flags.
    pub const fn set_flags(&mut self, flags: Flags) {
        self.offset_flags = U16::new(self.offset_flags.get() & 0xf000 | flags.0);
    }

    /// Window, unscaled.
    pub const fn window(&self) -> u16 {
        self.window.get()
    }

    /// Changes the window.
    pub const fn set_window(&mut self, window: u16) {
        self.window = U16::new(window);
    }

    /// The checksum as stored.
    pub const fn check(&self) -> u16 {
        self.check.get()
    }

    /// Changes the checksum.
    pub const fn set_check(&mut self, check: u16) {
        self.check = U16::new(check);
    }

    /// The urgent pointer.
    pub const fn urgent(&self) -> u16 {
        self.urgent.get()
    }
}

/// A segment with a valid data offset.
#[derive(Clone, Copy, Debug)]
pub struct Tcp<'a> {
    header: &'a TcpHeader,
    whole_header: &'a [u8],
    payload: &'a [u8],
    len: usize,
}

impl<'a> Tcp<'a> {
    /// Parses a segment that is completely in `bytes`.
    ///
    /// # Errors
    /// [`Malformed::TcpShort`], [`Malformed::TcpDataOffset`].
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Self::parse_head(bytes, bytes.len())
    }

    /// Parses a segment of `len` bytes, the complete IP payload, whose first bytes are in `head`.
    ///
    /// # Errors
    /// As [`Tcp::parse`]; [`Malformed::OutsideHead`] if the segment's header is complete in the packet but not in
    /// `head`.
    #[inline]
    pub fn parse_head(head: &'a [u8], len: usize) -> Result<Self, Malformed> {
        let head = &head[..head.len().min(len)];
        let short = if head.len() < len { Malformed::OutsideHead } else { Malformed::TcpShort };
        let header = TcpHeader::ref_from(head).map_err(|_| short)?;
        let header_len = header.header_len();
        if header_len < TcpHeader::LEN {
            return Err(Malformed::TcpDataOffset);
        }
        if header_len > len {
            return Err(Malformed::TcpShort);
        }
        let (whole_header, payload) = head.split_at_checked(header_len).ok_or(Malformed::OutsideHead)?;
        Ok(Self { header, whole_header, payload, len })
    }

    /// The fixed part of the header.
    #[inline]
    pub const fn header(&self) -> &'a TcpHeader {
        self.header
    }

    /// The header's length with options, 20 to 60 bytes.
    #[inline]
    pub const fn header_len(&self) -> usize {
        self.whole_header.len()
    }

    /// Bytes of the payload in the head.
    #[inline]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Length of the payload, inside or outside the head.
    #[inline]
    pub const fn payload_len(&self) -> usize {
        self.len - self.whole_header.len()
    }

    /// The options as bytes, 0 to 40.
    #[inline]
    pub fn option_bytes(&self) -> &'a [u8] {
        &self.whole_header[TcpHeader::LEN..]
    }

    /// Iterates over the options.
    pub fn options(&self) -> TcpOptions<'a> {
        TcpOptions::new(self.option_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_as_rfc_9293_lays_it_out() {
        let mut header = TcpHeader::new(0x0102, 0x0304, 0x0506_0708, 0x090a_0b0c);
        header.set_header_len(24);
        header.set_flags(Flags::SYN | Flags::ACK | Flags::ECE);
        header.set_window(0x0d0e);
        header.set_check(0x0f10);
        header.urgent = U16::new(0x1112);
        assert_eq!(header.as_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x60, 0x52, 13, 14, 15, 16, 17, 18]);
        assert_eq!((header.header_len(), header.flags()), (24, Flags::SYN | Flags::ACK | Flags::ECE));
        assert_eq!(header.as_bytes()[CHECK_AT..][..2], [15, 16]);
    }

    #[test]
    fn a_data_offset_covers_the_header_and_stays_within_the_segment() {
        // (data offset in words, bytes in the head, bytes in the segment)
        let cases = [
            (5, 20, 20, Ok((20, 0))),
            (5, 19, 19, Err(Malformed::TcpShort)),
            (5, 19, 20, Err(Malformed::OutsideHead)),
            (4, 20, 20, Err(Malformed::TcpDataOffset)),
            (0, 20, 20, Err(Malformed::TcpDataOffset)),
            (6, 24, 24, Ok((24, 0))),
            (6, 23, 23, Err(Malformed::TcpShort)),
            (6, 23, 24, Err(Malformed::OutsideHead)),
            (15, 60, 61, Ok((60, 1))),
            (15, 60, 59, Err(Malformed::TcpShort)),
            (8, 64, 65_515, Ok((32, 65_483))),
        ];
        for (words, head_len, len, want) in cases {
            let mut head = [0; 64];
            head[12] = words << 4;
            let got = Tcp::parse_head(&head[..head_len], len).map(|tcp| (tcp.header_len(), tcp.payload_len()));
            assert_eq!(got, want, "{words} words, {head_len} of {len} bytes there");
        }
    }

    #[test]
    fn flags_keep_reserved_bits_and_the_data_offset_keeps_out() {
        let mut bytes = [0; 20];
        bytes[12..14].copy_from_slice(&[0x5f, 0x18]);
        let header = TcpHeader::mut_from(&mut bytes).unwrap();
        let flags = header.flags();
        assert!(flags.contains(Flags::PSH | Flags::ACK | Flags::AE) && !flags.intersects(Flags::SYN | Flags::FIN));
        header.set_flags(flags & !Flags::PSH);
        assert_eq!(bytes[12..14], [0x5f, 0x10]);
        assert_eq!(format!("{:?} {:?}", Flags::PSH | Flags::ACK, flags), "[P.] [P.e+0xe00]");
        assert_eq!(Flags::from_bits(0xf012).bits(), 0x012);
    }

    #[test]
    fn bytes_behind_the_segment_are_not_its_payload() {
        let bytes = [TcpHeader::new(1, 2, 3, 4).as_bytes(), &[9, 8, 7]].concat();
        assert_eq!(Tcp::parse_head(&bytes, 22).unwrap().payload(), [9, 8]);
    }
}

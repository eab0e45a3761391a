//! ESP header and trailer (RFC 4303 §2): SPI and sequence number in front, padding and next header behind.

use std::fmt;

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Protocol};

/// A security parameters index, in host byte order.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Spi(pub u32);

impl Spi {
    /// The first SPI that is not reserved (RFC 4303 §2.1).
    pub const MIN: Self = Self(256);

    /// Tells whether the SPI is reserved: 0 to 255. Zero is never on the wire: on UDP port 4500 it marks IKE (RFC 3948
    /// §2.2).
    pub const fn is_reserved(self) -> bool {
        self.0 < Self::MIN.0
    }
}

impl fmt::Display for Spi {
    /// Formats the SPI as iproute2 does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// First bytes of every ESP packet.
#[derive(Clone, Copy, Debug, Eq, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Unaligned)]
#[repr(C)]
pub struct EspHeader {
    spi: U32,
    seq: U32,
}

header!(EspHeader, 8, Malformed::EspShort);

impl EspHeader {
    /// A header with the lower 32 bits of the sequence number; the upper ones are never sent.
    pub const fn new(spi: Spi, seq: u32) -> Self {
        Self { spi: U32::new(spi.0), seq: U32::new(seq) }
    }

    /// SPI of the packet's SA.
    #[inline]
    pub const fn spi(&self) -> Spi {
        Spi(self.spi.get())
    }

    /// The sequence number; with ESN, the lower half.
    #[inline]
    pub const fn seq(&self) -> u32 {
        self.seq.get()
    }
}

/// Bytes of the trailer without the padding: pad length and next header.
pub const TRAILER_LEN: usize = 2;

/// Minimum number of bytes of padding and trailer behind `payload_len` bytes that end on a multiple of `align` (RFC
/// 4303 §2.4, where `align` is at least 4).
///
/// # Panics
/// If `align` is not a power of two from 4 to 128: the pad length would not fit its byte.
#[inline]
pub const fn trailer_len(payload_len: usize, align: usize) -> usize {
    assert!(align.is_power_of_two() && align >= 4 && align <= 128, "no cipher aligns like this");
    //= RFC 4303 §2.4 alignment: the trailer ends on a multiple of 4 bytes and of the cipher's block
    let unpadded = payload_len.wrapping_add(TRAILER_LEN);
    TRAILER_LEN + (unpadded.wrapping_neg() & (align - 1))
}

/// Writes padding 1, 2, 3, …, the pad length and `next_header` over `trailer`, of 2 to 257 bytes.
///
/// # Panics
/// If `trailer` has another length.
#[inline]
pub fn write_trailer(trailer: &mut [u8], next_header: Protocol) {
    let pad_len = trailer.len().checked_sub(TRAILER_LEN).and_then(|len| u8::try_from(len).ok());
    let pad_len = pad_len.unwrap_or_else(|| panic!("an ESP trailer of {} bytes", trailer.len()));
    let (padding, last) = trailer.split_at_mut(usize::from(pad_len));
    //= RFC 4303 §2.4 padding-bytes: padding bytes count up from 1, unless the cipher requires others
    for (byte, n) in padding.iter_mut().zip(1..=pad_len) {
        *byte = n;
    }
    last.copy_from_slice(&[pad_len, next_header.0]);
}

/// Fields of the trailer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Trailer {
    /// Bytes of padding, 0 to 255.
    pub pad_len: usize,
    /// Protocol of the payload.
    pub next_header: Protocol,
}

impl Trailer {
    /// The trailer at the end of `plaintext`, which is payload, padding and trailer without the ICV. The padding bytes
    /// are not checked, as in Linux.
    ///
    /// # Errors
    /// [`Malformed::EspShort`] if there is no trailer, [`Malformed::EspPadding`] if the padding would begin before the
    /// payload.
    #[inline]
    pub fn parse(plaintext: &[u8]) -> Result<Self, Malformed> {
        let (rest, &[pad_len, next_header]) = plaintext.split_last_chunk().ok_or(Malformed::EspShort)?;
        let pad_len = usize::from(pad_len);
        if pad_len > rest.len() {
            return Err(Malformed::EspPadding);
        }
        Ok(Self { pad_len, next_header: Protocol(next_header) })
    }

    /// Bytes of padding and trailer.
    #[inline]
    pub const fn trailer_len(self) -> usize {
        self.pad_len + TRAILER_LEN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_spi_and_sequence_number() {
        let header = EspHeader::new(Spi(0x1000), 7);
        assert_eq!(header.as_bytes(), [0, 0, 0x10, 0, 0, 0, 0, 7]);
        assert_eq!(EspHeader::ref_from(&header.as_bytes()[..7]), Err(Malformed::EspShort));
        assert_eq!(header.spi().to_string(), "0x00001000");
        assert!(Spi(255).is_reserved() && !Spi(256).is_reserved());
    }

    //= test RFC 4303 §2.4 alignment
    #[test]
    fn padding_is_the_shortest_that_aligns() {
        let cases = [
            (0, 4, 4),
            (1, 4, 3),
            (2, 4, 2),
            (3, 4, 5),
            (6, 8, 2),
            (7, 8, 9),
            (14, 16, 2),
            (15, 16, 17),
            (1, 128, 127),
        ];
        for (payload, align, want) in cases {
            let len = trailer_len(payload, align);
            assert_eq!(len, want, "{payload} aligned to {align}");
            assert_eq!((payload + len) % align, 0);
        }
    }

    //= test RFC 4303 §2.4 padding-bytes
    #[test]
    fn padding_counts_up_from_one() {
        let mut trailer = [0xff; 7];
        write_trailer(&mut trailer, Protocol::IPIP);
        assert_eq!(trailer, [1, 2, 3, 4, 5, 5, 4]);
        let mut trailer = [0; 257];
        write_trailer(&mut trailer, Protocol::IPV6);
        assert_eq!((trailer[0], trailer[254], trailer[255], trailer[256]), (1, 255, 255, 41));
        let mut trailer = [0; 2];
        write_trailer(&mut trailer, Protocol::NO_NEXT);
        assert_eq!(trailer, [0, 59]);
    }

    #[test]
    fn a_pad_length_stays_within_the_plaintext() {
        let cases: [(&[u8], _); 5] = [
            (&[], Err(Malformed::EspShort)),
            (&[4], Err(Malformed::EspShort)),
            (&[0, 4], Ok(0)),
            (&[9, 1, 4], Ok(1)),
            (&[9, 2, 4], Err(Malformed::EspPadding)),
        ];
        for (plaintext, want) in cases {
            assert_eq!(Trailer::parse(plaintext).map(|trailer| trailer.pad_len), want, "{plaintext:?}");
        }
    }
}

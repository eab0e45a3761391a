//! The Internet checksum in one's-complement arithmetic (RFC 1071) and its incremental update (RFC 1624).
//!
//! Two kinds of number, as in Linux (`__wsum`, `__sum16`):
//!
//! - a *partial sum*, `u32`: congruent modulo 0xffff to the sum of the big-endian 16-bit words so far. Partial sums may
//!   be added and subtracted; only [`fold`] reduces one to 16 bits.
//! - a *checksum*, `u16`, in host byte order: the complement that is stored in a header.
//!
//! A byte range of odd length counts as if a zero byte followed it.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Protocol;

/// The partial sum of `bytes`, at most 0xffff. Zero only if every byte is zero.
#[inline]
pub fn sum(bytes: &[u8]) -> u32 {
    // Sums in native byte order and swaps once, as one's-complement addition is independent of it (RFC 1071 §2 B).
    // Halves of 32 bits in 64-bit lanes cannot overflow below 2^33 bytes, and the loop has no carries, so it
    // vectorises.
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut acc = 0u64;
    for &chunk in chunks {
        let word = u64::from_ne_bytes(chunk);
        acc += (word & 0xffff_ffff) + (word >> 32);
    }
    let (words, rest) = rest.as_chunks::<4>();
    if let [word] = words {
        acc += u64::from(u32::from_ne_bytes(*word));
    }
    acc += u64::from(match *rest {
        [a, b, c] => u32::from_ne_bytes([a, b, c, 0]),
        [a, b] => u32::from_ne_bytes([a, b, 0, 0]),
        [a] => u32::from_ne_bytes([a, 0, 0, 0]),
        _ => 0,
    });
    let acc = (acc & 0xffff_ffff) + (acc >> 32);
    let acc = (acc & 0xffff_ffff) + (acc >> 32);
    u32::from(fold(acc as u32).to_be())
}

/// Reduces a partial sum to 16 bits, without complementing it.
#[inline]
pub const fn fold(sum: u32) -> u16 {
    // Each half is added to the other: the upper half is then their sum, with the lower half's carry.
    (sum.wrapping_add(sum.rotate_right(16)) >> 16) as u16
}

/// The checksum of a partial sum: folded and complemented.
#[inline]
pub const fn finish(sum: u32) -> u16 {
    !fold(sum)
}

/// As [`finish`], for UDP: a computed zero is sent as 0xffff, because zero means "none" (RFC 768).
#[inline]
pub const fn finish_udp(sum: u32) -> u16 {
    match finish(sum) {
        0 => 0xffff,
        check => check,
    }
}

/// The sum of two partial sums.
#[inline]
pub const fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum + carry as u32 // cannot overflow: a sum that carried is at most 2^32 - 2
}

/// The sum of several partial sums, reduced once.
#[inline]
pub const fn add_all<const N: usize>(sums: [u32; N]) -> u32 {
    let (mut acc, mut at) = (0u64, 0);
    while at < N {
        acc += sums[at] as u64;
        at += 1;
    }
    narrow(acc)
}

/// Partial sum `a` without `b`.
#[inline]
pub const fn sub(a: u32, b: u32) -> u32 {
    add(a, !b)
}

/// Adds the partial sum of a block that begins `offset` bytes into the summed range. At an odd offset the block's words
/// straddle those of the range, which swaps the bytes of the block's sum (RFC 1071 §2 B).
#[inline]
pub const fn block_add(a: u32, block: u32, offset: usize) -> u32 {
    add(a, shift(block, offset))
}

const fn shift(block: u32, offset: usize) -> u32 {
    if offset % 2 == 1 { block.rotate_right(8) } else { block }
}

/// The checksum after a 16-bit field has changed from `old` to `new`: RFC 1624 equation 3, HC' = ~(~HC + ~m + m').
#[inline]
pub const fn replace2(check: u16, old: u16, new: u16) -> u16 {
    replace_by_diff(check, diff2(old, new))
}

/// The checksum after the covered bytes have changed by `diff`, the partial sum of the new bytes minus that of the old.
#[inline]
pub const fn replace_by_diff(check: u16, diff: u32) -> u16 {
    finish(add(!check as u32 & 0xffff, diff))
}

/// Difference of a 16-bit field's change, for [`replace_by_diff`].
#[inline]
pub const fn diff2(old: u16, new: u16) -> u32 {
    !old as u32 + new as u32
}

/// The partial sum of the IPv4 pseudo-header, for TCP and UDP (RFC 9293 §3.1, RFC 768). `len` counts the transport
/// header and its payload.
#[inline]
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: Protocol, len: usize) -> u32 {
    let pairs = u64::from(src.to_bits()) + u64::from(dst.to_bits()) + u64::from(protocol.0) + len as u64;
    narrow(pairs)
}

/// The partial sum of the IPv6 pseudo-header (RFC 8200 §8.1). `protocol` is that of the upper layer, also behind
/// extension headers.
#[inline]
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: Protocol, len: usize) -> u32 {
    let (src, dst) = (src.to_bits(), dst.to_bits());
    let mut acc = u64::from(protocol.0) + len as u64;
    for part in [src, src >> 32, src >> 64, src >> 96, dst, dst >> 32, dst >> 64, dst >> 96] {
        acc += u64::from(part as u32);
    }
    narrow(acc)
}

/// Reduces a sum of a few 32-bit words to a partial sum.
#[inline]
const fn narrow(acc: u64) -> u32 {
    add(acc as u32, (acc >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1071 §4.1, byte by byte.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn the_example_of_rfc_1071_sums_as_it_says() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(sum(&bytes), 0xddf2);
        assert_eq!(finish(sum(&bytes)), 0x220d);
    }

    #[test]
    fn the_example_of_rfc_1624_updates_as_it_says() {
        assert_eq!(replace2(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn every_length_agrees_with_the_plain_sum() {
        let bytes: Vec<u8> = (0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8 | 0x80).collect();
        for len in 0..bytes.len() {
            assert_eq!(sum(&bytes[..len]), u32::from(plain(&bytes[..len])), "{len} bytes");
        }
    }

    #[test]
    fn a_sum_is_zero_only_for_zeros() {
        assert_eq!(sum(&[0; 64]), 0);
        assert_eq!(sum(&[0xff; 64]), 0xffff);
        assert_eq!(sum(&[0xff; 65_536]), 0xffff);
        assert_eq!(sum(&[]), 0);
    }

    #[test]
    fn partial_sums_fold_without_losing_a_carry() {
        let cases =
            [(0, 0), (0xffff, 0xffff), (0x1_0000, 1), (0xffff_ffff, 0xffff), (0xfffe_ffff, 0xfffe), (0xffff_0001, 1)];
        for (sum, want) in cases {
            assert_eq!(fold(sum), want, "{sum:#x}");
        }
    }

    #[test]
    fn only_udp_sends_a_zero_check_as_all_ones() {
        assert_eq!((finish(0xffff), finish_udp(0xffff)), (0, 0xffff));
        assert_eq!((finish(0xfffe), finish_udp(0xfffe)), (1, 1));
    }

    #[test]
    fn pseudo_headers_sum_as_their_bytes_do() {
        let (src, dst) = (Ipv4Addr::new(255, 255, 255, 255), Ipv4Addr::new(192, 0, 2, 255));
        let mut bytes = [&src.octets()[..], &dst.octets()].concat();
        bytes.extend([0, 6, 0xff, 0xff]);
        assert_eq!(fold(pseudo_v4(src, dst, Protocol::TCP, 0xffff)), plain(&bytes));

        let (src, dst) = (Ipv6Addr::from_bits(u128::MAX), Ipv6Addr::from_bits(u128::MAX - 7));
        let mut bytes = [&src.octets()[..], &dst.octets()].concat();
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 17]);
        assert_eq!(fold(pseudo_v6(src, dst, Protocol::UDP, 0x1_0000)), plain(&bytes));
    }
}

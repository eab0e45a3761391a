//! Updates of a packet's checksum while its ends move (RFC 1071 §2).

use crate::meta::Csum;

/// Checksum state of two joined packets, the first of `len` bytes. Two sums are added, a partial checksum stays
/// partial, and otherwise the result is verified only if both are.
#[inline]
pub(crate) fn joined((first, len): (Csum, usize), second: Csum) -> Csum {
    match (first, second) {
        (Csum::Partial { .. }, _) => first,
        (Csum::Complete(sum), Csum::Complete(more)) => {
            let more = if len % 2 == 1 { more.swap_bytes() } else { more };
            Csum::Complete(fold(u64::from(sum) + u64::from(more)))
        }
        (Csum::Unnecessary, Csum::Unnecessary) => Csum::Unnecessary,
        _ => Csum::None,
    }
}

/// The sum without the first `n` bytes, at the front of `chunks`.
pub(crate) fn without_front<'a>(sum: u16, chunks: impl Iterator<Item = &'a [u8]>, n: usize) -> u16 {
    let rest = subtract(sum, of_range(chunks, 0, n));
    // Bytes at odd offsets move to even ones, so the sum is byte-swapped (RFC 1071 §2B).
    if n % 2 == 1 { rest.swap_bytes() } else { rest }
}

/// The sum without the bytes after the first `len`.
pub(crate) fn without_back<'a>(sum: u16, chunks: impl Iterator<Item = &'a [u8]>, len: usize) -> u16 {
    subtract(sum, of_range(chunks, len, usize::MAX))
}

/// The folded sum of bytes `from..to`, with each byte weighted by the parity of its offset.
fn of_range<'a>(chunks: impl Iterator<Item = &'a [u8]>, from: usize, to: usize) -> u16 {
    let bytes = chunks.flatten().copied().enumerate().take(to).skip(from);
    let sum: u64 = bytes.map(|(at, byte)| if at % 2 == 0 { u64::from(byte) << 8 } else { u64::from(byte) }).sum();
    fold(sum)
}

fn subtract(sum: u16, part: u16) -> u16 {
    fold(u64::from(sum) + u64::from(!part))
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

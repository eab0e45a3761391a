//! Cursor over a packet's bytes that copies and sums them into frames in one pass, or lends them in place (Linux
//! `csum_partial_copy`).

use packet::Piece;
use wire::checksum;

/// A packet's bytes from front to back, across its fragments.
#[derive(Debug)]
pub(crate) struct ByteCursor<'a, I> {
    pieces: I,
    now: Piece<'a>,
    /// Number of bytes of the current piece that were taken.
    at: usize,
    copied: usize,
}

impl<'a, I: Iterator<Item = Piece<'a>>> ByteCursor<'a, I> {
    /// The bytes of `pieces` after the first `skip`.
    pub(crate) fn new(pieces: I, mut skip: usize) -> Self {
        let mut source = Self { pieces, now: Piece::ReadOnly(&[]), at: 0, copied: 0 };
        while skip > 0 {
            skip -= source.take(skip).len();
        }
        source
    }

    /// Number of bytes that were copied.
    pub(crate) const fn copied(&self) -> usize {
        self.copied
    }

    /// The next `n` bytes in place, with the `before` bytes in front of them, which were taken and may be overwritten,
    /// and up to `behind` bytes behind them, which the caller restores before its next call; and the partial sum of the
    /// `n`, if requested. `None` if they are not contiguous or are shared.
    #[inline]
    pub(crate) fn take_around(
        &mut self,
        before: usize,
        n: usize,
        behind: usize,
        sums: bool,
    ) -> Option<(&mut [u8], u32)> {
        self.advance();
        let start = self.at.checked_sub(before)?;
        let end = self.at.checked_add(n)?;
        let Piece::Writable(bytes) = &mut self.now else { return None };
        let len = bytes.len();
        if end > len {
            return None;
        }
        let sum = if sums { offload::checksum::sum(&bytes[self.at..end]) } else { 0 };
        self.at = end;
        Some((&mut bytes[start..end.saturating_add(behind).min(len)], sum))
    }

    /// Fills `to`. The caller requests no more bytes than are left.
    #[inline]
    pub(crate) fn copy_to(&mut self, mut to: &mut [u8]) {
        self.copied += to.len();
        while !to.is_empty() {
            let from = self.take(to.len());
            let (here, rest) = to.split_at_mut(from.len());
            here.copy_from_slice(from);
            to = rest;
        }
    }

    /// Fills `to`, and gives the partial sum of its bytes.
    #[inline]
    pub(crate) fn copy_and_sum(&mut self, to: &mut [u8]) -> u32 {
        self.copied += to.len();
        let (mut at, mut sum) = (0, 0);
        while at < to.len() {
            let from = self.take(to.len() - at);
            let here = &mut to[at..at + from.len()];
            sum = checksum::block_add(sum, copy_and_sum(from, here), at);
            at += here.len();
        }
        sum
    }

    /// Advances to the next piece at the end of this one.
    #[inline]
    fn advance(&mut self) {
        while self.at == self.now.bytes().len()
            && let Some(next) = self.pieces.next()
        {
            (self.now, self.at) = (next, 0);
        }
    }

    /// The next bytes in place, `n` at most.
    #[inline]
    fn take(&mut self, n: usize) -> &[u8] {
        self.advance();
        let rest = &self.now.bytes()[self.at..];
        assert!(!rest.is_empty(), "as many bytes as the packet's length");
        let here = &rest[..n.min(rest.len())];
        self.at += here.len();
        here
    }
}

/// Copies `from` to `to`, which is as long, and gives the partial sum, at most 0xffff.
///
/// Two passes, as the second finds the bytes in the cache: 11 and 7 ns for 1386 of them, as fast as both in one. The
/// sum reads `from`: a load of bytes that were just stored would wait for the store.
fn copy_and_sum(from: &[u8], to: &mut [u8]) -> u32 {
    to.copy_from_slice(from);
    offload::checksum::sum(from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_copied_and_summed_as_by_itself() {
        let bytes: Vec<u8> = (0..1600u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 23) as u8 | 0x80).collect();
        for len in 0..bytes.len() {
            let mut to = vec![0; len];
            let sum = copy_and_sum(&bytes[..len], &mut to);
            assert_eq!((sum, &to[..]), (checksum::sum(&bytes[..len]), &bytes[..len]), "{len} bytes");
        }
        let mut to = vec![0; 65_536];
        assert_eq!(copy_and_sum(&[0xff; 65_536], &mut to), 0xffff);
    }

    #[test]
    fn pieces_of_any_length_sum_as_the_whole() {
        let bytes: Vec<u8> = (0..700u32).map(|i| (i * 7 + 3) as u8).collect();
        for piece in [1, 3, 64, 65, 699] {
            for skip in [0, 1, 5, 300] {
                let mut source = ByteCursor::new(bytes.chunks(piece).map(Piece::ReadOnly), skip);
                let (mut first, mut second) = (vec![0; 201], vec![0; 199]);
                let sums = [source.copy_and_sum(&mut first), source.copy_and_sum(&mut second)];
                let (want_first, rest) = bytes[skip..].split_at(201);
                assert_eq!((&first[..], &second[..]), (want_first, &rest[..199]), "{piece} after {skip}");
                assert_eq!(
                    sums.map(|sum| u32::from(checksum::fold(sum))),
                    [checksum::sum(&first), checksum::sum(&second)],
                    "{piece} after {skip}"
                );
                assert_eq!(source.copied(), 400);
            }
        }
    }

    #[test]
    fn contiguous_exclusive_bytes_are_taken_in_place() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let (first, second) = bytes.split_at_mut(60);
        let pieces = [Piece::Writable(first), Piece::ReadOnly(second)];
        let mut source = ByteCursor::new(pieces.into_iter(), 10);
        assert_eq!(source.take_around(11, 5, 0, true), None, "not so much before it");
        assert_eq!(source.take_around(10, 20, 7, false).unwrap().0.to_vec(), (0..37).collect::<Vec<u8>>());
        let (around, sum) = source.take_around(4, 20, 11, true).unwrap();
        assert_eq!(sum, checksum::sum(&(30..50).collect::<Vec<u8>>()));
        assert_eq!(around.to_vec(), (26..60).collect::<Vec<u8>>(), "there are ten behind");
        around[..4].fill(0xee);
        assert_eq!(source.take_around(4, 20, 0, true), None, "the next ten are elsewhere");
        let mut to = [0; 20];
        source.copy_to(&mut to);
        assert_eq!(to.to_vec(), (50..70).collect::<Vec<u8>>());
        assert_eq!(source.take_around(4, 10, 0, true), None, "the bytes are shared");
        let mut rest = [0; 30];
        source.copy_to(&mut rest);
        assert_eq!((rest.to_vec(), source.copied()), ((70..100).collect(), 50));
        drop(source);
        assert_eq!(bytes[26..30], [0xee; 4], "what had been taken was written over");
    }

    #[test]
    fn cursor_sums_each_taken_range() {
        let mut bytes: Vec<u8> = (0..2000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let other = bytes.clone();
        let pieces = bytes.chunks_mut(900).map(Piece::Writable);
        let (mut source, mut at) = (ByteCursor::new(pieces, 20), 20);
        for n in [1, 50, 50, 50, 49, 50, 0, 50, 50, 200, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50, 50] {
            match source.take_around(20, n, 8, true) {
                Some((around, sum)) => {
                    assert_eq!(sum, checksum::sum(&other[at..at + n]), "{n} at {at}");
                    // As when segments are sealed: headers in front stay, the trailer behind is overwritten.
                    around[..20].fill(0xee);
                }
                None => {
                    let sum = checksum::fold(source.copy_and_sum(&mut vec![0; n]));
                    assert_eq!(u32::from(sum), checksum::sum(&other[at..at + n]), "{n} at {at}");
                }
            }
            at += n;
        }
        assert!(source.copied() > 0, "two lie across the pieces' ends");
    }
}

//! Copying a packet's bytes into a frame and summing them on the way (Linux `csum_partial_copy`).

use wire::checksum;

/// A packet's bytes from front to back, whatever pieces they lie in.
#[derive(Debug)]
pub(crate) struct Source<'a, I> {
    chunks: I,
    now: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Source<'a, I> {
    /// The bytes of `chunks` but the first `skip`.
    pub(crate) fn new(chunks: I, mut skip: usize) -> Self {
        let mut source = Self { chunks, now: &[] };
        while skip > 0 {
            skip -= source.take(skip).len();
        }
        source
    }

    /// Fills `to`. The caller asks for no more than there is.
    #[inline]
    pub(crate) fn copy_to(&mut self, mut to: &mut [u8]) {
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
        let (mut at, mut sum) = (0, 0);
        while at < to.len() {
            let from = self.take(to.len() - at);
            sum = checksum::block_add(sum, copy_and_sum(from, &mut to[at..at + from.len()]), at);
            at += from.len();
        }
        sum
    }

    /// The next bytes, `n` at most, as they lie.
    #[inline]
    fn take(&mut self, n: usize) -> &'a [u8] {
        if self.now.is_empty() {
            self.now = self.chunks.next().expect("as many bytes as the packet says");
        }
        let (here, rest) = self.now.split_at(n.min(self.now.len()));
        self.now = rest;
        here
    }
}

/// Copies `from` to `to`, which is as long, and gives the partial sum, at most 0xffff.
///
/// Two passes over bytes that are near by then: 11 and 7 ns for 1386 of them, as fast as both in one. What is summed is
/// what was read: bytes that were just stored have not arrived yet.
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
                let mut source = Source::new(bytes.chunks(piece), skip);
                let (mut first, mut second) = (vec![0; 201], vec![0; 199]);
                let sums = [source.copy_and_sum(&mut first), source.copy_and_sum(&mut second)];
                let (want_first, rest) = bytes[skip..].split_at(201);
                assert_eq!((&first[..], &second[..]), (want_first, &rest[..199]), "{piece} after {skip}");
                assert_eq!(
                    sums.map(|sum| u32::from(checksum::fold(sum))),
                    [checksum::sum(&first), checksum::sum(&second)],
                    "{piece} after {skip}"
                );
            }
        }
    }
}

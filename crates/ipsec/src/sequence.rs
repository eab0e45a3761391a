//! Outbound sequence numbers and initialisation vectors, both drawn from one place.

/// Overflow of the sequence number (RFC 4303 §3.3.3): the SA has to be replaced.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Overflow;

/// The sender's counter of one SA, and its generator of initialisation vectors.
///
/// The counter has 64 bits also where the wire and RFC 4303 have 32, so that no vector repeats when an SA with
/// `oseq-may-wrap` starts over; Linux's would.
#[derive(Debug)]
pub struct OutSequence {
    /// The last number used.
    last: u64,
    esn: bool,
    may_wrap: bool,
    /// Mask that the number is XORed with, so that two SAs with one key have different vectors.
    mask: u64,
}

/// A run of reserved numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reserved {
    first: u64,
    mask: u64,
}

/// The number of one packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Sequence {
    /// The lower half, which is sent.
    pub low: u32,
    /// The upper half, which with ESN is authenticated and not sent.
    pub high: u32,
    /// The initialisation vector: the number XOR a random value of the SA (Linux's `seqiv`).
    pub iv: [u8; 8],
}

impl OutSequence {
    /// A counter that continues after `last`, which is 0 for a new SA. `mask` is random, and different for each SA.
    pub const fn new(last: u64, esn: bool, may_wrap: bool, mask: u64) -> Self {
        Self { last, esn, may_wrap, mask }
    }

    /// Sets whether 32-bit numbers may start over. The sequence of vectors continues.
    pub const fn set_may_wrap(&mut self, may_wrap: bool) {
        self.may_wrap = may_wrap;
    }

    /// Skips numbers up to `last`. It never goes back, which would repeat vectors.
    pub const fn skip_to(&mut self, last: u64) {
        if last > self.last {
            self.last = last;
        }
    }

    /// Takes the next `n` numbers at once, or none.
    ///
    /// # Errors
    /// [`Overflow`], and no number is taken.
    #[inline]
    pub fn reserve(&mut self, n: u32) -> Result<Reserved, Overflow> {
        let last = self.last.checked_add(u64::from(n)).ok_or(Overflow)?;
        //= RFC 4303 §3.3.3 no-cycle: the first packet has number 1, and no number is used twice:
        //=   after the last one the SA sends no packet, unless its flags allow numbers to wrap
        if !self.esn && !self.may_wrap && last > u64::from(u32::MAX) {
            return Err(Overflow);
        }
        let reserved = Reserved { first: self.last + 1, mask: self.mask };
        self.last = last;
        Ok(reserved)
    }

    /// The last number used.
    pub const fn last(&self) -> u64 {
        self.last
    }
}

impl Reserved {
    /// No number.
    pub(crate) const NONE: Self = Self { first: 0, mask: 0 };

    /// The `i`th of the reserved numbers, from 0.
    #[inline]
    pub const fn get(self, i: u32) -> Sequence {
        let number = self.first.wrapping_add(i as u64); // within the reservation, which did not overflow
        Sequence { low: number as u32, high: (number >> 32) as u32, iv: (number ^ self.mask).to_be_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test RFC 4303 §3.3.3 no-cycle
    #[test]
    fn sequence_numbers_are_allocated_all_or_none() {
        let max = u64::from(u32::MAX);
        let cases = [
            // (last, esn, may_wrap, n, the first and the last low and high half)
            (0, false, false, 1, Ok([(1, 0), (1, 0)])),
            (max - 40, false, false, 40, Ok([(u32::MAX - 39, 0), (u32::MAX, 0)])),
            (max - 40, false, false, 41, Err(Overflow)),
            (max - 1, false, true, 2, Ok([(u32::MAX, 0), (0, 1)])),
            (max - 1, true, false, 3, Ok([(u32::MAX, 0), (1, 1)])),
            (u64::MAX - 1, true, false, 1, Ok([(u32::MAX, u32::MAX); 2])),
            (u64::MAX - 1, true, true, 2, Err(Overflow)),
        ];
        for (last, esn, may_wrap, n, want) in cases {
            let mut out = OutSequence::new(last, esn, may_wrap, 0);
            let halves = |seq: Sequence| (seq.low, seq.high);
            let got = out.reserve(n).map(|reserved| [halves(reserved.get(0)), halves(reserved.get(n - 1))]);
            assert_eq!(got, want, "{n} after {last:#x}");
            assert_eq!(out.last(), if want.is_ok() { last + u64::from(n) } else { last });
        }
    }

    #[test]
    fn numbers_are_skipped_and_never_taken_back() {
        let mut out = OutSequence::new(5, false, false, 0);
        for (to, want) in [(3, 5), (5, 5), (1 << 24, 1 << 24), (9, 1 << 24), (u64::from(u32::MAX), u64::from(u32::MAX))]
        {
            out.skip_to(to);
            assert_eq!(out.last(), want);
        }
        assert_eq!(out.reserve(1), Err(Overflow));
    }

    #[test]
    fn vector_is_number_xor_mask_and_does_not_repeat_at_the_wrap() {
        let mut out = OutSequence::new(u64::from(u32::MAX), false, true, 0xa5a5_0000_0000_00ff);
        let reserved = out.reserve(2).unwrap();
        assert_eq!(reserved.get(0).iv, 0xa5a5_0001_0000_00ffu64.to_be_bytes());
        assert_eq!(reserved.get(1).iv, 0xa5a5_0001_0000_00feu64.to_be_bytes());
        assert_eq!((reserved.get(0).low, reserved.get(1).low), (0, 1));
    }
}

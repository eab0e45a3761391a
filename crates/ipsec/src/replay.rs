//! The anti-replay window of one inbound SA (RFC 4303 §3.4.3), with and without extended sequence numbers.
//!
//! `check` comes before the ICV and `mark` after it, so a forgery never moves the window. `mark` looks again, because
//! a duplicate may have been authenticated in between (Linux `xfrm_replay_recheck`).
//!
//! Bits are kept in a ring of words, one more than the window needs, and a window that advances clears whole words
//! (RFC 6479). The outcomes are those of a window that shifts bit by bit.

use xfrm::MAX_WINDOW;

/// Sequence numbers that were authenticated, in a window.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    /// Number of sequence numbers up to `top` in the window; 0 checks nothing; with `esn`, 0 is for an SA that only
    /// sends, since upper halves cannot be inferred.
    size: u32,
    /// Whether numbers have 64 bits, of which the wire has the lower half.
    esn: bool,
    /// The highest authenticated number.
    top: u64,
    /// Bit `n % 64` of word `n / 64 % len` stands for number `n`. A power of two long.
    words: Box<[u64]>,
}

/// Reason for which a sequence number is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Replay {
    /// Zero, which no sender uses (RFC 4303 §3.3.3).
    Zero,
    /// Marked before.
    Seen,
    /// Left of the window, where duplicates are unknown.
    TooOld,
}

impl ReplayWindow {
    /// A window of `size` packets up to `top`, of which none but `top` itself was seen.
    ///
    /// # Panics
    /// When `size` is above [`MAX_WINDOW`], a configuration that is refused before.
    pub fn new(size: u32, esn: bool, top: u64) -> Self {
        assert!(size <= MAX_WINDOW, "a window of {size}");
        let words = (size.div_ceil(64) as usize + 1).next_power_of_two();
        let mut window = Self { size, esn, top, words: vec![0; words].into_boxed_slice() };
        window.set(top);
        window
    }

    /// The same for `size` packets: a refused number stays refused. A number left of the old window may have been
    /// accepted, so a larger window takes it for seen; from a window of 0, only the top can be taken over.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn resized(&self, size: u32) -> Self {
        let mut window = Self::new(size, self.esn, self.top);
        let left = |size: u32| self.top.saturating_add(1).saturating_sub(u64::from(size));
        let forgotten = if self.size == 0 { 0..0 } else { left(size)..left(self.size) };
        for seq in self.seen().take_while(|&seq| seq >= left(size)).chain(forgotten) {
            window.set(seq);
        }
        window
    }

    /// The numbers in the window that were authenticated, from the highest down.
    pub fn seen(&self) -> impl Iterator<Item = u64> + '_ {
        let bottom = self.top.saturating_sub(u64::from(self.size).saturating_sub(1)).max(1);
        (bottom..=self.top).rev().filter(|&seq| self.is_set(seq))
    }

    /// The highest authenticated number.
    pub const fn top(&self) -> u64 {
        self.top
    }

    /// Tells whether numbers have 64 bits.
    pub const fn esn(&self) -> bool {
        self.esn
    }

    /// Number of packets that the window spans.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Tells whether the packet with `seq` on the wire may still be accepted, and gives its whole number. Changes
    /// nothing.
    ///
    /// # Errors
    /// [`Replay`].
    #[inline]
    pub fn check(&self, seq: u32) -> Result<u64, Replay> {
        if self.size == 0 {
            return Ok(u64::from(seq));
        }
        // The next number, unless it begins another 2^32, is right of the window for any inferred upper half.
        let next = self.top.wrapping_add(1);
        if seq == next as u32 && seq != 0 {
            return Ok(next);
        }
        let seq = if self.esn { self.whole(seq).ok_or(Replay::TooOld)? } else { u64::from(seq) };
        self.check_whole(seq)?;
        Ok(seq)
    }

    /// Marks `seq`, which [`check`](Self::check) gave and the ICV has confirmed, and looks again whether it may be
    /// accepted.
    ///
    /// # Errors
    /// [`Replay`]; the window is as it was.
    #[inline]
    pub fn mark(&mut self, seq: u64) -> Result<(), Replay> {
        if self.size == 0 {
            return Ok(());
        }
        if seq == self.top.wrapping_add(1) && seq != 0 {
            let len = self.words.len();
            let word = &mut self.words[(seq / 64) as usize & (len - 1)];
            // The first bit of a reused word: its former numbers have left the window.
            *word = if seq.is_multiple_of(64) { 1 } else { *word | 1 << (seq % 64) };
            self.top = seq;
            return Ok(());
        }
        self.mark_other(seq)
    }

    /// As [`mark`](Self::mark), for any number but the next.
    fn mark_other(&mut self, seq: u64) -> Result<(), Replay> {
        // A number right of the window, and not far from it, has one possible upper half.
        let is_next = seq > self.top && seq - self.top < 1 << 31;
        if !is_next {
            if self.esn && self.whole(seq as u32) != Some(seq) {
                return Err(Replay::TooOld); // the window advanced, and the inferred upper half would be another now
            }
            self.check_whole(seq)?;
        }
        if seq > self.top {
            let (old, new) = (self.top / 64, seq / 64);
            let stale = (new - old).min(self.words.len() as u64);
            for word in new - stale + 1..=new {
                self.words[word as usize & (self.words.len() - 1)] = 0;
            }
            self.top = seq;
        }
        self.set(seq);
        Ok(())
    }

    //= RFC 4303 §3.4.3 duplicates: a number that was accepted before, or is left of the window, is rejected
    #[inline]
    fn check_whole(&self, seq: u64) -> Result<(), Replay> {
        if seq == 0 {
            return Err(Replay::Zero);
        }
        match self.top.checked_sub(seq) {
            None => Ok(()),
            Some(age) if age >= u64::from(self.size) => Err(Replay::TooOld),
            Some(_) if self.is_set(seq) => Err(Replay::Seen),
            Some(_) => Ok(()),
        }
    }

    //= RFC 4303 §2.2.1 high-half
    /// The number whose lower half is `seq`: the one within, or first right of, the window (RFC 4303 App. A2.1).
    /// `None` when it would lie before the first one; Linux lets the ICV refuse that.
    #[inline]
    fn whole(&self, seq: u32) -> Option<u64> {
        let (high, low) = (self.top >> 32, self.top as u32);
        let bottom = low.wrapping_sub(self.size - 1);
        let high = if low >= self.size - 1 {
            // The window lies in one subspace: numbers below its bottom belong to the next one.
            if seq >= bottom { Some(high) } else { high.checked_add(1).filter(|&high| high <= u64::from(u32::MAX)) }
        } else {
            // It spans two: numbers at or above its bottom belong to the former one.
            if seq >= bottom { high.checked_sub(1) } else { Some(high) }
        };
        high.map(|high| high << 32 | u64::from(seq))
    }

    fn is_set(&self, seq: u64) -> bool {
        self.words[(seq / 64) as usize & (self.words.len() - 1)] >> (seq % 64) & 1 == 1
    }

    fn set(&mut self, seq: u64) {
        let len = self.words.len();
        self.words[(seq / 64) as usize & (len - 1)] |= 1 << (seq % 64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use Replay::{Seen, TooOld, Zero};

    //= test RFC 4303 §3.4.3 duplicates
    #[test]
    fn each_sequence_number_is_accepted_once() {
        let arrivals = [
            (0, Err(Zero)),
            (3, Ok(3)),
            (2, Ok(2)), // late, inside the window
            (3, Err(Seen)),
            (100, Ok(100)), // the window is now 69..=100
            (68, Err(TooOld)),
            (69, Ok(69)),
            (u32::MAX, Ok(0xffff_ffff)),
            (100, Err(TooOld)),
            (1, Err(TooOld)), // without ESN nothing comes after the last number
        ];
        let mut window = ReplayWindow::new(32, false, 0);
        for (seq, want) in arrivals {
            assert_eq!(window.check(seq), want, "{seq} against {window:?}");
            if let Ok(seq) = want {
                assert_eq!(window.mark(seq), Ok(()));
            }
        }
    }

    #[test]
    fn resized_window_refuses_numbers_refused_before() {
        for esn in [false, true] {
            let mut window = ReplayWindow::new(64, esn, 0);
            let marked = [1, 30, 70, 99, 100];
            marked.iter().for_each(|&seq| window.mark(seq).unwrap());
            let forgotten = (1..=36).rev();
            let all: Vec<u64> = [100, 99, 70].into_iter().chain(forgotten).collect();
            for (size, want) in [(32, vec![100, 99, 70]), (64, vec![100, 99, 70]), (65, all[..4].to_vec()), (4096, all)]
            {
                let resized = window.resized(size);
                assert_eq!(resized.seen().collect::<Vec<_>>(), want, "{size}");
                assert_eq!((resized.size(), resized.top(), resized.esn()), (size, 100, esn));
                assert_eq!(resized.check(99), Err(Seen));
            }
            // 30 was accepted, 31 was not: the old window no longer tells them apart.
            assert_eq!([30, 31, 37].map(|seq| window.resized(4096).check(seq)), [Err(Seen), Err(Seen), Ok(37)]);
            assert_eq!(window.resized(2).seen().collect::<Vec<_>>(), [100, 99]);
        }
        assert_eq!(ReplayWindow::new(0, false, 0).resized(32).check(1), Ok(1));
        assert_eq!(ReplayWindow::new(32, false, 7).resized(0).seen().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_window_of_zero_checks_nothing() {
        let mut window = ReplayWindow::new(0, false, 0);
        for seq in [0, 7, 7, u32::MAX, 1] {
            assert_eq!(window.check(seq), Ok(u64::from(seq)));
            assert_eq!(window.mark(u64::from(seq)), Ok(()));
        }
    }

    //= test RFC 4303 §2.2.1 high-half
    #[test]
    fn esn_high_bits_follow_rfc_4303_appendix_a() {
        const WRAP: u64 = 1 << 32;
        let cases = [
            // (top, seq on the wire, whole number)
            (WRAP - 1, u32::MAX - 1, Ok(WRAP - 2)),
            (WRAP - 1, 0, Ok(WRAP)),
            (WRAP - 1, u32::MAX - 63, Ok(WRAP - 64)), // the window's left edge
            (WRAP - 1, u32::MAX - 64, Ok(2 * WRAP - 65)), // left of it: the next subspace
            (WRAP + 10, u32::MAX, Ok(WRAP - 1)),      // spans two
            (WRAP + 10, 9, Ok(WRAP + 9)),
            (WRAP + 10, 11, Ok(WRAP + 11)),
            (WRAP + 10, 10, Err(Seen)),
            (WRAP + 10, (WRAP - 53) as u32, Ok(WRAP - 53)),
            (WRAP + 10, (WRAP - 54) as u32, Ok(2 * WRAP - 54)),
            (WRAP + 63, 0, Ok(WRAP)),
            (WRAP + 63, u32::MAX, Ok(2 * WRAP - 1)),
            (10, u32::MAX, Err(TooOld)), // before the first number
            (10, 0, Err(Zero)),
            (200, 0, Ok(WRAP)),
            (u64::MAX, 5, Err(TooOld)), // after the last number
        ];
        for (top, seq, want) in cases {
            assert_eq!(ReplayWindow::new(64, true, top).check(seq), want, "{seq:#x} at {top:#x}");
        }
    }

    #[test]
    fn mark_of_a_duplicate_authenticated_meanwhile_is_refused() {
        for esn in [false, true] {
            let mut window = ReplayWindow::new(64, esn, 0);
            let (first, second) = (window.check(5).unwrap(), window.check(5).unwrap());
            assert_eq!((window.mark(first), window.mark(second)), (Ok(()), Err(Seen)));
            let late = window.check(6).unwrap();
            window.mark(5000).unwrap();
            assert_eq!(window.mark(late), Err(TooOld));
            assert_eq!(window.top(), 5000);
        }
    }

    /// RFC 4303 §3.4.3 with a set in place of bits, and App. A in terms of nearness.
    struct Model {
        size: u64,
        esn: bool,
        top: u64,
        seen: BTreeSet<u64>,
    }

    impl Model {
        fn accept(&mut self, seq: u32) -> Result<u64, Replay> {
            let left = self.top as i128 - self.size as i128 + 1;
            let whole = if self.esn {
                // The smallest number with these lower bits that is not left of the window.
                let mut whole = i128::from(seq);
                if whole < left {
                    whole += (left - whole + (1 << 32) - 1) / (1 << 32) * (1 << 32);
                }
                if left < 0 && whole - (1 << 32) >= left {
                    return Err(TooOld);
                }
                u64::try_from(whole).map_err(|_| TooOld)?
            } else {
                u64::from(seq)
            };
            if whole == 0 {
                return Err(Zero);
            }
            if i128::from(whole) < left {
                return Err(TooOld);
            }
            if !self.seen.insert(whole) {
                return Err(Seen);
            }
            self.top = self.top.max(whole);
            let left = (self.top + 1).saturating_sub(self.size);
            self.seen = self.seen.split_off(&left);
            Ok(whole)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        /// 10⁷ numbers in 2000 runs, all near the top, in all modes and around every wrap.
        #[test]
        fn outcomes_are_those_of_the_reference_model(
            size in prop_oneof![1..=32u32, 33..=130u32, 1..=MAX_WINDOW],
            esn: bool,
            start in prop_oneof![Just(0u64), 0..10_000u64, (1 << 32) - 6000..(1u64 << 32) - 1, (7 << 32)..(7u64 << 32) + 6000],
            seed: u64,
        ) {
            let top = if esn { start } else { start.min(u64::from(u32::MAX) - 1) };
            let mut window = ReplayWindow::new(size, esn, top);
            let mut model = Model { size: u64::from(size), esn, top, seen: BTreeSet::from([top]) };
            let mut random = seed | 1;
            for _ in 0..5000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let spread = match random >> 52 {
                    0 => 1 << 33, // far ahead and, with ESN, ambiguous
                    1..=255 => 3 * i64::from(size) + 70,
                    256..=1500 => i64::from(size) + 3,
                    _ => 4,
                };
                let step = (random >> 20) as i64 % spread;
                let seq = window.top().wrapping_add_signed(if random & 64 == 0 { step } else { -step }) as u32;
                let got = window.check(seq);
                prop_assert_eq!(got, model.accept(seq), "{} against top {}", seq, window.top());
                if let Ok(seq) = got {
                    prop_assert_eq!(window.mark(seq), Ok(()));
                }
                prop_assert_eq!(window.top(), model.top);
            }
        }
    }
}

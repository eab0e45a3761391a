//! The replay window against a plain model of RFC 4303: a set of numbers, and Appendix A line by line. Packets arrive
//! out of order, repeated or forged, and are in decryption while others come and go.

use std::collections::BTreeSet;

use ipsec::replay::{Replay, ReplayWindow};
use xfrm::MAX_WINDOW;

/// Number of packets that arrive in each mode.
const ARRIVALS: usize = if cfg!(debug_assertions) { 1_000_000 } else { 10_000_000 };

/// Packets of one run.
const RUN: usize = 10_000;

/// RFC 4303 §3.4.3 and Appendix A2.
#[derive(Clone, Debug)]
struct Model {
    size: u64,
    esn: bool,
    top: u64,
    seen: BTreeSet<u64>,
}

impl Model {
    fn new(size: u32, esn: bool, top: u64) -> Self {
        Self { size: size.into(), esn, top, seen: BTreeSet::from([top]) }
    }

    /// Whole number with the lower half `low` (Appendix A2.2, by its cases).
    fn whole(&self, low: u32) -> Option<u64> {
        if !self.esn {
            return Some(low.into());
        }
        let (high, top_low, seq) = (self.top >> 32, self.top & 0xffff_ffff, u64::from(low));
        let upper = if top_low >= self.size - 1 {
            // Case A: the window lies in one subspace.
            if seq + self.size > top_low { high } else { high + 1 }
        } else {
            // Case B: it spans two.
            let bottom = (1 << 32) + top_low + 1 - self.size;
            if seq >= bottom { high.checked_sub(1)? } else { high }
        };
        (upper <= 0xffff_ffff).then_some(upper << 32 | seq)
    }

    /// Tells whether a number is left of the window.
    const fn is_left(&self, seq: u64) -> bool {
        self.top.saturating_sub(seq) >= self.size
    }

    fn check(&self, low: u32) -> Result<u64, Replay> {
        let seq = self.whole(low).ok_or(Replay::TooOld)?;
        if seq == 0 {
            Err(Replay::Zero)
        } else if self.is_left(seq) {
            Err(Replay::TooOld)
        } else if self.seen.contains(&seq) {
            Err(Replay::Seen)
        } else {
            Ok(seq)
        }
    }

    /// The second check, after a correct ICV.
    fn mark(&mut self, seq: u64) -> Result<(), Replay> {
        if self.check(seq as u32)? != seq {
            return Err(Replay::TooOld);
        }
        self.seen.insert(seq);
        self.top = self.top.max(seq);
        while self.seen.first().is_some_and(|&oldest| self.is_left(oldest)) {
            self.seen.pop_first();
        }
        Ok(())
    }
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    /// The sender's number.
    seq: u64,
    /// Whether its ICV is wrong for any number.
    forged: bool,
}

/// Results of a run.
#[derive(Debug, Default)]
struct Tally {
    accepted: u64,
    seen: u64,
    too_old: u64,
    forged: u64,
    /// Refused only by the second check.
    in_flight: u64,
    /// Packets with a wrongly inferred upper half, so that the ICV was wrong.
    misread: u64,
}

/// One receiver for `RUN` packets; up to `depth` are in decryption at once and finish in any order.
fn run(size: u32, esn: bool, start: u64, depth: usize, rng: &mut Rng, tally: &mut Tally) {
    let mut window = ReplayWindow::new(size, esn, start);
    let mut model = Model::new(size, esn, start);
    let mut accepted = BTreeSet::new();
    let mut away = Vec::<(Arrival, u64)>::new();
    let (mut next, last) = (start + 1, if esn { u64::MAX } else { u64::from(u32::MAX) });
    let spread = u64::from(size) + 1 + rng.below(u64::from(size) + 2);
    for _ in 0..RUN {
        let seq = match rng.below(20) {
            0..10 => next,
            10..17 => next.saturating_sub(1 + rng.below(spread)),
            17 => next.saturating_add(rng.below(spread)),
            18 => next.saturating_sub(rng.below(4)),
            _ => next.saturating_add(rng.below(1 << 31)),
        };
        let arrival = Arrival { seq: seq.clamp(start + 1, last), forged: rng.below(10) == 0 };
        if !arrival.forged && arrival.seq >= next {
            // Only a forger sends numbers far ahead; a jump of a few windows is normal.
            let ahead = arrival.seq - next;
            if ahead <= spread {
                next = arrival.seq.saturating_add(1);
            }
        }
        let arrival = Arrival { forged: arrival.forged || arrival.seq > next.saturating_add(spread), ..arrival };
        let got = window.check(arrival.seq as u32);
        assert_eq!(got, model.check(arrival.seq as u32), "{arrival:?} against {model:?}");
        match got {
            Ok(guess) => away.push((arrival, guess)),
            Err(Replay::Seen) => tally.seen += 1,
            Err(Replay::TooOld) => tally.too_old += 1,
            Err(Replay::Zero) => {}
        }
        while away.len() > depth || !away.is_empty() && rng.below(3) == 0 {
            let (Arrival { seq, forged }, guess) = away.swap_remove(rng.below(away.len() as u64) as usize);
            if forged || guess != seq {
                // The ICV is wrong, and nothing changes.
                (tally.forged, tally.misread) = (tally.forged + u64::from(forged), tally.misread + u64::from(!forged));
                continue;
            }
            let got = window.mark(seq);
            assert_eq!(got, model.mark(seq), "{seq} marked in {model:?}");
            if got.is_ok() {
                assert!(accepted.insert(seq), "{seq} is accepted twice");
                tally.accepted += 1;
            } else {
                tally.in_flight += 1;
            }
            assert_eq!(window.top(), model.top);
        }
    }
    assert!(window.seen().take(50).eq(model.seen.iter().rev().copied().filter(|&seq| seq > 0).take(50)), "{model:?}");
}

/// Runs one mode from each of these starts, with none, few and many packets in flight.
fn mode(sizes: &[u32], esn: bool, starts: &[u64]) -> Tally {
    let mut tally = Tally::default();
    for seed in 0..(ARRIVALS / RUN) as u64 {
        let mut rng = Rng(seed);
        let size = sizes[rng.below(sizes.len() as u64) as usize];
        let start = starts[rng.below(starts.len() as u64) as usize];
        let depth = [0, 8, 200][rng.below(3) as usize];
        run(size, esn, start, depth, &mut rng, &mut tally);
    }
    let Tally { accepted, seen, too_old, forged, in_flight, .. } = tally;
    assert!([accepted, seen, too_old, forged, in_flight].iter().all(|&count| count > 1000), "{tally:?}");
    tally
}

//= test RFC 4303 §3.4.3 duplicates
#[test]
fn windows_of_one_word_agree_with_the_model() {
    mode(&[1, 2, 7, 31, 32], false, &[0, 1, 100, (1 << 32) - 12_000]);
}

#[test]
fn bitmaps_agree_with_the_model() {
    mode(&[33, 63, 64, 65, 128, 1000, MAX_WINDOW], false, &[0, 5000, (1 << 32) - 12_000]);
}

//= test RFC 4303 §2.2.1 high-half
#[test]
fn extended_numbers_agree_with_the_model_around_every_wrap() {
    let wrap = 1_u64 << 32;
    let starts = [0, 10, wrap - 40, wrap - 4100, wrap - 1, wrap, wrap + 20, 7 * wrap - 5000, u64::MAX - 12_000];
    let tally = mode(&[1, 32, 64, 65, 1024, MAX_WINDOW], true, &starts);
    assert!(tally.misread > 1000, "{tally:?}");
}

//= test RFC 4303 §3.4.3 window-after-icv
#[test]
fn forged_far_number_does_not_move_the_window() {
    let wrap = 1_u64 << 32;
    for (esn, top) in [(false, 1000), (true, 1000), (true, wrap - 3), (true, wrap + 3)] {
        let mut window = ReplayWindow::new(64, esn, top);
        for ahead in [1, 63, 64, 1 << 16, (1 << 31) - 1, 1 << 31, u32::MAX - 70] {
            let seq = (top as u32).wrapping_add(ahead);
            // The first check passes, and the ICV is wrong.
            let _ = window.check(seq);
        }
        assert_eq!(window.top(), top);
        for near in 1..64 {
            let seq = top - near;
            assert_eq!((window.check(seq as u32), window.mark(seq)), (Ok(seq), Ok(())), "{seq} after forgeries");
        }
    }
}

#[test]
fn first_of_two_copies_that_comes_back_is_accepted() {
    let wrap = 1_u64 << 32;
    for (esn, top, low) in [(false, 10, 11_u32), (true, 10, 11), (true, wrap - 2, 5), (true, wrap + 5, u32::MAX)] {
        let mut window = ReplayWindow::new(64, esn, top);
        let copies = [window.check(low).unwrap(), window.check(low).unwrap()];
        assert_eq!(copies[0], copies[1]);
        assert_eq!(copies.map(|seq| window.mark(seq)), [Ok(()), Err(Replay::Seen)], "{low:#x} after {top:#x}");
    }
}

/// The window advances by 2³² while a packet is in decryption: its lower half then stands for another number.
#[test]
fn stale_esn_guess_is_refused_by_the_second_check() {
    let wrap = 1_u64 << 32;
    let mut window = ReplayWindow::new(64, true, 100);
    let early = window.check(110).unwrap();
    let mut top = 100;
    while top < wrap + 200 {
        top = window.check((top as u32).wrapping_add(1 << 30)).unwrap();
        window.mark(top).unwrap();
    }
    assert_eq!((early, window.mark(early)), (110, Err(Replay::TooOld)));
    assert_eq!(window.top(), top);
}

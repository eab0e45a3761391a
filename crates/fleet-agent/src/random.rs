//! Random numbers for waiting times and names of runs (SplitMix64, with a seed of the system's).

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Generator.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Generator with a seed of the system's.
    pub(crate) fn new() -> Self {
        // Each `RandomState` has keys of the system's.
        Self(RandomState::new().build_hasher().finish())
    }

    pub(crate) const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time below `end`.
    pub(crate) fn below(&mut self, end: Duration) -> Duration {
        let end = end.as_nanos().max(1) as u64;
        Duration::from_nanos(self.bits() % end)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, (self.bits() % (at as u64 + 1)) as usize);
        }
    }
}

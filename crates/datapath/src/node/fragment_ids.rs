//! Identifications of fragments that this node makes.

use std::hash::{BuildHasher, RandomState};

/// Generator of unpredictable identifications for fragments of this node (RFC 7739).
#[derive(Debug, Default)]
pub(crate) struct FragmentIds {
    key: RandomState,
    used: u64,
}

impl FragmentIds {
    /// Next identification, not used recently.
    pub(crate) fn next(&mut self) -> u32 {
        self.used = self.used.wrapping_add(1);
        self.key.hash_one(self.used) as u32
    }
}

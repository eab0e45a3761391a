//! Count of references, by which the last one frees what they refer to.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::primitives::{AtomicUsize, fence};

/// Number of references to a value. One step may drop several.
#[derive(Debug)]
pub struct RefCount(AtomicUsize);

impl RefCount {
    /// Count of a value without references.
    pub fn none() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Sets the count to one reference.
    #[inline]
    pub fn set_one(&mut self) {
        self.0.store(1, Relaxed);
    }

    /// Counts one more reference, made of an existing one.
    ///
    /// # Panics
    /// References were forgotten until the count overflowed, as in an `Arc`.
    #[inline]
    pub fn add(&self) {
        // The existing reference keeps the count above zero, so the increment needs no ordering.
        let count = self.0.fetch_add(1, Relaxed);
        assert!(count <= isize::MAX as usize, "references without end");
    }

    /// Tells whether there is one reference alone, the caller's. If so, writes through dropped references are visible.
    #[inline]
    pub fn is_one(&self) -> bool {
        self.0.load(Acquire) == 1
    }

    /// Drops `count` references, all of them the caller's. Tells whether these were the last: if so, writes through
    /// all others are visible.
    #[inline]
    #[must_use]
    pub fn release(&self, count: usize) -> bool {
        // Only an existing reference can create a new one, so a count that is the caller's alone stays.
        let had_all = self.0.load(Acquire) == count;
        if !had_all && self.0.fetch_sub(count, Release) != count {
            return false;
        }
        fence(Acquire);
        true
    }

    /// Number of references, perhaps an old one.
    pub fn get(&self) -> usize {
        self.0.load(Relaxed)
    }
}

//! Progress of the reading of a long file, for another thread.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Length of a file, and of its elements that are read.
#[derive(Debug, Default)]
pub struct Meter {
    len: AtomicUsize,
    read: AtomicUsize,
}

impl Meter {
    pub(super) fn begin(&self, len: usize) {
        self.len.store(len, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
    }

    pub(super) fn add(&self, len: usize) {
        self.read.fetch_add(len, Ordering::Relaxed);
    }

    /// Bytes that are read, and all; both are 0 before the file is there.
    pub fn get(&self) -> (u64, u64) {
        let len = self.len.load(Ordering::Relaxed);
        // A file that is no TOML in parts is read twice.
        (self.read.load(Ordering::Relaxed).min(len) as u64, len as u64)
    }
}

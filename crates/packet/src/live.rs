//! Bytes that the program has allocated and not freed, by which the budget decides and which the allocator counts.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Bytes allocated and not freed by all threads, without their [remainders](REMAINDER).
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Size of a thread's remainder at which it is added to the sum of all threads.
const MOST: i64 = 64 << 10;

thread_local! {
    /// Bytes allocated less bytes freed, since the last addition to [`LIVE`]. Without a destructor: an allocator may not register one.
    static REMAINDER: Cell<i64> = const { Cell::new(0) };
}

/// The bytes. Up to 64 KiB of each thread are missing.
pub(crate) fn bytes() -> u64 {
    LIVE.load(Relaxed).max(0) as u64
}

/// Adds this thread's remainder to the sum.
pub(crate) fn settle() {
    LIVE.fetch_add(REMAINDER.with(Cell::take), Relaxed);
}

/// Counts bytes that this thread allocates, or with a negative number frees.
#[inline]
pub(crate) fn change(bytes: i64) {
    REMAINDER.with(|own| {
        let remainder = own.get() + bytes;
        if remainder.unsigned_abs() < MOST as u64 {
            own.set(remainder);
        } else {
            own.set(0);
            LIVE.fetch_add(remainder, Relaxed);
        }
    });
}

/// This thread's remainder.
#[cfg(test)]
pub(crate) fn remainder() -> i64 {
    REMAINDER.with(Cell::get)
}

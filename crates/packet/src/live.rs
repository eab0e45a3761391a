//! Bytes that the program has allocated and not freed, by which the budget decides and which the allocator counts.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Bytes allocated and not freed by all threads, without their [remainders](REMAINDER).
static LIVE: AtomicI64 = AtomicI64::new(0);

/// Size of a thread's remainder at which it is added to the sum of all threads.
const MOST: i64 = 64 << 10;

/// Remainder of a thread whose end is not yet awaited.
const NEW: i64 = i64::MIN / 2;

thread_local! {
    /// Bytes allocated less bytes freed, since the last addition to [`LIVE`]. Without a destructor, so that it exists as long as the
    /// thread.
    static REMAINDER: Cell<i64> = const { Cell::new(NEW) };

    /// Variable whose destructor runs after those of all that the thread has used later, and after the thread's closure is freed.
    static END: End = const { End };
}

/// End of a thread, which adds the remainder.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        settle();
    }
}

/// The bytes. Up to 64 KiB of each thread are missing.
pub(crate) fn bytes() -> u64 {
    LIVE.load(Relaxed).max(0) as u64
}

/// Adds this thread's remainder to the sum.
pub(crate) fn settle() {
    REMAINDER.with(|own| {
        if own.get() != NEW {
            LIVE.fetch_add(own.take(), Relaxed);
        }
    });
}

/// Counts bytes that this thread allocates, or with a negative number frees.
#[inline]
pub(crate) fn change(bytes: i64) {
    REMAINDER.with(|own| {
        let remainder = own.get() + bytes;
        if remainder.unsigned_abs() < MOST as u64 {
            own.set(remainder);
        } else {
            add(own, remainder);
        }
    });
}

/// Adds a remainder that is large, or the first one of a thread.
#[cold]
fn add(own: &Cell<i64>, remainder: i64) {
    own.set(0);
    if remainder < NEW / 2 {
        // A global allocator may use thread-local storage with a destructor: the standard library allocates for it elsewhere.
        let _ = END.try_with(|_| ());
        change(remainder - NEW);
    } else {
        LIVE.fetch_add(remainder, Relaxed);
    }
}

/// This thread's remainder.
#[cfg(test)]
pub(crate) fn remainder() -> i64 {
    REMAINDER.with(|own| if own.get() == NEW { 0 } else { own.get() })
}

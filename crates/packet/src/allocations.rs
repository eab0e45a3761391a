//! The system's allocator with a count, for programs that report what a packet costs.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator. A program that wants [`Allocations::count`] has it as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocations;

/// How often memory was asked for, by any thread.
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How often this thread has asked.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Allocations {
    /// How often this program has asked for memory so far.
    pub fn count() -> u64 {
        COUNT.load(Relaxed)
    }

    /// How often this thread has asked for memory so far, whatever others do at the same time.
    pub fn of_thread() -> u64 {
        OF_THREAD.get()
    }

    fn note() {
        COUNT.fetch_add(1, Relaxed);
        // A thread that is ending may have no counter any more.
        let _ = OF_THREAD.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Allocations {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

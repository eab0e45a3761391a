//! The system's allocator with a count, for programs that report allocations per packet, and zeroing of freed memory,
//! for programs that hold keys.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The system's allocator with a count and zeroing. Libraries that parse, store or send keys free copies that only the
/// allocator can reach. A program installs this type as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocations;

/// Allocations by all threads.
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Allocations by this thread.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Allocations {
    /// Allocations of this program so far.
    pub fn count() -> u64 {
        COUNT.load(Relaxed)
    }

    /// Allocations of this thread so far.
    pub fn of_thread() -> u64 {
        OF_THREAD.get()
    }

    /// Returns free heap pages to the system. The C library keeps free pages between blocks in use, which after a large
    /// change may be most of the heap. The call locks each arena in turn.
    pub fn trim() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: no preconditions; the C library takes its own locks (malloc_trim(3)).
        unsafe {
            libc::malloc_trim(0);
        }
    }

    fn note() {
        COUNT.fetch_add(1, Relaxed);
        // An ending thread may have dropped its counter.
        let _ = OF_THREAD.try_with(|count| count.set(count.get() + 1));
    }
}

/// Size above which the C library maps an allocation separately (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)). Growth
/// moves the mapped pages without a copy, and a free unmaps them, so nothing is left to zero.
const PAGES_OF_ITS_OWN: usize = 32 << 20;

// SAFETY: every call goes to the system's allocator unchanged, except a `realloc` that could leave the old contents in
// freed memory: that call is an allocation, a copy and a deallocation, like the trait's default.
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
        if layout.size() > PAGES_OF_ITS_OWN && size > layout.size() {
            Self::note();
            // SAFETY: as the caller promises.
            return unsafe { System.realloc(start, layout, size) };
        }
        // SAFETY: the caller promises that `size`, rounded up to the alignment, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        // SAFETY: `size` is not zero, as the caller promises.
        let moved = unsafe { self.alloc(new_layout) };
        if !moved.is_null() {
            // SAFETY: both are allocations of at least so many bytes, and they do not overlap.
            unsafe { ptr::copy_nonoverlapping(start, moved, layout.size().min(size)) };
            // SAFETY: as the caller promises for `start`, which is not used afterwards.
            unsafe { self.dealloc(start, layout) };
        }
        moved
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if layout.size() <= PAGES_OF_ITS_OWN {
            // SAFETY: the allocation has `layout.size()` bytes, and the caller does not use them afterwards.
            unsafe { libc::explicit_bzero(start.cast(), layout.size()) };
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_moved_by_realloc_keeps_its_bytes() {
        for (from, to) in [(1, 8), (64, 16), (1000, 100_000), (PAGES_OF_ITS_OWN + 1, PAGES_OF_ITS_OWN + 4097)] {
            let layout = Layout::from_size_align(from, 16).unwrap();
            // SAFETY: the size is not zero.
            let start = unsafe { Allocations.alloc(layout) };
            // SAFETY: the allocation has so many bytes.
            unsafe { start.write_bytes(7, from) };
            // SAFETY: `start` was allocated above with this layout; the new size is not zero.
            let moved = unsafe { Allocations.realloc(start, layout, to) };
            // SAFETY: so many bytes have been written, and are kept.
            let kept = unsafe { std::slice::from_raw_parts(moved, from.min(to)) };
            assert!(kept.iter().all(|&byte| byte == 7), "from {from} to {to}");
            // SAFETY: `moved` was reallocated to this size.
            unsafe { Allocations.dealloc(moved, Layout::from_size_align(to, 16).unwrap()) };
        }
    }
}

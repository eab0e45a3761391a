//! The system's allocator with counts, for programs that report allocations per packet or have a limit of memory, and
//! zeroing of freed memory, for programs that hold keys.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::budget::{self, Budget};
use crate::live;

/// The system's allocator with counts and zeroing. Libraries that parse, store or send keys free copies that only the
/// allocator can reach. A program installs this type as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Allocations;

/// Allocations by all threads.
static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Allocations of a thread. Without a destructor: an allocator may not register one.
    static OF_THREAD: Cell<u64> = const { Cell::new(0) };
}

impl Allocations {
    /// Allocations of this program so far.
    pub fn count() -> u64 {
        COUNT.load(Relaxed)
    }

    /// Allocations of this thread so far.
    pub fn of_thread() -> u64 {
        OF_THREAD.with(Cell::get)
    }

    /// Bytes that this program has allocated and not freed, with the C library's headers of blocks. Up to 64 KiB of each
    /// thread are missing.
    pub fn live() -> u64 {
        live::bytes()
    }

    /// Adds this thread's remainder of less than 64 KiB to [`live`](Self::live), as the end of a thread does.
    pub fn settle() {
        live::settle();
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

    /// Makes all threads that start later share one heap of the C library, which otherwise reserves address space for
    /// each.
    pub fn share_one_heap() {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: no preconditions (mallopt(3)).
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
        }
    }

    /// Counts an allocation.
    #[inline]
    fn note(size: usize) {
        COUNT.fetch_add(1, Relaxed);
        // The count has no destructor, so that it exists as long as the thread.
        OF_THREAD.with(|own| own.set(own.get() + 1));
        live::change(block(size));
        if size >= budget::LARGE {
            Budget::note_large(size, true);
        }
    }

    /// Counts the end of an allocation.
    #[inline]
    fn note_free(size: usize) {
        live::change(-block(size));
        if size >= budget::LARGE {
            Budget::note_large(size, false);
        }
    }

    /// Allocates by `allocate`, which is called again if it fails and the [`Budget`] has address space in reserve.
    #[inline]
    fn allocated(size: usize, allocate: impl Fn() -> *mut u8) -> *mut u8 {
        let mut start = allocate();
        if start.is_null() && Budget::release_reserve() {
            start = allocate();
        }
        if !start.is_null() {
            Self::note(size);
        }
        start
    }
}

/// Bytes that the C library uses for an allocation of `size` bytes: a multiple of 16, with a header of 8, at least 32.
#[inline]
const fn block(size: usize) -> i64 {
    let block = (size as u64 + 8).next_multiple_of(16);
    if block < 32 { 32 } else { block as i64 }
}

/// Size above which the C library maps an allocation separately (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)). Growth
/// moves the mapped pages without a copy, and a free unmaps them, so nothing is left to zero.
const PAGES_OF_ITS_OWN: usize = 32 << 20;

// SAFETY: every call goes to the system's allocator unchanged, a second time if it fails, except a `realloc` that could leave the old contents in
// freed memory: that call is an allocation, a copy and a deallocation, like the trait's default.
unsafe impl GlobalAlloc for Allocations {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::allocated(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        Self::allocated(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() > PAGES_OF_ITS_OWN && size > layout.size() {
            // SAFETY: as the caller promises; a failed call leaves the allocation as it was.
            let moved = Self::allocated(size, || unsafe { System.realloc(start, layout, size) });
            if !moved.is_null() {
                Self::note_free(layout.size());
            }
            return moved;
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
        Self::note_free(layout.size());
        // Miri does not know the function.
        if layout.size() <= PAGES_OF_ITS_OWN && !cfg!(miri) {
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
            assert!(kept == vec![7; kept.len()], "from {from} to {to}");
            // SAFETY: `moved` was reallocated to this size.
            unsafe { Allocations.dealloc(moved, Layout::from_size_align(to, 16).unwrap()) };
        }
    }

    #[test]
    fn live_bytes_return_to_their_number_with_each_free() {
        // The program of the tests has another allocator, so that these calls alone are counted, but for those of other
        // tests of this type.
        let remainder = live::remainder;
        let counted = |size: usize| {
            let layout = Layout::from_size_align(size, 16).unwrap();
            let before = remainder();
            // SAFETY: the size is not zero.
            let start = unsafe { Allocations.alloc_zeroed(layout) };
            let during = remainder() - before;
            // SAFETY: allocated above with this layout.
            unsafe { Allocations.dealloc(start, layout) };
            assert_eq!(remainder(), before, "{size} bytes");
            during
        };
        // What malloc_usable_size(3) reports, and the header.
        assert_eq!([1, 24, 25, 40, 41, 1000].map(counted), [32, 32, 48, 48, 64, 1008]);
        let layout = Layout::from_size_align(100_000, 16).unwrap();
        let before = (Allocations::live() as i64, remainder());
        // SAFETY: the size is not zero.
        let start = unsafe { Allocations.alloc(layout) };
        assert_eq!((remainder(), before.1), (0, 0), "a block above 64 KiB is counted at once");
        // SAFETY: allocated above with this layout.
        unsafe { Allocations.dealloc(start, layout) };
    }
}

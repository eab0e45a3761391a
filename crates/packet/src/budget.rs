//! Limit of the memory of the process, and the decisions that depend on it.
//!
//! A thread of the program measures from time to time how much memory the process may still take, and
//! [sets](Budget::set) it. Between two measurements the allocator's count of [live bytes](crate::Allocations::live) tells how
//! much of it is left. A decision is two loads and a comparison.

use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::live;

/// Size of an allocation above which the next growth of a table may take more than half of the reserve.
pub(crate) const LARGE: usize = 8 << 20;

/// Live bytes above which pools give no new page.
static PAGES: AtomicI64 = AtomicI64::new(i64::MAX);

/// Live bytes above which requests that add are refused.
static REQUESTS: AtomicI64 = AtomicI64::new(i64::MAX);

/// Number of live allocations of [`LARGE`] bytes or more, by size.
static SIZES: [AtomicU32; CLASSES] = [const { AtomicU32::new(0) }; CLASSES];

/// Number of classes of sizes: four for each power of two.
const CLASSES: usize = 96;

/// Address space that is given back when an allocation fails; null if there is none.
static ADDRESSES: AtomicPtr<libc::c_void> = AtomicPtr::new(ptr::null_mut());

/// Text of a refusal.
static TEXT: Mutex<String> = Mutex::new(String::new());

/// Limit of the memory of this process. It has a limit once [`set`](Self::set) is called, and concerns all threads.
#[derive(Debug)]
pub struct Budget;

/// Refusal of a request that adds, for lack of memory: the limit and its source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OverBudget(String);

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OverBudget {}

impl Budget {
    /// Bytes that requests leave to packets in flight, to control and to the growth of small tables.
    pub const RESERVE: u64 = 16 << 20;

    /// Sets that the process may allocate `room` bytes more than `live`, the bytes that were live at the measurement; a
    /// refusal's text is `text`.
    pub fn set(live: u64, room: i64, text: String) {
        PAGES.store((live as i64).saturating_add(room), Relaxed);
        Self::set_requests();
        *TEXT.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    /// Refuses a request that adds if the reserve would become less.
    ///
    /// # Errors
    /// The refusal's text.
    pub fn admit() -> Result<(), OverBudget> {
        Self::admit_bytes(0)
    }

    /// Refuses an operation that takes `bytes` more if the reserve would become less.
    ///
    /// # Errors
    /// The refusal's text.
    pub fn admit_bytes(bytes: u64) -> Result<(), OverBudget> {
        match Self::has_room_for(bytes) {
            true => Ok(()),
            false => Err(OverBudget(TEXT.lock().unwrap_or_else(PoisonError::into_inner).clone())),
        }
    }

    /// Whether [`admit_bytes`](Self::admit_bytes) accepts.
    #[inline]
    pub fn has_room_for(bytes: u64) -> bool {
        signed(live::bytes().saturating_add(bytes)) <= REQUESTS.load(Relaxed)
    }

    /// Whether a pool may allocate a page.
    #[inline]
    pub(crate) fn has_page() -> bool {
        signed(live::bytes()) < PAGES.load(Relaxed)
    }

    /// Whether half of the reserve is left after a reply or a copy of `bytes`.
    pub fn spares(bytes: u64) -> bool {
        signed(live::bytes().saturating_add(bytes).saturating_add(Self::RESERVE / 2)) <= PAGES.load(Relaxed)
    }

    /// Whether less than half of the reserve is left, so that pools free the pages that come back, and captures lose
    /// packets.
    #[inline]
    pub fn is_short() -> bool {
        signed(live::bytes() + Self::RESERVE / 2) > PAGES.load(Relaxed)
    }

    /// Bytes beside the reserve that requests leave free: a table's storage that grows is copied to twice its size.
    pub fn for_growth() -> u64 {
        growth(SIZES.iter().rposition(|count| count.load(Relaxed) > 0))
    }

    fn set_requests() {
        let kept = signed(Self::RESERVE + Self::for_growth());
        REQUESTS.store(PAGES.load(Relaxed).saturating_sub(kept), Relaxed);
    }

    /// Counts the begin or end of a large allocation.
    #[cold]
    pub(crate) fn note_large(size: usize, begins: bool) {
        let count = &SIZES[class(size)];
        if begins {
            count.fetch_add(1, Relaxed);
        } else {
            count.fetch_sub(1, Relaxed);
        }
        Self::set_requests();
    }

    /// Keeps address space in reserve for the next allocation that fails, if there is none. False: the system has none.
    pub fn keep_reserve() -> bool {
        if !ADDRESSES.load(Relaxed).is_null() {
            return true;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), Self::RESERVE as usize, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return false;
        }
        let old = ADDRESSES.swap(start, Relaxed);
        if !old.is_null() {
            Self::unmap(old);
        }
        true
    }

    /// Gives the address space in reserve back to the system. False: there was none. Until the next measurement all
    /// requests that add are refused.
    #[cold]
    pub(crate) fn release_reserve() -> bool {
        let start = ADDRESSES.swap(ptr::null_mut(), Relaxed);
        if start.is_null() {
            return false;
        }
        REQUESTS.store(i64::MIN, Relaxed);
        PAGES.store(i64::MIN, Relaxed);
        Self::unmap(start);
        true
    }

    fn unmap(start: *mut libc::c_void) {
        // SAFETY: `keep_reserve` made the mapping; it was taken out of the static, so no other thread unmaps it.
        unsafe { libc::munmap(start, Self::RESERVE as usize) };
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Class of a size of [`LARGE`] bytes or more.
fn class(size: usize) -> usize {
    let power = size.ilog2();
    let quarter = (size >> (power - 2)) & 3;
    (((power - LARGE.ilog2()) as usize) * 4 + quarter).min(CLASSES - 1)
}

/// Twice the largest size of a class.
fn growth(class: Option<usize>) -> u64 {
    class.map_or(0, |class| 2 * (((class % 4 + 5) as u64) << (class / 4) << (LARGE.ilog2() - 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_twice_the_size_or_at_most_a_quarter_more() {
        assert_eq!(growth(None), 0);
        for size in [LARGE, LARGE + 1, 9 << 20, 10 << 20, 16 << 20, (32 << 20) - 1, 100 << 20, 3 << 30, 1 << 40] {
            let (size, needed) = (size as u64, growth(Some(class(size))));
            assert!(needed > 2 * size - 2 && needed <= 2 * size + size / 2 + 2, "{needed} for {size}");
        }
        assert_eq!(class(usize::MAX), CLASSES - 1);
    }
}

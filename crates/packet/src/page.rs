//! A page: memory that packets point into, counted by its users and given back to its pool by the last one.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::fence;

use crate::pool::{Memory, Shared};

/// Where every page starts: a cache line, so that headers laid out from a page's start do not straddle two.
const ALIGN: usize = 64;

/// A counted reference to one page.
///
/// Invariant 1: bytes are written only through a `Buf` that alone covers them (invariant 2 in `buf.rs`).
pub(crate) struct Page(ManuallyDrop<Arc<PageMem>>);

/// The page itself.
pub(crate) struct PageMem {
    start: NonNull<u8>,
    len: u32,
    pub(crate) storage: Storage,
}

/// Whose memory a page is.
pub(crate) enum Storage {
    /// Ours, from this pool: an allocation of its own, or a stretch of the pool's slab.
    Pool(Arc<Shared>),
    /// Somebody else's: a guest's, a page cache's. Never written.
    Foreign(#[expect(dead_code, reason = "keeps the memory alive")] Box<dyn AsRef<[u8]> + Send + Sync>),
}

// SAFETY: the memory is plain bytes, reached only through `Buf`, whose invariant keeps writers and readers apart.
unsafe impl Send for PageMem {}
// SAFETY: as above; `PageMem` itself has no interior mutability beyond those bytes.
unsafe impl Sync for PageMem {}

impl PageMem {
    /// Fresh zeroed memory of `len` bytes for the pool `home`.
    pub(crate) fn for_pool(home: Arc<Shared>, len: usize) -> Arc<Self> {
        let layout = Self::layout(len);
        // SAFETY: `layout` has a size above zero, asserted in `Self::layout`.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Arc::new(Self { start, len: len as u32, storage: Storage::Pool(home) })
    }

    /// Bytes of the slab of `home`, which lives as long as that.
    pub(crate) fn of_slab(home: Arc<Shared>, start: NonNull<u8>, len: usize) -> Arc<Self> {
        Arc::new(Self { start, len: len as u32, storage: Storage::Pool(home) })
    }

    fn layout(len: usize) -> Layout {
        assert!((1..=1 << 30).contains(&len), "a page of {len} bytes");
        Layout::from_size_align(len, ALIGN).expect("size and alignment are small")
    }
}

impl Drop for PageMem {
    fn drop(&mut self) {
        if let Storage::Pool(home) = &self.storage {
            if home.slab().is_some() {
                return home.put_anew(self.start);
            }
            home.forget();
            // SAFETY: `for_pool` allocated exactly this, and nobody refers to it any more.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len as usize)) }
        }
    }
}

impl Page {
    pub(crate) fn new(mem: Arc<PageMem>) -> Self {
        Self(ManuallyDrop::new(mem))
    }

    /// A page over memory that is not ours, which stays readable as long as the page lives.
    pub(crate) fn foreign(owner: Box<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let bytes: &[u8] = (*owner).as_ref();
        let start = NonNull::from(bytes).cast();
        let len = u32::try_from(bytes.len()).expect("foreign memory below 4 GiB");
        Self::new(Arc::new(PageMem { start, len, storage: Storage::Foreign(owner) }))
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.0.len
    }

    /// Tells whether this is the only reference. What others did with the page before they let go has then happened.
    #[inline]
    pub(crate) fn is_sole(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    /// The pool that it goes home to, if this is the only reference to it.
    #[inline]
    fn home_if_sole(&self) -> Option<&Arc<Shared>> {
        if Arc::strong_count(&self.0) > 1 {
            return None;
        }
        // Nobody makes weak references. What others did with the page before they let go has then happened.
        fence(Acquire);
        match &self.0.storage {
            Storage::Pool(home) => Some(home),
            Storage::Foreign(_) => None,
        }
    }

    /// Lets go of this page and of those after it that go home to the same pool. `next` gives the next one if that
    /// fulfils what it is asked.
    #[inline]
    pub(crate) fn drop_with(self, mut next: impl FnMut(&dyn Fn(&Self) -> bool) -> Option<Self>) {
        let Some(home) = self.home_if_sole().map(Arc::clone) else { return };
        let goes_there = |page: &Self| page.home_if_sole().is_some_and(|other| Arc::ptr_eq(other, &home));
        home.put_all(std::iter::once(self).chain(std::iter::from_fn(|| next(&goes_there))).map(Self::into_mem));
    }

    fn into_mem(self) -> Arc<PageMem> {
        let mut page = ManuallyDrop::new(self);
        // SAFETY: `page.0` is not used again: its drop never comes.
        unsafe { ManuallyDrop::take(&mut page.0) }
    }

    /// Whether it is of a pool that has a limit and half of its pages or more out, and is not `mem`'s.
    #[inline]
    pub(crate) fn is_scarce(&self, mem: &Memory) -> bool {
        match &self.0.storage {
            Storage::Pool(home) => home.is_scarce() && !mem.has_pool(home),
            Storage::Foreign(_) => false,
        }
    }

    /// Its address.
    #[inline]
    pub(crate) fn addr(&self) -> NonZeroUsize {
        NonNull::from(&**self.0).addr()
    }

    #[inline]
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.0.start
    }

    /// Bytes `from..to`, which the caller's `Buf` covers.
    #[inline]
    pub(crate) fn bytes(&self, from: u32, to: u32) -> &[u8] {
        assert!(from <= to && to <= self.0.len, "{from}..{to} of a page of {} bytes", self.0.len);
        // SAFETY: inside the page, just checked.
        let start = unsafe { self.0.start.add(from as usize) };
        // SAFETY: inside the page and initialised (zeroed at birth); by invariant 1 nobody writes these bytes now.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), (to - from) as usize) }
    }

    /// Asks the processor to have the two cache lines from `at` on near before they are read.
    #[inline]
    pub(crate) fn prefetch(&self, at: u32) {
        let start = self.0.start.as_ptr().wrapping_add(at as usize);
        prefetch_line(start);
        prefetch_line(start.wrapping_add(ALIGN));
        prefetch_line(start.wrapping_add(2 * ALIGN));
    }

    /// The same for what has to be known to let go of it.
    #[inline]
    pub(crate) fn prefetch_home(&self) {
        let counts = Arc::as_ptr(&self.0).cast::<u8>();
        // The counts are in front.
        prefetch_line(counts.wrapping_sub(2 * size_of::<usize>()));
        prefetch_line(counts.wrapping_add(size_of::<PageMem>() - 1));
    }

    /// Bytes `from..to` for writing.
    ///
    /// # Safety
    /// The page comes from a pool, and the caller holds the only `Buf` that covers these bytes.
    #[inline]
    pub(crate) unsafe fn bytes_mut(&mut self, from: u32, to: u32) -> &mut [u8] {
        assert!(from <= to && to <= self.0.len, "{from}..{to} of a page of {} bytes", self.0.len);
        // SAFETY: inside the page, just checked.
        let start = unsafe { self.0.start.add(from as usize) };
        // SAFETY: inside the page and initialised; the caller promises that nobody else reads or writes them.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), (to - from) as usize) }
    }
}

/// Asks the processor to have all of something near before it is read.
#[inline]
pub fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(ALIGN).for_each(|at| prefetch_line(start.wrapping_add(at)));
}

#[inline(always)]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which reads nothing and is ignored where there is no memory.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Clone for Page {
    #[inline]
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        let home = self.home_if_sole().map(Arc::clone);
        // SAFETY: `self.0` is not used again, this being its drop.
        let mem = unsafe { ManuallyDrop::take(&mut self.0) };
        // Of two threads that let go at the same time neither may be the last: then the memory is freed.
        if let Some(home) = home {
            home.put(mem);
        }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} bytes, {} users)", self.0.len, Arc::strong_count(&self.0))
    }
}

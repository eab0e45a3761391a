//! Page: reference-counted memory of packets' data, returned to its pool by the last reference; and the state of a
//! pool.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use sync::RefCount;

use crate::budget::Budget;
use crate::slab::Slab;

/// Alignment of every page: a cache line, so that headers at the start of a page do not straddle two lines.
const ALIGN: usize = 64;

/// A counted reference to one page.
///
/// Invariant 1: bytes are written only through the one `Buf` that covers them (invariant 2 in `buf.rs`).
///
/// Invariant 3: the pointer is to the argument of [`Page::new`], which exists until all counted references are dropped.
/// The crate counts the references itself, so that one step can drop many of them ([`Page::drop_all`]).
pub(crate) struct Page(NonNull<PageMem>);

/// The page itself.
pub(crate) struct PageMem {
    users: RefCount,
    start: NonNull<u8>,
    len: u32,
    storage: Storage,
}

/// Owner of a page's memory.
pub(crate) enum Storage {
    /// Memory of this program, for this pool: a separate allocation, or a range of the pool's slab.
    Pool(Arc<Shared>),
    /// Memory of another owner: a guest, a page cache. Never written.
    Foreign(#[expect(dead_code, reason = "keeps the memory alive")] Box<dyn AsRef<[u8]> + Send + Sync>),
}

// SAFETY: the memory is plain bytes, accessed only through `Buf`, whose invariant keeps writers and readers apart.
unsafe impl Send for PageMem {}
// SAFETY: as above; `PageMem` itself has no interior mutability beyond those bytes.
unsafe impl Sync for PageMem {}

// SAFETY: as an `Arc` of a `Send` and `Sync` value, which the last reference drops.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl PageMem {
    /// Fresh zeroed memory of `len` bytes for the pool `home`; `None` if the system has none.
    pub(crate) fn for_pool(home: Arc<Shared>, len: usize) -> Option<Box<Self>> {
        let layout = Self::layout(len);
        // SAFETY: `layout` has a size above zero, asserted in `Self::layout`.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Self::new(NonNull::new(start)?, len as u32, Storage::Pool(home)))
    }

    /// A page in the slab of `home`, valid for the slab's lifetime.
    pub(crate) fn of_slab(home: Arc<Shared>, start: NonNull<u8>, len: usize) -> Box<Self> {
        Self::new(start, len as u32, Storage::Pool(home))
    }

    fn new(start: NonNull<u8>, len: u32, storage: Storage) -> Box<Self> {
        Box::new(Self { users: RefCount::none(), start, len, storage })
    }

    /// The pool that owns the page.
    #[inline]
    fn home(&self) -> Option<&Arc<Shared>> {
        match &self.storage {
            Storage::Pool(home) => Some(home),
            Storage::Foreign(_) => None,
        }
    }

    fn layout(len: usize) -> Layout {
        assert!((1..1 << 30).contains(&len), "a page of {len} bytes");
        Layout::from_size_align(len, ALIGN).expect("size and alignment are small")
    }
}

impl Drop for PageMem {
    /// Frees a page without references whose pool has been dropped.
    fn drop(&mut self) {
        if let Storage::Pool(home) = &self.storage
            && home.slab().is_none()
        {
            // SAFETY: `for_pool` allocated this memory with this layout, and no references to it are left.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len as usize)) }
        }
    }
}

/// Error: no page is free, or none is large enough.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PoolDry;

impl fmt::Display for PoolDry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no page is free")
    }
}

impl std::error::Error for PoolDry {}

impl From<PoolDry> for base::DropReason {
    fn from(_: PoolDry) -> Self {
        Self::NoMemory
    }
}

/// State shared by a pool and its pages. A page may be dropped on a thread other than the pool's.
pub(crate) struct Shared {
    pub(crate) page_size: usize,
    pub(crate) limit: usize,
    /// Free pages. `None` after the pool's drop: pages that are returned later are freed.
    #[expect(clippy::vec_box, reason = "packets point to them")]
    pub(crate) free: Mutex<Option<Vec<Box<PageMem>>>>,
    /// Number of pages, including free ones.
    pub(crate) made: AtomicUsize,
    pub(crate) dry: AtomicU64,
    /// The memory of all pages, if the pool is a slab.
    pub(crate) slab: Option<Slab>,
}

impl Shared {
    /// Tells whether the pool has a limit, and half of its pages or more are in use.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        if self.limit == usize::MAX || self.slab.is_some() {
            // A slab's pages are always device frames.
            return self.slab.is_some();
        }
        self.is_half_out()
    }

    fn is_half_out(&self) -> bool {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, Vec::len);
        (self.made.load(Relaxed) - free) * 2 >= self.limit
    }

    /// Takes a free page, or allocates one if the pool's limit and the [`Budget`] allow it.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Box<PageMem>, PoolDry> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Vec::pop);
        if let Some(mem) = free {
            return Ok(mem);
        }
        let may_grow = self.made.load(Relaxed) < self.limit && Budget::has_page();
        let fresh = may_grow.then(|| PageMem::for_pool(Arc::clone(self), self.page_size)).flatten();
        match &fresh {
            Some(_) => self.made.fetch_add(1, Relaxed) as u64,
            None => self.dry.fetch_add(1, Relaxed),
        };
        fresh.ok_or(PoolDry)
    }

    /// Takes back a page without references.
    pub(crate) fn put(&self, mem: Box<PageMem>) {
        if self.frees_pages() {
            self.made.fetch_sub(1, Relaxed);
            return;
        }
        let excess = match self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(free) => {
                free.push(mem);
                None
            }
            None => Some(mem),
        };
        drop(excess);
    }

    /// Tells whether pages that come back are freed, for lack of memory.
    #[inline]
    fn frees_pages(&self) -> bool {
        Budget::is_short() && self.slab.is_none()
    }

    /// Takes back pages, as [`put`](Self::put) does.
    pub(crate) fn put_all(&self, pages: impl Iterator<Item = Box<PageMem>>) {
        if self.frees_pages() {
            let count = pages.map(drop).count();
            self.made.fetch_sub(count, Relaxed);
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let excess: Vec<_> = match free.as_mut() {
            Some(free) => {
                pages.for_each(|page| free.push(page));
                Vec::new()
            }
            None => pages.collect(),
        };
        drop(free);
        drop(excess);
    }

    pub(crate) fn slab(&self) -> Option<&Slab> {
        self.slab.as_ref()
    }
}

impl Page {
    /// The first reference to a page without references.
    pub(crate) fn new(mut mem: Box<PageMem>) -> Self {
        mem.users.set_one();
        Self(NonNull::from(Box::leak(mem)))
    }

    /// A page over foreign memory, which stays readable during the page's lifetime.
    pub(crate) fn foreign(owner: Box<dyn AsRef<[u8]> + Send + Sync>) -> Self {
        let bytes: &[u8] = (*owner).as_ref();
        let start = NonNull::from(bytes).cast();
        let len = bytes.len();
        assert!(len < 1 << 30, "foreign memory of {len} bytes");
        Self::new(PageMem::new(start, len as u32, Storage::Foreign(owner)))
    }

    #[inline]
    fn mem(&self) -> &PageMem {
        // SAFETY: valid during the lifetime of this reference, by invariant 3, and never borrowed mutably before.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.mem().len
    }

    /// Tells whether this is the only reference. If so, writes through dropped references are visible.
    #[inline]
    pub(crate) fn is_sole(&mut self) -> bool {
        self.mem().users.is_one()
    }

    /// Drops this reference and `others` further ones that the caller has forgotten. Returns the page if these were the
    /// last.
    ///
    /// # Safety
    /// Exactly `others` further references to this page were forgotten.
    #[inline]
    unsafe fn release(self, others: usize) -> Option<Box<PageMem>> {
        let (mem, given_up) = (self.0, others + 1);
        let were_last = self.mem().users.release(given_up);
        std::mem::forget(self);
        // SAFETY: the pointer came from a box, by invariant 3, and no references are left.
        were_last.then(|| unsafe { Box::from_raw(mem.as_ptr()) })
    }

    /// Frees pages: consecutive references to one page in one step, and consecutive pages of one pool under one lock.
    pub(crate) fn drop_all(mut pages: impl Iterator<Item = Self>) {
        let mut ahead = None;
        let mut unused = std::iter::from_fn(|| {
            while let Some(page) = ahead.take().or_else(|| pages.next()) {
                let mut others = 0;
                ahead = loop {
                    match pages.next() {
                        Some(other) if other.same(&page) => std::mem::forget(other),
                        other => break other,
                    }
                    others += 1;
                };
                // SAFETY: these references were just forgotten.
                let unused = unsafe { page.release(others) };
                if unused.is_some() {
                    return unused;
                }
            }
            None
        });
        let mut ahead = unused.next();
        while let Some(mem) = ahead.take() {
            if let Some(home) = mem.home().map(Arc::clone) {
                let together = std::iter::from_fn(|| match unused.next() {
                    Some(mem) if mem.home().is_some_and(|other| Arc::ptr_eq(other, &home)) => Some(mem),
                    other => {
                        ahead = other;
                        None
                    }
                });
                home.put_all(std::iter::once(mem).chain(together));
            } else {
                ahead = unused.next();
            }
        }
    }

    /// State of the page's pool, if the pool has a limit and half of its pages or more are in use.
    #[inline]
    pub(crate) fn scarce_home(&self) -> Option<&Arc<Shared>> {
        self.mem().home().filter(|home| home.is_scarce())
    }

    /// Address.
    #[inline]
    pub(crate) fn addr(&self) -> NonZeroUsize {
        self.0.addr()
    }

    #[inline]
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Start of the page's bytes.
    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mem().start
    }

    /// Prefetches the cache lines that a drop of this reference reads.
    #[inline]
    pub(crate) fn prefetch_home(&self) {
        let mem = self.0.as_ptr().cast::<u8>();
        prefetch_line(mem);
        prefetch_line(mem.wrapping_add(size_of::<PageMem>() - 1));
    }
}

/// Prefetches a value before it is read.
#[inline]
pub fn prefetch<T>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).step_by(ALIGN).for_each(|at| prefetch_line(start.wrapping_add(at)));
}

/// Prefetches a value before it is written: the cache of another CPU may hold its lines.
#[inline]
pub fn prefetch_to_write<T: ?Sized>(value: &T) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    let before = start.addr() % ALIGN;
    (0..before + size_of_val(value)).step_by(ALIGN).for_each(|at| prefetch_line_to_write(start.wrapping_add(at)));
}

#[inline(always)]
fn prefetch_line_to_write(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint without effect on memory, ignored for unmapped addresses. Every x86-64 CPU has the instruction.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches the first cache lines of some data before they are read.
#[inline]
pub(crate) fn prefetch_lines(at: *const u8, lines: usize) {
    (0..lines).for_each(|line| prefetch_line(at.wrapping_add(line * ALIGN)));
}

#[inline(always)]
fn prefetch_line(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint without a read, ignored for unmapped addresses.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

impl Clone for Page {
    #[inline]
    fn clone(&self) -> Self {
        self.mem().users.add();
        Self(self.0)
    }
}

impl Drop for Page {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference is not used again, as this is its drop.
        let page = Self(self.0);
        // SAFETY: no other references were forgotten.
        if let Some(mem) = unsafe { page.release(0) }
            && let Some(home) = mem.home().map(Arc::clone)
        {
            home.put(mem);
        }
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} bytes, {} users)", self.mem().len, self.mem().users.get())
    }
}

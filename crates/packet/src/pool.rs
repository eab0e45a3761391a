//! Pools of pages, and the memory that a worker hands to each operation that may need some.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buf::Buf;
use crate::copies::{Copies, CopyReason};
use crate::page::{Page, PageMem};
use crate::slab::{Backing, Slab};

/// No page was free, or none is large enough.
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

/// Pages of one size, last in first out, so that the page handed out is the one still in the cache.
///
/// A bounded pool stands for the frames of a device ring: once all are out it is dry, and counts that. A slab is those
/// frames: memory that a device is told of once, and a page of it given to the device is one that the pool has handed out.
pub struct Pool {
    shared: Arc<Shared>,
}

/// State that a pool and its pages share. A page may be dropped on another thread than the pool's.
pub(crate) struct Shared {
    page_size: usize,
    limit: usize,
    /// Pages that nobody uses. `None` once the pool is gone: pages that come home later are freed.
    #[expect(clippy::vec_box, reason = "packets point to them")]
    free: Mutex<Option<Vec<Box<PageMem>>>>,
    /// Pages there are, free ones included.
    made: AtomicUsize,
    dry: AtomicU64,
    /// The memory of all pages, if it is one.
    slab: Option<Slab>,
}

impl Pool {
    /// A pool that takes pages of `page_size` bytes from the heap as it needs them, and keeps them.
    pub fn heap(page_size: usize) -> Self {
        Self::bounded(page_size, usize::MAX)
    }

    /// A pool of at most `limit` pages of `page_size` bytes.
    pub fn bounded(page_size: usize, limit: usize) -> Self {
        let shared = Shared {
            page_size,
            limit,
            free: Mutex::new(Some(Vec::new())),
            made: AtomicUsize::new(0),
            dry: AtomicU64::new(0),
            slab: None,
        };
        Self { shared: Arc::new(shared) }
    }

    /// A pool of the pages of `page_size` bytes that follow one another in `backing`. They are always scarce
    /// ([`Buf::is_scarce`]).
    ///
    /// # Panics
    /// When a page would have no bytes, or 1 GiB or more.
    pub fn slab(backing: Box<dyn Backing>, page_size: usize) -> Self {
        let slab = Slab::new(backing, page_size);
        let shared = Arc::new(Shared {
            page_size,
            limit: slab.len(),
            free: Mutex::new(None),
            made: AtomicUsize::new(slab.len()),
            dry: AtomicU64::new(0),
            slab: Some(slab),
        });
        let page = |start| PageMem::of_slab(Arc::clone(&shared), start, page_size);
        // Last in, first out.
        let free = shared.slab().into_iter().flat_map(|slab| slab.pages().rev()).map(page).collect();
        *shared.free.lock().unwrap_or_else(PoisonError::into_inner) = Some(free);
        Self { shared }
    }

    /// The memory of a slab, for the device that is told of it.
    pub fn memory(&self) -> Option<NonNull<[u8]>> {
        self.shared.slab().map(Slab::memory)
    }

    /// Which page of this slab `buf` is a stretch of, counted from 0; `None` if it is of none.
    pub fn number_of(&self, buf: &Buf) -> Option<usize> {
        self.shared.slab()?.number_of(buf.page_start())
    }

    /// A whole page as an empty buffer, with `headroom` bytes before its data and the rest behind it.
    ///
    /// # Errors
    /// [`PoolDry`] when the limit is reached, which is counted, or when the headroom alone is more than a page.
    pub fn take(&self, headroom: usize) -> Result<Buf, PoolDry> {
        if headroom > self.shared.page_size {
            return Err(PoolDry);
        }
        Ok(Buf::whole(Page::new(self.shared.take()?), headroom as u32))
    }

    /// Appends all pages that there are and nobody uses to `out`, each as an empty buffer of the whole page.
    pub fn take_free(&self, out: &mut Vec<Buf>) {
        let mut free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = free.iter_mut().flat_map(|free| free.drain(..).rev());
        out.extend(pages.map(|mem| Buf::whole(Page::new(mem), 0)));
    }

    /// Bytes a page has.
    pub fn page_size(&self) -> usize {
        self.shared.page_size
    }

    /// Pages that packets hold now.
    pub fn in_use(&self) -> usize {
        let free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.made.load(Relaxed) - free.as_ref().map_or(0, Vec::len)
    }

    /// Number of requests that failed at the pool's limit (`rx_drops_no_frags` on a device ring).
    pub fn dry(&self) -> u64 {
        self.shared.dry.load(Relaxed)
    }
}

impl Shared {
    /// Whether it has a limit, and half of its pages or more are out.
    #[inline]
    pub(crate) fn is_scarce(&self) -> bool {
        if self.limit == usize::MAX || self.slab.is_some() {
            // Of a slab they are all out: what packets do not have, its device has.
            return self.slab.is_some();
        }
        self.is_half_out()
    }

    fn is_half_out(&self) -> bool {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(0, Vec::len);
        (self.made.load(Relaxed) - free) * 2 >= self.limit
    }

    fn take(self: &Arc<Self>) -> Result<Box<PageMem>, PoolDry> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut().and_then(Vec::pop);
        match free {
            Some(mem) => Ok(mem),
            None if self.made.load(Relaxed) < self.limit => {
                self.made.fetch_add(1, Relaxed);
                Ok(PageMem::for_pool(Arc::clone(self), self.page_size))
            }
            None => {
                self.dry.fetch_add(1, Relaxed);
                Err(PoolDry)
            }
        }
    }

    /// Takes back a page that nobody refers to any more.
    pub(crate) fn put(&self, mem: Box<PageMem>) {
        let unwanted = match self.free.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(free) => {
                free.push(mem);
                None
            }
            None => Some(mem),
        };
        drop(unwanted);
    }

    /// Takes back pages, of which each is as in [`put`](Self::put).
    pub(crate) fn put_all(&self, pages: impl Iterator<Item = Box<PageMem>>) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let unwanted: Vec<_> = match free.as_mut() {
            Some(free) => {
                pages.for_each(|page| free.push(page));
                Vec::new()
            }
            None => pages.collect(),
        };
        drop(free);
        drop(unwanted);
    }

    pub(crate) fn slab(&self) -> Option<&Slab> {
        self.slab.as_ref()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(free);
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes in use)", self.in_use(), self.shared.page_size)
    }
}

/// A worker's memory: a pool of small pages for single packets, one of large pages for fat ones, and the ledger of
/// the bytes that were copied into them.
#[derive(Debug)]
pub struct Memory {
    small: Pool,
    large: Pool,
    copies: Copies,
}

impl Memory {
    /// Bytes of a small page: a 1500-byte packet with its room.
    pub const SMALL: usize = 2048;
    /// Bytes of a large page: 64 KiB with room before and behind.
    pub const LARGE: usize = 66 * 1024;
    /// Room that receivers leave before a packet, for the headers that it may get on its way out.
    pub const HEADROOM: usize = 128;

    /// Memory from the heap, without a limit.
    pub fn heap() -> Self {
        Self::new(Pool::heap(Self::SMALL), Pool::heap(Self::LARGE))
    }

    /// Memory from these pools.
    pub fn new(small: Pool, large: Pool) -> Self {
        Self { small, large, copies: Copies::default() }
    }

    /// An empty buffer with `headroom` bytes before its data and at least `room` behind, in the smallest page that
    /// has both.
    ///
    /// # Errors
    /// [`PoolDry`] when no page is free or none is large enough.
    pub fn take(&self, headroom: usize, room: usize) -> Result<Buf, PoolDry> {
        let need = headroom.saturating_add(room);
        if need <= self.small.page_size() {
            self.small.take(headroom)
        } else if need <= self.large.page_size() {
            self.large.take(headroom)
        } else {
            Err(PoolDry)
        }
    }

    /// The pool of small pages.
    pub fn small(&self) -> &Pool {
        &self.small
    }

    /// The pool of large pages.
    pub fn large(&self) -> &Pool {
        &self.large
    }

    /// Whether one of its pools is this one.
    pub(crate) fn has_pool(&self, pool: &Arc<Shared>) -> bool {
        [&self.small, &self.large].iter().any(|own| Arc::ptr_eq(&own.shared, pool))
    }

    /// The ledger of copied bytes.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Notes that `bytes` were copied.
    pub fn copied(&self, reason: CopyReason, bytes: usize) {
        self.copies.add(reason, bytes);
    }
}

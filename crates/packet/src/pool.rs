//! Pools of pages, and a worker's memory.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buf::Buf;
use crate::copies::{Copies, CopyReason};
use crate::page::{Page, PageMem, PoolDry, Shared};
use crate::slab::{Backing, Slab};

/// Pool of pages of one size, last in first out, so that the next page is likely in cache.
///
/// A bounded pool stands for the frames of a device ring: when all pages are in use the pool is dry, and counts failed
/// requests. A slab is the memory of such frames in one range, which a device maps at once; a page given to the device
/// counts as in use.
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool that allocates pages of `page_size` bytes from the heap on demand, and keeps them for reuse.
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

    /// A pool of the consecutive pages of `page_size` bytes in `backing`. Its pages are always [device
    /// frames](Buf::is_scarce_frame).
    ///
    /// # Panics
    /// If `page_size` is 0, or 1 GiB or more.
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

    /// The memory of a slab, for its device.
    pub fn memory(&self) -> Option<NonNull<[u8]>> {
        self.shared.slab().map(Slab::memory)
    }

    /// Index of the page of this slab that contains `buf`; `None` for a page of another pool.
    pub fn number_of(&self, buf: &Buf) -> Option<usize> {
        self.shared.slab()?.number_of(buf.page_start())
    }

    /// A complete page as an empty buffer, with `headroom` bytes before its data.
    ///
    /// # Errors
    /// [`PoolDry`] if the limit is reached, which is counted, or if the headroom exceeds a page.
    pub fn take(&self, headroom: usize) -> Result<Buf, PoolDry> {
        if headroom > self.shared.page_size {
            return Err(PoolDry);
        }
        Ok(Buf::whole(Page::new(self.shared.take()?), headroom as u32))
    }

    /// Appends all free pages to `out`, each as an empty buffer over the complete page.
    pub fn take_free(&self, out: &mut Vec<Buf>) {
        let mut free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = free.iter_mut().flat_map(|free| free.drain(..).rev());
        out.extend(pages.map(|mem| Buf::whole(Page::new(mem), 0)));
    }

    /// Size of a page in bytes.
    pub fn page_size(&self) -> usize {
        self.shared.page_size
    }

    /// Number of pages that packets use.
    pub fn in_use(&self) -> usize {
        let free = self.shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.made.load(Relaxed) - free.as_ref().map_or(0, Vec::len)
    }

    /// Number of pages, including free ones.
    pub fn pages(&self) -> usize {
        self.shared.made.load(Relaxed)
    }

    /// Number of requests that failed at the pool's limit (`rx_drops_no_frags` on a device ring).
    pub fn dry(&self) -> u64 {
        self.shared.dry.load(Relaxed)
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

impl Buf {
    /// Tells whether the buffer's page is a frame of a device with few free frames, and not of `mem`: the device may
    /// soon have no frames to receive into. Always true for frames of a slab.
    #[inline]
    pub fn is_scarce_frame(&self, mem: &Memory) -> bool {
        self.scarce_home().is_some_and(|home| !mem.has_pool(home))
    }
}

/// Memory of a worker: a pool of small pages for single packets, one of large pages for fat ones, and statistics of
/// copied bytes.
#[derive(Debug)]
pub struct Memory {
    small: Pool,
    large: Pool,
    copies: Copies,
}

impl Memory {
    /// Size of a small page: a 1500-byte packet with its room.
    pub const SMALL: usize = 2048;
    /// Size of a large page: 64 KiB with room before and behind.
    pub const LARGE: usize = 66 * 1024;
    /// Headroom that receivers leave in front of a packet, for headers on output.
    pub const HEADROOM: usize = 128;

    /// Memory from the heap, without a limit.
    pub fn heap() -> Self {
        Self::new(Pool::heap(Self::SMALL), Pool::heap(Self::LARGE))
    }

    /// Memory from these pools.
    pub fn new(small: Pool, large: Pool) -> Self {
        Self { small, large, copies: Copies::default() }
    }

    /// An empty buffer with `headroom` bytes before its data and at least `room` after, in the smallest sufficient
    /// page.
    ///
    /// # Errors
    /// [`PoolDry`] if no page is free or large enough.
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

    /// Tells whether `pool` is one of this memory's pools.
    pub(crate) fn has_pool(&self, pool: &Arc<Shared>) -> bool {
        [&self.small, &self.large].iter().any(|own| Arc::ptr_eq(&own.shared, pool))
    }

    /// Statistics of copied bytes.
    pub fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Counts `bytes` copied bytes.
    pub fn copied(&self, reason: CopyReason, bytes: usize) {
        self.copies.add(reason, bytes);
    }
}

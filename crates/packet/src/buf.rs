//! A buffer: a stretch of one page, with the room around its data.
//!
//! It is the one building block of a packet: head and page slots are both made of it. Whether its bytes may be written
//! is part of its type's state and never a flag that a transform could forget: [`Buf::bytes_mut`] is the only way to
//! write, and answers `None` when somebody else may see the bytes.
//!
//! Invariant 2: an `Exclusive` buffer's `lo..hi` overlaps no other buffer of the same page. So a train of packets that
//! was received into one page is split into exclusive buffers, each of which is decrypted where it lies.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use thin_vec::ThinVec;

use crate::page::Page;
use crate::pool::Memory;

/// A stretch of a page: data `start..end` inside the room `lo..hi`.
#[repr(C)]
pub struct Buf {
    page: Page,
    start: u32,
    end: u32,
    lo: u32,
    hi: u32,
    truesize: u32,
    access: Access,
}

/// Who may see a buffer's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Access {
    /// Nobody else.
    Exclusive,
    /// Other buffers, as long as the page has other users.
    Shared,
    /// Somebody outside this program, for ever.
    Foreign,
}

/// Which page it is.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PageName(NonZeroUsize);

impl Buf {
    /// The whole of a page that nobody else refers to, without data.
    pub(crate) fn whole(page: Page, headroom: u32) -> Self {
        let hi = page.len();
        debug_assert!(headroom <= hi, "headroom {headroom} of {page:?}");
        Self { page, lo: 0, start: headroom, end: headroom, hi, truesize: hi, access: Access::Exclusive }
    }

    /// Bytes that belong to somebody else (a guest, a page cache): readable, never writable, wherever they go.
    pub fn foreign(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let page = Page::foreign(Box::new(owner));
        let hi = page.len();
        Self { page, lo: 0, start: 0, end: hi, hi, truesize: hi, access: Access::Foreign }
    }

    /// Bytes of data.
    #[inline]
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Tells whether there is no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Room before the data that [`push`](Self::push) can take.
    #[inline]
    pub fn headroom(&self) -> usize {
        if self.access == Access::Exclusive { (self.start - self.lo) as usize } else { 0 }
    }

    /// Room behind the data that [`put`](Self::put) can take.
    #[inline]
    pub fn tailroom(&self) -> usize {
        if self.access == Access::Exclusive { (self.hi - self.end) as usize } else { 0 }
    }

    /// Memory that this buffer is charged for. Splitting shares it out, joining adds it up.
    #[inline]
    pub fn truesize(&self) -> usize {
        self.truesize as usize
    }

    /// The page that it keeps from going home, and that one's size in bytes: more than its [`truesize`](Self::truesize) if
    /// others have a share. No two pages have the same name as long as something holds them.
    #[inline]
    pub fn page(&self) -> (PageName, usize) {
        (PageName(self.page.addr()), self.page.len() as usize)
    }

    /// Tells whether its page is one of a device's few frames, of which half or more are in use, and not of `mem`: the
    /// device may soon have none to receive into.
    #[inline]
    pub fn is_scarce(&self, mem: &Memory) -> bool {
        self.page.is_scarce(mem)
    }

    /// The data.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.page.bytes(self.start, self.end)
    }

    /// Asks the processor to have the front of the data near before it is read: for one of many that are looked at one
    /// after the other.
    #[inline]
    pub fn prefetch(&self) {
        self.page.prefetch(self.start);
    }

    /// The same for what has to be known of its page to let go of it.
    #[inline]
    pub fn prefetch_home(&self) {
        self.page.prefetch_home();
    }

    /// The data for writing; `None` when somebody else may see it.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_writable() {
            return None;
        }
        // SAFETY: exclusive, so of a pool's page and, by invariant 2, covered by this buffer alone.
        Some(unsafe { self.page.bytes_mut(self.start, self.end) })
    }

    /// Tells whether the data may be written. A shared buffer becomes exclusive again once it is its page's last.
    #[inline]
    pub fn is_writable(&mut self) -> bool {
        if self.access == Access::Shared && self.page.is_sole() {
            (self.lo, self.hi, self.access) = (0, self.page.len(), Access::Exclusive);
        }
        self.access == Access::Exclusive
    }

    /// Tells whether the data may be written as it is.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.access == Access::Exclusive
    }

    /// Tells whether the bytes belong to somebody outside this program.
    pub fn is_foreign(&self) -> bool {
        self.access == Access::Foreign
    }

    /// Where its page begins.
    pub(crate) fn page_start(&self) -> NonNull<u8> {
        self.page.start()
    }

    /// Grows the data by `n` bytes at the front, with whatever the headroom held; `None` when there is too little.
    #[inline]
    pub fn push(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        self.start -= n as u32;
        // SAFETY: there is headroom, so the buffer is exclusive; by invariant 2 it alone covers `lo..hi`.
        Some(unsafe { self.page.bytes_mut(self.start, self.start + n as u32) })
    }

    /// Grows the data by `n` bytes at the back, with whatever the tailroom held; `None` when there is too little.
    pub fn put(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        self.end += n as u32;
        // SAFETY: as in `push`.
        Some(unsafe { self.page.bytes_mut(self.end - n as u32, self.end) })
    }

    /// Takes the first `n` bytes off the data; they become headroom.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        assert!(n <= self.len(), "a pull of more than there is");
        self.start += n as u32;
    }

    /// Cuts the data down to `len` bytes; the rest becomes tailroom.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        assert!(len <= self.len(), "a trim to more than there is");
        self.end = self.start + len as u32;
    }

    /// Splits off the first `at` bytes, with the headroom before them. Both halves are as writable as the whole was.
    ///
    /// # Panics
    /// When there are fewer.
    #[inline]
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "a split behind the end");
        let cut = self.start + at as u32;
        let room = u64::from(self.hi - self.lo).max(1);
        let truesize = (u64::from(self.truesize) * u64::from(cut - self.lo) / room) as u32;
        let front = Self {
            page: self.page.clone(),
            lo: self.lo,
            start: self.start,
            end: cut,
            hi: cut,
            truesize,
            access: self.access,
        };
        (self.lo, self.start, self.truesize) = (cut, cut, self.truesize - truesize);
        front
    }

    /// A second buffer over the same bytes; from now on neither may write them, until one is left.
    #[must_use]
    pub fn share(&mut self) -> Self {
        if self.access == Access::Exclusive {
            self.access = Access::Shared;
        }
        (self.lo, self.hi) = (self.start, self.end);
        Self { page: self.page.clone(), ..*self }
    }

    /// Lets go of buffers: at once of those of one page, and those whose pages go home to one pool do so together.
    pub(crate) fn drop_all(bufs: &mut ThinVec<Self>) {
        Page::drop_all(std::iter::from_fn(|| bufs.pop().map(|buf| buf.page)));
    }

    /// Tells whether the bytes of `next` behind its first `front` follow in the same page, and may be written if these may.
    #[inline]
    pub(crate) fn precedes(&self, next: &Self, front: usize) -> bool {
        self.end as usize == next.start as usize + front && self.access == next.access && self.page.same(&next.page)
    }

    /// Joins `next` to this buffer if its bytes follow in the same page; gives it back otherwise.
    ///
    /// # Errors
    /// `next` itself.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        if !self.precedes(&next, 0) {
            return Err(next);
        }
        (self.end, self.hi) = (next.end, next.hi);
        self.truesize += next.truesize;
        Ok(())
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, lo, start, end, hi, truesize, access } = self;
        write!(f, "Buf({access:?} {lo}..[{start}..{end}]..{hi} truesize {truesize} of {page:?})")
    }
}

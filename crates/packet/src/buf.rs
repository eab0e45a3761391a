//! Buffer: a range of one page, with the room around its data.
//!
//! Head and fragments of a packet are buffers. Write permission is part of the buffer's state, not a flag that a
//! transform could forget to check: [`Buf::bytes_mut`] is the only way to write, and returns `None` for shared bytes.
//!
//! Invariant 2: an `Exclusive` buffer's data and room overlap no other buffer of the same page. So a train of packets
//! in one page is split into exclusive buffers, each of which is decrypted in place.
//!
//! Invariant 4: the `before` bytes in front of `start`, and the `len` and `behind` bytes from `start` on, are inside
//! the page. So reading the data needs no load from the page's record, which often is not in cache.

use std::fmt;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::page::{Page, Shared, prefetch_lines};

/// A range of a page: data, with the room around it.
#[repr(C)]
pub struct Buf {
    page: Page,
    /// Start of the data.
    start: NonNull<u8>,
    len: u32,
    /// Headroom in bytes.
    before: u32,
    /// Tailroom in bytes.
    behind: u32,
    charge: Charge,
}

// SAFETY: `start` points into the page, which may be sent.
unsafe impl Send for Buf {}
// SAFETY: `start` points into the page, and through a shared reference its bytes are only read.
unsafe impl Sync for Buf {}

/// A packet has many buffers, which move with it.
const _: () = assert!(size_of::<Buf>() <= 32);

/// Memory charged for a buffer, with two low bits for access.
#[derive(Clone, Copy)]
struct Charge(u32);

impl Charge {
    const MAX: u32 = (1 << 30) - 1;

    /// Limits a charge to [`MAX`](Self::MAX). No page is that large, but rejoined shares of one page may add up to
    /// more.
    #[inline]
    const fn new(truesize: u32, access: Access) -> Self {
        let truesize = if truesize > Self::MAX { Self::MAX } else { truesize };
        Self(truesize | (access as u32) << 30)
    }

    #[inline]
    const fn truesize(self) -> u32 {
        self.0 & Self::MAX
    }

    #[inline]
    const fn access(self) -> Access {
        match self.0 >> 30 {
            0 => Access::Exclusive,
            1 => Access::Shared,
            _ => Access::Foreign,
        }
    }
}

/// Visibility of a buffer's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Access {
    /// This buffer alone refers to the bytes.
    Exclusive,
    /// Other buffers refer to the bytes too, while the page has other users.
    Shared,
    /// An owner outside this program may refer to the bytes, permanently.
    Foreign,
}

/// Identity of a page.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct PageName(NonZeroUsize);

impl Buf {
    /// A complete page without other references, as an empty buffer.
    pub(crate) fn whole(page: Page, headroom: u32) -> Self {
        let size = page.len();
        assert!(headroom <= size, "headroom {headroom} of {page:?}");
        // SAFETY: within the page, just checked.
        let start = unsafe { page.start().add(headroom as usize) };
        let charge = Charge::new(size, Access::Exclusive);
        Self { page, start, len: 0, before: headroom, behind: size - headroom, charge }
    }

    /// Bytes of another owner (a guest, a page cache): readable, never writable.
    ///
    /// # Panics
    /// For 1 GiB or more.
    pub fn foreign(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let page = Page::foreign(Box::new(owner));
        let (start, len) = (page.start(), page.len());
        Self { page, start, len, before: 0, behind: 0, charge: Charge::new(len, Access::Foreign) }
    }

    /// Bytes of data.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Tells whether there is no data.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Headroom, the limit of [`push`](Self::push).
    #[inline]
    pub fn headroom(&self) -> usize {
        if self.is_exclusive() { self.before as usize } else { 0 }
    }

    /// Tailroom, the limit of [`put`](Self::put).
    #[inline]
    pub fn tailroom(&self) -> usize {
        if self.is_exclusive() { self.behind as usize } else { 0 }
    }

    /// Memory charged for this buffer. A split divides the charge, a join adds it up.
    #[inline]
    pub fn truesize(&self) -> usize {
        self.charge.truesize() as usize
    }

    /// The page that the buffer pins, and the page's size in bytes, which exceeds [`truesize`](Self::truesize) if other
    /// buffers share the page. The name is unique while a buffer of the page exists.
    #[inline]
    pub fn page(&self) -> (PageName, usize) {
        (PageName(self.page.addr()), self.page.len() as usize)
    }

    /// State of its page's pool, if few pages of that pool are free.
    #[inline]
    pub(crate) fn scarce_home(&self) -> Option<&Arc<Shared>> {
        self.page.scarce_home()
    }

    /// The data.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: inside the page by invariant 4, and initialised; by the page's invariant 1 no other buffer writes
        // these bytes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// Prefetches the front of the data.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_lines(self.start.as_ptr(), 3);
    }

    /// Prefetches the first cache line of the data, and its page's record.
    #[inline]
    pub(crate) fn prefetch_front(&self) {
        prefetch_lines(self.start.as_ptr(), 1);
        self.prefetch_home();
    }

    /// Prefetches the part of its page's record that a drop of this buffer reads.
    #[inline]
    pub fn prefetch_home(&self) {
        self.page.prefetch_home();
    }

    /// The data for writing; `None` for a shared buffer.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if !self.is_writable() {
            return None;
        }
        // SAFETY: inside the page by invariant 4, and initialised; exclusive, so of a pool's page and, by invariant 2, covered
        // by this buffer alone.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) })
    }

    /// Tells whether the data may be written. A shared buffer becomes exclusive again when it is the last of its page.
    #[inline]
    pub fn is_writable(&mut self) -> bool {
        if self.charge.access() == Access::Shared && self.page.is_sole() {
            self.before = (self.start.addr().get() - self.page.start().addr().get()) as u32;
            self.behind = self.page.len() - self.before - self.len;
            self.charge = Charge::new(self.charge.truesize(), Access::Exclusive);
        }
        self.is_exclusive()
    }

    /// Tells whether the data may be written in place.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.charge.access() == Access::Exclusive
    }

    /// Tells whether the bytes belong to an owner outside this program.
    pub fn is_foreign(&self) -> bool {
        self.charge.access() == Access::Foreign
    }

    /// Start of its page.
    pub(crate) fn page_start(&self) -> NonNull<u8> {
        self.page.start()
    }

    /// Grows the data by `n` bytes at the front, with the former contents of the headroom; `None` if the headroom is
    /// too small.
    #[inline]
    pub fn push(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.headroom() {
            return None;
        }
        // SAFETY: there is so much headroom, which is inside the page by invariant 4.
        self.start = unsafe { self.start.sub(n) };
        self.before -= n as u32;
        self.len += n as u32;
        // SAFETY: a buffer with headroom is exclusive; by invariant 2 no other buffer covers the room around its data.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), n) })
    }

    /// Grows the data by `n` bytes at the back, with the former contents of the tailroom; `None` if the tailroom is too
    /// small.
    pub fn put(&mut self, n: usize) -> Option<&mut [u8]> {
        if n > self.tailroom() {
            return None;
        }
        // SAFETY: the end of the data is inside the page by invariant 4.
        let end = unsafe { self.start.add(self.len()) };
        self.behind -= n as u32;
        self.len += n as u32;
        // SAFETY: as in `push`.
        Some(unsafe { std::slice::from_raw_parts_mut(end.as_ptr(), n) })
    }

    /// Removes the first `n` bytes of the data; they become headroom.
    ///
    /// # Panics
    /// If the data is shorter.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        assert!(n <= self.len(), "a pull of more than there is");
        // SAFETY: at most to the end of the data, just checked.
        self.start = unsafe { self.start.add(n) };
        self.before += n as u32;
        self.len -= n as u32;
    }

    /// Shortens the data to `len` bytes; bytes behind them become tailroom.
    ///
    /// # Panics
    /// If the data is shorter.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        assert!(len <= self.len(), "a trim to more than there is");
        self.behind += self.len - len as u32;
        self.len = len as u32;
    }

    /// This buffer with only the data from `from` to `to`; other bytes become room. The move is one step, because a
    /// move of a complete buffer after stores to single fields would stall.
    ///
    /// # Panics
    /// If the data is shorter.
    #[inline]
    #[must_use]
    pub fn narrowed(self, from: usize, to: usize) -> Self {
        assert!(from <= to && to <= self.len(), "a part of more than there is");
        let Self { page, start, len, before, behind, charge } = self;
        // SAFETY: at most to the end of the data, just checked.
        let start = unsafe { start.add(from) };
        let (from, to) = (from as u32, to as u32);
        Self { page, start, len: to - from, before: before + from, behind: behind + (len - to), charge }
    }

    /// Splits off the first `at` bytes, with the headroom before them. Both halves keep the write permission.
    ///
    /// # Panics
    /// If the data is shorter.
    #[inline]
    #[must_use]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "a split behind the end");
        let at = at as u32;
        let (truesize, access) = (self.charge.truesize(), self.charge.access());
        let (room, its) = (self.before + self.len + self.behind, self.before + at);
        // A buffer often covers its complete page. A division would take longer than all other steps.
        let share = match truesize == room {
            true => its,
            false => (u64::from(truesize) * u64::from(its) / u64::from(room.max(1))) as u32,
        };
        let charge = Charge::new(share, access);
        let front =
            Self { page: self.page.clone(), start: self.start, len: at, before: self.before, behind: 0, charge };
        // SAFETY: at most to the end of the data, checked above.
        self.start = unsafe { self.start.add(at as usize) };
        (self.len, self.before) = (self.len - at, 0);
        self.charge = Charge::new(truesize - share, access);
        front
    }

    /// A second buffer over the same bytes; neither buffer may write them until the other is dropped.
    #[must_use]
    pub fn share(&mut self) -> Self {
        if self.is_exclusive() {
            self.charge = Charge::new(self.charge.truesize(), Access::Shared);
        }
        (self.before, self.behind) = (0, 0);
        Self { page: self.page.clone(), ..*self }
    }

    /// Frees buffers: consecutive ones of one page, and of pages of one pool, in one step.
    pub(crate) fn drop_all(bufs: impl Iterator<Item = Self>) {
        Page::drop_all(bufs.map(|buf| buf.page));
    }

    /// Tells whether the bytes of `next` after its first `front` are adjacent in the same page, with the same write
    /// permission.
    #[inline]
    pub(crate) fn precedes(&self, next: &Self, front: usize) -> bool {
        let follows = self.start.addr().get() + self.len() == next.start.addr().get() + front;
        follows && self.charge.access() == next.charge.access() && self.page.same(&next.page)
    }

    /// Joins `next` to this buffer if its bytes are adjacent in the same page.
    ///
    /// # Errors
    /// `next` itself, if its bytes are not adjacent.
    pub fn join(&mut self, next: Self) -> Result<(), Self> {
        if !self.precedes(&next, 0) {
            return Err(next);
        }
        (self.len, self.behind) = (self.len + next.len, next.behind);
        self.charge = Charge::new(self.charge.truesize() + next.charge.truesize(), self.charge.access());
        Ok(())
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { page, start, len, before, behind, charge } = self;
        let at = start.addr().get() - page.start().addr().get();
        let (truesize, access) = (charge.truesize(), charge.access());
        write!(f, "Buf({access:?} {before}+[{len} at {at}]+{behind} truesize {truesize} of {page:?})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Memory;

    #[test]
    fn charge_keeps_access_to_the_bytes() {
        for access in [Access::Exclusive, Access::Shared, Access::Foreign] {
            for (truesize, kept) in [(0, 0), (2048, 2048), (Charge::MAX, Charge::MAX), (Charge::MAX + 1, Charge::MAX)] {
                let charge = Charge::new(truesize, access);
                assert_eq!((charge.truesize(), charge.access()), (kept, access));
            }
        }
    }

    #[test]
    fn narrowed_is_pulled_and_trimmed() {
        let mem = Memory::heap();
        let of = |change: fn(Buf) -> Buf| {
            let mut buf = mem.take(10, 100).unwrap();
            buf.put(50).unwrap().iter_mut().zip(0..).for_each(|(byte, n)| *byte = n);
            let buf = change(buf);
            (buf.bytes().to_vec(), buf.headroom(), buf.tailroom(), buf.truesize())
        };
        let in_steps = of(|mut buf| {
            buf.trim(40);
            buf.pull(3);
            buf
        });
        assert_eq!(of(|buf| buf.narrowed(3, 40)), in_steps);
        assert_eq!(in_steps.0, (3..40).collect::<Vec<u8>>());
        assert_eq!(of(|buf| buf.narrowed(50, 50)).0, []);
    }

    #[test]
    #[should_panic(expected = "a part of more than there is")]
    fn nothing_is_narrowed_to_more_than_it_has() {
        let mut buf = Memory::heap().take(0, 100).unwrap();
        buf.put(5).unwrap();
        let _ = buf.narrowed(2, 6);
    }

    #[test]
    fn charges_of_split_parts_add_up_again() {
        let mem = Memory::heap();
        let mut whole = mem.take(0, 2048).unwrap();
        whole.put(1000).unwrap();
        let all = whole.truesize();
        // After the trim the buffer is charged for more than its size.
        let mut back = whole.share();
        back.pull(100);
        let front = whole.split_to(10);
        let middle = back.split_to(450);
        assert_eq!((front.truesize(), whole.truesize()), (all / 100, all - all / 100));
        assert_eq!((middle.truesize(), back.truesize()), (all * 550 / 1000, all - all * 550 / 1000));
    }
}

//! Packet: head, page slots, children.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use arrayvec::ArrayVec;

use crate::buf::Buf;
use crate::csum;
use crate::meta::Meta;
use crate::page::PoolDry;
use crate::pool::Memory;

/// Maximum number of page fragments: room for 64 KiB in segments of 1366 bytes (TCP with timestamps over IPv6 in an ESP
/// tunnel over a 1500-byte wire), with one slot left for a trailer.
pub const MAX_FRAGS: usize = 48;

/// Packets are moved often. Up to this size a move takes a few instructions, above it a call.
const _: () = assert!(size_of::<Packet>() <= 128);

/// Memory charged for a packet itself, without the pages that it holds.
pub const PACKET_OVERHEAD: usize = size_of::<Packet>();

/// A packet: a linear head, then page fragments, then child packets, in the order of its bytes. Linux's `sk_buff`.
///
/// Children have no children of their own. Lists of fragments and children keep their storage for later packets, so
/// that no list is allocated in a steady state.
///
/// The head comes first: then a move of the packet copies the head in the same units as a move of the head alone, and
/// store-to-load forwarding works.
#[repr(C)]
pub struct Packet {
    pub(crate) head: Buf,
    pub(crate) frags: Frags,
    pub(crate) frag_list: FragList,
    /// Bytes outside the head.
    pub(crate) data_len: usize,
    /// Metadata of the packet.
    pub meta: Meta,
}

impl Packet {
    /// An empty packet with `headroom` bytes before its data and at least `room` behind.
    ///
    /// # Errors
    /// [`PoolDry`] if no page is free or large enough.
    pub fn new(mem: &Memory, headroom: usize, room: usize) -> Result<Self, PoolDry> {
        Ok(Self::from_buf(mem.take(headroom, room)?))
    }

    /// A linear packet with `data`, and the usual headroom. For packets that this node creates, and for tests.
    ///
    /// # Errors
    /// [`PoolDry`] if no page is free or large enough.
    pub fn with_data(mem: &Memory, data: &[u8]) -> Result<Self, PoolDry> {
        let mut buf = mem.take(Memory::HEADROOM, data.len())?;
        buf.put(data.len()).ok_or(PoolDry)?.copy_from_slice(data);
        Ok(Self::from_buf(buf))
    }

    /// A linear packet over the data of `head`.
    #[inline]
    pub fn from_buf(head: Buf) -> Self {
        Self { head, frags: Frags::new(), frag_list: FragList::new(), data_len: 0, meta: Meta::default() }
    }

    /// Length of all data.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.data_len
    }

    /// Tells whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data outside the head.
    pub fn data_len(&self) -> usize {
        self.data_len
    }

    /// Bytes of data in the head.
    pub fn headlen(&self) -> usize {
        self.head.len()
    }

    /// Tells whether all data is in the head.
    #[inline]
    pub fn is_linear(&self) -> bool {
        self.data_len == 0
    }

    /// Tells whether the packet has no fragments and no children, not even empty ones.
    #[inline]
    pub fn is_one_buf(&self) -> bool {
        self.is_linear() && self.frags.is_empty() && self.frag_list.is_empty()
    }

    /// Headroom in bytes.
    pub fn headroom(&self) -> usize {
        self.head.headroom()
    }

    /// Tailroom, the limit of [`put`](Self::put): none if there is data outside the head.
    pub fn tailroom(&self) -> usize {
        if self.is_linear() { self.head.tailroom() } else { 0 }
    }

    /// Memory that this packet pins: the packet itself, its pages, its children.
    #[inline]
    pub fn truesize(&self) -> usize {
        if self.is_one_buf() {
            return PACKET_OVERHEAD + self.head.truesize();
        }
        let frags: usize = self.frags.iter().map(Buf::truesize).sum();
        let children: usize = self.frag_list.iter().map(Self::truesize).sum();
        PACKET_OVERHEAD + self.head.truesize() + frags + children
    }

    /// Prefetches the front of the head, and its page's record.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.head.prefetch_front();
    }

    /// The buffer of the head.
    #[inline]
    pub fn head_buf(&self) -> &Buf {
        &self.head
    }

    /// Tells whether a further buffer can become the last fragment, without a copy.
    #[inline]
    pub fn has_slot(&self) -> bool {
        let has_room = self.frags.len() < MAX_FRAGS && self.frag_list.is_empty();
        has_room && (self.head.is_exclusive() || self.head.is_foreign())
    }

    /// The data in the head.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// Tells whether the packet is the only owner of the head's data; references dropped since the last check still
    /// count.
    #[inline]
    pub fn owns_head(&self) -> bool {
        self.head.is_exclusive()
    }

    /// The data in the head for writing; `None` if the head is shared.
    #[inline]
    pub fn head_mut(&mut self) -> Option<&mut [u8]> {
        self.head.bytes_mut()
    }

    /// The page fragments.
    #[inline]
    pub fn frags(&self) -> &[Buf] {
        &self.frags
    }

    /// The children.
    #[inline]
    pub fn frag_list(&self) -> &[Self] {
        &self.frag_list
    }

    /// Buffers of head, fragments and children, in order.
    pub fn bufs(&self) -> impl Iterator<Item = &Buf> {
        self.own_bufs().chain(self.frag_list.iter().flat_map(Self::own_bufs))
    }

    /// Tells whether a part of the packet lies in [scarce device frames](Buf::is_scarce_frame).
    #[inline]
    pub fn has_scarce_frames(&self, mem: &Memory) -> bool {
        match self.is_one_buf() {
            true => self.head.is_scarce_frame(mem),
            false => self.bufs().any(|buf| buf.is_scarce_frame(mem)),
        }
    }

    /// All data, buffer by buffer, in order, without empty buffers.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.bufs().map(Buf::bytes).filter(|bytes| !bytes.is_empty())
    }

    /// Copies `to.len()` bytes from `offset` on to `to`. The caller counts the copy.
    ///
    /// Returns whether the packet has that many bytes.
    pub fn read_at(&self, offset: usize, mut to: &mut [u8]) -> bool {
        let has_all = offset.checked_add(to.len()).is_some_and(|end| end <= self.len());
        let mut skip = offset;
        for chunk in self.chunks() {
            let rest = chunk.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(chunk.len());
            let n = rest.len().min(to.len());
            to[..n].copy_from_slice(&rest[..n]);
            to = &mut to[n..];
            if to.is_empty() {
                break;
            }
        }
        has_all
    }

    /// A copy of all data, for tests and captures.
    pub fn to_vec(&self) -> Vec<u8> {
        self.chunks().flatten().copied().collect()
    }

    /// Appends `buf` as a page fragment. A buffer without data takes no slot, and is freed.
    ///
    /// # Errors
    /// `buf` itself, if all slots are taken or the packet has children.
    #[inline]
    pub fn push_frag(&mut self, buf: Buf) -> Result<(), Buf> {
        self.push_frag_behind(buf, 0)
    }

    /// As [`push_frag`](Self::push_frag), for the data of `buf` behind its first `front` bytes.
    ///
    /// # Errors
    /// `buf` itself.
    ///
    /// # Panics
    /// If `buf` is shorter.
    #[inline]
    pub fn push_frag_behind(&mut self, buf: Buf, front: usize) -> Result<(), Buf> {
        let len = buf.len().checked_sub(front).expect("a slot behind the end");
        self.push_frag_of(buf, front, len)
    }

    /// Appends `len` bytes of `buf` after its first `front`, for which the packet [has a slot](Self::has_slot). Returns
    /// that slot.
    ///
    /// # Panics
    /// If no slot is free, or `buf` is shorter.
    #[expect(clippy::inline_always, reason = "a buffer that is handed over has to be written and read once more")]
    #[inline(always)]
    pub fn fill_slot(&mut self, buf: Buf, front: usize, len: usize) -> &Buf {
        assert!(self.frags.len() < MAX_FRAGS && self.frag_list.is_empty(), "a slot that there is not");
        self.data_len += len;
        self.meta.csum.data_changed();
        // SAFETY: the list has room, as just checked.
        unsafe { self.frags.with_room().push_unchecked(buf.narrowed(front, front + len)) };
        if let [.., last, slot] = &self.frags[..]
            && last.precedes(slot, 0)
        {
            self.join_last_slot();
        }
        self.frags.last().expect("just pushed")
    }

    /// Joins the last slot to the preceding one; their bytes are adjacent in one page.
    fn join_last_slot(&mut self) {
        let Some(next) = self.frags.pop() else { return };
        let joined = self.frags.last_mut().map(|last| last.join(next));
        assert!(matches!(joined, Some(Ok(()))), "bytes that follow are joined");
    }

    /// As [`push_frag`](Self::push_frag), for `len` bytes of `buf` after its first `front`.
    ///
    /// # Errors
    /// `buf` itself, or its remaining bytes.
    ///
    /// # Panics
    /// If `buf` is shorter.
    fn push_frag_of(&mut self, mut buf: Buf, front: usize, len: usize) -> Result<(), Buf> {
        if len == 0 {
            return Ok(());
        }
        if !self.frag_list.is_empty() {
            return Err(buf);
        }
        let is_full = self.frags.len() == MAX_FRAGS;
        match self.frags.last_mut() {
            Some(last) if last.precedes(&buf, front) => {
                buf.pull(front);
                buf.trim(len);
                last.join(buf)?;
            }
            _ if is_full => return Err(buf),
            // Changed after the move: a move right after the store would stall.
            _ => {
                let slot = self.frags.push(buf);
                slot.pull(front);
                slot.trim(len);
            }
        }
        self.data_len += len;
        self.meta.csum.data_changed();
        Ok(())
    }

    /// Appends `child`, followed by its own children. A child without data is dropped.
    pub fn push_child(&mut self, mut child: Self) {
        if child.is_empty() {
            return;
        }
        self.meta.csum = csum::joined((self.meta.csum, self.len()), child.meta.csum);
        let grandchildren = std::mem::replace(&mut child.frag_list, FragList::new());
        if !grandchildren.is_empty() {
            child.data_len -= grandchildren.iter().map(Self::len).sum::<usize>();
            child.meta.csum.data_changed();
        }
        if !child.is_empty() {
            self.data_len += child.len();
            self.frag_list.push(child);
        }
        self.frag_list.take_from(grandchildren, &mut self.data_len);
    }

    /// Splits the packet into its head, its fragments in order, and its children.
    #[inline]
    pub fn into_parts(mut self) -> (Buf, impl Iterator<Item = Buf>, impl Iterator<Item = Self>) {
        let frags = std::mem::replace(&mut self.frags, Frags::new());
        let children = std::mem::replace(&mut self.frag_list, FragList::new());
        (self.head, frags.into_iter(), children.into_iter())
    }

    /// The head of a packet without fragments and children.
    ///
    /// # Panics
    /// If the packet has fragments or children.
    #[expect(clippy::inline_always, reason = "a move of all of a packet takes longer than what is done with its head")]
    #[inline(always)]
    pub fn into_head(self) -> Buf {
        let Self { head, frags, frag_list, data_len, .. } = self;
        assert!(data_len == 0, "bytes outside the head");
        frags.retire();
        frag_list.retire();
        head
    }

    /// Head and fragments, without children.
    pub(crate) fn own_bufs(&self) -> impl Iterator<Item = &Buf> {
        std::iter::once(&self.head).chain(self.frags.iter())
    }

    /// Buffers of head, fragments and children.
    pub(crate) fn bufs_mut(&mut self) -> impl Iterator<Item = &mut Buf> {
        let children = self.frag_list.iter_mut();
        let theirs = children.flat_map(|child| std::iter::once(&mut child.head).chain(child.frags.iter_mut()));
        std::iter::once(&mut self.head).chain(self.frags.iter_mut()).chain(theirs)
    }

    /// Panics unless the lengths agree with the buffers. For tests.
    pub fn check_invariants(&self) {
        let frags: usize = self.frags.iter().map(Buf::len).sum();
        let children: usize = self.frag_list.iter().map(Self::len).sum();
        assert_eq!(self.data_len, frags + children, "{self:?}");
        assert!(self.frags.len() <= MAX_FRAGS, "{self:?}");
        for child in self.frag_list.iter() {
            assert!(child.frag_list.is_empty(), "a grandchild: {self:?}");
            child.check_invariants();
        }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { head, frags, frag_list, data_len, meta } = self;
        f.debug_struct("Packet")
            .field("len", &(head.len() + data_len))
            .field("head", head)
            .field("frags", &&frags[..])
            .field("frag_list", &&frag_list[..])
            .field("meta", meta)
            .finish()
    }
}

/// Maximum number of empty lists that a thread keeps for later packets.
const SPARE_LISTS: usize = 1024;

macro_rules! recycled_list {
    ($(#[$doc:meta])* $name:ident of $item:ty, $storage:ty, $spare:ident, $new:expr, $clear:expr) => {
        thread_local! {
            static $spare: RefCell<Vec<Box<$storage>>> = const { RefCell::new(Vec::new()) };
        }

        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(Option<Box<$storage>>);

        impl $name {
            pub(crate) const fn new() -> Self {
                Self(None)
            }

            pub(crate) fn pop(&mut self) -> Option<$item> {
                self.0.as_mut()?.pop()
            }

            /// Removes the first `n` items.
            pub(crate) fn drain_front(&mut self, n: usize) -> impl Iterator<Item = $item> {
                self.0.as_mut().map(|list| list.drain(..n)).into_iter().flatten()
            }

            pub(crate) fn retain(&mut self, keep: impl Fn(&$item) -> bool) {
                if let Some(list) = &mut self.0 {
                    list.retain(|item| keep(&*item));
                }
            }

            #[cold]
            fn empty() -> Box<$storage> {
                let spare = $spare.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
                spare.unwrap_or_else(|| Box::new($new))
            }

            /// Drops the list, at no cost if it never had an entry.
            #[inline]
            fn retire(self) {
                if self.0.is_none() {
                    // The list has no storage.
                    std::mem::forget(self);
                }
            }

            fn recycle(mut list: Box<$storage>) {
                $clear(&mut list);
                // An ending thread has dropped its spare lists: then this list is freed. So is a list that has grown.
                let _ = $spare.try_with(|spare| {
                    let mut spare = spare.borrow_mut();
                    if spare.len() < SPARE_LISTS && list.capacity() <= MAX_FRAGS {
                        spare.push(list);
                    }
                });
            }

            /// The items, in order; the storage is kept after the last item.
            pub(crate) fn into_iter(mut self) -> impl Iterator<Item = $item> {
                self.reverse();
                std::iter::from_fn(move || self.pop())
            }
        }

        impl Deref for $name {
            type Target = [$item];

            #[inline]
            fn deref(&self) -> &[$item] {
                match &self.0 {
                    Some(list) => list,
                    None => &[],
                }
            }
        }

        impl DerefMut for $name {
            #[inline]
            fn deref_mut(&mut self) -> &mut [$item] {
                match &mut self.0 {
                    Some(list) => list,
                    None => &mut [],
                }
            }
        }

        impl Drop for $name {
            #[inline]
            fn drop(&mut self) {
                if let Some(list) = self.0.take() {
                    Self::recycle(list);
                }
            }
        }
    };
}

recycled_list! {
    /// A packet's page fragments.
    Frags of Buf, ArrayVec<Buf, MAX_FRAGS>, SPARE_FRAGS, ArrayVec::new(), drop_slots
}

recycled_list! {
    /// A packet's children. Few packets have children, and those packets have many.
    FragList of Packet, Vec<Packet>, SPARE_CHILDREN, Vec::with_capacity(MAX_FRAGS), Vec::clear
}

/// Frees fragments, as a batch if there are several.
fn drop_slots(slots: &mut ArrayVec<Buf, MAX_FRAGS>) {
    if slots.len() > 1 { Buf::drop_all(slots.drain(..)) } else { slots.clear() }
}

impl Frags {
    /// Appends a slot.
    ///
    /// # Panics
    /// If no slot is free.
    #[inline]
    pub(crate) fn push(&mut self, buf: Buf) -> &mut Buf {
        let list = self.with_room();
        // SAFETY: the list has room, as just checked.
        unsafe { list.push_unchecked(buf) };
        list.last_mut().expect("just pushed")
    }

    /// The list, with room for one more slot.
    ///
    /// # Panics
    /// If no slot is free.
    #[inline(always)]
    fn with_room(&mut self) -> &mut ArrayVec<Buf, MAX_FRAGS> {
        let list = self.0.get_or_insert_with(Self::empty);
        assert!(!list.is_full(), "a slot that there is not");
        list
    }
}

impl FragList {
    /// Appends a child.
    pub(crate) fn push(&mut self, child: Packet) {
        self.0.get_or_insert_with(Self::empty).push(child);
    }

    /// Appends the children of `other`, and adds their bytes to `data_len`.
    pub(crate) fn take_from(&mut self, other: Self, data_len: &mut usize) {
        for child in other.into_iter() {
            *data_len += child.len();
            self.push(child);
        }
    }
}

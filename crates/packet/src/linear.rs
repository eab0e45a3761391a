//! Copies of packets: linearized, writable, second references.

use crate::buf::Buf;
use crate::copies::CopyReason;
use crate::csum;
use crate::packet::{FragList, Frags, MAX_FRAGS, PACKET_OVERHEAD, Packet};
use crate::page::PoolDry;
use crate::pool::Memory;

/// Tailroom of a buffer that had to grow, as in Linux's `skb_cow_data`.
const TAIL_SPARE: usize = 128;

impl Packet {
    /// Brings all data into the head.
    ///
    /// # Errors
    /// [`PoolDry`] if no page is large enough; the packet is unchanged.
    pub fn linearize(&mut self, mem: &Memory) -> Result<(), PoolDry> {
        if self.is_linear() {
            return Ok(());
        }
        self.head = self.gather(mem, CopyReason::Linearize)?;
        self.frags = Frags::new();
        self.frag_list = FragList::new();
        self.data_len = 0;
        Ok(())
    }

    /// Makes every byte writable and leaves `tail` bytes of tailroom in the last buffer. Only shared buffers are
    /// copied, and the last one if its tailroom is too small. Linux's `skb_cow_data` brings all fragments into the head
    /// instead.
    ///
    /// Returns the number of buffers of the packet.
    ///
    /// # Errors
    /// [`PoolDry`]; the bytes are unchanged, in the same number of buffers.
    pub fn make_writable(&mut self, mem: &Memory, tail: usize) -> Result<usize, PoolDry> {
        let mut pieces = 0;
        let mut bufs = self.bufs_mut().peekable();
        while let Some(buf) = bufs.next() {
            let is_last = bufs.peek().is_none();
            pieces += 1;
            let (reason, spare) = match (buf.is_writable(), is_last) {
                (true, true) if buf.tailroom() < tail => (CopyReason::Expand, tail + TAIL_SPARE),
                (true, _) => continue,
                (false, true) => (CopyReason::Writable, tail),
                (false, false) => (CopyReason::Writable, 0),
            };
            let mut fresh = mem.take(Memory::HEADROOM.min(buf.headroom()), buf.len() + spare)?;
            fresh.put(buf.len()).ok_or(PoolDry)?.copy_from_slice(buf.bytes());
            mem.copied(reason, buf.len());
            *buf = fresh;
        }
        Ok(pieces)
    }

    /// A second packet over the same bytes. Neither packet may write them in place while both exist.
    #[must_use]
    pub fn clone_shared(&mut self) -> Self {
        let mut frags = Frags::new();
        for buf in self.frags.iter_mut() {
            frags.push(buf.share());
        }
        let mut frag_list = FragList::new();
        for child in self.frag_list.iter_mut() {
            frag_list.push(child.clone_shared());
        }
        Self { head: self.head.share(), frags, frag_list, data_len: self.data_len, meta: self.meta.clone() }
    }

    /// A linear packet with a copy of the bytes.
    ///
    /// # Errors
    /// [`PoolDry`] when no page is large enough.
    pub fn copy(&self, mem: &Memory, reason: CopyReason) -> Result<Self, PoolDry> {
        let mut copy = Self::from_buf(self.gather(mem, reason)?);
        copy.meta = self.meta.clone();
        Ok(copy)
    }

    /// Copies the packet if a part of it lies in [scarce device frames](Buf::is_scarce_frame), which the device needs
    /// while the packet is queued. Without free memory the packet is not copied.
    pub fn release_device_frames(&mut self, mem: &Memory) {
        if self.has_scarce_frames(mem)
            && let Ok(copy) = self.copy(mem, CopyReason::Spare)
        {
            *self = copy;
        }
    }

    /// Appends `from` to this packet if the result has no children: by a copy if the bytes fit the tailroom, else by
    /// reference. Linux's `skb_try_coalesce`, without its rule on kinds of pools, as each page holds a reference to its
    /// pool.
    ///
    /// Returns the growth of this packet's truesize; the overhead of `from` is freed.
    ///
    /// # Errors
    /// `from` itself, if it cannot be appended.
    pub fn try_coalesce(&mut self, mem: &Memory, from: Self) -> Result<usize, Self> {
        if !self.head.is_writable() && !self.head.is_foreign() {
            return Err(from);
        }
        let len = from.len();
        if len <= self.tailroom() {
            self.meta.csum = csum::joined((self.meta.csum, self.len()), from.meta.csum);
            let to = self.head.put(len).expect("tailroom, just checked");
            from.read_at(0, to);
            mem.copied(CopyReason::Coalesce, len);
            return Ok(0);
        }
        let slots = from.frags.len() + usize::from(from.headlen() != 0);
        let children = !self.frag_list.is_empty() || !from.frag_list.is_empty();
        if children || self.frags.len() + slots > MAX_FRAGS {
            return Err(from);
        }
        Ok(self.take_slots(from))
    }

    /// Appends `from` to this packet without a copy: in free slots, else as a child.
    pub fn append(&mut self, from: Self) {
        let slots = from.frags.len() + usize::from(from.headlen() != 0);
        let children = !self.frag_list.is_empty() || !from.frag_list.is_empty();
        if children || self.frags.len() + slots > MAX_FRAGS {
            self.push_child(from);
        } else {
            self.take_slots(from);
        }
    }

    /// Moves head and slots of `from`, which has no children and fits, to the slots of this packet. Returns the growth
    /// of truesize.
    fn take_slots(&mut self, from: Self) -> usize {
        let truesize = from.truesize() - PACKET_OVERHEAD;
        let lost = if from.headlen() == 0 { from.head.truesize() } else { 0 };
        let csum = csum::joined((self.meta.csum, self.len()), from.meta.csum);
        let Self { head, frags, .. } = from;
        for buf in std::iter::once(head).chain(frags.into_iter()) {
            self.push_frag(buf).expect("a free slot, counted before");
        }
        self.meta.csum = csum;
        truesize - lost
    }

    /// Moves the head to a new page with `n` more bytes of headroom.
    pub(crate) fn expand_head(&mut self, mem: &Memory, n: usize) -> Result<(), PoolDry> {
        let reason = if self.head.is_writable() { CopyReason::Expand } else { CopyReason::Writable };
        let room = self.headlen() + self.tailroom().min(TAIL_SPARE);
        let mut head = mem.take(n.max(Memory::HEADROOM), room)?;
        head.put(self.headlen()).ok_or(PoolDry)?.copy_from_slice(self.head.bytes());
        mem.copied(reason, self.headlen());
        self.head = head;
        Ok(())
    }

    /// A buffer with a copy of all bytes.
    fn gather(&self, mem: &Memory, reason: CopyReason) -> Result<Buf, PoolDry> {
        let mut buf = mem.take(Memory::HEADROOM, self.len())?;
        let mut to = buf.put(self.len()).ok_or(PoolDry)?;
        for chunk in self.chunks() {
            let (here, rest) = to.split_at_mut(chunk.len());
            here.copy_from_slice(chunk);
            to = rest;
        }
        mem.copied(reason, self.len());
        Ok(buf)
    }
}

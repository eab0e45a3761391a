//! Growing and shrinking of a packet at its ends: push and pull, put and trim, and splitting off its front.
//!
//! A pull or an expansion may move the head and invalidate offsets and pointers into it; the borrow of the packet
//! prevents their use.

use crate::buf::Buf;
use crate::copies::CopyReason;
use crate::csum;
use crate::meta::Csum;
use crate::packet::{MAX_FRAGS, Packet};
use crate::page::PoolDry;
use crate::pool::Memory;

impl Packet {
    /// Grows the data by `n` bytes at the front and returns them, for the caller to fill. A shared head, or one with
    /// too little headroom, moves to a new page.
    ///
    /// # Errors
    /// [`PoolDry`], and the packet is unchanged.
    pub fn push(&mut self, mem: &Memory, n: usize) -> Result<&mut [u8], PoolDry> {
        if !self.head.is_writable() || n > self.headroom() {
            self.expand_head(mem, n)?;
        }
        self.meta.csum = match self.meta.csum {
            Csum::Partial { start, offset } => match u16::try_from(n).ok().and_then(|n| start.checked_add(n)) {
                Some(start) => Csum::Partial { start, offset },
                None => return Err(PoolDry),
            },
            Csum::Complete(_) => Csum::None,
            other => other,
        };
        Ok(self.head.push(n).expect("the head has that much headroom now"))
    }

    /// The data in the head for writing; a shared head moves to a new page first.
    ///
    /// # Errors
    /// [`PoolDry`], and the packet is unchanged.
    pub fn writable_head(&mut self, mem: &Memory) -> Result<&mut [u8], PoolDry> {
        if !self.head.is_writable() {
            self.expand_head(mem, 0)?;
        }
        self.meta.csum.data_changed();
        self.head_mut().ok_or(PoolDry)
    }

    /// Removes the first `n` bytes, across buffers.
    ///
    /// # Panics
    /// If the packet is shorter.
    #[inline]
    pub fn pull(&mut self, n: usize) {
        match self.meta.csum {
            Csum::None | Csum::Unnecessary if n <= self.headlen() => self.head.pull(n),
            _ => self.pull_pieces(n),
        }
    }

    fn pull_pieces(&mut self, n: usize) {
        assert!(n <= self.len(), "pull of {n} from {self:?}");
        self.meta.csum = match self.meta.csum {
            Csum::Partial { start, offset } => match usize::from(start).checked_sub(n) {
                Some(start) => Csum::Partial { start: start as u16, offset },
                None => Csum::None,
            },
            Csum::Complete(sum) => Csum::Complete(csum::without_front(sum, self.chunks(), n)),
            other => other,
        };
        let from_head = n.min(self.headlen());
        self.head.pull(from_head);
        self.drop_front_of_rest(n - from_head);
    }

    /// Shortens the data to `len` bytes; empty buffers are freed.
    ///
    /// # Panics
    /// If the packet is shorter.
    #[inline]
    pub fn trim(&mut self, len: usize) {
        if len != self.len() {
            self.trim_pieces(len);
        }
    }

    fn trim_pieces(&mut self, len: usize) {
        assert!(len <= self.len(), "trim to {len} of {self:?}");
        if let Csum::Complete(sum) = self.meta.csum {
            self.meta.csum = Csum::Complete(csum::without_back(sum, self.chunks(), len));
        }
        let mut left = len;
        for buf in std::iter::once(&mut self.head).chain(self.frags.iter_mut()) {
            let here = left.min(buf.len());
            left -= here;
            buf.trim(here);
        }
        for child in self.frag_list.iter_mut() {
            let here = left.min(child.len());
            left -= here;
            child.trim(here);
        }
        self.frags.retain(|buf| !buf.is_empty());
        self.frag_list.retain(|child| !child.is_empty());
        self.data_len = len - self.headlen();
    }

    /// Grows the data by `n` bytes at the back of a linear packet and returns them; `None` if the tailroom is too
    /// small.
    pub fn put(&mut self, n: usize) -> Option<&mut [u8]> {
        if !self.is_linear() || !self.head.is_writable() || n > self.head.tailroom() {
            return None;
        }
        self.meta.csum.data_changed();
        self.head.put(n)
    }

    /// Ensures that the first `n` bytes lie in the head, so that a header can be read there.
    ///
    /// Returns whether the packet has that many bytes. If it has not, nothing changes; copied bytes are counted.
    ///
    /// # Errors
    /// [`PoolDry`], and the packet is unchanged.
    pub fn may_pull(&mut self, mem: &Memory, n: usize) -> Result<bool, PoolDry> {
        if n <= self.headlen() {
            return Ok(true);
        }
        if n > self.len() {
            return Ok(false);
        }
        let missing = n - self.headlen();
        let copied = if self.head.is_writable() && missing <= self.head.tailroom() {
            let to = self.head.put(missing).ok_or(PoolDry)?;
            read_rest(&self.frags, &self.frag_list, to);
            missing
        } else {
            let mut head = mem.take(Memory::HEADROOM, n)?;
            let (front, rest) = head.put(n).ok_or(PoolDry)?.split_at_mut(self.headlen());
            front.copy_from_slice(self.head.bytes());
            read_rest(&self.frags, &self.frag_list, rest);
            self.head = head;
            n
        };
        self.drop_front_of_rest(missing);
        mem.copied(CopyReason::Pull, copied);
        Ok(true)
    }

    /// Moves the first `n` bytes to the back of `into`, by reference: its fragments share their pages with the bytes
    /// that remain in this packet, with the same write permission.
    ///
    /// # Errors
    /// [`SlotsFull`] if `into` has too few free slots, or has children; both packets are unchanged.
    ///
    /// # Panics
    /// If the packet is shorter.
    pub fn move_front(&mut self, n: usize, into: &mut Self) -> Result<(), SlotsFull> {
        assert!(n <= self.len(), "move of {n} from {self:?}");
        if into.frags.len() + self.pieces(n) > MAX_FRAGS || !into.frag_list.is_empty() {
            return Err(SlotsFull);
        }
        self.meta.csum = Csum::None;
        let mut left = n;
        left -= split_front(&mut self.head, left, into);
        let whole =
            self.frags.iter().scan(left, |left, buf| Some(take(left, buf.len()))).take_while(|&all| all).count();
        for buf in self.frags.drain_front(whole) {
            left -= buf.len();
            self.data_len -= buf.len();
            into.push_frag(buf).map_err(|_| SlotsFull)?;
        }
        if left > 0
            && let Some(first) = self.frags.first_mut()
        {
            let moved = split_front(first, left, into);
            left -= moved;
            self.data_len -= moved;
        }
        let whole = self.frag_list.iter().take_while(|child| take(&mut left, child.len())).count();
        for child in self.frag_list.drain_front(whole) {
            self.data_len -= child.len();
            let (head, frags, _) = child.into_parts();
            std::iter::once(head).chain(frags).try_for_each(|buf| into.push_frag(buf)).map_err(|_| SlotsFull)?;
        }
        if left > 0
            && let Some(child) = self.frag_list.first_mut()
        {
            child.move_front(left, into)?;
            self.data_len -= left;
        }
        Ok(())
    }

    /// Number of buffers that hold the first `n` bytes.
    fn pieces(&self, n: usize) -> usize {
        let bufs = self.own_bufs().chain(self.frag_list.iter().flat_map(Self::own_bufs));
        bufs.scan(n, |left, buf| {
            let here = *left;
            *left = left.saturating_sub(buf.len());
            (here > 0).then_some(usize::from(!buf.is_empty()))
        })
        .sum()
    }

    /// Removes the first `n` bytes outside the head.
    fn drop_front_of_rest(&mut self, n: usize) {
        self.data_len -= n;
        let mut left = n;
        let whole = self.frags.iter().take_while(|buf| take(&mut left, buf.len())).count();
        drop(self.frags.drain_front(whole));
        if let Some(first) = self.frags.first_mut() {
            first.pull(left);
            return;
        }
        let whole = self.frag_list.iter().take_while(|child| take(&mut left, child.len())).count();
        drop(self.frag_list.drain_front(whole));
        if let Some(first) = self.frag_list.first_mut() {
            first.pull(left);
        }
    }
}

/// Error: the other packet has no free slot, or has children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlotsFull;

/// Subtracts `len` from `left` unless `len` is larger, and returns whether it did.
fn take(left: &mut usize, len: usize) -> bool {
    let fits = len <= *left;
    if fits {
        *left -= len;
    }
    fits
}

/// Moves up to `n` bytes from the front of `buf` to the back of `into`, which has a free slot. Returns the number of
/// bytes.
fn split_front(buf: &mut Buf, n: usize, into: &mut Packet) -> usize {
    let n = n.min(buf.len());
    if n > 0 {
        let front = buf.split_to(n);
        into.push_frag(front).expect("a free slot, counted before");
    }
    n
}

/// Copies the first bytes of fragments and children to `to`.
fn read_rest(frags: &[Buf], frag_list: &[Packet], mut to: &mut [u8]) {
    let bufs = frags.iter().chain(frag_list.iter().flat_map(Packet::own_bufs));
    for bytes in bufs.map(Buf::bytes) {
        let n = bytes.len().min(to.len());
        to[..n].copy_from_slice(&bytes[..n]);
        to = &mut to[n..];
    }
}

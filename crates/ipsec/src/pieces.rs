//! A received train as a queue of buffers: packets are taken from its front by reference.

use std::collections::VecDeque;

use base::DropReason;
use packet::{Buf, CopyReason, Memory, Packet};

/// Headroom of a packet that was copied.
const HEADROOM: usize = Memory::HEADROOM;

/// Remaining bytes of a packet: the front buffer, and those behind it.
#[derive(Debug)]
pub(crate) struct Pieces<'a> {
    front: Buf,
    rest: &'a mut VecDeque<Buf>,
}

impl<'a> Pieces<'a> {
    /// All bytes of `pkt`. `rest` lends its storage.
    pub(crate) fn new(pkt: Packet, rest: &'a mut VecDeque<Buf>) -> Self {
        rest.clear();
        let is_linear = pkt.is_linear();
        let (front, frags, children) = pkt.into_parts();
        if !is_linear {
            rest.extend(frags);
            for child in children {
                let (head, frags, _) = child.into_parts();
                rest.push_back(head);
                rest.extend(frags);
            }
        }
        Self { front, rest }
    }

    /// Bytes from offset `at` on, which is within the first buffer; zeros past the end.
    #[inline]
    pub(crate) fn peek<const N: usize>(&self, at: usize) -> [u8; N] {
        match self.front.bytes()[at..].first_chunk() {
            Some(&front) => front,
            None => {
                let mut front = [0; N];
                self.copy(at, &mut front);
                front
            }
        }
    }

    /// Copies bytes from offset `at` on, which is within the first buffer, to `to`; past the end, `to` stays as it was.
    pub(crate) fn copy(&self, at: usize, mut to: &mut [u8]) {
        let front = &self.front.bytes()[at..];
        for bytes in std::iter::once(front).chain(self.rest.iter().map(Buf::bytes)) {
            let n = bytes.len().min(to.len());
            to[..n].copy_from_slice(&bytes[..n]);
            to = &mut to[n..];
        }
    }

    /// Tells whether the first `n` bytes are contiguous and writable.
    #[inline]
    pub(crate) fn has_in_place(&mut self, n: usize) -> bool {
        self.front.len() >= n && self.front.is_writable()
    }

    /// As [`has_in_place`](Self::has_in_place), after joining pieces that are adjacent in one page.
    pub(crate) fn join_in_place(&mut self, n: usize) -> bool {
        while self.front.len() < n
            && let Some(next) = self.rest.pop_front()
        {
            if self.front.is_empty() {
                self.front = next;
            } else if let Err(next) = self.front.join(next) {
                self.rest.push_front(next);
                return false;
            }
        }
        self.has_in_place(n)
    }

    /// Moves the first `n` bytes, or all if there are fewer, to the end of `to`, piece by piece.
    pub(crate) fn move_to(&mut self, mut n: usize, to: &mut Vec<Buf>) {
        while n > self.front.len()
            && let Some(next) = self.rest.pop_front()
        {
            n -= self.front.len();
            to.push(std::mem::replace(&mut self.front, next));
        }
        to.push(self.front.split_to(n.min(self.front.len())));
    }

    /// Makes the first `n` bytes contiguous and writable. Copies them if they are not, or are shared.
    ///
    /// # Errors
    /// [`DropReason::NoMemory`]; [`DropReason::IpTruncated`] when there are fewer.
    #[inline]
    pub(crate) fn make_writable(&mut self, mem: &Memory, n: usize) -> Result<(), DropReason> {
        if self.join_in_place(n) {
            return Ok(());
        }
        if self.front.len() < n {
            self.gather(mem, n)?;
        } else {
            let mut copy = mem.take(HEADROOM, n)?;
            copy.put(n).ok_or(DropReason::NoMemory)?.copy_from_slice(&self.front.bytes()[..n]);
            mem.copied(CopyReason::Writable, n);
            self.front.pull(n);
            self.rest.push_front(std::mem::replace(&mut self.front, copy));
        }
        Ok(())
    }

    /// Takes the first `n` bytes, which are contiguous.
    #[inline]
    pub(crate) fn take(&mut self, n: usize) -> Buf {
        self.front.split_to(n)
    }

    /// Drops the first `n` bytes, or all if there are fewer.
    pub(crate) fn skip(&mut self, mut n: usize) {
        loop {
            let step = n.min(self.front.len());
            self.front.pull(step);
            n -= step;
            if n == 0 {
                return;
            }
            match self.rest.pop_front() {
                Some(next) => self.front = next,
                None => return,
            }
        }
    }

    /// Copies the first `n` bytes into one buffer.
    fn gather(&mut self, mem: &Memory, n: usize) -> Result<(), DropReason> {
        let mut whole = mem.take(HEADROOM, n)?;
        let mut to = whole.put(n).ok_or(DropReason::NoMemory)?;
        while !to.is_empty() {
            let step = self.front.len().min(to.len());
            let (here, behind) = to.split_at_mut(step);
            here.copy_from_slice(&self.front.bytes()[..step]);
            to = behind;
            self.front.pull(step);
            if self.front.is_empty()
                && let Some(next) = self.rest.pop_front()
            {
                self.front = next;
            } else if !to.is_empty() {
                return Err(DropReason::IpTruncated);
            }
        }
        mem.copied(CopyReason::Linearize, n);
        self.rest.push_front(std::mem::replace(&mut self.front, whole));
        Ok(())
    }
}

impl Drop for Pieces<'_> {
    /// Releases the remaining buffers.
    fn drop(&mut self) {
        self.rest.clear();
    }
}

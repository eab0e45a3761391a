//! Frames of an AF_XDP socket's memory (UMEM), and their owners.
//!
//! Invariant 1: a frame is in exactly one place: free in the pool, in `home` or in `spare`; lent to the kernel, and
//! then its buffer is in `lent`, where its bytes are not accessed; or out of the pool as a packet's buffer. Invariant
//! 2: a frame's address is given to the kernel only when its buffer goes into `lent`. A descriptor that the kernel
//! returns is checked first: the frame was lent, for that direction, and the data lies inside it.

use std::io;
use std::ptr::NonNull;

use base::DropReason;
use packet::{Backing, Buf, Pool};

use super::ring::{Desc, Mapping};

/// One frame of a received packet.
#[derive(Debug)]
pub(crate) struct FramePiece {
    pub(crate) bytes: Buf,
    /// Whether another frame of the same packet follows.
    pub(crate) continues: bool,
}

/// Receive frames, followed by as many transmit frames.
#[derive(Debug)]
pub(crate) struct Frames {
    /// Buffers lent to the kernel, by frame number.
    lent: Vec<Option<Buf>>,
    /// Number of receive frames in `lent`.
    receivable: usize,
    /// Transmit frames that are not lent.
    spare: Vec<Buf>,
    /// Free receive frames, to be lent again.
    home: Vec<Buf>,
    pool: Pool,
    memory: NonNull<[u8]>,
    ring: usize,
    frame_size: usize,
}

// SAFETY: `memory` is an address for the kernel; this type neither reads nor writes through it.
unsafe impl Send for Frames {}

impl Frames {
    /// Frames of `frame_size` bytes, `ring` for each direction.
    pub(crate) fn new(ring: usize, frame_size: usize) -> io::Result<Self> {
        let count = ring * 2;
        let mapping = Mapping::anonymous(count * frame_size)?;
        let memory = mapping.memory();
        let pool = Pool::slab(Box::new(mapping), frame_size);
        let mut home = Vec::with_capacity(count);
        pool.take_free(&mut home);
        let spare = home.split_off(ring);
        let lent = std::iter::repeat_with(|| None).take(count).collect();
        Ok(Self { lent, receivable: 0, spare, home, pool, memory, ring, frame_size })
    }

    /// Memory of all frames.
    pub(crate) fn memory(&self) -> NonNull<[u8]> {
        self.memory
    }

    /// Lends free receive frames to the kernel, by address, until `give` refuses one. Tells whether any were lent.
    pub(crate) fn lend_home(&mut self, mut give: impl FnMut(u64) -> bool) -> bool {
        self.pool.take_free(&mut self.home);
        let before = self.home.len();
        while let Some(buf) = self.home.pop() {
            let number = self.pool.number_of(&buf).expect("every returned frame is of this pool");
            if !give(self.address(number)) {
                self.home.push(buf);
                break;
            }
            let lent = self.lent[number].replace(buf);
            assert!(lent.is_none(), "frame {number} was lent twice");
            self.receivable += 1;
        }
        before > self.home.len()
    }

    /// Number of receive frames lent to the kernel, empty or filled.
    pub(crate) fn receivable(&self) -> usize {
        self.receivable
    }

    /// Takes back a frame that the kernel has filled.
    pub(crate) fn received(&mut self, desc: Desc) -> Result<FramePiece, DropReason> {
        let (number, offset) = self.place(desc.addr);
        let end = offset.checked_add(desc.len as usize).filter(|&end| end <= self.frame_size);
        let end = end.ok_or(DropReason::RingDescriptor)?;
        let lent = number.filter(|&number| number < self.ring).and_then(|number| self.lent[number].take());
        let mut bytes = lent.ok_or(DropReason::RingDescriptor)?;
        self.receivable -= 1;
        // The bytes in front of the data become headroom.
        let filled = bytes.put(end).is_some();
        debug_assert!(filled, "a frame that was lent is whole and empty");
        bytes.pull(offset);
        Ok(FramePiece { bytes, continues: desc.options & libc::XDP_PKT_CONTD != 0 })
    }

    /// Copies a packet of `len` bytes to transmit frames, at most `most`, and lends them to the kernel. Returns false,
    /// without effect, if there are not enough.
    pub(crate) fn fill<'a>(
        &mut self,
        len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
        most: usize,
        mut give: impl FnMut(Desc),
    ) -> bool {
        if len.div_ceil(self.frame_size) > most.min(self.spare.len()) {
            return false;
        }
        let mut pieces = pieces.filter(|piece| !piece.is_empty());
        let (mut piece, mut left) = (&[][..], len);
        while left > 0 {
            let mut buf = self.spare.pop().expect("enough, just counted");
            let number = self.pool.number_of(&buf).expect("only this pool's are spare");
            let here = left.min(self.frame_size);
            buf.trim(0);
            let mut to = buf.put(here).expect("the frame is empty");
            while !to.is_empty() {
                if piece.is_empty() {
                    piece = pieces.next().unwrap_or_else(|| panic!("a packet of {len} bytes has fewer"));
                }
                let n = piece.len().min(to.len());
                to[..n].copy_from_slice(&piece[..n]);
                (piece, to) = (&piece[n..], &mut to[n..]);
            }
            left -= here;
            self.lent[number] = Some(buf);
            let options = if left > 0 { libc::XDP_PKT_CONTD } else { 0 };
            give(Desc { addr: self.address(number), len: here as u32, options });
        }
        true
    }

    /// Takes back a frame that was sent.
    pub(crate) fn sent(&mut self, addr: u64) {
        let number = self.place(addr).0.filter(|&number| number >= self.ring);
        self.spare.extend(number.and_then(|number| self.lent[number].take()));
    }

    /// Receive frames that packets hold.
    pub(crate) fn held(&self) -> usize {
        let ours = self.home.len() + self.spare.len() + self.lent.iter().flatten().count();
        self.pool.in_use().saturating_sub(ours)
    }

    fn address(&self, number: usize) -> u64 {
        number as u64 * self.frame_size as u64
    }

    /// Number of the frame that contains an address, if any, and the offset in the frame.
    fn place(&self, addr: u64) -> (Option<usize>, usize) {
        let frame_size = self.frame_size as u64;
        let number = usize::try_from(addr / frame_size).ok().filter(|&number| number < self.lent.len());
        (number, (addr % frame_size) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 2048;

    /// Four receive frames, lent, and four transmit frames.
    fn frames() -> Frames {
        let mut frames = Frames::new(4, SIZE as usize).unwrap();
        let mut given = Vec::new();
        assert!(frames.lend_home(|addr| {
            given.push(addr);
            true
        }));
        given.sort_unstable();
        assert_eq!((given, frames.receivable(), frames.held()), (vec![0, SIZE, 2 * SIZE, 3 * SIZE], 4, 0));
        frames
    }

    fn desc(addr: u64, len: u32) -> Desc {
        Desc { addr, len, options: 0 }
    }

    #[test]
    fn frame_is_free_again_after_its_last_part_is_dropped() {
        let mut frames = frames();
        let mut piece = frames.received(desc(SIZE + 256, 1514)).unwrap();
        assert_eq!((piece.bytes.len(), piece.bytes.headroom(), piece.continues), (1514, 256, false));
        assert!(piece.bytes.is_writable());
        let front = piece.bytes.split_to(14);
        assert_eq!((frames.held(), frames.receivable()), (1, 3));
        drop(piece);
        assert!(!frames.lend_home(|_| true));
        drop(front);
        let mut given = Vec::new();
        assert!(!frames.lend_home(|_| false), "there is no slot");
        assert!(frames.lend_home(|addr| {
            given.push(addr);
            true
        }));
        assert_eq!((given, frames.held(), frames.receivable()), (vec![SIZE], 0, 4));
        let all = Desc { options: libc::XDP_PKT_CONTD, ..desc(3 * SIZE, SIZE as u32) };
        assert!(frames.received(all).unwrap().continues);
        assert_eq!(frames.received(desc(2 * SIZE - 1, 0)).unwrap().bytes.len(), 0);
    }

    #[test]
    fn impossible_descriptor_is_refused_and_no_frame_is_lost() {
        let mut frames = frames();
        let wrong = [
            desc(256, SIZE as u32 - 255),
            desc(2 * SIZE - 1, 2),
            desc(0, u32::MAX),
            // Transmit frames, and addresses beyond the memory.
            desc(4 * SIZE, 100),
            desc(8 * SIZE, 100),
            desc(u64::MAX, 1),
            desc(u64::MAX - SIZE, u32::MAX),
        ];
        for desc in wrong {
            assert_eq!(frames.received(desc).err(), Some(DropReason::RingDescriptor), "{desc:?}");
            assert_eq!((frames.receivable(), frames.held()), (4, 0));
        }
        let first = frames.received(desc(256, 100)).unwrap();
        assert_eq!(frames.received(desc(256, 100)).err(), Some(DropReason::RingDescriptor), "it has it no more");
        drop(first);
        assert_eq!(frames.received(desc(256, 100)).err(), Some(DropReason::RingDescriptor), "nor has it yet");
        assert!(frames.lend_home(|_| true));
        assert!(frames.received(desc(256, 100)).is_ok());
    }

    #[test]
    fn packet_fills_as_many_frames_as_it_needs_or_none() {
        let mut frames = frames();
        let data: Vec<u8> = (0..5000).map(|at| (at % 251) as u8).collect();
        let pieces = || [&data[..1], &[], &data[1..3000], &data[3000..]].into_iter();
        let mut given: Vec<Desc> = Vec::new();
        assert!(!frames.fill(5000, pieces(), 2, |_| panic!("three frames, and room for two")));
        assert!(frames.fill(5000, pieces(), 9, |desc| given.push(desc)));
        assert_eq!(given.iter().map(|desc| desc.len).collect::<Vec<_>>(), [2048, 2048, 904]);
        assert_eq!(
            given.iter().map(|desc| desc.options).collect::<Vec<_>>(),
            [libc::XDP_PKT_CONTD, libc::XDP_PKT_CONTD, 0]
        );
        let lent = |desc: &Desc| frames.lent[(desc.addr / SIZE) as usize].as_ref().unwrap().bytes();
        assert_eq!(given.iter().flat_map(lent).copied().collect::<Vec<_>>(), data);
        assert!(!frames.fill(5000, pieces(), 9, |_| panic!("one frame is left")));
        // Completions of lent transmit frames are taken back; those of other transmit frames and of receive frames are
        // ignored.
        for addr in [given[0].addr, given[1].addr, given[0].addr, 0, 8 * SIZE, u64::MAX] {
            frames.sent(addr);
        }
        assert_eq!((frames.spare.len(), frames.receivable(), frames.held()), (3, 4, 0));
        frames.sent(given[2].addr);
        assert!((0..4).all(|_| frames.fill(60, std::iter::once(&data[..60]), 9, |_| {})));
        assert!(!frames.fill(60, std::iter::once(&data[..60]), 9, |_| {}));
    }
}

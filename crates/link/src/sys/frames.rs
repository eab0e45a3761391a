//! The frames of an AF_XDP socket's memory, and who has them.
//!
//! Invariant 1: a frame is in exactly one place: at home in the pool, in `home` or in `spare`; lent to the kernel, and then
//! its buffer, into which nobody looks, is in `lent`; or with somebody as a buffer.
//! Invariant 2: the kernel is told of a frame only when its buffer goes into `lent`. What the kernel says of one that it
//! gives back is checked first: that it had it, and for what, and that the data lies in it.

use std::io;
use std::ptr::NonNull;

use base::DropReason;
use packet::{Backing, Buf, Pool};

use super::ring::{Desc, Mapping};

/// A piece of a packet that was received.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: Buf,
    /// More of the same packet follows.
    pub(crate) continues: bool,
}

/// Frames to receive into, and behind them as many to send from.
#[derive(Debug)]
pub(crate) struct Frames {
    /// By the number of the frame.
    lent: Vec<Option<Buf>>,
    /// How many of those to receive into are in it.
    receivable: usize,
    /// Frames to send from that the kernel does not have.
    spare: Vec<Buf>,
    /// Frames that came home, on their way to the kernel.
    home: Vec<Buf>,
    pool: Pool,
    memory: NonNull<[u8]>,
    ring: usize,
    frame_size: usize,
}

// SAFETY: `memory` is an address that is told, and nothing here reads or writes by it.
unsafe impl Send for Frames {}

impl Frames {
    /// So many of each kind.
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

    /// Where they are.
    pub(crate) fn memory(&self) -> NonNull<[u8]> {
        self.memory
    }

    /// Lends the kernel the frames that came home, by their addresses, as long as it takes one. Tells whether there were any.
    pub(crate) fn lend_home(&mut self, mut give: impl FnMut(u64) -> bool) -> bool {
        self.pool.take_free(&mut self.home);
        let before = self.home.len();
        while let Some(buf) = self.home.pop() {
            let number = self.pool.number_of(&buf).expect("only this pool's come home");
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

    /// How many frames the kernel has to receive into, or has filled and nobody received.
    pub(crate) fn receivable(&self) -> usize {
        self.receivable
    }

    /// What the kernel has filled.
    pub(crate) fn received(&mut self, desc: Desc) -> Result<Piece, DropReason> {
        let (number, offset) = self.place(desc.addr);
        let end = offset.checked_add(desc.len as usize).filter(|&end| end <= self.frame_size);
        let end = end.ok_or(DropReason::RingDescriptor)?;
        let lent = number.filter(|&number| number < self.ring).and_then(|number| self.lent[number].take());
        let mut bytes = lent.ok_or(DropReason::RingDescriptor)?;
        self.receivable -= 1;
        // What lies before it is room for the headers that a packet gets.
        let filled = bytes.put(end).is_some();
        debug_assert!(filled, "a frame that was lent is whole and empty");
        bytes.pull(offset);
        Ok(Piece { bytes, continues: desc.options & libc::XDP_PKT_CONTD != 0 })
    }

    /// Copies a packet of `len` bytes to frames, if there are enough and no more than `most`, and lends them to be sent. Tells
    /// whether it did.
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

    /// Frames to receive into that packets hold.
    pub(crate) fn held(&self) -> usize {
        let ours = self.home.len() + self.spare.len() + self.lent.iter().flatten().count();
        self.pool.in_use().saturating_sub(ours)
    }

    fn address(&self, number: usize) -> u64 {
        number as u64 * self.frame_size as u64
    }

    /// The number of the frame in which an address lies, if there is one, and how far in.
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

    /// Four frames to receive into, lent, and four to send from.
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
    fn a_frame_is_a_buffer_until_the_last_part_of_it_is_home() {
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
    fn what_cannot_have_been_received_is_refused_and_no_frame_is_lost() {
        let mut frames = frames();
        let wrong = [
            desc(256, SIZE as u32 - 255),
            desc(2 * SIZE - 1, 2),
            desc(0, u32::MAX),
            // Those to send from, and beyond all.
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
    fn a_packet_goes_to_as_many_frames_as_it_takes_or_to_none() {
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
        // Sent; what was not, or is to receive into, is not taken back.
        for addr in [given[0].addr, given[1].addr, given[0].addr, 0, 8 * SIZE, u64::MAX] {
            frames.sent(addr);
        }
        assert_eq!((frames.spare.len(), frames.receivable(), frames.held()), (3, 4, 0));
        frames.sent(given[2].addr);
        assert!((0..4).all(|_| frames.fill(60, std::iter::once(&data[..60]), 9, |_| {})));
        assert!(!frames.fill(60, std::iter::once(&data[..60]), 9, |_| {}));
    }
}

//! Receive page posted to the system.

use packet::{Buf, Memory, PoolDry};

/// Alignment of packets in a page, so that headers of small packets straddle as few cache lines as possible.
const ALIGN: usize = 64;

/// Room for one packet, in a page that several small packets share: each gets an exclusive range, and the page returns
/// to its pool with the last of them.
#[derive(Debug, Default)]
pub(crate) struct Posted {
    /// Buffer whose room is all data, so that it can be borrowed as a slice.
    buf: Option<Buf>,
}

impl Posted {
    pub(crate) const fn new() -> Self {
        Self { buf: None }
    }

    /// At least `need` bytes of room, zeroed or with bytes of an earlier packet.
    pub(crate) fn room(&mut self, mem: &Memory, headroom: usize, need: usize) -> Result<&mut [u8], PoolDry> {
        if self.buf.as_ref().is_none_or(|buf| buf.len() < need) {
            let mut buf = mem.take(headroom, need)?;
            let all = buf.tailroom();
            buf.put(all).ok_or(PoolDry)?;
            self.buf = Some(buf);
        }
        self.buf.as_mut().and_then(Buf::bytes_mut).ok_or(PoolDry)
    }

    /// Takes the first `len` bytes of the room, which hold a received packet. The remainder of the page stays posted if
    /// it has `need` bytes behind `headroom`.
    ///
    /// # Panics
    /// When there is less room.
    pub(crate) fn take(&mut self, len: usize, headroom: usize, need: usize) -> Buf {
        let mut buf = self.buf.take().expect("room was posted");
        let end = len.next_multiple_of(ALIGN);
        if buf.len() >= end + headroom + need {
            let mut front = buf.split_to(end);
            front.trim(len);
            buf.pull(headroom);
            self.buf = Some(buf);
            return front;
        }
        buf.trim(len);
        buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_packets_share_a_page_without_overlap() {
        let mem = Memory::heap();
        let mut posted = Posted::new();
        let mut got = Vec::new();
        for round in 0..6_u8 {
            let room = posted.room(&mem, 128, 65_535).unwrap();
            assert!(room.len() >= 65_535);
            room[..60].fill(round);
            let mut buf = posted.take(60, 128, 65_535);
            buf.push(100).expect("headroom of its own").fill(0xff);
            got.push(buf);
        }
        assert_eq!(mem.large().in_use(), 1);
        for (round, buf) in got.iter_mut().enumerate() {
            buf.pull(100);
            assert!(buf.is_writable());
            assert_eq!(buf.bytes(), [round as u8; 60]);
        }
    }

    #[test]
    fn large_packet_takes_the_whole_page() {
        let mem = Memory::heap();
        let mut posted = Posted::new();
        for pages in 1..=3 {
            posted.room(&mem, 128, 65_535).unwrap().fill(7);
            std::mem::forget(posted.take(65_000, 128, 65_535));
            assert_eq!(mem.large().in_use(), pages);
        }
    }

    #[test]
    fn empty_pool_posts_nothing() {
        let mem = Memory::new(packet::Pool::heap(2048), packet::Pool::bounded(Memory::LARGE, 0));
        assert_eq!(Posted::new().room(&mem, 128, 65_535).err(), Some(PoolDry));
        assert!(Posted::new().room(&mem, 128, 1500).is_ok());
    }
}

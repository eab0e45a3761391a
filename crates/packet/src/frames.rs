//! Packets that share one buffer while they take the same path ([`Cut::Frames`]).

use crate::meta::{Cut, Frames, Meta};
use crate::packet::Packet;

impl Packet {
    /// The bytes of each packet in the buffer; empty unless the packet is [`Cut::Frames`].
    pub fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let (stride, size) = match self.meta.cut {
            Cut::Frames(frames) => (usize::from(frames.stride), usize::from(frames.size)),
            Cut::Whole | Cut::Gso(_) | Cut::Fragment => (1, 0),
        };
        let all = if size > 0 { self.head() } else { &[] };
        all.chunks(stride.max(1)).map(move |chunk| &chunk[..size.min(chunk.len())])
    }

    /// Pushes `header` in front of each packet in the buffer. Returns whether there was room; without room nothing is
    /// changed.
    #[must_use]
    pub fn push_each(&mut self, header: &[u8]) -> bool {
        let Cut::Frames(mut frames) = self.meta.cut else { return false };
        let fits = header.len() <= frames.room().min(self.head.headroom()) && self.head.is_writable();
        if !fits || self.head.push(header.len()).is_none() {
            return false;
        }
        frames.size += header.len() as u16;
        self.meta.cut = Cut::Frames(frames);
        let Some(bytes) = self.head.bytes_mut() else { return false };
        for frame in bytes.chunks_mut(frames.stride.into()) {
            frame[..header.len()].copy_from_slice(header);
        }
        true
    }

    /// Splits off the first packet of the buffer, by reference; `None` when only one packet is left.
    pub fn take_frame(&mut self) -> Option<Self> {
        let Cut::Frames(frames) = self.meta.cut else { return None };
        if frames.count <= 1 {
            self.meta.cut = Cut::Whole;
            return None;
        }
        let head = self.head.split_to(frames.size.into());
        self.head.pull(frames.room());
        self.meta.cut = Cut::Frames(Frames { count: frames.count - 1, ..frames });
        let mut first = Self::from_buf(head);
        first.meta = Meta { cut: Cut::Whole, ..self.meta.clone() };
        Some(first)
    }

    /// Drops the first `n` packets of the buffer, but always keeps the last one.
    pub fn skip_frames(&mut self, n: usize) {
        let Cut::Frames(frames) = self.meta.cut else { return };
        let n = n.min(usize::from(frames.count) - 1);
        self.head.pull(n * usize::from(frames.stride));
        self.meta.cut = Cut::Frames(Frames { count: frames.count - n as u16, ..frames });
    }

    /// Appends the packets of the buffer to `out`, or the packet itself if it is a single one.
    pub fn into_frames(mut self, out: &mut Vec<Self>) {
        out.extend(std::iter::from_fn(|| self.take_frame()));
        out.push(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Memory, PACKET_OVERHEAD};

    const ROOM: usize = 20;

    /// Packets of these lengths, filled with their number, with [`ROOM`] in front of each.
    fn frames(mem: &Memory, lens: &[usize]) -> Packet {
        let (size, stride) = (lens[0], lens[0] + ROOM);
        let mut buf = mem.take(ROOM, lens.len() * stride).unwrap();
        buf.put((lens.len() - 1) * stride + lens[lens.len() - 1]).unwrap().fill(0xee);
        for (at, (frame, &len)) in buf.bytes_mut().unwrap().chunks_mut(stride).zip(lens).enumerate() {
            frame[..len].fill(at as u8);
        }
        let mut pkt = Packet::from_buf(buf);
        pkt.meta.cut = Cut::Frames(Frames { size: size as u16, stride: stride as u16, count: lens.len() as u16 });
        pkt
    }

    fn bytes(pkt: &Packet) -> Vec<Vec<u8>> {
        pkt.frames().map(<[u8]>::to_vec).collect()
    }

    #[test]
    fn frames_are_seen_and_split_off_as_they_lie() {
        let mem = Memory::heap();
        for lens in [&[300, 300, 300][..], &[300, 300, 1], &[300, 300, 299], &[300]] {
            let pkt = frames(&mem, lens);
            let want: Vec<Vec<u8>> = lens.iter().enumerate().map(|(at, &len)| vec![at as u8; len]).collect();
            assert_eq!((bytes(&pkt), pkt.meta.cut.segs()), (want.clone(), lens.len() as u64));
            let truesize = pkt.truesize();
            let mut out = Vec::new();
            pkt.into_frames(&mut out);
            let got: Vec<Vec<u8>> = out.iter().map(Packet::to_vec).collect();
            assert_eq!(got, want);
            assert_eq!(
                out.iter().map(|pkt| pkt.truesize() - PACKET_OVERHEAD).sum::<usize>(),
                truesize - PACKET_OVERHEAD
            );
            for pkt in &mut out {
                assert_eq!((pkt.meta.cut, pkt.headroom()), (Cut::Whole, ROOM));
                assert!(pkt.head_mut().is_some(), "split by reference, and not shared");
            }
        }
    }

    #[test]
    fn each_gets_the_header_that_all_get() {
        let mem = Memory::heap();
        let mut pkt = frames(&mem, &[100, 100, 7]);
        assert!(pkt.push_each(&[0xaa; 14]));
        let with = |n: u8, len: usize| [vec![0xaa; 14], vec![n; len]].concat();
        assert_eq!(bytes(&pkt), [with(0, 100), with(1, 100), with(2, 7)]);
        assert!(!pkt.push_each(&[0xbb; ROOM - 13]), "no room for so much more");
        assert!(pkt.push_each(&[0xcc; ROOM - 14]));
        let mut out = Vec::new();
        pkt.into_frames(&mut out);
        assert_eq!(out[1].to_vec(), [vec![0xcc; ROOM - 14], with(1, 100)].concat());
        assert!(!out[1].push_each(&[0]), "it is one packet now");
    }

    #[test]
    fn shared_buffer_gets_no_header() {
        let mem = Memory::heap();
        let mut pkt = frames(&mem, &[100, 100]);
        let other = pkt.clone_shared();
        let before = bytes(&other);
        assert!(!pkt.push_each(&[0xaa; 14]));
        assert_eq!((bytes(&pkt), bytes(&other)), (before.clone(), before));
    }

    #[test]
    fn those_that_are_gone_leave_the_others() {
        let mem = Memory::heap();
        for (skipped, left) in [(0, 3), (1, 2), (2, 1), (3, 1), (1000, 1)] {
            let mut pkt = frames(&mem, &[100, 100, 7]);
            let want = bytes(&pkt)[3 - left..].to_vec();
            pkt.skip_frames(skipped);
            assert_eq!((bytes(&pkt), pkt.meta.cut.segs()), (want, left as u64), "{skipped}");
        }
    }

    #[test]
    fn other_packets_have_no_frames() {
        let mem = Memory::heap();
        let mut pkt = Packet::with_data(&mem, &[1; 100]).unwrap();
        assert_eq!(pkt.frames().count(), 0);
        assert!(pkt.take_frame().is_none());
        pkt.skip_frames(1);
        let mut out = Vec::new();
        pkt.into_frames(&mut out);
        assert_eq!((out.len(), out[0].len()), (1, 100));
    }
}

//! What comes out of ESP packets, as it is handed on.

use std::convert::Infallible;
use std::ops::ControlFlow;

use base::{DropReason, LinkId};
use offload::gro::Room;
use packet::{Buf, Meta, Packet};

/// Who is handed what comes out of ESP packets.
pub trait Taker {
    /// What it breaks off with.
    type Left;

    /// Takes a packet that lies in one buffer, TCP about which there was nothing to find out: most are such.
    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Self::Left>;

    /// As [`take_plain`](Self::take_plain). It may take some of those that are known to continue this one as well.
    fn take_followed(&mut self, buf: Buf, meta: &Meta, following: &mut Following<'_>) -> ControlFlow<Self::Left> {
        let _ = following;
        self.take_plain(buf, meta)
    }

    /// Takes whatever came out of one ESP packet.
    fn take(&mut self, inner: Inner<'_>) -> ControlFlow<Self::Left>;
}

/// Takes everything, and gives it to a function.
#[derive(Debug)]
pub struct Each<F>(pub F);

impl<F: FnMut(Inner<'_>)> Taker for Each<F> {
    type Left = Infallible;

    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Infallible> {
        self.take(Inner::Content(Content::new(buf, meta)))
    }

    fn take(&mut self, inner: Inner<'_>) -> ControlFlow<Infallible> {
        self.0(inner);
        ControlFlow::Continue(())
    }
}

/// Packets behind one that is taken, each of which [continues](offload::gro::Succession) the one before it.
#[derive(Debug)]
pub struct Following<'a> {
    /// What they lie in, each behind so many bytes of its buffer: the next one last.
    bufs: &'a mut Vec<Buf>,
    front: usize,
    /// How many of these there are.
    packets: u16,
    fixed_id: bool,
    /// How many were taken.
    taken: u16,
}

impl<'a> Following<'a> {
    /// The last `packets` of `bufs`, from the end, behind the first `front` bytes of each.
    #[inline]
    pub(crate) const fn new(bufs: &'a mut Vec<Buf>, front: usize, packets: u16, fixed_id: bool) -> Self {
        Self { bufs, front, packets, fixed_id, taken: 0 }
    }

    /// Takes as many as there is room for, if there is any: their buffers, and how many bytes of each are in front.
    #[inline]
    pub fn take(&mut self, room: Room) -> Option<(impl ExactSizeIterator<Item = Buf>, usize)> {
        let n = if room.fixed_id == self.fixed_id { room.packets.min(self.packets) } else { 0 };
        self.taken += n;
        self.packets -= n;
        let from = self.bufs.len() - usize::from(n);
        (n > 0).then(|| (self.bufs.drain(from..).rev(), self.front))
    }

    /// How many were taken.
    pub(crate) const fn taken(&self) -> u16 {
        self.taken
    }
}

/// What came out of one ESP packet.
#[derive(Debug)]
pub enum Inner<'a> {
    /// A packet.
    Content(Content<'a>),
    /// Nothing, of what came by that link. The counter is counted.
    Dropped(DropReason, LinkId),
}

/// A packet that was inside of ESP.
#[derive(Debug)]
pub struct Content<'a> {
    /// What its ESP header's place is taken by, if that does not fit in front of the rest.
    pub(super) front: Option<Buf>,
    pub(super) buf: Buf,
    pub(super) meta: &'a Meta,
}

impl<'a> Content<'a> {
    /// All of it in one buffer.
    #[inline]
    pub(super) fn new(buf: Buf, meta: &'a Meta) -> Self {
        Self { front: None, buf, meta }
    }

    /// The buffer that all of it lies in, and what is known about it.
    ///
    /// # Errors
    /// It lies in two: the packet.
    #[inline]
    pub fn into_buf(self) -> Result<(Buf, &'a Meta), Packet> {
        if self.front.is_some() {
            return Err(self.into_packet());
        }
        Ok((self.buf, self.meta))
    }

    /// As a packet.
    pub fn into_packet(self) -> Packet {
        let Self { front, buf, meta } = self;
        let mut pkt = match front {
            None => Packet::from_buf(buf),
            Some(front) => {
                let mut pkt = Packet::from_buf(front);
                pkt.push_frag(buf).expect("the first slot");
                pkt
            }
        };
        pkt.meta = meta.clone();
        pkt
    }
}

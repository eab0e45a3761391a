//! Decrypted packets, as they are handed on.

use std::convert::Infallible;
use std::ops::ControlFlow;

use base::{DropReason, Origin};
use packet::{Buf, Meta, Packet};

/// Consumer of decrypted packets.
pub trait Taker {
    /// Value that it breaks off with.
    type Left;

    /// Takes a packet that lies in one buffer, TCP about which there was nothing to find out: most are such.
    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Self::Left>;

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

/// Decrypted contents of one ESP packet.
#[derive(Debug)]
pub enum Inner<'a> {
    /// A packet.
    Content(Content<'a>),
    /// Nothing, of what came by that link. The counter is counted.
    Dropped(DropReason, Origin),
}

/// A packet that was inside of ESP.
#[derive(Debug)]
pub struct Content<'a> {
    /// Separate buffer for the IP headers, if there is no room for them in front of the payload.
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

//! Decrypted packets, and the interface of their consumer.

use std::convert::Infallible;
use std::ops::ControlFlow;

use base::{DropReason, Origin};
use packet::{Buf, Meta, Packet};

/// Consumer of decrypted packets.
pub trait DecryptSink {
    /// Value to break off with.
    type Break;

    /// Takes a packet in one buffer, with TCP and no further facts: the common case.
    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Self::Break>;

    /// Takes the contents of any ESP packet.
    fn take(&mut self, inner: Decrypted<'_>) -> ControlFlow<Self::Break>;
}

/// Consumer that passes everything to a function.
#[derive(Debug)]
pub struct FnSink<F>(pub F);

impl<F: FnMut(Decrypted<'_>)> DecryptSink for FnSink<F> {
    type Break = Infallible;

    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Infallible> {
        self.take(Decrypted::Packet(InnerPacket::new(buf, meta)))
    }

    fn take(&mut self, inner: Decrypted<'_>) -> ControlFlow<Infallible> {
        self.0(inner);
        ControlFlow::Continue(())
    }
}

/// Decrypted contents of one ESP packet.
#[derive(Debug)]
pub enum Decrypted<'a> {
    /// A packet.
    Packet(InnerPacket<'a>),
    /// A dropped packet, with the link that it came by. The counter is counted.
    Dropped(DropReason, Origin),
}

/// A decrypted packet.
#[derive(Debug)]
pub struct InnerPacket<'a> {
    /// Separate buffer for the IP headers, if there is no room for them in front of the payload.
    pub(super) front: Option<Buf>,
    pub(super) buf: Buf,
    pub(super) meta: &'a Meta,
}

impl<'a> InnerPacket<'a> {
    /// A packet in one buffer.
    #[inline]
    pub(super) fn new(buf: Buf, meta: &'a Meta) -> Self {
        Self { front: None, buf, meta }
    }

    /// The buffer and metadata.
    ///
    /// # Errors
    /// The packet, if it has two buffers.
    #[inline]
    pub fn into_buf(self) -> Result<(Buf, &'a Meta), Packet> {
        if self.front.is_some() {
            return Err(self.into_packet());
        }
        Ok((self.buf, self.meta))
    }

    /// Converts it to a packet.
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

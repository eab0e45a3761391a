//! Sinks for decrypted packets: they append payload to GRO's super-packets without an intermediate packet.

use std::ops::ControlFlow;

use ipsec::{DecryptSink, Decrypted};
use offload::Gro;
use packet::{Buf, Memory, Meta, Packet};
use wire::ip;

use crate::node::ports::Ports;

/// Takes decrypted packets, most of which continue a super-packet in GRO. Stops at a packet that may be ESP again.
pub(crate) struct GroSink<'a> {
    pub(crate) gro: &'a mut Gro,
    pub(crate) ports: &'a mut Ports,
    pub(crate) mem: &'a Memory,
    pub(crate) out: &'a mut Vec<Packet>,
}

impl DecryptSink for GroSink<'_> {
    type Break = Packet;

    /// Runs are of links with GRO.
    #[inline(always)]
    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Packet> {
        match self.gro.join(self.mem, buf, meta, self.out) {
            Ok(()) => ControlFlow::Continue(()),
            Err(buf) => self.take_left(left(buf, meta)),
        }
    }

    /// Kept out of line: most packets are plain.
    #[inline(never)]
    fn take(&mut self, inner: Decrypted<'_>) -> ControlFlow<Packet> {
        match inner {
            Decrypted::Packet(content) => {
                let (buf, meta) = match content.into_buf() {
                    Ok(plain) => plain,
                    Err(pkt) => return ControlFlow::Break(pkt),
                };
                if self.is_for(meta) { self.take_plain(buf, meta) } else { ControlFlow::Break(left(buf, meta)) }
            }
            Decrypted::Dropped(reason, origin) => {
                self.ports.count_drops(origin, reason, 1).end();
                ControlFlow::Continue(())
            }
        }
    }
}

impl GroSink<'_> {
    /// Takes the first packet of a flow, if it is TCP.
    #[inline(never)]
    fn take_left(&mut self, pkt: Packet) -> ControlFlow<Packet> {
        if !ip::is_plain_tcp(pkt.head()) {
            return ControlFlow::Break(pkt);
        }
        self.gro.receive(self.mem, pkt, self.out);
        ControlFlow::Continue(())
    }

    /// Tells whether a packet is of a link with GRO.
    #[inline]
    fn is_for(&self, meta: &Meta) -> bool {
        self.ports.get(meta.origin.device()).is_some_and(|port| port.config.gro)
    }
}

/// The same for packets of any link.
pub(crate) struct AnyLinkSink<'a>(pub(crate) GroSink<'a>);

impl DecryptSink for AnyLinkSink<'_> {
    type Break = Packet;

    #[inline(always)]
    fn take_plain(&mut self, buf: Buf, meta: &Meta) -> ControlFlow<Packet> {
        if self.0.is_for(meta) { self.0.take_plain(buf, meta) } else { ControlFlow::Break(left(buf, meta)) }
    }

    fn take(&mut self, inner: Decrypted<'_>) -> ControlFlow<Packet> {
        self.0.take(inner)
    }
}

/// Handles a decrypted packet that GRO does not take, and that may be ESP again.
fn left(buf: Buf, meta: &Meta) -> Packet {
    let mut pkt = Packet::from_buf(buf);
    pkt.meta = meta.clone();
    pkt
}

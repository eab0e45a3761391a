//! GRO: received packets, and those that ESP has decrypted, are coalesced into super-packets (Linux `napi_gro_receive`).

use std::ops::ControlFlow;

use ipsec::Ipsec;
use packet::Packet;

use super::gro_sink::{AnyLinkSink, GroSink};
use crate::{Cx, Datapath, Next, tx};

/// Packets that have left GRO and go to IP input, in order. Its storage is lent by [`Datapath`] and returned by [`run`].
pub(super) type GroOut = Vec<Packet>;

/// Input that follows a burst.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BurstEnd {
    /// More packets.
    MoreComing,
    /// More packets, by a device that is low on frames: frames that no crypto thread works on are returned to it.
    MoreComingLowOnFrames,
    /// None.
    Idle,
}

/// Runs the packets that have left GRO through the datapath.
pub(super) fn run(dp: &mut Datapath, cx: Cx<'_>, mut out: GroOut) {
    for pkt in out.drain(..) {
        dp.run_packet(cx, pkt, Next::L3In);
    }
    // The longer storage is kept.
    if out.capacity() > dp.scratch.gro_out.capacity() {
        dp.scratch.gro_out = out;
    }
}

/// Empty storage for packets that leave GRO.
pub(super) fn storage(dp: &mut Datapath) -> GroOut {
    std::mem::take(&mut dp.scratch.gro_out)
}

/// Gives a packet to GRO if its link has GRO, and returns the packets that leave GRO.
#[inline]
pub(super) fn push(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet) -> GroOut {
    let mut out = storage(dp);
    match dp.ports.get(pkt.meta.origin.device()) {
        Some(port) if port.config.gro => dp.gro.receive(cx.mem, pkt, &mut out),
        _ => {
            if dp.gro.held() > 0 {
                dp.gro.flush_between(pkt.head(), &mut out);
            }
            out.push(pkt);
        }
    }
    out
}

/// Takes the packets of GRO that a packet which begins with `header` must not overtake.
pub(super) fn flush_before(dp: &mut Datapath, header: &[u8]) -> GroOut {
    let mut out = storage(dp);
    dp.gro.flush_between(header, &mut out);
    out
}

/// Passes decrypted packets on, in order: to GRO, or to another decryption. A packet has at most as many layers of ESP as a
/// security path has room for.
pub(crate) fn pass_decrypted(dp: &mut Datapath, cx: Cx<'_>) {
    loop {
        let mut out = storage(dp);
        let Datapath { ipsec, gro, ports, counters, .. } = dp;
        let mut sink = AnyLinkSink(GroSink { gro, ports, mem: cx.mem, out: &mut out });
        let flow = ipsec.pass_opened(cx.mem, cx.now, counters, &mut sink);
        run(dp, cx, out);
        match flow {
            ControlFlow::Break(pkt) => super::decrypted(dp, cx, pkt),
            ControlFlow::Continue(()) => return,
        }
    }
}

/// Ends a burst: flushes the ciphers, in order, except for packets at a device, and then GRO. If `end` says that more input
/// follows, it does not wait for crypto threads, and GRO keeps super-packets that may grow.
pub(crate) fn flush(dp: &mut Datapath, cx: Cx<'_>, end: BurstEnd) {
    let work = if end == BurstEnd::Idle { Ipsec::work } else { Ipsec::help };
    loop {
        // A decrypted packet may be ESP again.
        while work(&mut dp.ipsec, cx.now) {
            pass_decrypted(dp, cx);
            tx::xfrm::send_sealed(dp, cx);
        }
        let keeps = match end {
            BurstEnd::MoreComing => true,
            BurstEnd::MoreComingLowOnFrames => dp.ipsec.is_opening(),
            BurstEnd::Idle => false,
        };
        if keeps || dp.gro.held() == 0 {
            return;
        }
        let mut out = storage(dp);
        dp.gro.flush(&mut out);
        run(dp, cx, out);
    }
}

//! GRO: received packets, and those that ESP has decrypted, are coalesced into super-packets (Linux `napi_gro_receive`).

use packet::Packet;

use crate::{Cx, Datapath, Next, run};

/// Packets that have left GRO and go to IP input, in order. Its storage is lent by [`Datapath`] and returned by [`run_out`].
pub(super) type GroOut = Vec<Packet>;

/// Runs the packets that have left GRO through the datapath.
pub(super) fn run_out(dp: &mut Datapath, cx: Cx<'_>, mut out: GroOut) {
    for pkt in out.drain(..) {
        run::run_packet(dp, cx, pkt, Next::L3In);
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

/// Passes a packet to GRO if its link has GRO, and returns the packets that leave GRO.
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

//! Frames of bridged ports on their way through GRO.

use base::DropReason;
use packet::Packet;

use super::l2::{self, FrameInput};
use super::{ip_rcv, receive};
use crate::bridge::gro;
use crate::{Carried, Cx, Datapath, IpPacket};

/// Passes a frame of a bridged port to GRO, if GRO may hold it, and the frames that leave GRO to their bridges. Tells whether GRO has
/// taken the frame.
pub(super) fn push(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Carried) -> bool {
    let is_taken = gro::may_hold(pkt);
    if !is_taken && dp.bridges.gro.is_empty() {
        return false;
    }
    let mut out = storage(dp);
    let Datapath { bridges, ports, .. } = dp;
    if is_taken {
        bridges.gro.receive(cx.mem, ports, pkt.take(), &mut out);
    } else {
        bridges.gro.flush_before(cx.mem, ports, pkt, &mut out);
    }
    run_out(dp, cx, out);
    is_taken
}

/// Passes the frames that GRO holds to their bridges.
pub(super) fn flush(dp: &mut Datapath, cx: Cx<'_>) {
    let mut out = storage(dp);
    let Datapath { bridges, ports, .. } = dp;
    bridges.gro.flush(cx.mem, ports, &mut out);
    run_out(dp, cx, out);
}

fn storage(dp: &mut Datapath) -> Vec<Packet> {
    std::mem::take(&mut dp.scratch.bridged)
}

fn run_out(dp: &mut Datapath, cx: Cx<'_>, mut out: Vec<Packet>) {
    for pkt in out.drain(..) {
        bridge(dp, cx, pkt);
    }
    // The longer storage is kept.
    if out.capacity() > dp.scratch.bridged.capacity() {
        dp.scratch.bridged = out;
    }
}

/// Passes a frame that has left GRO to the bridge of its port, which may have left its bridge since.
fn bridge(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet) {
    let link = pkt.meta.origin.device();
    let coalesced_from = gro::segment_len(&pkt);
    let mut ip = IpPacket::unparsed(pkt);
    let next = match dp.ports.get(link).and_then(|port| port.bridge) {
        Some(own) => l2::behind_gro(dp, cx, own, link, &mut ip.pkt, coalesced_from),
        None => Err(DropReason::LinkDown),
    };
    match next {
        Ok(FrameInput::Port(own)) => receive(dp, cx, own, ip.pkt.take()),
        Ok(FrameInput::Ip(framing)) => ip_rcv::receive(dp, cx, &mut ip, framing),
        Ok(FrameInput::Done) => {}
        Err(reason) => dp.count_frame_drop(&ip.pkt, reason),
    }
}

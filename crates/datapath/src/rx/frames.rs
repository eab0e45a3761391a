//! Received frames, and packets of links without link-layer addresses: by way of the link layer, and of GRO for bridged ports.

use base::{DropReason, PortId, ShardId};
use packet::{Packet, PktType};

use super::l2::{self, FrameInput};
use super::{esp_device, ip_rcv};
use crate::bridge::gro;
use crate::hand_over::hand_over;
use crate::local::path_mtu;
use crate::node::shard::Stage;
use crate::run::run;
use crate::{Carried, Cx, Datapath, IpPacket};

/// Handles one received packet with its link-layer header, which the port of a VLAN device or of a bridge may receive again.
pub(crate) fn receive(dp: &mut Datapath, cx: Cx<'_>, mut link: PortId, pkt: Packet) {
    if pkt.meta.esp.is_some() {
        return esp_device::receive(dp, cx, link, pkt);
    }
    let mut ip = IpPacket::unparsed(pkt);
    loop {
        // The first shard bridges for all; a VLAN device may be a port of a bridge, too.
        if !dp.shard.is_first() && dp.ports.get(link).is_some_and(|port| port.bridge.is_some()) {
            return hand_over(dp, cx, ip, ShardId::FIRST, Stage::Frame(link));
        }
        dp.ports.tap_wire(cx.mem, link, &ip.pkt);
        if ip.pkt.meta.pkt_type == PktType::Loopback {
            let next = path_mtu::report(dp, cx, &mut ip);
            return run(dp, cx, &mut ip, next);
        }
        let input = l2::input(dp, cx, link, &mut ip.pkt);
        match go_on(dp, cx, link, &mut ip, input) {
            Some(own) => link = own,
            None => return,
        }
    }
}

/// Continues with the result of the link layer; returns the port that receives the frame next, if one does.
#[inline]
fn go_on(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    ip: &mut IpPacket,
    mut input: Result<FrameInput, DropReason>,
) -> Option<PortId> {
    loop {
        match input {
            Ok(FrameInput::Ip(framing)) => {
                ip_rcv::receive(dp, cx, ip, framing);
                return None;
            }
            Ok(FrameInput::Bridge(own)) => {
                if push(dp, cx, &mut ip.pkt) {
                    return None;
                }
                input = l2::behind_gro(dp, cx, own, link, &mut ip.pkt, None);
            }
            Ok(FrameInput::Port(own)) => return Some(own),
            Ok(FrameInput::Done) => return None,
            Err(reason) => {
                dp.count_frame_drop(&ip.pkt, reason).end();
                return None;
            }
        }
    }
}

/// Passes a frame of a bridged port to GRO, if GRO may hold it, and the frames that leave GRO to their bridges. Tells whether GRO has
/// taken the frame.
fn push(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Carried) -> bool {
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
    let input = match dp.ports.get(link).and_then(|port| port.bridge) {
        Some(own) => l2::behind_gro(dp, cx, own, link, &mut ip.pkt, coalesced_from),
        None => Err(DropReason::LinkDown),
    };
    if let Some(own) = go_on(dp, cx, link, &mut ip, input) {
        receive(dp, cx, own, ip.pkt.take());
    }
}

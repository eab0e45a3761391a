//! Transmission of IP packets that fit the path: to a link without stations, or to the station of the next hop.

use base::DropReason;
use packet::{Cut, Packet};

use super::{device, neighbour};
use crate::next::Hop;
use crate::{Cx, Datapath, IpPacket, Next, hand_over, route_encap, trace};

/// Transmission of an IP packet that fits, with its segment size, to its next hop.
pub(crate) fn transmit(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, mut hop: Hop) -> Next {
    if hop.encap.is_some() {
        hop = match route_encap::translate_unparsed(dp, cx, ip, hop) {
            Ok(hop) => hop,
            Err(reason) => return Next::Drop(reason),
        };
    }
    let Hop { dev, next_hop, .. } = hop;
    let Some(port) = dp.ports.get(dev).filter(|port| port.is_running()) else {
        return Next::Drop(DropReason::LinkDown);
    };
    let is_bare = port.config.mac.is_none();
    if !is_bare && let Some(owner) = hand_over::owner_of_neighbour(dp, dev, next_hop) {
        return hand_over::hand_over_unresolved(dp, cx, ip, owner, hop);
    }
    if !dp.ports.has_detour(dev) {
        dp.ports.tap_fat(cx.mem, dev, true, &ip.pkt);
    }
    if is_bare {
        device::enqueue_ip(dp, cx, dev, ip.pkt.take(), 0);
        return Next::Done;
    }
    if matches!(ip.pkt.meta.cut, Cut::Frames(_)) && !dp.neighbours.is_resolved(dev, next_hop) {
        // Frames that have to wait are queued one by one.
        while let Some(frame) = ip.pkt.take_frame() {
            let mut frame = IpPacket::unparsed(frame);
            let next = neighbour::resolve(dp, cx, &mut frame, hop);
            dp.defer(frame, next);
        }
    }
    neighbour::resolve(dp, cx, ip, hop)
}

/// Transmits a packet that a stage has made of the packet it handles.
pub(crate) fn transmit_packet(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, hop: Hop) {
    let mut ip = IpPacket::unparsed(pkt);
    trace::stage(dp, cx, &mut ip, Next::Transmit(hop));
    let next = transmit(dp, cx, &mut ip, hop);
    dp.defer(ip, next);
}

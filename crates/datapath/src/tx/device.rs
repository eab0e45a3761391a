//! Device: the link-layer header, and the queue of packets that fit the link.

use base::{DropReason, LinkId};
use packet::{Memory, Packet};
use wire::eth::{self, EtherType};
use wire::{MacAddr, Version};

use super::{esp_device, queue};
use crate::node::qdisc::QueuedPacket;
use crate::node::trace::Step;
use crate::{Carried, Cx, Datapath, Device, IpPacket, Next, Port, trace, vlan};

/// Puts an Ethernet header in front of an IP packet and queues it.
pub(super) fn frame(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, to: MacAddr, pkt: &mut Carried) -> Next {
    let Some(mac) = dp.ports.get(link).and_then(|port| port.config.mac) else {
        return Next::Drop(DropReason::LinkDown);
    };
    let ethertype = match Version::of(pkt.head()) {
        Ok(Version::V4) => EtherType::IPV4,
        Ok(Version::V6) => EtherType::IPV6,
        Err(why) => return Next::Drop(why.into()),
    };
    let header = eth::EthHeader::new(to, mac, ethertype);
    if pkt.push_each(header.as_bytes()) {
        enqueue_ip(dp, cx, link, pkt.take(), eth::EthHeader::LEN);
        return Next::Done;
    }
    while let Some(packet) = pkt.take_frame() {
        run_framed(dp, cx, link, to, packet);
    }
    match pkt.push(cx.mem, eth::EthHeader::LEN) {
        Ok(front) => front.copy_from_slice(header.as_bytes()),
        Err(dry) => return Next::Drop(dry.into()),
    }
    enqueue_ip(dp, cx, link, pkt.take(), eth::EthHeader::LEN);
    Next::Done
}

/// Frames a packet that no other stage carries, and queues it.
pub(crate) fn run_framed(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, to: MacAddr, pkt: Packet) {
    let mut ip = IpPacket::unparsed(pkt);
    let next = frame(dp, cx, link, to, &mut ip.pkt);
    dp.defer(ip, next);
}

/// Queues an IP packet, whose header begins at `l3`, as [`enqueue`] does. If its link has a queueing discipline, a capture of fat
/// packets copies it when it is dequeued.
pub(super) fn enqueue_ip(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, pkt: Packet, l3: usize) {
    if dp.ports.is_shaped(link) {
        enqueue_shaped(dp, cx, link, QueuedPacket { pkt, l3, is_transmitted: true });
    } else {
        enqueue_unshaped(dp, cx, link, pkt, l3);
    }
}

/// Fits a packet, whose IP header begins at `l3`, to its link, and queues it: at once, or when the link's queueing discipline
/// dequeues it.
pub(crate) fn enqueue(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, pkt: Packet, l3: usize) {
    if dp.ports.is_shaped(link) {
        enqueue_shaped(dp, cx, link, QueuedPacket { pkt, l3, is_transmitted: false });
    } else {
        enqueue_unshaped(dp, cx, link, pkt, l3);
    }
}

/// Enqueues a packet in its link's queueing discipline, and dequeues packets that may leave.
#[cold]
pub(crate) fn enqueue_shaped(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, queued: QueuedPacket) {
    queue::enqueue(dp, cx, link, queued);
    run_queue(dp, cx, link);
}

/// Dequeues packets from a link's discipline while the link has room (Linux `__qdisc_run`). Packets of a VRF's discipline are routed
/// again.
#[cold]
pub(crate) fn run_queue(dp: &mut Datapath, cx: Cx<'_>, link: LinkId) {
    let is_vrf = dp.ports.get(link).is_some_and(|port| port.device == Device::Vrf);
    while let Some(QueuedPacket { pkt, l3, .. }) = queue::dequeue(dp, cx, link) {
        if is_vrf {
            dp.defer(IpPacket::unparsed(pkt), Next::VrfOut(link));
        } else {
            // Counted as a drop if it fails.
            let _ = put(dp, cx, link, pkt, l3);
        }
    }
}

/// Dequeues packets from the disciplines of all links.
#[cold]
pub(crate) fn run_queues(dp: &mut Datapath, cx: Cx<'_>) {
    for at in 0..dp.ports.shaped.len() {
        let link = dp.ports.shaped[at];
        if queue::is_due(dp, cx.now, link) {
            run_queue(dp, cx, link);
        }
    }
}

/// Fits a packet to its link, and queues it.
fn enqueue_unshaped(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, pkt: Packet, l3: usize) {
    if !dp.trace.is_on() {
        let _ = put(dp, cx, link, pkt, l3);
        return;
    }
    let step = trace::prepare(dp, &pkt, l3, Step::Queued { dev: link });
    let fitted = put(dp, cx, link, pkt, l3);
    if let Some(mut step) = step {
        if let Err(reason) = fitted {
            step.step = Step::Drop(reason);
        }
        trace::push(dp, step);
    }
}

/// Fits a packet to its link and queues it, or sends it by the link below a VLAN device. Without a trace.
///
/// # Errors
/// As [`fit`] or [`vlan::tag`]; counted as a drop.
fn put(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, mut pkt: Packet, l3: usize) -> Result<(), DropReason> {
    if !matches!(dp.ports.get(link), Some(Port { device: Device::Vlan { .. }, .. })) {
        return fit(dp, cx.mem, link, pkt, l3);
    }
    let (origin, packets) = (pkt.meta.origin.get(), pkt.meta.cut.packets());
    let (lower, l3) =
        vlan::tag(dp, cx, link, &mut pkt, l3).inspect_err(|&reason| dp.ports.drops(origin, reason, packets))?;
    enqueue(dp, cx, lower, pkt, l3);
    Ok(())
}

/// Fits a packet to its link, and queues it, without a trace.
///
/// # Errors
/// As [`Ports::enqueue`](crate::Ports), or [`seal_unless_on_device`](esp_device::seal_unless_on_device); counted as a drop.
pub(crate) fn fit(dp: &mut Datapath, mem: &Memory, link: LinkId, mut pkt: Packet, l3: usize) -> Result<(), DropReason> {
    let origin = pkt.meta.origin.get();
    let packets = pkt.meta.cut.packets();
    if pkt.meta.esp.is_some()
        && let Err(reason) = esp_device::seal_unless_on_device(dp, link, &mut pkt, l3)
    {
        dp.ports.drop(origin, reason);
        return Err(reason);
    }
    dp.ports.enqueue(mem, link, pkt, l3).inspect_err(|&reason| dp.ports.drops(origin, reason, packets))
}

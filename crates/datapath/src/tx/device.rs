//! Device: the link-layer header, and the exit of the datapath by the device of a port ([`put`]).
//!
//! | device | packets |
//! |---|---|
//! | link; device of the host side | are fitted to the device, and queued for its driver |
//! | VLAN device | get its tag, and leave by the port below |
//! | bridge | leave by the ports that the bridge chooses, each with its tag |
//! | VRF | are routed again, when its queueing discipline has dequeued them |
//!
//! A queueing discipline is in front of the device, whatever the device is.

use base::{DropReason, PortId, ShardId};
use packet::Packet;
use switch::Egress;
use wire::eth::{self, EtherType};
use wire::{MacAddr, Version};

use super::{esp_device, queue};
use crate::bridge::egress;
use crate::hand_over::hand_over;
use crate::node::ports::link_of_host_port;
use crate::node::qdisc::QueuedPacket;
use crate::node::shard::Stage;
use crate::node::trace::{Step, TraceStep};
use crate::{Carried, Cx, Datapath, Device, IpPacket, Next, trace, vlan};

/// Limit of the virtual devices that a packet passes on its way out, one above the other (Linux `XMIT_RECURSION_LIMIT`).
const MAX_NESTED: u8 = 8;

/// Puts an Ethernet header in front of an IP packet and queues it.
pub(super) fn frame(dp: &mut Datapath, cx: Cx<'_>, link: PortId, to: MacAddr, pkt: &mut Carried) -> Next {
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
pub(crate) fn run_framed(dp: &mut Datapath, cx: Cx<'_>, link: PortId, to: MacAddr, pkt: Packet) {
    let mut ip = IpPacket::unparsed(pkt);
    let next = frame(dp, cx, link, to, &mut ip.pkt);
    dp.defer(ip, next);
}

/// Queues an IP packet, whose header begins at `l3`, as [`enqueue`] does. If its link has a queueing discipline, a capture of fat
/// packets copies it when it is dequeued.
pub(super) fn enqueue_ip(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) {
    if dp.ports.has_detour(link) {
        enqueue_by_detour(dp, cx, link, QueuedPacket { pkt, l3, is_transmitted: true });
    } else {
        enqueue_unshaped(dp, cx, link, pkt, l3);
    }
}

/// Fits a packet, whose IP header begins at `l3`, to its link, and queues it: at once, or when the link's queueing discipline
/// dequeues it.
pub(crate) fn enqueue(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) {
    if dp.ports.has_detour(link) {
        enqueue_by_detour(dp, cx, link, QueuedPacket { pkt, l3, is_transmitted: false });
    } else {
        enqueue_unshaped(dp, cx, link, pkt, l3);
    }
}

/// Hands a packet to the shard by which packets leave a port, or enqueues it in the link's queueing discipline, and dequeues packets
/// that may leave.
#[cold]
pub(crate) fn enqueue_by_detour(dp: &mut Datapath, cx: Cx<'_>, link: PortId, queued: QueuedPacket) {
    if dp.ports.is_elsewhere(link) {
        let QueuedPacket { pkt, l3, is_transmitted } = queued;
        let stage = Stage::Device { port: link, l3, is_transmitted };
        hand_over(dp, cx, IpPacket::unparsed(pkt), ShardId::FIRST, stage);
        return;
    }
    enqueue_shaped(dp, cx, link, queued);
}

/// Queues a packet that another shard has handed over for a port.
pub(crate) fn continue_handed_over(dp: &mut Datapath, cx: Cx<'_>, port: PortId, mut queued: QueuedPacket) {
    if link_of_host_port(port).is_some() {
        // The tags of a copy are in its bytes.
        queued.l3 = offload::behind_tags(cx.mem, &mut queued.pkt, queued.l3);
    }
    if dp.ports.is_shaped(port) {
        return enqueue_shaped(dp, cx, port, queued);
    }
    if queued.is_transmitted {
        queue::tap_fat(dp, cx, port, &queued.pkt, queued.l3);
    }
    enqueue_unshaped(dp, cx, port, queued.pkt, queued.l3);
}

/// Enqueues a packet in its link's queueing discipline, and dequeues packets that may leave.
fn enqueue_shaped(dp: &mut Datapath, cx: Cx<'_>, link: PortId, queued: QueuedPacket) {
    queue::enqueue(dp, cx, link, queued);
    run_queue(dp, cx, link);
}

/// Dequeues packets from a link's discipline while the link has room (Linux `__qdisc_run`).
#[cold]
pub(crate) fn run_queue(dp: &mut Datapath, cx: Cx<'_>, link: PortId) {
    while let Some(QueuedPacket { pkt, l3, .. }) = queue::dequeue(dp, cx, link) {
        put(dp, cx, link, pkt, l3);
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

/// Passes a packet to the device of its port.
fn enqueue_unshaped(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) {
    if dp.trace.is_on() {
        return put_traced(dp, cx, link, pkt, l3);
    }
    put(dp, cx, link, pkt, l3);
}

/// As [`put`], with a trace.
#[cold]
fn put_traced(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) {
    let Some(step) = trace::prepare(dp, &pkt, l3, Step::Queued { dev: link }) else {
        return put(dp, cx, link, pkt, l3);
    };
    if device_of(dp, link).has_ports_below() {
        // The steps of the ports below follow.
        trace::push(dp, step);
        return put(dp, cx, link, pkt, l3);
    }
    let origin = pkt.meta.origin.get();
    let packets = pkt.meta.cut.packets();
    match try_put(dp, cx, link, pkt, l3) {
        Err(reason) => {
            dp.ports.drops(origin, reason, packets).end();
            trace::push(dp, TraceStep { step: Step::Drop(reason), ..step });
        }
        // Delivery has recorded its own step.
        Ok(()) if link_of_host_port(link).is_some() => {}
        Ok(()) => trace::push(dp, step),
    }
}

/// Passes a packet, whose IP header begins at `l3`, to the device of its port: the only exit of the datapath. A link's packets are
/// fitted and queued for its driver, those of a virtual device go on to another port or stage. Without a trace. Failures are counted as
/// drops.
pub(crate) fn put(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) {
    let origin = pkt.meta.origin.get();
    let packets = pkt.meta.cut.packets();
    if let Err(reason) = try_put(dp, cx, link, pkt, l3) {
        dp.ports.drops(origin, reason, packets).end();
    }
}

/// As [`put`], but failures at this port are not counted yet.
///
/// A packet that a device is to encrypt leaves by that device alone, or is encrypted here first. This is the only place that tests
/// it: each port below comes by here again.
///
/// # Errors
/// As [`Ports::enqueue`](crate::Ports), or [`esp_device::put_or_seal`].
#[inline]
fn try_put(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) -> Result<(), DropReason> {
    if pkt.meta.esp.is_some() {
        return try_put_marked(dp, cx, link, pkt, l3);
    }
    match device_of(dp, link) {
        Device::Link | Device::HostSide => dp.ports.enqueue(cx.mem, link, pkt, l3)?,
        Device::Vlan { .. } => pass_down(dp, cx, link, pkt, l3, put_by_vlan),
        Device::Bridge => pass_down(dp, cx, link, pkt, l3, put_by_bridge),
        Device::Vrf => dp.defer(IpPacket::unparsed(pkt), Next::VrfOut(link)),
    }
    Ok(())
}

/// As [`try_put`], for a packet that a device is to encrypt.
#[cold]
fn try_put_marked(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet, l3: usize) -> Result<(), DropReason> {
    match esp_device::put_or_seal(dp, cx.mem, link, pkt, l3)? {
        Some(sealed) => try_put(dp, cx, link, sealed, l3),
        None => Ok(()),
    }
}

/// Device of a port, or a link if the port is gone.
fn device_of(dp: &Datapath, link: PortId) -> Device {
    dp.ports.get(link).map_or(Device::Link, |port| port.device)
}

/// Output of a virtual device by the ports below it. The packet is left in its place only with an error.
type PutBelow = fn(&mut Datapath, Cx<'_>, PortId, &mut Carried, usize) -> Result<(), DropReason>;

/// Passes a packet of a virtual device to the ports below it, unless it has passed [`MAX_NESTED`] such devices. Failures are counted
/// as drops.
fn pass_down(dp: &mut Datapath, cx: Cx<'_>, own: PortId, pkt: Packet, l3: usize, put_below: PutBelow) {
    if dp.nested_devices == MAX_NESTED {
        return dp.count_packet_drop(&pkt, l3, DropReason::DeviceNesting).end();
    }
    let mut pkt = Carried::new(pkt);
    dp.nested_devices += 1;
    if let Err(reason) = put_below(dp, cx, own, &mut pkt, l3) {
        dp.count_packet_drop(&pkt, trace::l3_of_frame(&pkt), reason).end();
    }
    dp.nested_devices -= 1;
}

/// Sends a packet of a VLAN device by the link below.
///
/// # Errors
/// As [`vlan::tag`].
fn put_by_vlan(dp: &mut Datapath, cx: Cx<'_>, own: PortId, pkt: &mut Carried, l3: usize) -> Result<(), DropReason> {
    let (lower, l3) = vlan::tag(dp, cx, own, pkt, l3)?;
    enqueue(dp, cx, lower, pkt.take(), l3);
    Ok(())
}

/// Sends a frame of this node by the ports of a bridge (Linux `br_dev_xmit`); several frames in one packet one by one.
///
/// # Errors
/// As [`egress::choose`].
fn put_by_bridge(dp: &mut Datapath, cx: Cx<'_>, own: PortId, pkt: &mut Carried, l3: usize) -> Result<(), DropReason> {
    while let Some(frame) = pkt.take_frame() {
        let mut frame = Carried::new(frame);
        if let Err(reason) = put_by_bridge(dp, cx, own, &mut frame, l3) {
            dp.count_packet_drop(&frame, trace::l3_of_frame(&frame), reason).end();
        }
    }
    let mut places = std::mem::take(&mut dp.bridges.egress);
    let chosen = egress::choose(dp, cx, own, pkt, l3, &mut places);
    if chosen.is_ok() {
        enqueue_by_ports(dp, cx, &places, pkt.take());
    }
    dp.bridges.egress = places;
    chosen
}

/// Queues a frame at each port that a bridge has chosen, with the port's tag (Linux `br_dev_queue_push_xmit`). All but one get a
/// shared clone, which is never written in place.
pub(crate) fn enqueue_by_ports(dp: &mut Datapath, cx: Cx<'_>, places: &Egress, mut pkt: Packet) {
    let Some((last, others)) = places.exits.split_last() else { return };
    // Offloads of a frame are found behind the tags that are payload here.
    let l3 = offload::behind_tags(cx.mem, &mut pkt, eth::EthHeader::LEN);
    for exit in others {
        let mut clone = pkt.clone_shared();
        clone.meta.vlan = exit.tag.map(|tci| tci.0);
        enqueue(dp, cx, exit.port, clone, l3);
    }
    pkt.meta.vlan = last.tag.map(|tci| tci.0);
    enqueue(dp, cx, last.port, pkt, l3);
}

//! Queueing discipline of a link: packets are queued before they are fitted to the device (Linux `__dev_queue_xmit`).
//!
//! Fat packets are queued whole. A packet is counted as fat, captured and copied to packet sockets of the host side when it
//! is dequeued, as in Linux's `dev_hard_start_xmit`. The device of a VRF may have a discipline as well.

use base::{DropReason, Instant, PortId};
use packet::{Cut, Packet};
use qdisc::{Kind, Refusal, Stats};

use crate::node::qdisc::{Cutter, QueuedPacket};
use crate::node::trace::{Step, TraceStep};
use crate::{Cx, Datapath, trace};

/// Truesize of a link's transmit queue above which its discipline is not dequeued (Linux's byte queue limits).
const DEVICE_BYTES: usize = 1 << 20;

/// Enqueues a packet in its link's discipline. The caller dequeues the packets that may leave.
#[cold]
pub(crate) fn enqueue(dp: &mut Datapath, cx: Cx<'_>, link: PortId, mut waiting: QueuedPacket) {
    let origin = waiting.pkt.meta.origin.get();
    let packets = waiting.pkt.meta.cut.packets();
    let step = trace::prepare(dp, &waiting.pkt, waiting.l3, Step::Queued { dev: link });
    let mut cutter = Cutter { mem: cx.mem, segments: Vec::new(), failure: None };
    let mut dropped = Vec::new();
    let Some(port) = dp.ports.get_mut(link) else { return };
    let is_up = port.up;
    let is_busy = port.is_busy();
    if let Some(qdisc) = port.qdisc.as_deref_mut().filter(|_| is_up) {
        if is_busy || qdisc.poll_timeout().is_some() {
            waiting.pkt.release_device_frames(cx.mem);
        }
        qdisc.enqueue(waiting, &mut cutter, &mut dropped);
    } else {
        cutter.failure = Some(DropReason::LinkDown);
    }
    if let Some(reason) = cutter.failure {
        dp.ports.drops(origin, reason, packets).end();
        if let Some(step) = step {
            trace::push(dp, TraceStep { step: Step::Drop(reason), ..step });
        }
    } else if let (Some(step), true) = (step, dropped.is_empty()) {
        trace::push(dp, step);
    }
    for dropped in dropped {
        dp.count_packet_drop(&dropped.pkt.pkt, dropped.pkt.l3, reason_of(dropped.reason)).end();
    }
}

fn reason_of(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Full => DropReason::QdiscFull,
        Refusal::TooLong => DropReason::QdiscTooLong,
    }
}

/// Next packet that may leave a link's discipline, if the link has room (Linux `dequeue_skb`).
#[cold]
pub(super) fn dequeue(dp: &mut Datapath, cx: Cx<'_>, link: PortId) -> Option<QueuedPacket> {
    let port = dp.ports.get_mut(link).filter(|port| has_room(port))?;
    let queued = port.qdisc.as_mut()?.dequeue(cx.now)?;
    if queued.is_transmitted {
        tap_fat(dp, cx, link, &queued.pkt, queued.l3);
    }
    Some(queued)
}

/// Copies a packet without its link-layer header for a capture of fat packets, if one is on.
pub(super) fn tap_fat(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: &Packet, l3: usize) {
    if !dp.ports.get(link).is_some_and(|port| port.tap.fat) {
        return;
    }
    let Ok(copy) = pkt.copy(cx.mem, packet::CopyReason::Tap) else { return };
    let mut packets = Vec::new();
    match copy.meta.cut {
        Cut::Frames(_) => copy.into_frames(&mut packets),
        Cut::Whole | Cut::Gso(_) | Cut::Fragment => packets.push(copy),
    }
    for mut packet in packets {
        packet.pull(l3);
        dp.ports.tap_fat(cx.mem, link, true, &packet);
    }
}

/// Tells whether a link has room for more packets.
fn has_room(port: &crate::Port) -> bool {
    port.up && !port.is_busy() && port.tx_bytes() < DEVICE_BYTES
}

/// Tells whether a packet may leave a link's discipline now.
pub(super) fn is_due(dp: &Datapath, now: Instant, link: PortId) -> bool {
    dp.ports.get(link).and_then(due).is_some_and(|at| at <= now)
}

/// Time at which a packet leaves a port's discipline, unless its link has to take packets first.
fn due(port: &crate::Port) -> Option<Instant> {
    port.qdisc.as_ref()?.poll_timeout().filter(|_| has_room(port))
}

/// Time at which the next packet leaves a discipline.
pub(crate) fn poll_timeout(dp: &Datapath) -> Option<Instant> {
    dp.ports.shaped.iter().filter_map(|&link| due(dp.ports.get(link)?)).min()
}

/// Drops the packets in a link's discipline (Linux `dev_deactivate`).
pub(crate) fn reset(dp: &mut Datapath, now: Instant, link: PortId, reason: DropReason) {
    let Some(qdisc) = dp.ports.get_mut(link).and_then(|port| port.qdisc.as_deref_mut()) else { return };
    for QueuedPacket { pkt, l3, .. } in qdisc.reset(now) {
        dp.count_packet_drop(&pkt, l3, reason).end();
    }
}

impl Datapath {
    /// Kind of a link's queueing discipline.
    pub fn qdisc_kind(&self, id: PortId) -> Option<Kind> {
        Some(self.ports.get(id)?.qdisc.as_ref()?.options().kind())
    }

    /// Counters of a link's queueing discipline.
    pub fn qdisc_stats(&self, id: PortId) -> Option<Stats> {
        Some(self.ports.get(id)?.qdisc.as_ref()?.stats())
    }
}

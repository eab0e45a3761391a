//! Queueing discipline of a link: packets are queued before they are fitted to the device (Linux `__dev_queue_xmit`).
//!
//! Fat packets are queued whole. Counters of fat packets, captures and packet sockets of the host side see a packet when it is
//! dequeued, as taps do in `dev_hard_start_xmit`. The device of a VRF may have a discipline as well.

use base::{DropReason, Instant, LinkId};
use offload::{Features, gso};
use packet::{Csum, Cut, GsoKind, Memory, Packet};
use qdisc::{CannotSegment, Geometry, Kind, Options, OptionsError, Qdisc, Queued, Refusal, Segmenter, Stats};
use wire::ip::Info;
use wire::{tcp, udp};

use super::device;
use crate::ports::Device;
use crate::trace::{self, Step};
use crate::{Cx, Datapath, vrf};

/// Truesize of a link's transmit queue above which its discipline is not dequeued (Linux's byte queue limits).
const DEVICE_BYTES: usize = 1 << 20;

/// Discipline of a port.
pub(crate) type PortQdisc = Qdisc<Waiting>;

/// Packet in a discipline.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) pkt: Packet,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Whether it is an IP packet of [`transmit`](super::transmit), which a capture of fat packets has yet to copy.
    pub(crate) is_transmitted: bool,
}

impl Queued for Waiting {
    fn geometry(&self) -> Geometry {
        let Self { pkt, l3, .. } = self;
        let len = to_u32(pkt.len());
        match pkt.meta.cut {
            Cut::Whole | Cut::Fragment => Geometry::thin(len),
            Cut::Frames(frames) => {
                let all: usize = pkt.frames().map(<[u8]>::len).sum();
                Geometry { len: to_u32(all), segs: frames.count.into(), header_len: 0, seg_len: frames.size.into() }
            }
            Cut::Gso(gso) => {
                let headers = headers_len(pkt, *l3, gso.kind);
                let payload = pkt.len().saturating_sub(headers);
                let segs = to_u32(payload.div_ceil(usize::from(gso.size.max(1)))).max(1);
                let seg_len = to_u32(pkt.len().min(headers + usize::from(gso.size)));
                Geometry { len, segs, header_len: to_u32(headers), seg_len }
            }
        }
    }
}

fn to_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Length of the headers that each segment of a fat packet gets.
fn headers_len(pkt: &Packet, l3: usize, kind: GsoKind) -> usize {
    let transport_at = match pkt.meta.csum {
        Csum::Partial { start, .. } => usize::from(start),
        _ => {
            let head = pkt.head().get(l3..).unwrap_or_default();
            l3 + Info::parse(head, pkt.len() - l3).map_or(0, |info| info.header_len)
        }
    };
    let transport = match kind {
        GsoKind::Udp => udp::Header::LEN,
        GsoKind::TcpV4 | GsoKind::TcpV6 => {
            let mut header = [0; tcp::Header::LEN];
            pkt.read_at(transport_at, &mut header);
            tcp::Header::ref_from(&header).map_or(tcp::Header::LEN, tcp::Header::header_len)
        }
    };
    transport_at + transport
}

/// Cutter of packets that exceed a token bucket.
struct Cutter<'m> {
    mem: &'m Memory,
    segments: Vec<Packet>,
    /// Reason why the packet could not be cut.
    failure: Option<DropReason>,
}

impl Segmenter<Waiting> for Cutter<'_> {
    fn segment(&mut self, fat: Waiting, segments: &mut Vec<Waiting>) -> Result<(), CannotSegment> {
        let Waiting { pkt, l3, is_transmitted } = fat;
        let cut = match pkt.meta.cut {
            // Only the device can encrypt the packet, and it segments the packet itself.
            _ if pkt.meta.esp.is_some() => Err(DropReason::QdiscTooLong),
            Cut::Gso(_) => gso::segment(self.mem, &Features::BY_REFERENCE, pkt, l3, &mut self.segments),
            Cut::Frames(_) | Cut::Whole | Cut::Fragment => {
                pkt.into_frames(&mut self.segments);
                Ok(())
            }
        };
        if let Err(reason) = cut {
            self.failure = Some(reason);
            return Err(CannotSegment);
        }
        segments.extend(self.segments.drain(..).map(|pkt| Waiting { pkt, l3, is_transmitted }));
        Ok(())
    }
}

/// Enqueues a packet in its link's discipline, and dequeues packets that may leave.
#[cold]
pub(crate) fn enqueue(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, mut waiting: Waiting) {
    let origin = waiting.pkt.meta.origin.get();
    let packets = waiting.pkt.meta.cut.packets();
    let step = match dp.trace.is_on() {
        true => trace::prepare(dp, cx, &waiting.pkt, waiting.l3, Step::Queued { dev: link }),
        false => None,
    };
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
    let refused = dropped.first().map(|dropped| reason_of(dropped.reason)).or(cutter.failure);
    if let Some(reason) = cutter.failure {
        dp.ports.drops(origin, reason, packets);
    }
    for dropped in dropped {
        dp.count_drop(&dropped.pkt.pkt, reason_of(dropped.reason));
    }
    if let Some(mut step) = step {
        step.step = refused.map_or(step.step, Step::Drop);
        trace::push(dp, step);
    }
    run(dp, cx, link);
}

fn reason_of(refusal: Refusal) -> DropReason {
    match refusal {
        Refusal::Full => DropReason::QdiscFull,
        Refusal::TooLong => DropReason::QdiscTooLong,
    }
}

/// Dequeues packets from a link's discipline while the link has room (Linux `__qdisc_run`). Packets of a VRF's discipline are routed
/// again.
#[cold]
pub(crate) fn run(dp: &mut Datapath, cx: Cx<'_>, link: LinkId) {
    while let Some(port) = dp.ports.get_mut(link)
        && has_room(port)
        && let Some(Waiting { pkt, l3, is_transmitted }) = port.qdisc.as_mut().and_then(|qdisc| qdisc.dequeue(cx.now))
    {
        if port.device == Device::Vrf {
            vrf::transmit(dp, cx, link, pkt);
            continue;
        }
        if is_transmitted && port.tap.fat {
            tap_fat(dp, cx, link, &pkt, l3);
        }
        // Counted as a drop if it fails.
        let _ = device::put(dp, cx, link, pkt, l3);
    }
}

/// Copies a packet without its link-layer header for a capture of fat packets.
fn tap_fat(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, pkt: &Packet, l3: usize) {
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

/// Dequeues packets from the disciplines of all links.
#[cold]
pub(crate) fn run_all(dp: &mut Datapath, cx: Cx<'_>) {
    for at in 0..dp.ports.shaped.len() {
        let link = dp.ports.shaped[at];
        let is_due = dp.ports.get(link).and_then(due).is_some_and(|at| at <= cx.now);
        if is_due {
            run(dp, cx, link);
        }
    }
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
pub(crate) fn reset(dp: &mut Datapath, now: Instant, link: LinkId, reason: DropReason) {
    let Some(qdisc) = dp.ports.get_mut(link).and_then(|port| port.qdisc.as_deref_mut()) else { return };
    for Waiting { pkt, .. } in qdisc.reset(now) {
        dp.count_drop(&pkt, reason);
    }
}

impl Datapath {
    /// Sets a link's queueing discipline, or removes it with `None`. Packets in the previous discipline are dropped.
    ///
    /// # Errors
    /// [`OptionsError`]; nothing has changed then.
    pub fn set_qdisc(
        &mut self,
        now: Instant,
        mem: &Memory,
        id: LinkId,
        options: Option<Options>,
    ) -> Result<(), OptionsError> {
        let new = options.map(|options| Qdisc::new(now, options)).transpose()?;
        self.finish(now, mem);
        reset(self, now, id, DropReason::QdiscRemoved);
        self.ports.shaped.retain(|&shaped| shaped != id);
        if let Some(port) = self.ports.get_mut(id) {
            port.qdisc = new.map(Box::new);
            if port.qdisc.is_some() {
                self.ports.shaped.push(id);
            }
        }
        Ok(())
    }

    /// Changes the options of a link's queueing discipline and keeps its packets, or adds a discipline to a link without one.
    ///
    /// # Errors
    /// [`OptionsError`]; nothing has changed then.
    pub fn change_qdisc(
        &mut self,
        now: Instant,
        mem: &Memory,
        id: LinkId,
        options: Options,
    ) -> Result<(), OptionsError> {
        let Some(qdisc) = self.ports.get_mut(id).and_then(|port| port.qdisc.as_deref_mut()) else {
            return self.set_qdisc(now, mem, id, Some(options));
        };
        qdisc.change(now, options)?;
        run(self, Cx { now, mem }, id);
        Ok(())
    }

    /// Kind of a link's queueing discipline.
    pub fn qdisc_kind(&self, id: LinkId) -> Option<Kind> {
        Some(self.ports.get(id)?.qdisc.as_ref()?.options().kind())
    }

    /// Counters of a link's queueing discipline.
    pub fn qdisc_stats(&self, id: LinkId) -> Option<Stats> {
        Some(self.ports.get(id)?.qdisc.as_ref()?.stats())
    }
}

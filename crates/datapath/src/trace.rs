//! Traces: the stages that selected packets pass, with their geometry.
//!
//! A packet that [`TraceFilter`] chooses at any stage gets a number, which its segments, fragments and clones keep, also in a shard to
//! which it is handed over. Ciphers make new packets: a decrypted or encrypted packet is selected again, with a new number.

use std::net::IpAddr;

use base::{DropReason, Origin, PortId, RouteFlow, SaId};
use ipsec::EspDrop;
use packet::{Cut, Packet};
use wire::{FlowKey, Spi, eth};
use xfrm::{Dir, Flowi};

use crate::ip_packet::EspAt;
use crate::next::Next;
use crate::node::drop_watch::{DropReport, DroppedEsp};
use crate::node::hooks::HookUser;
use crate::node::trace::{EspRef, Geometry, Step, Trace, TraceClock, TraceFilter, TraceStep};
use crate::{Cx, Datapath, IpPacket};

impl Datapath {
    /// Traces the next `packets` packets that the filter chooses, or stops with `None`.
    pub fn set_trace(&mut self, filter: Option<TraceFilter>, packets: u32) {
        self.hooks.set(HookUser::Trace, filter.is_some());
        let Trace { last, numbers, .. } = self.trace;
        self.trace = Trace { filter, left: packets, last, numbers, ..Trace::default() };
        self.update_shortcuts();
        self.update_esp_watch();
    }

    /// Lets a trace choose so many further packets.
    pub const fn extend_trace(&mut self, packets: u32) {
        self.trace.left = self.trace.left.saturating_add(packets);
    }

    /// Sets the clock for the steps of the trace that was [set](Self::set_trace) before.
    pub fn set_trace_clock(&mut self, clock: TraceClock) {
        self.trace.clock = Some(clock);
    }

    /// Requests details of dropped ESP packets if they have a reader.
    pub(crate) fn update_esp_watch(&mut self) {
        self.ipsec.watch_esp_drops(self.has_drop_readers());
    }

    /// Tells whether a trace or a monitor reads drops.
    #[inline]
    fn has_drop_readers(&self) -> bool {
        self.trace.is_on() || self.ports.drop_watch.is_on
    }

    /// Tells whether there are steps to be taken.
    #[must_use]
    pub fn has_traced(&self) -> bool {
        !self.trace.steps.is_empty()
    }

    /// Tells whether a trace has selected all its packets.
    #[must_use]
    pub fn is_trace_complete(&self) -> bool {
        self.trace.is_on() && self.trace.left == 0
    }

    /// Steps since the last call, in the order in which they were made.
    pub fn take_trace(&mut self) -> std::vec::Drain<'_, TraceStep> {
        self.trace.steps.drain(..)
    }
}

/// Records the stage that a packet goes to, if a trace is on.
#[inline]
pub(crate) fn stage(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, next: Next) {
    if dp.trace.is_on() {
        record_stage(dp, cx, ip, next);
    }
}

#[cold]
fn record_stage(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, next: Next) {
    let made = match next {
        Next::L3In | Next::L3Parsed => Step::Input,
        Next::Local(_) => Step::Local,
        Next::Forward(hop) => Step::Forward { dev: hop.dev, next_hop: hop.next_hop },
        Next::Output(hop) => Step::Output { dev: hop.dev },
        Next::Transmit(hop) => Step::Transmit { dev: hop.dev, next_hop: hop.next_hop },
        Next::Reject(reason, problem) => Step::Reject(reason, problem),
        // Recorded where the drop is counted, as drops without this loop are.
        Next::Drop(_) => {
            choose(dp, cx, &mut ip.pkt);
            return;
        }
        Next::VrfOut(_) | Next::Discovery(_) | Next::Done => return,
    };
    record_step(dp, cx, &mut ip.pkt, made);
}

/// Records a step of a packet if a trace is on, and the packet is traced or chosen now.
#[inline]
pub(crate) fn step(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, step: Step) {
    if dp.trace.is_on() {
        record_step(dp, cx, pkt, step);
    }
}

#[cold]
fn record_step(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, step: Step) {
    if choose(dp, cx, pkt) {
        let step = record(&dp.trace, pkt, 0, step);
        push(dp, step);
    }
}

/// Tells whether a packet is traced, or is chosen now.
fn choose(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet) -> bool {
    let Datapath { trace, fib, .. } = dp;
    trace.now = cx.now;
    if !trace.has_chosen(pkt.meta.trace) {
        pkt.meta.trace = 0;
        if trace.left == 0 || !trace.filter.as_ref().is_some_and(|filter| filter.matches(pkt, fib)) {
            return false;
        }
        pkt.meta.trace = trace.choose();
    }
    true
}

/// Records a drop for its readers: as the last step of a traced packet, and as a report. The IP header begins at `l3`.
#[inline]
pub(crate) fn dropped(dp: &mut Datapath, pkt: &Packet, l3: usize, reason: DropReason) {
    if dp.has_drop_readers() {
        record_drop(dp, pkt, l3, reason);
    }
}

#[cold]
fn record_drop(dp: &mut Datapath, pkt: &Packet, l3: usize, reason: DropReason) {
    if dp.trace.is_on() && dp.trace.has_chosen(pkt.meta.trace) {
        let step = record(&dp.trace, pkt, l3, Step::Drop(reason));
        push(dp, step);
    }
    let packets = pkt.meta.cut.packets();
    let report = || DropReport { link: pkt.meta.origin.port(), reason, packets, flow: flow_at(pkt, l3), esp: None };
    dp.ports.drop_watch.push(report, packets);
}

/// Records drops of received ESP packets, which are counted already: as the last steps of traced packets, and as reports.
#[inline]
pub(crate) fn esp_dropped(dp: &mut Datapath) {
    if dp.ipsec.has_esp_drops() {
        record_esp_drops(dp);
    }
}

#[cold]
fn record_esp_drops(dp: &mut Datapath) {
    let Datapath { ipsec, ports, trace, .. } = dp;
    for EspDrop { reason, origin, spi, src, dst, trace: packet } in ipsec.take_esp_drops() {
        if trace.is_on() && trace.has_chosen(packet) {
            let step = Step::EspDrop { reason, spi, peer: src, outbound: false };
            trace.push(TraceStep { packet, at: trace.time(), origin, flow: None, step, geometry: None });
        }
        let esp = Some(DroppedEsp { spi, src, dst });
        ports.drop_watch.push(|| DropReport { link: origin.port(), reason, packets: 1, flow: None, esp }, 1);
    }
}

/// Records the drop of a packet that an SA was to encrypt; `packet` is its number in a trace.
#[cold]
pub(crate) fn not_sealed(dp: &mut Datapath, packet: u16, origin: Origin, reason: DropReason, sa: SaId) {
    let Datapath { ipsec, ports, trace, .. } = dp;
    let sa = ipsec.sa(sa).map(|sa| EspEnds { spi: sa.spi(), src: sa.src(), dst: sa.dst() });
    if trace.is_on() && trace.has_chosen(packet) {
        let step = match sa {
            Some(EspEnds { spi, dst, .. }) => Step::EspDrop { reason, spi: Some(spi), peer: dst, outbound: true },
            None => Step::Drop(reason),
        };
        trace.push(TraceStep { packet, at: trace.time(), origin, flow: None, step, geometry: None });
    }
    let esp = sa.map(|EspEnds { spi, src, dst }| DroppedEsp { spi: Some(spi), src, dst });
    ports.drop_watch.push(|| DropReport { link: origin.port(), reason, packets: 1, flow: None, esp }, 1);
}

/// SPI and outer addresses of an SA.
#[derive(Clone, Copy, Debug)]
struct EspEnds {
    spi: Spi,
    src: IpAddr,
    dst: IpAddr,
}

/// Records the match of a policy by a traced packet.
#[inline]
pub(crate) fn policy(dp: &mut Datapath, cx: Cx<'_>, pkt: &Packet, dir: Dir, flow: &Flowi) {
    if dp.trace.is_on() {
        record_policy(dp, cx, pkt, dir, flow);
    }
}

#[cold]
fn record_policy(dp: &mut Datapath, cx: Cx<'_>, pkt: &Packet, dir: Dir, flow: &Flowi) {
    if !dp.trace.has_chosen(pkt.meta.trace) {
        return;
    }
    let spd = dp.ipsec.spd();
    let Some(policy) = spd.lookup(dir, flow).and_then(|id| spd.get(id)) else { return };
    let (src, dst) = (policy.config.selector.src, policy.config.selector.dst);
    dp.trace.now = cx.now;
    let step = record(&dp.trace, pkt, 0, Step::Policy { dir, src, dst });
    push(dp, step);
}

/// Records that a packet of ESP is submitted for decryption.
#[inline]
pub(crate) fn decrypt(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) {
    if dp.trace.is_on() {
        let sa = decrypting_sa(dp, ip);
        record_step(dp, cx, &mut ip.pkt, Step::Decrypt { sa });
    }
}

/// Records that a packet is submitted to an SA for encryption.
#[inline]
pub(crate) fn encrypt(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, sa: SaId) {
    if dp.trace.is_on() {
        let sa = dp.ipsec.sa(sa).map(|sa| EspRef { spi: sa.spi(), reqid: sa.reqid() });
        record_step(dp, cx, pkt, Step::Encrypt { sa });
    }
}

/// SA that will decrypt a packet of ESP.
#[cold]
fn decrypting_sa(dp: &Datapath, ip: &IpPacket) -> Option<EspRef> {
    let EspAt::Offset(esp_at) = ip.esp_at else { return None };
    let mut spi = [0; size_of::<u32>()];
    let is_train = ip.pkt.meta.cut.gso().is_some();
    if is_train || !ip.pkt.read_at(esp_at, &mut spi) {
        return None;
    }
    let spi = Spi(u32::from_be_bytes(spi));
    let sa = dp.ipsec.sad().by_spi(ip.info.dst, spi, ip.pkt.meta.mark).and_then(|id| dp.ipsec.sa(id))?;
    Some(EspRef { spi, reqid: sa.reqid() })
}

/// Tells whether packets are traced.
#[inline]
pub(crate) fn is_on(dp: &Datapath) -> bool {
    dp.trace.is_on()
}

/// Records the lookup of a packet's route; `flow` is `None` while no packets are traced.
#[inline]
pub(crate) fn route(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, flow: Option<RouteFlow>, oif: Option<PortId>) {
    if let Some(flow) = flow {
        record_route(dp, cx, pkt, &flow, oif);
    }
}

#[cold]
fn record_route(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, flow: &RouteFlow, oif: Option<PortId>) {
    let found = dp.fib.lookup_flow(flow, oif);
    let prefix = found.map(|(_, route)| route.prefix);
    let table = found.and_then(|(table, _)| table);
    record_step(dp, cx, pkt, Step::Route { table, prefix, domain: flow.domain });
}

/// Step of a traced packet whose IP header begins at `l3`, to be [pushed](push) once it is known to have been made.
#[cold]
pub(crate) fn prepare(dp: &Datapath, pkt: &Packet, l3: usize, step: Step) -> Option<TraceStep> {
    let is_traced = dp.trace.is_on() && dp.trace.has_chosen(pkt.meta.trace);
    is_traced.then(|| record(&dp.trace, pkt, l3, step))
}

/// Records a prepared step.
pub(crate) fn push(dp: &mut Datapath, step: TraceStep) {
    dp.trace.push(step);
}

/// Flow of a packet whose IP header begins at `l3`.
fn flow_at(pkt: &Packet, l3: usize) -> Option<FlowKey> {
    let mut front = [0; 128];
    let rest = pkt.len().saturating_sub(l3);
    let front = &mut front[..rest.min(128)];
    if pkt.read_at(l3, front) { FlowKey::parse(front, rest).ok() } else { None }
}

/// Offset of the IP header in an Ethernet frame, behind up to two VLAN tags; the offset behind the header if the frame is no IP.
pub(crate) fn l3_of_frame(pkt: &Packet) -> usize {
    let mut at = eth::EthHeader::LEN;
    for _ in 0..2 {
        let mut kind = [0; 2];
        if !pkt.read_at(at - kind.len(), &mut kind) || !matches!(u16::from_be_bytes(kind), 0x8100 | 0x88a8) {
            break;
        }
        at += 4;
    }
    at
}

fn record(trace: &Trace, pkt: &Packet, l3: usize, step: Step) -> TraceStep {
    let flow = flow_at(pkt, l3);
    let geometry = Geometry {
        len: pkt.len(),
        head: pkt.head().len(),
        slots: pkt.frags().len(),
        children: pkt.frag_list().len(),
        truesize: pkt.truesize(),
        csum: pkt.meta.csum,
        gso: pkt.meta.cut.gso().copied(),
        is_fragment: pkt.meta.cut == Cut::Fragment,
    };
    let origin = pkt.meta.origin.get();
    TraceStep { packet: pkt.meta.trace, at: trace.time(), origin, flow, step, geometry: Some(geometry) }
}

//! Traces: the stages that selected packets pass, with their geometry.
//!
//! A packet that [`TraceFilter`] chooses at any stage gets a number, which its segments, fragments and clones keep. Ciphers make new
//! packets: a decrypted or encrypted packet is selected again, with a new number.

use std::net::IpAddr;

use base::{Domain, LinkId};
use packet::{Cut, Packet};
use wire::FlowKey;

use crate::next::Next;
use crate::node::hooks::HookUser;
use crate::node::trace::{Geometry, MAX_RECORDED, Step, Trace, TraceFilter, TraceStep};
use crate::{Cx, Datapath, IpPacket};

impl Datapath {
    /// Traces the next `packets` packets that the filter chooses, or stops with `None`.
    pub fn set_trace(&mut self, filter: Option<TraceFilter>, packets: u32) {
        self.hooks.set(HookUser::Trace, filter.is_some());
        self.trace = Trace { filter, left: packets, last: self.trace.last, chosen: 0, steps: Vec::new() };
        self.update_shortcuts();
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

/// Records the stage that a packet goes to.
#[cold]
pub(crate) fn stage(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, next: Next) {
    let made = match next {
        Next::L3In => Step::Input,
        Next::Local(_) => Step::Local,
        Next::Forward(hop) => Step::Forward { dev: hop.dev, next_hop: hop.next_hop },
        Next::Output(hop) => Step::Output { dev: hop.dev },
        Next::Transmit(hop) => Step::Transmit { dev: hop.dev, next_hop: hop.next_hop },
        Next::Reject(reason, problem) => Step::Reject(reason, problem),
        Next::Drop(reason) => Step::Drop(reason),
        Next::VrfOut(_) | Next::Discovery(_) | Next::Done => return,
    };
    step(dp, cx, &mut ip.pkt, made);
}

/// Records a step of a packet if it is traced, or is chosen now.
#[cold]
pub(crate) fn step(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, step: Step) {
    let Datapath { trace, fib, .. } = dp;
    if !trace.has_chosen(pkt.meta.trace) {
        pkt.meta.trace = 0;
        if trace.left == 0 || !trace.filter.as_ref().is_some_and(|filter| filter.matches(pkt, fib)) {
            return;
        }
        trace.left -= 1;
        trace.chosen = trace.chosen.saturating_add(1);
        // 0 stands for no trace.
        trace.last = trace.last.checked_add(1).unwrap_or(1);
        pkt.meta.trace = trace.last;
    }
    push(dp, record(cx, pkt, 0, step));
}

/// Records the lookup of a packet's route.
#[cold]
pub(crate) fn route(dp: &mut Datapath, cx: Cx<'_>, pkt: &mut Packet, domain: Domain, dst: IpAddr, oif: Option<LinkId>) {
    let found = dp.fib.lookup_with_table(domain, dst, oif);
    let prefix = found.map(|(_, route)| route.prefix);
    let table = found.and_then(|(table, _)| table);
    step(dp, cx, pkt, Step::Route { table, prefix, domain });
}

/// Step of a traced packet whose IP header begins at `l3`, to be [pushed](push) once it is known to have been made.
#[cold]
pub(crate) fn prepare(dp: &Datapath, cx: Cx<'_>, pkt: &Packet, l3: usize, step: Step) -> Option<TraceStep> {
    dp.trace.has_chosen(pkt.meta.trace).then(|| record(cx, pkt, l3, step))
}

/// Records a prepared step.
pub(crate) fn push(dp: &mut Datapath, step: TraceStep) {
    if dp.trace.steps.len() < MAX_RECORDED {
        dp.trace.steps.push(step);
    }
}

fn record(cx: Cx<'_>, pkt: &Packet, l3: usize, step: Step) -> TraceStep {
    let mut front = [0; 128];
    let rest = pkt.len().saturating_sub(l3);
    let front = &mut front[..rest.min(128)];
    let flow = if pkt.read_at(l3, front) { FlowKey::parse(front, rest).ok() } else { None };
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
    TraceStep { packet: pkt.meta.trace, at: cx.now, origin: pkt.meta.origin.get(), flow, step, geometry }
}

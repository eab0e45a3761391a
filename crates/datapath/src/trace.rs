//! Traces: the stages that selected packets pass, with their geometry.
//!
//! A packet that [`TraceFilter`] chooses at any stage gets a number, which its segments, fragments and clones keep. Ciphers make new
//! packets: a decrypted or encrypted packet is selected, and numbered, anew.

use std::net::IpAddr;

use base::{Domain, DropReason, Instant, LinkId, Origin, Prefix, SaId, TableId};
use fib::Fib;
use host::icmp::Problem;
use packet::{Csum, Cut, Gso, Packet};
use wire::{FlowKey, Protocol, Version};

use crate::hooks::{HookPoint, HookUser};
use crate::next::Next;
use crate::{Cx, Datapath, IpPacket};

/// Limit of recorded steps in the queue; later ones are lost to the trace only.
const MAX_RECORDED: usize = 8192;

/// One term of a filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TraceTerm {
    /// The IP version.
    Version(Version),
    /// The protocol, behind extension headers.
    Protocol(Protocol),
    /// The source address is in the prefix.
    Src(Prefix),
    /// The destination address is in the prefix.
    Dst(Prefix),
    /// One of the addresses is in the prefix.
    Either(Prefix),
    /// The source port.
    SrcPort(u16),
    /// The destination port.
    DstPort(u16),
    /// One of the ports.
    Port(u16),
    /// The link that the packet came in by, or the VRF of that link.
    Dev(LinkId),
}

/// Packets to trace: those for which every term is true, or, where a term is negated, false.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TraceFilter {
    /// Terms, each with whether it is negated.
    pub terms: Vec<(bool, TraceTerm)>,
}

impl TraceFilter {
    /// Tells whether a packet that begins with its IP header is to be traced.
    fn matches(&self, pkt: &Packet, fib: &Fib) -> bool {
        let mut front = [0; 128];
        let len = pkt.len().min(front.len());
        if !pkt.read_at(0, &mut front[..len]) {
            return false;
        }
        let Ok(flow) = FlowKey::parse(&front[..len], pkt.len()) else { return self.terms.is_empty() };
        let has_ports = matches!(flow.protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP | Protocol::UDPLITE);
        self.terms.iter().all(|&(is_negated, term)| {
            let is_true = match term {
                TraceTerm::Version(version) => Version::of_addr(flow.dst) == version,
                TraceTerm::Protocol(protocol) => flow.protocol == protocol,
                TraceTerm::Src(prefix) => prefix.contains(flow.src),
                TraceTerm::Dst(prefix) => prefix.contains(flow.dst),
                TraceTerm::Either(prefix) => prefix.contains(flow.src) || prefix.contains(flow.dst),
                TraceTerm::SrcPort(port) => has_ports && flow.sport == port,
                TraceTerm::DstPort(port) => has_ports && flow.dport == port,
                TraceTerm::Port(port) => has_ports && (flow.sport == port || flow.dport == port),
                TraceTerm::Dev(dev) => {
                    let origin = pkt.meta.origin;
                    origin.port() == Some(dev) || fib.domain(origin.device()).vrf_device() == Some(dev)
                }
            };
            is_true != is_negated
        })
    }
}

/// Geometry of a packet in memory, and its pending offloads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Bytes.
    pub len: usize,
    /// Bytes in the head.
    pub head: usize,
    /// Page slots.
    pub slots: usize,
    /// Child packets.
    pub children: usize,
    /// Memory charged for the packet, in bytes.
    pub truesize: usize,
    /// Checksum state.
    pub csum: Csum,
    /// Segmentation, if it is a super-packet.
    pub gso: Option<Gso>,
    /// Whether it is a fragment.
    pub is_fragment: bool,
}

/// Step of a packet through the datapath.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// IP input.
    Input,
    /// A hook.
    Hook {
        /// The point.
        point: HookPoint,
        /// The device.
        dev: LinkId,
    },
    /// Translation of the destination by ILA. From here on the flow has the new one.
    Ila {
        /// The destination so far.
        from: std::net::Ipv6Addr,
    },
    /// The route lookup.
    Route {
        /// The table that has the route; `None` without a route, or with one that a rule is.
        table: Option<TableId>,
        /// The route's prefix, if there is a route.
        prefix: Option<Prefix>,
        /// The domain of the lookup.
        domain: Domain,
    },
    /// Local input.
    Local,
    /// Forwarding.
    Forward {
        /// The link.
        dev: LinkId,
        /// The neighbour.
        next_hop: IpAddr,
    },
    /// Output, before the policies.
    Output {
        /// The link.
        dev: LinkId,
    },
    /// Delivery to the host side.
    Up {
        /// The link, whose device of the host side it is.
        dev: LinkId,
    },
    /// Submission to the ciphers for decryption.
    Decrypt,
    /// Submission to the ciphers, by the outermost SA.
    Encrypt {
        /// The SA.
        sa: SaId,
    },
    /// Transmission: fits the path.
    Transmit {
        /// The link.
        dev: LinkId,
        /// The neighbour.
        next_hop: IpAddr,
    },
    /// Wait for the link-layer address of the next hop.
    Resolve {
        /// The link.
        dev: LinkId,
    },
    /// In the queue of a link, as one packet or in segments.
    Queued {
        /// The link.
        dev: LinkId,
    },
    /// Drop.
    Drop(DropReason),
    /// Drop, with an ICMP error to the sender as far as rules and rate limits allow.
    Reject(DropReason, Problem),
}

/// Step of a traced packet.
#[derive(Clone, Copy, Debug)]
pub struct TraceStep {
    /// Number of the packet, from 1; after 65 535 it is 1 again.
    pub packet: u16,
    /// Time.
    pub at: Instant,
    /// Place where the packet entered this node.
    pub origin: Origin,
    /// Addresses and ports, if the packet begins with an IP header.
    pub flow: Option<FlowKey>,
    /// The step.
    pub step: Step,
    /// The packet's shape at that step.
    pub geometry: Geometry,
}

/// The running trace.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    filter: Option<TraceFilter>,
    /// Packets that may still be chosen.
    left: u32,
    /// Number of the packet that was chosen last, by this trace or one before.
    last: u16,
    /// Packets that this trace has chosen.
    chosen: u32,
    steps: Vec<TraceStep>,
}

impl Trace {
    /// Tells whether packets are traced.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.filter.is_some()
    }

    /// Tells whether this trace has chosen the packet of that number. A packet that was held while another trace ran may still
    /// have a number of that one.
    fn has_chosen(&self, number: u16) -> bool {
        number != 0 && u32::from(self.last.wrapping_sub(number)) < self.chosen
    }
}

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
        Next::Done => return,
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

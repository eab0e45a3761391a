//! State of the trace: the filter, and the steps recorded for selected packets.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use base::{Domain, DropReason, Instant, Origin, PortId, Prefix, ShardCount, ShardId, TableId};
use fib::Fib;
use host::icmp::Problem;
use packet::{Csum, Gso, Packet};
use wire::{FlowKey, Protocol, Spi, Version};
use xfrm::Dir;

use super::hooks::HookPoint;

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
    Dev(PortId),
}

/// Packets to trace: those for which every term is true, or, where a term is negated, false.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TraceFilter {
    /// Terms, each with whether it is negated.
    pub terms: Vec<(bool, TraceTerm)>,
}

impl TraceFilter {
    /// Tells whether a packet that begins with its IP header is to be traced.
    pub(crate) fn matches(&self, pkt: &Packet, fib: &Fib) -> bool {
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

/// SA of a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EspRef {
    /// SPI.
    pub spi: Spi,
    /// `reqid`.
    pub reqid: u32,
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
        dev: PortId,
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
        dev: PortId,
        /// The neighbour.
        next_hop: IpAddr,
    },
    /// Output, before the policies.
    Output {
        /// The link.
        dev: PortId,
    },
    /// Delivery to the host side.
    Up {
        /// The link, whose device of the host side it is.
        dev: PortId,
    },
    /// Match of a policy.
    Policy {
        /// Direction.
        dir: Dir,
        /// Source addresses of its selector.
        src: Prefix,
        /// Destination addresses of its selector.
        dst: Prefix,
    },
    /// Submission to the ciphers for decryption.
    Decrypt {
        /// The SA; `None` for a train or a packet whose SPI no SA has.
        sa: Option<EspRef>,
    },
    /// Submission to the ciphers, by the outermost SA.
    Encrypt {
        /// The SA.
        sa: Option<EspRef>,
    },
    /// Transmission: fits the path.
    Transmit {
        /// The link.
        dev: PortId,
        /// The neighbour.
        next_hop: IpAddr,
    },
    /// Wait for the link-layer address of the next hop.
    Resolve {
        /// The link.
        dev: PortId,
    },
    /// Hand-over to another worker, where the packet continues.
    HandOver {
        /// The shard of that worker.
        to: ShardId,
    },
    /// In the queue of a link, as one packet or in segments.
    Queued {
        /// The link.
        dev: PortId,
    },
    /// Drop.
    Drop(DropReason),
    /// Drop at ESP.
    EspDrop {
        /// Reason.
        reason: DropReason,
        /// SPI, unless the packet is too short for one.
        spi: Option<Spi>,
        /// Outer address of the peer.
        peer: IpAddr,
        /// Whether the packet was to be sent to the peer, and did not come from there.
        outbound: bool,
    },
    /// Drop, with an ICMP error to the sender as far as rules and rate limits allow.
    Reject(DropReason, Problem),
}

/// Step of a traced packet.
#[derive(Clone, Copy, Debug)]
pub struct TraceStep {
    /// Number of the packet, from 1, among those of all shards; after 65 535 they begin again.
    pub packet: u16,
    /// Time.
    pub at: Instant,
    /// Place where the packet entered this node.
    pub origin: Origin,
    /// Addresses and ports, if the packet begins with an IP header.
    pub flow: Option<FlowKey>,
    /// The step.
    pub step: Step,
    /// The packet's shape at that step; `None` for a packet that the ciphers have dropped.
    pub geometry: Option<Geometry>,
}

/// Clock that is read at each step of a trace.
pub struct TraceClock(pub Box<dyn Fn() -> Instant + Send>);

impl fmt::Debug for TraceClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceClock").finish_non_exhaustive()
    }
}

/// Numbers of the packets that one shard chooses: every n-th of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceNumbers {
    first: u16,
    step: u16,
}

impl TraceNumbers {
    pub(crate) fn of_shard(id: ShardId, count: ShardCount) -> Self {
        Self { first: u16::from(id.0) + 1, step: count.get() as u16 }
    }

    /// The number after `last`. 0 stands for no trace.
    fn after(self, last: u16) -> u16 {
        if last == 0 { self.first } else { last.checked_add(self.step).unwrap_or(self.first) }
    }
}

/// The running trace.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) filter: Option<TraceFilter>,
    /// Packets that may still be chosen.
    pub(crate) left: u32,
    /// Number of the packet that was chosen last, by this trace or one before.
    pub(crate) last: u16,
    /// Packets that this trace has chosen.
    pub(crate) chosen: u32,
    pub(crate) numbers: TraceNumbers,
    /// Numbers of packets that other shards have chosen and handed over.
    pub(crate) handed_over: HashSet<u16>,
    /// Clock for the steps of a burst; without it they have the time of the burst.
    pub(crate) clock: Option<TraceClock>,
    /// Time of the burst.
    pub(crate) now: Instant,
    pub(crate) steps: Vec<TraceStep>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            filter: None,
            left: 0,
            last: 0,
            chosen: 0,
            numbers: TraceNumbers::of_shard(ShardId::FIRST, ShardCount::ONE),
            handed_over: HashSet::new(),
            clock: None,
            now: Instant::ZERO,
            steps: Vec::new(),
        }
    }
}

impl Trace {
    /// Tells whether packets are traced.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.filter.is_some()
    }

    /// Appends a step, if there is room.
    pub(crate) fn push(&mut self, step: TraceStep) {
        if self.steps.len() < MAX_RECORDED {
            self.steps.push(step);
        }
    }

    /// Time of a step that is made now.
    pub(crate) fn time(&self) -> Instant {
        self.clock.as_ref().map_or(self.now, |clock| (clock.0)())
    }

    /// Chooses a packet, and returns its number.
    pub(crate) fn choose(&mut self) -> u16 {
        self.left -= 1;
        self.chosen = self.chosen.saturating_add(1);
        self.last = self.numbers.after(self.last);
        self.last
    }

    /// Tells whether this trace, here or in a shard that has handed the packet over, has chosen the packet of that number. A packet that
    /// was held while another trace ran may still have a number of that one.
    pub(crate) fn has_chosen(&self, number: u16) -> bool {
        let TraceNumbers { first, step } = self.numbers;
        let is_own = number >= first && (number - first).is_multiple_of(step);
        if is_own {
            u32::from(self.last.wrapping_sub(number)) < self.chosen.saturating_mul(step.into())
        } else {
            self.handed_over.contains(&number)
        }
    }

    /// Number with which a packet is handed over: 0 unless this trace has chosen the packet.
    pub(crate) fn number_to_hand_over(&self, number: u16) -> u16 {
        if self.is_on() && self.has_chosen(number) { number } else { 0 }
    }

    /// Continues the trace of a packet that another shard has handed over, if a trace is on.
    pub(crate) fn take_over(&mut self, number: u16) {
        if number != 0 && self.is_on() {
            self.handed_over.insert(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace_of(shard: u8, count: u8, last: u16) -> Trace {
        let numbers = TraceNumbers::of_shard(ShardId(shard), ShardCount::new(count).unwrap());
        Trace { filter: Some(TraceFilter::default()), left: 100, last, numbers, ..Trace::default() }
    }

    #[test]
    fn shards_number_packets_apart_also_when_numbers_begin_again() {
        for count in [1, 2, 3, 64] {
            let mut all = HashSet::new();
            for shard in 0..count {
                // Near the end of the numbers.
                let own = TraceNumbers::of_shard(ShardId(shard), ShardCount::new(count).unwrap());
                let steps = (u16::MAX - own.first) / own.step - 3;
                let mut trace = trace_of(shard, count, own.first + steps * own.step);
                for _ in 0..8 {
                    let number = trace.choose();
                    assert!(number != 0 && all.insert(number) && trace.has_chosen(number), "{number} of {count}");
                }
                assert!(!trace.has_chosen(own.first + (steps - 1) * own.step), "of a trace before");
            }
        }
    }

    #[test]
    fn packet_handed_over_keeps_its_number_while_a_trace_is_on() {
        let (mut first, mut second) = (trace_of(0, 2, 0), trace_of(1, 2, 0));
        let number = second.choose();
        assert!(!first.has_chosen(number));
        let handed = second.number_to_hand_over(number);
        assert_eq!((handed, second.number_to_hand_over(number + 2)), (number, 0));
        first.take_over(handed);
        assert!(first.has_chosen(number) && first.number_to_hand_over(number) == number);
        first.filter = None;
        assert_eq!(first.number_to_hand_over(number), 0);
        let mut off = Trace::default();
        off.take_over(number);
        assert!(off.handed_over.is_empty());
    }
}

//! The node: state of the datapath, without functions that move packets. Every stage works on it, so no file here uses a stage.

pub(crate) mod bridges;
pub(crate) mod drop_watch;
pub(crate) mod fragment_ids;
pub(crate) mod hooks;
pub(crate) mod ike;
pub(crate) mod ila_translations;
pub(crate) mod link_set;
pub(crate) mod ports;
pub(crate) mod qdisc;
pub(crate) mod recent_routes;
pub(crate) mod shard;
pub(crate) mod sockets;
pub(crate) mod trace;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use base::{Counters, Domain, Instant, PortId, RouteFlow};
use fib::{Action, Decision, Fib, Neighbours};
use host::{Established, RateLimit};
use ila::{AdjTransport, Mappings};
use ipsec::{Ipsec, Opened};
use offload::{Gro, gro};
use packet::Packet;
use reassembly::{Expired, Reassembly};

use crate::ip_packet::IpPacket;
use crate::next::{Cx, Next, PendingTx};
use bridges::Bridges;
use fragment_ids::FragmentIds;
use hooks::Hooks;
use ike::Ike;
use ila_translations::IlaErrors;
use ports::{HostRole, Ports};
use recent_routes::{RecentFlows, RecentRoutes};
use shard::Shard;
use sockets::{DemuxCounts, EarlyDemux, SocketLookups};
use trace::Trace;

/// One shard of the node: all that a packet meets between two links.
#[derive(Debug)]
pub struct Datapath {
    /// The ports and their drops.
    pub ports: Ports,
    /// The routes. They are exchanged by [`Fib::replace`], which advances the generation and so invalidates caches.
    pub fib: Fib,
    /// Neighbour tables: link-layer addresses of next hops.
    pub neighbours: Neighbours,
    /// The SAs and policies.
    pub ipsec: Ipsec,
    /// Linux's counters.
    pub counters: Counters,
    /// Forwarded packets.
    pub forwarded: Forwarded,
    /// Time since the Unix epoch at which the clock of `now` was zero.
    pub epoch: Duration,
    /// Settings of early demux.
    pub early_demux: EarlyDemux,
    /// Counters of early demux.
    pub demux_counts: DemuxCounts,
    /// ICMP messages that lowered or confirmed the MTU of a path.
    pub path_mtus_learnt: u64,
    /// The shard of a node that this is.
    pub(crate) shard: Shard,
    pub(crate) bridges: Bridges,
    pub(crate) vlans: VlanDevices,
    /// Virtual devices that the packet being sent has passed, each above the next.
    pub(crate) nested_devices: u8,
    pub(crate) established: Established,
    pub(crate) socket_lookups: SocketLookups,
    pub(crate) ike: Ike,
    pub(crate) gro: Gro,
    pub(crate) reassembly: Reassembly,
    pub(crate) fragment_ids: FragmentIds,
    pub(crate) icmp_limit: RateLimit,
    pub(crate) recent_routes: RecentRoutes,
    recent_flows: RecentFlows,
    pub(crate) hooks: Hooks,
    /// Links with MSS clamping of forwarded SYNs.
    pub(crate) clamp_mss: Vec<PortId>,
    pub(crate) bypass_ports: Vec<u16>,
    /// Links to which forwarded datagrams are sent reassembled, for any MTU.
    pub(crate) defrag: Vec<PortId>,
    pub(crate) ila: Ila,
    pub(crate) ila_errors: IlaErrors,
    pub(crate) trace: Trace,
    /// Whether all shortcuts are off, for comparison in tests.
    pub(crate) no_shortcuts: bool,
    /// Generations of the routes, and of SAs and policies, for which the receive templates of ESP are valid.
    pub(crate) generations: [u64; 2],
    /// Time of the last log line about another station with our address.
    pub(crate) conflict_logged: Option<Instant>,
    /// Destinations of the packets in flight at the ciphers, in order.
    pub(crate) pending_tx: VecDeque<PendingTx>,
    /// Packets that stages have deferred, with the stage that each goes to; empty between two calls.
    pub(crate) deferred: Vec<(IpPacket, Next)>,
    /// Index in `deferred` of the first packet that was deferred by the packet being run.
    pub(crate) deferred_from: usize,
    /// Scratch lists, kept for their storage; empty between two calls.
    pub(crate) scratch: Scratch,
    /// Pending actions of the neighbour tables.
    pub(crate) actions: Vec<Action>,
}

/// Lists that are empty between two calls, and kept so that a burst allocates none.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) gro_out: Vec<Packet>,
    pub(crate) bridged: Vec<Packet>,
    pub(crate) opened: Opened,
    pub(crate) pieces: Vec<Packet>,
    pub(crate) segments: Vec<Packet>,
    pub(crate) sealed: Vec<Packet>,
    pub(crate) sealed_out: Vec<Packet>,
    pub(crate) actions: Vec<Action>,
    pub(crate) expired: Vec<Expired>,
}

/// Counters of forwarded packets; a super-packet counts once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Forwarded {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the inner IP header on.
    pub bytes: u64,
}

/// State of ILA.
#[derive(Debug, Default)]
pub(crate) struct Ila {
    pub(crate) mappings: Mappings,
    pub(crate) sign: AdjTransport,
    pub(crate) translated: u64,
}

/// Devices by the link below and their VLAN.
#[derive(Debug, Default)]
pub(crate) struct VlanDevices(pub(crate) HashMap<(PortId, u16), PortId>);

impl Default for Datapath {
    fn default() -> Self {
        Self::new()
    }
}

impl Datapath {
    /// A node without links, routes, SAs or policies.
    pub fn new() -> Self {
        Self {
            ports: Ports::default(),
            fib: Fib::default(),
            neighbours: Neighbours::default(),
            ipsec: Ipsec::new(),
            counters: Counters::ZERO,
            forwarded: Forwarded::default(),
            epoch: Duration::ZERO,
            early_demux: EarlyDemux::default(),
            demux_counts: DemuxCounts::default(),
            path_mtus_learnt: 0,
            shard: Shard::default(),
            bridges: Bridges::default(),
            vlans: VlanDevices::default(),
            nested_devices: 0,
            established: Established::default(),
            socket_lookups: SocketLookups::default(),
            ike: Ike::default(),
            gro: Gro::new(gro::Config { udp: true, frag_list: false }),
            reassembly: Reassembly::default(),
            fragment_ids: FragmentIds::default(),
            icmp_limit: RateLimit::default(),
            recent_routes: RecentRoutes::default(),
            recent_flows: RecentFlows::default(),
            hooks: Hooks::default(),
            clamp_mss: Vec::new(),
            bypass_ports: Vec::new(),
            defrag: Vec::new(),
            ila: Ila::default(),
            ila_errors: IlaErrors::default(),
            trace: Trace::default(),
            no_shortcuts: false,
            generations: [0; 2],
            conflict_logged: None,
            pending_tx: VecDeque::new(),
            deferred: Vec::new(),
            deferred_from: 0,
            scratch: Scratch::default(),
            actions: Vec::new(),
        }
    }

    /// Decides which shortcuts the packets received by each port may take: those for which every stage that a shortcut skips is a
    /// no-op. Called whenever a tap, a hook, a domain or a setting has changed.
    pub(crate) fn update_shortcuts(&mut self) {
        let no_hook = !self.no_shortcuts && !self.hooks.needs_every_packet();
        let Self { ports, fib, .. } = self;
        for (id, port) in ports.iter_mut() {
            let no_tap = !port.tap.wire && !port.tap.fat && !port.is_watched;
            let no_vrf = fib.domain(id) == Domain::DEFAULT;
            port.set_shortcuts(no_hook && no_tap && no_vrf && port.bridge.is_none());
        }
    }

    /// Defers a packet that a stage has made of the packet it handles: the loop runs the deferred packet to its end once the stage
    /// has returned.
    #[inline]
    pub(crate) fn defer(&mut self, ip: IpPacket, next: Next) {
        if !matches!(next, Next::Done) {
            self.deferred.push((ip, next));
        }
    }

    /// Tells whether a stage of the packet being run has deferred packets.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.deferred.len() > self.deferred_from
    }

    /// Tells whether the host's own stack has that role at a port.
    pub(crate) fn host_is(&self, id: PortId, role: HostRole) -> bool {
        self.ports.get(id).is_some_and(|port| port.host == role)
    }

    /// Invalidates the receive templates of ESP if routes, SAs or policies have changed.
    pub(crate) fn forget_if_changed(&mut self) {
        let generations = [self.fib.generation(), self.ipsec.generation()];
        if generations != self.generations {
            self.generations = generations;
            self.update_shortcuts();
            self.ipsec.invalidate_templates();
        }
    }

    /// Decision about packets to `dst` in a domain ([`Fib::decide`]).
    #[inline]
    pub(crate) fn decide(&self, domain: Domain, dst: IpAddr) -> Decision {
        match self.recent_routes.decide(&self.fib, domain, dst) {
            Decision::Paths(paths) => self.fib.by_path(paths, &RouteFlow::to(domain, dst), None),
            other => other,
        }
    }

    /// Decision about a packet in a domain, by all that rules and paths read of it ([`Fib::decide_flow`]).
    #[inline]
    pub(crate) fn decide_packet(&self, domain: Domain, ip: &IpPacket) -> Decision {
        match self.decide_paths(domain, ip) {
            Decision::Paths(paths) => self.fib.by_path(paths, &ip.path_flow(domain), None),
            other => other,
        }
    }

    /// As [`decide_packet`](Self::decide_packet), without the choice among several paths ([`Fib::decide_paths`]).
    #[inline]
    pub(crate) fn decide_paths(&self, domain: Domain, ip: &IpPacket) -> Decision {
        if self.fib.rules_read_flows(ip.info.dst.is_ipv4()) {
            self.recent_flows.decide(&self.fib, &ip.route_flow(domain))
        } else {
            self.recent_routes.decide(&self.fib, domain, ip.info.dst)
        }
    }

    /// Decision about packets of a flow ([`Fib::decide_flow`]).
    pub(crate) fn decide_flow(&self, flow: &RouteFlow) -> Decision {
        let decision = if self.fib.rules_read_flows(flow.dst.is_ipv4()) {
            self.recent_flows.decide(&self.fib, flow)
        } else {
            self.recent_routes.decide(&self.fib, flow.domain, flow.dst)
        };
        match decision {
            Decision::Paths(paths) => self.fib.by_path(paths, flow, None),
            other => other,
        }
    }

    /// Tells whether this node has the address in a domain, on any link.
    #[inline]
    pub(crate) fn is_local(&self, domain: Domain, dst: IpAddr) -> bool {
        matches!(self.decide(domain, dst), Decision::Local { .. })
    }

    /// Layer-3 MTU of a link that is up, in bytes.
    pub(crate) fn mtu_of(&self, link: PortId) -> Option<usize> {
        self.ports.get(link).filter(|port| port.is_running()).map(|port| port.config.mtu)
    }

    /// MTU of the path to `dst` in bytes; its first link is `dev`, of MTU `link_mtu`.
    #[inline]
    pub(crate) fn path_mtu(&self, cx: Cx<'_>, dev: PortId, dst: IpAddr, link_mtu: usize) -> usize {
        self.fib.path_mtu(cx.now, self.fib.domain(dev), dst).map_or(link_mtu, |mtu| mtu.min(link_mtu))
    }

    /// Tells whether a link has a device of the host side.
    #[must_use]
    pub fn has_host_port(&self, link: PortId) -> bool {
        self.ports.has_host_port(link)
    }
}

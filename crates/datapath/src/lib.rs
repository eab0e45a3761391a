//! Datapath of the node: the way of a packet from one link to another, composed of the crates that know the protocols.
//!
//! This crate does no I/O: [`Datapath::handle_rx`] takes packets that a link has received, and packets to be sent wait in the
//! port of their link until the caller takes them with [`Datapath::take_tx`].
//!
//! ```text
//!  handle_rx ─▶ wire tap ─▶ rx::l2 ─▶ rx::gro ─▶ fat tap ─▶ rx::l3 ─▶ FIB ─┬▶ local ─────┐
//!      ║           ▲                     ▲         (ESP of this node        ├▶ forward ───┴▶ tx::output
//!      ║           │                     │          passes by GRO)          └▶ drop, reject
//!      ║           │                     └──── decrypted ◀── local::esp ◀── local (reassembly first)
//!      ╚═ rx::shortcut: ESP run, fragment train, where every stage they skip is a no-op
//!
//!  rx::l3 hooks ─▶ host_side::demux ─▶ local ─▶ policy ─▶ host_side::up ─▶ take_host_tx   (where the link has a device of the host side)
//!  handle_host_rx ─▶ host_side::down ─▶ FIB ─▶ tx::output
//!
//!  tx::output ─▶ policy ─┬▶ tx::mtu ──────────────────▶ tx::transmit: fat tap ─▶ neighbour ─▶ device: fit, wire tap ─▶ take_tx
//!                        └▶ tx::xfrm: inner MTU ─▶ ESP ──▲
//!
//!  neighbour ─▶ tx::queue: qdisc, fat tap ─▶ device                                       (where the link has a queueing discipline)
//!  own packets ─▶ vrf: hooks, counters, tap ─┬▶ tx::output                                (in a VRF)
//!                                            └▶ tx::queue ─▶ vrf: FIB again ─▶ tx::output (where its device has a queueing discipline)
//!
//!  rx::l2 ─▶ bridge: which ports ─┬▶ device of each                                       (of a port of a bridge)
//!                                 └▶ rx::l2 of the bridge's own port
//!  rx::l2 ─▶ vlan ─▶ rx::l2 of the VLAN's device;  device of it ─▶ vlan ─▶ device of the link below
//!  take_tx of the own port ─▶ bridge: which ports ─▶ device of each
//! ```
//!
//! Each stage returns the next one (`Next`), and `Datapath::run` is the only loop over them. A packet keeps the link that
//! it came in by, and is routed and answered in the domain of that link ([`Fib::domain`]).
//!
//! Every packet ends as delivered, sent, held (by a neighbour that has yet to answer, or an SA) or dropped for a [`DropReason`],
//! counted by the link that it came in by; Linux's own counters are counted as well.
#![forbid(unsafe_code)]

mod bridge;
mod ext_headers;
mod forward;
mod hooks;
mod host_side;
mod icmp_quote;
mod ila_errors;
mod ila_hook;
mod ip_options;
mod ip_packet;
mod local;
mod mib;
mod next;
mod own;
mod ports;
mod recent_routes;
mod route_encap;
mod rx;
mod trace;
mod tx;
mod vlan;
mod vrf;

use std::collections::VecDeque;
use std::time::Duration;

use base::{Counters, Domain, DropReason, Instant, LinkId, Origin};
use fib::{Action, Fib, Neighbours};
use host::{Established, RateLimit};
use ipsec::{Ipsec, Opened};
use offload::{Features, Gro, gro};
use packet::{Memory, Packet};
use reassembly::{Expired, Reassembly};

use hooks::Hooks;
use host_side::place::Places;
use ila_errors::IlaErrors;
use ila_hook::Ila;
use ip_packet::{Carried, IpPacket};
use local::ike;
use local::reassembly::FragmentIds;
use next::Next;
use recent_routes::RecentRoutes;
use rx::BurstEnd;
use trace::Trace;
use tx::xfrm::PendingTx;
use tx::{device, esp_device, keepalive, neighbour, queue};

pub use hooks::HookPoint;
pub use host_side::demux::{DemuxCounts, EarlyDemux};
pub use host_side::place::{L3mdevAccept, SocketBinding, SocketQuestion};
pub use local::ike::{IkeAt, IkeMessage};
pub use ports::{Device, FatCounts, HostRole, Port, PortConfig, Ports, TX_QUEUE_BYTES, TapPoints, Tapped, Traffic};
pub use trace::{Geometry, Step, TraceFilter, TraceStep, TraceTerm};
pub use vlan::VlanError;

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
    bridges: bridge::Bridges,
    vlans: vlan::VlanDevices,
    established: Established,
    places: Places,
    ike: ike::Ike,
    gro: Gro,
    reassembly: Reassembly,
    fragment_ids: FragmentIds,
    icmp_limit: RateLimit,
    recent_routes: RecentRoutes,
    hooks: Hooks,
    /// Links with MSS clamping of forwarded SYNs.
    clamp_mss: Vec<LinkId>,
    bypass_ports: Vec<u16>,
    /// Links to which forwarded datagrams are sent reassembled, whatever the MTU.
    defrag: Vec<LinkId>,
    ila: Ila,
    ila_errors: IlaErrors,
    trace: Trace,
    /// Whether all shortcuts are off, for comparison in tests.
    no_shortcuts: bool,
    /// Generations of the routes, and of SAs and policies, for which the receive templates of ESP are valid.
    generations: [u64; 2],
    /// Time of the last log line about another station with our address.
    conflict_told: Option<Instant>,
    /// Destinations of the packets in flight at the ciphers, in order.
    pending_tx: VecDeque<PendingTx>,
    /// Scratch lists, kept for their storage; empty between two calls.
    scratch: Scratch,
    /// Actions that the neighbour tables ask for, yet to be run.
    actions: Vec<Action>,
}

/// Lists that are empty between two calls, and kept so that a burst allocates none.
#[derive(Debug, Default)]
struct Scratch {
    gro_out: Vec<Packet>,
    opened: Opened,
    pieces: Vec<Packet>,
    segments: Vec<Packet>,
    sealed: Vec<Packet>,
    sealed_out: Vec<Packet>,
    actions: Vec<Action>,
    expired: Vec<Expired>,
}

/// Counters of forwarded packets; a super-packet counts once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Forwarded {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the inner IP header on.
    pub bytes: u64,
}

/// Context of a call: the time, and the memory to work in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cx<'m> {
    pub(crate) now: Instant,
    pub(crate) mem: &'m Memory,
}

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
            bridges: bridge::Bridges::default(),
            vlans: vlan::VlanDevices::default(),
            established: Established::default(),
            places: Places::default(),
            ike: ike::Ike::default(),
            gro: Gro::new(gro::Config { udp: true, frag_list: false }),
            reassembly: Reassembly::default(),
            fragment_ids: FragmentIds::default(),
            icmp_limit: RateLimit::default(),
            recent_routes: RecentRoutes::default(),
            hooks: Hooks::default(),
            clamp_mss: Vec::new(),
            bypass_ports: Vec::new(),
            defrag: Vec::new(),
            ila: Ila::default(),
            ila_errors: IlaErrors::default(),
            trace: Trace::default(),
            no_shortcuts: false,
            generations: [0; 2],
            conflict_told: None,
            pending_tx: VecDeque::new(),
            scratch: Scratch::default(),
            actions: Vec::new(),
        }
    }

    /// Adds a port, or changes the configuration of an existing one, also of the own port of a bridge or of a VLAN device.
    pub fn set_port(&mut self, id: LinkId, config: PortConfig) {
        self.ipsec.invalidate_templates();
        let loses_esp = !config.features.esp && self.ports.get(id).is_some_and(|port| port.config.features.esp);
        let (mac, mtu) = (config.mac, config.mtu);
        let device = self.ports.get(id).map_or(Device::Link, |port| port.device);
        self.ports.set(id, device, config);
        bridge::follow_config(self, id, mac, mtu);
        self.update_shortcuts();
        if loses_esp {
            esp_device::seal_waiting(self, id);
        }
    }

    /// Sets the reassembly limits, also for fragments in the cache.
    pub fn set_reassembly(&mut self, config: reassembly::Config) {
        self.reassembly.configure(config, &mut self.counters);
        local::reassembly::drop_evicted(self);
    }

    /// The reassembly cache of this node.
    pub fn reassembly(&self) -> &Reassembly {
        &self.reassembly
    }

    /// Adds the port of a VRF, changes it, or removes it with `None`. Its links are in the domain of that device
    /// ([`Fib::set_domain`]). Packets in the queueing discipline of a VRF that is removed, or is not up, are dropped.
    pub fn set_vrf_port(&mut self, now: Instant, id: LinkId, vrf: Option<(String, usize)>) {
        if vrf.is_none() || !self.fib.may_send(Domain::vrf(id)) {
            queue::reset(self, now, id, DropReason::LinkDown);
        }
        match vrf {
            Some((name, mtu)) => {
                let config = PortConfig { name, mac: None, mtu, features: Features::NONE, gro: false, esp_gro: false };
                self.ports.set(id, Device::Vrf, config);
            }
            None if self.ports.get(id).is_some_and(|port| port.device == Device::Vrf) => {
                self.ports.remove(id);
                self.forget_ila_of(id);
            }
            None => {}
        }
        self.update_shortcuts();
    }

    /// Sets the links with MSS clamping: the MSS of forwarded SYNs is lowered to the path MTU in both directions.
    pub fn set_clamp_mss(&mut self, links: Vec<LinkId>) {
        self.clamp_mss = links;
    }

    /// Sets the UDP ports of the host side's sockets that bypass policies, beside IKE's.
    pub fn set_bypass_ports(&mut self, ports: Vec<u16>) {
        self.bypass_ports = ports;
    }

    /// Sets the links to which forwarded datagrams are sent whole, whatever the MTU: fragments are reassembled first.
    pub fn set_defrag(&mut self, links: Vec<LinkId>) {
        self.defrag = links;
    }

    /// Turns all shortcuts off, or on again where they may run: packets out, counters, taps and drops are the same.
    pub fn set_shortcuts(&mut self, is_on: bool) {
        self.no_shortcuts = !is_on;
        self.update_shortcuts();
    }

    /// Decides which shortcuts the packets received by each port may take: those for which every stage that a shortcut skips is a
    /// no-op. Called whenever a tap, a hook, a domain or a setting has changed.
    fn update_shortcuts(&mut self) {
        let no_hook = !self.no_shortcuts && !self.hooks.is_used_on_receive();
        let Self { ports, fib, .. } = self;
        for (id, port) in ports.iter_mut() {
            let no_tap = !port.tap.wire && !port.tap.fat && !port.is_watched;
            let no_vrf = fib.domain(id) == Domain::DEFAULT;
            port.set_shortcuts(no_hook && no_tap && no_vrf && port.bridge.is_none());
        }
    }

    /// Removes a port, with the packets queued in it or for its neighbours, the SAs and policies on its device, and its
    /// IKE ports. The caller removes the routes by it.
    pub fn remove_port(&mut self, now: Instant, mem: &Memory, id: LinkId) {
        self.finish(now, mem);
        bridge::forget(self, id);
        vlan::forget(self, id);
        self.drop_tx(id, DropReason::LinkDown);
        self.ipsec.set_device(id, None);
        self.forget_ike(id);
        queue::reset(self, now, id, DropReason::LinkDown);
        self.ports.remove(id);
        self.forget_ila_of(id);
        self.forget_neighbours(Cx { now, mem }, id);
    }

    /// Sets whether a port's link is up. While the link is down, nothing is queued for it, and its neighbours are unknown. The
    /// SAs and policies on its device are removed when it goes down (Linux `xfrm_dev_down`).
    pub fn set_up(&mut self, now: Instant, mem: &Memory, id: LinkId, up: bool) {
        // Packets in flight were decided about with the previous configuration.
        self.finish(now, mem);
        if let Some(port) = self.ports.get_mut(id) {
            port.up = up;
            port.set_busy(mem, false);
        }
        bridge::follow_state(self, id, up);
        if !up {
            queue::reset(self, now, id, DropReason::LinkDown);
            self.drop_tx(id, DropReason::LinkDown);
            self.ipsec.flush_device(id);
            self.forget_neighbours(Cx { now, mem }, id);
        }
    }

    /// Sets the captures of a port.
    pub fn set_tap(&mut self, id: LinkId, tap: TapPoints) {
        if let Some(port) = self.ports.get_mut(id) {
            port.tap = tap;
        }
        self.update_shortcuts();
    }

    /// Sets the place of the host's own stack at a port. By default the stack has no part in the link.
    pub fn set_host_role(&mut self, id: LinkId, role: HostRole) {
        if let Some(port) = self.ports.get_mut(id) {
            port.host = role;
        }
    }

    /// Tells whether the host's own stack has that role at a port.
    pub(crate) fn host_is(&self, id: LinkId, role: HostRole) -> bool {
        self.ports.get(id).is_some_and(|port| port.host == role)
    }

    /// Packets captured since the last call.
    pub fn take_tapped(&mut self) -> std::vec::Drain<'_, Tapped> {
        self.ports.take_tapped()
    }

    /// Runs what `link` received, in order, through to the ports that it leaves by. Empties `burst`.
    pub fn handle_rx(&mut self, now: Instant, mem: &Memory, link: LinkId, burst: &mut Vec<Packet>) {
        self.take_in(now, mem, link, burst);
        self.finish(now, mem);
    }

    /// As [`handle_rx`](Self::handle_rx) while more input follows, on this link or another: packets may stay in flight at crypto
    /// threads or in GRO until the next call, or until [`finish`](Self::finish). The configuration must not change before that.
    pub fn take_in(&mut self, now: Instant, mem: &Memory, link: LinkId, burst: &mut Vec<Packet>) {
        self.forget_if_changed();
        rx::take_in(self, Cx { now, mem }, link, burst);
    }

    /// Waits for crypto threads, and runs the packets that they and GRO hold since [`take_in`](Self::take_in).
    pub fn finish(&mut self, now: Instant, mem: &Memory) {
        self.drain_all(Cx { now, mem });
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Instant, mem: &Memory) {
        let cx = Cx { now, mem };
        if !self.ports.shaped.is_empty() {
            queue::run_all(self, cx);
        }
        self.bridges.handle_timeout(now);
        if self.neighbours.poll_timeout().is_some_and(|at| at <= now) {
            self.neighbours.handle_timeout(now, &mut self.actions);
        }
        if self.ipsec.poll_keepalives().is_some_and(|at| at <= now) {
            keepalive::send_keepalives(self, cx);
        }
        if self.reassembly.poll_timeout().is_some_and(|at| at <= now) {
            local::reassembly::expire(self, cx);
        }
        if self.ipsec.poll_timeout().is_some_and(|at| at <= now) {
            self.ipsec.handle_timeout(now, &mut self.counters);
            own::release(self, cx);
        }
        self.drain_all(cx);
    }

    /// Ends a call: runs neighbour actions, and flushes ciphers and GRO, until neither has made work for the other. A packet
    /// that GRO held may be the first to its next hop, and an action may send an ICMP error through ESP.
    pub(crate) fn drain_all(&mut self, cx: Cx<'_>) {
        loop {
            neighbour::run_neighbour_actions(self, cx);
            if self.ipsec.is_pending() || self.gro.held() > 0 {
                rx::flush(self, cx, BurstEnd::Idle);
            }
            bridge::send_waiting(self, cx);
            if self.actions.is_empty() {
                break;
            }
        }
        // Drops receive templates, which hold keys of removed SAs.
        self.forget_if_changed();
    }

    /// Invalidates the receive templates of ESP if routes, SAs or policies have changed.
    fn forget_if_changed(&mut self) {
        let generations = [self.fib.generation(), self.ipsec.generation()];
        if generations != self.generations {
            self.generations = generations;
            self.update_shortcuts();
            self.ipsec.invalidate_templates();
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ipsec = [self.ipsec.work_timeout(), self.ipsec.poll_timeout(), self.ipsec.poll_keepalives()];
        let timeouts = [
            self.neighbours.poll_timeout(),
            self.reassembly.poll_timeout(),
            queue::poll_timeout(self),
            bridge::poll_timeout(self),
        ];
        timeouts.into_iter().chain(ipsec).flatten().min()
    }

    /// Queue of packets to be sent on a link, in order; the caller takes the sent ones from the front.
    pub fn take_tx(&mut self, id: LinkId) -> Option<&mut Vec<Packet>> {
        self.ports.get_mut(id).map(Port::take_tx)
    }

    /// Sets whether a link is busy, so that its queueing discipline holds packets back (back-pressure). A link that is not busy
    /// is given more packets.
    pub fn set_busy(&mut self, now: Instant, mem: &Memory, id: LinkId, is_busy: bool) {
        if let Some(port) = self.ports.get_mut(id) {
            port.set_busy(mem, is_busy);
        }
        if !is_busy && self.ports.is_shaped(id) {
            queue::run(self, Cx { now, mem }, id);
        }
    }

    /// Drops packets that a link has received, for this reason.
    pub fn discard(&mut self, id: LinkId, burst: &mut Vec<Packet>, reason: DropReason) {
        for mut pkt in burst.drain(..) {
            pkt.meta.origin = Origin::Port(id).into();
            self.count_drop(&pkt, reason);
        }
    }

    /// Drops the packets queued for a link.
    pub fn drop_tx(&mut self, id: LinkId, reason: DropReason) {
        let Some(port) = self.ports.get_mut(id) else { return };
        for pkt in std::mem::take(port.take_tx()) {
            self.count_drop(&pkt, reason);
        }
    }

    /// Fits the packets queued for a link to its features again, after the link has lost some.
    pub fn refit(&mut self, mem: &Memory, id: LinkId, features: Features) {
        let Some(port) = self.ports.get_mut(id) else { return };
        port.config.features = features;
        let l3 = port.l3();
        for pkt in std::mem::take(port.take_tx()) {
            // The tags of a frame that was fitted before are in its bytes.
            let l3 = vlan::behind_tags(pkt.head(), l3);
            // Counted as a drop if it fails.
            let _ = device::fit(self, mem, id, pkt, l3);
        }
    }
}

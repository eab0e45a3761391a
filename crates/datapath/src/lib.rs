//! The way of a packet through the node: ingress, local delivery or forwarding, egress. Read the files in that order.
//!
//! This crate composes and owns no protocol: each step is a call into the crate that knows it. It does no I/O either:
//! [`Datapath::handle_rx`] takes what a link received, and what is to be sent waits in the port of its link until the
//! caller takes it with [`Datapath::take_tx`].
//!
//! ```text
//!  handle_rx ─▶ tap ─▶ link layer ─▶ ESP: open ─▶ GRO ─▶ tap ─▶ IP input ─▶ FIB ─┬▶ local ──┐
//!                                                                               └▶ forward ┴▶ output
//!  output ─▶ policy ─┬▶ (MTU) ───────────────▶ tap ─▶ neighbour ─▶ fit the device ─▶ tap ─▶ tx
//!                    └▶ (inner MTU) ─▶ ESP: seal ──▲
//! ```
//!
//! What came in by a link is looked up, and answered, in the domain of that link ([`Fib::domain`]): a packet keeps its link, so
//! it needs to carry no more for that.
//!
//! Every packet ends as delivered, sent, held (by a neighbour that has yet to answer) or dropped for a
//! [`DropReason`], counted by the link that it came in by; Linux's own counters count beside that.
#![forbid(unsafe_code)]

mod egress;
mod ext_headers;
mod forward;
mod glue;
mod ike;
mod ingress;
mod ip_input;
mod ip_options;
mod keepalive;
mod local;
mod neighbour;
mod offloaded;
mod path_mtu;
mod ports;
mod quote;
mod reassemble;
mod recent_routes;
mod reply;

use std::collections::VecDeque;
use std::time::Duration;

use base::{Counters, DropReason, Instant, LinkId, Mib};
use fib::{Action, Fib, Neighbours};
use host::RateLimit;
use ipsec::{Flowi, Ipsec, Opened};
use offload::{Features, Gro, gro};
use packet::{Burst, Memory, Packet};
use reassembly::{Expired, Reassembly};
use wire::FlowKey;
use wire::ip::Info;

use egress::Leaving;
use ingress::Then;
use reassemble::FragmentIds;
use recent_routes::RecentRoutes;

pub use ike::{IkeAt, IkeMessage};
pub use ports::{FatCounts, HostRole, Port, PortConfig, Ports, TX_QUEUE_BYTES, TapPoints, Tapped};

/// One shard of the node: all that a packet meets between two links.
#[derive(Debug)]
pub struct Datapath {
    /// The ports and their drops.
    pub ports: Ports,
    /// The routes. Another set takes their place by [`Fib::replace`]: what is remembered goes by their generation.
    pub fib: Fib,
    /// The link-layer addresses of others.
    pub neighbours: Neighbours,
    /// The SAs and policies.
    pub ipsec: Ipsec,
    /// Linux's counters.
    pub counters: Counters,
    /// What went from one link to another.
    pub forwarded: Forwarded,
    /// When the clock of `now` was at zero, since the Unix epoch.
    pub epoch: Duration,
    /// How often ICMP made a path narrower, or said so again.
    pub path_mtus_learnt: u64,
    ike: ike::Ike,
    gro: Gro,
    reassembly: Reassembly,
    fragment_ids: FragmentIds,
    icmp_limit: RateLimit,
    recent_routes: RecentRoutes,
    /// The generations of routes, and of SAs and policies, by which the packets of ESP that came last were judged.
    generations: [u64; 2],
    /// When the operator was last told that another station has our address.
    conflict_told: Option<Instant>,
    /// Where each packet goes that ciphers have yet to seal, in order.
    leaving: VecDeque<Leaving>,
    /// Kept for their storage; empty between two calls.
    scratch: Scratch,
    /// What the neighbours asked for and is yet to be done.
    actions: Vec<Action>,
}

/// Lists that are empty between two calls, and kept so that a burst allocates none.
#[derive(Debug, Default)]
struct Scratch {
    glued: Vec<Packet>,
    opened: Opened,
    pieces: Vec<Packet>,
    segments: Vec<Packet>,
    sealed: Vec<Packet>,
    leaving: Vec<Packet>,
    actions: Vec<Action>,
    expired: Vec<Expired>,
}

/// What went through the node, as it came in: a fat packet is one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Forwarded {
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the inner IP header on.
    pub bytes: u64,
}

/// What every step of a turn is handed: the time, and the memory to work in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'m> {
    pub(crate) now: Instant,
    pub(crate) mem: &'m Memory,
}

/// A packet that begins with its IP header, with what its headers say.
#[derive(Debug)]
pub(crate) struct IpPacket {
    pub(crate) pkt: Packet,
    pub(crate) info: Info,
    pub(crate) flow: FlowKey,
}

impl IpPacket {
    /// The flow that policies are asked about, by this link of that domain.
    pub(crate) fn flowi(&self, link: LinkId, domain: LinkId) -> Flowi {
        Flowi { key: self.flow, mark: self.pkt.meta.mark, if_id: 0, link, domain }
    }
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
            path_mtus_learnt: 0,
            ike: ike::Ike::default(),
            gro: Gro::new(gro::Config { udp: true, frag_list: false }),
            reassembly: Reassembly::default(),
            fragment_ids: FragmentIds::default(),
            icmp_limit: RateLimit::default(),
            recent_routes: RecentRoutes::default(),
            generations: [0; 2],
            conflict_told: None,
            leaving: VecDeque::new(),
            scratch: Scratch::default(),
            actions: Vec::new(),
        }
    }

    /// Adds a port, or gives the one that is there another configuration.
    pub fn set_port(&mut self, id: LinkId, config: PortConfig) {
        self.ipsec.forget_recent();
        let loses_esp = !config.features.esp && self.ports.get(id).is_some_and(|port| port.config.features.esp);
        self.ports.set(id, config);
        if loses_esp {
            self.seal_waiting(id);
        }
    }

    /// Has fragments for this node wait by these rules from now on, those that wait already too.
    pub fn set_reassembly(&mut self, config: reassembly::Config) {
        self.reassembly.configure(config, &mut self.counters);
        self.drop_evicted();
    }

    /// The fragments for this node that wait for others.
    pub fn reassembly(&self) -> &Reassembly {
        &self.reassembly
    }

    /// Takes a port away, with what waits in it or for its neighbours, with the SAs and policies on its device, and with its
    /// IKE. Routes by it are the caller's to remove.
    pub fn remove_port(&mut self, now: Instant, mem: &Memory, id: LinkId) {
        self.finish(now, mem);
        self.drop_tx(id, DropReason::LinkDown);
        self.ipsec.set_device(id, None);
        self.forget_ike(id);
        self.ports.remove(id);
        self.forget_neighbours(Turn { now, mem }, id);
    }

    /// Says whether a port's link is up. While it is down, nothing is queued for it, and its neighbours are unknown. The SAs
    /// and policies on its device are removed when it goes down (Linux `xfrm_dev_down`).
    pub fn set_up(&mut self, now: Instant, mem: &Memory, id: LinkId, up: bool) {
        // What was taken in before was judged by what was so then.
        self.finish(now, mem);
        if let Some(port) = self.ports.get_mut(id) {
            port.up = up;
            port.set_busy(mem, false);
        }
        if !up {
            self.drop_tx(id, DropReason::LinkDown);
            self.ipsec.flush_device(id);
            self.forget_neighbours(Turn { now, mem }, id);
        }
    }

    /// Says which of a port's packets are copied for a capture.
    pub fn set_tap(&mut self, id: LinkId, tap: TapPoints) {
        if let Some(port) = self.ports.get_mut(id) {
            port.tap = tap;
        }
    }

    /// Says where the host's own stack is to a port. A port that was not told has nothing to do with it.
    pub fn set_host_role(&mut self, id: LinkId, role: HostRole) {
        if let Some(port) = self.ports.get_mut(id) {
            port.host = role;
        }
    }

    /// Tells whether the host's own stack has that role at a port.
    pub(crate) fn host_is(&self, id: LinkId, role: HostRole) -> bool {
        self.ports.get(id).is_some_and(|port| port.host == role)
    }

    /// What was captured since this was last called.
    pub fn take_tapped(&mut self) -> std::vec::Drain<'_, Tapped> {
        self.ports.take_tapped()
    }

    /// Runs what `link` received, in order, through to the ports that it leaves by. Empties `burst`.
    pub fn handle_rx(&mut self, now: Instant, mem: &Memory, link: LinkId, burst: &mut Vec<Packet>) {
        self.take_in(now, mem, link, burst);
        self.finish(now, mem);
    }

    /// As [`handle_rx`](Self::handle_rx) while more arrives, on this link or another: some of it may be with crypto threads then, or
    /// with GRO, and goes on with what is taken in next, or when that is [finished](Self::finish). Nothing is to be changed before.
    pub fn take_in(&mut self, now: Instant, mem: &Memory, link: LinkId, burst: &mut Vec<Packet>) {
        let turn = Turn { now, mem };
        self.forget_if_changed();
        let then = match burst.last() {
            Some(last) if last.head_buf().is_scarce(mem) => Then::MoreOfFew,
            _ => Then::More,
        };
        for pkt in burst.iter_mut() {
            pkt.meta.link = link;
        }
        let mut burst = Burst::new(burst);
        loop {
            self.open_run(turn, link, &mut burst);
            self.join_trains(turn, link, &mut burst);
            burst.look_ahead();
            let Some(pkt) = burst.next() else { break };
            self.receive(turn, link, pkt);
            if self.ipsec.has_opened() {
                self.pass_opened(turn);
            }
        }
        drop(burst);
        self.flush(turn, then);
        self.act(turn);
    }

    /// Waits for crypto threads, and runs through what they and GRO have of what was [taken in](Self::take_in).
    pub fn finish(&mut self, now: Instant, mem: &Memory) {
        self.settle(Turn { now, mem });
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Instant, mem: &Memory) {
        let turn = Turn { now, mem };
        if self.neighbours.poll_timeout().is_some_and(|at| at <= now) {
            self.neighbours.handle_timeout(now, &mut self.actions);
        }
        if self.ipsec.poll_keepalives().is_some_and(|at| at <= now) {
            self.send_keepalives(turn);
        }
        if self.reassembly.poll_timeout().is_some_and(|at| at <= now) {
            self.expire(turn);
        }
        if self.ipsec.poll_timeout().is_some_and(|at| at <= now) {
            self.ipsec.handle_timeout(now, &mut self.counters);
            self.release(turn);
        }
        self.settle(turn);
    }

    /// Ends a turn: neighbour actions are carried out, and what ciphers and GRO hold goes on, until neither has left work for the
    /// other. A packet that GRO held may be the first to its next hop, and an action may send an ICMP error through ESP.
    pub(crate) fn settle(&mut self, turn: Turn<'_>) {
        loop {
            self.act(turn);
            if self.ipsec.is_pending() || self.gro.held() > 0 {
                self.flush(turn, Then::Nothing);
            }
            if self.actions.is_empty() {
                break;
            }
        }
        // Nor is the key of an SA that is gone kept any longer.
        self.forget_if_changed();
    }

    /// Forgets what was found out about the packets of ESP that came last, if anything that it follows from has changed since.
    fn forget_if_changed(&mut self) {
        let generations = [self.fib.generation(), self.ipsec.generation()];
        if generations != self.generations {
            self.generations = generations;
            self.ipsec.forget_recent();
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ipsec = [self.ipsec.work_timeout(), self.ipsec.poll_timeout(), self.ipsec.poll_keepalives()];
        let timeouts = [self.neighbours.poll_timeout(), self.reassembly.poll_timeout()].into_iter().chain(ipsec);
        timeouts.flatten().min()
    }

    /// What waits to be sent on a link, in order; the caller takes from the front what is gone.
    pub fn take_tx(&mut self, id: LinkId) -> Option<&mut Vec<Packet>> {
        self.ports.get_mut(id).map(Port::take_tx)
    }

    /// Says whether a link takes nothing for now of what waits to be sent on it.
    pub fn set_busy(&mut self, mem: &Memory, id: LinkId, is_busy: bool) {
        if let Some(port) = self.ports.get_mut(id) {
            port.set_busy(mem, is_busy);
        }
    }

    /// Drops what a link has received, for this reason.
    pub fn discard(&mut self, id: LinkId, burst: &mut Vec<Packet>, reason: DropReason) {
        for mut pkt in burst.drain(..) {
            pkt.meta.link = id;
            self.drop(&pkt, reason);
        }
    }

    /// Drops what waits to be sent on a link.
    pub fn drop_tx(&mut self, id: LinkId, reason: DropReason) {
        let Some(port) = self.ports.get_mut(id) else { return };
        for pkt in std::mem::take(port.take_tx()) {
            self.drop(&pkt, reason);
        }
    }

    /// Makes what waits to be sent on a link fit its features, which have become fewer.
    pub fn refit(&mut self, mem: &Memory, id: LinkId, features: Features) {
        let Some(port) = self.ports.get_mut(id) else { return };
        port.config.features = features;
        let l3 = port.l3();
        for pkt in std::mem::take(port.take_tx()) {
            self.enqueue(mem, id, pkt, l3);
        }
    }

    /// Counts something, for the node and, if [links have that counter](Mib::is_of_links), for `link` (Linux
    /// `IP6_INC_STATS`): that by which a packet came in, or by which it leaves.
    #[inline]
    pub(crate) fn count(&mut self, link: LinkId, which: Mib) {
        self.count_all(link, which, 1);
    }

    /// As [`count`](Self::count), `n` times.
    #[inline]
    pub(crate) fn count_all(&mut self, link: LinkId, which: Mib, n: u64) {
        self.counters.add(which, n);
        if which.is_of_links()
            && let Some(port) = self.ports.get_mut(link)
        {
            port.counters.add(which, n);
        }
    }

    /// Ends a packet: counts why, by the link that it came in by.
    pub(crate) fn drop(&mut self, pkt: &Packet, reason: DropReason) {
        self.ports.drops(pkt.meta.link, reason, pkt.meta.cut.packets());
    }
}

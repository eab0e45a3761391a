//! Datapath of the node: the stages between two links, composed of the crates of the protocols.
//!
//! # Decides
//! Order of the stages for one packet, and its end: delivered, sent, held (by a neighbour that has yet to answer, or an
//! SA) or dropped for a [`DropReason`], counted by the link that it came in by; Linux's own counters are counted as
//! well. A packet keeps its input link, and is routed and answered in the domain of that link
//! ([`Fib::domain`](fib::Fib::domain)).
//!
//! # Leaves to others
//! Routes and neighbours (crate [`fib`]), policies and ESP (crate [`ipsec`]), fragments (crate [`reassembly`]),
//! segmentation and merging (crate [`offload`]), contents of ICMP messages (crate [`host`]), forwarding of frames (crate
//! [`switch`]), queueing (crate [`qdisc`]), translation (crate [`ila`]). System calls of links (crate `link`), clock and
//! threads (crate `daemon`): this crate does no I/O. [`Datapath::handle_rx`] takes packets that a link has received, and
//! packets to be sent wait in the port of their link until the caller takes them with [`Datapath::take_tx`].
//!
//! # Limits
//! - [`TX_QUEUE_BYTES`]: 8 MiB of packets that wait for a busy link, by `truesize`; above 1 MiB its discipline is not
//!   dequeued (`DEVICE_BYTES` in `tx/queue.rs`).
//! - 1024 packets wait for the kernel's answer which socket is theirs (`MAX_WAITING` in `host_side/deliver.rs`); the
//!   kernel is asked at most 10 000 times a second (`PER_SECOND` in `node/sockets.rs`). 1 MiB of IKE messages waits for
//!   an IKE daemon (`MAX_WAITING` in `local/ike.rs`).
//! - 8192 steps of traces (`MAX_RECORDED` in `node/trace.rs`) and 4096 captured packets (`MAX_TAPPED` in
//!   `node/ports.rs`) wait for their reader; later ones are lost to it. Reports of drops are as many as their reader
//!   permits ([`Datapath::watch_drops`]).
//! - 8 options in one IPv6 header, and 7 bytes of padding in a row (`MAX_OPTIONS`, `MAX_PADDING` in `ext_headers.rs`).
//!
//! # Standards
//! - IPv4: RFC 791 §3.1, RFC 1122 §3.2.1.3, §3.2.2 and §3.3.6, RFC 1812 §4.3.2.4, §5.2.7.2, §5.3.4, §5.3.8 and §5.3.13,
//!   RFC 6864 §4, RFC 7600 §4.8.
//! - IPv6: RFC 8200 §3, §4.2 to §4.5, §4.7 and §8.1, RFC 5095, RFC 7112 §5; RFC 4291 §2.5, §2.6.1, §2.7.1 and §2.8.
//! - ICMP, neighbours: RFC 792, RFC 4443 §2.1, §2.2 and §4.1; RFC 4861, RFC 6980 §5.
//! - Path MTU: RFC 1191, RFC 8201; RFC 9293 §3.7.1 (MSS).
//! - IPsec: RFC 4301 §7 and §8.2.1, RFC 4303 §3.1.1 and §3.4.1; RFC 3948 §2.2, §2.3 and §4, RFC 7296 §2.
//! - VLANs: IEEE 802.1Q §6.9.
//!
//! # Stages
//! ```text
//!  handle_rx ─▶ wire tap ─▶ rx::l2 ─▶ rx::gro ─▶ fat tap ─▶ rx::l3 ─▶ FIB ─┬▶ local ─────┐
//!      ║           ▲                     ▲         (ESP of this node        ├▶ forward ───┴▶ tx::output
//!      ║           │                     │          passes by GRO)          └▶ drop, reject
//!      ║           │                     └──── decrypted ◀── local::esp ◀── local (reassembly first)
//!      ╚═ rx::shortcut: ESP run, fragment train, where every stage they skip is a no-op
//!
//!  rx::l3 hooks ─▶ host_side::demux ─▶ local ─▶ policy ─▶ host_side::deliver ─▶ device         (where the link has a device of the host side)
//!  handle_rx of that device ─▶ host_side::down ─▶ FIB ─▶ tx::output
//!
//!  tx::output ─▶ policy ─┬▶ tx::mtu ──────────────────▶ tx::transmit: fat tap ─▶ neighbour ─▶ device: fit, wire tap ─▶ take_tx
//!                        └▶ tx::xfrm: inner MTU ─▶ ESP ──▲
//!
//!  neighbour ─▶ tx::queue: qdisc, fat tap ─▶ device                                       (where the link has a queueing discipline)
//!  own packets ─▶ vrf: hooks, counters, tap ─┬▶ tx::output                                (in a VRF)
//!                                            └▶ tx::queue ─▶ vrf: FIB again ─▶ tx::output (where its device has a queueing discipline)
//!
//!  rx::l2 ─▶ bridge: which ports ─┬▶ device of each                                       (of a port of a bridge)
//!                                 └▶ rx::l2 of the bridge's device
//!  rx::l2 ─▶ vlan ─▶ rx::l2 of the VLAN's device
//!
//!  rx of a bridged frame, rx::l2 of ARP, local, forward, tx::transmit, device ─▶ hand_over ═▶ the same stage of the owner   (of several shards)
//!
//!  device ─┬▶ link, host side: fit, wire tap ─▶ take_tx                                   (by the device of the port)
//!          ├▶ VLAN: tag ─▶ device below
//!          ├▶ bridge: which ports ─▶ device of each
//!          └▶ VRF, from its queueing discipline ─▶ vrf: FIB again ─▶ tx::output
//! ```
//!
//! # Layers
//! Files use files above them, or in their own row. Each stage returns the next one (`Next`) and defers packets that it
//! makes; the loop runs them.
//!
//! | files | contents |
//! |---|---|
//! | `next`, `ip_packet` | next stage of a packet, its hop, and its parsed headers |
//! | `node` | state of the node ([`Datapath`]), without functions that move packets |
//! | `mib`, `trace`, `addresses`, `icmp_quote`, `ext_headers`, `ip_options`, `hop_limit`, `unroutable`, `policy`, `hooks`, `hand_over`, `ila_hook`, `ila_errors`, `route_encap` | checks and changes of one packet, which the stages share |
//! | `tx`, `vlan`, `vrf`, `own`, `bridge`, `local`, `host_side`, `forward`, `rx::l3` | the stages: functions over the node |
//! | `run` | the only loop over the stages |
//! | `rx`, `host_side::down`, `shards` | input, which gives packets to the loop |
//! | this one, `config`, `rx_mode` | the calls of the node's owner |
#![forbid(unsafe_code)]
#![deny(unused_must_use)]

mod addresses;
mod bridge;
mod config;
mod ext_headers;
mod forward;
mod hand_over;
mod hooks;
mod hop_limit;
mod host_side;
mod icmp_quote;
mod ila_errors;
mod ila_hook;
mod ip_options;
mod ip_packet;
mod local;
mod local_out;
mod mib;
mod next;
mod node;
mod policy;
mod route_encap;
mod run;
mod rx;
mod rx_mode;
mod shards;
mod trace;
mod tx;
mod unroutable;
mod vlan;
mod vrf;

use base::{DropReason, Instant, Origin, PortId};
use offload::Features;
use packet::{Memory, Packet};

use ip_packet::{Carried, IpPacket};
use next::{Cx, Next};
use run::{run_actions, run_deferred};
use rx::BurstEnd;
use tx::{device, keepalive, queue};

pub use node::drop_watch::{DropReport, DroppedEsp};
pub use node::hooks::HookPoint;
pub use node::ike::{IkeAt, IkeMessage};
pub use node::ports::{
    Device, Dropped, FatCounts, HostRole, Port, PortConfig, Ports, TX_QUEUE_BYTES, TapPoints, Tapped, Traffic,
    host_port,
};
pub use node::shard::{HandOver, Update};
pub use node::sockets::{DemuxCounts, EarlyDemux, L3mdevAccept, SocketBinding, SocketQuestion};
pub use node::trace::{EspRef, Geometry, Step, TraceClock, TraceFilter, TraceStep, TraceTerm};
pub use node::{Datapath, Forwarded};
pub use rx_mode::RxMode;
pub use vlan::VlanError;

impl Datapath {
    /// The reassembly cache of this node.
    pub fn reassembly(&self) -> &::reassembly::Reassembly {
        &self.reassembly
    }

    /// Permits `room` more [reports of drops](Self::take_drop_reports) until the next call; `None` ends them. Drops
    /// beyond that are counted as [unreported](Self::unreported_drops).
    pub fn watch_drops(&mut self, room: Option<usize>) {
        self.ports.drop_watch.set(room);
        self.update_esp_watch();
    }

    /// Tells whether there are reports of drops.
    pub fn has_drop_reports(&self) -> bool {
        self.ports.drop_watch.has_reports()
    }

    /// Reports of drops since the last call.
    pub fn take_drop_reports(&mut self) -> std::vec::Drain<'_, DropReport> {
        self.ports.drop_watch.take()
    }

    /// Number of dropped packets without a report.
    pub fn unreported_drops(&self) -> u64 {
        self.ports.drop_watch.unreported()
    }

    /// As [`unreported_drops`](Self::unreported_drops), and begins to count at 0 again.
    pub fn take_unreported_drops(&mut self) -> u64 {
        self.ports.drop_watch.take_unreported()
    }

    /// Packets captured since the last call.
    pub fn take_tapped(&mut self) -> std::vec::Drain<'_, Tapped> {
        self.ports.take_tapped()
    }

    /// Runs the packets that `link` received, in order, through to the ports that they leave by; packets of the port [`host_port`] of a
    /// link were sent by sockets of the host side. Empties `burst`.
    pub fn handle_rx(&mut self, now: Instant, mem: &Memory, link: PortId, burst: &mut Vec<Packet>) {
        self.receive_burst(now, mem, link, burst);
        self.finish(now, mem);
    }

    /// As [`handle_rx`](Self::handle_rx) while more input follows, on this link or another: packets may stay in flight at crypto
    /// threads or in GRO until the next call, or until [`finish`](Self::finish). The configuration must not change before that.
    pub fn receive_burst(&mut self, now: Instant, mem: &Memory, link: PortId, burst: &mut Vec<Packet>) {
        self.forget_if_changed();
        let cx = Cx { now, mem };
        match node::ports::link_of_host_port(link) {
            None => rx::run_burst(self, cx, link, burst),
            Some(link) => burst.drain(..).for_each(|pkt| host_side::down::receive(self, cx, link, pkt)),
        }
    }

    /// Waits for crypto threads, and runs the packets that they and GRO hold since [`receive_burst`](Self::receive_burst).
    pub fn finish(&mut self, now: Instant, mem: &Memory) {
        self.drain_all(Cx { now, mem });
    }

    /// Answers the [question](Self::socket_question), and those behind it about the same address and port.
    pub fn answer_socket_question(&mut self, now: Instant, mem: &Memory, binding: SocketBinding) {
        let cx = Cx { now, mem };
        let Some(first) = self.socket_lookups.waiting.pop_front() else { return };
        self.socket_lookups.learn(now, first.question.end(), binding);
        host_side::deliver::resume(self, cx, first, binding);
        run_deferred(self, cx);
        while let Some(next) = self.socket_lookups.waiting.front()
            && let question = next.question
            && let Some(binding) = host_side::deliver::known_binding(self, cx, &question)
            && let Some(next) = self.socket_lookups.waiting.pop_front()
        {
            host_side::deliver::resume(self, cx, next, binding);
            run_deferred(self, cx);
        }
        self.drain_all(cx);
    }

    /// Sends a message by the link of its port, or by the route to its peer; with the non-ESP marker from any port but 500. A message
    /// whose source is no port of IKE, or whose addresses are of two families, is dropped ([`DropReason::IkeUnsendable`]).
    pub fn send_ike(&mut self, now: Instant, mem: &Memory, message: &IkeMessage) {
        let cx = Cx { now, mem };
        if let Err(reason) = local::ike::send(self, cx, message) {
            tracing::debug!(peer = %message.peer, reason = reason.name(), "IKE is not sent");
            self.ports.drop(Origin::NODE, reason).end();
        }
        self.drain_all(cx);
    }

    /// Handles all timers that are due.
    pub fn handle_timeout(&mut self, now: Instant, mem: &Memory) {
        let cx = Cx { now, mem };
        if !self.ports.shaped.is_empty() {
            device::run_queues(self, cx);
            run_deferred(self, cx);
        }
        self.bridges.handle_timeout(now);
        if self.neighbours.poll_timeout().is_some_and(|at| at <= now) {
            self.neighbours.handle_timeout(now, &mut self.actions);
        }
        if self.ipsec.poll_keepalives().is_some_and(|at| at <= now) {
            keepalive::send_keepalives(self, cx);
            run_deferred(self, cx);
        }
        if self.reassembly.poll_timeout().is_some_and(|at| at <= now) {
            local::reassembly::expire(self, cx);
            run_actions(self, cx);
        }
        if self.ipsec.poll_timeout().is_some_and(|at| at <= now) {
            self.ipsec.handle_timeout(now, &mut self.counters);
            local_out::release(self, cx);
            run_deferred(self, cx);
        }
        self.drain_all(cx);
    }

    /// Ends a call: runs neighbour actions, and flushes ciphers and GRO, until neither has made work for the other. A packet
    /// that GRO held may be the first to its next hop, and an action may send an ICMP error through ESP.
    pub(crate) fn drain_all(&mut self, cx: Cx<'_>) {
        loop {
            run_actions(self, cx);
            if self.ipsec.is_pending() || self.gro.held() > 0 || !self.bridges.gro.is_empty() {
                rx::flush(self, cx, BurstEnd::Idle);
            }
            if self.actions.is_empty() {
                break;
            }
        }
        debug_assert!(self.deferred.is_empty(), "{} deferred packets were not run", self.deferred.len());
        // Drops receive templates, which hold keys of removed SAs.
        self.forget_if_changed();
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
    pub fn take_tx(&mut self, id: PortId) -> Option<&mut Vec<Packet>> {
        self.ports.get_mut(id).map(Port::take_tx)
    }

    /// The link of the lowest number from `first` on that has packets to be sent. A caller that sends on all links asks for the next
    /// number after each, so that links without packets cost it nothing.
    pub fn next_to_send(&mut self, first: PortId) -> Option<PortId> {
        self.ports.next_to_send(first)
    }

    /// Sets whether a link is busy, so that its queueing discipline holds packets back (back-pressure). A link that is not busy
    /// is given more packets.
    pub fn set_busy(&mut self, now: Instant, mem: &Memory, id: PortId, is_busy: bool) {
        if let Some(port) = self.ports.get_mut(id) {
            port.set_busy(mem, is_busy);
        }
        if !is_busy && self.ports.is_shaped(id) {
            let cx = Cx { now, mem };
            device::run_queue(self, cx, id);
            run_deferred(self, cx);
        }
    }

    /// Drops packets that a link has received, for this reason.
    pub fn discard(&mut self, id: PortId, burst: &mut Vec<Packet>, reason: DropReason) {
        for mut pkt in burst.drain(..) {
            pkt.meta.origin = Origin::Port(id).into();
            self.count_frame_drop(&pkt, reason).end();
        }
    }

    /// Drops the packets queued for a link.
    pub fn drop_tx(&mut self, id: PortId, reason: DropReason) {
        let Some(port) = self.ports.get_mut(id) else { return };
        let waiting = std::mem::take(port.take_tx());
        self.drop_unsent(waiting, reason);
    }

    /// Drops packets that were queued for a link, which cannot send them.
    pub fn drop_unsent(&mut self, packets: Vec<Packet>, reason: DropReason) {
        for pkt in packets {
            self.count_frame_drop(&pkt, reason).end();
        }
    }

    /// Fits the packets queued for a link to its features again, after the link has lost some.
    pub fn refit(&mut self, now: Instant, mem: &Memory, id: PortId, features: Features) {
        let Some(port) = self.ports.get_mut(id) else { return };
        port.config.features = features;
        let l3 = port.l3();
        for mut pkt in std::mem::take(port.take_tx()) {
            // The tags of a frame that was fitted before are in its bytes.
            let l3 = offload::behind_tags(mem, &mut pkt, l3);
            device::put(self, Cx { now, mem }, id, pkt, l3);
        }
    }
}

//! The worker: waits for links, runs each burst through the datapath, and sends the resulting packets. Crypto threads
//! and GRO may still hold packets of one burst while the next is received; all of them are finished before the worker
//! does other work.
//!
//! The worker is the only thread that touches packets, so packets need no locks. Commands run between bursts. An idle
//! worker sleeps in epoll, and does not wake up to poll.

use std::io;
use std::time::Duration;

use base::{Instant, PortId};
use link::HostLinks;
use netlink::rtnl::Delta;

use super::command::{Command, Inbox};
use super::node::Node;
use super::notifications;
use super::poller::{Poller, Ready};
use super::slot::Slot;
use super::translate::fib;

/// Limit of bursts received from each ready link before epoll is queried about the other links again.
const TURNS: usize = 4;

/// The worker's state.
#[derive(Debug)]
pub(crate) struct Worker {
    node: Node,
    inbox: Inbox,
    /// Events of the host's interfaces, if the system reports them.
    host: Option<HostLinks>,
    /// Whether an interface of the host has changed.
    host_changed: bool,
    /// Whether a message of a key manager is queued.
    ike_ready: bool,
    /// Links to read. Kept for its storage, as is the next field.
    ready: Vec<PortId>,
    /// Host side devices to read, by their links.
    ready_host_devices: Vec<PortId>,
    deltas: Vec<Delta>,
}

impl Worker {
    /// A worker without links.
    pub(crate) fn new(inbox: Inbox) -> io::Result<Self> {
        let poller = Poller::new(inbox.wake_fd())?;
        let host = HostLinks::listen().and_then(|host| poller.add_host(&host).map(|()| host));
        if let Err(err) = &host {
            tracing::warn!("rtnetlink: {err}; changes of the host's interfaces are noticed only when they fail");
        }
        Ok(Self {
            node: Node::new(poller),
            inbox,
            host: host.ok(),
            host_changed: false,
            ike_ready: false,
            ready: Vec::new(),
            ready_host_devices: Vec::new(),
            deltas: Vec::new(),
        })
    }

    /// Runs until a stop command.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            while self.node.paused {
                self.inbox.wait()?;
                if !self.run_commands() {
                    return Ok(());
                }
            }
            let limit = if self.inbox.may_sleep() { self.limit() } else { Some(Duration::ZERO) };
            self.node.poller.wait(limit)?;
            let woken = self.poll_events();
            self.inbox.wake_up(woken, !self.ready.is_empty() || !self.ready_host_devices.is_empty());
            let now = self.node.now();
            self.apply_deltas(now);
            notifications::run_timers(&mut self.node, now);
            if !self.run_commands() {
                return Ok(());
            }
            self.check_interfaces(now);
            self.serve_ready();
            self.serve_host_side();
            let now = self.node.now();
            self.node.retry_links(now);
            self.serve_ike(now);
            self.node.send_all(now);
            self.node.settle(now);
            self.deliver_copies();
            notifications::publish(&mut self.node);
        }
    }

    /// Time until the worker's next known deadline.
    fn limit(&self) -> Option<Duration> {
        let slots = self.node.slots.iter().flatten();
        let again = |slot: &Slot| slot.down.as_ref().filter(|_| slot.admin_up).map(|down| down.retry_at);
        let retries = slots.flat_map(|slot| again(slot).into_iter().chain(slot.retry_at));
        let host_devices = self.node.host_devices.values().filter_map(|found| found.retry_at);
        let monitors = self.node.monitors.poll_timeout();
        let at = retries.chain(host_devices).chain(self.node.datapath.poll_timeout()).chain(monitors).min()?;
        Some(at.since(self.node.now()))
    }

    /// Records which links have packets and which have room again. Returns whether a sender has written to the inbox's
    /// eventfd.
    fn poll_events(&mut self) -> bool {
        let Self { node, ready, ready_host_devices, ike_ready, host_changed, .. } = self;
        let Node { poller, slots, .. } = node;
        let mut woken = false;
        let mut with_room = Vec::new();
        for found in poller.ready() {
            match found {
                Ready::Inbox => woken = true,
                Ready::Ike => *ike_ready = true,
                Ready::Host => *host_changed = true,
                Ready::Link { id, input, room } => {
                    let Some(Some(slot)) = slots.get_mut(id.0 as usize) else { continue };
                    if room && slot.full {
                        slot.full = false;
                        poller.watch_room(id, &*slot.link, false);
                    }
                    // A link with several queues is reported several times.
                    if input && !ready.contains(&id) {
                        ready.push(id);
                    }
                }
                Ready::HostDevice { id, input, room } => {
                    if room {
                        with_room.push(id);
                    }
                    if input && !ready_host_devices.contains(&id) {
                        ready_host_devices.push(id);
                    }
                }
            }
        }
        for id in with_room {
            node.host_device_has_room(id);
        }
        woken
    }

    /// Runs queued commands. False: stop.
    fn run_commands(&mut self) -> bool {
        if !self.inbox.has_commands() {
            return true;
        }
        while let Some(command) = self.inbox.next() {
            self.apply_deltas(self.node.now());
            match command {
                Command::Stop => return false,
                Command::Call(call) => call(&mut self.node),
            }
        }
        true
    }

    /// Applies queued changes. They do not affect packets that were received before them.
    fn apply_deltas(&mut self, now: Instant) {
        if !self.inbox.take_deltas(&mut self.deltas) {
            return;
        }
        let Node { datapath, mem, vrfs, captures, .. } = &mut self.node;
        datapath.finish(now, mem);
        for delta in self.deltas.drain(..) {
            fib::apply(&mut datapath.fib, &delta);
            match delta {
                Delta::Vrf(device, Some(vrf)) => {
                    datapath.set_vrf_port(now, device, Some((vrf.name.clone(), vrf.mtu as usize)));
                    vrfs.insert(device, vrf);
                }
                Delta::Vrf(device, None) => {
                    datapath.set_vrf_port(now, device, None);
                    captures.close(device);
                    vrfs.remove(&device);
                }
                _ => {}
            }
        }
    }

    /// Checks every link, if an interface of the host has changed.
    fn check_interfaces(&mut self, now: Instant) {
        if std::mem::take(&mut self.host_changed) && self.host.as_ref().is_some_and(HostLinks::have_changed) {
            self.node.look_at_links(now);
        }
    }

    /// Carries IKE messages between the key manager and the links.
    fn serve_ike(&mut self, now: Instant) {
        let Node { ike: Some(socket), datapath, mem, .. } = &mut self.node else { return };
        if std::mem::take(&mut self.ike_ready) {
            let mut messages = Vec::new();
            socket.receive(|at| datapath.has_ike(at), |message| messages.push(message));
            for message in &messages {
                datapath.send_ike(now, mem, message);
            }
        }
        datapath.take_ike().for_each(|message| socket.deliver(&message));
    }

    /// Receives a burst from each ready link in turn, until the links are empty or others may be ready too. Packets of
    /// a burst that crypto threads and GRO hold continue with the next burst, or at the end.
    fn serve_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        for _ in 0..TURNS {
            if ready.is_empty() {
                break;
            }
            let now = self.node.now();
            ready.retain(|&id| self.serve(now, id));
        }
        let now = self.node.now();
        self.node.datapath.finish(now, &self.node.mem);
        ready.clear();
        self.ready = ready;
    }

    /// Receives bursts that sockets of the host side have sent, in the same way as [`serve_ready`](Self::serve_ready).
    fn serve_host_side(&mut self) {
        let mut ready = std::mem::take(&mut self.ready_host_devices);
        for _ in 0..TURNS {
            if ready.is_empty() {
                break;
            }
            let now = self.node.now();
            self.apply_deltas(now);
            ready.retain(|&id| self.node.serve_host_device(now, id));
        }
        ready.clear();
        self.ready_host_devices = ready;
    }

    /// Receives one burst from a link, and passes it to the datapath. Returns whether there may be more.
    fn serve(&mut self, now: Instant, id: PortId) -> bool {
        let Some(received) = self.node.receive(now, id) else { return false };
        let more = !self.node.burst.is_empty();
        if more {
            // A change that a client saw confirmed before it sent these packets applies to them.
            self.apply_deltas(now);
            self.node.receive_burst(now, id);
        }
        match received {
            Ok(()) => more,
            Err(err) => {
                self.node.link_failed(now, id, &err);
                false
            }
        }
    }

    /// Sends captured packets, traces and reports of drops to their clients.
    fn deliver_copies(&mut self) {
        let now = self.node.now();
        let Node { captures, traces, monitors, datapath, .. } = &mut self.node;
        captures.deliver(datapath, now);
        traces.deliver(datapath);
        monitors.deliver_drops(datapath, now);
    }
}

//! The worker: waits for links, runs each burst through the datapath, and sends the resulting packets. Crypto threads
//! and GRO may still hold packets of one burst while the next is received; all of them are finished before the worker
//! does other work.
//!
//! The worker is the only thread that touches packets of its node, so packets need no locks. Operations of the log are
//! applied between bursts, and between the receipt of a burst and the first decision on it. An idle worker sleeps in epoll,
//! and does not wake up to poll. While it sleeps, a thread that has an operation for it does the worker's turn itself.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::{Instant, PortId, ShardId};
use datapath::{Datapath, HandOver, Update, host_port};
use link::HostLinks;
use sync::Notifier;

use super::apply;
use super::command::{Inbox, Operation};
use super::node::{Clock, Node, Shards};
use super::notifications;
use super::poller::{Poller, Ready, Waiter};
use super::slot::Slot;

/// Limit of bursts received from each ready link before epoll is queried about the other links again.
const TURNS: usize = 4;

/// The worker's state.
#[derive(Debug)]
pub(crate) struct Worker {
    node: Node,
    inbox: Arc<Inbox>,
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
    operations: Vec<Operation>,
    /// Packets of other shards. Kept for its storage.
    handed_over: Vec<HandOver>,
    /// Time at which the worker's thread wakes up by itself; `None` for never.
    sleeps_until: Option<Instant>,
    /// Time of the last wake-up with packets.
    last_packets: Instant,
    /// Time at which the turn in progress began, or the last one ended.
    turn_began: Instant,
    /// Whether the worker ends, and processes no further packet.
    is_over: bool,
}

/// A worker between its own thread, which sleeps without the lock, and others, which have operations for it. `None` when it has ended.
#[derive(Clone, Debug)]
pub(crate) struct SharedWorker(Arc<Mutex<Option<Worker>>>);

/// Time without packets after which other threads serve a worker that sleeps.
const QUIET: Duration = Duration::from_millis(10);

/// Closes the links and the inbox of a worker at the end of its thread, also when it panics.
struct Ending<'a>(&'a Mutex<Option<Worker>>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // Dropped without the lock: a link may be closed for a while.
        let worker = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(worker);
    }
}

impl SharedWorker {
    pub(crate) fn new(worker: Worker) -> Self {
        Self(Arc::new(Mutex::new(Some(worker))))
    }

    /// Runs until a stop operation.
    pub(crate) fn run(&self) -> io::Result<()> {
        let _ending = Ending(&self.0);
        let gone = || io::Error::other("a thread with an operation for it panicked");
        let lock = || self.0.lock().map_err(|_| gone());
        let mut guard = lock()?;
        let worker = guard.as_mut().ok_or_else(gone)?;
        worker.node.thread = Some(rustix::thread::gettid());
        let (inbox, mut waiter) = (Arc::clone(&worker.inbox), worker.node.poller.waiter());
        loop {
            let worker = guard.as_mut().ok_or_else(gone)?;
            if worker.is_over {
                return Ok(());
            }
            if worker.node.paused {
                worker.end_turn(worker.node.now());
                drop(guard);
                inbox.wait()?;
                guard = lock()?;
                let worker = guard.as_mut().ok_or_else(gone)?;
                worker.apply_all(worker.node.now());
                // A pause is no work.
                worker.begin_turn(worker.node.now());
            } else {
                let limit = worker.fall_asleep();
                drop(guard);
                waiter.wait(limit)?;
                guard = lock()?;
                let worker = guard.as_mut().ok_or_else(gone)?;
                worker.wake_up(&waiter);
                worker.turn();
            }
        }
    }

    /// Does a turn of the worker on this thread, if its own sleeps; false if it does not, or has ended.
    pub(crate) fn serve_asleep(&self) -> bool {
        let Ok(mut guard) = self.0.try_lock() else { return false };
        let Some(worker) = guard.as_mut() else { return false };
        let inbox = Arc::clone(&worker.inbox);
        // The worker's thread finds the lock poisoned.
        let wakes_on_panic = OnPanic(&inbox);
        let is_served = worker.serve_asleep();
        drop(wakes_on_panic);
        is_served
    }
}

/// Wakes the worker if the thread that has its lock panics.
struct OnPanic<'a>(&'a Inbox);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.notifier().notify();
        }
    }
}

impl Worker {
    /// The only worker of a node, without links.
    #[cfg(test)]
    pub(crate) fn new(inbox: Inbox) -> io::Result<Self> {
        Self::of_shard(inbox, Clock::start(), Datapath::new(), None)
    }

    /// A worker without links, of the shard with the datapath `datapath`.
    pub(crate) fn of_shard(
        inbox: Inbox,
        clock: Clock,
        datapath: Datapath,
        shard: Option<(ShardId, Arc<dyn Shards>)>,
    ) -> io::Result<Self> {
        let poller = Poller::new(inbox.notifier())?;
        let host = HostLinks::listen().and_then(|host| poller.add_host(&host).map(|()| host));
        if let Err(err) = &host {
            tracing::warn!("rtnetlink: {err}; changes of the host's interfaces are noticed only when they fail");
        }
        let node = Node::of(poller, clock, datapath, shard);
        Ok(Self {
            last_packets: node.now(),
            turn_began: node.now(),
            sleeps_until: None,
            node,
            inbox: Arc::new(inbox),
            host: host.ok(),
            host_changed: false,
            ike_ready: false,
            ready: Vec::new(),
            ready_host_devices: Vec::new(),
            operations: Vec::new(),
            handed_over: Vec::new(),
            is_over: false,
        })
    }

    /// Begins a sleep, and returns its limit.
    fn fall_asleep(&mut self) -> Option<Duration> {
        let now = self.node.now();
        self.end_turn(now);
        self.sleeps_until = if self.inbox.may_sleep() { self.deadline() } else { Some(now) };
        self.sleeps_until.map(|until| until.since(now))
    }

    /// Counts the time since the end of the last turn as idle.
    fn begin_turn(&mut self, now: Instant) {
        self.node.work.idle += now.since(self.turn_began);
        self.turn_began = now;
    }

    /// Counts the time since the beginning of the turn as busy.
    fn end_turn(&mut self, now: Instant) {
        self.node.work.busy += now.since(self.turn_began);
        self.turn_began = now;
    }

    /// Ends a sleep with the results of the wait.
    fn wake_up(&mut self, waited: &Waiter) {
        self.node.poller.set_ready(waited);
        self.node.work.wakeups += 1;
        let woken = self.poll_events();
        let has_packets = !self.ready.is_empty() || !self.ready_host_devices.is_empty();
        self.inbox.wake_up(woken, has_packets);
        if has_packets {
            self.last_packets = self.node.now();
        }
    }

    /// Does what there is to do: operations, timers, and packets of the links that are ready.
    fn turn(&mut self) {
        let now = self.node.now();
        self.begin_turn(now);
        self.apply_all(now);
        if self.is_over || self.node.paused {
            return;
        }
        notifications::run_timers(&mut self.node, now);
        self.check_interfaces(now);
        // Before the links: shards that hand packets to each other never wait, so each takes what waits first.
        self.serve_handed_over(now);
        self.serve_ready();
        self.serve_host_side();
        if self.is_over {
            return;
        }
        let now = self.node.now();
        self.node.retry_links(now);
        self.serve_ike(now);
        self.pass_on(now);
        self.node.send_all(now);
        self.node.settle(now);
        self.deliver_copies();
        notifications::publish(&mut self.node);
    }

    /// Does a turn on another thread while the worker's own sleeps, unless packets have come lately: the next ones would wait for that thread,
    /// which has a lower priority. Returns whether it has.
    fn serve_asleep(&mut self) -> bool {
        // The thread gets its place, its CPU, from an operation that waits for it.
        if self.node.thread.is_none() || self.node.now().since(self.last_packets) < QUIET {
            return false;
        }
        let was_paused = self.node.paused;
        if was_paused {
            let now = self.node.now();
            self.apply_all(now);
        } else {
            self.turn();
            let now = self.node.now();
            self.end_turn(now);
        }
        let is_earlier = |until| self.sleeps_until.is_none_or(|sleeps| until < sleeps);
        let is_earlier = !self.node.paused && self.deadline().is_some_and(is_earlier);
        if is_earlier || self.node.paused != was_paused || self.is_over {
            // It fails if the worker has ended.
            let _ = self.inbox.notifier().notify();
        }
        true
    }

    /// Continues packets that other shards have handed over. A change that their shard has made before is in this one's list, and is made
    /// here before the first decision, too.
    fn serve_handed_over(&mut self, now: Instant) {
        if self.is_over || self.node.paused {
            return;
        }
        let mut packets = std::mem::take(&mut self.handed_over);
        packets.extend(self.inbox.packets());
        if !packets.is_empty() {
            self.last_packets = now;
            self.apply_all(now);
            // If the node pauses now, the packets wait for its end.
            if !self.is_over && !self.node.paused {
                let Node { datapath, mem, work, .. } = &mut self.node;
                work.taken_over += packets.len() as u64;
                datapath.receive_handed_over(now, mem, packets.drain(..));
                datapath.finish(now, mem);
                self.pass_on(now);
            }
        }
        self.handed_over = packets;
    }

    /// Hands packets to the shards that own what they need next, and tells all what this one has learnt: behind the packets that it sends
    /// itself, so that none that another shard sends to a new neighbour overtakes them.
    fn pass_on(&mut self, now: Instant) {
        let Self { node, inbox, .. } = self;
        // Once more for packets that waited behind one that is refused.
        while node.datapath.has_handed_over() {
            let mut refused = Vec::new();
            let Node { datapath, work, .. } = node;
            let packets = datapath.take_handed_over().inspect(|_| work.handed_over += 1);
            let packets = packets.map(|packet| (usize::from(packet.to().0), packet));
            inbox.hand_over(packets, |packet| refused.push(packet));
            work.handed_over -= refused.len() as u64;
            refused.into_iter().for_each(|packet| node.datapath.refuse_handed_over(packet));
        }
        let updates = node.datapath.take_updates();
        if !updates.is_empty() {
            node.send_all(now);
            inbox.tell(&updates, |&update| Operation::Update(update), Update::is_for_all);
        }
    }

    /// The worker's next known deadline.
    fn deadline(&self) -> Option<Instant> {
        let slots = self.node.slots.iter().flatten();
        let again = |slot: &Slot| slot.down.as_ref().filter(|_| slot.admin_up).and_then(|down| down.retry_at);
        let retries = slots.flat_map(|slot| again(slot).into_iter().chain(slot.retry_at));
        let host_devices = self.node.host_devices.values().filter_map(|found| found.retry_at);
        let copies = self.node.monitors.poll_timeout().into_iter().chain(self.node.traces.poll_timeout());
        retries.chain(host_devices).chain(self.node.datapath.poll_timeout()).chain(copies).min()
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

    /// Applies the queued operations, and those that come meanwhile.
    fn apply_all(&mut self, now: Instant) {
        while !self.is_over && self.inbox.take(&mut self.operations) {
            self.apply(now);
        }
        // Also while the node pauses: what a change has taught one shard, all know.
        self.pass_on(now);
    }

    /// Applies the queued operations to packets of `from` that have been received and not decided on: those of a link that is
    /// closed or set down by an operation are dropped, as are all if the worker pauses or ends.
    fn apply_before_burst(&mut self, now: Instant, from: PortId) {
        if !self.inbox.take(&mut self.operations) {
            return;
        }
        self.node.held = Some((from, std::mem::take(&mut self.node.burst)));
        self.apply(now);
        if self.is_over || self.node.paused {
            self.node.discard_held(from);
        }
        if let Some((_, burst)) = self.node.held.take() {
            self.node.burst = burst;
        }
    }

    /// Applies the operations that were taken, in their order. They do not affect packets that were decided on before.
    fn apply(&mut self, now: Instant) {
        let Self { node, operations, is_over, .. } = self;
        node.datapath.finish(now, &node.mem);
        let mut has_called = node.paused;
        for operation in operations.drain(..) {
            match operation {
                Operation::Delta(delta) => apply::apply_delta(node, now, delta),
                Operation::Mapping(change) => node.datapath.change_ila(change),
                Operation::Update(update) => {
                    node.datapath.follow(now, &node.mem, update);
                    // Events of what it has ended come before those of the next call.
                    has_called &= !update.is_for_all() || node.paused;
                }
                Operation::Call(call) => {
                    if !std::mem::replace(&mut has_called, true) {
                        notifications::run_timers(node, now);
                        node.send_all(now);
                    }
                    call(node);
                }
                Operation::Stop => {
                    *is_over = true;
                    return;
                }
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
            ready.retain(|&id| self.serve_host_device(now, id));
        }
        ready.clear();
        self.ready_host_devices = ready;
    }

    /// Receives one burst from a link, and passes it to the datapath. Returns whether there may be more.
    fn serve(&mut self, now: Instant, id: PortId) -> bool {
        if self.is_over || self.node.paused || self.node.is_draining {
            return false;
        }
        let Some(received) = self.node.receive(now, id) else { return false };
        let more = !self.node.burst.is_empty();
        if more {
            self.node.work.bursts += 1;
            // A change that a client saw confirmed before it sent these packets applies to them.
            self.apply_before_burst(now, id);
            self.node.receive_burst(now, id);
            self.pass_on(now);
        }
        match received {
            Ok(()) => more,
            Err(err) => {
                self.node.link_failed(now, id, &err);
                false
            }
        }
    }

    /// Receives one burst from sockets of the host side, in the same way.
    fn serve_host_device(&mut self, now: Instant, id: PortId) -> bool {
        if self.is_over || self.node.paused || self.node.is_draining {
            return false;
        }
        let Some(received) = self.node.receive_of_host_device(id) else { return false };
        let more = !self.node.burst.is_empty();
        if more {
            self.node.work.bursts += 1;
            self.apply_before_burst(now, host_port(id));
            self.node.take_burst_of_host_device(now, id);
        }
        match received {
            Ok(()) => more,
            Err(err) => {
                self.node.host_device_failed(id, &err);
                false
            }
        }
    }

    /// Sends captured packets, traces and reports of drops to their clients.
    fn deliver_copies(&mut self) {
        let now = self.node.now();
        let Node { captures, traces, monitors, datapath, .. } = &mut self.node;
        captures.deliver(datapath, now);
        traces.deliver(datapath, now);
        monitors.deliver_drops(datapath, now);
    }
}

#[cfg(test)]
#[path = "worker_link_tests.rs"]
mod link_tests;

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::{Arc, Mutex};
    use std::thread;

    use base::{DropReason, Prefix, TableId};
    use config::Config;
    use config::model::LinkConfig;
    use link::memory::{End, MemoryLink, pair};
    use link::{Link, Sent};
    use netlink::rtnl::{Delta, Route, nums};
    use packet::{Memory, Packet};
    use wire::Protocol;
    use wire::ipv4::Ipv4Header;

    use super::super::command::{Handle, channels, same};
    use super::super::links::LinkChange;
    use super::*;

    const LAN: PortId = PortId(2);
    const WAN: PortId = PortId(3);

    /// A route to 10.`a`.`b`.0/24 by `dev`.
    fn route(dev: PortId, [a, b]: [u8; 2]) -> Delta {
        let prefix = Prefix::new(IpAddr::V4(Ipv4Addr::new(10, a, b, 0)), 24).unwrap();
        let (kind, scope, protocol) = (nums::RTN_UNICAST, nums::RT_SCOPE_LINK, nums::RTPROT_STATIC);
        let (metric, via, src, encap) = (0, None, None, None);
        let route =
            Route { prefix, kind, metric, scope, protocol, dev: dev.0, via, src, onlink: false, encap, paths: None };
        Delta::AddRoute { table: TableId::MAIN, route, ahead: false }
    }

    fn link_config(name: &str) -> LinkConfig {
        Config::from_toml(&format!("[[link]]\nname = \"{name}\"\nkind = \"tun\"\n"), "f").unwrap().links[0].clone()
    }

    /// A worker with two links that are up, and their other ends.
    fn router() -> (Handle, Worker, [MemoryLink; 2]) {
        let (handle, [inbox]) = channels().unwrap();
        let mut worker = Worker::new(inbox).unwrap();
        let mut ends = Vec::new();
        for (id, name) in [(LAN, "lan"), (WAN, "wan")] {
            let (link, end) = pair(End::new(name), End::new(name));
            let config = link_config(name);
            worker.node.add_link(id, Box::new(link), config);
            worker.node.change_link(id, LinkChange::Up(true)).unwrap();
            ends.push(end);
        }
        (handle, worker, ends.try_into().unwrap())
    }

    /// Receives and serves a packet to 10.2.0.1, while operations wait. Returns the numbers of packets forwarded and dropped as the
    /// link is down.
    fn serve_one(worker: &mut Worker, [lan, wan]: &mut [MemoryLink; 2]) -> (usize, u64) {
        let mem = Memory::heap();
        let mut bytes = [0; Ipv4Header::LEN + 16];
        let mut header = Ipv4Header::new([10, 1, 0, 1].into(), [10, 2, 0, 1].into(), Protocol::UDP, bytes.len() as u16);
        header.fill_check();
        bytes[..Ipv4Header::LEN].copy_from_slice(header.as_bytes());
        let sent = lan.send(&mut vec![Packet::with_data(&mem, &bytes).unwrap()]);
        assert_eq!(sent.unwrap(), Sent::All);
        let now = worker.node.now();
        worker.serve(now, LAN);
        let mut out = Vec::new();
        wan.recv(&mem, &mut out).unwrap();
        let drops = worker.node.datapath.ports.drop_counts();
        let down = drops.filter(|&(_, reason, _)| reason == DropReason::LinkDown).map(|(.., count)| count).sum();
        (out.len(), down)
    }

    #[test]
    fn turn_on_another_thread_wakes_for_an_earlier_deadline() {
        let (handle, mut worker, _ends) = router();
        thread::sleep(QUIET);
        assert!(!worker.serve_asleep(), "its thread has not begun");
        worker.node.thread = Some(rustix::thread::gettid());
        let is_woken = |worker: &Worker| {
            let fd = rustix::event::PollFd::new(worker.inbox.notifier(), rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [fd], Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        let retry = |after: u64| {
            let set = move |node: &mut Node| {
                let at = node.now() + Duration::from_secs(after);
                node.slots[LAN.0 as usize].as_mut().unwrap().retry_at = Some(at);
            };
            let reply = handle.begin(set).unwrap();
            move || reply.try_recv().is_ok()
        };
        let is_done = retry(100);
        assert!(worker.serve_asleep() && is_done() && is_woken(&worker));
        worker.inbox.notifier().clear();
        worker.sleeps_until = worker.deadline();
        let is_done = retry(200);
        assert!(worker.serve_asleep() && is_done() && !is_woken(&worker), "it wakes early enough");
        // While packets come it is the worker's own thread that goes on.
        worker.last_packets = worker.node.now();
        let is_done = retry(1);
        assert!(!worker.serve_asleep() && !is_done());
    }

    #[test]
    fn time_asleep_is_not_busy() {
        let (_handle, mut worker, mut ends) = router();
        worker.turn();
        worker.fall_asleep();
        let busy = worker.node.work.busy;
        thread::sleep(QUIET);
        worker.turn();
        worker.fall_asleep();
        let turn = worker.node.work.busy - busy;
        assert!(turn > Duration::ZERO && turn < QUIET, "{turn:?}");
        assert!(worker.node.work.idle >= QUIET, "{:?}", worker.node.work.idle);
        serve_one(&mut worker, &mut ends);
        assert_eq!(worker.node.work.bursts, 1);
    }

    #[test]
    fn route_that_waits_applies_to_the_next_packet() {
        let (handle, mut worker, mut ends) = router();
        assert_eq!(serve_one(&mut worker, &mut ends), (0, 0));
        handle.queue_deltas([route(WAN, [2, 0])].into_iter());
        assert_eq!(serve_one(&mut worker, &mut ends), (1, 0));
    }

    #[test]
    fn call_that_waits_applies_to_the_next_packet() {
        let changes: [fn(&mut Node); 4] = [
            |node| node.change_link(LAN, LinkChange::Up(false)).unwrap(),
            |node| node.change_link(LAN, LinkChange::Close).unwrap(),
            |node| node.paused = true,
            // Another link has the number by then.
            |node| {
                node.change_link(LAN, LinkChange::Close).unwrap();
                let (link, _) = pair(End::new("new"), End::new("new"));
                node.add_link(LAN, Box::new(link), link_config("new"));
                node.change_link(LAN, LinkChange::Up(true)).unwrap();
            },
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let (handle, mut worker, mut ends) = router();
            handle.queue_deltas([route(WAN, [2, 0])].into_iter());
            assert_eq!(serve_one(&mut worker, &mut ends), (1, 0), "{at}");
            let pending = handle.begin(change).unwrap();
            let (forwarded, _) = serve_one(&mut worker, &mut ends);
            assert_eq!((forwarded, pending.try_recv()), (0, Ok(())), "{at}");
        }
    }

    /// A pause drops a burst that was received before, so draining comes first.
    #[test]
    fn burst_that_was_received_before_draining_is_forwarded() {
        let (handle, mut worker, mut ends) = router();
        handle.queue_deltas([route(WAN, [2, 0])].into_iter());
        let pending = handle.begin(|node| node.is_draining = true).unwrap();
        assert_eq!(serve_one(&mut worker, &mut ends), (1, 0));
        assert_eq!(pending.try_recv(), Ok(()));
        // The next one stays in the device.
        assert_eq!(serve_one(&mut worker, &mut ends), (0, 0));
        worker.node.is_draining = false;
        assert_eq!(serve_one(&mut worker, &mut ends).0, 2);
    }

    #[test]
    fn packet_of_a_link_set_down_is_counted() {
        let (handle, mut worker, mut ends) = router();
        let pending = handle.begin(|node| node.change_link(LAN, LinkChange::Up(false))).unwrap();
        assert_eq!(serve_one(&mut worker, &mut ends), (0, 1));
        assert_eq!(pending.try_recv(), Ok(Ok(())));
    }

    #[test]
    fn worker_that_is_stopped_decides_on_no_further_packet() {
        let (handle, mut worker, mut ends) = router();
        handle.queue_deltas([route(WAN, [2, 0])].into_iter());
        handle.stop().unwrap();
        assert_eq!(serve_one(&mut worker, &mut ends), (0, 1));
        assert!(worker.is_over);
    }

    /// Sequences of a client's number and the number of routes, as the shards' threads see them.
    type Seen = Arc<Mutex<HashMap<thread::ThreadId, Vec<(u8, usize)>>>>;

    #[test]
    fn shards_apply_all_changes_in_one_order() {
        const CLIENTS: u8 = 4;
        const CHANGES: u8 = 100;
        let (handle, inboxes) = channels::<3>().unwrap();
        let run = |inbox| thread::spawn(move || SharedWorker::new(Worker::new(inbox).unwrap()).run().unwrap());
        let workers = inboxes.map(run);
        let seen = Seen::default();
        thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (handle, seen) = (&handle, &seen);
                scope.spawn(move || {
                    for change in 0..CHANGES {
                        handle.queue_deltas([route(WAN, [client, change])].into_iter());
                        let seen = Arc::clone(seen);
                        let look = move |node: &mut Node| {
                            let routes = node.datapath.fib.routes().count();
                            let mut seen = seen.lock().unwrap();
                            seen.entry(thread::current().id()).or_default().push((client, routes));
                        };
                        handle.change(look, same).unwrap();
                    }
                });
            }
        });
        handle.stop().unwrap();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        let seen = seen.lock().unwrap();
        let first = seen.values().next().unwrap();
        assert_eq!((seen.len(), first.len()), (3, usize::from(CLIENTS) * usize::from(CHANGES)));
        assert!(seen.values().all(|other| other == first));
        assert_eq!(first.last().unwrap().1, first.len());
    }
}

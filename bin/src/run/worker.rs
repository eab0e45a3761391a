//! The worker: waits for links, runs each burst through the path, and sends what comes out. Crypto threads and GRO may have some
//! of one while the next is received; all of it is through before anything else is looked at.
//!
//! It is the only thread that touches packets, so nothing on their way is locked. Commands are taken between bursts. A
//! worker that has nothing to do sleeps in epoll, without a time at which it looks for something.

mod links;
mod taps;
mod trace;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base::{Instant, LinkId};
use control::netlink::Groups;
use control::netlink::rtnl::{Delta, Vrf};
use control::sysctl::Settings;
use datapath::Datapath;
use link::HostLinks;
use packet::{Memory, Packet};

use super::command::{Command, Inbox};
use super::ike::IkeSocket;
use super::monitor::Monitors;
use super::netlink;
use super::news::{Bell, Listeners};
use super::node::Plan;
use super::poller::{Poller, Ready};
use super::sadb::Sadb;
use super::snapshot::{links, show};
use super::{reassembly, xfrm};
use taps::Capture;
use trace::RunningTrace;

pub(crate) use links::Slot;

/// Bursts that are taken from each ready link before epoll is asked about the others again.
const TURNS: usize = 4;

/// How long a device is left alone that takes no more and does not tell when it does.
const RETRY_DEVICE: Duration = Duration::from_millis(1);

/// The clock that every core's `now` comes from.
#[derive(Debug)]
struct Clock {
    start: std::time::Instant,
    /// When that was, since the Unix epoch.
    epoch: Duration,
}

impl Clock {
    fn start() -> Self {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { start: std::time::Instant::now(), epoch }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.start.elapsed()
    }
}

/// The worker's state.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) path: Datapath,
    /// The links, by their numbers.
    pub(crate) slots: Vec<Option<Slot>>,
    /// The VRFs, by the numbers of their devices, as they are shown. What packets need of them is in the FIB.
    pub(crate) vrfs: BTreeMap<LinkId, Vrf>,
    pub(crate) mem: Memory,
    /// What all this was made from.
    pub(crate) config: Arc<control::Config>,
    clock: Clock,
    poller: Poller,
    /// What happens to the host's interfaces, if the system tells, and whether something has.
    host: Option<HostLinks>,
    host_changed: bool,
    inbox: Inbox,
    captures: Vec<Capture>,
    trace: Option<RunningTrace>,
    /// Traces that were started.
    traces: u64,
    /// The key manager's socket, if a link has IKE, and whether it has sent something.
    ike: Option<IkeSocket>,
    ike_ready: bool,
    monitors: Monitors,
    /// What was said of SAs and policies.
    pub(crate) sadb: Sadb,
    /// Who listens to what happens to links and neighbours.
    pub(crate) listeners: Listeners,
    /// Links to be read. Kept for its storage, as is the next one.
    ready: Vec<LinkId>,
    burst: Vec<Packet>,
    deltas: Vec<Delta>,
    /// Whether no packet is to move: it obeys, and does nothing else.
    held: bool,
}

impl Worker {
    /// A worker without links.
    pub(crate) fn new(inbox: Inbox) -> io::Result<Self> {
        let poller = Poller::new(inbox.wake_fd())?;
        let host = HostLinks::listen().and_then(|host| poller.add_host(&host).map(|()| host));
        if let Err(err) = &host {
            tracing::warn!("rtnetlink: {err}; what the host makes of its interfaces is seen when they fail");
        }
        let clock = Clock::start();
        let mut path = Datapath::new();
        path.epoch = clock.epoch;
        Ok(Self {
            path,
            slots: Vec::new(),
            vrfs: BTreeMap::new(),
            mem: Memory::heap(),
            config: Arc::default(),
            clock,
            poller,
            host: host.ok(),
            host_changed: false,
            sadb: Sadb::default(),
            inbox,
            captures: Vec::new(),
            trace: None,
            traces: 0,
            ike: None,
            ike_ready: false,
            monitors: Monitors::default(),
            listeners: Listeners::default(),
            ready: Vec::new(),
            burst: Vec::new(),
            deltas: Vec::new(),
            held: false,
        })
    }

    /// Works until it is told to stop.
    pub(crate) fn run(mut self) -> io::Result<()> {
        loop {
            while self.held {
                self.inbox.wait()?;
                if !self.obey() {
                    return Ok(());
                }
            }
            let limit = if self.inbox.may_sleep() { self.limit() } else { Some(Duration::ZERO) };
            self.poller.wait(limit)?;
            let rung = self.look_what_is_ready();
            self.inbox.wake_up(rung, !self.ready.is_empty());
            let now = self.clock.now();
            self.learn(now);
            self.let_time_pass(now);
            if !self.obey() {
                return Ok(());
            }
            self.look_at_links(now);
            self.serve_ready();
            let now = self.clock.now();
            self.retry_links(now);
            self.serve_ike(now);
            self.send_all(now);
            self.settle(now);
            self.deliver_captures();
            self.deliver_traces();
            self.tell_events();
        }
    }

    /// Has no packet move from now on, or has them move again. What comes meanwhile waits in the devices.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// The time, as every core is told it.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// How long nothing needs doing, as far as is known.
    fn limit(&self) -> Option<Duration> {
        let slots = self.slots.iter().flatten();
        let again = |slot: &Slot| slot.down.as_ref().filter(|_| slot.admin_up).map(|down| down.retry_at);
        let retries = slots.flat_map(|slot| again(slot).into_iter().chain(slot.retry_at));
        let at = retries.chain(self.path.poll_timeout()).min()?;
        Some(at.since(self.clock.now()))
    }

    /// Notes which links have packets and which take packets again. Tells whether somebody has rung.
    fn look_what_is_ready(&mut self) -> bool {
        let Self { poller, slots, ready, ike_ready, host_changed, .. } = self;
        let mut rung = false;
        for found in poller.ready() {
            match found {
                Ready::Inbox => rung = true,
                Ready::Ike => *ike_ready = true,
                Ready::Host => *host_changed = true,
                Ready::Link { id, input, room } => {
                    let Some(Some(slot)) = slots.get_mut(id.0 as usize) else { continue };
                    if room && slot.full {
                        slot.full = false;
                        poller.want_room(id, &*slot.link, false);
                    }
                    // One with several queues is found several times.
                    if input && !ready.contains(&id) {
                        ready.push(id);
                    }
                }
            }
        }
        rung
    }

    /// Does what time asks for. What ends by that is noted before a command puts something else in its place.
    pub(crate) fn let_time_pass(&mut self, now: Instant) {
        self.path.handle_timeout(now, &self.mem);
        self.note_events();
    }

    /// Notes what has happened to SAs and policies, for whoever listens.
    fn note_events(&mut self) {
        if !self.monitors.is_empty() || self.sadb.is_heard() {
            let events: Vec<ipsec::Event> = self.path.ipsec.take_events().collect();
            events.iter().for_each(|event| Sadb::note(self, event));
            let was_monitored = !self.monitors.is_empty();
            self.monitors.tell(&events);
            if was_monitored && self.monitors.is_empty() {
                self.note_listeners();
            }
        }
    }

    /// Has what happens kept as far as somebody hears it, and SAs asked for only if somebody hears that.
    fn note_listeners(&mut self) {
        let monitored = !self.monitors.is_empty();
        self.path.ipsec.set_listener(monitored || self.sadb.is_heard());
        self.path.ipsec.set_asked(monitored || self.sadb.is_asked());
        self.path.ipsec.set_numbers_heard(self.sadb.are_numbers_heard());
    }

    /// Tells whoever listens what has happened.
    pub(crate) fn tell_events(&mut self) {
        let lost = self.path.ipsec.lost_events();
        self.note_events();
        self.sadb.ring(lost);
        self.sadb.forget_ended(&mut self.path.ipsec);
        Listeners::tell(self);
    }

    /// Has netlink's clients told what those groups listen to, of `NETLINK_XFRM` and of rtnetlink, by ringing `bell`.
    pub(crate) fn set_bell(&mut self, [xfrm, route]: [Groups; 2], bell: Arc<Bell>) {
        Sadb::set_bell(self, xfrm, Arc::clone(&bell));
        self.note_listeners();
        Listeners::listen(self, route, bell);
    }

    /// Takes the commands that have come. False: stop.
    fn obey(&mut self) -> bool {
        if !self.inbox.has_commands() {
            return true;
        }
        while let Some(command) = self.inbox.next() {
            self.learn(self.clock.now());
            // Whoever asked may have lost patience; then nobody wants the answer.
            match command {
                Command::Stop => return false,
                Command::Show(what, reply) => drop(reply.send(show(self, what))),
                Command::Links(reply) => drop(reply.send(links(self))),
                Command::Link(id, change, reply) => drop(reply.send(self.change_link(id, change))),
                Command::Neighbours(reply) => drop(reply.send(netlink::neighbours(&self.path.neighbours))),
                Command::SetNeighbour(wanted, reply) => {
                    if let Some((link, addr, known)) = netlink::known(&wanted) {
                        self.path.set_neighbour(self.clock.now(), &self.mem, link, addr, known, wanted.protocol);
                    }
                    let _ = reply.send(());
                }
                Command::Apply(plan, reply) => drop(reply.send(self.apply(*plan))),
                Command::Monitor { sink, reply } => {
                    self.monitors.add(sink);
                    self.note_listeners();
                    let _ = reply.send(());
                }
                Command::Call(what) => what(self),
                Command::Capture { link, after_gro, sink, reply } => {
                    drop(reply.send(self.start_capture(&link, after_gro, sink)));
                }
            }
        }
        true
    }

    /// Takes the changes that have been told, which are not for what was taken in before.
    fn learn(&mut self, now: Instant) {
        if !self.inbox.take_deltas(&mut self.deltas) {
            return;
        }
        self.path.finish(now, &self.mem);
        for delta in self.deltas.drain(..) {
            netlink::apply(&mut self.path.fib, &delta);
            match delta {
                Delta::Vrf(device, Some(vrf)) => {
                    self.path.set_vrf_port(device, Some((vrf.name.clone(), vrf.mtu as usize)));
                    self.vrfs.insert(device, vrf);
                }
                Delta::Vrf(device, None) => {
                    self.path.set_vrf_port(device, None);
                    self.captures.retain(|capture| capture.link != device);
                    self.vrfs.remove(&device);
                }
                _ => {}
            }
        }
    }

    /// Becomes what `plan` says. The MTUs come first: they alone may be refused.
    pub(crate) fn apply(&mut self, plan: Plan) -> Result<(), String> {
        self.set_mtus(&plan.mtus)?;
        if let Some(socket) = plan.ike_socket {
            self.poller.add_ike(socket.fd()).map_err(|err| format!("epoll: {err}"))?;
            self.ike = Some(socket);
        }
        self.path.set_ike(plan.ike);
        let now = self.clock.now();
        plan.removed.into_iter().for_each(|id| self.close(now, id));
        let opened: Vec<LinkId> = plan.opened.iter().map(|(id, ..)| *id).collect();
        for (id, link, config) in plan.opened {
            self.open(id, link, config);
        }
        plan.ports.into_iter().for_each(|(id, wanted)| self.set_port(id, wanted));
        // What a file says is up.
        for at in 0..self.slots.len() {
            self.set_admin_up(now, LinkId(at as u32), true);
        }
        if let Some(fib) = plan.fib {
            self.path.fib.replace(fib);
            for device in self.vrfs.keys().filter(|device| !plan.vrfs.contains_key(device)) {
                self.path.set_vrf_port(*device, None);
                self.captures.retain(|capture| capture.link != *device);
            }
            self.vrfs = plan.vrfs;
            for (&device, vrf) in &self.vrfs {
                self.path.set_vrf_port(device, Some((vrf.name.clone(), vrf.mtu as usize)));
            }
        }
        plan.ipsec.apply(&mut self.path.ipsec, &mut self.sadb.of_file);
        if let Some(crypto) = plan.crypto {
            self.path.ipsec.set_crypto(crypto);
        }
        if let Some(settings) = plan.settings {
            self.set(settings);
        }
        // The answer says which links are down.
        opened.into_iter().for_each(|id| self.look_at(now, id));
        self.config = plan.config;
        self.sadb.tidy(&self.path.ipsec);
        Sadb::file_changed(self);
        Ok(())
    }

    /// Has what can be set while it runs be so.
    pub(crate) fn set(&mut self, settings: Settings) {
        self.path.set_reassembly(reassembly::config(settings.reassembly));
        xfrm::set_options(&mut self.path.ipsec, settings.xfrm);
    }

    /// Carries IKE between the key manager and the links.
    fn serve_ike(&mut self, now: Instant) {
        let Self { ike: Some(socket), path, mem, ike_ready, .. } = self else { return };
        if std::mem::take(ike_ready) {
            let mut messages = Vec::new();
            socket.receive(|at| path.has_ike(at), |message| messages.push(message));
            for message in &messages {
                if let Err(reason) = path.send_ike(now, mem, message) {
                    tracing::debug!(peer = %message.peer, reason = reason.name(), "IKE is not sent");
                }
            }
        }
        path.take_ike().for_each(|message| socket.deliver(&message));
    }

    /// Takes a burst from each ready link in turn, until they are empty or others may be ready too. What crypto threads and GRO
    /// have of one goes on with the next, or in the end.
    fn serve_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        for _ in 0..TURNS {
            if ready.is_empty() {
                break;
            }
            let now = self.clock.now();
            ready.retain(|&id| self.serve(now, id));
        }
        let now = self.clock.now();
        self.path.finish(now, &self.mem);
        ready.clear();
        self.ready = ready;
    }

    /// Has each link take back what came home from packets, and notes which are to be asked again. Every turn tries again
    /// to send what a link that is not full did not take; what is noted is when there is to be one.
    fn settle(&mut self, now: Instant) {
        for slot in self.slots.iter_mut().flatten() {
            slot.retry_at = slot.retry_at.filter(|&at| at > now && slot.admin_up && slot.down.is_none());
            if slot.down.is_none() && slot.link.settle(&self.mem) && slot.admin_up {
                slot.retry_at.get_or_insert(now + RETRY_DEVICE);
            }
        }
    }
}

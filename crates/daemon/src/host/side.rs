//! The host side of a node: created at start, reconciled with the node's model, and removed at an orderly end.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::{PortId, ShardId};
use client::ROOTS_RUN_DIR;
use config::model::HostConfig;
use ctl::state::{HostDeviceState, HostState};
use netlink::message::Messages;
use netlink::rtnl::{Delta, Model};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::content::Step;
use super::desired::{self, Made, View};
use super::mirror::{self, Mirror};
use super::order::{Answer, Descriptors, Files, Order, peer_of};
use super::socket_diag::SocketDiag;
use crate::command::{Handle, PATIENCE, WorkerGone, same};
use crate::files;
use crate::host_ports::host_port_config;
use crate::node::Node;
use crate::opener::child::Child;
use crate::opener::process::OpenerWork;
use crate::service;
use crate::threads::Threads;

/// Pause between a change in the namespace and the check of its content: this bounds the rate of checks while a program
/// makes changes in a loop.
const SETTLE: Duration = Duration::from_millis(10);

/// Pause after devices were created again.
const REMAKE: Duration = Duration::from_millis(200);

/// Interval between attempts to create a device that could not be created, as for the device of a link.
const RETRY: Duration = Duration::from_secs(1);

/// Interval between log lines about changes that were undone.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Extension of the file, beside the control socket, with which the next gateway finds the namespace.
const RECORD: &str = "namespace";

/// Name of the namespace in the service manager's store.
const STORED: &str = "host-side";

/// Directory of the named namespaces of `ip netns`.
const NAMED: &str = "/run/netns";

/// A node's host side, shared by the threads that change the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostSide(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    /// The configuration has no host side.
    #[default]
    Off,
    /// The host side could not be made.
    Failed(String),
    On(Box<On>),
}

/// A host side whose namespace exists.
#[derive(Debug)]
struct On {
    config: HostConfig,
    /// Process in the namespace.
    opener: Child,
    worker: Handle,
    network: OwnedFd,
    /// Whether the service manager has been asked to keep the namespace.
    is_stored: bool,
    /// Whether the namespace is that of an earlier gateway.
    is_found: bool,
    user: Option<OwnedFd>,
    control: OwnedFd,
    /// File that the namespace is bound to.
    place: Option<PathBuf>,
    /// File by which the next gateway finds the namespace without that.
    record: PathBuf,
    /// Whether TUN and TAP devices cannot be created, so that veth pairs replace them.
    in_pairs: bool,
    mirror: Mirror,
    /// Port of the opener's socket, which notifications of the node's own changes have.
    port: u32,
    made: Vec<Made>,
    /// Links whose devices have promiscuous packet sockets.
    watched: BTreeSet<PortId>,
    /// Links that have no device, each with the reason.
    missing: Vec<(Made, String)>,
    /// Devices that were missing before the present attempt to create them, each with the reason.
    retried: Vec<(Made, String)>,
    /// Event file that is readable once a device is missing.
    one_is_missing: Arc<OwnedFd>,
    /// The model's count of changes at the last reconciliation.
    generation: Option<u32>,
    is_limited: bool,
    put_back: u64,
    logged_at: Option<Instant>,
}

/// Guard that removes the host side of a gateway whose start fails.
#[derive(Debug)]
pub(crate) struct Starting(Option<HostSide>);

impl Starting {
    /// Disarms the guard: the gateway runs, and removes the host side at its orderly end.
    pub(crate) fn succeeded(mut self) {
        self.0 = None;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.iter().for_each(HostSide::end);
    }
}

/// Descriptors by which a program enters the host side.
#[derive(Debug)]
pub(crate) struct Entrance {
    /// User namespace that owns the network namespace.
    pub(crate) user: Option<OwnedFd>,
    pub(crate) network: OwnedFd,
}

/// The file that the namespace of a gateway is bound to; `socket` is the gateway's control socket.
pub fn place(socket: &Path) -> Option<PathBuf> {
    let (dir, name) = (socket.parent()?, socket.file_stem()?.to_str()?);
    Some(match dir == Path::new(ROOTS_RUN_DIR) {
        true => Path::new(NAMED).join(format!("fatpath-{name}")),
        false => std::path::absolute(socket.with_extension("netns")).ok()?,
    })
}

fn files(socket: &Path) -> Files {
    Files { place: place(socket), record: socket.with_extension(RECORD), is_confined: false }
}

/// Starts the opener of a host side, with the rights that this process has now. `socket` is the gateway's control socket.
/// `is_confined`: the opener restricts itself.
///
/// # Errors
/// Text of the failure.
pub(crate) fn start_opener(socket: &Path, is_confined: bool) -> Result<(Child, Vec<String>), String> {
    let opener = Child::start(OpenerWork::HostSide)?;
    let order = Order::Begin(Files { is_confined, ..files(socket) });
    let mut missing = Vec::new();
    if !opener.is_inherited()
        && let Answer::Begun { missing: of_opener } = opener.ask(&order, &[])?.0
    {
        missing = of_opener;
    }
    Ok((opener, missing))
}

impl HostSide {
    /// Creates the host side of a gateway, if `config` enables it; `socket` is the gateway's control socket. Without
    /// a host side, [`show`](Self::show) has the reason. `opener` is its process, or the reason for which it was not started.
    ///
    /// `follow` calls [`follow`](Self::follow) with the node's model, for devices that are missing.
    pub(crate) fn start(
        &self,
        config: HostConfig,
        opener: Result<Child, String>,
        socket: &Path,
        worker: &Handle,
        threads: &Threads,
        follow: impl Fn() + Send + 'static,
    ) {
        let on = opener.and_then(|opener| On::make(config, opener, files(socket), worker));
        match on {
            Ok((on, events)) => {
                let (port, one_is_missing) = (on.port, Arc::clone(&on.one_is_missing));
                if let Err(err) = link::hear_other_ports(events.as_fd(), port) {
                    tracing::debug!("host side: SO_ATTACH_FILTER: {err}; own changes wake a thread");
                }
                *self.lock() = State::On(Box::new(on));
                let own = self.clone();
                if let Err(err) = threads.spawn("host-side", move || own.watch(&events, port, &one_is_missing, follow))
                {
                    tracing::warn!("host side: start a thread: {err}; changes by other programs are not undone");
                }
            }
            Err(why) => {
                tracing::warn!("no host side: {why}");
                *self.lock() = State::Failed(why);
            }
        }
    }

    /// Takes the namespace of the gateway before, for a later [`start`](Self::start).
    pub(crate) fn take(network: OwnedFd) {
        service::put(STORED, network);
    }

    /// Attaches to the devices of a namespace that an earlier gateway has left, whose content is to be [reconciled](Self::follow): this takes
    /// its time with many routes. False: there is no such namespace.
    pub(crate) fn attach(&self, model: &Model) -> bool {
        match &mut *self.lock() {
            State::On(on) if on.is_found => {
                on.follow_links(model).unwrap_or_else(|err| tracing::error!("host side: netlink: {err}"));
                true
            }
            _ => false,
        }
    }

    /// Reconciles the namespace with the model; `changed` lists the changes since the last call.
    pub(crate) fn follow(&self, model: &Model, changed: &[Delta]) {
        if let State::On(on) = &mut *self.lock() {
            on.follow(model, changed).unwrap_or_else(|err| tracing::error!("host side: netlink: {err}"));
        }
    }

    /// Guard that removes the host side if the gateway's start fails.
    pub(crate) fn starting(&self) -> Starting {
        Starting(Some(self.clone()))
    }

    /// Whether there is a host side.
    pub(crate) fn is_on(&self) -> bool {
        matches!(*self.lock(), State::On(_))
    }

    /// Descriptors by which a program enters the namespace; `None` if the configuration has no host side.
    ///
    /// # Errors
    /// Reason for which the host side does not exist.
    pub(crate) fn entrance(&self) -> Result<Option<Entrance>, String> {
        match &*self.lock() {
            State::Off => Ok(None),
            State::Failed(why) => Err(why.clone()),
            State::On(on) => {
                let failed = |err: io::Error| format!("descriptors: {err}");
                let user = on.user.as_ref().map(OwnedFd::try_clone).transpose().map_err(failed)?;
                Ok(Some(Entrance { user, network: on.network.try_clone().map_err(failed)? }))
            }
        }
    }

    /// State for `show host`.
    pub(crate) fn show(&self) -> HostState {
        match &*self.lock() {
            State::Off => HostState { side: "off".to_owned(), ..HostState::default() },
            State::Failed(why) => {
                HostState { side: "failed".to_owned(), why: Some(why.clone()), ..HostState::default() }
            }
            State::On(on) => on.show(),
        }
    }

    /// Removes the host side, unless a program runs in it: then it is kept for the next gateway of this name.
    pub(crate) fn end(&self) {
        if let State::On(on) = std::mem::take(&mut *self.lock()) {
            on.end();
        }
    }

    /// Leaves the namespace and its devices to the next gateway, which has the namespace.
    pub(crate) fn leave(&self) {
        // The process of the host side ends.
        drop(std::mem::take(&mut *self.lock()));
    }

    /// Undoes other programs' changes in the namespace, and tries to create missing devices again. Notifications with
    /// that port are of the node's own changes, where the kernel fills in the port.
    fn watch(
        &self,
        events: &OwnedFd,
        port: u32,
        one_is_missing: &OwnedFd,
        follow: impl Fn(),
    ) -> Result<(), Infallible> {
        let mut buffer = vec![0; 64 << 10];
        let mut retry_at = None;
        loop {
            let has_changed = match wait(events, one_is_missing, &mut retry_at) {
                Ok(true) => has_foreign_event(events, &mut buffer, port),
                unchanged => unchanged,
            };
            if let Err(err) = &has_changed {
                tracing::warn!("host side: netlink: {err}; changes by other programs are not undone");
                return Ok(());
            }
            if retry_at.is_some_and(|at| Instant::now() >= at) {
                retry_at = None;
                match &mut *self.lock() {
                    State::On(on) => on.retry_missing(),
                    State::Off | State::Failed(_) => return Ok(()),
                }
                // With the lock of the model, which precedes this one.
                follow();
            }
            if matches!(has_changed, Ok(false)) {
                continue;
            }
            std::thread::sleep(SETTLE);
            // The same check covers other messages that have arrived in the meantime.
            while matches!(recv(events, buffer.as_mut_slice(), RecvFlags::DONTWAIT), Ok(_) | Err(Errno::NOBUFS)) {}
            let checked = match &mut *self.lock() {
                State::On(on) => on.check(),
                State::Off | State::Failed(_) => return Ok(()),
            };
            match checked {
                Ok(0) => {}
                Ok(_) => std::thread::sleep(REMAKE),
                Err(err) => tracing::error!("host side: netlink: {err}"),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl On {
    /// Creates the namespace, or enters the existing one. Returns also the socket that receives notifications of
    /// changes in it.
    fn make(
        config: HostConfig,
        opener: Child,
        Files { place, record, .. }: Files,
        worker: &Handle,
    ) -> Result<(Self, OwnedFd), String> {
        let stored = service::stored(STORED);
        let stored: Vec<_> = stored.iter().map(AsFd::as_fd).collect();
        let (answer, descriptors) = opener.ask(&Order::Namespace, &stored)?;
        let Answer::Namespace { found, unbound, tun_closed, port } = answer else {
            return Err("unexpected answer of the opener of the host side".to_owned());
        };
        let Descriptors { network, dumps, events, control, sock_diag, user } =
            Descriptors::of(descriptors).ok_or("descriptors are missing")?;
        let mirror = Mirror::new(dumps).map_err(|err| format!("netlink: {err}"))?;
        let place = place.filter(|_| unbound.is_none());
        match (&place, &unbound) {
            (Some(place), _) if found => tracing::info!("host side: {}, existing", place.display()),
            (Some(place), _) => tracing::info!("host side: {}", place.display()),
            (None, _) if found => tracing::info!("host side: existing, without a file"),
            (None, why) => {
                let why = why.as_deref().unwrap_or("it has no place");
                tracing::info!("host side: it ends with the gateway and the programs inside ({why})");
            }
        }
        if let Some(why) = &tun_closed {
            tracing::info!("host side: veth pairs instead of TUN and TAP devices; a restart creates new ones ({why})");
        }
        match SocketDiag::new(sock_diag) {
            Ok(diag) => drop(worker.call(move |node| node.set_socket_diag(Some(diag)))),
            Err(err) => tracing::info!("host side: sock_diag: {err}; sockets bound to a VRF do not answer new peers"),
        }
        let one_is_missing = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let one_is_missing = one_is_missing.map_err(|err| format!("eventfd: {err}"))?;
        let is_stored = user.is_none() && service::store(STORED, network.as_fd());
        let on = Self {
            config,
            opener,
            worker: worker.clone(),
            is_stored,
            is_found: found,
            network,
            user,
            control,
            place,
            record,
            in_pairs: tun_closed.is_some(),
            mirror,
            port,
            made: Vec::new(),
            watched: BTreeSet::new(),
            missing: Vec::new(),
            retried: Vec::new(),
            one_is_missing: Arc::new(one_is_missing),
            generation: None,
            is_limited: false,
            put_back: 0,
            logged_at: None,
        };
        Ok((on, events))
    }

    fn follow(&mut self, model: &Model, changed: &[Delta]) -> io::Result<()> {
        let is_same = self.generation == Some(model.generation()) && self.retried.is_empty();
        let mut routes = changed.iter().map(|delta| match delta {
            Delta::AddRoute { route, .. } | Delta::RemoveRoute { route, .. } => Some(route),
            Delta::ReplaceRoute(replacement) => Some(&replacement.new),
            _ => None,
        });
        if is_same && routes.clone().all(|route| route.is_some()) {
            if !self.is_limited {
                return self.follow_routes(model, changed);
            }
            // Default routes replace the node's routes until links, addresses or VRFs change.
            if !routes.any(|route| route.is_some_and(|route| route.prefix.len() == 0)) {
                return Ok(());
            }
        }
        if !is_same {
            self.follow_links(model)?;
        }
        (self.mirror.desired, self.is_limited) = desired::content(model, self.config, &self.made);
        self.mirror.refused = None;
        self.mirror.reconcile(&self.opener)?;
        self.generation = Some(model.generation());
        Ok(())
    }

    /// Applies changes of routes only. Several of the node's routes may have the same mirrored route, so a removed
    /// route is removed here only if no remaining route has the same mirror.
    fn follow_routes(&mut self, model: &Model, changed: &[Delta]) -> io::Result<()> {
        let view = View { model, config: self.config, made: &self.made };
        let mut touched = BTreeSet::new();
        for delta in changed {
            let each = match delta {
                Delta::AddRoute { table, route, .. } | Delta::RemoveRoute { table, route, .. } => {
                    [Some((table, route)), None]
                }
                Delta::ReplaceRoute(it) => [Some((&it.table, &it.old)), Some((&it.table, &it.new))],
                _ => [None, None],
            };
            touched.extend(each.into_iter().flatten().flat_map(|(table, route)| view.routes(*table, route)));
        }
        let mut steps = Vec::new();
        for route in touched {
            let stays = model.routes_to(base::TableId(route.table), route.prefix);
            let is_desired =
                stays.flat_map(|stays| view.routes(base::TableId(route.table), stays)).any(|it| it == route);
            match is_desired {
                true if self.mirror.desired.routes.insert(route) => steps.push(Step::AddRoute(route)),
                false if self.mirror.desired.routes.remove(&route) => steps.push(Step::RemoveRoute(route)),
                _ => {}
            }
        }
        steps.sort_by_key(|step| matches!(step, Step::AddRoute(_)));
        if self.mirror.desired.routes.len() > desired::MAX_ROUTES {
            (self.mirror.desired, self.is_limited) = desired::content(model, self.config, &self.made);
            return self.mirror.reconcile(&self.opener).map(drop);
        }
        self.mirror.carry_out(&self.opener, &steps)
    }

    /// Creates the devices of added links, and removes the devices of links that were removed or have another device
    /// now.
    fn follow_links(&mut self, model: &Model) -> io::Result<()> {
        let mut desired = desired::devices(model, self.config, self.in_pairs);
        let above = desired.split_off(desired.len().min(self.config.max_links.into()));
        let is_same = |a: &Made, b: &Made| {
            a.id == b.id
                && (&a.device.name, a.device.index) == (&b.device.name, b.device.index)
                && a.device.mac.is_some() == b.device.mac.is_some()
        };
        // A device whose creation failed is not tried again at each change of another.
        let limited = self.limited();
        self.missing.retain(|(made, why)| *why != limited && desired.contains(made));
        desired.retain(|made| !self.missing.iter().any(|(missing, _)| missing == made));
        self.missing.extend(above.into_iter().map(|made| (made, limited.clone())));
        for before in std::mem::take(&mut self.made) {
            let now = desired.iter().find(|made| is_same(made, &before));
            if now == Some(&before) {
                self.made.push(before);
                continue;
            }
            self.take_from_worker(before.id);
            // A device with another address or MTU is attached to again.
            if now.is_none() || self.in_pairs {
                // A removal by this program is handled like one by another program.
                let _ = mirror::remove(&self.opener, before.device.index);
            }
        }
        desired.retain(|made| !self.made.contains(made));
        if self.generation.is_none() {
            self.remove_others(&desired)?;
        }
        self.make_devices(desired);
        Ok(())
    }

    /// Reason for which a link above the limit has no device.
    fn limited(&self) -> String {
        format!("max-links is {}", self.config.max_links)
    }

    /// Lets the next reconciliation create the missing devices, but for those above the limit.
    fn retry_missing(&mut self) {
        let limited = self.limited();
        let missing = std::mem::take(&mut self.missing);
        (self.missing, self.retried) = missing.into_iter().partition(|(_, why)| *why == limited);
    }

    /// Removes the devices of an earlier gateway that this gateway neither has nor is to make.
    fn remove_others(&mut self, desired: &[Made]) -> io::Result<()> {
        let is_desired = |index: u32, name: &str, is_tap: bool| {
            let mut devices = desired.iter().chain(&self.made).map(|made| &made.device);
            devices.any(|device| (device.index, &*device.name, device.mac.is_some()) == (index, name, is_tap))
        };
        for listed in self.mirror.devices()? {
            if listed.is_tun
                && (self.in_pairs || !is_desired(listed.index, &listed.device.name, listed.device.mac.is_some()))
            {
                tracing::info!("host side: {}: removed, as no link has this device", listed.device.name);
                if let Err(err) = mirror::remove(&self.opener, listed.index) {
                    tracing::warn!("host side: {}: {err}", listed.device.name);
                }
            }
        }
        Ok(())
    }

    /// Creates devices, and passes them to the worker. A repeated failure is not logged again.
    fn make_devices(&mut self, new: Vec<Made>) {
        let retried = std::mem::take(&mut self.retried);
        if new.is_empty() {
            return;
        }
        for made in new {
            match self.make_device(&made) {
                Ok(device) => {
                    let id = made.id;
                    self.watched.remove(&id);
                    if retried.iter().any(|(missing, _)| *missing == made) {
                        tracing::info!("host side: {}: created", made.device.name);
                    }
                    // A worker that has ended needs no devices.
                    let _ = set_device(&self.worker, id, Some((made.device.index, device)));
                    self.made.push(made);
                }
                Err(why) => {
                    let missing = (made, why);
                    if !retried.contains(&missing) {
                        tracing::warn!("host side: {}", missing.1);
                    }
                    self.missing.push(missing);
                    // The counter is read before it is full.
                    let _ = rustix::io::write(&self.one_is_missing, &1_u64.to_ne_bytes());
                }
            }
        }
    }

    fn make_device(&mut self, made: &Made) -> Result<Box<dyn link::Link>, String> {
        let device = &made.device;
        if let Some(order) = Order::pair(device).filter(|_| self.in_pairs) {
            let (_, sockets) = self.opener.ask::<Answer>(&order, &[])?;
            let [packet, control] = <[OwnedFd; 2]>::try_from(sockets).map_err(|_| "its sockets are missing")?;
            return device.open_pair(packet, control, &peer_of(device), made.ip_only).map_err(|err| err.to_string());
        }
        let (_, queues) = self.opener.ask::<Answer>(&Order::device(device), &[])?;
        let queue = queues.into_iter().next().ok_or("its queue is missing")?;
        let control = self.control.try_clone().map_err(|err| format!("descriptors: {err}"))?;
        device.open(queue, control).map_err(|err| err.to_string())
    }

    fn take_from_worker(&self, id: PortId) {
        let _ = set_device(&self.worker, id, None);
    }

    /// Sets the devices with promiscuous packet sockets in the worker, which then copies all packets of the link to
    /// them.
    fn watch_promiscuous(&mut self, is_promiscuous: impl Fn(&Made) -> bool) {
        let now: BTreeSet<PortId> = self.made.iter().filter(|made| is_promiscuous(made)).map(|made| made.id).collect();
        for &id in now.symmetric_difference(&self.watched) {
            let is_watched = now.contains(&id);
            let done = self.worker.change(move |node| node.set_watched(id, is_watched), same);
            if is_watched
                && matches!(done, Ok(false))
                && let Some(made) = self.made.iter().find(|made| made.id == id)
            {
                let name = &made.device.name;
                tracing::info!(
                    "host side: {name} has no link-layer addresses: packet sockets get packets of local sockets only; `fatpath capture {name}` has all packets"
                );
            }
        }
        self.watched = now;
    }

    /// Undoes changes of other programs; returns the number of devices that were created again.
    fn check(&mut self) -> io::Result<usize> {
        if self.generation.is_none() {
            // The content is not known yet, and is reconciled then.
            return Ok(0);
        }
        let there: BTreeMap<u32, bool> =
            self.mirror.devices()?.into_iter().map(|listed| (listed.index, listed.is_promiscuous)).collect();
        let (made, lost): (Vec<Made>, Vec<Made>) =
            std::mem::take(&mut self.made).into_iter().partition(|made| there.contains_key(&made.device.index));
        self.made = made;
        self.watch_promiscuous(|made| there.get(&made.device.index) == Some(&true));
        let mut undone: Vec<String> = lost.iter().map(|made| format!("device {}", made.device.name)).collect();
        for made in &lost {
            self.take_from_worker(made.id);
        }
        let remade = lost.len();
        self.make_devices(lost);
        undone.extend(self.mirror.reconcile(&self.opener)?.iter().map(ToString::to_string));
        if undone.is_empty() {
            return Ok(0);
        }
        self.put_back += undone.len() as u64;
        let now = Instant::now();
        if self.logged_at.is_none_or(|logged_at| now.duration_since(logged_at) >= LOG_EVERY) {
            self.logged_at = Some(now);
            let (first, others) = (&undone[0], undone.len() - 1);
            let more = if others > 0 { format!(" and {others} more") } else { String::new() };
            tracing::warn!("host side: changed by another program, and reverted: {first}{more}");
        }
        Ok(remade)
    }

    fn show(&self) -> HostState {
        let each = self.made.iter().map(|made| (made, None));
        let missing = self.missing.iter().map(|(made, why)| (made, Some(why.clone())));
        let mut all: Vec<_> = each.chain(missing).collect();
        all.sort_by_key(|(made, _)| made.id);
        let device = |(made, why_not): (&Made, Option<String>)| HostDeviceState {
            name: made.device.name.clone(),
            index: made.device.index,
            kind: match made.device.mac {
                _ if self.in_pairs => "veth",
                Some(_) => "tap",
                None => "tun",
            }
            .to_owned(),
            mtu: made.device.mtu() as u32,
            why_not,
        };
        HostState {
            side: "on".to_owned(),
            why: None,
            namespace: self.place.as_ref().map(|place| place.display().to_string()),
            user_namespace: self.user.is_some(),
            devices: all.into_iter().map(device).collect(),
            addresses: self.mirror.desired.addresses.len() as u64,
            routes: self.mirror.desired.routes.len() as u64,
            routes_limited: self.is_limited,
            refused: self.mirror.refused.clone(),
            put_back: self.put_back,
        }
    }

    fn end(mut self) {
        // A namespace in a user namespace of its own cannot be entered again.
        if self.user.is_none() {
            match self.opener.ask(&Order::Look, &[]) {
                Ok((Answer::Entered(false), _)) => {}
                Ok(_) => {
                    tracing::info!("host side: processes are inside; the namespace is kept");
                    return;
                }
                Err(why) => {
                    tracing::warn!("host side: {why}; the namespace is kept");
                    return;
                }
            }
        }
        // The next start gets it from the manager, with the record: processes may be inside that the opener may not inspect, as those
        // of root with a unit's few capabilities. Without any it ends when the manager releases it.
        if !self.is_stored {
            for made in std::mem::take(&mut self.made) {
                self.take_from_worker(made.id);
                if let Err(err) = mirror::remove(&self.opener, made.device.index) {
                    tracing::debug!("host side: {}: {err}", made.device.name);
                }
            }
            // The record may have been removed with its directory.
            let _ = files::remove(&self.record);
        }
        if self.place.is_some()
            && let Err(why) = self.opener.ask::<Answer>(&Order::Unbind, &[])
        {
            tracing::warn!("host side: {why}");
        }
    }
}

/// Waits for a change in the namespace, until the time of the next attempt to create missing devices at the latest.
/// That time is set when a device is missing. Returns whether there is a change.
fn wait(events: &OwnedFd, one_is_missing: &OwnedFd, retry_at: &mut Option<Instant>) -> Result<bool, Errno> {
    let limit = retry_at.map(|at| at.saturating_duration_since(Instant::now()));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut ready = [PollFd::new(events, PollFlags::IN), PollFd::new(one_is_missing, PollFlags::IN)];
    match poll(&mut ready, limit.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(false),
        Err(err) => return Err(err),
    }
    let [has_event, is_missing] = ready.map(|fd| !fd.revents().is_empty());
    if is_missing {
        let mut count = [0; 8];
        rustix::io::read(one_is_missing, &mut count)?;
        retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }
    Ok(has_event)
}

/// Receives one message of the namespace's kernel, and tells whether it has changes that others than the node's own
/// socket, with that port, have made. Also true if messages were lost.
fn has_foreign_event(events: &OwnedFd, buffer: &mut [u8], port: u32) -> Result<bool, Errno> {
    match recv(events, &mut *buffer, RecvFlags::DONTWAIT) {
        Ok((len, _)) => {
            let mut messages = Messages::new(&buffer[..len.min(buffer.len())]);
            Ok(!messages.all(|message| message.header.port == port))
        }
        Err(Errno::NOBUFS) => Ok(true),
        Err(Errno::INTR | Errno::AGAIN) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Sets or removes the host side device of a link: the first worker gets the device, all others its port.
fn set_device(worker: &Handle, id: PortId, device: Option<(u32, Box<dyn link::Link>)>) -> Result<(), WorkerGone> {
    let config = device.as_ref().map(|(_, device)| host_port_config(&**device));
    let mut device = Some(device);
    let parts = worker.all().map(|shard| {
        let own = device.take_if(|_| shard == ShardId::FIRST);
        let config = config.clone();
        move |node: &mut Node| match own {
            Some(device) => node.set_host_device(id, device),
            None => node.set_host_device_elsewhere(id, config),
        }
    });
    let parts: Vec<_> = parts.collect();
    worker.on_all(parts, Some(PATIENCE)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_named_for_ip_netns_in_the_usual_directory() {
        let place = |socket: &str| place(Path::new(socket)).unwrap();
        assert_eq!(place("/run/fatpath/gw.sock"), Path::new("/run/netns/fatpath-gw"));
        assert_eq!(place("/tmp/x/gw.sock"), Path::new("/tmp/x/gw.netns"));
    }
}

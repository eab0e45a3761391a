//! Keeps the [walls](super::wall) behind the routes over the gateway's devices, while any program changes these routes.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use base::PortId;
use netlink::message::{Message, Messages};
use netlink::rtnl::nums::{
    RTM_GETROUTE, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV6_ROUTE, RTNLGRP_LINK,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::owner::{self, owner_of, tun_devices};
use super::wall::{self, Wall, Walls};
use crate::command::Handle;
use crate::events::Event;
use crate::host::rtnl;
use crate::node::Node;
use crate::opener::order::Change;
use crate::opener::request;
use crate::rtnetlink::{self, Rtnetlink};
use crate::threads::Threads;

/// Groups of notifications. The kernel removes routes of a device or an address that goes without one of their own.
const GROUPS: [u32; 5] =
    [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR, RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE];

/// Time in which further changes are waited for.
const SETTLE: Duration = Duration::from_millis(20);

/// Pause before walls that could not be set are tried again.
const AGAIN: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Counter that wakes the thread.
static CALL: OnceLock<OwnedFd> = OnceLock::new();

/// Held while the thread looks. True: it does not look.
static IS_HELD: Mutex<bool> = Mutex::new(false);

/// Holds the thread, after the look at hand: links are about to be closed whose devices and walls stay. Or lets it go on.
pub(crate) fn hold_guard(is_held: bool) {
    *IS_HELD.lock().unwrap_or_else(PoisonError::into_inner) = is_held;
}

/// Makes the thread look again, after the end of a link: its device may have gone before.
pub(crate) fn look_again() {
    if let Some(call) = CALL.get() {
        // A full counter already wakes the thread.
        let _ = rustix::io::write(call, &1_u64.to_ne_bytes());
    }
}

/// Makes the devices stay, at the end of a start. Removes devices of this gateway that no link has any more, sets the walls, and starts the thread that keeps them. A
/// gateway whose devices do not stay has no walls.
///
/// # Errors
/// No thread can be started. A gateway that may not change routes has no walls, and warns.
pub(crate) fn guard(worker: &Handle, threads: &Threads) -> io::Result<()> {
    owner::start();
    let kept = owner::keeps();
    // The gateway ends if the worker does not answer.
    let _ = worker.call(move |node| node.tun_links().into_iter().for_each(|(id, ..)| node.keep_device(id, kept)));
    let Some(instance) = owner::keeper() else { return Ok(()) };
    let open = || {
        let events = rtnetlink::socket(GROUPS.iter().fold(0, |bits, group| bits | 1 << (group - 1)))?;
        let call = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok::<_, io::Error>((events, Rtnetlink::open()?, request::port()?, CALL.get_or_init(|| call)))
    };
    let (events, dumps, port, call) = match open() {
        Ok(sockets) => sockets,
        Err(err) => {
            unguarded(&err);
            return Ok(());
        }
    };
    let mut guard = Guard {
        dumps,
        port,
        worker: worker.clone(),
        mark: wall::mark(instance),
        unmatched: None,
        moved: BTreeSet::new(),
        devices: BTreeSet::new(),
        numbers: None,
        events: threads.events(),
        walls: Walls::new(),
        reported: BTreeSet::new(),
    };
    if let Err(err) = guard.sweep(instance) {
        tracing::warn!("devices of an earlier run that no link has any more: {err}");
    }
    let is_behind = match guard.is_behind() {
        Ok(is_behind) => is_behind,
        Err(err) => {
            unguarded(&err);
            return Ok(());
        }
    };
    threads.spawn("devices", move || {
        if let Err(err) = guard.watch(&events, call, is_behind) {
            unguarded(&err);
        }
        Ok::<(), Infallible>(())
    })
}

/// Warns that routes have no walls.
fn unguarded(err: &io::Error) {
    let remedy = if Errno::from_io_error(err) == Some(Errno::PERM) { "; that takes CAP_NET_ADMIN" } else { "" };
    tracing::warn!("no routes drop packets for this gateway's devices while it is away: {err}{remedy}");
}

#[derive(Debug)]
struct Guard {
    dumps: Rtnetlink,
    /// Port of the socket that sets the walls.
    port: u32,
    worker: Handle,
    /// Mark of this gateway's walls.
    mark: u32,
    /// Walls of an earlier run whose routes went with a device that was made anew. They stay until such a route is there
    /// again; `None` before the first look.
    unmatched: Option<BTreeSet<Wall>>,
    /// Links whose devices have left this network namespace.
    moved: BTreeSet<PortId>,
    /// Numbers of the devices, also of those that were deleted.
    devices: BTreeSet<u32>,
    /// Number of the device of each link; `None` before the first look.
    numbers: Option<BTreeMap<PortId, u32>>,
    /// Told of devices that were made again.
    events: Sender<Event>,
    walls: Walls,
    /// Faults that were logged.
    reported: BTreeSet<String>,
}

impl Guard {
    /// Removes the devices that an earlier run has left and that no link has now. One that is down may open its device later.
    fn sweep(&mut self, instance: &str) -> io::Result<()> {
        let names = |node: &mut Node| node.slots.iter().flatten().map(|slot| slot.config.name.clone()).collect();
        // The gateway ends if the worker does not answer.
        let Ok::<BTreeSet<String>, _>(names) = self.worker.call(names) else { return Ok(()) };
        for device in tun_devices(&mut self.dumps)? {
            let is_left = !device.is_attached && !names.contains(&device.name);
            if owner_of(&device) == Some(instance) && is_left {
                request::change_one(Change::Remove { index: device.index })?;
                tracing::info!("{}: the device is removed: no link has it any more", device.name);
            }
        }
        Ok(())
    }

    /// Sets the walls again after each change that may concern them, until the worker ends. `is_behind`: the last attempt has
    /// failed.
    fn watch(&mut self, events: &OwnedFd, call: &OwnedFd, mut is_behind: bool) -> io::Result<()> {
        let mut buffer = vec![0; rtnetlink::BUFFER];
        loop {
            let mut waiting = [events, call].map(|fd| PollFd::new(fd, PollFlags::IN));
            let limit = is_behind.then_some(&AGAIN);
            let is_late = rustix::io::retry_on_intr(|| poll(&mut waiting, limit))? == 0;
            let is_called = rustix::io::read(call, &mut [0; 8]).is_ok() || is_late;
            match recv(events, buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Err(Errno::AGAIN | Errno::INTR) if !is_called => continue,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok((len, _)) => {
                    let mut messages = Messages::new(&buffer[..len.min(buffer.len())]);
                    if !messages.any(|message| self.concerns(&message)) && !is_called {
                        continue;
                    }
                }
                // Some changes are unknown.
                Err(Errno::NOBUFS) => {}
                Err(err) => return Err(err.into()),
            }
            thread::sleep(SETTLE);
            // The same check covers messages that have arrived in the meantime.
            while matches!(recv(events, buffer.as_mut_slice(), RecvFlags::DONTWAIT), Ok(_) | Err(Errno::NOBUFS)) {}
            let is_held = IS_HELD.lock().unwrap_or_else(PoisonError::into_inner);
            is_behind = *is_held || self.is_behind()?;
        }
    }

    /// Whether a notification is about a device, an address or a route that has to do with the walls, and no change of a wall by
    /// this gateway itself.
    fn concerns(&self, message: &Message<'_>) -> bool {
        if let Some(index) = rtnl::index_of(message) {
            return self.devices.contains(&index) || rtnl::read_tun(message).is_some();
        }
        rtnl::read_host_route(message).is_some_and(|route| {
            if message.header.port == self.port && Wall::of(&route, self.mark).is_some() {
                return false;
            }
            let beside = |wall: &Wall| (wall.table, wall.prefix) == (route.table, route.prefix);
            wall::leads_over(&route, &self.devices) || self.walls.keys().any(beside)
        })
    }

    /// [Reconciles](Self::reconcile). Tells whether that has failed, and is to be tried again.
    ///
    /// # Errors
    /// The gateway may not change routes.
    fn is_behind(&mut self) -> io::Result<bool> {
        match self.reconcile() {
            Ok(()) => Ok(false),
            Err(err) if Errno::from_io_error(&err) == Some(Errno::PERM) => Err(err),
            Err(err) => {
                self.report(format!("blackhole routes: {err}; they are tried again"));
                Ok(true)
            }
        }
    }

    /// Leads from the present walls to those for the present routes. Walls of a device that was deleted or is down
    /// stay: the kernel has removed the routes over it.
    fn reconcile(&mut self) -> io::Result<()> {
        // The gateway ends if the worker does not answer.
        let Ok(links) = self.worker.call(|node| node.tun_links()) else { return Ok(()) };
        let here = tun_devices(&mut self.dumps)?;
        let mut away = BTreeSet::new();
        self.devices.clear();
        let mut numbers = BTreeMap::new();
        for (id, index, has_device) in links {
            if has_device && here.iter().any(|device| device.index == index) {
                numbers.insert(id, index);
            }
            match here.iter().find(|device| device.index == index) {
                None if has_device => {
                    // In another network namespace the device ends with the gateway: the next one makes it here.
                    self.moved.insert(id);
                    let _ = self.worker.call(move |node| node.keep_device(id, false));
                    continue;
                }
                Some(_) if self.moved.remove(&id) => {
                    let _ = self.worker.call(move |node| node.keep_device(id, true));
                }
                None | Some(_) => {}
            }
            if here.iter().all(|device| device.index != index || !device.up) {
                away.insert(index);
            }
            self.devices.insert(index);
        }
        let is_new = |before: &BTreeMap<PortId, u32>| numbers.iter().any(|(id, index)| before.get(id) != Some(index));
        if self.numbers.as_ref().is_some_and(is_new) {
            // The receiver is dropped while the gateway ends.
            let _ = self.events.send(Event::DeviceMade);
        }
        self.numbers = Some(numbers);
        let (mut ours, mut present, mut others) = (Vec::new(), BTreeSet::new(), Vec::new());
        self.dumps.dump(RTM_GETROUTE, |message| {
            let Some(route) = rtnl::read_host_route(message) else { return };
            if let Some(wall) = Wall::of(&route, self.mark) {
                present.insert(wall);
            } else if wall::leads_over(&route, &self.devices) {
                ours.push(route);
            }
        })?;
        if !ours.is_empty() {
            let keys: BTreeSet<_> = ours.iter().map(|route| (route.table, route.prefix)).collect();
            self.dumps.dump(RTM_GETROUTE, |message| {
                let route = rtnl::read_host_route(message).filter(|route| keys.contains(&(route.table, route.prefix)));
                others.extend(route.filter(|route| !wall::is_wall(route) && !wall::leads_over(route, &self.devices)));
            })?;
        }
        let (mut wanted, open) = wall::walls(&ours, &others);
        for route in open {
            let (to, metric) = (route.prefix, route.metric);
            self.report(format!(
                "the route to {to} with metric {metric} has no room for a route that drops its packets while this gateway is away; \
                 another one has the next metric"
            ));
        }
        let is_first = self.unmatched.is_none();
        let unmatched = self.unmatched.get_or_insert_with(|| match owner::has_remade() {
            true => present.clone(),
            false => BTreeSet::new(),
        });
        unmatched.retain(|wall| !wanted.contains_key(wall));
        if is_first && !unmatched.is_empty() {
            let to: BTreeSet<_> = unmatched.iter().map(|wall| wall.prefix.to_string()).collect();
            let to: Vec<_> = to.into_iter().collect();
            tracing::warn!(
                "packets to {} are dropped until there is a route over a device of this gateway again",
                to.join(", ")
            );
        }
        wanted.extend(unmatched.iter().map(|&wall| (wall, BTreeSet::new())));
        for (wall, devices) in std::mem::take(&mut self.walls) {
            if !devices.is_disjoint(&away) {
                wanted.entry(wall).or_insert(devices);
            }
        }
        let new: Vec<Wall> = wanted.keys().filter(|wall| !present.contains(wall)).copied().collect();
        let gone: Vec<Wall> = present.iter().filter(|wall| !wanted.contains_key(wall)).copied().collect();
        self.set(&new, true)?;
        self.set(&gone, false)?;
        self.walls = wanted;
        Ok(())
    }

    /// Adds or removes walls.
    fn set(&mut self, walls: &[Wall], is_new: bool) -> io::Result<()> {
        let change = |wall: &Wall| Change::Route { route: wall.route(self.mark), is_new };
        let errors = request::change(walls.iter().map(change).collect())?;
        for (wall, err) in walls.iter().zip(errors) {
            match err.map(|err| (Errno::from_io_error(&err), err)) {
                None | Some((Some(Errno::EXIST | Errno::SRCH | Errno::NOENT), _)) => {}
                Some((Some(Errno::PERM), err)) => return Err(err),
                Some((_, err)) => self.report(format!("blackhole route to {}: {err}", wall.prefix)),
            }
        }
        Ok(())
    }

    /// Logs a fault once.
    fn report(&mut self, fault: String) {
        if !self.reported.contains(&fault) {
            tracing::warn!("{fault}");
            self.reported.insert(fault);
        }
    }
}

//! Links of the worker: opened and closed, read and written, set aside when they fail, tried again, and reopened when their
//! device was deleted and there is another one of its name.

use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use base::{DropReason, IfIndex, Instant, LinkId};
use control::features::FeatureSet;
use control::model::{LinkConfig, LinkKind};
use datapath::{HostRole, PortConfig};
use link::{HostLinks, Layer, Link, Sent};
use offload::Features;
use wire::eth::MacAddr;

use super::super::command::LinkChange;
use super::super::{features, node};
use super::{RETRY_DEVICE, Worker};
use crate::error::CliError;

/// How long a link that failed stays unread before it is tried again.
const RETRY_DOWN: Duration = Duration::from_secs(1);

/// Interval at which the worker checks whether the thread that reopens a link is done.
const REOPEN_POLL: Duration = Duration::from_millis(10);

/// Bursts that came while a link was down and are dropped when it is up again; should more come at once, they are new.
const MOST_DISCARDED: usize = 1024;

/// A link with what the worker knows of it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) link: Box<dyn Link>,
    /// What it was opened from.
    pub(crate) config: LinkConfig,
    /// Link-layer address that an operator has set.
    mac: Option<MacAddr>,
    /// What could be switched of it when it was opened; some of it may have been refused since.
    can: FeatureSet,
    /// What of that is wanted.
    wanted: FeatureSet,
    /// Whether the operator wants it to be.
    pub(crate) admin_up: bool,
    /// Why it is not read and written, if it failed.
    pub(crate) down: Option<Down>,
    /// How often packets could pass by it from then on, and how often no longer.
    pub(crate) carrier: [u32; 2],
    /// Whether it took no more, and epoll will tell when it does.
    pub(super) full: bool,
    /// When it is tried again, if it took no more and nothing will tell when it does.
    pub(super) retry_at: Option<Instant>,
}

/// That a link failed.
#[derive(Debug)]
pub(crate) struct Down {
    pub(crate) why: String,
    pub(super) retry_at: Instant,
    /// Whether the operator had it down meanwhile: nothing of what it has received counts any more.
    is_stale: bool,
    /// Result of the thread that reopens it, while one does.
    reopening: Option<Receiver<Result<Box<dyn Link>, CliError>>>,
}

impl Slot {
    /// What can be switched of it.
    pub(crate) const fn can(&self) -> FeatureSet {
        self.can
    }

    /// What of it is on.
    pub(crate) fn on(&self) -> FeatureSet {
        (features::of(&*self.link) & self.wanted).coherent()
    }

    /// What of the work on packets that are sent is left to it.
    fn features(&self) -> Features {
        features::limited(self.link.features(), self.on())
    }

    const fn count_carrier(&mut self, up: bool) {
        let [ups, downs] = &mut self.carrier;
        let count = if up { ups } else { downs };
        *count = count.wrapping_add(1);
    }
}

/// Marks the id of a link that is never there, made from a number that no link has.
const ABSENT: u32 = 1 << 31;

impl Worker {
    /// The link that netlink's clients know by that number. Of a number that no link has, a link that is never there.
    pub(crate) fn link_of(&self, ifindex: u32) -> LinkId {
        let has_it = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.link.host_index() == Some(ifindex));
        match self.slots.iter().position(has_it) {
            _ if ifindex <= LinkId::LOOPBACK.0 => LinkId(ifindex),
            Some(at) => LinkId(at as u32),
            None => IfIndex(ifindex).as_own().unwrap_or(LinkId(ifindex | ABSENT)),
        }
    }

    /// The number by which netlink's clients know a link.
    pub(crate) fn ifindex(&self, id: LinkId) -> IfIndex {
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        slot.and_then(|slot| slot.link.host_index()).map_or(IfIndex::own(id), IfIndex)
    }

    /// The number by which netlink's clients know the link of a selector, for which a client `said` one.
    pub(crate) fn selector_ifindex(&self, dev: LinkId, said: u32) -> u32 {
        if dev.0 & ABSENT == 0 { self.ifindex(dev).0 } else { said }
    }

    /// Changes one link, or says why not.
    pub(super) fn change_link(&mut self, id: LinkId, change: LinkChange) -> Result<(), String> {
        let now = self.clock.now();
        match change {
            LinkChange::Open(link, config) => {
                let wanted = config.features;
                self.open(id, link, config);
                self.set_port(id, wanted);
                self.set_admin_up(now, id, false);
            }
            LinkChange::Close => self.close(now, id),
            LinkChange::Mtu(mtu) => {
                self.set_mtus(&[(id, Some(mtu))])?;
                self.see_link(id);
            }
            LinkChange::Mac(mac) => {
                let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return Ok(()) };
                slot.link.set_mac(mac).map_err(|refused| refused.to_string())?;
                slot.mac = Some(mac);
                self.see_link(id);
            }
            // What waits to be sent goes as it is.
            LinkChange::Features(wanted) => self.set_port(id, wanted),
            LinkChange::Up(up) => self.set_admin_up(now, id, up),
        }
        Ok(())
    }

    pub(super) fn open(&mut self, id: LinkId, link: Box<dyn Link>, config: LinkConfig) {
        let at = id.0 as usize;
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.poller.add(id, &*link);
        let can = features::of(&*link);
        self.slots[at] = Some(Slot {
            can,
            wanted: can,
            link,
            config,
            mac: None,
            admin_up: true,
            down: None,
            carrier: [1, 0],
            full: false,
            retry_at: None,
        });
    }

    pub(super) fn close(&mut self, now: Instant, id: LinkId) {
        self.path.remove_port(now, &self.mem, id);
        self.captures.retain(|capture| capture.link != id);
        if let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::take)
            && slot.down.is_none()
            && slot.admin_up
        {
            self.poller.remove(&*slot.link);
        }
    }

    /// Has the path know of a link that has changed.
    pub(super) fn see_link(&mut self, id: LinkId) {
        if let Some(Some(Slot { wanted, .. })) = self.slots.get(id.0 as usize) {
            self.set_port(id, *wanted);
        }
    }

    /// Has the path know of a link as it is, of which those features are wanted.
    pub(super) fn set_port(&mut self, id: LinkId, wanted: FeatureSet) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        slot.wanted = wanted;
        let (link, features, gro) = (&slot.link, slot.features(), slot.on().has(FeatureSet::GRO));
        let mac = match link.layer() {
            Layer::Ethernet(mac) => Some(mac),
            Layer::Ip => None,
        };
        let (name, mtu) = (link.name().to_owned(), link.mtu());
        let role = match slot.config.kind {
            LinkKind::Tun { .. } | LinkKind::Tap { .. } => HostRole::Peer,
            LinkKind::Udp { .. } => HostRole::SharesAddress,
            LinkKind::Loopback | LinkKind::Vrf { .. } | LinkKind::Packet { .. } | LinkKind::Xdp { .. } => {
                HostRole::None
            }
        };
        self.path.set_port(id, PortConfig { name, mac, mtu, features, gro });
        self.path.set_host_role(id, role);
    }

    /// Reads and writes a link from now on, or no longer. One that failed meanwhile is tried at once when it is set up.
    pub(super) fn set_admin_up(&mut self, now: Instant, id: LinkId, up: bool) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if std::mem::replace(&mut slot.admin_up, up) == up {
            return;
        }
        slot.full = false;
        if let Some(down) = &mut slot.down {
            down.is_stale = true;
            down.retry_at = now;
            return;
        }
        slot.count_carrier(up);
        self.path.set_up(now, &self.mem, id, up);
        if up {
            self.poller.add(id, &*slot.link);
            self.discard(now, id);
            self.look_at(now, id);
        } else {
            self.poller.remove(&*slot.link);
        }
    }

    /// Drops what a link has received while it was down.
    fn discard(&mut self, now: Instant, id: LinkId) {
        for _ in 0..MOST_DISCARDED {
            let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
            let malformed = slot.link.stats().rx_dropped;
            let received = slot.link.recv(&self.mem, &mut self.burst);
            let came = !self.burst.is_empty() || slot.link.stats().rx_dropped != malformed;
            self.path.discard(id, &mut self.burst, DropReason::LinkDown);
            match received {
                Ok(()) if came => {}
                Ok(()) => return,
                Err(err) => {
                    self.link_failed(now, id, &err);
                    let slot = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut);
                    if let Some(down) = slot.and_then(|slot| slot.down.as_mut()) {
                        down.is_stale = true;
                    }
                    return;
                }
            }
        }
    }

    /// Looks at what the host has made of a link's interface.
    pub(super) fn look_at(&mut self, now: Instant, id: LinkId) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if slot.down.is_some() {
            return;
        }
        match slot.link.look() {
            Ok(false) => {}
            Ok(true) => {
                tracing::info!("{}: the interface has an MTU of {} now", slot.link.name(), slot.link.mtu());
                self.see_link(id);
                self.listeners.link_changed(id);
            }
            Err(err) => self.link_failed(now, id, &err),
        }
    }

    /// Looks at every link, if something has happened to an interface of the host's.
    pub(super) fn look_at_links(&mut self, now: Instant) {
        if !std::mem::take(&mut self.host_changed) || !self.host.as_ref().is_some_and(HostLinks::have_changed) {
            return;
        }
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut().filter(|slot| slot.admin_up) else { continue };
            match &mut slot.down {
                Some(down) => down.retry_at = now,
                None => self.look_at(now, LinkId(at as u32)),
            }
        }
    }

    /// Gives links another MTU: all of them, or none and why.
    pub(super) fn set_mtus(&mut self, mtus: &[(LinkId, Option<u16>)]) -> Result<(), String> {
        let mut before = Vec::new();
        for &(id, mtu) in mtus {
            let Some(Some(Slot { link, .. })) = self.slots.get_mut(id.0 as usize) else { continue };
            let old = link.wanted_mtu();
            match link.set_mtu(mtu) {
                Ok(()) => before.push((id, old)),
                Err(refused) => {
                    for (id, mtu) in before {
                        let Some(Some(Slot { link, .. })) = self.slots.get_mut(id.0 as usize) else { continue };
                        if let Err(err) = link.set_mtu(mtu) {
                            tracing::error!("{}: cannot have its former MTU back: {err}", link.name());
                        }
                    }
                    return Err(refused.to_string());
                }
            }
        }
        Ok(())
    }

    /// Receives one burst from a link and has the path take it in. Tells whether there may be more.
    pub(super) fn serve(&mut self, now: Instant, id: LinkId) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return false };
        if slot.down.is_some() || !slot.admin_up {
            return false;
        }
        let received = slot.link.recv(&self.mem, &mut self.burst);
        let more = !self.burst.is_empty();
        if more {
            // A change that a client had been told of before it sent these packets holds for them.
            self.learn(now);
            self.path.take_in(now, &self.mem, id, &mut self.burst);
            self.send_all(now);
        }
        match received {
            Ok(()) => more,
            Err(err) => {
                self.link_failed(now, id, &err);
                false
            }
        }
    }

    /// Sends what waits in the ports.
    pub(super) fn send_all(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            self.send(now, LinkId(at as u32));
        }
    }

    pub(super) fn send(&mut self, now: Instant, id: LinkId) {
        let Self { slots, path, mem, poller, .. } = self;
        let Some(Some(slot)) = slots.get_mut(id.0 as usize) else { return };
        if slot.full || slot.down.is_some() || !slot.admin_up {
            return;
        }
        loop {
            let Some(waiting) = path.take_tx(id).filter(|waiting| !waiting.is_empty()) else { return };
            match slot.link.send(waiting) {
                Ok(Sent::All) => return path.set_busy(mem, id, false),
                Ok(Sent::Busy) => {
                    path.set_busy(mem, id, true);
                    if slot.link.room_fds().is_empty() {
                        slot.retry_at = Some(now + RETRY_DEVICE);
                    } else {
                        slot.full = true;
                        poller.want_room(id, &*slot.link, true);
                    }
                    return;
                }
                Ok(Sent::Refit) => path.refit(mem, id, slot.features()),
                Err(err) => return self.link_failed(now, id, &err),
            }
        }
    }

    /// Sets a link aside that failed; the others go on.
    #[cold]
    pub(super) fn link_failed(&mut self, now: Instant, id: LinkId, err: &io::Error) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        tracing::error!("{err}; the link is down, the others go on");
        slot.down = Some(Down { why: err.to_string(), retry_at: now + RETRY_DOWN, is_stale: false, reopening: None });
        slot.full = false;
        slot.count_carrier(false);
        self.poller.remove(&*slot.link);
        self.path.set_up(now, &self.mem, id, false);
        self.listeners.link_changed(id);
    }

    /// Names of the links that have failed, each with the reason.
    pub(crate) fn failed_links(&self) -> Vec<(String, String)> {
        let failed = self.slots.iter().flatten().filter(|slot| slot.admin_up);
        failed.filter_map(|slot| Some((slot.link.name().to_owned(), slot.down.as_ref()?.why.clone()))).collect()
    }

    /// Retries links that failed a while ago, and reopens those whose device was deleted and made again.
    pub(super) fn retry_links(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut().filter(|slot| slot.admin_up) else { continue };
            let Some(down) = slot.down.as_mut().filter(|down| down.retry_at <= now) else { continue };
            let id = LinkId(at as u32);
            if down.reopening.is_some() {
                if !slot.take_reopened(now) {
                    continue;
                }
                self.see_link(id);
            }
            self.retry_link(now, id);
        }
    }

    /// Reads a link that failed.
    fn retry_link(&mut self, now: Instant, id: LinkId) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        let received = slot.link.recv(&self.mem, &mut self.burst);
        let Some(down) = &mut slot.down else { return };
        if let Err(err) = received {
            down.retry_at = now + RETRY_DOWN;
            if !(slot.link.is_gone() && slot.reopen(now)) {
                slot.set_why_down(err.to_string());
            }
            self.path.discard(id, &mut self.burst, DropReason::LinkDown);
            return;
        }
        tracing::info!("{}: the link is up again", slot.link.name());
        let is_stale = down.is_stale;
        slot.down = None;
        slot.count_carrier(true);
        self.poller.add(id, &*slot.link);
        self.path.set_up(now, &self.mem, id, true);
        self.listeners.link_changed(id);
        if is_stale {
            self.path.discard(id, &mut self.burst, DropReason::LinkDown);
            self.discard(now, id);
        }
        self.look_at(now, id);
        let failed_again = self.slots[id.0 as usize].as_ref().is_some_and(|slot| slot.down.is_some());
        if failed_again {
            self.path.discard(id, &mut self.burst, DropReason::LinkDown);
        } else {
            self.path.handle_rx(now, &self.mem, id, &mut self.burst);
        }
    }
}

impl Slot {
    /// Sets the reason why the link is down.
    fn set_why_down(&mut self, why: String) {
        if let Some(down) = &mut self.down {
            down.why = why;
        }
    }

    /// Starts a thread that opens the link on the device of its name, as opening may take long. False if there is no such device
    /// or no thread can be started.
    fn reopen(&mut self, now: Instant) -> bool {
        let config = LinkConfig { mtu: self.link.wanted_mtu(), ..self.config.clone() };
        if !node::has_device(&config) {
            return false;
        }
        self.link.release();
        let (sender, reopening) = mpsc::channel();
        let open = move || {
            // The link may have been closed meanwhile.
            let _ = sender.send(node::open(&config, None));
        };
        if let Err(err) = thread::Builder::new().name("open".to_owned()).spawn(open) {
            tracing::error!("{}: start a thread: {err}", self.link.name());
            return false;
        }
        if let Some(down) = &mut self.down {
            down.reopening = Some(reopening);
            down.retry_at = now + REOPEN_POLL;
        }
        true
    }

    /// Replaces the failed link with the reopened one, which stays down until it is read. False if the link cannot be opened, or
    /// is not open yet.
    fn take_reopened(&mut self, now: Instant) -> bool {
        let Some(down) = &mut self.down else { return false };
        let opened = match down.reopening.as_ref().map(Receiver::try_recv) {
            None => return false,
            Some(Err(TryRecvError::Empty)) => {
                down.retry_at = now + REOPEN_POLL;
                return false;
            }
            Some(Ok(opened)) => opened,
            Some(Err(TryRecvError::Disconnected)) => Err(CliError::failed("the thread that opens it has panicked")),
        };
        down.reopening = None;
        match opened {
            Ok(mut link) => {
                let name = link.name().to_owned();
                if let Some(Err(err)) = self.mac.map(|mac| link.set_mac(mac)) {
                    tracing::warn!("{name}: cannot have its link-layer address again: {err}");
                }
                link.set_stats(*self.link.stats());
                tracing::info!("{name}: its device was made again, and is opened");
                self.can = features::of(&*link);
                self.link = link;
                true
            }
            Err(err) => {
                if down.why != err.message {
                    tracing::error!(
                        "{}: its device was made again, and cannot be opened: {}",
                        self.link.name(),
                        err.message
                    );
                }
                down.retry_at = now + RETRY_DOWN;
                self.set_why_down(err.message);
                false
            }
        }
    }
}

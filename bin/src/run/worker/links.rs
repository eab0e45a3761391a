//! Links as the worker has them: opened and closed, read and written, given up when they fail and tried again.

use std::io;
use std::time::Duration;

use base::{DropReason, Instant, LinkId};
use control::features::FeatureSet;
use control::model::LinkKind;
use link::{HostLinks, Layer, Link, Sent};
use offload::Features;
use path::PortConfig;

use super::super::command::LinkChange;
use super::super::features;
use super::{RETRY_DEVICE, Worker};

/// How long a link that failed stays unread before it is tried again.
const RETRY_DOWN: Duration = Duration::from_secs(1);

/// Bursts that came while a link was down and are dropped when it is up again; should more come at once, they are new.
const MOST_DISCARDED: usize = 1024;

/// A link with what the worker knows of it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) link: Box<dyn Link>,
    /// What it was opened from.
    pub(crate) kind: LinkKind,
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

impl Worker {
    /// Changes one link, or says why not.
    pub(super) fn change_link(&mut self, id: LinkId, change: LinkChange) -> Result<(), String> {
        let now = self.clock.now();
        match change {
            LinkChange::Open(link, config) => {
                self.open(id, link, config.kind);
                self.set_port(id, config.features);
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
                self.see_link(id);
            }
            // What waits to be sent goes as it is.
            LinkChange::Features(wanted) => self.set_port(id, wanted),
            LinkChange::Up(up) => self.set_admin_up(now, id, up),
        }
        Ok(())
    }

    pub(super) fn open(&mut self, id: LinkId, link: Box<dyn Link>, kind: LinkKind) {
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
            kind,
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
        self.path.set_port(id, PortConfig { name, mac, mtu, features, gro });
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
    fn look_at(&mut self, now: Instant, id: LinkId) {
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
        slot.down = Some(Down { why: err.to_string(), retry_at: now + RETRY_DOWN, is_stale: false });
        slot.full = false;
        slot.count_carrier(false);
        self.poller.remove(&*slot.link);
        self.path.set_up(now, &self.mem, id, false);
        self.listeners.link_changed(id);
    }

    /// Reads links that failed a while ago again.
    pub(super) fn retry_links(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut().filter(|slot| slot.admin_up) else { continue };
            let Some(down) = slot.down.as_mut().filter(|down| down.retry_at <= now) else { continue };
            let id = LinkId(at as u32);
            if let Err(err) = slot.link.recv(&self.mem, &mut self.burst) {
                down.why = err.to_string();
                down.retry_at = now + RETRY_DOWN;
                self.path.discard(id, &mut self.burst, DropReason::LinkDown);
                continue;
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
            match self.slots[at].as_ref().is_some_and(|slot| slot.down.is_some()) {
                true => self.path.discard(id, &mut self.burst, DropReason::LinkDown),
                false => self.path.handle_rx(now, &self.mem, id, &mut self.burst),
            }
        }
    }
}

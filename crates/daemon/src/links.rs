//! Links of a node: opened and closed, read and written, taken out of service when they fail, and retried.

use std::io;

use base::{DropReason, Instant, PortId};
use config::features::FeatureSet;
use config::model::{EspOffload, LinkConfig, LinkKind};
use ctl::event::Event;
use datapath::{Datapath, HostRole, PortConfig};
use driver::Resource;
use ipsec::device::SoftwareDevice;
use link::{Layer, Link, Sent};
use qdisc::Options;
use wire::eth::MacAddr;
use wire::vlan;

use super::device;
use super::node::Node;
use super::slot::{Down, Life, RETRY_DEVICE, RETRY_DOWN, Slot};
use super::translate::features;

/// Limit of bursts received while a link was down that are dropped when it is up again; any further burst counts as new.
const MOST_DISCARDED: usize = 1024;

/// Change of a link, which every shard makes.
#[derive(Clone, Debug)]
pub(crate) enum LinkChange {
    /// The link is removed.
    Close,
    /// The MTU of the link is changed.
    Mtu(u16),
    /// The link-layer address of the link is changed.
    Mac(MacAddr),
    /// The link enables the features of this set that it supports, and disables all others.
    Features(FeatureSet),
    /// The queueing discipline of the link is replaced or removed.
    Qdisc(Option<Options>),
    /// The options of the link's queueing discipline are changed; the kind stays.
    ChangeQdisc(Options),
    /// The link becomes a port of this bridge, or leaves its bridge.
    Bridge(Option<PortId>),
    /// The link is set up, or down.
    Up(bool),
}

/// Tells whether packets leave by a link in the first shard: its device has no queue here, or it is a bridge, which the first shard has
/// for all.
fn is_elsewhere(link: &dyn Link, config: &LinkConfig) -> bool {
    link.is_elsewhere() || matches!(config.kind, LinkKind::Bridge(_))
}

impl Node {
    /// Changes one link, or returns the reason of a refusal.
    pub(crate) fn change_link(&mut self, id: PortId, change: LinkChange) -> Result<(), String> {
        let changed = self.make_change(id, change);
        self.set_promiscuous_links();
        changed
    }

    /// Adds a link, which is down.
    pub(crate) fn add_link(&mut self, id: PortId, link: Box<dyn Link>, config: LinkConfig) {
        let wanted = config.features;
        self.open(id, link, config);
        self.set_port(id, wanted);
        self.set_admin_up(self.now(), id, false);
        self.set_promiscuous_links();
    }

    fn make_change(&mut self, id: PortId, change: LinkChange) -> Result<(), String> {
        let now = self.now();
        match change {
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
            // Queued packets are sent as they are.
            LinkChange::Features(wanted) => self.set_port(id, wanted),
            // The first shard has the discipline, and the packets of all pass there.
            LinkChange::Qdisc(options) if !self.datapath.is_first_shard() => {
                options.map_or(Ok(()), |options| self.check_qdisc(now, options))?;
                self.set_elsewhere(id, options.is_some());
            }
            LinkChange::ChangeQdisc(options) if !self.datapath.is_first_shard() => {
                self.check_qdisc(now, options)?;
                self.set_elsewhere(id, true);
            }
            LinkChange::Qdisc(options) => {
                self.datapath.set_qdisc(now, &self.mem, id, options).map_err(|refused| refused.to_string())?;
            }
            LinkChange::ChangeQdisc(options) => {
                self.datapath.change_qdisc(now, &self.mem, id, options).map_err(|refused| refused.to_string())?;
            }
            LinkChange::Bridge(bridge) => {
                self.datapath.set_bridge(now, &self.mem, id, bridge).map_err(|refused| refused.to_string())?;
            }
            LinkChange::Up(up) => self.set_admin_up(now, id, up),
        }
        Ok(())
    }

    /// Sets whether packets leave by a port in the first shard: for its queueing discipline, or as its device has no queue here.
    fn set_elsewhere(&mut self, id: PortId, has_qdisc: bool) {
        let slot = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut);
        let is_elsewhere = slot.is_some_and(|slot| {
            slot.is_shaped_elsewhere = has_qdisc;
            is_elsewhere(&*slot.link, &slot.config)
        });
        self.datapath.set_port_elsewhere(id, has_qdisc || is_elsewhere);
    }

    /// Refuses what the first shard refuses of a queueing discipline.
    fn check_qdisc(&self, now: Instant, options: Options) -> Result<(), String> {
        Datapath::check_qdisc(now, options).map_err(|refused| refused.to_string())
    }

    /// Tells the other shards the MTU and address of a link that some of them have no queue of, after the host has changed them.
    fn tell_settings(&self, id: PortId) {
        let Some(Some(slot)) = self.slots.get(id.0 as usize) else { return };
        let (mtu, layer) = (slot.link.mtu(), slot.link.layer());
        self.run_on_others(move |node| node.follow_settings(id, mtu, layer));
    }

    /// Gives the queues of a device that was made again to the other shards.
    fn give_queues(&self, id: PortId, others: Vec<Box<dyn Link>>) {
        let Some((_, shards)) = &self.shard else { return };
        let Some(Some(slot)) = self.slots.get(id.0 as usize) else { return };
        let life = slot.life;
        for (shard, link) in shards.count().all().skip(1).zip(others) {
            shards.run_on(shard, Box::new(move |node| node.replace_link(id, life, link)));
        }
    }

    /// Follows the settings of a link that another shard has for this one.
    fn follow_settings(&mut self, id: PortId, mtu: usize, layer: Layer) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if !slot.link.is_elsewhere() {
            return;
        }
        slot.link.common_mut().mtu = mtu;
        if let Layer::Ethernet(mac) = layer {
            // A link elsewhere refuses no address, if it has one.
            let _ = slot.link.set_mac(mac);
        }
        self.see_link(id);
    }

    /// Sets which links and bridges receive frames to all stations, after a change of links, of bridges, or of sockets of the host side.
    pub(crate) fn set_promiscuous_links(&mut self) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let Some(slot) = slot else { continue };
            let id = PortId(at as u32);
            let is_promiscuous = self.datapath.rx_mode(id).promiscuity > 0;
            if let Some(bridge) = self.datapath.bridge_mut(id) {
                bridge.set_promiscuous(is_promiscuous);
            }
            // A link that is down may have lost its interface, and is set when it is reopened.
            if let Err(err) = slot.link.set_promiscuous(is_promiscuous)
                && slot.down.is_none()
            {
                tracing::error!("{err}");
            }
        }
    }

    /// Sets the queueing discipline that a file has for a link. A discipline of the same kind gets the new options, and
    /// keeps its queued packets.
    pub(crate) fn set_qdisc_from_file(&mut self, id: PortId, options: Option<Options>) -> Result<(), String> {
        let before = self.datapath.qdisc_kind(id);
        self.change_link(
            id,
            match options {
                Some(options) if before == Some(options.kind()) => LinkChange::ChangeQdisc(options),
                options => LinkChange::Qdisc(options),
            },
        )
    }

    pub(crate) fn open(&mut self, id: PortId, mut link: Box<dyn Link>, config: LinkConfig) {
        let at = id.0 as usize;
        if let LinkKind::Vlan { link: below, .. } = &config.kind
            && let Some((_, lower)) = self.slot_named(below)
        {
            // A VLAN device refuses neither setting.
            if let Layer::Ethernet(mac) = lower.link.layer() {
                let _ = link.set_mac(mac);
            }
            if config.mtu.is_none() {
                // Interfaces accept frames one tag longer than their MTU, but no second tag.
                let second_tag =
                    if matches!(lower.config.kind, LinkKind::Vlan { .. }) { vlan::VlanHeader::LEN } else { 0 };
                let _ = link.set_mtu(u16::try_from(lower.link.mtu().saturating_sub(second_tag)).ok());
            }
        }
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        self.poller.add(id, &*link);
        self.datapath.set_port_elsewhere(id, is_elsewhere(&*link, &config));
        if device::keeps_now()
            && let Err(err) = link.keep(true)
        {
            tracing::error!("{err}; the device ends with the gateway");
        }
        if let (LinkKind::Bridge(settings), Layer::Ethernet(mac)) = (&config.kind, link.layer()) {
            let added = self.datapath.add_bridge(id, config.name.clone(), mac, link.mtu());
            let added =
                added.and_then(|()| self.datapath.bridge_mut(id).map_or(Ok(()), |bridge| settings.apply(bridge)));
            if let Err(err) = added {
                tracing::error!("{}: {err}", config.name);
            }
        }
        let can = features::of(&*link);
        let esp = config.esp_offload.map(|EspOffload::Software| SoftwareDevice::default());
        if let Some(device) = &esp {
            self.datapath.set_device(self.now(), &self.mem, id, Some(Box::new(device.clone())));
        }
        let has_carrier = link.has_carrier();
        let life = Life { number: self.opened, revivals: 0 };
        self.opened += 1;
        self.slots[at] = Some(Box::new(Slot {
            can,
            wanted: can,
            link,
            esp,
            config,
            mac: None,
            admin_up: true,
            down: None,
            life,
            has_carrier,
            carrier: [u32::from(has_carrier), 0],
            full: false,
            retry_at: None,
            is_shaped_elsewhere: false,
        }));
    }

    /// Slot of the link of that name.
    fn slot_named(&self, name: &str) -> Option<(PortId, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let mut slots = slots.filter_map(|(at, slot)| Some((PortId(at as u32), slot.as_deref()?)));
        slots.find(|(_, slot)| slot.link.name() == name)
    }

    pub(crate) fn close(&mut self, now: Instant, id: PortId) {
        self.discard_held(id);
        self.set_host_device(id, None);
        self.datapath.remove_port(now, &self.mem, id);
        self.captures.close(id);
        self.keep_device(id, false);
        if let Some(slot) = self.slots.get_mut(id.0 as usize).and_then(Option::take)
            && slot.down.is_none()
            && slot.admin_up
        {
            self.poller.remove(&*slot.link);
        }
        device::look_again();
    }

    /// Sets whether a device that is this node's own stays when its link is closed.
    pub(crate) fn keep_device(&mut self, id: PortId, kept: bool) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        match slot.link.keep(kept) {
            Err(err) if kept => tracing::error!("{err}; the device ends with the gateway"),
            // The device may be deleted.
            _ => {}
        }
    }

    /// TUN and TAP links, with the numbers of their devices, and whether these exist.
    pub(crate) fn tun_links(&self) -> Vec<(PortId, u32, bool)> {
        let slots = self.slots.iter().enumerate().filter_map(|(at, slot)| Some((PortId(at as u32), slot.as_ref()?)));
        let of_tun = slots.filter(|(_, slot)| slot.config.kind.is_tun());
        of_tun.filter_map(|(id, slot)| Some((id, slot.link.host_index()?, slot.link.has_device()))).collect()
    }

    /// Updates the datapath's port for a link that has changed.
    pub(crate) fn see_link(&mut self, id: PortId) {
        if let Some(Some(slot)) = self.slots.get(id.0 as usize) {
            self.set_port(id, slot.wanted);
        }
    }

    /// Updates the datapath's port for a link, with the requested features `wanted`.
    pub(crate) fn set_port(&mut self, id: PortId, wanted: FeatureSet) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        slot.wanted = wanted;
        let link = &slot.link;
        let features = slot.features();
        let gro = slot.on().has(FeatureSet::GRO);
        let esp_gro = slot.on().has(FeatureSet::ESP_GRO);
        let mac = match link.layer() {
            Layer::Ethernet(mac) => Some(mac),
            Layer::Ip => None,
        };
        let (name, mtu) = (link.name().to_owned(), link.mtu());
        let vlan = match &slot.config.kind {
            LinkKind::Vlan { link, id } => Some((link.clone(), *id)),
            _ => None,
        };
        let role = match slot.config.kind.resource() {
            Some(Resource::Device) => HostRole::Peer,
            Some(Resource::UdpSocket(_)) => HostRole::SharesAddress,
            Some(Resource::Interface(_) | Resource::VhostSocket(_)) | None => HostRole::None,
        };
        let (is_new, is_up) = (self.datapath.ports.get(id).is_none(), slot.is_up());
        self.datapath.set_port(id, PortConfig { name, mac, mtu, features, gro, esp_gro });
        if is_new && !is_up {
            self.datapath.set_up(self.now(), &self.mem, id, false);
        }
        self.datapath.set_host_role(id, role);
        if let Some((below, vid)) = vlan {
            let set = match self.slot_named(&below) {
                Some((lower, _)) => self.datapath.set_vlan(id, lower, vid).map_err(|err| err.to_string()),
                None => Err(format!("no link is named {below}")),
            };
            if let Err(why) = set {
                tracing::error!("VLAN {vid} of {below}: {why}");
            }
        }
    }

    /// Enables or disables reading and writing of a link. When a link that has failed is set up, it is retried at once.
    pub(crate) fn set_admin_up(&mut self, now: Instant, id: PortId, up: bool) {
        if !up {
            self.discard_held(id);
        }
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if std::mem::replace(&mut slot.admin_up, up) == up {
            return;
        }
        slot.full = false;
        if let Some(down) = &mut slot.down {
            down.is_stale = true;
            down.retry_at = down.retry_at.map(|_| now);
            return;
        }
        if up {
            self.poller.add(id, &*slot.link);
            self.follow_state(now, id);
            self.discard(now, id);
            self.look_at(now, id);
        } else {
            self.poller.remove(&*slot.link);
        }
        self.follow_state(now, id);
    }

    /// Updates the state of the datapath's port, if the link's state has changed. Returns whether it has.
    fn follow_state(&mut self, now: Instant, id: PortId) -> bool {
        self.tell_carrier(id);
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return false };
        let is_up = slot.is_up();
        if self.datapath.ports.get(id).is_none_or(|port| port.up == is_up) {
            return false;
        }
        slot.count_carrier(is_up);
        let why = slot.down.as_ref().filter(|_| slot.admin_up).map(|down| down.why.clone());
        let link = slot.link.name().to_owned();
        self.datapath.set_up(now, &self.mem, id, is_up);
        self.monitors.tell(&Event::Link { link, up: is_up, why });
        true
    }

    /// Follows the carrier of a link in the first shard. If it has changed, or the shards that have a queue have, tells the others.
    fn tell_carrier(&mut self, id: PortId) {
        if !self.datapath.is_first_shard() {
            return;
        }
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        let has_carrier = slot.link.has_carrier();
        let has_changed = std::mem::replace(&mut slot.has_carrier, has_carrier) != has_carrier;
        if slot.link.take_shared_change() || has_changed {
            let number = slot.life.number;
            self.run_on_others(move |node| node.follow_carrier(id, number, has_carrier));
        }
    }

    /// Follows the carrier of a link as the first shard has told it, and sends by the first shard while this one has no queue.
    fn follow_carrier(&mut self, id: PortId, number: u64, has_carrier: bool) {
        let now = self.now();
        let slot = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut);
        // Another link may have the number of the port by now.
        let Some(slot) = slot.filter(|slot| slot.life.number == number) else { return };
        slot.has_carrier = has_carrier;
        let is_shaped = slot.is_shaped_elsewhere;
        self.set_elsewhere(id, is_shaped);
        if self.follow_state(now, id) {
            self.listeners.link_changed(id);
        }
    }

    /// Follows the carrier of a link, which may have changed.
    pub(crate) fn see_carrier(&mut self, now: Instant, id: PortId) {
        if self.follow_state(now, id) {
            self.log_carrier(id);
            self.listeners.link_changed(id);
        }
    }

    /// Logs that the carrier of a link has changed.
    #[cold]
    fn log_carrier(&self, id: PortId) {
        if let Some(Some(slot)) = self.slots.get(id.0 as usize) {
            let link = slot.link.name();
            if slot.is_up() {
                tracing::info!(message_id = logging::id::LINK_UP, link, "{link}: the link has a carrier");
            } else {
                let reason = "no carrier";
                tracing::info!(message_id = logging::id::LINK_DOWN, link, reason, "{link}: the link has no carrier");
            }
        }
    }

    /// Drops the packets of `from` that are received and not decided on.
    pub(crate) fn discard_held(&mut self, from: PortId) {
        if let Some((_, burst)) = self.held.as_mut().filter(|(id, _)| *id == from) {
            self.datapath.discard(from, burst, DropReason::LinkDown);
        }
    }

    /// Drops packets that a link received while it was down.
    fn discard(&mut self, now: Instant, id: PortId) {
        for _ in 0..MOST_DISCARDED {
            let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
            let malformed = slot.link.stats().rx_dropped;
            let received = slot.link.recv(&self.mem, &mut self.burst);
            let came = !self.burst.is_empty() || slot.link.stats().rx_dropped != malformed;
            self.datapath.discard(id, &mut self.burst, DropReason::LinkDown);
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

    /// Checks for changes by the host to a link's interface.
    pub(crate) fn look_at(&mut self, now: Instant, id: PortId) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if slot.down.is_some() {
            return;
        }
        match slot.link.look() {
            Ok(false) => {}
            Ok(true) => {
                let link = slot.link.name();
                tracing::info!(link, "{link}: the interface has an MTU of {} now", slot.link.mtu());
                self.see_link(id);
                self.listeners.link_changed(id);
                self.tell_settings(id);
            }
            Err(err) => self.link_failed(now, id, &err),
        }
    }

    /// Checks every link, after an event of the host's interfaces.
    pub(crate) fn look_at_links(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut().filter(|slot| slot.admin_up) else { continue };
            match &mut slot.down {
                Some(down) => down.retry_at = down.retry_at.map(|_| now),
                None => self.look_at(now, PortId(at as u32)),
            }
        }
    }

    /// Changes the MTU of all given links, or of none and returns the reason.
    pub(crate) fn set_mtus(&mut self, mtus: &[(PortId, Option<u16>)]) -> Result<(), String> {
        let mut before = Vec::new();
        for &(id, mtu) in mtus {
            let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { continue };
            let old = slot.link.configured_mtu();
            match slot.link.set_mtu(mtu) {
                Ok(()) => before.push((id, old)),
                Err(refused) => {
                    for (id, mtu) in before {
                        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { continue };
                        let link = &mut slot.link;
                        if let Err(err) = link.set_mtu(mtu) {
                            tracing::error!("{}: cannot restore its former MTU: {err}", link.name());
                        }
                    }
                    return Err(refused.to_string());
                }
            }
        }
        Ok(())
    }

    /// Receives one burst from a link into `burst`, and updates the port if the carrier has changed. `None`: the link
    /// is not read now.
    pub(crate) fn receive(&mut self, now: Instant, id: PortId) -> Option<io::Result<()>> {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return None };
        if slot.down.is_some() || !slot.admin_up {
            return None;
        }
        let received = slot.recv(&self.mem, &mut self.burst);
        if received.is_ok() {
            self.see_carrier(now, id);
        }
        Some(received)
    }

    /// Passes the burst that was received from a link to the datapath.
    pub(crate) fn receive_burst(&mut self, now: Instant, id: PortId) {
        self.datapath.receive_burst(now, &self.mem, id, &mut self.burst);
        self.send_all(now);
    }

    /// Sends the queued packets of all ports, in the order of their numbers.
    pub(crate) fn send_all(&mut self, now: Instant) {
        self.answer_socket_questions(now);
        let mut first = PortId(0);
        while let Some(id) = self.datapath.next_to_send(first) {
            self.send(now, id);
            first = PortId(id.0 + 1);
        }
        self.send_to_host_side(now);
    }

    pub(crate) fn send(&mut self, now: Instant, id: PortId) {
        let Self { slots, datapath, mem, poller, .. } = self;
        let Some(Some(slot)) = slots.get_mut(id.0 as usize) else { return };
        if slot.full || slot.down.is_some() || !slot.admin_up {
            return;
        }
        loop {
            let Some(waiting) = datapath.take_tx(id).filter(|waiting| !waiting.is_empty()) else { return };
            let lost = slot.encrypt(waiting);
            let sent = slot.link.send(waiting);
            datapath.drop_unsent(lost, DropReason::PolicyNoState);
            match sent {
                // The queueing discipline may release more packets.
                Ok(Sent::All) => datapath.set_busy(now, mem, id, false),
                Ok(Sent::Busy) => {
                    datapath.set_busy(now, mem, id, true);
                    if slot.link.room_fds().is_empty() {
                        slot.retry_at = Some(now + RETRY_DEVICE);
                    } else {
                        slot.full = true;
                        poller.watch_room(id, &*slot.link, true);
                    }
                    return;
                }
                Ok(Sent::Refit) => datapath.refit(now, mem, id, slot.features()),
                Err(err) => return self.link_failed(now, id, &err),
            }
        }
    }

    /// Returns the buffers of freed packets to each link, and notes which links to read or write again. Every turn
    /// retries packets that a link did not accept although its queue is not full; noted links are retried at their
    /// time.
    pub(crate) fn settle(&mut self, now: Instant) {
        for slot in self.slots.iter_mut().flatten() {
            slot.retry_at = slot.retry_at.filter(|&at| at > now && slot.admin_up && slot.down.is_none());
            if slot.down.is_none() && slot.link.settle(&self.mem) && slot.admin_up {
                slot.retry_at.get_or_insert(now + RETRY_DEVICE);
            }
        }
        self.settle_host_side(now);
    }

    /// Takes a link out of service that failed, in all shards; other links continue.
    #[cold]
    pub(crate) fn link_failed(&mut self, now: Instant, id: PortId, err: &io::Error) {
        // It may be closed, or down, by an operation that came before.
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        let Some(slot) = slot.filter(|slot| slot.down.is_none()) else { return };
        Slot::log_failure(slot.link.name(), err, "is down");
        self.take_down(now, id, err.to_string(), false);
        self.tell_failure(id);
    }

    /// Takes a link out of service. In the first shard it is retried after a while. `is_told`: another shard has found the failure.
    fn take_down(&mut self, now: Instant, id: PortId, why: String, is_told: bool) {
        let retry_at = self.datapath.is_first_shard().then_some(now + RETRY_DOWN);
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        let is_gone = !is_told && slot.link.is_gone();
        slot.down = Some(Down { why, retry_at, is_told, is_gone, is_stale: false, reopening: None });
        slot.full = false;
        if slot.admin_up {
            self.poller.remove(&*slot.link);
        }
        self.follow_state(now, id);
        self.listeners.link_changed(id);
    }

    /// Tells the other shards of the failure of a link: one that passes no packets for one shard passes none for all.
    fn tell_failure(&self, id: PortId) {
        let Some(Some(slot)) = self.slots.get(id.0 as usize) else { return };
        let Some(down) = &slot.down else { return };
        let (life, why, is_gone) = (slot.life, down.why.clone(), down.is_gone);
        self.tell_others(move |node| node.follow_failure(id, life, why, is_gone));
    }

    /// Takes a link out of service that has failed in another shard, unless it has been brought up again since. A device that is gone for one
    /// shard's queue is released by all, and opened anew for all.
    fn follow_failure(&mut self, id: PortId, failed: Life, why: String, is_gone: bool) {
        let now = self.now();
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        let Some(slot) = slot.filter(|slot| slot.life == failed) else { return };
        if slot.down.is_none() {
            self.take_down(now, id, why, true);
        }
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if let Some(down) = &mut slot.down {
            down.is_gone |= is_gone;
        }
        if is_gone && !self.datapath.is_first_shard() && slot.link.is_gone() {
            slot.link.release();
        }
    }

    /// Brings a link up again that the first shard has brought up again.
    fn revive(&mut self, id: PortId, life: Life) {
        let now = self.now();
        let slot = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut);
        let Some(slot) = slot.filter(|slot| slot.life.number == life.number) else { return };
        slot.life = life;
        if slot.down.is_some() && slot.admin_up {
            self.retry_link(now, id);
        } else {
            slot.down = None;
        }
    }

    /// Names of the links that have failed, with reasons.
    pub(crate) fn failed_links(&self) -> Vec<(String, String)> {
        let failed = self.slots.iter().flatten().filter(|slot| slot.admin_up);
        failed.filter_map(|slot| Some((slot.link.name().to_owned(), slot.down.as_ref()?.why.clone()))).collect()
    }

    /// Retries links that failed some time ago, and reopens links whose device was deleted and created again.
    pub(crate) fn retry_links(&mut self, now: Instant) {
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut().filter(|slot| slot.admin_up) else { continue };
            let is_due = |down: &&mut Down| down.retry_at.is_some_and(|at| at <= now);
            let Some(down) = slot.down.as_mut().filter(is_due) else { continue };
            let id = PortId(at as u32);
            if down.reopening.is_some() {
                let Some(queues) = slot.take_reopened(now) else { continue };
                self.finish_reopening(id, queues);
            }
            self.retry_link(now, id);
        }
    }

    /// Replaces a failed link by one on its device that was made again, in all shards.
    pub(crate) fn finish_reopening(&mut self, id: PortId, mut queues: Vec<Box<dyn Link>>) {
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        if queues.is_empty() {
            return;
        }
        slot.replace(queues.remove(0));
        slot.life.revivals = slot.life.revivals.wrapping_add(1);
        self.give_queues(id, queues);
        self.tell_settings(id);
        self.see_link(id);
        self.set_promiscuous_links();
    }

    /// Replaces a link by one over a queue of this shard that the first one has opened, as the device was made again. It stays down until
    /// the first shard's is up.
    fn replace_link(&mut self, id: PortId, life: Life, link: Box<dyn Link>) {
        let now = self.now();
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        let Some(slot) = slot.filter(|slot| slot.life.number == life.number) else { return };
        if slot.down.is_none() {
            self.take_down(now, id, "its device was made again".to_owned(), true);
        }
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        slot.replace(link);
        slot.life = life;
        let is_shaped = slot.is_shaped_elsewhere;
        self.set_elsewhere(id, is_shaped);
        self.see_link(id);
        self.set_promiscuous_links();
    }

    /// Tries to read a link that failed.
    fn retry_link(&mut self, now: Instant, id: PortId) {
        let (is_first, count) = (self.datapath.is_first_shard(), self.shard_count());
        let Some(Some(slot)) = self.slots.get_mut(id.0 as usize) else { return };
        let mut received = slot.recv(&self.mem, &mut self.burst);
        let Some(down) = &mut slot.down else { return };
        if std::mem::take(&mut down.is_told) && received.is_err() {
            // The failure that another shard has found before.
            received = slot.recv(&self.mem, &mut self.burst);
        }
        let Some(down) = &mut slot.down else { return };
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("{}: the device is gone", slot.link.name()));
        let failed = received.err().or_else(|| down.is_gone.then(gone));
        if let Some(err) = failed {
            down.retry_at = is_first.then_some(now + RETRY_DOWN);
            if slot.link.guest().is_some() {
                // A guest's port fails with each connection, so this is the failure of another connection.
                Slot::log_failure(slot.link.name(), &err, "stays down");
            } else if !is_first {
                Slot::log_failure(slot.link.name(), &err, "is down");
            }
            let was_gone = down.is_gone;
            down.is_gone |= slot.link.is_gone();
            let is_gone = down.is_gone;
            // The first shard opens the device's queues for all.
            let reopens = is_gone && is_first && slot.reopen(now, count);
            if is_gone && !is_first {
                slot.link.release();
            }
            if !reopens {
                slot.set_why_down(err.to_string());
            }
            self.datapath.discard(id, &mut self.burst, DropReason::LinkDown);
            // The others are down. The first, which is up, tries again; and all release a device that is gone.
            if !is_first || is_gone && !was_gone {
                self.tell_failure(id);
            }
            return;
        }
        let is_stale = down.is_stale;
        slot.down = None;
        if is_first {
            slot.life.revivals = slot.life.revivals.wrapping_add(1);
            let life = slot.life;
            let link = slot.link.name();
            if slot.link.has_carrier() {
                tracing::info!(message_id = logging::id::LINK_UP, link, "{link}: the link is up again");
            } else {
                tracing::info!(link, "{link}: the link is tried again, and has no carrier");
            }
            self.poller.add(id, &*slot.link);
            self.run_on_others(move |node| node.revive(id, life));
        } else {
            self.poller.add(id, &*slot.link);
        }
        self.follow_state(now, id);
        self.listeners.link_changed(id);
        if is_stale {
            self.datapath.discard(id, &mut self.burst, DropReason::LinkDown);
            self.discard(now, id);
        }
        self.look_at(now, id);
        let failed_again = self.slots[id.0 as usize].as_ref().is_some_and(|slot| slot.down.is_some());
        if failed_again {
            self.datapath.discard(id, &mut self.burst, DropReason::LinkDown);
        } else {
            self.datapath.handle_rx(now, &self.mem, id, &mut self.burst);
        }
    }
}

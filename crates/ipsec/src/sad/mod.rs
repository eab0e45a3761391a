//! The database of security associations (RFC 4301 §4.4.2).
//!
//! SAs are looked up by a received packet ([`Sad::by_spi`]) and by a policy's template ([`Sad::for_template`]), each
//! with one hash and, among SAs of the same key, the newest first. The cost does not grow with their number: one line
//! of the hash table, and the first line of the SA, which has the whole key.

mod aevents;
mod aging;
mod larval;
pub(crate) mod sa_changes;
pub(crate) mod search;
mod slots;
pub(crate) mod spi;
mod sum_table;
mod sums;

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use base::{PortId, SaId, ShardId, ShardPlace};
use hashbrown::HashMap;
use wire::Spi;

use crate::device::{Devices, NewState};
use crate::events::Events;
use crate::hash_index::HashIndex;
use crate::sa::{Sa, State};
use crate::shared::SharedChange;
use crate::timers::Timers;

pub(crate) use larval::Larvae;
pub use larval::{Larval, MAX_LARVAE};
use sa_changes::{SaChange, SaChangeKind, SaChanges};
use slots::{Slots, slot_of};
use sum_table::SaSums;
pub use sum_table::{MAX_SUMS, SaSum, SaSumKey};
use xfrm::{AeventLimits, ConfigError, Mark, Offload, OffloadMode, SaConfig, SaDir};

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// The SAs of a node.
#[derive(Debug, Default)]
pub struct Sad {
    slots: Slots,
    /// Slots by destination and SPI; SAs of different marks may share these.
    by_spi: HashIndex,
    /// The newest slot of each destination and `reqid`; the others are linked from it.
    by_template: HashIndex,
    hasher: foldhash::fast::RandomState,
    /// Number of SAs with each SPI.
    spis: Map<Spi, u32>,
    /// Number of SAs that expect ESP in UDP at each address and port.
    encap_ports: Map<(IpAddr, u16), usize>,
    timers: Timers<SaId>,
    pub(crate) larvae: Larvae,
    pub(crate) events: Events,
    pub(crate) sa_changes: SaChanges,
    pub(crate) devices: Devices,
    /// Default thresholds of reports of numbers.
    pub(crate) aevent_limits: AeventLimits,
    /// SAs of this shard whose lifetime began in another process, until a key manager takes their events.
    resumed: Vec<SaId>,
    /// Number of changes that may make another SA the best: earlier cached answers are invalid.
    pub(crate) changes: u64,
    /// Number of SAs that were ever added.
    born: u64,
    /// SAs in the order of their addition.
    by_birth: BTreeMap<u64, SaId>,
    /// Number of SAs that are for the packets of one CPU.
    of_cpus: usize,
    /// Number of SAs that have reached a soft limit.
    dying: usize,
    /// Numbers of SAs that receive, that send, and without a direction.
    by_dir: [usize; 3],
    /// Sums of the SAs of this shard, with those that have ended.
    sums: SaSums,
    /// The shard of the node that has this database.
    pub(crate) place: ShardPlace,
    /// Changes for all shards that this one has caused.
    pub(crate) shared: Vec<SharedChange>,
    /// Owner of the last SPI that was allocated.
    last_steered: ShardId,
}

/// Numbers of SAs by state and direction.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SaCounts {
    /// SAs that have reached a soft limit.
    pub dying: usize,
    /// Larval SAs, which are not among the others.
    pub larval: usize,
    /// SAs that receive, that send, and without a direction.
    pub by_dir: [usize; 3],
}

/// Place of a direction in [`SaCounts::by_dir`].
const fn dir_place(dir: Option<SaDir>) -> usize {
    match dir {
        Some(SaDir::In) => 0,
        Some(SaDir::Out) => 1,
        None => 2,
    }
}

/// Number of SAs of a destination and `reqid` among which the predecessor of a new one is searched for.
const LOOK_BACK: usize = 8;

/// Key of the look-up by template: destination and `reqid`.
type TemplateKey = (IpAddr, u32);

impl Sa {
    const fn template_key(&self) -> TemplateKey {
        (self.dst, self.reqid)
    }
}

impl Sad {
    /// The database of one of a node's shards.
    pub(crate) fn of_shard(place: ShardPlace) -> Self {
        Self { place, ..Self::default() }
    }

    /// Adds an SA, which replaces the larval one that it completes. `mask` is a random number of its own, from which
    /// its initialisation vectors are made. Its lifetime begins with the next timer call.
    ///
    /// # Errors
    /// Fault of `config`; [`ConfigError::Exists`] when its destination has that SPI already for such marks or under the
    /// same mark, or a larval one is to have it, which an [update](Self::update) completes (Linux `xfrm_state_add`).
    pub fn add(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        let dst = config.dst;
        let spi = config.spi;
        let mark = config.mark.sought();
        let is_there = self.by_spi(dst, spi, mark).or_else(|| self.named(dst, spi, config.mark)).is_some();
        if is_there || self.larval(dst, spi, mark).is_some() {
            config.check()?;
            return Err(ConfigError::Exists);
        }
        let id = self.insert(config, mask, false)?;
        if let Some(seq) = self.larvae.answered_by(config) {
            self.larvae.remove(seq);
        }
        Ok(id)
    }

    /// Completes the larval SA with that destination and SPI, or changes lifetime, output mark, interface and UDP ports
    /// of a valid one, and nothing else (Linux `xfrm_state_update`).
    ///
    /// # Errors
    /// The first invalid value of `config`; [`ConfigError::NotFound`], [`ConfigError::DirReversed`],
    /// [`ConfigError::EncapChanged`], [`ConfigError::NotValid`]. Nothing has changed then.
    pub fn update(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        config.check()?;
        let live = self.by_spi(config.dst, config.spi, config.mark.sought());
        // A policy for other marks may have requested the SPI of an existing SA: that SA is updated all the same.
        let larval = self.larvae.by_spi(config.dst, config.spi, config.mark.sought()).filter(|_| live.is_none());
        if let Some(larval) = larval {
            if config.dir.is_some() && config.dir != larval.dir {
                return Err(ConfigError::DirReversed);
            }
            let (seq, is_allocated) = (larval.seq, larval.is_allocated);
            let id = self.insert(config, mask, is_allocated)?;
            self.larvae.remove(seq);
            return Ok(id);
        }
        let id = live.ok_or(ConfigError::NotFound)?;
        let sa = self.get_mut(id).ok_or(ConfigError::NotFound)?;
        let old_encap = sa.encap;
        sa.adjust(config)?;
        self.move_port(config.dst, old_encap.map(|encap| encap.dport), config.encap.map(|encap| encap.dport));
        self.renew(id, config.lifetime);
        Ok(id)
    }

    /// Replaces the configuration of the SA with that destination, SPI and mark, except its key: sequence numbers and
    /// replay window continue, so that no vector repeats and no packet is accepted twice. A changed configuration file
    /// needs it; Linux has no such operation.
    ///
    /// # Errors
    /// The first invalid value of `config`, [`ConfigError::NotFound`] when there is no such SA,
    /// [`ConfigError::EsnChanged`], [`ConfigError::DirReversed`], [`ConfigError::OffloadChanged`]. The SA stays as it
    /// was.
    pub fn replace(&mut self, config: &SaConfig) -> Result<SaId, ConfigError> {
        config.check()?;
        let id = self.named(config.dst, config.spi, config.mark).ok_or(ConfigError::NotFound)?;
        let sa = self.get_mut(id).ok_or(ConfigError::NotFound)?;
        let old = sa.template_key();
        let old_encap = sa.encap;
        let old_lifetime = sa.age.lifetime;
        if [sa.offload, config.offload].iter().flatten().any(|offload| offload.mode == OffloadMode::Packet) {
            return Err(ConfigError::OffloadChanged);
        }
        let old_dir = sa.dir;
        sa.check_replacement(config)?;
        self.leave_sum(id);
        let sa = self.get_mut(id).ok_or(ConfigError::NotFound)?;
        sa.replace(config);
        let new = sa.template_key();
        self.enter_sum(id);
        self.by_dir[dir_place(old_dir)] -= 1;
        self.by_dir[dir_place(config.dir)] += 1;
        self.offload_again(id, config);
        self.move_port(config.dst, old_encap.map(|encap| encap.dport), config.encap.map(|encap| encap.dport));
        if old != new {
            self.unlink(slot_of(id), old);
            self.link(slot_of(id), new);
        }
        if old_lifetime != config.lifetime {
            self.renew(id, config.lifetime);
        }
        self.changes += 1;
        Ok(id)
    }

    /// Removes the SA that packets marked `mark` find; `None` when there is none.
    pub fn remove(&mut self, dst: IpAddr, spi: Spi, mark: u32) -> Option<Sa> {
        self.take(self.by_spi(dst, spi, mark)?)
    }

    /// The shard that seals and opens the packets of an SA to be added: that of its SPI if it receives, as the links' queues are
    /// chosen by it; that of its CPU; else that of the SA in the other direction, so that a flow stays in one shard both ways.
    /// `is_allocated`: this node has chosen the SPI, so it receives by the SA.
    fn owner_of(&self, config: &SaConfig, is_allocated: bool) -> ShardId {
        let count = self.place.count;
        let by_spi = count.owner_of_spi(config.spi.0);
        let receives = config.dir.map_or(is_allocated, |dir| dir == SaDir::In);
        if receives || !self.place.has_others() {
            return by_spi;
        }
        if let Some(owner) = config.cpu.and_then(|cpu| count.all().nth(cpu as usize)) {
            return owner;
        }
        let is_back = |sa: &&Sa| sa.src == config.dst && sa.dir != Some(SaDir::Out);
        self.newest_of(config.src, config.reqid, is_back).map_or(by_spi, Sa::owner)
    }

    /// The newest SA of a destination and `reqid` that `is_it`; none without a `reqid`.
    fn newest_of(&self, dst: IpAddr, reqid: u32, is_it: impl Fn(&&Sa) -> bool) -> Option<&Sa> {
        let newest = self.newest((dst, reqid)).filter(|_| reqid != 0);
        self.slots.list(newest).take(LOOK_BACK).find(is_it)
    }

    /// Tells all shards of a change that this one causes, if there are several.
    pub(crate) fn tell(&mut self, change: SharedChange) {
        if self.place.has_others() {
            self.shared.push(change);
        }
    }

    /// Tells whether this shard seals and opens the packets of an SA.
    #[inline]
    pub fn owns(&self, sa: &Sa) -> bool {
        sa.owner() == self.place.id
    }

    fn insert(&mut self, config: &SaConfig, mask: u64, is_allocated: bool) -> Result<SaId, ConfigError> {
        let id = self.slots.next_id().ok_or(ConfigError::TooMany)?;
        let owner = self.owner_of(config, is_allocated);
        let mut sa = Sa::new(id, config, mask, (owner, owner == self.place.id))?;
        sa.offload = self.devices.add_state(&NewState { id, config, mask })?;
        self.born += 1;
        sa.age.born = self.born;
        self.by_birth.insert(self.born, id);
        sa.set_aevent_limits(config.aevents.or(self.aevent_limits));
        sa.note_numbers_reported();
        let key = sa.template_key();
        let SaConfig { src, dst, spi, reqid, .. } = *config;
        let old = self.newest_of(dst, reqid, |sa| sa.src == src).map(|sa| sa.spi);
        let kind = old.map_or(SaChangeKind::Added, |old| SaChangeKind::Rekeyed { old });
        self.sa_changes.push(SaChange { kind, spi, src, dst, reqid });
        self.slots.insert(sa);
        self.by_spi.insert(self.name(config.dst, config.spi.0), slot_of(id));
        *self.spis.entry(config.spi).or_default() += 1;
        self.of_cpus += usize::from(config.cpu.is_some());
        self.by_dir[dir_place(config.dir)] += 1;
        self.move_port(config.dst, None, config.encap.map(|encap| encap.dport));
        self.link(slot_of(id), key);
        self.enter_sum(id);
        self.start(id);
        self.changes += 1;
        Ok(id)
    }

    /// Removes an SA from all indexes.
    pub(crate) fn take(&mut self, id: SaId) -> Option<Sa> {
        self.leave_sum(id);
        let sa = self.get(id)?;
        let (name, key) = (self.name(sa.dst, sa.spi.0), sa.template_key());
        self.by_spi.remove(name, slot_of(id));
        self.unlink(slot_of(id), key);
        let mut sa = self.slots.take(id)?;
        self.by_birth.remove(&sa.age.born);
        if let Some(offload) = sa.offload {
            self.devices.delete_state(offload, id);
        }
        if let Some(users) = self.spis.get_mut(&sa.spi) {
            *users -= 1;
            if *users == 0 {
                self.spis.remove(&sa.spi);
            }
        }
        self.of_cpus -= usize::from(sa.cpu().is_some());
        self.by_dir[dir_place(sa.dir)] -= 1;
        self.dying -= usize::from(sa.dying);
        self.move_port(sa.dst, sa.encap.map(|encap| encap.dport), None);
        sa.age.unschedule(id, &mut self.timers);
        sa.state = State::Dead;
        self.changes += 1;
        let Sa { spi, src, dst, reqid, .. } = sa;
        self.sa_changes.push(SaChange { kind: SaChangeKind::Removed, spi, src, dst, reqid });
        Some(sa)
    }

    /// Offers a changed SA of crypto mode to its device again. If the device refuses, software does the work.
    fn offload_again(&mut self, id: SaId, config: &SaConfig) {
        let Some(old) = self.get(id).map(|sa| sa.offload) else { return };
        if let Some(old) = old {
            self.devices.delete_state(old, id);
        }
        // In crypto mode a device makes no vectors, so any mask is right.
        let offload = self.devices.add_state(&NewState { id, config, mask: 0 }).unwrap_or(None);
        if let Some(sa) = self.get_mut(id) {
            sa.offload = offload;
        }
    }

    /// Tells the device of an SA its highest received number.
    pub(crate) fn advance_esn(&mut self, sa: SaId) {
        let Some(it) = self.get_mut(sa) else { return };
        let (Some(Offload { dev, .. }), top) = (it.offload, it.replay.top()) else { return };
        if it.flags.esn && it.age.esn_reported >> 31 != top >> 31 {
            it.age.esn_reported = top;
            if let Some(device) = self.devices.get_mut(dev) {
                device.advance_esn(sa, top);
            }
        }
    }

    /// Removes the SAs on a link's device.
    pub(crate) fn remove_offloaded(&mut self, link: PortId) {
        let on_it = |sa: &&Sa| sa.offload.is_some_and(|offload| offload.dev == link);
        let gone: Vec<SaId> = self.iter().filter(on_it).map(Sa::id).collect();
        for id in gone {
            drop(self.take(id));
        }
    }

    /// Hashes of an SA in [`Sad::by_spi`] (destination and SPI) and in [`Sad::by_template`] (destination and `reqid`).
    #[inline]
    fn name(&self, dst: IpAddr, number: u32) -> u32 {
        let hash = match dst {
            IpAddr::V4(dst) => self.hasher.hash_one(u64::from(dst.to_bits()) << 32 | u64::from(number)),
            IpAddr::V6(dst) => self.hasher.hash_one((dst.to_bits(), number)),
        };
        (hash >> 32) as u32
    }

    /// The newest slot of a destination and `reqid`.
    #[inline]
    fn newest(&self, key: TemplateKey) -> Option<u32> {
        let has_key = |&slot: &u32| self.slots.at(slot).is_some_and(|sa| sa.template_key() == key);
        self.by_template.with(self.name(key.0, key.1)).find(has_key)
    }

    /// Adds a slot as the newest of its list.
    fn link(&mut self, slot: u32, key: TemplateKey) {
        let name = self.name(key.0, key.1);
        let others = |&other: &u32| other != slot && self.slots.at(other).is_some_and(|sa| sa.template_key() == key);
        let first = self.by_template.with(name).find(others);
        match first {
            Some(first) => self.by_template.replace(name, first, slot),
            None => self.by_template.insert(name, slot),
        }
        self.slots.link(slot, first);
    }

    fn unlink(&mut self, slot: u32, key: TemplateKey) {
        let name = self.name(key.0, key.1);
        match self.slots.unlink(slot) {
            Some(Some(first)) => self.by_template.replace(name, slot, first),
            Some(None) => self.by_template.remove(name, slot),
            None => {}
        }
    }

    fn move_port(&mut self, dst: IpAddr, from: Option<u16>, to: Option<u16>) {
        if let Some(port) = to {
            *self.encap_ports.entry((dst, port)).or_default() += 1;
        }
        let Some(port) = from else { return };
        if let Some(users) = self.encap_ports.get_mut(&(dst, port)) {
            *users -= 1;
            if *users == 0 {
                self.encap_ports.remove(&(dst, port));
            }
        }
    }

    /// The SA of that number, if it exists.
    #[inline]
    pub fn get(&self, id: SaId) -> Option<&Sa> {
        self.slots.get(id)
    }

    /// The SA of that number, for use.
    #[inline]
    pub fn get_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.slots.get_mut(id)
    }

    /// An SA, with the timers and events that its aging changes.
    fn with_clock(&mut self, id: SaId) -> Option<(&mut Sa, &mut Timers<SaId>, &mut Events, &mut u64)> {
        let Self { slots, timers, events, changes, .. } = self;
        Some((slots.get_mut(id)?, timers, events, changes))
    }

    /// The SA of a received packet with `mark`, `dst` and `spi`: the newest for such marks (Linux
    /// `__xfrm_state_lookup`).
    #[inline]
    pub fn by_spi(&self, dst: IpAddr, spi: Spi, mark: u32) -> Option<SaId> {
        let sas = self.by_spi.with(self.name(dst, spi.0)).filter_map(|slot| self.slots.at(slot));
        let mut mine = sas.filter(|sa| (sa.spi, sa.dst) == (spi, dst) && sa.mark.matches(mark));
        let first = mine.next()?;
        Some(mine.fold(first, |newest, sa| if sa.age.born > newest.age.born { sa } else { newest }).id())
    }

    /// Tells whether an SA expects ESP in UDP that is sent to this port of `dst`.
    #[inline]
    pub fn is_encap_port(&self, dst: IpAddr, port: u16) -> bool {
        self.encap_ports.contains_key(&(dst, port))
    }

    /// Tells whether this node opens ESP with `spi` to `dst`, which is another node: as the "bump in the wire" of RFC
    /// 4301 §3.3, in front of a host without IPsec. The SA must be [`SaDir::In`]: otherwise a packet that this node
    /// itself sent, and that came back, would be opened.
    #[inline]
    pub fn opens_for_others(&self, dst: IpAddr, spi: Spi, mark: u32) -> bool {
        self.by_spi(dst, spi, mark).and_then(|id| self.get(id)).is_some_and(|sa| sa.dir == Some(SaDir::In))
    }

    /// Tells whether there are neither SAs nor larval ones.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.larvae.len() == 0
    }

    /// Number of SAs, without larval ones.
    pub fn len(&self) -> usize {
        self.by_spi.len()
    }

    /// Numbers of SAs by state and direction.
    pub fn counts(&self) -> SaCounts {
        SaCounts { dying: self.dying, larval: self.larvae.len(), by_dir: self.by_dir }
    }

    /// Every SA, in the order of its slot.
    pub fn iter(&self) -> impl Iterator<Item = &Sa> {
        self.slots.iter()
    }

    /// SAs among the first `below - 1` that were ever added, the oldest first, each with its number in that order.
    pub fn by_birth(&self, below: u64) -> impl DoubleEndedIterator<Item = (u64, &Sa)> {
        self.by_birth.range(..below).filter_map(|(&born, &id)| Some((born, self.get(id)?)))
    }

    /// SAs but the first `from` that were ever added, the oldest first, each with its number in that order.
    pub fn born_from(&self, from: u64) -> impl Iterator<Item = (u64, &Sa)> {
        self.by_birth.range(from..).filter_map(|(&born, &id)| Some((born, self.get(id)?)))
    }

    /// The SA with that destination, SPI and mark, whether or not there are packets that find it.
    pub fn named(&self, dst: IpAddr, spi: Spi, mark: Mark) -> Option<SaId> {
        let mut sas = self.by_spi.with(self.name(dst, spi.0)).filter_map(|slot| self.slots.at(slot));
        sas.find(|sa| (sa.spi, sa.dst, sa.mark) == (spi, dst, mark)).map(Sa::id)
    }

    /// The larval SA with that destination and SPI that packets marked `mark` find.
    pub fn larval(&self, dst: IpAddr, spi: Spi, mark: u32) -> Option<&Larval> {
        self.larvae.by_spi(dst, spi, mark)
    }

    /// The larval SAs, in no order.
    pub fn larvae(&self) -> impl Iterator<Item = &Larval> {
        self.larvae.iter()
    }
}

//! SAs and policies as `NETLINK_XFRM` shows and changes them.
//!
//! The `ipsec` crate keeps what packets need. What was said besides, and has to be shown again as it was said, is kept
//! here: names and keys of algorithms, structures with all their fields, the order of coming. The file's SAs and policies
//! are taken in when they are first asked for. Whatever ends by itself is left out of what is shown, and forgotten later.

#[cfg(any(test, feature = "fuzzing"))]
mod alone;
mod convert;
mod database;
mod events;
mod from_file;
mod names;
mod shown;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base::{Instant, SaId};
use control::netlink::Error;
use control::netlink::error::errno;
use control::netlink::xfrm::layout::{Addr, LifetimeCur};
use control::netlink::xfrm::nums::proto;
use control::netlink::xfrm::{Counts, Event, NewSa, NewSpi, Policy, PolicyQuery, Replay, Sa, SaQuery};
use ipsec::{Ipsec, Larval, PolicyKey, SpiRequest};
use wire::Spi;

use super::news::Bell;
use super::worker::Worker;
use super::xfrm::OfFile;
#[cfg(any(test, feature = "fuzzing"))]
pub use alone::Alone;
pub(crate) use database::WorkerSadb;
pub(crate) use events::told;
pub(crate) use names::Shared as SharedNames;
use names::{Change, Promise, SaName};
pub(crate) use shown::{added_sas, policy_config};
use view::larval_view;

/// The policies of a file.
pub(crate) fn policies_of(config: &control::Config) -> impl Iterator<Item = Policy> {
    config.policies.iter().map(from_file::policy)
}

/// What is kept beside the `ipsec` crate's databases.
#[derive(Debug, Default)]
pub(crate) struct Sadb {
    /// By their places, the newest last.
    sas: BTreeMap<u64, SaRecord>,
    names: names::Shared,
    policies: BTreeMap<u64, PolicyRecord>,
    keys: HashMap<PolicyKey, u64>,
    last_policy_place: u64,
    /// Whether SPIs may be promised to key managers.
    larval: bool,
    /// Which of them are the file's.
    pub(crate) of_file: OfFile,
    /// What has happened and was not told yet.
    events: Vec<Event>,
    /// Who hears it.
    bell: Option<Arc<Bell>>,
    /// Whether one of them makes SAs that are missing.
    asked: bool,
    /// How many were lost before they came here, as far as that was told.
    lost: u64,
}

#[derive(Debug)]
struct SaRecord {
    id: SaId,
    said: NewSa,
    /// When it was added, in seconds since the Unix epoch.
    added: u64,
}

#[derive(Debug)]
struct PolicyRecord {
    key: PolicyKey,
    said: Policy,
    added: u64,
}

fn not_there() -> Error {
    Error::new(errno::ESRCH)
}

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

/// An instant, in seconds since the Unix epoch; 0 for never.
fn seconds(worker: &Worker, at: Option<Instant>) -> u64 {
    at.map_or(0, |at| wall_clock().saturating_sub(worker.now().since(at).as_secs()))
}

impl Sadb {
    /// One of those names.
    pub(crate) fn new(names: SharedNames) -> Self {
        Self { names, ..Self::default() }
    }

    /// Notes that the file's SAs and policies may be others now.
    pub(crate) fn file_changed(worker: &mut Worker) {
        worker.sadb.names.lock().stale = true;
        Self::keep_what_is_told_of(worker);
    }

    /// What ends by itself is told with what was said of it: if somebody hears that, it has to be known before.
    fn keep_what_is_told_of(worker: &mut Worker) {
        if worker.sadb.is_heard() {
            Self::follow(worker);
        }
    }

    /// What its SAs are called.
    #[cfg(any(test, feature = "fuzzing"))]
    fn names(&self) -> &SharedNames {
        &self.names
    }

    /// Where the SA of that name is kept.
    fn place_of(&self, name: &SaName) -> Option<u64> {
        self.names.lock().get(name)
    }

    fn next_policy_place(&mut self) -> u64 {
        self.last_policy_place += 1;
        self.last_policy_place
    }

    /// Has no SA promised until the file's SAs, which are about to change, are taken in; sees to those that were.
    pub(crate) fn promise_nothing(worker: &mut Worker) {
        worker.sadb.names.lock().stale = true;
        Self::learn(worker);
    }

    /// Whether netlink's thread has promised something that is to be seen to.
    pub(crate) fn has_changes(&self) -> bool {
        self.names.has_changes()
    }

    /// Sees to what netlink's thread has promised.
    pub(crate) fn learn(worker: &mut Worker) {
        for change in worker.sadb.names.take_changes() {
            match change {
                Change::Add(place, promise) => Self::keep_promise(worker, place, *promise),
                Change::Remove(name) => {
                    let given_up = worker.sadb.names.lock().remove_given_up(&name);
                    if let Some(record) = given_up.and_then(|place| worker.sadb.sas.remove(&place)) {
                        drop(worker.path.ipsec.remove_sa_of(record.id));
                    }
                }
            }
        }
    }

    fn keep_promise(worker: &mut Worker, place: u64, promise: Promise) {
        let Promise { said, config, mask, added } = promise;
        let name = (config.dst, config.spi, config.mark);
        let kept = worker.path.ipsec.add_sa(&config, mask);
        worker.sadb.names.lock().kept(&name, kept.is_ok());
        match kept {
            Ok(id) => Self::install(worker, place, SaRecord { id, said: *said, added }),
            Err(err) => tracing::error!("SA {:#x} to {} was promised, but: {err}", config.spi.0, config.dst),
        }
    }

    /// Keeps what was said of a new SA, which goes on with the numbers and counts that were said.
    fn install(worker: &mut Worker, place: u64, record: SaRecord) {
        if let Some(sa) = worker.path.ipsec.sa_mut(record.id) {
            resume(sa, record.said.replay.as_ref(), record.said.used.as_ref());
        }
        worker.sadb.sas.insert(place, record);
    }

    /// Takes in what the file has said since it was last looked at, and forgets what is gone, of which nothing must be left
    /// to tell.
    fn follow(worker: &mut Worker) {
        let Worker { sadb, path, config, .. } = worker;
        let ipsec = &path.ipsec;
        if sadb.sas.len() > 2 * ipsec.sad().len() + 64 || sadb.policies.len() > 2 * ipsec.spd().len() + 64 {
            sadb.tidy(ipsec);
        }
        if !sadb.names.lock().stale {
            return;
        }
        sadb.tidy(ipsec);
        let changed = sadb.of_file.take_changed();
        for of_file in &config.sas {
            let said = from_file::sa(of_file);
            let name = (of_file.dst, Spi(of_file.spi), convert::mark(said.mark));
            let Some(id) = live(ipsec, &name).filter(|id| changed.contains(id)) else { continue };
            let place = sadb.place_of(&name).unwrap_or_else(|| sadb.names.lock().next_place());
            let added = sadb.sas.get(&place).map_or_else(wall_clock, |record| record.added);
            sadb.insert_sa(place, name, SaRecord { id, said, added });
        }
        for of_file in &config.policies {
            let key = super::xfrm::policy(of_file).key();
            if sadb.of_file.has_policy(&key) && ipsec.spd().find(&key).is_some() {
                let place = sadb.keys.get(&key).copied().unwrap_or_else(|| sadb.next_policy_place());
                let added = sadb.policies.get(&place).map_or_else(wall_clock, |record| record.added);
                sadb.insert_policy(place, PolicyRecord { key, said: from_file::policy(of_file), added });
            }
        }
        sadb.names.lock().stale = false;
    }

    /// Forgets the SAs that have ended by themselves, and their keys, whether or not anybody was told.
    pub(crate) fn forget_ended(&mut self, ipsec: &mut Ipsec) {
        if self.larval && ipsec.sad().larvae().next().is_none() {
            self.larval = false;
            self.names.lock().larval = false;
        }
        let ended = ipsec.take_ended();
        if ended.more {
            return self.tidy(ipsec);
        }
        for name in &ended.names {
            if live(ipsec, name).is_none() {
                self.forget(name);
            }
        }
    }

    /// Forgets what is gone, and its keys.
    pub(crate) fn tidy(&mut self, ipsec: &Ipsec) {
        self.sas.retain(|_, record| ipsec.sa(record.id).is_some());
        let sas = &self.sas;
        self.names.lock().retain(|place| sas.contains_key(&place));
        self.policies.retain(|_, record| ipsec.spd().find(&record.key).is_some());
        let policies = &self.policies;
        self.keys.retain(|_, place| policies.contains_key(place));
    }

    fn insert_sa(&mut self, place: u64, name: SaName, record: SaRecord) {
        let old = self.names.lock().insert(name, place).filter(|&old| old != place);
        if let Some(old) = old {
            self.sas.remove(&old);
        }
        self.sas.insert(place, record);
    }

    fn insert_policy(&mut self, place: u64, record: PolicyRecord) {
        if let Some(old) = self.keys.insert(record.key, place).filter(|&old| old != place) {
            self.policies.remove(&old);
        }
        self.policies.insert(place, record);
    }

    /// Adds an SA, or completes or changes one.
    fn add_sa(worker: &mut Worker, said: NewSa, update: bool, mask: u64) -> Result<(), Error> {
        Self::follow(worker);
        let config = convert::sa(&said)?;
        let name = (config.dst, config.spi, config.mark);
        let ipsec = &mut worker.path.ipsec;
        let before = live(ipsec, &name);
        // One with a mark that no packet has is not found by it.
        let place = worker.sadb.place_of(&name);
        let known = place.and_then(|place| worker.sadb.sas.get(&place)).and_then(|record| ipsec.sa(record.id));
        if !update && before.is_none() && known.is_some() {
            return Err(Error::new(errno::EEXIST));
        }
        let name = before.and_then(|id| ipsec.sa(id)).map_or(name, |sa| (sa.dst(), sa.spi(), sa.mark()));
        let added = if update { ipsec.update_sa(&config, mask) } else { ipsec.add_sa(&config, mask) };
        let id = added.map_err(|err| convert::refusal(&err))?;
        let sadb = &mut worker.sadb;
        if before == Some(id) {
            if let Some(record) = sadb.place_of(&name).and_then(|place| sadb.sas.get_mut(&place)) {
                record.adjust(said);
            }
            return Ok(());
        }
        let place = sadb.names.lock().next_place();
        let old = sadb.names.lock().insert(name, place);
        old.and_then(|old| sadb.sas.remove(&old));
        Self::install(worker, place, SaRecord { id, said, added: wall_clock() });
        Ok(())
    }

    /// The SA that a query means, and the place where what was said of it is.
    fn find(worker: &Worker, query: &SaQuery) -> Result<SaId, Error> {
        let spi = query.spi.map_err(|_: Addr| not_there())?;
        let dst = convert::addr(query.daddr, query.family)?;
        if query.proto != proto::ESP {
            return Err(not_there());
        }
        let mark = query.mark.value & query.mark.mask;
        worker.path.ipsec.sad().by_spi(dst, Spi(spi), mark).ok_or_else(not_there)
    }

    /// The SA that a query means, which is no larval one.
    fn find_real(worker: &mut Worker, query: &SaQuery) -> Result<SaId, Error> {
        Self::follow(worker);
        match Self::find(worker, query) {
            Err(_) if Self::find_larval(worker, query).is_ok() => {
                Err(Error::text(errno::EINVAL, "SA must be in VALID state"))
            }
            found => found,
        }
    }

    fn find_larval<'a>(worker: &'a Worker, query: &SaQuery) -> Result<&'a Larval, Error> {
        let spi = query.spi.map_err(|_: Addr| not_there())?;
        let dst = convert::addr(query.daddr, query.family)?;
        let mark = query.mark.value & query.mark.mask;
        let larval = worker.path.ipsec.sad().larval(dst, Spi(spi), mark);
        larval.filter(|_| query.proto == proto::ESP).ok_or_else(not_there)
    }

    fn find_sa(worker: &mut Worker, query: &SaQuery) -> Result<Sa, Error> {
        Self::follow(worker);
        match Self::find(worker, query) {
            Ok(id) => Self::view(worker, id).ok_or_else(not_there),
            Err(_) => Self::find_larval(worker, query).map(|it| larval_view(worker, it)),
        }
    }

    /// An SA as it is now.
    fn view(worker: &Worker, id: SaId) -> Option<Sa> {
        let sa = worker.path.ipsec.sa(id)?;
        let place = worker.sadb.place_of(&(sa.dst(), sa.spi(), sa.mark()))?;
        let record = worker.sadb.sas.get(&place).filter(|record| record.id == id)?;
        Some(record.view(worker, sa))
    }

    fn remove_sa(worker: &mut Worker, query: &SaQuery) -> Result<Sa, Error> {
        let was = Self::find_sa(worker, query)?;
        if let Ok(id) = Self::find(worker, query) {
            if let Some(sa) = worker.path.ipsec.remove_sa_of(id) {
                worker.sadb.forget(&(sa.dst(), sa.spi(), sa.mark()));
            }
        } else {
            let seq = Self::find_larval(worker, query)?.seq;
            worker.path.ipsec.forget_larval(seq);
        }
        Ok(was)
    }

    fn forget(&mut self, name: &SaName) {
        let place = self.names.lock().remove(name);
        if let Some(place) = place {
            self.sas.remove(&place);
        }
    }

    fn expire_sa(worker: &mut Worker, query: &SaQuery, hard: bool) -> Result<(), Error> {
        // What is yet to come has its own time (Linux `xfrm_add_sa_expire`).
        Self::find_real(worker, query)?;
        let sa = if hard { Self::remove_sa(worker, query)? } else { Self::find_sa(worker, query)? };
        let Sa { info, mark, if_id, dir, .. } = sa;
        worker.sadb.events.push(Event::Expire { info, mark, if_id, dir, hard });
        Ok(())
    }

    fn set_counts(worker: &mut Worker, query: &SaQuery, counts: &Counts) -> Result<(), Error> {
        let id = Self::find_real(worker, query)?;
        let sa = worker.path.ipsec.sa_mut(id).ok_or_else(not_there)?;
        let name = (sa.dst(), sa.spi(), sa.mark());
        let place = worker.sadb.place_of(&name);
        let record = place.and_then(|place| worker.sadb.sas.get_mut(&place)).ok_or_else(not_there)?;
        // Those of the other form are there, and count for nothing (Linux `xfrm_update_ae_params`).
        let replay = match &record.said.replay {
            Some(Replay::Esn(made)) => {
                // Linux `xfrm_replay_verify_len`.
                if let Some(Replay::Esn(it)) = &counts.esn
                    && (it.bmp.len() != made.bmp.len() || it.replay_window as usize > 32 * made.bmp.len())
                {
                    return Err(Error::new(errno::EINVAL));
                }
                &counts.esn
            }
            _ => &counts.legacy,
        };
        if let Some(replay) = replay {
            let (oseq, top) = convert::begins_at(Some(replay), sa.flags());
            if oseq < sa.oseq() {
                return Err(Error::unsupported(
                    "fatpath sends no sequence number twice: initialisation vectors would repeat",
                ));
            }
            let size = match replay {
                Replay::Esn(it) => it.replay_window,
                Replay::Legacy(_) => sa.replay().size(),
            };
            sa.skip_to(oseq);
            sa.set_received(size, top, &convert::seen(replay, sa.flags()));
            record.said.replay = Some(replay.clone());
        }
        if let Some(used) = &counts.used {
            sa.resume_counts(used.packets, used.bytes);
        }
        Ok(())
    }

    fn alloc_spi(worker: &mut Worker, request: &NewSpi, mut random: impl FnMut() -> u32) -> Result<Sa, Error> {
        let info = &request.info;
        let addr = |addr: Addr| addr.ip(info.family).ok_or(Error::new(errno::EAFNOSUPPORT));
        if info.proto != proto::ESP {
            return Err(Error::text(errno::EPROTONOSUPPORT, "Requested type not found"));
        }
        let wanted = SpiRequest {
            src: addr(info.saddr)?,
            dst: addr(info.daddr)?,
            mode: convert::mode(info.mode)?,
            reqid: info.reqid,
            mark: convert::mark(request.mark),
            if_id: request.if_id,
            dir: convert::sa_dir(request.dir),
            seq: info.seq,
            min: request.min,
            max: request.max,
        };
        let now = worker.now();
        worker.sadb.larval = true;
        worker.sadb.names.lock().larval = true;
        let larval = worker.path.ipsec.alloc_spi(now, &wanted, &mut random).map_err(|err| convert::refusal(&err))?;
        let larval = larval.clone();
        Ok(larval_view(worker, &larval))
    }

    fn flush_sas(worker: &mut Worker, of: u8) -> bool {
        if !matches!(of, proto::ESP | proto::ANY | 0) {
            return false;
        }
        let ipsec = &mut worker.path.ipsec;
        let sas: Vec<SaId> = ipsec.sad().iter().map(ipsec::Sa::id).collect();
        let larvae: Vec<u32> = ipsec.sad().larvae().map(|larval| larval.seq).collect();
        let some = !sas.is_empty() || !larvae.is_empty();
        for &seq in &larvae {
            ipsec.forget_larval(seq);
        }
        // By their numbers: there are marks that no packet has, by which nothing is found.
        sas.iter().for_each(|&id| drop(ipsec.remove_sa_of(id)));
        worker.sadb.sas = Default::default();
        worker.sadb.names.lock().retain(|_| false);
        some
    }

    /// SAs below a place, with their places; those that are yet to come are above all others.
    fn sas(worker: &mut Worker, below: u64, limit: usize) -> VecDeque<(u64, Sa)> {
        Self::follow(worker);
        let worker = &*worker;
        let mut found = VecDeque::new();
        if below > LARVAE {
            let mut larvae: Vec<&Larval> = worker.path.ipsec.sad().larvae().collect();
            larvae.sort_unstable_by_key(|larval| std::cmp::Reverse(larval.seq));
            let places = larvae.iter().map(|larval| (LARVAE + u64::from(larval.seq), *larval));
            let views = places.filter(|&(place, _)| place < below);
            found.extend(views.take(limit).map(|(place, larval)| (place, larval_view(worker, larval))));
        }
        let live = worker
            .sadb
            .sas
            .range(..below)
            .rev()
            .filter_map(|(&place, record)| Some((place, record.view(worker, worker.path.ipsec.sa(record.id)?))));
        let room = limit.saturating_sub(found.len());
        found.extend(live.take(room));
        found
    }

    fn add_policy(worker: &mut Worker, said: Policy, update: bool) -> Result<(), Error> {
        Self::follow(worker);
        let config = convert::policy(&said)?;
        let key = config.key();
        let ipsec = &mut worker.path.ipsec;
        let added = if update { ipsec.update_policy(config) } else { ipsec.add_policy(config) };
        added.map_err(|err| convert::refusal(&err))?;
        worker.sadb.of_file.forget_policy(&key);
        let place = worker.sadb.next_policy_place();
        worker.sadb.insert_policy(place, PolicyRecord { key, said, added: wall_clock() });
        Ok(())
    }

    fn find_policy(worker: &mut Worker, query: &PolicyQuery, remove: bool) -> Result<Policy, Error> {
        Self::follow(worker);
        let not_there = || Error::new(errno::ENOENT);
        let spd = worker.path.ipsec.spd();
        let key = if query.id.index == 0 {
            PolicyKey {
                dir: convert::dir(query.id.dir),
                selector: convert::selector(&query.id.sel, query.id.sel.family)?,
                mark: convert::mark(query.mark),
                if_id: query.if_id,
            }
        } else {
            let has = |it: &&ipsec::spd::Policy| {
                it.index == query.id.index
                    && it.config.dir == convert::dir(query.id.dir)
                    && it.config.if_id == query.if_id
                    && it.config.mark.matches(query.mark.value & query.mark.mask)
            };
            spd.iter().find(has).ok_or_else(not_there)?.config.key()
        };
        let id = spd.find(&key).ok_or_else(not_there)?;
        let policy = spd.get(id).ok_or_else(not_there)?;
        let place = worker.sadb.keys.get(&key).copied().ok_or_else(not_there)?;
        let shown = worker.sadb.policies.get(&place).ok_or_else(not_there)?.view(worker, policy);
        if remove {
            drop(worker.path.ipsec.remove_policy(&key));
            worker.sadb.of_file.forget_policy(&key);
            worker.sadb.keys.remove(&key);
            worker.sadb.policies.remove(&place);
        }
        Ok(shown)
    }

    fn flush_policies(worker: &mut Worker) -> bool {
        let ipsec = &mut worker.path.ipsec;
        let keys: Vec<PolicyKey> = ipsec.spd().iter().map(|policy| policy.config.key()).collect();
        for key in &keys {
            drop(ipsec.remove_policy(key));
            worker.sadb.of_file.forget_policy(key);
        }
        (worker.sadb.policies, worker.sadb.keys) = Default::default();
        !keys.is_empty()
    }

    fn policies(worker: &mut Worker, below: u64, limit: usize) -> VecDeque<(u64, Policy)> {
        Self::follow(worker);
        let spd = worker.path.ipsec.spd();
        let live = worker
            .sadb
            .policies
            .range(..below)
            .rev()
            .filter_map(|(&place, record)| Some((place, record.view(worker, spd.get(spd.find(&record.key)?)?))));
        live.take(limit).collect()
    }
}

/// Above this are the places of SAs that are yet to come.
const LARVAE: u64 = 1 << 63;

/// The SA of that name, if it is there.
fn live(ipsec: &Ipsec, &(dst, spi, mark): &SaName) -> Option<SaId> {
    super::xfrm::live(ipsec, dst, spi, mark)
}

/// Has a new SA go on with the numbers and counts of another, as its own.
fn resume(sa: &mut ipsec::Sa, replay: Option<&Replay>, used: Option<&LifetimeCur>) {
    if let Some(replay) = replay {
        sa.resume_received(&convert::seen(replay, sa.flags()));
    }
    if let Some(used) = used {
        sa.resume_counts(used.packets, used.bytes);
    }
}

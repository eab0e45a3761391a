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
mod policies;
mod sas;
mod shown;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base::{Instant, SaId};
use control::netlink::xfrm::layout::LifetimeCur;
use control::netlink::xfrm::{Event, NewSa, Policy, Replay};
use ipsec::{Ipsec, Mark, PolicyKey};
use wire::Spi;

use super::news::Bell;
use super::worker::Worker;
use super::xfrm::OfFile;
#[cfg(any(test, feature = "fuzzing"))]
pub use alone::Alone;
pub(crate) use database::WorkerSadb;
pub(crate) use events::told;
pub(crate) use shown::{added_sas, policy_config};

/// The policies of a file.
pub(crate) fn policies_of(config: &control::Config) -> impl Iterator<Item = Policy> {
    config.policies.iter().map(from_file::policy)
}

/// Name of an SA: destination, SPI, and the mark that it was made with.
type SaName = (IpAddr, Spi, Mark);

/// What is kept beside the `ipsec` crate's databases.
#[derive(Debug, Default)]
pub(crate) struct Sadb {
    /// By their places, the newest last.
    sas: BTreeMap<u64, SaRecord>,
    /// Place of the SA of each name.
    places: HashMap<SaName, u64>,
    last_place: u64,
    /// The file was read again since its SAs and policies were taken in.
    is_stale: bool,
    policies: BTreeMap<u64, PolicyRecord>,
    keys: HashMap<PolicyKey, u64>,
    last_policy_place: u64,
    /// Which of them are the file's.
    pub(crate) of_file: OfFile,
    /// What has happened and was not told yet.
    events: Vec<Event>,
    /// Who hears it.
    bell: Option<Arc<Bell>>,
    /// Whether one of them makes SAs that are missing.
    asked: bool,
    /// Whether one of them hears how far SAs' numbers are.
    numbers_heard: bool,
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

fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

/// An instant, in seconds since the Unix epoch; 0 for never.
fn seconds(worker: &Worker, at: Option<Instant>) -> u64 {
    at.map_or(0, |at| wall_clock().saturating_sub(worker.now().since(at).as_secs()))
}

impl Sadb {
    /// Notes that the file's SAs and policies may be others now.
    pub(crate) fn file_changed(worker: &mut Worker) {
        worker.sadb.is_stale = true;
        Self::keep_what_is_told_of(worker);
    }

    /// What ends by itself is told with what was said of it: if somebody hears that, it has to be known before.
    fn keep_what_is_told_of(worker: &mut Worker) {
        if worker.sadb.is_heard() {
            Self::follow(worker);
        }
    }

    /// Where the SA of that name is kept.
    fn place_of(&self, name: &SaName) -> Option<u64> {
        self.places.get(name).copied()
    }

    /// A place above those of all SAs.
    const fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    const fn next_policy_place(&mut self) -> u64 {
        self.last_policy_place += 1;
        self.last_policy_place
    }

    /// Keeps what was said of a new SA, which goes on with the numbers and counts that were said.
    fn install(worker: &mut Worker, place: u64, record: SaRecord) {
        if let Some(sa) = worker.path.ipsec.sa_mut(record.id) {
            resume(sa, record.said.replay.as_ref(), record.said.used.as_ref());
            sa.note_numbers_told();
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
        if !sadb.is_stale {
            return;
        }
        sadb.tidy(ipsec);
        let changed = sadb.of_file.take_changed();
        for of_file in &config.sas {
            let said = from_file::sa(of_file);
            let name = (of_file.dst, Spi(of_file.spi), convert::mark(said.mark));
            let Some(id) = live(ipsec, &name).filter(|id| changed.contains(id)) else { continue };
            let place = sadb.place_of(&name).unwrap_or_else(|| sadb.next_place());
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
        sadb.is_stale = false;
    }

    /// Forgets the SAs that have ended by themselves, and their keys, whether or not anybody was told.
    pub(crate) fn forget_ended(&mut self, ipsec: &mut Ipsec) {
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
        self.places.retain(|_, place| sas.contains_key(place));
        self.policies.retain(|_, record| ipsec.spd().find(&record.key).is_some());
        let policies = &self.policies;
        self.keys.retain(|_, place| policies.contains_key(place));
    }

    fn insert_sa(&mut self, place: u64, name: SaName, record: SaRecord) {
        let old = self.places.insert(name, place).filter(|&old| old != place);
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

    fn forget(&mut self, name: &SaName) {
        if let Some(place) = self.places.remove(name) {
            self.sas.remove(&place);
        }
    }
}

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

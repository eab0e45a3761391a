//! Records of SAs and policies: the requests that made them, in the order of coming, and the events to be told of them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base::SaId;
use control::Config;
use control::netlink::Groups;
use control::netlink::xfrm::layout::LifetimeCur;
use control::netlink::xfrm::nums::group;
use control::netlink::xfrm::{Event, NewSa, Policy, Replay};
use ipsec::{Ipsec, Mark, PolicyKey};
use wire::Spi;

use super::{convert, from_file};
use crate::run::bell::{Bell, News, xfrm_groups};
use crate::run::translate::to_ipsec;
use crate::run::xfrm::{self, OfFile};

/// Name of an SA: destination, SPI, and the mark that it was made with.
pub(super) type SaName = (IpAddr, Spi, Mark);

/// Records of SAs and policies, beside the `ipsec` crate's databases.
#[derive(Debug, Default)]
pub(crate) struct Sadb {
    /// By their places, the newest last.
    pub(super) sas: BTreeMap<u64, SaRecord>,
    /// Place of the SA of each name.
    pub(super) places: HashMap<SaName, u64>,
    last_place: u64,
    /// The file was read again since its SAs and policies were taken in.
    is_stale: bool,
    pub(super) policies: BTreeMap<u64, PolicyRecord>,
    pub(super) keys: HashMap<PolicyKey, u64>,
    last_policy_place: u64,
    /// Which of them are the file's.
    pub(crate) of_file: OfFile,
    /// What has happened and was not told yet.
    pub(super) events: Vec<Event>,
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
pub(super) struct SaRecord {
    pub(super) id: SaId,
    pub(super) said: NewSa,
    /// When it was added, in seconds since the Unix epoch.
    pub(super) added: u64,
}

#[derive(Debug)]
pub(super) struct PolicyRecord {
    pub(super) key: PolicyKey,
    pub(super) said: Policy,
    pub(super) added: u64,
}

pub(super) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

impl Sadb {
    /// Notes that the file's SAs and policies may be others now.
    pub(crate) fn file_changed(&mut self, ipsec: &Ipsec, config: &Config) {
        self.is_stale = true;
        self.keep_what_is_told_of(ipsec, config);
    }

    /// What ends by itself is told with what was said of it: if somebody hears that, it has to be known before.
    fn keep_what_is_told_of(&mut self, ipsec: &Ipsec, config: &Config) {
        if self.is_heard() {
            self.follow(ipsec, config);
        }
    }

    /// Tells events by ringing `bell`, as far as somebody hears them.
    pub(crate) fn set_bell(&mut self, heard: Groups, bell: Arc<Bell>, ipsec: &Ipsec, config: &Config) {
        self.bell = heard.intersects(xfrm_groups()).then_some(bell);
        self.asked = heard.has(group::ACQUIRE);
        self.numbers_heard = heard.has(group::AEVENTS);
        self.keep_what_is_told_of(ipsec, config);
    }

    /// Whether somebody hears what happens.
    pub(crate) const fn is_heard(&self) -> bool {
        self.bell.is_some()
    }

    /// Whether somebody hears which SAs are missing.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether somebody hears how far SAs' numbers are.
    pub(crate) const fn are_numbers_heard(&self) -> bool {
        self.numbers_heard
    }

    /// Tells what has happened. `lost` counts what there was no room for before.
    pub(crate) fn ring(&mut self, lost: u64) {
        let more = std::mem::replace(&mut self.lost, lost) != lost;
        if self.events.is_empty() && !more {
            return;
        }
        match &self.bell {
            Some(bell) => bell.ring_xfrm(self.events.drain(..).map(News::Xfrm), more),
            None => self.events.clear(),
        }
    }

    /// Where the SA of that name is kept.
    pub(super) fn place_of(&self, name: &SaName) -> Option<u64> {
        self.places.get(name).copied()
    }

    /// A place above those of all SAs.
    pub(super) const fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    pub(super) const fn next_policy_place(&mut self) -> u64 {
        self.last_policy_place += 1;
        self.last_policy_place
    }

    /// Keeps what was said of a new SA, which goes on with the numbers and counts that were said.
    pub(super) fn install(&mut self, ipsec: &mut Ipsec, place: u64, record: SaRecord) {
        if let Some(sa) = ipsec.sa_mut(record.id) {
            resume(sa, record.said.replay.as_ref(), record.said.used.as_ref());
            sa.note_numbers_told();
        }
        self.sas.insert(place, record);
    }

    /// Takes in what the file has said since it was last looked at, and forgets what is gone, of which nothing must be left
    /// to tell.
    pub(crate) fn follow(&mut self, ipsec: &Ipsec, config: &Config) {
        if self.sas.len() > 2 * ipsec.sad().len() + 64 || self.policies.len() > 2 * ipsec.spd().len() + 64 {
            self.tidy(ipsec);
        }
        if !self.is_stale {
            return;
        }
        self.tidy(ipsec);
        let changed = self.of_file.take_changed();
        for of_file in &config.sas {
            let said = from_file::sa(of_file);
            let name = (of_file.dst, Spi(of_file.spi), convert::mark(said.mark));
            let Some(id) = live(ipsec, &name).filter(|id| changed.contains(id)) else { continue };
            let place = self.place_of(&name).unwrap_or_else(|| self.next_place());
            let added = self.sas.get(&place).map_or_else(wall_clock, |record| record.added);
            self.insert_sa(place, name, SaRecord { id, said, added });
        }
        for of_file in &config.policies {
            let key = to_ipsec::policy(of_file).key();
            if self.of_file.has_policy(&key) && ipsec.spd().find(&key).is_some() {
                let place = self.keys.get(&key).copied().unwrap_or_else(|| self.next_policy_place());
                let added = self.policies.get(&place).map_or_else(wall_clock, |record| record.added);
                self.insert_policy(place, PolicyRecord { key, said: from_file::policy(of_file), added });
            }
        }
        self.is_stale = false;
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

    pub(super) fn insert_policy(&mut self, place: u64, record: PolicyRecord) {
        if let Some(old) = self.keys.insert(record.key, place).filter(|&old| old != place) {
            self.policies.remove(&old);
        }
        self.policies.insert(place, record);
    }

    pub(super) fn forget(&mut self, name: &SaName) {
        if let Some(place) = self.places.remove(name) {
            self.sas.remove(&place);
        }
    }
}

/// The SA of that name, if it is there.
pub(super) fn live(ipsec: &Ipsec, &(dst, spi, mark): &SaName) -> Option<SaId> {
    xfrm::live(ipsec, dst, spi, mark)
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

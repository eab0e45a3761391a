//! Objects of one kind: the last good value of each, a newer one that is refused, and withdrawals that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::history::Stamp;
use crate::refusal::Refusal;
use crate::withdrawal::Withdrawals;

/// Newest value of an object, which is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused<V> {
    pub(crate) stamp: Stamp,
    /// The value, if it could be read: it may become good.
    pub(crate) value: Option<V>,
    pub(crate) refusal: Refusal,
}

/// All objects of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Register<K, V> {
    good: BTreeMap<K, (Stamp, V)>,
    refused: BTreeMap<K, Refused<V>>,
    pub(crate) withdrawals: Withdrawals<K>,
    /// Deletions since the last snapshot, and those that wait.
    deleted: BTreeMap<K, Stamp>,
    /// Last snapshot: events up to it are in it.
    floor: Stamp,
}

impl<K, V> Default for Register<K, V> {
    fn default() -> Self {
        Self {
            good: BTreeMap::new(),
            refused: BTreeMap::new(),
            withdrawals: Withdrawals::default(),
            deleted: BTreeMap::new(),
            floor: Stamp::default(),
        }
    }
}

impl<K: Copy + Ord, V: Copy + Eq> Register<K, V> {
    /// Good value of an object.
    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.good.get(&key).map(|(_, value)| value)
    }

    /// Good value of an object with its place.
    pub(crate) fn get_with_stamp(&self, key: K) -> Option<(Stamp, &V)> {
        self.good.get(&key).map(|(stamp, value)| (*stamp, value))
    }

    /// Objects with a good value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.good.iter().map(|(key, (_, value))| (*key, value))
    }

    /// Objects with a good value between two keys, with these.
    pub(crate) fn between(&self, [first, last]: [K; 2]) -> impl Iterator<Item = (K, &V)> {
        self.good.range(first..=last).map(|(key, (_, value))| (*key, value))
    }

    pub(crate) fn len(&self) -> usize {
        self.good.len()
    }

    /// Objects whose newest value is refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (K, &Refused<V>)> {
        self.refused.iter().map(|(key, refused)| (*key, refused))
    }

    /// Whether the newest value of an object is refused.
    pub(crate) fn is_refused(&self, key: K) -> bool {
        self.refused.contains_key(&key)
    }

    /// Place of the newest value of an object.
    fn newest(&self, key: K) -> Option<Stamp> {
        let good = self.good.get(&key).map(|(stamp, _)| *stamp);
        good.max(self.refused.get(&key).map(|refused| refused.stamp))
    }

    /// Whether a snapshot that has all changes up to `until` shows an older value of an object than was seen.
    pub(crate) fn has_gone_back(&self, key: K, value: Stamp, until: Stamp) -> bool {
        self.newest(key).is_some_and(|newest| newest.history == until.history && value < newest && newest <= until)
    }

    /// Notes that an object is there, by an event or by a snapshot (`until`). Returns whether its value is newer than the known one.
    pub(crate) fn is_newer(&mut self, key: K, stamp: Stamp, until: Option<Stamp>) -> bool {
        let newest = self.newest(key);
        if newest.is_none() && until.is_none() && stamp <= self.floor {
            return false;
        }
        if let Some(deleted) = self.deleted.get(&key) {
            if until.unwrap_or(stamp) < *deleted {
                return false;
            }
            self.deleted.remove(&key);
            self.withdrawals.cancel(key);
        }
        newest.is_none_or(|newest| stamp > newest)
    }

    /// Sets the good value of an object, and returns the former one.
    pub(crate) fn accept(&mut self, key: K, stamp: Stamp, value: V) -> Option<V> {
        self.refused.remove(&key);
        self.good.insert(key, (stamp, value)).map(|(_, old)| old)
    }

    /// Refuses the newest value of an object, which keeps the good one.
    pub(crate) fn refuse(&mut self, key: K, refused: Refused<V>) {
        self.refused.insert(key, refused);
    }

    /// Notes the deletion of an object, by an event.
    pub(crate) fn delete(&mut self, key: K, stamp: Stamp, now: Duration) {
        let newest = self.newest(key);
        let is_old = newest.is_some_and(|newest| stamp <= newest) || stamp <= self.floor && newest.is_none();
        if is_old
            || self.deleted.get(&key).is_some_and(|deleted| stamp <= *deleted && self.withdrawals.is_confirmed(key))
        {
            return;
        }
        self.deleted.insert(key, stamp);
        self.refused.remove(&key);
        if self.good.contains_key(&key) {
            self.withdrawals.begin(key, now, true, false);
        }
    }

    /// Notes the objects that a snapshot lacks.
    pub(crate) fn finish_snapshot(&mut self, seen: &BTreeSet<K>, until: Stamp, now: Duration, is_approved: bool) {
        self.refused.retain(|key, refused| seen.contains(key) || refused.stamp > until);
        for (key, (stamp, _)) in &self.good {
            if !seen.contains(key) && *stamp <= until {
                self.deleted.entry(*key).or_insert(until);
                self.withdrawals.begin(*key, now, false, is_approved);
            }
        }
        self.floor = until;
        self.deleted.retain(|key, stamp| self.withdrawals.contains(*key) || *stamp > until);
    }

    /// Removes an object whose withdrawal is due.
    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        self.withdrawals.cancel(key);
        self.good.remove(&key).map(|(_, value)| value)
    }
}

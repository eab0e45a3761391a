//! Table of the gateway: what is installed, and what may have to change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::withdrawal::Withdrawals;

/// Time after which a change that the gateway has refused is tried again.
const RETRY: Duration = Duration::from_secs(10);

/// Change of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TableChange<K, V> {
    pub(crate) key: K,
    pub(crate) old: Option<V>,
    pub(crate) new: Option<V>,
}

/// Entries of one kind in the gateway.
#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    installed: BTreeMap<K, V>,
    /// Entries to compare with what is desired.
    dirty: BTreeSet<K>,
    /// Entries that may be deleted at once.
    released: BTreeSet<K>,
    /// Installed entries that no object explains.
    pub(crate) orphans: Withdrawals<K>,
    /// Entries that the gateway has refused.
    retries: BTreeMap<K, Duration>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self {
            installed: BTreeMap::new(),
            dirty: BTreeSet::new(),
            released: BTreeSet::new(),
            orphans: Withdrawals::default(),
            retries: BTreeMap::new(),
        }
    }
}

impl<K: Copy + Ord, V: Copy + Eq> Table<K, V> {
    /// Replaces what is installed by a dump, after which all entries are compared: those of the dump, and `desired`.
    pub(crate) fn load(&mut self, dump: impl Iterator<Item = (K, V)>, desired: impl Iterator<Item = K>) {
        self.installed = dump.collect();
        self.retries.clear();
        self.dirty.extend(self.installed.keys().copied());
        self.dirty.extend(desired);
    }

    /// Value of an installed entry.
    pub(crate) fn get(&self, key: K) -> Option<V> {
        self.installed.get(&key).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.installed.len()
    }

    pub(crate) fn refused(&self) -> usize {
        self.retries.len()
    }

    /// Compares an entry again.
    pub(crate) fn touch(&mut self, key: K) {
        self.dirty.insert(key);
    }

    /// Compares an entry again, which may be deleted at once.
    pub(crate) fn release(&mut self, key: K) {
        self.released.insert(key);
        self.dirty.insert(key);
    }

    /// Keeps an entry that was [released](Self::release): its withdrawal waits anew.
    pub(crate) fn retain(&mut self, key: K, now: Duration, is_approved: bool) {
        self.released.remove(&key);
        self.orphans.begin(key, now, true, is_approved);
    }

    /// Compares the entries that may have to change, and returns the changes, deletions last. `desired` is the value that an entry has to
    /// have, and whether it may be deleted at once without one. Without `may_replace`, an entry that is there waits.
    pub(crate) fn changes(
        &mut self,
        now: Duration,
        may_replace: impl Fn(K) -> bool,
        desired: impl Fn(K) -> (Option<V>, bool),
    ) -> Vec<TableChange<K, V>> {
        let mut changes = Vec::new();
        let mut deletions = Vec::new();
        for key in std::mem::take(&mut self.dirty) {
            let (new, is_explained) = desired(key);
            let old = self.installed.get(&key).copied();
            if new.is_some() {
                self.orphans.cancel(key);
                self.released.remove(&key);
            }
            if new == old {
                self.orphans.cancel(key);
                self.retries.remove(&key);
                continue;
            }
            if self.retries.get(&key).is_some_and(|at| *at > now) {
                continue;
            }
            if new.is_some() && old.is_some() && !may_replace(key) {
                self.dirty.insert(key);
                continue;
            }
            self.retries.remove(&key);
            match new {
                Some(value) => {
                    self.installed.insert(key, value);
                    changes.push(TableChange { key, old, new });
                }
                None if self.released.remove(&key) || is_explained => {
                    self.orphans.cancel(key);
                    self.installed.remove(&key);
                    deletions.push(TableChange { key, old, new });
                }
                None => self.orphans.begin(key, now, false, false),
            }
        }
        changes.append(&mut deletions);
        changes
    }

    /// Takes back a change that the gateway has refused.
    pub(crate) fn undo(&mut self, now: Duration, change: &TableChange<K, V>) {
        match change.old {
            Some(old) => self.installed.insert(change.key, old),
            None => self.installed.remove(&change.key),
        };
        if change.new.is_none() {
            self.released.insert(change.key);
        }
        self.retries.insert(change.key, now + RETRY);
        self.dirty.insert(change.key);
    }

    /// Compares the refused entries again whose time has come.
    pub(crate) fn retry(&mut self, now: Duration) {
        let dirty = &mut self.dirty;
        self.retries.retain(|key, at| {
            let is_due = *at <= now;
            if is_due {
                dirty.insert(*key);
            }
            !is_due
        });
    }

    /// Time of the next retry.
    pub(crate) fn next_retry(&self) -> Option<Duration> {
        self.retries.values().min().copied()
    }
}

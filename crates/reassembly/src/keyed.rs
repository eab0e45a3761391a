//! Things that are found by key or by number.

use std::hash::{BuildHasher, Hash, RandomState};
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

/// A number of something in a [`Keyed`], good as long as that is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Id(u32);

/// A table of things that each have a key. Senders choose the keys, so they are hashed with a secret (SipHash): nobody
/// can make many that fall together.
#[derive(Debug)]
pub(crate) struct Keyed<K, V> {
    secret: RandomState,
    by_key: HashTable<Id>,
    entries: Vec<Option<Entry<K, V>>>,
    free: Vec<Id>,
    /// What was asked for last, and mostly is asked for next.
    latest: Option<Id>,
}

#[derive(Debug)]
struct Entry<K, V> {
    hash: u64,
    key: K,
    value: V,
}

impl<K: Eq + Hash, V> Keyed<K, V> {
    /// Memory that one takes.
    pub(crate) const SIZE: usize = size_of::<Option<Entry<K, V>>>() + size_of::<Id>();

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The one that has this key.
    pub(crate) fn find(&self, key: &K) -> Option<Id> {
        if self.by_key.is_empty() {
            return None;
        }
        if let Some(id) = self.latest
            && self.entries[id.0 as usize].as_ref().is_some_and(|entry| entry.key == *key)
        {
            return Some(id);
        }
        let is_it = |id: &Id| self.entries[id.0 as usize].as_ref().is_some_and(|entry| entry.key == *key);
        self.by_key.find(self.secret.hash_one(key), is_it).copied()
    }

    /// The one that has this key, or else a new one.
    pub(crate) fn find_or_insert(&mut self, key: K, value: impl FnOnce(&K) -> V) -> Id {
        if let Some(id) = self.latest
            && self.entries[id.0 as usize].as_ref().is_some_and(|entry| entry.key == key)
        {
            return id;
        }
        let hash = self.secret.hash_one(&key);
        let entries = &self.entries;
        let is_it = |id: &Id| entries[id.0 as usize].as_ref().is_some_and(|entry| entry.key == key);
        let id = match self.by_key.find(hash, is_it) {
            Some(&id) => id,
            None => {
                let value = value(&key);
                self.insert(Entry { hash, key, value })
            }
        };
        self.latest = Some(id);
        id
    }

    /// Adds one with a key that none has.
    fn insert(&mut self, entry: Entry<K, V>) -> Id {
        let hash = entry.hash;
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id.0 as usize] = Some(entry);
                id
            }
            None => {
                self.entries.push(Some(entry));
                Id(self.entries.len() as u32 - 1)
            }
        };
        let entries = &self.entries;
        self.by_key.insert_unique(hash, id, |id| entries[id.0 as usize].as_ref().map_or(0, |entry| entry.hash));
        id
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, id: Id) -> V {
        let Entry { hash, value, .. } = self.entries[id.0 as usize].take().expect("an id is of what is there");
        if let Ok(found) = self.by_key.find_entry(hash, |&other| other == id) {
            found.remove();
        }
        self.free.push(id);
        value
    }

    /// The key of one.
    pub(crate) fn key(&self, id: Id) -> &K {
        &self.entries[id.0 as usize].as_ref().expect("an id is of what is there").key
    }

    /// Whether there is one of this number, though perhaps another than once.
    pub(crate) fn contains(&self, id: Id) -> bool {
        self.entries[id.0 as usize].is_some()
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &V)> {
        let present = |(at, entry): (usize, &'_ Option<Entry<K, V>>)| entry.is_some().then_some(at);
        let ids = self.entries.iter().enumerate().filter_map(present);
        ids.map(|at| (Id(at as u32), &self[Id(at as u32)]))
    }
}

impl<K, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self {
            secret: RandomState::new(),
            by_key: HashTable::new(),
            entries: Vec::new(),
            free: Vec::new(),
            latest: None,
        }
    }
}

impl<K, V> Index<Id> for Keyed<K, V> {
    type Output = V;

    fn index(&self, id: Id) -> &V {
        &self.entries[id.0 as usize].as_ref().expect("an id is of what is there").value
    }
}

impl<K, V> IndexMut<Id> for Keyed<K, V> {
    fn index_mut(&mut self, id: Id) -> &mut V {
        &mut self.entries[id.0 as usize].as_mut().expect("an id is of what is there").value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_found_by_key_and_number_until_it_is_taken_out() {
        let mut table = Keyed::<u32, String>::default();
        let ids: Vec<_> = (0..100).map(|n| table.find_or_insert(n, u32::to_string)).collect();
        for (n, &id) in ids.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
            assert_eq!(table.remove(id), n.to_string());
        }
        for (n, &id) in ids.iter().enumerate() {
            let there = (n % 3 != 0).then_some(id);
            assert_eq!(table.find(&(n as u32)), there);
            assert_eq!(table.contains(id), there.is_some());
            if let Some(id) = there {
                assert_eq!(table.find_or_insert(n as u32, |_| unreachable!("it is there")), id);
            }
        }
        assert_eq!((table.len(), table.iter().count()), (66, 66));
        let again = table.find_or_insert(1000, |_| "again".to_owned());
        assert!(ids.contains(&again), "a number is used again");
        assert_eq!((table.find(&1000), table.key(again), &table[again][..]), (Some(again), &1000, "again"));
        assert_eq!(table.find(&99), None);
    }

    #[test]
    fn nobody_knows_which_keys_fall_together() {
        let tables = [(); 2].map(|()| Keyed::<u32, ()>::default());
        let same = (0..1000).filter(|key| tables[0].secret.hash_one(key) == tables[1].secret.hash_one(key)).count();
        assert_eq!(same, 0, "two tables hash alike");
    }
}

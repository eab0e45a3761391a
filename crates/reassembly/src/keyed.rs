//! Things that are found by key or by number.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::secret::Secret;

/// A number of something in a [`Keyed`], good as long as that is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Id(NonZeroU32);

impl Id {
    fn at(self) -> usize {
        self.0.get() as usize - 1
    }

    fn of(at: usize) -> Self {
        let number = u32::try_from(at + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("memory has an end before numbers have"))
    }
}

/// What is hashed.
pub(crate) trait Hashed: Eq {
    /// Its value: the same for equal keys.
    fn hash(&self, secret: &Secret) -> u64;
}

/// What a key hashes to in one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(u64);

/// A table of things that each have a key. Senders choose the keys, so they are hashed with a secret: nobody can make
/// many that fall together.
///
/// Places are kept for others when what they were of is taken out, and nothing is moved on its way in or out.
#[derive(Debug)]
pub(crate) struct Keyed<K, V> {
    secret: Secret,
    by_key: HashTable<Id>,
    places: Vec<Place<K, V>>,
    free: Vec<Id>,
    /// What was asked for last, and mostly is asked for next.
    latest: Option<Id>,
}

#[derive(Debug, Default)]
struct Place<K, V> {
    hash: u64,
    /// Whether it is found by its key.
    is_there: bool,
    key: K,
    value: V,
}

impl<K: Hashed + Default, V: Default> Keyed<K, V> {
    /// Memory that one takes.
    pub(crate) const SIZE: usize = size_of::<Place<K, V>>() + size_of::<Id>();

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// What a key hashes to here.
    #[inline]
    pub(crate) fn hash(&self, key: &K) -> Hash {
        Hash(key.hash(&self.secret))
    }

    /// The one that has this key.
    #[inline]
    pub(crate) fn find(&self, hash: Hash, key: &K) -> Option<Id> {
        if self.by_key.is_empty() {
            return None;
        }
        let is_it = |id: &Id| {
            let place = &self.places[id.at()];
            place.hash == hash.0 && place.is_there && place.key == *key
        };
        self.latest.filter(is_it).or_else(|| self.by_key.find(hash.0, is_it).copied())
    }

    /// A place for one that nobody finds yet. Its value is what whoever had it last left there.
    #[inline]
    pub(crate) fn reserve(&mut self) -> Id {
        if let Some(id) = self.free.pop() {
            return id;
        }
        self.places.push(Place::default());
        Id::of(self.places.len() - 1)
    }

    /// Has the one at a reserved place found by this key, which none has.
    pub(crate) fn insert(&mut self, id: Id, hash: Hash, key: K) {
        let place = &mut self.places[id.at()];
        assert!(!place.is_there, "a place is one's own");
        (place.hash, place.is_there, place.key) = (hash.0, true, key);
        let places = &self.places;
        self.by_key.insert_unique(hash.0, id, |id| places[id.at()].hash);
        self.latest = Some(id);
    }

    /// Takes one out, and leaves its place to others.
    pub(crate) fn remove(&mut self, id: Id) {
        let place = &mut self.places[id.at()];
        if std::mem::take(&mut place.is_there)
            && let Ok(found) = self.by_key.find_entry(place.hash, |&other| other == id)
        {
            found.remove();
        }
        self.free.push(id);
    }

    /// The key of one.
    pub(crate) fn key(&self, id: Id) -> &K {
        &self.places[id.at()].key
    }

    /// Whether there is one of this number, though perhaps another than once.
    pub(crate) fn contains(&self, id: Id) -> bool {
        self.places[id.at()].is_there
    }

    /// All of them, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id, &V)> {
        let present = self.places.iter().enumerate().filter(|(_, place)| place.is_there);
        present.map(|(at, place)| (Id::of(at), &place.value))
    }
}

impl<K, V> Default for Keyed<K, V> {
    fn default() -> Self {
        Self { secret: Secret::new(), by_key: HashTable::new(), places: Vec::new(), free: Vec::new(), latest: None }
    }
}

impl<K, V> Index<Id> for Keyed<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, id: Id) -> &V {
        &self.places[id.at()].value
    }
}

impl<K, V> IndexMut<Id> for Keyed<K, V> {
    #[inline]
    fn index_mut(&mut self, id: Id) -> &mut V {
        &mut self.places[id.at()].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Hashed for u32 {
        fn hash(&self, secret: &Secret) -> u64 {
            secret.hash(&[u64::from(*self)])
        }
    }

    #[test]
    fn what_was_put_in_is_found_by_key_and_number_until_it_is_taken_out() {
        let mut table = Keyed::<u32, String>::default();
        let put = |table: &mut Keyed<u32, String>, key: u32| {
            let (id, hash) = (table.reserve(), table.hash(&key));
            assert_eq!((table.find(hash, &key), table.contains(id)), (None, false));
            table[id] = key.to_string();
            table.insert(id, hash, key);
            id
        };
        let ids: Vec<_> = (0..100).map(|n| put(&mut table, n)).collect();
        for (n, &id) in ids.iter().enumerate().filter(|(n, _)| n % 3 == 0) {
            assert_eq!(table[id], n.to_string());
            table.remove(id);
        }
        for (n, &id) in ids.iter().enumerate() {
            let there = (n % 3 != 0).then_some(id);
            assert_eq!(table.find(table.hash(&(n as u32)), &(n as u32)), there);
            assert_eq!(table.contains(id), there.is_some());
        }
        assert_eq!((table.len(), table.iter().count()), (66, 66));
        let again = put(&mut table, 1000);
        assert!(ids.contains(&again), "a number is used again");
        let found = table.find(table.hash(&1000), &1000);
        assert_eq!((found, table.key(again), &table[again][..]), (Some(again), &1000, "1000"));
        assert_eq!(table.find(table.hash(&99), &99), None);
        let reserved = table.reserve();
        table.remove(reserved);
        assert_eq!((table.len(), table.reserve()), (67, reserved), "a place that was not used");
    }
}

//! Hash map in a slab: values do not move, and are found by key or by index.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::secret::Secret;

/// Index of an entry in a [`SlabMap`], valid until the entry is removed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SlabId(NonZeroU32);

impl SlabId {
    fn at(self) -> usize {
        self.0.get() as usize - 1
    }

    fn of(at: usize) -> Self {
        let number = u32::try_from(at + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("memory has an end before numbers have"))
    }
}

/// Key that can be hashed.
pub(crate) trait Hashed: Eq {
    /// Hash; equal for equal keys.
    fn hash(&self, secret: &Secret) -> u32;
}

/// Hash of a key in one table.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct KeyHash(u32);

impl KeyHash {
    /// The hash for a table that takes its highest and its lowest bits.
    fn wide(self) -> u64 {
        u64::from(self.0) << 32 | u64::from(self.0)
    }
}

/// A hash map in a slab. Senders choose the keys, so keys are hashed with a secret: an attacker cannot produce many
/// colliding keys.
///
/// Slots of removed entries are reused with their values, which may hold memory, and no entry moves on insertion or removal.
#[derive(Debug)]
pub(crate) struct SlabMap<K, V> {
    secret: Secret,
    index: HashTable<SlabId>,
    places: Vec<Place<K, V>>,
    free: Vec<SlabId>,
    /// Result of the last look-up, which is often equal to the next.
    latest: Option<SlabId>,
}

#[derive(Debug, Default)]
struct Place<K, V> {
    hash: KeyHash,
    /// Whether the entry is in the index.
    is_there: bool,
    key: K,
    value: V,
}

impl<K: Hashed + Default, V: Default> SlabMap<K, V> {
    /// Memory of one entry. The index may be more than half empty after its growth, and has a byte beside each id.
    pub(crate) const SIZE: usize = size_of::<Place<K, V>>() + 16 * (size_of::<SlabId>() + 1) / 7 + size_of::<SlabId>();

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Tells whether the map is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Hash of a key in this table.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &K) -> KeyHash {
        KeyHash(key.hash(&self.secret))
    }

    /// The entry with this key.
    #[inline]
    pub(crate) fn find(&self, hash: KeyHash, key: &K) -> Option<SlabId> {
        let is_it = |id: &SlabId| {
            let place = &self.places[id.at()];
            place.hash == hash && place.is_there && place.key == *key
        };
        self.latest.filter(is_it).or_else(|| self.index.find(hash.wide(), is_it).copied())
    }

    /// Reserves a slot outside the index. Its value is left over from its last use.
    #[inline]
    pub(crate) fn reserve(&mut self) -> SlabId {
        if let Some(id) = self.free.pop() {
            return id;
        }
        self.places.push(Place::default());
        SlabId::of(self.places.len() - 1)
    }

    /// Inserts the value of a reserved slot under this key, which must be new.
    pub(crate) fn insert(&mut self, id: SlabId, hash: KeyHash, key: K) {
        let place = &mut self.places[id.at()];
        assert!(!place.is_there, "a place is one's own");
        (place.hash, place.is_there, place.key) = (hash, true, key);
        self.index.insert_unique(hash.wide(), id, |id| self.places[id.at()].hash.wide());
        self.latest = Some(id);
    }

    /// Removes an entry, and frees its slot.
    pub(crate) fn remove(&mut self, id: SlabId) {
        let place = &mut self.places[id.at()];
        if std::mem::take(&mut place.is_there)
            && let Ok(entry) = self.index.find_entry(place.hash.wide(), |other| *other == id)
        {
            entry.remove();
        }
        self.free.push(id);
    }

    /// Tells whether the slot is occupied. The id may have been reused (no generation).
    pub(crate) fn contains(&self, id: SlabId) -> bool {
        self.places[id.at()].is_there
    }

    /// All entries, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabId, &V)> {
        let present = self.places.iter().enumerate().filter(|(_, place)| place.is_there);
        present.map(|(at, place)| (SlabId::of(at), &place.value))
    }
}

impl<K, V> Default for SlabMap<K, V> {
    fn default() -> Self {
        Self { secret: Secret::new(), index: HashTable::new(), places: Vec::new(), free: Vec::new(), latest: None }
    }
}

impl<K, V> Index<SlabId> for SlabMap<K, V> {
    type Output = V;

    #[inline]
    fn index(&self, id: SlabId) -> &V {
        &self.places[id.at()].value
    }
}

impl<K, V> IndexMut<SlabId> for SlabMap<K, V> {
    #[inline]
    fn index_mut(&mut self, id: SlabId) -> &mut V {
        &mut self.places[id.at()].value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Hashed for u32 {
        fn hash(&self, secret: &Secret) -> u32 {
            secret.hash(&[u64::from(*self)])
        }
    }

    #[test]
    fn inserted_value_is_found_by_key_and_id_until_removed() {
        let mut table = SlabMap::<u32, String>::default();
        let put = |table: &mut SlabMap<u32, String>, key: u32| {
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
        assert_eq!((found, &table[again][..]), (Some(again), "1000"));
        assert_eq!(table.find(table.hash(&99), &99), None);
        // Removal of most of a table that has grown.
        let many: Vec<_> = (2000..12_000).map(|key| put(&mut table, key)).collect();
        for (n, &id) in many.iter().enumerate().filter(|(n, _)| n % 7 > 0) {
            table.remove(id);
            assert_eq!(table.find(table.hash(&(2000 + n as u32)), &(2000 + n as u32)), None);
        }
        for (n, &id) in many.iter().enumerate().filter(|(n, _)| n % 7 == 0) {
            assert_eq!(table.find(table.hash(&(2000 + n as u32)), &(2000 + n as u32)), Some(id));
            table.remove(id);
        }
        let reserved = table.reserve();
        table.remove(reserved);
        assert_eq!((table.len(), table.reserve()), (67, reserved), "a place that was not used");
    }
}

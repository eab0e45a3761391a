//! Hash map in a slab: values do not move, and are found by key or by index.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash(u32);

/// A hash map in a slab. Senders choose the keys, so keys are hashed with a secret: an attacker cannot produce many
/// colliding keys.
///
/// Slots of removed entries are reused, and no entry moves on insertion or removal. Entries of one chain are linked;
/// there are so many chains that the look-up of a missing key usually meets an empty chain, without a read of a slot.
/// A table of `hashbrown` in place of the chains makes datagrams of 2 to 45 fragments in order 1.17 to 1.28 times as slow
/// (`fatpath bench reassembly --only fragments/`).
#[derive(Debug)]
pub(crate) struct SlabMap<K, V> {
    secret: Secret,
    /// Heads of the chains: a power of two, and at least [`SPARSE`] for each entry.
    chains: Vec<Option<SlabId>>,
    len: usize,
    places: Vec<Place<K, V>>,
    /// Links of the chains, one for each slot, stored apart from the slots, which are large and mostly out of cache.
    nodes: Vec<Node>,
    free: Vec<SlabId>,
    /// Result of the last look-up, which is often equal to the next.
    latest: Option<SlabId>,
}

/// Number of chains for each entry.
const SPARSE: usize = 4;

#[derive(Debug, Default)]
struct Place<K, V> {
    key: K,
    value: V,
}

#[derive(Clone, Copy, Debug, Default)]
struct Node {
    hash: u32,
    /// The next entry of the chain.
    next: Option<SlabId>,
    /// Whether the entry is in a chain.
    is_there: bool,
}

impl<K: Hashed + Default, V: Default> SlabMap<K, V> {
    /// Memory of one entry.
    pub(crate) const SIZE: usize = size_of::<Place<K, V>>() + size_of::<Node>() + (SPARSE + 1) * size_of::<SlabId>();

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Tells whether the map is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
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
            let node = &self.nodes[id.at()];
            node.hash == hash.0 && node.is_there && self.places[id.at()].key == *key
        };
        if let Some(latest) = self.latest.filter(is_it) {
            return Some(latest);
        }
        let mut next = *self.chains.get(self.chain(hash.0))?;
        while let Some(id) = next.filter(|id| !is_it(id)) {
            next = self.nodes[id.at()].next;
        }
        next
    }

    /// Chain of a hash.
    fn chain(&self, hash: u32) -> usize {
        hash as usize & self.chains.len().wrapping_sub(1)
    }

    /// Reserves a slot outside all chains. Its value is left over from its last use.
    #[inline]
    pub(crate) fn reserve(&mut self) -> SlabId {
        if let Some(id) = self.free.pop() {
            return id;
        }
        self.places.push(Place::default());
        self.nodes.push(Node::default());
        SlabId::of(self.places.len() - 1)
    }

    /// Inserts the value of a reserved slot under this key, which must be new.
    pub(crate) fn insert(&mut self, id: SlabId, hash: KeyHash, key: K) {
        self.len += 1;
        if self.len * SPARSE > self.chains.len() {
            self.grow();
        }
        let chain = self.chain(hash.0);
        let next = self.chains[chain].replace(id);
        let node = &mut self.nodes[id.at()];
        assert!(!node.is_there, "a place is one's own");
        *node = Node { hash: hash.0, next, is_there: true };
        self.places[id.at()].key = key;
        self.latest = Some(id);
    }

    /// Grows the chains.
    #[cold]
    fn grow(&mut self) {
        let count = (self.len * SPARSE).next_power_of_two().max(64);
        self.chains.clear();
        self.chains.resize(count, None);
        for (at, node) in self.nodes.iter_mut().enumerate().filter(|(_, node)| node.is_there) {
            node.next = self.chains[node.hash as usize & (count - 1)].replace(SlabId::of(at));
        }
    }

    /// Removes an entry, and frees its slot.
    pub(crate) fn remove(&mut self, id: SlabId) {
        if self.nodes[id.at()].is_there {
            let node = std::mem::take(&mut self.nodes[id.at()]);
            self.unchain(id, node);
        }
        self.free.push(id);
    }

    /// Removes an entry from its chain.
    fn unchain(&mut self, id: SlabId, Node { hash, next, .. }: Node) {
        self.len -= 1;
        let chain = self.chain(hash);
        let mut before = self.chains[chain];
        if before == Some(id) {
            self.chains[chain] = next;
            return;
        }
        while let Some(other) = before {
            let node = &mut self.nodes[other.at()];
            if node.next == Some(id) {
                node.next = next;
                return;
            }
            before = node.next;
        }
    }

    /// Tells whether the slot is occupied. The id may have been reused (no generation).
    pub(crate) fn contains(&self, id: SlabId) -> bool {
        self.nodes[id.at()].is_there
    }

    /// All entries, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SlabId, &V)> {
        let present = self.places.iter().zip(&self.nodes).enumerate().filter(|(_, (_, node))| node.is_there);
        present.map(|(at, (place, _))| (SlabId::of(at), &place.value))
    }
}

impl<K, V> Default for SlabMap<K, V> {
    fn default() -> Self {
        let chains = Vec::new();
        let places = Vec::new();
        let nodes = Vec::new();
        let free = Vec::new();
        Self { secret: Secret::new(), chains, len: 0, places, nodes, free, latest: None }
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
        // Removal from any position in a chain.
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

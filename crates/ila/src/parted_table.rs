//! Hash table in parts, of which each grows by itself, so that no insertion moves more than a small share of the entries.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use hashbrown::HashTable;

/// Entry of a [`PartedTable`].
pub(crate) trait Keyed {
    /// Key, by which the table has one entry at most.
    type Key: Copy + Eq + Hash;

    /// The entry's key.
    fn key(&self) -> Self::Key;
}

/// Hash table. The worker that inserts into it must go on with packets soon, so growth moves one part's entries alone.
#[derive(Clone)]
pub(crate) struct PartedTable<T> {
    /// [`PARTS`] tables, or none while the table is empty.
    parts: Vec<HashTable<T>>,
    hasher: RandomState,
    len: usize,
}

/// Number of parts.
const PARTS: usize = 256;

/// First of the bits of a hash that choose the part. A part uses the lowest bits and the highest seven.
const PART_SHIFT: u32 = 40;

/// Difference of the positions of two parts' first entries.
const PART_SPAN: usize = 1 << 40;

/// Capacity of a part that is never shrunk.
const KEPT_CAPACITY: usize = 56;

impl<T> Default for PartedTable<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), hasher: RandomState::default(), len: 0 }
    }
}

impl<T: Keyed> PartedTable<T> {
    /// Number of entries.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there are no entries.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entry of a key.
    #[inline]
    pub(crate) fn find(&self, key: T::Key) -> Option<&T> {
        let hash = self.hasher.hash_one(key);
        self.parts.get(part_of(hash))?.find(hash, |entry| entry.key() == key)
    }

    /// Adds an entry, or puts it in the place of the one of its key, which it returns.
    pub(crate) fn set(&mut self, entry: T) -> Option<T> {
        let key = entry.key();
        let Self { parts, hasher, len } = self;
        let hash = hasher.hash_one(key);
        if parts.is_empty() {
            parts.resize_with(PARTS, HashTable::new);
        }
        let part = &mut parts[part_of(hash)];
        match part.find_mut(hash, |entry| entry.key() == key) {
            Some(there) => Some(std::mem::replace(there, entry)),
            None => {
                part.insert_unique(hash, entry, |entry| hasher.hash_one(entry.key()));
                *len += 1;
                None
            }
        }
    }

    /// Removes the entry of a key, if there is one.
    pub(crate) fn remove(&mut self, key: T::Key) -> Option<T> {
        let Self { parts, hasher, len } = self;
        let hash = hasher.hash_one(key);
        let part = parts.get_mut(part_of(hash))?;
        let (removed, _) = part.find_entry(hash, |entry| entry.key() == key).ok()?.remove();
        *len -= 1;
        shrink(part, hasher);
        if *len == 0 {
            self.parts = Vec::new();
        }
        Some(removed)
    }

    /// Removes all entries that `goes` is true for, and returns them.
    pub(crate) fn extract(&mut self, mut goes: impl FnMut(&T) -> bool) -> Vec<T> {
        let Self { parts, hasher, len } = self;
        let mut gone = Vec::new();
        for part in parts.iter_mut() {
            let before = gone.len();
            gone.extend(part.extract_if(|entry| goes(entry)));
            if gone.len() > before {
                shrink(part, hasher);
            }
        }
        *len -= gone.len();
        gone
    }

    /// Reserves room for that many more entries, so that their addition moves few others.
    pub(crate) fn reserve(&mut self, additional: usize) {
        let Self { parts, hasher, .. } = self;
        if additional < PARTS {
            return;
        }
        if parts.is_empty() {
            parts.resize_with(PARTS, HashTable::new);
        }
        for part in parts {
            part.reserve(additional / PARTS, |entry| hasher.hash_one(entry.key()));
        }
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.parts.iter().flatten()
    }

    /// Entries from a position on, each with its position. An insertion may move entries to other positions.
    pub(crate) fn starting_at(&self, from: usize) -> impl Iterator<Item = (usize, &T)> {
        let first = from / PART_SPAN;
        (first..self.parts.len()).flat_map(move |nth| {
            let part = &self.parts[nth];
            let start = if nth == first { from % PART_SPAN } else { 0 };
            let entry = move |at| Some((nth * PART_SPAN + at, part.get_bucket(at)?));
            (start..part.num_buckets()).filter_map(entry)
        })
    }

    /// Bytes of the storage.
    #[cfg(test)]
    pub(crate) fn allocation_size(&self) -> usize {
        let of_parts: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        of_parts + self.parts.capacity() * size_of::<HashTable<T>>()
    }
}

#[inline]
const fn part_of(hash: u64) -> usize {
    (hash >> PART_SHIFT) as usize % PARTS
}

/// Shrinks a part when three quarters of it are empty.
fn shrink<T: Keyed>(part: &mut HashTable<T>, hasher: &RandomState) {
    if part.capacity() > KEPT_CAPACITY && part.len() < part.capacity() / 4 {
        part.shrink_to(2 * part.len(), |entry| hasher.hash_one(entry.key()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for (u32, u32) {
        type Key = u32;

        fn key(&self) -> u32 {
            self.0
        }
    }

    #[test]
    fn entry_is_added_replaced_and_removed() {
        let mut table = PartedTable::<(u32, u32)>::default();
        assert_eq!((table.set((1, 10)), table.len()), (None, 1));
        assert_eq!((table.set((1, 11)), table.len()), (Some((1, 10)), 1));
        assert_eq!((table.find(1), table.find(2)), (Some(&(1, 11)), None));
        assert_eq!((table.remove(2), table.remove(1), table.len()), (None, Some((1, 11)), 0));
        assert_eq!((table.remove(1), table.allocation_size()), (None, 0));
    }

    #[test]
    fn positions_lead_through_all_entries_once() {
        let mut table = PartedTable::<(u32, u32)>::default();
        for n in 0..10_000 {
            table.set((n, n));
        }
        let (mut seen, mut next) = (Vec::new(), 0);
        loop {
            let mut some = table.starting_at(next).take(7).peekable();
            if some.peek().is_none() {
                break;
            }
            for (at, &(key, _)) in some {
                seen.push(key);
                next = at + 1;
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..10_000).collect::<Vec<_>>());
    }

    #[test]
    fn growth_moves_a_small_share_of_entries() {
        let mut table = PartedTable::<(u32, u32)>::default();
        let capacities =
            |table: &PartedTable<(u32, u32)>| table.parts.iter().map(HashTable::capacity).collect::<Vec<_>>();
        let mut before = Vec::new();
        for n in 0..20_000 {
            table.set((n, n));
            let now = capacities(&table);
            if !before.is_empty() {
                let grown = before.iter().zip(&now).filter(|(before, now)| before != now);
                assert!(grown.count() <= 1);
            }
            before = now;
        }
        // Parts are filled evenly.
        assert!(table.parts.iter().all(|part| (20_000 / 256 / 3..20_000 / 256 * 3).contains(&part.len())));
        let mut other = PartedTable::<(u32, u32)>::default();
        other.reserve(20_000);
        let reserved = capacities(&other);
        assert!(reserved.iter().all(|&capacity| capacity >= 20_000 / 256));
    }

    #[test]
    fn extracted_entries_are_gone() {
        let mut table = PartedTable::<(u32, u32)>::default();
        for n in 0..1000 {
            table.set((n, n % 3));
        }
        let gone = table.extract(|entry| entry.1 == 0);
        assert_eq!((gone.len(), table.len()), (334, 666));
        assert!(gone.iter().all(|entry| table.find(entry.0).is_none()));
        assert_eq!(table.iter().count(), 666);
    }
}

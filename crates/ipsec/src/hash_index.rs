//! Hash index: numbers by the 32-bit hash of a key that the caller stores.

use hashbrown::HashTable;

/// Index of numbers, each under the hash of its key. Several numbers may have one hash.
#[derive(Debug, Default)]
pub(crate) struct HashIndex {
    table: HashTable<Entry>,
}

/// Entry with its hash, so that the table grows without reading keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    hash: u32,
    number: u32,
}

/// Spreads a hash over 64 bits: the table takes the slot from the lowest of them and a tag from the highest.
fn wide(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}

impl HashIndex {
    /// Number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Iterates over the numbers under `hash`, in no order.
    #[inline]
    pub(crate) fn with(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.table.iter_hash(wide(hash)).filter(move |entry| entry.hash == hash).map(|entry| entry.number)
    }

    /// Adds a number that is not in the index.
    pub(crate) fn insert(&mut self, hash: u32, number: u32) {
        self.table.insert_unique(wide(hash), Entry { hash, number }, |entry| wide(entry.hash));
    }

    /// Puts `new` in the place of `old`, which has the same key; does nothing if `old` is not there.
    pub(crate) fn replace(&mut self, hash: u32, old: u32, new: u32) {
        let old = Entry { hash, number: old };
        if let Some(entry) = self.table.find_mut(wide(hash), |entry| *entry == old) {
            entry.number = new;
        }
    }

    /// Removes a number, if it is there.
    pub(crate) fn remove(&mut self, hash: u32, number: u32) {
        let gone = Entry { hash, number };
        if let Ok(entry) = self.table.find_entry(wide(hash), |entry| *entry == gone) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hash function with many collisions.
        #[test]
        fn hash_index_after_random_steps_agrees_with_model(
            steps in prop::collection::vec((prop_oneof![4 => 0..3_u32, 1 => 0..40_u32, 4 => u32::MAX - 4..=u32::MAX, 1 => any::<u32>()], 0..3_u8), 1..200),
        ) {
            let mut index = HashIndex::default();
            let mut model = Vec::<(u32, u32)>::new();
            for (next, (hash, step)) in (0..).zip(steps) {
                match (step, model.iter().position(|&(other, _)| other == hash)) {
                    (0, Some(at)) => {
                        let (hash, number) = model.swap_remove(at);
                        index.remove(hash, number);
                    }
                    (1, Some(at)) => {
                        index.replace(hash, model[at].1, next);
                        model[at].1 = next;
                    }
                    _ => {
                        index.insert(hash, next);
                        model.push((hash, next));
                    }
                }
                index.remove(hash, u32::MAX);
                prop_assert_eq!(index.len(), model.len());
                for &(hash, _) in &model {
                    let mut found: Vec<u32> = index.with(hash).collect();
                    let mut want: Vec<u32> = model.iter().filter(|entry| entry.0 == hash).map(|entry| entry.1).collect();
                    found.sort_unstable();
                    want.sort_unstable();
                    prop_assert_eq!(found, want);
                }
            }
            for (hash, number) in model {
                index.remove(hash, number);
            }
            prop_assert_eq!(index.len(), 0);
        }
    }
}

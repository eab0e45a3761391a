//! Cache of policy look-ups, so that a steady flow costs one hash and one comparison.

use std::hash::BuildHasher;

use xfrm::{Dir, Flowi};

/// Number of cached flows. A flow evicts another one with the same slot, so the memory is bounded for any traffic. A fuzzer makes
/// thousands of caches a second, and evicts in each.
#[expect(unexpected_cfgs, reason = "the flag is that of cargo-fuzz")]
const PLACES: usize = if cfg!(fuzzing) { 16 } else { 2048 };

/// Cached answers by direction and flow, invalidated by a change of generation.
pub(crate) struct FlowCache<V> {
    places: Box<[Option<Entry<V>>]>,
    hasher: foldhash::fast::RandomState,
}

struct Entry<V> {
    generation: u64,
    key: (Dir, Flowi),
    value: V,
}

impl<V: Clone> FlowCache<V> {
    pub(crate) fn new() -> Self {
        Self { places: (0..PLACES).map(|_| None).collect(), hasher: foldhash::fast::RandomState::default() }
    }

    /// The cached answer for `flow`, else that of `find`, which is cached.
    #[inline]
    pub(crate) fn get_or(&mut self, generation: u64, dir: Dir, flow: &Flowi, find: impl FnOnce() -> V) -> V {
        let key = (dir, *flow);
        let place = &mut self.places[self.hasher.hash_one(key) as usize % PLACES];
        match place {
            Some(entry) if entry.generation == generation && entry.key == key => entry.value.clone(),
            _ => place.insert(Entry { generation, key, value: find() }).value.clone(),
        }
    }
}

impl<V> std::fmt::Debug for FlowCache<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FlowCache({PLACES} places)")
    }
}

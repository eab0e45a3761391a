//! The register of pairs of key and initialisation vector, in debug builds alone: a pair that comes twice is a panic.
//!
//! AES-GCM loses its secrets when a nonce repeats under one key, and CBC shows which packets begin alike. Two SAs may
//! have one key, so the register is not an SA's but its thread's, where a test or a simulation has all its nodes.

use std::cell::RefCell;
use std::hash::BuildHasher;

use hashbrown::HashSet;

/// Pairs that a thread remembers. At the limit it starts anew, so that a long run in a debug build stays small.
const LIMIT: usize = 1 << 20;

thread_local! {
    static SEEN: RefCell<HashSet<(u64, [u8; 8]), foldhash::fast::FixedState>> = const {
        RefCell::new(HashSet::with_hasher(foldhash::fast::FixedState::with_seed(0)))
    };
}

/// A number that stands for `key`.
pub(crate) fn fingerprint(key: &[u8]) -> u64 {
    foldhash::quality::FixedState::with_seed(0).hash_one(key)
}

/// Notes that a packet is sealed with a key and `iv`.
///
/// # Panics
/// When one was before.
pub(crate) fn register(fingerprint: u64, iv: [u8; 8]) {
    SEEN.with_borrow_mut(|seen| {
        if seen.len() >= LIMIT {
            seen.clear();
        }
        assert!(seen.insert((fingerprint, iv)), "initialisation vector {iv:02x?} used twice with one key");
    });
}

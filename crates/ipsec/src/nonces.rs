//! Register of pairs of key and initialisation vector, in debug builds only: a repeated pair is a panic.
//!
//! AES-GCM loses its secrets when a nonce repeats under one key, and CBC shows which packets have equal prefixes. Two
//! SAs may have one key, so the register belongs to the thread, in which a test or a simulation has all its nodes.

use std::cell::RefCell;
use std::hash::BuildHasher;

use hashbrown::HashSet;

/// Maximum number of registered pairs. At the limit the register is cleared, so that a long run of a debug build stays
/// small.
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

/// Registers that a packet is sealed with a key and `iv`.
///
/// # Panics
/// On a repetition.
pub(crate) fn register(fingerprint: u64, iv: [u8; 8]) {
    SEEN.with_borrow_mut(|seen| {
        if seen.capacity() == 0 {
            // Growth in between would count as an allocation of the packet.
            seen.reserve(LIMIT);
        }
        if seen.len() >= LIMIT {
            seen.clear();
        }
        assert!(seen.insert((fingerprint, iv)), "initialisation vector {iv:02x?} used twice with one key");
    });
}

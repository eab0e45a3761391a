//! Hash by which flows select the paths of routes, with the seed of this process.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use base::{PathHash, PathHashPolicy};

/// Random, so that gateways in a row do not choose alike. All workers have the same: a flow has one path.
static SEED: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));

/// The hash with the policies of IPv4 and IPv6.
pub(crate) fn of([v4, v6]: [PathHashPolicy; 2]) -> PathHash {
    let mut hash = PathHash::with_seed(*SEED);
    hash.set_policy(true, v4);
    hash.set_policy(false, v6);
    hash
}

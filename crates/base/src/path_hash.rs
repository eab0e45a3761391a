//! Choice among the paths of a route by a hash of the flow.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;

use foldhash::quality::FixedState;

use crate::RouteFlow;

/// Fields of a flow that select a path (Linux `fib_multipath_hash_policy`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PathHashPolicy {
    /// Addresses: policy 0.
    #[default]
    Addresses,
    /// Addresses, protocol and ports: policy 1.
    Ports,
}

/// Hash of flows, equal for all packets of a flow. Its finisher counts: the upper bits of the fast variant are one for all of 64
/// consecutive ports with some seeds.
#[derive(Clone)]
pub struct PathHash {
    seed: u64,
    state: FixedState,
    /// Policies of IPv4 and of IPv6.
    policies: [PathHashPolicy; 2],
}

impl Default for PathHash {
    fn default() -> Self {
        Self::with_seed(0)
    }
}

impl PathHash {
    /// A hash with that seed. Gateways in a row have different ones, or they would all choose alike.
    pub fn with_seed(seed: u64) -> Self {
        Self { seed, state: FixedState::with_seed(seed), policies: [PathHashPolicy::default(); 2] }
    }

    /// Sets the policy of a family.
    pub const fn set_policy(&mut self, v4: bool, policy: PathHashPolicy) {
        self.policies[!v4 as usize] = policy;
    }

    /// Hash of a flow.
    #[inline]
    pub fn of(&self, flow: &RouteFlow) -> u32 {
        let upper = match self.policies[usize::from(flow.dst.is_ipv6())] {
            PathHashPolicy::Addresses => 0,
            PathHashPolicy::Ports => {
                u64::from(flow.protocol) << 32 | u64::from(flow.sport) << 16 | u64::from(flow.dport)
            }
        };
        let mut hasher = self.state.build_hasher();
        match (flow.dst, flow.src) {
            (IpAddr::V4(dst), Some(IpAddr::V4(src))) => {
                hasher.write_u64(u64::from(dst.to_bits()) << 32 | u64::from(src.to_bits()));
            }
            (IpAddr::V4(dst), _) => hasher.write_u64(u64::from(dst.to_bits()) << 32),
            (IpAddr::V6(dst), src) => {
                hasher.write_u128(dst.to_bits());
                hasher.write_u128(if let Some(IpAddr::V6(src)) = src { src.to_bits() } else { 0 });
            }
        }
        hasher.write_u64(upper);
        (hasher.finish() >> 32) as u32
    }
}

impl PartialEq for PathHash {
    fn eq(&self, other: &Self) -> bool {
        (self.seed, self.policies) == (other.seed, other.policies)
    }
}

impl fmt::Debug for PathHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PathHash").field("policies", &self.policies).finish_non_exhaustive()
    }
}

/// Place of the path for a hash. `upto` has for each path the sum of the weights up to it; it is not empty, and ascends from above 0.
#[inline]
pub fn path_of(hash: u32, upto: &[u32]) -> usize {
    let sum = u64::from(upto.last().copied().unwrap_or(1));
    let at = ((u64::from(hash) * sum) >> 32) as u32;
    upto.partition_point(|&upto| upto <= at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Domain;

    fn flow(n: u16) -> RouteFlow {
        let src = Some("192.0.2.1".parse().unwrap());
        RouteFlow {
            src,
            sport: n,
            dport: 80,
            protocol: 6,
            ..RouteFlow::to(Domain::DEFAULT, [10, 0, (n >> 8) as u8, n as u8].into())
        }
    }

    #[test]
    fn ports_select_a_path_by_policy_1_alone() {
        let near = flow(1);
        let other = RouteFlow { sport: 2, ..near };
        let mut hash = PathHash::default();
        assert_eq!(hash.of(&near), hash.of(&other));
        hash.set_policy(false, PathHashPolicy::Ports);
        assert_eq!(hash.of(&near), hash.of(&other), "the policy of IPv6");
        hash.set_policy(true, PathHashPolicy::Ports);
        assert_ne!(hash.of(&near), hash.of(&other));
        assert_ne!(hash.of(&near), PathHash::with_seed(1).of(&near));
    }

    #[test]
    fn consecutive_ports_are_spread_with_any_seed() {
        for seed in 0..2000_u64 {
            let mut hash = PathHash::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            hash.set_policy(true, PathHashPolicy::Ports);
            let of_port = |sport| path_of(hash.of(&RouteFlow { sport, ..flow(1) }), &[1, 4]);
            let first = (5000..5064).filter(|&sport| of_port(sport) == 0).count();
            // Sixteen are the mean, and six standard deviations are 21.
            assert!((1..=37).contains(&first), "{seed}: {first} of 64");
        }
    }

    #[test]
    fn paths_get_flows_by_their_weights() {
        let upto = [1, 4, 8];
        let mut counts = [0; 3];
        let hash = PathHash::default();
        for n in 0..8000 {
            counts[path_of(hash.of(&flow(n)), &upto)] += 1;
        }
        for (count, weight) in counts.into_iter().zip([1, 3, 4]) {
            assert!((weight * 900..weight * 1100).contains(&count), "{counts:?}");
        }
        assert_eq!([path_of(0, &upto), path_of(u32::MAX, &upto)], [0, 2]);
    }
}

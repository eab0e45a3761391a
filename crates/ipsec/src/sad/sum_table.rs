//! Table of sums of packets and bytes, by addresses, `reqid` and direction, with a limit.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};

use xfrm::SaDir;

/// Limit of sums. Above it the sum that has had no SA for the longest time is dropped; if each has one, a new SA has none.
pub const MAX_SUMS: usize = 1 << 17;

/// Limit of sums without an SA, so that peers that are gone do not make what monitors read longer. Above it the oldest is dropped.
const MAX_IDLE_SUMS: usize = 2048;

/// SAs that have a sum in common.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct SaSumKey {
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The number that ties them to templates.
    pub reqid: u32,
    /// The only direction in which they may be used.
    pub dir: Option<SaDir>,
}

/// Packets and bytes of SAs, without those of an earlier process.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SaSum {
    /// Packets protected.
    pub packets: u64,
    /// Bytes protected.
    pub bytes: u64,
    /// Number of SAs.
    sas: u32,
    /// Place among the sums without an SA.
    idle: u64,
}

/// The sums of a shard.
#[derive(Debug, Default)]
pub(super) struct SaSums {
    sums: BTreeMap<SaSumKey, SaSum>,
    /// Sums without an SA, in the order in which they lost their last one.
    idle: BTreeMap<u64, SaSumKey>,
    last_idle: u64,
    /// Number of SAs that found no room for a sum.
    left_out: u64,
}

impl SaSums {
    /// Counts one more SA of a sum.
    pub(super) fn enter(&mut self, key: SaSumKey, limit: usize) {
        if let Some(sum) = self.sums.get_mut(&key) {
            if sum.sas == 0 {
                self.idle.remove(&sum.idle);
            }
            sum.sas += 1;
            return;
        }
        if self.sums.len() >= limit {
            let Some((_, oldest)) = self.idle.pop_first() else {
                self.left_out += 1;
                return;
            };
            self.sums.remove(&oldest);
        }
        self.sums.insert(key, SaSum { sas: 1, ..SaSum::default() });
    }

    /// Counts one SA of a sum less.
    pub(super) fn leave(&mut self, key: SaSumKey) {
        // An SA that was left out may leave a sum that others began later.
        let Some(sum) = self.sums.get_mut(&key).filter(|sum| sum.sas > 0) else { return };
        sum.sas -= 1;
        if sum.sas == 0 {
            self.last_idle += 1;
            sum.idle = self.last_idle;
            self.idle.insert(self.last_idle, key);
            if self.idle.len() > MAX_IDLE_SUMS
                && let Some((_, oldest)) = self.idle.pop_first()
            {
                self.sums.remove(&oldest);
            }
        }
    }

    pub(super) fn add(&mut self, key: SaSumKey, (packets, bytes): (u64, u64)) {
        if let Some(sum) = self.sums.get_mut(&key) {
            sum.packets = sum.packets.wrapping_add(packets);
            sum.bytes = sum.bytes.wrapping_add(bytes);
        }
    }

    /// Sums behind `after` in their order, or from the first on.
    pub(super) fn after(&self, after: Option<SaSumKey>) -> impl Iterator<Item = (SaSumKey, SaSum)> {
        let from = after.map_or(Unbounded, Excluded);
        self.sums.range((from, Unbounded)).map(|(key, sum)| (*key, *sum))
    }

    /// Number of sums, and of SAs that found no room for one.
    pub(super) fn counts(&self) -> [u64; 2] {
        [self.sums.len() as u64, self.left_out]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_without_an_sa_are_bounded() {
        let any = IpAddr::from([192, 0, 2, 1]);
        let key = |reqid| SaSumKey { src: any, dst: any, reqid, dir: None };
        let mut sums = SaSums::default();
        sums.enter(key(0), MAX_SUMS);
        for reqid in 1..=MAX_IDLE_SUMS as u32 + 5 {
            sums.enter(key(reqid), MAX_SUMS);
            sums.leave(key(reqid));
        }
        // That of an SA stays, however old.
        assert_eq!((sums.sums.len(), sums.idle.len()), (MAX_IDLE_SUMS + 1, MAX_IDLE_SUMS));
        let first: Vec<u32> = sums.sums.keys().take(2).map(|key| key.reqid).collect();
        assert_eq!(first, [0, 6]);
    }

    #[test]
    fn full_table_drops_the_sum_without_an_sa_for_the_longest() {
        let any = IpAddr::from([192, 0, 2, 1]);
        let key = |reqid| SaSumKey { src: any, dst: any, reqid, dir: None };
        let mut sums = SaSums::default();
        (1..=3).for_each(|reqid| sums.enter(key(reqid), 3));
        // All have an SA.
        sums.enter(key(4), 3);
        assert_eq!((sums.sums.len(), sums.left_out), (3, 1));
        sums.leave(key(4));
        [2, 1].into_iter().for_each(|reqid| sums.leave(key(reqid)));
        sums.enter(key(2), 3);
        sums.leave(key(2));
        sums.enter(key(5), 3);
        let left: Vec<u32> = sums.sums.keys().map(|key| key.reqid).collect();
        assert_eq!((left, sums.left_out), (vec![2, 3, 5], 1));
    }
}

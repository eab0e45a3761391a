//! Sums of the packets and bytes of SAs that follow one another, by addresses, `reqid` and direction: no rekey lowers them.
//!
//! An SA adds what it has counted since it last did, when it ends and when the sums are read ([`Sad::add_up`]). So a packet costs
//! nothing more, and a sum is right whenever SAs end between two steps of a reader. The owner of an SA has its sum.

use base::{Instant, SaId};

use super::Sad;
use super::sum_table::{MAX_SUMS, SaSum, SaSumKey};
use crate::sa::{Age, Sa};

impl Sa {
    const fn sum_key(&self) -> SaSumKey {
        SaSumKey { src: self.src, dst: self.dst, reqid: self.reqid, dir: self.dir }
    }

    /// Time of its hard limit, if that is one of time.
    fn expires(&self) -> Option<Instant> {
        let Age { lifetime, added, first_used, .. } = &*self.age;
        added.and_then(|added| lifetime.hard.at(added, *first_used))
    }

    /// Takes the packets and bytes that are in no sum yet.
    fn take_unsummed(&mut self) -> (u64, u64) {
        let now = (self.stats.packets, self.stats.bytes);
        let (packets, bytes) = std::mem::replace(&mut self.age.summed, now);
        (now.0.wrapping_sub(packets), now.1.wrapping_sub(bytes))
    }
}

impl Sad {
    /// Counts an SA as one of its sum, if this shard owns the SA.
    pub(super) fn enter_sum(&mut self, id: SaId) {
        if let Some(key) = self.get(id).filter(|sa| self.owns(sa)).map(Sa::sum_key) {
            self.sums.enter(key, MAX_SUMS);
        }
    }

    /// Adds the last packets of an SA to its sum, of which it is none any more.
    pub(super) fn leave_sum(&mut self, id: SaId) {
        self.add_up(id);
        if let Some(key) = self.get(id).filter(|sa| self.owns(sa)).map(Sa::sum_key) {
            self.sums.leave(key);
        }
    }

    /// Adds what an SA has counted since the last call to its sum, if this shard owns the SA, which is returned then.
    fn add_up(&mut self, id: SaId) -> Option<&Sa> {
        let owner = self.place.id;
        self.update_stats(id);
        let Self { slots, sums, .. } = self;
        let sa = slots.get_mut(id).filter(|sa| sa.owner() == owner)?;
        let counted = sa.take_unsummed();
        sums.add(sa.sum_key(), counted);
        Some(sa)
    }

    /// Adds up at most `count` SAs, but the first `from` that were ever added, and reports the time at which each ends, if it does.
    /// Returns the number to go on with, or `None` at the end.
    pub(crate) fn add_up_some(
        &mut self,
        from: u64,
        count: usize,
        mut expiry: impl FnMut(SaSumKey, Option<Instant>),
    ) -> Option<u64> {
        let mut next = from;
        for _ in 0..count {
            let (&born, &id) = self.by_birth.range(next..).next()?;
            if let Some(sa) = self.add_up(id) {
                expiry(sa.sum_key(), sa.expires());
            }
            next = born + 1;
        }
        Some(next)
    }

    /// Sums behind `after` in their order, or from the first on.
    pub fn sums_after(&self, after: Option<SaSumKey>) -> impl Iterator<Item = (SaSumKey, SaSum)> {
        self.sums.after(after)
    }

    /// Number of sums, and of SAs that found no room for one.
    pub fn sum_counts(&self) -> [u64; 2] {
        self.sums.counts()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use wire::Spi;
    use xfrm::{Algorithm, Lifetime, Limits, Mode, SaConfig};

    use super::*;

    fn config(spi: u32, reqid: u32) -> SaConfig {
        let [src, dst] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        SaConfig { reqid, ..SaConfig::new(src, dst, Spi(spi), Mode::Tunnel, Algorithm::null()) }
    }

    /// Sums by `reqid`, after all SAs have been added up.
    fn sums(sad: &mut Sad) -> Vec<(u32, u64, u64)> {
        let mut from = Some(0);
        while let Some(at) = from {
            from = sad.add_up_some(at, 2, |_, _| ());
        }
        sad.sums_after(None).map(|(key, sum)| (key.reqid, sum.packets, sum.bytes)).collect()
    }

    fn count_packets(sad: &mut Sad, id: SaId, packets: u64) {
        sad.get_mut(id).unwrap().used(base::Instant::ZERO, packets, 100 * packets);
    }

    #[test]
    fn sum_stays_when_its_sas_are_rekeyed_and_removed() {
        let mut sad = Sad::default();
        let old = sad.add(&config(1, 7), 0).unwrap();
        assert_eq!(sums(&mut sad), [(7, 0, 0)], "a tunnel without packets has a sum");
        count_packets(&mut sad, old, 3);
        assert_eq!(sums(&mut sad), [(7, 3, 300)]);
        assert_eq!(sums(&mut sad), [(7, 3, 300)], "nothing is added twice");
        let new = sad.add(&config(2, 7), 0).unwrap();
        count_packets(&mut sad, old, 1);
        count_packets(&mut sad, new, 10);
        drop(sad.take(old));
        assert_eq!(sums(&mut sad), [(7, 14, 1400)]);
        drop(sad.take(new));
        assert_eq!(sums(&mut sad), [(7, 14, 1400)]);
        sad.add(&config(3, 8), 0).unwrap();
        assert_eq!(sums(&mut sad), [(7, 14, 1400), (8, 0, 0)]);
    }

    #[test]
    fn sa_with_a_hard_limit_of_time_has_an_expiry() {
        let mut sad = Sad::default();
        let limited = |spi, added| {
            let hard = Limits { added, ..Limits::NONE };
            SaConfig { lifetime: Lifetime { hard, ..Lifetime::default() }, ..config(spi, spi) }
        };
        for (spi, added) in [(1, Some(Duration::from_secs(60))), (2, None)] {
            let id = sad.add(&limited(spi, added), 0).unwrap();
            sad.get_mut(id).unwrap().age.added = Some(Instant::ZERO);
        }
        // Its lifetime has not begun.
        sad.add(&limited(3, Some(Duration::from_secs(60))), 0).unwrap();
        let mut found = Vec::new();
        sad.add_up_some(0, 9, |key, at| found.push((key.reqid, at)));
        assert_eq!(found, [(1, Some(Instant::ZERO + Duration::from_secs(60))), (2, None), (3, None)]);
    }

    #[test]
    fn counts_of_an_earlier_process_are_in_no_sum() {
        let mut sad = Sad::default();
        let id = sad.add(&config(1, 7), 0).unwrap();
        count_packets(&mut sad, id, 2);
        sad.get_mut(id).unwrap().resume_counts(1000, 5000);
        assert_eq!(sums(&mut sad), [(7, 2, 200)]);
        count_packets(&mut sad, id, 1);
        assert_eq!(sums(&mut sad), [(7, 3, 300)]);
    }

    #[test]
    fn sa_that_gets_another_reqid_leaves_its_packets_in_the_old_sum() {
        let mut sad = Sad::default();
        let id = sad.add(&config(1, 7), 0).unwrap();
        count_packets(&mut sad, id, 2);
        sad.replace(&config(1, 9)).unwrap();
        count_packets(&mut sad, id, 5);
        assert_eq!(sums(&mut sad), [(7, 2, 200), (9, 5, 500)]);
        drop(sad.take(id));
        assert_eq!(sums(&mut sad), [(7, 2, 200), (9, 5, 500)]);
    }
}

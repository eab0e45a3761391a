//! Rate limits of sent ICMP messages: Linux's `icmp_msgs_per_sec` for all destinations together and `icmp_ratelimit` for
//! each destination (RFC 1812 §4.3.2.8, RFC 4443 §2.4 (f)).

use std::net::IpAddr;

use base::{Instant, Rate, ShardCount, TokenBucket};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Messages a second to all destinations together.
const ALL_A_SECOND: u32 = 1000;

/// Burst of them.
const ALL_AT_ONCE: u32 = 50;

/// Messages to one destination at once, which gets one a second (`XRLIM_BURST_FACTOR`).
const EACH_AT_ONCE: u32 = 6;

/// Limit of destinations with a bucket of their own. At the limit, destinations with a full bucket are evicted; if there is none,
/// only the limit for all destinations applies.
const MAX_DESTINATIONS: usize = 1024;

/// Both limits.
#[derive(Debug)]
pub struct RateLimit {
    all: TokenBucket,
    each: HashMap<IpAddr, TokenBucket, RandomState>,
    rate_of_all: Rate,
    rate_of_each: Rate,
}

impl Default for RateLimit {
    fn default() -> Self {
        Self::shared_by(ShardCount::ONE)
    }
}

impl RateLimit {
    /// Share of one of `count` shards, each of which sends errors about the packets that it handles. The burst is divided, to at least
    /// one message, and so is the rate to all destinations. One destination gets a message a second of each shard.
    pub fn shared_by(count: ShardCount) -> Self {
        let share = |of: u32| (of / count.get() as u32).max(1);
        Self {
            all: TokenBucket::FULL,
            each: HashMap::with_hasher(RandomState::default()),
            rate_of_all: Rate::new(share(ALL_A_SECOND), share(ALL_AT_ONCE)),
            rate_of_each: Rate::new(1, share(EACH_AT_ONCE)),
        }
    }

    /// Tells whether one more message may be sent to `to` now, and counts it. A message that is refused costs one look-up at most:
    /// only sent messages, a thousand a second, evict destinations.
    pub fn allow(&mut self, now: Instant, to: IpAddr) -> bool {
        if !self.all.has_token(self.rate_of_all, now)
            || self.each.get(&to).is_some_and(|each| !each.has_token(self.rate_of_each, now))
        {
            return false;
        }
        self.all.take(self.rate_of_all, now);
        if self.each.len() >= MAX_DESTINATIONS && !self.each.contains_key(&to) {
            self.each.retain(|_, bucket| !bucket.is_full(now));
            if self.each.len() >= MAX_DESTINATIONS {
                return true;
            }
        }
        self.each.entry(to).or_insert(TokenBucket::FULL).take(self.rate_of_each, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn to(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn a_destination_gets_six_at_once_and_one_a_second() {
        let mut limit = RateLimit::default();
        let allowed = |limit: &mut RateLimit, at: Instant| (0..20).filter(|_| limit.allow(at, to(1))).count();
        assert_eq!(allowed(&mut limit, Instant::ZERO), 6);
        assert_eq!(allowed(&mut limit, Instant::ZERO + Duration::from_millis(999)), 0);
        assert_eq!(allowed(&mut limit, Instant::ZERO + Duration::from_secs(1)), 1);
        assert_eq!(allowed(&mut limit, Instant::ZERO + Duration::from_secs(3)), 2);
        assert_eq!(allowed(&mut limit, Instant::ZERO + Duration::from_secs(300)), 6);
        // Packets are not always handled in the order in which they were received.
        assert_eq!(allowed(&mut limit, Instant::ZERO + Duration::from_secs(299)), 0);
    }

    #[test]
    fn all_destinations_share_burst_of_50_and_1000_a_second() {
        let mut limit = RateLimit::default();
        let mut flood = |at: Instant| {
            (0..=255_u8)
                .flat_map(|a| (0..40).map(move |b| IpAddr::from([10, 0, b, a])))
                .filter(|&to| limit.allow(at, to))
                .count()
        };
        assert_eq!(flood(Instant::ZERO), 50);
        assert_eq!(flood(Instant::ZERO + Duration::from_millis(20)), 20);
        assert_eq!(flood(Instant::ZERO + Duration::from_secs(60)), 50);
    }

    #[test]
    fn destinations_are_forgotten_rather_than_piled_up() {
        let mut limit = RateLimit::default();
        for n in 0..100_000_u32 {
            limit.allow(Instant::from_nanos(u64::from(n) * 1_000_000), IpAddr::from(n.to_be_bytes()));
        }
        assert!(limit.each.len() <= MAX_DESTINATIONS, "{} destinations", limit.each.len());
    }

    #[test]
    fn refused_destinations_are_not_remembered() {
        let mut limit = RateLimit::default();
        for n in 0..100_000_u32 {
            limit.allow(Instant::ZERO, IpAddr::from(n.to_be_bytes()));
        }
        assert_eq!(limit.each.len(), 50);
    }
}

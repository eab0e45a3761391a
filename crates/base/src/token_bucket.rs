//! Rate limits: a token bucket.

use crate::Instant;

/// Fill rate and capacity of a [`TokenBucket`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    interval_ns: u64,
    burst: u32,
}

impl Rate {
    /// A rate of `per_second` tokens, with at most `burst` tokens in the bucket.
    ///
    /// # Panics
    /// If either is zero.
    pub const fn new(per_second: u32, burst: u32) -> Self {
        assert!(per_second > 0 && burst > 0, "a rate lets something pass");
        Self { interval_ns: 1_000_000_000 / per_second as u64, burst }
    }

    /// Time in nanoseconds that an empty bucket takes to fill.
    const fn full_ns(self) -> u64 {
        self.interval_ns * self.burst as u64
    }
}

/// A token bucket, stored as the time at which it was last empty (generic cell rate algorithm).
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Nanoseconds on a clock that runs ahead of the caller's by the fill time of a bucket, so that a bucket is full at
    /// [`Instant::ZERO`].
    empty_at_ns: u64,
}

impl TokenBucket {
    /// A full bucket.
    pub const FULL: Self = Self { empty_at_ns: 0 };

    /// Takes one token, if available. A clock that goes backwards adds no tokens.
    pub fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let left = self.after_one(rate, now);
        self.empty_at_ns = left.unwrap_or(self.empty_at_ns);
        left.is_some()
    }

    /// Tells whether a token is available.
    pub fn has_token(self, rate: Rate, now: Instant) -> bool {
        self.after_one(rate, now).is_some()
    }

    /// New value of `empty_at_ns` if the bucket loses a token now.
    fn after_one(self, rate: Rate, now: Instant) -> Option<u64> {
        let now_ns = now.as_nanos().saturating_add(rate.full_ns());
        let empty_at_ns = self.empty_at_ns.max(now_ns - rate.full_ns());
        let has_token = now_ns.saturating_sub(empty_at_ns) >= rate.interval_ns;
        has_token.then_some(empty_at_ns + rate.interval_ns)
    }

    /// Tells whether the bucket is full.
    pub const fn is_full(self, now: Instant) -> bool {
        self.empty_at_ns <= now.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn bucket_gives_its_burst_and_then_its_rate() {
        let rate = Rate::new(10, 3);
        let mut bucket = TokenBucket::FULL;
        let mut taken = |ms| {
            let now = Instant::ZERO + Duration::from_millis(ms);
            (0..100).filter(|_| bucket.has_token(rate, now) && bucket.take(rate, now)).count()
        };
        for (ms, want) in [(0, 3), (99, 0), (100, 1), (250, 1), (300, 1), (10_000, 3), (9_000, 0), (10_100, 1)] {
            assert_eq!(taken(ms), want, "at {ms} ms");
        }
    }

    #[test]
    fn bucket_is_full_when_its_burst_has_come_back() {
        let rate = Rate::new(10, 3);
        let mut bucket = TokenBucket::FULL;
        assert!(bucket.is_full(Instant::ZERO));
        assert!(bucket.take(rate, Instant::ZERO) && bucket.take(rate, Instant::ZERO));
        assert!(!bucket.is_full(Instant::ZERO + Duration::from_millis(199)));
        assert!(bucket.is_full(Instant::ZERO + Duration::from_millis(200)));
    }
}

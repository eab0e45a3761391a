//! Token buckets. A token is a nanosecond of sending at the bucket's rate.

use std::time::Duration;

use base::Instant;

use crate::options::BucketSpec;

/// One bucket.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    spec: BucketSpec,
    /// Tokens at the time [`Buckets::checked_at`]; negative after a packet that costs more than a full bucket.
    tokens: i64,
}

impl Bucket {
    fn full(spec: BucketSpec) -> Self {
        Self { spec, tokens: spec.depth }
    }

    /// Tokens that a packet of `len` bytes costs.
    fn cost(&self, len: u32) -> i64 {
        i64::try_from(self.spec.pace.nanos(len)).unwrap_or(i64::MAX)
    }

    /// Nanoseconds until a packet of `len` bytes may leave. A packet that costs more than a full bucket leaves when
    /// the bucket is full.
    fn wait(&self, len: u32) -> u64 {
        u64::try_from(self.cost(len).min(self.spec.depth).saturating_sub(self.tokens)).unwrap_or(0)
    }

    /// Fills the bucket for `elapsed` nanoseconds, and removes the tokens of a packet of `len` bytes.
    fn take(&mut self, elapsed: i64, len: u32) {
        let filled = self.tokens.saturating_add(elapsed).min(self.spec.depth);
        self.tokens = filled.saturating_sub(self.cost(len));
    }
}

/// Buckets of a filter: a packet leaves when both hold enough tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buckets {
    rate: Bucket,
    peak: Option<Bucket>,
    checked_at: Instant,
}

impl Buckets {
    /// Full buckets.
    pub(crate) fn full(now: Instant, rate: BucketSpec, peak: Option<BucketSpec>) -> Self {
        Self { rate: Bucket::full(rate), peak: peak.map(Bucket::full), checked_at: now }
    }

    /// Fills the buckets.
    pub(crate) fn refill(&mut self, now: Instant) {
        let Self { rate, peak, .. } = *self;
        *self = Self::full(now, rate.spec, peak.map(|peak| peak.spec));
    }

    /// Earliest time at which a packet of `len` bytes may leave.
    pub(crate) fn ready_at(&self, len: u32) -> Instant {
        let wait = self.peak.map_or(0, |peak| peak.wait(len)).max(self.rate.wait(len));
        self.checked_at + Duration::from_nanos(wait)
    }

    /// Removes the tokens of a packet of `len` bytes, which leaves now: no earlier than [`Buckets::ready_at`].
    pub(crate) fn take(&mut self, now: Instant, len: u32) {
        let elapsed = i64::try_from(now.since(self.checked_at).as_nanos()).unwrap_or(i64::MAX);
        self.rate.take(elapsed, len);
        if let Some(peak) = &mut self.peak {
            peak.take(elapsed, len);
        }
        self.checked_at = now;
    }
}

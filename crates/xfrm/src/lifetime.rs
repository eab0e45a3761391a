//! Lifetimes of SAs and policies: soft limits notify, hard limits end the object (RFC 4301 §4.4.2.1, Linux
//! `struct xfrm_lifetime_cfg`).

use std::time::Duration;

use base::Instant;

/// Soft and hard limits of an SA or a policy. The default has no limits.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Lifetime {
    /// Limits at which the listener is notified, once.
    pub soft: Limits,
    /// Limits at which the SA or policy ends.
    pub hard: Limits,
}

/// Limits, of which the first one reached applies.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Limits {
    /// Bytes protected; [`u64::MAX`] for no limit. Checked before each packet.
    pub bytes: u64,
    /// Packets protected; [`u64::MAX`] for no limit.
    pub packets: u64,
    /// Time since the addition.
    pub added: Option<Duration>,
    /// Time since the use: of an SA the first, of a policy the last (Linux `xfrm_timer_handler`, `xfrm_policy_timer`).
    pub used: Option<Duration>,
}

impl Limits {
    /// No limits.
    pub const NONE: Self = Self { bytes: u64::MAX, packets: u64::MAX, added: None, used: None };

    /// Tells whether this use reaches a limit.
    #[inline]
    pub const fn are_reached(&self, bytes: u64, packets: u64) -> bool {
        bytes >= self.bytes || packets >= self.packets
    }

    /// Earliest instant of a time limit.
    pub fn at(&self, added: Instant, used: Option<Instant>) -> Option<Instant> {
        let since = |from: Option<Instant>, limit: Option<Duration>| Some(from? + limit?);
        let at = since(Some(added), self.added).into_iter().chain(since(used, self.used)).min()?;
        // An instant this far away stands for never.
        (at < Instant::from_nanos(u64::MAX)).then_some(at)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Option<Duration> {
        Some(Duration::from_secs(secs))
    }

    #[test]
    fn the_first_limit_in_time_counts() {
        let at = |secs| Instant::ZERO + Duration::from_secs(secs);
        let cases = [
            (None, None, Some(at(5)), None),
            (secs(10), None, None, Some(at(11))),
            (None, secs(10), None, None),
            (None, secs(10), Some(at(5)), Some(at(15))),
            (secs(20), secs(10), Some(at(5)), Some(at(15))),
            (secs(20), secs(10), Some(at(15)), Some(at(21))),
            (secs(u64::MAX), None, None, None),
        ];
        for (added, used, used_at, want) in cases {
            let limits = Limits { added, used, ..Limits::NONE };
            assert_eq!(limits.at(at(1), used_at), want, "{limits:?} used {used_at:?}");
        }
    }

    #[test]
    fn a_limit_is_reached_by_what_was_used_before() {
        let limits = Limits { bytes: 100, packets: 3, ..Limits::NONE };
        for (bytes, packets, want) in [(99, 2, false), (100, 0, true), (0, 3, true), (u64::MAX - 1, 0, true)] {
            assert_eq!(limits.are_reached(bytes, packets), want, "{bytes} bytes, {packets} packets");
        }
        assert!(!Limits::NONE.are_reached(u64::MAX - 1, u64::MAX - 1));
    }
}

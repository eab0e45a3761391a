//! Idle detector: no packets for some milliseconds.

use std::time::{Duration, Instant};

/// Detector of pauses in traffic: a stream leaves the worker idle between two bursts, and soon needs the CPU again.
#[derive(Debug, Default)]
pub(super) struct IdleDetector {
    bursts: u32,
    /// Time of the last change of `bursts`; `None` before the first.
    since: Option<Instant>,
}

impl IdleDetector {
    /// Pause after which no packets are expected soon.
    const LONG: Duration = Duration::from_millis(10);

    /// Tells whether the pause in traffic is long; `bursts` counts wake-ups of the worker by packets so far.
    pub(super) fn is_long(&mut self, bursts: u32, now: Instant) -> bool {
        if self.bursts != bursts {
            (self.bursts, self.since) = (bursts, Some(now));
        }
        self.since.is_none_or(|since| now.duration_since(since) >= Self::LONG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_not_idle_between_two_bursts() {
        let (start, mut idle) = (Instant::now(), IdleDetector::default());
        let mut at = |millis, bursts| idle.is_long(bursts, start + Duration::from_millis(millis));
        assert!(at(0, 0) && at(1, 0), "nothing has come yet");
        assert!(!at(2, 1) && !at(11, 1) && at(12, 1));
        assert!(!at(13, 7) && !at(22, 8) && !at(31, 8) && at(32, 8));
    }
}

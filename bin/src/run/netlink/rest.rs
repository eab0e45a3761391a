//! Idle detector: no packets for some milliseconds.

use std::time::{Duration, Instant};

/// Time without packets. A stream leaves its worker idle between two bursts, and soon needs it again.
#[derive(Debug, Default)]
pub(super) struct Rest {
    bursts: u32,
    /// Time at which `bursts` was last seen to change; `None`: not yet.
    since: Option<Instant>,
}

impl Rest {
    /// Time without packets after which none are expected soon.
    const LONG: Duration = Duration::from_millis(10);

    /// Tells whether no packets have come for long; `bursts` counts wake-ups of the worker to packets so far.
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
    fn a_stream_is_no_rest_between_two_bursts() {
        let (start, mut rest) = (Instant::now(), Rest::default());
        let mut at = |millis, bursts| rest.is_long(bursts, start + Duration::from_millis(millis));
        assert!(at(0, 0) && at(1, 0), "nothing has come yet");
        assert!(!at(2, 1) && !at(11, 1) && at(12, 1));
        assert!(!at(13, 7) && !at(22, 8) && !at(31, 8) && at(32, 8));
    }
}

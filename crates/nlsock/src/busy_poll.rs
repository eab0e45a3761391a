//! Busy polling for a short while before blocking.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Busy poller with exponential back-off.
///
/// A sleeping processor takes longer to wake up than either side takes to answer the other. Where both sides share one
/// processor, polling finds nothing and only delays the peer: after each poll in vain, twice as many of the next polls
/// are skipped.
#[derive(Debug, Default)]
pub struct BusyPoll {
    /// Number of next polls to skip.
    left_out: AtomicU32,
    /// Number of polls that were skipped after the last poll in vain.
    last: AtomicU32,
}

impl BusyPoll {
    /// Length of one poll: about the wake-up time of a hypervisor's guest (Linux `guest_halt_poll_ns`).
    pub const DURATION: Duration = Duration::from_micros(200);

    /// Maximum number of skipped polls.
    const MOST: u32 = 255;

    /// A poller that skips no poll yet.
    pub const fn new() -> Self {
        Self { left_out: AtomicU32::new(0), last: AtomicU32::new(0) }
    }

    /// Tells whether to [poll](Self::poll) this time, and counts the call.
    pub fn should_poll(&self) -> bool {
        self.left_out.fetch_update(Relaxed, Relaxed, |times| times.checked_sub(1)).is_err()
    }

    /// The first result of `attempt`; `None` after [`DURATION`](Self::DURATION) without one.
    pub fn poll<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            let found = attempt();
            if found.is_some() {
                self.last.store(0, Relaxed);
                return found;
            }
            if start.elapsed() >= Self::DURATION {
                let times = (2 * self.last.load(Relaxed) + 1).min(Self::MOST);
                self.last.store(times, Relaxed);
                self.left_out.store(times, Relaxed);
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(busy_poll: &BusyPoll, finds: bool) -> bool {
        busy_poll.should_poll() && busy_poll.poll(|| finds.then_some(())).is_some() == finds
    }

    #[test]
    #[cfg_attr(miri, ignore = "the interpreter takes longer than a poll lasts")]
    fn poll_finds_arrival_before_it_ends() {
        let mut attempts = 0;
        let found = BusyPoll::new().poll(|| {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        });
        assert_eq!(found, Some(3));
    }

    #[test]
    fn polls_in_vain_double_the_skipped_ones() {
        let busy_poll = BusyPoll::new();
        for left_out in [1, 3, 7, 15, 31, 63, 127, 255, 255] {
            assert!(looks(&busy_poll, false));
            assert_eq!((0..left_out).filter(|_| busy_poll.should_poll()).count(), 0, "of {left_out}");
        }
        for _ in 0..3 {
            assert!(looks(&busy_poll, true), "it found something");
        }
        assert!(looks(&busy_poll, false));
        assert!(!busy_poll.should_poll());
        assert!(looks(&busy_poll, false), "one was left out");
    }
}

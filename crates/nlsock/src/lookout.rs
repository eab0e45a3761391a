//! Busy polling for a short while before blocking.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Busy poller with exponential back-off.
///
/// A processor that has gone to sleep takes longer to wake up than either side takes to answer the other. Where both sides
/// share one processor, polling finds nothing and only delays the peer: after each poll in vain, twice as many of the next
/// polls are skipped.
#[derive(Debug, Default)]
pub struct Lookout {
    /// Polls that are skipped from now on.
    left_out: AtomicU32,
    /// Polls that were skipped after the last poll in vain.
    last: AtomicU32,
}

impl Lookout {
    /// Length of one poll: about as long as the guest of a hypervisor takes to wake up (Linux `guest_halt_poll_ns`).
    pub const LOOK: Duration = Duration::from_micros(200);

    /// Polls that are skipped at most.
    const MOST: u32 = 255;

    /// A poller that polls the next time.
    pub const fn new() -> Self {
        Self { left_out: AtomicU32::new(0), last: AtomicU32::new(0) }
    }

    /// Tells whether to [poll](Self::look) this time, and counts the times.
    pub fn is_worth_it(&self) -> bool {
        self.left_out.fetch_update(Relaxed, Relaxed, |times| times.checked_sub(1)).is_err()
    }

    /// The first thing that `attempt` finds. `None`: nothing for [`LOOK`](Self::LOOK).
    pub fn look<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let start = Instant::now();
        loop {
            let found = attempt();
            if found.is_some() {
                self.last.store(0, Relaxed);
                return found;
            }
            if start.elapsed() >= Self::LOOK {
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

    fn looks(lookout: &Lookout, finds: bool) -> bool {
        lookout.is_worth_it() && lookout.look(|| finds.then_some(())).is_some() == finds
    }

    #[test]
    fn poll_finds_arrival_before_it_ends() {
        let mut attempts = 0;
        let found = Lookout::new().look(|| {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        });
        assert_eq!(found, Some(3));
    }

    #[test]
    fn polls_in_vain_double_the_skipped_ones() {
        let lookout = Lookout::new();
        for left_out in [1, 3, 7, 15, 31, 63, 127, 255, 255] {
            assert!(looks(&lookout, false));
            assert_eq!((0..left_out).filter(|_| lookout.is_worth_it()).count(), 0, "of {left_out}");
        }
        for _ in 0..3 {
            assert!(looks(&lookout, true), "it found something");
        }
        assert!(looks(&lookout, false));
        assert!(!lookout.is_worth_it());
        assert!(looks(&lookout, false), "one was left out");
    }
}

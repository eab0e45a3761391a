//! Limit of the messages of front ends: a bucket of tokens, and a timer that ends the wait for the next ones.
//!
//! A message may map and unmap all memory of a guest, which takes tens of microseconds of the thread that moves the
//! packets of all links. Messages above the rate wait in their socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};

/// Time in which a token comes: 1000 messages and connections a second are handled, over a long time.
const TOKEN: Duration = Duration::from_millis(1);

/// Messages that are handled at once. A guest with 8 queue pairs starts by about 200.
pub(super) const BUCKET: u32 = 512;

/// Time that a front end waits for when its tokens are used up: until there are some more.
const WAIT: Duration = Duration::from_millis(20);

/// The bucket of one link: a front end that connects anew has what the last one left.
#[derive(Debug)]
pub(super) struct Pace {
    tokens: u32,
    /// Time to which tokens were added.
    until: Instant,
    timer: OwnedFd,
}

impl Pace {
    pub(super) fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(Self { tokens: BUCKET, until: Instant::now(), timer })
    }

    /// Tells whether there is a token. Without one the [timer](Self::timer) becomes readable when there are more.
    pub(super) fn is_ready(&mut self) -> bool {
        self.refill(Instant::now());
        if self.tokens == 0 {
            self.start_timer();
        }
        self.tokens > 0
    }

    /// Takes the token of a message, or of a connection.
    pub(super) fn spend(&mut self) {
        self.tokens = self.tokens.saturating_sub(1);
    }

    /// Adds the tokens of the time that has passed.
    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.until);
        let more = passed.as_nanos() / TOKEN.as_nanos();
        match u32::try_from(more) {
            Ok(more) if more < BUCKET - self.tokens => {
                self.tokens += more;
                self.until += TOKEN * more;
            }
            _ => (self.tokens, self.until) = (BUCKET, now),
        }
    }

    /// Starts the timer. Its descriptor is never read: it is registered edge-triggered, and each end is a new edge.
    fn start_timer(&self) {
        let once =
            Itimerspec { it_interval: Timespec::default(), it_value: Timespec::try_from(WAIT).unwrap_or_default() };
        // Cannot fail: the value is below a second.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once);
    }

    /// The timer, readable when a wait is over.
    pub(super) fn timer(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_at_the_rate_up_to_the_bucket() {
        let mut pace = Pace::new().unwrap();
        let start = pace.until;
        for (millis, want) in [(0, 0), (1, 1), (2, 1), (12, 10), (12, 0), (100_000, BUCKET), (100_000, 0)] {
            pace.tokens = 0;
            pace.refill(start + Duration::from_millis(millis));
            assert_eq!(pace.tokens, want, "after {millis} ms");
        }
        // Times below a token's are added up, not lost.
        for step in [100, 700, 1900] {
            pace.tokens = 0;
            let start = pace.until;
            (1..=100).for_each(|at| pace.refill(start + Duration::from_micros(step * at)));
            assert_eq!(u64::from(pace.tokens), step / 10, "{step} us");
        }
    }

    /// An hour of silence earns one bucket, not two.
    #[test]
    fn bucket_that_stayed_full_is_not_filled_twice() {
        let mut pace = Pace::new().unwrap();
        let later = pace.until + Duration::from_secs(3600);
        pace.refill(later);
        (0..BUCKET).for_each(|_| pace.spend());
        pace.refill(later);
        assert_eq!(pace.tokens, 0);
    }
}

//! Pace of clients that only look: all of them together have a bounded share of the workers' time.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time from the beginning of one slice to that of the next one, of all such clients: a slice is a tenth of it.
const PERIOD: Duration = Duration::from_micros(400);

/// The pace. Its callers take turns in the order in which they came.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Time of the next slice.
    next: Mutex<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        Self { next: Mutex::new(Instant::now()) }
    }
}

impl Pace {
    /// Waits for the turn of the caller, which is as long as `slices` slices.
    pub(crate) fn wait(&self, slices: u32) {
        let now = Instant::now();
        thread::sleep(self.take(now, slices).saturating_duration_since(now));
    }

    /// Takes the turn of `slices` slices, and returns its time.
    fn take(&self, now: Instant, slices: u32) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let turn = now.max(*next);
        *next = turn + PERIOD * slices;
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_all_clients_are_a_period_apart() {
        let pace = Pace::default();
        let now = Instant::now() + PERIOD;
        assert_eq!(pace.take(now, 1), now, "the first one does not wait");
        assert_eq!([1, 50, 1].map(|slices| pace.take(now, slices)), [1, 2, 52].map(|periods| now + PERIOD * periods));
        let later = now + PERIOD * 100;
        assert_eq!(pace.take(later, 1), later, "time without a client is not made up for");
    }
}

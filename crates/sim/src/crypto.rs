//! A crypto device with its own timing.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use base::Instant;
use ipsec::crypto::{Crypto, Task};

use crate::Rng;

/// Maximum number of tasks in flight.
const ROOM: usize = 64;

/// A crypto device that takes a random time for each task, finishes tasks in any order, and often accepts none for some
/// time.
pub struct SlowCrypto {
    rng: Rng,
    longest: Duration,
    /// Tasks in flight, each with its time of completion.
    away: Vec<(Instant, Task)>,
    busy_until: Instant,
    /// Whether the device refused a task.
    left: bool,
}

impl SlowCrypto {
    /// A device that takes at most `longest` for a task.
    pub const fn new(seed: u64, longest: Duration) -> Self {
        Self { rng: Rng::new(seed), longest, away: Vec::new(), busy_until: Instant::ZERO, left: false }
    }
}

impl Crypto for SlowCrypto {
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        if now >= self.busy_until {
            while self.away.len() < ROOM && !self.rng.happens(100) {
                let Some(task) = todo.pop_front() else { break };
                self.away.push((now + self.rng.duration(self.longest), task));
            }
            if self.rng.happens(100) {
                self.busy_until = now + Duration::from_micros(1) + self.rng.duration(self.longest);
            }
        }
        let mut due: Vec<Task> = self.away.extract_if(.., |(at, _)| *at <= now).map(|(_, task)| task).collect();
        while !due.is_empty() {
            let mut task = due.swap_remove(self.rng.below(due.len()));
            task.run();
            done.push(task);
        }
        self.left = !todo.is_empty();
        if self.left && self.busy_until <= now {
            self.busy_until = now + Duration::from_micros(1);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let done = self.away.iter().map(|&(at, _)| at);
        done.chain(self.left.then_some(self.busy_until)).min()
    }
}

impl fmt::Debug for SlowCrypto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlowCrypto({} tasks away)", self.away.len())
    }
}

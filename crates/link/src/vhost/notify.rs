//! Notification of the other process: a signal of an eventfd that it shares.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use crate::sys::aio::{self, Context};

/// Eventfd by which the other process is notified. The other process shares the counter and the flags, and may fill the
/// counter and clear `O_NONBLOCK` at any moment, so it is never read or written (decision 60).
#[derive(Debug)]
pub(super) struct Doorbell {
    eventfd: OwnedFd,
    context: &'static Context,
}

impl Doorbell {
    /// Takes an eventfd.
    ///
    /// # Errors
    /// The kernel has no asynchronous I/O left.
    pub(super) fn new(eventfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { eventfd, context: aio::context()? })
    }

    /// A duplicate of the eventfd.
    ///
    /// # Errors
    /// Error of fcntl(2).
    pub(super) fn eventfd(&self) -> io::Result<OwnedFd> {
        self.eventfd.try_clone()
    }

    /// Signals the eventfd. A counter that is not zero is signalled, too: a process that waits for edges need not reset
    /// it. A full counter has an event pending.
    pub(super) fn ring(&self) {
        self.context.signal(self.eventfd.as_fd());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn doorbell() -> (Doorbell, OwnedFd) {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        (Doorbell::new(fd.try_clone().unwrap()).unwrap(), fd)
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn signal_reaches_a_counter_that_was_not_reset() {
        let (bell, fd) = doorbell();
        // The last number is more than the queue of completions holds.
        for number in [1, 2, 3, 5000] {
            (0..number).for_each(|_| bell.ring());
            assert_eq!(count(&fd), number);
        }
    }

    /// Another process that fills the counter of a blocking eventfd at any moment, so also between a check and a write.
    #[test]
    fn counter_filled_at_any_moment_blocks_no_signal() {
        let (bell, fd) = doorbell();
        let filler = Doorbell::new(fd.try_clone().unwrap()).unwrap();
        let (rung, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    bell.ring();
                    rung.fetch_add(1, Ordering::Relaxed);
                }
            });
            let mut is_blocked = false;
            for turn in 0..3000 {
                fcntl_setfl(&fd, OFlags::NONBLOCK).unwrap();
                let mut before = [0; 8];
                let _ = rustix::io::read(&fd, &mut before);
                let _ = rustix::io::write(&fd, &(u64::MAX - 3).to_ne_bytes());
                fcntl_setfl(&fd, OFlags::empty()).unwrap();
                (0..turn % 400).for_each(|_| std::hint::spin_loop());
                (0..3).for_each(|_| filler.ring());
                // Two more signals, of which the second begins after the counter is full.
                let (seen, end) = (rung.load(Ordering::Relaxed), Instant::now() + Duration::from_secs(20));
                while rung.load(Ordering::Relaxed) < seen + 2 && !is_blocked {
                    is_blocked = Instant::now() > end;
                    std::thread::yield_now();
                }
                if is_blocked {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            // Releases a thread that is in a write.
            fcntl_setfl(&fd, OFlags::NONBLOCK).unwrap();
            count(&fd);
            assert!(!is_blocked, "a signal blocks after {} of them", rung.load(Ordering::Relaxed));
        });
    }
}

//! Notification of the other process: a write to an eventfd that it shares.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time limit of a poll that does not wait.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Signals an eventfd, unless its counter is full.
///
/// The other process shares the descriptor's flags and may have cleared `O_NONBLOCK`, so that a write to a full counter
/// blocks. So the counter is checked first. A process that fills it between the check and the write can still block
/// this thread (decision 53). A counter that is not zero is written to: a process that waits for edges need not reset
/// it.
pub(super) fn signal(eventfd: impl AsFd) {
    let mut fds = [PollFd::new(&eventfd, PollFlags::OUT)];
    if poll(&mut fds, Some(&NOW)).is_ok() && fds[0].revents().contains(PollFlags::OUT) {
        // A counter that is full by now has an event pending.
        let _ = rustix::io::write(&eventfd, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    fn count(fd: impl AsFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn full_counter_of_a_blocking_eventfd_blocks_no_signal() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, is_done) = mpsc::channel();
        let other = fd.try_clone().unwrap();
        std::thread::spawn(move || {
            signal(&other);
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(count(&fd), u64::MAX - 1);
    }

    #[test]
    fn signal_reaches_a_counter_that_was_not_reset() {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        for number in 1..=3 {
            (0..number).for_each(|_| signal(&fd));
            assert_eq!(count(&fd), number);
        }
    }
}

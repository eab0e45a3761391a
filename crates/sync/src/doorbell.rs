//! Wake-up of one worker by threads that have work for it.

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::primitives::{AtomicBool, fence};

/// Eventfd, or what a model has in place of it: a counter on which one thread sleeps.
pub trait Notifier {
    /// Wakes the thread, now or when it sleeps next.
    ///
    /// # Errors
    /// The system's error. A counter that is full is none: its thread has yet to wake.
    fn notify(&self) -> io::Result<()>;

    /// Sleeps until it was notified since the last [`clear`](Self::clear). Returns whether it has: a signal may end
    /// the sleep earlier.
    ///
    /// # Errors
    /// The system's error.
    fn wait(&self) -> io::Result<bool>;

    /// Resets the counter.
    fn clear(&self);
}

/// Notifier of a worker, with flags of what waits for it. A worker that is awake reads the flags before it sleeps, so
/// senders do not ring meanwhile.
#[derive(Debug)]
pub(crate) struct Doorbell<N> {
    pub(crate) notifier: N,
    /// Whether the worker's list has an entry. Changed with the list's lock.
    has_any: AtomicBool,
    /// Whether the worker's list has an entry for which the worker wakes. Changed with the list's lock.
    has_calls: AtomicBool,
    /// Whether the worker's queue may have a packet.
    has_packets: AtomicBool,
    /// Whether the worker sleeps, or reads the flags before it sleeps.
    asleep: AtomicBool,
}

impl<N: Notifier> Doorbell<N> {
    pub(crate) fn new(notifier: N) -> Self {
        let [has_any, has_calls, has_packets, asleep] = [false; 4].map(AtomicBool::new);
        Self { notifier, has_any, has_calls, has_packets, asleep }
    }

    /// Notes an entry of the list. The caller has the list's lock.
    pub(crate) fn note_entry(&self) {
        self.has_any.store(true, Release);
    }

    /// Notes an entry for which the worker wakes. The caller has the list's lock, and rings without it.
    pub(crate) fn note_call(&self) {
        self.note_entry();
        self.has_calls.store(true, Relaxed);
    }

    /// Notes that the list is empty. The caller has the list's lock.
    pub(crate) fn note_empty(&self) {
        self.has_any.store(false, Relaxed);
        self.has_calls.store(false, Relaxed);
    }

    /// Notes packets in the queue. The caller rings.
    pub(crate) fn note_packets(&self) {
        // An exchange, not a store: the worker that reads this flag sees the packets of all senders that have set it, not
        // only of the last one.
        self.has_packets.swap(true, Release);
    }

    /// Tells whether the queue may have packets, and resets that: a packet that is queued later sets it again.
    pub(crate) fn take_packets(&self) -> bool {
        self.has_packets.load(Relaxed) && self.has_packets.swap(false, Acquire)
    }

    /// Tells whether the list has an entry. A sender's thread that was told to go on happens before.
    pub(crate) fn has_entry(&self) -> bool {
        self.has_any.load(Acquire)
    }

    /// Rings, if the worker sleeps. Called after a flag is set.
    pub(crate) fn ring(&self) -> io::Result<()> {
        // Dekker pattern: one of this fence and those of the worker is first. Either the worker reads the flag, or this
        // thread reads that the worker sleeps.
        fence(SeqCst);
        if self.asleep.load(Relaxed) { self.notifier.notify() } else { Ok(()) }
    }

    /// Makes senders ring from now on. Tells whether nothing wakes the worker yet, the flag of packets included.
    pub(crate) fn may_sleep(&self) -> bool {
        self.is_without_calls() && !self.has_packets.load(Relaxed)
    }

    /// As [`may_sleep`](Self::may_sleep), for a worker that leaves its packets in the queue.
    pub(crate) fn is_without_calls(&self) -> bool {
        self.asleep.store(true, Relaxed);
        fence(SeqCst);
        !self.has_calls.load(Relaxed)
    }

    /// Makes senders ring no longer.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Relaxed);
    }
}

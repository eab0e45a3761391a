//! Count of events, on which threads sleep without costs for the counting thread.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::primitives::{AtomicBool, AtomicU32, Condvar, Mutex, fence, lock};

/// Wake-ups by packets, of all workers.
#[derive(Debug)]
pub(crate) struct Bursts {
    /// Number of times that packets have woken a worker; wraps.
    count: AtomicU32,
    /// Whether a thread sleeps until packets wake a worker.
    is_awaited: AtomicBool,
    /// Lock and wake-up of such threads.
    sleepers: (Mutex<()>, Condvar),
}

impl Bursts {
    pub(crate) fn new() -> Self {
        let sleepers = (Mutex::new(()), Condvar::new());
        Self { count: AtomicU32::new(0), is_awaited: AtomicBool::new(false), sleepers }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Tells whether a thread sleeps, or is about to.
    pub(crate) fn is_awaited(&self) -> bool {
        self.is_awaited.load(Relaxed)
    }

    /// Counts a wake-up, and wakes the threads that wait for it.
    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Relaxed);
        // Dekker pattern: either this thread reads that the count is awaited, or the other reads the new count.
        fence(SeqCst);
        if self.is_awaited() {
            self.wake_sleepers();
        }
    }

    #[cold]
    fn wake_sleepers(&self) {
        let (mutex, woken) = &self.sleepers;
        // A thread that holds the lock has yet to compare the count, or is asleep when the lock is free.
        drop(lock(mutex));
        self.is_awaited.store(false, Relaxed);
        woken.notify_all();
    }

    /// Sleeps until the count differs from `seen`.
    pub(crate) fn wait(&self, seen: u32) {
        let (mutex, woken) = &self.sleepers;
        let mut guard = lock(mutex);
        loop {
            self.is_awaited.store(true, Relaxed);
            fence(SeqCst);
            if self.count() != seen {
                return;
            }
            guard = woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

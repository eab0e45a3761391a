//! Atomics, locks and queues: those of the standard library and `crossbeam-queue`, or loom's.

#[cfg(not(feature = "loom"))]
pub(crate) use crossbeam_queue::ArrayQueue;
#[cfg(not(feature = "loom"))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};

#[cfg(feature = "loom")]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::yield_now,
};
#[cfg(feature = "loom")]
pub(crate) use model::ArrayQueue;

/// Locks. The state behind each lock of this crate is valid after every step, so a panic of another thread is no reason
/// to fail.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(feature = "loom")]
mod model {
    use std::collections::VecDeque;
    use std::sync::atomic::Ordering::{AcqRel, Acquire};

    use super::{AtomicUsize, Mutex, lock};

    /// Bounded queue in place of that of `crossbeam-queue`. Places are found by two counters, as there, so that the
    /// length that a thread sees may be old; a weaker order than that crate's, whose counters are changed with `SeqCst`.
    #[derive(Debug)]
    pub(crate) struct ArrayQueue<T> {
        room: usize,
        entries: Mutex<VecDeque<T>>,
        head: AtomicUsize,
        tail: AtomicUsize,
    }

    impl<T> ArrayQueue<T> {
        pub(crate) fn new(room: usize) -> Self {
            let [head, tail] = [0; 2].map(AtomicUsize::new);
            Self { room, entries: Mutex::new(VecDeque::new()), head, tail }
        }

        pub(crate) fn push(&self, entry: T) -> Result<(), T> {
            let mut entries = lock(&self.entries);
            if entries.len() == self.room {
                return Err(entry);
            }
            entries.push_back(entry);
            self.tail.fetch_add(1, AcqRel);
            Ok(())
        }

        pub(crate) fn pop(&self) -> Option<T> {
            let entry = lock(&self.entries).pop_front()?;
            self.head.fetch_add(1, AcqRel);
            Some(entry)
        }

        pub(crate) fn len(&self) -> usize {
            let tail = self.tail.load(Acquire);
            tail.saturating_sub(self.head.load(Acquire))
        }

        pub(crate) fn is_empty(&self) -> bool {
            self.len() == 0
        }
    }
}

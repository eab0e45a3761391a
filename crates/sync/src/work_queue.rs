//! Tasks for threads that help a worker, and their results.

use std::fmt;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::primitives::{ArrayQueue, AtomicBool, AtomicUsize, Condvar, Mutex, fence, lock, spin_loop};

/// Number of times that a thread polls for work before it sleeps: some 200 microseconds on Zen 5, in which a worker
/// receives or sends a burst (as long as Linux polls before it halts a virtual processor, `halt_poll_ns`). A wake-up
/// costs both sides more than a task.
const LOOKS: u32 = if cfg!(feature = "loom") { 1 } else { 16_000 };

/// Queues of tasks to run, and of tasks that were run, between a worker and its threads.
pub struct WorkQueue<T> {
    todo: ArrayQueue<T>,
    done: ArrayQueue<T>,
    /// Threads that sleep, or are about to. Changed with `gate` locked only.
    sleeping: AtomicUsize,
    gate: Mutex<()>,
    work: Condvar,
    ending: AtomicBool,
}

impl<T> WorkQueue<T> {
    /// Queues with room for this many tasks.
    pub fn new(room: usize) -> Self {
        Self {
            todo: ArrayQueue::new(room),
            done: ArrayQueue::new(room),
            sleeping: AtomicUsize::new(0),
            gate: Mutex::new(()),
            work: Condvar::new(),
            ending: AtomicBool::new(false),
        }
    }

    /// Main loop of a thread, until [`end`](Self::end): runs tasks, and queues them for the worker.
    ///
    /// # Panics
    /// The worker has queued more tasks than there is room for.
    pub fn serve(&self, mut run: impl FnMut(&mut T)) {
        let mut looks = 0;
        while !self.is_ending() {
            match self.todo.pop() {
                Some(mut task) => {
                    run(&mut task);
                    assert!(self.done.push(task).is_ok(), "as much room as for what is to be done");
                    looks = 0;
                }
                None if looks < LOOKS => {
                    looks += 1;
                    spin_loop();
                }
                None => {
                    self.sleep();
                    looks = 0;
                }
            }
        }
    }

    /// Queues a task for the threads.
    ///
    /// # Panics
    /// There is no room: the worker queues at most as many as it has room for and as have not come back.
    pub fn push(&self, task: T) {
        assert!(self.todo.push(task).is_ok(), "room for all tasks in flight");
    }

    /// Takes a task that no thread has begun.
    pub fn take_back(&self) -> Option<T> {
        self.todo.pop()
    }

    /// Takes a task that a thread has run.
    pub fn pop_done(&self) -> Option<T> {
        self.done.pop()
    }

    /// Number of tasks that no thread has begun.
    pub fn waiting(&self) -> usize {
        self.todo.len()
    }

    /// Wakes threads that sleep, at most one for each of `tasks` that were queued.
    pub fn wake(&self, tasks: usize) {
        // Dekker pattern: either this thread reads that a thread sleeps, or that thread reads the tasks.
        fence(SeqCst);
        let sleeping = self.sleeping.load(Relaxed);
        if sleeping == 0 {
            return;
        }
        let _gate = lock(&self.gate);
        for _ in 0..tasks.min(sleeping) {
            self.work.notify_one();
        }
    }

    /// Ends the threads, each after the task that it runs.
    pub fn end(&self) {
        self.ending.store(true, Relaxed);
        self.wake(usize::MAX);
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// Sleeps until there is work.
    fn sleep(&self) {
        let mut gate = lock(&self.gate);
        self.sleeping.fetch_add(1, Relaxed);
        fence(SeqCst);
        while self.todo.is_empty() && !self.is_ending() {
            gate = self.work.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Relaxed);
    }
}

impl<T> fmt::Debug for WorkQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkQueue({} to do)", self.waiting())
    }
}

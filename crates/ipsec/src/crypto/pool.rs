//! Threads that share the work of a burst with the worker that received it.
//!
//! The worker that hands work in does as much of it as anybody: it waits only for what others have begun, at most one
//! task each. A burst of a single task is never handed out. Threads look for more for a while before they sleep, and
//! are woken only when there is more than the worker itself takes up next; so one core never pays for them.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use base::Instant;
use crossbeam_queue::ArrayQueue;

use super::{Crypto, Task};

/// Tasks that may wait for a thread. What does not fit, its worker does itself.
const WAITING: usize = 256;

/// How often a thread looks for work in vain before it sleeps: some tens of microseconds.
const LOOKS: u32 = 2_000;

/// How often a worker looks for the end of others' work before it lets them have its core.
const PATIENCE: u32 = 200;

/// Crypto threads, for any number of workers.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    todo: ArrayQueue<Errand>,
    /// Threads that sleep, or are about to. Changed under `gate` alone.
    sleeping: AtomicUsize,
    gate: Mutex<()>,
    bell: Condvar,
    ending: AtomicBool,
}

/// A task, and where it is to be brought back.
struct Errand {
    task: Task,
    home: Arc<Home>,
}

/// Where one worker's tasks come back.
struct Home {
    done: ArrayQueue<Task>,
    /// A thread has panicked with one of them.
    lost: AtomicBool,
}

/// One worker's use of a [`Pool`].
pub struct PoolCrypto {
    pool: Arc<Pool>,
    home: Arc<Home>,
}

impl Pool {
    /// A pool of so many threads. Each calls `start` with its number first, to bind itself to a CPU or take a name.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: NonZeroUsize, start: impl Fn(usize) + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            todo: ArrayQueue::new(WAITING),
            sleeping: AtomicUsize::new(0),
            gate: Mutex::new(()),
            bell: Condvar::new(),
            ending: AtomicBool::new(false),
        });
        let start = Arc::new(start);
        let mut pool = Self { shared, threads: Vec::new() };
        for number in 0..threads.get() {
            let (shared, start) = (Arc::clone(&pool.shared), Arc::clone(&start));
            let thread = thread::Builder::new().name(format!("crypto-{number}")).spawn(move || {
                start(number);
                shared.serve();
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }
}

impl Drop for Pool {
    /// Waits until the threads have ended. Workers hold the pool as long as they have work in it.
    fn drop(&mut self) {
        self.shared.ending.store(true, SeqCst);
        self.shared.wake(usize::MAX);
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread's life.
    fn serve(&self) {
        let mut looks = 0;
        while !self.ending.load(SeqCst) {
            match self.todo.pop() {
                Some(errand) => {
                    errand.run();
                    looks = 0;
                }
                None if looks < LOOKS => {
                    looks += 1;
                    std::hint::spin_loop();
                }
                None => {
                    self.sleep();
                    looks = 0;
                }
            }
        }
    }

    /// Sleeps until there is work. Whoever brings some sees that somebody sleeps, or is seen to have brought it.
    fn sleep(&self) {
        let mut gate = self.gate();
        self.sleeping.fetch_add(1, SeqCst);
        while self.todo.is_empty() && !self.ending.load(SeqCst) {
            gate = self.bell.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, SeqCst);
    }

    /// Wakes as many threads as there is work for.
    fn wake(&self, tasks: usize) {
        let sleeping = self.sleeping.load(SeqCst);
        if sleeping == 0 {
            return;
        }
        let _gate = self.gate();
        for _ in 0..tasks.min(sleeping) {
            self.bell.notify_one();
        }
    }
}

impl Errand {
    fn run(self) {
        let Self { mut task, home } = self;
        let loss = Loss(&home.lost);
        task.run();
        std::mem::forget(loss);
        home.done.push(task).expect("a home has room for all its tasks");
    }
}

/// Tells a worker, when dropped by a panic, that its task will not come back.
struct Loss<'a>(&'a AtomicBool);

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

impl PoolCrypto {
    /// A worker's share of `pool`.
    pub fn new(pool: Arc<Pool>) -> Self {
        let home = Home { done: ArrayQueue::new(WAITING), lost: AtomicBool::new(false) };
        Self { pool, home: Arc::new(home) }
    }

    /// Hands out what fits. Tells how many tasks are away.
    fn hand_out(&self, todo: &mut VecDeque<Task>) -> usize {
        let mut away = 0;
        while let Some(task) = todo.pop_front() {
            if away == WAITING {
                todo.push_front(task);
                break;
            }
            match self.pool.shared.todo.push(Errand { task, home: Arc::clone(&self.home) }) {
                Ok(()) => away += 1,
                Err(errand) => {
                    todo.push_front(errand.task);
                    break;
                }
            }
        }
        away
    }
}

impl Crypto for PoolCrypto {
    /// All of it is done on return.
    fn work(&mut self, _: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        let shared = &self.pool.shared;
        // The last one is this worker's own.
        let last = todo.pop_back();
        let mut away = if todo.is_empty() { 0 } else { self.hand_out(todo) };
        shared.wake(away);
        for mut task in todo.drain(..).chain(last) {
            task.run();
            done.push(task);
        }
        let mut looks = 0;
        while away > 0 {
            if let Some(task) = self.home.done.pop() {
                done.push(task);
                away -= 1;
            } else if let Some(errand) = shared.todo.pop() {
                errand.run();
            } else {
                assert!(!self.home.lost.load(SeqCst), "a crypto thread has panicked");
                looks += 1;
                if looks < PATIENCE { std::hint::spin_loop() } else { thread::yield_now() }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.threads.len())
    }
}

impl fmt::Debug for PoolCrypto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

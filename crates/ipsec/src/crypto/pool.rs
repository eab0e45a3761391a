//! Threads that share the work of a burst with the worker that received it.
//!
//! Others begin while the worker that hands work in still takes in the burst, and when it is through it does as much as
//! any other: it passes on what is done, in order. While more arrives it leaves some to them, which is passed on with the
//! next burst; else it waits, but only for what others have begun, at most one task each. A task that is alone is never
//! handed out. Threads look for more for a while before they sleep, and are woken only when there is more than the worker
//! itself takes up next; so one core never pays for them.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use base::Instant;
use crossbeam_queue::ArrayQueue;

use super::task::{Crypto, Task};

/// Tasks that may wait for a thread. What does not fit, its worker does itself.
const WAITING: usize = 256;

/// Number of times that a thread looks for work in vain before it sleeps: some 200 microseconds on Zen 5, in which a worker receives or sends
/// a burst (as long as Linux polls before it halts a virtual processor, `halt_poll_ns`). To be woken costs both sides
/// more than a task.
const LOOKS: u32 = 16_000;

/// Tasks that each thread is left while more arrives: what it does while its worker passes on a burst, and takes in the next.
const LEFT: usize = 2;

/// Number of times that a worker looks for the end of others' work before it lets them have its core.
const PATIENCE: u32 = 200;

/// Crypto threads of one worker.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Number of the worker's tasks that others have.
    away: usize,
}

struct Shared {
    todo: ArrayQueue<Task>,
    done: ArrayQueue<Task>,
    /// Threads that sleep, or are about to. Changed under `gate` alone.
    sleeping: AtomicUsize,
    gate: Mutex<()>,
    bell: Condvar,
    ending: AtomicBool,
    /// Whether a thread has panicked.
    lost: AtomicBool,
}

impl Pool {
    /// A pool of so many threads. Each calls `start` with its number first, to bind itself to a CPU or take a name.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: NonZeroUsize, start: impl Fn(usize) + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            todo: ArrayQueue::new(WAITING),
            done: ArrayQueue::new(WAITING),
            sleeping: AtomicUsize::new(0),
            gate: Mutex::new(()),
            bell: Condvar::new(),
            ending: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        });
        let start = Arc::new(start);
        let mut pool = Self { shared, threads: Vec::new(), away: 0 };
        for number in 0..threads.get() {
            let (shared, start) = (Arc::clone(&pool.shared), Arc::clone(&start));
            let thread = thread::Builder::new().name(format!("crypto-{number}")).spawn(move || {
                let loss = Loss(&shared.lost);
                start(number);
                shared.serve();
                std::mem::forget(loss);
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Takes back what is done.
    fn collect(&mut self, done: &mut Vec<Task>) {
        while let Some(task) = self.shared.done.pop() {
            done.push(task);
            self.away -= 1;
        }
    }
}

impl Drop for Pool {
    /// Waits until the threads have ended.
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
                Some(task) => {
                    self.run(task);
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

    /// Does a task, and puts it where its worker takes it back.
    fn run(&self, mut task: Task) {
        task.run();
        self.done.push(task).expect("as much room as for what is to be done");
    }

    /// Sleeps until there is work. A thread that brings some sees a sleeper, or its work is seen before the sleep.
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

/// Guard that, dropped by a panic, tells the worker that a thread and perhaps its task are lost.
struct Loss<'a>(&'a AtomicBool);

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

impl Crypto for Pool {
    /// The first one waits until there is more, so that a task that is alone is never handed out.
    fn take(&mut self, _: Instant, todo: &mut VecDeque<Task>, more: bool) {
        assert!(!self.shared.lost.load(SeqCst), "a crypto thread has panicked");
        let (before, alone) = (self.away, usize::from(!more));
        while self.away < WAITING && todo.len() + self.away > alone {
            let Some(task) = todo.pop_front() else { break };
            self.shared.todo.push(task).expect("room for all that are away");
            self.away += 1;
        }
        self.shared.wake(self.away - before);
    }

    /// At least one of those that there are is done on return.
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.take(now, todo, false);
        let before = done.len();
        let mut looks = 0;
        loop {
            self.collect(done);
            if done.len() > before {
                return;
            }
            // A task that no thread has begun comes before one that was not handed out.
            let waiting = if self.away > 0 { self.shared.todo.pop() } else { None };
            if let Some(mut task) = waiting.inspect(|_| self.away -= 1).or_else(|| todo.pop_front()) {
                task.run();
                done.push(task);
            } else if self.away == 0 {
                return;
            } else {
                assert!(!self.shared.lost.load(SeqCst), "a crypto thread has panicked");
                looks += 1;
                if looks < PATIENCE { std::hint::spin_loop() } else { thread::yield_now() }
            }
        }
    }

    /// Does a task that is alone at once, as no other thread gets it.
    fn help(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.take(now, todo, false);
        let before = done.len();
        self.collect(done);
        let next = match self.away {
            _ if done.len() > before => None,
            0 => todo.pop_front(),
            _ if self.shared.todo.len() <= LEFT * self.threads.len() => None,
            _ => self.shared.todo.pop().inspect(|_| self.away -= 1),
        };
        if let Some(mut task) = next {
            task.run();
            done.push(task);
        }
    }

    fn is_at_it(&self) -> bool {
        self.away > 0
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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;

    #[test]
    fn take_after_a_crypto_thread_panicked_panics() {
        let one = NonZeroUsize::new(1).unwrap();
        let mut pool = Pool::new(one, |_| panic!("expected by this test")).unwrap();
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        let said = loop {
            let taken = catch_unwind(AssertUnwindSafe(|| pool.take(Instant::ZERO, &mut VecDeque::new(), true)));
            if let Err(said) = taken {
                break said;
            }
            assert!(std::time::Instant::now() < limit, "the panic of the thread is not noticed");
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(said.downcast_ref(), Some(&"a crypto thread has panicked"));
    }
}

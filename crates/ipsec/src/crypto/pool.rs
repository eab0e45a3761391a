//! Thread pool that shares the crypto work of a burst with the worker that received it.
//!
//! Threads start while the worker still receives the burst. At the end of the burst the worker runs tasks as the
//! threads do, and passes finished ones on in order. While more packets arrive it leaves some tasks to the threads and
//! passes these on with the next burst; otherwise it waits for tasks that threads have begun, at most one each. A lone
//! task is never handed out. Threads poll for a while before they sleep, and are woken only when there are more tasks
//! than the worker runs next; so with one core there is no overhead.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};

use base::Instant;
use sync::WorkQueue;

use super::task::{Crypto, Task};

/// Maximum number of tasks queued for threads. The worker runs the tasks beyond it.
const WAITING: usize = 256;

/// Tasks left to each thread while more packets arrive: its work while the worker passes on a burst and receives the
/// next.
const LEFT: usize = 2;

/// Number of times that a worker polls for the end of threads' tasks before it yields its core.
const PATIENCE: u32 = 200;

/// Crypto threads of one worker.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Number of the worker's tasks in flight.
    away: usize,
}

struct Shared {
    tasks: WorkQueue<Task>,
    /// Whether a thread has panicked.
    lost: AtomicBool,
}

impl Pool {
    /// A pool of this many threads. Each calls `start` with its number first, to bind itself to a CPU or to set its
    /// name.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn new(threads: NonZeroUsize, start: impl Fn(usize) + Send + Sync + 'static) -> std::io::Result<Self> {
        let shared = Arc::new(Shared { tasks: WorkQueue::new(WAITING), lost: AtomicBool::new(false) });
        let start = Arc::new(start);
        let mut pool = Self { shared, threads: Vec::new(), away: 0 };
        for number in 0..threads.get() {
            let (shared, start) = (Arc::clone(&pool.shared), Arc::clone(&start));
            let thread = thread::Builder::new().name(format!("crypto-{number}")).spawn(move || {
                let loss = Loss(&shared.lost);
                start(number);
                shared.tasks.serve(Task::run);
                std::mem::forget(loss);
            })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Collects finished tasks.
    fn collect(&mut self, done: &mut Vec<Task>) {
        while let Some(task) = self.shared.tasks.pop_done() {
            done.push(task);
            self.away -= 1;
        }
    }
}

impl Drop for Pool {
    /// Waits until the threads have ended.
    fn drop(&mut self) {
        self.shared.tasks.end();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

/// Guard whose drop during a panic tells the worker that a thread, and perhaps its task, is lost.
struct Loss<'a>(&'a AtomicBool);

impl Drop for Loss<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

impl Crypto for Pool {
    /// The first task waits until there is another, so that a lone task is never handed out.
    fn take(&mut self, _: Instant, todo: &mut VecDeque<Task>, more: bool) {
        assert!(!self.shared.lost.load(SeqCst), "a crypto thread has panicked");
        let (before, alone) = (self.away, usize::from(!more));
        while self.away < WAITING && todo.len() + self.away > alone {
            let Some(task) = todo.pop_front() else { break };
            self.shared.tasks.push(task);
            self.away += 1;
        }
        self.shared.tasks.wake(self.away - before);
    }

    /// Finishes at least one task, if there is any.
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.take(now, todo, false);
        let before = done.len();
        let mut looks = 0;
        loop {
            self.collect(done);
            if done.len() > before {
                return;
            }
            // A queued task that no thread has begun comes before one that was not handed out.
            let waiting = if self.away > 0 { self.shared.tasks.take_back() } else { None };
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

    /// Runs a lone task at once, as no thread gets it.
    fn help(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.take(now, todo, false);
        let before = done.len();
        self.collect(done);
        let next = match self.away {
            _ if done.len() > before => None,
            0 => todo.pop_front(),
            _ if self.shared.tasks.waiting() <= LEFT * self.threads.len() => None,
            _ => self.shared.tasks.take_back().inspect(|_| self.away -= 1),
        };
        if let Some(mut task) = next {
            task.run();
            done.push(task);
        }
    }

    fn is_running(&self) -> bool {
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
        let payload = loop {
            let taken = catch_unwind(AssertUnwindSafe(|| pool.take(Instant::ZERO, &mut VecDeque::new(), true)));
            if let Err(payload) = taken {
                break payload;
            }
            assert!(std::time::Instant::now() < limit, "the panic of the thread is not noticed");
            thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(payload.downcast_ref(), Some(&"a crypto thread has panicked"));
    }
}

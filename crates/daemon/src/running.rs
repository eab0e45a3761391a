//! The workers' threads, as a handle for the daemon.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use base::ShardCount;
use client::CliError;
use datapath::Datapath;
use signal_hook::iterator::Handle as SignalsHandle;

use super::apply::apply;
use super::command::{self, Handle, Sleepers, WorkerGone, agreed, same};
use super::node::{Clock, Node};
use super::plan::Plan;
use super::priority;
use super::threads::{Threads, text_of};
use super::worker::{SharedWorker, Worker};

/// Longest time that the worker may take to end.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// Rounds after which workers pause with packets that they have handed over.
const MOST_ROUNDS: usize = 20;

/// Longest wait before a pause for links that are busy: guests take packets from their rings meanwhile.
const BUSY_LIMIT: Duration = Duration::from_millis(5);

/// Interval at which busy links are looked at.
const BUSY_INTERVAL: Duration = Duration::from_micros(200);

/// The workers' threads.
pub(super) struct Running {
    pub(super) handle: Handle,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Numbers of workers that have ended, in their order.
    ended: Receiver<usize>,
}

/// Workers by their shards.
#[derive(Debug)]
struct All(Vec<SharedWorker>);

impl Sleepers for All {
    fn serve(&self, shard: usize) -> bool {
        self.0.get(shard).is_some_and(SharedWorker::serve_asleep)
    }
}

/// Signals the end of a worker, also when it panicked.
struct Ending {
    signals: SignalsHandle,
    number: usize,
    ended: Sender<usize>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        // The receiver is gone if the daemon has ended.
        let _ = self.ended.send(self.number);
        self.signals.close();
    }
}

impl Running {
    /// Starts the workers of `count` shards.
    pub(super) fn start(count: ShardCount, signals: &SignalsHandle) -> io::Result<Self> {
        let (handle, inboxes) = command::channel(count)?;
        let clock = Clock::start();
        let shards = count.all().zip(inboxes).zip(Datapath::shards(count));
        let worker = |((shard, inbox), datapath)| {
            Worker::of_shard(inbox, clock, datapath, Some((shard, Arc::new(handle.clone()))))
        };
        let workers = shards.map(|parts| Ok(SharedWorker::new(worker(parts)?))).collect::<io::Result<Vec<_>>>()?;
        handle.set_sleepers(Box::new(All(workers.clone())));
        Self::spawn(handle.clone(), signals, workers.into_iter().map(|worker| move || worker.run()))
    }

    fn spawn<W: FnOnce() -> io::Result<()> + Send + 'static>(
        handle: Handle,
        signals: &SignalsHandle,
        works: impl IntoIterator<Item = W, IntoIter: ExactSizeIterator>,
    ) -> io::Result<Self> {
        let (sender, ended) = channel();
        let works = works.into_iter();
        let of = works.len();
        let thread = |(number, work): (usize, W)| {
            let ending = Ending { signals: signals.clone(), number, ended: sender.clone() };
            thread::Builder::new().name(name(number, of)).spawn(move || {
                let _ending = ending;
                priority::go_first();
                work()
            })
        };
        let threads = works.enumerate().map(thread).collect::<io::Result<_>>()?;
        Ok(Self { handle, threads, ended })
    }

    /// Applies `plan` on the workers, without a time limit: the next plan starts from the result of this one.
    pub(super) fn apply(&self, plan: Plan) -> Result<(), String> {
        let parts =
            plan.for_shards(self.threads.len()).into_iter().map(|plan| move |node: &mut Node| apply(node, plan));
        // A plan may be large, and a panic in it is to end the gateway in order.
        let answers = self.handle.on_each(parts, None, |_| false).map_err(|gone| gone.to_string())?;
        let answer = answers.into_iter().reduce(agreed).unwrap_or_else(|| Err(WorkerGone.to_string()));
        answer.map(drop)
    }

    /// Pauses or resumes forwarding. Before a pause all packets that were received are forwarded.
    pub(super) fn hold(&self, held: bool) -> Result<(), String> {
        let set = || {
            self.handle.change(move |node| node.is_draining = held, same)?;
            if held {
                self.drain()?;
            }
            self.handle.change(move |node| node.paused = held, same)
        };
        set().map_err(|gone: WorkerGone| gone.to_string())
    }

    /// Waits until workers that receive no packets have forwarded those that they had, and that they have handed to each other. Packets
    /// for links that stay busy remain.
    fn drain(&self) -> Result<(), WorkerGone> {
        let mut before = None;
        for _ in 0..MOST_ROUNDS {
            // The turn that has received a burst is over when the next operation is carried out.
            let counts = self.handle.gather(|node| node.work.handed_over + node.work.taken_over)?;
            let moved: u64 = counts.into_iter().sum();
            if before == Some(moved) && !self.handle.has_handed_over() {
                break;
            }
            before = Some(moved);
        }
        let limit = Instant::now() + BUSY_LIMIT;
        while self.handle.gather(has_waiting)?.contains(&true) && Instant::now() < limit {
            thread::sleep(BUSY_INTERVAL);
        }
        Ok(())
    }

    /// Adds the workers to the threads that the watchdog pings.
    pub(super) fn watch(&self, threads: &Threads) {
        for shard in self.handle.all() {
            let handle = self.handle.clone();
            let name = self.name(usize::from(shard.0));
            threads.watch(&name, move |pulse| {
                let pulse = Arc::clone(pulse);
                // A worker that has ended does not reply.
                let _ = handle.begin_on(shard, move |_| pulse.answer());
            });
        }
    }

    /// Name of a worker, and of its thread.
    fn name(&self, number: usize) -> String {
        name(number, self.threads.len())
    }

    /// Ends the workers.
    pub(super) fn stop(self) -> Result<(), CliError> {
        // A worker that does not take the operation has ended; the reason follows below.
        let _ = self.handle.stop();
        let limit = Instant::now() + END_LIMIT;
        for _ in 0..self.threads.len() {
            if self.ended.recv_timeout(limit.saturating_duration_since(Instant::now())).is_err() {
                let late = (0..self.threads.len()).find(|&number| !self.threads[number].is_finished());
                let name = self.name(late.unwrap_or_default());
                return Err(CliError::failed(format!("the {name} did not end within {} ms", END_LIMIT.as_millis())));
            }
        }
        let of = self.threads.len();
        let outcome = |(number, thread): (usize, JoinHandle<io::Result<()>>)| match thread.join() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(err)) => Err(CliError::system(&format!("the {} ended", name(number, of)), &err)),
            Err(panic) => Err(panicked(&name(number, of), &*panic)),
        };
        self.threads.into_iter().enumerate().try_for_each(outcome)
    }

    /// Reason for which the first worker ended without a stop operation.
    pub(super) fn failure(mut self) -> CliError {
        let first = self.ended.recv().unwrap_or_default();
        let name = self.name(first);
        match self.threads.swap_remove(first).join() {
            Ok(Ok(())) => CliError::failed(format!("the {name} ended")),
            Ok(Err(err)) => CliError::system(&format!("the {name} ended"), &err),
            Err(panic) => panicked(&name, &*panic),
        }
    }
}

/// Whether packets wait for a link.
fn has_waiting(node: &mut Node) -> bool {
    node.datapath.ports.iter().any(|(_, port)| port.tx_bytes() > 0)
}

/// Name of a worker of `of`, and of its thread.
fn name(number: usize, of: usize) -> String {
    if of == 1 { "worker".to_owned() } else { format!("worker{number}") }
}

fn panicked(name: &str, panic: &(dyn Any + Send)) -> CliError {
    CliError::failed(format!("the {name} panicked: {}", text_of(panic)))
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGHUP;
    use signal_hook::iterator::Signals;

    use super::*;

    /// Reported failure of a worker that runs `work` and gets no stop operation.
    fn error_of(work: fn() -> io::Result<()>) -> String {
        let mut signals = Signals::new([SIGHUP]).unwrap();
        let (handle, [_inbox]) = command::channels().unwrap();
        let worker = Running::spawn(handle, &signals.handle(), [work]).unwrap();
        assert_eq!(signals.forever().next(), None);
        worker.failure().message
    }

    /// A node whose workers have slept for a while.
    fn asleep(count: u8) -> (Signals, Running) {
        let signals = Signals::new([SIGHUP]).unwrap();
        let worker = Running::start(ShardCount::new(count).unwrap(), &signals.handle()).unwrap();
        let is_served = || worker.handle.call(|_| thread::current().id()).unwrap() == thread::current().id();
        let served = (0..2000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            is_served()
        });
        assert!(served, "within two seconds");
        (signals, worker)
    }

    #[test]
    fn caller_does_the_turns_of_workers_that_sleep() {
        let (_signals, worker) = asleep(3);
        let here = thread::current().id();
        let threads = worker.handle.change(|_| vec![thread::current().id()], |first, other| [first, other].concat());
        assert_eq!(threads.unwrap(), [here; 3]);
        // The pulse wakes the worker.
        assert_ne!(worker.handle.begin(|_| thread::current().id()).unwrap().recv(), Ok(here));
        // Its times are those of its thread, on which thread the call is.
        let busy = |node: &mut Node| node.work.busy.as_nanos();
        let before = worker.handle.call(busy).unwrap();
        let end = Instant::now() + Duration::from_millis(50);
        while Instant::now() < end {}
        assert!(worker.handle.call(busy).unwrap() - before < 40_000_000);
        worker.stop().unwrap();
    }

    #[test]
    fn panic_of_a_caller_in_a_workers_place_ends_the_worker() {
        let (mut signals, worker) = asleep(1);
        let handle = worker.handle.clone();
        assert!(thread::spawn(move || handle.call(|_| panic!("7 is not 8"))).join().is_err());
        assert_eq!(signals.forever().next(), None);
        assert_eq!(worker.failure().message, "the worker ended: a thread with an operation for it panicked");
    }

    #[test]
    fn wait_ends_with_the_reason_when_the_worker_ends() {
        assert_eq!(error_of(|| Ok(())), "the worker ended");
        assert_eq!(error_of(|| Err(io::Error::other("epoll: no"))), "the worker ended: epoll: no");
        assert_eq!(error_of(|| panic!("7 is not 8")), "the worker panicked: 7 is not 8");
        assert_eq!(error_of(|| panic!("{} is not 8", 6 + 1)), "the worker panicked: 7 is not 8");
    }

    #[test]
    fn stopped_worker_answers_no_call() {
        let signals = Signals::new([SIGHUP]).unwrap();
        let worker = Running::start(ShardCount::ONE, &signals.handle()).unwrap();
        let handle = worker.handle.clone();
        let shown = handle.call(|node| node.slots.len()).map_err(|gone| gone.to_string());
        assert_eq!(shown, Ok(0));
        assert_eq!(worker.stop().map_err(|err| err.message), Ok(()));
        assert!(handle.call(|_| ()).is_err());
    }

    #[test]
    fn failure_names_the_worker_that_ended() {
        let signals = Signals::new([SIGHUP]).unwrap();
        let (handle, [_first, _second]) = command::channels().unwrap();
        let (release, until) = channel::<()>();
        let works: [Box<dyn FnOnce() -> io::Result<()> + Send>; 2] =
            [Box::new(move || until.recv().map_err(io::Error::other)), Box::new(|| panic!("7 is not 8"))];
        let workers = Running::spawn(handle, &signals.handle(), works).unwrap();
        assert_eq!(workers.failure().message, "the worker1 panicked: 7 is not 8");
        drop(release);
    }

    #[test]
    fn workers_of_all_shards_are_watched_and_stopped() {
        let signals = Signals::new([SIGHUP]).unwrap();
        let workers = Running::start(ShardCount::new(3).unwrap(), &signals.handle()).unwrap();
        let threads = Threads::new(channel().0);
        workers.watch(&threads);
        let watched = format!("{threads:?}");
        assert!((0..3).all(|number| watched.contains(&format!("worker{number}"))), "{watched}");
        // A caller may do the turns of a worker that sleeps, so the threads are looked for themselves. Each sets its name when it begins.
        let named = |name: &str| {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
            names.into_iter().any(|comm| comm.trim_end() == name)
        };
        let is_named = (0..5000).any(|_| {
            thread::sleep(Duration::from_millis(1));
            ["worker0", "worker1", "worker2"].into_iter().all(named)
        });
        assert!(is_named);
        assert_eq!(workers.stop().map_err(|err| err.message), Ok(()));
    }
}

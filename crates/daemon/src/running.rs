//! The worker's thread, as a handle for the daemon.

use std::any::Any;
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use signal_hook::iterator::Handle as SignalsHandle;

use client::CliError;

use super::apply::apply;
use super::command::{self, Handle, WorkerGone, same};
use super::plan::Plan;
use super::priority;
use super::threads::{Threads, text_of};
use super::worker::Worker;

/// Longest time that the worker may take to end.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// The worker's thread.
pub(super) struct Running {
    pub(super) handle: Handle,
    thread: JoinHandle<io::Result<()>>,
    /// Channel without messages; disconnected when the worker has ended.
    ended: Receiver<Infallible>,
}

/// Signals the end of the worker, also when it panicked.
struct Ending {
    signals: SignalsHandle,
    _ended: Sender<Infallible>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.signals.close();
    }
}

impl Running {
    pub(super) fn start(signals: SignalsHandle) -> io::Result<Self> {
        let (handle, [inbox]) = command::channel()?;
        let worker = Worker::new(inbox)?;
        Self::spawn(handle, signals, || worker.run())
    }

    fn spawn(
        handle: Handle,
        signals: SignalsHandle,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, ended) = channel();
        let ending = Ending { signals, _ended: sender };
        let thread = thread::Builder::new().name("worker".to_owned()).spawn(move || {
            let _ending = ending;
            priority::go_first();
            work()
        })?;
        Ok(Self { handle, thread, ended })
    }

    /// Applies `plan` on the worker, without a time limit: the next plan starts from the result of this one.
    pub(super) fn apply(&self, plan: Plan) -> Result<(), String> {
        let answer = self.handle.begin(move |node| apply(node, plan)).map_err(|gone| gone.to_string())?;
        answer.recv().unwrap_or_else(|_| Err(WorkerGone.to_string()))
    }

    /// Pauses or resumes forwarding.
    pub(super) fn hold(&self, held: bool) -> Result<(), String> {
        self.handle.change(move |node| node.paused = held, same).map_err(|gone| gone.to_string())
    }

    /// Adds the worker to the threads that the watchdog pings.
    pub(super) fn watch(&self, threads: &Threads) {
        let handle = self.handle.clone();
        threads.watch("worker", move |pulse| {
            let pulse = Arc::clone(pulse);
            // A worker that has ended does not reply.
            let _ = handle.begin(move |_| pulse.answer());
        });
    }

    /// Ends the worker.
    pub(super) fn stop(self) -> Result<(), CliError> {
        // A worker that does not take the operation has ended; the reason follows below.
        let _ = self.handle.stop();
        match self.ended.recv_timeout(END_LIMIT) {
            Err(RecvTimeoutError::Timeout) => {
                Err(CliError::failed(format!("the worker did not end within {} ms", END_LIMIT.as_millis())))
            }
            Err(RecvTimeoutError::Disconnected) => match self.thread.join() {
                Ok(Ok(())) => Ok(()),
                Ok(Err(err)) => Err(CliError::system("the worker ended", &err)),
                Err(panic) => Err(panicked(&*panic)),
            },
            Ok(never) => match never {},
        }
    }

    /// Reason for which the worker ended without a stop operation.
    pub(super) fn failure(self) -> CliError {
        match self.thread.join() {
            Ok(Ok(())) => CliError::failed("the worker ended"),
            Ok(Err(err)) => CliError::system("the worker ended", &err),
            Err(panic) => panicked(&*panic),
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> CliError {
    CliError::failed(format!("the worker panicked: {}", text_of(panic)))
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::SIGHUP;
    use signal_hook::iterator::Signals;

    use super::*;

    /// Reported failure of a worker that runs `work` and gets no stop operation.
    fn error_of(work: fn() -> io::Result<()>) -> String {
        let mut signals = Signals::new([SIGHUP]).unwrap();
        let (handle, [_inbox]) = command::channel().unwrap();
        let worker = Running::spawn(handle, signals.handle(), work).unwrap();
        assert_eq!(signals.forever().next(), None);
        worker.failure().message
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
        let worker = Running::start(signals.handle()).unwrap();
        let handle = worker.handle.clone();
        let shown = handle.call(|node| node.slots.len()).map_err(|gone| gone.to_string());
        assert_eq!(shown, Ok(0));
        assert_eq!(worker.stop().map_err(|err| err.message), Ok(()));
        assert!(handle.call(|_| ()).is_err());
    }
}

//! Calls from other threads to the worker, which runs them between two bursts and never waits for the callers.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use netlink::rtnl::Delta;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::node::Node;

/// Longest time that a caller waits for a worker that is busy with a burst.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to the worker.
pub(crate) enum Command {
    /// A function to run, which also sends the reply.
    Call(Box<dyn FnOnce(&mut Node) + Send>),
    /// Ends the worker.
    Stop,
}

/// Changes of routes and addresses. The worker takes them between receiving packets and deciding on them, so they apply
/// to every packet that it receives later. A sender neither wakes the worker nor waits for it.
#[derive(Debug, Default)]
struct Deltas {
    list: Mutex<Vec<Delta>>,
    /// Whether the list holds any.
    some: AtomicBool,
}

/// Number of pending changes at which a sender wakes the worker.
const MANY_DELTAS: usize = 4096;

/// Eventfd that wakes the worker. An awake worker checks for commands before it sleeps, so senders do not write to the
/// eventfd meanwhile.
#[derive(Debug)]
struct Doorbell {
    fd: OwnedFd,
    /// Whether commands are queued that the worker has not checked for.
    some: AtomicBool,
    /// Whether the worker sleeps, or checks its inbox before it sleeps.
    asleep: AtomicBool,
    /// Number of times that packets have woken the worker; wraps.
    bursts: AtomicU32,
    /// Whether a thread sleeps until packets wake the worker.
    burst_is_awaited: AtomicBool,
    /// Lock and wake-up of such threads.
    sleepers: (Mutex<()>, Condvar),
}

/// Handle of other threads to the worker.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    deltas: Arc<Deltas>,
    bell: Arc<Doorbell>,
}

/// The worker's end of the channel.
#[derive(Debug)]
pub(crate) struct Inbox {
    commands: Receiver<Command>,
    deltas: Arc<Deltas>,
    bell: Arc<Doorbell>,
}

/// Error: the worker has ended, or does not reply.
#[derive(Debug)]
pub(crate) struct WorkerGone;

impl fmt::Display for WorkerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker does not answer; is the gateway ending?")
    }
}

/// A worker's inbox and the handle to it.
pub(crate) fn channel() -> std::io::Result<(Handle, Inbox)> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let [some, asleep, burst_is_awaited] = [false; 3].map(AtomicBool::new);
    let bursts = AtomicU32::new(0);
    let bell = Arc::new(Doorbell { fd, some, asleep, bursts, burst_is_awaited, sleepers: Default::default() });
    let (sender, receiver) = mpsc::channel();
    let deltas = Arc::<Deltas>::default();
    let handle = Handle { commands: sender, deltas: Arc::clone(&deltas), bell: Arc::clone(&bell) };
    Ok((handle, Inbox { commands: receiver, deltas, bell }))
}

impl Handle {
    /// Sends `command` and wakes the worker, if it sleeps.
    pub(crate) fn send(&self, command: Command) -> Result<(), WorkerGone> {
        self.commands.send(command).map_err(|_| WorkerGone)?;
        // Dekker pattern: with SeqCst this thread or the worker that is going to sleep sees the other's store.
        self.bell.some.store(true, Ordering::SeqCst);
        self.wake()
    }

    /// Queues changes that the worker applies before it decides on the next packet that comes in.
    pub(crate) fn queue_deltas(&self, deltas: impl Iterator<Item = Delta>) {
        let mut list = self.deltas.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.extend(deltas);
        if list.is_empty() {
            return;
        }
        self.deltas.some.store(true, Ordering::Release);
        if list.len() >= MANY_DELTAS {
            // A worker that has ended needs no wake-up.
            let _ = self.wake();
        }
    }

    /// Number of times that packets have woken the worker; wraps. The worker may sleep between two bursts of a stream,
    /// and a thread that busy-polls meanwhile delays the stream.
    pub(crate) fn bursts(&self) -> u32 {
        self.bell.bursts.load(Ordering::Relaxed)
    }

    /// Sleeps until the number of [bursts](Self::bursts) differs from `seen`. The caller is not woken meanwhile.
    pub(crate) fn wait_for_burst(&self, seen: u32) {
        let (lock, woken) = &self.bell.sleepers;
        let mut guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // Dekker pattern: with SeqCst this thread sees the worker's new count, or the worker sees that it is awaited.
            self.bell.burst_is_awaited.store(true, Ordering::SeqCst);
            if self.bell.bursts.load(Ordering::SeqCst) != seen {
                return;
            }
            guard = woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake(&self) -> Result<(), WorkerGone> {
        if !self.bell.asleep.load(Ordering::SeqCst) {
            return Ok(());
        }
        match rustix::io::write(&self.bell.fd, &1_u64.to_ne_bytes()) {
            // A full counter means that the worker has not taken earlier commands; it takes this one with them.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(_) => Err(WorkerGone),
        }
    }

    /// Runs a call on the worker's thread, and waits for the reply.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<T, WorkerGone> {
        self.begin(what)?.recv_timeout(PATIENCE).map_err(|_| WorkerGone)
    }

    /// Sends a call to the worker's thread. The reply arrives on the receiver, which is disconnected if the worker
    /// ends.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        what: impl FnOnce(&mut Node) -> T + Send + 'static,
    ) -> Result<Receiver<T>, WorkerGone> {
        // Its place for the reply is allocated here, not on the worker.
        let (sender, receiver) = mpsc::sync_channel(1);
        // The send fails if the caller has timed out.
        self.send(Command::Call(Box::new(move |node| drop(sender.send(what(node))))))?;
        Ok(receiver)
    }
}

impl Inbox {
    /// Descriptor that the worker polls in addition to the links.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.bell.fd
    }

    /// Makes senders write to the eventfd from now on; false if commands are queued already. [`wake_up`](Self::wake_up)
    /// ends this state.
    pub(crate) fn may_sleep(&self) -> bool {
        self.bell.asleep.store(true, Ordering::SeqCst);
        !self.bell.some.load(Ordering::SeqCst)
    }

    /// Makes senders stop writing to the eventfd; `woken`: a sender has written to it; `packets`: there are packets to
    /// process.
    pub(crate) fn wake_up(&self, woken: bool, packets: bool) {
        if packets {
            // The worker is the only writer of this counter.
            self.bell.bursts.store(self.bell.bursts.load(Ordering::Relaxed).wrapping_add(1), Ordering::SeqCst);
            if self.bell.burst_is_awaited.load(Ordering::SeqCst) {
                self.wake_sleepers();
            }
        }
        self.bell.asleep.store(false, Ordering::SeqCst);
        if woken {
            let mut count = [0; 8];
            // A failed read means that no sender wrote to the eventfd.
            let _ = rustix::io::read(&self.bell.fd, &mut count);
        }
    }

    /// Wakes the threads that sleep until packets wake the worker.
    #[cold]
    fn wake_sleepers(&self) {
        let (lock, woken) = &self.bell.sleepers;
        // A thread that holds the lock has yet to compare the counter, or is asleep when the lock is free.
        drop(lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.bell.burst_is_awaited.store(false, Ordering::SeqCst);
        woken.notify_all();
    }

    /// Waits until a sender has sent a command, or queued many changes.
    pub(crate) fn wait(&self) -> std::io::Result<()> {
        let waited = match self.may_sleep() {
            true => rustix::event::poll(&mut [PollFd::new(&self.bell.fd, PollFlags::IN)], None),
            false => Ok(0),
        };
        self.wake_up(matches!(waited, Ok(1..)), false);
        match waited {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Appends the queued changes to `into`. Returns whether there were any.
    pub(crate) fn take_deltas(&self, into: &mut Vec<Delta>) -> bool {
        if !self.deltas.some.load(Ordering::Acquire) {
            return false;
        }
        let mut list = self.deltas.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.deltas.some.store(false, Ordering::Relaxed);
        into.append(&mut list);
        true
    }

    /// Whether commands have been queued since the last call.
    pub(crate) fn has_commands(&self) -> bool {
        self.bell.some.load(Ordering::Relaxed) && self.bell.some.swap(false, Ordering::SeqCst)
    }

    /// The next command, if there is one.
    pub(crate) fn next(&self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::poller::Poller;
    use super::*;

    #[test]
    fn sleeping_worker_gets_all_calls() {
        const COUNT: usize = 20_000;
        let (handle, inbox) = channel().unwrap();
        let worker = thread::spawn(move || {
            let mut node = Node::new(Poller::new(inbox.wake_fd()).unwrap());
            let mut taken = 0;
            loop {
                inbox.wait().unwrap();
                while inbox.has_commands() {
                    while let Some(command) = inbox.next() {
                        let Command::Call(call) = command else { return taken };
                        taken += 1;
                        call(&mut node);
                    }
                }
            }
        });
        for _ in 0..COUNT {
            assert!(handle.call(|_| ()).is_ok());
        }
        handle.send(Command::Stop).unwrap();
        assert_eq!(worker.join().unwrap(), COUNT);
    }

    #[test]
    fn awake_worker_is_not_woken() {
        let (handle, inbox) = channel().unwrap();
        let is_rung = || rustix::event::poll(&mut [PollFd::new(inbox.wake_fd(), PollFlags::IN)], Some(&NOW)) == Ok(1);
        handle.send(Command::Stop).unwrap();
        assert!(!is_rung() && !inbox.may_sleep() && inbox.has_commands() && inbox.next().is_some());
        inbox.wake_up(false, false);
        assert!(!inbox.has_commands() && inbox.next().is_none() && inbox.may_sleep());
        handle.send(Command::Stop).unwrap();
        assert!(is_rung());
        inbox.wake_up(true, false);
        assert!(!is_rung() && inbox.has_commands() && inbox.next().is_some());
    }

    #[test]
    fn only_packets_are_bursts() {
        let (handle, inbox) = channel().unwrap();
        for (woken, packets, bursts) in [(false, false, 0), (false, true, 1), (true, true, 2), (true, false, 2)] {
            assert!(inbox.may_sleep());
            inbox.wake_up(woken, packets);
            assert_eq!(handle.bursts(), bursts);
        }
    }

    #[test]
    fn thread_that_awaits_packets_sleeps_until_they_come() {
        let (handle, inbox) = channel().unwrap();
        let wakeups = AtomicU32::new(0);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                for seen in 0..3 {
                    handle.wait_for_burst(seen);
                    wakeups.fetch_add(1, Ordering::SeqCst);
                }
            });
            for burst in 0..3 {
                while !inbox.bell.burst_is_awaited.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                // Commands are no packets.
                inbox.wake_up(false, false);
                thread::sleep(Duration::from_millis(20));
                assert_eq!(wakeups.load(Ordering::SeqCst), burst);
                inbox.wake_up(false, true);
                while wakeups.load(Ordering::SeqCst) == burst {
                    thread::yield_now();
                }
            }
            sleeper.join().unwrap();
        });
        handle.wait_for_burst(2);
    }

    const NOW: rustix::event::Timespec = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
}

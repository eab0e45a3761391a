//! What other threads may ask of the worker: it takes one between two bursts and never waits for them.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::time::Duration;

use control::event::Event;
use control::{Shown, What};
use rustix::event::{EventfdFlags, eventfd};

use super::node::Plan;

/// How long a worker may be busy with a burst before whoever asks gives up.
const PATIENCE: Duration = Duration::from_secs(5);

/// A request to the worker, with the place for its answer.
pub(crate) enum Command {
    /// Show this.
    Show(What, Sender<Shown>),
    /// Become this, as a whole; or say why not, and stay as it is.
    Apply(Box<Plan>, Sender<Result<(), String>>),
    /// Copy a link's packets to `sink` until its other end is gone.
    Capture { link: String, after_gro: bool, sink: SyncSender<Frame>, reply: Sender<Result<CaptureLink, String>> },
    /// Tell what happens to SAs and policies until the other end of `sink` is gone.
    Monitor { sink: SyncSender<Event>, reply: Sender<()> },
    /// End.
    Stop,
}

/// What a capture's file has to say about its link.
#[derive(Debug)]
pub(crate) struct CaptureLink {
    /// Ethernet frames, or IP packets.
    pub(crate) ethernet: bool,
    /// When the clock of [`Frame::at`] was at zero, since the Unix epoch.
    pub(crate) epoch: Duration,
}

/// A captured packet.
#[derive(Debug)]
pub(crate) struct Frame {
    /// When it was seen.
    pub(crate) at: base::Instant,
    /// Whether it was on its way out.
    pub(crate) outbound: bool,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// The other threads' end of the worker.
#[derive(Clone)]
pub(crate) struct Handle {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    commands: Receiver<Command>,
    wake: Arc<OwnedFd>,
}

/// The worker has ended, or does not answer.
#[derive(Debug)]
pub(crate) struct WorkerGone;

impl fmt::Display for WorkerGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the worker does not answer; is the gateway ending?")
    }
}

/// A worker's inbox and the handle to it.
pub(crate) fn channel() -> std::io::Result<(Handle, Inbox)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::channel();
    Ok((Handle { commands: sender, wake: Arc::clone(&wake) }, Inbox { commands: receiver, wake }))
}

impl Handle {
    /// Sends `command` and wakes the worker.
    pub(crate) fn send(&self, command: Command) -> Result<(), WorkerGone> {
        self.commands.send(command).map_err(|_| WorkerGone)?;
        match rustix::io::write(&*self.wake, &1_u64.to_ne_bytes()) {
            // Full: the worker has not even seen the earlier ones, and will take this one with them.
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(_) => Err(WorkerGone),
        }
    }

    /// Sends the command that `make` builds around the place for its answer, and waits for that.
    pub(crate) fn ask<T>(&self, make: impl FnOnce(Sender<T>) -> Command) -> Result<T, WorkerGone> {
        let (sender, receiver) = mpsc::channel();
        self.send(make(sender))?;
        receiver.recv_timeout(PATIENCE).map_err(|_| WorkerGone)
    }

    /// What there is to show now.
    pub(crate) fn show(&self, what: What) -> Result<Shown, WorkerGone> {
        self.ask(|reply| Command::Show(what, reply))
    }
}

impl Inbox {
    /// What to wait for besides packets.
    pub(crate) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// The next command, if there is one.
    pub(crate) fn next(&self) -> Option<Command> {
        match self.commands.try_recv() {
            Ok(command) => Some(command),
            Err(mpsc::TryRecvError::Empty) => {
                let mut count = [0; 8];
                // Nothing to read means nobody rang, which is as good.
                let _ = rustix::io::read(&*self.wake, &mut count);
                self.commands.try_recv().ok()
            }
            Err(mpsc::TryRecvError::Disconnected) => Some(Command::Stop),
        }
    }
}

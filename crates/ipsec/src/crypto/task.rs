//! Task for a cipher, and the interface of the threads or devices that run tasks.

use std::collections::VecDeque;
use std::fmt;

use base::Instant;

use super::box_pool::PooledBox;
use super::reorder::Ticket;
use crate::open_job::OpenJob;
use crate::seal_job::SealJob;

/// One packet's or one train's work for a cipher.
pub struct Task {
    pub(super) ticket: Ticket,
    pub(super) job: Job,
}

/// Job of a [`Task`].
#[derive(Debug)]
pub(crate) enum Job {
    Seal(PooledBox<SealJob>),
    Open(PooledBox<OpenJob>),
}

/// Something that does the work of ciphers: threads, or a device.
pub trait Crypto: fmt::Debug + Send {
    /// Takes tasks off the front of `todo` that another thread can begin with while more arrive: surely if there is `more` than
    /// these, else perhaps.
    fn take(&mut self, now: Instant, todo: &mut VecDeque<Task>, more: bool) {
        let _ = (now, todo, more);
    }

    /// Takes tasks off the front of `todo`, as many as it has room for, and appends to `done` those that are done by
    /// now, in whatever order. What it leaves in `todo` it is offered again, in the same order, next time.
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>);

    /// As [`work`](Self::work) while more arrives: it does not wait, and leaves to other threads what they get to soon. What they
    /// have is taken back by a later call.
    fn help(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.work(now, todo, done);
    }

    /// Tells whether it is worth calling [`work`](Self::work) again at once: a thread is at a task.
    fn is_at_it(&self) -> bool {
        false
    }

    /// When [`work`](Self::work) is to be called again at the latest. `None` while there is nothing to wait for.
    fn poll_timeout(&self) -> Option<Instant>;
}

impl Task {
    /// Does the work, once.
    pub fn run(&mut self) {
        match &mut self.job {
            Job::Seal(job) => job.run(),
            Job::Open(job) => job.run(),
        }
    }

    /// Bytes that pass through the cipher.
    pub fn bytes(&self) -> usize {
        match &self.job {
            Job::Seal(job) => job.bytes(),
            Job::Open(job) => job.bytes(),
        }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match &self.job {
            Job::Seal(_) => "seal",
            Job::Open(_) => "open",
        };
        write!(f, "Task({what} {} bytes)", self.bytes())
    }
}

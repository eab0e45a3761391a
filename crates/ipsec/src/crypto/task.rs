//! Task for a cipher, and the interface of the threads or devices that run it.

use std::collections::VecDeque;
use std::fmt;

use base::Instant;

use super::box_pool::PooledBox;
use super::reorder::Ticket;
use crate::open_job::OpenJob;
use crate::seal_job::SealJob;

/// Cipher work of one packet or one train.
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

/// Backend that runs cipher tasks: threads, or a device.
pub trait Crypto: fmt::Debug + Send {
    /// Takes tasks from the front of `todo` that another thread can begin while packets arrive: certainly if there are
    /// `more` tasks to come, otherwise perhaps.
    fn take(&mut self, now: Instant, todo: &mut VecDeque<Task>, more: bool) {
        let _ = (now, todo, more);
    }

    /// Takes as many tasks from the front of `todo` as it has room for, and appends tasks finished by now to `done`, in
    /// any order. Tasks left in `todo` are offered again, in the same order, by the next call.
    fn work(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>);

    /// As [`work`](Self::work) while more packets arrive: does not wait, and leaves to other threads the tasks that
    /// they reach soon. A later call returns those.
    fn help(&mut self, now: Instant, todo: &mut VecDeque<Task>, done: &mut Vec<Task>) {
        self.work(now, todo, done);
    }

    /// Tells whether [`work`](Self::work) is worth another call at once: a thread is running a task.
    fn is_running(&self) -> bool {
        false
    }

    /// Latest time of the next call of [`work`](Self::work). `None` without a task in flight.
    fn poll_timeout(&self) -> Option<Instant>;
}

impl Task {
    /// Does the work. Called once.
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

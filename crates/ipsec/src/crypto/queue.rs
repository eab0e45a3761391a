//! What waits for a cipher, what is with one, and what has come back.

use std::collections::VecDeque;
use std::ops::Range;

use base::Instant;
use packet::Buf;

use super::line::{Line, Ticket};
use super::place::{Placed, Places};
use super::{Crypto, Job, Task};
use crate::open_job::{OpenJob, Storage};
use crate::seal_job::SealJob;

/// Bytes that may wait before work begins, so that what was written is still near when it is read.
const WAITING: usize = 512 << 10;

/// Bytes that make a task for others: a burst of 64 packets is four.
const TASK: usize = 22 << 10;

/// Most packets and trains that wait in each direction (Linux's `netdev_max_backlog`).
const PLACES: usize = 1_000;

/// The ciphers' work of one node.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Who does the work; this thread at once if `None`.
    crypto: Option<Box<dyn Crypto>>,
    /// Those who did it before and have some of it still.
    former: Vec<Box<dyn Crypto>>,
    /// How many tasks somebody has.
    away: usize,
    /// What is being sealed, in the order of its numbers.
    pub(crate) sealing: Line<SealJob>,
    /// What is being opened, in the order of its arrival.
    pub(crate) opening: Line<Placed<OpenJob>>,
    /// What arrives now and is not handed in yet.
    pub(crate) collecting: Option<Placed<OpenJob>>,
    /// What is through and passed on now.
    pub(crate) passing: Option<Placed<OpenJob>>,
    /// What was passed on last, empty: what arrives and is like it need not be found out about again, until something else may
    /// have been decided.
    pub(crate) last: Option<Placed<OpenJob>>,
    /// What nobody has taken yet, and how many bytes that is.
    todo: VecDeque<Task>,
    waiting: usize,
    done: Vec<Task>,
    seal_places: Places<SealJob>,
    open_places: Places<OpenJob>,
    /// Lists of jobs that are through.
    pub(crate) spare_open: Vec<Storage>,
    pub(crate) spare_pages: Vec<Vec<(Buf, Range<usize>)>>,
}

impl Queue {
    /// Lets `crypto` do the work from now on. What another one has it may finish.
    pub(crate) fn set_crypto(&mut self, crypto: Option<Box<dyn Crypto>>) {
        if let Some(former) = std::mem::replace(&mut self.crypto, crypto) {
            self.former.push(former);
        }
    }

    /// Tells whether so much waits that more is to be dropped.
    pub(crate) fn is_full(&self) -> bool {
        self.sealing.len() >= PLACES || self.opening.len() >= PLACES
    }

    /// Tells whether something is through.
    pub(crate) fn has_done(&self) -> bool {
        self.passing.is_some() || self.sealing.has_first() || self.opening.has_first()
    }

    /// Tells whether something is not through, or not taken.
    pub(crate) fn is_busy(&self) -> bool {
        self.collecting.is_some() || self.passing.is_some() || self.sealing.len() + self.opening.len() > 0
    }

    /// The job of the packets that came last, if nothing that came before them is still to be passed on.
    #[inline]
    pub(crate) fn like_last_mut(&mut self) -> Option<&mut OpenJob> {
        match &mut self.collecting {
            None if self.passing.is_none() && self.opening.len() == 0 => self.last.as_deref_mut(),
            collecting => collecting.as_deref_mut(),
        }
    }

    /// Keeps a job that is through, if this thread does the work, for what is like it; else what it consists of.
    pub(crate) fn keep(&mut self, done: Placed<OpenJob>) {
        let unlike = if self.is_here() { self.last.replace(done) } else { Some(done) };
        self.dissolve(unlike);
    }

    /// Keeps what a job consists of that nothing is like any more.
    fn dissolve(&mut self, job: Option<Placed<OpenJob>>) {
        self.spare_open.extend(job.map(|job| self.open_places.take(job).into_storage()));
    }

    /// Has nothing be like what was passed on last.
    pub(crate) fn forget_last(&mut self) {
        let last = self.last.take();
        self.dissolve(last);
    }

    /// Hands in a packet to seal.
    pub(crate) fn seal(&mut self, now: Instant, mut job: SealJob) {
        if self.is_here() {
            job.run();
            return self.sealing.push(job);
        }
        let ticket = self.sealing.reserve();
        let job = Job::Seal(self.seal_places.put(job));
        self.hand_in(now, ticket, job);
    }

    /// Collects what is for a job that begins. Nothing was collected before.
    pub(crate) fn begin(&mut self, job: OpenJob) -> &mut OpenJob {
        assert!(self.collecting.is_none(), "what was collected has to be handed in");
        self.collecting.insert(self.open_places.put(job))
    }

    /// Hands in what was collected.
    pub(crate) fn close(&mut self, now: Instant) {
        let Some(mut job) = self.collecting.take() else { return };
        job.complete();
        if self.is_here() {
            // It is decrypted as it is passed on.
            return self.opening.push(job);
        }
        let ticket = self.opening.reserve();
        self.hand_in(now, ticket, Job::Open(job));
    }

    /// The job that is collected, for one more packet: if it was enough for others, that is handed in, and it is one like it.
    #[inline]
    pub(crate) fn collect(&mut self, now: Instant) -> &mut OpenJob {
        if self.has_task() {
            self.go_on(now);
        }
        self.collecting.as_mut().expect("begun")
    }

    fn go_on(&mut self, now: Instant) {
        let storage = self.spare_open.pop().unwrap_or_else(Storage::with_room);
        let another = self.collecting.as_mut().map(|job| job.another(storage));
        self.close(now);
        self.collecting = another.map(|job| self.open_places.put(job));
    }

    /// Tells whether what was collected is enough for others, if there are others.
    #[inline]
    pub(crate) fn has_task(&self) -> bool {
        self.collecting.as_ref().is_some_and(|job| job.bytes() >= TASK) && !self.is_here()
    }

    /// Hands in what was collected if it is enough for others.
    #[inline]
    pub(crate) fn close_if_large(&mut self, now: Instant) {
        if self.has_task() {
            self.close(now);
        }
    }

    fn hand_in(&mut self, now: Instant, ticket: Ticket, job: Job) {
        let task = Task { ticket, job };
        self.waiting += task.bytes();
        self.todo.push_back(task);
        // They may all be done at once.
        self.done.reserve(self.away + self.todo.len());
        if let Some(crypto) = &mut self.crypto {
            let before = self.todo.len();
            crypto.take(now, &mut self.todo);
            self.away += before - self.todo.len();
            self.waiting = self.todo.iter().map(Task::bytes).sum();
        }
        let is_half_full = self.sealing.len().max(self.opening.len()) >= PLACES / 2;
        if is_half_full || self.waiting >= WAITING {
            self.work(now);
        }
    }

    /// Has the work done until something is through that can be passed on, or as far as it goes without time passing.
    pub(crate) fn work(&mut self, now: Instant) {
        loop {
            self.work_once(now, true);
            let mut all = self.former.iter().chain(&self.crypto);
            if self.has_done() || !all.any(|crypto| crypto.is_at_it()) {
                return;
            }
        }
    }

    /// As [`work`](Self::work) while more arrives: nobody waits for threads, which are left what they get to soon.
    pub(crate) fn help(&mut self, now: Instant) {
        while !self.has_done() && self.work_once(now, false) > 0 {}
    }

    /// Gives the work to whoever does it, and puts what has come back into its place: says how much that was. If this `waits`,
    /// there is some, if anybody is at something.
    fn work_once(&mut self, now: Instant, waits: bool) -> usize {
        if self.is_here() && self.away == 0 && self.todo.is_empty() {
            return 0;
        }
        let Self { crypto, former, away, todo, done, .. } = self;
        let work = |crypto: &mut Box<dyn Crypto>, todo: &mut VecDeque<Task>, done: &mut Vec<Task>| match waits {
            true => crypto.work(now, todo, done),
            false => crypto.help(now, todo, done),
        };
        let mut nothing = VecDeque::new();
        former.iter_mut().for_each(|former| work(former, &mut nothing, done));
        match crypto {
            Some(crypto) => {
                let before = todo.len();
                work(crypto, todo, done);
                *away += before - todo.len();
            }
            None => {
                todo.iter_mut().for_each(Task::run);
                *away += todo.len();
                done.extend(todo.drain(..));
            }
        }
        let came = done.len();
        *away -= came;
        if *away == 0 {
            former.clear();
        }
        self.waiting = self.todo.iter().map(Task::bytes).sum();
        for Task { ticket, job } in self.done.drain(..) {
            match job {
                Job::Seal(job) => self.sealing.put_back(ticket, self.seal_places.take(job)),
                Job::Open(job) => {
                    job.prefetch_lists();
                    self.opening.put_back(ticket, job);
                }
            }
        }
        came
    }

    /// When [`work`](Self::work) is to be done again.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.former.iter().chain(&self.crypto).filter_map(|crypto| crypto.poll_timeout()).min()
    }

    /// Tells whether this thread does the work itself, at once.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.crypto.is_none() && self.former.is_empty()
    }
}

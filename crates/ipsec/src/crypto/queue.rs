//! What waits for a cipher, what is with one, and what has come back.

use std::collections::VecDeque;
use std::ops::Range;

use base::Instant;
use hashbrown::HashMap;
use packet::Buf;
use wire::Spi;

use super::batcher::Collecting;
use super::box_pool::{Placed, Places};
use super::reorder::{Line, Ticket};
use super::task::{Crypto, Job, Task};
use crate::open_job::{OpenJob, Storage};
use crate::seal_job::SealJob;

/// Bytes that may wait before work begins, so that what was written is still near when it is read.
const WAITING: usize = 512 << 10;

/// Bytes that make a task for others: a burst of 64 packets is four.
const TASK: usize = 22 << 10;

/// Most SAs whose packets are collected at once.
const COLLECTED: usize = 16;

/// Most packets and trains that wait in each direction (Linux's `netdev_max_backlog`).
const PLACES: usize = 1_000;

/// Most SAs of which it is known what their packets are like.
const RECENT: usize = 256;

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
    pub(crate) collecting: Collecting,
    /// What is through and passed on now.
    pub(crate) passing: Option<Placed<OpenJob>>,
    /// What was passed on last of each SA, empty: what arrives and is like it need not be found out about again, until
    /// something else may have been decided. This thread opens with it at once, or collects others like it.
    recent: HashMap<Spi, Placed<OpenJob>, foldhash::fast::RandomState>,
    /// Whose those are, in no order.
    recent_spis: Vec<Spi>,
    /// How many of the openings that are not through yet began before something else may have been decided.
    outdated: usize,
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

    /// Tells whether so much waits to be sealed that more is to be dropped, whatever waits to be opened (Linux's `pencrypt`
    /// and `pdecrypt` are two instances).
    pub(crate) fn seals_no_more(&self) -> bool {
        self.sealing.len() >= PLACES
    }

    /// Tells whether so much waits to be opened that more is to be dropped, whatever waits to be sealed.
    pub(crate) fn opens_no_more(&self) -> bool {
        self.opening.len() >= PLACES
    }

    /// Tells whether something is through.
    pub(crate) fn has_done(&self) -> bool {
        self.passing.is_some() || self.sealing.has_first() || self.opening.has_first()
    }

    /// Tells whether something is not through, or not taken.
    pub(crate) fn is_busy(&self) -> bool {
        !self.collecting.is_empty() || self.passing.is_some() || self.sealing.len() + self.opening.len() > 0
    }

    /// Tells whether this thread opens at once what now comes with this SPI: nothing that came before is still to be passed on,
    /// and there is nobody else, or nothing for them to do.
    #[inline]
    pub(crate) fn opens_at_once(&self, spi: Spi) -> bool {
        let is_first = self.collecting.is_empty() && self.passing.is_none() && self.opening.len() == 0;
        is_first && (self.is_here() || self.recent.get(&spi).is_some_and(|job| !job.has_cipher_work()))
    }

    /// The job of the packets with this SPI that came last.
    #[inline]
    pub(crate) fn recent_mut(&mut self, spi: Spi) -> Option<&mut OpenJob> {
        self.recent.get_mut(&spi).map(|job| &mut **job)
    }

    /// Keeps a job that is through for what is like it, if something may be; else what it consists of.
    pub(crate) fn keep(&mut self, done: Placed<OpenJob>) {
        let may_be_like = done.is_easy && self.outdated == 0;
        self.outdated = self.outdated.saturating_sub(1);
        let spi = done.spi();
        let unlike = if may_be_like { self.recent.insert(spi, done) } else { Some(done) };
        if may_be_like && unlike.is_none() {
            self.make_room_for(spi);
        }
        self.dissolve(unlike);
    }

    /// Forgets one that is remembered, if there is one too many now that `new` is. Its SPI says which one that is: those that
    /// are in use are back soon, wherever they go.
    fn make_room_for(&mut self, new: Spi) {
        if self.recent_spis.len() < RECENT {
            return self.recent_spis.push(new);
        }
        let old = std::mem::replace(&mut self.recent_spis[new.0 as usize % RECENT], new);
        let gone = self.recent.remove(&old);
        self.dissolve(gone);
    }

    /// Keeps what a job consists of that nothing is like any more.
    fn dissolve(&mut self, job: Option<Placed<OpenJob>>) {
        self.spare_open.extend(job.map(|job| self.open_places.take(job).into_storage()));
    }

    /// Has nothing be like what was passed on, or has arrived.
    pub(crate) fn forget_recent(&mut self) {
        self.outdated = self.collecting.len() + self.opening.len() + usize::from(self.passing.is_some());
        let Self { recent, recent_spis, spare_open, open_places, .. } = self;
        recent_spis.clear();
        spare_open.extend(recent.drain().map(|(_, job)| open_places.take(job).into_storage()));
    }

    /// Hands in a packet to seal.
    pub(crate) fn seal(&mut self, now: Instant, mut job: SealJob) {
        if self.is_here() || !job.has_cipher_work() {
            job.run();
            return self.sealing.push(job);
        }
        let ticket = self.sealing.reserve();
        let job = Job::Seal(self.seal_places.put(job));
        self.hand_in(now, ticket, job, false);
    }

    /// Collects what is for a job that begins, of an SA for which nothing is collected: beside what is for others, if somebody
    /// else opens it.
    pub(crate) fn begin(&mut self, now: Instant, job: OpenJob) -> &mut OpenJob {
        if self.is_here() || self.collecting.len() == COLLECTED {
            self.close(now);
        }
        self.collecting.push(self.open_places.put(job))
    }

    /// Hands in what was collected.
    pub(crate) fn close(&mut self, now: Instant) {
        self.close_first(now, self.collecting.len(), false);
    }

    /// Hands in so many jobs, those that began first: what came by an SA stays in front of what comes by one that takes its
    /// place.
    fn close_first(&mut self, now: Instant, n: usize, more: bool) {
        for _ in 0..n {
            let Some(mut job) = self.collecting.pop() else { return };
            job.complete();
            if self.is_here() || !job.has_cipher_work() {
                // It is decrypted as it is passed on.
                self.opening.push(job);
            } else {
                let ticket = self.opening.reserve();
                self.hand_in(now, ticket, Job::Open(job), more);
            }
        }
    }

    /// What the next packets with this SPI may be like, which others open: those that are collected, or those before.
    #[inline]
    pub(crate) fn like_mut(&mut self, spi: Spi) -> Option<&mut OpenJob> {
        if self.collecting.find(|job| job.spi() == spi).is_some() {
            return self.collecting.latest_mut();
        }
        let is_here = self.is_here();
        self.recent.get_mut(&spi).filter(|_| !is_here).map(|job| &mut **job)
    }

    /// The job that is collected for packets with this SPI, for one more that is [like them](Self::like_mut). If it was enough
    /// for others, that is handed in, and it is another one.
    #[inline]
    pub(crate) fn collect(&mut self, now: Instant, spi: Spi) -> &mut OpenJob {
        let is_collected = self.collecting.find(|job| job.spi() == spi).is_some();
        if !is_collected || self.has_task() {
            let storage = self.spare_open.pop().unwrap_or_else(Storage::with_room);
            let another = self.like_mut(spi).expect("just compared with").another(storage);
            self.close_if_large(now, another.has_cipher_work());
            return self.begin(now, another);
        }
        self.collecting.latest_mut().expect("just found")
    }

    /// Tells whether the job at hand is enough for others, if there are others.
    #[inline]
    pub(crate) fn has_task(&self) -> bool {
        self.collecting.latest().is_some_and(is_task) && !self.is_here()
    }

    /// Hands in the job at hand, and those that began before it.
    pub(crate) fn close_latest(&mut self, now: Instant) {
        self.close_first(now, self.collecting.up_to_latest(), false);
    }

    /// The same if it is enough for others. Whether packets are known to follow, which will be another task, says `more`.
    #[inline]
    pub(crate) fn close_if_large(&mut self, now: Instant, more: bool) {
        if self.has_task() {
            self.close_first(now, self.collecting.up_to_latest(), more);
        }
    }

    fn hand_in(&mut self, now: Instant, ticket: Ticket, job: Job, more: bool) {
        let task = Task { ticket, job };
        self.waiting += task.bytes();
        self.todo.push_back(task);
        // They may all be done at once.
        self.done.reserve(self.away + self.todo.len());
        if let Some(crypto) = &mut self.crypto {
            let before = self.todo.len();
            crypto.take(now, &mut self.todo, more);
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

/// Tells whether a job is enough for others.
#[inline]
pub(crate) fn is_task(job: &OpenJob) -> bool {
    job.bytes() >= TASK
}

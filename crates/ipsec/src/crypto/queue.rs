//! Queue of jobs: waiting for a cipher, in flight, or finished.

use std::collections::VecDeque;
use std::ops::Range;

use base::Instant;
use hashbrown::HashMap;
use packet::Buf;
use wire::Spi;

use super::batcher::Batcher;
use super::box_pool::{BoxPool, PooledBox};
use super::reorder::{ReorderQueue, Ticket};
use super::task::{Crypto, Job, Task};
use crate::open_job::{OpenJob, Storage};
use crate::seal_job::SealJob;

/// Bytes that may wait before work begins; they have to be in a cache still when they are read.
const WAITING: usize = 512 << 10;

/// Bytes of a task for a thread: a burst of 64 packets is four tasks.
const TASK: usize = 22 << 10;

/// Maximum number of SAs whose packets are batched at once.
const COLLECTED: usize = 16;

/// Maximum number of jobs that wait in each direction (Linux's `netdev_max_backlog`).
const PLACES: usize = 1_000;

/// Maximum number of SAs with a cached receive template.
const RECENT: usize = 256;

/// Cipher jobs of one node.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// Threads or device that do the work; this thread does it at once if `None`.
    crypto: Option<Box<dyn Crypto>>,
    /// Former backends with tasks in flight.
    former: Vec<Box<dyn Crypto>>,
    /// Number of tasks in flight.
    away: usize,
    /// Seal jobs, in the order of their sequence numbers.
    pub(crate) sealing: ReorderQueue<SealJob>,
    /// Open jobs, in the order of arrival.
    pub(crate) opening: ReorderQueue<PooledBox<OpenJob>>,
    /// Received packets that are not handed in yet.
    pub(crate) batcher: Batcher,
    /// Finished open job that is being passed on.
    pub(crate) passing: Option<PooledBox<OpenJob>>,
    /// Receive template of each SA: the job that was passed on last, emptied. A packet that matches it skips admission,
    /// until an invalidation. This thread opens such packets at once, or batches them.
    recent: HashMap<Spi, PooledBox<OpenJob>, foldhash::fast::RandomState>,
    /// SPIs of the templates, in no order.
    recent_spis: Vec<Spi>,
    /// Decrypt jobs in flight that predate the last invalidation.
    outdated: usize,
    /// Tasks that no thread has taken yet, and their bytes.
    todo: VecDeque<Task>,
    waiting: usize,
    done: Vec<Task>,
    seal_boxes: BoxPool<SealJob>,
    open_boxes: BoxPool<OpenJob>,
    /// Lists of finished jobs, kept for the next ones.
    pub(crate) spare_open: Vec<Storage>,
    pub(crate) spare_pages: Vec<Vec<(Buf, Range<usize>)>>,
}

impl Queue {
    /// Sets the backend. The one before finishes its tasks.
    pub(crate) fn set_crypto(&mut self, crypto: Option<Box<dyn Crypto>>) {
        if let Some(former) = std::mem::replace(&mut self.crypto, crypto) {
            self.former.push(former);
        }
    }

    /// Tells whether the seal queue is full, so that further packets are dropped. The open queue does not count
    /// (Linux's `pencrypt` and `pdecrypt` are two instances).
    pub(crate) fn is_seal_full(&self) -> bool {
        self.sealing.len() >= PLACES
    }

    /// Tells whether the open queue is full, so that further packets are dropped. The seal queue does not count.
    pub(crate) fn is_open_full(&self) -> bool {
        self.opening.len() >= PLACES
    }

    /// Numbers of packets that wait for their encryption, and for their decryption.
    pub(crate) fn depths(&self) -> [usize; 2] {
        [self.sealing.len(), self.opening.len()]
    }

    /// Tells whether a job is done.
    pub(crate) fn has_done(&self) -> bool {
        self.passing.is_some() || self.sealing.has_first() || self.opening.has_first()
    }

    /// Tells whether a job is pending, or done and not taken.
    pub(crate) fn is_busy(&self) -> bool {
        !self.batcher.is_empty() || self.passing.is_some() || self.sealing.len() + self.opening.len() > 0
    }

    /// Tells whether this thread decrypts the next packet with this SPI at once: no earlier packet is pending, and
    /// there is no crypto thread, or no cipher work.
    #[inline]
    pub(crate) fn opens_at_once(&self, spi: Spi) -> bool {
        let is_first = self.batcher.is_empty() && self.passing.is_none() && self.opening.len() == 0;
        is_first && (self.is_inline() || self.recent.get(&spi).is_some_and(|job| !job.has_cipher_work()))
    }

    /// Receive template of the SA with this SPI.
    #[inline]
    pub(crate) fn recent_mut(&mut self, spi: Spi) -> Option<&mut OpenJob> {
        self.recent.get_mut(&spi).map(|job| &mut **job)
    }

    /// Keeps a finished job as its SA's receive template, if no invalidation came since it began; else keeps its lists
    /// only.
    pub(crate) fn keep(&mut self, done: PooledBox<OpenJob>) {
        let may_be_like = done.may_be_template && self.outdated == 0;
        self.outdated = self.outdated.saturating_sub(1);
        let spi = done.spi();
        let unlike = if may_be_like { self.recent.insert(spi, done) } else { Some(done) };
        if may_be_like && unlike.is_none() {
            self.make_room_for(spi);
        }
        self.recycle(unlike);
    }

    /// Evicts a template if the cache is full. The SPI of `new` chooses it: a template in use is cached again soon.
    fn make_room_for(&mut self, new: Spi) {
        if self.recent_spis.len() < RECENT {
            return self.recent_spis.push(new);
        }
        let old = std::mem::replace(&mut self.recent_spis[new.0 as usize % RECENT], new);
        let gone = self.recent.remove(&old);
        self.recycle(gone);
    }

    /// Keeps the lists of an evicted template.
    fn recycle(&mut self, job: Option<PooledBox<OpenJob>>) {
        self.spare_open.extend(job.map(|job| self.open_boxes.take(job).into_storage()));
    }

    /// Invalidates the receive templates.
    pub(crate) fn invalidate_templates(&mut self) {
        self.outdated = self.batcher.len() + self.opening.len() + usize::from(self.passing.is_some());
        let Self { recent, recent_spis, spare_open, open_boxes, .. } = self;
        recent_spis.clear();
        spare_open.extend(recent.drain().map(|(_, job)| open_boxes.take(job).into_storage()));
    }

    /// Queues a packet to seal, or seals it at once.
    pub(crate) fn seal(&mut self, now: Instant, mut job: SealJob) {
        if self.is_inline() || !job.has_cipher_work() {
            job.run();
            return self.sealing.push(job);
        }
        let ticket = self.sealing.reserve();
        let job = Job::Seal(self.seal_boxes.put(job));
        self.hand_in(now, ticket, job, false);
    }

    /// Begins a batch for an SA that has none. Batches of other SAs stay open if threads open them.
    pub(crate) fn begin(&mut self, now: Instant, job: OpenJob) -> &mut OpenJob {
        if self.is_inline() || self.batcher.len() == COLLECTED {
            self.close(now);
        }
        self.batcher.push(self.open_boxes.put(job))
    }

    /// Hands in all batches.
    pub(crate) fn close(&mut self, now: Instant) {
        self.close_first(now, self.batcher.len(), false);
    }

    /// Hands in the `n` oldest batches: packets of an SA stay in front of those of the SA that replaces it.
    fn close_first(&mut self, now: Instant, n: usize, more: bool) {
        for _ in 0..n {
            let Some(mut job) = self.batcher.pop() else { return };
            job.complete();
            if self.is_inline() || !job.has_cipher_work() {
                // This thread decrypts it when it is passed on.
                self.opening.push(job);
            } else {
                let ticket = self.opening.reserve();
                self.hand_in(now, ticket, Job::Open(job), more);
            }
        }
    }

    /// Template for packets with this SPI that threads decrypt: the open batch, or the receive template.
    #[inline]
    pub(crate) fn template_mut(&mut self, spi: Spi) -> Option<&mut OpenJob> {
        if self.batcher.find(|job| job.spi() == spi).is_some() {
            return self.batcher.latest_mut();
        }
        let is_inline = self.is_inline();
        self.recent.get_mut(&spi).filter(|_| !is_inline).map(|job| &mut **job)
    }

    /// Batch for one more packet that matches [the template](Self::template_mut) of this SPI. A full batch is handed
    /// in, and a new one begins.
    #[inline]
    pub(crate) fn collect(&mut self, now: Instant, spi: Spi) -> &mut OpenJob {
        let is_collected = self.batcher.find(|job| job.spi() == spi).is_some();
        if !is_collected || self.has_task() {
            let storage = self.spare_open.pop().unwrap_or_else(Storage::with_room);
            let another = self.template_mut(spi).expect("just compared with").another(storage);
            self.close_if_large(now, another.has_cipher_work());
            return self.begin(now, another);
        }
        self.batcher.latest_mut().expect("just found")
    }

    /// Tells whether the latest batch is large enough for a thread, if there are threads.
    #[inline]
    pub(crate) fn has_task(&self) -> bool {
        self.batcher.latest().is_some_and(is_task) && !self.is_inline()
    }

    /// Hands in the latest batch and older ones.
    pub(crate) fn close_latest(&mut self, now: Instant) {
        self.close_first(now, self.batcher.up_to_latest(), false);
    }

    /// Hands in the same batches if the latest is large enough for a thread. `more` says that packets for another task
    /// follow.
    #[inline]
    pub(crate) fn close_if_large(&mut self, now: Instant, more: bool) {
        if self.has_task() {
            self.close_first(now, self.batcher.up_to_latest(), more);
        }
    }

    fn hand_in(&mut self, now: Instant, ticket: Ticket, job: Job, more: bool) {
        let task = Task { ticket, job };
        self.waiting += task.bytes();
        self.todo.push_back(task);
        // All of them may finish in this call.
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

    /// Runs jobs, here or on threads, until one can be passed on, or no further progress is possible at `now`.
    pub(crate) fn work(&mut self, now: Instant) {
        loop {
            self.work_once(now, true);
            let mut all = self.former.iter().chain(&self.crypto);
            if self.has_done() || !all.any(|crypto| crypto.is_running()) {
                return;
            }
        }
    }

    /// As [`work`](Self::work) while more packets arrive: does not wait for threads, and leaves them the tasks that
    /// they reach soon.
    pub(crate) fn help(&mut self, now: Instant) {
        while !self.has_done() && self.work_once(now, false) > 0 {}
    }

    /// Hands tasks to the backend and queues finished ones; returns the number of these. If `waits` is set and a task
    /// is in flight, at least one finishes.
    fn work_once(&mut self, now: Instant, waits: bool) -> usize {
        if self.is_inline() && self.away == 0 && self.todo.is_empty() {
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
                Job::Seal(job) => self.sealing.put_back(ticket, self.seal_boxes.take(job)),
                Job::Open(job) => {
                    job.prefetch_lists();
                    self.opening.put_back(ticket, job);
                }
            }
        }
        came
    }

    /// Time of the next call of [`work`](Self::work).
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.former.iter().chain(&self.crypto).filter_map(|crypto| crypto.poll_timeout()).min()
    }

    /// Tells whether this thread does the work itself.
    #[inline]
    pub(crate) fn is_inline(&self) -> bool {
        self.crypto.is_none() && self.former.is_empty()
    }
}

/// Tells whether a job is large enough for a thread.
#[inline]
pub(crate) fn is_task(job: &OpenJob) -> bool {
    job.bytes() >= TASK
}

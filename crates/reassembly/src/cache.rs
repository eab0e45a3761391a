//! Incomplete datagrams that share a limit: hash table, timeout list and eviction lists (Linux's `fqdir`).

use base::Instant;
use packet::{Memory, Packet, prefetch};

use crate::config::{Limits, Policy};
use crate::contiguous::CopyPolicy;
use crate::eviction::{EvictionLists, Linked, List, ListKind, ListLinks, Progress};
use crate::fragment_meta::{FirstFragment, FragmentRange};
use crate::key::{Key, SourceKey};
use crate::queue::{Added, Queue, Refused, Spare};
use crate::slab_map::{KeyHash, SlabId, SlabMap};
use crate::source::Source;

/// The incomplete datagrams of one table.
///
/// Eviction under [`Policy::Fair`]: datagrams that have not grown since their first fragment, while these have more
/// than an eighth of all memory; else the growing ones. So a flood of first fragments evicts first fragments, and new
/// ones always find room. If one source has more than half of all memory, and most of the memory of the chosen class,
/// the victim is one of that source's datagrams. Among the candidates the victim is the one that grew least recently.
/// Every step takes constant time.
#[derive(Debug)]
pub(crate) struct Cache {
    limits: Limits,
    policy: Policy,
    /// 0 means no limit.
    max_distance: u32,
    queues: SlabMap<Key, Waiting>,
    sources: SlabMap<SourceKey, Source>,
    by_age: List,
    all: EvictionLists,
    /// The source that last exceeded half of the memory.
    heaviest: Option<SlabId>,
    /// The source whose last datagram was removed most recently, and often the source of the next datagram.
    idle: Option<SlabId>,
    /// Storage shared by queues.
    spare: Spare,
}

/// A datagram with missing fragments.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: Queue,
    /// Arrival of the first fragment, or time of the last restart.
    since: Instant,
    /// The source, after the datagram's entry into the table.
    source: Option<SlabId>,
    progress: Progress,
    links: [ListLinks; ListKind::COUNT],
}

impl Linked for Waiting {
    #[inline]
    fn links(&mut self, of: ListKind) -> &mut ListLinks {
        &mut self.links[of as usize]
    }
}

/// Memory charged for a queue, without its fragments.
pub(crate) const QUEUE_SIZE: usize = SlabMap::<Key, Waiting>::SIZE;

/// Memory in use, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathering {
    memory: usize,
    high_thresh: usize,
}

impl Gathering {
    /// Minimum length at which the beginning of a datagram is copied to a large page: 0 while memory is plentiful,
    /// since the beginning is then copied only once; otherwise a length that fills a part of the page, so that a few
    /// fragments do not pin many times their length; infinite if a page is a large part of the limit. `uncharged` is
    /// added to the charged bytes.
    pub(crate) fn from(self, uncharged: isize) -> usize {
        if self.is_plenty(uncharged) {
            0
        } else if Memory::LARGE <= self.high_thresh / 4 {
            Memory::LARGE / 4
        } else {
            usize::MAX
        }
    }

    /// Tells whether less than a quarter of the limit is used, so that any datagram may take a large page.
    pub(crate) fn is_plenty(self, uncharged: isize) -> bool {
        self.memory.saturating_add_signed(uncharged) + Memory::LARGE <= self.high_thresh / 4
    }
}

impl Waiting {
    fn source(&self) -> SlabId {
        self.source.expect("each waiting datagram has a source")
    }

    fn charged(&self) -> usize {
        QUEUE_SIZE + self.queue.charged()
    }
}

impl Cache {
    pub(crate) fn new(limits: Limits, policy: Policy, max_distance: u32) -> Self {
        Self {
            limits,
            policy,
            max_distance,
            queues: SlabMap::default(),
            sources: SlabMap::default(),
            by_age: List::default(),
            all: EvictionLists::default(),
            heaviest: None,
            idle: None,
            spare: Spare::default(),
        }
    }

    /// Changes the limits, also for waiting datagrams; the caller then calls [`make_room`](Self::make_room).
    pub(crate) fn configure(&mut self, limits: Limits, policy: Policy, max_distance: u32) {
        (self.limits, self.policy, self.max_distance) = (limits, policy, max_distance);
    }

    /// Tells whether memory permits a further fragment.
    pub(crate) fn admits(&self, pkt: &Packet) -> bool {
        let Limits { high_thresh, .. } = self.limits;
        match self.policy {
            Policy::Fair => pkt.truesize() + QUEUE_SIZE <= high_thresh,
            Policy::Linux => high_thresh > 0 && self.memory() <= high_thresh,
        }
    }

    /// Hash of a datagram's key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &Key) -> KeyHash {
        self.queues.hash(key)
    }

    /// The queue of a datagram, if present.
    pub(crate) fn find(&self, hash: KeyHash, key: &Key) -> Option<SlabId> {
        self.queues.find(hash, key)
    }

    /// The queue of a datagram, created if absent.
    pub(crate) fn find_or_open(&mut self, now: Instant, key: Key) -> SlabId {
        let hash = self.hash(&key);
        self.find(hash, &key).unwrap_or_else(|| {
            let id = self.open();
            self.enlist(now, id, (hash, key));
            id
        })
    }

    /// A slot for the fragments of a datagram that may complete without an entry in the table.
    pub(crate) fn open(&mut self) -> SlabId {
        self.queues.reserve()
    }

    /// Enters a datagram with a slot into the table, and returns the charge for the fragments.
    pub(crate) fn enlist(&mut self, now: Instant, id: SlabId, (hash, key): (KeyHash, Key)) -> usize {
        let source = self.open_source(key.source());
        self.sources[source].queues += 1;
        let waiting = &mut self.queues[id];
        (waiting.since, waiting.source, waiting.progress) = (now, Some(source), Progress::New);
        let charged = waiting.charged();
        self.queues.insert(id, hash, key);
        self.by_age.push(&mut self.queues, ListKind::Age, id);
        self.link(id, source, Progress::New);
        self.charge(source, Progress::New, charged);
        charged - QUEUE_SIZE
    }

    fn open_source(&mut self, key: SourceKey) -> SlabId {
        let sources = &mut self.sources;
        let hash = sources.hash(&key);
        sources.find(hash, &key).unwrap_or_else(|| {
            let id = sources.reserve();
            sources[id] = Source::default();
            sources.insert(id, hash, key);
            id
        })
    }

    /// The queue of a slot, and the shared storage.
    pub(crate) fn queue_mut(&mut self, id: SlabId) -> (&mut Queue, &mut Spare) {
        (&mut self.queues[id].queue, &mut self.spare)
    }

    /// Accounts for added fragments of a waiting datagram; `grew`: they made the datagram much longer. `charged` is the
    /// previous charge.
    pub(crate) fn note_added(&mut self, id: SlabId, charged: usize, fragments: u32, grew: bool) {
        let waiting = &mut self.queues[id];
        let source = waiting.source();
        let progress = waiting.progress;
        let after = waiting.queue.charged();
        if self.max_distance > 0 {
            self.sources[source].pass(&mut waiting.queue.number, fragments);
        }
        if after != charged {
            // The previous charge is still in place.
            self.release(source, progress, charged);
            self.charge(source, progress, after);
        }
        if grew {
            self.promote(id);
        }
    }

    /// Counts fragments of a datagram that completed without an entry in the table.
    pub(crate) fn note_passed(&mut self, key: &Key, fragments: u32) {
        if self.max_distance > 0
            && !self.queues.is_empty()
            && let Some(source) = self.sources.find(self.sources.hash(&key.source()), &key.source())
        {
            self.sources[source].pass(&mut 0, fragments);
        }
    }

    /// Number of bytes that may be charged before an eviction. `None` if the limit is so low that each fragment has to
    /// be checked, or if the policy evicts none.
    pub(crate) fn room(&self) -> Option<usize> {
        let Limits { high_thresh, .. } = self.limits;
        let is_ample = self.policy == Policy::Fair && high_thresh >= 2 * Memory::LARGE;
        if is_ample { high_thresh.checked_sub(self.memory()) } else { None }
    }

    /// Empties a queue if too many fragments of its source arrived since the queue's last one. Returns the number of
    /// fragments that the queue held.
    pub(crate) fn restart_if_too_far(&mut self, id: SlabId, now: Instant) -> u64 {
        let max_distance = self.max_distance;
        let waiting = &mut self.queues[id];
        let (source, progress) = (waiting.source(), waiting.progress);
        if max_distance == 0 || !self.sources[source].advance(&mut waiting.queue.number, max_distance) {
            return 0;
        }
        let (held, charged) = (waiting.queue.fragments(), waiting.queue.charged());
        if held == 0 {
            return 0;
        }
        waiting.queue.restart();
        waiting.since = now;
        self.release(source, progress, charged);
        self.by_age.refresh(&mut self.queues, ListKind::Age, id);
        held
    }

    /// Adds a fragment to a queue.
    pub(crate) fn add(
        &mut self,
        id: SlabId,
        mem: &Memory,
        pkt: Packet,
        (span, first): (&FragmentRange, Option<FirstFragment>),
        how: CopyPolicy,
    ) -> Result<Added, Refused> {
        let how = CopyPolicy { gathers_from: self.gathering().from(0), ..how };
        let Self { queues, spare, .. } = self;
        let waiting = &mut queues[id];
        let source = waiting.source();
        let progress = waiting.progress;
        let before = waiting.queue.charged();
        let added = waiting.queue.add(mem, pkt, span, first, how, spare)?;
        let after = waiting.queue.charged();
        self.release(source, progress, before);
        self.charge(source, progress, after);
        if added == Added::Nearer {
            self.promote(id);
        }
        Ok(added)
    }

    /// Snapshot of the used memory, and of its limit.
    pub(crate) fn gathering(&self) -> Gathering {
        Gathering { memory: self.memory(), high_thresh: self.limits.high_thresh }
    }

    /// Evicts datagrams until memory is below the limit, and calls `gone` for each.
    pub(crate) fn make_room(&mut self, mut gone: impl FnMut(SlabId, &Queue)) {
        while self.policy == Policy::Fair && self.memory() > self.limits.high_thresh {
            let Some(victim) = self.victim() else { return };
            self.prefetch_behind(victim);
            self.close(victim, |queue, spare| {
                gone(victim, queue);
                queue.discard(&mut spare.free_batch);
            });
        }
    }

    /// Prefetches the next victims, whose fragments arrived long ago. The last eviction prefetched the successor's
    /// pointers.
    #[inline]
    fn prefetch_behind(&self, victim: SlabId) {
        let Some(next) = self.queues[victim].links[ListKind::All as usize].younger else { return };
        let waiting = &self.queues[next];
        waiting.queue.prefetch_home();
        if let Some(source) = waiting.source {
            prefetch(&self.sources[source]);
        }
        if let Some(after) = waiting.links[ListKind::All as usize].younger {
            prefetch(&self.queues[after]);
        }
    }

    /// Frees the buffers of evicted datagrams.
    pub(crate) fn settle(&mut self) {
        self.spare.free_batch.settle();
    }

    /// The datagram to be evicted next.
    fn victim(&self) -> Option<SlabId> {
        let Limits { high_thresh, .. } = self.limits;
        let (progress, other) = match self.all.charged_to(Progress::New) > high_thresh / 8 {
            true => (Progress::New, Progress::Growing),
            false => (Progress::Growing, Progress::New),
        };
        let heaviest = self.heaviest.filter(|&source| self.sources.contains(source));
        let has_most = |group: &&EvictionLists| {
            group.charged() > high_thresh / 2 && group.charged_to(progress) > self.all.charged_to(progress) / 2
        };
        let group = heaviest.map(|source| &self.sources[source].group).filter(has_most).unwrap_or(&self.all);
        group.oldest(progress).or(self.all.oldest(other))
    }

    /// Removes a queue, which is in the table or has a slot only, and its charge. Buffers that `with` leaves in the
    /// queue are dropped.
    pub(crate) fn close<T>(&mut self, id: SlabId, with: impl FnOnce(&mut Queue, &mut Spare) -> T) -> T {
        self.withdraw(id);
        let (queue, spare) = self.queue_mut(id);
        let result = with(queue, spare);
        self.vacate(id);
        result
    }

    /// Removes a queue from the table and all lists, with its charge, if it is in the table. The slot stays reserved.
    #[inline]
    pub(crate) fn withdraw(&mut self, id: SlabId) {
        if self.queues.contains(id) {
            self.unlist(id);
        }
    }

    /// Drops the contents of a [withdrawn](Self::withdraw) queue, and frees its slot.
    #[inline]
    pub(crate) fn vacate(&mut self, id: SlabId) {
        let Self { queues, spare, .. } = self;
        queues[id].queue.clear(spare);
        queues.remove(id);
        debug_assert!(self.queues() > 0 || self.memory() == 0, "{} bytes for nothing", self.memory());
    }

    /// Removes a queue from all lists.
    fn unlist(&mut self, id: SlabId) {
        let waiting = &self.queues[id];
        if cfg!(debug_assertions) {
            waiting.queue.check_charged();
        }
        let (source, progress) = (waiting.source(), waiting.progress);
        self.release(source, progress, waiting.charged());
        self.by_age.unlink(&mut self.queues, ListKind::Age, id);
        self.unlink(id, source, progress);
        self.sources[source].queues -= 1;
        if self.sources[source].queues == 0
            && let Some(idle) = self.idle.replace(source)
            && idle != source
            && self.sources[idle].queues == 0
        {
            self.sources.remove(idle);
        }
    }

    /// Removes a queue without fragments.
    pub(crate) fn close_if_empty(&mut self, id: SlabId) {
        if self.queues[id].queue.fragments() == 0 {
            self.close(id, |_, _| ());
        }
    }

    /// The next timeout, and its datagram.
    pub(crate) fn next(&self) -> Option<(Instant, SlabId)> {
        self.by_age.oldest.map(|id| (self.queues[id].since + self.limits.timeout, id))
    }

    /// Number of bytes charged for fragments and queues.
    pub(crate) fn memory(&self) -> usize {
        self.all.charged()
    }

    /// Number of waiting datagrams.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    fn charge(&mut self, source: SlabId, progress: Progress, bytes: usize) {
        *self.all.charged_mut(progress) += bytes;
        let group = &mut self.sources[source].group;
        *group.charged_mut(progress) += bytes;
        if group.charged() > self.limits.high_thresh / 2 {
            self.heaviest = Some(source);
        }
    }

    fn release(&mut self, source: SlabId, progress: Progress, bytes: usize) {
        *self.all.charged_mut(progress) -= bytes;
        *self.sources[source].group.charged_mut(progress) -= bytes;
    }

    /// Moves a datagram that has grown to the end of the eviction lists.
    fn promote(&mut self, id: SlabId) {
        let waiting = &self.queues[id];
        let source = waiting.source();
        let progress = waiting.progress;
        let charged = waiting.charged();
        if progress == Progress::Growing {
            self.sources[source].group.list(progress).refresh(&mut self.queues, ListKind::Source, id);
            self.all.list(progress).refresh(&mut self.queues, ListKind::All, id);
            return;
        }
        self.release(source, progress, charged);
        self.unlink(id, source, progress);
        self.queues[id].progress = Progress::Growing;
        self.link(id, source, Progress::Growing);
        self.charge(source, Progress::Growing, charged);
    }

    fn link(&mut self, id: SlabId, source: SlabId, progress: Progress) {
        self.sources[source].group.list(progress).push(&mut self.queues, ListKind::Source, id);
        self.all.list(progress).push(&mut self.queues, ListKind::All, id);
    }

    fn unlink(&mut self, id: SlabId, source: SlabId, progress: Progress) {
        self.sources[source].group.list(progress).unlink(&mut self.queues, ListKind::Source, id);
        self.all.list(progress).unlink(&mut self.queues, ListKind::All, id);
    }

    /// Panics unless the charges match the queues, and each source's charges match its own queues. For tests.
    pub(crate) fn check_invariants(&self) {
        self.queues.iter().for_each(|(_, waiting)| waiting.queue.check_charged());
        let held: usize = self.queues.iter().map(|(_, waiting)| waiting.charged()).sum();
        assert_eq!(self.memory(), held, "charged, and held by {} queues", self.queues());
        let by_source: usize = self.sources.iter().map(|(_, source)| source.group.charged()).sum();
        assert_eq!(by_source, held, "charged to {} sources", self.sources.len());
        let queues: usize = self.sources.iter().map(|(_, source)| source.queues).sum();
        assert_eq!(queues, self.queues(), "queues that sources have");
        assert!(self.sources.len() <= queues + 1, "{} sources of {queues} queues", self.sources.len());
        if self.policy == Policy::Fair {
            assert!(held <= self.limits.high_thresh, "{held} bytes, and {} allowed", self.limits.high_thresh);
        }
    }
}

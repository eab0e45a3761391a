//! The datagrams that share a limit: found by key, in the order in which they time out, and by how likely each is to
//! become whole (Linux's `fqdir`).

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
use crate::user::ReassemblyContext;

/// The datagrams of one table.
///
/// Under [`Policy::Fair`], room is made by those that have hardly begun as long as they have more than an eighth of all
/// memory, else by those that grow: a flood of beginnings drives out beginnings, and new ones always find room. If one
/// source has more than half of all memory, and most of what these have, it is one of its own. Of all these it is the one
/// that grew least lately. Nothing of this takes longer for more datagrams.
#[derive(Debug)]
pub(crate) struct Cache {
    limits: Limits,
    policy: Policy,
    /// 0 is without limit.
    max_distance: u32,
    queues: SlabMap<Key, Waiting>,
    sources: SlabMap<SourceKey, Source>,
    by_age: List,
    all: EvictionLists,
    /// The source that took more than half of the memory last.
    heaviest: Option<SlabId>,
    /// The source whose last datagram left last: mostly the next one is its own too.
    idle: Option<SlabId>,
    /// Storage that queues share.
    spare: Spare,
}

/// A datagram that waits for fragments.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: Queue,
    /// When its first fragment came, or it was restarted.
    since: Instant,
    /// The sender, while the datagram waits.
    source: Option<SlabId>,
    standing: Progress,
    links: [ListLinks; ListKind::COUNT],
}

impl Linked for Waiting {
    #[inline]
    fn links(&mut self, of: ListKind) -> &mut ListLinks {
        &mut self.links[of as usize]
    }
}

/// Memory charged for a queue besides its fragments.
pub(crate) const QUEUE_SIZE: usize = SlabMap::<Key, Waiting>::SIZE;

/// Memory in use, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gathering {
    memory: usize,
    high_thresh: usize,
}

impl Gathering {
    /// From how many bytes on the beginning of a datagram is worth a large page: at once while there is plenty of memory,
    /// as it is then copied once only; else when it fills some of it, so that a few fragments do not pin many times their
    /// length; never if a page is much of what may be used at all. So many bytes more are used, or fewer, than are charged yet.
    pub(crate) fn from(self, uncharged: isize) -> usize {
        if self.is_plenty(uncharged) {
            0
        } else if Memory::LARGE <= self.high_thresh / 4 {
            Memory::LARGE / 4
        } else {
            usize::MAX
        }
    }

    /// Whether one large page more is used without much thought: less than a quarter of what may be is used.
    pub(crate) fn is_plenty(self, uncharged: isize) -> bool {
        self.memory.saturating_add_signed(uncharged) + Memory::LARGE <= self.high_thresh / 4
    }
}

impl Waiting {
    fn source(&self) -> SlabId {
        self.source.expect("what waits is somebody's")
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

    /// Changes the limits, also for datagrams that wait already; the caller then calls [`make_room`](Self::make_room).
    pub(crate) fn configure(&mut self, limits: Limits, policy: Policy, max_distance: u32) {
        (self.limits, self.policy, self.max_distance) = (limits, policy, max_distance);
    }

    /// Whether a fragment may be added at all.
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

    /// The queue of a datagram, if there is one.
    pub(crate) fn find(&self, hash: KeyHash, key: &Key) -> Option<SlabId> {
        self.queues.find(hash, key)
    }

    /// The queue of a datagram.
    pub(crate) fn find_or_open(&mut self, now: Instant, key: Key) -> SlabId {
        let hash = self.hash(&key);
        self.find(hash, &key).unwrap_or_else(|| {
            let id = self.open();
            self.enlist(now, id, (hash, key));
            id
        })
    }

    /// A place for the fragments of a datagram that does not wait yet, and may never.
    pub(crate) fn open(&mut self) -> SlabId {
        self.queues.reserve()
    }

    /// Enters a datagram that has a place into the table, and returns the charge for its fragments.
    pub(crate) fn enlist(&mut self, now: Instant, id: SlabId, (hash, key): (KeyHash, Key)) -> usize {
        let source = self.open_source(key.source());
        self.sources[source].queues += 1;
        let waiting = &mut self.queues[id];
        (waiting.since, waiting.source, waiting.standing) = (now, Some(source), Progress::New);
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

    /// The fragments at a place, and what they work with.
    pub(crate) fn queue_mut(&mut self, id: SlabId) -> (&mut Queue, &mut Spare) {
        (&mut self.queues[id].queue, &mut self.spare)
    }

    /// Notes fragments that were added to what waits, of which one made it much longer, if it `grew`. So much had been
    /// charged for the others.
    pub(crate) fn note_added(&mut self, id: SlabId, charged: usize, fragments: u32, grew: bool) {
        let waiting = &mut self.queues[id];
        let (source, standing, after) = (waiting.source(), waiting.standing, waiting.queue.charged());
        if self.max_distance > 0 {
            self.sources[source].pass(&mut waiting.queue.number, fragments);
        }
        if after != charged {
            // Memory that was charged before was not freed meanwhile.
            self.release(source, standing, charged);
            self.charge(source, standing, after);
        }
        if grew {
            self.promote(id);
        }
    }

    /// Notes fragments of a datagram that never waited.
    pub(crate) fn note_passed(&mut self, key: &Key, fragments: u32) {
        if self.max_distance > 0
            && !self.queues.is_empty()
            && let Some(source) = self.sources.find(self.sources.hash(&key.source()), &key.source())
        {
            self.sources[source].pass(&mut 0, fragments);
        }
    }

    /// Bytes that may be charged for before others have to make room. `None` if there is so little that each fragment has to
    /// be asked about, or if none makes room.
    pub(crate) fn room(&self) -> Option<usize> {
        let Limits { high_thresh, .. } = self.limits;
        let is_ample = self.policy == Policy::Fair && high_thresh >= 2 * Memory::LARGE;
        if is_ample { high_thresh.checked_sub(self.memory()) } else { None }
    }

    /// Empties a queue whose last fragment is too long ago for another one now, and returns how many fragments it held.
    pub(crate) fn restart_if_too_far(&mut self, id: SlabId, now: Instant) -> u64 {
        let max_distance = self.max_distance;
        let waiting = &mut self.queues[id];
        let (source, standing) = (waiting.source(), waiting.standing);
        if max_distance == 0 || !self.sources[source].advance(&mut waiting.queue.number, max_distance) {
            return 0;
        }
        let (held, charged) = (waiting.queue.fragments(), waiting.queue.charged());
        if held == 0 {
            return 0;
        }
        waiting.queue.restart();
        waiting.since = now;
        self.release(source, standing, charged);
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
        let (source, standing, before) = (waiting.source(), waiting.standing, waiting.queue.charged());
        let added = waiting.queue.add(mem, pkt, span, first, how, spare)?;
        let after = waiting.queue.charged();
        self.release(source, standing, before);
        self.charge(source, standing, after);
        if added == Added::Nearer {
            self.promote(id);
        }
        Ok(added)
    }

    /// Snapshot of the memory in use, and of its limit.
    pub(crate) fn gathering(&self) -> Gathering {
        Gathering { memory: self.memory(), high_thresh: self.limits.high_thresh }
    }

    /// Gives up datagrams until memory is below its limit, and hands each to `gone`.
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

    /// Asks the processor to have near what the next ones to make room are made of: all of them came long ago. What the
    /// next one points to is known, as that one has been asked for when the last one went.
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

    /// Lets go of what made room.
    pub(crate) fn settle(&mut self) {
        self.spare.free_batch.settle();
    }

    /// The datagram to be evicted next.
    fn victim(&self) -> Option<SlabId> {
        let Limits { high_thresh, .. } = self.limits;
        let (standing, other) = match self.all.charged_to(Progress::New) > high_thresh / 8 {
            true => (Progress::New, Progress::Growing),
            false => (Progress::Growing, Progress::New),
        };
        let heaviest = self.heaviest.filter(|&source| self.sources.contains(source));
        let has_most = |group: &&EvictionLists| {
            group.charged() > high_thresh / 2 && group.charged_to(standing) > self.all.charged_to(standing) / 2
        };
        let group = heaviest.map(|source| &self.sources[source].group).filter(has_most).unwrap_or(&self.all);
        group.oldest(standing).or(self.all.oldest(other))
    }

    /// Takes a queue out, and with it its share of memory, or one that has a place only. What `with` leaves of it is
    /// dropped.
    pub(crate) fn close<T>(&mut self, id: SlabId, with: impl FnOnce(&mut Queue, &mut Spare) -> T) -> T {
        self.withdraw(id);
        let (queue, spare) = self.queue_mut(id);
        let result = with(queue, spare);
        self.vacate(id);
        result
    }

    /// Takes a queue out of all lists if it waits, and with it its share of memory. Its place is still its own.
    #[inline]
    pub(crate) fn withdraw(&mut self, id: SlabId) {
        if self.queues.contains(id) {
            self.unlist(id);
        }
    }

    /// Drops what is left of a queue that was [taken out](Self::withdraw), and leaves its place to others.
    #[inline]
    pub(crate) fn vacate(&mut self, id: SlabId) {
        let Self { queues, spare, .. } = self;
        queues[id].queue.clear(spare);
        queues.remove(id);
        debug_assert!(self.queues() > 0 || self.memory() == 0, "{} bytes for nothing", self.memory());
    }

    /// Takes a queue out of all lists.
    fn unlist(&mut self, id: SlabId) {
        let waiting = &self.queues[id];
        if cfg!(debug_assertions) {
            waiting.queue.check_charged();
        }
        let (source, standing) = (waiting.source(), waiting.standing);
        self.release(source, standing, waiting.charged());
        self.by_age.unlink(&mut self.queues, ListKind::Age, id);
        self.unlink(id, source, standing);
        self.sources[source].queues -= 1;
        if self.sources[source].queues == 0
            && let Some(idle) = self.idle.replace(source)
            && idle != source
            && self.sources[idle].queues == 0
        {
            self.sources.remove(idle);
        }
    }

    /// Takes a queue out that has no fragments.
    pub(crate) fn close_if_empty(&mut self, id: SlabId) {
        if self.queues[id].queue.fragments() == 0 {
            self.close(id, |_, _| ());
        }
    }

    /// When the next datagram times out, and which one that is.
    pub(crate) fn next(&self) -> Option<(Instant, SlabId)> {
        self.by_age.oldest.map(|id| (self.queues[id].since + self.limits.timeout, id))
    }

    /// Context in which a datagram is reassembled.
    pub(crate) fn context(&self, id: SlabId) -> ReassemblyContext {
        self.queues.key(id).context()
    }

    /// Bytes of memory that fragments and their queues hold.
    pub(crate) fn memory(&self) -> usize {
        self.all.charged()
    }

    /// Datagrams that wait.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    fn charge(&mut self, source: SlabId, standing: Progress, bytes: usize) {
        *self.all.charged_mut(standing) += bytes;
        let group = &mut self.sources[source].group;
        *group.charged_mut(standing) += bytes;
        if group.charged() > self.limits.high_thresh / 2 {
            self.heaviest = Some(source);
        }
    }

    fn release(&mut self, source: SlabId, standing: Progress, bytes: usize) {
        *self.all.charged_mut(standing) -= bytes;
        *self.sources[source].group.charged_mut(standing) -= bytes;
    }

    /// A datagram has made progress.
    fn promote(&mut self, id: SlabId) {
        let waiting = &self.queues[id];
        let (source, standing, charged) = (waiting.source(), waiting.standing, waiting.charged());
        if standing == Progress::Growing {
            self.sources[source].group.list(standing).refresh(&mut self.queues, ListKind::Source, id);
            self.all.list(standing).refresh(&mut self.queues, ListKind::All, id);
            return;
        }
        self.release(source, standing, charged);
        self.unlink(id, source, standing);
        self.queues[id].standing = Progress::Growing;
        self.link(id, source, Progress::Growing);
        self.charge(source, Progress::Growing, charged);
    }

    fn link(&mut self, id: SlabId, source: SlabId, standing: Progress) {
        self.sources[source].group.list(standing).push(&mut self.queues, ListKind::Source, id);
        self.all.list(standing).push(&mut self.queues, ListKind::All, id);
    }

    fn unlink(&mut self, id: SlabId, source: SlabId, standing: Progress) {
        self.sources[source].group.list(standing).unlink(&mut self.queues, ListKind::Source, id);
        self.all.list(standing).unlink(&mut self.queues, ListKind::All, id);
    }

    /// Panics unless memory is charged for what is there, each to its source. For tests.
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

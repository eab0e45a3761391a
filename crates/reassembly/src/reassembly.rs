//! Reassembly of datagrams.

use base::{Counters, DropReason, Instant, PortId};
use packet::{Csum, Cut, Memory, Packet};
use wire::ip::Info;
use wire::{FragInfo, Version};

use crate::cache::Cache;
use crate::config::{Coalesce, Config};
use crate::contiguous::{CopyPolicy, TINY};
use crate::fragment_meta::{FragmentMeta, ParameterProblem};
use crate::key::Key;
use crate::page_waste::{copy_to_small_page, wastes_page};
use crate::queue::{Added, Refused};
use crate::rebuild_header;
use crate::slab_map::SlabId;
use crate::user::ReassemblyContext;
use crate::verdict::{Count, Evicted, Expired, Verdict};

/// The families, in the order of their tables.
const VERSIONS: [Version; 2] = [Version::V4, Version::V6];

/// Incomplete datagrams of all users.
#[derive(Debug)]
pub struct Reassembly {
    /// Incomplete datagrams of IPv4, and of IPv6.
    tables: [Cache; VERSIONS.len()],
    coalesce: Coalesce,
    evicted: Vec<Evicted>,
}

/// Outcome of a batch of fragments of one datagram.
pub(crate) enum End {
    /// The datagram is incomplete.
    Waits,
    /// The datagram is complete.
    Whole,
    /// The last fragment of the batch is refused.
    Refused(Refused),
}

/// Usage of a table: `inuse` and `memory` of Linux's `sockstat`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Number of waiting datagrams.
    pub queues: usize,
    /// Number of bytes charged for the waiting datagrams.
    pub memory: usize,
}

impl Reassembly {
    /// Reassembly without fragments.
    pub fn new(config: Config) -> Self {
        let Config { policy, coalesce, v4, v6, max_distance } = config;
        let tables = [Cache::new(v4, policy, max_distance), Cache::new(v6, policy, 0)];
        Self { tables, coalesce, evicted: Vec::new() }
    }

    /// Changes the configuration, also for waiting datagrams: the new timeouts apply, and datagrams beyond the new
    /// limits are evicted ([`drain_evicted`](Self::drain_evicted)).
    pub fn configure(&mut self, config: Config, counters: &mut Counters) {
        let Config { policy, coalesce, v4, v6, max_distance } = config;
        self.coalesce = coalesce;
        for (version, limits, max_distance) in [(Version::V4, v4, max_distance), (Version::V6, v6, 0)] {
            self.table(version).configure(limits, policy, max_distance);
            self.make_room(version, None, &mut Count::new(counters, version));
        }
    }

    /// Handles a fragment: a packet that begins with its IP header, which `info` summarizes, with its link in `meta`. A
    /// packet that is not a fragment is complete already. [`drain_evicted`](Self::drain_evicted) returns the evictions
    /// that this call caused.
    pub fn handle_fragment(
        &mut self,
        now: Instant,
        mem: &Memory,
        context: ReassemblyContext,
        mut pkt: Packet,
        info: &Info,
        counters: &mut Counters,
    ) -> Verdict {
        let Some(fragment) = info.fragment else { return Verdict::Whole { largest: pkt.len(), pkt } };
        prefetch_tiny(&pkt);
        let version = info.version();
        let mut count = Count::new(counters, version);
        count.request();
        let part = match part_of(mem, &mut pkt, info, fragment) {
            Ok(part) => part,
            Err(reason) => {
                count.fail();
                return Verdict::Drop { reason, packets: 1 };
            }
        };
        if version == Version::V6 {
            //= RFC 8200 §4.5 atomic: a packet whose fragment header says that it is whole is delivered by itself, and
            //=   does not affect fragments of its identification
            if fragment.is_atomic() {
                return atomic(mem, pkt, &part, &mut count);
            }
            if let Err(problem) = part.check_header_chain(&pkt) {
                return refuse(pkt, problem, &mut count);
            }
        }
        self.copy_out_of_large_page(mem, version, &mut pkt);
        if !self.table(version).admits(&pkt) {
            count.fail();
            return Verdict::Drop { reason: DropReason::FragmentMemory, packets: 1 };
        }
        let key = Key::ip(context, &pkt, info, fragment);
        if version == Version::V6
            && let Err(problem) = part.check_lengths()
        {
            return refuse(pkt, problem, &mut count);
        }
        // The partial checksum covers other fragments too, and cannot be completed from this one.
        if let Csum::Partial { .. } = pkt.meta.csum {
            pkt.meta.csum = Csum::None;
        }
        self.enqueue(now, mem, version, key, pkt, &part, count)
    }

    /// Adds a fragment to its queue.
    #[expect(clippy::too_many_arguments, reason = "facts of one fragment, from three parsers")]
    fn enqueue(
        &mut self,
        now: Instant,
        mem: &Memory,
        version: Version,
        key: Key,
        pkt: Packet,
        part: &FragmentMeta,
        mut count: Count<'_>,
    ) -> Verdict {
        let how = self.how();
        let cache = self.table(version);
        let id = cache.find_or_open(now, key);
        let restarted = cache.restart_if_too_far(id, now);
        if restarted > 0 {
            count.fail();
        }
        let end = match cache.add(id, mem, pkt, (&part.span(), part.first()), how) {
            Ok(Added::Whole) => End::Whole,
            Ok(Added::Nearer | Added::Hardly) => End::Waits,
            Err(refused) => End::Refused(refused),
        };
        self.conclude(version, id, end, restarted, mem, how, count)
    }

    /// Concludes a batch of fragments of one datagram, or a single fragment: delivers or drops the datagram, or evicts
    /// others to make room. Before the batch, `restarted` fragments of the datagram were dropped.
    #[expect(clippy::too_many_arguments, reason = "the state of the batch")]
    #[inline]
    pub(crate) fn conclude(
        &mut self,
        version: Version,
        id: SlabId,
        end: End,
        restarted: u64,
        mem: &Memory,
        how: CopyPolicy,
        mut count: Count<'_>,
    ) -> Verdict {
        let cache = self.table(version);
        match end {
            End::Whole => self.complete(version, id, mem, how, count),
            End::Waits => match self.make_room(version, Some(id), &mut count) {
                Some(packets) => Verdict::Drop { reason: DropReason::FragmentMemory, packets: packets + restarted },
                None if restarted > 0 => Verdict::Restarted { packets: restarted },
                None => Verdict::Held,
            },
            End::Refused(Refused::Datagram(reason)) => {
                count.fail_for(reason);
                let packets = cache.close(id, |queue, _| queue.fragments()) + restarted + 1;
                Verdict::Drop { reason, packets }
            }
            End::Refused(Refused::Fragment(reason)) => {
                cache.close_if_empty(id);
                Verdict::Drop { reason, packets: restarted + 1 }
            }
        }
    }

    /// Makes one packet of a complete queue.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        version: Version,
        id: SlabId,
        mem: &Memory,
        how: CopyPolicy,
        mut count: Count<'_>,
    ) -> Verdict {
        let cache = self.table(version);
        cache.withdraw(id);
        let (queue, _) = cache.queue_mut(id);
        let packets = queue.fragments();
        // Moved once, at the end.
        let verdict = match queue.finish(mem, how) {
            Ok(()) => {
                count.ok();
                match queue.misplaced() {
                    Some(problem) => refuse(queue.take_whole(), problem, &mut count),
                    None => Verdict::Whole { largest: queue.largest(), pkt: queue.take_whole() },
                }
            }
            Err(reason) => {
                count.fail();
                Verdict::Drop { reason, packets }
            }
        };
        cache.vacate(id);
        verdict
    }

    /// Evicts datagrams until a table is below its limit. If `own` is evicted, returns its number of fragments.
    pub(crate) fn make_room(&mut self, version: Version, own: Option<SlabId>, count: &mut Count<'_>) -> Option<u64> {
        let Self { tables, evicted, .. } = self;
        let mut lost = None;
        tables[version as usize].make_room(|victim, queue| {
            count.fail();
            let origin = queue.origin().get();
            let packets = queue.fragments();
            if Some(victim) == own {
                lost = Some(packets);
            } else if let Some(known) = evicted.iter_mut().find(|known| known.origin == origin) {
                known.packets += packets;
            } else {
                evicted.push(Evicted { origin, packets });
            }
        });
        lost
    }

    /// Drains the evictions since the last call. Until then some of their pages stay allocated, so that the pages of a
    /// burst are freed together.
    pub fn drain_evicted(&mut self) -> std::vec::Drain<'_, Evicted> {
        self.tables.iter_mut().for_each(Cache::settle);
        self.evicted.drain(..)
    }

    /// Time of the next timeout.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.tables.iter().filter_map(Cache::next).map(|(deadline, _)| deadline).min()
    }

    /// Drops datagrams that have timed out, and appends them to `expired`. If the link was removed, no error is due,
    /// and IPv6 does not count the timeout.
    pub fn handle_timeout(
        &mut self,
        now: Instant,
        is_there: impl Fn(PortId) -> bool,
        counters: &mut Counters,
        expired: &mut Vec<Expired>,
    ) {
        for version in VERSIONS {
            let cache = self.table(version);
            while let Some((deadline, id)) = cache.next()
                && deadline <= now
            {
                let (origin, packets, first) = cache.close(id, |queue, _| {
                    let origin = queue.origin().get();
                    (origin, queue.fragments(), origin.port().is_none_or(&is_there).then(|| queue.take_first()))
                });
                if version == Version::V4 || first.is_some() {
                    Count::new(counters, version).timeout();
                }
                expired.push(Expired { first: first.flatten(), origin, packets, version });
            }
        }
    }

    /// Usage of one family's table.
    pub fn usage(&self, version: Version) -> Usage {
        let cache = &self.tables[version as usize];
        Usage { queues: cache.queues(), memory: cache.memory() }
    }

    /// Number of bytes charged for fragments and queues.
    pub fn memory(&self) -> usize {
        self.tables.iter().map(Cache::memory).sum()
    }

    /// Number of waiting datagrams.
    pub fn queues(&self) -> usize {
        self.tables.iter().map(Cache::queues).sum()
    }

    /// Panics unless the charges match the fragments. For tests.
    pub fn check_invariants(&self) {
        self.tables.iter().for_each(Cache::check_invariants);
    }

    /// Copy policy.
    pub(crate) fn how(&self) -> CopyPolicy {
        CopyPolicy {
            joins: self.coalesce != Coalesce::Off,
            copies: self.coalesce == Coalesce::Copy,
            spares: self.coalesce == Coalesce::Move,
            gathers_from: usize::MAX,
        }
    }

    /// Copies a fragment that uses little of a large page, unless memory is plentiful.
    pub(crate) fn copy_out_of_large_page(&mut self, mem: &Memory, version: Version, pkt: &mut Packet) {
        let looks = self.coalesce == Coalesce::Move && !self.table(version).gathering().is_plenty(0);
        if looks && wastes_page(pkt) {
            copy_to_small_page(mem, pkt);
        }
    }

    /// The table of one family.
    pub(crate) fn table(&mut self, version: Version) -> &mut Cache {
        &mut self.tables[version as usize]
    }
}

impl Default for Reassembly {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

/// Prefetches a short fragment completely, as it will be copied.
#[inline]
fn prefetch_tiny(pkt: &Packet) {
    /// Bytes of a cache line.
    const LINE: usize = 64;
    if pkt.headlen() <= TINY {
        pkt.head().iter().step_by(LINE).chain(pkt.head().last()).for_each(packet::prefetch);
    }
}

/// Pulls a fragment's headers into the head, and returns the fragment's range in the datagram.
fn part_of(mem: &Memory, pkt: &mut Packet, info: &Info, fragment: FragInfo) -> Result<FragmentMeta, DropReason> {
    if info.total_len > pkt.len() || info.header_len > info.total_len {
        return Err(DropReason::IpTruncated);
    }
    pkt.trim(info.total_len);
    pkt.may_pull(mem, info.header_len)?;
    match info.version() {
        Version::V4 => Ok(FragmentMeta::v4(info, fragment)),
        Version::V6 => Ok(FragmentMeta::v6(pkt, info)?),
    }
}

/// An atomic fragment: it is complete, and does not affect others of its identification (RFC 6946).
fn atomic(mem: &Memory, mut pkt: Packet, part: &FragmentMeta, count: &mut Count<'_>) -> Verdict {
    if let Some(misplaced) = part.misplaced() {
        count.ok();
        let problem = ParameterProblem::misplaced(misplaced, part.info.header_len, part.info.next_header_at);
        return refuse(pkt, problem, count);
    }
    let places = (part.header_len, part.next_header_at);
    let made = part.whole_len().and_then(|len| rebuild_header::v6(mem, &mut pkt, places, len, part.info.tos));
    match made {
        Ok(()) => {
            count.ok();
            if pkt.meta.cut == Cut::Fragment {
                pkt.meta.cut = Cut::Whole;
            }
            Verdict::Whole { largest: part.span().packet_len(), pkt }
        }
        Err(reason) => {
            count.fail();
            Verdict::Drop { reason, packets: 1 }
        }
    }
}

fn refuse(pkt: Packet, problem: ParameterProblem, count: &mut Count<'_>) -> Verdict {
    let ParameterProblem { reason, code, pointer } = problem;
    if reason != DropReason::ProtocolUnknown {
        count.header_error();
    }
    Verdict::Refuse { pkt, reason, code, pointer }
}

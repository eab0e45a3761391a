//! Datagrams for this node, put together from their fragments.

use std::time::Duration;

use base::{Counters, DropReason, Instant, LinkId, Mib};
use packet::{Csum, Cut, Memory, Packet};
use wire::ip::Info;
use wire::{FragInfo, Version, icmpv6};

use crate::distance::Distances;
use crate::part::{Key, ParameterProblem, Part};
use crate::queue::{Queue, Refused};
use crate::table::{QueueId, Table};
use crate::whole;

/// How much may wait, and how long. The defaults are Linux's.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory in bytes of `truesize` at which no further fragment is taken (`ipfrag_high_thresh`); 0 takes none.
    pub high_thresh: usize,
    /// How long an IPv4 datagram may take from the fragment that comes first (`ipfrag_time`).
    pub timeout_v4: Duration,
    /// The same for IPv6 (`ip6frag_time`).
    pub timeout_v6: Duration,
    /// Fragments that an IPv4 source may send between two of one datagram (`ipfrag_max_dist`); 0 is without limit.
    pub max_distance: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            high_thresh: 4 << 20,
            timeout_v4: Duration::from_secs(30),
            timeout_v6: Duration::from_secs(60),
            max_distance: 64,
        }
    }
}

/// The fragments for this node that wait for others of their datagrams.
#[derive(Debug, Default)]
pub struct Reassembly {
    limits: Limits,
    table: Table,
    distances: Distances,
    memory: usize,
}

/// What became of a fragment.
#[derive(Debug)]
pub enum Verdict {
    /// It was the last one missing: the datagram, without a trace of fragmentation but its pieces.
    Whole(Packet),
    /// It waits for others.
    Held,
    /// It waits for others. The ones that waited before it are dropped for [`DropReason::FragmentDistance`].
    Restarted {
        /// How many they were.
        packets: u64,
    },
    /// It is dropped.
    Drop {
        /// Why.
        reason: DropReason,
        /// How many packets are dropped: with it, what waited of its datagram unless it was a duplicate.
        packets: u64,
    },
    /// It is dropped, and its sender is told by an ICMPv6 parameter problem.
    Refuse {
        /// What is quoted. It begins with its IP header, and is the fragment as it came; or the whole datagram, for
        /// [`DropReason::FragmentNested`].
        pkt: Packet,
        /// Why.
        reason: DropReason,
        /// The message's code.
        code: icmpv6::Problem,
        /// What the message points to, in bytes from the front of `pkt`.
        pointer: usize,
    },
}

/// A datagram that was not whole in time.
#[derive(Debug)]
pub struct Expired {
    /// Its first fragment, of which an ICMP error tells the sender, and that one's summary; `None` if it has not come.
    pub first: Option<(Packet, Info)>,
    /// The link by which the last fragment came.
    pub link: LinkId,
    /// How many fragments are dropped for [`DropReason::FragmentTimeout`], the first one included.
    pub packets: u64,
}

/// The counters of one family.
#[derive(Clone, Copy)]
struct Mibs {
    requests: Mib,
    oks: Mib,
    fails: Mib,
    timeout: Mib,
}

impl Mibs {
    const fn of(version: Version) -> Self {
        match version {
            Version::V4 => Self {
                requests: Mib::IpReasmReqds,
                oks: Mib::IpReasmOKs,
                fails: Mib::IpReasmFails,
                timeout: Mib::IpReasmTimeout,
            },
            Version::V6 => Self {
                requests: Mib::Ip6ReasmReqds,
                oks: Mib::Ip6ReasmOKs,
                fails: Mib::Ip6ReasmFails,
                timeout: Mib::Ip6ReasmTimeout,
            },
        }
    }
}

impl Reassembly {
    /// Nothing waits yet.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes in a fragment: a packet that begins with its IP header, of which `info` is the summary, and that came in by
    /// the link in its `meta`. One that is no fragment is whole already.
    pub fn handle_fragment(
        &mut self,
        now: Instant,
        mem: &Memory,
        mut pkt: Packet,
        info: &Info,
        counters: &mut Counters,
    ) -> Verdict {
        let Some(fragment) = info.fragment else { return Verdict::Whole(pkt) };
        let mibs = Mibs::of(info.version());
        counters.count(mibs.requests);
        let part = match part_of(mem, &mut pkt, info, fragment) {
            Ok(part) => part,
            Err(reason) => {
                counters.count(mibs.fails);
                return Verdict::Drop { reason, packets: 1 };
            }
        };
        let v6 = info.version() == Version::V6;
        if v6 && fragment.is_atomic() {
            return atomic(mem, pkt, &part, counters);
        }
        if v6 && let Err(problem) = part.check_header_chain() {
            return refuse(pkt, problem, counters);
        }
        if self.limits.high_thresh == 0 || self.memory > self.limits.high_thresh {
            counters.count(mibs.fails);
            return Verdict::Drop { reason: DropReason::FragmentMemory, packets: 1 };
        }
        if v6 && let Err(problem) = part.check_lengths() {
            return refuse(pkt, problem, counters);
        }
        // Its transport's sum covers other fragments too: nobody can make it from this one.
        if let Csum::Partial { .. } = pkt.meta.csum {
            pkt.meta.csum = Csum::None;
        }
        self.enqueue(now, mem, pkt, &part, fragment, counters)
    }

    /// Adds a fragment to its queue.
    fn enqueue(
        &mut self,
        now: Instant,
        mem: &Memory,
        pkt: Packet,
        part: &Part,
        fragment: FragInfo,
        counters: &mut Counters,
    ) -> Verdict {
        let mibs = Mibs::of(part.info.version());
        let id = self.find_or_open(now, &pkt, part, fragment);
        let restarted = self.restart_if_too_far(id, now, part);
        if restarted > 0 {
            counters.count(mibs.fails);
        }
        let queue = self.table.queue_mut(id);
        let before = queue.charged();
        let added = queue.add(mem, pkt, part);
        self.memory += queue.charged() - before;
        match added {
            Ok(false) if restarted > 0 => Verdict::Restarted { packets: restarted },
            Ok(false) => Verdict::Held,
            Ok(true) => self.complete(id, mem, counters),
            Err(Refused::Fragment(reason)) => Verdict::Drop { reason, packets: 1 },
            Err(Refused::Datagram(reason)) => {
                if reason == DropReason::FragmentOverlap && part.info.version() == Version::V4 {
                    counters.count(Mib::IpExtReasmOverlaps);
                }
                counters.count(mibs.fails);
                let packets = self.close(id).fragments() + restarted + 1;
                Verdict::Drop { reason, packets }
            }
        }
    }

    /// The queue of a fragment's datagram.
    fn find_or_open(&mut self, now: Instant, pkt: &Packet, part: &Part, fragment: FragInfo) -> QueueId {
        let key = Key::new(pkt, &part.info, fragment);
        if let Some(id) = self.table.find(&key) {
            return id;
        }
        if self.counts_distance(part.info.version()) {
            self.distances.open(key.src);
        }
        self.memory += Table::QUEUE_SIZE;
        self.table.insert(key, now + self.timeout(part.info.version()))
    }

    /// Empties a queue whose last fragment is too long ago, and returns how many fragments it held.
    fn restart_if_too_far(&mut self, id: QueueId, now: Instant, part: &Part) -> u64 {
        if !self.counts_distance(part.info.version()) {
            return 0;
        }
        let deadline = now + self.timeout(part.info.version());
        let queue = self.table.queue_mut(id);
        let too_far = self.distances.advance(part.info.src, &mut queue.number, self.limits.max_distance);
        let held = queue.fragments();
        if !too_far || held == 0 {
            return 0;
        }
        self.memory -= queue.charged();
        queue.restart();
        self.table.postpone(id, deadline);
        held
    }

    /// Makes one packet of a queue that has all fragments.
    fn complete(&mut self, id: QueueId, mem: &Memory, counters: &mut Counters) -> Verdict {
        let mibs = Mibs::of(self.table.version(id));
        let queue = self.close(id);
        let packets = queue.fragments();
        match queue.into_whole(mem) {
            Ok((pkt, first)) => {
                counters.count(mibs.oks);
                if first.is_nested() {
                    let pointer = first.info.header_len - wire::frag::Header::LEN;
                    return refuse(pkt, nested(pointer), counters);
                }
                Verdict::Whole(pkt)
            }
            Err(reason) => {
                counters.count(mibs.fails);
                Verdict::Drop { reason, packets }
            }
        }
    }

    /// Takes a queue out, and with it its share of memory.
    fn close(&mut self, id: QueueId) -> Queue {
        let (key, queue) = self.table.remove(id);
        debug_assert_eq!(queue.charged(), queue.truesize(), "what was charged for {key:?}");
        self.memory -= queue.charged() + Table::QUEUE_SIZE;
        if self.counts_distance(Version::of_addr(key.src)) {
            self.distances.close(key.src);
        }
        debug_assert!(self.table.len() > 0 || self.memory == 0, "{} bytes for nothing", self.memory);
        queue
    }

    /// When the next datagram times out.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.table.next().map(|(_, deadline)| deadline)
    }

    /// Drops the datagrams that are not whole in time, and appends them to `expired`.
    pub fn handle_timeout(&mut self, now: Instant, counters: &mut Counters, expired: &mut Vec<Expired>) {
        while let Some((id, deadline)) = self.table.next()
            && deadline <= now
        {
            let mibs = Mibs::of(self.table.version(id));
            counters.count(mibs.timeout);
            counters.count(mibs.fails);
            let queue = self.close(id);
            let (link, packets) = (queue.link(), queue.fragments());
            expired.push(Expired { first: queue.into_first(), link, packets });
        }
    }

    /// Bytes of memory that fragments and their queues hold.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Datagrams that wait.
    pub fn queues(&self) -> usize {
        self.table.len()
    }

    /// Panics unless memory is charged for what is there. For tests.
    pub fn check_invariants(&self) {
        let held: usize = self.table.iter().map(|queue| queue.truesize() + Table::QUEUE_SIZE).sum();
        assert_eq!(self.memory, held, "charged, and held by {} queues", self.queues());
        assert!(self.distances.len() <= self.queues(), "sources without queues");
    }

    const fn timeout(&self, version: Version) -> Duration {
        match version {
            Version::V4 => self.limits.timeout_v4,
            Version::V6 => self.limits.timeout_v6,
        }
    }

    /// Whether old fragments are told from new ones by how many came between.
    const fn counts_distance(&self, version: Version) -> bool {
        matches!(version, Version::V4) && self.limits.max_distance > 0
    }
}

/// Brings a fragment's headers into the head, and says which part of its datagram it is.
fn part_of(mem: &Memory, pkt: &mut Packet, info: &Info, fragment: FragInfo) -> Result<Part, DropReason> {
    if info.total_len > pkt.len() || info.header_len > info.total_len {
        return Err(DropReason::IpTruncated);
    }
    pkt.trim(info.total_len);
    pkt.may_pull(mem, info.header_len)?;
    match info.version() {
        Version::V4 => Ok(Part::v4(info, fragment)),
        Version::V6 => Ok(Part::v6(pkt, info)?),
    }
}

/// A packet that has a fragment header and yet is whole: it does not touch others of its identification (RFC 6946).
fn atomic(mem: &Memory, mut pkt: Packet, part: &Part, counters: &mut Counters) -> Verdict {
    if part.is_nested() {
        counters.count(Mib::Ip6ReasmOKs);
        return refuse(pkt, nested(part.header_len), counters);
    }
    let places = (part.header_len, part.next_header_at);
    let made = part.whole_len(part.end).and_then(|len| whole::v6(mem, &mut pkt, places, len, part.info.tos));
    match made {
        Ok(()) => {
            counters.count(Mib::Ip6ReasmOKs);
            if pkt.meta.cut == Cut::Fragment {
                pkt.meta.cut = Cut::Whole;
            }
            Verdict::Whole(pkt)
        }
        Err(reason) => {
            counters.count(Mib::Ip6ReasmFails);
            Verdict::Drop { reason, packets: 1 }
        }
    }
}

fn refuse(pkt: Packet, problem: ParameterProblem, counters: &mut Counters) -> Verdict {
    counters.count(Mib::Ip6InHdrErrors);
    let ParameterProblem { reason, code, pointer } = problem;
    Verdict::Refuse { pkt, reason, code, pointer }
}

/// A second fragment header, at `pointer`, in a packet that has been put together.
const fn nested(pointer: usize) -> ParameterProblem {
    ParameterProblem { reason: DropReason::FragmentNested, code: icmpv6::Problem::FIELD, pointer }
}

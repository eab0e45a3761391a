//! The node: state that the worker's thread owns and that commands of other threads work on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrayvec::ArrayString;
use base::{IfIndex, Instant, PortId, ShardCount, ShardId};
use config::model::TableLimits;
use datapath::{Datapath, TraceClock};
use netlink::rtnl::Vrf;
use packet::{Memory, Packet};
use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};

use super::captures::Captures;
use super::event_queue::Listeners;
use super::host::SocketDiag;
use super::host_device::HostDevice;
use super::ike::IkeSocket;
use super::monitors::Monitors;
use super::path_hash;
use super::poller::Poller;
use super::sadb::XfrmEvents;
use super::slot::Slot;
use super::traces::Traces;
use super::xfrm::FileObjects;

/// The clock that supplies every core's `now`; the same in all shards. It counts from the boot of the machine, so that times
/// are those of the next gateway, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    /// The boot, since the Unix epoch.
    epoch: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { epoch: now.saturating_sub(since_boot().since(Instant::ZERO)) }
    }
}

/// Time since the boot of the machine, also that in which it was suspended.
pub(crate) fn since_boot() -> Instant {
    let now = clock_gettime(ClockId::Boottime);
    Instant::ZERO + Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Name of a link or VRF device: at most 15 bytes, as in Linux.
pub(crate) type LinkName = ArrayString<15>;

/// A node: the whole of one shard.
///
/// In several shards only the first has anything in `host_devices`, `socket_diag`, `ike`, `xfrm_events` and `listeners`, and readers of
/// events in `monitors`, which calls fill; all others are filled by changes, and alike in all shards.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) datapath: Datapath,
    /// The links, indexed by their numbers.
    pub(crate) slots: Vec<Option<Box<Slot>>>,
    /// Number of links that were opened.
    pub(crate) opened: u64,
    /// The VRFs as shown to clients, by the indexes of their devices. The FIB holds the part that decides on packets.
    pub(crate) vrfs: BTreeMap<PortId, Vrf>,
    /// Devices of the host side, by the numbers of their links.
    pub(crate) host_devices: BTreeMap<PortId, HostDevice>,
    /// `sock_diag` socket for queries about the host side's sockets.
    pub(crate) socket_diag: Option<SocketDiag>,
    pub(crate) mem: Memory,
    /// The configuration of the node.
    pub(crate) config: Arc<config::Config>,
    /// The worker's thread, once it runs: calls of the node may be on others.
    pub(crate) thread: Option<Pid>,
    /// The worker's epoll instance, to which links are added.
    pub(crate) poller: Poller,
    /// The key manager's socket, if a link has IKE.
    pub(crate) ike: Option<IkeSocket>,
    pub(crate) captures: Captures,
    pub(crate) traces: Traces,
    pub(crate) monitors: Monitors,
    /// Events of SAs and policies for netlink's clients.
    pub(crate) xfrm_events: XfrmEvents,
    /// The SAs and policies that belong to the configuration file.
    pub(crate) of_file: FileObjects,
    /// Listeners for events of links and neighbours.
    pub(crate) listeners: Listeners,
    /// Slices of work for `fatpath show`.
    pub(crate) show_slices: SliceCounts,
    /// The burst that was received last. Kept for its storage.
    pub(crate) burst: Vec<Packet>,
    /// While operations are applied between the receipt of a burst and its first decision: the burst, and its port.
    pub(crate) held: Option<(PortId, Vec<Packet>)>,
    /// Limits of tables for requests.
    pub(crate) limits: TableLimits,
    /// Whether forwarding is about to be paused: no burst is received, and those that were are forwarded. Packets that arrive meanwhile stay
    /// in the devices.
    pub(crate) is_draining: bool,
    /// Whether forwarding is paused. Packets that arrive meanwhile stay in the devices.
    pub(crate) paused: bool,
    /// Counters of the worker.
    pub(crate) work: Work,
    /// The shard that the node is, and all of them; `None` for a node of a test without a worker.
    pub(crate) shard: Option<(ShardId, Arc<dyn Shards>)>,
}

/// All shards of a node, as one of them reaches the others.
pub(crate) trait Shards: fmt::Debug + Send + Sync {
    /// Number of shards.
    fn count(&self) -> ShardCount;

    /// Number of packets that wait for a shard which others have handed them to.
    fn queued(&self, shard: ShardId) -> usize;

    /// Runs a function on a shard later, and waits for nothing. If the shard has ended, it does not run.
    fn run_on(&self, shard: ShardId, what: Box<dyn FnOnce(&mut Node) + Send>);
}

/// Counters of the work for `fatpath show`, which is done in slices.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SliceCounts {
    /// Number of slices.
    pub(crate) count: u64,
    /// Longest slice, in processor time of the worker.
    pub(crate) longest: Duration,
    /// Longest slice for a client that only looks.
    pub(crate) longest_viewed: Duration,
}

/// Counters of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Time between the beginnings and the ends of its turns.
    pub(crate) busy: Duration,
    /// Time between the ends and the beginnings of its turns.
    pub(crate) idle: Duration,
    /// Number of bursts that it received.
    pub(crate) bursts: u64,
    /// Number of times that it was woken.
    pub(crate) wakeups: u64,
    /// Packets handed over to other workers.
    pub(crate) handed_over: u64,
    /// Packets taken over from other workers.
    pub(crate) taken_over: u64,
}

/// Bit of the `PortId` of a link that never exists, for an interface index that no link has.
const ABSENT: u32 = 1 << 31;

impl Node {
    /// A node of one shard, without links, which `poller` will poll.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn new(poller: Poller) -> Self {
        Self::of(poller, Clock::start(), Datapath::new(), None)
    }

    /// A node without links, over a datapath: one of the shards that `shard` has.
    pub(crate) fn of(
        poller: Poller,
        clock: Clock,
        mut datapath: Datapath,
        shard: Option<(ShardId, Arc<dyn Shards>)>,
    ) -> Self {
        datapath.epoch = clock.epoch;
        datapath.fib.set_path_hash(path_hash::of(Default::default()));
        Self {
            datapath,
            slots: Vec::new(),
            opened: 0,
            vrfs: BTreeMap::new(),
            host_devices: BTreeMap::new(),
            socket_diag: None,
            show_slices: SliceCounts::default(),
            mem: Memory::heap(),
            config: Arc::default(),
            thread: None,
            poller,
            ike: None,
            captures: Captures::default(),
            traces: Traces::default(),
            monitors: Monitors::default(),
            xfrm_events: XfrmEvents::default(),
            of_file: FileObjects::default(),
            listeners: Listeners::default(),
            burst: Vec::new(),
            held: None,
            limits: TableLimits::default(),
            is_draining: false,
            paused: false,
            work: Work::default(),
            shard,
        }
    }

    /// Current time, a parameter of every core.
    pub(crate) fn now(&self) -> Instant {
        since_boot()
    }

    /// The same clock, for the steps of a trace.
    pub(crate) fn trace_clock(&self) -> TraceClock {
        TraceClock(Box::new(since_boot))
    }

    /// Number of shards.
    pub(crate) fn shard_count(&self) -> ShardCount {
        self.shard.as_ref().map_or(ShardCount::ONE, |(_, shards)| shards.count())
    }

    /// Runs a function on all shards but the first later, if this is the first one.
    pub(crate) fn run_on_others(&self, what: impl FnOnce(&mut Self) + Clone + Send + 'static) {
        if matches!(&self.shard, Some((ShardId::FIRST, _))) {
            self.tell_others(what);
        }
    }

    /// Runs a function on all shards but this one later.
    pub(crate) fn tell_others(&self, what: impl FnOnce(&mut Self) + Clone + Send + 'static) {
        let Some((own, shards)) = &self.shard else { return };
        for shard in shards.count().all().filter(|shard| shard != own) {
            shards.run_on(shard, Box::new(what.clone()));
        }
    }

    /// Name of the link or VRF device `id`, if that exists.
    pub(crate) fn name_of(&self, id: PortId) -> Option<String> {
        self.name(id).map(str::to_owned)
    }

    /// Same as [`name_of`](Self::name_of), without an allocation.
    pub(crate) fn short_name_of(&self, id: PortId) -> Option<LinkName> {
        LinkName::from(self.name(id)?).ok()
    }

    fn name(&self, id: PortId) -> Option<&str> {
        let of_vrf = || self.vrfs.get(&id).map(|vrf| vrf.name.as_str());
        self.datapath.ports.get(id).map(|port| port.config.name.as_str()).or_else(of_vrf)
    }

    /// The link with this interface index, or `None` for 0. For an index that no link has, the id of a link that never
    /// exists.
    pub(crate) fn link_of(&self, ifindex: u32) -> Option<PortId> {
        let has_it =
            |slot: &Option<Box<Slot>>| slot.as_ref().is_some_and(|slot| slot.link.host_index() == Some(ifindex));
        match self.slots.iter().position(has_it) {
            _ if ifindex == 0 => None,
            _ if ifindex == PortId::LOOPBACK.0 => Some(PortId::LOOPBACK),
            Some(at) => Some(PortId(at as u32)),
            None => Some(IfIndex(ifindex).as_own().unwrap_or(PortId(ifindex | ABSENT))),
        }
    }

    /// Interface index of a link, for netlink's clients.
    pub(crate) fn ifindex(&self, id: PortId) -> IfIndex {
        let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
        slot.and_then(|slot| slot.link.host_index()).map_or(IfIndex::own(id), IfIndex)
    }

    /// Interface index of a selector's link, for which a client sent the index `index`; 0 without a link.
    pub(crate) fn selector_ifindex(&self, dev: Option<PortId>, index: u32) -> u32 {
        match dev {
            None => 0,
            Some(dev) if dev.0 & ABSENT == 0 => self.ifindex(dev).0,
            Some(_) => index,
        }
    }
}

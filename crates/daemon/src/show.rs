//! Replies to `fatpath show`: tables of the node in slices, so that packets do not wait for a long table.
//!
//! Routes are read from the model that netlink clients share. All other tables are read on the worker, in calls of at
//! most [`SLICE`] each, between which it moves packets. A table that changes meanwhile is shown partly old and partly new,
//! as a dump over netlink is. Large tables are copied as [`rows`](crate::rows), into storage of the client's thread.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use base::{Domain, DropReason, Instant, PortId, SaId, ShardCount, ShardId};
use config::model::TunnelName;
use ctl::request::VIEW_ROWS;
use ctl::state::{
    DropState, FdbState, FlowState, IlaState, LinkState, MemoryState, NeighbourState, PolicyState, RouteCountState,
    RouteState, SaState, SaSumState, SaSumsState, SummaryState, TableMemory, TunnelNameState, WorkerState,
};
use ctl::{Shown, StateKind};
use ipsec::spd::Order;
use ipsec::{SaSum, SaSumKey};
use netlink::rtnl::RouteCursor;
use packet::Budget;
use xfrm::{Dir, Offload, OffloadMode, SaDir};

use crate::bridges;
use crate::budget;
use crate::command::{Handle, WorkerGone};
use crate::confine;
use crate::netlink::Shared;
use crate::node::{Node, since_boot};
use crate::pace::Pace;
use crate::rows::{DropRow, FdbRow, FlowRow, IlaRow, NeighbourRow, PmtuRow, PolicyRow, SaRow};
use crate::service;
use crate::snapshot::{self, LinkSums, NodeMemory, processor_time};
use crate::sums::{Sum, sum};
use crate::translate::fib::to_fib;

/// Time after which a slice ends. Its last step may exceed it.
const SLICE: Duration = Duration::from_micros(400);

/// Time after which a slice ends for a client that only looks, and of what is asked again and again.
const VIEW_SLICE: Duration = Duration::from_micros(40);

/// Time between two slices, in which the worker takes packets.
const PAUSE: Duration = Duration::from_micros(100);

/// Number of objects of one step, whose time is far below a slice's.
const STEP: usize = 32;

/// Limit of rows of one slice.
const ROWS: usize = 256;

/// Number of routes that are read at once.
const ROUTES: usize = 1024;

/// As [`ROUTES`], for a client that only looks: key managers wait meanwhile.
const VIEW_ROUTES: usize = 128;

/// Bytes of a row's text, for the reply.
const ROW_TEXT: u64 = 512;

/// Reason for which a state is not shown.
#[derive(Debug)]
pub(crate) enum NotShown {
    /// The worker does not reply.
    Gone(WorkerGone),
    /// The reply takes more memory than the limit leaves.
    TooLarge,
    /// The table has too many rows for a client that only looks.
    TooMany,
}

impl From<WorkerGone> for NotShown {
    fn from(gone: WorkerGone) -> Self {
        Self::Gone(gone)
    }
}

impl fmt::Display for NotShown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(gone) => gone.fmt(f),
            Self::TooLarge => f.write_str("the reply takes more memory than the limit of memory leaves"),
            Self::TooMany => {
                write!(
                    f,
                    "the table has more than {VIEW_ROWS} rows: the control socket shows them, and `show summary` how many there are"
                )
            }
        }
    }
}

/// Way of a client's thread to the workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) worker: &'a Handle,
    /// Pace of the client, if it only looks.
    pub(crate) pace: Option<&'a Pace>,
}

impl Reader<'_> {
    /// Time after which its slices end.
    const fn slice(&self) -> Duration {
        if self.pace.is_some() { VIEW_SLICE } else { SLICE }
    }

    /// Workers, when it is this client's turn.
    fn worker(&self) -> &Handle {
        if let Some(pace) = self.pace {
            pace.wait(1);
        }
        self.worker
    }

    /// Waits between two slices, so that the worker takes packets.
    fn pause(&self) {
        // The pace is a longer pause.
        if self.pace.is_none() {
            thread::sleep(PAUSE);
        }
    }

    /// Refuses a reply of so many rows that its text would leave less than half of the reserve.
    fn admit(&self, rows: usize) -> Result<(), NotShown> {
        if self.pace.is_some() && rows > VIEW_ROWS {
            return Err(NotShown::TooMany);
        }
        if Budget::spares((rows as u64).saturating_mul(ROW_TEXT)) { Ok(()) } else { Err(NotShown::TooLarge) }
    }
}

/// State of one kind of object.
///
/// # Errors
/// The worker does not reply, or memory is short.
pub(crate) fn show(what: StateKind, reader: Reader<'_>, shared: &Shared) -> Result<Shown, NotShown> {
    Ok(match what {
        StateKind::Links => Shown::Links(links(reader)?),
        StateKind::Routes => Shown::Routes(routes(reader, shared)?),
        StateKind::Neighbours => Shown::Neighbours(neighbours(reader)?),
        StateKind::Fdb => Shown::Fdb(fdb(reader)?),
        StateKind::Pmtus => Shown::Pmtus(table(reader, None, some_pmtus, PmtuRow::complete)?),
        StateKind::Sa => Shown::Sa(sas(reader)?),
        StateKind::SaSums => Shown::SaSums(sa_sums(reader, shared)?),
        StateKind::Policies => Shown::Policies(policies(reader)?),
        StateKind::Counters => Shown::Counters(all(reader, snapshot::counters)?),
        StateKind::Drops => Shown::Drops(drops(reader)?),
        StateKind::Fragments => Shown::Fragments(all(reader, |node| snapshot::fragments(node.datapath.reassembly()))?),
        StateKind::Ila => Shown::Ila(ila(reader)?),
        StateKind::Flows => Shown::Flows(flows(reader)?),
        StateKind::Workers => Shown::Workers(workers(reader, link_sums(reader)?)?),
        StateKind::Summary => Shown::Summary(Box::new(summary(reader, shared)?)),
        StateKind::Memory => Shown::Memory(memory(reader, shared)?),
        StateKind::Sandbox => Shown::Sandbox(confine::state()),
    })
}

/// Numbers, sums and budgets of the gateway, in slices that no table makes longer.
fn summary(reader: Reader<'_>, shared: &Shared) -> Result<SummaryState, NotShown> {
    let links = link_sums(reader)?;
    let queues = links.iter().map(|sums| sums.waiting).sum();
    let workers = workers(reader, links)?;
    let shards = gather(reader, snapshot::summary)?;
    let (mut fragments, mut memories, mut flows) = (Vec::new(), Vec::new(), 0);
    let mut sa_sums = 0;
    // All shards have these tables alike.
    let mut tables = None;
    for shard in shards {
        fragments.push(shard.fragments);
        memories.push(shard.memory);
        flows += shard.flows;
        sa_sums += shard.sa_sums;
        tables.get_or_insert((shard.sas, shard.policies, shard.neighbours));
    }
    let (sas, policies, neighbours) = tables.ok_or(WorkerGone)?;
    let memory = memory_of(sum(memories).ok_or(WorkerGone)?, queues, reader, shared);
    let routes = shared.lock().rtnl.model.routes_by_table();
    let mappings = memory.tables.iter().find(|table| table.name == MAPPINGS).map_or(0, |table| table.entries);
    Ok(SummaryState {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        started_ms: service::started_ms(),
        routes: routes.into_iter().map(|(table, count)| RouteCountState { table, count: count as u64 }).collect(),
        sas,
        sa_sums,
        policies,
        mappings,
        flows,
        neighbours,
        fragments: sum(fragments).unwrap_or_default(),
        memory,
        workers,
    })
}

/// Memory of the gateway. Bytes of tables are those of a mean entry, measured with 100 000 entries each.
fn memory(reader: Reader<'_>, shared: &Shared) -> Result<MemoryState, NotShown> {
    let queues = link_sums(reader)?.iter().map(|sums| sums.waiting).sum();
    Ok(memory_of(all(reader, snapshot::memory)?, queues, reader, shared))
}

/// Sums of the links of each worker.
fn link_sums(reader: Reader<'_>) -> Result<Vec<LinkSums>, NotShown> {
    let of_shard = |shard| Ok(sum(table_of(reader, shard, 0, some_link_sums, |sums| sums)?).unwrap_or_default());
    reader.worker.all().map(of_shard).collect()
}

/// Adds the sums of some links, of the numbers from `first` on.
fn some_link_sums(node: &mut Node, first: u32, out: &mut Vec<LinkSums>) -> Option<u32> {
    let (next, end) = (first + STEP as u32, node.datapath.ports.end().max(node.slots.len() as u32));
    out.push(snapshot::link_sums(node, first..next.min(end)));
    (next < end).then_some(next)
}

/// State of each worker, with the sums of its links.
fn workers(reader: Reader<'_>, links: Vec<LinkSums>) -> Result<Vec<WorkerState>, NotShown> {
    let workers = gather(reader, snapshot::worker)?.into_iter();
    Ok(workers.zip(links).map(|(worker, links)| links.complete(worker)).collect())
}

fn memory_of(node: NodeMemory, queues: u64, reader: Reader<'_>, shared: &Shared) -> MemoryState {
    let shards = reader.worker.count().get() as u64;
    let (routes, limits) = {
        let protocols = shared.lock();
        (protocols.rtnl.model.route_count() as u64, protocols.sysctl.settings().tables)
    };
    let reading = budget::Reading::now(budget::key());
    let [sas, policies, neighbours, mappings] = node.entries;
    // Each shard has a copy of the tables, and routes are in the model as well.
    let table = |name: &str, entries: u64, limit: u32, size: u64| TableMemory {
        name: name.to_owned(),
        entries,
        limit: Some(limit.into()).filter(|limit| *limit > 0),
        bytes: entries * size * shards,
    };
    MemoryState {
        limit: reading.limit.map(|limit| limit.bytes),
        source: reading.limit.map(|limit| limit.source.name().to_owned()),
        used: reading.counted,
        live: reading.live,
        reserve: Budget::RESERVE,
        growth: Budget::for_growth(),
        page_tables: reading.used.page_tables,
        tables: vec![
            table("routes", routes, limits.routes, ROUTE_BYTES),
            table("sas", sas, limits.sas, SA_BYTES),
            table("policies", policies, limits.policies, POLICY_BYTES),
            table("neighbours", neighbours, limits.neighbours, NEIGHBOUR_BYTES),
            table(MAPPINGS, mappings, limits.mappings, MAPPING_BYTES),
        ],
        queues,
        fragments: node.fragments,
        captures: node.captures,
        pools: node.pools,
    }
}

/// Name of the table of ILA mappings.
const MAPPINGS: &str = "mappings";

/// Mean bytes of an entry of each table, in all structures that have it.
const ROUTE_BYTES: u64 = 509;
const SA_BYTES: u64 = 2067;
const POLICY_BYTES: u64 = 805;
const NEIGHBOUR_BYTES: u64 = 153;
const MAPPING_BYTES: u64 = 65;

/// Runs `work` on the first worker as one slice: for state whose size is limited, and that all have alike.
fn one<T: Send + 'static>(reader: Reader<'_>, work: fn(&Node) -> T) -> Result<T, NotShown> {
    let is_viewer = reader.pace.is_some();
    Ok(reader.worker().call(move |node| measured(node, is_viewer, |node| work(node)))?)
}

/// Runs `work` on every worker as one slice, in the order of the workers.
fn gather<T: Send + 'static>(reader: Reader<'_>, work: fn(&Node) -> T) -> Result<Vec<T>, NotShown> {
    let is_viewer = reader.pace.is_some();
    Ok(reader.worker().gather(move |node| measured(node, is_viewer, |node| work(node)))?)
}

/// Runs `work` on every worker as one slice, and adds up what they count.
fn all<T: Sum + Send + 'static>(reader: Reader<'_>, work: fn(&Node) -> T) -> Result<T, NotShown> {
    Ok(sum(gather(reader, work)?).ok_or(WorkerGone)?)
}

/// Runs `work`, and counts it as a slice.
fn measured<T>(node: &mut Node, is_viewer: bool, work: impl FnOnce(&mut Node) -> T) -> T {
    let begun = processor_time();
    let done = work(node);
    let counts = &mut node.show_slices;
    counts.count += 1;
    let took = processor_time().saturating_sub(begun);
    counts.longest = counts.longest.max(took);
    if is_viewer {
        counts.longest_viewed = counts.longest_viewed.max(took);
    }
    done
}

/// Appends at most [`STEP`] rows from a position on, and returns the position behind them, or `None` at the end.
type Step<T, P> = fn(&mut Node, P, &mut Vec<T>) -> Option<P>;

/// Reads a table of the first shard from `start` on. `complete` runs on this thread, which also allocates and frees the storage of
/// rows.
fn table<T: Send + 'static, P: Send + 'static, S>(
    reader: Reader<'_>,
    start: P,
    step: Step<T, P>,
    complete: impl FnMut(T) -> S,
) -> Result<Vec<S>, NotShown> {
    table_of(reader, ShardId::FIRST, start, step, complete)
}

/// As [`table`], of any shard.
fn table_of<T: Send + 'static, P: Send + 'static, S>(
    reader: Reader<'_>,
    shard: ShardId,
    start: P,
    step: Step<T, P>,
    complete: impl FnMut(T) -> S,
) -> Result<Vec<S>, NotShown> {
    table_within(reader.slice(), reader, shard, start, step, complete)
}

/// As [`table_of`], in slices that end after `limit`.
fn table_within<T: Send + 'static, P: Send + 'static, S>(
    limit: Duration,
    reader: Reader<'_>,
    shard: ShardId,
    start: P,
    step: Step<T, P>,
    mut complete: impl FnMut(T) -> S,
) -> Result<Vec<S>, NotShown> {
    let mut all = Vec::new();
    let mut rows = Vec::with_capacity(ROWS);
    let mut position = Some(start);
    let is_viewer = reader.pace.is_some();
    while let Some(at) = position {
        (rows, position) = reader.worker().call_on(shard, move |node| {
            let next = measured(node, is_viewer, |node| slice(node, limit, at, step, &mut rows));
            (rows, next)
        })?;
        all.extend(rows.drain(..).map(&mut complete));
        reader.admit(all.len())?;
        if position.is_some() {
            reader.pause();
        }
    }
    Ok(all)
}

/// Runs steps until the end of the slice, or until `rows` have no room for another step.
fn slice<T, P>(node: &mut Node, limit: Duration, at: P, step: Step<T, P>, rows: &mut Vec<T>) -> Option<P> {
    let begun = std::time::Instant::now();
    let mut position = Some(at);
    while let Some(at) = position {
        position = step(node, at, rows);
        if begun.elapsed() >= limit || rows.len() + STEP > rows.capacity() {
            break;
        }
    }
    position
}

fn routes(reader: Reader<'_>, shared: &Shared) -> Result<Vec<RouteState>, NotShown> {
    let mut states = Vec::new();
    let at_once = if reader.pace.is_some() { VIEW_ROUTES } else { ROUTES };
    let mut after: Option<RouteCursor> = None;
    loop {
        if let Some(pace) = reader.pace {
            pace.wait(1);
        }
        let protocols = shared.lock();
        let model = &protocols.rtnl.model;
        let before = states.len();
        for (cursor, table, route) in model.routes_after(after).take(at_once) {
            after = Some(cursor);
            let name = |dev| model.link(dev).map(|link| link.config.name.clone());
            states.push(to_fib(route).map(|found| snapshot::route(table, route, &found, name)));
        }
        drop(protocols);
        reader.admit(states.len())?;
        if states.len() - before < at_once {
            break;
        }
    }
    let mut states: Vec<RouteState> = states.into_iter().flatten().collect();
    // The local table comes first, then the main one, then the others by number; IPv4 before IPv6.
    let rank = |table: u32| match table {
        255 => 0,
        254 => 1,
        _ => 2,
    };
    states.sort_by_key(|route| (rank(route.table), route.table, route.to.addr().is_ipv6()));
    Ok(states)
}

/// Links and VRF devices by index.
fn links(reader: Reader<'_>) -> Result<Vec<LinkState>, NotShown> {
    let mut ids = table(reader, IdPosition::Port(0), some_ids, |id| id)?;
    // A VRF device may have a port.
    ids.sort_unstable();
    ids.dedup();
    let ids: Arc<[PortId]> = ids.into();
    let mut states: Vec<LinkState> = Vec::new();
    for shard in reader.worker.all() {
        let of_shard = table_of(reader, shard, (Arc::clone(&ids), 0), some_links, |state| state)?;
        for state in of_shard.into_iter().flatten() {
            match states.iter_mut().find(|known| known.index == state.index) {
                Some(known) => known.add(state),
                None => states.push(state),
            }
        }
    }
    states.sort_unstable_by_key(|link| link.index);
    Ok(states)
}

/// Position in the list of links: the least number of the next port or VRF device.
enum IdPosition {
    Port(u32),
    Vrf(u32),
}

fn some_ids(node: &mut Node, position: IdPosition, out: &mut Vec<PortId>) -> Option<IdPosition> {
    match position {
        IdPosition::Port(from) => {
            let (ports, next) = (&node.datapath.ports, from + STEP as u32);
            out.extend((from..next.min(ports.end())).map(PortId).filter(|&id| ports.get(id).is_some()));
            Some(if next < ports.end() { IdPosition::Port(next) } else { IdPosition::Vrf(0) })
        }
        IdPosition::Vrf(from) => {
            let before = out.len();
            out.extend(node.vrfs.range(PortId(from)..).map(|(id, _)| *id).take(STEP));
            out.get(before..)?.last().map(|last| IdPosition::Vrf(last.0 + 1))
        }
    }
}

/// List of links, and the number of those that have been read.
type LinkPosition = (Arc<[PortId]>, usize);

fn some_links(node: &mut Node, (ids, done): LinkPosition, out: &mut Vec<Option<LinkState>>) -> Option<LinkPosition> {
    // One, as a link has some dozens of strings.
    out.push(snapshot::link_state(node, *ids.get(done)?));
    (done + 1 < ids.len()).then_some((ids, done + 1))
}

/// Drops of the datapath and of the links by link and reason, without removed links.
fn drops(reader: Reader<'_>) -> Result<Vec<DropState>, NotShown> {
    let mut rows = Vec::new();
    for shard in reader.worker.all() {
        rows.extend(table_within(VIEW_SLICE, reader, shard, 0, some_drops, |row| row)?);
    }
    Ok(drop_sums(rows))
}

/// Sums of drops of all shards.
fn drop_sums(rows: Vec<DropRow>) -> Vec<DropState> {
    let mut sums: BTreeMap<(Option<PortId>, DropReason), DropRow> = BTreeMap::new();
    for row in rows {
        let count = row.count;
        sums.entry((row.link, row.reason)).and_modify(|sum| sum.count += count).or_insert(row);
    }
    sums.into_values().map(DropRow::complete).collect()
}

/// Number of counters of drops of one step.
const DROP_COUNTERS: usize = 2 * DropReason::COUNT;

/// Reads counters from the one with the number `first`: [`DropReason::COUNT`] for each link, those of packets of this node before them.
fn some_drops(node: &mut Node, first: usize, out: &mut Vec<DropRow>) -> Option<usize> {
    let room = out.len() + STEP;
    let last = node.datapath.ports.drop_links().max(node.slots.len()) * DropReason::COUNT;
    for at in first..last.min(first + DROP_COUNTERS) {
        if out.len() == room {
            return Some(at);
        }
        let (link, reason) = (at / DropReason::COUNT, DropReason::ALL[at % DropReason::COUNT]);
        let of_driver =
            node.slots.get(link).and_then(Option::as_ref).map_or(0, |slot| slot.link.stats().dropped_for(reason));
        let count = node.datapath.ports.dropped_for(link, reason) + of_driver;
        if count > 0 {
            // No link has the number 0.
            let link = (link > 0).then_some(PortId(link as u32));
            out.extend(DropRow::new(node, link, reason, count));
        }
    }
    (first + DROP_COUNTERS < last).then_some(first + DROP_COUNTERS)
}

fn some_pmtus(
    node: &mut Node,
    after: Option<(Domain, IpAddr)>,
    out: &mut Vec<PmtuRow>,
) -> Option<Option<(Domain, IpAddr)>> {
    let now = node.now();
    let mut last = None;
    for (to, known) in node.datapath.fib.path_mtus_after(now, after).take(STEP) {
        out.push(PmtuRow::new(node, to, known, now));
        last = Some(to);
    }
    last.map(Some)
}

fn neighbours(reader: Reader<'_>) -> Result<Vec<NeighbourState>, NotShown> {
    let mut found = table(reader, 0, some_neighbours, |row| {
        let key = (row.neighbour.link, row.neighbour.addr);
        (key, row.complete())
    })?;
    found.sort_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    Ok(found.into_iter().filter_map(|(_, state)| state).collect())
}

fn some_neighbours(node: &mut Node, skip: usize, out: &mut Vec<NeighbourRow>) -> Option<usize> {
    let before = out.len();
    let some = node.datapath.neighbours.iter().skip(skip).take(STEP);
    out.extend(some.map(|it| NeighbourRow::new(node, it)));
    (out.len() - before == STEP).then_some(skip + STEP)
}

fn fdb(reader: Reader<'_>) -> Result<Vec<FdbState>, NotShown> {
    let mut found = Vec::new();
    let bridges: Vec<PortId> = one(reader, |node| node.datapath.bridge_ids().collect())?;
    for own in bridges {
        found.extend(table(reader, (own, 0), some_fdb, |row| {
            let key = (row.own, row.entry.port, row.entry.vid, row.entry.mac.0);
            (key, row.complete())
        })?);
    }
    found.sort_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    Ok(found.into_iter().filter_map(|(_, state)| state).collect())
}

fn some_fdb(node: &mut Node, (own, skip): (PortId, usize), out: &mut Vec<FdbRow>) -> Option<(PortId, usize)> {
    let before = out.len();
    bridges::fdb_rows(node, own, skip, STEP, out);
    (out.len() - before == STEP).then_some((own, skip + STEP))
}

/// Position in the list of SAs.
enum SaPosition {
    /// SAs of the file, by their positions in it.
    OfFile(usize),
    /// All SAs, by the number of those that were added before.
    Added(u64),
    /// Larval SAs.
    Larval(usize),
}

/// SA to show, of its owner.
enum FoundSa {
    /// With its place in the file.
    OfFile(u64, SaId, SaRow),
    /// With its place among all.
    Added(u64, SaId, SaRow),
    /// With the number of its acquire.
    Larval(u32, SaRow),
}

/// SAs in the order of the file, then those of netlink clients, then larval ones in the order of their acquires.
fn sas(reader: Reader<'_>) -> Result<Vec<SaState>, NotShown> {
    let mut of_file = HashSet::new();
    let mut larvae = Vec::new();
    let mut states = Vec::new();
    for shard in reader.worker.all() {
        let of_shard = table_of(reader, shard, SaPosition::OfFile(0), some_sas, |sa| match sa {
            FoundSa::OfFile(place, id, row) => {
                of_file.insert(id);
                Some(((false, place), row.complete()))
            }
            FoundSa::Added(born, id, row) => (!of_file.contains(&id)).then(|| ((true, born), row.complete())),
            FoundSa::Larval(seq, row) => {
                larvae.push((seq, row.complete()));
                None
            }
        })?;
        let is_one_of = Some(shard.0).filter(|_| reader.worker.count() != ShardCount::ONE);
        let owned = of_shard.into_iter().flatten();
        states.extend(owned.map(|(place, state)| (place, SaState { worker: is_one_of, ..state })));
    }
    states.sort_by_key(|(place, _)| *place);
    larvae.sort_by_key(|(seq, _)| *seq);
    let states = states.into_iter().map(|(_, state)| state);
    Ok(states.chain(larvae.into_iter().map(|(_, state)| state)).collect())
}

/// End of the SAs of a sum. The greatest is that of the last one.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
enum SumEnd {
    /// It has no SA.
    #[default]
    Past,
    At(Instant),
    Never,
}

/// Row of the sums.
#[derive(Clone, Copy, Debug, Default)]
struct SumRow {
    packets: u64,
    bytes: u64,
    end: SumEnd,
}

impl SumRow {
    fn add(&mut self, other: Self) {
        self.packets = self.packets.wrapping_add(other.packets);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.end = self.end.max(other.end);
    }
}

/// Sums of SAs over rekeys, the policies that need SAs, and names of tunnels.
fn sa_sums(reader: Reader<'_>, shared: &Shared) -> Result<SaSumsState, NotShown> {
    let mut sums: BTreeMap<SaSumKey, SumRow> = BTreeMap::new();
    let mut left_out = 0;
    for shard in reader.worker.all() {
        let of_shard = table_within(VIEW_SLICE, reader, shard, SumPosition::Sas(0), some_sums, |row| row)?;
        // An SA that is added again, as by a reload, may get another owner.
        for (key, row) in of_shard {
            sums.entry(key).or_default().add(row);
        }
        left_out += reader.worker().call_on(shard, |node| node.datapath.ipsec.sad().sum_counts()[1])?;
    }
    let own: HashSet<IpAddr> = {
        let protocols = shared.lock();
        let links = protocols.rtnl.model.links_after(0);
        links.flat_map(|(_, link)| link.addresses.iter().map(|address| address.addr.addr())).collect()
    };
    // SAs with a direction and without may have followed one another.
    let mut of_dirs: BTreeMap<_, SumRow> = BTreeMap::new();
    for (SaSumKey { src, dst, reqid, dir }, row) in sums {
        let dir = dir.unwrap_or(if own.contains(&dst) { SaDir::In } else { SaDir::Out });
        of_dirs.entry((src, dst, reqid, dir)).or_default().add(row);
    }
    let now = since_boot();
    let state = |((src, dst, reqid, dir), SumRow { packets, bytes, end })| {
        let expires_ms = match end {
            SumEnd::At(at) => Some(at.since(now).as_millis() as u64),
            SumEnd::Past | SumEnd::Never => None,
        };
        SaSumState { src, dst, reqid, dir, packets, bytes, expires_ms }
    };
    let policies = table_within(VIEW_SLICE, reader, ShardId::FIRST, (0, None), some_policies, PolicyRow::needed_sa)?;
    Ok(SaSumsState {
        sums: of_dirs.into_iter().map(state).collect(),
        left_out,
        policies: policies.into_iter().flatten().collect(),
        tunnels: table_within(VIEW_SLICE, reader, ShardId::FIRST, 0, some_tunnels, |tunnel| tunnel)?,
    })
}

fn some_tunnels(node: &mut Node, first: usize, out: &mut Vec<TunnelNameState>) -> Option<usize> {
    let tunnels = node.config.tunnels.get(first..)?;
    out.extend(tunnels.iter().take(STEP).map(|TunnelName { name, local, remote }| TunnelNameState {
        name: name.clone(),
        local: *local,
        remote: *remote,
    }));
    (tunnels.len() > STEP).then_some(first + STEP)
}

/// Position on the way to the sums: the SAs are added up first.
enum SumPosition {
    Sas(u64),
    Sums(Option<SaSumKey>),
}

fn some_sums(node: &mut Node, position: SumPosition, out: &mut Vec<(SaSumKey, SumRow)>) -> Option<SumPosition> {
    match position {
        SumPosition::Sas(from) => {
            let next = node.datapath.ipsec.add_up_sas(from, STEP, |key, at| {
                let end = at.map_or(SumEnd::Never, SumEnd::At);
                out.push((key, SumRow { end, ..SumRow::default() }));
            });
            Some(next.map_or(SumPosition::Sums(None), SumPosition::Sas))
        }
        SumPosition::Sums(after) => {
            let mut last = None;
            for (key, SaSum { packets, bytes, .. }) in node.datapath.ipsec.sad().sums_after(after).take(STEP) {
                out.push((key, SumRow { packets, bytes, ..SumRow::default() }));
                last = Some(key);
            }
            last.map(|key| SumPosition::Sums(Some(key)))
        }
    }
}

/// Offload of an SA in words of iproute2.
fn offload_text(node: &Node, sa: &ipsec::Sa) -> Option<String> {
    let Offload { dev, dir, mode } = sa.offload()?;
    let name = node.datapath.ports.get(dev).map_or("?", |port| port.config.name.as_str());
    let mode = match mode {
        OffloadMode::Crypto => "crypto",
        OffloadMode::Packet => "packet",
    };
    Some(format!("dev {name} dir {dir} mode {mode}"))
}

fn some_sas(node: &mut Node, position: SaPosition, out: &mut Vec<FoundSa>) -> Option<SaPosition> {
    let (sad, now) = (node.datapath.ipsec.sad(), node.now());
    match position {
        SaPosition::OfFile(first) => {
            let configs = node.config.sas.get(first..).unwrap_or_default();
            let some = configs.iter().take(STEP);
            out.extend((first as u64..).zip(some).filter_map(|(place, config)| {
                let id = sad.by_spi(config.dst, config.spi, config.mark.sought())?;
                let sa = sad.get(id).filter(|sa| sad.owns(sa))?;
                Some(FoundSa::OfFile(place, id, SaRow::of_file(config, sa, now)))
            }));
            Some(if configs.len() > STEP { SaPosition::OfFile(first + STEP) } else { SaPosition::Added(0) })
        }
        SaPosition::Added(from) => {
            let mut next = None;
            for (born, sa) in sad.born_from(from).take(STEP) {
                next = Some(born + 1);
                if !sad.owns(sa) {
                    continue;
                }
                let row = SaRow::added(sa, now).map(|row| row.with_offload(offload_text(node, sa)));
                out.extend(row.map(|row| FoundSa::Added(born, sa.id(), row)));
            }
            Some(next.map_or(SaPosition::Larval(0), SaPosition::Added))
        }
        SaPosition::Larval(_) if !node.datapath.is_first_shard() => None,
        SaPosition::Larval(skip) => {
            let before = out.len();
            let some = sad.larvae().skip(skip).take(STEP);
            out.extend(some.map(|larval| FoundSa::Larval(larval.seq, SaRow::larval(larval))));
            (out.len() - before == STEP).then_some(SaPosition::Larval(skip + STEP))
        }
    }
}

/// Direction of policies, by its place in [`DIRS`], and the last policy before.
type PolicyPosition = (usize, Option<Order>);

const DIRS: [Dir; 3] = [Dir::In, Dir::Out, Dir::Fwd];

/// Policies in the order of their lookup.
fn policies(reader: Reader<'_>) -> Result<Vec<PolicyState>, NotShown> {
    let numbered = |row: PolicyRow| (row.index, row.complete());
    let mut states = table(reader, (0, None), some_policies, numbered)?;
    // Each shard records the uses that it makes of them.
    for shard in reader.worker.all().skip(1) {
        let of_shard: HashMap<u32, PolicyState> =
            table_of(reader, shard, (0, None), some_policies, numbered)?.into_iter().collect();
        for (index, state) in &mut states {
            let last = [state.ages.use_secs, of_shard.get(index).and_then(|same| same.ages.use_secs)];
            state.ages.use_secs = last.into_iter().flatten().min();
        }
    }
    Ok(states.into_iter().map(|(_, state)| state).collect())
}

fn some_policies(node: &mut Node, (dir, after): PolicyPosition, out: &mut Vec<PolicyRow>) -> Option<PolicyPosition> {
    let mut last = None;
    for (order, policy) in node.datapath.ipsec.spd().after(*DIRS.get(dir)?, after).take(STEP) {
        let lacks_sa = node.datapath.ipsec.lacks_sa(&policy.config);
        out.push(PolicyRow::new(policy, node.now(), lacks_sa));
        last = Some(order);
    }
    Some(last.map_or((dir + 1, None), |order| (dir, Some(order))))
}

/// Flows that are not idle.
fn flows(reader: Reader<'_>) -> Result<Vec<FlowState>, NotShown> {
    table(reader, 0, some_flows, FlowRow::complete)
}

fn some_flows(node: &mut Node, slot: usize, out: &mut Vec<FlowRow>) -> Option<usize> {
    let mut next = None;
    for (at, domain, flow) in node.datapath.established().iter_from(node.now(), slot).take(STEP) {
        out.push(FlowRow::new(node, domain, flow));
        next = Some(at + 1);
    }
    next
}

/// ILA mappings in the order of their places.
fn ila(reader: Reader<'_>) -> Result<Vec<IlaState>, NotShown> {
    let mut found = table(reader, 0, some_ila, |row| {
        let place = row.mapping.key().place();
        (place, row.complete())
    })?;
    found.sort_by_key(|(place, _)| *place);
    found.dedup_by_key(|(place, _)| *place);
    Ok(found.into_iter().map(|(_, state)| state).collect())
}

fn some_ila(node: &mut Node, from: usize, out: &mut Vec<IlaRow>) -> Option<usize> {
    let mut next = None;
    for (at, mapping) in node.datapath.ila().from_position(from).take(STEP) {
        out.push(IlaRow::new(node, mapping));
        next = Some(at + 1);
    }
    next
}

#[cfg(test)]
mod tests {
    use std::iter;

    use base::{Origin, Prefix};
    use ctl::state::PolicyCountState;
    use packet::Allocations;
    use rustix::event::{EventfdFlags, eventfd};
    use wire::Spi;
    use xfrm::{Algorithm, Level, Mode, PolicyConfig, SaConfig, SaFlags, Selector, Template};

    use super::*;
    use crate::poller::Poller;
    use crate::records::sa_of_file;

    #[global_allocator]
    static ALLOCATIONS: Allocations = Allocations;

    const COUNT: u32 = 3 * ROWS as u32;

    /// A node with SAs, half of them of a file, policies, and neighbours of a link that does not exist.
    fn node() -> Node {
        let inbox = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut node = Node::new(Poller::new(inbox).unwrap());
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
        let flags = SaFlags { esn: true, decap_dscp: true, ..SaFlags::default() };
        let mut config = config::Config::default();
        for spi in 0x1000..0x1000 + COUNT {
            let sa = SaConfig::new(src, dst, Spi(spi), Mode::Tunnel, Algorithm::null());
            let sa = SaConfig { flags, replay_window: 128, ..sa };
            node.datapath.ipsec.add_sa(&sa_of_file(&sa), 0).unwrap();
            if spi % 2 == 0 {
                config.sas.push(sa);
            }
        }
        node.config = Arc::new(config);
        for n in 0..COUNT {
            let to = [10, 2, (n >> 8) as u8, n as u8].into();
            let selector = Selector::new(Prefix::ANY_V4, Prefix::host(to));
            let level = Level::Required;
            let template = Template { src: Some(src), dst: Some(dst), spi: None, mode: Mode::Tunnel, reqid: n, level };
            let policy = PolicyConfig { templates: vec![template; 2], ..PolicyConfig::new(Dir::Out, selector) };
            node.datapath.ipsec.add_policy(policy).unwrap();
            let known = fib::Known::Permanent(wire::MacAddr([2, 0, 0, 0, 0, 1]));
            node.datapath.neighbours.set(base::Instant::ZERO, PortId(7), to, known, &mut Vec::new());
            let domain = Domain::DEFAULT;
            let now = node.now();
            node.datapath.fib.lower_path_mtu(now, domain, to, 1400, 1500);
        }
        for (reason, n) in DropReason::ALL.iter().step_by(9).zip(1..) {
            (0..n).for_each(|_| node.datapath.ports.drop(Origin::NODE, *reason).end());
            // Of a link that is removed.
            node.datapath.ports.drop(Origin::Port(PortId(1024)), *reason).end();
        }
        node
    }

    /// Reads a table to its end, and checks that no slice allocates. Returns the rows and the number of slices.
    fn read<T, P>(node: &mut Node, start: P, step: Step<T, P>) -> (Vec<T>, usize) {
        let mut all = Vec::new();
        let mut rows = Vec::with_capacity(ROWS);
        let mut position = Some(start);
        let slices = iter::from_fn(|| {
            let at = position.take()?;
            let before = Allocations::of_thread();
            position = slice(node, SLICE, at, step, &mut rows);
            assert_eq!(Allocations::of_thread() - before, 0, "allocations of a slice of {} rows", rows.len());
            all.append(&mut rows);
            Some(())
        });
        let slices = slices.count();
        (all, slices)
    }

    #[test]
    fn slice_of_a_large_table_allocates_nothing() {
        let mut node = node();
        let (sas, slices) = read(&mut node, SaPosition::OfFile(0), some_sas);
        let of_file = sas.iter().filter(|sa| matches!(sa, FoundSa::OfFile(..))).count();
        // Those of the file come once more among all.
        assert_eq!((of_file, sas.len()), (COUNT as usize / 2, COUNT as usize * 3 / 2));
        assert!(slices > sas.len() / ROWS, "{slices} slices");
        let (policies, _) = read(&mut node, (0, None), some_policies);
        assert_eq!(policies.len(), COUNT as usize);
        let (neighbours, _) = read(&mut node, 0, some_neighbours);
        assert_eq!(neighbours.len(), COUNT as usize);
        let (pmtus, slices) = read(&mut node, None, some_pmtus);
        assert_eq!(pmtus.len(), COUNT as usize);
        assert!(slices > 1);
    }

    #[test]
    fn drops_of_many_links_are_read_in_slices() {
        let mut node = node();
        let mut rows = Vec::with_capacity(ROWS);
        let mut position = Some(0);
        let mut steps = 0;
        while let Some(at) = position {
            let before = Allocations::of_thread();
            position = some_drops(&mut node, at, &mut rows);
            assert_eq!(Allocations::of_thread() - before, 0);
            steps += 1;
        }
        assert!(steps >= 1024 * DropReason::COUNT / DROP_COUNTERS, "{steps} steps");
        let states: Vec<DropState> = rows.into_iter().map(DropRow::complete).collect();
        let want: Vec<DropState> = (DropReason::ALL.iter().step_by(9).zip(1..))
            .map(|(reason, count)| DropState { link: None, reason: reason.name().to_owned(), count })
            .collect();
        assert_eq!(states, want);
    }

    #[test]
    fn drops_of_shards_are_added_by_link_and_reason() {
        let node = node();
        let row = |reason, count| DropRow::new(&node, None, reason, count).unwrap();
        let (icv, route) = (DropReason::EspIcv, DropReason::NoRoute);
        let states = drop_sums(vec![row(icv, 1), row(route, 2), row(route, 4)]);
        let mut counts: Vec<_> = states.iter().map(|drop| (drop.reason.as_str(), drop.count)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [("EspIcv", 1), ("NoRoute", 6)]);
        assert!(DropRow::new(&node, Some(PortId(1024)), icv, 1).is_none(), "a link that is removed");
    }

    #[test]
    fn path_mtu_is_shown_until_it_is_forgotten() {
        let (mut node, to) = (node(), "192.0.2.2".parse().unwrap());
        let now = base::Instant::ZERO;
        node.datapath.fib.forget_path_mtus_v4();
        assert!(node.datapath.fib.lower_path_mtu(now, Domain::DEFAULT, to, 1400, 1500));
        let at = |secs| {
            let now = now + Duration::from_secs(secs);
            let known = node.datapath.fib.path_mtus_after(now, None);
            known.map(|(to, known)| PmtuRow::new(&node, to, known, now).complete()).collect::<Vec<_>>()
        };
        let want = ctl::state::PmtuState { to, vrf: None, mtu: 1400, expires_secs: 583 };
        assert_eq!(at(17), [want]);
        assert!(at(600).is_empty());
    }

    #[test]
    fn summary_costs_the_same_for_tables_of_any_size() {
        let inbox = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let (small, large) = (Node::new(Poller::new(inbox).unwrap()), node());
        let summary = |node: &Node| {
            let before = Allocations::of_thread();
            let summary = snapshot::summary(node);
            (summary, Allocations::of_thread() - before)
        };
        let ((small, of_small), (large, of_large)) = (summary(&small), summary(&large));
        assert_eq!((small.sas.valid, small.policies.outbound), (0, 0));
        assert_eq!((large.sas.valid, large.sas.undirected), (COUNT.into(), COUNT.into()));
        assert_eq!(large.policies, PolicyCountState { outbound: COUNT.into(), ..PolicyCountState::default() });
        let permanent = large.neighbours.iter().find(|it| it.state == "PERMANENT").unwrap();
        assert_eq!(permanent.count, u64::from(COUNT));
        assert_eq!(of_large, of_small, "allocations");
    }

    #[test]
    fn row_of_an_sa_is_completed_with_its_words() {
        let (sas, _) = read(&mut node(), SaPosition::OfFile(0), some_sas);
        let states: Vec<SaState> = sas
            .into_iter()
            .map(|sa| match sa {
                FoundSa::OfFile(.., row) | FoundSa::Added(.., row) | FoundSa::Larval(_, row) => row.complete(),
            })
            .collect();
        let [first, .., last] = states.as_slice() else { panic!("{} SAs", states.len()) };
        for sa in [first, last] {
            assert_eq!((sa.state.as_str(), sa.algorithm.as_deref()), ("valid", Some("ecb(cipher_null)")));
            assert_eq!((sa.flags.join(" ").as_str(), sa.replay_window), ("decap-dscp esn", 128));
            assert_eq!((sa.bitmap.as_slice(), &sa.auth), ([0; 4].as_slice(), &None));
        }
        assert_eq!([first.spi, last.spi], [0x1000, 0xfff + COUNT]);
    }
}

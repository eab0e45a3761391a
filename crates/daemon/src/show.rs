//! Replies to `fatpath show`: tables of the node in slices, so that packets do not wait for a long table.
//!
//! Routes are read from the model that netlink clients share. All other tables are read on the worker, in calls of at
//! most [`SLICE`] each, between which it moves packets. A table that changes meanwhile is shown partly old and partly new,
//! as a dump over netlink is.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use base::{LinkId, SaId};
use ctl::state::{FdbState, FlowState, IlaState, NeighbourState, PolicyState, RouteState, SaState};
use ctl::{Shown, What};
use ila::Locator;
use ipsec::spd::Order;
use netlink::rtnl::RouteCursor;
use netlink::rtnl::nums::RTPROT_KERNEL;
use rustix::time::{ClockId, clock_gettime};
use xfrm::Dir;

use crate::bridges::{self, FdbKey};
use crate::command::{Handle, WorkerGone};
use crate::netlink::Shared;
use crate::node::Node;
use crate::translate::fib::to_fib;
use crate::{sadb, snapshot};

/// Time after which a slice ends. Its last step may exceed it.
const SLICE: Duration = Duration::from_micros(400);

/// Time between two slices, in which the worker takes packets.
const PAUSE: Duration = Duration::from_micros(100);

/// Number of objects of one step, whose time is far below a slice's.
const STEP: usize = 32;

/// Number of routes that are read at once.
const ROUTES: usize = 1024;

/// State of one kind of object.
///
/// # Errors
/// The worker does not reply.
pub(crate) fn show(what: What, worker: &Handle, shared: &Shared) -> Result<Shown, WorkerGone> {
    Ok(match what {
        What::Links => Shown::Links(one(worker, snapshot::link_states)?),
        What::Routes => Shown::Routes(routes(shared)),
        What::Neighbours => Shown::Neighbours(neighbours(worker)?),
        What::Fdb => Shown::Fdb(fdb(worker)?),
        What::Pmtus => {
            Shown::Pmtus(one(worker, |node| snapshot::pmtus(&node.datapath.fib, node.now(), |id| node.name_of(id)))?)
        }
        What::Sa => Shown::Sa(sas(worker)?),
        What::Policies => Shown::Policies(policies(worker)?),
        What::Counters => Shown::Counters(one(worker, snapshot::counters)?),
        What::Drops => Shown::Drops(one(worker, snapshot::drops)?),
        What::Fragments => Shown::Fragments(one(worker, |node| snapshot::fragments(node.datapath.reassembly()))?),
        What::Ila => Shown::Ila(ila(worker)?),
        What::Flows => Shown::Flows(flows(worker)?),
    })
}

/// Runs `work` on the worker as one slice: for state whose size is limited.
fn one<T: Send + 'static>(worker: &Handle, work: fn(&Node) -> T) -> Result<T, WorkerGone> {
    worker.call(move |node| measured(node, |node| work(node)))
}

/// Runs `work`, and counts it as a slice.
fn measured<T>(node: &mut Node, work: impl FnOnce(&mut Node) -> T) -> T {
    let begun = processor_time();
    let done = work(node);
    let counts = &mut node.show_slices;
    counts.count += 1;
    counts.longest = counts.longest.max(processor_time().saturating_sub(begun));
    done
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Reads a table from `start` on. `step` appends some objects, and returns the position behind them, or `None` at the end.
fn table<T: Send + 'static, P: Send + 'static>(
    worker: &Handle,
    start: P,
    step: fn(&mut Node, P, &mut Vec<T>) -> Option<P>,
) -> Result<Vec<T>, WorkerGone> {
    let mut all = Vec::new();
    let mut position = Some(start);
    while let Some(at) = position {
        let (mut some, next) = worker.call(move |node| measured(node, |node| slice(node, at, step)))?;
        all.append(&mut some);
        position = next;
        if position.is_some() {
            thread::sleep(PAUSE);
        }
    }
    Ok(all)
}

/// Runs steps until the end of the slice.
fn slice<T, P>(node: &mut Node, at: P, step: fn(&mut Node, P, &mut Vec<T>) -> Option<P>) -> (Vec<T>, Option<P>) {
    let begun = Instant::now();
    let mut some = Vec::new();
    let mut position = Some(at);
    while let Some(at) = position {
        position = step(node, at, &mut some);
        if begun.elapsed() >= SLICE {
            break;
        }
    }
    (some, position)
}

fn routes(shared: &Shared) -> Vec<RouteState> {
    let mut states = Vec::new();
    let mut after: Option<RouteCursor> = None;
    loop {
        let protocols = shared.lock();
        let model = &protocols.rtnl.model;
        let before = states.len();
        for (cursor, table, route) in model.routes_after(after).take(ROUTES) {
            after = Some(cursor);
            let dev = model.link(route.dev).map(|link| link.config.name.clone());
            // The source of a route that the node adds for an address is that address.
            let src = route.src.filter(|_| route.protocol != RTPROT_KERNEL);
            states.push(to_fib(route).map(|found| snapshot::route(table, &found, dev, src)));
        }
        if states.len() - before < ROUTES {
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
    states
}

fn neighbours(worker: &Handle) -> Result<Vec<NeighbourState>, WorkerGone> {
    let mut found = table(worker, 0, |node, skip: usize, out| {
        let before = out.len();
        let some = node.datapath.neighbours.iter().skip(skip).take(STEP);
        out.extend(some.map(|it| ((it.link, it.addr), snapshot::neighbour(node, &it))));
        (out.len() - before == STEP).then_some(skip + STEP)
    })?;
    found.sort_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    Ok(found.into_iter().filter_map(|(_, state)| state).collect())
}

fn fdb(worker: &Handle) -> Result<Vec<FdbState>, WorkerGone> {
    let mut found: Vec<(FdbKey, Option<FdbState>)> = Vec::new();
    let bridges: Vec<LinkId> = one(worker, |node| node.datapath.bridge_ids().collect())?;
    for own in bridges {
        found.extend(table(worker, (own, 0), |node, (own, skip): (LinkId, usize), out| {
            let mut some = bridges::fdb_states(node, own, skip, STEP);
            let is_whole = some.len() == STEP;
            out.append(&mut some);
            is_whole.then_some((own, skip + STEP))
        })?);
    }
    found.sort_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    Ok(found.into_iter().filter_map(|(_, state)| state).collect())
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

/// SA to show.
enum FoundSa {
    OfFile(SaId, Box<SaState>),
    Added(SaId, Box<SaState>),
    /// With the number of its acquire.
    Larval(u32, Box<SaState>),
}

/// SAs in the order of the file, then those of netlink clients, then larval ones in the order of their acquires.
fn sas(worker: &Handle) -> Result<Vec<SaState>, WorkerGone> {
    let found = table(worker, SaPosition::OfFile(0), some_sas)?;
    let mut of_file = HashSet::new();
    let mut states = Vec::with_capacity(found.len());
    let mut larvae = Vec::new();
    for sa in found {
        match sa {
            FoundSa::OfFile(id, state) => {
                of_file.insert(id);
                states.push(*state);
            }
            FoundSa::Added(id, _) if of_file.contains(&id) => {}
            FoundSa::Added(_, state) => states.push(*state),
            FoundSa::Larval(seq, state) => larvae.push((seq, *state)),
        }
    }
    larvae.sort_by_key(|(seq, _)| *seq);
    states.extend(larvae.into_iter().map(|(_, state)| state));
    Ok(states)
}

fn some_sas(node: &mut Node, position: SaPosition, out: &mut Vec<FoundSa>) -> Option<SaPosition> {
    let (sad, now) = (node.datapath.ipsec.sad(), node.now());
    match position {
        SaPosition::OfFile(first) => {
            let configs = node.config.sas.get(first..).unwrap_or_default();
            let some = configs.iter().take(STEP);
            out.extend(some.filter_map(|config| {
                let id = sad.by_spi(config.dst, config.spi, config.mark.sought())?;
                Some(FoundSa::OfFile(id, Box::new(snapshot::sa(config, sad.get(id)?, now))))
            }));
            Some(if configs.len() > STEP { SaPosition::OfFile(first + STEP) } else { SaPosition::Added(0) })
        }
        SaPosition::Added(from) => {
            let mut next = None;
            for (born, sa) in sad.born_from(from).take(STEP) {
                next = Some(born + 1);
                if let Some(config) = sadb::config(sa) {
                    out.push(FoundSa::Added(sa.id(), Box::new(snapshot::sa(&config, sa, now))));
                }
            }
            Some(next.map_or(SaPosition::Larval(0), SaPosition::Added))
        }
        SaPosition::Larval(skip) => {
            let before = out.len();
            let some = sad.larvae().skip(skip).take(STEP);
            out.extend(some.map(|larval| FoundSa::Larval(larval.seq, Box::new(snapshot::larval(larval)))));
            (out.len() - before == STEP).then_some(SaPosition::Larval(skip + STEP))
        }
    }
}

/// Policies in the order of their lookup.
fn policies(worker: &Handle) -> Result<Vec<PolicyState>, WorkerGone> {
    const DIRS: [Dir; 3] = [Dir::In, Dir::Out, Dir::Fwd];
    table(worker, (0, None), |node, (dir, after): (usize, Option<Order>), out| {
        let mut last = None;
        for (order, policy) in node.datapath.ipsec.spd().after(*DIRS.get(dir)?, after).take(STEP) {
            out.push(snapshot::policy(policy, node.now()));
            last = Some(order);
        }
        Some(last.map_or((dir + 1, None), |order| (dir, Some(order))))
    })
}

/// Flows that are not idle.
fn flows(worker: &Handle) -> Result<Vec<FlowState>, WorkerGone> {
    table(worker, 0, |node, slot: usize, out| {
        let mut next = None;
        for (at, domain, flow) in node.datapath.established().iter_from(node.now(), slot).take(STEP) {
            out.push(snapshot::flow(node, domain, &flow));
            next = Some(at + 1);
        }
        next
    })
}

/// ILA mappings by locator; among equal locators the mapping for any device comes last.
fn ila(worker: &Handle) -> Result<Vec<IlaState>, WorkerGone> {
    type Key = (Locator, bool, Option<LinkId>);
    let mut found: Vec<(Key, IlaState)> = table(worker, 0, |node, bucket: usize, out| {
        let mut next = None;
        for (at, mapping) in node.datapath.ila().from_bucket(bucket).take(STEP) {
            let key = (mapping.locator_match, mapping.link.is_none(), mapping.link);
            out.push((key, snapshot::ila_mapping(node, &mapping)));
            next = Some(at + 1);
        }
        next
    })?;
    found.sort_by_key(|(key, _)| *key);
    found.dedup_by_key(|(key, _)| *key);
    Ok(found.into_iter().map(|(_, state)| state).collect())
}

//! Events of SAs, policies, links, neighbours and bridges' addresses: queued as they happen, and sent to netlink's
//! listeners and to monitors.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};

use base::{Instant, ShardId};
use ctl::event;
use fib::Changes;
use netlink::Groups;
use netlink::rtnl::NeighbourNow;
use netlink::rtnl::nums::{NUD_FAILED, RTNLGRP_NEIGH};
use netlink::xfrm::nums::group;

use super::event_queue::{EventQueue, KernelEvent, Listeners};
use super::monitors::sa_event;
use super::node::Node;
use super::sadb;
use super::snapshot::links;
use super::translate::fib::shown;

/// Runs timers. Events of objects that expire are recorded before a command replaces the objects.
pub(crate) fn run_timers(node: &mut Node, now: Instant) {
    node.datapath.handle_timeout(now, &node.mem);
    record(node);
}

/// Records events of SAs and policies for their listeners.
fn record(node: &mut Node) {
    if node.datapath.ipsec.has_listener() {
        let events: Vec<ipsec::Event> = node.datapath.ipsec.take_events().collect();
        events.iter().for_each(|event| sadb::record(node, event));
        if !node.datapath.is_first_shard() {
            return pass_on(node, events);
        }
        tell_monitors(node, &events);
    }
}

/// Sends events to monitors.
fn tell_monitors(node: &mut Node, events: &[ipsec::Event]) {
    node.monitors.send(events);
    settle_monitors(node);
}

/// Enables the events that monitors listen for, if monitors have come or gone.
fn settle_monitors(node: &mut Node) {
    if node.monitors.take_change().is_some() {
        update_listeners(node);
    }
}

/// Passes the events of SAs that this shard owns on to the first one, which has the listeners.
fn pass_on(node: &mut Node, events: Vec<ipsec::Event>) {
    let (of_clients, lost) = node.xfrm_events.take(node.datapath.ipsec.lost_events());
    let Some((_, shards)) = &node.shard else { return };
    if of_clients.is_empty() && events.is_empty() && lost == 0 {
        return;
    }
    let take = move |first: &mut Node| {
        first.xfrm_events.extend(of_clients, lost);
        tell_monitors(first, &events);
    };
    shards.run_on(ShardId::FIRST, Box::new(take));
}

/// Enables the events that have listeners, in all shards; acquires are sent only if a listener receives acquires.
fn update_listeners(node: &mut Node) {
    let monitors = node.monitors.listening();
    let events = &node.xfrm_events;
    let any = monitors.any || events.has_listener();
    let (acquires, numbers) = (monitors.acquires || events.has_acquire_listener(), events.has_number_listener());
    let set = move |node: &mut Node| {
        node.datapath.ipsec.set_listener(any);
        node.datapath.ipsec.enable_acquires(acquires);
        node.datapath.ipsec.enable_numbers(numbers);
    };
    set(node);
    node.run_on_others(set);
}

/// Adds a monitor, which receives events from `sink`. For one of the view socket no SAs are acquired.
pub(crate) fn monitor(node: &mut Node, sink: SyncSender<event::Event>, client: Weak<()>, is_viewer: bool) {
    node.monitors.add(sink, client, is_viewer);
    settle_monitors(node);
}

/// Enables events of these groups, of `NETLINK_XFRM` and of rtnetlink, for netlink's clients; `queue` queues them.
pub(crate) fn listen(node: &mut Node, [xfrm, route]: [Groups; 2], queue: Arc<EventQueue>) {
    let Node { xfrm_events, datapath, .. } = node;
    xfrm_events.set_queue(xfrm, Arc::clone(&queue));
    datapath.neighbours.watch(route.has(RTNLGRP_NEIGH));
    datapath.watch_fdb(route.has(RTNLGRP_NEIGH));
    node.listeners = Listeners::new(route, queue);
    update_listeners(node);
    // A key manager that has run on since before a restart.
    if xfrm.has(group::ACQUIRE) && xfrm.has(group::EXPIRE) {
        node.datapath.ipsec.expire_lost();
        node.datapath.ipsec.report_resumed();
        node.run_on_others(|node| node.datapath.ipsec.report_resumed());
    }
}

/// Sends the events since the last call.
pub(crate) fn publish(node: &mut Node) {
    record(node);
    // In another shard this drops what no listener has taken.
    node.xfrm_events.flush(node.datapath.ipsec.lost_events());
    publish_sa_changes(node);
    // An event of an SA or a link may have found monitors gone.
    settle_monitors(node);
    publish_route(node);
}

/// Limit of log lines about SAs that were added or removed at once.
const MAX_LOGGED: usize = 16;

/// Logs SAs that were added or removed, and sends them to monitors.
fn publish_sa_changes(node: &mut Node) {
    if !node.datapath.ipsec.has_sa_changes() {
        return;
    }
    let (changes, more) = node.datapath.ipsec.take_sa_changes();
    // Each shard has made them.
    if !node.datapath.is_first_shard() {
        return;
    }
    for (at, change) in changes.iter().enumerate() {
        let event = sa_event(change);
        if at < MAX_LOGGED {
            match event {
                event::Event::SaRemoved(_) => tracing::info!(message_id = logging::id::SA_REMOVED, "{event}"),
                _ => tracing::info!("{event}"),
            }
        }
        node.monitors.tell(&event);
    }
    let not_logged = changes.len().saturating_sub(MAX_LOGGED) as u64 + more;
    if not_logged > 0 {
        tracing::info!("{}", event::Event::MoreSas { changes: not_logged });
    }
    if more > 0 {
        node.monitors.tell(&event::Event::MoreSas { changes: more });
    }
}

/// Sends the events of links, neighbours and bridges' addresses.
fn publish_route(node: &mut Node) {
    let Some((queue, changed)) = node.listeners.take_changed() else { return };
    let neighbours = node.datapath.neighbours.take_changed();
    let fdb = node.datapath.take_fdb_changes();
    if changed.is_empty() && neighbours == Changes::default() && fdb.is_empty() {
        return;
    }
    let of_links = if changed.is_empty() { Vec::new() } else { links(node) };
    let of_links = of_links.into_iter().filter(|link| changed.contains(&link.id)).map(KernelEvent::Link);
    let all = &node.datapath.neighbours;
    let of_neighbours = neighbours.entries.iter().map(|&(link, addr)| match all.get(link, addr) {
        Some(now) => KernelEvent::Neighbour { now: shown(&now), gone: false },
        None => {
            let now = NeighbourNow { link, addr, mac: None, state: NUD_FAILED, protocol: 0 };
            KernelEvent::Neighbour { now, gone: true }
        }
    });
    let gone = neighbours.removed.iter().map(|was| KernelEvent::Neighbour { now: shown(was), gone: true });
    let mut lost = Groups::default();
    lost.set(RTNLGRP_NEIGH, neighbours.is_truncated || fdb.iter().any(|(_, noted)| noted.is_truncated));
    let of_bridges = fdb
        .into_iter()
        .flat_map(|(bridge, noted)| noted.changes.into_iter().map(move |change| KernelEvent::Fdb { bridge, change }));
    queue.push_route(of_links.chain(of_neighbours).chain(gone).chain(of_bridges), lost);
}

//! What the worker shows of itself: the answers to `fatpath show`. Each is made when it is asked for, and alone, so
//! that whoever looks at links does not have the packets wait for a long list of routes.

use std::collections::BTreeMap;

use base::{DropReason, Instant, LinkId};
use control::algorithm::Name;
use control::model::{LinkConfig, LinkKind, SaConfig};
use control::state::{
    CopyState, CounterState, CountersState, DropState, LinkState, LinkStats, NeighbourState, OffloadState, PolicyState,
    RouteState, SaState, SaStats,
};
use control::xfrm::Ages;
use control::{Shown, What};
use ipsec::{Sa, replay::ReplayWindow};
use link::Layer;
use path::Port;
use wire::Spi;

use super::worker::{Slot, Worker};
use super::xfrm;

/// One kind of thing, as it is now.
pub(crate) fn show(worker: &Worker, what: What) -> Shown {
    match what {
        What::Links => Shown::Links(links(worker)),
        What::Routes => Shown::Routes(routes(worker)),
        What::Neighbours => Shown::Neighbours(neighbours(worker)),
        What::Sa => Shown::Sa(sas(worker)),
        What::Policies => Shown::Policies(policies(worker)),
        What::Counters => Shown::Counters(counters(worker)),
        What::Drops => Shown::Drops(drops(worker)),
    }
}

fn name_of(worker: &Worker, id: LinkId) -> Option<String> {
    worker.path.ports.get(id).map(|port| port.config.name.clone())
}

fn links(worker: &Worker) -> Vec<LinkState> {
    let states = worker.path.ports.iter().filter_map(|(id, port)| {
        let config = worker.config.links.iter().find(|link| link.name == port.config.name)?;
        Some(link(id, port, worker.slots.get(id.0 as usize)?.as_ref()?, config))
    });
    states.collect()
}

fn link(id: LinkId, port: &Port, slot: &Slot, config: &LinkConfig) -> LinkState {
    let offloads = slot.link.offloads().iter().map(|offload| OffloadState {
        name: offload.name.to_owned(),
        on: offload.on,
        why: offload.why.clone(),
    });
    LinkState {
        index: id.0,
        name: port.config.name.clone(),
        kind: slot.link.kind().word().to_owned(),
        on: match &config.kind {
            LinkKind::Udp { bind } => Some(bind.to_string()),
            LinkKind::Packet { interface } => Some(interface.clone()),
            LinkKind::Tun { .. } | LinkKind::Tap { .. } => None,
        },
        mtu: port.config.mtu as u32,
        up: port.up,
        why_down: slot.down.as_ref().map(|down| down.why.clone()),
        lladdr: match slot.link.layer() {
            Layer::Ethernet(mac) => Some(mac.to_string()),
            Layer::Ip => None,
        },
        addresses: config.own_addresses().collect(),
        offloads: offloads.collect(),
        stats: link_stats(slot.link.stats()),
    }
}

fn link_stats(stats: &link::LinkStats) -> LinkStats {
    LinkStats {
        rx_packets: stats.rx_packets,
        rx_bytes: stats.rx_bytes,
        rx_wire_packets: stats.rx_wire_packets,
        rx_calls: stats.rx_calls,
        rx_dropped: stats.rx_dropped,
        tx_packets: stats.tx_packets,
        tx_bytes: stats.tx_bytes,
        tx_wire_packets: stats.tx_wire_packets,
        tx_calls: stats.tx_calls,
        tx_dropped: stats.tx_dropped,
    }
}

fn routes(worker: &Worker) -> Vec<RouteState> {
    let states = worker.path.fib.routes().map(|(table, route)| RouteState {
        kind: route.kind.word().to_owned(),
        to: route.prefix,
        via: route.kind.via(),
        dev: route.kind.dev().and_then(|id| name_of(worker, id)),
        metric: route.metric,
        table: table.0,
    });
    states.collect()
}

fn neighbours(worker: &Worker) -> Vec<NeighbourState> {
    let mut all: Vec<_> = worker.path.neighbours.iter().collect();
    all.sort_unstable_by_key(|neighbour| (neighbour.link, neighbour.addr));
    let states = all.into_iter().filter_map(|neighbour| {
        Some(NeighbourState {
            to: neighbour.addr,
            dev: name_of(worker, neighbour.link)?,
            lladdr: neighbour.mac.map(|mac| mac.to_string()),
            state: neighbour.state.to_owned(),
            queued: neighbour.queued as u32,
        })
    });
    states.collect()
}

fn sas(worker: &Worker) -> Vec<SaState> {
    let sad = worker.path.ipsec.sad();
    let states = worker.config.sas.iter().filter_map(|config| {
        let mark = config.mark.map_or(0, |mark| mark.value);
        let id = sad.by_spi(config.dst, Spi(config.spi), mark)?;
        Some(sa(config, sad.get(id)?, worker.now()))
    });
    states.collect()
}

fn sa(config: &SaConfig, sa: &Sa, now: Instant) -> SaState {
    let algorithm = &config.algorithm;
    let stats = sa.stats();
    SaState {
        src: config.src,
        dst: config.dst,
        spi: config.spi,
        dir: config.dir,
        mode: config.mode,
        reqid: config.reqid,
        algorithm: algorithm.name().to_owned(),
        key_bits: algorithm.key_bits(),
        auth: algorithm.auth().map(|auth| auth.name.name().to_owned()),
        icv_bits: algorithm.icv_bits(),
        replay_window: config.replay_window,
        flags: config.flags.names().map(str::to_owned).collect(),
        encap: config.encap,
        moved_to: sa.moved_to(),
        tfcpad: config.tfcpad,
        nat: config.nat,
        selector: config.selector,
        oseq: sa.oseq(),
        seq: sa.replay().top(),
        bitmap: bitmap(sa.replay()),
        mark: config.mark,
        output_mark: config.output_mark,
        if_id: config.if_id,
        limit: config.limit,
        dying: sa.is_dying(),
        ages: ages(now, sa.added(), sa.first_used()),
        stats: SaStats {
            packets: stats.packets,
            bytes: stats.bytes,
            replay: stats.replay,
            replay_window: stats.replay_window,
            integrity_failed: stats.failed,
        },
    }
}

fn ages(now: Instant, added: Option<Instant>, used: Option<Instant>) -> Ages {
    let secs = |at: Option<Instant>| at.map(|at| now.since(at).as_secs());
    Ages { add_secs: secs(added), use_secs: secs(used) }
}

/// Bit `n`, counted from the first word's lowest, stands for the highest number less `n`.
fn bitmap(window: &ReplayWindow) -> Vec<u32> {
    let mut words = vec![0; window.size().div_ceil(u32::BITS) as usize];
    for age in window.seen().map(|seq| (window.top() - seq) as usize) {
        if let Some(word) = words.get_mut(age / 32) {
            *word |= 1 << (age % 32);
        }
    }
    words
}

/// In the order in which they are asked.
fn policies(worker: &Worker) -> Vec<PolicyState> {
    let spd = worker.path.ipsec.spd();
    let states = worker.config.policies.iter().filter_map(|config| {
        // One that has expired is not shown.
        let policy = spd.get(spd.find(&xfrm::policy(config).key())?)?;
        Some(PolicyState {
            dir: config.dir,
            selector: config.selector,
            priority: config.priority,
            action: config.action,
            templates: config.templates.clone(),
            mark: config.mark,
            if_id: config.if_id,
            limit: config.limit,
            ages: ages(worker.now(), policy.added(), policy.used()),
        })
    });
    let mut states: Vec<PolicyState> = states.collect();
    states.sort_by_key(|policy| (policy.dir as u8, policy.priority));
    states
}

fn counters(worker: &Worker) -> CountersState {
    let path = &worker.path;
    let counters = path.counters.iter();
    let copies = worker.mem.copies().iter();
    CountersState {
        counters: counters.map(|(mib, value)| CounterState { name: mib.name().to_owned(), value }).collect(),
        copies: copies
            .map(|(reason, copied)| CopyState {
                reason: reason.name().to_owned(),
                copies: copied.copies,
                bytes: copied.bytes,
            })
            .collect(),
        forwarded_packets: path.forwarded.packets,
        forwarded_bytes: path.forwarded.bytes,
    }
}

/// Those of the path and those of the links themselves. What links that are gone had dropped went with them.
fn drops(worker: &Worker) -> Vec<DropState> {
    let mut counts: BTreeMap<(LinkId, DropReason), u64> = BTreeMap::new();
    let slots = worker.slots.iter().enumerate().filter_map(|(at, slot)| Some((LinkId(at as u32), slot.as_ref()?)));
    let by_links = slots.flat_map(|(id, slot)| slot.link.stats().drops().map(move |(reason, n)| (id, reason, n)));
    for (id, reason, n) in worker.path.ports.drop_counts().chain(by_links) {
        *counts.entry((id, reason)).or_default() += n;
    }
    let states = counts.into_iter().filter_map(|((id, reason), count)| {
        let link = if id == LinkId::NONE { None } else { Some(name_of(worker, id)?) };
        Some(DropState { link, reason: reason.name().to_owned(), count })
    });
    states.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_shown_from_its_highest_number_down() {
        let mut window = ReplayWindow::new(64, false, 0);
        assert_eq!(bitmap(&window), [0, 0]);
        for seq in [1, 3, 40] {
            window.mark(seq).unwrap();
        }
        assert_eq!(bitmap(&window), [1, 1 << (37 - 32) | 1 << (39 - 32)]);
        assert!(bitmap(&ReplayWindow::new(0, false, 0)).is_empty());
    }
}

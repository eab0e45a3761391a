//! State of the node's objects, as `fatpath show` and netlink show it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use base::{Domain, DropReason, Instant, LinkId, Mib, TableId};
use config::features::FeatureSet;
use config::model::LinkKind;
use ctl::state::{
    Ages, CopyState, CounterState, CountersState, DropState, FlowState, FragmentsState, GuestQueueState, GuestState,
    IlaEncapState, IlaState, LimitState, LinkState, LinkStats, NeighbourState, OffloadState, PeerErrorState, PmtuState,
    PolicyState, QdiscState, RingState, RouteState, SaState, SaStats,
};
use datapath::{FatCounts, Port, RxMode, Traffic};
use driver::DriverKind;
use fib::{Fib, Neighbour, RouteKind};
use ila::Mapping;
use ipsec::replay::ReplayWindow;
use ipsec::spd::Policy;
use ipsec::{Larval, Sa, State};
use link::{Layer, Offload};
use netlink::rtnl::{LinkDetail, LinkNow, Vrf};
use reassembly::Reassembly;
use switch::PortStats;
use wire::{FlowKey, Version};
use xfrm::{Mark, Name, NatTraversal, SaConfig};

use super::bridges;
use super::node::Node;
use super::slot::Slot;
use super::translate::features;

pub(crate) fn link_states(node: &Node) -> Vec<LinkState> {
    let slots = node.datapath.ports.iter().filter_map(|(id, port)| Some((id, port, slot(node, id)?)));
    let mut links: Vec<_> = slots.map(|(id, port, slot)| link(node, id, port, slot)).collect();
    links.extend(node.vrfs.iter().map(|(&id, vrf)| of_vrf(node, id, vrf)));
    links.sort_unstable_by_key(|link| link.index);
    links
}

/// State of a VRF.
fn of_vrf(node: &Node, id: LinkId, vrf: &Vrf) -> LinkState {
    LinkState {
        index: node.ifindex(id).0,
        name: vrf.name.clone(),
        kind: "vrf".to_owned(),
        on: None,
        vrf: None,
        port: None,
        guest: None,
        table: Some(vrf.table.0),
        mtu: vrf.mtu,
        up: vrf.up,
        why_down: None,
        lladdr: None,
        addresses: node.datapath.fib.addresses(id).collect(),
        offloads: Vec::new(),
        ring: None,
        qdisc: None,
        stats: vrf_stats(node, id),
        peer_errors: Vec::new(),
        ip6: Vec::new(),
    }
}

/// Counters of packets through a VRF.
fn vrf_stats(node: &Node, id: LinkId) -> LinkStats {
    let traffic = node.datapath.ports.get(id).map(|port| port.traffic).unwrap_or_default();
    LinkStats { rx_dropped: node.datapath.ports.dropped(id), ..traffic_stats(traffic) }
}

fn traffic_stats(traffic: Traffic) -> LinkStats {
    let Traffic { rx_packets, rx_bytes, tx_packets, tx_bytes, tx_errors } = traffic;
    let (rx_wire_packets, tx_wire_packets) = (rx_packets, tx_packets);
    LinkStats {
        rx_packets,
        rx_bytes,
        rx_wire_packets,
        tx_packets,
        tx_bytes,
        tx_wire_packets,
        tx_errors,
        ..LinkStats::default()
    }
}

fn slot(node: &Node, id: LinkId) -> Option<&Slot> {
    node.slots.get(id.0 as usize)?.as_ref()
}

/// Reason why a link that is set up passes no packets.
fn why_down(slot: &Slot) -> Option<String> {
    let failed = slot.down.as_ref().map(|down| down.why.clone());
    failed.or_else(|| (slot.admin_up && !slot.link.has_carrier()).then(|| "no carrier".to_owned()))
}

/// Links in the form for netlink clients.
pub(crate) fn links(node: &Node) -> Vec<LinkNow> {
    let slots = node.datapath.ports.iter().filter_map(|(id, port)| Some((id, port, slot(node, id)?)));
    let links = slots.map(|(id, port, slot)| {
        let RxMode { promiscuity, allmulti } = node.datapath.rx_mode(id);
        LinkNow {
            id,
            host_index: slot.link.host_index(),
            running: port.up,
            mtu: port.config.mtu as u32,
            mac: port.config.mac.map(|mac| mac.0),
            stats: stats_of(node, id, slot),
            carrier: slot.carrier,
            promiscuity,
            allmulti,
            bridging: bridges::bridging(node, id),
        }
    });
    let vrfs = node.vrfs.iter().map(|(&id, vrf)| LinkNow {
        id,
        host_index: None,
        running: vrf.up,
        mtu: vrf.mtu,
        mac: None,
        stats: vrf_stats(node, id),
        carrier: [0; 2],
        promiscuity: 0,
        allmulti: 0,
        bridging: None,
    });
    links.chain(vrfs).collect()
}

/// Counters of the queueing disciplines.
pub(crate) fn qdiscs(node: &Node) -> Vec<(LinkId, qdisc::Stats)> {
    let ports = node.datapath.ports.iter();
    ports.filter_map(|(id, _)| Some((id, node.datapath.qdisc_stats(id)?))).collect()
}

/// A link in the form of `ethtool`.
pub(crate) fn detail(node: &Node, id: LinkId) -> Option<LinkDetail> {
    let (port, slot) = (node.datapath.ports.get(id)?, slot(node, id)?);
    let by_path = node.datapath.ports.drop_counts().filter(|&(link, ..)| link == Some(id));
    let drops = by_path.map(|(_, reason, count)| (reason, count)).chain(slot.link.stats().drops());
    let (can, on) = (slot.can, slot.on() | features::always(&*slot.link, &slot.config.kind));
    let fat = fat_counts(&port.fat);
    Some(LinkDetail { state: link(node, id, port, slot), drops: drops.collect(), fat, can, on })
}

/// Numbers of segments with their names: segments that GRO merged, and segments that super-packets stood for.
const fn fat_counts(fat: &FatCounts) -> [(&'static str, u64); 7] {
    [
        ("rx_gro_packets", fat.rx_gro_packets),
        ("rx_gro_segs", fat.rx_gro_segs),
        ("rx_esp_gro_packets", fat.rx_esp_gro_packets),
        ("tx_gso_packets", fat.tx_gso_packets),
        ("tx_gso_segs", fat.tx_gso_segs),
        ("tx_gso_cut_packets", fat.tx_gso_cut_packets),
        ("tx_gso_cut_segs", fat.tx_gso_cut_segs),
    ]
}

/// State of an offload, which a netlink client may have switched off.
fn offload(offload: &Offload, on: FeatureSet) -> OffloadState {
    let (name, why) = (offload.name.to_owned(), offload.why.clone());
    match features::of_offload(offload.name) {
        Some(feature) if offload.on && !on.has(feature) => {
            OffloadState { name, on: false, why: Some(SWITCHED.to_owned()) }
        }
        _ => OffloadState { name, on: offload.on, why },
    }
}

fn peer_error(error: &link::PeerError) -> PeerErrorState {
    PeerErrorState {
        peer: error.peer,
        error: std::io::Error::from_raw_os_error(error.errno).to_string(),
        count: error.count,
        last_secs: error.at.elapsed().as_secs(),
    }
}

/// Reason for which a supported offload is not in use.
const SWITCHED: &str = "switched off";

fn link(node: &Node, id: LinkId, port: &Port, slot: &Slot) -> LinkState {
    let on = slot.on();
    let esp_gro = on.has(FeatureSet::ESP_GRO);
    let why = (!esp_gro).then(|| SWITCHED.to_owned());
    let esp_gro = OffloadState { name: "rx-esp-gro".to_owned(), on: esp_gro, why };
    let offloads = slot.link.offloads().iter().map(|found| offload(found, on)).chain([esp_gro]);
    LinkState {
        index: node.ifindex(id).0,
        name: port.config.name.clone(),
        kind: slot.config.kind.word().to_owned(),
        on: match &slot.config.kind {
            LinkKind::Driver(DriverKind::Udp { bind }) => Some(bind.to_string()),
            LinkKind::Vlan { link, id } => Some(format!("{link} id {id}")),
            kind => kind.interface().or(kind.socket()).map(str::to_owned),
        },
        vrf: node.datapath.fib.domain(id).vrf_device().and_then(|device| node.name_of(device)),
        port: bridges::port_state(node, id),
        guest: slot.link.guest().map(guest),
        table: None,
        mtu: port.config.mtu as u32,
        up: port.up,
        why_down: why_down(slot),
        lladdr: match slot.link.layer() {
            Layer::Ethernet(mac) => Some(mac.to_string()),
            Layer::Ip => None,
        },
        addresses: node.datapath.fib.addresses(id).collect(),
        offloads: offloads.collect(),
        ring: slot.link.ring().map(|ring| ring_state(&ring)),
        qdisc: qdisc_state(node, id),
        stats: stats_of(node, id, slot),
        peer_errors: slot.link.peer_errors().iter().map(peer_error).collect(),
        ip6: port.counters.iter().filter(|&(_, value)| value > 0).map(counter).collect(),
    }
}

fn guest(state: link::vhost::GuestState) -> GuestState {
    let queue = |queue: link::vhost::QueueState| {
        let link::vhost::QueueState { running, enabled, size, chains, calls, full } = queue;
        GuestQueueState { running, enabled, size, chains, calls, full }
    };
    GuestState {
        connected: state.connected,
        running: state.running,
        features: state.features.into_iter().map(str::to_owned).collect(),
        regions: state.regions as u64,
        queues: state.queues.into_iter().map(queue).collect(),
        connections: state.connections,
        violations: state.violations,
        copied: state.copied,
    }
}

fn counter((which, value): (Mib, u64)) -> CounterState {
    CounterState { name: which.name().to_owned(), value }
}

fn qdisc_state(node: &Node, id: LinkId) -> Option<QdiscState> {
    let kind = node.datapath.qdisc_kind(id)?.name().to_owned();
    let qdisc::Stats { bytes, packets, drops, overlimits, qlen, backlog } = node.datapath.qdisc_stats(id)?;
    Some(QdiscState { kind, bytes, packets, drops, overlimits, backlog, qlen })
}

fn ring_state(ring: &link::RingState) -> RingState {
    RingState {
        mode: if ring.native { "native" } else { "generic" }.to_owned(),
        zero_copy: ring.zero_copy,
        queues: ring.queues,
        frames: ring.frames,
        frame_size: ring.frame_size,
        held: ring.held,
        rx_no_buffer: ring.rx_no_buffer,
        rx_dropped: ring.kernel.rx_dropped,
        rx_invalid_descs: ring.kernel.rx_invalid_descs,
        tx_invalid_descs: ring.kernel.tx_invalid_descs,
        rx_ring_full: ring.kernel.rx_ring_full,
        rx_fill_ring_empty_descs: ring.kernel.rx_fill_ring_empty_descs,
        tx_ring_empty_descs: ring.kernel.tx_ring_empty_descs,
    }
}

/// Counters of a link; for a bridge, the counters of its own port. The counters of drops have the sum of [`drops`] of
/// the link: packets that came in by the link, wherever they were dropped, and packets that its device did not send.
fn stats_of(node: &Node, id: LinkId, slot: &Slot) -> LinkStats {
    let device = slot.link.stats();
    let traffic = match (&slot.config.kind, node.datapath.ports.get(id), node.datapath.bridge(id)) {
        (LinkKind::Vlan { .. }, Some(port), _) => traffic_stats(port.traffic),
        (_, _, Some(bridge)) => bridge_stats(bridge.stats()),
        _ => link_stats(device),
    };
    let rx_dropped = device.rx_dropped + node.datapath.ports.dropped(id);
    LinkStats { rx_dropped, tx_dropped: device.tx_dropped, ..traffic }
}

fn bridge_stats(stats: PortStats) -> LinkStats {
    let PortStats { rx_packets, rx_bytes, tx_packets, tx_bytes, tx_errors, .. } = stats;
    LinkStats {
        rx_packets,
        rx_bytes,
        rx_wire_packets: rx_packets,
        tx_packets,
        tx_bytes,
        tx_wire_packets: tx_packets,
        tx_errors,
        ..LinkStats::default()
    }
}

fn link_stats(stats: &link::LinkStats) -> LinkStats {
    LinkStats {
        rx_packets: stats.rx_packets,
        rx_bytes: stats.rx_bytes,
        rx_wire_packets: stats.rx_wire_packets,
        rx_calls: stats.rx_calls,
        tx_packets: stats.tx_packets,
        tx_bytes: stats.tx_bytes,
        tx_wire_packets: stats.tx_wire_packets,
        tx_calls: stats.tx_calls,
        ..LinkStats::default()
    }
}

/// A route of the model in a table, by the link named `dev`, as the datapath has it.
pub(crate) fn route(table: TableId, route: &fib::Route, dev: Option<String>, src: Option<IpAddr>) -> RouteState {
    RouteState {
        kind: route.kind.word().to_owned(),
        to: route.prefix,
        via: route.kind.via(),
        dev,
        src,
        metric: route.metric,
        table: table.0,
        encap: encap(route.kind),
    }
}

fn encap(kind: RouteKind) -> Option<IlaEncapState> {
    let RouteKind::Ila { encap, .. } = kind else { return None };
    Some(IlaEncapState {
        locator: encap.locator,
        csum_mode: encap.csum_mode.name().to_owned(),
        ident_type: encap.ident_type.name().to_owned(),
        hook_type: encap.hook_type.name().to_owned(),
    })
}

/// A neighbour; `None` if its link has been removed.
pub(crate) fn neighbour(node: &Node, neighbour: &Neighbour) -> Option<NeighbourState> {
    Some(NeighbourState {
        to: neighbour.addr,
        dev: node.name_of(neighbour.link)?,
        lladdr: neighbour.mac.map(|mac| mac.to_string()),
        state: neighbour.state.to_owned(),
        queued: neighbour.queued as u32,
    })
}

pub(crate) fn pmtus(fib: &Fib, now: Instant, name_of: impl Fn(LinkId) -> Option<String>) -> Vec<PmtuState> {
    let states = fib.path_mtus(now).map(|((domain, to), known)| PmtuState {
        to,
        vrf: domain.vrf_device().and_then(&name_of),
        mtu: known.mtu as u32,
        expires_secs: known.expires.since(now).as_secs(),
    });
    states.collect()
}

const fn word(state: State) -> &'static str {
    match state {
        State::Acq => "acq",
        State::Valid => "valid",
        State::Expired => "expired",
        State::Dead => "dead",
    }
}

/// A larval SA, without a key.
pub(crate) fn larval(larval: &Larval) -> SaState {
    SaState {
        src: larval.src,
        dst: larval.dst,
        spi: larval.spi.0,
        state: word(State::Acq).to_owned(),
        dir: larval.dir,
        mode: larval.mode,
        reqid: larval.reqid,
        algorithm: None,
        key_bits: 0,
        auth: None,
        icv_bits: 0,
        replay_window: 0,
        flags: Vec::new(),
        encap: None,
        moved_to: None,
        tfcpad: 0,
        nat: NatTraversal::default(),
        selector: larval.selector.as_ref().map(Into::into),
        oseq: 0,
        seq: 0,
        bitmap: Vec::new(),
        mark: mark(larval.mark),
        output_mark: None,
        if_id: larval.if_id,
        limit: LimitState::default(),
        dying: false,
        ages: Ages { add_secs: None, use_secs: None },
        last_used_secs: None,
        stats: SaStats::default(),
    }
}

/// An SA with its configuration.
pub(crate) fn sa(config: &SaConfig, sa: &Sa, now: Instant) -> SaState {
    let algorithm = &config.algorithm;
    let stats = sa.stats();
    SaState {
        src: config.src,
        dst: config.dst,
        spi: config.spi.0,
        state: word(sa.state()).to_owned(),
        dir: config.dir,
        mode: config.mode,
        reqid: config.reqid,
        algorithm: Some(algorithm.name().to_owned()),
        key_bits: algorithm.key_bits(),
        auth: algorithm.auth().map(|auth| auth.name.name().to_owned()),
        icv_bits: algorithm.icv_bits(),
        replay_window: config.replay_window,
        flags: config.flags.names().map(str::to_owned).collect(),
        encap: config.encap,
        moved_to: sa.moved_to(),
        tfcpad: config.tfcpad,
        nat: config.nat,
        selector: config.selector.as_ref().map(Into::into),
        oseq: sa.oseq(),
        seq: sa.replay().top(),
        bitmap: bitmap(sa.replay()),
        mark: mark(config.mark),
        output_mark: mark(config.output_mark),
        if_id: config.if_id,
        limit: (&config.lifetime).into(),
        dying: sa.is_dying(),
        ages: ages(now, sa.added(), sa.first_used()),
        last_used_secs: stats.last_used.map(|used| now.since(used).as_secs()),
        stats: SaStats {
            packets: stats.packets,
            bytes: stats.bytes,
            replay: stats.replay,
            replay_window: stats.replay_window,
            integrity_failed: stats.failed,
        },
    }
}

/// Mark to show; `None` for any.
fn mark(mark: Mark) -> Option<Mark> {
    (mark != Mark::ANY).then_some(mark)
}

fn ages(now: Instant, added: Option<Instant>, used: Option<Instant>) -> Ages {
    let secs = |at: Option<Instant>| at.map(|at| now.since(at).as_secs());
    Ages { add_secs: secs(added), use_secs: secs(used) }
}

/// Bitmap of a replay window: bit `n`, counted from the first word's lowest, stands for the highest number less `n`.
fn bitmap(window: &ReplayWindow) -> Vec<u32> {
    let mut words = vec![0; window.size().div_ceil(u32::BITS) as usize];
    for age in window.seen().map(|seq| (window.top() - seq) as usize) {
        if let Some(word) = words.get_mut(age / 32) {
            *word |= 1 << (age % 32);
        }
    }
    words
}

/// A policy.
pub(crate) fn policy(policy: &Policy, now: Instant) -> PolicyState {
    let config = &policy.config;
    PolicyState {
        dir: config.dir,
        selector: (&config.selector).into(),
        priority: config.priority,
        action: config.action,
        templates: config.templates.iter().map(Into::into).collect(),
        mark: mark(config.mark),
        if_id: config.if_id,
        limit: (&config.lifetime).into(),
        ages: ages(now, policy.added(), policy.used()),
    }
}

pub(crate) fn counters(node: &Node) -> CountersState {
    let datapath = &node.datapath;
    let counters = datapath.counters.iter();
    let copies = node.mem.copies().iter();
    let others = [
        ("IlaTranslated", datapath.ila_translated()),
        ("IlaErrorsRestored", datapath.ila_errors_restored()),
        ("EarlyDemuxHits", datapath.demux_counts.hits),
        ("EarlyDemuxMisses", datapath.demux_counts.misses),
        ("EarlyDemuxFlows", datapath.established().len() as u64),
        ("ShowSlices", node.show_slices.count),
        ("ShowSliceMaxMicros", node.show_slices.longest.as_micros() as u64),
    ];
    let others = others.map(|(name, value)| CounterState { name: name.to_owned(), value });
    CountersState {
        counters: counters.map(counter).chain(others).collect(),
        copies: copies
            .map(|(reason, copied)| CopyState {
                reason: reason.name().to_owned(),
                copies: copied.copies,
                bytes: copied.bytes,
            })
            .collect(),
        forwarded_packets: datapath.forwarded.packets,
        forwarded_bytes: datapath.forwarded.bytes,
    }
}

/// Drops of the datapath and of the links, without removed links.
pub(crate) fn drops(node: &Node) -> Vec<DropState> {
    let mut counts: BTreeMap<(Option<LinkId>, DropReason), u64> = BTreeMap::new();
    let slots = node.slots.iter().enumerate().filter_map(|(at, slot)| Some((LinkId(at as u32), slot.as_ref()?)));
    let by_links = slots.flat_map(|(id, slot)| slot.link.stats().drops().map(move |(reason, n)| (Some(id), reason, n)));
    for (id, reason, n) in node.datapath.ports.drop_counts().chain(by_links) {
        *counts.entry((id, reason)).or_default() += n;
    }
    let states = counts.into_iter().filter_map(|((id, reason), count)| {
        let link = match id {
            Some(id) => Some(node.name_of(id)?),
            None => None,
        };
        Some(DropState { link, reason: reason.name().to_owned(), count })
    });
    states.collect()
}

/// A flow of a socket in a domain.
pub(crate) fn flow(node: &Node, domain: Domain, flow: &FlowKey) -> FlowState {
    FlowState {
        proto: flow.protocol.to_string(),
        local: SocketAddr::new(flow.dst, flow.dport),
        peer: SocketAddr::new(flow.src, flow.sport),
        vrf: domain.vrf_device().and_then(|device| node.name_of(device)),
    }
}

/// An ILA mapping.
pub(crate) fn ila_mapping(node: &Node, mapping: &Mapping) -> IlaState {
    IlaState {
        locator_match: mapping.locator_match,
        locator: mapping.locator,
        interface: mapping.link.map(|link| device_name(node, link)),
        csum_mode: mapping.csum_mode.name().to_owned(),
        ident_type: mapping.ident_type.name().to_owned(),
    }
}

/// Name of a device that may be `lo`.
fn device_name(node: &Node, id: LinkId) -> String {
    let lo = || (id == LinkId::LOOPBACK).then(|| "lo".to_owned());
    node.name_of(id).or_else(lo).unwrap_or_else(|| format!("if{}", node.ifindex(id).0))
}

/// Reassembly state under Linux's names.
pub(crate) fn fragments(reassembly: &Reassembly) -> Vec<FragmentsState> {
    let state = |(version, name): (Version, &str)| {
        let usage = reassembly.usage(version);
        FragmentsState { name: name.to_owned(), inuse: usage.queues as u64, memory: usage.memory as u64 }
    };
    [(Version::V4, "FRAG"), (Version::V6, "FRAG6")].map(state).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base::{Counters, Prefix};
    use ipsec::Ipsec;
    use wire::{FlowKey, Protocol};
    use xfrm::{Flowi, Mode, SaDir};

    use super::*;

    #[test]
    fn acquired_sa_is_shown_until_it_is_added_or_expires() {
        let any = xfrm::Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
        let [src, dst] = ["192.0.2.1", "192.0.2.2"].map(|addr| addr.parse().unwrap());
        let (mode, level) = (xfrm::Mode::Tunnel, xfrm::Level::Required);
        let template = xfrm::Template { src: Some(src), dst: Some(dst), spi: None, mode, reqid: 4, level };
        let policy = xfrm::PolicyConfig { templates: vec![template], ..xfrm::PolicyConfig::new(xfrm::Dir::Out, any) };
        let mut ipsec = Ipsec::new();
        ipsec.add_policy(policy).unwrap();
        ipsec.set_listener(true);
        let [from, to] = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse().unwrap());
        let flow = FlowKey { src: from, dst: to, protocol: Protocol::UDP, sport: 8, dport: 9 };
        let (now, mut counters) = (Instant::ZERO, Counters::default());
        ipsec.lookup(now, &Flowi::from(flow), &mut counters);
        let shown = |ipsec: &Ipsec| ipsec.sad().larvae().map(larval).collect::<Vec<_>>();
        let states = shown(&ipsec);
        let [state] = states.as_slice() else { panic!("{states:?}") };
        assert_eq!((state.src, state.dst, state.spi, state.state.as_str()), (src, dst, 0, "acq"));
        assert_eq!((state.mode, state.reqid, state.dir), (Mode::Tunnel, 4, Some(SaDir::Out)));
        let selector = state.selector.unwrap();
        assert_eq!((selector.src, selector.dst), (Prefix::host(from), Prefix::host(to)));
        assert_eq!((selector.proto, selector.sport, selector.dport), (Some(17), Some(8), Some(9)));
        ipsec.handle_timeout(now + Duration::from_secs(30), &mut counters);
        assert!(shown(&ipsec).is_empty());
    }

    #[test]
    fn a_path_mtu_is_shown_until_it_is_forgotten() {
        let (mut fib, to, now) = (Fib::default(), "192.0.2.2".parse().unwrap(), Instant::ZERO);
        assert!(fib.lower_path_mtu(now, base::Domain::DEFAULT, to, 1400, 1500));
        let at = |secs| pmtus(&fib, now + Duration::from_secs(secs), |_| None);
        assert_eq!(at(17), [PmtuState { to, vrf: None, mtu: 1400, expires_secs: 583 }]);
        assert!(at(600).is_empty());
    }

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

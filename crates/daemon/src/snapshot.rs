//! State of the node's objects, as `fatpath show` and netlink show it.

use std::ops::Range;
use std::time::Duration;

use base::{Mib, PortId, ShardId, TableId};
use config::features::FeatureSet;
use config::model::LinkKind;
use ctl::state::{
    CopyState, CounterState, CountersState, FragmentsState, GuestQueueState, GuestState, IlaEncapState, LinkState,
    LinkStats, NeighbourCountState, NextHopState, OffloadState, PeerErrorState, PolicyCountState, PoolState,
    QdiscState, RingState, RouteState, SaCountState, WorkerState,
};
use datapath::{FatCounts, Port, RxMode, Traffic};
use driver::Resource;
use fib::{NudState, RouteKind};
use ipsec::SaCounts;
use link::{Layer, Offload};
use netlink::rtnl::nums::RTPROT_KERNEL;
use netlink::rtnl::{self, LinkDetail, LinkNow, Vrf};
use packet::Pool;
use reassembly::Reassembly;
use rustix::time::{ClockId, clock_gettime};
use switch::PortStats;
use wire::Version;
use xfrm::Dir;

use super::bridges;
use super::node::{Node, Work};
use super::slot::Slot;
use super::translate::features;

/// Names of the counters of the longest slice, and of the longest one for a client of the view socket.
pub(crate) const LONGEST_SLICE: &str = "ShowSliceMaxMicros";
pub(crate) const LONGEST_VIEWED: &str = "ViewSliceMaxMicros";

/// State of a link or VRF device, if that exists.
pub(crate) fn link_state(node: &Node, id: PortId) -> Option<LinkState> {
    match (node.datapath.ports.get(id), slot(node, id)) {
        (Some(port), Some(slot)) => Some(link(node, id, port, slot)),
        _ => Some(of_vrf(node, id, node.vrfs.get(&id)?)),
    }
}

/// State of a VRF.
fn of_vrf(node: &Node, id: PortId, vrf: &Vrf) -> LinkState {
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
fn vrf_stats(node: &Node, id: PortId) -> LinkStats {
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

fn slot(node: &Node, id: PortId) -> Option<&Slot> {
    node.slots.get(id.0 as usize)?.as_deref()
}

/// Reason why a link that is set up passes no packets.
fn why_down(slot: &Slot) -> Option<String> {
    let failed = slot.down.as_ref().map(|down| down.why.clone());
    failed.or_else(|| (slot.admin_up && !slot.has_carrier).then(|| "no carrier".to_owned()))
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
            queues: slot.link.ring().map(|ring| ring.queues),
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
        queues: None,
        promiscuity: 0,
        allmulti: 0,
        bridging: None,
    });
    links.chain(vrfs).collect()
}

/// Counters of the queueing disciplines.
pub(crate) fn qdiscs(node: &Node) -> Vec<(PortId, qdisc::Stats)> {
    let ports = node.datapath.ports.iter();
    ports.filter_map(|(id, _)| Some((id, node.datapath.qdisc_stats(id)?))).collect()
}

/// A link in the form of `ethtool`.
pub(crate) fn detail(node: &Node, id: PortId) -> Option<LinkDetail> {
    let (port, slot) = (node.datapath.ports.get(id)?, slot(node, id)?);
    let by_path = node.datapath.ports.drop_counts().filter(|&(link, ..)| link == Some(id));
    let drops = by_path.map(|(_, reason, count)| (reason, count)).chain(slot.link.stats().drops());
    let (can, on) = (slot.can, slot.on() | features::always(&*slot.link, &slot.config.kind, slot.esp.is_some()));
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

fn link(node: &Node, id: PortId, port: &Port, slot: &Slot) -> LinkState {
    let on = slot.on();
    let esp_gro = on.has(FeatureSet::ESP_GRO);
    let why = (!esp_gro).then(|| SWITCHED.to_owned());
    let esp_gro = OffloadState { name: "rx-esp-gro".to_owned(), on: esp_gro, why };
    let offloads = slot.link.offloads().iter().map(|found| offload(found, on)).chain([esp_gro]);
    let esp_offload = OffloadState { name: "esp-hw-offload".to_owned(), on: true, why: None };
    let offloads = offloads.chain(slot.esp.is_some().then_some(esp_offload));
    LinkState {
        index: node.ifindex(id).0,
        name: port.config.name.clone(),
        kind: slot.config.kind.word().to_owned(),
        on: match &slot.config.kind {
            LinkKind::Vlan { link, id } => Some(format!("{link} id {id}")),
            kind => match kind.resource() {
                Some(Resource::UdpSocket(bind)) => Some(bind.to_string()),
                Some(Resource::Interface(on) | Resource::VhostSocket(on)) => Some(on.to_owned()),
                Some(Resource::Device) | None => None,
            },
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

fn qdisc_state(node: &Node, id: PortId) -> Option<QdiscState> {
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

/// Counters of a link; for a bridge, the counters of its device. The counters of drops have the sum of [`drops`] of
/// the link: packets that came in by the link, wherever they were dropped, and packets that its device did not send.
fn stats_of(node: &Node, id: PortId, slot: &Slot) -> LinkStats {
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

/// A route of the model in a table, by links with the names of `name`, with its form in the datapath.
pub(crate) fn route(
    table: TableId,
    of_model: &rtnl::Route,
    route: &fib::Route,
    name: impl Fn(u32) -> Option<String>,
) -> RouteState {
    let path = |path: &rtnl::NextHop| NextHopState {
        via: path.via,
        dev: name(path.dev).unwrap_or_default(),
        weight: path.weight,
        dead: path.dead,
    };
    RouteState {
        kind: route.kind.word().to_owned(),
        to: route.prefix,
        via: route.kind.via(),
        dev: name(of_model.dev),
        nexthops: of_model.paths.iter().flat_map(|paths| paths.iter()).map(path).collect(),
        proto: protocol_word(of_model.protocol),
        scope: scope_word(of_model.scope),
        // The source of a route that the node adds for an address is that address.
        src: of_model.src.filter(|_| of_model.protocol != RTPROT_KERNEL),
        metric: route.metric,
        table: table.0,
        encap: encap(route.kind),
    }
}

/// iproute2's name of the origin of a route (`/etc/iproute2/rt_protos`), or its number.
fn protocol_word(protocol: u8) -> String {
    let word = match protocol {
        0 => "unspec",
        1 => "redirect",
        2 => "kernel",
        3 => "boot",
        4 => "static",
        8 => "gated",
        9 => "ra",
        10 => "mrt",
        11 => "zebra",
        12 => "bird",
        13 => "dnrouted",
        14 => "xorp",
        15 => "ntk",
        16 => "dhcp",
        17 => "mrouted",
        18 => "keepalived",
        42 => "babel",
        99 => "openr",
        186 => "bgp",
        187 => "isis",
        188 => "ospf",
        189 => "rip",
        192 => "eigrp",
        number => return number.to_string(),
    };
    word.to_owned()
}

/// iproute2's name of the scope of a route, or its number.
fn scope_word(scope: u8) -> String {
    let word = match scope {
        0 => "global",
        200 => "site",
        253 => "link",
        254 => "host",
        255 => "nowhere",
        number => return number.to_string(),
    };
    word.to_owned()
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

/// Sums of links of a worker.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct LinkSums {
    /// Bytes that wait in their queues.
    pub(crate) waiting: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_wire_packets: u64,
    pub(crate) rx_calls: u64,
    pub(crate) tx_wire_packets: u64,
    pub(crate) tx_calls: u64,
    /// Names of links that have no queue for this worker.
    pub(crate) without_queue: Vec<String>,
}

/// Sums of the links and virtual devices of these numbers. Memory of links is not in a cache: a thousand take some 0.3 ms.
pub(crate) fn link_sums(node: &Node, ids: Range<u32>) -> LinkSums {
    let mut sums = LinkSums::default();
    for id in ids.map(PortId) {
        if let Some(port) = node.datapath.ports.get(id) {
            let backlog = node.datapath.qdisc_stats(id).map_or(0, |stats| stats.backlog);
            sums.waiting += port.tx_bytes() as u64 + backlog;
        }
        let Some(slot) = slot(node, id) else { continue };
        let stats = slot.link.stats();
        sums.rx_packets += stats.rx_packets;
        sums.rx_wire_packets += stats.rx_wire_packets;
        sums.rx_calls += stats.rx_calls;
        sums.tx_wire_packets += stats.tx_wire_packets;
        sums.tx_calls += stats.tx_calls;
        if slot.link.is_elsewhere() {
            sums.without_queue.push(slot.link.name().to_owned());
        }
    }
    sums
}

impl LinkSums {
    /// State of a worker with the sums of its links.
    pub(crate) fn complete(self, worker: WorkerState) -> WorkerState {
        let Self { waiting: _, rx_packets, rx_wire_packets, rx_calls, tx_wire_packets, tx_calls, without_queue } = self;
        WorkerState { rx_packets, rx_wire_packets, rx_calls, tx_wire_packets, tx_calls, without_queue, ..worker }
    }
}

/// State of the node's worker, without the sums of its links.
pub(crate) fn worker(node: &Node) -> WorkerState {
    let (shard, queued) =
        node.shard.as_ref().map_or((ShardId::FIRST, 0), |(shard, handle)| (*shard, handle.queued(*shard)));
    let Work { busy, idle, bursts, wakeups, handed_over, taken_over } = node.work;
    let [sealing, opening] = node.datapath.ipsec.crypto_depths().map(|depth| depth as u64);
    WorkerState {
        worker: shard.0,
        cpu: node.config.worker.cpus.get(usize::from(shard.0)).copied(),
        busy_ns: busy.as_nanos() as u64,
        idle_ns: idle.as_nanos() as u64,
        wakeups,
        bursts,
        rx_packets: 0,
        rx_wire_packets: 0,
        rx_calls: 0,
        tx_wire_packets: 0,
        tx_calls: 0,
        handed_over,
        taken_over,
        queued: queued as u64,
        sealing,
        opening,
        without_queue: Vec::new(),
    }
}

/// Numbers and sums that the parts of a node keep, for a summary: no table is read.
#[derive(Debug)]
pub(crate) struct NodeSummary {
    pub(crate) sas: SaCountState,
    pub(crate) sa_sums: u64,
    pub(crate) policies: PolicyCountState,
    pub(crate) neighbours: Vec<NeighbourCountState>,
    pub(crate) flows: u64,
    pub(crate) fragments: Vec<FragmentsState>,
    pub(crate) memory: NodeMemory,
}

/// The summary of a node, without that of its worker.
pub(crate) fn summary(node: &Node) -> NodeSummary {
    let datapath = &node.datapath;
    let (sad, spd) = (datapath.ipsec.sad(), datapath.ipsec.spd());
    let SaCounts { dying, larval, by_dir } = sad.counts();
    let [inbound, outbound, undirected] = by_dir.map(|count| count as u64);
    let policies = |dir| spd.count(dir) as u64;
    let neighbours = NudState::ALL.into_iter().zip(datapath.neighbours.counts());
    NodeSummary {
        sas: SaCountState {
            valid: (sad.len() - dying) as u64,
            dying: dying as u64,
            larval: larval as u64,
            inbound,
            outbound,
            undirected,
        },
        sa_sums: sad.sum_counts()[0],
        policies: PolicyCountState {
            inbound: policies(Dir::In),
            outbound: policies(Dir::Out),
            forward: policies(Dir::Fwd),
        },
        neighbours: neighbours
            .map(|(state, count)| NeighbourCountState { state: state.name().to_owned(), count: count as u64 })
            .collect(),
        flows: datapath.established().len() as u64,
        fragments: fragments(datapath.reassembly()),
        memory: memory(node),
    }
}

/// Processor time of the calling thread since its start.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
        (LONGEST_SLICE, node.show_slices.longest.as_micros() as u64),
        (LONGEST_VIEWED, node.show_slices.longest_viewed.as_micros() as u64),
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

/// Memory of a node.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    /// Numbers of SAs, policies, permanent neighbours and mappings.
    pub(crate) entries: [u64; 4],
    pub(crate) fragments: u64,
    pub(crate) captures: u64,
    pub(crate) pools: Vec<PoolState>,
}

/// The memory of a node's tables and pools, without that of [queues](LinkSums).
pub(crate) fn memory(node: &Node) -> NodeMemory {
    let datapath = &node.datapath;
    let (ipsec, mem) = (&datapath.ipsec, &node.mem);
    let entries = [ipsec.sad().len(), ipsec.spd().len(), datapath.neighbours.permanent(), datapath.ila().len()];
    let pool = |pool: &Pool| PoolState {
        page_size: pool.page_size() as u64,
        pages: pool.pages() as u64,
        in_use: pool.in_use() as u64,
        bytes: (pool.pages() * pool.page_size()) as u64,
        dry: pool.dry(),
    };
    NodeMemory {
        entries: entries.map(|count| count as u64),
        fragments: fragments(datapath.reassembly()).iter().map(|family| family.memory).sum(),
        captures: node.captures.len() as u64,
        pools: [mem.small(), mem.large()].map(pool).into(),
    }
}

/// Reassembly state under Linux's names.
pub(crate) fn fragments(reassembly: &Reassembly) -> Vec<FragmentsState> {
    let state = |(version, name): (Version, &str)| {
        let usage = reassembly.usage(version);
        FragmentsState { name: name.to_owned(), inuse: usage.queues as u64, memory: usage.memory as u64 }
    };
    [(Version::V4, "FRAG"), (Version::V6, "FRAG6")].map(state).into()
}

//! All that a node does that can be seen, without what shards may do otherwise.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::{Counters, Mib, PortId};
use datapath::{FatCounts, Traffic};
use fib::NudState;
use offload::{Features, fit};
use packet::{Memory, Packet};
use sim::Cluster;
use wire::eth::{EthHeader, EtherType};
use wire::ip::Info;
use wire::{MacAddr, Protocol, arp, icmpv6, nd};

use crate::input::{MAGIC, MARKER_LEN};
use crate::setup::*;

/// Packets of a link that are one flow's, or are no flow's.
type LinkFlow = (u32, Option<u32>);

/// A neighbour: its link and address, its state, its link-layer address, the packets that wait for it.
type SeenNeighbour = ((PortId, IpAddr), NudState, Option<MacAddr>, usize);

/// Counters of a port: its number, fat packets, traffic, and those of IPv6.
type OfPort = (u32, FatCounts, Traffic, Vec<(&'static str, u64)>);

/// All that is compared.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Frames, in order within each flow. Those of no flow are sorted: ARP, neighbour discovery, ICMP errors.
    pub(crate) sent: BTreeMap<LinkFlow, Vec<Vec<u8>>>,
    pub(crate) drops: BTreeMap<(u32, &'static str), u64>,
    counters: Vec<(&'static str, u64)>,
    of_ports: Vec<OfPort>,
    forwarded: [u64; 2],
    translated: u64,
    neighbours: Vec<SeenNeighbour>,
}

/// Counters of packets that depend on how many were coalesced.
const OF_SIZES: [&str; 14] = [
    "IpInReceives",
    "IpInDelivers",
    "IpForwDatagrams",
    "IpOutRequests",
    "IpOutTransmits",
    "Ip6InReceives",
    "Ip6InDelivers",
    "Ip6OutForwDatagrams",
    "Ip6OutRequests",
    "Ip6OutTransmits",
    "IpExtInOctets",
    "IpExtOutOctets",
    "Ip6InOctets",
    "Ip6OutOctets",
];

impl Outcome {
    /// Outcome of a node since the last call, and the sums of its counters.
    pub(crate) fn take(cluster: &mut Cluster, setup: &Setup) -> Self {
        let mut sent: BTreeMap<LinkFlow, Vec<Vec<u8>>> = BTreeMap::new();
        let mem = Memory::heap();
        for (link, pkt) in cluster.take_sent() {
            for frame in frames(&mem, link, pkt) {
                sent.entry((link.0, flow_of(link, &frame))).or_default().push(frame);
            }
        }
        sent.iter_mut().filter(|((_, flow), _)| flow.is_none()).for_each(|(_, frames)| frames.sort_unstable());
        let is_compared = |name: &str| !setup.gro || !OF_SIZES.contains(&name);
        let moved = |counters: Counters| {
            let all = counters.iter().map(|(mib, n)| (Mib::name(mib), n));
            all.filter(|&(name, n)| n > 0 && is_compared(name)).collect::<Vec<_>>()
        };
        let of_ports = PORTS.map(|port| {
            let (fat, traffic) = match setup.gro {
                false => (cluster.fat(port), cluster.traffic(port)),
                true => (FatCounts::default(), Traffic::default()),
            };
            (port.0, fat, traffic, moved(cluster.counters_of(port)))
        });
        let mut neighbours: Vec<SeenNeighbour> = cluster
            .first()
            .neighbours
            .iter()
            .map(|it| ((it.link, it.addr), it.state, it.mac, if setup.gro { 0 } else { it.queued }))
            .collect();
        neighbours.sort_unstable_by_key(|it| it.0);
        Self {
            sent,
            drops: cluster.drops(),
            counters: moved(cluster.counters()),
            of_ports: of_ports.into(),
            forwarded: if setup.gro { [0; 2] } else { cluster.forwarded() },
            translated: if setup.gro { 0 } else { cluster.nodes().map(|node| node.datapath.ila_translated()).sum() },
            neighbours,
        }
    }

    /// Tells whether a limit was reached: rates of errors are each shard's own, and which packet of several flows a full queue drops is
    /// a matter of their order.
    pub(crate) fn is_limited(&self) -> bool {
        self.drops.keys().any(|(_, reason)| reason.ends_with("RateLimited") || *reason == "NeighbourQueueFull")
    }

    /// Targets of the node's solicitations.
    pub(crate) fn solicited(&self) -> Vec<(PortId, IpAddr)> {
        let of_no_flow = self.sent.iter().filter(|((_, flow), _)| flow.is_none());
        let frames = of_no_flow.flat_map(|(&(link, _), frames)| frames.iter().map(move |frame| (PortId(link), frame)));
        frames.filter_map(|(link, frame)| solicited(link, frame)).collect()
    }

    /// The first difference from another outcome.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let flows = self.sent.keys().chain(other.sent.keys());
        for flow in flows {
            let none = Vec::new();
            let [here, there] = [self, other].map(|it| it.sent.get(flow).unwrap_or(&none));
            if here != there {
                let show =
                    |frames: &[Vec<u8>]| frames.iter().map(|frame| format!("\n  {}", hex(frame))).collect::<String>();
                let at = here.iter().zip(there).take_while(|(here, there)| here == there).count();
                let is_order = {
                    let mut sorted = [here.clone(), there.clone()];
                    sorted.iter_mut().for_each(|it| it.sort_unstable());
                    sorted[0] == sorted[1]
                };
                return Some(format!(
                    "sent by {flow:?}{}: {} frames, not {}, from number {at} on:{}\nnot:{}",
                    if is_order { " in another order" } else { "" },
                    there.len(),
                    here.len(),
                    show(&there[at.min(there.len())..]),
                    show(&here[at.min(here.len())..]),
                ));
            }
        }
        let named =
            |name: &str, here: String, there: String| (here != there).then(|| format!("{name}: {there}\nnot {here}"));
        named("drops", format!("{:?}", self.drops), format!("{:?}", other.drops))
            .or_else(|| named("neighbours", format!("{:?}", self.neighbours), format!("{:?}", other.neighbours)))
            .or_else(|| named("counters", format!("{:?}", self.counters), format!("{:?}", other.counters)))
            .or_else(|| named("ports", format!("{:?}", self.of_ports), format!("{:?}", other.of_ports)))
            .or_else(|| named("all", format!("{self:?}"), format!("{other:?}")))
    }
}

fn hex(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(90)];
    shown.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + &format!(" ({})", bytes.len())
}

/// Length of the link-layer headers of a frame that a link sends, with its tags.
fn l3_of(link: PortId, frame: &[u8]) -> usize {
    if mac_of(link).is_none() {
        return 0;
    }
    let is_tagged = EthHeader::ref_from(frame).is_ok_and(|header| header.ethertype() == EtherType::VLAN);
    EthHeader::LEN + if is_tagged { 4 } else { 0 }
}

/// Frames of a cable for a packet that a link sends, without what no other node chooses again.
fn frames(mem: &Memory, link: PortId, pkt: Packet) -> Vec<Vec<u8>> {
    pkt.check_invariants();
    let l3 = l3_of(link, pkt.head());
    let mut out = Vec::new();
    fit(mem, &Features::NONE, pkt, l3, &mut out).expect("a packet that the device can cut");
    out.iter().map(|frame| without_id(frame.to_vec(), l3)).collect()
}

/// A frame without the identification that the node has chosen for a packet of its own.
fn without_id(mut frame: Vec<u8>, l3: usize) -> Vec<u8> {
    let Some(ip) = frame.get_mut(l3..) else { return frame };
    let Ok(info) = Info::parse(ip, ip.len()) else { return frame };
    let is_own = match info.src {
        IpAddr::V4(addr) => addr.octets()[3] == 254,
        IpAddr::V6(addr) => addr.segments()[7] == 0x254,
    };
    if is_own && ip[0] >> 4 == 4 {
        ip[4..6].fill(0);
        ip[10..12].fill(0);
    } else if is_own && ip[6] == 44 {
        ip[44..48].fill(0);
    }
    frame
}

/// The flow whose marker a packet carries; `None` for ARP, neighbour discovery and ICMP errors.
fn flow_of(link: PortId, frame: &[u8]) -> Option<u32> {
    let ip = &frame[l3_of(link, frame)..];
    let info = Info::parse(ip, ip.len()).ok()?;
    let payload = ip.get(info.header_len..)?;
    let is_error = match info.protocol {
        Protocol::ICMP => {
            info.fragment.is_none_or(wire::FragInfo::is_first) && matches!(payload.first(), Some(3 | 11 | 12))
        }
        Protocol::ICMPV6 => {
            info.fragment.is_none_or(wire::FragInfo::is_first) && payload.first().is_some_and(|&kind| kind < 128)
        }
        _ => false,
    };
    if is_error {
        return None;
    }
    let at = payload.windows(MARKER_LEN).position(|window| window.starts_with(&MAGIC))?;
    let [a, b, c] = [3, 4, 5].map(|nth| payload[at + nth]);
    Some(u32::from_be_bytes([0, a, b, c]))
}

/// Target of a solicitation, and the link whose station it is for.
fn solicited(link: PortId, frame: &[u8]) -> Option<(PortId, IpAddr)> {
    let l3 = l3_of(link, frame);
    let link = if link == ETHERNET && l3 > EthHeader::LEN { VLAN } else { link };
    let ethertype = u16::from_be_bytes([*frame.get(l3.checked_sub(2)?)?, *frame.get(l3 - 1)?]);
    let payload = &frame[l3..];
    if ethertype == EtherType::ARP.0 {
        let arp = arp::ArpHeader::parse(payload).ok()?;
        return (arp.operation() == arp::Operation::REQUEST).then(|| (link, arp.target_ip().into()));
    }
    let info = Info::parse(payload, payload.len()).ok()?;
    let message = payload.get(info.header_len..)?;
    let is_solicitation = info.protocol == Protocol::ICMPV6 && message.first() == Some(&nd::NEIGHBOUR_SOLICIT);
    let _ = icmpv6::Icmpv6Header::LEN;
    is_solicitation.then(|| nd::Neighbour::ref_from(message).ok().map(|it| (link, it.target().into())))?
}

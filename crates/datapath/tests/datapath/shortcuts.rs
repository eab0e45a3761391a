//! Shortcuts: for any burst, all observable results are equal with the shortcuts on and off.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use base::{Domain, DropReason, Mib, PortId};
use datapath::{FatCounts, PortConfig, TapPoints, Tapped, TraceFilter, Traffic, host_port};
use ila::{CsumMode, IdentType, Locator, Mapping, MappingKey};
use packet::{Cut, Packet};
use sim::{Flow, Node, PortOptions, Rng, link_pair, policy};
use wire::Spi;
use xfrm::Dir;

use crate::common::*;
use crate::fragments::fragments;
use crate::gateways::*;

/// Link, and the parts of a packet that identify its flow.
type LinkFlow = (u32, Vec<u8>);

/// Counters that are not 0.
type Moved = Vec<(&'static str, u64)>;

/// All observable results of a node.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Packets by link and flow: the order in which GRO flushes flows does not matter.
    sent: BTreeMap<LinkFlow, Vec<(usize, u64, Cut)>>,
    counters: Moved,
    of_links: Vec<(u32, FatCounts, Traffic, Moved)>,
    drops: Vec<(u32, DropReason, u64)>,
    forwarded: (u64, u64),
    captured: BTreeMap<LinkFlow, Vec<(bool, bool, usize, u64)>>,
    /// Packets for the host side, by flow.
    up: BTreeMap<Vec<u8>, Vec<(usize, u64)>>,
    /// Number of steps in traces, by kind of step.
    traced: BTreeMap<String, usize>,
    sas: Vec<(Spi, ipsec::SaStats, u64)>,
}

impl Seen {
    /// Sums refusals by ESP: which of two faults of a packet is found first depends on whether the packet before it
    /// with its number is still in flight.
    fn sum_refusals(&mut self) {
        let is_refusal = |name: &str| matches!(name, "XfrmInStateSeqError" | "XfrmInStateProtoError");
        let refused = self.counters.iter().filter(|(name, _)| is_refusal(name)).map(|(_, n)| n).sum();
        self.counters.retain(|(name, _)| !is_refusal(name));
        self.counters.push(("refused", refused));
        let is_fault = |reason| matches!(reason, DropReason::EspIcv | DropReason::EspReplay | DropReason::EspTruncated);
        let faults = self.drops.iter().filter(|(_, reason, _)| is_fault(*reason)).map(|(.., n)| n).sum();
        self.drops.retain(|(_, reason, _)| !is_fault(*reason));
        self.drops.push((OUTSIDE.0, DropReason::EspIcv, faults));
        for (_, stats, _) in &mut self.sas {
            stats.failed += std::mem::take(&mut stats.replay) + std::mem::take(&mut stats.replay_window);
        }
    }

    /// Removes results that depend on the sizes of super-packets.
    fn forget_sizes(&mut self) {
        const PACKETS: [&str; 4] = ["IpInReceives", "IpForwDatagrams", "Ip6InReceives", "Ip6OutForwDatagrams"];
        self.counters.retain(|(name, _)| !PACKETS.contains(name));
        self.of_links.clear();
        self.forwarded = (0, 0);
        self.sent.retain(|(link, _), _| *link == OUTSIDE.0);
        // On the wire each segment is a packet of its own.
        self.captured.values_mut().for_each(|packets| packets.retain(|&(is_fat, ..)| !is_fat));
        self.traced.clear();
    }
}

/// Hash of bytes, for failure messages. Identifications of fragments are random, and left out.
fn hash(bytes: &[u8], is_fragment: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes[if is_fragment { 48.min(bytes.len()) } else { 0 }..].hash(&mut hasher);
    hasher.finish()
}

/// The packet without the identification that the node has chosen for it at random: that of IPv4 without Don't Fragment.
fn without_id(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 20 && bytes[0] >> 4 == 4 && bytes[6] & 0x40 == 0 {
        bytes[4..6].fill(0);
        bytes[10..12].fill(0);
    }
    bytes
}

/// Tells whether an IP packet is a fragment.
fn is_fragment(bytes: &[u8]) -> bool {
    if bytes[0] >> 4 == 4 { bytes[6] & 0x3f != 0 || bytes[7] != 0 } else { bytes[6] == 44 }
}

/// Addresses of an IP packet, and the bytes behind its header.
fn flow_of(bytes: &[u8]) -> Vec<u8> {
    let range = if bytes[0] >> 4 == 4 { 12..24 } else { 8..44 };
    bytes[range.start.min(bytes.len())..range.end.min(bytes.len())].to_vec()
}

fn seen(node: &mut Node) -> Seen {
    let mut sent: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for link in [INSIDE, OUTSIDE] {
        for pkt in node.tx(link) {
            let bytes = without_id(pkt.to_vec());
            let shape = (bytes.len(), hash(&bytes, pkt.meta.cut == Cut::Fragment), pkt.meta.cut);
            // Fragments have no ports.
            let flow = if pkt.meta.cut == Cut::Fragment { Vec::new() } else { flow_of(&bytes) };
            sent.entry((link.0, flow)).or_default().push(shape);
        }
    }
    let moved = |counters: &base::Counters| {
        let all = Mib::ALL.iter().map(|&mib| (mib.name(), counters.get(mib)));
        all.filter(|&(_, n)| n > 0).collect::<Vec<_>>()
    };
    // The only counter that shows a shortcut.
    let fat = |fat| FatCounts { rx_esp_gro_packets: 0, ..fat };
    let of_links = node
        .datapath
        .ports
        .iter()
        .map(|(id, port)| (id.0, fat(port.fat), port.traffic, moved(&port.counters)))
        .collect();
    let mut captured: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for Tapped { link, fat, outbound, bytes } in node.datapath.take_tapped() {
        let bytes = if outbound { without_id(bytes) } else { bytes };
        let shape = (fat, outbound, bytes.len(), hash(&bytes, outbound && is_fragment(&bytes)));
        captured.entry((link.0, flow_of(&bytes))).or_default().push(shape);
    }
    let mut up: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for pkt in node.datapath.take_tx(host_port(OUTSIDE)).map(std::mem::take).unwrap_or_default() {
        let bytes = pkt.to_vec();
        up.entry(flow_of(&bytes)).or_default().push((bytes.len(), hash(&bytes, false)));
    }
    let mut traced = BTreeMap::new();
    for step in node.datapath.take_trace() {
        let text = format!("{:?}", step.step);
        let kind = text.split([' ', '(']).next().unwrap_or_default();
        *traced.entry(kind.to_owned()).or_default() += 1;
    }
    Seen {
        sent,
        counters: moved(&node.datapath.counters),
        of_links,
        drops: node.drops(),
        forwarded: (node.datapath.forwarded.packets, node.datapath.forwarded.bytes),
        captured,
        up,
        traced,
        sas: node.datapath.ipsec.sad().iter().map(|sa| (sa.spi(), sa.stats(), sa.replay().top())).collect(),
    }
}

const NETS: [(&str, &str); 2] = [("10.1.0.0/16", "10.2.0.0/16"), ("fd00:1::/32", "fd00:2::/32")];

/// A receiver with a tunnel for each family, whose inner link is captured.
fn receiver() -> Node {
    let mut far = Node::new();
    far.port(INSIDE.0, PortOptions::BARE.mtu(9000), &["10.2.0.254/16", "fd00:2::254/32"]);
    far.port(OUTSIDE.0, PortOptions::BARE, &["192.0.2.2/24", "2001:db8::2/64"]);
    for (nth, (src, dst)) in NETS.into_iter().enumerate() {
        let sas = [TUNNELS[0], TUNNELS[2]][nth].sas(0);
        far.datapath.ipsec.add_sa(&sas[0], sim::unique_mask()).unwrap();
        for dir in [Dir::In, Dir::Fwd] {
            far.datapath.ipsec.add_policy(policy(dir, src, dst, &sas[..1])).unwrap();
        }
    }
    far.datapath.set_tap(INSIDE, TapPoints { wire: true, fat: true });
    far
}

/// Device of the VRF that [`change`] puts the outer link into.
const RED: PortId = PortId(9);

/// Toggles one condition of the shortcuts: a capture, a trace, the outer link's VRF, its device of the host side, an ILA mapping of
/// the node's address, one of another, and one of decrypted packets' destination.
fn change(node: &mut Node, which: usize, is_on: bool) {
    let datapath = &mut node.datapath;
    match which {
        0 => datapath.set_tap(OUTSIDE, TapPoints { wire: is_on, fat: is_on }),
        1 => datapath.set_trace(is_on.then(TraceFilter::default), 50),
        2 => {
            datapath.fib.set_vrf(RED, Some(fib::Vrf { table: base::TableId(10), up: true }));
            datapath.set_vrf_port(NOW, RED, Some(("red".to_owned(), 1500)));
            datapath.fib.set_domain(OUTSIDE, if is_on { Domain::vrf(RED) } else { Domain::DEFAULT });
        }
        4 => set_mapping(node, is_on, "2001:db8::"),
        5 => set_mapping(node, is_on, "2001:db8:0:7::"),
        6 => set_mapping(node, is_on, "fd00:2::"),
        _ => {
            let config = PortConfig { name: "up".to_owned(), ..datapath.ports.get(OUTSIDE).unwrap().config.clone() };
            datapath.set_host_port(OUTSIDE, is_on.then_some(config));
        }
    }
}

/// Adds or removes the ILA mapping of a locator to one that is no node's.
fn set_mapping(node: &mut Node, is_on: bool, of: &str) {
    let [locator_match, locator] = [of, "2001:db8:0:8::"].map(|address| Locator::of(address.parse().unwrap()));
    node.datapath.remove_ila(MappingKey::of_locator(locator_match, None));
    if is_on {
        let (csum_mode, ident_type) = (CsumMode::NeutralMap, IdentType::Luid);
        let mapping = Mapping { locator_match, identifier: None, locator, link: None, csum_mode, ident_type };
        node.datapath.add_ila(mapping).unwrap();
    }
}

/// ESP packets that the receiver has decrypted by the shortcut, of twelve of each family.
fn esp_gro_packets(mapping: Option<&str>) -> u64 {
    let (mut near, mut elsewhere, mut far) = (gateways(sim::Medium::Cable, 1).nodes.remove(0), Node::new(), receiver());
    if let Some(of) = mapping {
        set_mapping(&mut far, true, of);
    }
    let flows = [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")];
    for (nth, flow) in flows.iter().enumerate() {
        link_pair(&mut near, &mut elsewhere, NETS[nth], &[[TUNNELS[0], TUNNELS[2]][nth].sas(0).remove(0)]);
        for segment in 0..12 {
            near.rx_bytes(NOW, INSIDE, &flow.tcp(segment * 3000, 1000));
            for sealed in near.tx(OUTSIDE) {
                far.rx_bytes(NOW, OUTSIDE, &sealed.to_vec());
            }
        }
    }
    far.datapath.ports.get(OUTSIDE).unwrap().fat.rx_esp_gro_packets
}

#[test]
fn esp_takes_the_shortcut_unless_its_address_has_a_mapping() {
    // The first packet of each SA makes its template.
    assert_eq!(esp_gro_packets(None), 22);
    assert_eq!(esp_gro_packets(Some("2001:db8:0:7::")), 22, "a mapping of another address");
    assert_eq!(esp_gro_packets(Some("2001:db8::")), 11, "the packets of IPv4");
}

/// Frames for that receiver: ESP of two flows, pings to it, and fragments of ESP, of pings and of packets for others.
/// Segments of the flows lie `stride` bytes apart.
fn frames(rng: &mut Rng, stride: u32) -> Vec<Vec<u8>> {
    let mut near = gateways(sim::Medium::Cable, 1).nodes.remove(0);
    let mut elsewhere = Node::new();
    let flows = [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")];
    let plain = [Flow::new("192.0.2.1", "192.0.2.2"), Flow::new("2001:db8::1", "2001:db8::2")];
    let mut all: Vec<Vec<u8>> = Vec::new();
    for nth in 0..2 {
        link_pair(&mut near, &mut elsewhere, NETS[nth], &[[TUNNELS[0], TUNNELS[2]][nth].sas(0).remove(0)]);
        for segment in 0..12 {
            near.rx_bytes(NOW, INSIDE, &flows[nth].tcp(segment * stride, 1000));
            let sealed: Vec<Vec<u8>> = near.tx(OUTSIDE).iter().map(Packet::to_vec).collect();
            let in_fragments = rng.happens(200);
            for bytes in sealed {
                match in_fragments {
                    true => all.extend(fragments(&near.mem, &bytes, 600).iter().map(Packet::to_vec)),
                    false => all.push(bytes),
                }
            }
        }
        all.push(plain[nth].ping(1, 40));
        all.extend(fragments(&near.mem, &plain[nth].ping(2, 4000), 1280).iter().map(Packet::to_vec));
        all.extend(fragments(&near.mem, &flows[nth].udp(3000), 1280).iter().map(Packet::to_vec));
    }
    for _ in 0..rng.below(10) {
        let at = rng.below(all.len());
        if rng.happens(500) {
            let len = 1 + rng.below(all[at].len());
            all[at].truncate(len);
            continue;
        }
        let byte = rng.below(all[at].len().min(80));
        all[at][byte] ^= 1 << rng.below(8);
    }
    for _ in 0..rng.below(10) {
        let at = rng.below(all.len());
        let other = rng.below(all.len());
        if rng.happens(500) {
            all.swap(at, other);
        } else {
            all.insert(at, all[other].clone());
        }
    }
    all
}

#[test]
fn bursts_with_and_without_shortcuts_look_the_same() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        // Segments with gaps are not coalesced. Others are, in sizes that depend on the packets in flight.
        let is_coalesced = seed % 2 == 0;
        let mut rest = frames(&mut rng, if is_coalesced { 1000 } else { 3000 });
        let [mut with, mut without] = [receiver(), receiver()];
        without.datapath.set_shortcuts(false);
        if seed % 3 == 1 {
            // A capture disables the shortcuts.
            for node in [&mut with, &mut without] {
                node.datapath.set_tap(OUTSIDE, TapPoints { wire: true, fat: true });
            }
        }
        while !rest.is_empty() {
            let later = rest.split_off((1 + rng.below(60)).min(rest.len()));
            for node in [&mut with, &mut without] {
                let burst = rest.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
                node.rx(NOW, OUTSIDE, burst);
            }
            rest = later;
            // A change in mid-flow, except for a third of the seeds.
            if seed % 3 != 0 && rng.happens(300) {
                let (which, is_on) = (rng.below(7), rng.happens(500));
                for node in [&mut with, &mut without] {
                    change(node, which, is_on);
                }
            }
        }
        let [mut with, mut without] = [seen(&mut with), seen(&mut without)];
        with.sum_refusals();
        without.sum_refusals();
        if is_coalesced {
            with.forget_sizes();
            without.forget_sizes();
        }
        assert_eq!(with.counters, without.counters, "seed {seed}");
        assert_eq!(with.drops, without.drops, "seed {seed}");
        let parts = [
            with.sent == without.sent,
            with.of_links == without.of_links,
            with.forwarded == without.forwarded,
            with.captured == without.captured,
            with.up == without.up,
            with.traced == without.traced,
            with.sas == without.sas,
        ];
        assert_eq!(parts, [true; 7], "seed {seed}: sent, counters of links, forwarded, captured, up, traced, SAs");
        assert_eq!(with, without, "seed {seed}");
    }
}

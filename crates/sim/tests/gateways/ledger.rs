//! Ledger of every packet from its sending host, over the wires, to its receiving host.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::net::IpAddr;

use base::{Counters, Instant};
use offload::{Features, fit};
use packet::{Csum, Memory, Packet};
use reassembly::{Reassembly, ReassemblyContext, Verdict};
use wire::ip::Info;
use wire::{Protocol, icmp, icmpv6};

/// Identity of a packet: the fields that do not change in transit.
pub(crate) type Unit = u64;

/// Both directions.
pub(crate) struct Ledger {
    pub(crate) mem: Memory,
    pub(crate) ways: [Way; 2],
}

/// All packets from one host to the other.
#[derive(Default)]
pub(crate) struct Way {
    units: HashMap<Unit, Count>,
    flows: HashMap<u16, Order>,
    /// Datagrams that may be fragmented in transit, by the common fields of their fragments.
    may_be_cut: HashMap<Common, (u16, Unit)>,
    /// The complete datagrams, as the receiver reassembles them.
    wholes: HashSet<Unit>,
    /// Datagrams that a gateway fragmented on a wire.
    cut: HashSet<Unit>,
    reassembly: Reassembly,
    /// Messages that hosts sent in one piece, by the first packet of each.
    messages: HashMap<Unit, Vec<Unit>>,
    /// Number of delivered packets, reassembled datagrams, and returned ICMP errors.
    pub(crate) delivered: u64,
    pub(crate) reassembled: u64,
    pub(crate) errors: u64,
}

/// Source, destination, protocol and identification.
type Common = (IpAddr, IpAddr, Protocol, u32);

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    flow: u16,
    sent: u64,
    on_wire: u64,
    delivered: u64,
}

/// One flow, in the order of sending and arrival.
#[derive(Debug, Default)]
struct Order {
    sent: Vec<Unit>,
    /// Position in `sent` of the packets that were put on each wire.
    on_wire: [usize; 2],
    arrived: Vec<Unit>,
    /// Position in `arrived` up to which packets are delivered.
    delivered: usize,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self { mem: Memory::heap(), ways: [Way::default(), Way::default()] }
    }

    /// Records a packet, fat or not, that a host sends.
    pub(crate) fn send(&mut self, from: usize, flow: u16, pkt: &Packet) {
        let way = &mut self.ways[from];
        let units: Vec<Unit> = cut(&self.mem, pkt).iter().map(|packet| way.send(flow, packet)).collect();
        way.messages.insert(units[0], units);
    }

    /// Records a datagram that the receiver may have to reassemble.
    pub(crate) fn may_be_cut(&mut self, from: usize, flow: u16, whole: &[u8]) {
        let way = &mut self.ways[from];
        let unit = unit_of(whole);
        way.wholes.insert(unit);
        if let Some(common) = common(whole) {
            assert!(way.may_be_cut.insert(common, (flow, unit)).is_none(), "identification used twice");
        }
    }

    /// Checks a packet, fat or not, that a host receives.
    pub(crate) fn deliver(&mut self, now: Instant, to: usize, pkt: Packet) {
        let info = Info::parse(pkt.head(), pkt.len()).expect("a packet");
        let way = &mut self.ways[1 - to];
        if is_error(&pkt, &info) {
            let host_bits = if info.src.is_ipv4() { "0.254" } else { "::254" };
            assert!(info.src.to_string().ends_with(host_bits), "an error from {}", info.src);
            self.ways[to].errors += 1;
            return;
        }
        if pkt.meta.cut.gso().is_none() && matches!(pkt.meta.csum, Csum::None) && info.fragment.is_none() {
            assert!(offload::checksum::verify(&pkt, &info), "a wrong checksum: {pkt:?}");
        }
        for packet in cut(&self.mem, &pkt) {
            way.deliver(&packet);
        }
        if info.fragment.is_some() {
            let mut counters = Counters::ZERO;
            let verdict =
                way.reassembly.handle_fragment(now, &self.mem, ReassemblyContext::LOCAL, pkt, &info, &mut counters);
            match verdict {
                Verdict::Whole { pkt: whole, .. } => {
                    assert!(way.wholes.contains(&unit_of(&whole.to_vec())), "put together wrongly: {whole:?}");
                    way.reassembled += 1;
                }
                Verdict::Held => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

impl Way {
    fn send(&mut self, flow: u16, packet: &[u8]) -> Unit {
        let unit = unit_of(packet);
        let count = self.units.entry(unit).or_insert(Count { flow, ..Count::default() });
        assert_eq!(count.flow, flow, "two flows send the same");
        count.sent += 1;
        self.flows.entry(flow).or_default().sent.push(unit);
        unit
    }

    /// Checks a packet that was sealed into a frame: a host sent the packet, not before the packets already on that
    /// wire.
    pub(crate) fn put_on_wire(&mut self, wire: usize, packet: &[u8]) -> Unit {
        let unit = unit_of(packet);
        let (flow, sent) = match self.units.get_mut(&unit) {
            Some(count) if count.sent > 0 => {
                count.on_wire += 1;
                assert!(count.on_wire <= count.sent, "sealed more often than sent: {packet:02x?}");
                (count.flow, unit)
            }
            // A gateway has fragmented the packet.
            _ => {
                let of = common(packet).and_then(|common| self.may_be_cut.get(&common));
                let &(flow, whole) = of.unwrap_or_else(|| panic!("not sent by an end: {packet:02x?}"));
                let count = self.units.entry(unit).or_insert(Count { flow, ..Count::default() });
                count.on_wire += 1;
                assert_eq!(count.on_wire, 1, "sealed twice: {packet:02x?}");
                self.cut.insert(whole);
                (flow, whole)
            }
        };
        let order = self.flows.get_mut(&flow).expect("a flow that was sent");
        let from = order.on_wire[wire];
        if from == 0 || order.sent[from - 1] != sent || sent == unit {
            let next = order.sent[from..].iter().position(|&other| other == sent);
            order.on_wire[wire] =
                from + 1 + next.unwrap_or_else(|| panic!("flow {flow} overtakes itself: {packet:02x?}"));
        }
        unit
    }

    /// Records that a frame with this packet has reached the other gateway undamaged.
    pub(crate) fn arrive(&mut self, unit: Unit) {
        let flow = self.units[&unit].flow;
        self.flows.get_mut(&flow).expect("a flow that was sent").arrived.push(unit);
    }

    fn deliver(&mut self, packet: &[u8]) {
        let unit = unit_of(packet);
        let count = self.units.get_mut(&unit).unwrap_or_else(|| panic!("delivered but not sent: {packet:02x?}"));
        count.delivered += 1;
        assert!(count.delivered <= count.on_wire, "delivered more often than sent: {count:?} {packet:02x?}");
        self.delivered += 1;
        let order = self.flows.get_mut(&count.flow).expect("a flow that was sent");
        let next = order.arrived[order.delivered..].iter().position(|&other| other == unit);
        order.delivered += 1 + next.unwrap_or_else(|| panic!("delivered out of order: {packet:02x?}"));
    }

    /// Number of fat or single packets of a host that were not completely on a wire, as a packet or in fragments.
    pub(crate) fn missing(&self) -> u64 {
        let missing = |unit: &Unit| match (self.cut.contains(unit), self.units[unit]) {
            (true, _) => 0,
            (false, Count { sent, on_wire, .. }) => sent - on_wire,
        };
        self.messages.values().filter_map(|units| units.iter().map(missing).max()).sum()
    }

    /// Discards datagrams with lost fragments.
    pub(crate) fn finish(&mut self) {
        self.reassembly = Reassembly::default();
    }
}

/// The wire packets of a fat packet.
fn cut(mem: &Memory, pkt: &Packet) -> Vec<Vec<u8>> {
    let mut copy = Packet::with_data(mem, &pkt.to_vec()).expect("memory");
    (copy.meta.csum, copy.meta.cut) = (pkt.meta.csum, pkt.meta.cut);
    let mut out = Vec::new();
    fit(mem, &Features::NONE, copy, 0, &mut out).expect("a packet that can be cut");
    out.iter().map(Packet::to_vec).collect()
}

/// Hash of a packet without the fields that routers change, and without an identification that is never compared (RFC
/// 6864 §4.1).
fn unit_of(packet: &[u8]) -> Unit {
    let mut bytes = packet.to_vec();
    if bytes[0] >> 4 == 4 {
        bytes[8] = 0;
        bytes[10..12].fill(0);
        if bytes[6] == 0x40 && bytes[7] == 0 {
            bytes[4..6].fill(0);
        }
    } else {
        bytes[7] = 0;
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}

/// Common fields of the fragments of an IPv4 packet.
fn common(packet: &[u8]) -> Option<Common> {
    let info = Info::parse(packet, packet.len()).ok()?;
    let id = u32::from(u16::from_be_bytes([packet[4], packet[5]]));
    info.src.is_ipv4().then_some((info.src, info.dst, info.protocol, id))
}

/// Tells whether a packet is an ICMP error: too big, or an unreachable neighbour.
fn is_error(pkt: &Packet, info: &Info) -> bool {
    let message = info.payload(pkt.head());
    match info.protocol {
        Protocol::ICMP => matches!(
            icmp::IcmpHeader::ref_from(message).ok().and_then(icmp::IcmpHeader::message),
            Some(icmp::IcmpMessage::FragNeeded { .. } | icmp::IcmpMessage::Unreachable(_))
        ),
        Protocol::ICMPV6 => matches!(
            icmpv6::Icmpv6Header::ref_from(message).ok().and_then(icmpv6::Icmpv6Header::message),
            Some(icmpv6::Icmpv6Message::PacketTooBig { .. } | icmpv6::Icmpv6Message::Unreachable(_))
        ),
        _ => false,
    }
}

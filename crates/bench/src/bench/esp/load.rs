//! Traffic through the gateways.

use std::net::{IpAddr, Ipv4Addr};

use packet::{Csum, Cut, Memory, Meta, Packet};
use sim::Flow;
use wire::{ipv4, udp};

use super::setting::{STREAMS, Traffic, Way};
use crate::bench::case::Load;

/// Addresses and ports of the traffic.
pub(super) const FLOW: Flow = Flow {
    src: IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1)),
    dst: host(0),
    sport: 40_000,
    dport: 5201,
    ttl: 64,
    dont_fragment: true,
};

/// The destination host of a stream.
const fn host(stream: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 2, stream, 1))
}

/// Super-packets, or bursts of small packets, in one turn.
const TRAINS: usize = 4;

/// Number of packets that a link delivers at once.
pub(super) const BURST: usize = 64;

/// Maximum length of an IP packet, and so of a super-packet.
const LONGEST: usize = 65_535;

/// Length of a small packet, with its headers.
const SMALL: usize = 64;

/// One packet from a device, which is repeated.
#[derive(Debug)]
struct Template {
    bytes: Vec<u8>,
    meta: Meta,
}

/// Source of the packets of one turn.
#[derive(Debug)]
pub(super) struct Source {
    templates: Vec<Template>,
}

impl Traffic {
    /// Traffic of one turn, with an MTU of `mtu` bytes.
    pub(super) fn load(self, mtu: usize) -> Load {
        match self {
            Self::SuperPackets | Self::Streams | Self::Sas => {
                let (segs, size) = segments(mtu);
                Load { packets: TRAINS * segs, payload: TRAINS * segs * size, small: false }
            }
            Self::Small => {
                let packets = TRAINS * BURST;
                Load { packets, payload: packets * (SMALL - ipv4::Ipv4Header::LEN - udp::UdpHeader::LEN), small: true }
            }
        }
    }
}

/// Number of segments of a super-packet, and the bytes of payload of each.
fn segments(mtu: usize) -> (usize, usize) {
    let headers = FLOW.tcp_headers();
    let size = mtu - headers;
    ((LONGEST - headers) / size, size)
}

impl Source {
    /// The packets of `traffic` from devices with an MTU of `mtu` bytes, for gateways in the configuration `way`.
    pub(super) fn new(mtu: usize, way: Way, traffic: Traffic) -> Self {
        let (segs, size) = segments(mtu);
        let seq = |segment: usize| (1 + segment * size) as u32;
        // Interleaved segments of that many streams.
        let in_turn = |streams: u8| {
            let segment = |at: usize| {
                let (stream, at) = ((at % usize::from(streams)) as u8, at / usize::from(streams));
                Template::finished(Flow { dst: host(stream), ..FLOW }.tcp(seq(at), size)).numbered(at)
            };
            (0..TRAINS * segs).map(segment).collect()
        };
        let templates = match (traffic, way) {
            (Traffic::SuperPackets, Way::Fat | Way::Worker) => {
                let mem = Memory::heap();
                let fat = |train: usize| {
                    let pkt = FLOW.fat_tcp(&mem, seq(train * segs), segs * size, size as u16);
                    Template { bytes: pkt.to_vec(), meta: pkt.meta.clone() }.numbered(train * segs)
                };
                (0..TRAINS).map(fat).collect()
            }
            (Traffic::SuperPackets, Way::Baseline) => in_turn(1),
            (Traffic::Streams | Traffic::Sas, _) => in_turn(STREAMS),
            (Traffic::Small, _) => {
                let payload = SMALL - ipv4::Ipv4Header::LEN - udp::UdpHeader::LEN;
                let flow = |at: usize| Flow { sport: FLOW.sport + (at % BURST) as u16, ..FLOW };
                (0..TRAINS * BURST).map(|at| Template::finished(flow(at).udp(payload))).collect()
            }
        };
        Self { templates }
    }

    /// Writes the packets of one turn into pages, in bursts as from a link.
    pub(super) fn fill(&self, mem: &Memory, bursts: &mut Vec<Vec<Packet>>) {
        let packets = self.templates.iter().map(|template| {
            let mut pkt = Packet::with_data(mem, &template.bytes).expect("a heap without limit");
            pkt.meta = template.meta.clone();
            pkt
        });
        in_bursts(packets, bursts);
    }
}

impl Template {
    /// Sets the identification that Linux gives to segment number `segment` of a connection.
    fn numbered(mut self, segment: usize) -> Self {
        ipv4::Ipv4Header::mut_from(&mut self.bytes).expect("a flow of IPv4").set_id(segment as u16);
        ipv4::fill_check(&mut self.bytes).expect("a header");
        self
    }

    /// A finished packet, with a complete checksum.
    fn finished(bytes: Vec<u8>) -> Self {
        Self { bytes, meta: Meta { csum: Csum::None, cut: Cut::Whole, ..Meta::default() } }
    }
}

/// Distributes packets over bursts, whose storage is reused from turn to turn.
pub(super) fn in_bursts(packets: impl Iterator<Item = Packet>, bursts: &mut Vec<Vec<Packet>>) {
    for (at, pkt) in packets.enumerate() {
        if bursts.len() <= at / BURST {
            bursts.push(Vec::with_capacity(BURST));
        }
        bursts[at / BURST].push(pkt);
    }
}

//! Costs of forwarding, encryption, decryption and reassembly by the shape of received packets:
//! `cargo bench -p fatpath-datapath --bench shapes` prints a table of counts and times for 64 KiB. Without `--bench` each case runs
//! twice, and its output is checked.
//!
//! The memory that a device fills is filled before the clock starts.

use std::collections::BTreeMap;
use std::time::Instant as Clock;

use base::{Counters, Instant, PortId};
use offload::Features;
use packet::{Allocations, Buf, Memory, Meta, Packet};
use reassembly::{Reassembly, ReassemblyContext, Verdict};
use sim::{Flow, Node, PortOptions, esp, link_pair};
use wire::ip::Info;
use xfrm::{Aead, Algorithm, Mode, SaConfig};

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

const INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];
const SEGMENTS: usize = 46;
const PAYLOAD: usize = 1386;

/// Headers that a device which splits them off leaves in the head.
const SPLIT: usize = 128;
/// Room behind a packet in a page that several share: that of an ESP trailer with its ICV, and more.
const TAIL: usize = 64;

/// Shape of received packets.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Shape {
    /// A linear head in a page of 2 KiB.
    Page,
    /// A linear head in a stretch of a page of 66 KiB.
    Stretch,
    /// Headers in a stretch, the payload in a slot: a page of 2 KiB.
    HeadAndPage,
    /// Headers in a stretch, the payload in a slot: a stretch of a page of 66 KiB.
    HeadAndStretch,
    /// Super-packet of a first segment with a child for each other one, as Linux's GRO makes on a forwarder.
    FragList,
    /// Super-packet in one page of 66 KiB, as a device with receive offloads makes.
    Super,
}

impl Shape {
    const ALL: [Self; 6] =
        [Self::Page, Self::Stretch, Self::HeadAndPage, Self::HeadAndStretch, Self::FragList, Self::Super];
    const OF_FRAMES: [Self; 4] = [Self::Page, Self::Stretch, Self::HeadAndPage, Self::HeadAndStretch];
}

/// A device's receive memory.
struct Ring {
    mem: Memory,
    /// Free part of the page that packets share.
    page: Option<Buf>,
}

impl Ring {
    fn new() -> Self {
        Self { mem: Memory::heap(), page: None }
    }

    fn page(&self, headroom: usize, data: &[u8]) -> Buf {
        let mut buf = self.mem.take(headroom, data.len()).expect("a page");
        buf.put(data.len()).expect("room").copy_from_slice(data);
        buf
    }

    fn stretch(&mut self, headroom: usize, data: &[u8], tail: usize) -> Buf {
        let need = (headroom + data.len() + tail).next_multiple_of(64);
        let mut page = self.page.take().filter(|page| page.len() >= need).unwrap_or_else(|| {
            let mut page = self.mem.take(0, Memory::LARGE).expect("a page");
            page.put(Memory::LARGE).expect("all of it");
            page
        });
        let mut buf = page.split_to(need);
        self.page = Some(page);
        buf.pull(headroom);
        buf.trim(data.len());
        buf.bytes_mut().expect("its own").copy_from_slice(data);
        buf
    }

    fn frame(&mut self, shape: Shape, bytes: &[u8]) -> Packet {
        let (head, rest) = bytes.split_at(SPLIT.min(bytes.len()));
        let head = match shape {
            Shape::Stretch => return Packet::from_buf(self.stretch(Memory::HEADROOM, bytes, TAIL)),
            Shape::HeadAndPage | Shape::HeadAndStretch => self.stretch(Memory::HEADROOM, head, 0),
            Shape::Page | Shape::FragList | Shape::Super => {
                return Packet::from_buf(self.page(Memory::HEADROOM, bytes));
            }
        };
        let mut pkt = Packet::from_buf(head);
        let slot = if shape == Shape::HeadAndPage { self.page(0, rest) } else { self.stretch(0, rest, TAIL) };
        pkt.push_frag(slot).expect("a free slot");
        pkt
    }

    /// The segments of a flow, or a super-packet of them.
    fn burst(&mut self, shape: Shape, flow: &Wire) -> Vec<Packet> {
        let mut pkt = match shape {
            Shape::Super => Packet::from_buf(self.page(Memory::HEADROOM, &flow.fat)),
            Shape::FragList => {
                let headers = flow.fat.len() - SEGMENTS * PAYLOAD;
                let (first, rest) = flow.fat.split_at(headers + PAYLOAD);
                let mut pkt = self.frame(shape, first);
                rest.chunks(PAYLOAD).for_each(|segment| pkt.push_child(self.frame(shape, segment)));
                pkt
            }
            _ => return flow.frames.iter().map(|bytes| self.frame(shape, bytes)).collect(),
        };
        pkt.meta = flow.meta.clone();
        vec![pkt]
    }
}

/// A flow as it comes in.
struct Wire {
    fat: Vec<u8>,
    meta: Meta,
    frames: Vec<Vec<u8>>,
}

impl Wire {
    fn tcp() -> Self {
        let (flow, mem) = (Flow::new("10.1.0.1", "10.2.0.1"), Memory::heap());
        let pkt = flow.fat_tcp(&mem, 1, SEGMENTS * PAYLOAD, PAYLOAD as u16);
        let (fat, meta) = (pkt.to_vec(), pkt.meta.clone());
        let mut segments = Vec::new();
        offload::fit(&mem, &Features::NONE, pkt, 0, &mut segments).expect("it can be cut");
        Self { fat, meta, frames: segments.iter().map(Packet::to_vec).collect() }
    }

    fn udp_fragments() -> Self {
        let mem = Memory::heap();
        let pkt =
            Packet::with_data(&mem, &Flow::new("192.0.2.1", "192.0.2.2").udp(SEGMENTS * PAYLOAD)).expect("a page");
        let mut fragments = Vec::new();
        reassembly::fragment(&mem, pkt, 1500, &mut fragments).expect("it may be fragmented");
        fragments
            .sort_by_key(|pkt| Info::parse(pkt.head(), pkt.len()).expect("IP").fragment.map(|it| it.offset.bytes()));
        Self { fat: Vec::new(), meta: Meta::default(), frames: fragments.iter().map(Packet::to_vec).collect() }
    }
}

fn gateways(device: Features, is_esp: bool) -> [Node; 2] {
    let mut nodes = [0, 1].map(|at| {
        let mut node = Node::new();
        node.port(1, PortOptions::BARE.mtu(9000).features(device), &[&format!("10.{}.0.254/16", at + 1)]);
        node.port(2, PortOptions::BARE.features(device), &[&format!("{}/24", ENDS[at])]);
        node.route(NETS[1 - at], Some(ENDS[1 - at]), OUTSIDE);
        node
    });
    if is_esp {
        let algorithm = Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128);
        let sa = SaConfig { algorithm, ..esp(ENDS[0], ENDS[1], 0x1000, Mode::Tunnel, false) };
        let [near, far] = &mut nodes;
        link_pair(near, far, (NETS[0], NETS[1]), &[sa]);
    }
    nodes
}

/// Figures of one round.
#[derive(Clone, Debug, Default)]
struct Round {
    ns: u128,
    allocations: u64,
    copied: BTreeMap<String, u64>,
    /// Truesize of the received packets, and memory of their pages.
    truesize_in: usize,
    pinned: usize,
    truesize_out: usize,
    packets_out: usize,
    pieces_out: usize,
    children_out: usize,
    bytes_out: Vec<u8>,
}

impl Round {
    /// Runs `work` on a burst, and checks the result.
    fn of(
        ring: &mut Ring,
        shape: Shape,
        wire: &Wire,
        work: impl FnOnce(&mut Vec<Packet>) -> Vec<Packet>,
        mem: &Memory,
    ) -> Self {
        ring.page = None;
        let mut burst = ring.burst(shape, wire);
        let truesize_in = burst.iter().map(Packet::truesize).sum();
        let pinned = ring.mem.small().in_use() * Memory::SMALL + ring.mem.large().in_use() * Memory::LARGE;
        let ledger = || mem.copies().iter().map(|(reason, copied)| (format!("{reason:?}"), copied.bytes)).collect();
        let before: BTreeMap<String, u64> = ledger();
        let (allocations, clock) = (Allocations::count(), Clock::now());
        let sent = work(&mut burst);
        let ns = clock.elapsed().as_nanos();
        let allocations = Allocations::count() - allocations;
        let mut copied: BTreeMap<String, u64> = ledger();
        copied.iter_mut().for_each(|(reason, bytes)| *bytes -= before[reason]);
        copied.retain(|_, bytes| *bytes > 0);
        Self {
            ns,
            allocations,
            copied,
            truesize_in,
            pinned,
            truesize_out: sent.iter().map(Packet::truesize).sum(),
            packets_out: sent.len(),
            pieces_out: sent.iter().map(|pkt| pkt.bufs().count()).sum(),
            children_out: sent.iter().map(|pkt| pkt.frag_list().len()).sum(),
            bytes_out: on_wire(mem, sent),
        }
    }
}

/// The bytes of packets on the wire; a reassembled datagram is larger than any link's.
fn on_wire(mem: &Memory, sent: Vec<Packet>) -> Vec<u8> {
    let mut frames = Vec::new();
    for pkt in sent {
        offload::fit(mem, &Features::NONE, pkt, 0, &mut frames).expect("it can be cut");
    }
    frames.iter().flat_map(Packet::to_vec).collect()
}

/// Uses of received packets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Use {
    /// Forwarded to a device that cuts super-packets of a head and slots.
    ForwardTso,
    /// Forwarded to a device that takes slots, and no super-packets.
    ForwardSg,
    /// Sealed with ESP on the way out.
    Seal,
    /// Received as ESP, decrypted, and handed to a device that takes anything: a guest, as local delivery.
    Open,
    /// Reassembled for local delivery.
    Reassemble,
}

/// Runs a case `rounds` times; the last round's counts, with the median of the times.
fn run(what: Use, shape: Shape, rounds: usize) -> Round {
    let mut ring = Ring::new();
    let mut all = Vec::new();
    let tso = Features { frag_list: false, frames: false, ..Features::ALL };
    let device = match what {
        Use::ForwardTso => tso,
        Use::ForwardSg => Features::BY_REFERENCE,
        _ => Features::ALL,
    };
    let [mut near, mut far] = gateways(device, matches!(what, Use::Seal | Use::Open));
    let plain = Wire::tcp();
    let fragments = Wire::udp_fragments();
    let mut reassembly = Reassembly::default();
    let mut counters = Counters::default();
    let mem = Memory::heap();
    let pass = |node: &mut Node, from: PortId, to: PortId, burst: &mut Vec<Packet>| {
        node.datapath.handle_rx(Instant::ZERO, &node.mem, from, burst);
        std::mem::take(node.datapath.take_tx(to).expect("a port"))
    };
    for _ in 0..rounds {
        let round = match what {
            Use::ForwardTso | Use::ForwardSg | Use::Seal => {
                let Node { datapath, mem, .. } = &mut near;
                let work = |burst: &mut Vec<Packet>| {
                    datapath.handle_rx(Instant::ZERO, mem, INSIDE, burst);
                    std::mem::take(datapath.take_tx(OUTSIDE).expect("a port"))
                };
                Round::of(&mut ring, shape, &plain, work, mem)
            }
            Use::Open => {
                let mut burst = ring.burst(Shape::Super, &plain);
                let mut frames = Vec::new();
                pass(&mut near, INSIDE, OUTSIDE, &mut burst).into_iter().for_each(|pkt| pkt.into_frames(&mut frames));
                let frames = frames.iter().map(Packet::to_vec).collect();
                let wire = Wire { fat: Vec::new(), meta: Meta::default(), frames };
                let Node { datapath, mem, .. } = &mut far;
                let work = |burst: &mut Vec<Packet>| {
                    datapath.handle_rx(Instant::ZERO, mem, OUTSIDE, burst);
                    std::mem::take(datapath.take_tx(INSIDE).expect("a port"))
                };
                Round::of(&mut ring, shape, &wire, work, mem)
            }
            Use::Reassemble => {
                let work = |burst: &mut Vec<Packet>| {
                    let mut whole = Vec::new();
                    for mut pkt in burst.drain(..) {
                        let info = offload::ip_headers(&mem, &mut pkt).expect("a fragment");
                        let context = ReassemblyContext::LOCAL;
                        let verdict =
                            reassembly.handle_fragment(Instant::ZERO, &mem, context, pkt, &info, &mut counters);
                        if let Verdict::Whole { pkt, .. } = verdict {
                            whole.push(pkt);
                        }
                    }
                    whole
                };
                Round::of(&mut ring, shape, &fragments, work, &mem)
            }
        };
        all.push(round);
    }
    let mut times: Vec<u128> = all.iter().map(|round| round.ns).collect();
    times.sort_unstable();
    let ns = times[times.len() / 2];
    Round { ns, ..all.pop().expect("a round") }
}

fn main() {
    let is_bench = std::env::args().any(|arg| arg == "--bench");
    let rounds = if is_bench { 500 } else { 2 };
    if is_bench {
        println!(
            "| use | shape | ns | copied | charged | pinned | out: packets, buffers, children | charged | allocations |"
        );
        println!("|---|---|---|---|---|---|---|---|---|");
    }
    for what in [Use::ForwardTso, Use::ForwardSg, Use::Seal, Use::Open, Use::Reassemble] {
        let shapes: &[Shape] =
            if matches!(what, Use::Open | Use::Reassemble) { &Shape::OF_FRAMES } else { &Shape::ALL };
        let mut payload: Option<Vec<u8>> = None;
        for &shape in shapes {
            let round = run(what, shape, rounds);
            let len = SEGMENTS * PAYLOAD;
            assert!(round.bytes_out.len() > len, "{what:?} of {shape:?} lost bytes: {}", round.bytes_out.len());
            // Initialisation vectors are different each time.
            let is_random = what == Use::Seal;
            let seen = payload.get_or_insert_with(|| round.bytes_out.clone());
            assert!(is_random || *seen == round.bytes_out, "{what:?} of {shape:?} changed bytes");
            if is_bench {
                let per_byte = |bytes: usize| bytes as f64 / len as f64;
                let copied: Vec<String> = round
                    .copied
                    .iter()
                    .map(|(reason, &bytes)| format!("{:.2} {reason}", per_byte(bytes as usize)))
                    .collect();
                println!(
                    "| {what:?} | {shape:?} | {} | {} | {:.2} | {:.2} | {}, {}, {} | {:.2} | {} |",
                    round.ns / SEGMENTS as u128,
                    if copied.is_empty() { "0".to_owned() } else { copied.join(", ") },
                    per_byte(round.truesize_in),
                    per_byte(round.pinned),
                    round.packets_out,
                    round.pieces_out,
                    round.children_out,
                    per_byte(round.truesize_out),
                    round.allocations,
                );
            }
        }
    }
}

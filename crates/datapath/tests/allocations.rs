//! Steady traffic allocates nothing: packets are routed, encrypted, decrypted and coalesced.

use base::{Instant, PortId};
use packet::{Allocations, Csum, Cut, Memory, Meta, Packet};
use sim::{Flow, Node, PortOptions, esp, link_pair};
use xfrm::Mode;

#[global_allocator]
static ALLOCATOR: Allocations = Allocations;

const INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);

/// Rounds that fill the pools and caches, and rounds that are counted. A debug build records each of the 92 nonces of a
/// round in a table, which grows at 7168 and at 14 336 nonces: before and after the counted rounds.
const WARM: usize = 90;
const COUNTED: usize = 60;

const PAYLOAD: usize = 46 * 1386;
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];

/// Kind of ESP between two gateways.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum EspKind {
    Clear,
    RawEsp,
    EspInUdp,
}

struct Pair {
    nodes: [Node; 2],
    /// Bytes and marks of the packets that a guest behind each node sends.
    fat: [(Vec<u8>, Meta); 2],
    burst: Vec<Packet>,
    frames: Vec<Packet>,
}

impl Pair {
    fn new(kind: EspKind) -> Self {
        let mut nodes = [0, 1].map(|at| {
            let mut node = Node::new();
            node.port(1, PortOptions::BARE.mtu(9000), &[&format!("10.{}.0.254/16", at + 1)]);
            node.port(2, PortOptions::BARE, &[&format!("{}/24", ENDS[at])]);
            node.route(NETS[1 - at], Some(ENDS[1 - at]), OUTSIDE);
            node
        });
        if kind != EspKind::Clear {
            let [a, b] = &mut nodes;
            let udp = kind == EspKind::EspInUdp;
            link_pair(a, b, (NETS[0], NETS[1]), &[esp(ENDS[0], ENDS[1], 1, Mode::Tunnel, udp)]);
            link_pair(b, a, (NETS[1], NETS[0]), &[esp(ENDS[1], ENDS[0], 2, Mode::Tunnel, udp)]);
        }
        let flow = Flow::new("10.1.0.1", "10.2.0.1");
        let fat = [flow, flow.reversed()].map(|flow| {
            let pkt = flow.fat_tcp(&Memory::heap(), 1, PAYLOAD, 1386);
            (pkt.to_vec(), pkt.meta.clone())
        });
        Self { nodes, fat, burst: Vec::new(), frames: Vec::new() }
    }

    /// One fat packet each way.
    fn round(&mut self, now: Instant) {
        for from in 0..2 {
            let (bytes, meta) = &self.fat[from];
            let [near, far] = self.nodes.get_disjoint_mut([from, 1 - from]).unwrap();
            let mut pkt = Packet::with_data(&near.mem, bytes).unwrap();
            pkt.meta = meta.clone();
            self.burst.push(pkt);
            near.datapath.handle_rx(now, &near.mem, INSIDE, &mut self.burst);
            for pkt in near.datapath.take_tx(OUTSIDE).unwrap().drain(..) {
                pkt.into_frames(&mut self.frames);
            }
            for frame in self.frames.drain(..) {
                self.burst.push(received(&far.mem, &frame));
            }
            far.datapath.handle_rx(now, &far.mem, OUTSIDE, &mut self.burst);
            let sent = far.datapath.take_tx(INSIDE).unwrap();
            assert_eq!(sent.iter().map(Packet::len).sum::<usize>(), bytes.len(), "glued to one");
            sent.clear();
        }
    }
}

/// A frame as the next device receives it: a copy in the receiver's memory, fat if the frame was fat.
fn received(mem: &Memory, frame: &Packet) -> Packet {
    let mut buf = mem.take(Memory::HEADROOM, frame.len()).unwrap();
    let mut to = buf.put(frame.len()).unwrap();
    for chunk in frame.chunks() {
        let (here, rest) = to.split_at_mut(chunk.len());
        here.copy_from_slice(chunk);
        to = rest;
    }
    let mut pkt = Packet::from_buf(buf);
    let partial = matches!(frame.meta.csum, Csum::Partial { .. });
    pkt.meta.csum = if partial && frame.meta.cut == Cut::Whole { Csum::Unnecessary } else { frame.meta.csum };
    pkt.meta.cut = frame.meta.cut;
    pkt
}

/// Runs on a thread of its own, with an empty register of nonces.
fn check(kind: EspKind) {
    std::thread::spawn(move || steady_state(kind)).join().unwrap();
}

fn steady_state(kind: EspKind) {
    let mut pair = Pair::new(kind);
    let mut now = Instant::ZERO;
    let mut rounds = |n: usize| {
        for _ in 0..n {
            now = now + std::time::Duration::from_micros(50);
            pair.round(now);
        }
    };
    rounds(WARM);
    let before = Allocations::of_thread();
    rounds(COUNTED);
    assert_eq!(Allocations::of_thread() - before, 0, "allocations in {COUNTED} rounds of {kind:?}");
    for node in &pair.nodes {
        assert_eq!((node.drops(), node.datapath.forwarded.packets), (vec![], 2 * (WARM + COUNTED) as u64));
    }
}

#[test]
fn forwarding_fat_packets_allocates_nothing() {
    check(EspKind::Clear);
}

#[test]
fn sealing_and_opening_raw_esp_allocates_nothing() {
    check(EspKind::RawEsp);
}

#[test]
fn sealing_and_opening_esp_in_udp_allocates_nothing() {
    check(EspKind::EspInUdp);
}

#[test]
fn packets_with_slots_or_children_allocate_nothing() {
    let mem = Memory::heap();
    let round = || {
        let [mut children, mut slots] = [0, 1].map(|_| Packet::with_data(&mem, &[0; 100]).unwrap());
        for _ in 0..40 {
            children.push_child(Packet::with_data(&mem, &[0; 100]).unwrap());
            let mut slot = mem.take(0, 100).unwrap();
            slot.put(100);
            slots.push_frag(slot).unwrap();
        }
    };
    round();
    let before = Allocations::of_thread();
    round();
    assert_eq!(Allocations::of_thread() - before, 0);
}

#[test]
fn allocation_is_counted() {
    let before = Allocations::of_thread();
    drop(std::hint::black_box(vec![0_u8; 100]));
    assert_eq!(Allocations::of_thread() - before, 1);
}

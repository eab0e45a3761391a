//! Nanoseconds per packet through a node: `cargo bench -p fatpath-datapath`. `64K` is one fat packet of TCP, in as many
//! segments as `items` counts; `64` is a burst of 64 small ones, of a flow each. `neigh/full` is a node whose neighbour
//! table is full: each of 64 hostile packets makes an entry, for which another is evicted. `by 8 paths` is a route of as many next hops.
//!
//! The memory that a device would fill is filled before the clock starts, packet by packet.

use base::{Instant, PortId};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use packet::{Cut, Memory, Meta, Packet};
use sim::{Flow, Node, PortOptions, esp, link_pair};
use xfrm::{Aead, Algorithm, Mode, SaConfig};

fn main() {
    divan::main();
}

const INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const NETS: [&str; 2] = ["10.1.0.0/16", "10.2.0.0/16"];

const SEGMENTS: usize = 46;
const PAYLOAD: usize = 1386;

/// Two gateways; an SA from the first to the second, if any, has AES-GCM-256 and a replay window.
fn gateways(sa: Option<SaConfig>) -> [Node; 2] {
    let mut nodes = [0, 1].map(|at| {
        let mut node = Node::new();
        node.port(1, PortOptions::BARE.mtu(9000), &[&format!("10.{}.0.254/16", at + 1)]);
        node.port(2, PortOptions::BARE, &[&format!("{}/24", ENDS[at])]);
        node.route(NETS[1 - at], Some(ENDS[1 - at]), OUTSIDE);
        node
    });
    if let Some(sa) = sa {
        let [near, far] = &mut nodes;
        link_pair(near, far, (NETS[0], NETS[1]), &[sa]);
    }
    nodes
}

fn sa(udp: bool) -> SaConfig {
    let algorithm = Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128);
    SaConfig { algorithm, ..esp(ENDS[0], ENDS[1], 0x1000, Mode::Tunnel, udp) }
}

/// A packet as a device hands it over, again and again.
struct Template {
    mem: Memory,
    bytes: Vec<u8>,
    meta: Meta,
}

impl Template {
    fn fat() -> Self {
        let mem = Memory::heap();
        let pkt = Flow::new("10.1.0.1", "10.2.0.1").fat_tcp(&mem, 1, SEGMENTS * PAYLOAD, PAYLOAD as u16);
        Self { bytes: pkt.to_vec(), meta: pkt.meta.clone(), mem }
    }

    fn make(&self) -> Packet {
        let mut pkt = Packet::with_data(&self.mem, &self.bytes).unwrap();
        pkt.meta = self.meta.clone();
        pkt
    }
}

/// One turn of a node, and how many packets it sent.
fn turn(node: &mut Node, from: PortId, to: PortId, burst: &mut Vec<Packet>) -> usize {
    node.datapath.handle_rx(Instant::ZERO, &node.mem, from, burst);
    let sent = node.datapath.take_tx(to).expect("a port");
    let n = black_box(&*sent).iter().map(|pkt| pkt.meta.cut.packets() as usize).sum();
    sent.clear();
    n
}

mod forward {
    use super::*;

    fn fat(bencher: Bencher<'_, '_>, mut node: Node) {
        let template = Template::fat();
        bencher
            .counter(ItemsCount::new(SEGMENTS))
            .counter(BytesCount::new(template.bytes.len()))
            .with_inputs(|| vec![template.make()])
            .bench_local_refs(|burst| assert_eq!(turn(&mut node, INSIDE, OUTSIDE, burst), 1));
    }

    fn small(bencher: Bencher<'_, '_>, mut node: Node) {
        let flow = |sport| Flow { sport, ..Flow::new("10.1.0.1", "10.2.0.1") };
        let mem = Memory::heap();
        let bytes: Vec<_> = (0..64).map(|sport| flow(sport).udp(36)).collect();
        bencher
            .counter(ItemsCount::new(64_usize))
            .counter(BytesCount::new(64_usize * 64))
            .with_inputs(|| bytes.iter().map(|bytes| Packet::with_data(&mem, bytes).unwrap()).collect::<Vec<_>>())
            .bench_local_refs(|burst| assert_eq!(turn(&mut node, INSIDE, OUTSIDE, burst), 64));
    }

    /// A gateway with a route of one path.
    fn single() -> Node {
        let [node, _] = gateways(None);
        node
    }

    /// A gateway with eight paths instead, which ports select.
    fn several() -> Node {
        let mut node = single();
        let via = |n: u8| Some([192, 0, 2, n].into());
        let hops: Vec<_> = (2..10).map(|n| fib::NextHop { dev: OUTSIDE, via: via(n), weight: 1 }).collect();
        let fib = &mut node.datapath.fib;
        let mut hash = base::PathHash::default();
        hash.set_policy(true, base::PathHashPolicy::Ports);
        fib.set_path_hash(hash);
        let paths = fib.paths(&hops);
        node.route_of("10.2.0.0/24", fib::RouteKind::Paths(paths));
        node
    }

    #[divan::bench(name = "64K", sample_size = 1, sample_count = 2000)]
    fn fat_by_one(bencher: Bencher<'_, '_>) {
        fat(bencher, single());
    }

    #[divan::bench(name = "64", sample_size = 1, sample_count = 2000)]
    fn small_by_one(bencher: Bencher<'_, '_>) {
        small(bencher, single());
    }

    #[divan::bench(name = "64K by 8 paths", sample_size = 1, sample_count = 2000)]
    fn fat_by_eight(bencher: Bencher<'_, '_>) {
        fat(bencher, several());
    }

    #[divan::bench(name = "64 by 8 paths", sample_size = 1, sample_count = 2000)]
    fn small_by_eight(bencher: Bencher<'_, '_>) {
        small(bencher, several());
    }
}

/// Seals a fat packet; `packets` is how many leave.
fn tx(bencher: Bencher<'_, '_>, udp: bool, packets: usize) {
    let [mut node, _] = gateways(Some(sa(udp)));
    let template = Template::fat();
    bencher
        .counter(ItemsCount::new(SEGMENTS))
        .counter(BytesCount::new(template.bytes.len()))
        .with_inputs(|| vec![template.make()])
        .bench_local_refs(|burst| assert_eq!(turn(&mut node, INSIDE, OUTSIDE, burst), packets));
}

/// Decrypts the frames of a fat packet, and coalesces them again.
fn rx(bencher: Bencher<'_, '_>, udp: bool) {
    let [mut near, mut far] = gateways(Some(sa(udp)));
    let template = Template::fat();
    let rings = Memory::heap();
    let mut frames = Vec::new();
    bencher
        .counter(ItemsCount::new(SEGMENTS))
        .counter(BytesCount::new(template.bytes.len()))
        .with_inputs(|| {
            let mut burst = vec![template.make()];
            near.datapath.handle_rx(Instant::ZERO, &near.mem, INSIDE, &mut burst);
            near.datapath.take_tx(OUTSIDE).expect("a port").drain(..).for_each(|pkt| pkt.into_frames(&mut frames));
            burst.extend(frames.drain(..).map(|frame| received(&rings, &frame)));
            burst
        })
        .bench_local_refs(|burst| assert_eq!(turn(&mut far, OUTSIDE, INSIDE, burst), 1));
}

/// A frame, possibly a train, as a device receives it.
fn received(mem: &Memory, frame: &Packet) -> Packet {
    let mut buf = mem.take(Memory::HEADROOM, frame.len()).unwrap();
    buf.put(frame.len()).unwrap().copy_from_slice(frame.head());
    let mut pkt = Packet::from_buf(buf);
    pkt.meta.cut = frame.meta.cut;
    if frame.meta.cut != Cut::Whole {
        pkt.meta.csum = packet::Csum::Unnecessary;
    }
    pkt
}

#[divan::bench_group(name = "esp-udp")]
mod esp_udp {
    use super::*;

    #[divan::bench(name = "tx/64K", sample_size = 1, sample_count = 2000)]
    fn seal(bencher: Bencher<'_, '_>) {
        tx(bencher, true, 2);
    }

    #[divan::bench(name = "rx/64K", sample_size = 1, sample_count = 2000)]
    fn open(bencher: Bencher<'_, '_>) {
        rx(bencher, true);
    }
}

#[divan::bench_group(name = "esp-raw")]
mod esp_raw {
    use super::*;

    #[divan::bench(name = "tx/64K", sample_size = 1, sample_count = 2000)]
    fn seal(bencher: Bencher<'_, '_>) {
        tx(bencher, false, SEGMENTS);
    }

    #[divan::bench(name = "rx/64K", sample_size = 1, sample_count = 2000)]
    fn open(bencher: Bencher<'_, '_>) {
        rx(bencher, false);
    }
}

mod neigh {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;
    use wire::{EtherType, Protocol, eth, icmpv6, ipv6, nd};

    const BURST: usize = 64;

    /// Time in which the rate limits let a whole burst make entries.
    const STEP: Duration = Duration::from_millis(250);

    /// A node that meets hostile packets, each from or to an address of its own.
    struct Attacked {
        node: Node,
        now: Instant,
        made: Cell<u64>,
        hostile: fn(u64) -> Vec<u8>,
    }

    impl Attacked {
        /// A node with a neighbour table that an attack has filled.
        fn new(hostile: fn(u64) -> Vec<u8>) -> Self {
            let mut node = Node::new();
            node.port(1, PortOptions::ethernet(1), &["fd00:1::1/64"]);
            node.port(2, PortOptions::ethernet(2), &["fd00:2::1/64"]);
            let mut attacked = Self { node, now: Instant::ZERO, made: Cell::new(0), hostile };
            while attacked.node.datapath.neighbours.len() < 1024 {
                let mut burst = attacked.burst();
                attacked.turn(&mut burst, INSIDE);
            }
            // The solicitations for the addresses of the scan are no part of the first burst.
            attacked.node.datapath.take_tx(OUTSIDE).expect("a port").clear();
            attacked
        }

        fn burst(&self) -> Vec<Packet> {
            let first = self.made.replace(self.made.get() + BURST as u64);
            let frames = (first..first + BURST as u64).map(self.hostile);
            frames.map(|frame| Packet::with_data(&self.node.mem, &frame).unwrap()).collect()
        }

        /// Receives a burst, and counts the packets sent by a port.
        fn turn(&mut self, burst: &mut Vec<Packet>, to: PortId) -> usize {
            self.now = self.now + STEP;
            self.node.datapath.handle_rx(self.now, &self.node.mem, INSIDE, burst);
            let sent = self.node.datapath.take_tx(to).expect("a port");
            let n = black_box(&*sent).len();
            sent.clear();
            n
        }

        /// Measures bursts, each of whose packets has one packet sent by `to`.
        fn bench(self, bencher: Bencher<'_, '_>, to: PortId) {
            let attacked = std::cell::RefCell::new(self);
            bencher
                .counter(ItemsCount::new(BURST))
                .with_inputs(|| attacked.borrow().burst())
                .bench_local_refs(|burst| assert_eq!(attacked.borrow_mut().turn(burst, to), BURST));
            let attacked = attacked.borrow();
            let entries = attacked.node.datapath.neighbours.iter().filter(|neighbour| neighbour.link == to);
            assert_eq!(entries.count(), 1024, "the table is full");
        }
    }

    fn framed(packet: &[u8]) -> Vec<u8> {
        let macs = [1, 9].map(|last| wire::MacAddr([2, 0, 0, 0, 0, last]));
        [eth::EthHeader::new(macs[0], macs[1], EtherType::IPV6).as_bytes(), packet].concat()
    }

    /// The solicitation of the node by the `n`th station.
    fn solicitation(n: u64) -> Vec<u8> {
        let target = "fd00:1::1".parse().unwrap();
        let src = std::net::Ipv6Addr::from((0xfd00_0001 << 96) | u128::from(0x1_0000 + n));
        let mut message = nd::Neighbour::solicit(target).as_bytes().to_vec();
        message.extend_from_slice(nd::LinkAddr::source(wire::MacAddr([2, 0, 0, 0, 0, 9])).as_bytes());
        icmpv6::fill_check(&mut message, src, target).unwrap();
        let mut header = ipv6::Ipv6Header::new(src, target, Protocol::ICMPV6, message.len() as u16);
        header.set_hop_limit(nd::HOP_LIMIT);
        framed(&[header.as_bytes(), &message].concat())
    }

    /// A datagram for the `n`th address of a subnet.
    fn scan(n: u64) -> Vec<u8> {
        let dst = std::net::Ipv6Addr::from((0xfd00_0002 << 96) | u128::from(0x1_0000 + n));
        framed(&Flow { dst: dst.into(), ..Flow::new("fd00:1::9", "fd00:2::9") }.udp(8))
    }

    #[divan::bench(name = "full/solicitation", sample_size = 1, sample_count = 2000)]
    fn solicitations(bencher: Bencher<'_, '_>) {
        Attacked::new(solicitation).bench(bencher, INSIDE);
    }

    #[divan::bench(name = "full/scan", sample_size = 1, sample_count = 2000)]
    fn scanned(bencher: Bencher<'_, '_>) {
        Attacked::new(scan).bench(bencher, OUTSIDE);
    }
}

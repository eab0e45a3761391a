//! The world: nodes, hosts and wires, and the clock that drives them.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{Instant, PortId};
use offload::Features;
use packet::Packet;
use wire::eth;

use crate::watch::{Fate, Seen, flip};
use crate::{Host, Node, Rng, Wire, WireStats};

/// Maximum number of frames that a device delivers at once.
const BURST: usize = 64;

/// End of a wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// A port of the node with that number.
    Port(usize, PortId),
    /// The host with that number.
    Host(usize),
}

/// Nodes, hosts, and the wires between them.
#[derive(Debug)]
pub struct World {
    /// The nodes, in the order in which they were added.
    pub nodes: Vec<Node>,
    /// The hosts, in the order in which they were added.
    pub hosts: Vec<Host>,
    /// Counters of each wire.
    pub stats: Vec<WireStats>,
    /// Whether nodes receive simultaneous packets in two bursts, like workers that find the second burst after the
    /// first.
    pub in_two_bursts: bool,
    now: Instant,
    rng: Rng,
    _seed: PrintSeed,
    wires: Vec<Strung>,
    /// Frames in flight, by time of arrival and order.
    coming: BTreeMap<(Instant, u64), Coming>,
    last: u64,
    /// Events on watched wires since the last call of [`take_seen`](Self::take_seen).
    seen: Vec<Seen>,
}

/// A wire with its ends.
#[derive(Debug)]
struct Strung {
    wire: Wire,
    ends: [End; 2],
    /// Time until which the device at each end accepts no frames.
    busy_until: [Instant; 2],
    watched: bool,
}

#[derive(Debug)]
enum Coming {
    /// A frame reaches an end of a wire.
    Frame { wire: usize, end: usize, number: u64, damaged: bool, frame: Packet },
    /// A device is no longer busy.
    Ready,
}

impl World {
    /// An empty world with the randomness of `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            nodes: Vec::new(),
            hosts: Vec::new(),
            stats: Vec::new(),
            in_two_bursts: false,
            now: Instant::ZERO,
            rng: Rng::new(seed),
            _seed: PrintSeed(seed),
            wires: Vec::new(),
            coming: BTreeMap::new(),
            last: 0,
            seen: Vec::new(),
        }
    }

    /// Adds a node and returns its number.
    pub fn add_node(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Adds a host and returns its number.
    pub fn add_host(&mut self, host: Host) -> usize {
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    /// Joins two ends by a wire, and returns the wire's number.
    pub fn join(&mut self, wire: Wire, a: End, b: End) -> usize {
        self.wires.push(Strung { wire, ends: [a, b], busy_until: [Instant::ZERO; 2], watched: false });
        self.stats.push(WireStats::default());
        self.wires.len() - 1
    }

    /// Current time.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Changes the properties of a wire.
    pub fn set_wire(&mut self, at: usize, wire: Wire) {
        self.wires[at].wire = wire;
    }

    /// Properties of a wire.
    pub fn wire(&self, at: usize) -> Wire {
        self.wires[at].wire
    }

    /// Records all later frames on a wire.
    pub fn watch(&mut self, at: usize) {
        self.wires[at].watched = true;
    }

    /// Events on watched wires since the last call, in order.
    pub fn take_seen(&mut self) -> Vec<Seen> {
        std::mem::take(&mut self.seen)
    }

    /// Advances the time by `how_long`.
    pub fn run(&mut self, how_long: Duration) {
        self.run_until(self.now + how_long);
    }

    /// Processes events until `end`.
    pub fn run_until(&mut self, end: Instant) {
        self.send_all();
        while let Some(next) = self.next_event().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.receive_due();
            for node in &mut self.nodes {
                node.timeout(self.now);
            }
            self.send_all();
        }
        self.now = self.now.max(end);
    }

    fn next_event(&self) -> Option<Instant> {
        let coming = self.coming.first_key_value().map(|(&(at, _), _)| at);
        let timers = self.nodes.iter().filter_map(|node| node.datapath.poll_timeout());
        timers.chain(coming).min()
    }

    /// Delivers arrived frames, in bursts of consecutive frames for one end.
    fn receive_due(&mut self) {
        let due = |(at, _): &(Instant, u64), now| *at <= now;
        while let Some(first) = self.coming.first_entry().filter(|first| due(first.key(), self.now)) {
            let Coming::Frame { wire, end, number, damaged, frame } = first.remove() else { continue };
            let mut burst = vec![frame];
            let mut numbers = vec![(number, damaged)];
            while let Some(next) = self.coming.first_entry().filter(|next| due(next.key(), self.now)) {
                let same = matches!(next.get(), Coming::Frame { wire: w, end: e, .. } if (*w, *e) == (wire, end));
                if !same || burst.len() == BURST {
                    break;
                }
                if let Coming::Frame { number, damaged, frame, .. } = next.remove() {
                    burst.push(frame);
                    numbers.push((number, damaged));
                }
            }
            for (number, damaged) in numbers {
                self.see(wire, end, number, Fate::Arrived { damaged });
            }
            let Strung { wire, ends, .. } = &self.wires[wire];
            match ends[end] {
                End::Port(at, link) => {
                    let node = &mut self.nodes[at];
                    let mut burst = wire.arrive(&node.mem, burst);
                    node.from_wire(self.now, link, &mut burst);
                    let rest = if self.in_two_bursts { burst.split_off(burst.len() / 2) } else { Vec::new() };
                    node.rx_all(self.now, link, [burst, rest]);
                }
                End::Host(at) => {
                    let host = &mut self.hosts[at];
                    wire.arrive(&host.mem, burst).into_iter().for_each(|pkt| host.receive(pkt));
                }
            }
        }
    }

    /// Sends the packets queued at the ends of wires.
    fn send_all(&mut self) {
        for wire in 0..self.wires.len() {
            for end in 0..2 {
                self.send(wire, end);
            }
        }
    }

    fn send(&mut self, at: usize, from: usize) {
        let Strung { wire, ends, busy_until, .. } = &mut self.wires[at];
        if busy_until[from] > self.now {
            return;
        }
        let (waiting, features, l3) = match ends[from] {
            End::Port(node, link) => {
                let Node { datapath, .. } = &mut self.nodes[node];
                let Some(port) = datapath.ports.get(link) else { return };
                let l3 = if port.config.mac.is_some() { eth::EthHeader::LEN } else { 0 };
                let features = port.config.features;
                let Some(waiting) = datapath.take_tx(link) else { return };
                (waiting, features, l3)
            }
            End::Host(host) => {
                let Host { outbox, mac, .. } = &mut self.hosts[host];
                (outbox, Features::ALL, if mac.is_some() { eth::EthHeader::LEN } else { 0 })
            }
        };
        let mut taken = waiting.len();
        if taken > 0 && self.rng.happens(wire.busy) {
            taken = self.rng.below(taken);
            busy_until[from] = self.now + Duration::from_micros(1) + self.rng.duration(Duration::from_millis(1));
            self.stats[at].busy += 1;
            self.last += 1;
            self.coming.insert((busy_until[from], self.last), Coming::Ready);
        }
        let mut burst: Vec<_> = waiting.drain(..taken).collect();
        if let End::Port(node, link) = ends[from] {
            self.nodes[node].to_wire(self.now, link, &mut burst);
        }
        let mem = match ends[from] {
            End::Port(node, _) => &self.nodes[node].mem,
            End::Host(host) => &self.hosts[host].mem,
        };
        let mut frames = Vec::new();
        for pkt in burst {
            let mut cut = Vec::new();
            wire.cut(mem, &features, pkt, l3, &mut cut);
            frames.append(&mut cut);
        }
        for frame in frames {
            self.put_on_wire(at, 1 - from, frame, l3);
        }
    }

    fn put_on_wire(&mut self, at: usize, end: usize, frame: Packet, l3: usize) {
        let wire = self.wires[at].wire;
        self.stats[at].frames += 1;
        let number = self.stats[at].frames;
        if self.wires[at].watched {
            self.see(at, end, number, Fate::Sent(frame.to_vec()));
        }
        if self.rng.happens(wire.loss) {
            self.stats[at].lost += 1;
            return self.see(at, end, number, Fate::Lost);
        }
        let mut frames = vec![frame];
        if self.rng.happens(wire.twice) {
            self.stats[at].twice += 1;
            let again = frames[0].clone_shared();
            frames.push(again);
        }
        for mut frame in frames {
            let flipped = if self.rng.happens(wire.damaged) { flip(&frame, l3, &mut self.rng) } else { None };
            let damaged = flipped.is_some();
            if let Some(flipped) = flipped {
                self.stats[at].damaged += 1;
                frame = flipped;
            }
            let late = if self.rng.happens(wire.late) { self.rng.duration(wire.late_by) } else { Duration::ZERO };
            self.last += 1;
            let coming = Coming::Frame { wire: at, end, number, damaged, frame };
            self.coming.insert((self.now + wire.delay + late, self.last), coming);
        }
    }

    fn see(&mut self, wire: usize, end: usize, frame: u64, fate: Fate) {
        if self.wires[wire].watched {
            self.seen.push(Seen { wire, end, frame, fate });
        }
    }
}

/// Prints the seed if a test fails.
#[derive(Debug)]
struct PrintSeed(u64);

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the seed of this world is {}", self.0);
        }
    }
}

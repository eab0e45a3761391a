//! Cost of a fragment in the engine, by the number of fragments of a datagram and by their order.

use base::{Counters, Instant};
use packet::{Burst, Memory, Packet};
use reassembly::{Config, Limits, Reassembly, ReassemblyContext, Train, Verdict};
use sim::Rng;
use wire::Version;
use wire::ip::Info;

use super::fragment::{BURST, fragment};
use crate::bench::case::{Comparison, Copied, Group, Load, Plan, Turn};

/// Approximate number of fragments in one turn.
const FRAGMENTS: usize = 8192;

/// Numbers of fragments in a datagram. The IPv4 header leaves no room for the last two of 8191.
const COUNTS: [(usize, &str); 5] = [(2, "2"), (8, "8"), (45, "45"), (512, "512"), (8189, "8189")];
const MOST_V6: (usize, &str) = (8191, "8191");

/// Ratios of the time per fragment: datagrams of the maximum number, and of the number for an MTU of 1500 bytes, to
/// others.
const COMPARISONS_V4: &[Comparison] = &[
    Comparison { of: "45/2", over: &["45"], under: &["2"], figure: None },
    Comparison { of: "8189/2", over: &["8189"], under: &["2"], figure: None },
    Comparison { of: "8189/8", over: &["8189"], under: &["8"], figure: None },
    Comparison { of: "8189/45", over: &["8189"], under: &["45"], figure: None },
    Comparison { of: "8189/512", over: &["8189"], under: &["512"], figure: None },
];
const COMPARISONS_V6: &[Comparison] = &[
    Comparison { of: "45/2", over: &["45"], under: &["2"], figure: None },
    Comparison { of: "8191/2", over: &["8191"], under: &["2"], figure: None },
    Comparison { of: "8191/8", over: &["8191"], under: &["8"], figure: None },
    Comparison { of: "8191/45", over: &["8191"], under: &["45"], figure: None },
    Comparison { of: "8191/512", over: &["8191"], under: &["512"], figure: None },
];

/// Order of the fragments of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Order {
    Straight,
    Reversed,
    Shuffled,
    /// In order, but alternating with fragments of another datagram.
    Alternating,
}

const ORDERS: [(Order, &str); 4] = [
    (Order::Straight, "in-order"),
    (Order::Reversed, "reversed"),
    (Order::Shuffled, "shuffled"),
    (Order::Alternating, "alternating"),
];

/// Every case: one by one, and in bursts as from a device.
pub(super) fn groups() -> Vec<Group> {
    [("fragments", 1), ("fragments-in-bursts", BURST)]
        .into_iter()
        .flat_map(|(way, at_once)| groups_of(way, at_once))
        .collect()
}

fn groups_of(way: &str, at_once: usize) -> Vec<Group> {
    let mut groups = Vec::new();
    for version in [Version::V4, Version::V6] {
        for (order, name) in ORDERS {
            let (family, ratios) = match version {
                Version::V4 => ("v4", COMPARISONS_V4),
                Version::V6 => ("v6", COMPARISONS_V6),
            };
            let mut counts = COUNTS;
            if version == Version::V6 {
                counts[4] = MOST_V6;
            }
            let case = |(count, name)| {
                let shape = Shape { version, order, count };
                Plan::new(name, shape.load(), move || Box::new(Receiving::new(shape, at_once)))
            };
            // The longest datagram is alone in its turn.
            let counts = if order == Order::Alternating { &counts[..4] } else { &counts };
            let cases = counts.iter().copied().map(case).collect();
            groups.push(Group { name: format!("{way}/{family}/{name}"), cases, ratios });
        }
    }
    groups
}

/// Datagrams with equal numbers of fragments.
#[derive(Clone, Copy, Debug)]
struct Shape {
    version: Version,
    order: Order,
    count: usize,
}

impl Shape {
    fn datagrams(self) -> usize {
        FRAGMENTS / self.count
    }

    /// Bytes of a fragment: as for an MTU of 1500, if the datagram has room for that many.
    fn size(self) -> usize {
        let longest = if self.version == Version::V4 { 65_512 } else { 65_528 };
        (longest / self.count / 8 * 8).min(1448)
    }

    fn load(self) -> Load {
        let packets = self.datagrams() * self.count;
        Load { packets, payload: packets * self.size(), small: true }
    }

    /// Fragments of datagram `id`, in the order of arrival.
    fn fragments(self, id: usize, chance: &mut Rng) -> Vec<(Vec<u8>, Info)> {
        let one = |n: usize| {
            let bytes = fragment(self.version, id as u32, n * self.size(), self.size(), n + 1 < self.count);
            let info = Info::parse(&bytes, bytes.len()).expect("a fragment");
            (bytes, info)
        };
        let mut fragments: Vec<_> = (0..self.count).map(one).collect();
        match self.order {
            Order::Straight | Order::Alternating => {}
            Order::Reversed => fragments.reverse(),
            Order::Shuffled => {
                for at in (1..fragments.len()).rev() {
                    fragments.swap(at, chance.below(at + 1));
                }
            }
        }
        fragments
    }
}

/// The engine, and its input in one turn.
#[derive(Debug)]
struct Receiving {
    mem: Memory,
    reassembly: Reassembly,
    counters: Counters,
    fragments: Vec<(Vec<u8>, Info)>,
    /// Fragments in bursts, if a burst has more than one.
    bursts: Vec<Vec<Packet>>,
    at_once: usize,
    /// Datagrams in a turn, expected datagrams, and received ones.
    per_turn: usize,
    due: usize,
    whole: usize,
}

impl Receiving {
    fn new(shape: Shape, at_once: usize) -> Self {
        let mut chance = Rng::new(42);
        let datagrams = (0..shape.datagrams()).map(|id| shape.fragments(id, &mut chance));
        let fragments: Vec<_> = match shape.order {
            Order::Alternating => alternating(datagrams),
            _ => datagrams.flatten().collect(),
        };
        let in_burst = if at_once == 1 { fragments.len() } else { at_once };
        Self {
            mem: Memory::heap(),
            reassembly: Reassembly::new(boundless()),
            counters: Counters::ZERO,
            bursts: (0..fragments.len().div_ceil(in_burst)).map(|_| Vec::with_capacity(in_burst)).collect(),
            at_once: in_burst,
            fragments,
            per_turn: shape.datagrams(),
            due: 0,
            whole: 0,
        }
    }

    /// Passes fragments to the engine one by one.
    fn run_single(&mut self) -> usize {
        let Self { mem, reassembly, counters, bursts, fragments, .. } = self;
        let mut infos = fragments.iter().map(|(_, info)| info);
        let mut whole = 0;
        for burst in bursts {
            let mut burst = Burst::new(burst);
            loop {
                burst.look_ahead();
                let Some(pkt) = burst.next() else { break };
                let info = infos.next().expect("one of each fragment");
                let verdict =
                    reassembly.handle_fragment(Instant::ZERO, mem, ReassemblyContext::LOCAL, pkt, info, counters);
                whole += usize::from(matches!(verdict, Verdict::Whole { .. }));
            }
        }
        whole
    }

    /// Passes fragments to the engine in bursts.
    fn run_bursts(&mut self) -> usize {
        let Self { mem, reassembly, counters, bursts, .. } = self;
        let mut whole = 0;
        for burst in bursts {
            let mut burst = Burst::new(burst);
            while let Some(train) = burst.first().and_then(|first| Train::of(first, 0)) {
                let taken = reassembly.handle_train(Instant::ZERO, mem, &train, &mut burst, |_| Some(0), counters);
                let Some((_, verdict)) = taken else { break };
                whole += usize::from(matches!(verdict, Verdict::Whole { .. }));
            }
        }
        whole
    }
}

/// Fragments of two datagrams alternately.
fn alternating<T>(mut datagrams: impl Iterator<Item = Vec<T>>) -> Vec<T> {
    let mut all = Vec::new();
    while let (Some(one), Some(other)) = (datagrams.next(), datagrams.next()) {
        all.extend(one.into_iter().zip(other).flat_map(|(one, other)| [one, other]));
    }
    all
}

/// Configuration without limits.
fn boundless() -> Config {
    let Config { v4, v6, .. } = Config::default();
    let [v4, v6] = [v4, v6].map(|limits| Limits { high_thresh: usize::MAX, ..limits });
    Config { v4, v6, ..Config::default() }
}

impl Turn for Receiving {
    fn prepare(&mut self) {
        let Self { mem, bursts, fragments, at_once, .. } = self;
        for (n, (bytes, _)) in fragments.iter().enumerate() {
            bursts[n / *at_once].push(Packet::with_data(mem, bytes).expect("a heap without limit"));
        }
        self.due += self.per_turn;
    }

    fn run(&mut self) {
        self.whole += if self.bursts.len() == 1 { self.run_single() } else { self.run_bursts() };
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.mem)
    }

    fn check(&self) -> Result<(), String> {
        let (memory, pages) = (self.reassembly.memory(), self.mem.small().in_use() + self.mem.large().in_use());
        match (self.whole == self.due, memory + pages) {
            (true, 0) => Ok(()),
            (true, _) => Err(format!("{memory} bytes and {pages} pages are left behind")),
            (false, _) => Err(format!("{} of {} datagrams are whole", self.whole, self.due)),
        }
    }
}

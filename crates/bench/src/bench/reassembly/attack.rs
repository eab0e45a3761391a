//! Good flow during a flood of fragments.
//!
//! The delivery of the good flow is measured on a clock with which both flows keep pace: a fragment of the good flow
//! arrives each microsecond, and four of the flood between two of them. The costs of a fragment of the flood and of the
//! good flow are measured separately.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use packet::{Memory, Packet};
use reassembly::Config;
use sim::Rng;
use wire::Version;

use super::fragment::{BURST, fragment};
use super::receiver::Receiver;
use super::stream::FragmentStream;
use crate::bench::case::{Comparison, Copied, Group, Load, Plan, Round, Sample, Turn};

/// Number of flood fragments for each fragment of the good flow.
const FLOOD: usize = 4;

/// Time between two fragments of the good flow.
const PACE: Duration = Duration::from_micros(1);

/// Bytes of payload of the good flow's datagrams.
const LARGEST: usize = 65_507;

/// Approximate number of fragments in one turn.
const FRAGMENTS: usize = 4096;

/// Number of prepared fragments of a flood, which are repeated with other identifications if these are irrelevant.
const MADE: usize = 8192;

const COMPARISONS: &[Comparison] =
    &[Comparison { of: "good/unattacked", over: &["good"], under: &["unattacked"], figure: None }];
const CPU_COMPARISONS: &[Comparison] =
    &[Comparison { of: "attack/good", over: &["attack"], under: &["good"], figure: None }];

/// A kind of flood.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Flood {
    /// First fragments of different datagrams, each from another subnet; none completes.
    OneFragment,
    /// Fragments of the smallest size, with a hole between every two.
    Tiny,
    /// Overlapping pairs.
    Overlaps,
    /// First fragments whose sources and identifications collide in a hash table without a secret.
    Collisions,
}

impl Flood {
    const ALL: [(Self, &str); 4] = [
        (Self::OneFragment, "one-fragment"),
        (Self::Tiny, "tiny"),
        (Self::Overlaps, "overlaps"),
        (Self::Collisions, "collisions"),
    ];

    /// Fragments of the attack, as on the wire.
    fn fragments(self) -> Vec<Vec<u8>> {
        let mut chance = Rng::new(7);
        (0..MADE as u32)
            .map(|n| match self {
                Self::OneFragment => from(chance.bits(), fragment(Version::V6, n, 0, 1448, true)),
                Self::Tiny => from(9, fragment(Version::V6, n / 2048, n as usize % 2048 * 16, 8, true)),
                Self::Overlaps => from(u64::from(n / 2), fragment(Version::V6, n, n as usize % 2 * 1440, 1448, true)),
                Self::Collisions => {
                    let falls_there = |source: &u64| unkeyed(*source, n).is_multiple_of(256);
                    let source = std::iter::repeat_with(|| chance.bits()).find(falls_there);
                    from(source.expect("one of many"), fragment(Version::V6, n, 0, 64, true))
                }
            })
            .map(|mut bytes| {
                if self == Self::Overlaps {
                    // Each pair of fragments belongs to one datagram.
                    bytes[47] &= !1;
                }
                bytes
            })
            .collect()
    }
}

/// The fragment with a source in that subnet.
fn from(subnet: u64, mut bytes: Vec<u8>) -> Vec<u8> {
    // Global unicast addresses (2000::/3).
    bytes[8..16].copy_from_slice(&(subnet >> 3 | 1 << 61).to_be_bytes());
    bytes
}

/// Hash of a table without a secret.
fn unkeyed(source: u64, id: u32) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((source, id))
}

/// Every case of a flood.
pub(super) fn groups() -> Vec<Group> {
    let through = Flood::ALL.map(|(flood, name)| Group {
        name: format!("attack/{name}"),
        cases: vec![
            Plan::played("unattacked", |round| Beside::new(None).play(round)),
            Plan::played("good", move |round| Beside::new(Some(flood)).play(round)),
        ],
        ratios: COMPARISONS,
    });
    let cost = [("attack-cpu", BURST), ("attack-cpu-at-once", FRAGMENTS)];
    let cost =
        cost.into_iter().flat_map(|(way, at_once)| Flood::ALL.map(|(flood, name)| cost_of(flood, at_once, way, name)));
    through.into_iter().chain(cost).collect()
}

/// Cost of a fragment of a flood, and of a fragment of a good flow, in bursts of `at_once` fragments.
fn cost_of(flood: Flood, at_once: usize, way: &str, name: &str) -> Group {
    let good = Load { packets: FRAGMENTS / 46 * 46, payload: FRAGMENTS / 46 * LARGEST, small: true };
    let attack = Load { packets: FRAGMENTS, payload: 0, small: true };
    let cases = vec![
        Plan::new("good", good, move || Box::new(Alone::new(None, at_once))),
        Plan::new("attack", attack, move || Box::new(Alone::new(Some(flood), at_once))),
    ];
    Group { name: format!("{way}/{name}"), cases, ratios: CPU_COMPARISONS }
}

/// A good flow with or without a simultaneous flood.
#[derive(Debug)]
struct Beside {
    receiver: Receiver,
    good: FragmentStream,
    flood: Vec<Vec<u8>>,
    /// Fragments of the flood so far.
    sent: usize,
    device: Memory,
}

impl Beside {
    fn new(flood: Option<Flood>) -> Self {
        Self {
            receiver: Receiver::new(Config::default()),
            good: FragmentStream::clear(Version::V6, LARGEST),
            flood: flood.map(Flood::fragments).unwrap_or_default(),
            sent: 0,
            device: Memory::heap(),
        }
    }

    fn play(mut self, round: Round) -> Result<Sample, String> {
        // The flood has started earlier.
        for _ in 0..2 * MADE {
            self.flood(1);
        }
        let (before, from) = (self.receiver.spent(), self.receiver.now);
        let mut datagrams = 0_u32;
        while self.receiver.now.since(from) < round.slice.max(Duration::from_millis(1)) {
            for at in 0..self.good.len() {
                let frame = self.device.small().take(Memory::HEADROOM).map_err(|err| err.to_string())?;
                let mut burst = vec![self.good.write(at, 0x8000_0000 | datagrams, frame)];
                self.receiver.take_paced(&mut burst, PACE);
                self.flood(FLOOD);
            }
            datagrams += 1;
        }
        let mut sample = self.receiver.sample((before, from), LARGEST);
        let delivered = self.receiver.spent().delivered - before.delivered;
        self.receiver.drain(false)?;
        sample.more = vec![
            ("of_intact", delivered as f64 / f64::from(datagrams)),
            ("memory_high_water", self.receiver.high_water() as f64),
        ];
        Ok(sample)
    }

    /// Sends `count` fragments of the flood, if there is one.
    fn flood(&mut self, count: usize) {
        if self.flood.is_empty() {
            return;
        }
        let Self { receiver, flood, sent, device, .. } = self;
        let mut burst = (0..count).map(|n| again(device, flood, *sent + n)).collect();
        *sent += count;
        receiver.take_paced(&mut burst, Duration::ZERO);
    }
}

/// Fragment number `n` of a flood.
fn again(device: &Memory, flood: &[Vec<u8>], n: usize) -> Packet {
    let (bytes, time) = (&flood[n % flood.len()], (n / flood.len()) as u8);
    let mut pkt = Packet::with_data(device, bytes).expect("a heap without limit");
    if let Some(bytes) = pkt.head_mut() {
        // The middle bytes of the identification, so that the fragments of a datagram keep the same one.
        bytes[45] = time;
    }
    pkt
}

/// A good flow or a flood alone.
#[derive(Debug)]
struct Alone {
    receiver: Receiver,
    good: FragmentStream,
    flood: Vec<Vec<u8>>,
    sent: usize,
    device: Memory,
    /// Input, in bursts of at most `at_once` fragments.
    bursts: Vec<Vec<Packet>>,
    at_once: usize,
    due: u64,
}

impl Alone {
    fn new(flood: Option<Flood>, at_once: usize) -> Self {
        Self {
            receiver: Receiver::new(Config::default()),
            good: FragmentStream::clear(Version::V6, LARGEST),
            flood: flood.map(Flood::fragments).unwrap_or_default(),
            sent: 0,
            device: Memory::heap(),
            bursts: (0..FRAGMENTS.div_ceil(at_once)).map(|_| Vec::with_capacity(at_once)).collect(),
            at_once,
            due: 0,
        }
    }
}

impl Turn for Alone {
    fn prepare(&mut self) {
        let Self { good, flood, sent, device, bursts, at_once, due, .. } = self;
        let mut put = |n: usize, pkt| bursts[n / *at_once].push(pkt);
        if flood.is_empty() {
            for n in 0..FRAGMENTS / good.len() * good.len() {
                let frame = device.small().take(Memory::HEADROOM).expect("a heap without limit");
                put(n, good.write(n % good.len(), *due as u32, frame));
                *due += u64::from((n + 1) % good.len() == 0);
            }
        } else {
            (0..FRAGMENTS).for_each(|n| put(n, again(device, flood, *sent + n)));
            *sent += FRAGMENTS;
        }
    }

    fn run(&mut self) {
        self.bursts.iter_mut().for_each(|burst| self.receiver.take_paced(burst, Duration::ZERO));
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.receiver.mem)
    }

    fn check(&self) -> Result<(), String> {
        let delivered = self.receiver.spent().delivered;
        if delivered == self.due { Ok(()) } else { Err(format!("{delivered} of {} datagrams came", self.due)) }
    }
}

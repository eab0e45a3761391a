//! Measuring one case: turns of it, of which the middle one counts.

use std::fmt;
use std::time::{Duration, Instant};

use packet::Allocations;

use crate::figures::median;

/// Turns before any counts: pools, caches and lists have their size then.
const WARM_TURNS: usize = 30;

/// Cases that are compared with each other.
pub(super) struct Group {
    /// What they have in common, a path.
    pub(super) name: String,
    /// In the order in which a round measures them.
    pub(super) cases: Vec<Plan>,
    /// Which are divided by which.
    pub(super) ratios: Vec<[&'static str; 2]>,
}

/// A case that is yet to be set up.
pub(super) struct Plan {
    /// The last part of its name.
    pub(super) name: &'static str,
    /// What one turn of it moves.
    pub(super) load: Load,
    /// Sets it up.
    pub(super) setup: Box<dyn Fn() -> Box<dyn Turn>>,
}

/// What one turn moves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// Packets, as the wire has them.
    pub(super) packets: usize,
    /// Bytes of payload inside.
    pub(super) payload: usize,
    /// Whether packets are what it is about, more than bytes.
    pub(super) small: bool,
}

/// Something that is measured, turn by turn.
pub(super) trait Turn {
    /// Makes what the next turn works on, as a device would. This is not timed.
    fn prepare(&mut self);

    /// One turn.
    fn run(&mut self);

    /// Bytes of packets copied so far, by the ledger.
    fn copied(&self) -> u64;

    /// Checks that what went in came out, all of it.
    ///
    /// # Errors
    /// What is missing.
    fn check(&self) -> Result<(), String>;
}

impl Group {
    /// The group with those of its cases alone whose whole names are wanted, if there are any.
    pub(super) fn only(mut self, wanted: impl Fn(&str) -> bool) -> Option<Self> {
        self.cases.retain(|case| wanted(&format!("{}/{}", self.name, case.name)));
        (!self.cases.is_empty()).then_some(self)
    }
}

impl Plan {
    /// The case, ready for its first turn.
    pub(super) fn start(&self) -> Case {
        let Self { name, load, .. } = *self;
        let turn = (self.setup)();
        Case { name, load, turn, nanos: Vec::with_capacity(1 << 16), sums: Sums::default(), rounds: Vec::new() }
    }
}

/// A case under measurement.
pub(super) struct Case {
    pub(super) name: &'static str,
    load: Load,
    turn: Box<dyn Turn>,
    /// Of each turn of this round.
    nanos: Vec<u32>,
    sums: Sums,
    /// What each round came to.
    pub(super) rounds: Vec<Sample>,
}

/// Over the turns of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    turns: u64,
    copied: u64,
    allocations: u64,
}

/// One round of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) gbps: f64,
    pub(super) ns_per_packet: f64,
    pub(super) copied_bytes_per_byte: f64,
    pub(super) allocs_per_packet: f64,
    /// In millions a second, where the packets are small.
    pub(super) mpps: Option<f64>,
}

impl Case {
    /// Runs turns that do not count.
    pub(super) fn warm(&mut self) -> Result<(), String> {
        for _ in 0..WARM_TURNS {
            self.turn.prepare();
            self.turn.run();
        }
        self.turn.check().map_err(|why| format!("{}: {why}", self.name))
    }

    /// Runs turns for as long as `limit`, at least one.
    pub(super) fn slice(&mut self, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        loop {
            self.turn.prepare();
            let (copied, allocations) = (self.turn.copied(), Allocations::count());
            let start = Instant::now();
            self.turn.run();
            let stop = Instant::now();
            self.sums.turns += 1;
            self.sums.copied += self.turn.copied() - copied;
            self.sums.allocations += Allocations::count() - allocations;
            self.nanos.push((stop - start).as_nanos().try_into().unwrap_or(u32::MAX));
            if stop >= end {
                break;
            }
        }
        self.turn.check().map_err(|why| format!("{}: {why}", self.name))
    }

    /// Sums the round up. Its time is that of its middle turn: the scheduler's share of a longer one is not ours.
    pub(super) fn end_round(&mut self) {
        let turn = median(self.nanos.iter().map(|&nanos| f64::from(nanos)));
        let Sums { turns, copied, allocations } = self.sums;
        let Load { packets, payload, small } = self.load;
        let (of_turns, packets) = (turns as f64, packets as f64);
        self.rounds.push(Sample {
            gbps: payload as f64 * 8.0 / turn,
            ns_per_packet: turn / packets,
            copied_bytes_per_byte: copied as f64 / (of_turns * payload as f64),
            allocs_per_packet: allocations as f64 / (of_turns * packets),
            mpps: small.then_some(packets * 1e3 / turn),
        });
        self.nanos.clear();
        self.sums = Sums::default();
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}

//! Measurement of one case, by its median turn.

use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use packet::{Allocations, CopyReason, Memory};

use crate::figures::median;

/// Unmeasured turns at the start, in which pools, caches and lists reach their size.
const WARM_TURNS: usize = 8;

/// Cases to compare with each other.
pub(super) struct Group {
    /// Common part of the cases' names, a path.
    pub(super) name: String,
    /// Cases in the order of a round.
    pub(super) cases: Vec<Plan>,
    /// Comparisons of the cases.
    pub(super) ratios: &'static [Comparison],
}

/// Speed of some cases relative to others: the total time of the cases `under` divided by the total time of the cases
/// `over`. With a figure: the sum of that figure of the cases `over` divided by the sum of the cases `under`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comparison {
    /// Name in the report.
    pub(super) of: &'static str,
    pub(super) over: &'static [&'static str],
    pub(super) under: &'static [&'static str],
    /// Further figure of the samples to compare instead of their speed.
    pub(super) figure: Option<&'static str>,
}

/// A case before its set-up.
pub(super) struct Plan {
    /// The last part of the case's name.
    name: &'static str,
    kind: Kind,
}

/// Method of measurement.
enum Kind {
    /// Turn by turn, by the median turn.
    Turns { load: Load, setup: Box<dyn Fn() -> Box<dyn Turn>> },
    /// Once in each round, by the case's own clock.
    Played(Rc<Play>),
}

/// Function that runs a case once in a round, and returns the sample, or the reason why the case cannot be measured here.
type Play = dyn Fn(Round) -> Result<Result<Sample, String>, String>;

/// Parameters of a played case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Number of the round, also a seed: random events differ between rounds.
    pub(super) number: u64,
    /// Time to measure, by the case's own clock.
    pub(super) slice: Duration,
}

/// Traffic of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Load {
    /// Number of packets on the wire.
    pub(super) packets: usize,
    /// Bytes of payload in the packets.
    pub(super) payload: usize,
    /// Whether the packet rate matters more than the byte rate.
    pub(super) small: bool,
}

/// Copied bytes of packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    /// Copied bytes without segments' headers.
    pub(super) payload: u64,
    /// Copied bytes of the headers of segments.
    pub(super) headers: u64,
}

impl Copied {
    /// Copies and allocations in the ledger of `mem`.
    pub(super) fn of(mem: &Memory) -> Self {
        let headers = mem.copies().get(CopyReason::SegmentHeader).bytes;
        Self { payload: mem.copies().total_bytes() - headers, headers }
    }
}

/// Measured operation, turn by turn.
pub(super) trait Turn {
    /// Prepares the input of the next turn, as a device would. Not timed.
    fn prepare(&mut self);

    /// Runs one turn.
    fn run(&mut self);

    /// Runs an unmeasured turn, with the maximum load of any turn.
    fn warm(&mut self) {
        self.prepare();
        self.run();
    }

    /// Bytes of packets copied so far, by the ledger.
    fn copied(&self) -> Copied;

    /// Number of transactions of a turn, if a turn consists of transactions; then percentiles of their time are
    /// reported too.
    fn transactions(&self) -> Option<usize> {
        None
    }

    /// Further figures at the end of a round, with their names in the report.
    fn more(&mut self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Checks that all of the input was delivered.
    ///
    /// # Errors
    /// The missing part.
    fn check(&self) -> Result<(), String>;
}

impl Group {
    /// The group with only those cases whose full names `matches` accepts, if any.
    pub(super) fn only(mut self, matches: impl Fn(&str) -> bool) -> Option<Self> {
        self.cases.retain(|case| matches(&format!("{}/{}", self.name, case.name)));
        (!self.cases.is_empty()).then_some(self)
    }

    /// Runs one short round of each case, as a test.
    ///
    /// # Panics
    /// If a case loses packets.
    #[cfg(test)]
    pub(super) fn run_briefly(&self) {
        for plan in &self.cases {
            let mut case = plan.start();
            let ran = (0..4).try_for_each(|_| case.slice(Duration::ZERO)).and_then(|()| case.end_round(1));
            assert_eq!(ran, Ok(()), "{}/{}", self.name, case.name);
        }
    }
}

impl Plan {
    /// A case `name`, measured turn by turn.
    pub(super) fn new(name: &'static str, load: Load, setup: impl Fn() -> Box<dyn Turn> + 'static) -> Self {
        Self { name, kind: Kind::Turns { load, setup: Box::new(setup) } }
    }

    /// A case `name`, played once in each round. Its failure ends the benchmark.
    pub(super) fn played(name: &'static str, play: impl Fn(Round) -> Result<Sample, String> + 'static) -> Self {
        Self::peer(name, move |round| play(round).map(Ok))
    }

    /// A case `name` by another program, played once in each round. If the inner result is an error, the case is reported as
    /// missing, and the others go on.
    pub(super) fn peer(
        name: &'static str,
        play: impl Fn(Round) -> Result<Result<Sample, String>, String> + 'static,
    ) -> Self {
        Self { name, kind: Kind::Played(Rc::new(play)) }
    }

    /// The case, ready for its first turn.
    pub(super) fn start(&self) -> Case {
        let work = match &self.kind {
            Kind::Turns { load, setup } => Work::Turns(Turns {
                load: *load,
                turn: setup(),
                nanos: Vec::with_capacity(1 << 16),
                sums: Sums::default(),
            }),
            Kind::Played(play) => Work::Played { play: Rc::clone(play), slice: Duration::ZERO },
        };
        Case { name: self.name, work, rounds: Vec::new(), missing: None }
    }
}

/// A case under measurement.
pub(super) struct Case {
    pub(super) name: &'static str,
    work: Work,
    /// Sample of each round.
    pub(super) rounds: Vec<Sample>,
    /// Reason why the case cannot be measured here.
    pub(super) missing: Option<String>,
}

enum Work {
    Turns(Turns),
    /// A played case, with its measuring time in this round so far.
    Played {
        play: Rc<Play>,
        slice: Duration,
    },
}

struct Turns {
    load: Load,
    turn: Box<dyn Turn>,
    /// Time of each turn in this round.
    nanos: Vec<u32>,
    sums: Sums,
}

/// Sums over the turns of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    turns: u64,
    copied: Copied,
    allocations: u64,
}

/// One round of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Time per turn.
    pub(super) nanos: f64,
    pub(super) gbps: f64,
    pub(super) ns_per_packet: f64,
    pub(super) copied_bytes_per_byte: f64,
    pub(super) header_bytes_per_byte: f64,
    pub(super) allocs_per_packet: f64,
    /// Millions of packets a second, for small packets.
    pub(super) mpps: Option<f64>,
    /// Further figures, with their names in the report.
    pub(super) more: Vec<(&'static str, f64)>,
}

impl Case {
    /// Runs unmeasured turns.
    pub(super) fn warm(&mut self) -> Result<(), String> {
        let Work::Turns(turns) = &mut self.work else { return Ok(()) };
        for _ in 0..WARM_TURNS {
            turns.turn.warm();
            turns.turn.prepare();
            turns.turn.run();
        }
        turns.turn.check().map_err(|why| format!("{}: {why}", self.name))
    }

    /// Runs turns for `limit`, at least one; or extends the measuring time of a played case by `limit`.
    pub(super) fn slice(&mut self, limit: Duration) -> Result<(), String> {
        match &mut self.work {
            Work::Turns(turns) => turns.slice(limit).map_err(|why| format!("{}: {why}", self.name)),
            Work::Played { slice, .. } => {
                *slice += limit;
                Ok(())
            }
        }
    }

    /// Computes the sample of round `number`. A missing case has none.
    pub(super) fn end_round(&mut self, number: u64) -> Result<(), String> {
        if self.missing.is_some() {
            return Ok(());
        }
        let sample = match &mut self.work {
            Work::Turns(turns) => turns.end_round(),
            Work::Played { play, slice } => {
                let round = Round { number, slice: std::mem::take(slice) };
                match play(round).map_err(|why| format!("{}: {why}", self.name))? {
                    Ok(sample) => sample,
                    Err(why) => {
                        self.missing = Some(why);
                        return Ok(());
                    }
                }
            }
        };
        self.rounds.push(sample);
        Ok(())
    }
}

impl Turns {
    fn slice(&mut self, limit: Duration) -> Result<(), String> {
        let end = Instant::now() + limit;
        loop {
            self.turn.prepare();
            let (copied, allocations) = (self.turn.copied(), Allocations::count());
            let start = Instant::now();
            self.turn.run();
            let stop = Instant::now();
            self.sums.turns += 1;
            let now = self.turn.copied();
            self.sums.copied.payload += now.payload - copied.payload;
            self.sums.copied.headers += now.headers - copied.headers;
            self.sums.allocations += Allocations::count() - allocations;
            self.nanos.push((stop - start).as_nanos().try_into().unwrap_or(u32::MAX));
            if stop >= end {
                break;
            }
        }
        self.turn.check()
    }

    /// The time of a round is that of its median turn: longer turns include the scheduler's share.
    fn end_round(&mut self) -> Sample {
        let turn = median(self.nanos.iter().map(|&nanos| f64::from(nanos)));
        let Sums { turns, copied, allocations } = self.sums;
        let Load { packets, payload, small } = self.load;
        let (of_turns, packets) = (turns as f64, packets as f64);
        let sample = Sample {
            nanos: turn,
            gbps: payload as f64 * 8.0 / turn,
            ns_per_packet: turn / packets,
            copied_bytes_per_byte: copied.payload as f64 / (of_turns * payload.max(1) as f64),
            header_bytes_per_byte: copied.headers as f64 / (of_turns * payload.max(1) as f64),
            allocs_per_packet: allocations as f64 / (of_turns * packets),
            mpps: small.then_some(packets * 1e3 / turn),
            more: self.more(),
        };
        self.nanos.clear();
        self.sums = Sums::default();
        sample
    }
}

impl Turns {
    fn more(&mut self) -> Vec<(&'static str, f64)> {
        let mut more = self.turn.more();
        if let Some(transactions) = self.turn.transactions() {
            self.nanos.sort_unstable();
            let at = |share: f64| {
                let place = ((self.nanos.len() as f64 * share) as usize).min(self.nanos.len().saturating_sub(1));
                self.nanos.get(place).map_or(0.0, |&nanos| f64::from(nanos)) / transactions as f64
            };
            more.extend([("p50_ns", at(0.5)), ("p90_ns", at(0.9)), ("p99_ns", at(0.99))]);
        }
        more
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread::sleep;

    use super::*;

    /// Turns of which every third is disturbed.
    struct Napping(Rc<Cell<u64>>);

    impl Turn for Napping {
        fn prepare(&mut self) {
            self.0.set(self.0.get() + 1);
        }

        fn run(&mut self) {
            sleep(Duration::from_millis(if self.0.get().is_multiple_of(3) { 20 } else { 1 }));
        }

        fn copied(&self) -> Copied {
            Copied { payload: self.0.get() / 2 * 50, headers: 0 }
        }

        fn check(&self) -> Result<(), String> {
            if self.0.get() < 1000 { Ok(()) } else { Err("tired".to_owned()) }
        }
    }

    fn case(turns: u64) -> Case {
        let load = Load { packets: 10, payload: 1000, small: true };
        Plan::new("napping", load, move || Box::new(Napping(Rc::new(Cell::new(turns))))).start()
    }

    #[test]
    fn round_has_the_figures_of_its_median_turn() {
        let mut case = case(0);
        case.warm().unwrap();
        case.slice(Duration::from_millis(60)).unwrap();
        case.slice(Duration::from_millis(60)).unwrap();
        case.end_round(0).unwrap();
        let Sample { nanos, gbps, ns_per_packet, mpps, .. } = case.rounds[0];
        assert!((1e6..15e6).contains(&nanos), "{nanos}");
        assert_eq!((gbps, ns_per_packet, mpps), (8000.0 / nanos, nanos / 10.0, Some(1e4 / nanos)));
    }

    #[test]
    fn slice_of_any_length_has_a_turn() {
        let mut case = case(0);
        case.slice(Duration::ZERO).unwrap();
        case.end_round(0).unwrap();
        let Work::Turns(turns) = &case.work else { panic!("a case of turns") };
        assert_eq!((case.rounds.len(), turns.nanos.len()), (1, 0));
    }

    #[test]
    fn played_case_receives_its_slice_and_round_number() {
        let play = |round: Round| match round.number {
            9 => Err("no good".to_owned()),
            number => Ok(Sample { gbps: number as f64, nanos: round.slice.as_nanos() as f64, ..Sample::default() }),
        };
        let mut case = Plan::played("played", play).start();
        case.warm().unwrap();
        for number in [3, 4] {
            case.slice(Duration::from_nanos(5)).unwrap();
            case.slice(Duration::from_nanos(7)).unwrap();
            case.end_round(number).unwrap();
        }
        assert_eq!(case.rounds.iter().map(|it| (it.gbps, it.nanos)).collect::<Vec<_>>(), [(3.0, 12.0), (4.0, 12.0)]);
        assert_eq!(case.end_round(9), Err("played: no good".to_owned()));
    }

    #[test]
    fn peer_that_fails_is_missing_and_not_played_again() {
        let played = Rc::new(Cell::new(0));
        let play = |played: Rc<Cell<u64>>| {
            move |round: Round| {
                played.set(played.get() + 1);
                if round.number == 0 { Ok(Ok(Sample::default())) } else { Ok(Err("not installed".to_owned())) }
            }
        };
        let mut case = Plan::peer("peer", play(Rc::clone(&played))).start();
        for number in 0..4 {
            case.end_round(number).unwrap();
        }
        assert_eq!((case.missing.as_deref(), played.get()), (Some("not installed"), 2));
        let mut case = Plan::peer("peer", |_| Err("interrupted".to_owned())).start();
        assert_eq!((case.end_round(0), case.missing), (Err("peer: interrupted".to_owned()), None));
    }

    #[test]
    fn lost_packet_ends_the_measurement() {
        assert_eq!(case(1000).slice(Duration::ZERO), Err("napping: tired".to_owned()));
        assert_eq!(case(999).warm(), Err("napping: tired".to_owned()));
    }

    #[test]
    fn group_keeps_the_cases_that_match() {
        let load = Load::default();
        let plan = |name| Plan::new(name, load, || Box::new(Napping(Rc::default())));
        let group = || Group { name: "a/b".to_owned(), cases: vec![plan("fat"), plan("thin")], ratios: &[] };
        let left = |matches: &str| {
            let names = |group: Group| group.cases.iter().map(|case| case.name).collect::<Vec<_>>();
            group().only(|name| name.contains(matches)).map(names)
        };
        assert_eq!(left("/b/f"), Some(vec!["fat"]));
        assert_eq!(left("a/"), Some(vec!["fat", "thin"]));
        assert_eq!(left("fatter"), None);
    }
}

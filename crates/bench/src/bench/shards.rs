//! `fatpath bench shards`: work of two shards at the same time, compared with one, in memory.
//!
//! A shard is a thread on a processor of its own that has whole gateways of its own: tables, caches, pools of pages. Two shards
//! share nothing that a packet needs, so two/one is the most that several workers can gain on this machine; what is below 2
//! is the loss to caches, memory and clock that the processors share.
//!
//! - `esp`: a tunnel with AES-256-GCM in raw ESP: packets through the gateway that seals, and as many through the one that
//!   opens.
//! - `forward`: packets through a gateway without policies.
//! - `fat`: TCP super-packets of 64 KiB; `64b`: UDP packets of 64 bytes in 64 flows.
//!
//! A packet's time is that of a median turn, in which the other shard takes its own turns or prepares them. `cpu_ns` is the
//! processor time for each packet, of all turns. The ratio `two/one` is of packets in a time; `two/one cpu_ns` is the time of
//! a packet beside another shard relative to that of a packet alone, and 1 if shards do not slow each other.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use packet::Allocations;

use super::case::{Comparison, Copied, Group, Load, Plan, Round, Sample, Turn};
use super::esp::{self, Traffic};
use super::{cpu, cpu::thread_time};
use crate::figures::{Ratio, median};

/// Unmeasured turns of each shard, in which pools, caches and lists reach their size.
const WARM_TURNS: usize = 8;

/// Name of the ratio of two shards' speed to one's.
const TWO_TO_ONE: &str = "two/one";

/// Numbers of shards that the model is printed for.
const MODELLED: [u32; 2] = [4, 16];

/// Name of the processor time for a packet.
const CPU: &str = "cpu_ns";

const RATIOS: &[Comparison] = &[
    Comparison { of: TWO_TO_ONE, over: &["two"], under: &["one"], figure: None },
    Comparison { of: "two/one cpu_ns", over: &["two"], under: &["one"], figure: Some(CPU) },
];

/// Lines of a model of more shards than two: N of them do N / (1 + σ (N - 1)) times the work of one (Amdahl's law), with the σ at which
/// two of them have the measured ratio. Empty if there is no such ratio.
pub(super) fn model(ratios: &[Ratio]) -> String {
    let measured: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.of == TWO_TO_ONE && ratio.median > 0.0).collect();
    let width = measured.iter().map(|ratio| ratio.name.len()).max().unwrap_or(0);
    let line = |ratio: &&Ratio| {
        let sigma = (2.0 / ratio.median - 1.0).max(0.0);
        let of = |shards| f64::from(shards) / (1.0 + sigma * f64::from(shards - 1));
        let gains: String = MODELLED.iter().map(|&shards| format!("  {shards} shards {:.1}", of(shards))).collect();
        format!("\n  {:<width$}  σ {sigma:.3}{gains}", ratio.name)
    };
    let lines: String = measured.iter().map(line).collect();
    if lines.is_empty() { lines } else { format!("model, not measured: N / (1 + σ (N - 1)) times one shard:{lines}") }
}

/// Work of a shard.
#[derive(Clone, Copy, Debug)]
enum Work {
    Esp,
    Forward,
}

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let works = [("esp", Work::Esp), ("forward", Work::Forward)];
    let sizes = [("fat", Traffic::SuperPackets), ("64b", Traffic::Small)];
    let group = |(name, work): (&str, Work), (size, traffic): (&str, Traffic)| {
        let plan = |(name, shards)| Plan::played(name, move |round| play(work, traffic, shards, round));
        Group { name: format!("{name}/{size}"), cases: [("one", 1), ("two", 2)].map(plan).into(), ratios: RATIOS }
    };
    works.iter().flat_map(|&work| sizes.map(|size| group(work, size))).collect()
}

/// Gateways of one shard.
struct Gateways {
    load: Load,
    /// A turn of each gateway; every packet of the load goes through each.
    turns: Vec<Box<dyn Turn>>,
}

impl Gateways {
    fn new(work: Work, traffic: Traffic) -> Self {
        let (load, turns) = match work {
            Work::Esp => esp::tunnel(traffic),
            Work::Forward => esp::forwarding(traffic),
        };
        Self { load, turns }
    }

    fn copied(&self) -> Copied {
        let all = self.turns.iter().map(|turn| turn.copied());
        all.fold(Copied::default(), |sum, it| Copied {
            payload: sum.payload + it.payload,
            headers: sum.headers + it.headers,
        })
    }
}

/// Measurements of one shard.
#[derive(Debug, Default)]
struct Ran {
    load: Load,
    /// Time of each turn.
    nanos: Vec<f64>,
    cpu: Duration,
    copied: Copied,
    allocations: u64,
}

/// Runs `shards` shards for the slice of a round.
fn play(work: Work, traffic: Traffic, shards: usize, round: Round) -> Result<Sample, String> {
    let start = Barrier::new(shards);
    let ran: Vec<Ran> = thread::scope(|scope| {
        let shard = |nth| {
            let start = &start;
            scope.spawn(move || run(work, traffic, nth, round.slice, start))
        };
        let threads: Vec<_> = (0..shards).map(shard).collect();
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| "a shard panicked".to_owned())?);
        ended.collect::<Result<_, String>>()
    })?;
    Ok(sample(&ran))
}

/// Runs shard `nth` on this thread, from the moment at which all of them are ready.
fn run(work: Work, traffic: Traffic, nth: usize, slice: Duration, start: &Barrier) -> Result<Ran, String> {
    let bound = cpu::bind(nth);
    let mut gateways = Gateways::new(work, traffic);
    for turn in &mut gateways.turns {
        (0..WARM_TURNS).for_each(|_| turn.warm());
    }
    // The other shard waits even if this one cannot run.
    start.wait();
    bound?;
    let mut ran = Ran { load: gateways.load, nanos: Vec::with_capacity(1 << 14), ..Ran::default() };
    let end = Instant::now() + slice;
    loop {
        gateways.turns.iter_mut().for_each(|turn| turn.prepare());
        let (copied, allocations, cpu) = (gateways.copied(), Allocations::of_thread(), thread_time());
        let begin = Instant::now();
        gateways.turns.iter_mut().for_each(|turn| turn.run());
        let stop = Instant::now();
        ran.cpu += thread_time().saturating_sub(cpu);
        ran.allocations += Allocations::of_thread() - allocations;
        let now = gateways.copied();
        ran.copied.payload += now.payload - copied.payload;
        ran.copied.headers += now.headers - copied.headers;
        ran.nanos.push((stop - begin).as_nanos() as f64);
        if stop >= end {
            break;
        }
    }
    gateways.turns.iter().try_for_each(|turn| turn.check())?;
    Ok(ran)
}

/// The sample of all shards together: their rates are added.
fn sample(ran: &[Ran]) -> Sample {
    let per_nano = |count: fn(&Load) -> usize| -> f64 {
        ran.iter().map(|ran| count(&ran.load) as f64 / median(ran.nanos.iter().copied())).sum()
    };
    let total = |count: fn(&Load) -> usize| -> f64 {
        ran.iter().map(|ran| count(&ran.load) as f64 * ran.nanos.len() as f64).sum()
    };
    let (packets, payload) = (total(|load| load.packets), total(|load| load.payload));
    let rate = per_nano(|load| load.packets);
    let cpu: Duration = ran.iter().map(|ran| ran.cpu).sum();
    let sum = |of: fn(&Ran) -> u64| ran.iter().map(of).sum::<u64>() as f64;
    Sample {
        nanos: 1.0 / rate,
        gbps: per_nano(|load| load.payload) * 8.0,
        ns_per_packet: 1.0 / rate,
        copied_bytes_per_byte: sum(|ran| ran.copied.payload) / payload,
        header_bytes_per_byte: sum(|ran| ran.copied.headers) / payload,
        allocs_per_packet: sum(|ran| ran.allocations) / packets,
        mpps: ran.iter().all(|ran| ran.load.small).then_some(rate * 1e3),
        more: vec![(CPU, cpu.as_nanos() as f64 / packets)],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_case_moves_its_packets() {
        let processors = cpu::available().count();
        let possible = |name: &str| processors > 1 || name.ends_with("/one");
        groups().into_iter().filter_map(|group| group.only(possible)).for_each(|group| group.run_briefly());
    }

    #[test]
    fn groups_are_esp_and_forwarding_fat_and_small() {
        let groups = groups();
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, BTreeSet::from(["esp/64b", "esp/fat", "forward/64b", "forward/fat"]));
    }

    #[test]
    fn model_has_the_sigma_of_two_shards() {
        let ratio = |name: &str, of: &str, median| Ratio {
            name: name.to_owned(),
            of: of.to_owned(),
            median,
            min: median,
            max: median,
        };
        let ratios =
            [ratio("esp/fat", "two/one", 1.6), ratio("esp/fat", "two/one cpu_ns", 1.2), ratio("f", "two/one", 2.1)];
        // 2 / 1.6 - 1; shards that speed each other up are a fault of the measurement.
        let want = "model, not measured: N / (1 + σ (N - 1)) times one shard:\n  esp/fat  σ 0.250  4 shards 2.3  16 shards 3.4\n  \
                    f        σ 0.000  4 shards 4.0  16 shards 16.0";
        assert_eq!(model(&ratios), want);
        assert_eq!(model(&ratios[1..2]), "");
    }

    #[test]
    fn sample_adds_the_rates_of_the_shards() {
        let load = Load { packets: 10, payload: 1000, small: true };
        let ran = |nanos: f64, cpu| Ran {
            load,
            // The turn in the middle counts.
            nanos: vec![1.0, nanos, 1e9],
            cpu: Duration::from_nanos(cpu),
            copied: Copied { payload: 1500, headers: 300 },
            allocations: 3,
        };
        let one = sample(&[ran(500.0, 1500)]);
        assert_eq!((one.ns_per_packet, one.gbps, one.mpps), (50.0, 16.0, Some(20.0)));
        assert_eq!((one.copied_bytes_per_byte, one.header_bytes_per_byte), (0.5, 0.1));
        assert_eq!((one.allocs_per_packet, one.more), (0.1, vec![(CPU, 50.0)]));
        let two = sample(&[ran(500.0, 1500), ran(1000.0, 3000)]);
        assert_eq!((two.gbps, two.mpps, two.more), (24.0, Some(30.0), vec![(CPU, 75.0)]));
        assert_eq!((two.copied_bytes_per_byte, two.allocs_per_packet), (0.5, 0.1));
    }
}

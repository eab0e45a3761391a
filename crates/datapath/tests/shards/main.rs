//! A node of several shards does what a node of one does: for any input and any order of turns, the same packets leave, in the same
//! order within each flow, and the sums of all counters are equal.
//!
//! The seed determines a run, and is printed on failure. `FATPATH_SIM_SEEDS` is the number of seeds, `FATPATH_SIM_SEED` selects one,
//! and `FATPATH_SIM_FIRST` is the first.

mod input;
mod outcome;
mod setup;

use std::env;
use std::net::IpAddr;
use std::time::Duration;

use base::{PortId, ShardCount};
use fib::Known;
use sim::{Cluster, Rng};

use input::{Input, Source, answer};
use outcome::Outcome;
use setup::*;

/// Default number of seeds.
const SEEDS: u64 = 300;

/// Phases of one seed.
const PHASES: usize = 12;

/// Numbers of shards that are compared with one.
const COUNTS: [u8; 2] = [2, 5];

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn shards_together_do_what_one_does() {
    let number = |name| env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    if let Some(seed) = number("FATPATH_SIM_SEED") {
        return drop(Trial::new(seed).run());
    }
    let first = number("FATPATH_SIM_FIRST").unwrap_or(0);
    let seeds = number("FATPATH_SIM_SEEDS").unwrap_or(SEEDS);
    let limited = (first..first + seeds).filter(|&seed| Trial::new(seed).run().is_limited).count();
    assert!(limited as u64 * 10 <= seeds, "{limited} of {seeds} seeds reach a limit");
}

/// End of a trial.
struct End {
    /// Whether a rate limit was reached, which is each shard's own; nothing is compared afterwards.
    is_limited: bool,
}

/// The same input for a node of one shard and nodes of several.
struct Trial {
    seed: u64,
    rng: Rng,
    setup: Setup,
    source: Source,
    /// The node of one shard first.
    clusters: Vec<Cluster>,
    /// Stations that the node looks for.
    solicited: Vec<(PortId, IpAddr)>,
    /// Links that are down.
    down: Vec<PortId>,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let setup = Setup::new(&mut rng);
        let counts = [1].into_iter().chain(COUNTS);
        let clusters = counts.map(|count| {
            let count = ShardCount::new(count).expect("a good number");
            let mut cluster = Cluster::new(count, rng.bits(), START, |node| setup.configure(node));
            setup.elsewhere().into_iter().for_each(|link| cluster.keep_in_first_shard(link));
            cluster
        });
        let clusters = clusters.collect();
        let source = Source::new(Rng::new(rng.bits()));
        Self { seed, rng, setup, source, clusters, solicited: Vec::new(), down: Vec::new() }
    }

    fn run(mut self) -> End {
        for phase in 0..PHASES {
            // Stations that are looked for answer in time: packets that no station takes are refused, each with an error.
            let is_looking = !self.solicited.is_empty();
            let what = match self.rng.below(10) {
                0 if !is_looking => self.change(),
                1 | 2 if !is_looking => self.messages(),
                _ => self.traffic(),
            };
            let longest = if self.outstanding() { 2 } else { 10 };
            let pause = match self.rng.below(longest) {
                // A queueing discipline sends what waits in it meanwhile.
                0 => 400 * MILLISECOND,
                1 => 1200 * MILLISECOND,
                2 => Duration::from_secs(6),
                3 => Duration::from_secs(36),
                _ => 600 * MILLISECOND,
            };
            let outcomes = self.clusters.iter_mut().map(|cluster| {
                cluster.advance(cluster.now() + pause);
                Outcome::take(cluster, &self.setup)
            });
            let outcomes: Vec<Outcome> = outcomes.collect();
            if outcomes.iter().any(Outcome::is_limited) {
                if env::var("FATPATH_SIM_SEED").is_ok() {
                    eprintln!(
                        "limited at phase {phase} {what} {:?}",
                        outcomes.iter().map(|it| &it.drops).collect::<Vec<_>>()
                    );
                }
                return End { is_limited: true };
            }
            let (one, others) = outcomes.split_first().expect("several");
            for (count, other) in COUNTS.into_iter().zip(others) {
                if let Some(difference) = one.difference(other) {
                    panic!(
                        "seed {}, phase {phase} ({what}), {count} shards of {:?}: {difference}",
                        self.seed, self.setup
                    );
                }
            }
            self.solicited = one.solicited();
        }
        self.finish();
        End { is_limited: false }
    }

    /// Tells whether packets wait for a station that answers.
    fn outstanding(&self) -> bool {
        let looked_for = self.clusters[0].first().neighbours.iter().filter(|it| it.queued > 0);
        looked_for.into_iter().any(|it| answer(it.link, it.addr).is_some())
    }

    /// Packets of flows, with the answers of stations that the node has looked for.
    fn traffic(&mut self) -> String {
        let flows = 1 + self.rng.below(8);
        let mut inputs = self.source.traffic(flows, 3, &self.down);
        for (link, target) in std::mem::take(&mut self.solicited) {
            if let Some(answer) = answer(link, target) {
                inputs.insert(self.rng.below(inputs.len() + 1), answer);
            }
        }
        self.receive(&inputs);
        format!("{} packets", inputs.len())
    }

    /// Messages of stations, each of one.
    fn messages(&mut self) -> String {
        let links = [ETHERNET, SMALL, SHAPED, VLAN, RED_ETHERNET];
        let mut inputs = Vec::new();
        let first = self.rng.below(12) as u16;
        for nth in 0..1 + self.rng.below(6) as u16 {
            let link = *self.rng.pick(&links);
            // No two of them are of one station.
            inputs.push(self.source.message(link, 1 + (first + nth) % 16));
        }
        self.receive(&inputs);
        format!("{} messages", inputs.len())
    }

    fn receive(&mut self, inputs: &[Input]) {
        for cluster in &mut self.clusters {
            for Input { link, make } in inputs {
                cluster.arrive(*link, |mem| make(mem));
            }
            cluster.settle();
        }
    }

    /// A change of the configuration, at one place of the input.
    fn change(&mut self) -> String {
        let link = *self.rng.pick(&[ETHERNET, SMALL, SHAPED, DEFRAG, RED_ETHERNET]);
        let which = if self.setup.gro { 4 + self.rng.below(3) } else { self.rng.below(7) };
        match which {
            0 => {
                let is_up = self.down.contains(&link);
                self.down.retain(|&down| down != link);
                if !is_up {
                    self.down.push(link);
                }
                self.change_all(move |node, now| node.datapath.set_up(now, &node.mem, link, is_up));
            }
            1 | 2 => {
                let host = 1 + self.rng.below(12) as u16;
                let link = *self.rng.pick(&[ETHERNET, SMALL, SHAPED, RED_ETHERNET]);
                let addr = address(link, host, self.rng.happens(500));
                let mac = station(link, host, 2);
                let known =
                    *self.rng.pick(&[Known::Permanent(mac), Known::Reachable(mac), Known::Stale(mac), Known::Nothing]);
                self.change_all(move |node, now| node.datapath.set_neighbour(now, &node.mem, link, addr, known, 0));
            }
            3 => {
                let is_on = self.rng.happens(500);
                self.change_all(move |node, _| {
                    node.datapath.remove_ila(ILA, None);
                    if is_on {
                        node.datapath.add_ila(mapping()).expect("no other");
                    }
                });
            }
            4 => {
                let links = if self.rng.happens(500) { vec![DEFRAG] } else { vec![DEFRAG, SMALL] };
                self.change_all(move |node, _| node.datapath.set_defrag(links.clone()));
            }
            5 => {
                let options = if self.rng.happens(500) { None } else { Some(tbf()) };
                self.change_all(move |node, now| {
                    node.datapath.set_qdisc(now, &node.mem, SHAPED, options).expect("good")
                });
            }
            _ => {
                let mtu = *self.rng.pick(&[1280, 1400, 1500]);
                self.change_all(move |node, _| {
                    let config = node.datapath.ports.get(SMALL).expect("a port").config.clone();
                    node.datapath.set_port(SMALL, datapath::PortConfig { mtu, ..config });
                });
            }
        }
        format!("change {which}")
    }

    fn change_all(&mut self, change: impl Fn(&mut sim::Node, base::Instant) + Clone + 'static) {
        for cluster in &mut self.clusters {
            cluster.change(change.clone());
            cluster.settle();
        }
    }

    /// Removes all links: no page is left.
    fn finish(mut self) {
        // The removal of a neighbour causes errors for packets that wait for it, and the errors may wait in turn.
        for _ in 0..2 {
            for port in PORTS {
                self.change_all(move |node, now| node.datapath.set_up(now, &node.mem, port, false));
            }
        }
        self.change_all(|node, now| PORTS.into_iter().for_each(|port| node.datapath.remove_port(now, &node.mem, port)));
        for mut cluster in self.clusters {
            cluster.advance(cluster.now() + Duration::from_secs(120));
            drop(cluster.take_sent());
            assert_eq!(cluster.pages_in_use(), 0, "seed {}: {cluster:?}", self.seed);
        }
    }
}

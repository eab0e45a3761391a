//! A node of several shards does what a node of one does: for any input and any order of turns, the same packets leave, in the same
//! order within each flow, and the sums of all counters are equal.
//!
//! The seed determines a run, and is printed on failure. `FATPATH_SIM_SEEDS` is the number of seeds, `FATPATH_SIM_SEED` selects one,
//! and `FATPATH_SIM_FIRST` is the first.

mod esp;
mod input;
mod outcome;
mod owners;
mod setup;

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::time::Duration;

use base::{PortId, ShardCount};
use fib::{Known, NudState};
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
        Trial::new(seed).run();
        return;
    }
    let first = number("FATPATH_SIM_FIRST").unwrap_or(0);
    let seeds = number("FATPATH_SIM_SEEDS").unwrap_or(SEEDS);
    let limited = (first..first + seeds).filter(|&seed| Trial::new(seed).run().is_limited).count();
    assert!(limited as u64 * 10 <= seeds, "{limited} of {seeds} seeds reach a limit");
}

/// Rings that are full lose packets, which are counted, and nothing else: what leaves is a part of what leaves a node of one shard, in the
/// same order within each flow, and no page is leaked.
#[test]
fn full_rings_drop_packets_and_keep_order() {
    let mut refused = 0;
    for seed in 0..20 {
        let mut trial = Trial::new(seed);
        trial.setup.gro = true;
        let ring = 1 + trial.rng.below(12);
        let clusters = std::mem::take(&mut trial.clusters).into_iter().enumerate();
        trial.clusters =
            clusters.map(|(at, cluster)| if at == 0 { cluster } else { cluster.with_ring(ring) }).collect();
        let mut sent = [const { BTreeMap::<_, Vec<Vec<u8>>>::new() }; 1 + COUNTS.len()];
        for _ in 0..PHASES {
            trial.traffic();
            for (cluster, sent) in trial.clusters.iter_mut().zip(&mut sent) {
                cluster.advance(cluster.now() + 400 * MILLISECOND);
                let outcome = Outcome::take(cluster, &trial.setup);
                trial.solicited.extend(outcome.solicited());
                for (flow, frames) in outcome.sent {
                    sent.entry(flow).or_default().extend(frames);
                }
            }
            trial.solicited.sort_unstable();
            trial.solicited.dedup();
        }
        let [one, others @ ..] = &sent;
        for (flow, frames) in others.iter().flatten().filter(|((_, flow), _)| flow.is_some()) {
            let mut all = one.get(flow).into_iter().flatten();
            let is_part = frames.iter().all(|frame| all.any(|other| other == frame));
            assert!(is_part, "seed {seed}, rings of {ring}, {flow:?}");
        }
        for cluster in &trial.clusters[1..] {
            let dropped: u64 =
                cluster.drops().iter().filter(|((_, reason), _)| *reason == "ShardQueueFull").map(|(_, n)| n).sum();
            // Fences are no packets.
            assert!(dropped <= cluster.refused(), "{dropped} of {} are counted", cluster.refused());
            refused += dropped;
        }
        trial.finish();
    }
    assert!(refused > 100, "{refused} packets found no room");
}

/// A cluster whose packets all arrive in the queues of the second shard.
fn second_shard(seed: u64, configure: impl Fn(&mut sim::Node)) -> Cluster {
    let two = ShardCount::new(2).expect("a good number");
    Cluster::new(two, seed, START, configure).steered_by(|_, _, _| base::ShardId(1))
}

const PLAIN: Setup = Setup { gro: false, qdiscs: [None; 2], is_elsewhere: [false; 2] };

#[test]
fn packet_that_finds_no_room_is_counted_at_its_input_link() {
    let mut cluster = second_shard(1, |node| PLAIN.configure(node)).with_ring(4);
    cluster.keep_in_first_shard(SINGLE);
    let flow = sim::Flow::new("10.1.0.1", "10.10.0.1");
    for _ in 0..40 {
        cluster.arrive(INSIDE, |mem| packet::Packet::with_data(mem, &flow.udp(100)).expect("memory"));
    }
    // The first shard does not run meanwhile.
    for _ in 0..40 {
        cluster.turn(1);
    }
    cluster.settle();
    assert_eq!((cluster.take_sent().len(), cluster.refused()), (4, 36));
    assert_eq!(cluster.drops(), BTreeMap::from([((INSIDE.0, "ShardQueueFull"), 36)]));
    assert_eq!(cluster.pages_in_use(), 0);
    cluster.arrive(INSIDE, |mem| packet::Packet::with_data(mem, &flow.udp(100)).expect("memory"));
    cluster.settle();
    assert_eq!((cluster.take_sent().len(), cluster.handed_over()), (1, 5));
}

/// Update of the first shard that are on their way when the operator changes a neighbour do not undo the change.
#[test]
fn updates_on_their_way_do_not_undo_a_change() {
    let station_of = |moved| station(ETHERNET, 9, moved);
    let addr = address(ETHERNET, 9, true);
    let flow = sim::Flow::new("10.1.0.1", &addr.to_string());
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut cluster = second_shard(seed, |node| PLAIN.configure(node));
        let packets = |cluster: &mut Cluster, n: usize| {
            for _ in 0..n {
                cluster.arrive(INSIDE, |mem| packet::Packet::with_data(mem, &flow.udp(100)).expect("memory"));
            }
        };
        packets(&mut cluster, 3);
        cluster.settle();
        let reply = answer(ETHERNET, addr).expect("it answers");
        cluster.arrive(ETHERNET, |mem| (reply.make)(mem));
        // Some part of the way of the answer, of the updates, and of the fence.
        for _ in 0..rng.below(12) {
            cluster.turn(rng.below(2));
        }
        let known = if rng.happens(500) { Known::Permanent(station_of(2)) } else { Known::Nothing };
        cluster.change(move |node, now| node.datapath.set_neighbour(now, &node.mem, ETHERNET, addr, known, 0));
        // They leave while the shard has yet to apply the change.
        let before = cluster.take_sent().len();
        packets(&mut cluster, 5);
        cluster.settle();
        let frames = cluster.take_sent();
        let to = |pkt: &packet::Packet| wire::eth::EthHeader::ref_from(pkt.head()).expect("a frame").dst();
        let sent: Vec<_> = frames.iter().map(|(_, pkt)| to(pkt)).collect();
        let late = sent.iter().rev().take(5).filter(|&&to| to != station_of(2)).count();
        if matches!(known, Known::Permanent(_)) {
            assert_eq!(late, 0, "seed {seed}: {sent:?} behind {before}");
        }
        let held = cluster.nodes().map(sim::Node::waiting).sum::<usize>();
        assert!(matches!(known, Known::Permanent(_)) || held > 0 || sent.len() >= 5, "seed {seed}: {sent:?}");
    }
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

    /// Whether the node has given up a station: an answer among new packets for it comes before or after them, as the shards have
    /// their turns.
    fn is_late(&self, asked: (PortId, IpAddr)) -> bool {
        let mut neighbours = self.clusters[0].first().neighbours.iter();
        neighbours.any(|it| (it.link, it.addr) == asked && it.state == NudState::Failed)
    }

    /// Packets of flows, with the answers of stations that the node has looked for.
    fn traffic(&mut self) -> String {
        let flows = 1 + self.rng.below(8);
        let mut inputs = self.source.traffic(flows, 3, &self.down);
        let (late, timely) = std::mem::take(&mut self.solicited).into_iter().partition(|&asked| self.is_late(asked));
        let answers =
            |asked: Vec<(PortId, IpAddr)>| asked.into_iter().filter_map(|(link, target)| answer(link, target));
        self.receive(&answers(late).collect::<Vec<_>>());
        for answer in answers(timely) {
            inputs.insert(self.rng.below(inputs.len() + 1), answer);
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
                    node.datapath.remove_ila(mapping().key());
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
                    node.datapath.set_qdisc(now, &node.mem, SHAPED, options).expect("good");
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

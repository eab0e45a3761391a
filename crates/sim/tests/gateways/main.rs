//! Two gateways with every kind of fault: wires that lose, duplicate, reorder and damage frames, busy devices, rekeys,
//! changing routes and policies, nested SAs that expire and are padded, under traffic of every kind. In all cases no
//! payload is on the wire in clear, no packet is delivered twice or without a sender, a flow keeps the order of the
//! wire, each packet is accounted for, and all memory is freed.
//!
//! The seed determines a run, and is printed on failure. `FATPATH_SIM_SEEDS` is the number of seeds for each kind, and
//! `FATPATH_SIM_SEED` selects one.

mod account;
mod ledger;
mod onlooker;
mod plan;
mod rekey;
mod site;
mod traffic;

use std::env;
use std::time::Duration;

use sim::Rng;
use xfrm::Dir;

use account::Sums;
use ledger::Ledger;
use onlooker::Onlooker;
use plan::{Kind, Plan};
use site::Site;
use traffic::Traffic;

/// Default number of seeds of each kind.
const SEEDS: u64 = 100;

/// Steps of one seed.
const STEPS: usize = 60;

#[test]
fn raw_tunnels_in_bad_days_account_for_every_packet() {
    each_seed(Kind::Tunnel);
}

#[test]
fn udp_tunnels_in_bad_days_account_for_every_packet() {
    each_seed(Kind::UdpTunnel);
}

#[test]
fn transport_mode_in_bad_days_accounts_for_every_packet() {
    each_seed(Kind::Transport);
}

fn each_seed(kind: Kind) {
    let number = |name| env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let mut sums = Sums::default();
    if let Some(seed) = number("FATPATH_SIM_SEED") {
        return day(kind, seed, &mut sums);
    }
    (0..number("FATPATH_SIM_SEEDS").unwrap_or(SEEDS)).for_each(|seed| day(kind, seed, &mut sums));
    sums.check_trouble(kind);
}

/// A complete run.
fn day(kind: Kind, seed: u64, sums: &mut Sums) {
    let mut rng = Rng::new(seed ^ (kind as u64) << 32);
    let mut day = Day::new(Plan::new(kind, seed, &mut rng), rng);
    day.find_neighbours();
    for _ in 0..STEPS {
        day.step();
    }
    day.end(sums);
}

struct Day {
    site: Site,
    traffic: Traffic,
    ledger: Ledger,
    onlooker: Onlooker,
    rng: Rng,
}

impl Day {
    fn new(plan: Plan, rng: Rng) -> Self {
        Self { site: Site::new(plan), traffic: Traffic::new(), ledger: Ledger::new(), onlooker: Onlooker::new(), rng }
    }

    /// Uses each wire once, before the faults.
    fn find_neighbours(&mut self) {
        for _ in 0..2 {
            for _ in 0..6 {
                self.traffic.send(&mut self.site, &mut self.ledger, &mut self.rng);
            }
            self.pass(Duration::from_millis(10));
            self.site.flip_route(0);
            self.site.flip_route(1);
        }
    }

    fn step(&mut self) {
        let rng = &mut self.rng;
        if rng.happens(100) {
            let wire = self.site.plan.wire(rng);
            self.site.world.set_wire(rng.below(2), wire);
        }
        if rng.happens(300) {
            self.site.rekey(rng.below(self.site.lanes()));
        }
        if rng.happens(100) {
            self.site.flip_route(rng.below(2));
        }
        if rng.happens(70) {
            let (protocol, port) = Traffic::some_port(rng);
            let dir = *rng.pick(&[Dir::Out, Dir::Fwd]);
            self.site.toggle_block(rng.below(2), dir, protocol, rng.happens(500), port);
        }
        for _ in 0..rng.below(5) {
            self.traffic.send(&mut self.site, &mut self.ledger, &mut self.rng);
        }
        let long = *self.rng.pick(&[20, 100, 500, 500, 5000, 30_000]);
        let how_long = self.rng.duration(Duration::from_micros(long));
        self.pass(how_long);
    }

    /// Advances the time and checks the events.
    fn pass(&mut self, how_long: Duration) {
        self.site.world.run(how_long);
        self.onlooker.look(&mut self.site, &mut self.ledger);
        self.site.replace_expired();
        for host in 0..2 {
            let now = self.site.world.now();
            for pkt in self.site.world.hosts[host].take() {
                self.ledger.deliver(now, host, pkt);
            }
        }
    }

    /// Ends all faults, keeps the SAs, and waits for packets in flight.
    fn end(mut self, sums: &mut Sums) {
        for wire in 0..2 {
            self.site.world.set_wire(wire, self.site.plan.good_wire());
        }
        self.site.stay();
        self.pass(Duration::from_secs(10));
        for at in 0..2 {
            sums.add_way(&self.site, &self.onlooker, &self.ledger, at);
            sums.busy += self.site.world.stats[at].busy;
            self.ledger.ways[at].finish();
        }
        sums.rekeys += self.site.rekeys;
        sums.expired += self.site.expired;
        sums.held += self.site.held;
        let Self { site, ledger, onlooker, .. } = &self;
        let nodes = site.world.nodes.iter().map(|node| &node.mem);
        let hosts = site.world.hosts.iter().map(|host| &host.mem);
        for mem in nodes.chain(hosts).chain([&ledger.mem, &onlooker.mem]) {
            assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0), "memory that did not come back");
        }
    }
}

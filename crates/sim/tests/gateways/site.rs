//! Two gateways with a host behind each, joined by two wires, one of them active at a time.

use std::num::NonZeroUsize;
use std::time::Duration;

use base::{IfAddr, Instant, PortId, SaId, TableId};
use fib::{Fib, Route, RouteKind};
use ipsec::crypto::Pool;
use sim::{AddAddress as _, End, Host, Medium, Node, PortOptions, SlowCrypto, Wire, World, esp, policy};
use wire::{Protocol, Spi};
use xfrm::{Action, Dir, Lifetime, Mode, PortMask, SaConfig, SaDir, SaFlags};

use crate::plan::{Plan, Worker};

pub(crate) const INSIDE: PortId = PortId(1);
pub(crate) const WANS: [PortId; 2] = [PortId(2), PortId(3)];

/// The SPI of the first SA. One flipped bit does not turn any of the SPIs into zero, which is not ESP.
const FIRST_SPI: u32 = 0xc001_0000;

/// The tunnel endpoints, by family.
const ENDS: [[&str; 2]; 2] = [["192.0.2.1", "192.0.2.2"], ["2001:db8::1", "2001:db8::2"]];

/// Gateways, hosts, and the SAs between them.
pub(crate) struct Site {
    pub(crate) world: World,
    pub(crate) plan: Plan,
    /// Active wire of each gateway.
    active: [usize; 2],
    pub(crate) lanes: Vec<Lane>,
    pub(crate) next_spi: u32,
    /// Statistics of removed SAs: outbound and inbound ones of each gateway.
    pub(crate) gone: [Totals; 2],
    /// Numbers of SAs that were replaced, and of expired ones.
    pub(crate) rekeys: u64,
    pub(crate) expired: u64,
    /// Number of packets that were held for an SA.
    pub(crate) held: u64,
    /// Lifetime of new outbound SAs.
    pub(crate) lifetime: Lifetime,
}

/// One direction of protected traffic, with one SA at a time.
pub(crate) struct Lane {
    pub(crate) from: usize,
    /// Whether the lane's SAs encapsulate those of the preceding lane.
    is_around: bool,
    src: String,
    pub(crate) dst: String,
    reqid: u32,
    pub(crate) generations: Vec<Generation>,
}

/// An SA, which is added and removed make-before-break.
pub(crate) struct Generation {
    pub(crate) spi: u32,
    pub(crate) step: Step,
    /// Time of the last step.
    pub(crate) since: Instant,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// The receiver has the SA.
    Known,
    /// The sender uses the SA.
    Used,
    /// The sender has removed the SA, and its last packets may still be in flight.
    Unused,
}

/// Sums of the SAs' counters.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    pub(crate) sealed: u64,
    pub(crate) opened: u64,
    pub(crate) replay: u64,
    pub(crate) replay_window: u64,
    pub(crate) failed: u64,
}

impl Site {
    pub(crate) fn new(plan: Plan) -> Self {
        let mut world = World::new(plan.seed);
        world.in_two_bursts = !plan.seed.is_multiple_of(3);
        for at in 0..2 {
            let mut node = Node::new();
            node.port(INSIDE.0, PortOptions::BARE.mtu(9000).features(plan.features[0]), &[]);
            for wan in WANS {
                let bare = PortOptions { mtu: plan.mtu, features: plan.features[1], ..PortOptions::BARE };
                let last = (at as u8 + 1) << 4 | wan.0 as u8;
                let ethernet = PortOptions { mac: PortOptions::ethernet(last).mac, ..bare };
                node.port(wan.0, if plan.ethernet { ethernet } else { bare }, &[]);
            }
            for (link, gro) in [(INSIDE, plan.gro[0]), (WANS[0], plan.gro[1]), (WANS[1], plan.gro[1])] {
                node.datapath.ports.get_mut(link).unwrap().config.gro = gro;
            }
            node.datapath.ipsec.set_crypto(match plan.workers[at] {
                Worker::Itself => None,
                Worker::Device(longest) => {
                    let seed = plan.seed.wrapping_mul(2) + at as u64;
                    Some(Box::new(SlowCrypto::new(seed, Duration::from_micros(longest))))
                }
                Worker::Threads => {
                    let two = NonZeroUsize::new(2).expect("not zero");
                    Some(Box::new(Pool::new(two, |_| ()).expect("threads")))
                }
            });
            world.add_node(node);
            world.add_host(Host::guest());
        }
        for wan in WANS {
            let wire = world.join(plan.good_wire(), End::Port(0, wan), End::Port(1, wan));
            world.watch(wire);
        }
        for at in 0..2 {
            world.join(Wire::new(Medium::Guest, 0), End::Port(at, INSIDE), End::Host(at));
        }
        let (lanes, lifetime) = (lanes(&plan), plan.lifetime);
        let mut site = Self {
            world,
            plan,
            active: [0; 2],
            lanes,
            next_spi: FIRST_SPI,
            gone: [Totals::default(); 2],
            rekeys: 0,
            expired: 0,
            held: 0,
            lifetime,
        };
        for at in 0..2 {
            site.route_by(at, 0);
            let ipsec = &mut site.world.nodes[at].datapath.ipsec;
            ipsec.set_listener(true);
            ipsec.set_larval_drop(!site.plan.holds);
        }
        for lane in 0..site.lanes.len() {
            site.add_policies(lane);
            site.make_known(lane);
            site.advance(lane, 0);
        }
        site
    }

    /// Routes all packets of gateway `at`, protected or not, over the wire `wan`.
    pub(crate) fn route_by(&mut self, at: usize, wan: usize) {
        let mut fib = Fib::default();
        let addr = |text: &str| text.parse::<IfAddr>().unwrap();
        fib.add_address(INSIDE, addr(&format!("10.{}.0.254/16", at + 1)));
        fib.add_address(INSIDE, addr(&format!("fd00:{}::254/32", at + 1)));
        fib.add_address(WANS[0], addr(&format!("{}/32", ENDS[0][at])));
        fib.add_address(WANS[0], addr(&format!("{}/128", ENDS[1][at])));
        for (which, link) in WANS.into_iter().enumerate() {
            fib.add_address(link, addr(&format!("198.51.{which}.{}/24", at + 1)));
            fib.add_address(link, addr(&format!("2001:db8:{}::{}/64", which + 1, at + 1)));
        }
        let other = 2 - at;
        let routes = [
            (format!("198.51.{wan}.{other}"), [format!("10.{other}.0.0/16"), format!("{}/32", ENDS[0][1 - at])]),
            (
                format!("2001:db8:{}::{other}", wan + 1),
                [format!("fd00:{other}::/32"), format!("{}/128", ENDS[1][1 - at])],
            ),
        ];
        for (via, prefixes) in routes {
            for prefix in prefixes {
                let kind = RouteKind::Unicast { via: Some(via.parse().unwrap()), dev: WANS[wan] };
                fib.add(TableId::MAIN, Route { prefix: prefix.parse().unwrap(), kind, metric: 0 }).unwrap();
            }
        }
        self.world.nodes[at].datapath.fib.replace(fib);
        self.active[at] = wan;
    }

    /// Routes a gateway's packets over the other wire.
    pub(crate) fn flip_route(&mut self, at: usize) {
        self.route_by(at, 1 - self.active[at]);
    }

    /// Number of directions with separate SAs.
    pub(crate) const fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Configuration of an outbound SA of a gateway, sufficient to open its packets.
    pub(crate) fn shadow_of(&self, lane: usize, spi: u32) -> SaConfig {
        SaConfig { replay_window: 4096, dir: None, ..self.sa(&self.lanes[lane], spi, None) }
    }

    pub(crate) fn sa(&self, lane: &Lane, spi: u32, dir: Option<SaDir>) -> SaConfig {
        let Plan { mode, udp, esn, window, start, around, .. } = self.plan;
        let mode = around.filter(|_| lane.is_around).unwrap_or(mode);
        let udp = udp && (lane.is_around || around.is_none());
        let sends = dir == Some(SaDir::Out);
        SaConfig {
            dir,
            reqid: lane.reqid,
            algorithm: self.plan.algorithm.clone(),
            replay_window: if sends { 0 } else { window },
            flags: SaFlags { esn, af_unspec: self.plan.mode == Mode::Tunnel, ..SaFlags::default() },
            oseq: if dir == Some(SaDir::In) { 0 } else { start },
            seq: if sends { 0 } else { start },
            ..esp(&lane.src, &lane.dst, spi, mode, udp)
        }
    }

    pub(crate) fn dir(&self, dir: SaDir) -> Option<SaDir> {
        self.plan.directed.then_some(dir)
    }

    fn add_policies(&mut self, lane: usize) {
        let Lane { from, is_around, .. } = self.lanes[lane];
        if is_around {
            return;
        }
        let around = self.lanes.get(lane + 1).filter(|lane| lane.is_around);
        let sas: Vec<SaConfig> = [&self.lanes[lane]].into_iter().chain(around).map(|it| self.sa(it, 1, None)).collect();
        for (src, dst) in nets(from, &self.lanes[lane], self.plan.mode) {
            let node = &mut self.world.nodes[from];
            node.datapath
                .ipsec
                .add_policy(xfrm::PolicyConfig { priority: 100, ..policy(Dir::Out, &src, &dst, &sas) })
                .unwrap();
            let node = &mut self.world.nodes[1 - from];
            node.datapath
                .ipsec
                .add_policy(xfrm::PolicyConfig { priority: 100, ..policy(Dir::Fwd, &src, &dst, &sas) })
                .unwrap();
        }
    }

    /// Blocks one port of a protocol between the hosts at a gateway, or removes the block.
    pub(crate) fn toggle_block(&mut self, at: usize, dir: Dir, protocol: Protocol, v6: bool, dport: u16) {
        let (a, b) = if (dir == Dir::Out) == (at == 0) { (1, 2) } else { (2, 1) };
        let (src, dst) = if v6 {
            (format!("fd00:{a}::/32"), format!("fd00:{b}::/32"))
        } else {
            (format!("10.{a}.0.0/16"), format!("10.{b}.0.0/16"))
        };
        let mut block = policy(dir, &src, &dst, &[]);
        (block.action, block.priority) = (Action::Block, 10);
        (block.selector.protocol, block.selector.dport) = (Some(protocol), PortMask::exactly(dport));
        let ipsec = &mut self.world.nodes[at].datapath.ipsec;
        if ipsec.remove_policy(&block.key()).is_none() {
            ipsec.add_policy(block).unwrap();
        }
    }

    /// The SAs of a lane that may be on the wire, the newest last.
    pub(crate) fn spis(&self) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        let of_lane = |(at, lane): (usize, &Lane)| {
            let from = lane.from;
            lane.generations.iter().map(move |generation| (at, from, generation.spi)).collect::<Vec<_>>()
        };
        self.lanes.iter().enumerate().flat_map(of_lane)
    }

    /// Sums of the counters of a gateway's outbound, or inbound, SAs.
    pub(crate) fn totals(&self, at: usize) -> Totals {
        let mut totals = self.gone[at];
        for sa in self.world.nodes[at].datapath.ipsec.sad().iter() {
            let sends = self
                .lanes
                .iter()
                .any(|lane| lane.from == at && lane.generations.iter().any(|generation| generation.spi == sa.spi().0));
            if sends {
                totals.sealed += sa.stats().packets;
            } else {
                totals.add_received(&sa.stats());
            }
        }
        totals
    }

    /// The inner MTU of packets from a gateway, by family of the inner packet.
    pub(crate) fn inner_mtu(&self, from: usize, v6: bool) -> usize {
        let is_for = |lane: &&Lane| self.plan.mode == Mode::Tunnel || lane.dst.contains(':') == v6;
        let lanes = self.lanes.iter().rev().filter(|lane| lane.from == from).filter(is_for);
        lanes.fold(self.plan.mtu, |mtu, lane| {
            let spi = lane.generations.iter().find(|generation| generation.step == Step::Used).unwrap().spi;
            let ipsec = &self.world.nodes[from].datapath.ipsec;
            let id: SaId = ipsec.sad().by_spi(lane.dst.parse().unwrap(), Spi(spi), 0).unwrap();
            ipsec.sa(id).unwrap().inner_mtu(mtu)
        })
    }
}

impl Totals {
    pub(crate) const fn add_received(&mut self, stats: &ipsec::SaStats) {
        self.opened += stats.packets;
        self.replay += stats.replay;
        self.replay_window += stats.replay_window;
        self.failed += stats.failed;
    }
}

/// The `reqid` of SAs around tunnels.
const AROUND: u32 = 10;

/// Lanes of a plan. In tunnel mode one lane for each direction and both inner families, and perhaps one around it; in
/// transport mode one for each family.
fn lanes(plan: &Plan) -> Vec<Lane> {
    let mut lanes = Vec::new();
    for from in 0..2 {
        let lane = |src: String, dst: String, reqid| {
            let is_around = reqid == AROUND;
            Lane { from, is_around, src, dst, reqid, generations: Vec::new() }
        };
        let (a, b) = (from + 1, 2 - from);
        match plan.mode {
            Mode::Tunnel => {
                let ends = ENDS[usize::from(plan.v6)];
                let to_around = plan.around.map(|_| AROUND);
                lanes.extend(
                    [7].into_iter()
                        .chain(to_around)
                        .map(|reqid| lane(ends[from].to_owned(), ends[1 - from].to_owned(), reqid)),
                );
            }
            _ => {
                lanes.push(lane(format!("10.{a}.0.1"), format!("10.{b}.0.1"), 8));
                lanes.push(lane(format!("fd00:{a}::1"), format!("fd00:{b}::1"), 9));
            }
        }
    }
    lanes
}

/// Networks that a lane protects.
fn nets(from: usize, lane: &Lane, mode: Mode) -> Vec<(String, String)> {
    let (a, b) = (from + 1, 2 - from);
    match mode {
        Mode::Tunnel => vec![
            (format!("10.{a}.0.0/16"), format!("10.{b}.0.0/16")),
            (format!("fd00:{a}::/32"), format!("fd00:{b}::/32")),
        ],
        _ => vec![(lane.src.clone(), lane.dst.clone())],
    }
}

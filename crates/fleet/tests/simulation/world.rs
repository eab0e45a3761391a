//! The mover, faults, and the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleet::{Domain, Event, Hop, Key, NetworkValue, NodeValue, Op, RouteSlot, Settings, Target, TaskValue};
use ila::{CsumMode, Locator};

use crate::agent::Agent;
use crate::random::Random;
use crate::store::{FLEET, Store};

const NODES: usize = 5;
const TASKS: usize = 200;
const STEPS: usize = 300;
const SIR: u64 = 0x2001_0db8_0000_0000;

/// Task that is none of the mover's, with the locator of another one.
const STRAY: Locator = Locator(SIR | 0xfff);

/// VRFs with their tables. A gateway may lack the second one for a time.
const VRFS: [(&str, u32); 2] = [("red", 10), ("blue", 20)];

/// Networks of a VRF. Each is behind two nodes, one as a backup.
const NETWORKS: usize = 15;

const CSUM_MODE: CsumMode = CsumMode::NeutralMapAuto;

/// Place of a task, as the mover has decided it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Place {
    node: usize,
    locator: Locator,
    next: Option<(usize, Locator)>,
}

/// Everything.
#[derive(Debug)]
pub(crate) struct World {
    random: Random,
    now: Duration,
    store: Store,
    backup: Store,
    agents: Vec<Agent>,
    /// Tasks as the mover has them: the truth, whatever the store says.
    tasks: BTreeMap<Locator, Place>,
    /// Places that a task has had, in order. Each place has a locator of its own.
    places: BTreeMap<Locator, Vec<Locator>>,
    /// Place that each node last had in its mapping of a task.
    reached: BTreeMap<(usize, Locator), usize>,
    /// Networks as their nodes have them: node, VRF and number, and the metric.
    networks: BTreeMap<(usize, usize, usize), u32>,
    /// Former ones, with their metrics: an agent may be late with them.
    former: BTreeSet<(usize, usize, usize, u32)>,
    /// Networks that were deleted once: an agent that loses the event of the next ones of that name may be late.
    deleted_networks: BTreeSet<(usize, usize, usize)>,
    /// Tasks that the mover has deleted: an agent that loses the event of the next one of that name may be late.
    deleted: BTreeSet<Locator>,
    next_locator: u64,
    with_disasters: bool,
    had_disaster: bool,
    /// Steps and operations are printed.
    is_verbose: bool,
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn prefix(node: usize) -> String {
    format!("fd00:0:{:x}::/48", node + 1)
}

fn key(sir: Locator) -> Key {
    Key::Task { domain: "t".to_owned(), sir }
}

fn network_prefix(number: usize) -> base::Prefix {
    format!("10.{number}.0.0/16").parse().unwrap()
}

fn via(node: usize) -> std::net::IpAddr {
    format!("10.99.0.{}", node + 1).parse().unwrap()
}

fn network_key((node, vrf, number): (usize, usize, usize)) -> Key {
    Key::Network { node: name(node), vrf: VRFS[vrf].0.to_owned(), prefix: network_prefix(number) }
}

/// Nodes that may have a network.
fn nodes_of(number: usize) -> [usize; 2] {
    [number % NODES, (number + 1) % NODES]
}

fn underlay(node: usize) -> std::net::Ipv6Addr {
    format!("fd99::{:x}", node + 1).parse().unwrap()
}

impl World {
    pub(crate) fn new(seed: u64, with_disasters: bool, is_verbose: bool) -> Self {
        let agents = (0..NODES).map(|node| {
            let numbers = (0..NETWORKS).filter(|number| nodes_of(*number).contains(&node));
            let networks = numbers.flat_map(|number| VRFS.map(|(vrf, _)| (vrf.to_owned(), network_prefix(number))));
            let mut agent = Agent::new(Settings {
                networks: networks.collect(),
                fleet: FLEET.to_owned(),
                node: name(node),
                locators: prefix(node).parse().unwrap(),
                domains: vec![Domain { name: "t".to_owned(), prefix: "2001:db8::/48".parse().unwrap() }],
                routes: true,
                csum_mode: CSUM_MODE,
                look_every: Duration::from_secs(120),
            });
            agent.gateway.vrfs.extend(VRFS);
            agent
        });
        let mut world = Self {
            random: Random::new(seed),
            now: Duration::ZERO,
            store: Store::new("u"),
            backup: Store::empty(),
            agents: agents.collect(),
            tasks: BTreeMap::new(),
            places: BTreeMap::new(),
            reached: BTreeMap::new(),
            networks: BTreeMap::new(),
            former: BTreeSet::new(),
            deleted_networks: BTreeSet::new(),
            deleted: BTreeSet::new(),
            next_locator: 0,
            with_disasters,
            had_disaster: false,
            is_verbose,
        };
        for node in 0..NODES {
            let value = NodeValue::new(prefix(node).parse().unwrap(), Some(underlay(node))).to_bytes();
            world.commit(|store| store.put(&Key::Node(name(node)), value));
        }
        for task in 0..TASKS {
            world.create(task);
        }
        for number in 0..NETWORKS {
            for vrf in 0..VRFS.len() {
                for (at, node) in nodes_of(number).into_iter().enumerate() {
                    world.set_network((node, vrf, number), Some(100 * (at as u32 + 1)));
                }
            }
        }
        world.backup = world.store.clone();
        world
    }

    pub(crate) fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
        }
        self.heal();
        for node in 0..NODES {
            let got = &self.agents[node].gateway;
            let status = self.agents[node].core.status();
            assert_eq!(got.mappings, self.desired_mappings(node), "node {node}: {status:?}");
            assert_eq!(got.routes, self.desired_routes(node), "node {node}: {status:?}");
            assert_eq!(self.agents[node].core.missing_vrfs(), Vec::<String>::new());
            assert_eq!((status.hold, status.withdrawals), (None, 0), "node {node}");
            assert_eq!(status.refused, BTreeMap::new(), "{:?}", self.agents[node].core.refused_keys());
        }
    }

    /// Changes the store, and tells the agents.
    fn commit(&mut self, change: impl FnOnce(&mut Store) -> Event) {
        let event = change(&mut self.store);
        self.publish(&event);
    }

    fn publish(&mut self, event: &Event) {
        if self.is_verbose {
            let value = event.value.as_deref().map(String::from_utf8_lossy);
            eprintln!("{:?} {} {} {value:?}", self.now, event.revision, String::from_utf8_lossy(&event.key));
        }
        for agent in &mut self.agents {
            agent.notify(event, &mut self.random, true);
        }
    }

    fn locator(&mut self, node: usize) -> Locator {
        self.next_locator += 1;
        Locator(0xfd00_0000_0000_0000 | (node as u64 + 1) << 16 | self.next_locator & 0xffff)
    }

    fn write(&mut self, sir: Locator) {
        let place = self.tasks[&sir];
        let here = TaskValue::here(&name(place.node), place.locator);
        let value = place.next.map_or(here.clone(), |(node, locator)| here.moving(&name(node), locator));
        self.commit(|store| store.put(&key(sir), value.to_bytes()));
    }

    fn create(&mut self, task: usize) {
        let sir = Locator(SIR | task as u64);
        let node = self.random.below(NODES);
        let locator = self.locator(node);
        self.tasks.insert(sir, Place { node, locator, next: None });
        self.places.entry(sir).or_default().push(locator);
        self.write(sir);
    }

    fn pick(&mut self) -> Locator {
        let at = self.random.below(self.tasks.len());
        *self.tasks.keys().nth(at).unwrap()
    }

    fn mover(&mut self) {
        let sir = self.pick();
        match self.random.below(20) {
            0 if self.tasks.len() > TASKS - 20 => {
                self.tasks.remove(&sir);
                self.deleted.insert(sir);
                if let Some(event) = self.store.delete(&key(sir).text(FLEET)) {
                    self.publish(&event);
                }
            }
            1 => {
                let task = self.random.below(TASKS);
                if !self.tasks.contains_key(&Locator(SIR | task as u64)) {
                    self.create(task);
                }
            }
            _ => {
                let mut place = self.tasks[&sir];
                match place.next.take() {
                    // One in eight moves is given up.
                    Some(_) if self.random.happens(125) => {}
                    Some((node, locator)) => {
                        self.places.get_mut(&sir).unwrap().push(locator);
                        place = Place { node, locator, next: None };
                    }
                    None => {
                        let node = (place.node + 1 + self.random.below(NODES - 1)) % NODES;
                        place.next = Some((node, self.locator(node)));
                    }
                }
                self.tasks.insert(sir, place);
                self.write(sir);
            }
        }
    }

    /// A node has a network with a metric, or no longer.
    fn set_network(&mut self, network: (usize, usize, usize), metric: Option<u32>) {
        let (node, vrf, number) = network;
        let old = match metric {
            Some(metric) => self.networks.insert(network, metric),
            None => self.networks.remove(&network),
        };
        self.former.extend(old.filter(|_| old != metric).map(|old| (node, vrf, number, old)));
        let key = network_key(network);
        match metric {
            Some(metric) => {
                let value = NetworkValue::new(via(node), metric).to_bytes();
                self.commit(|store| store.put(&key, value));
            }
            None => {
                self.deleted_networks.insert(network);
                if let Some(event) = self.store.delete(&key.text(FLEET)) {
                    self.publish(&event);
                }
            }
        }
    }

    fn change_network(&mut self) {
        let number = self.random.below(NETWORKS);
        let node = nodes_of(number)[self.random.below(2)];
        let vrf = self.random.below(VRFS.len());
        let metric = self.random.below(4) as u32 * 100;
        self.set_network((node, vrf, number), Some(metric).filter(|metric| *metric != 0));
    }

    fn bad_value(&mut self) {
        let sir = self.pick();
        let owner = self.pick();
        let other = self.tasks[&owner];
        let (key, value) = match self.random.below(10) {
            0 => (key(sir).text(FLEET), b"{".to_vec()),
            1 => (key(sir).text(FLEET), b"{\"v\":2,\"place\":{}}".to_vec()),
            2 => (key(sir).text(FLEET), TaskValue::here("n9", Locator(1)).to_bytes()),
            3 => (key(sir).text(FLEET), TaskValue::here("n0", Locator(0xfdff << 48)).to_bytes()),
            // The locator of another task.
            4 => (key(STRAY).text(FLEET), TaskValue::here(&name(other.node), other.locator).to_bytes()),
            5 => ("/fatpath/v1/f/node/thief".to_owned(), NodeValue::new("fd00::/16".parse().unwrap(), None).to_bytes()),
            6 => ("/fatpath/v1/f/vrf/n0/red/10.0.0.0/16".to_owned(), b"{".to_vec()),
            7 => ("/fatpath/v1/f/vrf/n1/blue/10.1.0.0/16".to_owned(), NetworkValue::new(via(1), 0).to_bytes()),
            8 => ("/fatpath/v1/f/vrf/n1/blue/10.1.0.0".to_owned(), NetworkValue::new(via(1), 1).to_bytes()),
            _ => ("/fatpath/v1/f/ila/t/else".to_owned(), b"{}".to_vec()),
        };
        self.commit(|store| store.put_raw(&key, value));
    }

    fn disaster(&mut self) {
        self.had_disaster = true;
        match self.random.below(4) {
            0 => self.store = Store::empty(),
            1 => self.store = Store::new("another"),
            2 => {
                self.store = self.backup.clone();
                return self.notice();
            }
            _ => {
                let prefix = if self.random.happens(500) { "/fatpath/v1/f/ila/" } else { "/" };
                for key in self.store.keys().into_iter().filter(|key| key.starts_with(prefix)) {
                    if let Some(event) = self.store.delete(&key) {
                        self.publish(&event);
                    }
                }
                return self.notice();
            }
        }
        for agent in &mut self.agents {
            agent.lose_watch();
        }
    }

    /// Lets all agents see the store. One that looks when a restored store has passed the known revision, or when most of the deleted keys
    /// are back, cannot know.
    fn notice(&mut self) {
        for agent in &mut self.agents {
            agent.lose_watch();
            agent.connect(&self.store);
        }
        for _ in 0..3 {
            self.now += Duration::from_secs(6);
            self.turn(false);
        }
    }

    fn step(&mut self) {
        let node = self.random.below(NODES);
        let what = self.random.below(100);
        if self.is_verbose && what >= 44 {
            eprintln!("{:?} step {what} of node {node}", self.now);
        }
        match what {
            0..40 => self.mover(),
            40..44 => self.bad_value(),
            44..48 => self.agents[node].disconnect(),
            48..56 => self.agents[node].connect(&self.store),
            56..59 => self.agents[node].restart(),
            59..62 => {
                let is_empty = self.random.happens(500);
                self.agents[node].restart_gateway(is_empty);
                if is_empty {
                    // The file may be behind what the gateway had.
                    self.reached.retain(|(of_node, _), _| *of_node != node);
                }
            }
            62..64 => self.store.compact(),
            // A machine that sleeps, or a clock that goes back.
            64 => self.now += Duration::from_secs(self.random.below(200) as u64),
            65 => self.now = self.now.saturating_sub(Duration::from_secs(5)),
            66 if self.with_disasters && !self.had_disaster => self.disaster(),
            67 => self.backup = self.store.clone(),
            68..74 => self.change_network(),
            74..76 => {
                // A VRF goes with its routes, or comes, maybe with another table.
                let (name, table) = VRFS[1];
                let table = [None, Some(table), Some(table + 1)][self.random.below(3)];
                self.agents[node].gateway.change_vrf(name, table);
                self.agents[node].restart_gateway(false);
            }
            _ => {}
        }
        self.now += Duration::from_millis(self.random.below(1500) as u64);
        self.turn(true);
    }

    fn turn(&mut self, is_lossy: bool) {
        for node in 0..NODES {
            self.agents[node].turn(self.now, &self.store, &mut self.random, is_lossy);
            for op in std::mem::take(&mut self.agents[node].done) {
                self.check(node, op);
            }
        }
    }

    /// Checks an operation against what the mover has decided so far.
    fn check(&mut self, node: usize, op: Op) {
        if self.is_verbose {
            eprintln!("{:?} node {node}: {op:x?}", self.now);
        }
        match op {
            Op::Mapping { matched, new, .. } if matched.0 >> 48 == 0x2001 => {
                let task = self.tasks.get(&matched);
                match new {
                    None => {
                        let may = task.is_none_or(|place| place.node == node || self.was_at(matched, node));
                        assert!(may || self.deleted.contains(&matched), "node {node} withdraws {matched} of {task:?}");
                        self.reached.remove(&(node, matched));
                    }
                    // The locator of another task is accepted when that has left it, or is not known yet.
                    Some(_) if !self.places.contains_key(&matched) => {}
                    Some(Target { locator, .. }) => {
                        let place = self.places[&matched].iter().position(|place| *place == locator).unwrap();
                        let last = self.reached.insert((node, matched), place);
                        // A restored store has a deleted task again. If the agent learns that when the mapping is due to go, it replaces
                        // it, in place of a deletion and an addition.
                        let is_made_again = self.had_disaster && !self.tasks.contains_key(&matched);
                        assert!(
                            is_made_again || last.is_none_or(|last| last <= place),
                            "node {node} goes back with {matched} to {locator}"
                        );
                    }
                }
            }
            Op::Mapping { matched, old, new: None } => {
                let here = self.tasks.iter().find(|(sir, place)| {
                    let is_here = place.node == node && place.locator == matched || place.next == Some((node, matched));
                    // An agent that has not seen this task takes its locator for that of the stray one, which a later value takes
                    // elsewhere: what goes then is the mapping of the stray one.
                    is_here && !old.is_some_and(|old| self.is_of_another(**sir, old.locator))
                });
                assert_eq!(here, None, "node {node} withdraws {matched}");
            }
            Op::Mapping { .. } => {}
            Op::Route { slot, old, new: None } if slot.table != RouteSlot::MAIN => {
                let vrf = usize::from(slot.table != VRFS[0].1);
                let number = (0..NETWORKS).find(|number| network_prefix(*number) == slot.prefix).unwrap();
                let others = || nodes_of(number).into_iter().filter(|other| *other != node);
                let is_there = others().any(|other| self.networks.get(&(other, vrf, number)) == Some(&slot.metric));
                let was_there = others().any(|other| self.former.contains(&(other, vrf, number, slot.metric)));
                assert!(!is_there || was_there, "node {node} withdraws a route: {op:?}");
                // A node's network whose key was there all the time loses its route for another one alone, whatever its metrics were.
                let has_key = |other: &usize| {
                    let network = (*other, vrf, number);
                    self.networks.contains_key(&network) && !self.deleted_networks.contains(&network)
                };
                let of_route = others().find(|other| old == Some(Hop::Via(via(*other)))).filter(has_key);
                let mut routes = self.agents[node].gateway.routes.keys();
                let has_route = routes.any(|it| (it.table, it.prefix) == (slot.table, slot.prefix));
                let is_own = nodes_of(number).contains(&node);
                assert!(is_own || has_route || of_route.is_none(), "node {node} withdraws the last route: {op:?}");
            }
            Op::Route { new, .. } => assert!(new.is_some(), "node {node} withdraws a route: {op:?}"),
        }
    }

    /// Whether a mapping to this locator leads to another task. Each locator is one task's alone, but for the stray task.
    fn is_of_another(&self, sir: Locator, locator: Locator) -> bool {
        let mut others = self.places.iter().filter(|(other, _)| **other != sir);
        locator == STRAY || others.any(|(_, places)| places.contains(&locator))
    }

    /// Whether a task was at a node once: the node may be behind.
    fn was_at(&self, sir: Locator, node: usize) -> bool {
        self.places[&sir].iter().any(|locator| locator.0 >> 16 & 0xffff == node as u64 + 1)
    }

    /// Ends all faults, writes what the mover has, and lets time go by.
    fn heal(&mut self) {
        let nodes: Vec<_> = (0..NODES).map(|node| Key::Node(name(node)).text(FLEET)).collect();
        let meta = Key::Meta.text(FLEET);
        for stray in self.store.keys() {
            let is_task = self.tasks.keys().any(|sir| key(*sir).text(FLEET) == stray);
            let is_network = self.networks.keys().any(|network| network_key(*network).text(FLEET) == stray);
            if !is_task && !is_network && !nodes.contains(&stray) && stray != meta {
                self.store.delete(&stray);
            }
        }
        if self.store.get(&meta).is_none() {
            self.store.put(&Key::Meta, fleet::MetaValue::new("u".to_owned()).to_bytes());
        }
        for (node, key) in nodes.iter().enumerate() {
            let value = NodeValue::new(prefix(node).parse().unwrap(), Some(underlay(node))).to_bytes();
            if self.store.get(key) != Some(&value) {
                self.store.put_raw(key, value);
            }
        }
        for (sir, place) in self.tasks.clone() {
            let here = TaskValue::here(&name(place.node), place.locator);
            let value = place.next.map_or(here.clone(), |(node, locator)| here.moving(&name(node), locator));
            if self.store.get(&key(sir).text(FLEET)) != Some(&value.to_bytes()) {
                self.store.put(&key(sir), value.to_bytes());
            }
        }
        for (network, metric) in self.networks.clone() {
            let value = NetworkValue::new(via(network.0), metric).to_bytes();
            if self.store.get(&network_key(network).text(FLEET)) != Some(&value) {
                self.store.put(&network_key(network), value);
            }
        }
        for agent in &mut self.agents {
            agent.disconnect();
            agent.connect(&self.store);
            let (name, table) = VRFS[1];
            if agent.gateway.vrfs.get(name) != Some(&table) {
                agent.gateway.change_vrf(name, Some(table));
                agent.restart_gateway(false);
            }
        }
        self.now += Duration::from_secs(10);
        for round in 0..200 {
            if self.had_disaster && matches!(round, 7 | 100) {
                self.agents.iter_mut().for_each(|agent| agent.core.approve(self.now));
            }
            self.now += Duration::from_secs(3);
            self.turn(false);
        }
    }

    /// Mappings of a node, made from the mover's tasks alone.
    fn desired_mappings(&self, node: usize) -> BTreeMap<Locator, Target> {
        let mut all = BTreeMap::new();
        let mut add = |matched, locator| {
            assert_eq!(all.insert(matched, Target { locator, csum_mode: CSUM_MODE }), None);
        };
        for (sir, place) in &self.tasks {
            if place.node == node {
                add(place.locator, place.next.map_or(*sir, |(_, locator)| locator));
            } else {
                add(*sir, place.locator);
            }
            if let Some((_, locator)) = place.next.filter(|(to, _)| *to == node) {
                add(locator, *sir);
            }
        }
        all
    }

    /// Routes of a node, made from the networks alone. It has none to a network that it may have itself.
    fn desired_routes(&self, node: usize) -> BTreeMap<RouteSlot, Hop> {
        let main = |prefix: String| RouteSlot::main(prefix.parse().unwrap());
        let others = (0..NODES).filter(|other| *other != node);
        let mut all: BTreeMap<_, _> =
            others.map(|other| (main(prefix(other)), Hop::Via(underlay(other).into()))).collect();
        all.insert(main("2001:db8::/48".to_owned()), Hop::Blackhole);
        for ((other, vrf, number), metric) in &self.networks {
            if !nodes_of(*number).contains(&node) {
                let slot = RouteSlot { table: VRFS[*vrf].1, prefix: network_prefix(*number), metric: *metric };
                let hop = Hop::Via(via(*other));
                // Of two nodes with one metric, the first by name.
                all.entry(slot).or_insert(hop);
            }
        }
        all
    }
}

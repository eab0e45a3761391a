//! IPsec: SAs that are added, rekeyed, expired and deleted. No SA sends a number twice, and what leaves is, after decryption by the peer,
//! what leaves a node of one shard.

use std::collections::BTreeMap;
use std::env;
use std::net::IpAddr;
use std::time::Duration;

use base::{Instant, Mib, PortId, ShardCount};
use ipsec::{Event, SpiRequest};
use offload::{Features, fit};
use packet::{Memory, Packet};
use sim::{Cluster, Flow, Node, PortOptions, Rng, esp, policy, unique_mask};
use wire::ip::Info;
use wire::{Protocol, Spi};
use xfrm::{Dir, Lifetime, Limits, Mode, SaConfig, SaDir};

use crate::{COUNTS, START};

const INSIDE: PortId = PortId(1);
const OUTSIDE: PortId = PortId(2);

/// Default number of seeds.
const SEEDS: u64 = 200;

const PHASES: usize = 14;

/// Number of tunnels. The last two are one within the other.
const TUNNELS: u32 = 7;

/// Length of a marker: a flow in four bytes, the number of the packet in two, and two of magic.
const MARKER: usize = 8;

/// The lowest SPI that the nodes choose.
const ALLOCATED: u32 = 0x10_0000;

const MAGIC: [u8; 2] = [0xfa, 0x70];

#[test]
fn shards_with_sas_do_what_one_does() {
    let number = |name| env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    if let Some(seed) = number("FATPATH_SIM_SEED") {
        Trial::new(seed).run();
        return;
    }
    let first = number("FATPATH_SIM_FIRST").unwrap_or(0);
    let seeds = number("FATPATH_SIM_SEEDS").unwrap_or(SEEDS);
    let handed_over: u64 = (first..first + seeds).map(|seed| Trial::new(seed).run()).sum();
    assert!(handed_over > seeds * 20, "{handed_over} packets have other owners");
}

/// A node's ends of the outer link, and networks behind it.
fn configure(node: &mut Node, near: u8) {
    let far = 3 - near;
    node.port(
        INSIDE.0,
        PortOptions::BARE.mtu(9000),
        &[&format!("10.{near}.0.254/16"), &format!("fd00:{near}::254/32")],
    );
    node.port(OUTSIDE.0, PortOptions::BARE, &[&format!("192.0.2.{near}/24"), &format!("2001:db8::{near}/64")]);
    for port in [INSIDE, OUTSIDE] {
        let mut config = node.datapath.ports.get(port).expect("added").config.clone();
        (config.gro, config.esp_gro) = (false, false);
        node.datapath.set_port(port, config);
    }
    node.route(&format!("10.{far}.0.0/16"), Some(&format!("192.0.2.{far}")), OUTSIDE);
    node.route(&format!("fd00:{far}::/32"), Some(&format!("2001:db8::{far}")), OUTSIDE);
    node.datapath.ipsec.set_listener(true);
}

/// Outer addresses of a tunnel: half of them are of IPv6.
fn ends(tunnel: u32) -> [&'static str; 2] {
    if tunnel % 3 == 2 { ["2001:db8::1", "2001:db8::2"] } else { ["192.0.2.1", "192.0.2.2"] }
}

/// The SA of a tunnel towards the peer, or from it.
fn sa(tunnel: u32, is_out: bool, spi: u32, has_dir: bool) -> SaConfig {
    let [here, there] = ends(tunnel);
    let (src, dst) = if is_out { (here, there) } else { (there, here) };
    let dir = if is_out { SaDir::Out } else { SaDir::In };
    let config = esp(src, dst, spi, Mode::Tunnel, tunnel % 2 == 1);
    windowed(SaConfig { reqid: tunnel, dir: has_dir.then_some(dir), ..config })
}

/// An SA that only sends has no window.
fn windowed(config: SaConfig) -> SaConfig {
    SaConfig { replay_window: if config.dir == Some(SaDir::Out) { 0 } else { 1024 }, ..config }
}

/// The same SA at the peer.
fn mirrored(config: &SaConfig) -> SaConfig {
    let dir = config.dir.map(|dir| if dir == SaDir::In { SaDir::Out } else { SaDir::In });
    windowed(SaConfig { dir, lifetime: Lifetime::default(), ..config.clone() })
}

/// Networks of a tunnel: behind the node, and behind the peer.
fn networks(tunnel: u32) -> [String; 2] {
    [1, 2].map(|side| format!("10.{side}.{tunnel}.0/24"))
}

/// Tunnels that have a policy of their own: the last is the outer one of the one before.
fn with_policy() -> impl Iterator<Item = u32> {
    1..TUNNELS
}

/// Tunnels that the packets of a policy pass, the innermost first.
fn stack(tunnel: u32) -> Vec<u32> {
    if tunnel == TUNNELS - 1 { vec![tunnel, TUNNELS] } else { vec![tunnel] }
}

/// The SAs of a tunnel: out and in.
#[derive(Clone, Debug)]
struct Pair {
    tunnel: u32,
    spis: [u32; 2],
    has_dir: bool,
}

impl Pair {
    fn configs(&self) -> [SaConfig; 2] {
        [true, false].map(|is_out| sa(self.tunnel, is_out, self.spis[usize::from(!is_out)], self.has_dir))
    }
}

/// All that a node does that can be seen.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    /// Packets by link and flow, those to the peer after decryption.
    sent: BTreeMap<(u32, u32), Vec<Vec<u8>>>,
    /// ICMP errors.
    errors: Vec<Vec<u8>>,
    drops: BTreeMap<(u32, &'static str), u64>,
    counters: Vec<(&'static str, u64)>,
    events: Vec<String>,
    /// Each SA's packets and bytes.
    used: Vec<(u32, u64, u64)>,
}

/// The same input for a node of one shard and nodes of several, each with a peer.
struct Trial {
    seed: u64,
    rng: Rng,
    clusters: Vec<Cluster>,
    /// The peer of each cluster, which decrypts.
    peers: Vec<Node>,
    /// The peer that encrypts, for all.
    sealer: Node,
    pairs: Vec<Pair>,
    last_spi: u32,
    last_flow: u32,
    /// The last number that each SA of each cluster has sent.
    numbers: Vec<BTreeMap<u32, u32>>,
    /// Outcome of each cluster since the last comparison.
    outcomes: Vec<Outcome>,
    /// Whether packets wait for their SAs.
    holds: bool,
    has_held: bool,
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let clusters = [1].into_iter().chain(COUNTS).map(|count| {
            let count = ShardCount::new(count).expect("a good number");
            Cluster::new(count, rng.bits(), START, |node| configure(node, 1))
        });
        let clusters: Vec<Cluster> = clusters.collect();
        let peer = || {
            let mut node = Node::new();
            configure(&mut node, 2);
            node
        };
        let peers = clusters.iter().map(|_| peer()).collect();
        let numbers = clusters.iter().map(|_| BTreeMap::new()).collect();
        let (pairs, last_spi, last_flow) = (Vec::new(), 0x100, 0);
        let outcomes = clusters.iter().map(|_| Outcome::default()).collect();
        let holds = rng.happens(250);
        let mut trial = Self {
            seed,
            rng,
            clusters,
            peers,
            sealer: peer(),
            pairs,
            last_spi,
            last_flow,
            numbers,
            outcomes,
            holds,
            has_held: holds,
        };
        trial.change_all(move |node, _| node.datapath.ipsec.set_larval_drop(!holds));
        for tunnel in with_policy() {
            let [near, far] = networks(tunnel);
            let templates: Vec<SaConfig> = stack(tunnel).into_iter().map(|tunnel| sa(tunnel, true, 0, false)).collect();
            let back: Vec<SaConfig> = stack(tunnel).into_iter().map(|tunnel| sa(tunnel, false, 0, false)).collect();
            let out = policy(Dir::Out, &near, &far, &templates);
            let into = [Dir::In, Dir::Fwd].map(|dir| policy(dir, &far, &near, &back));
            let (all_out, all_in) = (out.clone(), into.clone());
            trial.change_all(move |node, _| {
                node.datapath.ipsec.add_policy(all_out.clone()).expect("a good policy");
                all_in.iter().for_each(|policy| node.datapath.ipsec.add_policy(policy.clone()).expect("a good policy"));
            });
            let back_out = policy(Dir::Out, &far, &near, &back);
            let forth_in = [Dir::In, Dir::Fwd].map(|dir| policy(dir, &near, &far, &templates));
            for node in trial.peers.iter_mut().chain([&mut trial.sealer]) {
                node.datapath.ipsec.add_policy(back_out.clone()).expect("a good policy");
                forth_in
                    .iter()
                    .for_each(|policy| node.datapath.ipsec.add_policy(policy.clone()).expect("a good policy"));
            }
        }
        for tunnel in 1..=TUNNELS {
            if trial.rng.happens(900) {
                trial.add(tunnel, Lifetime::default());
            }
        }
        trial
    }

    /// Runs the trial; returns the number of packets that were handed over.
    fn run(mut self) -> u64 {
        for phase in 0..PHASES {
            let what = match self.rng.below(10) {
                0..=2 => self.change(),
                3..=6 => self.outbound(),
                _ => self.inbound(),
            };
            let pauses: &[u64] = if self.holds { &[1, 20, 300, 1100] } else { &[1, 20, 300, 1100, 6000, 31_000] };
            let pause = *self.rng.pick(pauses);
            self.advance(pause);
            self.compare(&format!("phase {phase} ({what})"));
            self.agree();
            // A pair whose SAs have ended by their time is gone at the peer as well.
            let first = self.clusters[0].first();
            let [here, there] = ["192.0.2.1", "2001:db8::1"].map(|addr| addr.parse::<IpAddr>().expect("an address"));
            let is_there =
                |spi: u32| [here, there].iter().any(|&dst| first.ipsec.sad().by_spi(dst, Spi(spi), 0).is_some());
            let (live, gone): (Vec<Pair>, Vec<Pair>) =
                std::mem::take(&mut self.pairs).into_iter().partition(|pair| is_there(pair.spis[1]));
            self.pairs = live;
            gone.iter().for_each(|pair| self.remove_at_peers(pair));
        }
        if self.holds {
            // All that waits goes: nothing has waited for so long that it is dropped.
            (1..=TUNNELS).for_each(|tunnel| self.add(tunnel, Lifetime::default()));
            self.advance(90_000);
            self.holds = false;
            self.compare("end");
        }
        self.clusters.iter().map(Cluster::handed_over).sum()
    }

    /// Advances the time by milliseconds.
    fn advance(&mut self, by: u64) {
        for at in 0..self.clusters.len() {
            let cluster = &mut self.clusters[at];
            cluster.advance(cluster.now() + Duration::from_millis(by));
            let outcome = self.outcome(at);
            self.outcomes[at].follow(outcome);
        }
    }

    /// Compares what the nodes have done since the last comparison. Packets that wait go when their shard looks for their SA again, so
    /// with such packets the end alone is compared.
    fn compare(&mut self, at: &str) {
        if self.holds {
            return;
        }
        let mut outcomes: Vec<Outcome> = self.outcomes.iter_mut().map(std::mem::take).collect();
        if outcomes[0].drops.keys().any(|(_, reason)| *reason == "PolicyQueueFull") {
            return;
        }
        if self.has_held {
            // Each shard asks for the SAs that its own packets wait for, and uses the newest when it finds them.
            outcomes.iter_mut().for_each(|it| (it.events, it.used) = Default::default());
        }
        let (one, others) = outcomes.split_first().expect("several");
        for (count, other) in COUNTS.into_iter().zip(others) {
            assert_eq!(one.difference(other), "", "seed {}, {at}, {count} shards", self.seed);
        }
    }

    /// Checks that all shards of a node have the same SAs, larval SAs and policies under the same numbers, and that only owners have used
    /// them.
    fn agree(&mut self) {
        for cluster in &self.clusters {
            let known = |node: &Node| {
                let ipsec = &node.datapath.ipsec;
                let sas: Vec<_> = ipsec.sad().iter().map(|sa| (sa.id(), sa.spi(), sa.owner())).collect();
                let mut larvae: Vec<_> = ipsec.sad().larvae().map(|it| (it.seq, it.dst, it.spi, it.reqid)).collect();
                larvae.sort_unstable();
                let policies: Vec<_> = ipsec.spd().iter().map(|it| it.index).collect();
                (sas, larvae, policies)
            };
            let first = cluster.nodes().next().map(known);
            for node in cluster.nodes() {
                assert_eq!(Some(known(node)), first, "seed {}", self.seed);
                let sad = node.datapath.ipsec.sad();
                for sa in sad.iter().filter(|sa| !sad.owns(sa)) {
                    assert_eq!((sa.oseq(), sa.replay().top(), sa.stats().packets), (0, 0, 0), "seed {}", self.seed);
                }
            }
        }
    }

    fn outcome(&mut self, at: usize) -> Outcome {
        let mut outcome = Outcome::default();
        let mem = Memory::heap();
        let (cluster, peer) = (&mut self.clusters[at], &mut self.peers[at]);
        let now = cluster.now();
        for (link, pkt) in cluster.take_sent() {
            let mut frames = Vec::new();
            fit(&mem, &Features::NONE, pkt, 0, &mut frames).expect("a packet that the device can cut");
            for frame in frames.iter().map(Packet::to_vec) {
                if link == INSIDE {
                    outcome.add(link, frame);
                    continue;
                }
                if let Some((spi, number)) = number_of(&frame) {
                    let last = self.numbers[at].insert(spi, number).unwrap_or(0);
                    assert_eq!(number, last + 1, "seed {}: SA {spi:#x} of {cluster:?}", self.seed);
                }
                peer.rx_bytes(now, OUTSIDE, &frame);
                for pkt in peer.tx(INSIDE) {
                    outcome.add(OUTSIDE, pkt.to_vec());
                }
            }
        }
        // Errors of the peer, about what it has no SA for, are not compared.
        drop(peer.tx(OUTSIDE));
        outcome.errors.sort_unstable();
        outcome.drops = cluster.drops();
        outcome.counters =
            cluster.counters().iter().map(|(mib, n)| (Mib::name(mib), n)).filter(|&(_, n)| n > 0).collect();
        let mut owned = BTreeMap::<u32, (u64, u64)>::new();
        let count = cluster.nodes().count();
        for shard in 0..count {
            let ipsec = &mut cluster.node(shard).datapath.ipsec;
            outcome.events.extend(ipsec.take_events().map(|event| text(&event)));
            for sa in ipsec.sad().iter() {
                let used = owned.entry(sa.spi().0).or_default();
                *used = (used.0 + sa.stats().packets, used.1 + sa.stats().bytes);
            }
        }
        outcome.events.sort_unstable();
        outcome.used = owned.into_iter().map(|(spi, (packets, bytes))| (spi, packets, bytes)).collect();
        outcome
    }

    fn change_all(&mut self, change: impl Fn(&mut Node, Instant) + Clone + 'static) {
        for cluster in &mut self.clusters {
            cluster.change(change.clone());
            cluster.settle();
        }
    }

    fn next_spi(&mut self) -> u32 {
        self.last_spi += 1 + self.rng.below(300) as u32;
        self.last_spi
    }

    /// Adds the SAs of a tunnel to the nodes and their peers.
    fn add(&mut self, tunnel: u32, lifetime: Lifetime) {
        let pair = Pair { tunnel, spis: [self.next_spi(), self.next_spi()], has_dir: self.rng.happens(500) };
        let [out, into] = pair.configs().map(|config| SaConfig { lifetime, ..config });
        let is_first = self.rng.happens(500);
        for cluster in &mut self.clusters {
            let (mask, configs) =
                (unique_mask(), if is_first { [into.clone(), out.clone()] } else { [out.clone(), into.clone()] });
            cluster.change(move |node, _| {
                configs.iter().for_each(|config| assert!(node.datapath.ipsec.add_sa(config, mask).is_ok()));
            });
            cluster.settle();
        }
        for node in self.peers.iter_mut().chain([&mut self.sealer]) {
            for config in [&out, &into] {
                node.datapath.ipsec.add_sa(&mirrored(config), unique_mask()).expect("a good SA");
            }
        }
        self.pairs.push(pair);
    }

    fn remove_at_peers(&mut self, pair: &Pair) {
        for node in self.peers.iter_mut().chain([&mut self.sealer]) {
            for config in pair.configs() {
                drop(node.datapath.ipsec.remove_sa(config.dst, config.spi, 0));
            }
        }
    }

    fn change(&mut self) -> String {
        let tunnel = 1 + self.rng.below(TUNNELS as usize) as u32;
        let which = self.rng.below(6);
        match which {
            0..=1 => self.add(tunnel, Lifetime::default()),
            2 => {
                let after = |ms| Some(Duration::from_millis(ms));
                let limits = [after(3000), after(5000)].map(|added| Limits { added, ..Limits::NONE });
                self.add(tunnel, Lifetime { soft: limits[0], hard: limits[1] });
            }
            3 if !self.pairs.is_empty() => {
                let pair = self.pairs.swap_remove(self.rng.below(self.pairs.len()));
                let configs = pair.configs();
                self.change_all(move |node, _| {
                    for config in &configs {
                        drop(node.datapath.ipsec.remove_sa(config.dst, config.spi, 0));
                    }
                });
                self.remove_at_peers(&pair);
            }
            4 => {
                let random = self.rng.bits();
                let [here, there] = ends(tunnel).map(|addr| addr.parse().expect("an address"));
                self.change_all(move |node, now| {
                    let mut rng = Rng::new(random);
                    let request = SpiRequest {
                        src: there,
                        dst: here,
                        mode: Mode::Tunnel,
                        reqid: tunnel,
                        mark: xfrm::Mark::ANY,
                        if_id: 0,
                        dir: None,
                        cpu: None,
                        seq: 0,
                        min: ALLOCATED,
                        max: 0x20_0000,
                    };
                    node.datapath.ipsec.alloc_spi(now, &request, &mut || rng.bits() as u32).expect("a free SPI");
                });
            }
            _ => {
                let [near, far] = networks(1 + self.rng.below(TUNNELS as usize - 1) as u32);
                let key = policy(Dir::Out, &near, &far, &[]).key();
                self.change_all(move |node, _| {
                    let spd = node.datapath.ipsec.spd();
                    if let Some(found) = spd.find(&key).and_then(|id| spd.get(id)).map(|found| found.config.clone()) {
                        node.datapath.ipsec.update_policy(found).expect("as before");
                    }
                });
            }
        }
        format!("change {which} of tunnel {tunnel}")
    }

    /// Packets of some flows of a direction, in an order that keeps each flow's.
    fn flows(&mut self, from: u8) -> Vec<(Flow, u32, u16, usize)> {
        let mut queues: Vec<Vec<_>> = Vec::new();
        for _ in 0..1 + self.rng.below(6) {
            let tunnel = 1 + self.rng.below(TUNNELS as usize - 1);
            self.last_flow += 1;
            let host = |rng: &mut Rng| 1 + rng.below(200);
            let [src, dst] = [from, 3 - from].map(|side| format!("10.{side}.{tunnel}.{}", host(&mut self.rng)));
            let mut flow = Flow::new(&src, &dst);
            flow.sport = 1024 + self.rng.below(60_000) as u16;
            flow.dont_fragment = false;
            let len = MARKER * (1 + self.rng.below(150));
            let packets = 1 + self.rng.below(8) as u16;
            queues.push((0..packets).rev().map(|nth| (flow, self.last_flow, nth, len)).collect());
        }
        let mut all = Vec::new();
        while !queues.is_empty() {
            let at = self.rng.below(queues.len());
            for _ in 0..1 + self.rng.below(6) {
                all.extend(queues[at].pop());
            }
            if queues[at].is_empty() {
                queues.swap_remove(at);
            }
        }
        all
    }

    /// Packets that the node protects, fat ones among them.
    fn outbound(&mut self) -> String {
        let packets = self.flows(1);
        for &(flow, number, nth, len) in &packets {
            let is_fat = number % 3 == 0;
            let payload = marked(number, nth, if is_fat { len * 6 } else { len });
            let size = (MARKER * 40) as u16;
            for cluster in &mut self.clusters {
                let payload = payload.clone();
                cluster.arrive(INSIDE, move |mem| match is_fat {
                    true => flow.fat_udp_with(mem, &payload, size),
                    false => Packet::with_data(mem, &flow.udp_with(&payload)).expect("memory"),
                });
            }
        }
        self.clusters.iter_mut().for_each(Cluster::settle);
        format!("{} packets out", packets.len())
    }

    /// Packets of the peer: ESP, ESP in UDP, and trains of that whose packets are of several SAs.
    fn inbound(&mut self) -> String {
        let now = self.clusters[0].now();
        for (flow, number, nth, len) in self.flows(2) {
            self.sealer.rx_bytes(now, INSIDE, &flow.udp_with(&marked(number, nth, len)));
        }
        let mut sealed = self.sealer.tx(OUTSIDE).into_iter().map(|pkt| pkt.to_vec()).peekable();
        let mut count = 0;
        while let Some(first) = sealed.next() {
            count += 1;
            let info = Info::parse(&first, first.len()).expect("a packet");
            if info.protocol != Protocol::UDP {
                self.arrive(&first, None);
                continue;
            }
            // As a receiver with UDP GRO gives them: all but the last have one length.
            let at = info.header_len + 8;
            let mut payload = first[at..].to_vec();
            let size = payload.len();
            while payload.len() < 8 * size
                && self.rng.happens(700)
                && let Some(next) = sealed.next_if(|next| {
                    next[..1] == first[..1] && next.len() <= first.len() && next[next_protocol(next)] == 17
                })
            {
                payload.extend_from_slice(&next[at..]);
                count += 1;
                if next.len() < first.len() {
                    break;
                }
            }
            self.arrive(&first, (payload.len() > size).then_some((payload, size)));
        }
        self.clusters.iter_mut().for_each(Cluster::settle);
        format!("{count} packets in")
    }

    fn arrive(&mut self, first: &[u8], train: Option<(Vec<u8>, usize)>) {
        let info = Info::parse(first, first.len()).expect("a packet");
        let mut flow = Flow::new(&info.src.to_string(), &info.dst.to_string());
        (flow.sport, flow.dport) = (4500, 4500);
        for cluster in &mut self.clusters {
            cluster.arrive(OUTSIDE, |mem| match &train {
                Some((payload, size)) => flow.fat_udp_with(mem, payload, *size as u16),
                None => Packet::with_data(mem, first).expect("memory"),
            });
        }
    }
}

impl Outcome {
    /// Adds what happened afterwards: counters are those of the end.
    fn follow(&mut self, later: Self) {
        let Self { sent, errors, drops, counters, events, used } = later;
        for (flow, packets) in sent {
            self.sent.entry(flow).or_default().extend(packets);
        }
        self.errors.extend(errors);
        self.errors.sort_unstable();
        self.events.extend(events);
        self.events.sort_unstable();
        (self.drops, self.counters, self.used) = (drops, counters, used);
    }

    /// Text of what is different in another outcome; empty if they are equal.
    fn difference(&self, other: &Self) -> String {
        let sizes = |it: &Self| {
            let flow = |((link, flow), packets): (&(u32, u32), &Vec<Vec<u8>>)| {
                let number = |packet: &Vec<u8>| {
                    let at = packet.windows(2).position(|window| window == MAGIC);
                    at.map(|at| (u16::from_be_bytes([packet[at - 2], packet[at - 1]]), packet.len()))
                };
                format!("{link}:{flow} {:?}", packets.iter().map(number).collect::<Vec<_>>())
            };
            it.sent.iter().map(flow).collect::<Vec<_>>()
        };
        let parts = [
            (self.sent == other.sent, format!("sent {:?}\nnot {:?}", sizes(other), sizes(self))),
            (self.errors == other.errors, format!("errors {:?}\nnot {:?}", other.errors, self.errors)),
            (self.drops == other.drops, format!("drops {:?}\nnot {:?}", other.drops, self.drops)),
            (self.events == other.events, format!("events {:?}\nnot {:?}", other.events, self.events)),
            (self.used == other.used, format!("used {:?}\nnot {:?}", other.used, self.used)),
            (self.counters == other.counters, format!("counters {:?}\nnot {:?}", other.counters, self.counters)),
        ];
        parts.into_iter().filter(|(is_equal, _)| !is_equal).map(|(_, text)| text).collect::<Vec<_>>().join("\n")
    }

    /// Adds a packet by its flow. What the node has made itself has no marker.
    fn add(&mut self, link: PortId, packet: Vec<u8>) {
        let info = Info::parse(&packet, packet.len()).expect("a packet");
        let payload = &packet[info.header_len..];
        let at = payload.windows(MARKER).position(|window| window[6..] == MAGIC);
        match at.filter(|_| info.protocol == Protocol::UDP) {
            Some(at) => {
                let flow = u32::from_be_bytes([0, 1, 2, 3].map(|nth| payload[at + nth]));
                self.sent.entry((link.0, flow)).or_default().push(packet);
            }
            None => self.errors.push(packet),
        }
    }
}

/// Place of the protocol in an IP header.
fn next_protocol(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 9 } else { 6 }
}

/// Payload of a packet: its marker, again and again.
fn marked(flow: u32, number: u16, len: usize) -> Vec<u8> {
    let mut marker = flow.to_be_bytes().to_vec();
    marker.extend(number.to_be_bytes());
    marker.extend(MAGIC);
    marker.into_iter().cycle().take(len).collect()
}

/// SPI and sequence number of a packet of ESP, or ESP in UDP.
fn number_of(packet: &[u8]) -> Option<(u32, u32)> {
    let info = Info::parse(packet, packet.len()).ok()?;
    let at = match info.protocol {
        Protocol::ESP => info.header_len,
        Protocol::UDP => info.header_len + 8,
        _ => return None,
    };
    let word = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
    Some((word(at)?, word(at + 4)?))
}

/// An event without what depends on the order of packets.
fn text(event: &Event) -> String {
    match event {
        Event::Acquire(it) => format!("acquire for {} of {}", it.template.reqid, it.policy),
        // Which one is chosen depends on the number of shards.
        Event::SaExpired(it) if it.spi.0 >= ALLOCATED => format!("expire allocated of {}", it.reqid),
        Event::SaExpired(it) => format!("expire {:?} hard {} after {:?}", it.spi, it.hard, it.stats.packets),
        other => format!("{other:?}"),
    }
}

//! `fatpath bench vrf`: transactions of sockets inside and outside of a VRF.
//!
//! - `udp`: request and response, one byte in each direction: a look-up for each sent packet.
//! - `tcp-crr`: connect, request, response and close, each time from another port: three packets sent, four received.
//!
//! - `none`: no VRF.
//! - `vrf`: the link is in a VRF, to whose device the sockets are bound.
//! - `qdisc`: `pfifo` on the VRF's device: sent packets are queued, and then routed again.
//! - `tap`: a capture of the VRF's device.
//!
//! `lookups` per sent packet, and `hooks` and `taps` per transaction, are exact counts. `p50_ns`, `p90_ns` and `p99_ns`
//! are a transaction's share of a burst, and `cpu_ns` is its CPU time.
//!
//! `many`: look-ups in one of ten and of ten thousand VRFs, and the memory of each (`bytes_each`).

use std::fs;
use std::time::Duration;

use base::{Domain, Instant, PortId, Prefix, TableId};
use datapath::{Datapath, PortConfig, SocketBinding, Step, TapPoints, TraceFilter, host_port};
use fib::{Decision, Route, RouteKind, Rule, Vrf};
use offload::Features;
use packet::{Memory, Packet};
use qdisc::Options;
use sim::{AddAddress as _, Flow};

use super::case::{Comparison, Copied, Group, Load, Plan, Turn};
use super::cpu::thread_time;

/// Number of transactions of a turn, and of packets that a link delivers at once.
const BURST: usize = 32;

const LINK: PortId = PortId(2);
const RED: PortId = PortId(3);
const OWN: &str = "10.1.0.254";
const PEER: &str = "10.1.0.1";

const RATIOS: &[Comparison] = &[
    Comparison { of: "vrf/none", over: &["vrf"], under: &["none"], figure: None },
    Comparison { of: "qdisc/none", over: &["qdisc"], under: &["none"], figure: None },
    Comparison { of: "tap/none", over: &["tap"], under: &["none"], figure: None },
];

/// Place of the sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum At {
    None,
    Vrf,
    Qdisc,
    Tap,
}

/// Kind of transaction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Udp,
    TcpCrr,
}

impl Kind {
    /// Packets of a transaction: for each exchange, received ones and replies.
    const fn exchanges(self) -> &'static [[usize; 2]] {
        match self {
            Self::Udp => &[[1, 1]],
            // SYN; ACK and request; FIN.
            Self::TcpCrr => &[[1, 1], [2, 1], [1, 1]],
        }
    }

    fn sent(self) -> usize {
        self.exchanges().iter().map(|[_, sent]| sent).sum()
    }

    fn received(self) -> usize {
        self.exchanges().iter().map(|[received, _]| received).sum()
    }
}

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    let of = |name: &str, kind: Kind| {
        let packets = BURST * (kind.sent() + kind.received());
        let load = Load { packets, payload: 2 * BURST, small: true };
        let cases = [("none", At::None), ("vrf", At::Vrf), ("qdisc", At::Qdisc), ("tap", At::Tap)];
        let plan = |(name, at)| Plan::new(name, load, move || Box::new(Transactions::new(kind, at)));
        Group { name: name.to_owned(), cases: cases.map(plan).into(), ratios: RATIOS }
    };
    vec![of("udp", Kind::Udp), of("tcp-crr", Kind::TcpCrr), many()]
}

/// A node, and the transactions of its sockets.
struct Transactions {
    datapath: Datapath,
    mem: Memory,
    kind: Kind,
    at: At,
    counts: Counts,
    /// Packets of each exchange: received ones and replies.
    exchanges: Vec<[Vec<Packet>; 2]>,
    turns: u64,
    up: u64,
    out: u64,
    tapped: u64,
    cpu: Duration,
}

/// Counts of one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    /// Look-ups per sent packet.
    lookups: f64,
    hooks: f64,
    taps: f64,
}

impl Transactions {
    fn new(kind: Kind, at: At) -> Self {
        let mut this = Self {
            datapath: node(at),
            mem: Memory::heap(),
            kind,
            at,
            counts: Counts::default(),
            exchanges: Vec::new(),
            turns: 0,
            up: 0,
            out: 0,
            tapped: 0,
            cpu: Duration::ZERO,
        };
        this.counts = this.count();
        this
    }

    /// Device to which the sockets are bound.
    const fn device(&self) -> PortId {
        if matches!(self.at, At::None) { LINK } else { RED }
    }

    /// Counts look-ups, hooks and taps of one burst of transactions, after a first burst that establishes the flows.
    fn count(&mut self) -> Counts {
        self.warm();
        self.prepare();
        self.datapath.set_trace(Some(TraceFilter::default()), u32::MAX);
        let tapped = self.tapped;
        self.run();
        let (mut lookups, mut hooks) = (0, 0);
        for step in self.datapath.take_trace() {
            match step.step {
                Step::Hook { .. } => hooks += 1,
                Step::Route { .. } if step.origin.is_local() => lookups += 1,
                _ => {}
            }
        }
        self.datapath.set_trace(None, 0);
        let each = |count: u64, of: usize| count as f64 / of as f64;
        Counts {
            lookups: each(lookups, BURST * self.kind.sent()),
            hooks: each(hooks, BURST),
            taps: each(self.tapped - tapped, BURST),
        }
    }
}

/// A node with a link, and with sockets bound as `at` specifies.
fn node(at: At) -> Datapath {
    let mut datapath = Datapath::new();
    let port = |name: &str, mtu| PortConfig {
        name: name.to_owned(),
        mac: None,
        mtu,
        features: Features::ALL,
        gro: true,
        esp_gro: true,
    };
    datapath.set_port(LINK, port("wan", 1500));
    datapath.set_host_port(LINK, Some(port("wan", 65_535)));
    if at != At::None {
        datapath.fib.set_vrf(RED, Some(Vrf { table: TableId(10), up: true }));
        datapath.fib.set_domain(LINK, Domain::vrf(RED));
        for v4 in [true, false] {
            let mut rules = Rule::first(v4);
            rules.insert(1, Rule::ask_vrf());
            datapath.fib.set_rules(v4, rules);
        }
        datapath.set_vrf_port(Instant::ZERO, RED, Some(("red".to_owned(), 65_575)));
        datapath.set_host_port(RED, Some(port("red", 65_535)));
        datapath.enable_socket_lookups(true);
    }
    let mem = Memory::heap();
    match at {
        At::Qdisc => {
            let fifo = Options::Pfifo { limit: 1000 };
            datapath.set_qdisc(Instant::ZERO, &mem, RED, Some(fifo)).expect("options that are right");
        }
        At::Tap => datapath.set_tap(RED, TapPoints { wire: false, fat: true }),
        At::None | At::Vrf => {}
    }
    datapath.fib.add_address(LINK, format!("{OWN}/24").parse().expect("an address"));
    datapath
}

impl Turn for Transactions {
    fn prepare(&mut self) {
        let first = match self.kind {
            Kind::Udp => 0,
            // Each connection has a new port, until the ports wrap.
            Kind::TcpCrr => self.turns as usize * BURST % 48_000,
        };
        self.turns += 1;
        let flows = (0..BURST).map(|n| {
            let sport = 10_000 + (first + n) as u16;
            Flow { sport, dport: 443, ..Flow::new(PEER, OWN) }
        });
        let flows: Vec<Flow> = flows.collect();
        let packets = |count: usize, is_answer: bool| -> Vec<Packet> {
            let bytes = |flow: &Flow| match is_answer {
                false => *flow,
                true => Flow { src: flow.dst, dst: flow.src, sport: flow.dport, dport: flow.sport, ..*flow },
            };
            let packet = |flow: Flow| {
                let bytes = if self.kind == Kind::Udp { flow.udp(1) } else { flow.tcp(1, 1) };
                Packet::with_data(&self.mem, &bytes).expect("a heap without limit")
            };
            flows.iter().flat_map(|flow| std::iter::repeat_n(bytes(flow), count)).map(packet).collect()
        };
        let exchange = |&[received, sent]: &[usize; 2]| [packets(received, false), packets(sent, true)];
        self.exchanges = self.kind.exchanges().iter().map(exchange).collect();
    }

    fn run(&mut self) {
        let (now, device) = (Instant::ZERO, self.device());
        let begin = thread_time();
        let Self { datapath, mem, exchanges, up, out, tapped, .. } = self;
        for [requests, answers] in exchanges {
            datapath.handle_rx(now, mem, LINK, requests);
            while datapath.socket_question().is_some() {
                datapath.answer_socket_question(now, mem, SocketBinding::Vrf);
            }
            *up += datapath
                .take_tx(host_port(device))
                .map_or(0, |waiting| waiting.drain(..).map(|pkt| pkt.meta.cut.segs()).sum());
            datapath.handle_rx(now, mem, host_port(device), answers);
            *out += datapath.take_tx(LINK).map_or(0, |waiting| waiting.drain(..).count() as u64);
            *tapped += datapath.take_tapped().count() as u64;
        }
        self.cpu += thread_time().saturating_sub(begin);
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.mem)
    }

    fn check(&self) -> Result<(), String> {
        let of = |each: usize| self.turns * (BURST * each) as u64;
        let expected = (of(self.kind.received()), of(self.kind.sent()));
        if (self.up, self.out) != expected {
            return Err(format!("{} packets came up and {} went out, of {expected:?}", self.up, self.out));
        }
        Ok(())
    }

    fn transactions(&self) -> Option<usize> {
        Some(BURST)
    }

    fn more(&mut self) -> Vec<(&'static str, f64)> {
        let Counts { lookups, hooks, taps } = self.counts;
        let cpu = self.cpu.as_nanos() as f64 / (self.turns as usize * BURST) as f64;
        vec![("lookups", lookups), ("hooks", hooks), ("taps", taps), ("cpu_ns", cpu)]
    }
}

/// Number of look-ups in a turn of [`many`].
const LOOKUPS: usize = 1024;

fn many() -> Group {
    let load = Load { packets: LOOKUPS, payload: LOOKUPS, small: true };
    let plan = |(name, count)| Plan::new(name, load, move || Box::new(Many::new(count)));
    let cases = [("vrfs-10", 10), ("vrfs-10000", 10_000)].map(plan).into();
    const FLAT: &[Comparison] =
        &[Comparison { of: "vrfs-10000/vrfs-10", over: &["vrfs-10000"], under: &["vrfs-10"], figure: None }];
    Group { name: "many".to_owned(), cases, ratios: FLAT }
}

/// A node with many VRFs of one link and one route each.
struct Many {
    datapath: Datapath,
    mem: Memory,
    count: u32,
    bytes_each: f64,
    found: u64,
    turns: u64,
}

impl Many {
    fn new(count: u32) -> Self {
        let before = resident();
        let mut datapath = Datapath::new();
        for v4 in [true, false] {
            let mut rules = Rule::first(v4);
            rules.insert(1, Rule::ask_vrf());
            datapath.fib.set_rules(v4, rules);
        }
        for n in 0..count {
            let (vrf, link) = Self::numbers(n);
            datapath.fib.set_vrf(vrf, Some(Vrf { table: TableId(1000 + n), up: true }));
            datapath.fib.set_domain(link, Domain::vrf(vrf));
            datapath.set_vrf_port(Instant::ZERO, vrf, Some((format!("vrf{n}"), 65_575)));
            let prefix: Prefix = "10.1.0.0/24".parse().expect("a prefix");
            let route = Route { prefix, kind: RouteKind::Unicast { via: None, dev: link }, metric: 0 };
            datapath.fib.add(TableId(1000 + n), route).expect("the first route");
        }
        let bytes_each = resident().saturating_sub(before) as f64 / f64::from(count);
        Self { datapath, mem: Memory::heap(), count, bytes_each, found: 0, turns: 0 }
    }

    const fn numbers(n: u32) -> (PortId, PortId) {
        (PortId(10 + 2 * n), PortId(11 + 2 * n))
    }
}

impl Turn for Many {
    fn prepare(&mut self) {
        self.turns += 1;
    }

    fn run(&mut self) {
        let dst = PEER.parse().expect("an address");
        // Ten at a time, as in the other case: the cases differ only in the number of VRFs to search.
        let first = self.turns as u32 * 10 % self.count;
        for n in 0..LOOKUPS as u32 {
            let (vrf, link) = Self::numbers((first + n % 10) % self.count);
            let is_right = matches!(
                self.datapath.fib.decide(Domain::vrf(vrf), dst, None),
                Decision::Forward { dev, .. } if dev == link
            );
            self.found += u64::from(is_right);
        }
    }

    fn copied(&self) -> Copied {
        Copied::of(&self.mem)
    }

    fn check(&self) -> Result<(), String> {
        let all = self.turns * LOOKUPS as u64;
        if self.found == all { Ok(()) } else { Err(format!("{} of {all} look-ups were right", self.found)) }
    }

    fn more(&mut self) -> Vec<(&'static str, f64)> {
        vec![("bytes_each", self.bytes_each)]
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    const PAGE: usize = 4096;
    let text = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * PAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_carries_its_transactions() {
        groups().iter().for_each(Group::run_briefly);
    }

    #[test]
    fn packet_sent_is_looked_up_once_and_behind_a_qdisc_twice() {
        for kind in [Kind::Udp, Kind::TcpCrr] {
            for (at, lookups) in [(At::None, 1.0), (At::Vrf, 1.0), (At::Tap, 1.0), (At::Qdisc, 2.0)] {
                let counts = Transactions::new(kind, at).counts;
                assert_eq!(counts.lookups, lookups, "{kind:?} {at:?}");
                let passes = (kind.sent() + kind.received()) as f64;
                assert_eq!(counts.taps, if at == At::Tap { passes } else { 0.0 }, "{kind:?} {at:?}");
                // Pre-routing and local-in of received packets, local-out and post-routing of sent ones; in addition
                // the VRF's pre-routing, local-out and post-routing.
                let of_link = 2 * (kind.sent() + kind.received());
                let of_vrf = if at == At::None { 0 } else { kind.received() + 2 * kind.sent() };
                assert_eq!(counts.hooks, (of_link + of_vrf) as f64, "{kind:?} {at:?}");
            }
        }
    }
}

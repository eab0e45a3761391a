//! Nanoseconds per look-up among many policies and many SAs, and bytes per entry: `cargo bench -p fatpath-ipsec --bench
//! lookup`. Look-ups do the same however many entries there are; what grows is the memory that they are spread over,
//! and so the time of a cache line that comes from further away.
//!
//! `floor/N` is that time: the read of one random number out of N that are as far from each other as SAs are. Every
//! look-up but those of `fragment` waits for the result of the one before, as the work on a packet does for its SA.
//!
//! `out/N` finds one of N policies and its SA for a flow that is not cached, and `remembered/N` for one of 64 that are
//! remembered; `in/N` checks a packet by one of N policies, `spi/N` finds one of N SAs by what arrives, and `hot/N` one
//! of 64 among N. Policies are of /24 to /24 in `nets`, of one pair of prefixes and a port each in `ports`, of one pair
//! and an interface each in `interfaces`, and of random lengths in `mixed`.
//!
//! On a Zen 5 EPYC with 1 MiB of second-level cache, other work beside it, fastest of 40 samples:
//!
//! | | few | 1 000 | 10 000 policies, 100 000 SAs |
//! |---|---|---|---|
//! | `floor` | 2.6 | 4.6 | 12 (10 000), 123 (100 000) |
//! | `spi` | 14 | 17 | 158: 1.3 times the floor |
//! | `hot` | 15 | 16 | 16 |
//! | `unknown` | 5 | 6 | 8 |
//! | `out` by template | 24 | 28 | 232 |
//! | `out/nets` | 114 | 135 | 189 |
//! | `out/mixed` | 93 | 111 | 148 |
//! | `in/nets` | 47 | 56 | 84 |
//! | `remembered/nets` | 33 | 31 | 32 |
//!
//! An SA with AES-256-GCM takes 623 bytes, and 1 276 with what the cipher library keeps for it; a policy 470 to 600.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::{Counters, Instant, Prefix};
use divan::{Bencher, black_box};
use ipsec::{Decision, Ipsec};
use packet::SecPath;
use wire::{FlowKey, Protocol, Spi};
use xfrm::{Aead, Algorithm, Dir, Flowi, Level, Mark, Mode, PolicyConfig, PortMask, SaConfig, Selector, Template};

/// Counts the bytes that are in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.fetch_add(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

const POLICIES: [u32; 3] = [10, 1_000, 10_000];
const SAS: [u32; 3] = [64, 1_000, 100_000];
const HOT: u32 = 64;
const NOW: Instant = Instant::ZERO;

/// More flows than are cached.
const FLOWS: u32 = 16_384;

/// Random numbers that depend on a value which the compiler does not know.
struct Random {
    state: u32,
    /// 0, opaque to the compiler.
    zero: u32,
}

impl Random {
    fn new() -> Self {
        Self { state: 1, zero: black_box(0) }
    }

    fn below(&mut self, n: u32, waits_for: u32) -> u32 {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) ^ (waits_for & self.zero);
        ((u64::from(self.state) * u64::from(n)) >> 32) as u32
    }
}

fn main() {
    print_memory();
    divan::main();
}

/// A gateway's own address, and that of its `n`th peer.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn peer(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x6440_0000 + n).into()
}

fn sa(n: u32) -> SaConfig {
    let algorithm = Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128);
    SaConfig { reqid: n + 1, replay_window: 128, ..SaConfig::new(HERE, peer(n), Spi(n + 1), Mode::Tunnel, algorithm) }
}

fn template(n: u32) -> Template {
    let (src, dst) = (Some(HERE), Some(peer(n)));
    Template { src, dst, spi: None, mode: Mode::Tunnel, reqid: n + 1, level: Level::Required }
}

/// Difference between the policies of a case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Nets,
    Ports,
    Interfaces,
    Mixed,
}

impl Kind {
    /// The `n`th address of hosts behind peers: of the `n`th /24.
    fn host(self, n: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a00_0001 + (n << 8))
    }

    fn policy(self, dir: Dir, n: u32) -> PolicyConfig {
        let of = |len| Prefix::containing(self.host(n).into(), len).expect("a length of IPv4's");
        let any = Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
        let port = Selector { protocol: Some(Protocol::TCP), dport: PortMask::exactly(n as u16), ..any };
        // A hash of the number, for lengths that look random.
        let random = n.wrapping_mul(0x9e37_79b9) >> 16;
        let (selector, if_id) = match self {
            Self::Nets => (Selector::new(Prefix::ANY_V4, of(24)), 0),
            Self::Ports => (port, 0),
            Self::Interfaces => (any, n + 1),
            Self::Mixed => {
                let source = Prefix::containing(Ipv4Addr::from_bits(random << 16 | n).into(), (random % 17) as u8);
                (Selector::new(source.expect("a length of IPv4's"), of(24 + (random % 9) as u8)), 0)
            }
        };
        PolicyConfig { templates: vec![template(n)], if_id, priority: n % 7, ..PolicyConfig::new(dir, selector) }
    }

    fn flow(self, n: u32, of: u32) -> Flowi {
        let dport = if self == Self::Ports { (n % of) as u16 } else { 80 };
        let src = Ipv4Addr::from_bits(0xac10_0000 + n).into();
        let key = FlowKey { src, dst: self.host(n % of).into(), protocol: Protocol::TCP, sport: n as u16, dport };
        let if_id = if self == Self::Interfaces { n % of + 1 } else { 0 };
        Flowi { if_id, ..key.into() }
    }
}

fn with_sas(n: u32) -> Ipsec {
    let mut node = Ipsec::new();
    for n in 0..n {
        node.add_sa(&sa(n), u64::from(n) << 32).expect("a good SA");
    }
    node
}

fn with_policies(kind: Kind, dir: Dir, n: u32) -> Ipsec {
    let mut node = Ipsec::new();
    for n in 0..n {
        node.add_policy(kind.policy(dir, n)).expect("a good policy");
    }
    node
}

fn print_memory() {
    let of = |make: &dyn Fn() -> Ipsec| {
        let before = (IN_USE.load(Relaxed), resident());
        let node = make();
        let bytes = (IN_USE.load(Relaxed) - before.0, resident() - before.1);
        drop(black_box(node));
        bytes
    };
    let (sas, policies) = (100_000, 10_000);
    let empty = of(&Ipsec::new).0;
    let (of_sas, of_all) = of(&|| with_sas(sas));
    println!("bytes per SA (AES-256-GCM, window 128), of {sas}: {}", (of_sas - empty) / sas as usize);
    println!("the same, with what the cipher library has: {}", of_all / sas as usize);
    for kind in [Kind::Nets, Kind::Ports, Kind::Interfaces, Kind::Mixed] {
        let bytes = (of(&|| with_policies(kind, Dir::Out, policies)).0 - empty) / policies as usize;
        println!("bytes per policy ({kind:?}, one template), of {policies}: {bytes}");
    }
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux's procfs");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).expect("a number of pages") * 4096
}

/// Flows in random order, so that successive look-ups are not neighbours in memory.
fn flows(kind: Kind, n: u32, of: u32) -> Vec<Flowi> {
    let mut flows: Vec<Flowi> = (0..n).map(|at| kind.flow(at, of)).collect();
    let mut random = Random::new();
    (0..n).for_each(|at| flows.swap(at as usize, random.below(n, 0) as usize));
    flows
}

/// Looks up flows in rotation.
fn out(bencher: Bencher<'_, '_>, kind: Kind, n: u32, flows: Vec<Flowi>) {
    let mut node = with_policies(kind, Dir::Out, n);
    for n in 0..n {
        let if_id = kind.policy(Dir::Out, n).if_id;
        node.add_sa(&SaConfig { if_id, ..sa(n) }, u64::from(n) << 32).expect("a good SA");
    }
    let mut counters = Counters::ZERO;
    let protects = flows.iter().all(|flow| matches!(node.lookup(NOW, flow, &mut counters), Decision::Protect(_)));
    assert!(protects || kind == Kind::Mixed, "{counters:?}");
    let (mut at, zero) = (0, black_box(0));
    bencher.bench_local(|| {
        at = (at + 1) % flows.len();
        match node.lookup(NOW, black_box(&flows[at]), &mut counters) {
            Decision::Protect(bundle) => at += bundle[0].0 as usize & zero,
            decision => drop(black_box(decision)),
        }
    });
}

mod policies {
    use super::*;

    #[divan::bench(name = "out/nets", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn nets(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Nets, n, flows(Kind::Nets, FLOWS, n));
    }

    #[divan::bench(name = "out/ports", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn ports(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Ports, n, flows(Kind::Ports, FLOWS, n));
    }

    #[divan::bench(name = "out/interfaces", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn interfaces(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Interfaces, n, flows(Kind::Interfaces, FLOWS, n));
    }

    #[divan::bench(name = "out/mixed", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn mixed(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Mixed, n, flows(Kind::Mixed, FLOWS, n));
    }

    #[divan::bench(name = "remembered/nets", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn remembered(bencher: Bencher<'_, '_>, n: u32) {
        let mut flows = flows(Kind::Nets, FLOWS, n);
        // Few enough for each to stay cached.
        flows.truncate(HOT as usize);
        out(bencher, Kind::Nets, n, flows);
    }

    #[divan::bench(name = "in/nets", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn check(bencher: Bencher<'_, '_>, n: u32) {
        let mut node = with_policies(Kind::Nets, Dir::In, n);
        let flows = flows(Kind::Nets, FLOWS, n);
        let (clear, mut counters, mut at) = (SecPath::new(), Counters::ZERO, 0);
        bencher.bench_local(|| {
            at = (at + 1) % flows.len();
            let checked = node.check(NOW, Dir::In, black_box(&flows[at]), &clear, || None, &mut counters);
            assert!(checked.is_err(), "a clear packet that needs an SA");
        });
    }

    #[divan::bench(name = "fragment/ports", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn fragment(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_policies(Kind::Ports, Dir::Fwd, n);
        let flows = flows(Kind::Nets, FLOWS, n);
        let mut at = 0;
        bencher.bench_local(|| {
            at = (at + 1) % flows.len();
            black_box(node.spd().may_stop_fragment(Dir::Fwd, black_box(&flows[at])))
        });
    }

    #[divan::bench(name = "replace", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn replace(bencher: Bencher<'_, '_>, n: u32) {
        let mut node = with_policies(Kind::Nets, Dir::Out, n);
        let key = Kind::Nets.policy(Dir::Out, n / 2).key();
        bencher.bench_local(|| {
            let policy = node.remove_policy(&key).expect("it is there");
            node.add_policy(policy.config).expect("it is gone");
        });
    }
}

mod sas {
    use super::*;

    /// As far from each other as SAs are.
    #[derive(Clone)]
    #[repr(align(256))]
    struct Place(u32);

    #[divan::bench(name = "floor", args = [64, 1_000, 10_000, 100_000], sample_count = 40, sample_size = 8192)]
    fn floor(bencher: Bencher<'_, '_>, n: u32) {
        let places: Vec<Place> = (0..n).map(Place).collect();
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| found = places[random.below(n, found) as usize].0);
    }

    #[divan::bench(name = "floor/hot", args = SAS, sample_count = 40, sample_size = 8192)]
    fn hot_floor(bencher: Bencher<'_, '_>, n: u32) {
        let places: Vec<Place> = (0..n).map(Place).collect();
        let hot = hot(n);
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| found = places[hot[random.below(HOT, found) as usize] as usize].0);
    }

    #[divan::bench(name = "out", args = SAS, sample_count = 40, sample_size = 8192)]
    fn out(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let flow = Kind::Nets.flow(0, 1);
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| {
            let n = random.below(n, found);
            found = node
                .sad()
                .for_template(&template(n), Mark::ANY, HERE, peer(n), black_box(&flow))
                .expect("it is there")
                .0;
        });
    }

    fn find(node: &Ipsec, n: u32) -> u32 {
        node.sad().by_spi(black_box(peer(n)), Spi(n + 1), 0).expect("it is there").0
    }

    #[divan::bench(name = "spi", args = SAS, sample_count = 40, sample_size = 8192)]
    fn spi(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| found = find(&node, random.below(n, found)));
    }

    #[divan::bench(name = "hot", args = SAS, sample_count = 40, sample_size = 8192)]
    fn spi_hot(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let hot = hot(n);
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| found = find(&node, hot[random.below(HOT, found) as usize]));
    }

    /// 64 of N, with others between them.
    fn hot(n: u32) -> Vec<u32> {
        let mut random = Random::new();
        (0..HOT).map(|at| at * (n / HOT) + random.below(n / HOT, 0)).collect()
    }

    #[divan::bench(name = "unknown", args = SAS, sample_count = 40, sample_size = 8192)]
    fn unknown(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let (mut random, mut found) = (Random::new(), 0);
        bencher.bench_local(|| {
            let spi = Spi(1 << 31 | random.below(n, found));
            found = u32::from(node.sad().by_spi(black_box(HERE), spi, 0).is_some());
        });
    }

    #[divan::bench(name = "replace", args = SAS, sample_count = 50, sample_size = 1)]
    fn replace(bencher: Bencher<'_, '_>, n: u32) {
        let mut node = with_sas(n);
        let (config, mut mask) = (sa(n / 2), u64::from(n) << 33);
        bencher.bench_local(|| {
            mask += 1 << 32;
            node.remove_sa(config.dst, config.spi, 0).expect("it is there");
            node.add_sa(&config, mask).expect("it is gone");
        });
    }
}

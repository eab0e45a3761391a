//! Nanoseconds per look-up among many policies and many SAs, of flows that nobody remembers, and bytes per entry:
//! `cargo bench -p fatpath-ipsec --bench lookup`. The figures are to stay where they are as numbers grow.
//!
//! `out/N` finds one of N policies and its SA, `in/N` checks a packet by one of N policies, `spi/N` finds one of N SAs by
//! what arrives. Policies are of /24 to /24 in `nets`, of one pair of prefixes and a port each in `ports`, of one pair and
//! an interface each in `interfaces`, and of random lengths in `mixed`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use base::{Counters, Instant, LinkId, Prefix};
use divan::{Bencher, black_box};
use ipsec::{
    Algorithm, Decision, Dir, Flowi, Ipsec, Level, Mode, PolicyConfig, PortMask, SaConfig, Selector, Template,
};
use packet::SecPath;
use wire::{FlowKey, Protocol, Spi};

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
const SAS: [u32; 3] = [10, 1_000, 100_000];
const NOW: Instant = Instant::ZERO;

/// More flows than are remembered.
const FLOWS: u32 = 16_384;

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
    let algorithm = Algorithm::GcmAes { key: vec![7; 36].into(), icv_len: 16 };
    SaConfig { reqid: n + 1, replay_window: 128, ..SaConfig::new(HERE, peer(n), Spi(n + 1), Mode::Tunnel, algorithm) }
}

fn template(n: u32) -> Template {
    let (src, dst) = (Some(HERE), Some(peer(n)));
    Template { src, dst, spi: None, mode: Mode::Tunnel, reqid: n + 1, level: Level::Required }
}

/// How policies differ.
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
        Flowi { key, mark: 0, if_id, link: LinkId::NONE }
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
    let per = |n: u32, make: &dyn Fn() -> Ipsec| {
        let before = IN_USE.load(Relaxed);
        let empty = Ipsec::new();
        let of_empty = IN_USE.load(Relaxed) - before;
        drop(empty);
        let before = IN_USE.load(Relaxed);
        let node = make();
        let bytes = (IN_USE.load(Relaxed) - before - of_empty) / n as usize;
        drop(black_box(node));
        bytes
    };
    println!("bytes per SA (AES-256-GCM, window 128), of 10 000: {}", per(10_000, &|| with_sas(10_000)));
    for kind in [Kind::Nets, Kind::Ports, Kind::Interfaces, Kind::Mixed] {
        let bytes = per(10_000, &|| with_policies(kind, Dir::Out, 10_000));
        println!("bytes per policy ({kind:?}, one template), of 10 000: {bytes}");
    }
}

/// Looks up flows of which each comes again only when it is forgotten.
fn out(bencher: Bencher<'_, '_>, kind: Kind, n: u32) {
    let mut node = with_policies(kind, Dir::Out, n);
    for n in 0..n {
        let if_id = kind.policy(Dir::Out, n).if_id;
        node.add_sa(&SaConfig { if_id, ..sa(n) }, u64::from(n) << 32).expect("a good SA");
    }
    let mut counters = Counters::ZERO;
    let flows: Vec<Flowi> = (0..FLOWS).map(|at| kind.flow(at, n)).collect();
    let protects = flows.iter().all(|flow| matches!(node.lookup(NOW, flow, &mut counters), Decision::Protect(_)));
    assert!(protects || kind == Kind::Mixed, "{counters:?}");
    let mut at = 0;
    bencher.bench_local(|| {
        at = (at + 1) % flows.len();
        black_box(node.lookup(NOW, black_box(&flows[at]), &mut counters))
    });
}

mod policies {
    use super::*;

    #[divan::bench(name = "out/nets", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn nets(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Nets, n);
    }

    #[divan::bench(name = "out/ports", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn ports(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Ports, n);
    }

    #[divan::bench(name = "out/interfaces", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn interfaces(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Interfaces, n);
    }

    #[divan::bench(name = "out/mixed", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn mixed(bencher: Bencher<'_, '_>, n: u32) {
        out(bencher, Kind::Mixed, n);
    }

    #[divan::bench(name = "in/nets", args = POLICIES, sample_count = 40, sample_size = 8192)]
    fn check(bencher: Bencher<'_, '_>, n: u32) {
        let mut node = with_policies(Kind::Nets, Dir::In, n);
        let flows: Vec<Flowi> = (0..FLOWS).map(|at| Kind::Nets.flow(at, n)).collect();
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
        let flows: Vec<Flowi> = (0..FLOWS).map(|at| Kind::Nets.flow(at, n)).collect();
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

    #[divan::bench(name = "out", args = SAS, sample_count = 40, sample_size = 8192)]
    fn out(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let flow = Kind::Nets.flow(0, 1);
        let mut at = 0;
        bencher.bench_local(|| {
            at = (at + 7919) % n;
            let found = node.sad().for_template(&template(at), HERE, peer(at), black_box(&flow));
            assert!(found.is_some());
        });
    }

    #[divan::bench(name = "spi", args = SAS, sample_count = 40, sample_size = 8192)]
    fn spi(bencher: Bencher<'_, '_>, n: u32) {
        let node = with_sas(n);
        let mut at = 0;
        bencher.bench_local(|| {
            at = (at + 7919) % n;
            let found = node.sad().by_spi(black_box(peer(at)), Spi(at + 1), 0);
            assert!(found.is_some());
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

//! Cost of a fragment by number and order: `cargo bench -p fatpath-reassembly`. Items are fragments, which lie as a
//! link receives them: several in a page, each with an exclusive range and its headroom.

use base::{Counters, Instant};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use packet::{Buf, Memory, Packet};
use reassembly::{Coalesce, Config, Limits, Reassembly, ReassemblyContext, Verdict};
use wire::ip::Info;
use wire::{FragInfo, FragOffset, Protocol, Version, frag, ipv4, ipv6};

fn main() {
    divan::main();
}

/// Fragments per datagram. IPv4 has no room for the last count, because of its header.
const COUNTS: [usize; 5] = [2, 8, 44, 512, 8189];

/// Minimum number of fragments in one measurement.
const AT_ONCE: usize = 512;

/// Order in which the fragments of a datagram arrive.
#[derive(Clone, Copy)]
enum Order {
    Straight,
    Reversed,
    Shuffled,
    Alternating,
}

/// Datagrams, in fragments.
struct Train {
    fragments: Vec<(Vec<u8>, Info)>,
    datagrams: usize,
    payload_len: usize,
}

impl Train {
    /// Datagrams of `count` fragments each, one after the other.
    fn new(version: Version, count: usize, order: Order) -> Self {
        // Fragments of 1500 bytes, if the datagram is long enough.
        let size = (65_512 / count / 8 * 8).min(1448);
        let datagrams = AT_ONCE.div_ceil(count);
        let mut fragments = Vec::new();
        for id in 0..datagrams {
            let one = |n: usize| {
                let more = n + 1 < count;
                let bytes = fragment(version, id, n * size, if more { size } else { size - 7 }, more);
                let info = Info::parse(&bytes, bytes.len()).expect("a fragment");
                (bytes, info)
            };
            let mut train: Vec<_> = (0..count).map(one).collect();
            match order {
                Order::Straight => {}
                Order::Reversed => train.reverse(),
                Order::Shuffled => shuffle(&mut train),
                Order::Alternating => {
                    train.sort_by_key(|(_, info)| {
                        let number = info.fragment.map(|it| it.offset.bytes() / size);
                        number.is_some_and(|it| it.is_multiple_of(2))
                    });
                }
            }
            fragments.extend(train);
        }
        Self { fragments, datagrams, payload_len: count * size - 7 }
    }

    fn bench(&self, bencher: Bencher<'_, '_>, coalesce: Coalesce) {
        let context = ReassemblyContext::LOCAL;
        let mem = Memory::heap();
        let mut reassembly = Reassembly::new(Config { coalesce, ..boundless() });
        let mut counters = Counters::ZERO;
        bencher
            .counter(ItemsCount::new(self.fragments.len()))
            .counter(BytesCount::new(self.datagrams * self.payload_len))
            .with_inputs(|| (received(&mem, &self.fragments), Vec::with_capacity(self.datagrams)))
            .bench_local_values(|(packets, mut whole)| {
                for (pkt, info) in packets {
                    match reassembly.handle_fragment(Instant::ZERO, &mem, context, pkt, &info, &mut counters) {
                        Verdict::Whole { pkt, .. } => whole.push(pkt),
                        Verdict::Held => {}
                        other => panic!("{other:?}"),
                    }
                }
                assert_eq!((whole.len(), reassembly.memory()), (self.datagrams, 0));
                whole
            });
    }
}

/// No limits.
fn boundless() -> Config {
    let Config { v4, v6, .. } = Config::default();
    let [v4, v6] = [v4, v6].map(|limits| Limits { high_thresh: usize::MAX, ..limits });
    Config { v4, v6, ..Config::default() }
}

/// Fisher and Yates, with a generator of 64 bits (xorshift).
fn shuffle<T>(items: &mut [T]) {
    let mut state = 42_u64;
    for at in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(at, (state % (at as u64 + 1)) as usize);
    }
}

/// The packets, received into pages.
fn received(mem: &Memory, fragments: &[(Vec<u8>, Info)]) -> Vec<(Packet, Info)> {
    let mut page: Option<Buf> = None;
    let mut one = |bytes: &[u8]| {
        let stride = Memory::HEADROOM + bytes.len().next_multiple_of(64);
        let mut room = page.take().filter(|page| page.len() >= stride).unwrap_or_else(|| {
            let mut page = mem.take(0, Memory::LARGE).expect("a page");
            page.put(Memory::LARGE).expect("room");
            page
        });
        let mut buf = room.split_to(stride);
        page = Some(room);
        buf.pull(Memory::HEADROOM);
        buf.bytes_mut().expect("a stretch of its own")[..bytes.len()].copy_from_slice(bytes);
        buf.trim(bytes.len());
        Packet::from_buf(buf)
    };
    fragments.iter().map(|(bytes, info)| (one(bytes), *info)).collect()
}

fn fragment(version: Version, id: usize, at: usize, len: usize, more: bool) -> Vec<u8> {
    let offset = FragOffset::from_bytes(at).expect("a multiple of 8");
    let mut bytes = match version {
        Version::V4 => {
            let src = std::net::Ipv4Addr::from_bits(0x0a00_0001 + (id as u32 >> 16));
            let mut header = ipv4::Ipv4Header::new(src, [192, 0, 2, 2].into(), Protocol::UDP, (20 + len) as u16);
            header.set_id(id as u16);
            header.set_fragment(offset, more);
            header.fill_check();
            header.as_bytes().to_vec()
        }
        Version::V6 => {
            let (src, dst) = (std::net::Ipv6Addr::from_bits(1 << 125 | 1), std::net::Ipv6Addr::from_bits(1 << 125 | 2));
            let header = ipv6::Ipv6Header::new(src, dst, Protocol::FRAGMENT, (8 + len) as u16);
            let fragment = frag::FragHeader::new(Protocol::UDP, FragInfo { offset, more, id: id as u32 });
            [header.as_bytes(), fragment.as_bytes()].concat()
        }
    };
    bytes.resize(bytes.len() + len, 0xa5);
    bytes
}

macro_rules! orders {
    ($($function:ident: $name:literal, $version:ident, $order:ident;)*) => {$(
        #[divan::bench(name = $name, args = COUNTS)]
        fn $function(bencher: Bencher<'_, '_>, count: usize) {
            Train::new(Version::$version, count, Order::$order).bench(bencher, Coalesce::Move);
        }
    )*};
}

orders! {
    v4_in_order: "reasm/ipv4/in_order", V4, Straight;
    v4_reversed: "reasm/ipv4/reversed", V4, Reversed;
    v4_shuffled: "reasm/ipv4/shuffled", V4, Shuffled;
    v4_odd_before_even: "reasm/ipv4/odd_before_even", V4, Alternating;
    v6_in_order: "reasm/ipv6/in_order", V6, Straight;
    v6_reversed: "reasm/ipv6/reversed", V6, Reversed;
    v6_shuffled: "reasm/ipv6/shuffled", V6, Shuffled;
    v6_odd_before_even: "reasm/ipv6/odd_before_even", V6, Alternating;
}

/// Every fragment is copied, and its page freed at once.
#[divan::bench(name = "reasm/ipv6/copied", args = COUNTS)]
fn copied(bencher: Bencher<'_, '_>, count: usize) {
    Train::new(Version::V6, count, Order::Straight).bench(bencher, Coalesce::Copy);
}

/// Every fragment stays a packet of its own.
#[divan::bench(name = "reasm/ipv6/kept", args = COUNTS)]
fn kept(bencher: Bencher<'_, '_>, count: usize) {
    Train::new(Version::V6, count, Order::Straight).bench(bencher, Coalesce::Off);
}

/// First fragments of incomplete datagrams while memory is full: each evicts another.
#[divan::bench(name = "reasm/attack/one_fragment")]
fn attack(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut reassembly = Reassembly::default();
    let mut counters = Counters::ZERO;
    let mut ids = 0..;
    let mut next = || {
        let one = |id| {
            let bytes = fragment(Version::V4, id, 0, 1448, true);
            let info = Info::parse(&bytes, bytes.len()).expect("a fragment");
            (bytes, info)
        };
        received(&mem, &ids.by_ref().take(AT_ONCE).map(one).collect::<Vec<_>>())
    };
    let mut flood = |packets| {
        for (pkt, info) in packets {
            let verdict =
                reassembly.handle_fragment(Instant::ZERO, &mem, ReassemblyContext::LOCAL, pkt, &info, &mut counters);
            assert!(matches!(verdict, Verdict::Held), "{verdict:?}");
        }
        reassembly.drain_evicted().count()
    };
    while flood(next()) == 0 {}
    bencher.counter(ItemsCount::new(AT_ONCE)).with_inputs(next).bench_local_values(flood);
}

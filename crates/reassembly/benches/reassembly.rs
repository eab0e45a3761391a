//! What putting fragments together costs: `cargo bench -p fatpath-reassembly`. Fragments lie as a link receives them:
//! several in a page, each in an exclusive stretch of it, with the headroom before its data.

use base::{Counters, Instant};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use packet::{Buf, Memory, Packet};
use reassembly::{Asker, Config, Limits, Reassembly, Verdict};
use wire::ip::Info;
use wire::{FragInfo, FragOffset, Protocol, Version, frag, ipv4, ipv6};

fn main() {
    divan::main();
}

/// A datagram in fragments of `size` bytes of payload.
struct Train {
    fragments: Vec<(Vec<u8>, Info)>,
    payload_len: usize,
    header_len: usize,
}

impl Train {
    fn new(version: Version, count: usize, size: usize) -> Self {
        let one = |n: usize| {
            let more = n + 1 < count;
            // The longest datagram is a little shorter than eight times 8192 bytes.
            let len = if more { size } else { size - 7 };
            let bytes = fragment(version, n * size, len, more);
            let info = Info::parse(&bytes, bytes.len()).expect("a fragment");
            (bytes, info)
        };
        let payload_len = count * size - 7;
        Self { fragments: (0..count).map(one).collect(), payload_len, header_len: version.header_len() }
    }

    fn reversed(mut self) -> Self {
        self.fragments.reverse();
        self
    }

    /// Fisher and Yates, with a generator of 64 bits (xorshift).
    fn shuffled(mut self) -> Self {
        let mut state = 42_u64;
        for at in (1..self.fragments.len()).rev() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            self.fragments.swap(at, (state % (at as u64 + 1)) as usize);
        }
        self
    }

    /// The packets, received into pages.
    fn packets(&self, mem: &Memory) -> Vec<(Packet, Info)> {
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
        self.fragments.iter().map(|(bytes, info)| (one(bytes), *info)).collect()
    }

    fn bench(&self, bencher: Bencher<'_, '_>) {
        let mem = Memory::heap();
        let Config { v4, v6, .. } = Config::default();
        let [v4, v6] = [v4, v6].map(|limits| Limits { high_thresh: usize::MAX, ..limits });
        let mut reassembly = Reassembly::new(Config { v4, v6, ..Config::default() });
        let mut counters = Counters::ZERO;
        bencher
            .counter(ItemsCount::new(self.fragments.len()))
            .counter(BytesCount::new(self.payload_len))
            .with_inputs(|| self.packets(&mem))
            .bench_local_values(|packets| {
                let mut whole = None;
                for (pkt, info) in packets {
                    match reassembly.handle_fragment(Instant::ZERO, &mem, Asker::LOCAL, pkt, &info, &mut counters) {
                        Verdict::Whole { pkt, .. } => whole = Some(pkt),
                        Verdict::Held => {}
                        other => panic!("{other:?}"),
                    }
                }
                let whole = whole.expect("the datagram");
                assert_eq!((whole.len(), reassembly.memory()), (self.header_len + self.payload_len, 0));
                whole
            });
    }
}

fn fragment(version: Version, at: usize, len: usize, more: bool) -> Vec<u8> {
    let offset = FragOffset::from_bytes(at).expect("a multiple of 8");
    let mut bytes = match version {
        Version::V4 => {
            let (src, dst) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
            let mut header = ipv4::Header::new(src, dst, Protocol::UDP, (20 + len) as u16);
            header.set_fragment(offset, more);
            header.fill_check();
            header.as_bytes().to_vec()
        }
        Version::V6 => {
            let (src, dst) = (std::net::Ipv6Addr::from_bits(1 << 125 | 1), std::net::Ipv6Addr::from_bits(1 << 125 | 2));
            let header = ipv6::Header::new(src, dst, Protocol::FRAGMENT, (8 + len) as u16);
            let fragment = frag::Header::new(Protocol::UDP, FragInfo { offset, more, id: 1 });
            [header.as_bytes(), fragment.as_bytes()].concat()
        }
    };
    bytes.resize(bytes.len() + len, 0xa5);
    bytes
}

#[divan::bench(name = "reasm/ipv4/2frags/in_order")]
fn v4_two(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 2, 1480).bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/44frags/in_order")]
fn v4_in_order(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 44, 1480).bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/44frags/reversed")]
fn v4_reversed(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 44, 1480).reversed().bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/44frags/shuffled")]
fn v4_shuffled(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 44, 1480).shuffled().bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/8189frags/in_order")]
fn v4_tiny_in_order(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 8189, 8).bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/8189frags/reversed")]
fn v4_tiny_reversed(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 8189, 8).reversed().bench(bencher);
}

#[divan::bench(name = "reasm/ipv4/8189frags/shuffled")]
fn v4_tiny_shuffled(bencher: Bencher<'_, '_>) {
    Train::new(Version::V4, 8189, 8).shuffled().bench(bencher);
}

#[divan::bench(name = "reasm/ipv6/2frags/in_order")]
fn v6_two(bencher: Bencher<'_, '_>) {
    Train::new(Version::V6, 2, 1448).bench(bencher);
}

#[divan::bench(name = "reasm/ipv6/45frags/in_order")]
fn v6_in_order(bencher: Bencher<'_, '_>) {
    Train::new(Version::V6, 45, 1448).bench(bencher);
}

#[divan::bench(name = "reasm/ipv6/45frags/shuffled")]
fn v6_shuffled(bencher: Bencher<'_, '_>) {
    Train::new(Version::V6, 45, 1448).shuffled().bench(bencher);
}

#[divan::bench(name = "reasm/ipv6/8191frags/in_order")]
fn v6_tiny_in_order(bencher: Bencher<'_, '_>) {
    Train::new(Version::V6, 8191, 8).bench(bencher);
}

#[divan::bench(name = "reasm/ipv6/8191frags/shuffled")]
fn v6_tiny_shuffled(bencher: Bencher<'_, '_>) {
    Train::new(Version::V6, 8191, 8).shuffled().bench(bencher);
}

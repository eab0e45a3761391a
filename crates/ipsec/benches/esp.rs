//! Nanoseconds per segment of ESP over fat packets, compared with the cipher alone over the same bytes.
//!
//! 64 KiB of TCP in 46 segments, tunnel mode over IPv4 with ESP in UDP, AES-256-GCM. Each case seals or opens one fat
//! packet per iteration; `items` counts segments.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base::{Counters, Instant, SaId};
use divan::Bencher;
use divan::counter::ItemsCount;
use ipsec::engine::{Cipher, Library};
use ipsec::{Ipsec, Opened, Train};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::{Protocol, Spi, ipv4, tcp};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, EspInUdp, Mode, SaConfig};

const SEGMENTS: usize = 46;
const PAYLOAD: usize = 1386;
const HEADERS: usize = ipv4::Ipv4Header::LEN + tcp::TcpHeader::LEN + 12;

fn main() {
    divan::main();
}

fn sa(udp: bool) -> SaConfig {
    let [src, dst] = [1, 2].map(|host| Ipv4Addr::new(192, 0, 2, host).into());
    let algorithm = Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128);
    SaConfig {
        reqid: 1,
        encap: udp.then_some(EspInUdp { sport: 4500, dport: 4500 }),
        ..SaConfig::new(src, dst, Spi(0x1000), Mode::Tunnel, algorithm)
    }
}

/// 64 KiB of TCP as read from a TUN device.
fn fat(mem: &Memory) -> Packet {
    let len = HEADERS + SEGMENTS * PAYLOAD;
    let mut pkt = Packet::new(mem, Memory::HEADROOM, len).unwrap();
    let bytes = pkt.put(len).unwrap();
    let mut ip =
        ipv4::Ipv4Header::new(Ipv4Addr::new(10, 1, 0, 1), Ipv4Addr::new(10, 2, 0, 1), Protocol::TCP, len as u16);
    ip.fill_check();
    let rest = ip.write(bytes).unwrap();
    let mut transport = tcp::TcpHeader::new(40_000, 5201, 1, 1);
    transport.set_header_len(tcp::TcpHeader::LEN + 12);
    transport.write(rest).unwrap();
    pkt.meta.csum = Csum::Partial { start: ipv4::Ipv4Header::LEN as u16, offset: tcp::CHECK_AT as u16 };
    let (size, segs) = (PAYLOAD as u16, SEGMENTS as u16);
    pkt.meta.cut = Cut::Gso(Gso { size, kind: GsoKind::TcpV4, segs, ecn: false, fixed_id: false });
    pkt
}

struct Node {
    ipsec: Ipsec,
    sa: SaId,
    mem: Memory,
    counters: Counters,
}

impl Node {
    fn new(udp: bool) -> Self {
        /// No two nodes may use a nonce twice.
        static NODES: AtomicU64 = AtomicU64::new(1);
        let mut ipsec = Ipsec::new();
        let sa = ipsec.add_sa(&sa(udp), NODES.fetch_add(1, Relaxed) << 40).unwrap();
        Self { ipsec, sa, mem: Memory::heap(), counters: Counters::ZERO }
    }

    fn seal(&mut self, pkt: Packet, train: Train, out: &mut Vec<Packet>) {
        self.ipsec.seal(&self.mem, Instant::ZERO, self.sa, pkt, train, 1500, out, &mut self.counters).unwrap();
    }
}

#[divan::bench(args = [Train::Udp, Train::None])]
fn seal(bencher: Bencher<'_, '_>, train: Train) {
    let mut node = Node::new(train == Train::Udp);
    let mut out = Vec::new();
    let mut pkt = fat(&node.mem);
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        out.clear();
        node.seal(pkt.clone_shared(), train, &mut out);
        divan::black_box(&out);
    });
}

/// Includes writing the received bytes each time, because opening in place consumes them; see `memcpy`.
#[divan::bench(args = [Train::Udp, Train::None])]
fn open(bencher: Bencher<'_, '_>, train: Train) {
    let mut node = Node::new(train == Train::Udp);
    let mut sealed = Vec::new();
    let pkt = fat(&node.mem);
    node.seal(pkt, train, &mut sealed);
    let mut received = Vec::new();
    let mut opened = Opened::default();
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for wire in &sealed {
            received.push(wire.copy(&node.mem, packet::CopyReason::Copy).unwrap());
        }
        for pkt in received.drain(..) {
            node.ipsec.open(&node.mem, Instant::ZERO, pkt, &mut opened, &mut node.counters);
        }
        assert_eq!(opened.packets.len(), SEGMENTS);
        opened.packets.clear();
    });
}

/// Cost of copying the input that `open` takes.
#[divan::bench(args = [Train::Udp, Train::None])]
fn memcpy(bencher: Bencher<'_, '_>, train: Train) {
    let mut node = Node::new(train == Train::Udp);
    let mut sealed = Vec::new();
    let pkt = fat(&node.mem);
    node.seal(pkt, train, &mut sealed);
    let mut received = Vec::new();
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for wire in &sealed {
            received.push(wire.copy(&node.mem, packet::CopyReason::Copy).unwrap());
        }
        received.clear();
    });
}

/// The cipher alone, over as many bytes in as many buffers.
#[divan::bench(args = Library::ALL)]
fn cipher(bencher: Bencher<'_, '_>, library: Library) {
    let cipher = Cipher::with_library(&sa(false).algorithm, library).unwrap();
    let len = cipher.overhead() + (HEADERS + PAYLOAD + 2).next_multiple_of(4);
    let mut bytes = vec![0; SEGMENTS * len];
    let mut number = 0u64;
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for packet in bytes.chunks_mut(len) {
            number += 1;
            cipher.seal(packet, number.to_be_bytes(), None);
        }
    });
}

/// The same from another buffer: in one pass, or by a copy that the library encrypts in place.
#[divan::bench(args = Library::ALL)]
fn cipher_from(bencher: Bencher<'_, '_>, library: Library) {
    let cipher = Cipher::with_library(&sa(false).algorithm, library).unwrap();
    let text = (HEADERS + PAYLOAD + 2).next_multiple_of(4);
    let from = vec![0; SEGMENTS * text];
    let mut bytes = vec![0; SEGMENTS * (cipher.overhead() + text)];
    let mut number = 0u64;
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for (text, packet) in from.chunks(text).zip(bytes.chunks_mut(cipher.overhead() + text)) {
            number += 1;
            cipher.seal_from(packet, text, &[], number.to_be_bytes(), None);
        }
    });
}

/// Every cipher and code, sealing as many bytes as `cipher` does.
#[divan::bench(args = NAMED.iter().map(|(name, _)| *name))]
fn seal_by(bencher: Bencher<'_, '_>, name: &str) {
    let (cipher, len) = named(name);
    let mut bytes = vec![0; SEGMENTS * len];
    let mut number = 0u64;
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for packet in bytes.chunks_mut(len) {
            number += 1;
            cipher.seal(packet, number.to_be_bytes(), Some(0));
        }
    });
}

/// The same for opening; includes writing the packets each time.
#[divan::bench(args = NAMED.iter().map(|(name, _)| *name))]
fn open_by(bencher: Bencher<'_, '_>, name: &str) {
    let (cipher, len) = named(name);
    let mut sealed = vec![0; len];
    cipher.seal(&mut sealed, [9; 8], Some(0));
    let mut bytes = vec![0; SEGMENTS * len];
    bencher.counter(ItemsCount::new(SEGMENTS)).bench_local(|| {
        for packet in bytes.chunks_mut(len) {
            packet.copy_from_slice(&sealed);
            cipher.open(packet, Some(0)).expect("an authentic packet");
        }
    });
}

type Named = (&'static str, fn() -> Algorithm);

/// Algorithms, with keys of 256 bits where possible.
const NAMED: &[Named] = &[
    ("gcm", || Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 128)),
    ("gcm-96", || Algorithm::aead(Aead::GcmAes, vec![7; 36].into(), 96)),
    ("chacha", || Algorithm::aead(Aead::ChaCha20Poly1305, vec![7; 36].into(), 128)),
    ("gmac", || Algorithm::aead(Aead::GmacAes, vec![7; 36].into(), 128)),
    ("ccm", || Algorithm::aead(Aead::CcmAes, vec![7; 35].into(), 128)),
    ("cbc-sha1", || separate(Enc::CbcAes, vec![7; 32], Auth::HmacSha1, 96)),
    ("cbc-sha256", || separate(Enc::CbcAes, vec![7; 32], Auth::HmacSha256, 128)),
    ("ctr-sha256", || separate(Enc::CtrAes, vec![7; 36], Auth::HmacSha256, 128)),
    ("null-md5", || separate(Enc::Null, vec![], Auth::HmacMd5, 96)),
    ("null-sha1", || separate(Enc::Null, vec![], Auth::HmacSha1, 96)),
    ("null-sha256", || separate(Enc::Null, vec![], Auth::HmacSha256, 128)),
    ("null-sha384", || separate(Enc::Null, vec![], Auth::HmacSha384, 192)),
    ("null-sha512", || separate(Enc::Null, vec![], Auth::HmacSha512, 256)),
    ("null-rmd160", || separate(Enc::Null, vec![], Auth::HmacRipemd160, 96)),
    ("null-sm3", || separate(Enc::Null, vec![], Auth::HmacSm3, 256)),
    ("null-cmac", || separate(Enc::Null, vec![], Auth::CmacAes, 96)),
    ("null-xcbc", || separate(Enc::Null, vec![], Auth::XcbcAes, 96)),
];

fn separate(enc: Enc, key: Vec<u8>, auth: Auth, icv_bits: u16) -> Algorithm {
    Algorithm::separate(enc, key.into(), Some(AuthConfig::new(auth, vec![6; 16].into(), icv_bits)))
}

/// The cipher of that name, and the length of a packet that holds a segment.
fn named(name: &str) -> (Cipher, usize) {
    let (_, algorithm) = NAMED.iter().find(|(known, _)| *known == name).expect("a name of the list");
    let cipher = Cipher::new(&algorithm()).unwrap();
    let len = cipher.overhead() + (HEADERS + PAYLOAD + 2).next_multiple_of(cipher.align());
    (cipher, len)
}

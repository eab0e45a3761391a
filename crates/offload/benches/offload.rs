//! Cost of offloads: `cargo bench -p fatpath-offload`. `items` counts segments.

use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use offload::gro::Config;
use offload::{CsumOffload, Features, Gro, checksum, fit, gso};
use packet::{Buf, Csum, Cut, Gso, GsoKind, Memory, Packet};
use wire::{Protocol, ipv4, ipv6, tcp, udp};

fn main() {
    divan::main();
}

/// Length of the timestamp option.
const OPTIONS: usize = 12;

const SRC4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const DST4: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
const SRC6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1);
const DST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, 1);

/// A device with support for page fragments.
const SG: Features = Features { sg: true, frag_list: true, ..Features::NONE };
/// A device with support for page fragments and checksum completion.
const SG_CSUM: Features = Features { csum: CsumOffload::Any, ..SG };

/// One flow of `segs` segments with `size` bytes of payload each.
#[derive(Clone, Copy)]
struct Train {
    kind: GsoKind,
    size: usize,
    segs: usize,
}

const TCP4: Train = Train { kind: GsoKind::TcpV4, size: 1448, segs: 45 };
const TCP4_ESP: Train = Train { kind: GsoKind::TcpV4, size: 1386, segs: 46 };
const TCP6: Train = Train { kind: GsoKind::TcpV6, size: 1428, segs: 45 };
const UDP4: Train = Train { kind: GsoKind::Udp, size: 1472, segs: 44 };

impl Train {
    fn l4(self) -> usize {
        if self.kind == GsoKind::TcpV6 { ipv6::Ipv6Header::LEN } else { ipv4::Ipv4Header::LEN }
    }

    fn headers(self) -> usize {
        self.l4() + if self.kind == GsoKind::Udp { udp::UdpHeader::LEN } else { tcp::TcpHeader::LEN + OPTIONS }
    }

    fn check_at(self) -> usize {
        if self.kind == GsoKind::Udp { udp::CHECK_AT } else { tcp::CHECK_AT }
    }

    /// Segment `index` with `payload` bytes after its headers, in `buf`, without a checksum.
    fn write(self, mut buf: Buf, index: usize, payload: usize) -> Packet {
        let len = self.headers() + payload;
        let bytes = buf.put(len).expect("room");
        let rest = if self.kind == GsoKind::TcpV6 {
            ipv6::Ipv6Header::new(SRC6, DST6, Protocol::TCP, (len - ipv6::Ipv6Header::LEN) as u16).write(bytes)
        } else {
            let protocol = if self.kind == GsoKind::Udp { Protocol::UDP } else { Protocol::TCP };
            let mut ip = ipv4::Ipv4Header::new(SRC4, DST4, protocol, len as u16);
            ip.set_id(index as u16);
            ip.fill_check();
            ip.write(bytes)
        };
        let rest = rest.expect("room");
        if self.kind == GsoKind::Udp {
            udp::UdpHeader::new(4000, 4001, (len - self.l4()) as u16).write(rest).expect("room");
        } else {
            let mut header = tcp::TcpHeader::new(40_000, 5201, 1 + (index * self.size) as u32, 1);
            header.set_header_len(tcp::TcpHeader::LEN + OPTIONS);
            header.write(rest).expect("room").get_mut(..OPTIONS).expect("room").fill(1);
        }
        bytes[self.headers()..].fill(index as u8);
        let mut packet = Packet::from_buf(buf);
        packet.meta.csum = Csum::Partial { start: self.l4() as u16, offset: self.check_at() as u16 };
        packet
    }

    /// All payload as one packet in one page, as read from a TUN device.
    fn fat(self, mem: &Memory) -> Packet {
        let payload = self.size * self.segs;
        let buf = mem.take(Memory::HEADROOM, self.headers() + payload).expect("a page");
        let mut packet = self.write(buf, 0, payload);
        let (size, segs) = (self.size as u16, self.segs as u16);
        packet.meta.cut = Cut::Gso(Gso { kind: self.kind, size, segs, ecn: false, fixed_id: false });
        // A fitted packet holds the pseudo-header's sum, as a stack leaves it.
        packet.meta.csum = Csum::Unnecessary;
        let mut out = Vec::new();
        fit(mem, &Features::ALL, packet, 0, &mut out).expect("a right packet");
        out.pop().expect("one")
    }

    /// The segments as received, with correct but unverified checksums: each in a separate page, or all in one page,
    /// one behind the other.
    fn segments(self, mem: &Memory, one_page: bool) -> Vec<Packet> {
        let mut cut = Vec::with_capacity(self.segs);
        gso::segment(mem, &Features::NONE, self.fat(mem), 0, &mut cut).expect("a right packet");
        let mut page = mem.large().take(Memory::HEADROOM).expect("a page");
        for packet in cut.iter_mut().filter(|_| one_page) {
            page.put(packet.len()).expect("room").copy_from_slice(packet.head());
            *packet = Packet::from_buf(page.split_to(packet.len()));
        }
        cut.iter_mut().for_each(|packet| packet.meta.csum = Csum::None);
        cut
    }
}

#[divan::bench(name = "checksum", args = [20, 64, 1386, 1480, 9000, 65_536])]
fn sum(bencher: Bencher<'_, '_>, len: usize) {
    let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
    assert_eq!(checksum::sum(&bytes), wire::checksum::sum(&bytes));
    bencher.counter(BytesCount::new(len)).bench_local(|| checksum::sum(black_box(&bytes)));
}

/// The plain sum, for comparison.
#[divan::bench(name = "checksum_plain", args = [20, 64, 1386, 1480, 9000, 65_536])]
fn sum_plain(bencher: Bencher<'_, '_>, len: usize) {
    let bytes = vec![1; len];
    bencher.counter(BytesCount::new(len)).bench_local(|| wire::checksum::sum(black_box(&bytes)));
}

/// Segments fat packets. Freeing the segments is part of sending, and not measured.
fn bench_gso(bencher: Bencher<'_, '_>, train: Train, features: &Features) {
    let mem = Memory::heap();
    let input = || (Some(train.fat(&mem)), Vec::with_capacity(train.segs));
    bencher.counter(ItemsCount::new(train.segs)).with_inputs(input).bench_local_refs(|(packet, out)| {
        let packet = packet.take().expect("one each time");
        gso::segment(&mem, features, black_box(packet), 0, out).expect("a fat packet");
        assert_eq!(out.len(), train.segs);
        assert!(out.iter().all(|packet| packet.is_linear() != features.sg), "by reference if the device takes it");
        assert_eq!(out[1].len(), train.headers() + train.size);
    });
}

#[divan::bench(name = "gso/tcp4/64K/sg_csum")]
fn gso_tcp4(bencher: Bencher<'_, '_>) {
    bench_gso(bencher, TCP4, &SG_CSUM);
}

#[divan::bench(name = "gso/tcp4/64K/sg")]
fn gso_tcp4_sum(bencher: Bencher<'_, '_>) {
    bench_gso(bencher, TCP4, &SG);
}

#[divan::bench(name = "gso/tcp4/64K/copy")]
fn gso_tcp4_copy(bencher: Bencher<'_, '_>) {
    bench_gso(bencher, TCP4, &Features::NONE);
}

#[divan::bench(name = "gso/tcp6/64K/sg_csum")]
fn gso_tcp6(bencher: Bencher<'_, '_>) {
    bench_gso(bencher, TCP6, &SG_CSUM);
}

#[divan::bench(name = "gso/udp4/64K/sg_csum")]
fn gso_udp4(bencher: Bencher<'_, '_>) {
    bench_gso(bencher, UDP4, &SG_CSUM);
}

/// Merges the segments of a burst into one fat packet. Freeing their pages is part of sending, and not measured.
fn bench_gro(bencher: Bencher<'_, '_>, train: Train, one_page: bool, csum: Csum) {
    let mem = Memory::heap();
    let mut gro = Gro::new(Config { udp: true, frag_list: false });
    let input = || {
        let mut segments = train.segments(&mem, one_page);
        segments.iter_mut().for_each(|packet| packet.meta.csum = csum);
        (segments, Vec::with_capacity(1))
    };
    bencher.counter(ItemsCount::new(train.segs)).with_inputs(input).bench_local_refs(|(segments, out)| {
        for packet in segments.drain(..) {
            gro.receive(&mem, packet, out);
        }
        gro.flush(out);
        let [packet] = &out[..] else { panic!("{} packets", out.len()) };
        assert_eq!(packet.len(), train.headers() + train.segs * train.size);
        assert_eq!(packet.meta.cut.segs() as usize, train.segs);
    });
}

/// Segments with verified checksums.
#[divan::bench(name = "gro/tcp4/45x1448/verified")]
fn gro_tcp4_verified(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, TCP4, false, Csum::Unnecessary);
}

#[divan::bench(name = "gro/tcp4/45x1448")]
fn gro_tcp4(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, TCP4, false, Csum::None);
}

/// As decrypted by ESP: in the page in which the train was received.
#[divan::bench(name = "gro/tcp4/46x1386/one_page/verified")]
fn gro_tcp4_esp_verified(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, TCP4_ESP, true, Csum::Unnecessary);
}

#[divan::bench(name = "gro/tcp4/46x1386/one_page")]
fn gro_tcp4_esp(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, TCP4_ESP, true, Csum::None);
}

#[divan::bench(name = "gro/tcp6/45x1428")]
fn gro_tcp6(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, TCP6, false, Csum::None);
}

#[divan::bench(name = "gro/udp4/44x1472/verified")]
fn gro_udp4(bencher: Bencher<'_, '_>) {
    bench_gro(bencher, UDP4, false, Csum::Unnecessary);
}

/// A packet that GRO ignores.
#[divan::bench(name = "gro/other")]
fn gro_other(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut gro = Gro::new(Config { udp: false, frag_list: false });
    let mut out = vec![UDP4.fat(&mem)];
    bencher.bench_local(|| {
        let packet = out.pop().expect("one");
        gro.receive(&mem, black_box(packet), &mut out);
    });
    assert_eq!((out.len(), gro.held()), (1, 0));
}

/// Both directions, as in a gateway with fat packets: merged, then segmented by reference.
#[divan::bench(name = "gro_gso/tcp4/45x1448/verified")]
fn both_ways(bencher: Bencher<'_, '_>) {
    let mem = Memory::heap();
    let mut gro = Gro::new(Config { udp: false, frag_list: false });
    let (mut segments, mut out) = (TCP4.segments(&mem, false), Vec::with_capacity(45));
    bencher.counter(ItemsCount::new(TCP4.segs)).bench_local(|| {
        for mut packet in segments.drain(..) {
            packet.meta.csum = Csum::Unnecessary;
            gro.receive(&mem, packet, &mut out);
        }
        gro.flush(&mut out);
        assert_eq!(out.len(), 1);
        gso::segment(&mem, &SG_CSUM, out.pop().expect("one"), 0, &mut segments).expect("a fat packet");
    });
    assert_eq!(segments.len(), 45);
}

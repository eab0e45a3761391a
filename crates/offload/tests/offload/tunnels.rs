//! Packets in tunnels: segmented at inner headers, refused, and checksums completed.

use base::DropReason;
use offload::checksum::complete;
use offload::{Features, fit, gso, inner_headers};
use packet::{CopyReason, Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use wire::Malformed;

use crate::frames::*;
use crate::model::tunnel::{self, Tunnel};

/// Identification of the outer IPv4 headers of a fat packet.
const OUTER_ID: u16 = 0xfffe;

/// A frame in tunnels as sent by Linux: fat, with the pseudo-header's sum as its own checksum.
struct Fat {
    bytes: Vec<u8>,
    csum: Csum,
    cut: Cut,
}

impl Fat {
    fn new(tunnels: &[Tunnel], frame: &Frame, size: u16) -> Self {
        let mut inner = frame.bytes();
        let l4 = if frame.v6 { 40 + frame.dest_opts.len() } else { 20 + frame.ip_options.len() };
        let offset = if frame.protocol == UDP { 6 } else { 16 };
        let addresses = if frame.v6 { 8..40 } else { 12..20 };
        let len = (inner.len() - l4) as u32;
        let pseudo = [&inner[addresses], &len.to_be_bytes(), &[0, 0, 0, frame.protocol]].concat();
        inner[l4 + offset..l4 + offset + 2].copy_from_slice(&plain_sum(&pseudo).to_be_bytes());
        let bytes = tunnel::around(tunnels, &inner, OUTER_ID);
        let start = bytes.len() - inner.len() + l4;
        let kind = match (frame.protocol, frame.v6) {
            (UDP, _) => GsoKind::Udp,
            (_, false) => GsoKind::TcpV4,
            (_, true) => GsoKind::TcpV6,
        };
        let segs = frame.payload.len().div_ceil(size.into()) as u16;
        let ecn = frame.flags & CWR != 0;
        Self {
            bytes,
            csum: Csum::Partial { start: start as u16, offset: offset as u16 },
            cut: Cut::Gso(Gso { kind, size, segs, ecn, fixed_id: false }),
        }
    }

    fn start(&self) -> usize {
        let Csum::Partial { start, .. } = self.csum else { unreachable!("made so") };
        start.into()
    }

    fn mark(&self, pkt: &mut Packet) {
        (pkt.meta.csum, pkt.meta.cut) = (self.csum, self.cut);
    }

    fn packet(&self, mem: &Memory) -> Packet {
        let mut pkt = received(mem, &self.bytes);
        self.mark(&mut pkt);
        pkt
    }
}

/// The segments on the wire.
fn want(tunnels: &[Tunnel], frame: &Frame, size: usize) -> Vec<Vec<u8>> {
    let segs = frame.payload.len().div_ceil(size);
    let cut = |(index, payload): (usize, &[u8])| {
        let first = if index > 0 { CWR } else { 0 };
        let last = if index + 1 < segs { FIN | PSH } else { 0 };
        let frame = Frame {
            seq: frame.seq.wrapping_add((index * size) as u32),
            id: frame.id.wrapping_add(index as u16),
            flags: frame.flags & !(first | last),
            payload: payload.to_vec(),
            ..frame.clone()
        };
        tunnel::around(tunnels, &frame.bytes(), OUTER_ID.wrapping_add(index as u16))
    };
    frame.payload.chunks(size).enumerate().map(cut).collect()
}

fn frames() -> [Frame; 5] {
    let dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
    [
        Frame { flags: ACK | PSH | FIN | CWR, ..tcp4(0xffff_ff00, 0xffff, 700) },
        Frame { ip_options: vec![1; 8], options: Vec::new(), ..tcp4(1, 1, 701) },
        Frame { dest_opts, ..tcp6(7, 700) },
        udp4(9, 701),
        udp6(9, 700),
    ]
}

/// Each tunnel alone, and each kind inside IPv4.
fn paths() -> impl Iterator<Item = Vec<Tunnel>> {
    let alone = Tunnel::all().map(|tunnel| vec![tunnel]);
    let nested = (0..8).flat_map(|outer| (0..8).map(move |inner| vec![Tunnel(outer), Tunnel(inner)]));
    let all: Vec<_> = alone.chain(nested).chain([vec![Tunnel(0), Tunnel(5), Tunnel(9), Tunnel(14)]]).collect();
    all.into_iter().filter(|path| path.iter().all(|tunnel| tunnel.is_constant()))
}

#[test]
fn tunnel_super_packet_is_cut_as_the_sender_would_have() {
    let mem = Memory::heap();
    for (path, frame) in paths().flat_map(|path| frames().map(|frame| (path.clone(), frame))) {
        for size in [50, 299, 350, 699] {
            let fat = Fat::new(&path, &frame, size);
            let want = want(&path, &frame, size.into());
            want.iter().for_each(|segment| tunnel::check_on_wire(&path, segment));
            for features in [Features::NONE, SG, SG_CSUM] {
                let got: Vec<_> = cut(&mem, &features, fat.packet(&mem), 0)
                    .iter()
                    .map(|segment| {
                        assert_eq!(segment.meta.cut, Cut::Whole);
                        assert!(!matches!(segment.meta.csum, Csum::Partial { .. }));
                        segment.to_vec()
                    })
                    .collect();
                assert_eq!(got, want, "{size} of {frame:?} in {path:?} for {features:?}");
            }
        }
    }
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

#[test]
fn tunnel_segments_share_the_payload_of_their_packet() {
    let mem = Memory::heap();
    let fat = Fat::new(&[Tunnel(4)], &tcp4(1, 1, 10_000), 1000);
    let before = mem.copies().total_bytes();
    let segments = cut(&mem, &SG, fat.packet(&mem), 0);
    let headers = 20 + 8 + 8 + 14 + 20 + 32;
    assert_eq!(mem.copies().get(CopyReason::SegmentHeader).bytes, 10 * headers);
    assert_eq!(mem.copies().total_bytes() - before, 10 * headers);
    assert!(segments.iter().all(|segment| segment.headlen() as u64 == headers && segment.frags().len() == 1));
}

#[test]
fn tunnel_super_packet_in_any_geometry_is_cut_alike() {
    let mem = Memory::heap();
    let (path, frame) = ([Tunnel(14), Tunnel(3)], tcp6(1, 1000));
    let fat = Fat::new(&path, &frame, 300);
    let want = want(&path, &frame, 300);
    let start = fat.start();
    for (name, mut pkt) in geometry::all(&mem, &fat.bytes, &[1, 40, 50, 60, start - 1, start, start + 20, start + 40]) {
        fat.mark(&mut pkt);
        let got: Vec<_> = cut(&mem, &SG, pkt, 0).iter().map(Packet::to_vec).collect();
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn tunnel_super_packet_of_one_segment_gets_its_lengths() {
    let mem = Memory::heap();
    let (path, frame) = ([Tunnel(5)], tcp4(1, 1, 100));
    for size in [100, 1000] {
        let [pkt] = cut(&mem, &SG_CSUM, Fat::new(&path, &frame, size).packet(&mem), 0).try_into().expect("one packet");
        assert_eq!((pkt.to_vec(), pkt.meta.cut), (tunnel::around(&path, &frame.bytes(), OUTER_ID), Cut::Whole));
    }
}

#[test]
fn tunnel_super_packet_is_cut_for_any_device() {
    let mem = Memory::heap();
    let (path, frame) = ([Tunnel(4)], tcp4(1, 1, 3000));
    let fat = Fat::new(&path, &frame, 1000);
    for features in [Features::ALL, Features::NONE, SG_CSUM] {
        let mut out = Vec::new();
        fit(&mem, &features, fat.packet(&mem), 0, &mut out).expect("a fat packet");
        let got: Vec<_> = out.iter().map(Packet::to_vec).collect();
        assert_eq!(got, want(&path, &frame, 1000), "{features:?}");
    }
}

#[test]
fn tunnel_that_cannot_be_followed_is_refused_by_name() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 300);
    let vxlan = || Fat::new(&[Tunnel(4)], &frame, 100);
    let changed = |at: usize, byte: u8| {
        let mut fat = vxlan();
        fat.bytes[at] = byte;
        fat
    };
    let moved = |by: i16| {
        let mut fat = vxlan();
        fat.csum = Csum::Partial { start: (fat.start() as u16).wrapping_add_signed(by), offset: 16 };
        fat
    };
    let in_many = Fat::new(&[Tunnel(0); 5], &frame, 100);
    let cases = [
        ("GRE with checksum and sequence number", Fat::new(&[Tunnel(7)], &frame, 100)),
        ("the same inside", Fat::new(&[Tunnel(0), Tunnel(15)], &frame, 100)),
        ("five tunnels", in_many),
        ("no VNI", changed(28, 0)),
        ("ARP inside", changed(49, 6)),
        ("IPv6 that is IPv4", changed(48, 0x86)),
        ("another version inside", changed(50, 0x65)),
        ("an inner header of 16 bytes", changed(50, 0x44)),
        ("an inner fragment", changed(56, 0x20)),
        ("before the header", moved(-1)),
        ("behind the header", moved(1)),
        ("behind the packet", moved(-200)),
        ("an outer ESP", changed(9, 50)),
    ];
    for (what, fat) in cases {
        for whole_way in [false, true] {
            let mut out = Vec::new();
            let got = match whole_way {
                false => gso::segment(&mem, &SG, fat.packet(&mem), 0, &mut out),
                true => fit(&mem, &Features::ALL, fat.packet(&mem), 0, &mut out),
            };
            assert_eq!((got, out.len()), (Err(DropReason::GsoEncapsulation), 0), "{what}");
        }
        let why = inner_headers(&fat.bytes, fat.bytes.len(), 0, fat.start());
        assert_eq!(why, Err(Malformed::TunnelUnknown), "{what}");
    }
    let outside = vxlan();
    for head in 0..outside.start() + 20 {
        let why = inner_headers(&outside.bytes[..head], outside.bytes.len(), 0, outside.start());
        assert_eq!(why, Err(Malformed::OutsideHead), "{head} bytes");
    }
    let esp = changed(59, 50);
    assert_eq!(
        gso::segment(&mem, &SG, esp.packet(&mem), 0, &mut Vec::new()),
        Err(DropReason::CannotSegment),
        "inner ESP"
    );
    let mut wrong = vxlan();
    let Cut::Gso(gso) = &mut wrong.cut else { unreachable!("made so") };
    gso.kind = GsoKind::TcpV6;
    assert_eq!(
        gso::segment(&mem, &SG, wrong.packet(&mem), 0, &mut Vec::new()),
        Err(DropReason::CannotSegment),
        "another type than the packet inside"
    );
}

#[test]
fn partial_check_inside_a_tunnel_is_completed() {
    let mem = Memory::heap();
    for (path, frame) in Tunnel::all().flat_map(|tunnel| frames().map(|frame| ([tunnel], frame))) {
        let mut fat = Fat::new(&path, &frame, 1);
        fat.cut = Cut::Whole;
        let mut right = fat.bytes.clone();
        let inner = frame.bytes();
        let at = right.len() - inner.len();
        right[at..].copy_from_slice(&inner);
        let start = fat.start();
        for (name, mut pkt) in geometry::all(&mem, &fat.bytes, &[1, start, start + 1, start + 17]) {
            fat.mark(&mut pkt);
            complete(&mem, &mut pkt, 0).expect(&name);
            assert_eq!(pkt.to_vec(), right, "{name} {path:?}");
        }
    }
}

/// CRC32c, bit by bit (RFC 9260 appendix A), lowest byte first.
fn plain_crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

#[test]
fn partial_check_of_sctp_is_completed_as_crc32c() {
    let mem = Memory::heap();
    // Ports, verification tag, checksum, and a DATA chunk.
    let chunk = [&[0, 3, 0, 36], &bytes(32, 7)[..]].concat();
    let sctp = [&[0, 5, 0, 6, 0, 0, 0, 77, 1, 2, 3, 4], &chunk[..]].concat();
    let mut right = sctp.clone();
    right[8..12].fill(0);
    let crc = plain_crc32c(&right);
    right[8..12].copy_from_slice(&crc);
    let frame = |v6: bool| Frame { v6, protocol: 132, ..tcp4(1, 1, 0) };
    let ip = |frame: &Frame, payload: &[u8]| {
        let mut header = frame.bytes();
        header.truncate(if frame.v6 { 40 } else { 20 });
        let len = if frame.v6 { payload.len() } else { 20 + payload.len() } as u16;
        let at = if frame.v6 { 4 } else { 2 };
        header[at..at + 2].copy_from_slice(&len.to_be_bytes());
        [&header[..], payload].concat()
    };
    let paths = Tunnel::all().map(|tunnel| vec![tunnel]).chain([vec![]]);
    for (path, v6) in paths.flat_map(|path| [(path.clone(), false), (path, true)]) {
        let data = tunnel::around(&path, &ip(&frame(v6), &sctp), 1);
        let start = data.len() - sctp.len();
        let want = [&data[..start], &right].concat();
        for (name, mut pkt) in geometry::all(&mem, &data, &[1, start, start + 9, start + 13]) {
            pkt.meta.csum = Csum::Partial { start: start as u16, offset: 8 };
            complete(&mem, &mut pkt, 0).expect(&name);
            assert_eq!(pkt.to_vec(), want, "{name} {path:?}");
        }
    }
    // The field has four bytes.
    let data = ip(&frame(false), &sctp[..11]);
    let mut pkt = received(&mem, &data);
    pkt.meta.csum = Csum::Partial { start: 20, offset: 8 };
    assert_eq!(complete(&mem, &mut pkt, 0), Err(DropReason::TransportHeader));
    // At other offsets in SCTP, and at this offset in other protocols, the field is an Internet checksum.
    for (protocol, offset) in [(132, 6), (17, 8), (253, 8)] {
        let mut data = ip(&Frame { protocol, ..frame(false) }, &sctp);
        let mut pkt = received(&mem, &data);
        pkt.meta.csum = Csum::Partial { start: 20, offset };
        complete(&mem, &mut pkt, 0).unwrap();
        let check = !plain_sum(&data[20..]);
        let at = 20 + usize::from(offset);
        data[at..at + 2].copy_from_slice(&check.to_be_bytes());
        assert_eq!(pkt.to_vec(), data, "{protocol} at {offset}");
    }
}

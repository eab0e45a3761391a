//! Equality of a sealed super-packet with its segments, made by general segmentation and sealed one by one.

use std::net::IpAddr;

use crate::common::{BOTH_FAMILIES, HERE, NAT_T, Pair, THERE, decode, gcm, sa, segments, split_wire};
use ipsec::Train;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use proptest::prelude::*;
use wire::{Version, checksum, ipv4, tcp, udp};
use xfrm::{Algorithm, Mode, SaConfig, SaFlags};

/// Fields of a fat packet's headers.
#[derive(Clone, Debug)]
struct Shape {
    tcp: bool,
    /// Number of words of IPv4 options, and of TCP's.
    options: (usize, usize),
    /// IPv6's extension headers.
    chain: Vec<u8>,
    id: u16,
    seq: u32,
    flags: u8,
    /// Whether the checksum is partial; if not, UDP over IPv4 has none.
    partial: bool,
    fixed_id: bool,
    size: u16,
    payload: Vec<u8>,
}

fn shape() -> impl Strategy<Value = Shape> {
    let chain = (any::<bool>(), prop::collection::vec(prop_oneof![Just(43_u8), Just(60)], 0..3)).prop_map(
        |(hop_by_hop, mut chain)| {
            if hop_by_hop {
                chain.insert(0, 0);
            }
            chain
        },
    );
    let edge = prop_oneof![Just(0_u32), Just(0xffff), Just(u32::MAX), any::<u32>()];
    let bytes = prop_oneof![4 => any::<u8>().boxed(), 1 => Just(0).boxed(), 1 => Just(0xff).boxed()];
    let payload = prop_oneof![
        3 => prop::collection::vec(bytes, 0..4000),
        1 => (0..12_000_usize).prop_map(|len| vec![0; len]),
        1 => (0..12_000_usize).prop_map(|len| vec![0xff; len]),
    ];
    let size = prop_oneof![4 => 200..2000_u16, 1 => Just(u16::MAX), 1 => Just(1), 1 => any::<u16>()];
    let marks = (any::<u8>(), prop::bool::weighted(0.8), any::<bool>(), size);
    let headers = (any::<bool>(), (0..=10_usize, 0..=10_usize), chain, edge.clone(), edge);
    (headers, marks, payload).prop_map(|((tcp, options, chain, id, seq), (flags, partial, fixed_id, size), payload)| {
        // Limits the number of segments, which take most of the test's time.
        let size = size.max((payload.len() / 100) as u16).max(1);
        Shape { tcp, options, chain, id: id as u16, seq, flags, partial, fixed_id, size, payload }
    })
}

/// The packet, and the offsets of its headers' ends.
fn build(shape: &Shape, version: Version) -> (Vec<u8>, Csum, Cut, Vec<usize>) {
    let Shape { payload, .. } = shape;
    let protocol = if shape.tcp { 6 } else { 17 };
    let tcp_len = tcp::TcpHeader::LEN + 4 * shape.options.1;
    let transport_len = if shape.tcp { tcp_len } else { udp::UdpHeader::LEN } + payload.len();
    let mut bytes = Vec::new();
    let mut ends = vec![version.header_len()];
    let mut addresses = Vec::new();
    match (version, HERE[crate::common::index(version)], THERE[crate::common::index(version)]) {
        (Version::V4, IpAddr::V4(src), IpAddr::V4(dst)) => {
            let words = 5 + shape.options.0;
            let len = (4 * words + transport_len) as u16;
            bytes.extend([0x40 | words as u8, 0x2e]);
            bytes.extend([len.to_be_bytes(), shape.id.to_be_bytes(), [0x40, 0]].concat());
            bytes.extend([64, protocol, 0, 0]);
            addresses.extend([src.octets(), dst.octets()].concat());
            bytes.extend_from_slice(&addresses);
            bytes.resize(4 * words, 1);
            ipv4::fill_check(&mut bytes).unwrap();
        }
        (Version::V6, IpAddr::V6(src), IpAddr::V6(dst)) => {
            let nexts: Vec<u8> = shape.chain.iter().copied().chain([protocol]).collect();
            let len = (8 * shape.chain.len() + transport_len) as u16;
            bytes.extend([0x62, 0xe1, 0x23, 0x45]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([nexts[0], 64]);
            addresses.extend([src.octets(), dst.octets()].concat());
            bytes.extend_from_slice(&addresses);
            for (kind, next) in shape.chain.iter().zip(&nexts[1..]) {
                bytes.extend([*next, 0, if *kind == 43 { 4 } else { 1 }, if *kind == 43 { 0 } else { 4 }, 0, 0, 0, 0]);
            }
        }
        _ => unreachable!("addresses are of the family"),
    }
    let start = bytes.len();
    let pseudo = [&addresses[..], &(transport_len as u32).to_be_bytes(), &[0, protocol]].concat();
    let pseudo = if shape.partial { checksum::fold(checksum::sum(&pseudo)) } else { 0 };
    let offset = if shape.tcp {
        let mut header = tcp::TcpHeader::new(40_000, 5201, shape.seq, 77);
        header.set_header_len(tcp_len);
        header.set_check(pseudo);
        bytes.extend_from_slice(header.as_bytes());
        bytes[start + 13] = shape.flags;
        bytes.resize(start + tcp_len, 1);
        tcp::CHECK_AT
    } else {
        let mut header = udp::UdpHeader::new(1000, 2000, transport_len as u16);
        header.set_check(pseudo);
        bytes.extend_from_slice(header.as_bytes());
        udp::CHECK_AT
    };
    ends.extend([start, bytes.len(), bytes.len() + payload.len().min(usize::from(shape.size))]);
    bytes.extend_from_slice(payload);
    let csum = if shape.partial { Csum::Partial { start: start as u16, offset: offset as u16 } } else { Csum::None };
    let kind = match (shape.tcp, version) {
        (true, Version::V4) => GsoKind::TcpV4,
        (true, Version::V6) => GsoKind::TcpV6,
        (false, _) => GsoKind::Udp,
    };
    let segs = payload.len().div_ceil(usize::from(shape.size)) as u16;
    let gso = Gso { size: shape.size, kind, segs, ecn: shape.flags & 0x80 != 0, fixed_id: shape.fixed_id };
    (bytes, csum, Cut::Gso(gso), ends)
}

/// The headers in front of each ESP packet, without the DF bit, which follows the first segment's length, and its
/// contents.
fn seen(config: &SaConfig, wire: &[Packet]) -> Vec<(Vec<u8>, crate::common::Decoded)> {
    let mut all = Vec::new();
    for pkt in wire {
        let (mut headers, frames) = split_wire(pkt);
        if headers[0] >> 4 == 4 && config.mode == Mode::Tunnel {
            headers[6] &= !0x40;
            ipv4::fill_check(&mut headers).unwrap();
        }
        all.extend(frames.iter().map(|frame| (headers.clone(), decode(config, frame, 0))));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn super_packet_is_sealed_like_its_segments(
        shape in shape(),
        (tunnel, outer, inner, udp) in any::<(bool, bool, bool, bool)>(),
        algorithm in prop::sample::select(vec![gcm(20, 16), gcm(36, 12), Algorithm::null()]),
        tfcpad in prop_oneof![3 => Just(0), 1 => 0..3000_u32],
        geometry in any::<prop::sample::Index>(),
    ) {
        let (mode, outer) = (if tunnel { Mode::Tunnel } else { Mode::Transport }, usize::from(outer));
        let version = [Version::V4, Version::V6][if tunnel { usize::from(inner) } else { outer }];
        let config = SaConfig {
            src: HERE[outer],
            dst: THERE[outer],
            mode,
            encap: if udp { NAT_T } else { None },
            flags: SaFlags { esn: false, ..BOTH_FAMILIES },
            algorithm,
            tfcpad: if tunnel { tfcpad } else { 0 },
            ..sa()
        };
        let (bytes, csum, cut, ends) = build(&shape, version);
        let mem = Memory::heap();
        let mut one_by_one = Pair::new(&config);
        let mut wire = Vec::new();
        for segment in segments(&mem, &bytes, csum, cut) {
            wire.extend(one_by_one.seal(Packet::with_data(&mem, &segment).unwrap(), Train::None));
        }
        let want = seen(&config, &wire);
        for train in [Train::None, Train::Udp] {
            let mut shapes = geometry::all(&mem, &bytes, &ends);
            let (name, mut pkt) = shapes.swap_remove(geometry.index(shapes.len()));
            (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
            let wire = Pair::new(&config).seal(pkt, train);
            let got = seen(&config, &wire);
            prop_assert_eq!(got.len(), want.len(), "{} {:?}", name, train);
            // A train has one header for all packets.
            let each = wire.len() == want.len();
            for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                prop_assert_eq!(&got.1, &want.1, "inside of segment {} of {}, {:?}", at, name, train);
                if each {
                    prop_assert_eq!(&got.0, &want.0, "in front of segment {} of {}", at, name);
                }
            }
        }
    }
}

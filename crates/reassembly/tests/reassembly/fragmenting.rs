//! Fragmentation, undone by reassembly, and IPv6's own rules.

use base::DropReason;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, Pool, geometry};
use proptest::prelude::*;
use reassembly::{Coalesce, Config, User, fragment, fragment_v6};
use wire::ip::Info;
use wire::ipv6::{self, Ipv6};
use wire::{Protocol, Version, ext};

use crate::world::{BOTH, Piece, World, last, part, payload};

/// Identification of all fragments.
const ID: u32 = 0xdead_beef;

fn cut(mem: &Memory, packet: Packet, mtu: usize) -> Result<Vec<Packet>, DropReason> {
    let mut out = Vec::new();
    let result = match Version::of(packet.head()).unwrap() {
        Version::V4 => fragment(mem, packet, mtu, &mut out),
        Version::V6 => fragment_v6(mem, packet, mtu, ID, &mut out),
    };
    assert!(result.is_ok() || out.is_empty());
    result.map(|()| out)
}

/// An IPv6 packet with these next headers, eight bytes each but the last, in front of `len` bytes of payload.
fn chain(kinds: &[Protocol], len: usize) -> Vec<u8> {
    let (&first, rest) = kinds.split_first().unwrap();
    let mut bytes = part(0, 0).whole(Version::V6, 0);
    for &next in rest {
        bytes.extend_from_slice(ext::ExtHeader::new(next, 8).unwrap().as_bytes());
        bytes.extend([1, 4, 0, 0, 0, 0]);
    }
    bytes.extend(payload(0, len));
    let payload_len = (bytes.len() - 40) as u16;
    bytes[ipv6::NEXT_HEADER_AT] = first.0;
    ipv6::Ipv6Header::mut_from(&mut bytes).unwrap().set_payload_len(payload_len);
    bytes
}

#[test]
fn packet_fragmented_and_reassembled_is_unchanged() {
    for version in BOTH {
        for (mtu, len) in [(1280, 1300), (1280, 65_000), (1500, 65_507), (1499, 3000), (576, 20_001), (72, 800)] {
            let mut bytes = part(0, 0).whole(version, len);
            if version == Version::V4 {
                bytes[4..6].copy_from_slice(&0xbeef_u16.to_be_bytes());
                wire::ipv4::fill_check(&mut bytes).unwrap();
            }
            let count = geometry::all(&Memory::heap(), &bytes, &[20, 28, 40, 48]).len();
            for shape in 0..count {
                let mut world = World::new(version);
                let (name, mut packet) = geometry::all(&world.mem, &bytes, &[20, 28, 40, 48]).swap_remove(shape);
                packet.may_pull(&world.mem, 40).unwrap();
                let mut fragments = cut(&world.mem, packet, mtu).unwrap();
                if shape % 2 == 1 {
                    fragments.reverse();
                }
                for fragment in fragments {
                    let bytes = fragment.to_vec();
                    assert!(bytes.len() <= mtu && fragment.meta.cut == Cut::Fragment);
                    world.send_packet(fragment, &bytes);
                }
                assert!(world.bytes() == [bytes.clone()], "{version}, {len} bytes over {mtu}, {name}");
                assert_eq!(world.reassembly.memory(), 0);
            }
        }
    }
}

//= test RFC 5722 §4 no-overlaps-made
#[test]
fn headers_for_routers_are_in_each_fragment() {
    use Protocol as P;
    // The chain, and the number of its bytes that are repeated (RFC 8200 §4.5).
    let cases: [(&[P], usize); 5] = [
        (&[P::UDP], 40),
        (&[P::HOP_BY_HOP, P::UDP], 48),
        (&[P::DEST_OPTS, P::UDP], 40),
        (&[P::DEST_OPTS, P::ROUTING, P::UDP], 56),
        (&[P::HOP_BY_HOP, P::DEST_OPTS, P::ROUTING, P::DEST_OPTS, P::UDP], 64),
    ];
    for (kinds, repeated) in cases {
        let mut bytes = chain(kinds, 3000);
        bytes[7] = 9;
        let mut world = World::new(Version::V6);
        let fragments = cut(&world.mem, Packet::with_data(&world.mem, &bytes).unwrap(), 1280).unwrap();
        assert_eq!(fragments.len(), 3, "{kinds:?}");
        for (at, fragment) in fragments.into_iter().enumerate() {
            let part = fragment.to_vec();
            let view = Ipv6::parse(&part).unwrap();
            let found = view.chain().unwrap().fragment.unwrap();
            assert_eq!((found.place.offset, found.info.id), (repeated, ID), "{kinds:?}");
            assert_eq!(view.header().hop_limit(), 9);
            assert_eq!(found.info.more, at < 2);
            assert!(found.info.offset.bytes() == at * ((1280 - repeated - 8) / 8 * 8));
            world.send_packet(fragment, &part);
        }
        assert!(world.bytes() == [bytes], "{kinds:?}");
    }
}

#[test]
fn a_payload_in_one_page_is_not_copied() {
    let mem = Memory::heap();
    let packet = Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 60_000)).unwrap();
    let fragments = cut(&mem, packet, 1500).unwrap();
    assert_eq!(mem.copies().total_bytes(), 48 * fragments.len() as u64);
}

#[test]
fn packet_with_df_is_refused() {
    let mem = Memory::heap();
    let packet = || Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 3000)).unwrap();
    let refused = |packet: Packet, mtu: usize| cut(&mem, packet, mtu).map(|all| all.len()).unwrap_err();
    assert_eq!(refused(packet(), 55), DropReason::CannotSegment);
    assert_eq!(cut(&mem, packet(), 56).map(|all| all.len()), Ok(375));
    let mut changed = packet();
    changed.meta.csum = Csum::Partial { start: 40, offset: 6 };
    assert_eq!(refused(changed, 1280), DropReason::CannotSegment);
    let mut changed = packet();
    changed.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size: 1000, segs: 3, ecn: false, fixed_id: false });
    assert_eq!(refused(changed, 1280), DropReason::CannotSegment);
    let again = Packet::with_data(&mem, &part(0, 2000).bytes(Version::V6)).unwrap();
    assert_eq!(refused(again, 1280), DropReason::CannotSegment, "a fragment already");
    let long_chain = chain(&[Protocol::DEST_OPTS, Protocol::DEST_OPTS, Protocol::UDP], 100);
    for (mtu, fits) in [(71, false), (72, true)] {
        let packet = Packet::with_data(&mem, &long_chain).unwrap();
        assert_eq!(cut(&mem, packet, mtu).is_ok(), fits, "UDP ends 24 bytes into what is fragmented, over {mtu}");
    }
    let dry = Memory::new(Pool::bounded(Memory::SMALL, 2), Pool::heap(Memory::LARGE));
    let packet = Packet::with_data(&mem, &part(0, 0).whole(Version::V6, 3000)).unwrap();
    assert_eq!(cut(&dry, packet, 700).map(|all| all.len()), Err(DropReason::NoMemory));
}

#[test]
fn a_packet_that_fits_is_left_alone() {
    let mem = Memory::heap();
    let bytes = part(0, 0).whole(Version::V6, 1240);
    let out = cut(&mem, Packet::with_data(&mem, &bytes).unwrap(), 1280).unwrap();
    assert_eq!((out.len(), out[0].to_vec(), out[0].meta.cut), (1, bytes.clone(), Cut::Whole));
    assert_eq!(Info::parse(&bytes, bytes.len()).unwrap().fragment, None);
}

/// Reassembles fragments for a host, each as a packet of its own unless `coalesce` joins them, and fragments the
/// datagram for `mtu`.
fn there_and_back(version: Version, pieces: &[Piece], coalesce: Coalesce, mtu: usize) -> Vec<Vec<u8>> {
    let mut world = World::with_config(version, Config { coalesce, ..Config::default() });
    world.context.user = User::Host;
    world.send_all(pieces);
    let whole = world.delivered.pop().expect("a datagram");
    assert_eq!(whole.frag_list().is_empty(), coalesce == Coalesce::Move);
    let before = world.mem.copies().total_bytes();
    let out = cut(&world.mem, whole, mtu).unwrap();
    assert!(world.mem.copies().total_bytes() - before <= 60 * out.len() as u64, "headers alone are copied");
    out.iter().map(Packet::to_vec).collect()
}

/// Fragments of these lengths.
fn pieces(lens: &[usize]) -> Vec<Piece> {
    let mut at = 0;
    let one = |(n, &len): (usize, &usize)| {
        let piece = if n + 1 < lens.len() { part(at, len) } else { last(at, len) };
        at += len;
        Piece { id: ID, ..piece }
    };
    lens.iter().enumerate().map(one).collect()
}

/// Length of the largest of these fragments, with its headers.
fn largest(fragments: &[Vec<u8>]) -> usize {
    fragments.iter().map(Vec::len).max().unwrap()
}

#[test]
fn separate_fragments_keep_their_sizes() {
    for version in BOTH {
        for lens in [&[104, 96][..], &[8, 8, 8, 8, 1], &[1400, 8, 640, 1400, 1399], &[1448; 40]] {
            let came: Vec<_> = pieces(lens).iter().map(|piece| piece.bytes(version)).collect();
            for order in 0..3 {
                let mut order_of: Vec<_> = pieces(lens);
                match order {
                    0 => {}
                    1 => order_of.reverse(),
                    _ => order_of.rotate_left(1),
                }
                let again = there_and_back(version, &order_of, Coalesce::Off, largest(&came));
                assert!(again == came, "{version}, {lens:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn random_separate_fragments_keep_their_sizes(
        blocks in prop::collection::vec(1_usize..180, 2..40),
        tail in 1_usize..1440,
    ) {
        let lens: Vec<_> = blocks.into_iter().map(|it| 8 * it).chain([tail]).collect();
        for version in BOTH {
            let came: Vec<_> = pieces(&lens).iter().map(|piece| piece.bytes(version)).collect();
            let again = there_and_back(version, &pieces(&lens), Coalesce::Off, largest(&came));
            prop_assert!(again == came, "{}", version);
        }
    }
}

#[test]
fn joined_and_separate_fragments_are_fragmented_alike() {
    for version in BOTH {
        let came: Vec<_> = pieces(&[1448, 1448, 1448, 700]);
        let mtu = came[0].bytes(version).len();
        let [joined, kept] =
            [Coalesce::Move, Coalesce::Off].map(|coalesce| there_and_back(version, &came, coalesce, mtu));
        assert!(joined == kept && kept.len() == 4, "{version}");
    }
}

#[test]
fn separate_fragments_above_the_mtu_are_cut_evenly() {
    let places = |version: Version, mtu: usize| -> Vec<(usize, usize)> {
        let fragments = there_and_back(version, &pieces(&[1000, 1000, 100]), Coalesce::Off, mtu);
        let place = |bytes: &Vec<u8>| {
            let info = Info::parse(bytes, bytes.len()).unwrap();
            (info.fragment.unwrap().offset.bytes(), bytes.len())
        };
        fragments.iter().map(place).collect()
    };
    assert_eq!(places(Version::V4, 820), [(0, 820), (800, 820), (1600, 520)]);
    assert_eq!(places(Version::V6, 848), [(0, 848), (800, 848), (1600, 548)]);
    assert_eq!(places(Version::V4, 1500), [(0, 1020), (1000, 1020), (2000, 120)], "each fits");
}

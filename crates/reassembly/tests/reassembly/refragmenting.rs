//! Datagrams that are reassembled in transit and refragmented.

use base::DropReason;
use packet::{Memory, Packet};
use proptest::prelude::*;
use reassembly::{Hook, User, refragment};
use wire::Version;
use wire::ip::Info;

use crate::world::{BOTH, Piece, World, last, part};

/// Reassembles fragments for tracking, and refragments the result for a link with this MTU.
fn there_and_back(version: Version, pieces: &[Piece], mtu: usize) -> Result<Vec<Vec<u8>>, DropReason> {
    let mut world = World::new(version);
    world.context.user = User::Tracking { hook: Hook::In, zone: 0 };
    world.send_all(pieces);
    let mut out = Vec::new();
    let whole = world.delivered.pop().expect("a datagram");
    let result = refragment(&world.mem, whole, world.max_sizes[0], mtu, pieces[0].id, &mut out);
    assert!(result.is_ok() || out.is_empty());
    assert!(world.mem.copies().total_bytes() <= 60 * out.len() as u64, "headers alone are copied");
    result.map(|()| out.iter().map(Packet::to_vec).collect())
}

/// Fragments of these lengths.
fn pieces(lens: &[usize]) -> Vec<Piece> {
    let mut at = 0;
    let one = |(n, &len): (usize, &usize)| {
        let piece = if n + 1 < lens.len() { part(at, len) } else { last(at, len) };
        at += len;
        piece
    };
    lens.iter().enumerate().map(one).collect()
}

/// Offset of each fragment in its datagram, and its length with headers.
fn places(fragments: &[Vec<u8>]) -> Vec<(usize, usize)> {
    let of = |bytes: &Vec<u8>| {
        let info = Info::parse(bytes, bytes.len()).unwrap();
        (info.fragment.unwrap().offset.bytes(), bytes.len())
    };
    fragments.iter().map(of).collect()
}

#[test]
fn fragments_of_any_sizes_are_refragmented_unchanged() {
    for version in BOTH {
        for lens in [&[104, 96][..], &[8, 8, 8, 8, 1], &[1400, 8, 640, 1400, 1399], &[1448; 40]] {
            for order in 0..3 {
                let mut order_of: Vec<_> = pieces(lens);
                match order {
                    0 => {}
                    1 => order_of.reverse(),
                    _ => order_of.rotate_left(1),
                }
                let came: Vec<_> = pieces(lens).iter().map(|piece| piece.bytes(version)).collect();
                assert!(there_and_back(version, &order_of, 1500).unwrap() == came, "{version}, {lens:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn random_fragments_are_refragmented(blocks in prop::collection::vec(1_usize..180, 2..40), tail in 1_usize..1440) {
        let lens: Vec<_> = blocks.into_iter().map(|it| 8 * it).chain([tail]).collect();
        for version in BOTH {
            let came: Vec<_> = pieces(&lens).iter().map(|piece| piece.bytes(version)).collect();
            prop_assert!(there_and_back(version, &pieces(&lens), 1500).unwrap() == came, "{}", version);
        }
    }
}

#[test]
fn joined_and_separate_frags_are_fragmented_alike() {
    for version in BOTH {
        let came: Vec<_> = pieces(&[1448, 1448, 1448, 700]);
        let [joined, kept] = [User::Local, User::Switch].map(|user| {
            let mut world = World::new(version);
            world.context.user = user;
            world.send_all(&came);
            let mut out = Vec::new();
            let whole = world.delivered.remove(0);
            assert_eq!(whole.frag_list().is_empty(), user == User::Local);
            refragment(&world.mem, whole, world.max_sizes[0], 1500, came[0].id, &mut out).unwrap();
            out.iter().map(Packet::to_vec).collect::<Vec<_>>()
        });
        assert!(joined == kept && kept.len() == 4, "{version}");
    }
}

#[test]
fn ipv4_is_fragmented_for_a_smaller_link_never_joined() {
    let lens = [1000, 1000, 100];
    let smaller = there_and_back(Version::V4, &pieces(&lens), 820).unwrap();
    assert_eq!(places(&smaller), [(0, 820), (800, 820), (1600, 520)]);
    let larger = there_and_back(Version::V4, &pieces(&lens), 9000).unwrap();
    assert_eq!(places(&larger), [(0, 1020), (1000, 1020), (2000, 120)]);
}

#[test]
fn largest_fragment_with_df_is_too_big_for_smaller_link() {
    let df = |lens: &[usize]| -> Vec<Piece> {
        pieces(lens).into_iter().map(|piece| Piece { dont_fragment: true, ..piece }).collect()
    };
    let lens = [1000, 1000, 100];
    let too_big = Err(DropReason::PacketTooBig);
    assert_eq!(there_and_back(Version::V4, &df(&lens), 1019), too_big);
    assert_eq!(there_and_back(Version::V6, &pieces(&[1400, 1400, 8]), 1447), too_big);
    let came: Vec<_> = df(&lens).iter().map(|piece| piece.bytes(Version::V4)).collect();
    assert!(there_and_back(Version::V4, &df(&lens), 1020).unwrap() == came, "each with DF, unchanged");
    assert_eq!(there_and_back(Version::V6, &pieces(&[1400, 1400, 8]), 1448).map(|all| all.len()), Ok(3));
}

#[test]
fn joined_frags_are_fragmented_to_the_largest_size() {
    for version in BOTH {
        let mut world = World::new(version);
        world.send_all(&pieces(&[1400, 640, 1400, 1399]));
        let (whole, max_size) = (world.delivered.remove(0), world.max_sizes[0]);
        let mut out = Vec::new();
        refragment(&world.mem, whole, max_size, 9000, 7, &mut out).unwrap();
        let lens: Vec<_> = out.iter().map(|fragment| fragment.len() - (max_size - 1400)).collect();
        assert_eq!(lens, [1400, 1400, 1400, 639], "{version}");
    }
}

#[test]
fn ipv6_is_not_cut_below_1280_and_not_made_atomic() {
    let mem = Memory::heap();
    let bytes = part(0, 0).whole(Version::V6, 1100);
    let whole = || Packet::with_data(&mem, &bytes).unwrap();
    // In one buffer: the original sizes are lost.
    let mut out = Vec::new();
    refragment(&mem, whole(), 648, 1500, 7, &mut out).unwrap();
    assert_eq!((out.len(), out[0].to_vec()), (1, bytes.clone()));
    refragment(&mem, whole(), 1148, 1500, 7, &mut out).unwrap();
    refragment(&mem, whole(), 0, 100, 7, &mut out).unwrap();
    assert!(out.len() == 3 && out.iter().all(|packet| packet.to_vec() == bytes));
}

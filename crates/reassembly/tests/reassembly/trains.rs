//! Bursts of fragments have the same outcome as single fragments.

use base::{Origin, PortId};
use packet::{Burst, Csum, Packet};
use proptest::prelude::*;
use reassembly::{Coalesce, Config, Policy, Train};
use wire::ip::Info;
use wire::{Protocol, Version};

use crate::model::trains::{Coming, both_ways, outcome, run};
use crate::world::{BOTH, LINK, Piece, World, last, limited, part};

/// Any fragment of one of a few datagrams, most of them of one size.
fn any_piece() -> impl Strategy<Value = Piece> {
    let len = prop_oneof![8 => Just(640_usize), 2 => Just(1280), 1 => Just(0), 1 => Just(8), 2 => Just(645), 1 => 0..1400_usize];
    (0..12_usize, len, prop::bool::weighted(0.8), 0..3_u32, any::<u8>()).prop_map(|(at, len, more, id, kind)| Piece {
        more,
        id,
        src: 1 + kind % 2,
        tos: if kind % 16 == 1 { 2 } else { 0 },
        dont_fragment: kind % 32 == 2,
        reserved: if kind % 16 == 3 { 7 } else { 0 },
        change: kind / 128,
        protocol: if kind % 32 == 4 { Protocol::DEST_OPTS } else { Protocol::UDP },
        ..part(at * 640, len)
    })
}

/// All fragments of a datagram, mostly in order.
fn datagram() -> impl Strategy<Value = Vec<Piece>> {
    let order = prop_oneof![Just(0_u8), Just(1), Just(2)];
    (1..60_usize, prop_oneof![Just(640_usize), Just(1280), Just(48)], 1..1400_usize, 0..3_u32, order, any::<bool>())
        .prop_flat_map(|(count, len, tail, id, order, esp)| {
            let count = if len == 1280 { count.min(48) } else { count };
            let mut pieces: Vec<Piece> = (0..count).map(|n| part(n * len, len)).collect();
            pieces.push(last(count * len, tail));
            for piece in &mut pieces {
                (piece.id, piece.protocol) = (id, if esp { Protocol::ESP } else { Protocol::UDP });
            }
            if order == 1 {
                pieces.reverse();
            }
            let shuffled = Just(pieces.clone()).prop_shuffle();
            (Just(pieces), shuffled).prop_map(move |(straight, shuffled)| if order == 2 { shuffled } else { straight })
        })
}

fn bursts() -> impl Strategy<Value = Vec<Vec<Coming>>> {
    let pieces = prop_oneof![3 => datagram(), 2 => prop::collection::vec(any_piece(), 1..12)];
    let all = prop::collection::vec(pieces, 1..6).prop_map(|all| all.concat());
    (all, prop::collection::vec(any::<u8>(), 1..40), prop::collection::vec(1..70_usize, 1..6)).prop_map(
        |(pieces, kinds, sizes)| {
            let coming = pieces.into_iter().zip(kinds.iter().cycle()).map(|(piece, &kind)| Coming {
                piece,
                link: PortId(LINK.0 + u32::from(kind == 0)),
                csum: if kind % 16 == 1 { Csum::None } else { Csum::Unnecessary },
                padding: if kind % 16 == 2 { 5 } else { 0 },
            });
            let mut coming = coming.filter(|coming| coming.piece.at + coming.piece.len < 65_000).peekable();
            let mut bursts = Vec::new();
            for &size in sizes.iter().cycle() {
                if coming.peek().is_none() {
                    break;
                }
                bursts.push(coming.by_ref().take(size).collect());
            }
            bursts
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn batch_of_fragments_matches_single_fragments(
        bursts in bursts(),
        limit in prop_oneof![Just(usize::MAX), Just(4 << 20), Just(300_000_usize), Just(140_000), Just(20_000)],
        policy in prop_oneof![4 => Just(Policy::Fair), 1 => Just(Policy::Linux)],
        coalesce in prop_oneof![4 => Just(Coalesce::Move), 1 => Just(Coalesce::Off), 1 => Just(Coalesce::Copy)],
        max_distance in prop_oneof![Just(0_u32), Just(3), Just(64)],
    ) {
        for version in BOTH {
            both_ways(version, Config { coalesce, ..limited(policy, limit, max_distance) }, &bursts);
        }
    }

    #[test]
    fn any_batched_steps_match_single_steps(
        steps in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..200),
        limit in prop_oneof![Just(usize::MAX), 0..400_000_usize],
        fair in any::<bool>(),
        how in any::<u8>(),
    ) {
        run(if fair { Policy::Fair } else { Policy::Linux }, limit, how, &steps);
    }

    /// A fragment whose headers differ in one bit has the same outcome as by the single-fragment path, or is passed to
    /// it.
    #[test]
    fn headers_that_differ_in_one_bit_are_other_datagrams(
        bit in 0..8 * 48_usize,
        at in 0..4_usize,
        more in any::<bool>(),
    ) {
        for version in BOTH {
            let header_len = if version == Version::V4 { 20 } else { 48 };
            let pieces = [part(0, 640), part(640, 640), Piece { more, ..part(1280, 640) }, last(1920, 100)];
            let mut packets: Vec<Vec<u8>> = pieces.map(|piece| piece.bytes(version)).into();
            packets[at][bit / 8 % header_len] ^= 1 << (bit % 8);
            if version == Version::V4 && bit % 3 > 0 {
                wire::ipv4::fill_check(&mut packets[at]).ok();
            }
            let [mut plain, mut fast] = [(); 2].map(|()| World::new(version));
            for bytes in &packets {
                let Ok(info) = Info::parse(bytes, bytes.len()) else { continue };
                let mut pkt = Packet::with_data(&plain.mem, &bytes[..info.total_len]).unwrap();
                pkt.meta.origin = Origin::Port(LINK).into();
                plain.send_packet(pkt, &bytes[..info.total_len]);
            }
            let mut burst: Vec<Packet> = packets.iter().map(|it| Packet::with_data(&fast.mem, it).unwrap()).collect();
            burst.iter_mut().for_each(|pkt| pkt.meta.origin = Origin::Port(LINK).into());
            let mut burst = Burst::new(&mut burst);
            while let Some(first) = burst.first() {
                let World { now, mem, counters, reassembly, .. } = &mut fast;
                let train = Train::of(first, 0);
                let taken = train.and_then(|it| reassembly.handle_train(*now, mem, &it, &mut burst, |_| Some(0), counters));
                if let Some((_, verdict)) = taken {
                    fast.note(verdict, &[]);
                    continue;
                }
                let Some(pkt) = burst.next() else { break };
                let bytes = pkt.to_vec();
                if let Ok(info) = Info::parse(&bytes, bytes.len()) {
                    let mut pkt = pkt;
                    pkt.trim(info.total_len);
                    fast.send_packet(pkt, &bytes[..info.total_len]);
                }
            }
            prop_assert_eq!(outcome(&fast), outcome(&plain), "{} of {}, {}", bit, at, version);
        }
    }
}

#[test]
fn all_fragments_of_a_datagram_are_one_train_in_whatever_order() {
    for version in BOTH {
        let step = if version == Version::V4 { 1480 } else { 1448 };
        let mut pieces: Vec<Piece> = (0..44).map(|n| part(n * step, step)).collect();
        pieces.push(last(44 * step, 100));
        for order in 0..3 {
            match order {
                1 => pieces.reverse(),
                2 => pieces.rotate_left(17),
                _ => {}
            }
            let coming = |&piece: &Piece| Coming { piece, link: LINK, csum: Csum::Unnecessary, padding: 0 };
            let bursts: Vec<Vec<Coming>> = vec![pieces.iter().map(coming).collect(); 2];
            assert_eq!(both_ways(version, Config::default(), &bursts), 90);
        }
    }
}

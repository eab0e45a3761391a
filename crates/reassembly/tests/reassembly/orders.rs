//! Fragments of every size, in every order.

use std::time::{Duration, Instant as Clock};

use base::{Counters, Instant};
use packet::{Memory, Packet};
use proptest::prelude::*;
use reassembly::{Config, Limits, Reassembly, ReassemblyContext, Verdict};
use wire::Version;
use wire::ip::Info;

use crate::model;
use crate::world::{BOTH, Moved, Piece, World, last, no_limits, part};

/// The fragments of a datagram, cut at random: each of one to `most` blocks, the last of `tail` bytes.
fn cut_at(lens: &[u8], most: u8, tail: usize) -> (Vec<Piece>, usize) {
    let mut at = 0;
    let mut pieces = Vec::new();
    for &len in lens {
        let len = 8 * (1 + usize::from(len % most));
        pieces.push(part(at, len));
        at += len;
    }
    pieces.push(last(at, tail));
    (pieces, at + tail)
}

/// Steps that often make whole datagrams.
fn steps() -> impl Strategy<Value = Vec<model::Step>> {
    let any_step = any::<model::Step>();
    // The fragments of one datagram, in some order.
    let datagram = (any::<u8>(), 0_u8..4, 1_u8..5).prop_flat_map(|(kind, who, blocks)| {
        let pieces: Vec<model::Step> = (0..20_u8.div_ceil(blocks))
            .map(|n| {
                let more = if n + 1 < 20_u8.div_ceil(blocks) { 2 } else { 0 };
                (kind & 0x7d | more, who, n * blocks, blocks)
            })
            .collect();
        Just(pieces).prop_shuffle()
    });
    let datagrams = prop::collection::vec(datagram, 1..4).prop_map(|all| all.concat());
    (datagrams.clone(), datagrams, prop::collection::vec((any::<prop::sample::Index>(), any_step), 0..6)).prop_map(
        |(mut first, second, disturbances)| {
            first.extend(second);
            for (at, step) in disturbances {
                first.insert(at.index(first.len()), step);
            }
            first
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    //= test RFC 5722 §4 overlap
    #[test]
    fn any_fragment_sequence_matches_the_hole_list_model(steps in steps()) {
        model::run(&steps);
    }

    #[test]
    fn any_steps_match_the_hole_list_model(steps in prop::collection::vec(any::<model::Step>(), 0..150)) {
        model::run(&steps);
    }

    #[test]
    fn bytes_are_in_order_whatever_the_sizes_and_the_order(
        lens in prop::collection::vec(any::<u8>(), 1..120),
        most in 1_u8..=185,
        tail in prop_oneof![Just(1_usize), 1_usize..1400],
        seed in any::<u64>(),
    ) {
        for version in BOTH {
            let (mut pieces, len) = cut_at(&lens[..lens.len().min(40 * 186 / usize::from(most))], most, tail);
            shuffle(&mut pieces, seed);
            let mut world = World::with_config(version, no_limits());
            world.send_all(&pieces);
            prop_assert!(world.bytes() == [part(0, 0).whole(version, len)]);
            let moved = Moved { requests: pieces.len() as u64, oks: 1, ..Moved::default() };
            prop_assert_eq!(&world.counters, &moved.counters(version));
            prop_assert_eq!(world.reassembly.memory(), 0);
            world.assert_pages_came_home();
        }
    }

    #[test]
    fn each_packet_of_random_trains_ends_in_one_place(
        lens in prop::collection::vec(2_usize..20, 1..40),
        seed in any::<u64>(),
    ) {
        for version in BOTH {
            bad_day(version, &lens, seed);
        }
    }

    #[test]
    fn damaged_train_frees_all_memory(
        lens in prop::collection::vec(any::<u8>(), 1..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0_u8..8), 1..4),
        seed in any::<u64>(),
    ) {
        let packets = damaged(&lens, &damage, seed);
        model::hostile(&packets);
    }
}

/// Sends datagrams over a wire that loses, duplicates and delays.
fn bad_day(version: Version, lens: &[usize], seed: u64) {
    const DELAY_MS: u64 = 40;
    let timeout = Duration::from_millis(100);
    let Config { v4, v6, .. } = no_limits();
    let [v4, v6] = [v4, v6].map(|limits| Limits { timeout, ..limits });
    let mut world = World::with_config(version, Config { v4, v6, ..no_limits() });
    let mut state = seed | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut arrivals = Vec::new();
    // A datagram is delivered as often as its rarest fragment.
    let mut times = Vec::new();
    for &len in lens {
        let id = times.len();
        let mut least = 2;
        for n in 0..len {
            let piece = if n + 1 < len { part(n * 400, 400) } else { last(n * 400, 33) };
            let copies = [0, 2, 1][random(30).min(2) as usize];
            least = least.min(copies);
            for _ in 0..copies {
                arrivals.push((5 * id as u64 + random(DELAY_MS), Piece { id: id as u32, ..piece }));
            }
        }
        times.push(least);
    }
    arrivals.sort_by_key(|&(at, _)| at);
    let mut expired = Vec::new();
    for (at, piece) in arrivals {
        world.now = Instant::from_nanos(at * 1_000_000);
        world.reassembly.handle_timeout(world.now, |_| true, &mut world.counters, &mut expired);
        world.send(piece);
    }
    world.drain();
    let lost: u64 = world.dropped.iter().map(|&(_, packets)| packets).sum();
    let late: u64 = expired.drain(..).map(|it| it.packets).sum();
    let mut delivered: Vec<usize> = Vec::new();
    let count = |delivered: &[usize], id: usize| delivered.iter().filter(|&&it| it == id).count();
    for bytes in world.bytes() {
        let fits =
            |&id: &usize| bytes == Piece { id: id as u32, ..part(0, 0) }.whole(version, 400 * (lens[id] - 1) + 33);
        // IPv6 has no identification once it is whole, and datagrams of one length are alike.
        let again = |&id: &usize| count(&delivered, id) < times[id];
        delivered.push((0..lens.len()).filter(again).find(fits).expect("one that was sent, as often"));
    }
    let complete: Vec<usize> = (0..lens.len()).filter(|&id| times[id] > 0).collect();
    let joined: usize = delivered.iter().map(|&id| lens[id]).sum();
    assert_eq!(lost + late + joined as u64, world.sent, "{version}: each ends in one place");
    assert!(delivered.len() >= complete.len(), "{version}: {delivered:?} of {complete:?}");
    assert!(version == Version::V6 || complete.iter().all(|id| delivered.contains(id)), "{delivered:?}, {complete:?}");
    world.assert_pages_came_home();
}

/// The packets of a few datagrams with single bits changed.
fn damaged(lens: &[u8], damage: &[(prop::sample::Index, prop::sample::Index, u8)], seed: u64) -> Vec<Vec<u8>> {
    let (mut pieces, _) = cut_at(lens, 40, 33);
    shuffle(&mut pieces, seed);
    let mut packets: Vec<_> = BOTH.iter().flat_map(|&version| pieces.iter().map(move |it| it.bytes(version))).collect();
    for (which, at, bit) in damage {
        let bytes = which.get(&packets).clone();
        let at = at.index(bytes.len().min(60));
        let which = which.index(packets.len());
        packets[which][at] ^= 1 << bit;
        // Header checksums are not tested here.
        let _ = wire::ipv4::fill_check(&mut packets[which]);
    }
    packets
}

/// Fisher and Yates, with a generator of 64 bits (xorshift).
fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut state = seed | 1;
    for at in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(at, (state % (at as u64 + 1)) as usize);
    }
}

/// Datagrams of `count` fragments of 8 bytes each: the first of each in `order`, then the second of each, and so on.
fn tiny(version: Version, datagrams: u32, count: usize, order: fn(&mut [Piece])) -> Vec<(Vec<u8>, Info)> {
    let datagrams = (0..datagrams).map(|number| {
        let pieces = (0..count).map(|n| if n + 1 < count { part(8 * n, 8) } else { last(8 * n, 1) });
        let mut pieces: Vec<Piece> = pieces.map(|piece| Piece { id: piece.id + number, ..piece }).collect();
        order(&mut pieces);
        pieces
    });
    let datagrams: Vec<Vec<Piece>> = datagrams.collect();
    let pieces = (0..count).flat_map(|at| datagrams.iter().map(move |pieces| pieces[at]));
    pieces
        .map(|piece| {
            let bytes = piece.bytes(version);
            let info = Info::parse(&bytes, bytes.len()).unwrap();
            (bytes, info)
        })
        .collect()
}

/// The packets of a train as a link receives them: many in one page.
fn received(mem: &Memory, train: &[(Vec<u8>, Info)]) -> Vec<Packet> {
    let mut packets = Vec::with_capacity(train.len());
    for chunk in train.chunks(500) {
        let mut page = mem.take(0, chunk.len() * 64).unwrap();
        page.put(chunk.len() * 64).unwrap();
        for (bytes, _) in chunk {
            let mut slot = page.split_to(64);
            slot.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(bytes);
            slot.trim(bytes.len());
            packets.push(Packet::from_buf(slot));
        }
    }
    packets
}

/// Reassembles a train, and returns the time it took.
fn put_together(mem: &Memory, train: &[(Vec<u8>, Info)], datagrams: usize) -> (Vec<Packet>, Duration) {
    let packets = received(mem, train);
    let mut reassembly = Reassembly::new(no_limits());
    let mut counters = Counters::ZERO;
    let mut whole = Vec::with_capacity(datagrams);
    let start = Clock::now();
    for (pkt, (_, info)) in packets.into_iter().zip(train) {
        let verdict =
            reassembly.handle_fragment(Instant::ZERO, mem, ReassemblyContext::LOCAL, pkt, info, &mut counters);
        if let Verdict::Whole { pkt, .. } = verdict {
            whole.push(pkt);
        }
    }
    let took = start.elapsed();
    assert_eq!((reassembly.memory(), whole.len()), (0, datagrams));
    (whole, took)
}

/// Compares 8000 fragments of one datagram and of sixteen, which take the same memory, so that cache sizes do not
/// matter. A linear search among the fragments of a datagram would take sixteen times as long for one.
#[test]
fn fragments_take_the_same_time_however_many_a_datagram_has() {
    type Order = fn(&mut [Piece]);
    let orders: [(&str, Order); 4] = [
        ("in order", |_| {}),
        ("reversed", |pieces| pieces.reverse()),
        ("shuffled", |pieces| shuffle(pieces, 42)),
        ("odd before even", |pieces| pieces.sort_by_key(|piece| piece.at / 8 % 2)),
    ];
    for version in BOTH {
        for (name, order) in orders {
            let mem = Memory::heap();
            let [few, one] = [(16, 500), (1, 8000)].map(|(datagrams, count)| tiny(version, datagrams, count, order));
            // Other processes may use the processor, so the best of a few attempts counts.
            let mut best = [Duration::MAX; 2];
            let is_linear = (0..50).any(|_| {
                best[0] = best[0].min(put_together(&mem, &few, 16).1);
                best[1] = best[1].min(put_together(&mem, &one, 1).1);
                best[1] < 4 * best[0]
            });
            assert!(is_linear, "{version} {name}: {best:?} for sixteen datagrams and one");
        }
    }
}

#[test]
fn small_fragments_are_copied_to_few_pages() {
    for version in BOTH {
        let count = 8180;
        let mut world = World::with_config(version, no_limits());
        for n in 0..count {
            let pkt = Packet::with_data(&world.mem, &part(8 * n, 8).bytes(version)).unwrap();
            let bytes = part(8 * n, 8).bytes(version);
            let info = Info::parse(&bytes, bytes.len()).unwrap();
            let World { reassembly, now, mem, context, counters, .. } = &mut world;
            let verdict = reassembly.handle_fragment(*now, mem, *context, pkt, &info, counters);
            assert!(matches!(verdict, Verdict::Held));
        }
        let pages = world.mem.small().in_use();
        assert!(pages <= 8 * count / 1700, "{pages} pages for {} bytes", 8 * count);
        assert!(world.reassembly.memory() < 2 * 8 * count, "{} bytes", world.reassembly.memory());
        world.send(last(8 * count, 1));
        assert!(world.bytes() == [part(0, 0).whole(version, 8 * count + 1)]);
        assert!(world.delivered[0].frag_list().is_empty(), "slots are enough for them");
    }
}

#[test]
fn tiny_fragments_in_one_page_leave_in_few_frags() {
    for version in BOTH {
        let orders: [fn(&mut [Piece]); 3] = [|_| {}, |pieces| pieces.reverse(), |pieces| shuffle(pieces, 7)];
        for (order, sort) in orders.into_iter().enumerate() {
            let train = tiny(version, 1, 8180, sort);
            let mem = Memory::heap();
            let (mut whole, _) = put_together(&mem, &train, 1);
            let whole = whole.remove(0);
            assert!(whole.to_vec() == part(0, 0).whole(version, 8 * 8180 - 7));
            assert!(whole.frag_list().is_empty(), "{version}, order {order}");
            // Only the first fragment lies in its receive page; those out of order have a page of their own.
            assert_eq!(mem.large().in_use(), 1 + usize::from(order > 0), "{version}, order {order}");
        }
    }
}

//! A full table: which datagrams are evicted, and which are completed.

use base::{Domain, DropReason, Origin, PortId};
use proptest::prelude::*;
use reassembly::Policy;
use wire::Version;

use crate::model::ops;
use crate::world::{BOTH, Moved, Piece, World, last, limited, part};

/// Memory for some hundred fragments in small pages.
const LIMIT: usize = 1 << 20;

/// The source of the good flow, which is not part of a flood.
const GOOD: u8 = 1;

fn world(version: Version, policy: Policy) -> World {
    World::with_config(version, limited(policy, LIMIT, 0))
}

/// Datagram `id` of the good flow, 45 fragments.
fn good(id: u32) -> Vec<Piece> {
    let one = |n: usize| if n < 44 { part(n * 1448, 1448) } else { last(n * 1448, 100) };
    (0..45).map(|n| Piece { id, src: GOOD, ..one(n) }).collect()
}

/// The `n`-th fragment of a flood.
type Flood = fn(u32) -> Piece;

/// First fragments of different datagrams.
fn beginning(n: u32, src: u8) -> Piece {
    Piece { id: n + 1000, src, ..part(0, 1448) }
}

/// Sources other than the good one, in an IPv4 network or an IPv6 subnet.
fn any_source(n: u32) -> u8 {
    2 + (n % 250) as u8
}

const FLOODS: [(&str, Flood); 8] = [
    ("beginnings from one source", |n| beginning(n, 9)),
    ("beginnings from many sources", |n| beginning(n, any_source(n))),
    ("beginnings in the name of the good source", |n| beginning(n, GOOD)),
    ("two fragments each from many sources", |n| {
        let at = n as usize % 2 * 1448;
        Piece { id: 1000 + n / 2, src: any_source(n / 2), ..part(at, 1448) }
    }),
    ("overlaps from many sources", |n| {
        let at = n as usize % 3 * 1440;
        Piece { id: 1000 + n / 3, src: any_source(n / 3), ..part(at, 1448) }
    }),
    ("ends from many sources", |n| Piece { id: n + 1000, src: any_source(n), ..last(14_480, 1448) }),
    ("tiny fragments", |n| Piece { id: n + 1000, src: any_source(n), ..part(0, 8) }),
    ("ever more of a few datagrams, in tiny fragments", |n| Piece {
        id: 1000 + n % 3,
        src: 9,
        ..part(16 * (n as usize / 3 % 4000), 8)
    }),
];

#[test]
fn source_is_charged_per_domain() {
    for version in BOTH {
        let mut world = world(version, Policy::Fair);
        world.context.domain = Domain::vrf(PortId(8));
        world.send_all(&[part(0, 1448), part(1448, 1448)]);
        // Eviction takes the source, among those with more than half of all memory, that grew longest ago.
        world.context.domain = Domain::vrf(PortId(7));
        for n in 0..2000 {
            let at = n as usize % 2 * 1448;
            world.send(Piece { id: 1000 + n / 2, ..part(at, 1448) });
        }
        assert!(world.dropped.iter().any(|it| it.0 == DropReason::FragmentEvicted));
        world.context.domain = Domain::vrf(PortId(8));
        world.send(last(2896, 100));
        assert_eq!(world.delivered.len(), 1, "{version}");
    }
}

#[test]
fn good_flow_passes_during_each_flood() {
    for version in BOTH {
        for (name, flood) in FLOODS {
            let mut world = world(version, Policy::Fair);
            (0..2000).for_each(|n| world.send(flood(n)));
            let mut n = 2000;
            for id in 0..10 {
                for piece in good(id) {
                    world.send(piece);
                    for _ in 0..20 {
                        world.send(flood(n));
                        n += 1;
                    }
                }
                assert_eq!(world.delivered.len(), id as usize + 1, "{name}, {version}");
            }
            world.drain();
            world.assert_pages_came_home();
        }
    }
}

#[test]
fn good_flow_survives_growing_datagrams_of_one_source() {
    for version in BOTH {
        let mut world = world(version, Policy::Fair);
        // Each datagram lacks only its last fragment.
        let mut flood =
            (0..).flat_map(|id| (0..40).map(move |n| Piece { id: 1000 + id, src: 9, ..part(n * 1448, 1448) }));
        for id in 0..10 {
            for piece in good(id) {
                world.send(piece);
                flood.by_ref().take(100).for_each(|piece| world.send(piece));
            }
        }
        assert_eq!(world.delivered.len(), 10, "{version}");
    }
}

#[test]
fn linux_policy_drops_good_flow_until_timeout() {
    for version in BOTH {
        let mut world = world(version, Policy::Linux);
        (0..2000).for_each(|n| world.send(beginning(n, 9)));
        world.send_all(&good(0));
        assert!(world.delivered.is_empty());
        world.drain();
        world.send_all(&good(1));
        assert_eq!(world.delivered.len(), 1);
    }
}

#[test]
fn datagram_that_lost_a_fragment_does_not_block_the_next() {
    for version in BOTH {
        for (policy, got_through) in [(Policy::Fair, 100), (Policy::Linux, 0)] {
            let mut world = world(version, policy);
            // Every second datagram of the same flow is a good one.
            for id in 0..100 {
                let lost = if id % 2 == 0 { 0 } else { 3 };
                let pieces = good(id).into_iter().enumerate().filter(|&(n, _)| lost == 0 || n != lost);
                pieces.for_each(|(_, piece)| world.send(piece));
            }
            let before = world.delivered.len();
            (200..300).for_each(|id| world.send_all(&good(id)));
            assert_eq!(world.delivered.len() - before, got_through, "{version}, {policy:?}");
            world.delivered.clear();
            world.drain();
            world.assert_pages_came_home();
        }
    }
}

/// The datagrams that are evicted for one more fragment, of those that fill the memory.
fn victims(there: &[Piece], next: Piece) -> Vec<u32> {
    let mut plenty = world(Version::V6, Policy::Fair);
    there.iter().for_each(|&piece| plenty.send(piece));
    let high_thresh = plenty.reassembly.memory();
    let mut world = World::with_config(Version::V6, limited(Policy::Fair, high_thresh, 0));
    there.iter().for_each(|&piece| world.send(piece));
    assert_eq!(world.dropped, []);
    world.send(next);
    let mut ids: Vec<_> = there.iter().map(|piece| piece.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let left: Vec<_> = world.drain().iter().map(|(bytes, _)| u32::from(bytes[47])).collect();
    ids.retain(|id| !left.contains(id));
    ids
}

#[test]
fn datagram_least_likely_to_complete_is_evicted_first() {
    let new = |id, src| Piece { id, src, ..part(0, 1400) };
    let grown = |id, src| [new(id, src), Piece { id, src, ..part(1400, 1400) }];
    let next = |src| Piece { id: 99, src, ..part(0, 1400) };
    let flat = |groups: &[&[Piece]]| groups.concat();
    // The addresses are of one subnet, which is one source.
    assert_eq!(victims(&flat(&[&[new(1, 1)], &[new(2, 2)], &[new(3, 3)]]), next(4)), [1], "the oldest");
    let cases = flat(&[&grown(1, 1), &[new(2, 2)], &grown(3, 3), &[new(4, 4)]]);
    assert_eq!(victims(&cases, next(5)), [2], "the oldest of those that have not grown");
    let cases = flat(&[&grown(1, 1), &grown(2, 2), &grown(3, 3), &grown(4, 4), &grown(5, 5)]);
    assert_eq!(victims(&cases, next(5)), [1], "a new datagram evicts the one with the oldest progress");
    let touched = flat(&[&cases, &[Piece { src: 1, id: 1, ..part(2800, 1400) }]]);
    assert_eq!(victims(&touched, next(5)), [2]);
    let dripped = flat(&[&cases, &[Piece { src: 1, id: 1, ..part(2800, 8) }]]);
    assert_eq!(victims(&dripped, next(5)), [1], "eight bytes more of it are no progress");
}

#[test]
fn source_with_more_than_half_of_memory_is_evicted() {
    let mut world = world(Version::V4, Policy::Fair);
    let one = {
        world.send(beginning(0, 2));
        world.reassembly.memory()
    };
    // Source 2 begins with a few, source 9 fills the memory.
    (1..20).for_each(|n| world.send(beginning(n, 2)));
    (0..2 * LIMIT / one).for_each(|n| world.send(beginning(1000 + n as u32, 9)));
    assert!(world.reassembly.memory() > LIMIT - one);
    world.dropped.clear();
    for n in 0..20 {
        world.send(Piece { more: false, ..Piece { at: 1448, ..beginning(n, 2) } });
    }
    assert_eq!(
        (world.delivered.len(), &world.dropped[..]),
        (20, &[][..]),
        "the older datagrams of the other source remain"
    );
}

#[test]
fn heaviest_source_keeps_growing_datagrams_in_a_flood() {
    for (name, flood) in &FLOODS[..3] {
        let mut world = world(Version::V4, Policy::Fair);
        // Seven datagrams at once, each without its last fragment.
        let datagrams: Vec<_> = (0..7).map(good).collect();
        (0..44).for_each(|n| datagrams.iter().for_each(|pieces| world.send(pieces[n])));
        assert!(world.reassembly.memory() > LIMIT * 6 / 10, "{}", world.reassembly.memory());
        (0..2000).for_each(|n| world.send(flood(n)));
        datagrams.iter().for_each(|pieces| world.send(pieces[44]));
        assert_eq!(world.delivered.len(), 7, "{name}");
    }
}

#[test]
fn fragment_above_the_memory_limit_is_refused_alone() {
    for version in BOTH {
        let one = {
            let mut world = World::new(version);
            world.send(part(0, 104));
            world.reassembly.memory()
        };
        let mut world = World::with_config(version, limited(Policy::Fair, one, 0));
        world.send(part(0, 104));
        world.send(Piece { id: 2, ..part(0, 4000) });
        assert_eq!(world.dropped, [(DropReason::FragmentMemory, 1)]);
        assert_eq!(world.counters, Moved { requests: 2, fails: 1, ..Moved::default() }.counters(version));
        world.send(Piece { id: 3, ..part(0, 104) });
        assert_eq!(world.dropped[1..], [(DropReason::FragmentEvicted, 1)]);
        assert_eq!(world.counters, Moved { requests: 3, fails: 2, ..Moved::default() }.counters(version));
        world.send(Piece { id: 3, ..last(104, 8) });
        assert_eq!(
            world.bytes(),
            [Piece { id: 3, ..part(0, 0) }.whole(version, 112)],
            "what completes a datagram needs no room"
        );
    }
}

#[test]
fn datagram_above_the_memory_limit_is_abandoned() {
    for version in BOTH {
        let mut world = World::with_config(version, limited(Policy::Fair, 20_000, 0));
        world.send_all(&good(0));
        assert!(world.delivered.is_empty());
        let lost: u64 = world.dropped.iter().map(|&(_, packets)| packets).sum();
        world.drain();
        let left: u64 = world.dropped.iter().map(|&(_, packets)| packets).sum();
        assert_eq!((left, world.sent), (45, 45));
        assert!(lost > 30 && world.dropped.iter().all(|&(reason, _)| reason != DropReason::FragmentEvicted));
        world.assert_pages_came_home();
    }
}

#[test]
fn evicted_datagram_is_reported_with_its_link() {
    let mut world = world(Version::V4, Policy::Fair);
    let fragments = 3 * LIMIT as u32 / 2048;
    let mut evicted = 0;
    for n in 0..fragments {
        let bytes = beginning(n, 9).bytes(Version::V4);
        let mut pkt = packet::Packet::with_data(&world.mem, &bytes).unwrap();
        pkt.meta.origin = Origin::Port(PortId(1 + n % 2)).into();
        let info = wire::ip::Info::parse(&bytes, bytes.len()).unwrap();
        let World { reassembly, now, mem, context, counters, .. } = &mut world;
        let _held = reassembly.handle_fragment(*now, mem, *context, pkt, &info, counters);
    }
    for gone in world.reassembly.drain_evicted() {
        assert!(matches!(gone.origin, Origin::Port(PortId(1 | 2))));
        evicted += gone.packets;
    }
    assert_eq!(world.reassembly.drain_evicted().count(), 0);
    assert_eq!(evicted, u64::from(fragments) - world.reassembly.usage(Version::V4).queues as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn memory_stays_within_its_limit_and_is_freed(
        limit in 0_usize..60_000,
        steps in prop::collection::vec(any::<ops::OpStep>(), 0..200),
    ) {
        ops::run(Policy::Fair, limit, &steps);
        ops::run(Policy::Linux, limit, &steps);
    }
}

//! Fragments in shared large pages, while memory is scarce.

use base::{DropReason, Origin};
use packet::{Burst, CopyReason, Memory, Packet};
use reassembly::{Policy, Train};
use wire::Version;

use crate::world::{BOTH, LINK, Piece, World, last, limited, part};

const LIMIT: usize = 1 << 20;

/// Bytes of most fragments' data.
const STEP: usize = 1440;

/// Datagram `id` in `count` fragments.
fn datagram(id: u32, count: usize) -> Vec<Piece> {
    let one = |n: usize| if n + 1 < count { part(n * STEP, STEP) } else { last(n * STEP, STEP) };
    (0..count).map(|n| Piece { id, src: 1 + (id % 250) as u8, ..one(n) }).collect()
}

/// Fragments as a device receives them, several into one large page.
fn received(world: &World, pieces: &[Piece], per_page: usize) -> Vec<Packet> {
    let in_page = |pieces: &[Piece]| {
        let mut page = world.mem.large().take(0).unwrap();
        page.put(Memory::LARGE).unwrap();
        let mut packet = |piece: &Piece| {
            let bytes = piece.bytes(world.version);
            page.bytes_mut().unwrap()[..bytes.len()].copy_from_slice(&bytes);
            let mut pkt = Packet::from_buf(page.split_to(bytes.len()));
            pkt.meta.origin = Origin::Port(LINK).into();
            pkt
        };
        pieces.iter().map(&mut packet).collect::<Vec<_>>()
    };
    pieces.chunks(per_page).flat_map(in_page).collect()
}

/// Handles packets one by one, or those of one train together.
fn take_in(world: &mut World, mut packets: Vec<Packet>, together: bool) {
    let mut burst = Burst::new(&mut packets);
    while let Some(first) = burst.first() {
        let World { now, mem, counters, reassembly, .. } = &mut *world;
        let train = if together { Train::of(first, 0) } else { None };
        let taken = train.and_then(|it| reassembly.handle_train(*now, mem, &it, &mut burst, |_| Some(0), counters));
        if let Some((_, verdict)) = taken {
            world.note(verdict, &[]);
        } else if let Some(pkt) = burst.next() {
            let bytes = pkt.to_vec();
            world.send_packet(pkt, &bytes);
        }
    }
}

/// A world with scarce but sufficient memory.
fn half_full(version: Version) -> World {
    let mut world = World::with_config(version, limited(Policy::Fair, LIMIT, 0));
    (0..200).for_each(|id| world.send(Piece { id: id + 10_000, ..part(0, STEP) }));
    let memory = world.reassembly.memory();
    assert!((LIMIT / 4..LIMIT / 2 + 100_000).contains(&memory), "{memory}");
    world
}

fn copied(world: &World) -> u64 {
    world.mem.copies().get(CopyReason::Coalesce).bytes
}

#[test]
fn limit_holds_as_many_fragments_in_shared_pages() {
    for version in BOTH {
        for (together, policy) in [(false, Policy::Fair), (true, Policy::Fair), (false, Policy::Linux)] {
            let mut world = World::with_config(version, limited(policy, LIMIT, 0));
            for id in 0..300 {
                let pieces = [datagram(2 * id, 3)[0], datagram(2 * id + 1, 3)[0]];
                let packets = received(&world, &pieces, 2);
                take_in(&mut world, packets, together);
                let pages = (world.mem.small().in_use(), world.mem.large().in_use());
                let held = pages.0 * Memory::SMALL + pages.1 * Memory::LARGE;
                let memory = world.reassembly.memory();
                assert!(held <= memory, "{held} bytes are held, and {memory} charged");
            }
            let queues = world.reassembly.queues();
            assert!(queues > 300, "{queues}, {version}, together {together}, {policy:?}");
            world.drain();
            world.assert_pages_came_home();
        }
    }
}

#[test]
fn datagram_in_shared_pages_is_whole_below_limit_of_one() {
    for version in BOTH {
        for together in [false, true] {
            for order in 0..2 {
                let mut world = World::with_config(version, limited(Policy::Fair, 20_000, 0));
                let mut pieces = datagram(1, 4);
                if order == 1 {
                    pieces.reverse();
                }
                let packets = received(&world, &pieces, 2);
                take_in(&mut world, packets, together);
                assert_eq!(world.dropped, [], "{version}");
                assert_eq!(
                    world.bytes(),
                    [Piece { src: 2, id: 1, ..part(0, 0) }.whole(version, 4 * STEP)],
                    "{version}"
                );
                world.assert_pages_came_home();
            }
        }
    }
}

#[test]
fn train_is_copied_only_if_it_waits_and_wastes_its_pages() {
    // Fragments of a datagram, number that arrive together, and number copied.
    let cases = [(2, 2, 0), (3, 3, 0), (45, 45, 0), (45, 10, 0), (3, 2, 2), (45, 1, 1)];
    for version in BOTH {
        for (count, come, want) in cases {
            for reversed in [false, true] {
                let mut world = half_full(version);
                let mut pieces = datagram(1, count);
                if reversed {
                    pieces.reverse();
                }
                let rest = pieces.split_off(come);
                let packets = received(&world, &pieces, 45);
                let (before, len) = (copied(&world), packets[0].len());
                take_in(&mut world, packets, true);
                let copies = (copied(&world) - before) as usize;
                assert_eq!(copies, want * len, "{come} of {count}, {version}");
                let packets = received(&world, &rest, 45);
                take_in(&mut world, packets, true);
                assert_eq!(world.delivered.len(), 1, "{come} of {count}, {version}");
                let bytes = world.bytes().remove(0);
                assert!(bytes == Piece { src: 2, id: 1, ..part(0, 0) }.whole(version, count * STEP));
            }
        }
    }
}

#[test]
fn nothing_is_copied_with_ample_memory() {
    for version in BOTH {
        for together in [false, true] {
            let mut world = World::with_config(version, limited(Policy::Fair, 4 << 20, 0));
            let packets = received(&world, &datagram(1, 3), 1);
            let before = copied(&world);
            take_in(&mut world, packets.into_iter().take(2).collect(), together);
            assert_eq!((copied(&world), world.mem.large().in_use()), (before, 2), "{version}");
            assert!(world.reassembly.memory() > 2 * Memory::LARGE);
        }
    }
}

#[test]
fn fragment_keeps_its_page_if_no_copy_can_be_allocated() {
    let mut world = half_full(Version::V4);
    let packets = received(&world, &datagram(1, 2)[..1], 2);
    world.mem = Memory::new(packet::Pool::bounded(Memory::SMALL, 0), packet::Pool::heap(Memory::LARGE));
    let before = world.reassembly.memory();
    take_in(&mut world, packets, false);
    assert!(world.reassembly.memory() >= before + Memory::LARGE);
    assert!(world.dropped.iter().all(|it| it.0 != DropReason::NoMemory));
}

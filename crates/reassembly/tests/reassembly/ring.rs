//! Fragments in the frames of a small device ring.

use base::DropReason;
use packet::{CopyReason, Memory, Packet, Pool};
use reassembly::{Coalesce, Config, Limits, Policy};
use wire::Version;

use crate::world::{BOTH, Piece, World, last, limited, no_limits, part};

/// Frames of the smallest tested ring.
const FRAMES: usize = 256;

/// The fragments of datagram `id` for an MTU of 1500: 65 507 bytes and a UDP header.
fn train(id: u32) -> Vec<Piece> {
    let one = |n: usize| if n < 45 { part(n * 1448, 1448) } else { last(n * 1448, 65_515 - 45 * 1448) };
    (0..46).map(|n| Piece { id, ..one(n) }).collect()
}

fn world(version: Version, coalesce: Coalesce) -> World {
    World::with_config(version, Config { coalesce, ..no_limits() })
}

/// Sends a fragment in a frame of the ring, if one is free.
fn receive(world: &mut World, ring: &Pool, piece: Piece) -> bool {
    let bytes = piece.bytes(world.version);
    let Ok(mut frame) = ring.take(Memory::HEADROOM) else { return false };
    frame.put(bytes.len()).expect("a frame has room for a packet").copy_from_slice(&bytes);
    world.send_packet(Packet::from_buf(frame), &bytes);
    true
}

#[test]
fn copied_fragments_give_their_frames_back_at_once_in_any_order() {
    for version in BOTH {
        for order in 0..3 {
            let mut world = world(version, Coalesce::Copy);
            let ring = Pool::bounded(Memory::SMALL, 1);
            let mut pieces = train(7);
            match order {
                0 => {}
                1 => pieces.reverse(),
                _ => pieces.rotate_left(20),
            }
            for piece in pieces {
                assert!(receive(&mut world, &ring, piece), "{version}: {piece:?}");
                assert_eq!(ring.in_use(), 0);
            }
            assert!(world.bytes() == [Piece { id: 7, ..part(0, 0) }.whole(version, 65_515)], "{version}");
            let whole = &world.delivered[0];
            assert_eq!(whole.frag_list().len(), 0, "{version}, order {order}");
            assert_eq!(world.mem.copies().total_bytes(), world.mem.copies().get(CopyReason::Coalesce).bytes);
            let copied = world.mem.copies().total_bytes() as f64 / 65_515.0;
            assert!((1.0..1.05).contains(&copied), "{copied} bytes for each, {version}, order {order}");
            world.assert_pages_came_home();
        }
    }
}

#[test]
fn many_fragments_of_a_small_mtu_are_frags() {
    for version in BOTH {
        let mut world = world(version, Coalesce::Copy);
        let ring = Pool::bounded(Memory::SMALL, 1);
        for n in 0..118 {
            let piece = if n < 117 { part(n * 552, 552) } else { last(n * 552, 500) };
            assert!(receive(&mut world, &ring, piece));
        }
        let whole = &world.delivered[0];
        assert!(whole.frag_list().is_empty() && whole.frags().len() < 20, "{} slots", whole.frags().len());
        assert!(world.bytes() == [part(0, 0).whole(version, 117 * 552 + 500)]);
    }
}

#[test]
fn ring_is_exhausted_without_coalescing() {
    // One fragment in fifty is lost, so most datagrams never complete.
    let delivered = |version, coalesce| {
        let mut world = world(version, coalesce);
        let ring = Pool::bounded(Memory::SMALL, FRAMES);
        let mut count = 0;
        for id in 0..200 {
            for (n, piece) in train(id).into_iter().enumerate() {
                let lost = (id as usize * 46 + n) % 50 == 7;
                if !lost {
                    receive(&mut world, &ring, piece);
                }
            }
            count += world.delivered.len();
            world.delivered.clear();
        }
        (count, ring.dry())
    };
    for version in BOTH {
        let (copied, dry) = delivered(version, Coalesce::Copy);
        assert_eq!(dry, 0, "{version}");
        // Complete datagrams: 46 of 50 consecutive places do not include the loss.
        assert_eq!(copied, (0..200).filter(|id| (0..46).all(|n| (id * 46 + n) % 50 != 7)).count(), "{version}");
        assert_eq!(delivered(version, Coalesce::Move), (copied, 0), "half of the ring is always free: {version}");
        let (waiting, dry) = delivered(version, Coalesce::Off);
        assert!(dry > 1000 && waiting < copied, "{waiting} and {dry}, {version}");
    }
}

#[test]
fn waiting_fragment_is_copied_while_half_the_ring_is_free() {
    for version in BOTH {
        let mut world = world(version, Coalesce::Move);
        let ring = Pool::bounded(Memory::SMALL, 8);
        for (n, piece) in train(3).into_iter().enumerate() {
            assert!(receive(&mut world, &ring, piece));
            assert!(ring.in_use() < 4 && (n > 1 || ring.in_use() == n + 1), "{} at {n}", ring.in_use());
        }
        let copied = world.mem.copies().get(CopyReason::Coalesce).bytes;
        assert!((60_000..65_515).contains(&copied), "{copied}");
        assert!(world.bytes() == [Piece { id: 3, ..part(0, 0) }.whole(version, 65_515)]);
        world.assert_pages_came_home();
        assert_eq!(ring.in_use(), 0);
    }
}

#[test]
fn fragment_is_charged_its_whole_shared_page() {
    for version in BOTH {
        let mut world = World::with_config(version, limited(Policy::Fair, 1 << 20, 0));
        // One received packet in forty is a waiting fragment; the others are for other nodes.
        for id in 0..40 {
            let bytes = Piece { id, ..part(0, 1448) }.bytes(version);
            let mut page = world.mem.large().take(0).unwrap();
            page.put(Memory::LARGE).unwrap();
            let mut frame = page.split_to(bytes.len());
            frame.bytes_mut().unwrap().copy_from_slice(&bytes);
            drop(page);
            world.send_packet(Packet::from_buf(frame), &bytes);
            assert!(world.mem.large().in_use() * Memory::LARGE <= 1 << 20);
        }
        assert!(world.reassembly.queues() > 10);
        world.drain();
        world.assert_pages_came_home();
    }
}

#[test]
fn fragments_keep_their_pages_without_coalescing() {
    for version in BOTH {
        let mut world = world(version, Coalesce::Off);
        world.send_all(&train(3));
        let whole = &world.delivered[0];
        assert_eq!((whole.frags().len(), whole.frag_list().len()), (0, 45), "{version}");
        assert_eq!(world.mem.copies().total_bytes(), 0);
    }
}

#[test]
fn frame_waits_if_no_page_is_free_for_a_copy() {
    for version in BOTH {
        let mut world = world(version, Coalesce::Copy);
        // One page, for the first.
        world.mem = Memory::new(Pool::bounded(Memory::SMALL, 1), Pool::bounded(Memory::LARGE, 0));
        let ring = Pool::bounded(Memory::SMALL, FRAMES);
        for (n, piece) in train(3).into_iter().enumerate() {
            assert_eq!(ring.in_use(), n.saturating_sub(1));
            assert!(receive(&mut world, &ring, piece));
        }
        assert!(world.bytes() == [Piece { id: 3, ..part(0, 0) }.whole(version, 65_515)]);
        world.assert_pages_came_home();
        assert_eq!(ring.in_use(), 0);
    }
}

#[test]
fn memory_is_exactly_zero_after_a_hundred_thousand_datagrams() {
    for version in BOTH {
        for coalesce in [Coalesce::Off, Coalesce::Move, Coalesce::Copy] {
            let Config { v4, v6, .. } = Config::default();
            let [v4, v6] = [v4, v6].map(|limits| Limits { high_thresh: 1 << 20, ..limits });
            let mut world = World::with_config(version, Config { coalesce, v4, v6, ..Config::default() });
            for id in 0..100_000 / 6 {
                world.send_all(&[Piece { id, ..part(0, 104) }, Piece { id, ..last(104, 8) }]);
                world.delivered.clear();
                assert_eq!(world.reassembly.memory(), 0);
            }
            assert!(world.dropped.iter().all(|&(reason, _)| reason != DropReason::FragmentMemory));
        }
    }
}

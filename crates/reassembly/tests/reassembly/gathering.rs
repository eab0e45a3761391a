//! Copies of fragments into one large page, and datagrams too short for that.

use packet::{CopyReason, Memory, Packet, Pool};
use reassembly::{Coalesce, Config, Policy};
use wire::Version;

use crate::world::{BOTH, Piece, World, last, limited, no_limits, part};

/// Linux's limit.
const LIMIT: usize = 4 << 20;

/// Reasons for copies: all fragments are copied, or their device has few frames.
const COPIED: [(Coalesce, Device); 2] = [(Coalesce::Copy, Device::Plenty), (Coalesce::Move, Device::Scarce)];

/// Device that receives the fragments.
#[derive(Clone, Copy, Debug)]
enum Device {
    Plenty,
    Scarce,
}

/// A datagram of `len` bytes in fragments of 1480, from its own source.
fn datagram(id: u32, len: usize) -> Vec<Piece> {
    let ends = (0..len).step_by(1480).map(|at| if at + 1480 < len { part(at, 1480) } else { last(at, len - at) });
    ends.map(|piece| Piece { id, src: 1, ..piece }).collect()
}

/// The first two fragments of datagram `n` of a flood; the second does not fit into the page of the first.
fn pair(n: u32) -> [Piece; 2] {
    [part(0, 1480), part(1480, 456)].map(|piece| Piece { id: n + 1000, src: 2 + (n % 250) as u8, ..piece })
}

/// Sends `piece` in a page without tailroom.
fn send(world: &mut World, device: Device, piece: Piece) {
    let bytes = piece.bytes(world.version);
    let page = match device {
        Device::Plenty => world.mem.small().take(Memory::HEADROOM),
        // One of two frames is in use then.
        Device::Scarce => Pool::bounded(Memory::SMALL, 2).take(Memory::HEADROOM),
    };
    let mut page = page.unwrap();
    page.put(bytes.len()).unwrap().copy_from_slice(&bytes);
    world.send_packet(Packet::from_buf(page), &bytes);
}

/// Bytes copied for each byte of a datagram of `len`, and the number of buffers of the result.
fn copied(world: &mut World, device: Device, len: usize) -> (f64, usize) {
    let before = world.mem.copies().get(CopyReason::Coalesce).bytes;
    datagram(1, len).into_iter().for_each(|piece| send(world, device, piece));
    let whole = world.delivered.pop().expect("all of it has come");
    assert!(whole.to_vec() == Piece { id: 1, ..part(0, 0) }.whole(world.version, len));
    let copied = world.mem.copies().get(CopyReason::Coalesce).bytes - before;
    (copied as f64 / len as f64, 1 + whole.frags().len() + whole.frag_list().len())
}

#[test]
fn payload_is_copied_about_once_into_one_page() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            for len in [65_515, 30_000] {
                let mut world = World::with_config(version, Config { coalesce, ..no_limits() });
                let (bytes, pieces) = copied(&mut world, device, len);
                assert!((1.0..1.055).contains(&bytes) && pieces == 1, "{bytes} in {pieces}, {coalesce:?}, {version}");
                world.assert_pages_came_home();
            }
        }
    }
}

#[test]
fn scarce_memory_copies_fragments_from_quarter_of_page() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            let mut world = World::with_config(version, Config { coalesce, ..limited(Policy::Fair, LIMIT, 0) });
            (0..1000).for_each(|n| send(&mut world, device, pair(n)[0]));
            let (bytes, pieces) = copied(&mut world, device, 65_515);
            assert!((1.2..1.3).contains(&bytes) && pieces == 1, "{bytes} in {pieces}, {coalesce:?}, {version}");
            let (bytes, pieces) = copied(&mut world, device, 15_000);
            assert!((1.0..1.02).contains(&bytes) && pieces == 10, "{bytes} in {pieces}, {coalesce:?}, {version}");
            assert_eq!(world.dropped, [], "{coalesce:?}, {version}");
        }
    }
}

#[test]
fn pairs_of_fragments_do_not_take_large_pages_from_others() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            let mut world = World::with_config(version, Config { coalesce, ..limited(Policy::Fair, LIMIT, 0) });
            let good = datagram(1, 3 * 1480);
            send(&mut world, device, good[0]);
            (0..500).for_each(|n| pair(n).into_iter().for_each(|piece| send(&mut world, device, piece)));
            assert_eq!(world.dropped, [], "{coalesce:?}, {version}");
            assert!(world.mem.large().in_use() * Memory::LARGE <= LIMIT / 4);
            send(&mut world, device, good[1]);
            send(&mut world, device, good[2]);
            assert_eq!(world.delivered.len(), 1, "{coalesce:?}, {version}");
        }
    }
}

#[test]
fn page_with_room_for_later_fragments_is_not_sparse() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            let mut world = World::with_config(version, Config { coalesce, ..limited(Policy::Fair, LIMIT, 0) });
            let good = datagram(1, 3 * 1480);
            send(&mut world, device, good[0]);
            send(&mut world, device, good[1]);
            assert_eq!(world.mem.large().in_use(), 1);
            (0..3000).for_each(|n| pair(n).into_iter().for_each(|piece| send(&mut world, device, piece)));
            assert!(world.dropped.len() > 2000, "{} of the flood made room", world.dropped.len());
            send(&mut world, device, good[2]);
            assert_eq!(world.delivered.len(), 1, "{coalesce:?}, {version}");
        }
    }
}

#[test]
fn lost_fragments_do_not_fill_linux_table_with_empty_pages() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            let mut world = World::with_config(version, Config { coalesce, ..limited(Policy::Linux, LIMIT, 0) });
            for id in 0..300 {
                datagram(1000 + id, 3 * 1480)[..2].iter().for_each(|&piece| send(&mut world, device, piece));
            }
            assert_eq!(world.reassembly.queues(), 300, "{coalesce:?}, {version}");
            datagram(1, 3 * 1480).into_iter().for_each(|piece| send(&mut world, device, piece));
            assert_eq!(world.delivered.len(), 1, "{coalesce:?}, {version}");
        }
    }
}

#[test]
fn limit_below_large_page_lets_short_datagrams_through() {
    for version in BOTH {
        for (coalesce, device) in COPIED {
            for policy in [Policy::Fair, Policy::Linux] {
                let mut world = World::with_config(version, Config { coalesce, ..limited(policy, 65_536, 0) });
                for len in [3 * 1480, 20_000] {
                    copied(&mut world, device, len);
                    assert_eq!((world.mem.large().in_use(), world.reassembly.memory()), (0, 0));
                }
                assert_eq!(world.dropped, [], "{coalesce:?}, {policy:?}, {version}");
            }
        }
    }
}

#[test]
fn page_replaces_the_pages_copied_into_it() {
    let mut world = World::with_config(Version::V4, limited(Policy::Fair, LIMIT, 0));
    let device = Device::Scarce;
    (0..1000).for_each(|n| send(&mut world, device, pair(n)[0]));
    let (before, others) = (world.reassembly.usage(Version::V4).memory, world.mem.small().in_use());
    datagram(1, 65_515)[..20].iter().for_each(|&piece| send(&mut world, device, piece));
    assert_eq!((world.mem.large().in_use(), world.mem.small().in_use()), (1, others));
    let grown = world.reassembly.usage(Version::V4).memory - before;
    assert!((Memory::LARGE..Memory::LARGE + 2048).contains(&grown), "{grown} bytes");
}

#[test]
fn tiny_fragments_out_of_order_share_page_above_threshold() {
    for version in BOTH {
        for step in [1, 2] {
            let mut world = World::with_config(version, no_limits());
            let mut pieces: Vec<Piece> = (0..4000).map(|n| part(8 * n, 8)).collect();
            pieces.push(last(8 * 4000, 5));
            // Odd fragments in reverse order, then even ones; or one by one.
            pieces.reverse();
            let order = (0..step).flat_map(|from| pieces.iter().skip(from).step_by(step));
            for (sent, piece) in order.enumerate() {
                let few = Memory::LARGE / Memory::SMALL;
                assert_eq!(world.mem.large().in_use(), usize::from(sent > few), "{version}, after {sent}");
                if sent > few {
                    assert!(world.mem.small().in_use() <= 2, "{version}, after {sent}");
                    let charged = world.reassembly.memory();
                    assert!((Memory::LARGE..Memory::LARGE + 3 * Memory::SMALL).contains(&charged), "{charged} bytes");
                }
                send(&mut world, Device::Plenty, *piece);
            }
            let whole = world.delivered.pop().expect("all of it has come");
            assert!(whole.to_vec() == part(0, 0).whole(version, 8 * 4000 + 5), "{version}");
            assert!(whole.frags().len() <= 2 && whole.frag_list().is_empty(), "{version}");
            drop(whole);
            world.assert_pages_came_home();
        }
    }
}

//! Contexts of reassembly, and their results.

use base::{Domain, DropReason, PortId};
use packet::{Packet, geometry};
use reassembly::{Coalesce, Config, Policy, ReassemblyContext, Usage, User};
use wire::Version;

use crate::world::{BOTH, Moved, Piece, World, last, limited, part};

const USERS: [User; 3] = [User::Local, User::Output, User::Host];

/// A world with this user of reassembly.
fn world_of(user: User, version: Version) -> World {
    let mut world = World::new(version);
    world.context.user = user;
    world
}

#[test]
fn users_and_domains_have_separate_datagrams() {
    let domains = [Domain::DEFAULT, Domain::vrf(PortId(7)), Domain::vrf(PortId(8))];
    let askers = || USERS.into_iter().flat_map(|user| domains.map(|domain| ReassemblyContext { user, domain }));
    for version in BOTH {
        for one in askers() {
            let mut world = World::new(version);
            world.context = one;
            world.send(part(0, 104));
            for other in askers().filter(|&other| other != one) {
                world.context = other;
                world.send(last(104, 96));
            }
            assert!(world.delivered.is_empty(), "{one:?}, {version}");
            world.context = one;
            world.send(last(104, 96));
            assert_eq!(world.bytes(), [part(0, 0).whole(version, 200)], "{one:?}, {version}");
        }
    }
}

#[test]
fn fragments_join_unless_coalescing_is_off() {
    let sizes = [1000, 8, 1000, 640, 1400, 1];
    for version in BOTH {
        for (user, coalesce) in USERS.into_iter().flat_map(|user| [(user, Coalesce::Move), (user, Coalesce::Off)]) {
            for reversed in [false, true] {
                let mut world = World::with_config(version, Config { coalesce, ..Config::default() });
                world.context.user = user;
                let mut at = 0;
                let mut pieces = Vec::new();
                for (n, len) in sizes.into_iter().enumerate() {
                    pieces.push(Piece { more: n + 1 < sizes.len(), ..part(at, len) });
                    at += len;
                }
                if reversed {
                    pieces.reverse();
                }
                world.send_all(&pieces);
                assert!(world.bytes() == [part(0, 0).whole(version, at)], "{user:?}, {version}");
                let whole = &world.delivered[0];
                if coalesce == Coalesce::Move {
                    assert_eq!(whole.frag_list().len(), 0);
                    assert_eq!(world.mem.small().in_use() + world.mem.large().in_use(), 1 + whole.frags().len());
                    continue;
                }
                let lens: Vec<_> = whole.frag_list().iter().map(Packet::len).collect();
                assert_eq!((whole.headlen() - version.header_len(), lens), (sizes[0], sizes[1..].to_vec()), "{user:?}");
                assert_eq!(world.mem.copies().total_bytes(), 0, "{user:?}");
            }
        }
    }
}

#[test]
fn each_fragment_of_any_geometry_is_one_child() {
    let pieces = [part(0, 96), part(96, 104), last(200, 50)];
    for version in BOTH {
        for which in 0..3 {
            let bytes = pieces[which].bytes(version);
            for shape in 0..geometry::all(&packet::Memory::heap(), &bytes, &[20, 40, 48, 56]).len() {
                let config = Config { coalesce: Coalesce::Off, ..Config::default() };
                let mut world = World::with_config(version, config);
                for (at, piece) in pieces.iter().enumerate() {
                    let bytes = piece.bytes(version);
                    let (name, pkt) = if at == which {
                        geometry::all(&world.mem, &bytes, &[20, 40, 48, 56]).swap_remove(shape)
                    } else {
                        (String::new(), Packet::with_data(&world.mem, &bytes).unwrap())
                    };
                    world.send_packet(pkt, &bytes);
                    if at == 2 {
                        assert_eq!(world.bytes(), [part(0, 0).whole(version, 250)], "{version}, {which} as {name}");
                        let lens: Vec<_> = world.delivered[0].frag_list().iter().map(Packet::len).collect();
                        assert_eq!(lens, [104, 50], "{version}, {which} as {name}");
                    }
                }
                world.assert_pages_came_home();
            }
        }
    }
}

#[test]
fn users_of_one_family_share_one_limit() {
    let small = limited(Policy::Linux, 1, 0);
    for version in BOTH {
        for (first, second) in [(User::Local, User::Host), (User::Host, User::Output), (User::Output, User::Local)] {
            let mut world = World::with_config(version, small);
            world.context.user = first;
            world.send(part(0, 104));
            assert_eq!(world.reassembly.queues(), 1);
            world.context.user = second;
            world.send(Piece { id: 9, ..part(0, 104) });
            assert_eq!(world.dropped, [(DropReason::FragmentMemory, 1)], "{version}: {first:?}, then {second:?}");
            world.version = if version == Version::V4 { Version::V6 } else { Version::V4 };
            world.send(part(0, 104));
            assert_eq!((world.reassembly.queues(), world.dropped.len()), (2, 1), "the other family has its own limit");
        }
    }
}

#[test]
fn usage_is_per_family() {
    let mut world = World::new(Version::V4);
    let usage = |world: &World| BOTH.map(|version| world.reassembly.usage(version));
    assert_eq!(usage(&world), [Usage::default(); 2]);
    world.send_all(&[part(0, 104), Piece { id: 9, ..part(0, 104) }]);
    world.version = Version::V6;
    world.send(part(0, 104));
    let [v4, v6] = usage(&world);
    assert_eq!((v4.queues, v6.queues), (2, 1));
    assert_eq!(v4.memory + v6.memory, world.reassembly.memory());
    assert_eq!(v4.memory, 2 * v6.memory, "pages and queues of both families are of one size");
    world.drain();
    assert_eq!(usage(&world), [Usage::default(); 2]);
}

#[test]
fn ipv4_counts_for_every_user() {
    for user in USERS {
        let mut world = world_of(user, Version::V4);
        world.send_all(&[part(0, 104), part(96, 16), part(0, 104), last(104, 8)]);
        let moved = Moved { requests: 4, oks: 1, fails: 1, overlaps: 1, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(Version::V4), "{user:?}");
    }
}

#[test]
fn timeout_is_reported_for_link_of_last_fragment() {
    for version in BOTH {
        let mut world = World::new(version);
        for (piece, link) in [(part(0, 104), 3), (part(104, 8), 4)] {
            world.link = PortId(link);
            world.send(piece);
        }
        let mut expired = Vec::new();
        let deadline = world.reassembly.poll_timeout().unwrap();
        // The first fragment's link may be removed by then.
        world.reassembly.handle_timeout(deadline, |it| it == PortId(4), &mut world.counters, &mut expired);
        let links: Vec<_> = expired
            .into_iter()
            .map(|it| (it.origin.device(), it.first.map(|(pkt, _)| pkt.meta.origin.device())))
            .collect();
        assert_eq!(links, [(PortId(4), Some(PortId(4)))], "{version}");
    }
}

#[test]
fn timeout_of_removed_link_is_not_reported() {
    for (version, counted) in [(Version::V4, 1), (Version::V6, 0)] {
        for user in USERS {
            let mut world = world_of(user, version);
            world.send(part(0, 104));
            let mut expired = Vec::new();
            let deadline = world.reassembly.poll_timeout().unwrap();
            let World { reassembly, link, counters, .. } = &mut world;
            reassembly.handle_timeout(deadline, |it| it != *link, counters, &mut expired);
            assert!(expired[0].first.is_none() && expired[0].packets == 1);
            let moved = Moved { requests: 1, fails: counted, timeouts: counted, ..Moved::default() };
            assert_eq!(world.counters, moved.counters(version), "{version}");
            assert_eq!(world.reassembly.memory(), 0);
        }
    }
}

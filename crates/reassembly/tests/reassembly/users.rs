//! Contexts of reassembly, and their results.

use base::{Counters, Domain, DropReason, LinkId};
use packet::{Packet, geometry};
use reassembly::{Hook, Policy, ReassemblyContext, Table, Usage, User};
use wire::Version;

use crate::world::{BOTH, Moved, Piece, World, last, limited, part};

const USERS: [User; 9] = [
    User::Local,
    User::RouterAlert,
    tracking(Hook::In, 0),
    tracking(Hook::In, 1),
    tracking(Hook::In, u16::MAX),
    tracking(Hook::Out, 0),
    tracking(Hook::Bridge, 1),
    User::PacketSocket,
    User::Switch,
];

const fn tracking(hook: Hook, zone: u16) -> User {
    User::Tracking { hook, zone }
}

/// A world with this user of reassembly.
fn world_of(user: User, version: Version) -> World {
    let mut world = World::new(version);
    world.context.user = user;
    world
}

#[test]
fn users_and_domains_have_separate_datagrams() {
    let domains = [Domain::DEFAULT, Domain::vrf(LinkId(7)), Domain::vrf(LinkId(8))];
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
fn only_local_delivery_joins_fragments() {
    let sizes = [1000, 8, 1000, 640, 1400, 1];
    for version in BOTH {
        for user in USERS {
            for reversed in [false, true] {
                let mut world = world_of(user, version);
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
                if user == User::Local {
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
                let mut world = world_of(User::PacketSocket, version);
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
fn the_largest_fragment_is_remembered() {
    // The fragments' lengths, and that of the largest with its header.
    let cases: [(&[Piece], usize); 4] = [
        (&[part(0, 104), last(104, 96)], 104),
        (&[last(104, 296), part(0, 104)], 296),
        (&[part(0, 8), last(8, 9)], 9),
        (&[part(0, 104), part(0, 104), last(104, 8)], 104),
    ];
    for version in BOTH {
        let header_len = if version == Version::V4 { 20 } else { 48 };
        for (pieces, largest) in cases {
            for user in USERS {
                let mut world = world_of(user, version);
                world.send_all(pieces);
                assert_eq!(world.max_sizes, [header_len + largest], "{pieces:?}");
            }
        }
    }
    let mut world = World::new(Version::V6);
    world.send(last(0, 100));
    assert_eq!(world.max_sizes, [148], "an atomic fragment, with its header");
}

#[test]
fn users_of_ipv4_share_one_limit_and_ipv6_tracking_has_its_own() {
    let small = limited(Policy::Linux, 1, 0);
    let cases = [
        (Version::V4, User::Local, User::PacketSocket, true),
        (Version::V4, User::Local, tracking(Hook::In, 3), true),
        (Version::V4, tracking(Hook::Out, 3), User::Switch, true),
        (Version::V6, User::Local, tracking(Hook::In, 3), false),
        (Version::V6, tracking(Hook::In, 3), User::Local, false),
        (Version::V6, tracking(Hook::In, 3), tracking(Hook::Out, 4), true),
    ];
    for (version, first, second, shared) in cases {
        let mut world = World::with_config(version, small);
        world.context.user = first;
        world.send(part(0, 104));
        assert_eq!(world.reassembly.queues(), 1);
        world.context.user = second;
        world.send(Piece { id: 9, ..part(0, 104) });
        let refused = if shared { vec![(DropReason::FragmentMemory, 1)] } else { vec![] };
        assert_eq!(world.dropped, refused, "{version}: {first:?}, then {second:?}");
    }
}

#[test]
fn usage_is_per_table() {
    let mut world = World::new(Version::V4);
    let usage = |world: &World| Table::ALL.map(|table| world.reassembly.usage(table));
    assert_eq!(usage(&world), [Usage::default(); 3]);
    world.send_all(&[part(0, 104), Piece { id: 9, ..part(0, 104) }]);
    world.version = Version::V6;
    world.send(part(0, 104));
    let [v4, v6, tracking_v6] = usage(&world);
    assert_eq!((v4.queues, v6.queues, tracking_v6.queues), (2, 1, 0));
    assert_eq!(v4.memory + v6.memory, world.reassembly.memory());
    assert_eq!(v4.memory, 2 * v6.memory, "pages and queues of both families are of one size");
    world.context.user = tracking(Hook::In, 0);
    world.send(part(0, 104));
    assert_eq!(usage(&world)[2], v6);
    world.drain();
    assert_eq!(usage(&world), [Usage::default(); 3]);
}

/// Result of IPv6 tracking: the datagrams, the drops, and the number of fragments that go on.
type Tracked = (usize, Vec<(DropReason, u64)>, usize);

#[test]
fn ipv6_tracking_passes_malformed_and_counts_nothing() {
    use DropReason as R;
    let (a, b, c) = (part(0, 104), part(104, 104), last(208, 96));
    let cases: Vec<(&str, Vec<Piece>, Tracked)> = vec![
        ("in order", vec![a, b, c], (1, vec![], 0)),
        ("reversed", vec![c, b, a], (1, vec![], 0)),
        ("a duplicate", vec![a, b, b, c], (1, vec![(R::FragmentDuplicate, 1)], 0)),
        ("an overlap", vec![a, b, part(96, 120), c], (0, vec![(R::FragmentOverlap, 3)], 0)),
        ("two ends", vec![a, c, last(208, 88), b], (1, vec![(R::FragmentEnd, 1)], 0)),
        ("beyond the end", vec![a, c, part(304, 8), b], (1, vec![(R::FragmentEnd, 1)], 0)),
        ("an end before what is there", vec![a, b, last(104, 8), c], (1, vec![(R::FragmentEnd, 1)], 0)),
        ("nothing in the middle", vec![a, part(104, 0), b, c], (1, vec![(R::FragmentEmpty, 1)], 0)),
        ("nothing at first", vec![part(104, 0)], (0, vec![(R::FragmentEmpty, 1)], 0)),
        ("a length that is no multiple of 8", vec![a, part(104, 103), b, c], (0, vec![(R::FragmentLength, 1)], 1)),
        ("such a length at first", vec![part(0, 103)], (0, vec![], 1)),
        ("beyond 65535", vec![a, last(65_528, 8), b, c], (1, vec![(R::FragmentTooLong, 1)], 0)),
        ("without a whole UDP header", vec![part(0, 4)], (0, vec![], 1)),
        ("a contradiction in ECN", vec![a, Piece { tos: 3, ..b }, c], (0, vec![(R::FragmentEcn, 3)], 0)),
        ("an atomic one", vec![last(0, 100)], (1, vec![], 0)),
        ("an atomic fragment between others", vec![a, last(0, 100), b, c], (2, vec![], 0)),
    ];
    for (name, pieces, (delivered, dropped, passed)) in cases {
        let mut world = world_of(tracking(Hook::In, 0), Version::V6);
        world.send_all(&pieces);
        assert_eq!(world.delivered.len(), delivered, "{name}");
        assert_eq!((&world.dropped, world.passed.len()), (&dropped, passed), "{name}");
        assert_eq!((&world.refused[..], &world.counters), (&[][..], &Counters::ZERO), "{name}");
    }
}

#[test]
fn ipv6_tracking_reports_and_counts_timeouts() {
    let mut world = world_of(tracking(Hook::In, 0), Version::V6);
    world.send_all(&[part(0, 104), part(104, 8)]);
    assert_eq!(world.drain().len(), 1);
    assert_eq!(world.counters, Moved { fails: 1, timeouts: 1, ..Moved::default() }.counters(Version::V6));
}

#[test]
fn nested_fragment_goes_on_for_an_observer() {
    let nested = |piece: Piece| {
        let mut bytes = Piece { protocol: wire::Protocol::FRAGMENT, ..piece }.bytes(Version::V6);
        bytes[48..56].copy_from_slice(&[17, 0, 0, 0, 0, 0, 0, 9]);
        bytes
    };
    for pieces in [vec![part(0, 104), last(104, 8)], vec![last(0, 100)]] {
        let mut world = world_of(tracking(Hook::In, 0), Version::V6);
        for &piece in &pieces {
            let bytes = if piece.at == 0 { nested(piece) } else { piece.bytes(Version::V6) };
            world.send_packet(Packet::with_data(&world.mem, &bytes).unwrap(), &bytes);
        }
        assert_eq!((world.delivered.len(), world.refused.len()), (1, 0));
        let bytes = world.bytes().remove(0);
        assert_eq!((bytes[6], bytes[40]), (44, 17), "the inner fragment header is still there");
    }
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
fn timeout_names_the_context_of_its_datagram() {
    for user in USERS {
        let mut world = world_of(user, Version::V4);
        world.send(part(0, 104));
        let mut expired = Vec::new();
        let deadline = world.reassembly.poll_timeout().unwrap();
        world.reassembly.handle_timeout(deadline, |_| true, &mut world.counters, &mut expired);
        assert_eq!(expired[0].context, ReassemblyContext { user, domain: Domain::DEFAULT });
    }
}

#[test]
fn timeout_is_reported_for_link_of_last_fragment() {
    for version in BOTH {
        let mut world = World::new(version);
        for (piece, link) in [(part(0, 104), 3), (part(104, 8), 4)] {
            world.link = LinkId(link);
            world.send(piece);
        }
        let mut expired = Vec::new();
        let deadline = world.reassembly.poll_timeout().unwrap();
        // The first fragment's link may be removed by then.
        world.reassembly.handle_timeout(deadline, |it| it == LinkId(4), &mut world.counters, &mut expired);
        let links: Vec<_> = expired
            .into_iter()
            .map(|it| (it.origin.device(), it.first.map(|(pkt, _)| pkt.meta.origin.device())))
            .collect();
        assert_eq!(links, [(LinkId(4), Some(LinkId(4)))], "{version}");
    }
}

#[test]
fn timeout_of_removed_link_is_not_reported() {
    for (version, counted) in [(Version::V4, 1), (Version::V6, 0)] {
        for user in [User::Local, tracking(Hook::In, 0)] {
            let mut world = world_of(user, version);
            world.send(part(0, 104));
            let before = world.counters.clone();
            let mut expired = Vec::new();
            let deadline = world.reassembly.poll_timeout().unwrap();
            let World { reassembly, link, counters, .. } = &mut world;
            reassembly.handle_timeout(deadline, |it| it != *link, counters, &mut expired);
            assert!(expired[0].first.is_none() && expired[0].packets == 1);
            let requests = u64::from(before != Counters::ZERO);
            let moved = Moved { requests, fails: counted, timeouts: counted, ..Moved::default() };
            assert_eq!(world.counters, moved.counters(version), "{version}");
            assert_eq!(world.reassembly.memory(), 0);
        }
    }
}

//! Limits of memory, time and distance, and keys.

use std::time::Duration;

use base::{Domain, DropReason, Instant, Origin, PortId, SaId};
use packet::{Memory, Packet, Pool};
use reassembly::Policy;
use wire::Version;

use crate::world::{BOTH, Moved, Piece, World, last, limited, part};

/// Memory of a queue with one small fragment.
fn memory_of_one(version: Version) -> usize {
    let mut world = World::new(version);
    world.send(part(0, 104));
    world.reassembly.memory()
}

#[test]
fn full_table_refuses_new_datagrams_and_keeps_old_ones() {
    for version in BOTH {
        let one = memory_of_one(version);
        let high_thresh = 19 * one + one / 2;
        let mut world = World::with_config(version, limited(Policy::Linux, high_thresh, 0));
        for id in 0..40 {
            world.send(Piece { id, ..part(0, 104) });
        }
        assert_eq!((world.reassembly.queues(), world.reassembly.memory()), (20, 20 * one));
        let moved = Moved { requests: 40, fails: 20, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(version));
        world.send_all(&[part(0, 104), last(104, 8)]);
        let moved = Moved { requests: 42, fails: 22, ..moved };
        assert_eq!(world.counters, moved.counters(version));
        assert_eq!(world.dropped, vec![(DropReason::FragmentMemory, 1); 22]);
        // Even a fragment that would complete a datagram is refused; only timeouts free memory.
        world.send(Piece { id: 7, ..last(104, 8) });
        assert!(world.delivered.is_empty());
        world.drain();
        world.send_all(&[part(0, 104), last(104, 8)]);
        assert_eq!(world.bytes(), [part(0, 0).whole(version, 112)]);
        assert_eq!(world.reassembly.memory(), 0);
    }
}

#[test]
fn memory_may_pass_the_limit_by_one_fragment() {
    let one = memory_of_one(Version::V4);
    let mut world = World::with_config(Version::V4, limited(Policy::Linux, one, 64));
    for id in 0..3 {
        world.send(Piece { id, ..part(0, 104) });
    }
    assert_eq!(world.reassembly.memory(), 2 * one, "the second came when just as much was used as may be");
}

#[test]
fn a_limit_of_zero_refuses_all() {
    for (version, policy) in [(BOTH[0], Policy::Linux), (BOTH[1], Policy::Linux), (BOTH[0], Policy::Fair)] {
        let mut world = World::with_config(version, limited(policy, 0, 64));
        world.send_all(&[part(0, 104), last(104, 8)]);
        let moved = Moved { requests: 2, fails: 2, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(version));
        assert_eq!((world.reassembly.queues(), world.reassembly.memory()), (0, 0));
    }
}

#[test]
fn new_configuration_applies_to_waiting_fragments() {
    for version in BOTH {
        let one = memory_of_one(version);
        let mut world = World::with_config(version, limited(Policy::Linux, 100 * one, 0));
        for id in 0..10 {
            world.now = Instant::ZERO + Duration::from_secs(id.into());
            world.send(Piece { id, ..part(0, 104) });
        }
        let configure = |world: &mut World, policy, high_thresh, secs| {
            let mut config = limited(policy, high_thresh, 0);
            config.v4.timeout = Duration::from_secs(secs);
            config.v6.timeout = Duration::from_secs(secs);
            world.reassembly.configure(config, &mut world.counters);
            world.reassembly.check_invariants();
            world.reassembly.drain_evicted().map(|gone| gone.packets).sum::<u64>()
        };
        // Waiting datagrams lose nothing until they time out, and no fragment is added.
        assert_eq!(configure(&mut world, Policy::Linux, 4 * one, 12), 0);
        assert_eq!(world.reassembly.poll_timeout(), Some(Instant::ZERO + Duration::from_secs(12)));
        world.send(Piece { id: 99, ..part(0, 104) });
        assert_eq!((world.reassembly.queues(), &world.dropped[..]), (10, &[(DropReason::FragmentMemory, 1)][..]));
        assert_eq!(configure(&mut world, Policy::Fair, 4 * one, 12), 6, "the six that are oldest");
        assert_eq!(world.counters, Moved { requests: 11, fails: 7, ..Moved::default() }.counters(version));
        let mut expired = Vec::new();
        let at = Instant::ZERO + Duration::from_secs(6 + 12);
        world.reassembly.handle_timeout(at, |_| true, &mut world.counters, &mut expired);
        assert_eq!((expired.len(), world.reassembly.queues()), (1, 3));
        assert_eq!(configure(&mut world, Policy::Fair, 0, 12), 3);
        assert_eq!((world.reassembly.queues(), world.reassembly.memory()), (0, 0));
    }
}

#[test]
fn timeout_starts_with_the_first_received_fragment() {
    for (version, secs) in [(Version::V4, 30), (Version::V6, 60)] {
        let mut world = World::new(version);
        assert_eq!(world.reassembly.poll_timeout(), None);
        world.send(part(0, 104));
        let deadline = Instant::ZERO + Duration::from_secs(secs);
        world.now = Instant::ZERO + Duration::from_secs(secs - 1);
        world.send(part(104, 8));
        assert_eq!(world.reassembly.poll_timeout(), Some(deadline));
        let mut expired = Vec::new();
        let before = Instant::from_nanos(deadline.as_nanos() - 1);
        world.reassembly.handle_timeout(before, |_| true, &mut world.counters, &mut expired);
        assert_eq!((expired.len(), world.reassembly.queues()), (0, 1));
        world.reassembly.handle_timeout(deadline, |_| true, &mut world.counters, &mut expired);
        assert_eq!((expired.len(), world.reassembly.queues()), (1, 0));
        assert_eq!((expired[0].packets, world.reassembly.poll_timeout()), (2, None));
    }
}

#[test]
fn datagrams_time_out_in_the_order_of_their_deadlines() {
    let mut world = World::with_config(Version::V4, limited(Policy::Fair, 4 << 20, 0));
    for id in 0..5 {
        world.now = Instant::from_nanos(id.into());
        world.send(Piece { id, ..part(0, 104) });
    }
    world.send(Piece { id: 2, ..last(104, 8) });
    assert_eq!(world.delivered.len(), 1, "one leaves from the middle");
    world.send(Piece { id: 0, ..last(104, 8) });
    world.send(Piece { id: 4, ..last(104, 8) });
    let mut expired = Vec::new();
    let mut left = Vec::new();
    while let Some(deadline) = world.reassembly.poll_timeout() {
        world.reassembly.handle_timeout(deadline, |_| true, &mut world.counters, &mut expired);
        left.push((deadline.since(Instant::ZERO + Duration::from_secs(30)).as_nanos(), world.reassembly.queues()));
    }
    assert_eq!(left, [(1, 1), (3, 0)]);
    let ids: Vec<_> = expired.iter().map(|it| it.first.as_ref().map(|(_, info)| info.id)).collect();
    assert_eq!(ids, [Some(1), Some(3)]);
}

#[test]
fn queue_is_emptied_beyond_distance_of_64() {
    let others = |world: &mut World, count: u32| (0..count).for_each(|n| world.send(Piece { id: n, ..part(0, 104) }));
    let (first, end) = (part(0, 104), last(104, 8));
    for (count, far) in [(63, false), (64, true), (80, true)] {
        let mut world = World::new(Version::V4);
        world.send(first);
        others(&mut world, count);
        world.send(end);
        let moved = Moved { requests: u64::from(count) + 2, ..Moved::default() };
        if far {
            assert_eq!(world.counters, Moved { fails: 1, ..moved }.counters(Version::V4), "{count} others");
            assert_eq!(world.dropped, [(DropReason::FragmentDistance, 1)]);
            assert!(world.delivered.is_empty());
            world.send(first);
        } else {
            assert_eq!(world.counters, Moved { oks: 1, ..moved }.counters(Version::V4), "{count} others");
        }
        assert_eq!(world.bytes(), [first.whole(Version::V4, 112)], "{count} others");
    }
}

#[test]
fn distance_is_per_ipv4_source_and_may_be_unlimited() {
    let cases = [
        (Version::V4, 64, 9, true),
        (Version::V4, 0, 1, true),
        (Version::V4, 64, 1, false),
        (Version::V6, 64, 1, true),
    ];
    for (version, max_distance, other_src, delivered) in cases {
        let mut world = World::with_config(version, limited(Policy::Fair, 4 << 20, max_distance));
        world.send(part(0, 104));
        (0..80).for_each(|id| world.send(Piece { id, src: other_src, ..part(0, 104) }));
        world.send(last(104, 8));
        assert_eq!(
            world.delivered.len(),
            usize::from(delivered),
            "{version}, at most {max_distance}, from {other_src}"
        );
    }
}

#[test]
fn distance_of_a_source_is_counted_per_domain() {
    for (domain, delivered) in [(7, true), (0, false)] {
        let mut world = World::new(Version::V4);
        world.send(part(0, 104));
        world.context.domain = Domain::vrf(PortId(domain));
        (0..80).for_each(|id| world.send(Piece { id, ..part(0, 104) }));
        world.context.domain = Domain::DEFAULT;
        world.send(last(104, 8));
        assert_eq!(world.delivered.len(), usize::from(delivered), "80 others in domain {domain}");
    }
}

#[test]
fn a_restarted_queue_remembers_its_largest_fragment() {
    let df = |piece: Piece| Piece { dont_fragment: true, ..piece };
    for (largest, want) in [(104, true), (288, false)] {
        let mut world = World::new(Version::V4);
        world.send(part(104, largest));
        (0..80).for_each(|id| world.send(Piece { id, ..part(0, 8) }));
        world.send_all(&[df(part(0, 104)), df(last(104, 96))]);
        assert_eq!(world.bytes(), [Piece { dont_fragment: want, ..part(0, 0) }.whole(Version::V4, 200)]);
    }
}

#[test]
fn restarted_queue_has_a_new_deadline() {
    let mut world = World::new(Version::V4);
    world.send(part(0, 104));
    world.now = Instant::ZERO + Duration::from_secs(10);
    (0..80).for_each(|id| world.send(Piece { id, ..part(0, 104) }));
    world.now = Instant::ZERO + Duration::from_secs(20);
    world.send(part(104, 8));
    let mut expired = Vec::new();
    let early = Instant::ZERO + Duration::from_secs(49);
    world.reassembly.handle_timeout(early, |_| true, &mut world.counters, &mut expired);
    assert_eq!((expired.len(), world.reassembly.queues()), (80, 1));
    assert_eq!(world.reassembly.poll_timeout(), Some(Instant::ZERO + Duration::from_secs(50)));
}

//= test RFC 8200 §4.5 same-datagram
#[test]
fn datagrams_that_differ_in_their_key_are_kept_apart() {
    type Change = fn(&mut Piece);
    let changes: [(&str, Change, bool); 5] = [
        ("nothing", |_| {}, true),
        ("source", |piece| piece.src = 9, false),
        ("destination", |piece| piece.dst = 9, false),
        ("identification", |piece| piece.id ^= 0x100, false),
        ("protocol", |piece| piece.protocol = wire::Protocol::TCP, false),
    ];
    for version in BOTH {
        for (name, change, joins) in changes {
            let mut end = last(104, 96);
            change(&mut end);
            let mut world = World::new(version);
            world.send_all(&[part(0, 104), end]);
            // The next header of a later IPv6 fragment is not in the key.
            let joins = joins || version == Version::V6 && name == "protocol";
            assert_eq!(world.delivered.len(), usize::from(joins), "{name}, {version}");
        }
    }
}

#[test]
fn ipv6_identifications_have_32_bits() {
    let mut world = World::new(Version::V6);
    world.send_all(&[part(0, 104), Piece { id: 0x0001_1234, ..last(104, 96) }]);
    assert_eq!(world.reassembly.queues(), 2);
}

#[test]
fn fragments_of_two_links_join_unless_destination_is_local() {
    let cases = [
        ("192.0.2.2", true),
        ("2001:db8::2", true),
        ("fd00::2", true),
        ("fe80::2", false),
        ("ff02::1", false),
        ("ff0e::1", false),
    ];
    for (dst, joins) in cases {
        let dst: std::net::IpAddr = dst.parse().unwrap();
        let mut world = World::new(Version::of_addr(dst));
        for (piece, link) in [(part(0, 104), 3), (last(104, 96), 4)] {
            let mut bytes = piece.bytes(world.version);
            match dst {
                std::net::IpAddr::V4(dst) => bytes[16..20].copy_from_slice(&dst.octets()),
                std::net::IpAddr::V6(dst) => bytes[24..40].copy_from_slice(&dst.octets()),
            }
            world.link = PortId(link);
            let pkt = Packet::with_data(&world.mem, &bytes).unwrap();
            world.send_packet(pkt, &bytes);
        }
        assert_eq!(world.delivered.len(), usize::from(joins), "{dst}");
        assert!(world.delivered.iter().all(|pkt| pkt.meta.origin.device() == PortId(4)), "the last piece's link");
    }
}

#[test]
fn fragments_of_an_sa_are_not_mixed_with_others() {
    for version in BOTH {
        let mut world = World::new(version);
        let send = |world: &mut World, piece: Piece, path: &[u32]| {
            let bytes = piece.bytes(version);
            let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
            pkt.meta.sec_path.extend(path.iter().map(|&id| SaId(id)));
            world.send_packet(pkt, &bytes);
        };
        send(&mut world, part(0, 104), &[5]);
        send(&mut world, last(104, 96), &[]);
        send(&mut world, Piece { change: 1, ..part(96, 16) }, &[]);
        send(&mut world, last(104, 96), &[6]);
        send(&mut world, last(104, 96), &[5, 6]);
        assert!(world.delivered.is_empty());
        send(&mut world, last(104, 96), &[5]);
        assert_eq!(world.bytes(), [part(0, 0).whole(version, 200)]);
        assert_eq!(world.delivered[0].meta.sec_path[..], [SaId(5)]);
    }
}

#[test]
fn datagram_without_memory_for_header_leaves_nothing() {
    for version in BOTH {
        let mut world = World::new(version);
        world.mem = Memory::new(Pool::bounded(Memory::SMALL, 2), Pool::heap(Memory::LARGE));
        let bytes = part(0, 104).bytes(version);
        let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
        let onlooker = pkt.clone_shared();
        world.send_packet(pkt, &bytes);
        world.send(last(104, 96));
        let moved = Moved { requests: 2, fails: 1, ..Moved::default() };
        assert_eq!(world.counters, moved.counters(version));
        assert_eq!(world.dropped, [(DropReason::NoMemory, 2)]);
        assert_eq!(world.reassembly.memory(), 0);
        assert_eq!(onlooker.to_vec(), bytes);
    }
}

#[test]
fn a_packet_that_is_no_fragment_is_whole_and_not_counted() {
    for version in BOTH {
        let mut world = World::new(version);
        let bytes = part(0, 0).whole(version, 100);
        let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
        pkt.meta.origin = Origin::Port(world.link).into();
        let info = wire::ip::Info::parse(&bytes, bytes.len()).unwrap();
        let World { reassembly, now, mem, context, counters, .. } = &mut world;
        let verdict = reassembly.handle_fragment(*now, mem, *context, pkt, &info, counters);
        assert!(matches!(verdict, reassembly::Verdict::Whole { pkt, .. } if pkt.to_vec() == bytes));
        assert_eq!(world.counters, base::Counters::ZERO);
    }
}

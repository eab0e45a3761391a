//! 6LoWPAN: its own keys, sizes and rules (RFC 4944 §5.3).

use base::{DropReason, LinkId, Origin};
use packet::Packet;
use reassembly::{LinkAddr, LowpanInfo, Policy, Station, Table};
use wire::Version;

use crate::world::{World, limited, payload};

const SRC: LinkAddr = LinkAddr { pan: 0xabcd, station: Station::Extended(0x0200_0000_0000_0001) };
const DST: LinkAddr = LinkAddr { pan: 0xabcd, station: Station::Short(2) };

/// Bytes `at..at + len` of a datagram of `size` bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    info: LowpanInfo,
    at: usize,
    len: usize,
}

fn part(size: u16, at: usize, len: usize) -> Part {
    Part { info: LowpanInfo { src: SRC, dst: DST, size, tag: 7, offset: (at / 8) as u8 }, at, len }
}

fn world(policy: Policy) -> World {
    World::with_config(Version::V6, limited(policy, 4 << 20, 64))
}

fn send(world: &mut World, part: Part) {
    let bytes: Vec<u8> = payload(part.at, part.len).collect();
    let mut pkt = Packet::with_data(&world.mem, &bytes).unwrap();
    pkt.meta.origin = Origin::Port(world.link).into();
    world.sent += 1;
    let verdict = world.reassembly.handle_lowpan(world.now, &world.mem, pkt, &part.info);
    world.note(verdict, &bytes);
}

fn send_all(world: &mut World, parts: &[Part]) {
    parts.iter().for_each(|&part| send(world, part));
}

/// A datagram of `size` bytes in pieces of 96, as a frame of 127 bytes takes them.
fn train(size: u16) -> Vec<Part> {
    let starts = (0..usize::from(size)).step_by(96);
    starts.map(|at| part(size, at, 96.min(usize::from(size) - at))).collect()
}

fn whole(size: u16) -> Vec<u8> {
    payload(0, size.into()).collect()
}

#[test]
fn pieces_in_order_make_a_datagram_and_are_not_joined_for_good() {
    for policy in [Policy::Fair, Policy::Linux] {
        for size in [40, 41, 96, 97, 1279, 1280] {
            let mut world = world(policy);
            send_all(&mut world, &train(size));
            assert_eq!(world.bytes(), [whole(size)], "{size}");
            assert_eq!(world.delivered[0].frag_list().len(), train(size).len() - 1);
            assert_eq!(world.mem.copies().total_bytes(), 0);
            assert_eq!(world.counters, base::Counters::ZERO);
            assert_eq!(world.reassembly.memory(), 0);
        }
    }
}

#[test]
fn pieces_may_come_in_any_order_but_under_linuxs_policy() {
    let mut order = train(1280);
    order.swap(3, 9);
    order.swap(0, 5);
    let mut ours = world(Policy::Fair);
    send_all(&mut ours, &order);
    assert_eq!(ours.bytes(), [whole(1280)]);
    let mut linux = world(Policy::Linux);
    send_all(&mut linux, &order);
    assert!(linux.delivered.is_empty());
    assert!(linux.dropped.iter().all(|&it| it == (DropReason::FragmentOverlap, 1)));
    // A duplicate is dropped alone: its datagram is still delivered.
    let mut linux = world(Policy::Linux);
    send_all(&mut linux, &[part(200, 0, 96), part(200, 96, 96), part(200, 0, 96), part(200, 192, 8)]);
    assert_eq!(linux.bytes(), [whole(200)]);
    assert_eq!(linux.dropped, [(DropReason::FragmentOverlap, 1)]);
}

#[test]
fn duplicate_is_dropped_alone_overlap_ends_datagram() {
    let mut duplicate = world(Policy::Fair);
    send_all(&mut duplicate, &[part(200, 0, 96), part(200, 0, 96), part(200, 96, 96), part(200, 192, 8)]);
    assert_eq!(duplicate.bytes(), [whole(200)]);
    assert_eq!(duplicate.dropped, [(DropReason::FragmentDuplicate, 1)]);
    let mut overlap = world(Policy::Fair);
    send_all(&mut overlap, &[part(200, 0, 96), part(200, 88, 96), part(200, 96, 96), part(200, 192, 8)]);
    assert!(overlap.delivered.is_empty());
    assert_eq!(overlap.dropped, [(DropReason::FragmentOverlap, 2)]);
    send(&mut overlap, part(200, 0, 96));
    assert_eq!(overlap.bytes(), [whole(200)], "what came after it is there");
}

#[test]
fn fragment_outside_its_datagram_is_dropped_alone() {
    let cases = [
        (part(39, 0, 8), DropReason::FragmentTooLong),
        (part(1281, 0, 96), DropReason::FragmentTooLong),
        (part(2047, 0, 96), DropReason::FragmentTooLong),
        (part(200, 192, 9), DropReason::FragmentEnd),
        (part(200, 2040, 8), DropReason::FragmentEnd),
        (part(200, 96, 0), DropReason::FragmentEmpty),
        (part(200, 96, 95), DropReason::FragmentLength),
    ];
    for (piece, reason) in cases {
        let mut world = world(Policy::Fair);
        send_all(&mut world, &[part(200, 0, 96), piece, part(200, 96, 96), part(200, 192, 8)]);
        assert_eq!(world.dropped, [(reason, 1)], "{piece:?}");
        assert_eq!(world.bytes(), [whole(200)], "{piece:?}");
    }
}

#[test]
fn tag_size_station_and_link_tell_datagrams_apart() {
    type Change = fn(&mut Part);
    let changes: [(&str, Change); 7] = [
        ("tag", |it| it.info.tag += 1),
        ("size", |it| it.info.size += 8),
        ("source", |it| it.info.src.station = Station::Extended(2)),
        ("network", |it| it.info.src.pan = 1),
        ("kind of address", |it| it.info.src.station = Station::Short(1)),
        ("destination", |it| it.info.dst.station = Station::Short(3)),
        ("kind of destination", |it| it.info.dst.station = Station::Extended(2)),
    ];
    for (name, change) in changes {
        let mut other = part(192, 96, 96);
        change(&mut other);
        let mut world = world(Policy::Fair);
        send_all(&mut world, &[part(192, 0, 96), other]);
        assert!(world.delivered.is_empty(), "{name}");
    }
    let mut world = world(Policy::Fair);
    send(&mut world, part(192, 0, 96));
    world.link = LinkId(9);
    send(&mut world, part(192, 96, 96));
    assert!(world.delivered.is_empty(), "link");
}

#[test]
fn a_datagram_times_out_in_silence_and_has_a_limit_of_its_own() {
    let mut world = World::with_config(Version::V6, limited(Policy::Linux, 1, 0));
    world.send(crate::world::part(0, 104));
    send(&mut world, part(192, 0, 96));
    assert_eq!(world.reassembly.usage(Table::Lowpan).queues, 1);
    send(&mut world, Part { info: LowpanInfo { tag: 8, ..part(192, 0, 96).info }, ..part(192, 0, 96) });
    assert_eq!(world.dropped, [(DropReason::FragmentMemory, 1)]);
    let mut expired = Vec::new();
    let deadline = world.reassembly.poll_timeout().unwrap();
    assert_eq!(deadline.since(world.now).as_secs(), 60);
    let before = world.counters.clone();
    world.reassembly.handle_timeout(deadline, |_| false, &mut world.counters, &mut expired);
    assert_eq!(world.counters, before, "IPv6 does not count either, its link being gone");
    assert!(expired.iter().all(|it| it.first.is_none()));
    assert_eq!(world.reassembly.memory(), 0);
}

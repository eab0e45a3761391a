//! Invariants after each of any sequence of operations, of all users and tables.

use base::Origin;
use std::time::Duration;

use reassembly::{Coalesce, Config, Policy, User};
use wire::Version;

use super::shaped;
use super::world::{BOTH, Piece, World, limited, part};

/// An operation: kind, datagram, offset, length.
pub(crate) type OpStep = (u8, u8, u8, u8);

/// Contexts.
const USERS: [User; 3] = [User::Local, User::Output, User::Host];

/// Treatments of pages.
const WAYS: [Coalesce; 3] = [Coalesce::Off, Coalesce::Move, Coalesce::Copy];

/// Charge for one fragment besides itself: its queue, and a page with room for others.
const ONE: usize = packet::Memory::SMALL + 4096;

/// Runs these steps with this limit for every table. The limit also selects the treatment of pages.
pub(crate) fn run(policy: Policy, limit: usize, steps: &[OpStep]) {
    let coalesce = WAYS[limit % WAYS.len()];
    let mut world = World::with_config(Version::V4, Config { coalesce, ..limited(policy, limit, 64) });
    let mut largest = 0;
    for &(kind, who, at, len) in steps {
        let truesize = match kind % 16 {
            0 => advance(&mut world, Duration::from_secs(len.into())),
            15 if who > 200 => configure(&mut world, policy, limit, at),
            _ => fragment(&mut world, kind, who, at, len),
        };
        largest = largest.max(truesize);
        world.reassembly.check_invariants();
        for version in BOTH {
            let usage = world.reassembly.usage(version);
            let allowed = if policy == Policy::Fair { limit } else { limit + ONE + largest };
            assert!(usage.memory <= allowed, "{usage:?} of {allowed}, {policy:?}");
            assert_eq!(usage.memory == 0, usage.queues == 0, "{usage:?}");
        }
        assert_eq!(world.reassembly.poll_timeout().is_some(), world.reassembly.queues() > 0);
    }
    world.drain();
    world.assert_pages_came_home();
}

fn advance(world: &mut World, time: Duration) -> usize {
    world.now = world.now + time;
    let mut expired = Vec::new();
    world.reassembly.handle_timeout(world.now, |_| true, &mut world.counters, &mut expired);
    assert!(expired.iter().all(|it| it.packets > 0 && it.origin == Origin::Port(world.link)));
    assert!(world.reassembly.poll_timeout().is_none_or(|at| at > world.now));
    0
}

/// Another treatment of pages, and another timeout.
fn configure(world: &mut World, policy: Policy, limit: usize, how: u8) -> usize {
    let mut config = Config { coalesce: WAYS[usize::from(how) % WAYS.len()], ..limited(policy, limit, 64) };
    config.v4.timeout = Duration::from_secs(how.into());
    world.reassembly.configure(config, &mut world.counters);
    0
}

fn fragment(world: &mut World, kind: u8, who: u8, at: u8, len: u8) -> usize {
    world.version = if kind & 16 == 0 { Version::V4 } else { Version::V6 };
    world.context.user = USERS[usize::from(who) % USERS.len()];
    let at = usize::from(at) * 8;
    let len = if len < 128 { usize::from(len) * 8 } else { usize::from(len) };
    let piece = Piece {
        id: u32::from(who >> 6),
        src: kind >> 5,
        more: kind & 1 == 0,
        tos: if who == 255 { 3 } else { 0 },
        change: who,
        ..part(at, len)
    };
    let bytes = piece.bytes(world.version);
    let pkt = shaped(&world.mem, &bytes, who);
    let truesize = pkt.truesize();
    world.send_packet(pkt, &bytes);
    truesize
}

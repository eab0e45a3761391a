//! Bursts of fragments by the batch path and one by one: both must have the same outcome.

use std::time::Duration;

use base::{Origin, PortId};
use packet::{Burst, Csum, Packet};
use reassembly::{Coalesce, Config, Policy, Train};
use wire::ip::Info;
use wire::{Protocol, Version};

use super::world::{BOTH, LINK, Piece, World, limited, part};

/// Bytes of a link-layer header in front of each fragment.
const L3: usize = 14;

/// A fragment in a burst.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coming {
    pub(crate) piece: Piece,
    pub(crate) link: PortId,
    pub(crate) csum: Csum,
    /// Trailing bytes, as Ethernet pads.
    pub(crate) padding: usize,
}

/// State after either path.
pub(crate) type Outcome = (Vec<(Vec<u8>, usize, usize, Csum, PortId)>, [String; 3], Vec<(usize, usize)>, u64);

pub(crate) fn outcome(world: &World) -> Outcome {
    let whole = |pkt: &Packet| {
        (pkt.to_vec(), pkt.frags().len(), pkt.frag_list().len(), pkt.meta.csum, pkt.meta.origin.device())
    };
    let outcome = [format!("{:?}", world.dropped), format!("{:?}", world.refused), format!("{:?}", world.counters)];
    let usage = BOTH.map(|version| world.reassembly.usage(version)).map(|usage| (usage.queues, usage.memory));
    let copied = world.mem.copies().total_bytes();
    (world.delivered.iter().map(whole).collect(), outcome, usage.to_vec(), copied)
}

fn packet(world: &World, coming: &Coming) -> (Packet, Vec<u8>) {
    let bytes = coming.piece.bytes(world.version);
    let framed = [&[0xee; L3], &bytes[..], &vec![0; coming.padding]].concat();
    let mut pkt = Packet::with_data(&world.mem, &framed).unwrap();
    pkt.meta.origin = Origin::Port(coming.link).into();
    pkt.meta.csum = coming.csum;
    (pkt, bytes)
}

/// Sends fragments one by one.
fn send_plain(world: &mut World, burst: &[Coming]) {
    for coming in burst {
        let (mut pkt, bytes) = packet(world, coming);
        pkt.pull(L3);
        pkt.trim(bytes.len());
        world.link = coming.link;
        if Info::parse(&bytes, bytes.len()).is_ok() {
            world.send_packet(pkt, &bytes);
        }
    }
}

/// Sends fragments as bursts. Returns the number of fragments in trains.
fn send_burst(world: &mut World, burst: &[Coming]) -> u64 {
    let mut packets: Vec<Packet> = burst.iter().map(|coming| packet(world, coming).0).collect();
    let mut packets = Burst::new(&mut packets);
    let mut together = 0;
    while let Some(first) = packets.first() {
        let World { now, mem, counters, reassembly, .. } = world;
        let train = Train::of(first, L3);
        let taken =
            train.and_then(|train| reassembly.handle_train(*now, mem, &train, &mut packets, |_| Some(L3), counters));
        if let Some((fragments, verdict)) = taken {
            assert!(fragments > 0, "a train of nothing");
            together += fragments;
            world.note(verdict, &[]);
            continue;
        }
        let Some(mut pkt) = packets.next() else { break };
        pkt.pull(L3);
        world.link = pkt.meta.origin.device();
        let bytes = pkt.to_vec();
        if let Ok(info) = Info::parse(&bytes, bytes.len()) {
            pkt.trim(info.total_len);
            world.send_packet(pkt, &bytes[..info.total_len]);
        }
    }
    together
}

/// Sends bursts both ways, compares the outcomes, and returns the number of fragments in trains.
pub(crate) fn both_ways(version: Version, config: Config, bursts: &[Vec<Coming>]) -> u64 {
    let [mut plain, mut fast] = [(); 2].map(|()| World::with_config(version, config));
    let mut together = 0;
    for (n, burst) in bursts.iter().enumerate() {
        send_plain(&mut plain, burst);
        together += send_burst(&mut fast, burst);
        assert_eq!(outcome(&fast), outcome(&plain), "after burst {n}, {version}");
        for world in [&mut plain, &mut fast] {
            world.now = world.now + Duration::from_millis(1);
        }
    }
    assert_eq!(expired(&mut fast), expired(&mut plain), "at the end, {version}");
    [plain, fast].iter_mut().for_each(World::assert_pages_came_home);
    together
}

/// Timed out datagrams: number of fragments, origin of the last, and bytes of the first.
fn expired(world: &mut World) -> Vec<(u64, Origin, Option<Vec<u8>>)> {
    let mut expired = Vec::new();
    while let Some(at) = world.reassembly.poll_timeout() {
        world.reassembly.handle_timeout(at, |_| true, &mut world.counters, &mut expired);
    }
    expired.into_iter().map(|it| (it.packets, it.origin, it.first.map(|(pkt, _)| pkt.to_vec()))).collect()
}

/// One fragment: its form, datagram, offset, length.
pub(crate) type TrainStep = (u8, u8, u8, u8);

/// Sends fragments both ways, in bursts whose ends are part of the steps.
pub(crate) fn run(policy: Policy, limit: usize, how: u8, steps: &[TrainStep]) {
    let mut bursts = vec![Vec::new()];
    for &(kind, who, at, len) in steps {
        if kind == u8::MAX {
            bursts.push(Vec::new());
            continue;
        }
        let len = match len % 8 {
            0..4 => 640,
            4 => 1280,
            5 => usize::from(len),
            _ => 5 * usize::from(len),
        };
        let piece = Piece {
            more: kind % 4 > 0,
            id: u32::from(who % 3),
            src: 1 + who / 64,
            tos: if kind % 32 == 5 { 2 } else { 0 },
            dont_fragment: kind % 32 == 6,
            reserved: if kind % 32 == 7 { kind } else { 0 },
            change: kind / 128,
            protocol: if who % 8 == 7 { Protocol::ESP } else { Protocol::UDP },
            ..part(usize::from(at % 40) * 640 + usize::from(at / 250) * 8, len)
        };
        let coming = Coming {
            piece,
            link: PortId(LINK.0 + u32::from(kind % 64 == 9)),
            csum: if kind % 32 == 10 { Csum::None } else { Csum::Unnecessary },
            padding: usize::from(kind % 32 == 11),
        };
        bursts.last_mut().expect("one at least").push(coming);
    }
    let coalesce = [Coalesce::Move, Coalesce::Copy, Coalesce::Off][usize::from(how % 3)];
    for version in BOTH {
        both_ways(version, Config { coalesce, ..limited(policy, limit, how.into()) }, &bursts);
    }
}

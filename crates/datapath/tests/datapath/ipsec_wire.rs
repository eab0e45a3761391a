//! ESP over wires that lose, reorder and duplicate packets: received data is correct, and no packet is delivered twice.

use std::time::Duration;

use base::{DropReason, Mib};
use sim::{Medium, Wire};

use crate::common::*;
use crate::gateways::*;

const SEGMENTS: usize = 40;

#[test]
fn duplicate_frame_is_accepted_once() {
    for tunnel in TUNNELS {
        let [flow, _] = flows();
        let mut world = tunnelled(tunnel, 1);
        let medium = if tunnel.udp { Medium::UdpSocket } else { Medium::Cable };
        world.set_wire(WIRE, Wire::new(medium, 1500).troubled(0, 0, 1000, 0));
        let mss = tunnel.mss(&flow);
        let pkt = flow.fat_tcp(&world.hosts[0].mem, 0, SEGMENTS * usize::from(mss), mss);
        world.hosts[0].send(pkt);
        world.run(Duration::from_secs(1));
        let mut received = Received::default();
        world.hosts[1].take().iter().for_each(|pkt| received.take(&flow, pkt));
        assert_eq!(received.bytes, SEGMENTS * usize::from(mss), "{tunnel:?}");
        let node = &world.nodes[1];
        assert_eq!(node.datapath.counters.get(Mib::XfrmInStateSeqError), SEGMENTS as u64, "{tunnel:?}");
        assert_eq!(node.drops(), [(2, DropReason::EspReplay, SEGMENTS as u64)], "{tunnel:?}");
    }
}

#[test]
fn bytes_over_a_bad_wire_arrive_right_and_once() {
    for seed in 0..12 {
        for tunnel in TUNNELS {
            bad_day(tunnel, seed);
        }
    }
}

/// Sends 100 fat packets each way over a bad wire, and accounts for every segment.
fn bad_day(tunnel: Tunnel, seed: u64) {
    let [v4, v6] = flows();
    let there = if seed.is_multiple_of(2) { v4 } else { v6 };
    let ways = [there, there.reversed()];
    let mut world = tunnelled(tunnel, seed);
    let medium = if tunnel.udp { Medium::UdpSocket } else { Medium::Cable };
    world.set_wire(WIRE, Wire::new(medium, 1500).troubled(20, 50, 20, 100));
    let mss = tunnel.mss(&there);
    let size = SEGMENTS * usize::from(mss);
    let mut received = [Received::default(), Received::default()];
    for at in 0..100 {
        for (from, flow) in ways.iter().enumerate() {
            let pkt = flow.fat_tcp(&world.hosts[from].mem, (at * size) as u32, size, mss);
            world.hosts[from].send(pkt);
        }
        world.run(Duration::from_micros(200));
        for (from, flow) in ways.iter().enumerate() {
            world.hosts[1 - from].take().iter().for_each(|pkt| received[from].take(flow, pkt));
        }
    }
    world.run(Duration::from_secs(1));
    for (from, flow) in ways.iter().enumerate() {
        world.hosts[1 - from].take().iter().for_each(|pkt| received[from].take(flow, pkt));
    }
    let stats = world.stats[WIRE];
    assert_eq!(stats.frames, 2 * 100 * SEGMENTS as u64, "{tunnel:?}");
    assert!(stats.lost > 0 && stats.twice > 0 && stats.busy > 0, "{stats:?}");
    let bytes = (received[0].bytes + received[1].bytes) as u64;
    assert_eq!(bytes, (stats.frames - stats.lost) * u64::from(mss), "{tunnel:?} {stats:?}");
    let refused: u64 = world.nodes.iter().map(|node| node.datapath.counters.get(Mib::XfrmInStateSeqError)).sum();
    assert_eq!(refused, stats.twice, "{tunnel:?}");
    let drops: Vec<_> = world.nodes.iter().flat_map(sim::Node::drops).collect();
    assert!(drops.iter().all(|&(link, reason, _)| (link, reason) == (2, DropReason::EspReplay)), "{drops:?}");
    assert_eq!(drops.iter().map(|drop| drop.2).sum::<u64>(), stats.twice, "{tunnel:?}");
    for node in &world.nodes {
        assert_eq!(node.pages_in_use(), 0, "{tunnel:?}");
    }
}

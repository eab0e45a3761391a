//! ESP by a device at one end and by software at the other: each decrypts the other's packets, over good and bad wires.

use std::time::Duration;

use base::Counters;
use sim::{Faults, Flow, Medium, Node, SoftStats, Wire};
use xfrm::OffloadMode;

use super::{MODES, SEGMENTS, Secrets, fat, world_with};
use crate::common::*;
use crate::gateways::*;

const SECOND: Duration = Duration::from_secs(1);

/// The tunnels with ESP by a device: those without UDP.
const RAW: [Tunnel; 2] = [TUNNELS[0], TUNNELS[2]];

#[test]
fn a_device_and_software_understand_each_other_both_ways() {
    for mode in MODES {
        for tunnel in RAW {
            for there in flows() {
                let (mut world, device) = world_with(tunnel, mode, 1);
                let mss = tunnel.mss(&there);
                let mut secrets = Secrets::default();
                for (from, flow) in [there, there.reversed()].iter().enumerate() {
                    let pkt = fat(&world.nodes[from], flow, mss, 0);
                    secrets.note(&pkt);
                    world.hosts[from].send(pkt);
                    world.run(SECOND);
                    let got = world.hosts[1 - from].take();
                    let mut received = Received::default();
                    got.iter().for_each(|pkt| received.take(flow, pkt));
                    assert_eq!((received.bytes, got.len()), (SEGMENTS * usize::from(mss), 1), "{mode:?} {tunnel:?}");
                }
                assert_eq!(secrets.check_wire(&mut world), 2 * SEGMENTS);
                let n = SEGMENTS as u64;
                let want = SoftStats { sealed: n, opened: n, ..SoftStats::default() };
                assert_eq!(device.stats(), want, "{mode:?} {tunnel:?}");
                let ipsec = &mut world.nodes[0].datapath.ipsec;
                let sas: Vec<_> = ipsec.sad().iter().map(ipsec::Sa::id).collect();
                sas.into_iter().for_each(|sa| ipsec.update_stats(sa));
                let [near, far] = [0, 1].map(|at| {
                    let sas = world.nodes[at].datapath.ipsec.sad().iter();
                    sas.map(|sa| (sa.spi(), sa.stats().packets, sa.stats().bytes)).collect::<Vec<_>>()
                });
                assert_eq!(near, far, "{mode:?} {tunnel:?}");
                assert!(near.iter().all(|sa| sa.1 == n), "{near:?}");
                for node in &world.nodes {
                    assert_eq!((node.drops(), node.pages_in_use()), (vec![], 0), "{mode:?} {tunnel:?}");
                }
            }
        }
    }
}

#[test]
fn crypto_mode_counts_as_software_does() {
    let count = |mode: Option<OffloadMode>, tunnel: Tunnel, flow: &Flow| {
        let (mut world, device) = world_with(tunnel, OffloadMode::Crypto, 1);
        device.set_faults(Faults { busy: mode.is_none(), ..Faults::default() });
        for (from, flow) in [*flow, flow.reversed()].iter().enumerate() {
            let pkt = fat(&world.nodes[from], flow, tunnel.mss(flow), 0);
            world.hosts[from].send(pkt);
            world.run(SECOND);
        }
        let opened = device.stats().opened + device.stats().sealed;
        let counters: Vec<Counters> = world.nodes.iter().map(|node| node.datapath.counters.clone()).collect();
        let oseq: Vec<u64> = world.nodes[0].datapath.ipsec.sad().iter().map(ipsec::Sa::oseq).collect();
        (counters, oseq, opened)
    };
    for tunnel in RAW {
        for flow in flows() {
            let (offloaded, seqs, by_device) = count(Some(OffloadMode::Crypto), tunnel, &flow);
            let (software, want, not) = count(None, tunnel, &flow);
            assert_eq!((offloaded, seqs), (software, want), "{tunnel:?}");
            assert_eq!((by_device, not), (2 * SEGMENTS as u64, 0));
        }
    }
}

#[test]
fn device_crypto_tolerates_a_lossy_link_like_software() {
    for mode in MODES {
        for seed in 0..6 {
            let tunnel = RAW[seed as usize % 2];
            let [there, _] = flows();
            let (mut world, device) = world_with(tunnel, mode, seed);
            world.set_wire(WIRE, Wire::new(Medium::Cable, 1500).troubled(20, 50, 20, 100));
            let (mss, mut secrets) = (tunnel.mss(&there), Secrets::default());
            let ways = [there, there.reversed()];
            let mut received = [Received::default(), Received::default()];
            for at in 0..30 {
                for (from, flow) in ways.iter().enumerate() {
                    let pkt = fat(&world.nodes[from], flow, mss, at * SEGMENTS * usize::from(mss));
                    secrets.note(&pkt);
                    world.hosts[from].send(pkt);
                }
                // From time to time the device is busy.
                device.set_faults(Faults { busy: mode == OffloadMode::Crypto && at % 3 == 2, ..Faults::default() });
                world.run(Duration::from_micros(200));
            }
            world.run(SECOND);
            for (from, flow) in ways.iter().enumerate() {
                world.hosts[1 - from].take().iter().for_each(|pkt| received[from].take(flow, pkt));
            }
            secrets.check_wire(&mut world);
            let stats = world.stats[WIRE];
            let bytes = (received[0].bytes + received[1].bytes) as u64;
            assert_eq!(bytes, (stats.frames - stats.lost) * u64::from(mss), "{mode:?} {seed} {stats:?}");
            assert!(stats.lost > 0 && stats.twice > 0 && device.stats().sealed > 0 && device.stats().opened > 0);
            assert_eq!(world.nodes.iter().map(Node::pages_in_use).sum::<usize>(), 0, "{mode:?} {seed}");
        }
    }
}

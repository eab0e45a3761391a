//! The host's kernel as an oracle: the same fragments go into a TUN device of a namespace, and into [`Reassembly`]
//! under [`Policy::Linux`]; deliveries, counters and answers are compared case by case.
//!
//! Known differences, which are not compared: what one fragment is charged with (Linux counts its own structures), so
//! neither is which fragment is the first that finds memory full; and the empty queue that Linux keeps after it has
//! answered a first fragment with a parameter problem.
//!
//! [`Reassembly`]: reassembly::Reassembly
//! [`Policy::Linux`]: reassembly::Policy::Linux

mod cases;
mod headers;
mod host;
mod ring;
mod tshark;
#[expect(dead_code, reason = "the other tests send more than this one does")]
#[path = "../model/world.rs"]
mod world;

use std::thread::sleep;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use packet::Packet;
use reassembly::{Config, Limits, Policy};
use system::{Need, Outcome, trial};
use wire::Version;

use cases::{Seed, without_addresses};
use host::{Answer, Host, Seen};
use world::{BOTH, Piece, World, last, limited, part};

const NEEDS: &[Need] = &[Need::Namespaces, Need::Tun];
const RING_NEEDS: &[Need] = &[Need::Namespaces, Need::ETHTOOL];

/// Random cases of each family.
const CASES: u64 = 3000;

fn main() {
    let trials: Vec<Trial> = vec![
        trial("random_trains_end_as_in_the_kernel", NEEDS, random_trains),
        trial("timeouts_are_counted_and_answered_as_in_the_kernel", NEEDS, timeouts),
        trial("headers_inside_of_fragments_are_answered_as_by_the_kernel", NEEDS, headers::judge),
        trial("a_full_table_refuses_as_the_kernel_does", NEEDS, full),
        trial("long_datagrams_of_a_socket_arrive_by_a_ring_of_256_frames", RING_NEEDS, ring::every_datagram_arrives),
        trial(
            "ring_of_256_frames_is_exhausted_without_coalescing",
            RING_NEEDS,
            ring::a_ring_runs_dry_of_what_waits_unless_it_is_coalesced,
        ),
        trial("tshark_reassembles_our_fragments", &[Need::TSHARK], tshark::judge),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// Effects of fragments on this crate, as the host would show them.
fn ours(world: &mut World, fragments: &[Vec<u8>]) -> Seen {
    let before = world.counters.clone();
    let mut header_len = 0;
    for bytes in fragments {
        // Raw sockets of IPv6 get no headers.
        if world.version == Version::V6 {
            header_len = if bytes[6] == 0 { 48 } else { 40 };
        }
        let pkt = Packet::with_data(&world.mem, bytes).expect("memory for a test");
        world.send_packet(pkt, bytes);
    }
    let mut delivered: Vec<_> = world.delivered.drain(..).map(|whole| whole.to_vec().split_off(header_len)).collect();
    delivered.sort();
    let problem = |(_, code, pointer): world::Refused| Answer { kind: 4, code: code.0, pointer: pointer as u32 };
    let answers = world.refused.drain(..).map(problem).collect();
    world.dropped.clear();
    Seen { delivered, answers, moved: host::moved(world.version, |mib| world.counters.get(mib) - before.get(mib)) }
}

/// Fragments in wire format, with or without options.
fn plain_or_not(version: Version, options: bool, pieces: &[Piece]) -> Vec<Vec<u8>> {
    pieces.iter().map(|&piece| cases::bytes(version, options, without_addresses(piece))).collect()
}

fn random_trains() -> Outcome {
    for version in BOTH {
        let mut host = Host::new(version)?;
        host.set(&[
            "ipfrag_time=600",
            "ip6frag_time=600",
            "ipfrag_high_thresh=1000000000",
            "ip6frag_high_thresh=1000000000",
        ])?;
        let mut world = World::with_config(version, limited(Policy::Linux, 1_000_000_000, 64));
        let (mut delivered, mut answered) = (0, 0);
        for case in 0..CASES {
            let pieces = cases::train(Seed(case), version);
            let fragments = plain_or_not(version, case % 4 == 0, &pieces);
            let want = host.send(&fragments)?;
            let got = ours(&mut world, &fragments);
            assert_eq!(got, want, "{version}, case {case}: {pieces:#?}");
            delivered += got.delivered.len();
            answered += got.answers.len();
            if version == Version::V4 {
                let queues = world.reassembly.usage(Version::V4).queues;
                assert_eq!(queues, host.queues()?, "datagrams that wait after case {case}: {pieces:#?}");
            }
        }
        // A comparison without deliveries would prove nothing.
        assert!(delivered > CASES as usize / 4 && delivered < CASES as usize, "{delivered} delivered");
        assert!((answered > 50) == (version == Version::V6), "{answered} answered");
    }
    Ok(())
}

fn timeouts() -> Outcome {
    let cases =
        [vec![part(0, 104)], vec![part(104, 104), part(0, 104)], vec![part(104, 104)], vec![last(104, 96), part(8, 8)]];
    for version in BOTH {
        let mut host = Host::new(version)?;
        host.set(&["ipfrag_time=1", "ip6frag_time=1"])?;
        for pieces in &cases {
            let timeout = Duration::from_secs(1);
            let Config { v4, v6, .. } = Config::default();
            let [v4, v6] = [v4, v6].map(|limits| Limits { timeout, ..limits });
            let mut world = World::with_config(version, Config { v4, v6, policy: Policy::Linux, ..Config::default() });
            let fragments = plain_or_not(version, false, pieces);
            assert_eq!(ours(&mut world, &fragments), host.send(&fragments)?);
            let before = world.counters.clone();
            let kind = if version == Version::V4 { 11 } else { 3 };
            let quoted = world.drain().len();
            let answers = (0..quoted).map(|_| Answer { kind, code: 1, pointer: 0 }).collect();
            let moved = host::moved(version, |mib| world.counters.get(mib) - before.get(mib));
            let mut seen = Seen::default();
            for _ in 0..40 {
                sleep(Duration::from_millis(100));
                seen += host.seen()?;
                // The kernel counts before it answers.
                if seen.moved == moved && seen.answers.len() >= quoted {
                    break;
                }
            }
            assert_eq!(seen, Seen { delivered: vec![], answers, moved }, "{version}, {pieces:?}");
        }
    }
    Ok(())
}

fn full() -> Outcome {
    for version in BOTH {
        let mut host = Host::new(version)?;
        host.set(&["ipfrag_high_thresh=0", "ip6frag_high_thresh=0"])?;
        let mut world = World::with_config(version, limited(Policy::Linux, 0, 64));
        let atomic_or_whole = last(0, 100);
        let fragments = plain_or_not(version, false, &[part(0, 104), last(104, 96), atomic_or_whole]);
        assert_eq!(ours(&mut world, &fragments), host.send(&fragments)?, "{version}");
        // As many lone fragments as fit; then fragments of a good datagram are refused too.
        let one = {
            host.set(&["ipfrag_high_thresh=1000000", "ip6frag_high_thresh=1000000"])?;
            host.send(&plain_or_not(version, false, &[Piece { id: 999, ..part(0, 104) }]))?;
            host.memory()?
        };
        let mut world = World::with_config(version, Config::default());
        world.send(Piece { id: 999, ..part(0, 104) });
        let our_one = world.reassembly.memory();
        let pieces: Vec<_> =
            (1000..1040).map(|id| Piece { id, ..part(0, 104) }).chain([part(0, 104), last(104, 8)]).collect();
        host.set(&[&format!("ipfrag_high_thresh={}", 20 * one), &format!("ip6frag_high_thresh={}", 20 * one)])?;
        let mut world = World::with_config(version, limited(Policy::Linux, 20 * our_one, 0));
        world.send(Piece { id: 999, ..part(0, 104) });
        host.set(&["ipfrag_max_dist=0"])?;
        let fragments = plain_or_not(version, false, &pieces);
        assert_eq!(ours(&mut world, &fragments), host.send(&fragments)?, "{version}");
        assert_eq!(world.reassembly.queues(), host.queues()?);
    }
    Ok(())
}

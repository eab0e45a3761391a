//! Fragments for the node over a wire that loses, doubles, delays and reorders them, while time passes and its rules
//! change.

use std::collections::BTreeMap;
use std::time::Duration;

use base::{DropReason, Instant, Mib};
use packet::{Memory, Packet};
use reassembly::{Coalesce, Config, Policy, Reassembly, ReassemblyContext, Verdict};
use sim::{Flow, Rng};
use wire::Version;

use crate::common::*;
use crate::fragments::fragments;

const DATAGRAMS: u16 = 60;

/// A ping, and whether all its fragments arrive.
struct Ping {
    bytes: Vec<u8>,
    whole: bool,
}

/// Pings whose fragments arrive at random times; some are duplicated, some lost.
fn pings(flow: &Flow, mem: &Memory, rng: &mut Rng) -> (Vec<Ping>, Vec<(Duration, Vec<u8>)>) {
    let (mut all, mut arrivals) = (Vec::new(), Vec::new());
    for seq in 0..DATAGRAMS {
        let mut bytes = flow.ping(seq, 100 + rng.below(20_000));
        if flow.version() == Version::V4 {
            bytes = edit_v4(&bytes, |header| header.set_id(seq + 1));
        }
        let begin = rng.duration(Duration::from_secs(100));
        let mut whole = true;
        let cut = match flow.version() {
            Version::V4 => fragments(mem, &bytes, 576),
            Version::V6 => {
                let mut out = Vec::new();
                let packet = Packet::with_data(mem, &bytes).unwrap();
                reassembly::fragment_v6(mem, packet, 1280, seq.into(), &mut out).unwrap();
                out
            }
        };
        for fragment in cut {
            let copies = match rng.below(100) {
                0 => 0,
                1..5 => 2,
                _ => 1,
            };
            whole &= copies > 0;
            for _ in 0..copies {
                arrivals.push((begin + rng.duration(Duration::from_millis(900)), fragment.to_vec()));
            }
        }
        all.push(Ping { bytes, whole });
    }
    arrivals.sort();
    (all, arrivals)
}

/// The packets in these fragments, reassembled by another node.
fn answers(sent: Vec<Packet>, other: &mut Reassembly, mem: &Memory, now: Instant) -> Vec<Vec<u8>> {
    let mut counters = base::Counters::ZERO;
    let whole = sent.into_iter().filter_map(|pkt| {
        let info = info(&pkt);
        match other.handle_fragment(now, mem, ReassemblyContext::LOCAL, pkt, &info, &mut counters) {
            Verdict::Whole { pkt, .. } => Some(pkt.to_vec()),
            _ => None,
        }
    });
    whole.collect()
}

#[test]
fn ping_over_a_bad_wire_is_answered_right_or_not_at_all() {
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        for (src, dst) in [("10.2.0.1", "10.2.0.254"), ("fd00:2::1", "fd00:2::254")] {
            one_day(&Flow::new(src, dst), &mut rng, seed);
        }
    }
}

fn one_day(flow: &Flow, rng: &mut Rng, seed: u64) {
    let (mem, mut node, mut other) = (Memory::heap(), router(), Reassembly::default());
    let ways = [Coalesce::Move, Coalesce::Copy, Coalesce::Off];
    let configure = |coalesce| Config { policy: Policy::Fair, coalesce, max_distance: 0, ..Config::default() };
    node.datapath.set_reassembly(configure(ways[seed as usize % 3]));
    let (pings, arrivals) = pings(flow, &mem, rng);
    let mut heard: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
    let mut came = 0;
    for (at, bytes) in arrivals {
        let now = NOW + at;
        while let Some(due) = node.datapath.poll_timeout().filter(|&due| due <= now) {
            node.timeout(due);
        }
        if rng.happens(5) {
            node.datapath.set_reassembly(configure(*rng.pick(&ways)));
        }
        came += u64::from(info_of(&bytes).fragment.is_some());
        node.rx(now, OUTSIDE, vec![Packet::with_data(&mem, &bytes).unwrap()]);
        for answer in answers(node.tx(OUTSIDE), &mut other, &mem, now) {
            let at = flow.version().header_len();
            // Errors about datagrams that time out are answers as well.
            if matches!(answer[at], 0 | 129) {
                heard.entry(u16::from_be_bytes([answer[at + 6], answer[at + 7]])).or_default().push(answer);
            }
        }
    }
    for (seq, ping) in pings.iter().enumerate() {
        let heard = heard.remove(&(seq as u16)).unwrap_or_default();
        assert_eq!(!heard.is_empty(), ping.whole, "seed {seed}, {flow:?}, ping {seq}");
        let at = flow.version().header_len() + 8;
        assert!(heard.iter().all(|answer| answer[at..] == ping.bytes[at..]), "seed {seed}, {flow:?}, ping {seq}");
    }
    while let Some(due) = node.datapath.poll_timeout() {
        node.timeout(due);
        drop(node.tx(OUTSIDE));
    }
    let left = [Version::V4, Version::V6].map(|version| node.datapath.reassembly().usage(version));
    assert_eq!(left, [reassembly::Usage::default(); 2], "seed {seed}");
    assert_eq!(node.pages_in_use(), 0, "seed {seed}");
    let mibs = match flow.version() {
        Version::V4 => [Mib::IpReasmReqds, Mib::IpReasmTimeout, Mib::IpReasmFails],
        Version::V6 => [Mib::Ip6ReasmReqds, Mib::Ip6ReasmTimeout, Mib::Ip6ReasmFails],
    };
    let [requests, timeouts, fails] = mibs.map(|mib| node.datapath.counters.get(mib));
    assert_eq!((requests, timeouts), (came, fails), "nothing fails but what time is up for: seed {seed}, {flow:?}");
    let reasons = [DropReason::FragmentTimeout, DropReason::FragmentDuplicate];
    assert!(node.drops().iter().all(|(_, reason, _)| reasons.contains(reason)), "seed {seed}: {:?}", node.drops());
}

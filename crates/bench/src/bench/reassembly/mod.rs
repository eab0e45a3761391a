//! `fatpath bench reassembly`: datagrams in many fragments.
//!
//! - `ring-FRAMES/loss-SHARE`: UDP datagrams of 64 KiB over IPv6, sealed in transport mode (AES-GCM-128, 96-bit ICV)
//!   and then fragmented, through a receive ring of that many frames with that loss rate on the wire. `off` holds
//!   fragments as Linux did before it coalesced, `on` as this node does, and `copy` copies every fragment at once.
//!   `copied_by_moving` is the number of bytes copied per byte delivered although fragments are moved.
//! - `fragments/FAMILY/ORDER`: cost of a fragment in the engine one by one, by the number of fragments of a datagram;
//!   `fragments-in-bursts/FAMILY/ORDER`: the same in bursts of 64, as from devices.
//! - `attack/KIND`: a good flow during a flood; `attack-cpu/KIND`: cost of a fragment of each, in bursts of 64 as from
//!   devices; `attack-cpu-at-once/KIND`: in one burst of 4096.

mod attack;
mod fragment;
mod orders;
mod receiver;
mod ring;
mod stream;

use super::case::Group;

/// Every case.
pub(super) fn groups() -> Vec<Group> {
    [ring::groups(), orders::groups(), attack::groups()].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_case_moves_its_packets_and_frees_memory() {
        groups().iter().for_each(Group::run_briefly);
    }

    #[test]
    fn small_ring_is_exhausted_only_without_coalescing() {
        let group = ring::groups().into_iter().find(|group| group.name == "ring-256/loss-1%").unwrap();
        let figures = |way: usize| {
            let mut case = group.cases[way].start();
            case.slice(Duration::ZERO).and_then(|()| case.end_round(1)).unwrap();
            case.rounds[0].more.iter().map(|&(_, value)| value).collect::<Vec<_>>()
        };
        let (off, on, copy) = (figures(0), figures(1), figures(2));
        // The recovery time without coalescing depends on the lost fragments.
        assert!(off[0] > 1e6 && off[1] < 0.01, "{off:?}");
        for on in [on, copy] {
            assert!(on[0] == 0.0 && on[1] > 0.95 && on[3] < 1000.0, "{on:?}");
        }
    }

    #[test]
    fn coalesced_fragments_are_not_copied_or_copied_once() {
        let group = ring::groups().into_iter().find(|group| group.name == "ring-256/loss-0").unwrap();
        let copied = |way: usize| {
            let mut case = group.cases[way].start();
            case.slice(Duration::ZERO).and_then(|()| case.end_round(1)).unwrap();
            case.rounds[0].copied_bytes_per_byte
        };
        let (on, copy) = (copied(1), copied(2));
        assert!(on <= 0.05 && (1.0..=1.05).contains(&copy), "{on} {copy}");
    }

    #[test]
    fn benchmark_names_are_descriptive_and_unique() {
        let groups = groups();
        let names: BTreeSet<&str> = groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names.len(), groups.len());
        for name in ["ring-256/loss-0.1%", "ring-4096/loss-0", "fragments/v6/shuffled", "attack/one-fragment"] {
            assert!(names.contains(name), "{name} in {names:?}");
        }
    }
}

//! Queueing disciplines of links: packets wait whole, and are fitted, counted and captured when they leave.

use std::time::Duration;

use base::{DropReason, Instant};
use datapath::{FatCounts, TapPoints};
use offload::Features;
use packet::Packet;
use qdisc::{Depth, LinkLayer, Options, RateSpec, Stats, Tbf};
use sim::{Node, PortOptions};
use wire::{EtherType, MacAddr, arp, eth};

use crate::common::*;

/// 8 Mbit/s: a byte takes a microsecond.
const MEGABYTE: RateSpec = RateSpec { rate: 1_000_000, overhead: 0, mpu: 0, link_layer: LinkLayer::ETHERNET };

fn tbf(burst: u32, limit: u32) -> Options {
    Options::Tbf(Tbf { limit, rate: MEGABYTE, burst: Depth::Bytes(burst), peak: None })
}

fn shaped(outside: PortOptions, options: Options) -> Node {
    let mut node = router_with(PortOptions::BARE.mtu(9000), outside);
    node.datapath.set_qdisc(NOW, &node.mem, OUTSIDE, Some(options)).unwrap();
    node
}

fn after(micros: u64) -> Instant {
    NOW + Duration::from_micros(micros)
}

fn stats(node: &Node) -> Stats {
    node.datapath.qdisc_stats(OUTSIDE).unwrap()
}

fn lens(node: &mut Node) -> Vec<usize> {
    node.tx(OUTSIDE).iter().map(Packet::len).collect()
}

#[test]
fn fat_packet_waits_whole_and_is_fitted_when_it_leaves() {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::BARE.features(Features::NONE), tbf(10_000, 50_000));
    node.datapath.set_tap(OUTSIDE, TapPoints { wire: true, fat: true });
    for seq in [1, 4201, 8401] {
        let fat = flow.fat_tcp(&node.mem, seq, 4200, 1400);
        node.rx(NOW, INSIDE, vec![fat]);
    }
    // Three segments of 1452 bytes each: 4356 of 10 000 tokens, twice.
    assert_eq!(lens(&mut node), [1452; 6]);
    let counted = stats(&node);
    let two = Stats { bytes: 8712, packets: 6, overlimits: 1, qlen: 1, backlog: 4356, ..Stats::default() };
    assert_eq!(counted, two);
    let cut = |n| FatCounts { tx_gso_cut_packets: n, tx_gso_cut_segs: 3 * n, ..FatCounts::default() };
    let fat = |node: &Node| {
        let FatCounts { tx_gso_cut_packets, tx_gso_cut_segs, .. } = node.datapath.ports.get(OUTSIDE).unwrap().fat;
        FatCounts { tx_gso_cut_packets, tx_gso_cut_segs, ..FatCounts::default() }
    };
    assert_eq!(fat(&node), cut(2));
    let tapped = |node: &mut Node| {
        let all = node.datapath.take_tapped();
        all.map(|it| (it.fat, it.bytes.len())).collect::<Vec<_>>()
    };
    let one = [(true, 4252), (false, 1452), (false, 1452), (false, 1452)];
    assert_eq!(tapped(&mut node), [one, one].concat());
    let due = node.datapath.poll_timeout().unwrap();
    assert_eq!(due, after(8712 + 4356 - 10_000));
    node.timeout(NOW);
    assert_eq!(lens(&mut node), []);
    node.timeout(due);
    assert_eq!(lens(&mut node), [1452; 3]);
    assert_eq!(fat(&node), cut(3));
    assert_eq!(tapped(&mut node), one);
    assert_eq!(node.datapath.poll_timeout(), None);
    assert_eq!(node.pages_in_use(), 0);
}

#[test]
fn tbf_cuts_only_packets_that_exceed_its_burst() {
    let [flow, _] = flows();
    // The headers of each segment count: 4356 bytes. The bucket has tokens for some of the segments.
    for (burst, want) in [(5000, vec![4252]), (4356, vec![4252]), (4355, vec![1452; 2]), (1452, vec![1452])] {
        let mut node = shaped(PortOptions::BARE, tbf(burst, 50_000));
        let fat = flow.fat_tcp(&node.mem, 1, 4200, 1400);
        node.rx(NOW, INSIDE, vec![fat]);
        assert_eq!(lens(&mut node), want, "burst {burst}");
        assert_eq!(node.drops(), []);
    }
    let mut node = shaped(PortOptions::BARE, tbf(1451, 50_000));
    let fat = flow.fat_tcp(&node.mem, 1, 4200, 1400);
    node.rx(NOW, INSIDE, vec![fat]);
    assert_eq!(node.drops(), [(1, DropReason::QdiscTooLong, 1)]);
    assert_eq!(stats(&node), Stats { drops: 1, ..Stats::default() });
}

#[test]
fn full_queue_of_a_busy_link_drops_and_keeps_order() {
    let [flow, _] = flows();
    for options in [Options::Pfifo { limit: 3 }, Options::Bfifo { limit: 3 * 150 }] {
        let mut node = shaped(PortOptions::BARE, options);
        node.datapath.set_busy(NOW, &node.mem, OUTSIDE, true);
        for n in 0..5 {
            node.rx_bytes(NOW, INSIDE, &flow.udp(100 + n));
        }
        assert_eq!(lens(&mut node), []);
        assert_eq!(node.datapath.poll_timeout(), None, "the link has to take packets first");
        assert_eq!(node.drops(), [(1, DropReason::QdiscFull, 2)]);
        node.datapath.set_busy(NOW, &node.mem, OUTSIDE, false);
        assert_eq!(lens(&mut node), [128, 129, 130]);
        assert_eq!(stats(&node), Stats { bytes: 387, packets: 3, drops: 2, ..Stats::default() });
    }
}

#[test]
fn link_queue_is_bounded_in_bytes() {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::BARE, Options::Pfifo { limit: 1000 });
    for at in 0..200 {
        let fat = flow.fat_tcp(&node.mem, 60_000 * at, 60_000, 1400);
        node.rx(NOW, INSIDE, vec![fat]);
    }
    let waiting = stats(&node).qlen;
    assert!(waiting > 100, "{waiting} wait");
    assert_eq!(node.datapath.poll_timeout(), None);
    let mut sent = 0;
    while let taken @ 1.. = node.tx(OUTSIDE).len() {
        sent += taken;
        node.datapath.set_busy(NOW, &node.mem, OUTSIDE, false);
    }
    assert_eq!((sent, node.drops()), (200, vec![]));
}

#[test]
fn link_going_down_or_away_drops_what_waits() {
    let [flow, _] = flows();
    type End = fn(&mut Node);
    let ends: [(DropReason, End); 4] = [
        (DropReason::LinkDown, |node| node.datapath.set_up(NOW, &node.mem, OUTSIDE, false)),
        (DropReason::LinkDown, |node| node.datapath.remove_port(NOW, &node.mem, OUTSIDE)),
        (DropReason::QdiscRemoved, |node| node.datapath.set_qdisc(NOW, &node.mem, OUTSIDE, None).unwrap()),
        (DropReason::QdiscRemoved, |node| {
            let other = Some(Options::Pfifo { limit: 1 });
            node.datapath.set_qdisc(NOW, &node.mem, OUTSIDE, other).unwrap();
        }),
    ];
    for (reason, end) in ends {
        let mut node = shaped(PortOptions::BARE, tbf(200, 5000));
        for _ in 0..4 {
            node.rx_bytes(NOW, INSIDE, &flow.udp(100));
        }
        assert_eq!(lens(&mut node), [128]);
        end(&mut node);
        assert_eq!(node.drops(), [(1, reason, 3)]);
        assert_eq!(node.datapath.poll_timeout(), None);
        assert_eq!(node.pages_in_use(), 0);
    }
}

#[test]
fn link_that_is_up_again_has_full_buckets_and_its_counters() {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::BARE, tbf(200, 5000));
    for is_up in [true, false, true] {
        node.datapath.set_up(NOW, &node.mem, OUTSIDE, is_up);
        for _ in 0..2 {
            node.rx_bytes(NOW, INSIDE, &flow.udp(100));
        }
    }
    assert_eq!(lens(&mut node), [128], "what left before is dropped with the link's own queue");
    let Stats { packets, drops, qlen, .. } = stats(&node);
    assert_eq!((packets, drops, qlen), (2, 0, 1));
}

#[test]
fn changed_options_keep_packets_and_other_kinds_are_refused() {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::BARE, tbf(200, 5000));
    for _ in 0..3 {
        node.rx_bytes(NOW, INSIDE, &flow.udp(100));
    }
    assert!(node.datapath.change_qdisc(NOW, &node.mem, OUTSIDE, Options::Pfifo { limit: 1 }).is_err());
    assert_eq!((stats(&node).qlen, lens(&mut node)), (2, vec![128]));
    node.datapath.change_qdisc(NOW, &node.mem, OUTSIDE, tbf(5000, 5000)).unwrap();
    assert_eq!((stats(&node).qlen, lens(&mut node)), (0, vec![128; 2]));
}

#[test]
fn frames_that_are_no_ip_wait_as_others_do() {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::ethernet(2), Options::Pfifo { limit: 10 });
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, true);
    for n in 0..3 {
        node.rx_bytes(NOW, INSIDE, &flow.udp(100 + n));
    }
    // The packets wait for the neighbour, and the solicitation for the link.
    assert_eq!((node.waiting(), stats(&node).qlen, lens(&mut node)), (3, 1, vec![]));
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, false);
    let asked = only(node.tx(OUTSIDE)).to_vec();
    let header = eth::EthHeader::ref_from(&asked).unwrap();
    assert_eq!((header.dst(), header.ethertype()), (MacAddr::BROADCAST, EtherType::ARP));
    let [asks, answers] = [(mac(2), "10.2.0.254"), (mac(9), "10.2.0.1")].map(|(mac, ip)| (mac, ip.parse().unwrap()));
    let header = eth::EthHeader::new(asks.0, answers.0, EtherType::ARP);
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, true);
    node.rx_bytes(NOW, OUTSIDE, &[header.as_bytes(), arp::ArpHeader::reply(answers, asks).as_bytes()].concat());
    assert_eq!((node.waiting(), stats(&node).qlen, lens(&mut node)), (0, 3, vec![]));
    node.datapath.set_busy(NOW, &node.mem, OUTSIDE, false);
    assert_eq!(lens(&mut node), [142, 143, 144]);
    let Stats { bytes, packets, drops, .. } = stats(&node);
    assert_eq!((bytes, packets, drops), (asked.len() as u64 + 429, 4, 0));
}

/// Offers more than the rate for ten seconds of virtual time, and takes sent packets at the times of `poll_timeout`.
fn bytes_in_ten_seconds(is_fat: bool, features: Features) -> u64 {
    let [flow, _] = flows();
    let mut node = shaped(PortOptions::BARE.features(features), tbf(20_000, 200_000));
    let end = NOW + Duration::from_secs(10);
    let mut now = NOW;
    let mut sent = 0_u64;
    let mut seq = 1_u32;
    while now < end {
        while stats(&node).backlog < 100_000 {
            let len = if is_fat { 14_000 } else { 1400 };
            let pkt = flow.fat_tcp(&node.mem, seq, len, 1400);
            seq = seq.wrapping_add(len as u32);
            node.rx(now, INSIDE, vec![pkt]);
        }
        sent += node.tx(OUTSIDE).iter().map(|pkt| wire_bytes(pkt) as u64).sum::<u64>();
        now = node.datapath.poll_timeout().expect("packets wait").max(now);
        node.timeout(now);
    }
    assert_eq!(node.drops(), []);
    sent
}

/// Bytes of a packet with the headers of each of its segments.
fn wire_bytes(pkt: &Packet) -> usize {
    pkt.len() + 52 * (pkt.meta.cut.segs() as usize - 1)
}

#[test]
fn tbf_keeps_its_rate_within_one_percent_over_ten_seconds() {
    for is_fat in [true, false] {
        for features in [Features::ALL, Features::NONE] {
            let sent = bytes_in_ten_seconds(is_fat, features);
            let error = sent.abs_diff(10_000_000);
            assert!(error <= 100_000, "{sent} bytes, fat {is_fat}, {features:?}");
        }
    }
}

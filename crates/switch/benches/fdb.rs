//! Nanoseconds per decision on a frame with known source and destination, among many addresses and VLANs:
//! `cargo bench -p fatpath-switch`.
//!
//! `spread/N` takes a random pair of N addresses for each frame, so that entries miss the cache if N of them do not
//! fit; `hot/N` takes one of 64 pairs among N. `floor/N` reads the cache lines of two random entries: the lower bound
//! of any look-up among N addresses. `vlans/N` is `hot` in each of N VLANs in turn, with 64 addresses in total.

use base::{Instant, PortId};
use divan::{Bencher, black_box};
use switch::{Bridge, Egress, Frame, PortConfig, Verdict, Vid, VlanFlags};
use wire::MacAddr;
use wire::vlan::Tci;

fn main() {
    divan::main();
}

const SIZES: [u32; 4] = [64, 1024, 16_384, 65_536];
const PORTS: u32 = 8;

fn mac(number: u32) -> MacAddr {
    let [a, b, c, d] = number.to_be_bytes();
    MacAddr([2, 0, a, b, c, d])
}

fn frame(src: u32, dst: u32, vid: Vid) -> Frame {
    let tag = Some(Tci(vid.get()));
    Frame { dst: mac(dst), src: mac(src), tag, has_payload_tag: false, is_gso: false, len: 64 }
}

/// A bridge of eight ports in VLANs up to `last`, with `addresses` learnt addresses spread over ports and VLANs.
fn bridge(addresses: u32, last: u16) -> Bridge {
    let mut bridge = Bridge::new(MacAddr([2, 0xff, 0, 0, 0, 0])).expect("a station's address");
    bridge.set_vlan_filtering(true);
    for port in 1..=PORTS {
        bridge.add_port(PortId(port), MacAddr([2, 0xff, 0, 0, 0, port as u8]), 1500).expect("a free link");
        let config = PortConfig { fdb_limit: u32::MAX, ..PortConfig::default() };
        bridge.configure(PortId(port), config).expect("a port");
        let last = Vid::new(last).expect("a VLAN");
        bridge.add_vlans(Some(PortId(port)), Vid::FIRST, last, VlanFlags::default()).expect("a range");
    }
    let mut egress = Egress::default();
    for number in 0..addresses {
        let vid = vid_of(number, last);
        bridge.receive(Instant::ZERO, PortId(1 + number % PORTS), &frame(number, u32::MAX, vid), &mut egress);
    }
    bridge
}

fn vid_of(number: u32, last: u16) -> Vid {
    Vid::new(1 + (number / PORTS % u32::from(last)) as u16).expect("a VLAN")
}

/// Random numbers below `end`, a power of two.
fn numbers(end: u32) -> Vec<u32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % end
    };
    (0..1 << 16).map(|_| next()).collect()
}

/// Decides on 64 frames at a time, between pairs of addresses.
fn decide(bencher: Bencher<'_, '_>, mut bridge: Bridge, pairs: Vec<(u32, u32, Vid)>) {
    let mut egress = Egress::default();
    let frames: Vec<(PortId, Frame)> =
        pairs.iter().map(|&(src, dst, vid)| (PortId(1 + src % PORTS), frame(src, dst, vid))).collect();
    let mut at = 0;
    bencher.counter(divan::counter::ItemsCount::new(64_u32)).bench_local(|| {
        for (port, frame) in &frames[at..at + 64] {
            let verdict = bridge.receive(Instant::ZERO, *port, black_box(frame), &mut egress);
            assert!(verdict == Verdict::Forward && egress.exits.len() == 1);
        }
        at = (at + 64) % frames.len();
    });
}

/// Pairs of neighbours, which are behind different ports of one VLAN.
fn pairs(addresses: u32, hot: u32, last: u16) -> Vec<(u32, u32, Vid)> {
    let stride = addresses / hot;
    let each = numbers(hot).into_iter().map(|number| number * stride / PORTS * PORTS);
    each.map(|first| (first, first + 1, vid_of(first, last))).collect()
}

#[divan::bench(args = SIZES)]
fn spread(bencher: Bencher<'_, '_>, addresses: u32) {
    decide(bencher, bridge(addresses, 1), pairs(addresses, addresses, 1));
}

#[divan::bench(args = SIZES)]
fn hot(bencher: Bencher<'_, '_>, addresses: u32) {
    decide(bencher, bridge(addresses, 1), pairs(addresses, 64, 1));
}

#[divan::bench(args = [1, 64, 4094])]
fn vlans(bencher: Bencher<'_, '_>, last: u16) {
    let addresses = 1 << 16;
    decide(bencher, bridge(addresses, last), pairs(addresses, 64, last));
}

#[divan::bench(args = SIZES)]
fn floor(bencher: Bencher<'_, '_>, addresses: u32) {
    let lines: Vec<[u64; 8]> = vec![[1; 8]; addresses as usize];
    let numbers = numbers(addresses);
    let mut at = 0;
    bencher.counter(divan::counter::ItemsCount::new(64_u32)).bench_local(|| {
        let mut sum = 0;
        for number in &numbers[at..at + 64] {
            // The second read depends on the first, as the destination's look-up depends on the source's.
            let first = black_box(&lines)[*number as usize][0];
            sum += lines[(number ^ first as u32) as usize % lines.len()][1];
        }
        at = (at + 64) % numbers.len();
        black_box(sum)
    });
}

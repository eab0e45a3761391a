//! Exhausted pools of the guest and of the trunk adapter, which recover.

use ibmveth::{AdapterConfig, Firmware, PoolConfig};
use link::Link;
use offload::Features;
use packet::Packet;

use crate::site::*;

/// IP length of a frame for each pool, the shortest buffers first.
const LENGTHS: [usize; 5] = [300, 1200, 8000, 20_000, 40_000];

/// Small pools, all active, for frames of any length.
fn all_active() -> AdapterConfig {
    let pools = PoolConfig::DEFAULT.map(|pool| PoolConfig { active: true, count: 8, ..pool });
    AdapterConfig { pools, mtu: 65_000, ..AdapterConfig::default() }
}

fn datagram(site: &Site, len: usize) -> Packet {
    let flow = flows()[0];
    Packet::with_data(&site.node.mem, &flow.udp(len - 28)).unwrap()
}

fn site() -> Site {
    let mut site = Site::new(Firmware::CURRENT, all_active(), all_active(), Features::NONE);
    let mut port = site.node.datapath.ports.get(WIRE).unwrap().config.clone();
    port.mtu = 65_000;
    site.node.datapath.set_port(WIRE, port);
    site
}

#[test]
fn guest_pool_recovers_after_exhaustion() {
    for (at, len) in LENGTHS.into_iter().enumerate() {
        let mut site = site();
        let buffers = 8 * (5 - at);
        for _ in 0..buffers + 5 {
            site.wire_brings(datagram(&site, len), None);
        }
        assert_eq!(site.lan().counters().no_buffer, 5, "{len}");
        assert_eq!(site.trunk.stats().tx_packets, buffers as u64 + 5, "dropped by the peer counts as sent");
        let got = site.drain_guest();
        assert_eq!((got.len(), site.guest.stats().rx_no_buffer), (buffers, 5), "{len}");
        assert!(got.iter().all(|pkt| pkt.len() == 14 + len));
        site.wire_brings(datagram(&site, len), None);
        assert_eq!(site.drain_guest().len(), 1, "{len}");
        assert_eq!(site.lan().posted(site.guest_unit), 39, "{len}: seven of eight are enough");
    }
}

#[test]
fn trunk_pool_recovers_after_exhaustion() {
    for (at, len) in LENGTHS.into_iter().enumerate() {
        let mut site = site();
        let buffers = 8 * (5 - at);
        for _ in 0..buffers + 5 {
            site.guest_sends(datagram(&site, len), None);
        }
        assert_eq!(site.drain_wire().len(), buffers, "{len}");
        assert_eq!(site.trunk.adapter().stats().rx_no_buffer, 5, "{len}");
        site.guest_sends(datagram(&site, len), None);
        assert_eq!((site.drain_wire().len(), site.node.drops()), (1, Vec::new()), "{len}");
    }
}

#[test]
fn packets_held_back_by_the_wire_leave_the_trunk_its_buffers() {
    // Memory of the trunk's pools is bounded: unsent packets hold all of it.
    let config = AdapterConfig { pool_pages: 10, ..all_active() };
    let mut site = Site::new(Firmware::CURRENT, config, config, Features::NONE);
    let mut held = Vec::new();
    for _ in 0..4 {
        for _ in 0..8 {
            site.guest_sends(datagram(&site, 1200), None);
        }
        held.extend(site.drain_wire());
    }
    let stats = site.trunk.adapter().stats();
    assert!(stats.replenish_no_mem > 0, "{stats:?}");
    assert_eq!(held.len(), 32, "the longer buffers had the rest");
    held.clear();
    for _ in 0..8 {
        site.guest_sends(datagram(&site, 1200), None);
        assert_eq!(site.drain_wire().len(), 1);
    }
}

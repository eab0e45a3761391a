//! VLAN devices: frames of one VLAN of a link, below a router, and on a link that is also a bridge port.

use base::{DropReason, PortId};
use datapath::{TapPoints, VlanError};
use fib::Known;
use offload::Features;
use sim::{Flow, Node, PortOptions};
use wire::{EtherType, MacAddr, eth};

use crate::common::*;

const ETH: PortId = PortId(1);
const FIVE: PortId = PortId(5);
const INNER: PortId = PortId(6);
const OUT: PortId = PortId(2);

/// A router with VLAN 5 of port 1, VLAN 7 of that VLAN device, and port 2. Hosts of 10.1.0.0/24 are in VLAN 5, of 10.7.0.0/24 in VLAN 7.
fn router() -> Node {
    let mut node = Node::new();
    node.port(ETH.0, PortOptions::ethernet(1).features(Features::ALL), &[]);
    let above = Features { frames: false, ..Features::ALL };
    node.port(FIVE.0, PortOptions::ethernet(1).features(above), &["10.1.0.254/24"]);
    node.port(INNER.0, PortOptions::ethernet(1).features(above), &["10.7.0.254/24"]);
    node.port(OUT.0, PortOptions::BARE.features(Features::ALL), &["10.2.0.254/24"]);
    node.datapath.set_vlan(FIVE, ETH, 5).unwrap();
    node.datapath.set_vlan(INNER, FIVE, 7).unwrap();
    for (link, addr) in [(FIVE, "10.1.0.1"), (INNER, "10.7.0.1")] {
        let known = Known::Permanent(mac(0x21));
        node.datapath.set_neighbour(NOW, &node.mem, link, addr.parse().unwrap(), known, 0);
    }
    node
}

/// A frame with these VLANs, outer first.
fn tagged(vids: &[u16], ip: &[u8]) -> Vec<u8> {
    let mut bytes = eth::EthHeader::new(mac(1), mac(0x21), EtherType::IPV4).as_bytes().to_vec();
    for vid in vids.iter().rev() {
        let [high, low] = vid.to_be_bytes();
        bytes.splice(12..12, [0x81, 0, high, low]);
    }
    bytes.extend(ip);
    bytes
}

fn rx_packets(node: &Node, link: PortId) -> u64 {
    node.datapath.ports.get(link).unwrap().traffic.rx_packets
}

#[test]
fn frame_is_received_by_the_device_of_its_vlan_alone() {
    let mut node = router();
    let cases: [(&[u16], &str, [u64; 2]); 6] = [
        (&[5], "10.1.0.1", [1, 0]),
        (&[5, 7], "10.7.0.1", [2, 1]),
        (&[0x6005], "10.1.0.1", [3, 1]),
        (&[6], "10.1.0.1", [3, 1]),
        (&[7, 5], "10.1.0.1", [3, 1]),
        (&[5, 6], "10.1.0.1", [4, 1]),
    ];
    let mut passed = 0;
    for (vids, src, want) in cases {
        node.rx_bytes(NOW, ETH, &tagged(vids, &Flow::new(src, "10.2.0.1").udp(10)));
        assert_eq!([rx_packets(&node, FIVE), rx_packets(&node, INNER)], want, "{vids:x?}");
        passed += node.tx(OUT).len();
    }
    assert_eq!(passed, 3);
    let mut drops = node.drops();
    drops.sort_unstable_by_key(|drop| drop.0);
    assert_eq!(drops, [(ETH.0, DropReason::EthNotForUs, 2), (FIVE.0, DropReason::EthNotForUs, 1)]);
}

/// Tags of VLAN 0 are no tags, 802.1Q or 802.1ad, so the first tag behind them decides, as on Linux. 802.1ad VLANs have no devices.
#[test]
fn frame_behind_priority_tags_is_received_by_its_vlan() {
    const C: u32 = 0x8100_0000;
    const S: u32 = 0x88a8_0000;
    let cases: [(&[u32], Option<PortId>); 11] = [
        (&[C, C | 5], Some(FIVE)),
        (&[C | 0xe000, C | 5], Some(FIVE)),
        (&[S, C | 5], Some(FIVE)),
        (&[C, S, C, C | 5], Some(FIVE)),
        (&[C, C | 5, C, C | 7], Some(INNER)),
        (&[C | 5, S, C | 7], Some(INNER)),
        (&[C, C | 6], None),
        (&[S | 5], None),
        (&[C, S | 5], None),
        (&[C | 6, C | 5], None),
        (&[S | 6, C | 5], None),
    ];
    for (tags, want) in cases {
        let mut node = router();
        let src = if want == Some(INNER) { "10.7.0.1" } else { "10.1.0.1" };
        let mut bytes = tagged(&[], &Flow::new(src, "10.2.0.1").udp(10));
        bytes.splice(12..12, tags.iter().flat_map(|tag| tag.to_be_bytes()));
        node.rx_bytes(NOW, ETH, &bytes);
        let got = [INNER, FIVE].into_iter().find(|&link| rx_packets(&node, link) > 0);
        assert_eq!((got, node.tx(OUT).len()), (want, usize::from(want.is_some())), "{tags:x?} {:?}", node.drops());
    }
    for half in 1..4 {
        let mut node = router();
        let bytes = [&mac(1).0[..], &mac(0x21).0, &[0x81, 0, 0, 0, 0x81, 0, 0, 5, 8, 0][..4 + 2 + half]].concat();
        node.rx_bytes(NOW, ETH, &bytes);
        assert_eq!(node.drops(), [(ETH.0, DropReason::EthTruncated, 1)], "{half}");
    }
}

#[test]
fn bridge_gets_priority_tagged_frames_of_a_ports_vlan() {
    let mut node = router();
    let other = PortId(3);
    node.port(other.0, PortOptions::ethernet(3).features(Features::ALL), &[]);
    node.datapath.add_bridge(PortId(9), "br0".to_owned(), mac(9), 1500).unwrap();
    for port in [ETH, other] {
        node.datapath.set_bridge(NOW, &node.mem, port, Some(PortId(9))).unwrap();
    }
    let mut bytes = tagged(&[0, 5], &Flow::new("10.1.0.1", "10.2.0.1").udp(10));
    bytes[..6].copy_from_slice(&mac(0x33).0);
    node.rx_bytes(NOW, ETH, &bytes);
    assert_eq!((rx_packets(&node, FIVE), only(node.tx(other)).to_vec()), (0, bytes));
}

#[test]
fn promiscuity_counts_bridges_and_addresses_above_a_link() {
    let mut node = router();
    let counts = |node: &Node| {
        [ETH, FIVE, INNER].map(|link| {
            let mode = node.datapath.rx_mode(link);
            [mode.promiscuity, mode.allmulti]
        })
    };
    assert_eq!(counts(&node), [[0, 0]; 3]);
    for bridge in [PortId(8), PortId(9)] {
        node.datapath.add_bridge(bridge, format!("br{}", bridge.0), mac(9), 1500).unwrap();
    }
    node.datapath.set_bridge(NOW, &node.mem, INNER, Some(PortId(8))).unwrap();
    assert_eq!(counts(&node), [[1, 1]; 3]);
    node.datapath.set_bridge(NOW, &node.mem, ETH, Some(PortId(9))).unwrap();
    assert_eq!(counts(&node), [[2, 2], [1, 1], [1, 1]]);
    node.datapath.set_bridge(NOW, &node.mem, INNER, None).unwrap();
    assert_eq!(counts(&node), [[1, 1], [0, 0], [0, 0]]);
    // An address above a VLAN device is filtered by the link at the bottom.
    node.port(INNER.0, PortOptions::ethernet(7), &[]);
    assert_eq!(counts(&node), [[2, 1], [0, 0], [0, 0]]);
    node.port(FIVE.0, PortOptions::ethernet(7), &[]);
    assert_eq!(counts(&node), [[2, 1], [0, 0], [0, 0]]);
    node.datapath.set_up(NOW, &node.mem, FIVE, false);
    assert_eq!(counts(&node), [[1, 1], [0, 0], [0, 0]]);
    node.datapath.remove_port(NOW, &node.mem, PortId(9));
    assert_eq!(counts(&node), [[0, 0]; 3]);
}

#[test]
fn device_above_a_bridge_receives_to_an_address_of_its_own() {
    let mut node = Node::new();
    let bridge = PortId(9);
    for id in [1, 3] {
        node.port(id, PortOptions::ethernet(id as u8), &[]);
    }
    node.port(OUT.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.datapath.add_bridge(bridge, "br0".to_owned(), mac(9), 1500).unwrap();
    for id in [1, 3] {
        node.datapath.set_bridge(NOW, &node.mem, PortId(id), Some(bridge)).unwrap();
    }
    node.port(FIVE.0, PortOptions::ethernet(0x55), &["10.1.0.254/24"]);
    node.datapath.set_vlan(FIVE, bridge, 5).unwrap();
    assert_eq!(node.datapath.rx_mode(bridge).promiscuity, 1);
    node.datapath.bridge_mut(bridge).unwrap().set_promiscuous(true);
    let to = |dst: MacAddr, vids: &[u16]| {
        let mut bytes = tagged(vids, &Flow::new("10.1.0.1", "10.2.0.1").udp(10));
        bytes[..6].copy_from_slice(&dst.0);
        bytes
    };
    node.rx_bytes(NOW, ETH, &to(mac(0x55), &[5]));
    assert_eq!((node.tx(OUT).len(), node.tx(PortId(3)).len()), (1, 1));
    // Frames to another station, in the VLAN and outside of it, are none of the node's.
    for vids in [&[5][..], &[]] {
        node.rx_bytes(NOW, ETH, &to(mac(0x66), vids));
    }
    assert_eq!((node.tx(OUT).len(), node.tx(PortId(3)).len()), (0, 2));
    let mut drops = node.drops();
    drops.sort_unstable_by_key(|drop| drop.0);
    assert_eq!(drops, [(FIVE.0, DropReason::EthNotForUs, 1), (bridge.0, DropReason::EthNotForUs, 1)]);
    node.rx_bytes(NOW, ETH, &to(mac(3), &[]));
    assert_eq!(node.tx(OUT).len(), 1, "to the address of a port");
}

#[test]
fn fat_packet_leaves_uncut_with_each_tag() {
    for (dst, tags) in [("10.1.0.1", &[0x81, 0, 0, 5][..]), ("10.7.0.1", &[0x81, 0, 0, 5, 0x81, 0, 0, 7])] {
        let mut node = router();
        let pkt = Flow::new("10.2.0.1", dst).fat_tcp(&node.mem, 1, 4200, 1400);
        let len = pkt.len();
        node.rx(NOW, OUT, vec![pkt]);
        let sent = only(node.tx(ETH));
        let bytes = sent.to_vec();
        assert_eq!((&bytes[12..12 + tags.len()], bytes.len()), (tags, eth::EthHeader::LEN + tags.len() + len));
        assert_eq!(bytes[12 + tags.len()..14 + tags.len()], [8, 0]);
        assert!(sent.meta.cut.gso().is_some() && node.drops().is_empty());
        // Missing offloads of a device are applied with the tags in place.
        let mut cut = Vec::new();
        let l3 = eth::EthHeader::LEN + tags.len();
        offload::fit(&node.mem, &Features::NONE, sent, l3, &mut cut).unwrap();
        assert_eq!(cut.len(), 3);
        assert!(cut.iter().all(|pkt| pkt.to_vec()[12..12 + tags.len()] == *tags));
    }
}

#[test]
fn device_that_is_down_or_without_its_link_moves_nothing() {
    let mut node = router();
    node.datapath.set_up(NOW, &node.mem, FIVE, false);
    node.rx_bytes(NOW, ETH, &tagged(&[5], &Flow::new("10.1.0.1", "10.2.0.1").udp(10)));
    assert_eq!(node.drops(), [(ETH.0, DropReason::LinkDown, 1)]);
    node.datapath.set_up(NOW, &node.mem, FIVE, true);
    node.datapath.remove_port(NOW, &node.mem, ETH);
    node.rx_bytes(NOW, OUT, &Flow::new("10.2.0.1", "10.7.0.1").udp(10));
    assert_eq!(node.pages_in_use(), 0);
    assert!(node.drops().contains(&(OUT.0, DropReason::LinkDown, 1)), "{:?}", node.drops());
}

#[test]
fn capture_sees_frames_without_the_devices_tag() {
    let mut node = router();
    node.datapath.set_tap(FIVE, TapPoints { wire: true, fat: false });
    node.rx_bytes(NOW, ETH, &tagged(&[5], &Flow::new("10.1.0.1", "10.2.0.1").udp(10)));
    node.rx_bytes(NOW, OUT, &Flow::new("10.2.0.1", "10.1.0.1").udp(10));
    let seen: Vec<_> =
        node.datapath.take_tapped().map(|it| (it.link, it.outbound, it.bytes[12..14].to_vec())).collect();
    assert_eq!(seen, [(FIVE, false, vec![8, 0]), (FIVE, true, vec![8, 0])]);
}

#[test]
fn wrong_devices_are_refused() {
    let mut node = router();
    let cases = [
        ((ETH, INNER, 5), VlanError::Loop),
        ((FIVE, FIVE, 5), VlanError::Loop),
        ((INNER, OUT, 5), VlanError::NotEthernet),
        ((INNER, PortId(99), 5), VlanError::NotEthernet),
        ((INNER, ETH, 5), VlanError::Exists(5)),
        ((INNER, ETH, 0), VlanError::Vid(0)),
        ((INNER, ETH, 4095), VlanError::Vid(4095)),
    ];
    for ((own, below, vid), want) in cases {
        assert_eq!(node.datapath.set_vlan(own, below, vid), Err(want));
    }
    // The device is unchanged.
    node.rx_bytes(NOW, ETH, &tagged(&[5, 7], &Flow::new("10.7.0.1", "10.2.0.1").udp(10)));
    assert_eq!(node.tx(OUT).len(), 1);
}

#[test]
fn device_that_is_configured_anew_keeps_its_own_devices() {
    let mut node = router();
    node.datapath.set_vlan(FIVE, ETH, 5).unwrap();
    node.rx_bytes(NOW, ETH, &tagged(&[5, 7], &Flow::new("10.7.0.1", "10.2.0.1").udp(10)));
    assert_eq!(node.tx(OUT).len(), 1);
    // Another VLAN of the same link, and then none.
    node.datapath.set_vlan(FIVE, ETH, 8).unwrap();
    node.rx_bytes(NOW, ETH, &tagged(&[8, 7], &Flow::new("10.7.0.1", "10.2.0.1").udp(10)));
    assert_eq!(node.tx(OUT).len(), 1);
    node.datapath.remove_port(NOW, &node.mem, FIVE);
    node.rx_bytes(NOW, ETH, &tagged(&[8, 7], &Flow::new("10.7.0.1", "10.2.0.1").udp(10)));
    assert_eq!(node.tx(OUT).len(), 0);
    assert_eq!(node.drops(), [(ETH.0, DropReason::EthNotForUs, 1)]);
}

#[test]
fn half_a_tag_and_a_checksum_over_it_are_refused() {
    let mut node = router();
    let bytes = tagged(&[5], &[]);
    node.rx_bytes(NOW, ETH, &bytes[..16]);
    assert_eq!(node.drops(), [(ETH.0, DropReason::EthTruncated, 1)]);
    let mut pkt = packet::Packet::with_data(&node.mem, &tagged(&[5], &[0; 40])).unwrap();
    pkt.meta.csum = packet::Csum::Partial { start: 14, offset: 0 };
    node.rx(NOW, ETH, vec![pkt]);
    assert!(node.drops().contains(&(ETH.0, DropReason::VirtioHeader, 1)), "{:?}", node.drops());
}

#[test]
fn bridge_does_not_get_frames_of_a_ports_vlan_device() {
    let mut node = router();
    let own = PortId(9);
    node.port(3, PortOptions::ethernet(3), &[]);
    node.datapath.add_bridge(own, "br0".to_owned(), mac(9), 1500).unwrap();
    for port in [ETH, PortId(3)] {
        node.datapath.set_bridge(NOW, &node.mem, port, Some(own)).unwrap();
    }
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    let to_all = |vids: &[u16]| {
        let mut bytes = tagged(vids, &ip);
        bytes[..6].copy_from_slice(&MacAddr([0xff; 6]).0);
        bytes
    };
    node.rx_bytes(NOW, ETH, &to_all(&[5]));
    assert_eq!((node.tx(PortId(3)).len(), rx_packets(&node, FIVE)), (0, 1));
    node.rx_bytes(NOW, ETH, &to_all(&[6]));
    assert_eq!((node.tx(PortId(3)).len(), rx_packets(&node, FIVE)), (1, 1));
}

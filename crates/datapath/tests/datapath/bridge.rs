//! Bridged ports: forwarding, floods, tags and fat frames, and the bridge's own port.

use base::{DropReason, LinkId};
use offload::Features;
use packet::Packet;
use sim::{Flow, Node, PortOptions};
use switch::{Vid, VlanFlags};
use wire::{EtherType, MacAddr, eth};

use crate::common::*;

const OWN: LinkId = LinkId(9);

/// Ports 1, 2 and 3 of a bridge; the third one's device does nothing by itself.
fn bridged() -> Node {
    let mut node = Node::new();
    for id in 1..=3 {
        let features = if id == 3 { Features::NONE } else { Features::ALL };
        node.port(id, PortOptions::ethernet(id as u8).features(features), &[]);
    }
    node.datapath.add_bridge(OWN, "br0".to_owned(), mac(9), 1500).unwrap();
    for id in 1..=3 {
        node.datapath.set_bridge(NOW, &node.mem, LinkId(id), Some(OWN)).unwrap();
    }
    node
}

fn frame(to: MacAddr, from: MacAddr, ip: &[u8]) -> Vec<u8> {
    [eth::Header::new(to, from, EtherType::IPV4).as_bytes(), ip].concat()
}

fn fat(node: &Node, to: MacAddr, from: MacAddr) -> Packet {
    let mut pkt = Flow::new("10.1.0.1", "10.2.0.1").fat_tcp(&node.mem, 1, 4200, 1400);
    let header = eth::Header::new(to, from, EtherType::IPV4);
    pkt.push(&node.mem, eth::Header::LEN).unwrap().copy_from_slice(header.as_bytes());
    pkt
}

fn counts(node: &mut Node) -> [usize; 3] {
    [1, 2, 3].map(|id| node.tx(LinkId(id)).len())
}

#[test]
fn frame_is_flooded_until_its_address_is_learnt() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.rx_bytes(NOW, LinkId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 1, 1]);
    node.rx_bytes(NOW, LinkId(2), &frame(mac(0x21), mac(0x22), &ip));
    assert_eq!(counts(&mut node), [1, 0, 0]);
    node.rx_bytes(NOW, LinkId(1), &frame(mac(0x21), mac(0x21), &ip));
    assert_eq!(node.drops(), [(1, DropReason::BridgeSamePort, 1)]);
}

#[test]
fn fat_frame_is_cut_only_for_port_without_offload() {
    let mut node = bridged();
    let pkt = fat(&node, mac(0x22), mac(0x21));
    node.rx(NOW, LinkId(1), vec![pkt]);
    assert_eq!(counts(&mut node), [0, 1, 3]);
    let ports = &node.datapath.ports;
    let cut = [2, 3].map(|id| ports.get(LinkId(id)).unwrap().fat).map(|fat| (fat.tx_gso_packets, fat.tx_gso_cut_segs));
    assert_eq!(cut, [(1, 0), (0, 3)]);
}

#[test]
fn tagged_fat_frame_keeps_its_offloads() {
    let mut node = bridged();
    let vid = Vid::new(5).unwrap();
    let bridge = node.datapath.bridge_mut(OWN).unwrap();
    bridge.set_vlan_filtering(true);
    let untagged = VlanFlags { is_pvid: true, is_untagged: true };
    bridge.add_vlans(Some(LinkId(1)), vid, vid, untagged).unwrap();
    bridge.add_vlans(Some(LinkId(2)), vid, vid, VlanFlags::default()).unwrap();
    let pkt = fat(&node, mac(0x22), mac(0x21));
    let len = pkt.len();
    node.rx(NOW, LinkId(1), vec![pkt]);
    let mut sent = node.tx(LinkId(2));
    assert_eq!((sent.len(), sent[0].len(), &sent[0].to_vec()[12..16]), (1, len + 4, &[0x81, 0, 0, 5][..]));
    assert!(sent[0].meta.cut.gso().is_some());
    // Back with the tag in its bytes.
    let bytes = [&mac(0x21).0[..], &mac(0x22).0, &[0x81, 0, 0, 5, 8, 0], &[0; 46]].concat();
    sent.clear();
    node.rx_bytes(NOW, LinkId(2), &bytes);
    assert_eq!(node.tx(LinkId(1))[0].to_vec(), [&bytes[..12], &bytes[16..]].concat());
    node.rx_bytes(NOW, LinkId(3), &bytes);
    assert_eq!(node.drops(), [(3, DropReason::BridgeVlan, 1)]);
}

#[test]
fn long_frame_is_dropped_at_its_port() {
    let mut node = bridged();
    for (len, want) in [(1500, [0, 1, 1]), (1501, [0, 0, 0])] {
        node.rx_bytes(NOW, LinkId(1), &frame(mac(0x22), mac(0x21), &vec![0; len]));
        assert_eq!(counts(&mut node), want, "{len}");
    }
    assert_eq!(node.datapath.bridge_mut(OWN).unwrap().port(LinkId(2)).unwrap().stats().tx_errors, 1);
}

#[test]
fn frame_for_the_bridge_goes_to_its_own_port() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "198.51.100.9").udp(10);
    for to in [mac(9), mac(2)] {
        node.rx_bytes(NOW, LinkId(1), &frame(to, mac(0x21), &ip));
    }
    let own: u64 = node.drops().iter().filter(|drop| drop.0 == OWN.0).map(|drop| drop.2).sum();
    assert_eq!((own, counts(&mut node)[1..].to_vec()), (2, vec![0, 0]));
}

#[test]
fn port_that_left_its_bridge_forwards_nothing() {
    let mut node = bridged();
    node.datapath.set_bridge(NOW, &node.mem, LinkId(1), None).unwrap();
    node.rx_bytes(NOW, LinkId(1), &frame(mac(0x22), mac(0x21), &[0; 46]));
    assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![(1, DropReason::EthNotForUs, 1)]));
}

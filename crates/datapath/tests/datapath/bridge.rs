//! Bridged ports: forwarding, floods, tags and fat frames, and the bridge's device.

use base::{Domain, DropReason, PortId};
use fib::Known;
use offload::Features;
use packet::{CopyReason, Packet};
use sim::{AddAddress as _, Flow, Node, PortOptions, esp, policy, unique_mask};
use switch::{PortConfig, Vid, VlanFlags};
use wire::{EtherType, MacAddr, Protocol, eth};
use xfrm::{Dir, Mode};

use crate::common::*;

const OWN: PortId = PortId(9);

/// Ports 1, 2 and 3 of a bridge; the third one's device has no offloads.
fn bridged() -> Node {
    let mut node = Node::new();
    for id in 1..=3 {
        let features = if id == 3 { Features::NONE } else { Features::ALL };
        node.port(id, PortOptions::ethernet(id as u8).features(features), &[]);
    }
    node.datapath.add_bridge(OWN, "br0".to_owned(), mac(9), 1500).unwrap();
    for id in 1..=3 {
        node.datapath.set_bridge(NOW, &node.mem, PortId(id), Some(OWN)).unwrap();
    }
    node
}

fn frame(to: MacAddr, from: MacAddr, ip: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(to, from, EtherType::IPV4).as_bytes(), ip].concat()
}

fn fat(node: &Node, to: MacAddr, from: MacAddr) -> Packet {
    let mut pkt = Flow::new("10.1.0.1", "10.2.0.1").fat_tcp(&node.mem, 1, 4200, 1400);
    let header = eth::EthHeader::new(to, from, EtherType::IPV4);
    pkt.push(&node.mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    pkt
}

fn counts(node: &mut Node) -> [usize; 3] {
    [1, 2, 3].map(|id| node.tx(PortId(id)).len())
}

#[test]
fn frame_is_flooded_until_its_address_is_learnt() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 1, 1]);
    node.rx_bytes(NOW, PortId(2), &frame(mac(0x21), mac(0x22), &ip));
    assert_eq!(counts(&mut node), [1, 0, 0]);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x21), mac(0x21), &ip));
    assert_eq!(node.drops(), [(1, DropReason::BridgeSamePort, 1)]);
}

#[test]
fn fat_frame_is_cut_only_for_port_without_offload() {
    let mut node = bridged();
    let pkt = fat(&node, mac(0x22), mac(0x21));
    node.rx(NOW, PortId(1), vec![pkt]);
    assert_eq!(counts(&mut node), [0, 1, 3]);
    let ports = &node.datapath.ports;
    let cut = [2, 3].map(|id| ports.get(PortId(id)).unwrap().fat).map(|fat| (fat.tx_gso_packets, fat.tx_gso_cut_segs));
    assert_eq!(cut, [(1, 0), (0, 3)]);
}

#[test]
fn tagged_fat_frame_keeps_its_offloads() {
    let mut node = bridged();
    let vid = Vid::new(5).unwrap();
    let bridge = node.datapath.bridge_mut(OWN).unwrap();
    bridge.set_vlan_filtering(true);
    let untagged = VlanFlags { is_pvid: true, is_untagged: true };
    bridge.add_vlans(Some(PortId(1)), vid, vid, untagged).unwrap();
    bridge.add_vlans(Some(PortId(2)), vid, vid, VlanFlags::default()).unwrap();
    let pkt = fat(&node, mac(0x22), mac(0x21));
    let len = pkt.len();
    node.rx(NOW, PortId(1), vec![pkt]);
    let mut sent = node.tx(PortId(2));
    assert_eq!((sent.len(), sent[0].len(), &sent[0].to_vec()[12..16]), (1, len + 4, &[0x81, 0, 0, 5][..]));
    assert!(sent[0].meta.cut.gso().is_some());
    // Back with the tag in its bytes.
    let bytes = [&mac(0x21).0[..], &mac(0x22).0, &[0x81, 0, 0, 5, 8, 0], &[0; 46]].concat();
    sent.clear();
    node.rx_bytes(NOW, PortId(2), &bytes);
    assert_eq!(node.tx(PortId(1))[0].to_vec(), [&bytes[..12], &bytes[16..]].concat());
    node.rx_bytes(NOW, PortId(3), &bytes);
    assert_eq!(node.drops(), [(3, DropReason::BridgeVlan, 1)]);
}

/// A guest's frame with a tag in its payload, which the switch behind an untagged trunk would take for its VLAN.
#[test]
fn tag_in_the_payload_is_dropped_where_the_port_refuses_it() {
    let addresses = [mac(0x22).0, mac(0x21).0].concat();
    for tags in [&[0x88, 0xa8, 0, 7][..], &[0x81, 0, 0, 1, 0x81, 0, 0, 9]] {
        let mut node = bridged();
        let bridge = node.datapath.bridge_mut(OWN).unwrap();
        bridge.set_vlan_filtering(true);
        let config = *bridge.port(PortId(1)).unwrap().config();
        bridge.configure(PortId(1), PortConfig { payload_tags: false, ..config }).unwrap();
        let bytes = [&addresses, tags, &[8, 0], &[0; 46]].concat();
        node.rx_bytes(NOW, PortId(1), &bytes);
        let dropped = [(1, DropReason::BridgePayloadTag, 1)];
        assert_eq!((&node.drops()[..], counts(&mut node)), (&dropped[..], [0; 3]), "{tags:x?}");
        // Another port accepts it.
        node.rx_bytes(NOW, PortId(2), &bytes);
        assert_eq!((&node.drops()[..], counts(&mut node)), (&dropped[..], [1, 0, 1]), "{tags:x?}");
    }
}

#[test]
fn fat_frame_with_a_service_tag_keeps_its_tag_and_offloads() {
    for tags in
        [vec![[0x88, 0xa8, 0, 7]], vec![[0x88, 0xa8, 0, 7], [0x81, 0, 0, 9]], vec![[0x81, 0, 0, 5], [0x81, 0, 0, 9]]]
    {
        let mut node = bridged();
        let mut pkt = fat(&node, mac(0x22), mac(0x21));
        let len = pkt.len();
        for [a, b, c, d] in tags.iter().rev().copied() {
            let tpid = EtherType(u16::from_be_bytes([a, b]));
            offload::push_tag(&node.mem, &mut pkt, tpid, u16::from_be_bytes([c, d])).unwrap();
        }
        node.rx(NOW, PortId(1), vec![pkt]);
        let [whole, cut] = [2, 3].map(|id| node.tx(PortId(id)));
        assert_eq!((whole.len(), cut.len()), (1, 3), "{tags:x?} {:?}", node.drops());
        assert_eq!(whole[0].len(), len + 4 * tags.len());
        for pkt in whole.iter().chain(&cut) {
            assert_eq!(pkt.to_vec()[12..12 + 4 * tags.len()], tags.concat());
        }
    }
}

#[test]
fn long_frame_is_dropped_at_its_port() {
    let mut node = bridged();
    // Tags in front of the payload, outer first.
    let (c_tag, s_tag) = ([0x81, 0, 0, 5], [0x88, 0xa8, 0, 5]);
    let cases: [(&[[u8; 4]], usize); 6] = [
        (&[], 1504),
        (&[c_tag], 1504),
        (&[c_tag; 2], 1500),
        (&[s_tag, c_tag], 1500),
        (&[s_tag], 1504),
        (&[c_tag, s_tag], 1500),
    ];
    for (tags, longest) in cases {
        for (len, want) in [(longest, [0, 1, 1]), (longest + 1, [0, 0, 0])] {
            let mut bytes = frame(mac(0x22), mac(0x21), &vec![0; len]);
            bytes.splice(12..12, tags.concat());
            node.rx_bytes(NOW, PortId(1), &bytes);
            assert_eq!(counts(&mut node), want, "{tags:x?} {len}");
        }
    }
    assert_eq!(node.drops(), [(1, DropReason::BridgeTooBig, 6)]);
    assert_eq!(node.datapath.bridge_mut(OWN).unwrap().port(PortId(2)).unwrap().stats().tx_errors, 6);
}

#[test]
fn frame_for_the_bridge_goes_to_its_device() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "198.51.100.9").udp(10);
    for to in [mac(9), mac(2)] {
        node.rx_bytes(NOW, PortId(1), &frame(to, mac(0x21), &ip));
    }
    let own: u64 = node.drops().iter().filter(|drop| drop.0 == OWN.0).map(|drop| drop.2).sum();
    assert_eq!((own, counts(&mut node)[1..].to_vec()), (2, vec![0, 0]));
}

#[test]
fn port_that_left_its_bridge_forwards_nothing() {
    let mut node = bridged();
    node.datapath.set_bridge(NOW, &node.mem, PortId(1), None).unwrap();
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &[0; 46]));
    assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![(1, DropReason::EthNotForUs, 1)]));
}

/// A bridge whose device is a link of a router: the hosts of 10.1.0.0/24 are behind its ports, and an uplink leads to
/// the others.
pub(crate) fn routed(uplink: PortOptions) -> Node {
    let mut node = bridged();
    for address in ["10.1.0.254/24", "fd00:1::254/64"] {
        node.datapath.fib.add_address(OWN, address.parse().unwrap());
    }
    node.port(OUTSIDE_PORT.0, uplink, &["10.2.0.254/24", "fd00:2::254/64"]);
    for flow in flows() {
        let known = Known::Permanent(mac(0x21));
        node.datapath.set_neighbour(NOW, &node.mem, OWN, flow.src, known, 0);
    }
    node
}

pub(crate) const OUTSIDE_PORT: PortId = PortId(4);

pub(crate) fn framed(to: MacAddr, from: MacAddr, ip: &[u8]) -> Vec<u8> {
    let ethertype = if ip[0] >> 4 == 4 { EtherType::IPV4 } else { EtherType::IPV6 };
    [eth::EthHeader::new(to, from, ethertype).as_bytes(), ip].concat()
}

#[test]
fn ping_to_the_bridge_is_answered_by_its_input_port() {
    for flow in flows() {
        let mut node = routed(PortOptions::BARE);
        let own = if flow.src.is_ipv4() { "10.1.0.254" } else { "fd00:1::254" };
        let ping = Flow::new(&flow.src.to_string(), own).ping(1, 8);
        node.rx_bytes(NOW, PortId(2), &framed(mac(9), mac(0x21), &ping));
        let answer = only(node.tx(PortId(2))).to_vec();
        assert_eq!((&answer[..6], &answer[6..12]), (&mac(0x21).0[..], &mac(9).0[..]));
        assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![]));
    }
}

#[test]
fn fat_packet_is_routed_to_and_from_bridge_uncut() {
    for flow in flows() {
        let mut node = routed(PortOptions::BARE.features(Features::ALL));
        let mut pkt = flow.fat_tcp(&node.mem, 1, 4200, 1400);
        let header = framed(mac(9), mac(0x21), &pkt.to_vec());
        pkt.push(&node.mem, eth::EthHeader::LEN).unwrap().copy_from_slice(&header[..eth::EthHeader::LEN]);
        node.rx(NOW, PortId(1), vec![pkt]);
        let up = only(node.tx(OUTSIDE_PORT));
        assert!(up.meta.cut.gso().is_some(), "one packet to the uplink");
        // And back, to the port of the host; a flood would be three frames.
        let back = Flow { src: flow.dst, dst: flow.src, ..flow }.fat_tcp(&node.mem, 1, 4200, 1400);
        node.rx(NOW, OUTSIDE_PORT, vec![back]);
        let down = only(node.tx(PortId(1)));
        assert!(down.meta.cut.gso().is_some() && down.to_vec()[..6] == mac(0x21).0);
        assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![]));
    }
}

#[test]
fn hosts_of_the_bridge_reach_a_tunnel_uncut() {
    let [flow, _] = flows();
    let mut node = routed(PortOptions::BARE.features(Features::ALL));
    let sa = esp("10.2.0.254", "10.2.0.9", 1, Mode::Tunnel, false);
    let protecting = policy(Dir::Out, "10.1.0.0/24", "10.2.0.1/32", std::slice::from_ref(&sa));
    node.datapath.ipsec.add_policy(protecting).unwrap();
    node.datapath.ipsec.add_sa(&sa, unique_mask()).unwrap();
    let mut pkt = flow.fat_tcp(&node.mem, 1, 3900, 1300);
    let header = framed(mac(9), mac(0x21), &pkt.to_vec());
    pkt.push(&node.mem, eth::EthHeader::LEN).unwrap().copy_from_slice(&header[..eth::EthHeader::LEN]);
    node.rx(NOW, PortId(1), vec![pkt]);
    let sealed = node.tx(OUTSIDE_PORT);
    assert_eq!((sealed.len(), node.drops()), (3, vec![]));
    assert!(sealed.iter().all(|pkt| info(pkt).protocol == Protocol::ESP));
    let copied = node.mem.copies().get(CopyReason::SegmentPayload).bytes;
    assert_eq!(copied, 0, "the ciphers alone cut it");
}

#[test]
fn bridge_in_a_vrf_is_looked_up_there() {
    let [flow, _] = flows();
    let mut node = bridged();
    node.vrf(11, 10, &[OWN.0, OUTSIDE_PORT.0]);
    node.datapath.fib.add_address(OWN, "10.1.0.254/24".parse().unwrap());
    node.port(OUTSIDE_PORT.0, PortOptions::BARE, &["10.2.0.254/24"]);
    node.rx_bytes(NOW, PortId(1), &framed(mac(9), mac(0x21), &flow.udp(10)));
    assert_eq!(only(node.tx(OUTSIDE_PORT)).to_vec(), Flow { ttl: 63, ..flow }.udp(10));
    node.datapath.fib.set_domain(OWN, Domain::DEFAULT);
    node.rx_bytes(NOW, PortId(1), &framed(mac(9), mac(0x21), &flow.udp(10)));
    assert_eq!(node.tx(OUTSIDE_PORT).len(), 0, "no route outside of the VRF");
}

#[test]
fn solicitation_is_flooded_to_every_port() {
    let mut node = routed(PortOptions::BARE);
    let far = Flow::new("10.2.0.1", "10.1.0.77");
    node.rx_bytes(NOW, OUTSIDE_PORT, &far.udp(10));
    assert_eq!(counts(&mut node), [1, 1, 1], "ARP is flooded");
    let mut reply = [mac(9).0, mac(0x77).0].concat();
    reply.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    reply.extend([&mac(0x77).0[..], &[10, 1, 0, 77], &mac(9).0, &[10, 1, 0, 254]].concat());
    node.rx_bytes(NOW, PortId(3), &reply);
    assert_eq!(counts(&mut node), [0, 0, 1], "what waited goes to the port that answered");
    assert_eq!(node.drops(), []);
}

#[test]
fn bridge_device_stays_one_when_it_is_configured_anew() {
    let mut node = routed(PortOptions::BARE);
    let mut config = node.datapath.ports.get(OWN).unwrap().config.clone();
    config.mac = Some(mac(0x19));
    node.datapath.set_port(OWN, config);
    let [flow, _] = flows();
    for (to, want) in [(mac(0x19), 1), (mac(9), 0)] {
        node.rx_bytes(NOW, PortId(1), &framed(to, mac(0x21), &flow.udp(10)));
        assert_eq!(node.tx(OUTSIDE_PORT).len(), want, "{to:?}");
    }
    let _ = counts(&mut node);
    // A removed bridge leaves its ports to the node.
    node.datapath.remove_port(NOW, &node.mem, OWN);
    node.rx_bytes(NOW, PortId(1), &framed(mac(1), mac(0x21), &flow.udp(10)));
    assert!(node.datapath.bridge_mut(OWN).is_none());
    assert_eq!(counts(&mut node), [0; 3]);
}

#[test]
fn port_that_is_down_is_passed_over_and_its_addresses_forgotten() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.rx_bytes(NOW, PortId(2), &frame(mac(0x21), mac(0x22), &ip));
    let _ = counts(&mut node);
    node.datapath.set_up(NOW, &node.mem, PortId(2), false);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 0, 1]);
    node.datapath.set_up(NOW, &node.mem, PortId(2), true);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 1, 1], "unknown again");
}

#[test]
fn fdb_address_ages_and_sets_a_timer() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.rx_bytes(NOW, PortId(2), &frame(mac(0x21), mac(0x22), &ip));
    let _ = counts(&mut node);
    let mut late = NOW;
    while let Some(at) = node.datapath.poll_timeout() {
        late = at;
        node.timeout(at);
    }
    assert!((300..330).contains(&late.since(NOW).as_secs()), "{late:?}");
    node.rx_bytes(late, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 1, 1]);
}

#[test]
fn trunk_of_next_priority_takes_over_and_is_learnt_anew() {
    use switch::{PortConfig, TrunkPriority};
    let mut node = bridged();
    for (port, priority) in [(2, 5), (3, 4)] {
        let config = PortConfig { trunk: TrunkPriority::new(priority), ..PortConfig::default() };
        node.datapath.bridge_mut(OWN).unwrap().configure(PortId(port), config).unwrap();
    }
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    let out = frame(mac(0x22), mac(0x21), &ip);
    let back = frame(mac(0x21), mac(0x22), &ip);
    node.rx_bytes(NOW, PortId(1), &out);
    assert_eq!(counts(&mut node), [0, 1, 0], "the active trunk alone");
    node.rx_bytes(NOW, PortId(3), &back);
    assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![(3, DropReason::BridgeStandby, 1)]));
    node.rx_bytes(NOW, PortId(2), &back);
    assert_eq!(counts(&mut node), [1, 0, 0]);
    // The trunk goes down: addresses learnt behind it are flushed, and unknown unicast goes to the other trunk.
    node.datapath.set_up(NOW, &node.mem, PortId(2), false);
    node.rx_bytes(NOW, PortId(1), &out);
    assert_eq!(counts(&mut node), [0, 0, 1]);
    node.rx_bytes(NOW, PortId(3), &back);
    assert_eq!(counts(&mut node), [1, 0, 0]);
    node.datapath.set_up(NOW, &node.mem, PortId(2), true);
    node.rx_bytes(NOW, PortId(1), &out);
    assert_eq!(counts(&mut node), [0, 1, 0]);
}

#[test]
fn port_that_leaves_while_frames_wait_loses_none_of_others() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    node.datapath.remove_port(NOW, &node.mem, PortId(3));
    assert_eq!(node.tx(PortId(2)).len(), 1);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(node.tx(PortId(2)).len(), 1);
    assert_eq!(node.pages_in_use(), 0);
    node.datapath.bridge(OWN).unwrap().check_invariants();
}

#[test]
fn bridge_that_is_down_forwards_nothing_until_it_is_up() {
    let mut node = bridged();
    let ip = Flow::new("10.1.0.1", "10.2.0.1").udp(10);
    node.datapath.set_up(NOW, &node.mem, OWN, false);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!((counts(&mut node), node.drops()), ([0; 3], vec![(1, DropReason::BridgeState, 1)]));
    node.datapath.set_up(NOW, &node.mem, OWN, true);
    node.rx_bytes(NOW, PortId(1), &frame(mac(0x22), mac(0x21), &ip));
    assert_eq!(counts(&mut node), [0, 1, 1]);
}

//! GRO of bridged frames: what is merged, what is not, and that frames leave a port without offloads as they came.

use base::{DropReason, PortId};
use offload::Features;
use packet::{Csum, Packet};
use sim::{AddAddress as _, Flow, Node, PortOptions, Rng};
use switch::{Vid, VlanFlags};
use wire::{EtherType, MacAddr, Protocol, eth};

use crate::common::*;

const OWN: PortId = PortId(9);
const VLANS: [u16; 2] = [5, 6];

/// Ports 1 to 4 of a bridge. The third one's device has no offloads; the fourth one's MTU is 9000, the others' 1500.
fn bridged() -> Node {
    let mut node = Node::new();
    for id in 1..=4 {
        let features = if id == 3 { Features::NONE } else { Features::ALL };
        let mtu = if id == 4 { 9000 } else { 1500 };
        node.port(id, PortOptions::ethernet(id as u8).features(features).mtu(mtu), &[]);
    }
    node.datapath.add_bridge(OWN, "br0".to_owned(), mac(9), 1500).unwrap();
    for id in 1..=4 {
        node.datapath.set_bridge(NOW, &node.mem, PortId(id), Some(OWN)).unwrap();
    }
    node
}

/// The same, with VLANs 5 and 6 tagged on every port.
fn tagged() -> Node {
    let mut node = bridged();
    let bridge = node.datapath.bridge_mut(OWN).unwrap();
    bridge.set_vlan_filtering(true);
    for id in 1..=4 {
        for vlan in VLANS {
            let vid = Vid::new(vlan).unwrap();
            bridge.add_vlans(Some(PortId(id)), vid, vid, VlanFlags::default()).unwrap();
        }
    }
    node
}

fn without_gro(mut node: Node) -> Node {
    for id in 1..=4 {
        let mut config = node.datapath.ports.get(PortId(id)).unwrap().config.clone();
        config.gro = false;
        node.datapath.set_port(PortId(id), config);
    }
    node
}

fn ether(ip: &[u8]) -> EtherType {
    if ip[0] >> 4 == 6 { EtherType::IPV6 } else { EtherType::IPV4 }
}

fn frame(to: MacAddr, from: MacAddr, ip: &[u8]) -> Vec<u8> {
    [eth::EthHeader::new(to, from, ether(ip)).as_bytes(), ip].concat()
}

fn with_tag(mut frame: Vec<u8>, vlan: u16) -> Vec<u8> {
    frame.splice(12..12, [0x81, 0, 0, vlan as u8]);
    frame
}

fn rx(node: &mut Node, link: u32, frames: &[Vec<u8>]) {
    let burst = frames.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
    node.rx(NOW, PortId(link), burst);
}

fn sent(node: &mut Node, link: u32) -> Vec<Vec<u8>> {
    node.tx(PortId(link)).iter().map(Packet::to_vec).collect()
}

/// Segments of one stream of TCP, 1400 bytes each.
fn segments(flow: Flow, count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|at| frame(mac(0x22), mac(0x21), &flow.tcp(1 + at * 1400, 1400))).collect()
}

/// Payload lengths of the segments that each sent packet has.
fn fat_counts(node: &mut Node, link: u32) -> Vec<u16> {
    node.tx(PortId(link)).iter().map(|pkt| pkt.meta.cut.gso().map_or(1, |gso| gso.segs)).collect()
}

fn flows() -> [Flow; 2] {
    [Flow::new("10.1.0.1", "10.2.0.1"), Flow::new("fd00:1::1", "fd00:2::1")]
}

#[test]
fn frames_of_a_stream_cross_as_one_and_leave_as_they_came() {
    for flow in flows() {
        let mut node = bridged();
        let frames = segments(flow, 5);
        rx(&mut node, 1, &frames);
        let fat = node.tx(PortId(2));
        assert_eq!(fat.len(), 1, "{flow:?}");
        let gso = fat[0].meta.cut.gso().expect("a fat frame");
        assert_eq!((gso.segs, gso.size), (5, 1400));
        assert_eq!(fat[0].to_vec()[..14], frames[0][..14]);
        assert_eq!(sent(&mut node, 3), frames, "{flow:?}");
        assert_eq!(node.drops(), []);
        assert_eq!(node.datapath.bridge(OWN).unwrap().port(PortId(1)).unwrap().stats().rx_packets, 1, "one decision");
    }
}

#[test]
fn datagrams_of_a_flow_cross_as_one_and_leave_as_they_came() {
    for flow in flows() {
        let mut node = bridged();
        let frames = vec![frame(mac(0x22), mac(0x21), &flow.udp(1200)); 4];
        rx(&mut node, 1, &frames);
        assert_eq!(sent(&mut node, 3), frames, "{flow:?}");
        assert_eq!(fat_counts(&mut node, 2), [4]);
    }
}

#[test]
fn port_without_gro_passes_frames_one_by_one() {
    let mut node = without_gro(bridged());
    let frames = segments(flows()[0], 3);
    rx(&mut node, 1, &frames);
    assert_eq!(fat_counts(&mut node, 2), [1, 1, 1]);
    assert_eq!(sent(&mut node, 3), frames);
}

#[test]
fn other_ethernet_header_or_tag_is_not_merged() {
    let ip = |at: u32| flows()[0].tcp(1 + at * 1400, 1400);
    // Another source, another destination, in the middle of a stream.
    for [to, from] in [[mac(0x22), mac(0x23)], [mac(0x24), mac(0x21)]] {
        let mut node = bridged();
        let frames = [
            frame(mac(0x22), mac(0x21), &ip(0)),
            frame(mac(0x22), mac(0x21), &ip(1)),
            frame(to, from, &ip(2)),
            frame(to, from, &ip(3)),
        ];
        rx(&mut node, 1, &frames);
        assert_eq!(fat_counts(&mut node, 2), [2, 2]);
        assert_eq!(sent(&mut node, 3), frames);
    }
    let mut node = tagged();
    let frames: Vec<_> = [5, 5, 6, 6]
        .into_iter()
        .zip(0..)
        .map(|(vlan, at)| with_tag(frame(mac(0x22), mac(0x21), &ip(at)), vlan))
        .collect();
    rx(&mut node, 1, &frames);
    assert_eq!(fat_counts(&mut node, 2), [2, 2]);
    assert_eq!(sent(&mut node, 3), frames);
}

#[test]
fn frames_of_two_links_are_not_merged() {
    let mut node = bridged();
    let frames = segments(flows()[0], 2);
    let burst = |node: &Node, at: usize| vec![Packet::with_data(&node.mem, &frames[at]).unwrap()];
    // Two links in one call of the worker.
    for (link, at) in [(1, 0), (4, 1)] {
        let mut burst = burst(&node, at);
        node.datapath.receive_burst(NOW, &node.mem, PortId(link), &mut burst);
    }
    node.datapath.finish(NOW, &node.mem);
    assert_eq!(fat_counts(&mut node, 2), [1, 1]);
}

/// A guest's device may claim that a checksum is valid. Merged, it would become one.
#[test]
fn wrong_checksum_stays_wrong_whatever_the_device_claims() {
    for csum in [Csum::None, Csum::Unnecessary] {
        let mut node = bridged();
        let mut frames = segments(flows()[0], 3);
        *frames[1].last_mut().unwrap() ^= 1;
        let burst = frames
            .iter()
            .map(|bytes| {
                let mut pkt = Packet::with_data(&node.mem, bytes).unwrap();
                pkt.meta.csum = csum;
                pkt
            })
            .collect();
        node.rx(NOW, PortId(1), burst);
        assert_eq!(fat_counts(&mut node, 2), [1, 1, 1]);
        assert_eq!(sent(&mut node, 3), frames);
    }
}

#[test]
fn frames_that_are_not_merged_leave_unchanged() {
    let flow = flows()[0];
    let to_group = MacAddr([1, 0, 0x5e, 0, 0, 5]);
    let mut frames = vec![
        frame(mac(0x22), mac(0x21), &flow.tcp(1, 1400)),
        // Padded to the shortest frame.
        [frame(mac(0x22), mac(0x21), &flow.tcp(1401, 1)), vec![7; 5]].concat(),
        frame(mac(0x22), mac(0x21), &flow.raw(Protocol(253), &[1; 100])),
        frame(to_group, mac(0x21), &flow.udp(100)),
        [eth::EthHeader::new(mac(0x22), mac(0x21), EtherType(0x88b5)).as_bytes(), &[3; 60]].concat(),
        // An IP header that is cut.
        [eth::EthHeader::new(mac(0x22), mac(0x21), EtherType::IPV4).as_bytes(), &[0x45; 7]].concat(),
        eth::EthHeader::new(mac(0x22), mac(0x21), EtherType::IPV6).as_bytes().to_vec(),
    ];
    // A wrong version for its type.
    frames.push({
        let mut odd = frame(mac(0x22), mac(0x21), &flow.tcp(1401, 1400));
        odd[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        odd
    });
    let mut node = bridged();
    rx(&mut node, 1, &frames);
    let mut got = sent(&mut node, 3);
    let mut want = frames;
    got.sort();
    want.sort();
    assert!(got == want, "{got:x?}");
}

/// A frame that is too long for a port is dropped there, also if it was merged: its own length counts.
#[test]
fn merged_frames_do_not_pass_an_mtu_that_each_exceeds() {
    for gro in [true, false] {
        let mut node = if gro { bridged() } else { without_gro(bridged()) };
        let flow = flows()[0];
        let long: Vec<_> = (0..3).map(|at| frame(mac(0x22), mac(0x21), &flow.tcp(1 + at * 4000, 4000))).collect();
        rx(&mut node, 4, &long);
        assert_eq!([1, 2, 3].map(|id| sent(&mut node, id).len()), [0; 3], "{gro}");
        // A super-packet counts once.
        assert_eq!(node.drops(), [(4, DropReason::BridgeTooBig, if gro { 1 } else { 3 })]);
        // A guest's own fat frame passes, as on Linux.
        let mut fat = flow.fat_tcp(&node.mem, 1, 8000, 4000);
        let header = eth::EthHeader::new(mac(0x22), mac(0x21), EtherType::IPV4);
        fat.push(&node.mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
        node.rx(NOW, PortId(4), vec![fat]);
        assert_eq!(sent(&mut node, 2).len(), 1, "{gro}");
    }
}

#[test]
fn more_ethernet_headers_than_gro_keeps_lose_no_frame() {
    let mut node = bridged();
    let frames: Vec<_> = (0..200_u8)
        .map(|at| {
            let flow = Flow { sport: 1000 + u16::from(at), ..flows()[0] };
            frame(mac(0x22), MacAddr([2, 0, 0, 0, 1, at]), &flow.tcp(1, 1400))
        })
        .collect();
    rx(&mut node, 1, &frames);
    let mut got = sent(&mut node, 3);
    got.sort();
    assert_eq!(got, frames);
}

#[test]
fn frames_held_when_a_port_changes_are_forwarded_before() {
    type Change = fn(&mut Node);
    let changes: [Change; 3] = [
        |node| node.datapath.set_bridge(NOW, &node.mem, PortId(1), None).unwrap(),
        |node| node.datapath.set_up(NOW, &node.mem, PortId(1), false),
        |node| node.datapath.remove_port(NOW, &node.mem, PortId(1)),
    ];
    for change in changes {
        let mut node = bridged();
        let frames = segments(flows()[0], 2);
        let mut burst: Vec<_> = frames.iter().map(|bytes| Packet::with_data(&node.mem, bytes).unwrap()).collect();
        node.datapath.receive_burst(NOW, &node.mem, PortId(1), &mut burst);
        change(&mut node);
        node.datapath.finish(NOW, &node.mem);
        let lost: u64 = node.drops().iter().map(|(_, _, count)| count).sum();
        assert_eq!(sent(&mut node, 3).len() as u64 + 2 * lost, 2, "forwarded, or a counted drop: {:?}", node.drops());
        drop(node.tx(PortId(2)));
        drop(node.tx(PortId(4)));
        assert_eq!(node.pages_in_use(), 0);
    }
}

/// The node behind the bridge's device receives what a stream carries once for all its frames.
#[test]
fn frames_for_the_node_reach_its_device_as_one() {
    let mut node = bridged();
    node.datapath.fib.add_address(OWN, "10.2.0.254/24".parse().unwrap());
    node.port(5, PortOptions::BARE, &["10.3.0.254/24"]);
    let flow = Flow::new("10.2.0.1", "10.3.0.1");
    let frames: Vec<_> = (0..4).map(|at| frame(mac(9), mac(0x21), &flow.tcp(1 + at * 1400, 1400))).collect();
    rx(&mut node, 1, &frames);
    assert_eq!(fat_counts(&mut node, 5), [4]);
    assert_eq!(node.datapath.forwarded.packets, 1);
}

/// Random frames leave a port without offloads as they do without GRO: the same frames, in the same order between any two addresses,
/// and between VLANs.
#[test]
fn random_streams_leave_as_without_gro() {
    let (mut received, mut forwarded) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let mut sequences = [[1_u32; 2]; 8];
        let frames: Vec<Vec<u8>> = (0..60)
            .map(|_| {
                let which = rng.below(8);
                let version = which % 2;
                let flow = Flow { sport: 1000 + (which / 4) as u16, ..flows()[version] };
                let flow = if which & 2 == 0 { flow } else { flow.reversed() };
                let len = *[1400_u32, 1400, 1400, 1400, 600, 1, 0].get(rng.below(7)).unwrap();
                let vlan = if rng.below(8) == 0 { 1 } else { 0 };
                let seq = &mut sequences[which][vlan];
                let from = mac(if rng.below(10) == 0 { 0x31 } else { 0x21 });
                let mut bytes = match rng.below(10) {
                    0 => frame(mac(0x22), from, &flow.udp(500)),
                    1 => frame(mac(0x22), from, &flow.raw(Protocol(253), &[1; 40])),
                    _ => {
                        let bytes = frame(mac(0x22), from, &flow.tcp(*seq, len as usize));
                        *seq += len;
                        bytes
                    }
                };
                if rng.below(20) == 0 {
                    *bytes.last_mut().unwrap() ^= 0x10;
                }
                with_tag(bytes, VLANS[vlan])
            })
            .collect();
        let through = |mut node: Node| {
            for burst in frames.chunks(17) {
                rx(&mut node, 1, burst);
            }
            assert_eq!(node.drops(), []);
            let decisions = node.datapath.bridge(OWN).unwrap().port(PortId(1)).unwrap().stats().rx_packets;
            (sent(&mut node, 3), decisions)
        };
        let [(with, decisions), (without, _)] = [through(tagged()), through(without_gro(tagged()))];
        received += frames.len() as u64;
        forwarded += decisions;
        assert_eq!(without, frames);
        // Frames of other flows may be overtaken.
        let flow = |bytes: &Vec<u8>| {
            let info = wire::ip::Info::parse(&bytes[18..], bytes.len() - 18).unwrap();
            let ports = bytes[18 + info.header_len..].first_chunk::<4>().copied();
            (info.src, info.dst, info.protocol.0, ports)
        };
        let of_flow = |all: &[Vec<u8>], which| all.iter().filter(|it| flow(it) == which).cloned().collect::<Vec<_>>();
        assert_eq!(with.len(), without.len());
        for which in frames.iter().map(flow) {
            assert!(of_flow(&with, which) == of_flow(&without, which), "seed {seed}, {which:?}");
        }
    }
    assert!(forwarded * 10 < received * 9, "{forwarded} of {received}: hardly any is merged");
}

//! Matrix of a bridge: each egress that lacks an offload, for each shape of a received frame. What leaves fits the device, and is what
//! came in when the device has done its part.

use base::LinkId;
use offload::{CsumOffload, Features, checksum};
use packet::{Buf, Csum, Cut, Memory, Packet};
use sim::{Flow, Node, PortOptions};
use switch::{Vid, VlanFlags};
use wire::{EtherType, Protocol, Version, eth};

use crate::common::*;

const OWN: LinkId = LinkId(9);
const VLAN: u16 = 5;
/// Ethernet header with a tag.
const TAGGED: usize = eth::Header::LEN + 4;
/// Payload of a segment.
const SIZE: u16 = 1400;

/// A device without offloads, ones that lack one each, ones with a limit, and one that has everything.
fn egresses() -> Vec<(&'static str, Features)> {
    let all = Features { frames: false, ..Features::ALL };
    vec![
        ("everything", all),
        ("nothing", Features::NONE),
        ("no scatter-gather", Features { sg: false, ..all }),
        ("no frag list", Features { frag_list: false, ..all }),
        ("no checksums", Features { csum: CsumOffload::None, ..all }),
        ("checksums of IPv4", Features { csum: CsumOffload::Ipv4, ..all }),
        ("checksums of IPv6", Features { csum: CsumOffload::Ipv6, ..all }),
        ("checksums by protocol", Features { csum: CsumOffload::Both, ..all }),
        ("no TSO of IPv4", Features { tso4: false, ..all }),
        ("no TSO of IPv6", Features { tso6: false, ..all }),
        ("no UDP segmentation", Features { uso: false, ..all }),
        ("no TSO with CWR", Features { tso_ecn: false, ..all }),
        ("fat packets below 3000 bytes", Features { gso_max_size: 3000, ..all }),
        ("two segments", Features { gso_max_segs: 2, ..all }),
    ]
}

/// Shape of a received frame: whether it is fat, has its checksum to come, and in which pieces it lies.
#[derive(Clone, Copy, Debug)]
struct Shape {
    fat: bool,
    partial: bool,
    pieces: Pieces,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pieces {
    Linear,
    Slots,
    FragList,
}

impl Shape {
    fn all() -> Vec<Self> {
        let forms = [(false, false), (false, true), (true, true)];
        let pieces = [Pieces::Linear, Pieces::Slots, Pieces::FragList];
        forms.into_iter().flat_map(|(fat, partial)| pieces.map(|pieces| Self { fat, partial, pieces })).collect()
    }
}

/// Two ports of a bridge, of which the second one has VLAN 5 tagged and leads to a device with `features`.
fn bridged(features: Features, is_tagged: bool) -> Node {
    let mut node = Node::new();
    node.port(1, PortOptions::ethernet(1).features(Features::ALL), &[]);
    node.port(2, PortOptions::ethernet(2).features(features), &[]);
    node.datapath.add_bridge(OWN, "br0".to_owned(), mac(9), 1500).unwrap();
    for id in 1..=2 {
        node.datapath.set_bridge(NOW, &node.mem, LinkId(id), Some(OWN)).unwrap();
    }
    if is_tagged {
        let vid = Vid::new(VLAN).unwrap();
        let bridge = node.datapath.bridge_mut(OWN).unwrap();
        bridge.set_vlan_filtering(true);
        bridge.add_vlans(Some(LinkId(1)), vid, vid, VlanFlags::DEFAULT_PVID).unwrap();
        bridge.add_vlans(Some(LinkId(2)), vid, vid, VlanFlags::default()).unwrap();
    }
    node
}

/// A frame of that shape, in pieces of its own.
fn frame(mem: &Memory, flow: &Flow, is_tcp: bool, shape: Shape) -> Packet {
    let len = if shape.fat { 4 * usize::from(SIZE) + 100 } else { 900 };
    let whole = match (is_tcp, shape.partial) {
        (true, false) => Packet::with_data(mem, &flow.tcp(1, len)).unwrap(),
        (false, false) => Packet::with_data(mem, &flow.udp(len)).unwrap(),
        (true, true) => flow.fat_tcp(mem, 1, len, SIZE),
        (false, true) => flow.fat_udp(mem, len, SIZE),
    };
    let mut meta = whole.meta.clone();
    if !shape.fat {
        meta.cut = Cut::Whole;
    }
    let bytes = whole.to_vec();
    let head = 80.min(bytes.len());
    let mut pkt = match shape.pieces {
        Pieces::Linear => Packet::with_data(mem, &bytes).unwrap(),
        Pieces::Slots | Pieces::FragList => {
            let mut pkt = Packet::with_data(mem, &bytes[..head]).unwrap();
            for part in bytes[head..].chunks(1000) {
                let mut buf: Buf = mem.take(0, part.len()).unwrap();
                buf.put(part.len()).unwrap().copy_from_slice(part);
                match shape.pieces {
                    Pieces::FragList => pkt.push_child(Packet::from_buf(buf)),
                    _ => pkt.push_frag(buf).unwrap(),
                }
            }
            pkt
        }
    };
    pkt.meta = meta;
    let ethertype = if flow.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let header = eth::Header::new(mac(0x22), mac(0x21), ethertype);
    pkt.push(mem, eth::Header::LEN).unwrap().copy_from_slice(header.as_bytes());
    pkt
}

/// Payload of a finished IP packet whose checksums are right.
fn payload(mem: &Memory, ip: &[u8]) -> Vec<u8> {
    let pkt = Packet::with_data(mem, ip).unwrap();
    let info = info(&pkt);
    assert!(checksum::verify(&pkt, &info), "checksum");
    let l4 = if info.version() == Version::V4 {
        assert_eq!(wire::checksum::fold(wire::checksum::sum(&ip[..20])), 0xffff, "checksum of the header");
        20
    } else {
        40
    };
    let header = if info.protocol == Protocol::TCP { usize::from(ip[l4 + 12] >> 4) * 4 } else { 8 };
    ip[l4 + header..].to_vec()
}

/// Checks that a device was promised to take what it is given.
fn assert_fits(pkt: &Packet, features: &Features, case: &str) {
    assert!(features.sg || pkt.is_linear(), "{case}: pieces");
    assert!(features.frag_list || pkt.frag_list().is_empty(), "{case}: frag list");
    assert!(features.csum != CsumOffload::None || !matches!(pkt.meta.csum, Csum::Partial { .. }), "{case}: checksum");
    assert!(pkt.meta.cut.gso().is_none_or(|gso| features.cuts(gso, pkt.len())), "{case}: fat");
    assert!(pkt.meta.vlan.is_none(), "{case}: tag");
}

#[test]
fn every_shape_leaves_by_every_egress_as_it_came() {
    let mut cases = 0;
    for (name, features) in egresses() {
        for flow in flows() {
            for is_tcp in [true, false] {
                for shape in Shape::all() {
                    for is_tagged in [false, true] {
                        let case = format!("{name}, {shape:?}, TCP {is_tcp}, tag {is_tagged}, {}", flow.src);
                        cross(features, &flow, is_tcp, shape, is_tagged, &case);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert_eq!(cases, 14 * 2 * 2 * 9 * 2);
}

fn cross(features: Features, flow: &Flow, is_tcp: bool, shape: Shape, is_tagged: bool, case: &str) {
    let mut node = bridged(features, is_tagged);
    let pkt = frame(&node.mem, flow, is_tcp, shape);
    let l4 = if flow.src.is_ipv4() { 20 } else { 40 };
    let header = if is_tcp { 20 } else { 8 };
    let sent = pkt.to_vec()[eth::Header::LEN + l4..].to_vec();
    let sent = if is_tcp { sent[usize::from(sent[12] >> 4) * 4..].to_vec() } else { sent[header..].to_vec() };
    let copied = node.mem.copies().total_bytes();
    node.rx(NOW, LinkId(1), vec![pkt]);
    assert_eq!(node.drops(), [], "{case}");
    let packets = node.tx(LinkId(2));
    if features == (Features { frames: false, ..Features::ALL }) {
        assert_eq!(packets.len(), 1, "{case}");
        assert_eq!(node.mem.copies().total_bytes(), copied, "{case}: copied");
    }
    let l3 = if is_tagged { TAGGED } else { eth::Header::LEN };
    let mut wire = Vec::new();
    for pkt in packets {
        assert_fits(&pkt, &features, case);
        offload::fit(&node.mem, &Features::NONE, pkt, l3, &mut wire).unwrap();
    }
    let mut got = Vec::new();
    for pkt in wire {
        let bytes = pkt.to_vec();
        assert_eq!((&bytes[..6], &bytes[6..12]), (&mac(0x22).0[..], &mac(0x21).0[..]), "{case}");
        if is_tagged {
            assert_eq!(bytes[12..16], [0x81, 0, 0, VLAN as u8], "{case}");
        }
        let ip = &bytes[l3..];
        assert!(ip.len() <= 1500, "{case}: {} bytes", ip.len());
        got.extend(payload(&node.mem, ip));
    }
    assert!(got == sent, "{case}: payload");
}

#[test]
fn tagged_frames_that_wait_are_fitted_to_fewer_features() {
    let all = Features { frames: false, ..Features::ALL };
    for flow in flows() {
        for is_tagged in [false, true] {
            let mut node = bridged(all, is_tagged);
            let shape = Shape { fat: true, partial: true, pieces: Pieces::FragList };
            let pkt = frame(&node.mem, &flow, true, shape);
            node.rx(NOW, LinkId(1), vec![pkt]);
            node.datapath.refit(&node.mem, LinkId(2), Features::NONE);
            assert_eq!(node.drops(), [], "tag {is_tagged}");
            let packets = node.tx(LinkId(2));
            assert_eq!(packets.len(), 5, "tag {is_tagged}");
            let l3 = if is_tagged { TAGGED } else { eth::Header::LEN };
            for pkt in packets {
                assert_fits(&pkt, &Features::NONE, "refit");
                payload(&node.mem, &pkt.to_vec()[l3..]);
            }
        }
    }
}

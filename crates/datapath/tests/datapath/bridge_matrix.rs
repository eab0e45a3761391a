//! Matrix of a bridge: each egress that lacks an offload, for each shape of a received frame. The sent frames fit the
//! device, and equal the received frame after the offloads of the device.

use base::PortId;
use offload::{CsumOffload, Features, checksum};
use packet::{Buf, Csum, Cut, Memory, Packet};
use sim::{Flow, Node, PortOptions};
use switch::{Vid, VlanFlags};
use wire::{EtherType, Version, eth, tcp};

use crate::common::*;

const OWN: PortId = PortId(99);
const VLAN: u16 = 5;
/// Ethernet header with a tag.
const TAGGED: usize = eth::EthHeader::LEN + 4;
/// Payload of a segment.
const SIZE: u16 = 1300;
/// VXLAN header of network 5.
const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 5, 0];

/// A device without offloads, devices that lack one offload each, devices with a limit, and a device with all offloads.
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

/// Shape of a received frame: whether it is a super-packet, whether its checksum is partial, and its geometry.
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

/// A bridge whose port 1 takes everything, and whose ports from 2 on lead to devices with `features`; these have VLAN 5
/// tagged.
fn bridged(features: &[Features], is_tagged: bool) -> Node {
    let mut node = Node::new();
    let ports = 1 + features.len() as u32;
    for (id, &features) in (1..=ports).zip([Features::ALL].iter().chain(features)) {
        node.port(id, PortOptions::ethernet(id as u8).features(features), &[]);
    }
    node.datapath.add_bridge(OWN, "br0".to_owned(), mac(99), 1500).unwrap();
    for id in 1..=ports {
        node.datapath.set_bridge(NOW, &node.mem, PortId(id), Some(OWN)).unwrap();
    }
    if is_tagged {
        let vid = Vid::new(VLAN).unwrap();
        let bridge = node.datapath.bridge_mut(OWN).unwrap();
        bridge.set_vlan_filtering(true);
        bridge.add_vlans(Some(PortId(1)), vid, vid, VlanFlags::DEFAULT_PVID).unwrap();
        for id in 2..=ports {
            bridge.add_vlans(Some(PortId(id)), vid, vid, VlanFlags::default()).unwrap();
        }
    }
    node
}

/// Protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Tcp,
    Udp,
    /// TCP over IPv4, or over IPv6, in VXLAN.
    Vxlan(Version),
}

impl Content {
    const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Vxlan(Version::V4), Self::Vxlan(Version::V6)];

    /// An IP packet of the flow, and its payload.
    fn packet(self, mem: &Memory, flow: &Flow, shape: Shape) -> (Packet, Vec<u8>) {
        let len = if shape.fat { 4 * usize::from(SIZE) + 100 } else { 900 };
        let (mut pkt, payload_at) = match (self, shape.partial) {
            (Self::Tcp, false) => (Packet::with_data(mem, &flow.tcp(1, len)).unwrap(), flow.tcp_headers()),
            (Self::Tcp, true) => (flow.fat_tcp(mem, 1, len, SIZE), flow.tcp_headers()),
            (Self::Udp, false) => (Packet::with_data(mem, &flow.udp(len)).unwrap(), flow.version().header_len() + 8),
            (Self::Udp, true) => (flow.fat_udp(mem, len, SIZE), flow.version().header_len() + 8),
            (Self::Vxlan(version), is_partial) => in_vxlan(mem, flow, version, len, is_partial),
        };
        if !shape.fat {
            pkt.meta.cut = Cut::Whole;
        }
        let payload = pkt.to_vec()[payload_at..].to_vec();
        assert_eq!(payload.len(), len);
        (pkt, payload)
    }
}

/// TCP in VXLAN, and where its payload begins. The check of the outer UDP is right once the inner one is complete
/// (local checksum offload, Linux `lco_csum`).
fn in_vxlan(mem: &Memory, outer: &Flow, version: Version, len: usize, is_partial: bool) -> (Packet, usize) {
    let (inner, ethertype) = match version {
        Version::V4 => (Flow::new("172.31.0.1", "172.31.0.2"), [8, 0]),
        Version::V6 => (Flow::new("fd00:31::1", "fd00:31::2"), [0x86, 0xdd]),
    };
    let whole = inner.tcp(1, len);
    let mut bytes = outer.udp_with(&[&VXLAN, &[2; 12][..], &ethertype, &whole].concat());
    let at = bytes.len() - whole.len();
    let unfinished = inner.fat_tcp(mem, 1, len, SIZE);
    if is_partial {
        bytes[at..].copy_from_slice(&unfinished.to_vec());
    }
    let mut pkt = Packet::with_data(mem, &bytes).unwrap();
    if is_partial {
        let start = (at + version.header_len()) as u16;
        pkt.meta.csum = Csum::Partial { start, offset: tcp::CHECK_AT as u16 };
        pkt.meta.cut = unfinished.meta.cut;
    }
    (pkt, at + inner.tcp_headers())
}

/// A frame of that shape, in pieces of its own, and the payload in it.
fn frame(mem: &Memory, flow: &Flow, content: Content, shape: Shape) -> (Packet, Vec<u8>) {
    let (whole, payload) = content.packet(mem, flow, shape);
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
    pkt.meta = whole.meta.clone();
    let ethertype = if flow.src.is_ipv4() { EtherType::IPV4 } else { EtherType::IPV6 };
    let header = eth::EthHeader::new(mac(0x22), mac(0x21), ethertype);
    pkt.push(mem, eth::EthHeader::LEN).unwrap().copy_from_slice(header.as_bytes());
    (pkt, payload)
}

/// Payload of a finished IP packet whose checksums are right, in VXLAN those of both packets.
fn payload(mem: &Memory, content: Content, ip: &[u8]) -> Vec<u8> {
    let pkt = Packet::with_data(mem, ip).unwrap();
    let info = info(&pkt);
    assert!(checksum::verify(&pkt, &info), "checksum");
    let l4 = info.version().header_len();
    if info.version() == Version::V4 {
        assert_eq!(wire::checksum::fold(wire::checksum::sum(&ip[..20])), 0xffff, "checksum of the header");
    }
    match content {
        Content::Tcp => ip[l4 + usize::from(ip[l4 + 12] >> 4) * 4..].to_vec(),
        Content::Udp => ip[l4 + 8..].to_vec(),
        Content::Vxlan(version) => {
            assert_eq!(ip[l4 + 8..l4 + 16], VXLAN);
            let inner = &ip[l4 + 8 + VXLAN.len() + eth::EthHeader::LEN..];
            assert_eq!(inner[0] >> 4, if version == Version::V4 { 4 } else { 6 });
            payload(mem, Content::Tcp, inner)
        }
    }
}

/// Checks that a frame needs only offloads that its device has.
fn assert_fits(pkt: &Packet, features: &Features, case: &str) {
    assert!(features.sg || pkt.is_linear(), "{case}: pieces");
    assert!(features.frag_list || pkt.frag_list().is_empty(), "{case}: frag list");
    assert!(features.csum != CsumOffload::None || !matches!(pkt.meta.csum, Csum::Partial { .. }), "{case}: checksum");
    assert!(pkt.meta.cut.gso().is_none_or(|gso| features.cuts(gso, pkt.len())), "{case}: fat");
    assert!(pkt.meta.vlan.is_none(), "{case}: tag");
}

#[test]
fn every_geometry_leaves_by_every_egress_unchanged() {
    let mut cases = 0;
    for (name, features) in egresses() {
        for flow in flows() {
            for content in Content::ALL {
                for shape in Shape::all() {
                    for is_tagged in [false, true] {
                        let case = format!("{name}, {shape:?}, {content:?}, tag {is_tagged}, {}", flow.src);
                        cross(features, &flow, content, shape, is_tagged, &case);
                        cases += 1;
                    }
                }
            }
        }
    }
    assert_eq!(cases, 14 * 2 * 4 * 9 * 2);
}

fn cross(features: Features, flow: &Flow, content: Content, shape: Shape, is_tagged: bool, case: &str) {
    let mut node = bridged(&[features], is_tagged);
    let (pkt, sent) = frame(&node.mem, flow, content, shape);
    let copied = node.mem.copies().total_bytes();
    node.rx(NOW, PortId(1), vec![pkt]);
    assert_eq!(node.drops(), [], "{case}");
    let packets = node.tx(PortId(2));
    // No device gets the offsets of tunnel headers.
    let is_cut = shape.fat && matches!(content, Content::Vxlan(_));
    if features == (Features { frames: false, ..Features::ALL }) && !is_cut {
        assert_eq!(packets.len(), 1, "{case}");
        assert_eq!(node.mem.copies().total_bytes(), copied, "{case}: copied");
    }
    let got = arrived(&node.mem, packets, features, content, is_tagged, case);
    assert!(got == sent, "{case}: payload");
}

/// Checks the frame for a device and applies its offloads. Returns the payload on the wire.
fn arrived(
    mem: &Memory,
    packets: Vec<Packet>,
    features: Features,
    content: Content,
    is_tagged: bool,
    case: &str,
) -> Vec<u8> {
    let l3 = if is_tagged { TAGGED } else { eth::EthHeader::LEN };
    let mut wire = Vec::new();
    for pkt in packets {
        assert_fits(&pkt, &features, case);
        offload::fit(mem, &Features::NONE, pkt, l3, &mut wire).unwrap();
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
        got.extend(payload(mem, content, ip));
    }
    got
}

/// The first frame of a flow is the one that a switch with a slow path handles apart, with wrong checksums (Open
/// vSwitch's upcalls). Here it is flooded to every device, and the next one is sent to one device.
#[test]
fn first_frame_of_a_connection_is_right_at_every_egress() {
    let egresses = egresses();
    let features: Vec<Features> = egresses.iter().map(|(_, features)| *features).collect();
    for (flow, is_tagged) in flows().into_iter().flat_map(|flow| [(flow, false), (flow, true)]) {
        for content in Content::ALL {
            for shape in Shape::all() {
                let mut node = bridged(&features, is_tagged);
                for is_known in [false, true] {
                    let (pkt, sent) = frame(&node.mem, &flow, content, shape);
                    node.rx(NOW, PortId(1), vec![pkt]);
                    for (id, (name, features)) in (2..).map(PortId).zip(&egresses) {
                        let case = format!("{name}, {shape:?}, {content:?}, tag {is_tagged}, known {is_known}");
                        let packets = node.tx(id);
                        let got = arrived(&node.mem, packets, *features, content, is_tagged, &case);
                        assert!(got == if is_known && id != PortId(2) { Vec::new() } else { sent.clone() }, "{case}");
                    }
                    // The station answers behind the first device.
                    let tag: &[u8] = if is_tagged { &[0x81, 0, 0, VLAN as u8] } else { &[] };
                    let answer = [&mac(0x21).0[..], &mac(0x22).0, tag, &[0x88, 0xb5], &[0; 46]].concat();
                    node.rx_bytes(NOW, PortId(2), &answer);
                    assert_eq!(node.tx(PortId(1)).len(), 1);
                }
                assert_eq!((node.drops(), node.pages_in_use()), (vec![], 0));
            }
        }
    }
}

#[test]
fn tagged_frames_that_wait_are_fitted_to_fewer_features() {
    let all = Features { frames: false, ..Features::ALL };
    for flow in flows() {
        for is_tagged in [false, true] {
            let mut node = bridged(&[all], is_tagged);
            let shape = Shape { fat: true, partial: true, pieces: Pieces::FragList };
            let (pkt, sent) = frame(&node.mem, &flow, Content::Tcp, shape);
            node.rx(NOW, PortId(1), vec![pkt]);
            node.datapath.refit(NOW, &node.mem, PortId(2), Features::NONE);
            assert_eq!(node.drops(), [], "tag {is_tagged}");
            let packets = node.tx(PortId(2));
            assert_eq!(packets.len(), 5, "tag {is_tagged}");
            let got = arrived(&node.mem, packets, Features::NONE, Content::Tcp, is_tagged, "refit");
            assert!(got == sent, "payload");
        }
    }
}

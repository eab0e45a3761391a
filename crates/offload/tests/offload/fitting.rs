//! Every device with every packet: the fitted packets are sendable by the device, and correct on the wire.

use base::DropReason;
use offload::{CsumOffload, Features, fit};
use packet::{Buf, CopyReason, Csum, Cut, Frames, Gso, GsoKind, Memory, Packet};

use crate::frames::*;

const L2: [u8; 14] = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];

/// Every combination of features.
fn devices() -> impl Iterator<Item = Features> {
    let csums = [CsumOffload::None, CsumOffload::Ipv4, CsumOffload::Ipv6, CsumOffload::Both, CsumOffload::Any];
    csums.into_iter().flat_map(|csum| {
        (0..64u32).map(move |bits| Features {
            sg: bits & 1 != 0,
            frag_list: bits & 2 != 0,
            tso4: bits & 4 != 0,
            tso6: bits & 8 != 0,
            uso: bits & 16 != 0,
            tso_ecn: bits & 32 != 0,
            csum,
            ..Features::ALL
        })
    })
}

/// Shape of a packet: linear, with page fragments, with children.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Shape {
    Linear,
    Slots,
    Children,
}

fn shaped(mem: &Memory, data: &[u8], header_len: usize, shape: Shape) -> Packet {
    let (headers, payload) = data.split_at(header_len);
    let mut packet = match shape {
        Shape::Linear => return Packet::with_data(mem, data).unwrap(),
        _ => Packet::with_data(mem, headers).unwrap(),
    };
    for piece in payload.chunks(101) {
        let piece = Packet::with_data(mem, piece).unwrap();
        if shape == Shape::Slots { packet.append(piece) } else { packet.push_child(piece) }
    }
    packet
}

fn partial_check(packet: &mut Packet, frame: &Frame) {
    // The field as left by a stack: completion gives the correct checksum.
    let l4 = L2.len() + if frame.v6 { 40 } else { 20 };
    let offset = if frame.protocol == UDP { 6 } else { 16 };
    let bytes = packet.to_vec();
    let addresses = if frame.v6 { &bytes[22..54] } else { &bytes[26..34] };
    let len = ((bytes.len() - l4) as u32).to_be_bytes();
    let sum = plain_sum(&[addresses, &len, &[0, 0, 0, frame.protocol]].concat());
    packet.head_mut().unwrap()[l4 + offset..l4 + offset + 2].copy_from_slice(&sum.to_be_bytes());
    packet.meta.csum = Csum::Partial { start: l4 as u16, offset: offset as u16 };
}

fn gso(frame: &Frame) -> Gso {
    let kind = match (frame.protocol, frame.v6) {
        (UDP, _) => GsoKind::Udp,
        (_, false) => GsoKind::TcpV4,
        (_, true) => GsoKind::TcpV6,
    };
    Gso { kind, size: 100, segs: 10, ecn: frame.flags & CWR != 0, fixed_id: false }
}

fn takes_geometry(features: &Features, packet: &Packet) -> bool {
    packet.is_linear() || (features.sg && (features.frag_list || packet.frag_list().is_empty()))
}

#[test]
fn every_device_gets_what_it_takes_and_the_wire_what_is_right() {
    let mem = Memory::heap();
    let frames =
        [Frame { flags: ACK | CWR, ..tcp4(1, 1, 1000) }, tcp4(1, 1, 1000), tcp6(1, 1000), udp4(1, 1000), udp6(1, 1000)];
    for features in devices() {
        for frame in &frames {
            for (shape, fat, partial) in [Shape::Linear, Shape::Slots, Shape::Children].into_iter().flat_map(|shape| {
                [(shape, true, true), (shape, true, false), (shape, false, true), (shape, false, false)]
            }) {
                let data = [&L2[..], &frame.bytes()].concat();
                let mut packet = shaped(&mem, &data, 14 + frame.header_len(), shape);
                if partial {
                    partial_check(&mut packet, frame);
                }
                if fat {
                    packet.meta.cut = Cut::Gso(gso(frame));
                }
                let context = format!("{features:?} {shape:?} fat {fat} partial {partial} {:?}", gso(frame));
                let mut out = Vec::new();
                fit(&mem, &features, packet, 14, &mut out).expect(&context);
                check_outcome(&features, frame, fat, partial, &out, &context);
            }
        }
    }
}

fn check_outcome(features: &Features, frame: &Frame, fat: bool, partial: bool, out: &[Packet], context: &str) {
    let family = if frame.v6 { features.csum.completes_v6() } else { features.csum.completes_v4() };
    let kept_fat = fat && features.cuts(&gso(frame), 1100);
    let want = if fat && !kept_fat { 10 } else { 1 };
    assert_eq!(out.len(), want, "{context}");
    for packet in out {
        packet.check_invariants();
        assert!(takes_geometry(features, packet), "{context}: {packet:?}");
        assert_eq!(packet.meta.cut.gso().is_some(), kept_fat, "{context}");
        let is_partial = matches!(packet.meta.csum, Csum::Partial { .. });
        assert_eq!(is_partial, (fat || partial) && family, "{context}");
        check_on_wire(&completed(packet)[14..]);
        assert_eq!(packet.to_vec()[..14], L2, "{context}");
    }
    if out.len() == 1 {
        assert_eq!(completed(&out[0])[14..], frame.bytes(), "{context}");
    }
}

#[test]
fn fat_packet_in_wrong_geometry_is_linearized_not_cut() {
    let frame = tcp4(1, 1, 1000);
    let data = [&L2[..], &frame.bytes()].concat();
    let no_list = Features { frag_list: false, ..Features::ALL };
    let no_sg = Features { sg: false, ..Features::ALL };
    let cases = [
        (Features::ALL, Shape::Children, 0),
        (no_list, Shape::Slots, 0),
        (no_list, Shape::Children, 1066),
        (no_sg, Shape::Slots, 1066),
        (no_sg, Shape::Linear, 0),
    ];
    for (features, shape, copied) in cases {
        let mem = Memory::heap();
        let mut packet = shaped(&mem, &data, 66, shape);
        partial_check(&mut packet, &frame);
        packet.meta.cut = Cut::Gso(gso(&frame));
        let mut out = Vec::new();
        fit(&mem, &features, packet, 14, &mut out).unwrap();
        assert_eq!((out.len(), out[0].meta.cut.segs()), (1, 10), "{features:?} {shape:?}");
        assert_eq!(mem.copies().get(CopyReason::Linearize).bytes, copied, "{features:?} {shape:?}");
        assert_eq!(mem.copies().total_bytes(), copied);
    }
}

#[test]
fn limits_of_the_device_cut_what_is_too_large() {
    let frame = tcp4(1, 1, 1000);
    let len = 14 + frame.bytes().len();
    let cases = [
        (Features { gso_max_size: len + 1, ..Features::ALL }, 1),
        (Features { gso_max_size: len, ..Features::ALL }, 10),
        (Features { gso_max_segs: 10, ..Features::ALL }, 1),
        (Features { gso_max_segs: 9, ..Features::ALL }, 10),
    ];
    for (features, want) in cases {
        let mem = Memory::heap();
        let mut packet = received(&mem, &[&L2[..], &frame.bytes()].concat());
        packet.meta.cut = Cut::Gso(gso(&frame));
        let mut out = Vec::new();
        fit(&mem, &features, packet, 14, &mut out).unwrap();
        assert_eq!(out.len(), want, "{features:?}");
    }
}

#[test]
fn the_tag_goes_into_the_bytes_before_the_packet_is_cut() {
    let mem = Memory::heap();
    for (features, segs) in [(Features::ALL, 1), (Features::NONE, 10), (SG_CSUM, 10)] {
        for shape in [Shape::Linear, Shape::Slots] {
            let frame = tcp4(1, 1, 1000);
            let mut packet = shaped(&mem, &[&L2[..], &frame.bytes()].concat(), 66, shape);
            partial_check(&mut packet, &frame);
            packet.meta.cut = Cut::Gso(gso(&frame));
            packet.meta.vlan = Some(0x6064);
            let mut out = Vec::new();
            fit(&mem, &features, packet, 14, &mut out).unwrap();
            assert_eq!(out.len(), segs);
            for packet in out {
                let bytes = completed(&packet);
                assert_eq!(bytes[..12], L2[..12]);
                assert_eq!(bytes[12..18], [0x81, 0x00, 0x60, 0x64, 0x08, 0x00]);
                check_on_wire(&bytes[18..]);
                assert_eq!(packet.meta.vlan, None);
            }
        }
    }
}

#[test]
fn a_tag_needs_an_ethernet_header() {
    let mem = Memory::heap();
    let frame = udp4(1, 10).bytes();
    let mut packet = received(&mem, &frame);
    packet.meta.vlan = Some(5);
    let mut out = Vec::new();
    fit(&mem, &Features::ALL, packet, 0, &mut out).unwrap();
    assert_eq!((out[0].to_vec(), out[0].meta.vlan), (frame, None), "a layer-3 device has no tags");
    let mut packet = received(&mem, &[0; 11]);
    packet.meta.vlan = Some(5);
    assert_eq!(fit(&mem, &Features::ALL, packet, 14, &mut out), Err(DropReason::EthTruncated));
    // A packet other than IP is tagged like any other.
    let arp = [&L2[..12], &[0x08, 0x06], &[0; 28]].concat();
    let mut packet = received(&mem, &arp);
    packet.meta.vlan = Some(5);
    fit(&mem, &Features::NONE, packet, 14, &mut out).unwrap();
    assert_eq!(out[1].to_vec(), [&L2[..12], &[0x81, 0, 0, 5, 0x08, 0x06], &[0; 28]].concat());
}

#[test]
fn device_that_finds_headers_gets_only_checks_that_it_finds() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 100);
    let cases = [
        (CsumOffload::Both, Csum::Partial { start: 34, offset: 16 }, true),
        (CsumOffload::Both, Csum::Partial { start: 38, offset: 16 }, false),
        (CsumOffload::Both, Csum::Partial { start: 34, offset: 6 }, false),
        (CsumOffload::Any, Csum::Partial { start: 38, offset: 16 }, true),
    ];
    for (csum, state, left) in cases {
        let mut packet = received(&mem, &[&L2[..], &frame.bytes()].concat());
        packet.meta.csum = state;
        let mut out = Vec::new();
        fit(&mem, &Features { csum, ..Features::ALL }, packet, 14, &mut out).unwrap();
        assert_eq!(out[0].meta.csum == state, left, "{csum:?} {state:?}");
    }
}

#[test]
fn fragments_pass_and_are_never_cut() {
    let mem = Memory::heap();
    let frame = Frame { frag: 0x2000, ..udp4(1, 512) };
    for features in [Features::NONE, SG, Features::ALL] {
        let mut packet = received(&mem, &frame.bytes());
        packet.push_frag(Buf::foreign(vec![1; 8])).unwrap();
        packet.meta.cut = Cut::Fragment;
        let mut out = Vec::new();
        fit(&mem, &features, packet, 0, &mut out).unwrap();
        assert_eq!((out.len(), out[0].meta.cut, out[0].is_linear()), (1, Cut::Fragment, !features.sg));
        assert_eq!(out[0].to_vec(), [frame.bytes(), vec![1; 8]].concat());
    }
}

#[test]
fn packet_that_cannot_be_fitted_is_dropped_for_its_reason() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 1000).bytes();
    let fat = |kind| Cut::Gso(Gso { kind, size: 100, segs: 10, ecn: false, fixed_id: false });
    for features in [Features::ALL, Features::NONE] {
        let mut packet = received(&mem, &frame);
        packet.meta.cut = fat(GsoKind::TcpV6);
        let mut out = Vec::new();
        assert_eq!(fit(&mem, &features, packet, 0, &mut out), Err(DropReason::CannotSegment));
        let mut packet = received(&mem, &frame);
        packet.meta.csum = Csum::Partial { start: 2000, offset: 16 };
        assert_eq!(fit(&mem, &features, packet, 0, &mut out), Err(DropReason::TransportHeader));
        let mut packet = received(&mem, &frame);
        packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 0, segs: 10, ecn: false, fixed_id: false });
        assert_eq!(fit(&mem, &features, packet, 0, &mut out), Err(DropReason::CannotSegment));
        assert!(out.is_empty());
    }
}

#[test]
fn device_gets_segments_by_the_bytes_not_by_guest_metadata() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 1000);
    let states =
        [Csum::None, Csum::Complete(7), Csum::Partial { start: 0, offset: 9 }, Csum::Partial { start: 20, offset: 6 }];
    for (csum, segs) in states.into_iter().flat_map(|csum| [0, 1, 10, u16::MAX].map(|segs| (csum, segs))) {
        for (features, want) in [(Features::ALL, 1), (Features { gso_max_segs: 9, ..Features::ALL }, 10)] {
            let mut packet = received(&mem, &frame.bytes());
            packet.meta.csum = csum;
            packet.meta.cut = Cut::Gso(Gso { segs, ..gso(&frame) });
            let mut out = Vec::new();
            fit(&mem, &features, packet, 0, &mut out).unwrap();
            assert_eq!(out.len(), want, "{csum:?} {segs}");
            for packet in out {
                assert_eq!(packet.meta.csum, Csum::Partial { start: 20, offset: 16 }, "{csum:?} {segs}");
                assert_eq!(packet.meta.cut.segs(), 10 / want as u64);
                check_on_wire(&completed(&packet));
            }
        }
    }
}

#[test]
fn frames_are_split_and_tagged_for_device_without_frames() {
    let mem = Memory::heap();
    let frames: Vec<Vec<u8>> = [100, 100, 30].iter().map(|&len| [&L2[..], &vec![len; len.into()]].concat()).collect();
    let bytes = frames.join(&[0xee; 10][..]);
    for (device, vlan, want) in [
        (Features::ALL, None, 1),
        (Features::ALL, Some(7), 3),
        (Features { frames: false, ..Features::ALL }, None, 3),
        (Features::NONE, Some(7), 3),
    ] {
        let mut packet = Packet::with_data(&mem, &bytes).unwrap();
        packet.meta.cut = Cut::Frames(Frames { size: 114, stride: 124, count: 3 });
        packet.meta.vlan = vlan;
        let mut out = vec![Packet::with_data(&mem, &[]).unwrap()];
        fit(&mem, &device, packet, L2.len(), &mut out).unwrap();
        assert_eq!(out.len(), 1 + want, "{device:?} {vlan:?}");
        let got: Vec<Vec<u8>> = match out[1].meta.cut {
            Cut::Frames(_) => out[1].frames().map(<[u8]>::to_vec).collect(),
            _ => out[1..].iter().map(Packet::to_vec).collect(),
        };
        let tag: &[u8] = if vlan.is_some() { &[0x81, 0, 0, 7] } else { &[] };
        let tagged: Vec<Vec<u8>> = frames.iter().map(|frame| [&frame[..12], tag, &frame[12..]].concat()).collect();
        assert_eq!(got, tagged, "{device:?} {vlan:?}");
    }
    assert_eq!(mem.copies().total_bytes(), 0);
}

//! Segments, and packets that cannot be segmented.

use base::DropReason;
use offload::gso::{MAX_SEGMENTS, segment};
use offload::{CsumOffload, Features};
use packet::{CopyReason, Csum, Cut, Gso, GsoKind, MAX_FRAGS, Memory, Packet, Pool, geometry};

use crate::frames::*;

fn kind(frame: &Frame) -> GsoKind {
    match (frame.protocol, frame.v6) {
        (UDP, _) => GsoKind::Udp,
        (_, false) => GsoKind::TcpV4,
        (_, true) => GsoKind::TcpV6,
    }
}

/// The frame as a fat packet with a partial checksum, behind `l2`.
fn fat(mem: &Memory, frame: &Frame, size: u16, l2: &[u8]) -> Packet {
    let mut packet = Packet::with_data(mem, &[l2, &frame.bytes()].concat()).unwrap();
    mark(&mut packet, frame, size);
    packet
}

fn mark(packet: &mut Packet, frame: &Frame, size: u16) {
    let segs = frame.payload.len().div_ceil(usize::from(size).max(1)) as u16;
    packet.meta.cut = Cut::Gso(Gso { kind: kind(frame), size, segs, ecn: frame.flags & CWR != 0, fixed_id: false });
}

/// Expected bytes of each segment.
fn want(frame: &Frame, size: usize) -> Vec<Vec<u8>> {
    let segs = frame.payload.len().div_ceil(size);
    let cut = |(index, payload): (usize, &[u8])| {
        let mut flags = frame.flags;
        if index > 0 {
            flags &= !CWR;
        }
        if index + 1 < segs {
            flags &= !(FIN | PSH);
        }
        let seq = frame.seq.wrapping_add((index * size) as u32);
        let id = frame.id.wrapping_add(index as u16);
        Frame { seq, id, flags, payload: payload.to_vec(), ..frame.clone() }.bytes()
    };
    frame.payload.chunks(size).enumerate().map(cut).collect()
}

#[test]
fn segments_are_what_the_sender_would_have_sent() {
    let dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
    let frames = [
        Frame { flags: ACK | PSH | FIN | CWR, ..tcp4(0xffff_ff00, 0xfffe, 2000) },
        Frame { flags: ACK | PSH, options: Vec::new(), ip_options: vec![1; 8], ..tcp4(1, 1, 2000) },
        tcp6(7, 2000),
        Frame { dest_opts, ..tcp6(7, 2000) },
        udp4(9, 2000),
        udp6(9, 2000),
    ];
    let mem = Memory::heap();
    for l2 in [&[][..], &[0xee; 14], &[0xee; 18]] {
        for (frame, size) in frames.iter().flat_map(|frame| [1, 7, 999, 1000, 1001, 1999].map(|size| (frame, size))) {
            for features in [Features::NONE, SG, SG_CSUM] {
                let got = cut(&mem, &features, fat(&mem, frame, size, l2), l2.len());
                let got: Vec<_> = got
                    .iter()
                    .map(|packet| {
                        assert_eq!(packet.meta.cut, Cut::Whole);
                        let (front, ip) = (packet.to_vec()[..l2.len()].to_vec(), completed(packet));
                        assert_eq!(front, l2);
                        check_on_wire(&ip[l2.len()..]);
                        ip[l2.len()..].to_vec()
                    })
                    .collect();
                assert_eq!(got, want(frame, size.into()), "{size} of {frame:?} for {features:?}");
            }
        }
    }
}

#[test]
fn a_fixed_identification_stays() {
    let mem = Memory::heap();
    let mut packet = fat(&mem, &tcp4(1, 77, 3000), 1000, &[]);
    let Cut::Gso(gso) = &mut packet.meta.cut else { unreachable!("just marked") };
    gso.fixed_id = true;
    for segment in cut(&mem, &SG, packet, 0) {
        check_on_wire(&segment.to_vec());
        assert_eq!(segment.head()[4..6], 77u16.to_be_bytes());
    }
}

#[test]
fn every_geometry_is_cut_into_the_same_segments() {
    let mem = Memory::heap();
    for frame in [tcp4(1, 1, 1000), tcp6(1, 1000), udp4(1, 1000)] {
        let l2 = [0xee; 14];
        let data = [&l2[..], &frame.bytes()].concat();
        let headers = data.len() - 1000;
        let cuts = [1, 14, 20, 34, 54, headers - 1, headers, headers + 1, headers + 300, headers + 301];
        for (name, mut packet) in geometry::all(&mem, &data, &cuts) {
            mark(&mut packet, &frame, 300);
            let features = if name.len() % 2 == 0 { SG } else { Features::NONE };
            let got: Vec<_> =
                cut(&mem, &features, packet, 14).iter().map(|packet| packet.to_vec()[14..].to_vec()).collect();
            assert_eq!(got, want(&frame, 300), "{name}");
        }
    }
}

#[test]
fn by_reference_only_headers_are_copied() {
    let frame = tcp4(1, 1, 44 * 1448);
    let cases = [(SG, 44 * 52, 0), (SG_CSUM, 44 * 52, 0), (Features::NONE, 44 * 52, 44 * 1448)];
    for (features, headers, payload) in cases {
        let mem = Memory::heap();
        let packets = cut(&mem, &features, fat(&mem, &frame, 1448, &[]), 0);
        assert_eq!(packets.len(), 44);
        assert_eq!(mem.copies().get(CopyReason::SegmentHeader).bytes, headers);
        assert_eq!(mem.copies().get(CopyReason::SegmentPayload).bytes, payload);
        assert_eq!(mem.copies().total_bytes(), headers + payload);
        assert!(packets.iter().all(|packet| packet.is_linear() != features.sg));
        // Each segment is writable, for encryption in place.
        for mut packet in packets {
            assert!(packet.head_mut().is_some());
            let (_, frags, _) = packet.into_parts();
            assert!(frags.into_iter().all(|mut buf| buf.is_writable()));
        }
        assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
    }
}

#[test]
fn children_are_cut_by_reference_as_long_as_the_slots_suffice() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 200);
    // 100 buffers of two bytes each: fragments, then children.
    let build = || {
        let data = frame.bytes();
        let mut packet = Packet::with_data(&mem, &data[..52]).unwrap();
        for piece in data[52..].chunks(2) {
            packet.append(Packet::with_data(&mem, piece).unwrap());
        }
        assert_eq!((packet.frags().len(), packet.frag_list().len()), (MAX_FRAGS, 100 - MAX_FRAGS));
        packet
    };
    for (size, copied) in [(2 * MAX_FRAGS as u16, 0), (2 * MAX_FRAGS as u16 + 2, 2 * (2 * MAX_FRAGS as u64 + 2))] {
        let before = mem.copies().get(CopyReason::SegmentPayload).bytes;
        let mut packet = build();
        mark(&mut packet, &frame, size);
        let got: Vec<_> = cut(&mem, &SG, packet, 0).iter().map(Packet::to_vec).collect();
        assert_eq!(got, want(&frame, size.into()));
        assert_eq!(mem.copies().get(CopyReason::SegmentPayload).bytes - before, copied, "{size}");
    }
}

#[test]
fn checks_are_left_to_the_device_that_makes_them() {
    let mem = Memory::heap();
    let dest_opts = vec![TCP, 0, 1, 4, 0, 0, 0, 0];
    let frames = [tcp4(1, 1, 20), tcp6(1, 20), udp4(1, 20), udp6(1, 20), Frame { dest_opts, ..tcp6(1, 20) }];
    let cases = [
        (CsumOffload::None, [false; 5]),
        (CsumOffload::Ipv4, [true, false, true, false, false]),
        (CsumOffload::Ipv6, [false, true, false, true, false]),
        (CsumOffload::Both, [true, true, true, true, false]),
        (CsumOffload::Any, [true; 5]),
    ];
    for (csum, left) in cases {
        for (frame, left) in frames.iter().zip(left) {
            let features = Features { csum, ..SG };
            for packet in cut(&mem, &features, fat(&mem, frame, 10, &[0; 14]), 14) {
                let is_partial = matches!(packet.meta.csum, Csum::Partial { .. });
                assert_eq!(is_partial, left, "{csum:?} {frame:?}");
                check_on_wire(&completed(&packet)[14..]);
            }
        }
    }
}

#[test]
fn a_partial_check_is_cut_by_what_the_sender_summed() {
    // With a routing header the pseudo-header's destination differs from the IPv6 header's; the sender's sum covers the
    // former.
    let mem = Memory::heap();
    let frame = tcp6(1, 40);
    let mut packet = fat(&mem, &frame, 20, &[]);
    let right = cut(&mem, &Features::NONE, fat(&mem, &frame, 20, &[]), 0);
    let pseudo = |packet: &Packet, bias: u16| {
        let bytes = packet.to_vec();
        let sum = plain_sum(&[&bytes[8..40], &[0, 0, 0, 72, 0, 0, 0, TCP]].concat());
        let sum = u32::from(sum) + u32::from(bias);
        ((sum & 0xffff) + (sum >> 16)) as u16
    };
    let field = pseudo(&packet, 0x111);
    packet.head_mut().unwrap()[56..58].copy_from_slice(&field.to_be_bytes());
    packet.meta.csum = Csum::Partial { start: 40, offset: 16 };
    for (segment, right) in cut(&mem, &Features::NONE, packet, 0).iter().zip(right) {
        let (mut got, right) = (segment.to_vec(), right.to_vec());
        let check = u32::from(u16::from_be_bytes([got[56], got[57]])) + 0x111;
        got[56..58].copy_from_slice(&(((check & 0xffff) + (check >> 16)) as u16).to_be_bytes());
        assert_eq!(got, right);
    }
}

#[test]
fn udp_over_ipv4_without_a_check_stays_without() {
    let mem = Memory::heap();
    for frame in [udp4(1, 30), udp6(1, 30)] {
        let check_at = if frame.v6 { 46 } else { 26 };
        let mut packet = fat(&mem, &frame, 10, &[]);
        packet.head_mut().unwrap()[check_at..check_at + 2].fill(0);
        packet.meta.csum = Csum::Unnecessary;
        for segment in cut(&mem, &SG_CSUM, packet, 0) {
            let none = completed(&segment)[check_at..check_at + 2] == [0, 0];
            assert_eq!(none, !frame.v6, "IPv6 has to have one");
        }
    }
}

#[test]
fn one_segments_worth_goes_out_whole() {
    let mem = Memory::heap();
    for (len, size) in [(0, 1), (1, 1), (99, 100), (100, 100), (100, 1000)] {
        let frame = Frame { flags: ACK | PSH | CWR, ..tcp4(5, 5, len) };
        for features in [Features::NONE, SG, SG_CSUM] {
            let [packet] = cut(&mem, &features, fat(&mem, &frame, size, &[]), 0).try_into().expect("one packet");
            assert_eq!((completed(&packet), packet.meta.cut), (frame.bytes(), Cut::Whole), "{len} by {size}");
        }
    }
}

#[test]
fn the_most_segments_are_those_of_the_smallest_mtu() {
    let mem = Memory::heap();
    for (len, ok) in [(MAX_SEGMENTS, true), (MAX_SEGMENTS + 1, false)] {
        let mut out = Vec::new();
        let result = segment(&mem, &Features::NONE, fat(&mem, &tcp4(1, 1, len), 1, &[]), 0, &mut out);
        assert_eq!((result.is_ok(), out.len()), (ok, if ok { len } else { 0 }));
        assert!(ok || result == Err(DropReason::CannotSegment));
    }
}

#[test]
fn packet_with_false_header_metadata_is_not_cut() {
    let mem = Memory::heap();
    let cases: [(&str, Frame, ChangePacket, DropReason); 11] = [
        ("not fat", tcp4(1, 1, 50), |pkt| pkt.meta.cut = Cut::Whole, DropReason::CannotSegment),
        ("a fragment by its mark", tcp4(1, 1, 50), |pkt| pkt.meta.cut = Cut::Fragment, DropReason::CannotSegment),
        ("a fragment by its header", Frame { frag: 0x2000, ..tcp4(1, 1, 50) }, |_| (), DropReason::CannotSegment),
        ("size 0", tcp4(1, 1, 50), |pkt| set(pkt, |gso| gso.size = 0), DropReason::CannotSegment),
        ("UDP as TCP", udp4(1, 50), |pkt| set(pkt, |gso| gso.kind = GsoKind::TcpV4), DropReason::CannotSegment),
        ("TCP as UDP", tcp4(1, 1, 50), |pkt| set(pkt, |gso| gso.kind = GsoKind::Udp), DropReason::CannotSegment),
        ("v6 as v4", tcp6(1, 50), |pkt| set(pkt, |gso| gso.kind = GsoKind::TcpV4), DropReason::CannotSegment),
        ("data offset", tcp4(1, 1, 50), |pkt| pkt.head_mut().unwrap()[32] = 0x40, DropReason::TransportHeader),
        ("no TCP header", tcp4(1, 1, 50), |pkt| pkt.trim(39), DropReason::TransportHeader),
        ("options beyond the end", tcp4(1, 1, 0), |pkt| pkt.trim(51), DropReason::TransportHeader),
        ("no IP", tcp4(1, 1, 50), |pkt| pkt.head_mut().unwrap()[0] = 0x55, DropReason::Ipv4Header),
    ];
    for (what, frame, change, want) in cases {
        for features in [Features::NONE, SG] {
            let mut packet = fat(&mem, &frame, 10, &[]);
            change(&mut packet);
            let mut out = Vec::new();
            assert_eq!(segment(&mem, &features, packet, 0, &mut out), Err(want), "{what}");
            assert!(out.is_empty());
        }
    }
    let mut out = Vec::new();
    let beyond = segment(&mem, &SG, fat(&mem, &tcp4(1, 1, 50), 10, &[]), 1000, &mut out);
    assert_eq!(beyond, Err(DropReason::Ipv4Header));
    assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
}

fn set(packet: &mut Packet, change: impl Fn(&mut Gso)) {
    let Cut::Gso(gso) = &mut packet.meta.cut else { unreachable!("marked before") };
    change(gso);
}

#[test]
fn without_memory_nothing_comes_out() {
    let frame = tcp4(1, 1, 10_000);
    for limit in 0..10 {
        let mem = Memory::new(Pool::bounded(Memory::SMALL, limit), Pool::heap(Memory::LARGE));
        let packet = fat(&mem, &frame, 1000, &[]);
        let mut out = Vec::new();
        let result = segment(&mem, &Features::NONE, packet, 0, &mut out);
        assert_eq!((result, out.len()), (Err(DropReason::NoMemory), 0), "{limit} pages");
        assert_eq!((mem.small().in_use(), mem.large().in_use()), (0, 0));
    }
}

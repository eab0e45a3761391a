//! Sums compared with a literal RFC 1071, over every geometry.

use base::DropReason;
use offload::checksum::{complete, sum, sum_of, transport_check, verify};
use packet::{Buf, CopyReason, Csum, Cut, Gso, GsoKind, Memory, geometry};
use proptest::prelude::*;
use wire::ip::Info;

use crate::frames::*;

#[test]
fn every_length_and_alignment_sums_as_the_plain_loop_does() {
    let data: Vec<u8> = bytes(600, 1).iter().map(|byte| byte | 0x81).collect();
    for start in 0..8 {
        for end in start..data.len() {
            let part = &data[start..end];
            assert_eq!(sum(part), u32::from(plain_sum(part)), "{start}..{end}");
        }
    }
}

#[test]
fn no_carry_is_lost_in_the_longest_packet() {
    for byte in [0x00, 0x01, 0x7f, 0x80, 0xfe, 0xff] {
        for len in [65_516, 65_535, 65_575, 1 << 20] {
            let data = vec![byte; len];
            assert_eq!(sum(&data), u32::from(plain_sum(&data)), "{len} times {byte:#x}");
        }
    }
}

#[test]
fn pieces_with_odd_boundaries_sum_as_one() {
    let mem = Memory::heap();
    let data = bytes(500, 3);
    for (name, packet) in geometry::all(&mem, &data, &[1, 20, 21, 33, 400, 499]) {
        for (from, to) in [(0, 500), (1, 500), (20, 499), (21, 22), (33, 33), (499, 500), (0, 900), (600, 700), (7, 3)]
        {
            let part = data.get(from..to.min(500)).unwrap_or_default();
            assert_eq!(
                u32::from(wire::checksum::fold(sum_of(&packet, from, to))),
                u32::from(plain_sum(part)),
                "{name}: {from}..{to}"
            );
        }
    }
}

proptest! {
    #[test]
    fn sums_agree_with_wire_for_any_bytes(data in proptest::collection::vec(any::<u8>(), 0..3000)) {
        prop_assert_eq!(sum(&data), wire::checksum::sum(&data));
    }
}

fn frames() -> [Frame; 6] {
    let dest_opts = vec![UDP, 0, 1, 4, 0, 0, 0, 0];
    [
        tcp4(1, 1, 777),
        Frame { ip_options: vec![1; 4], ..tcp4(1, 1, 0) },
        tcp6(1, 778),
        udp4(1, 1),
        udp6(1, 2),
        Frame { dest_opts, ..udp6(1, 33) },
    ]
}

#[test]
fn a_right_check_verifies_and_one_flipped_bit_does_not() {
    let mem = Memory::heap();
    for frame in frames() {
        let right = frame.bytes();
        let info = Info::parse(&right, right.len()).unwrap();
        for flip in (info.header_len..right.len()).map(Some).chain([None]) {
            let mut data = right.clone();
            if let Some(at) = flip {
                data[at] ^= 0x10;
            }
            for csum in [Csum::None, Csum::Complete(plain_sum(&data))] {
                let mut packet = received(&mem, &data);
                packet.meta.csum = csum;
                assert_eq!(verify(&packet, &info), flip.is_none(), "{flip:?} {csum:?} {frame:?}");
                assert_eq!(transport_check(&packet, &info) == 0, flip.is_none());
            }
        }
        // Ethernet's padding is not part of the packet.
        let padded = received(&mem, &[&right[..], &[1, 2, 3]].concat());
        assert!(verify(&padded, &info), "{frame:?}");
    }
}

#[test]
fn verified_check_is_not_summed() {
    let mem = Memory::heap();
    let mut data = tcp4(1, 1, 10).bytes();
    data[60] ^= 1;
    let info = Info::parse(&data, data.len()).unwrap();
    let states = [(Csum::Unnecessary, true), (Csum::Partial { start: 20, offset: 16 }, true), (Csum::None, false)];
    for (csum, want) in states {
        let mut packet = received(&mem, &data);
        packet.meta.csum = csum;
        assert_eq!(verify(&packet, &info), want, "{csum:?}");
    }
}

#[test]
fn a_udp_check_of_zero_is_none_over_ipv4_and_wrong_over_ipv6() {
    let mem = Memory::heap();
    for (frame, at, want) in [(udp4(1, 10), 26, true), (udp6(1, 10), 46, false)] {
        let mut data = frame.bytes();
        data[at..at + 2].fill(0);
        let info = Info::parse(&data, data.len()).unwrap();
        assert_eq!(verify(&received(&mem, &data), &info), want);
    }
}

/// The packet before checksum completion: the pseudo-header's sum in the field.
fn partial(frame: &Frame) -> (Vec<u8>, Csum) {
    let mut data = frame.bytes();
    let l4 = Info::parse(&data, data.len()).unwrap().header_len;
    let offset = if frame.protocol == UDP { 6 } else { 16 };
    let at = l4 + offset;
    data[at..at + 2].fill(0);
    let addresses = if frame.v6 { &data[8..40] } else { &data[12..20] };
    let len = ((data.len() - l4) as u32).to_be_bytes();
    let sum = plain_sum(&[addresses, &len, &[0, 0, 0, frame.protocol]].concat());
    data[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    (data, Csum::Partial { start: l4 as u16, offset: offset as u16 })
}

#[test]
fn a_partial_check_is_completed_in_every_geometry() {
    let mem = Memory::heap();
    for frame in frames() {
        let (data, csum) = partial(&frame);
        let payload_at = frame.header_len();
        for (name, mut packet) in geometry::all(&mem, &data, &[1, 20, 40, payload_at, payload_at + 1]) {
            packet.meta.csum = csum;
            complete(&mem, &mut packet, 0).expect(&name);
            packet.check_invariants();
            assert_eq!((packet.to_vec(), packet.meta.csum), (frame.bytes(), Csum::Unnecessary), "{name} {frame:?}");
        }
    }
}

#[test]
fn only_udp_turns_a_computed_zero_into_all_ones() {
    let mem = Memory::heap();
    for (offset, want) in [(6, [0xff, 0xff]), (16, [0, 0])] {
        // The field makes the complete sum 0xffff.
        let mut data = vec![0; 20];
        data[offset..offset + 2].copy_from_slice(&[0xff, 0xff]);
        let mut packet = received(&mem, &data);
        packet.meta.csum = Csum::Partial { start: 0, offset: offset as u16 };
        complete(&mem, &mut packet, 0).unwrap();
        assert_eq!(packet.head()[offset..offset + 2], want);
    }
}

#[test]
fn the_field_has_to_lie_in_the_packet() {
    let mem = Memory::heap();
    let cases =
        [(0, 18, true), (0, 19, false), (18, 0, true), (19, 0, false), (20, 0, false), (u16::MAX, u16::MAX, false)];
    for (start, offset, ok) in cases {
        let mut packet = received(&mem, &[7; 20]);
        packet.meta.csum = Csum::Partial { start, offset };
        let want = if ok { Ok(()) } else { Err(DropReason::TransportHeader) };
        assert_eq!(complete(&mem, &mut packet, 0), want, "{start}+{offset}");
    }
}

#[test]
fn a_fat_packet_has_no_check_of_its_own() {
    let mem = Memory::heap();
    let (data, csum) = partial(&tcp4(1, 1, 100));
    let mut packet = received(&mem, &data);
    packet.meta.csum = csum;
    packet.meta.cut = Cut::Gso(Gso { kind: GsoKind::TcpV4, size: 10, segs: 10, ecn: false, fixed_id: false });
    assert_eq!(complete(&mem, &mut packet, 0), Err(DropReason::CannotSegment));
    assert_eq!((packet.to_vec(), packet.meta.csum), (data, csum));
}

#[test]
fn packet_without_partial_check_is_left_alone() {
    let mem = Memory::heap();
    for csum in [Csum::None, Csum::Unnecessary, Csum::Complete(5)] {
        let mut packet = received(&mem, &[1; 60]);
        packet.meta.csum = csum;
        complete(&mem, &mut packet, 0).unwrap();
        assert_eq!((packet.to_vec(), packet.meta.csum), (vec![1; 60], csum));
    }
}

#[test]
fn foreign_slots_are_copied_before_they_are_summed() {
    let mem = Memory::heap();
    let frame = tcp4(1, 1, 600);
    let (data, csum) = partial(&frame);
    let (headers, payload) = data.split_at(52);
    let build = |payload: Buf| {
        let mut packet = received(&mem, headers);
        packet.push_frag(payload).unwrap();
        packet.meta.csum = csum;
        packet
    };
    let mut ours = mem.take(0, payload.len()).unwrap();
    ours.put(payload.len()).unwrap().copy_from_slice(payload);
    for (buf, copied) in [(ours, 0), (Buf::foreign(payload.to_vec()), 652)] {
        let mut packet = build(buf);
        let before = mem.copies().get(CopyReason::Linearize).bytes;
        complete(&mem, &mut packet, 0).unwrap();
        assert_eq!(packet.to_vec(), frame.bytes());
        assert_eq!(mem.copies().get(CopyReason::Linearize).bytes - before, copied);
    }
}

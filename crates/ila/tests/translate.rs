//! Translation of addresses and packets, compared with sums computed byte by byte.

use std::net::Ipv6Addr;

use base::PortId;
use ila::{AdjTransport, CsumMode, Diff, Direction, IdentType, Identifier, Locator, Mapping, Mappings, Rewrite};
use offload::{Features, checksum, gso, ip_headers};
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, geometry};
use proptest::prelude::*;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FRAGMENT: u8 = 44;
const ICMPV6: u8 = 58;
const DEST_OPTS: u8 = 60;

const SIR: Locator = Locator(0x2001_0db8_0000_0000);
const ILA: Locator = Locator(0xfd12_3456_789a_bcde);
const SRC: &str = "2001:db8::2000:0:0:1";

/// Locally unique identifier without the C bit.
const IDENTIFIER: Identifier = Identifier(0x2000_0000_0001_0b0c);

const NEUTRAL: [CsumMode; 2] = [CsumMode::NeutralMap, CsumMode::NeutralMapAuto];

/// Sum of 16-bit words, folded, with 0xffff and 0 both given as 0xffff (RFC 1071).
fn plain_sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0)));
    match words.sum::<u64>() % 0xffff {
        0 => 0xffff,
        sum => sum as u16,
    }
}

/// Tells whether the checksum of the transport header at offset 40 is right, computed byte by byte.
fn is_right_on_wire(bytes: &[u8], protocol: u8) -> bool {
    let len = (bytes.len() - 40) as u32;
    let pseudo = [&bytes[8..40], &len.to_be_bytes(), &[0, 0, 0, protocol]].concat();
    plain_sum(&[&pseudo, &bytes[40..]].concat()) == 0xffff
}

fn check_at(protocol: u8) -> usize {
    match protocol {
        TCP => 40 + 16,
        UDP => 40 + 6,
        _ => 40 + 2,
    }
}

/// A packet to `dst` with a correct checksum.
fn packet_to(dst: Ipv6Addr, protocol: u8, payload: usize) -> Vec<u8> {
    let header_len = if protocol == TCP { 20 } else { 8 };
    let mut transport = vec![0; header_len];
    transport[..4].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
    match protocol {
        TCP => transport[12..14].copy_from_slice(&[0x50, 0x10]),
        UDP => transport[4..6].copy_from_slice(&((8 + payload) as u16).to_be_bytes()),
        _ => transport[..4].copy_from_slice(&[128, 0, 0, 0]),
    }
    transport.extend((0..payload).map(|n| (n * 7) as u8));
    let mut bytes = ipv6(dst, protocol, &transport);
    let pseudo_len = ((transport.len()) as u32).to_be_bytes();
    let pseudo = [&bytes[8..40], &pseudo_len, &[0, 0, 0, protocol]].concat();
    let check = match !plain_sum(&[&pseudo, &bytes[40..]].concat()) {
        0 if protocol == UDP => 0xffff,
        check => check,
    };
    bytes[check_at(protocol)..][..2].copy_from_slice(&check.to_be_bytes());
    bytes
}

fn ipv6(dst: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let src: Ipv6Addr = SRC.parse().unwrap();
    let len = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next_header, 64][..], &src.octets(), &dst.octets(), payload].concat()
}

fn rewrite(locator: Locator, csum_mode: CsumMode) -> Rewrite {
    Rewrite { locator, csum_mode, diff: None }
}

/// Translates a packet after parsing its headers again.
fn translate(mem: &Memory, pkt: &mut Packet, by: Rewrite, direction: Direction, sign: AdjTransport) -> Ipv6Addr {
    let info = ip_headers(mem, pkt).unwrap();
    by.packet(mem, pkt, &info, direction, sign).unwrap()
}

/// A packet in a valid checksum state, from bytes with a correct checksum.
fn in_state(mut pkt: Packet, state: &str, protocol: u8) -> Packet {
    let bytes = pkt.to_vec();
    pkt.meta.csum = match state {
        "none" => Csum::None,
        "unnecessary" => Csum::Unnecessary,
        "complete" => Csum::Complete(plain_sum(&bytes)),
        _ => {
            let len = (bytes.len() - 40) as u32;
            let pseudo = plain_sum(&[&bytes[8..40], &len.to_be_bytes(), &[0, 0, 0, protocol]].concat());
            let mem = Memory::heap();
            let at = check_at(protocol);
            assert!(pkt.may_pull(&mem, at + 2).unwrap());
            pkt.writable_head(&mem).unwrap()[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
            Csum::Partial { start: 40, offset: (at - 40) as u16 }
        }
    };
    pkt
}

/// The packet's bytes on the wire: a partial checksum is completed. A complete sum must match the bytes.
fn on_wire(mem: &Memory, pkt: &Packet) -> Vec<u8> {
    let mut pkt = Packet::with_data(mem, &pkt.to_vec()).map(|copy| (copy, pkt.meta.clone())).unwrap();
    pkt.0.meta = pkt.1;
    if let Csum::Complete(sum) = pkt.0.meta.csum {
        assert_eq!(plain_sum(&sum.to_be_bytes()), plain_sum(&pkt.0.to_vec()), "complete sum");
    }
    checksum::complete(mem, &mut pkt.0, 0).unwrap();
    pkt.0.to_vec()
}

/// Pseudo-random numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

#[test]
fn neutral_mapping_of_any_pair_keeps_sum_and_round_trips() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..1_000_000 {
        let (sir, ila) = (Locator(random.next()), Locator(random.next()));
        // A SIR address has no C bit, and an identifier that ends in 0000 would not be restored.
        let identifier = Identifier(random.next() & !(1 << 60) | 1);
        let dst = sir.with(identifier);
        for mode in NEUTRAL {
            let out = rewrite(ila, mode).address(dst, Direction::SirToIla);
            assert_eq!(plain_sum(&out.octets()), plain_sum(&dst.octets()), "{dst} to {out}");
            assert_eq!(Locator::of(out), ila);
            assert_eq!(Identifier::of(out).is_checksum_neutral(), mode == CsumMode::NeutralMap);
            let back = rewrite(sir, mode).address(out, Direction::IlaToSir);
            assert_eq!(plain_sum(&back.octets()), plain_sum(&out.octets()), "{out} to {back}");
            assert_eq!(back, dst);
        }
    }
}

#[test]
fn saved_difference_gives_same_address_as_none() {
    let mut random = Random(7);
    for _ in 0..100_000 {
        let dst = Ipv6Addr::from_bits(u128::from(random.next()) << 64 | u128::from(random.next()));
        let locator = Locator(random.next());
        let saved = Some(Diff::between(Locator::of(dst), locator));
        for csum_mode in CsumMode::ALL {
            for direction in [Direction::SirToIla, Direction::IlaToSir] {
                let [with, without] =
                    [saved, None].map(|diff| Rewrite { locator, csum_mode, diff }.address(dst, direction));
                assert_eq!(with, without, "{dst} to {locator} by {csum_mode:?}, {direction:?}");
            }
        }
    }
}

#[test]
fn c_bit_decides_whether_neutral_map_changes_identifier() {
    let with_c = Identifier(IDENTIFIER.0 | 1 << 60);
    let cases = [
        (IDENTIFIER, Direction::SirToIla, true),
        (with_c, Direction::SirToIla, false),
        (IDENTIFIER, Direction::IlaToSir, false),
        (with_c, Direction::IlaToSir, true),
    ];
    for (identifier, direction, changes) in cases {
        let out = rewrite(ILA, CsumMode::NeutralMap).address(SIR.with(identifier), direction);
        assert_eq!(Locator::of(out), ILA);
        assert_eq!(Identifier::of(out) != identifier, changes, "{identifier:x?} {direction:?}");
    }
}

#[test]
fn identifier_that_ends_in_zeros_arrives_ending_in_ones() {
    let dst = SIR.with(Identifier(0x2000_0000_0001_0000));
    for mode in NEUTRAL {
        let out = rewrite(ILA, mode).address(dst, Direction::SirToIla);
        let back = rewrite(SIR, mode).address(out, Direction::IlaToSir);
        assert_eq!(back, SIR.with(Identifier(0x2000_0000_0001_ffff)));
    }
}

#[test]
fn address_of_each_mode_is_bit_exact() {
    // Sum of the SIR locator 0x2db9; of the ILA locator 0xfd12 + 0x3456 + 0x789a + 0xbcde = 0x266e0, folded 0x66e2. The
    // difference is 0xc6d6; the last word 0x0b0c becomes 0xd1e2, and with the C bit 0xc1e2.
    let cases = [
        (CsumMode::AdjTransport, "fd12:3456:789a:bcde:2000:0:1:b0c"),
        (CsumMode::NoAction, "fd12:3456:789a:bcde:2000:0:1:b0c"),
        (CsumMode::NeutralMapAuto, "fd12:3456:789a:bcde:2000:0:1:d1e2"),
        (CsumMode::NeutralMap, "fd12:3456:789a:bcde:3000:0:1:c1e2"),
    ];
    for (mode, want) in cases {
        let out = rewrite(ILA, mode).address(SIR.with(IDENTIFIER), Direction::SirToIla);
        assert_eq!(out, want.parse::<Ipv6Addr>().unwrap(), "{mode:?}");
    }
}

#[test]
fn checksum_is_right_in_each_state_shape_and_mode() {
    let mem = Memory::heap();
    let dst = SIR.with(IDENTIFIER);
    for protocol in [TCP, UDP, ICMPV6] {
        let bytes = packet_to(dst, protocol, 101);
        assert!(is_right_on_wire(&bytes, protocol));
        for state in ["none", "unnecessary", "complete", "partial"] {
            for mode in CsumMode::ALL {
                for sign in [AdjTransport::Linux, AdjTransport::Rfc1624] {
                    for (shape, pkt) in geometry::all(&mem, &bytes, &[40, 48, 60]) {
                        let case = format!("{protocol} {state} {mode:?} {sign:?} {shape}");
                        let mut pkt = in_state(pkt, state, protocol);
                        let out = translate(&mem, &mut pkt, rewrite(ILA, mode), Direction::SirToIla, sign);
                        pkt.check_invariants();
                        let wire = on_wire(&mem, &pkt);
                        assert_eq!(wire[24..40], out.octets(), "{case}");
                        let is_right = match mode {
                            CsumMode::NeutralMap | CsumMode::NeutralMapAuto => true,
                            CsumMode::AdjTransport => sign == AdjTransport::Rfc1624,
                            CsumMode::NoAction => false,
                        };
                        assert_eq!(is_right_on_wire(&wire, protocol), is_right, "{case}");
                        let back = translate(&mem, &mut pkt, rewrite(SIR, mode), Direction::IlaToSir, sign);
                        assert_eq!(back, dst, "{case}");
                        assert_eq!(on_wire(&mem, &pkt), bytes, "{case}");
                        if protocol != ICMPV6 || state != "partial" {
                            let info = ip_headers(&mem, &mut pkt).unwrap();
                            assert!(checksum::verify(&pkt, &info), "{case}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn shared_bytes_are_not_changed() {
    let mem = Memory::heap();
    let bytes = packet_to(SIR.with(IDENTIFIER), TCP, 50);
    let mut pkt = Packet::with_data(&mem, &bytes).unwrap();
    let shared = pkt.clone_shared();
    translate(&mem, &mut pkt, rewrite(ILA, CsumMode::AdjTransport), Direction::SirToIla, AdjTransport::Linux);
    assert_eq!(shared.to_vec(), bytes);
    assert_ne!(pkt.to_vec(), bytes);
}

#[test]
fn udp_without_checksum_stays_so() {
    let mem = Memory::heap();
    let mut bytes = packet_to(SIR.with(IDENTIFIER), UDP, 10);
    bytes[46..48].fill(0);
    for sign in [AdjTransport::Linux, AdjTransport::Rfc1624] {
        for csum in [Csum::None, Csum::Unnecessary, Csum::Complete(plain_sum(&bytes))] {
            let mut pkt = Packet::with_data(&mem, &bytes).unwrap();
            pkt.meta.csum = csum;
            translate(&mem, &mut pkt, rewrite(ILA, CsumMode::AdjTransport), Direction::SirToIla, sign);
            let wire = on_wire(&mem, &pkt);
            assert_eq!(wire[46..48], [0, 0]);
            assert_eq!(wire[24..32], ILA.0.to_be_bytes());
        }
    }
}

#[test]
fn udp_checksum_that_becomes_zero_is_sent_as_ones() {
    let mem = Memory::heap();
    for sign in [AdjTransport::Linux, AdjTransport::Rfc1624] {
        let mut seen = 0;
        for word in 0..=u16::MAX {
            let mut bytes = packet_to(SIR.with(IDENTIFIER), UDP, 2);
            bytes[46..48].copy_from_slice(&word.to_be_bytes());
            let mut pkt = Packet::with_data(&mem, &bytes).unwrap();
            translate(&mem, &mut pkt, rewrite(ILA, CsumMode::AdjTransport), Direction::SirToIla, sign);
            let check = u16::from_be_bytes(pkt.head()[46..48].try_into().unwrap());
            assert_eq!(check == 0, word == 0, "{word:x}");
            seen += u32::from(check == 0xffff);
        }
        assert_eq!(seen, 1, "one checksum becomes zero");
    }
}

#[test]
fn extension_headers_and_fragments_are_not_adjusted() {
    let mem = Memory::heap();
    let dst = SIR.with(IDENTIFIER);
    let transport = packet_to(dst, UDP, 24)[40..].to_vec();
    let options = [&[UDP, 0, 1, 4, 0, 0, 0, 0][..], &transport].concat();
    let first = [&[UDP, 0, 0, 1, 0, 0, 0, 9][..], &transport].concat();
    let later = [&[UDP, 0, 0, 8, 0, 0, 0, 9][..], &transport].concat();
    for (next_header, payload) in [(DEST_OPTS, options), (FRAGMENT, first), (FRAGMENT, later)] {
        let bytes = ipv6(dst, next_header, &payload);
        for mode in CsumMode::ALL {
            for (shape, mut pkt) in geometry::all(&mem, &bytes, &[40, 48]) {
                pkt.meta.csum = Csum::Complete(plain_sum(&bytes));
                let out = translate(&mem, &mut pkt, rewrite(ILA, mode), Direction::SirToIla, AdjTransport::Linux);
                let want = [&bytes[..24], &out.octets(), &bytes[40..]].concat();
                assert_eq!(on_wire(&mem, &pkt), want, "{next_header} {mode:?} {shape}");
            }
        }
    }
}

#[test]
fn truncated_transport_header_is_not_adjusted() {
    let mem = Memory::heap();
    let dst = SIR.with(IDENTIFIER);
    for (protocol, most) in [(TCP, 19), (UDP, 7), (ICMPV6, 7)] {
        for len in 0..=most {
            let bytes = ipv6(dst, protocol, &vec![0xa5; len]);
            let mut pkt = Packet::with_data(&mem, &bytes).unwrap();
            let out = translate(
                &mem,
                &mut pkt,
                rewrite(ILA, CsumMode::AdjTransport),
                Direction::SirToIla,
                AdjTransport::Linux,
            );
            assert_eq!(pkt.to_vec(), [&bytes[..24], &out.octets(), &bytes[40..]].concat());
        }
    }
}

#[test]
fn packet_of_ipv4_is_refused() {
    let mem = Memory::heap();
    let mut bytes = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let check = !plain_sum(&bytes);
    bytes[10..12].copy_from_slice(&check.to_be_bytes());
    let mut pkt = Packet::with_data(&mem, &bytes).unwrap();
    let info = ip_headers(&mem, &mut pkt).unwrap();
    let refused =
        rewrite(ILA, CsumMode::NoAction).packet(&mem, &mut pkt, &info, Direction::SirToIla, AdjTransport::Linux);
    assert_eq!(refused, Err(base::DropReason::Ipv6Header));
    assert_eq!(pkt.to_vec(), bytes);
}

/// A fat packet, as from GRO or a device.
fn fat(mem: &Memory, protocol: u8, payload: usize, is_partial: bool) -> Packet {
    let bytes = packet_to(SIR.with(IDENTIFIER), protocol, payload);
    let state = if is_partial { "partial" } else { "unnecessary" };
    let mut pkt = in_state(Packet::with_data(mem, &bytes).unwrap(), state, protocol);
    let kind = if protocol == TCP { GsoKind::TcpV6 } else { GsoKind::Udp };
    let segs = payload.div_ceil(100) as u16;
    pkt.meta.cut = Cut::Gso(Gso { kind, size: 100, segs, ecn: false, fixed_id: false });
    pkt
}

fn segments(mem: &Memory, pkt: Packet) -> Vec<Packet> {
    let mut out = Vec::new();
    gso::segment(mem, &Features::BY_REFERENCE, pkt, 0, &mut out).unwrap();
    out
}

#[test]
fn fat_packet_translated_is_cut_like_segments_translated() {
    let mem = Memory::heap();
    for protocol in [TCP, UDP] {
        for is_partial in [true, false] {
            for mode in CsumMode::ALL {
                for sign in [AdjTransport::Linux, AdjTransport::Rfc1624] {
                    let case = format!("{protocol} partial {is_partial} {mode:?} {sign:?}");
                    let mut pkt = fat(&mem, protocol, 450, is_partial);
                    translate(&mem, &mut pkt, rewrite(ILA, mode), Direction::SirToIla, sign);
                    let first: Vec<Vec<u8>> = segments(&mem, pkt).iter().map(Packet::to_vec).collect();
                    let mut thin = segments(&mem, fat(&mem, protocol, 450, is_partial));
                    assert_eq!((first.len(), thin.len()), (5, 5));
                    for (one, other) in first.iter().zip(&mut thin) {
                        translate(&mem, other, rewrite(ILA, mode), Direction::SirToIla, sign);
                        assert_eq!(*one, other.to_vec(), "{case}");
                        // The second translation makes each packet valid.
                        translate(&mem, other, rewrite(SIR, mode), Direction::IlaToSir, sign);
                        assert!(is_right_on_wire(&other.to_vec(), protocol), "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn fat_packet_with_complete_sum_becomes_partial() {
    let mem = Memory::heap();
    let mut pkt = fat(&mem, TCP, 450, false);
    pkt.meta.csum = Csum::Complete(plain_sum(&pkt.to_vec()));
    translate(&mem, &mut pkt, rewrite(ILA, CsumMode::NoAction), Direction::SirToIla, AdjTransport::Linux);
    assert_eq!(pkt.meta.csum, Csum::Partial { start: 40, offset: 16 });
}

#[test]
fn table_translates_as_rewrite_without_saved_difference() {
    let mem = Memory::heap();
    let dst = ILA.with(Identifier(IDENTIFIER.0 | 1 << 60));
    for csum_mode in CsumMode::ALL {
        let mut mappings = Mappings::default();
        let (locator_match, locator, ident_type) = (ILA, SIR, IdentType::UseFormat);
        let mapping = Mapping { locator_match, identifier: None, locator, link: None, csum_mode, ident_type };
        mappings.add(mapping).unwrap();
        let saved = mappings.lookup(dst, PortId(7)).unwrap();
        assert!(saved.diff.is_some());
        let [one, other] = [saved, rewrite(SIR, csum_mode)].map(|by| {
            let mut pkt = Packet::with_data(&mem, &packet_to(dst, TCP, 33)).unwrap();
            translate(&mem, &mut pkt, by, Direction::IlaToSir, AdjTransport::Linux);
            pkt.to_vec()
        });
        assert_eq!(one, other, "{csum_mode:?}");
    }
}

proptest! {
    #[test]
    fn hostile_bytes_change_in_destination_and_checksum_alone(
        rest in proptest::collection::vec(any::<u8>(), 0..200),
        next_header in prop_oneof![Just(TCP), Just(UDP), Just(ICMPV6), Just(FRAGMENT), Just(DEST_OPTS), any::<u8>()],
        identifier in any::<u64>(),
        mode in 0..4_u8,
        (is_linux, to_sir, is_fat, is_partial) in any::<(bool, bool, bool, bool)>(),
        (start, offset) in any::<(u16, u16)>(),
        size in 1..100_u16,
    ) {
        let mem = Memory::heap();
        let bytes = ipv6(ILA.with(Identifier(identifier)), next_header, &rest);
        let mode = CsumMode::from_number(mode).unwrap();
        let direction = if to_sir { Direction::IlaToSir } else { Direction::SirToIla };
        let sign = if is_linux { AdjTransport::Linux } else { AdjTransport::Rfc1624 };
        for (shape, mut pkt) in geometry::all(&mem, &bytes, &[40, 47]) {
            if is_partial {
                pkt.meta.csum = Csum::Partial { start: start % 100, offset: offset % 100 };
            }
            if is_fat {
                pkt.meta.cut = Cut::Gso(Gso { kind: GsoKind::Udp, size, segs: 1, ecn: false, fixed_id: false });
            }
            let Ok(info) = ip_headers(&mem, &mut pkt) else { continue };
            let before = pkt.to_vec();
            let out = rewrite(SIR, mode).packet(&mem, &mut pkt, &info, direction, sign).unwrap();
            pkt.check_invariants();
            let after = pkt.to_vec();
            prop_assert_eq!(&after[24..40], &out.octets()[..]);
            prop_assert_eq!(&after[..24], &before[..24]);
            let differ = (40..after.len()).filter(|&at| after[at] != before[at]).collect::<Vec<_>>();
            let is_one_field = differ.len() <= 2 && differ.last().is_none_or(|last| last - differ[0] <= 1);
            prop_assert!(is_one_field, "{}: {:?}", shape, differ);
        }
    }
}

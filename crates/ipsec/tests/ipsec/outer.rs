//! The outer header of a tunnel, and the inner header after decapsulation: DSCP, ECN, DF, flow label.

use crate::common::{BOTH_FAMILIES, HERE, Pair, THERE, fat, sa, segments, split_wire, udp_packet};
use ipsec::Train;
use packet::{Csum, Cut, Packet};
use wire::{Version, ipv4, ipv6};
use xfrm::{Mode, SaConfig, SaFlags};

fn set_tos(bytes: &mut [u8], tos: u8) {
    match Version::of(bytes).unwrap() {
        Version::V4 => ipv4::Ipv4Header::mut_from(bytes).unwrap().replace_tos(tos),
        Version::V6 => ipv6::Ipv6Header::mut_from(bytes).unwrap().set_traffic_class(tos),
    }
}

fn tos(bytes: &[u8]) -> u8 {
    match Version::of(bytes).unwrap() {
        Version::V4 => ipv4::Ipv4Header::ref_from(bytes).unwrap().tos(),
        Version::V6 => ipv6::Ipv6Header::ref_from(bytes).unwrap().traffic_class(),
    }
}

fn config(outer: usize, flags: SaFlags) -> SaConfig {
    SaConfig { src: HERE[outer], dst: THERE[outer], flags, ..sa() }
}

fn seal(pair: &mut Pair, bytes: &[u8]) -> Vec<u8> {
    let pkt = Packet::with_data(&pair.mem, bytes).unwrap();
    pair.seal(pkt, Train::None).remove(0).to_vec()
}

/// Every combination of families of a tunnel.
fn mixes() -> impl Iterator<Item = (usize, Version)> {
    [0, 1].into_iter().flat_map(|outer| [Version::V4, Version::V6].map(|inner| (outer, inner)))
}

//= test RFC 4301 §5.1.2.1 dscp-and-ecn
#[test]
fn dscp_and_ecn_on_the_way_out() {
    let plain = BOTH_FAMILIES;
    let noecn = SaFlags { noecn: true, ..plain };
    let hidden = SaFlags { dont_encap_dscp: true, ..plain };
    // (flags, inner TOS, outer TOS)
    let cases = [
        (plain, 46 << 2, 46 << 2),
        (plain, 46 << 2 | 1, 46 << 2 | 1),
        (plain, 46 << 2 | 2, 46 << 2 | 2),
        (plain, 46 << 2 | 3, 46 << 2 | 2), // CE goes out as ECT(0)
        (noecn, 46 << 2 | 3, 46 << 2),
        (noecn, 46 << 2 | 1, 46 << 2),
        (hidden, 46 << 2 | 1, 1),
        (hidden, 46 << 2 | 3, 2),
    ];
    for (outer, inner) in mixes() {
        for (flags, inside, want) in cases {
            let mut pair = Pair::new(&config(outer, flags));
            let mut bytes = udp_packet(inner, 10);
            set_tos(&mut bytes, inside);
            assert_eq!(tos(&seal(&mut pair, &bytes)), want, "{inside:#010b} {flags:?}");
        }
    }
}

/// RFC 6040's table, without the drop of CE around Not-ECT, which Linux lets pass.
//= test RFC 4301 §5.1.2.1 dscp-and-ecn
#[test]
fn dscp_and_ecn_on_the_way_in() {
    let (not_ect, ect1, ect0, ce) = (0, 1, 2, 3);
    for (outer, inner) in mixes() {
        for outside in [not_ect, ect1, ect0, ce] {
            for inside in [not_ect, ect1, ect0, ce] {
                for (noecn, decap_dscp) in [(false, false), (true, false), (false, true), (true, true)] {
                    let flags = SaFlags { noecn, decap_dscp, ..BOTH_FAMILIES };
                    let mut pair = Pair::new(&config(outer, flags));
                    let mut bytes = udp_packet(inner, 10);
                    set_tos(&mut bytes, (10 << 2) | inside);
                    let mut wire = seal(&mut pair, &bytes);
                    set_tos(&mut wire, (46 << 2) | outside);
                    let pkt = Packet::with_data(&pair.mem, &wire).unwrap();
                    let got = pair.open(pkt).remove(0).to_vec();
                    let marked = outside == ce && !noecn && matches!(inside, 1 | 2);
                    let ecn = if marked { ce } else { inside };
                    let dscp = if decap_dscp { 46 << 2 } else { 10 << 2 };
                    set_tos(&mut bytes, dscp | ecn);
                    assert_eq!(got, bytes, "outer {outside} inner {inside} {flags:?}");
                }
            }
        }
    }
}

//= test RFC 4301 §5.1.2.1 dont-fragment
#[test]
fn dont_fragment_is_copied_unless_switched_off_or_minimal_ipv6() {
    let nopmtudisc = SaFlags { nopmtudisc: true, ..BOTH_FAMILIES };
    let mut fragmentable = udp_packet(Version::V4, 10);
    fragmentable[6] = 0;
    ipv4::fill_check(&mut fragmentable).unwrap();
    let cases = [
        (BOTH_FAMILIES, udp_packet(Version::V4, 10), true),
        (BOTH_FAMILIES, fragmentable, false),
        (nopmtudisc, udp_packet(Version::V4, 10), false),
        (BOTH_FAMILIES, udp_packet(Version::V6, 1280 - 48), false),
        (BOTH_FAMILIES, udp_packet(Version::V6, 1281 - 48), true),
        (nopmtudisc, udp_packet(Version::V6, 1400), false),
    ];
    for (flags, bytes, want) in cases {
        let wire = seal(&mut Pair::new(&config(0, flags)), &bytes);
        assert_eq!(
            ipv4::Ipv4Header::ref_from(&wire).unwrap().dont_fragment(),
            want,
            "{} bytes, {flags:?}",
            bytes.len()
        );
    }
}

#[test]
fn a_flow_label_is_copied_from_ipv6_and_zero_for_ipv4() {
    for (inner, want) in [(Version::V6, 0x12345), (Version::V4, 0)] {
        let wire = seal(&mut Pair::new(&config(1, BOTH_FAMILIES)), &udp_packet(inner, 10));
        let header = ipv6::Ipv6Header::ref_from(&wire).unwrap();
        assert_eq!((header.flow_label(), header.hop_limit()), (want, 64));
    }
}

#[test]
fn identifications_count_up_across_and_within_fat_packets() {
    let mut pair = Pair::new(&sa());
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 5000);
    let mut ids = Vec::new();
    for _ in 0..2 {
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        for wire in pair.seal(pkt, Train::None) {
            let bytes = wire.to_vec();
            let header = ipv4::Ipv4Header::ref_from(&bytes).unwrap();
            assert_eq!((header.ttl(), header.src(), header.dst()), (64, [192, 0, 2, 1].into(), [192, 0, 2, 2].into()));
            ids.push(header.id());
        }
    }
    assert!(ids.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1)), "{ids:?}");
}

#[test]
fn in_transport_mode_the_packets_own_header_is_kept() {
    for outer in [0, 1] {
        let config = SaConfig { mode: Mode::Transport, ..config(outer, BOTH_FAMILIES) };
        let version = Version::of_addr(config.dst);
        let mut pair = Pair::new(&config);
        let (bytes, csum, cut) = fat(version, true, 1000, 3000);
        let want = segments(&pair.mem, &bytes, csum, cut);
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        for (wire, want) in pair.seal(pkt, Train::None).iter().zip(&want) {
            let (mut headers, _) = split_wire(wire);
            // All fields but length, protocol and checksum.
            match version {
                Version::V4 => {
                    headers[2..4].copy_from_slice(&want[2..4]);
                    headers[9..12].copy_from_slice(&want[9..12]);
                }
                Version::V6 => headers[4..7].copy_from_slice(&want[4..7]),
            }
            assert_eq!(headers, want[..headers.len()]);
        }
    }
}

#[test]
fn a_tunnel_without_a_source_sends_nothing() {
    let config = SaConfig { src: "0.0.0.0".parse().unwrap(), ..sa() };
    let mut pair = Pair::new(&config);
    let mut pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 10)).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (Csum::None, Cut::Whole);
    let mut out = Vec::new();
    let now = base::Instant::ZERO;
    let got = pair.sender.seal(&pair.mem, now, pair.out_sa, pkt, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!((got, out.len()), (Err(base::DropReason::EspMismatch), 0));
    assert_eq!(pair.sent, base::Counters::ZERO.with(base::Mib::XfrmOutStateModeError, 1));
}

//! Sealing and opening: every mode, family, algorithm and geometry, against an independent decoder.

use std::sync::Arc;

use crate::common::{
    BOTH_FAMILIES, NAT_T, Pair, cbc, decode, fat, gcm, ip_header, sa, segments, split_wire, udp_packet,
};
use base::{Counters, SaId};
use ipsec::Train;
use ipsec::engine::{Cipher, Library};
use packet::{Buf, CopyReason, Csum, Cut, Memory, Packet, geometry};
use wire::{Protocol, Version, checksum, ipv4, ipv6};
use xfrm::{Aead, Algorithm, Auth, AuthConfig, Enc, Mode, SaConfig, SaFlags};

/// Algorithms of every kind, with whole and short ICVs.
fn algorithms() -> Vec<Algorithm> {
    let key = |len| vec![9; len].into();
    let auth = Some(AuthConfig::new(Auth::HmacSha1, key(20), 96));
    vec![
        gcm(20, 8),
        gcm(20, 16),
        gcm(28, 12),
        gcm(28, 16),
        gcm(36, 12),
        gcm(36, 16),
        Algorithm::null(),
        Algorithm::separate(Enc::Null, key(0), auth.clone()),
        cbc(16, 12),
        cbc(32, 16),
        Algorithm::separate(Enc::CbcAes, key(24), None),
        Algorithm::separate(Enc::CtrAes, key(20), auth),
        Algorithm::aead(Aead::GmacAes, key(20), 128),
        Algorithm::aead(Aead::CcmAes, key(19), 64),
        Algorithm::aead(Aead::ChaCha20Poly1305, key(36), 128),
        Algorithm::aead(Aead::GmacAes, key(36), 128),
    ]
}

/// SAs of all modes, outer families and algorithms, with and without UDP.
fn configs() -> Vec<SaConfig> {
    let mut all = Vec::new();
    for (i, algorithm) in algorithms().into_iter().enumerate() {
        for mode in [Mode::Tunnel, Mode::Transport] {
            for outer in [0, 1] {
                for encap in [None, NAT_T] {
                    let flags = SaFlags { esn: i % 2 == 0, ..BOTH_FAMILIES };
                    let (src, dst) = (crate::common::HERE[outer], crate::common::THERE[outer]);
                    all.push(SaConfig { src, dst, mode, encap, flags, algorithm: algorithm.clone(), ..sa() });
                }
            }
        }
    }
    all
}

/// Versions of inner packets that fit the SA: in transport mode its own family.
fn inner_versions(config: &SaConfig) -> Vec<Version> {
    match config.mode {
        Mode::Tunnel => vec![Version::V4, Version::V6],
        Mode::Transport => vec![Version::of_addr(config.dst)],
    }
}

/// A packet to send, its metadata, and the expected packets.
type Sent = (Vec<u8>, Csum, Cut, Vec<Vec<u8>>);

/// The packets to send.
fn packets(mem: &Memory, version: Version) -> Vec<Sent> {
    let mut all = Vec::new();
    for len in [0, 1, 2, 3, 4, 1300] {
        let bytes = udp_packet(version, len);
        all.push((bytes.clone(), Csum::None, Cut::Whole, vec![bytes]));
    }
    for (is_tcp, size, len) in [(true, 1386, 5000), (false, 1201, 3603), (true, 100, 101), (false, 700, 600)] {
        let (bytes, csum, cut) = fat(version, is_tcp, size, len);
        let want = segments(mem, &bytes, csum, cut);
        all.push((bytes, csum, cut, want));
    }
    // A whole packet with a partial checksum.
    let (bytes, csum, cut) = fat(version, true, 1000, 777);
    let want = segments(mem, &bytes, csum, cut);
    let (bytes, csum, _) = fat(version, true, 1000, 777);
    all.push((bytes, csum, Cut::Whole, want));
    all
}

fn packet(mem: &Memory, bytes: &[u8], csum: Csum, cut: Cut) -> Packet {
    let mut pkt = Packet::with_data(mem, bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    pkt
}

#[test]
fn independent_decoder_finds_the_segments_in_the_frames() {
    for config in configs() {
        for version in inner_versions(&config) {
            let mut pair = Pair::new(&config);
            let mut seq = 0;
            for (bytes, csum, cut, want) in packets(&Memory::heap(), version) {
                for train in [Train::None, Train::Udp] {
                    let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), train);
                    let frames: Vec<_> = wire.iter().flat_map(|pkt| split_wire(pkt).1).collect();
                    let is_train = train == Train::Udp && config.encap.is_some() && want.len() > 1;
                    assert_eq!((wire.len(), frames.len()), (if is_train { 1 } else { want.len() }, want.len()));
                    assert_eq!(wire[0].meta.cut.gso().is_some(), is_train);
                    for (frame, want) in frames.iter().zip(&want) {
                        seq += 1;
                        let got = decode(&config, frame, 0);
                        let (skip, next_header) = match (config.mode, version) {
                            (Mode::Tunnel, Version::V4) => (0, 4),
                            (Mode::Tunnel, Version::V6) => (0, 41),
                            (Mode::Transport, version) => {
                                (version.header_len(), want[if version == Version::V4 { 9 } else { 6 }])
                            }
                        };
                        assert_eq!((got.seq, got.next_header), (seq, next_header));
                        assert!(got.payload == want[skip..], "{config:?} {version} {cut:?}, {} bytes", want.len());
                    }
                }
            }
            assert_eq!(pair.sent, Counters::ZERO);
            assert_eq!(pair.sender.sa(pair.out_sa).unwrap().stats().packets, u64::from(seq));
        }
    }
}

#[test]
fn open_undoes_seal() {
    for config in configs() {
        for version in inner_versions(&config) {
            let mut pair = Pair::new(&config);
            for (bytes, csum, cut, want) in packets(&Memory::heap(), version) {
                for train in [Train::None, Train::Udp] {
                    let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), train);
                    let got: Vec<_> = wire.into_iter().flat_map(|pkt| pair.open(pkt)).collect();
                    assert!(got.iter().all(|pkt| pkt.meta.sec_path[..] == [pair.in_sa]));
                    let is_tcp = want[0][if version == Version::V4 { 9 } else { 6 }] == 6;
                    let is_summed = is_tcp && (config.mode == Mode::Tunnel || config.encap.is_none());
                    for pkt in &got {
                        let sum = Csum::Complete(checksum::fold(checksum::sum(&pkt.to_vec())));
                        assert_eq!(pkt.meta.csum == sum, is_summed, "{config:?} {version} {:?}", pkt.meta.csum);
                    }
                    let got: Vec<_> = got.iter().map(Packet::to_vec).collect();
                    assert!(got == want, "{config:?} {version} {cut:?}");
                }
            }
            assert_eq!((pair.received.clone(), pair.opened.drops.len()), (Counters::ZERO, 0));
            let (sent, received) = (pair.sender.sa(pair.out_sa).unwrap(), pair.receiver.sa(pair.in_sa).unwrap());
            assert_eq!(sent.stats().packets, received.stats().packets);
            assert_eq!(sent.stats().bytes, received.stats().bytes);
        }
    }
}

#[test]
fn every_geometry_seals_to_the_same_inside_and_opens_to_it() {
    for mode in [Mode::Tunnel, Mode::Transport] {
        for (encap, train) in [(None, Train::None), (NAT_T, Train::Udp)] {
            let config = SaConfig { mode, encap, replay_window: 4096, ..sa() };
            let mut pair = Pair::new(&config);
            let (bytes, csum, cut) = fat(Version::V4, true, 500, 2600);
            let want = segments(&pair.mem, &bytes, csum, cut);
            for (name, mut pkt) in geometry::all(&Memory::heap(), &bytes, &[0, 1, 19, 20, 40, 52, 53, 552]) {
                (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
                let sealed = pair.seal(pkt, train);
                let mut got = Vec::new();
                for wire in sealed {
                    let cut = wire.meta.cut;
                    // Each of the shapes but the first is a duplicate.
                    let mem = Memory::heap();
                    let cuts = [0, 19, 20, 28, 36, 44, 100, 500, 600, 618, 1200];
                    let shapes = geometry::all(&mem, &wire.to_vec(), &cuts);
                    let pick = pair.receiver.sa(pair.in_sa).unwrap().stats().packets as usize % shapes.len();
                    let (shape, mut wire) = shapes.into_iter().nth(pick).unwrap();
                    wire.meta.cut = cut;
                    let opened = pair.open(wire);
                    assert!(!opened.is_empty(), "{name} as {shape}: {:?}", pair.opened.drops);
                    got.extend(opened.iter().map(Packet::to_vec));
                }
                assert!(got == want, "{name}, {mode:?}");
            }
        }
    }
}

/// As many inner packets as in the train, in every shape of the train.
#[test]
fn a_train_opens_in_every_shape() {
    for (mode, esn) in [(Mode::Tunnel, true), (Mode::Transport, false)] {
        let flags = SaFlags { esn, ..BOTH_FAMILIES };
        let config = SaConfig { mode, flags, encap: NAT_T, ..sa() };
        let (bytes, csum, cut) = fat(Version::V4, true, 300, 1300);
        let shapes = |pair: &mut Pair| {
            let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp).remove(0);
            let esp = usize::from(wire.meta.cut.gso().unwrap().size);
            let cuts = [1, 20, 27, 28, 32, 44, 28 + esp - 1, 28 + esp, 28 + esp + 9, 28 + 3 * esp];
            (geometry::all(&Memory::heap(), &wire.to_vec(), &cuts), wire.meta.cut)
        };
        let count = shapes(&mut Pair::new(&config)).0.len();
        for at in 0..count {
            let mut pair = Pair::new(&config);
            let want = segments(&pair.mem, &bytes, csum, cut);
            let (shapes, cut) = shapes(&mut pair);
            let (name, mut wire) = shapes.into_iter().nth(at).unwrap();
            wire.meta.cut = cut;
            let got: Vec<_> = pair.open(wire).iter().map(Packet::to_vec).collect();
            assert!(got == want, "{name}, {mode:?}: {:?}", pair.opened.drops);
        }
    }
}

#[test]
fn payload_is_copied_at_most_once_out_and_never_in() {
    let cipher = Cipher::new(&sa().algorithm).unwrap();
    for (encap, is_shared) in [(None, false), (None, true), (NAT_T, false), (NAT_T, true)] {
        let mut pair = Pair::new(&SaConfig { encap, ..sa() });
        let (bytes, csum, cut) = fat(Version::V4, true, 1386, 46 * 1386);
        let mut pkt = packet(&Memory::heap(), &bytes, csum, cut);
        let other = is_shared.then(|| pkt.clone_shared());
        let wire = pair.seal(pkt, Train::Udp);
        assert!(other.is_none_or(|other| other.to_vec() == bytes), "shared bytes are not overwritten");
        let copies = pair.mem.copies();
        let copied = if cipher.reads_elsewhere() && !is_shared { 0 } else { 46 * 1386 };
        assert_eq!(copies.get(CopyReason::WireFrame).bytes, copied);
        let headers = copies.get(CopyReason::SegmentHeader).bytes;
        assert_eq!(copies.total_bytes(), copied + headers);
        assert_eq!(headers, 46 * 52);
        let before = copies.total_bytes();
        let got: Vec<_> = wire.into_iter().flat_map(|pkt| pair.open(pkt)).collect();
        assert_eq!((got.len(), pair.mem.copies().total_bytes() - before), (46, 0));
        assert!(got.iter().all(|pkt| pkt.is_linear() && pkt.headroom() >= 16));
    }
}

/// Copied bytes of payload of a train of 46 segments that its sender owns alone, with this algorithm.
fn copied_by(algorithm: Algorithm) -> u64 {
    let mut pair = Pair::new(&SaConfig { algorithm, encap: NAT_T, ..sa() });
    let (bytes, csum, cut) = fat(Version::V4, true, 1386, 46 * 1386);
    let want = segments(&pair.mem, &bytes, csum, cut);
    let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp);
    let copied = pair.mem.copies().get(CopyReason::WireFrame).bytes;
    let got: Vec<_> = wire.into_iter().flat_map(|pkt| pair.open(pkt)).map(|pkt| pkt.to_vec()).collect();
    assert!(got == want, "{:?}", pair.opened.drops);
    copied
}

#[test]
fn no_cipher_with_separate_input_copies_payload() {
    for algorithm in algorithms() {
        let cipher = Cipher::new(&algorithm).unwrap();
        let copied = if cipher.reads_elsewhere() { 0 } else { 46 * 1386 };
        assert_eq!(copied_by(algorithm.clone()), copied, "{algorithm:?}");
    }
}

#[test]
fn ring_and_what_does_not_encrypt_work_in_place_alone() {
    for library in Library::ALL {
        for algorithm in algorithms() {
            let cipher = Cipher::with_library(&algorithm, *library).unwrap();
            let is_in_place = match &algorithm {
                Algorithm::Aead { name: Aead::GmacAes, .. } => true,
                Algorithm::Aead { name: Aead::GcmAes, key, .. } => *library == Library::Ring && key.bytes().len() != 28,
                Algorithm::Aead { .. } => false,
                Algorithm::Separate { enc, .. } => *enc == Enc::Null,
            };
            assert_eq!(cipher.reads_elsewhere(), !is_in_place, "{library}, {algorithm:?}");
        }
    }
}

#[test]
fn in_transport_mode_only_the_headers_move() {
    for (outer, headers) in [(0, 20), (1, 40)] {
        let (src, dst) = (crate::common::HERE[outer], crate::common::THERE[outer]);
        let mut pair = Pair::new(&SaConfig { src, dst, mode: Mode::Transport, encap: NAT_T, ..sa() });
        let version = Version::of_addr(dst);
        let (bytes, csum, cut) = fat(version, false, 1000, 20_000);
        let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp).remove(0);
        let before = pair.mem.copies().total_bytes();
        let got = pair.open(wire);
        assert_eq!(pair.mem.copies().total_bytes() - before, 20 * headers);
        assert!(got.iter().all(|pkt| pkt.meta.csum == Csum::Unnecessary), "the ICV vouches behind a NAT");
    }
}

#[test]
fn shared_pages_are_not_modified() {
    for (algorithm, is_copied) in [(sa().algorithm, false), (cbc(32, 16), true)] {
        let config = SaConfig { encap: NAT_T, algorithm, ..sa() };
        let mut pair = Pair::new(&config);
        let (bytes, csum, cut) = fat(Version::V4, true, 800, 4000);
        let canary: Arc<[u8]> = bytes.clone().into();
        let mut pkt = Packet::from_buf(Buf::foreign(canary.clone()));
        (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
        let wire = pair.seal(pkt, Train::Udp).remove(0);
        assert_eq!(canary[..], bytes[..], "the sender's page");

        let sealed: Arc<[u8]> = wire.to_vec().into();
        let before = sealed.to_vec();
        let mut received = Packet::from_buf(Buf::foreign(sealed.clone()));
        received.meta.cut = wire.meta.cut;
        assert_eq!(pair.open(received).len(), 5);
        assert_eq!(sealed[..], before[..], "the receiver's page");
        assert_eq!(pair.mem.copies().get(CopyReason::Writable).bytes > 4000, is_copied);

        // A clone keeps the bytes shared.
        let mut pair = Pair::new(&config);
        let pkt = packet(&Memory::heap(), &bytes, csum, cut);
        let mut wire = pair.seal(pkt, Train::Udp).remove(0);
        let kept = wire.clone_shared();
        let before = kept.to_vec();
        assert_eq!(pair.open(wire).len(), 5);
        assert_eq!(kept.to_vec(), before, "the clone");
    }
}

#[test]
fn a_train_keeps_within_64_datagrams_and_an_ip_packet() {
    for (outer, size, len, want) in [
        (0, 1386, 60_984, vec![44]),
        (0, 1386, 65_142, vec![44, 3]),
        (0, 100, 10_000, vec![64, 36]),
        (1, 1386, 65_142, vec![44, 3]),
    ] {
        let (src, dst) = (crate::common::HERE[outer], crate::common::THERE[outer]);
        let mut pair = Pair::new(&SaConfig { src, dst, encap: NAT_T, ..sa() });
        let (bytes, csum, cut) = fat(Version::V4, true, size, len);
        let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp);
        let trains: Vec<_> = wire.iter().map(|pkt| split_wire(pkt).1).collect();
        assert_eq!(trains.iter().map(Vec::len).collect::<Vec<_>>(), want, "{len} bytes in segments of {size}");
        for (pkt, train) in wire.iter().zip(&trains) {
            let gso = *pkt.meta.cut.gso().unwrap();
            assert_eq!(usize::from(gso.segs), train.len());
            assert!(train[..train.len() - 1].iter().all(|esp| esp.len() == usize::from(gso.size)));
        }
        let count: usize = wire.into_iter().map(|pkt| pair.open(pkt).len()).sum();
        assert_eq!(count, len.div_ceil(usize::from(size)));
    }
}

#[test]
fn frames_of_their_own_share_pages_and_have_room_for_ethernet() {
    let mut pair = Pair::new(&sa());
    let (bytes, csum, cut) = fat(Version::V4, true, 1386, 46 * 1386);
    let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp);
    assert_eq!((wire.len(), pair.mem.large().in_use(), pair.mem.small().in_use()), (46, 2, 0));
    assert!(wire.iter().all(|pkt| pkt.headroom() >= 32 && pkt.meta.cut == Cut::Whole));
    drop(wire);
    assert_eq!(pair.mem.large().in_use(), 0);
}

#[test]
fn udp_has_no_checksum_over_ipv4_and_one_to_complete_over_ipv6() {
    for outer in [0, 1] {
        let (src, dst) = (crate::common::HERE[outer], crate::common::THERE[outer]);
        let mut pair = Pair::new(&SaConfig { src, dst, encap: NAT_T, ..sa() });
        let mut wire =
            pair.seal(packet(&Memory::heap(), &udp_packet(Version::V4, 100), Csum::None, Cut::Whole), Train::Udp);
        let (headers, _) = split_wire(&wire[0]);
        let ports = &headers[headers.len() - 8..headers.len() - 4];
        assert_eq!(ports, [4500u16.to_be_bytes(), 4501u16.to_be_bytes()].concat());
        if outer == 0 {
            assert_eq!((&headers[26..28], wire[0].meta.csum), (&[0, 0][..], Csum::None));
        } else {
            assert_eq!(wire[0].meta.csum, Csum::Partial { start: 40, offset: 6 });
            offload::checksum::complete(&pair.mem, &mut wire[0], 0).unwrap();
            let bytes = wire[0].to_vec();
            let packet = ipv6::Ipv6::parse(&bytes).unwrap();
            assert!(packet.transport_check_ok(&packet.chain().unwrap()));
        }
    }
}

//= test RFC 4303 §2.2.1 high-half
#[test]
fn extended_numbers_wrap_in_the_middle_of_a_train() {
    let flags = SaFlags { esn: true, ..BOTH_FAMILIES };
    let start = (1 << 32) - 20;
    let config = SaConfig { encap: NAT_T, flags, oseq: start, seq: start, ..sa() };
    let mut pair = Pair::new(&config);
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 40_000);
    let want = segments(&pair.mem, &bytes, csum, cut);
    let wire = pair.seal(packet(&Memory::heap(), &bytes, csum, cut), Train::Udp).remove(0);
    let (_, frames) = split_wire(&wire);
    let seqs: Vec<_> = frames.iter().enumerate().map(|(i, esp)| decode(&config, esp, u32::from(i >= 19)).seq).collect();
    assert_eq!((seqs[18], seqs[19], seqs[39]), (u32::MAX, 0, 20));
    let got: Vec<_> = pair.open(wire).iter().map(Packet::to_vec).collect();
    assert!(got == want);
    assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().replay().top(), start + 40);
}

#[test]
fn ipv4_options_stay_outside_in_transport_mode() {
    let mut bytes = udp_packet(Version::V4, 50);
    bytes.splice(20..20, [148, 4, 0, 0]);
    bytes[0] = 0x46;
    let len = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&len.to_be_bytes());
    ipv4::fill_check(&mut bytes).unwrap();
    let config = SaConfig { mode: Mode::Transport, ..sa() };
    let mut pair = Pair::new(&config);
    let wire = pair.seal(packet(&Memory::heap(), &bytes, Csum::None, Cut::Whole), Train::None).remove(0);
    let (headers, frames) = split_wire(&wire);
    assert_eq!((headers.len(), &headers[20..], headers[9]), (24, &[148, 4, 0, 0][..], 50));
    assert_eq!(decode(&config, &frames[0], 0).payload, bytes[24..]);
    assert_eq!(pair.open(wire)[0].to_vec(), bytes);
}

#[test]
fn ipv6_extension_headers_before_and_behind_esp() {
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let routing = |next: u8| [next, 0, 4, 0, 0, 0, 0, 0];
    // Hop-by-hop options or none, and then every order of up to three routing and destination options headers.
    let mut chains: Vec<Vec<u8>> = vec![vec![], vec![0]];
    for from in [0, 2, 6] {
        let with = |chain: &Vec<u8>| [43, 60].map(|kind| [&chain[..], &[kind]].concat());
        let longer: Vec<_> = chains[from..].iter().flat_map(with).collect();
        chains.extend(longer);
    }
    assert_eq!(chains.len(), 2 * (1 + 2 + 4 + 8));
    let (src, dst) = (crate::common::HERE[1], crate::common::THERE[1]);
    let config = SaConfig { src, dst, mode: Mode::Transport, ..sa() };
    for chain in chains {
        // Headers up to the last routing header stay outside, else the hop-by-hop options (RFC 4303 §3.1.1).
        let routed = chain.iter().rposition(|&kind| kind == 43).map(|at| 8 * (at + 1));
        let outside = routed.unwrap_or(if chain.first() == Some(&0) { 8 } else { 0 });
        let plain = udp_packet(Version::V6, 60);
        let first = Protocol(chain.first().copied().unwrap_or(17));
        let mut bytes = ip_header(Version::V6, src, dst, first, 8 * chain.len() + plain.len() - 40);
        for (i, kind) in chain.iter().enumerate() {
            let next = chain.get(i + 1).copied().unwrap_or(17);
            bytes.extend(if *kind == 43 { routing(next) } else { options(next) });
        }
        bytes.extend_from_slice(&plain[40..]);
        let mut pair = Pair::new(&config);
        let wire = pair.seal(packet(&Memory::heap(), &bytes, Csum::None, Cut::Whole), Train::None).remove(0);
        let (headers, frames) = split_wire(&wire);
        let got = decode(&config, &frames[0], 0);
        assert_eq!(headers.len(), 40 + outside, "{chain:?}");
        assert_eq!(usize::from(got.next_header), usize::from(*chain.get(outside / 8).unwrap_or(&17)), "{chain:?}");
        assert_eq!(got.payload, bytes[40 + outside..], "{chain:?}");
        assert_eq!(pair.open(wire)[0].to_vec(), bytes, "{chain:?}");
    }
}

#[test]
fn sec_path_grows_up_to_six_sas() {
    let mut pair = Pair::new(&sa());
    let wire = pair.seal(packet(&Memory::heap(), &udp_packet(Version::V4, 10), Csum::None, Cut::Whole), Train::None);
    for mut pkt in wire {
        pkt.meta.sec_path.extend([SaId(90), SaId(91)]);
        let got = pair.open(pkt);
        assert_eq!(got[0].meta.sec_path[..], [SaId(90), SaId(91), pair.in_sa]);
    }
}

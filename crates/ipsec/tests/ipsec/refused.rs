//! Packets that are not opened: drop reasons and counters.

use std::net::IpAddr;

use crate::common::{NAT_T, Pair, THERE, cbc, fat, gcm, ip_header, mask, sa, split_wire, udp_packet};
use base::{Counters, DropReason, Instant, Mib, SaId};
use ipsec::Train;
use ipsec::engine::Cipher;
use packet::{Csum, Cut, Gso, GsoKind, Memory, Packet, Pool};
use wire::{Protocol, Spi, Version, checksum, ipv4, udp};
use xfrm::{Algorithm, Auth, AuthConfig, Enc, EspInUdp, Key, Mode, SaConfig, SaFlags};

/// A sealed packet of 100 bytes of UDP payload, and the pair.
fn sealed(config: &SaConfig) -> (Pair, Vec<u8>) {
    let mut pair = Pair::new(config);
    let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 100)).unwrap();
    let wire = pair.seal(pkt, Train::None).remove(0);
    (pair, wire.to_vec())
}

/// An outer IPv4 header in front of `esp`, with UDP's if the SA has one.
fn wrap(config: &SaConfig, esp: &[u8]) -> Vec<u8> {
    let udp = config.encap.map(|encap| udp::UdpHeader::new(encap.sport, encap.dport, (8 + esp.len()) as u16));
    let udp = udp.as_ref().map_or(&[][..], |header| header.as_bytes());
    let protocol = if udp.is_empty() { Protocol::ESP } else { Protocol::UDP };
    let ip = ip_header(Version::V4, config.src, config.dst, protocol, udp.len() + esp.len());
    [&ip, udp, esp].concat()
}

/// An ESP packet with this plaintext, otherwise valid.
fn authentic(config: &SaConfig, seq: u32, text: &[u8]) -> Vec<u8> {
    let cipher = Cipher::new(&config.algorithm).unwrap();
    let header = [config.spi.0.to_be_bytes(), seq.to_be_bytes()].concat();
    let mut esp = [&header, &vec![0; cipher.iv_len()], text, &vec![0; cipher.icv_len()]].concat();
    cipher.seal(&mut esp, mask().to_be_bytes(), None);
    wrap(config, &esp)
}

//= test RFC 4303 §3.4.4.1 wrong-icv
#[test]
fn forged_packet_is_refused_and_changes_no_state() {
    for config in [
        sa(),
        SaConfig { encap: NAT_T, ..sa() },
        SaConfig { algorithm: gcm(20, 12), ..sa() },
        SaConfig { algorithm: cbc(16, 12), ..sa() },
    ] {
        let (mut pair, wire) = sealed(&config);
        let start = split_wire(&Packet::with_data(&pair.mem, &wire).unwrap()).0.len();
        for at in start..wire.len() {
            let mut forged = wire.clone();
            forged[at] ^= 0x04;
            let (reason, mib) = match at - start {
                0..4 => (DropReason::EspNoState, Mib::XfrmInNoStates),
                _ => (DropReason::EspIcv, Mib::XfrmInStateProtoError),
            };
            let before = pair.received.get(mib);
            assert_eq!(pair.refuse(&forged), [reason], "byte {at}");
            assert_eq!(pair.received.get(mib), before + 1);
        }
        let forgeries = (wire.len() - start - 4) as u64;
        let state = pair.receiver.sa(pair.in_sa).unwrap();
        assert_eq!((state.stats().failed, state.stats().packets, state.replay().top()), (forgeries, 0, 0));
        let want = Counters::ZERO.with(Mib::XfrmInNoStates, 4).with(Mib::XfrmInStateProtoError, forgeries);
        assert_eq!(pair.received, want);
        let good = Packet::with_data(&pair.mem, &wire).unwrap();
        assert_eq!(pair.open(good).len(), 1);
    }
}

//= test RFC 4303 §3.4.3 window-after-icv
#[test]
fn forged_far_number_does_not_block_later_packets() {
    let (mut pair, wire) = sealed(&sa());
    let mut forged = wire.clone();
    forged[24..28].copy_from_slice(&0xffff_0000u32.to_be_bytes());
    assert_eq!(pair.refuse(&forged), [DropReason::EspIcv]);
    let good = Packet::with_data(&pair.mem, &wire).unwrap();
    assert_eq!(pair.open(good).len(), 1);
}

#[test]
fn replay_check_refuses_duplicates_and_numbers_left_of_window() {
    let mut pair = Pair::new(&SaConfig { replay_window: 32, ..sa() });
    let seal = |pair: &mut Pair| {
        let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 5)).unwrap();
        pair.seal(pkt, Train::None).remove(0).to_vec()
    };
    let packets: Vec<_> = (1..=40).map(|_| seal(&mut pair)).collect();
    let open = |pair: &mut Pair, seq: usize| {
        let pkt = Packet::with_data(&pair.mem, &packets[seq - 1]).unwrap();
        (pair.open(pkt).len(), std::mem::take(&mut pair.opened.drops))
    };
    let refused = (0, vec![DropReason::EspReplay]);
    assert_eq!(open(&mut pair, 40), (1, vec![]));
    assert_eq!(open(&mut pair, 40), refused);
    assert_eq!(open(&mut pair, 8), refused);
    assert_eq!(open(&mut pair, 9), (1, vec![]));
    assert_eq!(open(&mut pair, 9), refused);
    let stats = pair.receiver.sa(pair.in_sa).unwrap().stats();
    assert_eq!((stats.replay, stats.replay_window, stats.failed, stats.packets), (2, 1, 0, 2));
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateSeqError, 3));
}

#[test]
fn sequence_number_zero_is_refused_under_no_count_of_the_sa() {
    let mut pair = Pair::new(&sa());
    let bytes = authentic(&sa(), 0, &[0x45; 40]);
    assert_eq!(pair.refuse(&bytes), [DropReason::EspReplay]);
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateSeqError, 1));
    assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().stats(), ipsec::SaStats::default());
}

#[test]
fn each_length_below_the_least_is_refused_without_a_panic() {
    for config in [sa(), SaConfig { algorithm: Algorithm::null(), ..sa() }] {
        let (mut pair, wire) = sealed(&config);
        let is_null = config.algorithm.is_null();
        for len in 0..wire.len() - 20 {
            let bytes = wrap(&config, &wire[20..20 + len]);
            if is_null && len >= 10 {
                // Without an ICV a truncated text is accepted as it is.
                let pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
                pair.open(pkt);
                continue;
            }
            let reasons = pair.refuse(&bytes);
            let want = match len {
                0..34 => DropReason::EspTruncated,
                _ => DropReason::EspIcv,
            };
            assert_eq!(reasons, [want], "{len} bytes");
        }
        assert_eq!(pair.received.get(Mib::XfrmInHdrError), 8);
        if !is_null {
            assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().replay().top(), 0);
        }
    }
}

//= test RFC 4303 §2.6 dummy
#[test]
fn authentic_malformed_inside_leaves_the_window_unmoved() {
    let cases: [(&[u8], DropReason); 6] = [
        (&[0, 4], DropReason::EspFormat),             // no payload
        (&[1, 2, 2, 4], DropReason::EspFormat),       // only padding
        (&[1, 2, 3, 4], DropReason::EspFormat),       // one byte more than there is
        (&[0x45, 1, 255, 4], DropReason::EspFormat),  // far more
        (&[0, 0, 0, 0, 0, 59], DropReason::EspDummy), // a dummy packet
        (&[0xff; 40], DropReason::EspFormat),
    ];
    for algorithm in [gcm(36, 16), Algorithm::null()] {
        let config = SaConfig { algorithm, ..sa() };
        let mut pair = Pair::new(&config);
        for (text, want) in cases {
            assert_eq!(pair.refuse(&authentic(&config, 9, text)), [want], "{text:?}");
        }
        assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateProtoError, cases.len() as u64));
        let state = pair.receiver.sa(pair.in_sa).unwrap();
        assert_eq!((state.stats(), state.replay().top()), (ipsec::SaStats::default(), 0));
    }
}

/// Linux's `crypto_authenc_decrypt`: the ICV first, then the length.
#[test]
fn ciphertext_of_partial_blocks_is_forged_or_malformed() {
    let auth = |icv_bits| AuthConfig::new(Auth::HmacSha1, vec![6; 20].into(), icv_bits);
    let cbc = Algorithm::separate(Enc::CbcAes, vec![5; 16].into(), Some(auth(96)));
    let config = SaConfig { algorithm: cbc, ..sa() };
    let mut pair = Pair::new(&config);
    // An authenticator without a cipher makes the ICV of any bytes.
    let just_auth = Algorithm::separate(Enc::Null, Key::default(), Some(auth(96)));
    let odd = authentic(&SaConfig { algorithm: just_auth, ..sa() }, 9, &[0x45; 16 + 15]);
    assert_eq!(pair.refuse(&odd), [DropReason::EspFormat]);
    assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().stats().failed, 0);
    let mut forged = odd;
    forged[30] ^= 1;
    assert_eq!(pair.refuse(&forged), [DropReason::EspIcv]);
    let state = pair.receiver.sa(pair.in_sa).unwrap();
    assert_eq!((state.stats().failed, state.replay().top()), (1, 0));
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateProtoError, 2));
}

#[test]
fn a_tunnel_carries_ip_of_the_version_that_its_trailer_names() {
    let v4 = udp_packet(Version::V4, 20);
    let v6 = udp_packet(Version::V6, 20);
    let with_trailer = |inner: &[u8], next: u8| {
        let pad = (inner.len() + 2).wrapping_neg() & 3;
        [inner, &(1..=pad as u8).collect::<Vec<_>>(), &[pad as u8, next]].concat()
    };
    let cases: [(Vec<u8>, bool); 8] = [
        (with_trailer(&v4, 4), true),
        (with_trailer(&v6, 41), true),
        (with_trailer(&v4, 41), false),
        (with_trailer(&v6, 4), false),
        (with_trailer(&v4, 17), false),
        (with_trailer(&v4[..19], 4), false),
        (with_trailer(&v6[..39], 41), false),
        (with_trailer(&[0x75; 40], 4), false),
    ];
    let mut pair = Pair::new(&sa());
    for (i, (text, is_good)) in cases.iter().enumerate() {
        let bytes = authentic(&sa(), 1 + i as u32, text);
        let pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        assert_eq!(pair.open(pkt).len(), usize::from(*is_good), "case {i}");
    }
    assert_eq!(pair.opened.drops, [DropReason::EspFormat; 6]);
    // Authentic and in order: the window has moved, as in Linux.
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateModeError, 6));
    assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().replay().top(), 8);
}

//= test RFC 4303 §2.7 tfc-padding
#[test]
fn padding_behind_an_inner_packet_is_trimmed() {
    let v4 = udp_packet(Version::V4, 20);
    let text = [&v4[..], &[0; 402], &[0, 4]].concat();
    let mut pair = Pair::new(&sa());
    let pkt = Packet::with_data(&pair.mem, &authentic(&sa(), 1, &text)).unwrap();
    assert_eq!(pair.open(pkt)[0].to_vec(), v4);
}

#[test]
fn an_encapsulation_that_is_not_the_sas_is_a_mismatch() {
    let (mut pair, _) = sealed(&sa());
    let (_, encapsulated) = sealed(&SaConfig { encap: NAT_T, ..sa() });
    assert_eq!(pair.refuse(&encapsulated), [DropReason::EspMismatch]);
    let (mut pair, _) = sealed(&SaConfig { encap: NAT_T, ..sa() });
    let (_, raw) = sealed(&sa());
    assert_eq!(pair.refuse(&raw), [DropReason::EspMismatch]);
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateMismatch, 1));
}

#[test]
fn a_seventh_sa_is_one_too_many() {
    let (mut pair, wire) = sealed(&sa());
    let mut pkt = Packet::with_data(&pair.mem, &wire).unwrap();
    pkt.meta.sec_path.extend((0..6).map(SaId));
    assert!(pair.open(pkt).is_empty());
    assert_eq!(pair.opened.drops, [DropReason::PolicyDepth]);
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInBufferError, 1));
}

//= test RFC 4303 §3.4.1 reassembly-first
#[test]
fn malformed_outer_headers_are_header_errors() {
    let (mut pair, wire) = sealed(&SaConfig { encap: NAT_T, ..sa() });
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = wire.clone();
        change(&mut bytes);
        ipv4::fill_check(&mut bytes).unwrap();
        bytes
    };
    let cases: [(Vec<u8>, DropReason); 5] = [
        (with(&|b| b[2] = 0xff), DropReason::IpTruncated),
        (with(&|b| b[6] = 0x20), DropReason::FragmentNotReassembled),
        (with(&|b| b[9] = 6), DropReason::ProtocolUnknown),
        (with(&|b| b[24..26].copy_from_slice(&[0, 7])), DropReason::TransportHeader),
        (with(&|b| b[24..26].copy_from_slice(&[0xff, 7])), DropReason::TransportHeader),
    ];
    for (bytes, want) in &cases {
        assert_eq!(pair.refuse(bytes), [*want]);
    }
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInHdrError, cases.len() as u64));
}

#[test]
fn datagram_that_is_not_esp_is_passed_on() {
    let config = SaConfig { encap: NAT_T, ..sa() };
    let mut pair = Pair::new(&config);
    let ike = wrap(&config, &[&[0; 4][..], &[7; 100]].concat());
    let short = wrap(&config, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for bytes in [&ike, &short] {
        let pkt = Packet::with_data(&pair.mem, bytes).unwrap();
        assert!(pair.open(pkt).is_empty());
        assert_eq!(pair.opened.not_esp.pop().unwrap().to_vec(), *bytes);
    }
    let pkt = Packet::with_data(&pair.mem, &wrap(&config, &[0xff])).unwrap();
    assert!(pair.open(pkt).is_empty());
    assert_eq!((pair.opened.keepalives, pair.opened.drops.len()), (1, 0));
    assert_eq!(pair.received, Counters::ZERO);
}

/// Linux merges all datagrams of one port: of other SAs, and IKE.
#[test]
fn mixed_train_is_split_by_kind() {
    let config = SaConfig { encap: NAT_T, ..sa() };
    let mut pair = Pair::new(&config);
    let other = SaConfig { spi: Spi(0x2000), ..config.clone() };
    let other_in = pair.receiver.add_sa(&other, mask()).unwrap();
    let text = [&udp_packet(Version::V4, 20)[..], &[1, 2, 2, 4]].concat();
    let esp = |config: &SaConfig, seq| authentic(config, seq, &text)[28..].to_vec();
    let mut forged = esp(&config, 3);
    forged[40] ^= 1;
    let unknown = esp(&SaConfig { spi: Spi(0x3000), ..config.clone() }, 1);
    let size = forged.len();
    let mut ike = vec![0; 4];
    ike.resize(size, 9);
    let train =
        [esp(&config, 1), esp(&other, 1), forged, ike.clone(), esp(&config, 2), esp(&config, 1), unknown, vec![0xff]];
    let segs = train.len() as u16;
    let mut pkt = Packet::with_data(&pair.mem, &wrap(&config, &train.concat())).unwrap();
    pkt.meta.cut = Cut::Gso(Gso { size: size as u16, kind: GsoKind::Udp, segs, ecn: false, fixed_id: false });
    let got: Vec<_> = pair.open(pkt).iter().map(|pkt| pkt.meta.sec_path[0]).collect();
    assert_eq!(got, [pair.in_sa, other_in, pair.in_sa]);
    // Packets that are refused without decryption come first.
    assert_eq!(pair.opened.drops, [DropReason::EspNoState, DropReason::EspIcv, DropReason::EspReplay]);
    assert_eq!(pair.opened.keepalives, 1);
    let passed = pair.opened.not_esp.pop().unwrap().to_vec();
    assert_eq!(passed[20..], wrap(&config, &ike)[20..]);
    assert_eq!(checksum::sum(&passed[..20]), 0xffff);
    let want = Counters::ZERO
        .with(Mib::XfrmInStateProtoError, 1)
        .with(Mib::XfrmInStateSeqError, 1)
        .with(Mib::XfrmInNoStates, 1);
    assert_eq!(pair.received, want);
}

//= test RFC 4303 §3.3.3 no-cycle
#[test]
fn numbers_that_run_out_stop_a_fat_packet_as_a_whole() {
    let mut pair = Pair::new(&SaConfig { oseq: u64::from(u32::MAX) - 15, ..sa() });
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 40_000);
    let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    let mut out = Vec::new();
    let id = pair.out_sa;
    let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!((got, out.len()), (Err(DropReason::EspSequenceOverflow), 0));
    assert_eq!(pair.sent, Counters::ZERO.with(Mib::XfrmOutStateSeqError, 1));
    assert_eq!(pair.sender.sa(id).unwrap().stats().packets, 0);
    for _ in 0..15 {
        let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 1)).unwrap();
        assert_eq!(pair.seal(pkt, Train::None).len(), 1);
    }
}

#[test]
fn sequence_numbers_wrap_with_oseq_may_wrap() {
    let flags = SaFlags { oseq_may_wrap: true, ..SaFlags::default() };
    let mut pair = Pair::new(&SaConfig { oseq: u64::from(u32::MAX) - 1, flags, replay_window: 0, ..sa() });
    for want in [u32::MAX, 0, 1] {
        let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 1)).unwrap();
        let wire = pair.seal(pkt, Train::None).remove(0);
        let (_, frames) = split_wire(&wire);
        assert_eq!(frames[0][4..8], want.to_be_bytes());
        assert_eq!(pair.open(wire).len(), 1);
    }
}

#[test]
fn a_packet_that_no_ip_header_can_hold_is_too_big() {
    for encap in [None, NAT_T] {
        let mut pair = Pair::new(&SaConfig { encap, ..sa() });
        for (len, fits) in [(65_535 - 20 - 8 - 16 - 18 - 8 - 28, true), (65_535 - 28, false)] {
            let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, len)).unwrap();
            let mut out = Vec::new();
            let id = pair.out_sa;
            let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, pkt, Train::Udp, 1500, &mut out, &mut pair.sent);
            assert_eq!(got, if fits { Ok(()) } else { Err(DropReason::PacketTooBig) }, "{len} bytes");
        }
        assert_eq!(pair.sent, Counters::ZERO.with(Mib::XfrmOutStateProtoError, 1));
    }
}

#[test]
fn esp_without_memory_is_dropped_as_no_memory() {
    let mut pair = Pair::new(&sa());
    let [plain, other] = [(); 2].map(|()| Packet::with_data(&pair.mem, &udp_packet(Version::V4, 100)).unwrap());
    let mut wire = pair.seal(other, Train::None).remove(0);
    pair.mem = Memory::new(Pool::bounded(Memory::SMALL, 0), Pool::bounded(Memory::LARGE, 0));
    pair.sent = Counters::ZERO;
    let (mut out, id) = (Vec::new(), pair.out_sa);
    let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, plain, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!(got, Err(DropReason::NoMemory));
    assert_eq!(pair.sent, Counters::ZERO.with(Mib::XfrmOutStateProtoError, 1));
    // The bytes are shared, so they are opened in another buffer.
    let _kept = wire.clone_shared();
    assert!(pair.open(wire).is_empty());
    assert_eq!(pair.opened.drops, [DropReason::NoMemory]);
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateProtoError, 1));
}

//= test RFC 4303 §3.3.4 whole-datagrams
#[test]
fn transport_mode_takes_neither_fragments_nor_the_other_family() {
    let mut pair = Pair::new(&SaConfig { mode: Mode::Transport, ..sa() });
    let mut fragment = udp_packet(Version::V4, 100);
    fragment[6] = 0x20;
    ipv4::fill_check(&mut fragment).unwrap();
    for bytes in [fragment, udp_packet(Version::V6, 100)] {
        let pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        let mut out = Vec::new();
        let id = pair.out_sa;
        let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut out, &mut pair.sent);
        assert_eq!(got, Err(DropReason::EspMismatch));
    }
    assert_eq!(pair.sent, Counters::ZERO.with(Mib::XfrmOutStateModeError, 2));
}

#[test]
fn super_packet_with_wrong_metadata_is_not_segmented() {
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 5000);
    let Cut::Gso(gso) = cut else { unreachable!() };
    let gsos = [
        Gso { size: 0, ..gso },
        Gso { kind: GsoKind::Udp, ..gso },
        Gso { kind: GsoKind::TcpV6, ..gso },
        Gso { size: 1, ..gso },
    ];
    let mut pair = Pair::new(&sa());
    for gso in gsos {
        let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
        (pkt.meta.csum, pkt.meta.cut) = (csum, Cut::Gso(gso));
        let mut out = Vec::new();
        let id = pair.out_sa;
        let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut out, &mut pair.sent);
        assert_eq!((got, out.len()), (Err(DropReason::CannotSegment), 0), "{gso:?}");
    }
    assert_eq!(pair.sender.sa(pair.out_sa).unwrap().oseq(), 0);
}

#[test]
fn fat_packet_cut_inside_a_tunnel_is_not_sealed() {
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 5000);
    let Csum::Partial { start, offset } = csum else { unreachable!() };
    let mut pair = Pair::new(&sa());
    let mut pkt = Packet::with_data(&pair.mem, &bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (Csum::Partial { start: start + 40, offset }, cut);
    let mut out = Vec::new();
    let id = pair.out_sa;
    let got = pair.sender.seal(&pair.mem, Instant::ZERO, id, pkt, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!((got, out.len()), (Err(DropReason::CannotSegment), 0));
    assert_eq!(pair.sender.sa(pair.out_sa).unwrap().oseq(), 0);
}

#[test]
fn deleted_sa_decrypts_and_encrypts_nothing() {
    let (mut pair, wire) = sealed(&SaConfig { encap: Some(EspInUdp { sport: 1, dport: 2 }), ..sa() });
    let dst: IpAddr = THERE[0];
    assert!(pair.receiver.remove_sa(dst, Spi(0x1000), 0).is_some());
    assert!(pair.receiver.remove_sa(dst, Spi(0x1000), 0).is_none());
    assert_eq!(pair.refuse(&wire), [DropReason::EspNoState]);
    pair.sender.remove_sa(dst, Spi(0x1000), 0).unwrap();
    // The slot's next SA has another id: a packet with the old id does not get it.
    let new = pair.sender.add_sa(&sa(), mask()).unwrap();
    assert_ne!(new, pair.out_sa);
    let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 1)).unwrap();
    let mut out = Vec::new();
    let got = pair.sender.seal(&pair.mem, Instant::ZERO, pair.out_sa, pkt, Train::None, 1500, &mut out, &mut pair.sent);
    assert_eq!(got, Err(DropReason::PolicyNoState));
    assert_eq!(pair.sent, Counters::ZERO.with(Mib::XfrmOutNoStates, 1));
}

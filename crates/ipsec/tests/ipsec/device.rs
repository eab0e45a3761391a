//! Devices that offload ESP: SAs and policies offloaded to them, packets left to them, and their reports.

use crate::common::*;
use base::{Counters, DropReason, Instant, Mib, Origin, PortId};
use ipsec::device::{Device, OffloadDecision, OffloadFacts, Refused, SoftwareDevice};
use ipsec::engine::Cipher;
use ipsec::{Ipsec, Train};
use packet::{Esp, EspStatus, Memory, Packet};
use sim::{Faults, SoftDevice, SoftStats};
use wire::{Spi, Version};
use xfrm::{
    Algorithm, ConfigError, Dir, Level, Limits, Mode, PolicyConfig, SaConfig, SaDir, SaFlags, Selector, Template,
};
use xfrm::{Offload, OffloadMode};

const NOW: Instant = Instant::from_nanos(7);
const WAN: PortId = PortId(2);
const OTHER: PortId = PortId(3);

fn on(dev: PortId, dir: SaDir, mode: OffloadMode) -> Option<Offload> {
    Some(Offload { dev, dir, mode })
}

const CRYPTO_OUT: Option<Offload> = Some(Offload { dev: WAN, dir: SaDir::Out, mode: OffloadMode::Crypto });
const CRYPTO_IN: Option<Offload> = Some(Offload { dev: WAN, dir: SaDir::In, mode: OffloadMode::Crypto });

/// A node with that device at the link [`WAN`].
fn node_with(device: &SoftDevice) -> Ipsec {
    let mut node = Ipsec::new();
    node.set_device(WAN, Some(Box::new(device.clone())));
    node
}

fn algorithms() -> Vec<Algorithm> {
    vec![gcm(20, 8), gcm(36, 16), cbc(16, 12), cbc(32, 16), Algorithm::null()]
}

/// SAs of every kind, whose numbers are about to cross 2³² where that is possible.
fn configs() -> impl Iterator<Item = SaConfig> {
    algorithms().into_iter().flat_map(|algorithm| {
        [(Mode::Tunnel, false), (Mode::Tunnel, true), (Mode::Transport, true)].map(|(mode, esn)| SaConfig {
            mode,
            algorithm: algorithm.clone(),
            oseq: if esn { (1 << 32) - 5 } else { 0 },
            seq: if esn { (1 << 32) - 5 } else { 0 },
            flags: SaFlags { esn, ..BOTH_FAMILIES },
            ..sa()
        })
    })
}

fn fat_packet(mem: &Memory) -> Packet {
    let (bytes, csum, cut) = fat(Version::V4, true, 1000, 20_000);
    let mut pkt = Packet::with_data(mem, &bytes).unwrap();
    (pkt.meta.csum, pkt.meta.cut) = (csum, cut);
    pkt
}

#[test]
fn software_device_encrypts_what_is_left_to_it_and_nothing_else() {
    for config in configs() {
        let device = SoftwareDevice::default();
        let mut pair = Pair::new(&config);
        pair.sender = Ipsec::new();
        pair.sender.set_device(WAN, Some(Box::new(device.clone())));
        pair.out_sa = pair.sender.add_sa(&SaConfig { offload: CRYPTO_OUT, ..config.clone() }, mask()).unwrap();
        let fat = fat_packet(&pair.mem);
        let mut frames = pair.seal(fat, Train::Inline);
        let in_clear: Vec<_> = frames.iter().map(Packet::to_vec).collect();
        assert!(device.transmit(0, &mut frames).is_empty(), "{config:?}");
        assert!(frames.iter().all(|frame| frame.meta.esp.is_none()), "{config:?}");
        let on_wire: Vec<_> = frames.iter().map(Packet::to_vec).collect();
        let has_cipher = config.algorithm != Algorithm::null();
        assert!(on_wire.iter().zip(&in_clear).all(|(sealed, clear)| (sealed != clear) == has_cipher), "{config:?}");
        // Packets that are encrypted already pass unchanged, as after a full queue.
        assert!(device.transmit(0, &mut frames).is_empty(), "{config:?}");
        assert_eq!(frames.iter().map(Packet::to_vec).collect::<Vec<_>>(), on_wire, "{config:?}");
        assert!(frames.into_iter().all(|frame| pair.open(frame).len() == 1), "{config:?}");

        // A packet whose SA is gone is not sent in clear.
        let fat = fat_packet(&pair.mem);
        let mut frames = pair.seal(fat, Train::Inline);
        let (count, sa) = (frames.len(), pair.out_sa);
        drop(pair.sender.remove_sa_of(sa));
        assert_eq!((device.transmit(0, &mut frames).len(), frames.len()), (count, 0), "{config:?}");
    }
}

#[test]
fn software_device_decrypts_packets_of_its_sas_and_marks_them() {
    for config in configs() {
        let device = SoftwareDevice::default();
        let mut pair = Pair::new(&config);
        pair.receiver = Ipsec::new();
        pair.receiver.set_device(WAN, Some(Box::new(device.clone())));
        let id = pair.receiver.add_sa(&SaConfig { offload: CRYPTO_IN, ..config.clone() }, mask()).unwrap();
        let fat = fat_packet(&pair.mem);
        let mut frames = pair.seal(fat, Train::None);
        let mut of_another = Packet::with_data(&pair.mem, &frames[0].to_vec()).unwrap();
        device.receive(&pair.mem, 0, &mut frames);
        let opened = Some(Esp::Opened { sa: id, status: EspStatus::Success });
        assert!(frames.iter().all(|frame| frame.meta.esp == opened), "{config:?}");
        SoftwareDevice::default().receive(&pair.mem, 0, std::slice::from_mut(&mut of_another));
        assert_eq!(of_another.meta.esp, None, "{config:?}");
    }
}

#[test]
fn software_device_names_sas_that_it_refuses() {
    let encap = Some(xfrm::EspInUdp { sport: 4500, dport: 4500 });
    let cases = [
        (SaConfig { encap, ..sa() }, "an SA with UDP encapsulation"),
        (SaConfig { mark: xfrm::Mark { value: 1, mask: 1 }, ..sa() }, "an SA with a mark"),
    ];
    for (config, why) in cases {
        let mut node = Ipsec::new();
        node.set_device(WAN, Some(Box::new(SoftwareDevice::default())));
        let refused = node.add_sa(&SaConfig { offload: CRYPTO_IN, ..config.clone() }, mask()).unwrap_err();
        assert_eq!(refused, ConfigError::OffloadFailed(WAN, why));
        let packet_mode = on(WAN, SaDir::In, OffloadMode::Packet);
        let refused = node.add_sa(&SaConfig { offload: packet_mode, ..sa() }, mask()).unwrap_err();
        assert_eq!(refused, ConfigError::OffloadUnsupported(WAN));
    }
    assert!(SoftwareDevice::default().follows_esn());
}

#[test]
fn packet_sealed_by_device_is_as_one_sealed_here() {
    for config in configs() {
        let device = SoftDevice::new(false, true);
        let mut pair = Pair::new(&config);
        let mut software = Ipsec::new();
        let in_software = software.add_sa(&config, mask()).unwrap();
        pair.sender = node_with(&device);
        pair.out_sa = pair.sender.add_sa(&SaConfig { offload: CRYPTO_OUT, ..config.clone() }, mask()).unwrap();
        let fat = fat_packet(&pair.mem);
        let mut frames = pair.seal(fat, Train::Inline);
        assert!(frames.iter().all(|frame| matches!(frame.meta.esp, Some(Esp::Seal { .. }))), "{config:?}");
        device.transmit(&pair.mem, NOW, 0, &mut frames);
        assert_eq!(device.stats(), SoftStats { sealed: 20, ..SoftStats::default() }, "{config:?}");
        assert!(frames.iter().all(|frame| frame.meta.esp.is_none()), "{config:?}");
        let (mut want, mut sent, fat) = (Vec::new(), Counters::ZERO, fat_packet(&pair.mem));
        software.seal(&pair.mem, NOW, in_software, fat, Train::None, 1500, &mut want, &mut sent).unwrap();
        let headers = |frames: &[Packet]| -> Vec<_> { frames.iter().map(|it| it.to_vec()[..28].to_vec()).collect() };
        assert_eq!(headers(&frames)[0][12..], headers(&want)[0][12..], "{config:?}");
        for (at, (frame, want)) in frames.into_iter().zip(want).enumerate() {
            let crossed = config.flags.esn && at >= 4;
            let [got, want] = [&frame, &want].map(|it| decode(&config, &split_wire(it).1[0], u32::from(crossed)));
            assert_eq!((frame.len(), got), (want.payload.len() + frame.len() - want.payload.len(), want), "{config:?}");
            assert_eq!(pair.open(frame).len(), 1, "{config:?}");
        }
        assert_eq!((pair.received, pair.opened.drops.len()), (Counters::ZERO, 0), "{config:?}");
    }
}

#[test]
fn packet_opened_by_device_is_as_one_opened_here() {
    for config in configs() {
        let device = SoftDevice::new(false, true);
        let mut pair = Pair::new(&config);
        let fat = fat_packet(&pair.mem);
        let frames: Vec<_> = pair.seal(fat, Train::None).iter().map(Packet::to_vec).collect();
        let copies = |pair: &Pair| -> Vec<_> {
            let copies = frames.iter().map(|frame| Packet::with_data(&pair.mem, frame).unwrap());
            copies
                .map(|mut pkt| {
                    pkt.meta.origin = Origin::Port(WAN).into();
                    pkt
                })
                .collect()
        };
        let open = |pair: &mut Pair, frames: Vec<Packet>| -> Vec<_> {
            let inner = frames.into_iter().flat_map(|frame| pair.open(frame));
            inner.map(|pkt| (pkt.to_vec(), pkt.meta.esp, pkt.meta.csum, pkt.meta.origin.device())).collect()
        };
        let in_software = copies(&pair);
        let want = open(&mut pair, in_software);
        let software = pair.receiver.sa(pair.in_sa).unwrap().stats();
        pair.receiver = node_with(&device);
        pair.in_sa = pair.receiver.add_sa(&SaConfig { offload: CRYPTO_IN, ..config.clone() }, mask()).unwrap();
        let mut by_device = copies(&pair);
        device.receive(&pair.mem, NOW, 0, &mut by_device);
        assert!(by_device.iter().all(|pkt| matches!(pkt.meta.esp, Some(Esp::Opened { .. }))), "{config:?}");
        let got = open(&mut pair, by_device);
        assert_eq!((got.len(), got), (20, want), "{config:?}");
        assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().stats(), software, "{config:?}");
        assert_eq!((pair.received.clone(), device.stats().opened), (Counters::ZERO, 20), "{config:?}");
        // The replay window is in software: duplicates are refused whatever the device reports.
        let mut again = copies(&pair);
        device.receive(&pair.mem, NOW, 0, &mut again);
        assert_eq!(open(&mut pair, again).len(), 0, "{config:?}");
        assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateSeqError, 20), "{config:?}");
    }
}

#[test]
fn device_uses_esn_high_bits_as_last_set() {
    let config = SaConfig { flags: SaFlags { esn: true, ..BOTH_FAMILIES }, ..sa() };
    let device = SoftDevice::new(false, true);
    let mut pair = Pair::new(&config);
    pair.receiver = node_with(&device);
    pair.in_sa = pair.receiver.add_sa(&SaConfig { offload: CRYPTO_IN, ..config.clone() }, mask()).unwrap();
    // Jumps of less than 2³¹, which a window can distinguish from old numbers, across all values of 33 bits.
    for (at, oseq) in (1..=9u64).map(|leap| leap * 1_600_000_000).enumerate() {
        pair.sender = Ipsec::new();
        pair.out_sa = pair.sender.add_sa(&SaConfig { oseq, ..config.clone() }, mask()).unwrap();
        let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 10)).unwrap();
        let mut frames = pair.seal(pkt, Train::None);
        frames[0].meta.origin = Origin::Port(WAN).into();
        device.receive(&pair.mem, NOW, 0, &mut frames);
        assert_eq!(pair.open(frames.remove(0)).len(), 1, "leap {at}: {:?}", pair.opened.drops);
        assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().replay().top(), oseq + 1);
    }
    assert_eq!(device.stats().opened, 9);
}

#[test]
fn sa_is_offloaded_or_in_software_or_refused() {
    let esn = SaConfig { flags: SaFlags { esn: true, ..BOTH_FAMILIES }, ..sa() };
    let out = |mode| on(WAN, SaDir::Out, mode);
    let (crypto, packet) = (OffloadMode::Crypto, OffloadMode::Packet);
    let failed = Some(Refused::Failed("no room"));
    let unsupported = Some(Refused::Unsupported);
    let mut cases = vec![
        // (packet mode, ESN, fault; requested offload; outcome)
        (true, true, None, SaConfig { offload: out(crypto), ..sa() }, Ok(out(crypto))),
        (true, true, None, SaConfig { offload: out(packet), ..sa() }, Ok(out(packet))),
        (false, true, None, SaConfig { offload: out(packet), ..sa() }, Err(ConfigError::OffloadUnsupported(WAN))),
        (true, true, None, SaConfig { offload: on(OTHER, SaDir::Out, crypto), ..sa() }, Ok(None)),
        (true, true, unsupported, SaConfig { offload: out(crypto), ..sa() }, Ok(None)),
        (
            true,
            true,
            failed,
            SaConfig { offload: out(crypto), ..sa() },
            Err(ConfigError::OffloadFailed(WAN, "no room")),
        ),
        (
            true,
            true,
            failed,
            SaConfig { offload: out(packet), ..sa() },
            Err(ConfigError::OffloadFailed(WAN, "no room")),
        ),
        (true, true, None, SaConfig { offload: out(crypto), ..esn.clone() }, Ok(out(crypto))),
        (true, false, None, SaConfig { offload: out(crypto), ..esn.clone() }, Err(ConfigError::Offload("esn"))),
        // In packet mode the device assigns the numbers.
        (true, false, None, SaConfig { offload: out(packet), ..esn.clone() }, Ok(out(packet))),
        (true, true, None, SaConfig { offload: out(crypto), encap: NAT_T, ..sa() }, Ok(None)),
        (true, true, None, SaConfig { offload: out(crypto), tfcpad: 9, ..sa() }, Err(ConfigError::Offload("tfcpad"))),
        (true, true, None, SaConfig { offload: out(crypto), if_id: 9, ..sa() }, Ok(out(crypto))),
        (true, true, None, SaConfig { offload: CRYPTO_IN, if_id: 9, ..sa() }, Err(ConfigError::Offload("if_id"))),
        (true, true, None, SaConfig { offload: CRYPTO_IN, ..sa() }, Ok(CRYPTO_IN)),
        (true, true, None, SaConfig { offload: out(packet), oseq: 4, ..sa() }, Err(ConfigError::Offload("replay-seq"))),
    ];
    for (dir, offload) in [(SaDir::In, CRYPTO_OUT), (SaDir::Out, CRYPTO_IN)] {
        let config = SaConfig { dir: Some(dir), replay_window: 0, offload, ..sa() };
        cases.push((true, true, None, config, Err(ConfigError::OffloadDirection)));
    }
    let nowhere = SaConfig { offload: on(OTHER, SaDir::Out, packet), ..sa() };
    cases.push((true, true, None, nowhere, Err(ConfigError::OffloadUnsupported(OTHER))));
    for (at, (packet_mode, follows_esn, refuse, config, want)) in cases.into_iter().enumerate() {
        let device = SoftDevice::new(packet_mode, follows_esn);
        device.set_faults(Faults { refuse, ..Faults::default() });
        let mut node = node_with(&device);
        let got = node.add_sa(&config, mask()).map(|id| node.sa(id).unwrap().offload());
        assert_eq!(got, want, "case {at}: {config:?}");
        assert_eq!(device.load().0, usize::from(matches!(want, Ok(Some(_)))), "case {at}");
        assert_eq!(node.sad().len(), usize::from(want.is_ok()), "case {at}: one that fails is not added");
        drop(node.remove_sa(config.dst, config.spi, 0));
        assert_eq!(device.load(), (0, 0), "case {at}");
    }
}

#[test]
fn updated_sa_is_offered_to_its_device_again() {
    let device = SoftDevice::new(true, true);
    let mut node = node_with(&device);
    let config = SaConfig { offload: CRYPTO_OUT, ..sa() };
    let id = node.add_sa(&config, mask()).unwrap();
    let offload = |node: &Ipsec| (node.sa(id).unwrap().offload(), device.load().0);
    let becomes = |node: &mut Ipsec, offload, encap| node.replace_sa(&SaConfig { offload, encap, ..sa() }).map(drop);
    assert_eq!(becomes(&mut node, CRYPTO_OUT, None), Ok(()));
    assert_eq!(offload(&node), (CRYPTO_OUT, 1));
    assert_eq!(becomes(&mut node, None, None), Ok(()));
    assert_eq!(offload(&node), (None, 0));
    assert_eq!(becomes(&mut node, CRYPTO_IN, None), Ok(()));
    assert_eq!(offload(&node), (CRYPTO_IN, 1));
    device.set_faults(Faults { refuse: Some(Refused::Failed("no room")), ..Faults::default() });
    assert_eq!(becomes(&mut node, CRYPTO_OUT, None), Ok(()));
    assert_eq!(offload(&node), (None, 0), "software does it");
    device.set_faults(Faults::default());
    let packet = on(WAN, SaDir::Out, OffloadMode::Packet);
    assert_eq!(becomes(&mut node, packet, None), Err(ConfigError::OffloadChanged));
    drop(node.remove_sa(config.dst, config.spi, 0));
    node.add_sa(&SaConfig { offload: packet, ..sa() }, mask()).unwrap();
    assert_eq!(becomes(&mut node, None, None), Err(ConfigError::OffloadChanged), "numbers would come again");
    assert_eq!(device.load().0, 1);
}

#[test]
fn device_status_is_counted_as_in_linux() {
    let cases = [
        (EspStatus::AuthFailed, 1, Mib::XfrmInStateProtoError, DropReason::EspIcv),
        (EspStatus::BadProtocol, 0, Mib::XfrmInStateProtoError, DropReason::EspFormat),
        (EspStatus::BadSyntax, 0, Mib::XfrmInBufferError, DropReason::EspDevice),
        (EspStatus::Failed, 0, Mib::XfrmInBufferError, DropReason::EspDevice),
    ];
    for (status, failed, mib, reason) in cases {
        let device = SoftDevice::new(false, true);
        let mut pair = Pair::new(&sa());
        pair.receiver = node_with(&device);
        pair.in_sa = pair.receiver.add_sa(&SaConfig { offload: CRYPTO_IN, ..sa() }, mask()).unwrap();
        let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 10)).unwrap();
        let mut frames = pair.seal(pkt, Train::None);
        let bytes = frames[0].to_vec();
        frames[0].meta.origin = Origin::Port(WAN).into();
        device.set_faults(Faults { status: Some(status), ..Faults::default() });
        device.receive(&pair.mem, NOW, 0, &mut frames);
        assert!(pair.open(frames.remove(0)).is_empty());
        assert_eq!(
            (std::mem::take(&mut pair.opened.drops), &pair.received),
            (vec![reason], &Counters::ZERO.with(mib, 1))
        );
        let sa = pair.receiver.sa(pair.in_sa).unwrap();
        assert_eq!((sa.stats().failed, sa.stats().packets, sa.replay().top()), (failed, 0, 0), "{status:?}");
        // A device without a report leaves the work to software.
        device.set_faults(Faults { busy: true, ..Faults::default() });
        let mut again = vec![Packet::with_data(&pair.mem, &bytes).unwrap()];
        device.receive(&pair.mem, NOW, 0, &mut again);
        assert_eq!((again[0].meta.esp, pair.open(again.remove(0)).len()), (None, 1), "{status:?}");
    }
}

#[test]
fn device_status_for_a_software_sa_is_ignored() {
    let device = SoftDevice::new(false, true);
    let mut pair = Pair::new(&sa());
    let other = SaConfig { spi: Spi(0x2000), ..sa() };
    let pkt = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 10)).unwrap();
    let frame = pair.seal(pkt, Train::None)[0].to_vec();
    for offload in [None, CRYPTO_OUT, on(OTHER, SaDir::In, OffloadMode::Crypto), CRYPTO_IN] {
        pair.receiver = node_with(&device);
        pair.receiver.set_device(OTHER, Some(Box::new(SoftDevice::new(false, true))));
        let own = pair.receiver.add_sa(&SaConfig { offload, ..sa() }, mask()).unwrap();
        let another = pair.receiver.add_sa(&SaConfig { offload: CRYPTO_IN, ..other.clone() }, mask()).unwrap();
        for sa in [own, another] {
            let mut pkt = Packet::with_data(&pair.mem, &frame).unwrap();
            pkt.meta.origin = Origin::Port(WAN).into();
            pkt.meta.esp = Some(Esp::Opened { sa, status: EspStatus::Success });
            pair.received = Counters::ZERO;
            let ok = sa == own && offload == CRYPTO_IN;
            // The payload is no plaintext: its format error shows that decryption was skipped.
            assert!(pair.open(pkt).is_empty());
            let [drop] = std::mem::take(&mut pair.opened.drops)[..] else { panic!("one packet") };
            let want = if ok { DropReason::EspFormat } else { DropReason::EspDevice };
            assert_eq!((drop, pair.received.get(Mib::XfrmInStateInvalid)), (want, u64::from(!ok)), "{offload:?}");
        }
    }
}

#[test]
fn packet_is_offloaded_to_a_device_that_can_seal_it() {
    let device = SoftDevice::new(true, true);
    for mode in [OffloadMode::Crypto, OffloadMode::Packet] {
        let mut node = node_with(&device);
        let sa = node.add_sa(&SaConfig { offload: on(WAN, SaDir::Out, mode), ..sa() }, mask()).unwrap();
        let good = OffloadFacts { sa, len: 1000, fits: true, has_options: false, encap: false };
        let (yes, no, wrong) = match mode {
            OffloadMode::Crypto => (OffloadDecision::Cipher, OffloadDecision::Software, OffloadDecision::Software),
            OffloadMode::Packet => (
                OffloadDecision::Device,
                OffloadDecision::Refused(DropReason::EspDevice),
                OffloadDecision::Refused(DropReason::EspWrongDevice),
            ),
        };
        let refused = u64::from(mode == OffloadMode::Packet);
        let cases = [
            (WAN, good, false, yes, 0),
            (OTHER, good, false, wrong, 0),
            (WAN, OffloadFacts { fits: false, ..good }, false, no, refused),
            (WAN, OffloadFacts { has_options: true, ..good }, false, no, refused),
            (WAN, good, true, no, refused),
        ];
        for (link, facts, busy, want, errors) in cases {
            device.set_faults(Faults { busy, ..Faults::default() });
            let mut counters = Counters::ZERO;
            assert_eq!(node.offload_decision(link, &facts, &mut counters), want, "{mode:?} {facts:?}");
            assert_eq!(counters, Counters::ZERO.with(Mib::XfrmOutError, errors), "{mode:?} {facts:?}");
        }
        device.set_faults(Faults::default());
        let udp = OffloadFacts { encap: true, ..good };
        let want = if mode == OffloadMode::Crypto { OffloadDecision::Software } else { OffloadDecision::Device };
        assert_eq!(node.offload_decision(WAN, &udp, &mut Counters::ZERO.clone()), want);
    }
}

#[test]
fn bytes_for_a_device_contain_no_earlier_packet() {
    for config in configs() {
        let device = SoftDevice::new(false, true);
        let mut pair = Pair::new(&config);
        pair.sender = node_with(&device);
        pair.out_sa = pair.sender.add_sa(&SaConfig { offload: CRYPTO_OUT, ..config.clone() }, mask()).unwrap();
        let fat = fat_packet(&pair.mem);
        let pages: Vec<_> = (0..4)
            .map(|_| {
                let mut page = pair.mem.large().take(0).unwrap();
                page.put(page.tailroom()).unwrap().fill(0xee);
                page
            })
            .collect();
        drop(pages);
        let cipher = Cipher::new(&config.algorithm).unwrap();
        for frame in pair.seal(fat, Train::Inline) {
            let bytes = frame.to_vec();
            let icv = &bytes[bytes.len() - cipher.icv_len()..];
            assert!(icv.iter().all(|&byte| byte == 0), "{config:?}: {icv:x?}");
        }
    }
}

#[test]
fn packet_that_misses_its_device_is_sealed_here_or_dropped() {
    let device = SoftDevice::new(false, true);
    let mut pair = Pair::new(&sa());
    pair.sender = node_with(&device);
    let config = SaConfig { offload: CRYPTO_OUT, ..sa() };
    pair.out_sa = pair.sender.add_sa(&config, mask()).unwrap();
    let fat = fat_packet(&pair.mem);
    let mut frames = pair.seal(fat, Train::Inline);
    for mut frame in frames.drain(..10) {
        let esp = frame.meta.esp.unwrap();
        assert!(pair.sender.is_on_device(esp, WAN) && !pair.sender.is_on_device(esp, OTHER));
        pair.sender.seal_in_software(&mut frame, 0).unwrap();
        assert_eq!(frame.meta.esp, None);
        assert_eq!(
            pair.sender.seal_in_software(&mut frame, 0),
            Err(DropReason::EspWrongDevice),
            "there is nothing left to do"
        );
        assert_eq!(pair.open(frame).len(), 1);
    }
    assert_eq!(pair.received, Counters::ZERO);
    // The SA is removed: no copy of the key is left, in the device or elsewhere.
    drop(pair.sender.remove_sa(config.dst, config.spi, 0));
    let mut left = frames.split_off(5);
    for mut frame in frames {
        assert!(!pair.sender.is_on_device(frame.meta.esp.unwrap(), WAN));
        assert_eq!(pair.sender.seal_in_software(&mut frame, 0), Err(DropReason::PolicyNoState));
    }
    device.transmit(&pair.mem, NOW, 0, &mut left);
    assert_eq!((left.len(), device.stats()), (0, SoftStats { tx_dropped: 5, ..SoftStats::default() }));
}

/// A policy for all traffic from here to there, in that direction, which requires [`sa`].
fn policy(dir: Dir, offload: Option<PortId>) -> PolicyConfig {
    let [src, dst] = [HERE[0], THERE[0]].map(base::Prefix::host);
    let template = Template {
        src: Some(sa().src),
        dst: Some(sa().dst),
        spi: None,
        mode: Mode::Tunnel,
        reqid: 1,
        level: Level::Required,
    };
    PolicyConfig { templates: vec![template], offload, ..PolicyConfig::new(dir, Selector::new(src, dst)) }
}

#[test]
fn a_policy_and_its_sas_are_on_one_device() {
    let flow = wire::FlowKey::parse(&udp_packet(Version::V4, 10), 38).unwrap().into();
    let crypto = CRYPTO_OUT;
    let packet = |dev| on(dev, SaDir::Out, OffloadMode::Packet);
    let cases = [
        (None, None, true),
        (None, crypto, true),
        (None, packet(WAN), false),
        (Some(WAN), None, false),
        (Some(WAN), crypto, false),
        (Some(WAN), packet(WAN), true),
        (Some(WAN), packet(OTHER), false),
        (Some(OTHER), packet(WAN), false),
    ];
    for (policy_on, sa_on, want) in cases {
        let mut node = node_with(&SoftDevice::new(true, true));
        node.set_device(OTHER, Some(Box::new(SoftDevice::new(true, true))));
        node.add_policy(policy(Dir::Out, policy_on)).unwrap();
        node.add_sa(&SaConfig { offload: sa_on, ..sa() }, mask()).unwrap();
        let mut counters = Counters::ZERO;
        let found = matches!(node.lookup(NOW, &flow, &mut counters), ipsec::Decision::Protect(_));
        assert_eq!((found, counters.get(Mib::XfrmOutNoStates)), (want, u64::from(!want)), "{policy_on:?} {sa_on:?}");
    }
}

#[test]
fn packet_mode_sa_is_sealed_by_its_device_alone() {
    let mut pair = Pair::new(&sa());
    pair.sender = node_with(&SoftDevice::new(true, true));
    let offload = on(WAN, SaDir::Out, OffloadMode::Packet);
    let id = pair.sender.add_sa(&SaConfig { offload, ..sa() }, mask()).unwrap();
    let Pair { sender, mem, sent, .. } = &mut pair;
    for train in [Train::None, Train::Frames, Train::Inline] {
        let mut out = Vec::new();
        let sealed = sender.seal(mem, NOW, id, fat_packet(mem), train, 1500, &mut out, sent);
        assert_eq!((sealed, out.len()), (Err(DropReason::EspWrongDevice), 0), "{train:?}");
        let submitted = sender.submit_seal(mem, NOW, id, fat_packet(mem), train, 1500, sent);
        assert_eq!((submitted, sender.sealing()), (Err(DropReason::EspWrongDevice), 0), "{train:?}");
    }
    assert_eq!((sender.sa(id).unwrap().oseq(), &*sent), (0, &Counters::ZERO.with(Mib::XfrmOutError, 6)));
}

#[test]
fn policy_on_a_device_has_one_template_at_most() {
    let device = SoftDevice::new(true, true);
    let mut node = node_with(&device);
    for dir in [Dir::Out, Dir::In] {
        let one = policy(dir, Some(WAN));
        let two = PolicyConfig { templates: [&one.templates[..]; 2].concat(), ..one.clone() };
        let refused = Err(ConfigError::Offload("more than one tmpl"));
        assert_eq!(node.add_policy(two.clone()), refused, "{dir:?}");
        node.add_policy(one).unwrap();
        assert_eq!(node.update_policy(two.clone()), refused, "{dir:?}");
        node.update_policy(PolicyConfig { offload: None, ..two }).unwrap();
    }
    assert_eq!((node.spd().len(), device.load().1), (2, 0));
}

#[test]
fn policy_is_on_its_device_until_it_is_deleted() {
    let device = SoftDevice::new(true, true);
    let mut node = node_with(&device);
    let failed = Faults { refuse: Some(Refused::Failed("no room")), ..Faults::default() };
    assert_eq!(node.add_policy(policy(Dir::Fwd, Some(WAN))), Err(ConfigError::OffloadUnsupported(WAN)));
    assert_eq!(node.add_policy(policy(Dir::In, Some(OTHER))), Err(ConfigError::OffloadUnsupported(OTHER)));
    node.set_device(OTHER, Some(Box::new(SoftDevice::new(false, true))));
    assert_eq!(node.add_policy(policy(Dir::In, Some(OTHER))), Err(ConfigError::OffloadUnsupported(OTHER)));
    device.set_faults(failed);
    assert_eq!(node.add_policy(policy(Dir::Out, Some(WAN))), Err(ConfigError::OffloadFailed(WAN, "no room")));
    device.set_faults(Faults::default());
    assert_eq!((node.spd().len(), device.load().1), (0, 0));
    for dir in [Dir::Out, Dir::In] {
        node.add_policy(policy(dir, Some(WAN))).unwrap();
    }
    assert_eq!(node.add_policy(policy(Dir::Out, Some(WAN))), Err(ConfigError::Exists));
    assert_eq!((node.spd().len(), device.load().1), (2, 2));
    node.update_policy(policy(Dir::Out, None)).unwrap();
    assert_eq!((node.spd().len(), device.load().1), (2, 1));
    node.update_policy(PolicyConfig { priority: 3, ..policy(Dir::In, Some(WAN)) }).unwrap();
    assert_eq!((node.spd().len(), device.load().1), (2, 1));
    drop(node.remove_policy(&policy(Dir::In, None).key()));
    assert_eq!((node.spd().len(), device.load().1), (1, 0));
    let hard = Limits { added: Some(std::time::Duration::from_secs(5)), ..Limits::NONE };
    let lifetime = xfrm::Lifetime { soft: Limits::NONE, hard };
    node.add_policy(PolicyConfig { lifetime, ..policy(Dir::In, Some(WAN)) }).unwrap();
    node.handle_timeout(NOW, &mut Counters::ZERO.clone());
    assert_eq!((node.spd().len(), device.load().1), (2, 1));
    node.handle_timeout(Instant::from_nanos(6_000_000_000), &mut Counters::ZERO.clone());
    assert_eq!((node.spd().len(), device.load().1), (1, 0), "it has expired");
}

#[test]
fn removed_device_takes_its_sas_and_policies_alone() {
    let device = SoftDevice::new(true, true);
    let mut node = node_with(&device);
    let packet = on(WAN, SaDir::Out, OffloadMode::Packet);
    for (spi, offload) in [(1, CRYPTO_OUT), (2, CRYPTO_IN), (3, packet), (4, None)] {
        node.add_sa(&SaConfig { spi: Spi(spi), offload, ..sa() }, mask()).unwrap();
    }
    node.add_policy(policy(Dir::Out, Some(WAN))).unwrap();
    node.add_policy(policy(Dir::In, None)).unwrap();
    assert_eq!(device.load(), (3, 1));
    node.flush_device(OTHER);
    assert_eq!((node.sad().len(), device.load()), (4, (3, 1)));
    node.flush_device(WAN);
    assert_eq!((device.load(), node.spd().len()), ((0, 0), 1));
    assert_eq!(node.sad().iter().map(|sa| sa.spi().0).collect::<Vec<_>>(), [4]);
    // The device is still attached when its link comes up again.
    node.add_sa(&SaConfig { spi: Spi(5), offload: packet, ..sa() }, mask()).unwrap();
    node.set_device(WAN, None);
    assert_eq!((device.load(), node.sad().len()), ((0, 0), 1));
    let gone = node.add_sa(&SaConfig { spi: Spi(5), offload: packet, ..sa() }, mask());
    assert_eq!(gone, Err(ConfigError::OffloadUnsupported(WAN)));
}

//! SAs with a direction: refused in the opposite direction, along with options of the opposite direction.

use crate::common::{HERE, Pair, THERE, mask, sa, udp_packet};
use base::{Counters, DropReason, Mib};
use ipsec::{Decision, Ipsec, Train};
use packet::Packet;
use wire::{FlowKey, Spi, Version};
use xfrm::{ConfigError, Dir, Level, Mode, PolicyConfig, SaConfig, SaDir, SaFlags, Selector, Template};

/// An SA of that direction without a replay window, which is valid in both directions.
fn directed(dir: SaDir) -> SaConfig {
    SaConfig { dir: Some(dir), replay_window: 0, ..sa() }
}

#[test]
fn options_of_the_other_direction_are_refused_by_name() {
    let flag = |set: fn(&mut SaFlags)| {
        let mut flags = SaFlags::default();
        set(&mut flags);
        SaConfig { flags, replay_window: 0, ..sa() }
    };
    let (plain, none) = (SaConfig { replay_window: 0, ..sa() }, None);
    let cases = [
        (plain.clone(), none, none),
        (SaConfig { replay_window: 1, ..plain.clone() }, none, Some("replay-window")),
        (SaConfig { seq: 1, ..plain.clone() }, none, Some("replay-seq")),
        (flag(|flags| flags.decap_dscp = true), none, Some("decap-dscp")),
        (SaConfig { oseq: 1, ..plain }, Some("replay-oseq"), none),
        (flag(|flags| flags.nopmtudisc = true), Some("nopmtudisc"), none),
        (flag(|flags| flags.dont_encap_dscp = true), Some("dont-encap-dscp"), none),
        (flag(|flags| flags.oseq_may_wrap = true), Some("oseq-may-wrap"), none),
        (flag(|flags| flags.noecn = true), none, none),
    ];
    for (config, refused_in, refused_out) in cases {
        assert!(Ipsec::new().add_sa(&config, mask()).is_ok(), "without a direction: {config:?}");
        for (dir, refused) in [(SaDir::In, refused_in), (SaDir::Out, refused_out)] {
            let config = SaConfig { dir: Some(dir), ..config.clone() };
            let mut node = Ipsec::new();
            let got = node.add_sa(&config, mask()).map(|id| node.sa(id).and_then(ipsec::Sa::dir));
            let want = refused.map_or(Ok(Some(dir)), |option| Err(ConfigError::Direction(dir, option)));
            assert_eq!(got, want, "{config:?}");
            assert_eq!(node.is_idle(), want.is_err());
        }
    }
    let error = ConfigError::Direction(SaDir::Out, "decap-dscp").to_string();
    assert_eq!(error, "an SA of dir out has no decap-dscp");
}

#[test]
fn extended_numbers_need_a_window_only_where_they_are_received() {
    let esn = SaConfig { flags: SaFlags { esn: true, ..SaFlags::default() }, replay_window: 0, ..sa() };
    for (dir, want) in [
        (None, Err(ConfigError::EsnWithoutWindow)),
        (Some(SaDir::In), Err(ConfigError::EsnWithoutWindow)),
        (Some(SaDir::Out), Ok(())),
    ] {
        let config = SaConfig { dir, ..esn.clone() };
        assert_eq!(Ipsec::new().add_sa(&config, mask()).map(drop), want, "{dir:?}");
    }
    // A receiver with a window accepts all of its packets, across the wrap too.
    let received = SaConfig { dir: Some(SaDir::In), replay_window: 64, seq: 0xffff_fff0, ..esn.clone() };
    let mut pair = Pair::new(&received);
    let sent = SaConfig { dir: Some(SaDir::Out), oseq: 0xffff_fffe, ..esn };
    pair.sender.remove_sa(sent.dst, sent.spi, 0).unwrap();
    pair.out_sa = pair.sender.add_sa(&sent, mask()).unwrap();
    for n in 0..4 {
        let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, n)).unwrap();
        let wire = pair.seal(inner, Train::None).remove(0);
        assert_eq!(pair.open(wire).len(), 1, "packet {n}");
    }
    assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().replay().top(), 0x1_0000_0002);
}

//= test RFC 4301 §4.1 simplex
#[test]
fn output_sa_decrypts_nothing() {
    for dir in [None, Some(SaDir::In), Some(SaDir::Out)] {
        let mut pair = Pair::new(&SaConfig { replay_window: 0, ..sa() });
        let wire = {
            let inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 9)).unwrap();
            pair.seal(inner, Train::None).remove(0)
        };
        pair.receiver.replace_sa(&SaConfig { dir, replay_window: 0, ..sa() }).unwrap();
        if dir != Some(SaDir::Out) {
            assert_eq!(pair.open(wire).len(), 1, "{dir:?}");
            continue;
        }
        assert_eq!(pair.refuse(&wire.to_vec()), [DropReason::EspDirection]);
        assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInStateDirError, 1));
        assert_eq!(pair.receiver.sa(pair.in_sa).unwrap().stats(), ipsec::SaStats::default());
    }
}

#[test]
fn input_sa_matches_no_template() {
    let selector = Selector::new(base::Prefix::ANY_V4, base::Prefix::ANY_V4);
    let bytes = udp_packet(Version::V4, 9);
    let flow = FlowKey::parse(&bytes, bytes.len()).unwrap();
    for (mode, level) in [
        (Mode::Tunnel, Level::Required),
        (Mode::Transport, Level::Required),
        // Without an SA this level would send in clear (Linux `xfrm_tmpl_resolve_one`).
        (Mode::Transport, Level::Use),
    ] {
        let mut node = Ipsec::new();
        let template = Template { src: Some(HERE[0]), dst: Some(THERE[0]), spi: None, mode, reqid: 1, level };
        let templates = vec![template];
        node.add_policy(PolicyConfig { templates, ..PolicyConfig::new(Dir::Out, selector) }).unwrap();
        let config = SaConfig { mode, replay_window: 0, ..sa() };
        let id = node.add_sa(&config, mask()).unwrap();
        let protect = Decision::Protect([id].into_iter().collect());
        let drop = Decision::Drop(DropReason::EspDirection);
        let one = Counters::ZERO.with(Mib::XfrmOutStateDirError, 1).with(Mib::XfrmOutPolError, 1);
        for (dir, want, counted) in [
            (None, &protect, Counters::ZERO),
            (Some(SaDir::Out), &protect, Counters::ZERO),
            (None, &protect, Counters::ZERO),
            (Some(SaDir::In), &drop, one),
        ] {
            node.replace_sa(&SaConfig { dir, ..config.clone() }).unwrap();
            let mut counters = Counters::ZERO;
            assert_eq!(
                (&node.lookup(base::Instant::ZERO, &flow.into(), &mut counters), counters),
                (want, counted),
                "{mode:?} {level:?} {dir:?}"
            );
        }
    }
}

#[test]
fn a_direction_is_not_reversed_under_its_key() {
    for (from, to) in [(SaDir::In, SaDir::Out), (SaDir::Out, SaDir::In)] {
        let mut node = Ipsec::new();
        let id = node.add_sa(&directed(from), mask()).unwrap();
        let reversed = SaConfig { reqid: 77, ..directed(to) };
        assert_eq!(node.replace_sa(&reversed), Err(ConfigError::DirReversed));
        let sa = node.sa(id).unwrap();
        assert_eq!((sa.dir(), sa.reqid()), (Some(from), 1));
        assert_eq!(node.replace_sa(&SaConfig { reqid: 77, ..directed(from) }), Ok(id));
        assert_eq!(node.sa(id).unwrap().reqid(), 77);
    }
}

#[test]
fn only_input_sas_decrypt_packets_to_others() {
    let dst = THERE[0];
    for (dir, want) in [(None, false), (Some(SaDir::Out), false), (Some(SaDir::In), true)] {
        let mut node = Ipsec::new();
        node.add_sa(&SaConfig { dir, replay_window: 0, ..sa() }, mask()).unwrap();
        assert_eq!(node.sad().opens_for_others(dst, sa().spi, 0), want, "{dir:?}");
        assert!(!node.sad().opens_for_others(dst, Spi(0x1001), 0));
        assert!(!node.sad().opens_for_others(HERE[0], sa().spi, 0));
        node.remove_sa(dst, sa().spi, 0).unwrap();
        assert!(!node.sad().opens_for_others(dst, sa().spi, 0));
    }
}

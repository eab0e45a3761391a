//! Keys of SAs, changes of them, and packets that they carry.

use crate::common::{HERE, NAT_T, Pair, THERE, mask, sa, udp_packet};
use base::{Counters, DropReason, Instant, Mib, PortId, Prefix};
use ipsec::{Ipsec, Train};
use packet::{Packet, SecPath};
use wire::{FlowKey, Protocol, Spi, Version};
use xfrm::{
    ConfigError, Dir, EspInUdp, Flowi, Level, Mark, Mode, PolicyConfig, SaConfig, SaDir, SaFlags, Selector, Template,
};

const NOW: Instant = Instant::from_nanos(7);

fn template() -> Template {
    let (src, dst) = (Some(HERE[0]), Some(THERE[0]));
    Template { src, dst, spi: None, mode: Mode::Tunnel, reqid: 1, level: Level::Required }
}

fn flow(version: Version) -> Flowi {
    let bytes = udp_packet(version, 9);
    FlowKey::parse(&bytes, bytes.len()).unwrap().into()
}

fn mark_of(value: u32, mask: u32) -> Mark {
    Mark { value, mask }
}

#[test]
fn sas_of_one_spi_differ_by_their_marks() {
    let mut node = Ipsec::new();
    let marked = |value, mask| SaConfig { mark: mark_of(value, mask), ..sa() };
    let one = node.add_sa(&marked(1, 0xf), mask()).unwrap();
    let two = node.add_sa(&marked(2, u32::MAX), mask()).unwrap();
    let any = node.add_sa(&sa(), mask()).unwrap();
    // The lookup key of a new SA finds an old one (Linux `__xfrm_state_locate`).
    for taken in [marked(1, 0xf), marked(0x11, u32::MAX), marked(3, 3), sa()] {
        assert_eq!(node.add_sa(&taken, mask()), Err(ConfigError::Exists), "{:?}", taken.mark);
    }
    let found = |node: &Ipsec, mark| node.sad().by_spi(THERE[0], sa().spi, mark);
    let cases = [(0, Some(any)), (1, Some(any)), (0x21, Some(any)), (2, Some(any))];
    for (mark, want) in cases {
        assert_eq!(found(&node, mark), want, "the newest that matches {mark:#x}");
    }
    assert_eq!(node.remove_sa(THERE[0], sa().spi, 9).map(|sa| sa.id()), Some(any));
    for (mark, want) in [(0, None), (1, Some(one)), (0x21, Some(one)), (2, Some(two)), (0x12, None)] {
        assert_eq!(found(&node, mark), want, "{mark:#x}");
    }
    assert!(node.remove_sa(THERE[0], sa().spi, 0).is_none());
    assert!(node.remove_sa(THERE[0], sa().spi, 2).is_some() && node.remove_sa(THERE[0], sa().spi, 1).is_some());
    assert!(node.is_idle());
}

#[test]
fn a_packet_is_received_by_its_mark_and_marked_by_its_sa() {
    let config = SaConfig { mark: mark_of(5, 0xff), output_mark: mark_of(0x700, 0xf00), ..sa() };
    let mut pair = Pair::new(&config);
    for (mark, want) in [(5, Some(0x705)), (0x1105, Some(0x1705)), (6, None)] {
        let mut inner = Packet::with_data(&pair.mem, &udp_packet(Version::V4, 9)).unwrap();
        inner.meta.mark = mark;
        let mut wire = pair.seal(inner, Train::None).remove(0);
        assert_eq!(wire.meta.mark, config.output_mark.set_on(mark), "on the way out");
        wire.meta.mark = mark;
        let got = pair.open(wire).first().map(|pkt| pkt.meta.mark);
        assert_eq!(got, want, "marked {mark:#x}");
    }
    assert_eq!(pair.received, Counters::ZERO.with(Mib::XfrmInNoStates, 1));
}

#[test]
fn template_finds_output_sas_that_match_only() {
    let fits = |config: SaConfig, mark: Mark, flow: Flowi| {
        let mut node = Ipsec::new();
        let id = node.add_sa(&config, mask()).unwrap();
        let found = node.sad().for_template(&template(), mark, HERE[0], THERE[0], &flow);
        assert!(found.is_none_or(|found| found == id));
        found.is_some()
    };
    let v4 = flow(Version::V4);
    let wildrecv = SaFlags { wildrecv: true, ..SaFlags::default() };
    let one_family = SaFlags { af_unspec: false, ..sa().flags };
    let any_v6 = Some(Selector::new(Prefix::ANY_V6, Prefix::ANY_V6));
    let cases = [
        (sa(), v4, true),
        (SaConfig { src: "0.0.0.0".parse().unwrap(), ..sa() }, v4, true),
        (SaConfig { src: "192.0.2.9".parse().unwrap(), ..sa() }, v4, false),
        (SaConfig { flags: wildrecv, ..sa() }, v4, false),
        (SaConfig { if_id: 5, ..sa() }, v4, false),
        (SaConfig { if_id: 5, ..sa() }, Flowi { if_id: 5, ..v4 }, true),
        (sa(), Flowi { if_id: 5, ..v4 }, false),
        (sa(), flow(Version::V6), true),
        (SaConfig { flags: one_family, ..sa() }, v4, true),
        (SaConfig { flags: one_family, ..sa() }, flow(Version::V6), false),
        (SaConfig { flags: one_family, selector: any_v6, ..sa() }, flow(Version::V6), true),
        (SaConfig { selector: any_v6, ..sa() }, v4, false),
    ];
    for (config, flow, want) in cases {
        assert_eq!(fits(config.clone(), Mark::ANY, flow), want, "{config:?} for {flow:?}");
    }
    // The policy's mark selects the SA, under the SA's mask; the packet's mark only selects the policy.
    let marked = SaConfig { mark: mark_of(1, 1), ..sa() };
    for (mark, want) in [
        (Mark::ANY, false),
        (mark_of(1, 1), true),
        (mark_of(3, 3), true),
        (mark_of(3, 2), false),
        (mark_of(2, 3), false),
    ] {
        for of_packet in [0, 1, 3] {
            let flow = Flowi { mark: of_packet, ..v4 };
            assert_eq!(fits(marked.clone(), mark, flow), want, "{mark:?} {of_packet}");
            assert!(fits(sa(), mark, flow), "{mark:?} {of_packet}");
        }
    }
}

#[test]
fn a_source_of_its_own_comes_before_any_and_then_the_newest() {
    let mut node = Ipsec::new();
    let add = |node: &mut Ipsec, spi, src: &str| {
        node.add_sa(&SaConfig { spi: Spi(spi), src: src.parse().unwrap(), ..sa() }, mask()).unwrap()
    };
    let found = |node: &Ipsec| node.sad().for_template(&template(), Mark::ANY, HERE[0], THERE[0], &flow(Version::V4));
    let older_any = add(&mut node, 1, "0.0.0.0");
    let any = add(&mut node, 2, "0.0.0.0");
    assert_eq!(found(&node), Some(any));
    let own = add(&mut node, 3, "192.0.2.1");
    let newer_any = add(&mut node, 4, "0.0.0.0");
    assert_eq!(found(&node), Some(own));
    for (gone, want) in [(3, Some(newer_any)), (4, Some(any)), (2, Some(older_any)), (1, None)] {
        node.remove_sa(THERE[0], Spi(gone), 0).unwrap();
        assert_eq!(found(&node), want, "without {gone}");
    }
}

#[test]
fn an_update_changes_what_linux_changes_and_nothing_else() {
    let before = SaConfig { encap: NAT_T, dir: Some(SaDir::Out), replay_window: 0, ..sa() };
    let ports = Some(EspInUdp { sport: 1, dport: 2 });
    let changed = SaConfig {
        encap: ports,
        output_mark: Mark::exactly(9),
        if_id: 4,
        reqid: 77,
        mode: Mode::Transport,
        ..before.clone()
    };
    let mut node = Ipsec::new();
    let id = node.add_sa(&before, mask()).unwrap();
    assert_eq!(node.update_sa(&changed, mask()), Ok(id));
    let sa = node.sa(id).unwrap();
    assert_eq!((sa.encap(), sa.output_mark(), sa.if_id()), (ports, Mark::exactly(9), 4));
    assert_eq!((sa.reqid(), sa.mode()), (before.reqid, before.mode), "not these");
    // Values that the update leaves out stay.
    node.update_sa(&SaConfig { encap: ports, ..before.clone() }, mask()).unwrap();
    let sa = node.sa(id).unwrap();
    assert_eq!((sa.output_mark(), sa.if_id()), (Mark::exactly(9), 4));
    let refused = [
        (SaConfig { encap: None, ..before.clone() }, ConfigError::EncapChanged),
        (SaConfig { dir: None, ..before.clone() }, ConfigError::DirReversed),
        (SaConfig { spi: Spi(9), ..before.clone() }, ConfigError::NotFound),
        (SaConfig { mark: Mark::exactly(1), ..before.clone() }, ConfigError::NotFound),
        (SaConfig { replay_window: 9999, ..before }, ConfigError::ReplayWindow(9999)),
    ];
    for (config, want) in refused {
        // An SA without a mark matches every mark.
        let want = if config.mark == Mark::ANY { Err(want) } else { Ok(id) };
        let config = if want.is_ok() { SaConfig { encap: ports, ..config } } else { config };
        assert_eq!(node.update_sa(&config, mask()), want, "{config:?}");
    }
}

#[test]
fn a_tunnel_for_one_family_lets_no_other_out() {
    let v6_inside = |flags: SaFlags| {
        let mut sender = Pair::new(&sa());
        let inner = Packet::with_data(&sender.mem, &udp_packet(Version::V6, 9)).unwrap();
        let wire = sender.seal(inner, Train::None).remove(0);
        let mut pair = Pair::new(&SaConfig { flags, ..sa() });
        (pair.open(wire).len(), pair.opened.drops.clone(), pair.received)
    };
    assert_eq!(v6_inside(sa().flags), (1, vec![], Counters::ZERO));
    let want = Counters::ZERO.with(Mib::XfrmInStateModeError, 1);
    assert_eq!(v6_inside(SaFlags::default()), (0, vec![DropReason::EspFormat], want));
}

#[test]
fn icmp_error_is_matched_by_its_quote_with_the_icmp_flag() {
    let theirs = Prefix::host(THERE[0]);
    let selector = Some(Selector::new(theirs, Prefix::ANY_V4));
    let router = "198.51.100.1".parse().unwrap();
    let error = FlowKey { src: router, dst: HERE[0], protocol: Protocol::ICMP, sport: 3, dport: 1 };
    let answer = FlowKey { src: THERE[0], dst: HERE[0], protocol: Protocol::UDP, sport: 53, dport: 9 };
    let stranger = FlowKey { src: router, ..answer };
    for (icmp, quoted, want) in [
        (true, Some(answer), Ok(())),
        (true, Some(stranger), Err(DropReason::PolicyMismatch)),
        (true, None, Err(DropReason::PolicyMismatch)),
        (false, Some(answer), Err(DropReason::PolicyMismatch)),
    ] {
        let mut node = Ipsec::new();
        let flags = SaFlags { icmp, ..sa().flags };
        let id = node.add_sa(&SaConfig { flags, selector, ..sa() }, mask()).unwrap();
        let any = Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
        node.add_policy(PolicyConfig { templates: vec![template()], ..PolicyConfig::new(Dir::In, any) }).unwrap();
        let path: SecPath = [id].into_iter().collect();
        let mut counters = Counters::ZERO;
        assert_eq!(node.check(NOW, Dir::In, &error.into(), &path, || quoted, &mut counters), want, "{icmp} {quoted:?}");
        assert_eq!(counters.get(Mib::XfrmInStateMismatch), u64::from(want.is_err()));
    }
}

#[test]
fn policies_of_two_interfaces_and_marks_do_not_see_each_other() {
    let mut node = Ipsec::new();
    let any = Selector::new(Prefix::ANY_V4, Prefix::ANY_V4);
    let on_link = Selector { dev: Some(PortId(3)), ..any };
    let policies = [
        PolicyConfig { if_id: 1, ..PolicyConfig::new(Dir::Out, any) },
        PolicyConfig { if_id: 2, ..PolicyConfig::new(Dir::Out, any) },
        PolicyConfig { mark: mark_of(4, 4), ..PolicyConfig::new(Dir::Out, any) },
        PolicyConfig::new(Dir::Out, on_link),
    ];
    for policy in &policies {
        node.add_policy(policy.clone()).unwrap();
        assert_eq!(node.add_policy(PolicyConfig { priority: 9, ..policy.clone() }), Err(ConfigError::Exists));
    }
    let v4 = flow(Version::V4);
    let found = |flow: Flowi| {
        let policy = node.spd().lookup(Dir::Out, &flow).and_then(|id| node.spd().get(id));
        policy.map(|it| policies.iter().position(|other| other.key() == it.config.key()).unwrap())
    };
    let cases = [
        (v4, None),
        (Flowi { if_id: 1, ..v4 }, Some(0)),
        (Flowi { if_id: 2, mark: 4, ..v4 }, Some(1)),
        (Flowi { if_id: 3, ..v4 }, None),
        (Flowi { mark: 12, ..v4 }, Some(2)),
        (Flowi { link: Some(PortId(3)), ..v4 }, Some(3)),
        (Flowi { link: Some(PortId(4)), ..v4 }, None),
        (Flowi { link: Some(PortId(4)), domain_device: Some(PortId(3)), ..v4 }, Some(3)),
        (Flowi { link: Some(PortId(3)), domain_device: Some(PortId(4)), ..v4 }, Some(3)),
    ];
    for (flow, want) in cases {
        assert_eq!(found(flow), want, "{flow:?}");
    }
}

#[test]
fn sa_by_birth_survives_removal_and_slot_reuse() {
    let mut node = Ipsec::new();
    let with_spi = |spi| SaConfig { spi: Spi(spi), ..sa() };
    for spi in [0x300, 0x200, 0x400] {
        node.add_sa(&with_spi(spi), mask()).unwrap();
    }
    node.remove_sa(THERE[0], Spi(0x200), 0).unwrap();
    node.add_sa(&with_spi(0x100), mask()).unwrap();
    let list: Vec<_> = node.sad().by_birth(u64::MAX).map(|(born, sa)| (born, sa.spi().0)).collect();
    assert_eq!(list, [(1, 0x300), (3, 0x400), (4, 0x100)]);
    let newest_below: Vec<_> = node.sad().by_birth(4).rev().map(|(_, sa)| sa.spi().0).collect();
    assert_eq!(newest_below, [0x400, 0x300]);
}

#[test]
fn sa_with_unmatched_mark_is_named_and_not_added_twice() {
    let mut node = Ipsec::new();
    // No packet's mark has this value under the mask.
    let config = SaConfig { mark: mark_of(5, 4), ..sa() };
    let id = node.add_sa(&config, mask()).unwrap();
    assert_eq!(node.sad().by_spi(THERE[0], sa().spi, config.mark.value & config.mark.mask), None);
    assert_eq!(node.sad().named(THERE[0], sa().spi, config.mark), Some(id));
    assert_eq!(node.sad().named(THERE[0], sa().spi, mark_of(4, 4)), None);
    assert_eq!(node.add_sa(&config, mask()), Err(ConfigError::Exists));
}

//! Policies: the first match, its SAs, and the check of received packets.

use std::net::IpAddr;

use crate::common::{HERE, THERE, mask, sa};
use base::{Counters, DropReason, Instant, Mib, SaId};
use ipsec::{Decision, Ipsec};
use packet::SecPath;
use wire::{FlowKey, Protocol, Spi};
use xfrm::{Action, ConfigError, Dir, Level, Mode, PolicyConfig, PortMask, SaConfig, Selector, Template};

const NOW: Instant = Instant::from_nanos(7);

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn flow(src: &str, dst: &str) -> FlowKey {
    FlowKey { src: addr(src), dst: addr(dst), protocol: Protocol::TCP, sport: 1000, dport: 80 }
}

fn selector(src: &str, dst: &str) -> Selector {
    let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
    Selector::new(src, dst)
}

fn policy(dir: Dir, src: &str, dst: &str, priority: u32) -> PolicyConfig {
    PolicyConfig { priority, ..PolicyConfig::new(dir, selector(src, dst)) }
}

fn block(policy: PolicyConfig) -> PolicyConfig {
    PolicyConfig { action: Action::Block, ..policy }
}

fn tunnel(reqid: u32) -> Template {
    Template { src: Some(HERE[0]), dst: Some(THERE[0]), spi: None, mode: Mode::Tunnel, reqid, level: Level::Required }
}

fn transport(reqid: u32, level: Level) -> Template {
    Template { src: None, dst: None, spi: None, mode: Mode::Transport, reqid, level }
}

/// Decision about `flow`, and the counters that moved.
fn lookup(ipsec: &mut Ipsec, flow: &FlowKey) -> (Decision, Counters) {
    let mut counters = Counters::ZERO;
    let first = ipsec.lookup(NOW, &(*flow).into(), &mut counters);
    let mut again = Counters::ZERO;
    assert_eq!(
        (ipsec.lookup(NOW, &(*flow).into(), &mut again), &again),
        (first.clone(), &counters),
        "remembered as found"
    );
    (first, counters)
}

const BLOCKED: Decision = Decision::Drop(DropReason::PolicyBlock);

//= test RFC 4301 §4.4.1 policy-order
#[test]
fn lower_priority_number_wins_then_the_earlier_policy() {
    let wide = |priority| block(policy(Dir::Out, "10.0.0.0/24", "0.0.0.0/0", priority));
    let narrow = |priority| policy(Dir::Out, "10.0.0.1/32", "0.0.0.0/0", priority);
    let cases = [
        (vec![wide(0), narrow(0)], true),
        (vec![narrow(0), wide(0)], false),
        (vec![wide(1), narrow(0)], false),
        (vec![narrow(1), wide(0)], true),
        (vec![narrow(5), wide(5), policy(Dir::Out, "10.0.0.0/8", "0.0.0.0/0", 4)], false),
    ];
    for (policies, is_blocked) in cases {
        let mut ipsec = Ipsec::new();
        for policy in policies.clone() {
            ipsec.add_policy(policy).unwrap();
        }
        let want = if is_blocked { BLOCKED } else { Decision::Bypass };
        assert_eq!(lookup(&mut ipsec, &flow("10.0.0.1", "9.9.9.9")).0, want, "{policies:?}");
    }
}

#[test]
fn policy_key_is_direction_and_selector() {
    let mut ipsec = Ipsec::new();
    let first = policy(Dir::Out, "10.0.0.0/24", "0.0.0.0/0", 7);
    ipsec.add_policy(first.clone()).unwrap();
    assert_eq!(ipsec.add_policy(PolicyConfig { priority: 9, ..first.clone() }), Err(ConfigError::Exists));
    ipsec.add_policy(PolicyConfig { dir: Dir::In, ..first.clone() }).unwrap();
    ipsec.update_policy(block(PolicyConfig { priority: 3, ..first.clone() })).unwrap();
    let shown: Vec<_> =
        ipsec.spd().iter().map(|policy| (policy.config.dir, policy.index, policy.config.priority)).collect();
    assert_eq!(shown, [(Dir::In, 16, 7), (Dir::Out, 9, 3)]);
    assert_eq!(lookup(&mut ipsec, &flow("10.0.0.1", "9.9.9.9")).0, BLOCKED, "the change is seen at once");
    assert!(ipsec.remove_policy(&first.key()).is_some());
    assert!(ipsec.remove_policy(&first.key()).is_none());
    assert_eq!(lookup(&mut ipsec, &flow("10.0.0.1", "9.9.9.9")).0, Decision::Bypass);
}

#[test]
fn selector_matches_prefixes_protocol_and_masked_ports() {
    let base = selector("10.0.0.0/8", "10.2.0.0/16");
    let tcp = Selector { protocol: Some(Protocol::TCP), ..base };
    let cases = [
        (base, true),
        (tcp, true),
        (Selector { protocol: Some(Protocol::UDP), ..base }, false),
        (Selector { dport: PortMask::exactly(80), ..tcp }, true),
        (Selector { dport: PortMask::exactly(81), ..tcp }, false),
        (Selector { dport: PortMask { port: 64, mask: 0xffc0 }, ..tcp }, true),
        (Selector { sport: PortMask::exactly(80), ..tcp }, false),
        (selector("10.0.0.0/8", "10.3.0.0/16"), false),
        (selector("::/0", "::/0"), false),
    ];
    for (selector, want) in cases {
        assert_eq!(selector.matches(&flow("10.1.0.1", "10.2.0.1").into()), want, "{selector:?}");
    }
}

#[test]
fn output_policy_cases() {
    let with = |templates: Vec<Template>| {
        let mut ipsec = Ipsec::new();
        let tunnel = ipsec.add_sa(&SaConfig { reqid: 1, ..sa() }, mask()).unwrap();
        let end = SaConfig { reqid: 2, spi: Spi(0x2000), mode: Mode::Transport, ..sa() };
        let transport = ipsec.add_sa(&end, mask()).unwrap();
        let mut policy = policy(Dir::Out, "0.0.0.0/0", "0.0.0.0/0", 0);
        policy.templates = templates;
        ipsec.add_policy(policy).unwrap();
        (ipsec, [tunnel, transport])
    };
    let none = Counters::ZERO;
    let protect = |sas: &[SaId]| Decision::Protect(sas.iter().copied().collect());
    let no_state = (Decision::Drop(DropReason::PolicyNoState), none.clone().with(Mib::XfrmOutNoStates, 1));
    let (_, [t, p]) = with(vec![]);
    let far = flow("10.1.0.1", "10.2.0.1");
    let near = flow("192.0.2.1", "192.0.2.2");
    let required = Level::Required;
    let cases = [
        (vec![], far, (Decision::Bypass, none.clone())),
        (vec![tunnel(1)], far, (protect(&[t]), none.clone())),
        (vec![tunnel(3)], far, no_state.clone()),
        (vec![Template { dst: Some(addr("192.0.2.9")), ..tunnel(1) }], far, no_state.clone()),
        (vec![Template { src: Some(addr("192.0.2.9")), ..tunnel(1) }], far, no_state.clone()),
        (vec![Template { src: None, ..tunnel(1) }], far, (protect(&[t]), none.clone())),
        (vec![Template { spi: Some(Spi(0x1000)), ..tunnel(1) }], far, (protect(&[t]), none.clone())),
        (vec![Template { spi: Some(Spi(0x1001)), ..tunnel(1) }], far, no_state.clone()),
        (vec![transport(2, required)], near, (protect(&[p]), none.clone())),
        (vec![transport(2, required)], far, no_state.clone()),
        (vec![transport(2, Level::Use)], far, (Decision::Bypass, none.clone())),
        // Inside a tunnel the addresses are the tunnel's.
        (vec![tunnel(1), transport(2, required)], far, (protect(&[t, p]), none.clone())),
        (vec![transport(2, Level::Use), tunnel(1)], far, (protect(&[t]), none.clone())),
        (vec![tunnel(1); 5], far, (protect(&[t; 5]), none.clone())),
        (
            vec![tunnel(1); 6],
            far,
            (Decision::Drop(DropReason::PolicyDepth), none.clone().with(Mib::XfrmOutPolError, 1)),
        ),
    ];
    for (templates, flow, want) in cases {
        assert_eq!(lookup(&mut with(templates.clone()).0, &flow), want, "{templates:?}");
    }
    let (mut ipsec, _) = with(vec![]);
    ipsec.add_policy(block(PolicyConfig { priority: 0, ..policy(Dir::Fwd, "::/0", "::/0", 0) })).unwrap();
    ipsec.update_policy(block(policy(Dir::Out, "0.0.0.0/0", "0.0.0.0/0", 0))).unwrap();
    assert_eq!(lookup(&mut ipsec, &far), (BLOCKED, none.clone().with(Mib::XfrmOutPolBlock, 1)));
    assert_eq!(lookup(&mut ipsec, &flow("fd00::1", "fd00::2")), (Decision::Bypass, none.clone()));
    ipsec.set_default_policy(Dir::Out, Action::Block);
    assert_eq!(lookup(&mut ipsec, &flow("fd00::1", "fd00::2")), (BLOCKED, none), "a default is not counted");
}

#[test]
fn the_newest_sa_that_fits_is_used() {
    let mut ipsec = Ipsec::new();
    let mut out = policy(Dir::Out, "0.0.0.0/0", "0.0.0.0/0", 0);
    out.templates = vec![tunnel(1)];
    ipsec.add_policy(out).unwrap();
    let only_tcp = Selector { protocol: Some(Protocol::TCP), ..selector("0.0.0.0/0", "0.0.0.0/0") };
    let old = ipsec.add_sa(&sa(), mask()).unwrap();
    let new = ipsec.add_sa(&SaConfig { spi: Spi(2), selector: Some(only_tcp), ..sa() }, mask()).unwrap();
    let tcp = flow("10.1.0.1", "10.2.0.1");
    let udp = FlowKey { protocol: Protocol::UDP, ..tcp };
    let protect = |sa| Decision::Protect([sa].into_iter().collect());
    assert_eq!([lookup(&mut ipsec, &tcp).0, lookup(&mut ipsec, &udp).0], [protect(new), protect(old)]);
    ipsec.remove_sa(THERE[0], Spi(2), 0).unwrap();
    assert_eq!(lookup(&mut ipsec, &tcp).0, protect(old));
}

/// Row X67, each case with the counter of Linux.
//= test RFC 4301 §5.2 clear-where-protected
//= test RFC 4301 §5.2 selectors-of-sa
#[test]
fn input_policy_cases() {
    let mut ipsec = Ipsec::new();
    let t = ipsec.add_sa(&sa(), mask()).unwrap();
    let p = ipsec.add_sa(&SaConfig { reqid: 2, spi: Spi(2), mode: Mode::Transport, ..sa() }, mask()).unwrap();
    let strict = Selector { protocol: Some(Protocol::UDP), ..selector("0.0.0.0/0", "0.0.0.0/0") };
    let s = ipsec.add_sa(&SaConfig { reqid: 3, spi: Spi(3), selector: Some(strict), ..sa() }, mask()).unwrap();
    let gone = ipsec.add_sa(&SaConfig { spi: Spi(4), ..sa() }, mask()).unwrap();
    ipsec.remove_sa(THERE[0], Spi(4), 0).unwrap();
    let required = Level::Required;
    let use_tunnel = Template { level: Level::Use, ..tunnel(1) };
    let mismatch = Err((Mib::XfrmInTmplMismatch, DropReason::PolicyMismatch));
    // (the policy's templates, if there is a policy; the SAs from the outermost; verdict)
    let cases: [(Option<Vec<Template>>, Vec<SaId>, _); 22] = [
        (None, vec![], Ok(())),
        (None, vec![p], Ok(())),
        (None, vec![t], Err((Mib::XfrmInNoPols, DropReason::PolicyMismatch))),
        (None, vec![p, t], Err((Mib::XfrmInNoPols, DropReason::PolicyMismatch))),
        (None, vec![s], Err((Mib::XfrmInStateMismatch, DropReason::PolicyMismatch))),
        (None, vec![gone], Err((Mib::XfrmInStateInvalid, DropReason::EspNoState))),
        (Some(vec![]), vec![], Ok(())),
        (Some(vec![]), vec![p], Ok(())),
        (Some(vec![]), vec![t], mismatch),
        (Some(vec![tunnel(1)]), vec![], mismatch),
        (Some(vec![tunnel(1)]), vec![t], Ok(())),
        (Some(vec![tunnel(0)]), vec![t], Ok(())),
        (Some(vec![tunnel(9)]), vec![t], mismatch),
        (Some(vec![Template { src: Some(addr("192.0.2.9")), ..tunnel(1) }]), vec![t], mismatch),
        (Some(vec![tunnel(1)]), vec![p, t], Ok(())), // a transport SA without a template
        (Some(vec![tunnel(1)]), vec![t, t], mismatch), // an extra tunnel
        (Some(vec![tunnel(1), transport(2, required)]), vec![p, t], Ok(())),
        (Some(vec![tunnel(1), transport(2, required)]), vec![t, p], mismatch), // in reverse order
        (Some(vec![transport(2, Level::Use)]), vec![], Ok(())),
        (Some(vec![use_tunnel]), vec![], Ok(())),
        (Some(vec![use_tunnel]), vec![t], Ok(())),
        (Some(vec![tunnel(1); 6]), vec![t; 6], Err((Mib::XfrmInBufferError, DropReason::PolicyDepth))),
    ];
    let tcp = flow("10.2.0.1", "10.1.0.1");
    for dir in [Dir::In, Dir::Fwd] {
        for (templates, sas, want) in &cases {
            let config = policy(dir, "0.0.0.0/0", "0.0.0.0/0", 0);
            ipsec.remove_policy(&config.key());
            if let Some(templates) = templates {
                ipsec.add_policy(PolicyConfig { templates: templates.clone(), ..config }).unwrap();
            }
            let path: SecPath = sas.iter().copied().collect();
            let mut counters = Counters::ZERO;
            let got = ipsec.check(NOW, dir, &tcp.into(), &path, || None, &mut counters);
            assert_eq!(got, want.map_err(|(_, reason)| reason), "{templates:?} of {sas:?}");
            let counted = want.map_or_else(|(mib, _)| Counters::ZERO.with(mib, 1), |()| Counters::ZERO);
            assert_eq!(counters, counted, "{templates:?} of {sas:?}");
        }
    }
    let mut counters = Counters::ZERO;
    let clear = SecPath::new();
    ipsec.update_policy(block(policy(Dir::In, "0.0.0.0/0", "0.0.0.0/0", 0))).unwrap();
    assert_eq!(ipsec.check(NOW, Dir::In, &tcp.into(), &clear, || None, &mut counters), Err(DropReason::PolicyBlock));
    ipsec.set_default_policy(Dir::In, Action::Block);
    let v6 = flow("fd00::1", "fd00::2");
    assert_eq!(ipsec.check(NOW, Dir::In, &v6.into(), &clear, || None, &mut counters), Err(DropReason::PolicyMismatch));
    assert_eq!(counters, Counters::ZERO.with(Mib::XfrmInPolBlock, 1).with(Mib::XfrmInNoPols, 1));
}

//= test RFC 4303 §2.1 spi-zero
#[test]
fn impossible_sa_or_policy_is_refused_and_changes_nothing() {
    let mut ipsec = Ipsec::new();
    let mut refuse_sa = |config: SaConfig, want: ConfigError| {
        assert_eq!(ipsec.add_sa(&config, mask()), Err(want), "{config:?}");
        assert!(ipsec.is_idle());
    };
    refuse_sa(SaConfig { spi: Spi(0), ..sa() }, ConfigError::SpiZero);
    refuse_sa(SaConfig { src: HERE[1], ..sa() }, ConfigError::Family(HERE[1], THERE[0]));
    refuse_sa(SaConfig { dst: addr("0.0.0.0"), ..sa() }, ConfigError::NoDestination);
    refuse_sa(SaConfig { replay_window: 4097, ..sa() }, ConfigError::ReplayWindow(4097));
    let flags = xfrm::SaFlags { esn: true, ..xfrm::SaFlags::default() };
    refuse_sa(SaConfig { flags, replay_window: 0, ..sa() }, ConfigError::EsnWithoutWindow);
    let mixed = selector("10.0.0.0/8", "fd00::/8");
    refuse_sa(SaConfig { selector: Some(mixed), ..sa() }, ConfigError::SelectorFamily);

    let base = policy(Dir::Out, "0.0.0.0/0", "0.0.0.0/0", 0);
    let mut refuse = |templates: Vec<Template>, want: ConfigError| {
        let config = PolicyConfig { templates, ..base.clone() };
        assert_eq!(ipsec.add_policy(config.clone()), Err(want), "{config:?}");
        assert_eq!(ipsec.update_policy(config), Err(want));
        assert!(ipsec.is_idle());
    };
    refuse(vec![tunnel(1); 7], ConfigError::Templates(7));
    refuse(vec![Template { level: Level::Use, ..tunnel(1) }], ConfigError::OptionalTunnel);
    refuse(vec![Template { dst: None, ..tunnel(1) }], ConfigError::NoDestination);
    refuse(vec![Template { src: Some(HERE[1]), ..tunnel(1) }], ConfigError::Family(HERE[1], THERE[0]));

    ipsec.add_sa(&sa(), mask()).unwrap();
    assert_eq!(ipsec.add_sa(&sa(), mask()), Err(ConfigError::Exists));
    assert_eq!(ipsec.sad().iter().count(), 1);
}

#[test]
fn policy_by_arrival_puts_a_replaced_one_last() {
    let mut node = Ipsec::new();
    for (third, priority) in [(1, 9), (2, 1)] {
        node.add_policy(policy(Dir::Out, "0.0.0.0/0", &format!("10.0.{third}.0/24"), priority)).unwrap();
    }
    let priorities = |node: &Ipsec| -> Vec<(u64, u32)> {
        node.spd().by_arrival(u64::MAX).map(|(place, policy)| (place, policy.config.priority)).collect()
    };
    assert_eq!(priorities(&node), [(1, 9), (2, 1)]);
    node.update_policy(policy(Dir::Out, "0.0.0.0/0", "10.0.1.0/24", 9)).unwrap();
    assert_eq!(priorities(&node), [(2, 1), (3, 9)]);
    node.remove_policy(&policy(Dir::Out, "0.0.0.0/0", "10.0.2.0/24", 1).key()).unwrap();
    assert_eq!(priorities(&node), [(3, 9)]);
}

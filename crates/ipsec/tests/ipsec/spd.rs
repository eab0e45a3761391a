//! The index of policies against a linear list, and cached answers against uncached ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::{HERE, THERE, mask, sa};
use base::{Counters, Instant, PortId, Prefix};
use ipsec::Ipsec;
use packet::SecPath;
use proptest::prelude::*;
use proptest::sample::select;
use wire::{FlowKey, Protocol, Spi};
use xfrm::{Action, Dir, Flowi, Level, Mark, Mode, PolicyConfig, PortMask, SaConfig, SaDir, Selector, Template};

/// Few addresses, so that many policies match.
fn addr(v6: bool) -> impl Strategy<Value = IpAddr> {
    (0..4_u32, 0..4_u32).prop_map(move |(high, low)| {
        if v6 {
            Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(high) << 64 | u128::from(low)).into()
        } else {
            Ipv4Addr::from_bits(10 << 24 | high << 16 | low).into()
        }
    })
}

fn prefix(v6: bool) -> impl Strategy<Value = Prefix> {
    let lens = if v6 { vec![0, 8, 64, 66, 127, 128] } else { vec![0, 1, 8, 16, 31, 32] };
    (addr(v6), select(lens)).prop_map(|(addr, len)| Prefix::containing(addr, len).unwrap())
}

fn port() -> impl Strategy<Value = PortMask> {
    prop_oneof![
        4 => Just(PortMask::ANY),
        2 => (0..3_u16).prop_map(PortMask::exactly),
        1 => (0..3_u16, select(vec![1, 2, 0xfffe])).prop_map(|(port, mask)| PortMask { port, mask }),
    ]
}

fn mark() -> impl Strategy<Value = Mark> {
    prop_oneof![
        4 => Just(Mark::ANY),
        1 => (0..4_u32, select(vec![1, 3, u32::MAX])).prop_map(|(value, mask)| Mark { value, mask }),
    ]
}

fn policy() -> impl Strategy<Value = PolicyConfig> {
    let selector = any::<bool>().prop_flat_map(|v6| {
        let protocol = prop_oneof![Just(None), select(vec![6, 17]).prop_map(|it| Some(Protocol(it)))];
        (prefix(v6), prefix(v6), protocol, port(), port(), select(vec![0, 0, 0, 1, 2]))
    });
    let rest = (0..4_u32, any::<bool>(), mark(), select(vec![0, 0, 5]), select(vec![Dir::Out, Dir::Out, Dir::In]));
    (selector, rest).prop_map(|((src, dst, protocol, sport, dport, dev), (priority, block, mark, if_id, dir))| {
        let selector =
            Selector { protocol, sport, dport, dev: (dev > 0).then_some(PortId(dev)), ..Selector::new(src, dst) };
        let action = if block { Action::Block } else { Action::Allow };
        PolicyConfig { priority, action, mark, if_id, ..PolicyConfig::new(dir, selector) }
    })
}

fn flow() -> impl Strategy<Value = Flowi> {
    let ends = any::<bool>().prop_flat_map(|v6| (addr(v6), addr(v6)));
    (ends, select(vec![6, 17, 1]), 0..3_u16, 0..3_u16, 0..4_u32, select(vec![0, 5]), 0..3_u32, 0..3_u32).prop_map(
        |((src, dst), protocol, sport, dport, mark, if_id, link, domain)| {
            let key = FlowKey { src, dst, protocol: Protocol(protocol), sport, dport };
            let device = |number| (number > 0).then_some(PortId(number));
            Flowi { key, mark, if_id, link: device(link), domain_device: device(domain) }
        },
    )
}

/// Policies in a list, in order of precedence.
#[derive(Default)]
struct List(Vec<PolicyConfig>);

fn is_for(policy: &PolicyConfig, dir: Dir, flow: &Flowi) -> bool {
    policy.dir == dir && policy.if_id == flow.if_id && policy.mark.matches(flow.mark) && policy.selector.matches(flow)
}

/// Tells whether a fragment of `flow` may belong to packets of `policy`.
fn may_be_for(policy: &PolicyConfig, dir: Dir, flow: &Flowi) -> bool {
    let protocol = policy.selector.protocol.filter(|_| flow.key.dst.is_ipv4());
    let selector = Selector { sport: PortMask::ANY, dport: PortMask::ANY, protocol, ..policy.selector };
    is_for(&PolicyConfig { selector, ..policy.clone() }, dir, flow)
}

impl List {
    fn remove(&mut self, like: &PolicyConfig) -> Option<usize> {
        let at = self.0.iter().position(|it| it.key() == like.key())?;
        self.0.remove(at);
        Some(at)
    }

    fn insert(&mut self, policy: PolicyConfig) {
        let at = self.0.partition_point(|it| it.priority <= policy.priority);
        self.0.insert(at, policy);
    }

    fn lookup(&self, dir: Dir, flow: &Flowi) -> Option<&PolicyConfig> {
        self.0.iter().find(|it| is_for(it, dir, flow))
    }

    fn may_stop_fragment(&self, dir: Dir, flow: &Flowi) -> bool {
        let before = self.0.iter().take_while(|it| !is_for(it, dir, flow));
        before.into_iter().any(|it| it.action == Action::Block && may_be_for(it, dir, flow))
    }
}

/// Canonical ports: without bits outside of the mask.
fn canonical(mut policy: PolicyConfig) -> PolicyConfig {
    for port in [&mut policy.selector.sport, &mut policy.selector.dport] {
        port.port &= port.mask;
    }
    policy
}

proptest! {
    #[test]
    fn first_policy_in_order_is_found_after_any_changes(
        steps in prop::collection::vec((0..4_u8, policy()), 1..60),
        flows in prop::collection::vec(flow(), 20),
    ) {
        let (mut node, mut list) = (Ipsec::new(), List::default());
        for (what, policy) in steps {
            let policy = canonical(policy);
            match what {
                0 | 1 => {
                    let is_new = list.0.iter().all(|it| it.key() != policy.key());
                    prop_assert_eq!(node.add_policy(policy.clone()).is_ok(), is_new);
                    if is_new {
                        list.insert(policy);
                    }
                }
                2 => {
                    node.update_policy(policy.clone()).unwrap();
                    let old = list.0.iter().find(|it| it.key() == policy.key()).map(|it| it.priority);
                    let at = list.remove(&policy);
                    match at {
                        Some(at) if old == Some(policy.priority) => list.0.insert(at, policy),
                        _ => list.insert(policy),
                    }
                }
                _ => prop_assert_eq!(node.remove_policy(&policy.key()).is_some(), list.remove(&policy).is_some()),
            }
        }
        let spd = node.spd();
        prop_assert_eq!(spd.len(), list.0.len());
        let mut shown: Vec<&PolicyConfig> = spd.iter().map(|it| &it.config).collect();
        shown.sort_by_key(|it| it.priority);
        for dir in [Dir::Out, Dir::In] {
            let of = |it: &&PolicyConfig| it.dir == dir;
            prop_assert!(shown.iter().copied().filter(of).eq(list.0.iter().filter(of)));
            for flow in &flows {
                let got = spd.lookup(dir, flow).and_then(|id| spd.get(id)).map(|it| &it.config);
                prop_assert_eq!(got, list.lookup(dir, flow), "{:?}", flow);
                prop_assert_eq!(spd.may_stop_fragment(dir, flow), list.may_stop_fragment(dir, flow), "{:?}", flow);
            }
        }
        for policy in list.0 {
            prop_assert!(node.remove_policy(&policy.key()).is_some());
        }
        prop_assert!(node.is_idle());
    }

    #[test]
    fn no_answer_is_stale(
        steps in prop::collection::vec((0..9_u8, 0..4_u32, policy(), any::<bool>()), 1..80),
        flows in prop::collection::vec(flow(), 6),
    ) {
        let mut node = Ipsec::new();
        node.set_listener(true);
        let mut now = Instant::ZERO;
        let template = Template {
            src: Some(HERE[0]), dst: Some(THERE[0]), spi: None, mode: Mode::Tunnel, reqid: 1, level: Level::Required,
        };
        for (what, n, policy, flag) in steps {
            let config = SaConfig { spi: Spi(n + 1), reqid: n / 2 + 1, algorithm: xfrm::Algorithm::null(), ..sa() };
            let policy = if policy.action == Action::Allow && flag {
                PolicyConfig { templates: vec![template], ..policy }
            } else {
                policy
            };
            match what {
                0 => drop(node.add_sa(&config, mask())),
                1 => drop(node.remove_sa(THERE[0], Spi(n + 1), 0)),
                2 => drop(node.replace_sa(&SaConfig { dir: flag.then_some(SaDir::Out), replay_window: 0, ..config })),
                3 => drop(node.add_policy(policy)),
                4 => drop(node.update_policy(policy)),
                5 => drop(node.remove_policy(&policy.key())),
                6 => node.set_default_policy(Dir::Out, if flag { Action::Block } else { Action::Allow }),
                7 => {
                    let hard = xfrm::Limits { packets: u64::from(n), ..xfrm::Limits::NONE };
                    let lifetime = xfrm::Lifetime { hard, ..xfrm::Lifetime::default() };
                    _ = node.update_sa(&SaConfig { lifetime, ..config }, mask());
                }
                _ => {
                    now = now + std::time::Duration::from_secs(9);
                    node.handle_timeout(now, &mut Counters::default());
                }
            }
            for flow in &flows {
                let (mut counted, mut again) = (Counters::ZERO, Counters::ZERO);
                let remembered = node.lookup(now, flow, &mut counted);
                // Each change counted here invalidates all cached lookups.
                node.set_listener(true);
                prop_assert_eq!(&node.lookup(now, flow, &mut again), &remembered);
                prop_assert_eq!(counted, again);
                let clear = SecPath::new();
                let check = |node: &mut Ipsec| node.check(now, Dir::In, flow, &clear, || None, &mut Counters::default());
                let remembered = check(&mut node);
                node.set_listener(true);
                prop_assert_eq!(check(&mut node), remembered);
            }
        }
    }
}

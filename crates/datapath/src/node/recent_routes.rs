//! Caches of routing decisions: about recent destinations, and about recent flows where rules read more than the destination.

use std::cell::Cell;
use std::net::IpAddr;

use base::{Domain, RouteFlow};
use fib::{Decision, Fib};

/// Entries of the cache; a power of two.
const SLOTS: usize = 64;

/// Cached decision about a destination in a domain, valid for one generation of the routes.
#[derive(Debug)]
struct Slot {
    generation: Cell<u64>,
    domain: Cell<Domain>,
    /// Entry of an empty slot.
    dst: Cell<Option<IpAddr>>,
    decision: Cell<Decision>,
}

impl Default for Slot {
    fn default() -> Self {
        Self {
            generation: Cell::new(0),
            domain: Cell::new(Domain::DEFAULT),
            dst: Cell::new(None),
            decision: Cell::new(Decision::Multicast),
        }
    }
}

/// Direct-mapped cache of decisions about destinations.
#[derive(Debug)]
pub(crate) struct RecentRoutes {
    slots: [Slot; SLOTS],
}

impl Default for RecentRoutes {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| Slot::default()) }
    }
}

impl RecentRoutes {
    /// As [`Fib::decide_paths`] without rules that read flows, from the cache.
    #[inline]
    pub(crate) fn decide(&self, fib: &Fib, domain: Domain, dst: IpAddr) -> Decision {
        let slot = &self.slots[slot_of(domain, dst)];
        // Field by field: a temporary key would stall on store-to-load forwarding.
        let is_known = slot.generation.get() == fib.generation()
            && slot.domain.get() == domain
            && slot.dst.get().is_some_and(|known| known == dst);
        if is_known { slot.decision.get() } else { slot.learn(fib, domain, dst) }
    }
}

impl Slot {
    #[inline(never)]
    fn learn(&self, fib: &Fib, domain: Domain, dst: IpAddr) -> Decision {
        let decision = fib.decide_paths(&RouteFlow::to(domain, dst), None);
        self.generation.set(fib.generation());
        self.domain.set(domain);
        self.dst.set(Some(dst));
        self.decision.set(decision);
        decision
    }
}

/// Direct-mapped cache of decisions about flows.
#[derive(Debug)]
pub(crate) struct RecentFlows {
    slots: [Cell<Option<(u64, RouteFlow, Decision)>>; SLOTS],
}

impl Default for RecentFlows {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| Cell::new(None)) }
    }
}

impl RecentFlows {
    /// As [`Fib::decide_paths`], from the cache.
    pub(crate) fn decide(&self, fib: &Fib, flow: &RouteFlow) -> Decision {
        let ports = usize::from(flow.sport ^ flow.dport);
        let slot = &self.slots[(slot_of(flow.domain, flow.dst) ^ ports) % SLOTS];
        match slot.get() {
            Some((generation, known, decision)) if generation == fib.generation() && known == *flow => decision,
            _ => {
                let decision = fib.decide_paths(flow, None);
                slot.set(Some((fib.generation(), *flow, decision)));
                decision
            }
        }
    }
}

/// Slot of a destination; neighbouring addresses have different slots.
#[inline]
fn slot_of(domain: Domain, dst: IpAddr) -> usize {
    let bits = match dst {
        IpAddr::V4(addr) => addr.to_bits(),
        IpAddr::V6(addr) => {
            let bits = addr.to_bits();
            (bits >> 96) as u32 ^ (bits >> 64) as u32 ^ (bits >> 32) as u32 ^ bits as u32
        }
    };
    // Subnet and host bits both count.
    (bits ^ bits >> 8 ^ bits >> 16 ^ domain.number()) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use base::{DropReason, PortId, TableId};
    use fib::{Route, RouteKind};

    use super::*;
    use crate::Datapath;

    const DEV: PortId = PortId(1);
    const RED: Domain = Domain::vrf(PortId(2));

    fn addr(n: u32) -> IpAddr {
        IpAddr::from(std::net::Ipv4Addr::from_bits(0x0a00_0000 + n))
    }

    #[test]
    fn cached_decision_equals_that_of_the_routes() {
        let mut path = Datapath::new();
        // More destinations than slots, in turn, while routes come and go.
        for round in 0..6 {
            for n in 0..3 * SLOTS as u32 {
                assert_eq!(
                    path.decide(Domain::DEFAULT, addr(n)),
                    path.fib.decide(Domain::DEFAULT, addr(n), None),
                    "{n}"
                );
                assert_eq!(path.decide(RED, addr(n)), path.fib.decide(RED, addr(n), None), "{n} elsewhere");
            }
            let route = Route {
                prefix: base::Prefix::host(addr(7 + 20 * (round / 2))),
                kind: RouteKind::Local { dev: DEV },
                metric: 0,
            };
            if round % 2 == 0 {
                path.fib.add(TableId::MAIN, route).unwrap();
                assert!(path.is_local(Domain::DEFAULT, route.prefix.addr()), "a change is seen at once");
            } else {
                assert!(path.fib.remove(TableId::MAIN, &route));
                assert_eq!(path.decide(Domain::DEFAULT, route.prefix.addr()), Decision::Drop(DropReason::NoRoute));
            }
        }
        // All routes at once.
        let route = Route { prefix: base::Prefix::host(addr(9)), kind: RouteKind::Local { dev: DEV }, metric: 0 };
        let mut others = Fib::default();
        others.add(TableId::MAIN, route).unwrap();
        path.fib.replace(others);
        assert!(path.is_local(Domain::DEFAULT, addr(9)) && path.is_local(RED, addr(9)));
    }

    #[test]
    fn cached_decision_of_a_flow_equals_that_of_the_rules() {
        let mut path = Datapath::new();
        let of = |dev| Route { prefix: base::Prefix::ANY_V4, kind: RouteKind::Unicast { via: None, dev }, metric: 0 };
        path.fib.add(TableId::MAIN, of(DEV)).unwrap();
        path.fib.add(TableId(100), of(PortId(2))).unwrap();
        let rule = |port| {
            let selector = base::RuleSelector { dport: Some(port..=port), ..base::RuleSelector::default() };
            fib::Rule { select: Some(Box::new(selector)), ..fib::Rule::ask(TableId(100)) }
        };
        for port in [80, 81] {
            path.fib.set_rules(true, [vec![rule(port)], fib::Rule::first(true)].concat());
            for n in (0..3 * SLOTS as u32).chain(0..SLOTS as u32) {
                for dport in [80, 81] {
                    let flow = RouteFlow { dport, ..RouteFlow::to(Domain::DEFAULT, addr(n)) };
                    let dev = PortId(if dport == port { 2 } else { 1 });
                    assert_eq!(path.decide_flow(&flow), Decision::Forward { dev, next_hop: addr(n) });
                }
            }
        }
    }

    #[test]
    fn neighbouring_hosts_and_subnets_use_separate_slots() {
        let distinct = |all: &mut dyn Iterator<Item = IpAddr>| {
            let mut slots: Vec<usize> = all.map(|dst| slot_of(Domain::DEFAULT, dst)).collect();
            slots.sort_unstable();
            slots.dedup();
            slots.len()
        };
        assert_eq!(distinct(&mut (0..SLOTS as u32).map(addr)), SLOTS);
        assert_eq!(distinct(&mut (0..SLOTS as u32).map(|n| addr(n << 8 | 1))), SLOTS);
        let v6 = |n: u128| IpAddr::from(std::net::Ipv6Addr::from_bits(0xfd00 << 112 | n));
        assert_eq!(distinct(&mut (0..SLOTS as u128).map(|n| v6(n << 64 | 1))), SLOTS);
    }
}

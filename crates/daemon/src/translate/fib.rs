//! Routes, rules and neighbours of netlink's clients in the terms of crate `fib`, and the reverse.

use std::net::IpAddr;

use base::{PortId, RuleSelector};
use fib::{Fib, IlaRoute, Known, Neighbour, Neighbours, NextHop, NudState, Route, RouteKind, RuleAction};
use ila::RouteEncap;
use netlink::rtnl::nums::*;
use netlink::rtnl::{self, Address, Delta, LOOPBACK, NeighbourNow, RuleThen};
use wire::eth::MacAddr;

/// All neighbours in netlink's form.
pub(crate) fn neighbours(all: &Neighbours) -> Vec<NeighbourNow> {
    all.iter().map(|neighbour| shown(&neighbour)).collect()
}

/// A neighbour in netlink's form.
pub(crate) fn shown(neighbour: &Neighbour) -> NeighbourNow {
    let state = match neighbour.state {
        NudState::Incomplete => NUD_INCOMPLETE,
        NudState::Reachable => NUD_REACHABLE,
        NudState::Stale => NUD_STALE,
        NudState::Delay => NUD_DELAY,
        NudState::Probe => NUD_PROBE,
        NudState::Permanent => NUD_PERMANENT,
        NudState::Failed => NUD_FAILED,
    };
    let &Neighbour { link, addr, protocol, .. } = neighbour;
    NeighbourNow { link, addr, mac: neighbour.mac.map(|mac| mac.0), state, protocol }
}

/// A neighbour's state as set by a client. `None`: clients cannot set this state.
pub(crate) fn known(requested: &NeighbourNow) -> Option<(PortId, IpAddr, Known)> {
    let known = match (requested.state, requested.mac.map(MacAddr)) {
        (0, _) => Known::Nothing,
        (NUD_PERMANENT, Some(mac)) => Known::Permanent(mac),
        (NUD_REACHABLE, Some(mac)) => Known::Reachable(mac),
        (NUD_STALE, Some(mac)) => Known::Stale(mac),
        _ => return None,
    };
    Some((requested.link, requested.addr, known))
}

/// Applies a netlink client's change of the model to `fib`, which leaves out routes and addresses that decide on no
/// packet.
pub(crate) fn apply(fib: &mut Fib, delta: &Delta) {
    match delta {
        Delta::AddRoute { table, route, ahead } => {
            if let Some(route) = added(fib, route) {
                fib.insert(*table, route, *ahead);
            }
        }
        Delta::RemoveRoute { table, route, .. } => {
            if let Some(route) = existing(fib, route) {
                fib.remove(*table, &route);
            }
        }
        Delta::ReplaceRoute(replacement) => match (existing(fib, &replacement.old), added(fib, &replacement.new)) {
            (Some(old), Some(new)) => drop(fib.exchange(replacement.table, &old, new)),
            (Some(old), None) => drop(fib.remove(replacement.table, &old)),
            (None, Some(new)) => fib.insert(replacement.table, new, false),
            (None, None) => {}
        },
        Delta::AddAddress(link, address) | Delta::RemoveAddress(link, address) if !is_source(*link, address) => {}
        Delta::AddAddress(link, address) => fib.set_address(*link, address.addr, true),
        Delta::RemoveAddress(link, address) => fib.set_address(*link, address.addr, false),
        Delta::Rules { v4, rules } => fib.set_rules(*v4, to_rules(*v4, rules)),
        Delta::Vrf(device, vrf) => fib.set_vrf(*device, vrf.as_ref().map(to_vrf)),
        Delta::Domain(link, domain) => fib.set_domain(*link, *domain),
        Delta::ChangeAddress(..) => {}
    }
}

/// Tells whether an address may be a source of packets to other nodes: an IPv4 address of scope host or narrower is none
/// (Linux `inet_select_addr`), and neither is `::1` of `lo`.
fn is_source(link: PortId, address: &Address) -> bool {
    address.scope < RT_SCOPE_HOST || address.addr.addr().is_ipv6() && link != PortId(LOOPBACK)
}

const fn to_vrf(vrf: &rtnl::Vrf) -> fib::Vrf {
    fib::Vrf { table: vrf.table, up: vrf.up }
}

fn to_rules(v4: bool, rules: &[rtnl::Rule]) -> Vec<fib::Rule> {
    let of = |rule: &rtnl::Rule| {
        let then = match rule.then() {
            RuleThen::Ask(table) => RuleAction::Ask(table),
            RuleThen::AskVrf => RuleAction::AskVrf,
            RuleThen::GoTo(_) => rule.target_in(rules).map_or(RuleAction::Pass, RuleAction::GoTo),
            RuleThen::Nop => RuleAction::Pass,
            RuleThen::Blackhole | RuleThen::Unreachable | RuleThen::Prohibit => {
                rule.verdict(v4).as_ref().and_then(to_fib).map_or(RuleAction::Pass, RuleAction::Take)
            }
        };
        let select = Some(rule.selector()).filter(|select| *select != RuleSelector::default()).map(Box::new);
        fib::Rule { select, then, suppress: rule.suppressed_len() }
    };
    rules.iter().map(of).collect()
}

/// Type of a route, with its ILA encapsulation if the route has one.
const fn translated(encap: Option<RouteEncap>, to: IlaRoute) -> RouteKind {
    match encap {
        Some(encap) => RouteKind::Ila { encap, to },
        None => to.plain(),
    }
}

/// Paths that packets may take, if the route has a list of them.
fn hops(route: &rtnl::Route) -> Option<Vec<NextHop>> {
    let alive = route.paths.as_ref().filter(|_| route.kind == RTN_UNICAST)?.iter().filter(|path| !path.dead);
    let hop = |path: &rtnl::NextHop| NextHop { dev: PortId(path.dev), via: path.via, weight: path.weight };
    Some(alive.map(hop).collect())
}

/// Route to add to `fib`, with the set of its paths; `None` for a route that decides on no packet.
pub(crate) fn added(fib: &mut Fib, route: &rtnl::Route) -> Option<Route> {
    let single = to_fib(route)?;
    match hops(route) {
        Some(hops) if hops.is_empty() => None,
        Some(hops) if hops.len() > 1 => Some(Route { kind: RouteKind::Paths(fib.paths(&hops)), ..single }),
        _ => Some(single),
    }
}

/// Route of `fib` that [`added`] has made.
fn existing(fib: &Fib, route: &rtnl::Route) -> Option<Route> {
    let single = to_fib(route)?;
    match hops(route) {
        Some(hops) if hops.is_empty() => None,
        Some(hops) if hops.len() > 1 => {
            fib.paths_of(&hops).map(|paths| Route { kind: RouteKind::Paths(paths), ..single })
        }
        _ => Some(single),
    }
}

/// The route that decides on packets, by its first path that is not dead; `None` for a route that decides on none.
pub(crate) fn to_fib(route: &rtnl::Route) -> Option<Route> {
    let dev = PortId(route.dev);
    let kind = match route.kind {
        RTN_UNICAST => translated(route.encap, IlaRoute::Unicast { via: route.via, dev }),
        RTN_LOCAL => translated(route.encap, IlaRoute::Local { dev }),
        RTN_BROADCAST => RouteKind::Broadcast { dev },
        RTN_ANYCAST => RouteKind::Anycast { dev },
        RTN_BLACKHOLE => RouteKind::Blackhole,
        RTN_UNREACHABLE => RouteKind::Unreachable,
        RTN_PROHIBIT => RouteKind::Prohibit,
        RTN_THROW => RouteKind::Throw,
        _ => return None,
    };
    Some(Route { prefix: route.prefix, kind, metric: route.metric })
}

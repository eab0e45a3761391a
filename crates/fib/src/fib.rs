//! Forwarding information base: all tables, and the order of their look-up.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base::{Domain, DropReason, IfAddr, Instant, PathHash, PortId, RouteFlow, TableId};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use ila::{HookType, RouteEncap};

use crate::path_mtu::{PathMtu, PathMtus};
use crate::paths::{NextHop, PathSets, PathsId};
use crate::route::{Decision, IlaHop, IlaRoute, Route, RouteExists, RouteKind};
use crate::rule::{Rule, RuleAction};
use crate::table::Table;
use crate::vrf::{Vrf, Vrfs};

/// Metric of an IPv6 route that was added without one (`IP6_RT_PRIO_USER`).
const METRIC_V6_DEFAULT: u32 = 1024;

/// Routing tables by number, and the addresses of the links.
#[derive(Clone)]
pub struct Fib {
    /// The two tables that every lookup reads.
    local: Table,
    main: Table,
    others: HashMap<TableId, Table, RandomState>,
    addresses: Vec<(PortId, IfAddr)>,
    generation: u64,
    path_mtus: PathMtus,
    /// Whether a route with an encapsulation was ever added.
    has_encaps: bool,
    /// Rules in the order of look-up, by family.
    rules: [Vec<Rule>; 2],
    /// Whether rules of a family read more of a flow than its domain and destination.
    rules_read_flows: [bool; 2],
    vrfs: Vrfs,
    paths: PathSets,
    path_hash: PathHash,
}

/// Limit of consecutive VRF devices on the way to a route (Linux's `XMIT_RECURSION_LIMIT`).
const MAX_LEAKS: usize = 8;

impl Default for Fib {
    fn default() -> Self {
        Self {
            local: Table::default(),
            main: Table::default(),
            others: HashMap::default(),
            addresses: Vec::new(),
            generation: 0,
            path_mtus: PathMtus::default(),
            has_encaps: false,
            rules: [Rule::first(true), Rule::first(false)],
            rules_read_flows: [false; 2],
            vrfs: Vrfs::default(),
            paths: PathSets::default(),
            path_hash: PathHash::default(),
        }
    }
}

impl Fib {
    /// Generation, which every change advances. The result of a look-up is valid within one generation.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Replaces all routes, addresses and rules with those of `with`, and advances the generation. The hash of flows stays.
    pub fn replace(&mut self, with: Self) {
        let (generation, path_hash) = (self.generation, std::mem::take(&mut self.path_hash));
        *self = with;
        (self.generation, self.path_hash) = (generation, path_hash);
        self.changed();
    }

    /// Adds a route to a table, as `ip route add` does. An IPv6 route of metric 0 gets Linux's default, 1024.
    ///
    /// # Errors
    /// [`RouteExists`] if the table has a route with the same prefix and metric; nothing is changed.
    pub fn add(&mut self, table: TableId, mut route: Route) -> Result<(), RouteExists> {
        if route.metric == 0 && !route.prefix.is_ipv4() {
            route.metric = METRIC_V6_DEFAULT;
        }
        let Route { prefix, metric, .. } = route;
        let there = self.table(table).map(|routes| routes.exact(prefix)).unwrap_or_default();
        if there.iter().any(|other| other.metric == metric) {
            self.sweep(&route);
            return Err(RouteExists { prefix, metric, table });
        }
        self.has_encaps |= route.has_encap();
        self.hold(&route);
        self.table_mut(table).insert(route);
        self.changed();
        Ok(())
    }

    /// Adds a route before or after the routes with its prefix and metric. The caller decides whether several are
    /// allowed.
    pub fn insert(&mut self, table: TableId, route: Route, ahead: bool) {
        self.has_encaps |= route.has_encap();
        self.hold(&route);
        let table = self.table_mut(table);
        if ahead {
            table.insert_ahead(route);
        } else {
            table.insert(route);
        }
        self.changed();
    }

    /// Replaces the route with the same prefix and metric. Returns whether there was one.
    pub fn exchange(&mut self, table: TableId, old: &Route, new: Route) -> bool {
        self.has_encaps |= new.has_encap();
        let there = self.table_mut(table).find(old).map(|route| *route = new).is_some();
        if there {
            self.hold(&new);
            self.release(old);
        } else {
            self.sweep(&new);
        }
        self.changed();
        there
    }

    /// Removes one route equal to `route`. Returns whether there was one.
    pub fn remove(&mut self, table: TableId, route: &Route) -> bool {
        let there = self.table_mut(table).remove(route);
        if there {
            self.release(route);
        }
        self.changed();
        there
    }

    /// Number of the set of these next hops, for a route that is to be added. Equal sets are one.
    pub fn paths(&mut self, hops: &[NextHop]) -> PathsId {
        self.paths.intern(hops)
    }

    /// Number of the set of these next hops, if a route has it.
    pub fn paths_of(&self, hops: &[NextHop]) -> Option<PathsId> {
        self.paths.find(hops)
    }

    /// The next hops of a set.
    pub fn next_hops(&self, paths: PathsId) -> &[NextHop] {
        self.paths.hops(paths)
    }

    /// Sets the hash by which flows select their paths.
    pub fn set_path_hash(&mut self, hash: PathHash) {
        if self.path_hash != hash {
            self.path_hash = hash;
            self.changed();
        }
    }

    fn hold(&mut self, route: &Route) {
        if let RouteKind::Paths(paths) = route.kind {
            self.paths.hold(paths);
        }
    }

    fn release(&mut self, route: &Route) {
        if let RouteKind::Paths(paths) = route.kind {
            self.paths.release(paths);
        }
    }

    fn sweep(&mut self, route: &Route) {
        if let RouteKind::Paths(paths) = route.kind {
            self.paths.sweep(paths);
        }
    }

    /// Adds an address to `dev`, or removes one. Additions are counted, as an address may have several peers. The
    /// caller adds and removes the routes of the address.
    pub fn set_address(&mut self, dev: PortId, addr: IfAddr, there: bool) {
        if there {
            self.addresses.push((dev, addr));
        } else if let Some(at) = self.addresses.iter().position(|own| *own == (dev, addr)) {
            self.addresses.remove(at);
        }
        self.changed();
    }

    /// Replaces the rules of a family.
    pub fn set_rules(&mut self, v4: bool, rules: Vec<Rule>) {
        self.rules_read_flows[usize::from(!v4)] = rules.iter().any(Rule::reads_flow);
        self.rules[usize::from(!v4)] = rules;
        self.changed();
    }

    /// Tells whether it depends on more of a flow than its domain and destination that an address is the node's own: the local
    /// table is not looked up first.
    pub fn local_reads_flow(&self, v4: bool) -> bool {
        let first = self.rules[usize::from(!v4)].first();
        self.rules_read_flows(v4) && first.is_none_or(|first| *first != Rule::ask(TableId::LOCAL))
    }

    /// Tells whether a decision depends on more of a flow than its domain and destination.
    #[inline]
    pub fn rules_read_flows(&self, v4: bool) -> bool {
        self.rules_read_flows[usize::from(!v4)]
    }

    /// Adds, replaces or removes the VRF with the device `device`. The caller adds and removes the VRF's routes.
    pub fn set_vrf(&mut self, device: PortId, vrf: Option<Vrf>) {
        self.vrfs.set(device, vrf);
        self.changed();
    }

    /// Sets the domain of a link: adds it to a VRF, or removes it. The caller moves the link's routes.
    pub fn set_domain(&mut self, link: PortId, domain: Domain) {
        self.vrfs.set_domain(link, domain);
        self.changed();
    }

    /// Tells whether a link is in a VRF.
    #[inline]
    pub fn has_vrfs(&self) -> bool {
        self.vrfs.any()
    }

    /// Domain of a link (Linux `l3mdev_master_ifindex`).
    #[inline(always)]
    pub fn domain(&self, link: PortId) -> Domain {
        self.vrfs.domain(link)
    }

    /// Table of a domain; `None` for the default domain, whose rules name its tables.
    #[inline]
    pub fn vrf_table(&self, domain: Domain) -> Option<TableId> {
        self.vrfs.of(domain).map(|vrf| vrf.table)
    }

    /// Tells whether this node may send its own packets in a domain: a VRF's device must be up.
    pub fn may_send(&self, domain: Domain) -> bool {
        domain == Domain::DEFAULT || self.vrfs.of(domain).is_some_and(|vrf| vrf.up)
    }

    /// The route to `dst` in a domain, of a flow about which no more is known ([`lookup_flow`](Self::lookup_flow)).
    pub fn lookup(&self, domain: Domain, dst: IpAddr, oif: Option<PortId>) -> Option<&Route> {
        self.lookup_flow(&RouteFlow::to(domain, dst), oif).map(|(_, route)| route)
    }

    /// The route of a flow, with its table; `None` instead of the table for the route of a rule. The route is that of the
    /// longest prefix, then the smallest metric, in the first table with a route in the order of the rules (Linux
    /// `fib_rules_lookup`). With `oif`, only routes on that link and routes without a link.
    pub fn lookup_flow(&self, flow: &RouteFlow, oif: Option<PortId>) -> Option<(Option<TableId>, &Route)> {
        let dst = flow.dst;
        let rules = &self.rules[usize::from(dst.is_ipv6())];
        let mut next = 0;
        while let Some(rule) = rules.get(next) {
            next += 1;
            if !rule.is_for(flow) {
                continue;
            }
            let found = match &rule.then {
                RuleAction::Ask(table) => self.lookup_in(*table, dst, oif).map(|route| (Some(*table), route)),
                RuleAction::AskVrf => self
                    .vrf_table(flow.domain)
                    .and_then(|table| self.lookup_in(table, dst, oif).map(|route| (Some(table), route))),
                // The error is *network unreachable* and not *host unreachable* (Linux `fib4_rule_action`), as without a
                // route.
                RuleAction::Take(Route { kind: RouteKind::Unreachable, .. }) => return None,
                RuleAction::Take(route) => Some((None, route)),
                RuleAction::GoTo(place) => {
                    next = next.max(*place);
                    continue;
                }
                RuleAction::Pass => continue,
            };
            if let Some((_, route)) = found
                && route.kind != RouteKind::Throw
                && !rule.suppresses(route)
            {
                return found;
            }
        }
        None
    }

    /// As [`lookup`](Self::lookup), in a single table.
    pub fn lookup_in(&self, table: TableId, dst: IpAddr, oif: Option<PortId>) -> Option<&Route> {
        self.table(table)?.lookup(&self.paths, dst, oif)
    }

    /// Decides on packets to `dst` in a domain, of a flow about which no more is known ([`decide_flow`](Self::decide_flow)).
    pub fn decide(&self, domain: Domain, dst: IpAddr, oif: Option<PortId>) -> Decision {
        self.decide_flow(&RouteFlow::to(domain, dst), oif)
    }

    /// Decides on packets of a flow. After a route through a VRF's device the look-up is repeated in that VRF (Linux
    /// `vrf_xmit`); after a route with an encapsulation and without a gateway it is repeated for the translated destination
    /// (Linux `ila_output`). Both repeat it as for a packet of this node.
    pub fn decide_flow(&self, flow: &RouteFlow, oif: Option<PortId>) -> Decision {
        match self.decide_paths(flow, oif) {
            Decision::Paths(paths) => self.by_path(paths, flow, oif),
            other => other,
        }
    }

    /// Decides on a packet of a flow by one of several paths, as [`decide_paths`](Self::decide_paths) has found them; with `oif`, by
    /// one on that link.
    #[inline]
    pub fn by_path(&self, paths: PathsId, flow: &RouteFlow, oif: Option<PortId>) -> Decision {
        match self.paths.choose(paths, &self.path_hash, flow, oif) {
            Some(NextHop { dev, via, .. }) if !self.vrfs.any() || self.vrfs.get(dev).is_none() => {
                Decision::Forward { dev, next_hop: via.unwrap_or(flow.dst) }
            }
            Some(hop) => self.by_vrf(hop, flow),
            None => Decision::Drop(DropReason::NoRoute),
        }
    }

    /// Decides on a packet of a flow by a path through a VRF's device.
    #[cold]
    fn by_vrf(&self, hop: NextHop, flow: &RouteFlow) -> Decision {
        let (mut hop, mut flow) = (hop, *flow);
        for _ in 0..MAX_LEAKS {
            let NextHop { dev, via, .. } = hop;
            if self.vrfs.get(dev).is_none() || Domain::vrf(dev) == flow.domain {
                return Decision::Forward { dev, next_hop: via.unwrap_or(flow.dst) };
            }
            (flow.domain, flow.input) = (Domain::vrf(dev), None);
            match self.decide_paths(&flow, None) {
                Decision::Paths(paths) => match self.paths.choose(paths, &self.path_hash, &flow, None) {
                    Some(next) => hop = next,
                    None => break,
                },
                other => return other,
            }
        }
        Decision::Drop(DropReason::NoRoute)
    }

    /// As [`decide_flow`](Self::decide_flow), without the choice among several paths: unless rules read more of a flow, the decision is
    /// the same for all packets to its destination.
    pub fn decide_paths(&self, flow: &RouteFlow, oif: Option<PortId>) -> Decision {
        let RouteFlow { domain, dst, .. } = *flow;
        if dst.is_multicast() {
            return Decision::Multicast;
        }
        if dst == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Decision::Broadcast { dev: None };
        }
        let mut route = self.lookup_flow(flow, oif).map(|(_, route)| route);
        let mut domain = domain;
        for _ in 0..MAX_LEAKS {
            if let Some(&Route { kind: RouteKind::Ila { encap, to }, .. }) = route {
                return self.decide_translated(flow, encap, to);
            }
            match Decision::of(route, dst) {
                Decision::Forward { dev, .. } if self.vrfs.get(dev).is_some() && Domain::vrf(dev) != domain => {
                    domain = Domain::vrf(dev);
                    let again = RouteFlow { domain, input: None, ..*flow };
                    route = self.lookup_flow(&again, None).map(|(_, route)| route);
                }
                other => return other,
            }
        }
        Decision::Drop(DropReason::NoRoute)
    }

    /// Decides on packets of a flow by a route with an encapsulation. The route to the translated destination must be on
    /// the same link, or, if that link is the device of a VRF, in that VRF's table. A second translation is refused.
    fn decide_translated(&self, flow: &RouteFlow, encap: RouteEncap, to: IlaRoute) -> Decision {
        let IpAddr::V6(addr) = flow.dst else { return Decision::Drop(DropReason::NoRoute) };
        let (via, dev) = match (to, encap.hook_type) {
            // Packets on this route are never sent.
            (IlaRoute::Local { dev }, HookType::Output) => return Decision::Local { dev },
            (IlaRoute::Local { .. }, HookType::Input) => return Decision::Ila { encap, to: IlaHop::Local },
            (IlaRoute::Unicast { via, dev }, _) => (via, dev),
        };
        if let Some(next_hop) = via
            && self.vrfs.get(dev).is_none()
        {
            return Decision::Ila { encap, to: IlaHop::Forward { dev, next_hop } };
        }
        let translated = IpAddr::V6(encap.address(addr));
        let (domain, oif) = match self.vrfs.get(dev) {
            Some(_) => (Domain::vrf(dev), None),
            None => (self.domain(dev), Some(dev)),
        };
        let again = RouteFlow { domain, dst: translated, input: None, ..*flow };
        let route = self.lookup_flow(&again, oif).map(|(_, route)| route);
        let decision = match Decision::of(route.filter(|route| !route.has_encap()), translated) {
            Decision::Paths(paths) => self.by_path(paths, &again, oif),
            other => other,
        };
        let to = match decision {
            // Packets to this node itself would have to be received again.
            Decision::Local { .. } if encap.hook_type == HookType::Input => IlaHop::Local,
            Decision::Forward { dev, next_hop } if self.vrfs.get(dev).is_none() => IlaHop::Forward { dev, next_hop },
            _ => return Decision::Drop(DropReason::IlaUnreachable),
        };
        Decision::Ila { encap, to }
    }

    /// Tells whether a link of this node has the address in a domain.
    pub fn is_local(&self, domain: Domain, addr: IpAddr) -> bool {
        matches!(self.decide(domain, addr, None), Decision::Local { .. })
    }

    /// Tells whether packets to the address are for this node in a domain, also by the anycast address of a subnet's
    /// routers.
    pub fn is_local_or_anycast(&self, domain: Domain, addr: IpAddr) -> bool {
        matches!(self.decide(domain, addr, None), Decision::Local { .. } | Decision::Anycast { .. })
    }

    /// Tells whether the address is the anycast address of the routers on a subnet of `dev`.
    pub fn has_anycast(&self, dev: PortId, addr: IpAddr) -> bool {
        self.addresses(dev).any(|own| own.subnet_router_anycast() == Some(addr))
    }

    /// Tells whether `dev` itself has the address.
    pub fn has_address(&self, dev: PortId, addr: IpAddr) -> bool {
        self.addresses(dev).any(|own| own.addr() == addr)
    }

    /// The addresses of `dev`, in the order of their addition.
    pub fn addresses(&self, dev: PortId) -> impl Iterator<Item = IfAddr> + '_ {
        self.addresses.iter().filter(move |&&(link, _)| link == dev).map(|&(_, addr)| addr)
    }

    /// Source address of this node's own packets to `dst` on `dev`: an address of that link if it has one of the
    /// family, else of the device of its VRF, else of another link in its domain; in the destination's subnet if
    /// possible. An IPv6 link-local address is used for link-local destinations only, and never from another link
    /// (Linux's `inet_select_addr`; RFC 6724 §5, rules 2, 5 and 8).
    pub fn source(&self, dev: PortId, dst: IpAddr) -> Option<IpAddr> {
        self.source_among(dev, dst, |_| true)
    }

    /// As [`source`](Self::source), from the addresses of `allowed` links only.
    pub fn source_among(&self, dev: PortId, dst: IpAddr, allowed: impl Fn(PortId) -> bool) -> Option<IpAddr> {
        let domain = self.domain(dev);
        let usable = |&&(link, own): &&(PortId, IfAddr)| {
            own.addr().is_ipv4() == dst.is_ipv4()
                && allowed(link)
                && (link == dev || !is_link_local(own.addr()) && self.domain(link) == domain)
        };
        let rank = |&&(link, own): &&(PortId, IfAddr)| {
            let same_scope = is_link_local(own.addr()) == is_link_local(dst);
            let (is_own, is_vrf) = (link == dev, Some(link) == domain.vrf_device());
            (is_own && same_scope, same_scope, is_vrf, own.prefix().contains(dst), is_own)
        };
        // `max_by_key` returns the last of equal elements, so the iteration is reversed: the address that was added
        // first is chosen.
        self.addresses.iter().filter(usable).rev().max_by_key(rank).map(|&(_, own)| own.addr())
    }

    /// The links that have the address, in any domain.
    pub fn links_with(&self, addr: IpAddr) -> impl Iterator<Item = PortId> + '_ {
        self.addresses.iter().filter(move |(_, own)| own.addr() == addr).map(|&(link, _)| link)
    }

    /// Tells whether a link of another domain has the address.
    pub fn is_elsewhere(&self, domain: Domain, addr: IpAddr) -> bool {
        self.links_with(addr).any(|link| self.domain(link) != domain)
    }

    /// The domain of the link with that address; of the first link, if several have the address.
    pub fn domain_of(&self, addr: IpAddr) -> Domain {
        self.addresses
            .iter()
            .find(|(_, own)| own.addr() == addr)
            .map_or(Domain::DEFAULT, |&(link, _)| self.domain(link))
    }

    /// Learnt MTU of the path to `dst` in a domain; `None` if none was learnt.
    #[inline]
    pub fn path_mtu(&self, now: Instant, domain: Domain, dst: IpAddr) -> Option<usize> {
        self.path_mtus.get(now, domain, dst)
    }

    /// Records, for ten minutes or until a route changes, `mtu` as the MTU of the path to `dst`: at least 552 for IPv4
    /// and 1280 for IPv6, and less than `link_mtu`, the MTU of the first link. Returns whether the path MTU was lowered
    /// or confirmed.
    pub fn lower_path_mtu(&mut self, now: Instant, domain: Domain, dst: IpAddr, mtu: usize, link_mtu: usize) -> bool {
        self.path_mtus.lower(now, (domain, dst), mtu, link_mtu)
    }

    /// Removes the learnt path MTUs of IPv4 destinations (Linux `fnhe_genid_bump`).
    pub fn forget_path_mtus_v4(&mut self) {
        self.path_mtus.clear_v4();
    }

    /// All learnt path MTUs, by domain and destination.
    pub fn path_mtus(&self, now: Instant) -> impl Iterator<Item = ((Domain, IpAddr), PathMtu)> + '_ {
        self.path_mtus.after(now, None)
    }

    /// Those of [`path_mtus`](Self::path_mtus) behind a domain and destination.
    pub fn path_mtus_after(
        &self,
        now: Instant,
        after: Option<(Domain, IpAddr)>,
    ) -> impl Iterator<Item = ((Domain, IpAddr), PathMtu)> + '_ {
        self.path_mtus.after(now, after)
    }

    /// Tells whether routes may have an encapsulation: a route with one was added since the last
    /// [`replace`](Self::replace).
    pub fn has_encaps(&self) -> bool {
        self.has_encaps
    }

    /// All routes with their tables: the local table first, then the main one, then by number.
    pub fn routes(&self) -> impl Iterator<Item = (TableId, &Route)> {
        let local = self.local.iter().map(|route| (TableId::LOCAL, route));
        let main = self.main.iter().map(|route| (TableId::MAIN, route));
        let mut ids: Vec<TableId> = self.others.keys().copied().collect();
        ids.sort_unstable();
        let of = |id: TableId| self.others.get(&id).into_iter().flat_map(Table::iter).map(move |route| (id, route));
        let others = ids.into_iter().flat_map(of);
        local.chain(main).chain(others)
    }

    fn table(&self, id: TableId) -> Option<&Table> {
        match id {
            TableId::LOCAL => Some(&self.local),
            TableId::MAIN => Some(&self.main),
            other => self.others.get(&other),
        }
    }

    fn table_mut(&mut self, id: TableId) -> &mut Table {
        match id {
            TableId::LOCAL => &mut self.local,
            TableId::MAIN => &mut self.main,
            other => self.others.entry(other).or_default(),
        }
    }

    /// Advances the generation, and drops learnt path MTUs: a changed route may use another path.
    fn changed(&mut self) {
        self.path_mtus.clear();
        self.generation = self.generation.wrapping_add(1);
    }
}

impl fmt::Debug for Fib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.routes()).finish()
    }
}

fn is_link_local(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(_) => false,
        IpAddr::V6(addr) => addr.is_unicast_link_local(),
    }
}

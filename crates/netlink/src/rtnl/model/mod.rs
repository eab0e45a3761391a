//! State of the node for rtnetlink: links with their addresses, and routing tables.
//!
//! All changes of a node are applied here: a configuration file replaces the whole [`Model`], netlink requests change
//! one object at a time. A [`Delta`] is a change for the datapath to apply.

mod addresses;
mod vrf;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;

use base::{Domain, IfIndex, Instant, PathHash, PortId, Prefix, RouteFlow, RuleSelector, TableId};

use super::entry::{Address, Link, LinkQdisc, METRIC_V6_USER, Master};
use super::fib_rule::Rule;
use super::nums::*;
use super::state::LinkNow;
use super::table::{Key, Route, Table};
use super::vrf::{MTU, Vrf, mac, masters_of};
use crate::error::{Error, errno};
use config::model::{Config, LinkKind, RouteAction, TableLimits};

pub use super::nums::LOOPBACK;

/// Number that no link has.
const NO_LINK: u32 = u32::MAX;

/// MTU of a link that is not open.
const MTU_ETHERNET: u32 = 1500;

/// Handle below the first automatic one, `8001:` (Linux `qdisc_alloc_handle`).
const FIRST_HANDLE: u32 = 0x8000_0000;
/// Difference of consecutive automatic handles.
const NEXT_HANDLE: u32 = 1 << 16;

/// Notification about a route that is replaced.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Told {
    /// None: paths become dead or alive with their link (Linux `fib_sync_down_dev`, `fib6_ifdown`).
    Nothing,
    /// The new route.
    New {
        /// Flags of the message.
        flags: u16,
        /// Place of the path that is listed first.
        from: usize,
    },
    /// A path that is gone, as a route of its own.
    Gone(Box<Route>),
}

/// Route that replaces another with the same prefix and metric.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Replacement {
    /// Table of both routes.
    pub table: TableId,
    /// Old route.
    pub old: Route,
    /// New route.
    pub new: Route,
    /// Notification of listeners.
    pub told: Told,
}

/// Change for the datapath to apply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Delta {
    /// A route is added, in front of routes with the same prefix and metric or behind them.
    AddRoute {
        /// Table.
        table: TableId,
        /// The route.
        route: Route,
        /// Whether the route is added in front.
        ahead: bool,
    },
    /// A route is removed.
    RemoveRoute {
        /// Table.
        table: TableId,
        /// The route.
        route: Route,
        /// Whether listeners are not notified: IPv4 routes removed with their link or address (Linux `fib_flush`).
        quiet: bool,
    },
    /// A route replaces another with the same prefix and metric. Apart, as the changes of a file are an entry for each of its routes.
    ReplaceRoute(Box<Replacement>),
    /// An address is added to a link. Its connected routes are separate deltas.
    AddAddress(PortId, Address),
    /// An address is removed from a link.
    RemoveAddress(PortId, Address),
    /// The rules of a family change.
    Rules {
        /// Whether the family is IPv4.
        v4: bool,
        /// All rules of the family, in order.
        rules: Vec<Rule>,
    },
    /// Properties of an address change that the datapath does not use; for notifications.
    ChangeAddress(PortId, Address),
    /// A VRF is added or changed, or removed (`None`). The number is its device's.
    Vrf(PortId, Option<Vrf>),
    /// A link moves to another domain.
    Domain(PortId, Domain),
}

impl Delta {
    /// Whether this is the change of a route.
    pub const fn is_of_route(&self) -> bool {
        matches!(self, Self::AddRoute { .. } | Self::RemoveRoute { .. } | Self::ReplaceRoute(_))
    }
}

/// Tables in Linux's listing order: by `id` modulo 256, then the most recently created first.
type Tables = BTreeMap<(u8, std::cmp::Reverse<u64>), (u32, Table)>;

/// State of a node: links, addresses, routes.
///
/// The model identifies links by [`PortId`], here a plain number, which never changes. Clients see interface indexes
/// instead: [`Model::ifindex`].
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) links: BTreeMap<u32, Link>,
    /// Interface indexes of removed links, until listeners are notified.
    departed: BTreeMap<u32, IfIndex>,
    last_index: u32,
    /// Last automatic handle of a queueing discipline.
    last_handle: u32,
    v4: Family,
    v6: Family,
    /// Whether an IPv4 rule has ever been added or removed.
    local_apart: bool,
    /// Whether a VRF has ever existed: the l3mdev rules are added with the first.
    pub(super) had_vrf: bool,
    /// Whether each VRF must have a separate table.
    pub(super) strict_vrfs: bool,
    /// Limit of routes; 0 is none.
    max_routes: u32,
    /// Whether a route with several paths was ever added.
    has_paths: bool,
    /// Hash by which flows select their paths.
    path_hash: PathHash,
    /// Whether the log has the warning about `mcast_snooping`.
    pub(super) has_warned_of_snooping: bool,
    /// Number of changes of links and addresses.
    generation: u32,
    pub(super) deltas: Vec<Delta>,
    /// Whether routes, links or addresses have changed since the model was read from a file.
    changed: bool,
    /// Time of the request that is being served.
    pub(super) now: Instant,
    /// Next end of an address's lifetime, or an earlier time.
    pub(super) next_expiry: Option<Instant>,
}

/// Position of a route in the list of all routes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteCursor {
    v4: bool,
    table: (u8, std::cmp::Reverse<u64>),
    route: Key,
}

#[derive(Clone, Debug)]
struct Family {
    tables: Tables,
    made: u64,
    rules: Vec<Rule>,
    /// For each rule what it matches and does.
    prepared: Vec<PreparedRule>,
}

/// A rule for look-ups.
#[derive(Clone, Debug)]
struct PreparedRule {
    selector: RuleSelector,
    /// The route that drops the rule's packets, if the rule drops packets.
    verdict: Option<Route>,
    /// Place of the rule that it continues with, if it has a target.
    target: Option<usize>,
}

impl PreparedRule {
    fn all(v4: bool, rules: &[Rule]) -> Vec<Self> {
        let of =
            |rule: &Rule| Self { selector: rule.selector(), verdict: rule.verdict(v4), target: rule.target_in(rules) };
        rules.iter().map(of).collect()
    }
}

impl Default for Model {
    /// A node with `lo` alone.
    fn default() -> Self {
        Self {
            links: BTreeMap::from([(LOOPBACK, Link::loopback())]),
            departed: BTreeMap::new(),
            last_index: LOOPBACK,
            last_handle: FIRST_HANDLE,
            v4: Family::new(true),
            v6: Family::new(false),
            local_apart: false,
            had_vrf: false,
            strict_vrfs: false,
            max_routes: 0,
            has_paths: false,
            path_hash: PathHash::default(),
            has_warned_of_snooping: false,
            generation: 0,
            deltas: Vec::new(),
            changed: false,
            now: Instant::ZERO,
            next_expiry: None,
        }
    }
}

impl Family {
    fn new(v4: bool) -> Self {
        let rules = Rule::first(v4);
        Self { tables: Tables::new(), made: 0, prepared: PreparedRule::all(v4, &rules), rules }
    }

    fn key(&self, id: u32) -> Option<(u8, std::cmp::Reverse<u64>)> {
        let bucket = id as u8;
        let all = (bucket, std::cmp::Reverse(u64::MAX))..=(bucket, std::cmp::Reverse(0));
        self.tables.range(all).find(|(_, (other, _))| *other == id).map(|(key, _)| *key)
    }

    fn get(&self, id: u32) -> Option<&Table> {
        self.tables.get(&self.key(id)?).map(|(_, table)| table)
    }

    fn get_or_make(&mut self, id: u32) -> &mut Table {
        let key = self.key(id).unwrap_or_else(|| {
            self.made += 1;
            (id as u8, std::cmp::Reverse(self.made))
        });
        &mut self.tables.entry(key).or_insert_with(|| (id, Table::default())).1
    }
}

/// Highest number of a link: tables are indexed by the numbers from 0.
pub(super) const MAX_INDEX: u32 = 65535;

/// Number of the next link after the one that has got `last`. Numbers are given in turn, so that the one of a removed link stays unused
/// for long, and begin anew above [`LOOPBACK`] (Linux `dev_new_index`, whose numbers end at `INT_MAX`).
pub fn next_index(last: u32, is_taken: impl Fn(u32) -> bool) -> Option<u32> {
    let last = last.min(MAX_INDEX);
    (last + 1..=MAX_INDEX).chain(LOOPBACK + 1..=last).find(|&number| !is_taken(number))
}

/// Reason why no link besides `others` can have the host's interface index `number`, if any.
pub fn refusal<'a>(number: u32, mut others: impl Iterator<Item = (&'a str, IfIndex)>) -> Option<String> {
    if number >= IfIndex::FIRST_OWN {
        let first = IfIndex::FIRST_OWN;
        return Some(format!(
            "its interface has number {number} on the host, and fatpath's own numbers begin at {first}"
        ));
    }
    let (other, _) = others.find(|(_, index)| index.0 == number)?;
    Some(format!("its interface has number {number} on the host, which is link {other}'s"))
}

impl Model {
    /// Replaces the state by a configuration file's: its links, open and up, and its routes. `ids` are the links'
    /// numbers, `now` the state of those that are open, and `last_index` the number that was given last. A route
    /// by a link that does not exist is skipped; [`Config::from_toml`] refuses such routes.
    ///
    /// Returns the changes that lead from an empty FIB to the new state.
    pub fn read(&mut self, config: &Config, ids: &[PortId], now: &[LinkNow], last_index: u32) -> Vec<Delta> {
        let generation = self.generation.wrapping_add(1);
        let qdiscs: BTreeMap<u32, LinkQdisc> =
            self.links.iter().filter_map(|(&id, link)| Some((id, link.qdisc?))).collect();
        let (last_handle, max_routes, path_hash) =
            (self.last_handle, self.max_routes, std::mem::take(&mut self.path_hash));
        *self = Self { last_index, generation, last_handle, max_routes, path_hash, ..Self::default() };
        self.add_loopback(&config.lo);
        let masters = masters_of(config, ids);
        for (config, id) in config.links.iter().zip(ids) {
            let (mtu, mac, host_index) = match (&config.kind, now.iter().find(|now| now.id == *id)) {
                (LinkKind::Vrf { .. }, _) => (MTU, Some(mac(id.0)), None),
                (_, Some(now)) => (now.mtu, now.mac, now.host_index),
                (_, None) => (config.mtu.map_or(MTU_ETHERNET, u32::from), None, None),
            };
            let link = Link {
                config: config.clone(),
                host_index,
                mtu,
                mac,
                mac_set: false,
                up: true,
                was_up: true,
                addresses: Vec::new(),
                group: 0,
                alias: None,
                txqlen: 1000,
                master: config.master.as_ref().and_then(|name| masters.get(name.as_str()).copied()),
                qdisc: None,
            };
            if let LinkKind::Vrf { table } = link.config.kind {
                self.add_vrf_rules();
                [true, false].into_iter().for_each(|v4| self.make_table(v4, table));
            }
            if let Some(Master { index, table: Some(_) }) = link.master {
                self.deltas.push(Delta::Domain(*id, Domain::vrf(PortId(index))));
            }
            self.links.insert(id.0, link);
            self.record_vrf(id.0);
            if let Some(options) = config.qdisc {
                // A discipline of the same kind was changed, not replaced.
                let same = qdiscs.get(&id.0).filter(|qdisc| qdisc.kind() == options.kind().name());
                let handle = same.map_or_else(|| self.new_handle(id.0), |qdisc| qdisc.handle);
                self.set_qdisc(id.0, Some(LinkQdisc { handle, options: Some(options) }));
            }
            self.ensure_multicast(id.0);
            for addr in config.own_addresses() {
                let address = self.new_address(id.0, addr);
                self.add_address(id.0, address);
            }
        }
        for route in &config.routes {
            let (kind, via, dev) = match &route.action {
                RouteAction::Unicast { via, dev } => match self.index_of(dev) {
                    Some(index) => (RTN_UNICAST, *via, index),
                    None => continue,
                },
                RouteAction::Blackhole => (RTN_BLACKHOLE, None, 0),
                RouteAction::Unreachable => (RTN_UNREACHABLE, None, 0),
                RouteAction::Prohibit => (RTN_PROHIBIT, None, 0),
            };
            let v4 = route.to.is_ipv4();
            let scope = if v4 && via.is_none() && kind == RTN_UNICAST { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
            let metric = if v4 || route.metric > 0 { route.metric } else { METRIC_V6_USER };
            let dev = if dev == 0 && !v4 { LOOPBACK } else { dev };
            let (prefix, protocol, src, onlink) = (route.to, RTPROT_STATIC, route.src, false);
            let encap = route.encap;
            let entry = Route { prefix, kind, metric, scope, protocol, dev, via, src, onlink, encap, paths: None };
            self.insert_route(route.table.0, entry, false);
        }
        self.changed = false;
        std::mem::take(&mut self.deltas)
    }

    /// Whether the state has changed since it was read from a file.
    pub const fn has_changed(&self) -> bool {
        self.changed
    }

    /// Pending changes, in order.
    pub(super) fn deltas(&self) -> &[Delta] {
        &self.deltas
    }

    /// Returns and removes the pending changes for the datapath, in order.
    pub fn take_deltas(&mut self) -> std::vec::Drain<'_, Delta> {
        self.departed.clear();
        self.deltas.drain(..)
    }

    /// Number of changes of links and addresses.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Interface index of a link, also of a removed one until listeners are notified.
    pub fn ifindex(&self, id: u32) -> IfIndex {
        let departed = || self.departed.get(&id).copied();
        let here = self.links.get(&id).map(|link| link.ifindex(id));
        here.or_else(departed).unwrap_or(IfIndex::own(PortId(id)))
    }

    /// Number of the link with the interface index `ifindex`; 0 for 0, and an unused number if there is none.
    pub fn id_of(&self, ifindex: u32) -> u32 {
        if ifindex <= LOOPBACK {
            return ifindex;
        }
        let has_it = |(_, link): &(&u32, &Link)| link.host_index == Some(ifindex);
        let own = || IfIndex(ifindex).as_own().map(|id| id.0).filter(|id| self.is_own(*id));
        self.links.iter().find(has_it).map(|(&id, _)| id).or_else(own).unwrap_or(NO_LINK)
    }

    /// Reason why no link can have the host's interface index `number`, if any.
    pub fn refusal(&self, number: u32) -> Option<String> {
        let all = self.links.iter().map(|(&id, link)| (link.config.name.as_str(), link.ifindex(id)));
        refusal(number, all)
    }

    /// Whether the interface index `ifindex` is in use, as a link's index or as the index derived from a link's id.
    pub fn is_taken(&self, ifindex: u32) -> bool {
        let by_id = IfIndex(ifindex).as_own().is_some_and(|id| self.links.contains_key(&id.0));
        by_id || self.links.contains_key(&self.id_of(ifindex))
    }

    /// Whether a link exists and is no interface of the host.
    fn is_own(&self, id: u32) -> bool {
        self.links.get(&id).is_some_and(|link| link.host_index.is_none())
    }

    /// Links with an interface index above `after`, in Linux's listing order, by index.
    pub(super) fn by_ifindex(&self, after: IfIndex) -> Vec<(IfIndex, u32, &Link)> {
        let all = self.links.iter().map(|(&id, link)| (self.ifindex(id), id, link));
        let mut all: Vec<_> = all.filter(|(ifindex, ..)| *ifindex > after).collect();
        all.sort_unstable_by_key(|(ifindex, ..)| *ifindex);
        all
    }

    /// Updates the link-layer addresses and interface indexes of links. Returns the links whose interface index has
    /// changed, each with the former index.
    pub(super) fn see(&mut self, now: &[LinkNow]) -> Vec<(u32, IfIndex)> {
        let mut changed = Vec::new();
        for now in now {
            let before = self.ifindex(now.id.0);
            let Some(link) = self.links.get_mut(&now.id.0) else { continue };
            if let (Some(mac), Some(now)) = (&mut link.mac, now.mac) {
                *mac = now;
            }
            if link.host_index != now.host_index {
                link.host_index = now.host_index;
                changed.push((now.id.0, before));
            }
        }
        if !changed.is_empty() {
            self.generation = self.generation.wrapping_add(1);
        }
        changed
    }

    /// Links with a number above `after`, by number.
    pub fn links_after(&self, after: u32) -> impl Iterator<Item = (u32, &Link)> {
        self.links.range(after.saturating_add(1)..).map(|(&index, link)| (index, link))
    }

    /// Link of number `index`.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// Interface index of a VLAN device's lower link.
    pub(super) fn lower_of(&self, index: u32) -> Option<IfIndex> {
        let (lower, _) = self.link(index)?.vlan()?;
        self.index_of(lower).map(|lower| self.ifindex(lower))
    }

    /// VLAN devices whose lower link is `name`.
    pub(super) fn vlans_of(&self, name: &str) -> Vec<u32> {
        let is_above = |link: &Link| link.vlan().is_some_and(|(lower, _)| lower == name);
        self.links.iter().filter(|(_, link)| is_above(link)).map(|(&index, _)| index).collect()
    }

    /// Number of the link `name`.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.config.name == name).map(|(&index, _)| index)
    }

    /// Number that was given last.
    pub const fn last_index(&self) -> u32 {
        self.last_index
    }

    /// Number of the next link that has no wish; `None` if all are taken.
    pub(super) fn next_index(&self) -> Option<u32> {
        next_index(self.last_index, |number| self.links.contains_key(&number))
    }

    /// All routes with their tables, IPv4 first.
    pub fn routes(&self) -> impl Iterator<Item = (TableId, &Route)> {
        let tables = [true, false].into_iter().flat_map(|v4| self.tables(v4));
        tables.flat_map(|(id, table)| table.after(None).map(move |(_, route)| (TableId(id), route)))
    }

    /// Routes behind `after` in the order of [`routes`](Self::routes), each with its position and table.
    pub fn routes_after(&self, after: Option<RouteCursor>) -> impl Iterator<Item = (RouteCursor, TableId, &Route)> {
        let families = [true, false].into_iter().filter(move |v4| after.is_none_or(|after| *v4 <= after.v4));
        families.flat_map(move |v4| {
            let first = after.filter(|after| after.v4 == v4);
            let from = first.map_or(Bound::Unbounded, |after| Bound::Included(after.table));
            self.family(v4).tables.range((from, Bound::Unbounded)).flat_map(move |(place, (id, table))| {
                let behind = first.filter(|after| after.table == *place).map(|after| after.route);
                let (table_place, id) = (*place, TableId(*id));
                table.after(behind).map(move |(route_place, route)| {
                    (RouteCursor { v4, table: table_place, route: route_place }, id, route)
                })
            })
        })
    }

    /// The routes of a table to exactly this prefix.
    pub fn routes_to(&self, table: TableId, prefix: Prefix) -> impl Iterator<Item = &Route> {
        let table = self.table(prefix.is_ipv4(), table.0);
        table.into_iter().flat_map(move |table| table.exact(prefix).map(|(_, route)| route))
    }

    /// Tables of a family, in listing order.
    pub(super) fn tables(&self, v4: bool) -> impl Iterator<Item = (u32, &Table)> {
        self.family(v4).tables.values().map(|(id, table)| (*id, table))
    }

    /// Table `id`, if it was ever used.
    pub(super) fn table(&self, v4: bool, id: u32) -> Option<&Table> {
        self.family(v4).get(id)
    }

    fn family(&self, v4: bool) -> &Family {
        if v4 { &self.v4 } else { &self.v6 }
    }

    fn family_mut(&mut self, v4: bool) -> &mut Family {
        if v4 { &mut self.v4 } else { &mut self.v6 }
    }

    /// Whether table `id` exists. The local and the main table always exist.
    pub(super) fn has_table(&self, v4: bool, id: u32) -> bool {
        matches!(id, RT_TABLE_LOCAL | RT_TABLE_MAIN) || self.table(v4, id).is_some()
    }

    /// A packet of the node to `dst` about which no more is known. `domain` is the number of the device of its VRF, 0 for none.
    pub(super) fn flow_to(&self, domain: u32, dst: IpAddr) -> RouteFlow {
        let is_vrf = self.link(domain).and_then(Link::l3_table).is_some();
        RouteFlow::to(if is_vrf { Domain::vrf(PortId(domain)) } else { Domain::DEFAULT }, dst)
    }

    /// Looks up the best route of a flow that `fits`, by the rules in order, and returns it with its table; the table is
    /// `RT_TABLE_UNSPEC` for a rule that drops packets.
    pub(super) fn lookup(&self, flow: &RouteFlow, fits: impl Fn(&Route) -> bool) -> Option<(u32, &Route)> {
        let family = self.family(flow.dst.is_ipv4());
        let vrf_table = flow.domain.vrf_device().and_then(|device| self.link(device.0)?.l3_table());
        let mut next = 0;
        while let Some((rule, prepared)) = family.rules.get(next).zip(family.prepared.get(next)) {
            next += 1;
            if !prepared.selector.matches(flow) {
                continue;
            }
            if rule.is_jump() {
                next = next.max(prepared.target.unwrap_or(next));
                continue;
            }
            if let Some(route) = &prepared.verdict {
                return Some((RT_TABLE_UNSPEC, route));
            }
            let table = vrf_table.filter(|_| rule.l3mdev).unwrap_or(rule.table);
            let found = family.get(table).and_then(|routes| routes.lookup(flow.dst, &fits));
            if let Some(route) = found.filter(|route| route.kind != RTN_THROW && !rule.suppresses(route)) {
                return Some((table, route));
            }
        }
        None
    }

    /// A family's rules, in order.
    pub fn rules(&self, v4: bool) -> &[Rule] {
        &self.family(v4).rules
    }

    /// Whether IPv4's local table is separate from the main one: in Linux the tables are merged until the first change
    /// of rules (`fib_unmerge`).
    pub(super) const fn is_local_apart(&self) -> bool {
        self.local_apart
    }

    /// Replaces a family's rules, and records the delta.
    pub(super) fn set_rules(&mut self, v4: bool, rules: Vec<Rule>) {
        self.prepare_rules(v4, rules);
        self.local_apart |= v4;
        self.changed = true;
    }

    fn prepare_rules(&mut self, v4: bool, rules: Vec<Rule>) {
        self.deltas.push(Delta::Rules { v4, rules: rules.clone() });
        let family = self.family_mut(v4);
        family.prepared = PreparedRule::all(v4, &rules);
        family.rules = rules;
    }

    /// Finds the input links of rules again, after a link was added or removed (Linux `fib_rules_event`).
    fn find_rule_links(&mut self) {
        for v4 in [true, false] {
            let mut rules = self.rules(v4).to_vec();
            let mut has_changed = false;
            for iif in rules.iter_mut().filter_map(|rule| rule.iif.as_mut()) {
                let link = self.index_of(&iif.name);
                has_changed |= std::mem::replace(&mut iif.link, link) != link;
            }
            if has_changed {
                self.prepare_rules(v4, rules);
            }
        }
    }

    /// Creates an empty table unless it exists.
    pub(super) fn make_table(&mut self, v4: bool, id: u32) {
        self.family_mut(v4).get_or_make(id);
    }

    /// Sets the number of routes above which requests for routes are refused; 0 is no limit.
    pub const fn set_max_routes(&mut self, limit: u32) {
        self.max_routes = limit;
    }

    /// Sets the hash by which flows select their paths.
    pub fn set_path_hash(&mut self, hash: PathHash) {
        self.path_hash = hash;
    }

    /// Hash of a flow for its path.
    pub(super) fn path_hash(&self, flow: &RouteFlow) -> u32 {
        self.path_hash.of(flow)
    }

    /// Removes the paths by a link that is removed from IPv6 routes that have others (Linux `fib6_ifdown`).
    pub(super) fn drop_paths(&mut self, dev: u32) {
        if !self.has_paths {
            return;
        }
        let tables = self.family(false).tables.values();
        let each = tables.flat_map(|(id, table)| table.after(None).map(move |(key, route)| (*id, key, route)));
        let with_others = |route: &Route| {
            let paths = route.paths.as_deref().unwrap_or_default();
            paths.iter().any(|path| path.dev == dev) && paths.iter().any(|path| path.dev != dev)
        };
        let changed: Vec<_> =
            each.filter(|(.., route)| with_others(route)).map(|(id, key, it)| (id, key, it.clone())).collect();
        for (id, key, mut route) in changed {
            while let Some(at) = route.next_hops().iter().position(|path| path.dev == dev) {
                let mut paths = route.next_hops();
                let gone = Box::new(route.clone().with_paths(&[paths.remove(at)]));
                route = route.with_paths(&paths);
                self.replace_route(id, key, route.clone(), Told::Gone(gone));
            }
        }
    }

    /// Number of routes of all tables.
    pub fn route_count(&self) -> usize {
        [&self.v4, &self.v6].iter().flat_map(|family| family.tables.values()).map(|(_, table)| table.len()).sum()
    }

    /// Number of routes of each table, by the tables' numbers, both families together.
    pub fn routes_by_table(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for (id, table) in [&self.v4, &self.v6].into_iter().flat_map(|family| family.tables.values()) {
            *counts.entry(*id).or_default() += table.len();
        }
        counts
    }

    /// Refuses a route more above the limit.
    pub(super) fn admit_route(&self) -> Result<(), Error> {
        let used = if self.max_routes == 0 { 0 } else { self.route_count() };
        TableLimits::admit(self.max_routes, used, "routes").map_err(|text| Error::owned_text(errno::ENOMEM, text))
    }

    /// Adds a route, and records the delta.
    pub(super) fn insert_route(&mut self, table: u32, route: Route, ahead: bool) {
        self.has_paths |= route.paths.is_some();
        self.deltas.push(Delta::AddRoute { table: TableId(table), route: route.clone(), ahead });
        self.family_mut(route.prefix.is_ipv4()).get_or_make(table).insert(route, ahead);
        self.changed = true;
    }

    /// Replaces a route, and records the delta.
    pub(super) fn replace_route(&mut self, table: u32, key: Key, new: Route, told: Told) {
        self.has_paths |= new.paths.is_some();
        let there = self.family_mut(new.prefix.is_ipv4()).get_or_make(table).replace(key, new.clone());
        if let Some(old) = there {
            let replacement = Replacement { table: TableId(table), old, new, told };
            self.deltas.push(Delta::ReplaceRoute(Box::new(replacement)));
            self.changed = true;
        }
    }

    /// Marks the paths by a link of routes of a family that have several as dead or alive (Linux `fib_sync_down_dev`, `fib_sync_up`).
    /// A route all of whose paths are dead then is left to the caller.
    pub(super) fn mark_paths(&mut self, v4: bool, dev: u32, dead: bool) {
        if !self.has_paths {
            return;
        }
        let marked = |route: &Route| {
            let mut paths =
                route.paths.as_ref().filter(|paths| paths.iter().any(|it| it.dev == dev && it.dead != dead))?.to_vec();
            paths.iter_mut().filter(|path| path.dev == dev).for_each(|path| path.dead = dead);
            Some(route.clone().with_paths(&paths))
        };
        let tables = self.family(v4).tables.values();
        let each = tables.flat_map(|(id, table)| table.after(None).map(move |(key, route)| (*id, key, route)));
        let changed: Vec<_> = each.filter_map(|(id, key, route)| Some((id, key, marked(route)?))).collect();
        changed.into_iter().for_each(|(id, key, route)| self.replace_route(id, key, route, Told::Nothing));
    }

    /// Removes a route, and records the delta.
    pub(super) fn remove_route(&mut self, v4: bool, table: u32, key: Key) {
        self.take_route(v4, table, key, false);
    }

    fn take_route(&mut self, v4: bool, table: u32, key: Key, quiet: bool) {
        let route = self.family_mut(v4).get_or_make(table).remove(key);
        if let Some(route) = route {
            self.deltas.push(Delta::RemoveRoute { table: TableId(table), route, quiet });
            self.changed = true;
        }
    }

    /// Removes every route for which `goes` is true.
    pub(super) fn remove_routes(&mut self, v4: bool, goes: impl Fn(u32, &Route) -> bool) {
        let tables = self.family(v4).tables.values();
        let each = tables.flat_map(|(id, table)| table.after(None).map(move |(key, route)| (*id, key, route)));
        let gone: Vec<_> = each.filter(|(id, _, route)| goes(*id, route)).map(|(id, key, _)| (id, key)).collect();
        gone.into_iter().for_each(|(id, key)| self.take_route(v4, id, key, v4));
    }

    /// Adds a route unless it exists.
    fn ensure_route(&mut self, table: u32, route: Route) {
        let there = self.table(route.prefix.is_ipv4(), table);
        if !there.is_some_and(|table| table.exact(route.prefix).any(|(_, other)| *other == route)) {
            self.insert_route(table, route, false);
        }
    }

    /// Adds or replaces a link.
    pub(super) fn insert_link(&mut self, index: u32, link: Link) {
        let is_next = self.next_index() == Some(index);
        self.last_index = if is_next { index } else { self.last_index.max(index) };
        self.links.insert(index, link);
        self.touch();
        self.find_rule_links();
    }

    /// Mutable access to a link; counts as a change.
    pub(super) fn link_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.touch();
        self.links.get_mut(&index)
    }

    /// Removes a link that is [clear](Self::clear_link) and has no members.
    pub(super) fn remove_link(&mut self, index: u32) -> Option<Link> {
        self.touch();
        let ifindex = self.ifindex(index);
        let gone = self.links.remove(&index)?;
        self.departed.insert(index, ifindex);
        self.find_rule_links();
        if gone.is_vrf() {
            self.deltas.push(Delta::Vrf(PortId(index), None));
        } else if gone.master.is_some_and(|master| master.table.is_some()) {
            self.deltas.push(Delta::Domain(PortId(index), Domain::DEFAULT));
        }
        Some(gone)
    }

    /// Automatic handle for a new queueing discipline (Linux `qdisc_alloc_handle`).
    pub(super) fn new_handle(&mut self, id: u32) -> u32 {
        let taken = self.link(id).and_then(|link| link.qdisc).map(|qdisc| qdisc.handle);
        loop {
            self.last_handle = match self.last_handle.wrapping_add(NEXT_HANDLE) {
                TC_H_MAJ_MASK => FIRST_HANDLE,
                next => next,
            };
            if taken != Some(self.last_handle) {
                return self.last_handle;
            }
        }
    }

    /// Sets or removes the queueing discipline of a link. After removal, a link that is down has the discipline `noop`
    /// (Linux `qdisc_graft`).
    pub(super) fn set_qdisc(&mut self, id: u32, qdisc: Option<LinkQdisc>) {
        let Some(link) = self.link_mut(id) else { return };
        link.qdisc = qdisc;
        link.config.qdisc = qdisc.and_then(|qdisc| qdisc.options);
        if qdisc.is_none() {
            link.was_up = link.up;
        }
    }

    /// Records a change of links or addresses.
    pub(super) fn touch(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.changed = true;
    }
}

//! The node as rtnetlink sees it: links with their addresses, and routing tables.
//!
//! Every way to change a node ends here: a file is read into a [`Model`] as a whole, and netlink changes one at a time.
//! A [`Delta`] is a change that the datapath has to apply.

mod addresses;
mod vrf;

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::{Domain, IfIndex, Instant, LinkId, Prefix, TableId};

use super::entry::{Address, Link, LinkQdisc, METRIC_V6_USER};
use super::fib_rule::Rule;
use super::link_now::LinkNow;
use super::nums::*;
use super::table::{Key, Route, Table};
use super::vrf::{MTU, Vrf, mac, masters_of};
use config::model::{Config, LinkKind, RouteAction};

/// The number of `lo`, which every node has, as in Linux.
pub const LOOPBACK: u32 = 1;

/// A number that no link has.
const NO_LINK: u32 = u32::MAX;

/// Number below the first that a queueing discipline gets by itself, `8001:` (Linux `qdisc_alloc_handle`).
const FIRST_HANDLE: u32 = 0x8000_0000;
/// Difference of two such numbers.
const NEXT_HANDLE: u32 = 1 << 16;

/// Change that the datapath has to apply.
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
    /// A route takes the place of another with its prefix and metric.
    ReplaceRoute {
        /// Their table.
        table: TableId,
        /// Old route.
        old: Route,
        /// New route.
        new: Route,
    },
    /// A link gets an address. Its connected routes are deltas of their own.
    AddAddress(LinkId, Address),
    /// A link loses an address.
    RemoveAddress(LinkId, Address),
    /// The rules of a family change.
    Rules {
        /// Whether the family is IPv4.
        v4: bool,
        /// All of them, in order.
        rules: Vec<Rule>,
    },
    /// An address changes in a way that the datapath does not depend on; for notifications.
    ChangeAddress(LinkId, Address),
    /// A VRF is added, changed or removed (`None`). Its device has that number.
    Vrf(LinkId, Option<Vrf>),
    /// A link moves to that domain.
    Domain(LinkId, Domain),
}

/// Tables by the order in which Linux lists them: `id` modulo 256, and of those the one that was made last.
type Tables = BTreeMap<(u8, std::cmp::Reverse<u64>), (u32, Table)>;

/// Links, addresses, routes.
///
/// Links are known by their [`LinkId`], here a plain number, which stays. The number that clients see is another:
/// [`Model::ifindex`].
#[derive(Clone, Debug)]
pub struct Model {
    pub(super) links: BTreeMap<u32, Link>,
    /// Numbers of removed links, until listeners are notified.
    departed: BTreeMap<u32, IfIndex>,
    last_index: u32,
    /// Number that the last queueing discipline got that came without one.
    last_handle: u32,
    v4: Family,
    v6: Family,
    /// Whether a rule of IPv4 has ever come or gone.
    local_apart: bool,
    /// Whether there has been a VRF: with the first one a rule comes.
    pub(super) had_vrf: bool,
    /// Whether each VRF has to have a table of its own.
    pub(super) strict_vrfs: bool,
    /// Counts changes of links and addresses.
    generation: u32,
    pub(super) deltas: Vec<Delta>,
    /// Whether routes, links or addresses have changed since the model was read from a file.
    changed: bool,
    /// Time of the request that is being served.
    pub(super) now: Instant,
    /// Time before which no lifetime of an address ends.
    pub(super) next_expiry: Option<Instant>,
}

#[derive(Clone, Debug)]
struct Family {
    tables: Tables,
    made: u64,
    rules: Vec<Rule>,
    /// For each rule the route by which it has packets dropped, if it does.
    verdicts: Vec<Option<Route>>,
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
        Self { tables: Tables::new(), made: 0, verdicts: vec![None; rules.len()], rules }
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

/// Reason for which no link beside `others` can be the host's interface of that number, if none can.
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
    /// Becomes what a file says: its links, which have been opened and are up, and its routes. `ids` are the links' numbers,
    /// `now` is what was opened, and `last_index` the highest number that a link has ever had. A route to a link that is
    /// not there is left out; [`Config::from_toml`] lets none pass.
    pub fn read(&mut self, config: &Config, ids: &[LinkId], now: &[LinkNow], last_index: u32) {
        let generation = self.generation.wrapping_add(1);
        let qdiscs: BTreeMap<u32, LinkQdisc> =
            self.links.iter().filter_map(|(&id, link)| Some((id, link.qdisc?))).collect();
        *self = Self { last_index, generation, last_handle: self.last_handle, ..Self::default() };
        let masters = masters_of(config, ids);
        for (config, id) in config.links.iter().zip(ids) {
            let (mtu, mac, host_index) = match (&config.kind, now.iter().find(|now| now.id == *id)) {
                (LinkKind::Vrf { .. }, _) => (MTU, Some(mac(id.0)), None),
                (_, Some(now)) => (now.mtu, now.mac, now.host_index),
                (_, None) => continue,
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
            self.links.insert(id.0, link);
            if let Some(options) = config.qdisc {
                // One of the same kind has been changed, and not exchanged.
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
            let (prefix, protocol, src, onlink) = (route.to, RTPROT_STATIC, None, false);
            let encap = route.encap;
            let entry = Route { prefix, kind, metric, scope, protocol, dev, via, src, onlink, encap };
            self.insert_route(route.table.0, entry, false);
        }
        self.deltas.clear();
        self.changed = false;
    }

    /// Whether something has changed since it was read from a file.
    pub const fn has_changed(&self) -> bool {
        self.changed
    }

    /// Changes, in order, since they were taken.
    pub(super) fn deltas(&self) -> &[Delta] {
        &self.deltas
    }

    /// Takes the changes that the datapath has to apply, in order.
    pub fn take_deltas(&mut self) -> std::vec::Drain<'_, Delta> {
        self.departed.clear();
        self.deltas.drain(..)
    }

    /// Counts changes of links and addresses.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The number by which clients know a link; 0 of none.
    pub fn ifindex(&self, id: u32) -> IfIndex {
        let departed = || self.departed.get(&id).copied();
        let here = self.links.get(&id).map(|link| link.ifindex(id));
        here.or_else(departed).unwrap_or(IfIndex::own(LinkId(id)))
    }

    /// The link that clients know by that number; 0 for 0, and a number that no link has if there is none.
    pub fn id_of(&self, ifindex: u32) -> u32 {
        if ifindex <= LOOPBACK {
            return ifindex;
        }
        let has_it = |(_, link): &(&u32, &Link)| link.host_index == Some(ifindex);
        let own = || IfIndex(ifindex).as_own().map(|id| id.0).filter(|id| self.is_own(*id));
        self.links.iter().find(has_it).map(|(&id, _)| id).or_else(own).unwrap_or(NO_LINK)
    }

    /// Reason for which no link can be the host's interface of that number, if none can.
    pub fn refusal(&self, number: u32) -> Option<String> {
        let all = self.links.iter().map(|(&id, link)| (link.config.name.as_str(), link.ifindex(id)));
        refusal(number, all)
    }

    /// Whether no new link can have that number: a link has it, or one is known in this node by the id that it stands for.
    pub fn is_taken(&self, ifindex: u32) -> bool {
        let by_id = IfIndex(ifindex).as_own().is_some_and(|id| self.links.contains_key(&id.0));
        by_id || self.links.contains_key(&self.id_of(ifindex))
    }

    /// Whether a link is there and no interface of the host.
    fn is_own(&self, id: u32) -> bool {
        self.links.get(&id).is_some_and(|link| link.host_index.is_none())
    }

    /// The links behind the one that clients know by `after`, in the order of these numbers, as Linux lists them.
    pub(super) fn by_ifindex(&self, after: IfIndex) -> Vec<(IfIndex, u32, &Link)> {
        let all = self.links.iter().map(|(&id, link)| (self.ifindex(id), id, link));
        let mut all: Vec<_> = all.filter(|(ifindex, ..)| *ifindex > after).collect();
        all.sort_unstable_by_key(|(ifindex, ..)| *ifindex);
        all
    }

    /// Updates the link-layer addresses of links, and the host's interfaces that they are. Returns the links that are another
    /// interface now, each with the number by which clients knew it.
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

    /// The links behind number `after`, by number.
    pub fn links_after(&self, after: u32) -> impl Iterator<Item = (u32, &Link)> {
        self.links.range(after.saturating_add(1)..).map(|(&index, link)| (index, link))
    }

    /// The link of that number.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// The number by which clients know the link that another one is a VLAN of.
    pub(super) fn lower_of(&self, index: u32) -> Option<IfIndex> {
        let (lower, _) = self.link(index)?.vlan()?;
        self.index_of(lower).map(|lower| self.ifindex(lower))
    }

    /// The VLAN devices of the link of that name.
    pub(super) fn vlans_of(&self, name: &str) -> Vec<u32> {
        let is_above = |link: &Link| link.vlan().is_some_and(|(lower, _)| lower == name);
        self.links.iter().filter(|(_, link)| is_above(link)).map(|(&index, _)| index).collect()
    }

    /// The number of the link of that name.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.config.name == name).map(|(&index, _)| index)
    }

    /// The highest number that a link has ever had.
    pub const fn last_index(&self) -> u32 {
        self.last_index
    }

    /// Every route with its table, IPv4's first.
    pub fn routes(&self) -> impl Iterator<Item = (TableId, &Route)> {
        let tables = [true, false].into_iter().flat_map(|v4| self.tables(v4));
        tables.flat_map(|(id, table)| table.after(None).map(move |(_, route)| (TableId(id), route)))
    }

    /// The routes of a table to exactly this prefix.
    pub fn routes_to(&self, table: TableId, prefix: Prefix) -> impl Iterator<Item = &Route> {
        let table = self.table(prefix.is_ipv4(), table.0);
        table.into_iter().flat_map(move |table| table.exact(prefix).map(|(_, route)| route))
    }

    /// The tables of a family, in the order in which they are listed, behind the one at `after`.
    pub(super) fn tables(&self, v4: bool) -> impl Iterator<Item = (u32, &Table)> {
        self.family(v4).tables.values().map(|(id, table)| (*id, table))
    }

    /// The table of that number, if it has been used.
    pub(super) fn table(&self, v4: bool, id: u32) -> Option<&Table> {
        self.family(v4).get(id)
    }

    fn family(&self, v4: bool) -> &Family {
        if v4 { &self.v4 } else { &self.v6 }
    }

    fn family_mut(&mut self, v4: bool) -> &mut Family {
        if v4 { &mut self.v4 } else { &mut self.v6 }
    }

    /// The table of that number. The local and the main one are always there.
    pub(super) fn has_table(&self, v4: bool, id: u32) -> bool {
        matches!(id, RT_TABLE_LOCAL | RT_TABLE_MAIN) || self.table(v4, id).is_some()
    }

    /// The best route to `dst` that `fits`, in the order of the rules, with the table's number, or `RT_TABLE_UNSPEC` for the
    /// verdict of a rule. `domain` is the number of the VRF's device, 0 for none.
    pub(super) fn lookup(&self, domain: u32, dst: IpAddr, fits: impl Fn(&Route) -> bool) -> Option<(u32, &Route)> {
        let v4 = dst.is_ipv4();
        let family = self.family(v4);
        let vrf_table = self.link(domain).and_then(Link::l3_table);
        let rules = family.rules.iter().zip(&family.verdicts);
        let matching = rules.filter(|(rule, _)| {
            (!rule.l3mdev || vrf_table.is_some()) && rule.prefix().is_none_or(|to| to.contains(dst))
        });
        let mut found = matching.filter_map(|(rule, verdict)| match verdict {
            Some(route) => Some((RT_TABLE_UNSPEC, route)),
            None => {
                let table = vrf_table.filter(|_| rule.l3mdev).unwrap_or(rule.table);
                Some((table, family.get(table)?.lookup(dst, &fits)?))
            }
        });
        found.find(|(_, route)| route.kind != RTN_THROW)
    }

    /// A family's rules, in order.
    pub(super) fn rules(&self, v4: bool) -> &[Rule] {
        &self.family(v4).rules
    }

    /// Whether IPv4's local table is apart from the main one, as it is in Linux from the first change of rules on
    /// (`fib_unmerge`).
    pub(super) const fn is_local_apart(&self) -> bool {
        self.local_apart
    }

    /// Replaces a family's rules, and records the change.
    pub(super) fn set_rules(&mut self, v4: bool, rules: Vec<Rule>) {
        self.deltas.push(Delta::Rules { v4, rules: rules.clone() });
        let family = self.family_mut(v4);
        family.verdicts = rules.iter().map(|rule| rule.verdict(v4)).collect();
        family.rules = rules;
        self.local_apart |= v4;
        self.changed = true;
    }

    /// Creates a table, with or without routes.
    pub(super) fn make_table(&mut self, v4: bool, id: u32) {
        self.family_mut(v4).get_or_make(id);
    }

    /// Adds a route, and records the change.
    pub(super) fn insert_route(&mut self, table: u32, route: Route, ahead: bool) {
        self.deltas.push(Delta::AddRoute { table: TableId(table), route: route.clone(), ahead });
        self.family_mut(route.prefix.is_ipv4()).get_or_make(table).insert(route, ahead);
        self.changed = true;
    }

    /// Replaces a route by another, and records the change.
    pub(super) fn replace_route(&mut self, table: u32, key: Key, new: Route) {
        let there = self.family_mut(new.prefix.is_ipv4()).get_or_make(table).replace(key, new.clone());
        if let Some(old) = there {
            self.deltas.push(Delta::ReplaceRoute { table: TableId(table), old, new });
            self.changed = true;
        }
    }

    /// Removes a route, and records the change.
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

    /// Puts a link in its place.
    pub(super) fn insert_link(&mut self, index: u32, link: Link) {
        self.links.insert(index, link);
        self.last_index = self.last_index.max(index);
        self.touch();
    }

    /// A link, to be changed.
    pub(super) fn link_mut(&mut self, index: u32) -> Option<&mut Link> {
        self.touch();
        self.links.get_mut(&index)
    }

    /// Removes a link that is [clear](Self::clear_link), and that is no other link's master.
    pub(super) fn remove_link(&mut self, index: u32) -> Option<Link> {
        self.touch();
        let ifindex = self.ifindex(index);
        let gone = self.links.remove(&index)?;
        self.departed.insert(index, ifindex);
        if gone.is_vrf() {
            self.deltas.push(Delta::Vrf(LinkId(index), None));
        } else if gone.master.is_some_and(|master| master.table.is_some()) {
            self.deltas.push(Delta::Domain(LinkId(index), Domain::DEFAULT));
        }
        Some(gone)
    }

    /// Number for the next queueing discipline of a link that comes without one (Linux `qdisc_alloc_handle`).
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

    /// Gives a link a queueing discipline, or takes it away. One that is down is without any then (Linux `qdisc_graft`).
    pub(super) fn set_qdisc(&mut self, id: u32, qdisc: Option<LinkQdisc>) {
        let Some(link) = self.link_mut(id) else { return };
        link.qdisc = qdisc;
        link.config.qdisc = qdisc.and_then(|qdisc| qdisc.options);
        if qdisc.is_none() {
            link.was_up = link.up;
        }
    }

    /// Counts a change of links or addresses.
    pub(super) fn touch(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.changed = true;
    }
}

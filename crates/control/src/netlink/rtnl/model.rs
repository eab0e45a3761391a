//! The node as rtnetlink sees it: links with their addresses, and routing tables.
//!
//! Every way to change a node ends here: a file is read into a [`Model`] as a whole, and netlink changes one at a time.
//! What the packets' side has to know of a change is a [`Delta`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, LinkId, Prefix, TableId};

use super::LinkNow;
use super::nums::*;
use super::table::{Route, Table};
use crate::model::{Config, LinkConfig, LinkKind, RouteAction};

/// The number of `lo`, which every node has, as in Linux.
pub const LOOPBACK: u32 = 1;

/// An address of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    /// The address, in its subnet.
    pub addr: IfAddr,
    /// How many leading bits are the subnet's.
    pub len: u8,
    /// Its peer, if the link leads to one alone.
    pub peer: Option<IpAddr>,
    /// The broadcast address that was named.
    pub broadcast: Option<Ipv4Addr>,
    /// Its name, if it is not the link's.
    pub label: Option<String>,
    /// `RT_SCOPE_*`.
    pub scope: u8,
    /// `IFA_F_*`.
    pub flags: u32,
    /// The metric of the route that it makes; 0 for the family's.
    pub metric: u32,
    /// `IFAPROT_*`.
    pub protocol: u8,
}

/// A link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Link {
    /// What it was made from. Its addresses are those below.
    pub config: LinkConfig,
    /// Its MTU.
    pub mtu: u32,
    /// Its link-layer address; `None` if it has none.
    pub mac: Option<[u8; 6]>,
    /// Whether it was set up.
    pub up: bool,
    /// Its addresses, in the order in which they are listed.
    pub addresses: Vec<Address>,
    /// `ip link set … group`.
    pub group: u32,
    /// `ip link set … alias`.
    pub alias: Option<String>,
    /// `ip link set … txqueuelen`.
    pub txqlen: u32,
}

/// What the packets' side has to know of a change.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Delta {
    /// A route comes, in front of its equals or behind them.
    AddRoute {
        /// Its table.
        table: TableId,
        /// The route.
        route: Route,
        /// Whether it stands in front.
        ahead: bool,
    },
    /// A route goes.
    RemoveRoute {
        /// Its table.
        table: TableId,
        /// The route.
        route: Route,
    },
    /// A route takes the place of another with its prefix and metric.
    ReplaceRoute {
        /// Their table.
        table: TableId,
        /// The one that goes.
        old: Route,
        /// The one that comes.
        new: Route,
    },
    /// A link gets an address. The routes that this makes come by themselves.
    AddAddress(LinkId, IfAddr),
    /// A link loses an address.
    RemoveAddress(LinkId, IfAddr),
}

/// Tables by the order in which Linux lists them: `id` modulo 256, and of those the one that was made last.
type Tables = BTreeMap<(u8, std::cmp::Reverse<u64>), (u32, Table)>;

/// Links, addresses, routes.
#[derive(Clone, Debug, Default)]
pub struct Model {
    links: BTreeMap<u32, Link>,
    last_index: u32,
    v4: Family,
    v6: Family,
    /// Counts changes of links and addresses.
    generation: u32,
    deltas: Vec<Delta>,
    /// Whether routes, links or addresses have changed since the model was read from a file.
    changed: bool,
}

#[derive(Clone, Debug, Default)]
struct Family {
    tables: Tables,
    made: u64,
}

impl Family {
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

impl Model {
    /// Becomes what a file says: its links, which have been opened and are up, and its routes. `ids` are the links' numbers,
    /// `now` is what was opened, and `last_index` the highest number that a link has ever had. A route to a link that is
    /// not there is left out; [`Config::from_toml`] lets none pass.
    pub fn read(&mut self, config: &Config, ids: &[LinkId], now: &[LinkNow], last_index: u32) {
        let generation = self.generation.wrapping_add(1);
        *self = Self { last_index, generation, ..Self::default() };
        for (config, id) in config.links.iter().zip(ids) {
            let Some(now) = now.iter().find(|now| now.id == *id) else { continue };
            let link = Link {
                config: config.clone(),
                mtu: now.mtu,
                mac: now.mac,
                up: true,
                addresses: Vec::new(),
                group: 0,
                alias: None,
                txqlen: 1000,
            };
            self.links.insert(id.0, link);
            for addr in config.own_addresses() {
                self.add_address(id.0, Address::of(addr));
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
            let entry = Route { prefix, kind, metric, scope, protocol, dev, via, src, onlink };
            self.insert_route(route.table.0, entry, false);
        }
        self.deltas.clear();
        self.changed = false;
    }

    /// Whether something has changed since it was read from a file.
    pub const fn has_changed(&self) -> bool {
        self.changed
    }

    /// What the packets' side is to be told, in order. Empties the list.
    pub fn take_deltas(&mut self) -> std::vec::Drain<'_, Delta> {
        self.deltas.drain(..)
    }

    /// Counts changes of links and addresses.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// The links behind number `after`, by number.
    pub fn links_after(&self, after: u32) -> impl Iterator<Item = (u32, &Link)> {
        self.links.range(after.saturating_add(1)..).map(|(&index, link)| (index, link))
    }

    /// The link of that number.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.get(&index)
    }

    /// The number of the link of that name.
    pub fn index_of(&self, name: &str) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.config.name == name).map(|(&index, _)| index)
    }

    /// The highest number that a link has ever had.
    pub const fn last_index(&self) -> u32 {
        self.last_index
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

    /// Adds a route, and tells.
    pub(super) fn insert_route(&mut self, table: u32, route: Route, ahead: bool) {
        self.deltas.push(Delta::AddRoute { table: TableId(table), route: route.clone(), ahead });
        self.family_mut(route.prefix.is_ipv4()).get_or_make(table).insert(route, ahead);
        self.changed = true;
    }

    /// Gives a link an address, with the routes that this makes.
    pub(super) fn add_address(&mut self, index: u32, address: Address) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let (addr, len) = (address.addr, address.len);
        self.deltas.push(Delta::AddAddress(LinkId(index), addr));
        self.changed = true;
        self.generation = self.generation.wrapping_add(1);
        link.addresses.push(address);
        let (own, prefix) = (addr.addr(), addr.prefix());
        let v4 = own.is_ipv4();
        let src = v4.then_some(own);
        let base = Route {
            prefix: Prefix::host(own),
            kind: RTN_LOCAL,
            metric: 0,
            scope: if v4 { RT_SCOPE_HOST } else { RT_SCOPE_UNIVERSE },
            protocol: RTPROT_KERNEL,
            dev: index,
            via: None,
            src,
            onlink: false,
        };
        let scope = if v4 { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
        self.insert_route(RT_TABLE_LOCAL, base.clone(), false);
        if !v4 || !prefix.is_host() {
            let metric = if v4 { 0 } else { METRIC_V6_CONNECTED };
            self.insert_route(RT_TABLE_MAIN, Route { prefix, kind: RTN_UNICAST, scope, metric, ..base.clone() }, false);
        }
        if let IpAddr::V4(first) = prefix.addr()
            && len < 31
        {
            let last = Ipv4Addr::from_bits(first.to_bits() | u32::MAX >> len);
            let broadcast = Route { prefix: Prefix::host(last.into()), kind: RTN_BROADCAST, scope, ..base };
            self.insert_route(RT_TABLE_LOCAL, broadcast, false);
        }
    }
}

/// Metric of an IPv6 route that was added without one (`IP6_RT_PRIO_USER`).
pub(super) const METRIC_V6_USER: u32 = 1024;
/// Metric of a connected IPv6 route (`IP6_RT_PRIO_ADDRCONF`).
pub(super) const METRIC_V6_CONNECTED: u32 = 256;

impl Address {
    /// `addr` as a file names it.
    pub fn of(addr: IfAddr) -> Self {
        let scope = match addr.addr() {
            IpAddr::V6(addr) if addr.is_unicast_link_local() => RT_SCOPE_LINK,
            IpAddr::V6(addr) if addr.is_loopback() => RT_SCOPE_HOST,
            _ => RT_SCOPE_UNIVERSE,
        };
        Self {
            addr,
            len: addr.prefix().len(),
            peer: None,
            broadcast: None,
            label: None,
            scope,
            flags: IFA_F_PERMANENT,
            metric: 0,
            protocol: 0,
        }
    }
}

impl Link {
    /// What it would be made from again.
    pub fn to_config(&self) -> LinkConfig {
        let bound = match self.config.kind {
            LinkKind::Udp { bind } => Some(IfAddr::host(bind.ip())),
            _ => None,
        };
        let addresses = self.addresses.iter().map(|address| address.addr).filter(|addr| Some(*addr) != bound);
        LinkConfig { addresses: addresses.collect(), ..self.config.clone() }
    }

    /// Its `IFF_*` flags.
    pub fn flags(&self, running: bool) -> u32 {
        let kind = match self.config.kind {
            LinkKind::Tap { .. } | LinkKind::Packet { .. } | LinkKind::Xdp { .. } => IFF_BROADCAST | IFF_MULTICAST,
            LinkKind::Tun { .. } => IFF_POINTOPOINT | IFF_NOARP | IFF_MULTICAST,
            LinkKind::Udp { .. } => IFF_POINTOPOINT | IFF_NOARP,
        };
        match (self.up, running) {
            (true, true) => kind | IFF_UP | IFF_RUNNING | IFF_LOWER_UP,
            (true, false) => kind | IFF_UP,
            (false, _) => kind,
        }
    }
}

//! Addresses of links, and the routes that are added and removed with them.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv6Addr};

use base::{IfAddr, PortId, Prefix};

use super::{Delta, LOOPBACK, Model};
use crate::rtnl::entry::{Address, Link, METRIC_V6_CONNECTED, loopback_addresses};
use crate::rtnl::lifetime::Lifetime;
use crate::rtnl::nums::*;
use crate::rtnl::table::Route;

impl Model {
    /// Adds an address to a link, with its routes. The position in the list is Linux's: IPv4 primaries before
    /// secondaries, primaries of narrower scopes first and in the order of addition; IPv6 newest first.
    pub(in crate::rtnl) fn add_address(&mut self, index: u32, address: Address) {
        self.touch();
        let Some(link) = self.links.get_mut(&index) else { return };
        let all = &mut link.addresses;
        let at = match (address.addr.addr().is_ipv4(), address.is_secondary()) {
            (true, true) => all.len(),
            (true, false) => {
                let before = |other: &Address| other.is_primary_v4() && other.scope >= address.scope;
                all.iter().rposition(before).map_or(0, |last| last + 1)
            }
            (false, _) => all
                .iter()
                .position(|other| !other.addr.addr().is_ipv4() && other.scope >= address.scope)
                .unwrap_or(all.len()),
        };
        all.insert(at, address.clone());
        self.note_expiry(&address);
        self.deltas.push(Delta::AddAddress(PortId(index), address.clone()));
        self.add_address_routes(index, &address);
        // `fib_inetaddr_event`: the paths that were lost with the last address.
        let is_v4 = |address: &&Address| address.addr.addr().is_ipv4();
        let is_first = |link: &Link| link.up && link.addresses.iter().filter(is_v4).count() == 1;
        if address.addr.addr().is_ipv4() && self.links.get(&index).is_some_and(is_first) {
            self.mark_paths(true, index, false);
        }
    }

    /// Removes addresses whose valid lifetime has ended, and marks addresses as deprecated whose preferred lifetime has
    /// ended.
    pub(in crate::rtnl) fn expire_addresses(&mut self) {
        let now = self.now;
        let due = |model: &Self| {
            model.links.iter().find_map(|(&index, link)| {
                let mut each = link.addresses.iter().enumerate();
                let found = each.find(|(_, address)| address.next_change().is_some_and(|end| end <= now));
                found.map(|(at, address)| (index, at, address.clone()))
            })
        };
        while let Some((index, at, address)) = due(self) {
            if address.lifetime.has_ended(now) {
                self.remove_address(index, at);
            } else {
                let flags = address.flags | IFA_F_DEPRECATED;
                self.change_address(index, at, Address { flags, ..address });
            }
        }
        let all = self.links.values().flat_map(|link| &link.addresses);
        self.next_expiry = all.filter_map(Address::next_change).min();
    }

    /// Updates the next end of a lifetime.
    fn note_expiry(&mut self, address: &Address) {
        self.next_expiry = self.next_expiry.into_iter().chain(address.next_change()).min();
    }

    /// Links of group `group`.
    pub(in crate::rtnl) fn of_group(&self, group: u32) -> Vec<u32> {
        self.links.iter().filter(|(_, link)| link.group == group).map(|(&index, _)| index).collect()
    }

    /// Changes the properties of an address. A new metric also changes its routes (Linux `fib_modify_prefix_metric`);
    /// for IPv6, a new peer or `IFA_F_NOPREFIXROUTE` may as well (`inet6_addr_modify`).
    pub(in crate::rtnl) fn change_address(&mut self, index: u32, at: usize, address: Address) {
        self.touch();
        let Some(link) = self.links.get_mut(&index) else { return };
        let Some(there) = link.addresses.get_mut(at) else { return };
        let before = std::mem::replace(there, address.clone());
        let link = link.clone();
        self.note_expiry(&address);
        let makes = |it: &Address| (it.peer, it.flags & IFA_F_NOPREFIXROUTE);
        let v4 = address.addr.addr().is_ipv4();
        if before.metric != address.metric || (!v4 && makes(&before) != makes(&address)) {
            self.add_address_routes(index, &address);
            let needed: Vec<_> = link.addresses.iter().flat_map(|other| other.routes(index, &link)).collect();
            for (table, route) in before.routes(index, &link) {
                if !needed.contains(&(table, route.clone())) {
                    self.remove_equal(table, &route);
                }
            }
        }
        self.deltas.push(Delta::ChangeAddress(PortId(index), address));
    }

    /// Removes one route, if present.
    fn remove_equal(&mut self, table: u32, route: &Route) {
        let v4 = route.prefix.is_ipv4();
        let of = self.table(v4, table);
        let key = of.and_then(|of| of.exact(route.prefix).find(|(_, there)| *there == route)).map(|(key, _)| key);
        if let Some(key) = key {
            self.remove_route(v4, table, key);
        }
    }

    /// Adds the routes of an address (Linux `fib_add_ifaddr`, `addrconf_prefix_route`): the local route, and if the
    /// link is up the connected route and the subnet's broadcast routes.
    fn add_address_routes(&mut self, index: u32, address: &Address) {
        let Some(link) = self.links.get(&index) else { return };
        let up = link.up;
        let itself = Prefix::host(address.addr.addr());
        for (table, route) in address.routes(index, link) {
            if up || (route.kind == RTN_LOCAL && route.prefix == itself) {
                self.ensure_route(table, route);
            }
        }
    }

    /// Removes the address at position `at` of a link's list, with the routes that no other address needs; removal of a
    /// primary also removes the secondaries of its subnet (Linux `inet_del_ifa`, without `promote_secondaries`).
    pub(in crate::rtnl) fn remove_address(&mut self, index: u32, at: usize) {
        self.touch();
        let Some(link) = self.links.get_mut(&index).filter(|link| at < link.addresses.len()) else { return };
        let first = link.addresses.remove(at);
        let mut gone = vec![first.clone()];
        if first.is_primary_v4() {
            let (going, staying) = link
                .addresses
                .drain(..)
                .partition(|other: &Address| other.is_secondary() && other.in_subnet_of(&first));
            link.addresses = staying;
            gone.extend::<Vec<_>>(going);
        }
        let link = link.clone();
        // The last address is removed first, as in Linux.
        for address in gone.iter().rev() {
            self.deltas.push(Delta::RemoveAddress(PortId(index), address.clone()));
            let needed: Vec<_> = link.addresses.iter().flat_map(|other| other.routes(index, &link)).collect();
            // A secondary's routes have the primary as their source.
            let as_was = Link { addresses: [gone.as_slice(), &link.addresses].concat(), ..link.clone() };
            let mut routes = address.routes(index, &as_was);
            if address.addr.addr().is_ipv4() {
                // The connected route is removed first, and the local one last (`fib_del_ifaddr`).
                routes
                    .sort_by_key(|(_, route)| [RTN_UNICAST, RTN_BROADCAST].iter().position(|&kind| kind == route.kind));
                let first = routes.partition_point(|(_, route)| route.kind == RTN_LOCAL);
                routes.rotate_left(first);
            }
            for (table, route) in routes {
                let alike = |(other_table, other): &(u32, Route)| {
                    *other_table == table && other.prefix == route.prefix && other.kind == route.kind
                };
                if needed.iter().any(alike) {
                    continue;
                }
                self.remove_equal(table, &route);
            }
            // Routes with the address as source are removed, too, in the main table of the link's domain
            // (`fib_sync_down_addr`).
            let (own, main) = (address.addr.addr(), link.l3_table().unwrap_or(RT_TABLE_MAIN));
            let of_table = |table| table == main || !own.is_ipv4();
            self.remove_routes(own.is_ipv4(), |table, route| {
                of_table(table) && route.src == Some(own) && route.kind != RTN_LOCAL
            });
        }
        // Without an IPv4 address, a link has no IPv4 routes (`fib_inetaddr_event`).
        if first.addr.addr().is_ipv4() && !link.addresses.iter().any(|address| address.addr.addr().is_ipv4()) {
            self.mark_paths(true, index, true);
            self.remove_routes(true, |_, route| is_lost(route, index));
        }
    }

    /// Sets a link up or down, with its routes and addresses: when down, only IPv4's local routes stay, and IPv6
    /// addresses are removed; when up, addresses add their routes again.
    pub(in crate::rtnl) fn set_up(&mut self, index: u32, up: bool) {
        self.touch();
        let Some(link) = self.links.get_mut(&index) else { return };
        (link.up, link.was_up) = (up, link.was_up || up);
        self.record_vrf(index);
        if up {
            let Some(link) = self.links.get(&index).cloned() else { return };
            link.addresses.iter().for_each(|address| self.add_address_routes(index, address));
            [true, false].into_iter().for_each(|v4| self.mark_paths(v4, index, false));
            if link.is_loopback() {
                self.add_loopback_addresses(&link);
            } else {
                self.ensure_multicast(index);
            }
            return;
        }
        [true, false].into_iter().for_each(|v4| self.mark_paths(v4, index, true));
        self.remove_routes(true, |_, route| is_lost(route, index) && route.scope != RT_SCOPE_HOST);
        self.clear_v6(index);
    }

    /// Removes all addresses and routes of a link that is down, in the order of Linux's `NETDEV_UNREGISTER`
    /// (`inetdev_destroy`, `addrconf_ifdown`).
    pub(in crate::rtnl) fn clear_link(&mut self, index: u32) {
        let Some(link) = self.links.get_mut(&index) else { return };
        let was = link.clone();
        link.addresses.retain(|address| !address.addr.addr().is_ipv4());
        let mut gone = HashSet::new();
        for address in was.addresses.iter().filter(|address| address.addr.addr().is_ipv4()) {
            let own = address.addr.addr();
            gone.insert(own);
            self.deltas.push(Delta::RemoveAddress(PortId(index), address.clone()));
            // A secondary's route has the primary as its source, and is removed with the primary, without a
            // notification.
            let derived = address.routes(index, &was).into_iter().filter(|(_, route)| route.src == Some(own));
            derived.for_each(|(table, route)| self.remove_equal(table, &route));
        }
        // `fib_sync_down_addr`, `fib_disable_ip`.
        let main = was.l3_table().unwrap_or(RT_TABLE_MAIN);
        let by_source = |route: &Route| route.kind != RTN_LOCAL && route.src.is_some_and(|src| gone.contains(&src));
        self.remove_routes(true, |table, route| route.is_by(index) || table == main && by_source(route));
        self.drop_paths(index);
        self.clear_v6(index);
    }

    /// Removes a link's IPv6 routes, then its IPv6 addresses.
    fn clear_v6(&mut self, index: u32) {
        self.touch();
        let Some(link) = self.links.get_mut(&index) else { return };
        let (staying, going) = link.addresses.drain(..).partition(|address: &Address| address.addr.addr().is_ipv4());
        link.addresses = staying;
        self.remove_routes(false, |_, route| is_lost(route, index));
        going.into_iter().for_each(|address| self.deltas.push(Delta::RemoveAddress(PortId(index), address)));
    }

    /// Sets `lo` up with the addresses of a file, if there are any.
    pub(super) fn add_loopback(&mut self, addresses: &[IfAddr]) {
        if addresses.is_empty() {
            return;
        }
        self.set_up(LOOPBACK, true);
        for &addr in addresses {
            let address = self.new_address(LOOPBACK, addr);
            self.add_address(LOOPBACK, address);
        }
    }

    /// Adds the default addresses of `lo`, unless present.
    fn add_loopback_addresses(&mut self, lo: &Link) {
        for mut address in loopback_addresses() {
            let own = address.addr.addr();
            let is_there = |other: &Address| match own {
                IpAddr::V4(_) => other.addr == address.addr,
                IpAddr::V6(_) => other.addr.addr() == own,
            };
            if !lo.addresses.iter().any(is_there) {
                if lo.addresses.iter().any(|other| other.is_primary_v4() && other.in_subnet_of(&address)) {
                    address.flags |= IFA_F_SECONDARY;
                }
                self.add_address(LOOPBACK, address);
            }
        }
    }

    /// Adds the IPv6 multicast route of a link that is up, for listing, as Linux does; a VRF's device has none.
    /// Forwarding of multicast packets does not use it.
    pub(super) fn ensure_multicast(&mut self, index: u32) {
        let Some(link) = self.links.get(&index).filter(|link| !link.is_vrf()) else { return };
        self.ensure_route(link.l3_table().unwrap_or(RT_TABLE_LOCAL), multicast_v6(index));
    }

    /// New address of a link, with Linux's defaults.
    pub(in crate::rtnl) fn new_address(&self, index: u32, addr: IfAddr) -> Address {
        let scope = match addr.addr() {
            IpAddr::V6(addr) if addr.is_unicast_link_local() => RT_SCOPE_LINK,
            IpAddr::V6(addr) if addr.is_loopback() => RT_SCOPE_HOST,
            _ => RT_SCOPE_UNIVERSE,
        };
        let (peer, broadcast, label, flags, metric, protocol) = (None, None, None, IFA_F_PERMANENT, 0, 0);
        let lifetime = Lifetime::default();
        let mut address = Address { addr, peer, broadcast, label, scope, flags, metric, protocol, lifetime };
        let others = self.links.get(&index).map(|link| link.addresses.as_slice()).unwrap_or_default();
        if others.iter().any(|other| other.is_primary_v4() && other.in_subnet_of(&address)) {
            address.flags |= IFA_F_SECONDARY;
        }
        address
    }
}

/// Whether a route has no path but by a link that is down.
pub(super) fn is_lost(route: &Route, index: u32) -> bool {
    match &route.paths {
        Some(paths) => paths.iter().all(|path| path.dead || path.dev == index),
        None => route.dev == index,
    }
}

fn multicast_v6(index: u32) -> Route {
    let prefix = Prefix::containing(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8).unwrap_or(Prefix::ANY_V6);
    let (scope, protocol, metric) = (RT_SCOPE_UNIVERSE, RTPROT_KERNEL, METRIC_V6_CONNECTED);
    Route {
        prefix,
        kind: RTN_MULTICAST,
        metric,
        scope,
        protocol,
        dev: index,
        via: None,
        src: None,
        onlink: false,
        encap: None,
        paths: None,
    }
}

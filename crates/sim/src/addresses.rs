//! Addresses of a simulated node's links, with their routes.

use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, PortId, Prefix, TableId};
use fib::{Fib, Route, RouteKind};

/// Addition of an address with its routes. In a gateway, netlink's model makes the routes.
pub trait AddAddress {
    /// Adds `addr` to `dev`: a local route to the address, a connected route to its subnet, and an IPv4 broadcast route
    /// to the last address of a subnet that has hosts, or an IPv6 anycast route to the first. Several links may share a
    /// subnet; the first link's route is used. Routes of a link in a VRF are added to the VRF's table.
    fn add_address(&mut self, dev: PortId, addr: IfAddr);
}

impl AddAddress for Fib {
    fn add_address(&mut self, dev: PortId, addr: IfAddr) {
        let table = self.vrf_table(self.domain(dev));
        let [locals, on_links] = [TableId::LOCAL, TableId::MAIN].map(|usual| table.unwrap_or(usual));
        let to = |prefix, kind| Route { prefix, kind, metric: 0 };
        let local = to(Prefix::host(addr.addr()), RouteKind::Local { dev });
        let broadcast = subnet_broadcast(addr).map(|last| to(Prefix::host(last.into()), RouteKind::Broadcast { dev }));
        let anycast = addr.subnet_router_anycast().map(|first| to(Prefix::host(first), RouteKind::Anycast { dev }));
        let prefix = addr.prefix();
        let metric = if prefix.is_ipv4() { 0 } else { 256 };
        let connected = Route { metric, ..to(prefix, RouteKind::Unicast { via: None, dev }) };
        let connected = (!prefix.is_host()).then_some((on_links, connected));
        let at_node = [Some(local), broadcast, anycast].into_iter().flatten().map(|route| (locals, route));
        for new in at_node.chain(connected) {
            if !self.routes().any(|(table, route)| (table, *route) == new) {
                self.insert(new.0, new.1, false);
            }
        }
        if !self.addresses(dev).any(|own| own == addr) {
            self.set_address(dev, addr, true);
        }
    }
}

/// The broadcast address of an IPv4 subnet; `None` for a /31 (RFC 3021) and a single address.
fn subnet_broadcast(addr: IfAddr) -> Option<Ipv4Addr> {
    let prefix = addr.prefix();
    match prefix.addr() {
        IpAddr::V4(first) if prefix.len() < 31 => Some(Ipv4Addr::from_bits(first.to_bits() | u32::MAX >> prefix.len())),
        _ => None,
    }
}

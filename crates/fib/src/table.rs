//! One routing table: a prefix trie per address family.

use std::net::IpAddr;

use base::{PortId, Prefix};
use prefix_trie::PrefixMap;

use crate::paths::PathSets;
use crate::route::{Route, RouteKind};

/// Routes by prefix. Routes of one prefix are sorted by metric, smallest first, then by age, oldest first.
#[derive(Clone, Default)]
pub(crate) struct Table {
    v4: PrefixMap<(u32, u8), Vec<Route>>,
    v6: PrefixMap<(u128, u8), Vec<Route>>,
}

impl Table {
    /// The best route of the longest prefix that contains `dst`. With `oif`, only routes on that link and routes
    /// without a link (Linux's `fib_table_lookup` and `fib_lookup_good_nhc`).
    pub(crate) fn lookup(&self, paths: &PathSets, dst: IpAddr, oif: Option<PortId>) -> Option<&Route> {
        match (dst, oif) {
            (IpAddr::V4(dst), None) => self.v4.get_lpm(&(dst.to_bits(), 32))?.1.first(),
            (IpAddr::V6(dst), None) => self.v6.get_lpm(&(dst.to_bits(), 128))?.1.first(),
            (IpAddr::V4(dst), Some(oif)) => longest_by(paths, self.v4.cover_values(&(dst.to_bits(), 32)), oif),
            (IpAddr::V6(dst), Some(oif)) => longest_by(paths, self.v6.cover_values(&(dst.to_bits(), 128)), oif),
        }
    }

    /// The routes of exactly this prefix.
    pub(crate) fn exact(&self, prefix: Prefix) -> &[Route] {
        let routes = match prefix.addr() {
            IpAddr::V4(addr) => self.v4.get(&(addr.to_bits(), prefix.len())),
            IpAddr::V6(addr) => self.v6.get(&(addr.to_bits(), prefix.len())),
        };
        routes.map(Vec::as_slice).unwrap_or_default()
    }

    /// Adds a route after those of its prefix with the same or a smaller metric.
    pub(crate) fn insert(&mut self, route: Route) {
        let routes = self.routes_to(route.prefix);
        let at = routes.partition_point(|other| other.metric <= route.metric);
        routes.insert(at, route);
    }

    /// Adds a route before those of its prefix with the same or a larger metric.
    pub(crate) fn insert_ahead(&mut self, route: Route) {
        let routes = self.routes_to(route.prefix);
        let at = routes.partition_point(|other| other.metric < route.metric);
        routes.insert(at, route);
    }

    /// The first route equal to `route`.
    pub(crate) fn find(&mut self, route: &Route) -> Option<&mut Route> {
        let len = route.prefix.len();
        let routes = match route.prefix.addr() {
            IpAddr::V4(addr) => self.v4.get_mut(&(addr.to_bits(), len)),
            IpAddr::V6(addr) => self.v6.get_mut(&(addr.to_bits(), len)),
        };
        routes?.iter_mut().find(|other| *other == route)
    }

    /// Removes the first route equal to `route`.
    pub(crate) fn remove(&mut self, route: &Route) -> bool {
        let (prefix, routes) = (route.prefix, self.routes_to(route.prefix));
        let found = routes.iter().position(|other| other == route).map(|at| routes.remove(at));
        if routes.is_empty() {
            match prefix.addr() {
                IpAddr::V4(addr) => drop(self.v4.remove(&(addr.to_bits(), prefix.len()))),
                IpAddr::V6(addr) => drop(self.v6.remove(&(addr.to_bits(), prefix.len()))),
            }
        }
        found.is_some()
    }

    fn routes_to(&mut self, prefix: Prefix) -> &mut Vec<Route> {
        match prefix.addr() {
            IpAddr::V4(addr) => self.v4.entry((addr.to_bits(), prefix.len())).or_default(),
            IpAddr::V6(addr) => self.v6.entry((addr.to_bits(), prefix.len())).or_default(),
        }
    }

    /// All routes, IPv4 first, by prefix.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Route> {
        self.v4.values().flatten().chain(self.v6.values().flatten())
    }
}

/// The last route on `oif` in `covering`, which is sorted by prefix length.
fn longest_by<'a>(paths: &PathSets, covering: impl Iterator<Item = &'a Vec<Route>>, oif: PortId) -> Option<&'a Route> {
    let by_oif = |kind: RouteKind| match kind {
        RouteKind::Paths(id) => paths.hops(id).iter().any(|hop| hop.dev == oif),
        other => other.dev().is_none_or(|dev| dev == oif),
    };
    covering.filter_map(|routes| routes.iter().find(|route| by_oif(route.kind))).last()
}

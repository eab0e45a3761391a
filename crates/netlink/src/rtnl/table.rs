//! Routing table of one family, with its routes in Linux's listing order.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;

use base::{Prefix, path_of};
use ila::RouteEncap;

use super::nums::*;

/// One of several paths of a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NextHop {
    /// Number of the output link.
    pub dev: u32,
    /// Gateway.
    pub via: Option<IpAddr>,
    /// As [`Route::onlink`].
    pub onlink: bool,
    /// Share of flows: 1 to 256.
    pub weight: u16,
    /// Whether its link is down, so that packets take the other paths.
    pub dead: bool,
}

/// Route with all its properties.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Route {
    /// Destinations.
    pub prefix: Prefix,
    /// Action on packets: `RTN_*`.
    pub kind: u8,
    /// Metric: among routes to one prefix the smallest wins.
    pub metric: u32,
    /// Distance: `RT_SCOPE_*`.
    pub scope: u8,
    /// Origin: `RTPROT_*`.
    pub protocol: u8,
    /// Number of the output link; 0 for none. Of a route with several paths, the first one's that is not dead; so is the gateway.
    pub dev: u32,
    /// Gateway.
    pub via: Option<IpAddr>,
    /// Preferred source address of the node's own packets.
    pub src: Option<IpAddr>,
    /// Whether `via` is on the link without a check against the link's subnets (`onlink`).
    pub onlink: bool,
    /// ILA translation of destinations.
    pub encap: Option<RouteEncap>,
    /// The paths, if there are several, and one of IPv6 with a weight.
    pub paths: Option<Arc<[NextHop]>>,
}

/// Position of a route in its table.
///
/// IPv4 is listed by address, and for one address the longest prefix first (Linux `fib_trie`). IPv6 is listed in the
/// order of its tree walk, longer prefixes before the prefix that contains them: by the prefix's last address.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Key {
    addr: u128,
    /// Number of bits behind the prefix.
    open: u8,
    metric: u32,
    /// Order among routes with one metric, ascending.
    rank: i64,
}

/// The routes of one table and family.
#[derive(Clone, Debug, Default)]
pub struct Table {
    routes: BTreeMap<Key, Route>,
    /// Number of routes with a prefix of each length.
    lens: BTreeMap<u8, usize>,
}

fn bits(addr: IpAddr) -> (u128, u8) {
    match addr {
        IpAddr::V4(addr) => (addr.to_bits().into(), 32),
        IpAddr::V6(addr) => (addr.to_bits(), 128),
    }
}

/// Part of a [`Key`] that the prefix determines.
fn place(prefix: Prefix) -> (u128, u8) {
    let (addr, width) = bits(prefix.addr());
    let open = width - prefix.len();
    if width == 32 {
        return (addr, open);
    }
    (addr | 1_u128.checked_shl(open.into()).map_or(u128::MAX, |bit| bit - 1), open)
}

impl Table {
    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Routes behind `after`, in order.
    pub fn after(&self, after: Option<Key>) -> impl DoubleEndedIterator<Item = (Key, &Route)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.routes.range((from, Bound::Unbounded)).map(|(key, route)| (*key, route))
    }

    /// Routes to exactly this prefix, in ascending order of metric.
    pub fn exact(&self, prefix: Prefix) -> impl DoubleEndedIterator<Item = (Key, &Route)> {
        let (addr, open) = place(prefix);
        let first = Key { addr, open, metric: 0, rank: i64::MIN };
        let last = Key { metric: u32::MAX, rank: i64::MAX, ..first };
        self.routes.range(first..=last).map(|(key, route)| (*key, route))
    }

    /// Routes to exactly this prefix with this metric.
    pub fn equals(&self, prefix: Prefix, metric: u32) -> impl DoubleEndedIterator<Item = (Key, &Route)> {
        let (addr, open) = place(prefix);
        let first = Key { addr, open, metric, rank: i64::MIN };
        self.routes.range(first..=Key { rank: i64::MAX, ..first }).map(|(key, route)| (*key, route))
    }

    /// Adds a route in front of routes with the same prefix and metric, or behind them.
    pub fn insert(&mut self, route: Route, ahead: bool) {
        let rank = {
            let mut equals = self.equals(route.prefix, route.metric).map(|(key, _)| key.rank);
            if ahead { equals.next().map(|rank| rank - 1) } else { equals.next_back().map(|rank| rank + 1) }
        };
        let (addr, open) = place(route.prefix);
        *self.lens.entry(route.prefix.len()).or_default() += 1;
        self.routes.insert(Key { addr, open, metric: route.metric, rank: rank.unwrap_or_default() }, route);
    }

    /// Replaces a route by one with the same prefix and metric.
    pub fn replace(&mut self, key: Key, route: Route) -> Option<Route> {
        self.routes.get_mut(&key).map(|there| std::mem::replace(there, route))
    }

    /// Removes a route.
    pub fn remove(&mut self, key: Key) -> Option<Route> {
        let route = self.routes.remove(&key)?;
        if let Some(count) = self.lens.get_mut(&route.prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lens.remove(&route.prefix.len());
            }
        }
        Some(route)
    }

    /// Looks up the first route of the longest prefix that contains `dst` and has a route that `fits`.
    pub fn lookup(&self, dst: IpAddr, fits: impl Fn(&Route) -> bool) -> Option<&Route> {
        self.lens.keys().rev().find_map(|&len| {
            let prefix = Prefix::containing(dst, len).ok()?;
            self.exact(prefix).map(|(_, route)| route).find(|route| fits(route))
        })
    }
}

impl Route {
    /// Whether the route drops its packets.
    pub const fn is_error(&self) -> bool {
        matches!(self.kind, RTN_BLACKHOLE | RTN_UNREACHABLE | RTN_PROHIBIT | RTN_THROW)
    }

    /// The paths, also if it is one.
    pub fn next_hops(&self) -> Vec<NextHop> {
        let &Self { dev, via, onlink, .. } = self;
        match &self.paths {
            Some(paths) => paths.to_vec(),
            None => vec![NextHop { dev, via, onlink, weight: 1, dead: false }],
        }
    }

    /// The route with these paths, of which there is at least one.
    #[must_use]
    pub fn with_paths(self, paths: &[NextHop]) -> Self {
        let first = paths.iter().find(|path| !path.dead).or(paths.first());
        let Some(&NextHop { dev, via, onlink, .. }) = first else { return self };
        // The weight of a single IPv6 path counts when others join it.
        let is_kept = |path: &NextHop| !self.prefix.is_ipv4() && (path.weight != 1 || path.dead);
        let paths = (paths.len() > 1 || paths.iter().any(is_kept)).then(|| paths.into());
        Self { dev, via, onlink, paths, ..self }
    }

    /// Whether a path of the route leads to that link, also if it is dead.
    pub fn is_by(&self, dev: u32) -> bool {
        match &self.paths {
            Some(paths) => paths.iter().any(|path| path.dev == dev),
            None => self.dev == dev,
        }
    }

    /// Whether packets may take a path to that link.
    pub fn is_alive_by(&self, dev: u32) -> bool {
        match &self.paths {
            Some(paths) => paths.iter().any(|path| path.dev == dev && !path.dead),
            None => self.dev == dev,
        }
    }

    /// The route by the path of a flow with that hash; with `oif`, by one on that link.
    pub fn by_path(&self, hash: u32, oif: Option<u32>) -> Self {
        let Some(paths) = &self.paths else { return self.clone() };
        let usable = |path: &&NextHop| !path.dead && oif.is_none_or(|oif| path.dev == oif);
        let usable: Vec<NextHop> = paths.iter().filter(usable).copied().collect();
        let sum = |sum: &mut u32, path: &NextHop| {
            *sum += u32::from(path.weight);
            Some(*sum)
        };
        let upto: Vec<u32> = usable.iter().scan(0, sum).collect();
        let chosen = usable.get(path_of(hash, &upto)).copied();
        Self { paths: None, ..self.clone() }.with_paths(chosen.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, metric: u32, dev: u32) -> Route {
        let prefix = prefix.parse().unwrap();
        let (kind, scope, protocol) = (RTN_UNICAST, RT_SCOPE_LINK, RTPROT_STATIC);
        Route {
            prefix,
            kind,
            metric,
            scope,
            protocol,
            dev,
            via: None,
            src: None,
            onlink: false,
            encap: None,
            paths: None,
        }
    }

    fn listed(table: &Table) -> Vec<String> {
        table.after(None).map(|(_, route)| format!("{} {} {}", route.prefix, route.metric, route.dev)).collect()
    }

    #[test]
    fn routes_are_listed_in_linuxs_order() {
        let mut v4 = Table::default();
        for (prefix, metric, dev, ahead) in [
            ("10.0.0.0/8", 0, 1, false),
            ("10.0.0.0/16", 0, 1, false),
            ("0.0.0.0/0", 9, 1, false),
            ("0.0.0.0/0", 3, 1, false),
            ("0.0.0.0/0", 3, 2, false),
            ("0.0.0.0/0", 3, 3, true),
            ("9.0.0.0/8", 0, 1, false),
        ] {
            v4.insert(route(prefix, metric, dev), ahead);
        }
        let want = ["0.0.0.0/0 3 3", "0.0.0.0/0 3 1", "0.0.0.0/0 3 2", "0.0.0.0/0 9 1", "9.0.0.0/8 0 1"];
        assert_eq!(listed(&v4), [&want[..], &["10.0.0.0/16 0 1", "10.0.0.0/8 0 1"]].concat());
        let mut v6 = Table::default();
        for prefix in ["::/0", "2001:db8::/32", "2001:db8::/64", "2001:db8:ffff::/48", "fe80::/64", "ffff::/16"] {
            v6.insert(route(prefix, 1024, 1), false);
        }
        let order: Vec<_> = v6.after(None).map(|(_, route)| route.prefix.to_string()).collect();
        assert_eq!(order, ["2001:db8::/64", "2001:db8:ffff::/48", "2001:db8::/32", "fe80::/64", "ffff::/16", "::/0"]);
    }

    #[test]
    fn the_longest_prefix_that_fits_is_found() {
        let mut table = Table::default();
        for (prefix, dev) in [("0.0.0.0/0", 1), ("10.0.0.0/8", 2), ("10.1.0.0/16", 3), ("10.1.2.3/32", 4)] {
            table.insert(route(prefix, 0, dev), false);
        }
        let found = |dst: &str, not: u32| {
            table.lookup(dst.parse().unwrap(), |route| route.dev != not).map_or(0, |route| route.dev)
        };
        let cases =
            [("10.1.2.3", 0, 4), ("10.1.2.3", 4, 3), ("10.1.2.4", 0, 3), ("10.2.0.0", 0, 2), ("11.0.0.0", 0, 1)];
        for (dst, not, want) in cases {
            assert_eq!(found(dst, not), want, "{dst}");
        }
        assert_eq!(found("11.0.0.0", 1), 0);
        let key = table.exact("10.1.0.0/16".parse().unwrap()).next().unwrap().0;
        assert_eq!(table.remove(key).map(|route| route.dev), Some(3));
        assert_eq!((table.remove(key), table.len(), table.lens.len()), (None, 3, 3));
        assert_eq!(table.lookup("10.1.2.4".parse().unwrap(), |_| true).map(|route| route.dev), Some(2));
    }
}

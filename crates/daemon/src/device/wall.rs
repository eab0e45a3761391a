//! Routes that drop packets, each behind a route over a device of the gateway: while the gateway is away the kernel may
//! skip routes over the device (`ignore_routes_with_linkdown`), and the next route would carry the packets in clear.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use base::Prefix;
use netlink::rtnl::nums::{RT_TABLE_LOCAL, RTN_BLACKHOLE, RTN_UNICAST};

use super::WALL_PROTOCOL;
use crate::host::rtnl::HostRoute;

/// A route that drops packets.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Wall {
    pub(super) table: u32,
    pub(super) prefix: Prefix,
    pub(super) metric: u32,
}

/// Walls, each with the numbers of the devices of the routes before it.
pub(super) type Walls = BTreeMap<Wall, BTreeSet<u32>>;

/// Mark of the walls of a gateway, which is not 0 (FNV-1a).
pub(super) fn mark(instance: &str) -> u32 {
    let hash = instance.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.max(1)
}

impl Wall {
    /// The wall that a route of the kernel is, if its mark is `mark`.
    pub(super) fn of(route: &HostRoute, mark: u32) -> Option<Self> {
        let is_wall = is_wall(route) && route.mark == mark;
        is_wall.then_some(Self { table: route.table, prefix: route.prefix, metric: route.metric })
    }

    /// The route of the wall.
    pub(super) fn route(&self, mark: u32) -> HostRoute {
        let Self { table, prefix, metric } = *self;
        let (kind, protocol, src, devices) = (RTN_BLACKHOLE, WALL_PROTOCOL, None, Vec::new());
        HostRoute { table, prefix, metric, kind, protocol, src, devices, mark }
    }
}

/// Whether a route is the wall of a gateway.
pub(super) const fn is_wall(route: &HostRoute) -> bool {
    route.protocol == WALL_PROTOCOL && route.kind == RTN_BLACKHOLE
}

/// Whether a route is a wall of the gateway of that name, and nothing else.
pub(crate) fn is_wall_of(route: &HostRoute, instance: &str) -> bool {
    Wall::of(route, mark(instance)).is_some_and(|wall| wall.route(route.mark) == *route)
}

/// Whether a wall, which is a route, is directly behind one of `routes` over a device with a number of `devices`.
pub(crate) fn has_room_for_wall(wall: &HostRoute, routes: &[HostRoute], devices: &BTreeSet<u32>) -> bool {
    routes.iter().any(|route| {
        (route.table, route.prefix, route.metric.checked_add(1)) == (wall.table, wall.prefix, Some(wall.metric))
            && leads_over(route, devices)
    })
}

/// Whether a wall, which is a route, is one of `routes`.
pub(crate) fn is_present(wall: &HostRoute, routes: &[HostRoute]) -> bool {
    let wanted = Wall::of(wall, wall.mark);
    wanted.is_some() && routes.iter().any(|route| Wall::of(route, wall.mark) == wanted)
}

/// The wall of a gateway behind a route to `prefix` with metric 0 of the main table.
#[cfg(test)]
pub(crate) fn wall_of(instance: &str, prefix: Prefix) -> HostRoute {
    Wall { table: base::TableId::MAIN.0, prefix, metric: 1 }.route(mark(instance))
}

/// Whether a route leads over a device with a number of `devices`. Routes to link-local addresses and groups are left
/// out, which are those of each device.
pub(super) fn leads_over(route: &HostRoute, devices: &BTreeSet<u32>) -> bool {
    let to = route.prefix.addr();
    let is_local = to.is_multicast() || matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
    route.kind == RTN_UNICAST
        && route.table != RT_TABLE_LOCAL
        && !is_local
        && route.devices.iter().any(|index| devices.contains(index))
}

/// Walls for `routes` over `devices`, and routes without room for a wall. `others` are all other routes to the same
/// prefixes but for walls.
///
/// A wall is directly behind a route of ours, before any route of a larger metric that leads elsewhere. Routes of ours
/// with nothing between them share the last one's wall.
pub(super) fn walls(routes: &[HostRoute], others: &[HostRoute]) -> (Walls, Vec<HostRoute>) {
    let key = |route: &HostRoute| (route.table, route.prefix);
    let mut by_key: BTreeMap<_, Vec<(u32, Option<&HostRoute>)>> = BTreeMap::new();
    for route in routes {
        by_key.entry(key(route)).or_default().push((route.metric, Some(route)));
    }
    for other in others {
        if let Some(all) = by_key.get_mut(&key(other)) {
            all.push((other.metric, None));
        }
    }
    let (mut walls, mut open) = (Walls::new(), Vec::new());
    for ((table, prefix), mut all) in by_key {
        // Among equal metrics the kernel takes the first, which is unknown here: ours is the last, with the wall.
        all.sort_by_key(|&(metric, ours)| (metric, ours.is_some()));
        let mut devices = BTreeSet::new();
        for (at, (metric, ours)) in all.iter().enumerate() {
            let Some(route) = ours else { continue };
            devices.extend(route.devices.iter().copied());
            let next = all.get(at + 1);
            if next.is_some_and(|(_, ours)| ours.is_some()) {
                continue;
            }
            let devices = std::mem::take(&mut devices);
            match metric.checked_add(1).filter(|behind| next.is_none_or(|(metric, _)| metric > behind)) {
                Some(metric) => drop(walls.insert(Wall { table, prefix, metric }, devices)),
                None => open.push((*route).clone()),
            }
        }
    }
    (walls, open)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(prefix: &str, metric: u32, index: u32) -> HostRoute {
        let (prefix, src, mark) = (prefix.parse().unwrap(), None, 0);
        HostRoute { table: 254, prefix, metric, kind: RTN_UNICAST, protocol: 3, src, devices: vec![index], mark }
    }

    fn metrics(routes: &[HostRoute], others: &[HostRoute]) -> (Vec<u32>, usize) {
        let (walls, open) = walls(routes, others);
        (walls.keys().map(|wall| wall.metric).collect(), open.len())
    }

    #[test]
    fn wall_is_between_a_route_of_ours_and_the_next_other() {
        let net = "10.2.0.0/24";
        type Metrics = &'static [u32];
        let cases: [(Metrics, Metrics, Metrics, usize); 8] = [
            (&[0], &[], &[1], 0),
            (&[0], &[100], &[1], 0),
            (&[100], &[0], &[101], 0),
            (&[0, 50], &[], &[51], 0),
            (&[0, 50], &[10], &[1, 51], 0),
            (&[0], &[0], &[1], 0),
            (&[0], &[1], &[], 1),
            (&[u32::MAX], &[], &[], 1),
        ];
        for (ours, others, want, open) in cases {
            let of =
                |metrics: &[u32], index| metrics.iter().map(|&metric| route(net, metric, index)).collect::<Vec<_>>();
            assert_eq!(metrics(&of(ours, 7), &of(others, 2)), (want.to_vec(), open), "{ours:?} {others:?}");
        }
        assert_eq!(metrics(&[route(net, 5, 7)], &[route("10.0.0.0/8", 6, 2)]), (vec![6], 0), "another prefix");
    }

    #[test]
    fn wall_has_the_devices_of_the_routes_before_it() {
        let (walls, _) = walls(&[route("::/0", 1024, 7), route("::/0", 2000, 8), route("fd00::/64", 256, 8)], &[]);
        let want = [("::/0", 2001, vec![7, 8]), ("fd00::/64", 257, vec![8])];
        let want = want.map(|(prefix, metric, devices)| {
            let wall = Wall { table: 254, prefix: prefix.parse().unwrap(), metric };
            (wall, devices.into_iter().collect())
        });
        assert_eq!(walls, Walls::from(want));
    }

    #[test]
    fn routes_of_every_device_have_no_wall() {
        let devices = BTreeSet::from([7]);
        assert!(
            leads_over(&route("10.2.0.0/24", 0, 7), &devices) && !leads_over(&route("10.2.0.0/24", 0, 8), &devices)
        );
        for others in ["fe80::/64", "ff00::/8", "224.0.0.0/4"] {
            assert!(!leads_over(&route(others, 0, 7), &devices), "{others}");
        }
        assert!(!leads_over(&HostRoute { table: RT_TABLE_LOCAL, ..route("10.2.0.1/32", 0, 7) }, &devices));
        assert!(!leads_over(&HostRoute { kind: RTN_BLACKHOLE, ..route("10.2.0.0/24", 0, 7) }, &devices));
    }

    #[test]
    fn wall_is_that_of_one_gateway() {
        let wall = Wall { table: 254, prefix: "10.2.0.0/24".parse().unwrap(), metric: 1 };
        let [left, right] = ["left", "right"].map(mark);
        assert_eq!((Wall::of(&wall.route(left), left), Wall::of(&wall.route(left), right)), (Some(wall), None));
        assert_eq!(Wall::of(&HostRoute { protocol: 3, ..wall.route(left) }, left), None);
    }
}

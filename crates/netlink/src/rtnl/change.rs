//! `RTM_NEWROUTE` and `RTM_DELROUTE`: `fib_table_insert` and `fib_table_delete` for IPv4, `fib6_add_rt2node` and
//! `ip6_route_del` for IPv6.

use std::net::{IpAddr, Ipv4Addr};

use base::Prefix;
use ila::RouteEncap;

use super::encap;
use super::entry::{Link, METRIC_V6_USER};
use super::header::{behind, fixed};
use super::model::{LOOPBACK, Model, Told};
use super::nums::*;
use super::route::{LEN, NEXT_HOP_LEN, POLICY};
use super::table::{Key, NextHop, Route};
use crate::attr::{Attr, Attrs, Strictness, parse};
use crate::error::{Error, errno};
use crate::message::{align, flag};
use crate::session::Request;

/// Route of a request.
#[derive(Clone, Debug)]
struct RouteRequest {
    v4: bool,
    prefix: Prefix,
    table: u32,
    kind: u8,
    scope: u8,
    protocol: u8,
    metric: u32,
    dev: u32,
    via: Option<IpAddr>,
    src: Option<IpAddr>,
    onlink: bool,
    encap: Option<RouteEncap>,
    /// Paths, if there are several; those whose link is not known yet have 0.
    paths: Vec<NextHop>,
    /// Whether the request has a list of paths, also of one.
    is_list: bool,
    /// Whether the request restores a saved route.
    restored: bool,
}

/// Limit of paths of a route: with that many its message fits the smallest part of a dump.
const MAX_PATHS: usize = 100;

/// Unsupported attributes of routes, with their error texts.
const UNSUPPORTED: [(u16, &str); 5] = [
    (RTA_METRICS, "fatpath has no route metrics"),
    (RTA_FLOW, "fatpath has no realms"),
    (RTA_EXPIRES, "fatpath has no routes that expire"),
    (RTA_NH_ID, "fatpath has no next hop objects"),
    (RTA_TTL_PROPAGATE, "fatpath has no MPLS"),
];

fn invalid(text: &'static str) -> Error {
    Error::text(errno::EINVAL, text)
}

impl RouteRequest {
    fn of(model: &Model, request: &Request<'_>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let [family, dst_len, src_len, tos, table, protocol, scope, kind, flags @ ..] = *header;
        let v4 = family == AF_INET;
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        if tos & 0x03 != 0 {
            return Err(invalid("Invalid dsfield (tos): ECN bits must be 0"));
        }
        if tos != 0 {
            return Err(Error::unsupported("fatpath has no routes by TOS"));
        }
        if kind > RTN_MAX {
            return Err(invalid("Invalid route type"));
        }
        if src_len != 0 || attrs.get(RTA_SRC).is_some_and(|src| src.data.iter().any(|&byte| byte != 0)) {
            return Err(Error::unsupported("fatpath has no routes by source"));
        }
        let found = UNSUPPORTED.iter().find_map(|&(kind, text)| Some((attrs.get(kind)?, text)));
        if let Some((attr, text)) = found.filter(|(attr, _)| !(attr.kind == RTA_METRICS && attr.data.is_empty())) {
            return Err(Error::unsupported(text).at(attr.offset));
        }
        if attrs.get(RTA_PREF).is_some_and(|pref| pref.u8() != 0) {
            return Err(Error::unsupported("fatpath has no preference among routers"));
        }
        let flags = u32::from_ne_bytes(flags);
        if flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0 {
            return Err(invalid("Invalid rtm_flags - can not contain DEAD or LINKDOWN"));
        }
        let prefix = prefix(&attrs, v4, dst_len)?;
        let number = |kind| attrs.get(kind).map(Attr::u32);
        let table = number(RTA_TABLE).unwrap_or(table.into());
        let paths = attrs.get(RTA_MULTIPATH).map_or(Ok(Vec::new()), |attr| next_hops(model, request, attr, v4))?;
        let encap = encap::read(&attrs, prefix)?;
        if encap.is_some() && !paths.is_empty() {
            return Err(Error::unsupported("fatpath translates on no route with several paths"));
        }
        let dev = number(RTA_OIF).map_or(0, |dev| model.id_of(dev));
        if v4 && dev != 0 && paths.first().is_some_and(|path| path.dev != dev) {
            return Err(invalid("Nexthop device index does not match RTA_OIF"));
        }
        let via = gateway(&attrs, v4)?;
        if v4 && via.is_some() && paths.first().is_some_and(|path| path.via != via) {
            return Err(invalid("Nexthop gateway does not match RTA_GATEWAY or RTA_VIA"));
        }
        let mut paths = paths;
        if !v4 {
            // What the route itself names is that of each path that names none (`ip6_route_multipath_add`).
            for path in &mut paths {
                path.dev = if path.dev == 0 { dev } else { path.dev };
                path.via = path.via.or(via);
            }
        }
        let requested = Self {
            v4,
            prefix,
            table: if table == 0 { RT_TABLE_MAIN } else { table },
            kind,
            scope: if v4 { scope } else { RT_SCOPE_UNIVERSE },
            protocol,
            metric: number(RTA_PRIORITY).unwrap_or_default(),
            dev,
            via,
            src: attrs.get(RTA_PREFSRC).and_then(|attr| attr.ip(v4)).filter(|src| !src.is_unspecified()),
            onlink: flags & RTNH_F_ONLINK != 0,
            encap,
            paths: Vec::new(),
            is_list: !paths.is_empty(),
            restored: request.restored,
        };
        // A list of one is a single path; that of IPv6 keeps its weight for paths that come later.
        Ok(match paths[..] {
            [only] if v4 || only.weight == 1 && !only.dead => requested.by(&only),
            _ => Self { paths, ..requested },
        })
    }

    /// The request for a route by one of its paths alone.
    fn by(&self, path: &NextHop) -> Self {
        let &NextHop { dev, via, onlink, .. } = path;
        Self { dev, via, onlink, paths: Vec::new(), ..self.clone() }
    }

    fn route(&self) -> Route {
        let Self { prefix, kind, metric, scope, protocol, dev, via, src, onlink, encap, .. } = *self;
        Route { prefix, kind, metric, scope, protocol, dev, via, src, onlink, encap, paths: None }
    }
}

/// Paths of a request: each is a `struct rtnexthop` with its attributes (Linux `fib_get_nhs`, `ip6_route_multipath_add`).
fn next_hops(model: &Model, request: &Request<'_>, attr: &Attr<'_>, v4: bool) -> Result<Vec<NextHop>, Error> {
    const SURPLUS: &str = "Invalid nexthop configuration - extra data after nexthop";
    let mut all = Vec::new();
    let mut rest = attr.data;
    while !rest.is_empty() {
        let Some(&[len @ .., flags, hops, i0, i1, i2, i3]) = rest.first_chunk::<NEXT_HOP_LEN>() else {
            return Err(attr.refused(SURPLUS));
        };
        let len = usize::from(u16::from_ne_bytes(len));
        let path = rest.get(..len).filter(|path| path.len() >= NEXT_HOP_LEN).ok_or_else(|| attr.refused(SURPLUS))?;
        let attrs = parse(&path[NEXT_HOP_LEN..], behind(LEN), &POLICY, Strictness::Liberal)?;
        if attrs.get(RTA_ENCAP_TYPE).is_some_and(|kind| kind.u16() != 0) {
            return Err(Error::unsupported("fatpath translates on no route with several paths").at(attr.offset));
        }
        if attrs.get(RTA_FLOW).is_some_and(|realm| realm.u32() != 0) {
            return Err(Error::unsupported("fatpath has no realms").at(attr.offset));
        }
        let flags = u32::from(flags);
        let ifindex = u32::from_ne_bytes([i0, i1, i2, i3]);
        let dev = if ifindex == 0 { 0 } else { model.id_of(ifindex) };
        let is_down = flags & (RTNH_F_DEAD | RTNH_F_LINKDOWN) != 0;
        // A state that is restored has the paths of links that are down.
        if is_down && !request.restored {
            return Err(attr.refused("Invalid flags for nexthop - can not contain DEAD or LINKDOWN"));
        }
        let dead = is_down;
        let onlink = flags & RTNH_F_ONLINK != 0;
        all.push(NextHop { dev, via: gateway(&attrs, v4)?, onlink, weight: u16::from(hops) + 1, dead });
        rest = rest.get(align(len)..).unwrap_or_default();
    }
    match all.len() {
        0 => Err(attr.refused(SURPLUS)),
        len if len > MAX_PATHS => Err(Error::unsupported("fatpath has at most 100 paths of a route").at(attr.offset)),
        _ => Ok(all),
    }
}

/// Route of a request, with the link of each of its paths, each of which `check` has found right.
fn checked(
    model: &Model,
    requested: &RouteRequest,
    check: impl Fn(&Model, &RouteRequest, &mut Route) -> Result<(), Error>,
) -> Result<Route, Error> {
    let mut route = requested.route();
    if requested.is_list && requested.kind != RTN_UNICAST {
        return Err(invalid("Gateway, device and multipath can not be specified for this route type"));
    }
    if requested.paths.is_empty() {
        check(model, requested, &mut route)?;
        return Ok(route);
    }
    let mut paths = Vec::with_capacity(requested.paths.len());
    for path in &requested.paths {
        let one = requested.by(path);
        route = one.route();
        let mut dead = false;
        if requested.restored && path.dev != 0 {
            // It was right when it was added. Since then its link may have lost the address that the gateway is behind.
            let found = model.link(path.dev).ok_or(Error::new(errno::ENODEV))?;
            let has_v4 = || found.addresses.iter().any(|address| address.addr.addr().is_ipv4());
            dead = !found.up || path.dead && requested.v4 && !has_v4();
        } else {
            check(model, &one, &mut route)?;
        }
        paths.push(NextHop { dev: route.dev, dead, ..*path });
    }
    Ok(route.with_paths(&paths))
}

/// Destination of a request.
pub(super) fn prefix<const N: usize>(attrs: &Attrs<'_, N>, v4: bool, len: u8) -> Result<Prefix, Error> {
    let width = if v4 { 32 } else { 128 };
    if len > width {
        return Err(invalid("Invalid prefix length"));
    }
    let any = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
    let addr = match attrs.get(RTA_DST) {
        None => any.addr(),
        // An IPv6 destination may omit the bytes behind the prefix.
        Some(dst) if !v4 && dst.data.len() >= usize::from(len).div_ceil(8) => {
            let mut octets = [0; 16];
            octets.iter_mut().zip(dst.data).for_each(|(to, from)| *to = *from);
            IpAddr::from(octets)
        }
        Some(dst) => dst.ip(v4).ok_or_else(|| Error::new(errno::EINVAL).at(dst.offset))?,
    };
    let found = if v4 { Prefix::new(addr, len) } else { Prefix::containing(addr, len) };
    found.map_err(|_| invalid("Invalid prefix for given prefix length"))
}

/// Next hop of a request.
fn gateway<const N: usize>(attrs: &Attrs<'_, N>, v4: bool) -> Result<Option<IpAddr>, Error> {
    let gateway = attrs.get(RTA_GATEWAY);
    if let Some(via) = attrs.get(RTA_VIA) {
        if !v4 {
            return Err(via.refused("IPv6 does not support RTA_VIA attribute"));
        }
        if gateway.is_some() {
            return Err(invalid("Nexthop configuration can not contain both GATEWAY and VIA"));
        }
        return next_hop_of_any_family(via).map(|addr| Some(addr).filter(|addr| !addr.is_unspecified()));
    }
    let Some(attr) = gateway else { return Ok(None) };
    match attr.ip(v4) {
        Some(addr) if addr.is_unspecified() && !v4 => Err(invalid("Invalid gateway address")),
        Some(addr) => Ok(Some(addr).filter(|addr| !addr.is_unspecified())),
        None => Err(Error::new(errno::EINVAL).at(attr.offset)),
    }
}

/// Parses the next hop of an IPv4 route with its family, `struct rtvia` (Linux `fib_gw_from_via`).
fn next_hop_of_any_family(via: &Attr<'_>) -> Result<IpAddr, Error> {
    let Some((family, addr)) = via.data.split_first_chunk() else {
        return Err(via.refused("Invalid attribute length for RTA_VIA"));
    };
    match u16::from_ne_bytes(*family) {
        family if family == u16::from(AF_INET) => {
            let octets = <[u8; 4]>::try_from(addr).map_err(|_| via.refused("Invalid IPv4 address in RTA_VIA"))?;
            Ok(IpAddr::from(octets))
        }
        family if family == u16::from(AF_INET6) => {
            let octets = <[u8; 16]>::try_from(addr).map_err(|_| via.refused("Invalid IPv6 address in RTA_VIA"))?;
            Ok(IpAddr::from(octets))
        }
        _ => Err(via.refused("Unsupported address family in RTA_VIA")),
    }
}

/// Carries out an `RTM_NEWROUTE`.
pub(super) fn add(model: &mut Model, request: &Request<'_>) -> Result<(), Error> {
    let requested = RouteRequest::of(model, request)?;
    let flags = request.message.header.flags;
    // The table is created even if the route is refused.
    model.make_table(requested.v4, requested.table);
    if requested.v4 { add_v4(model, &requested, flags) } else { add_v6(model, requested, flags) }
}

fn add_v4(model: &mut Model, requested: &RouteRequest, flags: u16) -> Result<(), Error> {
    if requested.scope == RT_SCOPE_HOST && !requested.paths.is_empty() {
        return Err(invalid("Route with host scope can not have multiple nexthops"));
    }
    let route = checked(model, requested, check_v4)?;
    let equals: Vec<(Key, &Route)> = model
        .table(true, requested.table)
        .map(|table| table.equals(route.prefix, route.metric).collect())
        .unwrap_or_default();
    let same = equals.iter().position(|(_, other)| **other == route);
    if let Some(&(first, _)) = equals.first() {
        if flags & flag::EXCL != 0 {
            return Err(Error::new(errno::EEXIST));
        }
        if flags & flag::REPLACE != 0 {
            match same {
                Some(0) => {}
                Some(_) => return Err(Error::new(errno::EEXIST)),
                None => model.replace_route(requested.table, first, route, Told::New { flags: flag::REPLACE, from: 0 }),
            }
            return Ok(());
        }
        if same.is_some() {
            return Err(Error::new(errno::EEXIST));
        }
    }
    if flags & flag::CREATE == 0 {
        return Err(Error::new(errno::ENOENT));
    }
    model.admit_route()?;
    model.insert_route(requested.table, route, flags & flag::APPEND == 0);
    Ok(())
}

/// Checks a route and finds its link, as Linux's `fib_create_info` and `fib_check_nh`.
fn check_v4(model: &Model, requested: &RouteRequest, route: &mut Route) -> Result<(), Error> {
    // `fib_props`: the minimum scope of each route type.
    let least = match requested.kind {
        RTN_LOCAL => RT_SCOPE_HOST,
        RTN_BROADCAST | RTN_ANYCAST => RT_SCOPE_LINK,
        RTN_UNICAST | RTN_MULTICAST | RTN_BLACKHOLE | RTN_UNREACHABLE | RTN_PROHIBIT | RTN_THROW => RT_SCOPE_UNIVERSE,
        _ => RT_SCOPE_NOWHERE,
    };
    if least > requested.scope {
        return Err(invalid("Invalid scope"));
    }
    if matches!(requested.kind, RTN_MULTICAST | RTN_ANYCAST) {
        return Err(Error::unsupported("fatpath has no multicast or anycast routes"));
    }
    if route.is_error() {
        if requested.via.is_some() || requested.dev != 0 {
            return Err(invalid("Gateway, device and multipath can not be specified for this route type"));
        }
        return Ok(());
    }
    if requested.scope > RT_SCOPE_HOST {
        return Err(invalid("Invalid scope"));
    }
    if requested.scope == RT_SCOPE_HOST {
        if requested.via.is_some() {
            return Err(invalid("Route with host scope can not have a gateway"));
        }
        link(model, requested.dev)?;
    } else {
        match requested.via {
            Some(via) if via.is_ipv6() => {
                route.dev = check_gateway_v6(model, requested, via)?;
                if !link(model, route.dev)? {
                    return Err(Error::text(errno::ENETDOWN, "Nexthop device is not up"));
                }
            }
            Some(via) => route.dev = check_gateway_v4(model, requested, via)?,
            None if requested.onlink => {
                return Err(invalid("Invalid flags for nexthop - PERVASIVE and ONLINK can not be set"));
            }
            None if !link(model, requested.dev)? => {
                return Err(Error::text(errno::ENETDOWN, "Device for nexthop is not up"));
            }
            None => {}
        }
    }
    let is_dst = |src| requested.kind == RTN_LOCAL && src == requested.prefix.addr();
    refuse_by_loopback(route)?;
    match requested.src {
        // `fib_valid_prefsrc`.
        Some(src) if !is_dst(src) && ![requested.table, RT_TABLE_LOCAL].iter().any(|&id| is_local(model, id, src)) => {
            Err(invalid("Invalid prefsrc address"))
        }
        _ => Ok(()),
    }
}

/// Refuses a unicast route by `lo`: its packets would loop until their TTL is 0.
fn refuse_by_loopback(route: &Route) -> Result<(), Error> {
    if route.kind == RTN_UNICAST && route.dev == LOOPBACK {
        return Err(Error::unsupported(
            "fatpath sends no packets by lo; use a route of type local for the node itself",
        ));
    }
    Ok(())
}

/// Tells whether the link `index` is up.
fn link(model: &Model, index: u32) -> Result<bool, Error> {
    model.link(index).map(|link| link.up).ok_or(Error::new(errno::ENODEV))
}

/// Number of the table with the local routes of the link `dev`.
fn locals_of(model: &Model, dev: u32) -> u32 {
    model.link(dev).and_then(Link::l3_table).unwrap_or(RT_TABLE_LOCAL)
}

fn is_local(model: &Model, table: u32, addr: IpAddr) -> bool {
    let local = model.table(addr.is_ipv4(), table).and_then(|table| table.lookup(addr, |_| true));
    local.is_some_and(|route| route.kind == RTN_LOCAL)
}

/// Finds the link of the next hop, as Linux's `fib_check_nh_v4_gw`.
fn check_gateway_v4(model: &Model, requested: &RouteRequest, via: IpAddr) -> Result<u32, Error> {
    const TEXT: &str = "Nexthop has invalid gateway";
    if requested.onlink {
        if requested.scope >= RT_SCOPE_LINK {
            return Err(invalid("Nexthop has invalid scope"));
        }
        let up =
            link(model, requested.dev).map_err(|_| Error::text(errno::ENODEV, "Nexthop device required for onlink"))?;
        if !up {
            return Err(Error::text(errno::ENETDOWN, "Nexthop device is not up"));
        }
        // `inet_addr_type_dev_table`: the device selects the table only, so an address of another link is refused, too.
        let own = model.table(true, locals_of(model, requested.dev)).and_then(|table| table.lookup(via, |_| true));
        let is_own = own.is_some_and(|route| matches!(route.kind, RTN_LOCAL | RTN_BROADCAST));
        let is_host = !is_own && !via.is_multicast() && via != IpAddr::V4(Ipv4Addr::BROADCAST);
        return if is_host { Ok(requested.dev) } else { Err(invalid(TEXT)) };
    }
    // The next hop's route needs a narrower scope than the route, at least that of a link.
    let scope = requested.scope.saturating_add(1).max(RT_SCOPE_LINK);
    // `fib_table_lookup` compares the scope before it evaluates the type.
    let fits = |route: &Route| {
        let by = requested.dev == 0 || route.is_by(requested.dev);
        let is_usable = by && model.link(route.dev).is_some_and(|link| link.up);
        route.scope >= scope && (route.is_error() || is_usable)
    };
    let in_table = match requested.table {
        RT_TABLE_MAIN => None,
        table => model.table(true, table).and_then(|table| table.lookup(via, fits)),
    };
    let by_rules = || model.lookup(&model.flow_to(model.domain(requested.dev), via), fits).map(|(_, route)| route);
    // A route of an error type in the route's own table leaves the decision to the rules.
    let found = in_table.filter(|route| !route.is_error()).or_else(by_rules);
    let route = found.ok_or(Error::text(errno::ENETUNREACH, TEXT))?;
    match route.kind {
        RTN_UNICAST | RTN_LOCAL => Ok(if requested.dev == 0 { route.dev } else { requested.dev }),
        RTN_UNREACHABLE => Err(Error::text(errno::EHOSTUNREACH, TEXT)),
        RTN_PROHIBIT => Err(Error::text(errno::EACCES, TEXT)),
        _ => Err(invalid(TEXT)),
    }
}

fn add_v6(model: &mut Model, mut requested: RouteRequest, flags: u16) -> Result<(), Error> {
    if requested.metric == 0 {
        requested.metric = METRIC_V6_USER;
    }
    let route = checked(model, &requested, check_v6)?;
    let paths = route.next_hops();
    let is_twice = |(at, path): (usize, &NextHop)| paths[..at].iter().any(|other| is_same_hop(other, path));
    if paths.iter().enumerate().any(is_twice) {
        return Err(Error::new(errno::EEXIST));
    }
    if paths.len() > 1 && paths.iter().any(|path| path.via.is_none()) {
        return Err(invalid("Device only routes can not be added for IPv6 using the multipath API."));
    }
    insert_v6(model, requested.table, route, flags)
}

/// Whether two paths lead to the same neighbour.
fn is_same_hop(a: &NextHop, b: &NextHop) -> bool {
    (a.dev, a.via) == (b.dev, b.via)
}

/// Whether an IPv6 route may be one of several paths.
fn may_join(route: &Route) -> bool {
    route.kind == RTN_UNICAST && route.via.is_some() && route.encap.is_none()
}

/// Adds an IPv6 route, or its paths to those of the route with its prefix and metric (Linux `fib6_add_rt2node`).
fn insert_v6(model: &mut Model, table: u32, route: Route, flags: u16) -> Result<(), Error> {
    let equals: Vec<(Key, &Route)> =
        model.table(false, table).map(|table| table.equals(route.prefix, route.metric).collect()).unwrap_or_default();
    if let Some(&(first, there)) = equals.first() {
        if flags & flag::EXCL != 0 {
            return Err(Error::new(errno::EEXIST));
        }
        if flags & flag::REPLACE != 0 {
            let alike = equals.iter().find(|(_, other)| may_join(other) == may_join(&route));
            let key = alike.map_or(first, |(key, _)| *key);
            model.replace_route(table, key, route, Told::New { flags: flag::REPLACE, from: 0 });
            return Ok(());
        }
        // Linux compares only the locators of encapsulations (`ila_encap_cmp`).
        let locator = |route: &Route| route.encap.map(|encap| encap.locator);
        let hops = route.next_hops();
        let shares_hop = |other: &Route| {
            locator(other) == locator(&route)
                && other.next_hops().iter().any(|path| hops.iter().any(|own| is_same_hop(own, path)))
        };
        if equals.iter().any(|(_, other)| shares_hop(other)) {
            return Err(Error::new(errno::EEXIST));
        }
        match equals.iter().find(|(_, other)| may_join(other)) {
            Some(&(key, other)) if may_join(&route) => {
                if (other.protocol, other.src) != (route.protocol, route.src) {
                    return Err(Error::unsupported(
                        "fatpath has no paths of one route with several protocols or sources",
                    ));
                }
                let there = other.next_hops();
                if there.len() + hops.len() > MAX_PATHS {
                    return Err(Error::unsupported("fatpath has at most 100 paths of a route"));
                }
                // The message begins with a path that is added alone (`rt6_fill_node`).
                let from = if route.paths.is_some() { 0 } else { there.len() };
                let joined = other.clone().with_paths(&[there, hops].concat());
                let told = Told::New { flags: flags & flag::APPEND, from };
                model.replace_route(table, key, joined, told);
                return Ok(());
            }
            _ if there.via.is_some() && route.via.is_some() => {
                return Err(Error::unsupported("fatpath translates on no route with several paths"));
            }
            _ => {}
        }
    } else if flags & (flag::CREATE | flag::REPLACE) == flag::REPLACE {
        // Linux has a text only if the prefix has no route with another metric; the node of the default prefix always
        // exists.
        let mut others = model.table(false, table).into_iter().flat_map(|table| table.exact(route.prefix));
        return Err(match others.next() {
            Some(_) => Error::new(errno::ENOENT),
            None if route.prefix.len() == 0 => Error::new(errno::ENOENT),
            None => Error::text(errno::ENOENT, "Can not replace route - no match found"),
        });
    }
    model.admit_route()?;
    model.insert_route(table, route, false);
    Ok(())
}

/// Checks a route, as Linux's `ip6_route_info_create` and `fib6_nh_init`.
fn check_v6(model: &Model, requested: &RouteRequest, route: &mut Route) -> Result<(), Error> {
    if requested.dev != 0 {
        let up = link(model, requested.dev)?;
        if requested.onlink && !up {
            return Err(Error::text(errno::ENETDOWN, "Nexthop device is not up"));
        }
    } else if requested.onlink {
        return Err(Error::text(errno::ENODEV, "Nexthop device required for onlink"));
    }
    if matches!(requested.kind, RTN_MULTICAST | RTN_ANYCAST) {
        return Err(Error::unsupported("fatpath has no multicast or anycast routes"));
    }
    if route.encap.is_some() && !matches!(requested.kind, RTN_UNICAST | RTN_LOCAL) {
        return Err(invalid("ILA: only unicast and local routes translate"));
    }
    if route.is_error() {
        (route.dev, route.via, route.onlink) = (LOOPBACK, None, false);
    } else {
        if let Some(via) = requested.via {
            route.dev = check_gateway_v6(model, requested, via)?;
        }
        if !link(model, route.dev)? {
            return Err(Error::text(errno::ENETDOWN, "Nexthop device is not up"));
        }
        refuse_by_loopback(route)?;
    }
    match requested.src {
        Some(src) if !is_local(model, locals_of(model, route.dev), src) => Err(invalid("Invalid source address")),
        _ => Ok(()),
    }
}

/// Checks the next hop, as Linux's `ip6_validate_gw`.
fn check_gateway_v6(model: &Model, requested: &RouteRequest, via: IpAddr) -> Result<u32, Error> {
    let IpAddr::V6(addr) = via else { return Err(invalid("Invalid gateway address")) };
    let is_link_local = addr.is_unicast_link_local();
    // A link-local address is this node's on its own link alone (`ipv6_chk_addr_and_flags`).
    let refuse_own = |dev| {
        let locals = model.table(false, locals_of(model, dev));
        let own = locals.and_then(|table| table.lookup(via, |route| !is_link_local || route.dev == dev));
        match own.is_some_and(|route| route.kind == RTN_LOCAL) {
            true => Err(invalid("Gateway can not be a local address")),
            false => Ok(dev),
        }
    };
    if requested.dev != 0 {
        refuse_own(requested.dev)?;
    }
    if is_link_local {
        return if requested.dev == 0 { Err(invalid("Egress device not specified")) } else { Ok(requested.dev) };
    }
    if addr.is_multicast() {
        return Err(invalid("Invalid gateway address"));
    }
    if requested.onlink {
        return check_onlink_v6(model, requested.dev, via);
    }
    let unreachable = Error::new(errno::EHOSTUNREACH);
    let by = |route: &Route| requested.dev == 0 || route.is_by(requested.dev);
    let in_table = model.table(false, requested.table).and_then(|table| table.lookup(via, by));
    let on_link = |route: &&Route| !is_reject_v6(route) && route.via.is_none();
    let by_rules =
        || model.lookup(&model.flow_to(model.domain(requested.dev), via), by).map(|(_, route)| route).filter(on_link);
    let found = in_table.filter(on_link).or_else(by_rules);
    // The link is known now, so the gateway can be compared with its domain's local addresses.
    let dev = |route: &Route| if requested.dev == 0 { route.dev } else { requested.dev };
    found.map(dev).ok_or(unreachable).and_then(refuse_own)
}

/// Whether an IPv6 route drops its packets: Linux also makes a subnet on `lo` a reject route (`ip6_route_info_create`).
fn is_reject_v6(route: &Route) -> bool {
    route.is_error() || (route.kind == RTN_UNICAST && route.dev == LOOPBACK)
}

/// Checks a next hop with `onlink`, as Linux's `ip6_route_check_nh_onlink`: a route to it, other than the default route,
/// must lead out by the same link.
fn check_onlink_v6(model: &Model, dev: u32, via: IpAddr) -> Result<u32, Error> {
    let table = model.table(false, model.link(dev).and_then(Link::l3_table).unwrap_or(RT_TABLE_MAIN));
    let first = table.and_then(|table| table.lookup(via, |_| true).map(|route| (table, route)));
    let Some((table, first)) = first.filter(|(_, route)| !is_reject_v6(route) && route.prefix.len() > 0) else {
        return Ok(dev);
    };
    // Among routes with one metric, the route by the link is selected (`rt6_score_route`).
    let mut equals = table.equals(first.prefix, first.metric).map(|(_, route)| route);
    match equals.any(|route| route.is_by(dev) && route.kind == RTN_UNICAST) {
        true => Ok(dev),
        false => Err(invalid("Nexthop has invalid gateway or device mismatch")),
    }
}

/// Carries out an `RTM_DELROUTE`.
pub(super) fn remove(model: &mut Model, request: &Request<'_>) -> Result<(), Error> {
    let requested = RouteRequest::of(model, request)?;
    if !model.has_table(requested.v4, requested.table) {
        return Err(Error::text(errno::ESRCH, "FIB table does not exist"));
    }
    if requested.paths.is_empty() || requested.v4 {
        return remove_one(model, &requested);
    }
    // `ip6_route_multipath_del`: all are tried, and the last error is the request's.
    let mut outcome = Ok(());
    for path in &requested.paths {
        outcome = remove_one(model, &requested.by(path)).and(outcome);
    }
    outcome
}

/// Removes the first route that a request names, or, if it names the gateway of one of several paths of an IPv6 route, that path.
fn remove_one(model: &mut Model, requested: &RouteRequest) -> Result<(), Error> {
    let is_hop = |wanted: &NextHop, path: &NextHop| {
        (wanted.dev == 0 || wanted.dev == path.dev) && (wanted.via.is_none() || wanted.via == path.via)
    };
    let &RouteRequest { dev, via, onlink, .. } = requested;
    let wanted = NextHop { dev, via, onlink, weight: 1, dead: false };
    let fits = |route: &Route| {
        let paths = route.next_hops();
        let single = [wanted];
        let list = if requested.paths.is_empty() { &single[..] } else { &requested.paths[..] };
        let by_hop = match (requested.v4, list) {
            // Linux `fib_nh_match` compares the first path with a single one, and each with its own in a list.
            (true, _) if !requested.is_list => paths.first().is_some_and(|path| is_hop(&wanted, path)),
            (true, list) => {
                list.len() == paths.len() && list.iter().zip(&paths).all(|(wanted, path)| is_hop(wanted, path))
            }
            (false, _) => paths.iter().any(|path| is_hop(&wanted, path)),
        };
        let common = by_hop
            && (requested.metric == 0 || requested.metric == route.metric)
            && (requested.protocol == 0 || requested.protocol == route.protocol);
        // IPv6 does not compare the type.
        let v4 = (requested.kind == RTN_UNSPEC || requested.kind == route.kind)
            && (requested.scope == RT_SCOPE_NOWHERE || requested.scope == route.scope)
            && (requested.src.is_none() || requested.src == route.src);
        common && (v4 || !requested.v4)
    };
    let routes =
        || model.table(requested.v4, requested.table).into_iter().flat_map(|table| table.exact(requested.prefix));
    // Without a default route, Linux's IPv6 tree has an entry that cannot be removed (`fib6_null_entry`).
    let is_null = !requested.v4
        && requested.prefix.len() == 0
        && requested.via.is_none()
        && matches!(requested.dev, 0 | LOOPBACK)
        && matches!(requested.metric, 0 | u32::MAX)
        && matches!(requested.protocol, RTPROT_UNSPEC | RTPROT_KERNEL)
        && routes().next().is_none();
    let none = Error::new(if is_null { errno::ENOENT } else { errno::ESRCH });
    let (key, route) = routes().find(|(_, route)| fits(route)).ok_or(none)?;
    match &route.paths {
        Some(paths) if !requested.v4 && requested.via.is_some() => {
            let at = paths.iter().position(|path| is_hop(&wanted, path)).unwrap_or_default();
            let mut rest = paths.to_vec();
            let gone = Box::new(route.clone().with_paths(&[rest.remove(at)]));
            let left = route.clone().with_paths(&rest);
            model.replace_route(requested.table, key, left, Told::Gone(gone));
        }
        _ => model.remove_route(requested.v4, requested.table, key),
    }
    Ok(())
}

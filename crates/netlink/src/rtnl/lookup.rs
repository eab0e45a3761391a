//! `RTM_GETROUTE` without a dump: lookup of the route for one destination (`inet_rtm_getroute`, `inet6_rtm_getroute`).

use std::net::{IpAddr, Ipv4Addr};

use base::{IfIndex, PortId, Prefix, RouteFlow};

use super::backend::Backend;
use super::change::prefix;
use super::encap;
use super::entry::Address;
use super::header::{behind, fixed, strictness};
use super::model::{LOOPBACK, Model};
use super::node::Rtnl;
use super::nums::*;
use super::route::{self, LEN, READ_POLICY};
use super::table::Route;
use crate::attr::{Attr, AttrPolicy, Attrs, Kind, parse, policy};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Reply, Request};

/// Place of `rtm_tos` in `struct rtmsg`.
const TOS_AT: usize = 3;

/// Flags of the route that was found (`RTCF_*`).
const LOCAL: u32 = 0x8000_0000;
const BROADCAST: u32 = 0x1000_0000;

/// Protocols of flows that a lookup accepts.
const IPPROTO_ICMP: u8 = 1;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_ICMPV6: u8 = 58;

/// Attributes of a lookup.
const GETROUTE_ATTRS: AttrPolicy<RTA_MAX> = policy(&[
    (RTA_DST, Kind::Any),
    (RTA_SRC, Kind::Any),
    (RTA_OIF, Kind::Any),
    (RTA_IIF, Kind::Any),
    (RTA_MARK, Kind::Any),
    (RTA_UID, Kind::Any),
    (RTA_IP_PROTO, Kind::Any),
    (RTA_SPORT, Kind::Any),
    (RTA_DPORT, Kind::Any),
]);

/// Linux's error texts for requests of one family.
struct Words {
    header: &'static str,
    values: &'static str,
    flags: &'static str,
    lengths: &'static str,
    attribute: &'static str,
}

/// Error texts of `inet_rtm_valid_getroute_req`.
const WORDS_V4: Words = Words {
    header: "ipv4: Invalid header for route get request",
    values: "ipv4: Invalid values in header for route get request",
    flags: "ipv4: Unsupported rtm_flags for route get request",
    lengths: "ipv4: rtm_src_len and rtm_dst_len must be 32 for IPv4",
    attribute: "ipv4: Unsupported attribute in route get request",
};

/// Error texts of `inet6_rtm_valid_getroute_req`.
const WORDS_V6: Words = Words {
    header: "ipv6: Invalid header for get route request",
    values: "ipv6: Invalid values in header for get route request",
    flags: "ipv6: Invalid flags for get route request",
    lengths: "ipv6: rtm_src_len and rtm_dst_len must be 128 for IPv6",
    attribute: "ipv6: Unsupported attribute in get route request",
};

/// Parses the header and the attributes of a request; a strict request is first checked for unsupported attributes.
fn read<'a>(request: &Request<'a>) -> Result<(bool, u32, Attrs<'a, RTA_MAX>), Error> {
    let v4 = request.payload().first() == Some(&AF_INET);
    let words = if v4 { &WORDS_V4 } else { &WORDS_V6 };
    let refuse_if = |wrong, text| if wrong { Err(Error::text(errno::EINVAL, text)) } else { Ok(()) };
    let (header, rest) = fixed::<LEN>(request).map_err(|_| Error::text(errno::EINVAL, words.header))?;
    let [_, dst_len, src_len, _tos, table, protocol, scope, kind, flags @ ..] = *header;
    let flags = u32::from_ne_bytes(flags);
    let attributes = || parse(rest, behind(LEN), &READ_POLICY, strictness(request));
    if !request.strict {
        return Ok((v4, flags, attributes()?));
    }
    let width = if v4 { 32 } else { 128 };
    let is_prefix = [dst_len, src_len].iter().any(|&len| len != 0 && len != width);
    refuse_if(is_prefix || [table, protocol, scope, kind] != [0; 4], words.values)?;
    let allowed = RTM_F_FIB_MATCH | if v4 { RTM_F_LOOKUP_TABLE | RTM_F_NOTIFY } else { 0 };
    refuse_if(flags & !allowed != 0, words.flags)?;
    let attrs = attributes()?;
    let lens = [(RTA_DST, dst_len), (RTA_SRC, src_len)];
    refuse_if(lens.iter().any(|&(attr, len)| attrs.get(attr).is_some() && len == 0), words.lengths)?;
    refuse_if(attrs.iter().any(|attr| GETROUTE_ATTRS[usize::from(attr.kind)] == Kind::Unknown), words.attribute)?;
    Ok((v4, flags, attrs))
}

/// Checks the protocol of the flow to look up (Linux `rtm_getroute_parse_ip_proto`).
fn check_protocol(attrs: &Attrs<'_, RTA_MAX>, v4: bool) -> Result<(), Error> {
    let known = [IPPROTO_TCP, IPPROTO_UDP, if v4 { IPPROTO_ICMP } else { IPPROTO_ICMPV6 }];
    match attrs.get(RTA_IP_PROTO) {
        Some(attr) if !known.contains(&attr.u8()) => Err(Error::unsupported("Unsupported ip proto")),
        _ => Ok(()),
    }
}

pub(super) fn get<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let (v4, flags, attrs) = read(request)?;
    check_protocol(&attrs, v4)?;
    let dst = prefix(&attrs, v4, if v4 { 32 } else { 128 })?.addr();
    let src = attrs.get(RTA_SRC).and_then(|src| src.ip(v4)).filter(|src| !src.is_unspecified());
    let named = |kind| attrs.get(kind).map(Attr::u32).filter(|&number| number != 0);
    let model = &rtnl.model;
    let link = |kind| named(kind).map(|ifindex| model.id_of(ifindex));
    let (oif, iif, mark) = (link(RTA_OIF), link(RTA_IIF), named(RTA_MARK));
    // For a missing output link, IPv6 finds no route instead.
    let named_links = [iif, oif.filter(|_| v4)];
    if named_links.into_iter().flatten().any(|link| model.link(link).is_none()) {
        return Err(Error::new(errno::ENODEV));
    }
    // VRF of the lookup. The VRF's own device is no output link (Linux `l3mdev_update_flow`).
    let domain = oif.or(iif).map_or(0, |link| model.domain(link));
    let oif = oif.filter(|&oif| oif != domain);
    if let Some(src) = src
        && v4
        && iif.is_none()
        && !matches!(model.lookup(&model.flow_to(0, src), |_| true), Some((_, route)) if route.kind == RTN_LOCAL)
        // The address may be in any domain (`__ip_dev_find`).
        && !model.links_after(0).any(|(_, link)| link.addresses.iter().any(|own| own.addr.addr() == src))
    {
        return Err(Error::new(errno::ENETUNREACH));
    }
    if dst.is_multicast() || dst == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(Error::unsupported("fatpath looks up no routes to multicast addresses and 255.255.255.255"));
    }
    // The addresses of a link that is down are local nevertheless.
    let up = |route: &Route| route.kind == RTN_LOCAL || model.link(route.dev).is_some_and(|link| link.up);
    let fits = |route: &Route| route.is_error() || (up(route) && oif.is_none_or(|oif| route.is_alive_by(oif)));
    let port =
        |kind| attrs.get(kind).and_then(|port| port.data.first_chunk()).map_or(0, |port| u16::from_be_bytes(*port));
    let flow = RouteFlow {
        src,
        input: iif.filter(|&iif| iif != LOOPBACK).map(|iif| PortId(if domain == 0 { iif } else { domain })),
        tos: request.payload().get(TOS_AT).copied().unwrap_or_default(),
        protocol: attrs.get(RTA_IP_PROTO).map_or(0, Attr::u8),
        sport: port(RTA_SPORT),
        dport: port(RTA_DPORT),
        ..model.flow_to(domain, dst)
    };
    let looked_up = model.lookup(&flow, fits);
    let direct = match oif {
        Some(dev) if v4 && iif.is_none() && domain == 0 && looked_up.is_none_or(|(_, route)| route.is_error()) => {
            Some(on_link(model, dst, dev, flags)?)
        }
        _ => None,
    };
    // The route is in no table.
    let looked_up = direct.as_ref().map(|route| (RT_TABLE_UNSPEC, route)).or(looked_up);
    let (table, found) = looked_up.ok_or(Error::new(errno::ENETUNREACH))?;
    match found.kind {
        RTN_BLACKHOLE => return Err(Error::new(errno::EINVAL)),
        // For a rule the action means network unreachable, for a route host unreachable (`fib4_rule_action`).
        RTN_UNREACHABLE if table == RT_TABLE_UNSPEC => return Err(Error::new(errno::ENETUNREACH)),
        RTN_UNREACHABLE => return Err(Error::new(errno::EHOSTUNREACH)),
        RTN_PROHIBIT => return Err(Error::new(errno::EACCES)),
        _ => {}
    }
    let apart = !v4 || table != RT_TABLE_LOCAL || model.is_local_apart();
    if flags & RTM_F_FIB_MATCH != 0 {
        let table = if apart { table } else { RT_TABLE_MAIN };
        reply.send(RTM_NEWROUTE, 0, |w| route::write(w, table, |dev| model.ifindex(dev), found));
        return Ok(());
    }
    let found = &found.by_path(model.path_hash(&flow), oif);
    let itself = (found.kind == RTN_LOCAL && !(v4 && found.src.is_some())).then_some(dst);
    // The source of a forwarded packet is given.
    let own = match (iif, v4) {
        (Some(_), _) => None,
        (None, true) => src.or(itself),
        (None, false) => itself,
    };
    let select = || {
        found
            .src
            .or_else(|| select_source(model, found.dev, found.via.filter(|via| via.is_ipv4() == v4).unwrap_or(dst)))
    };
    let own = own.or_else(|| if iif.is_none() { select() } else { None });
    let uid = attrs.get(RTA_UID).map_or(0, Attr::u32);
    // The output link of a local route is its domain's device.
    let dev = match (found.kind, model.domain(found.dev)) {
        (RTN_LOCAL | RTN_ANYCAST, 0) => LOOPBACK,
        (RTN_LOCAL | RTN_ANYCAST, vrf) => vrf,
        _ => found.dev,
    };
    let (dev, iif) = (model.ifindex(dev), iif.map(|iif| model.ifindex(iif)));
    let query = RouteQuery { dst, src, own, dev, iif, mark, uid };
    if v4 {
        let shown = flags & RTM_F_LOOKUP_TABLE != 0 && apart;
        let table = if shown { table } else { RT_TABLE_MAIN };
        reply.send(RTM_NEWROUTE, 0, |w| write_v4(w, table, found, &query));
    } else {
        reply.send(RTM_NEWROUTE, 0, |w| write_v6(w, table, found, &query));
    }
    Ok(())
}

/// Result of an IPv4 lookup with an output link and without a route by it: the destination counts as on-link (Linux
/// `ip_route_output_key_hash_rcu`).
fn on_link(model: &Model, dst: IpAddr, dev: u32, flags: u32) -> Result<Route, Error> {
    let is_up = model.link(dev).is_some_and(|link| link.up);
    match (is_up, flags & RTM_F_FIB_MATCH) {
        (false, _) => Err(Error::new(errno::ENETUNREACH)),
        (true, 0) => Ok(Route {
            prefix: Prefix::host(dst),
            kind: RTN_UNICAST,
            metric: 0,
            scope: RT_SCOPE_LINK,
            protocol: RTPROT_UNSPEC,
            dev,
            via: None,
            src: None,
            onlink: false,
            encap: None,
            paths: None,
        }),
        (true, _) => Err(Error::new(errno::EHOSTUNREACH)),
    }
}

/// Flow of a lookup.
struct RouteQuery {
    dst: IpAddr,
    /// Source address in the request.
    src: Option<IpAddr>,
    /// Source address that the node would use.
    own: Option<IpAddr>,
    /// Output link; for a local route, the domain's device.
    dev: IfIndex,
    /// Input link.
    iif: Option<IfIndex>,
    mark: Option<u32>,
    /// User of the flow's process.
    uid: u32,
}

/// `struct rta_cacheinfo`, all zero: a lookup has no cache entry.
const CACHEINFO: [u8; 32] = [0; 32];

/// Writes the result of a lookup, as Linux's `rt_fill_info`.
fn write_v4(w: &mut Writer, table: u32, found: &Route, query: &RouteQuery) {
    let &RouteQuery { dst, src, own, dev, iif, mark, uid } = query;
    let shown = if table < 256 { table as u8 } else { RT_TABLE_COMPAT as u8 };
    let src_len = if src.is_some() { 32 } else { 0 };
    w.fixed(&[AF_INET, 32, src_len, 0, shown, 0, RT_SCOPE_UNIVERSE, found.kind]);
    let flags = match found.kind {
        RTN_LOCAL => LOCAL,
        RTN_BROADCAST => LOCAL | BROADCAST,
        _ => 0,
    };
    w.fixed(&(flags | RTM_F_CLONED).to_ne_bytes());
    w.put_u32(RTA_TABLE, table);
    w.put_ip(RTA_DST, dst);
    if let Some(src) = src {
        w.put_ip(RTA_SRC, src);
    }
    w.put_u32(RTA_OIF, dev.0);
    if let Some(own) = own.filter(|own| src != Some(*own)) {
        w.put_ip(RTA_PREFSRC, own);
    }
    if let Some(via) = found.via {
        route::write_next_hop(w, true, via);
    }
    if let Some(mark) = mark {
        w.put_u32(RTA_MARK, mark);
    }
    match iif {
        Some(iif) => w.put_u32(RTA_IIF, iif.0),
        None => w.put_u32(RTA_UID, uid),
    }
    w.put(RTA_CACHEINFO, &CACHEINFO);
}

/// Writes the result of a lookup, as Linux's `rt6_fill_node`.
fn write_v6(w: &mut Writer, table: u32, found: &Route, query: &RouteQuery) {
    let &RouteQuery { dst, src, own, dev, iif, .. } = query;
    let shown = if table < 256 { table as u8 } else { RT_TABLE_COMPAT as u8 };
    w.fixed(&[AF_INET6, 128, 128, 0, shown, found.protocol, RT_SCOPE_UNIVERSE, found.kind]);
    w.fixed(&0_u32.to_ne_bytes());
    w.put_u32(RTA_TABLE, table);
    w.put_ip(RTA_DST, dst);
    w.put_ip(RTA_SRC, src.unwrap_or(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)));
    if let Some(iif) = iif {
        w.put_u32(RTA_IIF, iif.0);
    }
    if let Some(own) = own {
        w.put_ip(RTA_PREFSRC, own);
    }
    w.put_u32(RTA_PRIORITY, found.metric);
    if let Some(via) = found.via {
        w.put_ip(RTA_GATEWAY, via);
    }
    w.put_u32(RTA_OIF, dev.0);
    if let Some(encap) = &found.encap {
        encap::write(w, encap);
    }
    w.put(RTA_CACHEINFO, &CACHEINFO);
    w.put_u8(RTA_PREF, 0);
}

/// Source address for a packet to `to` by link `dev`.
fn select_source(model: &Model, dev: u32, to: IpAddr) -> Option<IpAddr> {
    if to.is_ipv4() { select_v4(model, dev, to) } else { select_v6(model, dev, to) }
}

/// Selects a source address, as Linux's `inet_select_addr`: the link's address in the subnet of `to`, else the link's
/// first address, else an address of its VRF's device, else of another link in its domain.
fn select_v4(model: &Model, dev: u32, to: IpAddr) -> Option<IpAddr> {
    let usable = |address: &&Address| address.is_primary_v4() && address.scope < RT_SCOPE_HOST;
    let of_link = model.link(dev).into_iter().flat_map(|link| &link.addresses).filter(usable);
    let near = of_link.clone().find(|address| address.subnet().contains(to));
    let domain = model.domain(dev);
    let in_domain = model.links_after(0).filter(|&(index, _)| model.domain(index) == domain);
    let mut others = in_domain.flat_map(|(_, link)| &link.addresses).filter(usable);
    let mut of_vrf = model.link(domain).into_iter().flat_map(|link| &link.addresses).filter(usable);
    let chosen = near.or_else(|| of_link.clone().next()).or_else(|| of_vrf.next());
    chosen.or_else(|| others.find(|address| address.scope != RT_SCOPE_LINK)).map(|address| address.addr.addr())
}

/// Selects a source address by RFC 6724 §5: scope, link, and length of the prefix shared with `to` (Linux
/// `ipv6_dev_get_saddr`). Among equals the first one is selected.
fn select_v6(model: &Model, dev: u32, to: IpAddr) -> Option<IpAddr> {
    let domain = model.domain(dev);
    let is_near = |addr: IpAddr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local());
    let rank = |link: u32, address: &Address| {
        let own = address.addr.addr();
        let shared =
            (0..=address.prefix_len()).rev().find(|&len| Prefix::containing(own, len).is_ok_and(|it| it.contains(to)));
        (is_near(own) == is_near(to), link == dev, shared)
    };
    let all = model.links_after(0).flat_map(|(index, link)| link.addresses.iter().map(move |address| (index, address)));
    let usable = all.filter(|&(link, address)| {
        let own = address.addr.addr();
        let in_domain = !is_near(own) && model.domain(link) == domain;
        !own.is_ipv4() && address.scope < RT_SCOPE_HOST && (link == dev || in_domain)
    });
    let ranked: Vec<_> = usable.map(|(link, address)| (rank(link, address), address.addr.addr())).collect();
    ranked.into_iter().rev().max_by_key(|(rank, _)| *rank).map(|(_, own)| own)
}

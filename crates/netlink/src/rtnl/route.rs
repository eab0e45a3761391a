//! `RTM_*ROUTE`.

use std::net::IpAddr;

use base::IfIndex;

use super::backend::Backend;
use super::encap;
use super::header::{behind, fixed, strictness, word};
use super::node::Rtnl;
use super::nums::*;
use super::table::{Key, NextHop, Route};
use crate::attr::{AttrPolicy, Kind, parse, policy};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::session::{Dump, Progress, Request, write_each};

/// Length of `struct rtmsg`.
pub(super) const LEN: usize = 12;

/// Length of `struct rtnexthop`.
pub(super) const NEXT_HOP_LEN: usize = 8;

pub(super) const POLICY: AttrPolicy<RTA_MAX> = policy(&[
    (RTA_DST, Kind::Any),
    (RTA_SRC, Kind::Any),
    (RTA_IIF, Kind::Int(4)),
    (RTA_OIF, Kind::Int(4)),
    (RTA_GATEWAY, Kind::Min(4)),
    (RTA_PRIORITY, Kind::Int(4)),
    (RTA_PREFSRC, Kind::Min(4)),
    (RTA_METRICS, Kind::Nested),
    (RTA_MULTIPATH, Kind::Min(8)),
    (RTA_FLOW, Kind::Int(4)),
    (RTA_VIA, Kind::Any),
    (RTA_TABLE, Kind::Int(4)),
    (RTA_MARK, Kind::Int(4)),
    (RTA_PREF, Kind::Int(1)),
    (RTA_ENCAP_TYPE, Kind::Int(2)),
    (RTA_ENCAP, Kind::Nested),
    (RTA_EXPIRES, Kind::Int(4)),
    (RTA_UID, Kind::Int(4)),
    (RTA_TTL_PROPAGATE, Kind::Int(1)),
    (RTA_IP_PROTO, Kind::Int(1)),
    (RTA_SPORT, Kind::Int(2)),
    (RTA_DPORT, Kind::Int(2)),
    (RTA_NH_ID, Kind::Int(4)),
]);

/// Policy for requests that only read. Their handlers refuse unsupported attributes themselves: Linux knows all types
/// that are older than its strict checks.
pub(super) const READ_POLICY: AttrPolicy<RTA_MAX> = {
    let mut kinds = POLICY;
    let mut at = 1;
    while at < RTA_NH_ID as usize {
        if matches!(kinds[at], Kind::Unknown) {
            kinds[at] = Kind::Any;
        }
        at += 1;
    }
    kinds
};

/// Filter of a dump of routes (Linux `struct fib_dump_filter`).
#[derive(Clone, Copy, Debug, Default)]
struct Filter {
    table: u32,
    protocol: u8,
    kind: u8,
    dev: Option<u32>,
}

/// Limit of routes that one part of a dump examines, so that a selective filter does not block other clients. A part
/// may be empty, and is then not sent.
const LOOKED_AT: usize = 16_384;

impl Filter {
    fn of<B: Backend>(rtnl: &Rtnl<B>, request: &Request<'_>) -> Result<Self, Error> {
        if !request.strict {
            return Ok(Self::default());
        }
        let (header, rest) =
            fixed::<LEN>(request).map_err(|_| Error::text(errno::EINVAL, "Invalid header for FIB dump request"))?;
        let [_, dst_len, src_len, tos, table, protocol, scope, kind, flags @ ..] = *header;
        let flags = u32::from_ne_bytes(flags);
        if dst_len != 0 || src_len != 0 || tos != 0 || scope != 0 {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for FIB dump request"));
        }
        if flags & !(RTM_F_CLONED | RTM_F_PREFIX) != 0 {
            return Err(Error::text(errno::EINVAL, "Invalid flags for FIB dump request"));
        }
        let mut filter = Self { table: table.into(), protocol, kind, dev: None };
        for attr in parse(rest, behind(LEN), &READ_POLICY, strictness(request))?.iter() {
            match attr.kind {
                RTA_TABLE => filter.table = attr.u32(),
                RTA_OIF => {
                    let dev = rtnl.model.id_of(attr.u32());
                    if rtnl.model.link(dev).is_none() {
                        return Err(Error::new(errno::ENODEV));
                    }
                    filter.dev = Some(dev);
                }
                _ => return Err(Error::text(errno::EINVAL, "Unsupported attribute in dump request")),
            }
        }
        Ok(filter)
    }

    const fn is_set(&self) -> bool {
        self.table != 0 || self.protocol != 0 || self.kind != 0 || self.dev.is_some()
    }

    fn takes(&self, route: &Route) -> bool {
        (self.protocol == 0 || self.protocol == route.protocol)
            && (self.kind == 0 || self.kind == route.kind)
            && self.dev.is_none_or(|dev| route.is_by(dev))
    }
}

pub(super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<B>>, Error> {
    let filter = Filter::of(rtnl, request)?;
    let families: Vec<bool> = match family {
        AF_INET => vec![true],
        AF_INET6 => vec![false],
        _ => vec![true, false],
    };
    let missing = |v4| filter.table != 0 && !rtnl.model.has_table(v4, filter.table);
    match family {
        AF_INET if missing(true) => return Ok(no_table("ipv4: FIB table does not exist")),
        AF_INET6 if missing(false) => return Ok(no_table("ipv6: FIB table does not exist")),
        _ => {}
    }
    // Routes from router advertisements and cached routes do not exist; only strict requests select the latter.
    let none_of = RTM_F_PREFIX | if request.strict { RTM_F_CLONED } else { 0 };
    if fixed::<LEN>(request).is_ok_and(|(header, _)| word(&header[8..]) & none_of != 0) {
        return Ok(Box::new(|_, _| Ok(Progress::Done)));
    }
    let flags = if request.strict { flag::DUMP_FILTERED } else { 0 };
    // Tables to dump, as of the dump's start, and the last route written of the first table.
    let model = &rtnl.model;
    let tables = families.iter().flat_map(|&v4| model.tables(v4).map(move |(id, _)| (v4, id)));
    let mut tables: std::collections::VecDeque<_> =
        tables.filter(|(_, id)| filter.table == 0 || *id == filter.table).collect();
    let mut last: Option<Key> = None;
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        if filter.is_set() {
            part.filtered();
        }
        let mut left = LOOKED_AT;
        while let Some(&(v4, id)) = tables.front() {
            let model = &rtnl.model;
            if let Some(table) = model.table(v4, id) {
                let mut seen = 0;
                let routes = table.after(last).take(left).inspect(|_| seen += 1);
                let progress = write_each(part, &mut last, routes, |part, _, route| {
                    let write = |w: &mut Writer| write(w, id, |dev| model.ifindex(dev), route);
                    !filter.takes(route) || part.message_with(RTM_NEWROUTE, flags, write)
                });
                left -= seen;
                if progress == Progress::More || left == 0 {
                    return Ok(Progress::More);
                }
            }
            tables.pop_front();
            last = None;
        }
        Ok(Progress::Done)
    }))
}

fn no_table<B: Backend>(text: &'static str) -> Dump<Rtnl<B>> {
    Box::new(move |_, part| {
        part.filtered();
        Err(Error::text(errno::ENOENT, text))
    })
}

/// Writes a next hop, with its family if it differs from the route's.
pub(super) fn write_next_hop(w: &mut Writer, v4: bool, via: IpAddr) {
    let octets = match via {
        IpAddr::V4(via) if !v4 => via.octets().to_vec(),
        IpAddr::V6(via) if v4 => via.octets().to_vec(),
        _ => return w.put_ip(RTA_GATEWAY, via),
    };
    let family = u16::from(if v4 { AF_INET6 } else { AF_INET });
    w.put(RTA_VIA, &[&family.to_ne_bytes()[..], &octets].concat());
}

/// Writes the paths of a route (Linux `fib_add_multipath`): each is a `struct rtnexthop` with its attributes.
fn write_paths(w: &mut Writer, v4: bool, ifindex: impl Fn(u32) -> IfIndex, paths: &[NextHop]) {
    let mut all = Vec::new();
    for path in paths {
        let mut attributes = Writer::with_capacity(32);
        if let Some(via) = path.via {
            write_next_hop(&mut attributes, v4, via);
        }
        let flag = |is_set: bool, flag: u32| if is_set { flag as u8 } else { 0 };
        let flags = flag(path.onlink, RTNH_F_ONLINK) | flag(path.dead, RTNH_F_DEAD | RTNH_F_LINKDOWN);
        all.extend(((NEXT_HOP_LEN + attributes.len()) as u16).to_ne_bytes());
        all.extend([flags, (path.weight - 1) as u8]);
        all.extend(ifindex(path.dev).0.to_ne_bytes());
        all.extend(attributes.as_bytes());
    }
    w.put(RTA_MULTIPATH, &all);
}

/// Writes a route by links with the interface indexes `ifindex`, as Linux's `fib_dump_info` and `rt6_fill_node`.
pub(super) fn write(w: &mut Writer, table: u32, ifindex: impl Fn(u32) -> IfIndex, route: &Route) {
    write_in_full(w, table, ifindex, route, false);
}

/// As [`write`]; with `is_saved` also what messages do not show: the weight of a single path.
pub(super) fn write_in_full(
    w: &mut Writer,
    table: u32,
    ifindex: impl Fn(u32) -> IfIndex,
    route: &Route,
    is_saved: bool,
) {
    let v4 = route.prefix.is_ipv4();
    let family = if v4 { AF_INET } else { AF_INET6 };
    let shown = if table < 256 { table as u8 } else { RT_TABLE_COMPAT as u8 };
    w.fixed(&[family, route.prefix.len(), 0, 0, shown, route.protocol, route.scope, route.kind]);
    let is_single = route.paths.as_ref().is_none_or(|paths| paths.len() == 1);
    let flags = if route.onlink && is_single { RTNH_F_ONLINK } else { 0 };
    w.fixed(&flags.to_ne_bytes());
    w.put_u32(RTA_TABLE, table);
    if route.prefix.len() > 0 {
        w.put_ip(RTA_DST, route.prefix.addr());
    }
    if v4 {
        if route.metric != 0 {
            w.put_u32(RTA_PRIORITY, route.metric);
        }
        if let Some(src) = route.src {
            w.put_ip(RTA_PREFSRC, src);
        }
    } else {
        if let Some(src) = route.src {
            w.put_ip(RTA_PREFSRC, src);
        }
        w.put_u32(RTA_PRIORITY, route.metric);
    }
    match route.paths.as_deref() {
        Some(paths) if paths.len() > 1 || is_saved => write_paths(w, v4, ifindex, paths),
        _ => {
            if let Some(via) = route.via {
                write_next_hop(w, v4, via);
            }
            if route.dev != 0 {
                w.put_u32(RTA_OIF, ifindex(route.dev).0);
            }
        }
    }
    if let Some(encap) = &route.encap {
        encap::write(w, encap);
    }
    if !v4 {
        // `struct rta_cacheinfo`: no expiry and no use; and no router preference.
        w.put(RTA_CACHEINFO, &[0; 32]);
        w.put_u8(RTA_PREF, 0);
    }
}

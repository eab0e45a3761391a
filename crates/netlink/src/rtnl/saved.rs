//! Requests that restore the changes that clients have made to a node.

use std::collections::BTreeMap;

use ::switch::{FdbEntry, FdbKind};
use base::{IfIndex, PortId, TableId};

use super::backend::Backend;
use super::fib_rule::Rule;
use super::model::{LOOPBACK, MAX_INDEX};
use super::node::Rtnl;
use super::nums::*;
use super::state::Bridging;
use super::table::Route;
use super::{addr, bridge, ethtool, header, link, neigh, qdisc, route, rule, state};
use crate::change::{again, removal, word};
use crate::error::Error;
use crate::message::{HEADER_LEN, Writer, align, flag};
use crate::saved::{Saved, find, kind_of, renumber_attribute, renumber_field, set_flags};
use zeroize::Zeroizing;

/// State of a node at one time. Requests for its routes, of which there may be very many, are made by
/// [`requests`](Self::requests), when clients may change the node again.
#[derive(Debug)]
pub struct Snapshot {
    /// Requests before those for routes.
    ahead: Vec<Saved>,
    /// Routes in the order of their tables, without connected ones.
    routes: Vec<(TableId, Route)>,
    /// Interface indexes of the links.
    indexes: BTreeMap<u32, IfIndex>,
    /// Requests behind those for routes.
    behind: Vec<Saved>,
}

impl Snapshot {
    /// Requests that turn a node without links into this one, in the order of execution.
    pub fn requests(&self) -> Vec<Saved> {
        let mut all = self.ahead.clone();
        all.extend(self.of_routes());
        all.extend(self.behind.iter().cloned());
        all
    }

    /// Routes by links come before routes with gateways, which must be reachable on a link.
    fn of_routes(&self) -> Vec<Saved> {
        // Routes with equal keys are adjacent, and keep their order.
        let equal = |(table, route): &(TableId, Route), (of, other): &(TableId, Route)| {
            table == of && route.prefix == other.prefix && route.metric == other.metric
        };
        let groups: Vec<&[(TableId, Route)]> = self.routes.chunk_by(equal).collect();
        let (by_neighbour, by_link): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|(_, route)| route.via.is_some()));
        let ifindex = |dev| self.indexes.get(&dev).copied().unwrap_or(IfIndex(0));
        let write = |group: &[(TableId, Route)]| {
            let each = group.iter().enumerate().map(|(at, (table, route))| {
                let flags = flag::CREATE | if at == 0 { flag::EXCL } else { flag::APPEND };
                let label = format!("route {}", route.prefix);
                Saved::new("route", label, RTM_NEWROUTE, flags, |w| {
                    route::write_in_full(w, table.0, ifindex, route, true);
                })
            });
            each.collect::<Vec<_>>()
        };
        by_link.into_iter().chain(by_neighbour).flat_map(write).collect()
    }
}

impl<B: Backend> Rtnl<B> {
    /// Requests of a [`snapshot`](Self::snapshot).
    ///
    /// # Errors
    /// The datapath does not answer.
    pub fn saved(&mut self) -> Result<Vec<Saved>, Error> {
        Ok(self.snapshot()?.requests())
    }

    /// State of this node. Connected routes and learnt neighbours are omitted.
    ///
    /// # Errors
    /// The datapath does not answer.
    pub fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let neighbours = self.backend.neighbours()?;
        let links = self.links_now()?;
        let entries = self.saved_fdb()?;
        let model = &self.model;
        let mut all = Vec::new();
        let made = flag::CREATE | flag::EXCL;
        for (index, link) in model.links_after(LOOPBACK) {
            let label = format!("link {}", link.config.name);
            all.push(Saved::new("link", label, RTM_NEWLINK, made, |w| {
                link::write_request(w, index, link, model.lower_of(index));
            }));
        }
        for (index, link) in model.links_after(LOOPBACK) {
            if let Some(master) = link.master {
                let of = if master.table.is_some() { "VRF" } else { "bridge" };
                let label = format!("link {} of a {of}", link.config.name);
                let noun = if master.table.is_some() { "link of a VRF" } else { "port of a bridge" };
                let write = |w: &mut Writer| link::write_enslaving(w, link.ifindex(index), master);
                all.push(Saved::new(noun, label, RTM_SETLINK, 0, write));
            }
        }
        for (index, link) in model.links_after(LOOPBACK) {
            let (ifindex, name) = (link.ifindex(index), link.config.name.as_str());
            match state::find(&links, index).and_then(|now| now.bridging.as_ref()) {
                Some(Bridging::Bridge(now)) => bridge::write_port(ifindex, name, None, &now.vlans, &mut all),
                Some(Bridging::Port(now)) => bridge::write_port(ifindex, name, Some(now), &now.vlans, &mut all),
                None => {}
            }
        }
        all.extend(entries);
        for (index, link) in model.links_after(LOOPBACK) {
            if let Some(qdisc) = &link.qdisc {
                let label = format!("qdisc {} dev {}", qdisc.kind(), link.config.name);
                let write = |w: &mut Writer| qdisc::write_request(w, link.ifindex(index), qdisc);
                all.push(Saved::new("qdisc", label, RTM_NEWQDISC, made, write));
            }
        }
        for (index, link) in model.links_after(0) {
            let name = &link.config.name;
            // A UDP link has the address of its socket automatically.
            let bound = link.config.bound_address();
            // The newest IPv6 address is listed first.
            let v4 = link.addresses.iter().filter(|address| address.addr.addr().is_ipv4());
            let v6 = link.addresses.iter().rev().filter(|address| address.addr.addr().is_ipv6());
            // An address with a finite lifetime is not saved: its DHCP client requests it again.
            let each = v4.chain(v6).filter(|it| bound != Some(it.addr) && it.lifetime.is_permanent());
            all.extend(each.map(|address| {
                let label = format!("address {} dev {name}", address.addr);
                Saved::new("address", label, RTM_NEWADDR, made, |w| {
                    addr::write(w, link.ifindex(index), name, address, model.now);
                })
            }));
        }
        // `lo` always exists, and gets its default addresses when it is set up, unless it has others.
        if let Some(lo) = model.link(LOOPBACK).filter(|lo| !lo.is_as_it_was()) {
            all.push(Saved::new("link", "link lo".to_owned(), RTM_NEWLINK, 0, |w| {
                link::write_request(w, LOOPBACK, lo, None);
            }));
        }
        for v4 in [true, false] {
            let rules = model.rules(v4);
            let mut first = Rule::first(v4);
            // The rule is added automatically with the first VRF.
            if model.links_after(0).any(|(_, link)| link.is_vrf()) {
                first.push(Rule::l3mdev());
            }
            let rule = |rule: &Rule, kind, flags| {
                let label = format!("rule {}", rule.priority);
                Saved::new("rule", label, kind, flags, |w| rule::write(w, v4, rule, rules))
            };
            all.extend(first.iter().filter(|it| !rules.contains(it)).map(|it| rule(it, RTM_DELRULE, 0)));
            all.extend(rules.iter().filter(|it| !first.contains(it)).map(|it| rule(it, RTM_NEWRULE, made)));
        }
        let permanent = neighbours.iter().filter(|neighbour| neighbour.state == NUD_PERMANENT);
        let neighbours = permanent.map(|it| {
            let label = format!("neighbour {}", it.addr);
            Saved::new("neighbour", label, RTM_NEWNEIGH, made, |w| neigh::write(w, model.ifindex(it.link.0), it))
        });
        let behind = neighbours.collect();
        let indexes = model.links_after(0).map(|(id, link)| (id, link.ifindex(id))).collect();
        Ok(Snapshot { ahead: all, routes: self.own_routes(), indexes, behind })
    }

    fn own_routes(&self) -> Vec<(TableId, Route)> {
        let model = &self.model;
        let count = [true, false].into_iter().flat_map(|v4| model.tables(v4)).map(|(_, table)| table.len()).sum();
        // Storage that grows is copied, and zeroed where it was.
        let mut routes = Vec::with_capacity(count);
        let own = model.routes().filter(|(_, route)| route.protocol != RTPROT_KERNEL);
        routes.extend(own.map(|(table, route)| (table, route.clone())));
        routes
    }

    /// Static entries of forwarding databases that clients have added.
    fn saved_fdb(&mut self) -> Result<Vec<Saved>, Error> {
        let bridges: Vec<u32> =
            self.model.links_after(LOOPBACK).filter(|(_, link)| link.is_bridge()).map(|(index, _)| index).collect();
        let mut all = Vec::new();
        for bridge in bridges.into_iter().map(PortId) {
            let entries = self.backend.with_bridge(bridge, |bridge, now| {
                let stays = |entry: &FdbEntry| entry.is_by_user && entry.kind != FdbKind::Dynamic;
                bridge.fdb_entries(now).filter(stays).collect::<Vec<_>>()
            })?;
            all.extend(entries.iter().map(|entry| {
                let label = format!("address {} of a bridge", entry.mac);
                let made = flag::CREATE | flag::REPLACE;
                let write = |w: &mut Writer| bridge::write_fdb(w, &self.model, bridge, entry);
                Saved::new("address of a bridge", label, RTM_NEWNEIGH, made, write)
            }));
        }
        Ok(all)
    }
}

/// Key of consecutive routes in a table: their common fields.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RouteKey {
    v4: bool,
    len: u8,
    dst: [u8; 16],
    table: u32,
    metric: u32,
}

impl RouteKey {
    /// Key of the route in a request; `None` for other requests.
    pub fn of(message: &[u8]) -> Option<Self> {
        if kind_of(message) != RTM_NEWROUTE {
            return None;
        }
        let [family, len] = *message.get(HEADER_LEN..)?.first_chunk()?;
        let v4 = family == AF_INET;
        let bytes = |kind| message.get(find(message, route::LEN, kind)?..);
        let number = |kind| bytes(kind)?.first_chunk().map(|number| u32::from_ne_bytes(*number));
        let mut dst = [0; 16];
        let width = if v4 { 4 } else { 16 };
        let addr = bytes(RTA_DST).unwrap_or_default();
        dst.iter_mut().zip(addr.iter().take(width)).for_each(|(to, from)| *to = *from);
        Some(Self { v4, len, dst, table: number(RTA_TABLE)?, metric: number(RTA_PRIORITY).unwrap_or_default() })
    }
}

/// Removes the requests for objects that exist (`is_there`) from the result of [`Rtnl::saved`]. Routes with the prefix
/// and metric of an existing route keep their position, before or behind it.
pub fn without(saved: Vec<Saved>, is_there: impl Fn(&Saved) -> bool) -> Vec<Saved> {
    let each = saved.into_iter().map(|saved| (RouteKey::of(&saved.message), is_there(&saved), saved));
    let mut each: Vec<(Option<RouteKey>, bool, Saved)> = each.collect();
    for equals in each.chunk_by_mut(|a, b| a.0.is_some() && a.0 == b.0) {
        let Some((first, key)) = equals.iter().position(|it| it.1).zip(equals[0].0) else { continue };
        let (before, behind) = equals.split_at_mut(first);
        let made = flag::REQUEST | flag::CREATE;
        before.iter_mut().for_each(|it| set_flags(&mut it.2.message, made));
        behind.iter_mut().for_each(|it| set_flags(&mut it.2.message, made | flag::APPEND));
        // Each IPv4 route is inserted in front of all others, an IPv6 route is not.
        if key.v4 {
            before.reverse();
        }
    }
    each.into_iter().filter(|it| !it.1).map(|it| it.2).collect()
}

/// Replaces interface indexes in a request by those that `now` returns. A new link keeps its index, unless it
/// `is_taken`.
///
/// # Errors
/// The index for which `now` returns `None`.
pub fn renumber(
    message: &mut [u8],
    now: impl Fn(u32) -> Option<u32>,
    is_taken: impl Fn(u32) -> bool,
) -> Result<(), u32> {
    let now = |old| if old == 0 || old == LOOPBACK { Some(old) } else { now(old) };
    match kind_of(message) {
        // `ifi_index`; 0 requests any.
        RTM_NEWLINK => {
            renumber_field(message, 4, |old| {
                let may_be = IfIndex(old).as_own().is_none_or(|id| id.0 <= MAX_INDEX);
                Some(if may_be && !is_taken(old) { old } else { 0 })
            })?;
            renumber_attribute(message, header::LINK_LEN, IFLA_LINK, now)?;
            renumber_attribute(message, header::LINK_LEN, IFLA_MASTER, now)
        }
        RTM_SETLINK => {
            renumber_field(message, 4, now)?;
            renumber_attribute(message, header::LINK_LEN, IFLA_MASTER, now)
        }
        RTM_DELLINK => renumber_field(message, 4, now),
        // `ifa_index`, `ndm_ifindex`, `tcm_ifindex`.
        RTM_NEWADDR | RTM_DELADDR | RTM_NEWQDISC | RTM_DELQDISC => renumber_field(message, 4, now),
        RTM_NEWNEIGH | RTM_DELNEIGH => {
            renumber_field(message, 4, now)?;
            renumber_attribute(message, neigh::LEN, NDA_IFINDEX, now)?;
            renumber_attribute(message, neigh::LEN, NDA_MASTER, now)
        }
        RTM_NEWROUTE | RTM_DELROUTE => {
            renumber_attribute(message, route::LEN, RTA_OIF, now)?;
            renumber_paths(message, now)
        }
        _ => Ok(()),
    }
}

/// Replaces the interface indexes of the paths of a route.
fn renumber_paths(message: &mut [u8], now: impl Fn(u32) -> Option<u32>) -> Result<(), u32> {
    let Some(start) = find(message, route::LEN, RTA_MULTIPATH) else { return Ok(()) };
    // The attribute's own length is in front of its value.
    let len = message.get(start - 4..).and_then(<[u8]>::first_chunk).map_or(0, |len| u16::from_ne_bytes(*len));
    let end = (start - 4 + usize::from(len)).min(message.len());
    let mut at = start;
    while let Some(len) = message.get(at..end).and_then(<[u8]>::first_chunk).map(|len| u16::from_ne_bytes(*len)) {
        if usize::from(len) < route::NEXT_HOP_LEN || at + usize::from(len) > end {
            break;
        }
        renumber_field(message, at + 4 - HEADER_LEN, &now)?;
        at += align(len.into());
    }
    Ok(())
}

/// As [`renumber`], for a program's own request, which may name an existing link in a request for a new one: those with
/// an index that `is_known`.
///
/// # Errors
/// As [`renumber`].
pub fn renumber_change(
    message: &mut [u8],
    now: impl Fn(u32) -> Option<u32>,
    is_known: impl Fn(u32) -> bool,
    is_taken: impl Fn(u32) -> bool,
) -> Result<(), u32> {
    let named = word(message, 4).filter(|index| *index != 0);
    match named {
        Some(old) if kind_of(message) == RTM_NEWLINK && (old == LOOPBACK || is_known(old)) => {
            let now = |old| if old == 0 || old == LOOPBACK { Some(old) } else { now(old) };
            renumber_field(message, 4, now)?;
            renumber_attribute(message, header::LINK_LEN, IFLA_LINK, now)?;
            renumber_attribute(message, header::LINK_LEN, IFLA_MASTER, now)
        }
        _ => renumber(message, now, is_taken),
    }
}

/// Label of the object of a request, such as `route 10.2.0.0/24`.
pub fn label_of(message: &[u8]) -> String {
    let (noun, fixed, attr, len) = match kind_of(message) {
        RTM_NEWLINK | RTM_SETLINK | RTM_DELLINK => return "link".to_owned(),
        RTM_NEWADDR | RTM_DELADDR => ("address", addr::LEN, IFA_ADDRESS, true),
        RTM_NEWROUTE | RTM_DELROUTE => ("route", route::LEN, RTA_DST, true),
        RTM_NEWNEIGH | RTM_DELNEIGH => ("neighbour", neigh::LEN, NDA_DST, false),
        RTM_NEWRULE | RTM_DELRULE => return "rule".to_owned(),
        RTM_NEWQDISC | RTM_DELQDISC => return "qdisc".to_owned(),
        _ => return "change".to_owned(),
    };
    let bytes = find(message, fixed, attr).and_then(|at| message.get(at..)).unwrap_or_default();
    let addr: Option<std::net::IpAddr> = match message.get(HEADER_LEN) {
        Some(&AF_INET) => bytes.first_chunk::<4>().map(|addr| (*addr).into()),
        Some(&AF_INET6) => bytes.first_chunk::<16>().map(|addr| (*addr).into()),
        _ => None,
    };
    match (addr, message.get(HEADER_LEN + 1).filter(|_| len)) {
        (Some(addr), Some(len)) => format!("{noun} {addr}/{len}"),
        (Some(addr), None) => format!("{noun} {addr}"),
        (None, Some(_)) if noun == "route" => "route default".to_owned(),
        (None, _) => noun.to_owned(),
    }
}

/// Number that the link of a saved `RTM_NEWLINK` had (`ifi_index`).
#[must_use]
pub fn index_of_link(message: &[u8]) -> Option<u32> {
    word(message, 4).filter(|index| *index != 0)
}

/// Request that repeats a change of links, addresses, routes, rules, neighbours or queueing disciplines; `None` if the
/// message changes nothing that is saved.
pub(crate) fn changing(message: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    /// `IFA_CACHEINFO` begins with the preferred and the valid lifetime in seconds.
    const VALID: usize = 4;
    const FOREVER: u32 = u32::MAX;
    /// `ndm_state`.
    const STATE: usize = 8;
    let family = *message.get(HEADER_LEN)?;
    match kind_of(message) {
        ethtool::MESSAGE => ethtool::is_change(message).then(|| again(message)),
        kind if kind & 3 == super::KIND_GET => None,
        RTM_NEWADDR => {
            let valid = find(message, addr::LEN, IFA_CACHEINFO).and_then(|at| word(message, at - HEADER_LEN + VALID));
            if valid.is_none_or(|valid| valid == FOREVER) {
                return Some(again(message));
            }
            let body = message.get(HEADER_LEN..HEADER_LEN + addr::LEN)?;
            Some(removal(message, RTM_DELADDR, body, addr::LEN, &[IFA_LOCAL, IFA_ADDRESS]))
        }
        RTM_NEWNEIGH if family != AF_BRIDGE => {
            let state = message.get(HEADER_LEN + STATE..).and_then(<[u8]>::first_chunk);
            if u16::from_ne_bytes(*state?) & NUD_PERMANENT != 0 {
                return Some(again(message));
            }
            let body = message.get(HEADER_LEN..HEADER_LEN + neigh::LEN)?;
            Some(removal(message, RTM_DELNEIGH, body, neigh::LEN, &[NDA_DST]))
        }
        _ => Some(again(message)),
    }
}

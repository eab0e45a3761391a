//! `NETLINK_ROUTE` (rtnetlink(7)): links, addresses, routes, rules, neighbours.

mod addr;
mod backend;
mod bridge;
mod change;
mod encap;
mod enslave;
mod entry;
mod ethtool;
mod fib_rule;
mod header;
mod lifetime;
mod link;
mod lookup;
mod model;
mod neigh;
mod node;
mod notify;
pub mod nums;
mod qdisc;
mod route;
mod rule;
mod saved;
mod shown;
mod state;
mod stats;
mod table;
mod vrf;

use super::error::{Error, errno};
use super::message::flag;
use super::session::{Dump, Part, Progress, Protocol, Reply, Request};
use nums::*;

pub use backend::{Backend, NeighbourNow};
pub use entry::{Address, Link, LinkQdisc, Master};
pub use fib_rule::{Rule, RuleThen};
pub use lifetime::Lifetime;
pub use model::{Delta, LOOPBACK, Model, Replacement, RouteCursor, Told, next_index, refusal};
pub use node::Rtnl;
pub(crate) use saved::changing;
pub use saved::{RouteKey, Snapshot, index_of_link, label_of, renumber, renumber_change, without};
pub use state::LinkDetail;
pub use state::LinkNow;
pub use state::{BridgeNow, Bridging, PortNow};
pub use table::{Key, NextHop, Route, Table};
pub use vrf::Vrf;

/// Kinds of `RTM_*` types, which are the same for each object: New, Del, Get, Set.
const KIND_NEW: u16 = 0;
const KIND_GET: u16 = 2;

impl<B: Backend> Protocol for Rtnl<B> {
    const GROUPS: u32 = RTNLGRP_MAX;
    const ANYONE_LISTENS: bool = true;

    fn only_reads(request: &Request<'_>) -> bool {
        // `ethtool` requests, too; their handler checks the permission of each command.
        request.kind() & 3 == KIND_GET
    }

    fn adds(request: &Request<'_>) -> bool {
        // A request for a link without the flag sets properties, or sets it up or down.
        let sets_link = request.kind() == RTM_NEWLINK && !request.has(flag::CREATE);
        request.kind() & 3 == KIND_NEW && !sets_link
    }

    fn is_dump(request: &Request<'_>) -> bool {
        request.kind() & 3 == KIND_GET
            && request.message.header.flags & flag::DUMP != 0
            && !request.payload().is_empty()
    }

    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        // A payload shorter than `struct rtgenmsg` is ignored (Linux `rtnetlink_rcv_msg`).
        let Some(&family) = request.payload().first() else { return Ok(()) };
        let inet = matches!(family, AF_INET | AF_INET6);
        self.model.now = self.backend.now();
        let outcome = match request.kind() {
            RTM_SETLINK | RTM_DELLINK if family == AF_BRIDGE => bridge::set_port(self, request, reply),
            RTM_NEWNEIGH if family == AF_BRIDGE => bridge::add_fdb(self, request),
            RTM_DELNEIGH if family == AF_BRIDGE => bridge::remove_fdb(self, request),
            RTM_GETNEIGH if family == AF_BRIDGE => bridge::get_fdb(self, request, reply),
            ethtool::MESSAGE => ethtool::serve(self, request, reply),
            RTM_GETLINK => link::get(self, request, reply),
            RTM_NEWLINK | RTM_SETLINK => link::set(self, request, reply),
            RTM_DELLINK => link::remove(self, request, reply),
            RTM_NEWADDR if inet => addr::add(&mut self.model, request),
            RTM_DELADDR if inet => addr::remove(&mut self.model, request),
            RTM_NEWROUTE if inet => change::add(&mut self.model, request),
            RTM_DELROUTE if inet => change::remove(&mut self.model, request),
            RTM_GETROUTE if inet => lookup::get(self, request, reply),
            RTM_NEWNEIGH if inet => neigh::set(self, request, reply),
            RTM_DELNEIGH if inet => neigh::remove(self, request, reply),
            RTM_GETNEIGH if inet => neigh::get(self, request, reply),
            RTM_GETNSID => {
                // No namespace has an id here (`rtnl_net_fill`).
                reply.send(RTM_NEWNSID, 0, |w| {
                    w.fixed(&[AF_UNSPEC, 0, 0, 0]);
                    w.put_u32(NETNSA_NSID, u32::MAX);
                });
                Ok(())
            }
            RTM_GETNETCONF if inet => shown::netconf_of(self, request, reply),
            RTM_NEWQDISC => qdisc::set(self, request, reply),
            RTM_DELQDISC => qdisc::remove(self, request, reply),
            RTM_GETQDISC => qdisc::get(self, request, reply),
            RTM_NEWTCLASS | RTM_DELTCLASS | RTM_GETTCLASS => qdisc::refuse_class(&self.model, request),
            RTM_NEWTFILTER | RTM_DELTFILTER | RTM_GETTFILTER | RTM_NEWCHAIN | RTM_DELCHAIN | RTM_GETCHAIN => {
                qdisc::refuse_filter(&self.model, request)
            }
            RTM_NEWRULE if inet => rule::add(&mut self.model, request, reply),
            RTM_DELRULE if inet => rule::remove(&mut self.model, request, reply),
            _ => Err(unsupported(request.kind(), family)),
        };
        self.publish(reply);
        outcome
    }

    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error> {
        let family = request.payload().first().copied().unwrap_or_default();
        self.model.now = self.backend.now();
        // An error instead of a dump, as in a kernel before 5.3 (Linux `rtnetlink_rcv_msg`): routing daemons take an
        // empty dump as support for nexthop objects, and would install routes with them.
        if matches!(request.kind(), RTM_GETNEXTHOP | RTM_GETNEXTHOPBUCKET) {
            return Err(unsupported(request.kind(), family));
        }
        let begun = match (request.kind(), family) {
            (RTM_GETLINK, AF_BRIDGE) => bridge::dump_ports(self, request),
            (RTM_GETNEIGH, AF_BRIDGE) => bridge::dump_fdb(self, request),
            (RTM_GETVLAN, AF_BRIDGE) => bridge::dump_vlans(self, request),
            // Always empty: learnt multicast groups, namespaces with ids, and similar.
            (RTM_GETNSID | RTM_GETMDB | RTM_GETTUNNEL | RTM_GETVLAN, _)
            | (RTM_GETTCLASS | RTM_GETTFILTER | RTM_GETCHAIN | RTM_GETACTION, _) => {
                Ok(Box::new(|_: &mut Self, _: &mut Part<'_>| Ok(Progress::Done)) as _)
            }
            // A family without its own dump of links gets the generic one (Linux `rtnl_get_link`).
            (RTM_GETLINK, _) => link::dump(request, family),
            (RTM_GETADDR, _) => addr::dump(self, request, family),
            (RTM_GETROUTE, _) => route::dump(self, request, family),
            (RTM_GETRULE, _) => rule::dump(self, request, family),
            (RTM_GETNEIGH, _) => neigh::dump(self, request, family),
            (RTM_GETQDISC, _) => Ok(qdisc::dump()),
            (RTM_GETSTATS, _) => stats::dump(self, request),
            (RTM_GETNETCONF, _) => Ok(shown::netconf(family)),
            (kind, _) => Err(unsupported(kind, family)),
        };
        // An error in the request is found while the dump is in progress, and reported in its last message.
        Ok(begun.unwrap_or_else(|error| Box::new(move |_, _| Err(error.clone()))))
    }
}

fn unsupported(kind: u16, family: u8) -> Error {
    let verb = match kind & 3 {
        KIND_NEW => "set",
        KIND_GET => "show",
        _ => "remove",
    };
    let noun = match kind & !3 {
        RTM_NEWLINK => "links",
        RTM_NEWADDR => "addresses",
        RTM_NEWROUTE => "routes",
        RTM_NEWNEIGH => "neighbours",
        RTM_NEWRULE => "rules",
        48 => "actions",
        64 => "neighbour tables",
        72 => "address labels",
        92 => "statistics by kind",
        108 => "other names of links",
        80 => "netconf",
        104 | 116 => "next hop objects",
        _ => return Error::owned_text(errno::EOPNOTSUPP, format!("fatpath has nothing of rtnetlink type {kind}")),
    };
    let family = match family {
        AF_UNSPEC | AF_INET | AF_INET6 => String::new(),
        other => format!(" of family {other}"),
    };
    let text = match kind & !3 {
        RTM_NEWLINK | RTM_NEWADDR | RTM_NEWROUTE | RTM_NEWNEIGH | RTM_NEWRULE | 80 | 92 => {
            format!("fatpath cannot {verb} {noun}{family}")
        }
        _ => format!("fatpath has no {noun}"),
    };
    Error::owned_text(errno::EOPNOTSUPP, text)
}

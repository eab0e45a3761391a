//! `NETLINK_ROUTE` (rtnetlink(7)): links, addresses, routes, rules, neighbours.

mod addr;
mod bridge;
mod change;
mod encap;
mod entry;
mod ethtool;
mod lifetime;
mod link;
mod lookup;
mod model;
mod neigh;
pub mod nums;
mod qdisc;
mod route;
mod rule;
mod saved;
mod shown;
mod stats;
mod table;
mod vrf;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::attr::Strictness;
use super::error::{Error, errno};
use super::message::{HEADER_LEN, Writer, flag};
use super::session::{Dump, Groups, Outbox, Part, Progress, Protocol, Reply, Request};
use crate::features::FeatureSet;
use crate::model::LinkConfig;
use crate::state::LinkStats;
use ::qdisc::{Options, Stats};
use ::switch::{Bridge, FdbChange};
use base::{IfIndex, Instant, LinkId, TableId};
use nums::*;

pub use bridge::{BridgeNow, Bridging, PortNow};
pub use entry::{Address, Link, LinkQdisc, Master};
pub use ethtool::LinkDetail;
pub use lifetime::Lifetime;
pub use model::{Delta, LOOPBACK, Model, refusal};
pub use rule::Rule;
pub use saved::{RouteKey, renumber, without};
pub use table::{Key, Route, Table};
pub use vrf::Vrf;

/// What rtnetlink needs of the packets' side.
pub trait Host: fmt::Debug + Send + 'static {
    /// How the links are now.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn links(&mut self) -> Result<Vec<LinkNow>, Error>;

    /// Tells what has changed, before the client is answered.
    fn tell(&mut self, deltas: &mut dyn Iterator<Item = Delta>);

    /// Opens a link, which is down then. A device that is made for it gets the number `index` on the host, if that is given.
    ///
    /// # Errors
    /// What is missing or refused.
    fn open(&mut self, id: LinkId, config: &LinkConfig, index: Option<u32>) -> Result<LinkNow, Error>;

    /// Closes a link.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn close(&mut self, id: LinkId) -> Result<(), Error>;

    /// Gives a link another MTU.
    ///
    /// # Errors
    /// The system refuses it.
    fn set_mtu(&mut self, id: LinkId, mtu: u16) -> Result<(), Error>;

    /// Gives a link another link-layer address.
    ///
    /// # Errors
    /// The system refuses it.
    fn set_mac(&mut self, id: LinkId, mac: [u8; 6]) -> Result<(), Error>;

    /// Gives a link a queueing discipline, or takes it away. What waits in the one before is dropped.
    ///
    /// # Errors
    /// The packets' side does not answer, or refuses the options.
    fn set_qdisc(&mut self, id: LinkId, options: Option<Options>) -> Result<(), Error>;

    /// Gives the queueing discipline of a link other options of its kind. What waits in it stays.
    ///
    /// # Errors
    /// As [`set_qdisc`](Self::set_qdisc).
    fn change_qdisc(&mut self, id: LinkId, options: Options) -> Result<(), Error>;

    /// Counters of every queueing discipline.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn qdisc_stats(&mut self) -> Result<Vec<(LinkId, Stats)>, Error>;

    /// Makes a link a port of a bridge, or a link of this node again with `None`.
    ///
    /// # Errors
    /// The packets' side does not answer, or the bridge refuses it.
    fn set_bridge(&mut self, id: LinkId, bridge: Option<LinkId>) -> Result<(), Error>;

    /// Reads or changes a bridge, at the time of the packets' side.
    ///
    /// # Errors
    /// The packets' side does not answer, or has no such bridge.
    fn with_bridge<T: Send + 'static>(
        &mut self,
        bridge: LinkId,
        call: impl FnOnce(&mut Bridge, Instant) -> T + Send + 'static,
    ) -> Result<T, Error>;

    /// Sets a link up or down.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn set_up(&mut self, id: LinkId, up: bool) -> Result<(), Error>;

    /// How a link is, as `ethtool` shows it.
    ///
    /// # Errors
    /// The packets' side does not answer, or has no such link.
    fn detail(&mut self, id: LinkId) -> Result<LinkDetail, Error>;

    /// What the driver of an interface of the host's says of its link: `struct ethtool_link_settings` with
    /// [`LINK_MODE_WORDS`](nlsock::ethtool::LINK_MODE_WORDS) words for each of the three sets behind it.
    ///
    /// # Errors
    /// What the host's kernel says.
    fn settings(&mut self, interface: &str) -> Result<Vec<u8>, Error>;

    /// Has those features of a link be on that are `wanted` and that it can have.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn set_features(&mut self, id: LinkId, wanted: FeatureSet) -> Result<(), Error>;

    /// The time by the node's clock.
    fn now(&self) -> Instant;

    /// Every neighbour, by link and address.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn neighbours(&mut self) -> Result<Vec<NeighbourNow>, Error>;

    /// One of them, if it is there.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn neighbour(&mut self, link: LinkId, addr: IpAddr) -> Result<Option<NeighbourNow>, Error>;

    /// Has a neighbour known as `neighbour` says, or forgotten if its state is 0.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn set_neighbour(&mut self, neighbour: &NeighbourNow) -> Result<(), Error>;
}

/// A neighbour.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NeighbourNow {
    /// The link that it is on.
    pub link: LinkId,
    /// Its address.
    pub addr: IpAddr,
    /// Its link-layer address, if it is known.
    pub mac: Option<[u8; 6]>,
    /// `NUD_*`.
    pub state: u16,
    /// Who said so (`RTPROT_*`); 0 if nobody did, or did not say who. When it is set, 0 leaves that as it is.
    pub protocol: u8,
}

/// How a link is at this moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkNow {
    /// Its number in this node.
    pub id: LinkId,
    /// The number of the host's interface that it is; `None` if it is none.
    pub host_index: Option<u32>,
    /// Whether packets pass by it.
    pub running: bool,
    /// Its layer-3 MTU in bytes.
    pub mtu: u32,
    /// Its link-layer address; `None` if it has none.
    pub mac: Option<[u8; 6]>,
    /// What it has moved.
    pub stats: LinkStats,
    /// How often packets could pass by it from then on, and how often no longer.
    pub carrier: [u32; 2],
    /// Role of the link in a bridge.
    pub bridging: Option<Bridging>,
}

/// The protocol, with the node that it is about.
#[derive(Debug)]
pub struct Rtnl<H> {
    /// The node.
    pub model: Model,
    /// The packets' side.
    pub host: H,
}

/// What `RTM_*` types of one object have in common: New, Del, Get, Set.
const KIND_NEW: u16 = 0;
const KIND_GET: u16 = 2;

impl<H: Host> Protocol for Rtnl<H> {
    const GROUPS: u32 = RTNLGRP_MAX;
    const ANYONE_LISTENS: bool = true;

    fn only_reads(request: &Request<'_>) -> bool {
        // Of what `ethtool` asks, too, which judges by itself who may have something changed.
        request.kind() & 3 == KIND_GET
    }

    fn is_dump(request: &Request<'_>) -> bool {
        request.kind() & 3 == KIND_GET
            && request.message.header.flags & flag::DUMP != 0
            && !request.payload().is_empty()
    }

    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
        // Shorter than `struct rtgenmsg`: nothing is asked (Linux `rtnetlink_rcv_msg`).
        let Some(&family) = request.payload().first() else { return Ok(()) };
        let inet = matches!(family, AF_INET | AF_INET6);
        self.model.now = self.host.now();
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
                // No namespace has a number here (`rtnl_net_fill`).
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
        self.model.now = self.host.now();
        // An error and no dump, as of a kernel before 5.3 (Linux `rtnetlink_rcv_msg`): daemons take even an empty dump for a sign
        // that there can be such objects, and install routes by them.
        if matches!(request.kind(), RTM_GETNEXTHOP | RTM_GETNEXTHOPBUCKET) {
            return Err(unsupported(request.kind(), family));
        }
        let begun = match (request.kind(), family) {
            (RTM_GETLINK, AF_BRIDGE) => bridge::dump_ports(self, request),
            (RTM_GETNEIGH, AF_BRIDGE) => bridge::dump_fdb(self, request),
            (RTM_GETVLAN, AF_BRIDGE) => bridge::dump_vlans(self, request),
            // Groups that bridges have learnt, namespaces that have numbers, and so on: there are none.
            (RTM_GETNSID | RTM_GETMDB | RTM_GETTUNNEL | RTM_GETVLAN, _)
            | (RTM_GETTCLASS | RTM_GETTFILTER | RTM_GETCHAIN | RTM_GETACTION, _) => {
                Ok(Box::new(|_: &mut Self, _: &mut Part<'_>| Ok(Progress::Done)) as _)
            }
            // A family that has nothing of its own gets what there is (Linux `rtnl_get_link`).
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
        // What is wrong with a request is found when its dump is under way, and said at its end.
        Ok(begun.unwrap_or_else(|error| Box::new(move |_, _| Err(error.clone()))))
    }
}

impl<H> Rtnl<H> {
    /// Tells who listens that a link has failed or come back, or is another interface of the host now.
    pub fn tell_link(&mut self, now: &LinkNow, listeners: Groups, outbox: &mut Outbox) {
        let index = now.id.0;
        for (id, before) in self.model.see(std::slice::from_ref(now)) {
            self.tell_renumbered(id, before, listeners, outbox);
        }
        if let Some(link) = self.model.link(index) {
            outbox.announce(listeners, RTNLGRP_LINK, RTM_NEWLINK, |w| {
                link::write(w, index, link, self.model.lower_of(index), Some(now), 0, 0);
            });
        }
    }

    /// Tells who listens what is known of a neighbour now, or that it is forgotten.
    pub fn tell_neighbour(&self, now: &NeighbourNow, gone: bool, listeners: Groups, outbox: &mut Outbox) {
        let kind = if gone { RTM_DELNEIGH } else { RTM_NEWNEIGH };
        outbox.announce(listeners, RTNLGRP_NEIGH, kind, |w| neigh::write(w, self.model.ifindex(now.link.0), now));
    }

    /// Notifies listeners of a change of a bridge's forwarding database (Linux `fdb_notify`).
    pub fn tell_fdb(&self, bridge: LinkId, change: &FdbChange, listeners: Groups, outbox: &mut Outbox) {
        let (kind, entry) = match change {
            FdbChange::Set(entry) => (RTM_NEWNEIGH, entry),
            FdbChange::Removed(entry) => (RTM_DELNEIGH, entry),
        };
        outbox.announce(listeners, RTNLGRP_NEIGH, kind, |w| bridge::write_fdb_entry(w, &self.model, bridge, entry));
    }

    /// Tells who listens that a link has another number: as if it had gone, and come with all that it has.
    fn tell_renumbered(&self, id: u32, before: IfIndex, listeners: Groups, outbox: &mut Outbox) {
        let Some(link) = self.model.link(id) else { return };
        let gone = Link { host_index: Some(before.0), ..link.clone() };
        outbox.announce(listeners, RTNLGRP_LINK, RTM_DELLINK, |w| {
            link::write(w, id, &gone, self.model.lower_of(id), None, 0, u32::MAX);
        });
        outbox.announce(listeners, RTNLGRP_LINK, RTM_NEWLINK, |w| {
            link::write(w, id, link, self.model.lower_of(id), None, 0, 0);
        });
        let now = self.model.ifindex(id);
        for address in &link.addresses {
            let name = &link.config.name;
            outbox.announce(listeners, address_group(address), RTM_NEWADDR, |w| {
                addr::write(w, now, name, address, self.model.now);
            });
        }
        for (table, route) in self.model.routes().filter(|(_, route)| route.dev == id) {
            outbox.announce(listeners, route_group(route), RTM_NEWROUTE, |w| route::write(w, table.0, now, route));
        }
    }
}

impl<H: Host> Rtnl<H> {
    /// Time within which no lifetime of an address ends; `None` if all are infinite.
    pub fn until_expiry(&self) -> Option<Duration> {
        self.model.next_expiry.map(|end| end.since(self.host.now()))
    }

    /// Removes addresses whose lifetime has ended, and notifies the members of their groups.
    pub fn expire(&mut self, listeners: Groups, outbox: &mut Outbox) {
        self.model.now = self.host.now();
        self.model.expire_addresses();
        self.publish(&mut Reply::unasked(listeners, outbox));
    }

    /// Tells who listens, and the packets' side, what has changed so far.
    fn publish(&mut self, reply: &mut Reply<'_>) {
        for delta in self.model.deltas() {
            tell(&self.model, delta, reply);
        }
        self.host.tell(&mut self.model.take_deltas());
    }

    /// How the links are now, of which note is taken.
    fn links_now(&mut self) -> Result<Vec<LinkNow>, Error> {
        let now = self.host.links()?;
        self.model.see(&now);
        Ok(now)
    }

    /// Tells who listens how a link is now.
    fn announce_link(&mut self, index: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        if self.model.link(index).is_some() && reply.is_heard(RTNLGRP_LINK) {
            let now = self.links_now()?;
            let link = self.model.link(index).ok_or(Error::new(errno::ENODEV))?;
            let lower = self.model.lower_of(index);
            reply.notify(RTNLGRP_LINK, RTM_NEWLINK, 0, |w| {
                link::write(w, index, link, lower, link::find(&now, index), 0, 0);
            });
        }
        Ok(())
    }
}

/// The group that hears of a route.
fn route_group(route: &Route) -> u32 {
    if route.prefix.is_ipv4() { RTNLGRP_IPV4_ROUTE } else { RTNLGRP_IPV6_ROUTE }
}

/// The group that hears of an address.
fn address_group(address: &Address) -> u32 {
    if address.addr.addr().is_ipv4() { RTNLGRP_IPV4_IFADDR } else { RTNLGRP_IPV6_IFADDR }
}

/// Tells who listens what has changed.
fn tell(model: &Model, delta: &Delta, reply: &mut Reply<'_>) {
    let mut of_route = |kind, flags, table: &TableId, route: &Route| {
        let dev = model.ifindex(route.dev);
        reply.notify(route_group(route), kind, flags, |w| route::write(w, table.0, dev, route));
    };
    match delta {
        Delta::AddRoute { table, route, .. } => of_route(RTM_NEWROUTE, 0, table, route),
        Delta::RemoveRoute { quiet: true, .. } => {}
        Delta::RemoveRoute { table, route, .. } => of_route(RTM_DELROUTE, 0, table, route),
        Delta::ReplaceRoute { table, new, .. } => of_route(RTM_NEWROUTE, flag::REPLACE, table, new),
        // Told as one rule, or as a link, by who changed it.
        Delta::Rules { .. } | Delta::Vrf(..) | Delta::Domain(..) => {}
        Delta::AddAddress(id, address) | Delta::ChangeAddress(id, address) | Delta::RemoveAddress(id, address) => {
            let kind = if matches!(delta, Delta::RemoveAddress(..)) { RTM_DELADDR } else { RTM_NEWADDR };
            let name = model.link(id.0).map_or("", |link| link.config.name.as_str());
            let index = model.ifindex(id.0);
            reply.notify(address_group(address), kind, 0, |w| {
                addr::write(w, index, name, address, model.now);
            });
        }
    }
}

fn unsupported(kind: u16, family: u8) -> Error {
    let (what, noun) = match (kind & 3, kind & !3) {
        (KIND_NEW, noun) => ("set", noun),
        (KIND_GET, noun) => ("asked for", noun),
        (_, noun) => ("taken away", noun),
    };
    let noun = match noun {
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
        _ => return Error::said(errno::EOPNOTSUPP, format!("fatpath has nothing of rtnetlink type {kind}")),
    };
    let family = match family {
        AF_UNSPEC | AF_INET | AF_INET6 => String::new(),
        other => format!(" of family {other}"),
    };
    Error::said(errno::EOPNOTSUPP, format!("fatpath does not have {noun}{family} {what} here"))
}

/// The fixed part of a message, of `N` bytes. Attributes follow behind it.
fn fixed<'a, const N: usize>(request: &Request<'a>) -> Result<(&'a [u8; N], &'a [u8]), Error> {
    let payload = request.payload();
    let (fixed, rest) =
        payload.split_first_chunk().ok_or_else(|| Error::text(errno::EINVAL, "Invalid header length"))?;
    Ok((fixed, rest.get(super::message::align(N) - N..).unwrap_or_default()))
}

/// Where attributes begin that stand behind a fixed part of `len` bytes.
const fn behind(len: usize) -> u32 {
    (HEADER_LEN + super::message::align(len)) as u32
}

fn strictness(request: &Request<'_>) -> Strictness {
    if request.strict { Strictness::Strict } else { Strictness::Liberal }
}

/// Four bytes as a number of the host's order.
fn word(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Writes messages until one has no room, and notes the key of the last one that had.
fn write_each<K: Copy, T>(
    part: &mut Part<'_>,
    last: &mut Option<K>,
    mut items: impl Iterator<Item = (K, T)>,
    mut write: impl FnMut(&mut Part<'_>, K, T) -> bool,
) -> Progress {
    let full = items.any(|(key, item)| {
        let written = write(part, key, item);
        if written {
            *last = Some(key);
        }
        !written
    });
    if full { Progress::More } else { Progress::Done }
}

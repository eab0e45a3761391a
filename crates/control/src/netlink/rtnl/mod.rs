//! `NETLINK_ROUTE` (rtnetlink(7)): links, addresses, routes, rules, neighbours.

mod addr;
mod link;
mod model;
pub mod nums;
mod route;
mod rule;
mod table;

use std::fmt;

use super::attr::Strictness;
use super::error::{Error, errno};
use super::message::{HEADER_LEN, flag};
use super::session::{Dump, Part, Progress, Protocol, Reply, Request};
use crate::state::LinkStats;
use base::LinkId;
use nums::*;

pub use model::{Address, Delta, LOOPBACK, Link, Model};
pub use table::{Key, Route, Table};

/// What rtnetlink needs of the packets' side.
pub trait Host: fmt::Debug + Send + 'static {
    /// How the links are now.
    ///
    /// # Errors
    /// The packets' side does not answer.
    fn links(&mut self) -> Result<Vec<LinkNow>, Error>;

    /// Tells what has changed, before the client is answered.
    fn tell(&mut self, deltas: &mut dyn Iterator<Item = Delta>);
}

/// How a link is at this moment.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkNow {
    /// Its number.
    pub id: LinkId,
    /// Whether packets pass by it.
    pub running: bool,
    /// Its layer-3 MTU in bytes.
    pub mtu: u32,
    /// Its link-layer address; `None` if it has none.
    pub mac: Option<[u8; 6]>,
    /// What it has moved.
    pub stats: LinkStats,
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
        let outcome = match request.kind() {
            RTM_GETLINK => link::get(self, request, reply),
            _ => Err(unsupported(request.kind(), family)),
        };
        self.host.tell(&mut self.model.take_deltas());
        outcome
    }

    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error> {
        let family = request.payload().first().copied().unwrap_or_default();
        match (request.kind(), family) {
            (RTM_GETLINK, AF_UNSPEC | AF_INET | AF_INET6) => link::dump(request),
            (RTM_GETADDR, AF_UNSPEC | AF_INET | AF_INET6) => addr::dump(self, request, family),
            (RTM_GETROUTE, AF_UNSPEC | AF_INET | AF_INET6) => route::dump(self, request, family),
            (RTM_GETRULE, AF_UNSPEC | AF_INET | AF_INET6) => rule::dump(request, family),
            // Those of other families are asked for by those who ask for all, and there are none.
            (RTM_GETLINK | RTM_GETADDR | RTM_GETROUTE | RTM_GETRULE | RTM_GETNEIGH, _) => {
                Ok(Box::new(|_, _| Ok(Progress::Done)))
            }
            (kind, _) => Err(unsupported(kind, family)),
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
        36 | 40 | 44 => "queueing disciplines",
        64 => "neighbour tables",
        80 => "netconf",
        88 => "namespaces",
        104 => "next hop objects",
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

//! The gateway, by its netlink socket: mappings by family `ila`, routes by `NETLINK_ROUTE`.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use base::Prefix;
use fleet::{Dump, Hop, Op, RouteSlot, Target};
use ila::{CsumMode, Locator};
use netlink::attr::Iter;
use netlink::message::{Header, Message, Messages, Writer, flag, kind};
use nlsock::{FromDaemon, MAX_DATA, ToDaemon, option, protocol};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Protocol of the routes that this program makes (`rtm_protocol`).
const PROTOCOL: u8 = 200;

/// Longest time without an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Requests in one datagram.
const BATCH: usize = 128;

/// Messages of family `nlctrl`.
const NLCTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;

/// Messages of family `ila` (`linux/ila.h`).
const ILA_CMD_ADD: u8 = 1;
const ILA_CMD_DEL: u8 = 2;
const ILA_CMD_GET: u8 = 3;
const ILA_ATTR_LOCATOR: u16 = 1;
const ILA_ATTR_IDENTIFIER: u16 = 2;
const ILA_ATTR_LOCATOR_MATCH: u16 = 3;
const ILA_ATTR_IFINDEX: u16 = 4;
const ILA_ATTR_CSUM_MODE: u16 = 7;

/// Messages of `NETLINK_ROUTE` (`linux/rtnetlink.h`).
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VRF_TABLE: u16 = 1;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const RTN_UNICAST: u8 = 1;
const RTN_BLACKHOLE: u8 = 6;
const RTA_DST: u16 = 1;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;

/// Events of links (`RTMGRP_LINK`).
const LINK_GROUP: u32 = 1;

/// Flag of a link that is up (`linux/if.h`).
const IFF_UP: u32 = 1;

/// Length of `struct genlmsghdr`, of `struct rtmsg` and of `struct ifinfomsg`.
const GENERIC_LEN: usize = 4;
const ROUTE_LEN: usize = 12;
const LINK_LEN: usize = 16;

/// Error numbers of Linux.
const EEXIST: i32 = 17;
const ESRCH: i32 = 3;

/// Refusal of a request, by its `errno`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Refused(pub(crate) i32);

/// Changes of links for which the tables have to be read again.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct LinkChanges {
    /// A VRF has come or gone.
    pub(crate) has_other_vrfs: bool,
    /// A link is up that was down: routes by it were removed, and routes by it may be taken now.
    pub(crate) has_link_up: bool,
}

/// Connection to a gateway: a socket for each protocol, and one for events of links.
#[derive(Debug)]
pub(crate) struct Gateway {
    generic: NetlinkSocket,
    route: NetlinkSocket,
    links: NetlinkSocket,
    ila: u16,
    /// Tables of the VRFs at the time of the last dump.
    vrfs: BTreeMap<String, u32>,
    /// Links by their numbers, and whether they are up.
    up: BTreeMap<u32, bool>,
}

impl Gateway {
    /// Whether the gateway still runs. A connection without a request in progress has nothing to read.
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [&self.generic, &self.route].map(|socket| PollFd::new(&socket.fd, PollFlags::IN));
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready == 0)
    }

    /// Reads what has happened to links since the last dump.
    ///
    /// # Errors
    /// The gateway has ended.
    pub(crate) fn link_changes(&mut self) -> io::Result<LinkChanges> {
        let mut changes = LinkChanges::default();
        while poll(&mut [PollFd::new(&self.links.fd, PollFlags::IN)], Some(&Timespec::default()))? != 0 {
            match self.links.receive() {
                Ok(messages) => {
                    for message in Messages::new(messages) {
                        changes.has_other_vrfs |= is_other_vrf(&message, &self.vrfs);
                        let Some((index, is_up)) = state_of(&message) else { continue };
                        changes.has_link_up |= self.up.insert(index, is_up) != Some(is_up) && is_up;
                    }
                }
                // Events were lost.
                Err(err) if err.kind() == io::ErrorKind::Other => {
                    changes = LinkChanges { has_other_vrfs: true, has_link_up: true };
                }
                Err(err) => return Err(err),
            }
        }
        Ok(changes)
    }

    /// Connects to the gateway whose netlink socket has this path.
    ///
    /// # Errors
    /// No gateway runs, or it has no family `ila`.
    pub(crate) fn connect(path: &Path) -> io::Result<Self> {
        let mut generic = NetlinkSocket::connect(path, protocol::GENERIC)?;
        let route = NetlinkSocket::connect(path, protocol::ROUTE)?;
        let links = NetlinkSocket::connect(path, protocol::ROUTE)?;
        links.send(ToDaemon::Bind { port: 0, groups: LINK_GROUP }.head().as_bytes())?;
        let mut ila = None;
        let request = |w: &mut Writer| {
            w.fixed(&[CTRL_CMD_GETFAMILY, 1, 0, 0]);
            w.put_str(CTRL_ATTR_FAMILY_NAME, "ila");
        };
        generic.request(NLCTRL, flag::ACK, request, |message| {
            let id = attribute(message, GENERIC_LEN, CTRL_ATTR_FAMILY_ID);
            ila = id.and_then(|id| id.first_chunk()).map(|id| u16::from_ne_bytes(*id));
        })?;
        let ila = ila.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "the gateway has no family ila"))?;
        Ok(Self { generic, route, links, ila, vrfs: BTreeMap::new(), up: BTreeMap::new() })
    }

    /// Mappings for any device and all identifiers, VRFs, and routes of this program.
    ///
    /// # Errors
    /// The gateway has ended.
    pub(crate) fn dump(&mut self) -> io::Result<Dump> {
        let mut dump = Dump::default();
        let request = |w: &mut Writer| w.fixed(&[ILA_CMD_GET, 1, 0, 0]);
        self.generic.request(self.ila, flag::DUMP, request, |message| dump.mappings.extend(mapping_of(message)))?;
        self.vrfs.clear();
        self.up.clear();
        let request = |w: &mut Writer| w.fixed(&[0; LINK_LEN]);
        self.route.request(RTM_GETLINK, flag::DUMP, request, |message| {
            self.vrfs.extend(vrf_of(message));
            self.up.extend(state_of(message));
        })?;
        dump.vrfs = self.vrfs.iter().map(|(name, table)| (name.clone(), *table)).collect();
        for family in [AF_INET, AF_INET6] {
            let request = |w: &mut Writer| w.fixed(&[family, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            self.route.request(RTM_GETROUTE, flag::DUMP, request, |message| dump.routes.extend(route_of(message)))?;
        }
        Ok(dump)
    }

    /// Carries out operations in their order, and reports those that the gateway refuses.
    ///
    /// # Errors
    /// The gateway has ended: which operations it has carried out is unknown.
    pub(crate) fn carry_out(&mut self, ops: &[Op], mut refused: impl FnMut(Op, Refused)) -> io::Result<()> {
        let mut rest = ops;
        while let Some(first) = rest.first() {
            let is_mapping = matches!(first, Op::Mapping { .. });
            let same = rest.iter().take(BATCH).take_while(|op| matches!(op, Op::Mapping { .. }) == is_mapping).count();
            let (batch, later) = rest.split_at(same);
            rest = later;
            let ila = self.ila;
            let socket = if is_mapping { &mut self.generic } else { &mut self.route };
            let answers = socket.batch(batch, |w, op, seq| write(w, ila, op, seq))?;
            for (op, errno) in batch.iter().zip(answers) {
                match (errno, op) {
                    (0, _) => {}
                    (ESRCH, op) if op.is_deletion() => {}
                    (EEXIST, Op::Mapping { matched, old: Some(_), new: Some(new) }) => {
                        // This gateway has no replacement. Packets between the two requests have no mapping.
                        let steps = [
                            Op::Mapping { matched: *matched, old: None, new: None },
                            Op::Mapping { matched: *matched, old: None, new: Some(*new) },
                        ];
                        let answers = self.generic.batch(&steps, |w, op, seq| write(w, ila, op, seq))?;
                        if let Some(errno) = answers.into_iter().find(|errno| *errno != 0) {
                            refused(*op, Refused(errno));
                        }
                    }
                    (errno, op) => refused(*op, Refused(errno)),
                }
            }
        }
        Ok(())
    }
}

/// Writes the request for an operation.
fn write(w: &mut Writer, ila: u16, op: &Op, seq: u32) {
    let common = flag::REQUEST | flag::ACK;
    match *op {
        Op::Mapping { matched, old, new } => {
            let replace = if old.is_some() { flag::REPLACE | flag::CREATE } else { 0 };
            let command = if new.is_some() { ILA_CMD_ADD } else { ILA_CMD_DEL };
            let flags = if new.is_some() { common | replace } else { common };
            w.message(Header { kind: ila, flags, seq, port: 0 }, |w| {
                w.fixed(&[command, 1, 0, 0]);
                w.put(ILA_ATTR_LOCATOR_MATCH, &matched.0.to_be_bytes());
                if let Some(target) = new {
                    w.put(ILA_ATTR_LOCATOR, &target.locator.0.to_be_bytes());
                    w.put_u8(ILA_ATTR_CSUM_MODE, target.csum_mode as u8);
                }
            });
        }
        Op::Route { slot: RouteSlot { table, prefix, metric }, old, new } => {
            let (kind, flags) = match new {
                Some(_) if old.is_some() => (RTM_NEWROUTE, common | flag::CREATE | flag::REPLACE),
                // A route of others with that prefix stays.
                Some(_) => (RTM_NEWROUTE, common | flag::CREATE | flag::EXCL),
                None => (RTM_DELROUTE, common),
            };
            let route_type = match new {
                Some(Hop::Via(_) | Hop::Other) => RTN_UNICAST,
                Some(Hop::Blackhole) => RTN_BLACKHOLE,
                // Of any type.
                None => 0,
            };
            let family = if prefix.is_ipv4() { AF_INET } else { AF_INET6 };
            // A larger number is in the attribute alone.
            let short_table = u8::try_from(table).unwrap_or(0);
            w.message(Header { kind, flags, seq, port: 0 }, |w| {
                w.fixed(&[family, prefix.len(), 0, 0, short_table, PROTOCOL, 0, route_type, 0, 0, 0, 0]);
                w.put_ip(RTA_DST, prefix.addr());
                w.put_u32(RTA_TABLE, table);
                if metric != 0 {
                    w.put_u32(RTA_PRIORITY, metric);
                }
                if let Some(Hop::Via(via)) = new {
                    w.put_ip(RTA_GATEWAY, via);
                }
            });
        }
    }
}

/// Attribute of a message behind a header of `at` bytes.
fn attribute<'a>(message: &Message<'a>, at: usize, kind: u16) -> Option<&'a [u8]> {
    let rest = message.payload().get(at..)?;
    Iter::new(rest, 0).find(|attr| attr.kind == kind).map(|attr| attr.data)
}

/// Mapping of a dump, if it is for any device and all identifiers.
fn mapping_of(message: &Message<'_>) -> Option<(Locator, Target)> {
    let word = |kind| attribute(message, GENERIC_LEN, kind).and_then(|data| data.first_chunk().copied());
    let locator = |kind| word(kind).map(|bytes| Locator(u64::from_be_bytes(bytes)));
    let ifindex = attribute(message, GENERIC_LEN, ILA_ATTR_IFINDEX).and_then(|data| data.first_chunk());
    let is_for_any = ifindex.is_none_or(|ifindex| u32::from_ne_bytes(*ifindex) == 0);
    if !is_for_any || attribute(message, GENERIC_LEN, ILA_ATTR_IDENTIFIER).is_some() {
        return None;
    }
    let csum_mode = attribute(message, GENERIC_LEN, ILA_ATTR_CSUM_MODE).and_then(|data| data.first().copied());
    let csum_mode = CsumMode::from_number(csum_mode?)?;
    Some((locator(ILA_ATTR_LOCATOR_MATCH)?, Target { locator: locator(ILA_ATTR_LOCATOR)?, csum_mode }))
}

/// Route of a dump, if it is this program's.
fn route_of(message: &Message<'_>) -> Option<(RouteSlot, Hop)> {
    let [family, len, _, _, short_table, protocol, _, route_type, ..] =
        *message.payload().first_chunk::<ROUTE_LEN>()?;
    if message.header.kind != RTM_NEWROUTE || protocol != PROTOCOL {
        return None;
    }
    let number = |kind| Some(u32::from_ne_bytes(*attribute(message, ROUTE_LEN, kind)?.first_chunk()?));
    let address = |kind| {
        let data = attribute(message, ROUTE_LEN, kind)?;
        if family == AF_INET {
            Some(IpAddr::V4(Ipv4Addr::from(*data.first_chunk::<4>()?)))
        } else {
            Some(IpAddr::V6(Ipv6Addr::from(*data.first_chunk::<16>()?)))
        }
    };
    let any = if family == AF_INET { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let prefix = Prefix::new(address(RTA_DST).unwrap_or(any), len).ok()?;
    let table = number(RTA_TABLE).unwrap_or_else(|| short_table.into());
    let slot = match table {
        RouteSlot::MAIN => RouteSlot::main(prefix),
        table => RouteSlot { table, prefix, metric: number(RTA_PRIORITY).unwrap_or(0) },
    };
    let hop = match (route_type, address(RTA_GATEWAY)) {
        (RTN_UNICAST, Some(via)) => Hop::Via(via),
        (RTN_BLACKHOLE, None) => Hop::Blackhole,
        _ => Hop::Other,
    };
    Some((slot, hop))
}

/// Number of a link, and whether it is up.
fn state_of(message: &Message<'_>) -> Option<(u32, bool)> {
    let [_, _, _, _, index @ .., f0, f1, f2, f3, _, _, _, _] = *message.payload().first_chunk::<LINK_LEN>()?;
    let is_link = message.header.kind == RTM_NEWLINK;
    is_link.then(|| (u32::from_ne_bytes(index), u32::from_ne_bytes([f0, f1, f2, f3]) & IFF_UP != 0))
}

/// Name and table of a VRF, by a message about a link.
fn vrf_of(message: &Message<'_>) -> Option<(String, u32)> {
    let name = name_of(message)?;
    let nested = |data, kind| Iter::new(data, 0).find(|attr| attr.kind == kind).map(|attr| attr.data);
    let info = attribute(message, LINK_LEN, IFLA_LINKINFO)?;
    let kind = nested(info, IFLA_INFO_KIND)?;
    if message.header.kind != RTM_NEWLINK || kind.strip_suffix(b"\0").unwrap_or(kind) != b"vrf" {
        return None;
    }
    let table = nested(nested(info, IFLA_INFO_DATA)?, IFLA_VRF_TABLE)?;
    Some((name.to_owned(), u32::from_ne_bytes(*table.first_chunk()?)))
}

fn name_of<'a>(message: &Message<'a>) -> Option<&'a str> {
    let name = attribute(message, LINK_LEN, IFLA_IFNAME)?;
    std::str::from_utf8(name.strip_suffix(b"\0").unwrap_or(name)).ok()
}

/// Whether an event of a link is about a VRF that was not there, or is there no longer.
fn is_other_vrf(message: &Message<'_>, vrfs: &BTreeMap<String, u32>) -> bool {
    let known = name_of(message).and_then(|name| vrfs.get(name));
    match message.header.kind {
        RTM_NEWLINK => vrf_of(message).is_some_and(|(_, table)| known != Some(&table)),
        RTM_DELLINK => known.is_some(),
        _ => false,
    }
}

/// Netlink socket, carried over a Unix socket.
#[derive(Debug)]
struct NetlinkSocket {
    fd: OwnedFd,
    seq: u32,
    buffer: Vec<u8>,
}

impl NetlinkSocket {
    fn connect(path: &Path, protocol: u32) -> io::Result<Self> {
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&fd, Timeout::Recv, Some(PATIENCE))?;
        set_socket_timeout(&fd, Timeout::Send, Some(PATIENCE))?;
        rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
        let buffer = vec![0; nlsock::WORD + MAX_DATA];
        let socket = Self { fd, seq: 0, buffer };
        let mut calls = Vec::new();
        for call in [
            ToDaemon::Hello { protocol },
            ToDaemon::SetOption { option: option::CAP_ACK, value: 1 },
            ToDaemon::RecvLen(MAX_DATA as u32),
        ] {
            calls.extend_from_slice(call.head().as_bytes());
        }
        socket.send(&calls)?;
        Ok(socket)
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Messages of the next datagram.
    fn receive(&mut self) -> io::Result<&[u8]> {
        let (len, _) = rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::empty())?;
        let Some((word, messages)) = self.buffer.get(..len).and_then(<[u8]>::split_first_chunk::<{ nlsock::WORD }>)
        else {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the gateway has ended"));
        };
        match FromDaemon::from_word(*word) {
            FromDaemon::Overrun => Err(io::Error::other("the gateway has dropped replies")),
            _ => Ok(messages),
        }
    }

    /// Sends a request, and passes each message of its reply.
    fn request(
        &mut self,
        kind: u16,
        flags: u16,
        body: impl FnOnce(&mut Writer),
        mut each: impl FnMut(&Message<'_>),
    ) -> io::Result<()> {
        self.seq = self.seq.wrapping_add(1);
        let seq = self.seq;
        let mut w = Writer::default();
        w.message(Header { kind, flags: flag::REQUEST | flags, seq, port: 0 }, body);
        let data = [ToDaemon::Data(&[]).head().as_bytes(), w.as_bytes()].concat();
        self.send(&data)?;
        loop {
            for message in Messages::new(self.receive()?) {
                match message.header.kind {
                    _ if message.header.seq != seq => {}
                    kind::ERROR | kind::DONE => {
                        return match errno_of(&message) {
                            0 => Ok(()),
                            errno => Err(io::Error::from_raw_os_error(errno)),
                        };
                    }
                    _ => each(&message),
                }
            }
        }
    }

    /// Sends a request for each item in one datagram, and returns the `errno`s.
    fn batch<T>(&mut self, items: &[T], write: impl Fn(&mut Writer, &T, u32)) -> io::Result<Vec<i32>> {
        let first = self.seq.wrapping_add(1);
        let mut w = Writer::default();
        for item in items {
            self.seq = self.seq.wrapping_add(1);
            write(&mut w, item, self.seq);
        }
        let data = [ToDaemon::Data(&[]).head().as_bytes(), w.as_bytes()].concat();
        self.send(&data)?;
        let mut errnos = vec![None; items.len()];
        let mut left = items.len();
        while left != 0 {
            for message in Messages::new(self.receive()?) {
                let at = message.header.seq.wrapping_sub(first) as usize;
                if message.header.kind == kind::ERROR
                    && let Some(errno @ None) = errnos.get_mut(at)
                {
                    *errno = Some(errno_of(&message));
                    left -= 1;
                }
            }
        }
        Ok(errnos.into_iter().flatten().collect())
    }
}

/// Error number of an acknowledgement, or of the end of a dump.
fn errno_of(message: &Message<'_>) -> i32 {
    message.payload().first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno).wrapping_neg())
}

//! Rtnetlink messages by which the host side's content is read and changed (rtnetlink(7)).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, Prefix};
use netlink::attr::{Attr, Iter};
use netlink::message::{Header, Message, Writer, flag, kind};
use netlink::rtnl::nums::*;
use serde::{Deserialize, Serialize};

use super::content::{About, Content, Device, MirroredAction, MirroredAddress, MirroredRoute, MirroredRule, Step};
use crate::as_text;

/// Protocol of the routes and rules that are mirrored, a number that Linux gives to no program.
const PROTOCOL: u8 = 102;
/// The largest MTU of a mirrored IPv4 route, which is locked.
const LOCKED_MTU: u32 = 65_520;

/// Lengths of `struct ifinfomsg`, `ifaddrmsg`, `rtmsg` and `fib_rule_hdr`.
const LINK_LEN: usize = 16;
const ADDRESS_LEN: usize = 8;
const ROUTE_LEN: usize = 12;
const RULE_LEN: usize = 12;

const RTAX_LOCK: u16 = 1;
const RTAX_MTU: u16 = 2;
const RTAX_SSTHRESH: u16 = 6;
/// Attributes of a TUN or TAP device (`linux/if_link.h`).
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
/// Type of a TAP device (`IFF_TAP`).
const TYPE_TAP: u8 = 2;
/// Actions of rules (`linux/fib_rules.h`).
const FR_TO_TABLE: u8 = 1;
const FR_GOTO: u8 = 2;
const FR_NOP: u8 = 3;
const FR_BLACKHOLE: u8 = 6;
const FR_UNREACHABLE: u8 = 7;
const FR_PROHIBIT: u8 = 8;
/// Flag of a rule that matches all other packets.
const FIB_RULE_INVERT: u32 = 2;
/// Length of a prefix that suppresses no route.
const SUPPRESS_NOTHING: u32 = u32::MAX;
const VETH_INFO_PEER: u16 = 1;

/// The dumps that together are the content.
pub(super) const DUMPS: [u16; 4] = [RTM_GETLINK, RTM_GETADDR, RTM_GETROUTE, RTM_GETRULE];

/// Writes the request for a dump.
pub(crate) fn write_dump(w: &mut Writer, kind: u16, seq: u32) {
    w.message(Header { kind, flags: flag::REQUEST | flag::DUMP, seq, port: 0 }, |w| {
        w.fixed(
            &[0; LINK_LEN][..if kind == RTM_GETADDR {
                ADDRESS_LEN
            } else if kind == RTM_GETLINK {
                LINK_LEN
            } else {
                ROUTE_LEN
            }],
        );
        if kind == RTM_GETLINK {
            w.put_u32(IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        }
    });
}

/// Writes the request to make a pair of devices: one here, and a peer in the network namespace of a descriptor.
pub(super) fn write_pair(w: &mut Writer, index: u32, (name, peer): (&str, &str), mac: [u8; 6], mtu: u32, far: u32) {
    let flags = flag::REQUEST | flag::ACK | flag::CREATE | flag::EXCL;
    w.message(Header { kind: RTM_NEWLINK, flags, seq: 1, port: 0 }, |w| {
        write_link(w, index, 0, 0);
        w.put_str(IFLA_IFNAME, name);
        w.put_u32(IFLA_MTU, mtu);
        w.put(IFLA_ADDRESS, &mac);
        w.nest(IFLA_LINKINFO, |w| {
            w.put_str(IFLA_INFO_KIND, "veth");
            w.nest(IFLA_INFO_DATA, |w| {
                w.nest(VETH_INFO_PEER, |w| {
                    write_link(w, 0, 0, 0);
                    w.put_str(IFLA_IFNAME, peer);
                    w.put_u32(IFLA_MTU, mtu);
                    w.put_u32(IFLA_NET_NS_FD, far);
                });
            });
        });
    });
}

/// Writes the request to set the device of that name up.
pub(super) fn write_up(w: &mut Writer, name: &str) {
    let header = Header { kind: RTM_NEWLINK, flags: flag::REQUEST | flag::ACK, seq: 1, port: 0 };
    w.message(header, |w| {
        write_link(w, 0, IFF_UP, IFF_UP);
        w.put_str(IFLA_IFNAME, name);
    });
}

/// The `errno` of an error message; 0 of an acknowledgement, and of other messages.
pub(crate) fn errno_of(message: &Message<'_>) -> i32 {
    let errno = message.payload().first_chunk().filter(|_| message.header.kind == kind::ERROR);
    errno.map_or(0, |bytes| i32::from_ne_bytes(*bytes).saturating_neg())
}

/// Writes the request to delete a device.
pub(crate) fn write_removal(w: &mut Writer, index: u32, seq: u32) {
    let header = Header { kind: RTM_DELLINK, flags: flag::REQUEST | flag::ACK, seq, port: 0 };
    w.message(header, |w| write_link(w, index, 0, 0));
}

/// Writes the request for a step.
pub(super) fn write_step(w: &mut Writer, step: &Step, seq: u32) {
    const NEW: u16 = flag::CREATE | flag::EXCL;
    let header = |kind, more| Header { kind, flags: flag::REQUEST | flag::ACK | more, seq, port: 0 };
    match step {
        Step::Device(index, device) => w.message(header(RTM_NEWLINK, 0), |w| {
            let no_arp = if device.mac.is_some() { IFF_NOARP } else { 0 };
            write_link(w, *index, no_arp | if device.up { IFF_UP } else { 0 }, no_arp | IFF_UP);
            w.put_str(IFLA_IFNAME, &device.name);
            w.put_u32(IFLA_MTU, device.mtu);
            if let Some(mac) = device.mac {
                w.put(IFLA_ADDRESS, &mac);
            }
        }),
        Step::AddAddress(address) => w.message(header(RTM_NEWADDR, NEW), |w| write_mirrored(w, address)),
        Step::RemoveAddress(address) => w.message(header(RTM_DELADDR, 0), |w| write_mirrored(w, address)),
        // Routes to one prefix may differ in the following attributes alone.
        Step::AddRoute(route) => {
            let scope = if route.index != 0 && route.prefix.is_ipv4() { RT_SCOPE_LINK } else { RT_SCOPE_UNIVERSE };
            w.message(header(RTM_NEWROUTE, flag::CREATE | flag::APPEND), |w| write_route(w, route, PROTOCOL, scope, 0));
        }
        Step::RemoveRoute(route) => {
            w.message(header(RTM_DELROUTE, 0), |w| write_route(w, route, RTPROT_UNSPEC, RT_SCOPE_NOWHERE, 0));
        }
        Step::AddRule(rule) => w.message(header(RTM_NEWRULE, NEW), |w| write_rule(w, rule)),
        Step::RemoveRule(rule) => w.message(header(RTM_DELRULE, 0), |w| write_rule(w, rule)),
    }
}

fn write_link(w: &mut Writer, index: u32, flags: u32, change: u32) {
    w.fixed(&[0; 4]);
    [index, flags, change].into_iter().for_each(|word| w.fixed(&word.to_ne_bytes()));
}

/// Writes an address whose route to its prefix is another object.
fn write_mirrored(w: &mut Writer, address: &MirroredAddress) {
    write_address(w, address, IFA_F_NOPREFIXROUTE);
}

fn write_address(w: &mut Writer, address: &MirroredAddress, flags: u32) {
    let own = address.addr.addr();
    let v4 = own.is_ipv4();
    w.fixed(&[family(v4), address.addr.prefix().len(), 0, address.scope]);
    w.fixed(&address.index.to_ne_bytes());
    w.put_ip(IFA_LOCAL, own);
    w.put_ip(IFA_ADDRESS, address.peer.unwrap_or(own));
    if let Some(broadcast) = address.broadcast {
        w.put_ip(IFA_BROADCAST, broadcast.into());
    }
    if let Some(label) = &address.label {
        w.put_str(IFA_LABEL, label);
    }
    w.put_u32(IFA_FLAGS, flags | if v4 { 0 } else { IFA_F_NODAD });
}

/// Writes a route; a `mark` that is not 0 is its metric `ssthresh`.
fn write_route(w: &mut Writer, route: &MirroredRoute, protocol: u8, scope: u8, mark: u32) {
    let prefix = route.prefix;
    w.fixed(&[family(prefix.is_ipv4()), prefix.len(), 0, 0, RT_TABLE_UNSPEC as u8, protocol, scope, route.kind]);
    w.fixed(&[0; 4]);
    w.put_u32(RTA_TABLE, route.table);
    if prefix.len() > 0 {
        w.put_ip(RTA_DST, prefix.addr());
    }
    if route.metric != 0 {
        w.put_u32(RTA_PRIORITY, route.metric);
    }
    if route.index != 0 {
        w.put_u32(RTA_OIF, route.index);
    }
    if let Some(src) = route.src {
        w.put_ip(RTA_PREFSRC, src);
    }
    if route.is_mtu_locked {
        w.nest(RTA_METRICS, |w| {
            w.put_u32(RTAX_LOCK, 1 << RTAX_MTU);
            w.put_u32(RTAX_MTU, LOCKED_MTU);
        });
    }
    if mark != 0 {
        w.nest(RTA_METRICS, |w| w.put_u32(RTAX_SSTHRESH, mark));
    }
}

/// A route of this host, outside of the namespace of the host side.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct HostRoute {
    pub(crate) table: u32,
    #[serde(with = "as_text")]
    pub(crate) prefix: Prefix,
    pub(crate) metric: u32,
    /// `RTN_*`.
    pub(crate) kind: u8,
    /// `RTPROT_*`.
    pub(crate) protocol: u8,
    pub(crate) src: Option<IpAddr>,
    /// Numbers of the next hops' devices.
    pub(crate) devices: Vec<u32>,
    /// The metric `ssthresh`, which means nothing on a route that drops packets; 0 for none.
    pub(crate) mark: u32,
}

/// An address of an interface of this host.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(crate) struct HostAddress {
    /// Number of the interface.
    pub(crate) index: u32,
    #[serde(with = "as_text")]
    pub(crate) addr: IfAddr,
    /// `IFAPROT_*` (Linux 5.18); 0 for none.
    pub(crate) protocol: u8,
}

/// Writes the request to add or remove a route of this host.
pub(crate) fn write_host_route(w: &mut Writer, route: &HostRoute, is_new: bool, seq: u32) {
    let (kind, more) = if is_new { (RTM_NEWROUTE, flag::CREATE | flag::EXCL) } else { (RTM_DELROUTE, 0) };
    let index = route.devices.first().copied().unwrap_or(0);
    let scope = match is_new {
        false => RT_SCOPE_NOWHERE,
        true if index != 0 && route.prefix.is_ipv4() => RT_SCOPE_LINK,
        true => RT_SCOPE_UNIVERSE,
    };
    let HostRoute { table, prefix, metric, kind: of_route, protocol, src, mark, .. } = *route;
    let mirrored = MirroredRoute { table, prefix, kind: of_route, metric, index, src, is_mtu_locked: false };
    w.message(Header { kind, flags: flag::REQUEST | flag::ACK | more, seq, port: 0 }, |w| {
        write_route(w, &mirrored, protocol, scope, mark);
    });
}

/// Writes the request to add or remove an address of this host, with the route to its prefix.
pub(crate) fn write_host_address(w: &mut Writer, address: &HostAddress, is_new: bool, seq: u32) {
    let (kind, more) = if is_new { (RTM_NEWADDR, flag::CREATE | flag::EXCL) } else { (RTM_DELADDR, 0) };
    let (peer, broadcast, label) = (None, None, None);
    let mirrored = MirroredAddress { index: address.index, addr: address.addr, peer, broadcast, label, scope: 0 };
    w.message(Header { kind, flags: flag::REQUEST | flag::ACK | more, seq, port: 0 }, |w| {
        write_address(w, &mirrored, 0);
        w.put_u8(IFA_PROTO, address.protocol);
    });
}

/// Writes the request to set the MTU of a device.
pub(crate) fn write_mtu(w: &mut Writer, index: u32, mtu: u32, seq: u32) {
    let header = Header { kind: RTM_NEWLINK, flags: flag::REQUEST | flag::ACK, seq, port: 0 };
    w.message(header, |w| {
        write_link(w, index, 0, 0);
        w.put_u32(IFLA_MTU, mtu);
    });
}

/// Writes the request to set the Ethernet address of an interface.
pub(crate) fn write_mac(w: &mut Writer, index: u32, mac: &[u8; 6], seq: u32) {
    let header = Header { kind: RTM_NEWLINK, flags: flag::REQUEST | flag::ACK, seq, port: 0 };
    w.message(header, |w| {
        write_link(w, index, 0, 0);
        w.put(IFLA_ADDRESS, mac);
    });
}

/// Writes the request to give a device an alias.
pub(crate) fn write_alias(w: &mut Writer, index: u32, alias: &str, seq: u32) {
    let header = Header { kind: RTM_NEWLINK, flags: flag::REQUEST | flag::ACK, seq, port: 0 };
    w.message(header, |w| {
        write_link(w, index, 0, 0);
        w.put_str(IFLA_IFALIAS, alias);
    });
}

fn write_rule(w: &mut Writer, rule: &MirroredRule) {
    let About { to, from, iif, oif, tos, protocol, sport, dport, inverted } = &rule.about;
    let len = |prefix: &Option<(IpAddr, u8)>| prefix.map_or(0, |(_, len)| len);
    let action = match rule.then {
        MirroredAction::Table { .. } => FR_TO_TABLE,
        MirroredAction::GoTo(_) => FR_GOTO,
        MirroredAction::Nop => FR_NOP,
        MirroredAction::Blackhole => FR_BLACKHOLE,
        MirroredAction::Unreachable => FR_UNREACHABLE,
        MirroredAction::Prohibit => FR_PROHIBIT,
    };
    w.fixed(&[family(rule.v4), len(to), len(from), *tos, RT_TABLE_UNSPEC as u8, 0, 0, action]);
    w.fixed(&(if *inverted { FIB_RULE_INVERT } else { 0 }).to_ne_bytes());
    w.put_u32(FRA_PRIORITY, rule.priority);
    for (kind, prefix) in [(FRA_DST, to), (FRA_SRC, from)] {
        if let Some((addr, _)) = prefix {
            w.put_ip(kind, *addr);
        }
    }
    for (kind, device) in [(FRA_IIFNAME, iif), (FRA_OIFNAME, oif)] {
        if let Some(device) = device {
            w.put_str(kind, device);
        }
    }
    if *protocol != 0 {
        w.put_u8(FRA_IP_PROTO, *protocol);
    }
    for (kind, ports) in [(FRA_SPORT_RANGE, sport), (FRA_DPORT_RANGE, dport)] {
        if let Some((first, last)) = ports {
            w.put(kind, &[first.to_ne_bytes(), last.to_ne_bytes()].concat());
        }
    }
    match rule.then {
        MirroredAction::Table { table, suppress } => {
            w.put_u32(FRA_TABLE, table);
            if let Some(len) = suppress {
                w.put_u32(FRA_SUPPRESS_PREFIXLEN, len.into());
            }
        }
        MirroredAction::GoTo(target) => w.put_u32(FRA_GOTO, target),
        MirroredAction::Nop | MirroredAction::Blackhole | MirroredAction::Unreachable | MirroredAction::Prohibit => {}
    }
    // The kernel's own rules have another protocol.
    if !is_of_kernel(rule) {
        w.put_u8(FRA_PROTOCOL, PROTOCOL);
    }
}

fn is_of_kernel(rule: &MirroredRule) -> bool {
    MirroredRule::of_kernel(rule.v4).any(|own| own == *rule)
}

const fn family(v4: bool) -> u8 {
    if v4 { AF_INET } else { AF_INET6 }
}

/// A device as the kernel lists it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Listed {
    pub(super) index: u32,
    pub(super) device: Device,
    /// Whether the device is a TUN or TAP device.
    pub(super) is_tun: bool,
    /// Whether a packet socket on the device is promiscuous.
    pub(super) is_promiscuous: bool,
}

/// The device of a dump's message.
pub(super) fn read_link(message: &Message<'_>) -> Option<Listed> {
    let (fixed, attrs) = parts::<LINK_LEN>(message, RTM_NEWLINK)?;
    let [_, _, t0, t1, i0, i1, i2, i3, f0, f1, f2, f3, ..] = fixed;
    let is_ethernet = u16::from_ne_bytes([t0, t1]) == ARPHRD_ETHER;
    let (index, flags) = (u32::from_ne_bytes([i0, i1, i2, i3]), u32::from_ne_bytes([f0, f1, f2, f3]));
    let mut listed = Listed {
        index,
        device: Device {
            name: String::new(),
            mac: None,
            mtu: 0,
            up: flags & IFF_UP != 0,
            has_arp: is_ethernet && flags & IFF_NOARP == 0,
        },
        is_tun: false,
        is_promiscuous: false,
    };
    for attr in attrs {
        match attr.kind {
            IFLA_IFNAME => attr.text()?.clone_into(&mut listed.device.name),
            IFLA_PROMISCUITY => listed.is_promiscuous = attr.u32() > 0,
            IFLA_MTU => listed.device.mtu = attr.u32(),
            IFLA_ADDRESS if is_ethernet => listed.device.mac = attr.data.first_chunk().copied(),
            IFLA_LINKINFO => {
                let kind = attr.iter().find(|attr| attr.kind == IFLA_INFO_KIND);
                listed.is_tun = kind.and_then(|kind| kind.text()) == Some("tun");
            }
            _ => {}
        }
    }
    Some(listed)
}

/// A TUN or TAP device of this host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct TunDevice {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) alias: Option<String>,
    pub(crate) up: bool,
    pub(crate) is_tap: bool,
    pub(crate) has_many_queues: bool,
    /// Whether a program has a queue of the device.
    pub(crate) is_attached: bool,
}

/// The TUN or TAP device of a message about a link.
pub(crate) fn read_tun(message: &Message<'_>) -> Option<TunDevice> {
    let listed = read_link(message).filter(|listed| listed.is_tun)?;
    let (_, mut attrs) = parts::<LINK_LEN>(message, RTM_NEWLINK)?;
    let mut device = TunDevice {
        index: listed.index,
        name: listed.device.name,
        alias: None,
        up: listed.device.up,
        is_tap: false,
        has_many_queues: false,
        is_attached: true,
    };
    let mut info = None;
    attrs.by_ref().for_each(|attr| match attr.kind {
        // A device without a queue has no carrier.
        IFLA_CARRIER => device.is_attached = attr.u8() != 0,
        IFLA_IFALIAS => device.alias = attr.text().map(str::to_owned),
        IFLA_LINKINFO => info = attr.iter().find(|attr| attr.kind == IFLA_INFO_DATA),
        _ => {}
    });
    for attr in info.iter().flat_map(Attr::iter) {
        match attr.kind {
            IFLA_TUN_TYPE => device.is_tap = attr.u8() == TYPE_TAP,
            IFLA_TUN_MULTI_QUEUE => device.has_many_queues = attr.u8() != 0,
            _ => {}
        }
    }
    Some(device)
}

/// Number of the link of a message about a link, or of the interface of one about an address.
pub(crate) fn index_of(message: &Message<'_>) -> Option<u32> {
    match message.header.kind {
        RTM_NEWLINK | RTM_DELLINK | RTM_NEWADDR | RTM_DELADDR => {
            message.payload().get(4..8)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
        }
        _ => None,
    }
}

/// The address of a message about an address of this host.
pub(crate) fn read_host_address(message: &Message<'_>) -> Option<HostAddress> {
    let MirroredAddress { index, addr, .. } = read_address(message)?;
    let (_, mut attrs) = parts::<ADDRESS_LEN>(message, RTM_NEWADDR)?;
    let protocol = attrs.find(|attr| attr.kind == IFA_PROTO).map_or(0, |attr| attr.u8());
    Some(HostAddress { index, addr, protocol })
}

/// The route of a message about a route of this host; `None` for an entry of a cache, and for other families.
pub(crate) fn read_host_route(message: &Message<'_>) -> Option<HostRoute> {
    let of_kind = |kind| parts::<ROUTE_LEN>(message, kind);
    let (fixed, attrs) = of_kind(RTM_NEWROUTE).or_else(|| of_kind(RTM_DELROUTE))?;
    let [family, len, _, _, table, protocol, _, kind, f0, f1, f2, f3] = fixed;
    let v4 = is_v4(family)?;
    if u32::from_ne_bytes([f0, f1, f2, f3]) & RTM_F_CLONED != 0 {
        return None;
    }
    let prefix = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
    let (table, metric, src, devices, mark) = (table.into(), 0, None, Vec::new(), 0);
    let mut route = HostRoute { table, prefix, metric, kind, protocol, src, devices, mark };
    for attr in attrs {
        match attr.kind {
            RTA_TABLE => route.table = attr.u32(),
            RTA_DST => route.prefix = Prefix::containing(attr.ip(v4)?, len).ok()?,
            RTA_PRIORITY => route.metric = attr.u32(),
            // The kernel names `lo` for IPv6 routes that drop packets.
            RTA_OIF if kind == RTN_UNICAST => route.devices.push(attr.u32()),
            RTA_MULTIPATH => route.devices.extend(next_hops(attr.data)),
            RTA_PREFSRC => route.src = attr.ip(v4),
            RTA_METRICS => {
                let mark = attr.iter().find(|attr| attr.kind == RTAX_SSTHRESH);
                route.mark = mark.map_or(0, |attr| attr.u32());
            }
            _ => {}
        }
    }
    Some(route)
}

/// Devices of the next hops of a multipath route: each is a `struct rtnexthop`, with its attributes.
fn next_hops(mut data: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let Some([l0, l1, _, _, i0, i1, i2, i3]) = data.first_chunk() {
        devices.push(u32::from_ne_bytes([*i0, *i1, *i2, *i3]));
        let len = usize::from(u16::from_ne_bytes([*l0, *l1]));
        data = data.get(netlink::message::align(len.max(8))..).unwrap_or_default();
    }
    devices
}

/// Adds the object of a message of a dump to `content`, if it is to be compared: devices, and the objects of those in
/// `ours`.
pub(super) fn read(message: &Message<'_>, ours: &BTreeSet<u32>, content: &mut Content) {
    match message.header.kind {
        RTM_NEWLINK => {
            let listed = read_link(message).filter(|listed| ours.contains(&listed.index));
            content.devices.extend(listed.map(|listed| (listed.index, listed.device)));
        }
        RTM_NEWADDR => {
            let address = read_address(message).filter(|address| {
                ours.contains(&address.index) && (address.index != LOOPBACK || !address.addr.addr().is_loopback())
            });
            content.addresses.extend(address);
        }
        RTM_NEWROUTE => {
            let route = read_route(message).filter(|route| route.index == 0 || ours.contains(&route.index));
            content.routes.extend(route);
        }
        RTM_NEWRULE => content.rules.extend(read_rule(message)),
        _ => {}
    }
}

/// The number of the namespace's own `lo`.
pub(super) const LOOPBACK: u32 = 1;

fn read_address(message: &Message<'_>) -> Option<MirroredAddress> {
    let (fixed, attrs) = parts::<ADDRESS_LEN>(message, RTM_NEWADDR)?;
    let [family, len, _, scope, i0, i1, i2, i3] = fixed;
    let v4 = is_v4(family)?;
    let (mut local, mut address, mut broadcast, mut label) = (None, None, None, None);
    for attr in attrs {
        match attr.kind {
            IFA_LOCAL => local = attr.ip(v4),
            IFA_ADDRESS => address = attr.ip(v4),
            IFA_BROADCAST => broadcast = attr.data.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets)),
            IFA_LABEL => label = attr.text().map(str::to_owned),
            _ => {}
        }
    }
    let own = local.or(address)?;
    Some(MirroredAddress {
        index: u32::from_ne_bytes([i0, i1, i2, i3]),
        addr: IfAddr::new(own, len).ok()?,
        peer: address.filter(|address| *address != own),
        broadcast,
        label,
        scope: if v4 { scope } else { 0 },
    })
}

/// A route that is compared: not one of the kernel's own, and not in the local table.
fn read_route(message: &Message<'_>) -> Option<MirroredRoute> {
    let (fixed, attrs) = parts::<ROUTE_LEN>(message, RTM_NEWROUTE)?;
    let [family, len, _, _, table, protocol, _, kind, f0, f1, f2, f3] = fixed;
    let v4 = is_v4(family)?;
    let is_error = matches!(kind, RTN_BLACKHOLE | RTN_UNREACHABLE | RTN_PROHIBIT | RTN_THROW);
    if protocol == RTPROT_KERNEL
        || u32::from_ne_bytes([f0, f1, f2, f3]) & RTM_F_CLONED != 0
        || !(is_error || kind == RTN_UNICAST)
    {
        return None;
    }
    let any = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
    let (table, src) = (u32::from(table), None);
    let mut route = MirroredRoute { table, prefix: any, kind, metric: 0, index: 0, src, is_mtu_locked: false };
    for attr in attrs {
        match attr.kind {
            RTA_TABLE => route.table = attr.u32(),
            RTA_DST => route.prefix = Prefix::containing(attr.ip(v4)?, len).ok()?,
            RTA_PRIORITY => route.metric = attr.u32(),
            // The kernel names `lo` for IPv6.
            RTA_OIF if !is_error => route.index = attr.u32(),
            RTA_PREFSRC => route.src = attr.ip(v4),
            RTA_METRICS => route.is_mtu_locked = is_locked(&attr),
            _ => {}
        }
    }
    (route.table != RT_TABLE_LOCAL).then_some(route)
}

fn is_locked(metrics: &Attr<'_>) -> bool {
    let value = |kind| metrics.iter().find(|attr| attr.kind == kind).map(|attr| attr.u32());
    value(RTAX_LOCK) == Some(1 << RTAX_MTU) && value(RTAX_MTU) == Some(LOCKED_MTU)
}

/// A rule of ours, or one of the kernel's own.
fn read_rule(message: &Message<'_>) -> Option<MirroredRule> {
    let (fixed, attrs) = parts::<RULE_LEN>(message, RTM_NEWRULE)?;
    let [family, dst_len, src_len, tos, table, _, _, action, flags @ ..] = fixed;
    let v4 = is_v4(family)?;
    let inverted = u32::from_ne_bytes(flags) & FIB_RULE_INVERT != 0;
    let mut about = About { tos, inverted, ..About::default() };
    let (mut table, mut suppress, mut target) = (u32::from(table), SUPPRESS_NOTHING, 0);
    let (mut priority, mut is_ours) = (0, false);
    for attr in attrs {
        match attr.kind {
            FRA_PRIORITY => priority = attr.u32(),
            FRA_IIFNAME => about.iif = Some(attr.text()?.to_owned()),
            FRA_OIFNAME => about.oif = Some(attr.text()?.to_owned()),
            FRA_DST => about.to = Some((attr.ip(v4)?, dst_len)),
            FRA_SRC => about.from = Some((attr.ip(v4)?, src_len)),
            FRA_IP_PROTO => about.protocol = attr.u8(),
            FRA_SPORT_RANGE => about.sport = Some(ports(&attr)?),
            FRA_DPORT_RANGE => about.dport = Some(ports(&attr)?),
            FRA_TABLE => table = attr.u32(),
            FRA_SUPPRESS_PREFIXLEN => suppress = attr.u32(),
            FRA_GOTO => target = attr.u32(),
            FRA_PROTOCOL => is_ours = attr.u8() == PROTOCOL,
            _ => {}
        }
    }
    let then = match action {
        FR_TO_TABLE => MirroredAction::Table { table, suppress: u8::try_from(suppress).ok() },
        FR_GOTO => MirroredAction::GoTo(target),
        FR_NOP => MirroredAction::Nop,
        FR_BLACKHOLE => MirroredAction::Blackhole,
        FR_UNREACHABLE => MirroredAction::Unreachable,
        FR_PROHIBIT => MirroredAction::Prohibit,
        _ => return None,
    };
    let rule = MirroredRule { v4, priority, about, then };
    (is_ours || is_of_kernel(&rule)).then_some(rule)
}

/// First and last port of a rule.
fn ports(attr: &Attr<'_>) -> Option<(u16, u16)> {
    let [a, b, c, d] = *attr.data.first_chunk()?;
    Some((u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])))
}

const fn is_v4(family: u8) -> Option<bool> {
    match family {
        AF_INET => Some(true),
        AF_INET6 => Some(false),
        _ => None,
    }
}

/// The fixed part of a message of that kind, and its attributes.
fn parts<'a, const LEN: usize>(message: &Message<'a>, kind: u16) -> Option<([u8; LEN], Iter<'a>)> {
    let payload = message.payload();
    let fixed = payload.first_chunk().filter(|_| message.header.kind == kind)?;
    Some((*fixed, Iter::new(&payload[LEN..], 0)))
}

#[cfg(test)]
mod tests {
    use netlink::message::Messages;

    use super::*;

    /// Fields of the request for `step`: the kernel's messages have the same form.
    fn read_back(step: &Step) -> Content {
        let mut writer = Writer::default();
        write_step(&mut writer, step, 1);
        let mut content = Content::default();
        Messages::new(writer.as_bytes()).for_each(|message| read(&message, &BTreeSet::from([1, 7]), &mut content));
        content
    }

    fn address(index: u32, addr: &str, peer: Option<&str>) -> MirroredAddress {
        let peer = peer.map(|peer| peer.parse().unwrap());
        let (broadcast, label) = (Some(Ipv4Addr::new(10, 0, 0, 255)), Some("eth0:x".to_owned()));
        MirroredAddress { index, addr: addr.parse().unwrap(), peer, broadcast, label, scope: 0 }
    }

    #[test]
    fn address_written_is_read_as_it_was() {
        for address in [address(7, "10.0.0.1/24", None), address(7, "10.0.0.1/32", Some("10.0.0.2"))] {
            let content = read_back(&Step::AddAddress(address.clone()));
            assert_eq!(content.addresses, BTreeSet::from([address]));
        }
        for others in [address(8, "10.0.0.1/24", None), address(1, "127.0.0.1/8", None)] {
            assert_eq!(read_back(&Step::AddAddress(others)), Content::default());
        }
    }

    #[test]
    fn route_written_is_read_as_it_was() {
        let route = MirroredRoute {
            table: 1000,
            prefix: "10.9.0.0/16".parse().unwrap(),
            kind: RTN_UNICAST,
            metric: 20,
            index: 7,
            src: Some("10.0.0.1".parse().unwrap()),
            is_mtu_locked: true,
        };
        let unreachable = MirroredRoute { kind: RTN_UNREACHABLE, index: 0, src: None, is_mtu_locked: false, ..route };
        let default = MirroredRoute { prefix: Prefix::ANY_V6, src: None, is_mtu_locked: false, table: 254, ..route };
        for route in [route, unreachable, default] {
            assert_eq!(read_back(&Step::AddRoute(route)).routes, BTreeSet::from([route]));
        }
        for others in [MirroredRoute { index: 9, ..route }, MirroredRoute { table: RT_TABLE_LOCAL, ..route }] {
            assert_eq!(read_back(&Step::AddRoute(others)), Content::default());
        }
    }

    /// The message that `write` writes, read by `read`.
    fn written<T>(write: impl FnOnce(&mut Writer), read: impl FnOnce(&Message<'_>) -> T) -> T {
        let mut writer = Writer::default();
        write(&mut writer);
        read(&Messages::new(writer.as_bytes()).next().unwrap())
    }

    #[test]
    fn route_and_address_of_this_host_are_read_as_they_were() {
        let unicast = HostRoute {
            table: 254,
            prefix: "10.3.0.0/16".parse().unwrap(),
            metric: 50,
            kind: RTN_UNICAST,
            protocol: 103,
            src: Some("10.1.0.1".parse().unwrap()),
            devices: vec![7],
            mark: 0,
        };
        let prefix = Prefix::ANY_V6;
        let blackhole =
            HostRoute { prefix, kind: RTN_BLACKHOLE, src: None, devices: vec![], mark: 9, ..unicast.clone() };
        for (route, is_new) in [(&unicast, true), (&blackhole, true), (&unicast, false), (&blackhole, false)] {
            let read = written(|w| write_host_route(w, route, is_new, 1), read_host_route);
            assert_eq!(read.as_ref(), Some(route));
        }
        let address = HostAddress { index: 7, addr: "fd00:1::1/64".parse().unwrap(), protocol: 103 };
        assert_eq!(written(|w| write_host_address(w, &address, true, 1), read_host_address), Some(address));
        assert_eq!(written(|w| write_host_address(w, &address, false, 1), index_of), Some(7));
    }

    #[test]
    fn next_hops_of_a_multipath_route_are_read_from_any_bytes() {
        let hop = |len: u16, index: u32| [&len.to_ne_bytes()[..], &[0, 0], &index.to_ne_bytes()].concat();
        let with_gateway = [hop(16, 3), vec![0; 8]].concat();
        assert_eq!(next_hops(&[with_gateway, hop(8, 7)].concat()), [3, 7]);
        assert_eq!(next_hops(&[hop(0, 3), hop(8, 7)].concat()), [3, 7], "a length of 0 does not repeat for ever");
        assert_eq!(next_hops(&[hop(u16::MAX, 3), vec![1; 5]].concat()), [3]);
    }

    #[test]
    fn tun_device_has_its_alias_and_carrier() {
        let message = |kind: &'static str, carrier| {
            move |w: &mut Writer| {
                w.message(Header { kind: RTM_NEWLINK, flags: 0, seq: 1, port: 0 }, |w| {
                    write_link(w, 7, IFF_UP, 0);
                    w.put_str(IFLA_IFNAME, "tun0");
                    w.put_u8(IFLA_CARRIER, carrier);
                    w.put_str(IFLA_IFALIAS, "fatpath left");
                    w.nest(IFLA_LINKINFO, |w| {
                        w.put_str(IFLA_INFO_KIND, kind);
                        w.nest(IFLA_INFO_DATA, |w| {
                            w.put_u8(IFLA_TUN_TYPE, TYPE_TAP);
                            w.put_u8(IFLA_TUN_MULTI_QUEUE, 1);
                        });
                    });
                });
            }
        };
        let mut want = TunDevice {
            index: 7,
            name: "tun0".to_owned(),
            alias: Some("fatpath left".to_owned()),
            up: true,
            is_tap: true,
            has_many_queues: true,
            is_attached: true,
        };
        assert_eq!(written(message("tun", 1), read_tun).as_ref(), Some(&want));
        want.is_attached = false;
        assert_eq!(written(message("tun", 0), read_tun), Some(want));
        assert_eq!(written(message("veth", 1), read_tun), None);
    }

    #[test]
    fn device_and_rule_written_are_read_as_they_were() {
        let mac = Some([2, 0, 0, 0, 0, 1]);
        let device = Device { name: "eth0".to_owned(), mac, mtu: 1500, up: true, has_arp: false };
        let mut writer = Writer::default();
        write_step(&mut writer, &Step::Device(7, device.clone()), 1);
        // The kernel's message also has the type Ethernet.
        let mut bytes = writer.into_bytes();
        bytes[18..20].copy_from_slice(&ARPHRD_ETHER.to_ne_bytes());
        let message = Messages::new(&bytes).next().unwrap();
        assert_eq!(read_link(&message), Some(Listed { index: 7, device, is_tun: false, is_promiscuous: false }));
        let vrf = MirroredRule::of_vrf(true, "red".to_owned(), 300);
        let hidden = ["10.1.0.1", "fd00::1"].map(|addr| MirroredRule::hides(addr.parse().unwrap()));
        let local = [true, false].map(MirroredRule::local_of_vrfs);
        let from = ["10.1.0.1", "fd00::1"].map(|addr| MirroredRule::from_vrf(addr.parse().unwrap(), 300));
        let about = About {
            to: Some(("10.2.0.0".parse().unwrap(), 16)),
            from: Some(("10.1.0.0".parse().unwrap(), 24)),
            iif: Some("lo".to_owned()),
            tos: 0x10,
            protocol: 17,
            sport: Some((1, 2)),
            dport: Some((53, 53)),
            inverted: true,
            oif: None,
        };
        let then = [
            MirroredAction::Table { table: 100, suppress: Some(0) },
            MirroredAction::GoTo(600),
            MirroredAction::Nop,
            MirroredAction::Blackhole,
            MirroredAction::Unreachable,
            MirroredAction::Prohibit,
        ];
        let of_node = then.map(|then| MirroredRule { v4: true, priority: 500, about: about.clone(), then });
        let of_kernel = MirroredRule::of_kernel(true).chain(MirroredRule::of_kernel(false));
        for rule in local.into_iter().chain(from).chain(hidden).chain([vrf]).chain(of_node).chain(of_kernel) {
            assert_eq!(read_back(&Step::AddRule(rule.clone())).rules, BTreeSet::from([rule]));
        }
    }

    #[test]
    fn errno_is_that_of_error_messages_alone() {
        let of = |kind, errno: i32| {
            let mut writer = Writer::default();
            writer.message(Header { kind, ..Header::default() }, |w| w.fixed(&errno.to_ne_bytes()));
            errno_of(&Messages::new(writer.as_bytes()).next().unwrap())
        };
        assert_eq!(
            [of(kind::ERROR, 0), of(kind::ERROR, -17), of(kind::DONE, -17), of(kind::ERROR, i32::MIN)],
            [0, 17, 0, i32::MAX]
        );
    }

    #[test]
    fn truncated_message_is_ignored() {
        let mut writer = Writer::default();
        write_step(&mut writer, &Step::AddAddress(address(7, "10.0.0.1/24", None)), 1);
        let whole = writer.into_bytes();
        for len in 16..whole.len() {
            let mut bytes = whole[..len].to_vec();
            bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
            let mut content = Content::default();
            for kind in [RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWRULE] {
                bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
                Messages::new(&bytes).for_each(|message| read(&message, &BTreeSet::from([7]), &mut content));
            }
            assert!(content.addresses.len() <= 1, "{len}");
        }
    }
}

//! `SIOCADDRT` and `SIOCDELRT` (Linux `rtentry_to_fib_config`, `rtmsg_to_fib6_config`), as requests of rtnetlink.

use std::ffi::CStr;

use libc::{c_short, c_uchar, c_ulong, c_ushort, in6_addr, sockaddr};

use super::exchange::{
    Address, CREATE, Link, LinkKey, addresses, attribute, change, exchange, link, put_attribute, word,
};
use super::ipv4::{is_ipv4, octets};
use crate::errno::Errno;
use crate::program_memory::Text;

/// `struct rtentry`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RtEntry<'a> {
    pad1: c_ulong,
    dst: sockaddr,
    gateway: sockaddr,
    genmask: sockaddr,
    flags: c_ushort,
    pad2: c_short,
    pad3: c_ulong,
    tos: c_uchar,
    class: c_uchar,
    pad4: [c_short; 3],
    /// Metric, plus 1.
    metric: c_short,
    device: Text<'a>,
    mtu: c_ulong,
    window: c_ulong,
    irtt: c_ushort,
}

/// `struct in6_rtmsg`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct In6RtMsg {
    dst: in6_addr,
    src: in6_addr,
    gateway: in6_addr,
    kind: u32,
    dst_len: u16,
    src_len: u16,
    metric: u32,
    /// Lifetime, in [`TICKS`].
    info: c_ulong,
    flags: u32,
    index: i32,
}

/// `RTF_*`.
const GATEWAY: u32 = 0x0002;
const HOST: u32 = 0x0004;
const MTU: u32 = 0x0040;
const WINDOW: u32 = 0x0080;
const IRTT: u32 = 0x0100;
const REJECT: u32 = 0x0200;
const EXPIRES: u32 = 0x0040_0000;

/// `RTAX_*`.
const RTAX_WINDOW: u16 = 3;
const RTAX_RTT: u16 = 4;
const RTAX_ADVMSS: u16 = 8;
/// `RTA_EXPIRES`.
const RTA_EXPIRES: u16 = 23;
/// `IFLA_INFO_*`.
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_SLAVE_KIND: u16 = 4;
const INFO_SLAVE_DATA: u16 = 5;
/// `IFLA_VRF_TABLE`, `IFLA_VRF_PORT_TABLE`.
const VRF_TABLE: u16 = 1;
/// Metric of IPv6 routes without one (`IP6_RT_PRIO_USER`).
const PRIO_USER: u32 = 1024;
/// Units of a route's lifetime in a second (`USER_HZ`).
const TICKS: c_ulong = 100;

/// Route of a request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct Route {
    family: u8,
    destination: Vec<u8>,
    prefix_len: u8,
    scope: u8,
    kind: u8,
    table: u32,
    metric: Option<u32>,
    gateway: Option<Vec<u8>>,
    device: Option<i32>,
    /// Preferred source address.
    source: Option<Vec<u8>>,
    /// Attributes of `RTA_METRICS`.
    metrics: Vec<u8>,
    expires: Option<u32>,
}

/// Adds or deletes an IPv4 route.
///
/// # Errors
/// As `rtentry_to_fib_config` of Linux; the gateway's error.
pub(super) fn set_v4(entry: &RtEntry<'_>, adds: bool) -> Result<(), Errno> {
    let name = entry.device.get().map(CStr::to_bytes);
    let device = name.filter(|_| u32::from(entry.flags) & REJECT == 0).map(OutputDevice::find).transpose()?;
    send(&v4(entry, device.as_ref(), adds)?, adds)
}

/// Output device of an IPv4 route.
struct OutputDevice {
    link: Link,
    /// Address with the label in the device's name (`eth0:1`).
    labelled: Option<Vec<u8>>,
}

impl OutputDevice {
    fn find(name: &[u8]) -> Result<Self, Errno> {
        let device = name.split(|&byte| byte == b':').next().unwrap_or(name);
        let link = link(LinkKey::Name(device))?;
        if device.len() == name.len() {
            return Ok(Self { link, labelled: None });
        }
        let is_it = |address: &&Address| {
            is_ipv4(address) && address.index == link.index && address.label.as_deref() == Some(name)
        };
        let labelled = addresses()?.iter().find(is_it).map(|address| address.own.clone());
        Ok(Self { link, labelled: Some(labelled.ok_or(Errno(libc::ENODEV))?) })
    }
}

fn v4(entry: &RtEntry<'_>, device: Option<&OutputDevice>, adds: bool) -> Result<Route, Errno> {
    let flags = u32::from(entry.flags);
    let destination = octets(&entry.dst).ok_or(Errno(libc::EAFNOSUPPORT))?;
    let prefix_len = if flags & HOST != 0 { 32 } else { v4_prefix_len(&entry.genmask, destination)? };
    let mut route = Route {
        family: libc::AF_INET as u8,
        destination: destination.to_vec(),
        prefix_len,
        scope: libc::RT_SCOPE_HOST,
        kind: libc::RTN_UNREACHABLE,
        table: libc::RT_TABLE_MAIN.into(),
        metric: (entry.metric != 0).then(|| (i32::from(entry.metric) - 1) as u32),
        ..Route::default()
    };
    if flags & REJECT != 0 {
        return Ok(route);
    }
    route.kind = libc::RTN_UNICAST;
    if let Some(OutputDevice { link, labelled }) = device {
        route.device = Some(link.index);
        route.source.clone_from(labelled);
        route.table = table_of(link);
    }
    route.gateway = octets(&entry.gateway).filter(|gateway| *gateway != [0; 4]).map(|gateway| gateway.to_vec());
    let is_by_gateway = flags & GATEWAY != 0;
    route.scope = match is_by_gateway && route.gateway.is_some() {
        true => libc::RT_SCOPE_UNIVERSE,
        false if adds => libc::RT_SCOPE_LINK,
        false => libc::RT_SCOPE_NOWHERE,
    };
    if !adds {
        return Ok(route);
    }
    if is_by_gateway && route.gateway.is_none() {
        return Err(Errno(libc::EINVAL));
    }
    let metrics = [
        (MTU, RTAX_ADVMSS, entry.mtu.saturating_sub(40)),
        (WINDOW, RTAX_WINDOW, entry.window),
        (IRTT, RTAX_RTT, c_ulong::from(entry.irtt) << 3),
    ];
    for (_, kind, value) in metrics.into_iter().filter(|&(flag, ..)| flags & flag != 0) {
        put_attribute(&mut route.metrics, kind, &(value as u32).to_ne_bytes());
    }
    Ok(route)
}

/// Length of a mask without gaps, beyond which the destination has no bits.
fn v4_prefix_len(mask: &sockaddr, destination: [u8; 4]) -> Result<u8, Errno> {
    let as_internet = sockaddr { sa_family: libc::AF_INET as u16, ..*mask };
    let bits = u32::from_be_bytes(octets(&as_internet).unwrap_or_default());
    if octets(mask).is_none() && (bits != 0 || mask.sa_family != 0) {
        return Err(Errno(libc::EAFNOSUPPORT));
    }
    let has_gap = bits.leading_ones() + bits.trailing_zeros() < u32::BITS;
    if has_gap || u32::from_be_bytes(destination) & !bits != 0 {
        return Err(Errno(libc::EINVAL));
    }
    Ok(bits.leading_ones() as u8)
}

/// Table for routes by a device: that of its VRF, or the main one (Linux `l3mdev_fib_table`).
fn table_of(link: &Link) -> u32 {
    let data = if link.is(INFO_KIND, b"vrf") {
        link.info(INFO_DATA)
    } else if link.is(INFO_SLAVE_KIND, b"vrf") {
        link.info(INFO_SLAVE_DATA)
    } else {
        None
    };
    data.and_then(|data| attribute(data, VRF_TABLE)).and_then(word).unwrap_or(libc::RT_TABLE_MAIN.into())
}

/// Adds or deletes an IPv6 route.
///
/// # Errors
/// `ENODEV`: the device does not exist; `EINVAL`: a prefix is too long; the gateway's error.
pub(super) fn set_v6(request: &In6RtMsg, adds: bool) -> Result<(), Errno> {
    let device = match request.index {
        0 => None,
        index => Some(link(LinkKey::Index(index))?),
    };
    send(&v6(request, device.as_ref(), adds)?, adds)
}

fn v6(request: &In6RtMsg, device: Option<&Link>, adds: bool) -> Result<Route, Errno> {
    let prefix_len = |len: u16| u8::try_from(len).ok().filter(|&len| len <= 128).ok_or(Errno(libc::EINVAL));
    if prefix_len(request.src_len)? != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let flags = request.flags;
    let rejects = flags & REJECT != 0;
    let metric = Some(request.metric).filter(|&metric| metric != 0);
    Ok(Route {
        family: libc::AF_INET6 as u8,
        destination: request.dst.s6_addr.to_vec(),
        prefix_len: prefix_len(request.dst_len)?,
        scope: libc::RT_SCOPE_UNIVERSE,
        kind: if rejects { libc::RTN_UNREACHABLE } else { libc::RTN_UNICAST },
        table: device.map_or(libc::RT_TABLE_MAIN.into(), table_of),
        metric: metric.or_else(|| adds.then_some(PRIO_USER)),
        gateway: (flags & GATEWAY != 0).then(|| request.gateway.s6_addr.to_vec()),
        device: device.filter(|_| !rejects).map(|link| link.index),
        expires: (adds && flags & EXPIRES != 0).then_some((request.info / TICKS) as u32),
        ..Route::default()
    })
}

fn send(route: &Route, adds: bool) -> Result<(), Errno> {
    let body = message(route, adds);
    if adds { change(libc::RTM_NEWROUTE, CREATE, &body) } else { change(libc::RTM_DELROUTE, 0, &body) }
}

/// `struct rtmsg` with attributes.
fn message(route: &Route, adds: bool) -> Vec<u8> {
    let protocol = if adds { libc::RTPROT_BOOT } else { libc::RTPROT_UNSPEC };
    let mut body = vec![route.family, route.prefix_len, 0, 0, 0, protocol, route.scope, route.kind, 0, 0, 0, 0];
    if route.prefix_len > 0 {
        put_attribute(&mut body, libc::RTA_DST, &route.destination);
    }
    let mut put = |kind: u16, value: &[u8]| put_attribute(&mut body, kind, value);
    put(libc::RTA_TABLE, &route.table.to_ne_bytes());
    route.device.iter().for_each(|device| put(libc::RTA_OIF, &device.to_ne_bytes()));
    route.metric.iter().for_each(|metric| put(libc::RTA_PRIORITY, &metric.to_ne_bytes()));
    route.gateway.iter().for_each(|gateway| put(libc::RTA_GATEWAY, gateway));
    route.source.iter().for_each(|source| put(libc::RTA_PREFSRC, source));
    route.expires.iter().for_each(|expires| put(RTA_EXPIRES, &expires.to_ne_bytes()));
    if !route.metrics.is_empty() {
        put(libc::RTA_METRICS, &route.metrics);
    }
    body
}

/// Number of the interface by which an IPv4 address is reached.
///
/// # Errors
/// The gateway's error, such as `ENETUNREACH`.
pub(super) fn output_interface(to: [u8; 4]) -> Result<i32, Errno> {
    let mut body = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    put_attribute(&mut body, libc::RTA_DST, &to);
    let mut found = None;
    exchange(libc::RTM_GETROUTE, 0, &body, |body| {
        found = body.get(12..).and_then(|attributes| attribute(attributes, libc::RTA_OIF)).and_then(word);
    })?;
    found.map(|index| index as i32).ok_or(Errno(libc::EINVAL))
}

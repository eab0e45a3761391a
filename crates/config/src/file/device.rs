//! `device` of a `[[link]]`: addresses and routes of the host's side of a TUN or TAP device.

use std::collections::HashSet;
use std::net::IpAddr;

use base::{IfAddr, Prefix};

use super::reader::{Result, Value, quoted};
use crate::device::{DeviceConfig, DeviceRoute};
use crate::model::LinkConfig;

const KEYS: &[&str] = &["addresses", "routes"];
const ROUTE_KEYS: &[&str] = &["to", "src", "metric"];
const PREFIX_HINT: &str = "a prefix such as \"10.2.0.0/24\", or \"default\"";

/// Reads the host's side of a device. `own` are the addresses of the node on the link, and `others` the earlier links.
pub(super) fn read(value: &Value<'_>, own: &[IfAddr], others: &[LinkConfig]) -> Result<DeviceConfig> {
    let table = value.table(KEYS)?;
    let addresses = table.get("addresses").map(|value| unicast_addresses(&value)).transpose()?.unwrap_or_default();
    if let (Some(value), Some(shared)) =
        (table.get("addresses"), addresses.iter().find(|address| own.iter().any(|own| own.addr() == address.addr())))
    {
        let text = "is this node's own address on the link, and this one is the host's; use another";
        return Err(value.error(format!("{} {text}", shared.addr())));
    }
    let mut routes = Vec::new();
    let mut seen = HashSet::new();
    for item in table.get("routes").map_or_else(|| Ok(Vec::new()), |value| value.list())? {
        let route = route(&item)?;
        if !seen.insert((route.to, route.metric)) {
            let (to, metric) = (route.to, route.metric);
            return Err(item.error(format!("{to} with metric {metric} is given twice; take one out")));
        }
        let same = |other: &DeviceRoute| (other.to, other.metric) == (route.to, route.metric);
        if let Some(other) = others.iter().find(|other| other.device.routes.iter().any(same)) {
            let (to, metric) = (route.to, route.metric);
            let text = format!("{to} with metric {metric} is already a route of {}; use another metric", other.name);
            return Err(item.error(text));
        }
        if let Some(address) = addresses.iter().find(|address| connects(**address, route)) {
            return Err(item.error(format!("{} is the route to the prefix of {address}; take it out", route.to)));
        }
        routes.push(route);
    }
    Ok(DeviceConfig { addresses, routes })
}

/// Reads a list of unicast addresses with their prefix lengths.
pub(super) fn unicast_addresses(value: &Value<'_>) -> Result<Vec<IfAddr>> {
    let mut addresses = Vec::new();
    for item in value.list()? {
        let address = item.if_addr("an address with its prefix length, such as \"10.1.0.254/24\"")?;
        let addr = address.addr();
        if !is_unicast(addr) {
            return Err(item.error(format!("{addr} is no address of one host; use a unicast address")));
        }
        if addresses.iter().any(|other: &IfAddr| other.addr() == addr) {
            return Err(item.error(format!("{addr} is given twice; take one out")));
        }
        addresses.push(address);
    }
    Ok(addresses)
}

/// Reads a route: a prefix, or a table.
fn route(item: &Value<'_>) -> Result<DeviceRoute> {
    if !item.is_table() {
        return Ok(DeviceRoute::new(destinations(item, true)?));
    }
    let table = item.table(ROUTE_KEYS)?;
    let src = table.get("src").map(|value| Ok((source(&value)?, value))).transpose()?;
    let to_value = table.need("to", &format!("use {PREFIX_HINT}"))?;
    let to = destinations(&to_value, src.as_ref().is_none_or(|(src, _)| src.is_ipv4()))?;
    if let Some((src, value)) = &src
        && src.is_ipv4() != to.is_ipv4()
    {
        return Err(value.error(format!("{src} is not of the family of {to}; use an address of that family")));
    }
    let default = DeviceRoute::new(to);
    let metric = table.get("metric").map_or(Ok(default.metric), |value| value.number(0..=DeviceRoute::MAX_METRIC))?;
    // Linux's IPv6 has no metric 0.
    let metric = if metric == 0 { default.metric } else { metric };
    Ok(DeviceRoute { to, src: src.map(|(src, _)| src), metric })
}

/// Reads the destinations of a route; `default` is IPv4's if `v4`.
fn destinations(value: &Value<'_>, v4: bool) -> Result<Prefix> {
    let to = match value.str()? {
        "default" if v4 => Prefix::ANY_V4,
        "default" => Prefix::ANY_V6,
        _ => value.prefix(PREFIX_HINT)?,
    };
    if to.addr().is_multicast() {
        return Err(value.error(format!("{to} is multicast, which is not routed; use a unicast prefix")));
    }
    Ok(to)
}

/// Reads the source address of a route.
fn source(value: &Value<'_>) -> Result<IpAddr> {
    match value.str()?.parse::<IpAddr>() {
        Ok(addr) if is_unicast(addr) => Ok(addr),
        Ok(addr) => Err(value.error(format!("{addr} is no address of one host; use one of this host"))),
        Err(_) => Err(value.error(format!("{} is no address; use one of this host", quoted(value.str()?)))),
    }
}

pub(super) fn is_unicast(addr: IpAddr) -> bool {
    !(addr.is_unspecified() || addr.is_multicast() || addr == IpAddr::from([255; 4]))
}

/// Whether the kernel adds the route by itself with the address.
fn connects(address: IfAddr, route: DeviceRoute) -> bool {
    let metric = if address.addr().is_ipv4() { 0 } else { KERNEL_METRIC_V6 };
    address.prefix() == route.to && metric == route.metric
}

/// Metric of the route to the prefix of an IPv6 address: Linux's `IP6_RT_PRIO_ADDRCONF`.
const KERNEL_METRIC_V6: u32 = 256;

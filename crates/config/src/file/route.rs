//! `[[route]]`: a static route.

use std::net::IpAddr;

use base::{IfAddr, Prefix, TableId};

use super::dev;
use super::ila;
use super::index::Index;
use super::reader::{Fault, Refers, Result, Table, Value, quoted};
use crate::model::{Config, LinkKind, RouteAction, RouteConfig};

pub(super) const KEYS: &[&str] = &["to", "type", "via", "dev", "src", "metric", "table", "vrf", "encap"];

/// Default metric of an IPv6 route: Linux's `IP6_RT_PRIO_USER`. IPv4's is 0.
const DEFAULT_METRIC_V6: u32 = 1024;

#[derive(Clone, Copy, Debug)]
enum Type {
    Unicast,
    Blackhole,
    Unreachable,
    Prohibit,
}

const TYPES: &[(&str, Type)] = &[
    ("unicast", Type::Unicast),
    ("blackhole", Type::Blackhole),
    ("unreachable", Type::Unreachable),
    ("prohibit", Type::Prohibit),
];

/// Records the link of a route without a gateway: its destinations are neighbours on that link, possibly gateways of
/// other routes, before or after it in the file. Errors in the route are reported when it is read.
pub(super) fn note_direct(table: &Table<'_>, index: &mut Index) {
    let word = |key| table.get(key).and_then(|value| value.str().ok());
    if let (Some(to), Some(dev), None) = (word("to"), word("dev"), table.get("via"))
        && let Ok(to) = if to == "default" { Ok(Prefix::ANY_V4) } else { to.parse() }
    {
        index.push_direct(to, dev);
    }
}

/// Reads one route. `config` contains all links, and `index` the direct routes and the earlier routes.
pub(super) fn read(table: &Table<'_>, config: &Config, index: &Index) -> Result<RouteConfig> {
    let via = table.get("via").map(|value| Ok((address(&value)?, value))).transpose()?;
    let to_value = table.need("to", "use a prefix such as \"10.2.0.0/24\", or \"default\"")?;
    let to = match to_value.str()? {
        "default" if via.as_ref().is_some_and(|(via, _)| via.is_ipv6()) => Prefix::ANY_V6,
        "default" => Prefix::ANY_V4,
        _ => to_value.prefix("a prefix such as \"10.2.0.0/24\", or \"default\"")?,
    };
    if to.addr().is_multicast() {
        return Err(to_value.error(format!("{to} is multicast, which is not routed; use a unicast prefix")));
    }
    let table_id = requested_table(table, config)?;
    let kind = table.get("type").map_or(Ok(Type::Unicast), |value| value.word(TYPES))?;
    let action = match kind {
        Type::Unicast => unicast(table, to, table_id, via, config, index)?,
        Type::Blackhole => nowhere(table, RouteAction::Blackhole)?,
        Type::Unreachable => nowhere(table, RouteAction::Unreachable)?,
        Type::Prohibit => nowhere(table, RouteAction::Prohibit)?,
    };
    let default_metric = if to.is_ipv4() { 0 } else { DEFAULT_METRIC_V6 };
    let metric = table.get("metric").map_or(Ok(default_metric), |value| value.number(0..=u32::MAX))?;
    if let Some(n) = index.route(&(to, table_id, metric)) {
        return Err(
            to_value.error(format!("{to} with metric {metric} in table {table_id} is already {n}; use another metric"))
        );
    }
    let encap = table.get("encap").map(|value| ila::read_encap(&value, to)).transpose()?;
    let src = table.get("src").map(|value| source(&value, to, &action, table_id, config, index)).transpose()?;
    Ok(RouteConfig { to, action, metric, table: table_id, src, encap })
}

fn address(value: &Value<'_>) -> Result<IpAddr> {
    let Ok(addr) = value.str()?.parse::<IpAddr>() else {
        return Err(value.error(format!("{} is no address; use that of a neighbour", quoted(value.str()?))));
    };
    if addr.is_unspecified() || addr.is_multicast() {
        return Err(value.error(format!("{addr} is no address of one host; use that of a neighbour")));
    }
    Ok(addr)
}

/// Preferred source of a route: an address of the node in the domain of the route's link, or without a link of its table
/// (Linux `fib_valid_prefsrc`).
fn source(
    value: &Value<'_>,
    to: Prefix,
    action: &RouteAction,
    table_id: TableId,
    config: &Config,
    index: &Index,
) -> Result<IpAddr> {
    let Ok(src) = value.str()?.parse::<IpAddr>() else {
        return Err(value.error(format!("{} is no address; use one such as \"192.0.2.1\"", quoted(value.str()?))));
    };
    if src.is_ipv4() != to.is_ipv4() {
        return Err(value.error(format!("{src} is not of the family of {to}; use an address of that family")));
    }
    let domain = match action {
        RouteAction::Unicast { dev, .. } => index.domain(dev),
        _ => index.has_vrf(table_id).then_some(table_id),
    };
    let of_lo = config.lo.iter().filter(|_| domain.is_none()).copied();
    let here = config.links.iter().filter(|link| index.domain(&link.name) == domain);
    let mut own = here.flat_map(crate::model::LinkConfig::own_addresses).chain(of_lo).map(IfAddr::addr);
    if own.any(|own| own == src) {
        return Ok(src);
    }
    let place = if domain.is_some() { " in the route's VRF" } else { "" };
    let text = format!("{src} is no address of this node{place}; use an address of one of its links or of lo");
    Err(value.error(text).about(Refers::Links))
}

/// Table of a route: the table of its VRF, if the route has the key `vrf`.
fn requested_table(table: &Table<'_>, config: &Config) -> Result<TableId> {
    let Some(value) = table.get("vrf") else {
        return table.get("table").map_or(Ok(TableId::MAIN), |value| table_id(&value));
    };
    if let Some(table) = table.get("table") {
        return Err(table.error("the VRF determines the table; take one out"));
    }
    let name = value.str()?;
    let named = config.links.iter().find(|link| link.name == name).map(|link| &link.kind);
    match named {
        Some(&LinkKind::Vrf { table }) => Ok(TableId(table)),
        _ => Err(value.error(format!("no VRF is named {}", quoted(name))).about(Refers::Link(name.to_owned()))),
    }
}

fn unicast(
    table: &Table<'_>,
    to: Prefix,
    table_id: TableId,
    via: Option<(IpAddr, Value<'_>)>,
    config: &Config,
    index: &Index,
) -> Result<RouteAction> {
    let dev = table.get("dev").map(|value| dev::read(&value, config)).transpose()?;
    let Some((via, value)) = via else {
        let dev = dev.ok_or_else(|| table.missing("dev", "name a link, or a neighbour with via"))?;
        return Ok(RouteAction::Unicast { via: None, dev });
    };
    if via.is_ipv4() && !to.is_ipv4() {
        return Err(value.error(format!("{via} is not of the family of {to}; use an IPv6 neighbour")));
    }
    // A neighbour is in the domain of its link, or without a link in the domain of the route's table.
    let domain = match &dev {
        Some(dev) => index.domain(dev),
        None => index.has_vrf(table_id).then_some(table_id),
    };
    let is_here = |link: &str| index.domain(link) == domain;
    let mut here = config.links.iter().filter(|link| is_here(&link.name));
    let is_of_lo = domain.is_none() && config.lo.iter().any(|own| own.addr() == via);
    if is_of_lo || here.any(|link| link.own_addresses().any(|own| own.addr() == via)) {
        return Err(value.error(format!("{via} is this node's own address; use that of a neighbour")));
    }
    let by = via_link(via, dev.as_deref(), index, is_here).ok_or_else(|| not_on_link(&value, via, dev.as_deref()))?;
    Ok(RouteAction::Unicast { via: Some(via), dev: by })
}

/// Link on which `via` is a neighbour: by the longest of the links' own prefixes and of direct routes, as
/// `fib_check_nh` looks up a gateway. Only links that are `here` count.
fn via_link(via: IpAddr, dev: Option<&str>, index: &Index, is_here: impl Fn(&str) -> bool) -> Option<String> {
    if let (IpAddr::V6(v6), Some(dev)) = (via, dev)
        && v6.is_unicast_link_local()
    {
        return Some(dev.to_owned());
    }
    index.link_of(via, |link| dev.map_or_else(|| is_here(link), |dev| dev == link)).map(str::to_owned)
}

fn not_on_link(value: &Value<'_>, via: IpAddr, dev: Option<&str>) -> Fault {
    let fault = match dev {
        Some(dev) => value.error(format!("{via} is not on link {dev}; use an address in one of its prefixes")),
        None => value.error(format!("{via} is on no link; use an address in a link's prefix")),
    };
    fault.about(Refers::Links)
}

/// Checks that a route that drops packets has neither a gateway nor a link.
fn nowhere(table: &Table<'_>, action: RouteAction) -> Result<RouteAction> {
    match table.get("via").or_else(|| table.get("dev")).or_else(|| table.get("src")).or_else(|| table.get("encap")) {
        Some(value) => Err(value.error("a route of this type has no next hop; take it out")),
        None => Ok(action),
    }
}

pub(super) fn table_id(value: &Value<'_>) -> Result<TableId> {
    if value.is_number() {
        return Ok(TableId(value.number(1..=u32::MAX)?));
    }
    value.word(&[("main", TableId::MAIN), ("local", TableId::LOCAL)])
}

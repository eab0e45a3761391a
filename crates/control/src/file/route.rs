//! `[[route]]`: a static route.

use std::net::IpAddr;

use base::{Prefix, TableId};

use super::reader::{ConfigError, Result, Table, Value, quoted};
use crate::model::{Config, RouteAction, RouteConfig};

pub(super) const KEYS: &[&str] = &["to", "type", "via", "dev", "metric", "table"];

/// Linux's `IP6_RT_PRIO_USER`: the metric of an IPv6 route that names none. IPv4's is 0.
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

/// Reads one route. `config` holds every link and the routes before it.
pub(super) fn read(table: &Table<'_>, config: &Config) -> Result<RouteConfig> {
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
    let kind = table.get("type").map_or(Ok(Type::Unicast), |value| value.word(TYPES))?;
    let action = match kind {
        Type::Unicast => unicast(table, to, via, config)?,
        Type::Blackhole => nowhere(table, RouteAction::Blackhole)?,
        Type::Unreachable => nowhere(table, RouteAction::Unreachable)?,
        Type::Prohibit => nowhere(table, RouteAction::Prohibit)?,
    };
    let default_metric = if to.is_ipv4() { 0 } else { DEFAULT_METRIC_V6 };
    let metric = table.get("metric").map_or(Ok(default_metric), |value| value.number(0..=u32::MAX))?;
    let table_id = table.get("table").map_or(Ok(TableId::MAIN), |value| table_id(&value))?;
    let same = |other: &RouteConfig| (other.to, other.table, other.metric) == (to, table_id, metric);
    if let Some(n) = config.routes.iter().position(same) {
        return Err(to_value.error(format!(
            "{to} with metric {metric} in table {table_id} is already route[{n}]; use another metric"
        )));
    }
    Ok(RouteConfig { to, action, metric, table: table_id })
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

fn unicast(table: &Table<'_>, to: Prefix, via: Option<(IpAddr, Value<'_>)>, config: &Config) -> Result<RouteAction> {
    let dev = table.get("dev").map(|value| dev(&value, config)).transpose()?;
    let Some((via, value)) = via else {
        let dev = dev.ok_or_else(|| table.missing("dev", "name a link, or a neighbour with via"))?;
        return Ok(RouteAction::Unicast { via: None, dev });
    };
    if via.is_ipv4() != to.is_ipv4() {
        return Err(value.error(format!("{via} is not of the family of {to}; use a neighbour of the same family")));
    }
    if config.links.iter().any(|link| link.own_addresses().any(|own| own.addr() == via)) {
        return Err(value.error(format!("{via} is this node's own address; use that of a neighbour")));
    }
    let by = via_link(via, dev.as_deref(), config).ok_or_else(|| not_on_link(&value, via, dev.as_deref()))?;
    Ok(RouteAction::Unicast { via: Some(via), dev: by })
}

/// The link on which `via` is a neighbour: by the longest of the links' own prefixes and of the routes that lead to a
/// link directly. `fib_check_nh` asks the same of a gateway.
fn via_link(via: IpAddr, dev: Option<&str>, config: &Config) -> Option<String> {
    if let (IpAddr::V6(v6), Some(dev)) = (via, dev)
        && v6.is_unicast_link_local()
    {
        return Some(dev.to_owned());
    }
    let connected = config
        .links
        .iter()
        .flat_map(|link| link.addresses.iter().map(|address| (address.prefix(), link.name.as_str())));
    let direct = config.routes.iter().filter_map(|route| match &route.action {
        RouteAction::Unicast { via: None, dev } => Some((route.to, dev.as_str())),
        _ => None,
    });
    connected
        .chain(direct)
        .filter(|&(prefix, name)| prefix.contains(via) && dev.is_none_or(|dev| dev == name))
        .max_by_key(|&(prefix, _)| prefix.len())
        .map(|(_, name)| name.to_owned())
}

fn not_on_link(value: &Value<'_>, via: IpAddr, dev: Option<&str>) -> ConfigError {
    match dev {
        Some(dev) => value.error(format!("{via} is not on link {dev}; use an address in one of its prefixes")),
        None => value.error(format!("{via} is on no link; use an address in a link's prefix")),
    }
}

fn dev(value: &Value<'_>, config: &Config) -> Result<String> {
    let name = value.str()?;
    if config.links.iter().any(|link| link.name == name) {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = config.links.iter().map(|link| link.name.as_str()).collect();
    let hint =
        if names.is_empty() { "no link is configured".to_owned() } else { format!("links are {}", names.join(", ")) };
    Err(value.error(format!("no link is named {}; {hint}", quoted(name))))
}

/// A route that drops has neither neighbour nor link.
fn nowhere(table: &Table<'_>, action: RouteAction) -> Result<RouteAction> {
    match table.get("via").or_else(|| table.get("dev")) {
        Some(value) => Err(value.error("a route of this type leads nowhere; take it out")),
        None => Ok(action),
    }
}

fn table_id(value: &Value<'_>) -> Result<TableId> {
    if value.is_number() {
        return Ok(TableId(value.number(1..=u32::MAX)?));
    }
    value.word(&[("main", TableId::MAIN), ("local", TableId::LOCAL)])
}

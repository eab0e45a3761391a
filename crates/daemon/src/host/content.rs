//! Content of the host side's namespace: devices, addresses, routes and rules; and the steps from one content to
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, Prefix};
use netlink::rtnl::nums::{RT_TABLE_DEFAULT, RT_TABLE_LOCAL, RT_TABLE_MAIN};
use serde::{Deserialize, Serialize};
use wire::Protocol;

use crate::as_text;

/// A device.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    /// Link-layer address of a TAP device; `None` of a TUN device.
    pub(super) mac: Option<[u8; 6]>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    /// Whether the device resolves addresses. Devices of the gateway never do.
    pub(super) has_arp: bool,
}

/// An address of a device.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct MirroredAddress {
    /// Number of the device.
    pub(super) index: u32,
    #[serde(with = "as_text")]
    pub(super) addr: IfAddr,
    pub(super) peer: Option<IpAddr>,
    pub(super) broadcast: Option<Ipv4Addr>,
    /// Label of an IPv4 address.
    pub(super) label: Option<String>,
    /// `RT_SCOPE_*` of an IPv4 address; the kernel derives the scope of IPv6 addresses.
    pub(super) scope: u8,
}

/// A route, for the choice of device and source address.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct MirroredRoute {
    pub(super) table: u32,
    #[serde(with = "as_text")]
    pub(super) prefix: Prefix,
    /// `RTN_*`.
    pub(super) kind: u8,
    pub(super) metric: u32,
    /// Number of the device; 0 for a route without a device.
    pub(super) index: u32,
    pub(super) src: Option<IpAddr>,
    /// Whether IPv4 packets have a locked MTU, so that the kernel sets no DF bit of its own.
    pub(super) is_mtu_locked: bool,
}

/// A rule for packets of local sockets.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct MirroredRule {
    pub(super) v4: bool,
    pub(super) priority: u32,
    /// Packets that the rule matches.
    pub(super) about: About,
    pub(super) then: MirroredAction,
}

/// Packets that a rule matches: those to which all selectors apply.
#[derive(Clone, Debug, Default, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct About {
    pub(super) to: Option<(IpAddr, u8)>,
    pub(super) from: Option<(IpAddr, u8)>,
    /// Name of the input device; `lo` for packets of local sockets.
    pub(super) iif: Option<String>,
    /// Name of the output device, or of the device that the packet's socket is bound to.
    pub(super) oif: Option<String>,
    /// TOS or traffic class; 0 for any.
    pub(super) tos: u8,
    /// Protocol of the upper layer; 0 for any.
    pub(super) protocol: u8,
    /// First and last source port.
    pub(super) sport: Option<(u16, u16)>,
    /// First and last destination port.
    pub(super) dport: Option<(u16, u16)>,
    /// Whether the rule matches all other packets instead.
    pub(super) inverted: bool,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) enum MirroredAction {
    /// Looks up a table. Routes with a prefix of the length `suppress` or a shorter one do not count.
    Table {
        table: u32,
        suppress: Option<u8>,
    },
    /// Continues with the rules of that priority.
    GoTo(u32),
    /// Continues with the next rule.
    Nop,
    Blackhole,
    Unreachable,
    Prohibit,
}

/// Priority of the rules of VRFs, as of Linux's l3mdev rule.
const VRF_PRIORITY: u32 = 1000;

/// Last port that a rule takes (Linux `fib_rule_port_range_valid`).
const LAST_PORT: u16 = u16::MAX - 1;

impl MirroredAction {
    pub(super) const fn look_up(table: u32) -> Self {
        Self::Table { table, suppress: None }
    }
}

impl MirroredRule {
    /// Rule for all packets.
    fn all(v4: bool, priority: u32, table: u32) -> Self {
        Self { v4, priority, about: About::default(), then: MirroredAction::look_up(table) }
    }

    /// The rules that each namespace has.
    pub(super) fn of_kernel(v4: bool) -> impl Iterator<Item = Self> {
        let last = v4.then_some((32767, RT_TABLE_DEFAULT));
        let all = [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN)].into_iter().chain(last);
        all.map(move |(priority, table)| Self::all(v4, priority, table))
    }

    /// The rule that looks up the namespace's own addresses behind the rules of VRFs: otherwise a socket of a VRF would reach
    /// the addresses of all other VRFs, and those of its own VRF without passing the VRF's device.
    pub(super) fn local_of_vrfs(v4: bool) -> Self {
        Self::all(v4, VRF_PRIORITY + 3, RT_TABLE_LOCAL)
    }

    /// The rule for sockets bound to a device of a VRF (the VRF's device or a link's): they use the VRF's table.
    pub(super) fn of_vrf(v4: bool, device: String, table: u32) -> Self {
        let about = About { oif: Some(device), ..About::default() };
        Self { about, ..Self::all(v4, VRF_PRIORITY, table) }
    }

    /// The rule for replies of unbound sockets from an address that only one VRF has: they leave in that VRF. With IPv6
    /// these are replies of TCP only: other sockets would find the VRF by the source address that the kernel chooses
    /// for them.
    pub(super) fn from_vrf(addr: IpAddr, table: u32) -> Self {
        let from = Some((addr, Prefix::host(addr).len()));
        let about = About { from, iif: Some("lo".to_owned()), ..About::default() };
        let about = match addr {
            IpAddr::V4(_) => about,
            // A socket without a connection has no port yet.
            IpAddr::V6(_) => About { protocol: Protocol::TCP.0, sport: Some((1, LAST_PORT)), ..about },
        };
        Self { about, ..Self::all(addr.is_ipv4(), VRF_PRIORITY + 1, table) }
    }

    /// The rule that hides an address of a VRF from sockets that are not bound to a device of the VRF.
    pub(super) fn hides(addr: IpAddr) -> Self {
        let to = Some((addr, Prefix::host(addr).len()));
        let about = About { to, iif: Some("lo".to_owned()), ..About::default() };
        Self { v4: addr.is_ipv4(), priority: VRF_PRIORITY + 2, about, then: MirroredAction::Unreachable }
    }
}

/// Content of a namespace.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Content {
    /// Devices by number.
    pub(super) devices: BTreeMap<u32, Device>,
    pub(super) addresses: BTreeSet<MirroredAddress>,
    pub(super) routes: BTreeSet<MirroredRoute>,
    pub(super) rules: BTreeSet<MirroredRule>,
}

/// A change of a namespace's content.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Step {
    /// Sets the settings of a device.
    Device(u32, Device),
    AddAddress(MirroredAddress),
    RemoveAddress(MirroredAddress),
    AddRoute(MirroredRoute),
    RemoveRoute(MirroredRoute),
    AddRule(MirroredRule),
    RemoveRule(MirroredRule),
}

impl Content {
    /// The steps from `self` to `desired`, in an order in which each can be done. A missing device is left out, with
    /// its addresses and routes.
    pub(super) fn steps_to(&self, desired: &Self) -> Vec<Step> {
        let mut steps = Vec::new();
        let is_there = |index: u32| self.devices.contains_key(&index);
        for (&index, device) in &desired.devices {
            if self.devices.get(&index).is_some_and(|now| now != device) {
                steps.push(Step::Device(index, device.clone()));
            }
        }
        let gone = self.routes.difference(&desired.routes).copied();
        steps.extend(gone.map(Step::RemoveRoute));
        // The replacement of a rule is added first: there is always a rule for the local addresses.
        let new = desired.rules.difference(&self.rules).cloned();
        steps.extend(new.map(Step::AddRule));
        let gone = self.rules.difference(&desired.rules).cloned();
        steps.extend(gone.map(Step::RemoveRule));
        let gone = self.addresses.difference(&desired.addresses).cloned();
        steps.extend(gone.map(Step::RemoveAddress));
        let new = desired.addresses.difference(&self.addresses).filter(|address| is_there(address.index));
        steps.extend(new.cloned().map(Step::AddAddress));
        let new = desired.routes.difference(&self.routes).filter(|route| route.index == 0 || is_there(route.index));
        steps.extend(new.copied().map(Step::AddRoute));
        steps
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(_, device) => write!(f, "settings of {}", device.name),
            Self::AddAddress(address) => write!(f, "address {}", address.addr),
            Self::RemoveAddress(address) => write!(f, "removal of address {}", address.addr),
            Self::AddRoute(route) => write!(f, "route {} table {}", route.prefix, route.table),
            Self::RemoveRoute(route) => write!(f, "removal of route {} table {}", route.prefix, route.table),
            Self::AddRule(rule) => write!(f, "rule {rule}"),
            Self::RemoveRule(rule) => write!(f, "removal of rule {rule}"),
        }
    }
}

impl fmt::Display for MirroredRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let About { to, from, iif, oif, tos, protocol, sport, dport, inverted } = &self.about;
        write!(f, "{}{}", self.priority, if *inverted { " not" } else { "" })?;
        for (word, prefix) in [("from", from), ("to", to)] {
            if let Some((addr, len)) = prefix {
                write!(f, " {word} {addr}/{len}")?;
            }
        }
        for (word, device) in [("iif", iif), ("oif", oif)] {
            if let Some(device) = device {
                write!(f, " {word} {device}")?;
            }
        }
        if *tos != 0 {
            write!(f, " tos {tos:#x}")?;
        }
        if *protocol != 0 {
            write!(f, " ipproto {protocol}")?;
        }
        for (word, ports) in [("sport", sport), ("dport", dport)] {
            if let Some((first, last)) = ports {
                write!(f, " {word} {first}-{last}")?;
            }
        }
        match self.then {
            MirroredAction::Table { table, suppress: None } => write!(f, " lookup {table}"),
            MirroredAction::Table { table, suppress: Some(len) } => {
                write!(f, " lookup {table} suppress_prefixlength {len}")
            }
            MirroredAction::GoTo(priority) => write!(f, " goto {priority}"),
            MirroredAction::Nop => f.write_str(" nop"),
            MirroredAction::Blackhole => f.write_str(" blackhole"),
            MirroredAction::Unreachable => f.write_str(" unreachable"),
            MirroredAction::Prohibit => f.write_str(" prohibit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(up: bool) -> Device {
        Device { name: "eth0".to_owned(), mac: Some([2, 0, 0, 0, 0, 1]), mtu: 65_521, up, has_arp: false }
    }

    fn address(index: u32, addr: &str) -> MirroredAddress {
        MirroredAddress { index, addr: addr.parse().unwrap(), peer: None, broadcast: None, label: None, scope: 0 }
    }

    fn route(index: u32, prefix: &str) -> MirroredRoute {
        let prefix = prefix.parse().unwrap();
        MirroredRoute { table: 254, prefix, kind: 1, metric: 0, index, src: None, is_mtu_locked: true }
    }

    fn content(up: bool, addresses: &[MirroredAddress], routes: &[MirroredRoute]) -> Content {
        Content {
            devices: BTreeMap::from([(7, device(up))]),
            addresses: addresses.iter().cloned().collect(),
            routes: routes.iter().copied().collect(),
            rules: BTreeSet::new(),
        }
    }

    #[test]
    fn steps_of_equal_contents_are_none() {
        let now = content(true, &[address(7, "10.0.0.1/24")], &[route(7, "10.0.0.0/24")]);
        assert_eq!(now.steps_to(&now), []);
    }

    #[test]
    fn steps_remove_first_and_add_routes_last() {
        let now = content(false, &[address(7, "10.0.0.1/24")], &[route(7, "10.0.0.0/24")]);
        let desired = content(true, &[address(7, "10.1.0.1/24")], &[route(7, "10.1.0.0/24")]);
        let want = [
            Step::Device(7, device(true)),
            Step::RemoveRoute(route(7, "10.0.0.0/24")),
            Step::RemoveAddress(address(7, "10.0.0.1/24")),
            Step::AddAddress(address(7, "10.1.0.1/24")),
            Step::AddRoute(route(7, "10.1.0.0/24")),
        ];
        assert_eq!(now.steps_to(&desired), want);
    }

    #[test]
    fn steps_for_a_missing_device_are_left_out() {
        let desired = content(true, &[address(7, "10.0.0.1/24")], &[route(7, "10.0.0.0/24"), route(0, "10.9.0.0/16")]);
        assert_eq!(Content::default().steps_to(&desired), [Step::AddRoute(route(0, "10.9.0.0/16"))]);
    }
}

//! Content of the host side's namespace: devices, addresses, routes and rules; and the steps from one content to
//! another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base::{IfAddr, Prefix};
use netlink::rtnl::nums::RT_TABLE_LOCAL;
use serde::{Deserialize, Serialize};

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

/// A rule for output packets.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) struct MirroredRule {
    pub(super) v4: bool,
    pub(super) priority: u32,
    /// Packets that the rule matches.
    pub(super) about: About,
    /// Table that is looked up; without a table the destination is unreachable.
    pub(super) table: Option<u32>,
}

/// Packets that a rule matches.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub(super) enum About {
    /// All packets.
    All,
    /// Packets whose output device has that name, or whose socket is bound to that device.
    Device(String),
    /// Packets from local sockets to that address.
    To(IpAddr),
    /// Packets from local sockets with that source address.
    From(IpAddr),
}

/// Priority of the rules of VRFs, as of Linux's l3mdev rule.
const VRF_PRIORITY: u32 = 1000;

impl MirroredRule {
    /// The rule that looks up the namespace's own addresses. With VRFs it comes after their rules: otherwise a socket
    /// of a VRF would reach the addresses of all other VRFs, and those of its own VRF without passing the VRF's device.
    pub(super) const fn local(v4: bool, has_vrfs: bool) -> Self {
        let priority = if has_vrfs { VRF_PRIORITY + 3 } else { 0 };
        Self { v4, priority, about: About::All, table: Some(RT_TABLE_LOCAL) }
    }

    /// The rule for sockets bound to a device of a VRF (the VRF's device or a link's): they use the VRF's table.
    pub(super) const fn of_vrf(v4: bool, device: String, table: u32) -> Self {
        Self { v4, priority: VRF_PRIORITY, about: About::Device(device), table: Some(table) }
    }

    /// The rule for replies of unbound sockets from an address that only one VRF has: they leave in that VRF. With IPv6
    /// these are replies of TCP only: other sockets would find the VRF by the source address that the kernel chooses
    /// for them.
    pub(super) const fn from_vrf(addr: IpAddr, table: u32) -> Self {
        Self { v4: addr.is_ipv4(), priority: VRF_PRIORITY + 1, about: About::From(addr), table: Some(table) }
    }

    /// The rule that hides an address of a VRF from sockets that are not bound to a device of the VRF.
    pub(super) const fn hides(addr: IpAddr) -> Self {
        Self { v4: addr.is_ipv4(), priority: VRF_PRIORITY + 2, about: About::To(addr), table: None }
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
        match &self.about {
            About::All => write!(f, "{} all", self.priority),
            About::Device(device) => write!(f, "oif {device}"),
            About::To(addr) => write!(f, "to {addr}"),
            About::From(addr) => write!(f, "from {addr}"),
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

//! Networks behind nodes: routes in the tables of VRFs.

use std::net::IpAddr;

use base::Prefix;

use crate::names::NameId;

/// Place of a route in a gateway.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RouteSlot {
    /// Number of the routing table.
    pub table: u32,
    /// Destinations.
    pub prefix: Prefix,
    /// Metric; 0 in the main table, where the gateway chooses it.
    pub metric: u32,
}

impl RouteSlot {
    /// Number of the main table (`RT_TABLE_MAIN`).
    pub const MAIN: u32 = 254;

    /// Place of a route in the main table.
    pub const fn main(prefix: Prefix) -> Self {
        Self { table: Self::MAIN, prefix, metric: 0 }
    }
}

/// Network of a node. Those of one prefix follow each other.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct NetworkKey {
    pub(crate) vrf: NameId,
    pub(crate) prefix: Prefix,
    pub(crate) node: NameId,
}

impl NetworkKey {
    /// First and last key of a prefix in a VRF.
    pub(crate) const fn all_of(vrf: NameId, prefix: Prefix) -> [Self; 2] {
        [Self { vrf, prefix, node: NameId::FIRST }, Self { vrf, prefix, node: NameId::LAST }]
    }
}

/// Way to a network.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Network {
    pub(crate) via: IpAddr,
    pub(crate) metric: u32,
}

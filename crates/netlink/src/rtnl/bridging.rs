//! Current state of a bridge and of its ports, as the datapath reports it.

use ::switch::{PortConfig, Vlans};

use config::model::BridgeConfig;

/// Role of a link in a bridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bridging {
    /// The bridge device.
    Bridge(Box<BridgeNow>),
    /// A port of a bridge.
    Port(Box<PortNow>),
}

/// Current state of a bridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BridgeNow {
    /// Settings.
    pub config: BridgeConfig,
    /// Link-layer address of the own port.
    pub mac: [u8; 6],
    /// VLANs of the bridge's own port.
    pub vlans: Vlans,
    /// Number of addresses that the bridge has learnt.
    pub learnt: u32,
}

/// Current state of a bridge's port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortNow {
    /// Number in the bridge.
    pub number: u16,
    /// Path cost by the link's speed, for a spanning tree (Linux `port_cost`). It has no effect.
    pub cost: u32,
    /// Link-layer address of the bridge.
    pub bridge_mac: [u8; 6],
    /// Settings.
    pub config: PortConfig,
    /// VLANs.
    pub vlans: Vlans,
}

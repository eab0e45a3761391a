//! Current state of a bridge and of its ports, as the datapath reports it.

use ::switch::{PortConfig, Vlans};

use config::model::BridgeConfig;

/// Role of a link in a bridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Bridging {
    /// The bridge itself.
    Bridge(Box<BridgeNow>),
    /// One of its ports.
    Port(Box<PortNow>),
}

/// Current state of a bridge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BridgeNow {
    /// Settings.
    pub config: BridgeConfig,
    /// Link-layer address of the own port.
    pub mac: [u8; 6],
    /// VLANs of its own port.
    pub vlans: Vlans,
    /// Addresses that its ports have learnt.
    pub learnt: u32,
}

/// Current state of a bridge's port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PortNow {
    /// Number in its bridge.
    pub number: u16,
    /// Cost by its speed, for a spanning tree (Linux `port_cost`). It has no effect.
    pub cost: u32,
    /// Address of its bridge.
    pub bridge_mac: [u8; 6],
    /// Settings.
    pub config: PortConfig,
    /// VLANs.
    pub vlans: Vlans,
}

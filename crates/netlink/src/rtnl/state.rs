//! Current state of links, bridges and ports, as the datapath reports it.

use ::switch::{PortConfig, Vlans};
use base::{DropReason, PortId};
use config::features::FeatureSet;
use config::model::BridgeConfig;
use ctl::state::{LinkState, LinkStats};

/// Current state of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkNow {
    /// Number in this node.
    pub id: PortId,
    /// Interface index on the host; `None` if the link is no interface of the host.
    pub host_index: Option<u32>,
    /// Whether packets can pass.
    pub running: bool,
    /// Layer-3 MTU in bytes.
    pub mtu: u32,
    /// Link-layer address, if the link has one.
    pub mac: Option<[u8; 6]>,
    /// Counters.
    pub stats: LinkStats,
    /// Number of carrier changes, to up and to down.
    pub carrier: [u32; 2],
    /// Queues that the link has opened, if not its configuration but the interface has their number.
    pub queues: Option<u32>,
    /// Number of reasons to receive frames to all stations.
    pub promiscuity: u32,
    /// Number of reasons to receive frames to all groups.
    pub allmulti: u32,
    /// Role of the link in a bridge.
    pub bridging: Option<Bridging>,
}

/// State of the link `id` in `now`.
pub(super) fn find(now: &[LinkNow], id: u32) -> Option<&LinkNow> {
    now.iter().find(|now| now.id.0 == id)
}

/// State of a link for `ethtool`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkDetail {
    /// State, as in `fatpath show links`.
    pub state: LinkState,
    /// Drops of packets received from the link, and drops by the link itself.
    pub drops: Vec<(DropReason, u64)>,
    /// Counters of GRO and GSO, with their names.
    pub fat: [(&'static str, u64); 7],
    /// Features that can be switched.
    pub can: FeatureSet,
    /// Features that are on.
    pub on: FeatureSet,
}

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
    /// Link-layer address of the bridge device.
    pub mac: [u8; 6],
    /// VLANs of the bridge's device.
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

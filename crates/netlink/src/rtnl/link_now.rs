//! Current state of a link, as the datapath reports it.

use base::LinkId;

use super::bridging::Bridging;
use ctl::state::LinkStats;

/// Current state of a link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkNow {
    /// Number in this node.
    pub id: LinkId,
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

//! State that every link has.

use offload::Features;

use crate::config::DEFAULT_MTU;
use crate::{LinkStats, Offloads};

/// Name, MTU, offloads and counters of an open link, which each driver holds and [`Link`](crate::Link) returns.
#[derive(Debug)]
pub struct Common {
    /// Name in this node.
    pub name: String,
    /// The layer-3 MTU in bytes.
    pub mtu: usize,
    /// Configured MTU; `None` for the default of the kind. A TUN or TAP link without a configured MTU has the MTU in effect here,
    /// which differs from the default if its device existed before.
    pub configured_mtu: Option<u16>,
    /// Each offload of this kind of link, and whether it is on.
    pub offloads: Offloads,
    /// Offloads for packets that are sent. They change only with [`Sent::Refit`](crate::Sent::Refit).
    pub features: Features,
    /// Counters of packets moved and dropped.
    pub stats: LinkStats,
}

impl Common {
    /// State of a link without an interface, whose MTU is 1500 bytes by default. The counters are zero.
    pub fn new(name: &str, mtu: Option<u16>, offloads: Offloads, features: Features) -> Self {
        let (name, stats) = (name.to_owned(), LinkStats::ZERO);
        Self { name, mtu: mtu.map_or(DEFAULT_MTU, usize::from), configured_mtu: mtu, offloads, features, stats }
    }

    /// Changes the MTU of a link without an interface. `None` is 1500 bytes.
    pub fn set_mtu(&mut self, mtu: Option<u16>) {
        self.mtu = mtu.map_or(DEFAULT_MTU, usize::from);
        self.configured_mtu = mtu;
    }
}

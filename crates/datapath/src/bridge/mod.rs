//! Bridges: links whose frames a [`Bridge`] forwards, and the bridge's device, a link of this node behind them.
//!
//! The frames of a bridged port pass [`gro`] and [`ingress`] instead of the link layer, and leave by the ports' ordinary output, where each
//! frame is fitted to its device last: a tag stays in metadata until then. Frames that this node sends by the bridge's device,
//! fat ones whole, leave by the ports that [`egress`] chooses. No frame waits in a bridge.

pub(crate) mod egress;
pub(crate) mod gro;
pub(crate) mod ingress;

use base::{Instant, PortId};
use offload::Features;
use switch::{Bridge, BridgeError, FdbChanges};
use wire::MacAddr;

use crate::node::bridges::Bridges;
use crate::{Datapath, Device, PortConfig};

/// Time at which an address expires.
pub(crate) fn poll_timeout(dp: &Datapath) -> Option<Instant> {
    dp.bridges.all.iter().filter_map(|(_, bridge)| bridge.poll_timeout()).min()
}

/// Bridge that a link is a port of.
fn bridge_of(dp: &mut Datapath, link: PortId) -> Option<&mut Bridge> {
    let own = dp.ports.get(link)?.bridge?;
    dp.bridges.get_mut(own)
}

/// Updates a bridge after a change of its device or of one of its ports. A link without link-layer addresses leaves the bridge.
pub(crate) fn follow_config(dp: &mut Datapath, link: PortId, mac: Option<MacAddr>, mtu: usize) {
    if let Some(own) = dp.bridges.get_mut(link) {
        // An address that no station may have is refused, and the bridge keeps its own.
        mac.and_then(|mac| own.set_mac(mac).ok());
        return;
    }
    let Some(bridge) = bridge_of(dp, link) else { return };
    let followed = mac.is_some_and(|mac| bridge.set_port_mac(link, mac).is_ok()) && bridge.set_mtu(link, mtu).is_ok();
    if !followed {
        let name = dp.ports.get(link).map_or("?", |port| port.config.name.as_str());
        tracing::warn!(link = name, "{name}: removed from its bridge: no link-layer address, or an unusable one");
        forget(dp, link);
    }
}

/// Enables or disables a port whose link, or whose bridge, has come up or gone down: both have to be up (Linux `br_stp_if.c`).
pub(crate) fn follow_state(dp: &mut Datapath, link: PortId, is_up: bool) {
    let Datapath { ports, bridges, .. } = dp;
    let is_link_up = |link| ports.get(link).is_some_and(|port| port.up);
    if let Some(bridge) = bridges.get_mut(link) {
        let all: Vec<PortId> = bridge.ports().map(switch::Port::link).collect();
        for port in all {
            // Cannot fail: `port` is a device of a bridge.
            bridge.set_link_up(port, is_up && is_link_up(port)).ok();
        }
    } else if let Some(own) = ports.get(link).and_then(|port| port.bridge)
        && let Some(bridge) = bridges.get_mut(own)
    {
        bridge.set_link_up(link, is_up && is_link_up(own)).ok();
    }
}

/// Removes a link from its bridge. If the link is a bridge itself, its ports become links of this node again.
pub(crate) fn forget(dp: &mut Datapath, link: PortId) {
    if let Some(bridge) = bridge_of(dp, link) {
        bridge.remove_port(link).ok();
    }
    dp.bridges.remove(link);
    for (id, port) in dp.ports.iter_mut() {
        if id == link || port.bridge == Some(link) {
            port.bridge = None;
        }
    }
}

impl Datapath {
    /// Adds a bridge without ports. `id` is the link of its device, which has addresses and routes as any other.
    ///
    /// # Errors
    /// [`BridgeError::Mac`] if no station has that address, [`BridgeError::PortExists`] if that link is there already.
    pub fn add_bridge(&mut self, id: PortId, name: String, mac: MacAddr, mtu: usize) -> Result<(), BridgeError> {
        if self.ports.get(id).is_some() {
            return Err(BridgeError::PortExists(id));
        }
        let mut bridge = Bridge::new(mac)?;
        bridge.watch_fdb(self.bridges.is_watched);
        // Frames stay as they are until a port sends them; one by one, for each has its own destination.
        let features = Features { frames: false, ..Features::ALL };
        let config = PortConfig { name, mac: Some(mac), mtu, features, gro: true, esp_gro: false };
        self.ports.set(id, Device::Bridge, config);
        self.bridges.all.push((id, bridge));
        self.update_shortcuts();
        Ok(())
    }

    /// Sets whether changes of the bridges' forwarding databases are kept for [`take_fdb_changes`](Self::take_fdb_changes).
    pub fn watch_fdb(&mut self, on: bool) {
        self.bridges.is_watched = on;
        self.bridges.removed.retain(|_| on);
        self.bridges.all.iter_mut().for_each(|(_, bridge)| bridge.watch_fdb(on));
    }

    /// Changes of each bridge's forwarding database since the last call, by the link of its device.
    pub fn take_fdb_changes(&mut self) -> Vec<(PortId, FdbChanges)> {
        let Bridges { all, removed, .. } = &mut self.bridges;
        let changes = all.iter_mut().map(|(own, bridge)| (*own, bridge.take_fdb_changes()));
        std::mem::take(removed)
            .into_iter()
            .chain(changes)
            .filter(|(_, noted)| *noted != FdbChanges::default())
            .collect()
    }

    /// Devices of the bridges.
    pub fn bridge_ids(&self) -> impl Iterator<Item = PortId> + '_ {
        self.bridges.all.iter().map(|(own, _)| *own)
    }

    /// Device of the bridge that a link is a port of.
    pub fn bridge_of(&self, link: PortId) -> Option<PortId> {
        self.ports.get(link)?.bridge
    }

    /// The bridge with that device.
    pub fn bridge(&self, id: PortId) -> Option<&Bridge> {
        self.bridges.all.iter().find(|(own, _)| *own == id).map(|(_, bridge)| bridge)
    }

    /// The bridge with that device, to configure.
    pub fn bridge_mut(&mut self, id: PortId) -> Option<&mut Bridge> {
        self.bridges.get_mut(id)
    }
}

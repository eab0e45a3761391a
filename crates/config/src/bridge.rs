//! Settings of bridges and their ports, from a file or a netlink client, and their application to a [`Bridge`].

use std::time::Duration;

use base::PortId;
use switch::{Bridge, BridgeError, GroupMask, PortConfig, Vid, VidSet, VlanFlags, Vlans};

/// Settings of a bridge (`ip link add … type bridge`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BridgeConfig {
    /// Whether the bridge filters by VLAN.
    pub vlan_filtering: bool,
    /// VLAN of new ports, untagged; none if `None`.
    pub default_pvid: Option<Vid>,
    /// Ageing time of learnt addresses; 0 disables ageing.
    pub ageing_time: Duration,
    /// Forward delay, which is kept for replies alone: there is no spanning tree protocol.
    pub forward_delay: Duration,
    /// Link-local groups to forward.
    pub group_mask: GroupMask,
    /// Whether sources of frames to link-local groups are learnt.
    pub link_local_learning: bool,
    /// Whether frames are counted by VLAN.
    pub vlan_stats: bool,
}

impl Default for BridgeConfig {
    /// Linux's defaults for a bridge.
    fn default() -> Self {
        Self {
            vlan_filtering: false,
            default_pvid: Some(Vid::FIRST),
            ageing_time: Bridge::AGEING_TIME,
            forward_delay: Bridge::FORWARD_DELAY,
            group_mask: GroupMask::NONE,
            link_local_learning: true,
            vlan_stats: false,
        }
    }
}

impl BridgeConfig {
    /// Current settings of a bridge.
    pub fn of(bridge: &Bridge) -> Self {
        Self {
            vlan_filtering: bridge.vlan_filtering(),
            default_pvid: bridge.default_pvid(),
            ageing_time: bridge.ageing_time(),
            forward_delay: bridge.forward_delay(),
            group_mask: bridge.group_mask(),
            link_local_learning: bridge.link_local_learning(),
            vlan_stats: bridge.vlan_stats_enabled(),
        }
    }

    /// Applies the settings to a bridge.
    ///
    /// # Errors
    /// As [`Bridge::set_default_pvid`], which is called while the bridge does not filter.
    pub fn apply(&self, bridge: &mut Bridge) -> Result<(), BridgeError> {
        if bridge.default_pvid() != self.default_pvid {
            bridge.set_vlan_filtering(false);
            bridge.set_default_pvid(self.default_pvid)?;
        }
        bridge.set_vlan_filtering(self.vlan_filtering);
        if bridge.ageing_time() != self.ageing_time {
            bridge.set_ageing_time(self.ageing_time);
        }
        bridge.set_forward_delay(self.forward_delay);
        bridge.set_group_mask(self.group_mask);
        bridge.set_link_local_learning(self.link_local_learning);
        bridge.set_vlan_stats_enabled(self.vlan_stats);
        Ok(())
    }
}

/// Settings of a bridge's port, or of a bridge's device, which has only VLANs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct BridgePort {
    /// Settings other than VLANs. The state of the port follows the link.
    pub config: PortConfig,
    /// VLAN of untagged frames, in both directions. `Some(None)` is no VLAN, `None` the bridge's default.
    pub pvid: Option<Option<Vid>>,
    /// VLANs that are sent tagged.
    pub tagged: VidSet,
    /// Other VLANs that are sent untagged.
    pub untagged: VidSet,
}

impl BridgePort {
    /// Applies the settings to a port, or to the bridge's device (`None`). VLANs that are in both the old and the new
    /// settings keep their learnt addresses.
    ///
    /// # Errors
    /// [`BridgeError::NoPort`].
    pub fn apply(&self, bridge: &mut Bridge, port: Option<PortId>) -> Result<(), BridgeError> {
        let vlans = match port {
            Some(link) => {
                let there = bridge.port(link).ok_or(BridgeError::NoPort(link))?;
                let (state, vlans) = (there.config().state, there.vlans().clone());
                bridge.configure(link, PortConfig { state, ..self.config })?;
                vlans
            }
            None => bridge.vlans().clone(),
        };
        let pvid = self.pvid.unwrap_or(bridge.default_pvid());
        let configured = |vid: Vid| {
            let (is_pvid, is_other) = (pvid == Some(vid), self.untagged.contains(vid));
            let is_member = is_pvid || is_other || self.tagged.contains(vid);
            is_member.then_some(VlanFlags { is_pvid, is_untagged: is_pvid || is_other })
        };
        for vid in Vid::range(Vid::FIRST, Vid::LAST) {
            match configured(vid) {
                Some(flags) if flags_of(&vlans, vid) != Some(flags) => bridge.add_vlans(port, vid, vid, flags)?,
                None if vlans.members().contains(vid) => drop(bridge.remove_vlans(port, vid, vid)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Flags of a port's VLAN; `None` if the port is not in the VLAN.
pub fn flags_of(vlans: &Vlans, vid: Vid) -> Option<VlanFlags> {
    let flags = VlanFlags { is_pvid: vlans.pvid() == Some(vid), is_untagged: vlans.untagged().contains(vid) };
    vlans.members().contains(vid).then_some(flags)
}

#[cfg(test)]
mod tests {
    use wire::MacAddr;

    use super::*;

    fn vid(number: u16) -> Vid {
        Vid::new(number).unwrap()
    }

    fn members(vlans: &Vlans) -> Vec<(u16, bool, bool)> {
        let each = vlans.members().iter();
        each.map(|vid| flags_of(vlans, vid).map(|flags| (vid.get(), flags.is_pvid, flags.is_untagged)).unwrap())
            .collect()
    }

    #[test]
    fn port_gets_its_vlans_and_loses_others() {
        let mut bridge = Bridge::new(MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        let link = PortId(7);
        bridge.add_port(link, MacAddr([2, 0, 0, 0, 0, 2]), 1500).unwrap();
        let mut port = BridgePort { pvid: Some(Some(vid(10))), ..BridgePort::default() };
        port.tagged.insert(vid(20));
        port.untagged.insert(vid(30));
        port.apply(&mut bridge, Some(link)).unwrap();
        let vlans = bridge.port(link).unwrap().vlans();
        assert_eq!(members(vlans), [(10, true, true), (20, false, false), (30, false, true)]);
        // Without an explicit PVID, the port is in the bridge's default VLAN.
        BridgePort::default().apply(&mut bridge, Some(link)).unwrap();
        assert_eq!(members(bridge.port(link).unwrap().vlans()), [(1, true, true)]);
        BridgePort { pvid: Some(None), ..BridgePort::default() }.apply(&mut bridge, None).unwrap();
        assert_eq!(members(bridge.vlans()), []);
    }

    #[test]
    fn default_pvid_changes_while_bridge_filters() {
        let mut bridge = Bridge::new(MacAddr([2, 0, 0, 0, 0, 1])).unwrap();
        bridge.set_vlan_filtering(true);
        let config = BridgeConfig { vlan_filtering: true, default_pvid: Some(vid(5)), ..BridgeConfig::default() };
        config.apply(&mut bridge).unwrap();
        assert_eq!(BridgeConfig::of(&bridge), config);
    }
}

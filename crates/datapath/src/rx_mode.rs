//! Reception of frames that are not to a link's own address: by the links below bridges and VLAN devices (Linux `dev_set_promiscuity`,
//! `dev_set_allmulti`, `dev_uc_add`).

use base::PortId;

use crate::{Datapath, Device};

/// Numbers of reasons for which a link receives frames that are not to its own address.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RxMode {
    /// Reasons to receive frames to all stations: a bridge that the link is a port of, a promiscuous packet socket of the host side, each
    /// VLAN device with such a reason, and one for all VLAN devices with addresses of their own.
    pub promiscuity: u32,
    /// Reasons to receive frames to all groups: a bridge that the link is a port of, and each VLAN device with such a reason.
    pub allmulti: u32,
}

impl Datapath {
    /// The reasons for which a link receives frames that are not to its own address. VLAN devices that are down have none.
    pub fn rx_mode(&self, link: PortId) -> RxMode {
        let Some(port) = self.ports.get(link) else { return RxMode::default() };
        let is_bridged = u32::from(port.bridge.is_some());
        let mut mode = RxMode { promiscuity: is_bridged + u32::from(port.is_watched), allmulti: is_bridged };
        if !port.has_vlans {
            return mode;
        }
        for above in self.vlans_above(link) {
            let RxMode { promiscuity, allmulti } = self.rx_mode(above);
            mode.promiscuity += u32::from(promiscuity > 0);
            mode.allmulti += u32::from(allmulti > 0);
        }
        // A VLAN device passes the addresses above it down.
        if !matches!(port.device, Device::Vlan { .. }) && self.has_address_above(link) {
            mode.promiscuity += 1;
        }
        mode
    }

    /// Tells whether a VLAN device above a link has another address than the link that it is on.
    fn has_address_above(&self, link: PortId) -> bool {
        let mac = |link| self.ports.get(link).and_then(|port| port.config.mac);
        self.vlans_above(link).any(|above| mac(above) != mac(link) || self.has_address_above(above))
    }

    /// VLAN devices of a link that are up.
    fn vlans_above(&self, link: PortId) -> impl Iterator<Item = PortId> {
        let own = self.vlans.0.iter().filter(move |((lower, _), _)| *lower == link).map(|(_, &own)| own);
        own.filter(|&own| self.ports.get(own).is_some_and(|port| port.up))
    }
}

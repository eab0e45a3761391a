//! Fields of a packet that select policies and SAs.

use base::PortId;
use wire::FlowKey;

/// A packet's flow, and other values that select policies and SAs for it (Linux `struct flowi`).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Flowi {
    /// Addresses, protocol and ports.
    pub key: FlowKey,
    /// The packet's mark.
    pub mark: u32,
    /// The number of the packet's XFRM interface; 0 for none.
    pub if_id: u32,
    /// The output link, or the input link of a packet for this node; `None` matches only selectors without a device.
    pub link: Option<PortId>,
    /// The device of the L3 domain of `link`, which selectors may also name: the VRF's device, or, for a packet for
    /// this node that arrived outside all VRFs, `lo`. On Linux it is the device of the route to a local address
    /// (`ip_rt_get_dev`).
    pub domain_device: Option<PortId>,
}

impl Flowi {
    /// Devices that match a selector's device.
    #[inline]
    pub fn devices(&self) -> impl Iterator<Item = PortId> {
        let domain_device = self.domain_device.filter(|_| self.domain_device != self.link);
        [self.link, domain_device].into_iter().flatten()
    }
}

impl From<FlowKey> for Flowi {
    /// Flow without a mark and a link.
    fn from(key: FlowKey) -> Self {
        Self { key, mark: 0, if_id: 0, link: None, domain_device: None }
    }
}

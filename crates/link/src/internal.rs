//! Internal link of this node: the datapath moves its packets, without a device, or none moves.

use std::io;
use std::os::fd::BorrowedFd;

use offload::Features;
use packet::{Memory, Packet};
use wire::eth::MacAddr;

use crate::offloads::{Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::{Common, Duplicates, Layer, Link, OpenError, Sent};

/// Every offload: the ports, or the link below, segment frames and complete checksums where their devices do not.
const FEATURES: Features = Features { frames: false, ..Features::ALL };

/// Device of a bridge, a VLAN device, a link without a queue in a shard, or one in place of a link whose device another process has.
#[derive(Debug)]
pub struct InternalLink {
    common: Common,
    layer: Layer,
    host_index: Option<u32>,
    is_elsewhere: bool,
    has_carrier: bool,
    /// Whether another process has the device.
    is_held: bool,
}

impl InternalLink {
    /// Device of a bridge, with that link-layer address. The MTU is 1500 bytes by default.
    pub fn bridge(name: &str, mac: MacAddr, mtu: Option<u16>) -> Self {
        Self::new(name, mac, mtu, "left to the ports")
    }

    /// A VLAN device. Its link-layer address is zero until it is set.
    pub fn vlan(name: &str, mtu: Option<u16>) -> Self {
        Self::new(name, MacAddr::ZERO, mtu, "left to the link below")
    }

    fn new(name: &str, mac: MacAddr, mtu: Option<u16>, whose: &str) -> Self {
        let mut offloads = Offloads::EMPTY;
        for offload in [TX_CSUM, TX_TSO4, TX_TSO6, TX_USO] {
            offloads.add(offload, Ok(Some(whose.to_owned())));
        }
        let common = Common::new(name, mtu, offloads, FEATURES);
        let layer = Layer::Ethernet(mac);
        Self { common, layer, host_index: None, is_elsewhere: false, has_carrier: true, is_held: false }
    }

    /// Link in place of `other` in a shard that has no queue of its device: another shard sends and receives by it. Packets are
    /// fitted to the device there.
    pub fn elsewhere(other: &dyn Link) -> Self {
        let Common { name, mtu, configured_mtu, offloads, .. } = other.common();
        let offloads = offloads.clone();
        let common = Common { mtu: *mtu, ..Common::new(name, *configured_mtu, offloads, Features::ALL) };
        let (layer, host_index, has_carrier) = (other.layer(), other.host_index(), other.has_carrier());
        Self { common, layer, host_index, is_elsewhere: true, has_carrier, is_held: false }
    }

    /// Link in place of one whose device another process has: as if its device [had gone](Link::is_gone), so that the link is opened when
    /// that process has ended.
    pub fn held(name: &str, layer: Layer, mtu: Option<u16>, host_index: Option<u32>) -> Self {
        let held = Self::new(name, MacAddr::ZERO, mtu, "another process has the device");
        Self { layer, host_index, is_held: true, ..held }
    }

    /// Failure of a link whose device another process has, which is no error.
    fn check_held(&self) -> io::Result<()> {
        let text = || format!("{}: another process has its device", self.common.name);
        if self.is_held { Err(io::Error::new(io::ErrorKind::ConnectionReset, text())) } else { Ok(()) }
    }
}

impl Link for InternalLink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn host_index(&self) -> Option<u32> {
        self.host_index
    }

    fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// None, for a link elsewhere: the shards that have queues have the descriptors.
    fn duplicate(&self) -> io::Result<Option<Duplicates>> {
        if self.is_elsewhere { Duplicates::of([], None).map(Some) } else { Ok(None) }
    }

    fn look(&mut self) -> io::Result<bool> {
        self.check_held().map(|()| false)
    }

    fn is_gone(&self) -> bool {
        self.is_held
    }

    /// As of the opening for a link elsewhere: the shard that has the queue tells the carrier from then on.
    fn has_carrier(&self) -> bool {
        self.has_carrier
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        if self.layer == Layer::Ip {
            return Err(OpenError::no_address(self.name()));
        }
        self.layer = Layer::Ethernet(mac);
        Ok(())
    }

    fn layer(&self) -> Layer {
        self.layer
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, _: &Memory, _: &mut Vec<Packet>) -> io::Result<()> {
        self.check_held()
    }

    /// Leaves the packets in the burst: the datapath moves them.
    fn send(&mut self, _: &mut Vec<Packet>) -> io::Result<Sent> {
        Ok(Sent::Busy)
    }
}

//! Internal link of this node: the datapath moves its packets, without a device.

use std::io;
use std::os::fd::BorrowedFd;

use offload::Features;
use packet::{Memory, Packet};
use wire::eth::MacAddr;

use crate::offloads::{Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::{Common, Layer, Link, OpenError, Sent};

/// Every offload: the ports, or the link below, segment frames and complete checksums where their devices do not.
const FEATURES: Features = Features { frames: false, ..Features::ALL };

/// Device of a bridge, or a VLAN device.
#[derive(Debug)]
pub struct InternalLink {
    common: Common,
    mac: MacAddr,
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
        Self { common: Common::new(name, mtu, offloads, FEATURES), mac }
    }
}

impl Link for InternalLink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        self.mac = mac;
        Ok(())
    }

    fn layer(&self) -> Layer {
        Layer::Ethernet(self.mac)
    }

    fn poll_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn recv(&mut self, _: &Memory, _: &mut Vec<Packet>) -> io::Result<()> {
        Ok(())
    }

    /// Leaves the packets in the burst: the datapath moves them.
    fn send(&mut self, _: &mut Vec<Packet>) -> io::Result<Sent> {
        Ok(Sent::Busy)
    }
}

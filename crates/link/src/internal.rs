//! Internal link of this node: the datapath moves its packets, without a device.

use std::io;
use std::os::fd::BorrowedFd;

use offload::Features;
use packet::{Memory, Packet};
use wire::eth::MacAddr;

use crate::config::DEFAULT_MTU;
use crate::offloads::{Offloads, TX_CSUM, TX_TSO4, TX_TSO6, TX_USO};
use crate::stats::LinkStats;
use crate::{Layer, Link, Offload, OpenError, Sent};

/// Own port of a bridge, or a VLAN device.
#[derive(Debug)]
pub struct InternalLink {
    name: String,
    mac: MacAddr,
    mtu: usize,
    wanted_mtu: Option<u16>,
    offloads: Offloads,
    stats: LinkStats,
}

impl InternalLink {
    /// Own port of a bridge, with that link-layer address. The MTU is 1500 bytes by default.
    pub fn bridge(name: &str, mac: MacAddr, mtu: Option<u16>) -> Self {
        Self::new(name, mac, mtu, "left to the ports")
    }

    /// A VLAN device. Its link-layer address is zero until it is set.
    pub fn vlan(name: &str, mtu: Option<u16>) -> Self {
        Self::new(name, MacAddr::ZERO, mtu, "left to the link below")
    }

    fn new(name: &str, mac: MacAddr, mtu: Option<u16>, whose: &str) -> Self {
        let mut offloads = Offloads::new();
        for offload in [TX_CSUM, TX_TSO4, TX_TSO6, TX_USO] {
            offloads.add(offload, Ok(Some(whose.to_owned())));
        }
        let (name, stats) = (name.to_owned(), LinkStats::ZERO);
        Self { name, mac, mtu: mtu.map_or(DEFAULT_MTU, usize::from), wanted_mtu: mtu, offloads, stats }
    }
}

impl Link for InternalLink {
    fn name(&self) -> &str {
        &self.name
    }

    fn host_index(&self) -> Option<u32> {
        None
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn set_mtu(&mut self, mtu: Option<u16>) -> Result<(), OpenError> {
        self.mtu = mtu.map_or(DEFAULT_MTU, usize::from);
        self.wanted_mtu = mtu;
        Ok(())
    }

    fn wanted_mtu(&self) -> Option<u16> {
        self.wanted_mtu
    }

    fn set_mac(&mut self, mac: MacAddr) -> Result<(), OpenError> {
        self.mac = mac;
        Ok(())
    }

    fn layer(&self) -> Layer {
        Layer::Ethernet(self.mac)
    }

    /// Every offload: the ports, or the link below, segment frames and complete checksums where their devices do not.
    fn features(&self) -> Features {
        Features { frames: false, ..Features::ALL }
    }

    fn offloads(&self) -> &[Offload] {
        self.offloads.all()
    }

    fn stats(&self) -> &LinkStats {
        &self.stats
    }

    fn set_stats(&mut self, stats: LinkStats) {
        self.stats = stats;
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

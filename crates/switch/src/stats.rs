//! Counters of ports and VLANs.

use wire::eth;

use crate::vid::Vid;

/// Eight statistics of a switch port, as in Open vSwitch and `ip -s link`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PortStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received, without tags in metadata.
    pub rx_bytes: u64,
    /// Received frames whose source is not a unicast address.
    pub rx_errors: u64,
    /// Received frames that an ingress rule refused, or that every egress port refused.
    pub rx_dropped: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent, without tags in metadata.
    pub tx_bytes: u64,
    /// Frames longer than the port's MTU.
    pub tx_errors: u64,
    /// Frames to an address of this port that the port refused, and frames that its device refused.
    pub tx_dropped: u64,
}

impl PortStats {
    /// All counters zero.
    pub const ZERO: Self = Self {
        rx_packets: 0,
        rx_bytes: 0,
        rx_errors: 0,
        rx_dropped: 0,
        tx_packets: 0,
        tx_bytes: 0,
        tx_errors: 0,
        tx_dropped: 0,
    };

    /// Counts a received frame.
    #[inline]
    pub(crate) fn count_rx(&mut self, len: usize) {
        self.rx_packets += 1;
        self.rx_bytes += len as u64;
    }

    /// Counts a sent frame.
    #[inline]
    pub(crate) fn count_tx(&mut self, len: usize) {
        self.tx_packets += 1;
        self.tx_bytes += len as u64;
    }
}

/// Counters of a VLAN, summed over all ports (Linux `br_vlan_get_stats`). A frame counts once on reception, and once
/// for each egress port. The Ethernet header and the tag do not count as bytes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VlanStats {
    /// Frames received.
    pub rx_packets: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Frames sent.
    pub tx_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
}

/// Counters of each VLAN, allocated when counting is first enabled.
#[derive(Clone, Debug, Default)]
pub(crate) struct VlanCounters {
    pub(crate) is_counting: bool,
    /// Counters, indexed by VLAN number.
    all: Vec<VlanStats>,
}

impl VlanCounters {
    /// Enables or disables counting. Counters keep their values.
    pub(crate) fn set_counting(&mut self, is_counting: bool) {
        self.is_counting = is_counting;
        if is_counting && self.all.is_empty() {
            self.all = vec![VlanStats::default(); usize::from(Vid::LAST.get()) + 1];
        }
    }

    pub(crate) fn get(&self, vid: Vid) -> VlanStats {
        self.all.get(usize::from(vid.get())).copied().unwrap_or_default()
    }

    pub(crate) fn reset(&mut self, vid: Vid) {
        if let Some(stats) = self.all.get_mut(usize::from(vid.get())) {
            *stats = VlanStats::default();
        }
    }

    /// Counts a received frame of `len` bytes, including its Ethernet header.
    #[inline]
    pub(crate) fn count_rx(&mut self, vid: Option<Vid>, len: usize) {
        if let Some(stats) = self.counted(vid) {
            stats.rx_packets += 1;
            stats.rx_bytes += payload_len(len);
        }
    }

    /// Counts a sent frame of `len` bytes, including its Ethernet header.
    #[inline]
    pub(crate) fn count_tx(&mut self, vid: Option<Vid>, len: usize) {
        if let Some(stats) = self.counted(vid) {
            stats.tx_packets += 1;
            stats.tx_bytes += payload_len(len);
        }
    }

    #[inline]
    fn counted(&mut self, vid: Option<Vid>) -> Option<&mut VlanStats> {
        if !self.is_counting {
            return None;
        }
        self.all.get_mut(usize::from(vid?.get()))
    }
}

fn payload_len(len: usize) -> u64 {
    len.saturating_sub(eth::EthHeader::LEN) as u64
}

/// Counters of a port's learning.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LearnStats {
    /// Addresses learnt.
    pub learnt: u64,
    /// Addresses that moved to this port from another one.
    pub moved: u64,
    /// Frames whose source was not learnt because the port is at its limit of addresses.
    pub full: u64,
    /// Frames whose source is an address of the bridge, or one bound to another port.
    pub pinned: u64,
}

//! Counters of a link.

use base::DropReason;
use packet::{Cut, Packet};

/// A link's counters. A *packet* is what this program handles, up to 64 KiB; a *wire packet* is a segment of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Wire packets in the packets received.
    pub rx_wire_packets: u64,
    /// Bytes received, with all headers that the link carries.
    pub rx_bytes: u64,
    /// System calls that received at least one packet.
    pub rx_calls: u64,
    /// Packets dropped here after reception, or by the kernel because this link was too slow.
    pub rx_dropped: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Wire packets in the packets sent.
    pub tx_wire_packets: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// System calls that sent at least one packet.
    pub tx_calls: u64,
    /// Packets that could not be sent.
    pub tx_dropped: u64,
    /// Errors that the network reported to the socket (ICMP unreachable and the like), without a drop on this link.
    pub soft_errors: u64,
    drops: [u64; DropReason::COUNT],
}

impl LinkStats {
    /// All counters zero.
    pub const ZERO: Self = Self {
        rx_packets: 0,
        rx_wire_packets: 0,
        rx_bytes: 0,
        rx_calls: 0,
        rx_dropped: 0,
        tx_packets: 0,
        tx_wire_packets: 0,
        tx_bytes: 0,
        tx_calls: 0,
        tx_dropped: 0,
        soft_errors: 0,
        drops: [0; DropReason::COUNT],
    };

    /// Packets that the link itself dropped for `reason`, in either direction.
    pub fn dropped_for(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Drop reasons that occurred, with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let all = DropReason::ALL.iter().map(|&reason| (reason, self.dropped_for(reason)));
        all.filter(|&(_, count)| count > 0)
    }

    /// Counts a received packet.
    pub fn received(&mut self, packet: &Packet) {
        self.rx_packets += 1;
        self.rx_wire_packets += packet.meta.cut.segs();
        self.rx_bytes += packet.len() as u64;
    }

    pub(crate) fn sent(&mut self, packet: &Packet) {
        self.tx_packets += 1;
        match packet.meta.cut {
            Cut::Frames(_) => packet.frames().for_each(|frame| self.sent_frame(frame)),
            Cut::Whole | Cut::Gso(_) | Cut::Fragment => {
                self.tx_wire_packets += packet.meta.cut.segs();
                self.tx_bytes += packet.len() as u64;
            }
        }
    }

    /// Counts one frame of a packet ([`Cut::Frames`]) that still has unsent frames.
    pub(crate) fn sent_frame(&mut self, frame: &[u8]) {
        self.tx_wire_packets += 1;
        self.tx_bytes += frame.len() as u64;
    }

    /// Counts the first frame of a packet ([`Cut::Frames`]), whose last frame counts the packet.
    pub(crate) fn sent_first_frame(&mut self, packet: &Packet) {
        self.tx_packets += u64::from(packet.meta.cut.packets() <= 1);
        packet.frames().take(1).for_each(|frame| self.sent_frame(frame));
    }

    /// Counts a packet that was lost before [`recv`](crate::Link::recv) returned it.
    pub fn rx_drop(&mut self, reason: DropReason) {
        self.rx_drops(reason, 1);
    }

    /// Counts `n` packets that were lost before [`recv`](crate::Link::recv) returned them.
    pub(crate) fn rx_drops(&mut self, reason: DropReason, n: u64) {
        self.rx_dropped += n;
        self.drops[reason as usize] += n;
    }

    /// Counts a packet that was not sent.
    pub fn tx_drop(&mut self, reason: DropReason) {
        self.tx_dropped += 1;
        self.drops[reason as usize] += 1;
    }
}

impl Default for LinkStats {
    fn default() -> Self {
        Self::ZERO
    }
}

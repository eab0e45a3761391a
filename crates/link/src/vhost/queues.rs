//! Queue selection and burst limits, shared by back end and front end.

use std::hash::{DefaultHasher, Hash, Hasher};

use packet::Packet;
use wire::{FlowKey, eth};

/// Packets that one call of [`Link::recv`](crate::Link::recv) brings at most.
pub(super) const BURST_PACKETS: usize = 64;

/// Bytes after which a burst ends.
pub(super) const BURST_BYTES: usize = 256 << 10;

/// Descriptors after which a burst ends: a guest with many small ones takes no more time than another.
pub(super) const BURST_DESCRIPTORS: usize = 4096;

/// Times that one call looks again for buffers that a guest has none of.
pub(super) const MAX_LOOKS: usize = 16;

/// The most pairs of queues.
pub const MAX_PAIRS: u16 = 64;

/// Which of `count` queues a packet goes to: one for each flow, so that it stays in order.
pub(super) fn queue_of(packet: &Packet, count: usize) -> usize {
    if count <= 1 {
        return 0;
    }
    let head = packet.head().get(eth::Header::LEN..).unwrap_or_default();
    let Ok(flow) = FlowKey::parse(head, packet.len().saturating_sub(eth::Header::LEN)) else { return 0 };
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    (hasher.finish() % count as u64) as usize
}

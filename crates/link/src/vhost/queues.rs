//! Queue selection and burst limits, shared by back end and front end.

use std::hash::{DefaultHasher, Hash, Hasher};

use driver::DriverKind;
use packet::Packet;
use wire::{FlowKey, eth};

/// Limit of packets that one call of [`Link::recv`](crate::Link::recv) returns.
pub(super) const BURST_PACKETS: usize = 64;

/// Bytes after which a burst ends.
pub(super) const BURST_BYTES: usize = 256 << 10;

/// Descriptors after which a burst ends, so that a guest with many small descriptors takes no more time than another.
pub(super) const BURST_DESCRIPTORS: usize = 4096;

/// Times that one call rereads the ring of a guest that is out of buffers.
pub(super) const MAX_LOOKS: usize = 16;

/// Maximum of queue pairs.
pub const MAX_PAIRS: u16 = DriverKind::MAX_VHOST_QUEUES;

/// Queue of a packet, among `count`: one per flow, which keeps a flow in order.
pub(super) fn queue_of(packet: &Packet, count: usize) -> usize {
    if count <= 1 {
        return 0;
    }
    let head = packet.head().get(eth::EthHeader::LEN..).unwrap_or_default();
    let Ok(flow) = FlowKey::parse(head, packet.len().saturating_sub(eth::EthHeader::LEN)) else { return 0 };
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    (hasher.finish() % count as u64) as usize
}

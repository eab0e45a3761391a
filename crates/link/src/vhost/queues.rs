//! Burst limits, shared by back end and front end.

use driver::DriverKind;

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

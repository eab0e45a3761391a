//! Guests by vhost-user: the back end of a virtio-net device, whose front end is QEMU, cloud-hypervisor, or another user-space switch.
//!
//! The front end connects to a Unix socket and says where the guest's memory and rings are (vhost-user of QEMU's documentation; messages by the kept crate
//! `vhost`). Frames are then copied out of the guest's memory, once, and into it, once. A guest writes its memory at every moment, so a packet is
//! never there, and each number of a ring is read once, checked, then used.
//!
//! - Only what the guest negotiated is used: it says which packets it takes unfinished ([`Link::features`](crate::Link::features)), and may ask for no more than that itself.
//!   That it found a checksum good is not believed.
//! - What breaks the rules closes the connection, with one error of [`Link::recv`](crate::Link::recv) or [`Link::send`](crate::Link::send) and one
//!   [`DropReason::RingDescriptor`](base::DropReason). Then the link waits for a front end again.
//! - A front end that is gone may come back, with other features; the next one in line is taken when the one before is gone.
//! - The other end is here, too: [`open_front`] joins this program to a switch in another process.
//!
//! Limits: split rings; guests whose numbers are little-endian; memory of memfd, tmpfs or huge pages; no live migration (`VHOST_F_LOG_ALL`).

mod back;
mod connection;
mod device;
mod driver_ring;
mod features;
mod frames;
mod front;
mod guest;
mod handshake;
mod queues;
mod ring;
#[cfg(test)]
mod tests;

pub use back::{VhostConfig, VhostUser, open};
pub use front::{FrontConfig, VhostFront, open as open_front};
pub use guest::{GuestState, QueueState};
pub use queues::MAX_PAIRS;

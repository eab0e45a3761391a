//! Guests by vhost-user: the back end of a virtio-net device, and the front end of one.
//!
//! A front end (QEMU, cloud-hypervisor, another switch) connects to a Unix socket and says where the guest's memory and rings are. Frames are
//! copied out of that memory once and into it once: the guest may write there at every moment, so no packet lies there, and each number of a
//! ring is read once, checked, then used. Messages are parsed by the crate `vhost`, rings are walked here.
//!
//! - Only negotiated features are used. They decide which packets the guest is given unfinished ([`Link::features`](crate::Link::features)), and
//!   a header of the guest's that asks for another is dropped. `DATA_VALID` of a guest is ignored.
//! - A broken rule closes the connection, with one error of [`Link::recv`](crate::Link::recv) or [`Link::send`](crate::Link::send) and one
//!   [`DropReason::RingDescriptor`](base::DropReason::RingDescriptor). Then the port waits for a front end again.
//! - A front end may go and come back with other features. While one is connected, others wait in the socket's backlog.
//! - [`open_front`] is the other side: it joins this program to a switch in another process, with rings and buffers in memory of ours.
//!
//! Limits: split rings; little-endian guests; memory of memfd, tmpfs or huge pages; no live migration (`VHOST_F_LOG_ALL`). A front end
//! without a kick descriptor is seen only when the link is polled for another reason.
//!
//! Sources: virtio 1.2 §2.7 and §5.1, `docs/interop/vhost-user.rst` of QEMU.

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

//! Guests by vhost-user: the back end of a virtio-net device, and the front end of one.
//!
//! A front end (QEMU, cloud-hypervisor, another switch) connects to a Unix socket and announces the guest's memory and
//! rings. Frames are copied out of that memory once and into it once: the guest may write there at any moment, so no
//! packet stays there, and each number of a ring is read once, checked, then used. Messages are parsed by the crate
//! `vhost`, rings are walked here.
//!
//! - Only negotiated features are used. They are the offloads towards the guest ([`Link::features`](crate::Link::features)); a frame
//!   of the guest whose header uses another feature is dropped. `DATA_VALID` of a guest is ignored.
//! - A violation of the rules closes the connection, with one error of [`Link::recv`](crate::Link::recv) or
//!   [`Link::send`](crate::Link::send) and one [`DropReason::RingDescriptor`](base::DropReason::RingDescriptor). Then the port
//!   waits for a front end again.
//! - A front end may disconnect, and reconnect with other features. While one is connected, others wait in the socket's backlog.
//! - 1000 messages and connections a second are handled (`pace.rs`); the others wait in their socket.
//! - [`open_queues`] deals the pairs of queues to shards (`pairs.rs`). The first shard has the connection and its errors. A shard none of
//!   whose pairs the guest has enabled is [without a queue](crate::Link::is_elsewhere).
//! - [`VhostUser::pass`] ends a port with its connection as data, and [`VhostUser::take`] goes on with that in another process
//!   (`passed.rs`).
//! - [`open_front`] is the other side: it connects this program to a switch in another process, with rings and buffers in memory
//!   of ours.
//!
//! Limits: split rings; little-endian guests; memory of memfd, tmpfs or huge pages; no live migration
//! (`VHOST_F_LOG_ALL`). A front end without a kick descriptor is served only when the link is polled for another
//! reason.
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
mod notify;
mod pace;
mod pairs;
mod passed;
mod queues;
mod ring;
#[cfg(test)]
mod tests;

pub use back::{EndedListener, VhostConfig, VhostUser, end_listening, listening_path, open, open_queues};
pub use front::{FrontConfig, VhostFront, open as open_front};
pub use guest::{GuestState, QueueState};
pub use passed::{ConnectionState, PassedConnection, start_closing};
pub use queues::MAX_PAIRS;

//! Links, the drivers that receive and send packets: TUN, TAP, UDP sockets, packet sockets, AF_XDP, guests, memory; and
//! capture files.
//!
//! A [`Link`] moves [`Packet`](packet::Packet)s in bursts, without blocking. This crate decides which system calls are
//! made, how many packets go in one, and which of the kernel's offloads are used. It leaves to its callers the meaning
//! of packets, the fitting of packets to a link's [`features`](Link::features), when to poll, and what to do about a
//! link that fails.
//!
//! - [`open()`] makes a link of the host from a [`Config`]: a TUN or TAP device with virtio-net headers, a UDP socket with
//!   the kernel's own UDP GSO and GRO, or an interface by a packet socket with virtio-net headers. Packets are fat in
//!   both directions where the kernel can.
//! - AF_XDP receives an interface's frames in pages that packets point into; a page goes back to the ring with its last packet
//!   ([`Link::settle`]). The driver mode is probed ([`XdpMode`](driver::XdpMode)), and [`Link::ring`] returns the state of the ring.
//! - [`HostDevice`] makes a persistent device of a node's host side in another network namespace, which [`unshare`] makes, and
//!   the link over the device's queue.
//! - [`vhost::open`] makes a port for a guest, by vhost-user: rings in the guest's memory, whose contents are not trusted.
//!   [`vhost::open_front`] is the other end of such a port, in memory of ours. [`Link::guest`] returns the state of either end.
//! - [`memory::pair`] makes two ends of a wire in this process, for tests and benchmarks.
//! - Each offload is probed when the link is opened, and given up with its reason when a packet is refused because of
//!   it; [`Link::send`] then leaves the packet with the caller, to be fitted again in software ([`Sent::Refit`]).
//! - [`virtio`] reads virtio-net headers, from guests as hostile as they like.
//! - [`pcap`] and [`pcapng`] read and write capture files.
//!
//! Limits: a packet has at most 1024 pieces when it is sent (`UIO_MAXIOV`). The kernel interfaces are Linux's, from
//! 4.20 (`PACKET_IGNORE_OUTGOING`) on; UDP GRO needs 5.0, AF_XDP 5.9 (`BPF_LINK_CREATE`), USO through TUN 6.2, frames
//! longer than a page by AF_XDP 6.6.
//!
//! Sources: tun(4) and `Documentation/networking/tuntap.rst`, virtio 1.2 §5.1.6, packet(7), udp(7),
//! `Documentation/networking/af_xdp.rst`, bpf(2); virtio 1.2 §2.7 and §5.1, `docs/interop/vhost-user.rst` of QEMU.

mod af_packet;
mod af_xdp;
mod burst;
pub mod capture;
mod common;
mod config;
mod error;
mod host_links;
mod internal;
mod link;
pub mod memory;
mod offloads;
mod open;
pub mod pcap;
pub mod pcapng;
mod pieces;
mod posted;
mod ring_state;
mod stats;
mod sys;
mod tun;
mod udp;
pub mod vhost;
pub mod virtio;

pub use common::Common;
pub use config::Config;
pub use error::OpenError;
pub use host_links::HostLinks;
pub use internal::InternalLink;
pub use link::{Layer, Link, Sent};
pub use offloads::{Offload, Offloads};
pub use open::{has_device, has_interface, link_settings, open};
pub use ring_state::RingState;
pub use stats::LinkStats;
pub use sys::discard::{Discard, DiscardThread, discard};
pub use sys::namespace::{Namespace, unshare};
pub use sys::socket::peer_pidfd;
pub use sys::xsk::XdpStats;
pub use tun::HostDevice;

//! Links, the drivers that receive and send packets: TUN, TAP, UDP sockets, packet sockets, AF_XDP, guests, memory; and
//! capture files.
//!
//! # Decides
//! - System calls, number of packets in one call, and use of the kernel's offloads. A [`Link`] moves
//!   [`Packet`](packet::Packet)s in bursts, without blocking.
//! - Validity of headers and rings that guests and kernels write: [`virtio`] reads virtio-net headers, from guests as
//!   hostile as they like; [`vhost`] walks rings in memory that guests change at any time.
//! - Bytes of capture files: [`pcap`], [`pcapng`].
//!
//! # Leaves to others
//! Kinds of links and their settings (crate [`driver`]); fitting of packets to a link's [`features`](Link::features)
//! (crate [`offload`]); meaning of packets (crate `datapath`); polling, and handling of a link that fails (crate
//! `daemon`).
//!
//! # Limits
//! - One call moves at most 64 packets (`MAX_MESSAGES` in `sys/mmsg.rs`) of 1024 pieces together (`MAX_PIECES`,
//!   `UIO_MAXIOV`); a burst is 64 packets or 256 KiB (`BURST_PACKETS`, `BURST_BYTES` of most drivers).
//! - A guest has at most [`vhost::MAX_PAIRS`] pairs of queues (64) of 32 768 descriptors, 128 regions and 64 GiB of
//!   memory unless the link has another limit, up to 1 TiB (`vhost/device.rs`), and chains of 1024 descriptors (`vhost/ring.rs`).
//! - Capture files: packets of [`capture::MAX_PACKET`] (256 KiB), 1024 interfaces in a section (`MAX_INTERFACES` in
//!   `pcapng.rs`).
//! - Linux from 5.9 (`BPF_LINK_CREATE`, for AF_XDP) on; USO through TUN needs 6.2, frames longer than a page by AF_XDP
//!   6.6.
//!
//! # Standards
//! RFC 4301 §8.1 (Don't Fragment of ESP in UDP); RFC 3948 §2.1 and RFC 7296 §2 (ports of IKE); draft-ietf-opsawg-pcap
//! and draft-ietf-opsawg-pcapng (capture files); RFC 9669 §3 and §4 (the XDP program). Virtio 1.2 §2.7 and §5.1,
//! `docs/interop/vhost-user.rst` of QEMU. Kernel interfaces: tun(4), `Documentation/networking/tuntap.rst`, packet(7),
//! udp(7), socket(7), `Documentation/networking/af_xdp.rst`, `Documentation/networking/filter.rst`, bpf(2).
//!
//! # Links
//! - [`open()`] makes a link of the host from a [`Config`]: a TUN or TAP device with virtio-net headers, a UDP socket
//!   with the kernel's own UDP GSO and GRO, or an interface by a packet socket with virtio-net headers. Packets are fat
//!   in both directions where the kernel can.
//! - [`open_queues()`] opens a link with a queue for each shard of a node: queues of a TUN or TAP device, UDP sockets at one
//!   port, a group of packet sockets, queues of AF_XDP, pairs of queues of a guest. Programs of classic BPF steer packets of
//!   ESP to the owner of their SPI (`steering.rs`). Other kinds have one queue, the first shard's.
//! - A link is opened in two halves: [`acquire()`] makes the descriptors, for which most kinds take capabilities, and
//!   [`from_descriptors()`] makes the link, without any. Calls about an open link that take one are left to the
//!   [`Opener`], if the process has one.
//! - AF_XDP receives an interface's frames in pages that packets point into; a page goes back to the ring with its last
//!   packet ([`Link::settle`]). The driver mode is probed ([`XdpMode`](driver::XdpMode)), and [`Link::ring`] returns
//!   the state of the ring.
//! - [`HostDevice`] makes a persistent device of a node's host side in another network namespace, which [`unshare`]
//!   makes, and the link over the device's queue.
//! - [`vhost::open`] makes a port for a guest, by vhost-user. [`vhost::open_front`] is the other end of such a port, in
//!   memory of ours. [`Link::guest`] returns the state of either end.
//! - [`memory::pair`] makes two ends of a wire in this process, for tests and benchmarks.
//! - Each offload is probed when the link is opened, and given up with its reason when a packet is refused because of
//!   it; [`Link::send`] then leaves the packet with the caller, to be fitted again in software ([`Sent::Refit`]).

mod acquired;
mod af_packet;
mod af_xdp;
mod burst;
pub mod capture;
mod common;
mod config;
mod error;
mod flow_hash;
mod host_links;
mod internal;
mod link;
pub mod memory;
mod netlink_filter;
mod offloads;
mod open;
mod opener;
pub mod pcap;
pub mod pcapng;
mod pieces;
mod posted;
mod ring_state;
mod rx_filter;
mod stats;
mod steering;
mod sys;
mod tun;
mod udp;
pub mod vhost;
pub mod virtio;

pub use acquired::{Acquired, Duplicates};
pub use common::Common;
pub use config::Config;
pub use error::OpenError;
pub use host_links::HostLinks;
pub use internal::InternalLink;
pub use link::{Layer, Link, Sent};
pub use netlink_filter::hear_other_ports;
pub use offloads::{Offload, Offloads};
pub use open::{
    acquire, from_descriptors, has_device, has_interface, held, interface_index, link_settings, open, open_queues,
};
pub use opener::{Opener, set_opener};
pub use ring_state::RingState;
pub use stats::LinkStats;
pub use sys::descriptors::take_inherited;
pub use sys::discard::{Discard, DiscardThread, discard};
pub use sys::namespace::{Namespace, unshare};
pub use sys::socket::{namespace_cookie, peer_pidfd};
pub use sys::xsk::XdpStats;
pub use tun::HostDevice;
pub use udp::{PeerError, bind_port, set_trains, widen};

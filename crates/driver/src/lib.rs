//! Kinds of links that have a driver, as plain data: the settings that a configuration gives, and that a driver opens.
//!
//! # Decides
//! [Kinds](DriverKind) of links, with their settings, limits and properties: keyword, layer, queues, part of the host
//! ([`Resource`]), keys of a file. Places of an XDP program ([`XdpMode`]).
//!
//! # Leaves to others
//! Reading and checking of settings (crate `config`), and opening of devices and sockets (crate `link`). Nothing here
//! does I/O.
//!
//! # Limits
//! - [`DriverKind::MAX_TUN_QUEUES`]: 256 queues of a TUN or TAP device, as in Linux.
//! - [`DriverKind::MAX_VHOST_QUEUES`]: 64 pairs of queues of vhost-user.
//! - [`DriverKind::MAX_XDP_RING`]: 4096 receive frames of an AF_XDP queue.
//! - [`DriverKind::MAX_VIRTIO_RING`]: 1024 descriptors of a ring of vhost-user.
//!
//! # Standards
//! No RFC. The kinds are Linux's (tun(4), udp(7), packet(7), AF_XDP) and vhost-user's (virtio 1.2).
#![forbid(unsafe_code)]

mod kind;
mod xdp_mode;

pub use kind::{DriverKind, Resource};
pub use xdp_mode::XdpMode;

//! Kinds of links that have a driver.

use std::net::SocketAddr;

use crate::XdpMode;

/// Kind of a link that has a driver, with its settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum DriverKind {
    /// A TUN device of this host: IP packets to and from the host's stack.
    Tun {
        /// Queues, 1 to [`MAX_TUN_QUEUES`](DriverKind::MAX_TUN_QUEUES).
        queues: u16,
    },
    /// A TAP device of this host: Ethernet frames to and from the host's stack.
    Tap {
        /// Queues, 1 to [`MAX_TUN_QUEUES`](DriverKind::MAX_TUN_QUEUES).
        queues: u16,
    },
    /// A UDP socket of this host, for ESP in UDP (RFC 3948).
    Udp {
        /// Local address and port.
        bind: SocketAddr,
    },
    /// A network interface of this host, by a packet socket.
    Packet {
        /// Interface that the socket is bound to.
        interface: String,
        /// Whether the interface's frames are kept from the host's own stack. Needs Linux 6.6, `CAP_BPF` and `CAP_NET_ADMIN`.
        exclusive: bool,
    },
    /// A network interface of this host, by AF_XDP sockets, one for each receive queue.
    Xdp {
        /// Interface whose queues the sockets are bound to.
        interface: String,
        /// Receive frames of each queue, one of [`XDP_RINGS`](DriverKind::XDP_RINGS); a queue has as many transmit frames.
        ring: u16,
        /// Place where frames are taken.
        mode: XdpMode,
    },
    /// A guest or another switch, by vhost-user: a device of the other side, with rings in its memory.
    VhostUser {
        /// Absolute path of the socket that the front end connects to, which is made here.
        socket: String,
        /// Pairs of queues that the front end may have, 1 to [`MAX_VHOST_QUEUES`](DriverKind::MAX_VHOST_QUEUES).
        queues: u16,
    },
    /// A port of another switch, by vhost-user: a device of this node, with rings in its memory (DPDK `virtio_user`).
    VirtioUser {
        /// Absolute path of the back end's socket.
        socket: String,
        /// Pairs of queues that are requested, 1 to [`MAX_VHOST_QUEUES`](DriverKind::MAX_VHOST_QUEUES).
        queues: u16,
        /// Descriptors of a ring, one of [`VIRTIO_RINGS`](DriverKind::VIRTIO_RINGS).
        ring: u16,
    },
}

impl DriverKind {
    /// Keys of a file in which two links of one kind differ. Links of different kinds have none in common.
    pub fn differing_keys(&self, other: &Self) -> Vec<&'static str> {
        let keys = match (self, other) {
            (Self::Tun { queues }, Self::Tun { queues: other })
            | (Self::Tap { queues }, Self::Tap { queues: other }) => vec![("queues", queues != other)],
            (Self::Udp { bind }, Self::Udp { bind: other }) => vec![("bind", bind != other)],
            (
                Self::Packet { interface, exclusive },
                Self::Packet { interface: other_interface, exclusive: other_exclusive },
            ) => vec![("interface", interface != other_interface), ("exclusive", exclusive != other_exclusive)],
            (
                Self::Xdp { interface, ring, mode },
                Self::Xdp { interface: other_interface, ring: other_ring, mode: other_mode },
            ) => vec![
                ("interface", interface != other_interface),
                ("ring", ring != other_ring),
                ("mode", mode != other_mode),
            ],
            (Self::VhostUser { socket, queues }, Self::VhostUser { socket: other_socket, queues: other_queues }) => {
                vec![("socket", socket != other_socket), ("queues", queues != other_queues)]
            }
            (
                Self::VirtioUser { socket, queues, ring },
                Self::VirtioUser { socket: other_socket, queues: other_queues, ring: other_ring },
            ) => vec![
                ("socket", socket != other_socket),
                ("queues", queues != other_queues),
                ("ring", ring != other_ring),
            ],
            _ => Vec::new(),
        };
        keys.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }

    /// The most queues of a TUN or TAP device (Linux `MAX_TAP_QUEUES`).
    pub const MAX_TUN_QUEUES: u16 = 256;

    /// The most pairs of queues of vhost-user.
    pub const MAX_VHOST_QUEUES: u16 = 64;

    /// Default number of receive frames of an AF_XDP queue.
    pub const XDP_RING: u16 = 1024;

    /// The most receive frames of an AF_XDP queue.
    pub const MAX_XDP_RING: u16 = 4096;

    /// Numbers of receive frames that an AF_XDP queue can have: the kernel requires a power of two.
    pub const XDP_RINGS: [u16; 5] = [256, 512, 1024, 2048, Self::MAX_XDP_RING];

    /// Default number of descriptors of a ring of vhost-user.
    pub const VIRTIO_RING: u16 = 256;

    /// The most descriptors of a ring of vhost-user.
    pub const MAX_VIRTIO_RING: u16 = 1024;

    /// Numbers of descriptors that a ring of vhost-user can have.
    pub const VIRTIO_RINGS: [u16; 5] = [64, 128, 256, 512, Self::MAX_VIRTIO_RING];

    /// Word of the kind in a configuration and in `fatpath show links`.
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Tun { .. } => "tun",
            Self::Tap { .. } => "tap",
            Self::Udp { .. } => "udp",
            Self::Packet { .. } => "packet",
            Self::Xdp { .. } => "xdp",
            Self::VhostUser { .. } => "vhost-user",
            Self::VirtioUser { .. } => "virtio-user",
        }
    }

    /// Whether the link's packets begin with an Ethernet header.
    pub const fn is_ethernet(&self) -> bool {
        match self {
            Self::Tap { .. }
            | Self::Packet { .. }
            | Self::Xdp { .. }
            | Self::VhostUser { .. }
            | Self::VirtioUser { .. } => true,
            Self::Tun { .. } | Self::Udp { .. } => false,
        }
    }

    /// Interface of the host that the link is on.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Packet { interface, .. } | Self::Xdp { interface, .. } => Some(interface),
            Self::Tun { .. }
            | Self::Tap { .. }
            | Self::Udp { .. }
            | Self::VhostUser { .. }
            | Self::VirtioUser { .. } => None,
        }
    }

    /// Socket of vhost-user.
    pub fn socket(&self) -> Option<&str> {
        match self {
            Self::VhostUser { socket, .. } | Self::VirtioUser { socket, .. } => Some(socket),
            Self::Tun { .. } | Self::Tap { .. } | Self::Udp { .. } | Self::Packet { .. } | Self::Xdp { .. } => None,
        }
    }
}

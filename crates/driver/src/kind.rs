//! Kinds of links that have a driver, and their properties.

use std::fmt::Debug;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::XdpMode;

/// Kind of a link that has a driver, with its settings.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
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
        /// Bytes of memory that the front end may share, at most [`MAX_VHOST_MEMORY`](DriverKind::MAX_VHOST_MEMORY).
        memory: u64,
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

/// Part of the host that a link is on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resource<'a> {
    /// TUN or TAP device of the link's name, made if it does not exist; the host's stack is the peer.
    Device,
    /// UDP socket, bound to this address and port, which the host's stack has too.
    UdpSocket(SocketAddr),
    /// Network interface of this name, which exists before the link.
    Interface(&'a str),
    /// Socket of vhost-user at this path; the link-layer address is the daemon's choice.
    VhostSocket(&'a str),
}

impl DriverKind {
    /// The most queues of a TUN or TAP device (Linux `MAX_TAP_QUEUES`).
    pub const MAX_TUN_QUEUES: u16 = 256;

    /// The most pairs of queues of vhost-user.
    pub const MAX_VHOST_QUEUES: u16 = 64;

    /// Default limit of the memory that a front end of vhost-user shares, in bytes: 64 GiB.
    pub const VHOST_MEMORY: u64 = 64 << 30;

    /// The most memory that a front end of vhost-user may share, in bytes: mappings of all guests share one address space of
    /// 128 TiB.
    pub const MAX_VHOST_MEMORY: u64 = 1 << 40;

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

    /// Link of each kind with default settings, in the order of texts that list the kinds.
    pub fn defaults() -> [Self; 7] {
        let bind = SocketAddr::from(([0; 4], 0));
        [
            Self::Tun { queues: 1 },
            Self::Tap { queues: 1 },
            Self::Udp { bind },
            Self::Packet { interface: String::new(), exclusive: false },
            Self::Xdp { interface: String::new(), ring: Self::XDP_RING, mode: XdpMode::Auto },
            Self::VhostUser { socket: String::new(), queues: 1, memory: Self::VHOST_MEMORY },
            Self::VirtioUser { socket: String::new(), queues: 1, ring: Self::VIRTIO_RING },
        ]
    }

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
            Self::Tun { .. } | Self::Udp { .. } => false,
            Self::Tap { .. } | Self::Packet { .. } | Self::Xdp { .. } => true,
            Self::VhostUser { .. } | Self::VirtioUser { .. } => true,
        }
    }

    /// Part of the host that the link is on.
    pub fn resource(&self) -> Resource<'_> {
        match self {
            Self::Tun { .. } | Self::Tap { .. } => Resource::Device,
            Self::Udp { bind } => Resource::UdpSocket(*bind),
            Self::Packet { interface, .. } | Self::Xdp { interface, .. } => Resource::Interface(interface),
            Self::VhostUser { socket, .. } | Self::VirtioUser { socket, .. } => Resource::VhostSocket(socket),
        }
    }

    /// Queues, or pairs of queues; `None`: those of the interface.
    pub const fn queues(&self) -> Option<u16> {
        match self {
            Self::Tun { queues } | Self::Tap { queues } => Some(*queues),
            Self::VhostUser { queues, .. } | Self::VirtioUser { queues, .. } => Some(*queues),
            Self::Udp { .. } | Self::Packet { .. } => Some(1),
            Self::Xdp { .. } => None,
        }
    }

    /// Keys of a file that the driver's settings have, with the values as text.
    fn settings(&self) -> Vec<(&'static str, String)> {
        let text = |value: &dyn Debug| format!("{value:?}");
        match self {
            Self::Tun { queues } | Self::Tap { queues } => vec![("queues", text(queues))],
            Self::Udp { bind } => vec![("bind", text(bind))],
            Self::Packet { interface, exclusive } => {
                vec![("interface", text(interface)), ("exclusive", text(exclusive))]
            }
            Self::Xdp { interface, ring, mode } => {
                vec![("interface", text(interface)), ("ring", text(ring)), ("mode", text(mode))]
            }
            Self::VhostUser { socket, queues, memory } => {
                vec![("socket", text(socket)), ("queues", text(queues)), ("memory", text(memory))]
            }
            Self::VirtioUser { socket, queues, ring } => {
                vec![("socket", text(socket)), ("queues", text(queues)), ("ring", text(ring))]
            }
        }
    }

    /// Whether one of the driver's settings has this key of a file.
    pub fn has_key(&self, key: &str) -> bool {
        self.settings().iter().any(|(own, _)| *own == key)
    }

    /// Keys of a file in which two links of one kind differ.
    pub fn differing_keys(&self, other: &Self) -> Vec<&'static str> {
        let others = other.settings();
        self.settings().into_iter().filter(|setting| !others.contains(setting)).map(|(key, _)| key).collect()
    }
}

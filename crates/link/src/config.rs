//! Configuration of links of the host, as an operator writes it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use wire::eth::MacAddr;

use crate::XdpMode;

/// Default MTU of a link without an interface.
pub(crate) const DEFAULT_MTU: usize = 1500;

/// Configuration of a link to be opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Name. A TUN or TAP device has the same name on the host.
    pub name: String,
    /// Kind of the link.
    pub kind: ConfigKind,
    /// Layer-3 MTU in bytes; `None` is the interface's own for a packet socket or AF_XDP, and 1500 for other kinds.
    pub mtu: Option<u16>,
    /// False turns every offload off, and moves one packet per system call.
    pub offloads: bool,
    /// Interface index of a TUN or TAP device that is made for the link; `None` lets the host choose.
    pub index: Option<u32>,
}

/// Kind of a link, with its settings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ConfigKind {
    /// A TUN device of this name with a number of queues, at least 1.
    Tun {
        /// Queues.
        queues: u16,
    },
    /// A TAP device of this name.
    Tap {
        /// Queues.
        queues: u16,
    },
    /// A UDP socket.
    Udp {
        /// Local address.
        bind: SocketAddr,
    },
    /// A packet socket.
    Packet {
        /// Whether the interface's frames are kept from the host's own stack. Needs Linux 6.6, `CAP_BPF` and
        /// `CAP_NET_ADMIN`.
        exclusive: bool,
        /// Interface that the socket is bound to.
        interface: String,
    },
    /// A socket that a front end of vhost-user connects to.
    VhostUser {
        /// Path of the socket.
        socket: PathBuf,
        /// The link's own address.
        mac: MacAddr,
        /// Pairs of queues.
        queues: u16,
    },
    /// A front end of vhost-user.
    VirtioUser {
        /// Path of the back end's socket.
        socket: PathBuf,
        /// The link's own address.
        mac: MacAddr,
        /// Pairs of queues.
        queues: u16,
        /// Descriptors of a ring, a power of two.
        ring: u16,
    },
    /// AF_XDP sockets, one for each receive queue.
    Xdp {
        /// Interface whose queues the sockets are bound to.
        interface: String,
        /// Receive frames of each queue, a power of two; a queue has as many transmit frames.
        ring: NonZeroU32,
        /// Place of the XDP program.
        mode: XdpMode,
    },
}

//! Opening of the host's links from their configuration.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use wire::eth::MacAddr;

use crate::af_packet::PacketLink;
use crate::af_xdp::XdpLink;
use crate::sys::ifreq::Interface;
use crate::tun::TunLink;
use crate::udp::UdpLink;
use crate::vhost::{self, FrontConfig, VhostConfig};
use crate::{Layer, Link, OpenError, XdpMode};

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
    /// A TUN device of this name with so many queues, at least 1.
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
        /// Whether the interface's frames are kept from the host's own stack. Needs Linux 6.6, `CAP_BPF` and `CAP_NET_ADMIN`.
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

/// Link settings that the driver reports for an interface of the calling thread's network namespace (Linux `struct
/// ethtool_link_settings`), followed by `words` words of 32 bits for each of the three sets of link modes.
///
/// # Errors
/// Error of the system; `EOPNOTSUPP` if the driver does not support the request.
pub fn link_settings(interface: &str, words: usize) -> io::Result<Vec<u8>> {
    Interface::new(interface)?.link_settings(words)
}

/// Tells whether an interface of the calling thread's network namespace has that index.
#[must_use]
pub fn has_interface(index: u32) -> bool {
    let Ok(index) = i32::try_from(index) else { return false };
    Interface::new("lo").is_ok_and(|any| any.name_of(index).is_some())
}

/// Tells whether the host has the device of a link. A UDP socket has no device.
pub fn has_device(config: &Config) -> bool {
    let name = match &config.kind {
        ConfigKind::Tun { .. } | ConfigKind::Tap { .. } => &config.name,
        ConfigKind::Packet { interface, .. } | ConfigKind::Xdp { interface, .. } => interface,
        ConfigKind::Udp { .. } | ConfigKind::VhostUser { .. } | ConfigKind::VirtioUser { .. } => return true,
    };
    Interface::new(name).and_then(|interface| interface.index()).is_ok()
}

/// Default MTU of a link without an interface.
pub(crate) const DEFAULT_MTU: usize = 1500;

/// Opens a link in the calling thread's network namespace. TUN and TAP devices are made, and brought up.
///
/// # Errors
/// The device and the call that failed, with a remedy where one is known.
pub fn open(config: &Config) -> Result<Box<dyn Link>, OpenError> {
    Ok(match &config.kind {
        ConfigKind::Tun { queues } => Box::new(TunLink::open(config, Layer::Ip, *queues)?),
        ConfigKind::Tap { queues } => Box::new(TunLink::open(config, TunLink::TAP, *queues)?),
        ConfigKind::Udp { bind } => Box::new(UdpLink::open(config, *bind)?),
        ConfigKind::Packet { interface, exclusive } => Box::new(PacketLink::open(config, interface, *exclusive)?),
        ConfigKind::VhostUser { socket, mac, queues } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let back = VhostConfig::new(&config.name, socket, *mac);
            Box::new(vhost::open(&VhostConfig { pairs: *queues, mtu, offloads, ..back })?)
        }
        ConfigKind::VirtioUser { socket, mac, queues, ring } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let front = FrontConfig::new(&config.name, socket, *mac);
            Box::new(vhost::open_front(&FrontConfig { pairs: *queues, ring_size: *ring, mtu, offloads, ..front })?)
        }
        ConfigKind::Xdp { interface, ring, mode } => Box::new(XdpLink::open(config, interface, *ring, *mode)?),
    })
}

//! Links of the host, from what an operator wrote.

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

/// A link to be opened.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Its name. That of a TUN or TAP device is the host's too.
    pub name: String,
    /// What moves its bytes.
    pub kind: ConfigKind,
    /// Its layer-3 MTU in bytes; `None` is the interface's own for a packet socket or AF_XDP, and 1500 for the others.
    pub mtu: Option<u16>,
    /// False switches every offload off, and moves one packet in a system call.
    pub offloads: bool,
    /// Number that a TUN or TAP device gets if it is made for the link; `None` is one that the host chooses.
    pub index: Option<u32>,
}

/// What moves a link's bytes.
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
        /// Where it is bound.
        bind: SocketAddr,
    },
    /// A packet socket.
    Packet {
        /// Whether the host's own stack gets none of the interface's frames. Takes Linux 6.6, `CAP_BPF` and `CAP_NET_ADMIN`.
        exclusive: bool,
        /// The interface that it is bound to.
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
        /// The interface whose queues they are bound to.
        interface: String,
        /// Frames of each queue to receive into, a power of two; there are as many to send from.
        ring: NonZeroU32,
        /// Where its frames are taken.
        mode: XdpMode,
    },
}

/// What the driver of an interface of the calling thread's network namespace says of its link (Linux `struct
/// ethtool_link_settings`), with `words` words of 32 bits for each of the three sets of link modes behind it.
///
/// # Errors
/// What the system says; `EOPNOTSUPP`: the driver says nothing.
pub fn link_settings(interface: &str, words: usize) -> io::Result<Vec<u8>> {
    Interface::new(interface)?.link_settings(words)
}

/// Whether an interface of the calling thread's network namespace has that number.
#[must_use]
pub fn has_interface(index: u32) -> bool {
    let Ok(index) = i32::try_from(index) else { return false };
    Interface::new("lo").is_ok_and(|any| any.name_of(index).is_some())
}

/// Tells whether the host has the device that a link is on. A UDP socket has none that it could lose.
pub fn has_device(config: &Config) -> bool {
    let name = match &config.kind {
        ConfigKind::Tun { .. } | ConfigKind::Tap { .. } => &config.name,
        ConfigKind::Packet { interface, .. } | ConfigKind::Xdp { interface, .. } => interface,
        ConfigKind::Udp { .. } | ConfigKind::VhostUser { .. } | ConfigKind::VirtioUser { .. } => return true,
    };
    Interface::new(name).and_then(|interface| interface.index()).is_ok()
}

/// The MTU of a link that has none of its own.
pub(crate) const DEFAULT_MTU: usize = 1500;

/// Opens a link in the calling thread's network namespace. TUN and TAP devices are made, and brought up.
///
/// # Errors
/// What is missing or refused, by device and call, and what to do about it where that is known.
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

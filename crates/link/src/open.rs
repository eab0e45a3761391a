//! Opening of the host's links from their configuration.

use std::io;

use crate::af_packet::PacketLink;
use crate::af_xdp::XdpLink;
use crate::config::{Config, ConfigKind};
use crate::sys::ifreq::Interface;
use crate::tun::TunLink;
use crate::udp::UdpLink;
use crate::vhost::{self, FrontConfig, VhostConfig};
use crate::{Layer, Link, OpenError};

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

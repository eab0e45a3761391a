//! Opening of the host's links from their configuration.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;

use driver::{DriverKind, Resource};

use crate::af_packet::PacketLink;
use crate::af_xdp::XdpLink;
use crate::config::Config;
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

/// Tells whether the host has the device of a link of that name. A UDP socket has no device.
pub fn has_device(name: &str, kind: &DriverKind) -> bool {
    let device = match kind.resource() {
        Resource::Device => name,
        Resource::Interface(interface) => interface,
        Resource::UdpSocket(_) | Resource::VhostSocket(_) => return true,
    };
    Interface::new(device).and_then(|interface| interface.index()).is_ok()
}

/// Opens a link in the calling thread's network namespace. TUN and TAP devices are made, and brought up.
///
/// # Errors
/// The device and the call that failed, with a remedy where one is known.
pub fn open(config: &Config) -> Result<Box<dyn Link>, OpenError> {
    let own_address = || {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "a link of vhost-user needs one");
        config.mac.ok_or_else(|| OpenError::new(&config.name, "address", none()))
    };
    Ok(match &config.kind {
        DriverKind::Tun { queues } => Box::new(TunLink::open(config, Layer::Ip, *queues)?),
        DriverKind::Tap { queues } => Box::new(TunLink::open(config, TunLink::TAP, *queues)?),
        DriverKind::Udp { bind } => Box::new(UdpLink::open(config, *bind)?),
        DriverKind::Packet { interface, exclusive } => Box::new(PacketLink::open(config, interface, *exclusive)?),
        DriverKind::VhostUser { socket, queues, memory } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let back = VhostConfig::new(&config.name, Path::new(socket), own_address()?);
            Box::new(vhost::open(&VhostConfig { pairs: *queues, memory: *memory, mtu, offloads, ..back })?)
        }
        DriverKind::VirtioUser { socket, queues, ring } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let front = FrontConfig::new(&config.name, Path::new(socket), own_address()?);
            Box::new(vhost::open_front(&FrontConfig { pairs: *queues, ring_size: *ring, mtu, offloads, ..front })?)
        }
        DriverKind::Xdp { interface, ring, mode } => {
            let ring = NonZeroU32::new(u32::from(*ring)).ok_or_else(|| {
                let none = io::Error::new(io::ErrorKind::InvalidInput, "no frames to receive into");
                OpenError::new(interface, "ring", none)
            })?;
            Box::new(XdpLink::open(config, interface, ring, *mode)?)
        }
    })
}

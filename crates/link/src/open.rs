//! Opening of the host's links from their configuration.

use std::io;
use std::num::NonZeroU32;
use std::path::Path;

use base::ShardCount;
use driver::{DriverKind, Resource};

use crate::acquired::Acquired;
use crate::af_packet::PacketLink;
use crate::af_xdp::XdpLink;
use crate::config::Config;
use crate::sys::ifreq::Interface;
use crate::tun::{self, TunLink};
use crate::udp::UdpLink;
use crate::vhost::{self, FrontConfig, VhostConfig};
use crate::{InternalLink, Layer, Link, OpenError};

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

/// Index of the interface of that name, in the calling thread's network namespace.
///
/// # Errors
/// There is no such interface.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let index = Interface::new(name)?.index()?;
    u32::try_from(index).map_err(|_| io::ErrorKind::InvalidData.into())
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
    let mut links = open_queues(config, ShardCount::ONE)?;
    Ok(links.pop().expect("a link has a queue for the first shard"))
}

/// Opens a link with a queue for each shard, or fewer if its kind or device has fewer, but at least one: element `i` is shard `i`'s. Each
/// is a whole link over queues of its own, and stays open when another is closed.
///
/// - TUN and TAP: a device of several queues, at least one for each shard. The kernel returns a flow to the shard that has sent it.
/// - UDP: a socket for each shard at one address and port. The kernel chooses the owner of the SPI, and the first shard for IKE.
/// - Packet sockets: a socket for each shard. The kernel chooses the owner of the SPI, and another shard for each other flow.
/// - AF_XDP: the interface's receive queues, dealt to the shards in turn. The interface chooses the queue of a frame.
/// - Guests (vhost-user): the pairs of queues, dealt to the shards in turn. The guest chooses the pair of a frame.
/// - Front ends (virtio-user): all pairs are the first shard's.
///
/// [`own`](Link::own), [`keep`](Link::keep) and [`set_ike_port`](Link::set_ike_port) are about what exists once: they do nothing on
/// elements other than the first. The other setters apply to the element, or to the device, and are called on each.
///
/// # Errors
/// As [`open`]. No queue is left open.
pub fn open_queues(config: &Config, shards: ShardCount) -> Result<Vec<Box<dyn Link>>, OpenError> {
    from_descriptors(config, acquire(config, shards)?, shards)
}

/// Link in place of one whose device another process has, with the state of the device as far as it can be read.
pub fn held(config: &Config) -> InternalLink {
    let device = match config.kind.resource() {
        Resource::Device => Some(config.name.as_str()),
        Resource::Interface(interface) => Some(interface),
        Resource::UdpSocket(_) | Resource::VhostSocket(_) => None,
    };
    let device = device.and_then(|device| Interface::new(device).ok());
    let mac = device.as_ref().and_then(|device| device.mac().ok().flatten()).or(config.mac).unwrap_or_default();
    let layer = match &config.kind {
        DriverKind::Tun { .. } | DriverKind::Udp { .. } => Layer::Ip,
        DriverKind::Tap { .. } => Layer::Ethernet(tun::other_station(mac)),
        _ => Layer::Ethernet(mac),
    };
    let mtu = device.as_ref().and_then(|device| u16::try_from(device.mtu().ok()?).ok());
    let index = device.and_then(|device| u32::try_from(device.index().ok()?).ok());
    InternalLink::held(&config.name, layer, config.mtu.or(mtu), index)
}

/// Makes the descriptors of a link, the half of [`open_queues`] that takes capabilities. TUN and TAP devices are made, and brought up;
/// interfaces of packet sockets and AF_XDP have their programs from then on.
///
/// # Errors
/// The device and the call that failed, with a remedy where one is known.
pub fn acquire(config: &Config, shards: ShardCount) -> Result<Acquired, OpenError> {
    let descriptors = match &config.kind {
        DriverKind::Tun { queues } => TunLink::acquire(config, Layer::Ip, *queues, shards)?,
        DriverKind::Tap { queues } => TunLink::acquire(config, TunLink::TAP, *queues, shards)?,
        DriverKind::Udp { bind } => UdpLink::acquire(&config.name, *bind, shards)?,
        DriverKind::Packet { interface, exclusive } => PacketLink::acquire(interface, *exclusive, shards)?,
        DriverKind::Xdp { interface, ring, mode } => return XdpLink::acquire(interface, *ring, *mode, shards),
        DriverKind::VhostUser { .. } | DriverKind::VirtioUser { .. } => Vec::new(),
    };
    Ok(descriptors.into())
}

/// Makes the links of all shards from the descriptors of their device, the half of [`open_queues`] that takes no capability: rings, probed
/// offloads, and the state of the interface. The descriptors may be those of another process, and of an earlier link, but for AF_XDP, whose
/// rings are in the memory of that link. Front ends and new ports of guests have none, and are opened here.
///
/// # Errors
/// The device and the call that failed; the descriptors are not those of such a link. They are closed then.
pub fn from_descriptors(
    config: &Config,
    acquired: Acquired,
    shards: ShardCount,
) -> Result<Vec<Box<dyn Link>>, OpenError> {
    let own_address = || {
        let none = || io::Error::new(io::ErrorKind::InvalidInput, "a link of vhost-user needs one");
        config.mac.ok_or_else(|| OpenError::new(&config.name, "address", none()))
    };
    let links = match &config.kind {
        DriverKind::Tun { .. } => boxed(TunLink::from_queues(config, Layer::Ip, acquired.descriptors, shards)?),
        DriverKind::Tap { .. } => boxed(TunLink::from_queues(config, TunLink::TAP, acquired.descriptors, shards)?),
        DriverKind::Udp { .. } => boxed(UdpLink::from_sockets(config, acquired.descriptors, shards)?),
        DriverKind::Packet { interface, exclusive } => {
            boxed(PacketLink::from_sockets(config, interface, *exclusive, acquired.descriptors, shards)?)
        }
        DriverKind::VhostUser { socket, queues, memory } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let back = VhostConfig::new(&config.name, Path::new(socket), own_address()?);
            let back = VhostConfig { pairs: *queues, memory: *memory, mtu, offloads, ..back };
            vhost::open_queues(&back, shards, acquired.descriptors)?
        }
        DriverKind::VirtioUser { socket, queues, ring } => {
            let (mtu, offloads) = (config.mtu, config.offloads);
            let front = FrontConfig::new(&config.name, Path::new(socket), own_address()?);
            boxed(vec![vhost::open_front(&FrontConfig { pairs: *queues, ring_size: *ring, mtu, offloads, ..front })?])
        }
        DriverKind::Xdp { interface, ring, mode } => {
            let ring = NonZeroU32::new(u32::from(*ring)).ok_or_else(|| {
                let none = io::Error::new(io::ErrorKind::InvalidInput, "no frames to receive into");
                OpenError::new(interface, "ring", none)
            })?;
            boxed(XdpLink::from_program(config, interface, ring, *mode, acquired, shards)?)
        }
    };
    Ok(links)
}

fn boxed<L: Link + 'static>(links: Vec<L>) -> Vec<Box<dyn Link>> {
    links.into_iter().map(|link| Box::new(link) as Box<dyn Link>).collect()
}

//! Devices of a node's host side: persistent TUN and TAP devices in a network namespace, each with one queue.

use std::os::fd::{AsFd, OwnedFd};

use driver::DriverKind;
use wire::MacAddr;

use super::TunLink;
use super::open::{attach, probe, set_framing};
use crate::af_packet::{PacketLink, Station};
use crate::config::Config;
use crate::flow_hash::FlowHash;
use crate::posted::Posted;
use crate::sys::ifreq::{Interface, tun_set_persistent};
use crate::{Common, Layer, OpenError};

/// Configuration of a device of a node's host side.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostDevice {
    /// Name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// The link-layer address of a TAP device; `None` makes a TUN device.
    pub mac: Option<MacAddr>,
    /// MTU; the largest for `None`.
    pub mtu: Option<u16>,
}

impl HostDevice {
    /// The largest MTU of a TAP device: `IP_MAX_MTU` less the Ethernet header.
    const LARGEST_TAP: usize = 65_521;
    /// The largest MTU of a TUN device.
    const LARGEST_TUN: usize = 65_535;

    /// MTU in bytes.
    #[must_use]
    pub fn mtu(&self) -> usize {
        let largest = if self.mac.is_some() { Self::LARGEST_TAP } else { Self::LARGEST_TUN };
        self.mtu.map_or(largest, |mtu| usize::from(mtu).min(largest))
    }

    const fn layer(&self) -> Layer {
        match self.mac {
            Some(mac) => Layer::Ethernet(mac),
            None => Layer::Ip,
        }
    }

    /// Creates the device in the calling thread's network namespace, or attaches to it if it exists, and returns its
    /// queue. The device has no ARP, is down if it is new, and outlives its queue.
    ///
    /// # Errors
    /// Error of the call that failed; the device of that name has another index.
    pub fn make(&self) -> Result<OwnedFd, OpenError> {
        let failed = |call| move |err| OpenError::new(&self.name, call, err);
        let kind = if self.mac.is_some() { libc::IFF_TAP } else { libc::IFF_TUN };
        let queue = attach(&self.name, libc::IFF_NO_PI | libc::IFF_VNET_HDR | kind, Some(self.index))?;
        let interface = Interface::new(&self.name).map_err(failed("socket"))?;
        let index = interface.index().map_err(failed("SIOCGIFINDEX"))?;
        if u32::try_from(index).ok() != Some(self.index) {
            let why = format!("the device exists with index {index} instead of {}", self.index);
            return Err(OpenError::new(&self.name, "TUNSETIFF", std::io::Error::other(why)));
        }
        if let Some(mac) = self.mac {
            if interface.mac().map_err(failed("SIOCGIFHWADDR"))? != Some(mac) {
                interface.set_mac(mac).map_err(failed("SIOCSIFHWADDR"))?;
            }
            interface.set_no_arp().map_err(failed("SIOCSIFFLAGS"))?;
        }
        interface.set_mtu(self.mtu()).map_err(failed("SIOCSIFMTU"))?;
        tun_set_persistent(queue.as_fd(), true).map_err(failed("TUNSETPERSIST"))?;
        Ok(queue)
    }

    /// Packet socket that is bound to `peer`, the other end of a veth pair in the calling thread's network namespace, for hosts where
    /// `/dev/net/tun` cannot be opened.
    ///
    /// # Errors
    /// Error of the call that failed.
    pub fn make_pair_socket(peer: &str) -> Result<OwnedFd, OpenError> {
        PacketLink::acquire_one(peer)
    }

    /// Link over a packet socket that [`make_pair_socket`](Self::make_pair_socket) returned, possibly in another process.
    /// `control` is a socket of the peer's network namespace. With `ip_only`, frames that carry no IP are dropped.
    ///
    /// # Errors
    /// Error of the call that failed; the device has no link-layer address.
    pub fn open_pair(
        &self,
        socket: OwnedFd,
        control: OwnedFd,
        peer: &str,
        ip_only: bool,
    ) -> Result<Box<dyn crate::Link>, OpenError> {
        let mac = self.mac.ok_or_else(|| OpenError::no_address(&self.name))?;
        let config = Config {
            name: self.name.clone(),
            kind: DriverKind::Packet { interface: peer.to_owned(), exclusive: false },
            mac: None,
            mtu: None,
            offloads: true,
            index: None,
        };
        let interface = Interface::with_control(peer, control);
        Ok(Box::new(PacketLink::over(&config, interface, socket, Some(Station { mac, ip_only }))?))
    }

    /// Link over a queue that [`make`](Self::make) returned, possibly in another process. `control` is a socket of the
    /// device's network namespace.
    ///
    /// # Errors
    /// Error of the call that failed.
    pub fn open(&self, queue: OwnedFd, control: OwnedFd) -> Result<Box<dyn crate::Link>, OpenError> {
        Ok(Box::new(TunLink::over(self, queue, control)?))
    }
}

impl TunLink {
    fn over(device: &HostDevice, queue: OwnedFd, control: OwnedFd) -> Result<Self, OpenError> {
        let name = device.name.clone();
        let interface = Interface::with_control(&name, control);
        let index = interface.index().map_err(|err| OpenError::new(&name, "SIOCGIFINDEX", err))?;
        set_framing(queue.as_fd(), &name, true)?;
        let offloads = probe(queue.as_fd(), true);
        let (layer, mtu, features) = (device.layer(), device.mtu(), offloads.features());
        Ok(Self {
            common: Common { mtu, ..Common::new(&name, u16::try_from(mtu).ok(), offloads, features) },
            layer,
            queues: vec![queue],
            next: 0,
            virtio: true,
            longest: super::longest(true, mtu, layer),
            posted: Posted::new(),
            flow_hash: FlowHash::default(),
            interface,
            index,
            down: false,
            gone: false,
            is_first: true,
            owned: false,
        })
    }
}

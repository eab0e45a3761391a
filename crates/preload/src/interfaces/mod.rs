//! Network interfaces: the gateway executes requests of `ioctl` for them (netdevice(7), arp(7)), and look-ups by name or
//! number.

mod bridges;
mod ethtool;
mod exchange;
mod files;
mod ifreq;
mod ipv4;
mod ipv4_settings;
mod ipv6;
mod link_settings;
mod lists;
mod neighbours;
mod routes;

use libc::{arpreq, c_char, c_int, c_uint, c_void, sockaddr};

use crate::errno::{Errno, returned};
use crate::program_memory::{InOut, Text};
use crate::replaced::replaced;
use crate::{gateway, libc_next, session};
use bridges::{BridgeRequest, CommandArguments};
use exchange::{Link, LinkKey, link};
pub(crate) use files::LinkFile;
use ifreq::{InterfaceRequest, padded};
use ipv4::Part;
use neighbours::NeighbourRequest;

/// Interface request of an `ioctl`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Request {
    /// `SIOCGIFCONF`.
    List,
    /// Request with a `struct ifreq` that reads.
    Get(Property),
    /// Request with a `struct ifreq` that changes an interface.
    Set(Setting),
    /// `SIOCETHTOOL`.
    Ethtool,
    /// `SIOCADDRT` (true) and `SIOCDELRT`.
    Route(bool),
    /// Request with a `struct arpreq`.
    Neighbour(NeighbourRequest),
    /// Request for bridges.
    Bridge(BridgeRequest),
    /// Other requests for interfaces, which the kernel would execute for its own interfaces: `EOPNOTSUPP`.
    Other,
}

/// Property of an interface, or of its address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Property {
    /// Part of an IPv4 address.
    Ipv4(Part),
    /// `SIOCGIFNAME`.
    Name,
    /// `SIOCGIFINDEX`.
    Index,
    /// `SIOCGIFFLAGS`.
    Flags,
    /// `SIOCGIFMETRIC`.
    Metric,
    /// `SIOCGIFMTU`.
    Mtu,
    /// `SIOCGIFHWADDR`.
    Address,
    /// `SIOCGIFTXQLEN`.
    QueueLen,
}

/// Property of an interface, or of its address, that a request changes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Setting {
    /// Part of an IPv4 address; `Part::Own` of a socket of IPv6 adds an address.
    Address(Part),
    /// `SIOCDIFADDR`.
    NoAddress,
    /// `SIOCSIFFLAGS`.
    Flags,
    /// `SIOCSIFMTU`.
    Mtu,
    /// `SIOCSIFHWADDR`.
    LinkAddress,
    /// `SIOCSIFTXQLEN`.
    QueueLen,
}

impl Request {
    /// Request of an `ioctl` number; `None` if the number is no interface request.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0x890b => Self::Route(true),
            0x890c => Self::Route(false),
            0x8910 => Self::Get(Property::Name),
            0x8912 => Self::List,
            0x8913 => Self::Get(Property::Flags),
            0x8914 => Self::Set(Setting::Flags),
            0x8915 => Self::Get(Property::Ipv4(Part::Own)),
            0x8916 => Self::Set(Setting::Address(Part::Own)),
            0x8917 => Self::Get(Property::Ipv4(Part::Peer)),
            0x8918 => Self::Set(Setting::Address(Part::Peer)),
            0x8919 => Self::Get(Property::Ipv4(Part::Broadcast)),
            0x891a => Self::Set(Setting::Address(Part::Broadcast)),
            0x891b => Self::Get(Property::Ipv4(Part::Netmask)),
            0x891c => Self::Set(Setting::Address(Part::Netmask)),
            0x891d => Self::Get(Property::Metric),
            0x8921 => Self::Get(Property::Mtu),
            0x8922 => Self::Set(Setting::Mtu),
            0x8924 => Self::Set(Setting::LinkAddress),
            0x8927 => Self::Get(Property::Address),
            0x8933 => Self::Get(Property::Index),
            0x8936 => Self::Set(Setting::NoAddress),
            0x8940 | 0x8941 => Self::Bridge(BridgeRequest::Command),
            0x8942 => Self::Get(Property::QueueLen),
            0x8943 => Self::Set(Setting::QueueLen),
            0x8946 => Self::Ethtool,
            0x8953 => Self::Neighbour(NeighbourRequest::Delete),
            0x8954 => Self::Neighbour(NeighbourRequest::Get),
            0x8955 => Self::Neighbour(NeighbourRequest::Set),
            0x89a0 => Self::Bridge(BridgeRequest::Add),
            0x89a1 => Self::Bridge(BridgeRequest::Delete),
            0x89a2 => Self::Bridge(BridgeRequest::AddPort),
            0x89a3 => Self::Bridge(BridgeRequest::DeletePort),
            0x89f0 => Self::Bridge(BridgeRequest::OfBridge),
            // The other SIOCGIF* and SIOCSIF*.
            0x8911..=0x893f | 0x8970 | 0x8971 => Self::Other,
            _ => return None,
        })
    }

    /// Tells whether the request reads properties of interfaces, and its structure has no pointers.
    pub(crate) fn only_reads(self) -> bool {
        matches!(self, Self::List | Self::Get(_) | Self::Neighbour(NeighbourRequest::Get))
    }
}

/// Executes an `ioctl` on the socket `fd`, and returns its value.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EADDRNOTAVAIL`: the interface has no such address; `EOPNOTSUPP`; the
/// gateway's error.
///
/// # Safety
/// `to`, if not null, is the structure of the request, with the blocks that it points to: for most requests a `struct
/// ifreq`; for [`Request::List`] a `struct ifconf`; for [`Request::Ethtool`] it points to a block as long as its
/// command requires; for [`Request::Bridge`] to the command's arguments.
pub(crate) unsafe fn serve(what: Request, fd: c_int, to: *mut c_void) -> Result<c_int, Errno> {
    if what == Request::Other {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if to.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    let done = match what {
        Request::Other => Err(Errno(libc::EOPNOTSUPP)),
        // SAFETY: as the caller promises.
        Request::List => ipv4::list(unsafe { InOut::new(to) }),
        Request::Route(adds) if family(fd) == libc::AF_INET6 => {
            // SAFETY: as the caller promises.
            routes::set_v6(&unsafe { InOut::new(to) }.read()?, adds)
        }
        // SAFETY: as the caller promises.
        Request::Route(adds) => routes::set_v4(&unsafe { InOut::new(to) }.read()?, adds),
        Request::Neighbour(what) => {
            // SAFETY: as the caller promises.
            let place: InOut<'_, arpreq> = unsafe { InOut::new(to) };
            let mut request = place.read()?;
            neighbours::serve(what, &mut request)?;
            if what == NeighbourRequest::Get { place.write(request) } else { Ok(()) }
        }
        // SAFETY: as the caller promises.
        Request::Bridge(what) => return unsafe { serve_bridges(what, to) },
        Request::Set(setting @ (Setting::Address(Part::Own) | Setting::NoAddress)) if family(fd) == libc::AF_INET6 => {
            // SAFETY: as the caller promises.
            ipv6::set(&unsafe { InOut::new(to) }.read()?, setting != Setting::NoAddress)
        }
        // SAFETY: as the caller promises.
        Request::Set(setting) => set(setting, &unsafe { InOut::new(to) }.read()?),
        Request::Get(property) => {
            // SAFETY: as the caller promises.
            let place: InOut<'_, InterfaceRequest> = unsafe { InOut::new(to) };
            let mut request = place.read()?;
            get(property, &mut request)?;
            place.write(request)
        }
        Request::Ethtool => {
            // SAFETY: as the caller promises.
            let request: InterfaceRequest = unsafe { InOut::new(to) }.read()?;
            // SAFETY: as the caller promises.
            return unsafe { ethtool::serve(Name::of(&request).device(), request.pointer()) };
        }
    };
    done.map(|()| 0)
}

/// Family of a socket.
fn family(fd: c_int) -> c_int {
    session::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).unwrap_or(libc::AF_INET)
}

/// Executes a request for bridges.
///
/// # Safety
/// As for [`serve`].
unsafe fn serve_bridges(what: BridgeRequest, to: *mut c_void) -> Result<c_int, Errno> {
    if what == BridgeRequest::Command {
        // SAFETY: as the caller promises.
        return bridges::command(&unsafe { CommandArguments::new(to) });
    }
    // SAFETY: as the caller promises. A name is at the front of a `struct ifreq`, too.
    let name = unsafe { bridges::name_at(to.cast()) }?;
    // SAFETY: as the caller promises.
    let request = || unsafe { InOut::<InterfaceRequest>::new(to) }.read();
    let done = match what {
        BridgeRequest::Command => return Ok(0),
        BridgeRequest::Add => bridges::add(&name),
        BridgeRequest::Delete => bridges::delete(&name),
        BridgeRequest::AddPort => bridges::add_port(&name, request()?.number()),
        BridgeRequest::DeletePort => bridges::delete_port(&name, request()?.number()),
        BridgeRequest::OfBridge => {
            // SAFETY: as the caller promises.
            let arguments = unsafe { CommandArguments::new(request()?.pointer()) };
            return bridges::of_bridge(&name, &arguments);
        }
    };
    done.map(|()| 0)
}

/// Name in a request. A label may extend its interface's name: `eth0:1`.
struct Name([u8; libc::IFNAMSIZ]);

impl Name {
    fn of(request: &InterfaceRequest) -> Self {
        Self(request.name)
    }

    fn label(&self) -> &[u8] {
        let Self(bytes) = self;
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len() - 1);
        bytes.get(..len).unwrap_or_default()
    }

    fn device(&self) -> &[u8] {
        self.label().split(|&byte| byte == b':').next().unwrap_or_default()
    }
}

fn get(property: Property, to: &mut InterfaceRequest) -> Result<(), Errno> {
    if property == Property::Name {
        to.name = padded(&link(LinkKey::Index(to.number()))?.name);
        return Ok(());
    }
    let name = Name::of(to);
    if let Property::Ipv4(part) = property {
        to.set_address(&ipv4::part(part, name.device(), name.label(), &to.address())?);
        return Ok(());
    }
    let found = link(LinkKey::Name(name.device()))?;
    match property {
        Property::Name | Property::Ipv4(_) => {}
        Property::Index => to.set_number(found.index),
        Property::Flags => to.set_flags(found.flags as i16),
        Property::Metric => to.set_number(0),
        Property::Mtu => to.set_number(found.mtu as c_int),
        Property::QueueLen => to.set_number(found.queue_len as c_int),
        Property::Address => {
            let mut data = [0 as c_char; 14];
            data.iter_mut().zip(&found.address).for_each(|(to, &byte)| *to = byte as c_char);
            to.set_address(&sockaddr { sa_family: found.kind, sa_data: data });
        }
    }
    Ok(())
}

fn set(setting: Setting, request: &InterfaceRequest) -> Result<(), Errno> {
    let name = Name::of(request);
    let (address, flags, number) = (request.address(), request.flags(), request.number());
    if let Setting::Address(part) = setting {
        return ipv4_settings::set(part, name.device(), name.label(), &address);
    }
    let found: Link = link(LinkKey::Name(name.device()))?;
    match setting {
        // IPv4 has no such request.
        Setting::Address(_) | Setting::NoAddress => Err(Errno(libc::EOPNOTSUPP)),
        Setting::Flags if name.device().len() < name.label().len() => {
            ipv4_settings::set_label_flags(&found, name.label(), flags)
        }
        Setting::Flags => link_settings::set_flags(&found, flags),
        Setting::Mtu => link_settings::set_mtu(&found, number),
        Setting::LinkAddress => link_settings::set_address(&found, &address),
        Setting::QueueLen => link_settings::set_queue_len(&found, number),
    }
}

/// Tells whether a socket that is bound to an interface may have a local address: one of the VRF that the interface is in, or is.
///
/// # Errors
/// The gateway's error.
pub(crate) fn may_bind(index: c_int, addr: &[u8]) -> Result<bool, Errno> {
    match exchange::vrf_of(index) {
        // The kernel decides about devices that are in no VRF, or no links of the gateway's.
        Ok(None) | Err(Errno(libc::ENODEV)) => Ok(true),
        Ok(vrf) => Ok(exchange::local_device(index, addr)? == vrf),
        Err(errno) => Err(errno),
    }
}

/// Name on the host of the gateway's interface `name`, for the kernel's own sockets; `None` if the gateway has no such
/// interface, so that `name` is already the host's.
///
/// # Errors
/// `ENODEV`: the gateway's interface has no counterpart on the host; the gateway's error.
pub(crate) fn name_on_host(name: &[u8]) -> Result<Option<[u8; libc::IFNAMSIZ]>, Errno> {
    let found = match link(LinkKey::Name(name)) {
        Err(Errno(libc::ENODEV)) => return Ok(None),
        found => found?,
    };
    let mut on_host = [0; libc::IFNAMSIZ];
    // SAFETY: the buffer has space for a name.
    let found = unsafe { libc_next::if_indextoname(found.index as c_uint, (&mut on_host).into()) };
    if found.is_null() { Err(Errno(libc::ENODEV)) } else { Ok(Some(on_host)) }
}

replaced! {
    /// `if_nametoindex(3)`.
    fn if_nametoindex(name: Text<'_>) -> c_uint, next {
        let Some(name) = name.get().filter(|_| gateway::address().is_some()) else { return next() };
        returned(link(LinkKey::Name(name.to_bytes())).map(|link| link.index as c_uint))
    }

    /// `if_indextoname(3)`.
    fn if_indextoname(index: c_uint, name: InOut<'_, [u8; libc::IFNAMSIZ]>) -> InOut<'_, [u8; libc::IFNAMSIZ]>, next {
        if gateway::address().is_none() {
            return next();
        }
        // The documented error for a missing interface.
        let found = link(LinkKey::Index(index as c_int)).map_err(|errno| match errno.0 {
            libc::ENODEV => Errno(libc::ENXIO),
            _ => errno,
        });
        returned(found.and_then(|link| name.write(padded(&link.name)).map(|()| name)))
    }
}

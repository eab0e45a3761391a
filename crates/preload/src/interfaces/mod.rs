//! Network interfaces: the gateway executes look-ups by name or number.

mod ethtool;
mod exchange;
mod ipv4;
mod lists;
mod name;

use std::ffi::CStr;
use std::ptr;

use libc::{c_char, c_int, c_short, c_uint, ifreq, sockaddr};

use crate::errno::{Errno, returned};
use crate::{gateway, libc_next};
use exchange::{LinkKey, link};
use ipv4::Part;
use name::put_name;

/// Interface request of an `ioctl`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Request {
    /// `SIOCGIFCONF`.
    List,
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
    /// `SIOCETHTOOL`.
    Ethtool,
    /// Other requests for interfaces, which the kernel would execute for its own interfaces: `EOPNOTSUPP`.
    Other,
}

impl Request {
    /// Request of an `ioctl` number; `None` if the number is no interface request.
    pub(crate) fn of(number: u32) -> Option<Self> {
        Some(match number {
            0x8912 => Self::List,
            0x8915 => Self::Ipv4(Part::Own),
            0x8917 => Self::Ipv4(Part::Peer),
            0x8919 => Self::Ipv4(Part::Broadcast),
            0x891b => Self::Ipv4(Part::Netmask),
            0x8910 => Self::Name,
            0x8933 => Self::Index,
            0x8913 => Self::Flags,
            0x891d => Self::Metric,
            0x8921 => Self::Mtu,
            0x8927 => Self::Address,
            0x8942 => Self::QueueLen,
            0x8946 => Self::Ethtool,
            // SIOCADDRT and SIOCDELRT, and the other SIOCGIF* and SIOCSIF*.
            0x890b | 0x890c | 0x8911..=0x8943 | 0x8970 | 0x8971 => Self::Other,
            _ => return None,
        })
    }
}

/// Executes an `ioctl`, and returns its value.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EADDRNOTAVAIL`: the interface has no such address; `EOPNOTSUPP`; the
/// gateway's error.
///
/// # Safety
/// `to`, if not null, is a `struct ifreq`; for [`Request::List`] a `struct ifconf` with a valid buffer; for
/// [`Request::Ethtool`] it points to a block as long as its command requires.
pub(crate) unsafe fn serve(what: Request, to: *mut ifreq) -> Result<c_int, Errno> {
    match what {
        Request::Other => return Err(Errno(libc::EOPNOTSUPP)),
        // SAFETY: as the caller promises.
        Request::List => return unsafe { ipv4::list(to.cast()) }.map(|()| 0),
        _ => {}
    }
    // SAFETY: as the caller promises.
    let to = unsafe { to.as_mut() }.ok_or(Errno(libc::EFAULT))?;
    if what == Request::Name {
        // SAFETY: any bytes are a number.
        let found = link(LinkKey::Index(unsafe { to.ifr_ifru.ifru_ifindex }))?;
        put_name(&found.name, &mut to.ifr_name);
        return Ok(0);
    }
    let name = to.ifr_name.map(|byte| byte as u8);
    let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len() - 1);
    let name = &name[..len];
    // A label may extend its interface's name: `eth0:1`.
    let device = name.split(|&byte| byte == b':').next().unwrap_or(name);
    if what == Request::Ethtool {
        // SAFETY: any bytes are a pointer.
        let block = unsafe { to.ifr_ifru.ifru_data };
        // SAFETY: as the caller promises.
        return unsafe { ethtool::serve(device, block.cast()) };
    }
    if let Request::Ipv4(part) = what {
        // SAFETY: any bytes are an address of some family.
        to.ifr_ifru.ifru_addr = ipv4::part(part, device, name, &unsafe { to.ifr_ifru.ifru_addr })?;
        return Ok(0);
    }
    let found = link(LinkKey::Name(device))?;
    match what {
        Request::Name | Request::Other | Request::List | Request::Ipv4(_) | Request::Ethtool => {}
        Request::Index => to.ifr_ifru.ifru_ifindex = found.index,
        Request::Flags => to.ifr_ifru.ifru_flags = found.flags as c_short,
        Request::Metric => to.ifr_ifru.ifru_metric = 0,
        Request::Mtu => to.ifr_ifru.ifru_mtu = found.mtu as c_int,
        Request::QueueLen => to.ifr_ifru.ifru_metric = found.queue_len as c_int,
        Request::Address => {
            let mut data = [0 as c_char; 14];
            data.iter_mut().zip(&found.address).for_each(|(to, &byte)| *to = byte as c_char);
            to.ifr_ifru.ifru_hwaddr = sockaddr { sa_family: found.kind, sa_data: data };
        }
    }
    Ok(0)
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
pub(crate) fn name_on_host(name: &[u8]) -> Result<Option<[c_char; libc::IFNAMSIZ]>, Errno> {
    let found = match link(LinkKey::Name(name)) {
        Err(Errno(libc::ENODEV)) => return Ok(None),
        found => found?,
    };
    let mut on_host = [0; libc::IFNAMSIZ];
    // SAFETY: the buffer has space for a name.
    let is_there = unsafe { !libc_next::if_indextoname(found.index as c_uint, on_host.as_mut_ptr()).is_null() };
    if is_there { Ok(Some(on_host)) } else { Err(Errno(libc::ENODEV)) }
}

/// `if_nametoindex(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn if_nametoindex(name: *const c_char) -> c_uint {
    if gateway::address().is_none() {
        // SAFETY: passed on.
        return unsafe { libc_next::if_nametoindex(name) };
    }
    // SAFETY: as the caller promises.
    let name = unsafe { CStr::from_ptr(name) };
    returned(link(LinkKey::Name(name.to_bytes())).map(|link| link.index as c_uint))
}

/// `if_indextoname(3)`.
///
/// # Safety
/// As the manual page requires.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn if_indextoname(index: c_uint, name: *mut c_char) -> *mut c_char {
    if gateway::address().is_none() {
        // SAFETY: passed on.
        return unsafe { libc_next::if_indextoname(index, name) };
    }
    // The documented error for a missing interface.
    let found = link(LinkKey::Index(index as c_int)).map_err(|errno| match errno.0 {
        libc::ENODEV => Errno(libc::ENXIO),
        _ => errno,
    });
    returned(found.map(|link| {
        let mut bytes = [0; libc::IFNAMSIZ];
        put_name(&link.name, &mut bytes);
        // SAFETY: the caller's buffer has `IFNAMSIZ` bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), name, bytes.len()) };
        name
    }))
}

//! Requests of `ioctl` that change an interface (netdevice(7); Linux `dev_ifsioc`), as requests of rtnetlink.

use libc::c_int;

use super::exchange::{Link, change, put_attribute};
use crate::errno::Errno;

/// Flags that a request can change (Linux `__dev_change_flags`).
const CHANGEABLE: c_int = libc::IFF_UP
    | libc::IFF_DEBUG
    | libc::IFF_NOTRAILERS
    | libc::IFF_NOARP
    | libc::IFF_DYNAMIC
    | libc::IFF_MULTICAST
    | libc::IFF_PORTSEL
    | libc::IFF_AUTOMEDIA
    | libc::IFF_PROMISC
    | libc::IFF_ALLMULTI;

/// `SIOCSIFFLAGS`. The request has all flags; those that differ are requested of the gateway.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn set_flags(link: &Link, flags: i16) -> Result<(), Errno> {
    let flags = u32::from(flags as u16) & CHANGEABLE as u32;
    let differ = (link.flags & CHANGEABLE as u32) ^ flags;
    if differ == 0 { Ok(()) } else { set(link.index, flags, differ, &[]) }
}

/// `SIOCSIFMTU`.
///
/// # Errors
/// `EINVAL`: the MTU is negative; error in the gateway's answer.
pub(super) fn set_mtu(link: &Link, mtu: c_int) -> Result<(), Errno> {
    let mtu = u32::try_from(mtu).map_err(|_| Errno(libc::EINVAL))?;
    set(link.index, 0, 0, &[(libc::IFLA_MTU, &mtu.to_ne_bytes())])
}

/// `SIOCSIFTXQLEN`.
///
/// # Errors
/// `EINVAL`: the length is negative; error in the gateway's answer.
pub(super) fn set_queue_len(link: &Link, len: c_int) -> Result<(), Errno> {
    let len = u32::try_from(len).map_err(|_| Errno(libc::EINVAL))?;
    set(link.index, 0, 0, &[(libc::IFLA_TXQLEN, &len.to_ne_bytes())])
}

/// `SIOCSIFHWADDR`.
///
/// # Errors
/// `EINVAL`: the address is of another kind of interface; error in the gateway's answer.
pub(super) fn set_address(link: &Link, address: &libc::sockaddr) -> Result<(), Errno> {
    if address.sa_family != link.kind {
        return Err(Errno(libc::EINVAL));
    }
    let bytes = address.sa_data.map(|byte| byte as u8);
    let address = bytes.get(..link.address.len()).ok_or(Errno(libc::EINVAL))?;
    set(link.index, 0, 0, &[(libc::IFLA_ADDRESS, address)])
}

/// Changes an interface: the flags in `changed` to those in `flags`, and attributes.
///
/// # Errors
/// Error in the gateway's answer.
pub(super) fn set(index: c_int, flags: u32, changed: u32, attributes: &[(u16, &[u8])]) -> Result<(), Errno> {
    change(libc::RTM_SETLINK, 0, &message(index, flags, changed, attributes))
}

/// `struct ifinfomsg` with attributes.
pub(super) fn message(index: c_int, flags: u32, changed: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    body.extend(changed.to_ne_bytes());
    attributes.iter().for_each(|(kind, value)| put_attribute(&mut body, *kind, value));
    body
}

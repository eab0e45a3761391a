//! Requests of `ioctl` that change IPv6 addresses (Linux `addrconf_add_ifaddr`, `addrconf_del_ifaddr`), as requests of
//! rtnetlink.

use libc::in6_ifreq;

use super::exchange::{CREATE, EXCL, LinkKey, change, link, put_attribute};
use crate::errno::Errno;

/// Adds or deletes an address: `SIOCSIFADDR`, `SIOCDIFADDR`.
///
/// # Errors
/// `ENODEV`: the interface does not exist; `EINVAL`: the prefix is too long; the gateway's error.
pub(super) fn set(request: &in6_ifreq, adds: bool) -> Result<(), Errno> {
    let prefix_len = u8::try_from(request.ifr6_prefixlen).ok().filter(|&len| len <= 128).ok_or(Errno(libc::EINVAL))?;
    let index = link(LinkKey::Index(request.ifr6_ifindex))?.index;
    let mut body = vec![libc::AF_INET6 as u8, prefix_len, 0, 0];
    body.extend(index.to_ne_bytes());
    put_attribute(&mut body, libc::IFA_LOCAL, &request.ifr6_addr.s6_addr);
    put_attribute(&mut body, libc::IFA_ADDRESS, &request.ifr6_addr.s6_addr);
    if adds { change(libc::RTM_NEWADDR, CREATE | EXCL, &body) } else { change(libc::RTM_DELADDR, 0, &body) }
}

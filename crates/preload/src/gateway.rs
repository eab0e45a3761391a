//! Gateway that the program was started for, from the environment.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use libc::sockaddr_un;

use crate::plain::zeroed;
use crate::{environment, sys};

/// Variable with the path of the gateway's netlink socket.
const VARIABLE: &CStr = c"FATPATH_NETLINK";

/// Suffix of the path for a program on the gateway's host side.
const ON_HOST_SIDE: &[u8] = b",host-side";

/// Further suffix, if the program may configure the packet filter of the host side's kernel.
const HOST_FIREWALL: &[u8] = b",host-firewall";

/// Last suffix, before the name of the VRF that the program's Internet sockets are bound to.
const IN_VRF: &[u8] = b",vrf=";

/// Gateway that a program was started for.
struct Gateway {
    /// Address of the gateway's netlink socket.
    address: sockaddr_un,
    /// Whether the program's other sockets are on the gateway's host side.
    is_on_host_side: bool,
    /// Whether the program may configure the packet filter of the host side's kernel.
    has_host_firewall: bool,
    /// VRF that the program's Internet sockets are bound to.
    vrf: Option<CString>,
}

/// Gateway of the program; `None` without one.
static GATEWAY: OnceLock<Option<Gateway>> = OnceLock::new();

/// Address of the gateway's netlink socket; `None` if the program was started for no gateway.
pub(crate) fn address() -> Option<&'static sockaddr_un> {
    found().map(|gateway| &gateway.address)
}

/// Tells whether the program was started on the gateway's host side, where the kernel serves its other sockets.
pub(crate) fn is_on_host_side() -> bool {
    found().is_some_and(|gateway| gateway.is_on_host_side)
}

/// Tells whether the program may configure the packet filter of the host side's kernel, for the sockets there.
pub(crate) fn has_host_firewall() -> bool {
    found().is_some_and(|gateway| gateway.has_host_firewall)
}

/// VRF that the program's Internet sockets are bound to.
pub(crate) fn vrf() -> Option<&'static CStr> {
    found()?.vrf.as_deref()
}

/// Address of the gateway's socket for key managers, next to its netlink socket.
pub(crate) fn ike_socket() -> Option<sockaddr_un> {
    beside(b".ike")
}

/// Address of a socket whose suffix replaces that of the gateway's netlink socket; `None` if the path is too long.
pub(crate) fn beside(ending: &[u8]) -> Option<sockaddr_un> {
    let mut address = *address()?;
    let path = address.sun_path.map(|byte| byte as u8);
    let len = path.iter().position(|&byte| byte == 0)?;
    let stem = path.get(..len)?.strip_suffix(b".netlink")?.len();
    // A zero byte ends the path.
    let end = address.sun_path.get_mut(stem..).filter(|end| end.len() > ending.len())?;
    end.fill(0);
    end.iter_mut().zip(ending).for_each(|(to, &byte)| *to = byte as _);
    Some(address)
}

fn found() -> Option<&'static Gateway> {
    GATEWAY.get_or_init(find).as_ref()
}

fn find() -> Option<Gateway> {
    let value = sys::variable(VARIABLE)?;
    let Parts { path, is_on_host_side, has_host_firewall, vrf } = Parts::of(value.to_bytes());
    let mut address: sockaddr_un = zeroed();
    address.sun_family = libc::AF_UNIX as u16;
    // A zero byte ends the path.
    let room = address.sun_path.get_mut(..=path.len())?;
    room.iter_mut().zip(path).for_each(|(to, &byte)| *to = byte as _);
    environment::keep(value);
    let vrf = vrf.and_then(|name| CString::new(name).ok());
    Some(Gateway { address, is_on_host_side, has_host_firewall, vrf })
}

/// Parts of the variable's value.
#[derive(Debug, Eq, PartialEq)]
struct Parts<'a> {
    path: &'a [u8],
    is_on_host_side: bool,
    has_host_firewall: bool,
    vrf: Option<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// Splits the value at its suffixes. The name of a device contains no comma.
    fn of(value: &'a [u8]) -> Self {
        let last = value.iter().rposition(|&byte| byte == b',').unwrap_or(value.len());
        let (front, vrf) = match value[last..].strip_prefix(IN_VRF) {
            Some(name) => (&value[..last], Some(name)),
            None => (value, None),
        };
        let (front, has_host_firewall) = match front.strip_suffix(HOST_FIREWALL) {
            Some(front) => (front, true),
            None => (front, false),
        };
        match front.strip_suffix(ON_HOST_SIDE) {
            Some(path) => Self { path, is_on_host_side: true, has_host_firewall, vrf },
            None => Self { path: value, is_on_host_side: false, has_host_firewall: false, vrf: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_of_the_variable_is_split_at_its_suffixes() {
        let cases = [
            ("/run/x.netlink", "/run/x.netlink", false, false, None),
            ("/run/x.netlink,host-side", "/run/x.netlink", true, false, None),
            ("/run/x.netlink,host-side,vrf=red", "/run/x.netlink", true, false, Some("red")),
            ("/run/x.netlink,host-side,host-firewall", "/run/x.netlink", true, true, None),
            ("/a,b.netlink,host-side,host-firewall,vrf=red", "/a,b.netlink", true, true, Some("red")),
            ("/a,b.netlink", "/a,b.netlink", false, false, None),
            ("/x.netlink,host-firewall", "/x.netlink,host-firewall", false, false, None),
        ];
        for (value, path, is_on_host_side, has_host_firewall, vrf) in cases {
            let (path, vrf) = (path.as_bytes(), vrf.map(str::as_bytes));
            assert_eq!(Parts::of(value.as_bytes()), Parts { path, is_on_host_side, has_host_firewall, vrf }, "{value}");
        }
    }
}

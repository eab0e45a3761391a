//! Gateway that the program was started for, from the environment.

use std::ffi::{CStr, CString};
use std::mem;
use std::sync::OnceLock;

use libc::sockaddr_un;

use crate::environment;

/// Variable with the path of the gateway's netlink socket.
const VARIABLE: &CStr = c"FATPATH_NETLINK";

/// Suffix of the path for a program on the gateway's host side.
const ON_HOST_SIDE: &[u8] = b",host-side";

/// Further suffix, before the name of the VRF that the program's Internet sockets are bound to.
const IN_VRF: &[u8] = b",vrf=";

/// Gateway that a program was started for.
struct Gateway {
    /// Address of the gateway's netlink socket.
    address: sockaddr_un,
    /// Whether the program's other sockets are on the gateway's host side.
    is_on_host_side: bool,
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
    // SAFETY: the name is a C string.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment consists of C strings, which do not change before the program runs.
    let value = unsafe { CStr::from_ptr(value) };
    let (path, is_on_host_side, vrf) = path_of(value.to_bytes());
    // SAFETY: any bytes are a valid address; zeros are the empty one.
    let mut address: sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // A zero byte ends the path.
    let room = address.sun_path.get_mut(..=path.len())?;
    room.iter_mut().zip(path).for_each(|(to, &byte)| *to = byte as _);
    environment::keep(value);
    Some(Gateway { address, is_on_host_side, vrf: vrf.and_then(|name| CString::new(name).ok()) })
}

/// Splits the variable's value into the path, whether the program is on the gateway's host side, and the VRF of its
/// sockets. The name of a device contains no comma.
fn path_of(value: &[u8]) -> (&[u8], bool, Option<&[u8]>) {
    let last = value.iter().rposition(|&byte| byte == b',').unwrap_or(value.len());
    let (front, vrf) = match value[last..].strip_prefix(IN_VRF) {
        Some(name) => (&value[..last], Some(name)),
        None => (value, None),
    };
    match front.strip_suffix(ON_HOST_SIDE) {
        Some(path) => (path, true, vrf),
        None => (value, false, None),
    }
}

//! Internet sockets of a program that was started for a VRF: each is bound to the VRF's device on the gateway's host
//! side before the program gets it.

use std::ffi::CStr;

use libc::c_int;

use crate::errno::Errno;
use crate::sys;

/// Creates a socket bound to the device.
///
/// # Errors
/// As `socket(2)`; `ENODEV`: the VRF's device no longer exists.
pub(crate) fn make(domain: c_int, kind: c_int, protocol: c_int, vrf: &CStr) -> Result<c_int, Errno> {
    // The filter accepts sockets with the mark.
    let fd = sys::marked_socket(domain, kind, protocol, launch::filter::SOCKET_MARK.into())?;
    sys::set_option(fd.0, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, vrf.to_bytes())?;
    Ok(fd.keep())
}

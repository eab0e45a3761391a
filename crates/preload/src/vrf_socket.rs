//! Internet sockets of a program that was started for a VRF: each is bound to the VRF's device on the gateway's host
//! side before the program gets it.

use std::ffi::CStr;

use libc::c_int;

use crate::errno::{Errno, checked};
use crate::fd::Fd;

/// Creates a socket bound to the device.
///
/// # Errors
/// As `socket(2)`; `ENODEV`: the VRF's device no longer exists.
pub(crate) fn make(domain: c_int, kind: c_int, protocol: c_int, vrf: &CStr) -> Result<c_int, Errno> {
    // SAFETY: the call takes no pointers. The filter accepts sockets with the mark.
    let made = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol, 0, 0, launch::filter::SOCKET_MARK) };
    let fd = Fd(checked(made as c_int)?);
    let name = vrf.to_bytes();
    let len = name.len() as libc::socklen_t;
    // SAFETY: the buffer is that long.
    let done = unsafe {
        libc::syscall(libc::SYS_setsockopt, fd.0, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr(), len)
    };
    checked(done as c_int)?;
    Ok(fd.keep())
}

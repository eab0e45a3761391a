//! Internet sockets of a program that was started for a VRF: bound to the VRF's device on the gateway's host side,
//! before the program gets them.

use std::ffi::CStr;

use libc::c_int;

use crate::errno::{Errno, checked};
use crate::fd::Fd;

/// Creates a socket bound to the device.
///
/// # Errors
/// As `socket(2)`; `ENODEV`: the VRF's device no longer exists.
pub(crate) fn make(domain: c_int, kind: c_int, protocol: c_int, vrf: &CStr) -> Result<c_int, Errno> {
    // SAFETY: it takes no pointers. The filter lets sockets pass that have the mark.
    let made = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol, 0, 0, launch::filter::SOCKET_MARK) };
    let fd = Fd(checked(made as c_int)?);
    let name = vrf.to_bytes();
    let len = name.len() as libc::socklen_t;
    // SAFETY: there are as many bytes.
    let done = unsafe {
        libc::syscall(libc::SYS_setsockopt, fd.0, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, name.as_ptr(), len)
    };
    checked(done as c_int)?;
    Ok(fd.keep())
}

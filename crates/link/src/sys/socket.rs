//! Socket options, and binding to addresses, that rustix lacks.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::check;
use super::sockaddr::{LINK_LAYER_LEN, index_of_link_layer};

/// Sets an option whose value is an `int`.
pub(crate) fn set_option(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_bytes(fd, level, name, &value.to_ne_bytes())
}

/// The value of an option that is an `int`.
pub(crate) fn get_option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    let (start, len) = ((&raw mut value).cast::<c_void>(), &raw mut len);
    // SAFETY: the kernel writes at most `*len` bytes to `start`, which `value` has, and their number to `len`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, start, len) })?;
    Ok(value)
}

/// A pidfd of the process that has connected to the other end of a Unix socket (`SO_PEERPIDFD`).
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.5; others if the process has ended.
pub fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd = get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD)?;
    // SAFETY: the kernel has made this descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Cookie of the network namespace of a socket (`SO_NETNS_COOKIE`): no other namespace has it until the next boot.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 5.14.
pub fn namespace_cookie(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = [0; 8];
    get_bytes(socket.as_fd(), libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(u64::from_ne_bytes(cookie))
}

/// The value of an option that is a structure, as the first bytes of `value`; returns their number.
pub(crate) fn get_bytes(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len() as libc::socklen_t;
    let (start, len_at) = (value.as_mut_ptr().cast::<c_void>(), &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes to `start`, which `value` has, and their number to `len`.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, start, len_at) })?;
    Ok(len as usize)
}

/// Sets an option whose value is this structure.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &[u8]) -> io::Result<()> {
    let (start, len) = (value.as_ptr().cast::<c_void>(), value.len() as libc::socklen_t);
    // SAFETY: the kernel reads at most `len` bytes from `start`, which `value` has.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, start, len) })?;
    Ok(())
}

/// Adds or drops a membership of a packet socket on the interface of that index, of a kind without an address (packet(7)). It ends with
/// the socket, or with the interface.
pub(crate) fn set_membership(fd: BorrowedFd<'_>, index: i32, kind: c_int, on: bool) -> io::Result<()> {
    // `struct packet_mreq`: the index, the kind, and no address.
    let mut request = [0; 16];
    request[..4].copy_from_slice(&index.to_ne_bytes());
    request[4..6].copy_from_slice(&(kind as u16).to_ne_bytes());
    let name = if on { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
    set_bytes(fd, libc::SOL_PACKET, name, &request)
}

/// Sets a buffer's size in bytes: above the administrator's limit if permitted, otherwise as close to it as possible.
pub(crate) fn set_buffer(fd: BorrowedFd<'_>, force: c_int, plain: c_int, bytes: c_int) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, force, bytes).or_else(|_| set_option(fd, libc::SOL_SOCKET, plain, bytes))
}

/// Binds to an address given as its bytes.
pub(crate) fn bind(fd: BorrowedFd<'_>, address: &[u8]) -> io::Result<()> {
    let (start, len) = (address.as_ptr().cast::<libc::sockaddr>(), address.len() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes from `start`, which `address` has, and copies them, so alignment does not
    // matter.
    check(unsafe { libc::bind(fd.as_raw_fd(), start, len) })?;
    Ok(())
}

/// Writes the address of a socket to `address`. Returns its length, which may be more than there was room for.
pub(crate) fn local_address(fd: BorrowedFd<'_>, address: &mut [u8]) -> io::Result<usize> {
    let mut len = address.len() as libc::socklen_t;
    let (start, len_at) = (address.as_mut_ptr().cast::<libc::sockaddr>(), &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes to `start`, which `address` has, byte by byte, and their number to `len`.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), start, len_at) })?;
    Ok(len as usize)
}

/// Tells whether a packet socket has lost the binding to the interface of that index, which was deleted or has left the
/// socket's namespace (Linux `packet_notifier`, `NETDEV_UNREGISTER`). An interface that comes back with its index does
/// not bind it again.
pub(crate) fn has_lost_interface(fd: BorrowedFd<'_>, index: i32) -> bool {
    let mut address = [0; LINK_LAYER_LEN];
    match local_address(fd, &mut address) {
        Ok(len) => index_of_link_layer(address.get(..len).unwrap_or(&address)) != Some(index),
        Err(_) => false,
    }
}

//! Trains on a socket that is no link, for measurements without a datapath.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use super::socket::widen;
use crate::sys::socket::set_option;

/// Lets a socket send datagrams of `size` bytes as one train a call, receive trains as they come, and buffer as much as a `udp` link.
///
/// # Errors
/// The kernel has no `UDP_SEGMENT` or `UDP_GRO`.
pub fn set_trains(socket: &UdpSocket, size: u16) -> io::Result<()> {
    let fd = socket.as_fd();
    set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, size.into())?;
    set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    widen(fd)
}

//! Sockets with the options of a `udp` link.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::sys::socket::{get_option, set_buffer, set_option};

/// Size of the socket buffer in each direction, in bytes.
const SOCKET_BUFFER: i32 = 8 << 20;

/// Makes a socket, and binds it; `joins` the group of the address, whose sockets have `SO_REUSEPORT`.
pub(super) fn socket(name: &str, bind: SocketAddr, joins: bool) -> Result<UdpSocket, OpenError> {
    let failed = |call| move |err: io::Error| OpenError::new(name, call, err);
    let (family, level) = match bind {
        SocketAddr::V4(_) => (AddressFamily::INET, libc::IPPROTO_IP),
        SocketAddr::V6(_) => (AddressFamily::INET6, libc::IPPROTO_IPV6),
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(|err| failed("socket")(err.into()))?;
    let fd = socket.as_fd();
    let option = |name, value, call| set_option(fd, level, name, value).map_err(failed(call));
    match bind {
        SocketAddr::V4(_) => {
            option(libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE, "IP_MTU_DISCOVER")?;
            option(libc::IP_RECVERR, 1, "IP_RECVERR")?;
            option(libc::IP_RECVTOS, 1, "IP_RECVTOS")?;
            option(libc::IP_PKTINFO, bind.ip().is_unspecified().into(), "IP_PKTINFO")?;
        }
        SocketAddr::V6(_) => {
            option(libc::IPV6_V6ONLY, 1, "IPV6_V6ONLY")?;
            option(libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE, "IPV6_MTU_DISCOVER")?;
            option(libc::IPV6_RECVERR, 1, "IPV6_RECVERR")?;
            option(libc::IPV6_RECVTCLASS, 1, "IPV6_RECVTCLASS")?;
            option(libc::IPV6_RECVPKTINFO, bind.ip().is_unspecified().into(), "IPV6_RECVPKTINFO")?;
        }
    }
    set_option(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1).map_err(failed("SO_RXQ_OVFL"))?;
    set_buffers(fd).map_err(failed("SO_RCVBUF, SO_SNDBUF"))?;
    if joins {
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(failed("SO_REUSEPORT"))?;
    }
    rustix::net::bind(fd, &bind).map_err(|err| {
        OpenError::new(name, "bind", err.into())
            .with_hint(libc::EADDRINUSE, "another socket has this address and port")
            .with_hint(libc::EADDRNOTAVAIL, format!("the host has no address {}", bind.ip()))
            .with_hint(libc::EACCES, "needs CAP_NET_BIND_SERVICE; run as root or grant it")
    })?;
    Ok(UdpSocket::from(socket))
}

/// Makes a socket at another port of a link's address; `joins` as for the sockets of a link.
///
/// # Errors
/// Errors of socket(2), setsockopt(2) and bind(2).
pub fn bind_port(address: SocketAddr, joins: bool) -> io::Result<OwnedFd> {
    socket("", address, joins).map(OwnedFd::from).map_err(|err| err.source)
}

/// Sets the buffers of a UDP socket, which may be another process's, to the size of a link's.
///
/// # Errors
/// `EPROTOTYPE`: another kind of socket. Otherwise errors of setsockopt(2).
pub fn widen(socket: BorrowedFd<'_>) -> io::Result<()> {
    match get_option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL)? {
        libc::IPPROTO_UDP => set_buffers(socket),
        _ => Err(io::Error::from_raw_os_error(libc::EPROTOTYPE)),
    }
}

/// Whether the buffers of a socket are smaller than those of a link.
pub(super) fn is_narrow(socket: BorrowedFd<'_>) -> bool {
    // The kernel doubles what it is given.
    get_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUF).is_ok_and(|bytes| bytes < 2 * SOCKET_BUFFER)
}

fn set_buffers(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_buffer(socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, SOCKET_BUFFER)?;
    set_buffer(socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SOCKET_BUFFER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_of_udp_sockets_alone_are_widened() {
        let udp = bind_port("127.0.0.1:0".parse().unwrap(), false).unwrap();
        widen(udp.as_fd()).unwrap();
        let (unix, _peer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        let refused = widen(unix.as_fd()).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPROTOTYPE));
    }
}

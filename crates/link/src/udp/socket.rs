//! Sockets with the options of a `udp` link.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::sys::socket::{set_buffer, set_option};

/// Size of the socket buffer in each direction, in bytes.
pub(super) const SOCKET_BUFFER: i32 = 8 << 20;

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
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, SOCKET_BUFFER).map_err(failed("SO_RCVBUF"))?;
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, SOCKET_BUFFER).map_err(failed("SO_SNDBUF"))?;
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

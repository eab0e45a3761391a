//! Opening of the socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::discovery::Discovery;
use super::paths::Paths;
use super::{RECV_MESSAGES, Slot, UdpLink, features, probe};
use crate::config::Config;
use crate::offloads::{BY_CONFIGURATION, Offloads, TX_CSUM, TX_USO};
use crate::posted::Posted;
use crate::sys::cmsg::CONTROL_LEN;
use crate::sys::mmsg::MAX_MESSAGES;
use crate::sys::sockaddr::SOCKADDR_LEN;
use crate::sys::socket::{set_buffer, set_option};
use crate::{Common, OpenError};

/// Size of the socket buffer in each direction, in bytes.
pub(super) const SOCKET_BUFFER: i32 = 8 << 20;

impl UdpLink {
    /// Binds a socket, and probes its offloads.
    pub(crate) fn open(config: &Config, bind: SocketAddr) -> Result<Self, OpenError> {
        let name = &config.name;
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
        rustix::net::bind(fd, &bind).map_err(|err| {
            OpenError::new(name, "bind", err.into())
                .with_hint(libc::EADDRINUSE, "another socket has this address and port")
                .with_hint(libc::EADDRNOTAVAIL, format!("the host has no address {}", bind.ip()))
                .with_hint(libc::EACCES, "needs CAP_NET_BIND_SERVICE; run as root or grant it")
        })?;

        let mut offloads = Offloads::with_safe_trains();
        let (gro, uso) = if config.offloads {
            let found = probe::probe(bind);
            let gro = found.gro.and_then(|how| match set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1) {
                Ok(()) => Ok(how),
                Err(err) => Err(format!("UDP_GRO: {}", crate::error::text(&err))),
            });
            (gro, found.uso)
        } else {
            (Err(BY_CONFIGURATION.to_owned()), Err(BY_CONFIGURATION.to_owned()))
        };
        offloads.add("rx-gro", gro);
        offloads.add(TX_CSUM, Ok(Some("the socket makes it".to_owned())));
        offloads.add(TX_USO, uso);

        let socket = std::net::UdpSocket::from(socket);
        let local = socket.local_addr().map_err(failed("getsockname"))?;
        let width = if config.offloads { RECV_MESSAGES } else { 1 };
        let slot = || Slot { posted: Posted::new(), name: [0; SOCKADDR_LEN], control: [0; CONTROL_LEN] };
        let features = features(&offloads, config.offloads);
        Ok(Self {
            common: Common::new(name, config.mtu, offloads, features),
            socket,
            local,
            ike: None,
            ike_waits: 0,
            discovery: Discovery::Probe,
            width: if config.offloads { MAX_MESSAGES } else { 1 },
            is_fat: config.offloads,
            slots: std::iter::repeat_with(slot).take(width).collect(),
            overflows: 0,
            retries: 0,
            has_joined: false,
            singly: 0,
            paths: Paths::default(),
        })
    }
}

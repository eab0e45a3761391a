//! Opening of the sockets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use base::ShardCount;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::discovery::Discovery;
use super::paths::Paths;
use super::socket::socket;
use super::source_ports::SourcePorts;
use super::{RECV_MESSAGES, Slot, UdpLink, features, probe};
use crate::config::Config;
use crate::offloads::{BY_CONFIGURATION, Offloads, TX_CSUM, TX_USO};
use crate::posted::Posted;
use crate::steering;
use crate::sys::cbpf;
use crate::sys::cmsg::CONTROL_LEN;
use crate::sys::mmsg::MAX_MESSAGES;
use crate::sys::sockaddr::SOCKADDR_LEN;
use crate::sys::socket::set_option;
use crate::{Common, OpenError};

/// Port of IKE, where no datagram begins with an SPI.
const IKE_PORT: u16 = 500;

/// Port of the peer of a [guard], `discard`: a datagram from it is not for a link.
const GUARDS_PEER: u16 = 9;

impl UdpLink {
    /// Binds a socket for each shard, all to one address and port. The kernel chooses the socket by the SPI. Several sockets are
    /// followed by their [guard], if there is one.
    pub(crate) fn acquire(name: &str, bind: SocketAddr, shards: ShardCount) -> Result<Vec<OwnedFd>, OpenError> {
        let failed = |call| move |err: io::Error| OpenError::new(name, call, err);
        let first = socket(name, bind, false)?;
        // The port that the kernel has chosen, if the configured one is 0.
        let local = first.local_addr().map_err(failed("getsockname"))?;
        let mut sockets = vec![first];
        if shards != ShardCount::ONE {
            // Bound without the option, so that another socket of the address is an error: the option would join a foreign group.
            set_option(sockets[0].as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1).map_err(failed("SO_REUSEPORT"))?;
            for _ in 1..shards.get() {
                sockets.push(socket(name, local, true)?);
            }
            let program = if local.port() == IKE_PORT { steering::first() } else { steering::by_spi(shards) };
            cbpf::steer_group(sockets[0].as_fd(), &program).map_err(failed("SO_ATTACH_REUSEPORT_CBPF"))?;
            let guard = guard(&sockets, local).map_err(failed("guard"))?;
            sockets.extend(guard);
        }
        Ok(sockets.into_iter().map(OwnedFd::from).collect())
    }

    /// Makes a link for each shard over bound sockets, which may be followed by their guard, and probes their offloads.
    pub(crate) fn from_sockets(
        config: &Config,
        sockets: Vec<OwnedFd>,
        shards: ShardCount,
    ) -> Result<Vec<Self>, OpenError> {
        let name = &config.name;
        let failed = |call| move |err: io::Error| OpenError::new(name, call, err);
        if !(shards.get()..=shards.get() + 1).contains(&sockets.len()) {
            return Err(OpenError::wrong_descriptors(name, sockets.len(), shards));
        }
        let mut sockets: Vec<_> = sockets.into_iter().map(UdpSocket::from).collect();
        let guarded = sockets.drain(shards.get()..).next().map(Arc::new);
        let local = sockets[0].local_addr().map_err(failed("getsockname"))?;

        let found = if config.offloads { Some(probe::probe(local)) } else { None };
        let refused = || Err(BY_CONFIGURATION.to_owned());
        let of_shard = |(shard, socket): (usize, UdpSocket)| {
            let mut offloads = Offloads::with_safe_trains();
            let gro = found.as_ref().map_or_else(refused, |found| found.gro.clone());
            let gro = gro.and_then(|how| match set_option(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1) {
                Ok(()) => Ok(how),
                Err(err) => Err(format!("UDP_GRO: {}", crate::error::text(&err))),
            });
            offloads.add("rx-gro", gro);
            offloads.add(TX_CSUM, Ok(Some("the socket makes it".to_owned())));
            offloads.add(TX_USO, found.as_ref().map_or_else(refused, |found| found.uso.clone()));
            let width = if config.offloads { RECV_MESSAGES } else { 1 };
            let slot = || Slot { posted: Posted::new(), name: [0; SOCKADDR_LEN], control: [0; CONTROL_LEN] };
            let features = features(&offloads, config.offloads);
            Ok(Self {
                common: Common::new(name, config.mtu, offloads, features),
                socket,
                guard: guarded.clone(),
                local,
                is_first: shard == 0,
                ike: None,
                source_ports: SourcePorts::new(name, shards != ShardCount::ONE)?,
                others_wait: 0,
                discovery: Discovery::Unknown,
                width: if config.offloads { MAX_MESSAGES } else { 1 },
                is_fat: config.offloads,
                slots: std::iter::repeat_with(slot).take(width).collect(),
                overflows: 0,
                retries: 0,
                has_joined: false,
                singly: 0,
                paths: Paths::default(),
            })
        };
        sockets.into_iter().enumerate().map(of_shard).collect()
    }
}

#[cfg(test)]
impl UdpLink {
    /// The link of a node with one shard, opened in this process.
    pub(super) fn of_one(config: &Config, bind: SocketAddr) -> Self {
        let sockets = Self::acquire(&config.name, bind, ShardCount::ONE).unwrap();
        Self::from_sockets(config, sockets, ShardCount::ONE).unwrap().remove(0)
    }
}

/// Makes a socket that keeps other programs of this user out of the group of `sockets`, which any socket with `SO_REUSEPORT` of the same
/// user may join otherwise.
///
/// The kernel compares a new socket with the last one that was bound (Linux `udp_lib_lport_inuse`), so this one is bound last, and not in
/// the group: for the moment of the call all have `SO_REUSEADDR`. It receives nothing: an IPv6 socket at a mapped address ranks below IPv4
/// sockets (`compute_score`), and others are connected. `None` for IPv6's unspecified address on a host without a loopback interface, where
/// there is nothing to connect to.
fn guard(sockets: &[UdpSocket], local: SocketAddr) -> io::Result<Option<UdpSocket>> {
    let set_reusable = |socket: BorrowedFd<'_>, value| set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, value);
    let new = |family| socket_with(family, SocketType::DGRAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None);
    let (guard, address) = match (local.ip(), new(AddressFamily::INET6)) {
        (IpAddr::V4(ip), Ok(guard)) => (guard, SocketAddr::new(ip.to_ipv6_mapped().into(), local.port())),
        // The host has no IPv6.
        (IpAddr::V4(_), Err(_)) => (new(AddressFamily::INET)?, local),
        (IpAddr::V6(_), guard) => (guard?, local),
    };
    let is_mapped = address != local;
    if local.is_ipv6() {
        set_option(guard.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    set_reusable(guard.as_fd(), 1)?;
    sockets.iter().try_for_each(|socket| set_reusable(socket.as_fd(), 1))?;
    let bound = rustix::net::bind(&guard, &address);
    sockets.iter().try_for_each(|socket| set_reusable(socket.as_fd(), 0))?;
    bound?;
    set_reusable(guard.as_fd(), 0)?;
    let guard = UdpSocket::from(guard);
    let mut peer = local;
    peer.set_port(GUARDS_PEER);
    match local.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => peer.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => peer.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    Ok((is_mapped || guard.connect(peer).is_ok()).then_some(guard))
}

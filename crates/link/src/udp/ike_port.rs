//! Port 500 of the link's address, for IKE daemons of the host side: IKE begins there, whatever port ESP in UDP has
//! (RFC 7296 §2).
//!
//! Datagrams are few, so each is one system call.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use base::DropReason;
use packet::{Memory, Packet};

use super::socket::bind_port;
use super::synthetic::{Ends, LONGEST, Unwrapped, set_ip, wrap};
use crate::OpenError;
use crate::opener::opener;
use crate::pieces::skipping;
use crate::stats::LinkStats;
use crate::sys::socket::set_option;

/// The port of IKE.
const IKE_PORT: u16 = 500;

/// Port of ESP in UDP (RFC 3948 §2.1): only a link of that port has an IKE daemon behind it.
const ENCAP_PORT: u16 = 4500;

/// Datagrams received at once.
const BURST: usize = 16;

/// A socket at port 500.
#[derive(Debug)]
pub(super) struct IkePort {
    socket: UdpSocket,
    local: SocketAddr,
}

impl IkePort {
    /// Binds port 500 of the address of a link `name`, if the link is bound to one address and the port of ESP in UDP.
    pub(super) fn open(name: &str, link: SocketAddr) -> Result<Option<Self>, OpenError> {
        if link.port() != ENCAP_PORT || link.ip().is_unspecified() {
            return Ok(None);
        }
        Self::bind(name, SocketAddr::new(link.ip(), IKE_PORT)).map(Some)
    }

    fn bind(name: &str, local: SocketAddr) -> Result<Self, OpenError> {
        let failed = |call| move |err| OpenError::new(name, call, err);
        let bound = match opener() {
            Some(opener) => opener.bind(local, false),
            None => bind_port(local, false),
        };
        let socket = bound.map(UdpSocket::from).map_err(|err| {
            failed("bind to the port of IKE")(err)
                .with_hint(libc::EADDRINUSE, "another socket has this address and port")
                .with_hint(libc::EACCES, "needs CAP_NET_BIND_SERVICE; run as root or grant it")
        })?;
        // The host fragments a datagram that is longer than the path MTU by its own rules, and errors are not read here.
        let (level, discovery, mode, errors) = match local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT, libc::IP_RECVERR),
            SocketAddr::V6(_) => {
                (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT, libc::IPV6_RECVERR)
            }
        };
        set_option(socket.as_fd(), level, discovery, mode).map_err(failed("IP_MTU_DISCOVER"))?;
        set_option(socket.as_fd(), level, errors, 0).map_err(failed("IP_RECVERR"))?;
        let local = socket.local_addr().map_err(failed("getsockname"))?;
        Ok(Self { socket, local })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Tells whether this is the number of this port.
    pub(super) fn is_at(&self, port: u16) -> bool {
        self.local.port() == port
    }

    /// Appends received datagrams.
    pub(super) fn recv(&self, mem: &Memory, stats: &mut LinkStats, out: &mut Vec<Packet>) {
        for _ in 0..BURST {
            let Ok(mut buf) = mem.take(Memory::HEADROOM, LONGEST) else { return };
            if buf.put(LONGEST).is_none() {
                return;
            }
            let Some(room) = buf.bytes_mut() else { return };
            let Ok((len, src)) = self.socket.recv_from(room) else { return };
            buf.trim(len);
            match wrap(buf, &Ends { src, dst: self.local, tos: 0 }, None) {
                Ok(Some(packet)) => {
                    stats.received(&packet);
                    out.push(packet);
                }
                Ok(None) => stats.rx_drop(DropReason::TransportHeader),
                Err(dry) => stats.rx_drop(dry.into()),
            }
        }
    }

    /// Tells whether a packet is from this port.
    pub(super) fn is_of(&self, unwrapped: &Unwrapped) -> bool {
        let mut src = self.local;
        set_ip(&mut src, Some(unwrapped.ends.src.ip()));
        src == self.local && self.is_at(unwrapped.ends.src.port())
    }

    /// Sends the datagrams of a packet that [is of](Self::is_of) this port.
    ///
    /// # Errors
    /// Errors of sendto(2).
    pub(super) fn send(&self, packet: &Packet, unwrapped: &Unwrapped) -> io::Result<()> {
        let payload = skipping(packet, unwrapped.header_len).flatten().copied().collect::<Vec<u8>>();
        let size = packet.meta.cut.gso().map_or(payload.len(), |gso| gso.size.into());
        for datagram in payload.chunks(size.max(1)) {
            self.socket.send_to(datagram, unwrapped.ends.dst)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use driver::DriverKind;

    use super::super::UdpLink;
    use super::super::synthetic::unwrap;
    use super::*;
    use crate::config::Config;
    use crate::{Link, Sent};

    fn link() -> UdpLink {
        let bind = "127.0.0.1:0".parse().unwrap();
        let kind = DriverKind::Udp { bind };
        let config = Config { name: "wan".to_owned(), kind, mac: None, mtu: None, offloads: true, index: None };
        UdpLink::of_one(&config, bind)
    }

    #[test]
    fn ike_port_needs_one_address_and_port_4500() {
        for other in ["0.0.0.0:4500", "[::]:4500", "127.0.0.1:4501"] {
            assert!(IkePort::open("wan", other.parse().unwrap()).unwrap().is_none(), "{other}");
        }
        let mut link = link();
        link.set_ike_port(true).unwrap();
        assert_eq!(link.poll_fds().len(), 2);
    }

    #[test]
    fn ike_datagrams_pass_both_ways_beside_the_links() {
        let (mem, mut link) = (Memory::heap(), link());
        link.ike = Some(IkePort::bind("wan", "127.0.0.1:0".parse().unwrap()).unwrap());
        let port = link.ike.as_ref().unwrap().local;
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
        assert_eq!((link.poll_fds().len(), link.room_fds().len()), (3, 1));
        peer.send_to(b"init", port).unwrap();
        peer.send_to(b"esp!", link.local).unwrap();
        let mut came = Vec::new();
        for _ in 0..100 {
            link.recv(&mem, &mut came).unwrap();
        }
        let ends: Vec<_> = came.iter().map(|packet| unwrap(packet).unwrap().ends).collect();
        let from_peer = |dst| Ends { src: peer.local_addr().unwrap(), dst, tos: 0 };
        assert_eq!(ends, [from_peer(link.local), from_peer(port)]);
        assert_eq!(link.stats().rx_packets, 2);
        // Answers of both, in one burst.
        let mut answers: Vec<_> = [port, link.local, port]
            .map(|src| {
                let mut buf = mem.take(Memory::HEADROOM, 2).unwrap();
                buf.put(2).unwrap().copy_from_slice(b"ok");
                let ends = Ends { src, dst: peer.local_addr().unwrap(), tos: 0 };
                wrap(buf, &ends, None).unwrap().unwrap()
            })
            .into();
        assert!(matches!(link.send(&mut answers), Ok(Sent::All)));
        let sources = [(); 3].map(|()| peer.recv_from(&mut [0; 9]).unwrap());
        assert_eq!(sources, [(2, port), (2, link.local), (2, port)]);
        assert_eq!((link.stats().tx_packets, link.stats().tx_dropped), (3, 0));
        // Without the socket the port is no longer the link's.
        link.set_ike_port(false).unwrap();
        peer.send_to(b"again", port).unwrap();
        came.clear();
        link.recv(&mem, &mut came).unwrap();
        assert!(came.is_empty());
    }
}

//! Errors of earlier packets, from the error queue: path MTU reports, with the ICMP messages made from them, and peers
//! that cannot be reached.
//!
//! A message about a link of the host, mostly the first one of the path, is from this node to itself, and marked as
//! [`Loopback`](PktType::Loopback): from the network it would be a martian (RFC 1812 §5.3.8).

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Instant;

use packet::{Memory, Packet, PktType};

use super::errors;
use super::synthetic::{Ends, Unwrapped, unwrap};
use crate::stats::LinkStats;
use crate::sys::cmsg::CONTROL_LEN;
use crate::sys::mmsg::{Received, RecvBatch};
use crate::sys::sockaddr::{self, SOCKADDR_LEN};
use crate::sys::socket::get_option;

/// Retries of a receive call after an error about an earlier packet, and entries of the error queue that one such call
/// reads.
pub(super) const MAX_ERRORS: usize = 16;

/// Peers whose last error is kept: those with the most recent ones.
const MAX_PEERS: usize = 64;

/// Last error that the network reported about packets to a peer, such as an ICMP *port unreachable*.
#[derive(Clone, Copy, Debug)]
pub struct PeerError {
    /// Address and port of the peer.
    pub peer: SocketAddr,
    /// `errno` of the error.
    pub errno: i32,
    /// Number of errors since the link was opened.
    pub count: u64,
    /// Time of the last error.
    pub at: Instant,
}

/// State of path MTU reports that are still to be read or made, and last errors of peers.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Last errors of peers, most recent last.
    pub(super) unreachable: VecDeque<PeerError>,
    /// Whether the error queue has to be read.
    pub(super) errors_wait: bool,
    /// The last packet that did not fit the first link.
    pub(super) too_big: Option<TooBig>,
    /// Trains that did not fit the first link, each with that link's MTU.
    pub(super) narrow: Vec<(TooBig, u32)>,
}

/// Addresses and quote of a packet that did not fit the first link.
#[derive(Debug)]
pub(super) struct TooBig {
    src: IpAddr,
    dst: IpAddr,
    quote: Vec<u8>,
}

impl Paths {
    /// Reads the error queue, and appends an ICMP message for each path MTU report.
    #[cold]
    pub(super) fn recv_errors(
        &mut self,
        socket: &UdpSocket,
        address: SocketAddr,
        stats: &mut LinkStats,
        mem: &Memory,
        out: &mut Vec<Packet>,
    ) {
        self.errors_wait = false;
        for (TooBig { src, quote, .. }, mtu) in std::mem::take(&mut self.narrow) {
            report_mtu(stats, mem, [src, src], true, mtu, &quote, out);
        }
        for _ in 0..MAX_ERRORS {
            let mut payload = [0; errors::QUOTE_LEN];
            let mut control = [0; CONTROL_LEN];
            let mut name = [0; SOCKADDR_LEN];
            let mut batch = RecvBatch::new();
            batch.push(&mut name, &mut control, [&mut payload]);
            let Ok(received) = batch.recv_errors(socket.as_fd()) else { return };
            let Some(&Received { len, name_len, control_len, .. }) = received.first() else { return };
            let error = control.get(..control_len).and_then(errors::parse);
            let dst = name.get(..name_len).and_then(sockaddr::parse);
            let (Some(error), Some(dst)) = (error, dst) else { continue };
            stats.soft_errors += 1;
            if error.errno != libc::EMSGSIZE {
                self.note_unreachable(dst, error.errno);
                continue;
            }
            if !error.is_local {
                let local = error.local.unwrap_or(address.ip());
                let src = SocketAddr::new(local, address.port());
                if let Some(quote) = errors::quote(src, dst, payload.get(..len).unwrap_or(&payload)) {
                    let offender = error.offender.unwrap_or(dst.ip());
                    // The kernel drops IPv4 packets from the network with a source address of its own.
                    let is_own = offender == local && local.is_ipv4();
                    report_mtu(stats, mem, [offender, local], is_own, error.info, &quote, out);
                }
            } else if let Some(TooBig { src, quote, .. }) = self.too_big.take_if(|packet| packet.dst == dst.ip()) {
                // The kernel does not name the source address, which a socket of any address takes from the packet.
                report_mtu(stats, mem, [src, src], true, error.info, &quote, out);
            }
        }
        self.errors_wait = true;
    }

    fn note_unreachable(&mut self, peer: SocketAddr, errno: i32) {
        let known = self.unreachable.iter().position(|known| known.peer == peer);
        let before = known.and_then(|at| self.unreachable.remove(at)).map_or(0, |known| known.count);
        if self.unreachable.len() == MAX_PEERS {
            self.unreachable.pop_front();
        }
        self.unreachable.push_back(PeerError { peer, errno, count: before + 1, at: Instant::now() });
    }
}

/// Appends the message from `offender` to `local` that the quoted packet is longer than `mtu`; `is_own`: it is no
/// message of the network.
fn report_mtu(
    stats: &mut LinkStats,
    mem: &Memory,
    [offender, local]: [IpAddr; 2],
    is_own: bool,
    mtu: u32,
    quote: &[u8],
    out: &mut Vec<Packet>,
) {
    match errors::too_big(mem, offender, local, mtu, quote) {
        Ok(Some(mut message)) => {
            if is_own {
                message.meta.pkt_type = PktType::Loopback;
            }
            out.push(message);
        }
        Ok(None) => {}
        Err(dry) => stats.rx_drop(dry.into()),
    }
}

impl TooBig {
    /// A packet of ours, if the socket can send it.
    pub(super) fn of(packet: &Packet) -> Option<Self> {
        let Unwrapped { ends: Ends { src, dst, .. }, header_len, .. } = unwrap(packet).ok()?;
        let mut quote = vec![0; packet.len().min(header_len + errors::QUOTE_LEN)];
        packet.read_at(0, &mut quote);
        Some(Self { src: src.ip(), dst: dst.ip(), quote })
    }
}

/// A packet whose segments are longer than the first link's MTU, with that MTU; `None` if they fit.
#[cold]
pub(super) fn narrow(packet: &Packet) -> Option<(TooBig, u32)> {
    let Unwrapped { ends: Ends { dst, .. }, header_len, .. } = unwrap(packet).ok()?;
    let (any, level, name) = match dst {
        SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(dst).ok()?;
    let mtu = u32::try_from(get_option(socket.as_fd(), level, name).ok()?).ok()?;
    let longest = packet.meta.cut.gso().map_or(packet.len(), |gso| header_len + usize::from(gso.size));
    if longest <= mtu as usize { None } else { Some((TooBig::of(packet)?, mtu)) }
}

/// Tells whether an error is one that the network reported about an earlier packet (ip(7)); reading clears such an
/// error.
pub(super) fn is_soft(errno: i32) -> bool {
    [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EHOSTDOWN,
        libc::ENETDOWN,
        libc::ENONET,
        libc::ENOPROTOOPT,
        libc::EOPNOTSUPP,
        libc::EPROTO,
        libc::EACCES,
        libc::EMSGSIZE,
    ]
    .contains(&errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_kept_for_the_most_recent_peers() {
        let mut paths = Paths::default();
        let peer = |port| SocketAddr::from(([192, 0, 2, 2], port));
        (1..=MAX_PEERS as u16 + 1).for_each(|port| paths.note_unreachable(peer(port), libc::ECONNREFUSED));
        paths.note_unreachable(peer(2), libc::EHOSTUNREACH);
        assert_eq!(paths.unreachable.len(), MAX_PEERS);
        assert_eq!(paths.unreachable.front().map(|error| error.peer), Some(peer(3)));
        let last = paths.unreachable.back().unwrap();
        assert_eq!((last.peer, last.errno, last.count), (peer(2), libc::EHOSTUNREACH, 2));
    }
}

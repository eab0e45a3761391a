//! Path MTU reports about earlier packets, from the error queue, and the ICMP messages made from them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use packet::{Memory, Packet};

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

/// State of path MTU reports that are still to be read or made.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// Whether the error queue has to be read.
    pub(super) errors_wait: bool,
    /// Destination and quote of the last packet that did not fit the first link.
    pub(super) too_big: Option<(IpAddr, Vec<u8>)>,
    /// Paths that a train did not fit: our address, the MTU of the first link, and the train's quote.
    pub(super) narrow: Vec<(IpAddr, u32, Vec<u8>)>,
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
        for (local, mtu, quote) in std::mem::take(&mut self.narrow) {
            report_mtu(stats, mem, local, local, mtu, &quote, out);
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
                continue;
            }
            let local = error.local.unwrap_or(address.ip());
            if !error.is_local {
                let src = SocketAddr::new(local, address.port());
                if let Some(quote) = errors::quote(src, dst, payload.get(..len).unwrap_or(&payload)) {
                    report_mtu(stats, mem, error.offender.unwrap_or(dst.ip()), local, error.info, &quote, out);
                }
            } else if let Some((_, quote)) = self.too_big.take_if(|(to, _)| *to == dst.ip()) {
                report_mtu(stats, mem, local, local, error.info, &quote, out);
            }
        }
        self.errors_wait = true;
    }
}

/// Appends the message from `offender` that the quoted packet is longer than `mtu`.
fn report_mtu(
    stats: &mut LinkStats,
    mem: &Memory,
    offender: IpAddr,
    local: IpAddr,
    mtu: u32,
    quote: &[u8],
    out: &mut Vec<Packet>,
) {
    match errors::too_big(mem, offender, local, mtu, quote) {
        Ok(message) => out.extend(message),
        Err(dry) => stats.rx_drop(dry.into()),
    }
}

/// Source, first link's MTU and quote of a packet whose segments are longer than that MTU; `None` if they fit.
#[cold]
pub(super) fn narrow(packet: &Packet) -> Option<(IpAddr, u32, Vec<u8>)> {
    let Unwrapped { ends: Ends { src, dst, .. }, header_len, .. } = unwrap(packet).ok()?;
    let (any, level, name) = match dst {
        SocketAddr::V4(_) => (IpAddr::V4(Ipv4Addr::UNSPECIFIED), libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(dst).ok()?;
    let mtu = u32::try_from(get_option(socket.as_fd(), level, name).ok()?).ok()?;
    let longest = packet.meta.cut.gso().map_or(packet.len(), |gso| header_len + usize::from(gso.size));
    (longest > mtu as usize).then(|| (src.ip(), mtu, first_bytes(packet, header_len)))
}

/// The headers of a packet, `header_len` bytes, and the first bytes of its payload.
pub(super) fn first_bytes(packet: &Packet, header_len: usize) -> Vec<u8> {
    let mut bytes = vec![0; packet.len().min(header_len + errors::QUOTE_LEN)];
    packet.read_at(0, &mut bytes);
    bytes
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

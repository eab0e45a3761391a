//! Don't Fragment of datagrams that a socket sends (RFC 4301 §8.1). No control message sets it, only the socket option
//! `IP_MTU_DISCOVER`, which is therefore changed between two system calls when packets differ. The packets of a flow
//! keep their order.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use packet::Cut;

use crate::sys::socket::set_option;

/// Path MTU discovery mode of a socket (ip(7), ipv6(7)). In every mode the kernel reports *fragmentation needed*, and
/// never fits an IPv4 datagram to a reported MTU: the node judges these reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Discovery {
    /// Not known: another link may have used the socket. No packet has this mode.
    Unknown,
    /// `IP_PMTUDISC_PROBE`, and IPv6's of the same value: nothing fragments a datagram.
    Probe,
    /// `IP_PMTUDISC_OMIT`: an IPv4 datagram has no Don't Fragment. Routers may fragment it, and so does the kernel if
    /// it is longer than the first link's MTU.
    Omit,
    /// `IPV6_PMTUDISC_DONT`: the kernel fragments an IPv6 datagram to its cached path MTU, as only the source may.
    Dont,
}

impl Discovery {
    /// Mode for a packet with that header, which may be one that a device is to fragment.
    pub(super) fn of(cut: Cut, v4: bool, dont_fragment: bool) -> Self {
        match (v4, cut == Cut::Fragment) {
            (true, false) if dont_fragment => Self::Probe,
            (true, _) => Self::Omit,
            (false, true) => Self::Dont,
            (false, false) => Self::Probe,
        }
    }

    /// Sets the path MTU discovery mode of a socket, which has been `self`, to that of the next packets.
    #[inline]
    pub(super) fn change(&mut self, discovery: Self, socket: &UdpSocket, local: SocketAddr) -> io::Result<()> {
        if *self == discovery {
            return Ok(());
        }
        let (level, name) = match local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        };
        let value = match discovery {
            Self::Unknown => return Ok(()),
            Self::Probe => libc::IP_PMTUDISC_PROBE,
            Self::Omit => libc::IP_PMTUDISC_OMIT,
            Self::Dont => libc::IPV6_PMTUDISC_DONT,
        };
        set_option(socket.as_fd(), level, name, value)?;
        *self = discovery;
        Ok(())
    }
}

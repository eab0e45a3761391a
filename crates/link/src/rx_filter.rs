//! Receive filter of an interface of the host, set by memberships of a packet socket, which end with the socket (packet(7)).
//!
//! An interface passes up frames to its own address, and to groups that its stack has joined. That stack knows none of the node's groups:
//! those of its addresses (solicited-node), and those that sockets of the host side join. So a link receives frames to all groups.

use std::io;
use std::os::fd::BorrowedFd;

use wire::MacAddr;

use crate::error::failed;
use crate::sys::ifreq::Interface;
use crate::sys::socket::set_membership;

/// Receive filter of an interface.
#[derive(Debug)]
pub(crate) struct RxFilter {
    index: i32,
    /// Whether the node requests frames to all stations.
    is_requested: bool,
    /// Whether the interface has another address than the link.
    is_readdressed: bool,
    /// Whether the socket has the membership for frames to all stations.
    is_promiscuous: bool,
}

impl RxFilter {
    /// Passes up frames to all groups on the interface of that index.
    pub(crate) fn open(socket: BorrowedFd<'_>, index: i32) -> io::Result<Self> {
        set_membership(socket, index, libc::PACKET_MR_ALLMULTI, true)?;
        Ok(Self { index, is_requested: false, is_readdressed: false, is_promiscuous: false })
    }

    /// Passes up frames to all stations, or no longer, at the node's request.
    ///
    /// # Errors
    /// The system refuses. The next call tries again.
    pub(crate) fn set_promiscuous(
        &mut self,
        socket: BorrowedFd<'_>,
        interface: &Interface,
        on: bool,
    ) -> io::Result<()> {
        self.is_requested = on;
        self.update(socket, interface)
    }

    /// Passes up frames to all stations while the host has given the interface another address than the link's, `own`.
    ///
    /// # Errors
    /// As [`set_promiscuous`](Self::set_promiscuous).
    pub(crate) fn follow_address(
        &mut self,
        socket: BorrowedFd<'_>,
        interface: &Interface,
        own: MacAddr,
    ) -> io::Result<()> {
        let mac = interface.mac().map_err(|err| failed(interface.name(), "SIOCGIFHWADDR", &err))?;
        self.is_readdressed = mac != Some(own);
        self.update(socket, interface)
    }

    fn update(&mut self, socket: BorrowedFd<'_>, interface: &Interface) -> io::Result<()> {
        let on = self.is_requested || self.is_readdressed;
        if on != self.is_promiscuous {
            set_membership(socket, self.index, libc::PACKET_MR_PROMISC, on)
                .map_err(|err| failed(interface.name(), "PACKET_MR_PROMISC", &err))?;
            self.is_promiscuous = on;
        }
        Ok(())
    }
}

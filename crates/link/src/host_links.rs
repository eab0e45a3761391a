//! What happens to the host's interfaces, which no packet tells.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// `RTMGRP_LINK`.
const LINKS: u32 = 1;

/// Tells when some interface of the host's namespace has changed, so that links are to be [looked at](crate::Link::look).
#[derive(Debug)]
pub struct HostLinks(OwnedFd);

impl HostLinks {
    /// Listens from now on.
    ///
    /// # Errors
    /// The system has no rtnetlink, or no room.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Its protocol 0 is rtnetlink.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
        Ok(Self(socket))
    }

    /// Tells whether something has changed since it was last asked. What and where, the interfaces say.
    pub fn have_changed(&self) -> bool {
        let mut changed = false;
        loop {
            // Of a message that is longer the rest is gone, too.
            match recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS) => changed = true,
                Err(Errno::INTR) => {}
                Err(_) => return changed,
            }
        }
    }
}

impl AsFd for HostLinks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

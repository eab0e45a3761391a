//! Change notifications of the host's interfaces (rtnetlink's `RTMGRP_LINK`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// `RTMGRP_LINK`.
const LINKS: u32 = 1;

/// Socket that reports changes of any interface in the host's namespace, after which the links are
/// [checked](crate::Link::look).
#[derive(Debug)]
pub struct HostLinks(OwnedFd);

impl HostLinks {
    /// Opens the socket.
    ///
    /// # Errors
    /// Errors of the system: no rtnetlink, or no memory.
    pub fn listen() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        // Protocol `None` is 0, rtnetlink.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&socket, &SocketAddrNetlink::new(0, LINKS))?;
        Ok(Self(socket))
    }

    /// Tells whether an interface has changed since the last call. The notifications are discarded.
    pub fn have_changed(&self) -> bool {
        let mut changed = false;
        loop {
            // One byte is enough: the kernel discards the remainder of a longer message.
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

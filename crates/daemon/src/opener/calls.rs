//! Calls about open links, which the opener of links makes for crate [`link`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use wire::MacAddr;

use super::order::{Change, LinkOrder};
use super::request::{change_one, has_opener, one};
use crate::files;

/// Sends the calls to the opener of links, if there is one.
pub(crate) fn begin() {
    if has_opener() {
        link::set_opener(Box::new(Calls));
    }
}

/// Calls about open links.
#[derive(Debug)]
struct Calls;

impl link::Opener for Calls {
    fn set_mtu(&self, index: u32, mtu: u32) -> io::Result<()> {
        change_one(Change::Mtu { index, mtu })
    }

    fn set_mac(&self, index: u32, MacAddr(mac): MacAddr) -> io::Result<()> {
        change_one(Change::Mac { index, mac })
    }

    fn bind(&self, address: SocketAddr, joins: bool) -> io::Result<OwnedFd> {
        let sockets = one(LinkOrder::Bind { address, joins }, &[])?;
        sockets.into_iter().next().ok_or_else(|| io::Error::other("the opener of links: the socket is missing"))
    }

    fn widen(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        one(LinkOrder::Widen, &[socket.as_fd()]).map(drop)
    }

    fn listen(&self, path: &Path) -> io::Result<(OwnedFd, (u64, u64))> {
        files::listen_for_guest(path)
    }

    fn adopt(&self, path: &Path) -> io::Result<(u64, u64)> {
        files::adopt_of_guest(path)
    }

    fn connect(&self, path: &Path) -> io::Result<OwnedFd> {
        files::connect(path)
    }

    fn remove(&self, path: &Path, file: (u64, u64)) -> io::Result<()> {
        files::remove_of_guest(path, file)
    }
}

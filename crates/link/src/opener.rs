//! Calls about open links that take rights, made by another process.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use wire::MacAddr;

/// The process that has the capabilities of this one's links. Its answers take less than a millisecond.
pub trait Opener: Send + Sync {
    /// Sets the MTU of the TUN or TAP device with this interface index.
    ///
    /// # Errors
    /// The process or the system refuses.
    fn set_mtu(&self, index: u32, mtu: u32) -> io::Result<()>;

    /// Sets the address of the Ethernet interface with this index.
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu).
    fn set_mac(&self, index: u32, mac: MacAddr) -> io::Result<()>;

    /// Makes a UDP socket at another port of a link's address, as [`bind_port`](crate::bind_port).
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu).
    fn bind(&self, address: SocketAddr, joins: bool) -> io::Result<OwnedFd>;

    /// Sets the buffers of a UDP socket to the size of a link's, as [`widen`](crate::widen).
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu).
    fn widen(&self, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Makes a guest's socket, in place of one without a listener. Returns also the device and inode of its file.
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu); `AddrInUse`: a program listens there, or another kind of file is there.
    fn listen(&self, path: &Path) -> io::Result<(OwnedFd, (u64, u64))>;

    /// Takes on a guest's socket that another process has made. Returns the device and inode of its file.
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu); `ENOENT`, `ENOTSOCK`: there is none.
    fn adopt(&self, path: &Path) -> io::Result<(u64, u64)>;

    /// Connects to the socket of a guest's back end.
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu).
    fn connect(&self, path: &Path) -> io::Result<OwnedFd>;

    /// Removes the file of a guest's socket, if it is the one with this device and inode, and no program listens there.
    ///
    /// # Errors
    /// As [`set_mtu`](Self::set_mtu).
    fn remove(&self, path: &Path, file: (u64, u64)) -> io::Result<()>;
}

/// The opener of this process.
static OPENER: OnceLock<Box<dyn Opener>> = OnceLock::new();

/// Sets the opener of this process's links, once. Without one this process makes the calls itself.
pub fn set_opener(opener: Box<dyn Opener>) {
    // A process has one opener.
    let _ = OPENER.set(opener);
}

/// The opener of this process, if it has one.
pub(crate) fn opener() -> Option<&'static dyn Opener> {
    OPENER.get().map(|opener| &**opener)
}

//! Unix sockets of the gateway: their files, and detection of closed peers.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::net::{RecvFlags, recv};

/// Interval at which an idle stream checks whether its reader is still connected.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Removes a stale socket file.
///
/// # Errors
/// Error of unlink(2), unless the file does not exist.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => Err(err),
        _ => Ok(()),
    }
}

/// Calls `make` to create a file that only this user can use, from the moment it exists.
pub(crate) fn private<T>(make: impl FnOnce() -> T) -> T {
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let made = make();
    rustix::process::umask(before);
    made
}

/// Tells whether the peer has closed.
pub(crate) fn is_gone(stream: &UnixStream) -> bool {
    let mut byte = [0_u8; 1];
    match recv(stream, byte.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        Ok(_) => false,
        Err(err) => err != rustix::io::Errno::AGAIN,
    }
}

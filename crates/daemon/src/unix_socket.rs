//! Detection of closed peers of the gateway's Unix sockets.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

/// Interval at which an idle stream checks whether its reader is still connected.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Tells whether the peer has closed.
pub(crate) fn is_gone(stream: &UnixStream) -> bool {
    let mut byte = [0_u8; 1];
    match recv(stream, byte.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => true,
        Ok(_) => false,
        Err(err) => err != rustix::io::Errno::AGAIN,
    }
}

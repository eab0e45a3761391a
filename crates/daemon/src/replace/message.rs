//! Messages of a hand-over: a JSON value in each packet of a socket pair, with descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use client::passing;
use serde::{Deserialize, Serialize};

use super::held::Socket;

/// Number of the format of these messages, and of the memory with the SAs.
pub(super) const FORMAT: u32 = 1;

/// The longest message in bytes.
const MAX_LEN: usize = 16 << 10;

/// A message.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) enum Message {
    /// From the gateway before: a link, with its next descriptors.
    Link {
        name: String,
        /// Settings of the link, in words that are compared alone.
        settings: String,
        /// Resource that at most one link has, in words that are compared alone.
        resource: String,
        mtu: usize,
        /// Link-layer address, of a bridge or a guest's port.
        #[serde(default)]
        station: Option<[u8; 6]>,
        /// Whether another message has further descriptors of the link.
        has_more: bool,
    },
    /// From the gateway before: a socket.
    Socket(Socket),
    /// From the gateway before: all links and sockets are passed.
    Passed,
    /// From the next gateway: hand over. Without a host side in its configuration, the present one is to be ended.
    TakeOver { has_host_side: bool },
    /// From the gateway before, which has stopped: the next descriptors of guests' connections. The first of all is their table.
    Guests,
    /// From the gateway before: it goes on, for this reason.
    GoesOn(String),
    /// From the gateway before: it has stopped, at this time since the boot of the machine, in nanoseconds. With a descriptor, this is the
    /// memory with its SAs.
    Stopped { at: u64 },
}

/// Sends a message.
///
/// # Errors
/// Errors of sendmsg(2).
pub(super) fn send(socket: impl AsFd, message: &Message, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    passing::send(socket, &serde_json::to_vec(message)?, descriptors)
}

/// Receives a message; `None` when the other end is closed.
///
/// # Errors
/// Errors of recvmsg(2), and of a malformed message.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
    let mut buffer = vec![0; MAX_LEN];
    let (len, descriptors) = passing::receive(socket, &mut buffer)?;
    if len == 0 {
        return Ok(None);
    }
    Ok(Some((serde_json::from_slice(&buffer[..len])?, descriptors)))
}

//! Sending on a connection: a word ([`nlsock::ToDaemon::Data`]), then netlink messages.

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, sockaddr_nl, ssize_t};
use nlsock::{MAX_DATA, ToDaemon};

use crate::connection::{refused, wait_for_room};
use crate::deferred_setup::Calls;
use crate::errno::{Errno, checked};
use crate::libc_next;
use crate::program_memory::{Bytes, Pieces};
use crate::session::{autobind, claim};
use crate::table::{SentRequest, Slot};

/// Sends the contents of `pieces` to the port in `to`.
///
/// # Errors
/// As `netlink_sendmsg` of Linux.
pub(crate) fn send(
    fd: c_int,
    slot: &Slot,
    pieces: &[Bytes<'_>],
    to: Bytes<'_>,
    flags: c_int,
) -> Result<ssize_t, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let port = if to.is_null() || to.len() == 0 { slot.peer.load(Relaxed) } else { address(to)?.nl_pid };
    let len = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len()));
    let request = || header(pieces).and_then(|it| SentRequest::parse(it, len, slot.protocol.load(Relaxed)));
    if slot.is_gone.load(Relaxed) {
        // Counted as a request, for a program that does not poll and blocks for the reply, such as BIRD.
        slot.count_request(request());
        return Err(Errno(libc::ECONNREFUSED));
    }
    autobind(slot);
    match (len, port) {
        (0, _) => return Err(Errno(libc::ENODATA)),
        (len, _) if len > MAX_DATA => return Err(Errno(libc::EMSGSIZE)),
        // Only the gateway can be reached; its port is 0, like the kernel's.
        (_, 1..) => return Err(Errno(libc::ECONNREFUSED)),
        _ => {}
    }
    claim(fd, slot);
    let mut calls = Calls::deferred(slot);
    calls.push(ToDaemon::Data(&[]));
    let mut all = Pieces::new();
    let message = all.message(calls.as_bytes().into(), pieces)?;
    loop {
        // SAFETY: the message's type has what the manual page requires.
        let sent = unsafe { libc_next::sendmsg(fd, (&message).into(), flags | libc::MSG_NOSIGNAL) };
        match checked(sent).map_err(refused) {
            // A kernel always accepts a request at once, so the call waits until the gateway does.
            Err(Errno(libc::EAGAIN)) => wait_for_room(fd),
            sent => {
                let sent = sent?.saturating_sub(calls.as_bytes().len() as ssize_t);
                calls.mark_sent(slot);
                slot.count_request(request());
                return Ok(sent);
            }
        }
    }
}

/// Header of the first message in `pieces`.
fn header(pieces: &[Bytes<'_>]) -> Option<[u8; SentRequest::HEADER]> {
    let mut header = [0; SentRequest::HEADER];
    let mut len = 0;
    for piece in pieces {
        len += piece.copy_to(&mut header[len..]);
    }
    (len == header.len()).then_some(header)
}

/// Parses a netlink address.
///
/// # Errors
/// `EINVAL`: the address is no netlink address.
pub(crate) fn address(address: Bytes<'_>) -> Result<sockaddr_nl, Errno> {
    let is_netlink = |address: &sockaddr_nl| c_int::from(address.nl_family) == libc::AF_NETLINK;
    address.read().filter(is_netlink).ok_or(Errno(libc::EINVAL))
}

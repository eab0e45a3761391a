//! Sending on a connection: a word ([`nlsock::ToDaemon::Data`]), then netlink messages.

use std::mem::{self, MaybeUninit};
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, iovec, msghdr, sockaddr, sockaddr_nl, socklen_t, ssize_t};
use nlsock::{MAX_DATA, ToDaemon};

use crate::connection::{refused, wait_for_room};
use crate::deferred_setup::Calls;
use crate::errno::{Errno, checked};
use crate::libc_next;
use crate::session::{autobind, claim};
use crate::table::{SentRequest, Slot};

/// Maximum number of buffers of a message (`IOV_MAX`); one is used for the head.
const MAX_PIECES: usize = 1024;

/// Array for a head's buffer and further buffers. It is not moved once built, as most of it stays uninitialized.
pub(crate) struct Pieces([MaybeUninit<iovec>; MAX_PIECES]);

impl Pieces {
    /// Empty array.
    #[inline(always)]
    pub(crate) const fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_PIECES])
    }

    /// Message of the buffers `first` and then `pieces`. It points into this value.
    ///
    /// # Errors
    /// `EMSGSIZE`: too many buffers.
    pub(crate) fn message(&mut self, first: iovec, pieces: &[iovec]) -> Result<msghdr, Errno> {
        let room = self.0.get_mut(..1 + pieces.len()).ok_or(Errno(libc::EMSGSIZE))?;
        for (to, piece) in room.iter_mut().zip(std::iter::once(&first).chain(pieces)) {
            to.write(*piece);
        }
        // SAFETY: an empty message is all zeros.
        let mut message: msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (room.as_mut_ptr().cast(), room.len());
        Ok(message)
    }
}

/// Sends the contents of `pieces` to the port in `to`.
///
/// # Errors
/// As `netlink_sendmsg` of Linux.
///
/// # Safety
/// `pieces` point to readable buffers, and `to`, if not null, to `to_len` readable bytes.
pub(crate) unsafe fn send(
    fd: c_int,
    slot: &Slot,
    pieces: &[iovec],
    to: *const sockaddr,
    to_len: socklen_t,
    flags: c_int,
) -> Result<ssize_t, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    let port = if to.is_null() || to_len == 0 {
        slot.peer.load(Relaxed)
    } else {
        // SAFETY: as the caller promises.
        unsafe { address(to, to_len) }?.nl_pid
    };
    let len = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.iov_len));
    // SAFETY: as the caller promises.
    let request = || unsafe { header(pieces) }.and_then(|it| SentRequest::parse(it, len, slot.protocol.load(Relaxed)));
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
    let (front, mut all) = (calls.as_bytes(), Pieces::new());
    let front = iovec { iov_base: front.as_ptr().cast_mut().cast(), iov_len: front.len() };
    let message = all.message(front, pieces)?;
    loop {
        // SAFETY: the calls are in this frame, and the pieces are the caller's.
        let sent = unsafe { libc_next::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
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
///
/// # Safety
/// `pieces` point to readable buffers.
unsafe fn header(pieces: &[iovec]) -> Option<[u8; SentRequest::HEADER]> {
    let mut header = [0; SentRequest::HEADER];
    let mut room = header.as_mut_slice();
    for piece in pieces {
        let len = piece.iov_len.min(room.len());
        if len > 0 && !piece.iov_base.is_null() {
            let (to, rest) = mem::take(&mut room).split_at_mut(len);
            // SAFETY: as the caller promises.
            to.copy_from_slice(unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), len) });
            room = rest;
        }
    }
    room.is_empty().then_some(header)
}

/// Parses a netlink address.
///
/// # Errors
/// `EINVAL`: the address is no netlink address.
///
/// # Safety
/// `address` points to `len` readable bytes.
pub(crate) unsafe fn address(address: *const sockaddr, len: socklen_t) -> Result<sockaddr_nl, Errno> {
    if address.is_null() || (len as usize) < mem::size_of::<sockaddr_nl>() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the buffer is long enough, and any bytes are valid.
    let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
    if c_int::from(address.nl_family) == libc::AF_NETLINK { Ok(address) } else { Err(Errno(libc::EINVAL)) }
}

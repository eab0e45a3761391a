//! Receiving on a connection: the word in front of a datagram is converted to the source address.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::{mem, slice};

use libc::{c_int, cmsghdr, sockaddr_nl, ssize_t, ucred};
use nlsock::{BusyPoll, FromDaemon, WORD, option};

use crate::calls::options::PASSCRED;
use crate::deferred_setup;
use crate::errno::{Errno, checked};
use crate::libc_next;
use crate::plain::{Plain, zeroed};
use crate::program_memory::{Message, Pieces, Room};
use crate::reconnect;
use crate::session::{send_deferred, settle};
use crate::switches::is_on;
use crate::sys;
use crate::table::Slot;

/// Maximum length of a part of a dump: longer buffers are not reported to the gateway.
const MAX_PART: usize = 32 << 10;

/// Whether the gateway's last word announced a prompt reply ([`nlsock::PROMPT`]).
static PROMPT: AtomicBool = AtomicBool::new(false);
static BUSY_POLL: BusyPoll = BusyPoll::new();

/// Received datagram.
#[derive(Debug)]
pub(crate) struct Received {
    /// Return value of the call.
    pub(crate) len: ssize_t,
    /// `MSG_TRUNC`, if the datagram is longer than the buffer.
    pub(crate) flags: c_int,
    /// Multicast group of the datagram, or 0.
    pub(crate) group: u32,
}

/// Receives a datagram into `pieces`.
///
/// # Errors
/// As `recvmsg(2)`; `ECONNRESET` if the gateway is gone and the socket was not kept.
pub(crate) fn receive(fd: c_int, slot: &Slot, pieces: &[Room<'_>], flags: c_int) -> Result<Received, Errno> {
    if flags & libc::MSG_OOB != 0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    offer(slot, pieces);
    report_longer_buffer(fd, slot);
    let mut word = [0; WORD];
    let mut all = Pieces::new();
    let mut message = all.message(word.as_mut_slice().into(), pieces)?;
    // SAFETY: the message's type has what the manual page requires.
    let mut attempt = |flags| checked(unsafe { libc_next::recvmsg(fd, (&mut message).into(), flags) });
    let expects_reply = slot.expects_reply.swap(false, Relaxed);
    let soon = expects_reply && flags & libc::MSG_DONTWAIT == 0 && PROMPT.load(Relaxed) && BUSY_POLL.should_poll();
    let connection = slot.connection();
    let mut found = soon.then(|| BUSY_POLL.poll(|| attempt(flags | libc::MSG_DONTWAIT).ok())).flatten();
    if found.is_none() && slot.is_to_be_kept() {
        found = attempt(flags | libc::MSG_DONTWAIT).ok();
        if found.is_none() {
            reconnect::keep(fd, slot);
        }
    }
    let len = match found.map_or_else(|| attempt(flags), Ok) {
        // A kernel would have queued its reply before `send` returned, so a non-blocking program expects it here.
        Err(Errno(libc::EAGAIN)) if slot.is_answer_due.swap(false, Relaxed) => {
            settle(fd, slot);
            attempt(flags | libc::MSG_DONTWAIT)
        }
        received => received,
    };
    // `None` if the connection was closed meanwhile, and the slot reused.
    let slot_of_it = Some(slot).filter(|slot| slot.connection() == connection);
    let len = len?;
    if len == 0 {
        return Err(Errno(libc::ECONNRESET));
    }
    let truncated = message.flags() & libc::MSG_TRUNC;
    let from = FromDaemon::from_word(word);
    PROMPT.store(matches!(from, FromDaemon::Answer { prompt: true, .. }), Relaxed);
    if let Some(slot) = slot_of_it {
        let goes_on = from == FromDaemon::Part { last: false };
        slot.dumping.store(goes_on, Relaxed);
        if goes_on {
            slot.is_answer_due.store(true, Relaxed);
        }
        match from {
            FromDaemon::Overrun => slot.note_loss_reported(),
            FromDaemon::Answer { last: true, .. } | FromDaemon::Part { last: true } if flags & libc::MSG_PEEK == 0 => {
                slot.count_last_answer();
            }
            _ => {}
        }
    }
    let group = match from {
        FromDaemon::Answer { .. } => 0,
        FromDaemon::Part { .. } => {
            slot_of_it.into_iter().for_each(|slot| report_longer_buffer(fd, slot));
            0
        }
        FromDaemon::Group(group) => group,
        FromDaemon::Overrun => {
            if flags & libc::MSG_PEEK != 0 {
                take_one(fd);
            }
            return Err(Errno(libc::ENOBUFS));
        }
    };
    Ok(Received { len: len.saturating_sub(WORD as ssize_t), flags: truncated, group })
}

/// Records the buffer's length, if it is the largest so far.
fn offer(slot: &Slot, pieces: &[Room<'_>]) {
    let len = pieces.iter().fold(0_usize, |sum, piece| sum.saturating_add(piece.len())).min(MAX_PART) as u32;
    if len > slot.recv_len.load(Relaxed) && len > slot.recv_len.fetch_max(len, Relaxed) {
        deferred_setup::defer(slot, deferred_setup::LEN);
    }
}

/// Reports a longer buffer to the gateway during a dump, so that the next part may be longer.
fn report_longer_buffer(fd: c_int, slot: &Slot) {
    if slot.dumping.load(Relaxed) && deferred_setup::is_deferred(slot, deferred_setup::LEN) {
        // If the send fails, the next call reports it.
        let _ = send_deferred(fd, slot);
    }
}

/// Tells whether the next datagram is data, not an error. Blocks unless `flags` include `MSG_DONTWAIT`.
pub(crate) fn is_received_next(fd: c_int, flags: c_int) -> bool {
    let mut word = [0; WORD];
    // SAFETY: the buffer has space for a word.
    let len = unsafe { libc_next::recv(fd, word.as_mut_ptr().cast(), WORD, flags | libc::MSG_PEEK) };
    len == WORD as ssize_t && FromDaemon::from_word(word) != FromDaemon::Overrun
}

/// Removes a datagram after a peek.
fn take_one(fd: c_int) {
    // The next call to receive reports an error.
    let _ = sys::receive(fd, &mut [], libc::MSG_DONTWAIT);
}

/// Netlink address.
pub(crate) fn netlink_address(port: u32, groups: u32) -> sockaddr_nl {
    let mut address: sockaddr_nl = zeroed();
    address.nl_family = libc::AF_NETLINK as u16;
    (address.nl_pid, address.nl_groups) = (port, groups);
    address
}

/// Source address of a datagram to `group`.
pub(crate) fn source(group: u32) -> sockaddr_nl {
    netlink_address(0, group.checked_sub(1).and_then(|bit| 1_u32.checked_shl(bit)).unwrap_or(0))
}

/// `recvmsg(2)`.
///
/// # Errors
/// As [`receive`].
pub(crate) fn receive_message(
    fd: c_int,
    slot: &Slot,
    message: &mut Message<Room<'_>>,
    flags: c_int,
) -> Result<ssize_t, Errno> {
    let received = receive(fd, slot, message.pieces()?, flags)?;
    message.put_name(&source(received.group));
    let mut control = ControlMessages { room: message.control(), used: 0, flags: received.flags };
    if is_on(slot, PASSCRED) {
        // The credentials of the kernel.
        control.put(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &zeroed::<ucred>());
    }
    if is_on(slot, option::PKTINFO) {
        control.put(libc::SOL_NETLINK, option::PKTINFO as c_int, &received.group);
    }
    message.set_flags(control.flags);
    message.set_control_len(control.used);
    Ok(received.len)
}

/// Control messages of a received message.
struct ControlMessages<'a> {
    room: Room<'a>,
    used: usize,
    /// Flags of the message.
    flags: c_int,
}

impl ControlMessages<'_> {
    /// Adds a control message, or sets `MSG_CTRUNC` if the buffer is too small.
    fn put<T: Plain>(&mut self, level: c_int, kind: c_int, value: &T) {
        let header = mem::size_of::<cmsghdr>();
        let len = header + mem::size_of::<T>();
        if len > self.room.len() {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        self.room.write(&[cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind }]);
        self.room.skip(header).write(slice::from_ref(value));
        let space = len.next_multiple_of(mem::align_of::<cmsghdr>()).min(self.room.len());
        self.used += space;
        self.room = self.room.skip(space);
    }
}

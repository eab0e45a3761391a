//! Connection for look-ups that a program keeps when it shuts itself in: after `chroot(2)` the path of the gateway's
//! socket leads nowhere, and a seccomp filter of the program's own may refuse, or punish, `socket(2)`.
//!
//! The connection is made before, and then used by `sendmsg(2)` and `recvmsg(2)` alone. The program may close its
//! descriptor, like any that it did not open, and another file may get the number. So the last message in the receive
//! queue is always a mark, the acknowledgement of a request without effect: before each use the queue has to begin with
//! it, and after each use another one is requested.

use std::mem;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::sync::{Mutex, Once};

use libc::c_int;
use nlsock::{ToDaemon, WORD, protocol};

use crate::connection::refused;
use crate::errno::Errno;
use crate::fd::{Fd, out_of_the_way};
use crate::table::{self, Slot};
use crate::{gateway, reconnect, session, sys};

/// Longest wait for an answer, in seconds: the gateway may hang.
const PATIENCE: i64 = 5;

/// Length of a mark: the word, the header of a message, an error, and the header of the request.
const MARK: usize = WORD + 16 + 4 + 16;
/// `NLMSG_NOOP`, `NLMSG_ERROR`; `NLM_F_REQUEST` and `NLM_F_ACK`.
const NOOP: u16 = 1;
const ERROR: u16 = 2;
const REQUEST_ACK: u16 = 5;

/// The connection; null before the first one. A child of `fork` gets another place, since the parent's may be locked.
static PLACE: AtomicPtr<Mutex<Option<Kept>>> = AtomicPtr::new(ptr::null_mut());
/// Descriptor and inode number of the last connection, for a child of `fork`.
static FD: AtomicI32 = AtomicI32::new(-1);
static INODE: AtomicU64 = AtomicU64::new(0);
/// Whether the program has set a seccomp filter.
static IS_CONFINED: AtomicBool = AtomicBool::new(false);

/// A connection with a mark in its receive queue.
struct Kept {
    fd: Fd,
    mark: u32,
    slot: &'static Slot,
    /// [`Slot::connection`] of the slot.
    connection: u64,
}

/// Failure of an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Failure {
    /// The gateway's answer is an error; the connection can be used further.
    Answer(Errno),
    /// The connection cannot be used any more.
    Connection(Errno),
}

impl From<Failure> for Errno {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Answer(errno) | Failure::Connection(errno) => errno,
        }
    }
}

/// Tells whether the program has set a seccomp filter, which may refuse any system call.
pub(crate) fn is_confined() -> bool {
    IS_CONFINED.load(Relaxed)
}

/// Makes the connection, before the program shuts itself in; `by_filter`: by a seccomp filter. Without a gateway there
/// is none.
pub(crate) fn make(by_filter: bool) {
    if gateway::address().is_none() {
        return;
    }
    let before = Errno::last();
    if let Ok(mut place) = place().lock() {
        if !is_confined() && !place.as_ref().is_some_and(Kept::begins_with_mark) {
            // A descriptor without the mark is the program's.
            mem::forget(place.take());
            *place = Kept::new().ok();
        }
        if by_filter {
            // A restart of the gateway must not end the connection, for which there would be no other.
            place.iter().for_each(|kept| reconnect::keep(kept.fd.0, kept.slot));
            IS_CONFINED.store(true, Relaxed);
        }
    }
    before.set();
}

/// Calls `exchange` with the connection. `None`: there is none.
pub(crate) fn with<T>(exchange: impl FnOnce(&Fd) -> Result<T, Failure>) -> Option<Result<T, Failure>> {
    let mut place = made()?.lock().ok()?;
    let kept = place.take()?;
    if kept.is_without_gateway() {
        *place = Some(kept);
        return Some(Err(Failure::Connection(Errno(libc::ECONNREFUSED))));
    }
    if !kept.begins_with_mark() {
        // The descriptor is the program's.
        mem::forget(kept);
        return None;
    }
    let done = kept.take_mark().map_err(Failure::Connection).and_then(|()| exchange(&kept.fd));
    if !matches!(done, Err(Failure::Connection(_))) {
        *place = kept.marked().ok();
    }
    Some(done)
}

fn place() -> &'static Mutex<Option<Kept>> {
    static IS_REGISTERED: Once = Once::new();
    IS_REGISTERED.call_once(|| sys::at_fork(forked));
    if let Some(place) = made() {
        return place;
    }
    let new = Box::into_raw(Box::new(Mutex::new(None)));
    if PLACE.compare_exchange(ptr::null_mut(), new, AcqRel, Acquire).is_err() {
        // SAFETY: the value has no other owner.
        drop(unsafe { Box::from_raw(new) });
    }
    place()
}

/// The place, if there is one yet.
fn made() -> Option<&'static Mutex<Option<Kept>>> {
    // SAFETY: a place is never freed.
    unsafe { PLACE.load(Acquire).as_ref() }
}

/// Handler in a child of `fork`, whose answers would mix with the parent's: the child has no connection.
extern "C" fn forked() {
    PLACE.store(ptr::null_mut(), Release);
    let fd = FD.swap(-1, AcqRel);
    // A filter may refuse the calls. The descriptor is closed on `execve`.
    if fd >= 0 && !is_confined() && table::socket_inode(fd) == Some(INODE.load(Relaxed)) {
        drop(Fd(fd));
    }
}

impl Kept {
    fn new() -> Result<Self, Errno> {
        let fd = out_of_the_way(session::own(protocol::ROUTE)?);
        let limit = libc::timeval { tv_sec: PATIENCE, tv_usec: 0 };
        sys::set_option(fd.0, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &[limit])?;
        let slot = table::enter(fd.0, protocol::ROUTE, libc::SOCK_RAW as u32, 0)?;
        INODE.store(slot.inode(), Relaxed);
        FD.store(fd.0, Release);
        Self { fd, mark: 0, slot, connection: slot.connection() }.marked()
    }

    /// Tells whether the keeper waits for the next gateway.
    fn is_without_gateway(&self) -> bool {
        self.slot.connection() == self.connection && self.slot.is_gone.load(Relaxed)
    }

    /// Tells whether the descriptor is still the connection: its receive queue begins with the mark.
    fn begins_with_mark(&self) -> bool {
        self.receive(libc::MSG_PEEK | libc::MSG_DONTWAIT).is_ok_and(|is_mark| is_mark)
    }

    fn take_mark(&self) -> Result<(), Errno> {
        self.receive(libc::MSG_DONTWAIT).map(drop)
    }

    /// Requests the next mark, and waits for it.
    fn marked(self) -> Result<Self, Errno> {
        static NEXT: AtomicU32 = AtomicU32::new(0x6d61_726b);
        let marked = Self { mark: NEXT.fetch_add(1, Relaxed), ..self };
        let mut request = ToDaemon::Data(&[]).head().as_bytes().to_vec();
        request.extend(16_u32.to_ne_bytes());
        request.extend(NOOP.to_ne_bytes());
        request.extend(REQUEST_ACK.to_ne_bytes());
        request.extend(marked.mark.to_ne_bytes());
        request.extend([0; 4]);
        send(&marked.fd, &request)?;
        if marked.receive(libc::MSG_PEEK)? { Ok(marked) } else { Err(Errno(libc::EPROTO)) }
    }

    /// Receives a datagram, and tells whether it is the mark.
    fn receive(&self, flags: c_int) -> Result<bool, Errno> {
        let mut bytes = [0; MARK];
        let len = receive(&self.fd, &mut bytes, flags)?;
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Ok(len == MARK && half(WORD + 4) == ERROR && word(WORD + 8) == self.mark && word(WORD + 16) == 0)
    }
}

/// Sends a datagram on one of the library's own connections.
///
/// # Errors
/// `ECONNREFUSED` if the gateway is gone.
pub(crate) fn send(to: &Fd, bytes: &[u8]) -> Result<(), Errno> {
    loop {
        match sys::send_message(to.0, bytes, &[], libc::MSG_NOSIGNAL) {
            Err(Errno(libc::EINTR)) => {}
            sent => return sent.map(drop).map_err(refused),
        }
    }
}

/// Receives a datagram on one of the library's own connections; the length is the buffer's at most.
///
/// # Errors
/// `ECONNREFUSED` if the gateway is gone.
pub(crate) fn receive(from: &Fd, into: &mut [u8], flags: c_int) -> Result<usize, Errno> {
    loop {
        match sys::receive_message(from.0, into, &mut [], flags) {
            Err(Errno(libc::EINTR)) => {}
            Ok(0) => return Err(Errno(libc::ECONNREFUSED)),
            len => return len.map_err(refused),
        }
    }
}

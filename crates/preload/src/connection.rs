//! Connection to the gateway, and calls on it.

use libc::c_int;
use nlsock::Answer;

use crate::errno::{Errno, checked};
use crate::fd::Fd;
use crate::sys::Rights;
use crate::{gateway, libc_next, sys};

/// Connects to the gateway.
///
/// # Errors
/// `ECONNREFUSED` without a gateway.
pub(crate) fn connected(flags: c_int) -> Result<Fd, Errno> {
    let address = gateway::address().ok_or(Errno(libc::ECONNREFUSED))?;
    let fd = unix_socket(libc::SOCK_SEQPACKET | flags)?;
    sys::connect(fd.0, address).map_err(|errno| match errno.0 {
        libc::ENOENT => Errno(libc::ECONNREFUSED),
        _ => errno,
    })?;
    Ok(fd)
}

/// Unix socket of a kind.
///
/// # Errors
/// As `socket(2)`.
pub(crate) fn unix_socket(kind: c_int) -> Result<Fd, Errno> {
    // SAFETY: the call takes no pointers.
    checked(unsafe { libc_next::socket(libc::AF_UNIX, kind, 0) }).map(Fd)
}

/// Sends calls to the gateway, with a descriptor for the answer to the last call.
///
/// # Errors
/// `ECONNREFUSED` if the gateway is gone.
pub(crate) fn send_calls(fd: c_int, bytes: &[u8], answer_to: Option<&Fd>) -> Result<(), Errno> {
    loop {
        match try_send_calls(fd, bytes, answer_to, 0) {
            Err(Errno(libc::EINTR)) => {}
            Err(Errno(libc::EAGAIN)) => wait_for_room(fd),
            outcome => return outcome,
        }
    }
}

/// Same as [`send_calls`], with flags of `sendmsg(2)`, in one attempt.
pub(crate) fn try_send_calls(fd: c_int, bytes: &[u8], answer_to: Option<&Fd>, flags: c_int) -> Result<(), Errno> {
    let rights = answer_to.map(Rights::of);
    sys::send_message(fd, bytes, rights.as_slice(), flags | libc::MSG_NOSIGNAL).map(drop).map_err(refused)
}

/// Sends calls to the gateway and waits for the answer to the last call. `sent` is called after the send.
///
/// # Errors
/// Error in the gateway's answer; `ECONNREFUSED` if the gateway is gone.
pub(crate) fn awaited(fd: c_int, bytes: &[u8], sent: impl FnOnce()) -> Result<Answer, Errno> {
    let [answers, theirs] = sys::pipe()?;
    send_calls(fd, bytes, Some(&theirs))?;
    sent();
    drop(theirs);
    let mut bytes = [0; Answer::LEN];
    loop {
        match sys::read(answers.0, &mut bytes) {
            Err(Errno(libc::EINTR)) => {}
            Ok(Answer::LEN) => break,
            _ => return Err(Errno(libc::ECONNREFUSED)),
        }
    }
    let answer = Answer::from_bytes(bytes);
    if answer.error == 0 { Ok(answer) } else { Err(Errno(answer.error)) }
}

/// Waits until a non-blocking connection accepts data.
pub(crate) fn wait_for_room(fd: c_int) {
    // The next attempt to send reports a failure.
    let _ = sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], None);
}

/// Converts the error of a call without a gateway to Linux's error for a netlink protocol without a listener.
pub(crate) fn refused(errno: Errno) -> Errno {
    match errno.0 {
        libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Errno(libc::ECONNREFUSED),
        _ => errno,
    }
}

//! Connection to the gateway, and calls on it.

use std::mem::{self, MaybeUninit};

use libc::{c_int, c_long, c_void, iovec, sockaddr_un};
use nlsock::Answer;

use crate::errno::{Errno, checked};
use crate::fd::Fd;
use crate::{gateway, libc_next};

/// Connects to the gateway.
///
/// # Errors
/// `ECONNREFUSED` without a gateway.
pub(crate) fn connected(flags: c_int) -> Result<Fd, Errno> {
    let address = gateway::address().ok_or(Errno(libc::ECONNREFUSED))?;
    // SAFETY: the call takes no pointers.
    let fd = Fd(checked(unsafe { libc_next::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | flags, 0) })?);
    let len = mem::size_of::<sockaddr_un>();
    // SAFETY: the address is that long.
    let done = unsafe { libc::syscall(libc::SYS_connect, fd.0, &raw const *address, len) };
    checked(done as c_int).map_err(|errno| match errno.0 {
        libc::ENOENT => Errno(libc::ECONNREFUSED),
        _ => errno,
    })?;
    Ok(fd)
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
    let mut piece = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a message without contents is all zeros.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    let mut rights = MaybeUninit::<Rights>::zeroed();
    if let Some(Fd(answer_to)) = answer_to {
        let header = libc::cmsghdr {
            cmsg_len: mem::size_of::<libc::cmsghdr>() + mem::size_of::<c_int>(),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        rights.write(Rights { header, fd: *answer_to });
        message.msg_control = rights.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of::<Rights>();
    }
    // SAFETY: all buffers of the message are in this frame.
    let sent = unsafe { libc::syscall(libc::SYS_sendmsg, fd, &raw const message, flags | libc::MSG_NOSIGNAL) };
    checked(sent as c_int).map(|_| ()).map_err(refused)
}

/// Sends calls to the gateway and waits for the answer to the last call. `sent` is called after the send.
///
/// # Errors
/// Error in the gateway's answer; `ECONNREFUSED` if the gateway is gone.
pub(crate) fn awaited(fd: c_int, bytes: &[u8], sent: impl FnOnce()) -> Result<Answer, Errno> {
    let mut ends = [0; 2];
    // SAFETY: the buffer has space for two descriptors.
    checked(unsafe { libc::syscall(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC) } as c_int)?;
    let (answers, theirs) = (Fd(ends[0]), Fd(ends[1]));
    send_calls(fd, bytes, Some(&theirs))?;
    sent();
    drop(theirs);
    let mut bytes = [0; Answer::LEN];
    loop {
        // SAFETY: the buffer is that long.
        let read = unsafe { libc::syscall(libc::SYS_read, answers.0, bytes.as_mut_ptr(), bytes.len()) };
        match checked(read as c_int) {
            Err(Errno(libc::EINTR)) => {}
            Ok(len) if len as usize == Answer::LEN => break,
            _ => return Err(Errno(libc::ECONNREFUSED)),
        }
    }
    let answer = Answer::from_bytes(bytes);
    if answer.error == 0 { Ok(answer) } else { Err(Errno(answer.error)) }
}

/// Waits until a non-blocking connection accepts data.
pub(crate) fn wait_for_room(fd: c_int) {
    let mut poll_fd = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let forever: *const c_void = std::ptr::null();
    let none: c_long = 0;
    // SAFETY: one entry is passed and its count is one. The next attempt to send reports a failure.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll_fd, 1, forever, forever, none) };
}

/// Converts the error of a call without a gateway to Linux's error for a netlink protocol without a listener.
pub(crate) fn refused(errno: Errno) -> Errno {
    match errno.0 {
        libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN => Errno(libc::ECONNREFUSED),
        _ => errno,
    }
}

/// Control message with one descriptor.
#[repr(C)]
pub(crate) struct Rights {
    pub(crate) header: libc::cmsghdr,
    pub(crate) fd: c_int,
}

//! Datagrams of a connection to a program, with the descriptors that they may carry.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use link::Discard;
use nlsock::Answer;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketType, recv,
    recvmsg, shutdown, sockopt,
};

/// Error: the connection is to be closed.
#[derive(Debug)]
pub(in super::super) struct Gone;

/// A received datagram.
#[derive(Debug)]
pub(in super::super) struct Received {
    pub(in super::super) len: usize,
    /// Process ID of the sender.
    pub(in super::super) sender: Option<u32>,
    /// Pipe that the sender passed for the reply.
    pub(in super::super) answer: Option<OwnedFd>,
}

/// Receives one datagram. `None`: there is none. `untrusted` closes the descriptors of a client that may not change the
/// node.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    untrusted: Option<&Discard>,
    buffer: &mut [u8],
) -> Result<Option<Received>, Gone> {
    if untrusted.is_some() && !has_datagram_to_take(fd)? {
        return Ok(None);
    }
    let mut space = control_space();
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(fd, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(_) => return Err(Gone),
    };
    let (sender, mut rights) = sender_and_rights(&mut control);
    if received.flags.contains(ReturnFlags::CTRUNC) || !may_be_sent(&rights) {
        if let Some(discard) = untrusted {
            rights.into_iter().for_each(|right| discard.close(right));
        }
        return Err(Gone);
    }
    let answer = rights.pop();
    // Every datagram carries a descriptor or bytes: this is the end of the stream.
    if received.bytes == 0 && answer.is_none() {
        return Err(Gone);
    }
    Ok(Some(Received { len: received.bytes, sender, answer }))
}

/// Tells whether a datagram can be received. A datagram with other descriptors than [allowed](may_be_sent) is left
/// in the socket, and the connection is to be closed: the kernel would close descriptors that it does not pass on,
/// and the sender decides how long that takes.
fn has_datagram_to_take(fd: BorrowedFd<'_>) -> Result<bool, Gone> {
    let mut space = control_space();
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
    match recvmsg(fd, &mut [], &mut control, flags) {
        Ok(looked) => {
            // The descriptors are duplicates, whose close is never the last one.
            let (_, rights) = sender_and_rights(&mut control);
            let is_truncated = looked.flags.contains(ReturnFlags::CTRUNC);
            if is_truncated || !may_be_sent(&rights) { Err(Gone) } else { Ok(true) }
        }
        // A later datagram needs the same check first.
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(_) => Err(Gone),
    }
}

/// Room for the credentials of a datagram's sender and for one descriptor. Padding leaves room for a second one.
const fn control_space() -> [MaybeUninit<u8>; CONTROL_LEN] {
    [MaybeUninit::uninit(); CONTROL_LEN]
}

const CONTROL_LEN: usize = rustix::cmsg_space!(ScmRights(1), ScmCredentials(1));

/// The process that sent a datagram, and the passed descriptors.
fn sender_and_rights(control: &mut RecvAncillaryBuffer<'_>) -> (Option<u32>, Vec<OwnedFd>) {
    let (mut sender, mut rights) = (None, Vec::new());
    for message in control.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(fds) => rights.extend(fds),
            RecvAncillaryMessage::ScmCredentials(by) => sender = Some(by.pid.as_raw_nonzero().get().unsigned_abs()),
            _ => {}
        }
    }
    (sender, rights)
}

/// Shuts a connection down, and returns whether it holds unread datagrams with descriptors, which its close would
/// close.
pub(super) fn has_unread_rights(fd: &OwnedFd) -> bool {
    // Nothing more arrives, and the peer sees the end of the connection.
    let _ = shutdown(fd, Shutdown::Both);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recvmsg(fd, &mut [], &mut control, flags) {
            // The descriptors did not fit.
            Ok(looked) if looked.flags.contains(ReturnFlags::CTRUNC) => return true,
            Err(Errno::INTR) => continue,
            Ok(_) if control.drain().next().is_some() => {}
            // Every datagram carries its sender's credentials: the queue is empty.
            Ok(_) | Err(_) => return false,
        }
        let _ = recv(fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }
}

/// Inode number of a Unix socket of type seqpacket; `None` for any other descriptor.
pub(in super::super) fn inode_of_socket(fd: BorrowedFd<'_>) -> Option<u64> {
    let is_unix = sockopt::socket_domain(fd).ok()? == AddressFamily::UNIX;
    let is_right = is_unix && sockopt::socket_type(fd).ok()? == SocketType::SEQPACKET;
    is_right.then(|| rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)).flatten()
}

/// Tells whether a datagram may carry these descriptors: none, one pipe for an answer, or one Unix socket.
fn may_be_sent(rights: &[OwnedFd]) -> bool {
    rights.len() <= 1 && rights.iter().all(|fd| is_pipe(fd) || inode_of_socket(fd.as_fd()).is_some())
}

/// Tells whether a descriptor is a pipe. The check is safe for any descriptor; other file types might block even on a
/// query of their type.
pub(super) fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::pipe::fcntl_getpipe_size(fd).is_ok()
}

/// Writes the answer of a call to its pipe.
pub(super) fn write_answer(fd: &OwnedFd, answer: Answer) {
    if rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).is_ok() {
        // A client that does not read the answer does not need it.
        let _ = rustix::io::write(fd, &answer.to_bytes());
    }
}

//! Messages between processes with descriptors (`SCM_RIGHTS`, unix(7)).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Maximum number of descriptors in a message.
pub const MAX_DESCRIPTORS: usize = 8;

/// Sends `bytes` with descriptors in one message.
///
/// # Errors
/// Errors of sendmsg(2); `InvalidInput` for too many descriptors.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_with(socket, bytes, descriptors, SendFlags::empty())
}

/// As [`send`], with flags of sendmsg(2).
///
/// # Errors
/// As [`send`].
pub fn send_with(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up, and may suffice for one more.
    let has_room = descriptors.len() <= MAX_DESCRIPTORS;
    if !has_room || !(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = rustix::io::retry_on_intr(|| {
        sendmsg(socket.as_fd(), &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL | flags)
    })?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Receives a message into `buffer`; returns its length and its descriptors. The length is 0 if the peer has closed the
/// socket.
///
/// # Errors
/// Errors of recvmsg(2); `InvalidData` if the message or its descriptors do not fit.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        recvmsg(socket.as_fd(), &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    let descriptors: Vec<OwnedFd> = rights.flatten().collect();
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn message_with_descriptors_arrives_whole_or_not_at_all() {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&ours, b"two", &[file.as_fd(), file.as_fd()]).unwrap();
        let mut buffer = [0; 4];
        let (len, descriptors) = receive(&theirs, &mut buffer).unwrap();
        assert_eq!((&buffer[..len], descriptors.len()), (&b"two"[..], 2));
        send(&ours, b"long one", &[]).unwrap();
        assert_eq!(receive(&theirs, &mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(send(&ours, b"", &[file.as_fd(); 9]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

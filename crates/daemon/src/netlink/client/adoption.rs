//! Adoption of sockets that an earlier gateway served.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nlsock::ToDaemon;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::datagram::inode_of_socket;
use super::{Client, Gone, Rights};

impl Client {
    /// A socket that an earlier gateway served, with the rights of this connection. `fd`: the gateway's end of the
    /// socket, with that inode number.
    pub(in super::super) fn adopt(&self, fd: OwnedFd, inode: u64) -> Self {
        let claimant = self.claimant.clone();
        let rights = Rights { privileged: self.privileged, claimant, user: self.uid, process: self.pid };
        let mut adopted = Self::with_rights(fd, rights, self.discard.clone(), Arc::clone(&self.epoll));
        adopted.kept = Some(inode);
        // Messages in the socket may predate the [claim](Self::claim).
        adopted.privileged &= adopted.claimant.is_none() || adopted.is_drained();
        adopted
    }

    /// Restores the state of an adopted socket from these calls. Refused calls are skipped: the program may have lost
    /// rights.
    pub(in super::super) fn restore(&mut self, state: &[u8]) -> Result<(), Gone> {
        for call in ToDaemon::calls(state) {
            let outcome = match call.ok_or(Gone)? {
                ToDaemon::Bind { .. } => return Err(Gone),
                call => self.call(call, |_, _| Err(nlsock::errno::EINVAL))?,
            };
            if let Err(errno) = outcome {
                tracing::debug!(errno, "netlink: {call:?} of an adopted socket is refused");
            }
        }
        self.protocol().map(|_| ()).ok_or(Gone)
    }

    /// Sends `to` a duplicate of this end of the connection, with `name`.
    pub(super) fn keep(&mut self, to: OwnedFd, name: u64) -> Result<(), Gone> {
        let inode = inode_of_socket(self.fd()).ok_or(Gone)?;
        let end = [self.fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&end));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = sendmsg(&to, &[IoSlice::new(&name.to_ne_bytes())], &mut control, flags);
        if sent.is_ok() {
            self.kept = Some(inode);
        }
        self.close_later([to]);
        Ok(())
    }
}

//! Accepts connections, also while the process has no free descriptors.
//!
//! Without a free descriptor accept(2) fails with `EMFILE`, and the connection stays at the front of the listening
//! socket's queue: clients behind it, root's too, would wait. So the acceptor holds a few descriptors in reserve. For
//! each connection accepted in that state it closes one of them; it closes the connection at once unless the peer is
//! privileged.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketFlags, accept_with};

/// Size of the reserve: descriptors for eight connections and one credential check.
const RESERVE: usize = 8 + JUDGEMENT;

/// Descriptors that a credential check of a peer has open at a time: a pidfd, a directory and a file.
const JUDGEMENT: usize = 3;

/// Whether the next gateway accepts the connections of this process's sockets.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Pause of a thread with a connection that it does not accept, as the process ends.
const PAUSE: Duration = Duration::from_millis(100);

/// Leaves all further connections to the next gateway, which has the same sockets.
pub(super) fn leave() {
    IS_OVER.store(true, Ordering::Relaxed);
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Acceptor {
    socket: OwnedFd,
    /// Name of the socket in the log.
    name: &'static str,
    /// Duplicates of the socket, each of which can be closed to free a descriptor.
    reserve: Vec<OwnedFd>,
    /// Whether the log already contains the warning that the descriptor table is full.
    is_full: bool,
}

/// A connection that was accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) fd: OwnedFd,
    /// Whether the connection uses a descriptor of the reserve, which is for privileged peers.
    pub(super) is_reserved: bool,
}

impl Acceptor {
    /// Acceptor of `socket`, with `name` for the log.
    pub(super) fn new(socket: OwnedFd, name: &'static str) -> Self {
        let mut acceptor = Self { socket, name, reserve: Vec::new(), is_full: false };
        acceptor.refill();
        acceptor
    }

    /// Closes as many descriptors of the reserve as the credential check of a peer needs. [`refill`](Self::refill)
    /// opens them again.
    pub(super) fn make_room(&mut self) {
        self.reserve.truncate(self.reserve.len().saturating_sub(JUDGEMENT));
    }

    /// Fills the reserve, as far as descriptors are free.
    pub(super) fn refill(&mut self) {
        while self.reserve.len() < RESERVE {
            match fcntl_dupfd_cloexec(&self.socket, 0) {
                Ok(fd) => self.reserve.push(fd),
                Err(_) => return,
            }
        }
    }

    /// Accepts a connection, with `flags`. `None`: the queue is empty.
    ///
    /// # Errors
    /// Error of accept(2); `EMFILE` or `ENFILE` when the reserve is used up as well.
    pub(super) fn accept(&mut self, flags: SocketFlags) -> Result<Option<Accepted>, Errno> {
        if IS_OVER.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
            return Ok(None);
        }
        self.refill();
        let is_reserved = self.reserve.len() < RESERVE;
        let accepted = match accept_with(&self.socket, flags) {
            Err(err @ (Errno::MFILE | Errno::NFILE)) => {
                if !std::mem::replace(&mut self.is_full, true) {
                    tracing::warn!("{}: {err}: only privileged clients are accepted", self.name);
                }
                let freed = self.reserve.pop();
                drop(freed.ok_or(err)?);
                accept_with(&self.socket, flags).map(|fd| Accepted { fd, is_reserved: true })
            }
            Ok(fd) => {
                if !is_reserved && std::mem::take(&mut self.is_full) {
                    tracing::info!("{}: descriptors are available again", self.name);
                }
                Ok(Accepted { fd, is_reserved })
            }
            Err(err) => Err(err),
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(err) => Err(err),
        }
    }
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

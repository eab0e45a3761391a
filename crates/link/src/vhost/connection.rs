//! The socket to a front end: one message at a time, and never a wait for the rest of one.
//!
//! The kept crate reads a message with as many calls as it takes, and would wait in them. So it is told to only once a message is there as
//! a whole and there is room for the answer; a front end that keeps the half of one to itself stops nobody else.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use vhost::vhost_user::{BackendReqHandler, Error};

use super::device::Device;

/// Token of the connection among what is waited for.
pub(super) const CONNECTION: u64 = 2;

/// Bytes of a message's header: what it is, flags and the bytes behind.
const HEADER: usize = 12;

/// Bytes behind the header of the longest message.
const MAX_BODY: u32 = 4096;

/// A connected front end.
pub(super) struct Connection {
    socket: UnixStream,
    handler: BackendReqHandler<Mutex<Device>>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(super) enum Closed {
    /// The front end closed it.
    Gone,
    /// The front end said what it may not say.
    Refused(String),
}

impl From<io::Error> for Closed {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Gone,
            _ => Self::Refused(crate::error::text(&err)),
        }
    }
}

impl From<Errno> for Closed {
    fn from(err: Errno) -> Self {
        io::Error::from(err).into()
    }
}

impl Connection {
    /// Takes a front end's messages from now on.
    pub(super) fn new(socket: UnixStream, device: &Arc<Mutex<Device>>, waiting: &OwnedFd) -> io::Result<Self> {
        // Accepted from a listener that does not block, but is not so itself; the handler's calls loop otherwise.
        socket.set_nonblocking(false)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(waiting, &socket, epoll::EventData::new_u64(CONNECTION), flags)?;
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(device));
        Ok(Self { socket, handler })
    }

    /// Waits for it no longer.
    pub(super) fn forget(&self, waiting: &OwnedFd) {
        let _ = epoll::delete(waiting, &self.socket);
    }

    /// Handles one message. Tells whether there was one as a whole.
    pub(super) fn handle_one(&mut self) -> Result<bool, Closed> {
        let mut header = [0; HEADER];
        let (peeked, _) = match recv(&self.socket, &mut header, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(peeked) => peeked,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(err) => return Err(err.into()),
        };
        if peeked == 0 {
            return Err(Closed::Gone);
        }
        let waiting = ioctl_fionread(&self.socket)?;
        if waiting < HEADER as u64 {
            return Ok(false);
        }
        let [.., a, b, c, d] = header;
        let body = u32::from_ne_bytes([a, b, c, d]);
        if peeked < HEADER || body > MAX_BODY {
            return Err(Closed::Refused("message without a header, or too long".to_owned()));
        }
        if waiting < HEADER as u64 + u64::from(body) {
            return Ok(false);
        }
        if !self.has_room()? {
            return Err(Closed::Refused("answers that are not read".to_owned()));
        }
        match self.handler.handle_request() {
            Ok(()) => Ok(true),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Err(Closed::Gone),
            Err(err) => {
                let [a, b, c, d, ..] = header;
                Err(Closed::Refused(format!("message {}: {err}", u32::from_ne_bytes([a, b, c, d]))))
            }
        }
    }

    /// Whether an answer can be written without a wait: less than a quarter of the buffer is in use (Linux `unix_writable`).
    fn has_room(&self) -> io::Result<bool> {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT)];
        let now = Timespec::try_from(Duration::ZERO).unwrap_or_default();
        crate::sys::uninterrupted(|| Ok(poll(&mut fds, Some(&now))?))?;
        Ok(fds[0].revents().contains(PollFlags::OUT))
    }
}

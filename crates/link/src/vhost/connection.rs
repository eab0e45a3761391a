//! The socket to a front end: one message at a time, without a blocking read or write.
//!
//! The crate `vhost` blocks (or spins, on a non-blocking socket) until a message is complete. So it is called only when
//! a whole message is in the socket's buffer and there is room for the reply: a front end that sends half a message
//! delays no other port.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendFlags, recv, recvmsg, send};
use vhost::vhost_user::message::MAX_ATTACHED_FD_ENTRIES;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures};

use super::device::Device;

/// Token of the connection in the epoll instance.
pub(super) const CONNECTION: u64 = 2;

/// Bytes of a message's header: request, flags and payload length.
const HEADER: usize = 12;

/// Payload length of the longest message.
const MAX_BODY: u32 = 4096;

/// `VHOST_USER_SET_VRING_ENABLE`.
const SET_VRING_ENABLE: u32 = 18;

/// Flags of a header: version, reply, need reply.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A connected front end.
pub(super) struct Connection {
    socket: UnixStream,
    handler: BackendReqHandler<Mutex<Device>>,
    device: Arc<Mutex<Device>>,
    /// Whether the front end has sent a message.
    has_sent: bool,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Reason that a connection ended.
#[derive(Debug)]
pub(super) enum Closed {
    /// The front end closed the connection.
    Gone,
    /// The front end violated the protocol.
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
    /// Starts to handle a front end's messages.
    pub(super) fn new(socket: UnixStream, device: &Arc<Mutex<Device>>, waiting: &OwnedFd) -> io::Result<Self> {
        // A blocking socket: on a non-blocking one the handler's calls would spin.
        socket.set_nonblocking(false)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(waiting, &socket, epoll::EventData::new_u64(CONNECTION), flags)?;
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(device));
        Ok(Self { socket, handler, device: Arc::clone(device), has_sent: false })
    }

    /// Tells whether the front end has sent a message. A program that only probes for a listener sends none.
    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Removes the connection from the epoll instance.
    pub(super) fn forget(&self, waiting: &OwnedFd) {
        let _ = epoll::delete(waiting, &self.socket);
    }

    /// Handles one message. Tells whether a complete message was there.
    pub(super) fn handle_one(&mut self) -> Result<bool, Closed> {
        let mut header = [0; HEADER];
        // Descriptors come as copies, which are closed right away.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_ATTACHED_FD_ENTRIES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let peeked = match recvmsg(&self.socket, &mut [IoSliceMut::new(&mut header)], &mut control, flags) {
            Ok(peeked) => peeked,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(err) => return Err(err.into()),
        };
        drop(control);
        if peeked.flags.contains(ReturnFlags::CTRUNC) {
            // The crate `vhost` would discard the header, and wait for another one.
            return Err(Closed::Refused("message with too many descriptors".to_owned()));
        }
        let peeked = peeked.bytes;
        if peeked == 0 {
            return Err(Closed::Gone);
        }
        // Checked before the bytes are counted: after the front end has disconnected, no more arrive.
        let state = self.state()?;
        let incomplete = || if state.intersects(PollFlags::RDHUP) { Err(Closed::Gone) } else { Ok(false) };
        let waiting = ioctl_fionread(&self.socket)?;
        if waiting < HEADER as u64 {
            return incomplete();
        }
        let [.., a, b, c, d] = header;
        let body = u32::from_ne_bytes([a, b, c, d]);
        if peeked < HEADER || body > MAX_BODY {
            return Err(Closed::Refused("message without a header, or too long".to_owned()));
        }
        if waiting < HEADER as u64 + u64::from(body) {
            return incomplete();
        }
        // Less than a quarter of the buffer is in use (Linux `unix_writable`), so a reply is written without blocking.
        if !state.contains(PollFlags::OUT) {
            return Err(Closed::Refused("answers that are not read".to_owned()));
        }
        self.has_sent = true;
        let [a, b, c, d, e, f, g, h, ..] = header;
        let request = u32::from_ne_bytes([a, b, c, d]);
        if request == SET_VRING_ENABLE && body == 8 {
            return self.enable(u32::from_ne_bytes([e, f, g, h])).map(|()| true);
        }
        match self.handler.handle_request() {
            Ok(()) => Ok(true),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Err(Closed::Gone),
            Err(err) => Err(Closed::Refused(format!("message {request}: {err}"))),
        }
    }

    /// Handles a complete `VHOST_USER_SET_VRING_ENABLE`. The crate `vhost` refuses this message before the features are
    /// set, when QEMU (7.2 `vhost_net_start`) sends it.
    fn enable(&mut self, flags: u32) -> Result<(), Closed> {
        let mut message = [0; HEADER + 8];
        let (read, _) = recv(&self.socket, &mut message, RecvFlags::DONTWAIT)?;
        let [.., a, b, c, d, e, f, g, h] = message;
        let (index, enabled) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if read != message.len() || enabled > 1 || device.set_vring_enable(index, enabled == 1).is_err() {
            return Err(Closed::Refused(format!("message {SET_VRING_ENABLE}: ring {index}")));
        }
        if flags & NEED_REPLY != 0 && device.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            // The header announces 8 more bytes: the status 0, success.
            let answer = [SET_VRING_ENABLE, VERSION | REPLY, 8, 0, 0].map(u32::to_ne_bytes).concat();
            send(&self.socket, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        }
        Ok(())
    }

    /// Tells whether there is room for a reply (`OUT`), and whether the front end has closed its end (`RDHUP`).
    fn state(&self) -> io::Result<PollFlags> {
        let mut fds = [PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::OUT | PollFlags::RDHUP)];
        let now = Timespec::try_from(Duration::ZERO).unwrap_or_default();
        crate::sys::uninterrupted(|| Ok(poll(&mut fds, Some(&now))?))?;
        Ok(fds[0].revents())
    }
}

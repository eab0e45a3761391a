//! The socket to a front end: one message at a time, without a blocking read or write.
//!
//! The crate `vhost` blocks (or spins, on a non-blocking socket) until a message is complete. So it is called only when
//! a whole message is in the socket's buffer and there is room for the reply: a front end that sends half a message
//! delays no other port. A message with descriptors is handled after a thread has found that no call on them blocks.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, RecvMsg, ReturnFlags, SendFlags, Shutdown, recv, recvmsg, send, shutdown,
};
use vhost::vhost_user::message::MAX_ATTACHED_FD_ENTRIES;
use vhost::vhost_user::{BackendReqHandler, Error, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures};

use super::device::{Device, lock};
use super::passed::{ConnectionState, PassedConnection};
use crate::sys::descriptors;
use crate::sys::discard::Discarded;
use crate::sys::inspection::{Inspection, Inspector};

/// Token of the connection in the epoll instance.
pub(super) const CONNECTION: u64 = 2;

/// Bytes of a message's header: request, flags and payload length.
const HEADER: usize = 12;

/// Payload length of the longest message.
const MAX_BODY: u32 = 4096;

/// `VHOST_USER_GET_FEATURES`.
const GET_FEATURES: u32 = 1;

/// `VHOST_USER_SET_FEATURES`.
const SET_FEATURES: u32 = 2;

/// `VHOST_USER_SET_PROTOCOL_FEATURES`.
const SET_PROTOCOL_FEATURES: u32 = 16;

/// `VHOST_USER_SET_VRING_ENABLE`.
const SET_VRING_ENABLE: u32 = 18;

/// Flags of a header: version, reply, need reply.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// A connected front end.
pub(super) struct Connection {
    handler: BackendReqHandler<Mutex<Device>>,
    /// The same socket as the handler's, closed last: unread messages may hold descriptors whose close blocks.
    socket: Discarded<UnixStream>,
    device: Arc<Mutex<Device>>,
    inspector: Inspector,
    /// Inspection of the next message.
    inspection: Option<Inspection>,
    /// Eventfd that is written to when an inspection has a result.
    inspected: OwnedFd,
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

/// A handler of messages of `socket` for which the front end has negotiated what the state has: it gets the messages of a negotiation
/// by a socket in place of that one. The device checks them as those of a front end.
///
/// # Errors
/// The reason why a message is refused, or the error of a call.
fn handler_of(
    state: &ConnectionState,
    socket: &UnixStream,
    device: &Arc<Mutex<Device>>,
) -> Result<BackendReqHandler<Mutex<Device>>, String> {
    let (front, back) = UnixStream::pair().map_err(|err| format!("socketpair: {err}"))?;
    let mut handler = BackendReqHandler::from_stream(back, Arc::clone(device));
    let asked = state.has_asked.then_some((GET_FEATURES, None));
    let messages = [
        asked,
        Some((SET_PROTOCOL_FEATURES, Some(state.protocol))).filter(|_| state.protocol != 0),
        state.features.map(|features| (SET_FEATURES, Some(features))),
    ];
    for (request, word) in messages.into_iter().flatten() {
        let body = word.map(u64::to_ne_bytes).unwrap_or_default();
        let body = if word.is_some() { &body[..] } else { &[] };
        let message = [&[request, VERSION, body.len() as u32].map(u32::to_ne_bytes).concat(), body].concat();
        send(&front, &message, SendFlags::NOSIGNAL).map_err(|err| format!("send: {err}"))?;
        handler.handle_request().map_err(|err| format!("message {request}: {err}"))?;
    }
    descriptors::replace(&mut handler, socket.as_fd()).map_err(|err| format!("dup3: {err}"))?;
    Ok(handler)
}

impl Connection {
    /// Starts to handle a front end's messages.
    pub(super) fn new(
        socket: UnixStream,
        device: &Arc<Mutex<Device>>,
        waiting: &OwnedFd,
        inspector: Inspector,
        inspected: OwnedFd,
    ) -> io::Result<Self> {
        let socket = Discarded::new(socket);
        let handler = BackendReqHandler::from_stream(socket.try_clone()?, Arc::clone(device));
        Self::over(handler, socket, device, waiting, inspector, inspected)
    }

    fn over(
        handler: BackendReqHandler<Mutex<Device>>,
        socket: Discarded<UnixStream>,
        device: &Arc<Mutex<Device>>,
        waiting: &OwnedFd,
        inspector: Inspector,
        inspected: OwnedFd,
    ) -> io::Result<Self> {
        // A blocking socket: on a non-blocking one the handler's calls would spin.
        socket.set_nonblocking(false)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(waiting, &*socket, epoll::EventData::new_u64(CONNECTION), flags)?;
        let device = Arc::clone(device);
        Ok(Self { handler, socket, device, inspector, inspection: None, inspected, has_sent: false })
    }

    /// Goes on with the connection of another process. It is closed on failure.
    ///
    /// # Errors
    /// The reason why it cannot be taken over. The device is to be reset then.
    pub(super) fn take(
        passed: PassedConnection,
        device: &Arc<Mutex<Device>>,
        waiting: &OwnedFd,
        inspector: Inspector,
        inspected: OwnedFd,
    ) -> Result<Self, String> {
        if let Err(why) = passed.check() {
            passed.close();
            return Err(why);
        }
        let own = match passed.socket.try_clone() {
            Ok(own) => Discarded::new(own),
            Err(err) => {
                passed.close();
                return Err(format!("dup: {err}"));
            }
        };
        let PassedConnection { state, socket, others } = passed;
        let taken = handler_of(&state, &socket, device)
            .and_then(|handler| lock(device).restore(&state, others).map(|()| handler))
            .and_then(|handler| {
                let taken = Self::over(handler, socket, device, waiting, inspector, inspected);
                taken.map_err(|err| format!("epoll_ctl: {err}"))
            });
        if taken.is_err() {
            // Other processes may have duplicates.
            let _ = shutdown(&*own, Shutdown::Both);
        }
        taken.map(|connection| Self { has_sent: state.has_asked, ..connection })
    }

    /// Tells whether the front end has sent a message. A program that only probes for a listener sends none.
    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }

    /// Tells whether the front end has closed its end.
    pub(super) fn has_hung_up(&self) -> bool {
        self.state().map_or(true, |state| state.intersects(PollFlags::RDHUP | PollFlags::HUP))
    }

    /// The socket, for another process. A message that an inspection is about stays there.
    pub(super) fn into_socket(self) -> Discarded<UnixStream> {
        self.socket
    }

    /// Removes the connection from the epoll instance.
    pub(super) fn forget(&self, waiting: &OwnedFd) {
        let _ = epoll::delete(waiting, &*self.socket);
    }

    /// Handles one message. Tells whether a complete message was there.
    pub(super) fn handle_one(&mut self) -> Result<bool, Closed> {
        let is_inspected = match self.inspection.as_ref().map(Inspection::result) {
            None => false,
            Some(None) => return Ok(false),
            Some(Some(result)) => {
                self.inspection = None;
                result.map_err(|why| Closed::Refused(why.to_owned()))?;
                true
            }
        };
        let mut message = [0; HEADER + MAX_BODY as usize];
        let peeked = match self.peek(&mut message[..HEADER]) {
            Ok(peeked) => peeked.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(err) => return Err(err.into()),
        };
        if peeked == 0 {
            return Err(Closed::Gone);
        }
        // Checked before the bytes are counted: after the front end has disconnected, no more arrive.
        let state = self.state()?;
        let incomplete = || if state.intersects(PollFlags::RDHUP) { Err(Closed::Gone) } else { Ok(false) };
        let waiting = ioctl_fionread(&*self.socket)?;
        if waiting < HEADER as u64 {
            return incomplete();
        }
        let word = |at: usize| message[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
        let (request, request_flags, body) = (word(0), word(4), word(8));
        if peeked < HEADER || body > MAX_BODY {
            return Err(Closed::Refused("message without a header, or too long".to_owned()));
        }
        if waiting < HEADER as u64 + u64::from(body) {
            return incomplete();
        }
        let len = HEADER + body as usize;
        let whole = self.peek(&mut message[..len])?;
        if whole.bytes < len {
            return Err(Closed::Refused("message in parts with descriptors".to_owned()));
        }
        if whole.flags.contains(ReturnFlags::CTRUNC) && !is_inspected {
            let (socket, most) = (&*self.socket, MAX_ATTACHED_FD_ENTRIES);
            self.inspection = Some(Inspection::begin(&self.inspector, socket, len, most, &self.inspected)?);
            return Ok(false);
        }
        // Less than a quarter of the buffer is in use (Linux `unix_writable`), so a reply is written without blocking.
        if !state.contains(PollFlags::OUT) {
            return Err(Closed::Refused("answers that are not read".to_owned()));
        }
        self.has_sent = true;
        if request == SET_VRING_ENABLE && body == 8 {
            return self.enable(request_flags).map(|()| true);
        }
        match self.handler.handle_request() {
            Ok(()) => Ok(true),
            Err(Error::Disconnected | Error::SocketBroken(_)) => Err(Closed::Gone),
            Err(err) => Err(Closed::Refused(format!("message {request}: {err}"))),
        }
    }

    /// Reads the first bytes without removing them. `CTRUNC` says that there are descriptors, which are not received.
    fn peek(&self, to: &mut [u8]) -> Result<RecvMsg, Errno> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recvmsg(&*self.socket, &mut [IoSliceMut::new(to)], &mut RecvAncillaryBuffer::default(), flags)
    }

    /// Tells whether a thread inspects the next message.
    pub(super) fn is_inspecting(&self) -> bool {
        self.inspection.is_some()
    }

    /// Handles a complete `VHOST_USER_SET_VRING_ENABLE`. The crate `vhost` refuses this message before the features are
    /// set, when QEMU (7.2 `vhost_net_start`) sends it.
    fn enable(&mut self, flags: u32) -> Result<(), Closed> {
        let mut message = [0; HEADER + 8];
        let (read, _) = recv(&*self.socket, &mut message, RecvFlags::DONTWAIT)?;
        let [.., a, b, c, d, e, f, g, h] = message;
        let (index, enabled) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner);
        if read != message.len() || enabled > 1 || device.set_vring_enable(index, enabled == 1).is_err() {
            return Err(Closed::Refused(format!("message {SET_VRING_ENABLE}: ring {index}")));
        }
        if flags & NEED_REPLY != 0 && device.protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            // The header announces 8 more bytes: the status 0, success.
            let answer = [SET_VRING_ENABLE, VERSION | REPLY, 8, 0, 0].map(u32::to_ne_bytes).concat();
            send(&*self.socket, &answer, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
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

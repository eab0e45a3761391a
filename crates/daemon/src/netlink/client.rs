//! Netlink socket of one program: a connection with the datagrams of [`nlsock`].

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::Discard;
use netlink::message::{Messages, align};
use netlink::{Groups, Outbox, Protocol, Session, To};
use nlsock::{Answer, FromDaemon, Sysctl, ToDaemon, protocol};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketType, recv, recvmsg, sendmsg, shutdown, sockopt,
};
use zeroize::Zeroizing;

use super::protocols::{Generic, Protocols, Route, Xfrm};
use super::sysctl::{self, OpenFile};
use crate::journal::Journal;
use crate::privilege::{Peer, Privilege};

/// A received datagram.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) len: usize,
    /// Process ID of the sender.
    pub(super) sender: Option<u32>,
    /// Pipe that the sender passed for the reply.
    pub(super) answer: Option<OwnedFd>,
}

/// Kind of the client's socket.
#[derive(Debug)]
enum Socket {
    /// Not chosen yet.
    New,
    Route(Session<Route>),
    Xfrm(Session<Xfrm>),
    Generic(Session<Generic>),
    /// No protocol: a file of `/proc/sys/net` that is open for writing.
    File(OpenFile),
}

macro_rules! with_session {
    ($socket:expr, $session:ident => $do:expr, $none:expr) => {
        match $socket {
            Socket::New | Socket::File(_) => $none,
            Socket::Route($session) => $do,
            Socket::Xfrm($session) => $do,
            Socket::Generic($session) => $do,
        }
    };
}

/// A program's socket.
#[derive(Debug)]
pub(super) struct Client {
    /// `None` after the close.
    fd: Option<OwnedFd>,
    /// Closes the connection in the background, if the close may take long.
    discard: Discard,
    /// The epoll set of the connection.
    pub(super) epoll: Arc<OwnedFd>,
    /// Whether the client may change the node.
    pub(super) privileged: bool,
    /// The client's process, if that process holds `CAP_NET_ADMIN` and is not root: it becomes privileged when it
    /// [claims](Self::claim) the privilege, which then covers no other process on this connection.
    claimant: Option<Arc<Peer>>,
    /// Other processes that may use the privilege: those that inherited the connection and [claimed](Self::claim) it.
    heirs: Vec<Heir>,
    /// Process that sent the present datagram.
    sender: Option<u32>,
    /// Number of bytes received.
    received: u64,
    /// User of the client's process.
    pub(super) uid: u32,
    /// The process that connected.
    pub(super) pid: u32,
    socket: Socket,
    /// Messages that the client has not received yet: the last parts of the dumps that one datagram requested.
    waiting: VecDeque<Vec<u8>>,
    /// Requests of the last datagram of a read-only client that are not handled yet. No further datagram is received
    /// until all of them are handled.
    unserved: Zeroizing<Vec<u8>>,
    /// Whether the dump's last part was empty and the dump is incomplete. No further datagram is received meanwhile, so
    /// a reply on a pipe still means that all due answers have been sent.
    looking: bool,
    /// Receive buffer size that the client requested. The buffer is allocated at the first need, which is rare.
    room: Option<u32>,
    /// Whether the buffer has been enlarged.
    grown: bool,
    /// Whether answers or notifications were lost and the client has not been notified yet (`ENOBUFS`).
    overrun: bool,
    /// Events that are registered with epoll.
    pub(super) interest: EventFlags,
    /// UDP ports of the client's program that bypass policies.
    bypass: Vec<u16>,
    /// Inode number of this end, if the program's library holds a duplicate of this end.
    pub(super) kept: Option<u64>,
}

/// Process that inherited a connection from its claimant, as a daemon inherits the connections that it opened before its
/// `fork`, and that held `CAP_NET_ADMIN` when it claimed the privilege.
#[derive(Debug)]
struct Heir {
    peer: Peer,
    /// Datagrams from this position of the connection on, in bytes, were sent after the check.
    since: u64,
}

/// Maximum number of [heirs](Heir) of a connection. The oldest is forgotten.
const MAX_HEIRS: usize = 8;

/// Error: the connection is to be closed.
#[derive(Debug)]
pub(super) struct Gone;

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.as_ref().filter(|_| self.kept.is_some()) {
            // The library's duplicate would keep this end in epoll, and the program's end from a hang-up.
            let _ = epoll::delete(&*self.epoll, fd);
            let _ = shutdown(fd, Shutdown::Both);
        }
        let unread = self.fd.take_if(|fd| !self.privileged && has_unread_rights(fd));
        if let Some(fd) = unread {
            // epoll would report the descriptor until its close is complete.
            let _ = epoll::delete(&*self.epoll, &fd);
            self.discard.close(fd);
        }
    }
}

impl Client {
    /// A client that has connected and sent nothing yet.
    ///
    /// # Errors
    /// Error of setsockopt(2).
    pub(super) fn new(
        fd: OwnedFd,
        peer: Peer,
        privilege: Privilege,
        discard: &Discard,
        epoll: &Arc<OwnedFd>,
    ) -> Result<Self, Errno> {
        // With this option each datagram carries credentials and the end of the stream carries none, which
        // distinguishes an empty datagram from the end.
        sockopt::set_socket_passcred(&fd, true)?;
        let (uid, pid) = (peer.uid, peer.pid);
        let privileged = privilege == Privilege::Full;
        let claimant = (privilege == Privilege::Claimable).then(|| Arc::new(peer));
        let (socket, waiting, interest) = (Socket::New, VecDeque::new(), EventFlags::IN);
        let (room, grown, overrun, kept, bypass) = (None, false, false, None, Vec::new());
        let (fd, discard, epoll) = (Some(fd), discard.clone(), Arc::clone(epoll));
        let (unserved, looking) = (Zeroizing::default(), false);
        Ok(Self {
            fd,
            discard,
            epoll,
            privileged,
            claimant,
            heirs: Vec::new(),
            sender: None,
            received: 0,
            uid,
            pid,
            socket,
            waiting,
            unserved,
            looking,
            room,
            grown,
            overrun,
            interest,
            bypass,
            kept,
        })
    }

    /// A socket that an earlier gateway served, with the rights of this connection. `fd`: the gateway's end of the
    /// socket, with that inode number.
    pub(super) fn adopt(&self, fd: OwnedFd, inode: u64) -> Self {
        let mut adopted = Self {
            fd: Some(fd),
            discard: self.discard.clone(),
            epoll: Arc::clone(&self.epoll),
            privileged: self.privileged,
            claimant: self.claimant.clone(),
            heirs: Vec::new(),
            sender: None,
            received: 0,
            uid: self.uid,
            pid: self.pid,
            socket: Socket::New,
            waiting: VecDeque::new(),
            unserved: Zeroizing::default(),
            looking: false,
            room: None,
            grown: false,
            overrun: false,
            interest: EventFlags::IN,
            bypass: Vec::new(),
            kept: Some(inode),
        };
        // Messages in the socket may predate the [claim](Self::claim).
        adopted.privileged &= adopted.claimant.is_none() || adopted.is_drained();
        adopted
    }

    /// Restores the state of an adopted socket from these calls. Refused calls are skipped: the program may have lost
    /// rights.
    pub(super) fn restore(&mut self, state: &[u8]) -> Result<(), Gone> {
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

    /// UDP ports that bypass policies while the client is connected.
    pub(super) fn bypass(&self) -> &[u16] {
        &self.bypass
    }

    /// Closes descriptors of this client in the background.
    pub(super) fn put_away(&self, fds: impl IntoIterator<Item = OwnedFd>) {
        if !self.privileged {
            fds.into_iter().for_each(|fd| self.discard.close(fd));
        }
    }

    /// Sends `to` a duplicate of this end of the connection, with `name`.
    fn keep(&mut self, to: OwnedFd, name: u64) -> Result<(), Gone> {
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
        self.put_away([to]);
        Ok(())
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is closed last").as_fd()
    }

    /// Protocol of the socket, after the client has chosen one.
    pub(super) const fn protocol(&self) -> Option<u32> {
        match self.socket {
            Socket::New | Socket::File(_) => None,
            Socket::Route(_) => Some(protocol::ROUTE),
            Socket::Xfrm(_) => Some(protocol::XFRM),
            Socket::Generic(_) => Some(protocol::GENERIC),
        }
    }

    /// Tells whether the client is a file, without a netlink protocol.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self.socket, Socket::File(_))
    }

    fn port(&self) -> u32 {
        with_session!(&self.socket, session => session.port(), 0)
    }

    /// Protocol and port of the socket, if it has a port.
    pub(super) fn name(&self) -> Option<(u32, u32)> {
        Some((self.protocol()?, self.port())).filter(|&(_, port)| port != 0)
    }

    /// Groups of `protocol` that the client has joined.
    pub(super) fn groups(&self, protocol: u32) -> Groups {
        match (&self.socket, protocol) {
            (Socket::Route(session), protocol::ROUTE) => session.groups(),
            (Socket::Xfrm(session), protocol::XFRM) => session.groups(),
            (Socket::Generic(session), protocol::GENERIC) => session.groups(),
            _ => Groups::default(),
        }
    }

    /// Receives one datagram. `None`: there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Received>, Gone> {
        if !self.privileged && !self.has_datagram_to_take()? {
            return Ok(None);
        }
        let mut space = control_space();
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(self.fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(Gone),
        };
        let (sender, mut rights) = sender_and_rights(&mut control);
        if received.flags.contains(ReturnFlags::CTRUNC) || !may_be_sent(&rights) {
            self.put_away(rights);
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
    fn has_datagram_to_take(&self) -> Result<bool, Gone> {
        let mut space = control_space();
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC | RecvFlags::PEEK;
        match recvmsg(self.fd(), &mut [], &mut control, flags) {
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

    /// Makes the client privileged if its process holds `CAP_NET_ADMIN` and no datagram is queued behind the present
    /// one. From then on the sender is the program that holds the capability; earlier datagrams may be from another
    /// program in the same process, without the capability.
    ///
    /// If the client is privileged already, the sender of the present datagram becomes an [heir](Heir) under the same
    /// conditions. Linux, too, requires the capability of the opener and of the sender (`netlink_capable`).
    fn claim(&mut self) {
        let Some(peer) = self.claimant.as_ref() else { return };
        if self.privileged {
            self.inherit();
        } else if peer.holds_net_admin() && self.is_drained() {
            self.privileged = true;
            with_session!(&mut self.socket, session => session.set_privileged(true), {});
        }
    }

    /// Makes the sender of the present datagram an heir, if it holds `CAP_NET_ADMIN`, for datagrams that are not queued
    /// yet: a process that had its number, or another program in the same process, has sent none of those.
    fn inherit(&mut self) {
        let Some(sender) = self.sender.filter(|&sender| !self.is_authorized(sender)) else { return };
        self.heirs.retain(|heir| heir.peer.pid != sender && heir.peer.is_alive());
        let Some(peer) = Peer::with_pid(sender, self.uid).filter(Peer::holds_net_admin) else { return };
        // The length is determined after the check.
        let Ok(queued) = ioctl_fionread(self.fd()) else { return };
        if self.heirs.len() == MAX_HEIRS {
            self.heirs.remove(0);
        }
        self.heirs.push(Heir { peer, since: self.received.saturating_add(queued) });
    }

    /// Tells whether the present datagram, from the process `sender`, has the privilege of this connection.
    fn is_authorized(&self, sender: u32) -> bool {
        let is = |peer: &Peer| peer.pid == sender && peer.is_alive();
        self.claimant.as_ref().is_some_and(|peer| is(peer))
            || self.heirs.iter().any(|heir| heir.since < self.received && is(&heir.peer))
    }

    /// Tells whether no datagram is queued.
    fn is_drained(&self) -> bool {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        matches!(recv(self.fd(), &mut [0; 0], flags), Err(Errno::AGAIN))
    }

    /// Checks the sender of a received datagram. Only the process that claimed the privilege and its [heirs](Heir) may
    /// use it.
    pub(super) fn note_sender(&mut self, received: &Received) -> Result<(), Gone> {
        self.sender = received.sender;
        self.received = self.received.saturating_add(received.len as u64);
        if self.claimant.is_none() || !self.privileged {
            return Ok(());
        }
        let is_authorized = received.sender.is_some_and(|sender| self.is_authorized(sender));
        if self.is_file() && !is_authorized {
            return Err(Gone);
        }
        with_session!(&mut self.socket, session => session.set_privileged(is_authorized), {});
        Ok(())
    }

    /// Handles one datagram; answers go to `outbox`. `port` allocates a port of a protocol, the requested one or any,
    /// or refuses. `answer` is for the last call of the datagram.
    pub(super) fn handle(
        &mut self,
        datagram: &[u8],
        mut answer: Option<OwnedFd>,
        protocols: &mut Protocols,
        listeners: impl Fn(u32) -> Groups,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
        outbox: &mut Outbox,
    ) -> Result<(), Gone> {
        if let Socket::File(file) = &mut self.socket {
            if let Some(fd) = answer.take_if(|fd| !is_pipe(fd)) {
                self.put_away([fd]);
                return Err(Gone);
            }
            let outcome = file.write(datagram, answer.is_some(), protocols);
            if let Some(fd) = answer {
                write_answer(&fd, Answer { error: outcome.err().unwrap_or(0), port: 0 });
            }
            return Ok(());
        }
        let mut outcome = Ok(());
        for call in ToDaemon::calls(datagram) {
            outcome = match call.ok_or(Gone)? {
                ToDaemon::Data(messages) => self.request(messages, protocols, &listeners, &port, outbox).map(Ok)?,
                ToDaemon::Sysctl { what, name } => return self.sysctl(what, name, protocols),
                ToDaemon::Keep { name } => {
                    let to = answer.take_if(|fd| !is_pipe(fd)).ok_or(Gone)?;
                    self.keep(to, name).map(Ok)?
                }
                call => self.call(call, &port)?,
            };
        }
        if let Some(fd) = answer.take_if(|fd| !is_pipe(fd)) {
            self.put_away([fd]);
            return Err(Gone);
        }
        if let Some(fd) = answer {
            self.claim();
            write_answer(&fd, Answer { error: outcome.err().unwrap_or(0), port: self.port() });
        }
        Ok(())
    }

    /// Handles a call about a file of `/proc/sys/net`. If the call opened a file, the socket is that file from then on;
    /// otherwise a connection without a protocol ends.
    fn sysctl(&mut self, what: Sysctl, name: &[u8], protocols: &Protocols) -> Result<(), Gone> {
        let is_session = self.protocol().is_some();
        if self.is_file() || (is_session && what == Sysctl::Open) {
            return Err(Gone);
        }
        if !is_session {
            self.claim();
        }
        let (answer, text, opened) = sysctl::ask(what, name, self.privileged, protocols);
        // The first answer of a connection always has room, and so has the answer to a library that waits for it.
        let is_sent = self.try_send(answer.to_bytes(), &text)?;
        if is_session {
            return if is_sent { Ok(()) } else { Err(Gone) };
        }
        self.socket = Socket::File(opened.ok_or(Gone)?);
        Ok(())
    }

    /// Requests that are not handled yet, if their answers have room now.
    pub(super) fn take_unserved(&mut self) -> Option<Zeroizing<Vec<u8>>> {
        (!self.unserved.is_empty() && self.waiting.is_empty()).then(|| std::mem::take(&mut self.unserved))
    }

    /// Tells whether a datagram may be received: the last one is handled, and the dump's last part was not empty.
    pub(super) fn takes_datagrams(&self) -> bool {
        self.unserved.is_empty() && !self.looking
    }

    fn is_dumping(&self) -> bool {
        with_session!(&self.socket, session => session.is_dumping(), false)
    }

    /// Handles requests; for a read-only client, as many as fit into a [`Slice`].
    pub(super) fn request(
        &mut self,
        messages: &[u8],
        protocols: &mut Protocols,
        listeners: impl Fn(u32) -> Groups,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
        outbox: &mut Outbox,
    ) -> Result<(), Gone> {
        if let Some(number) = self.protocol().filter(|_| self.port() == 0) {
            let port = port(number, 0).map_err(|_| Gone)?;
            with_session!(&mut self.socket, session => session.set_port(port), {});
        }
        let (slice, was_dumping) = ((!self.privileged).then(Slice::begin), self.is_dumping());
        let number = self.protocol().ok_or(Gone)?;
        if self.privileged && protocols.journal.is_some() {
            let listeners = listeners(number);
            for message in Messages::new(messages) {
                let pending = protocols.begin_change(number, message.bytes);
                let is_done = match &mut self.socket {
                    Socket::New | Socket::File(_) => return Err(Gone),
                    Socket::Route(session) => session.handle(message.bytes, &mut protocols.rtnl, listeners, outbox),
                    Socket::Xfrm(session) => session.handle(message.bytes, &mut protocols.xfrm, listeners, outbox),
                    Socket::Generic(session) => {
                        session.handle(message.bytes, &mut protocols.generic, listeners, outbox)
                    }
                };
                protocols.end_change(pending, is_done);
            }
            // The acknowledgements are sent later.
            protocols.journal.iter_mut().for_each(Journal::write);
        }
        let left = match &mut self.socket {
            Socket::New | Socket::File(_) => return Err(Gone),
            _ if self.privileged && protocols.journal.is_some() => &[],
            Socket::Route(session) => {
                carry_out(session, messages, &mut protocols.rtnl, listeners(protocol::ROUTE), outbox, slice)
            }
            Socket::Xfrm(session) => {
                carry_out(session, messages, &mut protocols.xfrm, listeners(protocol::XFRM), outbox, slice)
            }
            Socket::Generic(session) => {
                carry_out(session, messages, &mut protocols.generic, listeners(protocol::GENERIC), outbox, slice)
            }
        };
        self.unserved.extend_from_slice(left);
        if !was_dumping {
            self.looking = self.is_dumping() && !outbox.iter().any(|(to, _)| to == To::Dumper);
        }
        Ok(())
    }

    /// Handles a library call that is not a netlink message, and returns the `errno` of a refusal.
    fn call(
        &mut self,
        call: ToDaemon<'_>,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
    ) -> Result<Result<(), i32>, Gone> {
        let outcome = match call {
            ToDaemon::Data(_) | ToDaemon::Sysctl { .. } | ToDaemon::Keep { .. } | ToDaemon::Adopt { .. } => {
                return Err(Gone);
            }
            ToDaemon::RecvLen(len) => {
                with_session!(&mut self.socket, session => session.set_recv_len(len), return Err(Gone));
                Ok(())
            }
            ToDaemon::RecvRoom(bytes) => {
                self.room = Some(bytes);
                if self.grown {
                    self.give_room();
                }
                Ok(())
            }
            ToDaemon::Port(port) => {
                with_session!(&mut self.socket, session => session.set_port(port), return Err(Gone));
                Ok(())
            }
            ToDaemon::Bypass(_) if !self.privileged => Err(nlsock::errno::EPERM),
            ToDaemon::Bypass(port) => {
                if !self.bypass.contains(&port) && self.bypass.len() < nlsock::MAX_BYPASS {
                    self.bypass.push(port);
                }
                Ok(())
            }
            ToDaemon::Hello { protocol } => return self.hello(protocol),
            ToDaemon::SetOption { option, value } => {
                with_session!(&mut self.socket, session => session.set_option(option, value), return Err(Gone))
            }
            ToDaemon::Bind { port: wish, groups } => {
                let number = self.protocol().ok_or(Gone)?;
                with_session!(&mut self.socket, session => match (session.port(), wish) {
                    (0, _) => port(number, wish).and_then(|port| session.bind(port, groups)),
                    (bound, 0) => session.bind(bound, groups),
                    (_, wish) => session.bind(wish, groups),
                }, return Err(Gone))
            }
        };
        Ok(outcome)
    }

    /// Makes the socket one of `protocol`.
    fn hello(&mut self, protocol: u32) -> Result<Result<(), i32>, Gone> {
        let privileged = self.privileged;
        self.socket = match (&self.socket, protocol) {
            (Socket::New, protocol::ROUTE) => Socket::Route(Session::new(privileged)),
            (Socket::New, protocol::XFRM) => Socket::Xfrm(Session::new(privileged)),
            (Socket::New, protocol::GENERIC) => Socket::Generic(Session::new(privileged)),
            (Socket::New, _) => return Ok(Err(nlsock::errno::EPROTONOSUPPORT)),
            // A child may repeat its parent's calls.
            _ if self.protocol() == Some(protocol) => return Ok(Ok(())),
            _ => return Err(Gone),
        };
        Ok(Ok(()))
    }

    /// Sets the socket buffer to the requested size. False if no size was requested.
    fn give_room(&mut self) -> bool {
        let Some(bytes) = self.room.take() else { return false };
        self.grown = true;
        // The kernel doubles the value, for its overhead per datagram.
        let half = bytes.clamp(MIN_ROOM, MAX_ROOM) as usize / 2;
        let set = if self.privileged {
            sockopt::set_socket_send_buffer_size_force(self.fd(), half)
        } else {
            sockopt::set_socket_send_buffer_size(self.fd(), half)
        };
        // A kernel that refuses leaves the old size.
        if set.is_err() {
            let _ = sockopt::set_socket_send_buffer_size(self.fd(), half);
        }
        true
    }

    /// Sends the client its answers in `outbox`. Parts of a dump wait until the client has room; other answers without
    /// room are lost, and the client gets an overrun later. `prompt`: the gateway will answer the next request soon.
    pub(super) fn deliver(&mut self, outbox: &Outbox, prompt: bool) -> Result<(), Gone> {
        let mut parts = outbox.iter().filter(|(to, _)| *to == To::Dumper).count();
        let is_dump = parts > 0;
        let goes_on = self.is_dumping();
        let mut answers = outbox.iter().filter(|(to, _)| *to == To::Requester).count();
        for (to, bytes) in outbox.iter() {
            match to {
                To::Requester => {
                    answers -= 1;
                    let last = answers == 0 && !is_dump && !self.overrun && self.unserved.is_empty();
                    self.offer(FromDaemon::Answer { prompt, last }, bytes)?;
                }
                To::Dumper => {
                    parts -= 1;
                    let word = FromDaemon::Part { last: parts == 0 && !goes_on }.to_word();
                    if !self.waiting.is_empty() || !self.try_send(word, bytes)? {
                        self.waiting.push_back([&word, bytes].concat());
                    }
                }
                To::Group { .. } => {}
            }
        }
        let full = !self.waiting.is_empty();
        with_session!(&mut self.socket, session => session.set_full(full), {});
        Ok(())
    }

    /// Notifies the client of an event in a group that it listens to, if it has room.
    pub(super) fn notify(&mut self, group: u32, bytes: &[u8]) -> Result<(), Gone> {
        self.offer(FromDaemon::Group(group), bytes)
    }

    /// Sends a datagram, or loses it (Linux `netlink_attachskb` of the kernel's own messages).
    fn offer(&mut self, from: FromDaemon, bytes: &[u8]) -> Result<(), Gone> {
        if !self.is_through()? || !self.try_send(from.to_word(), bytes)? {
            self.lose();
        }
        Ok(())
    }

    /// Records that a message to the client was lost.
    pub(super) fn lose(&mut self) {
        self.overrun = with_session!(&self.socket, session => session.reports_overruns(), false);
    }

    /// Tells whether nothing is pending for the client, overruns included. Pending messages are sent only when the
    /// socket has much room again.
    fn is_through(&mut self) -> Result<bool, Gone> {
        if self.waiting.is_empty() && !self.overrun {
            return Ok(true);
        }
        let now = Timespec::default();
        let fd = self.fd();
        let mut room = [PollFd::new(&fd, PollFlags::OUT)];
        let has_room = poll(&mut room, Some(&now)).is_ok() && room[0].revents().contains(PollFlags::OUT);
        if has_room {
            self.flush()?;
        }
        Ok(self.waiting.is_empty() && !self.overrun)
    }

    /// Sends pending parts and overruns, as long as the client has room.
    fn flush(&mut self) -> Result<(), Gone> {
        while let Some(waiting) = self.waiting.pop_front() {
            let (word, bytes) = waiting.split_first_chunk().ok_or(Gone)?;
            if !self.try_send::<{ nlsock::WORD }>(*word, bytes)? {
                self.waiting.push_front(waiting);
                return Ok(());
            }
        }
        with_session!(&mut self.socket, session => session.set_full(false), {});
        if self.overrun && self.try_send(FromDaemon::Overrun.to_word(), &[])? {
            self.overrun = false;
        }
        Ok(())
    }

    /// Sends a datagram. False: the client has no room now.
    fn try_send<const N: usize>(&mut self, word: [u8; N], bytes: &[u8]) -> Result<bool, Gone> {
        let parts = [IoSlice::new(&word), IoSlice::new(bytes)];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(self.fd(), &parts, &mut SendAncillaryBuffer::default(), flags) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) if self.give_room() => {}
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => return Ok(false),
                Err(_) => return Err(Gone),
            }
        }
    }

    /// Events for epoll, if they have changed: requests, and room in the socket if messages are pending.
    pub(super) fn new_interest(&mut self) -> Option<EventFlags> {
        let more = !self.waiting.is_empty() || self.overrun || self.is_dumping();
        let interest = match (self.takes_datagrams(), more) {
            // The client is served again as soon as it has room for answers.
            (false, _) => EventFlags::OUT,
            (true, true) => EventFlags::IN | EventFlags::OUT,
            (true, false) => EventFlags::IN,
        };
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Sends queued parts and continues the dump, until the client's buffer is full or the dump is complete.
    pub(super) fn go_on(&mut self, protocols: &mut Protocols, outbox: &mut Outbox) -> Result<(), Gone> {
        self.flush()?;
        if !self.waiting.is_empty() {
            return Ok(());
        }
        let parts = if self.privileged { PARTS } else { 1 };
        for _ in 0..parts {
            match &mut self.socket {
                Socket::Route(session) if session.is_dumping() => {
                    outbox.clear();
                    session.continue_dump(&mut protocols.rtnl, outbox);
                }
                Socket::Xfrm(session) if session.is_dumping() => {
                    outbox.clear();
                    session.continue_dump(&mut protocols.xfrm, outbox);
                }
                Socket::Generic(session) if session.is_dumping() => {
                    outbox.clear();
                    session.continue_dump(&mut protocols.generic, outbox);
                }
                _ => return Ok(()),
            }
            self.looking = outbox.is_empty() && self.is_dumping();
            self.deliver(outbox, false)?;
            if self.protocol() == Some(protocol::XFRM) {
                outbox.wipe();
            }
            if !self.waiting.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Limits of the socket buffer: room for the longest datagram, as the kernel accounts it; and the largest allowed size.
const MIN_ROOM: u32 = 256 << 10;
const MAX_ROOM: u32 = 16 << 20;

/// Parts of a dump that are written before other clients are served, for a client that may change the node.
const PARTS: usize = 4;

/// Share of a turn for a read-only client: requests are handled until this time, or until their answers reach this many
/// bytes. The last request of a slice is completed.
#[derive(Clone, Copy, Debug)]
struct Slice {
    end: Instant,
}

impl Slice {
    const TIME: Duration = Duration::from_millis(1);
    const ANSWERS: usize = 32 << 10;

    fn begin() -> Self {
        Self { end: Instant::now() + Self::TIME }
    }

    fn is_over(self, outbox: &Outbox) -> bool {
        outbox.len() >= Self::ANSWERS || Instant::now() >= self.end
    }
}

/// Handles requests until `slice` is over, and returns the remaining ones.
fn carry_out<'a, P: Protocol>(
    session: &mut Session<P>,
    messages: &'a [u8],
    protocol: &mut P,
    listeners: Groups,
    outbox: &mut Outbox,
    slice: Option<Slice>,
) -> &'a [u8] {
    let Some(slice) = slice else {
        session.handle(messages, protocol, listeners, outbox);
        return &[];
    };
    let mut left = messages;
    while let Some(message) = Messages::new(left).next() {
        session.handle(message.bytes, protocol, listeners, outbox);
        left = left.get(align(message.bytes.len())..).unwrap_or_default();
        if slice.is_over(outbox) {
            return left;
        }
    }
    &[]
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
fn has_unread_rights(fd: &OwnedFd) -> bool {
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
pub(super) fn inode_of_socket(fd: BorrowedFd<'_>) -> Option<u64> {
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
fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::pipe::fcntl_getpipe_size(fd).is_ok()
}

/// Writes the answer of a call to its pipe.
fn write_answer(fd: &OwnedFd, answer: Answer) {
    if rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).is_ok() {
        // A client that does not read the answer does not need it.
        let _ = rustix::io::write(fd, &answer.to_bytes());
    }
}

//! Netlink socket of one program: a connection with the datagrams of [`nlsock`].

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

mod adoption;
mod datagram;
mod delivery;
mod privilege;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use link::Discard;
use netlink::message::{Messages, align};
use netlink::{Groups, Outbox, Protocol, Session, To};
use nlsock::{Answer, Sysctl, ToDaemon, protocol};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use zeroize::Zeroizing;

use super::protocols::{Generic, Protocols, Route, Xfrm};
use super::sysctl::{self, OpenFile};
use crate::journal::Journal;
use crate::privilege::{Peer, Privilege};
use datagram::{has_unread_rights, is_pipe, write_answer};
use privilege::Heir;

pub(super) use datagram::{Received, inode_of_socket};

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
}

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

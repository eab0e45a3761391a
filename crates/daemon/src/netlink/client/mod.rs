//! Netlink socket of one program: a connection with the datagrams of [`nlsock`].

mod adoption;
mod calls;
mod datagram;
mod delivery;
mod heir;
mod privilege;
mod slice;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use link::Discard;
use netlink::message::Messages;
use netlink::rtnl::nums::RTM_NEWLINK;
use netlink::{Groups, Outbox, To};
use nlsock::{Answer, Sysctl, ToDaemon, protocol};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown, sockopt};
use zeroize::Zeroizing;

use super::protocols::Protocols;
use super::socket::NetlinkSocket;
use super::sysctl::{self, OpenFile};
use crate::journal::Journal;
use crate::opener::request::ForClient;
use crate::privilege::{Peer, Privilege};
use datagram::{has_unread_rights, is_pipe, write_answer};
use heir::Heir;
use slice::{Slice, carry_out};

pub(super) use datagram::{Gone, Received, inode_of_socket};

/// Kind of the client's socket.
#[derive(Debug)]
enum Socket {
    /// Not chosen yet.
    New,
    /// Socket of a netlink protocol.
    Netlink(Box<dyn NetlinkSocket>),
    /// No protocol: a file of `/proc/sys/net` that is open for writing.
    File(OpenFile),
}

impl Socket {
    /// The netlink socket, after the client has chosen a protocol.
    fn netlink(&self) -> Option<&dyn NetlinkSocket> {
        if let Self::Netlink(socket) = self { Some(&**socket) } else { None }
    }

    /// The netlink socket, after the client has chosen a protocol.
    fn netlink_mut(&mut self) -> Option<&mut dyn NetlinkSocket> {
        if let Self::Netlink(socket) = self { Some(&mut **socket) } else { None }
    }
}

/// Process behind a connection, and what it may do.
#[derive(Debug)]
struct Rights {
    privileged: bool,
    claimant: Option<Arc<Peer>>,
    user: u32,
    process: u32,
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
    is_scanning: bool,
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
        let (user, process) = (peer.uid, peer.pid);
        let claimant = (privilege == Privilege::Claimable).then(|| Arc::new(peer));
        let rights = Rights { privileged: privilege == Privilege::Full, claimant, user, process };
        Ok(Self::with_rights(fd, rights, discard.clone(), Arc::clone(epoll)))
    }

    /// A client over `fd` that has sent nothing yet.
    fn with_rights(fd: OwnedFd, rights: Rights, discard: Discard, epoll: Arc<OwnedFd>) -> Self {
        let Rights { privileged, claimant, user, process } = rights;
        Self {
            fd: Some(fd),
            discard,
            epoll,
            privileged,
            claimant,
            heirs: Vec::new(),
            sender: None,
            received: 0,
            uid: user,
            pid: process,
            socket: Socket::New,
            waiting: VecDeque::new(),
            unserved: Zeroizing::default(),
            is_scanning: false,
            room: None,
            grown: false,
            overrun: false,
            interest: EventFlags::IN,
            bypass: Vec::new(),
            kept: None,
        }
    }

    /// UDP ports that bypass policies while the client is connected.
    pub(super) fn bypass(&self) -> &[u16] {
        &self.bypass
    }

    /// Closes descriptors of this client in the background.
    pub(super) fn close_later(&self, fds: impl IntoIterator<Item = OwnedFd>) {
        if !self.privileged {
            fds.into_iter().for_each(|fd| self.discard.close(fd));
        }
    }

    /// Receives one datagram. `None`: there is none.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<Option<Received>, Gone> {
        datagram::receive(self.fd(), (!self.privileged).then_some(&self.discard), buffer)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is closed last").as_fd()
    }

    /// Protocol of the socket, after the client has chosen one.
    pub(super) fn protocol(&self) -> Option<u32> {
        self.socket.netlink().map(NetlinkSocket::protocol)
    }

    /// Tells whether the client is a file, without a netlink protocol.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self.socket, Socket::File(_))
    }

    fn port(&self) -> u32 {
        self.socket.netlink().map_or(0, |socket| socket.port())
    }

    /// Protocol and port of the socket, if it has a port.
    pub(super) fn name(&self) -> Option<(u32, u32)> {
        Some((self.protocol()?, self.port())).filter(|&(_, port)| port != 0)
    }

    /// Groups of `protocol` that the client has joined.
    pub(super) fn groups(&self, protocol: u32) -> Groups {
        let socket = self.socket.netlink().filter(|socket| socket.protocol() == protocol);
        socket.map_or(Groups::default(), |socket| socket.groups())
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
                self.close_later([fd]);
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
            self.close_later([fd]);
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
        self.unserved.is_empty() && !self.is_scanning
    }

    fn is_dumping(&self) -> bool {
        self.socket.netlink().is_some_and(NetlinkSocket::is_dumping)
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
        let (slice, was_dumping) = ((!self.privileged).then(Slice::begin), self.is_dumping());
        let _for_client = self.begin_links(messages)?;
        let socket = self.socket.netlink_mut().ok_or(Gone)?;
        let number = socket.protocol();
        if socket.port() == 0 {
            socket.set_port(port(number, 0).map_err(|_| Gone)?);
        }
        let listeners = listeners(number).union(socket.groups());
        let left = if self.privileged && protocols.journal.is_some() {
            for message in Messages::new(messages) {
                let pending = protocols.begin_change(number, message.bytes);
                let is_done = socket.handle(message.bytes, protocols, listeners, outbox);
                protocols.end_change(pending, is_done);
            }
            // The acknowledgements are sent later.
            protocols.journal.iter_mut().for_each(Journal::write);
            &[]
        } else {
            carry_out(socket, messages, protocols, listeners, outbox, slice)
        };
        self.unserved.extend_from_slice(left);
        if !was_dumping {
            self.is_scanning = self.is_dumping() && !outbox.iter().any(|(to, _)| to == To::Dumper);
        }
        Ok(())
    }

    /// Lets links that requests of a privileged client make be opened by its right.
    fn begin_links(&self, messages: &[u8]) -> Result<Option<ForClient>, Gone> {
        let makes_links = self.privileged
            && self.protocol() == Some(protocol::ROUTE)
            && Messages::new(messages).any(|message| message.header.kind == RTM_NEWLINK);
        makes_links.then(|| ForClient::begin(self.fd())).transpose().map_err(|_| Gone)
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

//! One program's netlink socket: a connection whose datagrams are those of [`nlsock`].

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use control::netlink::generic::Generic;
use control::netlink::{Groups, Outbox, Session, To};
use nlsock::{Answer, FromDaemon, Sysctl, ToDaemon, protocol};
use rustix::event::epoll::{self, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv,
    recvmsg, sendmsg, shutdown, sockopt,
};

use super::closing::Closing;
use super::sysctl::{self, OpenFile};
use super::{Protocols, Route, Xfrm};

/// A datagram that has been received, and where its sender wants its answer.
pub(super) type Received = (usize, Option<OwnedFd>);

/// What kind of socket it is.
#[derive(Debug)]
enum Socket {
    /// It has not said.
    New,
    Route(Session<Route>),
    Xfrm(Session<Xfrm>),
    Generic(Session<Generic>),
    /// None: a file of `/proc/sys/net` that is open to be written.
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
    /// `None` when it is closed.
    fd: Option<OwnedFd>,
    /// Where it is closed, if that may take long.
    closing: Closing,
    /// What waits for it.
    epoll: Arc<OwnedFd>,
    /// Whether it may change things: it is the superuser's or our own user's.
    pub(super) privileged: bool,
    /// Whose it is.
    pub(super) uid: u32,
    /// The process that connected.
    pub(super) pid: u32,
    socket: Socket,
    /// How many sockets it was before.
    number: u32,
    /// What it has been sent and did not take yet: the last parts of the dumps that one datagram asked for.
    waiting: VecDeque<Vec<u8>>,
    /// The room that it wants for what it has not read. It is given when it is needed first, which it seldom is.
    room: Option<u32>,
    /// Whether it was given.
    grown: bool,
    /// Whether answers or notifications were lost and it has yet to be told.
    overrun: bool,
    /// What epoll was last told to wait for.
    pub(super) interest: EventFlags,
}

/// That a connection is to be closed.
#[derive(Debug)]
pub(super) struct Gone;

impl Drop for Client {
    fn drop(&mut self) {
        let unread = self.fd.take_if(|fd| !self.privileged && has_unread_rights(fd));
        if let Some(fd) = unread {
            // It would be found ready for as long as it is open.
            let _ = epoll::delete(&*self.epoll, &fd);
            self.closing.close(self.uid, [fd]);
        }
    }
}

impl Client {
    pub(super) fn new(fd: OwnedFd, closing: &Closing, epoll: &Arc<OwnedFd>) -> Result<Self, Errno> {
        // Each datagram has them then, and the end has not: an empty one is told from it when the connection is closed.
        sockopt::set_socket_passcred(&fd, true)?;
        let peer = sockopt::socket_peercred(&fd)?;
        let privileged = peer.uid.is_root() || peer.uid == rustix::process::geteuid();
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let (socket, waiting, interest) = (Socket::New, VecDeque::new(), EventFlags::IN);
        let uid = peer.uid.as_raw();
        let (room, grown, overrun) = (None, false, false);
        let (fd, closing, epoll, number) = (Some(fd), closing.clone(), Arc::clone(epoll), 0);
        Ok(Self { fd, closing, epoll, privileged, uid, pid, socket, number, waiting, room, grown, overrun, interest })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it is closed last").as_fd()
    }

    /// The protocol that it speaks, once it has said.
    pub(super) const fn protocol(&self) -> Option<u32> {
        match self.socket {
            Socket::New | Socket::File(_) => None,
            Socket::Route(_) => Some(protocol::ROUTE),
            Socket::Xfrm(_) => Some(protocol::XFRM),
            Socket::Generic(_) => Some(protocol::GENERIC),
        }
    }

    /// Whether it is a file, which is spoken to in no protocol.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self.socket, Socket::File(_))
    }

    fn port(&self) -> u32 {
        with_session!(&self.socket, session => session.port(), 0)
    }

    /// The protocol and port that it has, if it has one.
    pub(super) fn name(&self) -> Option<(u32, u32)> {
        Some((self.protocol()?, self.port())).filter(|&(_, port)| port != 0)
    }

    /// The groups of `protocol` that it listens to.
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
        // For all that one may have: what there is no room for, the kernel would close at once.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RIGHTS), ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(self.fd(), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(Gone),
        };
        let rights = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let mut rights: Vec<OwnedFd> = rights.flatten().collect();
        if rights.len() > 1 || rights.iter().any(|fd| !is_pipe(fd)) {
            if !self.privileged {
                self.closing.close(self.uid, rights);
            }
            return Err(Gone);
        }
        let answer = rights.pop();
        // No datagram without a descriptor is empty: this is the end.
        if received.bytes == 0 && answer.is_none() { Err(Gone) } else { Ok(Some((received.bytes, answer))) }
    }

    /// Does what one datagram says; what comes of it is in `outbox`. `port` gives out a port for a protocol: the one that
    /// is wished for, or any; or says why not. `answer` is for the last of its calls.
    pub(super) fn handle(
        &mut self,
        datagram: &[u8],
        answer: Option<OwnedFd>,
        protocols: &mut Protocols,
        listeners: impl Fn(u32) -> Groups,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
        outbox: &mut Outbox,
    ) -> Result<(), Gone> {
        if let Socket::File(file) = &mut self.socket {
            let outcome = file.write(datagram, answer.is_some(), protocols);
            if let Some(fd) = answer {
                write_answer(&fd, Answer { error: outcome.err().unwrap_or(0), port: 0 });
            }
            return Ok(());
        }
        let mut outcome = Ok(());
        for call in ToDaemon::calls(datagram) {
            outcome = match call.ok_or(Gone)? {
                // Said late, of a socket before: nothing of it is meant for this one.
                ToDaemon::Hello { number, .. } if number.wrapping_sub(self.number).cast_signed() < 0 => return Ok(()),
                ToDaemon::Data(messages) => self.request(messages, protocols, &listeners, &port, outbox).map(Ok)?,
                ToDaemon::Sysctl { what, name } => return self.sysctl(what, name, protocols),
                call => self.call(call, &port)?,
            };
        }
        if let Some(fd) = answer {
            write_answer(&fd, Answer { error: outcome.err().unwrap_or(0), port: self.port() });
        }
        Ok(())
    }

    /// Answers about a file of `/proc/sys/net`, and is that file from then on if it was opened. Else it is the end.
    fn sysctl(&mut self, what: Sysctl, name: &[u8], protocols: &Protocols) -> Result<(), Gone> {
        if !matches!(self.socket, Socket::New) {
            return Err(Gone);
        }
        let (answer, text, opened) = sysctl::ask(what, name, self.privileged, protocols);
        // It has been sent nothing before, and so has room.
        self.try_send(answer.to_bytes(), &text)?;
        self.socket = Socket::File(opened.ok_or(Gone)?);
        Ok(())
    }

    /// Does what messages ask for.
    fn request(
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
        match &mut self.socket {
            Socket::New | Socket::File(_) => return Err(Gone),
            Socket::Route(session) => {
                session.handle(messages, &mut protocols.rtnl, listeners(protocol::ROUTE), outbox);
            }
            Socket::Xfrm(session) => session.handle(messages, &mut protocols.xfrm, listeners(protocol::XFRM), outbox),
            Socket::Generic(session) => session.handle(messages, &mut Generic, listeners(protocol::GENERIC), outbox),
        }
        Ok(())
    }

    /// Does what a call of the program's that is no message asks for, and says with which `errno` it is refused.
    fn call(
        &mut self,
        call: ToDaemon<'_>,
        port: impl Fn(u32, u32) -> Result<u32, i32>,
    ) -> Result<Result<(), i32>, Gone> {
        let outcome = match call {
            ToDaemon::Data(_) | ToDaemon::Sysctl { .. } => return Err(Gone),
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
            ToDaemon::Hello { protocol, number } => {
                if number != self.number {
                    (self.socket, self.number) = (Socket::New, number);
                    self.waiting.clear();
                    (self.room, self.overrun) = (None, false);
                }
                return self.hello(protocol);
            }
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

    /// Makes it a socket of that protocol.
    fn hello(&mut self, protocol: u32) -> Result<Result<(), i32>, Gone> {
        let privileged = self.privileged;
        self.socket = match (&self.socket, protocol) {
            (Socket::New, protocol::ROUTE) => Socket::Route(Session::new(privileged)),
            (Socket::New, protocol::XFRM) => Socket::Xfrm(Session::new(privileged)),
            (Socket::New, protocol::GENERIC) => Socket::Generic(Session::new(privileged)),
            (Socket::New, _) => return Ok(Err(nlsock::errno::EPROTONOSUPPORT)),
            // A child says what its parent may have said.
            _ if self.protocol() == Some(protocol) => return Ok(Ok(())),
            _ => return Err(Gone),
        };
        Ok(Ok(()))
    }

    /// Gives it the room that it wants, by the kernel's account of this end. False: it has that.
    fn give_room(&mut self) -> bool {
        let Some(bytes) = self.room.take() else { return false };
        self.grown = true;
        // The kernel doubles what it is told, for its own account of each datagram.
        let half = bytes.clamp(MIN_ROOM, MAX_ROOM) as usize / 2;
        let set = if self.privileged {
            sockopt::set_socket_send_buffer_size_force(self.fd(), half)
        } else {
            sockopt::set_socket_send_buffer_size(self.fd(), half)
        };
        // A kernel that does not allow it leaves it the room that it has.
        if set.is_err() {
            let _ = sockopt::set_socket_send_buffer_size(self.fd(), half);
        }
        true
    }

    /// Sends it its own of what is in `outbox`. Parts of a dump wait until it takes them; answers that it does not take
    /// are lost, and it will be told so.
    /// `prompt`: what it asks next will be answered soon.
    pub(super) fn deliver(&mut self, outbox: &Outbox, prompt: bool) -> Result<(), Gone> {
        let is_dump = outbox.iter().any(|(to, _)| to == To::Dumper);
        let mut answers = outbox.iter().filter(|(to, _)| *to == To::Requester).count();
        for (to, bytes) in outbox.iter() {
            match to {
                To::Requester => {
                    answers -= 1;
                    let last = answers == 0 && !is_dump && !self.overrun;
                    self.offer(FromDaemon::Answer { prompt, last }, bytes)?;
                }
                To::Dumper => {
                    if !self.waiting.is_empty() || !self.try_send(FromDaemon::Part.to_word(), bytes)? {
                        self.waiting.push_back([&FromDaemon::Part.to_word(), bytes].concat());
                    }
                }
                To::Group { .. } => {}
            }
        }
        let full = !self.waiting.is_empty();
        with_session!(&mut self.socket, session => session.set_full(full), {});
        Ok(())
    }

    /// Tells it what has happened in a group that it listens to, if it has room.
    pub(super) fn notify(&mut self, group: u32, bytes: &[u8]) -> Result<(), Gone> {
        self.offer(FromDaemon::Group(group), bytes)
    }

    /// Sends a datagram, or loses it (Linux `netlink_attachskb` of what the kernel sends).
    fn offer(&mut self, from: FromDaemon, bytes: &[u8]) -> Result<(), Gone> {
        if !self.is_through()? || !self.try_send(from.to_word(), bytes)? {
            self.lose();
        }
        Ok(())
    }

    /// Notes that something was lost to it.
    pub(super) fn lose(&mut self) {
        self.overrun = with_session!(&self.socket, session => session.wants_overruns(), false);
    }

    /// Whether it has been sent all that waits for it, and been told of what was lost: until there is much room again,
    /// nothing more is sent.
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

    /// Sends what waits for it, and tells it of what was lost, as long as it takes that.
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

    /// Sends a datagram. False: it does not take it now.
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

    /// What to wait for, if that has changed: what it asks, and that it takes more, if there is more.
    pub(super) fn new_interest(&mut self) -> Option<EventFlags> {
        let more = !self.waiting.is_empty()
            || self.overrun
            || with_session!(&self.socket, session => session.is_dumping(), false);
        let interest = if more { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        (std::mem::replace(&mut self.interest, interest) != interest).then_some(interest)
    }

    /// Goes on with what it did not take, and with its dump, until it takes no more or all is done.
    pub(super) fn go_on(&mut self, protocols: &mut Protocols, outbox: &mut Outbox) -> Result<(), Gone> {
        self.flush()?;
        if !self.waiting.is_empty() {
            return Ok(());
        }
        for _ in 0..PARTS {
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
                    session.continue_dump(&mut Generic, outbox);
                }
                _ => return Ok(()),
            }
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

/// Room for the longest datagram, with what the kernel takes it for; and the most that a client can have.
const MIN_ROOM: u32 = 256 << 10;
const MAX_ROOM: u32 = 16 << 20;

/// Descriptors that a datagram has at most (`SCM_MAX_FD`).
const MAX_RIGHTS: usize = 253;

/// Parts of a dump that are written before others are looked after.
const PARTS: usize = 4;

/// Ends a connection, and says whether it holds datagrams with descriptors that nobody has received: these are closed with it.
fn has_unread_rights(fd: &OwnedFd) -> bool {
    // Nothing more comes, and the other end sees that it is over.
    let _ = shutdown(fd, Shutdown::Both);
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        match recvmsg(fd, &mut [], &mut control, flags) {
            // There was no room for them.
            Ok(looked) if looked.flags.contains(ReturnFlags::CTRUNC) => return true,
            Err(Errno::INTR) => continue,
            Ok(_) if control.drain().next().is_some() => {}
            // Every datagram has its sender's credentials: there is none.
            Ok(_) | Err(_) => return false,
        }
        let _ = recv(fd, &mut [0; 0], RecvFlags::DONTWAIT);
    }
}

/// Whether a descriptor is one of a pipe: what else it is might have us wait, even to be told what.
fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::pipe::fcntl_getpipe_size(fd).is_ok()
}

/// Answers a call, to a pipe.
fn write_answer(fd: &OwnedFd, answer: Answer) {
    if rustix::fs::fcntl_setfl(fd, OFlags::NONBLOCK).is_ok() {
        // Who does not read it does not want to know.
        let _ = rustix::io::write(fd, &answer.to_bytes());
    }
}

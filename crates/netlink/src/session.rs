//! Kernel side of one client's netlink socket: options, multicast groups, and the dump in progress.
//!
//! A [`Session`] is a core: its input is datagrams, its output is the datagrams of an [`Outbox`]. A [`Protocol`]
//! carries requests out.

use std::fmt;
use std::ops::{Deref, DerefMut};

use packet::Budget;

use super::error::{AckOptions, Error, errno, write_ack, write_done};
use super::message::{Header, Message, Messages, Writer, flag, kind};

/// Netlink protocol, with the state that its requests read and change.
pub trait Protocol {
    /// The highest number of a multicast group.
    const GROUPS: u32;

    /// Whether unprivileged clients may join the groups (`NL_CFG_F_NONROOT_RECV`).
    const ANYONE_LISTENS: bool;

    /// Whether unprivileged clients may send the request: it changes nothing, or [`handle`](Self::handle) refuses a
    /// change.
    fn only_reads(request: &Request<'_>) -> bool;

    /// Whether the request adds an object, so that it is refused for lack of memory. It may also change one.
    fn adds(request: &Request<'_>) -> bool;

    /// Whether a request with these flags begins a dump.
    fn is_dump(request: &Request<'_>) -> bool;

    /// Carries a request out, and writes the reply messages, without the acknowledgement.
    ///
    /// # Errors
    /// Refusal of the request; the state is unchanged.
    fn handle(&mut self, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error>;

    /// Begins a dump.
    ///
    /// # Errors
    /// Refusal of the dump.
    fn dump(&mut self, request: &Request<'_>) -> Result<Dump<Self>, Error>;
}

/// Dump in progress. Each call writes as many messages as fit in one datagram, and continues after the last message
/// written.
pub type Dump<P> = Box<dyn FnMut(&mut P, &mut Part<'_>) -> Result<Progress, Error> + Send>;

/// Progress of a dump.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    /// The datagram is full, and more messages follow.
    More,
    /// The dump is complete.
    Done,
}

/// Request to a protocol.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The message.
    pub message: Message<'a>,
    /// Whether dump requests of the client are validated strictly (`NETLINK_GET_STRICT_CHK`).
    pub strict: bool,
    /// Whether the client may change the state.
    pub privileged: bool,
    /// The client's port.
    pub port: u32,
    /// Whether the request restores a saved object.
    pub restored: bool,
}

impl<'a> Request<'a> {
    /// Type.
    pub const fn kind(&self) -> u16 {
        self.message.header.kind
    }

    /// Whether all of `flags` are set.
    pub const fn has(&self, flags: u16) -> bool {
        self.message.header.has(flags)
    }

    /// Bytes behind the header.
    pub fn payload(&self) -> &'a [u8] {
        self.message.payload()
    }
}

/// Set of multicast groups: 1 to 127.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Groups(u128);

impl Groups {
    /// Whether the set contains `group`.
    pub const fn has(self, group: u32) -> bool {
        group < u128::BITS && self.0 >> group & 1 == 1
    }

    /// Adds or removes `group`.
    pub const fn set(&mut self, group: u32, on: bool) {
        let bit = if group < u128::BITS { 1 << group } else { 0 };
        self.0 = if on { self.0 | bit } else { self.0 & !bit };
    }

    /// Union of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the sets intersect.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Replaces groups 1 to 32; bit `n` of the mask is group `n + 1`.
    const fn set_mask(&mut self, mask: u32) {
        self.0 = self.0 & !(0xffff_ffff << 1) | (mask as u128) << 1;
    }
}

/// Limit of the reply to one datagram, in bytes. Further requests of the datagram are refused: one datagram can contain
/// very many dump requests.
const MAX_ANSWERS: usize = 256 << 10;

/// Queue of datagrams to send. The caller empties and reuses the queue.
#[derive(Debug, Default)]
pub struct Outbox {
    writer: Writer,
    /// End offset and addressee of each datagram.
    ends: Vec<(usize, To)>,
}

/// Addressee of a datagram.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum To {
    /// To the requesting client: a reply, which is lost if the client's receive buffer is full.
    Requester,
    /// To the requesting client: a part of a dump, which waits for space in the receive buffer.
    Dumper,
    /// For the members of a group.
    Group {
        /// The group.
        group: u32,
        /// Whether the requesting client receives its own copy as a reply (`NLM_F_ECHO`) and not as a member.
        echoed: bool,
    },
}

impl To {
    /// Whether the datagram is for the requesting client.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Requester | Self::Dumper)
    }
}

impl Outbox {
    /// The datagrams, in order.
    pub fn iter(&self) -> impl Iterator<Item = (To, &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(end, _)| end));
        starts.zip(&self.ends).map(|(start, &(end, to))| (to, &self.writer.as_bytes()[start..end]))
    }

    /// Removes all datagrams.
    pub fn clear(&mut self) {
        self.writer.clear();
        self.writer.shrink_to(MAX_ANSWERS);
        self.ends.clear();
    }

    /// Removes all datagrams and overwrites their bytes in memory.
    pub fn wipe(&mut self) {
        self.writer.wipe();
        self.ends.clear();
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Total bytes of all datagrams.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    /// Adds a datagram that `write` writes.
    pub fn push(&mut self, to: To, write: impl FnOnce(&mut Writer)) {
        write(&mut self.writer);
        self.ends.push((self.writer.len(), to));
    }

    /// Adds a notification without a request: its sequence number and port are 0.
    pub fn announce(&mut self, listeners: Groups, group: u32, kind: u16, body: impl FnOnce(&mut Writer)) {
        if listeners.has(group) {
            let header = Header { kind, ..Header::default() };
            self.push(To::Group { group, echoed: false }, |w| w.message(header, body));
        }
    }
}

/// Destination of a request's replies and notifications.
#[derive(Debug)]
pub struct Reply<'a> {
    outbox: &'a mut Outbox,
    listeners: Groups,
    seq: u32,
    port: u32,
    echo: bool,
}

impl<'a> Reply<'a> {
    /// Destination of notifications without a request: their sequence number and port are 0.
    pub const fn unsolicited(listeners: Groups, outbox: &'a mut Outbox) -> Self {
        Self { outbox, listeners, seq: 0, port: 0, echo: false }
    }

    /// Sends one message to the requester.
    pub fn send(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) {
        let header = Header { kind, flags, seq: self.seq, port: self.port };
        self.outbox.push(To::Requester, |w| w.message(header, body));
    }

    /// Whether a notification of `group` has a receiver: a member, or the requester by `NLM_F_ECHO`.
    pub const fn has_listeners(&self, group: u32) -> bool {
        self.echo || self.listeners.has(group)
    }

    /// Sends a notification to `group`, and to the requester if it set `NLM_F_ECHO` (Linux `rtnl_notify`).
    pub fn notify(&mut self, group: u32, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) {
        if !self.has_listeners(group) {
            return;
        }
        let header = Header { kind, flags, seq: self.seq, port: self.port };
        let listened = self.listeners.has(group);
        let Outbox { writer, ends } = &mut *self.outbox;
        let start = writer.len();
        writer.message(header, body);
        if listened {
            ends.push((writer.len(), To::Group { group, echoed: self.echo }));
        }
        if self.echo {
            if listened {
                let copy = writer.as_bytes()[start..].to_vec();
                writer.fixed(&copy);
            }
            ends.push((writer.len(), To::Requester));
        }
    }
}

/// One datagram of a dump, under construction.
#[derive(Debug)]
pub struct Part<'a> {
    writer: &'a mut Writer,
    start: usize,
    limit: usize,
    header: Header,
    /// Whether the tables changed during the dump, so that entries may be missing (`NLM_F_DUMP_INTR`).
    interrupted: bool,
    /// Flags of the message that ends the dump.
    end_flags: u16,
}

impl Part<'_> {
    /// Writes a message. Returns false if the datagram is full: the caller writes the message into the next part.
    pub fn message(&mut self, kind: u16, body: impl FnOnce(&mut Writer)) -> bool {
        self.message_with(kind, 0, body)
    }

    /// As [`message`](Self::message), with additional flags.
    pub fn message_with(&mut self, kind: u16, flags: u16, body: impl FnOnce(&mut Writer)) -> bool {
        let before = self.writer.len();
        let intr = if self.interrupted { flag::DUMP_INTR } else { 0 };
        self.writer.message(Header { kind, flags: self.header.flags | intr | flags, ..self.header }, body);
        // The first message of a datagram is written even if it exceeds the limit.
        if before > self.start && self.writer.len() - self.start > self.limit {
            self.writer.truncate(before);
            return false;
        }
        true
    }

    /// Marks the dump as filtered by the request (`NLM_F_DUMP_FILTERED`).
    pub const fn filtered(&mut self) {
        self.end_flags |= flag::DUMP_FILTERED;
    }

    /// Marks the dump as interrupted, if the tables have changed since it began.
    pub const fn interrupted(&mut self, interrupted: bool) {
        self.interrupted |= interrupted;
    }
}

/// Writes messages until one does not fit into the part, and sets `last` to the key of the last one written.
pub(crate) fn write_each<K: Copy, T>(
    part: &mut Part<'_>,
    last: &mut Option<K>,
    mut items: impl Iterator<Item = (K, T)>,
    mut write: impl FnMut(&mut Part<'_>, K, T) -> bool,
) -> Progress {
    let full = items.any(|(key, item)| {
        let written = write(part, key, item);
        if written {
            *last = Some(key);
        }
        !written
    });
    if full { Progress::More } else { Progress::Done }
}

/// Length of a dump's datagrams for a client whose receive buffer is unknown: Linux's `NLMSG_GOODSIZE`.
const PART_LEN: usize = 3776;
/// Maximum length of a dump's datagrams (Linux `netlink_dump`).
const MAX_PART_LEN: usize = 32768 - 320;

/// State of one client's socket that all protocols have.
#[derive(Debug)]
pub struct SocketState {
    port: u32,
    privileged: bool,
    groups: Groups,
    /// [`Protocol::GROUPS`].
    last_group: u32,
    /// [`Protocol::ANYONE_LISTENS`].
    anyone_listens: bool,
    acks: AckOptions,
    strict: bool,
    no_enobufs: bool,
    full: bool,
    part_len: usize,
}

/// One client's socket.
pub struct Session<P: Protocol> {
    state: SocketState,
    dump: Option<Running<P>>,
}

impl<P: Protocol> fmt::Debug for Session<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl<P: Protocol> Deref for Session<P> {
    type Target = SocketState;

    fn deref(&self) -> &SocketState {
        &self.state
    }
}

impl<P: Protocol> DerefMut for Session<P> {
    fn deref_mut(&mut self) -> &mut SocketState {
        &mut self.state
    }
}

struct Running<P: Protocol> {
    next: Dump<P>,
    seq: u32,
    interrupted: bool,
}

impl SocketState {
    /// Sets whether later requests may change the state (`privileged`) or only read it.
    pub const fn set_privileged(&mut self, privileged: bool) {
        self.privileged = privileged;
    }

    /// Port; 0 before `bind`.
    pub const fn port(&self) -> u32 {
        self.port
    }

    /// The groups that the client has joined.
    pub const fn groups(&self) -> Groups {
        self.groups
    }

    /// Whether the client is notified (`ENOBUFS`) when notifications were lost.
    pub const fn reports_overruns(&self) -> bool {
        !self.no_enobufs
    }

    /// Binds the socket to `port`, which is not 0 and is unused, and joins or leaves groups 1 to 32 according to the
    /// mask.
    ///
    /// # Errors
    /// An `errno` of `bind(2)`: the socket is bound to another port, or the client may not join groups.
    pub fn bind(&mut self, port: u32, groups: u32) -> Result<(), i32> {
        if self.port != 0 && self.port != port {
            return Err(errno::EINVAL);
        }
        if groups != 0 && !self.anyone_listens && !self.privileged {
            return Err(errno::EPERM);
        }
        self.port = port;
        self.groups.set_mask(groups);
        Ok(())
    }

    /// Sets the port chosen by the server, unless the socket is bound (Linux `netlink_autobind`).
    pub const fn set_port(&mut self, port: u32) {
        if self.port == 0 {
            self.port = port;
        }
    }

    /// Sets an option of `SOL_NETLINK`.
    ///
    /// # Errors
    /// An `errno` of `setsockopt(2)`.
    pub fn set_option(&mut self, option: u32, value: u32) -> Result<(), i32> {
        use nlsock::option as o;
        let on = value != 0;
        match option {
            o::ADD_MEMBERSHIP | o::DROP_MEMBERSHIP => {
                if !self.anyone_listens && !self.privileged {
                    return Err(errno::EPERM);
                }
                if value == 0 || value > self.last_group {
                    return Err(errno::EINVAL);
                }
                self.groups.set(value, option == o::ADD_MEMBERSHIP);
            }
            o::CAP_ACK => self.acks.cap = on,
            o::EXT_ACK => self.acks.ext = on,
            o::GET_STRICT_CHK => self.strict = on,
            o::NO_ENOBUFS => self.no_enobufs = on,
            o::PKTINFO | o::BROADCAST_ERROR | o::LISTEN_ALL_NSID => {}
            _ => return Err(nlsock::errno::ENOPROTOOPT),
        }
        Ok(())
    }

    /// Records the length of the client's receive buffer, the limit for later parts of a dump.
    pub fn set_recv_len(&mut self, len: u32) {
        self.part_len = self.part_len.max((len as usize).min(MAX_PART_LEN));
    }

    /// Sets whether parts of a dump wait for space in the client's receive buffer. Meanwhile no other dump begins
    /// (Linux `netlink_dump`).
    pub const fn set_full(&mut self, full: bool) {
        self.full = full;
    }
}

impl<P: Protocol> Session<P> {
    /// Session of a privileged client, or of a client with read access only.
    pub fn new(privileged: bool) -> Self {
        let state = SocketState {
            port: 0,
            privileged,
            groups: Groups::default(),
            last_group: P::GROUPS,
            anyone_listens: P::ANYONE_LISTENS,
            acks: AckOptions::default(),
            strict: false,
            no_enobufs: false,
            full: false,
            part_len: PART_LEN,
        };
        Self { state, dump: None }
    }

    /// Carries out the requests of a datagram, and writes the replies. Later parts of a dump are written by
    /// [`continue_dump`](Self::continue_dump). Returns whether all requests were carried out.
    pub fn handle(&mut self, datagram: &[u8], protocol: &mut P, listeners: Groups, outbox: &mut Outbox) -> bool {
        let mut is_done = true;
        for message in Messages::new(datagram) {
            let header = message.header;
            let outcome = if header.has(flag::REQUEST) && header.kind >= kind::MIN {
                let mut reply = Reply {
                    outbox: &mut *outbox,
                    listeners,
                    seq: header.seq,
                    port: self.state.port,
                    echo: header.has(flag::ECHO),
                };
                match self.carry_out(message, protocol, &mut reply) {
                    Outcome::Done(outcome) => outcome,
                    Outcome::Dumping => {
                        self.continue_dump(protocol, outbox);
                        continue;
                    }
                }
            } else {
                Ok(())
            };
            is_done &= outcome.is_ok();
            if header.has(flag::ACK) || outcome.is_err() {
                let (port, acks) = (self.state.port, self.state.acks);
                outbox.push(To::Requester, |w| write_ack(w, &message, port, &outcome, acks));
            }
        }
        is_done
    }

    fn carry_out(&mut self, message: Message<'_>, protocol: &mut P, reply: &mut Reply<'_>) -> Outcome {
        let SocketState { strict, privileged, port, .. } = self.state;
        let request = Request { message, strict, privileged, port, restored: false };
        if !self.state.privileged && !P::only_reads(&request) {
            return Outcome::Done(Err(Error::new(errno::EPERM)));
        }
        let is_dump = P::is_dump(&request);
        if (is_dump || P::only_reads(&request)) && reply.outbox.writer.len() > MAX_ANSWERS {
            return Outcome::Done(Err(Error::new(errno::ENOBUFS)));
        }
        if !is_dump {
            return Outcome::Done(admit::<P>(&request).and_then(|()| protocol.handle(&request, reply)));
        }
        if self.dump.is_some() {
            return Outcome::Done(Err(Error::new(errno::EBUSY)));
        }
        if self.state.full {
            return Outcome::Done(Err(Error::new(errno::ENOBUFS)));
        }
        match protocol.dump(&request) {
            Ok(next) => {
                self.dump = Some(Running { next, seq: message.header.seq, interrupted: false });
                Outcome::Dumping
            }
            Err(error) => Outcome::Done(Err(error)),
        }
    }

    /// Whether a dump is in progress.
    pub const fn is_dumping(&self) -> bool {
        self.dump.is_some()
    }

    /// Writes the next datagram of the dump in progress, if there is one.
    pub fn continue_dump(&mut self, protocol: &mut P, outbox: &mut Outbox) {
        let Some(running) = &mut self.dump else { return };
        let Outbox { writer, ends } = outbox;
        let start = writer.len();
        let header = Header { kind: 0, flags: flag::MULTI, seq: running.seq, port: self.state.port };
        let interrupted = running.interrupted;
        let limit = self.state.part_len;
        let mut part = Part { writer: &mut *writer, start, limit, header, interrupted, end_flags: 0 };
        let progress = (running.next)(protocol, &mut part);
        running.interrupted = part.interrupted;
        let end_flags = part.end_flags;
        let done = match progress {
            Ok(Progress::More) => {
                // The dump may have visited entries that the request does not select.
                if writer.len() > start {
                    ends.push((writer.len(), To::Dumper));
                }
                return;
            }
            Ok(Progress::Done) => Ok(()),
            Err(error) => Err(error),
        };
        // Linux sends the end in a separate datagram.
        if writer.len() > start {
            ends.push((writer.len(), To::Dumper));
        }
        let flags = end_flags | if running.interrupted { flag::DUMP_INTR } else { 0 };
        write_done(writer, running.seq, self.state.port, flags, &done, self.state.acks);
        ends.push((writer.len(), To::Dumper));
        self.dump = None;
    }
}

/// Carries out one request with all rights, without notifications.
///
/// # Errors
/// Refusal of the request; `EINVAL` for bytes that are no netlink message.
pub fn carry_out<P: Protocol>(protocol: &mut P, bytes: &[u8]) -> Result<(), Error> {
    let message = Messages::new(bytes).next().filter(|message| message.header.kind >= kind::MIN);
    let message = message.ok_or(Error::text(errno::EINVAL, "Invalid message"))?;
    let request = Request { message, strict: false, privileged: true, port: 0, restored: true };
    let outbox = &mut Outbox::default();
    let mut reply = Reply::unsolicited(Groups::default(), outbox);
    admit::<P>(&request)?;
    protocol.handle(&request, &mut reply)
}

/// Refuses a request that adds above the limit of the process's memory.
fn admit<P: Protocol>(request: &Request<'_>) -> Result<(), Error> {
    if P::adds(request) { Ok(Budget::admit()?) } else { Ok(()) }
}

enum Outcome {
    Done(Result<(), Error>),
    Dumping,
}

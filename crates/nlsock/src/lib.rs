//! Protocol between the preload library and the daemon: a netlink socket, carried over a Unix socket.
//!
//! # Decides
//! Path of the socket ([`socket_path`]), [kinds of datagrams](#datagrams) in both directions ([`ToDaemon`],
//! [`FromDaemon`]) and their bytes, numbers of [`protocol`]s and [`option`]s that are served, records of ethtool's
//! requests ([`ethtool`]), and length of a busy poll ([`BusyPoll`]).
//!
//! # Leaves to others
//! Contents of netlink messages (crate `netlink`), the daemon's side of the connection and its limits (crate `daemon`),
//! the program's side (crate `preload`).
//!
//! # Limits
//! - [`MAX_DATA`]: 64 KiB of netlink messages in a datagram.
//! - [`MAX_HEAD`]: 160 bytes of other calls in a datagram.
//! - [`MAX_NAME`]: 4096 bytes of a file's name.
//! - [`MAX_BYPASS`]: 4 UDP ports of a program that bypass policies.
//! - [`BusyPoll::DURATION`]: 200 µs.
//!
//! # Standards
//! RFC 3549 §2.2 describes the netlink messages, which pass unread. The frames around them have no standard; a
//! connection behaves as netlink(7) and `AF_UNIX` of unix(7).
//!
//! # Datagrams
//! The daemon listens at [`socket_path`], `AF_UNIX` and `SOCK_SEQPACKET`. A program's netlink socket becomes one
//! connection to it. Records stay records, so `poll`, `MSG_PEEK`, `MSG_TRUNC`, non-blocking mode, `fork` and `dup` of
//! that descriptor behave as on a netlink socket, with four bytes in front of each datagram:
//!
//! - To the daemon, one or more calls: each begins with a word that gives its kind ([`ToDaemon`]). Messages can only be
//!   the last call. All words are in the host's byte order.
//!
//!   | word | what follows |
//!   |---|---|
//!   | 0 | netlink messages, as the program wrote them |
//!   | 1 | `protocol`: [`socket(2)`'s third argument](protocol), the first call of a connection |
//!   | 2 | `option`, `value`: `setsockopt(SOL_NETLINK, …)` with an `int` |
//!   | 3 | `port`, `groups`: `bind(2)` with that `sockaddr_nl`; port 0 leaves the choice to the daemon |
//!   | 4 | `len`: the program has offered a buffer of that many bytes; parts of a dump may get as long |
//!   | 5 | `bytes`: `setsockopt(SOL_SOCKET, SO_RCVBUF)`: limit of what the program has not read |
//!   | 6 | `port`: the socket gets that port, unless it has one: chosen by the library, not the program |
//!   | 7 | `what`, and a name to the end: [a file of `/proc/sys/net`](Sysctl); of a connection without a protocol the only call; a netlink socket may read by it |
//!   | 8 | `name`, two words, the last call of a datagram: the daemon's end of the connection is to be [kept](#restart) |
//!   | 9 | `lost`, and calls to the end: a socket that [a former daemon](#restart) served; the first call of a datagram |
//!   | 10 | `port`: datagrams of that UDP port bypass policies while the connection is open (`IP_XFRM_POLICY`) |
//!
//! - From the daemon, a word that gives the source ([`FromDaemon`]): 0, [`PROMPT`], [`LAST`], [`PROMPT_LAST`],
//!   [`PART`], [`LAST_PART`] and a multicast group's number are followed by netlink messages, [`OVERRUN`] by nothing.
//!
//! A datagram that ends with a call of 1 to 3 may carry one descriptor (`SCM_RIGHTS`), the writing end of a pipe: after
//! the call the daemon writes an [`Answer`] to it and closes it. So the caller blocks as in a system call, and gets its
//! `errno`, independent of unread data in the connection. Calls without a descriptor are not answered.
//!
//! # Restart
//! A connection hangs up when the daemon's end is closed in all processes. So that a program's socket survives a
//! restart of the daemon, its library keeps a duplicate of that end: call 8 carries a connected Unix socket
//! (`SCM_RIGHTS`), to which the daemon sends the call's `name` and the duplicate. The library hands the end to the next
//! daemon with call 9, on a connection of its own, whose privileges the socket then has. The calls behind it restore
//! the socket's state: 1, 2, 4, 5, and 6. If `lost` is not 0, the socket has lost datagrams, which [`OVERRUN`] reports
//! to its program. A daemon that has the socket already carries out these calls only.
//!
//! # Other calls
//! Call 7 is answered on the connection, by an [`Answer`] and the requested text. A connection for which a file was
//! [opened](Sysctl::Open) is that file from then on: each datagram is the program's write, without a word in front, so
//! that it is written even if no thread waits for an answer. The first failure of such a write is reported later: in
//! answer to an empty datagram with a descriptor.
//!
//! A program that opens a socket, sets options, binds it to any port, and sends a request, needs only the answer to the
//! request. So calls that cannot fail are deferred: they go in front of the next sent data, and a child of `fork` that
//! does not know which were sent repeats them. A connection may state its protocol again. A child of `fork` does so, and
//! waits for the answer, before its first request on a connection whose privilege its parent has by `CAP_NET_ADMIN`: the
//! daemon then checks the capability of the child.
//!
//! The daemon reads requests even if the program does not read its answers, so a program's call to send waits only for
//! the daemon. Answers that exceed the buffer are lost, which [`OVERRUN`] reports.
//!
//! The daemon identifies the peer by `SO_PEERCRED`. For a program that sends before it binds, the library chooses a port
//! first, as Linux does: the process's number, if no other socket of the process has it, or a number derived from the
//! connection's inode number, which is unique. Processes in different PID namespaces may choose the same one, which the
//! daemon permits. A connection that breaks these rules is closed.
#![forbid(unsafe_code)]

mod busy_poll;
pub mod ethtool;

use std::path::{Path, PathBuf};

pub use busy_poll::BusyPoll;

/// Maximum length of a datagram of netlink messages: `sendmsg` fails with `EMSGSIZE` above.
pub const MAX_DATA: usize = 64 << 10;

/// Maximum number of bytes in a datagram to the daemon without netlink messages.
pub const MAX_HEAD: usize = 160;

/// Maximum number of UDP ports of a program that bypass policies.
pub const MAX_BYPASS: usize = 4;

/// Maximum length of a name of a file of `/proc/sys/net`.
pub const MAX_NAME: usize = 4096;

/// Length of the word in front of each datagram.
pub const WORD: usize = 4;

/// Word that reports a loss: the daemon dropped replies or notifications because the program reads too slowly. The
/// program's next receive call fails with `ENOBUFS`, once.
pub const OVERRUN: u32 = u32::MAX;

/// Word in front of a part of a dump. Longer parts follow if the program meanwhile offers a larger buffer.
pub const PART: u32 = u32::MAX - 1;

/// Word in front of the last part of a dump.
pub const LAST_PART: u32 = u32::MAX - 5;

/// Word in front of a reply if the daemon [busy-polls](BusyPoll) for the next request: the next reply will come so soon
/// that polling for it pays.
pub const PROMPT: u32 = u32::MAX - 2;

/// Word in front of the last reply to a datagram. A datagram without reply, with a dump as its reply, or whose sender
/// has an unreported loss, has none.
pub const LAST: u32 = u32::MAX - 3;

/// [`PROMPT`] and [`LAST`].
pub const PROMPT_LAST: u32 = u32::MAX - 4;

/// Linux's numbers for netlink protocols (`NETLINK_*`) that the daemon serves. For others the daemon returns
/// [`EPROTONOSUPPORT`](errno::EPROTONOSUPPORT).
pub mod protocol {
    /// Links, addresses, routes, rules, neighbours.
    pub const ROUTE: u32 = 0;
    /// SAs and policies.
    pub const XFRM: u32 = 6;
    /// Generic netlink families.
    pub const GENERIC: u32 = 16;
    /// The protocols, each with the number of 32-bit words in a list of its groups (`NETLINK_LIST_MEMBERSHIPS`).
    pub const SERVED: [(u32, usize); 3] = [(ROUTE, 2), (XFRM, 1), (GENERIC, 4)];
}

/// Linux's numbers for options at `SOL_NETLINK`. For others the daemon returns [`ENOPROTOOPT`](errno::ENOPROTOOPT).
pub mod option {
    /// Joins a group.
    pub const ADD_MEMBERSHIP: u32 = 1;
    /// Leaves a group.
    pub const DROP_MEMBERSHIP: u32 = 2;
    /// Passes the group with each datagram. Implemented by the library, from the word in front.
    pub const PKTINFO: u32 = 3;
    /// Reports failures to the sender of a broadcast; accepted, without effect.
    pub const BROADCAST_ERROR: u32 = 4;
    /// Suppresses reports of lost notifications.
    pub const NO_ENOBUFS: u32 = 5;
    /// Notifications of other namespaces; accepted, without effect.
    pub const LISTEN_ALL_NSID: u32 = 8;
    /// Omits the request's payload from error messages.
    pub const CAP_ACK: u32 = 10;
    /// Adds the reason and the offending attribute to error messages.
    pub const EXT_ACK: u32 = 11;
    /// Validates dump requests strictly, and applies their filters.
    pub const GET_STRICT_CHK: u32 = 12;
}

/// Errors of an [`Answer`] to a refused call.
pub mod errno {
    /// Only the superuser and the daemon's own user may join that group.
    pub const EPERM: i32 = 1;
    /// The connection is bound to another port already, or has no protocol yet; or the group does not exist.
    pub const EINVAL: i32 = 22;
    /// The file does not exist.
    pub const ENOENT: i32 = 2;
    /// The gateway is shutting down.
    pub const EIO: i32 = 5;
    /// The file is not writable, or not by this user.
    pub const EACCES: i32 = 13;
    /// The name is no directory.
    pub const ENOTDIR: i32 = 20;
    /// The name is a directory.
    pub const EISDIR: i32 = 21;
    /// The option is unknown.
    pub const ENOPROTOOPT: i32 = 92;
    /// The protocol is not served.
    pub const EPROTONOSUPPORT: i32 = 93;
    /// Another connection has the port.
    pub const EADDRINUSE: i32 = 98;
}

/// Request for a file or directory of `/proc/sys/net`; its name is relative to that directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sysctl {
    /// File type and permissions: `port` of the [`Answer`] is its `st_mode`.
    Look,
    /// Contents.
    Read,
    /// Names in the directory, in order, each as `d` or `-`, the name, and a NUL; as many as fit. The request's name
    /// ends with a NUL and the last name already received.
    List,
    /// Opens the file for writing.
    Open,
}

impl Sysctl {
    const ALL: [Self; 4] = [Self::Look, Self::Read, Self::List, Self::Open];
}

/// Path of an instance's listening socket.
pub fn socket_path(rundir: &Path, instance: &str) -> PathBuf {
    rundir.join(format!("{instance}.netlink"))
}

/// A call of the program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToDaemon<'a> {
    /// Netlink messages, possibly several.
    Data(&'a [u8]),
    /// Protocol of the socket. It may be sent again.
    Hello {
        /// One of [`protocol`].
        protocol: u32,
    },
    /// `setsockopt`.
    SetOption {
        /// One of [`option`].
        option: u32,
        /// The `int` at the front of the option's value.
        value: u32,
    },
    /// `bind`.
    Bind {
        /// `nl_pid`; 0 for any: the process's PID if it is free.
        port: u32,
        /// `nl_groups`: bit `n` is group `n + 1`; it replaces the membership in groups 1 to 32.
        groups: u32,
    },
    /// The longest buffer that the program has offered so far.
    RecvLen(u32),
    /// Limit of unread data, as the kernel counts it (`getsockopt` of `SO_RCVBUF`).
    RecvRoom(u32),
    /// Port that the library chose for a socket without one.
    Port(u32),
    /// UDP port of a socket of the program's whose datagrams bypass policies.
    Bypass(u16),
    /// Request for a file of `/proc/sys/net`.
    Sysctl {
        /// The request.
        what: Sysctl,
        /// The file's name.
        name: &'a [u8],
    },
    /// Requests that the daemon's end of the connection be [kept](self#restart) by the socket that the call carries.
    Keep {
        /// Identifier sent with the daemon's end.
        name: u64,
    },
    /// Hands over a socket [of a former daemon](self#restart), whose daemon's end the call carries.
    Adopt {
        /// The program has lost answers or notifications.
        lost: bool,
        /// [Calls](Self::calls) that restore the socket's state.
        state: &'a [u8],
    },
}

impl<'a> ToDaemon<'a> {
    /// Parses the calls of a datagram. `None` ends a malformed datagram.
    pub fn calls(datagram: &'a [u8]) -> impl Iterator<Item = Option<Self>> {
        let mut rest = Some(datagram);
        std::iter::from_fn(move || {
            let bytes = rest.take()?;
            let Some((call, after)) = Self::first(bytes) else { return Some(None) };
            rest = after.filter(|after| !after.is_empty());
            Some(Some(call))
        })
    }

    /// Parses the first call, and returns the bytes that may follow it.
    fn first(bytes: &'a [u8]) -> Option<(Self, Option<&'a [u8]>)> {
        let (kind, rest) = word(bytes)?;
        if kind == 0 {
            return (rest.len() <= MAX_DATA).then_some((Self::Data(rest), None));
        }
        let (first, one) = word(rest)?;
        if kind == 7 {
            let what = *Sysctl::ALL.get(usize::try_from(first).ok()?)?;
            return (one.len() <= MAX_NAME).then_some((Self::Sysctl { what, name: one }, None));
        }
        if kind == 9 {
            return Some((Self::Adopt { lost: first != 0, state: one }, None));
        }
        let two = || word(one);
        Some(match kind {
            1 => (Self::Hello { protocol: first }, Some(one)),
            2 => two().map(|(value, rest)| (Self::SetOption { option: first, value }, Some(rest)))?,
            3 => two().map(|(groups, rest)| (Self::Bind { port: first, groups }, Some(rest)))?,
            4 => (Self::RecvLen(first), Some(one)),
            5 => (Self::RecvRoom(first), Some(one)),
            6 if first != 0 => (Self::Port(first), Some(one)),
            10 => u16::try_from(first).ok().map(|port| (Self::Bypass(port), Some(one)))?,
            8 => two().filter(|(_, rest)| rest.is_empty()).map(|(high, _)| (Self::keep([first, high]), None))?,
            _ => return None,
        })
    }

    fn keep([low, high]: [u32; 2]) -> Self {
        Self::Keep { name: u64::from(high) << 32 | u64::from(low) }
    }

    /// First bytes of a call: [`WORD`] bytes of [`Data`](Self::Data), before the netlink messages; two words of
    /// [`Sysctl`](Self::Sysctl), before the name, or of [`Adopt`](Self::Adopt), before the state; otherwise the whole
    /// call.
    pub fn head(&self) -> Head {
        match *self {
            Self::Data(_) => Head::of(&[0]),
            Self::Hello { protocol } => Head::of(&[1, protocol]),
            Self::SetOption { option, value } => Head::of(&[2, option, value]),
            Self::Bind { port, groups } => Head::of(&[3, port, groups]),
            Self::RecvLen(len) => Head::of(&[4, len]),
            Self::RecvRoom(bytes) => Head::of(&[5, bytes]),
            Self::Port(port) => Head::of(&[6, port]),
            Self::Bypass(port) => Head::of(&[10, port.into()]),
            Self::Sysctl { what, .. } => Head::of(&[7, what as u32]),
            Self::Keep { name } => Head::of(&[8, name as u32, (name >> 32) as u32]),
            Self::Adopt { lost, .. } => Head::of(&[9, lost.into()]),
        }
    }
}

/// Words at the front of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Head {
    bytes: [u8; 3 * WORD],
    len: usize,
}

impl Head {
    fn of(words: &[u32]) -> Self {
        let mut bytes = [0; 3 * WORD];
        bytes.chunks_exact_mut(WORD).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_ne_bytes()));
        Self { bytes, len: words.len() * WORD }
    }

    /// Bytes of the words.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Source of a datagram from the daemon.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FromDaemon {
    /// From the daemon to this connection alone: `nl_pid` and `nl_groups` of its source are 0.
    Answer {
        /// The daemon busy-polls for the next request and will answer it soon.
        prompt: bool,
        /// No further answer to the same datagram follows.
        last: bool,
    },
    /// Part of a dump; otherwise as [`Answer`](Self::Answer).
    Part {
        /// The part is the last of the dump.
        last: bool,
    },
    /// To a multicast group: `nl_groups` of the datagram's source is bit `group - 1` if that bit exists, else 0.
    Group(u32),
    /// No data: datagrams were lost (`ENOBUFS`).
    Overrun,
}

impl FromDaemon {
    /// Decodes the word in front of a datagram.
    pub const fn from_word(word: [u8; WORD]) -> Self {
        match u32::from_ne_bytes(word) {
            0 => Self::Answer { prompt: false, last: false },
            PROMPT => Self::Answer { prompt: true, last: false },
            LAST => Self::Answer { prompt: false, last: true },
            PROMPT_LAST => Self::Answer { prompt: true, last: true },
            PART => Self::Part { last: false },
            LAST_PART => Self::Part { last: true },
            OVERRUN => Self::Overrun,
            group => Self::Group(group),
        }
    }

    /// Encodes the word in front of a datagram.
    pub const fn to_word(self) -> [u8; WORD] {
        match self {
            Self::Answer { prompt: false, last: false } => 0_u32.to_ne_bytes(),
            Self::Answer { prompt: true, last: false } => PROMPT.to_ne_bytes(),
            Self::Answer { prompt: false, last: true } => LAST.to_ne_bytes(),
            Self::Answer { prompt: true, last: true } => PROMPT_LAST.to_ne_bytes(),
            Self::Part { last: false } => PART.to_ne_bytes(),
            Self::Part { last: true } => LAST_PART.to_ne_bytes(),
            Self::Group(group) => group.to_ne_bytes(),
            Self::Overrun => OVERRUN.to_ne_bytes(),
        }
    }
}

/// Result of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    /// An `errno`, positive; 0 for success.
    pub error: i32,
    /// The connection's port (`nl_pid`); 0 before `bind`.
    pub port: u32,
}

impl Answer {
    /// Length of the encoded answer.
    pub const LEN: usize = 8;

    /// Encodes the answer, for the daemon.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.error.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.port.to_ne_bytes());
        bytes
    }

    /// Decodes the answer, for the caller.
    pub const fn from_bytes([e0, e1, e2, e3, p0, p1, p2, p3]: [u8; Self::LEN]) -> Self {
        Self { error: i32::from_ne_bytes([e0, e1, e2, e3]), port: u32::from_ne_bytes([p0, p1, p2, p3]) }
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    bytes.split_first_chunk().map(|(word, rest)| (u32::from_ne_bytes(*word), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(datagram: &[u8]) -> Vec<Option<ToDaemon<'_>>> {
        ToDaemon::calls(datagram).collect()
    }

    #[test]
    fn calls_are_parsed_as_written() {
        let calls = [
            ToDaemon::Hello { protocol: protocol::XFRM },
            ToDaemon::SetOption { option: option::EXT_ACK, value: 1 },
            ToDaemon::Bind { port: 4711, groups: 5 },
            ToDaemon::RecvLen(32768),
            ToDaemon::RecvRoom(1 << 20),
            ToDaemon::Port(815),
            ToDaemon::Bypass(1500),
        ];
        for call in calls {
            assert_eq!(parse(call.head().as_bytes()), [Some(call)]);
        }
        let data = ToDaemon::Data(b"netlink");
        let datagram = [data.head().as_bytes(), b"netlink"].concat();
        assert_eq!(parse(&datagram), [Some(data)]);
        let heads: Vec<u8> = calls.iter().flat_map(|call| call.head().as_bytes().to_vec()).collect();
        let all: Vec<_> = calls.into_iter().chain([data]).map(Some).collect();
        assert_eq!(parse(&[heads, datagram].concat()), all);
        for what in Sysctl::ALL {
            let call = ToDaemon::Sysctl { what, name: b"ipv4/ip_forward" };
            let datagram = [call.head().as_bytes(), b"ipv4/ip_forward"].concat();
            assert_eq!(parse(&datagram), [Some(call)]);
        }
        let keep = ToDaemon::Keep { name: 0x8765_4321_1234_5678 };
        assert_eq!(parse(keep.head().as_bytes()), [Some(keep)]);
        let state = calls[0].head();
        let adopt = ToDaemon::Adopt { lost: true, state: state.as_bytes() };
        assert_eq!(parse(&[adopt.head().as_bytes(), state.as_bytes()].concat()), [Some(adopt)]);
        let answers = [(false, false), (true, false), (false, true), (true, true)];
        let answers = answers.map(|(prompt, last)| FromDaemon::Answer { prompt, last });
        let parts = [false, true].map(|last| FromDaemon::Part { last });
        for from in answers.into_iter().chain(parts).chain([FromDaemon::Group(33), FromDaemon::Overrun]) {
            assert_eq!(FromDaemon::from_word(from.to_word()), from);
        }
        for answer in [Answer { error: 0, port: u32::MAX }, Answer { error: errno::EADDRINUSE, port: 7 }] {
            assert_eq!(Answer::from_bytes(answer.to_bytes()), answer);
        }
    }

    #[test]
    fn call_of_wrong_length_or_unknown_word_is_refused() {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
        let bad = [
            &[] as &[u32],
            &[1],
            &[1, 0, 1],
            &[2, 1],
            &[2, 1, 1, 1],
            &[3, 1],
            &[4],
            &[4, 1, 1],
            &[5],
            &[6],
            &[6, 0],
            &[7],
            &[7, 4],
            &[8, 0],
            &[8, 0, 0, 0],
            &[9],
            &[10],
            &[10, 1 << 16],
            &[11, 0],
            &[u32::MAX, 0],
        ];
        for bad in bad {
            let calls = words(bad);
            let calls = parse(&calls);
            assert_eq!(calls.iter().position(Option::is_none), Some(calls.len() - 1), "{bad:?}");
        }
        assert_eq!(parse(&[0, 0, 0]), [None]);
        assert_eq!(parse(&words(&[0])), [Some(ToDaemon::Data(&[]))]);
        assert_eq!(parse(&vec![0; WORD + MAX_DATA]).len(), 1);
        assert_eq!(parse(&vec![0; WORD + MAX_DATA + 1]), [None]);
        let name = |len| [words(&[7, 0]), vec![b'x'; len]].concat();
        assert_eq!([MAX_NAME, MAX_NAME + 1].map(|len| parse(&name(len))[0].is_some()), [true, false]);
    }

    #[test]
    fn an_instance_listens_in_the_runtime_directory() {
        assert_eq!(socket_path(Path::new("/run/fatpath"), "left"), Path::new("/run/fatpath/left.netlink"));
    }
}

//! Descriptors that are connections to the gateway, in a [`Table`], and the state of each connection.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use libc::c_int;
use sync::{Connection, HasConnection, Table};

use crate::errno::Errno;
use crate::sys;

/// Limit of descriptors that can be connections.
const MAX_FDS: usize = 1 << 16;
/// Maximum number of connections of a process.
const MAX_SLOTS: usize = 1024;

static TABLE: Table<Slot, MAX_FDS, MAX_SLOTS> = Table::new([const { Slot::new() }; MAX_SLOTS]);

/// Maximum number of requests that a one-shot command sends on one socket.
const FEW_REQUESTS: u32 = 8;

/// State of a connection, as set by the program's own calls.
#[derive(Debug)]
pub(crate) struct Slot {
    connection: Connection,
    /// `NETLINK_ROUTE` and so on.
    pub(crate) protocol: AtomicU32,
    /// `SOCK_RAW` or `SOCK_DGRAM`.
    pub(crate) kind: AtomicU32,
    /// `nl_pid`; 0 before `bind`.
    pub(crate) port: AtomicU32,
    /// Destination port of `connect`.
    pub(crate) peer: AtomicU32,
    /// Destination groups of `connect`.
    pub(crate) peer_groups: AtomicU32,
    /// Group memberships: group `n` is bit `n - 1`.
    pub(crate) groups: [AtomicU32; 4],
    /// Options that are set: option `n` of `SOL_NETLINK` is bit `n`, `SO_PASSCRED` bit 31.
    pub(crate) options: AtomicU32,
    /// Length of the largest receive buffer so far.
    pub(crate) recv_len: AtomicU32,
    /// Limit of unread data (`SO_RCVBUF`).
    pub(crate) room: AtomicU32,
    /// Whether the last received datagram is part of a dump.
    pub(crate) dumping: AtomicBool,
    /// Whether replies, or parts of a dump, may be in flight ([`settle`](crate::session::settle)).
    pub(crate) is_answer_due: AtomicBool,
    /// Whether data was sent since the last receive call.
    pub(crate) expects_reply: AtomicBool,
    /// Number of sent datagrams whose last reply was not received. A datagram that requests no reply counts until
    /// [`Slot::note_loss_reported`].
    outstanding: AtomicU32,
    /// Number of sent datagrams. It wraps.
    requests: AtomicU32,
    /// The last datagram's [`SentRequest`]; 0 for any other datagram.
    request: AtomicU64,
    /// Whether the keeper has the gateway's end or has requested it ([`keep`](crate::reconnect::keep)).
    pub(crate) is_kept: AtomicBool,
    /// Whether the gateway is gone, and the connection waits for the next one.
    pub(crate) is_gone: AtomicBool,
    /// Whether the gateway does not know yet that this process, which inherited the connection, may use its privilege
    /// ([`claim`](crate::session::claim)).
    pub(crate) is_claim_due: AtomicBool,
    /// Deferred calls ([`Calls::deferred`](crate::deferred_setup::Calls::deferred)).
    pub(crate) deferred: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            connection: Connection::none(),
            protocol: AtomicU32::new(0),
            kind: AtomicU32::new(0),
            port: AtomicU32::new(0),
            peer: AtomicU32::new(0),
            peer_groups: AtomicU32::new(0),
            groups: [const { AtomicU32::new(0) }; 4],
            options: AtomicU32::new(0),
            recv_len: AtomicU32::new(0),
            room: AtomicU32::new(0),
            dumping: AtomicBool::new(false),
            is_answer_due: AtomicBool::new(false),
            expects_reply: AtomicBool::new(false),
            outstanding: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            request: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_claim_due: AtomicBool::new(false),
            deferred: AtomicU32::new(0),
        }
    }

    /// Value that is unique among all connections of this slot, past and future.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.value()
    }

    /// Inode number of the connection.
    pub(crate) fn inode(&self) -> u64 {
        self.connection.inode()
    }

    fn clear(&self) {
        let words = [&self.port, &self.peer, &self.peer_groups, &self.options, &self.recv_len, &self.room];
        let words = words.into_iter().chain([&self.deferred, &self.outstanding, &self.requests]);
        words.chain(&self.groups).for_each(|word| word.store(0, Relaxed));
        let flags = [&self.dumping, &self.expects_reply, &self.is_answer_due, &self.is_kept, &self.is_gone];
        self.request.store(0, Relaxed);
        flags.into_iter().chain([&self.is_claim_due]).for_each(|flag| flag.store(false, Relaxed));
    }

    /// Counts a datagram that was sent, or that was refused without a gateway. `request`: the datagram's only message, if
    /// that requires a reply.
    pub(crate) fn count_request(&self, request: Option<SentRequest>) {
        self.expects_reply.store(true, Relaxed);
        self.is_answer_due.store(true, Relaxed);
        self.request.store(request.map_or(0, SentRequest::to_bits), Relaxed);
        self.outstanding.fetch_add(1, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    /// Outstanding replies, if any, with the number of datagrams that were sent until now.
    pub(crate) fn outstanding(&self) -> Option<(Outstanding, u32)> {
        let outstanding = match (self.outstanding.load(Relaxed), self.request.load(Relaxed)) {
            (0, _) => return None,
            (1, bits @ 1..) => Outstanding::Reply(SentRequest::from_bits(bits)),
            _ => Outstanding::Others,
        };
        Some((outstanding, self.requests.load(Relaxed)))
    }

    /// Counts the last reply to a datagram.
    pub(crate) fn count_last_answer(&self) {
        // The count is zero if a loss of replies was reported before.
        let _ = self.outstanding.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }

    /// Resets the count of expected replies, after a loss was reported to the program. After a restart, another
    /// process's keeper may have handed over the socket before this process's keeper has connected to the gateway.
    pub(crate) fn note_loss_reported(&self) {
        self.outstanding.store(0, Relaxed);
        self.is_gone.store(false, Release);
    }

    /// Tells whether a blocking receive should hand the socket to the keeper. A command that sends a few requests and
    /// ends does not need the keeper.
    pub(crate) fn is_to_be_kept(&self) -> bool {
        !self.is_kept.load(Relaxed)
            && (self.outstanding.load(Relaxed) == 0
                || self.requests.load(Relaxed) >= FEW_REQUESTS
                || self.groups.iter().any(|word| word.load(Relaxed) != 0))
    }

    /// Tells whether the program would lose replies or notifications if the gateway ended.
    pub(crate) fn expects_something(&self) -> bool {
        self.outstanding.load(Relaxed) != 0 || self.groups.iter().any(|word| word.load(Relaxed) != 0)
    }
}

impl HasConnection for Slot {
    fn connection(&self) -> &Connection {
        &self.connection
    }
}

/// Replies that the program expects on a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Outstanding {
    /// One reply, to this request.
    Reply(SentRequest),
    /// Several replies, or replies to messages that may need none.
    Others,
}

/// Header of a message that requires a reply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SentRequest {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`. One of them is `NLM_F_REQUEST`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`.
    pub(crate) seq: u32,
}

impl SentRequest {
    /// Length of a message's header: its length, kind, flags, number and port.
    pub(crate) const HEADER: usize = 16;

    /// Parses a datagram of `len` bytes with the header `bytes`, sent on a socket of `protocol`. `None`: the datagram has
    /// several messages, or its message may have no reply (Linux `netlink_rcv_skb`).
    pub(crate) fn parse(bytes: [u8; Self::HEADER], len: usize, protocol: u32) -> Option<Self> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = bytes;
        let own = u32::from_ne_bytes([a, b, c, d]) as usize;
        let (kind, flags) = (u16::from_ne_bytes([e, f]), u16::from_ne_bytes([g, h]));
        let is_alone = own.next_multiple_of(4) >= len;
        let is_get = protocol == nlsock::protocol::ROUTE && kind & 3 == 2;
        let is_replied = flags & libc::NLM_F_ACK as u16 != 0 || is_get;
        let is_request = flags & libc::NLM_F_REQUEST as u16 != 0;
        (is_alone && is_replied && is_request).then_some(Self { kind, flags, seq: u32::from_ne_bytes([i, j, k, l]) })
    }

    fn to_bits(self) -> u64 {
        u64::from(self.kind) << 48 | u64::from(self.flags) << 32 | u64::from(self.seq)
    }

    const fn from_bits(bits: u64) -> Self {
        Self { kind: (bits >> 48) as u16, flags: (bits >> 32) as u16, seq: bits as u32 }
    }
}

/// Value in place of a protocol, for a file of `/proc/sys/net` that is open for writing.
pub(crate) const FILE: u32 = u32::MAX;

/// Slot of `fd`, if it is a netlink socket.
pub(crate) fn get(fd: c_int) -> Option<&'static Slot> {
    find(fd).filter(|slot| slot.protocol.load(Relaxed) != FILE)
}

/// Tells whether `fd` is a file of `/proc/sys/net` that is open for writing.
pub(crate) fn is_file(fd: c_int) -> bool {
    find(fd).is_some_and(|slot| slot.protocol.load(Relaxed) == FILE)
}

fn find(fd: c_int) -> Option<&'static Slot> {
    TABLE.find(fd, socket_inode)
}

/// Copies the hint of `from` to its duplicate `to`.
pub(crate) fn duplicated(from: c_int, to: c_int) {
    TABLE.duplicated(from, to);
}

/// Slot of a connection, by [`Slot::connection`].
pub(crate) fn by_connection(connection: u64) -> Option<&'static Slot> {
    TABLE.by_connection(connection)
}

/// All slots, in use or not.
pub(crate) fn all() -> impl Iterator<Item = &'static Slot> {
    TABLE.slots().iter()
}

/// Open connections for which `matches` returns true, each with a descriptor; a connection with several descriptors is
/// returned several times.
pub(crate) fn live(matches: impl Fn(&'static Slot) -> bool) -> impl Iterator<Item = (c_int, &'static Slot)> {
    TABLE.live(socket_inode, matches)
}

/// Enters a new connection, with the deferred calls `deferred`.
///
/// # Errors
/// `EMFILE`: the table is full.
pub(crate) fn enter(fd: c_int, protocol: u32, kind: u32, deferred: u32) -> Result<&'static Slot, Errno> {
    let inode = socket_inode(fd).ok_or(Errno(libc::EBADF))?;
    let fill = |slot: &Slot| {
        slot.clear();
        slot.protocol.store(protocol, Relaxed);
        slot.kind.store(kind, Relaxed);
        slot.deferred.store(deferred, Relaxed);
    };
    TABLE.enter(fd, inode, socket_inode, fill).map_err(|_| Errno(libc::EMFILE))
}

/// Inode number of `fd`, if it is a socket.
pub(crate) fn socket_inode(fd: c_int) -> Option<u64> {
    let stat = sys::status(fd)?;
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with these values.
    fn header(len: u32, kind: u16, flags: u16, seq: u32) -> [u8; SentRequest::HEADER] {
        let mut bytes = [0; SentRequest::HEADER];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&seq.to_ne_bytes());
        bytes
    }

    #[test]
    fn request_alone_that_requires_a_reply_is_parsed() {
        const REQUEST: u16 = 1;
        const ACK: u16 = 4;
        const REPLACE: u16 = 0x100;
        let (route, xfrm) = (nlsock::protocol::ROUTE, nlsock::protocol::XFRM);
        let cases = [
            (header(28, 24, REQUEST | ACK, 7), 28, route, true),
            // Padding behind the message.
            (header(29, 24, REQUEST | ACK, 7), 32, route, true),
            // A second message.
            (header(28, 24, REQUEST | ACK, 7), 44, route, false),
            // A route without acknowledgement, and the look-up of a route.
            (header(28, 24, REQUEST | REPLACE, 7), 28, route, false),
            (header(28, 26, REQUEST, 7), 28, route, true),
            (header(28, 26, REQUEST, 7), 28, xfrm, false),
            (header(28, 26, ACK, 7), 28, route, false),
            (header(0, 26, REQUEST, 7), 28, route, false),
            (header(u32::MAX, 26, REQUEST, 7), 28, route, true),
        ];
        for (bytes, len, protocol, is_parsed) in cases {
            let parsed = SentRequest::parse(bytes, len, protocol);
            assert_eq!(parsed.is_some(), is_parsed, "{bytes:?} of {len}, {protocol}");
            assert!(parsed.is_none_or(|it| it.seq == 7 && SentRequest::from_bits(it.to_bits()) == it));
        }
    }
}

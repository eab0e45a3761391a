//! Deferred setup calls (protocol, port, options) of a connection: they are sent before the next data.
//!
//! These calls cannot fail, so no caller waits for them, and the gateway wakes up less often. They are marked as sent
//! after the send. A concurrent thread or child process may send them again, without effect.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use nlsock::{MAX_HEAD, ToDaemon, protocol};

use crate::bypass_ports;
use crate::switches::{SWITCHES, bit};
use crate::table::Slot;

/// Call with the protocol.
pub(crate) const HELLO: u32 = 1 << 16;
/// Call with the port.
pub(crate) const PORT: u32 = 1 << 17;
/// Call with the limit of unread data.
pub(crate) const ROOM: u32 = 1 << 18;
/// Calls with the ports that bypass policies.
pub(crate) const BYPASS: u32 = 1 << 20;
/// Call with the length of the largest receive buffer. Option `n` of [`SWITCHES`] is bit `n`.
pub(crate) const LEN: u32 = 1 << 19;

/// Defers a call; its value is in the slot.
pub(crate) fn defer(slot: &Slot, what: u32) {
    slot.deferred.fetch_or(what, AcqRel);
}

/// Tells whether a call is deferred.
pub(crate) fn is_deferred(slot: &Slot, what: u32) -> bool {
    slot.deferred.load(Relaxed) & what != 0
}

/// Calls to the gateway.
#[derive(Debug)]
pub(crate) struct Calls {
    bytes: [u8; MAX_HEAD],
    len: usize,
    deferred: u32,
    sent: SentSettings,
    /// [`Slot::connection`] of the calls' socket.
    connection: u64,
}

/// Settings at the time of encoding, for comparison with later ones.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct SentSettings {
    options: u32,
    room: u32,
    recv_len: u32,
}

impl SentSettings {
    fn now(slot: &Slot) -> Self {
        let [options, room, recv_len] = [&slot.options, &slot.room, &slot.recv_len].map(|word| word.load(Acquire));
        Self { options, room, recv_len }
    }
}

impl Calls {
    /// Empty list of calls.
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; MAX_HEAD],
            len: 0,
            deferred: 0,
            sent: SentSettings { options: 0, room: 0, recv_len: 0 },
            connection: 0,
        }
    }

    /// Deferred calls of a connection.
    pub(crate) fn deferred(slot: &Slot) -> Self {
        let mut calls = Self::new();
        calls.connection = slot.connection();
        calls.deferred = slot.deferred.load(Acquire);
        if calls.deferred == 0 {
            return calls;
        }
        let sent = SentSettings::now(slot);
        calls.sent = sent;
        let deferred = calls.deferred;
        let has = |what: u32| deferred & what != 0;
        let protocol = slot.protocol.load(Relaxed);
        let hello = has(HELLO).then_some(ToDaemon::Hello { protocol });
        let room = has(ROOM).then_some(ToDaemon::RecvRoom(sent.room));
        let len = has(LEN).then_some(ToDaemon::RecvLen(sent.recv_len));
        let port = Some(slot.port.load(Relaxed)).filter(|&port| port != 0 && has(PORT)).map(ToDaemon::Port);
        let options = sent.options;
        let switches = SWITCHES.into_iter().filter(|&option| has(bit(option)));
        let switches =
            switches.map(|option| ToDaemon::SetOption { option, value: u32::from(options & bit(option) != 0) });
        let is_new_of_xfrm = protocol == protocol::XFRM && has(HELLO | BYPASS);
        let bypass = bypass_ports::all().map(ToDaemon::Bypass).filter(|_| is_new_of_xfrm);
        for call in [hello, room, len, port].into_iter().flatten().chain(switches).chain(bypass) {
            calls.push(call);
        }
        calls
    }

    /// Adds a call. The buffer has space for all calls.
    pub(crate) fn push(&mut self, call: ToDaemon<'_>) {
        let head = call.head();
        let end = self.len + head.as_bytes().len();
        if let Some(room) = self.bytes.get_mut(self.len..end) {
            room.copy_from_slice(head.as_bytes());
            self.len = end;
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Marks the calls as sent.
    pub(crate) fn mark_sent(&self, slot: &Slot) {
        if self.deferred == 0 || slot.connection() != self.connection {
            return;
        }
        slot.deferred.fetch_and(!self.deferred, AcqRel);
        // Another thread may have changed a setting meanwhile, and deferred it before the bit was cleared.
        let now = SentSettings::now(slot);
        let mut again = (now.options ^ self.sent.options) & self.deferred;
        again |= if now.room != self.sent.room { self.deferred & ROOM } else { 0 };
        again |= if now.recv_len != self.sent.recv_len { self.deferred & LEN } else { 0 };
        if again != 0 {
            defer(slot, again);
        }
    }
}

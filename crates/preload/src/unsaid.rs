//! Deferred calls of a program about a connection: they go in front of what is sent next.
//!
//! None of it can be refused, so no caller waits for it, and a gateway that is not woken for it has less to do. It is noted as
//! told when it has been. A thread or a child that sends at the same time, and does not know, tells it too, which changes
//! nothing.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use nlsock::{MAX_HEAD, ToDaemon, protocol};

use crate::bypass_ports;
use crate::switches::{SWITCHES, bit};
use crate::table::Slot;

/// The protocol.
pub(crate) const HELLO: u32 = 1 << 16;
/// The port.
pub(crate) const PORT: u32 = 1 << 17;
/// The room for what the program has not read.
pub(crate) const ROOM: u32 = 1 << 18;
/// Ports that bypass policies.
pub(crate) const BYPASS: u32 = 1 << 20;
/// The longest buffer. Option `n` of [`SWITCHES`] is bit `n`.
pub(crate) const LEN: u32 = 1 << 19;

/// Notes that something is yet to be told, which the slot holds by now.
pub(crate) fn note(slot: &Slot, what: u32) {
    slot.unsaid.fetch_or(what, AcqRel);
}

/// Whether something is yet to be told.
pub(crate) fn is_noted(slot: &Slot, what: u32) -> bool {
    slot.unsaid.load(Relaxed) & what != 0
}

/// Calls for the gateway.
#[derive(Debug)]
pub(crate) struct Calls {
    bytes: [u8; MAX_HEAD],
    len: usize,
    unsaid: u32,
    said: Said,
    /// Connection that they are of.
    connection: u64,
}

/// Settings that may have been changed since they were written down.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Said {
    options: u32,
    room: u32,
    recv_len: u32,
}

impl Said {
    fn now(slot: &Slot) -> Self {
        let [options, room, recv_len] = [&slot.options, &slot.room, &slot.recv_len].map(|word| word.load(Acquire));
        Self { options, room, recv_len }
    }
}

impl Calls {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; MAX_HEAD], len: 0, unsaid: 0, said: Said { options: 0, room: 0, recv_len: 0 }, connection: 0 }
    }

    /// Calls that the gateway has yet to be told of a connection.
    pub(crate) fn unsaid(slot: &Slot) -> Self {
        let mut calls = Self::new();
        calls.connection = slot.connection();
        calls.unsaid = slot.unsaid.load(Acquire);
        if calls.unsaid == 0 {
            return calls;
        }
        let said = Said::now(slot);
        calls.said = said;
        let unsaid = calls.unsaid;
        let has = |what: u32| unsaid & what != 0;
        let protocol = slot.protocol.load(Relaxed);
        let hello = has(HELLO).then_some(ToDaemon::Hello { protocol });
        let room = has(ROOM).then_some(ToDaemon::RecvRoom(said.room));
        let len = has(LEN).then_some(ToDaemon::RecvLen(said.recv_len));
        let port = Some(slot.port.load(Relaxed)).filter(|&port| port != 0 && has(PORT)).map(ToDaemon::Port);
        let options = said.options;
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

    /// Adds one. There is room for all that there can be.
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

    /// Notes that they were told.
    pub(crate) fn are_said(&self, slot: &Slot) {
        if self.unsaid == 0 || slot.connection() != self.connection {
            return;
        }
        slot.unsaid.fetch_and(!self.unsaid, AcqRel);
        // Another thread may have said something else meanwhile, and noted it before.
        let now = Said::now(slot);
        let mut again = (now.options ^ self.said.options) & self.unsaid;
        again |= if now.room != self.said.room { self.unsaid & ROOM } else { 0 };
        again |= if now.recv_len != self.said.recv_len { self.unsaid & LEN } else { 0 };
        if again != 0 {
            note(slot, again);
        }
    }
}

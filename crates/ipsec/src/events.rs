//! Events for a key manager (RFC 4301 §4.4.2.1, RFC 2367 §3.1.6, §3.1.8; Linux `km_query`, `km_state_expired`).

use std::collections::VecDeque;
use std::net::IpAddr;

use base::Instant;
use wire::Spi;
use xfrm::{Mark, Mode, PolicyKey, Request, SaDir, Selector, Template};

use crate::sa::{Aevent, Mapping, SaStats};

/// Most events that wait to be taken. Later ones are lost, and counted.
pub const MAX_EVENTS: usize = 1024;

/// Something that a key manager may want to act on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A packet needs an SA that is not there.
    Acquire(Acquire),
    /// An SA is about to end, or has.
    SaExpired(SaExpired),
    /// A policy is about to end, or has.
    PolicyExpired(PolicyExpired),
    /// A peer sends from elsewhere.
    Mapping(Mapping),
    /// An SA's numbers have changed; only told if [the listener wants them](crate::Ipsec::set_numbers_heard).
    Numbers(Aevent),
}

/// The SA that a packet needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Acquire {
    /// Tells it from others; an SA that names it in [`SaConfig::acquire_seq`](xfrm::SaConfig::acquire_seq) answers it.
    pub seq: u32,
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// Template that asks for it.
    pub template: Template,
    /// The packet's flow.
    pub selector: Selector,
    /// The number of the policy.
    pub policy: u32,
    /// The policy's mark.
    pub mark: Mark,
    /// The number of the XFRM interface; 0 for none.
    pub if_id: u32,
}

/// An SA that has reached a limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SaExpired {
    /// It is gone; else it is to be replaced.
    pub hard: bool,
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The security parameters index; 0 of one that was acquired in vain.
    pub spi: Spi,
    /// Mark.
    pub mark: Mark,
    /// Mode.
    pub mode: Mode,
    /// `reqid`.
    pub reqid: u32,
    /// The number of its XFRM interface; 0 for none.
    pub if_id: u32,
    /// The only direction in which it might be used.
    pub dir: Option<SaDir>,
    /// When it was used first.
    pub first_used: Option<Instant>,
    /// Counters.
    pub stats: SaStats,
    /// The request that made it; `None` of one that was acquired in vain.
    pub request: Option<Request>,
}

/// A policy that has reached a limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyExpired {
    /// It is gone; else it is about to go.
    pub hard: bool,
    /// Index.
    pub index: u32,
    /// Key of the policy.
    pub key: PolicyKey,
    /// The request that made it.
    pub request: Option<Request>,
}

/// Events that wait to be taken, if there is a listener.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    listening: bool,
    /// Whether the listener is asked for SAs.
    asked: bool,
    /// Whether the listener is told of numbers.
    numbers: bool,
    lost: u64,
}

impl Default for Events {
    /// Events without a listener; a later one is asked for SAs.
    fn default() -> Self {
        Self { queue: VecDeque::new(), listening: false, asked: true, numbers: false, lost: 0 }
    }
}

impl Events {
    /// Adds or removes the listener. Without one, events that wait are dropped.
    pub(crate) fn listen(&mut self, listening: bool) {
        self.listening = listening;
        if !listening {
            self.queue.clear();
        }
    }

    /// Sets whether the listener is asked for SAs.
    pub(crate) const fn ask(&mut self, asked: bool) {
        self.asked = asked;
    }

    /// Tells whether there is a listener that is asked for SAs.
    pub(crate) const fn are_asked(&self) -> bool {
        self.listening && self.asked
    }

    /// Sets whether the listener is told of numbers. Tells whether it was before.
    pub(crate) const fn hear_numbers(&mut self, heard: bool) -> bool {
        std::mem::replace(&mut self.numbers, heard)
    }

    /// Tells whether there is a listener that is told of numbers.
    pub(crate) const fn are_numbers_heard(&self) -> bool {
        self.listening && self.numbers
    }

    /// Lets an event wait to be taken. Tells whether it does.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        let has_room = self.queue.len() < MAX_EVENTS;
        if self.listening && has_room {
            self.queue.push_back(event);
        } else if self.listening {
            self.lost += 1;
        }
        self.listening && has_room
    }

    pub(crate) fn take(&mut self) -> std::collections::vec_deque::Drain<'_, Event> {
        self.queue.drain(..)
    }

    pub(crate) const fn lost(&self) -> u64 {
        self.lost
    }
}

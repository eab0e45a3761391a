//! Events for a key manager (RFC 4301 §4.4.2.1, RFC 2367 §3.1.6, §3.1.8; Linux `km_query`, `km_state_expired`).

use std::collections::VecDeque;
use std::net::IpAddr;

use base::Instant;
use wire::Spi;
use xfrm::{Mark, Mode, PolicyKey, Request, SaDir, Selector, Template};

use crate::sa::{Aevent, Mapping, SaStats};

/// Maximum number of queued events. Later ones are lost, and counted.
pub const MAX_EVENTS: usize = 1024;

/// Event that a key manager may act on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Event {
    /// A packet needs an SA that does not exist.
    Acquire(Acquire),
    /// An SA has reached its soft limit, or its hard one.
    SaExpired(SaExpired),
    /// A policy has reached its soft limit, or its hard one.
    PolicyExpired(PolicyExpired),
    /// The address or port of a peer has changed.
    Mapping(Mapping),
    /// An SA's sequence numbers have changed; only reported if [that is
    /// enabled](crate::Ipsec::enable_numbers).
    Numbers(Aevent),
}

/// The SA that a packet needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Acquire {
    /// Number of the request; the SA that names it in [`SaConfig::acquire_seq`](xfrm::SaConfig::acquire_seq) answers
    /// it.
    pub seq: u32,
    /// The outer source; unspecified for any.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// Template that needs it.
    pub template: Template,
    /// The packet's flow.
    pub selector: Selector,
    /// The number of the policy.
    pub policy: u32,
    /// The policy's mark.
    pub mark: Mark,
    /// The number of the XFRM interface; 0 for none.
    pub if_id: u32,
    /// The CPU whose packets need it (RFC 9611); `None` for all.
    pub cpu: Option<u32>,
}

/// An SA that has reached a limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SaExpired {
    /// Whether it was removed; otherwise it should be replaced.
    pub hard: bool,
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The security parameters index; 0 of an acquired one that never came.
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
    /// The CPU whose packets it was for; `None` for all.
    pub cpu: Option<u32>,
    /// Time of its first use.
    pub first_used: Option<Instant>,
    /// Counters.
    pub stats: SaStats,
    /// The request that made it; `None` of an acquired one that never came.
    pub request: Option<Request>,
}

/// A policy that has reached a limit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyExpired {
    /// Whether it was removed; otherwise it will be soon.
    pub hard: bool,
    /// Index.
    pub index: u32,
    /// Key of the policy.
    pub key: PolicyKey,
    /// The request that made it.
    pub request: Option<Request>,
}

/// Queue of events, if there is a listener.
#[derive(Debug)]
pub(crate) struct Events {
    queue: VecDeque<Event>,
    listening: bool,
    /// Whether the listener answers requests for SAs.
    acquires: bool,
    /// Whether the listener gets reports of sequence numbers.
    numbers: bool,
    lost: u64,
}

impl Default for Events {
    /// No listener; a later one gets requests for SAs.
    fn default() -> Self {
        Self { queue: VecDeque::new(), listening: false, acquires: true, numbers: false, lost: 0 }
    }
}

impl Events {
    /// Adds or removes the listener. Without one, queued events are dropped.
    pub(crate) fn listen(&mut self, listening: bool) {
        self.listening = listening;
        if !listening {
            self.queue.clear();
        }
    }

    /// Tells whether there is a listener.
    pub(crate) const fn has_listener(&self) -> bool {
        self.listening
    }

    /// Sets whether the listener gets requests for SAs.
    pub(crate) const fn enable_acquires(&mut self, acquires: bool) {
        self.acquires = acquires;
    }

    /// Tells whether there is a listener that gets requests for SAs.
    pub(crate) const fn has_acquire_listener(&self) -> bool {
        self.listening && self.acquires
    }

    /// Sets whether the listener gets reports of sequence numbers. Returns the previous value.
    pub(crate) const fn enable_numbers(&mut self, enabled: bool) -> bool {
        std::mem::replace(&mut self.numbers, enabled)
    }

    /// Tells whether there is a listener that gets reports of sequence numbers.
    pub(crate) const fn has_number_listener(&self) -> bool {
        self.listening && self.numbers
    }

    /// Queues an event. Tells whether there was room and a listener.
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

//! Queue of events of SAs and policies for netlink's thread.

use std::sync::Arc;

use netlink::Groups;
use netlink::xfrm::Event;
use netlink::xfrm::nums::group;

use crate::bell::{Bell, News, xfrm_groups};

/// Events of SAs and policies, and the kinds of events with subscribers.
#[derive(Debug, Default)]
pub(crate) struct XfrmEvents {
    /// Events since the last call of [`ring`](Self::ring).
    pub(super) events: Vec<Event>,
    /// Queue to netlink's thread, if a client subscribes to any event.
    bell: Option<Arc<Bell>>,
    /// Whether a client subscribes to acquires.
    has_acquires: bool,
    /// Whether a client subscribes to SAs' sequence numbers.
    has_numbers: bool,
    /// Number of events lost in the `ipsec` crate, as of the last call.
    lost: u64,
}

impl XfrmEvents {
    /// Sets the queue `bell` for the events of the groups `groups`.
    pub(crate) fn set_bell(&mut self, groups: Groups, bell: Arc<Bell>) {
        self.bell = groups.intersects(xfrm_groups()).then_some(bell);
        self.has_acquires = groups.has(group::ACQUIRE);
        self.has_numbers = groups.has(group::AEVENTS);
    }

    /// Tells whether a client subscribes to events.
    pub(crate) const fn has_listener(&self) -> bool {
        self.bell.is_some()
    }

    /// Tells whether a client subscribes to acquires.
    pub(crate) const fn has_acquire_listener(&self) -> bool {
        self.has_acquires
    }

    /// Tells whether a client subscribes to SAs' sequence numbers.
    pub(crate) const fn has_number_listener(&self) -> bool {
        self.has_numbers
    }

    /// Sends the queued events to netlink's thread. `lost` counts the events that did not fit into the queue of the
    /// `ipsec` crate.
    pub(crate) fn ring(&mut self, lost: u64) {
        let more = std::mem::replace(&mut self.lost, lost) != lost;
        if self.events.is_empty() && !more {
            return;
        }
        match &self.bell {
            Some(bell) => bell.ring_xfrm(self.events.drain(..).map(News::Xfrm), more),
            None => self.events.clear(),
        }
    }
}

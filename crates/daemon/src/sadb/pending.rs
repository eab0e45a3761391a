//! Events of SAs and policies that are queued for the thread of netlink's clients.

use std::sync::Arc;

use netlink::Groups;
use netlink::xfrm::Event;
use netlink::xfrm::nums::group;

use crate::bell::{Bell, News, xfrm_groups};

/// Events of SAs and policies, and the clients' subscriptions to them.
#[derive(Debug, Default)]
pub(crate) struct XfrmEvents {
    /// Events since the last [ring](Self::ring).
    pub(super) events: Vec<Event>,
    /// Bell for the events, if a client is subscribed to any.
    bell: Option<Arc<Bell>>,
    /// Whether a client is subscribed to acquires.
    has_acquires: bool,
    /// Whether a client is subscribed to SAs' numbers.
    has_numbers: bool,
    /// Last reported number of events lost in the crate `ipsec`.
    lost: u64,
}

impl XfrmEvents {
    /// Sets the bell for events that clients are subscribed to.
    pub(crate) fn set_bell(&mut self, groups: Groups, bell: Arc<Bell>) {
        self.bell = groups.intersects(xfrm_groups()).then_some(bell);
        self.has_acquires = groups.has(group::ACQUIRE);
        self.has_numbers = groups.has(group::AEVENTS);
    }

    /// Tells whether a client is subscribed to events.
    pub(crate) const fn has_listener(&self) -> bool {
        self.bell.is_some()
    }

    /// Tells whether a client is subscribed to acquires.
    pub(crate) const fn has_acquire_listener(&self) -> bool {
        self.has_acquires
    }

    /// Tells whether a client is subscribed to SAs' numbers.
    pub(crate) const fn has_number_listener(&self) -> bool {
        self.has_numbers
    }

    /// Tells the events that wait. `lost` counts those for which there was no room before.
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

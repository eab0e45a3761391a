//! Events of SAs and policies that wait for the thread that tells netlink's clients.

use std::sync::Arc;

use netlink::Groups;
use netlink::xfrm::Event;
use netlink::xfrm::nums::group;

use crate::bell::{Bell, News, xfrm_groups};

/// Events of SAs and policies, and which of them clients hear.
#[derive(Debug, Default)]
pub(crate) struct XfrmEvents {
    /// Events since the last [ring](Self::ring).
    pub(super) events: Vec<Event>,
    /// Rung for them, if a client hears any.
    bell: Option<Arc<Bell>>,
    /// Whether a client makes SAs that are missing.
    asked: bool,
    /// Whether a client hears of SAs' numbers.
    numbers_heard: bool,
    /// Number of events lost before they came here, as last told.
    lost: u64,
}

impl XfrmEvents {
    /// Tells events by ringing `bell`, as far as clients hear them.
    pub(crate) fn set_bell(&mut self, heard: Groups, bell: Arc<Bell>) {
        self.bell = heard.intersects(xfrm_groups()).then_some(bell);
        self.asked = heard.has(group::ACQUIRE);
        self.numbers_heard = heard.has(group::AEVENTS);
    }

    /// Tells whether a client hears events.
    pub(crate) const fn is_heard(&self) -> bool {
        self.bell.is_some()
    }

    /// Tells whether a client hears which SAs are missing.
    pub(crate) const fn is_asked(&self) -> bool {
        self.asked
    }

    /// Tells whether a client hears of SAs' numbers.
    pub(crate) const fn are_numbers_heard(&self) -> bool {
        self.numbers_heard
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

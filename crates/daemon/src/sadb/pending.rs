//! Queue of events of SAs and policies for netlink's thread.

use std::sync::Arc;

use netlink::Groups;
use netlink::xfrm::Event;
use netlink::xfrm::nums::group;

use crate::event_queue::{EventQueue, KernelEvent, xfrm_groups};

/// Events of SAs and policies, and the kinds of events with subscribers.
#[derive(Debug, Default)]
pub(crate) struct XfrmEvents {
    /// Events since the last call of [`flush`](Self::flush).
    pub(super) events: Vec<Event>,
    /// Queue to netlink's thread, if a client subscribes to any event.
    queue: Option<Arc<EventQueue>>,
    /// Whether a client subscribes to acquires.
    has_acquires: bool,
    /// Whether a client subscribes to SAs' sequence numbers.
    has_numbers: bool,
    /// Number of events lost in the `ipsec` crate, as of the last call.
    lost: u64,
    /// Number of events that other shards have lost.
    lost_elsewhere: u64,
}

impl XfrmEvents {
    /// Sets the queue `queue` for the events of the groups `groups`.
    pub(crate) fn set_queue(&mut self, groups: Groups, queue: Arc<EventQueue>) {
        self.queue = groups.intersects(xfrm_groups()).then_some(queue);
        self.has_acquires = groups.has(group::ACQUIRE);
        self.has_numbers = groups.has(group::AEVENTS);
    }

    /// Tells whether a client subscribes to events.
    pub(crate) const fn has_listener(&self) -> bool {
        self.queue.is_some()
    }

    /// Tells whether a client subscribes to acquires.
    pub(crate) const fn has_acquire_listener(&self) -> bool {
        self.has_acquires
    }

    /// Tells whether a client subscribes to SAs' sequence numbers.
    pub(crate) const fn has_number_listener(&self) -> bool {
        self.has_numbers
    }

    /// Takes the queued events for another shard, and the number of those that have been lost since the last call; `lost` as in
    /// [`flush`](Self::flush).
    pub(crate) fn take(&mut self, lost: u64) -> (Vec<Event>, u64) {
        let before = std::mem::replace(&mut self.lost, lost);
        (std::mem::take(&mut self.events), lost.saturating_sub(before))
    }

    /// Queues events of another shard, which has lost some.
    pub(crate) fn extend(&mut self, events: Vec<Event>, lost: u64) {
        self.events.extend(events);
        self.lost_elsewhere += lost;
    }

    /// Sends the queued events to netlink's thread. `lost` counts the events that did not fit into the queue of the
    /// `ipsec` crate.
    pub(crate) fn flush(&mut self, lost: u64) {
        let lost = lost + self.lost_elsewhere;
        let more = std::mem::replace(&mut self.lost, lost) != lost;
        if self.events.is_empty() && !more {
            return;
        }
        match &self.queue {
            Some(queue) => queue.push_xfrm(self.events.drain(..).map(KernelEvent::Xfrm), more),
            None => self.events.clear(),
        }
    }
}

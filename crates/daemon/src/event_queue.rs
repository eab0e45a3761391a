//! Events of the worker for netlink's listeners.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use base::PortId;
use netlink::Groups;
use netlink::rtnl::nums::{RTNLGRP_LINK, RTNLGRP_NEIGH};
use netlink::rtnl::{LinkNow, NeighbourNow};
use netlink::xfrm::Event;
use netlink::xfrm::nums::group;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use switch::FdbChange;

/// An event of the worker.
#[derive(Clone, Debug)]
pub(crate) enum KernelEvent {
    /// Event of an SA or a policy.
    Xfrm(Event),
    /// Event of a link that has failed or recovered.
    Link(LinkNow),
    /// Event of a neighbour.
    Neighbour {
        /// State now, or the last one.
        now: NeighbourNow,
        /// Whether the entry is removed.
        gone: bool,
    },
    /// Change of a bridge's forwarding database.
    Fdb {
        /// Link of the bridge's device.
        bridge: PortId,
        /// The change.
        change: FdbChange,
    },
}

/// Queue of events for netlink's thread, with the eventfd that wakes the thread.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pending: Mutex<PendingEvents>,
    fd: OwnedFd,
}

/// Events since netlink's thread last took them. Each protocol has a queue of its own, so stations on a link, which can
/// change neighbours as often as they like, do not crowd out events of SAs.
#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    /// Events of SAs and policies, for listeners of `NETLINK_XFRM`.
    pub(crate) xfrm: Queue,
    /// Events of links, neighbours and bridges' addresses, for listeners of `NETLINK_ROUTE`.
    pub(crate) route: Queue,
}

/// Events of one protocol, and the groups that lost some.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) events: Vec<KernelEvent>,
    pub(crate) lost: Groups,
}

/// Limit of queued events. On overflow the listeners of all groups of the queue are notified that events were lost.
const MAX_WAITING: usize = 4096;

impl EventQueue {
    /// An empty queue with its eventfd.
    pub(crate) fn new() -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { pending: Mutex::default(), fd })
    }

    /// The eventfd, which is readable while events are queued.
    pub(crate) const fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Takes the events.
    pub(crate) fn take(&self) -> PendingEvents {
        let mut count = [0; 8];
        // A failed read means that no events are queued.
        let _ = rustix::io::read(&self.fd, &mut count);
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes netlink's thread without an event.
    pub(crate) fn wake(&self) {
        // A full counter already wakes the thread.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// Adds events of SAs and policies; `lost`: further events were lost.
    pub(crate) fn push_xfrm(&self, events: impl Iterator<Item = KernelEvent>, lost: bool) {
        let groups = xfrm_groups();
        let lost = if lost { groups } else { Groups::default() };
        self.push(|pending| &mut pending.xfrm, events, lost, groups);
    }

    /// Adds events of links, neighbours and bridges' addresses; `lost`: groups that lost further events.
    pub(crate) fn push_route(&self, events: impl Iterator<Item = KernelEvent>, lost: Groups) {
        self.push(|pending| &mut pending.route, events, lost, route_groups());
    }

    fn push(
        &self,
        queue: impl FnOnce(&mut PendingEvents) -> &mut Queue,
        mut events: impl Iterator<Item = KernelEvent>,
        lost: Groups,
        groups: Groups,
    ) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue(&mut pending);
        let room = MAX_WAITING.saturating_sub(queue.events.len());
        queue.events.extend(events.by_ref().take(room));
        queue.lost = queue.lost.union(lost);
        if events.next().is_some() {
            queue.lost = queue.lost.union(groups);
        }
        // A full counter already wakes the thread.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }
}

/// Groups of `NETLINK_XFRM` whose events occur without a client's request.
pub(crate) fn xfrm_groups() -> Groups {
    let mut groups = Groups::default();
    [group::ACQUIRE, group::EXPIRE, group::AEVENTS, group::MAPPING].iter().for_each(|&group| groups.set(group, true));
    groups
}

/// Groups of rtnetlink whose events occur without a client's request.
pub(crate) fn route_groups() -> Groups {
    let mut groups = Groups::default();
    [RTNLGRP_LINK, RTNLGRP_NEIGH].iter().for_each(|&group| groups.set(group, true));
    groups
}

/// Listeners of rtnetlink for links and neighbours, and the links that have changed.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    queue: Option<Arc<EventQueue>>,
    links: bool,
    changed: Vec<PortId>,
}

impl Listeners {
    /// Listeners of the groups in `groups`; `queue` wakes netlink's thread.
    pub(crate) fn new(groups: Groups, queue: Arc<EventQueue>) -> Self {
        let has_listener = groups.intersects(route_groups());
        Self { queue: has_listener.then_some(queue), links: groups.has(RTNLGRP_LINK), changed: Vec::new() }
    }

    /// Records that a link has failed or recovered.
    pub(crate) fn link_changed(&mut self, id: PortId) {
        if self.links && !self.changed.contains(&id) {
            self.changed.push(id);
        }
    }

    /// The event queue, if there are listeners, and the links that have changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Option<(Arc<EventQueue>, Vec<PortId>)> {
        let queue = self.queue.clone()?;
        Some((queue, std::mem::take(&mut self.changed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(n: u32) -> KernelEvent {
        let addr = std::net::Ipv4Addr::from(n).into();
        KernelEvent::Neighbour {
            now: NeighbourNow { link: PortId(1), addr, mac: None, state: 0, protocol: 0 },
            gone: true,
        }
    }

    #[test]
    fn flood_of_neighbour_events_loses_no_xfrm_event() {
        let queue = EventQueue::new().unwrap();
        for n in 0..10_000 {
            queue.push_route(std::iter::once(neighbour(n)), Groups::default());
        }
        queue.push_xfrm([neighbour(0)].into_iter(), false);
        let pending = queue.take();
        assert_eq!((pending.route.events.len(), pending.route.lost), (MAX_WAITING, route_groups()));
        assert_eq!((pending.xfrm.events.len(), pending.xfrm.lost), (1, Groups::default()));
    }

    #[test]
    fn lost_neighbour_events_are_reported_to_their_listeners_only() {
        let queue = EventQueue::new().unwrap();
        let mut neighbours = Groups::default();
        neighbours.set(RTNLGRP_NEIGH, true);
        queue.push_route(std::iter::empty(), neighbours);
        let lost = queue.take().route.lost;
        assert!(lost.has(RTNLGRP_NEIGH) && !lost.has(RTNLGRP_LINK));
        assert_eq!(queue.take().route.lost, Groups::default(), "they are reported once");
    }
}

//! Flows of the node's own sockets, for early demux (Linux `tcp_v4_early_demux`, `__inet_lookup_established`).
//!
//! The sockets are in a kernel. The table is filled only by packets that they send, so a flood from outside adds no entry. It is
//! bounded: a new flow evicts the flow of its bucket that has been idle for longest.

use std::hash::BuildHasher;
use std::time::Duration;

use base::{Domain, Instant, LinkId};
use foldhash::quality::RandomState;
use wire::{FlowKey, Protocol};

/// Limit of flows.
const MAX_FLOWS: usize = 1 << 16;

/// Flows of one bucket.
const BUCKET: usize = 8;

/// Idle time after which a flow of TCP is removed: a flow with keepalives has packets more often (Linux `tcp_keepalive_time`).
const TCP_IDLE: Duration = Duration::from_secs(2 * 3600);

/// Idle time after which a flow of UDP is removed.
const UDP_IDLE: Duration = Duration::from_secs(30);

/// Decision of the routes about a flow's packets, for as long as the routes do not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocalRoute {
    /// Input link of the packets.
    pub link: LinkId,
    /// Generation of the routes.
    pub generation: u64,
}

/// Flow of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Addresses and ports of its received packets.
    key: FlowKey,
    domain: Domain,
    /// Link or VRF whose device of the host side the socket sends and receives by.
    pub device: LinkId,
    /// Whether the socket is bound to no device, and sends by a device outside of the flow's domain.
    is_unbound: bool,
    seen: Instant,
    /// Cached route of its received packets.
    pub route: Option<LocalRoute>,
}

impl Flow {
    fn is_idle(&self, now: Instant) -> bool {
        let idle = if self.key.protocol == Protocol::TCP { TCP_IDLE } else { UDP_IDLE };
        now.since(self.seen) >= idle
    }
}

/// Flows of the node's own sockets. An empty table has no memory.
#[derive(Debug, Default)]
pub struct Established {
    slots: Vec<Option<Flow>>,
    hasher: RandomState,
    len: usize,
}

impl Established {
    /// Records that a socket has sent a packet of `sent` by a device in a domain; `is_end` marks the last packet of its flow (TCP's
    /// RST).
    pub fn sent(&mut self, now: Instant, domain: Domain, device: LinkId, sent: FlowKey, is_end: bool) {
        self.note(Flow { key: sent.reversed(), domain, device, is_unbound: false, seen: now, route: None }, is_end);
    }

    /// Records that a packet of `came` is delivered by the device of a link, in a domain, to a socket that is bound to no device: its
    /// answers are sent in the default domain, and belong to this one.
    pub fn accepted(&mut self, now: Instant, domain: Domain, device: LinkId, came: FlowKey) {
        self.note(Flow { key: came, domain, device, is_unbound: true, seen: now, route: None }, false);
    }

    /// Domain and link of the flow that a packet of `sent` answers, if its socket is bound to no device.
    pub fn answered(&self, now: Instant, sent: &FlowKey) -> Option<(Domain, LinkId)> {
        if self.len == 0 {
            return None;
        }
        let key = sent.reversed();
        let at = self.bucket_of(&key);
        let mut flows = self.slots[at..at + BUCKET].iter().flatten();
        let flow = flows.find(|flow| flow.is_unbound && flow.key == key && !flow.is_idle(now))?;
        Some((flow.domain, flow.device))
    }

    fn note(&mut self, new: Flow, is_end: bool) {
        let Flow { key, domain, seen: now, .. } = new;
        if self.slots.is_empty() {
            if is_end {
                return;
            }
            self.slots = vec![None; MAX_FLOWS];
        }
        let at = self.bucket_of(&key);
        let bucket = &mut self.slots[at..at + BUCKET];
        if let Some(slot) = bucket.iter_mut().find(|slot| slot.is_some_and(|flow| is_of(&flow, domain, &key))) {
            match slot {
                Some(flow) if !is_end => {
                    flow.seen = now;
                    flow.device = new.device;
                }
                _ => {
                    *slot = None;
                    self.len -= 1;
                }
            }
            return;
        }
        if is_end {
            return;
        }
        let Some(oldest) = bucket.iter_mut().min_by_key(|slot| slot.map(|flow| flow.seen)) else { return };
        self.len += usize::from(oldest.is_none());
        *oldest = Some(new);
    }

    /// Flow of a packet received by a link of a domain, unless the flow is idle.
    #[inline]
    pub fn find(&mut self, now: Instant, domain: Domain, came: &FlowKey) -> Option<&mut Flow> {
        if self.len == 0 {
            return None;
        }
        let at = self.bucket_of(came);
        let slot =
            self.slots[at..at + BUCKET].iter_mut().find(|slot| slot.is_some_and(|flow| is_of(&flow, domain, came)))?;
        if slot.is_some_and(|flow| flow.is_idle(now)) {
            *slot = None;
            self.len -= 1;
        }
        slot.as_mut()
    }

    /// Tells whether a socket has sent packets of `sent` in a domain lately.
    pub fn has_sent(&self, now: Instant, domain: Domain, sent: &FlowKey) -> bool {
        if self.len == 0 {
            return false;
        }
        let key = sent.reversed();
        let at = self.bucket_of(&key);
        let mut flows = self.slots[at..at + BUCKET].iter().flatten();
        flows.any(|flow| is_of(flow, domain, &key) && !flow.is_idle(now))
    }

    /// Removes every flow, when there are no sockets any more.
    pub fn clear(&mut self) {
        self.slots = Vec::new();
        self.len = 0;
    }

    /// Number of flows, idle ones included.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Tells whether there are no flows.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Every flow that is not idle: its domain, and the addresses and ports of its received packets.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (Domain, FlowKey)> + '_ {
        self.slots.iter().flatten().filter(move |flow| !flow.is_idle(now)).map(|flow| (flow.domain, flow.key))
    }

    /// Remote parties choose addresses and ports, so the hash is seeded; the domain is compared alone, as in Linux.
    #[inline]
    fn bucket_of(&self, key: &FlowKey) -> usize {
        self.hasher.hash_one(key) as usize % (MAX_FLOWS / BUCKET) * BUCKET
    }
}

#[inline]
fn is_of(flow: &Flow, domain: Domain, key: &FlowKey) -> bool {
    flow.key == *key && flow.domain == domain
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Domain = Domain::vrf(LinkId(7));
    const DEVICE: LinkId = LinkId(3);

    /// Flow that a socket sends, from port `n` or, for large `n`, from another address.
    fn sent(n: u32, protocol: Protocol) -> FlowKey {
        let [_, _, a, b] = n.to_be_bytes();
        FlowKey {
            src: [10, 0, (n >> 24) as u8, (n >> 16) as u8].into(),
            dst: [192, 0, 2, 1].into(),
            protocol,
            sport: u16::from_be_bytes([a, b]),
            dport: 443,
        }
    }

    fn at(secs: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(secs)
    }

    #[test]
    fn flow_is_found_by_its_answers_in_its_domain_alone() {
        let mut table = Established::default();
        let flow = sent(5000, Protocol::TCP);
        assert!(table.find(at(0), RED, &flow.reversed()).is_none());
        table.sent(at(0), RED, DEVICE, flow, false);
        assert!(table.find(at(1), RED, &flow.reversed()).is_some());
        assert!(table.has_sent(at(1), RED, &flow) && !table.has_sent(at(7200), RED, &flow));
        assert!(!table.has_sent(at(1), RED, &flow.reversed()) && !table.has_sent(at(1), Domain::DEFAULT, &flow));
        assert!(table.find(at(1), RED, &flow).is_none(), "its own direction");
        assert!(table.find(at(1), Domain::DEFAULT, &flow.reversed()).is_none());
        let udp = FlowKey { protocol: Protocol::UDP, ..flow };
        assert!(table.find(at(1), RED, &udp.reversed()).is_none());
        table.sent(at(2), RED, DEVICE, flow, true);
        assert!(table.find(at(2), RED, &flow.reversed()).is_none() && table.is_empty());
    }

    #[test]
    fn silent_flow_is_forgotten_after_its_time() {
        for (protocol, idle) in [(Protocol::TCP, 7200), (Protocol::UDP, 30)] {
            let mut table = Established::default();
            let flow = sent(5000, protocol);
            table.sent(at(0), RED, DEVICE, flow, false);
            table.sent(at(10), RED, DEVICE, flow, false);
            assert!(table.find(at(9 + idle), RED, &flow.reversed()).is_some());
            assert_eq!(table.iter(at(9 + idle)).count(), 1);
            assert_eq!(table.iter(at(10 + idle)).count(), 0);
            assert!(table.find(at(10 + idle), RED, &flow.reversed()).is_none());
            assert_eq!(table.len(), 0);
        }
    }

    #[test]
    fn flood_of_flows_is_bounded_and_evicts_the_oldest() {
        let mut table = Established::default();
        for n in 0..300_000 {
            table.sent(at(u64::from(n)), RED, DEVICE, sent(n, Protocol::TCP), false);
        }
        assert!(table.len() <= MAX_FLOWS && table.len() > MAX_FLOWS / 2, "{} flows", table.len());
        let newest = 299_000..300_000;
        let left = newest.filter(|&n| table.find(at(300_000), RED, &sent(n, Protocol::TCP).reversed()).is_some());
        assert_eq!(left.count(), 1000, "the newest stay");
        table.clear();
        assert!(table.is_empty() && table.find(at(0), RED, &sent(1, Protocol::TCP)).is_none());
    }

    #[test]
    fn route_of_flow_is_kept_with_it() {
        let mut table = Established::default();
        let flow = sent(1, Protocol::UDP);
        table.sent(at(0), RED, DEVICE, flow, false);
        let route = LocalRoute { link: LinkId(3), generation: 9 };
        table.find(at(0), RED, &flow.reversed()).unwrap().route = Some(route);
        table.sent(at(1), RED, DEVICE, flow, false);
        assert_eq!(table.find(at(1), RED, &flow.reversed()).unwrap().route, Some(route));
    }

    #[test]
    fn flow_has_the_device_that_its_socket_sent_by_last() {
        let mut table = Established::default();
        let flow = sent(1, Protocol::UDP);
        for device in [LinkId(3), LinkId(7)] {
            table.sent(at(0), RED, device, flow, false);
            assert_eq!(table.find(at(0), RED, &flow.reversed()).unwrap().device, device);
            assert_eq!(table.answered(at(0), &flow), None, "it is bound");
        }
    }

    #[test]
    fn answers_of_an_unbound_socket_belong_to_the_flows_domain() {
        let mut table = Established::default();
        let flow = sent(1, Protocol::TCP);
        assert_eq!(table.answered(at(0), &flow), None);
        table.accepted(at(0), RED, DEVICE, flow.reversed());
        assert_eq!(table.answered(at(1), &flow), Some((RED, DEVICE)));
        table.sent(at(1), RED, DEVICE, flow, false);
        assert_eq!(table.answered(at(7200), &flow), Some((RED, DEVICE)), "it stays unbound");
        assert_eq!(table.answered(at(7201), &flow), None, "idle");
        assert_eq!(table.answered(at(1), &flow.reversed()), None);
    }
}

//! Flows of the node's own sockets, for early demux (Linux `tcp_v4_early_demux`, `__inet_lookup_established`).
//!
//! The sockets are in a kernel. The table is filled by packets that they send, and by packets of VRFs that a socket without a
//! device accepts. It is bounded: a new flow evicts one of its bucket, of the domain with the most flows there, so that a flood in one
//! VRF evicts no flow of another; a flow whose peer has sent nothing since it began goes first.
//!
//! A flow of a socket that is bound to no device belongs to one domain. On Linux an accepted socket is bound to its VRF
//! (`inet_request_bound_dev_if`); the kernel of the sockets has no VRFs, and takes such packets of any device for the same flow.

use std::hash::BuildHasher;
use std::time::Duration;

use base::{Domain, Instant, PortId};
use foldhash::quality::RandomState;
use wire::{FlowKey, Protocol};

/// Limit of flows. A fuzzer fills the table with one input.
#[expect(unexpected_cfgs, reason = "the flag is that of cargo-fuzz")]
const MAX_FLOWS: usize = if cfg!(fuzzing) { 64 } else { 1 << 16 };

/// Flows of one bucket.
const BUCKET: usize = 8;

/// Idle time after which a flow of TCP is removed: a flow with keepalives has packets more often (Linux `tcp_keepalive_time`).
const TCP_IDLE: Duration = Duration::from_secs(2 * 3600);

/// Idle time after which a flow of UDP is removed.
const UDP_IDLE: Duration = Duration::from_secs(30);

/// Idle time after which a flow of UDP of a socket without a device belongs to its VRF no longer (Linux
/// `nf_conntrack_udp_timeout_stream`).
const UNBOUND_UDP_IDLE: Duration = Duration::from_secs(120);

/// Decision of the routes about a flow's packets, for as long as the routes do not change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LocalRoute {
    /// Input link of the packets.
    pub link: PortId,
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
    pub device: PortId,
    /// Whether the socket is bound to no device, and sends by a device outside of the flow's domain.
    pub is_unbound: bool,
    seen: Instant,
    /// Whether the peer has sent a packet since the flow began.
    is_confirmed: bool,
    /// Cached route of its received packets.
    pub route: Option<LocalRoute>,
}

impl Flow {
    fn new(now: Instant, domain: Domain, device: PortId, key: FlowKey) -> Self {
        Self { key, domain, device, is_unbound: false, seen: now, is_confirmed: false, route: None }
    }

    fn is_idle(&self, now: Instant) -> bool {
        let idle = match self.key.protocol {
            Protocol::TCP => TCP_IDLE,
            _ if self.is_unbound => UNBOUND_UDP_IDLE,
            _ => UDP_IDLE,
        };
        now.since(self.seen) >= idle
    }

    /// Tells whether the flow is to be removed. A connection of a socket without a device is silent for as long as it likes, and
    /// stays in its domain.
    fn is_over(&self, now: Instant) -> bool {
        self.is_idle(now) && !(self.is_unbound && self.key.protocol == Protocol::TCP)
    }

    /// Order of eviction within a domain: the least is evicted first.
    fn rank(&self, now: Instant) -> (bool, bool, Instant) {
        (!self.is_idle(now), self.is_confirmed, self.seen)
    }
}

/// Flows of the node's own sockets. An empty table has no memory.
#[derive(Debug, Default)]
pub struct Established {
    slots: Vec<Option<Flow>>,
    hasher: RandomState,
    len: usize,
    /// Number of flows of sockets without a device.
    unbound: usize,
}

impl Established {
    /// Records that a socket has sent a packet of `sent` by a device in a domain; `is_end` marks the last packet of its flow (TCP's
    /// RST).
    pub fn sent(&mut self, now: Instant, domain: Domain, device: PortId, sent: FlowKey, is_end: bool) {
        self.note(Flow::new(now, domain, device, sent.reversed()), is_end);
    }

    /// Records that a packet of `came` is delivered by the device of a link, in a domain, to a socket that is bound to no device: its
    /// answers are sent in the default domain, and belong to this one. The flow belongs to no other domain from then on.
    pub fn accepted(&mut self, now: Instant, domain: Domain, device: PortId, came: FlowKey) {
        self.release(domain, &came);
        self.note(Flow { is_unbound: true, ..Flow::new(now, domain, device, came) }, false);
    }

    /// Removes the flows of `came` that belong to [another domain](Self::is_contested) than this one.
    pub fn release(&mut self, domain: Domain, came: &FlowKey) {
        if self.len == 0 {
            return;
        }
        let at = self.bucket_of(came);
        for slot in at..at + BUCKET {
            if self.slots[slot].is_some_and(|flow| is_contender(&flow, domain, came)) {
                self.set(slot, None);
            }
        }
    }

    /// Tells whether packets of `came`, received in a domain, may be taken for those of a flow in another domain: the socket of that
    /// flow is bound to no device, and a kernel without VRFs delivers packets of all devices to it.
    #[inline]
    pub fn is_contested(&self, now: Instant, domain: Domain, came: &FlowKey) -> bool {
        if self.len == 0 || domain == Domain::DEFAULT && self.unbound == 0 {
            return false;
        }
        let at = self.bucket_of(came);
        self.slots[at..at + BUCKET].iter().flatten().any(|flow| is_contender(flow, domain, came) && !flow.is_over(now))
    }

    /// Domain and link of the flow that a packet of `sent` answers, if its socket is bound to no device.
    #[inline]
    pub fn answered(&mut self, now: Instant, sent: &FlowKey) -> Option<(Domain, PortId)> {
        if self.unbound == 0 {
            return None;
        }
        let key = sent.reversed();
        let at = self.bucket_of(&key);
        let mut flows = self.slots[at..at + BUCKET].iter_mut().flatten();
        let flow = flows.find(|flow| flow.is_unbound && flow.key == key && !flow.is_over(now))?;
        flow.seen = now;
        Some((flow.domain, flow.device))
    }

    fn note(&mut self, new: Flow, is_end: bool) {
        if self.slots.is_empty() {
            if is_end {
                return;
            }
            self.slots = vec![None; MAX_FLOWS];
        }
        let at = self.bucket_of(&new.key);
        let bucket = &self.slots[at..at + BUCKET];
        if let Some(slot) = bucket.iter().position(|slot| slot.is_some_and(|flow| is_of(&flow, new.domain, &new.key))) {
            match &mut self.slots[at + slot] {
                Some(flow) if !is_end && flow.is_unbound == new.is_unbound => {
                    flow.seen = new.seen;
                    flow.device = new.device;
                }
                _ => self.set(at + slot, Some(new).filter(|_| !is_end)),
            }
        } else if !is_end {
            let slot = slot_to_fill(bucket, new.seen);
            self.set(at + slot, Some(new));
        }
    }

    fn set(&mut self, slot: usize, flow: Option<Flow>) {
        let before = std::mem::replace(&mut self.slots[slot], flow);
        let is_unbound = |flow: Option<Flow>| usize::from(flow.is_some_and(|flow| flow.is_unbound));
        self.len = self.len + usize::from(flow.is_some()) - usize::from(before.is_some());
        self.unbound = self.unbound + is_unbound(flow) - is_unbound(before);
    }

    /// Flow of a packet received by a link of a domain, unless the flow is idle.
    #[inline]
    pub fn find(&mut self, now: Instant, domain: Domain, came: &FlowKey) -> Option<&mut Flow> {
        if self.len == 0 {
            return None;
        }
        let at = self.bucket_of(came);
        let found =
            self.slots[at..at + BUCKET].iter().position(|slot| slot.is_some_and(|flow| is_of(&flow, domain, came)));
        let slot = at + found?;
        if self.slots[slot].is_some_and(|flow| flow.is_over(now)) {
            self.set(slot, None);
        }
        let flow = self.slots[slot].as_mut()?;
        flow.is_confirmed = true;
        if flow.is_unbound {
            flow.seen = now;
        }
        Some(flow)
    }

    /// Tells whether a socket has sent packets of `sent` in a domain lately.
    pub fn has_sent(&self, now: Instant, domain: Domain, sent: &FlowKey) -> bool {
        if self.len == 0 {
            return false;
        }
        let key = sent.reversed();
        let at = self.bucket_of(&key);
        let mut flows = self.slots[at..at + BUCKET].iter().flatten();
        flows.any(|flow| is_of(flow, domain, &key) && !flow.is_over(now))
    }

    /// Removes every flow, when there are no sockets any more.
    pub fn clear(&mut self) {
        self.slots = Vec::new();
        self.len = 0;
        self.unbound = 0;
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

    /// Every flow that is not idle, from a slot of the table on: its slot, its domain, and the addresses and ports of its
    /// received packets.
    pub fn iter_from(&self, now: Instant, slot: usize) -> impl Iterator<Item = (usize, Domain, FlowKey)> + '_ {
        let slots = self.slots.iter().enumerate().skip(slot);
        let flows = slots.filter_map(|(at, flow)| Some((at, flow.as_ref()?)));
        flows.filter(move |(_, flow)| !flow.is_over(now)).map(|(at, flow)| (at, flow.domain, flow.key))
    }

    /// Remote parties choose addresses and ports, so the hash is seeded; the domain is compared alone, as in Linux.
    #[inline]
    fn bucket_of(&self, key: &FlowKey) -> usize {
        self.hasher.hash_one(key) as usize % (MAX_FLOWS / BUCKET) * BUCKET
    }
}

/// Slot of a bucket for a new flow: a free one, else the slot of the flow to evict.
fn slot_to_fill(bucket: &[Option<Flow>], now: Instant) -> usize {
    let flows_of = |domain| bucket.iter().flatten().filter(|flow| flow.domain == domain).count();
    let order = |&slot: &usize| bucket[slot].map(|flow| (std::cmp::Reverse(flows_of(flow.domain)), flow.rank(now)));
    (0..bucket.len()).min_by_key(order).unwrap_or(0)
}

/// Tells whether a flow in another domain gets packets of `came`.
#[inline]
fn is_contender(flow: &Flow, domain: Domain, came: &FlowKey) -> bool {
    flow.key == *came && flow.domain != domain && (flow.is_unbound || flow.domain == Domain::DEFAULT)
}

#[inline]
fn is_of(flow: &Flow, domain: Domain, key: &FlowKey) -> bool {
    flow.key == *key && flow.domain == domain
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Domain = Domain::vrf(PortId(7));
    const DEVICE: PortId = PortId(3);

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
            assert_eq!(table.iter_from(at(9 + idle), 0).count(), 1);
            assert_eq!(table.iter_from(at(10 + idle), 0).count(), 0);
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
        let route = LocalRoute { link: PortId(3), generation: 9 };
        table.find(at(0), RED, &flow.reversed()).unwrap().route = Some(route);
        table.sent(at(1), RED, DEVICE, flow, false);
        assert_eq!(table.find(at(1), RED, &flow.reversed()).unwrap().route, Some(route));
    }

    #[test]
    fn flow_has_the_device_that_its_socket_sent_by_last() {
        let mut table = Established::default();
        let flow = sent(1, Protocol::UDP);
        for device in [PortId(3), PortId(7)] {
            table.sent(at(0), RED, device, flow, false);
            assert_eq!(table.find(at(0), RED, &flow.reversed()).unwrap().device, device);
            assert_eq!(table.answered(at(0), &flow), None, "it is bound");
        }
    }

    #[test]
    fn answers_of_an_unbound_socket_belong_to_the_flows_domain() {
        for (protocol, idle) in [(Protocol::TCP, None), (Protocol::UDP, Some(120))] {
            let mut table = Established::default();
            let flow = sent(1, protocol);
            assert_eq!(table.answered(at(0), &flow), None);
            table.accepted(at(0), RED, DEVICE, flow.reversed());
            assert_eq!(table.answered(at(1), &flow), Some((RED, DEVICE)));
            assert_eq!(table.answered(at(1), &flow.reversed()), None);
            // Packets of both directions keep the flow.
            assert!(table.find(at(100), RED, &flow.reversed()).is_some());
            let last = idle.map_or(1_000_000, |idle| 99 + idle);
            assert_eq!(table.answered(at(last), &flow), Some((RED, DEVICE)));
            let later = last + idle.unwrap_or(1_000_000);
            assert_eq!(table.answered(at(later), &flow).is_some(), idle.is_none(), "{protocol:?}");
            // The program binds the socket.
            table.accepted(at(later), RED, DEVICE, flow.reversed());
            table.sent(at(later), RED, PortId(7), flow, false);
            assert_eq!(table.answered(at(later), &flow), None);
            assert_eq!(table.unbound, 0);
        }
    }

    #[test]
    fn flow_of_an_unbound_socket_belongs_to_one_domain() {
        const BLUE: Domain = Domain::vrf(PortId(8));
        let mut table = Established::default();
        let flow = sent(1, Protocol::TCP);
        let came = flow.reversed();
        assert!(!table.is_contested(at(0), BLUE, &came));
        table.accepted(at(0), RED, DEVICE, came);
        for other in [BLUE, Domain::DEFAULT] {
            assert!(table.is_contested(at(1), other, &came), "{other:?}");
        }
        assert!(!table.is_contested(at(1), RED, &came) && !table.is_contested(at(1), BLUE, &flow));
        table.accepted(at(2), BLUE, PortId(4), came);
        assert_eq!((table.answered(at(2), &flow), table.len()), (Some((BLUE, PortId(4))), 1));
        // A socket without a device that has sent in the default domain gets packets of all devices; a bound one does not.
        table.release(Domain::DEFAULT, &came);
        assert_eq!((table.len(), table.unbound), (0, 0));
        table.sent(at(3), Domain::DEFAULT, PortId(1), flow, false);
        assert!(table.is_contested(at(3), RED, &came));
        table.sent(at(3), BLUE, PortId(8), flow, false);
        assert!(!table.is_contested(at(3), Domain::DEFAULT, &came));
    }

    #[test]
    fn flood_of_one_domain_evicts_no_flow_of_another() {
        const BLUE: Domain = Domain::vrf(PortId(8));
        let mut table = Established::default();
        let old: Vec<FlowKey> = (0..500).map(|n| sent(n << 8, Protocol::TCP).reversed()).collect();
        old.iter().for_each(|came| table.accepted(at(0), RED, DEVICE, *came));
        for n in 0..300_000 {
            table.accepted(at(1 + u64::from(n)), BLUE, PortId(4), sent(0x0100_0000 + n, Protocol::TCP).reversed());
        }
        assert!(old.iter().all(|came| table.find(at(300_001), RED, came).is_some()));
        assert_eq!(
            (table.len, table.unbound),
            (table.iter_from(at(300_001), 0).count(), table.iter_from(at(300_001), 0).count())
        );
    }

    #[test]
    fn flow_whose_peer_has_sent_nothing_is_evicted_first() {
        let mut table = Established::default();
        let old: Vec<FlowKey> = (0..500).map(|n| sent(n << 8, Protocol::TCP)).collect();
        for flow in &old {
            table.sent(at(0), RED, DEVICE, *flow, false);
            assert!(table.find(at(0), RED, &flow.reversed()).is_some());
        }
        (0..300_000).for_each(|n| table.sent(at(1), RED, DEVICE, sent(0x0100_0000 + n, Protocol::TCP), false));
        assert!(old.iter().all(|flow| table.find(at(2), RED, &flow.reversed()).is_some()));
    }
}

//! Neighbours: link-layer addresses of next hops, and packets that wait for them (RFC 4861 §7.3, RFC 826).
//!
//! One state machine serves ARP and neighbour discovery, as in Linux. An unknown next hop is solicited three times, a
//! second apart, while its packets wait. A known next hop is used, and probed if its last confirmation is old (RFC 4861
//! App. C).
//!
//! Other stations can cause entries and solicitations, so both are limited. Each link has a table for each family, with
//! separate limits, so that an attack on one link or by one protocol does not affect the others:
//!
//! - The number of entries. A full table evicts by worth, in O(log n) ([`table`]). Permanent entries are never evicted.
//! - The entries created by solicitations and ARP requests per second, and the resolutions started by packets per second
//!   (RFC 6583 §6.4, §7.1). A neighbour that has answered before is resolved again without that limit.
//! - The replies to solicitations and ARP requests per second. Neighbours that have answered before have a separate
//!   share.
//! - The packets and bytes that wait, for one neighbour, for one table and in total. Waiting packets hold no device
//!   frames.
//!
//! A neighbour is confirmed only by its answer to a solicitation of this node, never by its own solicitation (RFC 4861
//! §7.2.3).

mod state;
mod table;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, Instant, PortId, Rate, TokenBucket};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use packet::{Memory, Packet};
use wire::MacAddr;

use state::{State, Waiting};
use table::{NeighbourTable, Place, Worth};

pub use types::{Action, Changes, Known, Limits, LladdrUpdate, Neighbour, NudState, Resolution};

type Key = (PortId, IpAddr);

/// Key of a table: the link, and whether the family is IPv6.
type TableKey = (PortId, bool);

/// The neighbours on every link of a node.
pub struct Neighbours {
    limits: Limits,
    entries: HashMap<Key, Entry, RandomState>,
    tables: HashMap<TableKey, NeighbourTable, RandomState>,
    /// Protocols that have set entries (`RTPROT_*`).
    protocols: HashMap<Key, u8, RandomState>,
    /// One timer for each entry whose state has a deadline.
    timers: BTreeSet<(Instant, Key)>,
    /// Memory of all waiting packets.
    waiting_bytes: usize,
    /// Entries by state, in the order of [`NudState::ALL`].
    counts: [usize; NudState::ALL.len()],
    /// Recorded changes, if a listener has subscribed.
    watch: Option<Watch>,
    /// Knowledge of other shards about these neighbours, if there are any.
    shared: Option<Shared>,
}

/// Knowledge of other shards about the neighbours.
#[derive(Default)]
struct Shared {
    /// Neighbours that may have changed since the others were told.
    changed: BTreeSet<Key>,
    /// The addresses that the others use.
    told: BTreeMap<Key, MacAddr>,
}

/// Link-layer address for packets to a neighbour that all shards of a node use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedStation {
    /// The link.
    pub link: PortId,
    /// The neighbour.
    pub addr: IpAddr,
    /// The address; `None`: a packet has to pass the shard that owns neighbours, which resolves the address or begins to probe it.
    pub mac: Option<MacAddr>,
}

/// One neighbour.
struct Entry {
    state: State,
    /// Position in the eviction order of its table; `None` for a permanent entry.
    place: Option<Place>,
    /// Whether a packet was sent to the neighbour since its position in the order was set.
    is_used: bool,
    /// Time from which the next solicitation is answered regardless of the rate limit for all stations.
    answer_from: Instant,
}

impl Entry {
    /// Tells whether the neighbour has answered a solicitation, or the operator has set it.
    fn is_confirmed(&self) -> bool {
        self.place.is_none_or(|place| place.worth == Worth::Confirmed)
    }

    /// Changes its state, and the numbers of entries by state. Returns the state before.
    fn change(&mut self, next: State, counts: &mut [usize; NudState::ALL.len()]) -> State {
        counts[self.state.kind() as usize] -= 1;
        counts[next.kind() as usize] += 1;
        std::mem::replace(&mut self.state, next)
    }
}

/// Changes since the last call of `take_changed`.
#[derive(Default)]
struct Watch {
    changed: Changes,
    budget: Option<TokenBucket>,
}

/// Maximum number of recorded changes, of entries and of entries removed with their link.
const MAX_CHANGED: usize = 1024;

/// Limit of recorded changes per second; stations can cause any number of them.
const CHANGES: Rate = Rate::new(1000, MAX_CHANGED as u32);

impl Neighbours {
    /// Empty tables.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: HashMap::default(),
            tables: HashMap::default(),
            protocols: HashMap::default(),
            timers: BTreeSet::new(),
            waiting_bytes: 0,
            counts: [0; NudState::ALL.len()],
            watch: None,
            shared: None,
        }
    }

    /// Records changes for [`take_shared`](Self::take_shared) from now on.
    pub fn share(&mut self) {
        self.shared.get_or_insert_default();
    }

    /// Link-layer addresses that other shards use from now on, or use no longer, since the last call. The first packet to a neighbour
    /// whose confirmation is old has to pass here, so that the neighbour is probed as it is with one shard.
    pub fn take_shared(&mut self) -> impl Iterator<Item = SharedStation> + use<> {
        let mut updates = Vec::new();
        if let Some(Shared { changed, told }) = &mut self.shared {
            for key in std::mem::take(changed) {
                let mac = self.entries.get(&key).and_then(|entry| entry.state.shared_mac());
                let before = match mac {
                    Some(mac) => told.insert(key, mac),
                    None => told.remove(&key),
                };
                if before != mac {
                    updates.push(SharedStation { link: key.0, addr: key.1, mac });
                }
            }
        }
        updates.into_iter()
    }

    /// Address of a neighbour that other shards may use now, whether or not they were told.
    pub fn shared_station(&self, link: PortId, addr: IpAddr) -> SharedStation {
        let mac = self.entries.get(&(link, addr)).and_then(|entry| entry.state.shared_mac());
        SharedStation { link, addr, mac }
    }

    /// Records that other shards have forgotten a neighbour, as they make the operator's changes too.
    fn untell(&mut self, key: Key) {
        if let Some(shared) = &mut self.shared {
            shared.told.remove(&key);
        }
    }

    /// Records that a neighbour may have changed, for other shards.
    #[inline]
    fn mark(&mut self, key: Key) {
        if let Some(shared) = &mut self.shared {
            shared.changed.insert(key);
        }
    }

    /// Enables or disables the recording of changes for [`take_changed`](Self::take_changed).
    pub fn watch(&mut self, on: bool) {
        self.watch = if on { Some(self.watch.take().unwrap_or_default()) } else { None };
    }

    /// Changes since the last call without those by the operator: the changes of which Linux sends notifications
    /// (`neigh_update_notify`), so the start of a resolution does not count.
    pub fn take_changed(&mut self) -> Changes {
        self.watch.as_mut().map(|watch| std::mem::take(&mut watch.changed)).unwrap_or_default()
    }

    /// A neighbour, if it has an entry.
    pub fn get(&self, link: PortId, addr: IpAddr) -> Option<Neighbour> {
        self.entries.get(&(link, addr)).map(|entry| self.shown((link, addr), entry))
    }

    /// The link-layer address of a neighbour, if known.
    pub fn mac(&self, link: PortId, addr: IpAddr) -> Option<MacAddr> {
        self.entries.get(&(link, addr))?.state.mac()
    }

    /// Tells whether a packet to `next_hop` can be sent at once.
    pub fn is_resolved(&self, link: PortId, next_hop: IpAddr) -> bool {
        match self.entries.get(&(link, next_hop)) {
            Some(entry) => entry.state.mac().is_some(),
            None => to_many(next_hop).is_some(),
        }
    }

    /// Link-layer address for a packet to `next_hop` now, if known. Groups and the limited broadcast address need no
    /// resolution.
    #[inline]
    pub fn station(&mut self, now: Instant, link: PortId, next_hop: IpAddr) -> Option<MacAddr> {
        let key = (link, next_hop);
        match self.entries.get_mut(&key) {
            Some(entry) => match entry.state {
                State::Reachable { mac, .. }
                | State::Delay { mac, .. }
                | State::Probe { mac, .. }
                | State::Permanent { mac } => {
                    entry.is_used = true;
                    Some(mac)
                }
                State::Stale { mac } => {
                    self.delay(now, key, mac);
                    Some(mac)
                }
                State::Incomplete { .. } | State::Failed { .. } => None,
            },
            None => to_many(next_hop),
        }
    }

    /// Finds the link-layer address for a packet to `next_hop` as [`station`](Self::station) does, or queues the packet
    /// until the address is known.
    ///
    /// A packet is dropped with [`DropReason::NeighbourRateLimited`] at the limit of resolutions started per second,
    /// and with [`DropReason::NeighbourQueueFull`] at a limit of queued packets.
    pub fn resolve(
        &mut self,
        now: Instant,
        mem: &Memory,
        link: PortId,
        next_hop: IpAddr,
        packet: Packet,
        actions: &mut Vec<Action>,
    ) -> Resolution {
        if let Some(mac) = self.station(now, link, next_hop) {
            return Resolution::Send(mac, packet);
        }
        let key = (link, next_hop);
        match self.entries.get(&key).map(|entry| &entry.state) {
            Some(State::Incomplete { .. }) => self.wait(mem, key, packet, actions),
            _ => self.look_for(now, mem, key, packet, actions),
        }
    }

    /// Handles a message of `addr`. Packets that waited for the neighbour are sent through actions.
    pub fn learn(&mut self, now: Instant, link: PortId, addr: IpAddr, update: LladdrUpdate, actions: &mut Vec<Action>) {
        let key = (link, addr);
        let Some(entry) = self.entries.get_mut(&key) else {
            if let LladdrUpdate::Solicitation(mac) = update {
                self.learn_asker(now, key, mac, actions);
            }
            return;
        };
        let Some(next) = entry.state.after(now, update, &self.limits) else { return };
        let is_answer = entry.state.is_solicited() && matches!(next, State::Reachable { .. });
        let had_failed = entry.place.is_some_and(|place| place.worth == Worth::Failed);
        let mac = next.mac();
        let kind = next.kind();
        let begun = next.deadline();
        let before = entry.change(next, &mut self.counts);
        self.mark(key);
        self.rearm(key, before.deadline(), begun);
        if is_answer {
            self.put_behind(key, Some(Worth::Confirmed));
        } else if had_failed {
            self.put_behind(key, Some(Worth::Unused));
        }
        if (before.mac(), before.kind()) != (mac, kind) {
            self.record_change(now, key);
        }
        if let Some(mac) = mac {
            self.send_waiting(key, before, mac, actions);
        }
    }

    /// Tells whether a solicitation or ARP request of `asker` may be answered now, and records the reply. A confirmed
    /// neighbour, which checks that this node is reachable, gets a reply at least every
    /// [`answer_interval`](Limits::answer_interval), regardless of other stations' requests.
    pub fn may_answer(&mut self, now: Instant, link: PortId, asker: IpAddr) -> bool {
        let key = (link, asker);
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.is_confirmed()
            && entry.answer_from <= now
        {
            entry.answer_from = now + self.limits.answer_interval;
            return true;
        }
        let rate = self.limits.answers;
        self.table(key).answers.take(rate, now)
    }

    /// Sets a neighbour for the operator. Packets that waited for it are sent or dropped through actions. Other shards forget the
    /// neighbour at the same place of the log, and are told again.
    pub fn set(&mut self, now: Instant, link: PortId, addr: IpAddr, known: Known, actions: &mut Vec<Action>) {
        let key = (link, addr);
        self.untell(key);
        let (state, mac) = match known {
            Known::Nothing => return self.remove(key, actions),
            Known::Permanent(mac) => (State::Permanent { mac }, mac),
            Known::Reachable(mac) => (State::Reachable { mac, until: now + self.limits.reachable }, mac),
            Known::Stale(mac) => (State::Stale { mac }, mac),
        };
        let worth = (!state.is_permanent()).then_some(Worth::Confirmed);
        if let Some(entry) = self.entries.get_mut(&key) {
            let begun = state.deadline();
            let before = entry.change(state, &mut self.counts);
            self.mark(key);
            self.rearm(key, before.deadline(), begun);
            self.put_behind(key, worth);
            self.send_waiting(key, before, mac, actions);
        } else {
            if worth.is_some() {
                self.make_room(now, key, Worth::Confirmed, actions);
            }
            self.insert(key, state, worth);
        }
    }

    /// Records the protocol that has set a neighbour (Linux `neigh_add`), if it has an entry.
    pub fn set_protocol(&mut self, link: PortId, addr: IpAddr, protocol: u8) {
        if self.entries.contains_key(&(link, addr)) {
            self.protocols.insert((link, addr), protocol);
        }
    }

    /// Time of the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|&(at, _)| at)
    }

    /// Advances every neighbour whose deadline has passed: solicits it again, or marks it as failed and drops its
    /// waiting packets.
    pub fn handle_timeout(&mut self, now: Instant, actions: &mut Vec<Action>) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.expire(now, key, actions);
        }
    }

    /// Removes all neighbours on `link`, which has gone down. Other shards are told, and may have seen the link go down or not.
    pub fn remove_link(&mut self, link: PortId, actions: &mut Vec<Action>) {
        let mut keys: Vec<Key> = self.entries.keys().copied().filter(|&(on, _)| on == link).collect();
        keys.sort_unstable();
        for key in keys {
            let was = self.get(key.0, key.1);
            self.remove(key, actions);
            if let Some((Watch { changed, .. }, was)) = self.watch.as_mut().zip(was) {
                match changed.removed.len() {
                    MAX_CHANGED.. => changed.is_truncated = true,
                    _ => changed.removed.push(was),
                }
            }
        }
        self.tables.retain(|&(on, _), _| on != link);
    }

    /// The number of neighbours.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of neighbours in each state, in the order of [`NudState::ALL`].
    pub const fn counts(&self) -> [usize; NudState::ALL.len()] {
        self.counts
    }

    /// Number of permanent neighbours, which only requests add and no limit evicts.
    pub fn permanent(&self) -> usize {
        self.entries.len() - self.tables.values().map(NeighbourTable::len).sum::<usize>()
    }

    /// Tells whether the neighbour is permanent.
    pub fn is_permanent(&self, link: PortId, addr: IpAddr) -> bool {
        self.get(link, addr).is_some_and(|neighbour| neighbour.state == NudState::Permanent)
    }

    /// Tells whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All neighbours, unordered.
    pub fn iter(&self) -> impl Iterator<Item = Neighbour> + '_ {
        self.entries.iter().map(|(&key, entry)| self.shown(key, entry))
    }

    /// Checks invariants that hold between any two calls, for tests.
    ///
    /// # Panics
    /// If one is violated.
    pub fn check_invariants(&self) {
        let places: usize = self.tables.values().map(NeighbourTable::len).sum();
        let evictable = self.entries.values().filter(|entry| !entry.state.is_permanent()).count();
        assert_eq!(places, evictable, "each entry that is not permanent has a place in the eviction order");
        for (&table_key, table) in &self.tables {
            for (place, addr) in table.places() {
                let key = (table_key.0, addr);
                assert_eq!(table_of(key), table_key, "{addr} is in the table of its link and family");
                assert_eq!(self.entries[&key].place, Some(place), "{addr} is where its entry says");
            }
            let keys = self.entries.iter().filter(|(key, _)| table_of(**key) == table_key);
            let waiting: usize = keys.map(|(_, entry)| entry.state.waiting_bytes()).sum();
            assert_eq!(table.waiting_bytes, waiting, "bytes that wait in {table_key:?}");
        }
        let waiting: usize = self.tables.values().map(|table| table.waiting_bytes).sum();
        assert_eq!(self.waiting_bytes, waiting, "bytes that wait in all tables");
        let deadlines = self.entries.iter().filter_map(|(&key, entry)| Some((entry.state.deadline()?, key)));
        assert_eq!(self.timers, deadlines.collect(), "one timer for each deadline");
        for (state, count) in NudState::ALL.into_iter().zip(self.counts) {
            let found = self.entries.values().filter(|entry| entry.state.kind() == state).count();
            assert_eq!(count, found, "entries that are {}", state.name());
        }
        assert!(self.protocols.keys().all(|key| self.entries.contains_key(key)), "a protocol without an entry");
    }

    fn shown(&self, key: Key, entry: &Entry) -> Neighbour {
        let (link, addr) = key;
        let protocol = self.protocols.get(&key).copied().unwrap_or_default();
        let state = &entry.state;
        Neighbour { link, addr, mac: state.mac(), state: state.kind(), queued: state.queued(), protocol }
    }

    /// Creates a STALE entry for a station that has solicited an address of this node, if the rate and the table allow
    /// it (RFC 4861 §7.2.3; Linux `neigh_event_ns`). Without an entry the station is resolved when a packet must be
    /// sent to it.
    fn learn_asker(&mut self, now: Instant, key: Key, mac: MacAddr, actions: &mut Vec<Action>) {
        let rate = self.limits.solicitations;
        if self.table(key).solicitations.take(rate, now) && self.make_room(now, key, Worth::Unused, actions) {
            self.insert(key, State::Stale { mac }, Some(Worth::Unused));
            self.record_change(now, key);
        }
    }

    /// Records the first use of a stale neighbour, which is probed unless a message confirms it in time.
    fn delay(&mut self, now: Instant, key: Key, mac: MacAddr) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let until = now + self.limits.delay;
        entry.change(State::Delay { mac, until }, &mut self.counts);
        entry.is_used = true;
        let worth = entry.place.map(|place| place.worth);
        self.timers.insert((until, key));
        self.mark(key);
        if worth == Some(Worth::Unused) {
            self.put_behind(key, Some(Worth::Unconfirmed));
        }
    }

    /// Starts the resolution of a neighbour that has no entry or has failed, with the packet that caused it.
    fn look_for(
        &mut self,
        now: Instant,
        mem: &Memory,
        key: Key,
        packet: Packet,
        actions: &mut Vec<Action>,
    ) -> Resolution {
        let is_confirmed = self.entries.get(&key).is_some_and(Entry::is_confirmed);
        let rate = self.limits.resolutions;
        if !is_confirmed && !self.table(key).resolutions.take(rate, now) {
            return Resolution::Dropped(packet, DropReason::NeighbourRateLimited);
        }
        let until = now + self.limits.retransmit;
        let state = State::Incomplete { waiting: Waiting::default(), sent: 1, until };
        if let Some(entry) = self.entries.get_mut(&key) {
            let before = entry.change(state, &mut self.counts);
            self.mark(key);
            self.rearm(key, before.deadline(), Some(until));
            if !is_confirmed {
                self.put_behind(key, Some(Worth::Unconfirmed));
            }
        } else {
            self.make_room(now, key, Worth::Unconfirmed, actions);
            self.insert(key, state, Some(Worth::Unconfirmed));
        }
        actions.push(Action::Solicit { link: key.0, target: key.1, unicast_to: None });
        self.wait(mem, key, packet, actions)
    }

    /// Queues a packet for an incomplete neighbour. A full queue drops its oldest packet, as in Linux's
    /// `__neigh_event_send`.
    fn wait(&mut self, mem: &Memory, key: Key, mut packet: Packet, actions: &mut Vec<Action>) -> Resolution {
        let (Some(Entry { state: State::Incomplete { waiting, .. }, .. }), Some(table)) =
            (self.entries.get_mut(&key), self.tables.get_mut(&table_of(key)))
        else {
            return Resolution::Dropped(packet, DropReason::NeighbourFailed);
        };
        packet.release_device_frames(mem);
        let limits = &self.limits;
        let need = packet.truesize();
        let reason = DropReason::NeighbourQueueFull;
        while waiting.len() >= limits.waiting_packets || waiting.bytes() + need > limits.waiting_bytes {
            let Some((oldest, bytes)) = waiting.pop() else { break };
            self.waiting_bytes -= bytes;
            table.waiting_bytes -= bytes;
            actions.push(Action::Drop { link: key.0, packet: oldest, reason });
        }
        if self.waiting_bytes + need > limits.waiting_bytes_total
            || table.waiting_bytes + need > limits.waiting_bytes_table
        {
            return Resolution::Dropped(packet, reason);
        }
        self.waiting_bytes += need;
        table.waiting_bytes += need;
        waiting.push(packet, need);
        Resolution::Queued
    }

    /// Advances a neighbour whose deadline has passed and whose timer has been removed.
    fn expire(&mut self, now: Instant, key: Key, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let limits = &self.limits;
        let retransmit_at = now + limits.retransmit;
        let (link, target) = key;
        let solicit = |unicast_to| Action::Solicit { link, target, unicast_to };
        let next = match &mut entry.state {
            State::Incomplete { sent, until, .. } if *sent < limits.multicast_probes => {
                *sent += 1;
                *until = retransmit_at;
                actions.push(solicit(None));
                return self.rearm(key, None, Some(retransmit_at));
            }
            State::Probe { sent, until, mac } if *sent < limits.unicast_probes => {
                *sent += 1;
                *until = retransmit_at;
                actions.push(solicit(Some(*mac)));
                return self.rearm(key, None, Some(retransmit_at));
            }
            State::Incomplete { .. } | State::Probe { .. } => State::Failed { until: now + limits.failed },
            State::Reachable { mac, .. } => State::Stale { mac: *mac },
            State::Delay { mac, .. } => {
                actions.push(solicit(Some(*mac)));
                State::Probe { mac: *mac, sent: 1, until: retransmit_at }
            }
            State::Failed { .. } => {
                self.remove(key, actions);
                return self.record_change(now, key);
            }
            // Without a deadline there is no timer.
            State::Stale { .. } | State::Permanent { .. } => return,
        };
        let has_failed = matches!(next, State::Failed { .. });
        let was_confirmed = entry.is_confirmed();
        let begun = next.deadline();
        let before = entry.change(next, &mut self.counts);
        self.mark(key);
        self.rearm(key, None, begun);
        if has_failed && !was_confirmed {
            self.put_behind(key, Some(Worth::Failed));
        }
        self.record_change(now, key);
        self.drop_waiting(key, before, actions);
    }

    /// Makes room for one more entry of the worth `newcomer` in a full table. Returns false if the newcomer gets no
    /// entry, which only applies to [`Worth::Solicitation`].
    ///
    /// A confirmed entry that has sent packets since its position was set is moved to the end of the order instead of
    /// being evicted (second chance): at most one step for each such packet.
    fn make_room(&mut self, now: Instant, key: Key, newcomer: Worth, actions: &mut Vec<Action>) -> bool {
        let limit = self.limits.entries.max(1);
        while self.table(key).len() >= limit {
            let Some(addr) = self.table(key).victim(newcomer, limit) else { return false };
            let victim = (key.0, addr);
            if self.entries.get(&victim).is_some_and(|entry| entry.is_used && entry.is_confirmed()) {
                self.put_behind(victim, Some(Worth::Confirmed));
                continue;
            }
            self.remove(victim, actions);
            self.record_change(now, victim);
            break;
        }
        true
    }

    /// Adds an entry; a permanent one has no worth.
    fn insert(&mut self, key: Key, state: State, worth: Option<Worth>) {
        self.mark(key);
        self.rearm(key, None, state.deadline());
        self.counts[state.kind() as usize] += 1;
        self.entries.insert(key, Entry { state, place: None, is_used: false, answer_from: Instant::ZERO });
        self.put_behind(key, worth);
    }

    /// Moves an entry to the end of the order for its new worth.
    fn put_behind(&mut self, key: Key, worth: Option<Worth>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let table = self.tables.entry(table_of(key)).or_default();
        if let Some(place) = entry.place.take() {
            table.remove(place);
        }
        entry.place = worth.map(|worth| table.push(worth, key.1));
        entry.is_used = false;
    }

    /// Removes an entry and drops its waiting packets.
    fn remove(&mut self, key: Key, actions: &mut Vec<Action>) {
        self.protocols.remove(&key);
        let Some(entry) = self.entries.remove(&key) else { return };
        self.counts[entry.state.kind() as usize] -= 1;
        self.mark(key);
        if let Some(place) = entry.place {
            self.table(key).remove(place);
        }
        self.rearm(key, entry.state.deadline(), None);
        self.drop_waiting(key, entry.state, actions);
    }

    /// Sends the packets that waited in a previous state.
    fn send_waiting(&mut self, key: Key, before: State, to: MacAddr, actions: &mut Vec<Action>) {
        let link = key.0;
        actions.extend(self.take_waiting(key, before).map(|packet| Action::Send { link, to, packet }));
    }

    /// Drops the packets that waited in a previous state.
    fn drop_waiting(&mut self, key: Key, before: State, actions: &mut Vec<Action>) {
        let link = key.0;
        let reason = DropReason::NeighbourFailed;
        actions.extend(self.take_waiting(key, before).map(|packet| Action::Drop { link, packet, reason }));
    }

    fn take_waiting(&mut self, key: Key, before: State) -> impl Iterator<Item = Packet> + use<> {
        let bytes = before.waiting_bytes();
        if bytes > 0 {
            self.waiting_bytes -= bytes;
            self.table(key).waiting_bytes -= bytes;
        }
        before.into_waiting()
    }

    fn table(&mut self, key: Key) -> &mut NeighbourTable {
        self.tables.entry(table_of(key)).or_default()
    }

    /// Records a change for [`take_changed`](Self::take_changed), within the rate limit.
    fn record_change(&mut self, now: Instant, key: Key) {
        let Some(Watch { changed, budget }) = &mut self.watch else { return };
        if changed.entries.len() < MAX_CHANGED && budget.get_or_insert(TokenBucket::FULL).take(CHANGES, now) {
            changed.entries.push(key);
        } else {
            changed.is_truncated = true;
        }
    }

    /// Replaces a deadline with another.
    fn rearm(&mut self, key: Key, ended: Option<Instant>, begun: Option<Instant>) {
        if let Some(ended) = ended {
            self.timers.remove(&(ended, key));
        }
        if let Some(begun) = begun {
            self.timers.insert((begun, key));
        }
    }
}

impl Default for Neighbours {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The table of an entry.
/// Link-layer address of the stations that a group or the limited broadcast address stands for (RFC 1112 §6.4, RFC 2464 §7,
/// RFC 894).
fn to_many(next_hop: IpAddr) -> Option<MacAddr> {
    match next_hop {
        IpAddr::V4(Ipv4Addr::BROADCAST) => Some(MacAddr::BROADCAST),
        IpAddr::V4(group) if group.is_multicast() => Some(MacAddr::multicast_v4(group)),
        IpAddr::V6(group) if group.is_multicast() => Some(MacAddr::multicast_v6(group)),
        _ => None,
    }
}

fn table_of((link, addr): Key) -> TableKey {
    (link, addr.is_ipv6())
}

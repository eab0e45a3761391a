//! Forwarding database: the port of each address, by VLAN (Linux `br_fdb.c`).
//!
//! A look-up is one hash table probe, independent of the number of addresses and VLANs. Dynamic entries are in one list
//! ordered by their last refresh, so that ageing visits expired entries only; each port has a list of its entries, so
//! that a flush of the port visits only these. A refresh within one [`TICK`] of the last changes nothing.

use std::fmt;
use std::hash::BuildHasher;
use std::time::Duration;

use base::{Instant, PortId};
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use wire::MacAddr;

use crate::list::{Links, List, NONE};
use crate::vid::Vid;

/// Resolution of ages: Linux's `clock_t`, the unit of ages in netlink.
pub const TICK: Duration = Duration::from_millis(10);

/// Kind of an entry; netlink shows it as a neighbour's state.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FdbKind {
    /// An address of the bridge or a port: its frames are passed up (`NUD_PERMANENT`).
    Local,
    /// Set by the operator and never aged (`NUD_NOARP`).
    Static,
    /// Aged: learnt, or set by the operator as `dynamic` (`NUD_REACHABLE`).
    Dynamic,
}

/// An entry, for a dump.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FdbEntry {
    /// The address.
    pub mac: MacAddr,
    /// VLAN of the address; `None` for entries of a bridge that does not filter.
    pub vid: Option<Vid>,
    /// Port of the address; `None` for the bridge itself.
    pub port: Option<PortId>,
    /// Kind.
    pub kind: FdbKind,
    /// Whether the entry stays at its port when its address appears at another one (`NTF_STICKY`).
    pub is_sticky: bool,
    /// Whether the operator has set the entry.
    pub is_by_user: bool,
    /// Whether the entry has expired; true only for a removed entry.
    pub has_expired: bool,
    /// Time since the entry was learnt or refreshed.
    pub updated: Duration,
    /// Time since the entry last forwarded a frame.
    pub used: Duration,
}

/// VLAN and address, as one number.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub(crate) struct FdbKey(u64);

impl FdbKey {
    #[inline]
    pub(crate) fn new(vid: Option<Vid>, mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        let vid = vid.map_or(0, Vid::get);
        Self(u64::from(vid) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]))
    }

    pub(crate) fn vid(self) -> Option<Vid> {
        Vid::new((self.0 >> 48) as u16)
    }

    pub(crate) fn mac(self) -> MacAddr {
        let [_, _, mac @ ..] = self.0.to_be_bytes();
        MacAddr(mac)
    }
}

impl fmt::Debug for FdbKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{:?}", self.mac(), self.vid())
    }
}

/// Number of a port in its bridge; [`BRIDGE_DEVICE`] for the bridge itself.
pub(crate) type PortNumber = u16;

/// The bridge's device.
pub(crate) const BRIDGE_DEVICE: PortNumber = 0;

/// Entry of the database, as a node of its lists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) key: FdbKey,
    pub(crate) owner: PortNumber,
    pub(crate) kind: FdbKind,
    pub(crate) is_sticky: bool,
    pub(crate) is_by_user: bool,
    /// Ticks of the last refresh and of the last use.
    updated: u64,
    used: u64,
    by_age: Links,
    by_owner: Links,
}

impl Node {
    /// Tells whether the entry counts against its port's limit.
    fn is_learnt(&self) -> bool {
        self.kind == FdbKind::Dynamic && !self.is_by_user
    }
}

/// Entries of one port.
#[derive(Clone, Copy, Debug)]
struct OwnerEntries {
    list: List,
    learnt: u32,
    /// Link of the port; `None` for the bridge itself.
    link: Option<PortId>,
}

/// Changes of the database since the last call of `take_changes` (Linux `fdb_notify`). A refresh is not a change.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct FdbChanges {
    /// Changes, in order.
    pub changes: Vec<FdbChange>,
    /// Whether there were more than [`FdbChanges::MAX`]; later ones are not recorded.
    pub is_truncated: bool,
}

impl FdbChanges {
    /// Maximum number of recorded changes.
    pub const MAX: usize = 4096;
}

/// Change of the database.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FdbChange {
    /// An entry was created, or replaced one of the same address and VLAN.
    Set(FdbEntry),
    /// An entry was removed, with its last state.
    Removed(FdbEntry),
}

/// Result of learning a frame's source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Learning {
    /// The address is known at that port.
    Known,
    /// The address is new.
    New,
    /// The address was at another port.
    Moved {
        /// The other port.
        from: PortNumber,
    },
    /// The address is one of this bridge's.
    Own,
    /// The address is sticky at another port.
    Pinned,
    /// The port is at its limit of learnt addresses. An address that was at another port is removed there.
    Full,
    /// Addresses are not learnt at all: the ageing time is zero.
    Off,
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) owner: PortNumber,
    pub(crate) kind: FdbKind,
    at: u32,
}

/// The database.
#[derive(Clone)]
pub(crate) struct Fdb {
    index: HashTable<u32>,
    hasher: RandomState,
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// Dynamic entries, in the order of their last refresh, the oldest first.
    ageing: List,
    /// Entries of each port, indexed by port number.
    owners: Vec<OwnerEntries>,
    ageing_ticks: u64,
    /// The latest tick so far: a clock that goes backwards does not disturb the order of `ageing`.
    tick: u64,
    /// Recorded changes, if recording is enabled.
    changes: Option<FdbChanges>,
}

/// Tick of an instant.
const fn tick_of(now: Instant) -> u64 {
    now.as_nanos() / TICK.as_nanos() as u64
}

impl Fdb {
    pub(crate) fn new(ageing_time: Duration) -> Self {
        let mut fdb = Self {
            index: HashTable::new(),
            hasher: RandomState::default(),
            nodes: Vec::new(),
            free: Vec::new(),
            ageing: List::EMPTY,
            owners: Vec::new(),
            ageing_ticks: 0,
            tick: 0,
            changes: None,
        };
        fdb.set_owner_link(BRIDGE_DEVICE, None);
        fdb.set_ageing_time(ageing_time);
        fdb
    }

    /// Sets the link of a numbered port that has no entries yet.
    pub(crate) fn set_owner_link(&mut self, owner: PortNumber, link: Option<PortId>) {
        let owner = usize::from(owner);
        if self.owners.len() <= owner {
            self.owners.resize(owner + 1, OwnerEntries { list: List::EMPTY, learnt: 0, link: None });
        }
        self.owners[owner].link = link;
    }

    /// Enables or disables the recording of changes for [`take_changes`](Self::take_changes).
    pub(crate) fn watch(&mut self, on: bool) {
        self.changes = if on { Some(self.changes.take().unwrap_or_default()) } else { None };
    }

    /// Changes since the last call, if recording is enabled.
    pub(crate) fn take_changes(&mut self) -> FdbChanges {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Sets the ageing time, rounded up to full ticks.
    pub(crate) fn set_ageing_time(&mut self, time: Duration) {
        self.ageing_ticks = u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX);
    }

    /// Moves the clock forward.
    #[inline]
    pub(crate) fn set_now(&mut self, now: Instant) {
        self.tick = self.tick.max(tick_of(now));
    }

    /// Entry of an address, unless it has expired.
    #[inline]
    pub(crate) fn get(&self, key: FdbKey) -> Option<Hit> {
        let at = self.find(key)?;
        let node = &self.nodes[at as usize];
        (!self.is_expired(node)).then_some(Hit { owner: node.owner, kind: node.kind, at })
    }

    /// Records the time at which an entry forwards a frame.
    #[inline]
    pub(crate) fn mark_used(&mut self, hit: Hit) {
        let node = &mut self.nodes[hit.at as usize];
        if node.used != self.tick {
            node.used = self.tick;
        }
    }

    /// Learns an address at a port, which may have `limit` learnt addresses.
    #[inline]
    pub(crate) fn learn(&mut self, key: FdbKey, owner: PortNumber, limit: u32) -> Learning {
        if self.ageing_ticks == 0 {
            return Learning::Off;
        }
        let Some(at) = self.find(key) else { return self.learn_new(key, owner, limit) };
        let node = self.nodes[at as usize];
        if self.is_expired(&node) {
            self.remove_noted(at);
            return self.learn_new(key, owner, limit);
        }
        if node.kind == FdbKind::Local {
            return Learning::Own;
        }
        if node.owner == owner {
            self.refresh(at);
            return Learning::Known;
        }
        if node.is_sticky {
            // Linux refreshes the entry in this case too.
            self.refresh(at);
            return Learning::Pinned;
        }
        if node.is_learnt() && self.is_full(owner, limit) {
            self.remove_noted(at);
            return Learning::Full;
        }
        self.refresh(at);
        self.set_owner(at, owner);
        self.note_set(at);
        Learning::Moved { from: node.owner }
    }

    /// Adds or changes an entry for the operator. An unchanged entry is not refreshed.
    pub(crate) fn set(&mut self, key: FdbKey, owner: PortNumber, kind: FdbKind, is_sticky: bool) {
        let found = self.find(key);
        if let Some(at) = found {
            let old = self.nodes[at as usize];
            if old.owner == owner && old.kind == kind && old.is_sticky == is_sticky && !self.is_expired(&old) {
                self.unlink_owner(at);
                self.nodes[at as usize].is_by_user = true;
                self.nodes[at as usize].used = self.tick;
                self.link_owner(at);
                self.note_set(at);
                return;
            }
            self.remove_at(at);
        }
        let at = self.insert(key, owner, kind, is_sticky, true);
        self.note_set(at);
    }

    /// Adds the address of a port or of the bridge. An entry of another kind is replaced; a local entry is unchanged.
    pub(crate) fn add_local(&mut self, key: FdbKey, owner: PortNumber) {
        if let Some(at) = self.find(key) {
            if self.nodes[at as usize].kind == FdbKind::Local {
                return;
            }
            self.remove_at(at);
        }
        let at = self.insert(key, owner, FdbKind::Local, false, false);
        self.note_set(at);
    }

    /// Moves a local entry to another port with the same address.
    pub(crate) fn hand_over(&mut self, key: FdbKey, owner: PortNumber) {
        if let Some(at) = self.find(key) {
            self.set_owner(at, owner);
            self.nodes[at as usize].is_by_user = false;
            self.note_set(at);
        }
    }

    /// Removes an entry. Returns whether it existed.
    pub(crate) fn remove(&mut self, key: FdbKey) -> bool {
        let found = self.find(key);
        if let Some(at) = found {
            self.remove_noted(at);
        }
        found.is_some()
    }

    /// Entry of exactly that VLAN and address, expired or not.
    pub(crate) fn node(&self, key: FdbKey) -> Option<&Node> {
        self.find(key).map(|at| &self.nodes[at as usize])
    }

    /// Removes expired entries, `limit` at most. Returns their number.
    pub(crate) fn expire(&mut self, limit: usize) -> usize {
        let mut expired = 0;
        while expired < limit {
            let at = self.ageing.head();
            if at == NONE || !self.is_expired(&self.nodes[at as usize]) {
                break;
            }
            self.remove_noted(at);
            expired += 1;
        }
        expired
    }

    /// Time at which the next entry expires.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let oldest = self.nodes.get(self.ageing.head() as usize)?;
        let ticks = oldest.updated.saturating_add(self.ageing_ticks);
        Some(Instant::from_nanos(ticks.saturating_mul(TICK.as_nanos() as u64)))
    }

    /// Keys of one port's entries that match, in the order of their insertion. The cost is linear in the port's
    /// entries.
    pub(crate) fn keys_of(&self, owner: PortNumber, fits: impl Fn(&Node) -> bool) -> Vec<FdbKey> {
        let mut keys = Vec::new();
        let mut at = self.owners.get(usize::from(owner)).map_or(NONE, |entries| entries.list.head());
        while let Some(node) = self.nodes.get(at as usize) {
            if fits(node) {
                keys.push(node.key);
            }
            at = node.by_owner.next();
        }
        keys
    }

    /// All entries that have not expired, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.index.iter().map(|&at| &self.nodes[at as usize]).filter(|node| !self.is_expired(node))
    }

    /// An entry, for a dump.
    pub(crate) fn entry_of(&self, node: &Node) -> FdbEntry {
        let (updated, used) = self.ages(node);
        FdbEntry {
            mac: node.key.mac(),
            vid: node.key.vid(),
            port: self.owners.get(usize::from(node.owner)).and_then(|entries| entries.link),
            kind: node.kind,
            is_sticky: node.is_sticky,
            is_by_user: node.is_by_user,
            has_expired: self.is_expired(node),
            updated,
            used,
        }
    }

    /// Times since an entry's last refresh and last use.
    fn ages(&self, node: &Node) -> (Duration, Duration) {
        let age = |tick: u64| TICK.saturating_mul(u32::try_from(self.tick.saturating_sub(tick)).unwrap_or(u32::MAX));
        (age(node.updated), age(node.used))
    }

    /// Number of entries, including expired ones that are not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Number of learnt addresses of a port.
    pub(crate) fn learnt(&self, owner: PortNumber) -> u32 {
        self.owners.get(usize::from(owner)).map_or(0, |entries| entries.learnt)
    }

    /// Checks that lists, counts and the index agree. For tests.
    pub(crate) fn check_invariants(&self) {
        assert_eq!(self.index.len() + self.free.len(), self.nodes.len());
        let mut aged = 0;
        let mut at = self.ageing.head();
        let mut last = 0;
        while at != NONE {
            let node = &self.nodes[at as usize];
            assert_eq!(node.kind, FdbKind::Dynamic, "{node:?}");
            assert!(last <= node.updated, "{node:?} was refreshed before its predecessor at {last}");
            last = node.updated;
            aged += 1;
            at = node.by_age.next();
        }
        let kept: Vec<&Node> = self.index.iter().map(|&at| &self.nodes[at as usize]).collect();
        assert_eq!(aged, kept.iter().filter(|node| node.kind == FdbKind::Dynamic).count());
        let mut owned = 0;
        for (number, entries) in self.owners.iter().enumerate() {
            let number = number as PortNumber;
            let keys = self.keys_of(number, |node| node.owner == number);
            assert_eq!(keys.len(), self.keys_of(number, |_| true).len(), "port {number} has entries of others");
            let learnt = self.keys_of(number, Node::is_learnt).len();
            assert_eq!(entries.learnt as usize, learnt, "port {number}");
            owned += keys.len();
        }
        assert_eq!(owned, kept.len());
        for node in kept {
            let at = self.find(node.key).expect("an entry is found by its key");
            assert_eq!(self.nodes[at as usize].key, node.key);
            assert!(node.owner != BRIDGE_DEVICE || node.kind == FdbKind::Local, "{node:?}");
            assert!(!(node.is_sticky && node.kind == FdbKind::Local), "{node:?}");
        }
    }

    #[inline]
    fn is_expired(&self, node: &Node) -> bool {
        node.kind == FdbKind::Dynamic && node.updated.saturating_add(self.ageing_ticks) <= self.tick
    }

    #[inline]
    fn find(&self, key: FdbKey) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        self.index.find(hash, |&at| self.nodes[at as usize].key == key).copied()
    }

    fn learn_new(&mut self, key: FdbKey, owner: PortNumber, limit: u32) -> Learning {
        if self.is_full(owner, limit) {
            return Learning::Full;
        }
        let at = self.insert(key, owner, FdbKind::Dynamic, false, false);
        self.note_set(at);
        Learning::New
    }

    /// Tells whether a port is at its limit of learnt addresses, after removal of its expired entries.
    fn is_full(&mut self, owner: PortNumber, limit: u32) -> bool {
        self.learnt(owner) >= limit && (self.expire(EXPIRED_PER_CALL) == 0 || self.learnt(owner) >= limit)
    }

    /// Refreshes an entry whose address was seen.
    #[inline]
    fn refresh(&mut self, at: u32) {
        let node = &mut self.nodes[at as usize];
        if node.updated == self.tick {
            return;
        }
        node.updated = self.tick;
        if node.kind == FdbKind::Dynamic {
            self.ageing.remove(&mut self.nodes, at, |node| &mut node.by_age);
            self.ageing.push_back(&mut self.nodes, at, |node| &mut node.by_age);
        }
    }

    fn set_owner(&mut self, at: u32, owner: PortNumber) {
        self.unlink_owner(at);
        self.nodes[at as usize].owner = owner;
        self.link_owner(at);
    }

    fn note_set(&mut self, at: u32) {
        if self.changes.is_some() {
            self.note(FdbChange::Set(self.entry_of(&self.nodes[at as usize])));
        }
    }

    fn remove_noted(&mut self, at: u32) {
        if self.changes.is_some() {
            self.note(FdbChange::Removed(self.entry_of(&self.nodes[at as usize])));
        }
        self.remove_at(at);
    }

    #[cold]
    fn note(&mut self, change: FdbChange) {
        let Some(noted) = &mut self.changes else { return };
        noted.is_truncated |= noted.changes.len() == FdbChanges::MAX;
        if !noted.is_truncated {
            noted.changes.push(change);
        }
    }

    fn insert(&mut self, key: FdbKey, owner: PortNumber, kind: FdbKind, is_sticky: bool, is_by_user: bool) -> u32 {
        let (updated, used) = (self.tick, self.tick);
        let (by_age, by_owner) = (Links::UNLINKED, Links::UNLINKED);
        let node = Node { key, owner, kind, is_sticky, is_by_user, updated, used, by_age, by_owner };
        let at = if let Some(at) = self.free.pop() {
            self.nodes[at as usize] = node;
            at
        } else {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        };
        let Self { index, hasher, nodes, .. } = self;
        index.insert_unique(hasher.hash_one(key), at, |&at| hasher.hash_one(nodes[at as usize].key));
        self.link(at);
        at
    }

    fn remove_at(&mut self, at: u32) {
        self.unlink(at);
        let hash = self.hasher.hash_one(self.nodes[at as usize].key);
        if let Ok(found) = self.index.find_entry(hash, |&other| other == at) {
            found.remove();
        }
        self.free.push(at);
        if self.index.is_empty() {
            self.index = HashTable::new();
            self.nodes = Vec::new();
            self.free = Vec::new();
        }
    }

    fn link(&mut self, at: u32) {
        if self.nodes[at as usize].kind == FdbKind::Dynamic {
            self.ageing.push_back(&mut self.nodes, at, |node| &mut node.by_age);
        }
        self.link_owner(at);
    }

    fn unlink(&mut self, at: u32) {
        if self.nodes[at as usize].kind == FdbKind::Dynamic {
            self.ageing.remove(&mut self.nodes, at, |node| &mut node.by_age);
        }
        self.unlink_owner(at);
    }

    fn link_owner(&mut self, at: u32) {
        let owner = usize::from(self.nodes[at as usize].owner);
        let entries = &mut self.owners[owner];
        entries.learnt += u32::from(self.nodes[at as usize].is_learnt());
        entries.list.push_back(&mut self.nodes, at, |node| &mut node.by_owner);
    }

    fn unlink_owner(&mut self, at: u32) {
        let node = self.nodes[at as usize];
        let entries = &mut self.owners[usize::from(node.owner)];
        entries.learnt -= u32::from(node.is_learnt());
        entries.list.remove(&mut self.nodes, at, |node| &mut node.by_owner);
    }
}

/// Maximum number of expired entries that one call removes.
pub(crate) const EXPIRED_PER_CALL: usize = 1024;

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fdb({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGEING: Duration = Duration::from_secs(300);

    fn key(vid: u16, n: u32) -> FdbKey {
        let [a, b, c, d] = n.to_be_bytes();
        FdbKey::new(Vid::new(vid), MacAddr([2, 0, a, b, c, d]))
    }

    fn fdb() -> Fdb {
        let mut fdb = Fdb::new(AGEING);
        (1..=3).for_each(|number| fdb.set_owner_link(number, Some(PortId(number.into()))));
        fdb
    }

    fn at(fdb: &mut Fdb, ms: u64) {
        fdb.set_now(Instant::ZERO + Duration::from_millis(ms));
    }

    fn owner_of(fdb: &Fdb, key: FdbKey) -> Option<PortNumber> {
        fdb.check_invariants();
        fdb.get(key).map(|hit| hit.owner)
    }

    #[test]
    fn key_holds_vlan_and_address() {
        let mac: MacAddr = "02:34:56:78:9a:bc".parse().unwrap();
        for vid in [None, Vid::new(1), Vid::new(4094)] {
            let key = FdbKey::new(vid, mac);
            assert_eq!((key.vid(), key.mac()), (vid, mac));
        }
        assert_ne!(key(1, 1), key(2, 1));
    }

    #[test]
    fn address_is_known_per_vlan() {
        let mut fdb = fdb();
        assert_eq!(fdb.learn(key(1, 7), 1, 10), Learning::New);
        assert_eq!(fdb.learn(key(2, 7), 2, 10), Learning::New);
        assert_eq!(fdb.learn(key(1, 7), 1, 10), Learning::Known);
        let owners = [key(1, 7), key(2, 7), key(0, 7), key(1, 8)].map(|key| owner_of(&fdb, key));
        assert_eq!(owners, [Some(1), Some(2), None, None]);
    }

    #[test]
    fn entry_expires_at_the_ageing_time_after_its_refresh() {
        let mut fdb = fdb();
        at(&mut fdb, 1009);
        fdb.learn(key(1, 1), 1, 10);
        // The tick started at 1000 ms.
        assert_eq!(fdb.next_expiry(), Some(Instant::ZERO + Duration::from_millis(301_000)));
        for (ms, want) in [(300_999, Some(1)), (301_000, None)] {
            at(&mut fdb, ms);
            assert_eq!(owner_of(&fdb, key(1, 1)), want, "at {ms} ms");
        }
        assert_eq!((fdb.len(), fdb.expire(10), fdb.len(), fdb.next_expiry()), (1, 1, 0, None));
    }

    #[test]
    fn refresh_moves_the_expiry_and_its_place_in_the_order() {
        let mut fdb = fdb();
        for n in 0..3 {
            at(&mut fdb, u64::from(n) * 1000);
            fdb.learn(key(1, n), 1, 10);
        }
        at(&mut fdb, 100_000);
        assert_eq!(fdb.learn(key(1, 0), 1, 10), Learning::Known);
        at(&mut fdb, 302_000);
        assert_eq!(fdb.expire(10), 2);
        assert_eq!((owner_of(&fdb, key(1, 0)), fdb.len()), (Some(1), 1));
        assert_eq!(fdb.next_expiry(), Some(Instant::ZERO + Duration::from_secs(400)));
    }

    #[test]
    fn clock_that_goes_back_refreshes_nothing() {
        let mut fdb = fdb();
        at(&mut fdb, 10_000);
        fdb.learn(key(1, 1), 1, 10);
        at(&mut fdb, 5_000);
        fdb.learn(key(1, 2), 1, 10);
        fdb.check_invariants();
        assert_eq!(fdb.next_expiry(), Some(Instant::ZERO + Duration::from_secs(310)));
    }

    #[test]
    fn expired_entry_is_learnt_anew() {
        let mut fdb = fdb();
        fdb.set(key(1, 1), 1, FdbKind::Dynamic, true);
        at(&mut fdb, 300_000);
        assert_eq!(fdb.learn(key(1, 1), 2, 10), Learning::New);
        let node = *fdb.node(key(1, 1)).unwrap();
        assert_eq!((node.owner, node.is_by_user, node.is_sticky), (2, false, false));
    }

    #[test]
    fn zero_ageing_time_learns_nothing() {
        let mut fdb = fdb();
        fdb.learn(key(1, 1), 1, 10);
        fdb.set_ageing_time(Duration::ZERO);
        assert_eq!(owner_of(&fdb, key(1, 1)), None);
        assert_eq!(fdb.learn(key(1, 2), 1, 10), Learning::Off);
        // An ageing time shorter than a tick is one tick.
        fdb.set_ageing_time(Duration::from_nanos(1));
        assert_eq!(fdb.learn(key(1, 2), 1, 10), Learning::New);
    }

    #[test]
    fn address_moves_unless_local_or_sticky() {
        use FdbKind::{Dynamic, Local, Static};
        // Kind, sticky, result of learning at another port, port afterwards.
        let cases = [
            (Dynamic, false, Learning::Moved { from: 1 }, 2),
            (Dynamic, true, Learning::Pinned, 1),
            (Static, false, Learning::Moved { from: 1 }, 2),
            (Static, true, Learning::Pinned, 1),
            (Local, false, Learning::Own, 1),
        ];
        for (kind, is_sticky, want, owner) in cases {
            let mut fdb = fdb();
            fdb.set(key(1, 1), 1, kind, is_sticky);
            assert_eq!(fdb.learn(key(1, 1), 2, 0), want, "{kind:?} {is_sticky}");
            assert_eq!(owner_of(&fdb, key(1, 1)), Some(owner), "{kind:?} {is_sticky}");
            assert_eq!(fdb.node(key(1, 1)).unwrap().kind, kind);
        }
    }

    #[test]
    fn full_port_learns_nothing_more() {
        let mut fdb = fdb();
        for n in 0..4 {
            let want = if n < 3 { Learning::New } else { Learning::Full };
            assert_eq!(fdb.learn(key(1, n), 1, 3), want, "{n}");
        }
        assert_eq!(fdb.learn(key(1, 0), 1, 3), Learning::Known);
        // Another port has its own limit; the operator's entries have none.
        assert_eq!(fdb.learn(key(1, 3), 2, 3), Learning::New);
        fdb.set(key(1, 5), 1, FdbKind::Dynamic, false);
        assert_eq!((fdb.learnt(1), fdb.learnt(2), fdb.len()), (3, 1, 5));
        // An address that moves to a full port is removed from the old port, and not learnt at the new one.
        assert_eq!(fdb.learn(key(1, 3), 1, 3), Learning::Full);
        assert_eq!((owner_of(&fdb, key(1, 3)), fdb.learnt(2)), (None, 0));
        // An expiry makes room.
        at(&mut fdb, 300_000);
        assert_eq!(fdb.learn(key(1, 9), 1, 3), Learning::New);
    }

    #[test]
    fn operators_entry_no_longer_counts_as_learnt() {
        let mut fdb = fdb();
        fdb.learn(key(1, 1), 1, 1);
        fdb.set(key(1, 1), 1, FdbKind::Dynamic, false);
        assert_eq!(fdb.learnt(1), 0);
        assert_eq!(fdb.learn(key(1, 2), 1, 1), Learning::New);
        fdb.set(key(1, 1), 2, FdbKind::Static, true);
        assert_eq!((owner_of(&fdb, key(1, 1)), fdb.learnt(1), fdb.learnt(2)), (Some(2), 1, 0));
    }

    #[test]
    fn local_address_replaces_a_learnt_one() {
        let mut fdb = fdb();
        fdb.learn(key(1, 1), 1, 10);
        fdb.add_local(key(1, 1), 2);
        fdb.add_local(key(1, 1), 3);
        assert_eq!(fdb.get(key(1, 1)).map(|hit| (hit.owner, hit.kind)), Some((2, FdbKind::Local)));
        fdb.hand_over(key(1, 1), BRIDGE_DEVICE);
        assert_eq!(owner_of(&fdb, key(1, 1)), Some(BRIDGE_DEVICE));
        at(&mut fdb, 1_000_000);
        assert_eq!((fdb.expire(10), fdb.len()), (0, 1));
    }

    #[test]
    fn expiry_is_bounded_per_call() {
        let mut fdb = fdb();
        for n in 0..100 {
            fdb.learn(key(1, n), 1, 100);
        }
        at(&mut fdb, 300_000);
        assert_eq!((fdb.expire(60), fdb.len()), (60, 40));
        assert_eq!(fdb.iter().count(), 0);
        assert_eq!((fdb.expire(60), fdb.len(), fdb.expire(60)), (40, 0, 0));
        assert_eq!(fdb.nodes.capacity(), 0);
    }

    #[test]
    fn change_is_noted_while_watched_and_refresh_is_none() {
        let mut fdb = fdb();
        fdb.learn(key(1, 1), 1, 10);
        assert_eq!(fdb.take_changes(), FdbChanges::default());
        fdb.watch(true);
        fdb.learn(key(1, 2), 1, 10);
        fdb.learn(key(1, 2), 2, 10);
        at(&mut fdb, 1_000);
        fdb.learn(key(1, 1), 1, 10);
        at(&mut fdb, 300_000);
        fdb.expire(10);
        let brief = |change: &FdbChange| match change {
            FdbChange::Set(entry) => (true, entry.mac, entry.vid, entry.port),
            FdbChange::Removed(entry) => (false, entry.mac, entry.vid, entry.port),
        };
        let noted = fdb.take_changes();
        let got: Vec<_> = noted.changes.iter().map(brief).collect();
        let (mac, vid) = (key(1, 2).mac(), Vid::new(1));
        let want = [(true, 1), (true, 2), (false, 2)].map(|(is_set, link)| (is_set, mac, vid, Some(PortId(link))));
        assert_eq!((&got[..], noted.is_truncated), (&want[..], false));
        assert_eq!(fdb.take_changes(), FdbChanges::default());
        fdb.watch(false);
        fdb.learn(key(1, 3), 1, 10);
        assert_eq!(fdb.take_changes(), FdbChanges::default());
    }

    #[test]
    fn flood_of_changes_is_truncated() {
        let mut fdb = fdb();
        fdb.watch(true);
        for n in 0..FdbChanges::MAX as u32 + 1 {
            fdb.learn(key(1, n), 1, u32::MAX);
        }
        let noted = fdb.take_changes();
        assert_eq!((noted.changes.len(), noted.is_truncated), (FdbChanges::MAX, true));
        fdb.learn(key(2, 1), 1, u32::MAX);
        assert_eq!(fdb.take_changes().changes.len(), 1);
    }

    #[test]
    fn ages_count_from_refresh_and_use() {
        let mut fdb = fdb();
        fdb.learn(key(1, 1), 1, 10);
        at(&mut fdb, 2_000);
        let hit = fdb.get(key(1, 1)).unwrap();
        fdb.mark_used(hit);
        at(&mut fdb, 5_000);
        let node = fdb.node(key(1, 1)).unwrap();
        assert_eq!(fdb.ages(node), (Duration::from_secs(5), Duration::from_secs(3)));
    }
}

//! State of a node as the store has it, against that of its gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use base::Prefix;
use ila::{CsumMode, Locator};

use crate::history::{History, Hold, Stamp};
use crate::key::Key;
use crate::names::{NameId, Names};
use crate::network::{Network, NetworkKey, RouteSlot};
use crate::refusal::Refusal;
use crate::register::{Refused, Register};
use crate::saved::{Changes, Saved, SavedObject};
use crate::settings::{Settings, contains, is_prefix_of_locators, overlap};
use crate::table::{Table, TableChange};
use crate::value::{MetaValue, NetworkValue, NodeValue, TaskValue};
use crate::withdrawal::is_mass;

/// Time for which the node that a task has left forwards packets to its new place.
const LINGER: Duration = Duration::from_secs(30);

/// Limit of refused objects that are named.
const MAX_NAMED: usize = 1000;

/// Longest part of a foreign key that is kept, in bytes.
const MAX_FOREIGN: usize = 256;

/// Key of the store with its value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyValue {
    /// Key.
    pub key: Vec<u8>,
    /// Value.
    pub value: Vec<u8>,
    /// `mod_revision`.
    pub revision: u64,
}

/// All keys of this node's domains, of nodes, of networks, and `meta`, at one revision.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Snapshot {
    /// Revision.
    pub revision: u64,
    /// [Revision](Reconciler::revision) that was known when the snapshot was requested.
    pub known: u64,
    /// Keys and values.
    pub kvs: Vec<KeyValue>,
}

/// Change of a key.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Key.
    pub key: Vec<u8>,
    /// New value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
    /// Revision of the change.
    pub revision: u64,
}

/// Translation that a mapping does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Target {
    /// New locator.
    pub locator: Locator,
    /// Treatment of checksums.
    pub csum_mode: CsumMode,
}

/// Next hop of a route.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hop {
    /// Address of another node.
    Via(IpAddr),
    /// Packets are dropped.
    Blackhole,
    /// Another form, which this program does not make.
    Other,
}

/// State of a gateway: mappings for any device, and routes with this program's protocol.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Dump {
    /// Mappings.
    pub mappings: Vec<(Locator, Target)>,
    /// Routes, in the main table and in those of VRFs.
    pub routes: Vec<(RouteSlot, Hop)>,
    /// Names of VRFs with the numbers of their tables.
    pub vrfs: Vec<(String, u32)>,
}

/// Operation of a gateway.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Op {
    /// Adds, replaces or deletes a mapping.
    Mapping {
        /// Locator of the destinations.
        matched: Locator,
        /// Mapping that is there.
        old: Option<Target>,
        /// Mapping to be there.
        new: Option<Target>,
    },
    /// Adds, replaces or deletes a route.
    Route {
        /// Place of the route.
        slot: RouteSlot,
        /// Route that is there.
        old: Option<Hop>,
        /// Route to be there.
        new: Option<Hop>,
    },
}

impl Op {
    /// Whether the operation deletes.
    pub const fn is_deletion(&self) -> bool {
        matches!(self, Self::Mapping { new: None, .. } | Self::Route { new: None, .. })
    }
}

/// Numbers for the operator.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Highest revision of the store that was seen.
    pub revision: u64,
    /// Known tasks.
    pub tasks: usize,
    /// Known nodes.
    pub nodes: usize,
    /// Known networks of VRFs.
    pub networks: usize,
    /// Mappings in the gateway.
    pub mappings: usize,
    /// Routes in the gateway.
    pub routes: usize,
    /// Withdrawals that wait.
    pub withdrawals: usize,
    /// Reason for which they are held.
    pub hold: Option<Hold>,
    /// Operations that the gateway has refused, which are tried again.
    pub refused_by_gateway: usize,
    /// Objects that are left alone, for each reason.
    pub refused: BTreeMap<Refusal, usize>,
}

/// Place of a task.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Claim {
    node: NameId,
    locator: Locator,
    /// Node that the task moves to, and its locator there.
    next: Option<(NameId, Locator)>,
}

/// Locators of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct NodePlace {
    prefix: Prefix,
    underlay: Option<Ipv6Addr>,
}

/// Keys that a snapshot has.
#[derive(Debug, Default)]
struct Seen {
    nodes: BTreeSet<NameId>,
    tasks: BTreeSet<Locator>,
    networks: BTreeSet<NetworkKey>,
}

/// The core: state of one node's agent.
#[derive(Clone, Debug)]
pub struct Reconciler {
    settings: Settings,
    me: NameId,
    names: Names,
    now: Duration,
    history: History,
    nodes: Register<NameId, NodePlace>,
    by_prefix: BTreeMap<Prefix, NameId>,
    tasks: Register<Locator, Claim>,
    /// Tasks by their locators, those at the next nodes among them.
    by_locator: BTreeMap<Locator, Locator>,
    networks: Register<NetworkKey, Network>,
    vrf_names: Names,
    /// Networks of this node, by its settings.
    own_networks: BTreeSet<(NameId, Prefix)>,
    /// Tables of the VRFs that the gateway has, and the other way round.
    tables: BTreeMap<NameId, u32>,
    vrfs: BTreeMap<u32, NameId>,
    /// Forwarders for tasks that have left.
    lingering: BTreeMap<Locator, (Locator, Duration)>,
    /// Keys that are none of the fleet's.
    foreign: BTreeMap<Vec<u8>, Refusal>,
    /// A locator or a prefix has become free, or a node known: refused values may have become good.
    has_news: bool,
    mappings: Table<Locator, Target>,
    routes: Table<RouteSlot, Hop>,
    /// Places of routes whose networks have another metric now.
    superseded: BTreeMap<RouteSlot, NetworkKey>,
    /// Routes that are to go because no object explains them, and not because a key was deleted.
    ending: BTreeSet<RouteSlot>,
    /// Withdrawals of nodes, tasks and mappings are held as a mass. After a restart they are if any were.
    are_tasks_held: bool,
    /// The gateway's state is known.
    is_attached: bool,
    /// Tasks whose value is that of the file, and the store has not confirmed it. The gateway may have a newer one.
    restored: BTreeSet<Locator>,
    /// The same of routes: there was no snapshot yet.
    is_provisional: bool,
    /// Time of the next periodic look; `None` while one is in progress.
    look_at: Option<Duration>,
    unsaved_tasks: BTreeSet<Locator>,
    unsaved_nodes: BTreeSet<NameId>,
    unsaved_networks: BTreeSet<NetworkKey>,
    is_history_unsaved: bool,
}

impl Reconciler {
    /// Agent that knows nothing. Its first look at the store is due at once.
    pub fn new(settings: Settings) -> Self {
        let mut names = Names::default();
        let me = names.id(&settings.node);
        let mut vrf_names = Names::default();
        let own_networks = settings.networks.iter().map(|(vrf, prefix)| (vrf_names.id(vrf), *prefix)).collect();
        Self {
            settings,
            me,
            names,
            now: Duration::ZERO,
            history: History::default(),
            nodes: Register::default(),
            by_prefix: BTreeMap::new(),
            tasks: Register::default(),
            by_locator: BTreeMap::new(),
            networks: Register::default(),
            vrf_names,
            own_networks,
            tables: BTreeMap::new(),
            vrfs: BTreeMap::new(),
            lingering: BTreeMap::new(),
            foreign: BTreeMap::new(),
            has_news: false,
            mappings: Table::default(),
            routes: Table::default(),
            superseded: BTreeMap::new(),
            ending: BTreeSet::new(),
            are_tasks_held: false,
            is_attached: false,
            restored: BTreeSet::new(),
            is_provisional: true,
            look_at: Some(Duration::ZERO),
            unsaved_tasks: BTreeSet::new(),
            unsaved_nodes: BTreeSet::new(),
            unsaved_networks: BTreeSet::new(),
            is_history_unsaved: false,
        }
    }

    /// Takes the state that a former agent has saved. Values that this version or these settings refuse are left out. The gateway may have
    /// had changes that were not saved: until the store has confirmed a task, no mapping of it is replaced.
    pub fn restore(&mut self, saved: Saved) {
        self.history = saved.history;
        self.are_tasks_held = self.history.is_mass;
        let mut objects = saved.objects;
        objects.sort_by_key(|object| object.stamp);
        let fleet = self.settings.fleet.clone();
        let parsed =
            objects.iter().filter_map(|object| Some((Key::parse(&fleet, object.key.as_bytes()).ok()?, object)));
        let (nodes, tasks): (Vec<_>, Vec<_>) = parsed.partition(|(key, _)| matches!(key, Key::Node(_)));
        for (key, object) in nodes.into_iter().chain(tasks) {
            self.put(&key, &object.value, object.stamp, None);
        }
        self.revalidate();
        self.unsaved_tasks.clear();
        self.unsaved_nodes.clear();
        self.unsaved_networks.clear();
        self.restored = self.tasks.iter().map(|(sir, _)| sir).collect();
    }

    /// Takes the whole state of the store at one revision.
    pub fn snapshot(&mut self, now: Duration, snapshot: &Snapshot) {
        self.advance(now);
        self.look_at = Some(self.now + self.settings.look_every);
        self.is_provisional = false;
        self.foreign.clear();
        let fleet = self.settings.fleet.clone();
        let mut objects = Vec::with_capacity(snapshot.kvs.len());
        let mut uuid = None;
        for kv in &snapshot.kvs {
            match Key::parse(&fleet, &kv.key) {
                Ok(Key::Meta) => match MetaValue::parse(&kv.value) {
                    Ok(meta) => uuid = Some(meta.uuid),
                    Err(refusal) => self.note_foreign(&kv.key, refusal),
                },
                Ok(Key::Alive(_)) => {}
                Ok(key) => objects.push((key, kv)),
                Err(refusal) => self.note_foreign(&kv.key, refusal),
            }
        }
        // Of two objects that exclude each other the older one is good, at each node.
        objects.sort_by_key(|(key, kv)| (!matches!(key, Key::Node(_)), kv.revision));
        let is_older = self.has_gone_back(uuid.as_deref(), snapshot, &objects);
        let is_new_history = self.history.judge(uuid.as_deref(), snapshot.revision, snapshot.known, is_older);
        self.is_history_unsaved = true;
        let until = self.history.stamp_of_snapshot(snapshot.revision);
        let mut seen = Seen::default();
        for (key, kv) in &objects {
            let stamp = self.history.stamp(kv.revision);
            self.put(key, &kv.value, stamp, Some((until, &mut seen)));
        }
        self.nodes.finish_snapshot(&seen.nodes, until, self.now, is_new_history);
        self.tasks.finish_snapshot(&seen.tasks, until, self.now, is_new_history);
        self.networks.finish_snapshot(&seen.networks, until, self.now, is_new_history);
        self.revalidate();
        if self.history.hold().is_none() {
            self.confirm();
        }
        self.withdraw(false);
    }

    /// Confirms withdrawals that this snapshot shows, as one before did. An entry of the gateway that a refused object may explain stays.
    fn confirm(&mut self) {
        let later = self.settings.look_every;
        self.nodes.withdrawals.confirm(self.now, later, |_| true);
        self.tasks.withdrawals.confirm(self.now, later, |_| true);
        self.networks.withdrawals.confirm(self.now, later, |_| true);
        let mut orphans = std::mem::take(&mut self.mappings.orphans);
        let is_refused = |sir| self.tasks.is_refused(sir);
        orphans.confirm(self.now, later, |matched| {
            let target = self.mappings.get(matched).map(|target| target.locator);
            self.desired_mapping(matched).0.is_none() && !is_refused(matched) && !target.is_some_and(is_refused)
        });
        self.mappings.orphans = orphans;
        let mut orphans = std::mem::take(&mut self.routes.orphans);
        let has_refused = self.nodes.refused().next().is_some() || self.networks.refused().next().is_some();
        orphans.confirm(self.now, later, |slot| !has_refused && self.desired_route(slot).0.is_none());
        self.routes.orphans = orphans;
    }

    /// Takes changes of the store.
    pub fn events(&mut self, now: Duration, events: &[Event]) {
        self.advance(now);
        let fleet = self.settings.fleet.clone();
        let mut parsed: Vec<_> = events.iter().map(|event| (Key::parse(&fleet, &event.key), event)).collect();
        // The store's identity comes first, and nodes before tasks.
        parsed.sort_by_key(|(key, event)| match key {
            Ok(Key::Meta) => (0, event.revision),
            Ok(Key::Node(_)) => (1, event.revision),
            _ => (2, event.revision),
        });
        for (key, event) in parsed {
            match (key, &event.value) {
                (Ok(Key::Meta), value) => self.meta_event(value.as_deref()),
                (Ok(key), Some(value)) => {
                    let stamp = self.history.stamp(event.revision);
                    self.put(&key, value, stamp, None);
                }
                (Ok(key), None) => self.delete(&key, self.history.stamp(event.revision)),
                (Err(refusal), Some(_)) => self.note_foreign(&event.key, refusal),
                (Err(_), None) => {
                    self.foreign.remove(named(&event.key));
                }
            }
            self.history.advance(event.revision);
        }
        self.revalidate();
        self.withdraw(false);
    }

    /// Takes the state of the gateway, after each connection to it.
    pub fn attach(&mut self, now: Duration, dump: &Dump) {
        self.advance(now);
        self.is_attached = true;
        let settings = &self.settings;
        let is_ours = |matched: Locator| is_managed(settings, matched);
        let of_dump = dump.mappings.iter().copied().filter(|(matched, _)| is_ours(*matched));
        let own = self.tasks.iter().flat_map(|(sir, claim)| own_locators(self.me, claim).chain([sir]));
        self.mappings.load(of_dump, own.chain(self.lingering.keys().copied()));
        // A VRF of the main table would share its slots.
        let vrfs = dump.vrfs.iter().filter(|(_, table)| *table != RouteSlot::MAIN);
        self.tables = vrfs.map(|(name, table)| (self.vrf_names.id(name), *table)).collect();
        self.vrfs = self.tables.iter().map(|(vrf, table)| (*table, *vrf)).collect();
        let is_known = |slot: &RouteSlot| slot.table == RouteSlot::MAIN || self.vrfs.contains_key(&slot.table);
        let of_dump = dump.routes.iter().copied().filter(|(slot, _)| is_known(slot));
        let desired = self.by_prefix.keys().copied().chain(settings.domains.iter().map(|domain| domain.prefix));
        let of_vrfs = self.networks.iter().filter_map(|(key, network)| slot_of(&self.tables, key, *network));
        self.routes.load(of_dump, desired.map(RouteSlot::main).chain(of_vrfs));
    }

    /// Notes that the gateway's state is unknown: there are no operations until the next [`attach`](Self::attach).
    pub const fn detach(&mut self) {
        self.is_attached = false;
    }

    /// Takes the store as it is at the next look, which is due at once: withdrawals that wait are approved, and a new history begins if the
    /// store has another one than the known one.
    pub fn approve(&mut self, now: Duration) {
        self.advance(now);
        self.history.approve();
        self.request_look();
        self.nodes.withdrawals.approve();
        self.tasks.withdrawals.approve();
        self.networks.withdrawals.approve();
        self.mappings.orphans.approve();
        self.routes.orphans.approve();
        self.withdraw(true);
    }

    /// Does what is due at a [deadline](Self::deadline).
    pub fn timeout(&mut self, now: Duration) {
        self.advance(now);
        self.mappings.retry(self.now);
        self.routes.retry(self.now);
        let ended = self.lingering.iter().filter(|(_, (_, end))| *end <= self.now).map(|(slot, _)| *slot);
        for slot in ended.collect::<Vec<_>>() {
            self.lingering.remove(&slot);
            self.mappings.release(slot);
        }
        self.withdraw(false);
    }

    /// Operations to be carried out in this order: additions and replacements, then deletions. They are taken as done, unless
    /// [`refused`](Self::refused) reports otherwise.
    pub fn operations(&mut self) -> Vec<Op> {
        if !self.is_attached {
            return Vec::new();
        }
        self.keep_last_routes();
        let mut routes = std::mem::take(&mut self.routes);
        let mut mappings = std::mem::take(&mut self.mappings);
        let changes = routes.changes(self.now, |_| !self.is_provisional, |slot| self.desired_route(slot));
        let of_routes = changes.into_iter().map(|TableChange { key, old, new }| Op::Route { slot: key, old, new });
        let changes =
            mappings.changes(self.now, |matched| self.may_replace(matched), |matched| self.desired_mapping(matched));
        let of_mappings =
            changes.into_iter().map(|TableChange { key, old, new }| Op::Mapping { matched: key, old, new });
        let mut ops: Vec<_> = of_routes.chain(of_mappings).collect();
        ops.sort_by_key(Op::is_deletion);
        self.routes = routes;
        self.mappings = mappings;
        ops
    }

    /// Takes back an operation that the gateway has refused. It is tried again later.
    pub fn refused(&mut self, now: Duration, op: &Op) {
        self.advance(now);
        match *op {
            Op::Mapping { matched, old, new } => {
                self.mappings.undo(self.now, &TableChange { key: matched, old, new });
            }
            Op::Route { slot, old, new } => self.routes.undo(self.now, &TableChange { key: slot, old, new }),
        }
    }

    /// Whether a look at the whole store is due. After `true` the caller is to take a [snapshot](Self::snapshot), or to
    /// [request](Self::request_look) another one.
    pub fn begin_look(&mut self) -> bool {
        let is_due = self.next_look().is_some_and(|at| at <= self.now);
        if is_due {
            self.look_at = None;
        }
        is_due
    }

    /// Makes a look at the whole store due at once: events may have been lost.
    pub const fn request_look(&mut self) {
        self.look_at = Some(Duration::ZERO);
    }

    /// Highest revision of the store that was seen.
    pub const fn revision(&self) -> u64 {
        self.history.revision()
    }

    /// Time of the next call of [`timeout`](Self::timeout) and [`begin_look`](Self::begin_look).
    pub fn deadline(&self) -> Option<Duration> {
        let (is_held, are_tasks_held) = (self.history.is_mass, self.are_tasks_held);
        let due = if self.history.hold().is_some() {
            [None; 5]
        } else {
            [
                self.nodes.withdrawals.next_due(are_tasks_held),
                self.tasks.withdrawals.next_due(are_tasks_held),
                self.networks.withdrawals.next_due(is_held),
                self.mappings.orphans.next_due(are_tasks_held),
                self.routes.orphans.next_due(is_held),
            ]
        };
        let lingering = self.lingering.values().map(|(_, end)| *end).min();
        let retries = [self.mappings.next_retry(), self.routes.next_retry()];
        due.into_iter().chain(retries).chain([lingering, self.next_look()]).flatten().min()
    }

    /// Changes of the state that is to be saved, since the last call.
    pub fn take_unsaved(&mut self) -> Option<Changes> {
        let is_saved = self.unsaved_tasks.is_empty() && self.unsaved_nodes.is_empty();
        if is_saved && self.unsaved_networks.is_empty() && !self.is_history_unsaved {
            return None;
        }
        self.is_history_unsaved = false;
        let mut changes = Changes { history: self.history.clone(), ..Changes::default() };
        let fleet = &self.settings.fleet;
        for id in std::mem::take(&mut self.unsaved_nodes) {
            let key = Key::Node(self.names.text(id).to_owned()).text(fleet);
            match self.nodes.get_with_stamp(id) {
                Some((stamp, node)) => {
                    let value = NodeValue::new(node.prefix, node.underlay).to_bytes();
                    changes.changed.push(SavedObject { key, stamp, value });
                }
                None => changes.removed.push(key),
            }
        }
        for sir in std::mem::take(&mut self.unsaved_tasks) {
            let Some(domain) = self.settings.domain_of(sir) else { continue };
            let key = Key::Task { domain: domain.name.clone(), sir }.text(fleet);
            match self.tasks.get_with_stamp(sir) {
                Some((stamp, claim)) => {
                    let here = TaskValue::here(self.names.text(claim.node), claim.locator);
                    let value = match claim.next {
                        Some((to, locator)) => here.moving(self.names.text(to), locator),
                        None => here,
                    };
                    changes.changed.push(SavedObject { key, stamp, value: value.to_bytes() });
                }
                None => changes.removed.push(key),
            }
        }
        for network in std::mem::take(&mut self.unsaved_networks) {
            let key = self.key_of(network).text(fleet);
            match self.networks.get_with_stamp(network) {
                Some((stamp, it)) => {
                    let value = NetworkValue::new(it.via, it.metric).to_bytes();
                    changes.changed.push(SavedObject { key, stamp, value });
                }
                None => changes.removed.push(key),
            }
        }
        Some(changes)
    }

    /// VRFs with networks of nodes that the gateway does not have.
    pub fn missing_vrfs(&self) -> Vec<String> {
        if !self.is_attached {
            return Vec::new();
        }
        let vrfs: BTreeSet<NameId> = self.networks.iter().map(|(key, _)| key.vrf).collect();
        let missing = vrfs.into_iter().filter(|vrf| !self.tables.contains_key(vrf));
        missing.map(|vrf| self.vrf_names.text(vrf).to_owned()).collect()
    }

    /// Numbers for the operator.
    pub fn status(&self) -> Status {
        let mut refused = BTreeMap::new();
        let of_objects = self.nodes.refused().map(|(_, it)| it.refusal);
        let of_objects = of_objects.chain(self.tasks.refused().map(|(_, it)| it.refusal));
        let of_objects = of_objects.chain(self.networks.refused().map(|(_, it)| it.refusal));
        for refusal in of_objects.chain(self.foreign.values().copied()) {
            *refused.entry(refusal).or_insert(0) += 1;
        }
        Status {
            revision: self.history.revision(),
            tasks: self.tasks.len(),
            nodes: self.nodes.len(),
            networks: self.networks.len(),
            mappings: self.mappings.len(),
            routes: self.routes.len(),
            withdrawals: self.withdrawals(),
            hold: self.history.hold().or(self.history.is_mass.then_some(Hold::Mass)),
            refused_by_gateway: self.mappings.refused() + self.routes.refused(),
            refused,
        }
    }

    /// Keys that are left alone, with the reasons: the first 1000. Keys that are none of the fleet's are cut to 256 bytes and escaped.
    pub fn refused_keys(&self) -> Vec<(String, Refusal)> {
        let nodes = self.nodes.refused().map(|(id, it)| {
            let key = Key::Node(self.names.text(id).to_owned());
            (key.to_string(), it.refusal)
        });
        let tasks = self.tasks.refused().map(|(sir, it)| {
            let domain = self.settings.domain_of(sir).map_or("", |domain| &domain.name);
            let key = Key::Task { domain: domain.to_owned(), sir };
            (key.to_string(), it.refusal)
        });
        let networks = self.networks.refused().map(|(key, it)| (self.key_of(key).to_string(), it.refusal));
        let escaped = |key: &[u8]| String::from_utf8_lossy(key).escape_debug().to_string();
        let foreign = self.foreign.iter().map(|(key, why)| (escaped(key), *why));
        nodes.chain(tasks).chain(networks).chain(foreign).take(MAX_NAMED).collect()
    }

    /// Clocks that go back are ignored.
    fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
    }

    fn next_look(&self) -> Option<Duration> {
        let periodic = self.look_at?;
        if self.history.hold().is_some() {
            return Some(periodic);
        }
        let waiting = [
            self.nodes.withdrawals.next_look(),
            self.tasks.withdrawals.next_look(),
            self.networks.withdrawals.next_look(),
            self.mappings.orphans.next_look(),
            self.routes.orphans.next_look(),
        ];
        waiting.into_iter().flatten().chain([periodic]).min()
    }

    /// Whether a snapshot of the known store has an older value than was seen: the store has been restored, and has gone on since.
    fn has_gone_back(&mut self, uuid: Option<&str>, snapshot: &Snapshot, objects: &[(Key, &KeyValue)]) -> bool {
        if uuid.is_none() || self.history.uuid() != uuid {
            return false;
        }
        let mut probe = self.history.clone();
        probe.identify(uuid);
        let until = probe.stamp_of_snapshot(snapshot.revision);
        objects.iter().any(|(key, kv)| {
            let stamp = probe.stamp(kv.revision);
            match key {
                Key::Node(name) => self.nodes.has_gone_back(self.names.id(name), stamp, until),
                Key::Task { sir, .. } => self.tasks.has_gone_back(*sir, stamp, until),
                Key::Network { node, vrf, prefix } => {
                    let key = self.network_key(node, vrf, *prefix);
                    self.networks.has_gone_back(key, stamp, until)
                }
                Key::Meta | Key::Alive(_) => false,
            }
        })
    }

    fn note_foreign(&mut self, key: &[u8], refusal: Refusal) {
        self.foreign.insert(named(key).to_vec(), refusal);
    }

    fn meta_event(&mut self, value: Option<&[u8]>) {
        let meta = value.map(MetaValue::parse);
        let uuid = match &meta {
            Some(Ok(meta)) => Some(meta.uuid.as_str()),
            Some(Err(_)) | None => None,
        };
        self.history.identify(uuid);
        self.is_history_unsaved = true;
        self.request_look();
    }

    /// Takes a value, of an event or of a snapshot that has all changes until a place.
    fn put(&mut self, key: &Key, value: &[u8], stamp: Stamp, snapshot: Option<(Stamp, &mut Seen)>) {
        let until = snapshot.as_ref().map(|(until, _)| *until);
        match key {
            Key::Node(name) => {
                let id = self.names.id(name);
                if let Some((_, seen)) = snapshot {
                    seen.nodes.insert(id);
                }
                if self.nodes.is_newer(id, stamp, until) {
                    match read_node(value) {
                        Ok(place) => self.put_node(id, stamp, place),
                        Err(refusal) => self.nodes.refuse(id, Refused { stamp, value: None, refusal }),
                    }
                }
            }
            Key::Task { domain, sir } => {
                if self.settings.domain_of(*sir).is_none_or(|it| it.name != *domain) {
                    let is_known = self.settings.domains.iter().any(|it| it.name == *domain);
                    let refusal = if is_known { Refusal::OutsideDomain } else { Refusal::ForeignKey };
                    self.note_foreign(key.text(&self.settings.fleet).as_bytes(), refusal);
                    return;
                }
                if let Some((_, seen)) = snapshot {
                    seen.tasks.insert(*sir);
                }
                if self.tasks.get_with_stamp(*sir).is_some_and(|(good, _)| good == stamp) {
                    self.restored.remove(sir);
                }
                if self.tasks.is_newer(*sir, stamp, until) {
                    match read_task(&mut self.names, value) {
                        Ok(claim) => self.put_task(*sir, stamp, claim),
                        Err(refusal) => self.tasks.refuse(*sir, Refused { stamp, value: None, refusal }),
                    }
                }
            }
            Key::Network { node, vrf, prefix } => {
                let key = self.network_key(node, vrf, *prefix);
                if let Some((_, seen)) = snapshot {
                    seen.networks.insert(key);
                }
                if self.networks.is_newer(key, stamp, until) {
                    match read_network(*prefix, value) {
                        Ok(network) => self.put_network(key, stamp, network),
                        Err(refusal) => self.networks.refuse(key, Refused { stamp, value: None, refusal }),
                    }
                }
            }
            Key::Meta | Key::Alive(_) => {}
        }
    }

    fn delete(&mut self, key: &Key, stamp: Stamp) {
        match key {
            Key::Node(name) => {
                let id = self.names.id(name);
                self.nodes.delete(id, stamp, self.now);
            }
            Key::Task { domain, sir } => {
                if self.settings.domain_of(*sir).is_some_and(|it| it.name == *domain) {
                    self.tasks.delete(*sir, stamp, self.now);
                } else {
                    self.foreign.remove(named(key.text(&self.settings.fleet).as_bytes()));
                }
            }
            Key::Network { node, vrf, prefix } => {
                let key = self.network_key(node, vrf, *prefix);
                self.networks.delete(key, stamp, self.now);
            }
            Key::Meta | Key::Alive(_) => {}
        }
    }

    fn network_key(&mut self, node: &str, vrf: &str, prefix: Prefix) -> NetworkKey {
        NetworkKey { vrf: self.vrf_names.id(vrf), prefix, node: self.names.id(node) }
    }

    fn key_of(&self, key: NetworkKey) -> Key {
        let node = self.names.text(key.node).to_owned();
        Key::Network { node, vrf: self.vrf_names.text(key.vrf).to_owned(), prefix: key.prefix }
    }

    fn put_network(&mut self, key: NetworkKey, stamp: Stamp, network: Network) {
        let old = self.networks.accept(key, stamp, network);
        self.unsaved_networks.insert(key);
        if let Some(slot) = slot_of(&self.tables, key, network) {
            self.routes.touch(slot);
        }
        let old = old.filter(|old| old.metric != network.metric).and_then(|old| slot_of(&self.tables, key, old));
        let Some(slot) = old else { return };
        self.routes.touch(slot);
        if self.desired_route(slot).0.is_none() {
            // The route with the former metric goes when the one with the new metric has been there for a time.
            self.routes.orphans.begin(slot, self.now, true, true);
            self.superseded.insert(slot, key);
        }
    }

    /// Lets routes of VRFs that are to go wait again while the gateway lacks those that take their places: it may have refused them. All
    /// refusals of former operations are known here.
    fn keep_last_routes(&mut self) {
        let routes = &self.routes;
        self.superseded.retain(|slot, _| routes.get(*slot).is_some());
        for slot in std::mem::take(&mut self.ending) {
            if self.routes.get(slot).is_some() && self.desired_route(slot).0.is_none() && self.is_last_route(slot) {
                let is_approved = self.superseded.contains_key(&slot);
                self.routes.retain(slot, self.now, is_approved);
            }
        }
    }

    /// Whether a VRF's route is to go before its network has another one: before that with its node's new metric, or, if the node is not
    /// known, before any.
    fn is_last_route(&self, slot: RouteSlot) -> bool {
        let Some(vrf) = self.vrfs.get(&slot.table) else { return false };
        // Whether the gateway has a network's route; `None` if there is to be none.
        let is_there = |key: NetworkKey, network: Network| {
            let new = slot_of(&self.tables, key, network)?;
            let hop = self.desired_route(new).0?;
            Some(self.routes.get(new) == Some(hop))
        };
        if let Some(key) = self.superseded.get(&slot).filter(|key| key.vrf == *vrf) {
            return self.networks.get(*key).and_then(|network| is_there(*key, *network)) == Some(false);
        }
        let all = self.networks.between(NetworkKey::all_of(*vrf, slot.prefix));
        let are_there: Vec<bool> = all.filter_map(|(key, network)| is_there(key, *network)).collect();
        !are_there.is_empty() && !are_there.contains(&true)
    }

    fn remove_network(&mut self, key: NetworkKey) {
        let Some(network) = self.networks.remove(key) else { return };
        self.unsaved_networks.insert(key);
        if let Some(slot) = slot_of(&self.tables, key, network) {
            self.routes.release(slot);
        }
    }

    fn put_node(&mut self, id: NameId, stamp: Stamp, place: NodePlace) {
        if let Err(refusal) = self.check_node(id, place) {
            self.nodes.refuse(id, Refused { stamp, value: Some(place), refusal });
            return;
        }
        let old = self.nodes.accept(id, stamp, place);
        self.unsaved_nodes.insert(id);
        self.has_news = true;
        if let Some(old) = old {
            self.by_prefix.remove(&old.prefix);
            self.routes.touch(RouteSlot::main(old.prefix));
        }
        self.by_prefix.insert(place.prefix, id);
        self.routes.touch(RouteSlot::main(place.prefix));
    }

    fn check_node(&self, id: NameId, place: NodePlace) -> Result<(), Refusal> {
        let NodePlace { prefix, underlay } = place;
        if !is_prefix_of_locators(prefix) {
            return Err(Refusal::Malformed);
        }
        let mut translated = self.settings.domains.iter().map(|domain| domain.prefix);
        let is_translated = |of: Prefix, addr: Option<Ipv6Addr>| addr.is_some_and(|addr| of.contains(IpAddr::V6(addr)));
        if is_translated(prefix, underlay) || translated.any(|it| overlap(it, prefix) || is_translated(it, underlay)) {
            return Err(Refusal::Loop);
        }
        if id == self.me {
            return if prefix == self.settings.locators { Ok(()) } else { Err(Refusal::TwoNodes) };
        }
        let mut others = self.by_prefix.iter().filter(|(_, other)| **other != id).map(|(prefix, _)| *prefix);
        if overlap(self.settings.locators, prefix) || others.any(|other| overlap(other, prefix)) {
            return Err(Refusal::Overlap);
        }
        Ok(())
    }

    fn put_task(&mut self, sir: Locator, stamp: Stamp, claim: Claim) {
        if let Err(refusal) = self.check_task(sir, &claim) {
            self.tasks.refuse(sir, Refused { stamp, value: Some(claim), refusal });
            return;
        }
        let old = self.tasks.accept(sir, stamp, claim);
        self.restored.remove(&sir);
        self.unsaved_tasks.insert(sir);
        self.mappings.touch(sir);
        if let Some(old) = old {
            for locator in locators(&old) {
                self.by_locator.remove(&locator);
                self.has_news = true;
            }
            let target = if claim.node == self.me { sir } else { claim.locator };
            for slot in own_locators(self.me, &old).filter(|slot| own_locators(self.me, &claim).all(|new| new != *slot))
            {
                self.lingering.insert(slot, (target, self.now + LINGER));
                self.mappings.touch(slot);
            }
        }
        for locator in locators(&claim) {
            self.by_locator.insert(locator, sir);
        }
        for slot in own_locators(self.me, &claim) {
            self.lingering.remove(&slot);
            self.mappings.touch(slot);
        }
    }

    fn check_task(&mut self, sir: Locator, claim: &Claim) -> Result<(), Refusal> {
        let places = [(claim.node, claim.locator)].into_iter().chain(claim.next);
        for (node, locator) in places {
            let prefix = if node == self.me {
                Some(self.settings.locators)
            } else {
                self.nodes.get(node).map(|place| place.prefix)
            };
            if !prefix.is_some_and(|prefix| contains(prefix, locator)) {
                return Err(Refusal::NoLocatorOfNode);
            }
        }
        if claim.next.is_some_and(|(_, locator)| locator == claim.locator) {
            return Err(Refusal::Overlap);
        }
        for locator in locators(claim) {
            match self.by_locator.get(&locator) {
                Some(other) if *other != sir => {
                    let other = *other;
                    // The locator of a task that an event has deleted is free, but for the waiting.
                    if !self.tasks.withdrawals.is_confirmed(other) || self.are_tasks_held() {
                        return Err(Refusal::Overlap);
                    }
                    self.remove_task(other);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn remove_task(&mut self, sir: Locator) {
        let Some(claim) = self.tasks.remove(sir) else { return };
        self.restored.remove(&sir);
        self.unsaved_tasks.insert(sir);
        self.has_news = true;
        for locator in locators(&claim) {
            self.by_locator.remove(&locator);
        }
        self.mappings.release(sir);
        for slot in own_locators(self.me, &claim) {
            self.mappings.release(slot);
        }
    }

    fn remove_node(&mut self, id: NameId) {
        let Some(place) = self.nodes.remove(id) else { return };
        self.unsaved_nodes.insert(id);
        self.has_news = true;
        self.by_prefix.remove(&place.prefix);
        self.routes.release(RouteSlot::main(place.prefix));
    }

    /// Judges refused values again, in the order of their changes, if they may have become good.
    fn revalidate(&mut self) {
        while std::mem::take(&mut self.has_news) {
            let nodes = self.nodes.refused().filter_map(|(id, it)| Some((it.stamp, id, it.value?)));
            let mut nodes: Vec<_> = nodes.collect();
            nodes.sort_by_key(|(stamp, ..)| *stamp);
            for (stamp, id, place) in nodes {
                self.put_node(id, stamp, place);
            }
            let tasks = self.tasks.refused().filter_map(|(sir, it)| Some((it.stamp, sir, it.value?)));
            let mut tasks: Vec<_> = tasks.collect();
            tasks.sort_by_key(|(stamp, ..)| *stamp);
            for (stamp, sir, claim) in tasks {
                self.put_task(sir, stamp, claim);
            }
        }
    }

    /// Whether withdrawals of tasks are held.
    const fn are_tasks_held(&self) -> bool {
        self.are_tasks_held || self.history.hold().is_some()
    }

    /// Number of withdrawals that wait.
    fn withdrawals(&self) -> usize {
        let orphans = self.mappings.orphans.len() + self.routes.orphans.len();
        self.nodes.withdrawals.len() + self.tasks.withdrawals.len() + self.networks.withdrawals.len() + orphans
    }

    /// Carries out the withdrawals that are due, after the operator's approval those that were held.
    fn withdraw(&mut self, is_approval: bool) {
        // An object that one snapshot lacks counts: events of deletions may confirm a few of many. Entries of the gateway count when they
        // are confirmed: all are orphans until the first look.
        let of_routes = self.routes.orphans.unapproved().1;
        let of_networks = self.networks.withdrawals.unapproved().0 + of_routes;
        let of_tasks = self.nodes.withdrawals.unapproved().0
            + self.tasks.withdrawals.unapproved().0
            + self.mappings.orphans.unapproved().1;
        // Once held, the withdrawals stay so until the objects are back: a store that is filled again is no reason to go on. An agent that
        // starts again knows after its first look.
        let total = self.mappings.len().max(self.tasks.len());
        let routes = self.routes.len().max(self.networks.len());
        let waiting = self.withdrawals();
        let of_networks_waiting = self.networks.withdrawals.len() + self.routes.orphans.len();
        let may_end =
            |waiting: usize, unapproved: usize| waiting == 0 && !self.is_provisional || unapproved == 0 && is_approval;
        // Networks that a node takes away hold no tasks.
        let are_tasks_held =
            is_mass(of_tasks, total) || self.are_tasks_held && !may_end(waiting - of_networks_waiting, of_tasks);
        let is_large = is_mass(of_tasks + of_routes, total) || is_mass(of_networks, routes);
        let is_held = are_tasks_held || is_large || self.history.is_mass && !may_end(waiting, of_tasks + of_networks);
        self.are_tasks_held = are_tasks_held;
        self.is_history_unsaved |= is_held != self.history.is_mass;
        self.history.is_mass = is_held;
        if self.history.hold().is_some() {
            return;
        }
        for sir in self.tasks.withdrawals.take_due(self.now, are_tasks_held) {
            self.remove_task(sir);
        }
        for id in self.nodes.withdrawals.take_due(self.now, are_tasks_held) {
            self.remove_node(id);
        }
        for key in self.networks.withdrawals.take_due(self.now, is_held) {
            self.remove_network(key);
        }
        for slot in self.mappings.orphans.take_due(self.now, are_tasks_held) {
            self.mappings.release(slot);
        }
        for slot in self.routes.orphans.take_due(self.now, is_held) {
            self.routes.release(slot);
            self.ending.insert(slot);
        }
        self.revalidate();
    }

    /// Whether a mapping that the gateway has may be replaced.
    fn may_replace(&self, matched: Locator) -> bool {
        let sir = self.by_locator.get(&matched).copied().unwrap_or(matched);
        !self.restored.contains(&sir)
    }

    /// Mapping that the gateway has to have, and whether an object explains that it has none.
    fn desired_mapping(&self, matched: Locator) -> (Option<Target>, bool) {
        let target = |locator| Some(Target { locator, csum_mode: self.settings.csum_mode });
        if let Some(claim) = self.tasks.get(matched) {
            // Senders of the node itself reach the task by its link.
            let new = if claim.node == self.me { None } else { target(claim.locator) };
            return (new, true);
        }
        let task = self.by_locator.get(&matched).and_then(|sir| Some((*sir, self.tasks.get(*sir)?)));
        let of_task = task.and_then(|(sir, claim)| match claim.next {
            Some((node, locator)) if node == self.me && locator == matched => Some(sir),
            _ if claim.node != self.me || claim.locator != matched => None,
            Some((node, locator)) if node != self.me => Some(locator),
            _ => Some(sir),
        });
        let lingering = self.lingering.get(&matched).map(|(locator, _)| *locator);
        (of_task.or(lingering).and_then(target), false)
    }

    /// Route that the gateway has to have. None is deleted without a wait.
    fn desired_route(&self, slot: RouteSlot) -> (Option<Hop>, bool) {
        let RouteSlot { table, prefix, .. } = slot;
        if table != RouteSlot::MAIN {
            return (self.desired_vrf_route(slot), false);
        }
        if self.settings.domains.iter().any(|domain| domain.prefix == prefix) {
            return (Some(Hop::Blackhole), false);
        }
        let node = self.by_prefix.get(&prefix).filter(|id| self.settings.routes && **id != self.me);
        let underlay = node.and_then(|id| self.nodes.get(*id)).and_then(|place| place.underlay);
        (underlay.map(|addr| Hop::Via(IpAddr::V6(addr))), false)
    }

    /// Route in a VRF's table, to the first node by name of those that have the network with this metric. None to a network that this
    /// node has itself.
    fn desired_vrf_route(&self, slot: RouteSlot) -> Option<Hop> {
        let vrf = *self.vrfs.get(&slot.table)?;
        if self.own_networks.contains(&(vrf, slot.prefix)) {
            return None;
        }
        let all = self.networks.between(NetworkKey::all_of(vrf, slot.prefix));
        let of_others = all.filter(|(key, network)| key.node != self.me && network.metric == slot.metric);
        let first = of_others.min_by_key(|(key, _)| self.names.text(key.node));
        first.map(|(_, network)| Hop::Via(network.via))
    }
}

/// Part of a foreign key by which it is named.
fn named(key: &[u8]) -> &[u8] {
    &key[..key.len().min(MAX_FOREIGN)]
}

/// Whether mappings for a locator are this program's.
fn is_managed(settings: &Settings, matched: Locator) -> bool {
    settings.domain_of(matched).is_some() || contains(settings.locators, matched)
}

/// Place of the route to a network; `None` if the gateway does not have the VRF.
fn slot_of(tables: &BTreeMap<NameId, u32>, key: NetworkKey, network: Network) -> Option<RouteSlot> {
    Some(RouteSlot { table: *tables.get(&key.vrf)?, prefix: key.prefix, metric: network.metric })
}

/// Locators of a task.
fn locators(claim: &Claim) -> impl Iterator<Item = Locator> + use<> {
    [claim.locator].into_iter().chain(claim.next.map(|(_, locator)| locator))
}

/// Locators of a task at node `me`.
fn own_locators(me: NameId, claim: &Claim) -> impl Iterator<Item = Locator> + use<> {
    let places = [(claim.node, claim.locator)].into_iter().chain(claim.next);
    places.filter(move |(node, _)| *node == me).map(|(_, locator)| locator)
}

fn read_node(value: &[u8]) -> Result<NodePlace, Refusal> {
    let value = NodeValue::parse(value)?;
    Ok(NodePlace { prefix: value.prefix()?, underlay: value.underlay })
}

fn read_network(prefix: Prefix, value: &[u8]) -> Result<Network, Refusal> {
    let value = NetworkValue::parse(value)?;
    value.check(prefix)?;
    Ok(Network { via: value.via, metric: value.metric })
}

fn read_task(names: &mut Names, value: &[u8]) -> Result<Claim, Refusal> {
    let value = TaskValue::parse(value)?;
    let locator = |text: &str| text.parse::<Locator>().map_err(|_| Refusal::Malformed);
    let next = match (&value.to, &value.to_locator) {
        (Some(to), Some(at)) => Some((names.id(to), locator(at)?)),
        _ => None,
    };
    Ok(Claim { node: names.id(&value.node), locator: locator(&value.locator)?, next })
}

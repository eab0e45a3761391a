//! An agent with its gateway and its file, and a watch that loses, repeats and reorders events.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet::{Dump, Event, Hop, Op, Reconciler, RouteSlot, Saved, SavedObject, Settings, Snapshot, Target};
use ila::Locator;

use crate::random::Random;
use crate::store::Store;

/// Tables of a gateway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gateway {
    pub(crate) mappings: BTreeMap<Locator, Target>,
    pub(crate) routes: BTreeMap<RouteSlot, Hop>,
    /// VRFs with their tables.
    pub(crate) vrfs: BTreeMap<&'static str, u32>,
}

impl Gateway {
    /// Takes a VRF away with its routes, or brings it back.
    pub(crate) fn change_vrf(&mut self, name: &'static str, table: Option<u32>) {
        if let Some(old) = self.vrfs.remove(name) {
            self.routes.retain(|slot, _| slot.table != old);
        }
        self.vrfs.extend(table.map(|table| (name, table)));
    }
}

/// An agent and the things around it.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) settings: Settings,
    pub(crate) core: Reconciler,
    pub(crate) gateway: Gateway,
    pub(crate) is_gateway_up: bool,
    pub(crate) is_connected: bool,
    /// Events under way.
    inbox: Vec<Event>,
    /// Snapshot under way.
    look: Option<Snapshot>,
    /// Revision of the last event that arrived.
    position: u64,
    file: BTreeMap<String, SavedObject>,
    file_history: fleet::History,
    /// Operations since the last check.
    pub(crate) done: Vec<Op>,
}

impl Agent {
    pub(crate) fn new(settings: Settings) -> Self {
        let core = Reconciler::new(settings.clone());
        Self {
            settings,
            core,
            gateway: Gateway::default(),
            is_gateway_up: false,
            is_connected: true,
            inbox: Vec::new(),
            look: None,
            position: 0,
            file: BTreeMap::new(),
            file_history: fleet::History::default(),
            done: Vec::new(),
        }
    }

    /// A commit of the store, which a watch may lose or repeat.
    pub(crate) fn notify(&mut self, event: &Event, random: &mut Random, is_lossy: bool) {
        if !self.is_connected || is_lossy && random.happens(30) {
            return;
        }
        self.inbox.push(event.clone());
        if is_lossy && random.happens(50) {
            self.inbox.push(event.clone());
        }
    }

    pub(crate) fn disconnect(&mut self) {
        self.is_connected = false;
        self.inbox.clear();
        if self.look.take().is_some() {
            self.core.request_look();
        }
    }

    /// Resumes the watch, or takes a snapshot if that cannot be.
    pub(crate) fn connect(&mut self, store: &Store) {
        if self.is_connected {
            return;
        }
        self.is_connected = true;
        match store.since(self.position.max(1)) {
            Some(events) if self.position != 0 => self.inbox = events,
            _ => self.core.request_look(),
        }
    }

    /// Starts again with the file alone.
    pub(crate) fn restart(&mut self) {
        self.core = Reconciler::new(self.settings.clone());
        self.core.restore(Saved { history: self.file_history.clone(), objects: self.file.values().cloned().collect() });
        self.inbox.clear();
        self.look = None;
        self.position = 0;
        self.is_gateway_up = false;
    }

    /// The gateway starts again, with its state or without.
    pub(crate) fn restart_gateway(&mut self, is_empty: bool) {
        if is_empty {
            self.gateway = Gateway { vrfs: self.gateway.vrfs.clone(), ..Gateway::default() };
        }
        self.is_gateway_up = false;
        self.core.detach();
    }

    /// Forgets what is under way: the store at the other end is another one now.
    pub(crate) fn lose_watch(&mut self) {
        self.inbox.clear();
        self.look = None;
        self.core.request_look();
    }

    /// Lets the agent do what it can now.
    pub(crate) fn turn(&mut self, now: Duration, store: &Store, random: &mut Random, is_lossy: bool) {
        if !self.is_gateway_up && (!is_lossy || random.happens(300)) {
            self.is_gateway_up = true;
            let mappings = self.gateway.mappings.iter().map(|(matched, target)| (*matched, *target)).collect();
            let routes = self.gateway.routes.iter().map(|(slot, hop)| (*slot, *hop)).collect();
            let vrfs = self.gateway.vrfs.iter().map(|(name, table)| ((*name).to_owned(), *table)).collect();
            self.core.attach(now, &Dump { mappings, routes, vrfs });
        }
        if self.is_connected && (!is_lossy || random.happens(700)) {
            let mut events = std::mem::take(&mut self.inbox);
            if is_lossy && events.len() > 1 && random.happens(200) {
                let at = random.below(events.len());
                events.rotate_left(at);
            }
            if let Some(last) = events.iter().map(|event| event.revision).max() {
                self.position = self.position.max(last);
            }
            if is_lossy && random.happens(300) {
                let later = events.split_off(events.len() / 2);
                self.core.events(now, &events);
                self.apply(now, random, is_lossy);
                self.core.events(now, &later);
            } else {
                self.core.events(now, &events);
            }
            if let Some(snapshot) = self.look.take_if(|_| !is_lossy || random.happens(500)) {
                self.position = snapshot.revision;
                self.core.snapshot(now, &snapshot);
            }
        }
        self.core.timeout(now);
        if self.is_connected && self.look.is_none() && self.core.begin_look() {
            self.look = Some(store.snapshot(self.core.revision()));
        }
        self.apply(now, random, is_lossy);
        if !is_lossy || random.happens(500) {
            self.save();
        }
    }

    fn apply(&mut self, now: Duration, random: &mut Random, is_lossy: bool) {
        let mut is_deleting = false;
        for op in self.core.operations() {
            assert!(self.is_gateway_up);
            assert!(!is_deleting || op.is_deletion(), "deletions come last");
            is_deleting = op.is_deletion();
            // A new route of a VRF may have a next hop that the gateway does not reach for a time.
            let is_new = matches!(op, Op::Route { slot, new: Some(_), .. } if slot.table != RouteSlot::MAIN);
            if is_lossy && random.happens(if is_new { 300 } else { 10 }) {
                self.core.refused(now, &op);
                continue;
            }
            match op {
                Op::Mapping { matched, old, new } => {
                    assert_eq!(self.gateway.mappings.get(&matched).copied(), old, "{op:?}");
                    match new {
                        Some(new) => self.gateway.mappings.insert(matched, new),
                        None => self.gateway.mappings.remove(&matched),
                    };
                }
                Op::Route { slot, old, new } => {
                    let has_table =
                        slot.table == RouteSlot::MAIN || self.gateway.vrfs.values().any(|it| *it == slot.table);
                    assert!(has_table, "{op:?}: no VRF has the table");
                    assert_eq!(self.gateway.routes.get(&slot).copied(), old, "{op:?}");
                    match new {
                        Some(new) => self.gateway.routes.insert(slot, new),
                        None => self.gateway.routes.remove(&slot),
                    };
                }
            }
            self.done.push(op);
        }
        assert_eq!(self.core.operations().len(), 0, "nothing is done twice");
    }

    fn save(&mut self) {
        let Some(changes) = self.core.take_unsaved() else { return };
        self.file_history = changes.history;
        for object in changes.changed {
            self.file.insert(object.key.clone(), object);
        }
        for key in changes.removed {
            self.file.remove(&key);
        }
    }
}

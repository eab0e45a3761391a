//! Keys and values of a fleet's store, and operations of an agent: each operation fits what the gateway has, deletions come last, and
//! nothing is withdrawn before it has waited, or while the store has another history.

use std::collections::BTreeMap;
use std::time::Duration;

use base::Prefix;
use fleet::{
    Domain, Dump, Event, GRACE, Hold, Hop, Key, KeyValue, MetaValue, NetworkValue, NodeValue, Op, Reconciler,
    RouteSlot, Saved, Settings, Snapshot, Target, TaskValue,
};
use ila::{CsumMode, Locator};
use sim::Choices;

/// Names of nodes; the first one is the agent's.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Runs one input: a key and a value if its first byte is 0, operations otherwise.
pub fn target(input: &[u8]) {
    let mut choices = Choices::new(input);
    if choices.byte() == 0 {
        return parse(choices);
    }
    let mut run = Run::new();
    for _ in 0..400 {
        if choices.is_over() {
            break;
        }
        run.step(&mut choices);
    }
}

/// A key that is read is written as it was; a value that is read is read again as it is written.
fn parse(mut choices: Choices<'_>) {
    let key_len = usize::from(choices.byte());
    let key = choices.bytes(key_len);
    let value = choices.bytes(usize::MAX);
    if let Ok(parsed) = Key::parse("f", key) {
        assert_eq!(parsed.text("f").as_bytes(), key);
    }
    if let Ok(parsed) = TaskValue::parse(value) {
        assert_eq!(TaskValue::parse(&parsed.to_bytes()), Ok(parsed));
    }
    if let Ok(parsed) = NodeValue::parse(value) {
        assert_eq!(NodeValue::parse(&parsed.to_bytes()), Ok(parsed));
    }
    if let Ok(parsed) = NetworkValue::parse(value) {
        assert_eq!(NetworkValue::parse(&parsed.to_bytes()), Ok(parsed));
    }
    if let Ok(parsed) = MetaValue::parse(value) {
        assert_eq!(MetaValue::parse(&parsed.to_bytes()), Ok(parsed));
    }
    let mut core = agent();
    core.events(Duration::ZERO, &[Event { key: key.to_vec(), value: Some(value.to_vec()), revision: 1 }]);
    core.events(Duration::ZERO, &[Event { key: key.to_vec(), value: None, revision: 2 }]);
    let _ = core.status();
}

fn agent() -> Reconciler {
    let prefix = |text: &str| text.parse::<Prefix>().expect("a prefix");
    Reconciler::new(Settings {
        fleet: "f".to_owned(),
        node: NAMES[0].to_owned(),
        locators: prefix("fd00:0:1::/48"),
        domains: vec![Domain { name: "t".to_owned(), prefix: prefix("2001:db8::/48") }],
        networks: vec![("red".to_owned(), prefix("10.7.0.0/16"))],
        routes: true,
        csum_mode: CsumMode::NeutralMapAuto,
        look_every: Duration::from_secs(60),
    })
}

/// An agent, its gateway, and what was saved.
struct Run {
    core: Reconciler,
    now: Duration,
    mappings: BTreeMap<Locator, Target>,
    routes: BTreeMap<RouteSlot, Hop>,
    /// VRFs with their tables.
    vrfs: BTreeMap<&'static str, u32>,
    is_attached: bool,
    /// Withdrawals may have been decided while there was no gateway.
    has_backlog: bool,
    saved: BTreeMap<String, fleet::SavedObject>,
    history: fleet::History,
}

impl Run {
    fn new() -> Self {
        let mut run = Self {
            core: agent(),
            now: Duration::ZERO,
            mappings: BTreeMap::new(),
            routes: BTreeMap::new(),
            vrfs: BTreeMap::from([("red", 10)]),
            is_attached: false,
            has_backlog: false,
            saved: BTreeMap::new(),
            history: fleet::History::default(),
        };
        run.attach();
        run
    }

    fn attach(&mut self) {
        let mappings = self.mappings.iter().map(|(matched, target)| (*matched, *target)).collect();
        let routes = self.routes.iter().map(|(slot, hop)| (*slot, *hop)).collect();
        let vrfs = self.vrfs.iter().map(|(name, table)| ((*name).to_owned(), *table)).collect();
        self.core.attach(self.now, &Dump { mappings, routes, vrfs });
        self.is_attached = true;
    }

    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 12 {
            0..4 => {
                let events: Vec<_> = (0..choices.byte() % 4).map(|_| event(choices)).collect();
                self.core.events(self.now, &events);
            }
            4 | 5 => {
                let revision = choices.byte().into();
                let known = if choices.once_in(4) { 0 } else { self.core.revision() };
                let kvs = (0..choices.byte() % 8).filter_map(|_| {
                    let Event { key, value, revision } = event(choices);
                    Some(KeyValue { key, value: value?, revision })
                });
                let kvs = kvs.collect();
                self.core.snapshot(self.now, &Snapshot { revision, known, kvs });
            }
            6 => self.now += Duration::from_secs(choices.byte().into()),
            7 => self.now = self.now.saturating_sub(Duration::from_secs(3)),
            8 => self.core.approve(self.now),
            9 => {
                self.core.detach();
                self.is_attached = false;
                if choices.once_in(2) {
                    self.mappings.clear();
                }
                // A VRF comes, goes with its routes, or has another table.
                match choices.byte() % 4 {
                    0 => drop(self.vrfs.insert("blue", 20)),
                    1 => drop(self.vrfs.insert("red", 30)),
                    2 => drop(self.vrfs.remove("red")),
                    _ => {}
                }
                let tables: Vec<u32> = self.vrfs.values().copied().collect();
                self.routes.retain(|slot, _| slot.table == RouteSlot::MAIN || tables.contains(&slot.table));
            }
            10 => self.attach(),
            _ => {
                self.core = agent();
                let objects = self.saved.values().cloned().collect();
                self.core.restore(Saved { history: self.history.clone(), objects });
                self.is_attached = false;
            }
        }
        self.core.timeout(self.now);
        self.core.begin_look();
        self.apply(choices);
        if let Some(changes) = self.core.take_unsaved() {
            self.history = changes.history;
            for object in changes.changed {
                self.saved.insert(object.key.clone(), object);
            }
            for key in changes.removed {
                self.saved.remove(&key);
            }
        }
        let _ = self.core.refused_keys();
    }

    fn apply(&mut self, choices: &mut Choices<'_>) {
        let is_other = matches!(self.core.status().hold, Some(Hold::NoMeta | Hold::Foreign | Hold::Older));
        let mut is_deleting = false;
        for op in self.core.operations() {
            assert!(self.is_attached, "{op:?}");
            assert!(!is_deleting || op.is_deletion(), "deletions come last");
            is_deleting = op.is_deletion();
            assert!(!is_deleting || self.now >= GRACE || matches!(op, Op::Mapping { .. }), "{op:?}");
            match op {
                Op::Mapping { matched, old, new } => {
                    assert_eq!(self.mappings.get(&matched).copied(), old, "{op:?}");
                    if choices.once_in(32) {
                        self.core.refused(self.now, &op);
                        continue;
                    }
                    match new {
                        Some(new) => self.mappings.insert(matched, new),
                        None => self.mappings.remove(&matched),
                    };
                }
                Op::Route { slot, old, new } => {
                    assert!(
                        new.is_some() || !is_other || self.has_backlog,
                        "{op:?} while the store has another history"
                    );
                    assert_eq!(self.routes.get(&slot).copied(), old, "{op:?}");
                    match new {
                        Some(new) => self.routes.insert(slot, new),
                        None => self.routes.remove(&slot),
                    };
                }
            }
        }
        assert_eq!(self.core.operations(), [], "nothing is done twice");
        self.has_backlog = !self.is_attached;
    }
}

/// A change of one of a few keys, with a good value mostly.
fn event(choices: &mut Choices<'_>) -> Event {
    let node = usize::from(choices.byte()) % NAMES.len();
    let number = u64::from(choices.byte() % 8);
    let locator = Locator(0xfd00_0000_0000_0000 | (node as u64 + 1) << 16 | number);
    let sir = Locator(0x2001_0db8_0000_0000 | u64::from(choices.byte() % 8));
    let task = Key::Task { domain: "t".to_owned(), sir };
    let other = usize::from(choices.byte()) % NAMES.len();
    let (key, value) = match choices.byte() % 8 {
        0 => (Key::Meta, MetaValue::new(NAMES[node].to_owned()).to_bytes()),
        1 | 2 => {
            let prefix = format!("fd00:0:{}::/48", other + 1).parse().expect("a prefix");
            (Key::Node(NAMES[node].to_owned()), NodeValue::new(prefix, "fd99::1".parse().ok()).to_bytes())
        }
        3 => {
            let next = Locator(0xfd00_0000_0000_0000 | (other as u64 + 1) << 16 | 8);
            (task, TaskValue::here(NAMES[node], locator).moving(NAMES[other], next).to_bytes())
        }
        4 => (task, choices.bytes(16).to_vec()),
        5 => {
            let vrf = ["red", "blue"][other % 2].to_owned();
            let prefix = format!("10.{number}.0.0/16").parse().expect("a prefix");
            let via = format!("10.9.0.{}", node + 1).parse().expect("an address");
            let key = Key::Network { node: NAMES[node].to_owned(), vrf, prefix };
            (key, NetworkValue::new(via, u32::from(choices.byte() % 3)).to_bytes())
        }
        _ => (task, TaskValue::here(NAMES[node], locator).to_bytes()),
    };
    let value = (!choices.once_in(6)).then_some(value);
    Event { key: key.text("f").into_bytes(), value, revision: choices.byte().into() }
}

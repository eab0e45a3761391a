//! Rules of the core, one by one.

use std::time::Duration;

use fleet::{
    Domain, Dump, Event, Hold, Hop, Key, KeyValue, MetaValue, NetworkValue, NodeValue, Op, Reconciler, Refusal,
    RouteSlot, Saved, Settings, Snapshot, Target, TaskValue,
};
use ila::{CsumMode, Locator};

const SIR: &str = "2001:db8:0:a";

fn second(number: u64) -> Duration {
    Duration::from_secs(number)
}

fn locator(text: &str) -> Locator {
    text.parse().unwrap()
}

/// Locator of a node: `at(1, 7)` is number 7 of node n1.
fn at(node: u64, number: u64) -> Locator {
    Locator(0xfd00_0000_0000_0000 | node << 16 | number)
}

fn sir(number: u64) -> Locator {
    Locator(0x2001_0db8_0000_0000 | number)
}

fn target(locator: Locator) -> Target {
    Target { locator, csum_mode: CsumMode::NeutralMapAuto }
}

fn set(matched: Locator, old: Option<Locator>, new: Locator) -> Op {
    Op::Mapping { matched, old: old.map(target), new: Some(target(new)) }
}

fn delete(matched: Locator, old: Locator) -> Op {
    Op::Mapping { matched, old: Some(target(old)), new: None }
}

fn main(prefix: &str) -> RouteSlot {
    RouteSlot::main(prefix.parse().unwrap())
}

fn task_key(sir: Locator) -> String {
    Key::Task { domain: "t".to_owned(), sir }.text("f")
}

fn node_key(name: &str) -> String {
    Key::Node(name.to_owned()).text("f")
}

/// A store by hand.
#[derive(Clone, Debug, Default)]
struct Store {
    revision: u64,
    kvs: Vec<KeyValue>,
}

impl Store {
    /// Nodes n1, n2 and n3, and an identity.
    fn new() -> Self {
        let mut store = Self::default();
        store.put("/fatpath/v1/f/meta", MetaValue::new("u".to_owned()).to_bytes());
        for node in 1..=3 {
            let locators = format!("fd00:0:{node}::/48").parse().unwrap();
            let underlay = format!("fd99::{node}").parse().unwrap();
            store.put(&node_key(&format!("n{node}")), NodeValue::new(locators, Some(underlay)).to_bytes());
        }
        store
    }

    fn put(&mut self, key: &str, value: Vec<u8>) -> Event {
        self.revision += 1;
        let key = key.as_bytes().to_vec();
        self.kvs.retain(|kv| kv.key != key);
        self.kvs.push(KeyValue { key: key.clone(), value: value.clone(), revision: self.revision });
        Event { key, value: Some(value), revision: self.revision }
    }

    fn here(&mut self, sir: Locator, node: u64, locator: Locator) -> Event {
        self.put(&task_key(sir), TaskValue::here(&format!("n{node}"), locator).to_bytes())
    }

    fn delete(&mut self, key: &str) -> Event {
        self.revision += 1;
        self.kvs.retain(|kv| kv.key != key.as_bytes());
        Event { key: key.as_bytes().to_vec(), value: None, revision: self.revision }
    }

    fn snapshot(&self, core: &Reconciler) -> Snapshot {
        Snapshot { revision: self.revision, known: core.revision(), kvs: self.kvs.clone() }
    }
}

fn settings() -> Settings {
    Settings {
        fleet: "f".to_owned(),
        node: "n1".to_owned(),
        locators: "fd00:0:1::/48".parse().unwrap(),
        domains: vec![Domain { name: "t".to_owned(), prefix: "2001:db8::/48".parse().unwrap() }],
        networks: Vec::new(),
        routes: true,
        csum_mode: CsumMode::NeutralMapAuto,
        look_every: second(600),
    }
}

/// Agent of node n1 with an empty gateway.
fn agent() -> Reconciler {
    let mut core = Reconciler::new(settings());
    core.attach(second(0), &Dump::default());
    core
}

/// Agent that has looked at a store.
fn synced(store: &Store) -> Reconciler {
    let mut core = agent();
    assert!(core.begin_look());
    core.snapshot(second(0), &store.snapshot(&core));
    core.operations();
    core
}

/// Takes a look if one is due.
fn look(core: &mut Reconciler, store: &Store, now: Duration) -> bool {
    core.timeout(now);
    let is_due = core.begin_look();
    if is_due {
        core.snapshot(now, &store.snapshot(core));
    }
    is_due
}

#[test]
fn first_look_adds_mappings_routes_and_blackholes() {
    let mut store = Store::new();
    store.here(sir(1), 1, at(1, 7));
    store.here(sir(2), 2, at(2, 7));
    let mut core = agent();
    assert!(core.begin_look());
    core.snapshot(second(0), &store.snapshot(&core));
    let ops = core.operations();
    let want = [
        Op::Route { slot: main("2001:db8::/48"), old: None, new: Some(Hop::Blackhole) },
        Op::Route { slot: main("fd00:0:2::/48"), old: None, new: Some(Hop::Via("fd99::2".parse().unwrap())) },
        Op::Route { slot: main("fd00:0:3::/48"), old: None, new: Some(Hop::Via("fd99::3".parse().unwrap())) },
        set(sir(2), None, at(2, 7)),
        set(at(1, 7), None, sir(1)),
    ];
    assert_eq!(ops, want);
    assert_eq!(core.operations(), []);
    assert_eq!(core.deadline(), Some(second(600)), "the next look");
}

#[test]
fn moving_task_is_forwarded_and_then_followed() {
    let mut store = Store::new();
    store.here(sir(1), 1, at(1, 7));
    store.here(sir(2), 2, at(2, 8));
    let mut core = synced(&store);
    // The task of this node goes to n2.
    let moving = TaskValue::here("n1", at(1, 7)).moving("n2", at(2, 7)).to_bytes();
    core.events(second(1), &[store.put(&task_key(sir(1)), moving)]);
    assert_eq!(core.operations(), [set(at(1, 7), Some(sir(1)), at(2, 7))]);
    core.events(second(2), &[store.here(sir(1), 2, at(2, 7))]);
    assert_eq!(core.operations(), [set(sir(1), None, at(2, 7))]);
    core.timeout(second(31));
    assert_eq!(core.operations(), []);
    assert_eq!(core.deadline(), Some(second(32)));
    core.timeout(second(32));
    assert_eq!(core.operations(), [delete(at(1, 7), at(2, 7))]);
    // A task of n2 comes here.
    let moving = TaskValue::here("n2", at(2, 8)).moving("n1", at(1, 8)).to_bytes();
    core.events(second(40), &[store.put(&task_key(sir(2)), moving)]);
    assert_eq!(core.operations(), [set(at(1, 8), None, sir(2))]);
    core.events(second(41), &[store.here(sir(2), 1, at(1, 8))]);
    assert_eq!(core.operations(), [delete(sir(2), at(2, 8))]);
}

#[test]
fn move_that_is_given_up_leaves_a_forwarder_at_the_other_node() {
    let mut store = Store::new();
    store.here(sir(2), 2, at(2, 8));
    let mut core = synced(&store);
    let moving = TaskValue::here("n2", at(2, 8)).moving("n1", at(1, 8)).to_bytes();
    core.events(second(1), &[store.put(&task_key(sir(2)), moving)]);
    assert_eq!(core.operations(), [set(at(1, 8), None, sir(2))]);
    core.events(second(2), &[store.here(sir(2), 2, at(2, 8))]);
    assert_eq!(core.operations(), [set(at(1, 8), Some(sir(2)), at(2, 8))]);
    core.timeout(second(32));
    assert_eq!(core.operations(), [delete(at(1, 8), at(2, 8))]);
}

#[test]
fn additions_come_before_deletions() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    store.here(sir(9), 1, at(1, 9));
    let mut core = synced(&store);
    let events = [store.here(sir(1), 1, at(1, 1)), store.here(sir(9), 3, at(3, 9)), store.here(sir(5), 3, at(3, 5))];
    core.events(second(1), &events);
    let ops = core.operations();
    assert_eq!(ops.last(), Some(&delete(sir(1), at(2, 1))));
    assert_eq!(ops.len(), 5, "{ops:?}");
}

#[test]
fn deletion_by_an_event_waits_ten_seconds() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut core = synced(&store);
    core.events(second(1), &[store.delete(&task_key(sir(1)))]);
    assert_eq!((core.operations(), core.deadline()), (vec![], Some(second(11))));
    core.timeout(second(10));
    assert_eq!(core.operations(), []);
    core.timeout(second(11));
    assert_eq!(core.operations(), [delete(sir(1), at(2, 1))]);
    // A late event from before the deletion changes nothing.
    let late =
        Event { key: task_key(sir(1)).into(), value: Some(TaskValue::here("n2", at(2, 1)).to_bytes()), revision: 5 };
    core.events(second(12), &[late]);
    assert_eq!((core.operations(), core.status().tasks), (vec![], 0));
}

#[test]
fn deletion_by_a_snapshot_takes_two_looks() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    store.here(sir(2), 2, at(2, 2));
    let mut core = synced(&store);
    let mut without = store.clone();
    without.delete(&task_key(sir(1)));
    without.delete(&task_key(sir(2)));
    core.request_look();
    assert!(look(&mut core, &without, second(100)));
    assert_eq!((core.operations(), core.deadline(), core.status().withdrawals), (vec![], Some(second(110)), 2));
    assert!(!look(&mut core, &without, second(109)));
    // The next look disagrees about one of them.
    let mut later = without.clone();
    later.here(sir(1), 2, at(2, 1));
    assert!(look(&mut core, &later, second(110)));
    assert_eq!(core.operations(), [delete(sir(2), at(2, 2))]);
    assert_eq!(core.status().withdrawals, 0);
}

#[test]
fn deleted_task_that_is_made_again_keeps_its_mapping() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut core = synced(&store);
    core.events(second(1), &[store.delete(&task_key(sir(1)))]);
    core.events(second(5), &[store.here(sir(1), 3, at(3, 1))]);
    assert_eq!(core.operations(), [set(sir(1), Some(at(2, 1)), at(3, 1))]);
    core.timeout(second(60));
    assert_eq!(core.operations(), []);
}

#[test]
fn locator_of_a_deleted_task_is_free_at_once() {
    let mut store = Store::new();
    store.here(sir(1), 1, at(1, 1));
    let mut core = synced(&store);
    core.events(second(1), &[store.delete(&task_key(sir(1)))]);
    core.events(second(2), &[store.here(sir(2), 1, at(1, 1))]);
    assert_eq!(core.operations(), [set(at(1, 1), Some(sir(1)), sir(2))]);
}

/// A store with many tasks of n2, and an agent that has their mappings.
fn many(number: u64) -> (Store, Reconciler) {
    let mut store = Store::new();
    for task in 0..number {
        store.here(sir(task), 2, at(2, task));
    }
    let core = synced(&store);
    (store, core)
}

#[test]
fn mass_withdrawal_is_held_until_it_is_approved() {
    let (mut store, mut core) = many(200);
    let events: Vec<_> = (0..150).map(|task| store.delete(&task_key(sir(task)))).collect();
    core.events(second(1), &events);
    assert_eq!(core.status().hold, Some(Hold::Mass));
    core.timeout(second(100));
    assert_eq!(core.operations(), []);
    // Most of them come back. The rest is no mass, and waits all the same.
    let events: Vec<_> = (0..100).map(|task| store.here(sir(task), 2, at(2, task))).collect();
    core.events(second(101), &events);
    core.timeout(second(200));
    assert_eq!((core.operations(), core.status().hold, core.status().withdrawals), (vec![], Some(Hold::Mass), 50));
    core.approve(second(201));
    assert_eq!(core.operations(), []);
    // One more is back, which the agent learns by the look alone.
    store.here(sir(100), 2, at(2, 100));
    assert!(look(&mut core, &store, second(201)));
    assert_eq!(core.operations().len(), 49);
    assert_eq!(core.status().hold, None);
}

#[test]
fn event_that_confirms_one_of_a_mass_withdraws_nothing() {
    let (mut store, mut core) = many(200);
    let events: Vec<_> = (0..150).map(|task| store.delete(&task_key(sir(task)))).collect();
    core.request_look();
    assert!(look(&mut core, &store, second(1)));
    // The watch that begins after the look repeats its last event.
    core.events(second(2), &events[149..]);
    core.timeout(second(30));
    assert_eq!((core.operations(), core.status().hold, core.status().withdrawals), (vec![], Some(Hold::Mass), 150));
    // All are back, and the hold ends: the next deletion is an ordinary one.
    let events: Vec<_> = (0..150).map(|task| store.here(sir(task), 2, at(2, task))).collect();
    core.events(second(31), &events);
    assert_eq!((core.status().hold, core.status().withdrawals), (None, 0));
    core.events(second(32), &[store.delete(&task_key(sir(7)))]);
    core.timeout(second(42));
    assert_eq!(core.operations(), [delete(sir(7), at(2, 7))]);
}

#[test]
fn mass_is_ten_percent_and_a_hundred() {
    for (number, deleted, is_held) in [(99, 99, false), (100, 100, true), (2000, 200, false), (2000, 201, true)] {
        let (mut store, mut core) = many(number);
        let events: Vec<_> = (0..deleted).map(|task| store.delete(&task_key(sir(task)))).collect();
        core.events(second(1), &events);
        core.timeout(second(11));
        assert_eq!(core.operations().is_empty(), is_held, "{deleted} of {number}");
    }
}

#[test]
fn emptied_or_foreign_store_withdraws_nothing() {
    for (uuid, hold) in [(None, Hold::NoMeta), (Some("v"), Hold::Foreign)] {
        let (_, mut core) = many(5);
        let mut other = Store::default();
        if let Some(uuid) = uuid {
            other.put("/fatpath/v1/f/meta", MetaValue::new(uuid.to_owned()).to_bytes());
        }
        // It has a task more, and another place of a known one, with higher revisions.
        other.revision = 1000;
        other.put(&node_key("n2"), NodeValue::new("fd00:0:2::/48".parse().unwrap(), None).to_bytes());
        other.here(sir(0), 2, at(2, 99));
        other.here(sir(77), 2, at(2, 77));
        core.request_look();
        look(&mut core, &other, second(100));
        assert_eq!(core.operations(), [set(sir(77), None, at(2, 77))]);
        assert_eq!(core.status().hold, Some(hold));
        for now in [120, 800, 1500] {
            look(&mut core, &other, second(now));
            core.events(second(now), &[other.here(sir(1), 3, at(3, 1)), other.delete(&task_key(sir(2)))]);
            assert_eq!(core.operations(), []);
        }
        // With the operator's approval the store is right.
        core.approve(second(1600));
        assert!(look(&mut core, &other, second(1600)));
        if uuid.is_some() {
            assert_eq!(core.status().hold, None);
            let ops = core.operations();
            assert!(ops.contains(&set(sir(0), Some(at(2, 0)), at(2, 99))), "{ops:?}");
            look(&mut core, &other, second(1610));
            assert_eq!(
                core.operations().iter().filter(|op| op.is_deletion()).count(),
                5,
                "three tasks, a node, and an address of one"
            );
        }
    }
}

#[test]
fn deletion_of_meta_holds_deletions_of_the_same_moment() {
    let (mut store, mut core) = many(50);
    let mut events: Vec<_> = (0..50).map(|task| store.delete(&task_key(sir(task)))).collect();
    events.push(store.delete("/fatpath/v1/f/meta"));
    core.events(second(1), &events);
    core.timeout(second(60));
    assert_eq!((core.operations(), core.status().hold), (vec![], Some(Hold::NoMeta)));
}

#[test]
fn restored_store_takes_no_value_back() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut backup = store.clone();
    store.here(sir(1), 3, at(3, 1));
    store.here(sir(2), 3, at(3, 2));
    let mut core = synced(&store);
    core.request_look();
    look(&mut core, &backup, second(100));
    assert_eq!((core.operations(), core.status().hold), (vec![], Some(Hold::Older)));
    // The mover goes on in the restored store.
    core.events(second(101), &[backup.here(sir(1), 2, at(2, 5))]);
    assert_eq!(core.operations(), [set(sir(1), Some(at(3, 1)), at(2, 5))]);
    for now in [700, 1400] {
        look(&mut core, &backup, second(now));
        assert_eq!(core.operations(), []);
    }
    core.approve(second(1500));
    look(&mut core, &backup, second(1500));
    look(&mut core, &backup, second(1510));
    assert_eq!(core.operations(), [delete(sir(2), at(3, 2))]);
    assert_eq!(core.status().hold, None);
}

#[test]
fn restored_store_that_has_gone_on_is_noticed_by_a_value() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut backup = store.clone();
    store.here(sir(1), 3, at(3, 1));
    let mut core = synced(&store);
    for task in 10..20 {
        backup.here(sir(task), 2, at(2, task));
    }
    core.request_look();
    look(&mut core, &backup, second(100));
    assert_eq!(core.status().hold, Some(Hold::Older));
    assert_eq!(core.operations().len(), 10, "new tasks are added");
}

#[test]
fn snapshot_older_than_an_event_is_no_restored_store() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut core = synced(&store);
    core.request_look();
    core.timeout(second(1));
    assert!(core.begin_look());
    let snapshot = store.snapshot(&core);
    core.events(second(2), &[store.here(sir(1), 3, at(3, 1)), store.here(sir(2), 3, at(3, 2))]);
    core.operations();
    core.snapshot(second(3), &snapshot);
    assert_eq!((core.operations(), core.status().hold, core.status().withdrawals), (vec![], None, 0));
}

#[test]
fn repeated_and_reordered_events_end_in_the_last_value() {
    let mut store = Store::new();
    let mut core = synced(&store);
    let events = [store.here(sir(1), 2, at(2, 1)), store.here(sir(1), 2, at(2, 2)), store.here(sir(1), 2, at(2, 3))];
    for at_event in [2, 0, 1, 2, 0] {
        core.events(second(1), &events[at_event..=at_event]);
    }
    assert_eq!(core.operations(), [set(sir(1), None, at(2, 3))]);
}

#[test]
fn bad_value_is_named_and_the_last_good_one_stays() {
    let good = TaskValue::here("n2", at(2, 1)).to_bytes();
    let cases: [(&str, Vec<u8>, Refusal); 10] = [
        ("ila/t/2001:db8:0:a::/64", b"{".to_vec(), Refusal::Malformed),
        ("ila/t/2001:db8:0:a::/64", b"{\"v\":2}".to_vec(), Refusal::Version),
        ("ila/t/2001:db8:0:a::/64", TaskValue::here("n2", at(3, 1)).to_bytes(), Refusal::NoLocatorOfNode),
        ("ila/t/2001:db8:0:a::/64", TaskValue::here("n9", at(2, 1)).to_bytes(), Refusal::NoLocatorOfNode),
        ("ila/t/2001:db8:0:a::/64", TaskValue::here("n2", at(2, 9)).to_bytes(), Refusal::Overlap),
        ("ila/t/2001:db9:0:a::/64", good.clone(), Refusal::OutsideDomain),
        ("ila/t/nothing", good, Refusal::ForeignKey),
        ("node/n4", NodeValue::new("fd00::/16".parse().unwrap(), None).to_bytes(), Refusal::Overlap),
        ("node/n4", NodeValue::new("2001:db8:0:7::/64".parse().unwrap(), None).to_bytes(), Refusal::Loop),
        ("node/n1", NodeValue::new("fd00:0:9::/48".parse().unwrap(), None).to_bytes(), Refusal::TwoNodes),
    ];
    for (key, value, refusal) in cases {
        let mut store = Store::new();
        store.here(locator(SIR), 2, at(2, 1));
        store.here(sir(9), 2, at(2, 9));
        let whole = format!("/fatpath/v1/f/{key}");
        for is_event in [true, false] {
            let mut store = store.clone();
            let mut core = synced(&store);
            let event = store.put(&whole, value.clone());
            if is_event {
                core.events(second(1), &[event]);
            } else {
                core.request_look();
                look(&mut core, &store, second(1));
            }
            assert_eq!(core.operations(), [], "{key} {refusal:?}");
            assert_eq!(core.status().refused.into_iter().collect::<Vec<_>>(), [(refusal, 1)], "{key}");
            assert!(core.refused_keys()[0].0.contains(key), "{:?}", core.refused_keys());
            for now in [100, 700, 1400] {
                look(&mut core, &store, second(now));
                assert_eq!(core.operations(), [], "{key} {refusal:?}");
            }
        }
    }
}

#[test]
fn refused_value_becomes_good_when_its_node_comes() {
    let mut store = Store::new();
    let mut core = synced(&store);
    core.events(second(1), &[store.here(sir(1), 4, at(4, 1))]);
    assert_eq!((core.operations(), core.status().refused.len()), (vec![], 1));
    let value = NodeValue::new("fd00:0:4::/48".parse().unwrap(), None).to_bytes();
    core.events(second(2), &[store.put(&node_key("n4"), value)]);
    assert_eq!(core.operations(), [set(sir(1), None, at(4, 1))]);
    assert_eq!(core.status().refused.len(), 0);
}

#[test]
fn gateway_that_starts_again_gets_what_it_lacks() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    store.here(sir(2), 2, at(2, 2));
    let mut core = synced(&store);
    core.detach();
    core.events(second(1), &[store.here(sir(1), 3, at(3, 1))]);
    assert_eq!(core.operations(), [], "the gateway is gone");
    let routes = [("2001:db8::/48", Hop::Blackhole), ("fd00:0:2::/48", Hop::Via("fd99::2".parse().unwrap()))];
    let routes = routes.map(|(prefix, hop)| (main(prefix), hop)).to_vec();
    core.attach(second(2), &Dump { mappings: vec![(sir(1), target(at(2, 1)))], routes, ..Dump::default() });
    let want = [
        Op::Route { slot: main("fd00:0:3::/48"), old: None, new: Some(Hop::Via("fd99::3".parse().unwrap())) },
        set(sir(1), Some(at(2, 1)), at(3, 1)),
        set(sir(2), None, at(2, 2)),
    ];
    assert_eq!(core.operations(), want);
}

#[test]
fn mapping_of_others_stays_and_a_stray_one_goes_after_two_looks() {
    let store = Store::new();
    let mut core = synced(&store);
    let others = locator("2001:db9:0:1");
    let mappings = vec![(others, target(at(2, 1))), (sir(3), target(at(2, 3))), (at(1, 3), target(sir(3)))];
    core.attach(second(1), &Dump { mappings, ..Dump::default() });
    assert!(core.operations().iter().all(|op| !op.is_deletion()));
    assert!(look(&mut core, &store, second(11)));
    assert_eq!(core.operations(), [delete(sir(3), at(2, 3)), delete(at(1, 3), sir(3))]);
}

#[test]
fn mapping_of_a_refused_task_stays_without_saved_state() {
    let mut store = Store::new();
    store.put(&task_key(sir(3)), b"{".to_vec());
    let mut core = synced(&store);
    let mappings = vec![(sir(3), target(at(2, 3))), (at(1, 3), target(sir(3)))];
    core.attach(second(1), &Dump { mappings, ..Dump::default() });
    core.operations();
    for now in [11, 30, 611, 1300] {
        look(&mut core, &store, second(now));
        assert_eq!(core.operations(), []);
    }
    assert!(core.deadline() > Some(second(1300)), "no look after the other");
    store.delete(&task_key(sir(3)));
    for now in [2000, 2700] {
        look(&mut core, &store, second(now));
    }
    assert_eq!(core.operations().len(), 2);
}

#[test]
fn stray_mapping_stays_while_the_store_is_away() {
    let store = Store::new();
    let mut core = synced(&store);
    core.attach(second(1), &Dump { mappings: vec![(sir(3), target(at(2, 3)))], ..Dump::default() });
    core.operations();
    for now in [20, 200, 2000] {
        core.timeout(second(now));
        core.begin_look();
        assert_eq!(core.operations(), []);
    }
}

#[test]
fn operation_that_the_gateway_refuses_is_tried_again() {
    let mut store = Store::new();
    let mut core = synced(&store);
    core.events(second(1), &[store.here(sir(1), 2, at(2, 1))]);
    let ops = core.operations();
    core.refused(second(1), &ops[0]);
    assert_eq!((core.operations(), core.status().refused_by_gateway, core.deadline()), (vec![], 1, Some(second(11))));
    core.timeout(second(11));
    assert_eq!(core.operations(), ops);
    assert_eq!(core.status().refused_by_gateway, 0);
}

#[test]
fn saved_state_is_applied_before_the_store_answers() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut core = synced(&store);
    let moving = TaskValue::here("n2", at(2, 1)).moving("n1", at(1, 1)).to_bytes();
    core.events(second(1), &[store.put(&task_key(sir(1)), moving)]);
    let changes = core.take_unsaved().unwrap();
    assert_eq!(core.take_unsaved(), None);
    let mut next = agent();
    next.restore(Saved { history: changes.history, objects: changes.changed });
    assert_eq!(next.take_unsaved(), None);
    let ops = next.operations();
    assert!(ops.contains(&set(sir(1), None, at(2, 1))) && ops.contains(&set(at(1, 1), None, sir(1))), "{ops:?}");
    // The same store continues the history; another one does not.
    assert!(look(&mut next, &store, second(1)));
    assert_eq!((next.operations(), next.status().hold), (vec![], None));
    next.request_look();
    look(&mut next, &Store::default(), second(2));
    assert_eq!(next.status().hold, Some(Hold::NoMeta));
}

#[test]
fn saved_state_replaces_no_newer_mapping_of_the_gateway() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    store.here(sir(2), 2, at(2, 2));
    let mut core = synced(&store);
    let changes = core.take_unsaved().unwrap();
    store.here(sir(1), 3, at(3, 1));
    let mut next = agent();
    next.restore(Saved { history: changes.history, objects: changes.changed });
    next.attach(second(1), &Dump { mappings: vec![(sir(1), target(at(3, 1)))], ..Dump::default() });
    let ops = next.operations();
    assert!(ops.contains(&set(sir(2), None, at(2, 2))), "{ops:?}");
    assert!(ops.iter().all(|op| !matches!(op, Op::Mapping { old: Some(_), .. })), "{ops:?}");
    assert!(look(&mut next, &store, second(2)));
    assert_eq!(next.operations(), []);
    // The store knows better than the gateway.
    let mut next = agent();
    next.attach(second(1), &Dump { mappings: vec![(sir(1), target(at(2, 1)))], ..Dump::default() });
    next.operations();
    look(&mut next, &store, second(2));
    assert!(next.operations().contains(&set(sir(1), Some(at(2, 1)), at(3, 1))));
}

#[test]
fn clock_that_goes_back_is_ignored() {
    let mut store = Store::new();
    store.here(sir(1), 2, at(2, 1));
    let mut core = synced(&store);
    core.events(second(100), &[store.delete(&task_key(sir(1)))]);
    core.timeout(second(1));
    core.timeout(second(109));
    assert_eq!(core.operations(), []);
    core.timeout(second(110));
    assert_eq!(core.operations().len(), 1);
}

const RED: u32 = 10;

fn network_key(node: &str, vrf: &str, prefix: &str) -> String {
    Key::Network { node: node.to_owned(), vrf: vrf.to_owned(), prefix: prefix.parse().unwrap() }.text("f")
}

fn network(via: &str, metric: u32) -> Vec<u8> {
    NetworkValue::new(via.parse().unwrap(), metric).to_bytes()
}

fn red(prefix: &str, metric: u32) -> RouteSlot {
    RouteSlot { table: RED, prefix: prefix.parse().unwrap(), metric }
}

fn hop(via: &str) -> Option<Hop> {
    Some(Hop::Via(via.parse().unwrap()))
}

fn route(slot: RouteSlot, old: Option<Hop>, new: Option<Hop>) -> Op {
    Op::Route { slot, old, new }
}

/// Attaches a gateway that has the main routes, VRF red, and these routes.
fn attach_red(core: &mut Reconciler, now: Duration, routes: &[(RouteSlot, Hop)]) {
    let main = [(main("2001:db8::/48"), Hop::Blackhole)].into_iter();
    let others = [(2, "fd99::2"), (3, "fd99::3")];
    let others =
        others.map(|(node, via)| (RouteSlot::main(format!("fd00:0:{node}::/48").parse().unwrap()), hop(via).unwrap()));
    let routes = main.chain(others).chain(routes.iter().copied()).collect();
    core.attach(now, &Dump { routes, vrfs: vec![("red".to_owned(), RED)], ..Dump::default() });
}

#[test]
fn network_is_a_route_of_its_vrf_with_its_metric() {
    let mut store = Store::new();
    let mut core = synced(&store);
    attach_red(&mut core, second(1), &[]);
    assert_eq!(core.operations(), []);
    let slot = red("10.1.0.0/16", 100);
    let key = network_key("n2", "red", "10.1.0.0/16");
    core.events(second(1), &[store.put(&key, network("10.9.0.2", 100))]);
    assert_eq!(core.operations(), [route(slot, None, hop("10.9.0.2"))]);
    // A backup is a route beside it, and one with the same metric is of the first node by name.
    let other = network_key("n3", "red", "10.1.0.0/16");
    core.events(second(2), &[store.put(&other, network("10.9.0.3", 200))]);
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 200), None, hop("10.9.0.3"))]);
    core.events(second(3), &[store.put(&other, network("10.9.0.3", 100))]);
    assert_eq!(core.operations(), [], "the former metric's route waits");
    core.timeout(second(13));
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 200), hop("10.9.0.3"), None)]);
    // A deletion waits for ten seconds, and then the other node has the route.
    core.events(second(20), &[store.delete(&key)]);
    core.timeout(second(29));
    assert_eq!(core.operations(), []);
    core.timeout(second(30));
    assert_eq!(core.operations(), [route(slot, hop("10.9.0.2"), hop("10.9.0.3"))]);
    // The route of two nodes is the other one's when the first has another metric.
    core.events(second(31), &[store.put(&key, network("10.9.0.2", 100))]);
    assert_eq!(core.operations(), [route(slot, hop("10.9.0.3"), hop("10.9.0.2"))]);
    core.events(second(32), &[store.put(&key, network("10.9.0.2", 300))]);
    let want = [route(slot, hop("10.9.0.2"), hop("10.9.0.3")), route(red("10.1.0.0/16", 300), None, hop("10.9.0.2"))];
    assert_eq!(core.operations(), want);
    core.events(second(33), &[store.delete(&key)]);
    core.timeout(second(43));
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 300), hop("10.9.0.2"), None)]);
    // One that a snapshot lacks is looked for once more.
    store.delete(&other);
    core.request_look();
    assert!(look(&mut core, &store, second(50)));
    core.timeout(second(59));
    assert_eq!(core.operations(), []);
    assert!(look(&mut core, &store, second(60)));
    assert_eq!(core.operations(), [route(slot, hop("10.9.0.3"), None)]);
}

#[test]
fn route_stays_until_the_gateway_takes_the_new_metric() {
    let mut store = Store::new();
    let mut core = synced(&store);
    attach_red(&mut core, second(1), &[]);
    let (key, other) = (network_key("n2", "red", "10.1.0.0/16"), network_key("n3", "red", "10.1.0.0/16"));
    let (old, new) = (red("10.1.0.0/16", 100), red("10.1.0.0/16", 50));
    let events = [store.put(&key, network("10.9.0.2", 100)), store.put(&other, network("10.9.0.3", 200))];
    core.events(second(1), &events);
    assert_eq!(core.operations().len(), 2);
    // The gateway does not reach the next hop of the new metric.
    core.events(second(2), &[store.put(&key, network("10.77.0.2", 50))]);
    let add = route(new, None, hop("10.77.0.2"));
    assert_eq!(core.operations(), [add]);
    core.refused(second(2), &add);
    for now in 3..120 {
        core.timeout(second(now));
        for op in core.operations() {
            assert_eq!(op, add, "at {now}");
            core.refused(second(now), &op);
        }
    }
    core.timeout(second(132));
    assert_eq!(core.operations(), [add]);
    core.timeout(second(133));
    assert_eq!((core.operations(), core.status().withdrawals), (vec![], 1));
    core.timeout(second(150));
    assert_eq!(core.operations(), [route(old, hop("10.9.0.2"), None)]);
    // The same of routes that an agent finds when it starts: one of the network has to be there.
    let mut core = Reconciler::new(settings());
    attach_red(&mut core, second(0), &[(old, hop("10.9.0.2").unwrap())]);
    assert!(look(&mut core, &store, second(0)));
    let refuse = |core: &mut Reconciler, now: Duration| {
        for op in core.operations() {
            assert!(!op.is_deletion(), "{op:?} at {now:?}");
            core.refused(now, &op);
        }
    };
    refuse(&mut core, second(0));
    for now in 1..60 {
        look(&mut core, &store, second(now));
        refuse(&mut core, second(now));
    }
    let end = (60..100).find_map(|now| {
        core.timeout(second(now));
        core.operations().into_iter().find(Op::is_deletion)
    });
    assert_eq!(end, Some(route(old, hop("10.9.0.2"), None)));
}

#[test]
fn network_of_missing_vrf_waits_for_it_and_is_named() {
    let mut store = Store::new();
    store.put(&network_key("n2", "red", "10.1.0.0/16"), network("10.9.0.2", 100));
    store.put(&network_key("n2", "blue", "fd0a::/32"), network("fd0b::2", 7));
    let mut core = synced(&store);
    assert_eq!(core.missing_vrfs(), ["red", "blue"]);
    attach_red(&mut core, second(1), &[]);
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 100), None, hop("10.9.0.2"))]);
    assert_eq!((core.missing_vrfs(), core.status().networks), (vec!["blue".to_owned()], 2));
    // The VRF is made anew with another table: routes in the former one are none of its own.
    core.detach();
    let dump = Dump { vrfs: vec![("red".to_owned(), 30), ("main".to_owned(), 254)], ..Dump::default() };
    let routes = vec![(red("10.1.0.0/16", 100), hop("10.9.0.2").unwrap())];
    core.attach(second(2), &Dump { routes, ..dump });
    let ops = core.operations();
    let of_vrfs: Vec<_> =
        ops.iter().filter(|op| matches!(op, Op::Route { slot, .. } if slot.table != RouteSlot::MAIN)).collect();
    let slot = RouteSlot { table: 30, ..red("10.1.0.0/16", 100) };
    assert_eq!(of_vrfs, [&route(slot, None, hop("10.9.0.2"))]);
    for now in [600, 610, 620] {
        core.request_look();
        look(&mut core, &store, second(now));
        core.timeout(second(now));
        assert_eq!(core.operations(), [], "nothing goes in a table that no VRF has");
    }
}

#[test]
fn bad_network_is_named_and_the_good_value_stays() {
    let mut store = Store::new();
    let key = network_key("n2", "red", "10.1.0.0/16");
    store.put(&key, network("10.9.0.2", 100));
    let mut core = synced(&store);
    attach_red(&mut core, second(1), &[]);
    assert_eq!(core.operations().len(), 1);
    for (value, why) in [
        (network("fd00::1", 100), Refusal::Malformed),
        (network("10.9.0.3", 0), Refusal::Malformed),
        (network("224.0.0.1", 1), Refusal::Malformed),
        (network("255.255.255.255", 1), Refusal::Malformed),
        (b"{\"v\":2}".to_vec(), Refusal::Version),
    ] {
        core.events(second(2), &[store.put(&key, value)]);
        assert_eq!(core.operations(), []);
        assert_eq!(core.refused_keys(), [("vrf/n2/red/10.1.0.0/16".to_owned(), why)]);
    }
    core.events(second(3), &[store.put(&key, network("10.9.0.4", 100))]);
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 100), hop("10.9.0.2"), hop("10.9.0.4"))]);
    assert_eq!(core.refused_keys(), []);
    let of_link = network_key("n2", "red", "fd0a::/32");
    core.events(second(4), &[store.put(&of_link, network("fe80::1", 100))]);
    assert_eq!(core.operations(), []);
    core.events(second(5), &[store.put(&of_link, network("fd0b::1", 100))]);
    assert_eq!(core.operations(), [route(red("fd0a::/32", 100), None, hop("fd0b::1"))]);
}

#[test]
fn network_of_this_node_has_no_route_to_others() {
    let mut store = Store::new();
    store.put(&network_key("n2", "red", "10.1.0.0/16"), network("10.9.0.2", 100));
    store.put(&network_key("n1", "red", "10.2.0.0/16"), network("10.9.0.1", 100));
    store.put(&network_key("n2", "red", "10.2.0.0/16"), network("10.9.0.2", 100));
    let mut settings = settings();
    settings.networks = vec![("red".to_owned(), "10.1.0.0/16".parse().unwrap())];
    let mut core = Reconciler::new(settings);
    attach_red(&mut core, second(0), &[]);
    assert!(look(&mut core, &store, second(0)));
    // The key of another agent with this node's name gives and takes nothing.
    assert_eq!(core.operations(), [route(red("10.2.0.0/16", 100), None, hop("10.9.0.2"))]);
}

#[test]
fn mass_withdrawal_of_networks_is_held_also_beside_many_tasks() {
    let mut store = Store::new();
    for number in 0..3000 {
        store.here(sir(number), 2, at(2, number));
    }
    let prefix = |number: usize| format!("10.{}.{}.0/24", number / 256, number % 256);
    for number in 0..300 {
        store.put(&network_key("n2", "red", &prefix(number)), network("10.9.0.2", 100));
    }
    let mut core = synced(&store);
    attach_red(&mut core, second(1), &[]);
    core.operations();
    let gone: Vec<_> = (0..150).map(|number| store.delete(&network_key("n2", "red", &prefix(number)))).collect();
    core.events(second(2), &gone);
    core.timeout(second(20));
    assert_eq!(core.operations(), []);
    assert_eq!((core.status().hold, core.status().withdrawals), (Some(Hold::Mass), 150));
    core.approve(second(30));
    assert!(look(&mut core, &store, second(30)));
    core.timeout(second(31));
    assert_eq!(core.operations().len(), 150);
    // Nodes that change their metrics take nothing away.
    let mut changed = Vec::new();
    for number in 150..300 {
        changed.push(store.put(&network_key("n2", "red", &prefix(number)), network("10.9.0.2", 50)));
    }
    core.events(second(40), &changed);
    assert_eq!(core.operations().len(), 150);
    core.timeout(second(50));
    assert_eq!((core.status().hold, core.operations().len()), (None, 150));
}

#[test]
fn mass_of_networks_holds_no_tasks() {
    let mut store = Store::new();
    for number in 0..3 {
        store.here(sir(number), 2, at(2, number));
    }
    let key = |number: usize| network_key("n2", "red", &format!("10.1.{number}.0/24"));
    for number in 0..200 {
        store.put(&key(number), network("10.9.0.2", 100));
    }
    let mut core = synced(&store);
    attach_red(&mut core, second(1), &[]);
    core.operations();
    let gone: Vec<_> = (0..150).map(|number| store.delete(&key(number))).collect();
    core.events(second(2), &gone);
    assert_eq!(core.status().hold, Some(Hold::Mass));
    // A locator is used again, and a task goes.
    core.events(second(3), &[store.delete(&task_key(sir(0))), store.delete(&task_key(sir(1)))]);
    core.events(second(4), &[store.here(sir(7), 2, at(2, 0))]);
    let ops = core.operations();
    assert!(ops.contains(&set(sir(7), None, at(2, 0))), "{ops:?}");
    assert_eq!(core.deadline(), Some(second(13)));
    core.timeout(second(13));
    assert_eq!(core.operations(), [delete(sir(1), at(2, 1))]);
    assert_eq!((core.status().hold, core.status().withdrawals), (Some(Hold::Mass), 150));
    // An agent that starts again does not know of which kind the mass was: it holds all until its first look.
    let changes = core.take_unsaved().unwrap();
    let mut next = agent();
    next.restore(Saved { history: changes.history, objects: changes.changed });
    assert_eq!(next.status().hold, Some(Hold::Mass));
    next.events(second(20), &[store.delete(&task_key(sir(2)))]);
    next.timeout(second(40));
    assert!(next.operations().iter().all(|op| !op.is_deletion()));
}

#[test]
fn foreign_key_is_cut_and_escaped() {
    let mut store = Store::new();
    let long = format!("/fatpath/v1/f/\u{1b}[2J\n{}", "x".repeat(100_000));
    store.put(&long, b"{}".to_vec());
    let mut core = synced(&store);
    let named = core.refused_keys();
    assert_eq!(named.len(), 1);
    assert!(named[0].0.starts_with("/fatpath/v1/f/\\u{1b}[2J\\nxxx") && named[0].0.len() < 300, "{named:?}");
    core.events(second(1), &[store.delete(&long)]);
    assert_eq!(core.refused_keys(), []);
}

#[test]
fn network_outlives_the_agent_and_an_emptied_store() {
    let mut store = Store::new();
    store.put(&network_key("n2", "red", "10.1.0.0/16"), network("10.9.0.2", 100));
    let mut core = synced(&store);
    let changes = core.take_unsaved().unwrap();
    let saved = Saved { history: changes.history, objects: changes.changed };
    let mut core = Reconciler::new(settings());
    core.restore(saved);
    attach_red(&mut core, second(0), &[]);
    assert_eq!(core.operations(), [route(red("10.1.0.0/16", 100), None, hop("10.9.0.2"))]);
    for now in [0, 20, 40] {
        core.request_look();
        look(&mut core, &Store { revision: 1, ..Store::default() }, second(now));
        core.timeout(second(now));
        assert_eq!(core.operations(), []);
    }
    assert_eq!(core.status().hold, Some(Hold::NoMeta));
}

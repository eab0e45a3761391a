//! A store in memory, with what can go wrong with one.

use std::collections::BTreeMap;

use fleet::{Event, Key, KeyValue, MetaValue, Snapshot};

pub(crate) const FLEET: &str = "f";

/// Keys with their values and `mod_revision`s, as etcd has them.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    pub(crate) revision: u64,
    kvs: BTreeMap<String, (Vec<u8>, u64)>,
    log: Vec<Event>,
    /// Events up to this revision are compacted.
    compacted: u64,
}

impl Store {
    /// Store without a key.
    pub(crate) const fn empty() -> Self {
        Self { revision: 1, kvs: BTreeMap::new(), log: Vec::new(), compacted: 0 }
    }

    /// Store with `meta` of this identity.
    pub(crate) fn new(uuid: &str) -> Self {
        let mut store = Self::empty();
        store.put(&Key::Meta, MetaValue::new(uuid.to_owned()).to_bytes());
        store
    }

    pub(crate) fn put(&mut self, key: &Key, value: Vec<u8>) -> Event {
        self.put_raw(&key.text(FLEET), value)
    }

    pub(crate) fn put_raw(&mut self, key: &str, value: Vec<u8>) -> Event {
        self.revision += 1;
        self.kvs.insert(key.to_owned(), (value.clone(), self.revision));
        self.commit(key, Some(value))
    }

    pub(crate) fn delete(&mut self, key: &str) -> Option<Event> {
        self.kvs.remove(key)?;
        self.revision += 1;
        Some(self.commit(key, None))
    }

    fn commit(&mut self, key: &str, value: Option<Vec<u8>>) -> Event {
        let event = Event { key: key.as_bytes().to_vec(), value, revision: self.revision };
        self.log.push(event.clone());
        event
    }

    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.kvs.get(key).map(|(value, _)| &value[..])
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        self.kvs.keys().cloned().collect()
    }

    pub(crate) fn compact(&mut self) {
        self.compacted = self.revision;
        self.log.clear();
    }

    /// Events from a revision on; `None` if they are compacted, or the store has not come so far.
    pub(crate) fn since(&self, revision: u64) -> Option<Vec<Event>> {
        if revision <= self.compacted || revision > self.revision + 1 {
            return None;
        }
        Some(self.log.iter().filter(|event| event.revision >= revision).cloned().collect())
    }

    pub(crate) fn snapshot(&self, known: u64) -> Snapshot {
        let kvs = self.kvs.iter().map(|(key, (value, revision))| KeyValue {
            key: key.as_bytes().to_vec(),
            value: value.clone(),
            revision: *revision,
        });
        Snapshot { revision: self.revision, known, kvs: kvs.collect() }
    }
}

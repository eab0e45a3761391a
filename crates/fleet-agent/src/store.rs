//! The store as the agent has it: one connection to one member at a time, and another member after a failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fleet::{Event, Key, KeyValue, NodeValue, Settings, Snapshot};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};

use crate::etcd::{CallError, Endpoint, Etcd, MemberStatus, WatchAnswer, Write};
use crate::random::Random;

/// Time between two requests for a sign of life, and the silence after which the next member is tried.
const PROGRESS: Duration = Duration::from_secs(2);
const SILENCE: Duration = Duration::from_secs(5);

/// Time for which a member may lag behind others. After that the store has been restored, or emptied.
const LAG: Duration = Duration::from_secs(1);

const GONE_BACK: &str = "the store's revision has gone back";

/// Shortest and longest time to the next attempt.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(30);

/// Life of the lease of `alive/NODE`, and the time between two renewals.
const LEASE: Duration = Duration::from_secs(30);
const RENEWAL: Duration = Duration::from_secs(10);

/// Writes of one transaction: etcd's `--max-txn-ops` is 128.
const MAX_WRITES: usize = 64;

/// Longest time until a read snapshot is passed on.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(120);

/// Message to the agent.
#[derive(Debug)]
pub(crate) enum FromStore {
    /// A member answers.
    Connected(String),
    /// No member is connected, for a reason.
    Disconnected(String),
    /// Reason for which the store refuses this node's keys; `None` if it takes them.
    Denied(Option<String>),
    /// A whole snapshot, as requested.
    Snapshot(Snapshot),
    /// Changes.
    Events(Vec<Event>),
    /// A sign of life: changes up to this revision have been passed on.
    Answer(u64),
    /// State of the member.
    Member(MemberStatus),
    /// Changes may have been lost: a snapshot is to be requested.
    Doubt,
}

/// Request for a snapshot, with the revision that the agent knows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Look {
    pub(crate) known: u64,
}

/// Value of `alive/NODE`.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct AliveValue {
    pub(crate) v: u64,
    /// Number of this run of the agent.
    pub(crate) run: String,
    /// Revision that the agent had seen when it wrote the value.
    pub(crate) seen: u64,
}

/// Keys that this node's agent writes.
#[derive(Clone, Debug)]
pub(crate) struct OwnKeys {
    pub(crate) node: NodeValue,
    /// Keys of networks with their values.
    pub(crate) networks: BTreeMap<String, Vec<u8>>,
}

/// Keys that one watch has, with the revision from which it goes on.
#[derive(Clone, Debug)]
struct Watched {
    key: String,
    is_prefix: bool,
    from: u64,
}

/// The store of one agent.
#[derive(Debug)]
pub(crate) struct Store {
    endpoints: Vec<Endpoint>,
    settings: Settings,
    /// This node's keys; `None` if the agent writes none.
    own: Option<OwnKeys>,
    to_agent: Sender<FromStore>,
    looks: Receiver<Look>,
    watched: Vec<Watched>,
    /// Watches have a revision to go on from.
    has_position: bool,
    /// Look that no member has answered yet.
    pending: Option<Look>,
    run: String,
    random: Random,
    /// Reason for which the store refuses this node's keys.
    denied: Option<String>,
}

/// End of a session.
#[derive(Debug)]
enum SessionEnd {
    /// The agent has ended.
    Closed,
    /// The member failed.
    Failed(CallError),
    /// The watches have to begin anew, at a new snapshot.
    Stale(&'static str),
}

impl From<CallError> for SessionEnd {
    fn from(err: CallError) -> Self {
        Self::Failed(err)
    }
}

impl Store {
    pub(crate) fn new(
        mut endpoints: Vec<Endpoint>,
        settings: Settings,
        own: Option<OwnKeys>,
        to_agent: Sender<FromStore>,
        looks: Receiver<Look>,
    ) -> Self {
        let mut random = Random::new();
        random.shuffle(&mut endpoints);
        let fleet = &settings.fleet;
        let ranges = settings.domains.iter().map(|domain| (Key::domain(fleet, &domain.name), true));
        let of_fleet = [(Key::Meta.text(fleet), false), (Key::nodes(fleet), true), (Key::networks(fleet), true)];
        let ranges = of_fleet.into_iter().chain(ranges);
        let watched = ranges.map(|(key, is_prefix)| Watched { key, is_prefix, from: 0 }).collect();
        let run = format!("{:016x}", random.bits());
        let (has_position, pending, denied) = (false, None, None);
        Self { endpoints, settings, own, to_agent, looks, watched, has_position, pending, run, random, denied }
    }

    /// Runs until the agent ends.
    pub(crate) async fn run(mut self) {
        let mut backoff = FIRST_BACKOFF;
        let mut last_failure = String::new();
        for at in (0..self.endpoints.len()).cycle() {
            let endpoint = self.endpoints[at].clone();
            let mut has_worked = false;
            let why = match self.session(&endpoint, &mut has_worked).await {
                Ok(never) => match never {},
                Err(SessionEnd::Closed) => return,
                Err(SessionEnd::Stale(why)) => {
                    tracing::info!("{endpoint}: {why}: reading all keys");
                    self.has_position = false;
                    if self.to_agent.send(FromStore::Doubt).await.is_err() {
                        return;
                    }
                    format!("{endpoint}: {why}")
                }
                Err(SessionEnd::Failed(err)) => {
                    let failure = format!("{endpoint}: {err}");
                    if has_worked || failure != last_failure {
                        tracing::warn!("{failure}");
                    }
                    last_failure.clone_from(&failure);
                    failure
                }
            };
            if self.to_agent.send(FromStore::Disconnected(why)).await.is_err() {
                return;
            }
            backoff = if has_worked { FIRST_BACKOFF } else { (backoff * 2).min(LAST_BACKOFF) };
            sleep(self.random.below(backoff)).await;
        }
    }

    /// One connection, until it fails.
    async fn session(
        &mut self,
        endpoint: &Endpoint,
        has_worked: &mut bool,
    ) -> Result<std::convert::Infallible, SessionEnd> {
        let etcd = Etcd::connect(endpoint).await?;
        let (mut watch, mut answers) = etcd.watch().await?;
        let mut lease = Lease::default();
        if self.has_position {
            self.begin_watches(&mut watch)?;
        }
        let mut progress = interval(PROGRESS);
        progress.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut renewal = interval(RENEWAL);
        renewal.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_answer = Instant::now();
        // Time of the first answer of a member whose revision is lower than one that was seen.
        let mut behind_since = None;
        loop {
            if let Some(look) = self.pending {
                let snapshot = timeout(SNAPSHOT_LIMIT, self.read(&etcd, look)).await;
                let snapshot =
                    snapshot.map_err(|_| CallError::Lost("reading all keys takes too long".to_owned()))??;
                self.note_works(endpoint, has_worked).await?;
                self.pending = None;
                let revision = snapshot.revision;
                self.send(FromStore::Snapshot(snapshot)).await?;
                // Changes that came meanwhile may come once more after a reconnect, which the agent ignores.
                self.watched.iter_mut().for_each(|watched| watched.from = revision + 1);
                if !self.has_position {
                    self.has_position = true;
                    self.begin_watches(&mut watch)?;
                }
                last_answer = Instant::now();
            }
            tokio::select! {
                look = self.looks.recv() => self.pending = Some(look.ok_or(SessionEnd::Closed)?),
                answer = answers.next() => {
                    last_answer = Instant::now();
                    match answer? {
                        WatchAnswer::Cancelled { id, reason } => {
                            // Other watches may have begun; the next attempt waits all the same.
                            *has_worked = false;
                            return Err(self.cancelled(id, &reason, etcd.user()));
                        }
                        WatchAnswer::Compacted => return Err(SessionEnd::Stale("changes are compacted")),
                        WatchAnswer::Events { id, events, revision, is_whole } => {
                            self.note_works(endpoint, has_worked).await?;
                            let is_behind = events.is_empty() && self.is_behind(revision);
                            behind_since = behind_since.or(Some(last_answer)).filter(|_| is_behind);
                            if behind_since.is_some_and(|since| last_answer - since >= LAG) {
                                return Err(SessionEnd::Stale(GONE_BACK));
                            }
                            if events.is_empty() {
                                self.send(FromStore::Answer(revision)).await?;
                            }
                            self.pass(id, events, is_whole).await?;
                        }
                    }
                }
                _ = progress.tick() => if self.has_position { watch.request_progress()? },
                _ = renewal.tick() => {
                    self.renew(&etcd, &mut lease).await?;
                    // Nothing follows from a member that does not tell its state.
                    if let Ok(status) = etcd.status().await {
                        self.send(FromStore::Member(status)).await?;
                    }
                }
                () = sleep_until(last_answer + SILENCE) => {
                    if behind_since.is_some() {
                        return Err(SessionEnd::Stale(GONE_BACK));
                    }
                    if self.has_position {
                        return Err(CallError::Lost("no sign of life for five seconds".to_owned()).into());
                    }
                    last_answer = Instant::now();
                }
            }
        }
    }

    async fn send(&self, message: FromStore) -> Result<(), SessionEnd> {
        self.to_agent.send(message).await.map_err(|_| SessionEnd::Closed)
    }

    async fn note_works(&self, endpoint: &Endpoint, has_worked: &mut bool) -> Result<(), SessionEnd> {
        if !*has_worked {
            *has_worked = true;
            self.send(FromStore::Connected(endpoint.to_string())).await?;
        }
        Ok(())
    }

    fn begin_watches(&self, watch: &mut crate::etcd::Watch) -> Result<(), SessionEnd> {
        for (id, watched) in (1..).zip(&self.watched) {
            watch.create(id, &watched.key, watched.is_prefix, watched.from)?;
        }
        Ok(())
    }

    /// Failure of a watch, by the names of its keys and of this program's user.
    fn cancelled(&self, id: i64, reason: &str, user: Option<&str>) -> SessionEnd {
        let at = usize::try_from(id - 1).ok().and_then(|at| self.watched.get(at));
        let keys = at.map_or_else(|| Key::root(&self.settings.fleet), |watched| watched.key.clone());
        let user = user.map_or_else(|| "no user".to_owned(), |user| format!("user {user}"));
        CallError::Refused { code: 0, text: format!("{reason}: {user}, watch {keys}") }.into()
    }

    /// Whether a member's revision is lower than one that was seen.
    fn is_behind(&self, revision: u64) -> bool {
        let seen = self.watched.iter().map(|watched| watched.from).max().unwrap_or(0).saturating_sub(1);
        revision != 0 && revision < seen
    }

    async fn pass(&mut self, id: i64, events: Vec<Event>, is_whole: bool) -> Result<(), SessionEnd> {
        let Some(last) = events.iter().map(|event| event.revision).max() else { return Ok(()) };
        let at = usize::try_from(id - 1).ok();
        if let Some(watched) = at.and_then(|at| self.watched.get_mut(at)) {
            watched.from = watched.from.max(next_revision(last, is_whole));
        }
        self.send(FromStore::Events(events)).await
    }

    /// Reads all keys at one revision.
    async fn read(&self, etcd: &Etcd, look: Look) -> Result<Snapshot, CallError> {
        let mut snapshot = Snapshot { known: look.known, ..Snapshot::default() };
        for watched in &self.watched {
            let (found, revision) = if watched.is_prefix {
                etcd.prefix(&watched.key, snapshot.revision).await?
            } else {
                let (found, revision) = etcd.get(&watched.key).await?;
                (found.into_iter().collect(), revision)
            };
            snapshot.revision = revision;
            snapshot.kvs.extend(found.into_iter().map(|found| KeyValue {
                key: found.key,
                value: found.value,
                revision: found.revision,
            }));
        }
        Ok(snapshot)
    }

    /// Keeps `alive/NODE`, and writes `node/NODE` if the store lacks it. A refusal is logged, and changes nothing else.
    async fn renew(&mut self, etcd: &Etcd, lease: &mut Lease) -> Result<(), SessionEnd> {
        let Some(own) = &self.own else { return Ok(()) };
        let written = match self.try_renew(etcd, lease, &own.node).await {
            Ok(()) if lease.id.is_none() || lease.has_networks => Ok(()),
            Ok(()) => {
                let written = self.write_networks(etcd, &own.networks).await;
                written.map(|are_written| lease.has_networks = are_written)
            }
            Err(err) => {
                *lease = Lease::default();
                Err(err)
            }
        };
        let denied = match written {
            Ok(()) => None,
            Err(err @ CallError::Refused { .. }) => Some(err.to_string()),
            Err(err) => return Err(err.into()),
        };
        if denied != self.denied {
            if let Some(why) = &denied {
                tracing::warn!("this node's keys: {why}");
            }
            self.denied.clone_from(&denied);
            self.send(FromStore::Denied(denied)).await?;
        }
        Ok(())
    }

    /// Makes the keys of this node's networks those of its file. Returns whether they are.
    async fn write_networks(&self, etcd: &Etcd, own: &BTreeMap<String, Vec<u8>>) -> Result<bool, CallError> {
        let prefix = Key::networks_of(&self.settings.fleet, &self.settings.node);
        let (found, _) = etcd.prefix(&prefix, 0).await?;
        let mut writes = Vec::new();
        let mut known = BTreeSet::new();
        for found in found {
            let Ok(key) = String::from_utf8(found.key) else { continue };
            let value = own.get(&key);
            if value != Some(&found.value) {
                writes.push(Write { key: key.clone(), value: value.cloned(), expected: Some(found.revision) });
            }
            known.insert(key);
        }
        let new = own.iter().filter(|(key, _)| !known.contains(*key));
        writes.extend(new.map(|(key, value)| Write {
            key: key.clone(),
            value: Some(value.clone()),
            expected: Some(0),
        }));
        // Additions first: a network that changes its form is never without a key.
        writes.sort_by_key(|write| write.value.is_none());
        let mut are_written = true;
        for some in writes.chunks(MAX_WRITES) {
            are_written &= etcd.write(some, 0).await?;
        }
        Ok(are_written)
    }

    async fn try_renew(&self, etcd: &Etcd, lease: &mut Lease, own: &NodeValue) -> Result<(), CallError> {
        if let Some(id) = lease.id {
            if etcd.renew(id).await? {
                return Ok(());
            }
            tracing::warn!("the lease of this node has ended: making another one");
            *lease = Lease::default();
        }
        let fleet = &self.settings.fleet;
        let alive = Key::Alive(self.settings.node.clone()).text(fleet);
        let node = Key::Node(self.settings.node.clone()).text(fleet);
        let (other, _) = etcd.get(&alive).await?;
        let run = other.as_ref().and_then(|found| serde_json::from_slice::<AliveValue>(&found.value).ok());
        if other.is_some() && run.is_none_or(|alive| alive.run != self.run) {
            // Its lease ends within 30 seconds if it is this node's former agent.
            tracing::info!("{alive} is another agent's, of this node or of one with the same name");
            return Ok(());
        }
        let (found, revision) = etcd.get(&node).await?;
        let value = own.to_bytes();
        if found.as_ref().is_none_or(|found| found.value != value) {
            let expected = Some(found.map_or(0, |found| found.revision));
            etcd.write(&[Write { key: node, value: Some(value), expected }], 0).await?;
        }
        let id = etcd.grant(LEASE).await?;
        let value = AliveValue { v: 1, run: self.run.clone(), seen: revision };
        let value = Some(serde_json::to_vec(&value).unwrap_or_default());
        if etcd
            .write(&[Write { key: alive, value, expected: Some(other.map_or(0, |found| found.revision)) }], id)
            .await?
        {
            *lease = Lease { id: Some(id), has_networks: false };
        }
        Ok(())
    }
}

/// Revision from which a watch goes on. If a part of the last one is missing, that is passed on once more, which the agent ignores.
const fn next_revision(last: u64, is_whole: bool) -> u64 {
    if is_whole { last + 1 } else { last }
}

/// Lease of `alive/NODE`, while it exists.
#[derive(Debug, Default)]
struct Lease {
    id: Option<i64>,
    /// Keys of this node's networks have been written since.
    has_networks: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_repeats_a_revision_of_which_a_part_is_missing() {
        assert_eq!((next_revision(7, true), next_revision(7, false)), (8, 7));
    }
}

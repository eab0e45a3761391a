//! The database of security policies (RFC 4301 §4.4.1).
//!
//! Policies of one direction are ordered by priority, and among equals by age, the oldest first; specificity of the
//! selector does not count (Linux `xfrm_policy_lookup`).

mod index;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::time::Duration;

use base::Instant;

use crate::events::{Event, Events, PolicyExpired};
use crate::hash_index::HashIndex;
use crate::timers::{Timer, Timers};
use index::{Map, MatchKey, Shapes};
use xfrm::{Action, ConfigError, Dir, Flowi, PolicyConfig, PolicyKey, PortMask};

/// Time from a soft limit to its next report (Linux `XFRM_KM_TIMEOUT`).
const NOTIFY_AGAIN: Duration = Duration::from_secs(30);

/// Time from a report of a policy's use to the first shard to the next one.
const TELL_AGAIN: Duration = Duration::from_secs(1);

/// Number of a policy; reused after the policy is removed.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PolicyId(u32);

/// The policies of a node.
#[derive(Debug, Default)]
pub struct Spd {
    slots: Vec<Option<Box<Policy>>>,
    free: Vec<PolicyId>,
    /// Policies by direction, in order of precedence.
    order: [BTreeMap<Order, PolicyId>; 3],
    /// Policies in the order of their last addition or replacement.
    by_arrival: BTreeMap<u64, PolicyId>,
    /// By direction and family.
    tables: [[Table; 2]; 3],
    hasher: foldhash::fast::RandomState,
    defaults: [Action; 3],
    /// Policies that take the place of those with their keys when these expire.
    fallbacks: HashMap<PolicyKey, PolicyConfig>,
    timers: Timers<PolicyId>,
    /// Number of changes that may alter an answer: earlier cached answers are invalid.
    pub(crate) changes: u64,
    last_index: u32,
    born: u64,
    arrived: u64,
}

/// Order of a policy among others: the smallest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Order {
    priority: u32,
    /// Number of policies that were added before it.
    born: u64,
}

/// Policies of one direction and family.
#[derive(Debug, Default)]
struct Table {
    shapes: Shapes,
    /// Policies by the hash of their keys.
    policies: HashIndex,
    doubtful_shapes: Shapes,
    /// Policies that do not pass packets in clear and whose selector a later fragment may match.
    doubtful: Map<MatchKey, BTreeSet<Order>>,
}

/// A policy, with its number.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Index that it is shown with; kept when it is replaced. Its lowest three bits are the direction.
    pub index: u32,
    /// Configuration.
    pub config: PolicyConfig,
    order: Order,
    /// Number of policies that were added or replaced before it.
    arrived: u64,
    added: Option<Instant>,
    used: Option<Instant>,
    /// Whether it ends when it is not used.
    ends_idle: bool,
    /// Time of the last use that the first shard was told.
    told: Option<Instant>,
    timer: Timer,
}

impl Policy {
    /// Number of policies that were added or replaced before it.
    pub(crate) const fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Time of its addition, or of the first timer call after it.
    pub const fn added(&self) -> Option<Instant> {
        self.added
    }

    /// Time of its last use.
    pub const fn used(&self) -> Option<Instant> {
        self.used
    }

    fn key(&self) -> MatchKey {
        let PolicyConfig { selector, mark, if_id, .. } = &self.config;
        MatchKey::new(selector, *mark, *if_id)
    }

    /// Tells whether `flow` matches its selector.
    #[inline]
    fn is_for(&self, flow: &Flowi) -> bool {
        let PolicyConfig { selector, mark, if_id, .. } = &self.config;
        *if_id == flow.if_id && mark.matches(flow.mark) && selector.matches(flow)
    }

    /// Key of the look-up for fragments, if it needs one.
    fn doubtful_key(&self) -> Option<MatchKey> {
        let PolicyConfig { selector, mark, if_id, .. } = &self.config;
        let hidden = selector.sport.mask != 0
            || selector.dport.mask != 0
            || !selector.dst.is_ipv4() && selector.protocol.is_some();
        (hidden && !self.config.allows_clear()).then(|| MatchKey::of_fragments(selector, *mark, *if_id))
    }

    pub(crate) fn expired(&self, hard: bool) -> Event {
        Event::PolicyExpired(PolicyExpired {
            hard,
            index: self.index,
            key: self.config.key(),
            request: self.config.request.clone(),
        })
    }
}

impl Spd {
    /// Adds a policy, behind those of its priority.
    ///
    /// # Errors
    /// The first invalid value; [`ConfigError::Exists`] when its direction has its selector already for its mark and
    /// interface, with whatever priority.
    pub fn add(&mut self, config: PolicyConfig) -> Result<PolicyId, ConfigError> {
        config.check()?;
        if self.find(&config.key()).is_some() {
            return Err(ConfigError::Exists);
        }
        self.last_index = self.last_index.wrapping_add(8).max(8);
        let index = self.last_index | config.dir as u32;
        let born = self.next_born();
        Ok(self.insert(index, born, config))
    }

    /// Replaces the policy of that key, or adds one; a replaced one keeps its index, and its place if its priority
    /// stays.
    ///
    /// # Errors
    /// The first invalid value; the old policy stays.
    pub fn update(&mut self, config: PolicyConfig) -> Result<PolicyId, ConfigError> {
        config.check()?;
        let Some(old) = self.remove(&config.key()) else { return self.add(config) };
        let born = if old.order.priority == config.priority { old.order.born } else { self.next_born() };
        Ok(self.insert(old.index, born, config))
    }

    /// Removes a policy; `None` when there is none.
    pub fn remove(&mut self, key: &PolicyKey) -> Option<Box<Policy>> {
        self.take(self.find(key)?)
    }

    /// Sets the policy that takes the place of the one with its key at once when that expires, so that no packet passes in clear
    /// in between.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn set_fallback(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        config.check()?;
        self.fallbacks.insert(canonical_key(config.key()), config);
        Ok(())
    }

    /// Removes the fallback of that key; `None` when there is none, as after it has taken the policy's place.
    pub fn take_fallback(&mut self, key: &PolicyKey) -> Option<PolicyConfig> {
        self.fallbacks.remove(&canonical_key(*key))
    }

    /// Tells whether the policy of that key has a fallback.
    pub fn has_fallback(&self, key: &PolicyKey) -> bool {
        self.fallbacks.contains_key(&canonical_key(*key))
    }

    fn next_born(&mut self) -> u64 {
        self.born += 1;
        self.born
    }

    fn insert(&mut self, index: u32, born: u64, mut config: PolicyConfig) -> PolicyId {
        config.selector.sport = canonical(config.selector.sport);
        config.selector.dport = canonical(config.selector.dport);
        let order = Order { priority: config.priority, born };
        self.arrived += 1;
        let arrived = self.arrived;
        let ends_idle = [config.lifetime.soft, config.lifetime.hard].iter().any(|limits| limits.used.is_some());
        let policy = Policy {
            index,
            config,
            order,
            arrived,
            added: None,
            used: None,
            ends_idle,
            told: None,
            timer: Timer::default(),
        };
        let dir = policy.config.dir as usize;
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            PolicyId(self.slots.len() as u32 - 1)
        });
        self.order[dir].insert(order, id);
        self.by_arrival.insert(arrived, id);
        let key = policy.key();
        let name = self.name(&key);
        let table = self.table_mut(&policy.config);
        table.shapes.insert(&key);
        table.policies.insert(name, id.0);
        if let Some(key) = policy.doubtful_key() {
            let orders = table.doubtful.entry(key).or_insert_with(|| {
                table.doubtful_shapes.insert(&key);
                BTreeSet::new()
            });
            orders.insert(order);
        }
        let policy = self.slots[id.0 as usize].insert(Box::new(policy));
        self.timers.set(id, &mut policy.timer, Some(Instant::ZERO));
        self.changes += 1;
        id
    }

    /// Removes a policy from all indexes.
    fn take(&mut self, id: PolicyId) -> Option<Box<Policy>> {
        let mut policy = self.slots.get_mut(id.0 as usize)?.take()?;
        self.free.push(id);
        self.timers.set(id, &mut policy.timer, None);
        self.order[policy.config.dir as usize].remove(&policy.order);
        self.by_arrival.remove(&policy.arrived);
        let key = policy.key();
        let name = self.name(&key);
        let table = self.table_mut(&policy.config);
        table.shapes.remove(&key);
        table.policies.remove(name, id.0);
        if let Some(key) = policy.doubtful_key()
            && let Some(orders) = table.doubtful.get_mut(&key)
        {
            orders.remove(&policy.order);
            if orders.is_empty() {
                table.doubtful.remove(&key);
                table.doubtful_shapes.remove(&key);
            }
        }
        self.changes += 1;
        Some(policy)
    }

    /// Number of policies of a direction.
    pub fn count(&self, dir: Dir) -> usize {
        self.order[dir as usize].len()
    }

    fn table_mut(&mut self, config: &PolicyConfig) -> &mut Table {
        &mut self.tables[config.dir as usize][usize::from(config.selector.dst.is_ipv4())]
    }

    fn table(&self, dir: Dir, is_ipv4: bool) -> &Table {
        &self.tables[dir as usize][usize::from(is_ipv4)]
    }

    /// Hash of a policy in [`Table::policies`].
    #[inline]
    fn name(&self, key: &MatchKey) -> u32 {
        (self.hasher.hash_one(key) >> 32) as u32
    }

    /// Sets the action on packets that match no policy.
    pub fn set_default(&mut self, dir: Dir, action: Action) {
        self.defaults[dir as usize] = action;
        self.changes += 1;
    }

    /// Action on packets that match no policy.
    pub const fn default_action(&self, dir: Dir) -> Action {
        self.defaults[dir as usize]
    }

    /// The policy of that key.
    pub fn find(&self, key: &PolicyKey) -> Option<PolicyId> {
        let PolicyKey { dir, selector, mark, if_id } = key;
        // Tables are by the destination's family, and `::/0` has the same bits as `0.0.0.0/0`.
        if selector.src.is_ipv4() != selector.dst.is_ipv4() {
            return None;
        }
        let key = MatchKey::new(selector, *mark, *if_id);
        let mut named = self.table(*dir, selector.dst.is_ipv4()).policies.with(self.name(&key)).map(PolicyId);
        named.find(|&id| self.get(id).is_some_and(|policy| policy.key() == key))
    }

    /// The first policy that matches `flow`.
    pub fn lookup(&self, dir: Dir, flow: &Flowi) -> Option<PolicyId> {
        self.first(dir, flow).map(|(_, id)| id)
    }

    //= RFC 4301 §4.4.1 policy-order: policies are ordered, and the first match decides
    fn first(&self, dir: Dir, flow: &Flowi) -> Option<(Order, PolicyId)> {
        let mut first: Option<(Order, PolicyId)> = None;
        let table = self.table(dir, flow.key.dst.is_ipv4());
        table.shapes.each_key(flow, |key| {
            for id in table.policies.with(self.name(key)).map(PolicyId) {
                if let Some(policy) = self.get(id).filter(|policy| policy.is_for(flow))
                    && first.is_none_or(|(order, _)| policy.order < order)
                {
                    first = Some((policy.order, id));
                }
            }
        });
        first
    }

    /// Tells whether a later fragment of `flow`, whose ports are unknown, may belong to packets that a policy does not
    /// pass in clear. Policies behind the first match of `flow` do not count.
    pub fn may_stop_fragment(&self, dir: Dir, flow: &Flowi) -> bool {
        let mut stops: Option<Order> = None;
        let table = self.table(dir, flow.key.dst.is_ipv4());
        table.doubtful_shapes.each_key(flow, |key| {
            let first = table.doubtful.get(key).and_then(|orders| orders.first().copied());
            stops = stops.into_iter().chain(first).min();
        });
        stops.is_some_and(|stops| self.first(dir, flow).is_none_or(|(order, _)| stops < order))
    }

    /// The policy of that number.
    pub fn get(&self, id: PolicyId) -> Option<&Policy> {
        self.slots.get(id.0 as usize)?.as_deref()
    }

    /// Records the use of a policy. Some, now and then: it would end if it were not used; its number of arrival.
    #[inline]
    pub(crate) fn touch(&mut self, id: PolicyId, now: Instant) -> Option<u64> {
        let policy = self.slots.get_mut(id.0 as usize)?.as_mut()?;
        policy.used = Some(now);
        if !policy.ends_idle || policy.told.is_some_and(|told| now.since(told) < TELL_AGAIN) {
            return None;
        }
        policy.told = Some(now);
        Some(policy.arrived)
    }

    /// Follows another shard, which has used a policy.
    pub(crate) fn follow_use(&mut self, id: PolicyId, arrived: u64, at: Instant) {
        let policy = self.slots.get_mut(id.0 as usize).and_then(Option::as_mut);
        if let Some(policy) = policy.filter(|policy| policy.arrived == arrived) {
            policy.used = policy.used.max(Some(at));
        }
    }

    /// Tells whether there are neither policies nor blocking defaults.
    pub fn is_empty(&self) -> bool {
        self.len() == 0 && self.defaults == [Action::Allow; 3]
    }

    /// Number of policies.
    pub fn len(&self) -> usize {
        self.order.iter().map(BTreeMap::len).sum()
    }

    /// Number of policies of in, out and fwd.
    pub fn counts(&self) -> [u32; 3] {
        self.order.each_ref().map(|order| order.len() as u32)
    }

    /// Every policy, by direction, in order of precedence.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.order.iter().flat_map(BTreeMap::values).filter_map(|&id| self.get(id))
    }

    /// Policies of one direction behind `after`, in the order of their lookup.
    pub fn after(&self, dir: Dir, after: Option<Order>) -> impl Iterator<Item = (Order, &Policy)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let policies = self.order[dir as usize].range((from, Bound::Unbounded));
        policies.filter_map(|(&order, &id)| Some((order, self.get(id)?)))
    }

    /// Policies whose number of arrival is below `below`, the oldest first, each with that number.
    pub fn by_arrival(&self, below: u64) -> impl DoubleEndedIterator<Item = (u64, &Policy)> {
        self.by_arrival.range(..below).filter_map(|(&arrived, &id)| Some((arrived, self.get(id)?)))
    }

    /// Time of the next change by time.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles expired timers up to one of a policy that has reached its hard limit. `has_others`: other shards use policies too, and
    /// tell it late.
    pub(crate) fn pop_ended(&mut self, now: Instant, events: &mut Events, has_others: bool) -> Option<(PolicyId, u64)> {
        let late = if has_others { TELL_AGAIN } else { Duration::ZERO };
        while let Some(id) = self.timers.pop(now) {
            let Some(Some(policy)) = self.slots.get_mut(id.0 as usize) else { continue };
            policy.timer.clear();
            let added = *policy.added.get_or_insert(now);
            let used = policy.used.map(|used| used + late).or(policy.added);
            let soft = policy.config.lifetime.soft.at(added, used);
            let hard = policy.config.lifetime.hard.at(added, used);
            if hard.is_some_and(|at| at <= now) {
                return Some((id, policy.arrived));
            }
            let soft = soft.map(|at| {
                if at > now {
                    return at;
                }
                events.push(policy.expired(false));
                now + NOTIFY_AGAIN
            });
            let next = soft.into_iter().chain(hard).min();
            self.timers.set(id, &mut policy.timer, next);
        }
        None
    }

    /// Ends a policy that has reached its hard limit; its fallback takes its place.
    pub(crate) fn end(&mut self, id: PolicyId, arrived: u64) -> Option<Box<Policy>> {
        self.get(id).filter(|policy| policy.arrived == arrived)?;
        let policy = self.take(id)?;
        if let Some(fallback) = self.fallbacks.remove(&policy.config.key()) {
            let born = self.next_born();
            self.insert(policy.index, born, fallback);
        }
        Some(policy)
    }
}

/// The key of a policy as it is stored.
pub(crate) const fn canonical_key(mut key: PolicyKey) -> PolicyKey {
    key.selector.sport = canonical(key.selector.sport);
    key.selector.dport = canonical(key.selector.dport);
    key
}

/// The same ports in the canonical form of [`MatchKey`].
const fn canonical(port: PortMask) -> PortMask {
    PortMask { port: port.port & port.mask, mask: port.mask }
}

//! The database of security policies (RFC 4301 §4.4.1).
//!
//! Policies of one direction are asked in the order of their priority, and among equals the one that was added first
//! wins; how specific a selector is has no say (Linux `xfrm_policy_lookup`).

use crate::config::{Action, ConfigError, Dir, PolicyConfig, Selector};
use crate::flowi::Flowi;

/// The policies of a node.
#[derive(Debug, Default)]
pub struct Spd {
    /// By direction, in the order in which they are asked.
    policies: [Vec<Policy>; 3],
    defaults: [Action; 3],
    last_index: u32,
}

/// A policy, with its number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Policy {
    /// What tells it from others when it is shown; kept when it is replaced. Never 0.
    pub index: u32,
    /// What it says.
    pub config: PolicyConfig,
}

/// Where a policy stands, until policies change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Position {
    dir: Dir,
    at: u32,
}

impl Spd {
    /// Adds a policy, behind those of its priority.
    ///
    /// # Errors
    /// What is wrong with it; [`ConfigError::Exists`] when its direction has its selector already, with whatever
    /// priority.
    pub fn add(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        config.check()?;
        if self.position(config.dir, &config.selector).is_some() {
            return Err(ConfigError::Exists);
        }
        self.last_index += 1;
        self.insert(Policy { index: self.last_index, config });
        Ok(())
    }

    /// Replaces the policy with that direction and selector, or adds it; a replaced one keeps its index.
    ///
    /// # Errors
    /// What is wrong with it, and the old one stays.
    pub fn update(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        config.check()?;
        match self.remove(config.dir, &config.selector) {
            Some(old) => self.insert(Policy { index: old.index, config }),
            None => return self.add(config),
        }
        Ok(())
    }

    /// Takes a policy out; `None` when there is none.
    pub fn remove(&mut self, dir: Dir, selector: &Selector) -> Option<Policy> {
        let at = self.position(dir, selector)?;
        Some(self.policies[dir as usize].remove(at))
    }

    /// Says what becomes of packets that no policy is for.
    pub fn set_default(&mut self, dir: Dir, action: Action) {
        self.defaults[dir as usize] = action;
    }

    /// What becomes of packets that no policy is for.
    pub const fn default_action(&self, dir: Dir) -> Action {
        self.defaults[dir as usize]
    }

    /// Which policy is for `flow`.
    pub fn lookup(&self, dir: Dir, flow: &Flowi) -> Option<Position> {
        let at = self.policies[dir as usize].iter().position(|policy| policy.config.selector.matches(flow))?;
        Some(Position { dir, at: at as u32 })
    }

    /// Tells whether a later fragment of `flow`, which does not say its ports, may belong to packets that a policy does
    /// not let pass in clear. Policies behind the one that is for `flow` are not asked.
    pub fn may_stop_fragment(&self, dir: Dir, flow: &Flowi) -> bool {
        let before = self.policies[dir as usize].iter().take_while(|policy| !policy.config.selector.matches(flow));
        before.map(|policy| &policy.config).any(|it| it.selector.may_match_fragment(flow) && !it.allows_clear())
    }

    /// The policy that [`lookup`](Self::lookup) found.
    pub fn get(&self, position: Position) -> Option<&Policy> {
        self.policies[position.dir as usize].get(position.at as usize)
    }

    /// Tells whether every packet passes for want of a policy.
    pub fn is_empty(&self) -> bool {
        self.policies.iter().all(Vec::is_empty) && self.defaults == [Action::Allow; 3]
    }

    /// Every policy, by direction, in the order in which they are asked.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.policies.iter().flatten()
    }

    fn position(&self, dir: Dir, selector: &Selector) -> Option<usize> {
        self.policies[dir as usize].iter().position(|policy| policy.config.selector == *selector)
    }

    fn insert(&mut self, policy: Policy) {
        let policies = &mut self.policies[policy.config.dir as usize];
        let at = policies.partition_point(|other| other.config.priority <= policy.config.priority);
        policies.insert(at, policy);
    }
}

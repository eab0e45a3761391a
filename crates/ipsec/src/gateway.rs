//! A node's IPsec: its SAs, its policies, and what it remembers of flows.

use std::collections::VecDeque;
use std::net::IpAddr;

use base::{Instant, SaId};
use packet::Buf;
use wire::Spi;

use crate::config::{Action, ConfigError, Dir, PolicyConfig, SaConfig, Selector};
use crate::crypto::Crypto;
use crate::crypto::queue::Queue;
use crate::flow_cache::FlowCache;
use crate::policy::Verdict;
use crate::sa::Sa;
use crate::sad::Sad;
use crate::spd::{Policy, Position, Spd};

/// The IPsec of one node.
#[derive(Debug)]
pub struct Ipsec {
    pub(crate) sad: Sad,
    pub(crate) spd: Spd,
    /// Counts changes of SAs and policies: what was remembered under another number is void.
    pub(crate) generation: u64,
    pub(crate) outbound: FlowCache<Verdict>,
    pub(crate) inbound: FlowCache<Option<Position>>,
    /// What waits for ciphers.
    pub(crate) crypto: Queue,
    /// The pieces of a packet that did not arrive in one. Kept for its storage.
    pub(crate) pieces: VecDeque<Buf>,
    /// The outer headers of the packet at hand. Kept for its storage.
    pub(crate) headers: Vec<u8>,
}

impl Default for Ipsec {
    fn default() -> Self {
        Self::new()
    }
}

impl Ipsec {
    /// Without SAs and policies: everything passes in clear.
    pub fn new() -> Self {
        Self {
            sad: Sad::default(),
            spd: Spd::default(),
            generation: 0,
            outbound: FlowCache::new(),
            inbound: FlowCache::new(),
            crypto: Queue::default(),
            pieces: VecDeque::new(),
            headers: Vec::new(),
        }
    }

    /// Adds an SA. `mask` is a random number of its own, so that SAs with one key make different initialisation
    /// vectors.
    ///
    /// # Errors
    /// See [`Sad::add`].
    pub fn add_sa(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        self.generation += 1;
        self.sad.add(config, mask)
    }

    /// Changes an SA under its key.
    ///
    /// # Errors
    /// See [`Sad::update`].
    pub fn update_sa(&mut self, config: &SaConfig) -> Result<SaId, ConfigError> {
        self.generation += 1;
        self.sad.update(config)
    }

    /// Takes an SA out; `None` when there is none with that SPI.
    pub fn remove_sa(&mut self, dst: IpAddr, spi: Spi) -> Option<Box<Sa>> {
        self.generation += 1;
        self.sad.remove(dst, spi)
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// See [`Spd::add`].
    pub fn add_policy(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        self.generation += 1;
        self.spd.add(config)
    }

    /// Replaces or adds a policy.
    ///
    /// # Errors
    /// See [`Spd::update`].
    pub fn update_policy(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        self.generation += 1;
        self.spd.update(config)
    }

    /// Takes a policy out; `None` when there is none.
    pub fn remove_policy(&mut self, dir: Dir, selector: &Selector) -> Option<Policy> {
        self.generation += 1;
        self.spd.remove(dir, selector)
    }

    /// Says what becomes of packets that no policy is for.
    pub fn set_default_policy(&mut self, dir: Dir, action: Action) {
        self.generation += 1;
        self.spd.set_default(dir, action);
    }

    /// Lets `crypto` do the ciphers' work, or this thread if `None`. What is with another one is lost: it is for the
    /// caller to wait until nothing [is pending](Self::is_pending).
    pub fn set_crypto(&mut self, crypto: Option<Box<dyn Crypto>>) {
        self.crypto.set_crypto(crypto);
    }

    /// Does the ciphers' work that was submitted, or has it done. Tells whether some is through, and waits to be taken;
    /// with a device it may be only at a later call.
    pub fn work(&mut self, now: Instant) -> bool {
        self.crypto.close(now);
        self.crypto.work(now);
        self.crypto.has_done()
    }

    /// When [`work`](Self::work) is to be called again for what is with a device.
    pub fn work_timeout(&self) -> Option<Instant> {
        self.crypto.poll_timeout()
    }

    /// Tells whether something that was submitted has not been taken yet.
    pub fn is_pending(&self) -> bool {
        self.crypto.is_busy()
    }

    /// The SA of that number, if it is still there.
    pub fn sa(&self, id: SaId) -> Option<&Sa> {
        self.sad.get(id)
    }

    /// The SAs.
    pub const fn sad(&self) -> &Sad {
        &self.sad
    }

    /// The policies.
    pub const fn spd(&self) -> &Spd {
        &self.spd
    }

    /// Tells whether there is nothing to do: no SA, no policy, nothing blocked. Such a node need not ask.
    pub fn is_idle(&self) -> bool {
        self.sad.is_empty() && self.spd.is_empty()
    }
}

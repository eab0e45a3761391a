//! A node's IPsec: its SAs, its policies, and what it remembers of flows.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use base::{Counters, DropReason, Instant, SaId};
use packet::Buf;
use wire::Spi;
use xfrm::{Action, AeventLimits, ConfigError, Dir, PolicyConfig, PolicyKey, SaConfig};

use crate::crypto::Crypto;
use crate::crypto::queue::Queue;
use crate::events::Event;
use crate::flow_cache::FlowCache;
use crate::hold::Holds;
use crate::nat::Nat;
use crate::resolve::Verdict;
use crate::sa::Sa;
use crate::sad::spi::SpiRequest;
use crate::sad::{Larval, Sad};
use crate::spd::{Policy, PolicyId, Spd};

/// Time that an SA that was asked for may take, unless it is configured.
const ACQ_EXPIRES: Duration = Duration::from_secs(30);

/// The IPsec of one node.
#[derive(Debug)]
pub struct Ipsec {
    pub(crate) sad: Sad,
    pub(crate) spd: Spd,
    /// Packets that wait for SAs.
    pub(crate) holds: Holds,
    pub(crate) larval_drop: bool,
    pub(crate) acq_expires: Duration,
    pub(crate) outbound: FlowCache<(Option<PolicyId>, Verdict)>,
    pub(crate) inbound: FlowCache<Option<PolicyId>>,
    /// Packets in flight to the ciphers.
    pub(crate) crypto: Queue,
    /// The pieces of a packet that did not arrive in one. Kept for its storage.
    pub(crate) pieces: VecDeque<Buf>,
    /// The outer headers of the packet at hand. Kept for its storage.
    pub(crate) headers: Vec<u8>,
    /// Places to which peers have moved, and keepalives to them.
    pub(crate) nat: Nat,
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
            holds: Holds::default(),
            larval_drop: true,
            acq_expires: ACQ_EXPIRES,
            outbound: FlowCache::new(),
            inbound: FlowCache::new(),
            crypto: Queue::default(),
            pieces: VecDeque::new(),
            headers: Vec::new(),
            nat: Nat::default(),
        }
    }

    /// Adds an SA, whose time begins when [time next passes](Self::handle_timeout): that is due at once. `mask` is a random
    /// number of its own, so that SAs with one key make different initialisation vectors.
    ///
    /// # Errors
    /// See [`Sad::add`].
    pub fn add_sa(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        self.sad.add(config, mask).inspect(|&id| self.begin_nat(id))
    }

    /// Completes a larval SA, or changes the little that Linux changes of a valid one.
    ///
    /// # Errors
    /// See [`Sad::update`].
    pub fn update_sa(&mut self, config: &SaConfig, mask: u64) -> Result<SaId, ConfigError> {
        self.sad.update(config, mask).inspect(|&id| self.begin_nat(id))
    }

    /// Changes whatever can be changed of an SA under its key.
    ///
    /// # Errors
    /// See [`Sad::replace`].
    pub fn replace_sa(&mut self, config: &SaConfig) -> Result<SaId, ConfigError> {
        self.sad.replace(config).inspect(|&id| self.begin_nat(id))
    }

    /// Begins NAT traversal of an SA that was added or changed.
    fn begin_nat(&mut self, id: SaId) {
        let Self { sad, nat, .. } = self;
        nat.look_for_keepalive(sad, id);
        nat.begin(sad, id);
    }

    /// Takes an SA out, the one that packets marked `mark` find; `None` when there is none.
    pub fn remove_sa(&mut self, dst: IpAddr, spi: Spi, mark: u32) -> Option<Sa> {
        self.sad.remove(dst, spi, mark)
    }

    /// Takes the SA of that number out; `None` when there is none.
    pub fn remove_sa_of(&mut self, id: SaId) -> Option<Sa> {
        self.sad.take(id)
    }

    /// Chooses an SPI for an SA to come, which it gives, and keeps it for [as long as an acquired
    /// SA](Self::set_acq_expires). `random` gives random numbers.
    ///
    /// # Errors
    /// [`ConfigError::SpiRange`], [`ConfigError::NoSpi`], [`ConfigError::NoDestination`]; [`ConfigError::TooMany`] if too
    /// many SAs are to come.
    pub fn alloc_spi(
        &mut self,
        now: Instant,
        request: &SpiRequest,
        random: &mut dyn FnMut() -> u32,
    ) -> Result<&Larval, ConfigError> {
        self.sad.alloc_spi(now, self.acq_expires, request, random)
    }

    /// Notes that the SA of an [`Acquire`](crate::Acquire) cannot be had: it is not asked for again until that one expires.
    /// False if there is none of that number.
    pub fn fail_acquire(&mut self, seq: u32) -> bool {
        self.sad.changes += 1;
        self.sad.larvae.fail(seq)
    }

    /// Forgets an SA that is yet to come. False if there is none of that number.
    pub fn forget_larval(&mut self, seq: u32) -> bool {
        self.sad.changes += 1;
        self.sad.larvae.remove(seq).is_some()
    }

    /// Says whether a listener [takes events](Self::take_events). There is none at first, and then no SAs are asked for. Whether
    /// a listener [is asked](Self::set_asked) stays as it was set.
    pub fn set_listener(&mut self, listening: bool) {
        self.sad.changes += 1;
        self.sad.events.listen(listening);
    }

    /// Says whether the listener is asked for SAs, as it is until this is called. A listener that only hears what has ended
    /// makes none, and then no unanswered requests are remembered (Linux `km_is_alive`).
    pub const fn set_asked(&mut self, asked: bool) {
        self.sad.changes += 1;
        self.sad.events.ask(asked);
    }

    /// Says whether the listener is told of SAs' numbers ([`Event::Numbers`]), as it is not until this is called.
    pub fn set_numbers_heard(&mut self, heard: bool) {
        self.sad.hear_numbers(heard);
    }

    /// Says when numbers are told of, of SAs that are added from now on (`xfrm_aevent_rseqth`, `xfrm_aevent_etime`).
    pub const fn set_aevent_limits(&mut self, limits: AeventLimits) {
        self.sad.aevent_limits = limits;
    }

    /// Events since the last call. At most [`MAX_EVENTS`](crate::MAX_EVENTS) wait.
    pub fn take_events(&mut self) -> impl Iterator<Item = Event> {
        self.sad.events.take()
    }

    /// Number of events that were not taken in time.
    pub const fn lost_events(&self) -> u64 {
        self.sad.events.lost()
    }

    /// Says what becomes of packets whose SA is missing (`xfrm_larval_drop`): true drops them, which is the default; false
    /// has them wait.
    pub const fn set_larval_drop(&mut self, drop: bool) {
        self.larval_drop = drop;
    }

    /// Says how long an SA that was asked for may take (`xfrm_acq_expires`); 30 seconds are the default.
    pub const fn set_acq_expires(&mut self, lasts: Duration) {
        self.acq_expires = lasts;
    }

    /// Adds a policy, whose time begins as that of an SA does.
    ///
    /// # Errors
    /// See [`Spd::add`].
    pub fn add_policy(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        let Self { sad, spd, .. } = self;
        if spd.find(&config.key()).is_none() {
            config.check()?;
            sad.devices.add_policy(&config)?;
        }
        spd.add(config).map(drop)
    }

    /// Replaces or adds a policy.
    ///
    /// # Errors
    /// See [`Spd::update`].
    pub fn update_policy(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        let before = self.spd.find(&config.key());
        let now = self.replace_policy(config)?;
        if let Some(before) = before {
            self.holds.rename(before, now);
        }
        Ok(())
    }

    /// Replaces or adds a policy in the database and on its device.
    fn replace_policy(&mut self, config: PolicyConfig) -> Result<PolicyId, ConfigError> {
        let Self { sad, spd, .. } = self;
        config.check()?;
        let key = config.key();
        let old = spd.find(&key).and_then(|id| spd.get(id)).map(|old| old.config.clone());
        sad.devices.delete_policy(&key);
        if let Err(refused) = sad.devices.add_policy(&config) {
            // The device had the old one a moment ago.
            if let Some(old) = old {
                sad.devices.add_policy(&old)?;
            }
            return Err(refused);
        }
        spd.update(config)
    }

    /// Takes a policy out, and drops what waits for its SAs; `None` when there is none.
    pub fn remove_policy(&mut self, key: &PolicyKey) -> Option<Box<Policy>> {
        let id = self.spd.find(key)?;
        self.holds.purge(id, DropReason::PolicyNoState);
        self.sad.devices.delete_policy(key);
        self.spd.remove(key)
    }

    /// Says what becomes of packets that no policy is for.
    pub fn set_default_policy(&mut self, dir: Dir, action: Action) {
        self.spd.set_default(dir, action);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let released = self.holds.has_released().then_some(Instant::ZERO);
        let timers = [released, self.sad.poll_timeout(), self.spd.poll_timeout(), self.holds.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Lets time pass: lifetimes end, and held packets may be [released](Self::take_released).
    pub fn handle_timeout(&mut self, now: Instant, counters: &mut Counters) {
        let Self { sad, spd, holds, .. } = self;
        sad.handle_timeout(now);
        spd.handle_timeout(now, &mut sad.events, |policy| holds.purge(policy, DropReason::PolicyNoState));
        if sad.devices.has_policies() {
            sad.devices.delete_policies(|_, key: &PolicyKey| spd.find(key).is_none());
        }
        while let Some((policy, flow)) = self.holds.pop(now) {
            if self.must_wait(now, &flow, counters) {
                self.holds.wait_longer(now, policy);
            } else {
                // Each is judged by itself then: they need not be of one flow.
                self.holds.release(policy);
            }
        }
    }

    /// A number that changes whenever an answer may: what was remembered under another one is void.
    pub const fn generation(&self) -> u64 {
        self.sad.changes + self.spd.changes
    }

    /// Lets `crypto` do the ciphers' work from now on, or this thread if `None`. What another one has it may finish.
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

    /// As [`work`](Self::work) while more arrives: crypto threads are left what they get to soon, and not waited for.
    pub fn help(&mut self, now: Instant) -> bool {
        self.crypto.close(now);
        self.crypto.help(now);
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

    /// Tells whether something that was submitted to be opened is not through yet.
    pub fn is_opening(&self) -> bool {
        self.crypto.opening.len() > 0
    }

    /// The SA of that number, if it is still there.
    pub fn sa(&self, id: SaId) -> Option<&Sa> {
        self.sad.get(id)
    }

    /// The same, to change what may be changed of it.
    pub fn sa_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.sad.changes += 1;
        self.sad.get_mut(id)
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

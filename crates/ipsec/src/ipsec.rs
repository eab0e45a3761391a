//! IPsec of a node: SAs, policies, and the flow cache.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use base::{Counters, DropReason, Instant, SaId, ShardId, ShardPlace};
use packet::Buf;
use wire::Spi;
use xfrm::{Action, AeventLimits, ConfigError, Dir, Level, PolicyConfig, PolicyKey, SaConfig};

use crate::crypto::Crypto;
use crate::crypto::queue::Queue;
use crate::esp_drop::{EspDrop, EspDrops};
use crate::events::Event;
use crate::flow_cache::FlowCache;
use crate::hold::Holds;
use crate::nat::Nat;
use crate::resolve::{Verdict, follow_acquire};
use crate::sa::Sa;
use crate::sad::sa_changes::SaChange;
use crate::sad::spi::SpiRequest;
use crate::sad::{Larval, SaSumKey, Sad};
use crate::shared::SharedChange;
use crate::spd::{Policy, PolicyId, Spd, canonical_key};

/// Default time that an acquired SA may take.
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
    /// Packets that are queued for ciphers or in flight.
    pub(crate) crypto: Queue,
    /// Pieces of a packet that did not arrive in one. Kept for its storage.
    pub(crate) pieces: VecDeque<Buf>,
    /// Outer headers of the current packet. Kept for its storage.
    pub(crate) headers: Vec<u8>,
    /// Mappings of peers behind a NAT, and keepalives to them.
    pub(crate) nat: Nat,
    pub(crate) esp_drops: EspDrops,
}

impl Default for Ipsec {
    fn default() -> Self {
        Self::new()
    }
}

impl Ipsec {
    /// No SAs, no policies: all packets pass in clear.
    pub fn new() -> Self {
        Self::of_shard(ShardPlace::default())
    }

    /// The IPsec of one of a node's shards. All shards get the same changes in the same order, and [what each
    /// causes](Self::take_shared). Packets of an SA are sealed and opened by its [owner](Sa::owner) alone.
    pub fn of_shard(place: ShardPlace) -> Self {
        Self {
            sad: Sad::of_shard(place),
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
            esp_drops: EspDrops::default(),
        }
    }

    /// Adds an SA, whose lifetime begins with the [next call](Self::handle_timeout) of the timer, which is due at once.
    /// `mask` is a random number of its own, so that SAs with one key make different initialisation vectors.
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

    /// Replaces all of an SA's configuration that its key permits.
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

    /// Removes the SA that packets marked `mark` find; `None` when there is none.
    pub fn remove_sa(&mut self, dst: IpAddr, spi: Spi, mark: u32) -> Option<Sa> {
        self.sad.remove(dst, spi, mark)
    }

    /// Removes the SA of that number; `None` when there is none.
    pub fn remove_sa_of(&mut self, id: SaId) -> Option<Sa> {
        self.sad.take(id)
    }

    /// Chooses an SPI for a future SA, and reserves it for [as long as an acquired SA](Self::set_acq_expires). `random`
    /// returns random numbers.
    ///
    /// # Errors
    /// [`ConfigError::SpiRange`], [`ConfigError::NoSpi`], [`ConfigError::NoDestination`]; [`ConfigError::TooMany`]
    /// at [`MAX_LARVAE`](crate::sad::MAX_LARVAE).
    pub fn alloc_spi(
        &mut self,
        now: Instant,
        request: &SpiRequest,
        random: &mut dyn FnMut() -> u32,
    ) -> Result<&Larval, ConfigError> {
        self.sad.alloc_spi(now, self.acq_expires, request, random)
    }

    /// Removes a larval SA. False if there is none of that number.
    pub fn forget_larval(&mut self, seq: u32) -> bool {
        self.sad.changes += 1;
        self.sad.larvae.remove(seq).is_some()
    }

    /// Marks the present larval SAs as those of lost SAs: a restart has left their names, and not their keys. Each ends by
    /// [`expire_lost`](Self::expire_lost), or by its timeout.
    pub fn hold_lost(&mut self) {
        self.sad.larvae.hold_lost();
    }

    /// Ends the larval SAs of lost SAs, and reports a hard expiry of each, so that a key manager that has them makes new ones.
    pub fn expire_lost(&mut self) {
        for seq in self.sad.larvae.lost() {
            match self.sad.place.has_others() {
                true => self.sad.shared.push(SharedChange::LarvalEnded { seq, is_reported: true }),
                false => self.sad.end_larval(seq, true),
            }
        }
    }

    /// Continues the lifetime of another SA in an added one: of one with its key, of an earlier process.
    pub fn resume_lifetime(&mut self, id: SaId, added: Instant, first_used: Option<Instant>) {
        self.sad.resume_lifetime(id, added, first_used);
    }

    /// Reports the soft expiry of each SA whose lifetime was [resumed](Self::resume_lifetime) and that is dying: no listener
    /// may have been there when it was reported.
    pub fn report_resumed(&mut self) {
        self.sad.report_resumed();
    }

    /// Sets whether a listener [takes events](Self::take_events). Initially there is none, and no SAs are acquired.
    /// The setting of [`enable_acquires`](Self::enable_acquires) is kept.
    pub fn set_listener(&mut self, listening: bool) {
        self.sad.changes += 1;
        self.sad.events.listen(listening);
    }

    /// Sets whether the listener answers requests for SAs; true by default. Without such a listener no unanswered
    /// requests are kept (Linux `km_is_alive`).
    pub const fn enable_acquires(&mut self, acquires: bool) {
        self.sad.changes += 1;
        self.sad.events.enable_acquires(acquires);
    }

    /// Tells whether a listener takes events.
    pub const fn has_listener(&self) -> bool {
        self.sad.events.has_listener()
    }

    /// Sets whether the listener gets reports of SAs' numbers ([`Event::Numbers`]); false by default.
    pub fn enable_numbers(&mut self, enabled: bool) {
        self.sad.enable_numbers(enabled);
    }

    /// Sets the thresholds of such reports, for SAs that are added from now on (`xfrm_aevent_rseqth`,
    /// `xfrm_aevent_etime`).
    pub const fn set_aevent_limits(&mut self, limits: AeventLimits) {
        self.sad.aevent_limits = limits;
    }

    /// Events since the last call, at most [`MAX_EVENTS`](crate::MAX_EVENTS).
    pub fn take_events(&mut self) -> impl Iterator<Item = Event> {
        self.sad.events.take()
    }

    /// Tells whether SAs were added or removed since [`take_sa_changes`](Self::take_sa_changes).
    pub fn has_sa_changes(&self) -> bool {
        !self.sad.sa_changes.is_empty()
    }

    /// SAs that were added or removed since the last call, the first 64, and the number of further changes.
    pub fn take_sa_changes(&mut self) -> (Vec<SaChange>, u64) {
        self.sad.sa_changes.take()
    }

    /// Number of events that found the queue full.
    pub const fn lost_events(&self) -> u64 {
        self.sad.events.lost()
    }

    /// Sets the action on packets whose SA is missing (`xfrm_larval_drop`): true, the default, drops them; false queues
    /// them.
    pub const fn set_larval_drop(&mut self, drop: bool) {
        self.larval_drop = drop;
    }

    /// Sets the time that an acquired SA may take (`xfrm_acq_expires`); 30 seconds by default.
    pub const fn set_acq_expires(&mut self, lasts: Duration) {
        self.acq_expires = lasts;
    }

    /// Adds a policy. Its lifetime begins as that of an SA does.
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
            // The device held the old policy before, so it accepts it.
            if let Some(old) = old {
                sad.devices.add_policy(&old)?;
            }
            return Err(refused);
        }
        spd.update(config)
    }

    /// Removes a policy, and drops packets that wait for its SAs; `None` when there is none.
    pub fn remove_policy(&mut self, key: &PolicyKey) -> Option<Box<Policy>> {
        let id = self.spd.find(key)?;
        self.holds.purge(id, DropReason::PolicyNoState);
        self.sad.devices.delete_policy(key);
        self.spd.remove(key)
    }

    /// Sets the policy that takes the place of the one with its key when that expires.
    ///
    /// # Errors
    /// See [`Spd::set_fallback`].
    pub fn set_fallback_policy(&mut self, config: PolicyConfig) -> Result<(), ConfigError> {
        self.spd.set_fallback(config)
    }

    /// Removes the fallback of that key; see [`Spd::take_fallback`].
    pub fn take_fallback_policy(&mut self, key: &PolicyKey) -> Option<PolicyConfig> {
        self.spd.take_fallback(key)
    }

    /// Sets the action on packets that match no policy.
    pub fn set_default_policy(&mut self, dir: Dir, action: Action) {
        self.spd.set_default(dir, action);
    }

    /// Time of the next call of [`handle_timeout`](Self::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Instant> {
        let released = self.holds.has_released().then_some(Instant::ZERO);
        let of_policies = self.spd.poll_timeout().filter(|_| self.sad.place.is_first());
        let timers = [released, self.sad.poll_timeout(), of_policies, self.holds.poll_timeout()];
        timers.into_iter().flatten().min()
    }

    /// Advances the time: lifetimes end, and held packets may be [released](Self::take_released).
    pub fn handle_timeout(&mut self, now: Instant, counters: &mut Counters) {
        self.sad.handle_timeout(now);
        while self.sad.place.is_first()
            && let Some((policy, arrived)) = self.spd.pop_ended(now, &mut self.sad.events, self.sad.place.has_others())
        {
            match self.sad.place.has_others() {
                true => self.sad.shared.push(SharedChange::PolicyEnded { policy, arrived }),
                false => self.end_policy(policy, arrived),
            }
        }
        while let Some((policy, flow)) = self.holds.pop(now) {
            if self.must_wait(now, &flow, counters) {
                self.holds.wait_longer(now, policy);
            } else {
                // Each packet is decided by itself then: they need not be of one flow.
                self.holds.release(policy);
            }
        }
    }

    /// Ends a policy that has reached its hard limit, and drops the packets that wait for its SAs. The first shard reports that.
    fn end_policy(&mut self, id: PolicyId, arrived: u64) {
        let Some(policy) = self.spd.end(id, arrived) else { return };
        let Self { sad, holds, .. } = self;
        if sad.place.is_first() {
            sad.events.push(policy.expired(true));
        }
        holds.purge(id, DropReason::PolicyNoState);
        let key = policy.config.key();
        sad.devices.delete_policies(|_, other| canonical_key(*other) == key);
    }

    /// Changes that all shards of the node have to make, this one too, since the last call.
    pub fn take_shared(&mut self) -> std::vec::Drain<'_, SharedChange> {
        self.sad.shared.drain(..)
    }

    /// Makes a change that some shard of the node has caused. Each shard makes it at the same place among all other changes of
    /// SAs and policies.
    pub fn follow(&mut self, now: Instant, change: SharedChange) {
        match change {
            SharedChange::Acquire { policy, arrived, template, flow, shard } => {
                let Self { sad, spd, acq_expires, .. } = self;
                if let Some(policy) = spd.get(policy).filter(|policy| policy.arrived() == arrived) {
                    follow_acquire(sad, now, *acq_expires, policy, template.into(), &flow, shard);
                }
            }
            SharedChange::LarvalEnded { seq, is_reported } => self.sad.end_larval(seq, is_reported),
            SharedChange::SaUsed { sa, at } => self.sad.follow_use(sa, at),
            SharedChange::SaDying { sa, renewals } => self.sad.follow_dying(sa, renewals),
            SharedChange::SaEnded { sa } => self.sad.end(sa),
            SharedChange::PeerMoved(mapping) => self.nat.follow(&mut self.sad, &mapping),
            SharedChange::PolicyUsed { policy, arrived, at } => self.spd.follow_use(policy, arrived, at),
            SharedChange::PolicyEnded { policy, arrived } => self.end_policy(policy, arrived),
        }
    }

    /// A number that changes whenever an answer may: a cached answer of another generation is invalid.
    pub const fn generation(&self) -> u64 {
        self.sad.changes + self.spd.changes
    }

    /// Sets the backend of the ciphers; `None` for this thread. The previous one finishes its tasks.
    pub fn set_crypto(&mut self, crypto: Option<Box<dyn Crypto>>) {
        self.crypto.set_crypto(crypto);
    }

    /// Runs the submitted cipher work, here or on the backend. Tells whether results wait to be taken; a device may
    /// finish in a later call only.
    pub fn work(&mut self, now: Instant) -> bool {
        self.crypto.close(now);
        self.crypto.work(now);
        self.crypto.has_done()
    }

    /// As [`work`](Self::work) while more packets arrive: leaves to crypto threads the tasks that they reach soon, and
    /// does not wait.
    pub fn help(&mut self, now: Instant) -> bool {
        self.crypto.close(now);
        self.crypto.help(now);
        self.crypto.has_done()
    }

    /// Time of the next call of [`work`](Self::work), for tasks on a device.
    pub fn work_timeout(&self) -> Option<Instant> {
        self.crypto.poll_timeout()
    }

    /// Tells whether a submitted packet has not been taken yet.
    pub fn is_pending(&self) -> bool {
        self.crypto.is_busy()
    }

    /// Tells whether a packet submitted for decryption is still in flight.
    pub fn is_opening(&self) -> bool {
        self.crypto.opening.len() > 0
    }

    /// Sets whether details of dropped ESP packets are kept for [`take_esp_drops`](Self::take_esp_drops).
    pub fn watch_esp_drops(&mut self, is_watched: bool) {
        self.esp_drops.watch(is_watched);
    }

    /// Tells whether there are details of dropped ESP packets.
    pub fn has_esp_drops(&self) -> bool {
        !self.esp_drops.is_empty()
    }

    /// Details of the ESP packets that were dropped since the last call, in order. The drops were reported before, in
    /// [`Opened::drops`](crate::Opened::drops) or as [`Decrypted::Dropped`](crate::Decrypted::Dropped).
    pub fn take_esp_drops(&mut self) -> impl Iterator<Item = EspDrop> {
        self.esp_drops.take()
    }

    /// The SA of that number, if it exists.
    pub fn sa(&self, id: SaId) -> Option<&Sa> {
        self.sad.get(id)
    }

    /// Another shard that seals and opens the packets of an SA.
    #[inline]
    pub fn owner_elsewhere(&self, id: SaId) -> Option<ShardId> {
        self.sad.place.elsewhere(self.sa(id)?.owner())
    }

    /// The SA of that number, for changes.
    pub fn sa_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        self.sad.changes += 1;
        self.sad.get_mut(id)
    }

    /// The SAs.
    pub const fn sad(&self) -> &Sad {
        &self.sad
    }

    /// Adds the counters of at most `count` SAs, but the first `from` that were ever added, to their sums, and reports the time at which
    /// each ends, if it does. Returns the number to go on with, or `None` at the end.
    pub fn add_up_sas(
        &mut self,
        from: u64,
        count: usize,
        expiry: impl FnMut(SaSumKey, Option<Instant>),
    ) -> Option<u64> {
        self.sad.add_up_some(from, count, expiry)
    }

    /// Tells whether a template of a policy needs an SA and there is none. `None`: not known, as there are templates that are not judged,
    /// such as one without a destination, and all others have an SA.
    pub fn lacks_sa(&self, policy: &PolicyConfig) -> Option<bool> {
        if policy.action != Action::Allow {
            return Some(false);
        }
        let mut is_known = true;
        for template in policy.templates.iter().filter(|template| template.level == Level::Required) {
            match self.sad.has_for_policy(template, policy.mark, policy.if_id) {
                Some(true) => {}
                Some(false) => return Some(true),
                None => is_known = false,
            }
        }
        is_known.then_some(false)
    }

    /// Numbers of packets that wait for their encryption, and for their decryption.
    pub fn crypto_depths(&self) -> [usize; 2] {
        self.crypto.depths()
    }

    /// The policies.
    pub const fn spd(&self) -> &Spd {
        &self.spd
    }

    /// Tells whether there are no SAs, no policies, and no blocking default. The caller may skip such a node.
    pub fn is_idle(&self) -> bool {
        self.sad.is_empty() && self.spd.is_empty()
    }
}

//! Policy decisions: outbound, the SAs that a packet needs; inbound, whether it came through these.

use base::{Counters, DropReason, Instant, Mib, ShardId};
use packet::{Memory, Packet, SecPath};
use wire::FlowKey;
use xfrm::{Action, Dir, Flowi};

use crate::check::check;
use crate::hold::Released;
use crate::ipsec::Ipsec;
use crate::resolve::{Bundle, Refusal, Verdict, acquire, ends_of, resolve};
use crate::shared::SharedChange;
use crate::spd::PolicyId;

/// Decision about an outbound packet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It leaves in clear.
    Bypass,
    /// It goes through these SAs, at least one.
    Protect(Bundle),
    /// It [waits](Ipsec::hold) until the SA of this policy exists. If the SA exists, older packets still wait: they
    /// [go](Ipsec::release_if_ready) first.
    Hold(PolicyId),
    /// It is dropped. The counter is counted.
    Drop(DropReason),
}

impl Ipsec {
    /// Decision about outbound packets of `flow`, own and forwarded ones. Called once per fat packet. If an SA is
    /// missing, [the listener](Self::set_listener), if any, gets a request for it.
    #[inline]
    pub fn lookup(&mut self, now: Instant, flow: &Flowi, counters: &mut Counters) -> Decision {
        let (policy, verdict) = self.verdict(flow);
        if self.held() > 0
            && let Some(policy) = policy
            && verdict.lets_pass()
            && self.is_behind_held(policy)
        {
            return Decision::Hold(policy);
        }
        self.decide(now, policy, verdict, flow, counters)
    }

    #[inline]
    fn verdict(&mut self, flow: &Flowi) -> (Option<PolicyId>, Verdict) {
        let generation = self.generation();
        let Self { sad, spd, outbound, .. } = self;
        outbound.get_or(generation, Dir::Out, flow, || {
            let policy = spd.lookup(Dir::Out, flow);
            (policy, resolve(sad, spd, policy, flow))
        })
    }

    /// Tells whether waiting packets can leave: no later packet overtakes them.
    #[cold]
    fn is_behind_held(&mut self, policy: PolicyId) -> bool {
        let Some(first) = self.holds.first_flow(policy) else { return false };
        self.larval_drop || !self.verdict(&first).1.is_missing()
    }

    /// [Releases](Self::take_released) the packets that wait for a policy, if they can leave. Tells whether it did.
    pub fn release_if_ready(&mut self, policy: PolicyId) -> bool {
        let may_go = self.is_behind_held(policy);
        if may_go {
            self.holds.release(policy);
        }
        may_go
    }

    /// Tells whether packets that wait, the first of them of `flow`, have to go on waiting. If so, and no request is
    /// pending, the listener gets another request.
    pub(crate) fn must_wait(&mut self, now: Instant, flow: &Flowi, counters: &mut Counters) -> bool {
        let (policy, verdict) = self.verdict(flow);
        verdict.is_missing()
            && !self.larval_drop
            && matches!(self.decide(now, policy, verdict, flow, counters), Decision::Hold(_))
    }

    #[inline]
    fn decide(
        &mut self,
        now: Instant,
        policy: Option<PolicyId>,
        verdict: Verdict,
        flow: &Flowi,
        counters: &mut Counters,
    ) -> Decision {
        if let Some(policy) = policy {
            self.touch(policy, now);
        }
        match verdict {
            Verdict::Bypass => Decision::Bypass,
            Verdict::Protect { sas, wants: None } => Decision::Protect(sas),
            Verdict::Protect { sas, wants: Some(template) } => {
                self.request(now, policy, template, flow, Some(self.sad.place.id));
                Decision::Protect(sas)
            }
            Verdict::Refused(why) => self.refuse(now, policy, why, flow, counters),
        }
    }

    /// Drop reason of an outbound packet; requests a missing SA.
    #[cold]
    fn refuse(
        &mut self,
        now: Instant,
        policy: Option<PolicyId>,
        why: Refusal,
        flow: &Flowi,
        counters: &mut Counters,
    ) -> Decision {
        let (mib, reason) = match why {
            Refusal::DefaultBlock => return Decision::Drop(DropReason::PolicyBlock),
            Refusal::Block => (Mib::XfrmOutPolBlock, DropReason::PolicyBlock),
            Refusal::Missing { template, pending } => {
                if let Some(policy) = policy {
                    if !pending {
                        self.request(now, Some(policy), template, flow, None);
                    }
                    if !self.larval_drop {
                        return Decision::Hold(policy);
                    }
                }
                (Mib::XfrmOutNoStates, DropReason::PolicyNoState)
            }
            Refusal::WrongDirection => {
                counters.count(Mib::XfrmOutStateDirError);
                (Mib::XfrmOutPolError, DropReason::EspDirection)
            }
            Refusal::Clash => (Mib::XfrmOutPolError, DropReason::PolicyNoState),
            Refusal::TooDeep => (Mib::XfrmOutPolError, DropReason::PolicyDepth),
        };
        counters.count(mib);
        Decision::Drop(reason)
    }

    /// Requests the SA that a packet of `flow` lacks. Of several shards each adds the larval SA when it follows the request.
    #[cold]
    fn request(&mut self, now: Instant, id: Option<PolicyId>, template: u8, flow: &Flowi, shard: Option<ShardId>) {
        let Self { sad, spd, acq_expires, .. } = self;
        let Some((id, policy)) = id.and_then(|id| Some((id, spd.get(id)?))) else { return };
        if !sad.events.has_acquire_listener() {
            return;
        }
        if !sad.place.has_others() {
            return acquire(sad, now, *acq_expires, policy, template.into(), flow, shard);
        }
        let arrived = policy.arrived();
        let ends = |flow: &Flowi| ends_of(&policy.config, template.into(), flow);
        let is_asked = |other: &SharedChange| {
            let SharedChange::Acquire { arrived: its, template: at, flow: its_flow, shard: its_shard, .. } = other
            else {
                return false;
            };
            (*its, *at, *its_shard) == (arrived, template, shard) && ends(its_flow) == ends(flow)
        };
        // Before the shard follows it, other packets of a burst need the same SA.
        if !sad.shared.iter().any(is_asked) {
            sad.shared.push(SharedChange::Acquire { policy: id, arrived, template, flow: *flow, shard });
        }
    }

    /// Records the use of a policy.
    #[inline]
    fn touch(&mut self, policy: PolicyId, now: Instant) {
        let Self { sad, spd, .. } = self;
        if let Some(arrived) = spd.touch(policy, now)
            && !sad.place.is_first()
        {
            sad.tell(SharedChange::PolicyUsed { policy, arrived, at: now });
        }
    }

    /// Queues a packet of `flow`, as [`Decision::Hold`] says. Frees its device frames.
    ///
    /// # Errors
    /// The packet, if too many wait.
    pub fn hold(
        &mut self,
        mem: &Memory,
        now: Instant,
        policy: PolicyId,
        flow: &Flowi,
        pkt: Packet,
    ) -> Result<(), (Packet, DropReason)> {
        self.holds.push(mem, now, policy, flow, pkt)
    }

    /// Number of waiting packets.
    pub const fn held(&self) -> usize {
        self.holds.len()
    }

    /// Packets that [waited](Self::hold) and left the queue, in order.
    pub fn take_released(&mut self) -> Vec<Released> {
        self.holds.take_released()
    }

    /// Checks whether a packet of `flow` may pass, having come through the SAs of `sec_path`: [`Dir::In`] for one to
    /// this node, [`Dir::Fwd`] for one that it forwards (Linux `__xfrm_policy_check`). For an ICMP error, `quoted`
    /// returns the reverse of the quoted flow.
    ///
    /// # Errors
    /// The reason of the drop. The counter is counted.
    #[inline]
    pub fn check(
        &mut self,
        now: Instant,
        dir: Dir,
        flow: &Flowi,
        sec_path: &SecPath,
        quoted: impl FnOnce() -> Option<FlowKey>,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let generation = self.generation();
        let Self { spd, inbound, .. } = self;
        let policy = inbound.get_or(generation, dir, flow, || spd.lookup(dir, flow));
        if let Some(policy) = policy {
            self.touch(policy, now);
        } else if sec_path.is_empty() && self.spd.default_action(dir) == Action::Allow {
            return Ok(());
        }
        let Self { sad, spd, .. } = self;
        let policy = policy.and_then(|policy| spd.get(policy)).map(|policy| &policy.config);
        check(sad, flow, sec_path, quoted, policy, spd.default_action(dir)).map_err(|(mib, reason)| {
            counters.count(mib);
            reason
        })
    }
}

//! Resolution of a policy to the SAs that a packet goes through (Linux `xfrm_lookup_with_ifid`,
//! `xfrm_tmpl_resolve_one`), and requests for missing ones.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use arrayvec::ArrayVec;
use base::{Instant, SaId, ShardId};
use wire::Spi;
use xfrm::{Action, Dir, Flowi, Level, MAX_TEMPLATES, Mode, PolicyConfig, SaDir, Selector, Template};

use crate::events::{Acquire, Event};
use crate::sad::search::{Found, Wanted};
use crate::sad::{Larval, Sad};
use crate::shared::SharedChange;
use crate::spd::{Policy, PolicyId, Spd};

/// The SAs of an outbound packet, the innermost first.
pub type Bundle = ArrayVec<SaId, { MAX_TEMPLATES - 1 }>;

/// Cached decision for an outbound flow.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Bypass,
    Protect {
        sas: Bundle,
        /// The template for which this shard needs an SA of its own (RFC 9611).
        wants: Option<u8>,
    },
    Refused(Refusal),
}

/// Reason for which packets of a flow do not leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refusal {
    Block,
    /// No policy matches, and the default is to block, which Linux does not count.
    DefaultBlock,
    /// There is no SA for a template, by its number.
    Missing {
        template: u8,
        /// Whether a request is pending.
        pending: bool,
    },
    /// The SA of the policy is inbound.
    WrongDirection,
    /// The SPI of the policy is used by another SA, or reserved.
    Clash,
    TooDeep,
}

impl Verdict {
    #[inline]
    pub(crate) const fn lets_pass(&self) -> bool {
        !matches!(self, Self::Refused(_))
    }

    /// Tells whether an SA is missing.
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self, Self::Refused(Refusal::Missing { .. }))
    }
}

/// Finds the SAs of the policy that matched `flow`.
pub(crate) fn resolve(sad: &Sad, spd: &Spd, policy: Option<PolicyId>, flow: &Flowi) -> Verdict {
    let Some(policy) = policy.and_then(|policy| spd.get(policy)) else {
        return match spd.default_action(Dir::Out) {
            Action::Allow => Verdict::Bypass,
            Action::Block => Verdict::Refused(Refusal::DefaultBlock),
        };
    };
    let PolicyConfig { action, templates, mark, offload, cpu_acquire, .. } = &policy.config;
    if *action == Action::Block {
        return Verdict::Refused(Refusal::Block);
    }
    if templates.len() >= MAX_TEMPLATES {
        return Verdict::Refused(Refusal::TooDeep);
    }
    let mut bundle = Bundle::new();
    let mut wants = None;
    for (at, (template, (src, dst))) in with_ends(templates, flow).enumerate() {
        let wanted = Wanted { template, mark: *mark, src, dst, flow, device: *offload };
        let missing = match sad.find(&wanted) {
            Found::Sa(id) if sad.get(id).is_some_and(|sa| sa.dir == Some(SaDir::In)) => {
                return Verdict::Refused(Refusal::WrongDirection);
            }
            Found::Sa(id) if bundle.try_push(id).is_err() => return Verdict::Refused(Refusal::TooDeep),
            Found::Sa(id) => {
                let is_of_all = || sad.get(id).is_some_and(|sa| sa.cpu().is_none());
                let cpu = Some(sad.place.id.0.into());
                let is_pending = || sad.pending(&wanted, cpu);
                if *cpu_acquire && sad.place.has_others() && wants.is_none() && is_of_all() && !is_pending() {
                    wants = Some(at as u8);
                }
                continue;
            }
            Found::Nothing => Refusal::Missing { template: at as u8, pending: false },
            Found::Pending => Refusal::Missing { template: at as u8, pending: true },
            Found::Clash => Refusal::Clash,
        };
        //= RFC 4301 §5.1 protect-without-sa: a packet whose policy requires a missing SA waits
        //=   or is dropped, and never leaves in clear
        if template.level == Level::Required {
            return Verdict::Refused(missing);
        }
    }
    if bundle.is_empty() { Verdict::Bypass } else { Verdict::Protect { sas: bundle, wants } }
}

/// Templates with the outer addresses that each SA must have: a tunnel's own, else those of the packet inside it.
fn with_ends<'a>(templates: &'a [Template], flow: &Flowi) -> impl Iterator<Item = (&'a Template, (IpAddr, IpAddr))> {
    let mut ends = (flow.key.src, flow.key.dst);
    templates.iter().map(move |template| {
        if let (Mode::Tunnel, Some(dst)) = (template.mode, template.dst) {
            ends = (template.src.unwrap_or_else(|| any_like(dst)), dst);
        }
        (template, ends)
    })
}

/// Outer addresses that the SA of a template must have.
pub(crate) fn ends_of(policy: &PolicyConfig, template: usize, flow: &Flowi) -> Option<(IpAddr, IpAddr)> {
    with_ends(&policy.templates, flow).nth(template).map(|(_, ends)| ends)
}

/// The unspecified address of the family of `addr`.
const fn any_like(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

/// Requests the SA that a packet of `flow` needs from the listener, and adds a larval SA (Linux `xfrm_state_find`,
/// `km_query`), for the packets of one shard if `shard` is one. Without a listener, or with its queue full, no larval SA is added: the next packet requests again.
pub(crate) fn acquire(
    sad: &mut Sad,
    now: Instant,
    acq_expires: Duration,
    policy: &Policy,
    template: usize,
    flow: &Flowi,
    shard: Option<ShardId>,
) {
    let PolicyConfig { templates, mark, if_id, .. } = &policy.config;
    let Some((&template, (src, dst))) = with_ends(templates, flow).nth(template) else { return };
    let selector = Selector::exactly(flow);
    let (mark, if_id) = (*mark, *if_id);
    let dir = Some(SaDir::Out);
    let cpu = shard.map(|shard| shard.0.into());
    let larval = Larval {
        // Makes the larval SA match the template for the next packet.
        spi: template.spi.unwrap_or(Spi(0)),
        dir,
        selector: Some(selector),
        mark,
        if_id,
        cpu,
        ..Larval::new(src, dst, template.mode, template.reqid)
    };
    if let Some(seq) = sad.larvae.add(now, acq_expires, larval) {
        sad.changes += 1;
        let acquire = Acquire { seq, src, dst, template, selector, policy: policy.index, mark, if_id, cpu };
        // The other shards add the larval SA alone.
        if !sad.place.is_first() || sad.events.push(Event::Acquire(acquire)) {
            return;
        }
        match sad.place.has_others() {
            true => sad.shared.push(SharedChange::LarvalEnded { seq, is_reported: false }),
            false => drop(sad.larvae.remove(seq)),
        }
    }
}

/// Follows a shard whose packet of `flow` needs an SA: adds the larval SA, unless there is an SA or a request by now. Neither
/// depends on the state of an SA, which its owner learns before the others.
pub(crate) fn follow_acquire(
    sad: &mut Sad,
    now: Instant,
    acq_expires: Duration,
    policy: &Policy,
    template: usize,
    flow: &Flowi,
    shard: Option<ShardId>,
) {
    let PolicyConfig { templates, mark, offload, .. } = &policy.config;
    let Some((of_it, (src, dst))) = with_ends(templates, flow).nth(template) else { return };
    let wanted = Wanted { template: of_it, mark: *mark, src, dst, flow, device: *offload };
    let cpu = shard.map(|shard| shard.0.into());
    if !sad.has(&wanted, cpu) && !sad.pending(&wanted, cpu) {
        acquire(sad, now, acq_expires, policy, template, flow, shard);
    }
}

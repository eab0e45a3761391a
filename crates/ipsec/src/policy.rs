//! What the policies say of a packet: on its way out which SAs it needs, on its way in whether it had them.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use base::{Counters, DropReason, Instant, Mib, SaId};
use packet::SecPath;
use wire::FlowKey;

use crate::config::{Action, Dir, Level, MAX_TEMPLATES, Mode, PolicyConfig, SaDir, Template};
use crate::flowi::Flowi;
use crate::gateway::Ipsec;
use crate::sa::Sa;
use crate::sad::Sad;
use crate::spd::Spd;

/// The SAs that a packet goes through on its way out, the innermost first.
pub type Bundle = ArrayVec<SaId, { MAX_TEMPLATES - 1 }>;

/// What becomes of a packet on its way out.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// It leaves as it is.
    Bypass,
    /// It goes through these SAs, at least one.
    Protect(Bundle),
    /// It does not leave. The counter is counted.
    Drop(DropReason),
}

/// What is remembered of a flow on its way out.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Bypass,
    Protect(Bundle),
    Block,
    /// Nobody's policy, and the default is to block, which Linux does not count.
    DefaultBlock,
    NoState,
    /// The SA that the policy asks for is one to receive by.
    WrongDirection,
    TooDeep,
}

impl Ipsec {
    /// What becomes of the packets of `flow` on their way out, own and forwarded ones. Once per fat packet.
    #[inline]
    pub fn lookup(&mut self, _now: Instant, flow: &Flowi, counters: &mut Counters) -> Decision {
        let Self { sad, spd, generation, outbound, .. } = self;
        let (mib, reason) = match outbound.get_or(*generation, Dir::Out, flow, || resolve(sad, spd, flow)) {
            Verdict::Bypass => return Decision::Bypass,
            Verdict::Protect(bundle) => return Decision::Protect(bundle),
            Verdict::DefaultBlock => return Decision::Drop(DropReason::PolicyBlock),
            Verdict::Block => (Mib::XfrmOutPolBlock, DropReason::PolicyBlock),
            Verdict::NoState => (Mib::XfrmOutNoStates, DropReason::PolicyNoState),
            Verdict::WrongDirection => (Mib::XfrmOutStateDirError, DropReason::EspDirection),
            Verdict::TooDeep => (Mib::XfrmOutPolError, DropReason::PolicyDepth),
        };
        counters.count(mib);
        Decision::Drop(reason)
    }

    /// Whether a packet of `flow` may go on as it came, through the SAs of `sec_path`: [`Dir::In`] for one to this
    /// node, [`Dir::Fwd`] for one that it forwards (Linux `__xfrm_policy_check`).
    ///
    /// # Errors
    /// Why not. The counter is counted.
    #[inline]
    pub fn check(
        &mut self,
        _now: Instant,
        dir: Dir,
        flow: &Flowi,
        sec_path: &SecPath,
        quoted: impl FnOnce() -> Option<FlowKey>,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let Self { sad, spd, generation, inbound, .. } = self;
        let position = inbound.get_or(*generation, dir, flow, || spd.lookup(dir, flow));
        if sec_path.is_empty() && position.is_none() && spd.default_action(dir) == Action::Allow {
            return Ok(());
        }
        let policy = position.and_then(|position| spd.get(position)).map(|policy| &policy.config);
        check(sad, flow, sec_path, quoted, policy, spd.default_action(dir)).map_err(|(mib, reason)| {
            counters.count(mib);
            reason
        })
    }
}

/// Finds the policy and its SAs (Linux `xfrm_tmpl_resolve_one`).
fn resolve(sad: &Sad, spd: &Spd, flow: &Flowi) -> Verdict {
    let Some(policy) = spd.lookup(Dir::Out, flow).and_then(|position| spd.get(position)) else {
        return match spd.default_action(Dir::Out) {
            Action::Allow => Verdict::Bypass,
            Action::Block => Verdict::DefaultBlock,
        };
    };
    let PolicyConfig { action, templates, .. } = &policy.config;
    if *action == Action::Block {
        return Verdict::Block;
    }
    let mut bundle = Bundle::new();
    let (mut src, mut dst) = (flow.key.src, flow.key.dst);
    for template in templates {
        if template.mode == Mode::Tunnel {
            let Some(end) = template.dst else { return Verdict::NoState };
            (src, dst) = (template.src.unwrap_or_else(|| any_like(end)), end);
        }
        match sad.for_template(template, src, dst, flow) {
            Some(sa) if sad.get(sa).is_some_and(|sa| sa.dir == Some(SaDir::In)) => return Verdict::WrongDirection,
            Some(sa) => {
                if bundle.try_push(sa).is_err() {
                    return Verdict::TooDeep;
                }
            }
            None if template.level == Level::Use => {}
            None => return Verdict::NoState,
        }
    }
    match (templates.len(), bundle.is_empty()) {
        (MAX_TEMPLATES.., _) => Verdict::TooDeep,
        (_, true) => Verdict::Bypass,
        (_, false) => Verdict::Protect(bundle),
    }
}

/// The unspecified address of the family of `addr`.
const fn any_like(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(_) => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
    }
}

type Refused = (Mib, DropReason);

fn check(
    sad: &Sad,
    flow: &Flowi,
    sec_path: &SecPath,
    quoted: impl FnOnce() -> Option<FlowKey>,
    policy: Option<&PolicyConfig>,
    default: Action,
) -> Result<(), Refused> {
    let mut used = ArrayVec::<&Sa, 6>::new();
    for &id in sec_path {
        // An SA that is gone protects nothing any more; Linux keeps it alive as long as the packet.
        used.push(sad.get(id).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))?);
    }
    if !used.iter().all(|sa| sa.may_have_carried(flow, None)) {
        let quoted = quoted().map(|key| Flowi { key, ..*flow });
        if !used.iter().all(|sa| sa.may_have_carried(flow, quoted.as_ref())) {
            return Err((Mib::XfrmInStateMismatch, DropReason::PolicyMismatch));
        }
    }
    let Some(policy) = policy else {
        let no_policy = default == Action::Block || used.iter().any(|sa| sa.mode == Mode::Tunnel);
        return if no_policy { Err((Mib::XfrmInNoPols, DropReason::PolicyMismatch)) } else { Ok(()) };
    };
    match policy.action {
        Action::Block => return Err((Mib::XfrmInPolBlock, DropReason::PolicyBlock)),
        Action::Allow if policy.templates.len() >= MAX_TEMPLATES => {
            return Err((Mib::XfrmInBufferError, DropReason::PolicyDepth));
        }
        Action::Allow => {}
    }
    // The outermost template stands last, the outermost SA first.
    let mismatch = (Mib::XfrmInTmplMismatch, DropReason::PolicyMismatch);
    let mut next = 0;
    for template in policy.templates.iter().rev() {
        next = satisfy(template, &used, next).ok_or(mismatch)?;
    }
    if used[next..].iter().any(|sa| sa.mode == Mode::Tunnel) { Err(mismatch) } else { Ok(()) }
}

/// Where in `used` to go on after `template` is satisfied from `start` on (Linux `xfrm_policy_ok`). A transport SA that
/// no template asks for may stand between; a tunnel may not.
fn satisfy(template: &Template, used: &[&Sa], start: usize) -> Option<usize> {
    let optional = template.level == Level::Use;
    if optional && template.mode == Mode::Transport {
        return Some(start);
    }
    for (at, sa) in used.iter().enumerate().skip(start) {
        if is_asked_for(sa, template) {
            return Some(at + 1);
        }
        if sa.mode == Mode::Tunnel {
            break;
        }
    }
    optional.then_some(start)
}

/// Tells whether `sa` is what `template` asks for (Linux `xfrm_state_ok`).
fn is_asked_for(sa: &Sa, template: &Template) -> bool {
    let any_source = template.src.is_none_or(|src| src.is_unspecified());
    template.spi.is_none_or(|spi| spi == sa.spi)
        && (template.reqid == 0 || template.reqid == sa.reqid)
        && template.mode == sa.mode
        && (sa.mode == Mode::Transport || any_source || template.src == Some(sa.src))
}

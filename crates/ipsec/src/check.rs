//! Inbound policy check: whether a received packet had the protection that its policy demands (RFC 4301 §5.2, Linux
//! `__xfrm_policy_check`).

use arrayvec::ArrayVec;
use base::{DropReason, Mib};
use packet::SecPath;
use wire::FlowKey;
use xfrm::{Action, Flowi, Level, MAX_TEMPLATES, Mode, PolicyConfig, Template};

use crate::sa::Sa;
use crate::sad::Sad;

type Refused = (Mib, DropReason);

pub(crate) fn check(
    sad: &Sad,
    flow: &Flowi,
    sec_path: &SecPath,
    quoted: impl FnOnce() -> Option<FlowKey>,
    policy: Option<&PolicyConfig>,
    default: Action,
) -> Result<(), Refused> {
    let mut used = ArrayVec::<&Sa, 6>::new();
    for &id in sec_path {
        // A removed SA protects nothing any more; on Linux it lives as long as its packets.
        used.push(sad.get(id).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))?);
    }
    //= RFC 4301 §5.2 selectors-of-sa: a decrypted packet has to match the selector of each SA that decrypted it
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
    //= RFC 4301 §5.2 clear-where-protected: a packet in clear, or from other SAs than its policy requires, is dropped
    // The outermost template stands last, the outermost SA first.
    let mismatch = (Mib::XfrmInTmplMismatch, DropReason::PolicyMismatch);
    let mut next = 0;
    for template in policy.templates.iter().rev() {
        next = satisfy(template, flow, &used, next).ok_or(mismatch)?;
    }
    if used[next..].iter().any(|sa| sa.mode == Mode::Tunnel) { Err(mismatch) } else { Ok(()) }
}

/// Index in `used` from which to go on after `template` is satisfied from `start` on (Linux `xfrm_policy_ok`). A
/// transport SA that no template asks for may stand between; a tunnel may not.
fn satisfy(template: &Template, flow: &Flowi, used: &[&Sa], start: usize) -> Option<usize> {
    let optional = template.level == Level::Use;
    if optional && template.mode == Mode::Transport {
        return Some(start);
    }
    for (at, sa) in used.iter().enumerate().skip(start) {
        if satisfies_template(sa, template, flow) {
            return Some(at + 1);
        }
        if sa.mode == Mode::Tunnel {
            break;
        }
    }
    optional.then_some(start)
}

/// Tells whether `sa` satisfies `template` (Linux `xfrm_state_ok`).
fn satisfies_template(sa: &Sa, template: &Template, flow: &Flowi) -> bool {
    let any_source = template.src.is_none_or(|src| src.is_unspecified());
    template.spi.is_none_or(|spi| spi == sa.spi)
        && (template.reqid == 0 || template.reqid == sa.reqid)
        && template.mode == sa.mode
        && (sa.mode == Mode::Transport || any_source || template.src == Some(sa.src))
        && (flow.if_id == 0 || flow.if_id == sa.if_id)
}

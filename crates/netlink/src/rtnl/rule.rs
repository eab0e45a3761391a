//! `RTM_*RULE`: rules that select routing tables (`net/core/fib_rules.c`). A rule matches by destination, and by
//! whether the packet is in a VRF.

use std::net::IpAddr;

use base::Prefix;

use super::backend::Backend;
use super::fib_rule::{FR_ACT_BLACKHOLE, FR_ACT_PROHIBIT, FR_ACT_UNREACHABLE, Rule};
use super::header::{behind, fixed};
use super::model::Model;
use super::node::Rtnl;
use super::nums::*;
use crate::attr::{Attr, AttrPolicy, Kind, Strictness, parse, policy};
use crate::error::{Error, errno};
use crate::message::{Writer, flag};
use crate::session::{Dump, Reply, Request, write_each};

/// Length of `struct fib_rule_hdr`.
const LEN: usize = 12;

/// Limit of a family's rules.
const MAX_RULES: usize = 1000;

const POLICY: AttrPolicy<FRA_MAX> = policy(&[
    (FRA_DST, Kind::Any),
    (FRA_SRC, Kind::Any),
    (FRA_IIFNAME, Kind::Str(15)),
    (FRA_GOTO, Kind::Int(4)),
    (FRA_PRIORITY, Kind::Int(4)),
    (FRA_FWMARK, Kind::Int(4)),
    (FRA_FLOW, Kind::Int(4)),
    (FRA_TUN_ID, Kind::Int(8)),
    (FRA_SUPPRESS_IFGROUP, Kind::Int(4)),
    (FRA_SUPPRESS_PREFIXLEN, Kind::Int(4)),
    (FRA_TABLE, Kind::Int(4)),
    (FRA_FWMASK, Kind::Int(4)),
    (FRA_OIFNAME, Kind::Str(15)),
    (FRA_L3MDEV, Kind::Int(1)),
    (FRA_UID_RANGE, Kind::Min(8)),
    (FRA_PROTOCOL, Kind::Int(1)),
    (FRA_IP_PROTO, Kind::Int(1)),
    (FRA_SPORT_RANGE, Kind::Min(4)),
    (FRA_DPORT_RANGE, Kind::Min(4)),
]);

/// Unsupported selectors, with their error texts.
const UNSUPPORTED: [(u16, &str); 11] = [
    (FRA_IIFNAME, "fatpath has no rules by link"),
    (FRA_OIFNAME, "fatpath has no rules by link"),
    (FRA_GOTO, "fatpath has no rules that go to others"),
    (FRA_FWMARK, "fatpath has no rules by mark"),
    (FRA_FWMASK, "fatpath has no rules by mark"),
    (FRA_FLOW, "fatpath has no realms"),
    (FRA_TUN_ID, "fatpath has no rules by tunnel"),
    (FRA_UID_RANGE, "fatpath has no rules by user"),
    (FRA_IP_PROTO, "fatpath has no rules by protocol"),
    (FRA_SPORT_RANGE, "fatpath has no rules by port"),
    (FRA_DPORT_RANGE, "fatpath has no rules by port"),
];

/// Rule of a request.
struct RuleRequest {
    v4: bool,
    to: Option<(IpAddr, u8)>,
    action: u8,
    table: u32,
    l3mdev: bool,
    priority: Option<u32>,
    protocol: Option<u8>,
}

impl RuleRequest {
    fn of(request: &Request<'_>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let [family, dst_len, src_len, tos, table, _, _, action, flags @ ..] = *header;
        let v4 = family == AF_INET;
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        // An address without a length, as of `from all`, is ignored (Linux `fib4_rule_configure`).
        if src_len != 0 || tos != 0 || u32::from_ne_bytes(flags) != 0 {
            return Err(Error::unsupported("fatpath has no rules by source or TOS, and no inverted rules"));
        }
        if let Some((attr, text)) = UNSUPPORTED.iter().find_map(|&(kind, text)| Some((attrs.get(kind)?, text))) {
            return Err(Error::unsupported(text).at(attr.offset));
        }
        let suppressing = [FRA_SUPPRESS_PREFIXLEN, FRA_SUPPRESS_IFGROUP];
        if suppressing.iter().filter_map(|&kind| attrs.get(kind)).any(|attr| attr.u32() != u32::MAX) {
            return Err(Error::unsupported("fatpath has no rules that suppress routes"));
        }
        let l3mdev = match attrs.get(FRA_L3MDEV).map(Attr::u8) {
            None => false,
            Some(1) => true,
            Some(_) => return Err(Error::text(errno::EINVAL, "Invalid l3mdev attribute")),
        };
        let to = match dst_len {
            0 => None,
            // Linux `validate_rulemsg`.
            len => {
                let dst = attrs.get(FRA_DST).filter(|dst| dst.data.len() == if v4 { 4 } else { 16 });
                let to = dst.and_then(|dst| dst.ip(v4)).filter(|&addr| Prefix::containing(addr, len).is_ok());
                Some((to.ok_or(Error::text(errno::EINVAL, "Invalid dst address"))?, len))
            }
        };
        Ok(Self {
            v4,
            to,
            action,
            table: attrs.get(FRA_TABLE).map_or(table.into(), Attr::u32),
            l3mdev,
            priority: attrs.get(FRA_PRIORITY).map(Attr::u32),
            protocol: attrs.get(FRA_PROTOCOL).map(Attr::u8),
        })
    }
}

fn group(v4: bool) -> u32 {
    if v4 { RTNLGRP_IPV4_RULE } else { RTNLGRP_IPV6_RULE }
}

/// Carries out an `RTM_NEWRULE` (Linux `fib_nl_newrule`).
pub(super) fn add(model: &mut Model, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let requested = RuleRequest::of(request)?;
    if requested.l3mdev && requested.table != 0 {
        return Err(Error::text(errno::EINVAL, "l3mdev and table are mutually exclusive"));
    }
    let table = match (requested.action, requested.table) {
        (FR_ACT_TO_TBL, 0) if requested.l3mdev => 0,
        (FR_ACT_TO_TBL, 0) if !requested.v4 => return Err(Error::text(errno::EINVAL, "Invalid table")),
        // The lowest unused table (Linux `fib_empty_table`).
        (FR_ACT_TO_TBL, 0) => {
            (1..=u32::MAX).find(|&id| !model.has_table(true, id)).ok_or(Error::new(errno::ENOBUFS))?
        }
        (FR_ACT_TO_TBL | FR_ACT_BLACKHOLE | FR_ACT_UNREACHABLE | FR_ACT_PROHIBIT, table) => table,
        _ => return Err(Error::unsupported("fatpath's rules only look up a table or drop")),
    };
    let mut rules = model.rules(requested.v4).to_vec();
    // In front of the second rule, unless its priority is 0 (`fib_default_rule_pref`).
    let default = || rules.get(1).map_or(0, |second| second.priority.saturating_sub(1));
    let rule = Rule {
        priority: requested.priority.unwrap_or_else(default),
        to: requested.to,
        action: requested.action,
        table,
        l3mdev: requested.l3mdev,
        protocol: requested.protocol.unwrap_or_default(),
    };
    let same = |other: &Rule| *other == rule;
    if request.has(flag::EXCL) && rules.iter().any(same) {
        return Err(Error::new(errno::EEXIST));
    }
    if rules.len() >= MAX_RULES {
        return Err(Error::owned_text(errno::ENOMEM, format!("fatpath has at most {MAX_RULES} rules")));
    }
    let at = rules.partition_point(|other| other.priority <= rule.priority);
    rules.insert(at, rule.clone());
    model.set_rules(requested.v4, rules);
    notify_added(requested.v4, &rule, reply);
    Ok(())
}

/// Notifies listeners of a new rule.
pub(super) fn notify_added(v4: bool, rule: &Rule, reply: &mut Reply<'_>) {
    reply.notify(group(v4), RTM_NEWRULE, 0, |w| write(w, v4, rule));
}

/// Carries out an `RTM_DELRULE` (Linux `fib_nl_delrule`).
pub(super) fn remove(model: &mut Model, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let requested = RuleRequest::of(request)?;
    let mut rules = model.rules(requested.v4).to_vec();
    let at = rules.iter().position(|rule| {
        requested.priority.is_none_or(|priority| priority == rule.priority)
            && (requested.action == 0 || requested.action == rule.action)
            && (requested.table == 0 || requested.table == rule.table)
            && (!requested.l3mdev || rule.l3mdev)
            && requested.protocol.is_none_or(|protocol| protocol == rule.protocol)
            && requested.to.is_none_or(|to| rule.to == Some(to))
    });
    let gone = rules.remove(at.ok_or(Error::new(errno::ENOENT))?);
    model.set_rules(requested.v4, rules);
    reply.notify(group(requested.v4), RTM_DELRULE, 0, |w| write(w, requested.v4, &gone));
    Ok(())
}

pub(super) fn dump<B: Backend>(rtnl: &mut Rtnl<B>, request: &Request<'_>, family: u8) -> Result<Dump<Rtnl<B>>, Error> {
    if request.strict {
        let (header, rest) = fixed::<LEN>(request)
            .map_err(|_| Error::text(errno::EINVAL, "Invalid header for fib rule dump request"))?;
        if header[1..] != [0; LEN - 1] {
            return Err(Error::text(errno::EINVAL, "Invalid values in header for fib rule dump request"));
        }
        if !rest.is_empty() {
            return Err(Error::text(errno::EINVAL, "Invalid data after header in fib rule dump request"));
        }
    }
    // The dump is a snapshot; rules are few.
    let families =
        [(true, family != AF_INET6), (false, family != AF_INET)].into_iter().filter(|(_, requested)| *requested);
    let model = &rtnl.model;
    let rules: Vec<_> =
        families.flat_map(|(v4, _)| model.rules(v4).iter().map(move |rule| (v4, rule.clone()))).collect();
    let mut last = None;
    Ok(Box::new(move |_: &mut Rtnl<B>, part| {
        let left = rules.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (v4, rule)| part.message(RTM_NEWRULE, |w| write(w, *v4, rule))))
    }))
}

/// Writes a rule, as Linux's `fib_nl_fill_rule`.
pub(super) fn write(w: &mut Writer, v4: bool, rule: &Rule) {
    let family = if v4 { AF_INET } else { AF_INET6 };
    let shown = if rule.table < 256 { rule.table as u8 } else { RT_TABLE_COMPAT as u8 };
    w.fixed(&[family, rule.to.map_or(0, |(_, len)| len), 0, 0, shown, 0, 0, rule.action]);
    w.fixed(&[0; 4]);
    w.put_u32(FRA_TABLE, rule.table);
    w.put_u32(FRA_SUPPRESS_PREFIXLEN, u32::MAX);
    w.put_u8(FRA_PROTOCOL, rule.protocol);
    if rule.l3mdev {
        w.put_u8(FRA_L3MDEV, 1);
    }
    if rule.priority != 0 {
        w.put_u32(FRA_PRIORITY, rule.priority);
    }
    if let Some((addr, _)) = rule.to {
        w.put_ip(FRA_DST, addr);
    }
}

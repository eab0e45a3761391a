//! `RTM_*RULE`: rules that select routing tables (`net/core/fib_rules.c`).

use std::net::IpAddr;
use std::ops::RangeInclusive;

use base::Prefix;

use super::backend::Backend;
use super::fib_rule::{
    FR_ACT_BLACKHOLE, FR_ACT_GOTO, FR_ACT_NOP, FR_ACT_PROHIBIT, FR_ACT_UNREACHABLE, Rule, RuleLink, SUPPRESS_NOTHING,
};
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
const UNSUPPORTED: [(u16, &str); 6] = [
    (FRA_OIFNAME, "fatpath has no rules by output link"),
    (FRA_FWMARK, "fatpath has no rules by mark"),
    (FRA_FWMASK, "fatpath has no rules by mark"),
    (FRA_FLOW, "fatpath has no realms"),
    (FRA_TUN_ID, "fatpath has no rules by tunnel"),
    (FRA_UID_RANGE, "fatpath has no rules by user"),
];

/// Flags of `struct fib_rule_hdr`. Those of state are in messages of the node alone.
const FIB_RULE_INVERT: u32 = 0x2;
const FIB_RULE_UNRESOLVED: u32 = 0x4;
const FIB_RULE_IIF_DETACHED: u32 = 0x8;
const FIB_RULE_OIF_DETACHED: u32 = 0x10;

/// Bits of ECN in a TOS or traffic class.
const ECN_MASK: u8 = 0x3;
/// Bits of a TOS that a rule of IPv4 may have (`IPTOS_TOS_MASK`).
const TOS_MASK_V4: u8 = 0x1e;

/// Rule of a request.
struct RuleRequest {
    v4: bool,
    to: Option<(IpAddr, u8)>,
    from: Option<(IpAddr, u8)>,
    iif: Option<String>,
    tos: u8,
    ip_proto: u8,
    sport: Option<RangeInclusive<u16>>,
    dport: Option<RangeInclusive<u16>>,
    inverted: bool,
    action: u8,
    table: u32,
    target: Option<u32>,
    suppress: u32,
    l3mdev: bool,
    priority: Option<u32>,
    protocol: Option<u8>,
}

/// Ports of a rule (Linux `nla_get_port_range`, which refuses the last port).
fn ports(attr: Option<&Attr<'_>>, text: &'static str) -> Result<Option<RangeInclusive<u16>>, Error> {
    let Some(attr) = attr else { return Ok(None) };
    let invalid = || Error::text(errno::EINVAL, text).at(attr.offset);
    let [a, b, c, d] = *attr.data.first_chunk().ok_or_else(invalid)?;
    let (first, last) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
    if first == 0 || last == u16::MAX || first > last {
        return Err(invalid());
    }
    Ok(Some(first..=last))
}

impl RuleRequest {
    fn of(request: &Request<'_>) -> Result<Self, Error> {
        let (header, rest) = fixed::<LEN>(request)?;
        let [family, dst_len, src_len, tos, table, _, _, action, flags @ ..] = *header;
        let v4 = family == AF_INET;
        let attrs = parse(rest, behind(LEN), &POLICY, Strictness::Liberal)?;
        // An address without a length, as of `from all`, is ignored (Linux `validate_rulemsg`).
        let prefix = |kind, len, text| match len {
            0 => Ok(None),
            len => {
                let addr = attrs.get(kind).filter(|addr| addr.data.len() == if v4 { 4 } else { 16 });
                let of = addr.and_then(|addr| addr.ip(v4)).filter(|&addr| Prefix::containing(addr, len).is_ok());
                of.map(|addr| Some((addr, len))).ok_or(Error::text(errno::EINVAL, text))
            }
        };
        let from = prefix(FRA_SRC, src_len, "Invalid src address")?;
        let to = prefix(FRA_DST, dst_len, "Invalid dst address")?;
        let flags = u32::from_ne_bytes(flags) & !(FIB_RULE_UNRESOLVED | FIB_RULE_IIF_DETACHED | FIB_RULE_OIF_DETACHED);
        if flags & !FIB_RULE_INVERT != 0 {
            return Err(Error::unsupported("fatpath has no permanent rules, nor rules that find their source"));
        }
        if let Some((attr, text)) = UNSUPPORTED.iter().find_map(|&(kind, text)| Some((attrs.get(kind)?, text))) {
            return Err(Error::unsupported(text).at(attr.offset));
        }
        if attrs.get(FRA_SUPPRESS_IFGROUP).is_some_and(|attr| attr.u32() != SUPPRESS_NOTHING) {
            return Err(Error::unsupported("fatpath has no rules that suppress groups of links"));
        }
        let l3mdev = match attrs.get(FRA_L3MDEV).map(Attr::u8) {
            None => false,
            Some(1) => true,
            Some(_) => return Err(Error::text(errno::EINVAL, "Invalid l3mdev attribute")),
        };
        if tos & ECN_MASK != 0 {
            return Err(Error::text(errno::EINVAL, "Invalid dsfield (tos): ECN bits must be 0"));
        }
        if v4 && tos & !TOS_MASK_V4 != 0 {
            return Err(Error::text(errno::EINVAL, "Invalid tos"));
        }
        Ok(Self {
            v4,
            to,
            from,
            iif: attrs.get(FRA_IIFNAME).and_then(Attr::text).filter(|name| !name.is_empty()).map(str::to_owned),
            tos,
            ip_proto: attrs.get(FRA_IP_PROTO).map_or(0, Attr::u8),
            sport: ports(attrs.get(FRA_SPORT_RANGE), "Invalid sport range")?,
            dport: ports(attrs.get(FRA_DPORT_RANGE), "Invalid dport range")?,
            inverted: flags & FIB_RULE_INVERT != 0,
            action,
            table: attrs.get(FRA_TABLE).map_or(table.into(), Attr::u32),
            target: attrs.get(FRA_GOTO).map(Attr::u32),
            suppress: attrs.get(FRA_SUPPRESS_PREFIXLEN).map_or(SUPPRESS_NOTHING, Attr::u32),
            l3mdev,
            priority: attrs.get(FRA_PRIORITY).map(Attr::u32),
            protocol: attrs.get(FRA_PROTOCOL).map(Attr::u8),
        })
    }

    /// Whether the request means that rule (Linux `rule_find`): all that it names is the rule's.
    fn means(&self, rule: &Rule) -> bool {
        self.priority.is_none_or(|priority| priority == rule.priority)
            && (self.action == 0 || self.action == rule.action)
            && (self.table == 0 || self.table == rule.table)
            && (!self.l3mdev || rule.l3mdev)
            && self.protocol.is_none_or(|protocol| protocol == rule.protocol)
            && (self.suppress == SUPPRESS_NOTHING || self.suppress == rule.suppress)
            && self.iif.as_ref().is_none_or(|name| rule.iif.as_ref().is_some_and(|iif| iif.name == *name))
            && (self.ip_proto == 0 || self.ip_proto == rule.ip_proto)
            && (self.sport.is_none() || self.sport == rule.sport)
            && (self.dport.is_none() || self.dport == rule.dport)
            && (self.tos == 0 || self.tos == rule.tos)
            && self.to.is_none_or(|to| rule.to == Some(to))
            && self.from.is_none_or(|from| rule.from == Some(from))
    }

    /// The target of a rule at that priority, 0 for none (Linux `fib_nl2rule`).
    fn target(&self, priority: u32) -> Result<u32, Error> {
        let refused = |text| Err(Error::text(errno::EINVAL, text));
        match (self.action, self.target) {
            (FR_ACT_GOTO, None) => refused("Missing goto target for action goto"),
            // Jumps back could be endless.
            (FR_ACT_GOTO, Some(target)) if target <= priority => refused("Backward goto not supported"),
            (FR_ACT_GOTO, Some(target)) => Ok(target),
            (_, Some(_)) => refused("Unexpected goto"),
            (_, None) => Ok(0),
        }
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
        (FR_ACT_TO_TBL | FR_ACT_GOTO | FR_ACT_NOP | FR_ACT_BLACKHOLE | FR_ACT_UNREACHABLE | FR_ACT_PROHIBIT, table) => {
            table
        }
        _ => return Err(Error::unsupported("fatpath's rules look up a table, drop, or continue with another rule")),
    };
    let mut rules = model.rules(requested.v4).to_vec();
    // In front of the second rule, unless its priority is 0 (`fib_default_rule_pref`).
    let default = || rules.get(1).map_or(0, |second| second.priority.saturating_sub(1));
    let priority = requested.priority.unwrap_or_else(default);
    let target = requested.target(priority)?;
    let RuleRequest { to, from, tos, ip_proto, inverted, action, suppress, l3mdev, .. } = requested;
    let iif = requested.iif.map(|name| RuleLink { link: model.index_of(&name), name });
    let (sport, dport) = (requested.sport, requested.dport);
    let protocol = requested.protocol.unwrap_or_default();
    let rule = Rule {
        priority,
        to,
        from,
        iif,
        tos,
        ip_proto,
        sport,
        dport,
        inverted,
        action,
        table,
        target,
        suppress,
        l3mdev,
        protocol,
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
    notify_added(model, requested.v4, &rule, reply);
    Ok(())
}

/// Notifies listeners of a new rule.
pub(super) fn notify_added(model: &Model, v4: bool, rule: &Rule, reply: &mut Reply<'_>) {
    reply.notify(group(v4), RTM_NEWRULE, 0, |w| write(w, v4, rule, model.rules(v4)));
}

/// Carries out an `RTM_DELRULE` (Linux `fib_nl_delrule`).
pub(super) fn remove(model: &mut Model, request: &Request<'_>, reply: &mut Reply<'_>) -> Result<(), Error> {
    let requested = RuleRequest::of(request)?;
    let mut rules = model.rules(requested.v4).to_vec();
    let priority =
        requested.priority.unwrap_or_else(|| rules.get(1).map_or(0, |second| second.priority.saturating_sub(1)));
    requested.target(priority)?;
    let at = rules.iter().position(|rule| requested.means(rule));
    let gone = rules.remove(at.ok_or(Error::new(errno::ENOENT))?);
    // As it was when its target was there.
    reply.notify(group(requested.v4), RTM_DELRULE, 0, |w| write(w, requested.v4, &gone, model.rules(requested.v4)));
    model.set_rules(requested.v4, rules);
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
    Ok(Box::new(move |rtnl: &mut Rtnl<B>, part| {
        let left = rules.iter().enumerate().skip(last.map_or(0, |last| last + 1));
        Ok(write_each(part, &mut last, left, |part, _, (v4, rule)| {
            part.message(RTM_NEWRULE, |w| write(w, *v4, rule, rtnl.model.rules(*v4)))
        }))
    }))
}

/// Writes a rule among its family's, as Linux's `fib_nl_fill_rule`.
pub(super) fn write(w: &mut Writer, v4: bool, rule: &Rule, all: &[Rule]) {
    let family = if v4 { AF_INET } else { AF_INET6 };
    let shown = if rule.table < 256 { rule.table as u8 } else { RT_TABLE_COMPAT as u8 };
    let len = |of: Option<(IpAddr, u8)>| of.map_or(0, |(_, len)| len);
    w.fixed(&[family, len(rule.to), len(rule.from), rule.tos, shown, 0, 0, rule.action]);
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    let flags = flag(rule.inverted, FIB_RULE_INVERT)
        | flag(rule.action == FR_ACT_GOTO && rule.target_in(all).is_none(), FIB_RULE_UNRESOLVED)
        | flag(rule.iif.as_ref().is_some_and(|iif| iif.link.is_none()), FIB_RULE_IIF_DETACHED);
    w.fixed(&flags.to_ne_bytes());
    w.put_u32(FRA_TABLE, rule.table);
    w.put_u32(FRA_SUPPRESS_PREFIXLEN, rule.suppress);
    w.put_u8(FRA_PROTOCOL, rule.protocol);
    if let Some(iif) = &rule.iif {
        w.put_str(FRA_IIFNAME, &iif.name);
    }
    if rule.priority != 0 {
        w.put_u32(FRA_PRIORITY, rule.priority);
    }
    if rule.target != 0 {
        w.put_u32(FRA_GOTO, rule.target);
    }
    if rule.l3mdev {
        w.put_u8(FRA_L3MDEV, 1);
    }
    let mut put_ports = |kind, ports: &Option<RangeInclusive<u16>>| {
        if let Some(ports) = ports {
            w.put(kind, &[ports.start().to_ne_bytes(), ports.end().to_ne_bytes()].concat());
        }
    };
    put_ports(FRA_SPORT_RANGE, &rule.sport);
    put_ports(FRA_DPORT_RANGE, &rule.dport);
    if rule.ip_proto != 0 {
        w.put_u8(FRA_IP_PROTO, rule.ip_proto);
    }
    for (kind, prefix) in [(FRA_DST, rule.to), (FRA_SRC, rule.from)] {
        if let Some((addr, _)) = prefix {
            w.put_ip(kind, addr);
        }
    }
}

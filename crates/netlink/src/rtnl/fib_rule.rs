//! Rule that selects a table for a route lookup (Linux `struct fib_rule`).

use std::net::IpAddr;
use std::ops::RangeInclusive;

use base::{PortId, Prefix, RuleInput, RuleSelector, TableId};

use super::nums::*;
use super::table::Route;

/// Actions of rules that lead to other rules (`FR_ACT_*`).
pub(super) const FR_ACT_GOTO: u8 = 2;
pub(super) const FR_ACT_NOP: u8 = 3;

/// Actions of rules that drop packets (`FR_ACT_*`).
pub(super) const FR_ACT_BLACKHOLE: u8 = 6;
pub(super) const FR_ACT_UNREACHABLE: u8 = 7;
pub(super) const FR_ACT_PROHIBIT: u8 = 8;

/// Priority of the rule that looks up the tables of VRFs (`FIB_RULE_PREF`).
pub(super) const L3MDEV_PRIORITY: u32 = 1000;

/// Value of [`Rule::suppress`] for none.
pub(super) const SUPPRESS_NOTHING: u32 = u32::MAX;

/// Input link of a rule, by name: it may be added and removed while the rule stays.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RuleLink {
    /// Name.
    pub name: String,
    /// Number; `None` while there is no such link.
    pub link: Option<u32>,
}

/// A rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Priority; rules are evaluated in ascending order.
    pub priority: u32,
    /// Destinations that the rule matches, as the client wrote the prefix; all if `None`.
    pub to: Option<(IpAddr, u8)>,
    /// Sources that the rule matches, as the client wrote the prefix; all if `None`.
    pub from: Option<(IpAddr, u8)>,
    /// Link of the packets that the rule matches; `lo` for packets of the node itself.
    pub iif: Option<RuleLink>,
    /// TOS or traffic class; 0 for any.
    pub tos: u8,
    /// Protocol of the upper layer; 0 for any.
    pub ip_proto: u8,
    /// Source ports.
    pub sport: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub dport: Option<RangeInclusive<u16>>,
    /// Whether the rule matches the packets that these selectors do not match.
    pub inverted: bool,
    /// `FR_ACT_*`.
    pub action: u8,
    /// Table to look up; 0 for none, or for an l3mdev rule, which selects the table of the packet's VRF.
    pub table: u32,
    /// Priority of the rule that a rule with the action `goto` continues with; 0 for other actions.
    pub target: u32,
    /// Routes with a prefix of that length or a shorter one do not count; [`u32::MAX`] for none.
    pub suppress: u32,
    /// Whether the rule matches packets in VRFs only (`FRA_L3MDEV`).
    pub l3mdev: bool,
    /// Origin: `RTPROT_*`.
    pub protocol: u8,
}

/// Action of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RuleThen {
    /// Looks up a table.
    Ask(TableId),
    /// Looks up the table of the packet's VRF.
    AskVrf,
    /// Continues with the first rule of that priority, if there is one.
    GoTo(u32),
    /// Continues with the next rule.
    Nop,
    /// Drops the packet silently.
    Blackhole,
    /// Drops the packet, with the error *network unreachable*.
    Unreachable,
    /// Drops the packet, with the error *communication administratively prohibited*.
    Prohibit,
}

impl Rule {
    /// Rule of the kernel for all packets, with the action of a lookup.
    const fn kernel(priority: u32, table: u32) -> Self {
        Self {
            priority,
            to: None,
            from: None,
            iif: None,
            tos: 0,
            ip_proto: 0,
            sport: None,
            dport: None,
            inverted: false,
            action: FR_ACT_TO_TBL,
            table,
            target: 0,
            suppress: SUPPRESS_NOTHING,
            l3mdev: false,
            protocol: RTPROT_KERNEL,
        }
    }

    /// Linux's default rules.
    pub(super) fn first(v4: bool) -> Vec<Self> {
        let last = v4.then_some((32767, RT_TABLE_DEFAULT));
        let all = [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN)].into_iter().chain(last);
        all.map(|(priority, table)| Self::kernel(priority, table)).collect()
    }

    /// Rule that is added with the first VRF.
    pub(super) fn l3mdev() -> Self {
        Self { l3mdev: true, ..Self::kernel(L3MDEV_PRIORITY, RT_TABLE_UNSPEC) }
    }

    /// The packets that the rule matches.
    pub fn selector(&self) -> RuleSelector {
        let prefix = |of: Option<(IpAddr, u8)>| of.and_then(|(addr, len)| Prefix::containing(addr, len).ok());
        let input = self.iif.as_ref().map(|iif| match iif.link {
            Some(LOOPBACK) => RuleInput::Node,
            Some(link) => RuleInput::Link(PortId(link)),
            None => RuleInput::Detached,
        });
        RuleSelector {
            to: prefix(self.to),
            from: prefix(self.from),
            input,
            tos: self.tos,
            protocol: self.ip_proto,
            sport: self.sport.clone(),
            dport: self.dport.clone(),
            l3mdev: self.l3mdev,
            inverted: self.inverted,
        }
    }

    /// Tells whether the rule leaves a route to the rules behind it (Linux `fib4_rule_suppress`, `fib6_rule_suppress`).
    pub(super) fn suppresses(&self, route: &Route) -> bool {
        !route.is_error() && i64::from(route.prefix.len()) <= i64::from(self.suppress.cast_signed())
    }

    /// Longest prefix of the routes that do not count.
    pub fn suppressed_len(&self) -> Option<u8> {
        u8::try_from(self.suppress.min(u32::from(u8::MAX))).ok().filter(|_| self.suppress.cast_signed() >= 0)
    }

    /// The rule's action.
    pub const fn then(&self) -> RuleThen {
        match self.action {
            FR_ACT_GOTO => RuleThen::GoTo(self.target),
            FR_ACT_NOP => RuleThen::Nop,
            FR_ACT_BLACKHOLE => RuleThen::Blackhole,
            FR_ACT_UNREACHABLE => RuleThen::Unreachable,
            FR_ACT_PROHIBIT => RuleThen::Prohibit,
            _ if self.l3mdev => RuleThen::AskVrf,
            _ => RuleThen::Ask(TableId(self.table)),
        }
    }

    /// Tells whether the rule continues with another rule, whatever the tables have.
    pub const fn is_jump(&self) -> bool {
        matches!(self.action, FR_ACT_GOTO | FR_ACT_NOP)
    }

    /// Place of the rule in `rules`, its family's, that a rule with the action `goto` continues with; `None` without such a
    /// rule, and for other actions.
    pub fn target_in(&self, rules: &[Self]) -> Option<usize> {
        let has_target = self.action == FR_ACT_GOTO;
        rules.iter().position(|other| other.priority == self.target).filter(|_| has_target)
    }

    /// Route that drops the rule's packets; `None` if the action of the rule is a lookup.
    pub fn verdict(&self, v4: bool) -> Option<Route> {
        let kind = match self.then() {
            RuleThen::Blackhole => RTN_BLACKHOLE,
            RuleThen::Unreachable => RTN_UNREACHABLE,
            RuleThen::Prohibit => RTN_PROHIBIT,
            RuleThen::Ask(_) | RuleThen::AskVrf | RuleThen::GoTo(_) | RuleThen::Nop => return None,
        };
        let prefix = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
        let (metric, scope, protocol, dev) = (0, RT_SCOPE_UNIVERSE, self.protocol, 0);
        Some(Route {
            prefix,
            kind,
            metric,
            scope,
            protocol,
            dev,
            via: None,
            src: None,
            onlink: false,
            encap: None,
            paths: None,
        })
    }
}

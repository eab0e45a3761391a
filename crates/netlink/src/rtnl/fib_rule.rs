//! Rule that selects a table for a route lookup (Linux `struct fib_rule`).

use std::net::IpAddr;

use base::Prefix;

use super::nums::*;
use super::table::Route;

/// Actions of rules that drop packets (`FR_ACT_*`).
pub(super) const FR_ACT_BLACKHOLE: u8 = 6;
pub(super) const FR_ACT_UNREACHABLE: u8 = 7;
pub(super) const FR_ACT_PROHIBIT: u8 = 8;

/// Priority of the rule that looks up the tables of VRFs (`FIB_RULE_PREF`).
pub(super) const L3MDEV_PRIORITY: u32 = 1000;

/// A rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Priority; rules are evaluated in ascending order.
    pub priority: u32,
    /// Destinations that the rule matches, as the client wrote the prefix; all if `None`.
    pub to: Option<(IpAddr, u8)>,
    /// `FR_ACT_*`.
    pub action: u8,
    /// Table to look up; 0 for none, or for an l3mdev rule, which selects the table of the packet's VRF.
    pub table: u32,
    /// Whether the rule matches packets in VRFs only (`FRA_L3MDEV`).
    pub l3mdev: bool,
    /// Origin: `RTPROT_*`.
    pub protocol: u8,
}

impl Rule {
    /// Linux's default rules.
    pub(super) fn first(v4: bool) -> Vec<Self> {
        let (to, action, l3mdev, protocol) = (None, FR_ACT_TO_TBL, false, RTPROT_KERNEL);
        let rule = |(priority, table)| Self { priority, to, action, table, l3mdev, protocol };
        let last = v4.then_some((32767, RT_TABLE_DEFAULT));
        [(0, RT_TABLE_LOCAL), (32766, RT_TABLE_MAIN)].into_iter().chain(last).map(rule).collect()
    }

    /// Rule that is added with the first VRF.
    pub(super) const fn l3mdev() -> Self {
        let (priority, action, table) = (L3MDEV_PRIORITY, FR_ACT_TO_TBL, RT_TABLE_UNSPEC);
        Self { priority, to: None, action, table, l3mdev: true, protocol: RTPROT_KERNEL }
    }

    /// Destinations that the rule matches; all if `None`.
    pub fn prefix(&self) -> Option<Prefix> {
        self.to.and_then(|(addr, len)| Prefix::containing(addr, len).ok())
    }

    /// Route that drops the rule's packets; `None` if the action of the rule is a lookup.
    pub fn verdict(&self, v4: bool) -> Option<Route> {
        let kind = match self.action {
            FR_ACT_BLACKHOLE => RTN_BLACKHOLE,
            FR_ACT_UNREACHABLE => RTN_UNREACHABLE,
            FR_ACT_PROHIBIT => RTN_PROHIBIT,
            _ => return None,
        };
        let prefix = if v4 { Prefix::ANY_V4 } else { Prefix::ANY_V6 };
        let (metric, scope, protocol, dev) = (0, RT_SCOPE_UNIVERSE, self.protocol, 0);
        Some(Route { prefix, kind, metric, scope, protocol, dev, via: None, src: None, onlink: false, encap: None })
    }
}

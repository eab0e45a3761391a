//! Rules that choose routing tables: flows that a route is looked up for, and those that a rule matches.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::{Domain, PortId, Prefix};

/// Bits of TOS or traffic class that rules compare: the DSCP (Linux `INET_DSCP_MASK`).
const DSCP_MASK: u8 = 0xfc;

/// Flow that a route is looked up for (Linux `struct flowi4`, `struct flowi6`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteFlow {
    /// Domain of the lookup.
    pub domain: Domain,
    /// Destination.
    pub dst: IpAddr,
    /// Source; `None` while a packet of this node has none.
    pub src: Option<IpAddr>,
    /// Link by which the packet came, or the device of that link's VRF; `None` for a packet of this node.
    pub input: Option<PortId>,
    /// TOS or traffic class.
    pub tos: u8,
    /// Protocol of the upper layer.
    pub protocol: u8,
    /// Source port; 0 without ports.
    pub sport: u16,
    /// Destination port; 0 without ports.
    pub dport: u16,
}

impl RouteFlow {
    /// Flow of a packet of this node about which only the destination is known. Rules with another selector match it only
    /// if they are inverted.
    #[inline]
    pub const fn to(domain: Domain, dst: IpAddr) -> Self {
        Self { domain, dst, src: None, input: None, tos: 0, protocol: 0, sport: 0, dport: 0 }
    }
}

/// Input of the packets of a rule with `iif`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RuleInput {
    /// This node itself: `iif lo`.
    Node,
    /// Link, or the links of the VRF with that device.
    Link(PortId),
    /// A link that does not exist: the rule matches nothing.
    Detached,
}

/// Flows that a rule matches: those to which each selector applies (Linux `fib_rule_match`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RuleSelector {
    /// Destinations.
    pub to: Option<Prefix>,
    /// Sources.
    pub from: Option<Prefix>,
    /// Input link.
    pub input: Option<RuleInput>,
    /// TOS or traffic class without its two bits of ECN; 0 for any.
    pub tos: u8,
    /// Protocol of the upper layer; 0 for any.
    pub protocol: u8,
    /// Source ports.
    pub sport: Option<RangeInclusive<u16>>,
    /// Destination ports.
    pub dport: Option<RangeInclusive<u16>>,
    /// Whether the rule applies only to packets in VRFs (`FRA_L3MDEV`).
    pub l3mdev: bool,
    /// Whether the rule matches all other flows instead (`FIB_RULE_INVERT`).
    pub inverted: bool,
}

impl RuleSelector {
    /// Tells whether the rule matches a flow.
    pub fn matches(&self, flow: &RouteFlow) -> bool {
        let input = match self.input {
            None => true,
            Some(RuleInput::Node) => flow.input.is_none(),
            Some(RuleInput::Link(link)) => flow.input == Some(link),
            Some(RuleInput::Detached) => false,
        };
        let is_in =
            |ports: &Option<RangeInclusive<u16>>, port| ports.as_ref().is_none_or(|ports| ports.contains(&port));
        let all = input
            && (!self.l3mdev || flow.domain != Domain::DEFAULT)
            && self.to.is_none_or(|to| to.contains(flow.dst))
            && self.from.is_none_or(|from| flow.src.is_some_and(|src| from.contains(src)))
            && (self.tos == 0 || self.tos == flow.tos & DSCP_MASK)
            && (self.protocol == 0 || self.protocol == flow.protocol)
            && is_in(&self.sport, flow.sport)
            && is_in(&self.dport, flow.dport);
        all != self.inverted
    }

    /// Tells whether a match depends on more than the domain and the destination.
    pub const fn reads_flow(&self) -> bool {
        self.from.is_some()
            || self.input.is_some()
            || self.tos != 0
            || self.protocol != 0
            || self.sport.is_some()
            || self.dport.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> RouteFlow {
        RouteFlow {
            domain: Domain::DEFAULT,
            dst: "10.2.0.1".parse().unwrap(),
            src: Some("10.1.0.1".parse().unwrap()),
            input: Some(PortId(3)),
            tos: 0x13,
            protocol: 17,
            sport: 1000,
            dport: 53,
        }
    }

    fn all() -> RuleSelector {
        RuleSelector {
            to: Some("10.2.0.0/16".parse().unwrap()),
            from: Some("10.1.0.0/16".parse().unwrap()),
            input: Some(RuleInput::Link(PortId(3))),
            tos: 0x10,
            protocol: 17,
            sport: Some(1000..=1010),
            dport: Some(53..=53),
            l3mdev: false,
            inverted: false,
        }
    }

    #[test]
    fn flow_is_matched_by_every_selector() {
        assert!(all().matches(&flow()) && all().reads_flow());
        assert!(RuleSelector::default().matches(&flow()) && !RuleSelector::default().reads_flow());
        let others = [
            RouteFlow { dst: "10.3.0.1".parse().unwrap(), ..flow() },
            RouteFlow { src: Some("10.3.0.1".parse().unwrap()), ..flow() },
            RouteFlow { src: None, ..flow() },
            RouteFlow { input: Some(PortId(4)), ..flow() },
            RouteFlow { input: None, ..flow() },
            RouteFlow { tos: 0x14, ..flow() },
            RouteFlow { protocol: 6, ..flow() },
            RouteFlow { sport: 1011, ..flow() },
            RouteFlow { dport: 54, ..flow() },
        ];
        for other in others {
            assert!(!all().matches(&other), "{other:?}");
            assert!(RuleSelector { inverted: true, ..all() }.matches(&other), "{other:?}");
        }
        assert!(!RuleSelector { inverted: true, ..all() }.matches(&flow()));
    }

    #[test]
    fn packets_of_the_node_come_by_lo() {
        let rule = |input| RuleSelector { input: Some(input), ..RuleSelector::default() };
        let own = RouteFlow { input: None, ..flow() };
        assert!(rule(RuleInput::Node).matches(&own) && !rule(RuleInput::Node).matches(&flow()));
        assert!(!rule(RuleInput::Detached).matches(&own) && !rule(RuleInput::Detached).matches(&flow()));
    }

    #[test]
    fn rule_of_vrfs_matches_no_other_packets() {
        let rule = RuleSelector { l3mdev: true, ..RuleSelector::default() };
        assert!(!rule.matches(&flow()));
        assert!(rule.matches(&RouteFlow { domain: Domain::vrf(PortId(2)), ..flow() }));
    }
}

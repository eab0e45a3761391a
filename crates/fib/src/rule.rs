//! Rules: the tables to look up for a flow, in order (`ip rule`).

use base::{RouteFlow, RuleSelector, TableId};

use crate::route::Route;

/// One rule. Rules apply in the order of their list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Flows of the rule; all if `None`.
    pub select: Option<Box<RuleSelector>>,
    /// The rule's action.
    pub then: RuleAction,
    /// Routes with a prefix of that length or a shorter one are none by this rule (`suppress_prefixlength`).
    pub suppress: Option<u8>,
}

/// Action of a rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RuleAction {
    /// Look up that table.
    Ask(TableId),
    /// Look up the table of the packet's VRF.
    AskVrf,
    /// Uses this route, like a table's.
    Take(Route),
    /// Continues with the rule at that place of the list, which is behind this rule (`goto`).
    GoTo(usize),
    /// Continues with the next rule: `nop`, or `goto` without a target.
    Pass,
}

impl Rule {
    /// Rule for all flows.
    pub const fn ask(table: TableId) -> Self {
        Self { select: None, then: RuleAction::Ask(table), suppress: None }
    }

    /// Rule that is added with the first VRF.
    pub fn ask_vrf() -> Self {
        let vrfs = RuleSelector { l3mdev: true, ..RuleSelector::default() };
        Self { select: Some(Box::new(vrfs)), then: RuleAction::AskVrf, suppress: None }
    }

    /// Default rules of Linux: numbers 0, 32766 and, for IPv4 alone, 32767.
    pub fn first(v4: bool) -> Vec<Self> {
        let last = v4.then_some(TableId::DEFAULT);
        [TableId::LOCAL, TableId::MAIN].into_iter().chain(last).map(Self::ask).collect()
    }

    #[inline]
    pub(crate) fn is_for(&self, flow: &RouteFlow) -> bool {
        self.select.as_ref().is_none_or(|select| select.matches(flow))
    }

    /// Tells whether the rule's result depends on more of a flow than its domain and destination.
    pub(crate) fn reads_flow(&self) -> bool {
        self.select.as_ref().is_some_and(|select| select.reads_flow())
    }

    /// Tells whether the rule leaves a route to the rules behind it (Linux `fib4_rule_suppress`).
    pub(crate) fn suppresses(&self, route: &Route) -> bool {
        self.suppress.is_some_and(|longest| route.prefix.len() <= longest) && !route.kind.is_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Fib, RouteKind};
    use base::{Domain, DropReason, PortId, Prefix};

    #[test]
    fn tables_are_looked_up_by_rules() {
        let mut fib = Fib::default();
        for (table, dev) in [(TableId::MAIN, 1), (TableId(100), 2)] {
            let kind = RouteKind::Unicast { via: None, dev: PortId(dev) };
            fib.insert(table, Route { prefix: Prefix::ANY_V4, kind, metric: 0 }, false);
        }
        let lookup = |fib: &Fib, dst: &str| match fib.decide(Domain::DEFAULT, dst.parse().unwrap(), None) {
            Decision::Forward { dev, .. } => Ok(dev.0),
            Decision::Drop(reason) => Err(reason),
            other => panic!("{other:?}"),
        };
        let [near, far] = ["10.0.0.1", "11.0.0.1"];
        assert_eq!([near, far].map(|dst| lookup(&fib, dst)), [Ok(1), Ok(1)]);
        let selector = RuleSelector { to: Some("10.0.0.0/8".parse().unwrap()), ..RuleSelector::default() };
        let some = Rule { select: Some(Box::new(selector)), ..Rule::ask(TableId(100)) };
        let rules = |first: Rule| [vec![first], Rule::first(true)].concat();
        let taking = |route| Rule { then: RuleAction::Take(route), ..Rule::ask(TableId::MAIN) };
        fib.set_rules(true, rules(some));
        assert_eq!([near, far].map(|dst| lookup(&fib, dst)), [Ok(2), Ok(1)]);
        let prohibit = Route { prefix: Prefix::ANY_V4, kind: RouteKind::Prohibit, metric: 0 };
        fib.set_rules(true, rules(taking(prohibit)));
        assert_eq!(lookup(&fib, far), Err(DropReason::RouteProhibit));
        let unreachable = Route { kind: RouteKind::Unreachable, ..prohibit };
        fib.set_rules(true, rules(taking(unreachable)));
        assert_eq!(lookup(&fib, far), Err(DropReason::NoRoute));
        // If a table has no route, or a `throw` route, the next table is looked up.
        fib.set_rules(true, rules(Rule::ask(TableId(7))));
        assert_eq!(lookup(&fib, far), Ok(1));
        let throw = Route { prefix: Prefix::ANY_V4, kind: RouteKind::Throw, metric: 0 };
        fib.insert(TableId(7), throw, false);
        assert_eq!(lookup(&fib, far), Ok(1));
        assert!(fib.remove(TableId(7), &throw) && !fib.remove(TableId(7), &throw));
        fib.set_rules(true, Vec::new());
        assert_eq!(lookup(&fib, far), Err(DropReason::NoRoute));
    }

    /// FIB with a default route by link 1 in the main table and by link 2 in table 100, and a route to 10.0.0.0/8 by link 3 in
    /// the main table.
    fn fib_of_two_tables() -> Fib {
        let mut fib = Fib::default();
        let of = |prefix, dev| {
            let kind = RouteKind::Unicast { via: None, dev: PortId(dev) };
            Route { prefix, kind, metric: 0 }
        };
        fib.insert(TableId::MAIN, of(Prefix::ANY_V4, 1), false);
        fib.insert(TableId(100), of(Prefix::ANY_V4, 2), false);
        fib.insert(TableId::MAIN, of("10.0.0.0/8".parse().unwrap(), 3), false);
        fib
    }

    fn dev_of(fib: &Fib, flow: &RouteFlow) -> Option<u32> {
        match fib.decide_flow(flow, None) {
            Decision::Forward { dev, .. } => Some(dev.0),
            _ => None,
        }
    }

    #[test]
    fn rule_by_source_selects_a_table() {
        let mut fib = fib_of_two_tables();
        let from = RuleSelector { from: Some("192.0.2.0/24".parse().unwrap()), ..RuleSelector::default() };
        assert!(!fib.rules_read_flows(true));
        let by_source = Rule { select: Some(Box::new(from)), ..Rule::ask(TableId(100)) };
        fib.set_rules(true, [vec![by_source], Rule::first(true)].concat());
        assert!(fib.rules_read_flows(true) && !fib.rules_read_flows(false));
        let to = RouteFlow::to(Domain::DEFAULT, "198.51.100.1".parse().unwrap());
        let of = |src: &str| RouteFlow { src: Some(src.parse().unwrap()), ..to };
        assert_eq!(
            [&of("192.0.2.1"), &of("192.0.3.1"), &to].map(|flow| dev_of(&fib, flow)),
            [Some(2), Some(1), Some(1)]
        );
    }

    #[test]
    fn suppressed_routes_are_left_to_the_next_rule() {
        let mut fib = fib_of_two_tables();
        let main = Rule { suppress: Some(0), ..Rule::ask(TableId::MAIN) };
        fib.set_rules(true, vec![main, Rule::ask(TableId(100))]);
        let to = |dst: &str| RouteFlow::to(Domain::DEFAULT, dst.parse().unwrap());
        assert_eq!([to("10.1.1.1"), to("192.0.2.1")].map(|flow| dev_of(&fib, &flow)), [Some(3), Some(2)]);
        // An error is no route that is suppressed.
        let prohibit = Route { prefix: Prefix::ANY_V4, kind: RouteKind::Prohibit, metric: 0 };
        fib.insert(TableId::MAIN, prohibit, true);
        assert_eq!(fib.decide_flow(&to("192.0.2.1"), None), Decision::Drop(DropReason::RouteProhibit));
    }

    #[test]
    fn goto_continues_behind_the_rules_between() {
        let mut fib = fib_of_two_tables();
        let flow = RouteFlow::to(Domain::DEFAULT, "192.0.2.1".parse().unwrap());
        let with = |then| Rule { then, ..Rule::ask(TableId::MAIN) };
        let rules = |then| vec![with(then), Rule::ask(TableId(100)), Rule::ask(TableId::MAIN)];
        let mut of = |then| {
            fib.set_rules(true, rules(then));
            dev_of(&fib, &flow)
        };
        assert_eq!(of(RuleAction::GoTo(2)), Some(1));
        assert_eq!(of(RuleAction::Pass), Some(2));
        assert_eq!(of(RuleAction::GoTo(3)), None, "a place behind the last rule");
    }
}

//! Rules: the tables to look up for a destination, in order (`ip rule`).

use std::net::IpAddr;

use base::{Domain, Prefix, TableId};

use crate::route::Route;

/// One rule. Rules apply in the order of their list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    /// Destinations of the rule; all if `None`.
    pub to: Option<Prefix>,
    /// Whether the rule applies only to packets in VRFs (`FRA_L3MDEV`).
    pub l3mdev: bool,
    /// The rule's action.
    pub then: RuleAction,
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
}

impl Rule {
    /// Rule for all destinations.
    pub const fn ask(table: TableId) -> Self {
        Self { to: None, l3mdev: false, then: RuleAction::Ask(table) }
    }

    /// Rule that is added with the first VRF.
    pub const fn ask_vrf() -> Self {
        Self { to: None, l3mdev: true, then: RuleAction::AskVrf }
    }

    /// Default rules of Linux: numbers 0, 32766 and, for IPv4 alone, 32767.
    pub fn first(v4: bool) -> Vec<Self> {
        let last = v4.then_some(TableId::DEFAULT);
        [TableId::LOCAL, TableId::MAIN].into_iter().chain(last).map(Self::ask).collect()
    }

    pub(crate) fn is_for(&self, domain: Domain, dst: IpAddr) -> bool {
        (!self.l3mdev || domain != Domain::DEFAULT) && self.to.is_none_or(|to| to.contains(dst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Fib, RouteKind};
    use base::{DropReason, PortId};

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
        let some = Rule { to: Some("10.0.0.0/8".parse().unwrap()), ..Rule::ask(TableId(100)) };
        let rules = |first: Rule| [vec![first], Rule::first(true)].concat();
        fib.set_rules(true, rules(some));
        assert_eq!([near, far].map(|dst| lookup(&fib, dst)), [Ok(2), Ok(1)]);
        let prohibit = Route { prefix: Prefix::ANY_V4, kind: RouteKind::Prohibit, metric: 0 };
        fib.set_rules(true, rules(Rule { to: None, l3mdev: false, then: RuleAction::Take(prohibit) }));
        assert_eq!(lookup(&fib, far), Err(DropReason::RouteProhibit));
        let unreachable = Route { kind: RouteKind::Unreachable, ..prohibit };
        fib.set_rules(true, rules(Rule { to: None, l3mdev: false, then: RuleAction::Take(unreachable) }));
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
}

//! Places for the tasks of a node that is to be empty.

use std::collections::{BTreeMap, BTreeSet};

use base::Prefix;
use fleet::{Key, NodeValue, TaskState, TaskValue};
use ila::{Identifier, Locator};

/// State of the fleet, as one revision has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetState {
    /// Locators of nodes.
    pub(crate) nodes: BTreeMap<String, Prefix>,
    /// Nodes whose agent is alive.
    pub(crate) alive: BTreeSet<String>,
    /// Tasks by their keys.
    pub(crate) tasks: BTreeMap<String, TaskValue>,
    /// Keys that cannot be read, with the reasons.
    pub(crate) unreadable: Vec<(String, String)>,
}

/// Task with its next place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct PlannedMove {
    /// Key of the task.
    pub(crate) key: String,
    pub(crate) sir: Locator,
    /// Next node, and the locator there.
    pub(crate) to: String,
    pub(crate) locator: Locator,
}

/// Moves that empty a node, and what cannot be moved.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct DrainPlan {
    pub(crate) moves: Vec<PlannedMove>,
    /// Keys that stay, with the reasons.
    pub(crate) stuck: Vec<(String, String)>,
}

impl FleetState {
    /// Takes a key with its value.
    pub(crate) fn take(&mut self, fleet: &str, key: &[u8], value: &[u8]) {
        let text = String::from_utf8_lossy(key).into_owned();
        let read = Key::parse(fleet, key).and_then(|parsed| {
            match parsed {
                Key::Node(name) => {
                    let prefix = NodeValue::parse(value)?.locators.parse();
                    self.nodes.insert(name, prefix.map_err(|_| fleet::Refusal::Malformed)?);
                }
                Key::Alive(name) => {
                    self.alive.insert(name);
                }
                Key::Task { .. } => {
                    self.tasks.insert(text.clone(), TaskValue::parse(value)?);
                }
                _ => {}
            }
            Ok(())
        });
        if let Err(refusal) = read {
            self.unreadable.push((text, refusal.to_string()));
        }
    }

    /// Places for all tasks of a node: on the nodes `to`, or on all others that are alive. Each task goes to the node with the fewest
    /// tasks, of two such to the first by name, and keeps the part of its locator behind the node's prefix if that is free there.
    ///
    /// # Errors
    /// A node is unknown or not alive, there is none to move to, or the tasks are of several domains and `to` is empty: which nodes
    /// have a domain is in their files alone.
    pub(crate) fn drain(&self, fleet: &str, node: &str, to: &[String]) -> Result<DrainPlan, String> {
        let targets = self.targets(node, to)?;
        let domains = self.domains(fleet, node);
        if to.is_empty() && domains.len() > 1 {
            let names: Vec<_> = domains.into_iter().collect();
            return Err(format!(
                "{node}: has tasks of the domains {}: name nodes that have them by --to",
                names.join(", ")
            ));
        }
        let mut counts: BTreeMap<&str, usize> = targets.keys().map(|name| (*name, 0)).collect();
        let mut used = BTreeSet::new();
        for task in self.tasks.values() {
            let next = task.to.as_deref().unwrap_or(&task.node);
            if let Some(count) = counts.get_mut(next) {
                *count += 1;
            }
            let locators = [Some(&task.locator), task.to_locator.as_ref()].into_iter().flatten();
            used.extend(locators.filter_map(|locator| locator.parse::<Locator>().ok()));
        }
        let mut plan = DrainPlan::default();
        for (key, task) in &self.tasks {
            let Ok(Key::Task { sir, .. }) = Key::parse(fleet, key.as_bytes()) else { continue };
            let next = task.to.as_deref().unwrap_or(&task.node);
            if task.node != node {
                if next == node {
                    plan.stuck.push((key.clone(), format!("the task is on the way to {node}")));
                }
                continue;
            }
            match self.place(node, task, &targets, &counts, &used) {
                Ok((to, locator)) => {
                    if let Some(count) = counts.get_mut(to.as_str()).filter(|_| task.state == TaskState::Here) {
                        *count += 1;
                    }
                    used.insert(locator);
                    plan.moves.push(PlannedMove { key: key.clone(), sir, to, locator });
                }
                Err(why) => plan.stuck.push((key.clone(), why)),
            }
        }
        let is_task = |key: &String| key.starts_with(&Key::tasks(fleet));
        plan.stuck.extend(self.unreadable.iter().filter(|(key, _)| is_task(key)).cloned());
        Ok(plan)
    }

    /// Domains of the tasks that a node has.
    fn domains(&self, fleet: &str, node: &str) -> BTreeSet<String> {
        let own = self.tasks.iter().filter(|(_, task)| task.node == node);
        let domain = |key: &str| match Key::parse(fleet, key.as_bytes()) {
            Ok(Key::Task { domain, .. }) => Some(domain),
            _ => None,
        };
        own.filter_map(|(key, _)| domain(key)).collect()
    }

    /// Nodes that take the tasks, with their prefixes.
    fn targets<'a>(&'a self, node: &str, to: &'a [String]) -> Result<BTreeMap<&'a str, Prefix>, String> {
        if !self.nodes.contains_key(node) {
            return Err(format!("Unknown node {node}: the fleet has none of that name"));
        }
        let mut targets = BTreeMap::new();
        for name in to {
            let Some(prefix) = self.nodes.get(name) else {
                return Err(format!("Unknown node {name}: the fleet has none of that name"));
            };
            if name == node {
                return Err(format!("Invalid node {name}: it is the one to be emptied"));
            }
            if !self.alive.contains(name) {
                return Err(format!("Invalid node {name}: its agent is not alive"));
            }
            targets.insert(name.as_str(), *prefix);
        }
        if to.is_empty() {
            let others = self.nodes.iter().filter(|(name, _)| *name != node && self.alive.contains(*name));
            targets.extend(others.map(|(name, prefix)| (name.as_str(), *prefix)));
        }
        if targets.is_empty() { Err(format!("{node}: no other node is alive")) } else { Ok(targets) }
    }

    /// Next place of a task: that of its move, if it moves already.
    fn place(
        &self,
        node: &str,
        task: &TaskValue,
        targets: &BTreeMap<&str, Prefix>,
        counts: &BTreeMap<&str, usize>,
        used: &BTreeSet<Locator>,
    ) -> Result<(String, Locator), String> {
        if let (Some(to), Some(locator)) = (&task.to, &task.to_locator) {
            if !self.alive.contains(to) {
                return Err(format!("the task moves to {to}, whose agent is not alive"));
            }
            let locator = locator.parse().map_err(|_| "the next locator is malformed".to_owned())?;
            return Ok((to.clone(), locator));
        }
        let locator: Locator = task.locator.parse().map_err(|_| "the locator is malformed".to_owned())?;
        let own = self.nodes.get(node).map_or(64, |prefix| prefix.len());
        let mut order: Vec<_> = counts.iter().map(|(name, count)| (*count, *name)).collect();
        order.sort_unstable();
        let places = order.into_iter().filter_map(|(_, name)| Some((name, targets.get(name)?)));
        let mut free =
            places.filter_map(|(name, prefix)| Some((name.to_owned(), free_locator(*prefix, own, locator, used)?)));
        free.next().ok_or_else(|| "no node has a free locator".to_owned())
    }
}

/// Free locator of a node: with the part behind the prefix that the task has, or else the lowest one.
fn free_locator(prefix: Prefix, own_len: u8, old: Locator, used: &BTreeSet<Locator>) -> Option<Locator> {
    let std::net::IpAddr::V6(addr) = prefix.addr() else { return None };
    let base = Locator::of(addr).0;
    let mask = |len: u8| u64::MAX.checked_shr(u32::from(len)).unwrap_or(0);
    let last = mask(prefix.len());
    let kept = old.0 & mask(own_len);
    let lowest = u64::from(last != 0);
    let others = lowest..=last.min(used.len() as u64 + 1);
    let parts = [kept].into_iter().filter(|part| (lowest..=last).contains(part)).chain(others);
    let mut locators = parts.map(|part| Locator(base | part));
    locators.find(|locator| !used.contains(locator))
}

/// Text of a task's SIR prefix.
pub(crate) fn sir_text(sir: Locator) -> String {
    format!("{}/64", sir.with(Identifier(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(tasks: &[(&str, TaskValue)]) -> FleetState {
        let mut state = FleetState::default();
        for (node, prefix) in [("a", "fd00:0:1::/48"), ("b", "fd00:0:2::/48"), ("c", "fd00:0:3::/48")] {
            let value = NodeValue::new(prefix.parse().unwrap(), None).to_bytes();
            state.take("f", Key::Node(node.to_owned()).text("f").as_bytes(), &value);
            state.take("f", Key::Alive(node.to_owned()).text("f").as_bytes(), b"{}");
        }
        for (sir, task) in tasks {
            state.take("f", format!("/fatpath/v1/f/ila/t/{sir}").as_bytes(), &task.to_bytes());
        }
        state
    }

    fn here(node: &str, locator: &str) -> TaskValue {
        TaskValue::here(node, locator.parse().unwrap())
    }

    fn moves(plan: &DrainPlan) -> Vec<(String, &str, String)> {
        plan.moves.iter().map(|it| (sir_text(it.sir), it.to.as_str(), it.locator.to_string())).collect()
    }

    #[test]
    fn tasks_go_where_the_fewest_are_and_keep_their_part() {
        let state = state(&[
            ("2001:db8:0:1::/64", here("a", "fd00:0:1:1")),
            ("2001:db8:0:2::/64", here("a", "fd00:0:1:2")),
            ("2001:db8:0:3::/64", here("a", "fd00:0:1:3")),
            ("2001:db8:0:4::/64", here("b", "fd00:0:2:2")),
            ("2001:db8:0:5::/64", here("c", "fd00:0:3:1")),
        ]);
        let plan = state.drain("f", "a", &[]).unwrap();
        assert_eq!(plan.stuck, []);
        assert_eq!(
            moves(&plan),
            [
                ("2001:db8:0:1::/64".to_owned(), "b", "fd00:0:2:1".to_owned()),
                ("2001:db8:0:2::/64".to_owned(), "c", "fd00:0:3:2".to_owned()),
                ("2001:db8:0:3::/64".to_owned(), "b", "fd00:0:2:3".to_owned()),
            ]
        );
        // On one node alone the second task's part is taken, and so is the first one's.
        let plan = state.drain("f", "a", &["b".to_owned()]).unwrap();
        let places: Vec<_> = moves(&plan).into_iter().map(|(_, _, locator)| locator).collect();
        assert_eq!(places, ["fd00:0:2:1", "fd00:0:2:3", "fd00:0:2:4"]);
    }

    #[test]
    fn tasks_of_several_domains_go_to_named_nodes_alone() {
        let mut state = state(&[("2001:db8:0:1::/64", here("a", "fd00:0:1:1"))]);
        let mut add = |node: &str, sir: &str, locator: &str| {
            let key = format!("/fatpath/v1/f/ila/u/{sir}");
            state.take("f", key.as_bytes(), &here(node, locator).to_bytes());
            state.drain("f", "a", &[]).map(|plan| plan.moves.len())
        };
        assert_eq!(add("b", "2001:db9:0:1::/64", "fd00:0:2:9"), Ok(1), "another node's task");
        let why = "a: has tasks of the domains t, u: name nodes that have them by --to".to_owned();
        assert_eq!(add("a", "2001:db9:0:2::/64", "fd00:0:1:2"), Err(why));
        assert_eq!(state.drain("f", "a", &["b".to_owned()]).unwrap().moves.len(), 2);
    }

    #[test]
    fn move_that_was_begun_goes_on_to_its_place() {
        let task = here("a", "fd00:0:1:1").moving("c", "fd00:0:3:9".parse().unwrap());
        let plan = state(&[("2001:db8:0:1::/64", task.clone())]).drain("f", "a", &["b".to_owned()]).unwrap();
        assert_eq!(moves(&plan), [("2001:db8:0:1::/64".to_owned(), "c", "fd00:0:3:9".to_owned())]);
        let mut without = state(&[("2001:db8:0:1::/64", task)]);
        without.alive.remove("c");
        let plan = without.drain("f", "a", &[]).unwrap();
        assert_eq!(plan.moves, []);
        assert_eq!(plan.stuck[0].1, "the task moves to c, whose agent is not alive");
    }

    #[test]
    fn task_that_cannot_be_moved_is_named() {
        let mut one = state(&[
            ("2001:db8:0:1::/64", here("b", "fd00:0:2:1").moving("a", "fd00:0:1:1".parse().unwrap())),
            ("2001:db8:0:2::/64", here("a", "fd00:0:1:2")),
        ]);
        one.take("f", b"/fatpath/v1/f/ila/t/2001:db8:0:3::/64", b"{");
        for (node, to, want) in [
            ("x", "b", "Unknown node x"),
            ("a", "x", "Unknown node x"),
            ("a", "a", "Invalid node a: it is the one to be emptied"),
        ] {
            assert!(one.drain("f", node, &[to.to_owned()]).unwrap_err().contains(want));
        }
        one.alive.remove("c");
        assert_eq!(one.drain("f", "a", &["c".to_owned()]).unwrap_err(), "Invalid node c: its agent is not alive");
        // The one node that is left has room for one task alone.
        one.nodes.insert("b".to_owned(), "fd00:0:2:1::/64".parse().unwrap());
        let plan = one.drain("f", "a", &[]).unwrap();
        let stuck: Vec<_> = plan.stuck.iter().map(|(_, why)| why.as_str()).collect();
        assert_eq!(stuck, ["the task is on the way to a", "no node has a free locator", "the value is malformed"]);
        one.alive.remove("b");
        assert_eq!(one.drain("f", "a", &[]).unwrap_err(), "a: no other node is alive");
    }
}

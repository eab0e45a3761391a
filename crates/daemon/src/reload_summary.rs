//! Summary of a reload: the number of objects that were added, removed and changed.

use std::collections::HashMap;
use std::fmt::{Debug, Write as _};

use config::Config;
use config::reload::{Change, ListChange};

/// Differences of two configurations, as `; +1 link -4 routes -2 SAs`; empty if there are none.
pub(crate) fn summary(old: &Config, new: &Config) -> String {
    let change = Change::between(old, new);
    let counts = [
        ("link", "links", of_list(&change.links)),
        ("route", "routes", if change.routes { of_all(&old.routes, &new.routes) } else { [0; 3] }),
        ("SA", "SAs", of_list(&change.sas)),
        ("policy", "policies", if change.policies { of_all(&old.policies, &new.policies) } else { [0; 3] }),
        ("ILA mapping", "ILA mappings", if change.ila { of_all(&old.ila, &new.ila) } else { [0; 3] }),
    ];
    let mut text = String::new();
    for (one, many, [added, removed, changed]) in counts {
        for (sign, n) in [("+", added), ("-", removed), ("~", changed)] {
            if n > 0 {
                let _ = write!(text, " {sign}{n} {}", if n == 1 { one } else { many });
            }
        }
    }
    if text.is_empty() { text } else { format!(";{text}") }
}

/// Numbers of added, removed and changed items.
fn of_list(change: &ListChange) -> [usize; 3] {
    let changed = change.kept.iter().filter(|kept| kept.changed).count();
    [change.added.len(), change.removed.len(), changed]
}

/// As [`of_list`], for items that have no name: a changed one is removed and added.
fn of_all<T: Debug>(old: &[T], new: &[T]) -> [usize; 3] {
    let mut surplus: HashMap<String, i64> = HashMap::new();
    for item in new {
        *surplus.entry(format!("{item:?}")).or_default() += 1;
    }
    for item in old {
        *surplus.entry(format!("{item:?}")).or_default() -= 1;
    }
    let sum = |sign: i64| surplus.values().map(|n| (n * sign).max(0) as usize).sum();
    [sum(1), sum(-1), 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_says_what_was_added_removed_and_changed() {
        let config = |text: &str| Config::from_toml(text, "gw.toml").unwrap();
        let tun = "[[link]]\nname = \"tun0\"\nkind = \"tun\"\n";
        let wan = "[[link]]\nname = \"wan\"\nkind = \"udp\"\nbind = \"192.0.2.1:4500\"\n";
        let route = |to: &str| format!("[[route]]\nto = \"{to}\"\ndev = \"tun0\"\n");
        let old = config(&format!("{tun}{wan}{}{}", route("10.2.0.0/24"), route("10.3.0.0/24")));
        assert_eq!(summary(&old, &old), "");
        let new = config(&format!("{tun}mtu = 1300\n{}", route("10.4.0.0/24")));
        assert_eq!(summary(&old, &new), "; -1 link ~1 link +1 route -2 routes");
    }
}

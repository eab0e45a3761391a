//! Differences between one configuration and the next.
//!
//! A running node keeps unchanged objects: a link keeps its device and counters, an SA its sequence numbers and replay
//! window. Restarting an AES-GCM key at sequence number 1 could use a nonce twice, which RFC 4106 §3.1 forbids, so an
//! SA is kept if its key and its identity are the same, whatever else changes: the code that applies such a change
//! copies the last sent sequence number to the changed SA.

use std::collections::HashMap;
use std::hash::Hash;

use xfrm::SaConfig;

use crate::model::{Config, LinkConfig, LinkKind};
use crate::settings::Settings;

/// Steps from one configuration to the next. Positions are indexes in the two configurations' lists.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Change {
    /// Changes of links.
    pub links: ListChange,
    /// Changes of security associations.
    pub sas: ListChange,
    /// Whether the static routes or the addresses of `lo` differ; all routes are then replaced as a whole.
    pub routes: bool,
    /// Whether the policies differ; they are then replaced as a whole: among policies of equal priority the order
    /// counts.
    pub policies: bool,
    /// Whether the default policy actions differ.
    pub policy_default: bool,
    /// Whether the CPU of the worker differs.
    pub worker: bool,
    /// Whether the crypto threads differ.
    pub crypto: bool,
    /// Whether ILA's mappings or settings differ; they are then replaced as a whole.
    pub ila: bool,
    /// Whether the [settings](crate::settings) that can change at run time differ.
    pub settings: bool,
}

/// Differences of two lists of items.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ListChange {
    /// Positions in the old list of removed items.
    pub removed: Vec<usize>,
    /// Positions in the new list of added items.
    pub added: Vec<usize>,
    /// Items that stay with their runtime state.
    pub kept: Vec<Kept>,
}

/// Item in both lists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Kept {
    /// Position in the old list.
    pub old: usize,
    /// Position in the new list.
    pub new: usize,
    /// Whether a property differs that can be changed in place.
    pub changed: bool,
}

impl Change {
    /// Steps from `old` to `new`.
    pub fn between(old: &Config, new: &Config) -> Self {
        Self {
            links: ListChange::between(&old.links, &new.links, |link| &link.name, same_link),
            sas: ListChange::between(&old.sas, &new.sas, |sa| (sa.dst, sa.spi, sa.mark), same_sa),
            routes: old.routes != new.routes || old.lo != new.lo,
            policies: old.policies != new.policies,
            policy_default: old.policy_default != new.policy_default,
            worker: old.worker != new.worker,
            crypto: old.crypto != new.crypto,
            ila: old.ila != new.ila
                || old.ila_adj_transport != new.ila_adj_transport
                || old.ila_icmp_errors != new.ila_icmp_errors,
            settings: Settings::of(old) != Settings::of(new),
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        let lists = self.links.is_empty() && self.sas.is_empty();
        let others = [self.policy_default, self.worker, self.crypto, self.ila, self.settings];
        lists && !self.routes && !self.policies && !others.contains(&true)
    }
}

impl ListChange {
    /// Pairs the items of `old` and `new` that have the same `name` and are `same`. Names are unique in a list, so each
    /// item is compared with at most one other.
    fn between<'a, T: PartialEq, N: Eq + Hash>(
        old: &'a [T],
        new: &'a [T],
        name: impl Fn(&'a T) -> N,
        same: impl Fn(&T, &T) -> bool,
    ) -> Self {
        let mut change = Self::default();
        let mut left: HashMap<N, usize> = old.iter().enumerate().map(|(o, item)| (name(item), o)).collect();
        let mut stays = vec![false; old.len()];
        for (n, item) in new.iter().enumerate() {
            match left.remove(&name(item)).filter(|&o| same(&old[o], item)) {
                Some(o) => {
                    stays[o] = true;
                    change.kept.push(Kept { old: o, new: n, changed: old[o] != *item });
                }
                None => change.added.push(n),
            }
        }
        change.removed = (0..old.len()).filter(|&o| !stays[o]).collect();
        change
    }

    /// Whether all items stay unchanged, at any position in the list.
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.added.is_empty() && self.kept.iter().all(|kept| !kept.changed)
    }
}

/// Whether the link is the same device, socket or bridge. MTU, addresses, the host's side, queueing discipline and settings of bridges
/// can change while a link is open; offloads, a device for ESP and queues cannot.
fn same_link(old: &LinkConfig, new: &LinkConfig) -> bool {
    let is_bridge = |link: &LinkConfig| matches!(link.kind, LinkKind::Bridge(_));
    (old.kind == new.kind || is_bridge(old) && is_bridge(new))
        && old.offloads == new.offloads
        && old.esp_offload == new.esp_offload
}

/// Whether two SAs with the same destination, SPI and mark (RFC 4301 §4.1) have the same algorithm and cipher key.
/// Other differences are changed in place: a new SA with a new replay window would accept old packets again.
fn same_sa(old: &SaConfig, new: &SaConfig) -> bool {
    old.algorithm == new.algorithm
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ops::Range;

    use driver::DriverKind;

    use super::*;
    use crate::model::{LinkKind, RouteAction};

    fn config() -> Config {
        Config::from_toml(include_str!("../tests/gw.toml"), "gw.toml").unwrap()
    }

    fn kept(old: usize, new: usize, changed: bool) -> Kept {
        Kept { old, new, changed }
    }

    #[test]
    fn the_same_file_changes_nothing() {
        let change = Change::between(&config(), &config());
        assert!(change.is_empty(), "{change:?}");
        assert_eq!(change.sas.kept, [kept(0, 0, false), kept(1, 1, false)]);
    }

    #[test]
    fn the_order_of_links_and_sas_does_not_matter() {
        let mut new = config();
        new.sas.reverse();
        new.links.swap(0, 2);
        let change = Change::between(&config(), &new);
        assert!(change.is_empty(), "{change:?}");
        assert_eq!(change.sas.kept, [kept(1, 0, false), kept(0, 1, false)]);
    }

    /// Item that counts its comparisons.
    #[derive(Debug)]
    struct Counted<'a>(u32, &'a Cell<usize>);

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.1.set(self.1.get() + 1);
            self.0 == other.0
        }
    }

    #[test]
    fn each_item_is_compared_once_however_many_there_are() {
        let (compared, n) = (Cell::new(0), 100_000);
        let items = |numbers: Range<u32>| numbers.map(|number| Counted(number, &compared)).collect::<Vec<_>>();
        let (old, mut new) = (items(0..n), items(1..n + 1));
        new.reverse();
        let change = ListChange::between(&old, &new, |item| item.0, |old, new| old == new);
        assert_eq!((change.removed, change.added), (vec![0], vec![0]));
        assert!(change.kept.len() == n as usize - 1 && change.kept.iter().all(|kept| !kept.changed));
        assert_eq!(compared.get(), 2 * (n as usize - 1), "whether it is the same, and whether it is as it was");
    }

    #[test]
    fn everything_comes_at_the_start_and_goes_at_the_end() {
        let start = Change::between(&Config::default(), &config());
        assert_eq!((start.links.added, start.sas.added), (vec![0, 1, 2], vec![0, 1]));
        assert!(start.routes && start.policies && start.links.removed.is_empty());
        let end = Change::between(&config(), &Config::default());
        assert_eq!((end.links.removed, end.sas.removed), (vec![0, 1, 2], vec![0, 1]));
        assert!(end.routes && end.policies && end.links.added.is_empty());
    }

    #[test]
    fn an_sa_is_kept_unless_its_key_or_its_identity_changes() {
        let cases: &[(&str, &str, bool)] = &[
            ("mode = \"tunnel\"\nreqid = 1\n", "reqid = 2\n", true),
            ("replay-window = 1024", "replay-window = 64", true),
            ("sport = 4500", "sport = 4501", true),
            ("src = \"192.0.2.1\"\n", "src = \"192.0.2.9\"\n", true),
            ("dst = \"192.0.2.2\"\n", "dst = \"192.0.2.9\"\n", false),
            ("spi = 0x1000", "spi = 0x2000", false),
            ("a0a1a2a3", "a0a1a2a4", false),
            ("icv = 128", "icv = 96", false),
        ];
        let alone = |text: &str| {
            let mut config = Config::default();
            let start = text.find("[[sa]]").unwrap();
            let end = start + 1 + text[start + 1..].find("[[sa]]").unwrap();
            config.sas = Config::from_toml(&text[start..end], "f").unwrap().sas;
            config
        };
        let text = include_str!("../tests/gw.toml");
        for (from, to, stays) in cases {
            let change = Change::between(&alone(text), &alone(&text.replacen(from, to, 1))).sas;
            let want = match stays {
                true => ListChange { kept: vec![kept(0, 0, true)], ..ListChange::default() },
                false => ListChange { removed: vec![0], added: vec![0], kept: Vec::new() },
            };
            assert_eq!(change, want, "{from} to {to}");
        }
    }

    #[test]
    fn link_is_reopened_unless_only_mtu_or_addresses_change() {
        type Edit = fn(&mut LinkConfig);
        let cases: [(Edit, bool); 7] = [
            (|link| link.device.addresses = vec!["10.1.0.1/24".parse().unwrap()], true),
            (|link| link.mtu = Some(1400), true),
            (|link| link.esp_gro = false, true),
            (|link| link.addresses.clear(), true),
            (|link| link.kind = LinkKind::Driver(DriverKind::Tun { queues: 1 }), false),
            (|link| link.offloads = false, false),
            (|link| link.name = "tun9".to_owned(), false),
        ];
        for (n, (change, stays)) in cases.into_iter().enumerate() {
            let mut new = config();
            change(&mut new.links[0]);
            let links = Change::between(&config(), &new).links;
            let moved = if stays { vec![] } else { vec![0] };
            assert_eq!((&links.removed, &links.added), (&moved, &moved), "case {n}");
            assert_eq!(links.kept[0], if stays { kept(0, 0, true) } else { kept(1, 1, false) }, "case {n}");
        }
    }

    #[test]
    fn routes_policies_and_fragment_rules_are_replaced_as_a_whole() {
        let mut new = config();
        new.routes[0].action = RouteAction::Prohibit;
        let change = Change::between(&config(), &new);
        assert!(change.routes && !change.policies && change.links.is_empty() && change.sas.is_empty());
        let mut new = config();
        new.reassembly.v4.timeout_secs += 1;
        let change = Change::between(&config(), &new);
        assert!(change.settings && !change.routes && change.links.is_empty() && !change.is_empty());
        let mut new = config();
        new.policies.swap(0, 1);
        let change = Change::between(&config(), &new);
        assert!(change.policies && !change.routes && change.links.is_empty() && change.sas.is_empty());
    }
}

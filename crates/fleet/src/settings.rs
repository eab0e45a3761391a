//! Settings of a node's agent.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use base::Prefix;
use ila::{CsumMode, Locator};

use crate::key::is_name;

/// Domain that the node has tasks of, or sends to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Domain {
    /// Name, a part of keys.
    pub name: String,
    /// Prefix that contains the SIR prefixes of all tasks.
    pub prefix: Prefix,
}

/// Settings of a node's agent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Settings {
    /// Name of the fleet.
    pub fleet: String,
    /// Name of this node.
    pub node: String,
    /// Prefix of this node's locators.
    pub locators: Prefix,
    /// Domains.
    pub domains: Vec<Domain>,
    /// Networks of this node: names of their VRFs, and prefixes. It has no routes to those of others with the same prefix.
    pub networks: Vec<(String, Prefix)>,
    /// Whether the node has routes to the locators of other nodes, by their underlay addresses.
    pub routes: bool,
    /// Checksum mode of mappings.
    pub csum_mode: CsumMode,
    /// Time between two looks at the whole store.
    pub look_every: Duration,
}

/// Error: settings that contradict each other. `Display` names the offending value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct BadSettings(String);

impl Settings {
    /// Checks names and prefixes.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), BadSettings> {
        let domains = self.domains.iter().map(|domain| &domain.name);
        for name in [&self.fleet, &self.node].into_iter().chain(domains) {
            if !is_name(name) {
                return Err(BadSettings(format!(
                    "Invalid name {name:?}: letters, digits, '-', '_' and '.', 63 at most"
                )));
            }
        }
        let prefixes = self.domains.iter().map(|domain| domain.prefix).chain([self.locators]);
        let prefixes: Vec<_> = prefixes.collect();
        for (at, prefix) in prefixes.iter().enumerate() {
            if !is_prefix_of_locators(*prefix) {
                return Err(BadSettings(format!("Invalid prefix {prefix}: an IPv6 prefix of 8 to 64 bits")));
            }
            if let Some(other) = prefixes[..at].iter().find(|other| overlap(**other, *prefix)) {
                return Err(BadSettings(format!("Invalid prefix {prefix}: it overlaps {other}")));
            }
        }
        let mut names: Vec<_> = self.domains.iter().map(|domain| &domain.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(BadSettings(format!("Two domains have the name {:?}", twice[0])));
        }
        Ok(())
    }

    /// Domain that contains a locator.
    pub(crate) fn domain_of(&self, locator: Locator) -> Option<&Domain> {
        self.domains.iter().find(|domain| contains(domain.prefix, locator))
    }
}

impl fmt::Display for BadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadSettings {}

/// Whether locators may have a prefix: as much of a network as one node or domain has at most.
pub(crate) fn is_prefix_of_locators(prefix: Prefix) -> bool {
    !prefix.is_ipv4() && (8..=64).contains(&prefix.len())
}

/// Whether a prefix contains a locator.
pub(crate) fn contains(prefix: Prefix, locator: Locator) -> bool {
    prefix.contains(IpAddr::V6(locator.with(ila::Identifier(0))))
}

/// Whether two prefixes have addresses in common.
pub(crate) fn overlap(one: Prefix, other: Prefix) -> bool {
    one.contains(other.addr()) || other.contains(one.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(domain: &str, locators: &str) -> Settings {
        Settings {
            fleet: "f".to_owned(),
            node: "a".to_owned(),
            locators: locators.parse().unwrap(),
            domains: vec![Domain { name: "tasks".to_owned(), prefix: domain.parse().unwrap() }],
            networks: Vec::new(),
            routes: true,
            csum_mode: CsumMode::NeutralMapAuto,
            look_every: Duration::from_secs(600),
        }
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused() {
        let good = settings("2001:db8::/48", "fd00:0:1::/48");
        assert_eq!(good.check(), Ok(()));
        let bad_names = ["", "a/b", "a b", "ä", &"x".repeat(64)];
        for name in bad_names {
            let bad = Settings { node: name.to_owned(), ..good.clone() };
            assert!(bad.check().unwrap_err().to_string().contains("Invalid name"), "{name}");
        }
        for (domain, locators, want) in [
            ("fd00::/16", "fd00:0:1::/48", "Invalid prefix fd00:0:1::/48: it overlaps fd00::/16"),
            ("2001:db8::/48", "10.0.0.0/8", "Invalid prefix 10.0.0.0/8: an IPv6 prefix of 8 to 64 bits"),
            ("2001:db8::/65", "fd00:0:1::/48", "Invalid prefix 2001:db8::/65: an IPv6 prefix of 8 to 64 bits"),
        ] {
            assert_eq!(settings(domain, locators).check().unwrap_err().to_string(), want);
        }
        let mut twice = settings("2001:db8:1::/48", "fd00:0:1::/48");
        twice.domains.push(Domain { name: "tasks".to_owned(), prefix: "2001:db8:2::/48".parse().unwrap() });
        assert_eq!(twice.check().unwrap_err().to_string(), "Two domains have the name \"tasks\"");
    }
}

//! Keys of the store, `/fatpath/v1/FLEET/…`.

use std::fmt;
use std::str;

use base::Prefix;
use ila::{Identifier, Locator};

use crate::refusal::Refusal;

/// Longest name of a fleet, a node or a domain, in bytes.
const MAX_NAME: usize = 63;

/// Key of an object of a fleet.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Key {
    /// `meta`: identity of the store.
    Meta,
    /// `node/NODE`: locators of a node.
    Node(String),
    /// `alive/NODE`: the only key with a lease. Nothing follows from its absence.
    Alive(String),
    /// `ila/DOMAIN/SIR`: place of a task.
    Task {
        /// Name of the domain.
        domain: String,
        /// SIR prefix of the task, a /64.
        sir: Locator,
    },
    /// `vrf/NODE/VRF/PREFIX`: network behind a node.
    Network {
        /// Name of the node.
        node: String,
        /// Name of the VRF.
        vrf: String,
        /// Addresses of the network.
        prefix: Prefix,
    },
}

impl Key {
    /// Beginning of all keys of a fleet.
    pub fn root(fleet: &str) -> String {
        format!("/fatpath/v1/{fleet}/")
    }

    /// Beginning of the keys of a domain's tasks.
    pub fn domain(fleet: &str, domain: &str) -> String {
        format!("/fatpath/v1/{fleet}/ila/{domain}/")
    }

    /// Beginning of the keys of nodes.
    pub fn nodes(fleet: &str) -> String {
        format!("/fatpath/v1/{fleet}/node/")
    }

    /// Beginning of the keys of all tasks.
    pub fn tasks(fleet: &str) -> String {
        format!("/fatpath/v1/{fleet}/ila/")
    }

    /// Beginning of the keys of nodes that are alive.
    pub fn all_alive(fleet: &str) -> String {
        format!("/fatpath/v1/{fleet}/alive/")
    }

    /// Beginning of the keys of all networks.
    pub fn networks(fleet: &str) -> String {
        format!("/fatpath/v1/{fleet}/vrf/")
    }

    /// Beginning of the keys of a node's networks.
    pub fn networks_of(fleet: &str, node: &str) -> String {
        format!("/fatpath/v1/{fleet}/vrf/{node}/")
    }

    /// Parses a key of a fleet. An address has one form alone (RFC 5952), so that a task has one key.
    ///
    /// # Errors
    /// The key is none of this fleet's.
    pub fn parse(fleet: &str, key: &[u8]) -> Result<Self, Refusal> {
        let text = str::from_utf8(key).map_err(|_| Refusal::ForeignKey)?;
        let rest = text.strip_prefix(&Self::root(fleet)).ok_or(Refusal::ForeignKey)?;
        let parsed = match rest.split_once('/') {
            None if rest == "meta" => Self::Meta,
            Some(("node", name)) if is_name(name) => Self::Node(name.to_owned()),
            Some(("alive", name)) if is_name(name) => Self::Alive(name.to_owned()),
            Some(("ila", rest)) => Self::task(rest).ok_or(Refusal::ForeignKey)?,
            Some(("vrf", rest)) => Self::network(rest).ok_or(Refusal::ForeignKey)?,
            _ => return Err(Refusal::ForeignKey),
        };
        if parsed.text(fleet) == text { Ok(parsed) } else { Err(Refusal::ForeignKey) }
    }

    fn task(rest: &str) -> Option<Self> {
        let (domain, prefix) = rest.split_once('/')?;
        let addr: std::net::Ipv6Addr = prefix.strip_suffix("/64")?.parse().ok()?;
        let sir = Locator::of(addr);
        (is_name(domain) && Identifier::of(addr).0 == 0).then(|| Self::Task { domain: domain.to_owned(), sir })
    }

    fn network(rest: &str) -> Option<Self> {
        let (node, rest) = rest.split_once('/')?;
        let (vrf, prefix) = rest.split_once('/')?;
        let prefix = prefix.parse().ok()?;
        (is_name(node) && is_name(vrf)).then(|| Self::Network { node: node.to_owned(), vrf: vrf.to_owned(), prefix })
    }

    /// Text of the key in a fleet.
    pub fn text(&self, fleet: &str) -> String {
        format!("{}{self}", Self::root(fleet))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta => f.write_str("meta"),
            Self::Node(name) => write!(f, "node/{name}"),
            Self::Alive(name) => write!(f, "alive/{name}"),
            Self::Network { node, vrf, prefix } => write!(f, "vrf/{node}/{vrf}/{prefix}"),
            Self::Task { domain, sir } => write!(f, "ila/{domain}/{}/64", sir.with(Identifier(0))),
        }
    }
}

/// Whether a text may be a part of a key.
pub(crate) fn is_name(text: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_fleet_is_read_and_written() {
        let task = Key::Task { domain: "t".to_owned(), sir: "2001:db8:0:a".parse().unwrap() };
        let network = |prefix: &str| Key::Network {
            node: "a".to_owned(),
            vrf: "red".to_owned(),
            prefix: prefix.parse().unwrap(),
        };
        for (text, want) in [
            ("meta", Key::Meta),
            ("node/a.b-c_1", Key::Node("a.b-c_1".to_owned())),
            ("alive/a", Key::Alive("a".to_owned())),
            ("ila/t/2001:db8:0:a::/64", task),
            ("vrf/a/red/10.0.0.0/8", network("10.0.0.0/8")),
            ("vrf/a/red/2001:db8::/32", network("2001:db8::/32")),
            ("vrf/a/red/0.0.0.0/0", network("0.0.0.0/0")),
        ] {
            let whole = format!("/fatpath/v1/f/{text}");
            assert_eq!(Key::parse("f", whole.as_bytes()), Ok(want.clone()));
            assert_eq!(want.text("f"), whole);
        }
    }

    #[test]
    fn key_in_another_form_is_foreign() {
        for text in [
            "",
            "meta/",
            "metadata",
            "node/",
            "node/a/b",
            "node/a b",
            "alive",
            "ila",
            "ila/t",
            "ila//2001:db8::/64",
            "ila/t/2001:db8:0:a::",
            "ila/t/2001:db8:0:a::/63",
            "ila/t/2001:DB8:0:a::/64",
            "ila/t/2001:db8:0:a::1/64",
            "ila/t/2001:db8:0:a:0::/64",
            "ila/t/1.2.3.4/64",
            "vrf/red/10.0.0.0/8",
            "vrf/red/10.0.0.0/8/a",
            "vrf/a/red",
            "vrf/a//10.0.0.0/8",
            "vrf/a/red/10.0.0.1/8",
            "vrf/a/red/10.0.0.0/33",
            "vrf/a/red/2001:DB8::/32",
            "vrf/a/red/default",
            "vrf/a/red/10.0.0.0",
        ] {
            assert_eq!(Key::parse("f", format!("/fatpath/v1/f/{text}").as_bytes()), Err(Refusal::ForeignKey), "{text}");
        }
        for key in [&b"/fatpath/v1/g/meta"[..], b"/fatpath/v2/f/meta", b"\xff/fatpath/v1/f/meta", b"/fatpath/v1/fmeta"]
        {
            assert_eq!(Key::parse("f", key), Err(Refusal::ForeignKey));
        }
    }
}

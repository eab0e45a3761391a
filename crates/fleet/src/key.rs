//! Keys of the store, `/fatpath/v1/FLEET/…`.

use std::fmt;
use std::str;

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
        for (text, want) in [
            ("meta", Key::Meta),
            ("node/a.b-c_1", Key::Node("a.b-c_1".to_owned())),
            ("alive/a", Key::Alive("a".to_owned())),
            ("ila/t/2001:db8:0:a::/64", task),
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
            "vrf/red/10.0.0.0/8/a",
        ] {
            assert_eq!(Key::parse("f", format!("/fatpath/v1/f/{text}").as_bytes()), Err(Refusal::ForeignKey), "{text}");
        }
        for key in [&b"/fatpath/v1/g/meta"[..], b"/fatpath/v2/f/meta", b"\xff/fatpath/v1/f/meta", b"/fatpath/v1/fmeta"]
        {
            assert_eq!(Key::parse("f", key), Err(Refusal::ForeignKey));
        }
    }
}

//! Reasons for which an object of the store is left alone.

use std::fmt;

/// Reason to ignore a key or its value. The last good value of the key stays in effect.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Refusal {
    /// The key is none of the fleet's.
    ForeignKey,
    /// The value's `v` is not 1.
    Version,
    /// The value is no JSON, or lacks a field, or a field has another form.
    Malformed,
    /// The SIR prefix is outside of its domain.
    OutsideDomain,
    /// The locator is outside of the locators of its node, or the node is unknown.
    NoLocatorOfNode,
    /// Another task has the locator, or another node has an overlapping prefix.
    Overlap,
    /// Locators of a node are in a domain, or the underlay address is reached by a mapping.
    Loop,
    /// This node's name is used with other locators: by two nodes.
    TwoNodes,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::ForeignKey,
        Self::Version,
        Self::Malformed,
        Self::OutsideDomain,
        Self::NoLocatorOfNode,
        Self::Overlap,
        Self::Loop,
        Self::TwoNodes,
    ];

    /// Name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ForeignKey => "foreign-key",
            Self::Version => "version",
            Self::Malformed => "malformed",
            Self::OutsideDomain => "outside-domain",
            Self::NoLocatorOfNode => "no-locator-of-node",
            Self::Overlap => "overlap",
            Self::Loop => "loop",
            Self::TwoNodes => "two-nodes",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ForeignKey => "the key is none of the fleet's",
            Self::Version => "the value has an unknown version",
            Self::Malformed => "the value is malformed",
            Self::OutsideDomain => "the SIR prefix is outside of its domain",
            Self::NoLocatorOfNode => "the locator is none of its node's",
            Self::Overlap => "another object has the locator",
            Self::Loop => "the locators or the underlay address would be translated",
            Self::TwoNodes => "another node has this node's name",
        })
    }
}

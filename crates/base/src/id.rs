//! Identifiers: small numbers with a meaning.

use std::fmt;

/// A link of this node, as an index into its table of links. Linux calls it `ifindex`, and starts at 1 as we do.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LinkId(pub u32);

/// A routing table's number. Linux's well-known ones are [`TableId::MAIN`] and [`TableId::LOCAL`].
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct TableId(pub u32);

/// A security association of this node, as its SAD numbers them: none that is gone has the number of one that is there. Not the
/// SPI, which is for the wire.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SaId(pub u32);

impl LinkId {
    /// No link: a packet that this node made itself.
    pub const NONE: Self = Self(0);
}

impl TableId {
    /// `RT_TABLE_DEFAULT`, asked behind all others.
    pub const DEFAULT: Self = Self(253);
    /// `RT_TABLE_MAIN`, the one without a name in a configuration.
    pub const MAIN: Self = Self(254);
    /// `RT_TABLE_LOCAL`, asked before all others.
    pub const LOCAL: Self = Self(255);
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DEFAULT => f.write_str("default"),
            Self::MAIN => f.write_str("main"),
            Self::LOCAL => f.write_str("local"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

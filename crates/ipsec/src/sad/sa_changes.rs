//! Additions and removals of SAs, for logs and monitors.

use std::net::IpAddr;

use wire::Spi;

/// Maximum number of changes that wait to be [taken](SaChanges::take); later ones are only counted.
const MAX_WAITING: usize = 64;

/// Kind of a change.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SaChangeKind {
    /// An SA was added.
    Added,
    /// An SA was added beside one of the same addresses and `reqid`, whose SPI is `old`.
    Rekeyed {
        /// SPI of the older SA.
        old: Spi,
    },
    /// An SA was removed, or has expired.
    Removed,
}

/// Change of the database.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SaChange {
    /// Kind.
    pub kind: SaChangeKind,
    /// SPI.
    pub spi: Spi,
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// `reqid`.
    pub reqid: u32,
}

/// Changes since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct SaChanges {
    waiting: Vec<SaChange>,
    more: u64,
}

impl SaChanges {
    pub(crate) fn push(&mut self, change: SaChange) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push(change);
        } else {
            self.more += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The changes, and the number of further ones.
    pub(crate) fn take(&mut self) -> (Vec<SaChange>, u64) {
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.more))
    }
}

//! States of an SA.

/// State of an SA. Linux's `VOID` has no counterpart here, because no SA is kept half made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// Larval (`ACQ`).
    Acq,
    /// It may be used.
    Valid,
    /// A hard limit is reached; it is about to be removed.
    Expired,
    /// It was removed.
    Dead,
}

/// A hard limit is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expired;

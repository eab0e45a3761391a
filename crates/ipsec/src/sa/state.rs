//! States of an SA.

/// State of an SA, and what may be done with it. Linux's `VOID` has no counterpart here, because no SA is kept half made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// It is yet to come (`ACQ`).
    Acq,
    /// It may be used.
    Valid,
    /// It could not be made.
    Error,
    /// A hard limit is reached; it is about to be removed.
    Expired,
    /// It was removed.
    Dead,
}

/// A hard limit is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expired;

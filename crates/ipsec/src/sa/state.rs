//! States of an SA.

/// What may be done with an SA. Linux's `VOID` has no like here, because none is kept that is half made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum State {
    /// It is yet to come (`ACQ`).
    Acq,
    /// It may be used.
    Valid,
    /// Nobody could make it.
    Error,
    /// A hard limit is reached; it is about to be removed.
    Expired,
    /// It was removed.
    Dead,
}

/// A hard limit is reached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Expired;

//! Sequence numbers and replay window of an SA, in the two forms that messages have.

use super::attributes::Attributes;
use super::layout::{Fields, ReplayEsn};
use super::nums::attr;

/// Sequence numbers of an SA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Replay {
    /// `oseq`, `seq` and the bitmap of a window of up to 32, of which bit 0 is `seq`.
    Legacy([u32; 3]),
    /// The others, of whose bitmap bit `(n - 1) % window` is number `n`.
    Esn(ReplayEsn),
}

/// Numbers of a request. Those with a bitmap of any length win.
pub(super) fn of(attrs: &Attributes<'_>) -> Option<Replay> {
    esn(attrs).or_else(|| legacy(attrs))
}

/// Numbers with a bitmap of any length.
pub(super) fn esn(attrs: &Attributes<'_>) -> Option<Replay> {
    attrs.get(attr::REPLAY_ESN_VAL).map(|attr| Replay::Esn(ReplayEsn::of(attr.data)))
}

/// Numbers with a bitmap of 32.
pub(super) fn legacy(attrs: &Attributes<'_>) -> Option<Replay> {
    let mut from = Fields(attrs.get(attr::REPLAY_VAL)?.data);
    Some(Replay::Legacy([from.u32(), from.u32(), from.u32()]))
}

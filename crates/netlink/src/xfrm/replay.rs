//! Sequence numbers and replay window of an SA, in the two forms of the attributes.

use super::attributes::Attributes;
use super::layout::{Fields, ReplayEsn};
use super::nums::attr;

/// Sequence numbers of an SA.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Replay {
    /// `oseq`, `seq` and the bitmap of a window of up to 32; bit 0 is `seq` (`XFRMA_REPLAY_VAL`).
    Legacy([u32; 3]),
    /// Sequence numbers with a bitmap of any length; bit `(n - 1) % window` is number `n` (`XFRMA_REPLAY_ESN_VAL`).
    Esn(ReplayEsn),
}

/// Sequence numbers of a request. The ESN form takes precedence.
pub(super) fn of(attrs: &Attributes<'_>) -> Option<Replay> {
    esn(attrs).or_else(|| legacy(attrs))
}

/// Sequence numbers in ESN form, with a bitmap of any length.
pub(super) fn esn(attrs: &Attributes<'_>) -> Option<Replay> {
    attrs.get(attr::REPLAY_ESN_VAL).map(|attr| Replay::Esn(ReplayEsn::of(attr.data)))
}

/// Sequence numbers in legacy form, with a bitmap of 32 bits.
pub(super) fn legacy(attrs: &Attributes<'_>) -> Option<Replay> {
    let mut from = Fields(attrs.get(attr::REPLAY_VAL)?.data);
    Some(Replay::Legacy([from.u32(), from.u32(), from.u32()]))
}

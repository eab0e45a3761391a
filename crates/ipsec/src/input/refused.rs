//! Reason and counter of a packet that input drops.

use base::{DropReason, Mib};

use crate::replay::Replay;
use crate::sa::Sa;

/// Counter and reason of a packet that input drops, which the caller counts.
pub(super) type Uncounted = (Mib, DropReason);

/// Counts a refused sequence number.
pub(super) fn refuse(sa: &mut Sa, why: Replay) -> Uncounted {
    match why {
        Replay::Zero => {}
        Replay::Seen => sa.stats.replay += 1,
        Replay::TooOld => sa.stats.replay_window += 1,
    }
    (Mib::XfrmInStateSeqError, DropReason::EspReplay)
}

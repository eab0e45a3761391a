//! State of a link as `ethtool` shows it.

use base::DropReason;

use config::features::FeatureSet;
use ctl::state::LinkState;

/// State of a link as `ethtool` shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkDetail {
    /// State as `fatpath show links` has it.
    pub state: LinkState,
    /// Dropped packets of those received from the link, and those that the link dropped itself.
    pub drops: Vec<(DropReason, u64)>,
    /// Counters of GRO and GSO, with their names.
    pub fat: [(&'static str, u64); 7],
    /// Features that can be switched.
    pub can: FeatureSet,
    /// Features that are on.
    pub on: FeatureSet,
}

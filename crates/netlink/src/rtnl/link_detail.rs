//! State of a link for `ethtool`.

use base::DropReason;

use config::features::FeatureSet;
use ctl::state::LinkState;

/// State of a link for `ethtool`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LinkDetail {
    /// State, as in `fatpath show links`.
    pub state: LinkState,
    /// Drops of packets received from the link, and drops by the link itself.
    pub drops: Vec<(DropReason, u64)>,
    /// Counters of GRO and GSO, with their names.
    pub fat: [(&'static str, u64); 7],
    /// Features that can be switched.
    pub can: FeatureSet,
    /// Features that are on.
    pub on: FeatureSet,
}

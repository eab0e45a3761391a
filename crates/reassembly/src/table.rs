//! Tables of waiting datagrams.

use wire::Version;

use crate::user::ReassemblyContext;

/// Datagrams that share one limit, as they do in Linux.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Table {
    /// IPv4, in every context (`FRAG` in `/proc/net/sockstat`).
    V4,
    /// IPv6, in every context except tracking (`FRAG6` in `/proc/net/sockstat6`).
    V6,
    /// IPv6 tracking.
    TrackingV6,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 3] = [Self::V4, Self::V6, Self::TrackingV6];

    /// The table for datagrams of `version` in `context`.
    pub(crate) const fn of(context: ReassemblyContext, version: Version) -> Self {
        match version {
            Version::V4 => Self::V4,
            Version::V6 if context.user.is_observer(version) => Self::TrackingV6,
            Version::V6 => Self::V6,
        }
    }
}

//! Requests that created SAs and policies, which the `ipsec` crate keeps for `NETLINK_XFRM` to show.

use std::time::{SystemTime, UNIX_EPOCH};

use netlink::xfrm::{NewSa, Policy, convert};
use xfrm::{PolicyConfig, Request, SaConfig};

/// Request that created an SA.
#[derive(Clone, Debug)]
pub(crate) struct SaRecord {
    pub(crate) request: NewSa,
    /// Time of the request, in seconds since the Unix epoch.
    pub(crate) added: u64,
}

/// Request that created a policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyRecord {
    pub(crate) request: Policy,
    /// Time of the request, in seconds since the Unix epoch.
    pub(crate) added: u64,
}

impl SaRecord {
    /// Record of a request at the present time.
    pub(crate) fn now(request: NewSa) -> Self {
        Self { request, added: wall_clock() }
    }
}

impl PolicyRecord {
    /// Record of a request at the present time.
    pub(crate) fn now(request: Policy) -> Self {
        Self { request, added: wall_clock() }
    }
}

/// An SA of the configuration file, with its record.
pub(crate) fn sa_of_file(config: &SaConfig) -> SaConfig {
    let record = SaRecord::now(convert::new_sa(config));
    SaConfig { request: Some(Request::new(record)), ..config.clone() }
}

/// A policy of the configuration file, with its record.
pub(crate) fn policy_of_file(config: &PolicyConfig) -> PolicyConfig {
    let record = PolicyRecord::now(convert::new_policy(config));
    PolicyConfig { request: Some(Request::new(record)), ..config.clone() }
}

/// Present time, in seconds since the Unix epoch.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

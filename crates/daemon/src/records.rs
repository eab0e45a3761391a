//! Requests that made SAs and policies, as the `ipsec` crate keeps them for `NETLINK_XFRM` to show.

use std::time::{SystemTime, UNIX_EPOCH};

use config::model;
use ipsec::{PolicyConfig, Request, SaConfig};
use netlink::xfrm::{NewSa, Policy};

use super::translate::{to_ipsec, to_netlink};

/// Request that made an SA.
#[derive(Clone, Debug)]
pub(crate) struct SaRecord {
    pub(crate) said: NewSa,
    /// When it was added, in seconds since the Unix epoch.
    pub(crate) added: u64,
}

/// Request that made a policy.
#[derive(Clone, Debug)]
pub(crate) struct PolicyRecord {
    pub(crate) said: Policy,
    /// When it was added, in seconds since the Unix epoch.
    pub(crate) added: u64,
}

impl SaRecord {
    /// Record of a request that comes now.
    pub(crate) fn now(said: NewSa) -> Self {
        Self { said, added: wall_clock() }
    }
}

impl PolicyRecord {
    /// Record of a request that comes now.
    pub(crate) fn now(said: Policy) -> Self {
        Self { said, added: wall_clock() }
    }
}

/// An SA of the file, with its record.
pub(crate) fn sa_of_file(config: &model::SaConfig) -> SaConfig {
    let record = SaRecord::now(to_netlink::sa(config));
    SaConfig { request: Some(Request::new(record)), ..to_ipsec::sa(config) }
}

/// A policy of the file, with its record.
pub(crate) fn policy_of_file(config: &model::PolicyConfig) -> PolicyConfig {
    let record = PolicyRecord::now(to_netlink::policy(config));
    PolicyConfig { request: Some(Request::new(record)), ..to_ipsec::policy(config) }
}

/// The time, in seconds since the Unix epoch.
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

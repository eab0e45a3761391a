//! Vocabulary that every crate of fatpath shares.
//!
//! # Decides
//! Identifiers ([`PortId`], [`IfIndex`], [`Domain`], [`TableId`], [`SaId`], [`ShardId`]), prefixes ([`Prefix`], [`IfAddr`]), flows
//! that a rule for routes matches ([`RuleSelector`]), the choice among paths of a route ([`PathHash`]), time ([`Instant`]), rate
//! limits ([`TokenBucket`]), counters ([`Counters`], [`Mib`]), and the reasons for which a packet is dropped ([`DropReason`]).
//!
//! # Leaves to others
//! All protocols and all state. A core takes [`Instant`] as a parameter and never reads a clock: crate `daemon` does,
//! and crate `sim` invents one. A core counts into [`Counters`], which its owner holds.
//!
//! # Limits
//! Time is 64 bits of nanoseconds, 584 years. A link that is no interface of the host has an [`IfIndex`] from
//! [`IfIndex::FIRST_OWN`] (10^9) on.
//!
//! # Standards
//! RFC 4632 §3.1 and RFC 4291 §2.3 (prefixes); RFC 4291 §2.6.1 and RFC 6164 §4 (anycast address of a subnet's routers).
//! The documentation of each [`DropReason`] names the RFC section of the rule that was broken.
#![forbid(unsafe_code)]

mod counters;
mod drop_reason;
mod id;
mod path_hash;
mod prefix;
mod rule;
mod shard;
mod time;
mod token_bucket;

pub use counters::{Counters, Mib};
pub use drop_reason::DropReason;
pub use id::{Domain, IfIndex, Origin, PortId, SaId, TableId};
pub use path_hash::{PathHash, PathHashPolicy, path_of};
pub use prefix::{IfAddr, Prefix, PrefixError};
pub use rule::{RouteFlow, RuleInput, RuleSelector};
pub use shard::{ShardCount, ShardId, ShardPlace};
pub use time::Instant;
pub use token_bucket::{Rate, TokenBucket};

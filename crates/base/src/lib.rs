//! Vocabulary that every crate of fatpath shares: identifiers, prefixes, time, rate limits, counters and the reasons for a drop.
//!
//! Nothing here knows a protocol. A core takes [`Instant`] as a parameter and never reads a clock; it counts into
//! [`Counters`], which its owner holds; and each packet that goes no further does so for one [`DropReason`].
#![forbid(unsafe_code)]

mod counters;
mod drop_reason;
mod id;
mod prefix;
mod time;
mod token_bucket;

pub use counters::{Counters, Mib};
pub use drop_reason::DropReason;
pub use id::{Domain, IfIndex, LinkId, Origin, SaId, TableId};
pub use prefix::{IfAddr, Prefix, PrefixError};
pub use time::Instant;
pub use token_bucket::{Rate, TokenBucket};

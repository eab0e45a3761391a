//! Vocabulary that every crate of fatpath shares: identifiers, prefixes, time, rate limits, counters and drop reasons.
//!
//! Left to others: all protocols, and all state. A core takes [`Instant`] as a parameter and never reads a clock; it
//! counts into [`Counters`], which its owner holds; and each dropped packet has one [`DropReason`], whose documentation
//! names the RFC section. Limits: time is 64 bits of nanoseconds.
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

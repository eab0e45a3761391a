//! Changes of SAs and policies that a packet or a timer causes in one shard of a node. Every shard makes them, at one place of
//! the order of all changes, so that SAs, larval SAs and policies have the same numbers in all shards.

use base::{Instant, SaId, ShardId};
use xfrm::Flowi;

use crate::sa::Mapping;
use crate::spd::PolicyId;

/// Change for all shards of a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedChange {
    /// A packet needs an SA that does not exist.
    Acquire {
        /// The policy.
        policy: PolicyId,
        /// Number of the policy's arrival, which tells it from a later one of that number.
        arrived: u64,
        /// Number of the template.
        template: u8,
        /// The packet's flow.
        flow: Flowi,
        /// The shard that needs an SA of its own; `None` for one that all use.
        shard: Option<ShardId>,
    },
    /// A larval SA has timed out.
    LarvalEnded {
        /// Number of the larval SA.
        seq: u32,
        /// Whether that is reported.
        is_reported: bool,
    },
    /// An SA has sent or received its first packet.
    SaUsed {
        /// The SA.
        sa: SaId,
        /// Time of the packet.
        at: Instant,
    },
    /// An SA has reached its soft limit.
    SaDying {
        /// The SA.
        sa: SaId,
        /// Number of times that its lifetime was replaced before.
        renewals: u32,
    },
    /// An SA has reached its hard limit.
    SaEnded {
        /// The SA.
        sa: SaId,
    },
    /// The peer of an SA has moved.
    PeerMoved(Mapping),
    /// A policy that ends when it is not used was used.
    PolicyUsed {
        /// The policy.
        policy: PolicyId,
        /// As above.
        arrived: u64,
        /// Time of the packet.
        at: Instant,
    },
    /// A policy has reached its hard limit.
    PolicyEnded {
        /// The policy.
        policy: PolicyId,
        /// As above.
        arrived: u64,
    },
}

//! Limits of SAs and policies.

/// Maximum number of SAs of a node.
pub const MAX_SAS: usize = 1 << 20;

/// Maximum number of templates of a policy (`XFRM_MAX_DEPTH`). A policy with that many can be added, but is never
/// satisfied; the usable maximum is one less.
pub const MAX_TEMPLATES: usize = 6;

/// Maximum number of packets in a replay window, as in Linux (`XFRMA_REPLAY_ESN_MAX`).
pub const MAX_WINDOW: u32 = 4096;

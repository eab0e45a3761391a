//! Limits of memory and time, and the policies for eviction and copies.

use std::time::Duration;

/// Configuration. The defaults are Linux's, but for the policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Policy when memory is full.
    pub policy: Policy,
    /// Treatment of the pages in which fragments came.
    pub coalesce: Coalesce,
    /// IPv4, of all users together.
    pub v4: Limits,
    /// IPv6, of all users but tracking.
    pub v6: Limits,
    /// IPv6 tracking (`nf_conntrack_frag6_*`).
    pub tracking_v6: Limits,
    /// Fragments that an IPv4 source may send between two of one datagram (`ipfrag_max_dist`); 0 is without limit.
    pub max_distance: u32,
}

/// The limits of one table of datagrams. There is no lower threshold: Linux's has had no effect since 4.17.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Memory in bytes of `truesize` that may wait (`ipfrag_high_thresh`); 0 takes nothing.
    pub high_thresh: usize,
    /// Time for a datagram from its first arrival on (`ipfrag_time`).
    pub timeout: Duration,
}

/// Policy when memory is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Policy {
    /// The datagram that is least likely to become whole is evicted, and memory never passes the limit.
    #[default]
    Fair,
    /// No fragment is taken, until datagrams time out. What is used may pass the limit by one fragment.
    Linux,
}

/// Treatment of the pages in which fragments came.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Coalesce {
    /// They wait, each fragment a piece of its own, also in what is delivered here: as in a Linux that does not coalesce.
    Off,
    /// They wait, and become slots of one packet. What is small beside its page is copied, and its page goes home; so does
    /// everything that lies in a device's frames as long as half of these or more are in use. What is encrypted is copied
    /// too, to one page: a cipher would have to have it there.
    #[default]
    Move,
    /// They go home at once: every fragment is copied to pages of this node's memory.
    Copy,
}

impl Default for Config {
    fn default() -> Self {
        //= RFC 8200 §4.5 timeout
        let minute = Limits { high_thresh: 4 << 20, timeout: Duration::from_secs(60) };
        Self {
            policy: Policy::default(),
            coalesce: Coalesce::default(),
            v4: Limits { timeout: Duration::from_secs(30), ..minute },
            v6: minute,
            tracking_v6: minute,
            max_distance: 64,
        }
    }
}

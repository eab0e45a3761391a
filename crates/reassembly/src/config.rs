//! Limits of memory and time, and the policies for eviction and copies.

use std::time::Duration;

/// Configuration. The defaults are Linux's, except for the policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Config {
    /// Policy when memory is full.
    pub policy: Policy,
    /// Treatment of the pages of received fragments.
    pub coalesce: Coalesce,
    /// IPv4.
    pub v4: Limits,
    /// IPv6.
    pub v6: Limits,
    /// Maximum number of other fragments of an IPv4 source between two fragments of one datagram (`ipfrag_max_dist`); 0
    /// means no limit.
    pub max_distance: u32,
}

/// The limits of one table of datagrams. There is no lower threshold: Linux's has had no effect since 4.17.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Maximum `truesize` of waiting fragments (`ipfrag_high_thresh`); 0 refuses all fragments.
    pub high_thresh: usize,
    /// Lifetime of an incomplete datagram, from its first fragment on (`ipfrag_time`).
    pub timeout: Duration,
}

/// Policy when memory is full.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Policy {
    /// The datagram that is least likely to complete is evicted, and memory never exceeds the limit.
    #[default]
    Fair,
    /// Fragments are refused until datagrams time out. Memory may exceed the limit by one fragment.
    Linux,
}

/// Treatment of the pages of received fragments.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Coalesce {
    /// Pages are kept; each fragment stays a separate packet, also in the delivered datagram, as in a Linux without
    /// coalescing.
    Off,
    /// Pages are kept and become fragments of one packet. A fragment that is small compared with its page is copied and
    /// its page freed; so is each fragment in a frame of a device while half or more of the device's frames are in use.
    /// ESP is copied to one page, which the cipher would need anyway.
    #[default]
    Move,
    /// Pages are freed at once: every fragment is copied to pages of this node's memory.
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
            max_distance: 64,
        }
    }
}

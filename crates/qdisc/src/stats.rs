//! Counters of a discipline, as `tc -s qdisc show` prints them.

/// Packets and bytes of one discipline (Linux `gnet_stats_basic` and `gnet_stats_queue`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Bytes sent, counted as on the wire.
    pub bytes: u64,
    /// Packets sent: each segment of a fat packet counts.
    pub packets: u64,
    /// Dropped packets: a fat packet counts once, and after segmentation each segment counts.
    pub drops: u64,
    /// Number of times that a packet had to wait for tokens.
    pub overlimits: u64,
    /// Queued packets; fat ones count once.
    pub qlen: u32,
    /// Queued bytes, counted as on the wire.
    pub backlog: u64,
}

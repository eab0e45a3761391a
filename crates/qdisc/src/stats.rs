//! Counters of a discipline, as `tc -s qdisc show` prints them.

/// Packets and bytes of one discipline (Linux `gnet_stats_basic` and `gnet_stats_queue`).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Bytes that left, counted as on the wire.
    pub bytes: u64,
    /// Packets that left: each segment of a fat packet counts.
    pub packets: u64,
    /// Dropped packets: a fat packet counts once, and the segments of a packet that was cut count each.
    pub drops: u64,
    /// Times that a packet had to wait for tokens.
    pub overlimits: u64,
    /// Packets that a busy link has returned (Linux `qdisc_requeue`): always 0, as a packet is dequeued only for a link with room.
    pub requeues: u64,
    /// Packets that wait, fat ones counted once.
    pub qlen: u32,
    /// Bytes that wait, counted as on the wire.
    pub backlog: u64,
}

//! State of a guest, for `fatpath show links`.

/// State of a guest.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct GuestState {
    /// Whether a front end is connected.
    pub connected: bool,
    /// Whether the guest's driver can receive.
    pub running: bool,
    /// Names of the negotiated features (virtio 1.2 §5.1.3, §6).
    pub features: Vec<&'static str>,
    /// Regions of the guest's memory.
    pub regions: usize,
    /// Queues by number: the guest receives from even ones and sends by odd ones.
    pub queues: Vec<QueueState>,
    /// Front ends that have connected.
    pub connections: u64,
    /// Front ends that were disconnected because they, or their guests, violated the rules.
    pub violations: u64,
    /// Bytes that were copied out of the guest's memory and into it.
    pub copied: u64,
}

/// State of one queue of a guest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct QueueState {
    /// Whether the ring runs.
    pub running: bool,
    /// Whether the front end has enabled the queue.
    pub enabled: bool,
    /// Descriptors of the ring.
    pub size: u16,
    /// Chains of descriptors that were used.
    pub chains: u64,
    /// Interrupts.
    pub calls: u64,
    /// Times that the guest had no buffers for a frame.
    pub full: u64,
}

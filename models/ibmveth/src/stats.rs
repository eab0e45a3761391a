//! Counters of an adapter, by their names in `ethtool -S`.

/// The thirteen counters. Those that begin with `fw_enabled` are states, 0 or 1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Stats {
    /// Runs of the task that refills the pools.
    pub replenish_task_cycles: u64,
    /// Buffers that could not be allocated.
    pub replenish_no_mem: u64,
    /// Buffers that the hypervisor refused, or that could not be mapped.
    pub replenish_add_buff_failure: u64,
    /// Buffers that the hypervisor accepted.
    pub replenish_add_buff_success: u64,
    /// Buffers that were returned without a frame.
    pub rx_invalid_buffer: u64,
    /// Frames that the hypervisor dropped because no buffer was long enough.
    pub rx_no_buffer: u64,
    /// Frames whose buffers could not be mapped.
    pub tx_map_failed: u64,
    /// Frames that the hypervisor refused.
    pub tx_send_failed: u64,
    /// Whether the hypervisor completes TCP checksums over IPv4.
    pub fw_enabled_ipv4_csum: u64,
    /// Whether the hypervisor completes TCP checksums over IPv6.
    pub fw_enabled_ipv6_csum: u64,
    /// Fat frames sent.
    pub tx_large_packets: u64,
    /// Frames received that were longer than the MTU, or fat.
    pub rx_large_packets: u64,
    /// Whether the hypervisor accepts the MSS as an argument of the call.
    pub fw_enabled_large_send: u64,
}

impl Stats {
    /// Every counter with its name, in the driver's order.
    pub const fn named(&self) -> [(&'static str, u64); 13] {
        [
            ("replenish_task_cycles", self.replenish_task_cycles),
            ("replenish_no_mem", self.replenish_no_mem),
            ("replenish_add_buff_failure", self.replenish_add_buff_failure),
            ("replenish_add_buff_success", self.replenish_add_buff_success),
            ("rx_invalid_buffer", self.rx_invalid_buffer),
            ("rx_no_buffer", self.rx_no_buffer),
            ("tx_map_failed", self.tx_map_failed),
            ("tx_send_failed", self.tx_send_failed),
            ("fw_enabled_ipv4_csum", self.fw_enabled_ipv4_csum),
            ("fw_enabled_ipv6_csum", self.fw_enabled_ipv6_csum),
            ("tx_large_packets", self.tx_large_packets),
            ("rx_large_packets", self.rx_large_packets),
            ("fw_enabled_large_send", self.fw_enabled_large_send),
        ]
    }
}

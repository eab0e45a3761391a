//! State of a device's frame rings.

use crate::sys::xsk::XdpStats;

/// State of a device's frame rings, all queues of a link together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct RingState {
    /// Whether the driver runs the XDP program, rather than the network stack.
    pub native: bool,
    /// Whether the driver writes to our frames itself (zero copy).
    pub zero_copy: bool,
    /// Receive queues.
    pub queues: u32,
    /// Receive frames of each queue.
    pub frames: u32,
    /// Bytes of a frame.
    pub frame_size: u32,
    /// Frames that packets hold.
    pub held: u64,
    /// Times that a queue ran out of frames because packets held them all.
    pub rx_no_buffer: u64,
    /// The kernel's own counters.
    pub kernel: XdpStats,
}

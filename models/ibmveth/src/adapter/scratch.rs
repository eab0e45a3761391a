//! Storage of the transmit path.

use packet::{Buf, Packet};

use crate::descriptor::BufDesc;

/// Storage of the transmit path, reused from frame to frame.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) segments: Vec<Packet>,
    pub(super) pieces: Vec<Buf>,
    pub(super) descs: Vec<BufDesc>,
    /// Addresses of the current frame's mapped buffers.
    pub(super) mapped: Vec<u32>,
}

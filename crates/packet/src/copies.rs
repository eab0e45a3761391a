//! Statistics of copied bytes, by reason.
//!
//! Copied bytes per forwarded byte is this project's first figure of merit. The cipher's own pass over the payload is
//! not a copy, and copies by the kernel do not count.

use std::cell::Cell;

/// Reason for a copy of a packet's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum CopyReason {
    /// Linearization for a device or function that takes a single buffer.
    Linearize,
    /// Bytes were brought into the head to read a header.
    Pull,
    /// The head had no headroom for a header, or the last buffer no tailroom for a trailer.
    Expand,
    /// Shared bytes were copied before a write.
    Writable,
    /// A small packet was copied to the tailroom of the preceding one.
    Coalesce,
    /// Headers were repeated for each segment.
    SegmentHeader,
    /// Payload was copied into a segment, for a device without support for fragments.
    SegmentPayload,
    /// Payload was copied into a fragment.
    Fragment,
    /// Plaintext was copied into the frame in which it is encrypted in place.
    WireFrame,
    /// A frame was copied to the device's memory.
    DeviceFrame,
    /// Bytes were copied for a capture, or for the quote in an ICMP error.
    Tap,
    /// A queued packet was copied out of frames that its device needs.
    Spare,
    /// A frame was copied for sockets of the host side.
    HostSide,
    /// A frame was copied into or out of a guest's memory: memory that the guest can write is never a packet's.
    Guest,
    /// A copy that the caller requested by name.
    Copy,
}

impl CopyReason {
    /// Every reason, in the order of its counter.
    pub const ALL: [Self; 15] = [
        Self::Linearize,
        Self::Pull,
        Self::Expand,
        Self::Writable,
        Self::Coalesce,
        Self::SegmentHeader,
        Self::SegmentPayload,
        Self::Fragment,
        Self::WireFrame,
        Self::DeviceFrame,
        Self::Tap,
        Self::Spare,
        Self::HostSide,
        Self::Guest,
        Self::Copy,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linearize => "linearize",
            Self::Pull => "pull",
            Self::Expand => "expand",
            Self::Writable => "writable",
            Self::Coalesce => "coalesce",
            Self::SegmentHeader => "segment-header",
            Self::SegmentPayload => "segment-payload",
            Self::Fragment => "fragment",
            Self::WireFrame => "wire-frame",
            Self::DeviceFrame => "device-frame",
            Self::Tap => "tap",
            Self::Spare => "spare",
            Self::HostSide => "host-side",
            Self::Guest => "guest",
            Self::Copy => "copy",
        }
    }
}

/// Copies so far, by reason.
#[derive(Debug, Default)]
pub struct Copies {
    cells: [Cell<Copied>; CopyReason::ALL.len()],
}

/// Copies for one reason.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Copied {
    /// Number of copies.
    pub copies: u64,
    /// Total number of bytes.
    pub bytes: u64,
}

impl Copies {
    /// Counts a copy of `bytes` bytes.
    pub fn add(&self, reason: CopyReason, bytes: usize) {
        self.add_all(reason, Copied { copies: 1, bytes: bytes as u64 });
    }

    /// Adds copies counted by a thread that has no statistics of its own.
    pub fn add_all(&self, reason: CopyReason, more: Copied) {
        let cell = &self.cells[reason as usize];
        let Copied { copies, bytes } = cell.get();
        cell.set(Copied { copies: copies + more.copies, bytes: bytes + more.bytes });
    }

    /// Copies for `reason`.
    pub fn get(&self, reason: CopyReason) -> Copied {
        self.cells[reason as usize].get()
    }

    /// Bytes copied for any reason.
    pub fn total_bytes(&self) -> u64 {
        self.cells.iter().map(|cell| cell.get().bytes).sum()
    }

    /// Every reason with its copies.
    pub fn iter(&self) -> impl Iterator<Item = (CopyReason, Copied)> + '_ {
        CopyReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

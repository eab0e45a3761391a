//! The ledger of copies: each has a named reason.
//!
//! Copied bytes per forwarded byte is this project's first figure of merit. The cipher's own pass over the payload is
//! not a copy, and neither is what the kernel does.

use std::cell::Cell;

/// Reason for a copy of a packet's bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum CopyReason {
    /// Everything was brought into the head for a device or function that takes no pieces.
    Linearize,
    /// Bytes were brought into the head so that a header can be read there.
    Pull,
    /// The head had no room left for one more header, or the last buffer none for a trailer.
    Expand,
    /// Bytes that others may see were copied before they were changed.
    Writable,
    /// A small packet was joined to the tailroom of the one before it.
    Coalesce,
    /// The headers were repeated for each segment.
    SegmentHeader,
    /// Payload was copied into a segment, for a device that takes no page slots.
    SegmentPayload,
    /// Payload was copied into a fragment.
    Fragment,
    /// Plaintext was copied into the wire frame in which it is then encrypted in place.
    WireFrame,
    /// A frame was copied to where its device sends from.
    DeviceFrame,
    /// An observer: a capture, or the quotation in an ICMP error.
    Tap,
    /// A packet waits, and its device needs the frames that it lay in.
    Spare,
    /// A frame that sockets of the host side see as well.
    HostSide,
    /// A frame went into a guest's memory or came out of it: what the guest can still write is never a packet's.
    Guest,
    /// A copy that its caller asked for by name.
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

    /// The name that the figures show.
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
    /// Bytes in all.
    pub bytes: u64,
}

impl Copies {
    /// Notes a copy of `bytes` bytes.
    pub fn add(&self, reason: CopyReason, bytes: usize) {
        self.add_all(reason, Copied { copies: 1, bytes: bytes as u64 });
    }

    /// Notes copies that a thread without a ledger has counted.
    pub fn add_all(&self, reason: CopyReason, more: Copied) {
        let cell = &self.cells[reason as usize];
        let Copied { copies, bytes } = cell.get();
        cell.set(Copied { copies: copies + more.copies, bytes: bytes + more.bytes });
    }

    /// Copies for `reason`.
    pub fn get(&self, reason: CopyReason) -> Copied {
        self.cells[reason as usize].get()
    }

    /// Bytes copied for whatever reason.
    pub fn total_bytes(&self) -> u64 {
        self.cells.iter().map(|cell| cell.get().bytes).sum()
    }

    /// Every reason with what was copied for it.
    pub fn iter(&self) -> impl Iterator<Item = (CopyReason, Copied)> + '_ {
        CopyReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

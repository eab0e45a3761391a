//! Reports of dropped packets for `fatpath monitor --drops`.

use std::net::IpAddr;

use base::{DropReason, PortId};
use wire::{FlowKey, Spi};

/// Packet that was dropped, or several at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DropReport {
    /// Link that the packet came in by; `None` for a packet of this node.
    pub link: Option<PortId>,
    /// Reason.
    pub reason: DropReason,
    /// Number of packets.
    pub packets: u64,
    /// Addresses, protocol and ports, if they are known.
    pub flow: Option<FlowKey>,
    /// ESP of the packet, if an SA or its absence is the reason.
    pub esp: Option<DroppedEsp>,
}

/// ESP header of a dropped packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DroppedEsp {
    /// SPI, unless the packet is too short for one.
    pub spi: Option<Spi>,
    /// Outer source.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
}

/// Reports that wait for their reader: only as many as the reader has asked for, further drops are only counted.
#[derive(Debug, Default)]
pub(crate) struct DropWatch {
    /// Whether there is a reader.
    pub(crate) is_on: bool,
    /// Number of reports that may still be made.
    room: usize,
    reports: Vec<DropReport>,
    /// Packets that were dropped without a report.
    unreported: u64,
}

impl DropWatch {
    /// Permits `room` more reports, or ends them with `None`.
    pub(crate) fn set(&mut self, room: Option<usize>) {
        self.is_on = room.is_some();
        self.room = room.unwrap_or_default();
        if !self.is_on {
            *self = Self::default();
        }
    }

    /// Adds a report, if there is room for one.
    #[cold]
    pub(crate) fn push(&mut self, report: impl FnOnce() -> DropReport, packets: u64) {
        if !self.is_on {
            return;
        }
        if self.room == 0 {
            self.unreported += packets;
        } else {
            self.room -= 1;
            self.reports.push(report());
        }
    }

    /// Tells whether there is a report.
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// The reports since the last call.
    pub(crate) fn take(&mut self) -> std::vec::Drain<'_, DropReport> {
        self.reports.drain(..)
    }

    /// Number of packets without a report.
    pub(crate) fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Number of packets without a report since the last call.
    pub(crate) fn take_unreported(&mut self) -> u64 {
        std::mem::take(&mut self.unreported)
    }
}

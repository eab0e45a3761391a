//! Details of received ESP packets that were dropped, for traces and monitors.

use std::net::IpAddr;

use base::{DropReason, Origin};
use packet::Meta;
use wire::ip::Info;
use wire::{Spi, esp};

use crate::open_job::OpenJob;

/// Maximum number of drops whose details wait for [`take`](EspDrops::take); details of later ones are not kept.
const MAX_WAITING: usize = 1024;

/// A received packet that was dropped.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EspDrop {
    /// Reason.
    pub reason: DropReason,
    /// Place where the packet entered this node.
    pub origin: Origin,
    /// SPI; `None` for a packet without a whole ESP header.
    pub spi: Option<Spi>,
    /// Outer source: the peer.
    pub src: IpAddr,
    /// Outer destination.
    pub dst: IpAddr,
    /// Number of the packet in a trace; 0 without a trace.
    pub trace: u16,
}

/// Details of drops, which are kept while they are [watched](Self::watch).
#[derive(Debug, Default)]
pub(crate) struct EspDrops {
    is_watched: bool,
    waiting: Vec<EspDrop>,
}

impl EspDrops {
    /// Sets whether details are kept. Those that wait are removed.
    pub(crate) fn watch(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
        self.waiting.clear();
    }

    /// Keeps the details of a packet that begins with the bytes `front` behind the headers `info`.
    pub(crate) fn arrived(&mut self, reason: DropReason, info: &Info, front: &[u8], meta: &Meta) {
        let spi = esp::EspHeader::ref_from(front).ok().map(esp::EspHeader::spi);
        self.push(reason, meta.origin.get(), spi, info, meta.trace);
    }

    /// Keeps the details of a packet of a job; `trace` is its number in a trace.
    pub(crate) fn opened(&mut self, reason: DropReason, job: &OpenJob, trace: u16) {
        self.push(reason, job.outer.meta.origin.get(), Some(job.spi()), &job.outer.info, trace);
    }

    fn push(&mut self, reason: DropReason, origin: Origin, spi: Option<Spi>, info: &Info, trace: u16) {
        if self.is_watched && self.waiting.len() < MAX_WAITING {
            self.waiting.push(EspDrop { reason, origin, spi, src: info.src, dst: info.dst, trace });
        }
    }

    /// Tells whether there are details.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The details since the last call, in the order of the drops.
    pub(crate) fn take(&mut self) -> std::vec::Drain<'_, EspDrop> {
        self.waiting.drain(..)
    }
}

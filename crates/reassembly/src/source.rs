//! Sources of fragments: their number of fragments, and the memory charged to them.
//!
//! IPv4's identification has only 16 bits: at 64 KiB a millisecond it wraps within a datagram's 30 seconds, and
//! fragments of two datagrams would be mixed (RFC 4963). So fragments are counted by source (Linux's
//! `ipfrag_max_dist`).

use crate::eviction::EvictionLists;

/// A source with waiting datagrams.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Number of fragments so far. Only differences within the lifetime of a queue matter.
    arrived: u32,
    /// Number of waiting datagrams.
    pub(crate) queues: usize,
    /// The datagrams by progress, with their memory.
    pub(crate) group: EvictionLists,
}

impl Source {
    /// Counts a fragment for the queue whose last fragment had number `last`, and sets `last`. Returns whether more
    /// than `max` fragments arrived in between.
    pub(crate) fn advance(&mut self, last: &mut u32, max: u32) -> bool {
        self.arrived = self.arrived.wrapping_add(1);
        let before = std::mem::replace(last, self.arrived);
        self.arrived.wrapping_sub(before) > max
    }

    /// Counts consecutive fragments of a queue, and sets `last`.
    pub(crate) fn pass(&mut self, last: &mut u32, fragments: u32) {
        self.arrived = self.arrived.wrapping_add(fragments);
        *last = self.arrived;
    }
}

//! Sources of fragments: their number of fragments, and the memory charged to them.
//!
//! IPv4's identification has 16 bits only: at 64 KiB a millisecond it comes round within a datagram's 30 seconds, and
//! fragments of two datagrams would be mixed (RFC 4963). So a source's fragments are counted (Linux's
//! `ipfrag_max_dist`).

use crate::eviction::EvictionLists;

/// A source that has datagrams waiting.
#[derive(Debug, Default)]
pub(crate) struct Source {
    /// Fragments so far. Only differences count, within the life of a queue.
    arrived: u32,
    /// Datagrams that wait.
    pub(crate) queues: usize,
    /// The same by rank, and their memory.
    pub(crate) group: EvictionLists,
}

impl Source {
    /// A fragment came for the queue whose last one was number `last`, and this is its number. Returns whether more than
    /// `max` came since.
    pub(crate) fn advance(&mut self, last: &mut u32, max: u32) -> bool {
        self.arrived = self.arrived.wrapping_add(1);
        let before = std::mem::replace(last, self.arrived);
        self.arrived.wrapping_sub(before) > max
    }

    /// More fragments came one after the other for a queue, whose last one has this number now.
    pub(crate) fn pass(&mut self, last: &mut u32, fragments: u32) {
        self.arrived = self.arrived.wrapping_add(fragments);
        *last = self.arrived;
    }
}

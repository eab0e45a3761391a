//! How many fragments a source has sent since a datagram's last one. IPv4's identification has 16 bits only: at 64 KiB
//! a millisecond it comes round within a datagram's 30 seconds, and fragments of two datagrams would be mixed (RFC 4963;
//! Linux's `ipfrag_max_dist`).

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// The sources that have a datagram waiting, and how many fragments each has sent.
#[derive(Debug, Default)]
pub(crate) struct Distances {
    sources: HashMap<IpAddr, Source, RandomState>,
}

#[derive(Debug, Default)]
struct Source {
    /// Fragments so far. Only differences count, within the life of a queue.
    arrived: u32,
    queues: usize,
}

impl Distances {
    /// A new queue holds fragments from `src`.
    pub(crate) fn open(&mut self, src: IpAddr) {
        self.sources.entry(src).or_default().queues += 1;
    }

    /// A queue is gone. A source without any is forgotten.
    pub(crate) fn close(&mut self, src: IpAddr) {
        if let Some(source) = self.sources.get_mut(&src) {
            source.queues -= 1;
            if source.queues == 0 {
                self.sources.remove(&src);
            }
        }
    }

    /// A fragment from `src` came for the queue whose last one was number `last`, and this is its number. Returns whether
    /// more than `max` came since.
    pub(crate) fn advance(&mut self, src: IpAddr, last: &mut u32, max: u32) -> bool {
        let Some(source) = self.sources.get_mut(&src) else { return false };
        source.arrived = source.arrived.wrapping_add(1);
        let before = std::mem::replace(last, source.arrived);
        source.arrived.wrapping_sub(before) > max
    }

    /// How many sources are remembered.
    pub(crate) fn len(&self) -> usize {
        self.sources.len()
    }
}

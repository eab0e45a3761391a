//! Eviction order and rate limits of one neighbour table: the neighbours of one family on one link.
//!
//! The order is a segmented LRU. Entries that have answered a solicitation are *protected*: they may fill three
//! quarters of a full table, so that new neighbours always find room, and the least recently used one is evicted first.
//! All others are on *probation*, in one first-in-first-out queue for each [`Worth`]. Each operation takes O(log n).

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::TokenBucket;

/// Worth of an entry for eviction, in ascending order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Worth {
    /// The neighbour has never answered, and resolution has failed.
    Failed,
    /// The neighbour has sent a solicitation or an ARP request, and no packet was sent to it.
    Unused,
    /// Packets wait for the neighbour or were sent to it; it has not answered yet.
    Unconfirmed,
    /// The neighbour has answered a solicitation, or the operator has set it.
    Confirmed,
}

/// Position of an entry in the eviction order of its table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Place {
    pub(super) worth: Worth,
    seq: u64,
}

/// Evictable entries of one link and family, in order, with the rate limits of new ones.
#[derive(Debug)]
pub(super) struct NeighbourTable {
    /// Entries by [`Worth`], the oldest first.
    queues: [BTreeMap<u64, IpAddr>; 4],
    next_seq: u64,
    /// Budget of entries created by solicitations and ARP requests.
    pub(super) solicitations: TokenBucket,
    /// Budget of resolutions started by packets.
    pub(super) resolutions: TokenBucket,
    /// Budget of replies to unconfirmed stations.
    pub(super) answers: TokenBucket,
    /// Memory of the waiting packets.
    pub(super) waiting_bytes: usize,
}

impl Default for NeighbourTable {
    fn default() -> Self {
        Self {
            queues: Default::default(),
            next_seq: 0,
            solicitations: TokenBucket::FULL,
            resolutions: TokenBucket::FULL,
            answers: TokenBucket::FULL,
            waiting_bytes: 0,
        }
    }
}

impl NeighbourTable {
    /// Number of evictable entries.
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(BTreeMap::len).sum()
    }

    /// Appends an entry to the queue of its worth.
    pub(super) fn push(&mut self, worth: Worth, addr: IpAddr) -> Place {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.queue(worth).insert(seq, addr);
        Place { worth, seq }
    }

    /// Removes an entry from the order.
    pub(super) fn remove(&mut self, place: Place) {
        self.queue(place.worth).remove(&place.seq);
    }

    /// The entry to evict from a full table of `limit` entries for one of the worth `newcomer`; `None` if the newcomer
    /// gets no entry.
    ///
    /// An entry created by a solicitation replaces only others of the same kind, so entries of higher worth survive a
    /// flood of solicitations. A packet's next hop replaces the oldest entry of the longer queue on probation, so that
    /// a scan replaces its own entries.
    pub(super) fn victim(&self, newcomer: Worth, limit: usize) -> Option<IpAddr> {
        let [failed, unused, unconfirmed, confirmed] = &self.queues;
        let queue = if !failed.is_empty() {
            failed
        } else if newcomer <= Worth::Unused {
            unused
        } else if confirmed.len() > limit / 4 * 3 {
            confirmed
        } else if unused.len() >= unconfirmed.len() {
            unused
        } else {
            unconfirmed
        };
        queue.first_key_value().map(|(_, &addr)| addr)
    }

    fn queue(&mut self, worth: Worth) -> &mut BTreeMap<u64, IpAddr> {
        &mut self.queues[worth as usize]
    }

    /// Entries in the eviction order with their positions, for
    /// [`check_invariants`](super::Neighbours::check_invariants).
    pub(super) fn places(&self) -> impl Iterator<Item = (Place, IpAddr)> + '_ {
        let worths = [Worth::Failed, Worth::Unused, Worth::Unconfirmed, Worth::Confirmed];
        let queues = worths.into_iter().zip(&self.queues);
        queues.flat_map(|(worth, queue)| queue.iter().map(move |(&seq, &addr)| (Place { worth, seq }, addr)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    /// A table with `counts` entries of each worth; the oldest entries are 0, 50, 100 and 150.
    fn table(counts: [u8; 4]) -> NeighbourTable {
        let mut table = NeighbourTable::default();
        let worths = [Worth::Failed, Worth::Unused, Worth::Unconfirmed, Worth::Confirmed];
        for (at, (worth, count)) in worths.into_iter().zip(counts).enumerate() {
            for n in 0..count {
                table.push(worth, addr(at as u8 * 50 + n));
            }
        }
        table
    }

    #[test]
    fn victim_of_a_full_table_is_the_least_worth_the_newcomer() {
        const FAILED: Option<u8> = Some(0);
        const UNUSED: Option<u8> = Some(50);
        const UNCONFIRMED: Option<u8> = Some(100);
        const CONFIRMED: Option<u8> = Some(150);
        // Entries by worth, the victim for a soliciting neighbour, and for a packet's next hop.
        let cases = [
            ([1, 5, 5, 5], FAILED, FAILED),
            ([0, 5, 6, 5], UNUSED, UNCONFIRMED),
            ([0, 6, 5, 5], UNUSED, UNUSED),
            ([0, 8, 8, 0], UNUSED, UNUSED),
            ([0, 0, 16, 0], None, UNCONFIRMED),
            ([0, 1, 3, 12], UNUSED, UNCONFIRMED),
            ([0, 1, 2, 13], UNUSED, CONFIRMED),
            ([0, 0, 0, 16], None, CONFIRMED),
        ];
        for (counts, for_unused, for_unconfirmed) in cases {
            let table = table(counts);
            assert_eq!(table.len(), 16);
            assert_eq!(table.victim(Worth::Unused, 16), for_unused.map(addr), "{counts:?}");
            assert_eq!(table.victim(Worth::Unconfirmed, 16), for_unconfirmed.map(addr), "{counts:?}");
            assert_eq!(table.victim(Worth::Confirmed, 16), for_unconfirmed.map(addr), "{counts:?}");
        }
    }

    #[test]
    fn removed_entry_is_in_the_order_no_more() {
        let mut table = NeighbourTable::default();
        let first = table.push(Worth::Unused, addr(1));
        let second = table.push(Worth::Unused, addr(2));
        table.remove(first);
        assert_eq!(table.places().collect::<Vec<_>>(), [(second, addr(2))]);
        assert_eq!(table.victim(Worth::Unused, 1), Some(addr(2)));
    }
}

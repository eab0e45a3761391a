//! Sums of what the shards of a node count apart.

use ctl::state::{CopyState, CounterState, CountersState, FragmentsState, LinkState, LinkStats, RingState};
use netlink::rtnl::{LinkDetail, LinkNow};

use super::snapshot::{LONGEST_SLICE, LONGEST_VIEWED, LinkSums, NodeMemory};

/// Counts that the shards keep apart, and a reader sees as one.
pub(crate) trait Sum: Sized {
    /// Adds what another shard has counted.
    fn add(&mut self, other: Self);
}

/// The sum of what all shards have counted. `None` without a shard.
pub(crate) fn sum<T: Sum>(shards: Vec<T>) -> Option<T> {
    shards.into_iter().reduce(|mut all, other| {
        all.add(other);
        all
    })
}

impl Sum for LinkStats {
    fn add(&mut self, other: Self) {
        let Self {
            rx_packets,
            rx_bytes,
            rx_wire_packets,
            rx_calls,
            rx_dropped,
            tx_packets,
            tx_bytes,
            tx_wire_packets,
            tx_calls,
            tx_dropped,
            tx_errors,
        } = self;
        *rx_packets += other.rx_packets;
        *rx_bytes += other.rx_bytes;
        *rx_wire_packets += other.rx_wire_packets;
        *rx_calls += other.rx_calls;
        *rx_dropped += other.rx_dropped;
        *tx_packets += other.tx_packets;
        *tx_bytes += other.tx_bytes;
        *tx_wire_packets += other.tx_wire_packets;
        *tx_calls += other.tx_calls;
        *tx_dropped += other.tx_dropped;
        *tx_errors += other.tx_errors;
    }
}

/// Links in the form for netlink clients: state of the first shard, counters of all.
impl Sum for Vec<LinkNow> {
    fn add(&mut self, other: Self) {
        for link in other {
            if let Some(same) = self.iter_mut().find(|same| same.id == link.id) {
                same.stats.add(link.stats);
                same.queues = same.queues.map(|queues| queues + link.queues.unwrap_or_default());
            }
        }
    }
}

/// A link for `fatpath show`: state of the first shard, counters of all.
impl Sum for LinkState {
    fn add(&mut self, other: Self) {
        self.stats.add(other.stats);
        add_counters(&mut self.ip6, other.ip6);
        for error in other.peer_errors {
            match self.peer_errors.iter_mut().find(|same| (same.peer, &same.error) == (error.peer, &error.error)) {
                Some(same) => {
                    same.count += error.count;
                    same.last_secs = same.last_secs.min(error.last_secs);
                }
                None => self.peer_errors.push(error),
            }
        }
        if let (Some(ring), Some(other)) = (&mut self.ring, other.ring) {
            ring.add(other);
        }
    }
}

/// Rings over the queues of all shards.
impl Sum for RingState {
    fn add(&mut self, other: Self) {
        self.queues += other.queues;
        self.frames += other.frames;
        self.held += other.held;
        self.rx_no_buffer += other.rx_no_buffer;
        self.rx_dropped += other.rx_dropped;
        self.rx_invalid_descs += other.rx_invalid_descs;
        self.tx_invalid_descs += other.tx_invalid_descs;
        self.rx_ring_full += other.rx_ring_full;
        self.rx_fill_ring_empty_descs += other.rx_fill_ring_empty_descs;
        self.tx_ring_empty_descs += other.tx_ring_empty_descs;
    }
}

/// A link in the form of `ethtool`.
impl Sum for LinkDetail {
    fn add(&mut self, other: Self) {
        self.state.add(other.state);
        for (reason, count) in other.drops {
            match self.drops.iter_mut().find(|(same, _)| *same == reason) {
                Some((_, sum)) => *sum += count,
                None => self.drops.push((reason, count)),
            }
        }
        for ((_, sum), (_, count)) in self.fat.iter_mut().zip(other.fat) {
            *sum += count;
        }
    }
}

impl<T: Sum> Sum for Option<T> {
    fn add(&mut self, other: Self) {
        match (self, other) {
            (Some(sum), Some(other)) => sum.add(other),
            (sum @ None, other) => *sum = other,
            (Some(_), None) => {}
        }
    }
}

impl Sum for CountersState {
    fn add(&mut self, other: Self) {
        for counter in other.counters {
            match self.counters.iter_mut().find(|same| same.name == counter.name) {
                // A longest time is no sum.
                Some(same) if [LONGEST_SLICE, LONGEST_VIEWED].contains(&&*counter.name) => {
                    same.value = same.value.max(counter.value);
                }
                Some(same) => same.value += counter.value,
                None => self.counters.push(counter),
            }
        }
        for CopyState { reason, copies, bytes } in other.copies {
            match self.copies.iter_mut().find(|same| same.reason == reason) {
                Some(same) => {
                    same.copies += copies;
                    same.bytes += bytes;
                }
                None => self.copies.push(CopyState { reason, copies, bytes }),
            }
        }
        self.forwarded_packets += other.forwarded_packets;
        self.forwarded_bytes += other.forwarded_bytes;
    }
}

impl Sum for Vec<FragmentsState> {
    fn add(&mut self, other: Self) {
        for (sum, other) in self.iter_mut().zip(other) {
            sum.inuse += other.inuse;
            sum.memory += other.memory;
        }
    }
}

/// Memory of all shards: entries of the first, as the others have copies.
impl Sum for NodeMemory {
    fn add(&mut self, other: Self) {
        self.fragments += other.fragments;
        self.captures = self.captures.max(other.captures);
        for (sum, other) in self.pools.iter_mut().zip(other.pools) {
            sum.pages += other.pages;
            sum.in_use += other.in_use;
            sum.bytes += other.bytes;
            sum.dry += other.dry;
        }
    }
}

impl Sum for LinkSums {
    fn add(&mut self, other: Self) {
        self.waiting += other.waiting;
        self.rx_packets += other.rx_packets;
        self.rx_wire_packets += other.rx_wire_packets;
        self.rx_calls += other.rx_calls;
        self.tx_wire_packets += other.tx_wire_packets;
        self.tx_calls += other.tx_calls;
        self.without_queue.extend(other.without_queue);
    }
}

/// Adds counters by name; one that is new comes last.
fn add_counters(sums: &mut Vec<CounterState>, others: Vec<CounterState>) {
    for counter in others {
        match sums.iter_mut().find(|same| same.name == counter.name) {
            Some(same) => same.value += counter.value,
            None => sums.push(counter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(name: &str, value: u64) -> CounterState {
        CounterState { name: name.to_owned(), value }
    }

    fn counters(counters: Vec<CounterState>, packets: u64) -> CountersState {
        let copies = vec![CopyState { reason: "Tap".to_owned(), copies: packets, bytes: 10 * packets }];
        CountersState { counters, copies, forwarded_packets: packets, forwarded_bytes: 100 * packets }
    }

    #[test]
    fn counters_of_shards_are_added_by_name() {
        let first = counters(vec![counter("A", 1), counter(LONGEST_SLICE, 7), counter(LONGEST_VIEWED, 2)], 1);
        let second =
            counters(vec![counter("B", 2), counter("A", 3), counter(LONGEST_SLICE, 5), counter(LONGEST_VIEWED, 3)], 2);
        let want =
            counters(vec![counter("A", 4), counter(LONGEST_SLICE, 7), counter(LONGEST_VIEWED, 3), counter("B", 2)], 3);
        assert_eq!(sum(vec![first, second]), Some(want));
        assert_eq!(sum::<CountersState>(vec![]), None);
    }
}

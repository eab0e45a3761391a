//! Burst of packets, received together.

use std::vec::Drain;

use crate::Packet;

/// Prefetch distance in packets: processing that many takes as long as a cache miss. A core supports few misses in
/// flight, and its L1 cache has few sets, so a longer distance would lose some prefetches.
const AHEAD: usize = 8;

/// Packets received together from a link, taken out one by one. Their pages may lie anywhere in memory, so each page is
/// prefetched a few packets ahead.
#[derive(Debug)]
pub struct Burst<'a>(Drain<'a, Packet>);

impl<'a> Burst<'a> {
    /// Burst of all `packets`, which is empty after the burst, even if some were not taken out. Prefetches the first
    /// few.
    #[inline]
    pub fn new(packets: &'a mut Vec<Packet>) -> Self {
        packets.iter().take(AHEAD).for_each(Packet::prefetch);
        Self(packets.drain(..))
    }

    /// Prefetches the packet at the prefetch distance; called once for each packet, before it is taken out.
    #[inline]
    pub fn look_ahead(&self) {
        if let Some(soon) = self.ahead().get(AHEAD) {
            soon.prefetch();
        }
    }

    /// Packets that have not been taken out.
    #[inline]
    pub fn ahead(&self) -> &[Packet] {
        self.0.as_slice()
    }

    /// The packet that [`next`](Self::next) would return.
    #[inline]
    pub fn first(&self) -> Option<&Packet> {
        self.ahead().first()
    }
}

impl Iterator for Burst<'_> {
    type Item = Packet;

    #[inline]
    fn next(&mut self) -> Option<Packet> {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn all_come_in_order_and_what_is_left_is_dropped() {
        let mem = Memory::heap();
        let mut packets: Vec<_> = (0..20).map(|n| Packet::with_data(&mem, &[n]).unwrap()).collect();
        let mut burst = Burst::new(&mut packets);
        for n in 0..19 {
            burst.look_ahead();
            assert_eq!(burst.first().map(Packet::head), Some(&[n][..]));
            assert_eq!(burst.next().unwrap().head(), [n]);
        }
        assert!(burst.first().is_some(), "one is left");
        drop(burst);
        assert_eq!((packets.len(), mem.small().in_use()), (0, 0));
    }
}

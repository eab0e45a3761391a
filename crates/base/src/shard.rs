//! Shards of a node, and the owner of what only one of them may have.

use std::fmt;
use std::num::NonZeroU8;

/// A shard of a node: a worker with a datapath of its own. The first is 0.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ShardId(pub u8);

/// Number of a node's shards, 1 to [`MAX`](Self::MAX).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ShardCount(NonZeroU8);

impl ShardId {
    /// The shard that has what exists once.
    pub const FIRST: Self = Self(0);
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl ShardCount {
    /// One shard, which owns everything.
    pub const ONE: Self = Self(NonZeroU8::MIN);

    /// The most shards.
    pub const MAX: u8 = 64;

    /// Multiplier of [`owner_of_spi`](Self::owner_of_spi), which mixes the bits of numbers that differ in few (2^32 divided by the
    /// golden ratio).
    pub const SPI_FACTOR: u32 = 0x9e37_79b1;

    /// Number of bits by which the product is shifted.
    pub const SPI_SHIFT: u32 = 16;

    /// `None` for 0, and for more than [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(count: u8) -> Option<Self> {
        match NonZeroU8::new(count) {
            Some(count) if count.get() <= Self::MAX => Some(Self(count)),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0.get() as usize
    }

    /// All shards, in their order.
    pub fn all(self) -> impl Iterator<Item = ShardId> {
        (0..self.0.get()).map(ShardId)
    }

    /// Shard that decrypts packets of an SPI. Kernels compute the same: in classic BPF, three instructions of 32 bits (`mul`, `rsh`,
    /// `mod`) choose the socket that receives a packet.
    #[must_use]
    pub const fn owner_of_spi(self, spi: u32) -> ShardId {
        ShardId(((spi.wrapping_mul(Self::SPI_FACTOR) >> Self::SPI_SHIFT) % self.0.get() as u32) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_is_1_to_64() {
        assert_eq!((ShardCount::new(0), ShardCount::new(65)), (None, None));
        assert_eq!(ShardCount::new(64).map(ShardCount::get), Some(64));
    }

    #[test]
    fn spis_that_people_write_are_spread_over_shards() {
        for shards in [2, 3, 4, 8] {
            let shards = ShardCount::new(shards).unwrap();
            for step in [1_u32, 2, 0x100, 0x1000, 0x1_0000] {
                let mut owned = vec![0; shards.get()];
                let spis = (1..=64_u32).map(|at| at * step);
                spis.for_each(|spi| owned[usize::from(shards.owner_of_spi(spi).0)] += 1);
                let most = 64 / shards.get() * 2;
                assert!(owned.iter().all(|&count| count > 0 && count <= most), "{step:#x}: {owned:?}");
            }
        }
    }
}

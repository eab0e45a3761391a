//! Shards of a node, and the owner of what only one of them may have.

use std::fmt;
use std::net::IpAddr;
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

impl Default for ShardCount {
    fn default() -> Self {
        Self::ONE
    }
}

/// One of the shards of a node, and their number. By default the only one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ShardPlace {
    /// The shard.
    pub id: ShardId,
    /// Number of the node's shards.
    pub count: ShardCount,
}

impl ShardPlace {
    /// Tells whether the node has other shards.
    #[must_use]
    #[inline]
    pub fn has_others(self) -> bool {
        self.count != ShardCount::ONE
    }

    /// Tells whether this is the first shard, which has what exists once.
    #[must_use]
    #[inline]
    pub fn is_first(self) -> bool {
        self.id == ShardId::FIRST
    }

    /// The owner, if it is another shard.
    #[must_use]
    #[inline]
    pub fn elsewhere(self, owner: ShardId) -> Option<ShardId> {
        (owner != self.id).then_some(owner)
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
        self.owner_of_mixed(spi.wrapping_mul(Self::SPI_FACTOR))
    }

    /// Shard that reassembles fragments between two addresses. Neither protocol nor identification counts: fragments of one datagram
    /// may differ in the protocol that they name (RFC 8200 §4.5).
    #[must_use]
    pub fn owner_of_fragments(self, src: IpAddr, dst: IpAddr) -> ShardId {
        let mix = |mixed: u32, word: u32| (mixed ^ word).wrapping_mul(Self::SPI_FACTOR).rotate_left(5);
        let words = |addr: IpAddr| match addr {
            IpAddr::V4(addr) => [0, 0, 0, addr.to_bits()],
            IpAddr::V6(addr) => {
                let bits = addr.to_bits();
                [(bits >> 96) as u32, (bits >> 64) as u32, (bits >> 32) as u32, bits as u32]
            }
        };
        let mixed = words(src).into_iter().chain(words(dst)).fold(0, mix);
        self.owner_of_mixed(mixed.wrapping_mul(Self::SPI_FACTOR))
    }

    const fn owner_of_mixed(self, mixed: u32) -> ShardId {
        ShardId(((mixed >> Self::SPI_SHIFT) % self.0.get() as u32) as u8)
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

    #[test]
    fn fragments_between_addresses_are_spread_over_shards() {
        let shards = ShardCount::new(4).unwrap();
        let mut owned = [0; 4];
        for last in 0..64_u8 {
            let v4 = shards.owner_of_fragments([192, 0, 2, last].into(), [198, 51, 100, 1].into());
            let v6 =
                shards.owner_of_fragments([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)].into(), [0x2001; 8].into());
            [v4, v6].iter().for_each(|owner| owned[usize::from(owner.0)] += 1);
        }
        assert!(owned.iter().all(|&count| (16..=64).contains(&count)), "{owned:?}");
        assert_eq!(ShardCount::ONE.owner_of_fragments([1; 4].into(), [2; 4].into()), ShardId::FIRST);
    }
}

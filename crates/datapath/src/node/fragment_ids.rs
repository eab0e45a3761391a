//! Identifications of packets that this node, or a router, may fragment.

use std::hash::{BuildHasher, RandomState};

use base::{DropReason, ShardCount};
use packet::{Memory, Packet};
use wire::{Version, ipv4};

/// Rounds of the permutation of IPv4 identifications.
const ROUNDS: u8 = 4;

/// Generator of unpredictable identifications for packets of this node (RFC 7739).
#[derive(Debug, Default)]
pub(crate) struct FragmentIds {
    key: RandomState,
    used: u64,
    /// Distance of two numbers, without those that the other shards use.
    others: u64,
}

impl FragmentIds {
    /// Generators of the shards of a node, which use no identification at the same time: each every so many of one sequence.
    pub(crate) fn shards(count: ShardCount) -> impl Iterator<Item = Self> {
        let key = RandomState::new();
        let others = count.get() as u64 - 1;
        count.all().map(move |shard| Self { key: key.clone(), used: u64::from(shard.0), others })
    }

    fn advance(&mut self) {
        self.used = self.used.wrapping_add(1 + self.others);
    }

    /// Next IPv6 identification, not used recently.
    pub(crate) fn next_v6(&mut self) -> u32 {
        self.advance();
        self.key.hash_one(self.used) as u32
    }

    /// Gives an IPv4 packet of the node that may be fragmented a new identification (RFC 6864 §4.3, Linux `ip_select_ident`). Other
    /// packets have none.
    ///
    /// # Errors
    /// No memory is free, or the header is malformed.
    pub(crate) fn identify(&mut self, mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
        let head = pkt.writable_head(mem)?;
        if Version::of(head)? == Version::V6 {
            return Ok(());
        }
        let header = ipv4::Ipv4Header::mut_from(head)?;
        if !header.dont_fragment() {
            header.set_id(self.next_v4());
            ipv4::fill_check(head)?;
        }
        Ok(())
    }

    /// Next IPv4 identification. The order is a keyed permutation (a Feistel network) of all 65 536, another one each time.
    fn next_v4(&mut self) -> u16 {
        //= RFC 6864 §4.3 unique-id: packets that may be fragmented have identifications that do not repeat soon
        self.advance();
        let cycle = self.used >> u16::BITS;
        let round = |[left, right]: [u8; 2], round: u8| [right, left ^ self.key.hash_one((cycle, round, right)) as u8];
        u16::from_be_bytes((0..ROUNDS).fold((self.used as u16).to_be_bytes(), round))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= test RFC 6864 §4.3 unique-id
    #[test]
    fn ipv4_identification_repeats_only_after_all_others() {
        let mut ids = FragmentIds { used: u64::from(u16::MAX), ..FragmentIds::default() };
        let mut was_used = vec![false; 1 << u16::BITS];
        for _ in 0..=u16::MAX {
            let id = usize::from(ids.next_v4());
            assert!(!std::mem::replace(&mut was_used[id], true), "{id}");
        }
    }

    #[test]
    fn shards_use_no_ipv4_identification_twice() {
        for count in [2, 3, 5, 64] {
            let count = ShardCount::new(count).unwrap();
            let mut ids: Vec<_> = FragmentIds::shards(count).collect();
            let mut was_used = vec![false; 1 << u16::BITS];
            let rounds = was_used.len() / count.get() - 1;
            for _ in 0..rounds {
                for ids in &mut ids {
                    let id = usize::from(ids.next_v4());
                    assert!(!std::mem::replace(&mut was_used[id], true), "{id}");
                }
            }
        }
    }
}

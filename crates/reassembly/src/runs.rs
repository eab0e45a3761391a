//! Runs by where they begin.

use crate::fragment::BLOCK;
use crate::run::Run;

/// Blocks that one leaf is for.
const LEAF: usize = u64::BITS as usize;

/// The runs of one datagram by the block at which each begins: an ordered tree of two levels over the 8192 blocks that a
/// datagram may have. However many they are, one is added and the one before a place is found in a few instructions.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Bit `n` says whether any run begins in the blocks of leaf `n`.
    occupied: u128,
    /// Which of `leaves` those are.
    leaf_of: Vec<u8>,
    leaves: Vec<Leaf>,
    runs: Vec<Option<Run>>,
}

/// The runs that begin in 64 blocks.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Bit `n` says whether a run begins at block `n`.
    occupied: u64,
    /// Which of the runs that is.
    run_of: [u16; LEAF],
}

impl Runs {
    /// How many blocks, and how many leaves for them.
    const BLOCKS: usize = 8192;
    const LEAVES: usize = Self::BLOCKS / LEAF;

    /// Adds a run that begins at byte `start`, where none does.
    pub(crate) fn insert(&mut self, start: usize, run: Run) {
        let (leaf, bit) = place(start);
        if self.occupied >> leaf & 1 == 0 {
            self.occupied |= 1 << leaf;
            self.leaf_of.resize(Self::LEAVES, 0);
            self.leaf_of[leaf] = self.leaves.len() as u8;
            self.leaves.push(Leaf { occupied: 0, run_of: [0; LEAF] });
        }
        let leaf = &mut self.leaves[usize::from(self.leaf_of[leaf])];
        leaf.occupied |= 1 << bit;
        leaf.run_of[bit] = self.runs.len() as u16;
        self.runs.push(Some(run));
    }

    /// The last run that begins before byte `end`, which is not 0, and where it begins.
    pub(crate) fn last_before(&self, end: usize) -> Option<(usize, &Run)> {
        let (leaf, bit) = place(end - 1);
        let here =
            if self.occupied >> leaf & 1 == 1 { self.leaf(leaf).occupied & (u64::MAX >> (LEAF - 1 - bit)) } else { 0 };
        let (leaf, bits) = match here {
            0 => {
                let before = self.occupied & ((1 << leaf) - 1);
                let leaf = before.checked_ilog2()? as usize;
                (leaf, self.leaf(leaf).occupied)
            }
            bits => (leaf, bits),
        };
        let bit = bits.checked_ilog2()? as usize;
        let run = self.runs[usize::from(self.leaf(leaf).run_of[bit])].as_ref()?;
        Some(((leaf * LEAF + bit) * BLOCK, run))
    }

    /// Takes all runs out, in order.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Run> + '_ {
        let Self { occupied, leaf_of, leaves, runs } = self;
        let mut left = std::mem::take(occupied);
        let mut bits = 0_u64;
        let mut leaf = None::<Leaf>;
        std::iter::from_fn(move || {
            if bits == 0 {
                let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                let found = leaves[usize::from(leaf_of[next])];
                (bits, leaf) = (found.occupied, Some(found));
            }
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            runs[usize::from(leaf?.run_of[bit])].take()
        })
    }

    /// Forgets all runs, and tells whether the storage is worth keeping for another datagram.
    pub(crate) fn clear(&mut self) -> bool {
        self.occupied = 0;
        self.leaves.clear();
        self.runs.clear();
        self.runs.capacity() <= LEAF && self.leaves.capacity() <= LEAF / 4
    }

    /// All runs, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.runs.iter().flatten()
    }

    fn leaf(&self, which: usize) -> &Leaf {
        &self.leaves[usize::from(self.leaf_of[which])]
    }
}

/// The leaf of a byte, and its block there. What lies behind all blocks counts as in the last one.
fn place(at: usize) -> (usize, usize) {
    let block = (at / BLOCK).min(Runs::BLOCKS - 1);
    (block / LEAF, block % LEAF)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use packet::{Memory, Packet};
    use proptest::prelude::*;

    use super::*;
    use crate::pinned::Pinned;
    use crate::run::How;

    fn run(mem: &Memory, end: usize) -> Run {
        let how = How { joins: true, copies: false, spares: false, gathers_from: usize::MAX };
        Run::new(mem, Packet::new(mem, 0, 8).unwrap(), (0, end), how, &mut Pinned::default())
    }

    proptest! {
        #[test]
        fn runs_are_found_and_leave_in_order_as_from_a_plain_map(
            starts in prop::collection::btree_set(0_usize..8192, 0..200),
            seed in any::<u64>(),
            asked in prop::collection::vec(1_usize..131_072, 50),
        ) {
            let mem = Memory::heap();
            let mut order: Vec<_> = starts.into_iter().collect();
            let len = order.len().max(1);
            order.rotate_left(seed as usize % len);
            let (mut runs, mut plain) = (Runs::default(), BTreeMap::new());
            for (n, block) in order.into_iter().enumerate() {
                runs.insert(block * BLOCK, run(&mem, n));
                plain.insert(block * BLOCK, n);
            }
            for end in asked {
                let want = plain.range(..end).next_back().map(|(&start, &n)| (start, n));
                prop_assert_eq!(runs.last_before(end).map(|(start, run)| (start, run.end)), want, "before {}", end);
            }
            prop_assert_eq!(runs.iter().count(), plain.len());
            let left: Vec<_> = runs.drain().map(|run| run.end).collect();
            prop_assert_eq!(left, plain.into_values().collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_block_may_begin_a_run() {
        let mem = Memory::heap();
        let mut runs = Runs::default();
        for block in (0..8192).rev() {
            runs.insert(block * BLOCK, run(&mem, block));
        }
        for block in 0..8192 {
            let end = block * BLOCK + 1;
            assert_eq!(runs.last_before(end).map(|(start, run)| (start, run.end)), Some((block * BLOCK, block)));
        }
        assert!(runs.drain().map(|run| run.end).eq(0..8192));
    }
}

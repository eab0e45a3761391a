//! Ordered tree of the contiguous ranges of one datagram.

use packet::{Buf, CopyReason, Csum, Memory};
use wire::FragOffset;

use crate::contiguous::{ContiguousRange, CopyPolicy, TINY, is_tiny};
use crate::fragment::BLOCK;

/// Number of blocks in a leaf.
const LEAF: usize = u64::BITS as usize;

/// The ranges of one datagram by their first block: an ordered tree of two levels over the 8192 blocks of a datagram.
/// Insertion and predecessor search take a few instructions, independent of the number of ranges.
#[derive(Debug, Default)]
pub(crate) struct RangeTree {
    /// Bit `n` is set if a range begins in the blocks of leaf `n`.
    occupied: u128,
    /// Indices into `leaves`.
    leaf_of: Vec<u8>,
    leaves: Vec<Leaf>,
    /// Number of `leaves` in use. Further leaves are left over from earlier datagrams.
    used: usize,
    runs: Vec<Option<ContiguousRange>>,
    slots: Vec<Option<Slot>>,
    /// Memory of slots that were tiny on arrival, in bytes.
    waste: usize,
    /// Page of tiny fragments, at their offsets in the datagram; used once their own pages waste as much memory.
    page: Option<Buf>,
    /// Ends of the fragments that were copied to the page.
    ends: Vec<u32>,
    /// Checksum state of all data in `page`.
    page_csum: Option<Csum>,
    /// The range that begins the datagram, if that arrived last.
    head: Option<ContiguousRange>,
}

/// A range of one fragment that becomes a slot of its datagram and needs no other state.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Data; `None` if the data lies in the page of tiny fragments.
    pub(crate) buf: Option<Buf>,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) csum: Csum,
}

/// Number of ranges from which on they are prefetched before the join, and the prefetch distance.
const MANY: usize = 128;
const AHEAD: usize = 8;

/// Flag of an index: a slot, or an entry of `ends`.
const SLOT: u16 = 1 << 15;
const PLACED: u16 = 1 << 14;

/// A large page has room for a tiny fragment at every offset.
const _: () = assert!(FragOffset::MAX.bytes() + TINY <= Memory::LARGE);

/// The ranges that begin in 64 blocks.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Bit `n` is set if a range begins at block `n`.
    occupied: u64,
    /// Indices of the ranges.
    run_of: [u16; LEAF],
}

impl RangeTree {
    /// Number of blocks in a datagram, and of leaves for them.
    const BLOCKS: usize = 8192;
    const LEAVES: usize = Self::BLOCKS / LEAF;

    /// Adds a range at byte `start`, where no range begins.
    pub(crate) fn insert(&mut self, start: usize, run: ContiguousRange) {
        self.note(start, self.runs.len() as u16);
        self.runs.push(Some(run));
    }

    /// Adds a slot where no range begins.
    #[inline]
    pub(crate) fn insert_slot(&mut self, slot: Slot) -> &mut Slot {
        self.note(slot.start as usize, self.slots.len() as u16 | SLOT);
        self.slots.push(None);
        // Changed after the move: a move right after the store would stall.
        self.slots.last_mut().expect("just pushed").insert(slot)
    }

    /// Adds a tiny fragment where no range begins. Once the pages of tiny fragments waste as much memory as one large
    /// page, all of them, and later ones, are copied to their offsets in one page (quinn's `Assembler::defragment`).
    pub(crate) fn insert_tiny(&mut self, mem: &Memory, slot: Slot) {
        if self.page.is_some() {
            self.note(slot.start as usize, self.ends.len() as u16 | PLACED);
            self.ends.push(slot.end);
            return copy_to_page(mem, &slot, &mut self.page, &mut self.page_csum);
        }
        self.waste += slot.buf.as_ref().map_or(0, Buf::truesize);
        self.insert_slot(slot);
        if self.waste >= Memory::LARGE
            && let Ok(mut page) = mem.take(0, Memory::LARGE)
            && page.put(Memory::LARGE).is_some()
        {
            self.page = Some(page);
            for slot in self.slots.iter_mut().flatten().filter(|slot| slot.buf.as_ref().is_some_and(is_tiny)) {
                copy_to_page(mem, slot, &mut self.page, &mut self.page_csum);
                slot.buf = None;
            }
        }
    }

    /// Tells whether tiny fragments are copied to one page.
    pub(crate) fn is_defragmented(&self) -> bool {
        self.page.is_some()
    }

    /// Stores the range that begins the datagram and completes it.
    pub(crate) fn set_head(&mut self, run: ContiguousRange) -> &mut ContiguousRange {
        self.head.insert(run)
    }

    #[inline]
    fn note(&mut self, start: usize, number: u16) {
        let (leaf, bit) = place(start);
        if self.occupied >> leaf & 1 == 0 {
            self.occupied |= 1 << leaf;
            self.leaf_of.resize(Self::LEAVES, 0);
            self.leaf_of[leaf] = self.used as u8;
            match self.leaves.get_mut(self.used) {
                Some(leaf) => leaf.occupied = 0,
                None => self.leaves.push(Leaf { occupied: 0, run_of: [0; LEAF] }),
            }
            self.used += 1;
        }
        let leaf = &mut self.leaves[usize::from(self.leaf_of[leaf])];
        leaf.occupied |= 1 << bit;
        leaf.run_of[bit] = number;
    }

    /// Start and end of the last range that begins before byte `end`, which is not 0.
    #[inline]
    pub(crate) fn last_before(&self, end: usize) -> Option<(usize, usize)> {
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
        let number = self.leaf(leaf).run_of[bit];
        Some(((leaf * LEAF + bit) * BLOCK, self.end_of(number)?))
    }

    /// End of the range with this index.
    #[inline]
    fn end_of(&self, number: u16) -> Option<usize> {
        match number {
            _ if number & SLOT != 0 => Some(self.slots[usize::from(number & !SLOT)].as_ref()?.end as usize),
            _ if number & PLACED != 0 => Some(self.ends[usize::from(number & !PLACED)] as usize),
            _ => Some(self.runs[usize::from(number)].as_ref()?.end),
        }
    }

    /// Joins all ranges to the first, which has headers and so is not a slot.
    pub(crate) fn join(&mut self, mem: &Memory, how: CopyPolicy) -> Option<&mut ContiguousRange> {
        let Self { occupied, leaf_of, leaves, runs, slots, page, page_csum, ends, head, .. } = self;
        let occupied = std::mem::take(occupied);
        let mut numbers = in_order(occupied, leaf_of, leaves);
        // Most fragments of a large datagram arrived long ago and lie scattered in memory.
        let is_far = runs.len() + slots.len() > MANY && page.is_none();
        let [mut soon, mut later] = [AHEAD, 2 * AHEAD].map(|ahead| {
            let behind = in_order(if is_far { occupied } else { 0 }, leaf_of, leaves);
            behind.skip(ahead)
        });
        let joined = match head {
            Some(head) => head,
            None => head.insert(runs.get_mut(usize::from(numbers.next()?))?.take()?),
        };
        let page_csum = page_csum.unwrap_or_default();
        // Number of bytes removed from the page's front, and the end of the next fragments to join.
        let mut taken = 0;
        let mut pending = None;
        let mut join_page = |joined: &mut ContiguousRange, pending: Option<u32>| {
            if let Some(end) = pending.map(|end| end as usize)
                && let Some(page) = page
            {
                let mut bytes = page.split_to(end - taken);
                bytes.pull(joined.end - taken);
                taken = end;
                joined.join_slot(mem, (bytes, page_csum), end, how);
            }
        };
        for number in numbers {
            let placed = match number & (SLOT | PLACED) {
                0 => None,
                PLACED => Some(ends[usize::from(number & !PLACED)]),
                _ => slots[usize::from(number & !SLOT)].as_ref().filter(|it| it.buf.is_none()).map(|it| it.end),
            };
            if placed.is_some() {
                pending = placed;
                continue;
            }
            join_page(joined, pending.take());
            if let Some(number) = later.next() {
                match number & SLOT {
                    0 => packet::prefetch(&runs[usize::from(number)]),
                    _ => packet::prefetch(&slots[usize::from(number & !SLOT)]),
                }
            }
            if let Some(number) = soon.next() {
                let buf = match number & SLOT {
                    0 => runs[usize::from(number)].as_ref().map(|run| run.first().head_buf()),
                    _ => slots[usize::from(number & !SLOT)].as_ref().and_then(|slot| slot.buf.as_ref()),
                };
                if let Some(buf) = buf {
                    buf.prefetch();
                    buf.prefetch_home();
                }
            }
            if number & SLOT == 0 {
                let run = runs[usize::from(number)].take();
                run.into_iter().for_each(|run| joined.join(mem, run, how));
            } else if let Some(Slot { buf: Some(buf), end, csum, .. }) = slots[usize::from(number & !SLOT)].take() {
                joined.join_slot(mem, (buf, csum), end as usize, how);
            }
        }
        join_page(joined, pending);
        Some(joined)
    }

    /// Removes and returns the joined range.
    #[inline]
    pub(crate) fn take_joined(&mut self) -> Option<ContiguousRange> {
        self.head.take()
    }

    /// Removes and returns the first range, unless it is a slot.
    pub(crate) fn take_first(&mut self) -> Option<ContiguousRange> {
        let first = in_order(self.occupied, &self.leaf_of, &self.leaves).next()?;
        self.runs.get_mut(usize::from(first))?.take()
    }

    /// Removes all ranges, and returns whether the storage is worth keeping for another datagram.
    pub(crate) fn clear(&mut self) -> bool {
        self.occupied = 0;
        self.used = 0;
        self.runs.clear();
        self.slots.clear();
        self.ends.clear();
        (self.waste, self.page, self.page_csum, self.head) = (0, None, None, None);
        let is_small = self.leaves.capacity() <= LEAF && self.slots.capacity() <= LEAF;
        is_small && self.runs.capacity() <= LEAF
    }

    /// All ranges except slots, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ContiguousRange> {
        self.runs.iter().chain([&self.head]).flatten()
    }

    /// The buffers of all slots, unordered, and the page of tiny fragments.
    pub(crate) fn bufs(&self) -> impl Iterator<Item = &Buf> {
        self.slots.iter().flatten().filter_map(|slot| slot.buf.as_ref()).chain(&self.page)
    }

    fn leaf(&self, which: usize) -> &Leaf {
        &self.leaves[usize::from(self.leaf_of[which])]
    }
}

/// Copies a fragment to its offset in the page of tiny fragments.
fn copy_to_page(mem: &Memory, slot: &Slot, page: &mut Option<Buf>, page_csum: &mut Option<Csum>) {
    let Some(buf) = &slot.buf else { return };
    let bytes = page.as_mut().and_then(Buf::bytes_mut).expect("no other buffer refers to the page");
    bytes[slot.start as usize..slot.end as usize].copy_from_slice(buf.bytes());
    mem.copied(CopyReason::Coalesce, buf.len());
    let csum = *page_csum.get_or_insert(slot.csum);
    *page_csum = Some(if csum == slot.csum { csum } else { Csum::None });
}

/// Indices of ranges and slots, in the order of their starts.
fn in_order<'r>(mut left: u128, leaf_of: &'r [u8], leaves: &'r [Leaf]) -> impl Iterator<Item = u16> + 'r {
    let mut bits = 0_u64;
    let mut leaf = None::<&Leaf>;
    std::iter::from_fn(move || {
        if bits == 0 {
            let next = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            let found = &leaves[usize::from(leaf_of[next])];
            (bits, leaf) = (found.occupied, Some(found));
        }
        let bit = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        Some(leaf?.run_of[bit])
    })
}

/// Leaf of a byte, and its block in the leaf. Bytes beyond all blocks count as the last block's.
fn place(at: usize) -> (usize, usize) {
    let block = (at / BLOCK).min(RangeTree::BLOCKS - 1);
    (block / LEAF, block % LEAF)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use packet::Packet;
    use proptest::prelude::*;

    use super::*;
    use crate::memory_charge::MemoryCharge;

    fn run(mem: &Memory, end: usize) -> ContiguousRange {
        let how = CopyPolicy { joins: true, copies: false, spares: false, gathers_from: usize::MAX };
        ContiguousRange::new(mem, Packet::new(mem, 0, 8).unwrap(), (0, end), how, &mut MemoryCharge::default())
    }

    fn tiny(mem: &Memory, start: usize, end: usize) -> Slot {
        let mut buf = mem.small().take(0).unwrap();
        buf.put(BLOCK).unwrap().fill(end as u8);
        Slot { buf: Some(buf), start: start as u32, end: end as u32, csum: Csum::None }
    }

    fn ends(runs: &RangeTree) -> Vec<usize> {
        in_order(runs.occupied, &runs.leaf_of, &runs.leaves).map(|number| runs.end_of(number).unwrap()).collect()
    }

    proptest! {
        #[test]
        fn ranges_match_a_plain_map(
            starts in prop::collection::btree_set(0_usize..8192, 0..200),
            seed in any::<u64>(),
            queries in prop::collection::vec(1_usize..131_072, 50),
        ) {
            let mem = Memory::heap();
            let mut order: Vec<_> = starts.into_iter().collect();
            let len = order.len().max(1);
            order.rotate_left(seed as usize % len);
            let (mut runs, mut plain) = (RangeTree::default(), BTreeMap::new());
            for (n, block) in order.into_iter().enumerate() {
                let start = block * BLOCK;
                let end = match seed.rotate_right(n as u32) & 3 {
                    0 => start + n,
                    _ => start + BLOCK,
                };
                match seed.rotate_right(n as u32) & 3 {
                    0 => runs.insert(start, run(&mem, end)),
                    1 => _ = runs.insert_slot(tiny(&mem, start, end)),
                    _ => runs.insert_tiny(&mem, tiny(&mem, start, end)),
                }
                plain.insert(start, end);
            }
            for end in queries {
                let want = plain.range(..end).next_back().map(|(&start, &n)| (start, n));
                prop_assert_eq!(runs.last_before(end), want, "before {}", end);
            }
            let slots = runs.slots.iter().flatten().count() + runs.ends.len();
            prop_assert_eq!(runs.iter().count() + slots, plain.len());
            prop_assert_eq!(ends(&runs), plain.into_values().collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_block_may_begin_a_run() {
        let mem = Memory::heap();
        let mut runs = RangeTree::default();
        for block in (0..8192).rev() {
            runs.insert(block * BLOCK, run(&mem, block));
        }
        for block in 0..8192 {
            let end = block * BLOCK + 1;
            assert_eq!(runs.last_before(end), Some((block * BLOCK, block)));
        }
        assert!(ends(&runs).into_iter().eq(0..8192));
    }
}

//! Storage of SAs: in chunks that never move, each SA on cache lines of its own.

use base::SaId;
use xfrm::MAX_SAS;

use crate::sa::Sa;

/// Bits of an [`SaId`] with the slot number; the bits above count the reuses of the slot, so that an id kept by a
/// packet never names another SA.
const SLOT_BITS: u32 = MAX_SAS.ilog2();

/// No slot.
const NONE: u32 = u32::MAX;

/// Number of SAs in a chunk. The list of chunks fits the nearest caches.
const PIECE: usize = 64;

/// SAs by id.
#[derive(Debug, Default)]
pub(super) struct Slots {
    pieces: Vec<Box<[Option<Sa>; PIECE]>>,
    links: Vec<Links>,
    free: Vec<u32>,
}

/// State of a slot apart from its SA.
#[derive(Clone, Copy, Debug)]
struct Links {
    uses: u32,
    /// Neighbours in a list: the next newer and the next older one.
    newer: u32,
    older: u32,
}

/// The number of an SA's slot.
pub(super) const fn slot_of(id: SaId) -> u32 {
    id.0 & ((1 << SLOT_BITS) - 1)
}

impl Slots {
    /// The id of the next SA; `None` if all slots are in use.
    pub(super) fn next_id(&self) -> Option<SaId> {
        let (slot, uses) = match self.free.last() {
            Some(&slot) => (slot, self.links[slot as usize].uses),
            None if self.links.len() < MAX_SAS => (self.links.len() as u32, 0),
            None => return None,
        };
        Some(SaId(uses << SLOT_BITS | slot))
    }

    /// Adds the SA whose id [`next_id`](Self::next_id) returned.
    pub(super) fn insert(&mut self, sa: Sa) {
        let slot = slot_of(sa.id()) as usize;
        if self.free.pop().is_none() {
            self.links.push(Links { uses: 0, newer: NONE, older: NONE });
            if slot / PIECE == self.pieces.len() {
                self.pieces.push(Box::new([const { None }; PIECE]));
            }
        }
        self.pieces[slot / PIECE][slot % PIECE] = Some(sa);
    }

    /// Removes an SA that is in no list.
    pub(super) fn take(&mut self, id: SaId) -> Option<Sa> {
        let slot = slot_of(id);
        let place = self.pieces.get_mut(slot as usize / PIECE)?;
        let sa = place[slot as usize % PIECE].take_if(|sa| sa.id() == id)?;
        let Links { uses, .. } = &mut self.links[slot as usize];
        *uses = uses.wrapping_add(1) & (u32::MAX >> SLOT_BITS);
        self.free.push(slot);
        Some(sa)
    }

    #[inline]
    pub(super) fn get(&self, id: SaId) -> Option<&Sa> {
        self.at(slot_of(id)).filter(|sa| sa.id() == id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: SaId) -> Option<&mut Sa> {
        let slot = slot_of(id) as usize;
        self.pieces.get_mut(slot / PIECE)?[slot % PIECE].as_mut().filter(|sa| sa.id() == id)
    }

    /// The SA in a slot.
    #[inline]
    pub(super) fn at(&self, slot: u32) -> Option<&Sa> {
        self.pieces.get(slot as usize / PIECE)?[slot as usize % PIECE].as_ref()
    }

    /// Every SA, in the order of its slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Sa> {
        self.pieces.iter().flat_map(|piece| piece.iter().flatten())
    }

    /// The SAs of the list that begins with `first`, the newest first.
    #[inline]
    pub(super) fn list(&self, first: Option<u32>) -> impl Iterator<Item = &Sa> {
        let older = |&slot: &u32| Some(self.links[slot as usize].older).filter(|&older| older != NONE);
        std::iter::successors(first, older).filter_map(|slot| self.at(slot))
    }

    /// Adds a slot in front of the list that begins with `first`.
    pub(super) fn link(&mut self, slot: u32, first: Option<u32>) {
        if let Some(first) = first {
            self.links[first as usize].newer = slot;
        }
        let links = &mut self.links[slot as usize];
        (links.newer, links.older) = (NONE, first.unwrap_or(NONE));
    }

    /// Removes a slot from its list. If it was the first, returns the new first one, if any.
    pub(super) fn unlink(&mut self, slot: u32) -> Option<Option<u32>> {
        let Links { newer, older, .. } = self.links[slot as usize];
        if let Some(older) = self.links.get_mut(older as usize) {
            older.newer = newer;
        }
        match self.links.get_mut(newer as usize) {
            Some(newer) => {
                newer.older = older;
                None
            }
            None => Some(Some(older).filter(|&older| older != NONE)),
        }
    }
}

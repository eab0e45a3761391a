//! Contiguous ranges of a datagram's payload.

use packet::{Buf, CopyReason, Csum, Cut, Memory, Meta, Packet, PageName};

use crate::memory_charge::MemoryCharge;

/// Minimum tailroom for later fragments, and the maximum length of a packet that is copied to get it.
const ROOM: usize = Memory::SMALL / 4;

/// Maximum length of a tiny fragment, independent of the size of its page.
pub(crate) const TINY: usize = Memory::SMALL / 4;

/// Number of pages in a range from which on later fragments are copied to a large page, so that the packet's slots
/// suffice.
const MANY: usize = 16;

/// Length that fits every datagram.
const ALL: usize = Memory::LARGE - Memory::HEADROOM;

/// Treatment of a new fragment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyPolicy {
    /// Fragments become one packet; otherwise each stays a separate packet.
    pub(crate) joins: bool,
    /// Fragments that become one packet are copied, and their pages freed.
    pub(crate) copies: bool,
    /// Fragments in frames of a device with few free frames are copied.
    pub(crate) spares: bool,
    /// Minimum length at which a copied beginning of a datagram moves to a large page.
    pub(crate) gathers_from: usize,
}

impl CopyPolicy {
    /// The policy for `pkt`.
    #[inline]
    pub(crate) fn to(self, mem: &Memory, pkt: &Packet) -> Self {
        let copies = self.copies || self.spares && pkt.has_scarce_frames(mem);
        Self { copies, ..self }
    }
}

/// A contiguous range of a datagram's payload, in one packet or several.
#[derive(Debug)]
pub(crate) struct ContiguousRange {
    /// End of the range in the datagram's payload.
    pub(crate) end: usize,
    /// Whether this range is the beginning of a datagram whose fragments are gathered in one page.
    gathers: bool,
    first: Packet,
    /// Packets that could not be coalesced with the preceding one, in order.
    more: Vec<Packet>,
}

impl ContiguousRange {
    /// A range of one fragment, from `offset` to `end`.
    #[inline]
    pub(crate) fn new(
        mem: &Memory,
        pkt: Packet,
        (offset, end): (usize, usize),
        how: CopyPolicy,
        pinned: &mut MemoryCharge,
    ) -> Self {
        let first = if how.copies { copied(mem, pkt, 0) } else { pkt };
        pinned.keep(&first);
        Self { end, gathers: how.copies && offset == 0, first, more: Vec::new() }
    }

    /// A range of one unchanged fragment, up to `end`.
    #[inline(always)]
    pub(crate) fn alone(pkt: Packet, end: usize) -> Self {
        Self { end, gathers: false, first: pkt, more: Vec::new() }
    }

    /// The first packet.
    #[inline]
    pub(crate) fn first(&self) -> &Packet {
        &self.first
    }

    /// The first packet, mutable.
    #[inline]
    pub(crate) fn first_mut(&mut self) -> &mut Packet {
        &mut self.first
    }

    /// Appends `pkt`.
    pub(crate) fn append(&mut self, mem: &Memory, pkt: Packet, how: CopyPolicy, pinned: &mut MemoryCharge) {
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        let pkt = match how {
            CopyPolicy { joins: true, copies: true, .. } if pkt.len() > last.tailroom() => {
                let room = if self.more.len() < MANY { 0 } else { ALL };
                copied(mem, pkt, room)
            }
            CopyPolicy { joins: true, .. } => return self.coalesce(mem, pkt, pinned),
            CopyPolicy { joins: false, .. } => pkt,
        };
        pinned.keep(&pkt);
        self.more.push(pkt);
    }

    /// Copies the range to one page with room for the complete datagram, if the range is long enough and `pkt` does not
    /// fit into its tailroom. The range is all that the datagram's queue holds.
    pub(crate) fn gather_for(&mut self, mem: &Memory, pkt: &Packet, how: CopyPolicy, pinned: &mut MemoryCharge) {
        let last = self.more.last().unwrap_or(&self.first);
        if !(self.gathers && how.copies) || self.end < how.gathers_from || pkt.len() <= last.tailroom() {
            return;
        }
        self.gathers = false;
        let len = self.packets().map(Packet::len).sum::<usize>() + pkt.len();
        if len <= ALL
            && let Some(mut large) = copy(mem, &self.first, ALL)
        {
            // The page has room for each of the packets.
            let more = std::mem::take(&mut self.more).into_iter();
            self.more.extend(more.filter_map(|pkt| large.try_coalesce(mem, pkt).err()));
            self.first = large;
            *pinned = MemoryCharge::default();
            self.packets().for_each(|pkt| pinned.keep(pkt));
        }
    }

    /// Coalesces `pkt` with the last packet, if possible.
    ///
    /// Only the last packet is appended to, so bytes stay in order. A small packet does not become a fragment of the
    /// last packet, but stays a packet with tailroom, into which later ones are copied.
    fn coalesce(&mut self, mem: &Memory, pkt: Packet, pinned: &mut MemoryCharge) {
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        let is_copied = pkt.len() <= last.tailroom();
        let pkt = if is_small(&pkt) && !is_copied {
            with_room(mem, pkt)
        } else {
            let claim = pinned.claim(&pkt);
            match last.try_coalesce(mem, pkt) {
                Ok(_) if is_copied => return,
                Ok(_) => return pinned.hold(claim),
                Err(pkt) => pkt,
            }
        };
        pinned.keep(&pkt);
        self.more.push(pkt);
    }

    /// Tells whether a following fragment of `len` bytes would take a slot of the packet.
    #[inline(always)]
    pub(crate) fn has_slot_for(&self, len: usize) -> bool {
        self.more.is_empty() && len > self.first.tailroom() && self.first.has_slot()
    }

    /// Appends `len` bytes at offset `front` of a buffer, for which the range [has a slot](Self::has_slot_for), and
    /// returns their page.
    #[inline(always)]
    pub(crate) fn append_slot(&mut self, buf: Buf, (front, len): (usize, usize), csum: Csum) -> (PageName, usize) {
        let both = both(self.first.meta.csum, csum);
        let page = self.first.fill_slot(buf, front, len).page();
        self.first.meta.csum = both;
        page
    }

    /// Copies a fragment to the tailroom, if it fits.
    #[inline(always)]
    pub(crate) fn append_copy(&mut self, mem: &Memory, bytes: &[u8], csum: Csum) -> bool {
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        let both = both(last.meta.csum, csum);
        let Some(room) = last.put(bytes.len()) else { return false };
        room.copy_from_slice(bytes);
        mem.copied(CopyReason::Coalesce, bytes.len());
        last.meta.csum = both;
        true
    }

    /// Appends a following fragment that ends at `end`, as [`join`](Self::join) would.
    #[inline]
    pub(crate) fn join_slot(&mut self, mem: &Memory, (buf, csum): (Buf, Csum), end: usize, how: CopyPolicy) {
        self.end = end;
        let len = buf.len();
        if self.has_slot_for(len) {
            self.append_slot(buf, (0, len), csum);
            return;
        }
        let mut pkt = Packet::from_buf(buf);
        pkt.meta = Meta { csum, cut: Cut::Fragment, ..self.first.meta.clone() };
        self.append(mem, pkt, CopyPolicy { copies: false, ..how }, &mut MemoryCharge::default());
    }

    /// Appends the adjacent range `next`. Large fragments are not copied here.
    pub(crate) fn join(&mut self, mem: &Memory, next: Self, how: CopyPolicy) {
        if how.joins
            && next.more.is_empty()
            && is_slot(&next.first)
            && !is_small(&next.first)
            && self.has_slot_for(next.first.len())
        {
            self.end = next.end;
            let (len, csum) = (next.first.len(), next.first.meta.csum);
            self.append_slot(next.into_buf(), (0, len), csum);
            return;
        }
        let how = CopyPolicy { copies: false, ..how };
        self.end = next.end;
        // Discarded: the charge ends with the datagram.
        let mut pinned = MemoryCharge::default();
        for pkt in std::iter::once(next.first).chain(next.more) {
            self.append(mem, pkt, how, &mut pinned);
        }
    }

    /// Makes one packet of the range, by reference: in free slots, then as children; or each packet except the first as
    /// a separate child.
    #[inline]
    pub(crate) fn pack(&mut self, how: CopyPolicy) -> &mut Packet {
        let whole = &mut self.first;
        for pkt in std::mem::take(&mut self.more) {
            if how.joins { whole.append(pkt) } else { whole.push_child(pkt) }
        }
        whole
    }

    /// Tells whether the range is a single buffer.
    #[inline]
    pub(crate) fn is_one_buf(&self) -> bool {
        self.more.is_empty() && self.first.is_one_buf()
    }

    /// The buffer of a range that [is one](Self::is_one_buf).
    #[inline(always)]
    pub(crate) fn into_buf(self) -> Buf {
        self.first.into_head()
    }

    /// Takes the first packet.
    pub(crate) fn into_first(self) -> Packet {
        self.first
    }

    /// The packets of the range.
    pub(crate) fn packets(&self) -> impl Iterator<Item = &Packet> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

/// Checksum state of a packet after appending data whose own state is `None` or `Unnecessary`.
#[inline(always)]
fn both(first: Csum, csum: Csum) -> Csum {
    match (first, csum) {
        (Csum::Unnecessary, Csum::Unnecessary) => Csum::Unnecessary,
        (first @ Csum::Partial { .. }, _) => first,
        _ => Csum::None,
    }
}

/// Tells whether a packet is a single buffer without a checksum sum.
#[inline]
pub(crate) fn is_slot(pkt: &Packet) -> bool {
    pkt.is_one_buf() && matches!(pkt.meta.csum, Csum::None | Csum::Unnecessary)
}

/// Tells whether a buffer wastes most of its memory, and is cheap to copy.
#[inline]
pub(crate) fn is_tiny(buf: &Buf) -> bool {
    buf.len() <= TINY && buf.truesize() > 4 * buf.len()
}

/// Tells whether a packet wastes most of its memory.
#[inline]
fn is_small(pkt: &Packet) -> bool {
    pkt.truesize() > 4 * pkt.len()
}

/// A small packet with tailroom, moved to a new page if necessary. Otherwise thousands of small packets could share a
/// large page that none of them frees, and would become as many children.
fn with_room(mem: &Memory, pkt: Packet) -> Packet {
    if pkt.len() > ROOM || pkt.tailroom() >= ROOM {
        return pkt;
    }
    pkt.copy(mem, CopyReason::Coalesce).unwrap_or(pkt)
}

/// A copy in a page of this node's memory, with room for at least `room` bytes; the original if no page is free.
fn copied(mem: &Memory, pkt: Packet, room: usize) -> Packet {
    copy(mem, &pkt, room).unwrap_or(pkt)
}

fn copy(mem: &Memory, pkt: &Packet, room: usize) -> Option<Packet> {
    let mut copy = Packet::new(mem, Memory::HEADROOM, room.max(pkt.len())).ok()?;
    pkt.read_at(0, copy.put(pkt.len())?);
    mem.copied(CopyReason::Coalesce, pkt.len());
    copy.meta = pkt.meta.clone();
    Some(copy)
}

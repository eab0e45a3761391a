//! Copies of fragments that use little of a large page.
//!
//! A device may receive many packets into one page, and one waiting packet pins the complete page: its datagram is
//! charged for all of the page, as the owners of the other packets are unknown. While memory is plentiful, such a
//! fragment waits in place. Otherwise the fragment is copied to a small page before it waits, so that a limit admits as
//! many of these fragments as of fragments with separate pages.

use packet::{Burst, CopyReason, Memory, Packet};

use crate::memory_charge::MemoryCharge;
use crate::queue::{DENSITY, Queue};
use crate::train::Train;

/// Tells whether a packet pins a page many times the packet's size, and would fit a small page.
pub(crate) fn wastes_page(pkt: &Packet) -> bool {
    let is_wasted = |size: usize| size > Memory::SMALL && size / DENSITY > pkt.len();
    let fits = Memory::HEADROOM + pkt.len() <= Memory::SMALL;
    fits && pkt.bufs().any(|buf| is_wasted(buf.page().1))
}

/// Copies a packet to a small page, if one is free.
#[cold]
pub(crate) fn copy_to_small_page(mem: &Memory, pkt: &mut Packet) {
    if let Ok(copy) = pkt.copy(mem, CopyReason::Coalesce) {
        *pkt = copy;
    }
}

/// Tells whether the fragments of a train at the front of a burst waste their pages: their datagram in `queue` stays
/// incomplete, and they pin more than [`DENSITY`] times their length.
#[cold]
pub(crate) fn wastes_pages(
    train: &Train,
    queue: &Queue,
    burst: &Burst<'_>,
    l3: &impl Fn(&Packet) -> Option<usize>,
) -> bool {
    if !burst.first().is_some_and(wastes_page) {
        return false;
    }
    let mut pinned = MemoryCharge::default();
    let mut len = 0;
    let mut end = None;
    for (pkt, span) in train.ahead(burst, l3) {
        pinned.add(pkt.head_buf().page());
        len += span.len();
        end = if span.more { end } else { Some(span.end) };
    }
    pinned.bytes() > DENSITY * len && !queue.is_whole_with(len, end)
}

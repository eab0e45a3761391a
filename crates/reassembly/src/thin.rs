//! Fragments that keep a large page of which they use little.
//!
//! A device may receive many packets into one page, and one of them that waits keeps all of it: it is charged for all, as
//! nobody knows who has the rest. While there is plenty of memory that is what happens. Else such a fragment is copied to a
//! small page before it waits, so that a limit holds as many of them as of those that came in pages of their own.

use packet::{Burst, CopyReason, Memory, Packet, PageName};

use crate::queue::{DENSITY, Queue};
use crate::train::Train;

/// Whether a packet keeps a page that is many times as large, and a small one would do.
pub(crate) fn is_thin(pkt: &Packet) -> bool {
    let keeps = |size: usize| size > Memory::SMALL && size / DENSITY > pkt.len();
    let fits = Memory::HEADROOM + pkt.len() <= Memory::SMALL;
    fits && if pkt.is_one_buf() { keeps(pkt.head_buf().page().1) } else { pkt.bufs().any(|buf| keeps(buf.page().1)) }
}

/// Has a packet lie in a page of its own, if one is free.
#[cold]
pub(crate) fn set_apart(mem: &Memory, pkt: &mut Packet) {
    if let Ok(copy) = pkt.copy(mem, CopyReason::Coalesce) {
        *pkt = copy;
    }
}

/// Which fragments of a train are to be [set apart](set_apart). None is if the datagram is whole with the train, as it does not wait
/// then, nor are those that use enough of their page together.
#[derive(Debug)]
pub(crate) struct Thin {
    /// Whether there is anything to look for.
    looks: bool,
    is_whole: Option<bool>,
    /// The page that came last, and whether what uses it is thin.
    page: Option<(PageName, bool)>,
}

impl Thin {
    pub(crate) const fn new(looks: bool) -> Self {
        Self { looks, is_whole: None, page: None }
    }

    /// Whether the fragment of `train` at the front of `burst` is to be apart, which is one of the datagram in `queue`.
    #[inline(always)]
    pub(crate) fn is_next(
        &mut self,
        train: &Train,
        queue: &Queue,
        burst: &Burst<'_>,
        l3: &impl Fn(&Packet) -> Option<usize>,
    ) -> bool {
        self.looks && self.is_apart(train, queue, burst, l3)
    }

    /// Kept out of line: mostly there is plenty of memory.
    #[cold]
    #[inline(never)]
    fn is_apart(
        &mut self,
        train: &Train,
        queue: &Queue,
        burst: &Burst<'_>,
        l3: &impl Fn(&Packet) -> Option<usize>,
    ) -> bool {
        let is_whole = || {
            let (mut len, mut end) = (0, None);
            for (_, span) in train.ahead(burst, l3) {
                len += span.len();
                end = if span.more { end } else { Some(span.end) };
            }
            queue.is_whole_with(len, end)
        };
        let Some(pkt) = burst.first().filter(|pkt| is_thin(pkt)) else { return false };
        let (page, size) = pkt.head_buf().page();
        if *self.is_whole.get_or_insert_with(is_whole) {
            return false;
        }
        if let Some((known, is_thin)) = self.page
            && known == page
        {
            return is_thin;
        }
        let mut here = train.ahead(burst, l3).take_while(|(pkt, _)| pkt.head_buf().page().0 == page);
        let mut used = 0;
        let is_used = here.any(|(_, span)| {
            used += span.len();
            used >= size / DENSITY
        });
        self.page = Some((page, !is_used));
        !is_used
    }
}

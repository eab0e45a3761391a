//! Memory charge of one datagram's fragments, and of the pages that they pin.

use packet::{Buf, PACKET_OVERHEAD, Packet, PageName};

/// Charge for packets and their pages.
///
/// A page is charged completely, even if other packets share it: the page is not freed while one of the fragments
/// waits. In a train that was received into one page, only the first fragment is charged for the page. A page is
/// charged again after two other pages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MemoryCharge {
    bytes: usize,
    /// The two pages charged last.
    latest: [Option<PageName>; 2],
}

/// Computed charge that is not applied yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim(MemoryCharge);

impl MemoryCharge {
    /// Bytes charged so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charge for the pages that hold data of `pkt`.
    #[inline]
    pub(crate) fn claim(&self, pkt: &Packet) -> Claim {
        let mut with = *self;
        let mut add = |buf: &Buf| {
            if !buf.is_empty() {
                with.add(buf.page());
            }
        };
        if pkt.is_one_buf() {
            add(pkt.head_buf());
        } else {
            pkt.bufs().for_each(add);
        }
        Claim(with)
    }

    /// Charges a page of this size.
    #[inline]
    pub(crate) fn add(&mut self, (page, size): (PageName, usize)) {
        match self.latest {
            [Some(last), _] if last == page => {}
            [last, Some(other)] if other == page => self.latest = [Some(other), last],
            [last, _] => {
                self.latest = [Some(page), last];
                self.bytes += size;
            }
        }
    }

    /// Charges pages.
    #[inline]
    pub(crate) fn hold(&mut self, claim: Claim) {
        *self = claim.0;
    }

    /// Charges a range of one buffer.
    #[inline]
    pub(crate) fn keep_slot(&mut self, page: (PageName, usize)) {
        self.add(page);
        self.bytes += PACKET_OVERHEAD;
    }

    /// Releases the charge of a range of one buffer, which is its page's only user.
    pub(crate) fn release_slot(&mut self, (page, size): (PageName, usize)) {
        self.latest = self.latest.map(|name| name.filter(|&name| name != page));
        self.bytes -= size + PACKET_OVERHEAD;
    }

    /// Charges a packet and its pages.
    #[inline]
    pub(crate) fn keep(&mut self, pkt: &Packet) {
        if pkt.is_one_buf() {
            return self.keep_slot(pkt.head_buf().page());
        }
        pkt.bufs().for_each(|buf| self.add(buf.page()));
        self.bytes += shells(pkt);
    }

    /// Minimum memory that packets pin: the packets themselves, and each page once.
    pub(crate) fn least<'p>(packets: impl Iterator<Item = &'p Packet>, slots: impl Iterator<Item = &'p Buf>) -> usize {
        let (mut bytes, mut pages) = (0, slots.map(Buf::page).collect::<Vec<_>>());
        for pkt in packets {
            bytes += shells(pkt);
            pages.extend(pkt.bufs().map(Buf::page));
        }
        pages.sort_unstable();
        pages.dedup();
        bytes + pages.iter().map(|&(_, size)| size).sum::<usize>()
    }
}

/// Memory of a packet's own structure and of those of its children.
fn shells(pkt: &Packet) -> usize {
    PACKET_OVERHEAD * (1 + pkt.frag_list().len())
}

#[cfg(test)]
mod tests {
    use packet::Memory;

    use super::*;

    #[test]
    fn a_page_that_others_share_is_charged_whole_and_once() {
        let mem = Memory::heap();
        let mut pages = [(); 3].map(|()| {
            let mut page = mem.large().take(0).unwrap();
            page.put(Memory::LARGE).unwrap();
            page
        });
        let mut piece = |at: usize| Packet::from_buf(pages[at].split_to(1500));
        let mut pinned = MemoryCharge::default();
        let mut kept = Vec::new();
        for (at, want) in [(0, 1), (0, 1), (1, 2), (1, 2), (0, 2), (2, 3), (1, 4)] {
            let pkt = piece(at);
            pinned.keep(&pkt);
            kept.push(pkt);
            assert_eq!(pinned.bytes(), want * Memory::LARGE + kept.len() * PACKET_OVERHEAD);
        }
        assert_eq!(
            MemoryCharge::least(kept.iter(), std::iter::empty()),
            3 * Memory::LARGE + kept.len() * PACKET_OVERHEAD
        );
        let own = Packet::with_data(&mem, &[0; 100]).unwrap();
        let before = pinned.bytes();
        pinned.hold(pinned.claim(&own));
        assert_eq!(pinned.bytes(), before + Memory::SMALL, "a slot has no packet of its own");
    }
}

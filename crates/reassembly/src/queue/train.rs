//! Fast path for fragments of a train that need no processing: they are inserted in place. [`Queue::add`] handles all
//! others.

use packet::{Csum, Cut, Memory, Packet};

use super::{Added, Queue, Spare, contradicts};
use crate::contiguous::ContiguousRange;
use crate::fragment_meta::{FirstFragment, FragmentRange};
use crate::range_tree::Slot;

impl Queue {
    /// Adds the first fragment of a datagram, unchanged, if it needs no processing; `take` then returns the fragment,
    /// with the number of bytes in front of its headers. `None` if the fragment needs [`add`](Self::add).
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        span: &FragmentRange,
        first: Option<FirstFragment>,
        take: impl FnOnce() -> Option<(Packet, usize)>,
    ) -> Option<Added> {
        let FragmentRange { offset, end, more, header_len, .. } = *span;
        // A restarted datagram keeps only its largest fragment size.
        if end == offset || contradicts((self.last_in, self.len), end, more) {
            return None;
        }
        let (pkt, front) = take()?;
        let (_, run) = self.last.insert((offset, ContiguousRange::alone(pkt, end)));
        // Changed after the move: a move right after the store would stall.
        let pkt = run.first_mut();
        let headers = if offset == 0 { 0 } else { header_len };
        pkt.pull(front + headers);
        pkt.trim(span.packet_len() - headers);
        pkt.meta.cut = Cut::Fragment;
        self.pinned.keep(pkt);
        self.first = first;
        (self.last_in, self.len) = (!more, end);
        let growth = self.pinned.bytes();
        Some(self.added(span, growth))
    }

    /// Adds a fragment that becomes a slot of its datagram and needs no other processing; `take` then returns the
    /// fragment, with the number of bytes of its head in front of the data. `None` if the fragment needs
    /// [`add`](Self::add).
    #[inline(always)]
    pub(crate) fn add_slot(
        &mut self,
        span: &FragmentRange,
        csum: Csum,
        spare: &mut Spare,
        take: impl FnOnce() -> Option<(Packet, usize)>,
    ) -> Option<Added> {
        let FragmentRange { offset, end, more, .. } = *span;
        let (start, last) = self.last.as_mut()?;
        let is_plain = offset > 0
            && end > offset
            && matches!(csum, Csum::None | Csum::Unnecessary)
            && !contradicts((self.last_in, self.len), end, more);
        if !is_plain {
            return None;
        }
        let before = self.pinned.bytes();
        if offset == last.end {
            if !last.has_slot_for(span.len()) {
                return None;
            }
            let (pkt, front) = take()?;
            let page = last.append_slot(pkt.into_head(), (front, span.len()), csum);
            self.pinned.add(page);
            last.end = end;
        } else {
            let goes_before = end <= *start;
            let is_free = || {
                let before = self.earlier.as_ref().and_then(|earlier| earlier.last_before(end));
                before.is_none_or(|(_, run_end)| run_end <= offset)
            };
            if !goes_before || !is_free() {
                return None;
            }
            let (pkt, front) = take()?;
            let slot = Slot { buf: Some(pkt.into_head()), start: offset as u32, end: end as u32, csum };
            let earlier = self.earlier.get_or_insert_with(|| spare.take());
            if let Some(buf) = &mut earlier.insert_slot(slot).buf {
                buf.pull(front);
                buf.trim(span.len());
                self.pinned.keep_slot(buf.page());
            }
        }
        self.last_in |= !more;
        self.len = self.len.max(end);
        Some(self.added(span, self.pinned.bytes() - before))
    }

    /// Adds the `bytes` of a tiny fragment that follows the last one, by a copy to the tailroom. `None` if the fragment
    /// needs [`add`](Self::add).
    #[inline(always)]
    pub(crate) fn add_copy(&mut self, mem: &Memory, span: &FragmentRange, csum: Csum, bytes: &[u8]) -> Option<Added> {
        let FragmentRange { offset, end, more, .. } = *span;
        let (_, last) = self.last.as_mut()?;
        let is_plain = offset == last.end
            && end > offset
            && matches!(csum, Csum::None | Csum::Unnecessary)
            && !contradicts((self.last_in, self.len), end, more);
        if !is_plain || !last.append_copy(mem, bytes, csum) {
            return None;
        }
        last.end = end;
        self.last_in |= !more;
        self.len = self.len.max(end);
        Some(self.added(span, 0))
    }

    /// Adds the first fragment of a datagram if it completes the datagram; `take` then returns the fragment, with the
    /// number of bytes in front of its headers. `None` if the fragment needs [`add`](Self::add).
    #[inline(always)]
    pub(crate) fn add_front(
        &mut self,
        span: &FragmentRange,
        first: Option<FirstFragment>,
        spare: &mut Spare,
        take: impl FnOnce() -> Option<(Packet, usize)>,
    ) -> Option<Added> {
        let FragmentRange { end, more, .. } = *span;
        let (start, _) = self.last.as_ref()?;
        let completes = self.last_in && more && end > 0 && self.received + end == self.len;
        let is_free = || self.earlier.as_ref().is_none_or(|earlier| earlier.last_before(end).is_none());
        if !completes || end > *start || !is_free() {
            return None;
        }
        let (pkt, front) = take()?;
        let earlier = self.earlier.get_or_insert_with(|| spare.take());
        // Changed after the move: a move right after the store would stall.
        let pkt = earlier.set_head(ContiguousRange::alone(pkt, end)).first_mut();
        pkt.pull(front);
        pkt.trim(span.packet_len());
        pkt.meta.cut = Cut::Fragment;
        self.pinned.keep(pkt);
        self.first = first;
        Some(self.added(span, 0))
    }
}

//! Queue of one datagram's fragments, in contiguous ranges (Linux's `inet_frag_queue`).
//!
//! Rule for overlaps: a fragment that overlaps another one ends its datagram (RFC 5722 §4); a duplicate alone is
//! dropped (RFC 8200 §4.5).

mod train;

use base::DropReason;
use packet::{Buf, Cut, FreeBatch, Memory, PackedOrigin, Packet};
use wire::ip::Info;
use wire::{Version, frag};

use crate::contiguous::{ContiguousRange, CopyPolicy, is_slot, is_tiny};
use crate::ecn;
use crate::fragment_meta::{FirstFragment, FragmentRange, ParameterProblem};
use crate::memory_charge::MemoryCharge;
use crate::range_tree::{RangeTree, Slot};
use crate::rebuild_header;

/// The fragments of an incomplete datagram.
///
/// As in Linux, a range grows only by a fragment that follows the last one; a fragment in a hole becomes a separate
/// range, even if it closes the hole. A duplicate is a fragment within one range.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The range with the highest offset, to which in-order fragments are appended, with its start.
    last: Option<(usize, ContiguousRange)>,
    /// The earlier ranges.
    earlier: Option<Box<RangeTree>>,
    /// Header fields of the first fragment, if it has arrived.
    first: Option<FirstFragment>,
    /// End of the datagram as far as known.
    len: usize,
    /// Whether the last fragment has arrived.
    last_in: bool,
    /// Bytes of payload received so far. Linux's `meat`.
    received: usize,
    fragments: u64,
    ecn: ecn::Seen,
    /// Charge for the memory that the ranges pin.
    pinned: MemoryCharge,
    /// Length of the largest fragment, and of the largest one with DF.
    largest: usize,
    largest_df: usize,
    /// Origin of the latest fragment.
    origin: PackedOrigin,
    /// Number of the latest fragment among those of its source.
    pub(crate) number: u32,
}

/// Storage shared by queues.
#[derive(Debug, Default)]
pub(crate) struct Spare {
    /// Emptied trees of ranges, kept for other datagrams so that no tree is allocated in a steady state.
    #[expect(clippy::vec_box, reason = "a queue has the box, and most have none")]
    runs: Vec<Box<RangeTree>>,
    /// Buffers of evicted datagrams.
    pub(crate) free_batch: FreeBatch,
}

impl Spare {
    /// Maximum number of kept trees.
    const MOST: usize = 16;

    fn take(&mut self) -> Box<RangeTree> {
        self.runs.pop().unwrap_or_default()
    }

    fn keep(&mut self, mut runs: Box<RangeTree>) {
        if runs.clear() && self.runs.len() < Self::MOST {
            self.runs.push(runs);
        }
    }
}

/// Upper bound of a packet's length.
const LONGEST: usize = 1 << 17;

/// Maximum ratio of memory to payload of a fragment that counts as progress: a fragment for a small MTU in a device's
/// page stays below this ratio, a fragment sent to exhaust memory does not.
pub(crate) const DENSITY: usize = 16;

/// Refusal of a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// Only the fragment is dropped.
    Fragment(DropReason),
    /// The complete datagram is dropped.
    Datagram(DropReason),
}

/// Result of adding a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Added {
    /// The datagram is complete.
    Whole,
    /// The datagram made progress.
    Nearer,
    /// Little progress: the fragment is the first, or much shorter than others though not the last, or than its memory.
    Hardly,
}

impl Queue {
    /// Removes all fragments, but keeps the length of the largest one, as Linux's `ip_frag_reinit` does.
    pub(crate) fn restart(&mut self) {
        let Self { number, largest, largest_df, .. } = *self;
        *self = Self { number, largest, largest_df, ..Self::default() };
    }

    /// Prefetches the fields that a drop of the only range reads.
    #[inline]
    pub(crate) fn prefetch_home(&self) {
        if let Some((_, run)) = &self.last {
            run.first().head_buf().prefetch_home();
        }
    }

    /// Frees the last range, if it is one buffer, in a batch with other datagrams.
    pub(crate) fn discard(&mut self, free_batch: &mut FreeBatch) {
        let is_one_buf = self.last.as_ref().is_some_and(|(_, run)| run.is_one_buf());
        if is_one_buf && let Some((_, run)) = self.last.take() {
            free_batch.add(run.into_buf());
        }
    }

    /// Frees all fragments.
    pub(crate) fn clear(&mut self, spare: &mut Spare) {
        let Self {
            last,
            earlier,
            first,
            len,
            last_in,
            received,
            fragments,
            ecn,
            pinned,
            largest,
            largest_df,
            origin,
            number,
        } = self;
        *last = None;
        if let Some(runs) = earlier.take() {
            spare.keep(runs);
        }
        (*first, *len, *last_in, *received, *fragments, *ecn) = Default::default();
        (*pinned, *largest, *largest_df, *origin, *number) = Default::default();
    }

    /// Adds a fragment, which begins with its headers; `first` holds the header fields of a first fragment. A fragment
    /// that is not coalesced stays a separate packet.
    pub(crate) fn add(
        &mut self,
        mem: &Memory,
        mut pkt: Packet,
        span: &FragmentRange,
        first: Option<FirstFragment>,
        how: CopyPolicy,
        spare: &mut Spare,
    ) -> Result<Added, Refused> {
        let FragmentRange { offset, end, more, .. } = *span;
        self.note_end(end, more).map_err(Refused::Datagram)?;
        if end == offset {
            return Err(Refused::Datagram(DropReason::FragmentEmpty));
        }
        let at_end = self.place(offset, end)?;
        if !how.joins && !pkt.frag_list().is_empty() {
            pkt.linearize(mem).map_err(|dry| Refused::Fragment(dry.into()))?;
        }
        self.origin = pkt.meta.origin;
        pkt.trim(span.packet_len());
        if offset == 0 {
            self.first = first;
        } else {
            pkt.pull(span.header_len);
        }
        let how = how.to(mem, &pkt);
        if let Some((0, last)) = &mut self.last
            && last.end == offset
        {
            last.gather_for(mem, &pkt, how, &mut self.pinned);
        }
        // A page for all later fragments is not charged to this one.
        let growth = self.insert(mem, pkt, (offset, end), at_end, how, spare);
        Ok(self.added(span, growth))
    }

    /// Length of the largest fragment, with its headers.
    #[inline]
    pub(crate) fn largest(&self) -> usize {
        self.largest
    }

    /// Tells whether the queue holds no fragment.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    /// Tells whether the datagram is complete after another `len` bytes, which end it if `end` is given.
    pub(crate) fn is_whole_with(&self, len: usize, end: Option<usize>) -> bool {
        end.or(self.last_in.then_some(self.len)) == Some(self.received + len)
    }

    /// Records the origin of a fragment.
    pub(crate) fn came_by(&mut self, origin: PackedOrigin) {
        self.origin = origin;
    }

    /// Records an added fragment with `growth` bytes of memory.
    #[inline(always)]
    fn added(&mut self, span: &FragmentRange, growth: usize) -> Added {
        self.fragments += 1;
        self.received += span.len();
        self.ecn.add(span.ecn);
        let is_long = 2 * span.packet_len() >= self.largest || !span.more;
        let is_dense = span.len() >= growth / DENSITY;
        self.largest = self.largest.max(span.packet_len());
        if span.dont_fragment {
            self.largest_df = self.largest_df.max(span.packet_len());
        }
        if self.last_in && self.received == self.len {
            Added::Whole
        } else if is_long && is_dense && self.fragments > 1 {
            Added::Nearer
        } else {
            Added::Hardly
        }
    }

    /// Records the end of a fragment, and for a last fragment the end of the datagram (RFC 815 §3).
    fn note_end(&mut self, end: usize, more: bool) -> Result<(), DropReason> {
        if contradicts((self.last_in, self.len), end, more) {
            return Err(DropReason::FragmentEnd);
        }
        self.last_in |= !more;
        self.len = self.len.max(end);
        Ok(())
    }

    /// Returns whether `offset..end` is appended at the end; if not, the fragment goes into a hole.
    fn place(&self, offset: usize, end: usize) -> Result<bool, Refused> {
        const DUPLICATE: Refused = Refused::Fragment(DropReason::FragmentDuplicate);
        const OVERLAP: Refused = Refused::Datagram(DropReason::FragmentOverlap);
        //= RFC 5722 §4 overlap: an overlapping fragment ends its datagram, with the fragments received before;
        //=   a duplicate is dropped alone (RFC 8200 §4.5)
        let against = |(from, to): (usize, usize)| {
            if offset >= to || end <= from {
                Ok(false)
            } else if offset >= from && end <= to {
                Err(DUPLICATE)
            } else {
                Err(OVERLAP)
            }
        };
        let Some((start, last)) = &self.last else { return Ok(true) };
        if end > last.end {
            return if offset < last.end { Err(OVERLAP) } else { Ok(true) };
        }
        against((*start, last.end))?;
        self.earlier.as_ref().and_then(|earlier| earlier.last_before(end)).map_or(Ok(false), against)
    }

    /// Inserts a fragment, and returns the memory that it takes, or would take uncoalesced.
    fn insert(
        &mut self,
        mem: &Memory,
        pkt: Packet,
        (offset, end): (usize, usize),
        at_end: bool,
        how: CopyPolicy,
        spare: &mut Spare,
    ) -> usize {
        let (before, truesize) = (self.charged(), pkt.truesize());
        if at_end
            && let Some((_, last)) = &mut self.last
            && last.end == offset
        {
            last.end = end;
            last.append(mem, pkt, how, &mut self.pinned);
            return self.charged() - before;
        }
        let is_defragmented = self.earlier.as_ref().is_some_and(|earlier| earlier.is_defragmented());
        let is_tiny = |pkt: &Packet| how.joins && is_slot(pkt) && is_tiny(pkt.head_buf());
        if is_defragmented && !at_end && offset > 0 && is_tiny(&pkt) {
            self.insert_tiny(mem, (offset, end), pkt, spare);
            return truesize;
        }
        let completes = self.last_in && self.received + end - offset == self.len;
        let run = ContiguousRange::new(mem, pkt, (offset, end), how, &mut self.pinned);
        let growth = self.charged() - before;
        if self.last.is_none() {
            self.last = Some((offset, run));
            return growth;
        }
        let inner = if at_end { self.last.replace((offset, run)) } else { Some((offset, run)) };
        let Some((start, run)) = inner else { return growth };
        // A shared page may be charged for its other users too.
        let has_page = |buf: &Buf| buf.truesize() == buf.page().1;
        if start > 0
            && run.is_one_buf()
            && is_tiny(run.first())
            && (!is_defragmented || has_page(run.first().head_buf()))
        {
            if is_defragmented {
                self.pinned.release_slot(run.first().head_buf().page());
            }
            self.insert_tiny(mem, (start, run.end), run.into_first(), spare);
            return growth;
        }
        let earlier = self.earlier.get_or_insert_with(|| spare.take());
        if start == 0 && completes {
            earlier.set_head(run);
        } else {
            earlier.insert(start, run);
        }
        growth
    }

    /// Inserts a tiny fragment of one buffer, and recomputes the charge if the insertion copied tiny fragments to one
    /// page.
    fn insert_tiny(&mut self, mem: &Memory, (start, end): (usize, usize), pkt: Packet, spare: &mut Spare) {
        let csum = pkt.meta.csum;
        let slot = Slot { buf: Some(pkt.into_head()), start: start as u32, end: end as u32, csum };
        let earlier = self.earlier.get_or_insert_with(|| spare.take());
        let was_defragmented = earlier.is_defragmented();
        earlier.insert_tiny(mem, slot);
        if earlier.is_defragmented() != was_defragmented {
            self.recharge();
        }
    }

    /// Recomputes the charge.
    fn recharge(&mut self) {
        let Self { last, earlier, pinned, .. } = self;
        *pinned = MemoryCharge::default();
        let runs = earlier.iter().flat_map(|runs| runs.iter()).chain(last.iter().map(|(_, run)| run));
        runs.flat_map(ContiguousRange::packets).for_each(|pkt| pinned.keep(pkt));
        earlier.iter().flat_map(|runs| runs.bufs()).for_each(|buf| pinned.keep_slot(buf.page()));
    }

    /// Joins all fragments, which are contiguous, to one packet with the headers of the complete datagram. As in Linux,
    /// the packet's link is that of the latest fragment.
    ///
    /// # Errors
    /// The datagram is dropped: the ECN codepoints of its fragments contradict each other, it is too long, or no memory
    /// is free.
    pub(crate) fn finish(&mut self, mem: &Memory, how: CopyPolicy) -> Result<(), DropReason> {
        let Self { last, earlier, .. } = self;
        let joined = match earlier {
            None => last.as_mut().map(|(_, run)| run),
            Some(earlier) => {
                let joined = earlier.join(mem, how).ok_or(DropReason::FragmentEnd)?;
                if let Some((_, run)) = last.take() {
                    joined.join(mem, run, how);
                }
                Some(joined)
            }
        };
        let pkt = joined.ok_or(DropReason::FragmentEnd)?.pack(how);
        pkt.meta.cut = Cut::Whole;
        pkt.meta.origin = self.origin;
        let Some(first) = self.first else { return Ok(()) };
        let (header_len, tos) = (first.header_len.into(), self.ecn.join(first.tos)?);
        let len = first.whole_len(self.len)?;
        match first.version {
            Version::V4 => rebuild_header::v4(mem, pkt, header_len, len, tos, self.largest_df == self.largest),
            Version::V6 => rebuild_header::v6(mem, pkt, (header_len, first.next_header_at.into()), len, tos),
        }
    }

    /// The packet that [`finish`](Self::finish) made.
    ///
    /// # Panics
    /// Without a call of `finish` before.
    #[inline]
    pub(crate) fn take_whole(&mut self) -> Packet {
        const MADE: &str = "a packet that was made";
        match &mut self.earlier {
            None => self.last.take().expect(MADE).1.into_first(),
            Some(earlier) => earlier.take_joined().expect(MADE).into_first(),
        }
    }

    /// Parameter problem of a finished datagram with an illegal header.
    pub(crate) fn misplaced(&self) -> Option<ParameterProblem> {
        let FirstFragment { misplaced, ip_len, next_header_at, .. } = self.first?;
        let header_at = usize::from(ip_len) - frag::FragHeader::LEN;
        Some(ParameterProblem::misplaced(misplaced?, header_at, next_header_at.into()))
    }

    /// Removes and returns the first fragment, with its headers, if it has arrived; its link is that of the latest
    /// fragment.
    pub(crate) fn take_first(&mut self) -> Option<(Packet, Info)> {
        let len = self.first?.len as usize;
        let last = self.last.take().map(|(_, run)| run);
        let run = self.earlier.take().and_then(|mut runs| runs.take_first()).or(last)?;
        let mut pkt = run.into_first();
        // The total length in the header may exceed `len`.
        let info = Info::parse(pkt.head(), LONGEST).ok()?;
        pkt.trim(len);
        pkt.meta.origin = self.origin;
        Some((pkt, Info { total_len: len, ..info }))
    }

    /// Number of fragments.
    pub(crate) fn fragments(&self) -> u64 {
        self.fragments
    }

    /// Origin of the latest fragment.
    pub(crate) fn origin(&self) -> PackedOrigin {
        self.origin
    }

    /// Memory that the fragments pin.
    pub(crate) fn charged(&self) -> usize {
        self.pinned.bytes()
    }

    /// Panics if the fragments pin more than is charged. For tests.
    pub(crate) fn check_charged(&self) {
        let earlier = self.earlier.iter().flat_map(|runs| runs.iter());
        let runs = earlier.chain(self.last.as_ref().map(|(_, run)| run));
        let slots = self.earlier.iter().flat_map(|runs| runs.bufs());
        let least = MemoryCharge::least(runs.flat_map(ContiguousRange::packets), slots);
        assert!(least <= self.charged(), "{least} bytes wait, and {} are charged", self.charged());
    }
}

/// Tells whether a fragment with this end contradicts the datagram's length `len`, which is a lower bound until the
/// last fragment has arrived.
#[inline]
fn contradicts((last_in, len): (bool, usize), end: usize, more: bool) -> bool {
    if more { last_in && end > len } else { end < len || last_in && end != len }
}

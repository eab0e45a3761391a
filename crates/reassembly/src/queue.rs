//! The fragments of one datagram that have come so far, in runs (Linux's `inet_frag_queue`).

use std::collections::BTreeMap;

use base::{DropReason, LinkId};
use packet::{Cut, Memory, Packet};
use wire::Version;
use wire::ip::Info;

use crate::ecn;
use crate::part::Part;
use crate::run::Run;
use crate::whole;

/// What waits for the rest of its datagram.
///
/// As in Linux, a run grows when a fragment follows the last one; a fragment in a hole is a run of its own, even if it
/// closes the hole. A duplicate is told by lying inside one run.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    /// The run with the highest offset, where fragments in order are appended, and where it begins.
    last: Option<(usize, Run)>,
    /// The runs before it, by where they begin.
    runs: BTreeMap<usize, Run>,
    /// The fragment at offset zero.
    first: Option<Part>,
    /// Where the datagram ends, as far as is known.
    len: usize,
    /// Whether the fragment that ends it has come.
    last_in: bool,
    /// Bytes of payload that are there. Linux calls them meat.
    received: usize,
    fragments: u64,
    ecn: ecn::Seen,
    /// The memory that the runs pin.
    charged: usize,
    /// Bytes of the largest fragment, and of the largest one with DF.
    largest: usize,
    largest_df: usize,
    /// The link of the fragment that came last.
    link: LinkId,
    /// Number of that fragment among those of its source.
    pub(crate) number: u32,
}

/// Why a fragment was not added.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Refused {
    /// It is dropped alone.
    Fragment(DropReason),
    /// Its datagram is dropped with it.
    Datagram(DropReason),
}

impl Queue {
    /// Forgets all fragments, but for how large the largest was: so does Linux's `ip_frag_reinit`.
    pub(crate) fn restart(&mut self) {
        let Self { number, largest, largest_df, .. } = *self;
        *self = Self { number, largest, largest_df, ..Self::default() };
    }

    /// Adds a fragment, which begins with its headers. Returns whether the datagram is whole now.
    pub(crate) fn add(&mut self, mem: &Memory, mut pkt: Packet, part: &Part) -> Result<bool, Refused> {
        let Part { offset, end, more, .. } = *part;
        self.note_end(end, more).map_err(Refused::Datagram)?;
        if end == offset {
            return Err(Refused::Datagram(DropReason::FragmentEmpty));
        }
        let at_end = self.place(offset, end)?;
        self.link = pkt.meta.link;
        pkt.trim(part.len());
        if offset == 0 {
            self.first = Some(*part);
        } else {
            pkt.pull(part.header_len);
        }
        self.charged += self.insert(mem, pkt, offset, end, at_end);
        self.fragments += 1;
        self.received += end - offset;
        self.ecn.add(part.info.ecn());
        self.largest = self.largest.max(part.len());
        if part.info.dont_fragment {
            self.largest_df = self.largest_df.max(part.len());
        }
        Ok(self.first.is_some() && self.last_in && self.received == self.len)
    }

    /// Notes where a fragment ends, and with a last one the datagram (RFC 815 §3).
    fn note_end(&mut self, end: usize, more: bool) -> Result<(), DropReason> {
        let contradicts =
            if more { self.last_in && end > self.len } else { end < self.len || self.last_in && end != self.len };
        if contradicts {
            return Err(DropReason::FragmentEnd);
        }
        self.last_in |= !more;
        self.len = self.len.max(end);
        Ok(())
    }

    /// Tells whether `offset..end` goes behind all else, or else into a hole.
    fn place(&self, offset: usize, end: usize) -> Result<bool, Refused> {
        const DUPLICATE: Refused = Refused::Fragment(DropReason::FragmentDuplicate);
        const OVERLAP: Refused = Refused::Datagram(DropReason::FragmentOverlap);
        let against = |start: usize, run: &Run| match () {
            () if offset >= run.end || end <= start => Ok(false),
            () if offset >= start && end <= run.end => Err(DUPLICATE),
            () => Err(OVERLAP),
        };
        let Some((start, last)) = &self.last else { return Ok(true) };
        if end > last.end {
            return if offset < last.end { Err(OVERLAP) } else { Ok(true) };
        }
        against(*start, last)?;
        match self.runs.range(..end).next_back() {
            Some((&start, run)) => against(start, run),
            None => Ok(false),
        }
    }

    /// Puts a fragment where it belongs, and returns by how much the memory grew that the runs pin.
    fn insert(&mut self, mem: &Memory, pkt: Packet, offset: usize, end: usize, at_end: bool) -> usize {
        match &mut self.last {
            Some((_, last)) if at_end && offset == last.end => {
                last.end = end;
                last.append(mem, pkt)
            }
            _ => {
                let run = Run::new(pkt, end);
                let growth = run.truesize();
                if at_end {
                    self.runs.extend(self.last.replace((offset, run)));
                } else {
                    self.runs.insert(offset, run);
                }
                growth
            }
        }
    }

    /// All fragments as one packet. They follow one another.
    ///
    /// # Errors
    /// The datagram is dropped: its fragments contradict each other in ECN, it is too long, or there is no memory.
    pub(crate) fn into_whole(self, mem: &Memory) -> Result<(Packet, Part), DropReason> {
        let first = self.first.ok_or(DropReason::FragmentEnd)?;
        let tos = self.ecn.join(first.info.tos)?;
        let len = first.whole_len(self.len)?;
        let mut runs = self.runs.into_values().chain(self.last.map(|(_, run)| run));
        let mut joined = runs.next().ok_or(DropReason::FragmentEnd)?;
        runs.for_each(|run| joined.join(mem, run));
        let mut pkt = joined.into_packet();
        pkt.meta.cut = Cut::Whole;
        match first.info.version() {
            // Somebody may have sent one small fragment with DF and a large one without.
            Version::V4 => whole::v4(mem, &mut pkt, first.header_len, len, tos, self.largest_df == self.largest)?,
            Version::V6 => whole::v6(mem, &mut pkt, (first.header_len, first.next_header_at), len, tos)?,
        }
        Ok((pkt, first))
    }

    /// The first fragment as it came, with its summary, if it has come.
    pub(crate) fn into_first(self) -> Option<(Packet, Info)> {
        let part = self.first?;
        let run = self.runs.into_values().next().or(self.last.map(|(_, run)| run))?;
        let mut pkt = run.into_first();
        pkt.trim(part.len());
        Some((pkt, Info { total_len: part.len(), ..part.info }))
    }

    /// Fragments that it holds.
    pub(crate) fn fragments(&self) -> u64 {
        self.fragments
    }

    /// The link of the fragment that came last.
    pub(crate) fn link(&self) -> LinkId {
        self.link
    }

    /// The memory that its fragments pin.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// The same, counted piece by piece.
    pub(crate) fn truesize(&self) -> usize {
        self.runs.values().chain(self.last.as_ref().map(|(_, run)| run)).map(Run::truesize).sum()
    }
}

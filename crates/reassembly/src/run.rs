//! Fragments that follow one another without a hole.

use packet::{CopyReason, Memory, Packet};

/// Bytes behind a small packet that make it worth keeping for those that follow; no more is copied to get them.
const ROOM: usize = Memory::SMALL / 4;

/// A stretch of a datagram that is all there, in one packet or several.
#[derive(Debug)]
pub(crate) struct Run {
    /// Where in the datagram's payload it ends.
    pub(crate) end: usize,
    first: Packet,
    /// What could not be joined to the one before, in order.
    more: Vec<Packet>,
}

impl Run {
    /// A run of one fragment, which ends at `end`.
    pub(crate) fn new(pkt: Packet, end: usize) -> Self {
        Self { end, first: pkt, more: Vec::new() }
    }

    /// Appends `pkt`, and returns by how much the memory grew that the run pins.
    pub(crate) fn append(&mut self, mem: &Memory, pkt: Packet, joins: bool) -> usize {
        if joins {
            return self.coalesce(mem, pkt);
        }
        let growth = pkt.truesize();
        self.more.push(pkt);
        growth
    }

    /// Joins `pkt` to what is there, if it can be.
    ///
    /// Only the last packet is ever added to, so bytes stay in order. A small packet does not take one of its slots, but
    /// stays a packet with room behind, to which those that follow are copied.
    fn coalesce(&mut self, mem: &Memory, pkt: Packet) -> usize {
        let last = self.more.last_mut().unwrap_or(&mut self.first);
        let is_small = pkt.truesize() > 4 * pkt.len();
        let pkt = if is_small && pkt.len() > last.tailroom() {
            with_room(mem, pkt)
        } else {
            match last.try_coalesce(mem, pkt) {
                Ok(growth) => return growth,
                Err(pkt) => pkt,
            }
        };
        let growth = pkt.truesize();
        self.more.push(pkt);
        growth
    }

    /// Appends all of `next`, which follows.
    pub(crate) fn join(&mut self, mem: &Memory, next: Self, joins: bool) {
        self.end = next.end;
        self.append(mem, next.first, joins);
        for pkt in next.more {
            self.append(mem, pkt, joins);
        }
    }

    /// All of it in one packet, by reference: in slots as long as there are some, then as children; or each piece but
    /// the first as a child of its own.
    pub(crate) fn into_packet(self, joins: bool) -> Packet {
        let mut whole = self.first;
        for pkt in self.more {
            if joins { whole.append(pkt) } else { whole.push_child(pkt) }
        }
        whole
    }

    /// What the run begins with.
    pub(crate) fn into_first(self) -> Packet {
        self.first
    }

    /// The memory that it pins.
    pub(crate) fn truesize(&self) -> usize {
        self.first.truesize() + self.more.iter().map(Packet::truesize).sum::<usize>()
    }
}

/// A small packet with room behind it, in a page of its own if need be. Thousands of them could share a large page that
/// none lets go of, and would leave as as many children.
fn with_room(mem: &Memory, pkt: Packet) -> Packet {
    if pkt.len() > ROOM || pkt.tailroom() >= ROOM {
        return pkt;
    }
    pkt.copy(mem, CopyReason::Coalesce).unwrap_or(pkt)
}

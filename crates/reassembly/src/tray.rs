//! Tiny pieces of a datagram, put together before it is whole.

use packet::{Buf, CopyReason, Csum, Memory};
use wire::FragOffset;

use crate::run::{How, Run, TINY};
use crate::runs::Slot;

/// A page in which tiny pieces lie at their places in the datagram, once there are many.
#[derive(Debug, Default)]
pub(crate) struct Tray {
    /// What of it has not been taken out, and how many bytes have.
    page: Option<Buf>,
    taken: usize,
    /// What is known of the sums of all.
    csum: Csum,
    /// Where each of them ends.
    ends: Vec<u32>,
}

/// Bytes of a page: wherever a tiny piece may begin, it has room.
const SIZE: usize = Memory::LARGE;
const _: () = assert!(FragOffset::MAX.bytes() + TINY <= SIZE);

impl Tray {
    /// Has a page from now on, unless there is no memory for it.
    pub(crate) fn open(&mut self, mem: &Memory) -> bool {
        let page = mem.take(0, SIZE).ok();
        self.page = page.and_then(|mut page| page.put(SIZE).is_some().then_some(page));
        self.page.is_some()
    }

    /// Its page, if it has one.
    pub(crate) fn page(&self) -> Option<&Buf> {
        self.page.as_ref()
    }

    /// Where the piece of this number ends.
    pub(crate) fn end_of(&self, number: u16) -> usize {
        self.ends[usize::from(number)] as usize
    }

    /// Copies a piece to where it belongs, and says its number.
    pub(crate) fn put(&mut self, mem: &Memory, start: usize, slot: &Slot) -> u16 {
        let Slot { buf, end, csum } = slot;
        let page = self.page.as_mut().and_then(Buf::bytes_mut).expect("a page that nobody else has");
        page[start..*end as usize].copy_from_slice(buf.bytes());
        mem.copied(CopyReason::Coalesce, buf.len());
        let is_first = self.ends.is_empty();
        self.csum = if is_first || self.csum == *csum { *csum } else { Csum::None };
        self.ends.push(*end);
        (self.ends.len() - 1) as u16
    }

    /// Takes out the bytes of a stretch, behind those that have been, and joins them to what they follow.
    pub(crate) fn join_to(&mut self, joined: &mut Run, stretch: Option<(usize, usize)>, mem: &Memory, how: How) {
        let (Some((start, end)), Some(page)) = (stretch, &mut self.page) else { return };
        let mut bytes = page.split_to(end - self.taken);
        bytes.pull(start - self.taken);
        self.taken = end;
        joined.join_slot(mem, (bytes, self.csum), end, how);
    }

    /// Empties it, and keeps its storage.
    pub(crate) fn clear(&mut self) {
        let Self { page, taken, csum, ends } = self;
        (*page, *taken, *csum) = (None, 0, Csum::None);
        ends.clear();
    }
}

//! Delivery: a frame is copied into a posted buffer of its receiver, and entered in the receive queue.

use arrayvec::ArrayVec;

use super::free_list::{FreeList, Posted};
use super::tcp::Tcp;
use super::{Firmware, Lan, LanCounters, Registration};
use crate::attributes::Attributes;
use crate::descriptor::{BufDesc, FrameFlags, RxEntry};
use crate::io_memory::IoMemory;

/// Length of the handle in front of a frame in its buffer.
const OFFSET: usize = 8;

/// Length of handle and MSS in front of a fat frame.
const LARGE_OFFSET: usize = 16;

/// Length of the addresses in front of a tag.
const ADDRESSES: usize = 12;

/// Parts of a frame, with one more for a tag and one for the split after the addresses.
type Pieces<'a> = ArrayVec<&'a [u8], { Firmware::MAX_DESCRIPTORS + 2 }>;

/// A frame in flight, as described by its sender.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    pub(super) descs: &'a [BufDesc],
    pub(super) flags: FrameFlags,
    pub(super) mss: u16,
    pub(super) vid: u16,
    /// Tag in the frame's bytes.
    pub(super) tag: Option<u16>,
}

/// Processing of a frame by the hypervisor for one receiver.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// No processing: the frame is delivered with these flags.
    Pass(FrameFlags),
    /// Completes the frame's checksum.
    Complete,
    /// Segments the frame.
    Cut,
}

/// Reason for a failed delivery.
#[derive(Clone, Copy, Debug)]
enum Loss {
    /// No posted buffer is long enough.
    NoBuffer,
    /// The handle of its buffer was overwritten.
    Overwritten,
}

impl Lan {
    /// Delivers a frame from one adapter to another, open one. Returns whether all of its segments found buffers.
    pub(super) fn deliver(&mut self, from: usize, to: usize, frame: &Sent<'_>) -> bool {
        let Self { ports, counters, scratch, .. } = self;
        let Ok([source, port]) = ports.get_disjoint_mut([from, to]) else { return false };
        let Some(open) = &mut port.open else { return false };
        // Frames of an adapter's own VLAN arrive untagged, all others tagged.
        let tci = frame.tag.map_or(frame.vid, |tag| tag & 0xf000 | frame.vid).to_be_bytes();
        let tag = [0x81, 0x00, tci[0], tci[1]];
        let tag = if frame.vid == port.place.pvid { &[] } else { &tag[..] };
        let Some(pieces) = pieces(&source.io, frame, tag) else { return false };
        let len = pieces.iter().map(|piece| piece.len()).sum();
        let mut head = [0; Tcp::HEADERS];
        let headers = read_front(&pieces, &mut head);
        let tcp = Tcp::find(headers, len);
        let work = work(tcp.as_ref(), headers, frame.flags, port.set);
        if let Work::Pass(flags) = work {
            let placed = open.place(&mut port.io, &pieces, len, flags, frame.mss);
            return counters.count(placed, len);
        }
        let Some(tcp) = tcp else { return false };
        scratch.frame.clear();
        pieces.iter().for_each(|piece| scratch.frame.extend_from_slice(piece));
        counters.copied_bytes += len as u64;
        let count = match work {
            Work::Cut => tcp.segments(frame.mss),
            _ => 1,
        };
        let mut is_whole = true;
        for index in 0..count {
            let bytes = match work {
                Work::Cut => {
                    tcp.cut(&scratch.frame, frame.mss, index, &mut scratch.segment);
                    &scratch.segment
                }
                _ => {
                    tcp.complete(&mut scratch.frame);
                    &scratch.frame
                }
            };
            let placed = open.place(&mut port.io, &[bytes], bytes.len(), FrameFlags::NONE, 0);
            is_whole &= counters.count(placed, bytes.len());
        }
        match work {
            Work::Cut => counters.cut += 1,
            _ => counters.completed += u64::from(is_whole),
        }
        is_whole
    }
}

/// Chooses the processing of a frame for a receiver that has negotiated `set`.
fn work(tcp: Option<&Tcp>, headers: &[u8], flags: FrameFlags, set: Attributes) -> Work {
    let Some(tcp) = tcp else { return Work::Pass(flags.without(FrameFlags::LARGE)) };
    let csum = if tcp.is_v4 { Attributes::IPV4_TCP_CSUM } else { Attributes::IPV6_TCP_CSUM };
    if flags.contains(FrameFlags::LARGE) {
        // A fat frame's checksum is always partial.
        return if set.contains(Attributes::LARGE_SEND_ENABLED) { Work::Pass(flags) } else { Work::Cut };
    }
    if flags.contains(FrameFlags::NO_CSUM) && !set.contains(csum) && !tcp.is_marked(headers) {
        return Work::Complete;
    }
    Work::Pass(flags)
}

impl LanCounters {
    /// Counts the outcome of a delivery of `len` bytes. Returns whether it succeeded.
    fn count(&mut self, placed: Result<(), Loss>, len: usize) -> bool {
        match placed {
            Ok(()) => {
                self.copies += 1;
                self.copied_bytes += len as u64;
            }
            Err(Loss::NoBuffer) => self.no_buffer += 1,
            Err(Loss::Overwritten) => self.overwritten += 1,
        }
        placed.is_ok()
    }
}

impl Registration {
    /// Copies a frame into a posted buffer, and enters it in the queue.
    fn place(
        &mut self,
        io: &mut IoMemory,
        pieces: &[&[u8]],
        len: usize,
        flags: FrameFlags,
        mss: u16,
    ) -> Result<(), Loss> {
        let is_large = flags.contains(FrameFlags::LARGE);
        let offset = if is_large { LARGE_OFFSET } else { OFFSET };
        let Some((size, Posted { address, correlator })) = FreeList::take(&mut self.buffers, offset + len) else {
            self.no_buffer += 1;
            return Err(Loss::NoBuffer);
        };
        let buffer = io.bytes_mut(address, size);
        let Some(buffer) = buffer.filter(|buffer| buffer[..OFFSET] == correlator.to_be_bytes()) else {
            // The partition has overwritten the handle, so the buffer is returned without a frame.
            self.enter(RxEntry::invalid(self.toggle, correlator));
            return Err(Loss::Overwritten);
        };
        if is_large {
            buffer[OFFSET..LARGE_OFFSET].copy_from_slice(&u64::from(mss).to_be_bytes());
        }
        let mut rest = &mut buffer[offset..];
        for piece in pieces {
            let (front, back) = rest.split_at_mut(piece.len());
            front.copy_from_slice(piece);
            rest = back;
        }
        self.enter(RxEntry::new(self.toggle, flags, offset as u16, len as u32, correlator));
        Ok(())
    }

    fn enter(&mut self, entry: RxEntry) {
        self.queue[self.head] = entry.encode();
        self.head += 1;
        if self.head == self.queue.len() {
            self.head = 0;
            self.toggle = !self.toggle;
        }
    }
}

/// Parts of a frame in its sender's memory, with the bytes `tag` in place of the frame's tag.
fn pieces<'a>(io: &'a IoMemory, frame: &Sent<'_>, tag: &'a [u8]) -> Option<Pieces<'a>> {
    let mut pieces = Pieces::new();
    let mut descs = frame.descs.iter().map(|desc| io.bytes(desc.address(), desc.len()));
    let first = descs.next()??;
    let old = if frame.tag.is_some() { 4 } else { 0 };
    if first.get(ADDRESSES..ADDRESSES + old) == Some(tag) {
        pieces.push(first);
    } else {
        pieces.push(first.get(..ADDRESSES)?);
        pieces.push(tag);
        pieces.push(first.get(ADDRESSES + old..)?);
    }
    for piece in descs {
        pieces.push(piece?);
    }
    Some(pieces)
}

/// Copies the first bytes of a frame into `into`, and returns the copy.
fn read_front<'a>(pieces: &[&[u8]], into: &'a mut [u8]) -> &'a [u8] {
    let mut at = 0;
    for piece in pieces {
        let n = piece.len().min(into.len() - at);
        into[at..at + n].copy_from_slice(&piece[..n]);
        at += n;
        if at == into.len() {
            break;
        }
    }
    &into[..at]
}

//! Copies between packets and chains of descriptors, with the virtio-net header.

use base::DropReason;
use offload::Features;
use packet::{Csum, Cut, Memory, Packet};
use wire::{eth, vlan};

use super::features::{Bits, LONG_HEADER, takes};
use super::ring::{BadRing, Chain, Direction, Ring};
use crate::pieces::{tagged, vlan_tag};
use crate::sys::guest_memory::{GuestMemory, GuestPiece};
use crate::virtio::{DATA_VALID, Framing, HEADER_LEN, Header, NEEDS_CSUM, decode, encode};

/// Longest frame.
pub(super) const LONGEST: usize = 65_575 + eth::EthHeader::LEN + 2 * vlan::VlanHeader::LEN;

/// Limit of descriptors for one frame; a guest that needs more has buffers of a few bytes.
const MAX_DESCRIPTORS: usize = 2048;

/// Buffers reused from frame to frame.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Pieces of guest memory of the current chains.
    pieces: Vec<GuestPiece>,
    /// Current chains, each with the end of its pieces.
    chains: Vec<(Chain, usize)>,
}

/// Frame taken from one chain of the guest.
#[derive(Debug)]
pub(super) struct GuestFrame {
    pub(super) packet: Result<Packet, DropReason>,
    pub(super) descriptors: usize,
}

/// Outcome of delivering a frame to the guest.
#[derive(Debug)]
pub(super) enum Delivered {
    /// The frame is in the guest's memory.
    Sent { bytes: usize, chains: u16 },
    /// The guest has too few buffers at present.
    Full,
    /// The frame can never fit, or needs a feature that was not negotiated.
    Dropped(DropReason),
}

impl Scratch {
    /// Takes one frame that the guest sends; `None` if there is none.
    #[inline]
    pub(super) fn receive(
        &mut self,
        ring: &mut Ring,
        memory: &GuestMemory,
        features: Bits,
        mem: &Memory,
    ) -> Result<Option<GuestFrame>, BadRing> {
        self.pieces.clear();
        let Some(chain) = ring.take(memory, Direction::FromDriver, &mut self.pieces)? else { return Ok(None) };
        let packet = copy_in(&self.pieces, chain.len, memory, features, mem);
        ring.give_back(chain.head, 0);
        Ok(Some(GuestFrame { packet, descriptors: chain.descriptors }))
    }

    /// Copies a frame, or the first frame of a packet with several, to buffers of the guest.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        ring: &mut Ring,
        memory: &GuestMemory,
        negotiated: Bits,
        features: &Features,
        packet: &Packet,
    ) -> Result<Delivered, BadRing> {
        if let Cut::Frames(_) = packet.meta.cut {
            let Some(frame) = packet.frames().next() else { return Ok(Delivered::Dropped(DropReason::TxError)) };
            let header = Header::default();
            return self.put(ring, memory, negotiated, header, frame.len(), std::iter::once(frame));
        }
        let tag = vlan_tag(packet);
        let len = packet.len() + tag.map_or(0, |tag| tag.len());
        let Some(header) = header_for(negotiated, features, packet, tag.map_or(0, |tag| tag.len() as u16)) else {
            return Ok(Delivered::Dropped(DropReason::TxError));
        };
        self.put(ring, memory, negotiated, header, len, tagged(packet, tag.as_ref()))
    }

    /// Copies a header and `len` bytes to as many buffers as they need, or to none.
    fn put<'a>(
        &mut self,
        ring: &mut Ring,
        memory: &GuestMemory,
        negotiated: Bits,
        header: Header,
        len: usize,
        bytes: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Delivered, BadRing> {
        let total = negotiated.header_len() + len;
        if len > LONGEST {
            return Ok(Delivered::Dropped(DropReason::PacketTooBig));
        }
        self.pieces.clear();
        self.chains.clear();
        let (mut room, mut descriptors) = (0, 0);
        while room < total as u64 {
            let is_short = !self.chains.is_empty() && !negotiated.mergeable();
            if is_short || descriptors >= usize::from(ring.size()) && self.chains.len() == usize::from(ring.size()) {
                // The whole ring is too small for this frame, but not for others.
                ring.untake(self.chains.len() as u16);
                return Ok(Delivered::Dropped(DropReason::PacketTooBig));
            }
            let Some(chain) = ring.take(memory, Direction::ToDriver, &mut self.pieces)? else {
                ring.untake(self.chains.len() as u16);
                return Ok(Delivered::Full);
            };
            descriptors += chain.descriptors;
            room += chain.len;
            self.chains.push((chain, self.pieces.len()));
            if descriptors > MAX_DESCRIPTORS {
                return Err(BadRing::Tiny);
            }
        }
        let chains = self.chains.len() as u16;
        let mut front = [0; LONG_HEADER];
        front[..HEADER_LEN].copy_from_slice(&header.to_le_bytes());
        front[HEADER_LEN..].copy_from_slice(&chains.to_le_bytes());
        let mut to = Scatter::new(memory, &self.pieces);
        to.write(&front[..negotiated.header_len()]);
        bytes.for_each(|bytes| to.write(bytes));
        let mut left = total as u64;
        for (chain, _) in &self.chains {
            let here = chain.len.min(left);
            ring.give_back(chain.head, here as u32);
            left -= here;
        }
        Ok(Delivered::Sent { bytes: len, chains })
    }
}

/// Copies a frame out of a chain of `len` bytes.
pub(super) fn copy_in(
    pieces: &[GuestPiece],
    len: u64,
    memory: &GuestMemory,
    features: Bits,
    mem: &Memory,
) -> Result<Packet, DropReason> {
    let header_len = features.header_len();
    let len = usize::try_from(len).ok().and_then(|len| len.checked_sub(header_len)).ok_or(DropReason::VirtioHeader)?;
    if len < eth::EthHeader::LEN {
        return Err(DropReason::EthTruncated);
    }
    if len > LONGEST {
        return Err(DropReason::PacketTooBig);
    }
    let mut buf = mem.take(Memory::HEADROOM, len).map_err(|_| DropReason::NoMemory)?;
    let room = buf.put(len).ok_or(DropReason::NoMemory)?;
    let mut from = Gather { memory, pieces, at: 0, skip: 0 };
    let mut front = [0; LONG_HEADER];
    from.read(&mut front[..header_len]);
    from.read(room);
    let (bytes, _) = front.split_first_chunk::<HEADER_LEN>().ok_or(DropReason::VirtioHeader)?;
    let mut header = Header::from_le_bytes(*bytes);
    // A driver must not set `DATA_VALID`; the flag is ignored (virtio 1.2 §5.1.6.2.1).
    header.flags &= NEEDS_CSUM;
    if !features.allow(&header) {
        return Err(DropReason::VirtioHeader);
    }
    let mut packet = Packet::from_buf(buf);
    if header != Header::default() {
        decode(&header, Framing::Ethernet, packet.head(), len)?.apply(mem, &mut packet)?;
    }
    Ok(packet)
}

/// Header of a packet for the guest that has `skip` more bytes in front on the wire; `None` if the header needs a
/// feature that was not negotiated, or contradicts the packet's own headers.
pub(super) fn header_for(negotiated: Bits, features: &Features, packet: &Packet, skip: u16) -> Option<Header> {
    if !takes(features, packet) {
        return None;
    }
    let mut header = encode(packet, skip)?;
    if packet.meta.cut.gso().is_some() {
        let plain = encode(packet, 0)?;
        let read = decode(&plain, Framing::Ethernet, packet.head(), packet.len()).ok()?;
        // `decode` reports a packet of one segment as one without segmentation.
        if read.cut.gso().is_some_and(|gso| Some(gso.size) != packet.meta.cut.gso().map(|gso| gso.size)) {
            return None;
        }
    } else if let Csum::Partial { start, offset } = packet.meta.csum {
        if usize::from(start) + usize::from(offset) + 2 > packet.len() {
            return None;
        }
    } else if matches!(packet.meta.csum, Csum::Unnecessary) && negotiated.takes_valid() {
        header.flags = DATA_VALID;
    }
    Some(header)
}

/// Reads pieces in order.
struct Gather<'a> {
    memory: &'a GuestMemory,
    pieces: &'a [GuestPiece],
    at: usize,
    skip: u32,
}

impl Gather<'_> {
    /// Reads bytes until `to` is full; the pieces have enough.
    #[inline]
    fn read(&mut self, mut to: &mut [u8]) {
        while !to.is_empty() {
            let piece = self.pieces[self.at];
            let here = to.len().min((piece.len - self.skip) as usize);
            let (front, rest) = to.split_at_mut(here);
            self.memory.read(piece, self.skip, front);
            to = rest;
            (self.at, self.skip) = advance(piece, self.at, self.skip, here);
        }
    }
}

/// Writes pieces in order.
pub(super) struct Scatter<'a> {
    memory: &'a GuestMemory,
    pieces: &'a [GuestPiece],
    at: usize,
    skip: u32,
}

impl<'a> Scatter<'a> {
    pub(super) fn new(memory: &'a GuestMemory, pieces: &'a [GuestPiece]) -> Self {
        Self { memory, pieces, at: 0, skip: 0 }
    }

    /// Writes bytes, for which there is room.
    #[inline]
    pub(super) fn write(&mut self, mut from: &[u8]) {
        while !from.is_empty() {
            let piece = self.pieces[self.at];
            let here = from.len().min((piece.len - self.skip) as usize);
            let (front, rest) = from.split_at(here);
            self.memory.write(piece, self.skip, front);
            from = rest;
            (self.at, self.skip) = advance(piece, self.at, self.skip, here);
        }
    }
}

/// Position `n` bytes further.
#[inline]
fn advance(piece: GuestPiece, at: usize, skip: u32, n: usize) -> (usize, u32) {
    let skip = skip + n as u32;
    if skip == piece.len { (at + 1, 0) } else { (at, skip) }
}

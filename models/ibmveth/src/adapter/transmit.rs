//! Transmission: a packet is copied into a transmit buffer, or described in place, and the hypervisor is called.

use std::error::Error;
use std::fmt;

use base::DropReason;
use offload::{Features, checksum, gso};
use packet::{Buf, Csum, Cut, Packet};
use wire::{eth, tcp};

use super::scratch::Scratch;
use super::{Adapter, FragListMode, TX_BUFFER};
use crate::descriptor::{BufDesc, FrameFlags};
use crate::error::Refusal;
use crate::frame::{self, Layout, MAX_HEADERS};
use crate::lan::{Lan, MIN_MSS, SendAnswer, TAGGED_HEADER};

/// Maximum number of repeated calls for one frame: the maximum number of adapters that receive a group's frame.
const RETRIES: u32 = 1024;

/// Minimum length of buffers described in place: shorter ones are copied faster than mapped.
const IN_PLACE_FROM: usize = 2048;

/// Reason of a failed transmission.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TxError {
    /// The adapter is closed.
    Closed,
    /// The adapter has no such transmit queue.
    NoQueue,
    /// The destination is the adapter's own address (`EOPNOTSUPP`).
    OwnAddress,
    /// The packet has no Ethernet header.
    Truncated,
    /// The packet is longer than a transmit buffer.
    TooLong,
    /// The packet cannot be segmented, or its checksum cannot be completed.
    Offload(DropReason),
    /// The hypervisor refuses the frame.
    Refused(Refusal),
}

impl fmt::Display for TxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the adapter is closed"),
            Self::NoQueue => f.write_str("no such transmit queue"),
            Self::OwnAddress => f.write_str("the adapter's own address is the destination"),
            Self::Truncated => f.write_str("no Ethernet header"),
            Self::TooLong => f.write_str("longer than a transmit buffer"),
            Self::Offload(reason) => write!(f, "cannot be segmented or completed: {reason:?}"),
            Self::Refused(refusal) => write!(f, "refused: {refusal}"),
        }
    }
}

impl Error for TxError {}

/// Parameters of a frame for the hypervisor.
#[derive(Clone, Copy, Debug, Default)]
struct Words {
    flags: FrameFlags,
    /// MSS argument of the call.
    mss: u16,
    /// Value of the TCP checksum field.
    check: Option<u16>,
    /// Whether the IPv4 checksum is the mark of the old style.
    is_marked: bool,
}

impl Adapter {
    /// Sends a packet that begins with its Ethernet header, on one of the transmit queues. Negotiated offloads are left
    /// to the hypervisor; the adapter does all other work. A frame that the hypervisor drops counts as sent.
    ///
    /// # Errors
    /// [`TxError`]; the packet is dropped and counted.
    pub fn transmit(&mut self, lan: &mut Lan, queue: usize, pkt: Packet) -> Result<(), TxError> {
        let result = self.send_packet(lan, queue, pkt);
        self.counters.tx_dropped += u64::from(result.is_err());
        result
    }

    fn send_packet(&mut self, lan: &mut Lan, queue: usize, mut pkt: Packet) -> Result<(), TxError> {
        if !self.is_open() {
            return Err(TxError::Closed);
        }
        while let Some(frame) = pkt.take_frame() {
            self.send_packet(lan, queue, frame)?;
        }
        if pkt.meta.vlan.is_some() {
            offload::insert_tag(&self.mem, &mut pkt, eth::EthHeader::LEN).map_err(TxError::Offload)?;
        }
        let mut front = [0; MAX_HEADERS];
        let front = &mut front[..MAX_HEADERS.min(pkt.len())];
        pkt.read_at(0, front);
        let (_, l3) = frame::l3(front).ok_or(TxError::Truncated)?;
        if front[..6] == self.mac.0 {
            return Err(TxError::OwnAddress);
        }
        let layout = Layout::find(front, pkt.len());
        let features = self.features();
        if let Some(gso) = pkt.meta.cut.gso() {
            let is_cut_before = self.config.frag_list == FragListMode::Cut && !pkt.frag_list().is_empty();
            let is_sound = layout.is_some_and(|layout| layout.end == pkt.len() && is_check_of(&layout, pkt.meta.csum));
            let takes = features.cuts(gso, pkt.len()) && gso.size >= MIN_MSS && is_sound;
            if is_cut_before || !takes {
                return self.cut(lan, queue, pkt, &features, l3);
            }
        }
        let words = self.words(&mut pkt, layout.as_ref(), l3)?;
        self.send_frame(lan, queue, pkt, front, layout.as_ref(), words)
    }

    /// Segments a packet, and sends the segments.
    fn cut(&mut self, lan: &mut Lan, queue: usize, pkt: Packet, features: &Features, l3: usize) -> Result<(), TxError> {
        let by_reference = Features { csum: features.csum, ..Features::BY_REFERENCE };
        let mut segments = std::mem::take(&mut self.scratch.segments);
        let mut result = gso::segment(&self.mem, &by_reference, pkt, l3, &mut segments).map_err(TxError::Offload);
        self.counters.tx_cut += 1;
        for segment in segments.drain(..) {
            result = result.and(self.send_packet(lan, queue, segment));
        }
        self.scratch.segments = segments;
        result
    }

    /// Chooses the parameters of a frame, and completes a checksum that the parameters cannot express.
    fn words(&mut self, pkt: &mut Packet, layout: Option<&Layout>, l3: usize) -> Result<Words, TxError> {
        if !matches!(pkt.meta.csum, Csum::Partial { .. }) {
            return Ok(Words::default());
        }
        let is_left = |layout: &&Layout| {
            let is_agreed = self.completes(layout.is_v4) || pkt.meta.cut.gso().is_some();
            is_agreed && is_check_of(layout, pkt.meta.csum)
        };
        if layout.filter(is_left).is_none() {
            checksum::complete(&self.mem, pkt, l3).map_err(TxError::Offload)?;
            return Ok(Words::default());
        }
        let flags = FrameFlags::NO_CSUM.with(FrameFlags::CSUM_GOOD);
        Ok(match pkt.meta.cut {
            Cut::Gso(gso) if self.agreed.tso6 => {
                Words { flags: flags.with(FrameFlags::LARGE), mss: gso.size, check: Some(0), is_marked: false }
            }
            Cut::Gso(gso) => Words { flags, mss: 0, check: Some(gso.size), is_marked: true },
            _ => Words { flags, mss: 0, check: Some(0), is_marked: false },
        })
    }

    /// Places a frame where the hypervisor can read it, and calls the hypervisor.
    fn send_frame(
        &mut self,
        lan: &mut Lan,
        queue: usize,
        pkt: Packet,
        front: &[u8],
        layout: Option<&Layout>,
        words: Words,
    ) -> Result<(), TxError> {
        let len = pkt.len();
        let address = *self.tx_buffers.get(queue).ok_or(TxError::NoQueue)?;
        if len > TX_BUFFER {
            return Err(TxError::TooLong);
        }
        let is_large = pkt.meta.cut.gso().is_some();
        // The hypervisor requires the header, with a possible tag, in the first buffer.
        let header = layout.map_or(front.len().min(TAGGED_HEADER), |layout| layout.payload);
        let mut descs = std::mem::take(&mut self.scratch.descs);
        if len >= IN_PLACE_FROM && self.is_mapped_in_place(lan, &pkt) {
            self.describe(lan, address, pkt, &front[..header], words.flags, &mut descs);
        } else {
            self.counters.tx_linearized += u64::from(!pkt.is_linear());
            if let Some(bytes) = lan.io(self.unit).bytes_mut(address, len) {
                pkt.read_at(0, bytes);
            }
            self.counters.copied.copies += 1;
            self.counters.copied.bytes += len as u64;
            descs.push(BufDesc::new(words.flags, len, address));
        }
        if let (Some(layout), Some(check)) = (layout, words.check)
            && let Some(head) = lan.io(self.unit).bytes_mut(address, layout.payload)
        {
            layout.set_check(head, check);
            if words.is_marked {
                layout.mark(head);
            }
        }
        let result = self.call(lan, &descs, words.mss);
        for address in self.scratch.mapped.drain(..) {
            lan.unmap(self.unit, address);
        }
        descs.clear();
        self.scratch.descs = descs;
        result?;
        self.stats.tx_large_packets += u64::from(is_large);
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        Ok(())
    }

    /// Tells whether a packet's payload can be described in place. A failed mapping is counted.
    fn is_mapped_in_place(&mut self, lan: &mut Lan, pkt: &Packet) -> bool {
        let limit = lan.firmware().descriptors;
        if self.config.frag_list != FragListMode::InPlace || limit < 3 {
            return false;
        }
        let has_room = lan.io(self.unit).room() >= pkt.bufs().count().min(limit);
        self.stats.tx_map_failed += u64::from(!has_room);
        has_room
    }

    /// Describes a packet: headers in the transmit buffer, payload in place as far as there are descriptors, and the
    /// remaining payload in the transmit buffer, behind the headers.
    fn describe(
        &mut self,
        lan: &mut Lan,
        address: u32,
        pkt: Packet,
        headers: &[u8],
        flags: FrameFlags,
        descs: &mut Vec<BufDesc>,
    ) {
        let limit = lan.firmware().descriptors;
        let Scratch { pieces, mapped, .. } = &mut self.scratch;
        let mut skip = headers.len();
        let mut take = |mut buf: Buf| {
            let front = skip.min(buf.len());
            buf.pull(front);
            skip -= front;
            if !buf.is_empty() {
                pieces.push(buf);
            }
        };
        let (head, frags, children) = pkt.into_parts();
        take(head);
        frags.for_each(&mut take);
        for child in children {
            let (head, frags, _) = child.into_parts();
            take(head);
            frags.for_each(&mut take);
        }
        let in_place = if pieces.len() < limit { pieces.len() } else { limit - 2 };
        descs.push(BufDesc::new(flags, headers.len(), address));
        let io = lan.io(self.unit);
        let mut copied = headers.len();
        if let Some(bytes) = io.bytes_mut(address, copied) {
            bytes.copy_from_slice(headers);
        }
        let mut rest_address = address + headers.len() as u32;
        let mut rest_len = 0;
        for (at, buf) in pieces.drain(..).enumerate() {
            let len = buf.len();
            if at < in_place {
                // There are free regions, as just checked, and no page is longer than a region.
                match io.map(buf) {
                    Ok(place) => {
                        mapped.push(place);
                        descs.push(BufDesc::new(flags, len, place));
                    }
                    Err(buf) => unreachable!("room for a region of {} bytes", buf.len()),
                }
            } else if let Some(bytes) = io.bytes_mut(rest_address, len) {
                bytes.copy_from_slice(buf.bytes());
                rest_address += len as u32;
                rest_len += len;
            }
        }
        if rest_len > 0 {
            descs.push(BufDesc::new(flags, rest_len, address + headers.len() as u32));
            copied += rest_len;
        }
        self.counters.tx_in_place += 1;
        self.counters.copied.copies += 1;
        self.counters.copied.bytes += copied as u64;
    }

    /// Repeats the call while the hypervisor is busy.
    fn call(&mut self, lan: &mut Lan, descs: &[BufDesc], mss: u16) -> Result<(), TxError> {
        let (mut correlator, mut retries) = (0, RETRIES);
        loop {
            let SendAnswer { result, correlator: next } = lan.send(self.unit, descs, correlator, mss);
            correlator = next;
            match result {
                Ok(()) | Err(Refusal::Dropped) => return Ok(()),
                Err(Refusal::Busy) if retries > 0 => {
                    retries -= 1;
                    self.counters.tx_retries += 1;
                }
                Err(refusal) => {
                    self.stats.tx_send_failed += 1;
                    return Err(TxError::Refused(refusal));
                }
            }
        }
    }
}

/// Tells whether a partial checksum is that of a frame's TCP header.
fn is_check_of(layout: &Layout, csum: Csum) -> bool {
    csum == Csum::Partial { start: layout.l4 as u16, offset: tcp::CHECK_AT as u16 }
}

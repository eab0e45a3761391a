//! Encryption job of one packet: laid out on the SA's thread, run on any thread, taken apart on the SA's thread.
//!
//! All sizes are known before a byte is written: a [`Segmenter`] cuts the segments, an [`Outer`] writes the headers in
//! front, and every frame has its place in a large page, at the stride of the wire.

use std::ops::Range;
use std::sync::Arc;

use base::{DropReason, SaId};
use offload::ip_headers;
use packet::{Buf, CopyReason, Csum, Cut, Esp, Frames, Gso, GsoKind, Maker, Memory, Meta, PackedOrigin, Packet, Piece};
use wire::ip::Info;
use wire::ipv6::Chain;
use wire::{Protocol, Spi, Version, esp, ipv4, udp};
use xfrm::Mode;

use crate::copy_sum::ByteCursor;
use crate::device::leave_seed;
use crate::engine::Cipher;
use crate::outer::Outer;
use crate::sa::Sa;
use crate::segmenter::Segmenter;
use crate::sequence::{Overflow, Reserved};

/// Room in front of a frame that is a packet of its own, for the link's header.
const FRAME_HEADROOM: usize = 32;

/// Most datagrams in a train, as Linux's `UDP_MAX_SEGMENTS` was before 6.10.
const MAX_TRAIN: usize = 64;

/// Longest trailer without traffic flow confidentiality: padding to a block of AES, pad length, next header.
const LONGEST_TRAILER: usize = 15 + 2;

/// Bytes of repeated headers that need no allocation.
const FEW_HEADERS: usize = 160;

/// Form in which the segments of a packet leave.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Train {
    /// They stay one fat UDP packet, for a link that cuts it, if the SA has ESP in UDP.
    Udp,
    /// Each is a packet of its own, and those of one page stay together ([`packet::Cut::Frames`]).
    Frames,
    /// Each is a packet of its own.
    None,
    /// Each is a packet of its own, in clear: sealing it is left to the device that the SA is on
    /// ([`packet::Esp::Seal`]).
    Inline,
}

/// A packet to seal, with the pages of its frames.
#[derive(Debug)]
pub(crate) struct SealJob {
    plan: Plan,
    source: Packet,
    /// The pages, with the segments in each.
    pages: Vec<(Buf, Range<usize>)>,
    protects: (u64, u64),
    /// Number of copied bytes of payload.
    copied: usize,
}

/// Properties that all frames of one packet share.
#[derive(Debug)]
struct Plan {
    cipher: Arc<Cipher>,
    spi: Spi,
    esn: bool,
    sequence: Reserved,
    outer: Outer,
    segmenter: Segmenter,
    /// Bytes of the packet that stay outside of ESP.
    outside: usize,
    /// End of the repeated headers, inside of ESP or outside.
    skip: usize,
    /// Form of each segment but the last.
    full: Form,
    last: Form,
    next_header: Protocol,
    /// Whether the cipher reads segments from their buffers, if it can.
    reads_elsewhere: bool,
    as_train: bool,
    /// Whether frames of their own stay in one buffer.
    together: bool,
    /// The SA, if its device seals.
    inline: Option<SaId>,
    /// Mark of its packets.
    mark: u32,
}

/// Lengths of one segment, shared by those of the same payload.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Bytes inside of ESP.
    text: usize,
    /// Number of zeros behind the text, for traffic flow confidentiality.
    tfc: usize,
    trailer: usize,
    /// From the SPI to the end of the ICV.
    esp: usize,
    /// The trailer as a little-endian word if it fits, else 0. Computed once per packet: a word load of recent byte
    /// stores would stall.
    short_trailer: u64,
}

impl Form {
    /// Form of `text` bytes inside of ESP, of protocol `next_header`, padded to `pad_to`.
    fn new(cipher: &Cipher, text: usize, next_header: Protocol, pad_to: usize) -> Self {
        let tfc = pad_to.saturating_sub(text);
        let trailer = esp::trailer_len(text + tfc, cipher.align());
        let mut short_trailer = [0; size_of::<u64>()];
        if let Some(bytes) = short_trailer.get_mut(..trailer) {
            esp::write_trailer(bytes, next_header);
        }
        let esp = cipher.overhead() + text + tfc + trailer;
        Self { text, tfc, trailer, esp, short_trailer: u64::from_le_bytes(short_trailer) }
    }
}

impl SealJob {
    /// Lays out the frames of `pkt` and takes numbers from `sa`. `storage` is an empty list, kept for its storage.
    ///
    /// # Errors
    /// The reason; no sequence number is used then. [`DropReason::EspWrongDevice`] if a device assigns its numbers:
    /// assigned here, they would repeat its nonces.
    pub(crate) fn new(
        sa: &mut Sa,
        mem: &Memory,
        mut pkt: Packet,
        train: Train,
        mtu: usize,
        storage: Vec<(Buf, Range<usize>)>,
    ) -> Result<Self, DropReason> {
        if sa.packet_device().is_some() {
            return Err(DropReason::EspWrongDevice);
        }
        let info = ip_headers(mem, &mut pkt)?;
        let segmenter = Segmenter::new(mem, &mut pkt, &info)?;
        let Segmenter { segs, headers, payload, .. } = segmenter;
        let (outer, outside, next_header) = match sa.mode {
            Mode::Tunnel => {
                let outer = Outer::tunnel(sa, &info, headers + segmenter.payload_of(0), sa.ip_id)?;
                let next_header = match info.version() {
                    Version::V4 => Protocol::IPIP,
                    Version::V6 => Protocol::IPV6,
                };
                (outer, 0, next_header)
            }
            Mode::Transport => own_headers(sa, &pkt, &info, segmenter.fixed_id)?,
        };
        let as_train = train == Train::Udp && sa.encap.is_some();
        // A checksum that a device completes has to be in a packet of its own.
        let together = train == Train::Frames && outer.udp_check_at().is_none();
        let (pad_to, skip) = (sa.pad_to(mtu), headers.max(outside));
        // A whole packet counts its headers as payload; the bytes that stay outside the encryption are part of these.
        let form = |index| Form::new(&sa.cipher, headers + segmenter.payload_of(index) - outside, next_header, pad_to);
        let mut plan = Plan {
            reads_elsewhere: sa.cipher.reads_elsewhere() && train != Train::Inline && pad_to == 0,
            full: form(0),
            last: form(segs - 1),
            cipher: Arc::clone(&sa.cipher),
            spi: sa.spi,
            esn: sa.flags.esn,
            sequence: Reserved::NONE,
            outer,
            outside,
            skip,
            segmenter,
            next_header,
            as_train,
            together,
            inline: (train == Train::Inline).then_some(sa.id()),
            mark: sa.output_mark.set_on(pkt.meta.mark),
        };
        let full = plan.full.esp;
        if full > plan.outer.max_esp_len() {
            return Err(DropReason::PacketTooBig);
        }
        plan.outer.expect(full);
        let heads = segs * plan.head_len();
        let protects = (segs as u64, (heads + payload - plan.first_payload()) as u64);
        let at_once = if as_train {
            (plan.outer.max_esp_len() / full).min(MAX_TRAIN)
        } else {
            (mem.large().page_size() / (FRAME_HEADROOM + plan.outer.len() + full)).max(1)
        };
        let mut job = Self { plan, source: pkt, pages: storage, protects, copied: 0 };
        for first in (0..segs).step_by(at_once) {
            let run = first..segs.min(first + at_once);
            let (headroom, total) = job.plan.page_of(&run);
            let mut page = mem.take(headroom, total)?;
            page.put(total).ok_or(DropReason::NoMemory)?;
            job.pages.push((page, run));
        }
        job.plan.sequence = sa.out.reserve(segs as u32).map_err(|Overflow| DropReason::EspSequenceOverflow)?;
        sa.ip_id = sa.ip_id.wrapping_add(segs as u16);
        #[cfg(debug_assertions)]
        for index in 0..segs {
            sa.cipher.register(job.plan.sequence.get(index as u32).iv);
        }
        let copied_headers = heads + outside * if as_train { job.pages.len() } else { segs };
        if copied_headers > 0 {
            mem.copied(CopyReason::SegmentHeader, copied_headers);
        }
        Ok(job)
    }

    /// Bytes that pass through the cipher.
    pub(crate) fn bytes(&self) -> usize {
        self.source.len()
    }

    /// Tells whether there is work for a cipher of this node, not a device's.
    pub(crate) fn has_cipher_work(&self) -> bool {
        self.plan.inline.is_none() && !self.plan.cipher.is_null()
    }

    /// Writes and encrypts the frames. Bytes that only this packet owns are overwritten.
    pub(crate) fn run(&mut self) {
        let Self { plan, source, pages, copied, .. } = self;
        let (mut few, mut many) = ([0; FEW_HEADERS], Vec::new());
        let headers = match few.get_mut(..plan.skip) {
            Some(headers) => headers,
            None => {
                many.resize(plan.skip, 0);
                &mut many[..]
            }
        };
        headers.copy_from_slice(&source.head()[..plan.skip]);
        plan.segmenter.prepare(headers);
        *copied = if plan.reads_elsewhere {
            plan.write(headers, ByteCursor::new(source.pieces_mut(), plan.skip), pages)
        } else {
            plan.write(headers, ByteCursor::new(source.chunks().map(Piece::ReadOnly), plan.skip), pages)
        };
    }

    /// Appends the frames as packets to `out`: one for each page, or one for each segment. Returns the storage.
    pub(crate) fn finish(self, mem: &Memory, out: &mut Vec<Packet>) -> Vec<(Buf, Range<usize>)> {
        let Self { plan, source, mut pages, copied, .. } = self;
        if copied > 0 {
            mem.copied(CopyReason::WireFrame, copied);
        }
        let origin = source.meta.origin;
        for (mut page, run) in pages.drain(..) {
            if plan.as_train || plan.together {
                out.push(plan.page(origin, page, &run));
                continue;
            }
            out.reserve(run.len());
            for index in run.start..run.end - 1 {
                let frame = page.split_to(plan.frame_len(index));
                page.pull(FRAME_HEADROOM);
                out.push(plan.packet(origin, frame, index));
            }
            out.push(plan.packet(origin, page, run.end - 1));
        }
        pages
    }

    /// Number of packets and bytes that it protects.
    pub(crate) const fn protects(&self) -> (u64, u64) {
        self.protects
    }
}

impl Plan {
    /// Bytes of headers that each segment repeats inside of ESP.
    const fn head_len(&self) -> usize {
        self.skip - self.outside
    }

    /// Length of these headers within the first segment's payload: a whole packet counts its headers as payload.
    const fn first_payload(&self) -> usize {
        self.skip - self.segmenter.headers
    }

    #[inline]
    const fn form(&self, index: usize) -> &Form {
        if index + 1 < self.segmenter.segs { &self.full } else { &self.last }
    }

    /// Bytes of segment `index` as a packet of its own.
    const fn frame_len(&self, index: usize) -> usize {
        self.outer.len() + self.form(index).esp
    }

    /// Headroom and bytes of the page for the segments of `run`.
    fn page_of(&self, run: &Range<usize>) -> (usize, usize) {
        let (before, last) = (run.len() - 1, run.end - 1);
        if self.as_train {
            (Memory::HEADROOM, self.outer.len() + self.full.esp * before + self.form(last).esp)
        } else {
            (FRAME_HEADROOM, (FRAME_HEADROOM + self.outer.len() + self.full.esp) * before + self.frame_len(last))
        }
    }

    /// Fills the pages. Returns the number of copied bytes of payload.
    fn write<'a>(
        &self,
        head: &[u8],
        mut payload: ByteCursor<'a, impl Iterator<Item = Piece<'a>>>,
        pages: &mut [(Buf, Range<usize>)],
    ) -> usize {
        for (page, run) in pages {
            let bytes = page.bytes_mut().expect("a page that this job took for itself");
            self.write_page(head, &mut payload, bytes, run.clone());
        }
        payload.copied()
    }

    /// Seals the segments of `run`: as one fat UDP packet, or as packets of their own, which share a page.
    fn write_page<'a>(
        &self,
        head: &[u8],
        payload: &mut ByteCursor<'a, impl Iterator<Item = Piece<'a>>>,
        page: &mut [u8],
        run: Range<usize>,
    ) {
        let (first, mut rest) = (run.start, page);
        for index in run {
            let esp_len = self.form(index).esp;
            if index == first || !self.as_train {
                let (outer, behind) = rest.split_at_mut(self.outer.len());
                let esp_len = if self.as_train { behind.len() } else { esp_len };
                self.outer.write(outer, head, esp_len, index as u16);
                rest = behind;
            }
            let (frame, behind) = rest.split_at_mut(esp_len);
            self.seal_one(head, payload, frame, index);
            let room = if self.as_train { 0 } else { FRAME_HEADROOM };
            rest = behind.get_mut(room..).unwrap_or_default();
        }
    }

    /// Fills `frame` with segment `index`: header, the segment, trailer; the cipher writes initialisation vector and
    /// ICV.
    #[inline]
    fn seal_one<'a>(
        &self,
        head: &[u8],
        payload: &mut ByteCursor<'a, impl Iterator<Item = Piece<'a>>>,
        frame: &mut [u8],
        index: usize,
    ) {
        let Self { cipher, segmenter, .. } = self;
        let number = self.sequence.get(index as u32);
        let high = self.esn.then_some(number.high);
        frame[..esp::EspHeader::LEN].copy_from_slice(esp::EspHeader::new(self.spi, number.low).as_bytes());
        let (form, head_len) = (self.form(index), self.head_len());
        let Form { text: text_len, trailer: trailer_len, .. } = *form;
        let repeated = &head[self.outside..self.skip];
        if self.reads_elsewhere
            && let Some((around, sum)) =
                payload.take_around(head_len, text_len - head_len, size_of::<u64>(), segmenter.sums_payload())
        {
            let (inside, behind) = around.split_at_mut(text_len);
            inside[..head_len].copy_from_slice(repeated);
            segmenter.patch(inside, self.outside, index, sum);
            let trailer = form.short_trailer;
            let behind = if trailer_len < size_of::<u64>() { behind.first_chunk_mut() } else { None };
            let Some(behind) = behind else {
                let mut trailer = [0; LONGEST_TRAILER];
                let trailer = &mut trailer[..trailer_len];
                esp::write_trailer(trailer, self.next_header);
                return cipher.seal_from(frame, inside, trailer, number.iv, high);
            };
            // One contiguous text is sealed faster than two: the trailer temporarily replaces the first bytes of the
            // next segment.
            let next = u64::from_le_bytes(*behind);
            let others = u64::MAX << (u8::BITS as usize * trailer_len);
            *behind = (next & others | trailer).to_le_bytes();
            cipher.seal_from(frame, &around[..text_len + trailer_len], &[], number.iv, high);
            return around[text_len..].copy_from_slice(&next.to_le_bytes());
        }
        self.seal_copy(head, payload, frame, index);
    }

    /// As [`seal_one`](Self::seal_one) after its header, for a segment that has to be copied first.
    #[inline(never)]
    fn seal_copy<'a>(
        &self,
        head: &[u8],
        payload: &mut ByteCursor<'a, impl Iterator<Item = Piece<'a>>>,
        frame: &mut [u8],
        index: usize,
    ) {
        let Self { cipher, segmenter, .. } = self;
        let number = self.sequence.get(index as u32);
        let (form, head_len) = (self.form(index), self.head_len());
        let text = &mut frame[esp::EspHeader::LEN + cipher.iv_len()..];
        let (text, icv) = text.split_at_mut(text.len() - cipher.icv_len());
        let (inside, trailer) = text.split_at_mut(form.text);
        let (tfc, trailer) = trailer.split_at_mut(form.tfc);
        tfc.fill(0);
        let (front, own) = inside.split_at_mut(head_len);
        front.copy_from_slice(&head[self.outside..self.skip]);
        let sum = if segmenter.sums_payload() {
            payload.copy_and_sum(own)
        } else {
            payload.copy_to(own);
            0
        };
        segmenter.patch(inside, self.outside, index, sum);
        esp::write_trailer(trailer, self.next_header);
        if self.inline.is_some() {
            // Earlier contents of the page must not be disclosed.
            icv.fill(0);
            return leave_seed(frame, cipher.iv_len(), number.iv);
        }
        cipher.seal(frame, number.iv, self.esn.then_some(number.high));
    }

    /// The packet of a page with the segments `run`: a fat one, or several frames in one buffer.
    fn page(&self, origin: PackedOrigin, page: Buf, run: &Range<usize>) -> Packet {
        let mut pkt = self.packet(origin, page, run.start);
        if run.len() > 1 {
            let count = run.len() as u16;
            pkt.meta.cut = if self.as_train {
                let size = self.form(run.start).esp as u16;
                Cut::Gso(Gso { size, kind: GsoKind::Udp, segs: count, ecn: false, fixed_id: false })
            } else {
                let size = self.frame_len(run.start) as u16;
                Cut::Frames(Frames { size, stride: size + FRAME_HEADROOM as u16, count })
            };
        }
        pkt
    }

    fn packet(&self, origin: PackedOrigin, buf: Buf, index: usize) -> Packet {
        let mut pkt = Packet::from_buf(buf);
        let esp = self.inline.map(|sa| Esp::Seal { sa, high: self.sequence.get(index as u32).high });
        pkt.meta = Meta { origin, mark: self.mark, esp, maker: Maker::Sa, ..Meta::default() };
        if let Some(start) = self.outer.udp_check_at() {
            pkt.meta.csum = Csum::Partial { start: start as u16, offset: udp::CHECK_AT as u16 };
        }
        pkt
    }
}

/// A packet's own headers as the outer ones, their length, and the protocol that ESP carries.
fn own_headers(sa: &Sa, pkt: &Packet, info: &Info, fixed_id: bool) -> Result<(Outer, usize, Protocol), DropReason> {
    let version = info.version();
    //= RFC 4303 §3.3.4 whole-datagrams: transport mode protects whole datagrams, not fragments
    // A fragment has no payload of its own to protect (RFC 4303 §3.3.4), and an SA one family.
    if info.fragment.is_some() || version != Version::of_addr(sa.dst) {
        return Err(DropReason::EspMismatch);
    }
    let (len, next_header_at) = match version {
        Version::V4 => (info.header_len, ipv4::PROTOCOL_AT),
        Version::V6 => {
            let place = Chain::walk(pkt.head(), pkt.len())?.per_fragment_end;
            (place.offset, place.next_header_at)
        }
    };
    let next_header = Protocol(*pkt.head().get(next_header_at).ok_or(DropReason::Ipv6Header)?);
    let own = pkt.head().get(..len).ok_or(DropReason::Ipv6Header)?;
    Ok((Outer::own(sa, own, version, next_header_at, !fixed_id), len, next_header))
}

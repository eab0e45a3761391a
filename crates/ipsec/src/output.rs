//! ESP on the way out: from a packet, fat or not, to sealed frames.
//!
//! All sizes are known before a byte is written: segments are cut by a [`Cutting`], the headers in front come from an
//! [`Outer`], and every frame has its place in a large page, at the stride of the wire.

use std::ops::Range;

use base::{Counters, DropReason, Instant, Mib, SaId};
use offload::ip_headers;
use packet::{Buf, CopyReason, Csum, Cut, Gso, GsoKind, Memory, Meta, Packet};
use wire::ip::Info;
use wire::ipv6::Chain;
use wire::{Protocol, Version, esp, ipv4, udp};

use crate::config::Mode;
use crate::copy_sum::Source;
use crate::engine::Cipher;
use crate::gateway::Ipsec;
use crate::inside::Cutting;
use crate::outer::Outer;
use crate::sa::Sa;
use crate::sequence::{Overflow, Reserved};

/// Room in front of a frame that is a packet of its own, for the link's header.
const FRAME_HEADROOM: usize = 32;

/// Most datagrams in a train, as Linux's `UDP_MAX_SEGMENTS` was before 6.10.
const MAX_TRAIN: usize = 64;

/// What becomes of the segments of a packet whose SA has ESP in UDP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Train {
    /// They stay one fat UDP packet, for a link that cuts it.
    Udp,
    /// Each is a packet of its own.
    None,
}

impl Ipsec {
    /// Protects `pkt`, which begins with its IP header, by an SA that [`lookup`](Self::lookup) named, and appends what
    /// goes on the wire to `out`. It is the last step: only a link's header can still come. `mtu` is what the path takes of
    /// the result, to which traffic flow confidentiality pads at most (RFC 4303 §2.7).
    ///
    /// # Errors
    /// Why not; `out` is then as it was. The counter is counted.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a core is handed")]
    pub fn seal(
        &mut self,
        mem: &Memory,
        now: Instant,
        sa: SaId,
        pkt: Packet,
        train: Train,
        mtu: usize,
        out: &mut Vec<Packet>,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        let Some(sa) = self.sad.get_mut(sa) else {
            counters.count(Mib::XfrmOutNoStates);
            return Err(DropReason::PolicyNoState);
        };
        let before = out.len();
        seal(sa, mem, now, pkt, train, mtu, out).inspect_err(|&reason| {
            out.truncate(before);
            counters.count(match reason {
                DropReason::EspSequenceOverflow => Mib::XfrmOutStateSeqError,
                DropReason::EspMismatch => Mib::XfrmOutStateModeError,
                _ => Mib::XfrmOutError,
            });
        })
    }
}

fn seal(
    sa: &mut Sa,
    mem: &Memory,
    now: Instant,
    mut pkt: Packet,
    train: Train,
    mtu: usize,
    out: &mut Vec<Packet>,
) -> Result<(), DropReason> {
    let info = ip_headers(mem, &mut pkt)?;
    let cutting = Cutting::new(mem, &mut pkt, &info)?;
    let Cutting { segs, headers, payload, .. } = cutting;
    let (outer, outside, next_header) = match sa.mode {
        Mode::Tunnel => {
            let outer = Outer::tunnel(sa, &info, headers + cutting.payload_of(0), sa.ip_id)?;
            let next_header = match info.version() {
                Version::V4 => Protocol::IPIP,
                Version::V6 => Protocol::IPV6,
            };
            (outer, 0, next_header)
        }
        Mode::Transport => own_headers(sa, &pkt, &info, cutting.fixed_id)?,
    };
    // Where the headers end that repeat, inside of ESP or outside. A whole packet counts its headers as payload.
    let skip = headers.max(outside);
    let first_payload = skip - headers;
    let pad_to = sa.pad_to(mtu);
    let full = esp_len(&sa.cipher, (skip - outside + cutting.payload_of(0) - first_payload).max(pad_to));
    if full > outer.max_esp_len() {
        return Err(DropReason::PacketTooBig);
    }
    let sequence = sa.out.reserve(segs as u32).map_err(|Overflow| DropReason::EspSequenceOverflow)?;
    sa.ip_id = sa.ip_id.wrapping_add(segs as u16);
    let as_train = train == Train::Udp && sa.encap.is_some();
    let at_once = if as_train {
        (outer.max_esp_len() / full).min(MAX_TRAIN)
    } else {
        (mem.large().page_size() / (FRAME_HEADROOM + outer.len() + full)).max(1)
    };
    let head = &pkt.head()[outside..skip];
    let meta = Meta { link: pkt.meta.link, ..Meta::default() };
    let frames =
        Frames { sa, mem, outer, cutting: &cutting, head, outside, first_payload, pad_to, next_header, sequence, meta };
    let mut source = Source::new(pkt.chunks(), skip);
    for first in (0..segs).step_by(at_once) {
        let run = first..segs.min(first + at_once);
        if as_train {
            out.push(frames.train(&mut source, run)?);
        } else {
            frames.single(&mut source, run, out)?;
        }
    }
    let payload = payload - first_payload;
    let copied_headers = segs * head.len() + outside * if as_train { segs.div_ceil(at_once) } else { segs };
    mem.copied(CopyReason::WireFrame, payload);
    if copied_headers > 0 {
        mem.copied(CopyReason::SegmentHeader, copied_headers);
    }
    let protected = segs * head.len() + payload;
    sa.used(now, segs as u64, protected as u64);
    Ok(())
}

/// Bytes from the SPI to the end of the ICV around `text_len` bytes.
fn esp_len(cipher: &Cipher, text_len: usize) -> usize {
    cipher.overhead() + text_len + esp::trailer_len(text_len, cipher.align())
}

/// A packet's own headers as the outer ones, how many bytes they are, and what ESP then carries.
fn own_headers<'a>(
    sa: &Sa,
    pkt: &'a Packet,
    info: &Info,
    fixed_id: bool,
) -> Result<(Outer<'a>, usize, Protocol), DropReason> {
    let version = info.version();
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
    let headers = &pkt.head()[..len];
    let next_header = Protocol(headers[next_header_at]);
    Ok((Outer::own(sa, version, headers, next_header_at, fixed_id), len, next_header))
}

/// What all frames of one packet have in common.
struct Frames<'a> {
    sa: &'a Sa,
    mem: &'a Memory,
    outer: Outer<'a>,
    cutting: &'a Cutting,
    /// The headers that are repeated inside of ESP.
    head: &'a [u8],
    /// How many bytes of the packet stay outside of ESP.
    outside: usize,
    /// How much of the first segment's payload that is: of a whole packet, which counts its headers as payload.
    first_payload: usize,
    /// How many bytes there are inside of ESP at least, for traffic flow confidentiality.
    pad_to: usize,
    next_header: Protocol,
    sequence: Reserved,
    meta: Meta,
}

impl Frames<'_> {
    /// Bytes inside of ESP in segment `index`.
    fn text_len(&self, index: usize) -> usize {
        self.head.len() + self.cutting.payload_of(index) - self.first_payload
    }

    /// Bytes from the SPI to the end of the ICV in segment `index`.
    fn esp_len(&self, index: usize) -> usize {
        esp_len(&self.sa.cipher, self.text_len(index).max(self.pad_to))
    }

    /// Seals the segments of `run` as one fat UDP packet.
    fn train<'a>(
        &self,
        source: &mut Source<'a, impl Iterator<Item = &'a [u8]>>,
        run: Range<usize>,
    ) -> Result<Packet, DropReason> {
        let (full, last) = (self.esp_len(run.start), self.esp_len(run.end - 1));
        let esp_len = full * (run.len() - 1) + last;
        let total = self.outer.len() + esp_len;
        let mut buf = self.mem.take(Memory::HEADROOM, total)?;
        let (outer, mut rest) = buf.put(total).ok_or(DropReason::NoMemory)?.split_at_mut(self.outer.len());
        self.outer.write(outer, esp_len, run.start as u16);
        for index in run.clone() {
            let (frame, behind) = rest.split_at_mut(self.esp_len(index));
            self.seal_one(source, frame, index);
            rest = behind;
        }
        let mut pkt = self.packet(buf);
        if run.len() > 1 {
            let (size, segs) = (full as u16, run.len() as u16);
            pkt.meta.cut = Cut::Gso(Gso { size, kind: GsoKind::Udp, segs, ecn: false, fixed_id: false });
        }
        Ok(pkt)
    }

    /// Seals the segments of `run` as packets of their own, which share a page.
    fn single<'a>(
        &self,
        source: &mut Source<'a, impl Iterator<Item = &'a [u8]>>,
        run: Range<usize>,
        out: &mut Vec<Packet>,
    ) -> Result<(), DropReason> {
        let len = |index| self.outer.len() + self.esp_len(index);
        let total = (run.len() - 1) * (FRAME_HEADROOM + len(run.start)) + len(run.end - 1);
        let mut buf = self.mem.take(FRAME_HEADROOM, total)?;
        let mut rest = buf.put(total).ok_or(DropReason::NoMemory)?;
        for index in run.clone() {
            let (frame, behind) = rest.split_at_mut(len(index));
            let (outer, esp) = frame.split_at_mut(self.outer.len());
            self.outer.write(outer, esp.len(), index as u16);
            self.seal_one(source, esp, index);
            rest = behind.get_mut(FRAME_HEADROOM..).unwrap_or_default();
        }
        out.reserve(run.len());
        for index in run.start..run.end - 1 {
            let frame = buf.split_to(len(index));
            buf.pull(FRAME_HEADROOM);
            out.push(self.packet(frame));
        }
        out.push(self.packet(buf));
        Ok(())
    }

    fn packet(&self, buf: Buf) -> Packet {
        let mut pkt = Packet::from_buf(buf);
        pkt.meta = self.meta.clone();
        if let Some(start) = self.outer.udp_check_at() {
            pkt.meta.csum = Csum::Partial { start: start as u16, offset: udp::CHECK_AT as u16 };
        }
        pkt
    }

    /// Fills `frame` with segment `index`: header, the segment, trailer; initialisation vector and ICV are the cipher's.
    #[inline]
    fn seal_one<'a>(&self, source: &mut Source<'a, impl Iterator<Item = &'a [u8]>>, frame: &mut [u8], index: usize) {
        let Self { sa, cutting, .. } = self;
        let (cipher, number) = (&sa.cipher, self.sequence.get(index as u32));
        let (header, rest) = frame.split_at_mut(esp::Header::LEN);
        let text = &mut rest[cipher.iv_len()..];
        let (text, _) = text.split_at_mut(text.len() - cipher.icv_len());
        let (inside, trailer) = text.split_at_mut(self.text_len(index));
        let (tfc, trailer) = trailer.split_at_mut(self.pad_to.saturating_sub(inside.len()));
        tfc.fill(0);
        header.copy_from_slice(esp::Header::new(sa.spi, number.low).as_bytes());
        let (head, payload) = inside.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        let sum = if cutting.sums_payload() {
            source.copy_and_sum(payload)
        } else {
            source.copy_to(payload);
            0
        };
        cutting.patch(inside, self.outside, index, sum);
        esp::write_trailer(trailer, self.next_header);
        #[cfg(debug_assertions)]
        cipher.register(number.iv);
        cipher.seal(frame, number.iv, sa.flags.esn.then_some(number.high));
    }
}

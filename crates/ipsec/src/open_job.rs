//! Decryption job of one SA's packets: admitted on the SA's thread, decrypted on any thread, passed on by the SA's
//! thread.

use std::net::SocketAddr;
use std::sync::Arc;

use base::SaId;
use offload::checksum;
use packet::{Buf, Csum, Cut, Meta, Packet, prefetch, prefetch_to_write};
use wire::esp::{EspHeader, Trailer};
use wire::ip::{self, Info};
use wire::{Pattern, Protocol, RisingNumber, Spi, Version, ipv4, ipv6};
use xfrm::Mode;

use crate::engine::{Cipher, OpenError};
use crate::sa::Sa;

/// Number of buffers ahead of the current one that are prefetched, if they may be in another processor's cache.
const AHEAD: usize = 4;

/// Packets of one SA behind equal headers, in the order in which they came.
#[derive(Debug)]
pub(crate) struct OpenJob {
    pub(crate) sa: SaId,
    spi: Spi,
    /// Request number of the SA: a rekey replaces an SA by one with the same number.
    reqid: u32,
    opening: Opening,
    /// Mark of the received packets.
    mark: u32,
    /// Whether the SA is on a device.
    pub(crate) is_offloaded: bool,
    /// Inner header for which decapsulation changes nothing; cached after the first packet.
    pub(crate) noop_decap: Option<NoopDecap>,
    /// Whether its packets qualify for the [fast match](Self::match_next).
    pub(crate) may_be_template: bool,
    pub(crate) outer: OuterHeaders,
    /// Pattern of the headers that further packets have to match.
    pattern: Box<Pattern>,
    /// The IPv4 identification of the packet before.
    last_id: u16,
    /// Segments in the order of arrival while more may come, and reversed afterwards, because they are taken from the
    /// end.
    segments: Vec<Segment>,
    /// Buffers of the segments, one behind the other. Reversed with them.
    bufs: Vec<Buf>,
    bytes: usize,
    /// Pieces of the only segment, if it is not in one buffer.
    pieces: Vec<Buf>,
}

/// Fields that decide whether decapsulation changes an inner packet; values of one that it did not change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoopDecap {
    /// The first two bytes: version, and TOS or traffic class.
    pub(crate) front: [u8; 2],
    pub(crate) next_header: Protocol,
}

impl NoopDecap {
    /// Tells whether decapsulation changes nothing of a packet either: its length has to be that of its header.
    #[inline]
    pub(crate) fn is_like(self, bytes: &[u8], next_header: Protocol) -> bool {
        let Some(&[a, b, c, d, e, f]) = bytes.first_chunk() else { return false };
        let total = match next_header {
            Protocol::IPV6 => ipv6::Ipv6Header::LEN + usize::from(u16::from_be_bytes([e, f])),
            _ => usize::from(u16::from_be_bytes([c, d])),
        };
        let is_whole = total == bytes.len() && total >= ipv4::Ipv4Header::LEN;
        is_whole && [a, b] == self.front && next_header == self.next_header
    }
}

/// Parameters of decryption.
#[derive(Clone, Debug)]
struct Opening {
    cipher: Arc<Cipher>,
    esn: bool,
    /// Offset of the text in a packet.
    text_at: usize,
    /// Minimum length of a packet.
    shortest: usize,
    sums: Sums,
    /// Whether a device has decrypted it already.
    by_device: bool,
}

/// Bytes of the inner packet whose sum GRO needs, if it is TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Sums {
    /// No sum is needed, or the headers are not known yet.
    Nothing,
    /// Whole packets.
    Packets,
    /// Bytes behind IP headers.
    Payloads,
}

/// The headers in front of ESP.
#[derive(Debug)]
pub(crate) struct OuterHeaders {
    pub(crate) info: Info,
    /// IP headers, and UDP header if there is one; in transport mode as rewritten for the packet before, but for its
    /// identification.
    pub(crate) headers: Vec<u8>,
    pub(crate) is_udp: bool,
    /// Metadata template of decrypted packets; the SA is added to it.
    pub(crate) meta: Meta,
}

impl OuterHeaders {
    /// Source address and port of ESP in UDP.
    #[inline]
    pub(crate) fn source(&self) -> Option<SocketAddr> {
        let at = self.info.header_len;
        let port = self.headers.get(at..at + 2).filter(|_| self.is_udp)?;
        Some(SocketAddr::new(self.info.src, u16::from_be_bytes([port[0], port[1]])))
    }
}

/// One ESP packet.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Bytes from the SPI on.
    len: u32,
    /// Whether it begins its buffer.
    begins_buf: bool,
    /// Whether it ends its buffer.
    ends_buf: bool,
    /// IPv4 identification.
    id: u16,
    /// Number in a trace; 0 without a trace.
    trace: u16,
    /// Whole sequence number.
    seq: u64,
    state: PieceState,
}

/// State of a packet in its job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PieceState {
    /// Not decrypted yet.
    Sealed,
    /// Decrypted, and the ICV is right.
    Open {
        /// Length of the inner bytes, without padding.
        payload_len: u32,
        /// Protocol of the inner bytes.
        next_header: Protocol,
        /// Sum of a TCP packet, or of its part behind the IP headers, if computed.
        sum: Option<u16>,
    },
    /// The ICV is wrong.
    Forged,
    /// The ICV is right, but the padding is not.
    Malformed,
}

impl PieceState {
    /// Sum of `bytes`, which are all inner bytes.
    #[inline]
    pub(crate) fn sum_of(self, bytes: &[u8]) -> u16 {
        match self {
            Self::Open { sum: Some(sum), .. } => sum,
            _ => checksum::sum(bytes) as u16,
        }
    }
}

/// Match of a packet that [continues](OpenJob::match_next) a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextMatch {
    /// Offset from the SPI on, followed by the length.
    pub(crate) at: usize,
    pub(crate) len: usize,
    /// Sequence number, as the wire has it.
    pub(crate) seq: u32,
    /// IPv4 identification.
    pub(crate) id: u16,
}

/// A decrypted packet, to be passed on.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) seq: u64,
    pub(crate) id: u16,
    /// Number in a trace; 0 without a trace.
    pub(crate) trace: u16,
    pub(crate) state: PieceState,
    /// Inner bytes, if it is [`PieceState::Open`].
    pub(crate) inside: Buf,
}

/// Lists of a finished job, kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    headers: Vec<u8>,
    pattern: Box<Pattern>,
    segments: Vec<Segment>,
    bufs: Vec<Buf>,
    pieces: Vec<Buf>,
}

impl Storage {
    /// Room for as many packets as a burst has: the distribution of lists over jobs depends on the speed of threads.
    pub(crate) fn with_room() -> Self {
        const PACKETS: usize = 64;
        Self { segments: Vec::with_capacity(PACKETS), bufs: Vec::with_capacity(PACKETS), ..Self::default() }
    }
}

impl OpenJob {
    /// An empty job for packets of `sa` with these outer `headers`.
    pub(crate) fn new(sa: &Sa, info: Info, headers: &[u8], is_udp: bool, meta: &Meta, storage: Storage) -> Self {
        let Meta { origin, pkt_type, mark, esp, .. } = *meta;
        let mut sec_path = meta.sec_path.clone();
        sec_path.push(sa.id());
        let meta = Meta { origin, pkt_type, mark: sa.output_mark.set_on(mark), sec_path, ..Meta::default() };
        let Storage { headers: mut kept, mut pattern, segments, bufs, pieces } = storage;
        kept.clear();
        kept.extend_from_slice(headers);
        pattern.set(headers).free_ip(info.version());
        Self {
            sa: sa.id(),
            spi: sa.spi,
            reqid: sa.reqid,
            opening: Opening {
                cipher: Arc::clone(&sa.cipher),
                esn: sa.flags.esn,
                text_at: EspHeader::LEN + sa.cipher.iv_len(),
                shortest: sa.shortest(),
                sums: match sa.mode {
                    Mode::Tunnel => Sums::Packets,
                    Mode::Transport if is_udp => Sums::Nothing,
                    Mode::Transport => Sums::Payloads,
                },
                by_device: esp.is_some(),
            },
            mark,
            is_offloaded: sa.offload.is_some(),
            noop_decap: None,
            may_be_template: info.plain && !is_udp && esp.is_none() && sa.offload.is_none(),
            outer: OuterHeaders { info, headers: kept, is_udp, meta },
            pattern,
            last_id: info.id,
            segments,
            bufs,
            bytes: 0,
            pieces,
        }
    }

    /// Tells whether packets of `sa` behind these headers match this job: only length, identification and checksum
    /// differ. A UDP header has a length of its own, so packets in UDP do not.
    #[inline]
    pub(crate) fn is_for(&self, sa: SaId, headers: &[u8], meta: &Meta) -> bool {
        let same = self.outer.headers.len() == headers.len() && self.pattern.matches(headers);
        self.sa == sa && !self.outer.is_udp && same && self.takes(meta)
    }

    /// Match of `pkt`, whose IP header begins at `l3`, if it is whole, of this job's SA, and qualifies for the fast
    /// path: then nothing found out for earlier packets has to be found out again.
    #[expect(clippy::inline_always, reason = "a call would write what it finds of a packet to memory")]
    #[inline(always)]
    pub(crate) fn match_next(&mut self, pkt: &Packet, l3: usize) -> Option<NextMatch> {
        let packet = pkt.head().get(l3..)?;
        let may_be_template = self.may_be_template
            && pkt.is_linear()
            && matches!(pkt.meta.cut, Cut::Whole)
            && !matches!(pkt.meta.csum, Csum::Partial { .. })
            && pkt.owns_head()
            && self.takes(&pkt.meta);
        let headers_len = self.outer.headers.len();
        let (headers, esp) = packet.split_at_checked(headers_len).filter(|_| may_be_template)?;
        let header = EspHeader::ref_from(esp).ok()?;
        let version = self.outer.info.version();
        let id = match version {
            Version::V4 => ipv4::Ipv4Header::ref_from(headers).ok()?.id(),
            Version::V6 => 0,
        };
        if self.pattern.next.is(packet, packet.len()) {
            self.pattern.next.advance();
        } else {
            let goes_on = header.spi() == self.spi
                && esp.len() >= self.opening.shortest
                && self.pattern.matches(packet)
                && self.pattern.is_right(version, packet, packet.len());
            if !goes_on {
                return None;
            }
            let number = RisingNumber { at: headers_len + size_of::<Spi>(), step: 1 };
            let id_step = id.wrapping_sub(self.last_id);
            self.pattern.next.set(packet, headers_len + EspHeader::LEN, packet.len(), id_step, number, (0, &[]));
        }
        self.last_id = id;
        Some(NextMatch { at: l3 + headers_len, len: esp.len(), seq: header.seq(), id })
    }

    /// Tells whether packets with the metadata `meta` match those of this job.
    #[inline]
    fn takes(&self, meta: &Meta) -> bool {
        self.outer.meta.origin == meta.origin
            && self.outer.meta.pkt_type == meta.pkt_type
            && self.mark == meta.mark
            && self.opening.by_device == meta.esp.is_some()
            && self.outer.meta.came_through(&meta.sec_path)
    }

    /// The SPI of its packets.
    pub(crate) fn spi(&self) -> Spi {
        self.spi
    }

    /// Appends a packet of `len` bytes with the number `seq`, in the buffer that is [pushed](Self::push_buf) next.
    #[inline]
    pub(crate) fn push(&mut self, len: usize, seq: u64, id: u16) {
        let begins_buf = self.segments.last().is_none_or(|last| last.ends_buf);
        let state = PieceState::Sealed;
        let segment = Segment { len: len as u32, begins_buf, ends_buf: false, id, trace: 0, seq, state };
        self.segments.push(segment);
        self.bytes += len;
    }

    /// Sets the number in a trace of the packet that was pushed last.
    #[inline]
    pub(crate) fn trace_last(&mut self, trace: u16) {
        if trace != 0
            && let Some(last) = self.segments.last_mut()
        {
            last.trace = trace;
        }
    }

    /// Appends the buffer of the packets since the last one; they begin at offset `front`.
    #[inline]
    pub(crate) fn push_buf(&mut self, buf: Buf, front: usize) {
        if let Some(last) = self.segments.last_mut() {
            last.ends_buf = true;
            self.bufs.push(buf);
            self.bufs.last_mut().expect("just pushed").pull(front);
        }
    }

    /// Appends the packet that begins at `next` in `buf`.
    #[expect(clippy::inline_always, reason = "a call would write what it finds of a packet to memory")]
    #[inline(always)]
    pub(crate) fn push_whole(&mut self, next: NextMatch, seq: u64, mut buf: Buf) {
        let NextMatch { at, len, id, .. } = next;
        let begins_buf = true;
        let ends_buf = true;
        let state = PieceState::Sealed;
        self.segments.push(Segment { len: len as u32, begins_buf, ends_buf, id, trace: 0, seq, state });
        self.bytes += len;
        buf.pull(at);
        self.bufs.push(buf);
    }

    /// List of the pieces of the only packet; its buffer has the packet's length.
    pub(crate) fn pieces_mut(&mut self) -> &mut Vec<Buf> {
        debug_assert_eq!(self.segments.len(), 1, "others lie in their buffers");
        &mut self.pieces
    }

    /// Bytes that pass through the cipher.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Tells whether there is work for a cipher of this node, not a device's.
    pub(crate) fn has_cipher_work(&self) -> bool {
        !self.opening.by_device && !self.opening.cipher.is_null()
    }

    /// An empty job for further packets that match this one.
    pub(crate) fn another(&self, storage: Storage) -> Self {
        let Self { sa, spi, reqid, mark, is_offloaded, may_be_template, last_id, ref opening, ref outer, .. } = *self;
        let Storage { mut headers, mut pattern, segments, bufs, pieces } = storage;
        headers.clone_from(&outer.headers);
        pattern.clone_from(&self.pattern);
        Self {
            sa,
            spi,
            reqid,
            opening: opening.clone(),
            mark,
            is_offloaded,
            noop_decap: None,
            may_be_template,
            outer: OuterHeaders { headers, info: outer.info, is_udp: outer.is_udp, meta: outer.meta.clone() },
            pattern,
            last_id,
            segments,
            bufs,
            bytes: 0,
            pieces,
        }
    }

    /// Tells whether a job's SA replaces this one's, or was replaced by it: both have the same flows. Key managers give
    /// a rekeyed SA the same request number; SAs without a request number are taken for different ones.
    pub(crate) fn is_rekeyed_by(&self, other: &Self) -> bool {
        let [one, another] = [self, other].map(|job| (job.reqid, job.outer.info.src, job.outer.info.dst));
        self.reqid != 0 && one == another && self.sa != other.sa
    }

    /// Marks the job as complete.
    pub(crate) fn complete(&mut self) {
        self.segments.reverse();
        self.bufs.reverse();
    }

    /// Prefetches its lists, which may be in another processor's cache: they are read at once, and written for the next
    /// packets.
    pub(crate) fn prefetch_lists(&self) {
        prefetch_to_write(&self.segments[..]);
        prefetch_to_write(&self.bufs[..]);
    }

    /// Prefetches the first packets that are [passed on](Self::next), if another thread has decrypted them: they are in
    /// its processor's cache.
    pub(crate) fn begin_passing(&self) {
        if self.segments.last().is_some_and(|first| !matches!(first.state, PieceState::Sealed)) {
            self.bufs.iter().rev().take(AHEAD).for_each(Buf::prefetch);
        }
    }

    /// Decrypts the packets in place. A packet that is [passed on](Self::next) before that is decrypted then, while it
    /// is in the nearest cache.
    pub(crate) fn run(&mut self) {
        // The lists are in the cache of the worker that filled them.
        prefetch_to_write(&self.segments[..]);
        self.bufs.iter().for_each(prefetch);
        let mut bufs = self.bufs.iter_mut().rev();
        let mut rest: &mut [u8] = &mut [];
        for segment in self.segments.iter_mut().rev() {
            if segment.begins_buf {
                rest = bufs.next().and_then(Buf::bytes_mut).expect("a buffer that is this job's own");
            }
            let (packet, behind) = rest.split_at_mut(segment.len as usize);
            segment.state = self.opening.open(packet, &self.pieces, segment.seq, self.opening.sums);
            rest = behind;
        }
    }

    /// Decrypts the packet at offset `front` of `buf` at once, and leaves its contents there. They are not summed yet.
    #[inline]
    pub(crate) fn open_now(&mut self, buf: &mut Buf, front: usize, seq: u64) -> PieceState {
        let packet = &mut buf.bytes_mut().expect("looked at before")[front..];
        let len = packet.len();
        let state = self.opening.open(packet, &[], seq, Sums::Nothing);
        let (from, to) = self.opening.inside(state, len);
        buf.trim(front + to);
        buf.pull(front + from);
        state
    }

    /// Tells whether a decrypted packet is TCP that needs no more than its sum: in tunnel mode, one that decapsulation
    /// does not change; in transport mode, one with headroom for its IP headers. The SA's mode is known by now.
    #[inline]
    pub(crate) fn is_noop_decap(&self, mode: Mode, state: PieceState, inside: &Buf) -> bool {
        let PieceState::Open { next_header, .. } = state else { return false };
        match (mode, self.opening.sums) {
            (Mode::Tunnel, Sums::Packets) => {
                self.noop_decap.is_some_and(|noop_decap| noop_decap.is_like(inside.bytes(), next_header))
                    && ip::is_plain_tcp(inside.bytes())
            }
            (Mode::Transport, Sums::Payloads) => {
                next_header == Protocol::TCP && inside.headroom() >= self.outer.info.header_len
            }
            _ => false,
        }
    }

    /// The next packet.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Piece> {
        let Segment { len, ends_buf, id, trace, seq, mut state, .. } = self.segments.pop()?;
        let (len, buf) = (len as usize, self.bufs.last_mut()?);
        if let PieceState::Sealed = state {
            let packet = &mut buf.bytes_mut().expect("a buffer that is this job's own")[..len];
            state = self.opening.open(packet, &self.pieces, seq, self.opening.sums);
        } else if let Some(soon) = self.bufs.len().checked_sub(AHEAD + 1) {
            // It may be in another processor's cache.
            self.bufs[soon].prefetch();
        }
        self.pieces.clear();
        let (from, to) = self.opening.inside(state, len);
        let whole = if ends_buf {
            self.bufs.pop()?
        } else {
            let buf = self.bufs.last_mut()?;
            let front = buf.split_to(to);
            // Padding of this packet is headroom of the next.
            buf.pull(len - to);
            front
        };
        Some(Piece { seq, id, trace, state, inside: whole.narrowed(from, to) })
    }

    /// Returns the lists.
    pub(crate) fn into_storage(self) -> Storage {
        let Self { outer, pattern, segments, mut bufs, mut pieces, .. } = self;
        bufs.clear();
        pieces.clear();
        Storage { headers: outer.headers, pattern, segments, bufs, pieces }
    }
}

impl Opening {
    /// Decrypts one ESP packet, from `pieces` or, if there are none, in place, and returns its state.
    #[expect(clippy::inline_always, reason = "a call would write its text to memory, to be read again in other pieces")]
    #[inline(always)]
    fn open(&self, packet: &mut [u8], pieces: &[Buf], seq: u64, sums: Sums) -> PieceState {
        if self.by_device {
            let text_end = packet.len() - self.cipher.icv_len();
            return examine(&packet[self.text_at..text_end], sums);
        }
        //= RFC 4303 §2.2.1 high-half: the upper half of an extended sequence number is not sent, and the ICV covers it;
        //=   the receiver infers it from its window
        let high = self.esn.then_some((seq >> 32) as u32);
        let opened = match pieces {
            [] => self.cipher.open(packet, high),
            pieces => self.cipher.open_from(pieces.iter().map(Buf::bytes), packet, high),
        };
        match opened {
            Ok(text) => examine(text, sums),
            Err(OpenError::IcvWrong) => PieceState::Forged,
            Err(OpenError::NotBlocks) => PieceState::Malformed,
        }
    }

    /// Range of the inner bytes of a packet of `len` bytes: the whole packet if unknown.
    #[inline]
    const fn inside(&self, state: PieceState, len: usize) -> (usize, usize) {
        match state {
            PieceState::Open { payload_len, .. } => (self.text_at, self.text_at + payload_len as usize),
            PieceState::Sealed | PieceState::Forged | PieceState::Malformed => (0, len),
        }
    }
}

/// Parses the trailer of a decrypted ESP packet.
#[inline]
fn examine(text: &[u8], sums: Sums) -> PieceState {
    let Ok(trailer) = Trailer::parse(text) else { return PieceState::Malformed };
    match text.len().checked_sub(trailer.trailer_len()) {
        None | Some(0) => PieceState::Malformed,
        Some(len) => {
            let payload = &text[..len];
            let is_summed = match sums {
                Sums::Nothing => false,
                Sums::Packets => ip::is_plain_tcp(payload),
                Sums::Payloads => trailer.next_header == Protocol::TCP,
            };
            let sum = is_summed.then(|| checksum::sum(payload) as u16);
            PieceState::Open { payload_len: len as u32, next_header: trailer.next_header, sum }
        }
    }
}

//! A train's opening: admitted where its SA is known, decrypted anywhere, passed on where it came from.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use base::SaId;
use offload::checksum;
use packet::{Buf, Meta};
use wire::esp::{Header, Trailer};
use wire::ip::Info;
use wire::{Protocol, Version, ipv4, ipv6};

use crate::config::Mode;
use crate::engine::{Cipher, OpenError};
use crate::sa::Sa;

/// Packets of one SA behind equal headers, in the order in which they came.
#[derive(Debug)]
pub(crate) struct OpenJob {
    pub(crate) sa: SaId,
    cipher: Arc<Cipher>,
    esn: bool,
    /// Whether whole packets are inside, which may be glued and are summed for it.
    sums: bool,
    /// The mark that its packets came with.
    mark: u32,
    /// Whether a device has been at the ciphers' work already.
    by_device: bool,
    /// Whether the SA is on a device.
    pub(crate) is_offloaded: bool,
    pub(crate) outer: Outer,
    segments: VecDeque<Segment>,
    /// What the segments lie in, one behind the other.
    bufs: VecDeque<Buf>,
    bytes: usize,
    /// For ciphers that need room beside the packet.
    scratch: Vec<u8>,
}

/// The headers in front of ESP.
#[derive(Debug)]
pub(crate) struct Outer {
    pub(crate) info: Info,
    /// IP headers, and UDP's if there is one.
    pub(crate) headers: Vec<u8>,
    pub(crate) is_udp: bool,
    /// What its packets get, but for the SA.
    pub(crate) meta: Meta,
}

impl Outer {
    /// From which address and port ESP in UDP came.
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
    /// Whether its buffer ends with it.
    ends_buf: bool,
    /// Its IPv4 identification.
    id: u16,
    /// Its whole sequence number.
    seq: u64,
    state: State,
}

/// How far a packet is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    /// Not decrypted yet.
    Sealed,
    /// Its ICV is right.
    Open {
        /// Bytes inside, without what pads them.
        payload_len: u32,
        /// What they are.
        next_header: Protocol,
        /// Their sum, if they are a TCP packet.
        sum: Option<u16>,
    },
    /// Its ICV is wrong.
    Forged,
    /// Its ICV is right, but its padding is not.
    Malformed,
}

/// A packet that is through.
#[derive(Debug)]
pub(crate) struct Piece {
    /// What was inside of it, if it is [`State::Open`].
    pub(crate) inside: Buf,
    pub(crate) seq: u64,
    pub(crate) id: u16,
    pub(crate) state: State,
}

/// Lists of a job that is through, kept for the next one.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    headers: Vec<u8>,
    segments: VecDeque<Segment>,
    bufs: VecDeque<Buf>,
    scratch: Vec<u8>,
}

impl OpenJob {
    /// An empty job for packets of `sa`, which came behind `headers`.
    pub(crate) fn new(sa: &Sa, info: Info, headers: &[u8], is_udp: bool, meta: &Meta, storage: Storage) -> Self {
        let Meta { link, mark, esp, .. } = *meta;
        let mut sec_path = meta.sec_path.clone();
        sec_path.push(sa.id());
        let meta = Meta { link, mark: sa.output_mark.set_on(mark), sec_path, ..Meta::default() };
        let by_device = esp.is_some();
        let Storage { headers: mut kept, segments, bufs, scratch } = storage;
        kept.clear();
        kept.extend_from_slice(headers);
        Self {
            sa: sa.id(),
            cipher: Arc::clone(&sa.cipher),
            esn: sa.flags.esn,
            sums: sa.mode == Mode::Tunnel,
            mark,
            by_device,
            is_offloaded: sa.offload.is_some(),
            outer: Outer { info, headers: kept, is_udp, meta },
            segments,
            bufs,
            bytes: 0,
            scratch,
        }
    }

    /// Tells whether packets of `sa` behind these headers can go on in this job: if only the length, the identification
    /// and the checksum over them differ. UDP's length would have to as well, so a packet in UDP cannot.
    pub(crate) fn is_for(&self, sa: SaId, headers: &[u8], meta: &Meta) -> bool {
        let same = |range: Range<usize>| self.outer.headers.get(range.clone()) == headers.get(range);
        let end = self.outer.headers.len();
        let same_headers = match self.outer.info.version() {
            Version::V4 => same(0..2) && same(6..10) && same(12..end),
            Version::V6 => same(0..4) && same(6..end),
        };
        self.sa == sa
            && self.outer.headers.len() == headers.len()
            && same_headers
            && !self.outer.is_udp
            && self.outer.meta.link == meta.link
            && self.mark == meta.mark
            && self.by_device == meta.esp.is_some()
            && self.outer.meta.sec_path.split_last().is_some_and(|(_, outside)| outside == meta.sec_path.as_slice())
    }

    /// Notes that `len` bytes with the number `seq` come next, in the buffer that is [pushed](Self::push_buf) next.
    #[inline]
    pub(crate) fn push(&mut self, len: usize, seq: u64, id: u16) {
        let segment = Segment { len: len as u32, ends_buf: false, id, seq, state: State::Sealed };
        self.segments.push_back(segment);
        self.bytes += len;
    }

    /// The buffer of the packets noted since the last one.
    pub(crate) fn push_buf(&mut self, buf: Buf) {
        if let Some(last) = self.segments.back_mut() {
            last.ends_buf = true;
            self.bufs.push_back(buf);
        }
    }

    /// Bytes that pass through the cipher.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Decrypts the packets where they lie.
    pub(crate) fn run(&mut self) {
        let Self { cipher, esn, sums, by_device, segments, bufs, scratch, .. } = self;
        let mut bufs = bufs.iter_mut();
        let mut rest: &mut [u8] = &mut [];
        let mut ended = true;
        for segment in segments {
            if ended {
                rest = bufs.next().and_then(Buf::bytes_mut).expect("a buffer that is this job's own");
            }
            let (packet, behind) = rest.split_at_mut(segment.len as usize);
            segment.state = if *by_device {
                let text_end = packet.len() - cipher.icv_len();
                examine(&packet[Header::LEN + cipher.iv_len()..text_end], *sums)
            } else {
                decrypt(cipher, packet, esn.then_some((segment.seq >> 32) as u32), *sums, scratch)
            };
            rest = behind;
            ended = segment.ends_buf;
        }
    }

    /// The next packet.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Piece> {
        let Segment { len, ends_buf, id, seq, state } = self.segments.pop_front()?;
        let (len, text_at) = (len as usize, Header::LEN + self.cipher.iv_len());
        let end = match state {
            State::Open { payload_len, .. } => text_at + payload_len as usize,
            State::Sealed | State::Forged | State::Malformed => len,
        };
        let mut inside = if ends_buf {
            let mut buf = self.bufs.pop_front()?;
            buf.trim(end);
            buf
        } else {
            let front = self.bufs.front_mut()?;
            let buf = front.split_to(end);
            // What pads this packet is room for headers in front of the next.
            front.pull(len - end);
            buf
        };
        inside.pull(text_at.min(end));
        Some(Piece { inside, seq, id, state })
    }

    /// Gives back the lists.
    pub(crate) fn into_storage(self) -> Storage {
        let Self { outer, segments, bufs, scratch, .. } = self;
        Storage { headers: outer.headers, segments, bufs, scratch }
    }
}

/// Decrypts one ESP packet in place, and says what is in it.
#[inline]
fn decrypt(cipher: &Cipher, packet: &mut [u8], high: Option<u32>, sums: bool, scratch: &mut Vec<u8>) -> State {
    match cipher.open(packet, high, scratch) {
        Ok(text) => examine(text, sums),
        Err(OpenError::IcvWrong) => State::Forged,
        Err(OpenError::NotBlocks) => State::Malformed,
    }
}

/// Says what is in a decrypted ESP packet.
#[inline]
fn examine(text: &[u8], sums: bool) -> State {
    let Ok(trailer) = Trailer::parse(text) else { return State::Malformed };
    match text.len().checked_sub(trailer.trailer_len()) {
        None | Some(0) => State::Malformed,
        Some(len) => {
            let payload = &text[..len];
            let sum = (sums && is_tcp(payload)).then(|| checksum::sum(payload) as u16);
            State::Open { payload_len: len as u32, next_header: trailer.next_header, sum }
        }
    }
}

/// Tells whether a packet begins with an IP header without options or extension headers, and carries TCP.
fn is_tcp(packet: &[u8]) -> bool {
    match packet.first() {
        Some(0x45) => packet.get(ipv4::PROTOCOL_AT) == Some(&Protocol::TCP.0),
        Some(0x60..=0x6f) => packet.get(ipv6::NEXT_HEADER_AT) == Some(&Protocol::TCP.0),
        _ => false,
    }
}

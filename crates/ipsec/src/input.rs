//! ESP on the way in: from a packet or a train, as it was received, to what is inside.
//!
//! Packets of a train are opened where they lie, one after the other, and taken off its front. Forged ones cost a
//! look-up and the cipher's pass at most, and never a copy before the SA is known. The order of checks and the counters
//! are those of Linux's `xfrm_input` and `esp_input`.

mod decap;

use base::{Counters, DropReason, Instant, Mib, SaId};
use offload::ip_headers;
use packet::{Cut, Memory, Meta, Packet, SecPath};
use wire::esp::{Header, TRAILER_LEN, Trailer};
use wire::ip::Info;
use wire::{Protocol, Spi, udp};

use crate::config::{Mode, SaDir};
use crate::gateway::Ipsec;
use crate::pieces::Pieces;
use crate::replay::Replay;
use crate::sad::Sad;

/// What became of the packets of a train. The caller keeps it for the next one, and empties what it has taken.
#[derive(Debug, Default)]
pub struct Opened {
    /// What was inside: in tunnel mode the inner packets, in transport mode the packets without ESP. Their `sec_path`
    /// names the SA.
    pub packets: Vec<Packet>,
    /// UDP packets that are not ESP: IKE, behind its non-ESP marker (RFC 3948 §2.2).
    pub not_esp: Vec<Packet>,
    /// NAT keepalives (RFC 3948 §2.3), which are for nobody.
    pub keepalives: u64,
    /// Why each of the others went no further. Counters are counted.
    pub drops: Vec<DropReason>,
}

/// The headers in front of ESP.
#[derive(Clone, Copy)]
struct Outer<'a> {
    info: &'a Info,
    /// IP headers, and UDP's if there is one.
    headers: &'a [u8],
    is_udp: bool,
    meta: &'a Meta,
    /// By how much the IPv4 identification of the packet at hand is above that of the headers.
    id_offset: u16,
}

/// What a packet of a train is.
enum Kind {
    Esp,
    Keepalive,
    NotEsp,
}

impl Ipsec {
    /// Opens `pkt`, which begins with its IP header and carries ESP or ESP in UDP: one packet, or a train
    /// ([`GsoKind::Udp`](packet::GsoKind::Udp)) of them. It is for this node, or for one that it
    /// [opens for](Sad::opens_for_others), and no fragment. An outer UDP checksum is not looked at, because the ICV says
    /// more.
    pub fn open(&mut self, mem: &Memory, now: Instant, mut pkt: Packet, opened: &mut Opened, counters: &mut Counters) {
        let (info, payload_at) = match outer_headers(mem, &mut pkt) {
            Ok(found) => found,
            Err(reason) => {
                counters.count(Mib::XfrmInHdrError);
                opened.drops.push(reason);
                return;
            }
        };
        let is_udp = info.protocol == Protocol::UDP;
        let len = pkt.len() - payload_at;
        let (size, id_step) = match pkt.meta.cut.gso() {
            Some(gso) => (usize::from(gso.size).max(1), u16::from(!gso.fixed_id)),
            None => (len, 0),
        };
        if is_udp && size >= len {
            let mut front = [0; Header::LEN + 1];
            let front = &mut front[..len.min(Header::LEN + 1)];
            pkt.read_at(payload_at, front);
            if let Kind::NotEsp = kind(front) {
                pkt.meta.cut = Cut::Whole;
                opened.not_esp.push(pkt);
                return;
            }
        }
        self.headers.clear();
        self.headers.extend_from_slice(&pkt.head()[..payload_at]);
        let meta = Meta { link: pkt.meta.link, sec_path: pkt.meta.sec_path.clone(), ..Meta::default() };
        pkt.pull(payload_at);
        let Self { sad, scratch, pieces, headers, .. } = self;
        let outer = Outer { info: &info, headers, is_udp, meta: &meta, id_offset: 0 };
        let mut opener = Opener { sad, scratch, mem, now, outer, last: None, counters };
        let mut pieces = Pieces::new(pkt, pieces);
        let mut left = len;
        while left > 0 {
            let n = left.min(size);
            left -= n;
            opener.next(&mut pieces, n, opened);
            opener.outer.id_offset = opener.outer.id_offset.wrapping_add(id_step);
        }
        if len == 0 {
            opener.next(&mut pieces, 0, opened);
        }
    }
}

/// Finds where ESP begins, or UDP's payload, and cuts off what comes behind it.
fn outer_headers(mem: &Memory, pkt: &mut Packet) -> Result<(Info, usize), DropReason> {
    let info = ip_headers(mem, pkt)?;
    if info.fragment.is_some() {
        return Err(DropReason::FragmentNotReassembled);
    }
    match info.protocol {
        Protocol::ESP => Ok((info, info.header_len)),
        Protocol::UDP => {
            let payload_at = info.header_len + udp::Header::LEN;
            if !pkt.may_pull(mem, payload_at)? {
                return Err(DropReason::TransportHeader);
            }
            let udp = udp::Udp::parse_head(info.payload(pkt.head()), info.payload_len())?;
            pkt.trim(payload_at + udp.payload_len());
            Ok((info, payload_at))
        }
        _ => Err(DropReason::ProtocolUnknown),
    }
}

/// What a UDP payload is whose first bytes, nine if it has so many, are `front` (Linux `__xfrm4_udp_encap_rcv`).
fn kind(front: &[u8]) -> Kind {
    match front {
        [0xff] => Kind::Keepalive,
        [0, 0, 0, 0, ..] => Kind::NotEsp,
        _ if front.len() <= Header::LEN => Kind::NotEsp,
        _ => Kind::Esp,
    }
}

type Refused = (Mib, DropReason);

/// Opens the packets of one train.
struct Opener<'a> {
    sad: &'a mut Sad,
    scratch: &'a mut Vec<u8>,
    mem: &'a Memory,
    now: Instant,
    outer: Outer<'a>,
    /// The SA of the packet before.
    last: Option<(Spi, SaId)>,
    counters: &'a mut Counters,
}

impl Opener<'_> {
    /// Takes the next `n` bytes off `pieces` and makes of them what they are.
    #[inline]
    fn next(&mut self, pieces: &mut Pieces<'_>, n: usize, opened: &mut Opened) {
        let mut front = [0; Header::LEN + 8];
        let front = &mut front[..n.min(Header::LEN + 8)];
        pieces.peek(front);
        if self.outer.is_udp {
            match kind(&front[..n.min(Header::LEN + 1)]) {
                Kind::Esp => {}
                Kind::Keepalive => {
                    opened.keepalives += 1;
                    pieces.skip(n);
                    return;
                }
                Kind::NotEsp => {
                    match self.outer.not_esp(self.mem, pieces, n) {
                        Ok(pkt) => opened.not_esp.push(pkt),
                        Err(reason) => opened.drops.push(reason),
                    }
                    return;
                }
            }
        }
        match self.open(pieces, front, n) {
            Ok(pkt) => opened.packets.push(pkt),
            Err((mib, reason)) => {
                self.counters.count(mib);
                opened.drops.push(reason);
            }
        }
    }

    /// Opens the first `n` bytes of `pieces`, which begin with `front`, and takes them off in any case.
    #[inline]
    fn open(&mut self, pieces: &mut Pieces<'_>, front: &[u8], n: usize) -> Result<Packet, Refused> {
        let (id, seq) = match self.admit(front, n) {
            Ok(admitted) => admitted,
            Err(refused) => {
                pieces.skip(n);
                return Err(refused);
            }
        };
        let bytes = match pieces.writable(self.mem, n) {
            Ok(bytes) => bytes,
            Err(reason) => {
                pieces.skip(n);
                return Err((Mib::XfrmInError, reason));
            }
        };
        let sa = self.sad.get_mut(id).expect("found by admit");
        let text_at = Header::LEN + sa.cipher.iv_len();
        let opened = decrypt(sa, seq, bytes, self.scratch);
        let (payload_len, next_header) = match opened {
            Ok(opened) => opened,
            Err(refused) => {
                pieces.skip(n);
                return Err(refused);
            }
        };
        if let Err(why) = sa.replay.mark(seq) {
            pieces.skip(n);
            return Err(refuse(sa, why));
        }
        sa.used(self.now, 1, payload_len as u64);
        pieces.skip(text_at);
        let inside = pieces.take(payload_len, n - text_at);
        let mut sec_path: SecPath = self.outer.meta.sec_path.clone();
        sec_path.push(id);
        let meta = Meta { sec_path, ..self.outer.meta.clone() };
        match sa.mode {
            Mode::Tunnel => decap::tunnel(sa, self.outer.info, inside, next_header, meta),
            Mode::Transport => self.outer.transport(self.mem, inside, next_header, meta),
        }
    }

    /// Says which SA a packet is of and what its whole sequence number may be, from what is in clear.
    #[inline]
    fn admit(&mut self, front: &[u8], n: usize) -> Result<(SaId, u64), Refused> {
        let header = Header::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, why.into()))?;
        if self.outer.meta.sec_path.is_full() {
            return Err((Mib::XfrmInBufferError, DropReason::PolicyDepth));
        }
        let id = match self.last {
            Some((spi, id)) if spi == header.spi() => Some(id),
            _ => self.sad.by_spi(self.outer.info.dst, header.spi()),
        };
        let id = id.ok_or((Mib::XfrmInNoStates, DropReason::EspNoState))?;
        self.last = Some((header.spi(), id));
        let sa = self.sad.get_mut(id).ok_or((Mib::XfrmInNoStates, DropReason::EspNoState))?;
        if sa.dir == Some(SaDir::Out) {
            return Err((Mib::XfrmInStateDirError, DropReason::EspDirection));
        }
        if sa.encap.is_some() != self.outer.is_udp {
            return Err((Mib::XfrmInStateMismatch, DropReason::EspMismatch));
        }
        let seq = sa.replay.check(header.seq()).map_err(|why| refuse(sa, why))?;
        if n < Header::LEN + sa.cipher.iv_len() + TRAILER_LEN + sa.cipher.icv_len() {
            return Err((Mib::XfrmInStateProtoError, DropReason::EspTruncated));
        }
        Ok((id, seq))
    }
}

/// Decrypts one ESP packet in place, and says how long its payload is and what.
#[inline]
fn decrypt(
    sa: &mut crate::sa::Sa,
    seq: u64,
    bytes: &mut [u8],
    scratch: &mut Vec<u8>,
) -> Result<(usize, Protocol), Refused> {
    let high = sa.flags.esn.then_some((seq >> 32) as u32);
    let Ok(text) = sa.cipher.open(bytes, high, scratch) else {
        sa.stats.failed += 1;
        return Err((Mib::XfrmInStateProtoError, DropReason::EspIcv));
    };
    let trailer = Trailer::parse(text).map_err(|why| (Mib::XfrmInStateProtoError, why.into()))?;
    match text.len().checked_sub(trailer.trailer_len()) {
        None | Some(0) => Err((Mib::XfrmInStateProtoError, DropReason::EspFormat)),
        Some(_) if trailer.next_header == Protocol::NO_NEXT => Err((Mib::XfrmInStateProtoError, DropReason::EspDummy)),
        Some(len) => Ok((len, trailer.next_header)),
    }
}

/// Counts a refused sequence number.
fn refuse(sa: &mut crate::sa::Sa, why: Replay) -> Refused {
    match why {
        Replay::Zero => {}
        Replay::Seen => sa.stats.replay += 1,
        Replay::TooOld => sa.stats.replay_window += 1,
    }
    (Mib::XfrmInStateSeqError, DropReason::EspReplay)
}

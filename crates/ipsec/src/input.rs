//! ESP on the way in: from a packet or a train, as it was received, to what is inside.
//!
//! Packets of a train are opened where they lie. Forged ones cost a look-up and the cipher's pass at most, and never a
//! copy before the SA is known. The order of checks and the counters are those of Linux's `xfrm_input` and `esp_input`.

mod decap;

use base::{Counters, DropReason, Instant, Mib, SaId};
use offload::ip_headers;
use packet::{Buf, Csum, Cut, Memory, Meta, Packet};
use wire::esp::{Header, TRAILER_LEN};
use wire::ip::Info;
use wire::{Protocol, Spi, udp};

use crate::config::{Mode, SaDir};
use crate::gateway::Ipsec;
use crate::open_job::{OpenJob, Piece, State};
use crate::pieces::Pieces;
use crate::replay::Replay;
use crate::sa::Sa;
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

/// What came out of one ESP packet.
#[derive(Debug)]
pub enum Inner {
    /// The whole packet that was inside of a tunnel, in one buffer. [`Ipsec::inner_meta`] goes with it.
    Plain(Buf),
    /// A packet that was protected in transport mode.
    Packet(Packet),
    /// Nothing. The counter is counted; [`Ipsec::inner_meta`] says which link it came by.
    Dropped(DropReason),
}

/// What a packet of a train is.
enum Kind {
    Esp,
    Keepalive,
    NotEsp,
}

type Refused = (Mib, DropReason);

impl Ipsec {
    /// Opens `pkt`, which begins with its IP header and carries ESP or ESP in UDP: one packet, or a train
    /// ([`GsoKind::Udp`](packet::GsoKind::Udp)) of them. It is for this node, or for one that it
    /// [opens for](Sad::opens_for_others), and no fragment. An outer UDP checksum is not looked at, because the ICV says
    /// more.
    pub fn open(&mut self, mem: &Memory, now: Instant, pkt: Packet, opened: &mut Opened, counters: &mut Counters) {
        self.submit_open(mem, now, pkt, opened, counters);
        self.work(now);
        while let Some(inner) = self.next_opened(mem, now, counters) {
            match inner {
                Inner::Plain(buf) => {
                    let mut pkt = Packet::from_buf(buf);
                    pkt.meta = self.inner_meta().clone();
                    opened.packets.push(pkt);
                }
                Inner::Packet(pkt) => opened.packets.push(pkt),
                Inner::Dropped(reason) => opened.drops.push(reason),
            }
        }
    }

    /// As [`open`](Self::open), but what is inside comes from [`next_opened`](Self::next_opened), at the latest when
    /// [`work`](Self::work) has been done. What is not ESP, and what can be refused at once, is in `opened`.
    pub fn submit_open(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        if self.crypto.is_full() {
            counters.count(Mib::XfrmInError);
            opened.drops.push(DropReason::CryptoQueueFull);
            return;
        }
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
        let Meta { link, mark, .. } = pkt.meta;
        let meta = Meta { link, mark, sec_path: pkt.meta.sec_path.clone(), ..Meta::default() };
        pkt.pull(payload_at);
        let mut storage = std::mem::take(&mut self.pieces);
        let mut pieces = Pieces::new(pkt, &mut storage);
        let mut train = Train { now, info: &info, meta: &meta, is_udp, held: 0, id_offset: 0, last: None };
        let mut left = len;
        loop {
            let n = left.min(size);
            left -= n;
            train.next(self, mem, &mut pieces, n, opened, counters);
            train.id_offset = train.id_offset.wrapping_add(id_step);
            if left == 0 {
                break;
            }
        }
        train.flush(self, &mut pieces);
        drop(pieces);
        self.pieces = storage;
        self.crypto.close_if_large(now);
    }

    /// What came out of the next ESP packet, in the order in which they were submitted. `None` when none is through.
    #[inline]
    pub fn next_opened(&mut self, mem: &Memory, now: Instant, counters: &mut Counters) -> Option<Inner> {
        loop {
            let Some(job) = &mut self.crypto.passing else {
                self.crypto.passing = Some(self.crypto.opening.pop()?);
                continue;
            };
            let Some(piece) = job.next() else {
                let done = self.crypto.passing.take().expect("just seen");
                self.crypto.spare_open.push(done.into_storage());
                continue;
            };
            return Some(pass(&mut self.sad, job, piece, mem, now).unwrap_or_else(|(mib, reason)| {
                counters.count(mib);
                Inner::Dropped(reason)
            }));
        }
    }

    /// What is known about the packet that [`next_opened`](Self::next_opened) gave last.
    ///
    /// # Panics
    /// When it gave none.
    pub fn inner_meta(&self) -> &Meta {
        &self.crypto.passing.as_ref().expect("a packet is passed on").outer.meta
    }
}

/// What becomes of a packet after the cipher (Linux `xfrm_input` from `lock` on).
#[inline]
fn pass(sad: &mut Sad, job: &mut OpenJob, piece: Piece, mem: &Memory, now: Instant) -> Result<Inner, Refused> {
    let Piece { mut inside, seq, id_offset, state } = piece;
    // Gone while the cipher was busy with it.
    let sa = sad.get_mut(job.sa).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))?;
    let (payload_len, next_header, sum) = match state {
        State::Open { payload_len, next_header, sum } => (payload_len, next_header, sum),
        State::Sealed | State::Forged => {
            sa.stats.failed += 1;
            return Err((Mib::XfrmInStateProtoError, DropReason::EspIcv));
        }
        State::Malformed => return Err((Mib::XfrmInStateProtoError, DropReason::EspFormat)),
    };
    if next_header == Protocol::NO_NEXT {
        return Err((Mib::XfrmInStateProtoError, DropReason::EspDummy));
    }
    // Those before it are counted only now.
    sad.admit_in(job.sa, now)?;
    let sa = sad.get_mut(job.sa).expect("just there");
    sa.replay.mark(seq).map_err(|why| refuse(sa, why))?;
    sa.used(now, 1, payload_len.into());
    match sa.mode {
        Mode::Tunnel => {
            job.outer.meta.csum = decap::tunnel(sa, &job.outer.info, &mut inside, next_header, sum)?;
            Ok(Inner::Plain(inside))
        }
        Mode::Transport => {
            job.outer.meta.csum = Csum::None;
            job.outer.transport(mem, inside, next_header, id_offset).map(Inner::Packet)
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

/// A train that is taken in, packet by packet.
struct Train<'a> {
    now: Instant,
    info: &'a Info,
    meta: &'a Meta,
    is_udp: bool,
    /// Bytes at the front that are admitted, and lie in one piece.
    held: usize,
    /// By how much the IPv4 identification of the packet at hand is above that of the headers.
    id_offset: u16,
    /// The SA of the packet before.
    last: Option<(Spi, SaId)>,
}

impl Train<'_> {
    /// Takes in the next `n` bytes, as what they are.
    #[inline]
    fn next(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        n: usize,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        if !pieces.has_in_place(self.held + n) {
            self.flush(ipsec, pieces);
        }
        let mut front = [0; Header::LEN + 8];
        let front = &mut front[..n.min(Header::LEN + 8)];
        pieces.peek(self.held, front);
        let kind = if self.is_udp { kind(&front[..n.min(Header::LEN + 1)]) } else { Kind::Esp };
        match kind {
            Kind::Esp => {
                if let Err((mib, reason)) = self.admit(ipsec, mem, pieces, front, n) {
                    self.flush(ipsec, pieces);
                    pieces.skip(n);
                    counters.count(mib);
                    opened.drops.push(reason);
                }
            }
            Kind::Keepalive => {
                self.flush(ipsec, pieces);
                pieces.skip(n);
                opened.keepalives += 1;
            }
            Kind::NotEsp => {
                self.flush(ipsec, pieces);
                match decap::not_esp(mem, self.info, &ipsec.headers, self.id_offset, pieces, n) {
                    Ok(mut pkt) => {
                        pkt.meta = Meta { csum: Csum::Unnecessary, ..self.meta.clone() };
                        opened.not_esp.push(pkt);
                    }
                    Err(reason) => opened.drops.push(reason),
                }
            }
        }
    }

    /// Finds the SA of a packet that begins with `front`, and lets it wait for the cipher.
    #[inline]
    fn admit(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        front: &[u8],
        n: usize,
    ) -> Result<(), Refused> {
        let (id, seq) = self.find(&mut ipsec.sad, front, n)?;
        let job = ipsec.crypto.collecting.as_ref();
        let goes_on = job.is_some_and(|job| self.held > 0 && job.sa == id || job.is_for(id, &ipsec.headers, self.meta));
        if !goes_on {
            self.flush(ipsec, pieces);
            ipsec.crypto.close(self.now);
        }
        if self.held == 0 {
            pieces.make_writable(mem, n).map_err(|reason| (Mib::XfrmInError, reason))?;
        }
        if ipsec.crypto.collecting.is_none() {
            let sa = ipsec.sad.get(id).expect("just found");
            let storage = ipsec.crypto.spare_open.pop().unwrap_or_default();
            let meta = self.meta.clone();
            ipsec.crypto.collecting = Some(OpenJob::new(sa, *self.info, &ipsec.headers, self.is_udp, meta, storage));
        }
        let job = ipsec.crypto.collecting.as_mut().expect("just made");
        let id_offset = self.info.id.wrapping_sub(job.outer.info.id).wrapping_add(self.id_offset);
        job.push(n, seq, id_offset);
        self.held += n;
        Ok(())
    }

    /// Says which SA a packet is of and what its whole sequence number may be, from what is in clear.
    #[inline]
    fn find(&mut self, sad: &mut Sad, front: &[u8], n: usize) -> Result<(SaId, u64), Refused> {
        let header = Header::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, why.into()))?;
        if self.meta.sec_path.is_full() {
            return Err((Mib::XfrmInBufferError, DropReason::PolicyDepth));
        }
        let id = match self.last {
            Some((spi, id)) if spi == header.spi() => Some(id),
            _ => sad.by_spi(self.info.dst, header.spi(), self.meta.mark),
        };
        let id = id.ok_or_else(|| sad.larvae.refuse(self.info.dst, header.spi()))?;
        self.last = Some((header.spi(), id));
        let sa = sad.get_mut(id).ok_or((Mib::XfrmInNoStates, DropReason::EspNoState))?;
        if sa.dir == Some(SaDir::Out) {
            return Err((Mib::XfrmInStateDirError, DropReason::EspDirection));
        }
        sa.check_valid()?;
        if sa.encap.is_some() != self.is_udp {
            return Err((Mib::XfrmInStateMismatch, DropReason::EspMismatch));
        }
        let seq = sa.replay.check(header.seq()).map_err(|why| refuse(sa, why))?;
        if n < Header::LEN + sa.cipher.iv_len() + TRAILER_LEN + sa.cipher.icv_len() {
            return Err((Mib::XfrmInStateProtoError, DropReason::EspTruncated));
        }
        sad.admit_in(id, self.now)?;
        Ok((id, seq))
    }

    /// Takes what is admitted off the front.
    fn flush(&mut self, ipsec: &mut Ipsec, pieces: &mut Pieces<'_>) {
        if let (1.., Some(job)) = (self.held, &mut ipsec.crypto.collecting) {
            job.push_buf(pieces.take(self.held));
        }
        self.held = 0;
    }
}

/// Counts a refused sequence number.
fn refuse(sa: &mut Sa, why: Replay) -> Refused {
    match why {
        Replay::Zero => {}
        Replay::Seen => sa.stats.replay += 1,
        Replay::TooOld => sa.stats.replay_window += 1,
    }
    (Mib::XfrmInStateSeqError, DropReason::EspReplay)
}

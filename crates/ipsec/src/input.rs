//! ESP on the way in: from a packet or a train, as it was received, to what is inside.
//!
//! Packets of a train are opened where they lie. Forged ones cost a look-up and the cipher's pass at most, and never a
//! copy before the SA is known. The order of checks and the counters are those of Linux's `xfrm_input` and `esp_input`.

mod decap;
mod inner;
mod run;

use std::convert::Infallible;
use std::ops::ControlFlow;

use base::{Counters, DropReason, Instant, Mib, SaId};
use offload::ip_headers;
use packet::{Csum, Cut, Memory, Meta, Packet};
use wire::esp::Header;
use wire::ip::Info;
use wire::{Protocol, Spi, udp};

use crate::config::{Mode, SaDir};
use crate::gateway::Ipsec;
use crate::nat::Mapping;
use crate::open_job::{OpenJob, Piece, State};
use crate::pieces::Pieces;
use crate::replay::Replay;
use crate::sa::Sa;
use crate::sad::Sad;

pub(crate) use decap::Untouched;
pub use inner::{Content, Inner, Taker};
pub use run::Run;

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

/// Bytes of a packet that are looked at before its cipher is.
const PEEK: usize = Header::LEN + 8;

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
    pub fn open(&mut self, mem: &Memory, now: Instant, mut pkt: Packet, opened: &mut Opened, counters: &mut Counters) {
        match ip_headers(mem, &mut pkt) {
            Ok(info) => self.submit_open(mem, now, pkt, &info, opened, counters),
            Err(reason) => refuse_headers(reason, opened, counters),
        }
        self.work(now);
        let all = self.pass_opened(mem, now, counters, |inner| {
            match inner {
                Inner::Content(content) => opened.packets.push(content.into_packet()),
                Inner::Dropped(reason, _) => opened.drops.push(reason),
            }
            ControlFlow::<Infallible>::Continue(())
        });
        let ControlFlow::Continue(()) = all;
        self.rest();
    }

    /// As [`open`](Self::open), for a packet whose IP headers are `info` ([`ip_headers`]); but what is inside comes from
    /// [`pass_opened`](Self::pass_opened), at the latest when [`work`](Self::work) has been done. What is not ESP, and
    /// what can be refused at once, is in `opened`.
    pub fn submit_open(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        if self.crypto.is_full() {
            counters.count(Mib::XfrmInError);
            opened.drops.push(DropReason::CryptoQueueFull);
            return;
        }
        let payload_at = match esp_at(mem, &mut pkt, info) {
            Ok(at) => at,
            Err(reason) => return refuse_headers(reason, opened, counters),
        };
        let is_udp = info.protocol == Protocol::UDP;
        let len = pkt.len() - payload_at;
        match pkt.meta.cut.gso() {
            Some(gso) if usize::from(gso.size) < len => {
                let (size, id_step) = (usize::from(gso.size).max(1), u16::from(!gso.fixed_id));
                self.take_in_train(mem, now, pkt, info, payload_at, (size, id_step), opened, counters);
            }
            _ => self.take_in_one(mem, now, pkt, info, payload_at, is_udp, opened, counters),
        }
        self.crypto.close_if_large(now);
    }

    /// Tells whether something waits to be [passed on](Self::pass_opened).
    #[inline]
    pub fn has_opened(&self) -> bool {
        self.crypto.passing.is_some() || self.crypto.opening.has_first()
    }

    /// Hands in what was collected if this thread opens it and what goes on behind it can be opened at once.
    #[inline]
    pub fn close_here(&mut self, now: Instant) -> bool {
        let closes = self.crypto.is_here() && self.crypto.collecting.as_ref().is_some_and(|job| job.is_easy);
        if closes {
            self.crypto.close(now);
        }
        closes
    }

    /// Ends a burst: the next packet has nothing to do with those before it.
    pub fn rest(&mut self) {
        self.crypto.rest();
    }

    /// Takes in a packet that is no train.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a core is handed")]
    #[inline]
    fn take_in_one(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        payload_at: usize,
        is_udp: bool,
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        let len = pkt.len() - payload_at;
        let mut front = [0; PEEK];
        let front = &mut front[..len.min(PEEK)];
        pkt.read_at(payload_at, front);
        match if is_udp { kind(&front[..len.min(Header::LEN + 1)]) } else { Kind::Esp } {
            Kind::Esp => {}
            Kind::Keepalive => return opened.keepalives += 1,
            Kind::NotEsp => {
                pkt.meta.cut = Cut::Whole;
                return opened.not_esp.push(pkt);
            }
        }
        if !pkt.is_linear() || pkt.head_mut().is_none() {
            return self.take_in_train(mem, now, pkt, info, payload_at, (len.max(1), 0), opened, counters);
        }
        let arrival = Arrival { now, info, headers: &pkt.head()[..payload_at], meta: &pkt.meta, is_udp };
        match arrival.find(&mut self.sad, None, front, len) {
            Ok((id, seq)) => {
                arrival.join_or_begin(self, id).push(len, seq, info.id);
                let job = self.crypto.collecting.as_mut().expect("just joined");
                job.push_buf(pkt.into_head(), payload_at);
            }
            Err((mib, reason)) => {
                counters.count(mib);
                opened.drops.push(reason);
            }
        }
    }

    /// Takes in a train whose packets are of `size` bytes and have IPv4 identifications that go up by `id_step`.
    #[allow(clippy::too_many_arguments, reason = "each is one thing that a core is handed")]
    fn take_in_train(
        &mut self,
        mem: &Memory,
        now: Instant,
        mut pkt: Packet,
        info: &Info,
        payload_at: usize,
        (size, id_step): (usize, u16),
        opened: &mut Opened,
        counters: &mut Counters,
    ) {
        let mut headers = std::mem::take(&mut self.headers);
        headers.clear();
        headers.extend_from_slice(&pkt.head()[..payload_at]);
        let meta = pkt.meta.clone();
        pkt.pull(payload_at);
        let mut left = pkt.len();
        let mut storage = std::mem::take(&mut self.pieces);
        let mut pieces = Pieces::new(pkt, &mut storage);
        let is_udp = info.protocol == Protocol::UDP;
        let arrival = Arrival { now, info, headers: &headers, meta: &meta, is_udp };
        let mut train = Train { arrival, held: 0, has_job: false, id: info.id, last: None };
        loop {
            let n = left.min(size);
            left -= n;
            train.next(self, mem, &mut pieces, n, opened, counters);
            train.id = train.id.wrapping_add(id_step);
            if left == 0 {
                break;
            }
        }
        train.flush(self, &mut pieces);
        drop(pieces);
        (self.pieces, self.headers) = (storage, headers);
    }

    /// Gives `each` what came out of ESP packets, in the order in which they were submitted, until none is through or
    /// `each` breaks off.
    #[inline]
    pub fn pass_opened<T>(
        &mut self,
        mem: &Memory,
        now: Instant,
        counters: &mut Counters,
        mut each: impl FnMut(Inner<'_>) -> ControlFlow<T>,
    ) -> ControlFlow<T> {
        let Self { sad, crypto, nat, .. } = self;
        loop {
            let Some(job) = &mut crypto.passing else {
                let Some(job) = crypto.opening.pop() else { return ControlFlow::Continue(()) };
                job.begin_passing();
                crypto.passing = Some(job);
                continue;
            };
            while let Some(piece) = job.next() {
                if let Some(sa) = sad.get_mut(job.sa).filter(|sa| sa.is_at_ease())
                    && job.outer.source().is_none_or(|source| sa.peer_is_at(source))
                    && sa.passes_plainly(job, piece.seq, piece.state, piece.inside.bytes(), now)
                {
                    each(Inner::Content(Content::new(piece.inside, &job.outer.meta)))?;
                    continue;
                }
                let passed = pass(sad, &mut nat.seen, job, piece, mem, now);
                if !nat.seen.is_empty() {
                    nat.follow_peers(sad);
                }
                match passed {
                    Ok(content) => each(Inner::Content(content))?,
                    Err((mib, reason)) => {
                        counters.count(mib);
                        each(Inner::Dropped(reason, job.outer.meta.link))?;
                    }
                }
            }
            if let Some(done) = crypto.passing.take() {
                if done.is_offloaded {
                    sad.advance_esn(done.sa);
                }
                crypto.keep(done);
            }
        }
    }
}

/// Counts a packet whose headers say nothing that ESP could be behind.
fn refuse_headers(reason: DropReason, opened: &mut Opened, counters: &mut Counters) {
    counters.count(Mib::XfrmInHdrError);
    opened.drops.push(reason);
}

/// What becomes of a packet after the cipher (Linux `xfrm_input` from `lock` on).
#[inline]
fn pass<'j>(
    sad: &mut Sad,
    moves: &mut Vec<Mapping>,
    job: &'j mut OpenJob,
    piece: Piece,
    mem: &Memory,
    now: Instant,
) -> Result<Content<'j>, Refused> {
    let sa = match piece.state {
        // Those before it are counted only now, and the SA may have gone while the cipher was busy.
        State::Open { next_header, .. } if next_header != Protocol::NO_NEXT => sad.admit_in(job.sa, now)?,
        _ => sad.get_mut(job.sa).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))?,
    };
    accept(sa, moves, job, piece, mem, now)
}

/// As [`pass`], for a packet that its SA admits.
#[inline]
fn accept<'j>(
    sa: &mut Sa,
    moves: &mut Vec<Mapping>,
    job: &'j mut OpenJob,
    piece: Piece,
    mem: &Memory,
    now: Instant,
) -> Result<Content<'j>, Refused> {
    let Piece { seq, id, state, inside: mut buf } = piece;
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
    let is_newest = seq > sa.replay.top() || sa.replay.size() == 0;
    sa.replay.mark(seq).map_err(|why| refuse(sa, why))?;
    if let Some(source) = job.outer.source() {
        moves.extend(sa.came_from(now, source, is_newest));
    }
    sa.used(now, 1, payload_len.into());
    let OpenJob { outer, untouched, .. } = job;
    let front = match sa.mode {
        Mode::Tunnel => {
            outer.meta.csum = decap::tunnel(sa, &outer.info, &mut buf, next_header, sum, untouched)?;
            None
        }
        Mode::Transport => outer.transport(mem, &mut buf, next_header, id)?,
    };
    Ok(Content { front, buf, meta: &outer.meta })
}

impl Sa {
    /// Notes the opened packet that `inside` is from, if it is TCP in a tunnel about which nothing is changed: there is
    /// nothing else to do for it.
    #[inline]
    fn passes_plainly(&mut self, job: &mut OpenJob, seq: u64, state: State, inside: &[u8], now: Instant) -> bool {
        let Some(sum) = job.plain_sum(state, inside) else { return false };
        let is_new = self.replay.mark(seq).is_ok();
        if is_new {
            self.used(now, 1, inside.len() as u64);
            job.outer.meta.csum = Csum::Complete(sum);
        }
        is_new
    }
}

/// Finds where ESP begins, or UDP's payload, and cuts off what comes behind it.
#[inline]
fn esp_at(mem: &Memory, pkt: &mut Packet, info: &Info) -> Result<usize, DropReason> {
    if info.fragment.is_some() {
        return Err(DropReason::FragmentNotReassembled);
    }
    match info.protocol {
        Protocol::ESP => Ok(info.header_len),
        Protocol::UDP => {
            let payload_at = info.header_len + udp::Header::LEN;
            if !pkt.may_pull(mem, payload_at)? {
                return Err(DropReason::TransportHeader);
            }
            let udp = udp::Udp::parse_head(info.payload(pkt.head()), info.payload_len())?;
            pkt.trim(payload_at + udp.payload_len());
            Ok(payload_at)
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

/// What a packet or a train arrived with.
#[derive(Clone, Copy)]
struct Arrival<'a> {
    now: Instant,
    info: &'a Info,
    /// IP headers, and UDP's if there is one.
    headers: &'a [u8],
    meta: &'a Meta,
    is_udp: bool,
}

impl Arrival<'_> {
    /// Says which SA a packet is of and what its whole sequence number may be, from what is in clear. `last` is the SA of
    /// the packet before.
    #[inline]
    fn find(&self, sad: &mut Sad, last: Option<(Spi, SaId)>, front: &[u8], n: usize) -> Result<(SaId, u64), Refused> {
        let header = Header::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, why.into()))?;
        if self.meta.sec_path.is_full() {
            return Err((Mib::XfrmInBufferError, DropReason::PolicyDepth));
        }
        let id = match last {
            Some((spi, id)) if spi == header.spi() => Some(id),
            _ => sad.by_spi(self.info.dst, header.spi(), self.meta.mark),
        };
        let id = id.ok_or_else(|| sad.larvae.refuse(self.info.dst, header.spi()))?;
        self.admit(sad, id, front, n).map(|seq| (id, seq))
    }

    /// Says whether a packet may be one of that SA, and what its whole sequence number may be.
    #[inline]
    fn admit(&self, sad: &mut Sad, id: SaId, front: &[u8], n: usize) -> Result<u64, Refused> {
        let header = Header::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, why.into()))?;
        let sa = sad.get_mut(id).ok_or((Mib::XfrmInNoStates, DropReason::EspNoState))?;
        if sa.dir == Some(SaDir::Out) {
            return Err((Mib::XfrmInStateDirError, DropReason::EspDirection));
        }
        sa.check_valid()?;
        if sa.encap.is_some() != self.is_udp {
            return Err((Mib::XfrmInStateMismatch, DropReason::EspMismatch));
        }
        if sa.offload.is_some() || self.meta.esp.is_some() {
            sa.judge(self.meta.link, self.meta.esp)?;
        }
        let seq = sa.replay.check(header.seq()).map_err(|why| refuse(sa, why))?;
        if n < sa.shortest() {
            return Err((Mib::XfrmInStateProtoError, DropReason::EspTruncated));
        }
        if !sa.is_at_ease() {
            sad.look_closely(id, self.now)?;
        }
        Ok(seq)
    }

    /// The job for packets of that SA that arrive like this one: the one that is collected, or a new one.
    #[inline]
    fn join_or_begin<'i>(&self, ipsec: &'i mut Ipsec, id: SaId) -> &'i mut OpenJob {
        let Ipsec { sad, crypto, .. } = ipsec;
        if !crypto.collecting.as_ref().is_some_and(|job| job.is_for(id, self.headers, self.meta)) {
            crypto.close(self.now);
            let sa = sad.get(id).expect("just found");
            let storage = crypto.spare_open.pop().unwrap_or_default();
            crypto.collecting = Some(OpenJob::new(sa, *self.info, self.headers, self.is_udp, self.meta, storage));
        }
        crypto.collecting.as_mut().expect("just made")
    }
}

/// A train that is taken in, packet by packet.
struct Train<'a> {
    arrival: Arrival<'a>,
    /// Bytes at the front that are admitted, and lie in one piece.
    held: usize,
    /// Whether the job that is collected is for packets like the one before.
    has_job: bool,
    /// The IPv4 identification of the packet at hand.
    id: u16,
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
        let mut front = [0; PEEK];
        let front = &mut front[..n.min(PEEK)];
        pieces.peek(self.held, front);
        let Arrival { info, headers, meta, is_udp, .. } = self.arrival;
        match if is_udp { kind(&front[..n.min(Header::LEN + 1)]) } else { Kind::Esp } {
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
                match decap::not_esp(mem, info, headers, self.id, pieces, n) {
                    Ok(mut pkt) => {
                        pkt.meta = Meta { csum: Csum::Unnecessary, cut: Cut::Whole, esp: None, ..meta.clone() };
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
        let (id, seq) = self.arrival.find(&mut ipsec.sad, self.last, front, n)?;
        if self.last.is_none_or(|(_, last)| last != id) {
            self.flush(ipsec, pieces);
            self.last = Header::ref_from(front).ok().map(|header| (header.spi(), id));
            self.has_job = false;
        }
        if self.held == 0 && !pieces.join_in_place(n) {
            let opens_elsewhere = || ipsec.sad.get(id).is_some_and(|sa| sa.cipher.opens_elsewhere());
            if self.arrival.meta.esp.is_none() && opens_elsewhere() {
                return self.admit_pieces(ipsec, mem, pieces, (id, seq), n).map_err(|why| (Mib::XfrmInError, why));
            }
            pieces.make_writable(mem, n).map_err(|reason| (Mib::XfrmInError, reason))?;
        }
        if !self.has_job {
            self.arrival.join_or_begin(ipsec, id);
            self.has_job = true;
        }
        ipsec.crypto.collecting.as_mut().expect("begun with the first that is held").push(n, seq, self.id);
        self.held += n;
        if ipsec.crypto.has_task() {
            self.flush(ipsec, pieces);
            ipsec.crypto.close(self.arrival.now);
            self.has_job = false;
        }
        Ok(())
    }

    /// Lets a packet wait for a cipher that reads it in the pieces in which it came, and writes it to a page of its own.
    #[cold]
    fn admit_pieces(
        &mut self,
        ipsec: &mut Ipsec,
        mem: &Memory,
        pieces: &mut Pieces<'_>,
        (id, seq): (SaId, u64),
        n: usize,
    ) -> Result<(), DropReason> {
        let mut whole = mem.take(Memory::HEADROOM, n)?;
        whole.put(n).ok_or(DropReason::NoMemory)?;
        ipsec.crypto.close(self.arrival.now);
        let job = self.arrival.join_or_begin(ipsec, id);
        job.push(n, seq, self.id);
        job.push_buf(whole, 0);
        pieces.move_to(n, job.pieces_mut());
        ipsec.crypto.close(self.arrival.now);
        self.has_job = false;
        Ok(())
    }

    /// Takes what is admitted off the front.
    fn flush(&mut self, ipsec: &mut Ipsec, pieces: &mut Pieces<'_>) {
        if let (1.., Some(job)) = (self.held, &mut ipsec.crypto.collecting) {
            job.push_buf(pieces.take(self.held), 0);
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

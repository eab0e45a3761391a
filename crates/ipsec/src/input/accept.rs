//! Packets after decryption: replay window, counters and decapsulation (Linux `xfrm_input` from `lock` on).

use std::ops::ControlFlow;

use base::{DropReason, Instant, Mib};
use packet::{Buf, Csum, Memory};
use wire::Protocol;
use xfrm::Mode;

use super::decap;
use super::decrypted::{DecryptSink, InnerPacket};
use super::refused::{Uncounted, refuse};
use crate::open_job::{OpenJob, Piece, PieceState};
use crate::sa::{Mapping, Sa};
use crate::sad::Sad;

/// Gives `sink` the packets of a job for which decapsulation [is a no-op](Sa::pass_noop_decap), up to the first other
/// one, which is returned, or until `sink` breaks off.
#[inline]
pub(super) fn pass_plain<T: DecryptSink>(
    sad: &mut Sad,
    job: &mut OpenJob,
    mem: &Memory,
    now: Instant,
    sink: &mut T,
) -> ControlFlow<T::Break, Option<Piece>> {
    let source = job.outer.source();
    let mut sa = sad.get_mut(job.sa).filter(|sa| source.is_none_or(|source| sa.peer_is_at(source)));
    while let Some(mut piece) = job.next() {
        let is_noop_decap = sa.as_deref_mut().is_some_and(|sa| {
            sa.may_skip_admission()
                && sa.pass_noop_decap(job, (piece.seq, piece.id, piece.state), &mut piece.inside, mem, now)
        });
        if !is_noop_decap {
            return ControlFlow::Continue(Some(piece));
        }
        sink.take_plain(piece.inside, &job.outer.meta)?;
    }
    ControlFlow::Continue(None)
}

/// Processing of a packet after decryption (Linux `xfrm_input` from `lock` on).
#[inline]
pub(super) fn pass<'j>(
    sad: &mut Sad,
    moves: &mut Vec<Mapping>,
    job: &'j mut OpenJob,
    piece: Piece,
    mem: &Memory,
    now: Instant,
) -> Result<InnerPacket<'j>, Uncounted> {
    let sa = match piece.state {
        // Earlier packets are counted only now, and the SA may have been removed during decryption.
        PieceState::Open { next_header, .. } if next_header != Protocol::NO_NEXT => sad.admit_in(job.sa, now)?,
        _ => sad.get_mut(job.sa).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))?,
    };
    accept(sa, moves, job, piece, mem, now)
}

/// As [`pass`], for a packet that its SA admits.
#[inline]
pub(super) fn accept<'j>(
    sa: &mut Sa,
    moves: &mut Vec<Mapping>,
    job: &'j mut OpenJob,
    piece: Piece,
    mem: &Memory,
    now: Instant,
) -> Result<InnerPacket<'j>, Uncounted> {
    let Piece { seq, id, state, inside: mut buf, .. } = piece;
    let (payload_len, next_header, sum) = match state {
        PieceState::Open { payload_len, next_header, sum } => (payload_len, next_header, sum),
        PieceState::Sealed | PieceState::Forged => {
            //= RFC 4303 §3.4.4.1 wrong-icv: a packet with a wrong ICV is dropped and counted
            sa.stats.failed += 1;
            return Err((Mib::XfrmInStateProtoError, DropReason::EspIcv));
        }
        PieceState::Malformed => return Err((Mib::XfrmInStateProtoError, DropReason::EspFormat)),
    };
    //= RFC 4303 §2.6 dummy: a packet whose next header is 59 is a dummy, and is dropped without an answer
    if next_header == Protocol::NO_NEXT {
        return Err((Mib::XfrmInStateProtoError, DropReason::EspDummy));
    }
    let is_newest = seq > sa.replay.top() || sa.replay.size() == 0;
    //= RFC 4303 §3.4.3 window-after-icv: the window moves only for a packet with a valid ICV
    sa.replay.mark(seq).map_err(|why| refuse(sa, why))?;
    if let Some(source) = job.outer.source() {
        moves.extend(sa.came_from(now, source, is_newest));
    }
    sa.used(now, 1, payload_len.into());
    let OpenJob { outer, noop_decap, .. } = job;
    let front = match sa.mode {
        Mode::Tunnel => {
            outer.meta.csum = decap::tunnel(sa, &outer.info, &mut buf, next_header, sum, noop_decap)?;
            None
        }
        Mode::Transport => outer.transport(mem, &mut buf, next_header, sum, id)?,
    };
    Ok(InnerPacket { front, buf, meta: &outer.meta })
}

impl Sa {
    /// Accounts for a decrypted packet that needs [no more than its sum](OpenJob::is_noop_decap), and puts its IP
    /// headers in front of it again if they were outside of ESP.
    #[expect(clippy::inline_always, reason = "a packet that is handed over has to be written and read once more")]
    #[inline(always)]
    pub(super) fn pass_noop_decap(
        &mut self,
        job: &mut OpenJob,
        (seq, id, state): (u64, u16, PieceState),
        inside: &mut Buf,
        mem: &Memory,
        now: Instant,
    ) -> bool {
        if !job.is_noop_decap(self.mode, state, inside) {
            return false;
        }
        if self.replay.mark(seq).is_err() {
            return false;
        }
        self.used(now, 1, inside.len() as u64);
        match self.mode {
            Mode::Tunnel => job.outer.meta.csum = Csum::Complete(state.sum_of(inside.bytes())),
            Mode::Transport => {
                let len = job.outer.info.header_len;
                let has_room = job.outer.push_own(mem, inside, Protocol::TCP, id);
                debug_assert!(has_room, "checked with the other conditions");
                // The payload first: a load of the headers, which were just stored, would stall.
                let (headers, payload) = inside.bytes().split_at(len);
                job.outer.meta.csum = job.outer.complete(headers, state.sum_of(payload));
            }
        }
        true
    }
}

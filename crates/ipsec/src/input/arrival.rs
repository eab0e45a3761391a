//! Arrival of ESP: look-up of a packet's SA, and the checks before decryption.

use base::{DropReason, Instant, Mib, SaId, ShardId};
use packet::Meta;
use wire::Spi;
use wire::esp::EspHeader;
use wire::ip::Info;
use xfrm::SaDir;

use super::refused::{Uncounted, refuse};
use crate::ipsec::Ipsec;
use crate::open_job::{OpenJob, Storage};
use crate::sad::Sad;

/// Reason for which a packet is not decrypted here.
pub(super) enum NotHere {
    /// This shard owns the packet's SA.
    Elsewhere(ShardId),
    /// It is dropped.
    Refused(Uncounted),
}

impl From<Uncounted> for NotHere {
    fn from(why: Uncounted) -> Self {
        Self::Refused(why)
    }
}

/// Metadata of the received packet or train.
#[derive(Clone, Copy)]
pub(super) struct Arrival<'a> {
    pub(super) now: Instant,
    pub(super) info: &'a Info,
    /// IP headers, and UDP header if there is one.
    pub(super) headers: &'a [u8],
    pub(super) meta: &'a Meta,
    pub(super) is_udp: bool,
}

impl Arrival<'_> {
    /// Finds a packet's SA and its possible whole sequence number, from its clear fields. `last` is the SA of the
    /// packet before.
    #[inline]
    pub(super) fn find(
        &self,
        sad: &mut Sad,
        last: Option<(Spi, SaId)>,
        front: &[u8],
        n: usize,
    ) -> Result<(SaId, u64), NotHere> {
        let header = EspHeader::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, DropReason::from(why)))?;
        if self.meta.sec_path.is_full() {
            return Err((Mib::XfrmInBufferError, DropReason::PolicyDepth).into());
        }
        let id = match last {
            Some((spi, id)) if spi == header.spi() => Some(id),
            _ => sad.by_spi(self.info.dst, header.spi(), self.meta.mark),
        };
        let id = id.ok_or_else(|| sad.larvae.refuse(self.info.dst, header.spi(), self.meta.mark))?;
        self.admit(sad, id, front, n).map(|seq| (id, seq))
    }

    /// Checks that a packet may be one of this SA, and finds its possible whole sequence number.
    #[inline]
    fn admit(&self, sad: &mut Sad, id: SaId, front: &[u8], n: usize) -> Result<u64, NotHere> {
        let header = EspHeader::ref_from(front).map_err(|why| (Mib::XfrmInHdrError, DropReason::from(why)))?;
        let place = sad.place;
        let sa = sad.get_mut(id).ok_or((Mib::XfrmInNoStates, DropReason::EspNoState))?;
        if let Some(owner) = place.elsewhere(sa.owner()) {
            return Err(NotHere::Elsewhere(owner));
        }
        //= RFC 4301 §4.1 simplex: an SA has one direction: a received packet for an outbound SA is dropped
        if sa.dir == Some(SaDir::Out) {
            return Err((Mib::XfrmInStateDirError, DropReason::EspDirection).into());
        }
        sa.check_valid()?;
        if sa.encap.is_some() != self.is_udp {
            return Err((Mib::XfrmInStateMismatch, DropReason::EspMismatch).into());
        }
        if sa.offload.is_some() || self.meta.esp.is_some() {
            sa.check_offload(self.meta.origin.port(), self.meta.esp)?;
        }
        let seq = sa.replay.check(header.seq()).map_err(|why| refuse(sa, why))?;
        if n < sa.shortest() {
            return Err((Mib::XfrmInStateProtoError, DropReason::EspTruncated).into());
        }
        if !sa.may_skip_admission() {
            sad.admit_checked(id, self.now)?;
        }
        Ok(seq)
    }

    /// Job for packets of this SA that arrive like this one: the open batch, or a new one.
    #[inline]
    pub(super) fn join_or_begin<'i>(&self, ipsec: &'i mut Ipsec, id: SaId) -> &'i mut OpenJob {
        let Ipsec { sad, crypto, .. } = ipsec;
        if let Some(job) = crypto.batcher.find(|job| job.sa == id) {
            if job.is_for(id, self.headers, self.meta) {
                return crypto.batcher.latest_mut().expect("just found");
            }
            crypto.close_latest(self.now);
        }
        let sa = sad.get(id).expect("just found");
        let storage = crypto.spare_open.pop().unwrap_or_else(Storage::with_room);
        crypto.begin(self.now, OpenJob::new(sa, *self.info, self.headers, self.is_udp, self.meta, storage))
    }
}

//! Admission: whether an SA may be used for one more packet; segment-by-segment sealing of a fat packet that may reach
//! a limit.

use base::{Counters, DropReason, Instant, Mib, SaId};
use offload::{Features, gso};
use packet::{Memory, Packet};
use wire::esp::{EspHeader, TRAILER_LEN};

use crate::ipsec::Ipsec;
use crate::sa::{Expired, Sa, State};
use crate::sad::Sad;

impl Sad {
    /// The SA, if one more packet may be received by it (Linux `xfrm_input`).
    ///
    /// # Errors
    /// Counter and reason of the refusal.
    #[inline]
    pub(crate) fn admit_in(&mut self, id: SaId, now: Instant) -> Result<&mut Sa, (Mib, DropReason)> {
        if !self.get(id).is_some_and(Sa::may_skip_admission) {
            self.admit_checked(id, now)?;
        }
        self.get_mut(id).ok_or((Mib::XfrmInStateInvalid, DropReason::EspNoState))
    }

    /// Slow path of [`admit_in`](Self::admit_in), for an SA that is [near its limits or not valid](Sa::may_skip_admission).
    #[cold]
    pub(crate) fn admit_checked(&mut self, id: SaId, now: Instant) -> Result<(), (Mib, DropReason)> {
        self.get(id).map_or(Ok(()), Sa::check_valid)?;
        self.admit(id, now).map_err(|Expired| (Mib::XfrmInStateExpired, DropReason::EspExpired))
    }

    /// Tells whether one more packet may be sent by an SA (Linux `xfrm_output_one`).
    ///
    /// # Errors
    /// Counter and reason of the refusal.
    #[inline]
    pub(crate) fn admit_out(&mut self, id: SaId, now: Instant) -> Result<(), (Mib, DropReason)> {
        // The owner alone has its key and numbers. Elsewhere the caller hands the packet over.
        if self.get(id).is_some_and(|sa| sa.state != State::Valid || !self.owns(sa)) {
            return Err((Mib::XfrmOutStateInvalid, DropReason::EspState));
        }
        self.admit(id, now).map_err(|Expired| (Mib::XfrmOutStateExpired, DropReason::EspExpired))
    }
}

impl Sa {
    /// Minimum length of its ESP packets, from the SPI on.
    #[inline]
    pub(crate) fn shortest(&self) -> usize {
        EspHeader::LEN + self.cipher.iv_len() + TRAILER_LEN + self.cipher.icv_len()
    }

    /// Tells whether one more packet may use it on the fast path.
    #[inline]
    pub(crate) fn may_skip_admission(&self) -> bool {
        self.state == State::Valid && self.is_far_from_limits()
    }

    /// Checks its state, but not its limits.
    ///
    /// # Errors
    /// Counter and reason of the refusal.
    pub(crate) fn check_valid(&self) -> Result<(), (Mib, DropReason)> {
        match self.state {
            State::Valid => Ok(()),
            _ => Err((Mib::XfrmInStateInvalid, DropReason::EspState)),
        }
    }

    /// Tells whether a hard limit may be reached before the last segment of a fat packet.
    fn may_end_within(&self, pkt: &Packet) -> bool {
        let segs = pkt.meta.cut.segs();
        // Headers repeat in each segment, and none of them is longer than this.
        let bytes = self.stats.bytes.saturating_add(pkt.len() as u64).saturating_add(segs * 128);
        let packets = self.stats.packets.saturating_add(segs);
        let is_far = bytes < self.next_bytes && packets < self.next_packets;
        segs > 1 && !is_far && self.age.lifetime.hard.are_reached(bytes, packets)
    }
}

impl Ipsec {
    /// Tells whether a fat packet is to be sealed segment by segment, because its SA may end in its middle.
    #[inline]
    pub(crate) fn may_end_within(&self, sa: SaId, pkt: &Packet) -> bool {
        self.sad.get(sa).is_some_and(|sa| sa.may_end_within(pkt))
    }

    /// Seals the segments of a fat packet one by one, by `seal`.
    ///
    /// # Errors
    /// The reason of the first segment that was refused; later segments are dropped with it.
    #[cold]
    pub(crate) fn one_by_one(
        &mut self,
        mem: &Memory,
        pkt: Packet,
        counters: &mut Counters,
        mut seal: impl FnMut(&mut Self, Packet, &mut Counters) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        let mut segments = Vec::new();
        gso::segment(mem, &Features::BY_REFERENCE, pkt, 0, &mut segments)
            .inspect_err(|_| counters.count(Mib::XfrmOutError))?;
        let mut result = Ok(());
        for segment in segments {
            // Each segment is admitted by itself, as on Linux, so that each is counted.
            result = result.and(seal(self, segment, counters));
        }
        result
    }
}

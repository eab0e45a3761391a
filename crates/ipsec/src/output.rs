//! ESP on the way out: from a packet, fat or not, to sealed frames.

use base::{Counters, DropReason, Instant, Mib, SaId};
use packet::{Memory, Packet};

use crate::ipsec::Ipsec;
use crate::seal_job::{SealJob, Train};

impl Ipsec {
    /// Protects `pkt`, which begins with its IP header, by an SA that [`lookup`](Self::lookup) named, and appends the
    /// resulting packets to `out`. It is the last step but for a link's header. `mtu` is that of the path, up to which
    /// traffic flow confidentiality pads (RFC 4303 §2.7).
    ///
    /// # Errors
    /// The reason, which is counted; `out` is unchanged.
    #[allow(clippy::too_many_arguments, reason = "cores get their state and the packet as parameters")]
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
        if self.may_end_within(sa, &pkt) {
            return self.one_by_one(mem, pkt, counters, |ipsec, pkt, counters| {
                ipsec.seal(mem, now, sa, pkt, train, mtu, out, counters)
            });
        }
        let mut job = self.seal_job(mem, now, sa, pkt, train, mtu, counters)?;
        job.run();
        self.crypto.spare_pages.push(job.finish(mem, out));
        Ok(())
    }

    /// As [`seal`](Self::seal), but the resulting packets come from [`next_sealed`](Self::next_sealed), at the latest
    /// after [`work`](Self::work).
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    #[allow(clippy::too_many_arguments, reason = "cores get their state and the packet as parameters")]
    pub fn submit_seal(
        &mut self,
        mem: &Memory,
        now: Instant,
        sa: SaId,
        pkt: Packet,
        train: Train,
        mtu: usize,
        counters: &mut Counters,
    ) -> Result<(), DropReason> {
        if self.crypto.is_seal_full() {
            counters.count(Mib::XfrmOutNoQueueSpace);
            return Err(DropReason::CryptoQueueFull);
        }
        if self.may_end_within(sa, &pkt) {
            return self.one_by_one(mem, pkt, counters, |ipsec, pkt, counters| {
                ipsec.submit_seal(mem, now, sa, pkt, train, mtu, counters)
            });
        }
        let job = self.seal_job(mem, now, sa, pkt, train, mtu, counters)?;
        self.crypto.seal(now, job);
        Ok(())
    }

    /// Tells whether [`seal`](Self::seal) keeps the order of packets: this thread encrypts, and no submitted packet is left. It
    /// saves the move of a job into the queue and out of it.
    #[inline]
    pub fn seals_at_once(&self) -> bool {
        self.crypto.is_inline() && self.crypto.sealing.len() == 0
    }

    /// Number of packets that were submitted to be sealed and not taken yet.
    pub fn sealing(&self) -> usize {
        self.crypto.sealing.len()
    }

    /// Appends the result of the next packet, in the order of submission, to `out`. Tells whether one was finished.
    pub fn next_sealed(&mut self, mem: &Memory, out: &mut Vec<Packet>) -> bool {
        let Some(job) = self.crypto.sealing.pop() else { return false };
        self.crypto.spare_pages.push(job.finish(mem, out));
        true
    }

    #[allow(clippy::too_many_arguments, reason = "cores get their state and the packet as parameters")]
    fn seal_job(
        &mut self,
        mem: &Memory,
        now: Instant,
        sa: SaId,
        pkt: Packet,
        train: Train,
        mtu: usize,
        counters: &mut Counters,
    ) -> Result<SealJob, DropReason> {
        self.sad.admit_out(sa, now).map_err(|(mib, reason)| {
            counters.count(mib);
            reason
        })?;
        let Some(sa) = self.sad.get_mut(sa) else {
            counters.count(Mib::XfrmOutNoStates);
            return Err(DropReason::PolicyNoState);
        };
        let storage = self.crypto.spare_pages.pop().unwrap_or_default();
        let job = SealJob::new(sa, mem, pkt, train, mtu, storage).inspect_err(|&reason| {
            counters.count(match reason {
                DropReason::EspSequenceOverflow => Mib::XfrmOutStateSeqError,
                DropReason::EspMismatch => Mib::XfrmOutStateModeError,
                // Failures of ESP itself (Linux `esp_output`: ENOMEM, EMSGSIZE).
                DropReason::NoMemory | DropReason::PacketTooBig => Mib::XfrmOutStateProtoError,
                _ => Mib::XfrmOutError,
            });
        })?;
        let (packets, bytes) = job.protects();
        sa.used(now, packets, bytes);
        Ok(job)
    }
}

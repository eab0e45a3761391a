//! Offload decisions: for which packets a device does ESP, and fallback to software for a packet that its device does
//! not get.

use base::{Counters, DropReason, Instant, Mib, PortId, SaId};
use packet::{Esp, Packet};
use wire::ip::Info;
use xfrm::OffloadMode;

use crate::device::{Device, OffloadDecision, OffloadFacts, seed};
use crate::ipsec::Ipsec;
use crate::sa::Sa;
use crate::sad::Sad;

impl Ipsec {
    /// Sets or removes the offloading device of a link. SAs and policies on the previous one are removed. Packets
    /// queued for its work are in clear; the caller drops them.
    pub fn set_device(&mut self, link: PortId, device: Option<Box<dyn Device>>) {
        self.flush_device(link);
        self.sad.devices.set(link, device);
    }

    /// Removes the SAs and policies on a link's device, because the link is down or gone (Linux `xfrm_dev_down`).
    pub fn flush_device(&mut self, link: PortId) {
        for key in self.sad.devices.policies_of(link) {
            drop(self.remove_policy(&key));
        }
        self.sad.remove_offloaded(link);
    }

    /// Offload decision for a packet that leaves by `link`, for the last SA that it goes through (Linux `xfrm_output`,
    /// `xfrm_dev_offload_ok`). Refusals are counted.
    pub fn offload_decision(&self, link: PortId, facts: &OffloadFacts, counters: &mut Counters) -> OffloadDecision {
        let Some(offload) = self.sa(facts.sa).and_then(Sa::offload) else { return OffloadDecision::Software };
        let device = self.sad.devices.get(offload.dev);
        let ok = facts.fits && !facts.has_options && device.is_some_and(|device| device.offload_ok(facts));
        match offload.mode {
            OffloadMode::Crypto if ok && offload.dev == link && !facts.encap => OffloadDecision::Cipher,
            OffloadMode::Crypto => OffloadDecision::Software,
            OffloadMode::Packet if !ok => {
                counters.count(Mib::XfrmOutError);
                OffloadDecision::Refused(DropReason::EspDevice)
            }
            OffloadMode::Packet if offload.dev != link => OffloadDecision::Refused(DropReason::EspWrongDevice),
            OffloadMode::Packet => OffloadDecision::Device,
        }
    }

    /// Admits a packet to its SA for a device in packet mode, when it leaves by `link`.
    ///
    /// # Errors
    /// As [`admit_out`](crate::sad::Sad); counted.
    pub fn admit_to_device(&mut self, now: Instant, sa: SaId, counters: &mut Counters) -> Result<(), DropReason> {
        self.update_stats(sa);
        self.sad.admit_out(sa, now).map_err(|(mib, reason)| {
            counters.count(mib);
            reason
        })
    }

    /// Tells whether a packet with this mark may be sent by `link`, whose device [does ESP](offload::Features::esp).
    pub fn is_on_device(&self, esp: Esp, link: PortId) -> bool {
        let (sa, mode) = match esp {
            Esp::Seal { sa, .. } => (sa, OffloadMode::Crypto),
            Esp::Protect(sa) => (sa, OffloadMode::Packet),
            Esp::Opened { .. } => return false,
        };
        self.sa(sa).and_then(Sa::offload).is_some_and(|offload| (offload.dev, offload.mode) == (link, mode))
    }

    /// Software fallback for a packet that its device does not get: seals a packet that is laid out as ESP, with its IP
    /// header at `l3` (Linux `validate_xmit_xfrm`, `esp_xmit`), and clears its mark.
    ///
    /// # Errors
    /// [`DropReason::EspWrongDevice`] if only the device can do it, [`DropReason::PolicyNoState`] if the SA was
    /// removed.
    pub fn seal_in_software(&self, pkt: &mut Packet, l3: usize) -> Result<(), DropReason> {
        let Some(Esp::Seal { sa, high }) = pkt.meta.esp else { return Err(DropReason::EspWrongDevice) };
        let sa = self.sa(sa).ok_or(DropReason::PolicyNoState)?;
        let at = l3 + Info::parse(pkt.head().get(l3..).unwrap_or_default(), pkt.len().saturating_sub(l3))?.header_len;
        let frame = if pkt.is_linear() { pkt.head_mut() } else { None };
        let frame = frame.and_then(|head| head.get_mut(at..)).ok_or(DropReason::NoMemory)?;
        let iv = seed(frame, sa.cipher.iv_len()).ok_or(DropReason::EspTruncated)?;
        sa.cipher.seal(frame, iv, sa.flags.esn.then_some(high));
        pkt.meta.esp = None;
        Ok(())
    }

    /// Accounts for a packet of packet mode, which its device has decrypted, decapsulated and checked (Linux
    /// `XFRM_DEV_OFFLOAD_PACKET`). `false` if it is of crypto mode, and still ESP.
    ///
    /// # Errors
    /// The reason of the drop, which is counted.
    pub fn take_opened(&mut self, pkt: &mut Packet, counters: &mut Counters) -> Result<bool, DropReason> {
        let Some(Esp::Opened { sa, .. }) = pkt.meta.esp else { return Err(DropReason::EspDevice) };
        let link = pkt.meta.origin.port();
        let result = match self.sad.get_mut(sa) {
            None => Err((Mib::XfrmInStateInvalid, DropReason::EspNoState)),
            Some(it) if it.packet_device().is_none() => return Ok(false),
            Some(it) => it.check_offload(link, pkt.meta.esp),
        };
        let full = (Mib::XfrmInBufferError, DropReason::PolicyDepth);
        let result = result.and_then(|()| pkt.meta.sec_path.try_push(sa).map_err(|_| full));
        pkt.meta.esp = None;
        result.map(|()| true).map_err(|(mib, reason)| {
            counters.count(mib);
            reason
        })
    }

    /// Reads the counters of an SA in packet mode from its device.
    pub fn update_stats(&mut self, sa: SaId) {
        self.sad.update_stats(sa);
    }
}

impl Sad {
    /// Reads the counters of an SA in packet mode from its device.
    pub(crate) fn update_stats(&mut self, sa: SaId) {
        let Some(dev) = self.get(sa).and_then(Sa::packet_device) else { return };
        let stats = self.devices.packet_mode(dev).and_then(|device| device.stats(sa));
        if let (Some(stats), Some(sa)) = (stats, self.get_mut(sa)) {
            // Failures counted by this node are not in the device's counters.
            let failed = sa.stats.failed.max(stats.failed);
            sa.stats = crate::SaStats { failed, ..stats };
        }
    }
}

//! Packets whose ESP is a device's: which go to it, and what becomes of those that do not get there.

use base::{DropReason, Instant, LinkId, SaId};
use ipsec::Train;
use ipsec::device::{Device, Facts, Treatment};
use offload::ip_headers;
use packet::{Esp, Memory, Packet};

use crate::egress::{Leaving, wire_len};
use crate::ingress::Framing;
use crate::{Datapath, Turn};

impl Datapath {
    /// Lets a link have a device that offloads ESP, from now on, or none. What was on the one before is removed, SAs and
    /// policies, and what waits for its work is dropped: laid out as ESP, it is still in clear.
    pub fn set_device(&mut self, now: Instant, mem: &Memory, link: LinkId, device: Option<Box<dyn Device>>) {
        // What was taken in before was judged by what was so then.
        self.finish(now, mem);
        self.ipsec.set_device(link, device);
        self.seal_waiting(link);
    }

    /// Leaves a packet to the device that its last SA is on as far as that can do it, and seals it otherwise (Linux
    /// `xfrm_output`).
    #[cold]
    pub(crate) fn submit_offloaded(
        &mut self,
        turn: Turn<'_>,
        sa: SaId,
        mut pkt: Packet,
        train: Train,
        leaving: Leaving,
    ) -> Result<(), DropReason> {
        match self.treat(turn, sa, &mut pkt, leaving.hop.dev, leaving.mtu)? {
            Treatment::Software => self.submit(turn, sa, pkt, train, leaving),
            Treatment::Cipher => self.submit(turn, sa, pkt, Train::Inline, leaving),
            Treatment::Device => {
                self.emit(turn, pkt, leaving.hop);
                Ok(())
            }
            Treatment::Refused(reason) => Err(reason),
        }
    }

    /// Finds out who makes ESP of a packet that leaves by `link`, of whose path `mtu` bytes are known to fit, in the last SA
    /// that it goes through. One that the device does is marked for it.
    #[cold]
    pub(crate) fn treat(
        &mut self,
        turn: Turn<'_>,
        sa: SaId,
        pkt: &mut Packet,
        link: LinkId,
        mtu: usize,
    ) -> Result<Treatment, DropReason> {
        let info = ip_headers(turn.mem, pkt)?;
        let len = wire_len(pkt, &info);
        let (mtu, encap) = self.ipsec.sa(sa).map_or((0, None), |it| (it.inner_mtu(mtu), it.encap()));
        let has_options = info.header_len > info.version().header_len();
        let facts = Facts { sa, len, fits: len <= mtu, has_options, encap: encap.is_some() };
        let treatment = self.ipsec.treatment(link, &facts, &mut self.counters);
        if treatment == Treatment::Device {
            self.ipsec.admit_to_device(turn.now, sa, &mut self.counters)?;
            pkt.meta.esp = Some(Esp::Protect(sa));
        }
        Ok(treatment)
    }

    /// Sees to it that a packet with a mark for a device goes to that device, or has none any more (Linux
    /// `validate_xmit_xfrm`). Its IP header begins at `l3`.
    #[cold]
    pub(crate) fn direct(&mut self, link: LinkId, pkt: &mut Packet, l3: usize) -> Result<(), DropReason> {
        let Some(esp) = pkt.meta.esp else { return Ok(()) };
        let does_esp = self.ports.get(link).is_some_and(|port| port.config.features.esp);
        if does_esp && self.ipsec.is_on_device(esp, link) {
            return Ok(());
        }
        self.ipsec.seal_here(pkt, l3)
    }

    /// Does for what waits at a link the work of its device, which does it no more, or drops what nobody else can do.
    pub(crate) fn seal_waiting(&mut self, link: LinkId) {
        let Some(port) = self.ports.get_mut(link) else { return };
        let l3 = port.l3();
        for mut pkt in std::mem::take(port.take_tx()) {
            if let Err(reason) = self.direct(link, &mut pkt, l3) {
                self.drop(&pkt, reason);
            } else if let Some(port) = self.ports.get_mut(link) {
                port.take_tx().push(pkt);
            }
        }
    }

    /// Takes in a packet that a device has been at: ESP that it has opened, or what was inside.
    #[cold]
    pub(crate) fn receive_offloaded(&mut self, turn: Turn<'_>, mut pkt: Packet, framing: Framing) {
        match self.ipsec.take_opened(&mut pkt, &mut self.counters) {
            Ok(true) => return self.pass(turn, pkt),
            Ok(false) => {}
            Err(reason) => return self.drop(&pkt, reason),
        }
        match self.headers(turn, &mut pkt, framing) {
            // Its bytes are in clear: nobody but ESP may see it.
            Ok(info) if !self.is_our_esp(&pkt, &info) => self.drop(&pkt, DropReason::EspDevice),
            Ok(info) => self.open_esp(turn, pkt, &info),
            Err(reason) => self.drop(&pkt, reason),
        }
    }
}

//! ESP offload to devices: packets that a device seals, and software for those that it does not (Linux `xfrm_device.c`).

use base::{DropReason, Instant, LinkId, SaId};
use ipsec::Train;
use ipsec::device::{Device, Facts, Treatment};
use offload::ip_headers;
use packet::{Esp, Memory, Packet};

use super::xfrm::{self, PendingTx};
use crate::ip_packet::wire_len;
use crate::{Cx, Datapath, Next};

/// Leaves a packet to the device that its last SA is on as far as that can do it, and seals it otherwise (Linux
/// `xfrm_output`).
#[cold]
pub(crate) fn submit_offloaded(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    mut pkt: Packet,
    train: Train,
    pending: PendingTx,
) -> Result<(), DropReason> {
    match offload_decision(dp, cx, sa, &mut pkt, pending.hop.dev, pending.mtu)? {
        Treatment::Software => xfrm::submit(dp, cx, sa, pkt, train, pending),
        Treatment::Cipher => xfrm::submit(dp, cx, sa, pkt, Train::Inline, pending),
        // The device makes the header that would have to be translated.
        Treatment::Device if pending.hop.encap.is_some() => Err(DropReason::EspDevice),
        Treatment::Device => {
            dp.run_packet(cx, pkt, Next::Transmit(pending.hop));
            Ok(())
        }
        Treatment::Refused(reason) => Err(reason),
    }
}

/// Finds out who makes ESP of a packet that leaves by `link`, of whose path `mtu` bytes are known to fit, in the last SA
/// that it goes through. One that the device does is marked for it.
#[cold]
pub(crate) fn offload_decision(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    pkt: &mut Packet,
    link: LinkId,
    mtu: usize,
) -> Result<Treatment, DropReason> {
    let info = ip_headers(cx.mem, pkt)?;
    let len = wire_len(pkt, &info);
    let (mtu, encap) = dp.ipsec.sa(sa).map_or((0, None), |it| (it.inner_mtu(mtu), it.encap()));
    let has_options = info.header_len > info.version().header_len();
    let facts = Facts { sa, len, fits: len <= mtu, has_options, encap: encap.is_some() };
    let treatment = dp.ipsec.treatment(link, &facts, &mut dp.counters);
    if treatment == Treatment::Device {
        dp.ipsec.admit_to_device(cx.now, sa, &mut dp.counters)?;
        pkt.meta.esp = Some(Esp::Protect(sa));
    }
    Ok(treatment)
}

/// Sees to it that a packet with a mark for a device goes to that device, or has none any more (Linux
/// `validate_xmit_xfrm`). Its IP header begins at `l3`.
#[cold]
pub(crate) fn seal_unless_on_device(
    dp: &mut Datapath,
    link: LinkId,
    pkt: &mut Packet,
    l3: usize,
) -> Result<(), DropReason> {
    let Some(esp) = pkt.meta.esp else { return Ok(()) };
    let does_esp = dp.ports.get(link).is_some_and(|port| port.config.features.esp);
    if does_esp && dp.ipsec.is_on_device(esp, link) {
        return Ok(());
    }
    dp.ipsec.seal_here(pkt, l3)
}

/// Does for what waits at a link the work of its device, which does it no more, or drops what nobody else can do.
pub(crate) fn seal_waiting(dp: &mut Datapath, link: LinkId) {
    let Some(port) = dp.ports.get_mut(link) else { return };
    let l3 = port.l3();
    for mut pkt in std::mem::take(port.take_tx()) {
        if let Err(reason) = seal_unless_on_device(dp, link, &mut pkt, l3) {
            dp.count_drop(&pkt, reason);
        } else if let Some(port) = dp.ports.get_mut(link) {
            port.take_tx().push(pkt);
        }
    }
}

impl Datapath {
    /// Lets a link have a device that offloads ESP, from now on, or none. What was on the one before is removed, SAs and
    /// policies, and what waits for its work is dropped: laid out as ESP, it is still in clear.
    pub fn set_device(&mut self, now: Instant, mem: &Memory, link: LinkId, device: Option<Box<dyn Device>>) {
        // Packets in flight were judged by the configuration so far.
        self.finish(now, mem);
        self.ipsec.set_device(link, device);
        seal_waiting(self, link);
    }
}

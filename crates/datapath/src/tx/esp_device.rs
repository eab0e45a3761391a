//! ESP offload to devices: packets that a device encrypts, and the software fallback (Linux `xfrm_device.c`).

use base::{DropReason, PortId, SaId};
use ipsec::device::{OffloadDecision, OffloadFacts};
use offload::ip_headers;
use packet::{Esp, Packet};

use crate::ip_packet::wire_len;
use crate::{Cx, Datapath};

/// Decides whether the device or software makes ESP of a packet in its last SA, and marks a packet for the device. The packet
/// leaves by `link`, on a path of MTU `mtu`.
#[cold]
pub(crate) fn offload_decision(
    dp: &mut Datapath,
    cx: Cx<'_>,
    sa: SaId,
    pkt: &mut Packet,
    link: PortId,
    mtu: usize,
) -> Result<OffloadDecision, DropReason> {
    let info = ip_headers(cx.mem, pkt)?;
    let len = wire_len(pkt, &info);
    let (mtu, encap) = dp.ipsec.sa(sa).map_or((0, None), |it| (it.inner_mtu(mtu), it.encap()));
    let has_options = info.header_len > info.version().header_len();
    let facts = OffloadFacts { sa, len, fits: len <= mtu, has_options, encap: encap.is_some() };
    let decision = dp.ipsec.offload_decision(link, &facts, &mut dp.counters);
    if decision == OffloadDecision::Device {
        dp.ipsec.admit_to_device(cx.now, sa, &mut dp.counters)?;
        pkt.meta.esp = Some(Esp::Protect(sa));
    }
    Ok(decision)
}

/// Checks that a packet marked for a device goes to that device, and encrypts it in software otherwise (Linux
/// `validate_xmit_xfrm`). Its IP header begins at `l3`.
#[cold]
pub(crate) fn seal_unless_on_device(
    dp: &mut Datapath,
    link: PortId,
    pkt: &mut Packet,
    l3: usize,
) -> Result<(), DropReason> {
    let Some(esp) = pkt.meta.esp else { return Ok(()) };
    let does_esp = dp.ports.get(link).is_some_and(|port| port.config.features.esp);
    if does_esp && dp.ipsec.is_on_device(esp, link) {
        return Ok(());
    }
    dp.ipsec.seal_in_software(pkt, l3)
}

/// Encrypts the packets queued at a link for a device that is gone in software, and drops packets that only the device could encrypt.
pub(crate) fn seal_waiting(dp: &mut Datapath, link: PortId) {
    let Some(port) = dp.ports.get_mut(link) else { return };
    let l3 = port.l3();
    for mut pkt in std::mem::take(port.take_tx()) {
        if let Err(reason) = seal_unless_on_device(dp, link, &mut pkt, l3) {
            dp.count_drop(&pkt, reason).end();
        } else if let Some(port) = dp.ports.get_mut(link) {
            port.take_tx().push(pkt);
        }
    }
}

//! ESP offload to devices: packets that a device encrypts, and the software fallback (Linux `xfrm_device.c`).

use base::{DropReason, PortId, SaId};
use ipsec::device::{OffloadDecision, OffloadFacts};
use offload::ip_headers;
use packet::{Esp, Memory, Packet};

use crate::ip_packet::wire_len;
use crate::{Cx, Datapath, Device};

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

/// Passes a packet that is marked for a device to that device, if it is the one of this link; otherwise encrypts it in software and
/// returns it (Linux `validate_xmit_xfrm`). Its IP header begins at `l3`.
///
/// # Errors
/// As [`Ports::enqueue_for_device`](crate::Ports), or [`Ipsec::seal_in_software`](ipsec::Ipsec).
pub(super) fn put_or_seal(
    dp: &mut Datapath,
    mem: &Memory,
    link: PortId,
    mut pkt: Packet,
    l3: usize,
) -> Result<Option<Packet>, DropReason> {
    if is_on_device(dp, link, &pkt) {
        return dp.ports.enqueue_for_device(mem, link, pkt, l3).map(|()| None);
    }
    dp.ipsec.seal_in_software(&mut pkt, l3)?;
    Ok(Some(pkt))
}

/// Tells whether a packet is marked for the device of this link, and the link has it. A virtual device passes packets on to others.
fn is_on_device(dp: &Datapath, link: PortId, pkt: &Packet) -> bool {
    let port = dp.ports.get(link);
    port.is_some_and(|port| port.config.features.esp && port.device == Device::Link)
        && pkt.meta.esp.is_some_and(|esp| dp.ipsec.is_on_device(esp, link))
}

/// Encrypts the packets queued at a link for a device that is gone in software, and drops packets that only the device could encrypt.
pub(crate) fn seal_waiting(dp: &mut Datapath, link: PortId) {
    let Some(port) = dp.ports.get_mut(link) else { return };
    let l3 = port.l3();
    for mut pkt in std::mem::take(port.take_tx()) {
        let is_ready = pkt.meta.esp.is_none() || is_on_device(dp, link, &pkt);
        if !is_ready && let Err(reason) = dp.ipsec.seal_in_software(&mut pkt, l3) {
            dp.count_drop(&pkt, reason).end();
        } else if let Some(port) = dp.ports.get_mut(link) {
            port.take_tx().push(pkt);
        }
    }
}

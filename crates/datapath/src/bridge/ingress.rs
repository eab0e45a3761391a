//! Ingress of a bridged port: the tag goes into metadata, and the bridge decides (Linux `br_handle_frame`, `skb_vlan_untag`).

use base::{DropReason, LinkId, Origin};
use packet::{Csum, Packet};
use switch::{Frame, Verdict};
use wire::eth;

use super::{egress, reason_of};
use crate::{Carried, Cx, Datapath, rx, vlan};

/// Passes a frame, whose Ethernet header is in its head, to the bridge of its port. `false`: the frame is for the port's own
/// device, as if it were in no bridge.
///
/// # Errors
/// The bridge's [rule](super::reason_of) that drops it; [`DropReason::EthTruncated`] for half a tag; [`DropReason::VirtioHeader`]
/// for a checksum that covers the Ethernet header; [`DropReason::EspDevice`] for ESP that a device has decrypted in place.
pub(crate) fn receive(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: LinkId,
    link: LinkId,
    pkt: &mut Carried,
) -> Result<bool, DropReason> {
    if pkt.meta.esp.is_some() {
        return Err(DropReason::EspDevice);
    }
    match pkt.meta.csum {
        Csum::Partial { start, .. } if usize::from(start) < eth::Header::LEN => return Err(DropReason::VirtioHeader),
        Csum::Partial { .. } => {}
        // A guest's claim that its checksum is valid is not passed on to other stations.
        _ => pkt.meta.csum = Csum::None,
    }
    vlan::pop_tag(cx.mem, pkt)?;
    let frame = summary(pkt)?;
    let mut places = std::mem::take(&mut dp.bridges.egress);
    let verdict = dp.bridges.get_mut(own).map(|bridge| bridge.receive(cx.now, link, &frame, &mut places));
    let up = places.up;
    let result = match verdict {
        Some(Verdict::Forward) => {
            let mut pkt = pkt.take();
            if places.exits.is_empty() {
                Ok(up.map(|_| pkt))
            } else {
                let copy = up.map(|_| pkt.clone_shared());
                egress::send(dp, cx, &places, pkt);
                Ok(copy)
            }
        }
        Some(Verdict::LinkLocal) => Err(None),
        Some(Verdict::Drop(refusal)) => Err(Some(reason_of(refusal))),
        None => Err(Some(DropReason::LinkDown)),
    };
    dp.bridges.egress = places;
    match result {
        Ok(Some(mut pkt)) => {
            pkt.meta.vlan = up.and_then(|up| up.tag).map(|tci| tci.0);
            pkt.meta.origin = Origin::Port(own).into();
            if dp.ports.get(own).is_some_and(|port| port.up) {
                rx::receive(dp, cx, own, pkt);
            } else {
                dp.count_drop(&pkt, DropReason::LinkDown);
            }
            Ok(true)
        }
        Ok(None) => Ok(true),
        Err(None) => Ok(false),
        Err(Some(reason)) => Err(reason),
    }
}

/// Summary of a frame for a bridge.
///
/// # Errors
/// [`DropReason::EthTruncated`].
pub(super) fn summary(pkt: &Packet) -> Result<Frame, DropReason> {
    let header = eth::Header::ref_from(pkt.head())?;
    Ok(Frame::new(header, pkt.meta.vlan, pkt.meta.cut.gso().is_some(), pkt.len()))
}

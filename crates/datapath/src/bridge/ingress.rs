//! Ingress of a bridged port: the tag goes into metadata, and the bridge decides (Linux `br_handle_frame`, `skb_vlan_untag`).

use base::{DropReason, LinkId, Origin};
use packet::Csum;
use switch::Verdict;
use wire::eth;

use super::egress;
use crate::node::bridges::{reason_of, summary};
use crate::{Carried, Cx, Datapath, vlan};

/// Way of a frame that a bridged port has received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bridged {
    /// To the device of the port, as if it were in no bridge.
    Link,
    /// To the bridge's own port, and perhaps to other ports.
    Port,
    /// To other ports only.
    Sent,
}

/// Passes a frame, whose Ethernet header is in its head, to the bridge of its port.
///
/// # Errors
/// The bridge's [rule](reason_of) that drops it; [`DropReason::EthTruncated`] for half a tag; [`DropReason::VirtioHeader`]
/// for a checksum that covers the Ethernet header; [`DropReason::EspDevice`] for ESP that a device has decrypted in place.
pub(crate) fn receive(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: LinkId,
    link: LinkId,
    pkt: &mut Carried,
) -> Result<Bridged, DropReason> {
    if pkt.meta.esp.is_some() {
        return Err(DropReason::EspDevice);
    }
    match pkt.meta.csum {
        Csum::Partial { start, .. } if usize::from(start) < eth::EthHeader::LEN => {
            return Err(DropReason::VirtioHeader);
        }
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
        Some(Verdict::Forward) if places.exits.is_empty() => Ok(up.is_some()),
        Some(Verdict::Forward) => {
            let mut frame = pkt.take();
            let copy = up.map(|_| frame.clone_shared());
            egress::send(dp, cx, &places, frame);
            if let Some(copy) = copy {
                pkt.put(copy);
            }
            Ok(up.is_some())
        }
        Some(Verdict::LinkLocal) => Err(None),
        Some(Verdict::Drop(refusal)) => Err(Some(reason_of(refusal))),
        None => Err(Some(DropReason::LinkDown)),
    };
    dp.bridges.egress = places;
    match result {
        Ok(true) => {
            pkt.meta.vlan = up.and_then(|up| up.tag).map(|tci| tci.0);
            pkt.meta.origin = Origin::Port(own).into();
            if dp.ports.get(own).is_some_and(|port| port.up) { Ok(Bridged::Port) } else { Err(DropReason::LinkDown) }
        }
        Ok(false) => Ok(Bridged::Sent),
        Err(None) => Ok(Bridged::Link),
        Err(Some(reason)) => Err(reason),
    }
}

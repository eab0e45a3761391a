//! Ingress of a bridged port: the tag goes into metadata, and the bridge decides (Linux `br_handle_frame`, `skb_vlan_untag`).

use base::{DropReason, Origin, PortId};
use packet::{Csum, Memory, Packet};
use switch::{LoopSign, Verdict};
use wire::eth;

use crate::node::bridges::{reason_of, summary};
use crate::tx::device;
use crate::{Carried, Cx, Datapath, vlan};

/// Way of a frame that a bridged port has received.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bridged {
    /// To the device of the port, as if it were in no bridge.
    Link,
    /// To the bridge's device, and perhaps to other ports.
    Port,
    /// To other ports only.
    Sent,
}

/// Prepares a frame, whose Ethernet header is in its head: the outer tag goes into metadata.
///
/// # Errors
/// [`DropReason::EthTruncated`] for half a tag; [`DropReason::VirtioHeader`] for a checksum that covers the Ethernet header.
pub(crate) fn prepare(mem: &Memory, pkt: &mut Packet) -> Result<(), DropReason> {
    match pkt.meta.csum {
        Csum::Partial { start, .. } if usize::from(start) < eth::EthHeader::LEN => {
            return Err(DropReason::VirtioHeader);
        }
        Csum::Partial { .. } => {}
        // A guest's claim that its checksum is valid is not passed on to other stations.
        _ => pkt.meta.csum = Csum::None,
    }
    vlan::pop_tag(mem, pkt)
}

/// Passes a [prepared](prepare) frame to the bridge of its port. `coalesced_from` is the length of the longest frame that GRO made it
/// of, if it did: a bridge compares that with the MTU, where the length of any other fat frame does not count.
///
/// # Errors
/// The bridge's [rule](reason_of) that drops it; [`DropReason::EthTruncated`].
pub(crate) fn receive(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: PortId,
    link: PortId,
    pkt: &mut Carried,
    coalesced_from: Option<usize>,
) -> Result<Bridged, DropReason> {
    let mut frame = summary(pkt)?;
    if let Some(len) = coalesced_from {
        (frame.is_gso, frame.len) = (false, len);
    }
    let mut places = std::mem::take(&mut dp.bridges.egress);
    let verdict = dp.bridges.get_mut(own).map(|bridge| bridge.receive(cx.now, link, &frame, &mut places));
    let up = places.up;
    if dp.bridges.get_mut(own).is_some_and(|bridge| bridge.has_loop_signs()) {
        log_loop(dp, own);
    }
    let result = match verdict {
        Some(Verdict::Forward) if places.exits.is_empty() => Ok(up.is_some()),
        Some(Verdict::Forward) => {
            let mut frame = pkt.take();
            let copy = up.map(|_| frame.clone_shared());
            device::enqueue_by_ports(dp, cx, &places, frame);
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

/// Logs the signs of a loop.
#[cold]
fn log_loop(dp: &mut Datapath, own: PortId) {
    let signs = dp.bridges.get_mut(own).map(switch::Bridge::take_loop_signs).unwrap_or_default();
    let name = |link: PortId| dp.ports.get(link).map_or("?", |port| port.config.name.as_str());
    let vlan = |vid: Option<switch::Vid>| vid.map_or_else(String::new, |vid| format!(" in VLAN {}", vid.get()));
    let bridge = name(own);
    for sign in signs {
        match sign {
            LoopSign::Moves { mac, vid, from, to } => {
                let (from, to, vlan) = (from.map_or(bridge, name), name(to), vlan(vid));
                tracing::warn!(
                    link = bridge,
                    "{bridge}: {mac}{vlan} moves between ports {from} and {to} again and again; is there a loop?"
                );
            }
            LoopSign::OwnAddress { mac, vid, port } => {
                let (port, vlan) = (name(port), vlan(vid));
                tracing::warn!(
                    link = port,
                    "{bridge}: received packet on {port} with own address {mac}{vlan} as source address; is there a loop?"
                );
            }
        }
    }
}

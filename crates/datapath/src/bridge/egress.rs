//! Egress of a bridge: by each port's ordinary output (Linux `br_dev_queue_push_xmit`), and frames of this node (`br_dev_xmit`).

use base::DropReason;
use packet::Packet;
use switch::{Egress, Verdict};
use wire::eth;

use crate::node::bridges::{reason_of, summary};
use crate::tx::device;
use crate::{Cx, Datapath, vlan};

/// Sends a frame by each port, with the port's tag. All but one get a shared clone, which is never written in place.
pub(super) fn send(dp: &mut Datapath, cx: Cx<'_>, places: &Egress, mut pkt: Packet) {
    let Some((last, others)) = places.exits.split_last() else { return };
    // Offloads of a frame are found behind the tags that are payload here.
    let l3 = offload::behind_tags(cx.mem, &mut pkt, eth::EthHeader::LEN);
    for exit in others {
        let mut clone = pkt.clone_shared();
        clone.meta.vlan = exit.tag.map(|tci| tci.0);
        device::enqueue(dp, cx, exit.port, clone, l3);
    }
    pkt.meta.vlan = last.tag.map(|tci| tci.0);
    device::enqueue(dp, cx, last.port, pkt, l3);
}

/// Passes frames that this node has sent by the bridges' own ports to the bridges.
pub(crate) fn send_waiting(dp: &mut Datapath, cx: Cx<'_>) {
    for at in 0..dp.bridges.all.len() {
        let (own, _) = dp.bridges.all[at];
        let Some(port) = dp.ports.get_mut(own).filter(|port| port.tx_bytes() > 0) else { continue };
        for mut pkt in std::mem::take(port.take_tx()) {
            // The output of the own port has put a tag into the bytes.
            if let Err(reason) = vlan::pop_tag(cx.mem, &mut pkt) {
                dp.count_frame_drop(&pkt, reason);
                continue;
            }
            let mut places = std::mem::take(&mut dp.bridges.egress);
            let sent = summary(&pkt).and_then(|frame| {
                let bridge = dp.bridges.get_mut(own).ok_or(DropReason::LinkDown)?;
                match bridge.send(cx.now, &frame, &mut places) {
                    Verdict::Drop(refusal) => Err(reason_of(refusal)),
                    Verdict::Forward | Verdict::LinkLocal => Ok(()),
                }
            });
            match sent {
                Ok(()) => send(dp, cx, &places, pkt),
                Err(reason) => dp.count_frame_drop(&pkt, reason),
            }
            dp.bridges.egress = places;
        }
    }
}

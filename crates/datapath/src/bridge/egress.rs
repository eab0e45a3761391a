//! Egress of frames that this node sends by a bridge (Linux `br_dev_xmit`): the ports that they leave by.

use base::{DropReason, PortId};
use packet::Packet;
use switch::{Egress, Verdict};

use crate::node::bridges::{reason_of, summary};
use crate::{Cx, Datapath, vlan};

/// Chooses the ports of the bridge with the device `own` by which a frame of this node leaves. The frame's IP header begins at `l3`;
/// its outer tag goes into metadata. The bridge counts the frame, and captures copy it.
///
/// # Errors
/// The bridge's [rule](reason_of) that drops it; [`DropReason::LinkDown`] without a bridge; as [`vlan::pop_tag`].
pub(crate) fn choose(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: PortId,
    pkt: &mut Packet,
    l3: usize,
    places: &mut Egress,
) -> Result<(), DropReason> {
    dp.ports.pass_bridge(cx.mem, own, pkt, l3);
    vlan::pop_tag(cx.mem, pkt)?;
    let frame = summary(pkt)?;
    let bridge = dp.bridges.get_mut(own).ok_or(DropReason::LinkDown)?;
    match bridge.send(cx.now, &frame, places) {
        Verdict::Drop(refusal) => Err(reason_of(refusal)),
        Verdict::Forward | Verdict::LinkLocal => Ok(()),
    }
}

//! Hooks: five points of the datapath at which users inspect or change a packet (Linux netfilter, `NF_INET_*`).
//!
//! | point | packets | device |
//! |---|---|---|
//! | pre-routing | received, before the route lookup; in a VRF a second time with its device | the link, the VRF |
//! | local in | for this node, whole | the link |
//! | forward | for another node, after the route lookup | the link that they leave by |
//! | local out | answers and errors of this node, after the route lookup; in a VRF first with its device | the VRF, the link |
//! | post-routing | forwarded ones, answers and errors, before ESP | the link that they leave by, the VRF before it |
//!
//! Outer packets of ESP, messages of IKE and keepalives pass no hook on their way out.
//!
//! A point without users costs one bit test. Only one user changes packets: ILA, at pre-routing, for IPv6 (Linux gives it priority
//! −1). ILA changes a packet once, even if the packet passes the point again with its VRF.

use base::{DropReason, PortId};
use wire::Version;

use crate::node::hooks::{HookPoint, HookUser};
use crate::node::trace::Step;
use crate::{Cx, Datapath, IpPacket, ila_hook, trace};

/// Runs the users of pre-routing on a packet. `is_translated` is true if a user changed the packet at this point with
/// another device. Returns whether the packet has been changed, now or before.
///
/// # Errors
/// The reason to drop the packet.
#[inline]
pub(crate) fn pre_routing(
    dp: &mut Datapath,
    cx: Cx<'_>,
    dev: PortId,
    ip: &mut IpPacket,
    is_translated: bool,
) -> Result<bool, DropReason> {
    let version = ip.info.version();
    if !dp.hooks.has(HookPoint::PreRouting, version) {
        return Ok(is_translated);
    }
    trace::step(dp, cx, &mut ip.pkt, Step::Hook { point: HookPoint::PreRouting, dev });
    if is_translated || version == Version::V4 || !dp.hooks.is_set(HookUser::Ila) {
        return Ok(is_translated);
    }
    ila_hook::translate(dp, cx, dev, ip)
}

/// Runs the users of a point on a packet that none of them changes.
#[inline]
pub(crate) fn run(dp: &mut Datapath, cx: Cx<'_>, point: HookPoint, dev: PortId, ip: &mut IpPacket) {
    if dp.hooks.has(point, ip.info.version()) {
        trace::step(dp, cx, &mut ip.pkt, Step::Hook { point, dev });
    }
}

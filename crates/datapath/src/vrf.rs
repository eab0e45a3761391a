//! Device of a VRF, and its hooks, counters, captures and queue for packets of its domain (Linux `drivers/net/vrf.c`).
//!
//! | way | packets | at the device |
//! |---|---|---|
//! | in | of its links | counters, captures, pre-routing a second time |
//! | in | neighbour discovery | pre-routing a second time |
//! | in | to groups and IPv6 link-local addresses | nothing |
//! | out, no queueing discipline | of the node, by a link | local out, post-routing, counters, captures; then on by the route that was found |
//! | out, a queueing discipline | of the node, by a link | local out, post-routing, the queue; once they are dequeued counters, captures, a second look-up |
//! | out | of the node, to an address in the VRF | local out, post-routing, counters, captures; then in as by a loopback |
//! | out | to groups and link-local addresses, outer packets of ESP, forwarded ones | nothing |

use std::net::IpAddr;

use base::{Domain, DropReason, PortId};
use packet::Maker;
use wire::{Protocol, Version};

use crate::addresses::is_link_local;
use crate::mib::MibPair;
use crate::next::{Cast, Hop};
use crate::node::hooks::HookPoint;
use crate::node::qdisc::QueuedPacket;
use crate::tx::device;
use crate::unroutable::problem_of;
use crate::{Cx, Datapath, IpPacket, Next, hooks, trace};

/// Passes a received packet by the device of its link's VRF (Linux `vrf_ip_rcv`, `vrf_ip6_rcv`). `is_translated` is true if the
/// packet was changed at pre-routing with its link.
///
/// # Errors
/// The reason to drop the packet.
pub(crate) fn receive(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    vrf: PortId,
    is_translated: bool,
) -> Result<(), DropReason> {
    let is_discovery = ip.info.protocol == Protocol::ICMPV6
        && ip.info.version() == Version::V6
        && wire::nd::is_discovery(ip.flow.sport as u8);
    if !is_discovery {
        if is_link_scoped(ip.info.dst) {
            return Ok(());
        }
        dp.ports.pass_vrf(cx.mem, vrf, false, &ip.pkt);
    }
    hooks::pre_routing(dp, cx, vrf, ip, is_translated)?;
    Ok(())
}

/// Passes a packet of the node with next hop `hop` by the device of its VRF (Linux `vrf_l3_out`), through the device's queueing
/// discipline if it has one.
pub(crate) fn send(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, vrf: PortId, hop: Hop) -> Next {
    pass_out_hooks(dp, cx, ip, vrf);
    if dp.ports.has_detour(vrf) {
        let pkt = ip.pkt.take();
        // The device's captures copy it once it is dequeued and has a route.
        device::enqueue_by_detour(dp, cx, vrf, QueuedPacket { pkt, l3: 0, is_transmitted: false });
        return Next::Done;
    }
    dp.ports.pass_vrf(cx.mem, vrf, true, &ip.pkt);
    hooks::run(dp, cx, HookPoint::LocalOut, hop.dev, ip);
    Next::Output(hop)
}

/// Sends a packet dequeued from the device's queueing discipline, after a second route lookup (Linux `vrf_xmit`).
pub(crate) fn transmit(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, vrf: PortId) -> Next {
    match ip.parse(cx) {
        Ok(()) => route_again(dp, cx, ip, vrf),
        Err(reason) => {
            dp.ports.fail_vrf(vrf);
            Next::Drop(reason)
        }
    }
}

fn route_again(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, vrf: PortId) -> Next {
    let domain = Domain::vrf(vrf);
    let flow = trace::is_on(dp).then(|| ip.route_flow(domain));
    trace::route(dp, cx, &mut ip.pkt, flow, None);
    let hop_of = if ip.pkt.meta.maker == Maker::Socket { Hop::of_socket } else { Hop::of };
    let found = if dp.fib.may_send(domain) { hop_of(dp.decide_packet(domain, ip)) } else { Err(DropReason::LinkDown) };
    match found {
        Ok(hop) => {
            dp.ports.pass_vrf(cx.mem, vrf, true, &ip.pkt);
            hooks::run(dp, cx, HookPoint::LocalOut, hop.dev, ip);
            Next::Output(hop)
        }
        Err(reason) => {
            dp.ports.fail_vrf(vrf);
            let version = ip.info.version();
            dp.counters.count(MibPair::OUT_NO_ROUTES.of(version));
            let problem =
                if ip.pkt.meta.maker == Maker::Socket { problem_of(reason, version == Version::V4) } else { None };
            problem.map_or(Next::Drop(reason), |problem| Next::Reject(reason, problem))
        }
    }
}

/// Loops a packet of the node to an address of the node in the same VRF back as received by the VRF's device (Linux
/// `vrf_local_xmit`).
pub(crate) fn loop_back(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, vrf: PortId) -> Next {
    pass_out_hooks(dp, cx, ip, vrf);
    dp.ports.pass_vrf(cx.mem, vrf, true, &ip.pkt);
    match hooks::pre_routing(dp, cx, vrf, ip, true) {
        Ok(_) => Next::Local(Cast::Unicast),
        Err(reason) => Next::Drop(reason),
    }
}

fn pass_out_hooks(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, vrf: PortId) {
    hooks::run(dp, cx, HookPoint::LocalOut, vrf, ip);
    hooks::run(dp, cx, HookPoint::PostRouting, vrf, ip);
}

/// Tells whether a destination is a group or link-local: such packets do not pass the VRF of the link.
pub(crate) fn is_link_scoped(dst: IpAddr) -> bool {
    dst.is_multicast() || is_link_local(dst)
}

//! Transmit side: policy, MTU, ESP, neighbour, device (Linux `ip_output`, `xfrm_output`).

pub(crate) mod device;
pub(crate) mod esp_device;
pub(crate) mod keepalive;
pub(crate) mod mtu;
pub(crate) mod neighbour;
pub(crate) mod queue;
pub(crate) mod tcp;
pub(crate) mod xfrm;

use base::{DropReason, Mib};
use ipsec::{Decision as Policy, Dir, PolicyId};
use packet::Cut;

use crate::forward::{self, Hop};
use crate::hooks::{self, HookPoint};
use crate::host_side::down;
use crate::{Cx, Datapath, IpPacket, Next, own, route_encap};

/// Output of an IP packet, fat or not, by `hop`: through IPsec if a policy requires it.
pub(crate) fn output(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    // The policy lookup of an ICMP error uses the flow of the quoted packet.
    let quotes_secret = ip.pkt.meta.origin.is_local() && !ip.pkt.meta.sec_path.is_empty();
    if dp.ipsec.is_idle() && !quotes_secret {
        return clear(dp, cx, ip, hop);
    }
    if ip.pkt.meta.origin.is_local() && !dp.ports.hosts.is_empty() && down::passes_policies(dp, ip) {
        return clear(dp, cx, ip, hop);
    }
    match dp.ipsec.lookup(cx.now, &ip.flowi(hop.dev, dp.fib.domain(hop.dev).vrf_device()), &mut dp.counters) {
        Policy::Bypass if quotes_secret || forward::is_doubtful(dp, Dir::Out, ip, hop.dev) => {
            dp.counters.count(Mib::XfrmOutPolError);
            Next::Drop(DropReason::PolicyClear)
        }
        Policy::Bypass => clear(dp, cx, ip, hop),
        Policy::Protect(bundle) => {
            hooks::run(dp, cx, HookPoint::PostRouting, hop.dev, ip);
            xfrm::output(dp, cx, ip, &bundle, hop)
        }
        Policy::Hold(policy) => hold(dp, cx, ip, hop, policy),
        Policy::Drop(reason) => Next::Drop(reason),
    }
}

/// Output of a packet that no policy protects.
fn clear(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    hooks::run(dp, cx, HookPoint::PostRouting, hop.dev, ip);
    mtu::output_clear(dp, cx, ip, hop)
}

/// Queues a packet until the SA of this policy is added, or sends the packet right behind those that were queued for the SA.
#[cold]
fn hold(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop, policy: PolicyId) -> Next {
    if dp.ipsec.release_if_ready(policy) {
        own::release(dp, cx);
        return Next::Output(hop);
    }
    let flow = ip.flowi(hop.dev, dp.fib.domain(hop.dev).vrf_device());
    match dp.ipsec.hold(cx.mem, cx.now, policy, &flow, ip.pkt.take()) {
        Ok(()) => Next::Done,
        Err((pkt, reason)) => {
            ip.pkt.put(pkt);
            Next::Drop(reason)
        }
    }
}

/// Transmission of an IP packet that fits, in the segments it says, to its next hop.
pub(crate) fn transmit(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, mut hop: Hop) -> Next {
    if hop.encap.is_some() {
        hop = match route_encap::translate_unparsed(dp, cx, ip, hop) {
            Ok(hop) => hop,
            Err(reason) => return Next::Drop(reason),
        };
    }
    let Hop { dev, next_hop, .. } = hop;
    let Some(port) = dp.ports.get(dev).filter(|port| port.is_running()) else {
        return Next::Drop(DropReason::LinkDown);
    };
    let is_bare = port.config.mac.is_none();
    if !dp.ports.is_shaped(dev) {
        dp.ports.tap_fat(cx.mem, dev, true, &ip.pkt);
    }
    if is_bare {
        device::enqueue_ip(dp, cx, dev, ip.pkt.take(), 0);
        return Next::Done;
    }
    if matches!(ip.pkt.meta.cut, Cut::Frames(_)) && !dp.neighbours.knows(dev, next_hop) {
        // Frames that have to wait are queued one by one.
        while let Some(frame) = ip.pkt.take_frame() {
            neighbour::run_resolved(dp, cx, frame, hop);
        }
    }
    neighbour::resolve(dp, cx, ip, hop)
}

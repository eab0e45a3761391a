//! Transmit side: policy, MTU, ESP, neighbour, device (Linux `ip_output`, `xfrm_output`).

pub(crate) mod device;
pub(crate) mod esp_device;
pub(crate) mod keepalive;
pub(crate) mod mtu;
pub(crate) mod neighbour;
pub(crate) mod queue;
pub(crate) mod sa_path;
pub(crate) mod tcp;
pub(crate) mod transmit;
pub(crate) mod xfrm;

use ::xfrm::Dir;
use base::{DropReason, Mib};
use ipsec::{Decision as Policy, PolicyId};

use crate::next::Hop;
use crate::node::hooks::HookPoint;
use crate::{Cx, Datapath, IpPacket, Next, hand_over, hooks, local_out, policy, trace};

/// Output of an IP packet, fat or not, by `hop`: through IPsec if a policy requires it.
pub(crate) fn output(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    // The policy lookup of an ICMP error uses the flow of the quoted packet.
    let quotes_secret = ip.pkt.meta.origin.is_local() && !ip.pkt.meta.sec_path.is_empty();
    if dp.ipsec.is_idle() && !quotes_secret {
        return clear(dp, cx, ip, hop);
    }
    if ip.pkt.meta.origin.is_local() && dp.ports.has_host_side() && policy::is_exempt(dp, ip) {
        return clear(dp, cx, ip, hop);
    }
    let flow = ip.flowi(hop.dev, dp.fib.domain(hop.dev).vrf_device());
    trace::policy(dp, cx, &ip.pkt, Dir::Out, &flow);
    match dp.ipsec.lookup(cx.now, &flow, &mut dp.counters) {
        Policy::Bypass if quotes_secret || policy::is_doubtful(dp, Dir::Out, ip, hop.dev) => {
            dp.counters.count(Mib::XfrmOutPolError);
            Next::Drop(DropReason::PolicyClear)
        }
        Policy::Bypass => clear(dp, cx, ip, hop),
        Policy::Protect(bundle) => {
            if let Some(owner) = hand_over::owner_of_sas(dp, &bundle) {
                return hand_over::hand_over_before(dp, cx, ip, owner, Next::Output(hop));
            }
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
        local_out::release(dp, cx);
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

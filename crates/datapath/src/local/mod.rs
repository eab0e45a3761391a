//! Local input: packets for this node, by protocol (Linux `ip_local_deliver`, `ip6_input`).

pub(crate) mod esp;
mod groups;
pub(crate) mod icmp;
pub(crate) mod ike;
mod nd;
pub(crate) mod path_mtu;
pub(crate) mod reassembly;
pub(crate) mod tcp;
pub(crate) mod udp;

use base::{DropReason, ShardId};
use host::icmp::Problem;
use wire::{Protocol, Version};
use xfrm::Dir;

use crate::host_side::deliver::deliver;
use crate::mib::MibPair;
use crate::next::Cast;
use crate::node::hooks::HookPoint;
use crate::{Cx, Datapath, IpPacket, Next, ext_headers, hand_over, hooks, ila_errors, policy, trace};

/// Another shard that owns what local input does with a packet.
#[inline]
fn owner(dp: &Datapath, ip: &mut IpPacket, cast: Cast) -> Option<ShardId> {
    if !dp.shard.has_others() {
        return None;
    }
    if ip.info.fragment.is_some() {
        return hand_over::owner_of_fragments(dp, ip);
    }
    if esp::is_esp(dp, ip, cast) {
        return esp::owner_elsewhere(dp, ip);
    }
    let is_discovery = || ip.info.protocol == Protocol::ICMPV6 && wire::nd::is_discovery(ip.flow.sport as u8);
    // The first shard has the devices of the host side, and knows the flows of its sockets; it has the key manager's socket.
    let is_of_first = dp.has_host_port(ip.pkt.meta.origin.device()) || is_discovery() || ike::is_for_ike(dp, ip);
    is_of_first.then_some(ShardId::FIRST).and_then(|owner| dp.shard.elsewhere(owner))
}

/// Hands a packet for this node to its protocol, after reassembly.
pub(crate) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    if let Some(owner) = owner(dp, ip, cast) {
        return hand_over::hand_over_before(dp, cx, ip, owner, Next::Local(cast));
    }
    let version = ip.info.version();
    if version == Version::V6
        && !ip.info.plain
        && let Err(fault) = ext_headers::check_for_node(ip.pkt.head(), &ip.info)
    {
        return ext_headers::drop_faulty(dp, ip, fault);
    }
    //= RFC 4303 §3.4.1 reassembly-first
    // A whole packet with a fragment header goes there too (RFC 6946).
    if ip.info.fragment.is_some() {
        return reassembly::input(dp, cx, ip, cast);
    }
    let link = ip.pkt.meta.origin.device();
    hooks::run(dp, cx, HookPoint::LocalIn, link, ip);
    // Policies apply to the packet inside ESP, not to ESP itself (Linux `esp4_protocol.no_policy`).
    if esp::is_esp(dp, ip, cast) {
        trace::decrypt(dp, cx, ip);
        return esp::input(dp, cx, ip);
    }
    if let Err(reason) = ila_errors::restore(dp, cx, ip) {
        return Next::Drop(reason);
    }
    // Policies depend on neighbour discovery, which like ARP is handled before the policy lookup.
    if ip.info.protocol == Protocol::ICMPV6 && wire::nd::is_discovery(ip.flow.sport as u8) {
        return nd::input(dp, cx, ip);
    }
    if ike::is_for_ike(dp, ip)
        && let Some(next) = ike::input(dp, ip)
    {
        return next;
    }
    // The kernel there is a host: it has no anycast addresses of routers.
    let has_host_side = dp.has_host_port(link) && cast != Cast::Anycast;
    if has_host_side && policy::is_exempt(dp, ip) && ip.pkt.meta.sec_path.is_empty() {
        return match ike::check_marker(dp, ip).and_then(|()| ike::ask_for_checksum(cx, ip)) {
            Ok(()) => deliver(dp, cx, ip, cast),
            Err(reason) => Next::Drop(reason),
        };
    }
    if let Err(reason) = policy::check(dp, cx, Dir::In, ip, link) {
        return Next::Drop(reason);
    }
    let is_icmp =
        matches!((ip.info.protocol, version), (Protocol::ICMP, Version::V4) | (Protocol::ICMPV6, Version::V6));
    if has_host_side && !icmp::is_answered_here(dp, link, &ip.info, ip.flow.sport as u8) {
        if is_icmp
            && cast == Cast::Unicast
            && let Some(mtu) = path_mtu::reported_mtu(ip)
            && host::icmp::check_ok(&ip.pkt, &ip.info)
        {
            // The message may be about a socket's packet, so it is delivered in any case.
            path_mtu::learn(dp, cx, ip, mtu);
        }
        return deliver(dp, cx, ip, cast);
    }
    match (ip.info.protocol, version) {
        (Protocol::ICMP, Version::V4) | (Protocol::ICMPV6, Version::V6) => icmp::input(dp, cx, ip, cast),
        (Protocol::UDP, _) => udp::input(dp, ip, cast),
        _ if groups::is_igmp(cx.mem, ip) => {
            dp.count_delivered(link, version, 1);
            Next::Done
        }
        (Protocol::TCP, _) => tcp::input(dp, cx, ip, cast),
        //= RFC 8200 §4.7 no-next-header: bytes behind next header 59 are ignored, and no error is sent
        // Nothing follows, and no error is sent about it (RFC 8200 §4.7).
        (Protocol::NO_NEXT, Version::V6) => {
            dp.count_delivered(link, version, 1);
            Next::Drop(DropReason::ProtocolUnknown)
        }
        _ => {
            dp.count(link, MibPair::IN_UNKNOWN_PROTOS.of(version));
            let problem = Problem::ProtocolUnknown { at: ip.info.next_header_at };
            Next::refuse(cast, DropReason::ProtocolUnknown, problem)
        }
    }
}

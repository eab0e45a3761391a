//! Packets for others: policy, TTL, and out again (Linux `ip_forward`, `ip6_forward`).

use std::net::IpAddr;

use ::reassembly::User;
use base::{DropReason, Mib};
use host::icmp::Problem;
use packet::PktType;
use wire::Version;
use xfrm::Dir;

use crate::local::reassembly;
use crate::mib::MibPair;
use crate::next::Hop;
use crate::node::hooks::HookPoint;
use crate::node::ports::Port;
use crate::{Cx, Datapath, IpPacket, Next, hand_over, hooks, policy};

/// Forwards a packet to another node by `hop`.
pub(crate) fn forward(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    let version = ip.info.version();
    // Every station on the link received the frame, and would forward it as well (RFC 1122 §3.3.6, RFC 1812 §5.3.4).
    if ip.pkt.meta.pkt_type != PktType::Host {
        return Next::Drop(DropReason::EthNotForUs);
    }
    if ip.info.fragment.is_some() && dp.defrag.contains(&hop.dev) {
        if let Some(owner) = hand_over::owner_of_fragments(dp, ip) {
            return hand_over::hand_over_before(dp, cx, ip, owner, Next::Forward(hop));
        }
        if let Some(next) = reassembly::gather(dp, cx, ip, User::Host) {
            return next;
        }
    }
    if let Err(reason) = policy::check(dp, cx, Dir::Fwd, ip, hop.dev) {
        return Next::Drop(reason);
    }
    if version == Version::V6 && has_link_scope(ip) {
        dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InAddrErrors);
        return Next::Drop(DropReason::IpSourceInvalid);
    }
    //= RFC 8200 §3 hop-limit: the hop limit of a forwarded packet is decremented; at zero it is dropped with Time Exceeded
    if ip.info.ttl <= 1 {
        dp.count(ip.pkt.meta.origin.device(), MibPair::IN_HDR_ERRORS.of(version));
        return Next::Reject(DropReason::TtlExceeded, Problem::TtlExceeded);
    }
    if !dp.ports.get(hop.dev).is_some_and(Port::is_running) {
        return Next::Reject(DropReason::LinkDown, Problem::HostUnreachable);
    }
    hooks::run(dp, cx, HookPoint::Forward, hop.dev, ip);
    Next::Output(hop)
}

/// Tells whether one of a packet's addresses means something on its own link alone (RFC 4291 §2.5.6).
fn has_link_scope(ip: &IpPacket) -> bool {
    [ip.info.src, ip.info.dst].iter().any(|addr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local()))
}

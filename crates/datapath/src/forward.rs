//! Packets for others: policy, TTL, and out again (Linux `ip_forward`, `ip6_forward`).

use std::net::IpAddr;

use ::reassembly::User;
use base::{DropReason, LinkId, Mib};
use host::icmp::Problem;
use ipsec::{Dir, Flowi};
use packet::PktType;
use wire::{Version, ipv4, ipv6};

use crate::icmp_quote::answer_to_quoted;
use crate::local::reassembly;
use crate::mib::MibPair;
use crate::next::Hop;
use crate::node::hooks::HookPoint;
use crate::node::ports::Port;
use crate::{Cx, Datapath, IpPacket, Next, hooks, ip_options};

/// Forwards a packet to another node by `hop`.
pub(crate) fn forward(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    let version = ip.info.version();
    // Every station on the link received the frame, and would forward it as well (RFC 1122 §3.3.6, RFC 1812 §5.3.4).
    if ip.pkt.meta.pkt_type != PktType::Host {
        return Next::Drop(DropReason::EthNotForUs);
    }
    if ip.info.fragment.is_some()
        && dp.defrag.contains(&hop.dev)
        && let Some(next) = reassembly::gather(dp, cx, ip, User::Host)
    {
        return next;
    }
    if let Err(reason) = check_policy(dp, cx, Dir::Fwd, ip, hop.dev) {
        return Next::Drop(reason);
    }
    if version == Version::V6 && has_link_scope(ip) {
        dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InAddrErrors);
        return Next::Drop(DropReason::IpSourceInvalid);
    }
    //= RFC 8200 §3 hop-limit: a forwarded packet loses one hop; at zero it is dropped and its sender told
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

/// Decrements the TTL of a forwarded packet after the last check that may drop it: until then an ICMP error must quote the packet
/// as received. A packet of this node keeps its TTL.
#[inline]
pub(crate) fn count_hop(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Result<(), DropReason> {
    if ip.pkt.meta.origin.is_local() {
        return Ok(());
    }
    let v4 = ip.info.version() == Version::V4;
    let head = ip.pkt.writable_head(cx.mem)?;
    if v4 {
        ipv4::Header::mut_from(head)?.decrement_ttl();
    } else {
        ipv6::Header::mut_from(head)?.decrement_hop_limit();
    }
    ip.info.ttl = ip.info.ttl.saturating_sub(1);
    if v4 && !ip.info.plain {
        ip_options::record_hop(dp, cx, ip, hop)?;
    }
    dp.count(hop.dev, MibPair::FORWARDED.of(ip.info.version()));
    dp.forwarded.packets += 1;
    dp.forwarded.bytes += ip.pkt.len() as u64;
    Ok(())
}

/// Checks the policies, if there are any, for a packet in clear: an output packet by `link`, or an input packet from it.
#[inline]
pub(crate) fn check_policy(
    dp: &mut Datapath,
    cx: Cx<'_>,
    dir: Dir,
    ip: &IpPacket,
    link: LinkId,
) -> Result<(), DropReason> {
    if dp.ipsec.is_idle() && ip.pkt.meta.sec_path.is_empty() {
        return Ok(());
    }
    let quoted = || answer_to_quoted(ip);
    let sec_path = &ip.pkt.meta.sec_path;
    dp.ipsec.check(cx.now, dir, &flowi(dp, dir, ip, link), sec_path, quoted, &mut dp.counters)?;
    if ip.pkt.meta.sec_path.is_empty() && is_doubtful(dp, dir, ip, link) {
        dp.counters.count(Mib::XfrmInTmplMismatch);
        return Err(DropReason::PolicyMismatch);
    }
    Ok(())
}

/// Flow of a packet for a policy lookup in direction `dir`; `link` is the output or input link.
#[inline]
fn flowi(dp: &Datapath, dir: Dir, ip: &IpPacket, link: LinkId) -> Flowi {
    let loopback = (dir == Dir::In).then_some(LinkId::LOOPBACK);
    ip.flowi(link, dp.fib.domain(link).vrf_device().or(loopback))
}

/// Tells whether a packet is a later fragment that may belong to a flow which a policy protects or blocks: its ports are
/// unknown. Such a fragment is dropped in clear (RFC 4301 §7); Linux lets it pass.
#[inline]
pub(crate) fn is_doubtful(dp: &Datapath, dir: Dir, ip: &IpPacket, link: LinkId) -> bool {
    //= RFC 4301 §7 later-fragments: a later fragment, whose ports are unknown, does not pass in clear
    //=   where a policy for some ports may be meant
    !ip.info.has_transport() && dp.ipsec.spd().may_stop_fragment(dir, &flowi(dp, dir, ip, link))
}

/// Drops a packet to a destination without a route, or with an unreachable, prohibit or blackhole route.
pub(crate) fn unroutable(dp: &mut Datapath, ip: &mut IpPacket, reason: DropReason) -> Next {
    let v4 = ip.info.version() == Version::V4;
    let Some(problem) = problem_of(reason, v4) else { return Next::Drop(reason) };
    match (v4, reason) {
        (true, DropReason::NoRoute) => dp.counters.count(Mib::IpExtInNoRoutes),
        (true, _) => {}
        (false, _) => dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InNoRoutes),
    }
    Next::Reject(reason, problem)
}

/// ICMP error for a destination without a route, or with an unreachable or prohibit route.
pub(crate) fn problem_of(reason: DropReason, v4: bool) -> Option<Problem> {
    match reason {
        DropReason::NoRoute => Some(Problem::NoRoute),
        // Over IPv6 Linux says "no route" here too (`ip6_pkt_discard`).
        DropReason::RouteUnreachable => Some(if v4 { Problem::HostUnreachable } else { Problem::NoRoute }),
        DropReason::RouteProhibit => Some(Problem::Prohibited),
        DropReason::IlaUnreachable => Some(Problem::HostUnreachable),
        _ => None,
    }
}

/// Tells whether one of a packet's addresses means something on its own link alone (RFC 4291 §2.5.6).
fn has_link_scope(ip: &IpPacket) -> bool {
    [ip.info.src, ip.info.dst].iter().any(|addr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local()))
}

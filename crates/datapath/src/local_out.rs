//! Packets of this node: answers, ICMP errors, and packets that waited for an SA.

use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, Mib, Origin, PortId};
use fib::{Decision, IlaHop};
use host::icmp::{self, Problem};
use ipsec::Released;
use packet::{Maker, Packet};
use wire::ip::Info;
use wire::{FlowKey, Version};

use crate::addresses::is_link_local;
use crate::host_side::up;
use crate::mib::MibPair;
use crate::next::Hop;
use crate::node::hooks::HookPoint;
use crate::unroutable::problem_of;
use crate::{Cx, Datapath, HostRole, IpPacket, Next, hooks, trace, vrf};

/// Source of errors of a node without an IPv4 address (RFC 7600 §4.8).
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// Drops a packet, and sends the ICMP error about it, as far as rules and rate limits allow.
pub(crate) fn reject(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, reason: DropReason, problem: Problem) -> Next {
    dp.count_drop(&ip.pkt, reason).end();
    icmp_error(dp, cx, ip, problem)
}

/// Sends the ICMP error about a packet to its sender, as far as rules and rate limits allow.
pub(crate) fn icmp_error(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, problem: Problem) -> Next {
    let (pkt, info) = (&*ip.pkt, &ip.info);
    if !icmp::may_answer(pkt, info, problem) {
        return Next::Done;
    }
    if pkt.meta.origin.is_local() {
        notify_host_side(dp, cx, pkt, info, problem);
        return Next::Done;
    }
    let version = info.version();
    if !problem.is_unlimited() && !dp.icmp_limit.allow(cx.now, info.src) {
        dp.counters.count(MibPair::ICMP_OUT_RATE_LIMITED.of(version));
        return dp.ports.drop(Origin::NODE, DropReason::IcmpRateLimited).into();
    }
    let Some(src) = source_for(dp, pkt, info) else { return Next::Done };
    let mut error = match icmp::error(cx.mem, pkt, info, problem, src) {
        Ok(error) => error,
        Err(reason) => return dp.ports.drop(Origin::NODE, reason).into(),
    };
    let kind = match (version, problem) {
        (Version::V4, Problem::TtlExceeded | Problem::ReassemblyTimeExceeded) => Mib::IcmpOutTimeExcds,
        (Version::V4, Problem::Parameter { .. }) => Mib::IcmpOutParmProbs,
        (Version::V4, _) => Mib::IcmpOutDestUnreachs,
        (Version::V6, Problem::TtlExceeded | Problem::ReassemblyTimeExceeded) => Mib::Icmp6OutTimeExcds,
        (Version::V6, Problem::TooBig { .. }) => Mib::Icmp6OutPktTooBigs,
        (Version::V6, Problem::ProtocolUnknown { .. } | Problem::Parameter { .. }) => Mib::Icmp6OutParmProblems,
        (Version::V6, _) => Mib::Icmp6OutDestUnreachs,
    };
    error.meta.sec_path = pkt.meta.sec_path.clone();
    let link = pkt.meta.origin.device();
    ip.pkt.put(error);
    send(dp, cx, ip, link, [MibPair::ICMP_OUT_MSGS.of(version), kind])
}

/// Sends the ICMP error about a packet of the host side to its socket, from the packet's own source address. For a packet that
/// this node made itself the drop is only counted.
fn notify_host_side(dp: &mut Datapath, cx: Cx<'_>, pkt: &Packet, info: &Info, problem: Problem) {
    if !dp.ports.has_host_side() {
        return;
    }
    let device = pkt.meta.origin.device();
    match icmp::error(cx.mem, pkt, info, problem, info.src) {
        Ok(error) => up::deliver_error(dp, cx, FlowKey::new(info, pkt.head()), device, error),
        Err(reason) => dp.ports.drop(Origin::NODE, reason).end(),
    }
}

/// Source address of an ICMP error: the packet's destination if that is ours, else over IPv4 an address of the link back to the
/// sender (RFC 1812 §4.3.2.4), and over IPv6 one of the link that the packet came by (RFC 4443 §2.2 (b) allows the choice that says
/// more, Linux `icmp6_send`). For a packet that came through a tunnel it is an address of the link that the packet would have left by:
/// policies are about the networks behind a gateway, not the wire between gateways. The host does not accept
/// a packet from its own address, so such an address is not used. A node without an address uses the dummy address over IPv4
/// (RFC 7600 §4.8, Linux `icmp_send`), and over IPv6 the link-local address of an Ethernet link, or else the packet's
/// destination, from which a sender behind a TUN device accepts an error.
fn source_for(dp: &Datapath, pkt: &Packet, info: &Info) -> Option<IpAddr> {
    let link = pkt.meta.origin.device();
    let domain = dp.fib.domain(link);
    let is_own = dp.own_link_local(link) == Some(info.dst) || dp.has_anycast(link, info.dst);
    if is_own || dp.fib.is_local_or_anycast(domain, info.dst) {
        return Some(info.dst);
    }
    let is_tunnelled = !pkt.meta.sec_path.is_empty();
    let towards = if is_tunnelled { info.dst } else { info.src };
    let dev = match dp.decide(domain, towards) {
        Decision::Forward { dev, .. } | Decision::Ila { to: IlaHop::Forward { dev, .. }, .. } => dev,
        _ => link,
    };
    let to_host = dp.host_is(dev, HostRole::Peer);
    let is_allowed = |link| !(to_host && dp.host_is(link, HostRole::SharesAddress));
    let version = info.version();
    let of = if version == Version::V6 && !is_tunnelled { link } else { dev };
    let own = dp.fib.source_among(of, info.src, is_allowed);
    own.or_else(|| match version {
        Version::V4 => Some(IpAddr::V4(DUMMY)),
        Version::V6 => dp.own_link_local(dev).or(Some(info.dst).filter(|dst| !dst.is_multicast())),
    })
}

/// Sends the packets that waited for an SA which has been added, or drops those whose wait has timed out.
pub(crate) fn release(dp: &mut Datapath, cx: Cx<'_>) {
    for released in dp.ipsec.take_released() {
        match released {
            Released::Again(pkt, by) => {
                let mut ip = IpPacket::unparsed(pkt);
                let next = match ip.parse(cx) {
                    Ok(()) => route_again(dp, &ip, by),
                    Err(reason) => Next::Drop(reason),
                };
                dp.defer(ip, next);
            }
            Released::Dropped(pkt, reason) => dp.defer(IpPacket::unparsed(pkt), Next::Drop(reason)),
        }
    }
}

/// Routes a packet that has waited, in the domain of its origin. A packet to a group, a broadcast or a link-local address leaves
/// by the link `by`, as decided before.
fn route_again(dp: &Datapath, ip: &IpPacket, by: Option<PortId>) -> Next {
    let dst = ip.info.dst;
    if let Some(dev) = by.filter(|_| dst.is_multicast() || is_link_local(dst)) {
        return Next::Output(Hop::new(dev, dst));
    }
    match (dp.decide_packet(dp.fib.domain(ip.pkt.meta.origin.device()), ip), by) {
        (Decision::Broadcast { .. }, Some(dev)) if ip.pkt.meta.maker == Maker::Socket => {
            Next::Output(Hop::broadcast(dev))
        }
        (decision, _) => Hop::of(decision).map_or_else(Next::Drop, Next::Output),
    }
}

/// Sends a packet of this node that begins with its IP header, in the domain of `link`; a link-local destination is on that link.
/// `kinds` are counted once the next hop is known. An ICMP error has the `sec_path` of the packet that it quotes.
pub(crate) fn send(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, link: PortId, kinds: [Mib; 2]) -> Next {
    let domain = dp.fib.domain(link);
    ip.pkt.meta.origin = Origin::Local(domain).into();
    match dp.fragment_ids.identify(cx.mem, &mut ip.pkt).and_then(|()| ip.parse(cx)) {
        Ok(()) => route(dp, cx, ip, link, &kinds),
        Err(reason) => Next::Drop(reason),
    }
}

/// Routes a parsed packet of a socket, as [`send`] does for a packet of the node itself.
pub(crate) fn route_out(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, link: PortId) -> Next {
    route(dp, cx, ip, link, &[])
}

/// Output of a parsed packet of a socket by a link that is given, without a route.
pub(crate) fn output_by(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Next {
    dp.count(hop.dev, MibPair::OUT_REQUESTS.of(ip.info.version()));
    hooks::run(dp, cx, HookPoint::LocalOut, hop.dev, ip);
    Next::Output(hop)
}

fn route(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, link: PortId, kinds: &[Mib]) -> Next {
    let domain = dp.fib.domain(link);
    let dst = ip.info.dst;
    let version = ip.info.version();
    let link_local = is_link_local(dst);
    let flow = trace::is_on(dp).then(|| ip.route_flow(domain));
    trace::route(dp, cx, &mut ip.pkt, flow, link_local.then_some(link));
    let decision = match link_local {
        true => dp.fib.decide_flow(&ip.route_flow(domain), Some(link)),
        false => dp.decide_packet(domain, ip),
    };
    let vrf = domain.vrf_device();
    if let (Decision::Local { dev }, Some(vrf)) = (decision, vrf)
        && dp.fib.domain(dev) == domain
        && dp.fib.may_send(domain)
    {
        dp.count(vrf, MibPair::OUT_REQUESTS.of(version));
        kinds.iter().for_each(|&kind| dp.count(vrf, kind));
        return vrf::loop_back(dp, cx, ip, vrf);
    }
    let is_of_socket = kinds.is_empty();
    let found = if is_of_socket { Hop::of_socket(on_link(dp, decision, link, ip)) } else { Hop::of(decision) };
    let hop = match found {
        // A link-local destination needs no VRF.
        Ok(_) if !link_local && !dp.fib.may_send(domain) => Err(DropReason::LinkDown),
        // A VRF's device has no link scope (Linux `vrf_link_scope_lookup`).
        Err(_) if link_local && vrf == Some(link) => Err(DropReason::NoRoute),
        Err(_) if link_local => Ok(Hop::new(link, dst)),
        found => found,
    };
    let hop = match hop {
        Ok(hop) => hop,
        Err(reason) => {
            dp.counters.count(MibPair::OUT_NO_ROUTES.of(version));
            // A socket gets an error; packets of the node itself get none.
            let problem = is_of_socket.then(|| problem_of(reason, version == Version::V4)).flatten();
            return problem.map_or(Next::Drop(reason), |problem| Next::Reject(reason, problem));
        }
    };
    dp.count(hop.dev, MibPair::OUT_REQUESTS.of(version));
    for &kind in kinds {
        dp.count(hop.dev, kind);
    }
    if let Some(vrf) = vrf.filter(|_| !link_local) {
        return vrf::send(dp, cx, ip, vrf, hop);
    }
    hooks::run(dp, cx, HookPoint::LocalOut, hop.dev, ip);
    Next::Output(hop)
}

/// Decision on a packet of a socket, whose kernel has chosen `link`: a broadcast address leaves by that link or as the route by that
/// link says (Linux `fib_lookup` with `flowi4_oif`). A VRF's device is no choice of a link. Neither is the link of the first of several
/// paths, by which the kernel has the route; that of another path is one of a socket that is bound to it.
fn on_link(dp: &Datapath, decision: Decision, link: PortId, ip: &IpPacket) -> Decision {
    let domain = dp.fib.domain(link);
    match decision {
        Decision::Broadcast { dev: Some(dev) } if dev != link && domain.vrf_device() != Some(link) => {
            dp.fib.decide_flow(&ip.route_flow(domain), Some(link))
        }
        Decision::Forward { dev, .. } if dev != link => match dp.decide_paths(domain, ip) {
            Decision::Paths(paths) => {
                let mut links = dp.fib.next_hops(paths).iter().map(|hop| hop.dev);
                if links.next() != Some(link) && links.any(|dev| dev == link) {
                    dp.fib.by_path(paths, &ip.path_flow(domain), Some(link))
                } else {
                    decision
                }
            }
            _ => decision,
        },
        other => other,
    }
}

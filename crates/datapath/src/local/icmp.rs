//! ICMP and ICMPv6 for this node: pings are answered, path MTUs learnt (Linux `icmp_rcv`, `icmpv6_rcv`).

use std::net::{IpAddr, Ipv6Addr};

use base::{Domain, DropReason, Mib, PortId};
use host::icmp;
use wire::ip::Info;
use wire::{Protocol, Version, icmp as icmpv4, icmpv6, ipv4};

use super::{groups, path_mtu};
use crate::addresses::{LINK_LOCAL_ROUTERS, is_link_local};
use crate::mib::MibPair;
use crate::next::Cast;
use crate::{Cx, Datapath, IpPacket, Next, ip_options, local_out};

/// All nodes of a link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// All routers of a link and of a site (RFC 4291 §2.7.1).
const ALL_ROUTERS: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2), Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2)];

/// Kind of address that a solicited-node group is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Asked {
    Unicast,
    Anycast,
}

/// Handles a message: an echo request is answered, "packet too big" lowers a path MTU, any other message is ignored.
pub(super) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    let origin = ip.pkt.meta.origin;
    let link = origin.device();
    let version = ip.info.version();
    dp.count_delivered(link, version, 1);
    dp.count(link, MibPair::ICMP_IN_MSGS.of(version));
    if !icmp::check_ok(&ip.pkt, &ip.info) {
        dp.count(link, MibPair::ICMP_IN_CSUM_ERRORS.of(version));
        dp.count(link, MibPair::ICMP_IN_ERRORS.of(version));
        return Next::Drop(DropReason::ChecksumWrong);
    }
    let kind = counter_of(ip);
    if let Some(mib) = kind {
        dp.count(link, mib);
    }
    if cast == Cast::Group && version == Version::V6 && groups::is_mld(ip) {
        return Next::Done;
    }
    if let Some(mtu) = path_mtu::reported_mtu(ip) {
        return path_mtu::learn(dp, cx, ip, mtu).map_or(Next::Done, Next::Drop);
    }
    let from = match cast {
        Cast::Unicast => Some(ip.info.dst),
        // Linux's `anycast_src_echo_reply=0`.
        Cast::Anycast => source_towards(dp, link, ip.info.src),
        Cast::Group => member_address(dp, link, &ip.info),
    };
    let Some(from) = from.filter(|_| is_ping(ip)) else { return Next::Drop(DropReason::IcmpIgnored) };
    let mut options = [0; ipv4::MAX_OPTIONS];
    let len = if ip.info.plain { 0 } else { ip_options::returned_options(dp, cx, ip, &mut options) };
    match icmp::echo_reply(cx.mem, ip.pkt.take(), &ip.info, from, &options[..len]) {
        Ok(reply) => {
            ip.pkt.put(reply);
            let kinds = [MibPair::ICMP_OUT_MSGS, MibPair::ICMP_OUT_ECHO_REPLIES].map(|pair| pair.of(version));
            local_out::send(dp, cx, ip, link, kinds)
        }
        Err(reason) => dp.ports.drop(origin.get(), reason).into(),
    }
}

/// Tells whether the node itself answers a message of this type, on a link with a device of the host side. The kernel there has no
/// VRFs: it would route its reply by the main table. And it is a host: it belongs to no group of routers (RFC 4291 §2.8), unless a
/// program joins one.
pub(crate) fn is_answered_here(dp: &Datapath, link: PortId, info: &Info, kind: u8) -> bool {
    let is_ping = info.has_transport()
        && matches!(
            (info.protocol, info.version(), kind),
            (Protocol::ICMP, Version::V4, 8) | (Protocol::ICMPV6, Version::V6, 128)
        );
    is_ping && (dp.fib.domain(link) != Domain::DEFAULT || is_of_routers(dp, link, info.dst))
}

/// Tells whether an address is a group of routers: of all of a link or of a site, or the solicited-node group of an anycast address
/// of the link alone.
fn is_of_routers(dp: &Datapath, link: PortId, dst: IpAddr) -> bool {
    let IpAddr::V6(group) = dst else { return false };
    ALL_ROUTERS.contains(&group)
        || is_solicited_node(dp, link, group, Asked::Anycast) && !is_solicited_node(dp, link, group, Asked::Unicast)
}

/// Tells whether an ICMP message is a ping.
fn is_ping(ip: &IpPacket) -> bool {
    matches!(counter_of(ip), Some(Mib::IcmpInEchos | Mib::Icmp6InEchos))
}

/// Source of the answer to a ping to a group, if this node belongs to it: the groups of all IPv6 nodes and routers, and the
/// solicited-node group of an address of the link (RFC 4291 §2.8). A ping to another group is not answered, nor is a broadcast
/// (Linux's `icmp_echo_ignore_broadcasts`).
fn member_address(dp: &Datapath, link: PortId, info: &Info) -> Option<IpAddr> {
    let IpAddr::V6(group) = info.dst else { return None };
    let is_member = group == ALL_NODES
        || ALL_ROUTERS.contains(&group)
        || [Asked::Unicast, Asked::Anycast].into_iter().any(|asked| is_solicited_node(dp, link, group, asked));
    is_member.then(|| source_towards(dp, link, info.src)).flatten()
}

/// Tells whether a group is the solicited-node group of an address of the link (RFC 4291 §2.7.1).
fn is_solicited_node(dp: &Datapath, link: PortId, group: Ipv6Addr, asked: Asked) -> bool {
    let is_of = |addr| matches!(addr, IpAddr::V6(addr) if wire::nd::solicited_node(addr) == group);
    let own = dp.own_link_local(link);
    let mut addresses = dp.fib.addresses(link);
    match asked {
        Asked::Unicast => own.is_some_and(is_of) || addresses.any(|own| is_of(own.addr())),
        Asked::Anycast => {
            own.is_some() && is_of(LINK_LOCAL_ROUTERS)
                || addresses.any(|own| own.subnet_router_anycast().is_some_and(is_of))
        }
    }
}

/// Source of an answer to `src` by `link`, for a packet that was not sent to an address of this node.
fn source_towards(dp: &Datapath, link: PortId, src: IpAddr) -> Option<IpAddr> {
    let own = dp.own_link_local(link);
    if is_link_local(src) { own } else { dp.fib.source(link, src).or(own) }
}

/// Counter of an ICMP or ICMPv6 message by its type; that of a ping is [`Mib::IcmpInEchos`] or [`Mib::Icmp6InEchos`].
fn counter_of(ip: &IpPacket) -> Option<Mib> {
    let message = ip.info.payload(ip.pkt.head());
    Some(match ip.info.version() {
        Version::V4 => match icmpv4::IcmpHeader::ref_from(message).ok()?.message()? {
            icmpv4::IcmpMessage::EchoReply { .. } => Mib::IcmpInEchoReps,
            icmpv4::IcmpMessage::EchoRequest { .. } => Mib::IcmpInEchos,
            icmpv4::IcmpMessage::Unreachable(_) | icmpv4::IcmpMessage::FragNeeded { .. } => Mib::IcmpInDestUnreachs,
            icmpv4::IcmpMessage::TimeExceeded(_) => Mib::IcmpInTimeExcds,
            icmpv4::IcmpMessage::ParamProblem { .. } => Mib::IcmpInParmProbs,
        },
        Version::V6 => match icmpv6::Icmpv6Header::ref_from(message).ok()?.message()? {
            icmpv6::Icmpv6Message::EchoReply { .. } => Mib::Icmp6InEchoReplies,
            icmpv6::Icmpv6Message::EchoRequest { .. } => Mib::Icmp6InEchos,
            icmpv6::Icmpv6Message::Unreachable(_) => Mib::Icmp6InDestUnreachs,
            icmpv6::Icmpv6Message::PacketTooBig { .. } => Mib::Icmp6InPktTooBigs,
            icmpv6::Icmpv6Message::TimeExceeded(_) => Mib::Icmp6InTimeExcds,
            icmpv6::Icmpv6Message::ParamProblem { .. } => Mib::Icmp6InParmProblems,
        },
    })
}

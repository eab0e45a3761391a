//! IP input: checks of every packet, flow, and routing decision (Linux `ip_rcv`, `ip6_rcv`).

use wire::{Protocol, Version};

use base::{Domain, DropReason, Mib, PortId};
use fib::Decision;
use offload::ip_headers;
use packet::Cut;

use crate::addresses::{check_addresses, is_link_local};
use crate::host_side::demux;
use crate::ip_packet::flow_of;
use crate::local::esp;
use crate::mib::MibPair;
use crate::next::{Cast, Hop};
use crate::{Cx, Datapath, IpPacket, Next, ext_headers, hooks, ip_options, route_encap, trace, unroutable, vrf};

/// IP input of a packet, fat or not (Linux `ip_rcv`, `ip6_rcv`).
pub(crate) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    match ip_headers(cx.mem, &mut ip.pkt) {
        Ok(info) => {
            ip.set_info(info);
            input_parsed(dp, cx, ip)
        }
        Err(reason) => {
            let link = ip.pkt.meta.origin.device();
            let version = Version::of(ip.pkt.head()).unwrap_or(Version::V4);
            dp.ports.tap_fat(cx.mem, link, false, &ip.pkt);
            dp.ports.count_fat_received(link, &ip.pkt);
            count_malformed(dp, link, reason, version);
            Next::Drop(reason)
        }
    }
}

/// IP input of a packet whose IP headers are parsed, and whose flow is not found yet.
pub(crate) fn input_parsed(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    let link = ip.pkt.meta.origin.device();
    dp.ports.tap_fat(cx.mem, link, false, &ip.pkt);
    dp.ports.count_fat_received(link, &ip.pkt);
    if let Err(reason) = check(dp, cx, ip) {
        return Next::Drop(reason);
    }
    let is_translated = match hooks::pre_routing(dp, cx, link, ip, false) {
        Ok(is_translated) => is_translated,
        Err(reason) => return Next::Drop(reason),
    };
    let domain = dp.fib.domain(link);
    if let Some(vrf) = domain.vrf_device()
        && let Err(reason) = vrf::receive(dp, cx, ip, vrf, is_translated)
    {
        return Next::Drop(reason);
    }
    if let Some(next) = demux::find(dp, cx, ip, domain) {
        return next;
    }
    let dst = ip.info.dst;
    let next = route(dp, cx, ip, domain);
    // Early demux caches the flow under the address that the packet was received with.
    if matches!(next, Next::Local(Cast::Unicast)) && ip.info.dst == dst {
        demux::note_local(dp, cx, ip, domain);
    }
    next
}

/// Checks addresses by RFC 1122 §3.2.1.3 and RFC 4291 §2.5, and finds the flow.
fn check(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let IpPacket { pkt, info, flow, .. } = ip;
    let link = pkt.meta.origin.device();
    dp.count_received(link, info.version(), 1);
    if info.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
        pkt.meta.cut = Cut::Fragment;
    }
    if let Err(reason) = check_addresses(info.src, info.dst) {
        dp.count(link, MibPair::IN_ADDR_ERRORS.of(info.version()));
        return Err(reason);
    }
    *flow = flow_of(cx, pkt, info)?;
    Ok(())
}

/// Decides by the FIB where a checked packet goes (Linux `ip_route_input`, `ip6_route_input`).
fn route(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, domain: Domain) -> Next {
    let link = ip.pkt.meta.origin.device();
    let dst = ip.info.dst;
    // A link-local address has no meaning beyond its link (RFC 4291 §2.5.6).
    let oif = is_link_local(dst).then_some(link);
    let flow = trace::is_on(dp).then(|| ip.route_flow(domain));
    trace::route(dp, cx, &mut ip.pkt, flow, oif);
    let decision = match oif {
        Some(_) => dp.fib.decide_flow(&ip.route_flow(domain), oif),
        None => dp.decide_packet(domain, ip),
    };
    let cast = match decision {
        Decision::Local { .. } => Some(Cast::Unicast),
        Decision::Anycast { .. } => Some(Cast::Anycast),
        Decision::Broadcast { .. } | Decision::Multicast => Some(Cast::Group),
        _ if oif.is_some() && dp.own_link_local(link) == Some(dst) => Some(Cast::Unicast),
        _ if oif.is_some() && dp.has_anycast(link, dst) => Some(Cast::Anycast),
        // ESP of an SA with a host behind this node (a bump in the wire).
        Decision::Forward { .. } | Decision::Paths(_) | Decision::Ila { .. } | Decision::Drop(_) => {
            esp::is_for_others(dp, ip).then_some(Cast::Unicast)
        }
    };
    if (cast.is_some() || !matches!(decision, Decision::Drop(_))) && dp.is_martian(domain, link, ip.info.src) {
        return Next::Drop(DropReason::IpSourceInvalid);
    }
    if !ip.info.plain
        && let Err(fault) = check_on_way(ip.pkt.head(), ip.info.version())
    {
        // No ICMP error is sent about a broadcast (RFC 1122 §3.2.2).
        let fault = fault.filter(|_| !matches!(decision, Decision::Broadcast { .. }));
        return ext_headers::drop_faulty(dp, ip, fault);
    }
    match (cast, decision) {
        (Some(cast), _) => Next::Local(cast),
        (None, Decision::Drop(DropReason::NoRoute)) if is_for_dhcp(dp, link, ip) => Next::Local(Cast::Unicast),
        (None, Decision::Forward { dev, .. }) if dev == link && is_for_dhcp(dp, link, ip) => Next::Local(Cast::Unicast),
        (None, Decision::Forward { dev, next_hop }) => Next::Forward(Hop::new(dev, next_hop)),
        (None, Decision::Ila { encap, to }) => route_encap::received(dp, cx, ip, encap, to),
        (None, Decision::Drop(reason)) => unroutable::refuse(dp, ip, reason),
        (None, _) => unreachable!("every other decision is for this node"),
    }
}

/// Tells whether a packet that is not for this node is one for a DHCP client of the host side, which has no address yet.
fn is_for_dhcp(dp: &Datapath, link: PortId, ip: &IpPacket) -> bool {
    let has_address = || dp.fib.addresses(link).any(|own| own.addr().is_ipv4());
    dp.has_host_port(link) && is_dhcp_answer(ip) && !has_address()
}

/// Tells whether a packet is DHCP's answer to a client, which may have no address yet (RFC 2131 §4.1).
fn is_dhcp_answer(ip: &IpPacket) -> bool {
    ip.info.dst.is_ipv4() && ip.info.protocol == Protocol::UDP && (ip.flow.sport, ip.flow.dport) == (67, 68)
}

/// Linux's counter for a packet with malformed IP headers.
pub(crate) fn count_malformed(dp: &mut Datapath, link: PortId, reason: DropReason, version: Version) {
    if reason == DropReason::Ipv4Checksum {
        dp.counters.count(Mib::IpExtInCsumErrors);
    }
    let which = match reason {
        DropReason::Ipv4Header | DropReason::Ipv4Checksum | DropReason::Ipv4Options => Mib::IpInHdrErrors,
        DropReason::Ipv6Header => Mib::Ip6InHdrErrors,
        DropReason::IpTruncated => MibPair::IN_TRUNCATED.of(version),
        _ => MibPair::IN_DISCARDS.of(version),
    };
    dp.count(link, which);
}

/// Checks the headers that every node on the path reads, besides the fixed header that `head` begins with.
fn check_on_way(head: &[u8], version: Version) -> Result<(), ext_headers::Fault> {
    match version {
        Version::V4 => ip_options::check(head),
        Version::V6 => ext_headers::check_hop_by_hop(head),
    }
}

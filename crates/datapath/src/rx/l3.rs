//! IP input: checks of every packet, flow, and routing decision (Linux `ip_rcv`, `ip6_rcv`).

use std::net::{IpAddr, Ipv6Addr};

use base::{Domain, DropReason, LinkId, Mib};
use fib::{Decision, Route, RouteKind};
use offload::ip_headers;
use packet::Cut;
use wire::{MacAddr, Version};

use crate::host_side::{demux, down};
use crate::ip_packet::flow_of;
use crate::local::esp;
use crate::mib::MibPair;
use crate::next::{Cast, Hop};
use crate::{Cx, Datapath, HostRole, IpPacket, Next, ext_headers, forward, hooks, ip_options, route_encap, trace, vrf};

/// Subnet-router anycast address of `fe80::/64`, in which every Ethernet link has an address (RFC 4291 §2.6.1).
pub(crate) const LINK_LOCAL_ROUTERS: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

/// IP input of a packet, fat or not (Linux `ip_rcv`, `ip6_rcv`).
pub(crate) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    match ip_headers(cx.mem, &mut ip.pkt) {
        Ok(info) => {
            ip.info = info;
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
    if dp.trace.is_on() {
        trace::route(dp, cx, &mut ip.pkt, domain, dst, oif);
    }
    let decision = if oif.is_some() { dp.fib.decide(domain, dst, oif) } else { dp.decide(domain, dst) };
    let cast = match decision {
        Decision::Local { .. } => Some(Cast::Unicast),
        Decision::Anycast { .. } => Some(Cast::Anycast),
        Decision::Broadcast { .. } | Decision::Multicast => Some(Cast::Group),
        _ if oif.is_some() && dp.own_link_local(link) == Some(dst) => Some(Cast::Unicast),
        _ if oif.is_some() && dp.has_anycast(link, dst) => Some(Cast::Anycast),
        // ESP of an SA with a host behind this node (a bump in the wire).
        Decision::Forward { .. } | Decision::Ila { .. } | Decision::Drop(_) => {
            esp::is_for_others(dp, &ip.pkt, &ip.info).then_some(Cast::Unicast)
        }
    };
    if (cast.is_some() || !matches!(decision, Decision::Drop(_))) && dp.is_martian(domain, link, ip.info.src) {
        return Next::Drop(DropReason::IpSourceInvalid);
    }
    if !ip.info.plain
        && let Err(fault) = check_on_way(ip.pkt.head(), ip.info.version())
    {
        // No ICMP error is sent about a broadcast (RFC 1122 §3.2.2).
        let fault = fault.filter(|_| !matches!(decision, Decision::Broadcast { .. }) && ip.pkt.meta.esp.is_none());
        return ext_headers::drop_faulty(dp, ip, fault);
    }
    match (cast, decision) {
        (Some(cast), _) => Next::Local(cast),
        (None, Decision::Drop(DropReason::NoRoute)) if is_for_dhcp(dp, link, ip) => Next::Local(Cast::Unicast),
        (None, Decision::Forward { dev, .. }) if dev == link && is_for_dhcp(dp, link, ip) => Next::Local(Cast::Unicast),
        // The device has decrypted the packet in place: only ESP may use its bytes.
        (None, _) if ip.pkt.meta.esp.is_some() => Next::Drop(DropReason::EspDevice),
        (None, Decision::Forward { dev, next_hop }) => Next::Forward(Hop::new(dev, next_hop)),
        (None, Decision::Ila { encap, to }) => route_encap::received(dp, cx, ip, encap, to),
        (None, Decision::Drop(reason)) => forward::unroutable(dp, ip, reason),
        (None, _) => unreachable!("every other decision is for this node"),
    }
}

/// Tells whether a packet that is not for this node is one for a DHCP client of the host side, which has no address yet.
fn is_for_dhcp(dp: &Datapath, link: LinkId, ip: &IpPacket) -> bool {
    let has_address = || dp.fib.addresses(link).any(|own| own.addr().is_ipv4());
    dp.has_host_port(link) && ip.pkt.meta.esp.is_none() && down::is_dhcp_answer(ip) && !has_address()
}

/// Linux's counter for a packet with malformed IP headers.
pub(crate) fn count_malformed(dp: &mut Datapath, link: LinkId, reason: DropReason, version: Version) {
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

impl Datapath {
    /// Tells whether a packet that came by `link` has an IPv4 source that is this node's own in the domain (RFC 1812 §5.3.8;
    /// Linux `fib_validate_source`, which does not count such packets). Linux has no such check for IPv6.
    #[inline]
    pub(crate) fn is_martian(&self, domain: Domain, link: LinkId, src: IpAddr) -> bool {
        src.is_ipv4() && self.is_local(domain, src) && !self.is_of_host(domain, link, src)
    }

    /// Tells whether a source address may be received although it is this node's: the host at the other end of `link` shares it, or
    /// it belongs to another VRF, into which a route of the domain leads.
    #[cold]
    fn is_of_host(&self, domain: Domain, link: LinkId, src: IpAddr) -> bool {
        let is_other =
            || !matches!(self.fib.lookup(domain, src, None), Some(Route { kind: RouteKind::Local { .. }, .. }));
        let is_shared = || self.fib.links_with(src).any(|dev| self.host_is(dev, HostRole::SharesAddress));
        self.host_is(link, HostRole::Peer) && is_shared() || is_other()
    }

    /// Link-local address of an Ethernet link (RFC 4291 App. A).
    pub(crate) fn own_link_local(&self, link: LinkId) -> Option<IpAddr> {
        self.ports.get(link)?.config.mac.map(MacAddr::link_local).map(IpAddr::V6)
    }

    /// Tells whether an address is the subnet-router anycast address of a subnet of `link` (RFC 4291 §2.6.1); on an Ethernet link
    /// that includes `fe80::/64`.
    pub(crate) fn has_anycast(&self, link: LinkId, addr: IpAddr) -> bool {
        self.fib.has_anycast(link, addr) || addr == LINK_LOCAL_ROUTERS && self.own_link_local(link).is_some()
    }
}

/// Checks the source and destination address of a packet.
#[inline(always)]
pub(crate) fn check_addresses(src: IpAddr, dst: IpAddr) -> Result<(), DropReason> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let nobody = |octet| octet == 0 || octet == 127;
            let asks = src.is_unspecified() && dst.is_broadcast();
            if src.is_multicast() || src.is_broadcast() || nobody(src.octets()[0]) && !asks {
                Err(DropReason::IpSourceInvalid)
            } else if nobody(dst.octets()[0]) {
                Err(DropReason::IpDestinationInvalid)
            } else {
                Ok(())
            }
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            // A station without an address sends to groups only.
            if src.is_multicast() || src.is_loopback() || src.is_unspecified() && !dst.is_multicast() {
                Err(DropReason::IpSourceInvalid)
            } else if dst.is_loopback() || dst.is_unspecified() {
                Err(DropReason::IpDestinationInvalid)
            } else {
                Ok(())
            }
        }
        _ => unreachable!("both addresses are of one header"),
    }
}

/// Checks the headers that every node on the path reads, besides the fixed header that `head` begins with.
fn check_on_way(head: &[u8], version: Version) -> Result<(), ext_headers::Fault> {
    match version {
        Version::V4 => ip_options::check(head),
        Version::V6 => ext_headers::check_hop_by_hop(head),
    }
}

pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

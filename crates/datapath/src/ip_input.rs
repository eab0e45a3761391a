//! IP input: what is checked of every packet, whose flow it is, and where it goes (Linux `ip_rcv`, `ip6_rcv`).

use std::net::{IpAddr, Ipv6Addr};

use base::{DropReason, LinkId, Mib};
use fib::{Decision, Route, RouteKind};
use offload::ip_headers;
use packet::{Cut, Packet};
use wire::ip::Info;
use wire::{FlowKey, MacAddr, Protocol, Version};

use crate::forward::Hop;
use crate::local::Cast;
use crate::{Datapath, HostRole, IpPacket, Turn};
use crate::{ext_headers, ip_options};

/// Bytes in which a transport header has its ports, and the whole header of ICMP.
const PORTS_LEN: usize = 8;

/// Bytes in which a GRE header has its key (RFC 2890 §2).
const GRE_KEY_LEN: usize = 12;

/// Subnet-router anycast address of `fe80::/64`, in which every Ethernet link has an address (RFC 4291 §2.6.1).
pub(crate) const LINK_LOCAL_ROUTERS: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

impl Datapath {
    /// IP input (Linux `ip_rcv`, `ip6_rcv`): from here on a packet may be fat.
    pub(crate) fn input(&mut self, turn: Turn<'_>, mut pkt: Packet) {
        let link = pkt.meta.link;
        self.ports.tap_fat(turn.mem, link, false, &pkt);
        self.ports.count_received(link, &pkt);
        let ip = match self.classify(turn, &mut pkt) {
            Ok((info, flow)) => IpPacket { pkt, info, flow },
            Err(reason) => return self.drop(&pkt, reason),
        };
        let dst = ip.info.dst;
        // A link-local address means something on its link alone (RFC 4291 §2.5.6).
        let oif = is_link_local(dst).then_some(link);
        let domain = self.fib.domain(link);
        let decision = if oif.is_some() { self.fib.decide(domain, dst, oif) } else { self.decide(domain, dst) };
        if !matches!(decision, Decision::Drop(_)) && self.is_martian(domain, link, ip.info.src) {
            return self.drop(&ip.pkt, DropReason::IpSourceInvalid);
        }
        if !ip.info.plain
            && let Err(fault) = check_on_way(ip.pkt.head(), ip.info.version())
        {
            // Nobody is told of what a whole subnet got (RFC 1122 §3.2.2).
            let fault = fault.filter(|_| !matches!(decision, Decision::Broadcast { .. }));
            return self.drop_faulty(turn, &ip, fault);
        }
        match decision {
            Decision::Local { .. } => self.deliver(turn, ip, Cast::Unicast),
            Decision::Anycast { .. } => self.deliver(turn, ip, Cast::Anycast),
            Decision::Broadcast { .. } | Decision::Multicast => self.deliver(turn, ip, Cast::Group),
            _ if oif.is_some() && self.own_link_local(link) == Some(dst) => self.deliver(turn, ip, Cast::Unicast),
            _ if oif.is_some() && self.has_anycast(link, dst) => self.deliver(turn, ip, Cast::Anycast),
            Decision::Forward { dev, next_hop } => self.forward(turn, ip, Hop { dev, next_hop }),
            Decision::Drop(reason) => self.unroutable(turn, &ip, reason),
        }
    }

    /// Tells whether a packet that came by `link` has an IPv4 source that is this node's own in the domain (RFC 1812 §5.3.8;
    /// Linux `fib_validate_source`, which does not count such packets). Linux has no such check for IPv6.
    #[inline]
    pub(crate) fn is_martian(&self, domain: LinkId, link: LinkId, src: IpAddr) -> bool {
        src.is_ipv4() && self.is_local(domain, src) && !self.is_of_host(domain, link, src)
    }

    /// Tells whether a source is the host's as well, which is at the other end of `link`, or another VRF's, into which a route
    /// of the domain leads.
    #[cold]
    fn is_of_host(&self, domain: LinkId, link: LinkId, src: IpAddr) -> bool {
        let is_other =
            || !matches!(self.fib.lookup(domain, src, None), Some(Route { kind: RouteKind::Local { .. }, .. }));
        let is_shared = || self.fib.links_with(src).any(|dev| self.host_is(dev, HostRole::SharesAddress));
        self.host_is(link, HostRole::Peer) && is_shared() || is_other()
    }

    /// Checks what RFC 1122 §3.2.1.3 and RFC 4291 §2.5 say of addresses, and finds the flow.
    fn classify(&mut self, turn: Turn<'_>, pkt: &mut Packet) -> Result<(Info, FlowKey), DropReason> {
        let (link, v4) = (pkt.meta.link, Version::of(pkt.head()) != Ok(Version::V6));
        let info = ip_headers(turn.mem, pkt).inspect_err(|&reason| self.count_malformed(link, reason, v4))?;
        self.count(link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives });
        if info.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
            pkt.meta.cut = Cut::Fragment;
        }
        self.check_header(link, &info)?;
        Ok((info, flow_of(turn, pkt, &info)?))
    }

    /// Checks the addresses of a packet, and counts a fault.
    #[inline]
    fn check_header(&mut self, link: LinkId, info: &Info) -> Result<(), DropReason> {
        let v4 = info.version() == Version::V4;
        check_addresses(info.src, info.dst).inspect_err(|_| {
            self.count(link, if v4 { Mib::IpInAddrErrors } else { Mib::Ip6InAddrErrors });
        })?;
        Ok(())
    }

    /// Checks the outer headers of ESP that this node opens, as those of any packet for the node; `None`: it is dropped.
    #[inline]
    pub(crate) fn check_outer(&mut self, turn: Turn<'_>, pkt: Packet, info: &Info) -> Option<Packet> {
        let link = pkt.meta.link;
        let checked = self.check_header(link, info).and_then(|()| {
            let is_martian = self.is_martian(self.fib.domain(link), link, info.src);
            if is_martian { Err(DropReason::IpSourceInvalid) } else { Ok(()) }
        });
        match checked {
            Ok(()) => self.check_extensions(turn, pkt, info),
            Err(reason) => {
                self.drop(&pkt, reason);
                None
            }
        }
    }

    /// Checks the IPv6 extension headers or IPv4 options of ESP that this node opens; `None`: it is dropped.
    #[inline]
    pub(crate) fn check_extensions(&mut self, turn: Turn<'_>, mut pkt: Packet, info: &Info) -> Option<Packet> {
        if info.plain {
            return Some(pkt);
        }
        let (head, version) = (pkt.head(), info.version());
        let checked = check_on_way(head, version).and_then(|()| match version {
            Version::V4 => Ok(()),
            Version::V6 => ext_headers::check_for_node(head, info),
        });
        let Err(fault) = checked else { return Some(pkt) };
        match flow_of(turn, &mut pkt, info) {
            Ok(flow) => self.drop_faulty(turn, &IpPacket { pkt, info: *info, flow }, fault),
            Err(reason) => self.drop(&pkt, reason),
        }
        None
    }

    /// Linux's counter for a packet whose IP headers are wrong.
    pub(crate) fn count_malformed(&mut self, link: LinkId, reason: DropReason, v4: bool) {
        if reason == DropReason::Ipv4Checksum {
            self.counters.count(Mib::IpExtInCsumErrors);
        }
        self.count(
            link,
            match reason {
                DropReason::Ipv4Header | DropReason::Ipv4Checksum | DropReason::Ipv4Options => Mib::IpInHdrErrors,
                DropReason::Ipv6Header => Mib::Ip6InHdrErrors,
                DropReason::IpTruncated if v4 => Mib::IpExtInTruncatedPkts,
                DropReason::IpTruncated => Mib::Ip6InTruncatedPkts,
                _ if v4 => Mib::IpInDiscards,
                _ => Mib::Ip6InDiscards,
            },
        );
    }

    /// The address that every Ethernet link has by itself (RFC 4291 App. A).
    pub(crate) fn own_link_local(&self, link: LinkId) -> Option<IpAddr> {
        self.ports.get(link)?.config.mac.map(MacAddr::link_local).map(IpAddr::V6)
    }

    /// Tells whether an address is that of all routers on a subnet of `link` (RFC 4291 §2.6.1), on an Ethernet link that of
    /// link-local addresses included.
    pub(crate) fn has_anycast(&self, link: LinkId, addr: IpAddr) -> bool {
        self.fib.has_anycast(link, addr) || addr == LINK_LOCAL_ROUTERS && self.own_link_local(link).is_some()
    }
}

/// The flow of a packet; its ports are brought into the head, so that none can be hidden.
pub(crate) fn flow_of(turn: Turn<'_>, pkt: &mut Packet, info: &Info) -> Result<FlowKey, DropReason> {
    let ports_len = match info.protocol {
        Protocol::TCP | Protocol::UDP | Protocol::ICMP | Protocol::ICMPV6 => PORTS_LEN,
        Protocol::SCTP | Protocol::DCCP | Protocol::UDPLITE | Protocol::MH => PORTS_LEN,
        Protocol::GRE => GRE_KEY_LEN,
        _ => 0,
    };
    if info.has_transport() && ports_len > 0 {
        pkt.may_pull(turn.mem, info.total_len.min(info.header_len + ports_len))?;
    }
    Ok(FlowKey::new(info, pkt.head()))
}

/// Checks that a packet may be from and to the addresses that it has.
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
            // Who has no address yet speaks to groups alone.
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

/// Checks what every node on a packet's way reads besides the fixed header that `head` begins with.
fn check_on_way(head: &[u8], version: Version) -> Result<(), ext_headers::Fault> {
    match version {
        Version::V4 => ip_options::check(head),
        Version::V6 => ext_headers::check_hop_by_hop(head),
    }
}

pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

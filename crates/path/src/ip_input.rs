//! IP input: what is checked of every packet, whose flow it is, and where it goes (Linux `ip_rcv`, `ip6_rcv`).

use std::net::IpAddr;

use base::{DropReason, LinkId, Mib};
use fib::Decision;
use offload::ip_headers;
use packet::{Cut, Packet};
use wire::ip::Info;
use wire::ipv4::{Ipv4, Opt};
use wire::{FlowKey, MacAddr, Protocol, Version};

use crate::forward::Hop;
use crate::{IpPacket, Path, Turn};

/// Bytes in which a transport header has its ports, and the whole header of ICMP.
const PORTS_LEN: usize = 8;

/// Bytes in which a GRE header has its key (RFC 2890 §2).
const GRE_KEY_LEN: usize = 12;

impl Path {
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
        match decision {
            Decision::Local { .. } => self.deliver(turn, ip, false),
            Decision::Broadcast { .. } | Decision::Multicast => self.deliver(turn, ip, true),
            _ if oif.is_some() && self.own_link_local(link) == Some(dst) => self.deliver(turn, ip, false),
            Decision::Forward { dev, next_hop } => self.forward(turn, ip, Hop { dev, next_hop }),
            Decision::Drop(reason) => self.unroutable(turn, &ip, reason),
        }
    }

    /// Checks what RFC 1122 §3.2.1.3 and RFC 4291 §2.5 say of addresses, and finds the flow.
    fn classify(&mut self, turn: Turn<'_>, pkt: &mut Packet) -> Result<(Info, FlowKey), DropReason> {
        let (link, v4) = (pkt.meta.link, Version::of(pkt.head()) != Ok(Version::V6));
        let info = ip_headers(turn.mem, pkt).inspect_err(|&reason| self.count_malformed(link, reason, v4))?;
        self.count(link, if v4 { Mib::IpInReceives } else { Mib::Ip6InReceives });
        if info.fragment.is_some_and(|fragment| !fragment.is_atomic()) {
            pkt.meta.cut = Cut::Fragment;
        }
        check_addresses(info.src, info.dst).inspect_err(|_| {
            self.count(link, if v4 { Mib::IpInAddrErrors } else { Mib::Ip6InAddrErrors });
        })?;
        if v4 && !info.plain {
            check_options(pkt).inspect_err(|_| self.counters.count(Mib::IpInHdrErrors))?;
        }
        Ok((info, flow_of(turn, pkt, &info)?))
    }

    /// Linux's counter for a packet whose IP headers are wrong.
    pub(crate) fn count_malformed(&mut self, link: LinkId, reason: DropReason, v4: bool) {
        self.count(
            link,
            match reason {
                DropReason::Ipv4Header | DropReason::Ipv4Options => Mib::IpInHdrErrors,
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

/// Walks the options of an IPv4 header. A source route is not followed (Linux's `accept_source_route=0`).
fn check_options(pkt: &Packet) -> Result<(), DropReason> {
    for option in Ipv4::parse_head(pkt.head(), pkt.len())?.options() {
        if matches!(option?.kind, Opt::LOOSE_SOURCE_ROUTE | Opt::STRICT_SOURCE_ROUTE) {
            return Err(DropReason::Ipv4Options);
        }
    }
    Ok(())
}

pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

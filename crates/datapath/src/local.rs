//! Packets for this node (Linux `ip_local_deliver`, `ip6_input`).

use std::net::{IpAddr, Ipv6Addr};

use base::{DropReason, LinkId, Mib};
use fib::{Station, nd};
use host::icmp::{self, Problem};
use host::tcp::Segment;
use ipsec::{Dir, KEEPALIVE, Mode};
use offload::checksum;
use packet::{Packet, PktType};
use wire::ip::Info;
use wire::{Malformed, Protocol, Version, icmp as icmpv4, icmpv6, ipv4, udp};

use crate::ip_input::{LINK_LOCAL_ROUTERS, is_link_local};
use crate::{Datapath, IpPacket, Turn, ext_headers, path_mtu};

/// All nodes of a link, and all routers of a link and of a site (RFC 4291 §2.7.1).
const ALL_NODES_AND_ROUTERS: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2),
];

/// To how many a packet for this node was sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cast {
    /// To this node alone.
    Unicast,
    /// To whichever router on a subnet is nearest (RFC 4291 §2.6.1).
    Anycast,
    /// To everybody on a link, or to a group that this node may belong to.
    Group,
}

impl Datapath {
    /// Takes in what is for this node.
    pub(crate) fn deliver(&mut self, turn: Turn<'_>, mut ip: IpPacket, cast: Cast) {
        let v4 = ip.info.version() == Version::V4;
        if !v4
            && !ip.info.plain
            && let Err(fault) = ext_headers::check_for_node(ip.pkt.head(), &ip.info)
        {
            return self.drop_faulty(turn, &ip, fault);
        }
        // Also one that is whole and has a fragment header all the same (RFC 6946).
        if ip.info.fragment.is_some() {
            return self.reassemble(turn, ip, cast);
        }
        // Neighbour discovery is what policies depend on: like ARP, it is before them.
        if ip.info.protocol == Protocol::ICMPV6 && wire::nd::is_discovery(ip.flow.sport as u8) {
            return self.discover(turn, ip);
        }
        if self.is_for_ike(&ip) {
            match self.take_in_ike(ip) {
                Some(other) => ip = other,
                None => return,
            }
        }
        if let Err(reason) = self.check_policy(turn, Dir::In, &ip, ip.pkt.meta.link) {
            return self.drop(&ip.pkt, reason);
        }
        match ip.info.protocol {
            Protocol::ICMP if v4 => self.icmp(turn, ip, cast),
            Protocol::ICMPV6 if !v4 => self.icmp(turn, ip, cast),
            Protocol::UDP => self.udp(turn, &ip, cast),
            Protocol::TCP => self.tcp(turn, &ip, cast),
            // Nothing follows, and nothing is to be said of what does (RFC 8200 §4.7).
            Protocol::NO_NEXT if !v4 => {
                self.count(ip.pkt.meta.link, Mib::Ip6InDelivers);
                self.drop(&ip.pkt, DropReason::ProtocolUnknown);
            }
            _ => {
                self.count(ip.pkt.meta.link, if v4 { Mib::IpInUnknownProtos } else { Mib::Ip6InUnknownProtos });
                let problem = Problem::ProtocolUnknown { at: ip.info.next_header_at };
                self.refuse(turn, &ip, cast, DropReason::ProtocolUnknown, problem);
            }
        }
    }

    /// Drops a packet that this node does not want, and says so to its sender if it was sent to us alone.
    fn refuse(&mut self, turn: Turn<'_>, ip: &IpPacket, cast: Cast, reason: DropReason, problem: Problem) {
        if cast == Cast::Group { self.drop(&ip.pkt, reason) } else { self.reject(turn, ip, reason, problem) }
    }

    /// Neighbour discovery, which is for the link itself.
    fn discover(&mut self, turn: Turn<'_>, mut ip: IpPacket) {
        let link = ip.pkt.meta.link;
        self.count(link, Mib::Ip6InDelivers);
        self.count(link, Mib::Icmp6InMsgs);
        match ip.flow.sport as u8 {
            wire::nd::NEIGHBOUR_SOLICIT => self.count(link, Mib::Icmp6InNeighborSolicits),
            wire::nd::NEIGHBOUR_ADVERT => self.count(link, Mib::Icmp6InNeighborAdvertisements),
            _ => {}
        }
        let mac = self.ports.get(link).and_then(|port| port.config.mac);
        // What came through a tunnel was said on another link.
        let through_tunnel = |&id| self.ipsec.sa(id).is_none_or(|sa| sa.mode() == Mode::Tunnel);
        let Some(mac) = mac.filter(|_| !ip.pkt.meta.sec_path.iter().any(through_tunnel)) else {
            return self.drop(&ip.pkt, DropReason::IcmpIgnored);
        };
        if let Err(dry) = ip.pkt.linearize(turn.mem) {
            return self.drop(&ip.pkt, dry.into());
        }
        let Self { fib, neighbours, actions, .. } = self;
        let own = |target: Ipv6Addr, asker: Ipv6Addr| {
            let [to, by] = [target, asker].map(IpAddr::V6);
            if target == mac.link_local() || fib.has_address(link, to) {
                return Some(target);
            }
            let is_anycast = to == LINK_LOCAL_ROUTERS || fib.has_anycast(link, to);
            is_anycast.then(|| match fib.source(link, by) {
                Some(IpAddr::V6(source)) if !is_link_local(by) => source,
                _ => mac.link_local(),
            })
        };
        let here = Station { link, mac };
        let heard = nd::handle(neighbours, turn.now, turn.mem, here, own, ip.pkt.head(), actions);
        if let Err(reason) = heard {
            // The message is right, and there are too many of its kind.
            if reason != DropReason::NeighbourRateLimited {
                self.count(link, Mib::Icmp6InErrors);
            }
            self.drop(&ip.pkt, reason);
        }
        self.act(turn);
    }

    /// ICMP and ICMPv6: a ping is answered, what is said of a path is learnt, all else ends here.
    fn icmp(&mut self, turn: Turn<'_>, ip: IpPacket, cast: Cast) {
        let (link, v4) = (ip.pkt.meta.link, ip.info.version() == Version::V4);
        self.count(link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        self.count(link, if v4 { Mib::IcmpInMsgs } else { Mib::Icmp6InMsgs });
        if !icmp::check_ok(&ip.pkt, &ip.info) {
            self.count(link, if v4 { Mib::IcmpInCsumErrors } else { Mib::Icmp6InCsumErrors });
            self.count(link, if v4 { Mib::IcmpInErrors } else { Mib::Icmp6InErrors });
            return self.drop(&ip.pkt, DropReason::ChecksumWrong);
        }
        let kind = counter_of(&ip);
        if let Some(mib) = kind {
            self.count(link, mib);
        }
        if let Some(mtu) = path_mtu::told(&ip) {
            return self.learn_mtu(turn, &ip, mtu);
        }
        let is_ping = matches!(kind, Some(Mib::IcmpInEchos | Mib::Icmp6InEchos));
        let from = match cast {
            Cast::Unicast => Some(ip.info.dst),
            // Linux's `anycast_src_echo_reply=0`.
            Cast::Anycast => self.source_towards(link, ip.info.src),
            Cast::Group => self.member_address(link, &ip.info),
        };
        let Some(from) = from.filter(|_| is_ping) else { return self.drop(&ip.pkt, DropReason::IcmpIgnored) };
        let mut options = [0; ipv4::MAX_OPTIONS];
        let len = if ip.info.plain { 0 } else { self.returned_options(turn, &ip, &mut options) };
        match icmp::echo_reply(turn.mem, ip.pkt, &ip.info, from, &options[..len]) {
            Ok(reply) => {
                let kinds = match v4 {
                    true => [Mib::IcmpOutMsgs, Mib::IcmpOutEchoReps],
                    false => [Mib::Icmp6OutMsgs, Mib::Icmp6OutEchoReplies],
                };
                self.send_own(turn, reply, link, kinds);
            }
            Err(reason) => self.ports.drop(link, reason),
        }
    }

    /// The address that a ping to a group is answered from, if it is one that this node belongs to: those of all IPv6 nodes and
    /// routers, and the solicited-node group of an address of the link (RFC 4291 §2.8). One to other groups is not answered,
    /// nor is a broadcast (Linux's `icmp_echo_ignore_broadcasts`).
    fn member_address(&self, link: LinkId, info: &Info) -> Option<IpAddr> {
        let IpAddr::V6(group) = info.dst else { return None };
        let is_member = ALL_NODES_AND_ROUTERS.contains(&group) || self.is_solicited_node(link, group);
        is_member.then(|| self.source_towards(link, info.src)).flatten()
    }

    /// Tells whether a group is the solicited-node group of an address of the link (RFC 4291 §2.7.1).
    fn is_solicited_node(&self, link: LinkId, group: Ipv6Addr) -> bool {
        let is_of = |addr| matches!(addr, IpAddr::V6(addr) if wire::nd::solicited_node(addr) == group);
        let own = self.own_link_local(link);
        let listed = |own: base::IfAddr| is_of(own.addr()) || own.subnet_router_anycast().is_some_and(is_of);
        own.is_some_and(|own| is_of(own) || is_of(LINK_LOCAL_ROUTERS)) || self.fib.addresses(link).any(listed)
    }

    /// The address that an answer to `src` by `link` comes from, if the packet was not sent to one of this node's own.
    fn source_towards(&self, link: LinkId, src: IpAddr) -> Option<IpAddr> {
        let own = self.own_link_local(link);
        if is_link_local(src) { own } else { self.fib.source(link, src).or(own) }
    }

    /// UDP: the ports of IKE and of ESP in UDP are open, and no other port has a listener.
    fn udp(&mut self, turn: Turn<'_>, ip: &IpPacket, cast: Cast) {
        let v4 = ip.info.version() == Version::V4;
        self.count(ip.pkt.meta.link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        let fat = ip.pkt.meta.cut.gso().is_some();
        let Some(info) = datagram(ip) else {
            self.counters.count(if v4 { Mib::UdpInErrors } else { Mib::Udp6InErrors });
            return self.drop(&ip.pkt, DropReason::TransportHeader);
        };
        if !fat && !checksum::verify(&ip.pkt, &info) {
            self.counters.count(if v4 { Mib::UdpInCsumErrors } else { Mib::Udp6InCsumErrors });
            self.counters.count(if v4 { Mib::UdpInErrors } else { Mib::Udp6InErrors });
            return self.drop(&ip.pkt, DropReason::ChecksumWrong);
        }
        if self.is_to_open_port(ip) {
            self.counters.add(if v4 { Mib::UdpInDatagrams } else { Mib::Udp6InDatagrams }, ip.pkt.meta.cut.segs());
            if is_keepalive(&ip.pkt, &info) {
                return;
            }
            return self.drop(&ip.pkt, DropReason::EncapIgnored);
        }
        self.counters.count(if v4 { Mib::UdpNoPorts } else { Mib::Udp6NoPorts });
        self.refuse(turn, ip, cast, DropReason::UdpNoPort, Problem::PortUnreachable);
    }

    /// TCP: nobody listens, and there is no connection (Linux `tcp_v4_rcv`, `tcp_v6_rcv`).
    fn tcp(&mut self, turn: Turn<'_>, ip: &IpPacket, cast: Cast) {
        let (link, v4) = (ip.pkt.meta.link, ip.info.version() == Version::V4);
        self.count(link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        if cast != Cast::Unicast || ip.pkt.meta.pkt_type != PktType::Host {
            return self.drop(&ip.pkt, DropReason::TcpNoPort);
        }
        self.counters.count(Mib::TcpInSegs);
        let segment = match Segment::read(&ip.pkt, &ip.info) {
            Ok(segment) => segment,
            Err(malformed) => {
                if malformed == Malformed::TcpDataOffset {
                    self.counters.count(Mib::TcpInErrs);
                }
                return self.drop(&ip.pkt, malformed.into());
            }
        };
        let fat = ip.pkt.meta.cut.gso().is_some();
        if !fat && !checksum::verify(&ip.pkt, &ip.info) {
            self.counters.count(Mib::TcpInCsumErrors);
            self.counters.count(Mib::TcpInErrs);
            return self.drop(&ip.pkt, DropReason::ChecksumWrong);
        }
        self.drop(&ip.pkt, DropReason::TcpNoPort);
        match segment.reset(turn.mem, &ip.info) {
            Ok(Some(reset)) => self.send_own(turn, reset, link, [Mib::TcpOutSegs, Mib::TcpOutRsts]),
            Ok(None) => {}
            Err(reason) => self.ports.drop(LinkId::NONE, reason),
        }
    }
}

/// Tells whether a datagram to a port of ESP in UDP is a NAT's keepalive (RFC 3948 §2.3).
fn is_keepalive(pkt: &Packet, info: &Info) -> bool {
    let mut payload = [0; KEEPALIVE.len()];
    let at = info.header_len + udp::Header::LEN;
    info.total_len - at == payload.len() && pkt.read_at(at, &mut payload) && payload == KEEPALIVE
}

/// Summary of a packet of UDP that ends where the datagram does, which may be before the packet's own end; `None` if its header
/// is cut short, or says a length that cannot be (Linux `__udp4_lib_rcv`, `__udp6_lib_rcv`). A length of 0 is that of a
/// jumbogram over IPv6, whose packet says its own (RFC 2675 §4).
pub(crate) fn datagram(ip: &IpPacket) -> Option<Info> {
    let mut header = [0; udp::Header::LEN];
    let payload_len = ip.info.payload_len();
    if payload_len < header.len() || !ip.pkt.read_at(ip.info.header_len, &mut header) {
        return None;
    }
    let len = match udp::Header::ref_from(&header).ok()?.len() {
        _ if ip.pkt.meta.cut.gso().is_some() => payload_len,
        0 if ip.info.version() == Version::V6 => payload_len,
        len => Some(len).filter(|&len| (udp::Header::LEN..=payload_len).contains(&len))?,
    };
    Some(Info { total_len: ip.info.header_len + len, ..ip.info })
}

/// What an ICMP or ICMPv6 message is, as its counter tells; a ping is [`Mib::IcmpInEchos`] or [`Mib::Icmp6InEchos`].
fn counter_of(ip: &IpPacket) -> Option<Mib> {
    let message = ip.info.payload(ip.pkt.head());
    Some(match ip.info.version() {
        Version::V4 => match icmpv4::Header::ref_from(message).ok()?.message()? {
            icmpv4::Message::EchoReply { .. } => Mib::IcmpInEchoReps,
            icmpv4::Message::EchoRequest { .. } => Mib::IcmpInEchos,
            icmpv4::Message::Unreachable(_) | icmpv4::Message::FragNeeded { .. } => Mib::IcmpInDestUnreachs,
            icmpv4::Message::TimeExceeded(_) => Mib::IcmpInTimeExcds,
            icmpv4::Message::ParamProblem { .. } => Mib::IcmpInParmProbs,
        },
        Version::V6 => match icmpv6::Header::ref_from(message).ok()?.message()? {
            icmpv6::Message::EchoReply { .. } => Mib::Icmp6InEchoReplies,
            icmpv6::Message::EchoRequest { .. } => Mib::Icmp6InEchos,
            icmpv6::Message::Unreachable(_) => Mib::Icmp6InDestUnreachs,
            icmpv6::Message::PacketTooBig { .. } => Mib::Icmp6InPktTooBigs,
            icmpv6::Message::TimeExceeded(_) => Mib::Icmp6InTimeExcds,
            icmpv6::Message::ParamProblem { .. } => Mib::Icmp6InParmProblems,
        },
    })
}

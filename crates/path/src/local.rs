//! Packets for this node (Linux `ip_local_deliver`, `ip6_input`).

use std::net::IpAddr;

use base::{DropReason, LinkId, Mib};
use fib::{Station, nd};
use host::icmp::{self, Problem};
use host::tcp::Segment;
use ipsec::{Dir, Mode};
use offload::checksum;
use wire::{Malformed, Protocol, Version, icmp as icmpv4, icmpv6};

use crate::{IpPacket, Path, Turn, path_mtu};

impl Path {
    /// Takes in what is for this node alone, or for a group (`for_all`) that it may belong to.
    pub(crate) fn deliver(&mut self, turn: Turn<'_>, mut ip: IpPacket, for_all: bool) {
        let v4 = ip.info.version() == Version::V4;
        // Also one that is whole and has a fragment header all the same (RFC 6946).
        if ip.info.fragment.is_some() {
            return self.reassemble(turn, ip, for_all);
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
            Protocol::ICMP if v4 => self.icmp(turn, ip, for_all),
            Protocol::ICMPV6 if !v4 => self.icmp(turn, ip, for_all),
            Protocol::UDP => self.udp(turn, &ip, for_all),
            Protocol::TCP => self.tcp(turn, &ip, for_all),
            _ => {
                self.count(ip.pkt.meta.link, if v4 { Mib::IpInUnknownProtos } else { Mib::Ip6InUnknownProtos });
                let problem = Problem::ProtocolUnknown { at: ip.info.next_header_at };
                self.refuse(turn, &ip, for_all, DropReason::ProtocolUnknown, problem);
            }
        }
    }

    /// Drops a packet that this node does not want, and says so to its sender if it was sent to us alone.
    fn refuse(&mut self, turn: Turn<'_>, ip: &IpPacket, for_all: bool, reason: DropReason, problem: Problem) {
        if for_all { self.drop(&ip.pkt, reason) } else { self.reject(turn, ip, reason, problem) }
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
        let is_own = |addr| addr == mac.link_local() || fib.has_address(link, IpAddr::V6(addr));
        let heard = nd::handle(neighbours, turn.now, turn.mem, Station { link, mac }, is_own, ip.pkt.head(), actions);
        if let Err(reason) = heard {
            self.count(link, Mib::Icmp6InErrors);
            self.drop(&ip.pkt, reason);
        }
        self.act(turn);
    }

    /// ICMP and ICMPv6: a ping is answered, what is said of a path is learnt, all else ends here.
    fn icmp(&mut self, turn: Turn<'_>, ip: IpPacket, for_all: bool) {
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
        // A ping to everybody is not answered (Linux's `icmp_echo_ignore_broadcasts`).
        if for_all || !matches!(kind, Some(Mib::IcmpInEchos | Mib::Icmp6InEchos)) {
            return self.drop(&ip.pkt, DropReason::IcmpIgnored);
        }
        match icmp::echo_reply(turn.mem, ip.pkt, &ip.info) {
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

    /// UDP: no port has a listener.
    fn udp(&mut self, turn: Turn<'_>, ip: &IpPacket, for_all: bool) {
        let v4 = ip.info.version() == Version::V4;
        self.count(ip.pkt.meta.link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        let fat = ip.pkt.meta.cut.gso().is_some();
        if !fat && !checksum::verify(&ip.pkt, &ip.info) {
            self.counters.count(if v4 { Mib::UdpInCsumErrors } else { Mib::Udp6InCsumErrors });
            self.counters.count(if v4 { Mib::UdpInErrors } else { Mib::Udp6InErrors });
            return self.drop(&ip.pkt, DropReason::ChecksumWrong);
        }
        self.counters.count(if v4 { Mib::UdpNoPorts } else { Mib::Udp6NoPorts });
        self.refuse(turn, ip, for_all, DropReason::UdpNoPort, Problem::PortUnreachable);
    }

    /// TCP: nobody listens, and there is no connection (Linux `tcp_v4_rcv`, `tcp_v6_rcv`).
    fn tcp(&mut self, turn: Turn<'_>, ip: &IpPacket, for_all: bool) {
        let (link, v4) = (ip.pkt.meta.link, ip.info.version() == Version::V4);
        self.count(link, if v4 { Mib::IpInDelivers } else { Mib::Ip6InDelivers });
        if for_all {
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

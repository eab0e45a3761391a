//! What this node sends of its own accord: answers, and errors to the senders of packets that it drops.

use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, LinkId, Mib};
use fib::Decision;
use host::icmp::{self, Problem};
use ipsec::Released;
use offload::ip_headers;
use packet::Packet;
use wire::Version;
use wire::ip::Info;

use crate::forward::Hop;
use crate::ip_input::flow_of;
use crate::{Datapath, HostRole, IpPacket, Turn};

/// Source of errors of a node without an IPv4 address (RFC 7600 §4.8).
const DUMMY: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

impl Datapath {
    /// Drops a packet and tells its sender why, as far as rules and rate limits let it.
    pub(crate) fn reject(&mut self, turn: Turn<'_>, ip: &IpPacket, reason: DropReason, problem: Problem) {
        self.drop(&ip.pkt, reason);
        self.tell(turn, &ip.pkt, &ip.info, problem);
    }

    /// Tells a packet's sender what is wrong with it, as far as rules and rate limits let it.
    pub(crate) fn tell(&mut self, turn: Turn<'_>, pkt: &Packet, info: &Info, problem: Problem) {
        // Our own packets have nobody to tell.
        if pkt.meta.link == LinkId::NONE || !icmp::may_answer(pkt, info, problem) {
            return;
        }
        let v4 = info.version() == Version::V4;
        if !problem.is_unlimited() && !self.icmp_limit.allow(turn.now, info.src) {
            self.counters.count(if v4 { Mib::IcmpOutRateLimitHost } else { Mib::Icmp6OutRateLimitHost });
            return self.ports.drop(LinkId::NONE, DropReason::IcmpRateLimited);
        }
        let Some(src) = self.source_for(pkt, info) else { return };
        let mut error = match icmp::error(turn.mem, pkt, info, problem, src) {
            Ok(error) => error,
            Err(reason) => return self.ports.drop(LinkId::NONE, reason),
        };
        let kind = match (v4, problem) {
            (true, Problem::TtlExceeded | Problem::ReassemblyTimeExceeded) => Mib::IcmpOutTimeExcds,
            (true, Problem::Parameter { .. }) => Mib::IcmpOutParmProbs,
            (true, _) => Mib::IcmpOutDestUnreachs,
            (false, Problem::TtlExceeded | Problem::ReassemblyTimeExceeded) => Mib::Icmp6OutTimeExcds,
            (false, Problem::TooBig { .. }) => Mib::Icmp6OutPktTooBigs,
            (false, Problem::ProtocolUnknown { .. } | Problem::Parameter { .. }) => Mib::Icmp6OutParmProblems,
            (false, _) => Mib::Icmp6OutDestUnreachs,
        };
        error.meta.sec_path = pkt.meta.sec_path.clone();
        let all = if v4 { Mib::IcmpOutMsgs } else { Mib::Icmp6OutMsgs };
        self.send_own(turn, error, pkt.meta.link, [all, kind]);
    }

    /// The address that an error about a packet comes from: the one it was sent to if that is ours, else one of the link
    /// that leads back (RFC 1812 §4.3.2.4, RFC 4443 §2.2). If it came through a tunnel that is one of the link that it
    /// should have left by: policies speak of what is behind a gateway, not of the wire between gateways. The host takes no
    /// packet from an address of its own, so it is told from another one. A node that has none is the dummy address over IPv4
    /// (RFC 7600 §4.8, Linux `icmp_send`), and over IPv6 the link-local address of an Ethernet link, or else the packet's
    /// destination: from that its sender, wherever it is behind a TUN device, takes an answer.
    fn source_for(&self, pkt: &Packet, info: &Info) -> Option<IpAddr> {
        let link = pkt.meta.link;
        let domain = self.fib.domain(link);
        let is_own = self.own_link_local(link) == Some(info.dst) || self.has_anycast(link, info.dst);
        if is_own || self.fib.is_local_or_anycast(domain, info.dst) {
            return Some(info.dst);
        }
        let towards = if pkt.meta.sec_path.is_empty() { info.src } else { info.dst };
        let dev = match self.decide(domain, towards) {
            Decision::Forward { dev, .. } => dev,
            _ => link,
        };
        let to_host = self.host_is(dev, HostRole::Peer);
        let is_allowed = |link| !(to_host && self.host_is(link, HostRole::SharesAddress));
        let own = self.fib.source_among(dev, info.src, is_allowed);
        own.or_else(|| match info.version() {
            Version::V4 => Some(IpAddr::V4(DUMMY)),
            Version::V6 => self.own_link_local(dev).or(Some(info.dst).filter(|dst| !dst.is_multicast())),
        })
    }

    /// Sends what has waited for an SA as if it had just come, or drops it.
    pub(crate) fn release(&mut self, turn: Turn<'_>) {
        for released in self.ipsec.take_released() {
            let (mut pkt, by) = match released {
                Released::Again(pkt, by) => (pkt, by),
                Released::Dropped(pkt, reason) => {
                    self.drop(&pkt, reason);
                    continue;
                }
            };
            let parsed = ip_headers(turn.mem, &mut pkt).and_then(|info| Ok((info, flow_of(turn, &mut pkt, &info)?)));
            // What came in goes on in the domain that it came in by.
            let domain = self.fib.domain(if pkt.meta.link == LinkId::NONE { by } else { pkt.meta.link });
            match parsed.map(|(info, flow)| (self.decide(domain, info.dst), info, flow)) {
                Ok((Decision::Forward { dev, next_hop }, info, flow)) => {
                    self.output(turn, IpPacket { pkt, info, flow }, Hop { dev, next_hop });
                }
                Ok((Decision::Drop(reason), ..)) | Err(reason) => self.drop(&pkt, reason),
                Ok(_) => self.drop(&pkt, DropReason::NoRoute),
            }
        }
    }

    /// Sends a packet of this node's that begins with its IP header, in the domain of `link`, which is where a link-local
    /// destination is. It is counted as `kinds` once it is known where it goes; its `sec_path` is that of a packet that it
    /// quotes.
    pub(crate) fn send_own(&mut self, turn: Turn<'_>, mut pkt: Packet, link: LinkId, kinds: [Mib; 2]) {
        pkt.meta.link = LinkId::NONE;
        let parsed = ip_headers(turn.mem, &mut pkt).and_then(|info| Ok((info, flow_of(turn, &mut pkt, &info)?)));
        let (info, flow) = match parsed {
            Ok(parsed) => parsed,
            Err(reason) => return self.drop(&pkt, reason),
        };
        let v4 = info.version() == Version::V4;
        let link_local = matches!(info.dst, IpAddr::V6(dst) if dst.is_unicast_link_local());
        let domain = self.fib.domain(link);
        let hop = match self.fib.decide(domain, info.dst, link_local.then_some(link)) {
            // What is on the link itself needs no VRF.
            Decision::Forward { .. } if !link_local && !self.fib.may_send(domain) => Err(DropReason::LinkDown),
            Decision::Forward { dev, next_hop } => Ok(Hop { dev, next_hop }),
            _ if link_local => Ok(Hop { dev: link, next_hop: info.dst }),
            Decision::Drop(reason) => Err(reason),
            _ => Err(DropReason::NoRoute),
        };
        let hop = match hop {
            Ok(hop) => hop,
            Err(reason) => {
                self.counters.count(if v4 { Mib::IpOutNoRoutes } else { Mib::Ip6OutNoRoutes });
                return self.drop(&pkt, reason);
            }
        };
        self.count(hop.dev, if v4 { Mib::IpOutRequests } else { Mib::Ip6OutRequests });
        kinds.into_iter().for_each(|kind| self.count(hop.dev, kind));
        self.output(turn, IpPacket { pkt, info, flow }, hop);
    }
}

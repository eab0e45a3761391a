//! Packets for others: policy, TTL, and out again (Linux `ip_forward`, `ip6_forward`).

use std::net::IpAddr;

use base::{DropReason, LinkId, Mib};
use host::icmp::Problem;
use ipsec::{Dir, Flowi};
use packet::PktType;
use wire::{Version, ipv4, ipv6};

use crate::quote::answer_to_quoted;
use crate::{Datapath, IpPacket, Turn};

/// Where a packet goes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// The link.
    pub(crate) dev: LinkId,
    /// The neighbour on it.
    pub(crate) next_hop: IpAddr,
}

impl Datapath {
    /// Sends on what came for somebody else.
    pub(crate) fn forward(&mut self, turn: Turn<'_>, ip: IpPacket, hop: Hop) {
        let v4 = ip.info.version() == Version::V4;
        // Every station on the link got it, and would send it on as well (RFC 1122 §3.3.6, RFC 1812 §5.3.4).
        if ip.pkt.meta.pkt_type != PktType::Host {
            return self.drop(&ip.pkt, DropReason::EthNotForUs);
        }
        if let Err(reason) = self.check_policy(turn, Dir::Fwd, &ip, hop.dev) {
            return self.drop(&ip.pkt, reason);
        }
        if !v4 && has_link_scope(&ip) {
            self.count(ip.pkt.meta.link, Mib::Ip6InAddrErrors);
            return self.drop(&ip.pkt, DropReason::IpSourceInvalid);
        }
        if ip.info.ttl <= 1 {
            self.count(ip.pkt.meta.link, if v4 { Mib::IpInHdrErrors } else { Mib::Ip6InHdrErrors });
            return self.reject(turn, &ip, DropReason::TtlExceeded, Problem::TtlExceeded);
        }
        if self.ports.get(hop.dev).is_none_or(|port| !port.up) {
            return self.reject(turn, &ip, DropReason::LinkDown, Problem::HostUnreachable);
        }
        self.output(turn, ip, hop);
    }

    /// Takes one from the TTL of a packet that is sent on to `hop`, when nothing keeps it here any more: until then an ICMP error
    /// quotes it as it came. A packet of our own starts with its whole TTL.
    #[inline]
    pub(crate) fn count_hop(&mut self, turn: Turn<'_>, ip: &mut IpPacket, hop: Hop) -> Result<(), DropReason> {
        if ip.pkt.meta.link == LinkId::NONE {
            return Ok(());
        }
        let v4 = ip.info.version() == Version::V4;
        let head = ip.pkt.writable_head(turn.mem)?;
        if v4 {
            ipv4::Header::mut_from(head)?.decrement_ttl();
        } else {
            ipv6::Header::mut_from(head)?.decrement_hop_limit();
        }
        ip.info.ttl = ip.info.ttl.saturating_sub(1);
        if v4 && !ip.info.plain {
            self.record_hop(turn, ip, hop)?;
        }
        self.count(hop.dev, if v4 { Mib::IpForwDatagrams } else { Mib::Ip6OutForwDatagrams });
        self.forwarded.packets += 1;
        self.forwarded.bytes += ip.pkt.len() as u64;
        Ok(())
    }

    /// Asks the policies, if there are any, whether a packet may go on as it came: to leave by `link`, or having come by it
    /// for this node.
    #[inline]
    pub(crate) fn check_policy(
        &mut self,
        turn: Turn<'_>,
        dir: Dir,
        ip: &IpPacket,
        link: LinkId,
    ) -> Result<(), DropReason> {
        if self.ipsec.is_idle() && ip.pkt.meta.sec_path.is_empty() {
            return Ok(());
        }
        let quoted = || answer_to_quoted(ip);
        let sec_path = &ip.pkt.meta.sec_path;
        self.ipsec.check(turn.now, dir, &self.flowi(dir, ip, link), sec_path, quoted, &mut self.counters)?;
        if ip.pkt.meta.sec_path.is_empty() && self.is_doubtful(dir, ip, link) {
            self.counters.count(Mib::XfrmInTmplMismatch);
            return Err(DropReason::PolicyMismatch);
        }
        Ok(())
    }

    /// The flow of a packet that policies of `dir` are asked about: it leaves by `link`, or has come by it for this node.
    #[inline]
    fn flowi(&self, dir: Dir, ip: &IpPacket, link: LinkId) -> Flowi {
        let domain = match self.fib.domain(link) {
            LinkId::NONE if dir == Dir::In => LinkId::LOOPBACK,
            domain => domain,
        };
        ip.flowi(link, domain)
    }

    /// Tells whether a packet that no policy has stopped is a later fragment, and may belong to packets that one would: it
    /// does not say its ports. In clear it goes no further then (RFC 4301 §7); Linux lets it pass.
    #[inline]
    pub(crate) fn is_doubtful(&self, dir: Dir, ip: &IpPacket, link: LinkId) -> bool {
        !ip.info.has_transport() && self.ipsec.spd().may_stop_fragment(dir, &self.flowi(dir, ip, link))
    }

    /// A packet to which no route leads, or one that says so.
    pub(crate) fn unroutable(&mut self, turn: Turn<'_>, ip: &IpPacket, reason: DropReason) {
        let v4 = ip.info.version() == Version::V4;
        let problem = match reason {
            DropReason::NoRoute => Problem::NoRoute,
            // Over IPv6 Linux says "no route" here too (`ip6_pkt_discard`).
            DropReason::RouteUnreachable => {
                if v4 {
                    Problem::HostUnreachable
                } else {
                    Problem::NoRoute
                }
            }
            DropReason::RouteProhibit => Problem::Prohibited,
            _ => return self.drop(&ip.pkt, reason),
        };
        match (v4, reason) {
            (true, DropReason::NoRoute) => self.counters.count(Mib::IpExtInNoRoutes),
            (true, _) => {}
            (false, _) => self.count(ip.pkt.meta.link, Mib::Ip6InNoRoutes),
        }
        self.reject(turn, ip, reason, problem);
    }
}

/// Tells whether one of a packet's addresses means something on its own link alone (RFC 4291 §2.5.6).
fn has_link_scope(ip: &IpPacket) -> bool {
    [ip.info.src, ip.info.dst].iter().any(|addr| matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local()))
}

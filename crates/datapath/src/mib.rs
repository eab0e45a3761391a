//! Linux's counters that IPv4 and IPv6 both have, and the counting of them.

use base::{DropReason, Mib, PortId};
use packet::Packet;
use wire::Version;

use crate::node::ports::Dropped;
use crate::{Datapath, trace};

/// Counter of IPv4 and its counterpart of IPv6.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MibPair(Mib, Mib);

impl MibPair {
    pub(crate) const IN_RECEIVES: Self = Self(Mib::IpInReceives, Mib::Ip6InReceives);
    pub(crate) const IN_DELIVERS: Self = Self(Mib::IpInDelivers, Mib::Ip6InDelivers);
    pub(crate) const IN_HDR_ERRORS: Self = Self(Mib::IpInHdrErrors, Mib::Ip6InHdrErrors);
    pub(crate) const IN_ADDR_ERRORS: Self = Self(Mib::IpInAddrErrors, Mib::Ip6InAddrErrors);
    pub(crate) const IN_DISCARDS: Self = Self(Mib::IpInDiscards, Mib::Ip6InDiscards);
    pub(crate) const IN_TRUNCATED: Self = Self(Mib::IpExtInTruncatedPkts, Mib::Ip6InTruncatedPkts);
    pub(crate) const IN_UNKNOWN_PROTOS: Self = Self(Mib::IpInUnknownProtos, Mib::Ip6InUnknownProtos);
    pub(crate) const FORWARDED: Self = Self(Mib::IpForwDatagrams, Mib::Ip6OutForwDatagrams);
    pub(crate) const OUT_REQUESTS: Self = Self(Mib::IpOutRequests, Mib::Ip6OutRequests);
    pub(crate) const OUT_NO_ROUTES: Self = Self(Mib::IpOutNoRoutes, Mib::Ip6OutNoRoutes);
    pub(crate) const FRAG_OKS: Self = Self(Mib::IpFragOKs, Mib::Ip6FragOKs);
    pub(crate) const FRAG_FAILS: Self = Self(Mib::IpFragFails, Mib::Ip6FragFails);
    pub(crate) const FRAG_CREATES: Self = Self(Mib::IpFragCreates, Mib::Ip6FragCreates);
    pub(crate) const ICMP_IN_MSGS: Self = Self(Mib::IcmpInMsgs, Mib::Icmp6InMsgs);
    pub(crate) const ICMP_IN_ERRORS: Self = Self(Mib::IcmpInErrors, Mib::Icmp6InErrors);
    pub(crate) const ICMP_IN_CSUM_ERRORS: Self = Self(Mib::IcmpInCsumErrors, Mib::Icmp6InCsumErrors);
    pub(crate) const ICMP_OUT_MSGS: Self = Self(Mib::IcmpOutMsgs, Mib::Icmp6OutMsgs);
    pub(crate) const ICMP_OUT_ECHO_REPLIES: Self = Self(Mib::IcmpOutEchoReps, Mib::Icmp6OutEchoReplies);
    pub(crate) const ICMP_OUT_RATE_LIMITED: Self = Self(Mib::IcmpOutRateLimitHost, Mib::Icmp6OutRateLimitHost);
    pub(crate) const UDP_IN_DATAGRAMS: Self = Self(Mib::UdpInDatagrams, Mib::Udp6InDatagrams);
    pub(crate) const UDP_IN_ERRORS: Self = Self(Mib::UdpInErrors, Mib::Udp6InErrors);
    pub(crate) const UDP_IN_CSUM_ERRORS: Self = Self(Mib::UdpInCsumErrors, Mib::Udp6InCsumErrors);
    pub(crate) const UDP_IGNORED_MULTI: Self = Self(Mib::UdpIgnoredMulti, Mib::Udp6IgnoredMulti);
    pub(crate) const UDP_NO_PORTS: Self = Self(Mib::UdpNoPorts, Mib::Udp6NoPorts);

    /// Counter of that IP version.
    #[inline(always)]
    pub(crate) const fn of(self, version: Version) -> Mib {
        match version {
            Version::V4 => self.0,
            Version::V6 => self.1,
        }
    }
}

impl Datapath {
    /// Counts `which` for the node and, if [links have that counter](Mib::is_of_links), for `link` (Linux `IP6_INC_STATS`): the
    /// link that a packet came in by, or leaves by.
    #[inline]
    pub(crate) fn count(&mut self, link: PortId, which: Mib) {
        self.count_all(link, which, 1);
    }

    /// Counts `which` `n` times, as [`count`](Self::count) does once.
    #[inline]
    pub(crate) fn count_all(&mut self, link: PortId, which: Mib, n: u64) {
        self.counters.add(which, n);
        if which.is_of_links()
            && let Some(port) = self.ports.get_mut(link)
        {
            port.counters.add(which, n);
        }
    }

    /// Counts `packets` that IP input has received: the one place for `InReceives`.
    #[inline]
    pub(crate) fn count_received(&mut self, link: PortId, version: Version, packets: u64) {
        self.count_all(link, MibPair::IN_RECEIVES.of(version), packets);
    }

    /// Counts `packets` that were delivered to a protocol of this node: the one place for `InDelivers`.
    #[inline]
    pub(crate) fn count_delivered(&mut self, link: PortId, version: Version, packets: u64) {
        self.count_all(link, MibPair::IN_DELIVERS.of(version), packets);
    }

    /// Counts a dropped packet by its reason and the link that it came in by.
    pub(crate) fn count_drop(&mut self, pkt: &Packet, reason: DropReason) -> Dropped {
        self.count_packet_drop(pkt, 0, reason)
    }

    /// As [`count_drop`](Self::count_drop), for a packet whose IP header begins at `l3`.
    pub(crate) fn count_packet_drop(&mut self, pkt: &Packet, l3: usize, reason: DropReason) -> Dropped {
        trace::dropped(self, pkt, l3, reason);
        self.ports.count_drops(pkt.meta.origin.get(), reason, pkt.meta.cut.packets())
    }

    /// Counts a dropped frame of a link that may have link-layer headers.
    pub(crate) fn count_frame_drop(&mut self, pkt: &Packet, reason: DropReason) -> Dropped {
        let device = self.ports.get(pkt.meta.origin.device());
        let l3 = if device.is_some_and(|port| port.config.mac.is_some()) { trace::l3_of_frame(pkt) } else { 0 };
        self.count_packet_drop(pkt, l3, reason)
    }
}

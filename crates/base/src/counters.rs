//! Counters with their names in `nstat` and `/proc/net/xfrm_stat`.

use std::fmt;

macro_rules! mib {
    ($($name:ident)*) => {
        /// A counter of the SNMP, extended-IP or XFRM groups, by its Linux name. Code in this program counts each of
        /// them; Linux counters that this program never counts appear only in the files that list them.
        #[allow(missing_docs, reason = "the names are Linux's, and documented there")]
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        #[repr(u8)]
        pub enum Mib { $($name,)* }

        impl Mib {
            /// Every counter, in display order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Linux's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

mib! {
    IpInReceives IpInHdrErrors IpInAddrErrors IpForwDatagrams IpInUnknownProtos IpInDiscards IpInDelivers
    IpOutRequests IpOutNoRoutes IpReasmTimeout IpReasmReqds IpReasmOKs IpReasmFails IpFragOKs
    IpFragFails IpFragCreates IpExtInNoRoutes IpExtInTruncatedPkts IpExtInCsumErrors IpExtReasmOverlaps
    IcmpInMsgs IcmpInErrors IcmpInCsumErrors IcmpInDestUnreachs IcmpInTimeExcds IcmpInParmProbs IcmpInEchos IcmpInEchoReps
    IcmpOutMsgs IcmpOutRateLimitHost IcmpOutDestUnreachs IcmpOutTimeExcds IcmpOutParmProbs IcmpOutEchoReps
    Ip6InReceives Ip6InHdrErrors Ip6InTooBigErrors Ip6InNoRoutes Ip6InAddrErrors Ip6InUnknownProtos
    Ip6InTruncatedPkts Ip6InDiscards Ip6InDelivers Ip6OutForwDatagrams Ip6OutRequests
    Ip6OutNoRoutes Ip6ReasmTimeout Ip6ReasmReqds Ip6ReasmOKs Ip6ReasmFails Ip6FragOKs Ip6FragFails Ip6FragCreates
    Icmp6InMsgs Icmp6InErrors Icmp6InCsumErrors Icmp6InDestUnreachs Icmp6InPktTooBigs Icmp6InTimeExcds Icmp6InParmProblems
    Icmp6InEchos Icmp6InEchoReplies Icmp6InNeighborSolicits Icmp6InNeighborAdvertisements
    Icmp6OutMsgs Icmp6OutRateLimitHost Icmp6OutDestUnreachs Icmp6OutPktTooBigs Icmp6OutTimeExcds Icmp6OutParmProblems
    Icmp6OutEchoReplies Icmp6OutNeighborSolicits Icmp6OutNeighborAdvertisements
    TcpInSegs TcpOutSegs TcpInErrs TcpOutRsts TcpInCsumErrors
    UdpInDatagrams UdpNoPorts UdpInErrors UdpInCsumErrors UdpIgnoredMulti
    Udp6InDatagrams Udp6NoPorts Udp6InErrors Udp6InCsumErrors Udp6IgnoredMulti
    XfrmInError XfrmInBufferError XfrmInHdrError XfrmInNoStates XfrmInStateProtoError XfrmInStateModeError
    XfrmInStateSeqError XfrmInStateExpired XfrmInStateMismatch XfrmInStateInvalid XfrmInTmplMismatch XfrmInNoPols
    XfrmInPolBlock XfrmOutError XfrmOutBundleGenError XfrmOutNoStates
    XfrmOutStateProtoError XfrmOutStateModeError XfrmOutStateSeqError XfrmOutStateExpired XfrmOutPolBlock
    XfrmOutPolError XfrmOutStateInvalid XfrmAcquireError XfrmOutStateDirError
    XfrmInStateDirError XfrmOutNoQueueSpace
}

impl Mib {
    /// Number of counters.
    pub const COUNT: usize = Self::ALL.len();

    /// Tells whether each link has a separate counter too, as for IPv6 and ICMPv6 in Linux (`/proc/net/dev_snmp6`).
    pub const fn is_of_links(self) -> bool {
        let of_v6 = Self::Ip6InReceives as u8 <= self as u8 && self as u8 <= Self::Icmp6OutNeighborAdvertisements as u8;
        of_v6 && !matches!(self, Self::Icmp6OutRateLimitHost)
    }
}

/// One node's counters. Tests compare them as one value: counters that a test does not name must be unchanged.
#[derive(Clone, Eq, PartialEq)]
pub struct Counters {
    values: [u64; Mib::COUNT],
}

impl Counters {
    /// All counters zero.
    pub const ZERO: Self = Self { values: [0; Mib::COUNT] };

    /// Counts one event.
    pub fn count(&mut self, which: Mib) {
        self.add(which, 1);
    }

    /// Counts `n` events at once, as for the segments of a fat packet.
    pub fn add(&mut self, which: Mib, n: u64) {
        let value = &mut self.values[which as usize];
        *value = value.wrapping_add(n);
    }

    /// The value of one counter.
    pub fn get(&self, which: Mib) -> u64 {
        self.values[which as usize]
    }

    /// The same counters with one of them set, for the expectations of tests.
    #[must_use]
    pub fn with(mut self, which: Mib, value: u64) -> Self {
        self.values[which as usize] = value;
        self
    }

    /// Every counter with its value, in the order of [`Mib::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Mib, u64)> + '_ {
        Mib::ALL.iter().map(|&which| (which, self.get(which)))
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self::ZERO
    }
}

impl fmt::Debug for Counters {
    /// Prints only non-zero counters, so that a failed comparison is readable.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().filter(|&(_, value)| value != 0).map(|(which, value)| (which.name(), value)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_count_ipv6_alone() {
        let of_links = |which: &&Mib| which.name().starts_with("Ip6") || which.name().starts_with("Icmp6");
        let named: Vec<Mib> = Mib::ALL.iter().filter(of_links).copied().collect();
        let counted: Vec<Mib> = Mib::ALL.iter().filter(|which| which.is_of_links()).copied().collect();
        assert_eq!(counted.len(), named.len() - 1, "Linux limits ICMPv6 for the node");
        assert!(counted.iter().all(|which| named.contains(which)));
    }

    #[test]
    fn a_counter_moves_alone() {
        let mut counters = Counters::ZERO;
        counters.add(Mib::IpInReceives, 44);
        counters.count(Mib::IpInReceives);
        assert_eq!(counters, Counters::ZERO.with(Mib::IpInReceives, 45));
        assert_eq!(format!("{counters:?}"), r#"{"IpInReceives": 45}"#);
    }
}

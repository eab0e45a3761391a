//! Verdicts on fragments.

use base::{Counters, DropReason, Mib, Origin};
use packet::Packet;
use wire::ip::Info;
use wire::{Version, icmpv6};

/// Verdict on a fragment.
#[derive(Debug)]
pub enum Verdict {
    /// The datagram is complete, without a fragment header.
    Whole {
        /// Datagram, in as few buffers as possible; with [`Coalesce::Off`](crate::Coalesce::Off) the first fragment with
        /// each later one as a child.
        pkt: Packet,
        /// Length of the largest fragment, with its headers (Linux `IPCB(skb)->frag_max_size`).
        largest: usize,
    },
    /// The fragment is held until its datagram is complete.
    Held,
    /// The fragment is held. Earlier fragments of its identification are dropped with [`DropReason::FragmentDistance`].
    Restarted {
        /// Number of dropped fragments.
        packets: u64,
    },
    /// The fragment is dropped.
    Drop {
        /// Reason.
        reason: DropReason,
        /// Number of dropped packets: the fragment, and the datagram's waiting fragments unless this one was a
        /// duplicate.
        packets: u64,
    },
    /// The fragment is dropped, and an ICMPv6 parameter problem is due to its sender.
    Refuse {
        /// The packet to quote, which begins with its IP header: the fragment; or the complete datagram, for
        /// [`DropReason::FragmentNested`] and [`DropReason::ProtocolUnknown`].
        pkt: Packet,
        /// Reason. The caller counts an unknown protocol, if policies accept the packet.
        reason: DropReason,
        /// The message's code.
        code: icmpv6::Problem,
        /// The message's pointer, in bytes from the front of `pkt`.
        pointer: usize,
    },
}

/// A datagram that has timed out.
#[derive(Debug)]
pub struct Expired {
    /// First fragment and its headers, for an ICMP error to the sender; `None` if it has not arrived, or the link was
    /// removed. Its link is that of the latest fragment.
    pub first: Option<(Packet, Info)>,
    /// Origin of the latest fragment.
    pub origin: Origin,
    /// Number of fragments dropped with [`DropReason::FragmentTimeout`], including the first.
    pub packets: u64,
    /// IPv4 or IPv6.
    pub version: Version,
}

/// An evicted datagram, whose fragments are dropped with [`DropReason::FragmentEvicted`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Evicted {
    /// Origin of the latest fragment.
    pub origin: Origin,
    /// Number of dropped fragments.
    pub packets: u64,
}

/// Counters of one family.
#[derive(Clone, Copy, Debug)]
struct Mibs {
    requests: Mib,
    oks: Mib,
    fails: Mib,
    timeout: Mib,
    /// Counter of overlaps; Linux has one for IPv4 only.
    overlaps: Option<Mib>,
}

impl Mibs {
    const fn of(version: Version) -> Self {
        match version {
            Version::V4 => Self {
                requests: Mib::IpReasmReqds,
                oks: Mib::IpReasmOKs,
                fails: Mib::IpReasmFails,
                timeout: Mib::IpReasmTimeout,
                overlaps: Some(Mib::IpExtReasmOverlaps),
            },
            Version::V6 => Self {
                requests: Mib::Ip6ReasmReqds,
                oks: Mib::Ip6ReasmOKs,
                fails: Mib::Ip6ReasmFails,
                timeout: Mib::Ip6ReasmTimeout,
                overlaps: None,
            },
        }
    }
}

/// Counters, and those of them that one family counts.
#[derive(Debug)]
pub(crate) struct Count<'a> {
    counters: &'a mut Counters,
    mibs: Mibs,
}

impl<'a> Count<'a> {
    /// Counters of `version`.
    pub(crate) const fn new(counters: &'a mut Counters, version: Version) -> Self {
        Self { counters, mibs: Mibs::of(version) }
    }

    /// Counts a fragment.
    pub(crate) fn request(&mut self) {
        self.requests(1);
    }

    /// Counts `n` fragments.
    pub(crate) fn requests(&mut self, n: u64) {
        self.counters.add(self.mibs.requests, n);
    }

    /// Counts a reassembled datagram.
    pub(crate) fn ok(&mut self) {
        self.counters.count(self.mibs.oks);
    }

    /// Counts a dropped datagram, or a refused fragment.
    pub(crate) fn fail(&mut self) {
        self.counters.count(self.mibs.fails);
    }

    /// Counts a datagram that timed out.
    pub(crate) fn timeout(&mut self) {
        self.counters.count(self.mibs.timeout);
        self.fail();
    }

    /// Counts a datagram dropped for `reason`.
    pub(crate) fn fail_for(&mut self, reason: DropReason) {
        if reason == DropReason::FragmentOverlap
            && let Some(mib) = self.mibs.overlaps
        {
            self.counters.count(mib);
        }
        self.fail();
    }

    /// Counts a fragment that is reported with a parameter problem.
    pub(crate) fn header_error(&mut self) {
        self.counters.count(Mib::Ip6InHdrErrors);
    }
}

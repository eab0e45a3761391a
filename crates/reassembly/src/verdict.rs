//! Verdicts on fragments.

use base::{Counters, DropReason, Mib, Origin};
use packet::Packet;
use wire::ip::Info;
use wire::{Version, icmpv6};

use crate::table::Table;
use crate::user::ReassemblyContext;

/// Verdict on a fragment.
#[derive(Debug)]
pub enum Verdict {
    /// Completed: the whole datagram, without a fragment header.
    Whole {
        /// Datagram, for [`User::Local`](crate::User::Local) in as few buffers as possible, else the first fragment
        /// with each later one as a child.
        pkt: Packet,
        /// Length of the largest fragment with its headers, an upper bound for [`refragment`](crate::refragment())
        /// (Linux's `frag_max_size`); 0 if it was no fragment.
        max_size: usize,
    },
    /// It is held until its datagram is complete.
    Held,
    /// It is held. Earlier fragments of its identification are dropped for [`DropReason::FragmentDistance`].
    Restarted {
        /// Number of dropped fragments.
        packets: u64,
    },
    /// It passes unchanged: the context is an observer's.
    Pass {
        /// Packet.
        pkt: Packet,
        /// Number of other fragments of its datagram, which are dropped for [`DropReason::FragmentLength`].
        packets: u64,
    },
    /// It is dropped.
    Drop {
        /// Reason.
        reason: DropReason,
        /// Number of dropped packets: the fragment, and the waiting ones of its datagram unless it was a duplicate.
        packets: u64,
    },
    /// It is dropped, and an ICMPv6 parameter problem is due to its sender.
    Refuse {
        /// The packet to quote, which begins with its IP header: the fragment; or the whole datagram, for
        /// [`DropReason::FragmentNested`] and [`DropReason::ProtocolUnknown`].
        pkt: Packet,
        /// The reason. The caller counts an unknown protocol, of a packet that policies let in.
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
    /// First fragment and its headers, for an ICMP error to the sender; `None` if it has not come, or the link was
    /// removed; its link is that of the latest fragment.
    pub first: Option<(Packet, Info)>,
    /// Origin of the latest fragment.
    pub origin: Origin,
    /// Number of fragments dropped for [`DropReason::FragmentTimeout`], including the first one.
    pub packets: u64,
    /// Context in which it was reassembled.
    pub context: ReassemblyContext,
    /// Table that it was in.
    pub table: Table,
}

/// An evicted datagram, whose fragments are dropped for [`DropReason::FragmentEvicted`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Evicted {
    /// Origin of the latest fragment.
    pub origin: Origin,
    /// Number of dropped fragments.
    pub packets: u64,
}

/// The counters of one family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mibs {
    requests: Mib,
    oks: Mib,
    fails: Mib,
    timeout: Mib,
    /// Counter of overlaps; Linux has one for IPv4 only.
    overlaps: Option<Mib>,
}

impl Mibs {
    /// Counters of datagrams that a table drops, if they are counted.
    pub(crate) const fn of_table(table: Table) -> Option<Self> {
        match table {
            Table::V4 => Some(Self::of(Version::V4)),
            Table::V6 => Some(Self::of(Version::V6)),
            Table::TrackingV6 => None,
        }
    }

    pub(crate) const fn of(version: Version) -> Self {
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

/// Counters of one family, if the context counts.
#[derive(Debug)]
pub(crate) struct Count<'a>(pub(crate) Option<(&'a mut Counters, Mibs)>);

impl Count<'_> {
    fn count(&mut self, which: impl FnOnce(Mibs) -> Option<Mib>) {
        if let Some((counters, mibs)) = &mut self.0
            && let Some(mib) = which(*mibs)
        {
            counters.count(mib);
        }
    }

    /// Counts a fragment.
    pub(crate) fn request(&mut self) {
        self.count(|mibs| Some(mibs.requests));
    }

    /// Counts `n` fragments.
    pub(crate) fn requests(&mut self, n: u64) {
        if let Some((counters, mibs)) = &mut self.0 {
            counters.add(mibs.requests, n);
        }
    }

    /// Counts a reassembled datagram.
    pub(crate) fn ok(&mut self) {
        self.count(|mibs| Some(mibs.oks));
    }

    /// Counts a dropped datagram, or a refused fragment.
    pub(crate) fn fail(&mut self) {
        self.count(|mibs| Some(mibs.fails));
    }

    /// Counts a datagram that timed out.
    pub(crate) fn timeout(&mut self) {
        self.count(|mibs| Some(mibs.timeout));
        self.fail();
    }

    /// Counts a datagram dropped for `reason`.
    pub(crate) fn fail_for(&mut self, reason: DropReason) {
        if reason == DropReason::FragmentOverlap {
            self.count(|mibs| mibs.overlaps);
        }
        self.fail();
    }

    /// Counts a fragment that is answered with a parameter problem.
    pub(crate) fn header_error(&mut self) {
        self.count(|_| Some(Mib::Ip6InHdrErrors));
    }
}

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
    /// The datagram is complete, without a fragment header.
    Whole {
        /// Datagram, for [`User::Local`](crate::User::Local) in as few buffers as possible, otherwise the first
        /// fragment with each later one as a child.
        pkt: Packet,
        /// Length of the largest fragment with its headers, an upper bound for [`refragment`](crate::refragment())
        /// (Linux's `frag_max_size`); 0 if the packet was not a fragment.
        max_size: usize,
    },
    /// The fragment is held until its datagram is complete.
    Held,
    /// The fragment is held. Earlier fragments of its identification are dropped with [`DropReason::FragmentDistance`].
    Restarted {
        /// Number of dropped fragments.
        packets: u64,
    },
    /// The fragment passes unchanged: the context is an observer's.
    Pass {
        /// Packet.
        pkt: Packet,
        /// Number of the datagram's other fragments, which are dropped with [`DropReason::FragmentLength`].
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
    /// Context of the datagram.
    pub context: ReassemblyContext,
    /// Table of the datagram.
    pub table: Table,
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
pub(crate) struct Mibs {
    requests: Mib,
    oks: Mib,
    fails: Mib,
    timeout: Mib,
    /// Counter of overlaps; Linux has one for IPv4 only.
    overlaps: Option<Mib>,
}

impl Mibs {
    /// Counters for datagrams that a table drops, if that table counts.
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

/// Counters of one family, for a context that counts.
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

    /// Counts a fragment that is reported with a parameter problem.
    pub(crate) fn header_error(&mut self) {
        self.count(|_| Some(Mib::Ip6InHdrErrors));
    }
}

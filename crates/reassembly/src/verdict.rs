//! Verdicts about fragments.

use base::{Counters, DropReason, Mib, Origin};
use packet::Packet;
use wire::ip::Info;
use wire::{Version, icmpv6};

use crate::table::Table;
use crate::user::ReassemblyContext;

/// Verdict about a fragment.
#[derive(Debug)]
pub enum Verdict {
    /// It was the last one missing: the datagram, without a trace of fragmentation but its pieces.
    Whole {
        /// For [`User::Local`](crate::User::Local) as few pieces as can be, else the first fragment with each other as a
        /// child.
        pkt: Packet,
        /// Bytes of the largest fragment with its headers, beyond which [`refragment`](crate::refragment) does not go
        /// (Linux's `frag_max_size`); 0 if it was no fragment.
        max_size: usize,
    },
    /// It waits for others.
    Held,
    /// It waits for others. The ones that waited before it are dropped for [`DropReason::FragmentDistance`].
    Restarted {
        /// Number of dropped fragments.
        packets: u64,
    },
    /// It goes on as it came: the context is an observer's.
    Pass {
        /// It.
        pkt: Packet,
        /// Other fragments of its datagram that waited, and are dropped for [`DropReason::FragmentLength`].
        packets: u64,
    },
    /// It is dropped.
    Drop {
        /// Reason.
        reason: DropReason,
        /// Number of dropped packets: the fragment, and those of its datagram that waited unless it was a duplicate.
        packets: u64,
    },
    /// It is dropped, and its sender is told by an ICMPv6 parameter problem.
    Refuse {
        /// The packet to quote. It begins with its IP header, and is the fragment as it came; or the whole datagram, for
        /// [`DropReason::FragmentNested`] and [`DropReason::ProtocolUnknown`].
        pkt: Packet,
        /// The reason. An unknown protocol, of a packet that policies let in, is counted by the caller.
        reason: DropReason,
        /// The message's code.
        code: icmpv6::Problem,
        /// The message's pointer, in bytes from the front of `pkt`.
        pointer: usize,
    },
}

/// A datagram that was not whole in time.
#[derive(Debug)]
pub struct Expired {
    /// First fragment, of which an ICMP error tells the sender, and its summary; `None` if it has not come, or
    /// the link is gone; it is that link's now.
    pub first: Option<(Packet, Info)>,
    /// Origin of the last fragment.
    pub origin: Origin,
    /// Number of fragments dropped for [`DropReason::FragmentTimeout`], the first one included.
    pub packets: u64,
    /// Context in which it was reassembled.
    pub context: ReassemblyContext,
    /// Table in which it waited.
    pub table: Table,
}

/// Fragments that made room for others, dropped for [`DropReason::FragmentEvicted`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Evicted {
    /// Origin of the last fragment of their datagram.
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
    /// Linux shows overlaps of IPv4 alone.
    overlaps: Option<Mib>,
}

impl Mibs {
    /// Counters of datagrams that a table gives up, if they are counted.
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

    /// A fragment came.
    pub(crate) fn request(&mut self) {
        self.count(|mibs| Some(mibs.requests));
    }

    /// As many fragments came.
    pub(crate) fn requests(&mut self, n: u64) {
        if let Some((counters, mibs)) = &mut self.0 {
            counters.add(mibs.requests, n);
        }
    }

    /// A datagram is whole.
    pub(crate) fn ok(&mut self) {
        self.count(|mibs| Some(mibs.oks));
    }

    /// A datagram, or a fragment that was refused, is dropped.
    pub(crate) fn fail(&mut self) {
        self.count(|mibs| Some(mibs.fails));
    }

    /// A datagram was not whole in time.
    pub(crate) fn timeout(&mut self) {
        self.count(|mibs| Some(mibs.timeout));
        self.fail();
    }

    /// A datagram is dropped for this.
    pub(crate) fn fail_for(&mut self, reason: DropReason) {
        if reason == DropReason::FragmentOverlap {
            self.count(|mibs| mibs.overlaps);
        }
        self.fail();
    }

    /// A fragment is answered with a parameter problem.
    pub(crate) fn header_error(&mut self) {
        self.count(|_| Some(Mib::Ip6InHdrErrors));
    }
}

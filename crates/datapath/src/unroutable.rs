//! Packets to destinations without a route, or with an unreachable, prohibit or blackhole route.

use base::{DropReason, Mib};
use host::icmp::Problem;
use wire::Version;

use crate::{Datapath, IpPacket, Next};

/// Drops a packet to a destination without a route, or with an unreachable, prohibit or blackhole route.
pub(crate) fn refuse(dp: &mut Datapath, ip: &mut IpPacket, reason: DropReason) -> Next {
    let v4 = ip.info.version() == Version::V4;
    let Some(problem) = problem_of(reason, v4) else { return Next::Drop(reason) };
    match (v4, reason) {
        (true, DropReason::NoRoute) => dp.counters.count(Mib::IpExtInNoRoutes),
        (true, _) => {}
        (false, _) => dp.count(ip.pkt.meta.origin.device(), Mib::Ip6InNoRoutes),
    }
    Next::Reject(reason, problem)
}

/// ICMP error for a destination without a route, or with an unreachable or prohibit route.
pub(crate) fn problem_of(reason: DropReason, v4: bool) -> Option<Problem> {
    match reason {
        DropReason::NoRoute => Some(Problem::NoRoute),
        // Over IPv6 Linux says "no route" here too (`ip6_pkt_discard`).
        DropReason::RouteUnreachable => Some(if v4 { Problem::HostUnreachable } else { Problem::NoRoute }),
        DropReason::RouteProhibit => Some(Problem::Prohibited),
        DropReason::IlaUnreachable => Some(Problem::HostUnreachable),
        _ => None,
    }
}

//! Neighbour discovery for this node (RFC 4861; Linux `ndisc_rcv`).

use std::net::{IpAddr, Ipv6Addr};

use base::{DropReason, Mib};
use fib::{Station, nd};
use xfrm::Mode;

use crate::addresses::{LINK_LOCAL_ROUTERS, is_link_local};
use crate::host_side::up;
use crate::tx::neighbour;
use crate::{Cx, Datapath, IpPacket, Next};

/// Handles a solicitation or an advertisement, for the link that received it.
pub(super) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    let link = ip.pkt.meta.origin.device();
    dp.count_delivered(link, ip.info.version(), 1);
    dp.count(link, Mib::Icmp6InMsgs);
    match ip.flow.sport as u8 {
        wire::nd::NEIGHBOUR_SOLICIT => dp.count(link, Mib::Icmp6InNeighborSolicits),
        wire::nd::NEIGHBOUR_ADVERT => dp.count(link, Mib::Icmp6InNeighborAdvertisements),
        _ => {}
    }
    let mac = dp.ports.get(link).and_then(|port| port.config.mac);
    // A message that came through a tunnel was sent on another link.
    let is_tunnel = |&id| dp.ipsec.sa(id).is_none_or(|sa| sa.mode() == Mode::Tunnel);
    if ip.pkt.meta.sec_path.iter().any(is_tunnel) {
        return Next::Drop(DropReason::IcmpIgnored);
    }
    if let Err(dry) = ip.pkt.linearize(cx.mem) {
        return Next::Drop(dry.into());
    }
    let Some(mac) = mac else {
        // A host at the other end of a bare link solicits routers all the same.
        return match nd::check(ip.pkt.head()) {
            Ok(()) if ip.info.dst.is_multicast() => Next::Done,
            Ok(()) => Next::Drop(DropReason::IcmpIgnored),
            Err(reason) => Next::Drop(reason),
        };
    };
    if matches!(ip.flow.sport as u8, wire::nd::ROUTER_SOLICIT | wire::nd::ROUTER_ADVERT) && dp.has_host_port(link) {
        up::copy_packet(dp, cx, link, ip);
    }
    let Datapath { fib, neighbours, actions, .. } = dp;
    let own = |target: Ipv6Addr, asker: Ipv6Addr| {
        let [to, by] = [target, asker].map(IpAddr::V6);
        if target == mac.link_local() || fib.has_address(link, to) {
            return Some(target);
        }
        let is_anycast = to == LINK_LOCAL_ROUTERS || fib.has_anycast(link, to);
        is_anycast.then(|| match fib.source(link, by) {
            Some(IpAddr::V6(source)) if !is_link_local(by) => source,
            _ => mac.link_local(),
        })
    };
    let here = Station { link, mac };
    let handled = nd::handle(neighbours, cx.now, cx.mem, here, own, ip.pkt.head(), actions);
    neighbour::run_neighbour_actions(dp, cx);
    match handled {
        Ok(()) => Next::Done,
        Err(reason) => {
            // A message over the rate limit is valid all the same.
            if reason != DropReason::NeighbourRateLimited {
                dp.count(link, Mib::Icmp6InErrors);
            }
            Next::Drop(reason)
        }
    }
}

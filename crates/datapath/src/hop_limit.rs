//! TTL and hop limit of forwarded packets.

use base::DropReason;
use wire::{Version, ipv4, ipv6};

use crate::mib::MibPair;
use crate::next::Hop;
use crate::{Cx, Datapath, IpPacket, ip_options};

/// Decrements the TTL of a forwarded packet after the last check that may drop it: until then an ICMP error must quote the packet
/// as received. A packet of this node keeps its TTL.
#[inline]
pub(crate) fn count_hop(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, hop: Hop) -> Result<(), DropReason> {
    if ip.pkt.meta.origin.is_local() {
        return Ok(());
    }
    let v4 = ip.info.version() == Version::V4;
    let head = ip.pkt.writable_head(cx.mem)?;
    if v4 {
        ipv4::Ipv4Header::mut_from(head)?.decrement_ttl();
    } else {
        ipv6::Ipv6Header::mut_from(head)?.decrement_hop_limit();
    }
    ip.info.ttl = ip.info.ttl.saturating_sub(1);
    if v4 && !ip.info.plain {
        ip_options::record_hop(dp, cx, ip, hop)?;
    }
    dp.count(hop.dev, MibPair::FORWARDED.of(ip.info.version()));
    dp.forwarded.packets += 1;
    dp.forwarded.bytes += ip.pkt.len() as u64;
    Ok(())
}

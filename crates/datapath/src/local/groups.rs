//! Multicast that is valid and for other nodes of a link, which is no drop: messages about membership of groups, and
//! datagrams to groups and broadcasts for which no program listens.
//!
//! This node forwards no multicast and keeps no memberships for other nodes, so that it has no use for reports and
//! queries (RFC 3376, RFC 3810); Linux's IP input discards them without a count, too.

use std::net::IpAddr;

use packet::Memory;
use wire::{Protocol, checksum};

use crate::IpPacket;
use crate::addresses::is_link_local;

/// IGMP.
const IGMP: Protocol = Protocol(2);

/// Shortest message of MLDv1 (RFC 2710 §3).
const MLD_LEN: usize = 24;

/// Shortest report of MLDv2 (RFC 3810 §5.2), and shortest message of IGMP (RFC 2236 §2, RFC 3376 §4).
const REPORT_LEN: usize = 8;

/// Tells whether an ICMPv6 message with a valid checksum is one of multicast listener discovery as its sender has to send it
/// (RFC 2710 §3, RFC 3810 §5): hop limit 1, from an address of the link.
pub(crate) fn is_mld(ip: &IpPacket) -> bool {
    let shortest = match ip.flow.sport {
        130..=132 => MLD_LEN,
        143 => REPORT_LEN,
        _ => return false,
    };
    let is_of_link = ip.info.src.is_unspecified() || is_link_local(ip.info.src);
    ip.info.dst.is_multicast() && ip.info.payload_len() >= shortest && ip.info.ttl == 1 && is_of_link
}

/// Tells whether a packet is a message of IGMP as its sender has to send it (RFC 2236 §2, RFC 3376 §4): TTL 1, with a valid
/// checksum.
pub(crate) fn is_igmp(mem: &Memory, ip: &mut IpPacket) -> bool {
    let is_to_group = matches!(ip.info.dst, IpAddr::V4(dst) if dst.is_multicast());
    if ip.info.protocol != IGMP || !is_to_group || ip.info.ttl != 1 || ip.pkt.linearize(mem).is_err() {
        return false;
    }
    let message = ip.info.payload(ip.pkt.head());
    message.len() >= REPORT_LEN && checksum::fold(checksum::sum(message)) == 0xffff
}

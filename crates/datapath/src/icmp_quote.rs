//! Packets quoted by ICMP errors.

use wire::{FlowKey, Protocol};

use crate::IpPacket;

/// Bytes of ICMP in front of the quoted packet (RFC 792, RFC 4443 §2.1).
const ICMP_LEN: usize = 8;
/// Bytes of a quoted packet that are parsed: its headers and its ports.
const LOOKED_AT: usize = 128;
/// Maximum length of a packet, assumed for quoted packets, which are truncated.
const MAX_PACKET: usize = u16::MAX as usize + 40;

/// Reverse flow of the packet that an ICMP error `ip` quotes; `None` for other packets (Linux `icmp_err_packet`,
/// `xfrm_icmp_flow_decode`).
pub(crate) fn answer_to_quoted(ip: &IpPacket) -> Option<FlowKey> {
    let kind = ip.flow.sport;
    let is_error = match ip.flow.protocol {
        Protocol::ICMP => matches!(kind, 3 | 11),
        Protocol::ICMPV6 => matches!(kind, 1..=3),
        _ => false,
    };
    if !is_error || !ip.info.has_transport() {
        return None;
    }
    let quoted_at = ip.info.header_len + ICMP_LEN;
    let len = ip.info.total_len.checked_sub(quoted_at)?.min(LOOKED_AT);
    let mut front = [0; LOOKED_AT];
    let front = &mut front[..len];
    if !ip.pkt.read_at(quoted_at, front) {
        return None;
    }
    FlowKey::parse(front, MAX_PACKET).ok().map(FlowKey::reversed)
}

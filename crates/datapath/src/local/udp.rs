//! UDP for this node: the ports of IKE and of ESP in UDP are open, and no other port has a listener (Linux `udp_rcv`).

use base::DropReason;
use host::icmp::Problem;
use ipsec::KEEPALIVE;
use offload::checksum;
use packet::Packet;
use wire::ip::Info;
use wire::udp;

use super::ike;
use crate::mib::MibPair;
use crate::next::Cast;
use crate::{Datapath, IpPacket, Next};

pub(crate) fn input(dp: &mut Datapath, ip: &mut IpPacket, cast: Cast) -> Next {
    let version = ip.info.version();
    dp.count_delivered(ip.pkt.meta.origin.device(), version, 1);
    let is_fat = ip.pkt.meta.cut.gso().is_some();
    let Some(info) = ip.udp_datagram() else {
        dp.counters.count(MibPair::UDP_IN_ERRORS.of(version));
        return Next::Drop(DropReason::TransportHeader);
    };
    if !is_fat && !checksum::verify(&ip.pkt, &info) {
        dp.counters.count(MibPair::UDP_IN_CSUM_ERRORS.of(version));
        dp.counters.count(MibPair::UDP_IN_ERRORS.of(version));
        return Next::Drop(DropReason::ChecksumWrong);
    }
    if ike::is_to_open_port(dp, ip) {
        dp.counters.add(MibPair::UDP_IN_DATAGRAMS.of(version), ip.pkt.meta.cut.segs());
        if is_keepalive(&ip.pkt, &info) {
            return Next::Done;
        }
        return Next::Drop(DropReason::EncapIgnored);
    }
    if cast == Cast::Group {
        // A datagram to a group or a broadcast is for listening sockets alone (Linux `__udp4_lib_mcast_deliver`).
        dp.counters.count(MibPair::UDP_IGNORED_MULTI.of(version));
        return Next::Done;
    }
    dp.counters.count(MibPair::UDP_NO_PORTS.of(version));
    Next::refuse(cast, DropReason::UdpNoPort, Problem::PortUnreachable)
}

/// Tells whether a datagram to a port of ESP in UDP is a NAT's keepalive (RFC 3948 §2.3).
fn is_keepalive(pkt: &Packet, info: &Info) -> bool {
    let mut payload = [0; KEEPALIVE.len()];
    let at = info.header_len + udp::UdpHeader::LEN;
    info.total_len - at == payload.len() && pkt.read_at(at, &mut payload) && payload == KEEPALIVE
}

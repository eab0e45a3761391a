//! TCP for this node: no port has a listener, and there is no connection (Linux `tcp_v4_rcv`, `tcp_v6_rcv`).

use base::{DropReason, Mib, Origin};
use host::tcp::Segment;
use offload::checksum;
use packet::PktType;
use wire::Malformed;

use crate::next::Cast;
use crate::{Cx, Datapath, IpPacket, Next, local_out};

/// Drops a segment, and answers it with a reset.
pub(crate) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    let link = ip.pkt.meta.origin.device();
    dp.count_delivered(link, ip.info.version(), 1);
    if cast != Cast::Unicast || ip.pkt.meta.pkt_type != PktType::Host {
        return Next::Drop(DropReason::TcpNoPort);
    }
    dp.counters.count(Mib::TcpInSegs);
    let segment = match Segment::read(&ip.pkt, &ip.info) {
        Ok(segment) => segment,
        Err(malformed) => {
            if malformed == Malformed::TcpDataOffset {
                dp.counters.count(Mib::TcpInErrs);
            }
            return Next::Drop(malformed.into());
        }
    };
    let is_fat = ip.pkt.meta.cut.gso().is_some();
    if !is_fat && !checksum::verify(&ip.pkt, &ip.info) {
        dp.counters.count(Mib::TcpInCsumErrors);
        dp.counters.count(Mib::TcpInErrs);
        return Next::Drop(DropReason::ChecksumWrong);
    }
    dp.count_drop(&ip.pkt, DropReason::TcpNoPort).end();
    match segment.reset(cx.mem, &ip.info) {
        Ok(Some(reset)) => {
            ip.pkt.put(reset);
            local_out::send(dp, cx, ip, link, [Mib::TcpOutSegs, Mib::TcpOutRsts])
        }
        Ok(None) => Next::Done,
        Err(reason) => dp.ports.drop(Origin::NODE, reason).into(),
    }
}

//! The loop that takes packets from stage to stage.
//!
//! The packet itself stays in one place, an [`IpPacket`] that the loop's caller owns and every stage borrows: moves from stage to
//! stage would cost a third of a small packet's time. The last stage takes the packet out. A stage that makes other packets of it
//! [defers](Datapath::defer) them, and the loop runs each to its end before the next stage of the packet itself.

use packet::Packet;

use crate::ip_packet::IpPacket;
use crate::next::Next;
use crate::rx::l3;
use crate::tx::{neighbour, transmit};
use crate::{Cx, Datapath, forward, local, local_out, trace, tx, vrf};

/// Takes a packet from stage to stage until it is sent, delivered, held or dropped, and so with the packets that stages have deferred.
pub(crate) fn run(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, mut next: Next) {
    loop {
        if dp.has_deferred() {
            run_deferred(dp, cx);
        }
        trace::stage(dp, cx, ip, next);
        next = match next {
            Next::L3In => l3::input(dp, cx, ip),
            Next::L3Parsed => l3::input_parsed(dp, cx, ip),
            Next::Local(cast) => local::input(dp, cx, ip, cast),
            Next::Forward(hop) => forward::forward(dp, cx, ip, hop),
            Next::Output(hop) => tx::output(dp, cx, ip, hop),
            Next::Transmit(hop) => transmit::transmit(dp, cx, ip, hop),
            Next::VrfOut(vrf) => vrf::transmit(dp, cx, ip, vrf),
            Next::Discovery(link) => {
                neighbour::send_discovery(dp, cx, link, ip.pkt.take());
                Next::Done
            }
            Next::Reject(reason, problem) => local_out::reject(dp, cx, ip, reason, problem),
            Next::Drop(reason) => return dp.count_drop(&ip.pkt, reason).end(),
            Next::Done => return,
        }
    }
}

/// Runs a packet whose headers are not parsed.
pub(crate) fn run_packet(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, next: Next) {
    run(dp, cx, &mut IpPacket::unparsed(pkt), next);
}

/// Runs the packets that stages have deferred, in order, each with the packets that its own stages defer.
#[cold]
pub(crate) fn run_deferred(dp: &mut Datapath, cx: Cx<'_>) {
    let start = dp.deferred_from;
    let mut at = start;
    while let Some((ip, next)) = dp.deferred.get_mut(at) {
        let mut ip = std::mem::replace(ip, IpPacket::empty());
        let next = *next;
        at += 1;
        dp.deferred_from = dp.deferred.len();
        run(dp, cx, &mut ip, next);
        dp.deferred_from = start;
    }
    dp.deferred.truncate(start);
}

/// Runs the pending actions of the neighbour tables, and the packets that they defer, until there are none.
pub(crate) fn run_actions(dp: &mut Datapath, cx: Cx<'_>) {
    loop {
        neighbour::run_neighbour_actions(dp, cx);
        if !dp.has_deferred() {
            return;
        }
        run_deferred(dp, cx);
    }
}

#[cfg(test)]
mod tests {
    use base::{DropReason, Instant};
    use packet::Memory;

    use super::*;

    #[test]
    fn deferred_packets_run_in_order_before_the_packet_goes_on() {
        let mem = Memory::heap();
        let cx = Cx { now: Instant::ZERO, mem: &mem };
        let mut dp = Datapath::new();
        let packet = |len: usize| Packet::with_data(&mem, &vec![0; len]).unwrap();
        dp.set_trace(Some(crate::TraceFilter::default()), 10);
        for (len, reason) in [(21, DropReason::NoRoute), (22, DropReason::LinkDown)] {
            dp.defer(IpPacket::unparsed(packet(len)), Next::Drop(reason));
        }
        dp.defer(IpPacket::empty(), Next::Done);
        // Malformed, so IP input drops it.
        run_packet(&mut dp, cx, packet(23), Next::L3In);
        let steps: Vec<_> = dp.take_trace().map(|step| (step.geometry.map_or(0, |it| it.len), step.step)).collect();
        let drop = |len, reason| (len, crate::Step::Drop(reason));
        let want = [
            drop(21, DropReason::NoRoute),
            drop(22, DropReason::LinkDown),
            (23, crate::Step::Input),
            drop(23, DropReason::Ipv4Header),
        ];
        assert_eq!(steps, want);
        assert!(dp.deferred.is_empty() && dp.deferred_from == 0);
    }
}

//! Reception of IP packets, from a link or out of ESP: ESP of this node goes to IP input at once, everything else by way of GRO.

use std::ops::ControlFlow;

use base::DropReason;
use ipsec::Ipsec;
use offload::{Features, gso, ip_headers};
use packet::{Csum, Packet};
use wire::ip::Info;
use wire::{Protocol, Version, tcp, udp};

use super::gro_sink::{AnyLinkSink, GroSink};
use super::{gro, l3};
use crate::ip_packet::Framing;
use crate::local::{esp, reassembly};
use crate::{Cx, Datapath, IpPacket, Next, run, trace, tx};

/// Input that follows a burst.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BurstEnd {
    /// More packets.
    MoreComing,
    /// More packets, by a device that is low on frames: frames that no crypto thread works on are returned to it.
    MoreComingLowOnFrames,
    /// None.
    Idle,
}

/// Receives a packet that begins with its IP header: ESP of this node goes to IP input at once, everything else by way of GRO.
pub(super) fn receive(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) {
    let next = match headers(dp, cx, ip, framing) {
        Ok(()) if esp::is_for_node(dp, ip) => Next::L3Parsed,
        Ok(()) => {
            let out = gro::push(dp, cx, ip.pkt.take());
            return gro::run_out(dp, cx, out);
        }
        Err(DropReason::GsoEncapsulation) => return segment_inside(dp, cx, ip.pkt.take(), framing),
        Err(reason) => reassembly::malformed(dp, cx, ip, reason, framing),
    };
    run::run(dp, cx, ip, next);
}

/// Receives a decrypted packet, which may be ESP again. Other packets are checked by GRO, and by IP input later.
pub(super) fn receive_decrypted(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet) {
    if esp::may_be_esp(dp, pkt.head()) {
        return receive(dp, cx, &mut IpPacket::unparsed(pkt), Framing::NONE);
    }
    let out = gro::push(dp, cx, pkt);
    gro::run_out(dp, cx, out);
}

/// Segments a super-packet inside a tunnel, and receives its segments one by one: from here on a super-packet has TCP or UDP
/// right behind its IP header. They go on at once: the segments of a burst of such packets may be more than memory holds.
#[cold]
fn segment_inside(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, framing: Framing) {
    let origin = pkt.meta.origin.get();
    let mut segments = std::mem::take(&mut dp.scratch.segments);
    match gso::segment(cx.mem, &Features::BY_REFERENCE, pkt, 0, &mut segments) {
        Ok(()) => {
            for segment in segments.drain(..) {
                receive(dp, cx, &mut IpPacket::unparsed(segment), framing);
            }
        }
        Err(reason) => dp.ports.drop(origin, reason).end(),
    }
    dp.scratch.segments = segments;
    flush(dp, cx, BurstEnd::MoreComing);
}

/// Parses the IP headers of a packet, which have to be of the version that the link layer named. Its flow is not found yet.
///
/// # Errors
/// As [`ip_headers`], and [`DropReason::EthNotForUs`]; [`DropReason::GsoEncapsulation`] for a super-packet inside a tunnel,
/// which has to be [segmented](segment_inside); [`DropReason::VirtioHeader`] for another checksum offload inside.
pub(super) fn headers(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) -> Result<(), DropReason> {
    let link = ip.pkt.meta.origin.device();
    let version = Version::of(ip.pkt.head()).unwrap_or(Version::V4);
    let parsed = ip_headers(cx.mem, &mut ip.pkt);
    ip.set_info(parsed.inspect_err(|&reason| l3::count_malformed(dp, link, reason, version))?);
    let IpPacket { pkt, info, .. } = ip;
    if !framing.allows(info.version()) {
        return Err(DropReason::EthNotForUs);
    }
    // Any other checksum, completed at output, would change bytes that the decision was based on.
    if let Csum::Partial { start, .. } = pkt.meta.csum
        && !is_transport_check(pkt.meta.csum, info)
    {
        let is_inside = pkt.meta.cut.gso().is_some() && usize::from(start) > info.header_len;
        return Err(if is_inside { DropReason::GsoEncapsulation } else { DropReason::VirtioHeader });
    }
    Ok(())
}

/// Tells whether a partial checksum is that of the packet's own TCP or UDP header.
fn is_transport_check(csum: Csum, info: &Info) -> bool {
    let check_at = match info.protocol {
        Protocol::TCP => tcp::CHECK_AT,
        Protocol::UDP => udp::CHECK_AT,
        _ => return false,
    };
    info.fragment.is_none() && csum == Csum::Partial { start: info.header_len as u16, offset: check_at as u16 }
}

/// Passes decrypted packets on, in order: to GRO, or to another decryption. A packet has at most as many layers of ESP as a
/// security path has room for.
pub(super) fn receive_opened(dp: &mut Datapath, cx: Cx<'_>) {
    loop {
        let mut out = gro::storage(dp);
        let Datapath { ipsec, gro, ports, counters, .. } = dp;
        let mut sink = AnyLinkSink(GroSink { gro, ports, mem: cx.mem, out: &mut out });
        let flow = ipsec.pass_opened(cx.mem, cx.now, counters, &mut sink);
        trace::esp_dropped(dp);
        gro::run_out(dp, cx, out);
        match flow {
            ControlFlow::Break(pkt) => receive_decrypted(dp, cx, pkt),
            ControlFlow::Continue(()) => return,
        }
    }
}

/// Ends a burst of packets: flushes the ciphers, in order, except for packets at a device, and then GRO. If `end` says that more input
/// follows, it does not wait for crypto threads, and GRO keeps super-packets that may grow.
pub(super) fn flush(dp: &mut Datapath, cx: Cx<'_>, end: BurstEnd) {
    let work = if end == BurstEnd::Idle { Ipsec::work } else { Ipsec::help };
    loop {
        // A decrypted packet may be ESP again.
        while work(&mut dp.ipsec, cx.now) {
            receive_opened(dp, cx);
            tx::xfrm::send_sealed(dp, cx);
            if dp.has_deferred() {
                run::run_deferred(dp, cx);
            }
        }
        let keeps = match end {
            BurstEnd::MoreComing => true,
            BurstEnd::MoreComingLowOnFrames => dp.ipsec.is_opening(),
            BurstEnd::Idle => false,
        };
        if keeps || dp.gro.held() == 0 {
            return;
        }
        let mut out = gro::storage(dp);
        dp.gro.flush(&mut out);
        gro::run_out(dp, cx, out);
    }
}

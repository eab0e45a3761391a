//! Receive side: shortcuts, link layer, GRO, IP input.
//!
//! [`run_burst`] drives a burst; [`receive`] handles one packet, and each file is one box of the picture.

mod bridged;
mod gro;
mod gro_sink;
mod ip_rcv;
pub(crate) mod l2;
pub(crate) mod l3;
pub(crate) mod shortcut;

use std::ops::ControlFlow;

use base::{LinkId, Origin};
use ipsec::Ipsec;
use packet::{Burst, Packet, PktType};

use crate::local::path_mtu;
use crate::run::{run, run_actions, run_deferred};
use crate::{Cx, Datapath, IpPacket, trace, tx};

use gro_sink::{AnyLinkSink, GroSink};
use l2::FrameInput;

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

/// Runs the packets that `link` received through the datapath, in order. Ciphers and GRO may hold some. Empties `burst`.
pub(crate) fn run_burst(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, burst: &mut Vec<Packet>) {
    let end = match burst.last() {
        Some(last) if last.head_buf().is_scarce_frame(cx.mem) => BurstEnd::MoreComingLowOnFrames,
        _ => BurstEnd::MoreComing,
    };
    let origin = Origin::Port(link).into();
    for pkt in burst.iter_mut() {
        pkt.meta.origin = origin;
        pkt.meta.trace = 0;
    }
    let mut burst = Burst::new(burst);
    loop {
        shortcut::esp_run(dp, cx, link, &mut burst);
        shortcut::fragment_train(dp, cx, link, &mut burst);
        burst.look_ahead();
        let Some(pkt) = burst.next() else { break };
        receive(dp, cx, link, pkt);
        if dp.has_deferred() {
            run_deferred(dp, cx);
        }
        if dp.ipsec.has_opened() {
            pass_decrypted(dp, cx);
        }
    }
    drop(burst);
    flush(dp, cx, end);
    run_actions(dp, cx);
}

/// Handles one received packet with its link-layer header, which the port of a VLAN device or of a bridge may receive again.
fn receive(dp: &mut Datapath, cx: Cx<'_>, mut link: LinkId, pkt: Packet) {
    let mut ip = IpPacket::unparsed(pkt);
    loop {
        dp.ports.tap_wire(cx.mem, link, &ip.pkt);
        if ip.pkt.meta.pkt_type == PktType::Loopback {
            let next = path_mtu::report(dp, cx, &mut ip);
            return run(dp, cx, &mut ip, next);
        }
        match l2::input(dp, cx, link, &mut ip.pkt) {
            Ok(FrameInput::Ip(framing)) => return ip_rcv::receive(dp, cx, &mut ip, framing),
            Ok(FrameInput::Port(own)) => link = own,
            Ok(FrameInput::Done) => return,
            Err(reason) => return dp.count_frame_drop(&ip.pkt, reason),
        }
    }
}

/// Passes decrypted packets on, in order: to GRO, or to another decryption. A packet has at most as many layers of ESP as a
/// security path has room for.
pub(crate) fn pass_decrypted(dp: &mut Datapath, cx: Cx<'_>) {
    loop {
        let mut out = gro::storage(dp);
        let Datapath { ipsec, gro, ports, counters, .. } = dp;
        let mut sink = AnyLinkSink(GroSink { gro, ports, mem: cx.mem, out: &mut out });
        let flow = ipsec.pass_opened(cx.mem, cx.now, counters, &mut sink);
        if dp.ipsec.has_esp_drops() {
            trace::esp_dropped(dp);
        }
        gro::run_out(dp, cx, out);
        match flow {
            ControlFlow::Break(pkt) => ip_rcv::receive_decrypted(dp, cx, pkt),
            ControlFlow::Continue(()) => return,
        }
    }
}

/// Ends a burst: flushes the ciphers, in order, except for packets at a device, and then GRO. If `end` says that more input
/// follows, it does not wait for crypto threads, and GRO keeps super-packets that may grow. Frames that GRO holds for bridges go first:
/// they may be for this node.
pub(crate) fn flush(dp: &mut Datapath, cx: Cx<'_>, end: BurstEnd) {
    let work = if end == BurstEnd::Idle { Ipsec::work } else { Ipsec::help };
    if end != BurstEnd::MoreComing && !dp.bridges.gro.is_empty() {
        bridged::flush(dp, cx);
    }
    loop {
        // A decrypted packet may be ESP again.
        while work(&mut dp.ipsec, cx.now) {
            pass_decrypted(dp, cx);
            tx::xfrm::send_sealed(dp, cx);
            if dp.has_deferred() {
                run_deferred(dp, cx);
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

//! Receive side: shortcuts, link layer, GRO, IP input.
//!
//! [`take_in`] drives a burst; [`receive`] handles one packet, and each file is one box of the picture.

mod bridged;
pub(crate) mod gro;
pub(crate) mod gro_sink;
pub(crate) mod l2;
pub(crate) mod l3;
pub(crate) mod shortcut;

use base::{LinkId, Origin};
use packet::{Burst, Packet, PktType};

use crate::local::path_mtu;
use crate::run::{run, run_actions, run_deferred};
use crate::{Cx, Datapath, IpPacket};

pub(crate) use gro::{BurstEnd, flush};
use l2::FrameInput;

/// Runs the packets that `link` received through the datapath, in order. Ciphers and GRO may hold some. Empties `burst`.
pub(crate) fn take_in(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, burst: &mut Vec<Packet>) {
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
            gro::pass_decrypted(dp, cx);
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
            Ok(FrameInput::Ip(framing)) => return gro::ip_packet(dp, cx, &mut ip, framing),
            Ok(FrameInput::Port(own)) => link = own,
            Ok(FrameInput::Done) => return,
            Err(reason) => return dp.count_frame_drop(&ip.pkt, reason),
        }
    }
}

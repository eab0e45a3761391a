//! Receive side: shortcuts, link layer, GRO, IP input.
//!
//! [`run_burst`] drives a burst, [`frames::receive`] handles one packet, and each file is one box of the picture.

mod esp_device;
pub(crate) mod frames;
mod gro;
mod gro_sink;
mod ip_rcv;
pub(crate) mod l2;
pub(crate) mod l3;
pub(crate) mod shortcut;

use base::{Origin, PortId};
use packet::{Burst, Packet};

use crate::run::{run_actions, run_deferred};
use crate::{Cx, Datapath};

pub(crate) use ip_rcv::BurstEnd;

/// Runs the packets that `link` received through the datapath, in order. Ciphers and GRO may hold some. Empties `burst`.
pub(crate) fn run_burst(dp: &mut Datapath, cx: Cx<'_>, link: PortId, burst: &mut Vec<Packet>) {
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
        frames::receive(dp, cx, link, pkt);
        if dp.has_deferred() {
            run_deferred(dp, cx);
        }
        if dp.ipsec.has_opened() {
            ip_rcv::receive_opened(dp, cx);
        }
    }
    drop(burst);
    flush(dp, cx, end);
    run_actions(dp, cx);
}

/// Ends a burst: frames that GRO holds for bridges go first, as they may be for this node; then [packets](ip_rcv::flush).
pub(crate) fn flush(dp: &mut Datapath, cx: Cx<'_>, end: BurstEnd) {
    if end != BurstEnd::MoreComing && !dp.bridges.gro.is_empty() {
        frames::flush(dp, cx);
    }
    ip_rcv::flush(dp, cx, end);
}

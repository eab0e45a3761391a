//! Reception of packets whose ESP a device has decrypted (Linux `xfrm_input` with `CRYPTO_DONE`): they go to their SA, or are
//! dropped.
//!
//! In crypto mode the bytes are the plaintext in the place of the ciphertext, and only ESP input of this node may use them: no bridge,
//! route, socket or reassembly queue gets such a packet. [`receive`] is the only way in for packets with that mark.

use base::{DropReason, PortId};
use packet::{Cut, Packet};

use super::l2::{self, FrameInput};
use super::{ip_rcv, l3};
use crate::ip_packet::Framing;
use crate::local::{self, esp};
use crate::run::run;
use crate::{Carried, Cx, Datapath, IpPacket, Next, trace};

/// Receives a packet that the device of a link has marked.
#[cold]
pub(super) fn receive(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: Packet) {
    let mut ip = IpPacket::unparsed(pkt);
    dp.ports.tap_wire(cx.mem, link, &ip.pkt);
    let framing = match framing(dp, cx, link, &mut ip.pkt) {
        Ok(framing) => framing,
        Err(reason) => return dp.count_frame_drop(&ip.pkt, reason).end(),
    };
    let next = match dp.ipsec.take_opened(&mut ip.pkt, &mut dp.counters) {
        Ok(true) => return ip_rcv::receive_decrypted(dp, cx, ip.pkt.take()),
        Ok(false) => decrypted_in_place(dp, cx, &mut ip, framing),
        Err(reason) => Next::Drop(reason),
    };
    run(dp, cx, &mut ip, next);
}

/// Removes the link-layer header.
///
/// # Errors
/// As [`l2::input`]; [`DropReason::EspDevice`] for a frame that a bridge or the device of a VLAN would receive.
fn framing(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: &mut Carried) -> Result<Framing, DropReason> {
    if dp.ports.get(link).is_some_and(|port| port.bridge.is_some()) {
        return Err(DropReason::EspDevice);
    }
    match l2::input(dp, cx, link, pkt)? {
        FrameInput::Ip(framing) => Ok(framing),
        FrameInput::Port(_) | FrameInput::Bridge(_) | FrameInput::Done => Err(DropReason::EspDevice),
    }
}

/// IP input and local input of ESP that was decrypted in place. The packet ends here as ESP, or its next stage drops it.
fn decrypted_in_place(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) -> Next {
    if let Err(reason) = ip_rcv::headers(dp, cx, ip, framing) {
        return Next::Drop(reason);
    }
    // No device decrypts a train of packets or a fragment.
    if ip.pkt.meta.cut != Cut::Whole || !esp::is_for_node(dp, ip) {
        return Next::Drop(DropReason::EspDevice);
    }
    trace::stage(dp, cx, ip, Next::L3Parsed);
    match l3::input_parsed(dp, cx, ip) {
        next @ Next::Local(cast) if esp::is_esp(dp, ip, cast) => {
            trace::stage(dp, cx, ip, next);
            local::input(dp, cx, ip, cast)
        }
        next @ (Next::Drop(_) | Next::Reject(..)) => next,
        _ => Next::Drop(DropReason::EspDevice),
    }
}

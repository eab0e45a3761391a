//! Receive side: shortcuts, link layer, GRO, IP input.
//!
//! [`take_in`] drives a burst; [`receive`] handles one packet, and each file is one box of the picture.

pub(crate) mod gro;
pub(crate) mod gro_sink;
pub(crate) mod l2;
pub(crate) mod l3;
pub(crate) mod shortcut;

use base::{DropReason, LinkId, Origin};
use offload::{Features, gso, ip_headers};
use packet::{Burst, Csum, Packet};
use wire::ip::Info;
use wire::{Protocol, Version, tcp, udp};

use crate::local::{esp, reassembly};
use crate::tx::neighbour;
use crate::{Cx, Datapath, IpPacket, Next};

pub(crate) use gro::{BurstEnd, flush};
use l2::Framing;

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
        if dp.ipsec.has_opened() {
            gro::pass_decrypted(dp, cx);
        }
    }
    drop(burst);
    flush(dp, cx, end);
    neighbour::run_neighbour_actions(dp, cx);
}

/// Takes in one packet with its link-layer header.
pub(crate) fn receive(dp: &mut Datapath, cx: Cx<'_>, link: LinkId, pkt: Packet) {
    dp.ports.tap_wire(cx.mem, link, &pkt);
    let mut ip = IpPacket::unparsed(pkt);
    match l2::input(dp, cx, link, &mut ip.pkt) {
        Ok(Some(framing)) => ip_packet(dp, cx, &mut ip, framing),
        Ok(None) => {}
        Err(reason) => dp.count_drop(&ip.pkt, reason),
    }
}

/// Takes in a packet that begins with its IP header: ESP of this node goes to IP input at once, everything else by way of GRO.
fn ip_packet(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) {
    if ip.pkt.meta.esp.is_some() {
        match dp.ipsec.take_opened(&mut ip.pkt, &mut dp.counters) {
            Ok(true) => return decrypted(dp, cx, ip.pkt.take()),
            Ok(false) => return device_decrypted(dp, cx, ip, framing),
            Err(reason) => return dp.count_drop(&ip.pkt, reason),
        }
    }
    let next = match headers(dp, cx, ip, framing) {
        Ok(()) if esp::is_for_node(dp, &ip.pkt, &ip.info) => l3::input_parsed(dp, cx, ip),
        Ok(()) => {
            let out = gro::push(dp, cx, ip.pkt.take());
            return gro::run(dp, cx, out);
        }
        Err(DropReason::GsoEncapsulation) => return segment_inside(dp, cx, ip.pkt.take(), framing),
        Err(reason) => reassembly::malformed(dp, cx, ip, reason, framing),
    };
    dp.run(cx, ip, next);
}

/// Takes in ESP that a device has decrypted in place. Only ESP input of this node may use the plaintext: no capture, ICMP error or
/// reassembly queue gets it.
#[cold]
fn device_decrypted(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) {
    let next = match headers(dp, cx, ip, framing) {
        Ok(()) if esp::is_for_node(dp, &ip.pkt, &ip.info) => l3::input_parsed(dp, cx, ip),
        Ok(()) => Next::Drop(DropReason::EspDevice),
        Err(reason) => Next::Drop(reason),
    };
    dp.run(cx, ip, next);
}

/// Takes in a decrypted packet, which may be ESP again. Other packets are checked by GRO, and by IP input later.
pub(crate) fn decrypted(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet) {
    if esp::may_be_esp(dp, pkt.head()) {
        return ip_packet(dp, cx, &mut IpPacket::unparsed(pkt), Framing::NONE);
    }
    let out = gro::push(dp, cx, pkt);
    gro::run(dp, cx, out);
}

/// Segments a super-packet inside a tunnel, and takes in its segments one by one: from here on a super-packet has TCP or UDP
/// right behind its IP header. They go on at once: the segments of a burst of such packets may be more than memory holds.
#[cold]
fn segment_inside(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, framing: Framing) {
    let origin = pkt.meta.origin.get();
    let mut segments = std::mem::take(&mut dp.scratch.segments);
    match gso::segment(cx.mem, &Features::BY_REFERENCE, pkt, 0, &mut segments) {
        Ok(()) => {
            for segment in segments.drain(..) {
                ip_packet(dp, cx, &mut IpPacket::unparsed(segment), framing);
            }
        }
        Err(reason) => dp.ports.drop(origin, reason),
    }
    dp.scratch.segments = segments;
    flush(dp, cx, BurstEnd::MoreComing);
}

/// Parses the IP headers of a packet, which have to be of the version that the link layer named. Its flow is not found yet.
///
/// # Errors
/// As [`ip_headers`], and [`DropReason::EthNotForUs`]; [`DropReason::GsoEncapsulation`] for a super-packet inside a tunnel,
/// which has to be [segmented](segment_inside); [`DropReason::VirtioHeader`] for another checksum offload inside.
fn headers(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, framing: Framing) -> Result<(), DropReason> {
    let IpPacket { pkt, info, .. } = ip;
    let link = pkt.meta.origin.device();
    let version = Version::of(pkt.head()).unwrap_or(Version::V4);
    *info = ip_headers(cx.mem, pkt).inspect_err(|&reason| l3::count_malformed(dp, link, reason, version))?;
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

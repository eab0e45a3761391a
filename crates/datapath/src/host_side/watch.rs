//! Copies for promiscuous packet sockets of the host side: the frames of the link that do not go to the host side otherwise.
//!
//! A copied frame is addressed to no station, so that only packet sockets of the kernel receive it (`PACKET_OTHERHOST`). A frame that
//! is delivered or sent by the device itself is not copied: packet sockets receive each frame once.

use base::PortId;
use fib::{Decision, IlaHop};
use packet::{CopyReason, Packet};
use wire::eth::{self, EtherType};
use wire::ip::Info;
use wire::{Protocol, nd};

use crate::local::{esp, icmp};
use crate::{Cx, Datapath};

/// Copies a received frame to the device of its link, unless the frame itself is delivered there.
#[cold]
pub(crate) fn received(dp: &mut Datapath, cx: Cx<'_>, link: PortId, frame: &Packet) {
    if !is_seen(dp, cx, link, frame) {
        dp.ports.copy_received(cx.mem, link, frame);
    }
}

/// Tells from its headers whether a received frame is delivered to the device: a whole packet for this node that no protocol of the
/// node consumes. A frame that policies or checks drop later counts as delivered.
fn is_seen(dp: &Datapath, cx: Cx<'_>, link: PortId, frame: &Packet) -> bool {
    let Ok(header) = eth::EthHeader::ref_from(frame.head()) else { return false };
    let is_for_us =
        header.dst().is_multicast() || dp.ports.get(link).and_then(|port| port.config.mac) == Some(header.dst());
    match header.ethertype() {
        _ if !is_for_us || frame.meta.vlan.is_some() => return false,
        EtherType::IPV4 | EtherType::IPV6 => {}
        ethertype => return !ethertype.is_vlan(),
    }
    let head = frame.head().get(eth::EthHeader::LEN..).unwrap_or_default();
    let Ok(info) = Info::parse(head, frame.len() - eth::EthHeader::LEN) else { return false };
    if info.fragment.is_some() || is_esp(dp, cx, frame, &info) || is_consumed_icmp(dp, link, frame, &info) {
        return false;
    }
    let decision = dp.fib.decide(dp.fib.domain(link), info.dst, Some(link));
    let goes_elsewhere = matches!(
        decision,
        Decision::Forward { .. }
            | Decision::Ila { to: IlaHop::Forward { .. }, .. }
            | Decision::Drop(_)
            | Decision::Anycast { .. }
    );
    !goes_elsewhere || dp.is_local(dp.fib.domain(link), info.dst) || dp.own_link_local(link) == Some(info.dst)
}

/// Tells whether a frame carries ESP that the node decrypts, in UDP or not.
fn is_esp(dp: &Datapath, cx: Cx<'_>, frame: &Packet, info: &Info) -> bool {
    if info.protocol != Protocol::ESP && info.protocol != Protocol::UDP {
        return false;
    }
    let Ok(mut packet) = frame.copy(cx.mem, CopyReason::HostSide) else { return false };
    packet.pull(eth::EthHeader::LEN);
    esp::copy_is_for_node(dp, &packet, info)
}

/// Tells whether the node consumes a message of ICMP: a ping that it answers itself, and all discovery but router solicitations
/// and advertisements.
fn is_consumed_icmp(dp: &Datapath, link: PortId, frame: &Packet, info: &Info) -> bool {
    let mut kind = [0];
    if !frame.read_at(eth::EthHeader::LEN + info.header_len, &mut kind) {
        return false;
    }
    let [kind] = kind;
    let is_discovery = info.protocol == Protocol::ICMPV6 && nd::is_discovery(kind);
    icmp::is_answered_here(dp, link, info, kind)
        || is_discovery && !matches!(kind, nd::ROUTER_SOLICIT | nd::ROUTER_ADVERT)
}

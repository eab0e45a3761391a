//! Transmission of packets to the host side's devices, as received packets of its kernel.

use std::net::IpAddr;

use base::{DropReason, Origin, PortId};
use packet::{CopyReason, Packet, PktType};
use wire::eth::{self, EtherType};
use wire::{FlowKey, MacAddr, Version};

use super::flows::device_of;
use crate::next::Cast;
use crate::node::ports::host_port;
use crate::tx::device;
use crate::{Cx, Datapath, IpPacket};

/// Source address of frames to the host side: no station's, and not the device's own, which Linux would drop.
const SOURCE: MacAddr = MacAddr([2, 0xfa, 0x70, 0, 0, 0]);

/// Delivers an ICMP error about a packet of flow `sent` to the socket that sent it: by the device that the flow was sent by, else by
/// that of a link of `link`'s domain with the source address, else by any device of the domain.
pub(crate) fn deliver_error(dp: &mut Datapath, cx: Cx<'_>, sent: FlowKey, link: PortId, mut error: Packet) {
    let domain = dp.fib.domain(link);
    let of_flow = device_of(dp, cx, domain, &sent.reversed());
    let has_device = |&link: &PortId| dp.has_host_port(link) && dp.fib.domain(link) == domain;
    let devices = dp.ports.with_host_port();
    let Some(link) =
        of_flow.into_iter().chain(dp.fib.links_with(sent.src)).chain([link]).chain(devices).find(has_device)
    else {
        return dp.ports.drop(Origin::NODE, DropReason::LinkDown).end();
    };
    error.meta.origin = Origin::NODE.into();
    if let Err(reason) = send(dp, cx, link, error, None) {
        dp.ports.drop(Origin::NODE, reason).end();
    }
}

/// Copies a frame that carries no IP to the device of its link.
#[cold]
pub(crate) fn copy_frame(dp: &mut Datapath, cx: Cx<'_>, link: PortId, frame: &Packet) {
    let Ok(copy) = frame.copy(cx.mem, CopyReason::HostSide) else { return };
    device::enqueue(dp, cx, host_port(link), copy, eth::EthHeader::LEN);
}

/// Copies a router's message of neighbour discovery, which hosts read as well, to the device of its link.
pub(crate) fn copy_packet(dp: &mut Datapath, cx: Cx<'_>, link: PortId, ip: &IpPacket) {
    let Ok(mut copy) = ip.pkt.copy(cx.mem, CopyReason::HostSide) else { return };
    copy.meta.trace = 0;
    let cast = if ip.info.dst.is_multicast() { Cast::Group } else { Cast::Unicast };
    let to = destination(copy.meta.pkt_type, cast, ip.info.dst);
    if let Err(reason) = send(dp, cx, link, copy, to) {
        dp.ports.drop(Origin::Port(link), reason).end();
    }
}

/// Link-layer destination of a packet that was sent to a group, or came in a frame to several stations: the kernel answers neither
/// TCP nor, with an error, UDP in such a frame (RFC 1122 §3.2.2, §4.2.3.10). `None`: the device's own address.
pub(super) fn destination(pkt_type: PktType, cast: Cast, dst: IpAddr) -> Option<MacAddr> {
    match (cast, dst) {
        (Cast::Unicast | Cast::Anycast, _) if pkt_type == PktType::Group => Some(MacAddr::BROADCAST),
        (Cast::Unicast | Cast::Anycast, _) => None,
        (Cast::Group, IpAddr::V4(group)) if group.is_multicast() => Some(MacAddr::multicast_v4(group)),
        (Cast::Group, IpAddr::V6(group)) => Some(MacAddr::multicast_v6(group)),
        (Cast::Group, IpAddr::V4(_)) => Some(MacAddr::BROADCAST),
    }
}

/// Sends an IP packet by the device of `link`, behind an Ethernet header if the device has stations. A drop at the device is counted.
///
/// # Errors
/// [`DropReason::LinkDown`] without a device, [`DropReason::NoMemory`], or the reason why the packet is no IP packet; not counted yet.
pub(super) fn send(
    dp: &mut Datapath,
    cx: Cx<'_>,
    link: PortId,
    mut pkt: Packet,
    to: Option<MacAddr>,
) -> Result<(), DropReason> {
    let port = dp.ports.get(host_port(link)).ok_or(DropReason::LinkDown)?;
    let mut l3 = 0;
    if let Some(mac) = port.config.mac {
        let ethertype = match Version::of(pkt.head())? {
            Version::V4 => EtherType::IPV4,
            Version::V6 => EtherType::IPV6,
        };
        let header = eth::EthHeader::new(to.unwrap_or(mac), SOURCE, ethertype);
        pkt.push(cx.mem, eth::EthHeader::LEN)?.copy_from_slice(header.as_bytes());
        l3 = eth::EthHeader::LEN;
    }
    device::enqueue(dp, cx, host_port(link), pkt, l3);
    Ok(())
}

//! Packets that sockets of the host side send: output of this node (Linux `ip_local_out`).
//!
//! The kernel of the host side resolves no neighbours: it sends routed packets, broadcasts too, to the device's own MAC address. Frames to
//! other stations come from packet sockets, and leave by the device's link unchanged, as do all frames that carry no IP.

use std::net::{IpAddr, Ipv4Addr};

use ::reassembly::User;
use base::{DropReason, Origin, PortId};
use fib::RouteKind;
use host::icmp::Problem;
use packet::{Maker, Packet, PktType};
use wire::eth::{self, EtherType};
use wire::{MacAddr, Protocol, Version, ipv4};

use super::deliver::SentFlow;
use super::demux;
use crate::local::reassembly;
use crate::next::Hop;
use crate::node::ports::{Port, host_port};
use crate::run::run;
use crate::tx::device;
use crate::{Cx, Datapath, IpPacket, Next, local_out};

/// Handles a packet that came down by the device of `link`.
pub(crate) fn receive(dp: &mut Datapath, cx: Cx<'_>, link: PortId, mut pkt: Packet) {
    let origin = Origin::Local(dp.fib.domain(link));
    pkt.meta.origin = origin.into();
    pkt.meta.pkt_type = PktType::Host;
    pkt.meta.maker = Maker::Socket;
    pkt.meta.trace = 0;
    let packets = pkt.meta.cut.packets();
    if let Err(reason) = try_receive(dp, cx, link, pkt) {
        dp.ports.drops(origin, reason, packets).end();
    }
}

fn try_receive(dp: &mut Datapath, cx: Cx<'_>, link: PortId, mut pkt: Packet) -> Result<(), DropReason> {
    let port = dp.ports.get(host_port(link)).ok_or(DropReason::LinkDown)?;
    let mut to = Addressee::Node;
    if let Some(mac) = port.config.mac {
        if !pkt.may_pull(cx.mem, eth::EthHeader::LEN)? {
            return Err(DropReason::EthTruncated);
        }
        let header = *eth::EthHeader::ref_from(pkt.head())?;
        let is_ip = matches!(header.ethertype(), EtherType::IPV4 | EtherType::IPV6) && pkt.meta.vlan.is_none();
        to = match header.dst() {
            dst if dst == mac && is_ip => Addressee::Node,
            dst if dst.is_multicast() && is_ip && dst != MacAddr::BROADCAST => Addressee::Group,
            _ => return leave(dp, cx, link, pkt),
        };
        pkt.pull(eth::EthHeader::LEN);
    }
    let mut ip = IpPacket::unparsed(pkt);
    let next = output(dp, cx, link, &mut ip, to);
    run(dp, cx, &mut ip, next);
    Ok(())
}

/// Addressee of a frame from the host side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Addressee {
    /// The node, which routes the packet.
    Node,
    /// A group of stations of the link.
    Group,
}

/// Routes an IP packet of a socket. Packets to groups and to the limited broadcast address leave by the link.
fn output(dp: &mut Datapath, cx: Cx<'_>, link: PortId, ip: &mut IpPacket, to: Addressee) -> Next {
    if let Err(reason) = ip.parse(cx) {
        return Next::Drop(reason);
    }
    // The kernel has fragmented the datagram for its device; policies, ESP and fragmentation for the path need the whole datagram.
    if ip.info.fragment.is_some()
        && let Some(next) = reassembly::gather(dp, cx, ip, User::Output)
    {
        return next;
    }
    if let Err(reason) = set_dont_fragment(cx, ip) {
        return Next::Drop(reason);
    }
    let dst = ip.info.dst;
    if to == Addressee::Group && !dst.is_multicast() {
        return Next::Drop(DropReason::IpDestinationInvalid);
    }
    if dst.is_multicast() || dst == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return match group_link(dp, link, dst) {
            Some(link) => local_out::output_by(dp, cx, ip, Hop::new(link, dst)),
            None => Next::Drop(DropReason::NoRoute),
        };
    }
    match dp.flow_of_sent(cx, ip, link) {
        SentFlow::OfLink => {
            demux::note_sent(dp, cx, ip, link);
            local_out::route_out(dp, cx, ip, link)
        }
        SentFlow::OfVrf(domain, link) => {
            ip.pkt.meta.origin = Origin::Local(domain).into();
            local_out::route_out(dp, cx, ip, link)
        }
        SentFlow::Unknown => Next::Reject(DropReason::SocketVrfUnknown, Problem::NoRoute),
    }
}

/// Link by which a packet to a group or the limited broadcast address leaves: that of its device. A VRF's device has no link: the
/// routes of the VRF choose one for IPv4, and IPv6 groups are unreachable (Linux `vrf_link_scope_lookup`).
fn group_link(dp: &Datapath, link: PortId, group: IpAddr) -> Option<PortId> {
    let domain = dp.fib.domain(link);
    if domain.vrf_device() != Some(link) {
        return Some(link);
    }
    match dp.fib.lookup(domain, group, None).filter(|_| group.is_ipv4() && dp.fib.may_send(domain))?.kind {
        RouteKind::Unicast { dev, .. } => Some(dev),
        RouteKind::Paths(paths) => dp.fib.next_hops(paths).first().map(|hop| hop.dev),
        _ => None,
    }
}

/// Sets Don't Fragment of TCP over IPv4, which the locked MTU of the host side's routes has cleared: the node cuts segments to the
/// path MTU itself.
fn set_dont_fragment(cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    if ip.info.protocol != Protocol::TCP || ip.info.version() != Version::V4 || ip.info.dont_fragment {
        return Ok(());
    }
    let head = ip.pkt.writable_head(cx.mem)?;
    ipv4::Ipv4Header::mut_from(head)?.set_dont_fragment(true);
    ipv4::fill_check(head)?;
    ip.info.dont_fragment = true;
    Ok(())
}

/// Sends a frame by the link unchanged.
fn leave(dp: &mut Datapath, cx: Cx<'_>, link: PortId, frame: Packet) -> Result<(), DropReason> {
    let port = dp.ports.get(link).filter(|port| Port::is_running(port)).ok_or(DropReason::LinkDown)?;
    if port.config.mac.is_none() {
        return Err(DropReason::EthNotForUs);
    }
    if frame.meta.cut.gso().is_none() && frame.len() > port.config.mtu + eth::EthHeader::LEN {
        return Err(DropReason::PacketTooBig);
    }
    device::enqueue(dp, cx, link, frame, eth::EthHeader::LEN);
    Ok(())
}

//! Link layer of received packets: Ethernet headers, priority tags and ARP (Linux `eth_type_trans`).

use std::net::IpAddr;

use base::{DropReason, PortId, ShardId};
use fib::{Station, arp};
use packet::{Memory, Packet, PktType};
use wire::eth::{self, EtherType};
use wire::{MacAddr, Version, vlan};

use crate::bridge::ingress::{self, Bridged};
use crate::hand_over::hand_over;
use crate::host_side::{up, watch};
use crate::ip_packet::{Framing, IpPacket};
use crate::node::shard::Stage;
use crate::tx::neighbour;
use crate::vlan as vlan_device;
use crate::{Carried, Cx, Datapath, Device};

/// Result of the link layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameInput {
    /// The packet begins with its IP header.
    Ip(Framing),
    /// The frame is received by another port: that of a VLAN device, or the device of a bridge.
    Port(PortId),
    /// The frame goes to GRO of the bridge with this device, and then [on](behind_gro).
    Bridge(PortId),
    /// The frame was handled: ARP, or a frame for the host side, or for other ports of a bridge.
    Done,
}

/// Removes the link-layer header and records how the frame was addressed.
///
/// # Errors
/// [`DropReason::EthNotForUs`], [`DropReason::EthTruncated`], [`DropReason::LinkDown`] for a link without a port, or as
/// [`arp::handle`].
pub(super) fn input(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: &mut Carried) -> Result<FrameInput, DropReason> {
    let port = dp.ports.get(link).ok_or(DropReason::LinkDown)?;
    if port.config.mac.is_none() {
        return Ok(FrameInput::Ip(Framing::NONE));
    }
    if !pkt.may_pull(cx.mem, eth::EthHeader::LEN)? {
        return Err(DropReason::EthTruncated);
    }
    let bridge = port.bridge;
    let has_vlans = port.has_vlans;
    let is_gro = port.config.gro;
    if port.is_watched {
        watch::received(dp, cx, link, pkt);
    }
    if has_vlans && let Some(own) = vlan_device::receive(dp, cx, link, pkt)? {
        return Ok(FrameInput::Port(own));
    }
    if let Some(own) = bridge {
        ingress::prepare(cx.mem, pkt)?;
        if is_gro {
            return Ok(FrameInput::Bridge(own));
        }
        return behind_gro(dp, cx, own, link, pkt, None);
    }
    behind_bridge(dp, cx, link, pkt)
}

/// Continues [`input`] behind GRO of the bridge with the device `own`. `coalesced_from` is as in [`ingress::receive`].
///
/// # Errors
/// As [`ingress::receive`] and [`input`].
pub(super) fn behind_gro(
    dp: &mut Datapath,
    cx: Cx<'_>,
    own: PortId,
    link: PortId,
    pkt: &mut Carried,
    coalesced_from: Option<usize>,
) -> Result<FrameInput, DropReason> {
    match ingress::receive(dp, cx, own, link, pkt, coalesced_from)? {
        Bridged::Link => behind_bridge(dp, cx, link, pkt),
        Bridged::Port => Ok(FrameInput::Port(own)),
        Bridged::Sent => Ok(FrameInput::Done),
    }
}

/// Continues [`input`] for a frame that no bridge has taken.
#[inline]
fn behind_bridge(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: &mut Carried) -> Result<FrameInput, DropReason> {
    let port = dp.ports.get(link).ok_or(DropReason::LinkDown)?;
    let mac = port.config.mac.ok_or(DropReason::LinkDown)?;
    let is_bridge = port.device == Device::Bridge;
    if port.has_vlans
        && let Some(own) = vlan_device::receive_behind_priority_tags(dp, cx, link, pkt)?
    {
        return Ok(FrameInput::Port(own));
    }
    let header = eth::EthHeader::ref_from(pkt.head())?;
    let ethertype = header.ethertype();
    pkt.meta.pkt_type = match header.dst() {
        dst if dst == mac => PktType::Host,
        dst if dst.is_multicast() => PktType::Group,
        // The destination is the address of a port, and the bridge has passed the frame up.
        dst if is_bridge && dp.bridge(link).is_some_and(|bridge| bridge.is_own(dst)) => PktType::Host,
        _ => return Err(DropReason::EthNotForUs),
    };
    // A tagged frame may carry IP: the kernel treats VLAN 0 as untagged, so the packet would bypass the policies.
    let is_ip_or_tagged =
        matches!(ethertype, EtherType::IPV4 | EtherType::IPV6) || ethertype.is_vlan() || pkt.meta.vlan.is_some();
    let is_copied = !is_ip_or_tagged && dp.has_host_port(link);
    if is_copied {
        up::copy_frame(dp, cx, link, pkt);
    }
    pkt.pull(eth::EthHeader::LEN);
    match pull_priority_tags(cx.mem, pkt, ethertype)? {
        EtherType::ARP if !dp.shard.is_first() => {
            hand_over(dp, cx, IpPacket::unparsed(pkt.take()), ShardId::FIRST, Stage::Arp(link));
            Ok(FrameInput::Done)
        }
        EtherType::ARP => arp(dp, cx, Station { link, mac }, pkt).map(|()| FrameInput::Done),
        EtherType::IPV4 => Ok(FrameInput::Ip(Framing::of(Version::V4))),
        EtherType::IPV6 => Ok(FrameInput::Ip(Framing::of(Version::V6))),
        _ if is_copied => Ok(FrameInput::Done),
        _ => Err(DropReason::EthNotForUs),
    }
}

/// ARP of a link that another shard has handed over.
pub(crate) fn handed_over_arp(dp: &mut Datapath, cx: Cx<'_>, link: PortId, pkt: &mut Carried) {
    let mac = dp.ports.get(link).and_then(|port| port.config.mac).ok_or(DropReason::LinkDown);
    if let Err(reason) = mac.and_then(|mac| arp(dp, cx, Station { link, mac }, pkt)) {
        dp.count_packet_drop(pkt, pkt.len(), reason).end();
    }
}

fn arp(dp: &mut Datapath, cx: Cx<'_>, here: Station, pkt: &mut Packet) -> Result<(), DropReason> {
    pkt.linearize(cx.mem)?;
    let Datapath { fib, neighbours, actions, .. } = dp;
    let domain = fib.domain(here.link);
    let is_own = |addr| fib.is_local(domain, IpAddr::V4(addr));
    arp::handle(neighbours, cx.now, cx.mem, here, is_own, pkt.head(), actions)?;
    neighbour::run_neighbour_actions(dp, cx);
    Ok(())
}

/// Removes the tags of a frame that name no VLAN, and returns the type behind them: such a frame counts as untagged
/// (IEEE 802.1Q §6.9, Linux `__netif_receive_skb_core`).
///
/// # Errors
/// [`DropReason::EthNotForUs`] for a VLAN; no link is in one.
#[inline]
fn pull_priority_tags(mem: &Memory, pkt: &mut Packet, ethertype: EtherType) -> Result<EtherType, DropReason> {
    if ethertype.is_vlan() || pkt.meta.vlan.is_some() { pull_tags(mem, pkt, ethertype) } else { Ok(ethertype) }
}

#[cold]
fn pull_tags(mem: &Memory, pkt: &mut Packet, mut ethertype: EtherType) -> Result<EtherType, DropReason> {
    if pkt.meta.vlan.take().is_some_and(|tci| vlan::Tci(tci).vid() != 0) {
        return Err(DropReason::EthNotForUs);
    }
    while ethertype.is_vlan() {
        if !pkt.may_pull(mem, vlan::VlanHeader::LEN)? {
            return Err(DropReason::EthTruncated);
        }
        let tag = vlan::VlanHeader::ref_from(pkt.head())?;
        if tag.tci().vid() != 0 {
            return Err(DropReason::EthNotForUs);
        }
        ethertype = tag.ethertype();
        pkt.pull(vlan::VlanHeader::LEN);
    }
    Ok(ethertype)
}

/// Offset of the IP header in a packet for the station `mac` alone, or of a link without stations (`mac` is `None`).
#[inline]
pub(crate) fn l3_offset(mac: Option<MacAddr>, pkt: &Packet) -> Option<usize> {
    mac.map_or(Some(0), |mac| l3_offset_behind_ethernet(mac, pkt))
}

/// Offset of the IP header in an untagged frame to `mac` alone, of a type that is the packet's version.
#[inline]
fn l3_offset_behind_ethernet(mac: MacAddr, pkt: &Packet) -> Option<usize> {
    let header = eth::EthHeader::ref_from(pkt.head()).ok()?;
    let version = match header.ethertype() {
        EtherType::IPV4 => Version::V4,
        EtherType::IPV6 => Version::V6,
        _ => return None,
    };
    let is_whole = Version::of(pkt.head().get(eth::EthHeader::LEN..)?) == Ok(version);
    (is_whole && header.dst() == mac && pkt.meta.vlan.is_none()).then_some(eth::EthHeader::LEN)
}

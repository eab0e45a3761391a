//! ESP of this node, raw or in UDP: packets are submitted to the ciphers for decryption, and the results come back by
//! `receive_opened` of `rx/ip_rcv.rs` (Linux `esp4_rcv`, `xfrm4_udp_encap_rcv`).

use std::net::IpAddr;

use base::ShardId;
use offload::ip_headers;
use packet::{Packet, PktType};
use wire::ip::{self, Info};
use wire::{Protocol, Spi, Version, ipv4, ipv6, udp};

use crate::hand_over::hand_over;
use crate::ip_packet::EspAt;
use crate::mib::MibPair;
use crate::next::Cast;
use crate::node::shard::Stage;
use crate::{Cx, Datapath, IpPacket, Next, trace};

/// Submits a packet, or a train of them, for decryption.
pub(super) fn input(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket) -> Next {
    let origin = ip.pkt.meta.origin;
    dp.count_delivered(origin.device(), ip.info.version(), 1);
    submit(dp, cx, ip.pkt.take(), &ip.info);
    Next::Done
}

/// Submits a packet that another shard has taken out of a train.
pub(crate) fn open_handed_over(dp: &mut Datapath, cx: Cx<'_>, mut pkt: Packet) {
    match ip_headers(cx.mem, &mut pkt) {
        Ok(info) => submit(dp, cx, pkt, &info),
        Err(reason) => dp.count_drop(&pkt, reason).end(),
    }
}

/// Submits a packet, or a train of them.
fn submit(dp: &mut Datapath, cx: Cx<'_>, pkt: Packet, info: &Info) {
    let (origin, version) = (pkt.meta.origin, info.version());
    let mut opened = std::mem::take(&mut dp.scratch.opened);
    dp.ipsec.submit_open(cx.mem, cx.now, pkt, info, &mut opened, &mut dp.counters);
    for reason in opened.drops.drain(..) {
        dp.ports.count_drops(origin.get(), reason, 1).end();
    }
    trace::esp_dropped(dp);
    let keepalives = std::mem::take(&mut opened.keepalives);
    dp.counters.add(MibPair::UDP_IN_DATAGRAMS.of(version), keepalives);
    // Datagrams of a train that are not ESP: each is a packet of its own now, for the listener of its port.
    for pkt in opened.not_esp.drain(..) {
        dp.defer(IpPacket::unparsed(pkt), Next::L3In);
    }
    for (owner, pkt) in opened.elsewhere.drain(..) {
        hand_over(dp, cx, IpPacket::unparsed(pkt), owner, Stage::Esp);
    }
    dp.scratch.opened = opened;
}

/// Another shard that decrypts a packet which [is ESP](is_esp), or all packets of a train. Those of a train of several owners are
/// handed over one by one when it is decrypted, so that all packets of an SA take one way.
pub(crate) fn owner_elsewhere(dp: &Datapath, ip: &mut IpPacket) -> Option<ShardId> {
    let esp_at = offset(dp, ip)?;
    let (dst, pkt) = (ip.info.dst, &ip.pkt);
    let step = pkt.meta.cut.gso().map_or(pkt.len(), |gso| usize::from(gso.size)).max(1);
    let mut last: Option<(Spi, ShardId)> = None;
    for at in (esp_at..pkt.len()).step_by(step) {
        let mut spi = [0; size_of::<u32>()];
        pkt.read_at(at, &mut spi).then_some(())?;
        let spi = Spi(u32::from_be_bytes(spi));
        if last.is_some_and(|(same, _)| same == spi) {
            continue;
        }
        let owner = dp.ipsec.owner_elsewhere(dp.ipsec.sad().by_spi(dst, spi, pkt.meta.mark)?)?;
        if last.is_some_and(|(_, other)| other != owner) {
            return None;
        }
        last = Some((spi, owner));
    }
    last.map(|(_, owner)| owner)
}

/// Tells whether a packet for this node is ESP that it decrypts.
#[inline]
pub(crate) fn is_esp(dp: &Datapath, ip: &mut IpPacket, cast: Cast) -> bool {
    offset(dp, ip).is_some_and(|at| cast == Cast::Unicast || opens_for_others(dp, &ip.pkt, &ip.info, at))
}

/// Tells whether a packet that was just received is ESP that this node decrypts, for itself or for a host.
#[inline]
pub(crate) fn is_for_node(dp: &Datapath, ip: &mut IpPacket) -> bool {
    offset(dp, ip).is_some_and(|at| is_esp_for_node(dp, &ip.pkt, &ip.info, at))
}

/// As [`is_for_node`], for a packet that is not on its way through the stages.
pub(crate) fn copy_is_for_node(dp: &Datapath, pkt: &Packet, info: &Info) -> bool {
    find(dp, pkt, info).is_some_and(|at| is_esp_for_node(dp, pkt, info, at))
}

fn is_esp_for_node(dp: &Datapath, pkt: &Packet, info: &Info, esp_at: usize) -> bool {
    dp.is_local(dp.fib.domain(pkt.meta.origin.device()), info.dst) || opens_for_others(dp, pkt, info, esp_at)
}

/// Tells whether a packet to another node is ESP of an SA that this node has on behalf of that node.
#[inline]
pub(crate) fn is_for_others(dp: &Datapath, ip: &mut IpPacket) -> bool {
    offset(dp, ip).is_some_and(|at| opens_for_others(dp, &ip.pkt, &ip.info, at))
}

fn opens_for_others(dp: &Datapath, pkt: &Packet, info: &Info, esp_at: usize) -> bool {
    let mut spi = [0; size_of::<u32>()];
    pkt.meta.pkt_type == PktType::Host
        && pkt.read_at(esp_at, &mut spi)
        && dp.ipsec.sad().opens_for_others(info.dst, Spi(u32::from_be_bytes(spi)), pkt.meta.mark)
}

/// Offset of the ESP header in a packet of ESP, or of ESP in UDP to a port for it. Looked for once: a packet passes here at
/// reception, at the routing decision and at local input.
#[inline]
pub(crate) fn offset(dp: &Datapath, ip: &mut IpPacket) -> Option<usize> {
    if ip.esp_at == EspAt::Unknown {
        ip.esp_at = find(dp, &ip.pkt, &ip.info).map_or(EspAt::None, EspAt::Offset);
    }
    match ip.esp_at {
        EspAt::Offset(at) => Some(at),
        EspAt::None | EspAt::Unknown => None,
    }
}

/// The offset, found in the headers. A fragment has to be reassembled first. A train of UDP may have ESP anywhere in it.
#[inline]
fn find(dp: &Datapath, pkt: &Packet, info: &Info) -> Option<usize> {
    match info.protocol {
        _ if info.fragment.is_some() => None,
        Protocol::ESP => Some(info.header_len),
        Protocol::UDP => {
            let mut header = [0; udp::UdpHeader::LEN];
            if !pkt.read_at(info.header_len, &mut header) {
                return None;
            }
            let header = udp::UdpHeader::ref_from(&header).ok()?;
            if !dp.ipsec.sad().is_encap_port(info.dst, header.dport()) {
                return None;
            }
            let at = info.header_len + udp::UdpHeader::LEN;
            let len = header.len().min(info.payload_len()).saturating_sub(udp::UdpHeader::LEN);
            let mut front = [0; ipsec::ENCAP_PEEK];
            let front = &mut front[..len.min(ipsec::ENCAP_PEEK)];
            let mut is_esp = || pkt.read_at(at, front) && ipsec::is_esp_in_udp(front);
            (pkt.meta.cut.gso().is_some() || is_esp()).then_some(at)
        }
        _ => None,
    }
}

/// Tells from its first bytes whether a packet may be ESP: TCP is not, nor is UDP to a port that no SA uses for ESP.
#[inline]
pub(crate) fn may_be_esp(dp: &Datapath, head: &[u8]) -> bool {
    let is_encap = || {
        let (dst, udp) = match Version::of(head).ok()? {
            Version::V4 => {
                (IpAddr::V4(ipv4::Ipv4Header::ref_from(head).ok()?.dst()), head.get(ipv4::Ipv4Header::LEN..)?)
            }
            Version::V6 => {
                (IpAddr::V6(ipv6::Ipv6Header::ref_from(head).ok()?.dst()), head.get(ipv6::Ipv6Header::LEN..)?)
            }
        };
        Some(dp.ipsec.sad().is_encap_port(dst, udp::UdpHeader::ref_from(udp).ok()?.dport()))
    };
    match ip::plain_protocol(head) {
        Some(Protocol::TCP) => false,
        Some(Protocol::UDP) => is_encap().unwrap_or(true),
        _ => true,
    }
}

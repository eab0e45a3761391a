//! IKE messages for an IKE daemon outside this node: on the port of ESP in UDP (RFC 3948 §2.2, §4; Linux `xfrm4_udp_encap_rcv`),
//! and on the ports of a node whose addresses are exclusive (RFC 7296 §2).
//!
//! Messages to these ports are taken out before the policy lookup, as with the bypass policies of an IKE socket: a policy could
//! get no SA without them.

use std::net::{IpAddr, SocketAddr};

use base::{DropReason, Mib, PortId, RouteFlow};
use fib::Decision;
use ipsec::KEEPALIVE;
use offload::checksum;
use packet::{Csum, Memory, Packet};
use wire::{Protocol, Version, checksum as sums, esp, ipv4, ipv6, udp};

use crate::mib::MibPair;
use crate::next::Hop;
use crate::node::ike::{ENCAP_PORT, IKE_PORT, IkeAt, IkeMessage};
use crate::tx::mtu;
use crate::{Cx, Datapath, IpPacket, Next};

/// Marker in front of an IKE message, where ESP has its SPI.
const NON_ESP_MARKER: [u8; 4] = [0; 4];

/// Limit of queued messages, in bytes.
const MAX_WAITING: usize = 1 << 20;

pub(crate) fn send(dp: &mut Datapath, cx: Cx<'_>, message: &IkeMessage) -> Result<(), DropReason> {
    let hop = ike_hop(dp, message)?;
    let link_mtu = dp.mtu_of(hop.dev).ok_or(DropReason::LinkDown)?;
    let mut pkt = packet(cx.mem, message)?;
    dp.fragment_ids.identify(cx.mem, &mut pkt)?;
    let mtu = dp.path_mtu(cx, hop.dev, message.peer.ip(), link_mtu);
    dp.count(hop.dev, MibPair::OUT_REQUESTS.of(Version::of_addr(message.peer.ip())));
    mtu::run_fitted(dp, cx, pkt, mtu, hop);
    Ok(())
}

fn ike_hop(dp: &Datapath, message: &IkeMessage) -> Result<Hop, DropReason> {
    let IkeMessage { local, peer, .. } = *message;
    if !is_host(peer) || local.is_ipv4() != peer.is_ipv4() {
        return Err(DropReason::IkeUnsendable);
    }
    if let Some(&(dev, _)) = dp.ike.links.iter().find(|(_, at)| *at == IkeAt::Port(local)) {
        return Ok(Hop::new(dev, peer.ip()));
    }
    let places = dp.ike.links.iter().filter(|(_, at)| *at == IkeAt::Node && at.has(local));
    let mut domains = places.map(|&(link, _)| dp.fib.domain(link));
    let domain = domains.find(|&domain| dp.fib.is_local(domain, local.ip())).ok_or(DropReason::IkeUnsendable)?;
    let flow = RouteFlow {
        src: Some(local.ip()),
        protocol: Protocol::UDP.0,
        sport: local.port(),
        dport: peer.port(),
        ..RouteFlow::to(domain, peer.ip())
    };
    match dp.decide_flow(&flow) {
        decision @ (Decision::Forward { .. } | Decision::Ila { .. } | Decision::Drop(_)) => Hop::of(decision),
        _ => Err(DropReason::IkeUnsendable),
    }
}

/// Tells whether a packet for this node is to a port of IKE.
#[inline]
pub(super) fn is_for_ike(dp: &Datapath, ip: &IpPacket) -> bool {
    ip.info.protocol == Protocol::UDP && !dp.ike.links.is_empty() && ike_port(dp, ip).is_some()
}

fn ike_port(dp: &Datapath, ip: &IpPacket) -> Option<SocketAddr> {
    let dst = SocketAddr::new(ip.info.dst, ip.flow.dport);
    let link = ip.pkt.meta.origin.device();
    let at = dp.ike.links.iter().find(|&&(place_link, at)| place_link == link && at.has(dst))?.1;
    // IKE is unicast.
    (at == IkeAt::Port(dst) || dp.fib.is_local(dp.fib.domain(link), dst.ip())).then_some(dst)
}

/// Takes in a packet to a port of IKE, a datagram or a train; `None` if it came through an SA or its headers are malformed.
pub(super) fn input(dp: &mut Datapath, ip: &IpPacket) -> Option<Next> {
    let at = ip.info.header_len + udp::UdpHeader::LEN;
    let local = ike_port(dp, ip).filter(|_| ip.pkt.meta.sec_path.is_empty());
    let (Some(local), Some(info)) = (local, ip.udp_datagram()) else { return None };
    let payload_len = info.total_len - at;
    let version = ip.info.version();
    dp.count_delivered(ip.pkt.meta.origin.device(), version, 1);
    let size = ip.pkt.meta.cut.gso().map(|gso| usize::from(gso.size));
    if size.is_none() && !checksum::verify(&ip.pkt, &info) {
        dp.counters.count(MibPair::UDP_IN_CSUM_ERRORS.of(version));
        dp.counters.count(MibPair::UDP_IN_ERRORS.of(version));
        return Some(Next::Drop(DropReason::ChecksumWrong));
    }
    let peer = SocketAddr::new(ip.info.src, ip.flow.sport);
    let mut payload = vec![0; payload_len];
    ip.pkt.read_at(at, &mut payload);
    if payload.is_empty() {
        deliver_datagram(dp, &ip.pkt, [local, peer], &[]);
    }
    for datagram in payload.chunks(size.unwrap_or(payload_len).max(1)) {
        deliver_datagram(dp, &ip.pkt, [local, peer], datagram);
    }
    Some(Next::Done)
}

/// Checks that a packet to the port of ESP in UDP for an IKE daemon of the host side has the non-ESP marker: ESP without an SA and
/// keepalives are dropped here, as in Linux's `xfrm4_udp_encap_rcv`.
///
/// # Errors
/// The drop reason, for the caller to count.
pub(super) fn check_marker(dp: &mut Datapath, ip: &IpPacket) -> Result<(), DropReason> {
    if ip.flow.dport != ENCAP_PORT {
        return Ok(());
    }
    let at = ip.info.header_len + udp::UdpHeader::LEN;
    let mut first = [0; NON_ESP_MARKER.len()];
    match ip.info.total_len.saturating_sub(at) {
        len if len > esp::EspHeader::LEN && ip.pkt.read_at(at, &mut first) && first != NON_ESP_MARKER => {
            dp.counters.count(Mib::XfrmInNoStates);
            Err(DropReason::EspNoState)
        }
        len if len <= NON_ESP_MARKER.len() => Err(DropReason::EncapIgnored),
        _ => Ok(()),
    }
}

/// Marks the checksum of a datagram as partial if it is missing, because the receiving socket has verified and removed it: over IPv6
/// a kernel drops datagrams without a checksum (RFC 8200 §8.1).
///
/// # Errors
/// No memory is free.
pub(super) fn ask_for_checksum(cx: Cx<'_>, ip: &mut IpPacket) -> Result<(), DropReason> {
    let (start, len) = (ip.info.header_len, ip.info.total_len - ip.info.header_len);
    let mut check = [0; 2];
    let IpAddr::V6(src) = ip.info.src else { return Ok(()) };
    let IpAddr::V6(dst) = ip.info.dst else { return Ok(()) };
    if ip.pkt.meta.csum != Csum::Unnecessary || !ip.pkt.read_at(start + udp::CHECK_AT, &mut check) || check != [0, 0] {
        return Ok(());
    }
    let seed = sums::fold(sums::pseudo_v6(src, dst, Protocol::UDP, len));
    let head = ip.pkt.writable_head(cx.mem)?;
    let field = head.get_mut(start + udp::CHECK_AT..start + udp::CHECK_AT + 2).ok_or(DropReason::TransportHeader)?;
    field.copy_from_slice(&seed.to_be_bytes());
    ip.pkt.meta.csum = Csum::Partial { start: start as u16, offset: udp::CHECK_AT as u16 };
    Ok(())
}

/// Takes in the payload of one datagram to a port of IKE (Linux `xfrm4_udp_encap_rcv`): a message for the IKE daemon, a
/// keepalive, which is dropped, or ESP without an SA.
fn deliver_datagram(dp: &mut Datapath, pkt: &Packet, [local, peer]: [SocketAddr; 2], payload: &[u8]) {
    dp.counters.count(MibPair::UDP_IN_DATAGRAMS.of(Version::of_addr(local.ip())));
    let marker = marker(local.port());
    let is_encap = !marker.is_empty();
    match payload.strip_prefix(marker) {
        _ if is_encap && *payload == KEEPALIVE => {}
        Some([]) => dp.count_drop(pkt, DropReason::EncapIgnored).end(),
        Some(message) if dp.ike.bytes + message.len() > MAX_WAITING => {
            dp.count_drop(pkt, DropReason::IkeQueueFull).end();
        }
        Some(message) => {
            dp.ike.bytes += message.len();
            dp.ike.waiting.push_back(IkeMessage { local, peer, bytes: message.to_vec() });
        }
        None if payload.len() > esp::EspHeader::LEN => {
            dp.counters.count(Mib::XfrmInNoStates);
            dp.count_drop(pkt, DropReason::EspNoState).end();
        }
        None => dp.count_drop(pkt, DropReason::EncapIgnored).end(),
    }
}

/// Tells whether a UDP packet for this node is to a port of IKE or of ESP in UDP. Such a port is open: *port unreachable*
/// ends the mapping of a tunnel in NATs that do not keep to RFC 4787 REQ-12.
pub(super) fn is_to_open_port(dp: &Datapath, ip: &IpPacket) -> bool {
    dp.ipsec.sad().is_encap_port(ip.info.dst, ip.flow.dport) || ike_port(dp, ip).is_some()
}

impl Datapath {
    /// Sets the links with IKE ports.
    pub fn set_ike(&mut self, links: Vec<(PortId, IkeAt)>) {
        self.ike.links = links;
    }

    /// Removes the IKE ports of a link, whose number may be reused.
    pub(crate) fn forget_ike(&mut self, link: PortId) {
        self.ike.links.retain(|&(its, _)| its != link);
    }

    /// Tells whether messages to `at` are taken out; `at` may be any address of its family.
    #[must_use]
    pub fn has_ike(&self, at: SocketAddr) -> bool {
        self.ike.links.iter().any(|(_, place)| place.has(at))
    }

    /// Messages received since the last call.
    pub fn take_ike(&mut self) -> std::collections::vec_deque::Drain<'_, IkeMessage> {
        self.ike.bytes = 0;
        self.ike.waiting.drain(..)
    }
}

/// Non-ESP marker of a message from or to that port of this node; empty for port 500.
const fn marker(port: u16) -> &'static [u8] {
    if port == IKE_PORT { &[] } else { &NON_ESP_MARKER }
}

/// Tells an address that a host can have.
fn is_host(end: SocketAddr) -> bool {
    !end.ip().is_unspecified() && !end.ip().is_multicast() && end.port() != 0
}

/// UDP packet with a message. The checksum is computed also over IPv4, as no other check protects the message.
fn packet(mem: &Memory, message: &IkeMessage) -> Result<Packet, DropReason> {
    let payload = [marker(message.local.port()), &message.bytes].concat();
    let len = u16::try_from(udp::UdpHeader::LEN + payload.len()).map_err(|_| DropReason::PacketTooBig)?;
    let mut udp = udp::UdpHeader::new(message.local.port(), message.peer.port(), len);
    let (ip, pseudo) = match (message.local.ip(), message.peer.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let total = len.checked_add(ipv4::Ipv4Header::LEN as u16).ok_or(DropReason::PacketTooBig)?;
            let mut header = ipv4::Ipv4Header::new(src, dst, Protocol::UDP, total);
            header.fill_check();
            (header.as_bytes().to_vec(), sums::pseudo_v4(src, dst, Protocol::UDP, len.into()))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let header = ipv6::Ipv6Header::new(src, dst, Protocol::UDP, len);
            (header.as_bytes().to_vec(), sums::pseudo_v6(src, dst, Protocol::UDP, len.into()))
        }
        _ => return Err(DropReason::IkeUnsendable),
    };
    let sum = [pseudo, sums::sum(udp.as_bytes()), sums::sum(&payload)].into_iter().fold(0, sums::add);
    udp.set_check(sums::finish_udp(sum));
    debug_assert_eq!(Version::of(&ip).map(Version::header_len), Ok(ip.len()));
    Ok(Packet::with_data(mem, &[&ip, udp.as_bytes(), &payload].concat())?)
}

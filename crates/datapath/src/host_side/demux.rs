//! Early demux: packets of established flows of the host side's sockets go up without a route lookup (Linux
//! `ip_rcv_finish_core`, `ip6_rcv_finish_core`).
//!
//! The look-up is made once for each packet, fat or not, after the pre-routing hooks, and so with a translated destination.

use base::{Domain, PortId};
use host::LocalRoute;
use packet::PktType;
use wire::Protocol;
use wire::tcp::{Flags, TcpHeader};

use super::flows::{Echo, echo_flow, flow_in};
use crate::next::Cast;
use crate::{Cx, Datapath, IpPacket, Next};

/// Next stage of a packet of an established flow, if the flow's cached route to this node is still valid.
#[inline]
pub(crate) fn find(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, domain: Domain) -> Option<Next> {
    ip.socket_device = None;
    if dp.established.is_empty() || !may_have_socket(dp, ip) {
        return None;
    }
    let route = local_route(dp, ip);
    let flow = dp.established.find(cx.now, domain, &ip.flow);
    if let Some(flow) = flow.filter(|flow| flow.route == Some(route)) {
        // A socket that is bound to no device may have been replaced by one that is bound.
        ip.socket_device = Some(flow.device).filter(|_| !flow.is_unbound);
        dp.demux_counts.hits += 1;
        return Some(Next::Local(Cast::Unicast));
    }
    dp.demux_counts.misses += 1;
    None
}

/// Caches the result of a route lookup: the packet's flow is for this node alone.
#[inline]
pub(crate) fn note_local(dp: &mut Datapath, cx: Cx<'_>, ip: &IpPacket, domain: Domain) {
    if dp.established.is_empty() || !may_have_socket(dp, ip) {
        return;
    }
    let route = local_route(dp, ip);
    if let Some(flow) = dp.established.find(cx.now, domain, &ip.flow) {
        flow.route = Some(route);
    }
}

fn local_route(dp: &Datapath, ip: &IpPacket) -> LocalRoute {
    LocalRoute { link: ip.pkt.meta.origin.device(), generation: dp.fib.generation() }
}

/// Tells whether a packet may belong to a socket. Fragments are looked up after reassembly, and packets with options take the slow
/// path, which checks them.
#[inline]
fn may_have_socket(dp: &Datapath, ip: &IpPacket) -> bool {
    let is_on = match ip.info.protocol {
        Protocol::TCP => dp.early_demux.tcp,
        Protocol::UDP => dp.early_demux.udp,
        _ => false,
    };
    is_on
        && dp.early_demux.ip
        && ip.info.plain
        && ip.info.fragment.is_none()
        && ip.pkt.meta.pkt_type == PktType::Host
        && dp.has_host_port(ip.pkt.meta.origin.device())
}

/// Records the flow of a packet that a socket sends by the device of `link`.
pub(super) fn note_sent(dp: &mut Datapath, cx: Cx<'_>, ip: &IpPacket, link: PortId) {
    let domain = dp.fib.domain(link);
    let is_end = is_reset(ip);
    if ip.info.fragment.is_none()
        && let Some(flow) = flow_in(domain, ip.flow)
    {
        dp.established.sent(cx.now, domain, link, flow, is_end);
        if let Some(echo) = echo_flow(ip, Echo::Request).filter(|_| domain != Domain::DEFAULT) {
            dp.established.sent(cx.now, domain, link, echo, false);
        }
    }
}

fn is_reset(ip: &IpPacket) -> bool {
    tcp_flags(ip).is_some_and(|flags| flags.contains(Flags::RST))
}

/// Tells whether a packet opens a connection of TCP: a SYN that acknowledges nothing.
pub(super) fn is_opening(ip: &IpPacket) -> bool {
    tcp_flags(ip).is_some_and(|flags| flags.contains(Flags::SYN) && !flags.contains(Flags::ACK))
}

fn tcp_flags(ip: &IpPacket) -> Option<Flags> {
    let mut header = [0; TcpHeader::LEN];
    let is_whole = ip.info.protocol == Protocol::TCP && ip.pkt.read_at(ip.info.header_len, &mut header);
    is_whole.then(|| TcpHeader::ref_from(&header).ok().map(TcpHeader::flags))?
}

impl Datapath {
    /// Flows of the host side's sockets.
    #[must_use]
    pub fn established(&self) -> &host::Established {
        &self.established
    }
}

//! Delivery to sockets of the host side, by the device of a packet's input link or of its VRF, according to the binding of the receiving
//! socket (Linux `inet_sk_bound_dev_eq`, `udp_sk_bound_dev_eq`).
//!
//! The kernel of the host side has no VRFs: a socket that is bound to a VRF's device receives only packets of that device. A packet of a
//! flow in which a socket has sent is delivered by the device that the socket used. For the first packet of any other flow the caller
//! [looks up](Datapath::socket_question) the socket; the packet waits meanwhile, and the answer is cached per destination for a
//! second.

use base::{Domain, DropReason, LinkId};
use fib::Decision;
use packet::PktType;
use wire::{FlowKey, Protocol};

use super::flows::{Echo, device_of, device_of_key, echo_flow};
use super::up;
use crate::icmp_quote::answer_to_quoted;
use crate::local::{tcp, udp};
use crate::next::Cast;
use crate::node::sockets::{L3mdevAccept, SocketBinding, SocketQuestion, WaitingPacket};
use crate::node::trace::Step;
use crate::tx::tcp::clamp_delivered;
use crate::{Cx, Datapath, IpPacket, Next, trace};

/// Limit of packets that wait for answers.
const MAX_WAITING: usize = 1024;

/// Delivers a packet for this node by the device of the link that it came by, or of its VRF.
pub(crate) fn deliver(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    match choose(dp, cx, ip, cast) {
        Ok(device) => deliver_by(dp, cx, ip, cast, device),
        Err(next) => next,
    }
}

/// Delivers a packet for this node by that device.
fn deliver_by(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast, device: LinkId) -> Next {
    let pkt_type = ip.pkt.meta.pkt_type;
    // The kernel refuses TCP in a frame to several stations, but a VRF's device shows no stations.
    let shows_stations = dp.ports.hosts.get(device).is_some_and(|port| port.config.mac.is_some());
    if ip.info.protocol == Protocol::TCP && pkt_type != PktType::Host && !shows_stations {
        return tcp::input(dp, cx, ip, cast);
    }
    dp.count_delivered(ip.pkt.meta.origin.device(), ip.info.version(), 1);
    if dp.trace.is_on() {
        trace::step(dp, cx, &mut ip.pkt, Step::Up { dev: device });
    }
    let origin = ip.pkt.meta.origin.get();
    let to = up::destination(pkt_type, cast, ip.info.dst);
    if let Err(reason) = clamp_delivered(dp, cx, ip) {
        return Next::Drop(reason);
    }
    if let Err(reason) = up::send(dp, cx, device, ip.pkt.take(), to) {
        dp.ports.drop(origin, reason);
    }
    Next::Done
}

/// Chooses the device by which a packet for this node goes up, of its link or of the VRF.
///
/// # Errors
/// The next stage of a packet that does not go up, or waits for an answer.
fn choose(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Result<LinkId, Next> {
    let link = ip.pkt.meta.origin.device();
    let domain = dp.fib.domain(link);
    let Some(vrf) = domain.vrf_device().filter(|&vrf| dp.has_host_port(vrf)) else { return Ok(link) };
    if cast == Cast::Group {
        return Ok(link);
    }
    if let Some(device) = ip.socket_device.filter(|&device| dp.has_host_port(device)) {
        return Ok(device);
    }
    let of_echo = echo_flow(ip, Echo::Reply).and_then(|flow| device_of_key(dp, cx, domain, &flow));
    let of_flow = of_echo.or_else(|| device_of(dp, cx, domain, &ip.flow));
    if let Some(device) = of_flow.or_else(|| device_of(dp, cx, domain, &answer_to_quoted(ip)?)) {
        return Ok(device);
    }
    if !dp.socket_lookups.is_enabled || !matches!(ip.info.protocol, Protocol::TCP | Protocol::UDP) {
        return Ok(link);
    }
    // The input link of a packet that the node has sent to itself is the VRF: the link is that of the address.
    let link = match dp.decide(domain, ip.info.dst) {
        Decision::Local { dev } if link == vrf => dev,
        _ => link,
    };
    let question = SocketQuestion { flow: ip.flow, link, vrf };
    if let Some(binding) = dp.socket_lookups.known(cx.now, &question.end()) {
        return apply(dp, cx, ip, cast, question, binding);
    }
    if dp.socket_lookups.waiting.len() >= MAX_WAITING || !dp.socket_lookups.budget.take(cx.now) {
        return Err(Next::Drop(DropReason::SocketUnknown));
    }
    let pkt = ip.pkt.take();
    dp.socket_lookups.waiting.push_back(WaitingPacket { pkt, cast, question });
    Err(Next::Done)
}

/// Device of a packet that a socket so bound gets, or the refusal of one that no socket gets.
fn apply(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    cast: Cast,
    question: SocketQuestion,
    binding: SocketBinding,
) -> Result<LinkId, Next> {
    let SocketQuestion { flow, link, vrf } = question;
    match binding {
        SocketBinding::Link => Ok(link),
        SocketBinding::Vrf => Ok(vrf),
        SocketBinding::Unbound if dp.socket_lookups.accepts(flow.protocol) => {
            dp.established.accepted(cx.now, Domain::vrf(vrf), link, flow);
            Ok(link)
        }
        SocketBinding::Unbound | SocketBinding::NoSocket => Err(refuse_socket(dp, cx, ip, cast)),
    }
}

/// Refuses a packet of TCP or UDP that no socket of the host side gets, as the node does without a host side.
fn refuse_socket(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Next {
    match ip.info.protocol {
        Protocol::TCP => tcp::input(dp, cx, ip, cast),
        _ => udp::input(dp, ip, cast),
    }
}

/// Continues with a packet that has waited for an answer.
pub(crate) fn resume(dp: &mut Datapath, cx: Cx<'_>, waiting: WaitingPacket, binding: SocketBinding) {
    let WaitingPacket { pkt, cast, question } = waiting;
    let mut ip = IpPacket::unparsed(pkt);
    let next = match ip.parse(cx) {
        Ok(()) => match apply(dp, cx, &mut ip, cast, question, binding) {
            Ok(device) => deliver_by(dp, cx, &mut ip, cast, device),
            Err(next) => next,
        },
        Err(reason) => Next::Drop(reason),
    };
    dp.defer(ip, next);
}

impl Datapath {
    /// Sets whether the caller answers [`socket_question`](Self::socket_question)s. If not, packets of VRFs go up by the devices
    /// of their links.
    pub fn enable_socket_lookups(&mut self, is_enabled: bool) {
        self.socket_lookups.is_enabled = is_enabled;
    }

    /// Sets whether sockets that are bound to no device get packets of VRFs.
    pub fn set_l3mdev_accept(&mut self, accept: L3mdevAccept) {
        self.socket_lookups.accept = accept;
    }

    /// Question about the packet that has waited longest. To be answered before more input is taken in.
    #[must_use]
    pub fn socket_question(&self) -> Option<SocketQuestion> {
        Some(self.socket_lookups.waiting.front()?.question)
    }

    /// Domain and link of a packet that comes down by the device of `link`, and answers a flow of a VRF though its socket is bound to no
    /// device.
    #[inline]
    pub(super) fn domain_of_answer(&self, cx: Cx<'_>, sent: &FlowKey, link: LinkId) -> Option<(Domain, LinkId)> {
        let L3mdevAccept { tcp, udp } = self.socket_lookups.accept;
        if !tcp && !udp || self.fib.domain(link) != Domain::DEFAULT {
            return None;
        }
        self.established.answered(cx.now, sent)
    }
}

//! Delivery to sockets of the host side, by the device of a packet's input link or of its VRF, according to the binding of the receiving
//! socket (Linux `inet_sk_bound_dev_eq`, `udp_sk_bound_dev_eq`).
//!
//! The kernel of the host side has no VRFs: a socket that is bound to a VRF's device receives only packets of that device. A packet of a
//! flow in which a socket has sent is delivered by the device that the socket used. For the first packet of any other flow the caller
//! [looks up](Datapath::socket_question) the socket; the packet waits meanwhile, and the answer is cached per destination for a
//! second.
//!
//! A flow of a socket that is bound to no device belongs to one VRF, or to none: that kernel takes packets with the flow's addresses
//! and ports for the flow's, by whichever device they come. So packets of other domains with these addresses and ports are dropped
//! while the socket exists, and answers leave in the flow's domain or not at all.

use base::{Domain, DropReason, PortId};
use fib::Decision;
use packet::PktType;
use wire::{FlowKey, Protocol};

use super::demux::is_opening;
use super::flows::{Echo, device_of, device_of_key, echo_flow};
use super::up;
use crate::icmp_quote::answer_to_quoted;
use crate::local::{tcp, udp};
use crate::next::Cast;
use crate::node::ports::host_port;
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
fn deliver_by(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast, device: PortId) -> Next {
    let pkt_type = ip.pkt.meta.pkt_type;
    // The kernel refuses TCP in a frame to several stations, but a VRF's device shows no stations.
    let shows_stations = dp.ports.get(host_port(device)).is_some_and(|port| port.config.mac.is_some());
    if ip.info.protocol == Protocol::TCP && pkt_type != PktType::Host && !shows_stations {
        return tcp::input(dp, cx, ip, cast);
    }
    dp.count_delivered(ip.pkt.meta.origin.device(), ip.info.version(), 1);
    trace::step(dp, cx, &mut ip.pkt, Step::Up { dev: device });
    let origin = ip.pkt.meta.origin.get();
    let to = up::destination(pkt_type, cast, ip.info.dst);
    if let Err(reason) = clamp_delivered(dp, cx, ip) {
        return Next::Drop(reason);
    }
    match up::send(dp, cx, device, ip.pkt.take(), to) {
        Ok(()) => Next::Done,
        Err(reason) => dp.ports.drop(origin, reason).into(),
    }
}

/// Chooses the device by which a packet for this node goes up, of its link or of the VRF.
///
/// # Errors
/// The next stage of a packet that does not go up, or waits for an answer.
fn choose(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Result<PortId, Next> {
    let link = ip.pkt.meta.origin.device();
    let domain = dp.fib.domain(link);
    if cast == Cast::Group {
        return Ok(link);
    }
    let quoted = answer_to_quoted(ip);
    let is_contested = |dp: &Datapath| dp.established.is_contested(cx.now, domain, &quoted.unwrap_or(ip.flow));
    let vrf = match domain.vrf_device().filter(|&vrf| dp.has_host_port(vrf)) {
        Some(vrf) => vrf,
        None if is_contested(dp) => link,
        None => return Ok(link),
    };
    if let Some(device) = ip.socket_device.filter(|&device| vrf != link && dp.has_host_port(device)) {
        return Ok(device);
    }
    if let Some(quoted) = quoted {
        let of_flow = device_of(dp, cx, domain, &quoted);
        let may_be_of_other = || is_contested(dp) || dp.fib.is_elsewhere(domain, quoted.dst);
        return match of_flow {
            Some(device) => Ok(device),
            None if may_be_of_other() => Err(Next::Drop(DropReason::SocketOtherVrf)),
            None => Ok(link),
        };
    }
    if let Some(device) = echo_flow(ip, Echo::Reply).and_then(|flow| device_of_key(dp, cx, domain, &flow)) {
        return Ok(device);
    }
    if let Some(device) = device_of(dp, cx, domain, &ip.flow)
        && !(is_unbound(dp, cx, domain, &ip.flow) && may_be_of_new_socket(ip))
    {
        return Ok(device);
    }
    if !dp.socket_lookups.is_enabled || !matches!(ip.info.protocol, Protocol::TCP | Protocol::UDP) {
        return Ok(link);
    }
    // The input link of a packet that the node has sent to itself is the VRF: the link is that of the address.
    let link = match dp.decide(domain, ip.info.dst) {
        Decision::Local { dev } if link == vrf && domain != Domain::DEFAULT => dev,
        _ => link,
    };
    let question = SocketQuestion { flow: ip.flow, link, vrf };
    if let Some(binding) = known_binding(dp, cx, &question) {
        return apply(dp, cx, ip, cast, question, binding);
    }
    if dp.socket_lookups.waiting.len() >= MAX_WAITING || !dp.socket_lookups.budget.take(cx.now) {
        return Err(Next::Drop(DropReason::SocketUnknown));
    }
    let pkt = ip.pkt.take();
    dp.socket_lookups.waiting.push_back(WaitingPacket { pkt, cast, question });
    Err(Next::Done)
}

/// Tells whether the flow of a packet received in a domain is known there, and of a socket that is bound to no device.
fn is_unbound(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, came: &FlowKey) -> bool {
    dp.established.find(cx.now, domain, came).is_some_and(|flow| flow.is_unbound)
}

/// Tells whether another socket than that of a known flow may get the packet: a server that was started or bound since.
fn may_be_of_new_socket(ip: &IpPacket) -> bool {
    ip.info.protocol == Protocol::UDP || is_opening(ip)
}

/// Cached answer to a question, if it holds for the question's flow as well: a socket that is connected to the flow's source may
/// exist, which is that of a flow of another domain.
pub(crate) fn known_binding(dp: &mut Datapath, cx: Cx<'_>, question: &SocketQuestion) -> Option<SocketBinding> {
    let SocketQuestion { flow, link, .. } = *question;
    let domain = dp.fib.domain(link);
    let binding = dp.socket_lookups.known(cx.now, &question.end())?;
    if dp.established.find(cx.now, domain, &flow).is_some() {
        return Some(binding);
    }
    let is_accepted = binding == SocketBinding::Unbound && dp.socket_lookups.accepts(flow.protocol);
    let may_be_connected = is_accepted && flow.protocol == Protocol::TCP && dp.fib.is_elsewhere(domain, flow.dst);
    (!may_be_connected && !dp.established.is_contested(cx.now, domain, &flow)).then_some(binding)
}

/// Device of a packet that a socket so bound gets, or the refusal of one that no socket gets.
fn apply(
    dp: &mut Datapath,
    cx: Cx<'_>,
    ip: &mut IpPacket,
    cast: Cast,
    question: SocketQuestion,
    binding: SocketBinding,
) -> Result<PortId, Next> {
    let SocketQuestion { flow, link, vrf } = question;
    let domain = dp.fib.domain(link);
    match binding {
        SocketBinding::Link => return Ok(link),
        SocketBinding::Vrf => return Ok(vrf),
        SocketBinding::Unbound | SocketBinding::Connected => {}
        SocketBinding::NoSocket if domain == Domain::DEFAULT => return Ok(link),
        SocketBinding::NoSocket => return Err(refuse_socket(dp, cx, ip, cast)),
    }
    let is_own = dp.established.find(cx.now, domain, &flow).is_some();
    if domain != Domain::DEFAULT && !is_own && !dp.socket_lookups.accepts(flow.protocol) {
        return Err(refuse_socket(dp, cx, ip, cast));
    }
    let is_contested = dp.established.is_contested(cx.now, domain, &flow);
    let is_of_other = match binding {
        SocketBinding::Connected => is_contested || dp.fib.is_elsewhere(domain, flow.dst),
        // The connection of the known flow is over. A socket of UDP has no connections: its flow ends when it is idle.
        _ => is_contested && flow.protocol == Protocol::UDP,
    };
    if is_of_other && !is_own {
        return Err(Next::Drop(DropReason::SocketOtherVrf));
    }
    match domain {
        Domain::DEFAULT => dp.established.release(domain, &flow),
        _ => dp.established.accepted(cx.now, domain, link, flow),
    }
    Ok(link)
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

    /// Place of the flow of a packet that comes down by the device of `link`. A socket that is bound to no device sends by a device
    /// outside of its flow's VRF.
    #[inline]
    pub(super) fn flow_of_sent(&mut self, cx: Cx<'_>, ip: &IpPacket, link: PortId) -> SentFlow {
        if self.fib.domain(link) != Domain::DEFAULT || !self.fib.has_vrfs() {
            return SentFlow::OfLink;
        }
        if let Some((domain, link)) = self.established.answered(cx.now, &ip.flow).filter(|_| !is_opening(ip)) {
            return SentFlow::OfVrf(domain, link);
        }
        let src = ip.flow.src;
        let is_of_vrfs = !self.is_local(Domain::DEFAULT, src) && self.fib.is_elsewhere(Domain::DEFAULT, src);
        if is_of_vrfs { SentFlow::Unknown } else { SentFlow::OfLink }
    }
}

/// Place of the flow of a packet that a socket sends.
#[derive(Clone, Copy, Debug)]
pub(super) enum SentFlow {
    /// The domain of the link whose device the socket has sent by.
    OfLink,
    /// A VRF, and the link of the flow there.
    OfVrf(Domain, PortId),
    /// A VRF, but which one is unknown.
    Unknown,
}

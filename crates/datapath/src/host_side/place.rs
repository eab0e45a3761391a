//! Device of the host side by which a packet goes up: that of its link, or in a VRF that of the VRF, as the socket that gets it is bound
//! (Linux `inet_sk_bound_dev_eq`, `udp_sk_bound_dev_eq`).
//!
//! The kernel there has no VRFs: a socket that is bound to a VRF's device receives only packets of that device. Packets of a flow
//! in which a socket has sent go up by the device that the socket used. For the first packet of any other flow the caller
//! [looks up](Datapath::socket_question) the socket; the packet waits meanwhile, and the answer is cached per destination for a
//! second.

use base::{Domain, DropReason, Instant, LinkId};
use fib::Decision;
use packet::Memory;
use wire::{FlowKey, Protocol};

use super::up;
use crate::icmp_quote::answer_to_quoted;
use crate::next::Cast;
use crate::node::sockets::{L3mdevAccept, SocketBinding, SocketQuestion, WaitingPacket};
use crate::{Cx, Datapath, IpPacket, Next, local};

/// Packets that wait for answers.
const MAX_WAITING: usize = 1024;

/// Chooses the device by which a packet for this node goes up, of its link or of the VRF.
///
/// # Errors
/// The next stage of a packet that does not go up, or waits for an answer.
pub(super) fn choose(dp: &mut Datapath, cx: Cx<'_>, ip: &mut IpPacket, cast: Cast) -> Result<LinkId, Next> {
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
    if !dp.places.is_asked || !matches!(ip.info.protocol, Protocol::TCP | Protocol::UDP) {
        return Ok(link);
    }
    // A packet that the node has sent to itself came by the VRF: the link is that of the address.
    let link = match dp.decide(domain, ip.info.dst) {
        Decision::Local { dev } if link == vrf => dev,
        _ => link,
    };
    let question = SocketQuestion { flow: ip.flow, link, vrf };
    if let Some(binding) = dp.places.known(cx.now, &question.end()) {
        return apply(dp, cx, ip, cast, question, binding);
    }
    if dp.places.waiting.len() >= MAX_WAITING || !dp.places.budget.take(cx.now) {
        return Err(Next::Drop(DropReason::SocketUnknown));
    }
    let pkt = ip.pkt.take();
    dp.places.waiting.push_back(WaitingPacket { pkt, cast, question });
    Err(Next::Done)
}

/// Device that a socket has sent packets of the flow by.
pub(super) fn device_of(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, came: &FlowKey) -> Option<LinkId> {
    device_of_key(dp, cx, domain, &flow_in(domain, *came)?)
}

fn device_of_key(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, came: &FlowKey) -> Option<LinkId> {
    let device = dp.established.find(cx.now, domain, came)?.device;
    Some(device).filter(|&device| dp.has_host_port(device))
}

/// Key under which a flow of sockets is recorded. Protocols without ports are recorded by address, and in VRFs only.
pub(super) fn flow_in(domain: Domain, flow: FlowKey) -> Option<FlowKey> {
    match flow.protocol {
        Protocol::TCP | Protocol::UDP => Some(flow),
        _ if domain == Domain::DEFAULT => None,
        _ => Some(FlowKey { sport: 0, dport: 0, ..flow }),
    }
}

/// Kind of echo message: sockets send requests and receive replies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Echo {
    Request,
    Reply,
}

/// Flow under which an echo request of a socket is remembered in a VRF, and found by its replies: addresses and identifier, so that
/// pings of one peer by several devices stay apart (RFC 792, RFC 4443 §4.1; Linux `ping_lookup`). `None` of other packets.
pub(super) fn echo_flow(ip: &IpPacket, echo: Echo) -> Option<FlowKey> {
    /// Stands for a port that is none, so that no flow of addresses alone is like it.
    const ECHO: u16 = 1;
    let kind = match (ip.flow.protocol, echo) {
        (Protocol::ICMP, Echo::Request) => 8,
        (Protocol::ICMP, Echo::Reply) => 0,
        (Protocol::ICMPV6, Echo::Request) => 128,
        (Protocol::ICMPV6, Echo::Reply) => 129,
        _ => return None,
    };
    let mut header = [0; 8];
    let is_echo = ip.info.has_transport() && ip.flow.sport == kind;
    if !is_echo || !ip.pkt.read_at(ip.info.header_len, &mut header) {
        return None;
    }
    Some(FlowKey { sport: u16::from_be_bytes([header[4], header[5]]), dport: ECHO, ..ip.flow })
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
        SocketBinding::Unbound if dp.places.accepts(flow.protocol) => {
            dp.established.accepted(cx.now, Domain::vrf(vrf), link, flow);
            Ok(link)
        }
        SocketBinding::Unbound | SocketBinding::Nobody => Err(local::refuse_socket(dp, cx, ip, cast)),
    }
}

/// Continues with a packet that has waited for an answer.
fn go_on(dp: &mut Datapath, cx: Cx<'_>, waiting: WaitingPacket, binding: SocketBinding) {
    let WaitingPacket { pkt, cast, question } = waiting;
    let mut ip = IpPacket::unparsed(pkt);
    let next = match ip.parse(cx) {
        Ok(()) => match apply(dp, cx, &mut ip, cast, question, binding) {
            Ok(device) => up::deliver_by(dp, cx, &mut ip, cast, device),
            Err(next) => next,
        },
        Err(reason) => Next::Drop(reason),
    };
    dp.run(cx, &mut ip, next);
}

impl Datapath {
    /// Sets whether the caller answers [`socket_question`](Self::socket_question)s. If not, packets of VRFs go up by the devices
    /// of their links.
    pub fn ask_for_sockets(&mut self, is_asked: bool) {
        self.places.is_asked = is_asked;
    }

    /// Sets whether sockets that are bound to no device get packets of VRFs.
    pub fn set_l3mdev_accept(&mut self, accept: L3mdevAccept) {
        self.places.accept = accept;
    }

    /// Question about the packet that has waited longest. To be answered before more input is taken in.
    #[must_use]
    pub fn socket_question(&self) -> Option<SocketQuestion> {
        Some(self.places.waiting.front()?.question)
    }

    /// Answers the [question](Self::socket_question), and those behind it about the same address and port.
    pub fn answer_socket_question(&mut self, now: Instant, mem: &Memory, binding: SocketBinding) {
        let cx = Cx { now, mem };
        let Some(first) = self.places.waiting.pop_front() else { return };
        self.places.learn(now, first.question.end(), binding);
        go_on(self, cx, first, binding);
        while let Some(next) = self.places.waiting.front()
            && let Some(binding) = self.places.known(now, &next.question.end())
            && let Some(next) = self.places.waiting.pop_front()
        {
            go_on(self, cx, next, binding);
        }
        self.drain_all(cx);
    }

    /// Domain and link of a packet that comes down by the device of `link`, and answers a flow of a VRF though its socket is bound to no
    /// device.
    #[inline]
    pub(super) fn domain_of_answer(&self, cx: Cx<'_>, sent: &FlowKey, link: LinkId) -> Option<(Domain, LinkId)> {
        let L3mdevAccept { tcp, udp } = self.places.accept;
        if !tcp && !udp || self.fib.domain(link) != Domain::DEFAULT {
            return None;
        }
        self.established.answered(cx.now, sent)
    }
}

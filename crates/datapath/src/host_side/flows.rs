//! Flows of the host side's sockets: keys, and the device that a socket has used.

use base::{Domain, PortId};
use wire::{FlowKey, Protocol};

use crate::{Cx, Datapath, IpPacket};

/// Device that a socket has sent packets of the flow by.
pub(super) fn device_of(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, came: &FlowKey) -> Option<PortId> {
    device_of_key(dp, cx, domain, &flow_in(domain, *came)?)
}

pub(super) fn device_of_key(dp: &mut Datapath, cx: Cx<'_>, domain: Domain, came: &FlowKey) -> Option<PortId> {
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

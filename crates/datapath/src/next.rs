//! Vocabulary of the stages: the next stage of a packet, its hop, the kind of its destination, and the context of a call.

use std::net::{IpAddr, Ipv4Addr};

use base::{DropReason, Instant, PortId};
use fib::{Decision, IlaHop};
use host::icmp::Problem;
use ila::{HookType, RouteEncap};
use packet::Memory;

use crate::node::ports::Dropped;

/// Stage that a packet goes to next. Every stage returns one, and [`run`](crate::run::run) is the only loop over them.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) enum Next {
    /// IP input. The packet begins with its IP header, which has not been checked.
    L3In,
    /// IP input. The packet's IP headers are parsed, and its flow is not found yet.
    L3Parsed,
    /// Local input: this node is a destination.
    Local(Cast),
    /// Forwarding to another node.
    Forward(Hop),
    /// Output of a routed packet, before the policies.
    Output(Hop),
    /// Transmission of an IP packet that fits the path, with its segment size. Its headers may not have been parsed.
    Transmit(Hop),
    /// Output by the device of a VRF, after its queueing discipline.
    VrfOut(PortId),
    /// Neighbour discovery by a link, framed, before the policies.
    Discovery(PortId),
    /// Drop, with an ICMP error to the sender as far as rules and rate limits allow.
    Reject(DropReason, Problem),
    /// Drop, which is not counted yet. Its headers may not have been parsed.
    Drop(DropReason),
    /// End: sent, delivered, held, or counted as [`Dropped`].
    Done,
}

impl From<Dropped> for Next {
    #[inline(always)]
    fn from(_: Dropped) -> Self {
        Self::Done
    }
}

impl Next {
    /// Refusal of a packet of a protocol that this node does not handle. Its sender gets an ICMP error if the packet was unicast.
    pub(crate) fn refuse(cast: Cast, reason: DropReason, problem: Problem) -> Self {
        match cast {
            Cast::Group => Self::Drop(reason),
            Cast::Unicast | Cast::Anycast => Self::Reject(reason, problem),
        }
    }
}

/// Link and neighbour that a packet is sent to next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    /// The link.
    pub(crate) dev: PortId,
    /// The neighbour on it.
    pub(crate) next_hop: IpAddr,
    /// Translation of the packet's destination before it is sent.
    pub(crate) encap: Option<RouteEncap>,
}

/// Destination of a packet that SAs protect, behind the last of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingTx {
    pub(crate) hop: Hop,
    /// MTU of the path in bytes.
    pub(crate) mtu: usize,
}

impl Hop {
    /// Hop of a packet that is sent without translation.
    #[inline]
    pub(crate) const fn new(dev: PortId, next_hop: IpAddr) -> Self {
        Self { dev, next_hop, encap: None }
    }

    /// Hop of a packet that this node sends.
    ///
    /// # Errors
    /// Drop reason of the routing decision; [`DropReason::NoRoute`] for a destination that is not another node.
    #[inline]
    pub(crate) const fn of(decision: Decision) -> Result<Self, DropReason> {
        match decision {
            Decision::Forward { dev, next_hop } => Ok(Self::new(dev, next_hop)),
            Decision::Ila { encap, to } => Self::translated(encap, to),
            Decision::Drop(reason) => Err(reason),
            _ => Err(DropReason::NoRoute),
        }
    }

    /// Hop of a packet to every station of a link, for which the limited broadcast address stands.
    #[inline]
    pub(crate) const fn broadcast(dev: PortId) -> Self {
        Self::new(dev, IpAddr::V4(Ipv4Addr::BROADCAST))
    }

    /// Hop of a packet of a socket, which may be to the broadcast address of a subnet. Packets of the node itself are answers, which
    /// no forged source address turns into broadcasts.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    #[inline]
    pub(crate) const fn of_socket(decision: Decision) -> Result<Self, DropReason> {
        match decision {
            Decision::Broadcast { dev: Some(dev) } => Ok(Self::broadcast(dev)),
            other => Self::of(other),
        }
    }

    /// Hop of a packet that this node sends by a route with an encapsulation. A route for received packets does not translate it.
    ///
    /// # Errors
    /// [`DropReason::NoRoute`] if the translated destination is this node.
    #[inline]
    pub(crate) const fn translated(encap: RouteEncap, to: IlaHop) -> Result<Self, DropReason> {
        match (to, encap.hook_type) {
            (IlaHop::Local, _) => Err(DropReason::NoRoute),
            (IlaHop::Forward { dev, next_hop }, HookType::Output) => Ok(Self { dev, next_hop, encap: Some(encap) }),
            (IlaHop::Forward { dev, next_hop }, HookType::Input) => Ok(Self::new(dev, next_hop)),
        }
    }
}

/// Kind of a packet's destination: unicast, anycast or group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Cast {
    /// This node alone.
    Unicast,
    /// The nearest router on a subnet (RFC 4291 §2.6.1).
    Anycast,
    /// All stations of a link, or a group that this node may belong to.
    Group,
}

/// Context of a call: the time, and the memory to work in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cx<'m> {
    pub(crate) now: Instant,
    pub(crate) mem: &'m Memory,
}

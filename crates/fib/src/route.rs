//! Routes, and results of look-ups.

use std::fmt;
use std::net::IpAddr;

use base::{DropReason, PortId, Prefix, TableId};
use ila::RouteEncap;

use crate::paths::PathsId;

/// A route to a prefix.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Route {
    /// The destinations.
    pub prefix: Prefix,
    /// The route's type.
    pub kind: RouteKind,
    /// Metric: among routes with one prefix, the smallest metric is used.
    pub metric: u32,
}

impl Route {
    /// Tells whether packets on this route are translated.
    pub const fn has_encap(&self) -> bool {
        matches!(self.kind, RouteKind::Ila { .. })
    }
}

/// Type of a route: Linux's `RTN_*`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RouteKind {
    /// Forwards the packet on `dev`.
    Unicast {
        /// The neighbour; the destination itself if `None`.
        via: Option<IpAddr>,
        /// The output link.
        dev: PortId,
    },
    /// Forwards the packet by one of several paths, which its flow selects ([`Fib::paths`](crate::Fib::paths)).
    Paths(PathsId),
    /// Delivers the packet: an address of this node.
    Local {
        /// The link with the address.
        dev: PortId,
    },
    /// Broadcast on `dev` (RFC 919).
    Broadcast {
        /// The link with that subnet.
        dev: PortId,
    },
    /// Delivers the packet: an anycast address of the routers on a subnet (RFC 4291 §2.6.1).
    Anycast {
        /// The link with that subnet.
        dev: PortId,
    },
    /// Translates the destination, then forwards or delivers the packet (Linux `LWTUNNEL_ENCAP_ILA`).
    Ila {
        /// The translation, and the packets to which it applies.
        encap: RouteEncap,
        /// The route without the encapsulation.
        to: IlaRoute,
    },
    /// Drops the packet silently.
    Blackhole,
    /// Drops the packet, with the error *host unreachable*.
    Unreachable,
    /// Drops the packet, with the error *communication administratively prohibited* (RFC 1812 §5.2.7.1).
    Prohibit,
    /// Continues with the next table, as if this table had no route.
    Throw,
}

/// A route with an ILA encapsulation, without the encapsulation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IlaRoute {
    /// As [`RouteKind::Unicast`]; without a neighbour the translated destination is looked up.
    Unicast {
        /// The neighbour.
        via: Option<IpAddr>,
        /// The output link.
        dev: PortId,
    },
    /// As [`RouteKind::Local`].
    Local {
        /// The link with the address.
        dev: PortId,
    },
}

impl IlaRoute {
    /// The route's type without the encapsulation.
    pub const fn plain(self) -> RouteKind {
        match self {
            Self::Unicast { via, dev } => RouteKind::Unicast { via, dev },
            Self::Local { dev } => RouteKind::Local { dev },
        }
    }
}

impl RouteKind {
    /// The link of the route, if it has one and no other.
    pub const fn dev(self) -> Option<PortId> {
        match self {
            Self::Unicast { dev, .. } | Self::Local { dev } | Self::Broadcast { dev } | Self::Anycast { dev } => {
                Some(dev)
            }
            Self::Ila { to: IlaRoute::Unicast { dev, .. } | IlaRoute::Local { dev }, .. } => Some(dev),
            Self::Paths(_) | Self::Blackhole | Self::Unreachable | Self::Prohibit | Self::Throw => None,
        }
    }

    /// Tells whether packets on this route are dropped, or looked up in the next table.
    pub const fn is_error(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::Prohibit | Self::Throw)
    }

    /// The next hop of the route, if any.
    pub const fn via(self) -> Option<IpAddr> {
        match self {
            Self::Unicast { via, .. } | Self::Ila { to: IlaRoute::Unicast { via, .. }, .. } => via,
            _ => None,
        }
    }

    /// iproute2's keyword.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Unicast { .. } | Self::Paths(_) | Self::Ila { to: IlaRoute::Unicast { .. }, .. } => "unicast",
            Self::Local { .. } | Self::Ila { to: IlaRoute::Local { .. }, .. } => "local",
            Self::Broadcast { .. } => "broadcast",
            Self::Anycast { .. } => "anycast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
        }
    }
}

/// Result of a look-up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Decision {
    /// The address is this node's, on `dev`.
    Local {
        /// The link with the address.
        dev: PortId,
    },
    /// The broadcast address of a subnet; without a link the limited broadcast address, which applies to every link
    /// (RFC 919 §7).
    Broadcast {
        /// The link with the subnet.
        dev: Option<PortId>,
    },
    /// An anycast address of the routers on a subnet of `dev`, including this node.
    Anycast {
        /// The link with the subnet.
        dev: PortId,
    },
    /// A group, without a route lookup.
    Multicast,
    /// Forwarding to `next_hop` on `dev`.
    Forward {
        /// The link.
        dev: PortId,
        /// The neighbour: the route's gateway, or the destination itself.
        next_hop: IpAddr,
    },
    /// Forwarding by one of several paths, which the flow selects ([`Fib::by_path`](crate::Fib::by_path)).
    Paths(PathsId),
    /// Translation of the destination, on output or on input as in `encap.hook_type`.
    Ila {
        /// The translation.
        encap: RouteEncap,
        /// Next step after the translation.
        to: IlaHop,
    },
    /// Dropped for this reason.
    Drop(DropReason),
}

/// Next step of a packet after its destination is translated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum IlaHop {
    /// This node.
    Local,
    /// `next_hop` on `dev`.
    Forward {
        /// The link.
        dev: PortId,
        /// The neighbour: the route's gateway, or that of the route to the translated destination.
        next_hop: IpAddr,
    },
}

impl Decision {
    /// Decision for `dst` by this route, without its encapsulation.
    pub(crate) fn of(route: Option<&Route>, dst: IpAddr) -> Self {
        let Some(route) = route else { return Self::Drop(DropReason::NoRoute) };
        let kind = match route.kind {
            RouteKind::Ila { to, .. } => to.plain(),
            other => other,
        };
        match kind {
            RouteKind::Unicast { via, dev } => Self::Forward { dev, next_hop: via.unwrap_or(dst) },
            RouteKind::Paths(paths) => Self::Paths(paths),
            RouteKind::Local { dev } => Self::Local { dev },
            RouteKind::Broadcast { dev } => Self::Broadcast { dev: Some(dev) },
            RouteKind::Anycast { dev } => Self::Anycast { dev },
            RouteKind::Blackhole => Self::Drop(DropReason::RouteBlackhole),
            RouteKind::Unreachable => Self::Drop(DropReason::RouteUnreachable),
            RouteKind::Prohibit => Self::Drop(DropReason::RouteProhibit),
            RouteKind::Ila { .. } | RouteKind::Throw => Self::Drop(DropReason::NoRoute),
        }
    }
}

/// Error: a route with that prefix and metric exists already.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RouteExists {
    /// The prefix.
    pub prefix: Prefix,
    /// The metric.
    pub metric: u32,
    /// The table.
    pub table: TableId,
}

impl fmt::Display for RouteExists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prefix, metric, table } = self;
        write!(f, "Route to {prefix} metric {metric} exists in table {table}")
    }
}

impl std::error::Error for RouteExists {}

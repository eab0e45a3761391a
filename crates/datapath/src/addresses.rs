//! Addresses: those that no packet may have, and those of this node that the FIB does not list.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base::{Domain, DropReason, PortId};
use fib::{Decision, Route, RouteKind};
use wire::MacAddr;

use crate::{Datapath, HostRole};

/// Subnet-router anycast address of `fe80::/64`, in which every Ethernet link has an address (RFC 4291 §2.6.1).
pub(crate) const LINK_LOCAL_ROUTERS: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0));

/// Checks the source and destination address of a packet.
#[inline(always)]
pub(crate) fn check_addresses(src: IpAddr, dst: IpAddr) -> Result<(), DropReason> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            // Other addresses in 0.0.0.0/8 are unicast (Linux's `ipv4_is_zeronet` since 5.3).
            let is_no_host = |addr: Ipv4Addr| addr.is_unspecified() || addr.is_loopback();
            let is_boot = src.is_unspecified() && dst.is_broadcast();
            if src.is_multicast() || src.is_broadcast() || is_no_host(src) && !is_boot {
                Err(DropReason::IpSourceInvalid)
            } else if is_no_host(dst) {
                Err(DropReason::IpDestinationInvalid)
            } else {
                Ok(())
            }
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            // A station without an address sends to groups only.
            if src.is_multicast() || src.is_loopback() || src.is_unspecified() && !dst.is_multicast() {
                Err(DropReason::IpSourceInvalid)
            } else if dst.is_loopback() || dst.is_unspecified() {
                Err(DropReason::IpDestinationInvalid)
            } else {
                Ok(())
            }
        }
        _ => unreachable!("both addresses are of one header"),
    }
}

pub(crate) fn is_link_local(addr: IpAddr) -> bool {
    matches!(addr, IpAddr::V6(addr) if addr.is_unicast_link_local())
}

impl Datapath {
    /// Tells whether a packet that came by `link` has an IPv4 source that is this node's own in the domain (RFC 1812 §5.3.8;
    /// Linux `fib_validate_source`, which does not count such packets). Linux has no such check for IPv6.
    #[inline]
    pub(crate) fn is_martian(&self, domain: Domain, link: PortId, src: IpAddr) -> bool {
        src.is_ipv4() && self.is_local(domain, src) && !self.is_of_host(domain, link, src)
    }

    /// Tells whether a source address may be received although it is this node's: the host at the other end of `link` shares it, or
    /// it belongs to another VRF, into which a route of the domain leads.
    #[cold]
    fn is_of_host(&self, domain: Domain, link: PortId, src: IpAddr) -> bool {
        let is_other =
            || !matches!(self.fib.lookup(domain, src, None), Some(Route { kind: RouteKind::Local { .. }, .. }));
        let is_shared = || self.fib.links_with(src).any(|dev| self.host_is(dev, HostRole::SharesAddress));
        self.host_is(link, HostRole::Peer) && is_shared() || is_other()
    }

    /// Link-local address of an Ethernet link (RFC 4291 App. A).
    pub(crate) fn own_link_local(&self, link: PortId) -> Option<IpAddr> {
        self.ports.get(link)?.config.mac.map(MacAddr::link_local).map(IpAddr::V6)
    }

    /// Tells whether packets to such an address are broadcasts, or for a group.
    pub(crate) fn is_for_group(&self, domain: Domain, dst: IpAddr) -> bool {
        matches!(self.decide(domain, dst), Decision::Broadcast { .. } | Decision::Multicast)
    }

    /// Tells whether an address is the subnet-router anycast address of a subnet of `link` (RFC 4291 §2.6.1); on an Ethernet link
    /// that includes `fe80::/64`.
    pub(crate) fn has_anycast(&self, link: PortId, addr: IpAddr) -> bool {
        self.fib.has_anycast(link, addr) || addr == LINK_LOCAL_ROUTERS && self.own_link_local(link).is_some()
    }
}

//! Selectors of policies and SAs.

use std::net::IpAddr;

use base::{PortId, Prefix};
use wire::{FlowKey, Protocol, Version};

use crate::error::ConfigError;
use crate::flowi::Flowi;

/// Packets of a policy or an SA (RFC 4301 §4.4.1.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Selector {
    /// Source addresses.
    pub src: Prefix,
    /// Destination addresses, of the same family.
    pub dst: Prefix,
    /// Upper-layer protocol; any if `None`.
    pub protocol: Option<Protocol>,
    /// Source port, or ICMP type.
    pub sport: PortMask,
    /// Destination port, or ICMP code.
    pub dport: PortMask,
    /// The link or the domain's device of a flow ([`Flowi::link`], [`Flowi::domain_device`]); any if `None`.
    pub dev: Option<PortId>,
}

/// A port under a mask, as in XFRM selectors.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct PortMask {
    /// Required bits of a port.
    pub port: u16,
    /// Bits that are compared; 0 for any port, `0xffff` for exactly one.
    pub mask: u16,
}

impl Selector {
    /// All packets between two prefixes.
    pub const fn new(src: Prefix, dst: Prefix) -> Self {
        Self { src, dst, protocol: None, sport: PortMask::ANY, dport: PortMask::ANY, dev: None }
    }

    /// Exactly the packets of one flow (Linux `xfrm_init_tempstate`).
    pub const fn exactly(flow: &Flowi) -> Self {
        let FlowKey { src, dst, protocol, sport, dport } = flow.key;
        Self {
            src: Prefix::host(src),
            dst: Prefix::host(dst),
            protocol: Some(protocol),
            sport: PortMask::exactly(sport),
            dport: PortMask::exactly(dport),
            dev: flow.link,
        }
    }

    /// Tells whether the selector matches `flow`.
    #[inline]
    pub fn matches(&self, flow: &Flowi) -> bool {
        self.src.contains(flow.key.src)
            && self.dst.contains(flow.key.dst)
            && self.protocol.is_none_or(|protocol| protocol == flow.key.protocol)
            && self.sport.matches(flow.key.sport)
            && self.dport.matches(flow.key.dport)
            && self.dev.is_none_or(|dev| flow.devices().any(|its| its == dev))
    }

    /// Checks that the addresses are of one family.
    ///
    /// # Errors
    /// [`ConfigError::SelectorFamily`].
    pub fn check(&self) -> Result<(), ConfigError> {
        let families = (Version::of_addr(self.src.addr()), Version::of_addr(self.dst.addr()));
        if families.0 == families.1 { Ok(()) } else { Err(ConfigError::SelectorFamily) }
    }
}

impl PortMask {
    /// Any port.
    pub const ANY: Self = Self { port: 0, mask: 0 };

    /// Exactly this port.
    pub const fn exactly(port: u16) -> Self {
        Self { port, mask: u16::MAX }
    }

    #[inline]
    const fn matches(self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

pub(super) fn same_family(a: IpAddr, b: IpAddr) -> Result<(), ConfigError> {
    if a.is_ipv4() == b.is_ipv4() { Ok(()) } else { Err(ConfigError::Family(a, b)) }
}

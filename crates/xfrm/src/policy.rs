//! Configuration of policies: selectors, actions, templates.

use std::net::IpAddr;

use base::{LinkId, Prefix};
use wire::{FlowKey, Protocol, Spi, Version};

use super::error::ConfigError;
use super::mode::{Dir, MAX_TEMPLATES, Mode};
use crate::flowi::Flowi;
use crate::lifetime::{Lifetime, Limits};
use crate::mark::Mark;
use crate::request::Request;

/// Packets that a policy or an SA is for (RFC 4301 §4.4.1.1).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Selector {
    /// Their sources.
    pub src: Prefix,
    /// Their destinations, of the same family.
    pub dst: Prefix,
    /// Their upper-layer protocol; any if `None`.
    pub protocol: Option<Protocol>,
    /// Their source port, or ICMP type.
    pub sport: PortMask,
    /// Their destination port, or ICMP code.
    pub dport: PortMask,
    /// The link or the domain's device of a flow ([`Flowi::link`], [`Flowi::domain_device`]); any if `None`.
    pub dev: Option<LinkId>,
}

/// A port under a mask, as XFRM selectors have it.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct PortMask {
    /// The bits that a port must have.
    pub port: u16,
    /// Bits that are compared; 0 for any port, `0xffff` for exactly one.
    pub mask: u16,
}

/// A security policy (RFC 4301 §4.4.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyConfig {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets that it is for.
    pub selector: Selector,
    /// The smallest wins.
    pub priority: u32,
    /// Action on them.
    pub action: Action,
    /// The SAs that they need, the innermost first. None: they pass in clear.
    pub templates: Vec<Template>,
    /// Marked packets that it is for.
    pub mark: Mark,
    /// The number of the XFRM interface that it is for; 0 for none.
    pub if_id: u32,
    /// When it ends, of which [`Limits::bytes`](crate::Limits::bytes) and [`Limits::packets`](crate::Limits::packets) do
    /// nothing.
    pub lifetime: Lifetime,
    /// The device that knows it too, as the SAs that it asks for have to be on.
    pub offload: Option<LinkId>,
    /// The request that made it, for the control plane to show.
    pub request: Option<Request>,
}

/// Key of a policy (Linux `xfrm_policy_bysel_ctx`). The priority is not part of it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PolicyKey {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets that it is for.
    pub selector: Selector,
    /// Marked packets that it is for.
    pub mark: Mark,
    /// The number of the XFRM interface.
    pub if_id: u32,
}

/// Action of a policy on its packets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Action {
    /// They pass, protected as the templates say.
    #[default]
    Allow,
    /// They are dropped.
    Block,
}

/// One ESP SA that a policy asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Template {
    /// The outer source; `None` for any. In transport mode it is the packet's own.
    pub src: Option<IpAddr>,
    /// The outer destination, which tunnel mode must have. In transport mode it is the packet's own.
    pub dst: Option<IpAddr>,
    /// The SA's SPI; `None` for any.
    pub spi: Option<Spi>,
    /// The SA's mode.
    pub mode: Mode,
    /// The SA's `reqid`.
    pub reqid: u32,
    /// Whether packets may go without.
    pub level: Level,
}

/// Whether a template's SA has to be there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Level {
    /// Without it the packet is dropped.
    Required,
    /// Without it the packet passes.
    Use,
}

impl Selector {
    /// Everything between two prefixes.
    pub const fn new(src: Prefix, dst: Prefix) -> Self {
        Self { src, dst, protocol: None, sport: PortMask::ANY, dport: PortMask::ANY, dev: None }
    }

    /// The packets of one flow alone (Linux `xfrm_init_tempstate`).
    pub(crate) const fn exactly(flow: &Flowi) -> Self {
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

    /// Tells whether `flow` is one of its packets.
    #[inline]
    pub fn matches(&self, flow: &Flowi) -> bool {
        self.src.contains(flow.key.src)
            && self.dst.contains(flow.key.dst)
            && self.protocol.is_none_or(|protocol| protocol == flow.key.protocol)
            && self.sport.matches(flow.key.sport)
            && self.dport.matches(flow.key.dport)
            && self.dev.is_none_or(|dev| flow.devices().any(|its| its == dev))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let families = (Version::of_addr(self.src.addr()), Version::of_addr(self.dst.addr()));
        if families.0 == families.1 { Ok(()) } else { Err(ConfigError::SelectorFamily) }
    }
}

impl PortMask {
    /// Any port.
    pub const ANY: Self = Self { port: 0, mask: 0 };

    /// This port alone.
    pub const fn exactly(port: u16) -> Self {
        Self { port, mask: u16::MAX }
    }

    const fn matches(self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

impl PolicyConfig {
    /// A policy that lets packets pass in clear, of the highest priority.
    pub const fn new(dir: Dir, selector: Selector) -> Self {
        Self {
            dir,
            selector,
            priority: 0,
            action: Action::Allow,
            templates: Vec::new(),
            mark: Mark::ANY,
            if_id: 0,
            lifetime: Lifetime { soft: Limits::NONE, hard: Limits::NONE },
            offload: None,
            request: None,
        }
    }

    /// Key of the policy.
    pub const fn key(&self) -> PolicyKey {
        PolicyKey { dir: self.dir, selector: self.selector, mark: self.mark, if_id: self.if_id }
    }

    /// Whether its packets may be in clear.
    pub(crate) fn allows_clear(&self) -> bool {
        self.action == Action::Allow && self.templates.iter().all(|template| template.level == Level::Use)
    }

    /// Checks what can be told without the other policies.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        self.selector.check()?;
        if self.templates.len() > MAX_TEMPLATES {
            return Err(ConfigError::Templates(self.templates.len()));
        }
        for template in &self.templates {
            if let (Some(src), Some(dst)) = (template.src, template.dst) {
                same_family(src, dst)?;
            }
            if template.mode == Mode::Tunnel {
                if template.dst.is_none_or(|dst| dst.is_unspecified()) {
                    return Err(ConfigError::NoDestination);
                }
                if template.level == Level::Use && self.dir == Dir::Out {
                    return Err(ConfigError::OptionalTunnel);
                }
            }
        }
        Ok(())
    }
}

pub(super) fn same_family(a: IpAddr, b: IpAddr) -> Result<(), ConfigError> {
    if a.is_ipv4() == b.is_ipv4() { Ok(()) } else { Err(ConfigError::Family(a, b)) }
}

//! Configuration of policies: their key, action and templates.

use std::net::IpAddr;

use base::PortId;
use serde::{Deserialize, Serialize};
use wire::Spi;

use crate::error::ConfigError;
use crate::lifetime::{Lifetime, Limits};
use crate::limits::MAX_TEMPLATES;
use crate::mark::Mark;
use crate::mode::{Dir, Mode, words};
use crate::request::Request;
use crate::selector::{Selector, same_family};

/// A security policy (RFC 4301 §4.4.1).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PolicyConfig {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets of the policy.
    pub selector: Selector,
    /// Priority; the smallest number takes precedence.
    pub priority: u32,
    /// Action on matching packets.
    pub action: Action,
    /// The required SAs, the innermost first. Empty: packets pass in clear.
    pub templates: Vec<Template>,
    /// Mark of the packets.
    pub mark: Mark,
    /// The number of the policy's XFRM interface; 0 for none.
    pub if_id: u32,
    /// Lifetime; limits of bytes and packets have no effect.
    pub lifetime: Lifetime,
    /// Whether an SA is requested for each CPU that sends packets of the policy (RFC 9611; `XFRM_POLICY_CPU_ACQUIRE`).
    pub cpu_acquire: bool,
    /// The device that also holds the policy; SAs for its templates must be on that device.
    pub offload: Option<PortId>,
    /// The request that created the policy, for the control plane to show.
    pub request: Option<Request>,
}

/// Key of a policy (Linux `xfrm_policy_bysel_ctx`). The priority is not part of it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PolicyKey {
    /// Direction of the packets.
    pub dir: Dir,
    /// Packets of the policy.
    pub selector: Selector,
    /// Mark of the packets.
    pub mark: Mark,
    /// The number of the XFRM interface.
    pub if_id: u32,
}

/// Action of a policy on its packets.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Packets pass, protected according to the templates.
    #[default]
    Allow,
    /// Packets are dropped.
    Block,
}

/// Template for one ESP SA.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Template {
    /// The outer source; `None` for any. In transport mode, the packet's own source.
    pub src: Option<IpAddr>,
    /// The outer destination, required in tunnel mode. In transport mode, the packet's own destination.
    pub dst: Option<IpAddr>,
    /// The SA's SPI; `None` for any.
    pub spi: Option<Spi>,
    /// The SA's mode.
    pub mode: Mode,
    /// The SA's `reqid`.
    pub reqid: u32,
    /// Whether packets may pass without the SA.
    pub level: Level,
}

/// Level of a template: whether its SA is required.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Packets without the SA are dropped.
    Required,
    /// Packets without the SA pass.
    Use,
}

words! {
    Action { Allow "allow", Block "block", }
    Level { Required "required", Use "use", }
}

impl PolicyConfig {
    /// Priority of policies that wait for a key manager: before that of the policies that block other packets, and behind all
    /// others.
    pub const WAITING: u32 = u32::MAX - 1;

    /// Priority of policies that block what no other policy covers.
    pub const BLOCKING: u32 = u32::MAX;

    /// Tells whether a policy of the file stays behind those of a key manager, by its action, its priority and the reqids of its
    /// templates: one that waits for SAs, as those of a `[[tunnel]]` with `keys = "ike"`, which have SAs with any reqid; or one that
    /// blocks what no other policy covers.
    pub fn waits(action: Action, priority: u32, mut reqids: impl ExactSizeIterator<Item = u32>) -> bool {
        match reqids.len() {
            0 => action == Action::Block && priority == Self::BLOCKING,
            _ => priority == Self::WAITING && reqids.all(|reqid| reqid == 0),
        }
    }

    /// A policy that allows packets in clear, of the highest priority.
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
            cpu_acquire: false,
            offload: None,
            request: None,
        }
    }

    /// Key of the policy.
    pub const fn key(&self) -> PolicyKey {
        PolicyKey { dir: self.dir, selector: self.selector, mark: self.mark, if_id: self.if_id }
    }

    /// Tells whether packets may pass in clear.
    pub fn allows_clear(&self) -> bool {
        self.action == Action::Allow && self.templates.iter().all(|template| template.level == Level::Use)
    }

    /// Checks all that does not depend on other policies.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), ConfigError> {
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

//! Configuration of policies: their key, action and templates.

use std::net::IpAddr;

use base::LinkId;
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
    /// Lifetime; limits of bytes and packets do nothing.
    pub lifetime: Lifetime,
    /// The device that the policy is offloaded to; its SAs must be on this device.
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
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
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
    /// Whether packets may pass without the SA.
    pub level: Level,
}

/// Need of a template's SA.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Without it the packet is dropped.
    Required,
    /// Without it the packet passes.
    Use,
}

words! {
    Action { Allow "allow", Block "block", }
    Level { Required "required", Use "use", }
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

    /// Tells whether its packets may be in clear.
    pub fn allows_clear(&self) -> bool {
        self.action == Action::Allow && self.templates.iter().all(|template| template.level == Level::Use)
    }

    /// Makes all checks that do not need the other policies.
    ///
    /// # Errors
    /// The first thing that is wrong.
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

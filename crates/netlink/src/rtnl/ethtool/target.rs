//! Target link of an `ethtool` command.

use base::LinkId;

use crate::error::{Error, errno};
use crate::rtnl::host::Host;
use crate::rtnl::link_detail::LinkDetail;
use crate::rtnl::node::Rtnl;
use config::model::{LinkConfig, LinkKind};

/// Target link of a command.
pub(super) struct Target<'a, H> {
    /// The node.
    pub(super) rtnl: &'a mut Rtnl<H>,
    /// Number of the link.
    pub(super) index: u32,
    /// Configuration of the link.
    pub(super) config: LinkConfig,
    /// Whether the link is up.
    pub(super) up: bool,
}

impl<H: Host> Target<'_, H> {
    /// Current state of the link.
    pub(super) fn detail(&mut self) -> Result<LinkDetail, Error> {
        self.rtnl.host.detail(LinkId(self.index))
    }

    /// Whether the link is `lo`.
    pub(super) fn is_loopback(&self) -> bool {
        self.config.kind == LinkKind::Loopback
    }

    /// Whether the link never carries packets, so that the datapath has no state of it.
    pub(super) fn is_virtual(&self) -> bool {
        self.is_loopback() || matches!(self.config.kind, LinkKind::Vrf { .. })
    }
}

/// Error of a command that the link does not support.
pub(super) fn unsupported() -> Error {
    Error::new(errno::EOPNOTSUPP)
}

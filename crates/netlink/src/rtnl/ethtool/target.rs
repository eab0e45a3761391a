//! Command of `ethtool`: its target link, and the reply.

use base::PortId;

use crate::error::{Error, errno};
use crate::rtnl::backend::Backend;
use crate::rtnl::node::Rtnl;
use crate::rtnl::state::LinkDetail;
use config::model::{LinkConfig, LinkKind};

/// Target link of a command.
pub(super) struct Target<'a, B> {
    /// The node.
    pub(super) rtnl: &'a mut Rtnl<B>,
    /// Number of the link.
    pub(super) index: u32,
    /// Configuration of the link.
    pub(super) config: LinkConfig,
    /// Whether the link is up.
    pub(super) up: bool,
}

impl<B: Backend> Target<'_, B> {
    /// Current state of the link.
    pub(super) fn detail(&mut self) -> Result<LinkDetail, Error> {
        self.rtnl.backend.detail(PortId(self.index))
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

/// New first bytes of the program's block, and the result of the call.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) block: Vec<u8>,
    pub(super) result: u32,
}

impl Answer {
    /// Reply with a block of 32-bit words.
    pub(super) fn words(words: impl IntoIterator<Item = u32>) -> Self {
        Self { block: words.into_iter().flat_map(u32::to_ne_bytes).collect(), result: 0 }
    }

    /// Reply with a `struct ethtool_value`.
    pub(super) fn value(command: u32, value: u32) -> Self {
        Self::words([command, value])
    }
}

/// Appends a text in a field of `len` bytes, the last a zero byte.
pub(super) fn put_text(to: &mut Vec<u8>, text: &str, len: usize) {
    let end = to.len() + len;
    to.extend(text.bytes().take(len - 1));
    to.resize(end, 0);
}

//! The node: the model of what clients have configured, and the datapath.

use super::host::Host;
use super::link_now::LinkNow;
use super::model::Model;
use crate::error::Error;

/// Node that requests of rtnetlink read and change.
#[derive(Debug)]
pub struct Rtnl<H> {
    /// The node.
    pub model: Model,
    /// The datapath.
    pub host: H,
}

impl<H: Host> Rtnl<H> {
    /// Current state of the links. The model is updated from it.
    pub(super) fn links_now(&mut self) -> Result<Vec<LinkNow>, Error> {
        let now = self.host.links()?;
        self.model.see(&now);
        Ok(now)
    }
}

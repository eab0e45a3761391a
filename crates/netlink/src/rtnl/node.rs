//! Node: the model of the clients' configuration, and the datapath.

use super::host::Host;
use super::link_now::LinkNow;
use super::model::Model;
use crate::error::Error;

/// Node that rtnetlink requests read and change.
#[derive(Debug)]
pub struct Rtnl<H> {
    /// State of the node for rtnetlink.
    pub model: Model,
    /// The datapath.
    pub host: H,
}

impl<H: Host> Rtnl<H> {
    /// Reads the current state of the links from the datapath, and updates the model.
    pub(super) fn links_now(&mut self) -> Result<Vec<LinkNow>, Error> {
        let now = self.host.links()?;
        self.model.see(&now);
        Ok(now)
    }
}

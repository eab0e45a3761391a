//! Node: the model of the clients' configuration, and the datapath.

use std::time::Duration;

use super::backend::Backend;
use super::model::Model;
use super::state::LinkNow;
use crate::error::Error;
use crate::session::{Groups, Outbox, Reply};

/// Node that rtnetlink requests read and change.
#[derive(Debug)]
pub struct Rtnl<B> {
    /// State of the node for rtnetlink.
    pub model: Model,
    /// The datapath.
    pub backend: B,
}

impl<B: Backend> Rtnl<B> {
    /// Reads the current state of the links from the datapath, and updates the model.
    pub(super) fn links_now(&mut self) -> Result<Vec<LinkNow>, Error> {
        let now = self.backend.links()?;
        self.model.see(&now);
        Ok(now)
    }

    /// Time until the next end of an address's lifetime, or less; `None` if all are infinite.
    pub fn until_expiry(&self) -> Option<Duration> {
        self.model.next_expiry.map(|end| end.since(self.backend.now()))
    }

    /// Removes addresses whose lifetime has ended, and notifies the members of the address groups.
    pub fn expire(&mut self, listeners: Groups, outbox: &mut Outbox) {
        self.model.now = self.backend.now();
        self.model.expire_addresses();
        self.publish(&mut Reply::unsolicited(listeners, outbox));
    }
}

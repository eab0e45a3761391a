//! Ends of addresses' lifetimes.

use std::time::Duration;

use super::host::Host;
use super::node::Rtnl;
use crate::session::{Groups, Outbox, Reply};

impl<H: Host> Rtnl<H> {
    /// Time within which no lifetime of an address ends; `None` if all are infinite.
    pub fn until_expiry(&self) -> Option<Duration> {
        self.model.next_expiry.map(|end| end.since(self.host.now()))
    }

    /// Removes addresses whose lifetime has ended, and notifies the members of their groups.
    pub fn expire(&mut self, listeners: Groups, outbox: &mut Outbox) {
        self.model.now = self.host.now();
        self.model.expire_addresses();
        self.publish(&mut Reply::unsolicited(listeners, outbox));
    }
}

//! Ends of addresses' lifetimes.

use std::time::Duration;

use super::host::Host;
use super::node::Rtnl;
use crate::session::{Groups, Outbox, Reply};

impl<H: Host> Rtnl<H> {
    /// Time until the next end of an address's lifetime, or less; `None` if all are infinite.
    pub fn until_expiry(&self) -> Option<Duration> {
        self.model.next_expiry.map(|end| end.since(self.host.now()))
    }

    /// Removes addresses whose lifetime has ended, and notifies the members of the address groups.
    pub fn expire(&mut self, listeners: Groups, outbox: &mut Outbox) {
        self.model.now = self.host.now();
        self.model.expire_addresses();
        self.publish(&mut Reply::unsolicited(listeners, outbox));
    }
}

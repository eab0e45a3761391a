//! Notifications: messages to the members of groups, and changes to the datapath.

use ::switch::FdbChange;
use base::{IfIndex, PortId, TableId};

use super::backend::{Backend, NeighbourNow};
use super::bridge::write_fdb_entry;
use super::entry::{Address, Link};
use super::link::write as write_link;
use super::model::{Delta, Model, Replacement, Told};
use super::node::Rtnl;
use super::nums::*;
use super::state::{LinkNow, find};
use super::table::Route;
use super::{addr, neigh, route};
use crate::error::{Error, errno};
use crate::message::Writer;
use crate::session::{Groups, Outbox, Reply};

impl<B> Rtnl<B> {
    /// Notifies listeners that a link's carrier or interface index has changed.
    pub fn notify_link(&mut self, now: &LinkNow, listeners: Groups, outbox: &mut Outbox) {
        let index = now.id.0;
        for (id, before) in self.model.see(std::slice::from_ref(now)) {
            self.notify_renumbered(id, before, listeners, outbox);
        }
        if let Some(link) = self.model.link(index) {
            outbox.announce(listeners, RTNLGRP_LINK, RTM_NEWLINK, |w| {
                write_link(w, index, link, self.model.lower_of(index), Some(now), 0, 0);
            });
        }
    }

    /// Notifies listeners of the state of a neighbour, or of its removal.
    pub fn notify_neighbour(&self, now: &NeighbourNow, gone: bool, listeners: Groups, outbox: &mut Outbox) {
        let kind = if gone { RTM_DELNEIGH } else { RTM_NEWNEIGH };
        outbox.announce(listeners, RTNLGRP_NEIGH, kind, |w| neigh::write(w, self.model.ifindex(now.link.0), now));
    }

    /// Notifies listeners of a change of a bridge's forwarding database (Linux `fdb_notify`).
    pub fn notify_fdb(&self, bridge: PortId, change: &FdbChange, listeners: Groups, outbox: &mut Outbox) {
        let (kind, entry) = match change {
            FdbChange::Set(entry) => (RTM_NEWNEIGH, entry),
            FdbChange::Removed(entry) => (RTM_DELNEIGH, entry),
        };
        outbox.announce(listeners, RTNLGRP_NEIGH, kind, |w| write_fdb_entry(w, &self.model, bridge, entry));
    }

    /// Notifies listeners of a changed interface index: removal of the link, then a new link with its addresses and
    /// routes.
    fn notify_renumbered(&self, id: u32, before: IfIndex, listeners: Groups, outbox: &mut Outbox) {
        let Some(link) = self.model.link(id) else { return };
        let gone = Link { host_index: Some(before.0), ..link.clone() };
        outbox.announce(listeners, RTNLGRP_LINK, RTM_DELLINK, |w| {
            write_link(w, id, &gone, self.model.lower_of(id), None, 0, u32::MAX);
        });
        outbox.announce(listeners, RTNLGRP_LINK, RTM_NEWLINK, |w| {
            write_link(w, id, link, self.model.lower_of(id), None, 0, 0);
        });
        let now = self.model.ifindex(id);
        for address in &link.addresses {
            let name = &link.config.name;
            outbox.announce(listeners, address_group(address), RTM_NEWADDR, |w| {
                addr::write(w, now, name, address, self.model.now);
            });
        }
        for (table, route) in self.model.routes().filter(|(_, route)| route.is_by(id)) {
            outbox.announce(listeners, route_group(route), RTM_NEWROUTE, |w| {
                route::write(w, table.0, |dev| self.model.ifindex(dev), route);
            });
        }
    }
}

impl<B: Backend> Rtnl<B> {
    /// Notifies listeners and the datapath of pending changes.
    pub(super) fn publish(&mut self, reply: &mut Reply<'_>) {
        for delta in self.model.deltas() {
            notify(&self.model, delta, reply);
        }
        self.backend.apply(&mut self.model.take_deltas());
    }

    /// Notifies listeners of the current state of a link.
    pub(super) fn announce_link(&mut self, index: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        if self.model.link(index).is_some() && reply.has_listeners(RTNLGRP_LINK) {
            let now = self.links_now()?;
            let link = self.model.link(index).ok_or(Error::new(errno::ENODEV))?;
            let lower = self.model.lower_of(index);
            reply.notify(RTNLGRP_LINK, RTM_NEWLINK, 0, |w| {
                write_link(w, index, link, lower, find(&now, index), 0, 0);
            });
        }
        Ok(())
    }
}

/// Group of a route's notifications.
fn route_group(route: &Route) -> u32 {
    if route.prefix.is_ipv4() { RTNLGRP_IPV4_ROUTE } else { RTNLGRP_IPV6_ROUTE }
}

/// Group of an address's notifications.
fn address_group(address: &Address) -> u32 {
    if address.addr.addr().is_ipv4() { RTNLGRP_IPV4_IFADDR } else { RTNLGRP_IPV6_IFADDR }
}

/// Notifies listeners of one change.
fn notify(model: &Model, delta: &Delta, reply: &mut Reply<'_>) {
    let mut of_route = |kind, flags, table: &TableId, route: &Route| {
        let write = |w: &mut Writer| route::write(w, table.0, |dev| model.ifindex(dev), route);
        reply.notify(route_group(route), kind, flags, write);
    };
    match delta {
        Delta::AddRoute { table, route, .. } => of_route(RTM_NEWROUTE, 0, table, route),
        Delta::RemoveRoute { quiet: true, .. } => {}
        Delta::RemoveRoute { table, route, .. } => of_route(RTM_DELROUTE, 0, table, route),
        Delta::ReplaceRoute(replacement) => {
            let Replacement { table, new, told, .. } = &**replacement;
            match told {
                Told::Nothing => {}
                Told::New { flags, from: 0 } => of_route(RTM_NEWROUTE, *flags, table, new),
                Told::New { flags, from } => {
                    let mut paths = new.next_hops();
                    let from = (*from).min(paths.len());
                    paths.rotate_left(from);
                    of_route(RTM_NEWROUTE, *flags, table, &new.clone().with_paths(&paths));
                }
                Told::Gone(path) => of_route(RTM_DELROUTE, 0, table, path),
            }
        }
        // The handler of the request sends the notification, for one rule or link.
        Delta::Rules { .. } | Delta::Vrf(..) | Delta::Domain(..) => {}
        Delta::AddAddress(id, address) | Delta::ChangeAddress(id, address) | Delta::RemoveAddress(id, address) => {
            let kind = if matches!(delta, Delta::RemoveAddress(..)) { RTM_DELADDR } else { RTM_NEWADDR };
            let name = model.link(id.0).map_or("", |link| link.config.name.as_str());
            let index = model.ifindex(id.0);
            reply.notify(address_group(address), kind, 0, |w| {
                addr::write(w, index, name, address, model.now);
            });
        }
    }
}

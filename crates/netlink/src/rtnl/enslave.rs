//! Links that join or leave a VRF or a bridge (Linux `do_set_master`).

use base::PortId;

use super::backend::Backend;
use super::bridge::check_port;
use super::entry::{Link, Master};
use super::fib_rule::Rule;
use super::model::{LOOPBACK, Model};
use super::node::Rtnl;
use super::rule::notify_added;
use crate::error::{Error, errno};
use crate::session::Reply;
use config::model::LinkKind;

/// Checks that a link can join the device `master` (Linux `do_set_master`, `vrf_add_slave`). `index` is the link's
/// number; `None` for a link that does not exist yet.
pub(super) fn check(model: &Model, index: Option<u32>, kind: &LinkKind, master: u32) -> Result<Master, Error> {
    let upper = model.link(master).ok_or(Error::new(errno::EINVAL))?;
    if upper.is_bridge() {
        check_port(kind)?;
        if is_above(model, kind, master) {
            return Err(Error::text(errno::EBUSY, "Can not enslave a device above the bridge to it"));
        }
        return Ok(Master { index: master, table: None });
    }
    let LinkKind::Vrf { table } = upper.config.kind else { return Err(Error::new(errno::EOPNOTSUPP)) };
    match kind {
        LinkKind::Vrf { .. } => Err(Error::text(errno::EINVAL, "Can not enslave an L3 master device to a VRF")),
        _ if index == Some(LOOPBACK) => Err(Error::text(errno::EOPNOTSUPP, "Can not enslave loopback device to a VRF")),
        _ => Ok(Master { index: master, table: Some(table) }),
    }
}

/// Tells whether a link of kind `kind` is above a bridge (Linux `__netdev_upper_dev_link`).
fn is_above(model: &Model, kind: &LinkKind, bridge: u32) -> bool {
    let lower = |kind: &LinkKind| match kind {
        LinkKind::Vlan { link, .. } => model.index_of(link),
        _ => None,
    };
    let below = |index| match model.link(index).map(|link| &link.config.kind) {
        Some(LinkKind::Bridge(_)) => model.slaves(index),
        Some(kind) => lower(kind).into_iter().collect(),
        None => Vec::new(),
    };
    lower(kind).is_some_and(|lower| switch::is_above(lower, bridge, below))
}

impl<B: Backend> Rtnl<B> {
    /// Moves a link to a VRF or bridge, or to none.
    pub(super) fn enslave(&mut self, index: u32, master: Option<Master>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let before = self.model.link(index).and_then(|link| link.master);
        match master.or(before) {
            Some(Master { table: None, .. }) => self.set_bridge(index, master, reply),
            _ => self.set_vrf(index, master, reply),
        }
    }

    /// Moves a link to a VRF, or to none. A link that is up is set down and up again, so that its routes and neighbours
    /// move, and listeners are notified in Linux's order (`do_vrf_add_slave`, `cycle_netdev`).
    fn set_vrf(&mut self, index: u32, master: Option<Master>, reply: &mut Reply<'_>) -> Result<(), Error> {
        self.model.set_master(index, master);
        self.announce_link(index, reply)?;
        self.publish(reply);
        if !self.model.link(index).is_some_and(|link| link.up) {
            return Ok(());
        }
        for up in [false, true] {
            self.backend.set_up(PortId(index), up)?;
            self.model.set_up(index, up);
            self.announce_link(index, reply)?;
            self.publish(reply);
        }
        Ok(())
    }

    /// Removes all links from a VRF or bridge.
    pub(super) fn release(&mut self, vrf: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        self.model.slaves(vrf).into_iter().try_for_each(|index| self.enslave(index, None, reply))
    }

    /// Adds the table of a new VRF device, and with the first VRF the l3mdev rules.
    pub(super) fn add_vrf(&mut self, index: u32, reply: &mut Reply<'_>) {
        if let Some(table) = self.model.link(index).and_then(Link::l3_table) {
            [true, false].into_iter().for_each(|v4| self.model.make_table(v4, table));
        }
        self.model.record_vrf(index);
        for v4 in self.model.add_vrf_rules() {
            notify_added(&self.model, v4, &Rule::l3mdev(), reply);
        }
    }
}

//! VRFs (`drivers/net/vrf.c`): devices that give the links which belong to them a routing table of their own.
//!
//! No packet passes by such a device, so the packets' side is not asked for one; it is told of the VRF.

use std::collections::HashMap;

use base::{Domain, LinkId, TableId};

use super::super::attr::{Attr, Kind, Policy, Strictness, policy};
use super::bridge;
use super::entry::{Link, Master};
use super::rule::{self, Rule};
use super::*;
use crate::model::{Config, LinkKind};

/// The MTU of a new one, and the largest (`IP6_MAX_MTU`): it never has a packet cut.
pub(super) const MTU: u32 = 65575;
/// The smallest (`IPV6_MIN_MTU`).
pub(super) const MIN_MTU: u32 = 1280;

/// State of a VRF for the packets' side.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vrf {
    /// The name of its device.
    pub name: String,
    /// Table.
    pub table: TableId,
    /// Whether its device is up.
    pub up: bool,
    /// The MTU of its device.
    pub mtu: u32,
}

impl Vrf {
    /// One of a file, whose device is up.
    pub fn of_file(name: &str, table: u32) -> Self {
        Self { name: name.to_owned(), table: TableId(table), up: true, mtu: MTU }
    }
}

/// The link-layer address of the VRF's device of that number: locally administered, and on no wire.
pub(super) const fn mac(index: u32) -> [u8; 6] {
    let [a, b, c, d] = index.to_be_bytes();
    [2, 0, a, b, c, d]
}

/// A new VRF's device, of that MTU if one is wished for.
pub(super) fn new(id: LinkId, mtu: Option<u32>) -> LinkNow {
    let (mtu, mac) = (mtu.unwrap_or(MTU), Some(mac(id.0)));
    let (host_index, running, stats, carrier) = (None, true, LinkStats::default(), [0; 2]);
    LinkNow { id, host_index, running, mtu, mac, stats, carrier, bridging: None }
}

/// The table that a request for a VRF names (Linux `vrf_newlink`).
pub(super) fn wanted_table(data: Option<&Attr<'_>>) -> Result<u32, Error> {
    const DATA: Policy<2> = policy(&[(IFLA_VRF_TABLE, Kind::Int(4))]);
    let missing = || Error::text(errno::EINVAL, "VRF table id is missing");
    let data = data.ok_or_else(missing)?.parse(&DATA, Strictness::Liberal)?;
    let table = data.get(IFLA_VRF_TABLE).ok_or_else(missing)?;
    match table.u32() {
        RT_TABLE_UNSPEC => Err(Error::text(errno::EINVAL, "Invalid VRF table id").at(table.offset)),
        id => Ok(id),
    }
}

/// The VRFs and bridges of a file, by name, with the numbers of their devices.
pub(super) fn masters_of<'a>(config: &'a Config, ids: &[LinkId]) -> HashMap<&'a str, Master> {
    let each = config.links.iter().zip(ids).filter_map(|(link, id)| match link.kind {
        LinkKind::Bridge(_) => Some((link.name.as_str(), Master { index: id.0, table: None })),
        LinkKind::Vrf { table } => Some((link.name.as_str(), Master { index: id.0, table: Some(table) })),
        _ => None,
    });
    each.collect()
}

/// Whether a link may belong to the one of number `master` (Linux `do_set_master`, `vrf_add_slave`). `index` is its own
/// number, if it has one already.
pub(super) fn check(model: &Model, index: Option<u32>, kind: &LinkKind, master: u32) -> Result<Master, Error> {
    let upper = model.link(master).ok_or(Error::new(errno::EINVAL))?;
    if upper.is_bridge() {
        return bridge::check_port(kind).map(|()| Master { index: master, table: None });
    }
    let LinkKind::Vrf { table } = upper.config.kind else { return Err(Error::new(errno::EOPNOTSUPP)) };
    match kind {
        LinkKind::Vrf { .. } => Err(Error::text(errno::EINVAL, "Can not enslave an L3 master device to a VRF")),
        _ if index == Some(LOOPBACK) => Err(Error::text(errno::EOPNOTSUPP, "Can not enslave loopback device to a VRF")),
        _ => Ok(Master { index: master, table: Some(table) }),
    }
}

/// Table of a link that is a VRF.
const fn table_of(link: &Link) -> Option<u32> {
    match link.config.kind {
        LinkKind::Vrf { table } => Some(table),
        _ => None,
    }
}

impl Model {
    /// The domain of a link: the number of the device of its VRF, 0 if it is in none.
    pub(super) fn domain(&self, index: u32) -> u32 {
        match self.links.get(&index) {
            Some(link) if link.is_vrf() => index,
            Some(link) => link.master.filter(|master| master.table.is_some()).map_or(0, |master| master.index),
            None => 0,
        }
    }

    /// Configuration that a link would be made from again.
    pub fn config_of(&self, link: &Link) -> crate::model::LinkConfig {
        let master = link.master.and_then(|master| self.links.get(&master.index));
        let master = master.map(|master| master.config.name.clone());
        crate::model::LinkConfig { master, ..link.to_config() }
    }

    /// The links that belong to a VRF or a bridge.
    pub(super) fn slaves(&self, index: u32) -> Vec<u32> {
        let belongs = |link: &Link| link.master.is_some_and(|master| master.index == index);
        self.links.iter().filter(|(_, link)| belongs(link)).map(|(&index, _)| index).collect()
    }

    /// Says whether each VRF is to have a table of its own (Linux `vrf_strict_mode_change`).
    ///
    /// # Errors
    /// `EBUSY`: two have one already.
    pub fn set_strict_vrfs(&mut self, is_strict: bool) -> Result<(), i32> {
        let mut tables: Vec<u32> = self.links.values().filter_map(table_of).collect();
        let count = tables.len();
        tables.sort_unstable();
        tables.dedup();
        if is_strict && tables.len() < count {
            return Err(errno::EBUSY);
        }
        self.strict_vrfs = is_strict;
        Ok(())
    }

    /// Checks that a new VRF may have that table (Linux `vrf_map_register_dev`).
    pub(super) fn check_table_of_vrf(&self, table: u32) -> Result<(), Error> {
        let is_used = || self.links.values().any(|link| table_of(link) == Some(table));
        if self.strict_vrfs && is_used() {
            return Err(Error::text(errno::EBUSY, "Table is used by another VRF"));
        }
        Ok(())
    }

    /// Tells the packets' side how a VRF is now.
    pub(super) fn tell_vrf(&mut self, index: u32) {
        let Some(link) = self.links.get(&index) else { return };
        if let LinkKind::Vrf { table } = link.config.kind {
            let Link { up, mtu, .. } = *link;
            let vrf = Vrf { name: link.config.name.clone(), table: TableId(table), up, mtu };
            self.deltas.push(Delta::Vrf(LinkId(index), Some(vrf)));
        }
    }

    /// Adds the rules by which VRFs' tables are asked, unless they have ever been added (Linux `vrf_add_fib_rules`). Returns
    /// the families that have got theirs.
    pub(super) fn add_vrf_rules(&mut self) -> Vec<bool> {
        if std::mem::replace(&mut self.had_vrf, true) {
            return Vec::new();
        }
        let mut added = Vec::new();
        for v4 in [true, false] {
            let mut rules = self.rules(v4).to_vec();
            if !rules.contains(&Rule::l3mdev()) {
                let at = rules.partition_point(|other| other.priority <= rule::L3MDEV_PRIORITY);
                rules.insert(at, Rule::l3mdev());
                self.set_rules(v4, rules);
                added.push(v4);
            }
        }
        added
    }

    /// Moves a link to a bridge, or to none.
    pub(super) fn set_bridge(&mut self, index: u32, bridge: Option<Master>) {
        if let Some(link) = self.link_mut(index) {
            link.master = bridge;
        }
    }

    /// Moves a link to another VRF, or to none. It loses its routes, and its IPv6 addresses; those of IPv4 make theirs
    /// anew when it is set up (Linux `fib_netdev_event`, `addrconf_notify`: `NETDEV_CHANGEUPPER`).
    pub(super) fn set_master(&mut self, index: u32, master: Option<Master>) {
        self.touch();
        for v4 in [true, false] {
            self.remove_routes(v4, |_, route| route.dev == index);
        }
        let Some(link) = self.links.get_mut(&index) else { return };
        link.master = master;
        let (staying, going) = link.addresses.drain(..).partition(|address: &Address| address.addr.addr().is_ipv4());
        link.addresses = staying;
        let gone = |address| Delta::RemoveAddress(LinkId(index), address);
        self.deltas.extend::<Vec<_>>(Vec::into_iter(going).map(gone).collect());
        let domain = master.map_or(Domain::DEFAULT, |master| Domain::vrf(LinkId(master.index)));
        self.deltas.push(Delta::Domain(LinkId(index), domain));
    }
}

impl<H: Host> Rtnl<H> {
    /// Moves a link to a VRF or bridge, or to none.
    pub(super) fn enslave(&mut self, index: u32, master: Option<Master>, reply: &mut Reply<'_>) -> Result<(), Error> {
        let before = self.model.link(index).and_then(|link| link.master);
        match master.or(before) {
            Some(Master { table: None, .. }) => self.set_bridge(index, master, reply),
            _ => self.set_vrf(index, master, reply),
        }
    }

    /// Moves a link to a VRF, or to none. It is set down and up for that, if it is up, so that its routes and neighbours
    /// move, and listeners are told in Linux's order (`do_vrf_add_slave`, `cycle_netdev`).
    fn set_vrf(&mut self, index: u32, master: Option<Master>, reply: &mut Reply<'_>) -> Result<(), Error> {
        self.model.set_master(index, master);
        self.announce_link(index, reply)?;
        self.publish(reply);
        if !self.model.link(index).is_some_and(|link| link.up) {
            return Ok(());
        }
        for up in [false, true] {
            self.host.set_up(LinkId(index), up)?;
            self.model.set_up(index, up);
            self.announce_link(index, reply)?;
            self.publish(reply);
        }
        Ok(())
    }

    /// Takes every link out of a VRF or bridge.
    pub(super) fn release(&mut self, vrf: u32, reply: &mut Reply<'_>) -> Result<(), Error> {
        self.model.slaves(vrf).into_iter().try_for_each(|index| self.enslave(index, None, reply))
    }

    /// Adds a VRF whose device has just come: its table, and the rules that come with the first one.
    pub(super) fn add_vrf(&mut self, index: u32, reply: &mut Reply<'_>) {
        if let Some(table) = self.model.link(index).and_then(Link::l3_table) {
            [true, false].into_iter().for_each(|v4| self.model.make_table(v4, table));
        }
        self.model.tell_vrf(index);
        for v4 in self.model.add_vrf_rules() {
            rule::tell_added(v4, &Rule::l3mdev(), reply);
        }
    }
}

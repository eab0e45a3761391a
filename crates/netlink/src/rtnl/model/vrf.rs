//! VRFs of a [`Model`]: domains, members, and the l3mdev rules.

use base::{Domain, PortId, TableId};

use crate::error::{Error, errno};
use crate::rtnl::entry::{Address, Link, Master};
use crate::rtnl::fib_rule::{L3MDEV_PRIORITY, Rule};
use crate::rtnl::model::addresses::is_lost;
use crate::rtnl::model::{Delta, Model};
use crate::rtnl::vrf::Vrf;
use config::model::LinkKind;

impl Model {
    /// Domain of a link: the number of its VRF's device, 0 without VRF.
    pub(in crate::rtnl) fn domain(&self, index: u32) -> u32 {
        match self.links.get(&index) {
            Some(link) if link.is_vrf() => index,
            Some(link) => link.master.filter(|master| master.table.is_some()).map_or(0, |master| master.index),
            None => 0,
        }
    }

    /// Configuration that recreates the link.
    pub fn config_of(&self, link: &Link) -> config::model::LinkConfig {
        let master = link.master.and_then(|master| self.links.get(&master.index));
        let master = master.map(|master| master.config.name.clone());
        config::model::LinkConfig { master, ..link.to_config() }
    }

    /// Members of a VRF or a bridge.
    pub(in crate::rtnl) fn slaves(&self, index: u32) -> Vec<u32> {
        let belongs = |link: &Link| link.master.is_some_and(|master| master.index == index);
        self.links.iter().filter(|(_, link)| belongs(link)).map(|(&index, _)| index).collect()
    }

    /// Sets whether each VRF must have a separate table (Linux `vrf_strict_mode_change`).
    ///
    /// # Errors
    /// `EBUSY`: two VRFs share a table.
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

    /// Checks that a new VRF may use `table` (Linux `vrf_map_register_dev`).
    pub(in crate::rtnl) fn check_table_of_vrf(&self, table: u32) -> Result<(), Error> {
        let is_used = || self.links.values().any(|link| table_of(link) == Some(table));
        if self.strict_vrfs && is_used() {
            return Err(Error::text(errno::EBUSY, "Table is used by another VRF"));
        }
        Ok(())
    }

    /// Records the delta of a VRF's new state.
    pub(in crate::rtnl) fn record_vrf(&mut self, index: u32) {
        let Some(link) = self.links.get(&index) else { return };
        if let LinkKind::Vrf { table } = link.config.kind {
            let Link { up, mtu, .. } = *link;
            let vrf = Vrf { name: link.config.name.clone(), table: TableId(table), up, mtu };
            self.deltas.push(Delta::Vrf(PortId(index), Some(vrf)));
        }
    }

    /// Adds the rules that look up the tables of VRFs, unless they were ever added (Linux `vrf_add_fib_rules`). Returns
    /// the families whose rule was added.
    pub(in crate::rtnl) fn add_vrf_rules(&mut self) -> Vec<bool> {
        if std::mem::replace(&mut self.had_vrf, true) {
            return Vec::new();
        }
        let mut added = Vec::new();
        for v4 in [true, false] {
            let mut rules = self.rules(v4).to_vec();
            if !rules.contains(&Rule::l3mdev()) {
                let at = rules.partition_point(|other| other.priority <= L3MDEV_PRIORITY);
                rules.insert(at, Rule::l3mdev());
                self.set_rules(v4, rules);
                added.push(v4);
            }
        }
        added
    }

    /// Bridge of a link, and the link if it is a port. `None` for a link without bridge.
    pub(in crate::rtnl) fn bridge_of(&self, index: u32) -> Result<Option<(PortId, Option<PortId>)>, Error> {
        let link = self.link(index).ok_or(Error::new(errno::ENODEV))?;
        Ok(match link.master {
            _ if link.is_bridge() => Some((PortId(index), None)),
            Some(Master { index: bridge, table: None }) => Some((PortId(bridge), Some(PortId(index)))),
            _ => None,
        })
    }

    /// Moves a link to a bridge, or to none.
    pub(in crate::rtnl) fn set_bridge(&mut self, index: u32, bridge: Option<Master>) {
        if let Some(link) = self.link_mut(index) {
            link.master = bridge;
        }
    }

    /// Moves a link to another VRF, or to none. Its routes and its IPv6 addresses are removed; IPv4 addresses add their
    /// routes again when the link is set up (Linux `fib_netdev_event`, `addrconf_notify`: `NETDEV_CHANGEUPPER`).
    pub(in crate::rtnl) fn set_master(&mut self, index: u32, master: Option<Master>) {
        self.touch();
        for v4 in [true, false] {
            self.mark_paths(v4, index, true);
            self.remove_routes(v4, |_, route| is_lost(route, index));
        }
        let Some(link) = self.links.get_mut(&index) else { return };
        link.master = master;
        let (staying, going) = link.addresses.drain(..).partition(|address: &Address| address.addr.addr().is_ipv4());
        link.addresses = staying;
        let gone = |address| Delta::RemoveAddress(PortId(index), address);
        self.deltas.extend::<Vec<_>>(Vec::into_iter(going).map(gone).collect());
        let domain = master.map_or(Domain::DEFAULT, |master| Domain::vrf(PortId(master.index)));
        self.deltas.push(Delta::Domain(PortId(index), domain));
    }
}

/// Table of a VRF's device; `None` for another link.
const fn table_of(link: &Link) -> Option<u32> {
    match link.config.kind {
        LinkKind::Vrf { table } => Some(table),
        _ => None,
    }
}
